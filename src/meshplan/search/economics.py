"""From the time of a step to the days, GPU-hours and price of the whole run."""

from __future__ import annotations

import math

from meshplan.inputs.scenario import Scenario
from meshplan.record import record

__all__ = ["RunCost", "run_cost"]

_SECONDS_PER_HOUR = 3600.0
_HOURS_PER_DAY = 24.0


@record
class RunCost:
    """What the whole run takes, without restarts, evaluation and checkpoints.

    Attributes:
        num_steps: optimizer steps.
        days: wall time [days].
        gpu_hours: GPUs times wall time [hours].
        cost_usd: price; None when the device has none.
        meets_deadline: whether it ends in time; None without a deadline.
        gpus_in_time: GPUs that it takes at the least to end in time, where these do not; a lower
            bound, since more GPUs train no more than proportionally faster at the same batch.
    """

    num_steps: float
    days: float
    gpu_hours: float
    cost_usd: float | None
    meets_deadline: bool | None
    gpus_in_time: int | None


def run_cost(scenario: Scenario, *, step_time_s: float) -> RunCost | None:
    """Work out what the token budget takes at a given step time.

    ``days = total_tokens / tokens_per_step * step_time``.

    Args:
        scenario: gives the token budget, the GPUs, their price and the deadline.
        step_time_s: time of one step [s].

    Returns:
        The totals, or None when the job has no token budget.
    """
    job, cluster = scenario.job, scenario.cluster
    if job.total_tokens is None:
        return None
    num_steps = job.total_tokens / job.tokens_per_step
    hours = num_steps * step_time_s / _SECONDS_PER_HOUR
    days, gpu_hours = hours / _HOURS_PER_DAY, hours * cluster.num_gpus
    price = cluster.device.usd_per_hour
    in_time = None if job.deadline_days is None else days <= job.deadline_days
    least = None if job.deadline_days is None else days / job.deadline_days * cluster.num_gpus
    return RunCost(
        num_steps=num_steps,
        days=days,
        gpu_hours=gpu_hours,
        cost_usd=None if price is None else gpu_hours * price,
        meets_deadline=in_time,
        gpus_in_time=None if least is None or in_time else math.ceil(least),
    )
