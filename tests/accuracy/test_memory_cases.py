"""Field cases about memory: every expected value, or the reason why it is out of reach."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import pytest

from cost_scenarios import plan
from field_cases import expectations, field_cases, judge
from meshplan.cost.memory import Event, Verdict, peak_memory, stage_memory
from meshplan.cost.memory.head import head_activations
from meshplan.cost.memory.shapes import Shapes
from meshplan.cost.shards import layer_shard, padded_vocab
from meshplan.inputs.cluster import Cluster
from meshplan.inputs.job import Job
from meshplan.inputs.load.cluster import parse_cluster
from meshplan.inputs.load.framework import load_framework_memory
from meshplan.inputs.load.plain_model import plain_model
from meshplan.inputs.load.presets import load_device
from meshplan.inputs.model import Model
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import Framework, Offload, Plan, PlanGrid, Recompute
from meshplan.units import GIB, MIB
from meshplan.validate.memory import memory_as_measured

ALSO = ("C28", "G01", "G03", "G06", "G10", "H08", "J10")

DEEPSPEED, MEGATRON, ACCELERATE = Framework.DEEPSPEED, Framework.MEGATRON, Framework.ACCELERATE
STATES = ("weights", "gradients", "optimizer")


CASES = field_cases("afi", also=ALSO)


def model_of(case: str) -> Model:
    """The model of a case, from the sizes that it states."""
    given = CASES[case]["inputs"]["model"]
    gated = given.get("gated_mlp", True)
    experts = given.get("experts", 0)
    return plain_model(
        name=given["name"],
        num_layers=given["layers"],
        hidden=given["hidden"],
        ffn_hidden=given.get("ffn", given.get("moe_ffn", 4 * given["hidden"])),
        num_heads=given.get("heads", given["hidden"] // 128),
        num_kv_heads=given.get("kv_heads", given.get("heads", given["hidden"] // 128)),
        head_dim=given.get("head_dim"),
        vocab=given["vocab"],
        gated=gated,
        tied=given.get("tied", False),
        norm="rmsnorm" if gated else "layernorm",
        num_positions=0 if gated else 2048,
        num_experts=experts,
        top_k=given.get("top_k", 0),
        expert_ffn_hidden=given.get("moe_ffn", 0),
    )


def scene(
    case: str, *, cluster: str | Cluster | None = None, seq_len: int = 1024, **job
) -> Scenario:
    inputs = CASES[case]["inputs"]
    stated = inputs["cluster"]
    chosen = cluster or f"{stated['gpus']}x{stated['gpu']}"
    return Scenario(
        model=model_of(case),
        cluster=parse_cluster(chosen) if isinstance(chosen, str) else chosen,
        job=Job(
            **{
                "seq_len": inputs["job"].get("seq", seq_len),
                "global_batch": 64,
                "task": "full_finetune",
                **job,
            }
        ),
    )


def on(num_gpus: int, framework: Framework, **fields) -> Plan:
    return plan(num_gpus, framework=framework, num_micro_batches=1, **fields)


def lines(scenario: Scenario, chosen: Plan, *names: str, event: Event = Event.OPTIMIZER) -> float:
    """Sum of some lines of the fullest device at an event [bytes]."""
    return max(
        sum(stage.line(event, name) for name in names) for stage in stage_memory(scenario, chosen)
    )


def states_gb(case: str, framework: Framework, num_gpus: int, **fields) -> float:
    return (
        lines(scene(case, cluster=f"{num_gpus}xH100"), on(num_gpus, framework, **fields), *STATES)
        / 1e9
    )


def bytes_per_parameter(framework: Framework, num_gpus: int, *, offload=Offload.NONE, **fields):
    """Bytes of states per parameter of one device, on a model without anything special."""
    model = plain_model(
        name="plain",
        num_layers=4,
        hidden=1024,
        ffn_hidden=4096,
        num_heads=8,
        num_kv_heads=8,
        vocab=32768,
        gated=False,
        tied=True,
        norm="rmsnorm",
        num_positions=0,
    )
    scenario = Scenario(
        model=model,
        cluster=parse_cluster(f"{num_gpus}xH100"),
        job=Job(seq_len=1024, global_batch=num_gpus),
    )
    chosen = on(num_gpus, framework, offload=offload, **fields)
    (stage,) = stage_memory(scenario, chosen)
    parameters = 1024 * 32768 + 4 * (12 * 1024 * 1024 + 2 * 1024) + 1024
    here = sum(stage.line(Event.OPTIMIZER, name) for name in STATES) / parameters
    return here, stage.host_bytes / parameters


def verdict(scenario: Scenario, chosen: Plan, **behaviour) -> Verdict:
    given = None
    if behaviour:
        record = load_framework_memory(chosen.framework.name.lower())
        given = {chosen.framework: replace(record, **behaviour)}
    found = peak_memory(scenario, PlanGrid.of([chosen]), behaviours=given)
    return Verdict(int(found.verdict[0]))


def logits_bytes(case: str, *, tokens: int, per_logit: float, vocab: int | None = None) -> float:
    """Logits of one micro-batch on one device, as the model of the loss counts them."""
    model = model_of(case)
    model = model if vocab is None else replace(model, vocab=vocab)
    record = replace(load_framework_memory("accelerate"), loss_forward_bytes=per_logit)
    grid = PlanGrid.of([on(1, ACCELERATE)])
    shapes = Shapes.of(Job(seq_len=tokens, global_batch=1), grid, {ACCELERATE: record})
    padded = padded_vocab(model.vocab, multiple=1, tp=grid.tp).astype(float)
    return float(head_activations(model, shapes, vocab=padded).forward[0])


def own_logits_gb(framework: Framework, *, vocab: int, tokens: int) -> float:
    """Logits of one micro-batch with a vocabulary, at the widths of a framework's own loss."""
    model = replace(model_of("A12"), vocab=vocab)
    record = load_framework_memory(framework.name.lower())
    grid = PlanGrid.of([on(1, framework)])
    shapes = Shapes.of(Job(seq_len=tokens, global_batch=1), grid, {framework: record})
    return float(head_activations(model, shapes, vocab=grid.tp * float(vocab)).forward[0]) / 1e9


def fewest_gpus(case: str, device: str, counts: tuple[int, ...], **fields) -> int:
    for count in counts:
        scenario = scene(case, cluster=f"{count}x{device}")
        if verdict(scenario, on(count, DEEPSPEED, **fields)) is Verdict.FITS:
            return count
    return 0


def reported(case: str) -> float:
    """Parameters that the run itself reported, where they differ from the architecture's."""
    given = CASES[case]["inputs"]["model"]
    return 1e9 * given.get("params_b_reported_by_run", given["params_b"])


FULL = {"recompute": Recompute.FULL}
BOTH = Offload.OPTIMIZER | Offload.PARAMETERS


@lru_cache(maxsize=1)
def a16() -> Scenario:
    model = plain_model(
        name="gpt-2.35b",
        num_layers=28,
        hidden=2576,
        ffn_hidden=4 * 2576,
        num_heads=28,
        num_kv_heads=28,
        vocab=50304,
        gated=False,
        tied=True,
        norm="layernorm",
        num_positions=1024,
    )
    return Scenario(
        model=model, cluster=parse_cluster("2xA100-40GB"), job=Job(seq_len=1024, global_batch=2)
    )


def f12_total_gb() -> float:
    scenario = scene("A12", cluster="8xA100-80GB", seq_len=2048)
    stages = stage_memory(scenario, on(8, MEGATRON, tp=2, pp=4, zero=1))
    return 2 * sum(sum(s.line(Event.OPTIMIZER, n) for n in STATES) for s in stages) / 1e9


def a12(num_gpus: int, pp: int) -> Verdict:
    scenario = scene("A12", cluster=f"{num_gpus}xA100-80GB", seq_len=2048)
    return verdict(scenario, on(num_gpus, MEGATRON, tp=2, pp=pp, zero=1, **FULL))


def a17(num_gpus: int, seq_len: int) -> Verdict:
    scenario = scene("A17", cluster=f"{num_gpus}xH100")
    scenario = replace(scenario, job=replace(scenario.job, seq_len=seq_len))
    return verdict(scenario, on(num_gpus, ACCELERATE, zero=3, **FULL))


def a22() -> Verdict:
    """Loss computed in chunks of the vocabulary, on the 11.6k tokens of the batch that failed."""
    fused = {"loss_forward_bytes": 0.0, "loss_backward_bytes": 0.0, "loss_saved_bytes": 0.0}
    scenario = scene("A22", cluster="8xA100-80GB")
    scenario = replace(scenario, job=replace(scenario.job, seq_len=11600))
    return verdict(scenario, on(8, ACCELERATE, zero=3, **FULL), **fused)


def a25(zero: int, *names: str) -> float:
    scenario = scene("A25", cluster="8xAscend-910B", task="lora", lora_rank=8)
    return lines(scenario, on(8, ACCELERATE, zero=zero), *names) / 1e9


def experts_billion(case: str, *, ep: int) -> float:
    model = model_of(case)
    shard = layer_shard(model.layers[0], model, tp=1, ep=ep, etp=1)
    return model.num_layers * shard.expert / 1e9


def c28_expert_states() -> float:
    scenario = scene("C28", cluster="16xA800")
    whole = lines(scenario, on(16, MEGATRON, tp=2, sp=True, ep=8, zero=1), *STATES)
    dense_only = replace(
        scenario.model,
        layers=tuple(replace(layer, ffn=None, num_norms=1) for layer in scenario.model.layers),
    )
    without = lines(
        replace(scenario, model=dense_only), on(16, MEGATRON, tp=2, sp=True, ep=8, zero=1), *STATES
    )
    return (whole - without) / 1e9


def g03(seq_len: int) -> Verdict:
    scenario = scene("G03", cluster="1xRTX-4090", task="lora", lora_rank=8)
    scenario = replace(scenario, job=replace(scenario.job, seq_len=seq_len))
    return verdict(scenario, on(1, ACCELERATE, **FULL))


def i01(*names: str) -> float:
    scenario = scene("I01", cluster="2xRTX-3090", task="qlora", lora_rank=32)
    return lines(scenario, on(2, ACCELERATE, zero=3, **FULL), *names) / 1e9


def fits_i01() -> Verdict:
    scenario = scene("I01", cluster="2xRTX-3090", task="qlora", lora_rank=32, optimizer="adamw8bit")
    return verdict(scenario, on(2, ACCELERATE, zero=3, **FULL))


def g10_checkpoints() -> float:
    scenario = scene("G10", cluster="8xA100-80GB")
    chosen = on(8, DEEPSPEED, zero=3, **FULL)
    return lines(scenario, chosen, "checkpoints", event=Event.BACKWARD) / 1e9


def deepspeed(case: str, cluster: str, zero: int, **fields) -> Verdict:
    scenario = scene(case, cluster=cluster)
    return verdict(scenario, on(scenario.cluster.num_gpus, DEEPSPEED, zero=zero, **fields))


def a09() -> Scenario:
    scenario = scene("A09", cluster="1xH100-NVL")
    host = 1e9 * CASES["A09"]["inputs"]["cluster"]["host_ram_gb"]
    return replace(scenario, cluster=replace(scenario.cluster, host_memory_bytes=host))


def a09_plan() -> Plan:
    return on(1, DEEPSPEED, zero=3, offload=BOTH, **FULL)


def a14_logits() -> float:
    scenario = scene("A14", cluster="1xV100-32GB", task="pretrain", precision="fp16")
    chosen = plan(1, micro_batch=4, num_micro_batches=1)
    record = load_framework_memory("megatron-2022")
    shapes = Shapes.of(scenario.job, PlanGrid.of([chosen]), {MEGATRON: record})
    padded = padded_vocab(scenario.model.vocab, multiple=128, tp=1)
    grid_vocab = PlanGrid.of([chosen]).tp * float(padded)
    return float(head_activations(scenario.model, shapes, vocab=grid_vocab).logits[0]) / MIB


def f03() -> float:
    """ZeRO-2 of DeepSpeed at its optimizer step, where the gradients are there in fp32 too."""
    plain = scene("A12", cluster="8xA100-80GB")
    at_the_step = lines(plain, on(8, DEEPSPEED, zero=2), *STATES, "step_gradients")
    parameters = lines(plain, on(8, DEEPSPEED, zero=2), "weights") / 2
    return at_the_step / parameters * 7


def g06_gib() -> float:
    """What torchtitan reserves for the third row of its table."""
    row = CASES["G06"]["inputs"]["parallel"]["rows"][2]
    scenario = scene(
        "G06",
        cluster="8xH100",
        seq_len=row["seq"],
        task="pretrain",
        global_batch=2,
        precision="fp8",
    )
    chosen = on(8, Framework.TORCHTITAN, zero=3, cp=row["cp"], **FULL)
    return memory_as_measured(scenario, chosen, kind="reserved", where="worst") / GIB


ANSWERS: dict[tuple[str, str], Callable[[], object]] = {
    ("A01", "model_states_gb_per_gpu_zero2"): lambda: states_gb("A01", DEEPSPEED, 8, zero=2),
    ("A01", "optimizer_step_temp_gib"): lambda: (
        lines(
            scene("A01", cluster="8xV100-32GB"), on(8, DEEPSPEED, zero=2), "optimizer_temporaries"
        )
        / GIB
    ),
    ("A01", "fits"): lambda: deepspeed("A01", "8xV100-32GB", 2, **FULL),
    ("A01", "fits_if_zero3"): lambda: deepspeed("A01", "8xV100-32GB", 3, **FULL),
    ("A02", "model_states_gb_per_gpu_zero2"): lambda: states_gb("A02", DEEPSPEED, 4, zero=2),
    ("A02", "failed_alloc_gib"): lambda: (
        lines(scene("A02", cluster="4xA800"), on(4, DEEPSPEED, zero=2), "optimizer_temporaries")
        / GIB
    ),
    ("A02", "fits"): lambda: deepspeed("A02", "4xA800", 2, **FULL),
    ("A02", "min_zero2_gpus_80gb"): lambda: fewest_gpus(
        "A02", "A800", (1, 2, 4, 8, 16), zero=2, **FULL
    ),
    ("A04", "model_states_gb_per_gpu_zero3"): lambda: states_gb("A04", DEEPSPEED, 8, zero=3),
    ("A04", "fits_zero3"): lambda: deepspeed("A04", "8xRTX-3090", 3),
    ("A04", "gpu_gb_zero3_offload"): lambda: (
        float(
            peak_memory(
                scene("A04", cluster="8xRTX-3090"),
                PlanGrid.of([on(8, DEEPSPEED, zero=3, offload=BOTH)]),
            ).peak_bytes[0]
        )
        / 1e9
    ),
    ("A05", "total_state_gb_16B"): lambda: 7 * states_gb("A05", DEEPSPEED, 7, zero=3),
    ("A05", "model_states_gb_per_gpu_7"): lambda: states_gb("A05", DEEPSPEED, 7, zero=3),
    ("A05", "model_states_gb_per_gpu_8"): lambda: states_gb("A05", DEEPSPEED, 8, zero=3),
    ("A05", "fits_7"): lambda: deepspeed("A05", "7xA800", 3, **FULL),
    ("A05", "fits_8_seq1024_observed"): lambda: deepspeed("A05", "8xA800", 3, **FULL),
    ("A06", "model_states_gb_per_gpu"): lambda: states_gb("A06", DEEPSPEED, 16, zero=3),
    ("A06", "fits"): lambda: deepspeed("A06", "16xA100-80GB", 3, **FULL),
    ("A06", "recommended_min_gpus"): lambda: fewest_gpus(
        "A06", "A100-80GB", (8, 16, 32, 64), zero=3, **FULL
    ),
    ("A08", "model_states_gb_per_gpu"): lambda: states_gb("A08", DEEPSPEED, 8, zero=3),
    ("A08", "fits"): lambda: deepspeed("A08", "8xH200", 3, **FULL),
    ("A09", "host_ram_needed_gib_deepspeed_rule"): lambda: (
        float(peak_memory(a09(), PlanGrid.of([a09_plan()])).host_bytes[0]) / GIB
    ),
    ("A09", "fits_host"): lambda: verdict(a09(), a09_plan()),
    ("A11", "states_gb_tp4_pp1_zero1_dp8"): lambda: (
        bytes_per_parameter(DEEPSPEED, 8, zero=1)[0] * reported("A11") / 4 / 1e9
    ),
    ("A11", "states_gb_tp8_pp2_zero1_dp2"): lambda: (
        bytes_per_parameter(DEEPSPEED, 2, zero=1)[0] * reported("A11") / 16 / 1e9
    ),
    ("A11", "states_gb_tp8_pp1_zero2_dp4"): lambda: (
        bytes_per_parameter(DEEPSPEED, 4, zero=2)[0] * reported("A11") / 8 / 1e9
    ),
    ("A12", "total_state_gb"): f12_total_gb,
    ("A12", "fits_4x80"): lambda: a12(4, 2),
    ("A12", "fits_8x80"): lambda: a12(8, 4),
    ("A13", "states_gb_no_dist_opt"): lambda: states_gb("A13", MEGATRON, 8, zero=0),
    ("A13", "states_gb_dist_opt"): lambda: states_gb("A13", MEGATRON, 8, zero=1),
    ("A13", "states_gb_tp2_dist_opt_dp4"): lambda: states_gb("A13", MEGATRON, 8, zero=1, tp=2),
    ("A13", "fits"): lambda: verdict(scene("A13", cluster="8xA100-40GB"), on(8, MEGATRON, zero=1)),
    ("A14", "fp32_logits_mib"): a14_logits,
    ("A14", "padded_vocab"): lambda: padded_vocab(50257, multiple=128, tp=1),
    ("A16", "states_gb"): lambda: lines(a16(), on(2, DEEPSPEED), *STATES) / 1e9,
    ("A17", "states_gb_8gpu"): lambda: states_gb("A17", ACCELERATE, 8, zero=3),
    ("A17", "states_gb_128gpu"): lambda: states_gb("A17", ACCELERATE, 128, zero=3),
    ("A17", "fits_8gpu_20480"): lambda: a17(8, 20480),
    ("A17", "fits_128gpu_22528"): lambda: a17(128, 22528),
    ("A17", "fits_128gpu_32768"): lambda: a17(128, 32768),
    ("A19", "states_gb_32_no_offload"): lambda: (
        bytes_per_parameter(MEGATRON, 1)[0] * reported("A19") / 32 / 1e9
    ),
    ("A19", "states_gb_32_optim_offload"): lambda: (
        bytes_per_parameter(MEGATRON, 1, offload=Offload.OPTIMIZER)[0] * reported("A19") / 32 / 1e9
    ),
    ("A19", "host_optimizer_tb_total"): lambda: (
        bytes_per_parameter(MEGATRON, 1, offload=Offload.OPTIMIZER)[1] * reported("A19") / 1e12
    ),
    ("A20", "actor_states_gb_per_gpu"): lambda: states_gb("A20", DEEPSPEED, 3, zero=3),
    ("A20", "fp32_logits_gb"): lambda: logits_bytes("A20", tokens=37888, per_logit=4.0) / 1e9,
    ("A20", "ref_weights_gb_total"): lambda: (
        lines(scene("A20", cluster="1xH100"), on(1, DEEPSPEED), "weights") / 1e9
    ),
    ("A22", "fp32_logits_gb_per_4096_tokens"): lambda: (
        logits_bytes("A22", tokens=4096, per_logit=4.0) / 1e9
    ),
    ("A22", "fits_with_fused_ce"): a22,
    ("A24", "fp32_logits_gb"): lambda: logits_bytes("A24", tokens=16384, per_logit=4.0) / 1e9,
    ("A24", "fp32_logits_gb_32k_vocab"): lambda: (
        logits_bytes("A24", tokens=16384, per_logit=4.0, vocab=32000) / 1e9
    ),
    ("A25", "weights_gb_per_device_zero0"): lambda: a25(0, "weights"),
    ("A25", "weights_gb_per_device_zero3"): lambda: a25(3, "weights"),
    ("A25", "fits_zero0"): lambda: verdict(
        scene("A25", cluster="8xAscend-910B", task="lora", lora_rank=8), on(8, ACCELERATE)
    ),
    ("F01", "estimator_cpu_gib"): lambda: (
        bytes_per_parameter(DEEPSPEED, 4, zero=3, offload=BOTH)[1] * 4 * reported("F01") / GIB
    ),
    ("F03", "new_gb"): f03,
    ("F04", "expert_params_per_gpu_b_ep8"): lambda: experts_billion("F04", ep=8),
    ("F04", "expert_params_per_gpu_b_old"): lambda: experts_billion("F04", ep=4),
    ("F06", "state_mib"): lambda: bytes_per_parameter(MEGATRON, 2, zero=1)[0] * 4.1055e9 / MIB,
    ("F06", "bytes_per_param"): lambda: round(bytes_per_parameter(MEGATRON, 2, zero=1)[0], 6),
    ("F09", "mixed_precision_gb"): lambda: (
        bytes_per_parameter(DEEPSPEED, 1)[0] * reported("F09") / 1e9
    ),
    ("F10", "bytes_per_param_full"): lambda: round(bytes_per_parameter(MEGATRON, 1)[0], 6),
    ("C28", "routed_params_per_gpu_b"): lambda: experts_billion("C28", ep=8),
    ("C28", "expert_state_gb_per_gpu"): c28_expert_states,
    ("H08", "logits_gb_tp1"): lambda: own_logits_gb(MEGATRON, vocab=151936, tokens=32768),
    ("H08", "weights_gb_per_gpu_fully_sharded"): lambda: (
        load_framework_memory("accelerate").gathered_weight_bytes * reported("H08") / 64 / 1e9
    ),
    ("I01", "nf4_weights_gb_total"): lambda: 2 * i01("weights"),
    ("I01", "fits_2x24_no_offload"): fits_i01,
    ("I05", "valid"): lambda: "bf16" in load_device("T4").peak_flop_per_s,
    ("I07", "states_gb_72b_32gpu"): lambda: (
        bytes_per_parameter(DEEPSPEED, 32, zero=3)[0] * 72.7e9 / 1e9
    ),
    ("G01", "logits_fp16_plus_fp32_gb_65536"): lambda: (
        logits_bytes("G01", tokens=65536, per_logit=6.0) / 1e9
    ),
    ("G01", "logits_fp16_plus_fp32_gb_102400"): lambda: (
        logits_bytes("G01", tokens=102400, per_logit=6.0) / 1e9
    ),
    ("G01", "fits_102400"): lambda: verdict(
        scene("G01", cluster="1xA100-80GB", task="qlora", lora_rank=16), on(1, ACCELERATE, **FULL)
    ),
    ("G03", "weights_gb"): lambda: (
        lines(
            scene("G03", cluster="1xRTX-4090", task="lora", lora_rank=1, lora_targets="attention"),
            on(1, ACCELERATE),
            "weights",
        )
        / 1e9
    ),
    ("G03", "fits_2048"): lambda: g03(2048),
    ("G03", "fits_4096"): lambda: g03(4096),
    ("G03", "fits_8192"): lambda: g03(8192),
    ("G10", "checkpoint_boundaries_gb_131072"): g10_checkpoints,
    ("G10", "logits_bf16_fp32_gb_131072"): lambda: (
        logits_bytes("G10", tokens=131072, per_logit=6.0) / 1e9
    ),
    ("G06", "mem_gib_131072_cp4"): g06_gib,
    ("J10", "logits_gb_152k"): lambda: own_logits_gb(ACCELERATE, vocab=152064, tokens=4096),
    ("J10", "logits_gb_64k"): lambda: own_logits_gb(ACCELERATE, vocab=64000, tokens=4096),
}


EXPECTED = expectations(CASES)


@pytest.mark.skipif(not EXPECTED, reason="measured data is absent: set MESHPLAN_SHARED")
@pytest.mark.parametrize(("case", "expect"), EXPECTED)
def test_expected_value(case, expect):
    judge(case, expect, ANSWERS)


@pytest.mark.skipif(not CASES, reason="measured data is absent: set MESHPLAN_SHARED")
def test_answers_belong_to_cases():
    known = {(case, e["metric"]) for case, content in CASES.items() for e in content["expect"]}
    assert ANSWERS.keys() <= known
