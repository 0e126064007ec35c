"""The answer of ``validate``: errors by source, regret by sweep, feasibility, what was skipped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from rich.text import Text

from meshplan.app.cli.render.blocks import Block, View, bullets, facts, heading, paragraph, table
from meshplan.app.names import percent
from meshplan.diagnose.values import escaped, shown_text

__all__ = ["render_calibrate", "render_validate"]

Json = Mapping[str, Any]

_DIGITS = 8
_MOST_ROWS = 20
_HARDLY = 0.01
"""Change of an error, as a fraction, that is not worth a word."""


def render_validate(result: Json, view: View) -> Iterator[Block]:
    """Show the errors of every source, then how well the picks rank."""
    for target in ("time", "memory"):
        groups = [group for group in result["groups"] if group["target"] == target]
        if groups:
            yield heading(view.t(f"cli.validate.{target}"))
            yield _errors(groups, view)
    if result["sweeps"]:
        yield heading(view.t("cli.validate.sweeps"))
        yield _sweeps(result["sweeps"], view)
        yield paragraph(view.t("cli.validate.regret"), view, indent=2, style="dim")
    if result["feasibility"]:
        yield heading(view.t("cli.validate.feasibility"))
        yield _feasibility(result["feasibility"], view)
    if "rows" in result:
        yield heading(view.t("cli.validate.worst"))
        yield _worst(result["rows"], view)
    if result["skipped"]:
        yield heading(view.t("cli.validate.skipped"))
        yield _skipped(result["skipped_by_source"], view)
    if result["assumptions"]:
        yield heading(view.t("cli.title.assumptions"))
        yield from bullets(_assumptions(result["assumptions"], view), view)


def render_calibrate(result: Json, view: View) -> Iterator[Block]:
    """Show the errors of the runs before and after, and the numbers that were fitted."""
    yield paragraph(
        view.t(
            "cli.calibrate.title",
            cluster=result["cluster"],
            count=len(result["profile"].get("runs") or result["runs"]),
        ),
        view,
        style="bold",
    )
    yield heading(view.t("cli.calibrate.errors"))
    columns = [
        (view.t("cli.validate.row"), "left"),
        (view.t("cli.column.framework"), "left"),
        (view.t("cli.validate.measured"), "right"),
        (view.t("cli.calibrate.before"), "right"),
        (view.t("cli.calibrate.after"), "right"),
    ]
    rows: list[list[str | Text]] = [
        [
            shown_text(run["row_id"]),
            run["framework"],
            f"{run['measured_step_time_s']:.4g} s",
            _share(run["before"], signed=True),
            _share(run["after"], signed=True),
        ]
        for run in result["runs"][:_MOST_ROWS]
    ]
    sums = (_share(result[when]["mape"]) for when in ("before", "after"))
    rows.append([Text(view.t("cli.calibrate.mean"), "bold"), "", "", *sums])
    yield table(columns, rows)
    held = sum(not run["counted"] for run in result["runs"])
    if held:
        code = "held" if held < len(result["runs"]) else "all_held"
        said = view.t(f"cli.calibrate.{code}", held=held, count=len(result["runs"]))
        yield paragraph(said, view)
    elif all(abs(run["before"] - run["after"]) < _HARDLY for run in result["runs"]):
        yield paragraph(view.t("cli.calibrate.unmoved"), view)
    if result["skipped_by_source"]:
        yield heading(view.t("cli.calibrate.skipped"))
        yield _skipped(result["skipped_by_source"], view)
    yield heading(view.t("cli.calibrate.fitted"))
    fitted = result["profile"]["fitted"].items()
    yield facts(
        ((k, f"{v:.4g}".ljust(_DIGITS) + view.t(f"cli.calibrate.factor.{k}")) for k, v in fitted),
        view,
    )
    yield Text()
    yield paragraph(view.t("cli.calibrate.band", share=result["profile"]["band"]["base"]), view)
    residuals = result["profile"].get("residuals")
    if residuals:
        runs, reach = len(residuals["runs"]), residuals["reach"]
        yield paragraph(view.t("cli.calibrate.followed", count=runs, reach=f"{reach:.1f}"), view)
    yield paragraph(view.t("cli.calibrate.use"), view)


def _errors(groups: Sequence[Json], view: View) -> Block:
    columns = [(view.t("cli.validate.source"), "left"), (view.t("cli.validate.rows"), "right")]
    figures = [("mape", "mean"), ("median_ape", "median"), ("p90_ape", "p90"), ("bias", "bias")]
    columns += [(view.t(f"cli.validate.{name}"), "right") for _, name in figures]
    has_coverage = any(group.get("coverage") is not None for group in groups)
    if has_coverage:
        columns.append((view.t("cli.validate.coverage"), "right"))
    rows = []
    for group in groups:
        cells = [group["source_id"], f"{group['num_predicted']}/{group['num_rows']}"]
        cells += [_share(group[key], signed=key == "bias") for key, _ in figures]
        if has_coverage:
            cells.append(_share(group.get("coverage")))
        rows.append(cells)
    return table(columns, rows)


def _share(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    return f"{value:+.1%}" if signed else percent(value)


def _sweeps(sweeps: Sequence[Json], view: View) -> Block:
    """One line per source: its sweeps, and the regret of our picks."""
    by_source: dict[str, list[Json]] = defaultdict(list)
    for sweep in sweeps:
        by_source[sweep["source_id"]].append(sweep)
    columns = [
        (view.t("cli.validate.source"), "left"),
        (view.t("cli.validate.num_sweeps"), "right"),
        (view.t("cli.validate.layouts"), "right"),
        (view.t("cli.validate.mean_regret"), "right"),
        (view.t("cli.validate.median_regret"), "right"),
        (view.t("cli.validate.spearman"), "right"),
    ]
    rows = [_sweep_row(source, found) for source, found in by_source.items()]
    if len(by_source) > 1:
        rows.append(_sweep_row(Text(view.t("cli.validate.all"), "bold"), sweeps))
    return table(columns, rows)


def _sweep_row(name: str | Text, sweeps: Sequence[Json]) -> list[str | Text]:
    regrets = [sweep["regret"] for sweep in sweeps]
    ranks = [sweep["spearman"] for sweep in sweeps if sweep["spearman"] is not None]
    return [
        name,
        str(len(sweeps)),
        str(sum(sweep["num_layouts"] for sweep in sweeps)),
        percent(fmean(regrets)),
        percent(median(regrets)),
        f"{median(ranks):.2f}" if ranks else "-",
    ]


def _feasibility(items: Sequence[Json], view: View) -> Block:
    columns = [
        (view.t("cli.validate.source"), "left"),
        (view.t("cli.validate.false_oom"), "right"),
        (view.t("cli.validate.missed_oom"), "right"),
    ]
    rows = [
        (
            item["source_id"],
            f"{item['false_oom']} / {item['num_fit']}",
            f"{item['missed_oom']} / {item['num_oom']}",
        )
        for item in items
    ]
    return table(columns, rows)


def _skipped(items: Sequence[Json], view: View) -> Block:
    """One line per source and reason, the sources with most rows first."""
    total: dict[str, int] = defaultdict(int)
    for item in items:
        total[item["source_id"]] += item["num_rows"]
    ordered = sorted(items, key=lambda i: (-total[i["source_id"]], i["source_id"], -i["num_rows"]))
    columns = [
        (view.t("cli.validate.source"), "left"),
        (view.t("cli.validate.rows"), "right"),
        (view.t("cli.validate.reason"), "left"),
    ]
    rows = [
        (escaped(item["source_id"]), f"{item['num_rows']:,}", view.name("skipped", item["reason"]))
        for item in ordered
    ]
    return table(columns, rows)


def _worst(rows: Sequence[Json], view: View) -> Block:
    """The rows that are furthest off."""
    timed = [row for row in rows if row["error"] is not None]
    worst = sorted(timed, key=lambda row: -abs(row["error"]))[:_MOST_ROWS]
    columns = [
        (view.t("cli.validate.row"), "left"),
        (view.t("cli.validate.source"), "left"),
        (view.t("cli.validate.measured"), "right"),
        (view.t("cli.validate.predicted"), "right"),
        (view.t("cli.validate.error"), "right"),
    ]
    cells = [
        (
            str(row["row_id"]),
            row["source_id"],
            f"{row['measured_step_time_s']:.4g} s",
            f"{row['step_time_s']:.4g} s",
            _share(row["error"], signed=True),
        )
        for row in worst
    ]
    return table(columns, cells)


def _assumptions(items: Sequence[Json], view: View) -> Iterator[str]:
    """What was assumed for blanks, sources with equal assumptions together."""
    by_source: dict[str, list[str]] = defaultdict(list)
    for item in items:
        rows = ", ".join(f"{column}={begin}..." for column, begin in item["when"].items())
        source = item["source_id"]
        if rows:
            source = view.t("cli.validate.some_rows", source=source, rows=rows)
        by_source[source].append(f"{item['name']}={item['value']}")
    alike: dict[str, list[str]] = defaultdict(list)
    for source, named in by_source.items():
        alike[", ".join(named)].append(source)
    for said, sources in alike.items():
        yield f"{', '.join(sources)}: {said}"
