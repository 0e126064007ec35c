"""What there is by name: models, devices, clusters, rules and frameworks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from meshplan.app.document import document
from meshplan.app.result import jsonable
from meshplan.inputs.vocabulary import FRAMEWORKS, squeeze, unknown

__all__ = ["KINDS", "list_things"]

Json = dict[str, Any]


def list_things(request: Mapping[str, Any]) -> Json:
    """List what a word stands for.

    Args:
        request: ``kind``: ``models``, ``devices``, ``clusters``, ``rules`` or ``frameworks``.

    Raises:
        UserError: ``unknown_name`` for another kind.
    """
    wanted = squeeze(str(request.get("kind", "")))
    name = next((kind for kind in KINDS if wanted in (kind, kind.removesuffix("s"))), None)
    if name is None:
        raise unknown("unknown_name", where="kind", value=request.get("kind"), names=KINDS)
    return {**document("list"), "kind": name, "items": KINDS[name]()}


def _models() -> list[Json]:
    from meshplan.cost.parameters import count_parameters
    from meshplan.inputs.load.hf_config import load_model, model_names

    items = []
    for name in model_names():
        model = load_model(name)
        count = count_parameters(model)
        items.append(
            {
                "name": name,
                "family": model.family,
                "parameters": {"total": count.total, "active": count.active},
                "num_layers": model.num_layers,
                "hidden": model.hidden,
                "source": model.source,
            }
        )
    return items


def _devices() -> list[Json]:
    from meshplan.inputs.load.nodes import load_node
    from meshplan.inputs.load.presets import device_names, device_preset

    items = []
    for name in device_names():
        preset = device_preset(name)
        values: Json = jsonable(preset.device)
        items.append(
            {
                **values,
                "aliases": list(preset.aliases),
                "node": preset.node,
                "gpus_per_node": load_node(preset.node).gpus_per_node,
                "link_bytes_per_s": preset.link_bytes_per_s,
                "pcie_generation": preset.pcie_generation,
                "total_memory_bytes": preset.total_memory_bytes,
                "figures": jsonable({key: asdict(f) for key, f in preset.figures.items()}),
            }
        )
    return items


def _clusters() -> list[Json]:
    from meshplan.inputs.load.nodes import load_node, node_names

    return [jsonable(asdict(load_node(name))) for name in node_names()]


def _rules() -> list[Json]:
    from meshplan.space.names import to_text
    from meshplan.space.rules import RULES

    return [
        {
            "code": rule.code,
            "frameworks": [to_text(framework) for framework in rule.frameworks],
            "version": rule.version,
            "source": rule.source,
            "axis": rule.axis,
            "duplicate": rule.duplicate,
        }
        for rule in RULES
    ]


def _frameworks() -> list[Json]:
    from meshplan.emit.targets import TARGETS
    from meshplan.space.plan import Framework
    from meshplan.space.rules import rules_of

    items = []
    for name, aliases in FRAMEWORKS.items():
        rules = rules_of(Framework[name.upper()])
        versions = sorted({rule.version for rule in rules if rule.version})
        items.append(
            {
                "name": name,
                "aliases": list(aliases),
                "versions": versions,
                "emitted": [
                    {"target": target.name, "version": target.version}
                    for target in TARGETS.values()
                    if target.framework is Framework[name.upper()]
                ],
                "num_rules": len({rule.code for rule in rules if not rule.duplicate}),
            }
        )
    return items


KINDS: dict[str, Callable[[], list[Json]]] = {
    "models": _models,
    "devices": _devices,
    "clusters": _clusters,
    "rules": _rules,
    "frameworks": _frameworks,
}
"""What can be listed."""
