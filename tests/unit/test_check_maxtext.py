"""MaxText's configs: defaults of base.yml, overrides of the command, open axes, keys it refuses.

Values follow ``maxtext/configs`` of 0.2.5: ``base.yml`` (defaults), ``pyconfig.py`` (what counts
before what), ``max_utils.fill_unspecified_mesh_axes`` (axes of -1).
"""

import pytest

from meshplan.app import service
from meshplan.errors import UserError

# in the manner of configs/gpu/models/llama2_7b.yml
FILE = """base_config: base.yml
run_name: trial
hardware: gpu
per_device_batch_size: 4
max_target_length: 4096
model_name: llama2-7b
remat_policy: minimal_with_context
"""
COMMAND = "python3 -m MaxText.train MaxText/configs/base.yml run_name=trial hardware=gpu"


def judged(tmp_path, *, cluster="16xH100", model=None, **files):
    paths = []
    for name, text in files.items():
        path = tmp_path / name.replace("_", ".")
        path.write_text(text)
        paths.append(str(path))
    asked = {"files": paths, "cluster": cluster, "best": False}
    return service.check({**asked, **({"model": model} if model else {})})


def plan_of(found, *names):
    return tuple(found["plan"][name] for name in names)


def test_what_a_config_leaves_to_its_base(tmp_path):
    found = judged(tmp_path, a_yml=FILE)
    assert found["legal"] and found["config"] == "maxtext"
    # ici_fsdp and dcn_data are open: shards within a node, replicas across them
    assert plan_of(found, "tp", "dp_shard", "dp_replicate", "zero") == (1, 8, 2, 3)
    # 4 sequences on each of 16 GPUs
    assert found["scenario"]["job"]["global_batch"] == 64
    assert plan_of(found, "micro_batch", "num_micro_batches") == (4, 1)
    assumed = {a["code"]: a["value"] for a in found["assumptions"]}
    assert "ici_fsdp_parallelism=-1" in assumed["config_defaults"]
    assert "remat_policy" not in assumed["config_defaults"]


def test_a_command_alone_takes_all_sizes_from_the_base(tmp_path):
    found = judged(tmp_path, a_sh=f"{COMMAND}\n", cluster="8xH100")
    # 16 layers of 2048, 16 heads, 2048 tokens, 12 sequences for each device, all recomputed
    assert found["scenario"]["job"]["seq_len"] == 2048
    assert found["scenario"]["job"]["global_batch"] == 96
    assert found["plan"]["recompute"] == "full"


def test_words_of_the_command_count_before_the_file(tmp_path):
    run = "python3 -m maxtext.trainers.pre_train.train a.yml per_device_batch_size=2"
    found = judged(tmp_path, a_sh=f"{run} remat_policy=full ici_tensor_parallelism=2\n", a_yml=FILE)
    assert found["scenario"]["job"]["global_batch"] == 32
    assert plan_of(found, "tp", "dp_shard", "recompute") == (2, 4, "full")
    assert not [a for a in found["assumptions"] if a["code"] == "file_unread"]


def test_a_file_that_the_command_names_and_nobody_gave_is_asked_for(tmp_path):
    with pytest.raises(UserError) as caught:
        judged(tmp_path, a_sh="python3 -m MaxText.train $DIR/other.yml model_name=llama2-7b\n")
    (problem,) = caught.value.problems
    assert (problem.code, problem.value) == ("check_needs_file", "other.yml")


@pytest.mark.parametrize(
    ("key", "nearest"), [("per_device_batch_sise", "per_device_batch_size"), ("frobnicate", "")]
)
def test_keys_that_maxtext_does_not_have(tmp_path, key, nearest):
    found = judged(tmp_path, a_yml=f"{FILE}{key}: 3\n")
    assert not found["legal"]
    (said,) = found["problems"]
    assert (said["value"], said["numbers"]["nearest"]) == (key, nearest)
    assert said["where"].endswith("a.yml:8")
    # without the key it is legal
    assert found["nearest"]["plan"] == found["plan"]


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("ici_tensor_parallelism: 3\n", "check_mesh", 8),
        ("ici_data_parallelism: -1\n", "check_mesh", None),
        ("ici_autoregressive_parallelism: 2\n", "check_axis_unread", 8),
        ("per_device_batch_size: many\n", "duplicate_key", None),
        ("remat_policy2: x\nquantization: fp8\nremat_policy: none\n", "duplicate_key", None),
        ("ici_pipeline_parallelism: 2\nnum_pipeline_microbatches: 3\n", "check_maxtext_rounds", 9),
    ],
)
def test_what_maxtext_refuses_is_said_with_its_line(tmp_path, text, code, line):
    with pytest.raises(UserError) as caught:
        judged(tmp_path, a_yml=FILE + text)
    (problem,) = [p for p in caught.value.problems if p.code == code]
    assert line is None or problem.where.endswith(f"a.yml:{line}")


def test_a_pipeline_runs_all_forward_passes_first(tmp_path):
    found = judged(tmp_path, a_yml=f"{FILE}ici_pipeline_parallelism: 2\nscan_layers: false\n")
    # as many micro-batches as stages unless it says otherwise, and 32 layers in 32 / (2 x 1) rounds
    assert plan_of(found, "pp", "num_micro_batches", "vpp", "schedule") == (2, 2, 16, "interleaved")
    text = f"{FILE}ici_pipeline_parallelism: 2\nnum_layers_per_pipeline_stage: 16\n"
    assert plan_of(judged(tmp_path, a_yml=text), "vpp", "schedule") == (1, "gpipe")


def test_values_that_no_plan_says_are_named(tmp_path):
    text = FILE.replace("minimal_with_context", "save_qkv_proj")
    found = judged(tmp_path, a_yml=f"{text}optimizer_memory_host_offload: true\n")
    values = [a["value"] for a in found["assumptions"] if a["code"] == "nearest_value"]
    assert [v.split(" ")[0] for v in values] == ["remat_policy=save_qkv_proj"]
    (saves,) = [f for f in found["findings"] if f["code"] == "saves_uncounted"]
    assert saves["numbers"]["options"] == "optimizer_memory_host_offload"


def test_a_mesh_that_is_closed_needs_no_number_of_gpus(tmp_path):
    mesh = "ici_fsdp_parallelism: 8\ndcn_data_parallelism: 4\n"
    found = judged(tmp_path, cluster="H100", a_yml=FILE + mesh)
    assert plan_of(found, "dp_shard", "dp_replicate") == (8, 4)


def test_a_model_of_its_own_file_is_asked_for(tmp_path):
    text = FILE.replace("llama2-7b", "deepseek4-284b")
    with pytest.raises(UserError) as caught:
        judged(tmp_path, a_yml=text)
    assert [p.code for p in caught.value.problems] == ["check_model_unread"]
    assert judged(tmp_path, a_yml=text, model="llama-2-7b")["legal"]


def test_a_command_that_overrides_nothing_needs_its_config_too(tmp_path):
    with pytest.raises(UserError, match="check_needs_file"):
        judged(tmp_path, **{"train.sh": "python3 -m maxtext.trainers.pre_train.train my.yml\n"})


def test_axes_of_the_mesh_alone_tell_a_config_of_maxtext(tmp_path):
    text = "model_name: llama3.1-8b\nici_fsdp_parallelism: 8\n"
    found = judged(tmp_path, cluster="8xH100", **{"my.yml": text})
    assert found["plans"][0]["plan"]["zero"] == 3
