"""A quick lower bound of the step time: what one device of each pipeline must do and wait for.

The closed form of :mod:`meshplan.cost.step` looks at every device that can be the slowest, and at
all that follows the pipeline. This one looks at the device that probably is, and at nothing else: a
fraction of the work, a few percent below. A search needs no more for most of its plans.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.cost.schedule.bound import pipeline_bound
from meshplan.cost.schedule.layout import stage_table
from meshplan.cost.stage_sum import device_times
from meshplan.cost.timed import Timed
from meshplan.cost.unit_time import Units

__all__ = ["least_high"]

FloatArray = npt.NDArray[np.float64]

_ROUNDING = 1e-9  # relative; the closed form adds the same times up in another order


def least_high(timed: Timed) -> FloatArray:
    """Bound the upper end of the 80 % band of the step time from below.

    Args:
        timed: legal plans of one profile.

    Returns:
        Seconds, never above the upper end of the closed form, ``(num_plans,)``.
    """
    table = stage_table(timed.scenario.model, timed.grid)
    table = table.only(np.argmax(table.count @ _typical(timed.units), axis=1))
    shape = timed.shape
    (device,) = device_times(table, timed.units, split=shape.splits)
    pipeline = pipeline_bound(shape, device)
    step = pipeline + timed.host_s(pipeline)
    return step * ((1.0 + timed.profile.band.base) * (1.0 - _ROUNDING))


def _typical(units: Units) -> FloatArray:
    """Time of each unit in the mean over all plans, which tells the busiest device of a layout."""
    return np.array([float(np.mean(u.ahead_s + u.back_s + u.weight_s)) for u in units.distinct])
