"""What one rank did, small enough to draw: merged intervals, at most so many a row."""

from __future__ import annotations

import numpy as np

from meshplan.diagnose.columns import Window
from meshplan.diagnose.intervals import Intervals, union
from meshplan.diagnose.measure import Sets
from meshplan.diagnose.records import TRAFFIC_AXES, Lane, RankTimeline
from meshplan.diagnose.traffic import Talk

__all__ = ["lane", "thin", "timeline_of"]


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
    full = np.ones(len(intervals))
    whole = Lane(name=name, start=intervals[:, 0], end=intervals[:, 1], cover=full)
    return thin(whole, most=most)


def thin(lane: Lane, *, most: int) -> Lane:
    """Bridge the shortest gaps of a row until at most ``most`` intervals are left.

    The time that is covered stays the same: it is the length of an interval times its cover.
    """
    if len(lane.start) <= most:
        return lane
    gaps = lane.start[1:] - lane.end[:-1]
    opens = np.zeros(len(lane.start), dtype=np.bool_)
    opens[0] = True
    opens[1:][np.argsort(-gaps, kind="stable")[: most - 1]] = True
    first = np.flatnonzero(opens)
    last = np.concatenate((first[1:] - 1, [len(lane.start) - 1]))
    start, end = lane.start[first], lane.end[last]
    total = np.add.reduceat((lane.end - lane.start) * lane.cover, first)
    return Lane(name=lane.name, start=start, end=end, cover=total / (end - start))
