"""Formulas of the memory of the worst pipeline stage."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshplan.cost.memory import Event, StageMemory, stage_memory
from meshplan.cost.memory.activations import layer_activations
from meshplan.cost.memory.report import DeviceMemory, device_memory
from meshplan.cost.memory.shapes import Shapes
from meshplan.cost.memory.state_records import Parameters
from meshplan.explanation.records import Formula, Value, agrees, formula
from meshplan.inputs.framework import FrameworkMemory, OptimizerState
from meshplan.inputs.load.framework import load_memory_constants, memory_behaviour
from meshplan.inputs.model import Attention, Mlp
from meshplan.inputs.scenario import Scenario
from meshplan.search.evaluate import Evaluation
from meshplan.space.plan import Plan

__all__ = ["memory_formulas"]

_ZERO = "Rajbhandari et al., ZeRO, SC 2020, section 5"
_ROUNDING = 1e-6
"""Lines of the memory model are whole bytes; a formula over their parts is not."""


def memory_formulas(scenario: Scenario, result: Evaluation) -> Iterator[Formula]:
    """Formulas of the stage that needs most: its states, its activations, and their sum."""
    plan = result.grid.plan(0)
    stages = stage_memory(scenario, plan)
    worst = max(stages, key=lambda stage: stage.peak_bytes)
    device = device_memory(scenario, result.grid, worst.stage)
    if scenario.job.task in ("pretrain", "full_finetune") and not plan.offload:
        memory = memory_behaviour(plan.framework.name.lower(), scenario.variant)
        for state in _states(scenario, plan, worst, device.parameters, memory):
            if agrees(state, rel_tol=_ROUNDING):
                yield state
    yield from _layer(scenario, result, plan)
    yield from _activations(plan, worst, device)
    yield formula(
        "peak_memory",
        " + ".join(term.code for term in worst.peak_terms),
        *(
            Value(symbol=term.code, value=term.num_bytes, unit="bytes", kind="derived")
            for term in worst.peak_terms
        ),
        group="memory",
        unit="bytes",
        source="peak event of the worst stage",
        result=float(result.memory.peak_bytes[0]),
        stage=worst.stage,
        event=worst.peak_event.name.lower(),
    )


def _states(
    scenario: Scenario, plan: Plan, stage: StageMemory, p: Parameters, memory: FrameworkMemory
) -> Iterator[Formula]:
    """Weights, gradients and optimizer state: bytes per parameter over the sharing devices."""
    ends, expert = float(p.ends[0]), float(p.expert[0])
    dense = float(p.dense[0]) + ends
    moments = load_memory_constants().optimizers[scenario.job.optimizer]
    sharing = plan.dp_shard * plan.cp
    sharing_expert = max(sharing * plan.tp / (plan.ep * plan.etp), 1.0)
    weights_shared = plan.zero >= memory.shards_weights_from
    gradients_shared = plan.zero >= 2 and memory.shards_gradients
    states = {term.code: term.num_bytes for term in stage.peak_terms}
    remains = moments.remainder_bytes if plan.zero < 2 else None
    master = memory.master_bytes
    if remains is not None and scenario.job.precision == "bf16":
        master = remains
    lines = (
        ("weights", "weight_bytes", memory.weight_bytes, weights_shared),
        ("gradients", "gradient_bytes", memory.gradient_bytes, gradients_shared),
        ("optimizer", "master_bytes", master, plan.zero >= 1),
    )
    for code, name, width, shared in lines:
        if code not in states:
            continue
        source = memory.sources.get(name)
        width_value = Value(
            symbol="w",
            value=width,
            unit="bytes per parameter",
            kind=source.kind if source else "assumed",
            source=source.source if source else "",
        )
        numbers = [Value(symbol="P", value=dense, unit="parameters", kind="derived")]
        numbers.append(Value(symbol="D", value=sharing if shared else 1))
        expression = "w * P / D"
        if code == "optimizer":
            expression, extra = _moments(moments, ends=ends)
            numbers.extend(extra)
        if expert:
            both = "(w + o)" if code == "optimizer" else "w"
            expression += f" + {both} * P_expert / D_expert"
            numbers.append(Value(symbol="P_expert", value=expert, unit="parameters"))
            numbers.append(Value(symbol="D_expert", value=sharing_expert if shared else 1))
        yield formula(
            f"{code}_bytes",
            expression,
            width_value,
            *numbers,
            group="memory",
            unit="bytes",
            source=_ZERO,
            result=states[code],
            stage=stage.stage,
        )


def _moments(state: OptimizerState, *, ends: float) -> tuple[str, tuple[Value, ...]]:
    """Master weights and moments; embedding and head may keep other moments than matrices."""
    unit = "bytes per parameter"
    matrix = Value(symbol="o", value=state.moment_bytes, unit=unit, kind="derived")
    if state.moment_bytes == state.vector_moment_bytes:
        return "(w + o) * P / D", (matrix,)
    return "(w * P + o * (P - P_ends) + o_ends * P_ends) / D", (
        matrix,
        Value(symbol="o_ends", value=state.vector_moment_bytes, unit=unit, kind="derived"),
        Value(symbol="P_ends", value=ends, unit="parameters", kind="derived"),
    )


_LAYER_FORMS = (
    # the gathered inputs of products are gathered again, or kept beside their shards
    "b * s / cp * (12 * h + 4 * k * d + 2 * g * f + 4 * a + 8) / tp",
    "b * s / cp * ((8 * h + 4 * k * d + 2 * g * f + 4 * a + 8) / tp + 4 * h)",
)


def _layer(scenario: Scenario, result: Evaluation, plan: Plan) -> Iterator[Formula]:
    """What one block saves for one micro-batch without recompute, where it is a plain one."""
    layers = scenario.model.layers
    layer = max(dict.fromkeys(layers), key=layers.count)
    mixer, ffn = layer.mixer, layer.ffn
    if not isinstance(mixer, Attention) or not isinstance(ffn, Mlp):
        return
    memory = memory_behaviour(plan.framework.name.lower(), scenario.variant)
    shapes = Shapes.of(scenario.job, result.grid, {plan.framework: memory})
    saved = float(np.ravel(layer_activations(layer, scenario.model, shapes).full_bytes)[0])
    elements = memory.gated_activation_elements if ffn.gated else memory.plain_activation_elements
    for expression in _LAYER_FORMS:
        made = formula(
            "layer_activation_bytes",
            expression,
            Value(symbol="b", value=plan.micro_batch),
            Value(symbol="s", value=scenario.job.seq_len),
            Value(symbol="cp", value=plan.cp),
            Value(symbol="h", value=scenario.model.hidden),
            Value(symbol="k", value=mixer.num_kv_heads),
            Value(symbol="d", value=mixer.head_dim),
            Value(symbol="g", value=elements, kind="derived", source="framework"),
            Value(symbol="f", value=ffn.ffn_hidden),
            Value(symbol="a", value=mixer.num_heads),
            Value(symbol="tp", value=plan.tp),
            group="memory",
            unit="bytes",
            source="Korthikanti et al., arXiv:2205.05198, section 4 (fused attention)",
            result=saved,
        )
        if agrees(made, rel_tol=_ROUNDING):
            yield made
            return


_WITH_ALL_IN_FLIGHT = (
    Event.FORWARD,
    Event.LOSS_FORWARD,
    Event.LOSS_BACKWARD,
    Event.HEAD_BACKWARD,
    Event.BACKWARD,
)


def _activations(plan: Plan, stage: StageMemory, device: DeviceMemory) -> Iterator[Formula]:
    """Saved activations: micro-batches in flight times what one micro-batch saves in a chunk."""
    if stage.peak_event not in _WITH_ALL_IN_FLIGHT:
        return
    saved, flight = device.chunk_bytes, device.in_flight
    total = sum(term.num_bytes for term in stage.peak_terms if term.code in device.saved_codes)
    even = len(set(saved)) == 1
    values = [
        value
        for i, (count, size) in enumerate(zip(flight, saved, strict=True))
        for value in (
            Value(symbol=f"n_{i}", value=count),
            Value(symbol=f"A_{i}", value=size, unit="bytes", kind="derived"),
        )
    ]
    if even:
        values = [
            Value(symbol="n", value=sum(flight)),
            Value(symbol="A", value=saved[0], unit="bytes", kind="derived"),
        ]
    yield formula(
        "activation_bytes",
        "n * A" if even else " + ".join(f"n_{i} * A_{i}" for i in range(len(saved))),
        *values,
        group="memory",
        unit="bytes",
        source="Korthikanti et al., arXiv:2205.05198, section 4",
        result=total,
        stage=stage.stage,
        pp=plan.pp,
    )
