"""What of a job a target has words for."""

from __future__ import annotations

from collections.abc import Container

from meshplan.emit.records import Obstacle
from meshplan.inputs.job import Job

__all__ = ["WHOLE_MODEL", "job_obstacles"]

WHOLE_MODEL = ("pretrain", "full_finetune")
"""Tasks that train every weight."""


def job_obstacles(
    job: Job,
    *,
    optimizers: Container[str],
    tasks: Container[str] = WHOLE_MODEL,
    precisions: Container[str] | None = None,
    names_attention: bool = False,
) -> list[Obstacle]:
    """What stands in the way of a job, whatever the plan.

    Args:
        job: the job.
        optimizers: optimizers that the target has.
        tasks: tasks that it has.
        precisions: number formats that it has; None where all of a plan's can be said.
        names_attention: it, or the reader's own program that it starts, says whether scores are
            stored and whether there is dropout.
    """
    found: list[Obstacle] = []
    if job.task not in tasks:
        found.append(Obstacle(code="task", numbers={"task": job.task}, model=True))
    if job.optimizer not in optimizers:
        found.append(Obstacle(code="optimizer", numbers={"optimizer": job.optimizer}, model=True))
    if precisions is not None and job.precision not in precisions:
        found.append(Obstacle(code="precision", numbers={"precision": job.precision}, model=True))
    if not names_attention:
        if job.attention != "flash":
            numbers: dict[str, object] = {"attention": job.attention}
            found.append(Obstacle(code="attention", numbers=numbers, model=True))
        if job.dropout:
            found.append(Obstacle(code="dropout", model=True))
    return found
