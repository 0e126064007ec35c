"""Closed forms of saved activations that were confirmed to the byte by tracing the frameworks.

Shape letters: s b tokens, h hidden, f inner width, a heads, kvh width of keys, t tensor parallel.
"""

from dataclasses import replace

import numpy as np
import pytest

from cost_scenarios import dense, grid, plan, scenario
from meshplan.cost.memory import Event, peak_memory, stage_memory
from meshplan.cost.memory.activations import layer_activations
from meshplan.cost.memory.shapes import Shapes
from meshplan.inputs.framework import FrameworkMemory
from meshplan.inputs.load.framework import load_framework_memory
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.load.plain_model import plain_model
from meshplan.inputs.model import Model
from meshplan.space.plan import Framework, PlanGrid, Recompute, Schedule
from meshplan.units import GIB, MIB

SEQ = 8192


def gpt(*, hidden: int, heads: int) -> Model:
    """A GPT block with GELU, f = 4 h and dropout in mind."""
    return plain_model(
        name="gpt",
        num_layers=2,
        hidden=hidden,
        ffn_hidden=4 * hidden,
        num_heads=heads,
        num_kv_heads=heads,
        vocab=51200,
        gated=False,
        tied=True,
        norm="layernorm",
        num_positions=2048,
    )


def layer_bytes(
    model: Model, behaviour: FrameworkMemory, *, job: dict[str, object], **fields: object
) -> dict[str, float]:
    """Saved bytes of the first layer by line, and all of them."""
    chosen = plan(64, framework=Framework.MEGATRON, **fields)
    scene = scenario(model, **{"seq_len": SEQ, **job})  # type: ignore[arg-type]
    shapes = Shapes.of(scene.job, grid(chosen), {Framework.MEGATRON: behaviour})
    found = layer_activations(model.layers[0], model, shapes)
    lines = {code: float(line[0]) for code, line in found.saved.items()}
    return {
        **lines,
        "total": float(found.saved_bytes[0]),
        "checkpoint": float(found.checkpoint_bytes[0]),
    }


NATIVE = load_framework_memory("torchtitan")
REGATHERS = replace(NATIVE, keeps_gathered_input=False)


@pytest.mark.parametrize(
    ("name", "tp", "native_mib", "regathered_mib"),
    [
        ("llama-3.1-8b", 1, 1313.1, 1313.1),
        ("llama-3.1-8b", 2, 720.5, 656.5),
        ("llama-3.1-8b", 8, 276.1, 164.1),
        ("llama-3.1-70b", 8, 548.3, 324.3),
    ],
)
def test_llama_block_traced(name, tp, native_mib, regathered_mib):
    model = load_model(name)
    mixer, ffn = model.layers[0].mixer, model.layers[0].ffn
    h, a, f = model.hidden, mixer.num_heads, ffn.ffn_hidden
    kvh = mixer.num_kv_heads * mixer.head_dim
    native = layer_bytes(model, NATIVE, job={}, tp=tp, sp=tp > 1)["total"]
    regathered = layer_bytes(model, REGATHERS, job={}, tp=tp, sp=tp > 1)["total"]
    assert native == SEQ * ((8 * h + 4 * kvh + 8 * f + 4 * a + 8) / tp + 4 * h)
    assert regathered == SEQ * (12 * h + 4 * kvh + 8 * f + 4 * a + 8) / tp
    assert round(native / MIB, 1) == native_mib
    assert round(regathered / MIB, 1) == regathered_mib


def test_full_recompute_keeps_the_input_of_a_layer():
    model = load_model("llama-3.1-8b")
    kept = layer_bytes(model, NATIVE, job={}, tp=8, sp=True)["checkpoint"]
    assert kept == 2 * SEQ * model.hidden / 8
    assert kept / MIB == 8.0


# without the statistics of norms and of the attention kernel, which the published forms leave out
PLAIN = replace(load_framework_memory("megatron"), norm_stat_bytes=0.0)


@pytest.mark.parametrize(
    ("name", "tp", "mib"),
    [
        ("8b", 1, 1088.0),
        ("8b", 2, 544.0),
        ("8b", 8, 136.0),
        ("70b", 8, 272.0),
    ],
)
def test_korthikanti_selective_with_sequence_parallelism(name, tp, mib):
    model = gpt(**{"8b": {"hidden": 4096, "heads": 32}, "70b": {"hidden": 8192, "heads": 64}}[name])
    lines = layer_bytes(model, PLAIN, job={"dropout": True}, tp=tp, sp=tp > 1)
    found = lines["total"] - lines["attention_core"]
    assert found == SEQ * model.hidden * 34 / tp
    assert found / MIB == mib


@pytest.mark.parametrize(("tp", "sp"), [(1, False), (2, False), (8, False), (2, True), (8, True)])
def test_korthikanti_with_stored_scores(tp, sp):
    """s b h (10 + 24 / t + 5 a s / (h t)), and 34 / t with sequence parallelism (2022, table 2)."""
    model = gpt(hidden=4096, heads=32)
    h, a = model.hidden, 32
    job = {"dropout": True, "attention": "unfused"}
    found = layer_bytes(model, PLAIN, job=job, tp=tp, sp=sp)["total"]
    outside = 34 / tp if sp else 10 + 24 / tp
    assert found == SEQ * h * (outside + 5 * a * SEQ / (h * tp))


@pytest.mark.parametrize(
    ("name", "tp", "mib"),
    [
        ("llama-3.1-8b", 1, 1024.0),
        ("llama-3.1-8b", 2, 512.0),
        ("llama-3.1-8b", 8, 128.0),
        ("llama-3.1-70b", 8, 256.0),
    ],
)
def test_megatron_estimator_is_low_for_llama(name, tp, mib):
    """Megatron-LM's own estimate, s b h (18 + 4 f / h) / t, knows neither SwiGLU nor GQA."""
    model = load_model(name)
    own = SEQ * model.hidden * (18 + 4 * model.layers[0].ffn.ffn_hidden / model.hidden) / tp
    assert own / MIB == mib
    ours = layer_bytes(model, load_framework_memory("megatron"), job={}, tp=tp, sp=tp > 1)
    assert ours["total"] > own


@pytest.mark.parametrize(
    ("sp", "recompute", "per_token"),
    [(True, Recompute.NONE, 5.0), (False, Recompute.NONE, 13.75), (True, Recompute.FULL, 0.25)],
)
def test_megatron_core_local_layers_traced(sp, recompute, per_token):
    """GELU, dropout, t = 8: the value slice keeps the fused buffer (4 h / t), the rotation 2 h / t.

    Traced in bytes per token and h: 5.00, without sequence parallelism 13.75, full recompute 0.25.
    """
    local = replace(PLAIN, keeps_fused_qkv=True, rope_extra_bytes=2.0)
    model = gpt(hidden=4096, heads=32)
    rotated = replace(model.layers[0].mixer, rotary=True)
    model = replace(model, layers=(replace(model.layers[0], mixer=rotated),) * 2)
    lines = layer_bytes(model, local, job={"dropout": True}, tp=8, sp=sp, recompute=recompute)
    found = lines["total"] - lines["attention_core"]
    if recompute is Recompute.FULL:
        found = lines["checkpoint"]
    assert found == SEQ * model.hidden * per_token


def test_pipeline_ranks_differ_by_one_micro_batch():
    """1F1B, p = 4, m = 8: ranks 1 and 2 differ by two layers of one micro-batch, 144.3 MiB."""
    model = plain_model(
        name="debug",
        num_layers=8,
        hidden=1024,
        ffn_hidden=2816,
        num_heads=16,
        num_kv_heads=8,
        vocab=32000,
        gated=True,
        tied=False,
        norm="rmsnorm",
        num_positions=0,
    )
    scene = scenario(model, cluster="8xH100", seq_len=2048, global_batch=16)
    chosen = plan(
        8, framework=Framework.TORCHTITAN, pp=4, zero=3, num_micro_batches=8, micro_batch=1
    )
    stages = stage_memory(scene, chosen)
    totals = [
        s.event_bytes(Event.BACKWARD) - s.line(Event.BACKWARD, "fragmentation") for s in stages
    ]
    per_token = 12 * 1024 + 4 * 512 + 8 * 2816 + 4 * 16 + 8
    assert totals[1] - totals[2] == 2 * 2048 * per_token
    assert round((totals[1] - totals[2]) / MIB, 1) == 144.3


def test_states_of_fsdp_with_tensor_parallelism():
    """8B on 64 devices, tp 8: 502.0 MB of weights, 1004.2 of moments, 502.0 of gradients."""
    scene = scenario("llama-3.1-8b", seq_len=8192, global_batch=8)
    chosen = plan(64, framework=Framework.TORCHTITAN, tp=8, sp=True, zero=3, num_micro_batches=1)
    (stage,) = stage_memory(scene, chosen)
    lines = {t.code: t.num_bytes for t in dict(stage.terms)[Event.OPTIMIZER]}
    assert lines["weights"] / 1e6 == pytest.approx(502.0, abs=0.1)
    assert lines["gradients"] / 1e6 == pytest.approx(502.0, abs=0.1)
    assert lines["optimizer"] / 1e6 == pytest.approx(1004.2, abs=0.4)


@pytest.mark.parametrize(
    ("zero", "shards", "per_parameter"), [(0, 8, 18.0), (1, 8, 6.0 + 12.0 / 8), (1, 32, 6.375)]
)
def test_megatron_bytes_per_parameter(zero, shards, per_parameter):
    """bf16 with fp32 main gradients: 18, or 6 + 12 / d with the distributed optimizer."""
    model = dense(hidden=1024)
    scene = scenario(model, cluster=f"{shards}xH100", seq_len=128, global_batch=shards * 2)
    (stage,) = stage_memory(scene, plan(shards, zero=zero))
    lines = {t.code: t.num_bytes for t in dict(stage.terms)[Event.OPTIMIZER]}
    states = lines["weights"] + lines["gradients"] + lines["optimizer"]
    assert states == pytest.approx(per_parameter * lines["weights"] / 2, rel=1e-6)
    assert np.isfinite(states)


def test_gpt3_of_korthikanti():
    """TP 8, PP 8, three chunks, sequence parallel, selective: 45.56 + 12.35 = 57.9 GiB.

    The published states leave the embedding out, which the first stage holds too.
    """
    scene = scenario(
        "gpt3-175b",
        cluster="64xA100-80GB",
        seq_len=2048,
        global_batch=64,
        attention="unfused",
        dropout=True,
        precision="fp16",
    )
    scene = replace(scene, variant="megatron-2022")
    chosen = plan(
        64,
        tp=8,
        sp=True,
        pp=8,
        vpp=3,
        schedule=Schedule.INTERLEAVED,
        num_micro_batches=64,
        recompute=Recompute.CORE_ATTENTION,
    )
    first, second = stage_memory(scene, chosen)[:2]
    saved = ("attention_norm", "attention", "mlp_norm", "mlp")
    activations = sum(first.line(Event.BACKWARD, name) for name in saved)
    assert activations / GIB == pytest.approx(12.35, rel=0.002)
    names = ("weights", "gradients", "optimizer")
    states = sum(second.line(Event.BACKWARD, name) for name in names)
    assert states / GIB == pytest.approx(45.56, rel=0.002)


def test_llama_70b_lies_between_what_other_estimators_say():
    """TP 4, PP 8, DP 2 at 8,192 tokens: SimuMax says 69.0 GiB, llm-analysis 63.1."""
    scene = scenario("llama-3.1-70b", cluster="64xH100", seq_len=8192, global_batch=128)
    first = stage_memory(scene, plan(64, tp=4, sp=True, pp=8, num_micro_batches=64, zero=1))[0]
    certain = sum(t.num_bytes for t in first.peak_terms if not t.allowance)
    assert 63.1 < certain / GIB < 1.05 * 69.0


WHOLE_RANKS = [
    ("llama-3.1-8b", 64, 8, Recompute.NONE, {}, 12852),
    ("llama-3.1-70b", 1024, 8, Recompute.FULL, {}, 4974),
    # the traced loop keeps the logits alive until its next iteration
    ("llama-3.1-8b", 64, 1, Recompute.FULL, {"loss_backward_bytes": 14.0}, 19646),
]


@pytest.mark.parametrize(("name", "world", "tp", "recompute", "changes", "mib"), WHOLE_RANKS)
def test_whole_ranks_traced(name, world, tp, recompute, changes, mib):
    """Two steps of FSDP2, tensor parallelism and AdamW without a kernel library's workspace."""
    traced = replace(NATIVE, workspace_bytes=0.0, **changes)
    scene = scenario(name, cluster=f"{world}xH100", seq_len=SEQ, global_batch=world // tp)
    chosen = plan(
        world,
        framework=Framework.TORCHTITAN,
        tp=tp,
        sp=tp > 1,
        zero=3,
        num_micro_batches=1,
        recompute=recompute,
    )
    behaviours = {Framework.TORCHTITAN: traced}
    peak = peak_memory(scene, PlanGrid.of([chosen]), behaviours=behaviours)
    assert peak.allocated_bytes[0] / MIB == pytest.approx(mib, rel=0.002)
