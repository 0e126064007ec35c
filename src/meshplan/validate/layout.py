"""The plan of a row: degrees, batches, schedule, recompute and sharding."""

from __future__ import annotations

import re

from meshplan.inputs.load.model_mapping import MOST_LAYERS
from meshplan.inputs.model import Model
from meshplan.space.plan import (
    CpComm,
    Framework,
    Plan,
    Recompute,
    Schedule,
    Split,
)
from meshplan.space.stages import deal_layers
from meshplan.validate.assume import Assumptions
from meshplan.validate.flags import pipeline_layout
from meshplan.validate.table import Row, Skip, count, flag

__all__ = ["plan_of"]

_MODULES = {
    "core_attn": Recompute.CORE_ATTENTION,
    "attention core": Recompute.CORE_ATTENTION,
    "layernorm": Recompute.NORM,
    "norm": Recompute.NORM,
    "moe_act": Recompute.MLP_ACTIVATION,
    "act": Recompute.MLP_ACTIVATION,
    "mla_up_proj": Recompute.MLA_UP_PROJECTION,
    "mlp": Recompute.MLP,
    "moe": Recompute.MOE,
    "shared_experts": Recompute.SHARED_EXPERTS,
    "shared_expert": Recompute.SHARED_EXPERTS,
}
_SCHEDULES = (
    ("zb-2p", Schedule.ZB_2P),
    ("zb-1p", Schedule.ZB_1P),
    ("zb-h1", Schedule.ZB_H1),
    ("zbv", Schedule.ZBV),
    ("zb-v", Schedule.ZBV),
    ("dualpipe", Schedule.DUALPIPE_V),
    ("gpipe", Schedule.GPIPE),
    ("afab", Schedule.GPIPE),
)


def plan_of(row: Row, model: Model, assumed: Assumptions) -> Plan:
    """Read the layout of a row.

    Raises:
        Skip: ``no_layout``, ``degrees_do_not_divide``, ``batch_does_not_divide`` or
            ``layers_do_not_divide``.
    """
    tp, pp, num_gpus = count(row, "tp"), count(row, "pp"), count(row, "num_gpus")
    global_batch = count(row, "global_batch")
    if not (tp and pp and num_gpus and global_batch):
        raise Skip("no_layout")
    if pp > MOST_LAYERS:
        raise Skip("layers_do_not_divide")
    cp = count(row, "cp") or 1
    if num_gpus % (tp * pp * cp):
        raise Skip("degrees_do_not_divide")
    dp = num_gpus // (tp * pp * cp)
    micro_batch = _micro_batch(row, assumed, dp=dp, global_batch=global_batch)
    ep, etp = _experts(row, model, assumed, tp=tp, pp=pp, num_gpus=num_gpus)
    zero = _zero(row, assumed)
    shard = count(row, "dp_shard") or dp
    if shard > dp or dp % shard:
        shard = dp
    vpp = (count(row, "vpp") or _assumed_vpp(model, assumed, pp=pp)) if pp > 1 else 1
    schedule = _schedule(row, vpp=vpp)
    if schedule in (Schedule.ZBV, Schedule.DUALPIPE_V):
        vpp = 2
    if "l+2 layout" in row.get("other_inferred", "") and row["pp_schedule"] == "1F1B-I":
        vpp, schedule = (model.num_layers + 2) // pp, Schedule.INTERLEAVED
    framework = Framework[assumed.text("framework").upper()]
    stated = pipeline_layout(row.get("other_flags", ""))
    if stated:
        split, stage_layers = Split.EVEN, stated
    elif framework is Framework.NANOTRON and pp > 1:
        split, stage_layers = _by_cost(model, pp=pp)
    else:
        split, stage_layers = _stages(model, pp=pp, vpp=vpp)
    sp = flag(row, "sp")
    recompute, first = _recompute(row, assumed)
    return Plan(
        framework=framework,
        tp=tp,
        sp=tp > 1 and (sp if sp is not None else bool(assumed.number("sp"))),
        pp=pp,
        vpp=vpp,
        schedule=schedule,
        cp=cp,
        cp_comm=CpComm.ALL_TO_ALL if "cp a2a" in row.get("other_flags", "") else CpComm.P2P,
        ep=ep,
        etp=etp,
        dp=dp,
        dp_shard=shard if zero else dp,
        dp_replicate=dp // shard if zero else 1,
        zero=zero,
        micro_batch=micro_batch,
        num_micro_batches=global_batch // (dp * micro_batch),
        recompute=recompute,
        recompute_layers=first,
        offload_layers=_offload_layers(row, assumed, recompute),
        split=split,
        stage_layers=stage_layers,
    )


def _assumed_vpp(model: Model, assumed: Assumptions, *, pp: int) -> int:
    """The assumed number of chunks where it divides the layers."""
    vpp = assumed.number("vpp")
    return vpp if model.num_layers % (pp * vpp) == 0 else 1


def _micro_batch(row: Row, assumed: Assumptions, *, dp: int, global_batch: int) -> int:
    """Sequences per device and micro-batch; without a pipeline all that a replica has."""
    per_replica, rest = divmod(global_batch, dp)
    if rest or not per_replica:
        raise Skip("batch_does_not_divide")
    given = count(row, "micro_batch")
    accumulation = count(row, "grad_accum")
    if given is None and accumulation and per_replica % accumulation == 0:
        given = per_replica // accumulation
    if given is None:
        whole = assumed.text("micro_batch") == "all"
        given = per_replica if whole else assumed.number("micro_batch")
    if not given or per_replica % given:
        raise Skip("batch_does_not_divide")
    return given


def _experts(
    row: Row, model: Model, assumed: Assumptions, *, tp: int, pp: int, num_gpus: int
) -> tuple[int, int]:
    """Expert-parallel degree, and tensor-parallel degree inside an expert."""
    if not model.is_moe:
        return 1, tp
    ep = count(row, "ep") or 1
    etp = count(row, "etp")
    if etp is None:
        etp = _keyword(row, "etp")
    if etp is None:
        etp = tp if assumed.text("etp") == "tp" else assumed.number("etp")
    if num_gpus % (ep * etp * pp):
        etp = 1
    if num_gpus % (ep * etp * pp):
        raise Skip("degrees_do_not_divide")
    return ep, etp


def _keyword(row: Row, name: str) -> int | None:
    match = re.search(rf"\b{name}=([0-9]+)", row.get("other_inferred", ""))
    return int(match[1]) if match else None


def _zero(row: Row, assumed: Assumptions) -> int:
    stage = count(row, "zero_stage")
    if stage is not None:
        return min(stage, 3)
    fsdp = row.get("fsdp", "").lower()
    if fsdp in ("", "no", "false"):
        return assumed.number("zero")
    return 3 if fsdp not in ("0",) else assumed.number("zero")


def _schedule(row: Row, *, vpp: int) -> Schedule:
    text = row.get("pp_schedule", "").lower()
    for name, schedule in _SCHEDULES:
        if name in text:
            return schedule
    return Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B


def _stages(model: Model, *, pp: int, vpp: int) -> tuple[Split, tuple[int, ...]]:
    """Deal the layers evenly, or with embedding and head as layers, or as evenly as it goes."""
    num_stages, layers = pp * vpp, model.num_layers
    if model.mtp_layers and num_stages > 1 and layers % num_stages:
        return Split.EVEN, _before_mtp(layers, num_stages)
    for split in (Split.EVEN, Split.BALANCED):
        even = split is Split.EVEN or (layers + 2) % num_stages == 0
        if even and deal_layers(num_layers=layers, num_stages=num_stages, split=split):
            return split, ()
    if layers + 2 < num_stages:
        raise Skip("layers_do_not_divide")
    base, extra = divmod(layers + 2, num_stages)
    units = [base + (i < extra) for i in range(num_stages)]
    units[0] -= 1
    units[-1] -= 1
    return Split.EVEN, tuple(units)


def _before_mtp(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Full stages, and what is left beside MTP and loss on the last one.

    As in the layouts of Megatron-Bridge's recipes for DeepSeek-V3: ``Et*4|(tttt|)*14tmL`` over 16
    stages, ``Et|(tt|)*30mL`` over 32, where the first stage gives what the last one lacks.
    """
    most = -(-num_layers // num_stages)
    last = num_layers - most * (num_stages - 1)
    first = most + min(last, 0)
    if first < 0:
        raise Skip("layers_do_not_divide")
    return (first, *[most] * (num_stages - 2), max(last, 0))


def _by_cost(model: Model, *, pp: int) -> tuple[Split, tuple[int, ...]]:
    """As nanotron deals layers; of more stages than layers the last ones stay empty."""
    empty = pp - model.num_layers
    if empty <= 0:
        return Split.BY_COST, ()
    return Split.EVEN, (1,) * model.num_layers + (0,) * empty


def _offload_layers(row: Row, assumed: Assumptions, recompute: Recompute) -> int:
    """Layers whose activations go to the host, where nothing is recomputed instead."""
    stated = _keyword(row, "cpu_offloading_num_layers")
    num_layers = assumed.number("offload_layers") if stated is None else stated
    return 0 if recompute else num_layers


def _recompute(row: Row, assumed: Assumptions) -> tuple[Recompute, int]:
    """Recompute mode, and the first layers that it applies to (0 means all)."""
    mode = row.get("recompute", "").lower()
    detail = f"{row.get('recompute_detail', '')} {mode}"
    layers = _keyword(row, "recompute_num_layers")
    if layers:
        return Recompute.FULL, layers
    named = re.search(r"recompute_modules=\[([^\]]*)\]", row.get("other_inferred", ""))
    if named:
        mode, detail = "selective", named[1]
    if not mode:
        mode = assumed.text("recompute")
        detail = mode
    if mode.startswith("full"):
        return Recompute.FULL, 0
    if "per-op" in mode:
        return Recompute.SELECTIVE_OP, 0
    if not mode.startswith("selective"):
        return Recompute.NONE, 0
    modules = Recompute.NONE
    for word in re.findall(r"[a-z_]+(?: core)?", detail):
        modules |= _MODULES.get(word, Recompute.NONE)
    return modules or Recompute.CORE_ATTENTION, 0
