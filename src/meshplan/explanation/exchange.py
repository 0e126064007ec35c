"""What a switch of the framework would gain where tokens on their way to experts hold up a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshplan.explanation.records import Reason
from meshplan.inputs.scenario import Scenario
from meshplan.inputs.variants import split_variant, with_options
from meshplan.search.contest import contenders, contests
from meshplan.search.evaluate import Evaluation, evaluate, part_seconds
from meshplan.search.neighbours import Neighbour
from meshplan.search.objective import TIE
from meshplan.space.plan import Framework, PlanGrid

__all__ = ["overlapped_exchange"]

_SWITCH = "overlapped-exchange"
_NOTABLE = 0.05


def overlapped_exchange(
    scenario: Scenario, result: Evaluation, alternatives: Sequence[Neighbour]
) -> Iterator[Reason]:
    """Say what an exchange beside the computation of another micro-batch would gain.

    The plan and the best ones with other degrees compete under the rules that the switch brings
    along, each with every micro-batch and recompute mode. Nothing is said where the exchange takes
    less than a twentieth of the step, or where none of these plans gains more than a tie.

    Args:
        scenario: what the plan is for.
        result: its exact numbers, of length one.
        alternatives: the best plan with each other degree.
    """
    plan = result.grid.plan(0)
    step_s = float(result.time.step_time_s[0])
    exchange_s = part_seconds(result)["ep_comm_s"]
    if plan.framework is not Framework.MEGATRON or exchange_s < _NOTABLE * step_s:
        return
    name = Framework.MEGATRON.name.lower()
    if _SWITCH in split_variant(scenario.variant)[1]:
        return
    changed = replace(scenario, variant=with_options(scenario.variant, name, (_SWITCH,)))
    others = [near.result.grid.plan(0) for near in alternatives]
    contest = contests([changed], contenders(changed, [plan], others))[0]
    if contest is None:
        return
    found = contest.winner(usable_bytes=scenario.cluster.device.usable_bytes).plan
    if found is None:
        return
    then_s = float(evaluate(changed, PlanGrid.of([found])).time.step_time_s[0])
    if then_s * (1.0 + TIE) < step_s:
        yield Reason(
            code="communication_exchange",
            topic="communication",
            numbers={
                "variant": changed.variant,
                "plan": found,
                "step_time_s": then_s,
                "change_fraction": 1.0 - then_s / step_s,
            },
        )
