"""Settings of a row from the recipe behind its table.

A benchmark table prints some settings of a run; the recipe of the same release has them all
(``recipes.csv``, written by ``tools/recipe_layouts.py``). A recipe is a row's own when release,
model, device, precision, number of devices and batch are equal, or all but the batch and the layout
is the same.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources

from meshplan.validate.assume import Assumptions
from meshplan.validate.table import Row, Skip, flag

__all__ = ["with_recipe"]

_KEY = ("model_key", "num_gpus", "global_batch")
_LAYOUT = ("tp", "pp", "vpp", "cp", "ep", "micro_batch")
Recipe = dict[str, str]


def with_recipe(row: Row, assumed: Assumptions) -> Row:
    """Fill blank cells of a row from its recipe.

    A release names one batch size for each job; a row with another one, but with the layout of
    that recipe, has its other settings too.

    Where the two contradict each other nobody can tell which of them ran: measured throughput
    sides with the table in some rows and with the recipe in others.

    Raises:
        Skip: ``contradicts_its_recipe``.
    """
    if "recipe=" in row.get("other_inferred", ""):
        return row
    release, subject = _release(row, assumed), _subject(row)
    own = _recipes().get((release, *subject), [])
    agreeing = [recipe for recipe in own if _agrees(row, recipe)]
    if own and not agreeing:
        raise Skip("contradicts_its_recipe")
    if not own:
        others = _recipes_of_any_batch().get((release, *_without_batch(subject)), [])
        stated = row.get("tp") and row.get("pp")
        agreeing = [recipe for recipe in others if stated and _agrees(row, recipe)]
    return _filled(row, agreeing[0]) if len(agreeing) == 1 else row


@lru_cache(maxsize=1)
def _recipes() -> dict[tuple[str, ...], list[Recipe]]:
    """All recipes by release and what they are for."""
    found: dict[tuple[str, ...], list[Recipe]] = {}
    text = (resources.files("meshplan.validate") / "recipes.csv").read_text("utf-8")
    for recipe in csv.DictReader(text.splitlines()):
        subject = (*(recipe[name] for name in _KEY), recipe["gpu"], recipe["precision"])
        for release in recipe["releases"].split(";"):
            found.setdefault((release, *subject), []).append(recipe)
    return found


@lru_cache(maxsize=1)
def _recipes_of_any_batch() -> dict[tuple[str, ...], list[Recipe]]:
    """The same by release and what they are for, whatever the batch."""
    found: dict[tuple[str, ...], list[Recipe]] = {}
    for (release, *subject), recipes in _recipes().items():
        found.setdefault((release, *_without_batch(subject)), []).extend(recipes)
    return found


def _without_batch(subject: Sequence[str]) -> tuple[str, ...]:
    place = _KEY.index("global_batch")
    return (*subject[:place], *subject[place + 1 :])


def _release(row: Row, assumed: Assumptions) -> str:
    """Release whose recipes a row ran, empty where none are known."""
    launcher = re.match(r"NVIDIA/NeMo-Framework-Launcher@(\w{8})", row.get("source_ref", ""))
    return f"nemo-launcher {launcher[1]}" if launcher else assumed.text("recipes")


def _subject(row: Row) -> tuple[str, ...]:
    gpu = row.get("gpu", "").split("-")[0]
    return (*(row.get(name, "") for name in _KEY), gpu, _precision(row, gpu))


def _precision(row: Row, gpu: str) -> str:
    """Number format as recipes name it; blocks of FP8 are the hardware's own on Blackwell."""
    text = row.get("precision", "").lower()
    if "nvfp4" in text:
        return "nvfp4"
    blocks = any(word in text for word in ("mxfp8", "fp8-mx", "subchannel"))
    if blocks and "B" in gpu:
        return "mxfp8"
    return "fp8" if "fp8" in text else "bf16"


def _agrees(row: Row, recipe: Recipe) -> bool:
    """Whether nothing that a row says differs from its recipe."""
    said = {name: row[name] for name in _LAYOUT if row.get(name)}
    if recipe["pp"] == "1":
        said.pop("vpp", None)
    sharded = row.get("fsdp", "")
    same_kind = not sharded or (sharded not in ("0", "no")) == flag(recipe, "fsdp")
    return same_kind and all(recipe[name] == value for name, value in said.items())


def _filled(row: Row, recipe: Recipe) -> Row:
    blank = {name: recipe[name] for name in _LAYOUT if not row.get(name)}
    more = [row.get("other_inferred", "")]
    if recipe["recompute_modules"]:
        more.append(f"recompute_modules=[{recipe['recompute_modules']}]")
    if recipe["recompute_layers"] != "0":
        more.append(f"recompute_num_layers={recipe['recompute_layers']}")
    if recipe["offload_layers"] != "0":
        more.append(f"cpu_offloading_num_layers={recipe['offload_layers']}")
    return {**row, **blank, "other_inferred": "; ".join(filter(None, more))}
