"""What a device of a pipeline does: actions, their placement and their times."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshplan.record import record
from meshplan.space.plan import Schedule
from meshplan.space.stages import V_SHAPED

__all__ = [
    "SPLIT_BACKWARD",
    "STAGGERED",
    "Kind",
    "PipelineTimes",
    "Pipelines",
    "Program",
    "Slot",
    "device_of",
    "virtual_stages_of",
]


FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


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


@record
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


@record
class Pipelines:
    """Pipelines of many plans with one schedule and the same degrees.

    Attributes:
        schedule: pipeline schedule.
        pp: devices of each pipeline.
        vpp: chunks per device.
        num_micro_batches: micro-batches of one step, ``(num_plans,)``.
        forward_s: see :class:`PipelineTimes`; ``(pp * vpp, num_plans)`` as the next two.
        backward_input_s: backward pass towards the inputs [s].
        backward_weight_s: backward pass towards the weights [s].
        send_s: see :class:`PipelineTimes`, ``(num_plans,)``.
        blocking: see :class:`PipelineTimes`, ``(num_plans,)``.
    """

    schedule: Schedule
    pp: int
    vpp: int
    num_micro_batches: IntArray
    forward_s: FloatArray
    backward_input_s: FloatArray
    backward_weight_s: FloatArray
    send_s: FloatArray
    blocking: BoolArray

    @classmethod
    def one(
        cls, *, schedule: Schedule, pp: int, vpp: int, num_micro_batches: int, times: PipelineTimes
    ) -> Pipelines:
        """The pipeline of a single plan."""
        return cls(
            schedule=schedule,
            pp=pp,
            vpp=vpp,
            num_micro_batches=np.array([num_micro_batches]),
            forward_s=np.array(times.forward_s)[:, None],
            backward_input_s=np.array(times.backward_input_s)[:, None],
            backward_weight_s=np.array(times.backward_weight_s)[:, None],
            send_s=np.array([times.send_s]),
            blocking=np.array([times.blocking]),
        )

    def __len__(self) -> int:
        return len(self.send_s)

    def durations(self, index: IntArray) -> FloatArray:
        """Durations of some of the plans by kind and virtual stage [s].

        Returns:
            ``(4 * pp * vpp, len(index))``, in the order of :class:`Kind`.
        """
        inputs, weights = self.backward_input_s[:, index], self.backward_weight_s[:, index]
        return np.concatenate([self.forward_s[:, index], inputs + weights, inputs, weights])


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
