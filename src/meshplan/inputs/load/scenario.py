"""Scenario files: reading, writing, and what only fits together as a whole.

``load_scenario(dump_scenario(s)) == s`` holds for every scenario that was loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from meshplan.errors import ProblemList, UserError
from meshplan.inputs.cluster import Cluster
from meshplan.inputs.job import Job
from meshplan.inputs.load.axes import AXES_FIELDS
from meshplan.inputs.load.cluster_mapping import CLUSTER_FIELDS, dump_cluster, read_cluster
from meshplan.inputs.load.documents import parse_yaml, read_yaml, write_yaml
from meshplan.inputs.load.fields import (
    TEXT,
    Field,
    Kind,
    choice,
    count,
    list_of,
    object_schema,
    read_fields,
)
from meshplan.inputs.load.job import JOB_FIELDS, dump_job, read_job
from meshplan.inputs.load.model_mapping import MODEL_SCHEMA, dump_model, read_model
from meshplan.inputs.load.opening import is_there
from meshplan.inputs.load.profile import cluster_profile, framework_of_variant, variants_of
from meshplan.inputs.load.profile_file import is_text, profile_text, read_profile
from meshplan.inputs.load.settings import apply_settings
from meshplan.inputs.model import Model
from meshplan.inputs.scenario import Objective, Scenario
from meshplan.inputs.vocabulary import FRAMEWORKS, shown

__all__ = [
    "SCENARIO_FIELDS",
    "STORES_SCORES",
    "apply_settings",
    "dump_scenario",
    "found_beside",
    "load_scenario",
    "plain_scenario",
    "read_scenario_file",
    "scenario_schema",
]


def _as_is(schema: Mapping[str, Any]) -> Kind:
    """Read by a function of its own, here only named."""
    return Kind(read=lambda value, _: value, schema=schema)


STORES_SCORES = frozenset({"volta", "turing"})
"""Architectures for which frameworks have no attention kernel that leaves scores on chip.

FlashAttention-2 and the fused attention of cuDNN, which Transformer Engine calls, begin with
Ampere (README of Dao-AILab/flash-attention; cuDNN support matrix, SM 8.0).
"""
_SDPA = frozenset({"torchtitan", "accelerate"})
"""Frameworks of PyTorch's own attention, whose memory-efficient kernel begins with SM 5.0
(``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``)."""
_CLUSTER = {"anyOf": [{"type": "string"}, object_schema(CLUSTER_FIELDS)]}


def _read_profile(value: Any, where: str) -> str:
    """A name or a path, or the text of a profile that is given itself."""
    if isinstance(value, Mapping) or (isinstance(value, str) and is_text(value)):
        return profile_text(value)
    name: str = TEXT.read(value, where)
    return name


_PROFILE = Kind(
    read=_read_profile, schema={"anyOf": [TEXT.schema, {"type": "object", "required": ["fitted"]}]}
)

SCENARIO_FIELDS = (
    Field(name="model", kind=_as_is(MODEL_SCHEMA), required=True, missing="missing_model"),
    Field(name="cluster", kind=_as_is(_CLUSTER), required=True, missing="missing_cluster"),
    # a job that is missing is told key by key
    Field(name="job", kind=_as_is(object_schema(JOB_FIELDS)), required=True, missing=""),
    Field(name="frameworks", kind=list_of(choice(FRAMEWORKS))),
    Field(name="axes", kind=_as_is(object_schema(AXES_FIELDS))),
    Field(name="objective", kind=choice(get_args(Objective))),
    Field(name="profile", kind=_PROFILE),
    Field(name="variant", kind=TEXT),
    # how many plans to show: for the reader of the file, no part of the scenario
    Field(name="top", kind=count(most=100)),
)


def read_scenario_file(path: str | Path) -> dict[str, Any]:
    """Read a scenario file to plain values, nothing checked but that it is a YAML mapping.

    A model, cluster or profile that lies beside the file is found there.

    Raises:
        UserError: when it cannot be read.
    """
    return found_beside(_mapping(read_yaml(path), where=str(path)), path)


def found_beside(data: dict[str, Any], path: str | Path) -> dict[str, Any]:
    """Name the files of a scenario that lie beside the file that holds it where they lie."""
    folder = Path(path).parent
    for key in ("model", "cluster", "profile"):
        named = data.get(key)
        if isinstance(named, str) and named.endswith((".yaml", ".yml", ".json", "/")):
            beside = folder / named
            data[key] = str(beside) if is_there(beside) else named
    return data


def _mapping(data: Any, *, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise UserError.of("not_a_mapping", where=where, value=shown(data))
    return data


def load_scenario(source: str | Path | Mapping[str, Any]) -> Scenario:
    """Make a scenario from a file, from YAML text, or from plain values.

    Args:
        source: a path; text that holds a line break or ends like no YAML file; or a mapping.

    Raises:
        UserError: with everything that is wrong, each with its place.
    """
    if isinstance(source, Mapping):
        return _scenario(source)
    if isinstance(source, Path) or ("\n" not in source and source.endswith((".yaml", ".yml"))):
        return _scenario(read_scenario_file(source))
    return _scenario(_mapping(parse_yaml(source), where="scenario"))


def _scenario(data: Mapping[str, Any]) -> Scenario:
    problems = ProblemList()
    given = read_fields(data, SCENARIO_FIELDS, where="", problems=problems)
    model = cluster = None
    if "model" in given:
        model = read_model(given["model"], problems=problems)
    if "cluster" in given:
        cluster = read_cluster(given["cluster"], problems=problems)
    job = read_job(given.get("job", {}), problems=problems)
    axes = read_fields(given.get("axes", {}), AXES_FIELDS, where="axes", problems=problems)
    _match_variant(given, problems=problems)
    if model is not None and job is not None:
        _check_adapters(job, model, problems=problems)
    if cluster is not None and job is not None:
        _check_precision(job, cluster, problems=problems)
        job = _with_attention(job, cluster, given)
    _check_profiles(given, cluster, problems=problems)
    problems.raise_if_any()
    assert model is not None and cluster is not None and job is not None
    rest = ("frameworks", "objective", "profile", "variant")
    return Scenario(
        model=model,
        cluster=cluster,
        job=job,
        axes=axes,
        **{name: given[name] for name in rest if name in given},
    )


def _with_attention(job: Job, cluster: Cluster, given: Mapping[str, Any]) -> Job:
    """Attention as these devices run it, where the job does not say how."""
    stated = given.get("job")
    if isinstance(stated, Mapping) and stated.get("attention") is not None:
        return job
    torch = bool(given.get("frameworks")) and set(given["frameworks"]) <= _SDPA
    if torch or cluster.device.architecture not in STORES_SCORES:
        return job
    return replace(job, attention="unfused")


def _check_adapters(job: Job, model: Model, *, problems: ProblemList) -> None:
    """Adapters on projections that the model lacks would train nothing."""
    if job.lora_targets == "mlp" and not any(layer.ffn for layer in model.layer_kinds):
        problems.add(
            "lora_targets_missing",
            where="job.lora_targets",
            value=job.lora_targets,
            allowed=("attention", "all"),
            model=model.name,
        )


def _check_precision(job: Job, cluster: Cluster, *, problems: ProblemList) -> None:
    """A precision that the device's matrix units lack is no choice (bf16 on V100 and T4)."""
    known = cluster.device.peak_flop_per_s
    if job.precision not in known:
        problems.add(
            "precision_unsupported",
            where="job.precision",
            value=job.precision,
            allowed=tuple(name for name in known if name not in ("tf32", "fp32")),
            device=cluster.device.name,
        )


def _match_variant(given: dict[str, Any], *, problems: ProblemList) -> None:
    """A variant says which framework is meant; of another than those asked for it is no choice."""
    variant = given.get("variant", "")
    try:
        framework = framework_of_variant(variant)
    except UserError as error:
        problems.extend(error)
        return
    if framework and framework not in given.setdefault("frameworks", (framework,)):
        problems.add(
            "variant_of_another_framework",
            where="variant",
            value=variant,
            allowed=variants_of(given["frameworks"]),
            framework=framework,
            given=", ".join(given["frameworks"]),
        )


def _check_profiles(
    given: Mapping[str, Any], cluster: Cluster | None, *, problems: ProblemList
) -> None:
    """Profiles are read later, but a wrong name should be said with everything else."""
    checks: list[tuple[Callable[[str], object], str]] = [
        (cluster_profile, given.get("profile", ""))
    ]
    if cluster is not None:
        checks.append((cluster_profile, cluster.profile))
    for read, name in checks:
        try:
            if name:
                read(name)
        except UserError as error:
            problems.extend(error)


def plain_scenario(scenario: Scenario) -> dict[str, Any]:
    """Plain values that ``load_scenario`` makes the same scenario from; defaults are left out."""
    plain: dict[str, Any] = {
        "model": dump_model(scenario.model),
        "cluster": dump_cluster(scenario.cluster),
        "job": dump_job(scenario.job),
        "frameworks": list(scenario.frameworks),
    }
    if scenario.cluster.device.architecture in STORES_SCORES:
        # what is left out would be read as this device's own
        plain["job"]["attention"] = scenario.job.attention
    if scenario.axes:
        plain["axes"] = {name: list(values) for name, values in scenario.axes.items()}
    plain["objective"] = scenario.objective
    if scenario.profile:
        own = scenario.profile
        plain["profile"] = dict(read_profile(own)) if is_text(own) else own
    if scenario.variant:
        plain["variant"] = scenario.variant
    return plain


def dump_scenario(scenario: Scenario | Mapping[str, Any]) -> str:
    """Write a scenario, or the plain values of one, as YAML."""
    plain = plain_scenario(scenario) if isinstance(scenario, Scenario) else dict(scenario)
    return write_yaml(plain)


def scenario_schema() -> dict[str, Any]:
    """JSON Schema of a scenario file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "meshplan scenario",
        **object_schema(SCENARIO_FIELDS),
    }
