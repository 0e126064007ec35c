"""What of the traffic is seen: the part that no computation hides, and what hiding it costs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["exposed", "hidden_behind"]

FloatArray = npt.NDArray[np.float64]


def hidden_behind(
    traffic_s: FloatArray, window_s: FloatArray, *, share: float | FloatArray
) -> FloatArray:
    """Return the part of some traffic that runs beside computation.

    ``min(traffic, share * window)``

    Args:
        traffic_s: time of the traffic alone [s].
        window_s: computation that could run at the same time [s].
        share: share of the window that the framework uses [1].

    Returns:
        Hidden time [s].
    """
    return np.minimum(traffic_s, share * window_s)


def exposed(
    traffic_s: FloatArray,
    window_s: FloatArray,
    *,
    share: float | FloatArray,
    contention: float,
    least: FloatArray | float = 0.0,
) -> FloatArray:
    """Return by how much traffic lengthens the computation that it runs beside.

    ``max(traffic - hidden, least) + contention * hidden``: what is not hidden, and the slowdown
    of the kernels that share compute units and memory with the communication kernels.

    Args:
        traffic_s: time of the traffic alone [s].
        window_s: computation that could run at the same time [s].
        share: share of the window that the framework uses; 0 exposes all [1].
        contention: slowdown of computation while traffic runs beside it [1].
        least: what is exposed in any case, such as the last bucket [s].

    Returns:
        Seconds to add to the computation.
    """
    hidden = hidden_behind(traffic_s, window_s, share=share)
    least = np.minimum(np.where(share > 0, least, 0.0), traffic_s)
    return np.maximum(traffic_s - hidden, least) + contention * hidden
