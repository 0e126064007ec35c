"""What the memory model answers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshplan.record import record

__all__ = ["Event", "MemoryGrid", "StageMemory", "Term", "Verdict"]

FloatArray = npt.NDArray[np.float64]


class Event(IntEnum):
    """Moments of a step at which memory can peak."""

    FORWARD = 0
    LOSS_FORWARD = 1
    LOSS_BACKWARD = 2
    HEAD_BACKWARD = 3
    BACKWARD = 4
    BACKWARD_END = 5
    REDUCTION = 6
    OPTIMIZER = 7
    LOADING = 8


class Verdict(IntEnum):
    """Whether a plan fits.

    ``FITS``: also with the stated allowances. ``TIGHT``: only if fragmentation and imbalance stay
    below them. ``OOM``: what is certain to be allocated does not fit, on the device or the host.
    """

    FITS = 0
    TIGHT = 1
    OOM = 2


@record
class MemoryGrid:
    """Memory of many plans; arrays of shape ``(num_plans,)``.

    Attributes:
        peak_bytes: the most that the worst stage holds, with context and allowances [bytes].
        allocated_bytes: the most that the framework's allocator hands out on the worst stage,
            as ``torch.cuda.max_memory_allocated`` counts it [bytes].
        reserved_bytes: the same with the fragmentation allowance, as ``max_memory_reserved``
            counts it [bytes].
        required_bytes: ``allocated_bytes`` and the device context: without allowances [bytes].
        worst_stage: pipeline device with the highest peak.
        host_bytes: host memory that one host needs for what is offloaded [bytes].
        verdict: codes of :class:`Verdict`.
        usable_bytes: what a process can use on the device [bytes].
    """

    peak_bytes: FloatArray
    allocated_bytes: FloatArray
    reserved_bytes: FloatArray
    required_bytes: FloatArray
    worst_stage: npt.NDArray[np.int64]
    host_bytes: FloatArray
    verdict: npt.NDArray[np.int64]
    usable_bytes: float


class Term(NamedTuple):
    """One line of a breakdown: a tuple, since an answer holds thousands.

    Attributes:
        code: key of the sentence ``memory.<code>`` in the catalogues.
        num_bytes: size [bytes].
        numbers: what the formula of the line was filled with.
        allowance: the line is an allowance and not certain to be used.
    """

    code: str
    num_bytes: float
    numbers: tuple[tuple[str, float], ...] = ()
    allowance: bool = False


@record
class StageMemory:
    """Memory of one pipeline device.

    Attributes:
        stage: index of the device in the pipeline.
        num_layers: blocks it holds.
        peak_event: the event with the highest total.
        terms: what is alive at each event, or at the peak event alone; the lines of an event add
            up to its total.
        totals: of each event [bytes].
        host_bytes: host memory that this device needs for what is offloaded [bytes].
    """

    stage: int
    num_layers: int
    peak_event: Event
    terms: tuple[tuple[Event, tuple[Term, ...]], ...]
    totals: Mapping[Event, float]
    host_bytes: float

    def event_bytes(self, event: Event) -> float:
        """Total of one event [bytes]."""
        return self.totals[event]

    def line(self, event: Event, code: str) -> float:
        """Size of one line of an event, 0 where it does not occur [bytes]."""
        return sum(term.num_bytes for term in dict(self.terms)[event] if term.code == code)

    @property
    def peak_bytes(self) -> float:
        """Total of the peak event [bytes]."""
        return self.event_bytes(self.peak_event)

    @property
    def peak_terms(self) -> tuple[Term, ...]:
        """Lines of the peak event."""
        return dict(self.terms)[self.peak_event]
