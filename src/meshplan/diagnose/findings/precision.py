"""The number format of the matrix products of a run: as given, as logged, or as kernels name it."""

from __future__ import annotations

from collections import defaultdict
from typing import cast

from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.thresholds import threshold
from meshplan.diagnose.names import product_precision
from meshplan.diagnose.read.logs.records import LogMeasures

__all__ = ["precision_of"]


def precision_of(facts: Facts) -> str | None:
    """Format of the products: of the job, else as logs state it, else by the names of kernels.

    None where nobody states one, or two are stated.
    """
    scenario = facts.context.scenario
    if scenario is not None:
        return scenario.job.precision
    logs = cast("tuple[LogMeasures, ...]", facts.run.logs)
    stated = {log.precision for log in logs if log.precision}
    if len(stated) == 1:
        return stated.pop()
    return _by_kernels(facts)


def _by_kernels(facts: Facts) -> str | None:
    """The format in which most of the time of products goes; None without a clear one."""
    times: dict[str, float] = defaultdict(float)
    for rank in facts.ranks:
        for step in rank.steady:
            for kernel in step.kernels:
                found = product_precision(kernel.name) if kernel.kind == "compute" else None
                if found is not None:
                    times[found] += kernel.total_us
    if not times:
        return None
    most = max(times, key=lambda name: times[name])
    clear = times[most] >= threshold("precision_share") * sum(times.values())
    return most if clear else None
