"""From a plan that someone gave to its numbers, or to what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from meshplan.app.result import jsonable
from meshplan.errors import Problem, UserError
from meshplan.inputs.load.profile import framework_of_variant
from meshplan.inputs.scenario import Scenario
from meshplan.search.answer import Answer, Entry, entry_of, in_time
from meshplan.search.evaluate import evaluate
from meshplan.space.enumerate import enumerate_parts
from meshplan.space.names import to_text
from meshplan.space.plan import Plan, PlanGrid
from meshplan.space.rules import Violation, check_plan, idle_fields

if TYPE_CHECKING:
    from meshplan.search.fitting import Remedy

__all__ = ["beyond_peak", "judge", "no_effect", "no_legal_plan", "ways_on", "ways_out"]

_MOST_RULES = 5


def judge(scenario: Scenario, plan: Plan, *, where: str = "plan") -> Entry:
    """Evaluate a plan, once it is legal.

    Raises:
        UserError: one problem for each rule that the plan breaks, with the legal degrees.
    """
    problems = [_problem(broken, scenario, where=where) for broken in check_plan(scenario, plan)]
    if problems:
        raise UserError(*problems)
    return entry_of(scenario, evaluate(scenario, PlanGrid.of([plan])))


def no_effect(
    scenario: Scenario, plan: Plan, given: Mapping[str, object]
) -> Iterator[dict[str, str]]:
    """Note what a person gave and the plan has no use for, as a schedule without a pipeline."""
    if framework_of_variant(scenario.variant) not in ("", to_text(plan.framework)):
        yield {"code": "no_effect", "value": f"variant={scenario.variant}"}
    for name in idle_fields(scenario, plan):
        if given.get(name) is not None:
            yield {"code": "no_effect", "value": f"{name}={given[name]}"}


def beyond_peak(entries: Sequence[Entry]) -> Iterator[dict[str, str]]:
    """Note that the products of a plan would take less than the peak of its device allows.

    A measured profile, or a device, with numbers of one's own can say so; no device does it.
    """
    times = [entry.result.time for entry in entries]
    # what attention computes outside its mask is counted by convention, and need not be computed
    shares = [float(t.hfu[0] * t.mfu_causal[0] / t.mfu[0]) for t in times]
    if shares and max(shares) > 1.0:
        yield {"code": "beyond_peak", "value": f"{max(shares):.0%}"}


def _problem(broken: Violation, scenario: Scenario, *, where: str) -> Problem:
    """One broken rule; a variant is of one framework, so that no other one is a way out."""
    tied = broken.field == "framework" and scenario.variant
    return Problem(
        code=f"rule_{broken.code}",
        where=f"{where}.{broken.field}",
        value=jsonable(broken.value),
        allowed=() if tied else broken.legal,
        numbers=broken.numbers,
    )


def no_legal_plan(found: Answer) -> UserError:
    """Say that the rules refuse every candidate, and which ones refuse most.

    Where a framework lacks what the model or the job needs, no degree helps: then that is said,
    with the frameworks that have it.
    """
    scenario = found.scenario
    lacking = {
        (broken.code, rejection.example.framework): _problem(broken, scenario, where="scenario")
        for rejection in found.rejected.values()
        for broken in check_plan(scenario, rejection.example)
        if broken.field == "framework"
    }
    if lacking:
        return UserError(*lacking.values())
    pinned = [_pinned(scenario, axis) for axis in scenario.axes]
    rules = sorted(found.rejected.items(), key=lambda item: (-item[1].count, item[0]))
    return UserError(
        Problem(
            code="no_legal_plan",
            where="scenario",
            value=found.counts.num_candidates,
            allowed=tuple(rule for rule, _ in rules[:_MOST_RULES]),
        ),
        *(problem for problem in pinned if problem is not None),
    )


def _pinned(scenario: Scenario, axis: str) -> Problem | None:
    """What a pinned axis could be with the rest as it is; None where no value of it helps."""
    free = {name: values for name, values in scenario.axes.items() if name != axis}
    legal: dict[int, object] = {}
    for part in enumerate_parts(replace(scenario, axes=free)):
        for index in np.unique(getattr(part.grid, axis), return_index=True)[1].tolist():
            value = getattr(part.grid.plan(index), axis)
            legal[int(value)] = jsonable(value)
    if not legal:
        return None
    names = tuple(legal[value] for value in sorted(legal))
    pins = ", ".join(str(pin) for pin in scenario.axes[axis])
    return Problem(code="pinned_axis", where=axis, value=pins, allowed=names)


def ways_out(found: Answer) -> tuple[Remedy, ...]:
    """What would give a plan where the answer has none."""
    nearest = found.closest
    if found.entries or nearest is None:
        return ()
    # most answers have a plan
    from meshplan.search.remedy import remedies_for_deadline, remedies_for_scenario

    if nearest.fits and not in_time(nearest):
        return remedies_for_deadline(nearest.scenario, nearest.plan)
    return remedies_for_scenario(found.scenario)


def ways_on(entry: Entry) -> tuple[Remedy, ...]:
    """What would make a given plan fit with room to spare."""
    from meshplan.search.remedy import remedies_for_plan

    return remedies_for_plan(entry.scenario, entry.plan)
