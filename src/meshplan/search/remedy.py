"""What would make it fit, each found by evaluating it and not by a rule of thumb."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from meshplan.cost.memory import Verdict, peak_memory
from meshplan.inputs.scenario import Scenario
from meshplan.search.carry import carry, legal_only, with_degree
from meshplan.search.economics import run_cost
from meshplan.search.evaluate import evaluate, pessimistic
from meshplan.search.fitting import Kind, Remedy, fastest_plan, remedy_with, some_plan_fits
from meshplan.search.neighbours import shown
from meshplan.search.rank import rank_plans
from meshplan.search.remedy_jobs import other_jobs
from meshplan.search.sizes import candidate_sizes, with_gpus
from meshplan.space.axes import axes_of
from meshplan.space.facts import facts_of
from meshplan.space.plan import Framework, Offload, Plan, PlanGrid, Recompute

__all__ = [
    "remedies_for_deadline",
    "remedies_for_plan",
    "remedies_for_scenario",
]

_DEGREES = (1, 2, 4, 8, 16, 32, 64)
_LARGEST_FACTOR = 64
_SHORTEST_SEQ_LEN = 256


def remedies_for_scenario(scenario: Scenario) -> tuple[Remedy, ...]:
    """What would make some plan fit where none does.

    Frees the pinned axes, one at a time and then all, tries the other frameworks, finds the
    longest sequence and the fewest GPUs that work.
    """
    found = list(_freed(scenario))
    enough: list[str] = []
    for framework in Framework:
        name = framework.name.lower()
        if name in scenario.frameworks:
            continue
        plan = fastest_plan(replace(scenario, frameworks=(name,)))
        if plan is not None:
            enough.append(name)
            found.append(remedy_with(scenario, plan, "framework", scenario.frameworks, name))
    found.extend(_shorter_sequence(scenario))
    found.extend(_more_gpus(scenario))
    found.extend(other_jobs(scenario, enough=enough))
    return tuple(found)


def _freed(scenario: Scenario) -> Iterator[Remedy]:
    """Pinned axes that stand in the way: each that does so alone, or else all of them."""
    alone = False
    for axis, values in scenario.axes.items():
        rest = {name: v for name, v in scenario.axes.items() if name != axis}
        plan = fastest_plan(replace(scenario, axes=rest))
        if plan is not None:
            alone = True
            after = {axis: shown(plan, axis)}
            yield remedy_with(scenario, plan, "free_axis", {axis: values}, after)
    if alone or len(scenario.axes) < 2:
        return
    plan = fastest_plan(replace(scenario, axes={}))
    if plan is not None:
        after = {axis: shown(plan, axis) for axis in scenario.axes}
        yield remedy_with(scenario, plan, "free_axis", dict(scenario.axes), after)


def _with_seq_len(scenario: Scenario, seq_len: int) -> Scenario:
    return replace(scenario, job=replace(scenario.job, seq_len=seq_len))


def _shorter_sequence(scenario: Scenario) -> Iterator[Remedy]:
    """The longest sequence, in quarters between powers of two, for which a plan fits."""
    now = scenario.job.seq_len
    length = now // 2
    while length >= _SHORTEST_SEQ_LEN and not some_plan_fits(_with_seq_len(scenario, length)):
        length //= 2
    if length < _SHORTEST_SEQ_LEN:
        return
    for quarters in (7, 6, 5, 4):
        shorter = _with_seq_len(scenario, length * quarters // 4)
        plan = fastest_plan(shorter)
        if plan is not None:
            yield remedy_with(shorter, plan, "seq_len", now, shorter.job.seq_len)
            return


def _more_gpus(scenario: Scenario) -> Iterator[Remedy]:
    """The fewest GPUs, among the sizes worth asking about, for which a plan fits.

    With the pinned axes as they are if that can work, or else with all of them free.
    """
    now = scenario.cluster.num_gpus
    sizes = candidate_sizes(scenario.cluster, up_to=now * _LARGEST_FACTOR)
    choices = [scenario, replace(scenario, axes={})] if scenario.axes else [scenario]
    for choice in choices:
        for size in (s for s in sizes if s > now):
            larger = with_gpus(choice, size)
            plan = fastest_plan(larger)
            if plan is not None:
                yield remedy_with(larger, plan, "num_gpus", now, size)
                return


def remedies_for_deadline(scenario: Scenario, fastest: Plan) -> tuple[Remedy, ...]:
    """What would bring a run in on time: a later deadline, or the fewest GPUs that are enough.

    Args:
        scenario: has a token budget and a deadline.
        fastest: the fastest plan there is on its cluster.
    """
    pace = float(pessimistic(evaluate(scenario, PlanGrid.of([fastest])).time)[0])
    cost = run_cost(scenario, step_time_s=pace)
    assert cost is not None, "without a token budget nothing is late"
    before = scenario.job.deadline_days
    found = [remedy_with(scenario, fastest, "deadline_days", before, cost.days)]
    now = scenario.cluster.num_gpus
    for size in candidate_sizes(scenario.cluster, up_to=now * _LARGEST_FACTOR):
        if size <= now:
            continue
        larger = with_gpus(scenario, size)
        best = rank_plans(larger, top=1).best
        if best is None:
            continue
        cost = run_cost(larger, step_time_s=float(pessimistic(best.time)[0]))
        if cost is not None and cost.meets_deadline:
            found.append(remedy_with(larger, best.grid.plan(0), "num_gpus", now, size))
            break
    return tuple(found)


def remedies_for_plan(scenario: Scenario, plan: Plan) -> tuple[Remedy, ...]:
    """What would make a plan fit that does not.

    For each knob the fastest single change that does; then the best plan on the same GPUs,
    whatever its degrees. Where there is none either, what :func:`remedies_for_scenario` finds: a
    shorter sequence, the fewest GPUs, another job.
    """
    found: list[Remedy] = []
    for kind, variants in _variants(scenario, plan):
        remedy = _fastest_that_fits(scenario, plan, kind, variants)
        if remedy is not None:
            found.append(remedy)
    now = scenario.job.seq_len
    for length in _shorter(now):
        shorter = _with_seq_len(scenario, length)
        carried = carry(plan, shorter)
        if carried is not None and _fits(shorter, carried):
            found.append(remedy_with(shorter, carried, "seq_len", now, length))
            break
    for size in candidate_sizes(scenario.cluster, up_to=scenario.cluster.num_gpus * 16):
        if size <= scenario.cluster.num_gpus:
            continue
        larger = with_gpus(scenario, size)
        carried = carry(plan, larger)
        if carried is not None and _fits(larger, carried):
            found.append(remedy_with(larger, carried, "num_gpus", scenario.cluster.num_gpus, size))
            break
    free = replace(scenario, axes={}, frameworks=(plan.framework.name.lower(),))
    other = fastest_plan(free)
    if other is not None:
        return (*found, remedy_with(free, other, "plan", plan, other))
    named = {remedy.kind for remedy in found}
    more = remedies_for_scenario(free)
    return (*found, *(remedy for remedy in more if remedy.kind not in named))


def _shorter(seq_len: int) -> Iterator[int]:
    """Shorter sequences in steps of an eighth, longest first, each a multiple of 128."""
    seen = set()
    for eighths in (7, 6, 5, 4, 3, 2, 1):
        length = seq_len * eighths // 8 // 128 * 128
        if length >= _SHORTEST_SEQ_LEN and length not in seen:
            seen.add(length)
            yield length


def _fits(scenario: Scenario, plan: Plan) -> bool:
    if not legal_only(scenario, [plan]):
        return False
    return bool(peak_memory(scenario, PlanGrid.of([plan])).verdict[0] == Verdict.FITS)


def _variants(scenario: Scenario, plan: Plan) -> Iterator[tuple[Kind, list[Plan]]]:
    """Plans that differ from the one given in a single knob, knob by knob."""
    modes = axes_of(facts_of(scenario), framework=plan.framework, pinned={})["recompute"]
    pairs = [(Recompute(mode), layers) for mode, layers in zip(*modes.values, strict=True)]
    yield "recompute", [replace(plan, recompute=m, recompute_layers=n) for m, n in pairs]
    if not plan.offload & Offload.OPTIMIZER:
        yield "offload", [replace(plan, offload=plan.offload | Offload.OPTIMIZER)]
    layers = scenario.model.num_layers
    moved = sorted({layers * eighths // 8 for eighths in range(1, 8)} | {layers - 1})
    yield "offload_layers", [replace(plan, offload_layers=n) for n in moved if n]
    yield "zero", [replace(plan, zero=z) for z in range(plan.zero + 1, 4)]
    smaller = [b for b in range(1, plan.micro_batch) if plan.micro_batch % b == 0]
    carried = [carry(replace(plan, micro_batch=b), scenario) for b in smaller]
    yield "micro_batch", [p for p in carried if p is not None]
    axes: tuple[Kind, ...] = ("tp", "pp", "cp", "ep")
    for axis in axes:
        more = [d for d in _DEGREES if d > getattr(plan, axis)]
        carried = [carry(with_degree(plan, axis, d), scenario) for d in more]
        yield axis, [p for p in carried if p is not None]


def _fastest_that_fits(
    scenario: Scenario, plan: Plan, kind: Kind, variants: Sequence[Plan]
) -> Remedy | None:
    legal = legal_only(scenario, variants)
    if not legal:
        return None
    result = evaluate(scenario, PlanGrid.of(legal))
    value = np.where(result.memory.verdict == Verdict.FITS, pessimistic(result.time), np.inf)
    if not np.isfinite(value).any():
        return None
    best = legal[int(np.argmin(value))]
    return remedy_with(scenario, best, kind, shown(plan, kind), shown(best, kind))
