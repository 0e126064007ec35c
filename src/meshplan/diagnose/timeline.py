"""What one rank did, small enough to draw: merged intervals, at most so many a row."""

from __future__ import annotations

import numpy as np

from meshplan.diagnose.columns import Window
from meshplan.diagnose.intervals import Intervals, union
from meshplan.diagnose.measure import Sets
from meshplan.diagnose.records import TRAFFIC_AXES, Lane, RankTimeline
from meshplan.diagnose.traffic import Talk

__all__ = ["lane", "timeline_of"]


def timeline_of(
    sets: Sets, talk: Talk, steps: tuple[Window, ...], *, num_events: int, most: int
) -> RankTimeline:
    """The timeline of a rank.

    Args:
        sets: when it computes and copies.
        talk: its communication.
        steps: step windows.
        num_events: device events that it stands for.
        most: intervals of a row.
    """
    lanes = [lane("compute", sets.compute, most=most)]
    for axis in TRAFFIC_AXES:
        own = [s for s, (a, _) in zip(talk.sets, talk.channels.axes, strict=True) if a == axis]
        if own:
            every = np.concatenate(own)
            lanes.append(lane(axis, union(every[:, 0], every[:, 1]), most=most))
    lanes.append(lane("copies", sets.copies, most=most))
    return RankTimeline(
        lanes=tuple(found for found in lanes if len(found.start)),
        steps=steps,
        num_events=num_events,
    )


def lane(name: str, intervals: Intervals, *, most: int) -> Lane:
    """A row of at most ``most`` intervals: the shortest gaps are bridged, and nothing is lost.

    Args:
        name: of the row.
        intervals: an interval set.
        most: intervals that may stay.
    """
    if not len(intervals):
        return Lane(name=name, start=np.empty(0), end=np.empty(0), cover=np.empty(0))
    opens = np.ones(len(intervals), dtype=np.bool_)
    if len(intervals) > most:
        gaps = intervals[1:, 0] - intervals[:-1, 1]
        opens[1:] = False
        opens[1:][np.argsort(-gaps, kind="stable")[: most - 1]] = True
    first = np.flatnonzero(opens)
    last = np.concatenate((first[1:] - 1, [len(intervals) - 1]))
    start, end = intervals[first, 0], intervals[last, 1]
    total = np.add.reduceat(intervals[:, 1] - intervals[:, 0], first)
    return Lane(name=name, start=start, end=end, cover=total / (end - start))
