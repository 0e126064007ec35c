"""How often a pipeline turns in a step, from what its kernels show.

A pipeline with ``m`` micro-batches and ``v`` chunks per stage turns ``m v`` times: so often each
stage runs a forward and a backward pass, and the more turns the smaller its bubble.
"""

from __future__ import annotations

from math import gcd

from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.thresholds import threshold
from meshplan.diagnose.names import is_pass_kernel
from meshplan.record import record

__all__ = ["Rounds", "Turns", "rounds_of"]


@record(kw_only=False)
class Turns:
    """Micro-batches of a step, and chunks of each stage that take turns."""

    micro: int
    chunks: int = 1


@record(kw_only=False)
class Rounds:
    """Turns of a pipeline in a step: the fewest that fit what was seen, the likeliest, the most."""

    few: Turns
    likely: Turns
    many: Turns


def rounds_of(facts: Facts, *, stages: int) -> Rounds | None:
    """Turns of the pipeline in a step; None where no kernel sends or receives.

    Without a plan, they are told from two counts of a step: of the kernels that send or receive on
    the first or the last stage, and of the kernels of products and attention, each of which runs
    equally often in every micro-batch, so that the number of micro-batches divides them all.
    """
    plan = facts.context.plan
    if plan is not None:
        turns = Turns(plan.num_micro_batches, plan.vpp)
        return Rounds(turns, turns, turns)
    sends = _sends(facts)
    if not sends:
        return None
    divisor = _common_divisor(facts)
    by_end = [
        _readings(sends[end], stages, last=end > 0) for end in (0, stages - 1) if end in sends
    ]
    found = [t for t in (by_end or [[]])[0] if divisor and divisor % t.micro == 0]
    found = [t for t in found if all(t in others for others in by_end)]
    if found:
        ordered = sorted(found, key=lambda t: t.micro * t.chunks)
        return Rounds(ordered[0], found[0], ordered[-1])
    # two kernels a turn where each is launched by itself, one where a send and a receive share it
    # (batched isend and irecv), up to four where chunks take turns
    fewest = min(sends.values())
    few, likely, many = (Turns(max(1, round(fewest / kernels))) for kernels in (4.0, 2.0, 1.0))
    return Rounds(few, likely, many)


def _readings(sends: int, stages: int, *, last: bool) -> list[Turns]:
    """Turns that give so many kernels on the first or the last stage, the likeliest first.

    With one chunk each micro-batch is sent and its gradient received, by a kernel each or, where
    both are batched in the steady phase, by one kernel for two: the last stage begins and ends with
    a single one, the first fills and drains with one for each later stage. With ``v`` chunks the
    ends have ``2 v - 1`` borders, crossed forward and backward by each micro-batch; frameworks that
    let chunks take turns want a multiple of the stages.
    """
    found = [Turns(sends // 2)] if sends % 2 == 0 else []
    batched = sends - (1 if last else stages - 1)
    if batched > 0:
        found.append(Turns(batched))
    chunks = 2
    while (crossed := 2 * (2 * chunks - 1)) * stages <= sends:
        if sends % (crossed * stages) == 0:
            found.append(Turns(sends // crossed, chunks))
        chunks += 1
    return found


def _sends(facts: Facts) -> dict[int, int]:
    """Kernels per step that send or receive, by stage: of the rank that has fewest."""
    counts: dict[int, float] = {}
    per_rank: dict[int, float] = {}
    for flow in facts.flows_of("pp", kinds=("send_recv",)):
        per_rank[flow.rank] = per_rank.get(flow.rank, 0.0) + flow.count
    per_stage = max(1, facts.world_size // max(1, facts.num_stages))
    for rank, count in per_rank.items():
        stage = rank // per_stage
        counts[stage] = min(counts.get(stage, count), count)
    return {stage: round(count) for stage, count in counts.items() if round(count) > 0}


def _common_divisor(facts: Facts) -> int:
    """What divides the number of runs of every product and attention kernel of a step; 0 for none.

    Kernels that take little are left out: an optimizer with products, a check now and then.
    """
    divisor = 0
    for rank in facts.ranks:
        for step in rank.steady:
            least = threshold("kernel_share") * step.time.compute_us
            for kernel in step.kernels:
                if kernel.total_us >= least and is_pass_kernel(kernel.name):
                    divisor = gcd(divisor, kernel.count)
    return divisor
