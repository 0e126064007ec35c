"""The answer of ``inspect``: the blocks of a model and its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from meshplan.app.cli.render.blocks import Block, View, bar, bullets, facts, heading, table
from meshplan.app.names import percent
from meshplan.app.sentences import source_text
from meshplan.units import format_count

__all__ = ["render_inspect"]

Json = Mapping[str, Any]

_PARTS = (
    "embedding",
    "positions",
    "attention",
    "mlp",
    "experts",
    "shared_experts",
    "router",
    "norms",
    "head",
    "other",
)
_APART = ("mtp", "outside")
_MOST_RUNS, _MOST_PLACES = 6, 4
_NOT_BARS = 62


def render_inspect(result: Json, view: View) -> Iterator[Block]:
    """Describe a model."""
    model, count = result["model"], result["parameters"]
    yield Text(model["name"], style="bold")
    sentence = "cli.model.sparse" if count["active"] < count["total"] else "cli.model.dense"
    yield Text(view.t(sentence, total=count["total"], active=count["active"]))
    yield heading(view.t("cli.model.architecture"))
    yield facts(_facts(model, view), view)
    yield heading(view.t("cli.model.layers"))
    yield from _layers(result["layers"], view)
    if result["mtp_layers"]:
        yield heading(view.t("cli.model.mtp_layers"))
        yield from _layers(result["mtp_layers"], view)
    yield heading(view.t("cli.model.parameters"))
    yield _parameters(count, view)
    notes = [view.say("note", note["code"], {"value": note["value"]}) for note in result["notes"]]
    if notes:
        yield heading(view.t("cli.title.notes"))
        yield from bullets(notes, view)


def _facts(model: Json, view: View) -> Iterator[tuple[str, str]]:
    shown = ("family", "num_layers", "hidden", "vocab", "norm", "max_seq_len")
    for key in shown:
        if model[key]:
            yield view.t(f"cli.model.{key}"), str(model[key])
    tied = "yes" if model["tied_embeddings"] else "no"
    yield view.t("cli.model.tied"), view.t(f"cli.{tied}")
    if model["embedding_dim"] != model["hidden"]:
        yield view.t("cli.model.embedding_dim"), str(model["embedding_dim"])
    if model["num_positions"]:
        yield view.t("cli.model.num_positions"), str(model["num_positions"])
    if model["source"]:
        yield view.t("cli.model.source"), source_text(model["source"], view.lang)


def _layers(runs: list[Json], view: View) -> Iterator[Block]:
    """Runs of equal blocks; where kinds alternate, each kind once with the blocks it makes up."""
    rows = [(_place(run), run["count"], _made_of(run, view)) for run in runs]
    if len(runs) > _MOST_RUNS:
        kinds: dict[str, list[tuple[str, int, str]]] = {}
        for row in rows:
            kinds.setdefault(row[2], []).append(row)
        rows = [
            (_shortened([place for place, _, _ in found]), sum(n for _, n, _ in found), text)
            for text, found in kinds.items()
        ]
    yield table(
        [("", "left"), ("", "right"), ("", "left")],
        [(place, f"{count} x", text) for place, count, text in rows],
        flexible=2,
        width=view.width,
    )


def _place(run: Json) -> str:
    last = run["first"] + run["count"] - 1
    return str(run["first"]) if run["count"] == 1 else f"{run['first']}-{last}"


def _shortened(places: list[str]) -> str:
    if len(places) <= _MOST_PLACES:
        return ", ".join(places)
    return ", ".join([*places[: _MOST_PLACES - 1], "...", places[-1]])


def _made_of(run: Json, view: View) -> str:
    parts = [run["mixer"], run.get("second_mixer"), run["ffn"]]
    return view.t("cli.model.plus").join(_part(part, view) for part in parts if part) or "-"


def _part(part: Json, view: View) -> str:
    """One mixer or feed-forward network, with the numbers that people know it by."""
    kind = part["kind"]
    numbers = {key: value for key, value in part.items() if key != "kind"}
    if kind == "Attention":
        heads, kv = numbers["num_heads"], numbers["num_kv_heads"]
        code = "multi_head" if kv == heads else "multi_query" if kv == 1 else "grouped"
        numbers["sharing"] = view.t(f"cli.block.{code}")
    text = view.t(f"cli.block.{kind}", **numbers)
    if numbers.get("window_size"):
        text += view.t("cli.block.window", window_size=numbers["window_size"])
    if numbers.get("gated") is not None and kind in ("Mlp", "Moe"):
        text += view.t("cli.block.gated" if numbers["gated"] else "cli.block.plain")
    if numbers.get("shared_ffn_hidden"):
        text += view.t("cli.block.shared", shared_ffn_hidden=numbers["shared_ffn_hidden"])
    return text


def _parameters(count: Json, view: View) -> Block:
    """Parts with their share, then the sums."""
    width = max(10, min(40, view.width - _NOT_BARS))
    rows: list[tuple[str | Text, ...]] = []
    for part in _PARTS:
        if count[part]:
            share = count[part] / count["total"]
            rows.append(
                (
                    view.t(f"cli.params.{part}"),
                    f"{count[part]:,}",
                    bar(share, width=width, style="blue"),
                    Text(percent(share), style="dim"),
                )
            )
    total = Text(view.t("cli.params.total"), style="bold")
    rows.append((total, f"{count['total']:,}", Text(format_count(count["total"]), "bold"), ""))
    if count["active"] < count["total"]:
        active = format_count(count["active"])
        rows.append((view.t("cli.params.active"), f"{count['active']:,}", active, ""))
    for part in _APART:
        if count[part]:
            apart = Text(view.t("cli.params.apart"), style="dim")
            rows.append((view.t(f"cli.params.{part}"), f"{count[part]:,}", apart, ""))
    return table([("", "left"), ("", "right"), ("", "left"), ("", "right")], rows)
