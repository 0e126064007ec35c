"""A quick lower bound of the step time: what one device of each pipeline must do and wait for.

The closed form of :mod:`meshplan.cost.step` looks at every device that can be the slowest, and at
all that follows the pipeline. This one looks at the device that probably is, and at nothing else: a
fraction of the work, a few percent below. A search needs no more for most of its plans.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.cost.schedule.bound import pipeline_bound
from meshplan.cost.schedule.layout import StageTable
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
    table, shape = _busiest(timed.table, timed.units), timed.shape
    pipeline: FloatArray = pipeline_bound(
        shape, device_times(table, timed.units, split=shape.splits)
    )[0]
    step = timed.as_measured(pipeline + timed.host_s(pipeline))
    return step * ((1.0 + timed.profile.band.base) * (1.0 - _ROUNDING))


def _busiest(table: StageTable, units: Units) -> StageTable:
    """The table with the device of each layout that has the most to do in the mean over all plans.

    Which one that is must not depend on the plans that are asked about, but on all of the grid.
    """
    ahead, back, weight = (units.of_distinct(n) for n in ("ahead_s", "back_s", "weight_s"))
    work = np.zeros(table.device.shape)
    for count, *times in zip(table.count, ahead, back, weight, strict=True):
        work += count * float(np.mean(times[0] + times[1] + times[2]))
    return table.only(work.argmax(axis=0))
