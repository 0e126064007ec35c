"""Bases and faults: which runs are played, what is broken in them, and what that costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import fmean
from typing import Any

import numpy as np

from meshplan.cost.step import step_time
from meshplan.inputs.cluster import Cluster
from meshplan.inputs.job import Job
from meshplan.inputs.load.cluster import draft_cluster
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.load.network import parse_network
from meshplan.inputs.model import Model
from meshplan.inputs.scenario import Scenario
from meshplan.space.complete import complete_plan
from meshplan.space.placement import ranks_of_group
from meshplan.space.plan import Framework, Plan, PlanGrid, Recompute
from planted.operations import Choices, Talk, Work
from planted.play import Machine, Played, play
from planted.program import programs_of

__all__ = ["Base", "Built", "Fault", "build", "cost_of", "played", "possible"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A healthy run.

    Attributes:
        name: short.
        model: preset.
        layers: blocks that are kept of it.
        cluster: as on the command line.
        node: GPUs per node.
        network: of the nodes, as on the command line; empty for what the device usually has.
        framework: whose plan.
        plan: fields of the plan.
        seq_len: tokens per sequence.
        micro_batches: per step.
        mtp: blocks that predict further tokens.
    """

    name: str
    model: str
    layers: int
    cluster: str
    framework: str
    plan: dict[str, Any]
    seq_len: int = 4096
    micro_batches: int = 4
    node: int = 8
    network: str = ""
    mtp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is broken.

    Attributes:
        kind: code of the finding that should name it.
        size: how badly; what it means depends on the kind.
        ranks: ranks that it strikes; empty for all.
        how: a variant of the kind.
    """

    kind: str
    size: float = 0.0
    ranks: tuple[int, ...] = ()
    how: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A run ready to be played."""

    scenario: Scenario
    plan: Plan
    choices: Choices
    machine: Machine
    reserved_share: float = 0.9
    faults: tuple[Fault, ...] = field(default=())


@lru_cache(maxsize=64)
def _model(name: str, layers: int, mtp: int) -> Model:
    model = load_model(name)
    kept = model.layers[-layers:]
    return replace(model, layers=kept, mtp_layers=(kept[-1],) * mtp)


@lru_cache(maxsize=256)
def _cluster(text: str, node: int, network: str) -> Cluster:
    draft = draft_cluster(text, where="cluster").with_gpus_per_node(node)
    if network:
        draft = draft.with_network(parse_network(network))
    return draft.build()


def build(base: Base, faults: tuple[Fault, ...], *, seed: int) -> Built:
    """Put a run together, with faults in it."""
    for fault in faults:
        base = _CHANGE_BASE.get(fault.kind, lambda b, f: b)(base, fault)
    framework = Framework[base.framework.upper()]
    cluster = _cluster(base.cluster, base.node, base.network)
    model = _model(base.model, base.layers, base.mtp)
    plan_fields = dict(base.plan)
    empty = Scenario(model=model, cluster=cluster, job=Job(seq_len=base.seq_len, global_batch=1))
    draft = complete_plan(empty, framework=framework, **plan_fields)
    batch = draft.dp * draft.micro_batch * base.micro_batches
    scenario = Scenario(
        model=model,
        cluster=cluster,
        job=Job(seq_len=base.seq_len, global_batch=batch),
        frameworks=(base.framework,),
    )
    plan = complete_plan(scenario, framework=framework, **plan_fields)
    built = Built(
        scenario=scenario,
        plan=plan,
        choices=Choices(),
        machine=Machine(seed=seed, slow=_spread(plan, seed)),
        faults=faults,
    )
    for fault in faults:
        built = _CHANGE_RUN.get(fault.kind, lambda b, f: b)(built, fault)
    return built


def _spread(plan: Plan, seed: int) -> dict[int, float]:
    """Equal devices differ by half a percent."""
    rng = np.random.default_rng(seed + 77)
    world = plan.tp * plan.cp * plan.dp * plan.pp
    return {rank: float(np.exp(0.005 * rng.standard_normal())) for rank in range(world)}


def played(built: Built) -> Played:
    """Play a run."""
    programs = programs_of(built.scenario, built.plan, built.choices)
    return play(built.plan, programs, built.machine)


# -- faults that change the plan -----------------------------------------------------------------


def _tp_across(base: Base, fault: Fault) -> Base:
    return replace(base, node=int(base.plan["tp"]) // 2)


def _unbalanced(base: Base, fault: Fault) -> Base:
    if fault.how == "mtp":
        return replace(base, mtp=int(fault.size))
    layers, moved = list(base.plan["stage_layers"]), int(fault.size)
    heavy, light = (0, -1) if fault.how == "first" else (-1, 0)
    layers[heavy] += moved
    layers[light] -= moved
    return replace(base, plan={**base.plan, "stage_layers": tuple(layers)})


def _few(base: Base, fault: Fault) -> Base:
    return replace(base, micro_batches=int(fault.size))


def _slow_network(base: Base, fault: Fault) -> Base:
    return replace(base, network=fault.how)


def _recompute(base: Base, fault: Fault) -> Base:
    return replace(base, plan={**base.plan, "recompute": Recompute.FULL})


_CHANGE_BASE: dict[str, Callable[[Base, Fault], Base]] = {
    "tp_across_nodes": _tp_across,
    "stages_unbalanced": _unbalanced,
    "few_micro_batches": _few,
    "sharding_over_slow_network": _slow_network,
    "recompute_not_needed": _recompute,
}


# -- faults that change the machine --------------------------------------------------------------


def _straggler(built: Built, fault: Fault) -> Built:
    slow = {**built.machine.slow}
    for rank in fault.ranks:
        slow[rank] = slow.get(rank, 1.0) * fault.size
    return replace(built, machine=replace(built.machine, slow=slow))


def _routed(built: Built, fault: Fault) -> Built:
    """Some ranks of every expert-parallel group get more tokens, the others fewer."""
    plan, routed = built.plan, {}
    world = plan.tp * plan.cp * plan.dp * plan.pp
    for rank in range(world):
        group = ranks_of_group(plan, "ep", rank)
        hot = sum(r in fault.ranks for r in group)
        rest = (len(group) - hot * fault.size) / max(len(group) - hot, 1)
        routed[rank] = fault.size if rank in fault.ranks else max(rest, 0.1)
    return replace(built, machine=replace(built.machine, routed=routed))


def _link(built: Built, fault: Fault) -> Built:
    plan, node = built.plan, built.scenario.cluster.gpus_per_node
    link: dict[str, dict[int, float]] = {k: dict(v) for k, v in built.machine.link.items()}
    world = plan.tp * plan.cp * plan.dp * plan.pp
    groups = (("tp", "tp"), ("cp", "cp"), ("ep", "ep"), ("dp", "dp_shard_cp"), ("pp", "pp"))
    for axis, name in groups:
        nodes = {rank // node for rank in ranks_of_group(plan, name, 0)}  # type: ignore[arg-type]
        if (len(nodes) > 1) != (fault.kind == "slow_nic"):
            continue
        struck = fault.ranks or tuple(range(world))
        factors = link.setdefault(axis, {})
        for rank in struck:
            factors[rank] = factors.get(rank, 1.0) * fault.size
    return replace(built, machine=replace(built.machine, link=link))


def _host(built: Built, fault: Fault) -> Built:
    """The host takes ``size`` times as long to launch a step as the device to run it."""
    healthy = _healthy_step(built)
    programs = programs_of(built.scenario, built.plan, built.choices)
    most = max(sum(_launches(op) for op in program) for program in programs)
    pace = fault.size * healthy / most
    return replace(built, machine=replace(built.machine, launch_s=max(pace, 5e-6)))


def _launches(op: object) -> float:
    return float(len(op.kernels)) if isinstance(op, Work) else 4.0


def _data(built: Built, fault: Fault) -> Built:
    loaded = fault.size * _healthy_step(built)
    return replace(built, machine=replace(built.machine, data_s=loaded))


def _memory(built: Built, fault: Fault) -> Built:
    stall = fault.size * _healthy_step(built)
    choices = replace(built.choices, stalls=3, stall_s=stall / 3)
    return replace(built, choices=choices, reserved_share=0.985)


def _copies(built: Built, fault: Fault) -> Built:
    """The copy of a batch is in the way, as one that is not started ahead is."""
    copied = fault.size * _healthy_step(built)
    return replace(built, machine=replace(built.machine, copy_s=copied))


def _blank(built: Built, fault: Fault) -> Built:
    held = fault.size * _healthy_step(built)
    return replace(built, choices=replace(built.choices, blanks=_BLANKS, blank_s=held / _BLANKS))


_BLANKS = 6
"""How often in a step the device is held up."""


def _exposed(built: Built, fault: Fault) -> Built:
    return replace(built, choices=replace(built.choices, overlap_gradients=False))


def _room(built: Built, fault: Fault) -> Built:
    return replace(built, reserved_share=0.45)


_CHANGE_RUN: dict[str, Callable[[Built, Fault], Built]] = {
    "straggler": _straggler,
    "expert_imbalance": _routed,
    "slow_nic": _link,
    "slow_nvlink": _link,
    "host_bound": _host,
    "data_loading": _data,
    "low_utilization": _data,
    "device_idle": _blank,
    "copies_exposed": _copies,
    "memory_pressure": _memory,
    "gradients_exposed": _exposed,
    "recompute_not_needed": _room,
}


def _healthy_step(built: Built) -> float:
    grid = PlanGrid.of([built.plan])
    return float(step_time(built.scenario, grid, exact=True).step_time_s[0])


# -- what a fault costs --------------------------------------------------------------------------


def cost_of(
    base: Base, faults: tuple[Fault, ...], fault: Fault, run: Played, *, seed: int
) -> float:
    """Share of the step that a fault costs: the same run without it, all else equal.

    A plan that is at fault is not played as another plan: tensor-parallel traffic is priced inside
    a node, the stages get equal work, ZeRO-3 traffic takes no time, nothing is computed again. Of
    too few micro-batches it is what the stage that waits least waits for the others.
    """
    whole = build(base, faults, seed=seed)
    if fault.kind == "few_micro_batches":
        return _bubble(run)
    if fault.kind == "tp_across_nodes":
        other = replace(whole, choices=replace(whole.choices, tp_inside_node=True))
    elif fault.kind == "sharding_over_slow_network":
        other = replace(whole, choices=replace(whole.choices, free_shards=True))
    elif fault.kind == "recompute_not_needed":
        other = replace(whole, choices=replace(whole.choices, no_recompute=True))
    elif fault.kind == "stages_unbalanced":
        other = replace(whole, machine=replace(whole.machine, stage_scale=_even(run)))
    else:
        left = tuple(f for f in faults if f is not fault)
        other = _without(base, left, whole, seed=seed)
    return 1.0 - played(other).step_s / run.step_s


def _without(base: Base, left: tuple[Fault, ...], whole: Built, *, seed: int) -> Built:
    """The run without one fault; sizes of the others stay what they were in seconds."""
    other = build(base, left, seed=seed)
    machine = other.machine
    kinds = {fault.kind for fault in left}
    if "host_bound" in kinds:
        machine = replace(machine, launch_s=whole.machine.launch_s)
    if "copies_exposed" in kinds:
        machine = replace(machine, copy_s=whole.machine.copy_s)
    if kinds & {"data_loading", "low_utilization"}:
        machine = replace(machine, data_s=whole.machine.data_s)
    choices = other.choices
    if "memory_pressure" in kinds:
        choices = replace(choices, stall_s=whole.choices.stall_s)
    if "device_idle" in kinds:
        choices = replace(choices, blank_s=whole.choices.blank_s)
    return replace(other, machine=machine, choices=choices)


def _stage_seconds(run: Played) -> list[float]:
    return [float(s.seconds[s.in_stage].sum()) for s in run.scripts]


def _even(run: Played) -> dict[int, float]:
    seconds = _stage_seconds(run)
    mean = sum(seconds) / len(seconds)
    return {stage: mean / own for stage, own in enumerate(seconds)}


def _bubble(run: Played) -> float:
    """Waiting for other stages of the stage that waits least, as a share of the step."""
    plan = run.plan
    per_stage = plan.tp * plan.cp * plan.dp
    waits = []
    for stage, program in enumerate(run.programs):
        talks = [op for op in program if isinstance(op, Talk)]
        receives = [i for i, op in enumerate(talks) if op.kind == "recv"]
        waits.append(
            fmean(
                step.talks[i][2] - step.talks[i][1]
                for rank in range(stage * per_stage, (stage + 1) * per_stage)
                for step in run.steps[rank][1:]
                for i in receives
            )
            * len(receives)
        )
    return min(waits) / run.step_s


# -- which fault a base can have -----------------------------------------------------------------


def possible(base: Base) -> tuple[str, ...]:
    """Kinds of faults that a base can have."""
    plan = base.plan
    tp, pp, zero = plan.get("tp", 1), plan.get("pp", 1), plan.get("zero", 1)
    ep, replicas = plan.get("ep", 1), plan.get("dp", 2)
    world = int(base.cluster.split("x")[0])
    found = ["straggler", "host_bound", "data_loading", "memory_pressure", "mfu_convention"]
    found += ["slow_steps", "low_utilization", "copies_exposed"]
    if pp == 1:
        found.append("device_idle")  # in a pipeline it counts as its bubble
    if base.framework == "torchtitan":
        found.append("wrong_peak")
    if tp >= 4:
        found.append("tp_across_nodes")
    if tp > 1 or ep > 1:
        found.append("slow_nvlink")
    if world > base.node and (pp == 1 or world // pp > base.node):
        # sends between stages alone do not show how fast their network is
        found.append("slow_nic")
    if pp > 1:
        found += ["stages_unbalanced", "few_micro_batches"]
    if zero in (0, 1, 2) and replicas > 1 and pp == 1 and base.micro_batches <= 2:
        # behind more micro-batches one reduction at their end costs less than is worth planting
        found.append("gradients_exposed")
    if zero == 3 and world > base.node:
        found.append("sharding_over_slow_network")
    if ep > 1:
        found.append("expert_imbalance")
    if ep == 1:
        found.append("recompute_not_needed")
    return tuple(found)
