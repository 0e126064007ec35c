"""Pipelines that wait: too few micro-batches, or stages that do not take equally long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import fmean, median

from meshplan.cost.schedule.layout import layout_of_plan
from meshplan.diagnose.findings import places
from meshplan.diagnose.findings.cures import best_of, change, from_trace, kept_batch
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.logged import few_by_log
from meshplan.diagnose.findings.outcome import ABSENT, CLEAR, Open, Outcome
from meshplan.diagnose.findings.play import (
    Pipe,
    PlayedPipe,
    bubble_share,
    enough_micro_batches,
    pipe_of,
    play,
)
from meshplan.diagnose.findings.records import Action, Finding, Gain, Value
from meshplan.diagnose.findings.rounds import Turns, rounds_of
from meshplan.diagnose.findings.thresholds import threshold
from meshplan.inputs.scenario import Scenario
from meshplan.search.carry import legal_only
from meshplan.space.plan import Framework, Plan, Schedule, Split

__all__ = [
    "beyond_bubble_us",
    "find_few_micro_batches",
    "find_unbalanced",
    "scheduled_us",
    "shorter_us",
    "slowest_us",
    "stretch",
]


def find_few_micro_batches(facts: Facts) -> Outcome:
    """Compare the waiting of the stage that waits least with what its schedule must wait.

    A stage that is heavier than the others waits for none of them; what it still waits is the
    filling and draining of the pipeline, which its schedule plays on equal stages.
    """
    stages = facts.num_stages
    if stages < 2:
        if not facts.ranks and facts.context.plan is None:
            return few_by_log(facts)
        known = facts.context.plan is not None or not _has_sends(facts)
        return ABSENT if known else Open("stages_unknown")
    plan, measured = facts.context.plan, _least_waiting(facts)
    rounds = rounds_of(facts, stages=stages)
    if rounds is None:
        return Open("micro_batches_unknown")
    pipe = pipe_of(facts, plan, pp=stages, turns=rounds.likely)
    least, own, most = (
        bubble_share(pipe_of(facts, plan, pp=stages, turns=turns))
        for turns in (rounds.many, rounds.likely, rounds.few)
    )
    limit = threshold("bubble_share")
    if most < limit or 0 < measured < limit:
        return CLEAR
    if least < limit:
        return Open("micro_batches_unknown")
    return _few(facts, pipe, measured=measured, own=own)


def _few(facts: Facts, pipe: Pipe, *, measured: float, own: float) -> Finding:
    """The finding: what the busiest stage waits, beside what its schedule asks for."""
    share = measured if measured > 0 else own
    action, gain = _more_rounds(facts, pipe)
    waiting = min(range(len(facts.stages)), key=lambda i: _waiting(facts, i))
    return Finding(
        code="few_micro_batches",
        form="" if facts.ranks else "schedule_only",
        cost_share=share,
        numbers={
            "num_micro_batches": pipe.micro,
            "pp": pipe.pp,
            "measured_fraction": measured,
            "schedule_fraction": own,
        },
        ranks=facts.stages[waiting],
        kernels=tuple({k for f in facts.flows_of("pp") for k in f.traffic.kernels}),
        places=places.pipeline_waits(facts, facts.stages[waiting]),
        action=action,
        gain=gain or from_trace(share),
        confidence="high" if facts.context.plan is not None else "medium",
        reason=_known_by(facts),
    )


def _known_by(facts: Facts) -> str:
    if facts.context.plan is None:
        return "sends_counted"
    return "schedule_known" if facts.ranks else "schedule_only"


def _has_sends(facts: Facts) -> bool:
    return any(True for _ in facts.flows_of("pp")) or facts.stages_hidden


def _waiting(facts: Facts, stage: int) -> float:
    """Median over the ranks of a stage of what they wait in the pipeline, as a share."""
    sends = {rank: 0.0 for rank in facts.stages[stage]}
    for flow in facts.flows_of("pp"):
        if flow.rank in sends:
            sends[flow.rank] += flow.exposed_us
    return facts.share(median(sends.values())) if sends else 0.0


def _least_waiting(facts: Facts) -> float:
    return min((_waiting(facts, i) for i in range(len(facts.stages))), default=0.0)


def _more_rounds(facts: Facts, pipe: Pipe) -> tuple[Action, Gain | None]:
    """Smaller micro-batches, or chunks that take turns; else a larger batch."""
    plan, scenario = facts.context.plan, facts.context.scenario
    wanted = enough_micro_batches(pipe)
    action = Action(
        code="more_micro_batches",
        numbers={"wanted": wanted},
        changes=(change(facts, "num_micro_batches", before=pipe.micro, after=wanted),),
        plan=None if plan is None else replace(plan, num_micro_batches=wanted),
    )
    if plan is None or scenario is None:
        return action, None
    kept = [kept_batch(candidate, facts.context) for candidate in _finer(plan, scenario)]
    found = best_of(facts.context, [p for p in kept if p is not None and _clears(facts, p)])
    if found is None:
        return action, None
    better, gain = found[0].grid.plan(0), Gain(share=found[1], basis="cost_model")
    return Action(code="finer_pipeline", plan=better), gain


def _clears(facts: Facts, plan: Plan) -> bool:
    """Whether the finding would be gone with another plan."""
    if plan.pp < 2:
        return True
    scenario = facts.context.scenario
    if scenario is None or not legal_only(scenario, [plan]):
        return False
    pipe = pipe_of(facts, plan, pp=plan.pp, turns=Turns(plan.num_micro_batches, plan.vpp))
    return bubble_share(pipe) < threshold("bubble_share")


def _finer(plan: Plan, scenario: Scenario) -> Iterator[Plan]:
    """Plans with more and smaller turns of the pipeline, or a shorter one."""
    if plan.micro_batch > 1:
        yield replace(plan, micro_batch=1)
        yield replace(plan, micro_batch=plan.micro_batch // 2)
    free = replace(plan, stage_layers=())
    if plan.framework in (Framework.MEGATRON, Framework.TORCHTITAN):
        for vpp in (2, 4):
            if vpp > plan.vpp:
                yield replace(free, vpp=vpp, schedule=Schedule.INTERLEAVED)
    if plan.framework is Framework.TORCHTITAN:
        yield replace(free, vpp=2, schedule=Schedule.ZBV)
    yield replace(free, pp=plan.pp // 2, vpp=1, schedule=Schedule.ONE_F_ONE_B)


def find_unbalanced(facts: Facts) -> Outcome:
    """Compare the stages' compute times, each on a device of the usual speed."""
    typed = facts.run.stage_times_s
    if typed:
        return _judge(facts, list(typed), share_of_step=None)
    if facts.num_stages < 2:
        known = facts.context.plan is not None or not _has_sends(facts)
        return ABSENT if known else Open("stages_unknown")
    if len(facts.stages) < facts.num_stages:
        return Open("stages_missing")
    work = facts.stage_work_us
    # traffic inside passes is where it is when the work is even
    inside = [_in_passes_us(facts, r[0]) - facts.compute_us[r[0]] for r in facts.stages]
    now = [own + more for own, more in zip(work, inside, strict=True)]
    even = [fmean(work) + more for more in inside]
    lost = play(facts, now).step_us - play(facts, even).step_us
    share = facts.share(min(lost, max(work) - fmean(work)))
    return _judge(facts, [us / 1e6 for us in work], share_of_step=share)


def _by_itself(facts: Facts) -> PlayedPipe:
    """The pipeline of the measured stages, as its schedule plays it."""
    return play(facts, facts.stage_work_us)


def scheduled_us(facts: Facts) -> float | None:
    """The step of a pipeline as its schedule plays it, with traffic that shows after it [us].

    Stages compute, and talk inside their passes, as they were measured, without waiting. None where
    not every stage was.
    """
    if len(facts.stages) < max(2, facts.num_stages):
        return None
    work = [max(_in_passes_us(facts, rank) for rank in ranks) for ranks in facts.stages]
    after = {rank.rank: 0.0 for rank in facts.ranks}
    for flow in facts.flows_of("dp"):
        after[flow.rank] += facts.shown_us(flow)
    return play(facts, work).step_us + min(after.values())


def stretch(facts: Facts) -> float:
    """By how much work of all stages lengthens the step: once more for what fills the pipeline."""
    if len(facts.stages) < 2:
        return 1.0
    played = _by_itself(facts)
    return max(1.0, played.step_us / max(played.busy_us)) if max(played.busy_us) > 0 else 1.0


def beyond_bubble_us(facts: Facts) -> float:
    """What the rank that waits least waits beyond its schedule's bubble, per step [us].

    Stages that stop in turn wait for each other: this is what others stopped for.
    """
    waits = {rank: 0.0 for stage in facts.stages for rank in stage}
    for flow in facts.flows_of("pp"):
        waits[flow.rank] += flow.exposed_us
    own = min(facts.ranks, key=lambda r: waits.get(r.rank, 0.0), default=None)
    if own is None or len(facts.stages) < 2:
        return 0.0
    idle = fmean(step.idle.host_us + step.idle.data_us for step in own.steady)
    stage = next((i for i, ranks in enumerate(facts.stages) if own.rank in ranks), 0)
    waited = max(0.0, waits[own.rank] - _by_itself(facts).hops_us[stage])
    busy = max(0.0, facts.step_us - waited - idle)
    return max(0.0, waited - busy * (stretch(facts) - 1.0))


def shorter_us(facts: Facts, saved_us: Mapping[int, float]) -> float:
    """By how much a step is shorter when some ranks save time inside their passes [us].

    Args:
        facts: of the run.
        saved_us: by rank, what it saves in a step [us]; of each stage one rank.
    """
    if len(facts.stages) < 2:
        return max(saved_us.values(), default=0.0)
    now, then = [], []
    for ranks in facts.stages:
        chosen = [r for r in ranks if r in saved_us] or list(ranks)
        now.append(max(_in_passes_us(facts, r) for r in chosen))
        then.append(max(_in_passes_us(facts, r) - saved_us.get(r, 0.0) for r in chosen))
    return play(facts, now).step_us - play(facts, [max(us, 0.0) for us in then]).step_us


def _in_passes_us(facts: Facts, rank: int) -> float:
    """What a rank computes in a step, with the traffic that shows inside its passes [us]."""
    inside = (f for f in facts.flows_of("tp", "cp", "ep") if f.rank == rank)
    return facts.compute_us.get(rank, 0.0) + sum(facts.shown_us(f) for f in inside)


def slowest_us(facts: Facts, work_us: Mapping[int, float]) -> float:
    """Time of a pipeline whose stages take as long as their slowest rank [us].

    It computes that long, and talks inside its passes as it was measured, without waiting.
    """
    if len(facts.stages) < 2:
        return max(work_us.values())
    inside = {rank: 0.0 for rank in work_us}
    for flow in facts.flows_of("tp", "cp", "ep"):
        if flow.traffic.wait_basis == "peers":
            inside[flow.rank] += facts.shown_us(flow)
    stages = [max(work_us[r] + inside[r] for r in ranks if r in work_us) for ranks in facts.stages]
    return play(facts, stages).step_us


def _judge(facts: Facts, seconds: list[float], *, share_of_step: float | None) -> Outcome:
    slowest = max(range(len(seconds)), key=lambda i: seconds[i])
    mean = fmean(seconds)
    share = (seconds[slowest] - mean) / seconds[slowest] if share_of_step is None else share_of_step
    if share < threshold("imbalance_share"):
        return CLEAR
    last = slowest == len(seconds) - 1
    cause = _cause(facts, slowest, last=last)
    action, gain = _even_stages(facts, slowest, cause)
    ranks = facts.stages[slowest] if share_of_step is not None else ()
    return Finding(
        code="stages_unbalanced",
        cost_share=share,
        numbers={
            "stage": slowest,
            "pp": len(seconds),
            "stage_time_s": seconds[slowest],
            "mean_s": mean,
            "excess_fraction": seconds[slowest] / mean - 1.0,
            "cause": cause,
        },
        ranks=ranks,
        kernels=places.kernels_of(facts, ranks[0]) if ranks else (),
        places=places.steps(facts, ranks[:2]),
        action=action,
        gain=gain or from_trace(share),
        confidence="high" if len(facts.ranks) > 1 or share_of_step is None else "medium",
        reason="stage_times_differ",
    )


def _cause(facts: Facts, stage: int, *, last: bool) -> str:
    """What makes the stage heavy: extra predictions, the head, the embedding, or its layers."""
    plan, scenario = facts.context.plan, facts.context.scenario
    if plan is None or scenario is None:
        return "last" if last else "first" if stage == 0 else "layers"
    layout = layout_of_plan(scenario.model, plan)
    held = [sum(chunk.num_layers for chunk in chunks) for chunks in layout.chunks]
    if held[stage] > fmean(held):
        return "layers"
    if any(chunk.has_head for chunk in layout.chunks[stage]):
        return "mtp" if scenario.model.mtp_layers else "head"
    return "embedding" if any(c.has_embedding for c in layout.chunks[stage]) else "layers"


def _even_stages(facts: Facts, slowest: int, cause: str) -> tuple[Action, Gain | None]:
    plan, scenario = facts.context.plan, facts.context.scenario
    numbers: dict[str, Value] = {"stage": slowest, "cause": cause}
    if plan is None or scenario is None:
        moved = change(facts, "stage_layers", before="", after="?")
        return Action(code="move_layers", numbers=numbers, changes=(moved,)), None
    found = best_of(facts.context, _layouts(plan, scenario))
    if found is None:
        return Action(code="move_layers", numbers=numbers), None
    better = found[0].grid.plan(0)
    layout = _layers_text(scenario, better)
    return (
        Action(code="move_layers_to", numbers={**numbers, "layout": layout}, plan=better),
        Gain(share=found[1], basis="cost_model"),
    )


def _layers_of(scenario: Scenario, plan: Plan) -> tuple[int, ...]:
    """Layers of each virtual stage, in model order."""
    layout = layout_of_plan(scenario.model, plan)
    return tuple(chunk.num_layers for _, chunk in layout.virtual_stages)


def _layers_text(scenario: Scenario, plan: Plan) -> str:
    return ", ".join(str(n) for n in _layers_of(scenario, plan))


def _layouts(plan: Plan, scenario: Scenario) -> Iterator[Plan]:
    """Other ways to deal the layers: evenly, with the ends counted, or some moved away."""
    free = replace(plan, stage_layers=())
    yield replace(free, split=Split.EVEN)
    yield replace(free, split=Split.BALANCED)
    now = _layers_of(scenario, plan)
    for source in range(len(now)):
        for target in range(len(now)):
            for moved in (1, 2):
                if source != target and now[source] > moved:
                    layers = list(now)
                    layers[source] -= moved
                    layers[target] += moved
                    yield replace(plan, stage_layers=tuple(layers))
