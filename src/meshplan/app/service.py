"""One function per verb: request in, result out. Command line, Python and web call these.

A request is a mapping of plain values (see :mod:`meshplan.app.request`), a result is plain JSON
(see ``docs/en/json.md``). What a person did wrong raises :class:`~meshplan.errors.UserError`;
"does not fit" is a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from meshplan.app.document import document
from meshplan.app.judge import (
    beyond_peak,
    judge,
    no_effect,
    no_legal_plan,
    ways_on,
    ways_out,
)
from meshplan.app.request import (
    Request,
    read_plan,
    read_plans,
    read_scenario,
    read_searches,
    read_top,
)
from meshplan.app.result import (
    differences_json,
    entries_json,
    explanation_json,
    flips_json,
    jsonable,
    rejected_json,
    runner_up_json,
    searched_json,
    switches_json,
)
from meshplan.cost.memory import Verdict
from meshplan.errors import UserError
from meshplan.explanation.formulas import formulas_of
from meshplan.explanation.provenance import constants_of
from meshplan.explanation.reasons import reasons_for
from meshplan.explanation.records import Reason
from meshplan.inputs.load.switches import least_gain, switches_off
from meshplan.inputs.scenario import Scenario
from meshplan.search.answer import Answer, Entry, answer, with_alternatives
from meshplan.search.neighbours import Neighbour
from meshplan.search.sensitivity import Flip, find_flips
from meshplan.search.switches import switches_worth_turning_on

if TYPE_CHECKING:
    from meshplan.app.diagnosis import Progress

__all__ = [
    "calibrate",
    "check",
    "compare",
    "diagnose",
    "emit",
    "estimate",
    "explain",
    "inspect",
    "learn",
    "list_things",
    "plan",
    "plan_steps",
    "quick",
    "schema",
    "validate",
]

Json = dict[str, Any]


def plan(request: Request) -> Json:
    """Find the best plans for a model on a cluster, and say why."""
    *_, whole = plan_steps(request)
    return whole


def plan_steps(
    request: Request, *, progress: Callable[[float], None] = lambda share: None
) -> Iterator[Json]:
    """The answer of :func:`plan` as far as it is known: the plans first, then why, then the rest.

    Args:
        request: see :func:`plan`.
        progress: told how much of a search over several cluster sizes is done.
    """
    began = perf_counter()
    top = read_top(request)
    scenario, found = _searched(read_searches(request), top=top, progress=progress)
    if not found.counts.num_legal:
        raise no_legal_plan(found)

    def shown(entries: Sequence[Entry]) -> list[Json]:
        return entries_json(entries, asked=scenario)

    def searched() -> Json:
        return {"searched": searched_json(found, elapsed_s=perf_counter() - began)}

    head = document("plan", scenario, request)
    head["assumptions"] += beyond_peak(found.entries)
    known: Json = {
        **head,
        "plans": shown(found.entries),
        "reasons": [],
        "runner_up": runner_up_json(found),
        "switches": [],
        "flips": [],
        "closest": shown([found.closest])[0] if found.closest else None,
        "remedies": jsonable(ways_out(found)),
        **rejected_json(found),
        "sizes": jsonable(found.sizes),
        **searched(),
    }
    if found.entries:
        yield known
        found = with_alternatives(found, top=top)
        known = {**known, "reasons": jsonable(_reasons_for_best(found)), **searched()}
        yield known
        # a front shows what each plan is best at, and looks for no other
        search = scenario.objective != "pareto"
        known = {**known, "switches": _switches(found.entries[0], search=search), **searched()}
        yield known
        known = {**known, "flips": flips_json(_flips(found)), **searched()}
    yield known


def _searched(
    scenarios: Sequence[Scenario], *, top: int, progress: Callable[[float], None]
) -> tuple[Scenario, Answer]:
    """The answer for the first of the scenarios in which something fits, or else for the first."""
    answers = ((s, answer(s, top=top, progress=progress)) for s in scenarios)
    first = next(answers)
    if first[1].entries:
        return first
    return next((later for later in answers if later[1].entries), first)


def _reasons_for_best(found: Answer) -> tuple[Reason, ...]:
    best = found.entries[0]
    return reasons_for(best.scenario, best.result, alternatives=found.alternatives)


def _switches(entry: Entry, *, search: bool) -> list[Json]:
    worth = switches_worth_turning_on(
        entry.scenario,
        entry.result,
        offered=switches_off(entry.scenario, entry.plan.framework.name.lower()),
        least_gain=least_gain(),
        search=search,
    )
    return switches_json(worth)


def _flips(found: Answer) -> tuple[Flip, ...]:
    others = [near.result.grid.plan(0) for near in found.alternatives or ()]
    return find_flips(
        found.entries[0].scenario,
        found.rivals,
        others=others,
        sizes_searched=len(found.sizes) > 1,
    )


def estimate(request: Request, *, with_remedies: bool = True) -> Json:
    """Judge one given plan.

    Args:
        request: a scenario and ``plan``.
        with_remedies: whether to look for what would make it fit, which takes a search.
    """
    scenario = read_scenario(request)
    given = request.get("plan") or {}
    entry = judge(scenario, read_plan(scenario, given))
    head = document("estimate", scenario, request)
    head["assumptions"] += [*no_effect(scenario, entry.plan, given), *beyond_peak([entry])]
    safe = entry.result.memory.verdict[0] == Verdict.FITS
    return {
        **head,
        "plans": entries_json([entry]),
        "reasons": jsonable(reasons_for(scenario, entry.result)),
        "switches": _switches(entry, search=False),
        "remedies": jsonable(ways_on(entry) if with_remedies and not safe else ()),
    }


def compare(request: Request) -> Json:
    """Put two to four plans side by side, in the order given."""
    scenario = read_scenario(request)
    entries = read_plans(
        request,
        lambda values, where: judge(
            scenario, read_plan(scenario, values, where=where), where=where
        ),
    )
    for place, entry in enumerate(entries, start=1):
        same = [e.plan for e in entries].index(entry.plan) + 1
        if same < place:
            raise UserError.of("same_plan_twice", where=f"plans.{place}", value=f"plans.{same}")
    head = document("compare", scenario, request)
    for entry, given in zip(entries, request["plans"], strict=True):
        head["assumptions"] += no_effect(scenario, entry.plan, given)
    head["assumptions"] += beyond_peak(entries)
    return {
        **head,
        "plans": entries_json(entries),
        **differences_json(entries),
    }


def explain(request: Request) -> Json:
    """Show each formula of one plan with its numbers and their sources.

    Without degrees in the request, the best plan is explained.
    """
    scenario = read_scenario(request)
    around: tuple[Neighbour, ...] | None = None
    head = document("explain", scenario, request)
    if request.get("plan"):
        entry = judge(scenario, read_plan(scenario, request["plan"]))
        head["assumptions"] += no_effect(scenario, entry.plan, request["plan"])
    else:
        found = with_alternatives(answer(scenario, top=1), top=1)
        if not found.counts.num_legal:
            raise no_legal_plan(found)
        best = found.entries[0] if found.entries else found.closest
        assert best is not None, "there is a legal plan"
        entry, around = best, found.alternatives
    head["assumptions"] += beyond_peak([entry])
    return {
        **head,
        "plans": entries_json([entry], asked=scenario),
        "reasons": jsonable(reasons_for(entry.scenario, entry.result, alternatives=around)),
        **explanation_json(
            formulas_of(entry.scenario, entry.result),
            constants_of(entry.scenario, entry.plan.framework.name.lower()),
        ),
    }


def emit(request: Request) -> Json:
    """Write a plan in the words of a framework and a launcher."""
    from meshplan.app.emission import emit as answer_request

    return answer_request(request)


def check(request: Request) -> Json:
    """Judge a launch script or config files that someone already has."""
    from meshplan.app.checking import check as answer_request

    return answer_request(request)


def diagnose(request: Request, *, progress: Progress | None = None) -> Json:
    """Say why a run is slow, from its traces, logs and metrics."""
    from meshplan.app.diagnosis import diagnose_run as answer_request

    return answer_request(request, progress=progress)


def inspect(request: Request) -> Json:
    """Describe a model: architecture and parameters."""
    from meshplan.app.inspection import inspect as answer_request

    return answer_request(request)


def learn(request: Request) -> Json:
    """List the chapters of the guide, or read one."""
    from meshplan.app.learning import learn as answer_request

    return answer_request(request)


def quick(request: Request) -> Json:
    """Answer by rule of thumb beside the full model."""
    from meshplan.app.quick import quick as answer_request

    return answer_request(request)


def list_things(request: Request) -> Json:
    """List models, devices, clusters, rules or frameworks."""
    from meshplan.app.listing import list_things as answer_request

    return answer_request(request)


def schema(request: Request) -> Json:
    """Give the JSON Schema of a scenario or of a result."""
    from meshplan.app.schema import schema as answer_request

    return answer_request(request)


def calibrate(request: Request) -> Json:
    """Fit a cluster profile to a few measured runs."""
    from meshplan.app.calibration import calibrate_profile as answer_request

    return answer_request(request)


def validate(request: Request) -> Json:
    """Compare predictions with measured runs."""
    from meshplan.app.validation import validate as answer_request

    return answer_request(request)
