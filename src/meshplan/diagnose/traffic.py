"""Communication of one rank by channel: time, exposed part, waiting, bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from meshplan.diagnose.channels import Channel, Channels, bus_factor
from meshplan.diagnose.columns import RankTrace, Window
from meshplan.diagnose.idle import exposed_part
from meshplan.diagnose.intervals import Intervals, clip, difference, length, union
from meshplan.diagnose.measure import Sets
from meshplan.diagnose.names import measure_constant
from meshplan.diagnose.records import TRAFFIC_AXES, Axis, SizeClass, Traffic
from meshplan.diagnose.waiting import shown_waits

__all__ = ["Talk", "axis_sets", "exposed_wait", "traffic_of", "with_calls"]

FloatArray = npt.NDArray[np.float64]


class Talk:
    """The communication kernels of a rank, with what holds for the whole trace.

    Attributes:
        channels: channels and the channel of each kernel.
        start: starts [us], ``(n,)``.
        end: ends [us], ``(n,)``.
        name: kernel names as indices, ``(n,)``.
        exposed: part of each without compute beside it [us], ``(n,)``.
        wait: part of each in which other ranks are waited for, NaN where unknown, ``(n,)``.
        sets: when each channel talks.
        exposed_sets: when it talks and nothing computes.
    """

    def __init__(self, trace: RankTrace, channels: Channels, sets: Sets) -> None:
        events = trace.communication
        self.channels = channels
        self.start, self.end, self.name = events.start, events.end, events.name
        self.exposed = exposed_part(sets.compute, events.start, events.end)
        self.wait = _wait_against_fast_calls(channels, events.end - events.start)
        self.sets: list[Intervals] = []
        self.exposed_sets: list[Intervals] = []
        for c in range(len(channels.channels)):
            own = channels.index == c
            talk = union(events.start[own], events.end[own])
            self.sets.append(talk)
            self.exposed_sets.append(difference(talk, sets.compute))


def axis_sets(talk: Talk) -> dict[Axis, Intervals]:
    """When communication of each axis is exposed; a time belongs to one axis only."""
    taken: Intervals = np.empty((0, 2))
    found: dict[Axis, Intervals] = {}
    for axis in TRAFFIC_AXES:
        chosen = [
            s for s, (a, _) in zip(talk.exposed_sets, talk.channels.axes, strict=True) if a == axis
        ]
        if not chosen:
            continue
        own = np.concatenate(chosen)
        both = union(own[:, 0], own[:, 1])
        found[axis] = difference(both, taken)
        all_of = np.concatenate((taken, both))
        taken = union(all_of[:, 0], all_of[:, 1])
    return found


def _wait_against_fast_calls(channels: Channels, duration: FloatArray) -> FloatArray:
    """What each call takes longer than the fast calls of its channel and size."""
    wait = np.full(len(duration), np.nan)
    quantile, fewest = measure_constant("fast_quantile"), measure_constant("fast_calls")
    known = ~np.isnan(channels.message_bytes)
    keys = np.column_stack((channels.index, np.where(known, channels.message_bytes, -1.0)))
    _, inverse, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    inverse = inverse.ravel()
    order = np.argsort(inverse, kind="stable")
    edges = np.concatenate(([0], np.cumsum(counts)))
    for k in np.flatnonzero(counts >= fewest):
        own = order[edges[k] : edges[k + 1]]
        if known[own[0]]:
            wait[own] = np.maximum(duration[own] - np.quantile(duration[own], quantile), 0.0)
    return wait


def exposed_wait(talk: Talk, window: Window) -> float | None:
    """Exposed time of one window in which other ranks are waited for; None when unknown [us]."""
    inside = _starts_in(talk, window) & ~np.isnan(talk.wait)
    if not inside.any():
        return None
    shown = shown_waits(
        start=talk.start[inside],
        wait=talk.wait[inside],
        exposed=talk.exposed[inside],
        step=np.zeros(int(inside.sum()), dtype=np.int64),
    )
    return float(shown.sum())


def _starts_in(talk: Talk, window: Window) -> npt.NDArray[np.bool_]:
    inside: npt.NDArray[np.bool_] = (talk.start >= window.start) & (talk.start < window.end)
    return inside


def traffic_of(talk: Talk, names: Sequence[str], window: Window) -> tuple[Traffic, ...]:
    """Communication in one window, most exposed first."""
    inside = _starts_in(talk, window)
    found = []
    for c, channel in enumerate(talk.channels.channels):
        own = inside & (talk.channels.index == c)
        total = length(clip(talk.sets[c], start=window.start, end=window.end))
        if not own.any() and total <= 0:
            continue
        exposed = length(clip(talk.exposed_sets[c], start=window.start, end=window.end))
        found.append(_traffic(talk, names, channel, c, own, total_us=total, exposed_us=exposed))
    return tuple(sorted(found, key=lambda t: -t.exposed_us))


def _traffic(
    talk: Talk,
    names: Sequence[str],
    channel: Channel,
    number: int,
    own: npt.NDArray[np.bool_],
    *,
    total_us: float,
    exposed_us: float,
) -> Traffic:
    axis, basis = talk.channels.axes[number]
    bare = Traffic(
        axis=axis,
        basis=basis,
        kind=channel.kind,
        group=channel.group,
        purpose=channel.purpose,
        ranks=channel.ranks,
        group_size=channel.size,
        count=int(own.sum()),
        total_us=total_us,
        exposed_us=exposed_us,
        wait_us=None,
        wait_basis="",
        message_bytes=None,
        bus_bytes_per_s=None,
        sizes=(),
        kernels=tuple(names[i] for i in np.unique(talk.name[own])),
    )
    return with_calls(
        bare,
        duration=(talk.end - talk.start)[own],
        wait=talk.wait[own],
        size=talk.channels.message_bytes[own],
        wait_basis="shortest",
    )


def with_calls(
    traffic: Traffic,
    *,
    duration: FloatArray,
    wait: FloatArray,
    size: FloatArray,
    wait_basis: Literal["peers", "shortest"],
) -> Traffic:
    """Fill in what follows from the single calls: waiting, bytes and bandwidth.

    Args:
        traffic: the rest.
        duration: how long each call took [us], ``(n,)``.
        wait: part of it in which other ranks were waited for, NaN where unknown, ``(n,)``.
        size: message of each call [bytes], NaN where unknown, ``(n,)``.
        wait_basis: how the wait is known.
    """
    known, waited = ~np.isnan(size), ~np.isnan(wait)
    transfer = np.maximum(duration - np.where(waited, wait, 0.0), 0.0)
    moved = float(size[known].sum()) if known.any() else None
    seconds = float(transfer[known].sum()) / 1e6
    bandwidth = None
    if moved and seconds > 0 and traffic.group_size > 1:
        bandwidth = moved * bus_factor(traffic.kind, traffic.group_size) / seconds
    return replace(
        traffic,
        wait_us=float(wait[waited].sum()) if waited.any() else None,
        wait_basis=wait_basis if waited.any() else "",
        message_bytes=moved,
        bus_bytes_per_s=bandwidth,
        sizes=_size_classes(size[known], duration[known], transfer[known]),
    )


def _size_classes(
    size: FloatArray, duration: FloatArray, transfer: FloatArray
) -> tuple[SizeClass, ...]:
    """Sum calls by binary order of their size."""
    order = np.floor(np.log2(np.maximum(size, 1.0))).astype(np.int64)
    return tuple(
        SizeClass(
            message_bytes=float(size[order == k].mean()),
            count=int((order == k).sum()),
            total_us=float(duration[order == k].sum()),
            transfer_us=float(transfer[order == k].sum()),
        )
        for k in np.unique(order)
    )
