"""The events of a training step on one pipeline device, and what is alive at each.

One code path serves a grid and a single plan. All lines are whole bytes, so that sums are exact in
whatever order they are taken: a line stays in the table of the few plan fields that it depends on,
lines of one table are added up there, and only their sum is spread to all plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshplan.cost.memory.chunks import ChunkActivations
from meshplan.cost.memory.head import HeadActivations
from meshplan.cost.memory.lines import IMBALANCE, Expand, Line, Lines, Tables
from meshplan.cost.memory.records import Event
from meshplan.cost.memory.shapes import BoolArray, FloatArray, rounded
from meshplan.cost.memory.state_records import StageStates

__all__ = ["StageInputs", "event_lines"]

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInputs:
    """What the events of one device are made of.

    Attributes:
        states: of the stage, per combination of state fields.
        chunks: activations of each chunk, per combination of activation fields.
        in_flight: micro-batches alive per chunk, per plan.
        head: of the head, per combination of activation fields; None on other stages.
        head_in_flight: micro-batches alive in the chunk with the head, per plan.
        state_values: spreads state combinations to plans.
        activation_values: spreads activation combinations to plans.
        early_gradients: gradient buffers are there before the backward pass that is looked at.
        accumulates: earlier micro-batches of the step have left gradients.
        reduces_at_end: all gradients of the stage are reduced after its last backward pass, and
            not each unit as soon as it is complete.
        placeholders: placeholder gradients of the stage, per state combination.
        head_gradient: temporary gradient of the head, per state combination.
        embedding_gradient: temporary gradient of the embedding, per state combination.
        workspace: workspaces in the allocator, per state combination.
        graph_pool: private pools of CUDA graphs, per state combination.
        overload: tokens of the busiest device of experts over the mean, less one, per activation
            combination.
    """

    states: StageStates
    chunks: tuple[ChunkActivations, ...]
    in_flight: tuple[IntArray, ...]
    head: HeadActivations | None
    head_in_flight: IntArray
    state_values: Expand
    activation_values: Expand
    early_gradients: BoolArray
    accumulates: BoolArray
    reduces_at_end: bool
    placeholders: FloatArray
    head_gradient: FloatArray
    embedding_gradient: FloatArray
    workspace: FloatArray
    graph_pool: FloatArray
    overload: FloatArray


def event_lines(inputs: StageInputs, *, together: Tables | None) -> dict[Event, Lines]:
    """List what is alive at each event of a step.

    Equation:
        total of an event = states + gradients (if they exist yet) + activations in flight + what
        only this event needs; see the body for each.

    Args:
        inputs: arrays of the device.
        together: adds up what is always alive together, for a grid that asks for totals alone;
            None keeps every line apart, and activations by module, for a breakdown.

    Returns:
        Lines by event.
    """
    i = inputs

    def s(num_bytes: FloatArray) -> tuple[Line, ...]:
        return (Line(num_bytes, i.state_values),)

    base: Lines = {
        "weights": s(i.states.weights),
        "weight_copies": s(i.states.weight_copies),
        "optimizer": s(i.states.optimizer),
        "replica_buckets": s(i.states.replica_buckets),
        "placeholders": s(i.placeholders),
        "workspace": s(i.workspace),
        "graph_pool": s(i.graph_pool),
    }
    if together is not None:
        base = {"states": s(together.add([line.table for (line,) in base.values()]))}
    autograd = s(i.states.autograd_gradients)
    whole = i.states.unsharded_gradients
    early = {
        "gradients": (Line(i.states.gradients, i.state_values, i.early_gradients),),
        "unsharded_gradients": (Line(whole, i.state_values, i.accumulates),),
    }
    gathered = {"gathered": s(i.states.gathered)}
    waits = i.states.reduced_ends > 0
    full = {"gradients": s(i.states.gradients)}
    last = full | {"unsharded_gradients": s(whole)} if i.reduces_at_end else full
    alive = _activations(inputs, i.in_flight, detail=together is None) | _imbalance(inputs)
    forward, backward = _working(inputs)
    events: dict[Event, Lines] = {
        Event.FORWARD: base | early | gathered | alive | {"working": forward},
        Event.BACKWARD: base
        | early
        | gathered
        | alive
        | {
            "working": backward,
            "reduced": s(i.states.reduced),
            "head_gradient": s(np.where(waits, i.head_gradient, 0.0)),
        },
        Event.BACKWARD_END: base
        | last
        | gathered
        | _less_one(inputs, detail=together is None)
        | {
            "autograd_gradients": autograd,
            "reduced": s(i.states.reduced_ends),
            "embedding_gradient": s(np.where(waits, 0.0, i.embedding_gradient)),
        },
        Event.REDUCTION: base
        | last
        | {"autograd_gradients": autograd, "reduced": s(i.states.reduced)},
        Event.OPTIMIZER: base
        | full
        | {
            "step_gradients": s(i.states.step_gradients),
            "optimizer_temporaries": s(i.states.optimizer_temporaries),
        },
        Event.LOADING: {"loading": s(i.states.loading)},
    }
    if i.head is not None:
        at_loss = {"gathered": s(i.states.gathered_at_loss)}
        events |= _loss_events(inputs, base | early | at_loss | alive)
    return events


def _activations(inputs: StageInputs, counts: Sequence[IntArray], *, detail: bool) -> Lines:
    """Activations of so many micro-batches of each chunk."""
    lines: Lines = {}
    for chunk, count in _alike(inputs.chunks, counts):
        parts = chunk.saved if detail else {"activations": chunk.saved_bytes}
        for code, num_bytes in parts.items():
            line = Line(num_bytes, inputs.activation_values, count)
            lines[code] = (*lines.get(code, ()), line)
    return lines


def _alike(
    chunks: Sequence[ChunkActivations], counts: Sequence[IntArray]
) -> Iterator[tuple[ChunkActivations, IntArray]]:
    """Count chunks of the same layers together."""
    found: dict[int, tuple[ChunkActivations, IntArray]] = {}
    for chunk, count in zip(chunks, counts, strict=True):
        seen = found.get(id(chunk))
        found[id(chunk)] = (chunk, count if seen is None else seen[1] + count)
    yield from found.values()


def _imbalance(inputs: StageInputs) -> Lines:
    """Allowance for experts that get more tokens than the mean."""
    routed: FloatArray | float = 0.0
    for chunk, count in _alike(inputs.chunks, inputs.in_flight):
        if chunk.routed_bytes.any():
            routed = routed + count * inputs.activation_values(chunk.routed_bytes)
    if isinstance(routed, float):
        return {}
    extra = rounded(inputs.activation_values(inputs.overload) * routed)
    return {IMBALANCE: (Line(extra),)}


def _less_one(inputs: StageInputs, *, detail: bool) -> Lines:
    """Activations left when one micro-batch has gone through its backward pass."""
    *others, last = inputs.in_flight
    return _activations(inputs, (*others, np.maximum(last - 1, 0)), detail=detail)


def _working(inputs: StageInputs) -> tuple[tuple[Line], tuple[Line]]:
    """Largest working set of a layer in the forward and in the backward pass."""
    forward = backward = np.zeros(1)
    for chunk, _ in _alike(inputs.chunks, inputs.in_flight):
        forward = np.maximum(forward, chunk.forward_bytes)
        backward = np.maximum(backward, chunk.backward_bytes)
    spread = inputs.activation_values
    return (Line(forward, spread),), (Line(backward, spread),)


def _loss_events(inputs: StageInputs, alive: Lines) -> dict[Event, Lines]:
    """Head and loss, with what earlier micro-batches left in a schedule that runs ahead."""
    head = inputs.head
    assert head is not None

    def a(num_bytes: FloatArray, count: IntArray | None = None) -> tuple[Line]:
        return (Line(num_bytes, inputs.activation_values, count),)

    norm = a(head.norm, inputs.head_in_flight)
    waiting = a(head.logits, np.maximum(inputs.head_in_flight - 1, 0))
    common = alive | {"final_norm": norm, "logits_waiting": waiting}
    return {
        Event.LOSS_FORWARD: common | {"logits": a(head.forward)},
        Event.LOSS_BACKWARD: common | {"logits": a(head.backward)},
        Event.HEAD_BACKWARD: common
        | {
            "logits": a(head.gradient),
            "head_hidden": a(head.hidden),
            "head_gradient": (Line(inputs.head_gradient, inputs.state_values),),
        },
    }
