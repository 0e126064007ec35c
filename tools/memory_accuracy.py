"""Compare predicted with measured peak memory, per source.

usage: python tools/memory_accuracy.py [--source ID ...] [--worst N] [--by-event]

Reads ``data/measured`` of the folder that MESHPLAN_SHARED names, or of ``../shared``.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meshplan.cost.memory import Event, peak_memory, stage_memory
from meshplan.inputs.cluster import Cluster, Tier
from meshplan.inputs.framework import FrameworkMemory
from meshplan.inputs.job import Job
from meshplan.inputs.load.framework import load_framework_memory
from meshplan.inputs.load.plain_model import plain_model
from meshplan.inputs.load.presets import device_preset
from meshplan.inputs.model import Attention, Mlp, Model
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import CpComm, Framework, Plan, PlanGrid, Recompute, Schedule, Split
from meshplan.units import GIB

Row = dict[str, str]

SCHEDULES = {
    "1F1B": Schedule.ONE_F_ONE_B,
    "1F1B-I": Schedule.INTERLEAVED,
    "ZB-1p": Schedule.ZB_1P,
    "ZB-2p": Schedule.ZB_2P,
    "1F1B (DeepSpeed)": Schedule.ONE_F_ONE_B,
}
BEHAVIOURS = {
    "simumax": (Framework.MEGATRON, "megatron-fused-loss"),
    "megatron-ci-golden": (Framework.MEGATRON, "megatron"),
    "zero-bubble": (Framework.MEGATRON, "megatron-2022"),
    "bigscience": (Framework.DEEPSPEED, "megatron-deepspeed"),
    "aleph-alpha-layouts": (Framework.MEGATRON, "megatron-2022"),
    "torchtitan-torchao": (Framework.TORCHTITAN, "torchtitan"),
    "hf-ultrascale": (Framework.NANOTRON, "nanotron"),
    "llm-foundry-bench": (Framework.ACCELERATE, "llm-foundry"),
    "internevo": (Framework.DEEPSPEED, "megatron-deepspeed"),
    "dgxc-log": (Framework.MEGATRON, "nemo"),
}
MEASURED_STAGE = {"megatron-ci-golden": -1, "hf-ultrascale": 0}
DEVICES = {"H100-SXM-96GB-HBM2e(500W)": "H100-96GB"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A measured row, read."""

    row: Row
    scenario: Scenario
    plan: Plan
    behaviour: FrameworkMemory
    kind: str


def number(text: str, default: int) -> int:
    """Read a count, or take the default for a blank."""
    return int(float(text)) if text else default


def read(folder: Path) -> tuple[list[Row], dict[str, Row]]:
    """Rows of runs, and architectures by key."""
    with (folder / "runs.csv").open() as file:
        runs = list(csv.DictReader(file))
    with (folder / "models.csv").open() as file:
        models = {row["model_key"]: row for row in csv.DictReader(file)}
    return runs, models


def inferred(row: Row, key: str) -> str:
    """Read ``key=value`` from the inferred notes of a row."""
    found = re.search(rf"\b{key}=([^;,\s)]+)", row["other_inferred"] + ";" + row["other_flags"])
    return found[1] if found else ""


def make_model(row: Row, models: dict[str, Row]) -> Model | None:
    """Build the model of a row from its own columns or from the table of architectures."""
    base = models.get(row["model_key"], {})

    def get(name: str) -> str:
        return row.get(name) or base.get(name) or ""

    if not (get("layers") and get("hidden")):
        return None
    hidden, heads = int(float(get("hidden"))), number(get("heads"), 0)
    if not heads:
        return None
    gated = get("gated_mlp") == "True"
    ffn = number(get("ffn_hidden"), 4 * hidden)
    legacy = base.get("norm", "LayerNorm" if not gated else "RMSNorm") == "LayerNorm"
    vocab = number(get("vocab"), 0) or number(inferred(row, "vocab-size"), 0)
    tokenizers = {"GPTSentencePieceTokenizer": 256000, "Llama2Tokenizer": 32000}
    vocab = vocab or tokenizers.get(inferred(row, "tokenizer-type"), 50304)
    mla = (row.get("attention_arch") or base.get("attn_type")) == "MLA"
    positions = number(get("seq_len"), 2048) if base.get("pos_emb", "learned") == "learned" else 0
    flags = row["other_flags"]
    frequency = re.search(r"moe-layer-freq=\(\[0\]\*(\d+)", flags)
    dense = int(frequency[1]) if frequency else number(base.get("moe_dense_layers", ""), 0)
    return plain_model(
        name=row["model"],
        num_layers=number(get("layers"), 0),
        hidden=hidden,
        ffn_hidden=ffn,
        num_heads=heads,
        num_kv_heads=number(get("kv_heads"), heads),
        head_dim=number(get("head_dim"), hidden // heads),
        vocab=vocab,
        gated=gated,
        tied=get("tied_embeddings") == "True",
        norm="layernorm" if legacy else "rmsnorm",
        num_positions=0 if gated else positions,
        num_experts=number(get("moe_experts"), 0),
        top_k=number(get("moe_topk"), 0),
        expert_ffn_hidden=number(get("moe_ffn"), ffn),
        shared_ffn_hidden=number(get("moe_shared_ffn"), 0),
        num_dense_layers=dense,
        q_lora_rank=number(inferred(row, "q-lora-rank") or base.get("mla_q_lora", ""), 0) or None,
        kv_lora_rank=(
            number(inferred(row, "kv-lora-rank") or base.get("mla_kv_lora", ""), 0) if mla else 0
        ),
        qk_nope_head_dim=number(base.get("mla_qk_nope", ""), 128) if mla else 0,
        qk_rope_head_dim=number(base.get("mla_qk_rope", ""), 64) if mla else 0,
        v_head_dim=number(base.get("mla_v", ""), 128) if mla else 0,
        num_mtp_layers=number(inferred(row, "mtp-num-layers"), 0),
    )


def make_recompute(row: Row) -> Recompute:
    """Read what is recomputed."""
    text, detail = row["recompute"], row["recompute_detail"]
    if text.startswith("full"):
        return Recompute.FULL
    if text.startswith("selective (per-op)"):
        return Recompute.SELECTIVE_OP
    if text.startswith("selective"):
        names = {
            "layernorm": Recompute.NORM,
            "mla_up_proj": Recompute.MLA_UP_PROJECTION,
            "mlp": Recompute.MLP,
            "moe_act": Recompute.MLP_ACTIVATION,
            "moe": Recompute.MOE,
        }
        modes = Recompute.NONE
        for word in re.findall(r"\w+", detail):
            modes |= names.get(word, Recompute.NONE)
        return modes or Recompute.CORE_ATTENTION
    return Recompute.NONE


def make_layout(row: Row, model: Model, pp: int, vpp: int) -> tuple[int, ...]:
    """Layers per virtual stage where the row or its source says so."""
    found = re.search(r"pipeline-model-parallel-layout=(\S+?)(;|$)", row["other_flags"])
    if found:
        text = re.sub(r"\(([^)]*)\)\*(\d+)", lambda m: m[1] * int(m[2]), found[1])
        text = re.sub(r"t\*(\d+)", lambda m: "t" * int(m[1]), text)
        return tuple(part.count("t") for part in text.split("|"))
    stages = pp * vpp
    if row["source_id"] == "hf-ultrascale" and pp > 1:
        return nanotron_layout(model, pp)
    if model.num_layers % stages == 0:
        return ()
    if (model.num_layers + 2) % stages == 0 and stages > 1:
        each = (model.num_layers + 2) // stages
        return (each - 1, *[each] * (stages - 2), each - 1)
    base, extra = divmod(model.num_layers, stages)
    return tuple(base + (1 if i < extra else 0) for i in range(stages))


def nanotron_layout(model: Model, pp: int) -> tuple[int, ...]:
    """Layers per stage as nanotron deals them: by cumulative cost of layers and head.

    A stage takes blocks until their cumulative cost exceeds its share.
    """
    layer = model.layers[0]
    assert isinstance(layer.mixer, Attention) and isinstance(layer.ffn, Mlp)
    width = layer.mixer.num_heads * layer.mixer.head_dim
    cost = 4 * width * model.hidden + 3 * layer.ffn.ffn_hidden * model.hidden
    costs = [cost] * model.num_layers + [model.vocab * model.hidden]
    total, done, stage = sum(costs), 0, 0
    counts = [0] * pp
    for index, part in enumerate(costs):
        counts[stage] += index < model.num_layers
        done += part
        if done > total * ((stage + 1) / pp) and stage < pp - 1:
            stage += 1
    return tuple(counts)


def make_case(row: Row, models: dict[str, Row]) -> Case | str:
    """Read a row, or say why it cannot be read.

    Where the number of GPUs is not given but the steady memory is, the number is the one among
    multiples of the smallest possible whose weights, gradients and optimizer state come closest
    to the steady memory; the peak is not looked at.
    """
    steady = inferred(row, "mem_allocated_steady_gib")
    if row["num_gpus"] or not steady:
        return _make_case(row, models)
    least = number(inferred(row, "min_gpus"), 1)
    found = [_make_case(row | {"num_gpus": str(least << k)}, models) for k in range(6)]
    cases = [case for case in found if isinstance(case, Case)]
    if not cases:
        return found[0]
    return min(cases, key=lambda case: abs(states(case) / GIB - float(steady)))


def states(case: Case) -> float:
    """Weights, gradients and optimizer state of the last stage."""
    given = {case.plan.framework: case.behaviour}
    last = stage_memory(case.scenario, case.plan, behaviours=given)[-1]
    lines = dict(last.terms)[Event.OPTIMIZER]
    return sum(t.num_bytes for t in lines if t.code in ("weights", "gradients", "optimizer"))


def _make_case(row: Row, models: dict[str, Row]) -> Case | str:
    source = row["source_id"]
    if source not in BEHAVIOURS:
        return "source has no reader"
    model = make_model(row, models)
    if model is None:
        return "architecture unknown"
    if not (row["seq_len"] and row["micro_batch"]):
        return "sequence length or micro-batch missing"
    if "nemotron3" in row["model"] or row["model"].startswith("hybrid"):
        return "pattern of state-space layers unknown"
    if "fine_grained_offloading" in row["model"]:
        return "offloading of activations is not modelled"
    framework, behaviour = BEHAVIOURS[source]
    if "cross-entropy-loss-fusion" in row["other_flags"]:
        behaviour = "megatron-fused-loss"
    tp, pp = number(row["tp"], 1), number(row["pp"], 1)
    vpp, cp, ep = number(row["vpp"], 1), number(row["cp"], 1), number(row["ep"], 1)
    gpus = number(row["num_gpus"], 0) or number(inferred(row, "min_gpus"), 0)
    if not gpus:
        return "number of GPUs unknown"
    if source == "zero-bubble" and row["pp_schedule"] == "1F1B-I":
        vpp = (model.num_layers + 2) // pp
    layout = make_layout(row, model, pp, vpp)
    vpp = len(layout) // pp if layout else vpp
    dp = gpus // (tp * pp * cp)
    micro = int(float(row["micro_batch"]))
    batch = number(row["global_batch"], 0) or number(row["grad_accum"], 8) * dp * micro
    m = max(1, batch // (dp * micro))
    schedule = SCHEDULES.get(row["pp_schedule"], Schedule.ONE_F_ONE_B)
    if vpp > 1 and schedule is Schedule.ONE_F_ONE_B:
        schedule = Schedule.INTERLEAVED
    assumed = source in ("bigscience", "dgxc-log") and dp > 1
    zero = number(row["zero_stage"], int(assumed))
    unfused = any(word in row["attention_impl"] for word in ("unfused", "non-flash", "fused soft"))
    unfused = unfused or source in ("zero-bubble", "bigscience")
    sp = row["sp"] in ("True", "1") or source in ("hf-ultrascale", "dgxc-log")
    plan = Plan(
        framework=framework,
        tp=tp,
        sp=sp and tp > 1,
        pp=pp,
        vpp=vpp,
        schedule=schedule,
        cp=cp,
        cp_comm=CpComm.ALL_TO_ALL if "a2a" in row["other_flags"] else CpComm.P2P,
        ep=ep,
        etp=number(row["etp"], tp),
        dp=dp,
        dp_shard=number(row["dp_shard"], dp),
        dp_replicate=max(1, dp // number(row["dp_shard"], dp)),
        zero=zero,
        micro_batch=micro,
        num_micro_batches=m,
        recompute=make_recompute(row),
        split=Split.EVEN,
        stage_layers=layout,
    )
    precision = row["precision"].lower()
    if "fp8" in precision:
        precision = "fp8"
    job = Job(
        seq_len=int(float(row["seq_len"])),
        global_batch=batch,
        precision="fp16"
        if precision.startswith("fp16")
        else "fp8"
        if precision == "fp8"
        else "bf16",
        optimizer="adamw8bit" if "8-bit" in row["optimizer"] else "adamw",
        attention="unfused" if unfused else "flash",
        dropout=source in ("zero-bubble", "bigscience") or "gpt3_7b" in row["model"],
    )
    device = device_preset(DEVICES.get(row["gpu"], row["gpu"]))
    tier = Tier(
        name="node", fabric="other", num_gpus=gpus, bandwidth_bytes_per_s=1e11, latency_s=1e-6
    )
    cluster = Cluster(
        name=row["gpu"],
        device=device.device,
        num_gpus=gpus,
        gpus_per_node=min(gpus, 8),
        tiers=(tier,),
        host_memory_bytes=2e12,
        host_link_bytes_per_s=2.5e10,
    )
    kinds = {
        "simumax": "allocated",
        "dgxc-log": "allocated",
        "megatron-ci-golden": "allocated",
        "bigscience": "smi",
    }
    kind = kinds.get(source, "reserved")
    return Case(
        row=row,
        scenario=Scenario(model=model, cluster=cluster, job=job),
        plan=plan,
        behaviour=load_framework_memory(behaviour),
        kind=kind,
    )


def predict(case: Case) -> float:
    """Predicted bytes of the kind that was measured."""
    given = {case.plan.framework: case.behaviour}
    if case.row["source_id"] in MEASURED_STAGE:
        stages = stage_memory(case.scenario, case.plan, behaviours=given)
        chosen = stages[MEASURED_STAGE[case.row["source_id"]]]
        reserved = case.kind == "reserved"
        return max(
            sum(
                t.num_bytes
                for t in terms
                if t.code != "communicators" and (reserved or not t.allowance)
            )
            for _, terms in chosen.terms
        )
    grid = peak_memory(case.scenario, PlanGrid.of([case.plan]), behaviours=given)
    if case.kind == "allocated":
        return float(grid.allocated_bytes[0])
    if case.kind == "reserved":
        return float(grid.reserved_bytes[0])
    preset = device_preset(case.scenario.cluster.device.name)
    return float(grid.peak_bytes[0]) + preset.context_bytes


def measured(row: Row) -> float:
    """Measured bytes; sources that print GB of nvidia-smi or torch mean GiB."""
    return float(row["peak_mem_gib"]) * GIB


def main() -> None:
    """Print the table and the worst rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", action="append")
    parser.add_argument("--worst", type=int, default=5)
    parser.add_argument("--min-hidden", type=int, default=1024)
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    shared = Path(os.environ.get("MESHPLAN_SHARED", Path(__file__).parents[2] / "shared"))
    runs, models = read(shared / "data" / "measured")
    errors: dict[str, list[tuple[float, Case, float]]] = defaultdict(list)
    skipped: dict[str, int] = defaultdict(int)
    for row in runs:
        source = row["source_id"]
        if not row["peak_mem_gib"] or (args.source and source not in args.source):
            continue
        if source == "megatron-ci-golden" and number(row["hidden"], 0) < args.min_hidden:
            skipped[f"{source}: toy model"] += 1
            continue
        if "not be reproduced" in row["notes"] or "not reproducible" in row["notes"]:
            skipped[f"{source}: noted as not reproducible"] += 1
            continue
        case = make_case(row, models)
        if isinstance(case, str):
            skipped[f"{source}: {case}"] += 1
            continue
        predicted = predict(case)
        errors[source].append((predicted / measured(row) - 1.0, case, predicted))
    print(f"{'source':24s} {'n':>4s} {'mean':>7s} {'median':>7s} {'p90':>7s} {'bias':>7s}")
    for source, found in errors.items():
        signed = np.array([e for e, _, _ in found])
        size = np.abs(signed)
        print(
            f"{source:24s} {len(found):4d} {size.mean():7.1%} {np.median(size):7.1%} "
            f"{np.quantile(size, 0.9):7.1%} {np.median(signed):+7.1%}"
        )
    for source, found in errors.items():
        ordered = sorted(found, key=lambda item: -abs(item[0]))
        for error, case, predicted in ordered if args.all else ordered[: args.worst]:
            p = case.plan
            print(
                f"{source} {case.row['row_id']} {error:+.1%} measured "
                f"{measured(case.row) / GIB:.2f} predicted {predicted / GIB:.2f} "
                f"{case.scenario.model.name} tp{p.tp} pp{p.pp} v{p.vpp} cp{p.cp} ep{p.ep} dp{p.dp} "
                f"z{p.zero} mbs{p.micro_batch} m{p.num_micro_batches} {case.row['pp_schedule']} "
                f"{p.recompute!r}"
            )
    for reason, count in sorted(skipped.items()):
        print(f"skipped {count}: {reason}")


if __name__ == "__main__":
    main()
