"""Exposed waiting of single calls, counted once where several calls wait at the same time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.diagnose.intervals import length, union

__all__ = ["shown_waits"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def shown_waits(
    *, start: FloatArray, wait: FloatArray, exposed: FloatArray, step: IntArray
) -> FloatArray:
    """Part of each call in which the device does nothing but wait for other ranks [us].

    Two streams that wait beside each other lose the time once: the parts of a step add up to the
    time in which any of its calls waits.

    Args:
        start: starts [us], ``(n,)``.
        wait: waits [us], NaN where unknown, ``(n,)``.
        exposed: part of each call without compute beside it [us], ``(n,)``.
        step: step of each call, ``(n,)``.

    Returns:
        Waits, 0 where they are unknown, ``(n,)``.
    """
    shown: FloatArray = np.minimum(np.nan_to_num(wait, nan=0.0), exposed)
    for number in np.unique(step):
        own = step == number
        total = float(shown[own].sum())
        if total > 0:
            joined = length(union(start[own], start[own] + shown[own]))
            shown[own] *= min(1.0, joined / total)
    return shown
