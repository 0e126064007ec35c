"""The steps of a trace: those that are marked, or those that the optimizer ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal, TypeAlias

import numpy as np

from meshplan.diagnose.columns import RankTrace, Window
from meshplan.diagnose.names import is_optimizer, measure_constant

__all__ = ["StepBasis", "choose_steps", "steps_of", "warm_up"]

StepBasis: TypeAlias = Literal["marks", "device", "optimizer", "none"]


def choose_steps(windows: Iterable[Window]) -> tuple[Window, ...]:
    """Steps in order: those of the profiler if it marked any, else those of other annotations.

    An annotation that a tool wrote twice is one step.
    """
    everything = list(windows)
    own = [w for w in everything if w.name.startswith("ProfilerStep")]
    steps = {step.name: step for step in own or everything}
    return tuple(sorted(steps.values(), key=lambda step: step.start))


def steps_of(trace: RankTrace) -> tuple[tuple[Window, ...], StepBasis]:
    """The step windows of a trace, and how they are known.

    Marks stand on the host. Where it runs far ahead of the device, as it may when nothing makes
    it wait, a step lasts on the device from its first kernel to that of the next. Without marks a
    step lasts from the end of one optimizer step to the end of the next, told by the names of its
    kernels; the part of a step before the first one counts when it is as long.
    """
    if trace.steps:
        ahead = _device_steps(trace)
        return (ahead, "device") if ahead else (trace.steps, "marks")
    ends = _optimizer_ends(trace)
    span = trace.span
    if span is None or len(ends) < 2:
        return (), "none"
    lengths = np.diff(ends)
    if lengths.max() > measure_constant("step_spread") * lengths.min():
        return (), "none"  # not the rhythm of a training loop
    edges = [span.start, *ends]
    whole = measure_constant("whole_step") * median(lengths)
    first = 0 if edges[1] - edges[0] >= whole else 1
    windows = tuple(
        Window(name=f"step {i}", start=edges[i], end=edges[i + 1])
        for i in range(first, len(edges) - 1)
    )
    return windows, "optimizer"


def _device_steps(trace: RankTrace) -> tuple[Window, ...]:
    """Steps by the kernels that each launched; empty where the host is not far ahead of them."""
    compute, talk = trace.compute, trace.communication
    starts, ends, ahead = [], [], []
    for step in trace.steps:
        own = (compute.launch >= step.start) & (compute.launch < step.end)
        more = (talk.launch >= step.start) & (talk.launch < step.end)
        if not own.any():
            return ()
        starts.append(float(compute.start[own].min()))
        ends.append(max([float(compute.end[own].max()), *talk.end[more].tolist()]))
        # what it launches starts late and ends after it: late alone may be a wait for data
        late = min(starts[-1] - step.start, ends[-1] - step.end)
        ahead.append(late / (step.end - step.start))
    if median(ahead) < measure_constant("far_ahead") or any(np.diff(starts) <= 0):
        return ()
    edges = [*starts, max(ends)]
    return tuple(
        Window(name=step.name, start=edges[i], end=edges[i + 1])
        for i, step in enumerate(trace.steps)
    )


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
