"""What would have changed the choice.

The plans of the answer, the best plans with other degrees, and each of these with every
micro-batch and recompute mode compete again in scenarios that differ in one thing from the one
given. Bandwidth and memory change continuously: the change that flips the choice is found from
the peaks and by bisection. Batch, sequence length and GPU count change by factors of two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.search.contest import Contenders, Contest, Outcome, contenders, contests
from meshplan.search.rank import rank_plans
from meshplan.search.sizes import with_gpus
from meshplan.space.plan import Plan, PlanGrid

__all__ = ["Change", "Flip", "find_flips", "winner"]

Change = Literal["network_bandwidth", "device_memory", "global_batch", "seq_len", "num_gpus"]

_BATCH_FACTORS = ((0.5, 0.25), (2.0, 4.0))
_SPAN = 8.0
_BISECTIONS = 3


@record
class Flip:
    """A change of the scenario that changes the choice.

    Attributes:
        change: what changes.
        factor: by how much; the smallest such change found in its direction.
        before: what stands in the scenario, in the unit of ``change``.
        after: what would have to stand there.
        rank: place (from 0) in the given answer of the plan that would win; None when it is not
            in the answer, or none would fit.
        plan: that plan, as it would look then; None when none of the contenders would fit.
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


def _outcome(contest: Contest | None) -> Outcome:
    if contest is None:
        return Outcome(None, None, None)
    return contest.winner(usable_bytes=contest.scenario.cluster.device.usable_bytes)


def winner(scenario: Scenario, plans: Sequence[Plan]) -> Outcome:
    """Which of the plans wins in a scenario, after carrying each over to it."""
    listed = len(plans)
    named = Contenders(grid=PlanGrid.of(plans), num_listed=listed, num_plans=listed)
    return _outcome(contests([scenario], named)[0])


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


def find_flips(
    scenario: Scenario,
    plans: Sequence[Plan],
    *,
    others: Sequence[Plan] = (),
    sizes_searched: bool = False,
) -> tuple[Flip, ...]:
    """Find the smallest change in each direction that makes another plan the best one.

    Args:
        scenario: the scenario given.
        plans: the answer, best first.
        others: more plans that compete.
        sizes_searched: whether the answer comes from a search over cluster sizes. Then the number
            of GPUs is not asked about: the search knows the best plan of each size, and plans
            carried over from one of them know less.

    Returns:
        At most two flips for each kind of change, one up and one down, and two more for the
        batch where the GPUs cannot share the one given. More memory is not asked
        about: it would let in plans that nobody looked at.
    """
    field = contenders(scenario, plans, others)
    flips: list[Flip | None] = []
    # what differs in the batch alone is judged together
    factors = [factor for side in _BATCH_FACTORS for factor in side]
    batches = {f: changed for f in factors if (changed := _with_batch(scenario, f)) is not None}
    given, *found = contests([scenario, *batches.values()], field)
    if given is not None:
        flips.append(_less_memory(scenario, given))
        flips.extend(_bandwidth(scenario, given, target=t) for t in (1.0 / _SPAN, _SPAN))
    flips.extend(_batches(scenario, dict(zip(batches, found, strict=True))))
    flips.extend(_shared_batches(scenario, plans[0]))
    flips.extend(
        _step(scenario, field, change=change, make=make, factor=factor)
        for change, make in _DOUBLED.items()
        if not (sizes_searched and change == "num_gpus")
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
    scenario: Scenario, field: Contenders, *, change: Change, make: _Change, factor: float
) -> Flip | None:
    changed = make(scenario, factor)
    if changed is None:
        return None
    if change == "seq_len" and "micro_batch" not in scenario.axes:
        field = _same_tokens(field, factor)
    outcome = _outcome(contests([changed], field)[0])
    return None if outcome.stands else _flip(scenario, changed, change, factor, outcome)


def _same_tokens(field: Contenders, factor: float) -> Contenders:
    """Let the plans keep the tokens of a micro-batch where sequences are ``factor`` as long.

    Whoever halves the length of a sequence takes two for one, so that a plan is not beaten by
    itself with another micro-batch; one of a single sequence stays as it is where these grow.
    The plans as they were compete beside them.
    """
    grid = field.grid
    micro = grid.micro_batch / factor
    named = np.arange(len(grid)) < field.num_plans
    whole = named & (micro >= 1) & (micro == np.floor(micro))
    kept = replace(grid, micro_batch=np.where(whole, micro, grid.micro_batch).astype(np.int64))
    return replace(field, grid=PlanGrid.concatenate([kept, grid.take(np.flatnonzero(whole))]))


def _batches(scenario: Scenario, found: Mapping[float, Contest | None]) -> Iterator[Flip]:
    """The smallest change of the batch in each direction.

    Args:
        scenario: the scenario given.
        found: the contest with each other batch, by its factor.
    """
    for side in _BATCH_FACTORS:
        for factor in (f for f in side if f in found):
            outcome = _outcome(found[factor])
            if not outcome.stands:
                changed = _with_batch(scenario, factor)
                assert changed is not None, "it was judged"
                yield _flip(scenario, changed, "global_batch", factor, outcome)
                break


def _shared_batches(scenario: Scenario, chosen: Plan) -> Iterator[Flip]:
    """The nearest batches that all GPUs can share, where the one given rules such plans out.

    The best plan there is searched for: one with a replica on every GPU is in no answer yet.
    """
    batch, num_gpus = scenario.job.global_batch, scenario.cluster.num_gpus
    if not batch % num_gpus:
        return
    below = batch // num_gpus * num_gpus
    for near in (b for b in (below, below + num_gpus) if b):
        factor = near / batch
        changed = replace(scenario, job=replace(scenario.job, global_batch=near))
        best = rank_plans(changed, top=1).best
        if best is None:
            continue
        plan = best.grid.plan(0)
        outcome = winner(changed, [chosen, plan])
        if not outcome.stands and outcome.plan is not None:
            found = replace(outcome, rank=None)
            yield _flip(scenario, changed, "global_batch", factor, found)


def _less_memory(scenario: Scenario, contest: Contest) -> Flip | None:
    """The memory below which the best plan no longer fits: its own peak."""
    after = contest.peak_of_choice
    if after is None:
        return None
    usable = scenario.cluster.device.usable_bytes
    outcome = contest.winner(usable_bytes=float(np.nextafter(after, 0.0)))
    return Flip(
        change="device_memory",
        factor=after / usable,
        before=usable,
        after=after,
        rank=outcome.rank,
        plan=outcome.plan,
        gain=outcome.gain,
    )


def _bandwidth(scenario: Scenario, contest: Contest, *, target: float) -> Flip | None:
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
        outcome = _outcome(contest.timed_in(changed))
        if not outcome.stands:
            found = _flip(scenario, changed, "network_bandwidth", factor, outcome)
            other = factor
        elif found is None:
            return None
        else:
            same = factor
    return found
