"""From what was read, with what the reader adds, to a scenario and a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshplan.check.hybrid import stages_of
from meshplan.check.maxtext import MAXTEXT, on_mesh
from meshplan.check.megatron_switches import SWITCHES
from meshplan.check.model import differences, model_of
from meshplan.check.records import Reading
from meshplan.check.sizes import gpus_of, is_default, least_gpus, product_of, states_gpus
from meshplan.check.sizes import num_gpus as stated_gpus
from meshplan.check.stages import stage_fields
from meshplan.check.taken import as_taken
from meshplan.emit.megatron_hybrid import layers_per_block
from meshplan.emit.torchtitan import schedule_table
from meshplan.errors import ProblemList, UserError
from meshplan.inputs.load.cluster import parse_cluster
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.load.profile import holds
from meshplan.inputs.load.scenario import load_scenario
from meshplan.inputs.model import Model
from meshplan.inputs.scenario import Scenario
from meshplan.inputs.variants import with_options
from meshplan.record import record
from meshplan.search.sizes import with_gpus
from meshplan.space.complete import complete_plan
from meshplan.space.plan import Framework, Plan, Schedule, Split
from meshplan.space.rules import Violation, check_plan
from meshplan.space.stages import deal_layers

__all__ = ["JOB", "Assembled", "assemble", "broken_rules", "placed"]

_PLAN = (
    "tp",
    "sp",
    "pp",
    "vpp",
    "schedule",
    "cp",
    "cp_comm",
    "ep",
    "etp",
    "dp",
    "dp_shard",
    "dp_replicate",
    "zero",
    "micro_batch",
    "num_micro_batches",
    "recompute",
    "recompute_layers",
    "offload",
    "offload_layers",
    "split",
    "stage_layers",
)
JOB = (
    "precision",
    "optimizer",
    "attention",
    "dropout",
    "task",
    "lora_rank",
    "lora_targets",
)
"""Fields of a job that files may state."""
_USUAL_NODE = 8


@record
class Assembled:
    """What can be judged.

    Attributes:
        scenario: model, cluster and job.
        plan: the plan that the files describe.
        assumed: names of values that neither the files nor the reader gave.
        idle_modules: modules of recompute that no layer of the model has.
        micro_batch_group: micro-batches that a virtual stage takes in a row, where they are not
            as many as the pipeline has stages, for which plans are predicted.
    """

    scenario: Scenario
    plan: Plan
    assumed: tuple[str, ...]
    idle_modules: tuple[str, ...] = ()
    micro_batch_group: int | None = None


def assemble(reading: Reading, given: Mapping[str, Any]) -> Assembled:
    """Put files and options together.

    Args:
        reading: what the files say.
        given: ``model``, ``cluster``, ``seq_len``, ``global_batch`` and other values of a
            scenario, where the reader gave them. A value that a file gives too must agree.

    Raises:
        UserError: for what is missing or contradictory.
    """
    reading = placed(reading, given)
    said = {name: setting.value for name, setting in reading.settings.items()}
    scenario = _scenario(reading, given, said)
    fields = _fields(reading, given, said, scenario)
    plan = complete_plan(scenario, framework=reading.framework, **fields)
    plan, idle = as_taken(scenario, _as_in_table(reading, plan))
    return Assembled(
        scenario=scenario,
        plan=plan,
        assumed=() if "micro_batch" in said else ("micro_batch",),
        idle_modules=idle,
        micro_batch_group=_micro_batch_group(reading, plan),
    )


def placed(reading: Reading, given: Mapping[str, Any]) -> Reading:
    """A mesh with open axes as a plan, on the GPUs of the files or of the reader's cluster."""
    says = bool(reading.named) or any(n.startswith("maxtext.") for n in reading.settings)
    if reading.config != MAXTEXT or not says:
        return reading
    said = {name: setting.value for name, setting in reading.settings.items()}
    cluster = given.get("cluster")
    num_gpus = stated_gpus(reading, said) or gpus_of(cluster)
    per_node = said.get("gpus_per_node")
    if not isinstance(per_node, int):
        known = states_gpus(cluster) and isinstance(cluster, str)
        per_node = parse_cluster(str(cluster)).gpus_per_node if known else _USUAL_NODE
    return on_mesh(reading, num_gpus=num_gpus, per_node=per_node)


def _as_in_table(reading: Reading, plan: Plan) -> Plan:
    """The plan with the schedule whose order a table gives.

    Raises:
        UserError: for an order that is none known here.
    """
    table = reading.settings.get("schedule_table")
    if table is None:
        return plan
    known = replace(plan, schedule=Schedule.ZB_H1)
    if tuple(schedule_table(known).split()) == table.value:
        return known
    raise UserError.of("check_unknown_order", where=table.where, value=table.where)


def broken_rules(made: Assembled) -> tuple[Violation, ...]:
    """Rules that a plan breaks; rounds of a stated length need no other."""
    found = check_plan(made.scenario, made.plan)
    if made.micro_batch_group is None:
        return found
    return tuple(v for v in found if v.code != "interleaving_fills_rounds")


def _micro_batch_group(reading: Reading, plan: Plan) -> int | None:
    """The stated length of a round of interleaving, where it is not the usual one.

    Raises:
        UserError: for a length that megatron/core/pipeline_parallel/schedules.py refuses.
    """
    stated = reading.settings.get("micro_batch_group")
    if stated is None or plan.vpp == 1 or stated.value == plan.pp:
        return None
    group, number = int(str(stated.value)), plan.num_micro_batches
    if plan.pp <= group <= number and not 0 < number % group < plan.pp:
        return group
    raise UserError.of(
        "check_group_refused", where=stated.where, value=group, pp=plan.pp, num_micro_batches=number
    )


def _scenario(reading: Reading, given: Mapping[str, Any], said: Mapping[str, Any]) -> Scenario:
    """Model, cluster and job, with everything that is missing named at once."""
    problems = ProblemList()
    job = {**{k: said[k] for k in JOB if k in said}, **_job(given)}
    for name in ("seq_len", "global_batch"):
        _agree(reading, name, job, problems)
    cluster = given.get("cluster")
    num_gpus = stated_gpus(reading, said)
    if states_gpus(cluster) and is_default(reading):
        num_gpus = None
    if num_gpus is None and not states_gpus(cluster):
        num_gpus = product_of(reading, said)
    if cluster is None:
        _say_cluster(num_gpus, problems)
    elif num_gpus is None and not states_gpus(cluster) and least_gpus(said) > 1:
        # a device alone is one of them, which none of these degrees fits
        _say_cluster(None, problems, device=str(cluster))
    batch = job.get("global_batch") or _batch(said, num_gpus or gpus_of(cluster))
    if batch is None:
        problems.add("check_missing", where="global_batch", value="--global-batch")
    if job.get("seq_len") is None:
        problems.add("check_missing", where="seq_len", value="--seq-len")
    model = _model(reading, given, job.get("seq_len"), problems)
    problems.raise_if_any()
    assert model is not None
    base = {k: v for k, v in given.items() if k not in ("model", "job", "seq_len", "global_batch")}
    variant = _variant(reading, given)
    scenario = load_scenario(
        {
            **base,
            # any model that loads: the one that was read takes its place
            "model": given.get("model") or "gpt2",
            "job": {**job, "global_batch": batch},
            "frameworks": [reading.framework.name.lower()],
            **({"variant": variant} if variant else {}),
        }
    )
    return _on_gpus(replace(scenario, model=model), reading, num_gpus, cluster=cluster)


_SCALES = ("delayed", "tensorwise", "blockwise")
_CHOICES = ("alltoall", "flex", *_SCALES)
"""Settings that files state whether or not the stack has them on."""


def _variant(reading: Reading, given: Mapping[str, Any]) -> str:
    """The variant that the reader named, with the switches that the files set."""
    framework = reading.framework.name.lower()
    megatron = reading.framework is Framework.MEGATRON
    switched = [name for name in SWITCHES if megatron and name in reading.settings]
    named = str(given.get("variant") or reading.get("variant") or "")
    # without a plus sign a framework's own name says nothing
    named = "" if named == framework else named
    switched = [n for n in switched if n not in _CHOICES or not holds(framework, named, n)]
    if reading.get("precision") != "fp8":
        # without effect on other formats
        switched = [name for name in switched if name not in _SCALES]
    return with_options(named, framework, tuple(switched))


def _on_gpus(
    scenario: Scenario, reading: Reading, num_gpus: int | None, *, cluster: object
) -> Scenario:
    """The scenario on the GPUs that the files name; a cluster that names others contradicts it."""
    if not num_gpus or num_gpus == scenario.cluster.num_gpus:
        return scenario
    if not states_gpus(cluster):
        return with_gpus(scenario, num_gpus)
    total, nodes, each = (
        reading.settings.get(name) for name in ("num_gpus", "num_nodes", "gpus_per_node")
    )
    where = total or nodes or each
    spelled = where.spelled if where else "-"
    if nodes and each and not total:
        spelled = f"{nodes.spelled} {nodes.value} x {each.spelled} {each.value} ="
    raise UserError.of(
        "check_contradiction",
        where=where.where if where else "-",
        value=num_gpus,
        option=spelled,
        other="--cluster",
        other_value=scenario.cluster.num_gpus,
    )


def _fields(
    reading: Reading, given: Mapping[str, Any], said: Mapping[str, Any], scenario: Scenario
) -> dict[str, Any]:
    """Plan fields that the files state, and those that follow in their framework."""
    fields = {name: said[name] for name in _PLAN if name in said}
    if "num_micro_batches" in fields and "global_batch" in {**said, **_job(given)}:
        # the batch is the promise, the number of micro-batches follows
        fields.pop("num_micro_batches")
    if reading.framework is Framework.MEGATRON and scenario.model.is_moe:
        # what Megatron-LM takes when the option is left out (arguments.py)
        fields.setdefault("etp", fields.get("tp", 1))
    if fields.get("tp", 1) == 1:
        # switched off by the arguments of Megatron-LM (arguments.py:1394), without effect elsewhere
        fields.pop("sp", None)
    if not scenario.model.is_moe:
        # no framework refuses it, and it splits nothing
        fields.pop("etp", None)
    problems = ProblemList()
    stages = stage_fields(reading.settings, num_layers=scenario.model.num_layers, problems=problems)
    problems.raise_if_any()
    letters = reading.model.get("pattern")
    if letters is not None:
        dealt = stages_of(letters, scenario.model)
        stages |= {"stage_layers": dealt} if len(dealt) > 1 else {}
        each = layers_per_block(scenario.model) or 1
        if fields.get("recompute_layers"):
            # counted in letters; of half a block the plan recomputes nothing
            fields["recompute_layers"] = max(1, fields["recompute_layers"] // each)
    return _plain_layout(scenario, {**fields, **stages})


def _job(given: Mapping[str, Any]) -> dict[str, Any]:
    job = dict(given.get("job") or {})
    return {k: v for k, v in job.items() if v is not None}


def _agree(reading: Reading, name: str, job: dict[str, Any], problems: ProblemList) -> None:
    setting = reading.settings.get(name)
    if setting is None:
        return
    if job.get(name) is None:
        job[name] = setting.value
    elif str(job[name]) != str(setting.value):
        problems.add(
            "check_contradiction",
            where=setting.where,
            value=setting.value,
            option=setting.spelled,
            other=f"--{name.replace('_', '-')}",
            other_value=job[name],
        )


def _say_cluster(num_gpus: int | None, problems: ProblemList, *, device: str = "H100") -> None:
    example = f"--cluster {num_gpus or 64}x{device[:40]}"
    problems.add("check_missing", where="cluster", value=example)


def _batch(said: Mapping[str, object], num_gpus: int | None) -> int | None:
    """Sequences per step from micro-batch, accumulation and data parallelism."""
    micro, number = said.get("micro_batch"), said.get("num_micro_batches")
    if not isinstance(micro, int) or num_gpus is None:
        return None
    inner = 1
    for axis in ("tp", "pp", "cp"):
        degree = said.get(axis)
        inner *= degree if isinstance(degree, int) else 1
    dp = said.get("dp")
    replicas = dp if isinstance(dp, int) else max(1, num_gpus // inner)
    return micro * replicas * (number if isinstance(number, int) else 1)


def _model(
    reading: Reading, given: Mapping[str, Any], seq_len: object, problems: ProblemList
) -> Model | None:
    named = given.get("model")
    if named is None and "name" in reading.model:
        named = reading.model["name"].value
    if named is not None:
        model = load_model(str(named))
        differences(reading.model, model, problems=problems)
        return model
    if not reading.model:
        problems.add("check_missing", where="model", value="--model llama-3.1-8b")
        return None
    where = next(iter(reading.model.values())).where.rsplit(":", 1)[0]
    length = int(str(seq_len)) if str(seq_len).isdecimal() else 4096
    return model_of(reading.model, name=where, seq_len=length, problems=problems)


def _plain_layout(scenario: Scenario, fields: dict[str, Any]) -> dict[str, Any]:
    """Call an explicit layout by the name of the split that deals the same layers."""
    layers = fields.get("stage_layers")
    if not layers:
        return fields
    for split in (Split.EVEN, Split.BALANCED):
        dealt = deal_layers(
            num_layers=scenario.model.num_layers,
            num_stages=len(layers),
            split=split,
            num_mtp_layers=len(scenario.model.mtp_layers),
        )
        if dealt == layers:
            return {**fields, "stage_layers": (), "split": split}
    return fields
