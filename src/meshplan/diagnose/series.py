"""Columns that stand for a rank when its trace is gone: its collectives, and what to draw."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from meshplan.diagnose.columns import Window
from meshplan.record import record

__all__ = ["REDUCTIONS", "Calls", "CollectiveKind", "Lane", "RankTimeline", "Streams"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

CollectiveKind: TypeAlias = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "send_recv",
    "broadcast",
    "barrier",
    "other",
]
REDUCTIONS: tuple[CollectiveKind, ...] = ("all_reduce", "all_gather", "reduce_scatter")
"""What groups that split tensors, states or batches talk by."""


@record
class Calls:
    """Communication kernels of one rank in order of time, to be matched with other ranks.

    Attributes:
        start: starts [us], ``(n,)``.
        end: ends [us], ``(n,)``.
        exposed_us: part of each during which no compute kernel runs [us], ``(n,)``.
        wait_us: part of each in which other ranks are waited for, NaN where unknown, ``(n,)``.
        message_bytes: size of each as nccl-tests counts it, NaN where unknown, ``(n,)``.
        step: index into ``RankMeasures.steps``, -1 outside of all, ``(n,)``.
        channel: index into ``channels``, ``(n,)``.
        channels: distinct pairs of group and kind, as ``(group, ranks, kind)``.
        num_left_out: kernels beyond the number that is kept.
    """

    start: FloatArray
    end: FloatArray
    exposed_us: FloatArray
    wait_us: FloatArray
    message_bytes: FloatArray
    step: IntArray
    channel: IntArray
    channels: tuple[tuple[str, tuple[int, ...], CollectiveKind], ...]
    num_left_out: int = 0

    def __len__(self) -> int:
        return len(self.start)


@record
class Streams:
    """What the calls of a rank wait for, and what waits for them.

    Attributes:
        stream: stream of each call, ``(n,)`` as in :class:`Calls`.
        ready_us: when the compute that was launched before each call was over, so that its data
            was there [us]; NaN where launches are not known, ``(n,)``.
        gaps: times without compute in which some call ends, and which nothing but calls explains
            [us], ``(m, 2)``.
        resumes_us: compute before the end of each gap that ends with a call [us], NaN of others,
            ``(m,)``.
        launch: launches of the calls [us]; NaN where unknown, ``(n,)``.
        ahead_us: compute that was launched before each call [us], ``(n,)``.
        work_us: compute before the start and before the end of each step [us], ``(steps, 2)``.
        closing_us: the same before the first kernel of the optimizer in each step; before its end
            where there is none, ``(steps,)``.
    """

    stream: IntArray
    ready_us: FloatArray
    gaps: FloatArray
    resumes_us: FloatArray
    launch: FloatArray
    ahead_us: FloatArray
    work_us: FloatArray
    closing_us: FloatArray


@record
class Lane:
    """One row of a timeline: intervals of one kind of work.

    Attributes:
        name: ``compute``, ``copies``, or the axis of communication.
        start: starts [us on the clock of the rank], ``(n,)``.
        end: ends, ``(n,)``.
        cover: part of each interval in which the work really runs: 1 unless short gaps were
            bridged to bring the number of intervals down, ``(n,)``.
    """

    name: str
    start: FloatArray
    end: FloatArray
    cover: FloatArray


@record
class RankTimeline:
    """What one rank did, small enough to draw.

    Attributes:
        lanes: rows, top first.
        steps: step windows.
        num_events: device events that it stands for.
    """

    lanes: tuple[Lane, ...]
    steps: tuple[Window, ...]
    num_events: int
