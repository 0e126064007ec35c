"""How long each chunk of a pipeline takes, where chunks take turns and no plan tells.

What a stage computes between two sends or receives is one pass of one chunk, or two in a row where
nothing is sent between them. The schedule says which pass comes when, so that the times of the
passes follow from what was measured between the sends.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.cost.schedule.actions import Kind, Program
from meshplan.cost.schedule.orders import device_programs
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.flows import calls_of
from meshplan.diagnose.findings.thresholds import threshold
from meshplan.space.plan import Schedule

__all__ = ["passes_of_chunks"]

FloatArray = npt.NDArray[np.float64]


def passes_of_chunks(
    facts: Facts, *, schedule: Schedule, vpp: int, micro: int
) -> tuple[FloatArray, FloatArray] | None:
    """Forward and backward times of each virtual stage, as they were measured.

    Args:
        facts: of the run.
        schedule: of its pipeline.
        vpp: chunks of each stage.
        micro: micro-batches of a step.

    Returns:
        Times of one pass forward and one backward [us], ``(pp * vpp,)`` each; None where some stage
        was not measured, or does not pass as the schedule would have it.
    """
    pp = len(facts.stages)
    programs = device_programs(schedule=schedule, pp=pp, vpp=vpp, num_micro_batches=micro)
    found = np.zeros((2, pp * vpp))
    for stage, program in enumerate(programs):
        rows = _rows(program, last=pp * vpp - 1)
        held = np.flatnonzero(rows.any(axis=0))
        measured = _between_sends(facts, facts.stages[stage][0])
        if len(measured) != len(rows):
            return None
        passes, *_ = np.linalg.lstsq(rows[:, held], measured, rcond=None)
        off = float(np.abs(rows[:, held] @ passes - measured).sum() / measured.sum())
        if off > threshold("passes_differ") or (passes < 0).any():
            return None
        found.flat[held] = passes
    return found[0], found[1]


def _rows(program: Program, *, last: int) -> FloatArray:
    """Passes that stand between sends: of each virtual stage forward, then backward.

    Returns:
        How many of each there are, ``(intervals, 2 * (last + 1))``.
    """
    rows: list[FloatArray] = []
    sent = True
    for kind, stage, _ in program:
        ahead = kind == Kind.FORWARD
        received = stage > 0 if ahead else stage < last
        if sent or received or not rows:
            rows.append(np.zeros(2 * (last + 1)))
        rows[-1][stage if ahead else last + 1 + stage] += 1.0
        sent = stage < last if ahead else stage > 0
    return np.array(rows)


def _between_sends(facts: Facts, number: int) -> FloatArray:
    """Compute between the sends of a rank, before its optimizer, in its first steady step [us]."""
    rank = facts.run.rank(number)
    flows = [f for f in facts.flows_of("pp", kinds=("send_recv",)) if f.rank == number]
    streams = None if rank is None else rank.streams
    if rank is None or streams is None or not flows or np.isnan(streams.launch).any():
        return np.empty(0)
    step = next(i for i, step in enumerate(rank.steps) if not step.warm_up)
    sends = np.concatenate([calls_of(rank, flow) for flow in flows])
    edges = [streams.work_us[step, :1], streams.ahead_us[sends], streams.closing_us[[step]]]
    between = np.diff(np.sort(np.concatenate(edges)))
    passes: FloatArray = between[between > threshold("kernel_share") * between.max()]
    return passes
