"""The events of a training step on one pipeline device, and what is alive at each.

One code path serves a grid and a single plan: a line is an array, and all lines are whole bytes,
so that sums are exact in whatever order they are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshplan.cost.memory.chunks import ChunkActivations
from meshplan.cost.memory.head import HeadActivations
from meshplan.cost.memory.records import Event
from meshplan.cost.memory.shapes import BoolArray, FloatArray, rounded
from meshplan.cost.memory.states import StageStates

__all__ = ["IMBALANCE", "Lines", "StageInputs", "event_lines"]

IMBALANCE = "imbalance"
"""The one line that is an allowance: it need not be used."""

Lines = dict[str, FloatArray]
Expand = Callable[[FloatArray], FloatArray]
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
        placeholders: placeholder gradients of the stage, per state combination.
        head_gradient: temporary gradient of the head, per state combination.
        embedding_gradient: temporary gradient of the embedding, per state combination.
        workspace: workspaces in the allocator, per plan.
        graph_pool: private pools of CUDA graphs, per plan.
        overload: tokens of the busiest device of experts over the mean, less one, per plan.
    """

    states: StageStates
    chunks: tuple[ChunkActivations, ...]
    in_flight: tuple[IntArray, ...]
    head: HeadActivations | None
    head_in_flight: IntArray
    state_values: Expand
    activation_values: Expand
    early_gradients: BoolArray
    placeholders: FloatArray
    head_gradient: FloatArray
    embedding_gradient: FloatArray
    workspace: FloatArray
    graph_pool: FloatArray
    overload: FloatArray


def event_lines(inputs: StageInputs, *, detail: bool) -> dict[Event, Lines]:
    """List what is alive at each event of a step.

    Equation:
        total of an event = states + gradients (if they exist yet) + activations in flight + what
        only this event needs; see the body for each.

    Args:
        inputs: arrays of the device.
        detail: split activations by module (for a breakdown) instead of one line (for a grid).

    Returns:
        Lines [bytes] by event, arrays of shape ``(num_plans,)`` each.
    """
    i, s = inputs, inputs.state_values
    base: Lines = {
        "weights": s(i.states.weights),
        "weight_copies": s(i.states.weight_copies),
        "optimizer": s(i.states.optimizer),
        "replica_buckets": s(i.states.replica_buckets),
        "placeholders": s(i.placeholders),
        "workspace": i.workspace,
        "graph_pool": i.graph_pool,
    }
    gradients = s(i.states.gradients)
    autograd = s(i.states.autograd_gradients)
    early = {"gradients": np.where(i.early_gradients, gradients, 0.0)}
    gathered = {"gathered": s(i.states.gathered)}
    waiting = s(i.states.reduced_ends)
    full = {"gradients": gradients}
    alive = _activations(inputs, detail=detail) | _imbalance(inputs)
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
            "head_gradient": np.where(waiting > 0, s(i.head_gradient), 0.0),
        },
        Event.BACKWARD_END: base
        | full
        | gathered
        | _less_one(inputs, detail=detail)
        | {
            "autograd_gradients": autograd,
            "reduced": waiting,
            "embedding_gradient": np.where(waiting > 0, 0.0, s(i.embedding_gradient)),
        },
        Event.REDUCTION: base
        | full
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


def _activations(inputs: StageInputs, *, detail: bool) -> Lines:
    """Activations of all micro-batches in flight."""
    lines: Lines = {}
    for chunk, count in zip(inputs.chunks, inputs.in_flight, strict=True):
        parts = chunk.saved if detail else {"activations": chunk.saved_bytes}
        for code, num_bytes in parts.items():
            lines[code] = lines.get(code, 0.0) + count * inputs.activation_values(num_bytes)
    return lines


def _imbalance(inputs: StageInputs) -> Lines:
    """Allowance for experts that get more tokens than the mean."""
    routed = np.zeros_like(inputs.workspace)
    for chunk, count in zip(inputs.chunks, inputs.in_flight, strict=True):
        routed = routed + count * inputs.activation_values(chunk.routed_bytes)
    return {IMBALANCE: rounded(inputs.overload * routed)}


def _less_one(inputs: StageInputs, *, detail: bool) -> Lines:
    """Activations left when one micro-batch has gone through its backward pass."""
    lines: Lines = {}
    for index, (chunk, count) in enumerate(zip(inputs.chunks, inputs.in_flight, strict=True)):
        left = count - 1 if index == len(inputs.chunks) - 1 else count
        left = np.maximum(left, 0)
        parts = chunk.saved if detail else {"activations": chunk.saved_bytes}
        for code, num_bytes in parts.items():
            lines[code] = lines.get(code, 0.0) + left * inputs.activation_values(num_bytes)
    return lines


def _working(inputs: StageInputs) -> tuple[FloatArray, FloatArray]:
    """Largest working set of a layer in the forward and in the backward pass."""
    forward = backward = np.zeros_like(inputs.workspace)
    for chunk in inputs.chunks:
        forward = np.maximum(forward, inputs.activation_values(chunk.forward_bytes))
        backward = np.maximum(backward, inputs.activation_values(chunk.backward_bytes))
    return forward, backward


def _loss_events(inputs: StageInputs, alive: Lines) -> dict[Event, Lines]:
    """Head and loss, with what earlier micro-batches left in a schedule that runs ahead."""
    head = inputs.head
    assert head is not None
    a, s = inputs.activation_values, inputs.state_values
    norm = inputs.head_in_flight * a(head.norm)
    waiting = np.maximum(inputs.head_in_flight - 1, 0) * a(head.logits)
    common = alive | {"final_norm": norm, "logits_waiting": waiting}
    return {
        Event.LOSS_FORWARD: common | {"logits": a(head.forward)},
        Event.LOSS_BACKWARD: common | {"logits": a(head.backward)},
        Event.HEAD_BACKWARD: common
        | {
            "logits": a(head.gradient),
            "head_hidden": a(head.hidden),
            "head_gradient": s(inputs.head_gradient),
        },
    }
