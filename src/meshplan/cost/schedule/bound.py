"""Closed forms of the time of a pipeline, for a whole grid of plans.

Each is a lower bound of the event simulation, and the largest of them is returned. With even
stages and no sends it equals the simulation: GPipe and 1F1B ``(m + p - 1)(f + b)``, interleaved
``(m + (p - 1) / v)(f + b)``, ZB-H1 ``m (f + b + w) + (p - 1)(f + b - w)`` (for ``w <= f``).

References:
    1. Narayanan et al., Efficient large-scale language model training on GPU clusters using
       Megatron-LM, SC 2021, section 2.2.
    2. Qi et al., Zero bubble pipeline parallelism, 2023, table 1.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from meshplan.cost.schedule.actions import SPLIT_BACKWARD, STAGGERED
from meshplan.record import record
from meshplan.space.plan import Schedule

__all__ = ["DeviceTimes", "PipelineShape", "pipeline_bound"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
_SPLITS = np.array([schedule in SPLIT_BACKWARD for schedule in Schedule])
_STAGGERS = np.array([schedule in STAGGERED for schedule in Schedule])


@record
class PipelineShape:
    """What is common to all devices of a plan's pipeline; arrays ``(n,)``.

    Attributes:
        schedule: pipeline schedule.
        pp: devices.
        vpp: chunks per device.
        num_micro_batches: micro-batches of one step.
        send_s: one activation to the neighbouring device [s].
        blocking: the sender waits for the transfer (only without interleaving).
    """

    schedule: IntArray
    pp: IntArray
    vpp: IntArray
    num_micro_batches: IntArray
    send_s: FloatArray
    blocking: BoolArray

    @property
    def splits(self) -> BoolArray:
        """The schedule splits the backward pass."""
        return _SPLITS[self.schedule]

    @property
    def staggers(self) -> BoolArray:
        """Devices enter the next step one after the other."""
        return _STAGGERS[self.schedule]


@record
class DeviceTimes:
    """Times of one micro-batch on devices and around them, in seconds.

    Arrays are ``(num_devices, n)``, or ``(n,)`` for one device of each plan.

    Attributes:
        device: position in the pipeline.
        forward_s: forward of all chunks of the device.
        input_s: backward towards the inputs, recompute included.
        weight_s: backward towards the weights.
        forward_before_s: forward of the virtual stages ahead of the device's first one.
        backward_before_s: backward of the same, as far as the next stage waits for it.
        forward_after_s: forward of the virtual stages behind the device's last one.
        backward_after_s: backward of the same, as far as the next stage waits for it.
        last_weight_s: weight gradient of one micro-batch on the first device, ``(n,)``.
    """

    device: IntArray
    forward_s: FloatArray
    input_s: FloatArray
    weight_s: FloatArray
    forward_before_s: FloatArray
    backward_before_s: FloatArray
    forward_after_s: FloatArray
    backward_after_s: FloatArray
    last_weight_s: FloatArray


_Record = TypeVar("_Record", PipelineShape, DeviceTimes)


def pipeline_bound(shape: PipelineShape, times: DeviceTimes) -> FloatArray:
    """Bound the time of one step from below, from what each device must do and wait for.

    Returns:
        Seconds, of the shape of the times; the largest over the devices is the closed form.
    """
    m, d = shape.num_micro_batches, times.device
    single = shape.vpp == 1
    waits = shape.blocking & single
    hops = d * shape.send_s
    busy = m * (times.forward_s + times.input_s + times.weight_s)
    sends_out = (d < shape.pp - 1).astype(np.int64) + (d > 0)
    busy = busy + np.where(waits, m * sends_out * shape.send_s, 0.0)
    back = times.backward_before_s + np.where(waits, np.maximum(d - 1, 0), d) * shape.send_s
    start = times.forward_before_s + hops
    whole = start + busy + np.where(shape.splits, 0.0, back)
    staggered = shape.staggers
    bound = np.where(staggered, busy, whole)
    lead = np.where(staggered, start, 0.0)
    # forms are worked out for the plans that need them
    some = np.flatnonzero(single)
    if len(some):
        own = (_take(shape, some), _take(times, some))
        ahead, behind = start[..., some], back[..., some]
        one = _round_trips(*own, ahead, behind)
        one = np.maximum(one, _first_backward(*own, behind))
        if (own[0].schedule == Schedule.ZB_H1).any():
            one = np.maximum(one, _delayed_weights(*own, ahead, behind))
        bound[..., some] = np.maximum(bound[..., some], one - lead[..., some])
    if (shape.schedule == Schedule.ZBV).any():
        bound = np.maximum(bound, np.where(single, 0.0, _v_shape(shape, times, start, back)))
    return bound


def _take(record: _Record, index: IntArray) -> _Record:
    """The same of some of the plans."""
    values = {f.name: getattr(record, f.name)[..., index] for f in fields(record)}
    return type(record)(**values)


def _warmup(shape: PipelineShape, device: IntArray) -> IntArray:
    """Forwards of a device before its first backward, with one chunk per device."""
    ahead = shape.pp - 1 - device
    ahead = np.where(shape.schedule == Schedule.ZB_2P, 2 * ahead, ahead) + 1
    ahead = np.where(shape.schedule == Schedule.GPIPE, shape.num_micro_batches, ahead)
    warmup: IntArray = np.minimum(ahead, shape.num_micro_batches)
    return warmup


def _first_backward(shape: PipelineShape, times: DeviceTimes, back: FloatArray) -> FloatArray:
    """No backward starts before the first micro-batch came back; all of them are left then."""
    m = shape.num_micro_batches
    turn = 2 * (shape.pp - 1) - times.device
    arrival = times.forward_before_s + times.forward_s + times.forward_after_s
    arrival = arrival + times.backward_after_s + turn * shape.send_s
    left = m * (times.input_s + times.weight_s)
    left = left + (m - _warmup(shape, times.device)) * times.forward_s
    return arrival + left + np.where(shape.splits, 0.0, back)


def _round_trips(
    shape: PipelineShape, times: DeviceTimes, start: FloatArray, back: FloatArray
) -> FloatArray:
    """A device has only so many micro-batches under way: each round trip lets that many in."""
    behind = shape.pp - 1 - times.device
    waited = times.input_s + np.where(shape.splits, 0.0, times.weight_s)
    trip = times.forward_s + times.forward_after_s + times.backward_after_s + waited
    trip = trip + 2 * behind * shape.send_s
    rounds, rest = np.divmod(shape.num_micro_batches - 1, _warmup(shape, times.device))
    end = start + (rounds + 1) * trip + rest * waited
    ends_on_first = back + np.where(shape.splits, times.last_weight_s, 0.0)
    return end + np.where(shape.staggers, times.weight_s, ends_on_first)


def _delayed_weights(
    shape: PipelineShape, times: DeviceTimes, start: FloatArray, back: FloatArray
) -> FloatArray:
    """What a device does until its last input gradient, then the way back to the first device."""
    delay = np.where(shape.schedule == Schedule.ZB_2P, 2, 1) * times.device
    late = np.minimum(delay + 1, shape.num_micro_batches)
    m = shape.num_micro_batches
    before = m * (times.forward_s + times.input_s) + (m - late) * times.weight_s
    end = start + before + back + times.last_weight_s
    return np.where(shape.schedule == Schedule.ZB_H1, end, 0.0)


def _v_shape(
    shape: PipelineShape, times: DeviceTimes, start: FloatArray, back: FloatArray
) -> FloatArray:
    """ZBV: the drain of the last device, with the weight gradients that it puts off."""
    m, p = shape.num_micro_batches, shape.pp
    # the weight gradients that the last device has not done when its last input gradient is
    work = m * (times.forward_s + times.input_s) + np.maximum(m - p, 0) * times.weight_s
    end = start + work + back
    return np.where(shape.schedule == Schedule.ZBV, end, 0.0)
