"""Why the runner-up lost, and what would have changed the choice.

The plans of the answer are evaluated again, exactly, in scenarios that differ in one thing from
the one given. Bandwidth and memory change continuously: the change that flips the choice is
found by bisection. Batch, sequence length and GPU count change by factors of two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from meshplan.cost.memory import Verdict
from meshplan.inputs.scenario import Scenario
from meshplan.search.adapt import adapt, legal_only
from meshplan.search.evaluate import evaluate, pessimistic
from meshplan.search.objective import complexity, field_order, rank_keys
from meshplan.search.sizes import with_gpus
from meshplan.space.plan import Plan, PlanGrid

__all__ = ["Change", "Flip", "find_flips", "winner"]

Change = Literal["network_bandwidth", "device_memory", "global_batch", "seq_len", "num_gpus"]

_FACTORS = (2.0, 4.0)
_SPAN = 8.0
_BISECTIONS = 7


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
class _Outcome:
    rank: int | None
    plan: Plan | None
    gain: float | None


def winner(scenario: Scenario, plans: Sequence[Plan]) -> _Outcome:
    """Which of the plans wins in a scenario, after carrying each over to it."""
    carried = [adapt(plan, scenario) for plan in plans]
    legal = {id(p) for p in legal_only(scenario, [p for p in carried if p is not None])}
    places = [i for i, p in enumerate(carried) if p is not None and id(p) in legal]
    if not places:
        return _Outcome(None, None, None)
    grid = PlanGrid.of([p for i in places if (p := carried[i]) is not None])
    result = evaluate(scenario, grid)
    value = np.where(result.memory.verdict == Verdict.FITS, pessimistic(result.time), np.inf)
    if not np.isfinite(value).any():
        return _Outcome(None, None, None)
    keys = rank_keys(
        value, parts=complexity(grid), field=field_order(grid), best=float(value.min())
    )
    first = int(keys.order()[0])
    chosen = places.index(0) if 0 in places else None
    gain = None
    if chosen is not None and np.isfinite(value[chosen]):
        gain = float(value[chosen] / value[first] - 1.0)
    return _Outcome(places[first], carried[places[first]], gain)


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


def _with_memory(scenario: Scenario, factor: float) -> Scenario | None:
    device = scenario.cluster.device
    changed = replace(
        device,
        memory_bytes=device.memory_bytes * factor,
        usable_bytes=device.usable_bytes * factor,
    )
    return replace(scenario, cluster=replace(scenario.cluster, device=changed))


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
_CONTINUOUS: dict[Change, _Change] = {
    "network_bandwidth": _with_bandwidth,
    "device_memory": _with_memory,
}
_DISCRETE: dict[Change, _Change] = {
    "global_batch": _with_batch,
    "seq_len": _with_seq_len,
    "num_gpus": _with_size,
}


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
        At most two flips for each kind of change, one up and one down.
    """
    flips = []
    for change, make in _CONTINUOUS.items():
        for target in (1.0 / _SPAN, _SPAN):
            flips.append(_bisect(scenario, plans, change=change, make=make, target=target))
    for change, make in _DISCRETE.items():
        for sign in (-1, 1):
            flips.append(_ladder(scenario, plans, change=change, make=make, sign=sign))
    return tuple(flip for flip in flips if flip is not None)


def _flip(
    scenario: Scenario, changed: Scenario, change: Change, factor: float, outcome: _Outcome
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


def _ladder(
    scenario: Scenario, plans: Sequence[Plan], *, change: Change, make: _Change, sign: int
) -> Flip | None:
    for factor in _FACTORS:
        changed = make(scenario, factor**sign)
        if changed is None:
            return None
        outcome = winner(changed, plans)
        if outcome.rank != 0:
            return _flip(scenario, changed, change, factor**sign, outcome)
    return None


def _bisect(
    scenario: Scenario, plans: Sequence[Plan], *, change: Change, make: _Change, target: float
) -> Flip | None:
    """Narrow down the factor between 1 and the target at which the winner changes."""
    found: Flip | None = None
    same, other = 1.0, target
    for _ in range(_BISECTIONS + 1):
        factor = other if found is None else float(np.sqrt(same * other))
        changed = make(scenario, factor)
        if changed is None:
            return None
        outcome = winner(changed, plans)
        if outcome.rank != 0:
            found, other = _flip(scenario, changed, change, factor, outcome), factor
        elif found is None:
            return None
        else:
            same = factor
    return found
