"""Megatron-Bridge: overrides of a recipe, as the options of Megatron-LM that they stand for.

References:
    1. ``scripts/training/run_recipe.py`` of Megatron-Bridge 0.6.2, and its ``ConfigContainer``,
       whose fields are those of Megatron-Core with a section before them.
    2. ``megatron/bridge/training/mixed_precision.py``: names of the recipes of mixed precision.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from meshplan.check.documents import LinedValues
from meshplan.check.foreign import foreign_keys
from meshplan.check.megatron import read_megatron
from meshplan.check.options import Option
from meshplan.check.records import ForeignKey, Reading, Setting, Source
from meshplan.check.shell_words import UNKNOWN
from meshplan.emit.bridge import TARGETS
from meshplan.errors import ProblemList

__all__ = ["is_bridge", "read_bridge"]

_OVERRIDE = re.compile(r"\+{0,2}((?:\w+\.)*\w+)=(.*)", re.DOTALL)
_SECTIONS = ("model", "train", "ddp", "optimizer", "dataset", "mixed_precision", "peft")
_NAMES = {
    "virtual-pipeline-model-parallel-size": "num-virtual-stages-per-pipeline-rank",
    "num-layers-in-first-pipeline-stage": "decoder-first-pipeline-num-layers",
    "num-layers-in-last-pipeline-stage": "decoder-last-pipeline-num-layers",
    "num-moe-experts": "num-experts",
}
# What the recipe says of a plan, where the overrides do not.
_OF_THE_PLAN = ("tp", "pp", "micro_batch", "global_batch", "seq_len")
_PRECISIONS = {
    "mxfp8": (("fp8-format", "e4m3"), ("fp8-recipe", "mxfp8")),
    "nvfp4": (("fp4-format", "e2m1"),),
    "fp8": (("fp8-format", "hybrid"),),
}
# Recipes of mixed precision whose scales are those of the tensors themselves, and by block; that of
# nanov2 has them by block in spite of its name (reference 2).
_BLOCKWISE = re.compile(r"nanov2_.*|.*_fp8_subchannel_scaling_.*")
_TENSORWISE = re.compile(r"(?:nemotron_h_)?(?:bf|fp)16_with_fp8_current_scaling_mixed")


def is_bridge(options: list[Option]) -> bool:
    """Whether options name a recipe that words of Hydra change."""
    names = {option.name for option in options}
    return "recipe" in names and any(True for _ in _overrides(options))


def _overrides(options: list[Option]) -> Iterator[tuple[str, str, int]]:
    for option in options:
        for value, line in zip(option.values, option.lines, strict=True):
            match = _OVERRIDE.fullmatch(value)
            if match and match[1].split(".")[0] in _SECTIONS:
                yield match[1], match[2].strip("'\""), line


def read_bridge(options: list[Option], *, file: str, problems: ProblemList) -> Reading:
    """Read the overrides of a recipe."""
    made: list[Option] = []
    adapters: dict[str, Setting] = {}
    for key, value, line in _overrides(options):
        section, _, name = key.partition(".")
        if section == "mixed_precision":
            made += _precision(key, value, line)
        elif section == "peft":
            where = f"{file}:{line}"
            adapters |= _adapters(name, value, Setting(value=None, where=where, spelled=key))
        elif (option := _option(key, name, value, line)) is not None:
            made.append(option)
    # without dropout and with a distributed optimizer, as its recipes are
    said = {option.name for option in made}
    usual = [Option(name=f"{part}-dropout", values=("0.0",), line=1) for part in _DROPOUTS]
    if not any(key == "ddp.use_distributed_optimizer" for key, _, _ in _overrides(options)):
        usual.append(Option(name="use-distributed-optimizer", values=(), line=1))
    if "optimizer-cpu-offload" in said:
        # nothing moves unless it is said how much (megatron/core/optimizer/optimizer_config.py:347)
        usual.append(Option(name="optimizer-offload-fraction", values=("0.0",), line=1))
    made += [option for option in usual if option.name not in said]
    reading = read_megatron(made, file=file, problems=problems)
    settings = {**reading.settings, **adapters}
    if "sequence-parallel" not in said and not any(
        key == "model.sequence_parallel" for key, _, _ in _overrides(options)
    ):
        settings.pop("sp")
    return replace(
        reading,
        settings=settings,
        unknown=(*reading.unknown, *_recipe(options, settings, file)),
        foreign=_foreign(options, file, problems),
    )


def _foreign(options: list[Option], file: str, problems: ProblemList) -> tuple[ForeignKey, ...]:
    """Overrides of what no config of Megatron-Bridge has."""
    data: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for option in options:
        for value, line in zip(option.values, option.lines, strict=True):
            match = _OVERRIDE.fullmatch(value)
            if match and "." in match[1] and not value.startswith("+"):
                section, _, key = match[1].partition(".")
                data.setdefault(section, {})[key.partition(".")[0]] = None
                lines[match[1]] = line
                lines.setdefault(section, line)
    values = LinedValues(Source(name=file, text=""), data, problems, lines)
    return foreign_keys(values, "bridge")


_DROPOUTS = ("attention", "hidden")


def _recipe(options: list[Option], settings: dict[str, Setting], file: str) -> Iterator[Setting]:
    """The recipe itself, where it says what the overrides do not."""
    missing = [name for name in _OF_THE_PLAN if name not in settings]
    for option in options:
        if option.name == "recipe" and missing:
            named = option.value if UNKNOWN not in option.value else "--recipe"
            where = f"{file}:{option.line}"
            yield Setting(value=", ".join(missing), where=where, spelled=f"--recipe {named}")


def _option(key: str, name: str, value: str, line: int) -> Option | None:
    """One override as an option; None where it switches something off."""
    dashed = name.replace("_", "-")
    if dashed == "grad-reduce-in-fp32":
        dashed, value = "grad-reduce-in-bf16", {"true": "false", "false": "true"}.get(value, value)
    dashed = _NAMES.get(dashed, dashed)
    if value.lower() in ("false", "null", "none", ""):
        return None
    if value.lower() == "true":
        values: tuple[str, ...] = ()
    elif value.startswith("[") and value.endswith("]"):
        values = tuple(part.strip(" '\"") for part in value[1:-1].split(","))
    else:
        values = (value,)
    return Option(name=dashed, values=values, line=line, written=key)


def _precision(key: str, value: str, line: int) -> Iterator[Option]:
    pairs: list[tuple[str, ...]] = [("fp16",) if "fp16" in value else ("bf16",)]
    narrow = next((name for name in _PRECISIONS if name in value), None)
    pairs += _PRECISIONS[narrow] if narrow else ()
    if _TENSORWISE.fullmatch(value):
        pairs.append(("fp8-recipe", "tensorwise"))
    elif _BLOCKWISE.fullmatch(value):
        pairs.append(("fp8-recipe", "blockwise"))
    for name, *values in pairs:
        yield Option(name=name, values=tuple(values), line=line, written=key)


def _adapters(name: str, value: str, at: Setting) -> dict[str, Setting]:
    found = {"task": replace(at, value="lora")}
    if name == "dim" and value.isdecimal():
        found["lora_rank"] = replace(at, value=int(value))
    if name == "target_modules":
        names = {part.strip(" '\"") for part in value.strip("[]").split(",")}
        for part, known in TARGETS.items():
            if names == set(known):
                found["lora_targets"] = replace(at, value=part)
    return found
