"""Which settings of its framework a plan would gain from.

Each setting that is off is turned on by itself. What it promises to the plan as it is decides
whether the best plan is searched for again: a setting may suit another plan better, or ask for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meshplan.cost.memory import Verdict
from meshplan.inputs.scenario import Scenario
from meshplan.inputs.variants import Switch
from meshplan.record import record
from meshplan.search.carry import legal_only
from meshplan.search.evaluate import Evaluation, evaluate
from meshplan.search.rank import rank_plans
from meshplan.space.axes import axes_of
from meshplan.space.facts import facts_of
from meshplan.space.plan import Plan, PlanGrid
from meshplan.space.rules import check_plan

__all__ = ["SwitchGain", "saved_share", "switches_worth_turning_on"]


@record
class SwitchGain:
    """What a setting would gain.

    Attributes:
        switch: the setting.
        variant: the variant of the scenario that plans with it.
        off: the plan as it is, without it.
        same: the same plan with it; None where the framework would refuse that.
        best: the best plan with it, where it was searched for, is another one and is faster.
    """

    switch: Switch
    variant: str
    off: Evaluation
    same: Evaluation | None
    best: Evaluation | None

    @property
    def gain(self) -> float:
        """Share of the step that it saves at most [1]."""
        found = (result for result in (self.same, self.best) if result is not None)
        return max((saved_share(self.off, result) for result in found), default=0.0)


def saved_share(before: Evaluation, after: Evaluation) -> float:
    """Share of one plan's step that another one saves [1]; negative where it is slower."""
    return 1.0 - float(after.time.step_time_s[0] / before.time.step_time_s[0])


def switches_worth_turning_on(
    scenario: Scenario,
    result: Evaluation,
    *,
    offered: Mapping[str, Switch],
    least_gain: float,
    search: bool,
) -> tuple[SwitchGain, ...]:
    """Find the settings from which a plan would gain, the most first.

    Args:
        scenario: what it is a plan for.
        result: its exact numbers, of length one.
        offered: settings that are off, by the variant of the scenario that has one on.
        least_gain: share of the step that a setting has to save [1].
        search: whether to search for the best plan with a setting that promises something.

    Returns:
        Those that save so much, or make a plan fit that does not.
    """
    found = (
        _tried(scenario, result, switch, variant, least_gain=least_gain, search=search)
        for variant, switch in offered.items()
    )
    worth = [gain for gain in found if _is_worth_it(gain, least_gain)]
    return tuple(sorted(worth, key=lambda gain: -gain.gain))


def _tried(
    scenario: Scenario,
    off: Evaluation,
    switch: Switch,
    variant: str,
    *,
    least_gain: float,
    search: bool,
) -> SwitchGain:
    on = replace(scenario, variant=variant, frameworks=(switch.framework,))
    plan = off.grid.plan(0)
    gain = SwitchGain(switch=switch, variant=variant, off=off, same=None, best=None)
    legal = bool(legal_only(on, [plan]))
    if not legal and not (search and _others_may(on, plan)):
        return gain
    same = evaluate(on, PlanGrid.of([plan]))
    if legal and _verdict(same) <= _verdict(off):
        gain = replace(gain, same=same)
    promising = search and _promise(off, same) >= least_gain
    best = rank_plans(on, top=1).best if promising else None
    return replace(gain, best=best) if best and _improves(best, gain.same or off, off=off) else gain


def _others_may(scenario: Scenario, plan: Plan) -> bool:
    """Whether what a plan is refused for is something that other plans have otherwise."""
    axes = axes_of(facts_of(scenario), framework=plan.framework, pinned=scenario.axes)
    return all(len(axes.get(broken.field, ())) > 1 for broken in check_plan(scenario, plan))


def _promise(off: Evaluation, same: Evaluation) -> float:
    """Share of the time that it saves, or of the memory, which a search could spend [1].

    That counts whether the framework takes the plan with it or refuses it.
    """
    room = float(off.memory.peak_bytes[0] - same.memory.peak_bytes[0]) / off.memory.usable_bytes
    return max(saved_share(off, same), room)


def _improves(best: Evaluation, known: Evaluation, *, off: Evaluation) -> bool:
    """Whether a plan that was found is faster than one that is known, and fits as well."""
    return _verdict(best) <= _verdict(off) and saved_share(known, best) > 0


def _is_worth_it(gain: SwitchGain, least_gain: float) -> bool:
    """Whether it saves enough, or makes a plan fit; one that does not fit has no time to save."""
    if gain.same is not None and _verdict(gain.off) > _verdict(gain.same) == Verdict.FITS:
        return True
    return gain.gain >= least_gain and _verdict(gain.off) != Verdict.OOM


def _verdict(result: Evaluation) -> Verdict:
    return Verdict(int(result.memory.verdict[0]))
