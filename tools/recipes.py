"""Official launch recipes read by ``meshplan check``, each beside our own plan.

``python tools/recipes.py [--write]`` reads the recipes from the measured data (``MESHPLAN_SHARED``
or ``../shared``), writes each one down as its framework reads it, with the real model, and judges
it. One search answers all recipes that ask for the same; all of them take about six minutes of one
core. ``--write`` keeps the page in ``docs/<lang>/recipes.md``.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "accuracy")]

from recipe_files import file_of

from meshplan.app.names import batch_text, percent, plan_text, step_text
from meshplan.app.result import plan_json
from meshplan.check.build import assemble
from meshplan.check.read import read_text
from meshplan.cost.memory import Verdict
from meshplan.errors import ProblemList, UserError
from meshplan.inputs.load.hf_config import model_names
from meshplan.inputs.load.presets import device_names
from meshplan.inputs.scenario import Scenario
from meshplan.search.answer import Entry, answer, entry_of
from meshplan.search.evaluate import evaluate
from meshplan.space.plan import PlanGrid
from meshplan.space.rules import check_plan
from meshplan.text import LANGUAGES, t
from recipes import PRESETS, rows_of, settings_of
from shared_data import find_shared

# Devices that have no preset, since their figures are preliminary, and the nearest one that has.
NEAREST = {"vr200": "GB300", "r100": "GB300"}
DEVICES = {name.lower().replace("-", ""): name for name in device_names()}
# What a recipe of no stated size or device is judged on.
USUAL_DEVICE, USUAL_GPUS = "H100", 8
# Benchmark recipes are run as their publisher measures them (see the preset of that name).
BENCHMARK = "megatron-bridge"
SUSPICIOUS = 1.3

Row = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What ``check`` says of one recipe.

    Attributes:
        row: the recipe.
        reason: why it is not judged; empty when it is.
        scenario: model, cluster and job.
        plan: its plan, as a person reads it.
        device: where it was judged.
        rules: rules that it breaks.
        entry: the numbers of a legal one.
        own: our own plan for the same.
    """

    row: Row
    reason: str = ""
    scenario: Scenario | None = None
    plan: str = ""
    device: str = ""
    rules: tuple[str, ...] = ()
    entry: Entry | None = None
    own: Entry | None = None

    @property
    def fits(self) -> bool:
        """Whether it is legal and predicted to fit."""
        return self.entry is not None and self.entry.fits

    @property
    def speedup(self) -> float | None:
        """How many times faster our own plan is predicted to be."""
        if self.entry is None or self.own is None:
            return None
        return self.entry.step_time_s / self.own.step_time_s


def judge(row: Row, *, search: bool = True) -> Judged:
    """Read a recipe as a file and judge it; with ``search`` our own plan stands beside it."""
    preset = PRESETS.get(row["model"], row["model"].replace("_", "-"))
    device = NEAREST.get(row["hw"], DEVICES.get(row["hw"].lower(), USUAL_DEVICE))
    nanotron = row["source"].startswith("nanotron")
    if not nanotron and preset not in model_names():
        return Judged(row=row, reason="no_preset")
    source = file_of(row)
    if source is None:
        return Judged(row=row, reason="no_model")
    given = {} if nanotron else {"model": preset}
    try:
        problems = ProblemList()
        reading = read_text(source, problems=problems)
        problems.raise_if_any()
        made = assemble(reading, {**given, "cluster": f"{_gpus(row)}x{device}"})
    except UserError as error:
        return Judged(row=row, reason=error.problems[0].code)
    scenario = made.scenario
    if row["source"].endswith("perf_recipes"):
        scenario = replace(scenario, variant=BENCHMARK)
    plain = plan_json(made.plan)
    found = Judged(
        row=row,
        scenario=scenario,
        plan=f"{plan_text(plain)}, {batch_text(plain)}",
        device=device,
        rules=tuple(v.code for v in check_plan(scenario, made.plan)),
        own=best_plan(_alike(scenario)) if search else None,
    )
    if found.rules:
        return found
    return replace(found, entry=entry_of(scenario, evaluate(scenario, PlanGrid.of([made.plan]))))


def _gpus(row: Row) -> int:
    if row["gpus"]:
        return int(row["gpus"])
    least = 1
    for axis in ("tp", "pp", "cp"):
        least *= int(row[axis] or 1)
    return max(USUAL_GPUS, least, int(row["ep"] or 1) * int(row["pp"] or 1))


def _alike(scenario: Scenario) -> Scenario:
    """The scenario without what only names it, so that equal questions are equal."""
    return replace(scenario, objective="fastest", axes={})


_ANSWERS: dict[str, Entry | None] = {}


def best_plan(scenario: Scenario) -> Entry | None:
    """Our own plan for a scenario; None when nothing fits."""
    key = repr(scenario)
    if key not in _ANSWERS:
        found = answer(scenario, top=1).entries
        _ANSWERS[key] = found[0] if found else None
    return _ANSWERS[key]


@cache
def _reasons_known() -> frozenset[str]:
    from meshplan.text import catalog

    prefix = "docs.recipes."
    return frozenset(k.removeprefix(prefix) for k in catalog("en") if k.startswith(prefix))


def line_of(found: Judged, lang: str) -> str:
    """One row of the table."""
    row = found.row
    name = row["recipe"].removesuffix("_config")
    gpus = row["gpus"] or f"({_gpus(row)})"
    device = found.device if row["hw"] not in NEAREST else f"{row['hw']} ({found.device})"
    if found.reason:
        assert found.reason in _reasons_known(), found.reason
        return f"| `{name}` | {gpus} | {t(f'docs.recipes.{found.reason}', lang)} | | | | |"
    if found.entry is None:
        rules = ", ".join(f"`{rule}`" for rule in found.rules)
        judged = t("docs.recipes.illegal", lang, rules=rules)
    else:
        judged = _times(found.entry, lang)
    own, times = "-", "-"
    if found.own is not None:
        plain = plan_json(found.own.plan)
        own, times = f"{plan_text(plain)}, {batch_text(plain)}", _times(found.own, lang)
    faster = "" if found.speedup is None else f"{found.speedup:.2f}"
    cells = [f"`{name}`", f"{gpus} {device}", found.plan, judged, own, times, faster]
    return f"| {' | '.join(cells)} |"


def _times(entry: Entry, lang: str) -> str:
    mfu = float(entry.result.time.mfu[0])
    fit = "" if entry.result.memory.verdict[0] != Verdict.OOM else t("docs.recipes.oom", lang)
    return f"{step_text(entry.step_time_s)}, {percent(mfu)} {fit}".strip()


def counts(results: Iterable[Judged]) -> dict[str, int]:
    """How many recipes there are, are judged, are legal and fit."""
    found = list(results)
    judged = [r for r in found if not r.reason]
    return {
        "recipes": len(found),
        "judged": len(judged),
        "legal": sum(r.entry is not None for r in judged),
        "fits": sum(r.fits for r in judged),
        "beside": sum(r.own is not None for r in judged),
        "suspicious": sum((r.speedup or 0) > SUSPICIOUS and r.fits for r in judged),
    }


def page(results: list[Judged], lang: str) -> str:
    """The whole page."""
    illegal = Counter(rule for r in results for rule in r.rules)
    head = t("docs.recipes.columns", lang)
    lines = [t("docs.recipes.top", lang, **counts(results)), ""]
    lines += [t("docs.recipes.explained", lang), ""]
    lines += [
        f"- `{rule}` ({number}): {t(f'docs.recipes.why.{rule}', lang)}"
        for rule, number in sorted(illegal.items())
    ]
    numbers = counts(results)
    lines += ["", t("docs.recipes.doubts", lang, suspicious=numbers["suspicious"])]
    lines += ["", t("docs.recipes.all", lang), "", head, "| --- " * 7 + "|"]
    lines += [line_of(found, lang) for found in results]
    return "\n".join(lines) + "\n"


def doubts(results: Iterable[Judged], *, most: int) -> list[Judged]:
    """Recipes that fit and beside which our plan is predicted fastest, most doubtful first."""
    fitting = [r for r in results if r.fits and r.speedup is not None]
    return sorted(fitting, key=lambda r: -(r.speedup or 0))[:most]


def main() -> int:
    """Judge all recipes."""
    shared = find_shared()
    if shared is None:
        print("measured data is absent: set MESHPLAN_SHARED or put it at ../shared")
        return 1
    results = [judge(row) for row in rows_of(shared)]
    if "--write" in sys.argv:
        for lang in LANGUAGES:
            (ROOT / "docs" / lang / "recipes.md").write_text(page(results, lang), encoding="utf-8")
    print(counts(results), Counter(r.reason for r in results if r.reason), len(_ANSWERS))
    for found in doubts(results, most=10):
        print(f"{found.speedup:.2f}", line_of(found, "en"), settings_of(dict(found.row)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
