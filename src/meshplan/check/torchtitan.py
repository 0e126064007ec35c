"""torchtitan: arguments, and the TOML files of versions before 0.3.

References:
    1. ``torchtitan/config/configs.py`` of 0.3.0; ``torchtitan/config/job_config.py`` of 0.2.
    2. ``torchtitan/distributed/pipeline_parallel.py`` of 0.3.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from meshplan.check.documents import Values
from meshplan.check.foreign import foreign_keys
from meshplan.check.megatron import LAUNCHER
from meshplan.check.options import Option, whole
from meshplan.check.records import ForeignKey, Reading, Setting, Source
from meshplan.check.shell_words import UNKNOWN
from meshplan.emit.torchtitan import ASYNC_TP, EAGER
from meshplan.emit.torchtitan_model import FLAVOURS
from meshplan.errors import ProblemList
from meshplan.space.plan import Framework, Offload, Recompute, Schedule

__all__ = ["PACKAGES", "read_schedule", "read_torchtitan"]

PACKAGES = frozenset(package for package, _ in FLAVOURS.values())
"""Models of torchtitan, by the names that ``--module`` takes."""

_COUNTS = {
    "parallelism.tensor_parallel_degree": "tp",
    "parallelism.pipeline_parallel_degree": "pp",
    "parallelism.context_parallel_degree": "cp",
    "parallelism.expert_parallel_degree": "ep",
    "parallelism.data_parallel_replicate_degree": "dp_replicate",
    "parallelism.pipeline_parallel_microbatch_size": "pipeline_micro_batch",
    "training.local_batch_size": "local_batch",
    "training.batch_size": "local_batch",
    "training.seq_len": "seq_len",
}
_SCHEDULES = {
    "gpipe": Schedule.GPIPE,
    "1f1b": Schedule.ONE_F_ONE_B,
    "interleaved1f1b": Schedule.INTERLEAVED,
    "interleavedzerobubble": Schedule.INTERLEAVED_ZB,
    "zbvzerobubble": Schedule.ZBV,
    "dualpipev": Schedule.DUALPIPE_V,
}
_LOOPED = (Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB, Schedule.ZBV, Schedule.DUALPIPE_V)
_MODES = {
    "none": Recompute.NONE,
    "full": Recompute.FULL,
    "selective": Recompute.SELECTIVE_OP,
    "op": Recompute.SELECTIVE_OP,
}


def read_torchtitan(
    values: Values | None, options: list[Option], *, file: str, problems: ProblemList
) -> Reading:
    """Read a TOML file, or arguments as if they stood in one."""
    launcher: dict[str, Setting] = {}
    unknown: list[Setting] = []
    if values is None:
        values = _as_values(options, file, problems, launcher, unknown)
    settings = {**launcher, **values.counts(_COUNTS)}
    model = _model(values)
    settings["recompute"] = _recompute(values)
    _sharding(values, settings)
    _pipeline(values, settings)
    settings["variant"] = _variant(values)
    batch = values.raw("training.global_batch_size")
    if batch not in (None, -1, "-1") and (n := values.count("training.global_batch_size")):
        settings["global_batch"] = values.setting("training.global_batch_size", n)
    if _true(values.raw("training.enable_cpu_offload")):
        both = Offload.OPTIMIZER | Offload.PARAMETERS
        settings["offload"] = values.setting("training.enable_cpu_offload", both)
    if str(values.raw("parallelism.enable_sequence_parallel")).lower() == "false":
        settings["sp"] = values.setting("parallelism.enable_sequence_parallel", False)
    unknown += _unmodelled(values)
    return Reading(
        framework=Framework.TORCHTITAN,
        settings=settings,
        model=model,
        unknown=tuple(unknown),
        foreign=_foreign(values, options),
    )


# A module named here adds keys to the config (torchtitan/config/manager.py of 0.2.2).
_EXTENSIONS = ("job.custom_config_module", "experimental.custom_args_module")


def _foreign(values: Values, options: list[Option]) -> tuple[ForeignKey, ...]:
    """Keys that torchtitan does not have."""
    data = values.data
    if options:
        # what stands beside sections is torchrun's, and tyro switches off with ``no-``
        sections = {name: keys for name, keys in data.items() if isinstance(keys, dict)}
        data = {s: {k.removeprefix("no_"): v for k, v in d.items()} for s, d in sections.items()}
    # a trainer of its own may add keys as well
    foreign = values.raw("module") not in (None, *PACKAGES)
    extended = foreign or any(values.raw(key) for key in _EXTENSIONS)
    version = "0.3.0" if options else "0.2.2"
    return foreign_keys(values, "torchtitan", data=data, version=version, refused=not extended)


def read_schedule(source: Source) -> Reading:
    """Read the table of what each rank of a pipeline does in order."""
    rows = tuple(line.strip() for line in source.text.splitlines() if line.strip())
    table = Setting(value=rows, where=source.name, spelled="schedule_csv")
    return Reading(framework=Framework.TORCHTITAN, settings={"schedule_table": table})


def _as_values(
    options: list[Option],
    file: str,
    problems: ProblemList,
    launcher: dict[str, Setting],
    unknown: list[Setting],
) -> Values:
    data: dict[str, Any] = {}
    lines: list[str] = []
    for option in options:
        if whole(
            option,
            file=file,
            table=LAUNCHER,
            settings=launcher,
            unknown=unknown,
            problems=problems,
        ):
            continue
        name = option.name.replace("-", "_")
        if UNKNOWN in option.value:
            where = f"{file}:{option.line}"
            unknown.append(Setting(value=name, where=where, spelled=f"--{option.name}"))
            continue
        section, dot, key = name.partition(".")
        place = data.setdefault(section, {}) if dot else data
        if isinstance(place, dict):
            place[key if dot else section] = option.value or "true"
        # a text with each key on the line of its option, so that lines are found again
        lines += [""] * (option.line - len(lines))
        lines[option.line - 1] += f" {key if dot else section} ="
    return Values(Source(name=file, text="\n".join(lines)), data, problems)


def _recompute(values: Values) -> Setting:
    mode = values.name("activation_checkpoint.mode", _MODES)
    if mode is None:
        for key in values.data:
            _, colon, word = key.replace("activation_checkpoint:", "x:").partition(":")
            if colon and word in _MODES:
                mode = _MODES[word]
    if mode is None:
        # SelectiveAC is the default of Trainer.Config (reference 1)
        return Setting(value=Recompute.SELECTIVE_OP, where=values.source.name, spelled="-")
    return values.setting("activation_checkpoint.mode", mode)


def _true(value: object) -> bool:
    return str(value).lower() == "true"


def _variant(values: Values) -> Setting:
    """Whether blocks are compiled, and how tensor parallelism talks."""
    for key in ("compile.enable", "training.compile"):
        if _true(values.raw(key)):
            parts = values.raw("compile.components")
            if parts is not None and "model" not in str(parts):
                return values.setting("compile.components", EAGER)
            name = "compile.enable_async_tensor_parallel"
            if _true(values.raw(name)):
                return values.setting(name, ASYNC_TP)
            return values.setting(key, "torchtitan")
    # nothing is compiled unless it is asked for (reference 1)
    return Setting(value=EAGER, where=values.source.name, spelled="-")


def _unmodelled(values: Values) -> Iterator[Setting]:
    """What no job of ours says: weights that are trained in 16 bits."""
    key = "training.dtype"
    if values.raw(key) == "bfloat16":
        yield values.setting(key, f"{key}: bfloat16")


def _sharding(values: Values, settings: dict[str, Setting]) -> None:
    """States are sharded unless the mesh has no axis for it (reference 1)."""
    key = "parallelism.data_parallel_shard_degree"
    shard, cp = values.raw(key), settings.get("cp")
    if shard in (1, "1") and (cp is None or cp.value == 1):
        settings["zero"] = values.setting(key, 0)
        settings.pop("dp_replicate", None)
        return
    if shard not in (None, -1, "-1") and (n := values.count(key)):
        settings["dp_shard"] = values.setting(key, n)
    key = "parallelism.fsdp_reshard_after_forward"
    policy = values.name(key, {"default": "", "always": 3, "never": 2})
    if isinstance(policy, int):
        settings["zero"] = values.setting(key, policy)


def _pipeline(values: Values, settings: dict[str, Setting]) -> None:
    key = "parallelism.pipeline_parallel_schedule"
    schedule = values.name(key, _SCHEDULES)
    pp = settings.get("pp")
    local = settings.pop("local_batch", None)
    micro = settings.pop("pipeline_micro_batch", None)
    if pp is not None and pp.value != 1:
        if schedule is not None:
            settings["schedule"] = values.setting(key, schedule)
        # one stage on each GPU, or two, unless a number of layers is stated (reference 2)
        settings["vpp"] = values.setting(key, 2 if schedule in _LOOPED else 1)
        settings["dealt"] = values.setting("parallelism.pipeline_parallel_degree", _weights(values))
        settings["micro_batch"] = micro or values.setting(key, 1)
        if local is not None:
            assert isinstance(local.value, int)
            size = settings["micro_batch"].value
            assert isinstance(size, int)
            number = max(1, local.value // size)
            settings["num_micro_batches"] = replace(local, value=number)
    elif local is not None:
        settings["micro_batch"] = local


def _weights(values: Values) -> tuple[int, int, int]:
    """Layers as which embedding and head count, and layers of a stage (0: not stated)."""
    keys = ("first_stage_less_layers", "last_stage_less_layers", "layers_per_stage")
    first, last, each = (
        values.count(f"parallelism.pipeline_parallel_{key}", least=0) for key in keys
    )
    return 1 if first is None else first, 1 if last is None else last, each or 0


def _model(values: Values) -> dict[str, Setting]:
    """The preset that a module and a flavour name."""
    module, config = values.raw("module"), values.raw("config")
    if isinstance(config, str):
        wanted, key = config, "config"
    else:
        module = values.raw("model.name")
        wanted, key = f"{module}_{values.raw('model.flavor')}", "flavor"
    if not isinstance(module, str):
        return {}
    for preset, (package, flavour) in FLAVOURS.items():
        names = {f"{package}_{flavour}", f"{module}_{flavour}" if module == package else ""}
        plain = {name.lower().replace("-", "_").replace(".", "_") for name in names if name}
        if wanted.lower().replace("-", "_").replace(".", "_") in plain:
            return {"name": values.setting(key, preset)}
    return {}
