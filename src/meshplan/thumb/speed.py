"""Speed-up, bubble, balance and efficiency.

References:
    [1] Y. Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline
        Parallelism", section 2.3: bubble of a pipeline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshplan.errors import UserError
from meshplan.thumb.checks import check_numbers, check_times

__all__ = [
    "bubble_fraction",
    "efficiency",
    "ideal_speedup",
    "imbalance",
    "micro_batches_for_bubble",
    "pace",
    "real_speedup",
]


def ideal_speedup(*, num_gpus: int) -> float:
    """Return the speed-up if GPUs never had to talk or wait: ``num_gpus``."""
    check_numbers(counts={"num_gpus": num_gpus})
    return float(num_gpus)


def real_speedup(*, num_gpus: int, compute_time_s: float, communication_time_s: float) -> float:
    """Return the speed-up over one GPU once communication is paid for.

    Equation:
        ``T1 / (T1 / n + Tc)``

    Args:
        num_gpus: GPUs ``n`` that share the computation evenly.
        compute_time_s: time of a step on one GPU ``T1`` [s].
        communication_time_s: communication per step that nothing hides ``Tc`` [s].

    Returns:
        At most ``num_gpus``, and never more than ``T1 / Tc`` however many GPUs are added.
    """
    check_numbers(
        counts={"num_gpus": num_gpus},
        positive={"compute_time_s": compute_time_s},
        not_negative={"communication_time_s": communication_time_s},
    )
    return compute_time_s / (compute_time_s / num_gpus + communication_time_s)


def efficiency(*, compute_time_s: float, communication_time_s: float) -> float:
    """Return the part of the time that is spent computing.

    Equation:
        ``compute / (compute + communication)``

    Args:
        compute_time_s: time that computes [s].
        communication_time_s: time that only communicates [s].
    """
    check_numbers(
        positive={"compute_time_s": compute_time_s},
        not_negative={"communication_time_s": communication_time_s},
    )
    return compute_time_s / (compute_time_s + communication_time_s)


def bubble_fraction(*, pp: int, num_micro_batches: int) -> float:
    """Return the part of a pipeline's time in which a stage has nothing to do [1].

    Equation:
        ``(p - 1) / (m + p - 1)``

    Args:
        pp: stages ``p``.
        num_micro_batches: micro-batches per step ``m``.
    """
    check_numbers(counts={"pp": pp, "num_micro_batches": num_micro_batches})
    return (pp - 1) / (num_micro_batches + pp - 1)


def micro_batches_for_bubble(*, pp: int, max_bubble: float) -> int:
    """Return the fewest micro-batches that keep the bubble at or under a limit.

    Equation:
        ``m = ceil((p - 1) * (1 - b) / b)``

    Args:
        pp: stages ``p``.
        max_bubble: largest acceptable bubble ``b``, a fraction between 0 and 1.
    """
    check_numbers(counts={"pp": pp}, positive={"max_bubble": max_bubble})
    if max_bubble >= 1:
        raise UserError.of("number_not_a_fraction", where="max_bubble", value=max_bubble)
    guess = math.ceil((pp - 1) * (1 - max_bubble) / max_bubble)
    # rounding may put the quotient just over a whole number
    if guess > 1 and bubble_fraction(pp=pp, num_micro_batches=guess - 1) <= max_bubble:
        guess -= 1
    return max(1, guess)


def pace(*, part_times_s: Sequence[float]) -> float:
    """Return the time that all parts take together: the slowest sets the pace [s]."""
    check_times(where="part_times_s", times_s=part_times_s)
    return float(max(part_times_s))


def imbalance(*, part_times_s: Sequence[float]) -> float:
    """Return the part of the time that is lost to waiting for the slowest part.

    Equation:
        ``1 - mean(t) / max(t)``; 0 when all parts are equal

    Args:
        part_times_s: time of each pipeline stage or tensor slice [s].
    """
    slowest_s = pace(part_times_s=part_times_s)
    return 1.0 - math.fsum(part_times_s) / len(part_times_s) / slowest_s
