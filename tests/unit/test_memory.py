"""Laws of the memory model, and what its records promise."""

from dataclasses import fields, replace

import numpy as np
import pytest

from cost_scenarios import deepseek_v3_on_gb200, dense, grid, mixture, plan, scenario
from meshplan.cost.memory import Event, Verdict, peak_memory, stage_memory
from meshplan.cost.shards import layer_shard
from meshplan.inputs.framework import FrameworkMemory
from meshplan.inputs.load.framework import (
    framework_memory_names,
    load_framework_memory,
    load_memory_constants,
    memory_behaviour,
)
from meshplan.space.plan import Framework, Offload, PlanGrid, Recompute, Schedule
from meshplan.text import LANGUAGES, has
from space_scenarios import enumerate_plans

FRAMEWORKS = list(Framework)


def some_plans(scene, count=60):
    """A spread of legal plans of a scenario."""
    found = enumerate_plans(scene).grid
    rng = np.random.default_rng(0)
    return found.take(np.sort(rng.choice(len(found), size=min(count, len(found)), replace=False)))


SCENES = [
    scenario("llama-3.1-8b", cluster="16xH100", seq_len=4096, global_batch=64),
    scenario(mixture(num_layers=4), cluster="8xH100", seq_len=2048, global_batch=32),
    scenario(dense(num_layers=6, tied=True), cluster="12xA100-80GB", seq_len=1024, global_batch=24),
]


@pytest.mark.parametrize("scene", SCENES, ids=["8b", "moe", "tied"])
def test_a_grid_equals_its_plans_one_by_one(scene):
    plans = some_plans(scene)
    together = peak_memory(scene, plans)
    for index in range(len(plans)):
        alone = peak_memory(scene, PlanGrid.of([plans.plan(index)]))
        for field in fields(alone):
            if field.name != "usable_bytes":
                value = getattr(alone, field.name)[0]
                assert value == getattr(together, field.name)[index], field.name


@pytest.mark.parametrize("scene", SCENES, ids=["8b", "moe", "tied"])
def test_the_breakdown_equals_the_grid(scene):
    plans = some_plans(scene)
    peaks = peak_memory(scene, plans)
    for index in range(len(plans)):
        stages = stage_memory(scene, plans.plan(index))
        assert len(stages) == plans.pp[index]
        assert max(stage.peak_bytes for stage in stages) == peaks.peak_bytes[index]
        worst = stages[peaks.worst_stage[index]]
        assert worst.peak_bytes == peaks.peak_bytes[index]
        for stage in stages:
            assert stage.peak_bytes == sum(term.num_bytes for term in stage.peak_terms)
            assert stage.peak_bytes == max(stage.event_bytes(event) for event, _ in stage.terms)


@pytest.mark.parametrize("scene", SCENES, ids=["8b", "moe", "tied"])
def test_every_line_is_whole_bytes_and_has_a_name(scene):
    for chosen in some_plans(scene, 20):
        for stage in stage_memory(scene, chosen):
            for event, terms in stage.terms:
                assert all(has(f"event.{event.name.lower()}", lang) for lang in LANGUAGES)
                for term in terms:
                    assert term.num_bytes == int(term.num_bytes) >= 0
                    assert all(has(f"memory.{term.code}", lang) for lang in LANGUAGES), term.code


def test_stages_of_a_pipeline_hold_all_layers_and_parameters():
    scene = scenario("llama-3.1-8b", cluster="8xH100", seq_len=2048, global_batch=32)
    whole = stage_memory(scene, plan(8))[0].line(Event.OPTIMIZER, "weights")
    parts = stage_memory(scene, plan(8, pp=8, num_micro_batches=8))
    assert sum(stage.num_layers for stage in parts) == 32
    assert sum(stage.line(Event.OPTIMIZER, "weights") for stage in parts) == whole


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_tensor_parallelism_shares_weights_out(framework):
    scene = scenario("llama-3.1-8b", seq_len=2048, global_batch=64)
    weights = [
        stage_memory(scene, plan(64, framework=framework, tp=tp))[0].line(
            Event.OPTIMIZER, "weights"
        )
        for tp in (1, 2, 4, 8)
    ]
    assert weights == sorted(weights, reverse=True)
    assert weights[3] < weights[0] / 7


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.FULL, Recompute.CORE_ATTENTION])
def test_memory_grows_with_micro_batch_and_sequence(framework, recompute):
    kw = {"framework": framework, "tp": 2, "sp": True, "recompute": recompute}
    batches = peak_memory(
        scenario("llama-3.1-8b", seq_len=2048, global_batch=4096),
        grid(*(plan(64, micro_batch=b, **kw) for b in (1, 2, 4, 8, 64))),
    ).peak_bytes
    # little work may leave the optimizer step as the peak
    assert (np.diff(batches) >= 0).all()
    assert batches[0] < batches[-1]
    lengths = [
        peak_memory(
            scenario("llama-3.1-8b", seq_len=seq_len, global_batch=64), grid(plan(64, **kw))
        ).peak_bytes[0]
        for seq_len in (1024, 2048, 4096, 16384, 131072)
    ]
    assert (np.diff(lengths) >= 0).all()
    assert lengths[0] < lengths[-1]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_zero_stages_order_the_states(framework):
    scene = scenario("llama-3.1-8b", seq_len=1024, global_batch=64)
    states = []
    for zero in (0, 1, 2, 3):
        (stage,) = stage_memory(scene, plan(64, framework=framework, zero=zero))
        names = ("weights", "gradients", "optimizer")
        states.append(sum(stage.line(Event.OPTIMIZER, name) for name in names))
    assert states == sorted(states, reverse=True)


@pytest.mark.parametrize("framework", [Framework.MEGATRON, Framework.TORCHTITAN])
def test_recompute_saves_memory_the_more_it_drops(framework):
    scene = scenario("llama-3.1-8b", seq_len=8192, global_batch=64, attention="unfused")
    modes = [
        Recompute.NONE,
        Recompute.NORM,
        Recompute.NORM | Recompute.MLP_ACTIVATION,
        Recompute.NORM | Recompute.MLP | Recompute.CORE_ATTENTION,
        Recompute.FULL,
    ]
    peaks = peak_memory(
        scene, grid(*(plan(64, framework=framework, recompute=mode) for mode in modes))
    )
    assert (np.diff(peaks.peak_bytes) <= 0).all()
    assert peaks.peak_bytes[-1] < peaks.peak_bytes[0]


def test_recomputing_the_first_layers_lies_between_none_and_all():
    scene = scenario("llama-3.1-8b", seq_len=4096, global_batch=64)
    peaks = peak_memory(
        scene,
        grid(
            plan(64),
            *(
                plan(64, recompute=Recompute.FULL, recompute_layers=n)
                for n in (1, 8, 16, 31, 32, 99, 0)
            ),
        ),
    ).peak_bytes
    assert (np.diff(peaks[:6]) < 0).all()
    assert peaks[5] == peaks[6] == peaks[7]


def test_sequence_parallelism_saves_what_tensor_parallelism_copies():
    scene = scenario("llama-3.1-8b", seq_len=8192, global_batch=64)
    without, sharded = peak_memory(
        scene, grid(plan(64, tp=4, sp=False), plan(64, tp=4, sp=True))
    ).peak_bytes
    assert sharded < without


def test_context_parallelism_divides_tokens():
    scene = scenario("llama-3.1-8b", seq_len=32768, global_batch=64)
    kw = {"tp": 1, "zero": 0}
    lines = [
        stage_memory(scene, plan(64, cp=cp, **kw))[0].line(Event.BACKWARD, "mlp")
        for cp in (1, 2, 4)
    ]
    assert lines[0] == 2 * lines[1] == 4 * lines[2]


def test_expert_parallelism_spreads_experts_and_keeps_tokens():
    scene = scenario(mixture(num_experts=8), cluster="8xH100", seq_len=2048, global_batch=32)
    one = stage_memory(scene, plan(8, zero=1))[0]
    eight = stage_memory(scene, plan(8, zero=1, ep=8))[0]
    assert eight.line(Event.OPTIMIZER, "weights") < one.line(Event.OPTIMIZER, "weights") / 2.5
    assert eight.line(Event.BACKWARD, "experts") == one.line(Event.BACKWARD, "experts")


def test_sharding_of_optimizer_counts_context_parallelism():
    scene = scenario("llama-3.1-8b", seq_len=32768, global_batch=64)
    states = [
        stage_memory(scene, plan(64, cp=cp, zero=1))[0].line(Event.OPTIMIZER, "optimizer")
        for cp in (1, 2, 4)
    ]
    assert states[0] == states[1] == states[2]


def test_hsdp_shards_over_its_group_only():
    scene = scenario("llama-3.1-8b", seq_len=1024, global_batch=64)
    kw = {"framework": Framework.TORCHTITAN, "zero": 3}
    wide = stage_memory(scene, plan(64, **kw))[0].line(Event.OPTIMIZER, "weights")
    hybrid = plan(64, dp_replicate=8, **kw)
    assert hybrid.dp_shard == 8
    narrow = stage_memory(scene, hybrid)[0].line(Event.OPTIMIZER, "weights")
    assert narrow == pytest.approx(8 * wide, rel=1e-6)


def test_a_tied_head_counts_once_on_one_device_and_twice_on_two():
    model = dense(num_layers=4, tied=True)
    scene = scenario(model, cluster="2xH100", seq_len=512, global_batch=8)
    (whole,) = stage_memory(scene, plan(2))
    parts = stage_memory(scene, plan(2, pp=2, num_micro_batches=4))
    matrix = 2 * model.vocab * model.hidden
    both = sum(stage.line(Event.OPTIMIZER, "weights") for stage in parts)
    assert both - whole.line(Event.OPTIMIZER, "weights") == matrix


def test_earlier_stages_hold_more_micro_batches():
    scene = scenario("llama-3.1-8b", cluster="8xH100", seq_len=2048, global_batch=64)
    stages = stage_memory(scene, plan(8, pp=4, num_micro_batches=16))
    alive = [stage.line(Event.BACKWARD, "mlp") for stage in stages]
    assert alive == sorted(alive, reverse=True)
    assert alive[0] == 4 * alive[3]


def test_gpipe_keeps_the_logits_of_all_micro_batches():
    scene = scenario("llama-3.1-8b", cluster="8xH100", seq_len=2048, global_batch=64)
    last = stage_memory(scene, plan(8, pp=2, schedule=Schedule.GPIPE, num_micro_batches=16))[-1]
    one = stage_memory(scene, plan(8, pp=2, num_micro_batches=16))[-1]
    assert last.line(Event.LOSS_BACKWARD, "logits_waiting") > 0
    assert one.line(Event.LOSS_BACKWARD, "logits_waiting") == 0


@pytest.mark.parametrize("precision", ["fp8", "mxfp8", "nvfp4"])
def test_narrow_formats_shrink_inputs_and_add_weight_copies(precision):
    wide = scenario("llama-3.1-8b", cluster="64xB200", seq_len=8192, global_batch=64)
    narrow = replace(wide, job=replace(wide.job, precision=precision))
    (before,), (after,) = stage_memory(wide, plan(64)), stage_memory(narrow, plan(64))
    assert after.line(Event.BACKWARD, "mlp") < before.line(Event.BACKWARD, "mlp")
    assert after.line(Event.OPTIMIZER, "weight_copies") > 0


@pytest.mark.parametrize(
    "optimizer", ["adamw", "adamw16bit", "adamw8bit", "muon", "adafactor", "sgd"]
)
def test_optimizers_differ_by_their_moments(optimizer):
    model = dense(num_layers=4)
    scene = scenario(model, cluster="8xH100", seq_len=512, global_batch=8, optimizer=optimizer)
    (stage,) = stage_memory(scene, plan(8))
    weights = stage.line(Event.OPTIMIZER, "weights") / 2
    ends = 2 * model.vocab * model.hidden + model.hidden
    state = load_memory_constants().optimizers[optimizer]
    master = 4 if state.remainder_bytes is None else state.remainder_bytes
    expected = master * weights + state.moment_bytes * (weights - ends)
    expected += state.vector_moment_bytes * ends
    assert stage.line(Event.OPTIMIZER, "optimizer") == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("precision", "zero", "expected"), [("bf16", 0, 6), ("fp8", 0, 8), ("bf16", 3, 8)]
)
def test_narrow_moments_keep_the_rest_of_a_bf16_weight(precision, zero, expected):
    scene = scenario("llama-3.1-8b", cluster="8xH100", seq_len=1024, global_batch=8)
    narrow = replace(scene.job, optimizer="adamw16bit", precision=precision)
    (stage,) = stage_memory(replace(scene, job=narrow), plan(8, zero=zero))
    local = stage.line(Event.OPTIMIZER, "weights") / 2
    assert stage.line(Event.OPTIMIZER, "optimizer") == pytest.approx(expected * local, rel=1e-6)


def test_adapters_train_little_and_freeze_the_rest():
    full = scenario("llama-3.1-8b", cluster="8xH100", seq_len=1024, global_batch=8)
    lora = replace(full, job=replace(full.job, task="lora", lora_rank=16))
    qlora = replace(full, job=replace(full.job, task="qlora", lora_rank=16))
    chosen = plan(8, framework=Framework.ACCELERATE, num_micro_batches=1)
    (all_trained,), (adapters,), (four_bit,) = (
        stage_memory(scene, chosen) for scene in (full, lora, qlora)
    )
    optimizer = adapters.line(Event.OPTIMIZER, "optimizer")
    assert optimizer < 0.02 * all_trained.line(Event.OPTIMIZER, "optimizer")
    frozen = adapters.line(Event.OPTIMIZER, "weights")
    assert 2 * 8.03e9 < frozen < 2 * 8.03e9 + 4 * 50e6
    assert four_bit.line(Event.OPTIMIZER, "weights") < 0.5 * frozen


def test_a_frozen_weight_has_no_placeholder_of_its_gradient():
    """Transformer Engine asks for one only where ``requires_wgrad`` (module/linear.py)."""
    full = scenario("llama-3.1-8b", cluster="8xH100", seq_len=1024, global_batch=8)
    lora = replace(full, job=replace(full.job, task="lora", lora_rank=16))
    chosen = plan(8, framework=Framework.MEGATRON, num_micro_batches=1)
    (trained,), (frozen,) = (stage_memory(scene, chosen) for scene in (full, lora))
    assert trained.line(Event.BACKWARD, "placeholders") > 0
    assert frozen.line(Event.BACKWARD, "placeholders") == 0
    # gradients of the adapters alone, 32 bits wide
    rank, h, kv, f = 16, 4096, 1024, 14336
    adapters = 32 * rank * ((h + h) + 2 * (h + kv) + (h + h) + 2 * (h + f) + (f + h))
    assert frozen.line(Event.BACKWARD, "gradients") == 4 * adapters


@pytest.mark.parametrize(
    ("name", "attention", "network"),
    [
        # Megatron-LM 0.19.2, gpt_layer_specs.py: TELayerNormColumnParallelLinear holds both norms
        ("llama-3.1-8b", False, False),
        # a norm of its own before the experts alone
        ("mixtral-8x7b", False, True),
        # and before latent attention (the most loaded stage has experts)
        ("deepseek-v2-lite", True, True),
    ],
)
def test_recompute_of_norms_reaches_those_that_are_modules_of_their_own(name, attention, network):
    scene = scenario(name, cluster="8xH100", seq_len=4096, global_batch=64)
    none, norm = (
        stage_memory(scene, plan(8, framework=Framework.MEGATRON, recompute=mode))[0]
        for mode in (Recompute.NONE, Recompute.NORM)
    )
    for code, reached in (("attention_norm", attention), ("mlp_norm", network)):
        before, after = (s.line(Event.BACKWARD, code) for s in (none, norm))
        # in plain layers input and output are two thirds to one half of what a norm keeps
        assert (after < 0.75 * before) if reached else (after == before), code


def test_recompute_of_a_dense_network_takes_the_norm_before_it_along():
    scene = scenario("llama-3.1-8b", cluster="8xH100", seq_len=4096, global_batch=64)
    none, mlp = (
        stage_memory(scene, plan(8, framework=Framework.MEGATRON, recompute=mode))[0]
        for mode in (Recompute.NONE, Recompute.MLP)
    )
    # of input and output (2 bytes each) the input stays, with 4 bytes of statistics a token
    h = 4096
    before, after = (s.line(Event.BACKWARD, "mlp_norm") for s in (none, mlp))
    assert after / before == pytest.approx((2 * h + 4) / (4 * h + 4), rel=1e-6)


def test_offloading_moves_states_to_the_host():
    scene = scenario("llama-3.1-8b", cluster="8xH100", seq_len=1024, global_batch=8)
    kw = {"framework": Framework.DEEPSPEED, "zero": 3}
    here, optimizer, both = (
        peak_memory(scene, grid(plan(8, offload=what, **kw)))
        for what in (Offload.NONE, Offload.OPTIMIZER, Offload.OPTIMIZER | Offload.PARAMETERS)
    )
    assert here.host_bytes[0] == 0
    assert 0 < optimizer.host_bytes[0] < both.host_bytes[0]
    assert both.peak_bytes[0] < optimizer.peak_bytes[0] < here.peak_bytes[0]


def test_a_host_that_is_too_small_is_out_of_memory():
    scene = scenario("llama-3.1-8b", cluster="8xH100", seq_len=1024, global_batch=8)
    chosen = grid(plan(8, framework=Framework.DEEPSPEED, zero=3, offload=Offload.OPTIMIZER))
    assert peak_memory(scene, chosen).verdict[0] == Verdict.FITS
    small = replace(scene, cluster=replace(scene.cluster, host_memory_bytes=64e9))
    assert peak_memory(small, chosen).verdict[0] == Verdict.OOM


def test_verdicts_follow_what_is_usable():
    scene = scenario("llama-3.1-8b", cluster="8xH100", seq_len=1024, global_batch=8)
    chosen = grid(plan(8, zero=1))
    found = peak_memory(scene, chosen)
    assert found.allocated_bytes[0] < found.required_bytes[0] < found.peak_bytes[0]

    def verdict(usable):
        device = replace(scene.cluster.device, usable_bytes=usable)
        cluster = replace(scene.cluster, device=device)
        return peak_memory(replace(scene, cluster=cluster), chosen).verdict[0]

    assert verdict(found.peak_bytes[0]) == Verdict.FITS
    assert verdict(found.peak_bytes[0] - 1) == Verdict.TIGHT
    assert verdict(found.required_bytes[0]) == Verdict.TIGHT
    assert verdict(found.required_bytes[0] - 1) == Verdict.OOM


def test_every_figure_of_a_framework_has_a_source():
    for name in framework_memory_names():
        record = load_framework_memory(name)
        expected = {f.name for f in fields(FrameworkMemory)}
        assert record.sources.keys() == expected - {"name", "low_precision", "sources"}
        for figure in record.sources.values():
            assert figure.source
            assert figure.kind in ("published", "measured", "fitted", "derived", "assumed")


def test_variants_belong_to_their_framework():
    assert memory_behaviour("megatron").name == "megatron"
    assert memory_behaviour("megatron", "nemo").name == "nemo"
    assert memory_behaviour("megatron", "simumax").name == "megatron-fused-loss"
    assert memory_behaviour("torchtitan", "nemo").name == "torchtitan"
    assert memory_behaviour("deepspeed", "megatron-deepspeed-2021").name == "megatron-deepspeed"
    assert memory_behaviour("megatron", "megatron-deepspeed-2021").name == "megatron"
    assert memory_behaviour("megatron", "no-such-variant").name == "megatron"


@pytest.mark.parametrize("targets", ["attention", "mlp", "all"])
def test_frozen_products_need_no_inputs(targets):
    """A frozen product without adapters passes gradients on by its weight alone."""
    full = scenario("llama-3.1-8b", cluster="8xH100", seq_len=4096, global_batch=8)
    lora = replace(full.job, task="lora", lora_rank=8, lora_targets=targets)
    chosen = plan(8, framework=Framework.TORCHTITAN, num_micro_batches=1)
    (before,) = stage_memory(full, chosen)
    (after,) = stage_memory(replace(full, job=lora), chosen)
    tokens, hidden, inner = 4096, 4096, 14336
    norms = sum(before.line(Event.BACKWARD, n) for n in ("attention_norm", "mlp_norm"))
    fewer = norms - sum(after.line(Event.BACKWARD, n) for n in ("attention_norm", "mlp_norm"))
    frozen = {"attention": 1, "mlp": 1, "all": 0}[targets]
    assert fewer == 32 * 2 * hidden * tokens * frozen
    mlp = before.line(Event.BACKWARD, "mlp") - after.line(Event.BACKWARD, "mlp")
    assert mlp == (32 * 2 * inner * tokens if targets == "attention" else 0)


def test_recomputing_experts_drops_all_of_them():
    scene = scenario(mixture(), cluster="8xH100", seq_len=2048, global_batch=32)
    (kept,) = stage_memory(scene, plan(8))
    (dropped,) = stage_memory(scene, plan(8, recompute=Recompute.MOE))
    assert kept.line(Event.BACKWARD, "experts") > 0
    assert dropped.line(Event.BACKWARD, "experts") == dropped.line(Event.BACKWARD, "router") == 0


@pytest.mark.parametrize(("targets", "copies"), [("attention", 3.0), ("mlp", 1.0), ("all", 4.0)])
def test_adapters_of_peft_keep_copies_of_their_inputs(targets, copies):
    """Two of query, key and value, one of the output projection, one of gate and up."""
    scene = scenario(
        "llama-2-7b", cluster="1xA100-80GB", seq_len=512, global_batch=1, task="lora",
        lora_rank=8, lora_targets=targets,
    )  # fmt: skip
    chosen = plan(1, framework=Framework.ACCELERATE, num_micro_batches=1)
    record = load_framework_memory("accelerate")
    behaviours = [replace(record, adapters_copy_inputs=on) for on in (False, True)]
    without, with_copies = (
        peak_memory(scene, PlanGrid.of([chosen]), behaviours={Framework.ACCELERATE: b})
        for b in behaviours
    )
    found = with_copies.allocated_bytes[0] - without.allocated_bytes[0]
    assert found == copies * 2 * 512 * 4096 * 32


def test_latent_experts_save_tokens_in_their_own_width():
    """What is dispatched shrinks; the input of the projection back is kept beside it."""
    wide = mixture()
    layer = wide.layers[0]
    narrow = replace(wide, layers=(replace(layer, ffn=replace(layer.ffn, latent_dim=256)),) * 2)
    tokens, top_k, num_layers = 2048, 2, 2
    stages = [
        stage_memory(scenario(m, cluster="8xH100", seq_len=tokens, global_batch=32), plan(8))[0]
        for m in (wide, narrow)
    ]
    saved = [s.line(Event.BACKWARD, "experts") + s.line(Event.BACKWARD, "router") for s in stages]
    dispatched = 2 * (wide.hidden - 256) * top_k * tokens
    assert saved[0] - saved[1] == num_layers * (dispatched - 2 * 256 * tokens)


@pytest.mark.parametrize("zero", [2, 3])
def test_accumulated_gradients_stay_whole_where_they_are_reduced_once(zero):
    """Accelerate's ``no_sync``: 2 bytes per parameter wait; torchtitan reduces every time."""
    scene = scenario("llama-3.1-8b", cluster="64xH100")
    for framework, waiting in ((Framework.ACCELERATE, 2), (Framework.TORCHTITAN, 0)):
        for count in (1, 4):
            chosen = plan(framework=framework, zero=zero, num_micro_batches=count)
            (stage,) = stage_memory(scene, chosen)
            held = waiting * 8_030_261_248 if count > 1 else 0
            assert stage.line(Event.BACKWARD, "unsharded_gradients") == held
            assert stage.line(Event.OPTIMIZER, "unsharded_gradients") == 0
            assert stage.line(Event.BACKWARD, "replica_buckets") == 0


def test_a_pipeline_of_torch_accumulates_whole_gradients():
    """``scale_grads`` and reduction come after the last micro-batch of a stage."""
    scene = scenario("llama-3.1-8b", cluster="64xH100")
    chosen = plan(framework=Framework.TORCHTITAN, pp=4, zero=2, num_micro_batches=4)
    first = stage_memory(scene, chosen)[0]
    held = 4 * (8 * 218_112_000 + 128_256 * 4096)
    for event in (Event.BACKWARD, Event.REDUCTION):
        assert first.line(event, "unsharded_gradients") == held


@pytest.mark.parametrize(
    ("name", "parameters"), [("llama-3.1-8b", 1e9), ("llama-3.1-405b", 2 * 16384 * 53248)]
)
def test_deepspeed_gathers_modules(name, parameters):
    """A matrix and the next one, or ``stage3_max_live_parameters`` where they are more."""
    scene = scenario(name, cluster="512xH100", global_batch=1024)
    (stage,) = stage_memory(scene, plan(512, framework=Framework.DEEPSPEED, zero=3))
    assert stage.line(Event.BACKWARD, "gathered") == 2 * parameters


@pytest.mark.parametrize(
    ("framework", "copies"), [(Framework.MEGATRON, 1), (Framework.TORCHTITAN, 0)]
)
def test_mtp_blocks_bring_their_joins_and_a_copy_of_the_embedding(framework, copies):
    """DeepSeek-V3: a matrix of 2h x h and three norms; Megatron-LM's gpt_model.py, mtp_process."""
    scene = scenario("deepseek-v3", cluster="1024xH100", seq_len=4096, global_batch=4096)
    without = replace(scene.model, mtp_layers=(), other_parameters={})
    h, vocab, tp = 7168, 129_280, 2
    block = layer_shard(scene.model.layers[-1], scene.model, tp=tp, ep=64, etp=1).total
    chosen = plan(
        1024,
        framework=framework,
        tp=tp,
        sp=True,
        pp=16,
        ep=64,
        etp=1,
        zero=1 if framework is Framework.MEGATRON else 2,
        num_micro_batches=64,
        stage_layers=(4,) * 15 + (1,),
    )

    def held(model):
        last = stage_memory(replace(scene, model=model), chosen)[-1]
        (weights,) = (t for t in last.peak_terms if t.code == "weights")
        return dict(weights.numbers)["parameters"]

    joins = 2 * h * h // tp + 3 * h
    assert held(scene.model) - held(without) == block + joins + copies * vocab // tp * h


def test_the_memory_of_deepseek_v3_is_that_of_its_published_account():
    """Scalable Training of MoE Models with Megatron Core (arXiv 2603.07685), table 3: 256 GPUs."""
    scene, chosen = deepseek_v3_on_gb200()
    stage = stage_memory(scene, chosen)[1]
    states = ("weights", "gradients", "optimizer")
    lines = [stage.line(Event.BACKWARD, name) / 1e9 for name in states]
    not_saved = ("placeholders", "working", "workspace", "imbalance", "reduced")
    beside = (*states, *not_saved, "fragmentation", "communicators")
    terms = dict(stage.terms)[Event.BACKWARD]
    activations = sum(t.num_bytes for t in terms if t.code not in beside) / 1e9
    assert lines[0] + lines[1] == pytest.approx(36.4, rel=0.09)
    assert lines[2] == pytest.approx(32.1, rel=0.09)
    assert activations == pytest.approx(131.0, rel=0.05)
    assert sum(lines) + activations == pytest.approx(199.5, rel=0.02)


def test_an_indexer_keeps_its_queries_and_what_it_picks():
    """DeepSeek-V3.2: 64 heads of 128 and one key in 16 bits, 64 weights, 2,048 indices."""
    scene = scenario("deepseek-v3.2", cluster="1024xH100", seq_len=4096, global_batch=4096)
    plain = replace(
        scene.model,
        layers=tuple(
            replace(layer, mixer=replace(layer.mixer, index_num_heads=0))
            for layer in scene.model.layers
        ),
        mtp_layers=(),
    )
    chosen = plan(1024, ep=64, zero=3, num_micro_batches=4)

    def kept(model):
        (stage,) = stage_memory(replace(scene, model=model), chosen)
        return stage.line(Event.FORWARD, "attention")

    per_token = 2 * (64 + 1) * 128 + 4 * (64 + 2048)
    with_indexer = replace(scene.model, mtp_layers=())
    assert kept(with_indexer) - kept(plain) == 61 * 4096 * per_token
