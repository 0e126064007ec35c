"""Field reports of configurations that were rejected or silently wrong (kind c of the cases).

Each ``expect`` is asserted, or stands in ``cases_out_of_reach.yaml`` with the reason.
"""

from collections.abc import Callable
from pathlib import Path

import yaml

from meshplan.cost.shards import padded_vocab
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.model import Model
from meshplan.inputs.scenario import Scenario
from meshplan.space.complete import complete_plan
from meshplan.space.placement import axis_group
from meshplan.space.plan import Framework, PlanGrid, Split
from meshplan.space.rules import Violation, check_plan
from space_scenarios import dense_model, enumerate_plans, moe_model, scenario

OUT_OF_REACH = Path(__file__).with_name("cases_out_of_reach.yaml")
M, T, D, A = Framework.MEGATRON, Framework.TORCHTITAN, Framework.DEEPSPEED, Framework.ACCELERATE


def on(model: Model, num_gpus: int, **job: object) -> Scenario:
    return scenario(model, num_gpus=num_gpus, **{"global_batch": num_gpus, **job})


def broken(there: Scenario, framework: Framework, **given: object) -> dict[str, Violation]:
    plan = complete_plan(there, framework=framework, **given)
    return {v.code: v for v in check_plan(there, plan)}


def legal(there: Scenario, framework: Framework, **given: object) -> bool:
    return not broken(there, framework, **given)


def degrees(there: Scenario, framework: Framework, axis: str, **pins: object) -> list[int]:
    """Values of one axis among all legal plans."""
    axes = {
        name: (1,)
        for name in ("pp", "cp", "ep", "micro_batch", "dp_replicate", "vpp", "tp")
        if name != axis
    }
    fixed = scenario(
        there.model,
        num_gpus=there.cluster.num_gpus,
        seq_len=there.job.seq_len,
        global_batch=there.job.global_batch,
        frameworks=(framework.name.lower(),),
        axes={**axes, "recompute": ("none",), **pins},
    )
    return sorted({int(value) for value in getattr(enumerate_plans(fixed).grid, axis)})


def fewest_gpus(model: Model, framework: Framework, **given: object) -> int:
    return next(
        n for n in range(1, 1025) if legal(on(model, n, global_batch=4096), framework, **given)
    )


GLM = "glm-4.5-air"
QWEN_MOE = "qwen3-30b-a3b"


def kv(kv_heads: int) -> Model:
    return dense_model(num_layers=8, heads=64, kv_heads=kv_heads)


def largest_tp(kv_heads: int) -> int:
    return max(degrees(on(kv(kv_heads), 64), T, "tp"))


def least_micro_batches() -> int:
    model = dense_model(num_layers=12)
    return next(m for m in range(1, 32) if legal(on(model, 6, global_batch=m), M, pp=6, vpp=2))


PHI_4 = dense_model(num_layers=40, hidden=5120, heads=40, kv_heads=10, ffn_hidden=17920)
FORTY_HEADS = dense_model(num_layers=40, hidden=5120, heads=40, kv_heads=40, ffn_hidden=13696)


def alignment() -> int:
    """Distance between neighbouring lengths that cp 4 takes."""
    found = broken(on(dense_model(num_layers=8), 4, seq_len=32769), M, cp=4)
    below, above = found["ring_splits_sequence"].numbers["nearest_seq_len"].split(", ")
    return int(above) - int(below)


def expert_shards() -> int:
    there = on(moe_model(num_experts=128), 8)
    plan = complete_plan(there, framework=T, tp=2, cp=2, ep=4)
    return int(axis_group(PlanGrid.of([plan]), "edp_shard").size[0])


def rest(vocab: int, tp: int) -> int:
    """What is left of a vocabulary that is not padded."""
    return (tp - (padded_vocab(vocab, multiple=1, tp=tp) - vocab)) % tp


# Packing, 2-D tensor parallelism and old defects are not among our words; see the YAML file.
CHECKS: dict[tuple[str, str], Callable[[], object]] = {
    ("C01", "valid"): lambda: legal(on(dense_model(num_layers=80), 16), M, pp=16, vpp=2),
    ("C03", "valid"): lambda: legal(
        on(load_model(GLM), 64, global_batch=16), M, tp=8, pp=4, ep=16, etp=1, micro_batch=2
    ),
    ("C03", "valid_split_sum"): lambda: sum(
        map(
            int,
            broken(on(load_model(GLM), 64), M, tp=8, pp=4, ep=16, etp=1)["layers_are_dealt"]
            .numbers["balanced"]
            .split("+"),
        )
    ),
    ("C03", "min_world"): lambda: fewest_gpus(
        load_model(GLM), M, tp=8, pp=4, ep=16, etp=1, split=Split.BALANCED
    ),
    ("C04", "valid"): lambda: legal(
        on(dense_model(num_layers=12), 6, global_batch=3), M, pp=6, vpp=2
    ),
    ("C04", "min_microbatches"): least_micro_batches,
    ("C06", "max_tp_qwen3_5_moe"): lambda: largest_tp(2),
    ("C06", "max_tp_llama3"): lambda: largest_tp(8),
    ("C08", "valid"): lambda: legal(on(PHI_4, 4), A, tp=4),
    ("C08", "legal_tp"): lambda: degrees(on(PHI_4, 40), A, "tp"),
    ("C08", "legal_tp_on_4_gpus"): lambda: degrees(on(PHI_4, 4), A, "tp"),
    ("C09", "valid_tp8"): lambda: legal(on(load_model(QWEN_MOE), 8), A, tp=8, zero=0),
    ("C09", "valid_tp4"): lambda: legal(on(load_model(QWEN_MOE), 8), A, tp=4),
    # the trainer pads sequences to a multiple of the degree: 65,600 is one of 40 and of 64
    ("C11", "legal_sp"): lambda: degrees(
        on(load_model("qwen2.5-14b"), 40, seq_len=65_600), D, "cp", cp=(1, 2, 4, 5, 8, 10, 20, 40)
    ),
    ("C12", "valid"): lambda: legal(on(load_model("qwen2.5-7b"), 8), A, tp=8, zero=0),
    ("C12", "legal_tp_with_kv"): lambda: degrees(on(load_model("qwen2.5-7b"), 56), A, "tp"),
    ("C13", "valid_tp64"): lambda: legal(on(FORTY_HEADS, 64, global_batch=1), M, tp=64),
    ("C13", "valid_gbs1_dp2"): lambda: legal(on(FORTY_HEADS, 16, global_batch=1), M, tp=8),
    ("C14", "valid"): lambda: legal(
        on(dense_model(num_layers=8), 2), T, dp_replicate=4, dp_shard=2
    ),
    ("C14", "product"): lambda: broken(
        on(dense_model(num_layers=8), 2), T, dp_replicate=4, dp_shard=2
    )["degrees_multiply_to_gpus"].numbers["dp"],
    ("C15", "valid"): lambda: legal(
        on(dense_model(num_layers=8), 7, global_batch=256), D, micro_batch=2
    ),
    ("C15", "nearest_legal_gbs"): lambda: [
        int(b)
        for b in broken(on(dense_model(num_layers=8), 7, global_batch=256), D, micro_batch=2)[
            "batch_divides"
        ]
        .numbers["nearest_global_batch"]
        .split(", ")
    ],
    ("C17", "alignment"): alignment,
    ("C17", "seq_total_ok"): lambda: legal(
        on(dense_model(num_layers=8), 4, seq_len=32768), M, cp=4
    ),
    ("C18", "valid_50341_tp4"): lambda: legal(
        on(load_model("llama-3.1-8b"), 4, seq_len=50341), M, tp=4
    ),
    ("C18", "valid_50016_tp4"): lambda: legal(
        on(load_model("llama-3.1-8b"), 4, seq_len=50016), M, tp=4
    ),
    ("C19", "valid"): lambda: legal(on(load_model(QWEN_MOE), 4), M, tp=4, ep=4, etp=1),
    ("C19", "etp_ep_pp"): lambda: _expert_ranks(tp=4, ep=4, etp=1),
    ("C19", "invalid_if_etp_defaults_to_tp"): lambda: (
        "expert_grid_divides" in broken(on(load_model(QWEN_MOE), 4), M, tp=4, ep=4, etp=4)
    ),
    ("C20", "valid_with_zero1"): lambda: legal(
        on(dense_model(num_layers=8), 4), D, pp=2, tp=2, zero=1
    ),
    ("C22", "valid_ep3"): lambda: legal(on(moe_model(num_experts=128), 8), T, tp=2, cp=2, ep=3),
    ("C22", "valid_ep4"): lambda: legal(on(moe_model(num_experts=128), 8), T, tp=2, cp=2, ep=4),
    ("C22", "efsdp_ep4"): expert_shards,
    ("C23", "padded_vocab_128256_mult64_tp8"): lambda: padded_vocab(128_256, multiple=64, tp=8),
    ("C23", "padded_vocab_50257_mult128_tp8"): lambda: padded_vocab(50_257, multiple=128, tp=8),
    ("C23", "divisible_65535_tp8"): lambda: rest(65_535, 8) == 0,
    ("C25", "vocab_151552_mod_6"): lambda: rest(151_552, 6),
    ("C25", "vocab_129280_mod_24"): lambda: rest(129_280, 24),
    ("C27", "valid"): lambda: legal(on(moe_model(num_experts=8), 16), M, cp=2, ep=8),
}


def _expert_ranks(**given: int) -> int:
    plan = complete_plan(on(load_model(QWEN_MOE), 4), framework=M, **given)
    return plan.etp * plan.ep * plan.pp


def test_zero_3_in_a_deepspeed_pipeline_names_what_works():
    """C20 reports a pipeline engine around one stage; with two stages the rule is the same."""
    found = broken(on(dense_model(num_layers=8), 4), D, pp=2, zero=3)
    assert found["sharded_gradients_without_pipeline"].legal == (0, 1)


def test_every_expectation_is_asserted_or_explained(shared):
    cases = yaml.safe_load((shared / "data" / "cases" / "cases.yaml").read_text())["cases"]
    explained = yaml.safe_load(OUT_OF_REACH.read_text())
    wanted = {
        (case["id"], expect["metric"]): expect
        for case in cases
        if case["kind"] == "c"
        for expect in case["expect"]
    }
    left = {key for key in wanted if key[1] in explained.get(key[0], {})}
    assert set(CHECKS) | left == set(wanted)
    assert not set(CHECKS) & left
    wrong = {
        key: found for key, check in CHECKS.items() if (found := check()) != wanted[key]["value"]
    }
    assert wrong == {}
