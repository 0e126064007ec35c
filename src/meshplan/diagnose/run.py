"""Measure a run: ranks together, with the clocks aligned."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Literal

import numpy as np
import numpy.typing as npt

from meshplan.diagnose.clocks import clock_offsets, skews, waits
from meshplan.diagnose.layout import Layout
from meshplan.diagnose.match import match
from meshplan.diagnose.pipeline_group import with_pipeline
from meshplan.diagnose.records import (
    Basis,
    Note,
    RankMeasures,
    RunMeasures,
    StageMeasures,
    StepMeasures,
    Traffic,
)
from meshplan.diagnose.traffic import with_calls
from meshplan.diagnose.waiting import shown_waits

__all__ = ["measure_run"]

FloatArray = npt.NDArray[np.float64]


def measure_run(
    ranks: Sequence[RankMeasures],
    *,
    layout: Layout | None = None,
    stage_times_s: Sequence[float] = (),
    logs: Sequence[object] = (),
    metrics: Sequence[object] = (),
    notes: Sequence[Note] = (),
) -> RunMeasures:
    """Put the ranks of a run together.

    Args:
        ranks: measures of the ranks that were given, any order.
        layout: process groups of the plan of the run, when it is known.
        stage_times_s: compute time of each pipeline stage, when it was typed by hand [s].
        logs: what console logs say.
        metrics: what GPU metrics say.
        notes: what reading them found missing.
    """
    ordered = sorted(ranks, key=lambda r: (r.rank, r.file))
    if layout is None:
        world = max((r.world_size or r.rank + 1 for r in ordered), default=0)
        ordered = [with_pipeline(r, world=world) for r in ordered]
    found = [note for rank in ordered for note in rank.notes]
    found.extend(_disagreements(ordered))
    first = {rank.rank: i for i, rank in reversed(list(enumerate(ordered)))}
    distinct = [ordered[i] for i in sorted(first.values())]
    matched = match(distinct, layout) if len(distinct) > 1 else []
    offsets = clock_offsets(len(distinct), matched)
    waited = waits(distinct, matched, offsets)
    skew = skews(distinct, matched, offsets, waited)
    by_peers = {id(r): _with_waits(r, w) for r, w in zip(distinct, waited, strict=True)}
    final = tuple(by_peers.get(id(r), r) for r in ordered)
    if len(distinct) > 1 and len(offsets) < len(distinct):
        num = len(distinct) - len(offsets)
        found.append(Note(code="clocks_not_aligned", numbers={"num": num}))
    stages, basis = _stages(final, layout)
    return RunMeasures(
        ranks=final,
        offset_us={distinct[i].rank: value for i, value in sorted(offsets.items())},
        skew=skew,
        stages=stages,
        stage_basis=basis,
        stage_times_s=tuple(stage_times_s),
        logs=tuple(logs),
        metrics=tuple(metrics),
        notes=(*notes, *found),
    )


def _disagreements(ranks: Sequence[RankMeasures]) -> list[Note]:
    """Signs that the files are not of one run."""
    found = []
    worlds = sorted({r.world_size for r in ranks if r.world_size})
    if len(worlds) > 1:
        sizes = ", ".join(str(w) for w in worlds)
        found.append(Note(code="mixed_runs", numbers={"sizes": sizes}))
    devices = sorted({r.device for r in ranks if r.device})
    if len(devices) > 1:
        found.append(Note(code="mixed_devices", numbers={"devices": ", ".join(devices)}))
    by_rank: dict[int, list[str]] = defaultdict(list)
    for rank in ranks:
        by_rank[rank.rank].append(rank.file)
    twice = {number: files for number, files in by_rank.items() if len(files) > 1}
    for number, files in twice.items():
        numbers: dict[str, float | str] = {"rank": number, "num": len(files)}
        found.append(Note(code="rank_twice", where=files[1], numbers=numbers))
    names = [{s.name for s in r.steps} for r in ranks if r.steps]
    if len(names) > 1 and not set.intersection(*names):
        found.append(Note(code="no_common_step"))
    return found


def _with_waits(rank: RankMeasures, waited: FloatArray) -> RankMeasures:
    """The rank with its waits told from the other ranks, where they are known."""
    if not len(waited) or np.isnan(waited).all():
        return rank
    known = ~np.isnan(waited)
    wait = np.where(known, waited, rank.calls.wait_us)
    calls = replace(rank.calls, wait_us=wait)
    steps = tuple(
        _step_with_waits(rank, step, number, wait, known) for number, step in enumerate(rank.steps)
    )
    return replace(rank, calls=calls, steps=steps)


def _step_with_waits(
    rank: RankMeasures,
    step: StepMeasures,
    number: int,
    wait: FloatArray,
    known: npt.NDArray[np.bool_],
) -> StepMeasures:
    calls = rank.calls
    inside = calls.step == number
    told = inside & ~np.isnan(wait)
    shown = None
    if told.any():
        parts = shown_waits(
            start=calls.start[told],
            wait=wait[told],
            exposed=calls.exposed_us[told],
            step=calls.step[told],
        )
        shown = float(parts.sum())
    channel = {key: c for c, key in enumerate(calls.channels)}

    def again(traffic: Traffic) -> Traffic:
        own = inside & (calls.channel == channel[traffic.group, traffic.ranks, traffic.kind])
        if not (own & known).any():
            return traffic
        return with_calls(
            traffic,
            duration=(calls.end - calls.start)[own],
            wait=wait[own],
            size=calls.message_bytes[own],
            wait_basis="peers",
        )

    return replace(step, peer_wait_us=shown, traffic=tuple(again(t) for t in step.traffic))


def _stages(
    ranks: Sequence[RankMeasures], layout: Layout | None
) -> tuple[tuple[StageMeasures, ...], Basis | Literal[""]]:
    """Medians by pipeline stage; none when no rank is known to be of a pipeline."""
    by_stage: dict[int, list[RankMeasures]] = defaultdict(list)
    basis: Basis | Literal[""] = ""
    pipelines = _joined(t.ranks for rank in ranks for t in _pipeline_traffic(rank))
    for rank in ranks:
        stage, how = _stage_of(rank, layout, pipelines)
        if stage is not None and rank.steps:
            by_stage[stage].append(rank)
            basis = how
    stages = tuple(_stage(number, by_stage[number]) for number in sorted(by_stage))
    return stages, basis if stages else ""


def _pipeline_traffic(rank: RankMeasures) -> Iterator[Traffic]:
    for step in rank.steps:
        for traffic in step.traffic:
            if traffic.axis == "pp" and rank.rank in traffic.ranks:
                yield traffic


def _joined(groups: Iterable[tuple[int, ...]]) -> list[set[int]]:
    """Groups that share ranks, as one.

    Neighbours may have groups of two of their own, as in DeepSpeed: a chain of them is a pipeline.
    """
    found: list[set[int]] = []
    for group in dict.fromkeys(groups):
        touching = [known for known in found if known & set(group)]
        found = [known for known in found if known not in touching]
        found.append(set(group).union(*touching))
    return found


def _stage_of(
    rank: RankMeasures, layout: Layout | None, pipelines: Sequence[set[int]]
) -> tuple[int | None, Basis]:
    if layout is not None:
        known = layout.plan.pp > 1 and rank.rank < layout.num_ranks
        return (layout.stage_of(rank.rank) if known else None), "plan"
    own = list(_pipeline_traffic(rank))
    if not own:
        return None, "unknown"
    widest = max(own, key=lambda traffic: len(traffic.ranks))
    pipeline = next(p for p in pipelines if rank.rank in p)
    return sorted(pipeline).index(rank.rank), widest.basis


def _stage(number: int, ranks: Sequence[RankMeasures]) -> StageMeasures:
    steps = [step for rank in ranks for step in rank.steady]
    return StageMeasures(
        stage=number,
        ranks=tuple(rank.rank for rank in ranks),
        compute_us=median(step.time.compute_us for step in steps),
        bubble_us=median(step.bubble_us for step in steps),
        wall_us=median(step.time.wall_us for step in steps),
    )
