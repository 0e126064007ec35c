"""Why the runner-up lost, and what would have changed the choice.

The plans of the answer are evaluated again, exactly, in scenarios that differ in one thing from
the one given. Bandwidth and memory change continuously: the change that flips the choice is
found from the peaks and by bisection. Batch, sequence length and GPU count change by factors of
two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from meshplan.cost.memory import Verdict
from meshplan.cost.step import step_time
from meshplan.inputs.scenario import Scenario
from meshplan.search.carry import carry, legal_only
from meshplan.search.evaluate import evaluate, pessimistic
from meshplan.search.objective import TIE, field_order
from meshplan.search.sizes import with_gpus
from meshplan.space.plan import Plan, PlanGrid

__all__ = ["Change", "Flip", "Outcome", "find_flips", "winner"]

Change = Literal["network_bandwidth", "device_memory", "global_batch", "seq_len", "num_gpus"]

FloatArray = npt.NDArray[np.float64]

_BATCH_FACTORS = ((0.5, 0.25), (2.0, 4.0))
_SPAN = 8.0
_BISECTIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """A change of the scenario that changes the choice.

    Attributes:
        change: what changes.
        factor: by how much; the smallest such change found in its direction.
        before: what stands in the scenario, in the unit of ``change``.
        after: what would have to stand there.
        rank: place (from 0) in the given answer of the plan that would win; None when none of
            the plans would fit.
        plan: that plan, as it would look then.
        gain: how much faster it would be than the plan chosen here, as a fraction; None when
            the plan chosen here would not fit or not be legal.
    """

    change: Change
    factor: float
    before: float
    after: float
    rank: int | None
    plan: Plan | None
    gain: float | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Which plan wins, how it looks, and by how much it beats the one chosen so far."""

    rank: int | None
    plan: Plan | None
    gain: float | None


@dataclass(frozen=True, slots=True)
class _Field:
    """The plans of the answer that are legal in a scenario, with their exact numbers."""

    places: list[int]
    grid: PlanGrid
    value: FloatArray
    peak_bytes: FloatArray
    out: npt.NDArray[np.bool_]

    def winner(self, *, usable_bytes: float) -> Outcome:
        """Which plan wins where a device can use so much memory.

        The plan chosen so far is given up only for one that beats it by more than a tie.
        """
        fits = (self.peak_bytes <= usable_bytes) & ~self.out
        value = np.where(fits, self.value, np.inf)
        if not fits.any():
            return Outcome(None, None, None)
        first = int(np.lexsort((field_order(self.grid), value))[0])
        if 0 not in self.places or not np.isfinite(value[self.places.index(0)]):
            return Outcome(self.places[first], self.grid.plan(first), None)
        gain = float(value[self.places.index(0)] / value[first] - 1.0)
        chosen = first if gain > TIE else self.places.index(0)
        return Outcome(self.places[chosen], self.grid.plan(chosen), gain)


def _fields(scenarios: Sequence[Scenario], plans: Sequence[Plan]) -> list[_Field | None]:
    """Carry the plans over to scenarios that differ in the batch alone, and evaluate them.

    Time and memory see the batch as the number of micro-batches of a plan and nothing else, so
    that all are evaluated together.
    """
    kept: list[tuple[int, int, Plan]] = []
    for number, scenario in enumerate(scenarios):
        carried = [(i, carry(plan, scenario)) for i, plan in enumerate(plans)]
        present = [(i, plan) for i, plan in carried if plan is not None]
        legal = {id(plan) for plan in legal_only(scenario, [plan for _, plan in present])}
        kept.extend((number, i, plan) for i, plan in present if id(plan) in legal)
    if not kept:
        return [None] * len(scenarios)
    result = evaluate(scenarios[0], PlanGrid.of([plan for _, _, plan in kept]))
    whose = np.array([number for number, _, _ in kept])
    fields: list[_Field | None] = []
    for number in range(len(scenarios)):
        own = np.flatnonzero(whose == number)
        field = _Field(
            places=[kept[k][1] for k in own],
            grid=result.grid.take(own),
            value=pessimistic(result.time)[own],
            peak_bytes=np.asarray(result.memory.peak_bytes)[own],
            out=np.asarray(result.memory.verdict)[own] == Verdict.OOM,
        )
        fields.append(field if len(own) else None)
    return fields


def _outcome(scenario: Scenario, field: _Field | None) -> Outcome:
    if field is None:
        return Outcome(None, None, None)
    return field.winner(usable_bytes=scenario.cluster.device.usable_bytes)


def winner(scenario: Scenario, plans: Sequence[Plan]) -> Outcome:
    """Which of the plans wins in a scenario, after carrying each over to it."""
    return _outcome(scenario, _fields([scenario], plans)[0])


def _with_bandwidth(scenario: Scenario, factor: float) -> Scenario | None:
    """Change the network between nodes; None when the cluster is a single node."""
    cluster = scenario.cluster
    inside = cluster.gpus_per_node
    if cluster.tiers[-1].num_gpus <= inside:
        return None
    tiers = tuple(
        replace(t, bandwidth_bytes_per_s=t.bandwidth_bytes_per_s * factor)
        if t.nics_per_node or (t.num_gpus > inside and t is not cluster.tiers[0])
        else t
        for t in cluster.tiers
    )
    return replace(scenario, cluster=replace(cluster, tiers=tiers))


def _with_batch(scenario: Scenario, factor: float) -> Scenario | None:
    batch = scenario.job.global_batch * factor
    if batch != int(batch) or batch < 1:
        return None
    return replace(scenario, job=replace(scenario.job, global_batch=int(batch)))


def _with_seq_len(scenario: Scenario, factor: float) -> Scenario | None:
    """Change the sequence length and keep the tokens per step."""
    seq_len, batch = scenario.job.seq_len * factor, scenario.job.global_batch / factor
    if seq_len != int(seq_len) or batch != int(batch) or batch < 1:
        return None
    job = replace(scenario.job, seq_len=int(seq_len), global_batch=int(batch))
    return replace(scenario, job=job)


def _with_size(scenario: Scenario, factor: float) -> Scenario | None:
    num_gpus = scenario.cluster.num_gpus * factor
    if num_gpus != int(num_gpus) or num_gpus < 1:
        return None
    return with_gpus(scenario, int(num_gpus))


_Change = Callable[[Scenario, float], Scenario | None]
_DOUBLED: dict[Change, _Change] = {"seq_len": _with_seq_len, "num_gpus": _with_size}


def _quantity(scenario: Scenario, change: Change) -> float:
    match change:
        case "network_bandwidth":
            return scenario.cluster.tiers[-1].bandwidth_bytes_per_s
        case "device_memory":
            return scenario.cluster.device.usable_bytes
        case "global_batch":
            return float(scenario.job.global_batch)
        case "seq_len":
            return float(scenario.job.seq_len)
        case "num_gpus":
            return float(scenario.cluster.num_gpus)


def find_flips(scenario: Scenario, plans: Sequence[Plan]) -> tuple[Flip, ...]:
    """Find the smallest change in each direction that makes another plan the best one.

    Args:
        scenario: the scenario given.
        plans: the answer, best first. Only these compete.

    Returns:
        At most two flips for each kind of change, one up and one down. More memory is not asked
        about: it would let in plans that are not in the answer.
    """
    given = _fields([scenario], plans)[0]
    flips: list[Flip | None] = []
    if given is not None:
        flips.append(_less_memory(scenario, given))
        flips.extend(_bandwidth(scenario, given, target=t) for t in (1.0 / _SPAN, _SPAN))
    flips.extend(_batches(scenario, plans))
    flips.extend(
        _step(scenario, plans, change=change, make=make, factor=factor)
        for change, make in _DOUBLED.items()
        for factor in (0.5, 2.0)
    )
    return tuple(flip for flip in flips if flip is not None)


def _flip(
    scenario: Scenario, changed: Scenario, change: Change, factor: float, outcome: Outcome
) -> Flip:
    return Flip(
        change=change,
        factor=factor,
        before=_quantity(scenario, change),
        after=_quantity(changed, change),
        rank=outcome.rank,
        plan=outcome.plan,
        gain=outcome.gain,
    )


def _step(
    scenario: Scenario, plans: Sequence[Plan], *, change: Change, make: _Change, factor: float
) -> Flip | None:
    changed = make(scenario, factor)
    if changed is None:
        return None
    outcome = winner(changed, plans)
    return None if outcome.rank == 0 else _flip(scenario, changed, change, factor, outcome)


def _batches(scenario: Scenario, plans: Sequence[Plan]) -> Iterator[Flip]:
    """The smallest change of the batch in each direction."""
    factors = [f for side in _BATCH_FACTORS for f in side]
    made = {f: changed for f in factors if (changed := _with_batch(scenario, f)) is not None}
    fields = dict(zip(made, _fields(list(made.values()), plans), strict=True))
    for side in _BATCH_FACTORS:
        for factor in (f for f in side if f in made):
            outcome = _outcome(made[factor], fields[factor])
            if outcome.rank != 0:
                yield _flip(scenario, made[factor], "global_batch", factor, outcome)
                break


def _less_memory(scenario: Scenario, field: _Field) -> Flip | None:
    """The memory below which the best plan no longer fits: its own peak."""
    if 0 not in field.places:
        return None
    usable = scenario.cluster.device.usable_bytes
    after = float(field.peak_bytes[field.places.index(0)])
    outcome = field.winner(usable_bytes=np.nextafter(after, 0.0))
    return Flip(
        change="device_memory",
        factor=after / usable,
        before=usable,
        after=after,
        rank=outcome.rank,
        plan=outcome.plan,
        gain=outcome.gain,
    )


def _bandwidth(scenario: Scenario, field: _Field, *, target: float) -> Flip | None:
    """Narrow down the network bandwidth at which the winner changes.

    Rules and memory do not see the bandwidth, so that the times alone are evaluated again.
    """
    found: Flip | None = None
    same, other = 1.0, target
    for _ in range(_BISECTIONS + 1):
        factor = other if found is None else float(np.sqrt(same * other))
        changed = _with_bandwidth(scenario, factor)
        if changed is None:
            return None
        value = pessimistic(step_time(changed, field.grid, exact=True))
        outcome = _outcome(changed, replace(field, value=value))
        if outcome.rank != 0:
            found = _flip(scenario, changed, "network_bandwidth", factor, outcome)
            other = factor
        elif found is None:
            return None
        else:
            same = factor
    return found
