"""The frameworks' own validators and our rules give the same verdicts, or a gap has a name."""

import sys
from pathlib import Path

import pytest
import yaml

from meshplan.space.rules import RULES

TOOLS = Path(__file__).resolve().parents[2] / "tools" / "frameworks"
sys.path.insert(0, str(TOOLS))

from agreement import TARGETS, compare, table
from cases import MODELS, cases_of

FEWEST_PLANS, FEWEST_MODELS = 200, 12


@pytest.mark.parametrize("target", TARGETS)
def test_verdicts_agree(target, python):
    found = compare(python, target)
    print(table([found]))
    assert found.wrong == []
    assert found.legal + found.illegal >= FEWEST_PLANS


def test_gaps_are_rules():
    gaps = yaml.safe_load((TOOLS / "gaps.yaml").read_text())
    codes = {rule.code for rule in RULES}
    named = {name.split(":")[0] for rules in gaps.values() for name in rules}
    assert named <= codes


@pytest.mark.parametrize("target", TARGETS)
def test_cases_are_varied(target):
    assert len(MODELS[target]) >= FEWEST_MODELS
    cases = cases_of(target, legal=40, illegal=40)
    sizes = {case.payload["world"] for case in cases}
    assert min(sizes) == 1 and len({case.name.split()[0] for case in cases}) >= FEWEST_MODELS - 2
