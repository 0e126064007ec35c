"""The events of a training step on a pipeline device, and what is alive at each.

One code path serves a grid and a single plan. A line stays in the table of the few plan fields that
it depends on, and all lines are whole bytes, so that sums are exact in whatever order they are
taken (see :mod:`meshplan.cost.memory.lines`).
"""

from __future__ import annotations

import numpy as np

from meshplan.cost.memory.lines import IMBALANCE, Line, Lines, Space
from meshplan.cost.memory.records import Event
from meshplan.cost.memory.shapes import BoolArray, FloatArray
from meshplan.cost.memory.state_records import StageStates
from meshplan.record import record

__all__ = [
    "LOSS_EVENTS",
    "GraphPool",
    "Moving",
    "PassBeside",
    "Standing",
    "backward_states",
    "event_lines",
]


LOSS_EVENTS = (Event.LOSS_FORWARD, Event.LOSS_BACKWARD, Event.HEAD_BACKWARD)
"""What happens on the device with the head alone."""


@record
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
    """

    states: StageStates
    early_gradients: BoolArray
    accumulates: BoolArray
    reduces_at_end: BoolArray
    placeholders: FloatArray
    head_gradient: FloatArray
    embedding_gradient: FloatArray
    workspace: FloatArray


@record
class PassBeside:
    """A forward pass beside a backward pass, layer by layer; arrays ``(num_activation_rows,)``.

    A backward pass gives back as much as the forward pass beside it adds, but for the layer that
    both are at. So it begins and ends with as much alive.

    Attributes:
        layer: what a layer has saved before its exchange of tokens, while a layer of the
            backward pass still holds all that it saved.
        final_norm: of the forward pass, once it is through.
        logits: what its loss keeps, once it is through.
    """

    layer: FloatArray
    final_norm: FloatArray
    logits: FloatArray


@record
class GraphPool:
    """What CUDA graphs hold, which nothing else can use; arrays ``(num_activation_rows,)``.

    Attributes:
        saved: what of the saved bytes of all micro-batches in flight is in the pool.
        less_one: the same at the end of a backward pass.
        static: static inputs and outputs of all graphs.
        working: the working set of a graph.
        beside: by how much it and that of the rest of a layer exceed the larger one of both.
    """

    saved: FloatArray
    less_one: FloatArray
    static: FloatArray
    working: FloatArray
    beside: FloatArray


@record
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
        beside: what of a forward pass is there beside a backward pass; None where none is.
        graphs: what CUDA graphs hold; None where no plan has any.
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
    beside: PassBeside | None
    graphs: GraphPool | None


def event_lines(standing: Standing, moving: Moving) -> dict[Event, Lines]:
    """List what is alive at each event of a step.

    Equation:
        total of an event = states + gradients (if they exist yet) + activations in flight + what
        only this event needs; see the functions below for each.

    Args:
        standing: states of the devices.
        moving: activations of the devices.

    Returns:
        Lines by event; those of ``LOSS_EVENTS`` hold for devices with the head.
    """
    base, pool = _always(standing), _graph_pool(moving.graphs)
    alive = _saved(moving.saved)
    if moving.imbalance is not None:
        alive[IMBALANCE] = _a(moving.imbalance)
    passes = _pass_events(standing, moving, base | _early(standing) | alive)
    loss = _loss_events(standing, moving, base | _early(standing) | alive)
    ends = _end_events(standing, moving, base)
    loading: Lines = {"loading": _s(standing.states.loading)}
    found = {**passes, **loss, **ends}
    return {event: lines | pool[event] for event, lines in found.items()} | {Event.LOADING: loading}


def _always(standing: Standing) -> Lines:
    """What every event but loading holds."""
    states = standing.states
    return {
        "weights": _s(states.weights),
        "weight_copies": _s(states.weight_copies),
        "optimizer": _s(states.optimizer),
        "replica_buckets": _s(states.replica_buckets),
        "placeholders": _s(standing.placeholders),
        "workspace": _s(standing.workspace),
    }


def _early(standing: Standing) -> Lines:
    """Gradients that are there before the backward pass that is looked at."""
    states = standing.states
    return {
        "gradients": _s(np.where(standing.early_gradients, states.gradients, 0.0)),
        "unsharded_gradients": _s(np.where(standing.accumulates, states.unsharded_gradients, 0.0)),
    }


def _pass_events(standing: Standing, moving: Moving, held: Lines) -> dict[Event, Lines]:
    """Forward and backward pass of a block."""
    states = standing.states
    common = held | {"gathered": _s(states.gathered)}
    if moving.beside is not None:
        common |= {"pass_beside": _a(moving.beside.layer)}
    waits = states.reduced_ends > 0
    return {
        Event.FORWARD: common | {"working": _a(moving.forward)},
        Event.BACKWARD: common
        | {
            "working": _a(moving.backward),
            "reduced": _s(states.reduced),
            "head_gradient": _s(np.where(waits, standing.head_gradient, 0.0)),
        },
    }


def _end_events(standing: Standing, moving: Moving, base: Lines) -> dict[Event, Lines]:
    """The end of a backward pass, and what follows the last one."""
    states = standing.states
    full = {"gradients": _s(states.gradients)}
    whole = np.where(standing.reduces_at_end, states.unsharded_gradients, 0.0)
    last = full | {"unsharded_gradients": _s(whole)}
    autograd = _s(states.autograd_gradients)
    through = _saved(moving.less_one)
    if moving.beside is not None:
        through |= {
            "final_norm": _a(moving.beside.final_norm),
            "logits": _a(moving.beside.logits),
        }
    embedding = np.where(states.reduced_ends > 0, 0.0, standing.embedding_gradient)
    return {
        Event.BACKWARD_END: base
        | last
        | {"gathered": _s(states.gathered)}
        | through
        | {
            "autograd_gradients": autograd,
            "reduced": _s(states.reduced_ends),
            "embedding_gradient": _s(embedding),
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
    }


def _saved(num_bytes: dict[str, FloatArray]) -> Lines:
    return {code: _a(line) for code, line in num_bytes.items()}


def _graph_pool(graphs: GraphPool | None) -> dict[Event, Lines]:
    """What the pool of CUDA graphs holds at each event beyond the lines of what is saved."""
    if graphs is None:
        return {event: {} for event in Event}
    waiting = graphs.static + graphs.working
    busy, idle = graphs.static + graphs.beside, waiting + graphs.saved
    held = dict.fromkeys(Event, waiting) | {
        Event.FORWARD: busy,
        Event.BACKWARD: busy,
        Event.BACKWARD_END: idle - graphs.less_one,
        Event.REDUCTION: idle,
        Event.OPTIMIZER: idle,
    }
    return {event: {"graph_pool": _a(num_bytes)} for event, num_bytes in held.items()}


def backward_states(standing: Standing) -> FloatArray:
    """What of the states is there in every backward pass, ``(num_state_rows,)``."""
    states = standing.states
    held = states.weights + states.weight_copies + states.optimizer + states.replica_buckets
    beside = standing.placeholders + standing.workspace + states.gathered
    return held + beside + np.where(standing.early_gradients, states.gradients, 0.0)


def _s(num_bytes: FloatArray) -> Line:
    return Line(num_bytes, Space.STATES)


def _a(num_bytes: FloatArray) -> Line:
    return Line(num_bytes, Space.ACTIVATIONS)


def _loss_events(standing: Standing, moving: Moving, held: Lines) -> dict[Event, Lines]:
    """Head and loss, with what earlier micro-batches left in a schedule that runs ahead."""
    common = held | {
        "gathered": _s(standing.states.gathered_at_loss),
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
