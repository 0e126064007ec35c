"""The timeline of a run as JSON: rows of intervals on one clock, few enough to draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshplan.diagnose.records import Lane, RankTimeline, RunMeasures
from meshplan.diagnose.timeline import thin

__all__ = ["timeline_json"]

Json = dict[str, Any]

_MOST_INTERVALS = 200_000
_LEAST_PER_ROW = 200


def timeline_json(run: RunMeasures, *, most: int = _MOST_INTERVALS) -> Json | None:
    """Rows of all ranks; None when no rank has a timeline.

    Times are microseconds since ``origin_us`` on the common clock: what rank ``r`` shows at ``t``
    stands at ``t - clock_offset_us - origin_us``.

    Args:
        run: the run.
        most: intervals in all; rows are thinned alike where there would be more.
    """
    shown = [(r, r.timeline) for r in run.ranks if r.timeline is not None and r.timeline.lanes]
    rows = sum(len(timeline.lanes) for _, timeline in shown)
    if not rows:
        return None
    per_row = max(_LEAST_PER_ROW, most // rows)
    offsets = _offsets(run, [timeline for _, timeline in shown], [r.rank for r, _ in shown])
    starts = [
        float(lane.start[0]) - offset
        for (_, timeline), offset in zip(shown, offsets, strict=True)
        for lane in timeline.lanes
    ]
    origin = min(starts)
    return {
        "origin_us": origin,
        "ranks": [
            {
                "rank": rank.rank,
                "file": rank.file,
                "clock_offset_us": offset,
                "aligned": rank.rank in run.offset_us,
                **_rank_json(timeline, shift=offset + origin, per_row=per_row),
            }
            for (rank, timeline), offset in zip(shown, offsets, strict=True)
        ],
    }


def _offsets(
    run: RunMeasures, timelines: Sequence[RankTimeline], ranks: Sequence[int]
) -> list[float]:
    """What each clock shows more than the common one.

    A rank whose clock could not be compared is put where its first step that the first rank has
    too begins with it, or where its first event is the first of all.
    """
    first = next((i for i, r in enumerate(ranks) if r in run.offset_us), 0)
    base = run.offset_us.get(ranks[first], 0.0)
    begins = {s.name: s.start - base for s in timelines[first].steps}
    start = min(float(lane.start[0]) for lane in timelines[first].lanes) - base
    found = []
    for rank, timeline in zip(ranks, timelines, strict=True):
        if rank in run.offset_us:
            found.append(run.offset_us[rank])
            continue
        common = next((s for s in timeline.steps if s.name in begins), None)
        if common is not None:
            found.append(common.start - begins[common.name])
        else:
            found.append(min(float(lane.start[0]) for lane in timeline.lanes) - start)
    return found


def _rank_json(timeline: RankTimeline, *, shift: float, per_row: int) -> Json:
    return {
        "num_events": timeline.num_events,
        "steps": [
            {"name": s.name, "start_us": s.start - shift, "end_us": s.end - shift}
            for s in timeline.steps
        ],
        "lanes": [_lane_json(thin(lane, most=per_row), shift) for lane in timeline.lanes],
    }


def _lane_json(lane: Lane, shift: float) -> Json:
    """Columns, rounded to what a screen shows of a microsecond."""
    return {
        "name": lane.name,
        "start_us": np.round(lane.start - shift, 2).tolist(),
        "end_us": np.round(lane.end - shift, 2).tolist(),
        "cover": np.round(lane.cover, 3).tolist(),
    }
