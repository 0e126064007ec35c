"""Error band of a predicted step time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from meshplan.inputs.profile import Band

__all__ = ["low_high", "memory_low_high"]

FloatArray = npt.NDArray[np.float64]


def low_high(
    band: Band,
    step_s: FloatArray,
    parts: Mapping[str, FloatArray],
    *,
    stall_s: FloatArray | float = 0.0,
) -> tuple[FloatArray, FloatArray]:
    """Return the ends of the 80 % band.

    ``high = step + width`` and ``low = step^2 / (step + width)``: a run is as likely to be so many
    times faster as slower. The width is a sum of shares of the parts, so that a longer part never
    narrows it: the upper end of a closed form stays below that of the simulation.

    Args:
        band: shares.
        step_s: predicted step time [s].
        parts: its parts by name [s].
        stall_s: what nodes that may hold up a pipeline add to the step at the upper end [s].

    Returns:
        ``(low, high)`` [s].
    """
    traffic = parts["tp_comm_s"] + parts["cp_comm_s"] + parts["ep_comm_s"]
    traffic = traffic + parts["pp_comm_s"] + parts["dp_comm_s"]
    width = band.base * step_s + band.communication * traffic
    width = width + band.bubble * parts["bubble_s"] + band.host * parts["other_s"]
    return step_s * (step_s / (step_s + width)), step_s + width + stall_s * (1.0 + band.base)


def memory_low_high(band: Band, peak_bytes: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the ends of the 80 % band of peak memory.

    ``high = peak + share * peak + fixed`` and ``low = peak^2 / high``: small footprints are
    uncertain by constants (contexts, workspaces), large ones by their share.

    Args:
        band: shares.
        peak_bytes: predicted peak [bytes].

    Returns:
        ``(low, high)`` [bytes].
    """
    high = peak_bytes + band.memory_share * peak_bytes + band.memory_fixed_bytes
    return peak_bytes * (peak_bytes / high), high
