"""Sums over the units of a stage: counts of the stage table times the time of each unit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meshplan.cost.schedule.bound import DeviceTimes
from meshplan.cost.schedule.layout import StageTable
from meshplan.cost.unit_time import Units

__all__ = ["device_times", "on_device", "weigh"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def weigh(counts: FloatArray, layout: IntArray, values: Sequence[FloatArray]) -> FloatArray:
    """Sum counts times values over units, on every representative device.

    Units are added one by one, so that a plan gets the same sum in any company.

    Args:
        counts: ``(num_units, num_devices, num_layouts)``.
        layout: layout of each plan, ``(n,)``.
        values: one array ``(n,)`` per unit.

    Returns:
        Sums, ``(num_devices, n)``.
    """
    total = np.zeros((counts.shape[1], len(layout)))
    for count, value in zip(counts, values, strict=True):
        if count.any():
            part = count.take(layout, axis=1)
            part *= value
            total += part
    return total


def device_times(table: StageTable, units: Units, *, split: BoolArray) -> DeviceTimes:
    """Time one micro-batch on each representative device and around it.

    Args:
        table: what the devices hold.
        units: times of the units.
        split: plans whose schedule splits the backward pass, ``(n,)``.

    Returns:
        Times of all representative devices, ``(num_devices, n)``.
    """
    ahead, back = units.values("ahead_s"), units.values("back_s")
    weight, again = units.values("weight_s"), units.values("again_s")
    # the stage before waits for weight gradients too, unless they come apart
    held = [np.where(split, 0.0, w) for w in weight] if split.any() else weight
    waited = [b + w for b, w in zip(back, held, strict=True)]
    layout = table.index
    repeats = any(values.any() for values in again)

    def both(
        all_units: FloatArray, recomputed: FloatArray, values: Sequence[FloatArray]
    ) -> FloatArray:
        total = weigh(all_units, layout, values)
        if repeats:
            total += weigh(recomputed, layout, again)
        return total

    weight_s = weigh(table.count, layout, weight)
    return DeviceTimes(
        device=table.device.take(layout, axis=1),
        forward_s=weigh(table.count, layout, ahead),
        input_s=both(table.count, table.recomputed, back),
        weight_s=weight_s,
        forward_before_s=weigh(table.before, layout, ahead),
        backward_before_s=both(table.before, table.recomputed_before, waited),
        forward_after_s=weigh(table.after, layout, ahead),
        backward_after_s=both(table.after, table.recomputed_after, waited),
        last_weight_s=weight_s[0],
    )


def on_device(
    counts: FloatArray, layout: IntArray, device: IntArray, values: Sequence[FloatArray]
) -> FloatArray:
    """Sum counts times values over units on one chosen representative of each plan.

    Args:
        counts: ``(num_units, num_devices, num_layouts)``.
        layout: layout of each plan, ``(n,)``.
        device: representative of each plan, ``(n,)``.
        values: one array ``(n,)`` per unit.
    """
    total = np.zeros(len(layout))
    for count, value in zip(counts, values, strict=True):
        if count.any():
            total += count[device, layout] * value
    return total
