"""The events of a training step on a pipeline device, and what is alive at each.

One code path serves a grid and a single plan. A line stays in the table of the few plan fields that
it depends on, and all lines are whole bytes, so that sums are exact in whatever order they are
taken (see :mod:`meshplan.cost.memory.lines`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshplan.cost.memory.lines import IMBALANCE, Line, Lines, Space
from meshplan.cost.memory.records import Event
from meshplan.cost.memory.shapes import BoolArray, FloatArray
from meshplan.cost.memory.state_records import StageStates

__all__ = ["LOSS_EVENTS", "Moving", "Standing", "backward_states", "event_lines"]


LOSS_EVENTS = (Event.LOSS_FORWARD, Event.LOSS_BACKWARD, Event.HEAD_BACKWARD)
"""What happens on the device with the head alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What devices hold whatever passes through them; arrays ``(num_state_rows,)``.

    Attributes:
        states: weights, gradients and optimizer.
        early_gradients: gradient buffers are there before the backward pass that is looked at.
        accumulates: earlier micro-batches of the step have left gradients.
        reduces_at_end: all gradients of the stage are reduced after its last backward pass, and
            not each unit as soon as it is complete.
        placeholders: placeholder gradients of the stage.
        head_gradient: temporary gradient of the head.
        embedding_gradient: temporary gradient of the embedding.
        workspace: workspaces in the allocator.
        graph_pool: private pools of CUDA graphs.
    """

    states: StageStates
    early_gradients: BoolArray
    accumulates: BoolArray
    reduces_at_end: BoolArray
    placeholders: FloatArray
    head_gradient: FloatArray
    embedding_gradient: FloatArray
    workspace: FloatArray
    graph_pool: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    """What passes through devices; arrays ``(num_activation_rows,)``.

    Attributes:
        saved: bytes of all micro-batches in flight, by line.
        less_one: the same when the last chunk is through the backward pass of one of them.
        imbalance: allowance for experts that get more tokens than the mean; None where no block
            has experts.
        offloaded: activations that wait in host memory, of all micro-batches in flight.
        forward: largest working set of a layer in the forward pass.
        backward: largest working set of a layer in the backward pass.
        final_norm: of the final norm, for all micro-batches in flight. This and what follows is
            meant for devices with the head.
        logits_waiting: what the loss keeps of the micro-batches before the latest.
        logits_forward: what the forward pass of the loss needs.
        logits_backward: what its backward pass needs.
        logits_gradient: gradient of the logits.
        head_hidden: gradient of the input of the head.
    """

    saved: dict[str, FloatArray]
    less_one: dict[str, FloatArray]
    imbalance: FloatArray | None
    offloaded: FloatArray
    forward: FloatArray
    backward: FloatArray
    final_norm: FloatArray
    logits_waiting: FloatArray
    logits_forward: FloatArray
    logits_backward: FloatArray
    logits_gradient: FloatArray
    head_hidden: FloatArray


def event_lines(standing: Standing, moving: Moving) -> dict[Event, Lines]:
    """List what is alive at each event of a step.

    Equation:
        total of an event = states + gradients (if they exist yet) + activations in flight + what
        only this event needs; see the body for each.

    Args:
        standing: states of the devices.
        moving: activations of the devices.

    Returns:
        Lines by event; those of ``LOSS_EVENTS`` hold for devices with the head.
    """
    i, states = standing, standing.states
    base: Lines = {
        "weights": _s(states.weights),
        "weight_copies": _s(states.weight_copies),
        "optimizer": _s(states.optimizer),
        "replica_buckets": _s(states.replica_buckets),
        "placeholders": _s(i.placeholders),
        "workspace": _s(i.workspace),
        "graph_pool": _s(i.graph_pool),
    }
    autograd = _s(states.autograd_gradients)
    whole = states.unsharded_gradients
    early = {
        "gradients": _s(np.where(i.early_gradients, states.gradients, 0.0)),
        "unsharded_gradients": _s(np.where(i.accumulates, whole, 0.0)),
    }
    gathered = {"gathered": _s(states.gathered)}
    waits = states.reduced_ends > 0
    full = {"gradients": _s(states.gradients)}
    last = full | {"unsharded_gradients": _s(np.where(i.reduces_at_end, whole, 0.0))}
    alive = {code: _a(num_bytes) for code, num_bytes in moving.saved.items()}
    if moving.imbalance is not None:
        alive[IMBALANCE] = _a(moving.imbalance)
    return {
        Event.FORWARD: base | early | gathered | alive | {"working": _a(moving.forward)},
        Event.BACKWARD: base
        | early
        | gathered
        | alive
        | {
            "working": _a(moving.backward),
            "reduced": _s(states.reduced),
            "head_gradient": _s(np.where(waits, i.head_gradient, 0.0)),
        },
        Event.BACKWARD_END: base
        | last
        | gathered
        | {code: _a(num_bytes) for code, num_bytes in moving.less_one.items()}
        | {
            "autograd_gradients": autograd,
            "reduced": _s(states.reduced_ends),
            "embedding_gradient": _s(np.where(waits, 0.0, i.embedding_gradient)),
        },
        Event.REDUCTION: base
        | last
        | {"autograd_gradients": autograd, "reduced": _s(states.reduced)},
        Event.OPTIMIZER: base
        | full
        | {
            "step_gradients": _s(states.step_gradients),
            "optimizer_temporaries": _s(states.optimizer_temporaries),
        },
        Event.LOADING: {"loading": _s(states.loading)},
        **_loss_events(
            standing,
            moving,
            base | early | {"gathered": _s(states.gathered_at_loss)} | alive,
        ),
    }


def backward_states(standing: Standing) -> FloatArray:
    """What of the states is there in every backward pass, ``(num_state_rows,)``."""
    states = standing.states
    held = states.weights + states.weight_copies + states.optimizer + states.replica_buckets
    beside = standing.placeholders + standing.workspace + standing.graph_pool + states.gathered
    return held + beside + np.where(standing.early_gradients, states.gradients, 0.0)


def _s(num_bytes: FloatArray) -> Line:
    return Line(num_bytes, Space.STATES)


def _a(num_bytes: FloatArray) -> Line:
    return Line(num_bytes, Space.ACTIVATIONS)


def _loss_events(standing: Standing, moving: Moving, alive: Lines) -> dict[Event, Lines]:
    """Head and loss, with what earlier micro-batches left in a schedule that runs ahead."""
    common = alive | {
        "final_norm": _a(moving.final_norm),
        "logits_waiting": _a(moving.logits_waiting),
    }
    return {
        Event.LOSS_FORWARD: common | {"logits": _a(moving.logits_forward)},
        Event.LOSS_BACKWARD: common | {"logits": _a(moving.logits_backward)},
        Event.HEAD_BACKWARD: common
        | {
            "logits": _a(moving.logits_gradient),
            "head_hidden": _a(moving.head_hidden),
            "head_gradient": _s(standing.head_gradient),
        },
    }
