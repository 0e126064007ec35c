"""What is off with a legal plan: codes and numbers, each measured on the plan itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace

from meshplan.cost.memory import Verdict
from meshplan.cost.recompute import attention_norm_recompute, network_norm_recompute
from meshplan.cost.shards import padded_vocab
from meshplan.inputs.load.framework import memory_behaviour
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.search.carry import legal_only
from meshplan.search.evaluate import Evaluation, evaluate, part_seconds
from meshplan.space.plan import Framework, Offload, Plan, PlanGrid, Recompute, Split

__all__ = ["Finding", "find"]

# Shares of a step from which something is worth a line.
_NOTABLE = 0.01
_LARGE = 0.10
_FEW_TOKENS = 2048
"""Tokens per GPU and step below which fixed costs of a step rule (field case B09)."""


@record
class Finding:
    """One thing that is off.

    Attributes:
        code: key of the sentence ``check.finding.<code>``.
        numbers: what the sentence mentions.
    """

    code: str
    numbers: Mapping[str, object] = field(default_factory=dict)


def find(scenario: Scenario, result: Evaluation) -> tuple[Finding, ...]:
    """Look at one evaluated plan."""
    plan = result.grid.plan(0)
    return (
        *_placement(scenario, plan, result),
        *_pipeline(scenario, plan, result),
        *_traffic(scenario, plan, result),
        *_recompute(scenario, plan, result),
        *_offload(scenario, plan, result),
        *_vocabulary(scenario, plan),
        *_batch(scenario),
        *_sequence(scenario, plan, result),
        *_settings(plan),
        *_whole_states(plan, result),
    )


def _inner(scenario: Scenario) -> int:
    """GPUs that a fast network joins."""
    return scenario.cluster.tiers[0].num_gpus


def _placement(scenario: Scenario, plan: Plan, result: Evaluation) -> Iterator[Finding]:
    inner, parts = _inner(scenario), part_seconds(result)
    step = float(result.time.step_time_s[0])
    if plan.tp > inner:
        share = parts["tp_comm_s"] / step
        yield Finding(
            code="tp_across_nodes", numbers={"tp": plan.tp, "inner": inner, "share_fraction": share}
        )
    elif plan.tp * plan.ep > inner and plan.ep > 1 and parts["ep_comm_s"] / step > _LARGE:
        yield Finding(
            code="ep_across_nodes",
            numbers={"ep": plan.ep, "inner": inner, "share_fraction": parts["ep_comm_s"] / step},
        )


def _pipeline(scenario: Scenario, plan: Plan, result: Evaluation) -> Iterator[Finding]:
    if plan.pp == 1:
        return
    parts = part_seconds(result)
    share = parts["bubble_s"] / float(result.time.step_time_s[0])
    if share > _LARGE:
        yield Finding(
            code="few_micro_batches",
            numbers={
                "num_micro_batches": plan.num_micro_batches,
                "pp": plan.pp,
                "share_fraction": share,
            },
        )
    other = replace(plan, split=Split.BALANCED, stage_layers=())
    if plan.split is Split.EVEN and not plan.stage_layers and legal_only(scenario, [other]):
        balanced = evaluate(scenario, PlanGrid.of([other]))
        gain = 1.0 - float(balanced.time.step_time_s[0] / result.time.step_time_s[0])
        if gain > _NOTABLE:
            yield Finding(code="unbalanced_stages", numbers={"gain_fraction": gain, "pp": plan.pp})


def _traffic(scenario: Scenario, plan: Plan, result: Evaluation) -> Iterator[Finding]:
    share = part_seconds(result)["dp_comm_s"] / float(result.time.step_time_s[0])
    outer = scenario.cluster.tiers[-1]
    if share <= _LARGE or scenario.cluster.num_nodes == 1:
        return
    yield Finding(
        code="sharding_over_slow_network" if plan.zero == 3 else "gradients_over_slow_network",
        numbers={
            "fabric": outer.fabric,
            "link_bytes_per_s": outer.bandwidth_bytes_per_s,
            "share_fraction": share,
        },
    )


def _recompute(scenario: Scenario, plan: Plan, result: Evaluation) -> Iterator[Finding]:
    """Recompute that the memory does not ask for."""
    if plan.recompute is Recompute.NONE:
        return
    kinds = scenario.model.layer_kinds
    reached = any(
        Recompute.NORM in (attention_norm_recompute(kind), network_norm_recompute(kind))
        for kind in kinds
    )
    if plan.framework is Framework.MEGATRON and plan.recompute & Recompute.NORM and not reached:
        yield Finding(code="norm_recompute_without_effect")
    lighter = [replace(plan, recompute=Recompute.NONE, recompute_layers=0)]
    if plan.framework is Framework.MEGATRON and plan.recompute & Recompute.FULL:
        lighter.append(replace(plan, recompute=Recompute.CORE_ATTENTION, recompute_layers=0))
    if plan.framework is Framework.TORCHTITAN and plan.recompute & Recompute.FULL:
        lighter.append(replace(plan, recompute=Recompute.SELECTIVE_OP, recompute_layers=0))
    for other in legal_only(scenario, lighter):
        tried = evaluate(scenario, PlanGrid.of([other]))
        gain = 1.0 - float(tried.time.step_time_s[0] / result.time.step_time_s[0])
        if tried.memory.verdict[0] == Verdict.FITS and gain > _NOTABLE:
            yield Finding(
                code="recompute_not_needed",
                numbers={
                    "gain_fraction": gain,
                    "peak_bytes": float(tried.memory.peak_bytes[0]),
                    "usable_bytes": float(tried.memory.usable_bytes),
                },
            )
            return


def _offload(scenario: Scenario, plan: Plan, result: Evaluation) -> Iterator[Finding]:
    """States on the host that would fit on the GPUs."""
    if not plan.offload:
        return
    for other in legal_only(scenario, [replace(plan, offload=Offload.NONE)]):
        tried = evaluate(scenario, PlanGrid.of([other]))
        gain = 1.0 - float(tried.time.step_time_s[0] / result.time.step_time_s[0])
        if tried.memory.verdict[0] == Verdict.FITS and gain > _NOTABLE:
            numbers = {
                "gain_fraction": gain,
                "peak_bytes": float(tried.memory.peak_bytes[0]),
                "usable_bytes": float(tried.memory.usable_bytes),
            }
            yield Finding(code="offload_not_needed", numbers=numbers)


def _whole_states(plan: Plan, result: Evaluation) -> Iterator[Finding]:
    """Copies of everything on every replica, where that does not fit."""
    replicas = plan.dp * plan.cp
    # of Megatron-LM's option _settings speaks
    if plan.framework is Framework.MEGATRON or plan.zero or replicas == 1:
        return
    if result.memory.verdict[0] == Verdict.OOM:
        yield Finding(code="nothing_sharded", numbers={"replicas": replicas})


def _vocabulary(scenario: Scenario, plan: Plan) -> Iterator[Finding]:
    vocab = scenario.model.vocab
    behaviour = memory_behaviour(plan.framework.name.lower(), scenario.variant)
    multiple = int(behaviour.vocab_multiple)
    padded = int(padded_vocab(vocab, multiple=multiple, tp=plan.tp))
    if vocab % plan.tp:
        yield Finding(
            code="vocab_not_divisible",
            numbers={"vocab": vocab, "tp": plan.tp, "padded": padded, "extra": padded - vocab},
        )


def _batch(scenario: Scenario) -> Iterator[Finding]:
    tokens = scenario.job.tokens_per_step // scenario.cluster.num_gpus
    if tokens < _FEW_TOKENS:
        yield Finding(code="few_tokens", numbers={"per_gpu": tokens, "least": _FEW_TOKENS})


def _sequence(scenario: Scenario, plan: Plan, result: Evaluation) -> Iterator[Finding]:
    """Tensor without sequence parallelism, where the switch costs no time or memory is short."""
    if plan.framework is not Framework.MEGATRON or plan.tp == 1 or plan.sp:
        return
    short = result.memory.verdict[0] != Verdict.FITS
    for other in legal_only(scenario, [replace(plan, sp=True)]):
        tried = evaluate(scenario, PlanGrid.of([other]))
        if short or tried.time.step_time_s[0] <= result.time.step_time_s[0]:
            yield Finding(code="no_sequence_parallelism", numbers={"tp": plan.tp})


def _settings(plan: Plan) -> Iterator[Finding]:
    if plan.framework is Framework.MEGATRON and plan.zero == 0 and plan.dp * plan.cp > 1:
        yield Finding(code="optimizer_not_sharded", numbers={"replicas": plan.dp * plan.cp})
    if plan.etp > 1 and plan.ep < plan.tp * plan.dp * plan.cp and plan.ep == 1:
        yield Finding(code="experts_split_not_spread", numbers={"etp": plan.etp, "ep": plan.ep})
