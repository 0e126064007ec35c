"""The answer of ``quick``: rule of thumb and full model in two columns, then why they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from meshplan.app.cli.render.blocks import Block, View, bullets, facts, heading, paragraph, table
from meshplan.app.names import degrees_text, percent, plan_text
from meshplan.units import GB, format_duration, format_memory

__all__ = ["render_quick"]

Json = Mapping[str, Any]

_NOTABLE = 0.2
"""Difference of sizes that is said; shapes in whole layers miss by up to an eighth."""


def render_quick(result: Json, view: View) -> Iterator[Block]:
    """Show both answers side by side, and why they differ."""
    given, rule, stand_in = result["given"], result["rule"], result["stand_in"]
    yield paragraph(view.t("cli.quick.title", **given), view, style="bold")
    yield paragraph(view.t("cli.quick.stand_in", **stand_in), view, style="dim")
    asked = given["num_params_b"] * GB
    if abs(stand_in["num_params"] - asked) > _NOTABLE * asked:
        other = view.t("cli.quick.other_size", num_params=stand_in["num_params"])
        yield paragraph(other, view, style="yellow")
    yield Text()
    yield paragraph(
        view.t(
            "cli.quick.tier",
            tier=view.t(f"tier.{rule['tier']}"),
            strategy=view.t(f"strategy.{rule['strategy']}"),
        ),
        view,
    )
    yield Text()
    yield table(
        [
            ("", "left"),
            (view.t("cli.quick.rule"), "left"),
            (view.t("cli.quick.same"), "left"),
            (view.t("cli.quick.model"), "left"),
        ],
        _rows(result, view),
        flexible=3,
        width=view.width,
    )
    if result["more_gpus"] is not None:
        more = view.t("cli.quick.more_gpus", num_gpus=result["more_gpus"])
        yield Text()
        yield paragraph(more, view, indent=2)
    if "problem" in rule:
        problem = rule["problem"]
        text = view.t(f"error.{problem['code']}", **problem["numbers"], where="", value="")
        yield Text()
        yield paragraph(text, view, indent=2, style="red")
    yield from _why(result["differences"], view)
    if rule["degrees"]:
        yield heading(view.t("cli.quick.placement"))
        yield facts(_placement(rule, view), view)


def _rows(result: Json, view: View) -> Iterator[list[str]]:
    """The plans, then what each rule says beside the model's numbers."""
    rule, same = result["rule"], result["rule_plan"]
    best = result["plans"][0] if result["plans"] else None
    degrees, nothing = rule["degrees"], view.t("cli.quick.nothing")
    ones = {"vpp": 1, "cp": 1, "ep": 1, "etp": 1}
    yield [
        view.t("cli.column.plan"),
        degrees_text({**ones, **degrees}) if degrees else nothing,
        plan_text(same["plan"]) if same else nothing if degrees else "-",
        plan_text(best["plan"]) if best else nothing,
    ]
    yield [
        view.t("cli.column.framework"),
        "-",
        same["plan"]["framework"] if same else "-",
        best["plan"]["framework"] if best else "-",
    ]
    for row in result["beside"]:
        values = (row["rule"], row["same"], row["best"])
        cells = ["-" if value is None else _amount(value, row["unit"]) for value in values]
        yield [view.t(f"cli.quick.{row['code']}"), *cells]


def _amount(value: float, unit: str) -> str:
    match unit:
        case "bytes":
            return format_memory(value)
        case "1":
            return percent(value)
        case "s":
            return format_duration(value)
    return f"{value:.3g}x"


def _why(differences: list[Json], view: View) -> Iterator[Block]:
    if differences:
        yield heading(view.t("cli.quick.why"))
        yield from bullets(
            (view.t(f"diff.{item['code']}", **item["numbers"]) for item in differences), view
        )


def _placement(rule: Json, view: View) -> Iterator[tuple[str, str]]:
    for placed in rule["placement"]:
        where = "across" if placed["crosses_nodes"] else "inside"
        yield (
            view.t(f"dimension.{placed['dimension']}"),
            view.t(
                f"cli.quick.{where}",
                frequency=view.t(f"frequency.{placed['frequency']}"),
                size=placed["size"],
            ),
        )
    yield (
        view.t("cli.quick.gradients"),
        view.t("cli.quick.gradient_bytes", gradient_bytes=rule["gradient_bytes"]),
    )
