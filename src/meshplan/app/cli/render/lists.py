"""The answer of ``list``: one table per kind of thing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from meshplan.app.cli.render.blocks import Block, View, paragraph, table
from meshplan.units import TERA, format_bandwidth, format_count, format_memory

__all__ = ["render_list"]

Json = Mapping[str, Any]

_WIDE = 110


def render_list(result: Json, view: View) -> Iterator[Block]:
    """List models, devices, clusters, rules or frameworks."""
    items: list[Json] = result["items"]
    kind = result["kind"]
    *listed, last = _KINDS[kind](items, view)
    # what is said of all of them stands below their number
    notes = [last] if kind in _NOTED else []
    yield from listed if notes else (*listed, last)
    # a rule stands once, whatever the number of frameworks that have it
    count = len({item["code"] for item in items}) if kind == "rules" else len(items)
    yield paragraph(view.t(f"cli.list.count.{kind}", count=count), view, style="dim")
    yield from notes


_NOTED = ("frameworks",)


def _columns(view: View, *names: tuple[str, str]) -> list[tuple[str, str]]:
    return [(view.t(f"cli.list.{name}"), justify) for name, justify in names]


def _models(items: Iterable[Json], view: View) -> Iterator[Block]:
    columns = _columns(
        view,
        ("name", "left"),
        ("total", "right"),
        ("active", "right"),
        ("layers", "right"),
        ("hidden", "right"),
        ("family", "left"),
    )
    rows = []
    for item in items:
        total, active = item["parameters"]["total"], item["parameters"]["active"]
        rows.append(
            (
                item["name"],
                format_count(total),
                format_count(active) if active < total else "",
                str(item["num_layers"]),
                str(item["hidden"]),
                item["family"],
            )
        )
    yield table(columns, rows, indent=0)


def _devices(items: Iterable[Json], view: View) -> Iterator[Block]:
    columns = _columns(
        view,
        ("name", "left"),
        ("vendor", "left"),
        ("memory", "right"),
        ("usable", "right"),
        ("bf16", "right"),
        ("fp8", "right"),
        ("bandwidth", "right"),
    )
    wide = view.width >= _WIDE
    if wide:
        columns += _columns(view, ("node", "left"), ("aliases", "left"))
    rows = []
    for item in items:
        peaks = item["peak_flop_per_s"]
        half = peaks.get("bf16") or peaks.get("fp16")
        cells = [
            item["name"],
            item["vendor"],
            format_memory(item["memory_bytes"]),
            format_memory(item["usable_bytes"]),
            f"{half / TERA:.4g}" if half else "",
            f"{peaks['fp8'] / TERA:.4g}" if "fp8" in peaks else "",
            format_bandwidth(item["memory_bandwidth_bytes_per_s"]),
        ]
        rows.append([*cells, item["node"], ", ".join(item["aliases"])] if wide else cells)
    last = len(columns) - 1 if wide else None
    yield table(columns, rows, indent=0, flexible=last, width=view.width)
    yield paragraph(view.t("cli.list.peaks"), view, style="dim")


def _clusters(items: Iterable[Json], view: View) -> Iterator[Block]:
    columns = _columns(
        view,
        ("name", "left"),
        ("device", "left"),
        ("gpus_per_node", "right"),
        ("domain", "right"),
        ("inside", "right"),
        ("network", "left"),
    )
    rows = []
    for item in items:
        nics, rate = item["nics_per_node"], item["nic_bytes_per_s"] * 8 / 1e9
        rows.append(
            (
                item["name"],
                item["device"],
                str(item["gpus_per_node"]),
                str(item["domain_gpus"]),
                _inside(item),
                f"{nics} x {rate:.4g} Gb/s {item['fabric']}" if nics else "",
            )
        )
    yield table(columns, rows, indent=0)
    yield paragraph(view.t("cli.list.shorthand"), view, style="dim")


def _inside(item: Json) -> str:
    """Links of one GPU inside its domain, or over its slot where there are no such links."""
    if item["domain_gpus"] > 1:
        return f"{format_bandwidth(item['domain_bytes_per_s'])} {item['domain_fabric']}"
    if item["gpus_per_node"] > 1:
        return f"{format_bandwidth(item['node_bytes_per_s'])} {item['node_fabric']}"
    return ""


def _rules(items: Iterable[Json], view: View) -> Iterator[Block]:
    """Each rule once, with the frameworks that enforce it."""
    frameworks: dict[str, list[str]] = {}
    for item in items:
        found = frameworks.setdefault(item["code"], [])
        found += [name for name in item["frameworks"] if name not in found]
    every = max(len(found) for found in frameworks.values())
    for code, found in frameworks.items():
        where = view.t("cli.list.every") if len(found) == every else ", ".join(found)
        yield paragraph(view.name("rule", code), view)
        yield paragraph(f"{code}: {where}", view, indent=4, style="dim")


def _frameworks(items: Sequence[Json], view: View) -> Iterator[Block]:
    columns = _columns(
        view, ("name", "left"), ("rules", "right"), ("versions", "left"), ("aliases", "left")
    )
    rows = [
        (
            item["name"],
            str(item["num_rules"]),
            ", ".join(item["versions"]),
            ", ".join(item["aliases"]),
        )
        for item in items
    ]
    yield table(columns, rows, indent=0, flexible=3, width=view.width)
    emitted = ", ".join(entry["version"] for item in items for entry in item["emitted"])
    yield paragraph(view.t("cli.list.emitted", versions=emitted), view, style="dim")


_KINDS: dict[str, Callable[[list[Json], View], Iterator[Block]]] = {
    "models": _models,
    "devices": _devices,
    "clusters": _clusters,
    "rules": _rules,
    "frameworks": _frameworks,
}
