"""How far a search is, for whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

__all__ = ["Progress", "each", "untold", "within"]

Progress = Callable[[float], None]
"""Told the share that is done, from 0 to 1; it never goes back."""


def untold(share: float) -> None:
    """Nobody asks how far it is."""


def within(progress: Progress, first: float, last: float) -> Progress:
    """The progress of a step that takes the whole from one share to another."""
    return lambda share: progress(first + share * (last - first))


def each(sizes: Sequence[int], progress: Progress) -> Iterator[tuple[int, Progress]]:
    """Items one after another, with the progress of each."""
    for place, size in enumerate(sizes):
        yield size, within(progress, place / len(sizes), (place + 1) / len(sizes))
