"""Which action of a pipeline waits for which: the graph of one schedule.

An action starts when its device is free and when what it needs has arrived: the activation of the
stage before it, the gradient of the stage after it, or its own forward. Who waits for whom follows
from the schedule and its degrees alone, not from how long anything takes, so that one graph serves
all plans of a shape, and its levels can be worked out beforehand.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from meshplan.cost.schedule.actions import Kind, device_of
from meshplan.cost.schedule.orders import Actions, all_actions
from meshplan.record import record
from meshplan.space.plan import Schedule
from meshplan.space.stages import V_SHAPED

__all__ = ["ActionGraph", "Rounds", "action_graph", "round_size"]

IntArray = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]

_KEPT_ACTIONS = 1 << 17  # 2.5 MiB; what is larger than this is not kept
_UNKNOWN = -1


@record
class Rounds:
    """Two rounds of micro-batches in a row on every device, up to its last forward.

    Attributes:
        later: actions of the two rounds, device after device.
        earlier: the same actions one round before.
        device: device of each.
    """

    later: Int32Array
    earlier: Int32Array
    device: Int32Array


@record
class ActionGraph:
    """All actions of a pipeline, each after what it waits for.

    Action 0 is the start of the step, which everybody can wait for. Those of one level wait for
    none of the same level; arrays ``(num_actions,)`` unless said otherwise.

    Attributes:
        level: most actions, one after another, from the start to this one.
        before: what its device does before it.
        needs: what it waits for beside that.
        hop: what it needs comes from another device.
        held: the device tells another one about what it does before, which can take its time.
        duration: kind and virtual stage, as ``kind * pp * vpp + virtual stage``.
        place: the actions device by device in the order of its program, without the start,
            ``(num_actions - 1,)``.
        first: first action of each device, ``(pp,)``.
        last: last action of each device, ``(pp,)``.
        rounds: where to see whether it repeats; None where it is too short for that.
    """

    level: Int32Array
    before: Int32Array
    needs: Int32Array
    hop: BoolArray
    held: BoolArray
    duration: Int32Array
    place: Int32Array
    first: Int32Array
    last: Int32Array
    rounds: Rounds | None

    def __len__(self) -> int:
        return len(self.level)


def round_size(*, schedule: Schedule, pp: int, vpp: int) -> int:
    """After how many micro-batches a schedule does the same again."""
    return pp if vpp > 1 and schedule not in V_SHAPED else 1


def action_graph(*, schedule: Schedule, pp: int, vpp: int, num_micro_batches: int) -> ActionGraph:
    """Work out the graph of a schedule.

    Args:
        schedule: pipeline schedule.
        pp: devices of the pipeline.
        vpp: chunks per device.
        num_micro_batches: micro-batches of one step.
    """
    small = 2 * pp * vpp * num_micro_batches <= _KEPT_ACTIONS
    build = _kept_graph if small else _graph
    return build(schedule, pp, vpp, num_micro_batches)


def _graph(schedule: Schedule, pp: int, vpp: int, num_micro_batches: int) -> ActionGraph:
    actions = all_actions(schedule=schedule, pp=pp, vpp=vpp, num_micro_batches=num_micro_batches)
    kind, stage, starts = actions.kind, actions.stage, actions.starts + 1
    place = [device_of(v, pp=pp, schedule=schedule) for v in range(pp * vpp)]
    # whether a virtual stage and the one before it are on different devices
    hops = np.array([False, *(a != b for a, b in pairwise(place)), False])
    is_forward, waits = kind == Kind.FORWARD, kind != Kind.BACKWARD_WEIGHT
    needs = _needs(actions, num_stages=pp * vpp)
    before = np.arange(len(kind))
    before[starts[:-1] - 1] = 0
    told = waits & np.where(is_forward, hops[stage + 1], hops[stage])
    hop = waits & np.where(is_forward, hops[stage], hops[stage + 1])
    level = _levels(needs, starts)
    order = np.argsort(level, kind="stable")
    new = np.empty(len(order), dtype=np.int64)
    new[order] = np.arange(len(order))

    def ordered(of_actions: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The start, then the actions level by level."""
        return np.concatenate([np.zeros(1, of_actions.dtype), of_actions])[order]

    return ActionGraph(
        level=level[order].astype(np.int32),
        before=new[ordered(before)].astype(np.int32),
        needs=new[ordered(needs)].astype(np.int32),
        hop=ordered(hop).astype(np.bool_),
        held=np.concatenate([np.zeros(1, np.bool_), told])[ordered(before)],
        duration=ordered(kind * (pp * vpp) + stage).astype(np.int32),
        place=new[1:].astype(np.int32),
        first=new[starts[:-1]].astype(np.int32),
        last=new[starts[1:] - 1].astype(np.int32),
        rounds=_rounds(
            actions,
            new,
            num_micro_batches=num_micro_batches,
            period=round_size(schedule=schedule, pp=pp, vpp=vpp),
        ),
    )


_kept_graph = lru_cache(maxsize=64)(_graph)  # a search asks for up to 30


def _needs(actions: Actions, *, num_stages: int) -> IntArray:
    """Number of the action that each waits for, counted from 1; 0 for none."""
    kind, stage, micro_batch = actions.kind, actions.stage, actions.micro_batch
    number = np.arange(1, len(kind) + 1)
    forward = np.zeros((num_stages + 1, int(micro_batch.max()) + 1), dtype=np.int64)
    backward = np.zeros_like(forward)
    is_forward = kind == Kind.FORWARD
    is_backward = (kind == Kind.BACKWARD) | (kind == Kind.BACKWARD_INPUT)
    # row v holds stage v - 1 of the forwards, stage v of the backwards
    forward[stage[is_forward] + 1, micro_batch[is_forward]] = number[is_forward]
    backward[stage[is_backward], micro_batch[is_backward]] = number[is_backward]
    backward[num_stages] = forward[num_stages]
    needs = np.where(is_forward, forward[stage, micro_batch], backward[stage + 1, micro_batch])
    return np.where(kind == Kind.BACKWARD_WEIGHT, 0, needs)


def _levels(needs: IntArray, starts: IntArray) -> IntArray:
    """Level of the start and of each action, by running all programs to their end."""
    levels, needed = [0, *[_UNKNOWN] * len(needs)], [0, *needs.tolist()]
    upcoming, ends = starts[:-1].tolist(), starts[1:].tolist()
    reached = [0] * len(ends)
    order = list(range(len(ends)))
    left = len(needs)
    while left:
        before = left
        for device in order:
            i, end, now = upcoming[device], ends[device], reached[device]
            while i < end:
                ready = levels[needed[i]]
                if ready < 0:
                    break
                now = (ready if ready > now else now) + 1
                levels[i] = now
                i += 1
            left -= i - upcoming[device]
            upcoming[device], reached[device] = i, now
        assert left < before, "the order of the pipeline deadlocks"
        order.reverse()
    return np.array(levels)


def _rounds(
    actions: Actions, new: IntArray, *, num_micro_batches: int, period: int
) -> Rounds | None:
    """The last two whole rounds with a forward of each device, and the one before them."""
    later, earlier, devices = [], [], []
    for device, (start, stop) in enumerate(pairwise(actions.starts.tolist())):
        last_forward = int(np.flatnonzero(actions.kind[start:stop] == Kind.FORWARD)[-1])
        # every micro-batch has as many actions as the next one
        length = (stop - start) // num_micro_batches * period
        first = last_forward + 1 - 2 * length
        if first < length:
            return None
        own = np.arange(first, last_forward + 1) + start + 1
        later.append(new[own])
        earlier.append(new[own - length])
        devices.append(np.full(len(own), device))
    return Rounds(
        later=np.concatenate(later).astype(np.int32),
        earlier=np.concatenate(earlier).astype(np.int32),
        device=np.concatenate(devices).astype(np.int32),
    )
