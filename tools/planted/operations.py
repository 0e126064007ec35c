"""Operations of a program: compute, collectives, waits, calls of the allocator."""

from __future__ import annotations

from dataclasses import dataclass

from meshplan.space.placement import AxisName
from planted.kernels import Kernel

__all__ = [
    "STREAMS",
    "Blank",
    "Choices",
    "Operation",
    "Program",
    "Stall",
    "Talk",
    "Wait",
    "Work",
    "with_stalls",
]

# The communicator of each axis has a stream of its own, as in every framework.
STREAMS = {"compute": 7, "tp": 16, "cp": 20, "ep": 24, "dp": 28, "send": 32, "recv": 36, "copy": 40}


@dataclass(frozen=True, slots=True)
class Work:
    """Compute kernels in a row.

    Attributes:
        kernels: in order.
        phase: ``forward``, ``backward``, ``recompute`` or ``optimizer``.
    """

    kernels: tuple[Kernel, ...]
    phase: str


@dataclass(frozen=True, slots=True)
class Talk:
    """One collective, or one end of a send.

    Attributes:
        axis: ``tp``, ``cp``, ``ep``, ``dp``, ``edp`` or ``pp``.
        group: name of the axis in :mod:`meshplan.space.placement`.
        kind: as the profiler names it.
        seconds: time while data moves.
        elements: of the buffer, in the convention of nccl-tests.
        dtype: element type.
        handle: what a later :class:`Wait` names; 0 when compute waits at once.
        key: tells sends apart: boundary, direction and micro-batch.
    """

    axis: str
    group: AxisName
    kind: str
    seconds: float
    elements: int
    dtype: str = "BFloat16"
    handle: int = 0
    key: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """Compute waits for a talk."""

    handle: int


@dataclass(frozen=True, slots=True)
class Stall:
    """The allocator gives memory back and asks again: the host waits for the device, then longer.

    Attributes:
        seconds: time of the calls.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Blank:
    """The device is held up by something that no profiler records, as a copy by another process.

    Attributes:
        seconds: how long.
    """

    seconds: float


Operation = Work | Talk | Wait | Stall | Blank
Program = tuple[Operation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a plan leaves open, and what a fault changes about the program.

    Attributes:
        overlap_gradients: gradients are reduced during the last backward pass, not after it.
        tp_inside_node: tensor-parallel traffic is priced as if its groups sat inside a node.
        free_shards: ZeRO-3 traffic takes no time.
        no_recompute: nothing is computed again.
        stall_s: time of one retry of the allocator; 0 for none.
        stalls: retries per step.
        blank_s: time of what holds the device up once; 0 for nothing.
        blanks: how often it does in a step.
    """

    overlap_gradients: bool = True
    tp_inside_node: bool = False
    free_shards: bool = False
    no_recompute: bool = False
    stall_s: float = 0.0
    stalls: int = 0
    blank_s: float = 0.0
    blanks: int = 0


def with_stalls(program: list[Operation], choices: Choices) -> Program:
    """A program with the stops that the choices ask for, spread over it."""
    works = [i for i, op in enumerate(program) if isinstance(op, Work)]

    def spread(num: int) -> set[int]:
        return {works[int((n + 0.5) * len(works) / num)] for n in range(num)}

    stalls, blanks = spread(choices.stalls), spread(choices.blanks)
    made: list[Operation] = []
    for i, op in enumerate(program):
        if i in stalls:
            made.append(Stall(choices.stall_s))
        if i in blanks:
            made.append(Blank(choices.blank_s))
        made.append(op)
    return tuple(made)
