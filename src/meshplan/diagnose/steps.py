"""The steps of a trace: those that are marked, or those that the optimizer ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np

from meshplan.diagnose.columns import RankTrace, Window
from meshplan.diagnose.names import is_optimizer, measure_constant

__all__ = ["choose_steps", "steps_of", "warm_up"]


def choose_steps(windows: Iterable[Window]) -> tuple[Window, ...]:
    """Steps in order: those of the profiler if it marked any, else those of other annotations.

    An annotation that a tool wrote twice is one step.
    """
    everything = list(windows)
    own = [w for w in everything if w.name.startswith("ProfilerStep")]
    steps = {step.name: step for step in own or everything}
    return tuple(sorted(steps.values(), key=lambda step: step.start))


def steps_of(trace: RankTrace) -> tuple[tuple[Window, ...], bool]:
    """The step windows of a trace, and whether they had to be inferred.

    Without marks a step lasts from the end of one optimizer step to the end of the next, told by
    the names of its kernels; the part of a step before the first one counts when it is as long.
    """
    if trace.steps:
        return trace.steps, False
    ends = _optimizer_ends(trace)
    span = trace.span
    if span is None or len(ends) < 2:
        return (), False
    lengths = np.diff(ends)
    if lengths.max() > measure_constant("step_spread") * lengths.min():
        return (), False  # not the rhythm of a training loop
    edges = [span.start, *ends]
    whole = measure_constant("whole_step") * median(lengths)
    first = 0 if edges[1] - edges[0] >= whole else 1
    windows = tuple(
        Window(name=f"step {i}", start=edges[i], end=edges[i + 1])
        for i in range(first, len(edges) - 1)
    )
    return windows, True


def _optimizer_ends(trace: RankTrace) -> list[float]:
    """End of each burst of optimizer kernels [us]."""
    wanted = [i for i, name in enumerate(trace.names) if is_optimizer(name)]
    chosen = np.isin(trace.compute.name, wanted)
    span = trace.span
    if span is None or not chosen.any():
        return []
    start, end = trace.compute.start[chosen], trace.compute.end[chosen]
    order = np.argsort(start)
    start, end = start[order], np.maximum.accumulate(end[order])
    pause = measure_constant("optimizer_gap") * (span.end - span.start)
    last = np.flatnonzero(np.concatenate((start[1:] - end[:-1] > pause, [True])))
    return [float(t) for t in end[last]]


def warm_up(walls: Sequence[float]) -> tuple[bool, ...]:
    """Which of the first steps are set apart: as long as they are slower than the rest by far.

    Args:
        walls: lengths of the steps in order.
    """
    found = [False] * len(walls)
    excess = 1.0 + measure_constant("warm_up_excess")
    for i in range(len(walls) - 1):
        if walls[i] <= excess * median(walls[i + 1 :]):
            break
        found[i] = True
    return tuple(found)
