"""Answer a scenario for its objective: on one cluster, or over several sizes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Literal

from meshplan.cost.memory import Verdict
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.search.economics import run_cost
from meshplan.search.evaluate import Evaluation, pessimistic
from meshplan.search.neighbours import Neighbour
from meshplan.search.objective import TIE, crowding
from meshplan.search.pareto import memory_steps
from meshplan.search.progress import Progress, each, untold
from meshplan.search.rank import Counts, Ranking, look_around, pareto_plans, rank_plans
from meshplan.search.sizes import candidate_sizes, with_gpus
from meshplan.space.enumerate import Rejection
from meshplan.space.plan import Plan

__all__ = [
    "Answer",
    "Entry",
    "Progress",
    "SizeTried",
    "answer",
    "decided_by",
    "entry_of",
    "in_time",
    "with_alternatives",
]

_MOST_REFINEMENTS = 5


@record
class Entry:
    """One plan of an answer.

    Attributes:
        scenario: the scenario it is for; its cluster may be smaller than the one given.
        result: exact numbers of this one plan.
        value_s: pessimistic step time, by which plans are ranked [s].
        num_variants: plans of its family that fit, itself included.
    """

    scenario: Scenario
    result: Evaluation
    value_s: float
    num_variants: int

    @property
    def plan(self) -> Plan:
        """The plan itself."""
        return self.result.grid.plan(0)

    @property
    def step_time_s(self) -> float:
        """Predicted time of a step [s]."""
        return float(self.result.time.step_time_s[0])

    @property
    def fits(self) -> bool:
        """Whether it does not run out of memory (it may be tight)."""
        return bool(self.result.memory.verdict[0] != Verdict.OOM)


@record
class SizeTried:
    """One cluster size that was looked at.

    Attributes:
        num_gpus: its GPUs.
        fits: whether any plan fits.
        value_s: pessimistic step time of the best plan [s]; None when nothing fits.
        days: duration of the run at that pace; None without a token budget.
    """

    num_gpus: int
    fits: bool
    value_s: float | None
    days: float | None


@record
class Answer:
    """The plans for a scenario, best first.

    Attributes:
        scenario: what was asked.
        entries: the plans; empty when nothing fits.
        counts: how much was looked at, over all sizes.
        rejected: what was refused, by rule, over all sizes.
        sizes: cluster sizes that were looked at; one for objectives that keep the cluster.
        closest: where there are no entries, what comes closest: the fastest plan where those that
            fit are all late, else the legal plan that needs the least memory; None when no plan
            is legal.
        ranking: the search, where one cluster was searched.
        alternatives: the best plan with each other degree on the best plan's cluster; None where
            they were not looked for, see :func:`with_alternatives`.
    """

    scenario: Scenario
    entries: tuple[Entry, ...]
    counts: Counts
    rejected: Mapping[str, Rejection]
    sizes: tuple[SizeTried, ...]
    closest: Entry | None
    ranking: Ranking | None
    alternatives: tuple[Neighbour, ...] | None = None

    @property
    def rivals(self) -> tuple[Plan, ...]:
        """The plans for the same cluster as the best one, best first."""
        if not self.entries:
            return ()
        cluster = self.entries[0].scenario.cluster
        return tuple(e.plan for e in self.entries if e.scenario.cluster == cluster)


def entry_of(scenario: Scenario, result: Evaluation) -> Entry:
    """An entry for a plan that was given and not searched for."""
    value = float(pessimistic(result.time)[0])
    return Entry(scenario=scenario, result=result, value_s=value, num_variants=1)


DecidedBy = Literal[
    "gpus", "deadline", "gpu_hours", "step_time", "error_band", "headroom", "simplicity"
]


def decided_by(scenario: Scenario, best: Entry, other: Entry) -> DecidedBy:
    """What put one plan of an answer before another."""
    if scenario.objective == "cheapest":
        if _lateness(best) < _lateness(other):
            return "deadline"
        return "step_time" if _lateness(best) == _LATE else "gpu_hours"
    if best.scenario.cluster.num_gpus != other.scenario.cluster.num_gpus:
        return "gpus"
    if other.value_s < best.value_s:  # a tie, or it would stand first
        return "headroom" if _crowding(other) > _crowding(best) else "simplicity"
    return "step_time" if best.step_time_s <= other.step_time_s else "error_band"


def _crowding(entry: Entry) -> int:
    memory = entry.result.memory
    return int(crowding(memory.peak_bytes, usable_bytes=memory.usable_bytes)[0])


def answer(scenario: Scenario, *, top: int, progress: Progress = untold) -> Answer:
    """Find the best plans for the scenario's objective.

    ``fastest`` ranks by time on the cluster given. ``cheapest`` ranks sizes of the cluster by
    GPU-hours, which is price where devices are alike, among those that meet the deadline if
    there is one: at the slow end of their bands, or else as predicted. ``fewest_gpus`` takes the
    smallest size that meets the deadline, or on which something fits. ``pareto`` lists what
    nothing beats in time, memory and GPUs together.

    Args:
        scenario: what is asked.
        top: plans wanted.
        progress: told how far it is.
    """
    match scenario.objective:
        case "fastest":
            ranking = rank_plans(scenario, top=top, progress=progress)
            return _joined(scenario, [ranking], top=None)
        case "cheapest":
            return _cheapest(scenario, top=top, progress=progress)
        case "fewest_gpus":
            return _fewest(scenario, top=top, progress=progress)
        case "pareto":
            return _pareto(scenario, progress=progress)


def with_alternatives(found: Answer, *, top: int) -> Answer:
    """Look for the best plan with each other degree on the cluster of the best plan.

    A Pareto front does without: it shows what each plan is best at.

    Args:
        found: the answer so far.
        top: plans wanted.
    """
    if not found.entries or found.scenario.objective == "pareto":
        return found
    if found.ranking is not None and found.ranking.known is not None:
        around = look_around(found.ranking)
        return replace(found, alternatives=around.alternatives, counts=around.counts)
    # which size would win was not known when it was searched
    around = look_around(rank_plans(found.entries[0].scenario, top=top))
    return replace(found, alternatives=around.alternatives)


def _entries(ranking: Ranking) -> Iterator[Entry]:
    for i in range(len(ranking)):
        assert ranking.best is not None
        yield Entry(
            scenario=ranking.scenario,
            result=ranking.best.one(i),
            value_s=float(ranking.value[i]),
            num_variants=int(ranking.num_variants[i]),
        )


def _days(scenario: Scenario, value_s: float) -> float | None:
    cost = run_cost(scenario, step_time_s=value_s)
    return None if cost is None else cost.days


def _tried(ranking: Ranking) -> SizeTried:
    value = float(ranking.value[0]) if len(ranking) else None
    return SizeTried(
        num_gpus=ranking.scenario.cluster.num_gpus,
        fits=len(ranking) > 0,
        value_s=value,
        days=None if value is None else _days(ranking.scenario, value),
    )


def in_time(entry: Entry) -> bool:
    """Whether even the pessimistic pace meets the deadline, if there is one."""
    cost = run_cost(entry.scenario, step_time_s=entry.value_s)
    return cost is None or cost.meets_deadline is not False


def _joined(
    scenario: Scenario,
    rankings: list[Ranking],
    *,
    top: int | None,
    entries: list[Entry] | None = None,
) -> Answer:
    """Put rankings of several sizes into one answer."""
    if entries is None:
        entries = [entry for ranking in rankings for entry in _entries(ranking)]
    return Answer(
        scenario=scenario,
        entries=tuple(entries[:top]),
        counts=_sum_counts([ranking.counts for ranking in rankings]),
        rejected=_sum_rejected([ranking.rejected for ranking in rankings]),
        sizes=tuple(_tried(ranking) for ranking in sorted(rankings, key=_num_gpus)),
        closest=None if entries else _closest(rankings),
        ranking=rankings[0] if len(rankings) == 1 else None,
    )


def _closest(rankings: list[Ranking]) -> Entry | None:
    """What comes closest on the largest cluster that has a legal plan."""
    for ranking in sorted(rankings, key=_num_gpus, reverse=True):
        if len(ranking):
            return next(_entries(ranking))
        if ranking.smallest is not None:
            return entry_of(ranking.scenario, ranking.smallest)
    return None


def _num_gpus(ranking: Ranking) -> int:
    return ranking.scenario.cluster.num_gpus


def _sum_counts(counts: list[Counts]) -> Counts:
    return Counts(**{f.name: sum(getattr(c, f.name) for c in counts) for f in fields(Counts)})


def _sum_rejected(parts: list[Mapping[str, Rejection]]) -> dict[str, Rejection]:
    total: dict[str, Rejection] = {}
    for part in parts:
        for rule, rejection in part.items():
            seen = total.get(rule)
            count = rejection.count + (seen.count if seen else 0)
            total[rule] = replace(seen or rejection, count=count)
    return total


_LATE = 2


def _lateness(entry: Entry) -> int:
    """0 in time even at the slow end of the band, 1 as predicted, :data:`_LATE` not even so."""
    if in_time(entry):
        return 0
    cost = run_cost(entry.scenario, step_time_s=entry.step_time_s)
    return 1 if cost is not None and cost.meets_deadline else _LATE


def _by_price_in_time(entry: Entry) -> tuple[int, float]:
    """A plan that is late comes after all that are in time; of those, the least late first."""
    late = _lateness(entry)
    num_gpus = 1 if late == _LATE else entry.scenario.cluster.num_gpus
    return late, entry.value_s * num_gpus


def _cheapest(scenario: Scenario, *, top: int, progress: Progress) -> Answer:
    rankings = [
        rank_plans(with_gpus(scenario, size), top=top, progress=own).alone()
        for size, own in each(candidate_sizes(scenario.cluster), progress)
    ]
    entries = [e for ranking in rankings for e in _entries(ranking)]
    entries.sort(key=_by_price_in_time)
    return _joined(scenario, rankings, top=top, entries=entries)


def _fewest(scenario: Scenario, *, top: int, progress: Progress) -> Answer:
    rankings: dict[int, Ranking] = {}
    enough: int | None = None
    for size, own in each(candidate_sizes(scenario.cluster), progress):
        ranking = rank_plans(with_gpus(scenario, size), top=top, progress=own)
        rankings[size] = ranking.alone()
        if _on_time(rankings[size]):
            enough = size
            break
    if enough is None:
        return _joined(scenario, list(rankings.values()), top=top, entries=[])
    node = scenario.cluster.gpus_per_node
    low = max((s for s in rankings if s < enough), default=0)
    for _ in range(_MOST_REFINEMENTS):
        middle = (low + enough) // 2 // node * node
        if not low < middle < enough:
            break
        rankings[middle] = rank_plans(with_gpus(scenario, middle), top=top).alone()
        if _on_time(rankings[middle]):
            enough = middle
        else:
            low = middle
    entries = [entry for entry in _entries(rankings[enough]) if in_time(entry)]
    return _joined(scenario, list(rankings.values()), top=top, entries=entries)


def _on_time(ranking: Ranking) -> bool:
    return any(in_time(entry) for entry in _entries(ranking))


def _pareto(scenario: Scenario, *, progress: Progress) -> Answer:
    """Join the fronts of all sizes; a plan that buys less time than a tie is left out."""
    rankings = [
        pareto_plans(with_gpus(scenario, size), progress=own).alone()
        for size, own in each(candidate_sizes(scenario.cluster), progress)
    ]
    kept: list[Entry] = []
    for ranking in rankings:
        # least memory first, so that what is kept is what less of either cannot do
        for entry in reversed(list(_entries(ranking))):
            if not any(_covers(other, entry) for other in kept):
                kept.append(entry)
    kept.sort(key=lambda e: (e.value_s, e.scenario.cluster.num_gpus))
    return _joined(scenario, rankings, top=None, entries=kept)


def _covers(other: Entry, entry: Entry) -> bool:
    """Whether an entry that needs no more GPUs and memory is as fast, give or take a tie."""
    steps = [
        int(memory_steps(m.peak_bytes, usable_bytes=m.usable_bytes)[0])
        for m in (other.result.memory, entry.result.memory)
    ]
    return other.value_s <= entry.value_s * (1.0 + TIE) and steps[0] <= steps[1]
