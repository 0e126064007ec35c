"""torchtitan 0.3: Python modules whose functions return a ``Trainer.Config``.

They are read from their text and never imported (``python_values``); what a function sets by
branches, files or the environment is listed as unknown.

References:
    1. ``torchtitan/config/manager.py`` of 0.3.0: ``--module`` and ``--config``;
       ``torchtitan/trainer.py``: fields of the config.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Any

from meshplan.check.documents import LinedValues
from meshplan.check.foreign import foreign_keys
from meshplan.check.python_values import Call, Module, Unread, parse_module
from meshplan.check.records import Reading, Setting, Source
from meshplan.check.torchtitan import read_torchtitan
from meshplan.emit.torchtitan_converters import TARGETS
from meshplan.emit.torchtitan_model import FLAVOURS, SPLIT
from meshplan.errors import ProblemList, UserError

__all__ = ["is_torchtitan_module", "read_torchtitan_module"]

_CONFIG = re.compile(r"(?:^|\.)\w*Trainer\.Config$")
_SECTIONS = ("training", "parallelism", "compile")
_CLASSES = ("TrainingConfig", "ParallelismConfig", "CompileConfig")
_CHECKPOINTS = {"FullAC": "full", "SelectiveAC": "selective"}
_BUILDERS = re.compile(r"(?:^|\.)_build_(llama3|qwen3)(_moe)?_layers$")
# Parameters of the builders of torchtitan's models, by what they are called here.
_SIZES = {
    "n_layers": "num_layers",
    "dim": "hidden",
    "n_heads": "num_heads",
    "n_kv_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "hidden_dim": "ffn_hidden",
    "num_experts": "num_experts",
    "top_k": "top_k",
    "moe_hidden_dim": "expert_ffn_hidden",
}
_PRECISIONS = {"Float8": "fp8", "MXFP8": "mxfp8", "NVFP4": "nvfp4"}


def is_torchtitan_module(text: str) -> bool:
    """Whether a Python file makes configs of torchtitan's trainer."""
    return "Trainer.Config" in text or "torchtitan" in text


def read_torchtitan_module(
    source: Source, *, problems: ProblemList, wanted: str | None = None
) -> Reading:
    """Read the config that one function of a module returns.

    Args:
        source: the module.
        problems: takes what is wrong.
        wanted: name of the function, where a command says it (``--config``).

    Raises:
        UserError: when no function returns a config, or several do and none is asked for.
    """
    module = parse_module(source)
    config = _chosen(module, wanted)
    reader = _Reader(module, config, problems)
    reader.sections()
    spec = config.fields.get("model_spec")
    model, converters = reader.model(spec)
    if not model and not _CONFIG.search(config.name):
        # a config of torchtitan's own registry, changed afterwards
        base = config.name.rsplit(".", 1)[-1]
        reader.doubt(config.line, f"{base}()")
        reader.data |= {"module": base.partition("_")[0], "config": base}
    reading = read_torchtitan(reader.values, [], file=source.name, problems=problems)
    names = reader.names()
    settings = dict(reading.settings)
    settings |= reader.stages() | reader.conversions(converters)
    # frozen weights are kept in 16 bits beside adapters
    adapted = settings.get("task") is not None
    doubts = [u for u in reading.unknown if not adapted or u.spelled != "training.dtype"]
    own = {**reading.model, **model}
    # options of the command override what the module says (reference 1)
    soft = {n: _soft(setting) for n, setting in settings.items()}
    return Reading(
        framework=reading.framework,
        settings=soft,
        model=own,
        unknown=(*doubts, *reader.unknown),
        named=tuple(reader.named),
        foreign=foreign_keys(reader.values, "torchtitan", data=names, version="0.3.0"),
    )


def _soft(setting: Setting) -> Setting:
    return Setting(value=setting.value, where=setting.where, spelled=setting.spelled, soft=True)


def _chosen(module: Module, wanted: str | None) -> Call:
    """The config that is meant."""
    name = module.source.name
    if wanted is not None and wanted in module.functions:
        found = module.result(wanted)
        if isinstance(found, Call):
            return found
        raise UserError.of("check_no_config", where=name, value=wanted)
    results = {function: module.result(function) for function in _open(module)}
    configs = {k: v for k, v in results.items() if isinstance(v, Call) and _is_config(module, v)}
    if wanted is not None or not configs:
        raise UserError.of("check_no_config", where=name, value=wanted or "Trainer.Config")
    if len(configs) > 1:
        raise UserError.of("check_several_configs", where=name, value=", ".join(list(configs)[:20]))
    return next(iter(configs.values()))


def _open(module: Module) -> Iterable[str]:
    """Functions that can be called without arguments and that no other function calls."""
    for name, function in module.functions.items():
        given = function.args
        needed = len(given.posonlyargs) + len(given.args) - len(given.defaults)
        needed += sum(default is None for default in given.kw_defaults)
        if not needed and not module.called(name):
            yield name


def _is_config(module: Module, found: Call) -> bool:
    if _CONFIG.search(found.name):
        return True
    place = module.imported.get(found.name.partition(".")[0], "")
    return "config_registry" in place or "config_registry" in found.name


class _Reader:
    """Turns the fields of one config into the keys of the older TOML files."""

    def __init__(self, module: Module, config: Call, problems: ProblemList) -> None:
        self.module, self.config = module, config
        self.file = module.source.name
        self.data: dict[str, Any] = {}
        self.lines: dict[str, int] = {}
        self.unknown: list[Setting] = []
        self.named: list[Setting] = []
        self.values = LinedValues(module.source, self.data, problems, self.lines)

    def doubt(self, line: int, what: str) -> None:
        """Note what only a run would show."""
        where = f"{self.file}:{line}" if line else self.file
        self.unknown.append(Setting(value=what, where=where, spelled=what))

    def sections(self) -> None:
        """The values of all sections that a plan is read from."""
        for section in _SECTIONS:
            given = self.config.fields.get(section)
            if isinstance(given, Call):
                self._section(section, given)
            elif given is not None:
                self.doubt(getattr(given, "line", self.config.line), section)
        if "activation_checkpoint" in self.config.fields:
            self._checkpoint(self.config.fields["activation_checkpoint"])

    def names(self) -> dict[str, Any]:
        """Names that torchtitan's own classes are given, by section."""
        own = self.config.fields if self.config.name == "Trainer.Config" else {}
        found: dict[str, Any] = dict.fromkeys(own)
        for name in own:
            self.lines[name] = self.config.lines.get(name, self.config.line)
        for section in _SECTIONS:
            given = self.config.fields.get(section)
            if isinstance(given, Call) and given.name.rsplit(".", 1)[-1] in _CLASSES:
                found[section] = dict.fromkeys(given.fields)
        return found

    def _section(self, section: str, given: Call) -> None:
        there = self.data.setdefault(section, {})
        for key, value in given.fields.items():
            self.lines[f"{section}.{key}"] = given.lines.get(key, given.line)
            if key in ("module_fqns_per_model_part", "pipeline_parallel_schedule_csv"):
                continue
            if isinstance(value, Unread | Call):
                self.doubt(given.lines.get(key, given.line), f"{section}.{key}")
            else:
                there[key] = value
        self._table(given.fields.get("pipeline_parallel_schedule_csv"))

    def _checkpoint(self, given: Any) -> None:
        line = self.config.lines.get("activation_checkpoint", self.config.line)
        self.lines["activation_checkpoint.mode"] = line
        name = _class_of(given) if isinstance(given, Call) else ""
        if given is None:
            self.data["activation_checkpoint"] = {"mode": "none"}
        elif name in _CHECKPOINTS:
            self.data["activation_checkpoint"] = {"mode": _CHECKPOINTS[name]}
        else:
            self.doubt(line, name or "activation_checkpoint")

    def _table(self, given: Any) -> None:
        """The file with the order of the pipeline, where there is one."""
        texts = [given] if isinstance(given, str) else list(_texts(given))
        if texts and texts[-1]:
            where = f"{self.file}:{self.lines['parallelism.pipeline_parallel_schedule_csv']}"
            self.named.append(Setting(value=texts[-1], where=where, spelled="schedule_csv"))

    def stages(self) -> dict[str, Setting]:
        """Layers of each virtual stage, where the module lists them."""
        section = self.config.fields.get("parallelism")
        if not isinstance(section, Call):
            return {}
        given = section.fields.get("module_fqns_per_model_part")
        if given is None:
            return {}
        key = "parallelism.module_fqns_per_model_part"
        layers = _dealt(given, self.module)
        if layers is None:
            self.doubt(self.lines[key], key)
            return {}
        pp = self.values.count("parallelism.pipeline_parallel_degree") or 1
        found = {"stage_layers": self.values.setting(key, layers)}
        if pp > 1 and not len(layers) % pp:
            found["vpp"] = self.values.setting(key, len(layers) // pp)
        return found

    def model(self, spec: Any) -> tuple[dict[str, Setting], list[Call]]:
        """The model by the name of its flavour or by its sizes, and what changes it."""
        if not isinstance(spec, Call) or not spec.name.endswith("model_registry"):
            if spec is not None:
                self.doubt(getattr(spec, "line", self.config.line), "model_spec")
            return {}, []
        backend = spec.fields.get("moe_comm_backend")
        if backend not in (None, "standard"):
            shown = backend if isinstance(backend, str) else "?"
            self.doubt(spec.line, f"moe_comm_backend: {shown}")
        config, converters = _converted(spec)
        layers = config.fields.get("layers") if isinstance(config, Call) else None
        if isinstance(layers, Call) and (match := _BUILDERS.search(layers.name)):
            assert isinstance(config, Call)
            return self._sizes(config, layers, norms=match[1] == "qwen3"), converters
        return self._flavour(spec), converters

    def _flavour(self, spec: Call) -> dict[str, Setting]:
        flavour = spec.args[0] if spec.args else spec.fields.get("flavor")
        place = self.module.imported.get(spec.name.partition(".")[0], "").rstrip(".")
        folder = self.file.replace("\\", "/").rsplit("/", 2)
        package = place.rsplit(".", 1)[-1] or (folder[-2] if len(folder) > 1 else "")
        for preset, known in FLAVOURS.items():
            if known == (package, flavour):
                return {"name": self._setting(preset, spec.line, "model_registry")}
        self.doubt(spec.line, f"model_registry({flavour if isinstance(flavour, str) else '?'})")
        return {}

    def _sizes(self, config: Call, layers: Call, *, norms: bool) -> dict[str, Setting]:
        found: dict[str, Setting] = {}
        for key, value in layers.fields.items():
            if key in _SIZES and type(value) is int:
                line = layers.lines.get(key, layers.line)
                found[_SIZES[key]] = self._setting(value, line, key)
        fixed: dict[str, object] = {
            "gated": True,
            "bias": False,
            "norm": "RMSNorm",
            "positions": "rope",
            "untied": config.fields.get("enable_weight_tying") is not True,
            "qk_norm": norms,
        }
        if type(vocab := config.fields.get("vocab_size")) is int:
            fixed["vocab"] = vocab
        at = config.lines.get("vocab_size", layers.line)
        return found | {k: self._setting(v, at, "config") for k, v in fixed.items()}

    def conversions(self, converters: list[Call]) -> dict[str, Setting]:
        """The number format of products, and adapters."""
        found: dict[str, Setting] = {}
        for converter in converters:
            name = _class_of(converter)
            kinds = [p for start, p in _PRECISIONS.items() if name.startswith(start)]
            if kinds:
                found["precision"] = self._setting(kinds[0], converter.line, name)
            elif name == "LoRAConverter":
                found |= self._adapters(converter)
            else:
                self.doubt(converter.line, name or "converters")
        return found

    def _adapters(self, converter: Call) -> dict[str, Setting]:
        values: dict[str, object] = {"task": "lora"}
        if type(rank := converter.fields.get("rank", 8)) is int:
            values["lora_rank"] = rank
        given = converter.fields.get("target_modules")
        names = set(given) if isinstance(given, list) and all(map(_is_text, given)) else set()
        parts = [part for part, known in TARGETS.items() if names and names <= known]
        if parts:
            values["lora_targets"] = parts[0]
        else:
            self.doubt(converter.line, "target_modules")
        line = converter.line
        return {k: self._setting(v, line, "LoRAConverter") for k, v in values.items()}

    def _setting(self, value: object, line: int, spelled: str) -> Setting:
        return Setting(value=value, where=f"{self.file}:{line}", spelled=spelled)


def _class_of(made: Call) -> str:
    """The class whose config a call makes: ``FullAC`` of ``FullAC.Config()``."""
    return made.name.rpartition(".Config")[0].rsplit(".", 1)[-1]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _texts(value: Any) -> Iterable[str]:
    """Texts among the arguments of calls, such as of ``Path(__file__).with_name(...)``."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Call):
        for arg in value.args:
            yield from _texts(arg)


def _dealt(given: Any, module: Module) -> tuple[int, ...] | None:
    """Layers of each part: of lists of names, or of the helper that ``emit`` writes."""
    if isinstance(given, Call) and given.name == "split" and _same(module, SPLIT):
        counts = given.args[0] if given.args else None
        if isinstance(counts, list) and all(type(count) is int for count in counts):
            return tuple(counts)
        return None
    if not isinstance(given, list) or not all(isinstance(part, list) for part in given):
        return None
    if not all(_is_text(name) for part in given for name in part):
        return None
    return tuple(sum(name.startswith("layers.") for name in part) for part in given)


def _same(module: Module, text: str) -> bool:
    """Whether the module has a function word for word as in the text."""
    (known,) = ast.parse(text).body
    assert isinstance(known, ast.FunctionDef)
    own = module.functions.get(known.name)
    return own is not None and ast.dump(own) == ast.dump(known)


def _converted(spec: Call) -> tuple[Any, list[Call]]:
    """The config of a model below what converts it, and the converters in their order."""
    given = spec.fields.get("converters")
    found = [c for c in given if isinstance(c, Call)] if isinstance(given, list) else []
    config, outer = spec.fields.get("model"), []
    while isinstance(config, Call) and config.name == "convert" and config.args:
        builder = config.owner.owner if isinstance(config.owner, Call) else None
        if isinstance(builder, Call):
            outer.append(builder)
        config = config.args[0]
    return config, [*found, *reversed(outer)]
