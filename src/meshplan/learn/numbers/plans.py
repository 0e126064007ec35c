"""What the full model says of a plan, and which plan it picks."""

from __future__ import annotations

from typing import Any

from meshplan.cost.memory import Verdict
from meshplan.learn.expressions import Term
from meshplan.learn.numbers.searches import figure, found_plan, given_plan

__all__ = ["estimate", "pick", "pick_value", "verdict"]


def estimate(what: str, model: str, cluster: str, **settings: Any) -> float:
    """One figure of a plan that is given.

    Args:
        what: ``step_time_s``, ``peak_bytes``, ``mfu``, ``tokens`` (per GPU and second),
            ``share_bubble`` and other parts of the step, or any other figure of the result.
        model: name of the model.
        cluster: such as ``64xH100``.
        **settings: keys of the job, ``framework`` and fields of the plan.
    """
    scenario, result = given_plan(model, cluster, tuple(sorted(settings.items())))
    return figure(scenario, result, what)


def verdict(model: str, cluster: str, **settings: Any) -> Term:
    """Whether a plan that is given fits, in words."""
    _, result = given_plan(model, cluster, tuple(sorted(settings.items())))
    name = Verdict(int(result.memory.verdict[0])).name
    return Term(f"cli.verdict.{name.lower()}")


def pick(model: str, cluster: str, **settings: Any) -> str:
    """The plan that the search picks, as text."""
    return str(found_plan(model, cluster, tuple(sorted(settings.items())))["plan"])


def pick_value(what: str, model: str, cluster: str, **settings: Any) -> float:
    """A figure of the plan that the search picks: ``step_time_s``, ``mfu`` and the like."""
    return float(found_plan(model, cluster, tuple(sorted(settings.items())))[what])
