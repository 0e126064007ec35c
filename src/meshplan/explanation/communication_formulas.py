"""Formulas of the traffic of a plan: what each axis sends, and what of it shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from meshplan.cost.communication import (
    BlockCommunication,
    Traffic,
    block_communication,
    data_parallel,
    pipeline_send,
)
from meshplan.cost.unit_time import tuning_of
from meshplan.explanation.records import Formula, Value, agrees, formula
from meshplan.inputs.load.profile import profile_of
from meshplan.inputs.model import Attention, Layer, Moe
from meshplan.inputs.scenario import Scenario
from meshplan.search.evaluate import Evaluation, part_seconds
from meshplan.space.plan import CpComm, Plan

__all__ = ["communication_formulas"]

_EXACT = 1e-9
_KORTHIKANTI = "Korthikanti et al., arXiv:2205.05198, section 4.2.2"
_RING = "Liu et al., Ring Attention, arXiv:2310.01889"
_ULYSSES = "Jacobs et al., DeepSpeed-Ulysses, arXiv:2309.14509"
_GSHARD = "Lepikhin et al., GShard, arXiv:2006.16668"
_ZERO = "Rajbhandari et al., ZeRO, SC 2020, section 7"
_EXPOSED = {"tp": "tp_comm_s", "cp": "cp_comm_s", "ep": "ep_comm_s", "pp": "pp_comm_s"}


def communication_formulas(scenario: Scenario, result: Evaluation) -> Iterator[Formula]:
    """Bytes, bandwidth and exposed time of each axis in use.

    Bytes are those that one device sends in the forward pass of one micro-batch through the most
    frequent block; gradients are those of that block for the step.
    """
    plan = result.grid.plan(0)
    tuning = tuning_of(profile_of(scenario, plan.framework.name.lower()), scenario.cluster)
    layers = scenario.model.layers
    layer = max(dict.fromkeys(layers), key=layers.count)
    block = block_communication(scenario, layer, result.grid, tuning=tuning)
    for axis in ("tp", "cp", "ep"):
        traffic = cast(Traffic, getattr(block, f"{axis}_forward"))
        if traffic.num_bytes[0]:
            yield from _axis(scenario, plan, layer, axis, block)
            yield _bandwidth(axis, traffic)
    if plan.pp > 1:
        send = pipeline_send(scenario, result.grid, tuning=tuning)
        yield _send(scenario, plan, send)
        yield _bandwidth("pp", send)
    if plan.dp * plan.cp > 1:
        replicas = data_parallel(scenario, layer, result.grid, tuning=tuning)
        yield _bandwidth("dp", replicas.reduce)
    yield from _exposed(result)


def _common(scenario: Scenario, plan: Plan) -> list[Value]:
    return [
        Value(symbol="b", value=plan.micro_batch),
        Value(symbol="s", value=scenario.job.seq_len),
        Value(symbol="cp", value=plan.cp),
        Value(symbol="h", value=scenario.model.hidden),
        Value(symbol="tp", value=plan.tp),
    ]


def _axis(
    scenario: Scenario, plan: Plan, layer: Layer, axis: str, block: BlockCommunication
) -> Iterator[Formula]:
    """The closed form of one axis, where it is the model's own number."""
    closed = {"tp": _tensor, "cp": _context, "ep": _expert}[axis](scenario, plan, layer)
    if closed is None:
        return
    expression, extra, source = closed
    made = formula(
        f"{axis}_forward_bytes",
        expression,
        *_common(scenario, plan),
        *extra,
        group="communication",
        unit="bytes",
        source=source,
        result=float(getattr(block, f"{axis}_forward").num_bytes[0]),
        axis=axis,
    )
    if agrees(made, rel_tol=_EXACT):
        yield made


_Closed = tuple[str, list[Value], str] | None


def _tensor(scenario: Scenario, plan: Plan, layer: Layer) -> _Closed:
    """Two collectives for each pair of split products; an all-reduce sends as much."""
    pairs = len(layer.mixers) + (layer.ffn is not None and not isinstance(layer.ffn, Moe))
    if isinstance(layer.ffn, Moe) and layer.ffn.shared_ffn_hidden:
        pairs += 1
    expression = "2 * pairs * 2 * b * s / cp * h * (tp - 1) / tp"
    return expression, [Value(symbol="pairs", value=pairs)], _KORTHIKANTI


def _context(scenario: Scenario, plan: Plan, layer: Layer) -> _Closed:
    mixer = layer.mixer
    if not isinstance(mixer, Attention):
        return None
    heads = [
        Value(symbol="k", value=mixer.num_kv_heads),
        Value(symbol="d", value=mixer.head_dim + mixer.v_head_dim),
    ]
    if plan.cp_comm == CpComm.ALL_TO_ALL:
        queries = Value(symbol="a", value=mixer.num_heads)
        expression = "2 * b * s / cp * (a / tp + max(k / tp, 1)) * d * (cp - 1) / cp"
        return expression, [queries, *heads], _ULYSSES
    return "(cp - 1) * 2 * b * s / cp * max(k / tp, 1) * d", heads, _RING


def _expert(scenario: Scenario, plan: Plan, layer: Layer) -> _Closed:
    if not isinstance(layer.ffn, Moe) or plan.etp > 1:
        return None
    extra = [
        Value(symbol="k", value=layer.ffn.top_k),
        Value(symbol="ep", value=plan.ep),
    ]
    width = "h"
    if layer.ffn.latent_dim:
        width = "latent"
        extra.append(Value(symbol=width, value=layer.ffn.latent_dim))
    tokens = "b * s / cp / tp" if plan.sp else "b * s / cp"
    return f"2 * 2 * {tokens} * k * {width} * (ep - 1) / ep", extra, _GSHARD


def _send(scenario: Scenario, plan: Plan, send: Traffic) -> Formula:
    """Activations of one micro-batch to the next stage; sequence parallelism sends a slice."""
    slice_ = plan.tp if plan.sp else 1
    return formula(
        "pp_send_bytes",
        "2 * b * s / cp * h / slices",
        *_common(scenario, plan)[:-1],
        Value(symbol="slices", value=slice_),
        group="communication",
        unit="bytes",
        source=_KORTHIKANTI,
        result=float(send.num_bytes[0]),
        axis="pp",
    )


def _bandwidth(axis: str, traffic: Traffic) -> Formula:
    """Bandwidth that the traffic of an axis reaches on its own."""
    return formula(
        f"{axis}_bandwidth",
        "V / t",
        Value(symbol="V", value=float(traffic.num_bytes[0]), unit="bytes", kind="derived"),
        Value(symbol="t", value=float(traffic.seconds[0]), unit="s", kind="derived"),
        group="communication",
        unit="bytes/s",
        source=_ZERO if axis == "dp" else "collective on the levels of the network",
        axis=axis,
    )


def _exposed(result: Evaluation) -> Iterator[Formula]:
    """Share of the step that traffic shows in, over all axes."""
    parts = part_seconds(result)
    shown = [name for name in (*_EXPOSED.values(), "dp_comm_s") if parts[name]]
    if not shown:
        return
    step = float(result.time.step_time_s[0])
    yield formula(
        "exposed_share",
        "(" + " + ".join(shown) + ") / t",
        *(Value(symbol=name, value=parts[name], unit="s", kind="derived") for name in shown),
        Value(symbol="t", value=step, unit="s", kind="derived"),
        group="communication",
        unit="1",
        source="arithmetic",
    )
