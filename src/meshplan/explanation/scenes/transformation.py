"""Transformation: how tensors, layers and batches are cut, and how they are joined again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.matrices import matrices
from meshplan.explanation.scenes.memory import states, term_bytes
from meshplan.explanation.scenes.records import Label, Mark, Paper, Scene, box, text
from meshplan.space.names import to_text
from meshplan.units import format_memory

__all__ = ["transformation"]

_CUT_S, _PLAY_S = 2.0, 8.0
_MOST = 16


def transformation(facts: PlanFacts, mechanism: str, paper: Paper) -> Scene:
    """How things are cut and joined."""
    made: Mapping[str, Callable[[PlanFacts, Paper], Scene]] = {
        "panorama": _model_to_ranks,
        "data": _batch,
        "tensor": matrices,
        "pipeline": _layers,
        "combination": _product,
        "scale": states,
        "links": _sequence,
    }
    return made[mechanism](facts, paper)


def _scene(
    mechanism: str,
    marks: list[Mark],
    known: dict[str, float | str],
    paper: Paper,
    **numbers: object,
) -> Scene:
    return Scene(
        mechanism=mechanism,
        mode="transformation",
        duration_s=_PLAY_S,
        stops=(0.0, _CUT_S, 2 * _CUT_S, 3 * _CUT_S, _PLAY_S),
        marks=tuple(marks),
        caption=Label(code=f"{mechanism}.transformation", numbers=numbers),
        facts=known,
        opens_s=_PLAY_S,
        paper=paper,
    )


def _later(stage: int) -> tuple[float, float]:
    """From the given act of the play to its end, and beyond."""
    return stage * _CUT_S, 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Rows with a name each: beside them, or above them where the paper is narrow."""

    paper: Paper
    top: float = 50.0
    pitch: float = 110.0

    @property
    def left(self) -> float:
        return 0.0 if self.paper.narrow else 150.0

    @property
    def width(self) -> float:
        return self.paper.width - self.left

    def y(self, row: int) -> float:
        """Upper edge of the boxes of a row."""
        return self.top + row * self.pitch + (8.0 if self.paper.narrow else 0.0)

    def name(self, row: int, code: str = "", *, literal: str = "") -> Mark:
        """The name of a row."""
        y = self.y(row) + (-10.0 if self.paper.narrow else 32.0)
        return text(0, y, code, literal=literal, tone="strong")


def _row(
    y: float,
    count: int,
    *,
    left: float,
    width: float,
    height: float = 52.0,
    names: str = "",
    tone: str = "",
    act: int = 0,
    num_bytes: float | None = None,
    group: str = "",
) -> list[Mark]:
    """Equal boxes side by side; beyond a limit the rest shows as dots."""
    shown = min(count, _MOST, int(width // 42))
    gap = 5.0
    each = (width - gap * (shown - 1)) / shown
    marks = []
    for i in range(shown):
        number = i if i < shown - 1 or shown == count else count - 1
        dots = shown < count and i == shown - 2
        literal = "…" if dots else f"{names}{number}"
        marks.append(
            box(
                left + i * (each + gap),
                y,
                each,
                height,
                tone=tone or f"t{i * 8 // shown if shown > 8 else i}",
                literal=literal if each > 22 else "",
                span=_later(act),
                num_bytes=num_bytes,
                group=group,
            )
        )
    return marks


def _model_to_ranks(facts: PlanFacts, paper: Paper) -> Scene:
    """The whole model, its stages, their slices, and the copies of it all."""
    p = facts.plan
    layers = facts.scenario.model.num_layers
    rows = _Rows(paper=paper)
    left, width = rows.left, rows.width
    marks = [
        rows.name(0, "rows.model"),
        box(left, rows.y(0), width, 52, tone="accent", literal=f"L0 – L{layers - 1}"),
    ]
    cuts = (("rows.stages", "pp", p.pp), ("rows.slices", "tp", p.tp), ("rows.copies", "dp", p.dp))
    for act, (code, axis, count) in enumerate(cuts, start=1):
        marks.append(rows.name(act, code))
        y, names = rows.y(act), axis.upper()
        marks += _row(y, count, left=left, width=width, names=names, act=act, group=axis)
    known: dict[str, float | str] = {"tp": p.tp, "pp": p.pp, "dp": p.dp, "cp": p.cp}
    numbers = {"num_layers": layers, "pp": p.pp, "tp": p.tp, "dp": p.dp, "cp": p.cp}
    return _scene("panorama", marks, known, paper, **numbers)


def _batch(facts: PlanFacts, paper: Paper) -> Scene:
    """Batch to replicas, replicas to micro-batches, and optimizer state to shards."""
    p, job = facts.plan, facts.scenario.job
    shards = facts.group("dp_shard_cp")[0] if p.zero else 1
    state = term_bytes(facts.stages[0], "optimizer")
    rows = _Rows(paper=paper, top=40.0)
    left, width = rows.left, rows.width
    at: dict[str, Any] = {"left": left, "width": width}
    many = p.num_micro_batches
    told: dict[str, Any] = {"shards": shards, "state_bytes": state, "zero": p.zero}
    marks = [
        rows.name(0, "rows.batch"),
        box(left, rows.y(0), width, 52, tone="accent", literal=str(job.global_batch)),
        rows.name(1, "rows.replicas"),
        *_row(rows.y(1), p.dp, **at, names="DP", act=1, group="dp"),
        rows.name(2, "rows.micro_batches"),
        *_row(rows.y(2), many, **at, names="m", tone="t2", act=2, group="micro_batch"),
        rows.name(3, "rows.states"),
        *_row(rows.y(3), shards, **at, act=3, num_bytes=state, group="optimizer", height=64),
        text(left, rows.y(3) + 92, "shard_bytes", room=width, **told),
    ]
    known: dict[str, float | str] = {
        "dp": p.dp,
        "micro_batches": p.num_micro_batches,
        "sequences": p.dp * p.num_micro_batches * p.micro_batch,
        "optimizer_bytes": state,
        "shards": shards,
    }
    return _scene(
        "data",
        marks,
        known,
        paper,
        global_batch=job.global_batch,
        dp=p.dp,
        num_micro_batches=p.num_micro_batches,
        micro_batch=p.micro_batch,
        shards=shards,
        state_bytes=state,
        zero=p.zero,
    )


def _layers(facts: PlanFacts, paper: Paper) -> Scene:
    """Layers to stages, as they are really dealt."""
    p = facts.plan
    layers = facts.scenario.model.num_layers
    left = 0.0 if paper.narrow else 20.0
    width = paper.width - 2 * left
    each = width / layers
    marks: list[Mark] = [text(left, 40, "rows.layers", tone="strong")]
    for i in range(layers):
        marks.append(box(left + i * each, 56, each * 0.86, 46, tone="accent"))
    marks.append(text(left, 170, "rows.stages", tone="strong"))
    shown = min(p.pp, int(width // 42), 16)
    pitch = width / shown
    known: dict[str, float | str] = {"num_layers": layers, "pp": p.pp, "vpp": p.vpp}
    for stage, chunks in enumerate(facts.layout.chunks):
        known[f"stage_{stage}_layers"] = sum(chunk.num_layers for chunk in chunks)
        if stage >= shown:
            continue
        x = left + stage * pitch
        marks.append(box(x, 190, pitch - 6, 220, tone="frame"))
        marks.append(text(x + (pitch - 6) / 2, 212, literal=f"PP{stage}", anchor="middle"))
        # a chunk is drawn as tall as its share of all layers, so that stages compare
        room = 176 / max(
            sum(c.num_layers for row in [cs] for c in row) for cs in facts.layout.chunks
        )
        top = 224.0
        for number, chunk in enumerate(chunks):
            tall = chunk.num_layers * room
            literal = f"{chunk.num_layers}" if tall > 14 else ""
            title = Label(
                code="title.chunk",
                numbers={"first": chunk.first_layer, "count": chunk.num_layers},
            )
            marks.append(
                box(
                    x + 8,
                    top,
                    pitch - 22,
                    max(tall - 2, 0),
                    tone=f"t{(number + stage) % 8}",
                    literal=literal,
                    title=title,
                    span=_later(1),
                    group=f"stage{stage}",
                )
            )
            top += tall
    ends = "stage_ends" if p.pp > 1 else "no_pipeline"
    marks.append(text(left, 446, ends, tone="soft", span=_later(2), room=width))
    if shown < p.pp:
        numbers: dict[str, Any] = {"shown": shown, "count": p.pp}
        marks.append(text(paper.width - left, 170, "some_of", tone="soft", anchor="end", **numbers))
    return _scene(
        "pipeline",
        marks,
        known,
        paper,
        num_layers=layers,
        pp=p.pp,
        vpp=p.vpp,
        schedule=to_text(p.schedule),
    )


def _product(facts: PlanFacts, paper: Paper) -> Scene:
    """The degrees multiply to the number of GPUs."""
    p = facts.plan
    degrees = [("TP", p.tp), ("CP", p.cp), ("DP", p.dp), ("PP", p.pp)]
    marks: list[Mark] = []
    product, rows = 1, _Rows(paper=paper, top=30.0, pitch=108.0)
    width = paper.width - (90.0 if paper.narrow else 360.0)
    for act, (name, degree) in enumerate(degrees):
        product *= degree
        y, group = rows.y(act), name.lower()
        marks.append(rows.name(act, literal=f"{name} = {degree}"))
        marks += _row(y, degree, left=rows.left, width=width, names=name, act=act, group=group)
        marks.append(text(paper.width, y + 32, "so_far", anchor="end", num_gpus=product))
    total = facts.scenario.cluster.num_gpus
    marks.append(
        text(
            0,
            paper.height - 22,
            literal=" × ".join(str(d) for _, d in degrees) + f" = {total}",
            tone="strong",
            span=_later(3),
        )
    )
    known: dict[str, float | str] = {name.lower(): degree for name, degree in degrees}
    known |= {"product": product, "num_gpus": total}
    numbers = {"tp": p.tp, "cp": p.cp, "dp": p.dp, "pp": p.pp, "num_gpus": total}
    return _scene("combination", marks, known, paper, **numbers)


def _sequence(facts: PlanFacts, paper: Paper) -> Scene:
    """A sequence in chunks, the messages that follow from it, and the levels they cross."""
    p, job = facts.plan, facts.scenario.job
    tokens = job.seq_len // p.cp
    slices = p.tp if p.sp else 1
    rows = _Rows(paper=paper)
    left, width = rows.left, rows.width
    at: dict[str, Any] = {"left": left, "width": width}
    sent = facts.send_bytes
    wide = 110.0 if paper.narrow else 180.0
    room = width - wide - 20
    told: dict[str, Any] = {"sent_bytes": sent, "tokens": tokens // slices}
    marks = [
        rows.name(0, "rows.sequence"),
        box(left, rows.y(0), width, 52, tone="accent", literal=f"{job.seq_len:,}"),
        rows.name(1, "rows.chunks"),
        *_row(rows.y(1), p.cp, **at, names="CP", act=1, group="cp"),
        rows.name(2, "rows.sp"),
        *_row(rows.y(2), slices, **at, names="TP", act=2, group="sp"),
        rows.name(3, "rows.message"),
    ]
    y = rows.y(3)
    if p.pp > 1:
        marks.append(box(left, y, wide, 52, tone="t4", literal=format_memory(sent), span=_later(3)))
        marks.append(text(left + wide + 20, y + 32, "message_bytes", room=room, **told))
    else:
        marks.append(text(left, y + 32, "no_pipeline", tone="soft", room=width))
    known: dict[str, float | str] = {
        "seq_len": job.seq_len,
        "cp": p.cp,
        "tokens_each": job.seq_len / p.cp,
        "send_bytes": facts.send_bytes,
    }
    return _scene(
        "links",
        marks,
        known,
        paper,
        seq_len=job.seq_len,
        cp=p.cp,
        chunk=tokens,
        slices=slices,
        sent_bytes=facts.send_bytes,
    )
