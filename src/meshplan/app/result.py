"""Result records to JSON values: one shape for command line, Python and web.

Every name is documented in ``docs/en/json.md``; ``SCHEMA_VERSION`` changes when one does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import IntEnum, IntFlag
from typing import Any

import numpy as np

from meshplan.app.reproduce import plan_options
from meshplan.cost.bands import memory_low_high
from meshplan.cost.memory import StageMemory, Verdict, stage_memories
from meshplan.explanation.provenance import Constant
from meshplan.explanation.records import Formula
from meshplan.inputs.load.profile import profile_of
from meshplan.inputs.scenario import Scenario
from meshplan.search.answer import Answer, Entry, decided_by
from meshplan.search.economics import run_cost
from meshplan.search.evaluate import Evaluation, part_seconds
from meshplan.search.sensitivity import Flip
from meshplan.search.switches import SwitchGain, saved_share
from meshplan.space.names import recompute_text, to_text
from meshplan.space.plan import Plan, PlanGrid

__all__ = [
    "differences_json",
    "entries_json",
    "explanation_json",
    "flips_json",
    "jsonable",
    "plan_json",
    "rejected_json",
    "runner_up_json",
    "searched_json",
    "stage_json",
    "switches_json",
]

Json = dict[str, Any]


def jsonable(value: object) -> Any:
    """Turn a value of the core into plain JSON: enums to text, records to objects.

    Numbers that are not finite become null: JSON has no word for them.
    """
    match value:
        case IntEnum() | IntFlag():
            return value.name.lower() if isinstance(value, Verdict) else to_text(value)
        case bool() | int() | str() | None:
            return value
        case float() | np.floating():
            return float(value) if math.isfinite(value) else None
        case np.bool_() | np.integer():
            return value.item()
        case Plan():
            return plan_json(value)
        case Mapping():
            return {str(key): jsonable(item) for key, item in value.items()}
        case np.ndarray() | Iterable():
            return [jsonable(item) for item in value]
    assert is_dataclass(value) and not isinstance(value, type), value
    return {f.name: jsonable(getattr(value, f.name)) for f in fields(value)}


def plan_json(plan: Plan) -> Json:
    """A plan as an object with the field names of :class:`~meshplan.space.plan.Plan`."""
    values = {f.name: jsonable(getattr(plan, f.name)) for f in fields(Plan)}
    values["recompute"] = recompute_text(plan.recompute, layers=plan.recompute_layers)
    return values


def stage_json(stage: StageMemory) -> Json:
    """Memory of one stage: the terms alive at its peak event."""
    return {
        "stage": stage.stage,
        "num_layers": stage.num_layers,
        "peak_bytes": stage.peak_bytes,
        "peak_event": stage.peak_event.name.lower(),
        "host_bytes": stage.host_bytes,
        "terms": [
            {
                "code": term.code,
                "bytes": term.num_bytes,
                "allowance": term.allowance,
                "numbers": jsonable(dict(term.numbers)),
            }
            for term in stage.peak_terms
        ],
        "events": {event.name.lower(): total for event, total in stage.totals.items()},
    }


def _memory_band(scenario: Scenario, entry: Entry) -> Json:
    """Ends of the 80 % band of the peak."""
    profile = profile_of(scenario, entry.plan.framework.name.lower())
    low, high = memory_low_high(profile.band, entry.result.memory.peak_bytes)
    return {"low_bytes": float(low[0]), "high_bytes": float(high[0])}


def _memory_json(scenario: Scenario, entry: Entry, stages: Sequence[StageMemory]) -> Json:
    """Memory of the worst stage and, line by line, of each stage."""
    memory = entry.result.memory
    usable = float(memory.usable_bytes)
    peak = float(memory.peak_bytes[0])
    return {
        "peak_bytes": peak,
        "usable_bytes": usable,
        "band": _memory_band(scenario, entry),
        "headroom_bytes": usable - peak,
        "capacity_bytes": float(scenario.cluster.device.memory_bytes),
        "verdict": jsonable(Verdict(int(memory.verdict[0]))),
        "worst_stage": int(memory.worst_stage[0]),
        "host_bytes": float(memory.host_bytes[0]),
        "host_capacity_bytes": float(scenario.cluster.host_memory_bytes),
        "stages": [stage_json(stage) for stage in stages],
    }


def _stages(entries: Sequence[Entry]) -> list[tuple[StageMemory, ...]]:
    """Memory of each plan stage by stage; those of one scenario are broken down together."""
    alike: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for place, entry in enumerate(entries):
        alike.setdefault((id(entry.scenario), entry.plan.stage_layers), []).append(place)
    found: dict[int, tuple[StageMemory, ...]] = {}
    for places in alike.values():
        plans = PlanGrid.of([entries[place].plan for place in places])
        stages = stage_memories(entries[places[0]].scenario, plans, peaks_only=True)
        found.update(zip(places, stages, strict=True))
    return [found[place] for place in range(len(entries))]


def _entry_json(
    entry: Entry, *, rank: int, stages: Sequence[StageMemory], asked: Scenario | None
) -> Json:
    """One plan with everything that was worked out for it."""
    scenario, time = entry.scenario, entry.result.time
    shown = plan_json(entry.plan)
    cost = run_cost(scenario, step_time_s=entry.step_time_s)
    tokens_per_s = scenario.job.tokens_per_step / entry.step_time_s
    return {
        "rank": rank,
        "plan": shown,
        "options": plan_options(scenario, entry.plan, shown, asked=asked),
        "num_gpus": scenario.cluster.num_gpus,
        "step_time_s": entry.step_time_s,
        "band": {"low_s": float(time.low_s[0]), "high_s": float(time.high_s[0])},
        "time": part_seconds(entry.result),
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_gpu": tokens_per_s / scenario.cluster.num_gpus,
        "mfu": float(time.mfu[0]),
        "mfu_causal": float(time.mfu_causal[0]),
        "hfu": float(time.hfu[0]),
        "run": None if cost is None else jsonable(cost),
        "days": None if cost is None else cost.days,
        "gpu_hours": None if cost is None else cost.gpu_hours,
        "cost_usd": None if cost is None else cost.cost_usd,
        "memory": _memory_json(scenario, entry, stages),
        "num_variants": entry.num_variants,
    }


def entries_json(entries: Sequence[Entry], *, asked: Scenario | None = None) -> list[Json]:
    """Plans in the order given, numbered from 1.

    Args:
        entries: the plans.
        asked: what was asked, where the plans come from a search over sizes of its cluster.
    """
    found = zip(entries, _stages(entries), strict=True)
    return [
        _entry_json(entry, rank=place, stages=stages, asked=asked)
        for place, (entry, stages) in enumerate(found, start=1)
    ]


def searched_json(answer: Answer, *, elapsed_s: float) -> Json:
    """How much was looked at and how fast."""
    counts = {f.name: getattr(answer.counts, f.name) for f in fields(answer.counts)}
    screen_s = counts.pop("screen_s")
    rate = counts["num_legal"] / screen_s if screen_s else 0.0
    return {**counts, "evaluations_per_s": rate, "elapsed_s": elapsed_s}


def rejected_json(answer: Answer) -> Json:
    """What was refused by which rule, most first, with the first plan that each refused."""
    rules = sorted(answer.rejected.items(), key=lambda item: (-item[1].count, item[0]))
    return {
        "rejected": {rule: rejection.count for rule, rejection in rules},
        "rejected_examples": {rule: plan_json(rejection.example) for rule, rejection in rules},
    }


def _part_differences(best: Entry, other: Entry) -> Json:
    """Seconds by which each part of another plan's step is longer than the best plan's."""
    ours, theirs = part_seconds(best.result), part_seconds(other.result)
    return {part: theirs[part] - ours[part] for part in ours}


def runner_up_json(answer: Answer) -> Json | None:
    """Why the second plan is not the first."""
    if len(answer.entries) < 2:
        return None
    best, second = answer.entries[:2]
    return {
        "rank": 2,
        "decided_by": decided_by(answer.scenario, best, second),
        "slower_fraction": second.step_time_s / best.step_time_s - 1.0,
        "slower_s": second.step_time_s - best.step_time_s,
        "differences": _part_differences(best, second),
    }


def differences_json(entries: Sequence[Entry]) -> Json:
    """Which of the plans is best, and how the parts of the others differ from it.

    Where none fits none is best, and the others are held against the first.
    """
    fitting = [i for i, entry in enumerate(entries) if entry.fits]
    best = min(fitting, key=lambda i: entries[i].value_s, default=None)
    base = entries[best or 0]
    return {
        "best": None if best is None else best + 1,
        "differences": [_part_differences(base, other) for other in entries],
    }


def flips_json(flips: Iterable[Flip]) -> list[Json]:
    """Changes of the scenario that change the choice; ``rank`` counts from 1."""
    return [
        {**jsonable(flip), "rank": None if flip.rank is None else flip.rank + 1} for flip in flips
    ]


def switches_json(gains: Iterable[SwitchGain]) -> list[Json]:
    """Settings worth turning on, and what the plan and the best plan would be with each."""
    return [
        {
            "switch": gain.switch.name,
            "variant": gain.variant,
            "flags": list(gain.switch.flags),
            "cautions": list(gain.switch.cautions),
            "gain": gain.gain,
            "same": None if gain.same is None else _switched_json(gain.off, gain.same),
            "best": None if gain.best is None else _switched_json(gain.off, gain.best),
        }
        for gain in gains
    ]


def _switched_json(off: Evaluation, on: Evaluation) -> Json:
    """A plan with a setting, against the plan without it."""
    peak = float(on.memory.peak_bytes[0])
    return {
        "plan": plan_json(on.grid.plan(0)),
        "step_time_s": float(on.time.step_time_s[0]),
        "gain": saved_share(off, on),
        "peak_bytes": peak,
        "saved_bytes": float(off.memory.peak_bytes[0]) - peak,
        "verdict": jsonable(Verdict(int(on.memory.verdict[0]))),
    }


def explanation_json(formulas: Iterable[Formula], constants: Iterable[Constant]) -> Json:
    """Formulas with their numbers, and the constants behind them with their sources."""
    return {
        "formulas": [
            {**jsonable(formula), "substituted": formula.substituted()} for formula in formulas
        ],
        "constants": jsonable(tuple(constants)),
    }
