"""A program as columns, which is what its kernels need to be played at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planted.operations import Program, Talk, Work

__all__ = ["Script", "script_of"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Script:
    """A program as columns: all kernels of all works one after another.

    Attributes:
        names: index of the name of each kernel.
        seconds: time of each kernel without noise.
        routed: kernels that routed tokens decide.
        in_stage: kernels whose time the stage decides (not the optimizer).
        launch: launch of each kernel after the first launch of the step, in host operations.
        first: index of the first kernel of each work, and the number of all at the end.
        talk_launch: the same as ``launch`` for talks.
        labels: names.
        phases: of each work.
    """

    names: IntArray
    seconds: FloatArray
    routed: npt.NDArray[np.bool_]
    in_stage: npt.NDArray[np.bool_]
    launch: FloatArray
    first: IntArray
    talk_launch: FloatArray
    labels: tuple[str, ...]
    phases: tuple[str, ...]


_TALK_LAUNCHES = 4.0
"""Host operations that one collective takes: events, checks and the launch itself."""


def script_of(program: Program) -> Script:
    """Write a program as columns."""
    labels: dict[str, int] = {}
    names: list[int] = []
    seconds: list[float] = []
    routed: list[bool] = []
    in_stage: list[bool] = []
    launch: list[float] = []
    talk_launch: list[float] = []
    first, phases, clock = [0], [], 0.0
    for op in program:
        if isinstance(op, Work):
            for kernel in op.kernels:
                names.append(labels.setdefault(kernel.name, len(labels)))
                seconds.append(kernel.seconds)
                routed.append(kernel.routed)
                in_stage.append(op.phase != "optimizer")
                launch.append(clock)
                clock += 1.0
            first.append(len(names))
            phases.append(op.phase)
        elif isinstance(op, Talk):
            talk_launch.append(clock)
            clock += _TALK_LAUNCHES
    return Script(
        names=np.array(names),
        seconds=np.array(seconds),
        routed=np.array(routed),
        in_stage=np.array(in_stage),
        launch=np.array(launch),
        first=np.array(first),
        talk_launch=np.array(talk_launch),
        labels=tuple(labels),
        phases=tuple(phases),
    )
