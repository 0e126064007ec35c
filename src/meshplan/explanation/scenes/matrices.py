"""A pair of matrix products over a tensor-parallel group: columns, rows, and their sum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.records import Beat, Label, Mark, Paper, Scene, beat, box, text
from meshplan.inputs.model import Attention, LatentAttention, Moe
from meshplan.record import record

__all__ = ["matrices"]

_CUT_S = 2.0


@record
class _Product:
    """Where the matrices of a product stand, each as left, top, width and height."""

    entry: tuple[float, float, float, float]
    first: tuple[float, float, float, float]
    second: tuple[float, float, float, float]
    total: tuple[float, float, float, float]
    signs: tuple[tuple[float, float, str], ...]
    notes: float


_WIDE_PRODUCT = _Product(
    entry=(20.0, 130.0, 120.0, 200.0),
    first=(220.0, 130.0, 260.0, 200.0),
    second=(560.0, 130.0, 200.0, 260.0),
    total=(830.0, 130.0, 120.0, 200.0),
    signs=((168.0, 242.0, "×"), (508.0, 242.0, "×"), (786.0, 242.0, "=")),
    notes=450.0,
)
_NARROW_PRODUCT = _Product(
    entry=(0.0, 62.0, 90.0, 130.0),
    first=(128.0, 62.0, 252.0, 130.0),
    second=(28.0, 268.0, 160.0, 150.0),
    total=(236.0, 268.0, 100.0, 130.0),
    signs=((103.0, 132.0, "×"), (4.0, 348.0, "×"), (204.0, 348.0, "=")),
    notes=452.0,
)


def matrices(facts: PlanFacts, paper: Paper) -> Scene:
    """Columns of the first matrix, rows of the second, and the sum that follows."""
    tp, hidden = facts.plan.tp, facts.scenario.model.hidden
    inner = _inner_width(facts)
    tokens = facts.plan.micro_batch * facts.scenario.job.seq_len // facts.plan.cp
    at = _NARROW_PRODUCT if paper.narrow else _WIDE_PRODUCT
    headings = (
        (at.entry, text(0, 0, literal="X", tone="strong"), (tokens, hidden)),
        (at.first, text(0, 0, "matrix.columns", tone="strong"), (hidden, inner)),
        (at.second, text(0, 0, "matrix.rows", tone="strong"), (inner, hidden)),
        (at.total, text(0, 0, "matrix.sum", tone="strong"), (tokens, hidden)),
    )
    marks: list[Mark] = []
    for (x, y, _, _), heading, (down, across) in headings:
        marks.append(replace(heading, x=x, y=y - 40))
        marks.append(text(x, y - 18, literal=f"{down:,} × {across:,}", tone="soft"))
    marks.append(box(*at.entry, tone="accent"))
    marks += _split(min(tp, 8), at)
    marks += _sum(min(tp, 8), at, scattered=facts.plan.sp)
    for x, y, sign in at.signs:
        marks.append(text(x, y, literal=sign, tone="strong"))
    tp_bytes = float(facts.block.tp_forward.num_bytes[0])
    left, room = at.entry[0], paper.width - 2 * at.entry[0]
    notes = at.notes
    if tp > 1:
        marks.append(text(left, notes, "matrix.note", tp=tp, columns=inner // tp, room=room))
        notes += 46 if paper.narrow else 28
        marks.append(text(left, notes, "matrix.traffic", sent_bytes=tp_bytes, room=room))
    known: dict[str, float | str] = {
        "tp": tp,
        "hidden": hidden,
        "inner": inner,
        "columns_each": inner / tp,
        "tp_forward_bytes": tp_bytes,
    }
    numbers = {"tp": tp, "hidden": hidden, "inner": inner, "sent_bytes": tp_bytes}
    return Scene(
        mechanism="tensor",
        mode="transformation",
        duration_s=4 * _CUT_S,
        stops=tuple(_CUT_S * i for i in range(5)),
        marks=tuple(marks),
        caption=Label(
            code="tensor.transformation" if tp > 1 else "tensor.transformation.none",
            numbers=numbers,
        ),
        facts=known,
        opens_s=4 * _CUT_S,
        paper=paper,
        beats=_beats(facts, inner),
    )


def _beats(facts: PlanFacts, inner: int) -> tuple[Beat, ...]:
    tp = facts.plan.tp
    numbers: dict[str, Any] = {"tp": tp, "columns": inner // tp, "last": tp - 1}
    if tp == 1:
        return (beat(0.0, "matrix.whole"), beat(_CUT_S, "matrix.alone"))
    joined = "matrix.scattered" if facts.plan.sp else "matrix.reduced"
    return (
        beat(0.0, "matrix.whole"),
        beat(_CUT_S, "matrix.cut", **numbers),
        beat(2 * _CUT_S, "matrix.partial", **numbers),
        beat(3 * _CUT_S, joined, **numbers),
    )


def _split(shown: int, at: _Product) -> list[Mark]:
    """Columns, rows and partial results of each device."""
    marks: list[Mark] = []
    gap = 6.0
    x_first, y_first, wide, high = at.first
    x_second, y_second, across, tall = at.second
    x_total, y_total, total_wide, total_high = at.total
    column = (wide - gap * (shown - 1)) / shown
    row = (tall - gap * (shown - 1)) / shown
    early, shift = (0.0, _CUT_S), min(7.0, 50.0 / shown)
    for i in range(shown):
        tone, name = f"t{i}", f"TP{i}"
        part = wide / shown
        marks.append(box(x_first + i * part, y_first, part, high, tone="accent", span=early))
        x, literal = x_first + i * (column + gap), name if column > 26 else ""
        lasting = (_CUT_S, 1e9)
        marks.append(
            box(x, y_first, column, high, tone=tone, literal=literal, span=lasting, group="columns")
        )
        part = tall / shown
        marks.append(box(x_second, y_second + i * part, across, part, tone="accent", span=early))
        y, literal = y_second + i * (row + gap), name if row > 12 else ""
        marks.append(
            box(x_second, y, across, row, tone=tone, literal=literal, span=lasting, group="rows")
        )
        x, y = x_total + i * shift, y_total + i * shift
        partial = (2 * _CUT_S, 3 * _CUT_S)
        size = (total_wide - 10, total_high)
        marks.append(box(x, y, *size, tone=tone, span=partial, group="partial"))
    return marks


def _sum(shown: int, at: _Product, *, scattered: bool) -> list[Mark]:
    """The output: whole on every device, or the tokens that each keeps of it."""
    lasting = (3 * _CUT_S, 1e9)
    if not scattered or shown == 1:
        return [box(*at.total, tone="accent", span=lasting, group="sum")]
    x, y, wide, high = at.total
    gap = 3.0
    row = (high - gap * (shown - 1)) / shown
    return [
        box(
            x,
            y + i * (row + gap),
            wide,
            row,
            tone=f"t{i}",
            literal=f"TP{i}" if row > 12 else "",
            span=lasting,
            group="sum",
        )
        for i in range(shown)
    ]


def _inner_width(facts: PlanFacts) -> int:
    """Columns of the first matrix of a pair that the tensor-parallel group cuts.

    Routed experts are cut by a group of their own, so a block of experts shows its shared expert,
    or else the values and the output projection of its attention.
    """
    ffn = facts.layer.ffn
    if ffn is not None and not isinstance(ffn, Moe):
        return ffn.ffn_hidden
    if ffn is not None and ffn.shared_ffn_hidden:
        return ffn.shared_ffn_hidden
    for mixer in facts.layer.mixers:
        if isinstance(mixer, Attention | LatentAttention):
            return mixer.num_heads * mixer.v_head_dim
    return facts.scenario.model.hidden
