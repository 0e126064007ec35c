"""The phases of a pipeline: it fills, turns round, runs, and drains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshplan.cost.schedule.actions import Kind, Slot
from meshplan.explanation.scenes.records import Beat, beat

__all__ = ["phases"]

_DIGITS = 9
"""Of a second: what ends and what begins at a moment differ in the last bit."""


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
        forward is over. With it goes how many forwards' activations the first stage and that of
        the loss hold at most.
    """
    ahead = [s for s in slots if s.kind is Kind.FORWARD]
    back = sorted((s for s in slots if s.kind is not Kind.FORWARD), key=lambda s: s.start_s)
    first = min(s.device for s in ahead if s.virtual_stage == 0)
    turns = back[0].start_s
    runs = min((s.start_s for s in back if s.device == first), default=turns)
    drains = max(s.end_s for s in ahead)
    moments = [(0.0, "fills"), (turns, "turns"), (runs, "runs"), (drains, "drains")]
    if round(drains - turns, _DIGITS) <= 0.0:  # all forwards are over before the first backward
        moments = [(0.0, "fills"), (turns, "all_back")]
    told = {
        **told,
        "held": _most_held(slots, first),
        "held_last": _most_held(slots, back[0].device),
    }
    kept = {round(at * scale, 6): code for at, code in moments if at * scale < until_s}
    return tuple(beat(at, f"pipeline.{code}", **told) for at, code in sorted(kept.items()))


def _most_held(slots: Sequence[Slot], device: int) -> int:
    """Most forwards of a device whose backward is not over: each keeps its activations."""
    own = [s for s in slots if s.device == device and s.kind is not Kind.BACKWARD_WEIGHT]
    moves = [
        (round(s.start_s, _DIGITS), 1) if s.kind is Kind.FORWARD else (round(s.end_s, _DIGITS), -1)
        for s in own
    ]
    held = most = 0
    for _, step in sorted(moves):  # what ends at a moment makes room for what begins then
        held += step
        most = max(most, held)
    return most
