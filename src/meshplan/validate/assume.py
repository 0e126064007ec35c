"""Assumptions for what a table of runs does not say, by source, with the reason of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib import resources
from typing import Any

import yaml

from meshplan.inputs.vocabulary import FRAMEWORKS, canonical
from meshplan.record import record

__all__ = ["Assumptions", "assumptions_of", "has_unknown_framework", "listed_assumptions"]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@record
class Assumptions:
    """What is assumed for one source.

    Attributes:
        source_id: the source.
        values: assumed value by name.
        reasons: why, by name.
        node_by_device: kind of machine by device, where the source has several.
    """

    source_id: str
    values: Mapping[str, Any]
    reasons: Mapping[str, str]
    node_by_device: Mapping[str, str]

    def text(self, name: str) -> str:
        """An assumed word; empty when nothing is assumed."""
        return str(self.values.get(name, ""))

    def number(self, name: str) -> int:
        """An assumed count."""
        return int(self.values[name])


@lru_cache(maxsize=1)
def _document() -> dict[str, Any]:
    text = (resources.files("meshplan.validate") / "assumptions.yaml").read_text("utf-8")
    document: dict[str, Any] = yaml.load(text, Loader=_LOADER)
    return document


def assumptions_of(source_id: str, row: Mapping[str, str] | None = None) -> Assumptions:
    """Return what is assumed for a source, known or not.

    Args:
        source_id: the source.
        row: a row of it, for sources that join several kinds of run.
    """
    cases = (_document()["sources"].get(source_id) or {}).get("when", [])
    row = row or {}
    chosen = tuple(
        i
        for i, case in enumerate(cases)
        if all(row.get(name, "").startswith(begin) for name, begin in case["begins"].items())
    )
    keys = _document()["models"]
    model = next((key for key in keys if row.get("model_key", "").startswith(key)), "")
    # what tables of known sources call a framework is told by their entries
    told = source_id in _document()["sources"]
    framework = None if told else canonical(FRAMEWORKS, row.get("framework", ""))
    return _merged(source_id, chosen, model, framework)


def has_unknown_framework(row: Mapping[str, str]) -> bool:
    """Whether a row of a table of one's own ran a framework that is not modelled."""
    said = row.get("framework", "")
    if not said or row["source_id"] in _document()["sources"]:
        return False
    return canonical(FRAMEWORKS, said) is None


def listed_assumptions(source_id: str, models: Iterable[str] = ()) -> Iterator[dict[str, Any]]:
    """All that is assumed for blanks of a source, as ``name``, ``value``, ``reason`` and ``when``.

    ``when`` holds how cells of a row must begin for it, and is empty for what holds for every row.

    Args:
        source_id: the source.
        models: keys of the models of its rows.
    """
    whole = assumptions_of(source_id)
    named: list[tuple[dict[str, str], dict[str, list[Any]]]] = [
        ({}, {name: [whole.values[name], whole.reasons[name]] for name in whole.values})
    ]
    named += [
        ({"gpu": device}, {"node": [node, "stated"]})
        for device, node in whole.node_by_device.items()
    ]
    named += [
        ({"model_key": begin}, entries)
        for begin, entries in _document()["models"].items()
        if any(model.startswith(begin) for model in models)
    ]
    cases = (_document()["sources"].get(source_id) or {}).get("when", [])
    named += [(case["begins"], case["then"]) for case in cases]
    for when, entries in named:
        for name, (value, reason) in entries.items():
            yield {"name": name, "value": value, "reason": str(reason), "when": dict(when)}


@lru_cache(maxsize=256)
def _merged(
    source_id: str, chosen: tuple[int, ...], model: str, framework: str | None
) -> Assumptions:
    document = _document()
    own = dict(document["sources"].get(source_id) or {})
    nodes = own.pop("node_by_device", {})
    cases = own.pop("when", [])
    for i in chosen:
        own.update(cases[i]["then"])
    merged = {**document["defaults"], **document["models"].get(model, {}), **own}
    if framework is not None:
        merged["framework"] = [framework, "stated"]
    return Assumptions(
        source_id=source_id,
        values={name: entry[0] for name, entry in merged.items()},
        reasons={name: str(entry[1]) for name, entry in merged.items()},
        node_by_device=nodes,
    )
