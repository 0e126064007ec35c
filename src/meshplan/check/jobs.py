"""What starts a training command on several nodes, and carries or names it.

Batch scripts of Slurm that run another script, TrainJob and PyTorchJob of Kubeflow, tasks of
SkyPilot: how many nodes and GPUs they ask for, the script inside them, and the files whose
settings count.

References:
    1. Kubeflow Trainer ``pkg/apis/trainer/v1alpha1/trainjob_types.go`` (TrainJob) and Training
       Operator ``kubeflow.org_pytorchjobs`` (PyTorchJob).
    2. SkyPilot's documentation of its task YAML.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Any

from meshplan.check.documents import Values, yaml_values
from meshplan.check.records import Setting, Source
from meshplan.check.shell_words import UNKNOWN, Word
from meshplan.check.slurm import slurm_settings
from meshplan.errors import ProblemList
from meshplan.record import record

__all__ = ["Job", "is_job", "job_of", "starts_other"]

_SCRIPT = re.compile(r"[\w.-]+\.(?:sh|bash|sbatch|slurm)")
_GPUS = re.compile(
    r"(?:nvidia|amd)\.com/gpu|habana\.ai/gaudi|huawei\.com/Ascend\w+|google\.com/tpu"
)
_SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash", "/usr/bin/bash")


@record
class Job:
    """What a launcher adds to the files of a run.

    Attributes:
        settings: ``num_nodes`` and ``gpus_per_node``, where it states them.
        sources: scripts that it carries.
        named: scripts that it starts and that stand elsewhere.
        variables: what it puts into the environment of those.
    """

    settings: Mapping[str, Setting] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    named: tuple[Setting, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def starts_other(source: Source, found: list[list[Word]], variables: Mapping[str, str]) -> Job:
    """A script that trains nothing itself, by its commands."""
    return Job(
        settings=slurm_settings(source),
        named=tuple(_named(source.name, found)),
        variables=dict(variables),
    )


def _named(file: str, found: list[list[Word]]) -> Iterator[Setting]:
    seen = set()
    for word in (word for words in found for word in words):
        base = word.text.rsplit("/", 1)[-1].replace(UNKNOWN, "")
        if _SCRIPT.fullmatch(base) and base not in seen:
            seen.add(base)
            yield Setting(value=base, where=f"{file}:{word.line}", spelled=base)


def is_job(keys: set[str]) -> bool:
    """Whether a YAML file with these words at the start of its lines is a job."""
    return {"apiVersion:", "kind:"} <= keys or {"resources:", "run:"} <= keys


def job_of(source: Source, problems: ProblemList) -> Job:
    """Read a job that is YAML."""
    values = yaml_values(source, problems)
    if values.raw("run") is not None:
        return _task(values)
    if values.raw("spec.trainer") is not None:
        return _train_job(values)
    return _pytorch_job(values)


def _task(values: Values) -> Job:
    """A task of SkyPilot."""
    settings = values.counts({"num_nodes": "num_nodes"})
    settings.setdefault("num_nodes", values.setting("num_nodes", 1))
    kinds = values.raw("resources.accelerators")
    number = next(iter(kinds.values()), None) if isinstance(kinds, dict) else None
    if isinstance(kinds, str):
        # one where no number is written
        number = int(kinds.partition(":")[2] or 1) if kinds.partition(":")[2].isdecimal() else 1
    if type(number) is int and number > 0:
        settings["gpus_per_node"] = values.setting("resources.accelerators", number)
    return Job(
        settings=settings,
        sources=tuple(_scripts(values, "run", [values.raw("run")])),
        variables=_texts(values.raw("envs")),
    )


def _train_job(values: Values) -> Job:
    trainer = values.raw("spec.trainer")
    settings = values.counts({"spec.trainer.numNodes": "num_nodes"})
    each = trainer.get("numProcPerNode") if isinstance(trainer, dict) else None
    if type(each) is int and each > 0:
        settings["gpus_per_node"] = values.setting("spec.trainer.numProcPerNode", each)
    else:
        settings |= _limits(values, "spec.trainer.resourcesPerNode.limits")
    return Job(
        settings=settings,
        sources=tuple(_scripts(values, "args", _command(trainer))),
        variables=_env(trainer),
    )


def _pytorch_job(values: Values) -> Job:
    replicas = values.raw("spec.pytorchReplicaSpecs")
    settings: dict[str, Setting] = {}
    sources: tuple[Source, ...] = ()
    variables: Mapping[str, str] = {}
    for name, role in replicas.items() if isinstance(replicas, dict) else ():
        number = role.get("replicas", 1) if isinstance(role, dict) else None
        if type(number) is int and number >= 0:
            known = settings.get("num_nodes")
            total = number + (int(str(known.value)) if known else 0)
            settings["num_nodes"] = values.setting("replicas", total)
        place = f"spec.pytorchReplicaSpecs.{name}.template.spec.containers"
        containers = values.raw(place)
        first = containers[0] if isinstance(containers, list) and containers else {}
        if isinstance(first, dict):
            sources = sources or tuple(_scripts(values, "args", _command(first)))
            variables = variables or _env(first)
            limits = (first.get("resources") or {}).get("limits")
            settings |= _gpus(values, limits)
    return Job(settings=settings, sources=sources, variables=variables)


def _limits(values: Values, place: str) -> dict[str, Setting]:
    return _gpus(values, values.raw(place))


def _gpus(values: Values, limits: Any) -> dict[str, Setting]:
    for key, number in limits.items() if isinstance(limits, dict) else ():
        if _GPUS.fullmatch(str(key)) and str(number).isdecimal() and int(number):
            return {"gpus_per_node": values.setting(str(key), int(number))}
    return {}


def _command(container: Any) -> list[Any]:
    if not isinstance(container, dict):
        return []
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    return [str(word) for word in words]


def _env(container: Any) -> dict[str, str]:
    listed = container.get("env") if isinstance(container, dict) else None
    pairs = [e for e in listed or () if isinstance(e, dict) and "name" in e and "value" in e]
    return {str(e["name"]): str(e["value"]) for e in pairs}


def _texts(given: Any) -> dict[str, str]:
    plain = given.items() if isinstance(given, dict) else ()
    return {str(k): str(v) for k, v in plain if isinstance(v, str | int)}


def _scripts(values: Values, key: str, words: list[Any]) -> Iterator[Source]:
    """The script of a command: what a shell is given, or the command itself, on its own lines."""
    texts = [word for word in words if isinstance(word, str)]
    if len(texts) > 2 and texts[0] in _SHELLS and texts[1].startswith("-") and "c" in texts[1]:
        text = texts[2]
    elif len(texts) == 1:
        text = texts[0]
    else:
        text = shlex.join(texts)
    if not text.strip():
        return
    source = values.source
    rows = text.splitlines()
    blank = next(i for i, line in enumerate(rows) if line.strip())
    lines = [line.strip() for line in source.text.splitlines()]
    first = rows[blank].strip()
    # words of a list stand together, a script on lines of its own
    places = [i for i, line in enumerate(lines) if line == first or texts[0] in line]
    start = lines.index(first) if first in lines else next(iter(places), 0)
    yield replace(source, text="\n" * max(0, start - blank) + text, called=f"{key}.sh")
