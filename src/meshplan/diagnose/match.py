"""Match the collectives of several ranks: the n-th call of a group in a step is one collective."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from meshplan.diagnose.layout import Layout
from meshplan.diagnose.names import measure_constant
from meshplan.diagnose.records import Axis, Calls, CollectiveKind, RankMeasures
from meshplan.record import record

__all__ = ["Matched", "match"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_TOGETHER: frozenset[CollectiveKind] = frozenset(
    ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
)
"""Collectives that no member can leave before all have come."""


@record
class Matched:
    """The calls of one channel that were found on several ranks.

    Attributes:
        ranks: the ranks, as indices into the ranks of the run.
        kind: kind of collective.
        calls: index of each call into ``RankMeasures.calls``, ``(num_ranks, n)``.
        start: starts [us on each rank's clock], ``(num_ranks, n)``.
        end: ends [us on each rank's clock], ``(num_ranks, n)``.
        step: step of each call by name.
    """

    ranks: tuple[int, ...]
    kind: CollectiveKind
    calls: IntArray
    start: FloatArray
    end: FloatArray
    step: tuple[str, ...]


def match(ranks: Sequence[RankMeasures], layout: Layout | None = None) -> list[Matched]:
    """Find the collectives that ranks share.

    Groups are told by their ranks; where no ranks are stated, by the plan, and else by time:
    calls of one collective end together on all its members, whatever their clocks show.
    """
    shared: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
    loose: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
    for i, rank in enumerate(ranks):
        axes = _axis_by_channel(rank)
        for c, (group, members, kind) in enumerate(rank.calls.channels):
            if kind not in _TOGETHER and not (kind == "send_recv" and len(members) == 2):
                continue
            known = members or _by_plan(layout, axes.get((group, kind)), rank.rank)
            if known:
                shared[group if members else "", known, kind].append((i, c))
            else:
                loose[group, kind].append((i, c))
    found = []
    for key, members_of in shared.items():
        found.extend(_matched(ranks, members_of, key[-1], by_time=False))  # type: ignore[arg-type]
    for key, members_of in loose.items():
        found.extend(_matched(ranks, members_of, key[-1], by_time=True))  # type: ignore[arg-type]
    return found


def _axis_by_channel(rank: RankMeasures) -> Mapping[tuple[str, CollectiveKind], Axis]:
    return {(t.group, t.kind): t.axis for step in rank.steps for t in step.traffic}


def _by_plan(layout: Layout | None, axis: Axis | None, rank: int) -> tuple[int, ...]:
    return layout.ranks_of_axis(axis, rank) if layout and axis else ()


def _matched(
    ranks: Sequence[RankMeasures],
    members: list[tuple[int, int]],
    kind: CollectiveKind,
    *,
    by_time: bool,
) -> list[Matched]:
    """Match the calls of one channel, step by step where the ranks called equally often."""
    if len(members) < 2:
        return []
    by_step: dict[str, list[tuple[int, IntArray]]] = defaultdict(list)
    for i, channel in members:
        calls = ranks[i].calls
        for name, own in _by_step(ranks[i], calls, channel):
            by_step[name].append((i, own))
    parts: dict[tuple[int, ...], list[tuple[str, list[IntArray]]]] = defaultdict(list)
    for name, entries in by_step.items():
        by_count: dict[int, list[tuple[int, IntArray]]] = defaultdict(list)
        for entry in entries:
            by_count[len(entry[1])].append(entry)
        most = max(by_count.values(), key=len)
        if len(most) > 1 and len(most[0][1]):
            parts[tuple(i for i, _ in most)].append((name, [own for _, own in most]))
    found = []
    for chosen, entries_of in parts.items():
        calls_of = np.concatenate([np.stack(own) for _, own in entries_of], axis=1)
        rows = list(zip(chosen, calls_of, strict=True))
        one = Matched(
            ranks=chosen,
            kind=kind,
            calls=calls_of,
            start=np.stack([ranks[i].calls.start[c] for i, c in rows]),
            end=np.stack([ranks[i].calls.end[c] for i, c in rows]),
            step=tuple(name for name, own in entries_of for _ in range(len(own[0]))),
        )
        found.extend(_split_by_time(one) if by_time else [one])
    return found


def _by_step(rank: RankMeasures, calls: Calls, channel: int) -> list[tuple[str, IntArray]]:
    """Calls of a channel by step, those outside of all steps left out."""
    own = np.flatnonzero(calls.channel == channel)
    return [(step.name, own[calls.step[own] == s]) for s, step in enumerate(rank.steps)]


def _split_by_time(one: Matched) -> list[Matched]:
    """Split ranks that call alike into those whose calls end together."""
    duration = float(np.median(one.end - one.start))
    tolerance = max(
        measure_constant("end_tolerance_us"), measure_constant("end_tolerance_share") * duration
    )
    if one.end.shape[1] < measure_constant("fewest_matches"):
        return []
    left = list(range(len(one.ranks)))
    found = []
    while left:
        apart = one.end[left] - one.end[left[0]]
        spread = np.median(np.abs(apart - np.median(apart, axis=1, keepdims=True)), axis=1)
        group = [r for r, s in zip(left, spread, strict=True) if s <= tolerance]
        left = [r for r in left if r not in group]
        if len(group) > 1:
            found.append(
                Matched(
                    ranks=tuple(one.ranks[r] for r in group),
                    kind=one.kind,
                    calls=one.calls[group],
                    start=one.start[group],
                    end=one.end[group],
                    step=one.step,
                )
            )
    return found
