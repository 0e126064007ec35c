"""What a device of a pipeline does: actions, their placement and their times."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from meshplan.space.plan import Schedule
from meshplan.space.stages import V_SHAPED

__all__ = [
    "SPLIT_BACKWARD",
    "STAGGERED",
    "Kind",
    "PipelineTimes",
    "Program",
    "Slot",
    "device_of",
    "virtual_stages_of",
]


class Kind(IntEnum):
    """Kind of an action.

    ``BACKWARD`` gives the gradients of inputs and weights in one go; the zero-bubble schedules
    split it into ``BACKWARD_INPUT``, which the previous stage waits for, and ``BACKWARD_WEIGHT``,
    which nobody waits for.
    """

    FORWARD = 0
    BACKWARD = 1
    BACKWARD_INPUT = 2
    BACKWARD_WEIGHT = 3


Program = tuple[tuple[int, int, int], ...]
"""Actions of one device in order, each ``(kind, virtual stage, micro-batch)``."""

SPLIT_BACKWARD = frozenset(
    {
        Schedule.ZB_H1,
        Schedule.ZB_1P,
        Schedule.ZB_2P,
        Schedule.ZBV,
        Schedule.DUALPIPE_V,
        Schedule.INTERLEAVED_ZB,
    }
)
"""Schedules that split the backward pass in two."""

STAGGERED = frozenset({Schedule.ZB_1P, Schedule.ZB_2P})
"""Schedules that check the gradients after the optimizer step, so that no device waits for the
others: each enters the next step as late as it entered this one (zero bubble, section 4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTimes:
    """How long one micro-batch takes on each virtual stage, in model order.

    Attributes:
        forward_s: forward pass [s], one entry per virtual stage.
        backward_input_s: backward pass towards the inputs, recompute included [s].
        backward_weight_s: backward pass towards the weights [s].
        send_s: moving one activation or its gradient to the neighbouring device [s].
        blocking: the sending device waits until the transfer is over, as Megatron-LM does
            without interleaving; otherwise it computes on.
    """

    forward_s: tuple[float, ...]
    backward_input_s: tuple[float, ...]
    backward_weight_s: tuple[float, ...]
    send_s: float = 0.0
    blocking: bool = False


class Slot(NamedTuple):
    """One action of a device in time.

    Attributes:
        device: pipeline stage.
        kind: what is done.
        virtual_stage: on which part of the model, in model order.
        micro_batch: for which micro-batch.
        start_s: when it starts [s].
        end_s: when it ends [s].
    """

    device: int
    kind: Kind
    virtual_stage: int
    micro_batch: int
    start_s: float
    end_s: float


def device_of(virtual_stage: int, *, pp: int, schedule: Schedule) -> int:
    """Return the device that holds a virtual stage (looped, or down and back for V shapes)."""
    looped = virtual_stage % pp
    comes_back = schedule in V_SHAPED and (virtual_stage // pp) % 2 == 1
    return pp - 1 - looped if comes_back else looped


def virtual_stages_of(device: int, *, pp: int, vpp: int, schedule: Schedule) -> tuple[int, ...]:
    """Return the virtual stages of a device, by chunk."""
    if schedule in V_SHAPED:
        return tuple(c * pp + (pp - 1 - device if c % 2 else device) for c in range(vpp))
    return tuple(c * pp + device for c in range(vpp))
