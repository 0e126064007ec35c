"""Which settings of its framework a plan would gain from.

Each setting that is off is turned on by itself. What it promises to the plan as it is decides
whether the best plan is searched for again: a setting may suit another plan better, or ask for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from meshplan.cost.memory import Verdict
from meshplan.inputs.load.framework import memory_behaviour
from meshplan.inputs.load.profile import framework_of_variant, framework_profile, idle_switches
from meshplan.inputs.load.switches import least_gain, switches_of
from meshplan.inputs.scenario import Scenario
from meshplan.inputs.variants import Switch, with_options
from meshplan.search.carry import legal_only
from meshplan.search.evaluate import Evaluation, evaluate
from meshplan.search.rank import rank_plans
from meshplan.space.axes import axes_of
from meshplan.space.facts import facts_of
from meshplan.space.plan import Plan, PlanGrid
from meshplan.space.rules import check_plan

__all__ = ["SwitchGain", "saved_share", "switches_worth_turning_on"]


@dataclass(frozen=True, slots=True, kw_only=True)
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
    scenario: Scenario, result: Evaluation, *, search: bool
) -> tuple[SwitchGain, ...]:
    """Find the settings from which a plan would gain, the most first.

    Args:
        scenario: what it is a plan for.
        result: its exact numbers, of length one.
        search: whether to search for the best plan with a setting that promises something.

    Returns:
        Those that save the least gain of the preset, or make a plan fit that does not.
    """
    found = (
        _tried(scenario, result, switch, variant, search=search)
        for switch, variant in _open(scenario, result)
    )
    return tuple(sorted(filter(_is_worth_it, found), key=lambda gain: -gain.gain))


def _open(scenario: Scenario, result: Evaluation) -> Iterator[tuple[Switch, str]]:
    """Settings that are off and would change something, with the variant that has them on."""
    framework = result.grid.plan(0).framework.name.lower()
    # a variant of another framework says nothing about this one
    mine = framework_of_variant(scenario.variant) in ("", framework)
    variant = scenario.variant if mine else ""
    for switch in switches_of(framework):
        on = with_options(variant, framework, (switch.name,))
        idle = not switch.flags or switch.name in idle_switches(replace(scenario, variant=on))
        if not idle and _behaviour(framework, on) != _behaviour(framework, variant):
            yield switch, on


def _behaviour(framework: str, variant: str) -> list[object]:
    """All that the cost model reads of a framework, without where it comes from."""
    records = (framework_profile(framework, variant), memory_behaviour(framework, variant))
    return [
        getattr(record, field.name)
        for record in records
        for field in fields(record)
        if field.name not in ("name", "sources")
    ]


def _tried(
    scenario: Scenario, off: Evaluation, switch: Switch, variant: str, *, search: bool
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
    best = rank_plans(on, top=1).best if search and _promises(off, same) else None
    return replace(gain, best=best) if best and _improves(best, gain.same or off, off=off) else gain


def _others_may(scenario: Scenario, plan: Plan) -> bool:
    """Whether what a plan is refused for is something that other plans have otherwise."""
    axes = axes_of(facts_of(scenario), framework=plan.framework, pinned=scenario.axes)
    return all(len(axes.get(broken.field, ())) > 1 for broken in check_plan(scenario, plan))


def _promises(off: Evaluation, same: Evaluation) -> bool:
    """Whether it saves time, or memory that a search could spend; be the plan refused with it."""
    room = float(off.memory.peak_bytes[0] - same.memory.peak_bytes[0]) / off.memory.usable_bytes
    return max(saved_share(off, same), room) >= least_gain()


def _improves(best: Evaluation, known: Evaluation, *, off: Evaluation) -> bool:
    """Whether a plan that was found is faster than one that is known, and fits as well."""
    return _verdict(best) <= _verdict(off) and saved_share(known, best) > 0


def _is_worth_it(gain: SwitchGain) -> bool:
    """Whether it saves enough, or makes a plan fit; one that does not fit has no time to save."""
    if gain.same is not None and _verdict(gain.off) > _verdict(gain.same) == Verdict.FITS:
        return True
    return gain.gain >= least_gain() and _verdict(gain.off) != Verdict.OOM


def _verdict(result: Evaluation) -> Verdict:
    return Verdict(int(result.memory.verdict[0]))
