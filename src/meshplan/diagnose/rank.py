"""Measure one rank: what its trace says of each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from meshplan.diagnose.channels import channels_of
from meshplan.diagnose.columns import DeviceEvents, RankTrace, Window
from meshplan.diagnose.held import Held
from meshplan.diagnose.idle import Launched, idle_of
from meshplan.diagnose.intervals import clip, length
from meshplan.diagnose.layout import Layout
from meshplan.diagnose.measure import Sets, breakdown_in
from meshplan.diagnose.names import measure_constant
from meshplan.diagnose.phases import PhaseSets, phases_of
from meshplan.diagnose.records import (
    Breakdown,
    Calls,
    Idle,
    KernelTotal,
    Note,
    RankBasis,
    RankMeasures,
    RankTimeline,
    StepMeasures,
)
from meshplan.diagnose.steps import steps_of, warm_up
from meshplan.diagnose.streams import streams_of
from meshplan.diagnose.timeline import timeline_of
from meshplan.diagnose.traffic import Talk, axis_sets, exposed_wait, traffic_of

__all__ = ["measure_rank"]


def measure_rank(
    trace: RankTrace,
    *,
    rank: int | None = None,
    rank_basis: RankBasis = "metadata",
    layout: Layout | None = None,
    timeline: bool = True,
) -> RankMeasures:
    """Measure one rank.

    Args:
        trace: its trace.
        rank: its rank; by default as the trace states it, or 0.
        rank_basis: where the rank was taken from.
        layout: process groups of the plan of the run, when it is known.
        timeline: make the timeline too.
    """
    number = rank if rank is not None else (trace.rank or 0)
    notes = _notes(trace)
    span = trace.span
    windows, basis = steps_of(trace)
    if basis == "optimizer":
        notes.append(Note(code="steps_inferred", where=trace.file, numbers={"num": len(windows)}))
    elif basis == "device":
        notes.append(Note(code="host_ahead", where=trace.file))
    elif not windows and span is not None:
        notes.append(Note(code="no_step_marks", where=trace.file))
        windows = (span,)
    sets = Sets.of(trace)
    talk = Talk(trace, channels_of(trace, rank=number, layout=layout), sets)
    held = Held(trace, talk.channels, sets)
    steps = _steps(trace, sets, talk, held, windows) if span is not None else ()
    kept = np.argsort(talk.start, kind="stable")[: int(measure_constant("largest_calls"))]
    notes.extend(_empty_steps(trace, steps))
    return RankMeasures(
        file=trace.file,
        rank=number,
        rank_basis=rank_basis,
        world_size=trace.world_size,
        device=trace.device,
        on_host=trace.on_host,
        with_stacks=trace.with_stacks,
        num_devices=trace.num_devices,
        device_memory_bytes=trace.device_memory_bytes,
        peak_allocated_bytes=trace.peak_allocated_bytes,
        peak_reserved_bytes=trace.peak_reserved_bytes,
        whole=breakdown_in(trace, sets, span) if span is not None else None,
        steps=steps,
        calls=_calls(talk, windows, kept),
        streams=streams_of(trace, sets, held, windows, kept) if span is not None else None,
        timeline=_timeline(trace, sets, talk, windows) if timeline and span is not None else None,
        notes=tuple(notes),
        num_events=trace.num_events,
    )


def _steps(
    trace: RankTrace, sets: Sets, talk: Talk, held: Held, windows: tuple[Window, ...]
) -> tuple[StepMeasures, ...]:
    launched, phases, by_axis = Launched(trace), PhaseSets(trace), axis_sets(talk)
    early = warm_up([window.end - window.start for window in windows])
    return tuple(
        StepMeasures(
            time=breakdown_in(trace, sets, window),
            warm_up=is_early,
            idle=_idle(launched, held, sets, window),
            traffic=traffic_of(talk, trace.names, window),
            exposed_by_axis_us={
                axis: length(clip(own, start=window.start, end=window.end))
                for axis, own in by_axis.items()
            },
            peer_wait_us=exposed_wait(talk, window),
            phases=phases_of(phases, window),
            kernels=_kernels(trace, window),
        )
        for window, is_early in zip(windows, early, strict=True)
    )


def _idle(launched: Launched, held: Held, sets: Sets, window: Window) -> Idle:
    least, most = held.us(window)
    return replace(idle_of(launched, sets, window), held_us=least, held_most_us=most)


def _kernels(trace: RankTrace, window: Window) -> tuple[KernelTotal, ...]:
    """Kernels that take most time, by the events that start in the window."""
    kinds: tuple[tuple[str, DeviceEvents], ...] = (
        ("compute", trace.compute),
        ("communication", trace.communication),
        ("copies", trace.copies),
    )
    found = []
    for kind, events in kinds:
        inside = (events.start >= window.start) & (events.start < window.end)
        names = events.name[inside]
        total = np.bincount(names, weights=(events.end - events.start)[inside])
        count = np.bincount(names)
        for i in np.flatnonzero(count):
            found.append(
                KernelTotal(
                    name=trace.names[i], kind=kind, count=int(count[i]), total_us=float(total[i])
                )
            )
    found.sort(key=lambda kernel: -kernel.total_us)
    return tuple(found[: int(measure_constant("top_kernels"))])


def _calls(talk: Talk, windows: tuple[Window, ...], kept: npt.NDArray[np.int64]) -> Calls:
    start = talk.start[kept]
    step = np.full(len(start), -1, dtype=np.int64)
    for i, window in enumerate(windows):
        step[(start >= window.start) & (start < window.end)] = i
    return Calls(
        start=start,
        end=talk.end[kept],
        exposed_us=talk.exposed[kept],
        wait_us=talk.wait[kept],
        message_bytes=talk.channels.message_bytes[kept],
        step=step,
        channel=talk.channels.index[kept],
        channels=tuple((c.group, c.ranks, c.kind) for c in talk.channels.channels),
        num_left_out=len(talk.start) - len(kept),
    )


def _timeline(
    trace: RankTrace, sets: Sets, talk: Talk, windows: tuple[Window, ...]
) -> RankTimeline:
    events = (trace.compute, trace.communication, trace.copies)
    return timeline_of(
        sets,
        talk,
        windows,
        num_events=sum(len(e) for e in events),
        most=int(measure_constant("timeline_intervals")),
    )


def _notes(trace: RankTrace) -> list[Note]:
    """What is missing or odd in the trace as a whole."""
    found: list[Note] = []

    def note(code: str, **numbers: float) -> None:
        found.append(Note(code=code, where=trace.file, numbers=numbers))

    if not trace.complete:
        note("truncated", num_events=trace.num_events)
    if trace.num_unreadable:
        note("unreadable_events", num=trace.num_unreadable)
    if trace.num_bad_times:
        note("bad_times", num=trace.num_bad_times)
    if trace.span is None:
        note("no_device_events", num_events=trace.num_events)
    elif trace.on_host:
        note("host_only")
    if trace.num_used > 1:
        note("several_devices", num=trace.num_used)
    kernels = (trace.compute, trace.communication)
    total = sum(len(events) for events in kernels)
    unlaunched = sum(int(np.isnan(events.launch).sum()) for events in kernels)
    if total and unlaunched and not trace.on_host:
        note("no_launch", num=unlaunched, num_kernels=total)
    if not trace.on_host and trace.num_used == 1:
        num = _num_overlapping(kernels)
        if num > measure_constant("overlapping_share") * total:
            note("overlapping_kernels", num=num, num_kernels=total)
    bare = int((trace.communication.collective < 0).sum())
    if bare:
        note("no_collective_metadata", num=bare, num_kernels=len(trace.communication))
    return found


def _num_overlapping(kernels: Sequence[DeviceEvents]) -> int:
    """Kernels that start before the one ahead of them in their stream is over."""
    stream, start, end = (
        np.concatenate([getattr(events, name) for events in kernels])
        for name in ("stream", "start", "end")
    )
    order = np.lexsort((start, stream))
    stream, start, end = stream[order], start[order], end[order]
    ahead = end[:-1] - measure_constant("clock_step_us")
    return int(((stream[1:] == stream[:-1]) & (start[1:] < ahead)).sum())


def _empty_steps(trace: RankTrace, steps: tuple[StepMeasures, ...]) -> list[Note]:
    empty = sum(_is_empty(step.time) for step in steps)
    if not empty:
        return []
    return [Note(code="empty_steps", where=trace.file, numbers={"num": empty})]


def _is_empty(time: Breakdown) -> bool:
    return time.compute_us == 0 and time.communication_us == 0
