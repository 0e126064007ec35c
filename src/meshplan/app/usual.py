"""Which frameworks a question is for that names none."""

from __future__ import annotations

from meshplan.inputs.job import ADAPTERS
from meshplan.inputs.load.vendors import frameworks_at_home
from meshplan.inputs.scenario import Scenario
from meshplan.space.complete import complete_plan
from meshplan.space.names import from_text
from meshplan.space.plan import Framework
from meshplan.space.rules import check_plan

__all__ = ["USUAL", "can_train", "usual_frameworks"]

USUAL = "megatron"
_INSTEAD = ("accelerate", "torchtitan", "deepspeed", "nanotron")
# PEFT's adapters on a published checkpoint run under these two as they are
_FOR_ADAPTERS = ("accelerate", "deepspeed")


def usual_frameworks(scenario: Scenario) -> tuple[tuple[str, ...], ...]:
    """Choose frameworks for who names none: those to search, and those where they have no answer.

    That of the variant, where one is named. The usual one, where it can train the model and the
    job and runs on the devices. Otherwise all that can and do, since then none of them is usual;
    one that does not run there lends its rules where these have no plan. Adapters are for those
    who have a checkpoint and want to start: one framework that
    :func:`meshplan.app.emission.emit` can write their job for.

    Returns:
        One or two groups; the first framework of the first group is that of a single plan.
    """
    if scenario.variant:
        return (scenario.frameworks,)
    home = frameworks_at_home(scenario.cluster.device.vendor)
    adapters = scenario.job.task in ADAPTERS
    if not adapters and (not home or USUAL in home) and can_train(scenario, USUAL):
        return ((USUAL,),)
    first = _FOR_ADAPTERS if adapters else home if home and USUAL not in home else ()
    names = dict.fromkeys((*first, USUAL, *_INSTEAD))
    able = [name for name in names if can_train(scenario, name)] or [USUAL]
    here = [name for name in able if not home or name in home]
    if adapters:
        # those that run here first, among them those that the job can be written for
        able.sort(key=lambda name: (name not in here, not _can_launch(scenario, name)))
        return ((able[0],),)
    if able[0] == USUAL and not here:
        return ((USUAL,),)
    elsewhere = tuple(name for name in able if name not in here)[:1]
    return tuple(group for group in (tuple(here), elsewhere) if group)


def can_train(scenario: Scenario, framework: str) -> bool:
    """Whether no rule says that a framework lacks what the model or the job needs."""
    plan = complete_plan(scenario, framework=from_text(Framework, framework))
    return all(broken.field != "framework" for broken in check_plan(scenario, plan))


def _can_launch(scenario: Scenario, framework: str) -> bool:
    """Whether a config format of a framework has words for the model and the job."""
    # the writers are of no use to a search without adapters, whose start they would delay
    from meshplan.emit.records import Order
    from meshplan.emit.targets import TARGETS

    code = from_text(Framework, framework)
    order = Order(scenario=scenario, plan=complete_plan(scenario, framework=code))
    return any(
        not any(obstacle.model for obstacle in target.obstacles(order))
        for target in TARGETS.values()
        if target.framework is code
    )
