"""Official launch recipes read by ``meshplan check``, each beside our own plan.

``python tools/recipes.py [--write]`` reads the recipes from the measured data (``MESHPLAN_SHARED``
or ``../shared``), writes each as arguments of Megatron-LM with the real model, and judges it.
``--write`` keeps the table in ``docs/<lang>/recipes.md``.
"""

from __future__ import annotations

import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "accuracy")]

from meshplan.app import service
from meshplan.app.names import batch_text, percent, plan_text, step_text
from meshplan.errors import UserError
from meshplan.inputs.load.hf_config import model_names
from meshplan.inputs.load.presets import device_names
from meshplan.text import LANGUAGES, t
from recipes import PRESETS, arguments_of, rows_of
from shared_data import find_shared

DEVICES = {name.lower().replace("-", ""): name for name in device_names()}


def judged(row: dict[str, str], folder: Path) -> dict[str, Any] | str:
    """The result of ``check`` on one recipe, or why there is none."""
    if not row["gpus"]:
        return "no_gpus"
    preset = PRESETS.get(row["model"], row["model"].replace("_", "-"))
    if preset not in model_names():
        return "no_preset"
    device = DEVICES.get(row["hw"].lower())
    if row["source"].startswith("nanotron"):
        return "toy"
    if device is None:
        return "no_device"
    path = folder / "recipe.sh"
    path.write_text(arguments_of(row))
    request = {"files": [str(path)], "model": preset, "cluster": f"{row['gpus']}x{device}"}
    try:
        result = service.check({**request, "best": False})
    except UserError as error:
        return error.problems[0].code
    result["own"] = best_plan(preset, request["cluster"], _job(result))
    return result


def _job(result: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(result["scenario"]["job"].items()))


@cache
def best_plan(model: str, cluster: str, job: tuple[tuple[str, Any], ...]) -> dict[str, Any] | None:
    """Our own plan for the same job."""
    request = {"model": model, "cluster": cluster, "job": dict(job), "frameworks": ["megatron"]}
    try:
        plans = service.plan({**request, "top": 1})["plans"]
    except UserError:
        return None
    return plans[0] if plans else None


def line_of(row: dict[str, str], result: dict[str, Any] | str, lang: str) -> str:
    """One row of the table."""
    cells = [f"`{row['recipe'].removesuffix('_config')}`", row["gpus"] or "-"]
    if isinstance(result, str):
        return f"| {' | '.join([*cells, t(f'docs.recipes.{result}', lang)])} | | | |"
    plan = result["plan"]
    cells.append(f"{plan_text(plan)}, {batch_text(plan)}")
    if result["legal"]:
        entry = result["plans"][0]
        fit = "" if entry["memory"]["verdict"] != "oom" else f" {t('docs.recipes.oom', lang)}"
        cells.append(f"{step_text(entry['step_time_s'])}, {percent(entry['mfu'])}{fit}")
    else:
        rules = ", ".join(p["code"].removeprefix("rule_") for p in result["problems"])
        cells.append(t("docs.recipes.illegal", lang, rules=rules))
    own = result["own"]
    if own is None:
        cells += ["-", "-"]
    else:
        cells += [
            f"{plan_text(own['plan'])}, {batch_text(own['plan'])}",
            f"{step_text(own['step_time_s'])}, {percent(own['mfu'])}",
        ]
    return f"| {' | '.join(cells)} |"


def page(results: list[tuple[dict[str, str], dict[str, Any] | str]], lang: str) -> str:
    """The table of all recipes."""
    known = [r for _, r in results if not isinstance(r, str)]
    legal = [r for r in known if r["legal"]]
    fits = [r for r in legal if r["plans"][0]["memory"]["verdict"] != "oom"]
    top = t(
        "docs.recipes.top",
        lang,
        recipes=len(results),
        judged=len(known),
        legal=len(legal),
        fits=len(fits),
    )
    head = t("docs.recipes.columns", lang)
    lines = [line_of(row, result, lang) for row, result in results]
    return "\n".join([top, "", head, "| --- " * 6 + "|", *lines]) + "\n"


def main() -> int:
    """Judge all recipes."""
    shared = find_shared()
    if shared is None:
        print("measured data is absent: set MESHPLAN_SHARED or put it at ../shared")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        results = [(row, judged(row, Path(folder))) for row in rows_of(shared)]
    for lang in LANGUAGES:
        text = page(results, lang)
        if "--write" in sys.argv:
            (ROOT / "docs" / lang / "recipes.md").write_text(text, encoding="utf-8")
    print(page(results, "en").split("\n|")[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
