"""Field cases: what each expects, worked out by meshplan or listed with the reason why not."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshplan.cost.memory import Verdict
from shared_data import find_shared

__all__ = ["Answers", "expectations", "field_cases", "judge"]

UNREACHED = Path(__file__).parent / "accuracy" / "cases_out_of_reach.yaml"

Answers = Mapping[tuple[str, str], Callable[[], Any]]


def field_cases(kinds: str, *, also: tuple[str, ...] = (), but: tuple[str, ...] = ()) -> dict:
    """Cases of some kinds by id; none where the shared data is absent."""
    folder = find_shared()
    if folder is None:
        return {}
    text = (folder / "data" / "cases" / "cases.yaml").read_text()
    content = yaml.load(text, yaml.CSafeLoader)["cases"]
    wanted = [c for c in content if c["kind"] in kinds or c["id"] in also]
    return {c["id"]: c for c in wanted if c["id"] not in but}


def expectations(cases: Mapping[str, Any]) -> list:
    """One parameter set per expected value."""
    return [
        pytest.param(case, expect, id=f"{case}-{expect['metric']}")
        for case, content in cases.items()
        for expect in content["expect"]
    ]


def judge(case: str, expect: Mapping[str, Any], answers: Answers) -> None:
    """Assert one expected value, or skip it with the reason why it is out of reach.

    A case that says a run fits must not be called out of memory; one that says it does not must
    not be called fitting. Tight is neither.
    """
    metric, value = expect["metric"], expect["value"]
    reasons = (yaml.safe_load(UNREACHED.read_text()) or {}).get(case, {})
    if metric in reasons:
        assert (case, metric) not in answers, "reached after all: drop it from the list"
        pytest.skip(f"out of reach: {reasons[metric]}")
    found = answers[case, metric]()
    if isinstance(found, Verdict):
        assert found is not (Verdict.OOM if value else Verdict.FITS)
    elif isinstance(value, float) or expect.get("rel_tol"):
        wanted = pytest.approx(value, rel=expect.get("rel_tol") or 1e-9)
        assert found == wanted, f"{found} where {wanted} was expected"
    else:
        assert found == value, f"{found} where {value} was expected"
