"""The timeline of a run as JSON: rows of intervals on one clock, few enough to draw."""

from __future__ import annotations

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
    shown = [(rank, rank.timeline) for rank in run.ranks if rank.timeline is not None]
    rows = sum(len(timeline.lanes) for _, timeline in shown)
    if not rows:
        return None
    per_row = max(_LEAST_PER_ROW, most // rows)
    offsets = [run.offset_us.get(rank.rank, 0.0) for rank, _ in shown]
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
