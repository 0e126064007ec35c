"""Launch files as people have them, each with one mistake that is named in both languages."""

from pathlib import Path

import pytest

from meshplan.app import service
from meshplan.app.cli.complaints import describe
from meshplan.app.sentences import say
from meshplan.errors import Problem, UserError
from meshplan.inputs.load.scenario import load_scenario

SCRIPTS = Path(__file__).resolve().parents[1] / "data" / "launch_scripts"
SFT = {"model": "llama-3.1-8b", "job": {"seq_len": 4096}}

# files, what is given beside them, where the mistake is, and words that name it
CASES = {
    "tensor parallelism over two nodes": (
        ["tp_nodes.sbatch"],
        {"cluster": "64xH100"},
        "",
        {
            "en": "tensor parallelism 16 leaves the 8 GPUs",
            "zh": "张量并行 16 超出了高速互联的 8 个 GPU",
        },
    ),
    "stages that do not divide the layers": (
        ["pp_layers.sh"],
        {"cluster": "128xA100"},
        "pp_layers.sh:52",
        {"en": "96 layers cannot be dealt to pp 10", "zh": "96 层无法按 even 切分到 pp 10"},
    ),
    "as many micro-batches as stages": (
        ["few_micro_batches.sh"],
        {"cluster": "128xA100"},
        "",
        {
            "en": "16 micro-batches for 16 pipeline stages",
            "zh": "16 个阶段的流水线只有 16 个 micro-batch",
        },
    ),
    "offload that slows down": (
        ["zero3_offload.json"],
        {**SFT, "cluster": "8xH100"},
        "",
        {"en": "would fit on the GPUs", "zh": "其实放得进 GPU"},
    ),
    "two number formats": (
        ["both.json"],
        {**SFT, "cluster": "8xH100"},
        "both.json:2",
        {"en": "fp16.enabled and bf16.enabled are both true", "zh": "bf16.enabled 同时为 true"},
    ),
    "nothing sharded": (
        ["accel.yaml"],
        {**SFT, "model": "llama-3.1-70b", "cluster": "8xH100"},
        "",
        {"en": "kept whole on each of 8 GPUs", "zh": "8 个 GPU 上各存一整份"},
    ),
    "too few micro-batches for the schedule": (
        ["titan.toml"],
        {"cluster": "64xH100"},
        "titan.toml:21",
        {"en": "2 micro-batches are too few for schedule 1f1b", "zh": "2 个不够"},
    ),
    "a stage of ZeRO that does not exist": (
        ["nanotron.yaml"],
        {"cluster": "8xH100"},
        "nanotron.yaml:15",
        {"en": "nanotron has no ZeRO-3", "zh": "nanotron 没有 ZeRO-3"},
    ),
    "degrees that a batch script exports": (
        ["wrap.sbatch", "inner.sh"],
        {"cluster": "32xH100"},
        "inner.sh:4",
        {"en": "tp 4 * pp 3 * cp 1 * dp 2 is not the 32 GPUs", "zh": "不等于集群的 32 张卡"},
    ),
    "other nodes than Slurm is asked for": (
        ["gpus.sbatch"],
        {"cluster": "H100"},
        "gpus.sbatch:2",
        {"en": "#SBATCH --nodes 8 contradicts --nnodes", "zh": "#SBATCH --nodes 8 与 --nnodes"},
    ),
    "chunks that lose layers": (
        ["moe.sh"],
        {"cluster": "32xH100"},
        "moe.sh:18",
        {"en": "make 24 of the 32 layers", "zh": "32 层中的 24 层"},
    ),
    "a config that the script writes otherwise": (
        ["ds.sh"],
        {"cluster": "64xA100"},
        "ds.sh:9",
        {"en": "train_micro_batch_size_per_gpu 4 contradicts --micro-batch-size", "zh": "4 与"},
    ),
    "a mesh of twice the GPUs": (
        ["accel2.yaml"],
        {**SFT, "cluster": "16xH100"},
        "accel2.yaml",
        {"en": "tp 2 * pp 1 * cp 1 * dp 16 is not the 16 GPUs", "zh": "不等于集群的 16 张卡"},
    ),
    "a quarter of the optimizer offloaded": (
        ["off.sh"],
        {"cluster": "8xA100"},
        "",
        {"en": "25% of the optimizer is on the host", "zh": "优化器有 25% 放在主机上"},
    ),
    "replicas that are not the nodes": (
        ["job.yaml"],
        {"cluster": "H100"},
        "job.yaml:8",
        {"en": "replicas 3 contradicts --nnodes", "zh": "replicas 3 与 --nnodes"},
    ),
}


def sentences(files, given, lang):
    """Places and sentences of what is wrong or off."""
    asked = {"files": [str(SCRIPTS / name) for name in files], "best": False, **given}
    if "model" in given and files[0].startswith("accel"):
        asked["job"] = {**given["job"], "global_batch": 16}
    try:
        found = service.check(asked)
    except UserError as error:
        return [(p.where, describe(p, lang)["message"]) for p in error.problems]
    told = [
        (p["where"], Problem(code=p["code"], where=p["where"], numbers=p["numbers"]))
        for p in found["problems"]
    ]
    said = [(where, describe(problem, lang)["message"]) for where, problem in told]
    off = found.get("findings", ())
    return said + [("", say("check.finding", f["code"], f["numbers"], lang)) for f in off]


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("case", CASES)
def test_the_mistake_is_named(case, lang):
    files, given, place, words = CASES[case]
    found = sentences(files, given, lang)
    assert [
        where for where, text in found if words[lang] in " ".join(text.split()) and place in where
    ], found


def test_a_script_alone_that_starts_another_asks_for_it():
    with pytest.raises(UserError) as caught:
        service.check({"files": [str(SCRIPTS / "wrap.sbatch")], "cluster": "32xH100"})
    (problem,) = caught.value.problems
    assert (problem.code, problem.value) == ("check_starts_other", "inner.sh")
    assert problem.where.endswith("wrap.sbatch:6")


def test_a_tokenizer_tells_the_model(tmp_path):
    text = (
        (SCRIPTS / "tp_nodes.sbatch").read_text().replace("-parallel-size 16", "-parallel-size 8")
    )
    path = tmp_path / "train.sbatch"
    asked = {"files": [str(path)], "cluster": "64xH100", "best": False}
    path.write_text(text)
    assert service.check(asked)["scenario"]["model"] == "llama-3.1-70b"
    # another depth: its vocabulary, but not its layers
    path.write_text(text.replace("--num-layers 80", "--num-layers 64"))
    model = load_scenario(service.check(asked)["scenario"]).model
    assert (model.name, model.vocab, model.num_layers) == ("train.sbatch", 128256, 64)
    path.write_text(text.replace("meta-llama/Llama-3.1-70B", "some/where"))
    with pytest.raises(UserError) as caught:
        service.check(asked)
    assert caught.value.problems[0].code == "check_model_missing"


@pytest.mark.parametrize(
    ("options", "gradients"),
    [
        # arguments.py:1172-1194 of megatron-core 0.19.2
        ("--bf16", 4),
        ("--bf16 --grad-reduce-in-bf16", 2),
        ("--fp16", 2),
        ("--fp16 --grad-reduce-in-bf16", 2),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", 4),
    ],
)
def test_gradients_are_as_wide_as_megatron_keeps_them(tmp_path, options, gradients):
    path = tmp_path / "run.sh"
    path.write_text(
        "torchrun pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
        "--seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 "
        f"--global-batch-size 64 --use-distributed-optimizer {options}"
    )
    found = service.check({"files": [str(path)], "cluster": "8xH100", "best": False})
    assert ("bf16-gradients" in found["scenario"].get("variant", "")) == (gradients == 2)
    terms = found["plans"][0]["memory"]["stages"][0]["terms"]
    held = {term["code"]: term["bytes"] for term in terms}
    weights, grads = held["weights"], held["gradients"]
    assert grads / weights == pytest.approx(gradients / 2, rel=0.01)


@pytest.mark.parametrize(
    ("fraction", "code"),
    [("1.0", None), ("0.5", "offloaded_in_part"), ("0.0", "offload_of_nothing"), ("x", None)],
)
def test_a_part_of_the_optimizer_lies_between_all_and_nothing(tmp_path, fraction, code):
    text = (SCRIPTS / "off.sh").read_text().replace("fraction 0.25", f"fraction {fraction}")
    path = tmp_path / "run.sh"
    path.write_text(text)
    found = service.check({"files": [str(path)], "cluster": "8xA100", "best": False})
    ours = [f for f in found["findings"] if f["code"].startswith(("offloaded", "offload_of"))]
    assert [f["code"] for f in ours] == ([code] if code else [])
    assert found["plan"]["offload"] == ("none" if fraction == "0.0" else "optimizer")
    if code == "offloaded_in_part":
        path.write_text(text.replace(f"fraction {fraction}", "fraction 0.0"))
        none = service.check({"files": [str(path)], "cluster": "8xA100", "best": False})
        ends = [f["plans"][0]["memory"]["peak_bytes"] for f in (found, none)]
        assert ours[0]["numbers"]["peak_bytes"] == pytest.approx(sum(ends) / 2)
