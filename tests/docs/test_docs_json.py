"""The JSON Schema holds for real results, and every name in it is documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from meshplan.app import service
from meshplan.app.schema import KINDS, result_schema
from meshplan.cost.step import PARTS
from meshplan.search.answer import DecidedBy
from meshplan.text import LANGUAGES

DOCS = Path(__file__).resolve().parents[2] / "docs"
ASKED = {
    "model": "llama-3.1-8b",
    "cluster": "16xH100",
    "job": {"seq_len": 8192, "global_batch": 64, "total_tokens": 1e12},
    "axes": {"cp": [1], "micro_batch": [1, 2]},
}


def results():
    yield service.plan(ASKED)
    yield service.plan({**ASKED, "objective": "pareto"})
    yield service.plan({**ASKED, "cluster": "1xH100", "axes": {}})  # nothing fits
    yield service.estimate({**ASKED, "plan": {"tp": 2}})
    yield service.estimate({**ASKED, "model": "llama-3.1-70b", "plan": {}})
    yield service.compare({**ASKED, "plans": [{"tp": 2}, {"tp": 4}]})
    yield service.explain(ASKED)


def test_schemas_are_schemas():
    for kind in KINDS:
        Draft202012Validator.check_schema(service.schema({"kind": kind}))


def test_results_follow_the_schema():
    validator = Draft202012Validator(result_schema())
    verbs = set()
    for result in results():
        errors = [f"{e.json_path}: {e.message[:200]}" for e in validator.iter_errors(result)]
        assert not errors
        verbs.add(result["verb"])
    assert verbs == {"plan", "estimate", "compare", "explain"}


def test_scenario_echo_follows_the_schema():
    validator = Draft202012Validator(service.schema({"kind": "scenario"}))
    echo = service.estimate({**ASKED, "plan": {"tp": 2}})["scenario"]
    assert not list(validator.iter_errors(echo))


def names(schema):
    """Every property name, at any depth."""
    if isinstance(schema, dict):
        properties = schema.get("properties")
        if isinstance(properties, dict):
            yield from properties
        for value in schema.values():
            yield from names(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from names(item)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_name_is_documented(lang):
    page = (DOCS / lang / "json.md").read_text(encoding="utf-8")
    quoted = set(re.findall(r"`([a-z_]+)`", page))
    missing = {*names(result_schema()), *PARTS, *DecidedBy.__args__} - quoted
    assert not missing


def test_both_languages_document_the_same_names():
    pages = [(DOCS / lang / "json.md").read_text(encoding="utf-8") for lang in LANGUAGES]
    quoted = [set(re.findall(r"`([^`]+)`", page)) for page in pages]
    assert quoted[0] == quoted[1]
