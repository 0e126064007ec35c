"""What else could be trained on the same GPUs: fewer states, adapters, shorter sequences.

A change is said only where a plan was found that fits with it, and a pair of changes only where
neither of the two is enough.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

from meshplan.inputs.job import ADAPTERS
from meshplan.inputs.scenario import Scenario
from meshplan.search.fitting import Remedy, fastest_plan, remedy_with, some_plan_fits
from meshplan.space.plan import Framework, Plan

__all__ = ["other_jobs"]

_SHORTEST_SEQ_LEN = 256
_LORA_RANK = 16

_Change = Mapping[str, Any]


def other_jobs(scenario: Scenario, *, enough: Collection[str]) -> Iterator[Remedy]:
    """Jobs that ask less of the memory, each with the best plan that then fits.

    The optimizer with states in 16 or 8 bits keeps the job what it is; adapters on frozen
    weights, in 16 bits or in 4, do not, and come last.

    Args:
        scenario: in which nothing fits.
        enough: other frameworks in which the job fits as it is.
    """
    singles = list(_changes(scenario))
    known: list[_Change] = []
    for change in singles:
        remedy = _found(scenario, change, enough)
        if remedy is not None:
            known.append(change)
            yield remedy
    shorter = _shorter(scenario)
    for change, length in combinations([*singles, *shorter], 2):
        is_pair = "seq_len" in length and "seq_len" not in change
        if not is_pair or any(one.items() <= change.items() for one in known):
            continue
        remedy = _found(scenario, {**change, **length}, enough)
        if remedy is not None:
            known.append(change)
            yield remedy


def _changes(scenario: Scenario) -> Iterator[_Change]:
    job = scenario.job
    if job.optimizer == "adamw" and job.task not in ADAPTERS:
        yield {"optimizer": "adamw16bit"}
    if job.optimizer in ("adamw", "adamw16bit", "muon") and job.task not in ADAPTERS:
        yield {"optimizer": "adamw8bit"}
    if job.task not in ADAPTERS:
        yield {"task": "lora", "lora_rank": _LORA_RANK}
    if job.task != "qlora":
        yield {"task": "qlora", "lora_rank": job.lora_rank or _LORA_RANK}


def _shorter(scenario: Scenario) -> Iterator[_Change]:
    """Halves of the sequence, longest first; none where a shorter sequence alone would do."""
    length = scenario.job.seq_len // 2
    while length >= _SHORTEST_SEQ_LEN:
        if some_plan_fits(_with(scenario, {"seq_len": length})):
            return
        yield {"seq_len": length}
        length //= 2


def _with(scenario: Scenario, change: _Change) -> Scenario:
    return replace(scenario, job=replace(scenario.job, **change))


def _others(scenario: Scenario) -> list[str]:
    """The other frameworks; that of PEFT, where adapters are at home, comes first."""
    home = Framework.ACCELERATE
    ordered = [home, *(f for f in Framework if f is not home)]
    return [f.name.lower() for f in ordered if f.name.lower() not in scenario.frameworks]


def _found(scenario: Scenario, change: _Change, enough: Collection[str]) -> Remedy | None:
    """The best plan for the changed job, in the frameworks given or else in any that needs it."""
    changed = _with(scenario, change)
    others = [name for name in _others(scenario) if name not in enough]
    for frameworks in (scenario.frameworks, *((name,) for name in others)):
        asked = replace(changed, frameworks=frameworks)
        plan: Plan | None = fastest_plan(asked)
        if plan is not None:
            before = {name: getattr(scenario.job, name) for name in change if name != "lora_rank"}
            after = {name: value for name, value in change.items() if name != "lora_rank"}
            if frameworks != scenario.frameworks:
                before["framework"] = ", ".join(scenario.frameworks)
                after["framework"] = ", ".join(frameworks)
            return remedy_with(asked, plan, "job", before, after)
    return None
