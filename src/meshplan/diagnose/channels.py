"""Channels: communication with one group by one kind of collective, and the axis it serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from meshplan.diagnose.columns import NO_COLLECTIVE, Collective, RankTrace
from meshplan.diagnose.layout import Layout
from meshplan.diagnose.names import (
    axis_of_kernel,
    axis_of_purpose,
    element_bytes,
    kind_of,
    measure_constant,
)
from meshplan.diagnose.pipeline_group import listed_pipeline, stride_of
from meshplan.diagnose.records import REDUCTIONS, Axis, Basis, CollectiveKind
from meshplan.record import record

__all__ = ["STREAM", "Channel", "Channels", "bus_factor", "channels_of"]

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


STREAM = "stream "
"""How a channel is named whose kernels state no group: by their stream."""


@record
class Channel:
    """One kind of collective with one group.

    Attributes:
        group: name of the group, or ``stream N`` where no name is stated.
        purpose: its description.
        ranks: its ranks; empty when not known.
        size: how many; 0 when not known.
        kind: kind of collective.
        kernel_axis: axis that the kernels serve by nature.
    """

    group: str
    purpose: str
    ranks: tuple[int, ...]
    size: int
    kind: CollectiveKind
    kernel_axis: Axis | None


@record
class Channels:
    """The channels of a rank and the channel of each communication kernel.

    Attributes:
        channels: the channels.
        axes: axis and basis of each channel.
        index: channel of each communication kernel, ``(n,)``.
        message_bytes: size of each call as nccl-tests counts it, NaN where unknown, ``(n,)``.
    """

    channels: tuple[Channel, ...]
    axes: tuple[tuple[Axis, Basis], ...]
    index: IntArray
    message_bytes: FloatArray


def bus_factor(kind: CollectiveKind, size: int) -> float:
    """Bus bytes per message byte, as nccl-tests has them.

    Reference: nccl-tests doc/PERFORMANCE.md: 2(n-1)/n for an all-reduce, (n-1)/n for gather,
    scatter and all-to-all, 1 for broadcast and send.
    """
    if size < 2:
        return 1.0
    if kind == "all_reduce":
        return 2.0 * (size - 1) / size
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return (size - 1) / size
    return 1.0


def channels_of(trace: RankTrace, *, rank: int, layout: Layout | None = None) -> Channels:
    """Sort the communication kernels of a rank by group and kind, and name the axis of each."""
    events = trace.communication
    table = np.column_stack((events.collective, events.name, events.stream))
    rows, inverse = np.unique(table, axis=0, return_inverse=True)
    found: dict[Channel, int] = {}
    of_row = np.zeros(len(rows), dtype=np.int64)
    size_of_row = np.full(len(rows), np.nan)
    for i, (collective, name, stream) in enumerate(rows.tolist()):
        known = trace.collectives[collective] if collective != NO_COLLECTIVE else None
        channel = _channel(trace, known, trace.names[name], stream)
        of_row[i] = found.setdefault(channel, len(found))
        if known is not None:
            size_of_row[i] = _message_bytes(known, channel)
    index = of_row[inverse.ravel()] if len(rows) else np.empty(0, dtype=np.int64)
    channels = _with_pipeline(tuple(found), trace, rank=rank)
    counts = np.bincount(index, minlength=len(channels))
    return Channels(
        channels=channels,
        axes=_axes(channels, counts, trace=trace, rank=rank, layout=layout),
        index=index,
        message_bytes=size_of_row[inverse.ravel()] if len(rows) else np.empty(0),
    )


def _channel(trace: RankTrace, known: Collective | None, kernel: str, stream: int) -> Channel:
    kind: CollectiveKind = "other"
    if known is not None and known.kind and known.kind != "coalesced":
        kind = kind_of(known.kind)
    if kind == "other":
        kind = kind_of(kernel)
    stated = known is not None and (known.group != "" or bool(known.ranks))
    if known is None or not stated:
        group, purpose = f"{STREAM}{stream}", ""
        ranks: tuple[int, ...] = ()
        size = known.group_size if known is not None else 0
        if len(trace.groups) == 1:  # the job has one group, whatever the kernel keeps to itself
            ((name, ranks),) = trace.groups.items()
            group, purpose = name, trace.purposes.get(name, "")
            size = size or len(ranks)
    else:
        group, purpose = known.group, known.purpose or trace.purposes.get(known.group, "")
        ranks = known.ranks or trace.groups.get(known.group, ())
        size = known.group_size or len(ranks)
    return Channel(
        group=group,
        purpose="" if purpose == "undefined" else purpose,
        ranks=ranks,
        size=size,
        kind=kind,
        kernel_axis=axis_of_kernel(kernel),
    )


def _with_pipeline(
    channels: tuple[Channel, ...], trace: RankTrace, *, rank: int
) -> tuple[Channel, ...]:
    """Channels, with the group of the pipeline for sends and receives that state none."""
    bare = [c for c in channels if c.kind == "send_recv" and c.group.startswith(STREAM)]
    if len(bare) != 1 or len(channels) == 1:
        return channels
    world = trace.world_size or 0
    listed = listed_pipeline(trace.groups, trace.purposes, rank=rank, world=world)
    if listed is not None:
        ranks, purpose = trace.groups[listed], trace.purposes.get(listed, "")
        purpose = "" if purpose == "undefined" else purpose
        own = replace(bare[0], group=listed, purpose=purpose, ranks=ranks, size=len(ranks))
    else:
        return channels
    if own in channels:
        return channels
    return tuple(own if c is bare[0] else c for c in channels)


def _message_bytes(known: Collective, channel: Channel) -> float:
    """Size of a call: all ranks' part of a gather and a scatter, one rank's of the others."""
    width = element_bytes(known.dtype)
    if width is None or not (known.in_elements or known.out_elements):
        return np.nan
    size = max(channel.size, 1)
    small, large = sorted((known.in_elements, known.out_elements))
    if channel.kind in ("all_gather", "reduce_scatter"):
        # an older profiler gives the part of one rank on both sides
        return float(width * (large if small < large else large * size))
    return float(width * large)


def _axes(
    channels: Sequence[Channel],
    counts: IntArray,
    *,
    trace: RankTrace,
    rank: int,
    layout: Layout | None,
) -> tuple[tuple[Axis, Basis], ...]:
    world = trace.world_size or (layout.num_ranks if layout else 0)
    named_ranks = [*trace.groups.values(), *(c.ranks for c in channels)]
    least = max((max(ranks) + 1 for ranks in named_ranks if ranks), default=0)
    found: list[tuple[Axis, Basis]] = []
    for channel in channels:
        named = axis_of_purpose(channel.purpose) if channel.purpose else None
        by_plan = layout.axis_of_ranks(channel.ranks, channel.kind) if layout else None
        if named is not None:
            found.append((named, "metadata"))
        elif by_plan is not None:
            found.append((by_plan, "plan"))
        elif channel.kernel_axis is not None:
            found.append((channel.kernel_axis, "kernel"))
        elif (
            layout
            and not channel.ranks
            and (axis := layout.axis_of_size(channel.size, rank, channel.kind))
        ):
            found.append((axis, "plan"))
        elif axis := _axis_of_ranks(channel, channels, counts, world, least=least):
            found.append((axis, "ranks"))
        else:
            found.append(("unknown", "unknown"))
    return tuple(_by_count(channels, counts, found, world, layout))


def _axis_of_ranks(
    channel: Channel,
    channels: Sequence[Channel],
    counts: IntArray,
    world: int,
    *,
    least: int,
) -> Axis | None:
    """Guess the axis from the strides of the ranks, fastest axis first.

    Tensor parallelism is next to each other, the pipeline spans the job, data parallelism lies
    between; a group of the whole job is data parallel when no other group reduces. Where the
    trace does not say how large the job is, it is as large as its groups name ranks (``least``).
    """
    stride, size = stride_of(channel.ranks), len(channel.ranks)
    if size < 2 or not stride:
        return None
    others = [c for c in channels if c.ranks and c.ranks != channel.ranks and len(c.ranks) > 1]
    if channel.kind == "send_recv":
        return "pp" if world and size * stride >= world else ("cp" if others else "pp")
    if channel.kind == "all_to_all":
        return "ep"
    if world and size == world:
        return "dp" if not others else None
    if not world and size == least and not others:
        return "dp"
    if channel.kind not in REDUCTIONS:
        return None
    if stride > 1:
        sends = any(c.ranks == channel.ranks and c.kind == "send_recv" for c in channels)
        return "pp" if sends else "dp"
    return "dp" if _is_hybrid_shard(channel, channels, counts) else "tp"


def _is_hybrid_shard(channel: Channel, channels: Sequence[Channel], counts: IntArray) -> bool:
    """Whether each scatter of this group is followed by a reduction across groups (HSDP)."""

    def total(kind: CollectiveKind, *, same: bool) -> int:
        return sum(
            int(n)
            for c, n in zip(channels, counts, strict=True)
            if c.kind == kind and bool(c.ranks) and (c.ranks == channel.ranks) == same
        )

    scatters, reductions = total("reduce_scatter", same=True), total("all_reduce", same=False)
    apart = max(measure_constant("paired_slack"), measure_constant("paired_calls") * scatters)
    return scatters > 0 and abs(scatters - reductions) <= apart


def _by_count(
    channels: Sequence[Channel],
    counts: IntArray,
    found: list[tuple[Axis, Basis]],
    world: int,
    layout: Layout | None,
) -> list[tuple[Axis, Basis]]:
    """Name what is left by its size, its kind and how often it is called."""
    result = list(found)
    left = [i for i, (axis, _) in enumerate(found) if axis == "unknown"]
    reductions = [i for i in left if channels[i].kind in REDUCTIONS]
    groups = {channels[i].group for i in reductions}
    alone = len({c.group for c in channels if c.kind in REDUCTIONS}) == 1
    per_group = {
        g: sum(int(counts[i]) for i in reductions if channels[i].group == g) for g in groups
    }
    both = layout is not None and layout.plan.tp > 1 and layout.plan.dp * layout.plan.cp > 1
    for i in left:
        channel = channels[i]
        if channel.kind == "all_to_all" and layout is not None and layout.plan.ep > 1:
            result[i] = ("ep", "size")
        elif channel.kind == "send_recv" and layout is not None and layout.plan.pp > 1:
            result[i] = ("pp", "size")
        elif i in reductions and both and len(groups) > 1:
            busiest = max(per_group, key=lambda g: per_group[g])
            result[i] = ("tp" if channel.group == busiest else "dp", "size")
        elif i in reductions and channel.size and channel.size == world and alone:
            result[i] = ("dp", "size")
    return result
