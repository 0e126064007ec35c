"""Read how settings of a job are turned on in their framework."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import yaml

from meshplan.inputs.framework import FrameworkMemory
from meshplan.inputs.load.framework import memory_behaviour
from meshplan.inputs.load.presets import PRESETS, Loader
from meshplan.inputs.load.profile import (
    framework_of_variant,
    framework_profile,
    holds,
    idle_switches,
    rivals_of,
)
from meshplan.inputs.profile import FrameworkProfile
from meshplan.inputs.scenario import Scenario
from meshplan.inputs.variants import Switch, split_variant, with_options

__all__ = ["least_gain", "switches_of", "switches_off", "switches_undone"]


@lru_cache(maxsize=1)
def _preset() -> dict[str, Any]:
    content: dict[str, Any] = yaml.load((PRESETS / "switches.yaml").read_text("utf-8"), Loader)
    return content


@lru_cache(maxsize=8)
def switches_of(framework: str) -> tuple[Switch, ...]:
    """Settings of a job that a framework has, in the order of the preset."""
    return tuple(
        Switch(
            name=name,
            framework=framework,
            flags=tuple(entry["flags"]),
            cautions=tuple(entry.get("cautions", ())),
            dense_only="dense_only" in entry,
            source=entry["source"],
        )
        for name, entry in _preset()["switches"].items()
        if entry["framework"] == framework
    )


def switches_off(scenario: Scenario, framework: str) -> dict[str, Switch]:
    """Settings of a framework that are off and would change something.

    Args:
        scenario: what is asked.
        framework: one of those that it asks about.

    Returns:
        Each setting by the variant of the scenario that has it on; none that the framework
        refuses, nor any that concerns what the model lacks.
    """
    # a variant of another framework says nothing about this one
    mine = framework_of_variant(scenario.variant) in ("", framework)
    variant = scenario.variant if mine else ""
    found: dict[str, Switch] = {}
    for switch in switches_of(framework):
        name, chosen = split_variant(variant)
        beside = tuple(c for c in chosen if c not in rivals_of(switch.name))
        on = with_options(name, framework, (*beside, switch.name))
        able = switch.has_flags_for(experts=scenario.model.is_moe)
        able = able and not _has(framework, variant, switch.name)
        able = able and switch.name not in idle_switches(replace(scenario, variant=on))
        if able and _behaviour(framework, on) != _behaviour(framework, variant):
            found[on] = switch
    return found


def _has(framework: str, variant: str, name: str) -> bool:
    """Whether a variant has a setting on: by name, by what its times say, or by its memory."""
    stack, chosen = split_variant(variant)
    if name in chosen:
        return True
    if holds(framework, stack, name):
        # unless what it names beside takes its place
        return not set(rivals_of(name)) & set(chosen)
    own, plain = (
        [
            _figures(memory_behaviour(framework, with_options(v, framework, s)))
            for s in ((), (name,))
        ]
        for v in (stack, framework)
    )
    return plain[0] != plain[1] and own[0] == own[1]


def _figures(record: FrameworkProfile | FrameworkMemory) -> list[object]:
    names = (field.name for field in fields(record) if field.name not in ("name", "sources"))
    return [getattr(record, name) for name in names]


def switches_undone(framework: str, variant: str) -> tuple[str, ...]:
    """Settings of a variant that change nothing beside the others that it names."""
    name, chosen = split_variant(variant)
    whole = _behaviour(framework, variant)

    def without(switch: str) -> str:
        return with_options(name, framework, tuple(c for c in chosen if c != switch))

    return tuple(c for c in chosen if _behaviour(framework, without(c)) == whole)


def _behaviour(framework: str, variant: str) -> list[object]:
    """All that the cost model reads of a framework, without where it comes from."""
    records = (framework_profile(framework, variant), memory_behaviour(framework, variant))
    return [figure for record in records for figure in _figures(record)]


def least_gain() -> float:
    """Share of a step that a setting has to save to be worth naming [1]."""
    return float(_preset()["least_gain"][0])
