"""Findings against what was planted: precision, recall and error of the cost, by kind."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from meshplan.diagnose.findings import Context, Diagnosis, diagnose
from meshplan.diagnose.layout import Layout
from meshplan.diagnose.rank import measure_rank
from meshplan.diagnose.read.log import read_log
from meshplan.diagnose.read.metrics import read_metrics
from meshplan.diagnose.records import RankMeasures
from meshplan.diagnose.run import measure_run
from meshplan.diagnose.trace import read_trace
from planted.kineto_file import write_kineto
from planted.logs import FIGURES, write_log
from planted.sample import ENTANGLED, Case, Run, make
from planted.samples import write_samples
from planted.write import rank_trace

__all__ = ["COLLISIONS", "Score", "Verdict", "judge", "measured", "table", "tally"]

COLLISIONS = (
    ("wrong_peak", "precision_unknown"),
    ("few_micro_batches", "micro_batches_unknown"),
)
"""Kinds of findings, and why they are left open without the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was found in one run, beside what was planted.

    Attributes:
        case: the run.
        planted: code to share of the step that it costs.
        found: code to share of the step that the finding states.
        wrong_ranks: codes that were found on other ranks than planted.
        undecided: planted codes that were left open because two readings of the same figures
            collide, which what was given cannot tell apart.
    """

    case: Case
    planted: dict[str, float]
    found: dict[str, float]
    wrong_ranks: tuple[str, ...]
    undecided: tuple[str, ...] = ()

    def cost_is_own(self, code: str) -> bool:
        """Whether no other fault of the run changes what this one costs."""
        if code in FIGURES:
            return False
        return not any({code, other} in ENTANGLED for other in self.planted)


@dataclass(slots=True)
class Score:
    """One kind over all runs."""

    right: int = 0
    missed: int = 0
    extra: int = 0
    undecided: int = 0
    errors: list[float] = field(default_factory=list)

    @property
    def precision(self) -> float:
        """Share of the findings that are right."""
        return self.right / max(self.right + self.extra, 1)

    @property
    def recall(self) -> float:
        """Share of the faults that are found; one that is left open is not."""
        return self.right / max(self.right + self.missed + self.undecided, 1)

    @property
    def told(self) -> float:
        """Share of the faults that are found, of those that were not left open."""
        return self.right / max(self.right + self.missed, 1)

    @property
    def within(self) -> float:
        """Share of the right findings whose cost is right within a fifth."""
        return sum(e <= 0.2 for e in self.errors) / max(len(self.errors), 1)


def diagnosis_of(run: Run) -> Diagnosis:
    """Measure a played run as a person would hand it over, and look for causes."""
    built, case = run.built, run.case
    context, layout = Context(), None
    if case.given == "plan":
        layout = Layout(plan=built.plan)
        context = Context(scenario=built.scenario, plan=built.plan, cluster=built.scenario.cluster)
    elif case.given == "cluster":
        context = Context(cluster=built.scenario.cluster)
    ranks = list(measured(run, layout))
    logs = []
    if case.log:
        with tempfile.TemporaryDirectory() as folder:
            logs.append(read_log(write_log(built, run.played.step_s, case.faults, Path(folder))))
    return diagnose(measure_run(ranks, layout=layout, logs=logs), context)


def _by_samples(run: Run) -> Diagnosis:
    """Look for causes with samples of the GPUs alone."""
    with tempfile.TemporaryDirectory() as folder:
        table = write_samples(run.played, run.seen, Path(folder), seed=run.case.seed)
        return diagnose(measure_run([], metrics=[read_metrics(table)]), Context())


def measured(run: Run, layout: Layout | None) -> Iterable[RankMeasures]:
    """Measure the ranks of a played run, one after the other."""
    world = run.built.scenario.cluster.num_gpus
    if not run.case.as_file:
        for rank in range(world):
            trace = rank_trace(run.played, rank, run.seen)
            yield measure_rank(trace, rank=rank, layout=layout, timeline=False)
        return
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(world):
            path = write_kineto(run.played, rank, run.seen, Path(folder))
            trace = read_trace(path)
            path.unlink()
            yield measure_rank(trace, rank=rank, layout=layout, timeline=False)


def judge(case: Case) -> Verdict | None:
    """Play, measure and judge one case; None when a fault of it is too small."""
    run = make(case)
    if run is None:
        return None
    outcome = _by_samples(run) if case.sampled else diagnosis_of(run)
    found = {f.code: f for f in outcome.findings}
    if not case.faults:  # nor do samples of a healthy run say anything
        found |= {f.code: f for f in _by_samples(run).findings}
    planted = dict(zip((f.kind for f in case.faults), run.costs, strict=True))
    wrong = [
        fault.kind
        for fault in case.faults
        if fault.kind in ("straggler", "expert_imbalance") and fault.kind in found
        if set(found[fault.kind].ranks) != set(fault.ranks)
    ]
    return Verdict(
        case=case,
        planted=planted,
        found={code: f.cost_share or 0.0 for code, f in found.items()},
        wrong_ranks=tuple(wrong),
        undecided=tuple(
            check.code
            for check in outcome.checks
            if check.code in planted and (check.code, check.reason) in COLLISIONS
        ),
    )


def tally(verdicts: Sequence[Verdict]) -> dict[str, Score]:
    """Count by kind."""
    scores: dict[str, Score] = defaultdict(Score)
    for verdict in verdicts:
        for code in verdict.planted.keys() | verdict.found.keys():
            score = scores[code]
            if code in verdict.undecided:
                score.undecided += 1
            elif code not in verdict.found:
                score.missed += 1
            elif code not in verdict.planted:
                score.extra += 1
            else:
                score.right += 1
                if verdict.cost_is_own(code):
                    truth = verdict.planted[code]
                    score.errors.append(abs(verdict.found[code] / truth - 1.0))
    return dict(sorted(scores.items()))


def table(verdicts: Sequence[Verdict]) -> str:
    """Print the tally."""
    lines = [
        "kind                         planted  left open  precision  recall  "
        "costs judged  within 20 %  median error"
    ]
    for code, score in tally(verdicts).items():
        errors = sorted(score.errors)
        middle = errors[len(errors) // 2] if errors else 0.0
        lines.append(
            f"{code:28} {score.right + score.missed + score.undecided:7}  "
            f"{score.undecided:9}  {score.precision:9.3f}  "
            f"{score.recall:6.3f}  {len(errors):12}  "
            + (f"{score.within:11.3f}  {middle:12.1%}" if errors else "")
        )
    healthy = [v for v in verdicts if not v.planted]
    clean = sum(not v.found for v in healthy)
    lines.append(f"healthy runs without a finding: {clean} of {len(healthy)}")
    lines.append(f"runs judged: {len(verdicts)}")
    return "\n".join(lines)
