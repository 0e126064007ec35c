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


def weigh(counts: IntArray, layout: IntArray, values: Sequence[FloatArray]) -> FloatArray:
    """Sum counts times values over units.

    Units are added one by one, so that a plan gets the same sum in any company.

    Args:
        counts: ``(num_layouts, num_units)``.
        layout: row of each plan, ``(n,)``.
        values: one array ``(n,)`` per unit.
    """
    total = np.zeros(len(layout))
    for unit, value in enumerate(values):
        column = counts[:, unit].astype(np.float64)
        if column.any():
            total += column[layout] * value
    return total


def device_times(table: StageTable, units: Units, *, split: BoolArray) -> list[DeviceTimes]:
    """Time one micro-batch on each representative device and around it.

    Args:
        table: what the devices hold.
        units: times of the units.
        split: plans whose schedule splits the backward pass, ``(n,)``.

    Returns:
        One entry per representative device.
    """
    ahead, back = units.values("ahead_s"), units.values("back_s")
    weight, again = units.values("weight_s"), units.values("again_s")
    waited = [b + np.where(split, 0.0, w) for b, w in zip(back, weight, strict=True)]
    layout = table.index
    repeats = any(values.any() for values in again)
    first_weight = weigh(table.count[:, 0], layout, weight)
    result = []
    for r in range(table.num_devices):

        def both(
            all_units: IntArray, recomputed: IntArray, values: Sequence[FloatArray], r: int = r
        ) -> FloatArray:
            total = weigh(all_units[:, r], layout, values)
            if repeats:
                total += weigh(recomputed[:, r], layout, again)
            return total

        result.append(
            DeviceTimes(
                device=table.device[:, r][layout],
                forward_s=weigh(table.count[:, r], layout, ahead),
                input_s=both(table.count, table.recomputed, back),
                weight_s=weigh(table.count[:, r], layout, weight),
                forward_before_s=weigh(table.before[:, r], layout, ahead),
                backward_before_s=both(table.before, table.recomputed_before, waited),
                forward_after_s=weigh(table.after[:, r], layout, ahead),
                backward_after_s=both(table.after, table.recomputed_after, waited),
                last_weight_s=first_weight,
            )
        )
    return result


def on_device(
    counts: IntArray, layout: IntArray, device: IntArray, values: Sequence[FloatArray]
) -> FloatArray:
    """Sum counts times values over units on one chosen representative of each plan.

    Args:
        counts: ``(num_layouts, num_devices, num_units)``.
        layout: row of each plan, ``(n,)``.
        device: representative of each plan, ``(n,)``.
        values: one array ``(n,)`` per unit.
    """
    total = np.zeros(len(layout))
    for unit, value in enumerate(values):
        column = counts[:, :, unit]
        if column.any():
            total += column[layout, device] * value
    return total
