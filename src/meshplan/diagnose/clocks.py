"""Bring the clocks of several ranks together, and say who waits for whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meshplan.diagnose.match import Matched
from meshplan.diagnose.names import measure_constant
from meshplan.diagnose.records import RankMeasures, StepSkew
from meshplan.diagnose.waiting import shown_waits

__all__ = ["clock_offsets", "skews", "waits"]

FloatArray = npt.NDArray[np.float64]


def clock_offsets(num_ranks: int, matched: Sequence[Matched]) -> dict[int, float]:
    r"""Estimate what each clock shows more than the clock of the first rank of its set.

    A collective ends at one time on all its members, so that the ends :math:`e_{rk}` of call
    :math:`k` on the members :math:`r` differ by their clocks alone:

    .. math:: e_{rk} = t_k + o_r

    The offsets are the least-squares answer over all groups, each with the median over its calls.

    Args:
        num_ranks: ranks of the run.
        matched: collectives that ranks share.

    Returns:
        Offset by index of rank [us]; ranks that share nothing have none.
    """
    useful = [m for m in matched if m.end.shape[1] >= measure_constant("fewest_matches")]
    if not useful:
        return {}
    rows, target, weight = [], [], []
    for g, one in enumerate(useful):
        apart = one.end - one.end.mean(axis=0)
        centre = np.median(apart, axis=1)
        around = np.median(np.abs(apart - centre[:, None]), axis=1)
        for r, value, width in zip(one.ranks, centre, around, strict=True):
            rows.append((r, num_ranks + g))
            target.append(float(value))
            weight.append(np.sqrt(one.end.shape[1]) / (1.0 + float(width)))
    system = np.zeros((len(rows), num_ranks + len(useful)))
    for i, (r, g) in enumerate(rows):
        system[i, r], system[i, g] = weight[i], -weight[i]
    answer = np.linalg.lstsq(system, np.array(target) * weight, rcond=None)[0]
    offsets = {}
    for members in _connected(useful):
        first = min(members)
        for r in members:
            offsets[r] = float(answer[r] - answer[first])
    return offsets


def _connected(matched: Sequence[Matched]) -> list[set[int]]:
    """Sets of ranks that are linked by shared collectives."""
    sets: list[set[int]] = []
    for one in matched:
        joined = set(one.ranks)
        apart = [s for s in sets if not s & joined]
        for s in sets:
            if s & joined:
                joined |= s
        sets = [*apart, joined]
    return sets


def waits(
    ranks: Sequence[RankMeasures], matched: Sequence[Matched], offsets: dict[int, float]
) -> list[FloatArray]:
    """Part of each call in which other ranks were waited for [us].

    Returns:
        By rank, shape of its calls; NaN where the call was not matched.
    """
    found = [np.full(len(rank.calls), np.nan) for rank in ranks]
    for one in matched:
        wait = _wait(one, offsets)
        if wait is not None:
            for i, own, value in zip(one.ranks, one.calls, wait, strict=True):
                found[i][own] = value
    return found


def _wait(one: Matched, offsets: dict[int, float]) -> FloatArray | None:
    """How long each member waits in each call, ``(num_ranks, n)`` [us]."""
    if any(r not in offsets for r in one.ranks):
        return None
    arrival = one.start - np.array([offsets[r] for r in one.ranks])[:, None]
    wait: FloatArray = np.clip(arrival.max(axis=0) - arrival, 0.0, one.end - one.start)
    return wait


def skews(
    ranks: Sequence[RankMeasures],
    matched: Sequence[Matched],
    offsets: dict[int, float],
    wait_us: Sequence[FloatArray],
) -> tuple[StepSkew, ...]:
    """Waiting of each rank in each step, and who caused it.

    A rank that is waited for may itself have waited elsewhere before, so the slowest is the one
    that causes most beyond what it waits.
    """
    waited: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    caused: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    shown_of = [_shown(rank, wait) for rank, wait in zip(ranks, wait_us, strict=True)]
    for one in matched:
        wait = _wait(one, offsets)
        if wait is None:
            continue
        shown = np.stack([shown_of[i][c] for i, c in zip(one.ranks, one.calls, strict=True)])
        last = wait.argmin(axis=0)
        others = shown.sum(axis=0) - shown[last, np.arange(shown.shape[1])]
        mean = others / (len(one.ranks) - 1)
        for k, name in enumerate(one.step):
            caused[name][one.ranks[last[k]]] += float(mean[k])
            for r, value in zip(one.ranks, shown[:, k], strict=True):
                waited[name][r] += float(value)
    return tuple(_skew(ranks, name, waited[name], caused[name]) for name in waited)


def _shown(rank: RankMeasures, wait: FloatArray) -> FloatArray:
    calls = rank.calls
    return shown_waits(start=calls.start, wait=wait, exposed=calls.exposed_us, step=calls.step)


def _skew(
    ranks: Sequence[RankMeasures], name: str, waited: dict[int, float], caused: dict[int, float]
) -> StepSkew:
    steps = {i: step for i in waited for step in ranks[i].steps if step.name == name}
    wall = max(step.time.wall_us for step in steps.values())
    net = {i: caused.get(i, 0.0) - waited[i] for i in waited}
    slowest = max(net, key=lambda i: net[i])
    found = net[slowest] > measure_constant("slow_excess") * wall
    return StepSkew(
        name=name,
        compute_us={ranks[i].rank: step.time.compute_us for i, step in steps.items()},
        wait_us={ranks[i].rank: value for i, value in waited.items()},
        caused_us={ranks[i].rank: caused.get(i, 0.0) for i in waited},
        slowest=ranks[slowest].rank if found else None,
    )
