"""Official recipes as ``check`` reads them: the plan of the table, legal or explained."""

from dataclasses import replace

import pytest
from test_rules_recipes import EXPLAINED, LONGER_ROUNDS

from meshplan.check.build import assemble, broken_rules
from meshplan.check.read import read_text
from meshplan.check.records import Source
from meshplan.errors import ProblemList
from meshplan.space.plan import Framework, Recompute
from recipes import arguments_of, read_recipes, rows_of


@pytest.fixture(scope="module")
def judged(shared):
    """Each recipe that has a plan, with the plan that check reads from its arguments."""
    found = []
    for row, recipe in zip(rows_of(shared), read_recipes(shared), strict=True):
        if recipe.plan is None:
            continue
        problems = ProblemList()
        source = Source(name="recipe.sh", text=arguments_of(row))
        reading = read_text(source, problems=problems)
        problems.raise_if_any()
        gpus = recipe.scenario.cluster.num_gpus
        made = assemble(reading, {"model": recipe.scenario.model.name, "cluster": f"{gpus}xB200"})
        # the devices of a test, so that nothing but the plan is compared
        there = replace(made.scenario, cluster=recipe.scenario.cluster)
        found.append((recipe, replace(made, scenario=there)))
    return found


def test_recipes_are_read_as_they_stand(judged):
    assert len(judged) > 390
    differ = {}
    for recipe, made in judged:
        known, plan = recipe.plan, made.plan
        if known.stage_layers and not plan.stage_layers:
            # a layout that a split deals alike is called by the name of the split
            known = replace(known, stage_layers=(), split=plan.split)
        if plan != known:
            differ[recipe.name] = (plan, known)
    assert differ == {}


def test_recipes_are_legal_or_explained(judged):
    refused = {}
    for recipe, made in judged:
        codes = {v.code for v in broken_rules(made)}
        if codes:
            refused[recipe.name] = codes
    # the file says how long its rounds are, which a plan does not
    assert refused == {k: v for k, v in EXPLAINED.items() if k not in LONGER_ROUNDS}


def test_every_reading_is_megatron(judged):
    assert {made.plan.framework for _, made in judged} == {Framework.MEGATRON}
    assert any(made.plan.recompute is Recompute.FULL for _, made in judged)
