"""Fill in what a framework does by itself when a degree is not given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import CpComm, Framework, Plan, Recompute, Schedule, Split
from meshplan.space.stages import V_SHAPED

__all__ = ["complete_plan"]

_CP_COMM = {
    Framework.MEGATRON: CpComm.P2P,
    Framework.TORCHTITAN: CpComm.ALL_GATHER,
    Framework.DEEPSPEED: CpComm.ALL_TO_ALL,
    Framework.ACCELERATE: CpComm.ALL_GATHER,
    Framework.NANOTRON: CpComm.P2P,
}
_SEVERAL_CHUNKS = V_SHAPED | {Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB}


def complete_plan(scenario: Scenario, *, framework: Framework, **given: Any) -> Plan:
    """Complete the fields that a person gave to a plan.

    Degrees are 1 and data parallelism takes the GPUs that are left. Sequence parallelism goes
    with tensor parallelism where the framework has it. Context parallelism communicates as the
    framework does by default. Experts are whole under expert parallelism and split as the rest
    of the model without it, where the framework can. States are sharded: ZeRO-1 in Megatron-LM,
    nanotron and every DeepSpeed pipeline, FSDP elsewhere, which torchtitan does not reshard after
    the forward pass of a pipeline. Numbers that do not divide are rounded down; ``check_plan``
    says what is wrong with the result.

    Args:
        scenario: model, cluster and job.
        framework: whose defaults apply.
        **given: plan fields that are fixed.

    Returns:
        The plan, which need not be legal.
    """
    tp, pp, cp, ep = (given.get(axis, 1) for axis in ("tp", "pp", "cp", "ep"))
    vpp, micro_batch = given.get("vpp", _default_vpp(given)), given.get("micro_batch", 1)
    dp = given.get("dp", max(1, scenario.cluster.num_gpus // max(1, tp * pp * cp)))
    if "dp" not in given and "dp_shard" in given and "dp_replicate" in given:
        dp = given["dp_shard"] * given["dp_replicate"]
    replicate = given.get("dp_replicate", max(1, dp // max(1, given.get("dp_shard", dp))))
    shard = given.get("dp_shard", max(1, dp // max(1, replicate)))
    has_sp = framework not in (Framework.DEEPSPEED, Framework.ACCELERATE)
    values: dict[str, Any] = {
        "tp": tp,
        "sp": has_sp and tp > 1,
        "pp": pp,
        "vpp": vpp,
        "schedule": Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B,
        "cp": cp,
        "cp_comm": _CP_COMM[framework] if cp > 1 else CpComm.P2P,
        "ep": ep,
        "etp": _default_etp(framework, tp=tp, ep=ep) if scenario.model.is_moe else 1,
        "dp": dp,
        "dp_shard": shard,
        "dp_replicate": replicate,
        "zero": _default_zero(framework, pp=pp) if shard * cp > 1 else 0,
        "micro_batch": micro_batch,
        "num_micro_batches": max(1, scenario.job.global_batch // max(1, dp * micro_batch)),
        "recompute": Recompute.NONE,
        "split": _default_split(framework, pp=pp),
        **given,
    }
    return Plan(framework=framework, **values)


def _default_vpp(given: Mapping[str, Any]) -> int:
    """Two chunks where the schedule needs more than one."""
    return 2 if given.get("schedule") in _SEVERAL_CHUNKS else 1


def _default_zero(framework: Framework, *, pp: int) -> int:
    if framework in (Framework.MEGATRON, Framework.NANOTRON):
        return 1
    if pp == 1:
        return 3
    return 1 if framework is Framework.DEEPSPEED else 2


def _default_split(framework: Framework, *, pp: int) -> Split:
    """Nanotron weighs what it deals, the others deal layers evenly."""
    return Split.BY_COST if framework is Framework.NANOTRON and pp > 1 else Split.EVEN


def _default_etp(framework: Framework, *, tp: int, ep: int) -> int:
    if framework in (Framework.DEEPSPEED, Framework.NANOTRON):
        return 1
    if framework is Framework.ACCELERATE or ep == 1:
        return tp
    return 1
