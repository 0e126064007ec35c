"""Traffic of one rank per step, and quantiles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from meshplan.diagnose.records import CollectiveKind, RankMeasures, Traffic
from meshplan.record import record

__all__ = [
    "ChannelKey",
    "Flow",
    "calls_of",
    "channel_of",
    "flows_of_rank",
    "last_calls_us",
    "quantile",
    "weighted_median",
]

ChannelKey: TypeAlias = tuple[str, tuple[int, ...], CollectiveKind]
"""Group, its ranks and the kind of collective, as :class:`Calls` tells channels apart."""


@record
class Flow:
    """Traffic of one rank with one group by one kind of collective, per step.

    Attributes:
        rank: the rank.
        traffic: of one step, for what does not change from step to step.
        count: calls.
        total_us: some call runs [us].
        exposed_us: and nothing computes [us].
        wait_us: part in which other ranks are waited for [us]; 0 when not known.
        transfer_us: the calls without the wait [us].
    """

    rank: int
    traffic: Traffic
    count: float
    total_us: float
    exposed_us: float
    wait_us: float
    transfer_us: float


def channel_of(traffic: Traffic) -> ChannelKey:
    """What tells the channel of some traffic from the others of its rank."""
    return traffic.group, traffic.ranks, traffic.kind


def flows_of_rank(rank: RankMeasures) -> Iterator[Flow]:
    """Means over the steady steps of each channel."""
    found: dict[tuple[object, ...], list[Traffic]] = {}
    for step in rank.steady:
        for traffic in step.traffic:
            key = (traffic.axis, traffic.kind, traffic.group, traffic.ranks)
            found.setdefault(key, []).append(traffic)
    num = len(rank.steady)
    for rows in found.values():
        waited = sum(row.wait_us or 0.0 for row in rows)
        # without sizes there are no classes of size
        moved = sum(size.transfer_us for row in rows for size in row.sizes)
        moved = moved or max(0.0, sum(row.total_us for row in rows) - waited)
        yield Flow(
            rank=rank.rank,
            traffic=rows[-1],
            count=sum(row.count for row in rows) / num,
            total_us=sum(row.total_us for row in rows) / num,
            exposed_us=sum(row.exposed_us for row in rows) / num,
            wait_us=waited / num,
            transfer_us=moved / num,
        )


def calls_of(rank: RankMeasures, flow: Flow) -> npt.NDArray[np.int64]:
    """Indices of the calls of a flow in the first steady step of its rank."""
    calls, step = rank.calls, rank.steady[0].time.window
    key = channel_of(flow.traffic)
    wanted = [i for i, channel in enumerate(calls.channels) if channel == key]
    inside = np.isin(calls.channel, wanted) & (calls.start >= step.start)
    return np.flatnonzero(inside & (calls.start < step.end))


def last_calls_us(rank: RankMeasures | None, flow: Flow, *, num: int) -> float:
    """Time of the last calls of a flow in a step, at least that of a mean one [us].

    In the first steady step, without waiting.
    """
    mean = flow.transfer_us / max(flow.count, 1.0)
    if rank is None or not rank.steady:
        return mean
    calls, own = rank.calls, calls_of(rank, flow)
    if not len(own):
        return mean
    last = own[np.argsort(calls.end[own])][-num:]
    moved = calls.end[last] - calls.start[last] - np.nan_to_num(calls.wait_us[last])
    return max(mean, float(moved.sum()))


def quantile(values: Iterable[float], q: float) -> float:
    """The value below which a share ``q`` of the values lies, one of them."""
    ordered = sorted(values)
    return ordered[int(q * (len(ordered) - 1))]


def weighted_median(pairs: list[tuple[float, float]]) -> float:
    """Median of values with weights; 1 without any."""
    half = sum(weight for _, weight in pairs) / 2.0
    seen = 0.0
    for value, weight in sorted(pairs):
        seen += weight
        if seen >= half:
            return value
    return 1.0
