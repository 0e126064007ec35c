"""Which settings of its framework a scenario may turn on, in words: what the form offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np

from meshplan.app.request import read_scenario
from meshplan.inputs.load.profile import rivals_of
from meshplan.inputs.load.switches import switches_of, switches_off, switches_undone
from meshplan.inputs.scenario import Scenario
from meshplan.inputs.variants import Switch, split_variant, with_options
from meshplan.space.facts import facts_of
from meshplan.space.names import from_text
from meshplan.space.plan import Framework
from meshplan.space.rules import rules_of
from meshplan.space.rules.rule import Fields
from meshplan.text import LANGUAGES, has, t

__all__ = ["settings"]

Json = dict[str, Any]


def settings(request: Mapping[str, Any]) -> Json:
    """Say which settings a framework has for a model and a job.

    Args:
        request: a scenario, and ``lang``.

    Returns:
        ``settings``: those that the framework has options for and that would change something in
        the stack named, and those that are on whether they do or not. Each with ``name``, ``said``,
        ``flags``, ``rivals`` (those that it excludes), ``cautions``, ``on``, ``legal`` (whether
        some plan may have it beside the others that are on) and ``why`` (what is wrong with it,
        empty where nothing is).

    Raises:
        UserError: for a scenario that cannot be read.
    """
    asked = dict(request)
    spoken = asked.pop("lang", "")
    lang = spoken if spoken in LANGUAGES else "en"
    scenario = read_scenario(asked)
    framework = scenario.frameworks[0]
    stack, chosen = split_variant(scenario.variant)
    offered = {s.name for s in switches_off(replace(scenario, variant=stack), framework).values()}
    shown = [s for s in switches_of(framework) if s.name in offered or s.name in chosen]
    undone = switches_undone(framework, scenario.variant)
    return {
        "settings": [
            _setting(scenario, switch, lang, fits=switch.name in offered, undone=undone)
            for switch in shown
        ]
    }


def _setting(
    scenario: Scenario, switch: Switch, lang: str, *, fits: bool, undone: tuple[str, ...]
) -> Json:
    broken = _refused_beside(scenario, switch)
    why = t(broken, lang) if broken else ""
    if not why and not fits:
        why = t("web.setting_idle", lang)
    elif not why and switch.name in undone:
        why = t("web.setting_undone", lang)
    name = f"switch.name.{switch.name}"
    return {
        "name": switch.name,
        "said": t(name, lang) if has(name, lang) else switch.name,
        "flags": list(switch.flags),
        "rivals": list(rivals_of(switch.name)),
        "cautions": [t(f"switch.caution.{code}", lang) for code in switch.cautions],
        "on": switch.name in split_variant(scenario.variant)[1],
        "legal": not broken,
        "why": why,
    }


def _refused_beside(scenario: Scenario, switch: Switch) -> str:
    """Code of the rule that a setting breaks whatever the plan; empty where it breaks none."""
    stack, chosen = split_variant(scenario.variant)
    others = tuple(n for n in chosen if n not in (switch.name, *rivals_of(switch.name)))
    without = _refused(scenario, with_options(stack, switch.framework, others), switch.framework)
    on = with_options(stack, switch.framework, (*others, switch.name))
    added = [code for code in _refused(scenario, on, switch.framework) if code not in without]
    return f"rule.{added[0]}" if added else ""


def _refused(scenario: Scenario, variant: str, framework: str) -> list[str]:
    """Rules that look at no plan and are broken."""
    facts = facts_of(replace(scenario, variant=variant))
    nobody = cast(Fields, None)  # they read no plan
    rules = rules_of(from_text(Framework, framework))
    return [r.code for r in rules if not r.reads and not np.all(r.legal(facts, nobody))]
