"""Official launch recipes read by ``meshplan check``, each beside our own plan.

``python tools/recipes.py [--write]`` reads the recipes from the measured data (``MESHPLAN_SHARED``
or ``../shared``), writes each one down as its framework reads it, with the real model, and judges
it. One search answers all recipes that ask for the same; all of them take about six minutes of one
core. ``--write`` keeps the page in ``docs/<lang>/recipes.md``.

Where a recipe cannot be run as it stands, our own plan is for the nearest thing that can be: FP8
where the device lacks the precision, another framework for a model that nanotron lost, more GPUs
where nothing fits.
"""

from __future__ import annotations

import csv
import math
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "accuracy")]

from recipe_files import GONE, UNSIZED, file_of, model_of

from meshplan.app.names import batch_text, percent, plan_text, step_text
from meshplan.app.result import plan_json
from meshplan.check.build import Assembled, assemble, broken_rules
from meshplan.check.read import read_text
from meshplan.cost.memory import Verdict
from meshplan.errors import ProblemList, UserError
from meshplan.inputs.load.presets import device_names
from meshplan.inputs.scenario import Scenario
from meshplan.search.answer import Entry, answer, entry_of
from meshplan.search.evaluate import evaluate, part_seconds
from meshplan.search.sizes import candidate_sizes, with_gpus
from meshplan.space.plan import PlanGrid
from meshplan.text import LANGUAGES, t
from recipes import rows_of, settings_of
from shared_data import find_shared

# Devices that have no preset, since their figures are preliminary, and the nearest one that has.
NEAREST = {"vr200": "GB300", "r100": "GB300"}
DEVICES = {name.lower().replace("-", ""): name for name in device_names()}
# What a recipe of no stated size or device is judged on.
USUAL_DEVICE, USUAL_GPUS = "H100", 8
# Benchmark recipes are run as their publisher measures them (see the preset of that name).
BENCHMARK = "megatron-bridge"
MEASURED = "megatron-bridge-perf-summary"
SUSPICIOUS = 1.3
# A recipe's word for a precision that every device with 8-bit matrix units has.
PLAIN_FP8 = "fp8cs"
# Where nothing fits, up to so many times the GPUs are tried.
MOST_TIMES = 32

Row = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What ``check`` says of one recipe.

    Attributes:
        row: the recipe.
        made: its scenario and plan.
        device: where it was judged.
        rules: why it cannot be run as it stands, by code.
        entry: the numbers of one that can.
        own: our own plan for the same.
        instead: what ours is for instead: a precision, a framework, sizes or a number of GPUs.
    """

    row: Row
    made: Assembled
    device: str
    rules: tuple[str, ...] = ()
    entry: Entry | None = None
    own: Entry | None = None
    instead: str = ""

    @property
    def fits(self) -> bool:
        """Whether it is legal and predicted to fit."""
        return self.entry is not None and self.entry.fits

    @property
    def plan(self) -> str:
        """Its plan, as a person reads it."""
        plain = plan_json(self.made.plan)
        return f"{plan_text(plain)}, {batch_text(plain)}"

    @property
    def speedup(self) -> float | None:
        """How many times faster our own plan is predicted to be."""
        if self.entry is None or self.own is None or self.instead:
            return None
        return self.entry.step_time_s / self.own.step_time_s


def judge(row: Row, *, search: bool = True) -> Judged:
    """Read a recipe as a file and judge it; with ``search`` our own plan stands beside it."""
    device = NEAREST.get(row["hw"], DEVICES.get(row["hw"].lower(), USUAL_DEVICE))
    rules, instead = tuple[str, ...](), ""
    try:
        made = _assembled(row, device)
    except UserError as error:
        if [problem.code for problem in error.problems] != ["precision_unsupported"]:
            raise
        made = _assembled({**row, "precision": PLAIN_FP8}, device)
        rules, instead = ("precision_unsupported",), made.scenario.job.precision.upper()
    if row["recipe"] in GONE:
        rules, instead = ("model_is_gone",), GONE[row["recipe"]]
        made = replace(made, scenario=replace(made.scenario, frameworks=(instead,)))
    if row["recipe"] in UNSIZED:
        rules, instead = ("no_sizes",), UNSIZED[row["recipe"]]
    rules = rules or tuple(v.code for v in broken_rules(made))
    found = Judged(row=row, made=made, device=device, rules=rules, instead=instead)
    if not rules:
        result = evaluate(made.scenario, PlanGrid.of([made.plan]))
        found = replace(found, entry=entry_of(made.scenario, result))
    return _beside(found) if search else found


def _assembled(row: Row, device: str) -> Assembled:
    """Scenario and plan of a recipe, as ``check`` reads its file.

    Raises:
        UserError: for what the file cannot say.
    """
    problems = ProblemList()
    reading = read_text(file_of(row), problems=problems)
    problems.raise_if_any()
    model = model_of(row)
    given = {"model": model} if model else {}
    made = assemble(reading, {**given, "cluster": f"{_gpus(row)}x{device}"})
    if row["source"].endswith("perf_recipes"):
        return replace(made, scenario=replace(made.scenario, variant=BENCHMARK))
    return made


def _beside(found: Judged) -> Judged:
    """The same with our own plan, on another number of GPUs where as many have none.

    More where nothing fits, else fewer where the batch is too small to share.
    """
    scenario = _alike(found.made.scenario)
    now = scenario.cluster.num_gpus
    sizes = candidate_sizes(scenario.cluster, up_to=now * MOST_TIMES)
    fewer = sorted((size for size in sizes if size < now), reverse=True)
    for size in (now, *(size for size in sizes if size > now), *fewer):
        own = best_plan(scenario if size == now else with_gpus(scenario, size))
        if own is not None:
            gpus = "" if size == now else f"{size} {found.device}"
            return replace(found, own=own, instead=", ".join(filter(None, (found.instead, gpus))))
    return found


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


def line_of(found: Judged, lang: str) -> str:
    """One row of the table."""
    row = found.row
    name = row["recipe"].removesuffix("_config")
    gpus = row["gpus"] or f"({_gpus(row)})"
    device = found.device if row["hw"] not in NEAREST else f"{row['hw']} ({found.device})"
    if found.entry is None:
        rules = ", ".join(f"`{rule}`" for rule in found.rules)
        judged = t("docs.recipes.illegal", lang, rules=rules)
    else:
        judged = _times(found.entry, lang)
    own, times = "-", "-"
    if found.own is not None:
        plain = plan_json(found.own.plan)
        own, times = f"{plan_text(plain)}, {batch_text(plain)}", _times(found.own, lang)
        own += f" ({found.instead})" * bool(found.instead)
    faster = "" if found.speedup is None else f"{found.speedup:.2f}"
    cells = [f"`{name}`", f"{gpus} {device}", found.plan, judged, own, times, faster]
    return f"| {' | '.join(cells)} |"


def _times(entry: Entry, lang: str) -> str:
    mfu = float(entry.result.time.mfu[0])
    fit = "" if entry.result.memory.verdict[0] != Verdict.OOM else t("docs.recipes.oom", lang)
    return f"{step_text(entry.step_time_s)}, {percent(mfu)} {fit}".strip()


def counts(results: Iterable[Judged]) -> dict[str, int]:
    """How many recipes there are, can be run, fit and have ours beside them."""
    found = list(results)
    return {
        "recipes": len(found),
        "legal": sum(r.entry is not None for r in found),
        "fits": sum(r.fits for r in found),
        "beside": sum(r.own is not None for r in found),
        "instead": sum(bool(r.own and r.instead) for r in found),
        "suspicious": sum((r.speedup or 0) > SUSPICIOUS and r.fits for r in found),
    }


def kind_of(found: Judged) -> str:
    """The part of a step that is most smaller in our plan."""
    assert found.entry is not None and found.own is not None
    theirs, ours = part_seconds(found.entry.result), part_seconds(found.own.result)
    return max(theirs, key=lambda part: theirs[part] - ours[part]).removesuffix("_s")


def kinds_table(results: Iterable[Judged], lang: str) -> list[str]:
    """Recipes beside which ours is much faster by what makes it so, with what is known of each."""
    kinds: dict[str, list[Judged]] = {}
    for found in doubts(results):
        kinds.setdefault(kind_of(found), []).append(found)
    ordered = sorted(kinds.items(), key=lambda item: -len(item[1]))
    lines = [t("docs.recipes.kind_columns", lang), "| --- " * 5 + "|"]
    for kind, members in ordered:
        factors = [found.speedup or 0.0 for found in members]
        name = members[0].row["recipe"].removesuffix("_config")
        cells = [t(f"docs.recipes.part.{kind}", lang), str(len(members))]
        cells += [f"{median(factors):.2f}", f"{factors[0]:.2f}", f"`{name}`"]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    for kind, _ in ordered:
        part = t(f"docs.recipes.part.{kind}", lang)
        lines.append(t("docs.recipes.kind", lang, part=part, why=t(f"docs.recipes.{kind}", lang)))
    return lines


def measured_table(
    results: Iterable[Judged], runs: Mapping[Run, float], lang: str
) -> tuple[list[str], int, float]:
    """Recipes with a published run: what it took, beside both predictions.

    Returns:
        The rows, how many there are, and the median of predicted over measured times.
    """
    lines, ratios = [t("docs.recipes.measured_columns", lang), "| --- " * 5 + "|"], []
    for found in results:
        seconds = runs.get(run_of(found.row))
        if seconds is None or found.entry is None or found.own is None:
            continue
        ratios.append(found.entry.step_time_s / seconds)
        times = [seconds, found.entry.step_time_s, found.own.step_time_s]
        cells = [f"`{found.row['recipe'].removesuffix('_config')}`"]
        cells += [*(step_text(time) for time in times), f"{ratios[-1]:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines, len(ratios), median(ratios)


def page(results: list[Judged], runs: Mapping[Run, float], lang: str) -> str:
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
    lines += ["", t("docs.recipes.doubts", lang, suspicious=numbers["suspicious"]), ""]
    lines += kinds_table(results, lang)
    table, number, ratio = measured_table(results, runs, lang)
    lines += ["", t("docs.recipes.measured", lang, number=number, ratio=f"{ratio:.2f}"), "", *table]
    lines += ["", t("docs.recipes.all", lang), "", head, "| --- " * 7 + "|"]
    lines += [line_of(found, lang) for found in results]
    return "\n".join(lines) + "\n"


def doubts(results: Iterable[Judged]) -> list[Judged]:
    """Recipes that fit and beside which our plan is predicted much faster, the most so first."""
    fitting = [r for r in results if r.fits and (r.speedup or 0) > SUSPICIOUS]
    return sorted(fitting, key=lambda r: -(r.speedup or 0))


# Model, device, precision, GPUs, batch, micro-batch, tp, pp, ep and tokens of a sequence.
Run = tuple[str, ...]
PRECISIONS = {"fp8cs": "fp8", "fp8sc": "fp8", "fp8mx": "mxfp8"}


def run_of(row: Row) -> Run:
    """What a published run and a recipe must share."""
    words = [_plain(row["model"]), row["hw"], PRECISIONS.get(row["precision"], row["precision"])]
    return (*words, row["gpus"], *(row[k] or "1" for k in ("gbs", "mbs", "tp", "pp", "ep", "seq")))


def read_runs(shared: Path, known: Collection[Run]) -> dict[Run, float]:
    """The fastest published run of each recipe [s per step], where the names of both agree."""
    path = shared / "data" / "measured" / "runs.csv"
    models = sorted({run[0] for run in known}, key=len, reverse=True)
    fastest: dict[Run, float] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["source_id"] != MEASURED or row["consistency"] == "MISMATCH":
                continue
            keys = ("num_gpus", "global_batch", "micro_batch", "tp", "pp", "ep", "seq_len")
            device = row["gpu"].lower().replace("-", "").split("sxm")[0]
            # published names say more (nemotron3-nano-30b-a3b) or as much
            name = _plain(row["model_key"])
            name = next((model for model in models if name.startswith(model)), name)
            words = (name, device, _precision_of(row["precision"]))
            run = (*words, *(row[key].removesuffix(".0") or "1" for key in keys))
            rate = float(row["tokens_per_s_per_gpu"] or 0)
            if run in known and rate:
                tokens = int(row["seq_len"]) * int(row["global_batch"]) / int(row["num_gpus"])
                fastest[run] = min(tokens / rate, fastest.get(run, math.inf))
    return fastest


def _plain(model: str) -> str:
    return re.sub(r"[^a-z0-9]", "", model.lower())


def _precision_of(text: str) -> str:
    words = text.lower()
    if "mx" in words:
        return "mxfp8"
    return next((name for name in ("nvfp4", "fp8", "bf16") if name in words), words)


def main() -> int:
    """Judge all recipes."""
    shared = find_shared()
    if shared is None:
        print("measured data is absent: set MESHPLAN_SHARED or put it at ../shared")
        return 1
    rows = rows_of(shared)
    runs = read_runs(shared, {run_of(row) for row in rows})
    results = [judge(row) for row in rows]
    if "--write" in sys.argv:
        for lang in LANGUAGES:
            (ROOT / "docs" / lang / "recipes.md").write_text(
                page(results, runs, lang), encoding="utf-8"
            )
    print(counts(results), len(_ANSWERS))
    for found in doubts(results):
        print(
            kind_of(found),
            f"{found.speedup:.2f}",
            line_of(found, "en"),
            settings_of(dict(found.row)),
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
