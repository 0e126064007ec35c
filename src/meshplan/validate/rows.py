"""Turn rows of measured runs into cases: a scenario, a plan and what was measured."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Literal, cast

from meshplan.errors import UserError
from meshplan.inputs.cluster import Cluster
from meshplan.inputs.job import Job, Precision
from meshplan.inputs.load.cluster import Draft
from meshplan.inputs.load.framework import framework_memory_names
from meshplan.inputs.load.network import parse_network
from meshplan.inputs.load.nodes import load_node
from meshplan.inputs.load.presets import device_preset, load_device
from meshplan.inputs.load.profile import cluster_profile_names, framework_profile_names
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.plan import Plan
from meshplan.units import GIB
from meshplan.validate.assume import Assumptions, assumptions_of
from meshplan.validate.flags import with_flags
from meshplan.validate.layout import plan_of
from meshplan.validate.memory import Kind, Where
from meshplan.validate.models import model_of
from meshplan.validate.recipes import with_recipe
from meshplan.validate.table import Row, Skip, count, flag, number

__all__ = ["Case", "has_full_layout", "read_case", "steady_bytes"]

Target = Literal["step_time_s", "tokens_per_s_per_gpu"]


@record
class Case:
    """One measured run.

    Attributes:
        row_id: row in its table.
        source_id: set that it belongs to.
        sweep_id: sweep of layouts that it belongs to, empty for none.
        sweep_key: what rows of a strict sweep share besides the sweep.
        group: model and cluster, the unit by which data are split.
        scenario: model, cluster and job.
        plan: layout.
        target: what was measured of the time.
        measured: its value; None where the run failed or only memory was measured.
        measured_bytes: peak memory [bytes]; None where it was not measured.
        out_of_memory: the run did not fit.
        memory_kind: what of the memory was measured.
        memory_where: on which device of the pipeline.
        composed: its time was put together from parts that were measured apart.
    """

    row_id: str
    source_id: str
    sweep_id: str
    sweep_key: tuple[str, ...]
    group: str
    scenario: Scenario
    plan: Plan
    target: Target
    measured: float | None
    measured_bytes: float | None
    out_of_memory: bool
    memory_kind: Kind = "reserved"
    memory_where: Where = "worst"
    composed: bool = False

    def with_profile(self, profile: str) -> Case:
        """The same run, predicted with another cluster profile than its own; empty for its own."""
        if not profile:
            return self
        return replace(self, scenario=replace(self.scenario, profile=profile))

    def predicted(self, step_time_s: float) -> float:
        """Turn a step time into what was measured."""
        if self.target == "step_time_s":
            return step_time_s
        tokens = self.scenario.job.tokens_per_step
        return tokens / step_time_s / self.scenario.cluster.num_gpus

    def measured_step_s(self) -> float:
        """Turn what was measured into a step time [s]."""
        assert self.measured is not None
        if self.target == "step_time_s":
            return self.measured
        tokens = self.scenario.job.tokens_per_step
        return tokens / self.measured / self.scenario.cluster.num_gpus


def has_full_layout(row: Row, models: Mapping[str, Row]) -> bool:
    """Whether a row says its layout, device, model, and a time or throughput."""
    layout = ("tp", "pp", "num_gpus", "global_batch", "seq_len", "gpu")
    inline = row.get("layers") and row.get("hidden") and row.get("heads")
    times = ("step_time_s", "tokens_per_s_per_gpu", "samples_per_s", "tflops_per_gpu", "mfu_pct")
    return bool(
        all(row.get(name) for name in layout)
        and (row.get("model_key") in models or inline)
        and any(row.get(name) for name in times)
    )


def read_case(row: Row, models: Mapping[str, Row], *, as_printed: bool = False) -> Case:
    """Read one row.

    Args:
        row: the row.
        models: models by key.
        as_printed: leave official recipes aside, so that no row contradicts its own.

    Raises:
        Skip: with the reason why the row cannot be modelled.
    """
    if row.get("consistency", "").upper() == "MISMATCH":
        raise Skip("contradicts_itself")
    row = with_flags(row)
    if not as_printed:
        row = with_recipe(row, assumptions_of(row["source_id"], row))
    return _read_case(_with_devices(row), models)


def steady_bytes(row: Row) -> float:
    """Memory between two steps that a row states [bytes], 0 when it states none."""
    said = row.get("other_inferred", "")
    found = re.search(r"mem_allocated_steady_gib=([0-9]+(?:[.][0-9]+)?)", said)
    return float(found[1]) * GIB if found else 0.0


def _with_devices(row: Row) -> Row:
    """Fill in how many devices a row ran on where its source runs on whole machines of one size.

    Raises:
        Skip: ``devices_not_stated`` where the layout needs more than one such machine.
    """
    usual = int(assumptions_of(row["source_id"], row).values.get("num_gpus", 0))
    if row.get("num_gpus") or not usual:
        return row
    tp, pp, cp, ep = (count(row, name) or 1 for name in ("tp", "pp", "cp", "ep"))
    experts = pp * ep * (count(row, "etp") or tp) if ep > 1 else 1
    if usual % (tp * pp * cp) or usual % experts:
        raise Skip("devices_not_stated")
    return {**row, "num_gpus": str(usual)}


def _read_case(row: Row, models: Mapping[str, Row]) -> Case:
    assumed = assumptions_of(row["source_id"], row)
    model = model_of(row, models, assumed)
    plan = plan_of(row, model, assumed)
    cluster = _cluster(row, assumed)
    job = _job(row, cluster, assumed)
    target, measured = _measured(row)
    memory = number(row, "peak_mem_gib")
    variant = _variant(row, assumed)
    scenario = Scenario(
        model=model,
        cluster=cluster,
        job=job,
        frameworks=(plan.framework.name.lower(),),
        variant=variant,
    )
    return Case(
        row_id=row.get("row_id", ""),
        source_id=row["source_id"],
        sweep_id=row.get("sweep_id", ""),
        sweep_key=(row.get("global_batch", ""), row.get("attention_impl", "")),
        group=f"{row['source_id']}|{model.name}|{cluster.device.name}|{_scale(cluster.num_gpus)}",
        scenario=scenario,
        plan=plan,
        target=target,
        measured=measured,
        measured_bytes=memory * GIB if memory else None,
        out_of_memory=flag(row, "oom") is True,
        memory_kind=cast(Kind, assumed.text("memory_kind")),
        memory_where=cast(Where, assumed.text("memory_where")),
        composed=bool(assumed.number("composed")),
    )


def _scale(num_gpus: int) -> str:
    return f"{num_gpus}gpu"


def _variant(row: Row, assumed: Assumptions) -> str:
    """Framework variant: by attention kernel, or by overlap, where the source says so."""
    name = assumed.text("variant")
    own = {
        "flash attentionv1.0.8": f"{name}-fa1",
        "flash attention2 + RMS kernel": f"{name}-rms",
        "torch (unfused)": f"{name}-torch",
    }.get(row.get("attention_impl", ""), name)
    names = {*framework_profile_names(), *framework_memory_names()}
    chosen = own if own in names else name if name in names else ""
    return "+".join((chosen, *_settings(row, assumed))) if chosen else ""


def _settings(row: Row, assumed: Assumptions) -> Iterator[str]:
    """What a row or its recipe sets of gradients, exchange of tokens and CUDA graphs."""
    stated = row.get("precision", "").lower() or assumed.text("precision")
    if assumed.text("framework") == "megatron" and "fp16" in stated and not row.get("grad_dtype"):
        # Megatron-LM training/arguments.py: accumulate_allreduce_grads_in_fp32 for bf16 alone
        yield "bf16-gradients"
    recipe = row.get("other_inferred", "")
    if "recipe=" in recipe and assumed.text("dispatcher") == "flex":
        alltoall = "moe_dispatcher=" not in recipe
    else:
        alltoall = assumed.text("dispatcher") == "alltoall"
    if alltoall:
        yield "alltoall"
    if assumed.number("exchange_overlap") or "moe_a2a_overlap=True" in recipe:
        yield "overlapped-exchange"
    scope = re.search(r"cuda_graph_impl=transformer_engine; cuda_graph_scope=\[(.*?)\]", recipe)
    graphs = scope[1] if scope else assumed.text("graphs")
    if "layer" in graphs:
        yield "graph-layer"
    if "attn" in graphs:
        yield "graph-attention"
    if "moe_router" in graphs:
        yield "graph-router"


def _cluster(row: Row, assumed: Assumptions) -> Cluster:
    try:
        device = load_device(row["gpu"])
    except UserError as error:
        raise Skip("unknown_device") from error
    num_gpus = count(row, "num_gpus")
    if not num_gpus:
        raise Skip("no_layout")
    kind = assumed.node_by_device.get(device.name) or assumed.text("node")
    profile = assumed.text("profile")
    return _build_cluster(
        device.name,
        num_gpus,
        count(row, "gpus_per_node") or 0,
        kind,
        assumed.text("network"),
        profile if profile in cluster_profile_names() else "default",
    )


@lru_cache(maxsize=512)
def _build_cluster(
    device: str,
    num_gpus: int,
    gpus_per_node: int,
    kind: str,
    network: str,
    profile: str,
) -> Cluster:
    preset = device_preset(device)
    node = load_node(kind or preset.node, device=device)
    draft = Draft(
        name=f"{num_gpus}x{device}",
        node=node,
        num_gpus=num_gpus,
        said=frozenset({"device"}),
        device=preset.device,
    )
    if gpus_per_node and gpus_per_node < draft.node.gpus_per_node:
        draft = draft.with_gpus_per_node(gpus_per_node)
    if network:
        draft = draft.with_network(parse_network(network))
    cluster: Cluster = draft.build()
    return replace(cluster, profile=profile)


def _job(row: Row, cluster: Cluster, assumed: Assumptions) -> Job:
    seq_len, global_batch = count(row, "seq_len"), count(row, "global_batch")
    if not (seq_len and global_batch):
        raise Skip("no_layout")
    attention = row.get("attention_impl", "").lower()
    unfused = any(word in attention for word in ("unfused", "non-flash", "softmax"))
    if not attention:
        unfused = assumed.text("attention") == "unfused"
    dropout = number(row, "dropout")
    optimizer = row.get("optimizer", "").lower() + row.get("other_flags", "").lower()
    return Job(
        seq_len=seq_len,
        global_batch=global_batch,
        precision=_precision(row, cluster, assumed),
        optimizer="muon" if "muon" in optimizer else "adamw",
        attention="unfused" if unfused else "flash",
        dropout=bool(assumed.number("dropout") if dropout is None else dropout),
    )


def _precision(row: Row, cluster: Cluster, assumed: Assumptions) -> Precision:
    """Number format of the products, as far as the device has it."""
    text = row.get("precision", "").lower()
    wanted: Precision = "bf16"
    if "nvfp4" in text:
        wanted = "nvfp4"
    elif "mxfp8" in text or "fp8-mx" in text:
        wanted = "mxfp8"
    elif "fp8" in text or "float8" in text:
        wanted = "fp8"
    elif "fp16" in text or (not text and assumed.text("precision") == "fp16"):
        wanted = "fp16"
    peaks = cluster.device.peak_flop_per_s
    order: tuple[Precision, ...] = (wanted, "fp8", "bf16", "fp16")
    fallback = order if wanted in ("mxfp8", "nvfp4", "fp8") else (wanted, "fp16")
    return next((name for name in fallback if name in peaks), "fp16")


def _measured(row: Row) -> tuple[Target, float | None]:
    """What was measured: a step time, or a throughput per device."""
    step = number(row, "step_time_s")
    if step:
        return "step_time_s", step
    throughput = number(row, "tokens_per_s_per_gpu")
    if throughput:
        return "tokens_per_s_per_gpu", throughput
    samples, gpus = number(row, "samples_per_s"), count(row, "num_gpus")
    seq_len = count(row, "seq_len")
    if samples and gpus and seq_len:
        return "tokens_per_s_per_gpu", samples * seq_len / gpus
    # FLOP rates follow many conventions; the table's own conversion is used
    throughput = number(row, "tokens_per_s_per_gpu_inferred")
    if throughput:
        return "tokens_per_s_per_gpu", throughput
    return "step_time_s", number(row, "step_time_s_inferred")
