"""What the settings that a log prints say by themselves of its pipeline."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from meshplan.diagnose.findings.cures import from_trace, spelled
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.outcome import ABSENT, CLEAR, Outcome
from meshplan.diagnose.findings.play import Pipe, bubble_share, enough_micro_batches
from meshplan.diagnose.findings.records import Action, Finding
from meshplan.diagnose.findings.thresholds import threshold
from meshplan.diagnose.read.logs.records import LogMeasures
from meshplan.space.plan import Framework, Schedule

__all__ = ["few_by_log"]


def few_by_log(facts: Facts) -> Outcome:
    """Play the schedule of the stages and micro-batches that a log states.

    With one chunk a stage, as logs do not state more: chunks that take turns wait less.
    """
    logs = cast("tuple[LogMeasures, ...]", facts.run.logs)
    pipes = [(pipe, log) for log in logs if (pipe := _pipe(log)) is not None]
    if not pipes:
        return ABSENT
    pipe, log = max(pipes, key=lambda item: bubble_share(item[0]))
    share, wanted = bubble_share(pipe), enough_micro_batches(pipe)
    if share < threshold("bubble_share"):
        return CLEAR
    step_s = log.steady_step_s()
    return Finding(
        code="few_micro_batches",
        form="by_log",
        cost_share=share,
        cost_s=None if step_s is None else share * step_s,
        numbers={
            "file": log.file,
            "num_micro_batches": pipe.micro,
            "pp": pipe.pp,
            "schedule_fraction": share,
        },
        action=_larger(log, pipe, wanted),
        gain=from_trace(share),
        confidence="medium",
        reason="log_settings",
    )


def _larger(log: LogMeasures, pipe: Pipe, wanted: int) -> Action:
    """More micro-batches: by a larger batch alone where they hold one sequence already."""
    settings = log.settings
    micro_batch, batch = settings.get("micro_batch", 0), settings.get("global_batch")
    framework = Framework.__members__.get(log.framework.upper())
    changed = spelled(framework, "num_micro_batches", before=pipe.micro, after=wanted)
    if changed.after == "+" and batch and batch % pipe.micro == 0:
        changed = replace(changed, before=batch, after=batch // pipe.micro * wanted)
    code = "more_sequences" if micro_batch == 1 else "more_micro_batches"
    return Action(code=code, numbers={"wanted": wanted}, changes=(changed,))


def _pipe(log: LogMeasures) -> Pipe | None:
    """The pipeline that the settings of a log describe; None without one."""
    settings = log.settings
    pp = settings.get("pp", 1)
    micro = settings.get("num_micro_batches") or settings.get("accumulation")
    if pp < 2 or not micro:
        return None
    return Pipe(schedule=Schedule.ONE_F_ONE_B, pp=int(pp), vpp=1, micro=int(micro), again=0.0)
