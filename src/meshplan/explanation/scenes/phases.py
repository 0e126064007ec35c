"""The phases of a pipeline: it fills, turns round, runs, and drains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshplan.cost.schedule.actions import Kind, Slot
from meshplan.explanation.scenes.records import Beat, beat

__all__ = ["phases"]


def phases(
    slots: Sequence[Slot], *, scale: float, until_s: float, told: Mapping[str, object]
) -> tuple[Beat, ...]:
    """Read the phases off a timetable.

    Args:
        slots: all actions.
        scale: seconds of the picture per second of the step.
        until_s: end of the picture [s].
        told: numbers for the words.

    Returns:
        What holds from when on: until the first backward the pipeline fills; until the first
        stage has a gradient only those behind it work; then all of them do, until the last
        forward is over.
    """
    ahead = [s for s in slots if s.kind is Kind.FORWARD]
    back = [s for s in slots if s.kind is not Kind.FORWARD]
    first = min(s.device for s in ahead if s.virtual_stage == 0)
    turns = min(s.start_s for s in back)
    runs = min((s.start_s for s in back if s.device == first), default=turns)
    drains = max(s.end_s for s in ahead)
    moments = [(0.0, "fills"), (turns, "turns"), (runs, "runs"), (drains, "drains")]
    if drains <= turns:  # all forwards are over before the first backward
        moments = [(0.0, "fills"), (turns, "all_back")]
    kept = {round(at * scale, 6): code for at, code in moments if at * scale < until_s}
    return tuple(beat(at, f"pipeline.{code}", **told) for at, code in sorted(kept.items()))
