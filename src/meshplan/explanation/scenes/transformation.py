"""Transformation: how tensors, layers and batches are cut, and how they are joined again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from meshplan.explanation.scenes.dealing import layers_to_stages
from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.matrices import matrices
from meshplan.explanation.scenes.memory import states
from meshplan.explanation.scenes.records import (
    Beat,
    Label,
    Mark,
    Paper,
    Scene,
    amount,
    beat,
    box,
    text,
)
from meshplan.explanation.scenes.rows import CUT_S, Rows, enlarged, later, row, widths
from meshplan.explanation.scenes.sharding import batch_to_replicas

__all__ = ["transformation"]


def transformation(facts: PlanFacts, mechanism: str, paper: Paper) -> Scene:
    """How things are cut and joined."""
    made: Mapping[str, Callable[[PlanFacts, Paper], Scene]] = {
        "panorama": _model_to_ranks,
        "data": batch_to_replicas,
        "tensor": matrices,
        "pipeline": layers_to_stages,
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
    beats: list[Beat],
    **numbers: object,
) -> Scene:
    play_s = len(beats) * CUT_S
    return Scene(
        mechanism=mechanism,
        mode="transformation",
        duration_s=play_s,
        stops=tuple(CUT_S * act for act in range(len(beats) + 1)),
        marks=tuple(marks),
        caption=Label(code=f"{mechanism}.transformation", numbers=numbers),
        facts=known,
        opens_s=play_s,
        paper=paper,
        beats=tuple(beats),
    )


def _model_to_ranks(facts: PlanFacts, paper: Paper) -> Scene:
    """The whole model, its stages, the slices of one, and the copies of it all."""
    p = facts.plan
    layers = facts.scenario.model.num_layers
    cuts = [("stages", "pp", p.pp), ("slices", "tp", p.tp), ("chunks", "cp", p.cp)]
    cuts = [cut for cut in cuts if cut[1] != "cp" or p.cp > 1]
    pitch = min((paper.height - 70.0) / (len(cuts) + 2), 110.0)
    rows = Rows(paper=paper, pitch=pitch)
    left, width = rows.left, rows.width
    marks = [
        rows.name(0, "rows.model"),
        box(left, rows.y(0), width, 52, tone="accent", literal=f"L0 – L{layers - 1}"),
    ]
    numbers = {"num_layers": layers, "pp": p.pp, "tp": p.tp, "dp": p.dp, "cp": p.cp}
    beats = [beat(0.0, "model.whole", **numbers)]
    for act, (name, axis, count) in enumerate(cuts, start=1):
        marks.append(rows.name(act, f"rows.{name}"))
        y, names = rows.y(act), axis.upper()
        tone = {"tp": "t0", "cp": "t3"}.get(axis, "")
        marks += row(y, count, left=left, width=width, names=names, act=act, group=axis, tone=tone)
        if axis == "tp":
            marks += enlarged(rows, act, wide=widths(p.pp, width)[1], act=act)
        code = f"model.{axis}" if count > 1 else f"model.{axis}.one"
        beats.append(beat(act * CUT_S, code, **numbers))
    act = len(beats)
    marks.append(rows.name(act, "rows.copies"))
    marks += _copies(facts, rows, act)
    beats.append(beat(act * CUT_S, "model.dp" if p.dp > 1 else "model.dp.one", **numbers))
    known: dict[str, float | str] = {"tp": p.tp, "pp": p.pp, "dp": p.dp, "cp": p.cp}
    return _scene("panorama", marks, known, paper, beats, **numbers)


def _copies(facts: PlanFacts, rows: Rows, act: int) -> list[Mark]:
    """Replicas side by side, each with the stages of the model."""
    p = facts.plan
    shown, each = widths(p.dp, rows.width)
    stages = min(p.pp, 8)
    marks = []
    for i in range(shown):
        x, y, span = rows.left + i * (each + 5.0), rows.y(act), later(act)
        marks += [
            box(x + s * each / stages, y, each / stages, 30, tone=f"t{s}", span=span, group="dp")
            for s in range(stages)
        ]
        number = i if i < shown - 1 or shown == p.dp else p.dp - 1
        literal = "…" if shown < p.dp and i == shown - 2 else f"DP{number}"
        marks.append(
            text(x + each / 2, y + 48, literal=literal, tone="soft", anchor="middle", span=span)
        )
    return marks


def _product(facts: PlanFacts, paper: Paper) -> Scene:
    """The degrees multiply to the number of GPUs."""
    p = facts.plan
    degrees = [("TP", p.tp), ("CP", p.cp), ("DP", p.dp), ("PP", p.pp)]
    marks: list[Mark] = []
    beats: list[Beat] = []
    product, rows = 1, Rows(paper=paper, top=30.0, pitch=108.0)
    width = paper.width - (90.0 if paper.narrow else 360.0)
    for act, (name, degree) in enumerate(degrees):
        product *= degree
        y, group = rows.y(act), name.lower()
        marks.append(rows.name(act, literal=f"{name} = {degree}"))
        marks += row(y, degree, left=rows.left, width=width, names=name, act=act, group=group)
        told: dict[str, Any] = {"num_gpus": product, "span": later(act)}
        marks.append(text(paper.width, y + 32, "so_far", anchor="end", **told))
        code = f"product.{group}" if degree > 1 else "product.one"
        beats.append(beat(act * CUT_S, code, degree=degree, axis=name, num_gpus=product))
    total = facts.scenario.cluster.num_gpus
    marks.append(
        text(
            0,
            paper.height - 22,
            literal=" × ".join(str(d) for _, d in degrees) + f" = {total}",
            tone="strong",
            span=later(3),
        )
    )
    known: dict[str, float | str] = {name.lower(): degree for name, degree in degrees}
    known |= {"product": product, "num_gpus": total}
    numbers = {"tp": p.tp, "cp": p.cp, "dp": p.dp, "pp": p.pp, "num_gpus": total}
    return _scene("combination", marks, known, paper, beats, **numbers)


def _sequence(facts: PlanFacts, paper: Paper) -> Scene:
    """A sequence in chunks, the slices of one, and the message that follows from a slice."""
    p, job = facts.plan, facts.scenario.job
    tokens = job.seq_len // p.cp
    slices = p.tp if p.sp else 1
    rows = Rows(paper=paper)
    left, width = rows.left, rows.width
    at: dict[str, Any] = {"left": left, "width": width}
    sent = facts.send_bytes
    chunk, slice_wide = widths(p.cp, width)[1], widths(slices, width)[1]
    wide = max(110.0 if paper.narrow else 180.0, min(slice_wide, width / 2))
    room = width - wide - 20
    told: dict[str, Any] = {"sent_bytes": sent, "tokens": tokens // slices}
    marks = [
        rows.name(0, "rows.sequence"),
        box(left, rows.y(0), width, 52, tone="accent", literal=f"{job.seq_len:,}"),
        rows.name(1, "rows.chunks"),
        *row(rows.y(1), p.cp, **at, names="CP", act=1, group="cp"),
        rows.name(2, "rows.sp"),
        *row(rows.y(2), slices, **at, names="TP", tone="t0", act=2, group="sp"),
        *enlarged(rows, 2, wide=chunk, act=2),
        rows.name(3, "rows.message"),
    ]
    y = rows.y(3)
    numbers = {"seq_len": job.seq_len, "cp": p.cp, "chunk": tokens, "slices": slices}
    if p.pp > 1:
        marks.append(box(left, y, wide, 52, tone="t0", literal=amount(sent), span=later(3)))
        where: dict[str, Any] = {"room": room, "span": later(3)}
        marks.append(text(left + wide + 20, y + 32, "message_bytes", **where, **told))
    else:
        marks.append(text(left, y + 32, "no_pipeline", tone="soft", room=width))
    beats = [
        beat(0.0, "sequence.whole", **numbers),
        beat(CUT_S, "sequence.cp" if p.cp > 1 else "sequence.cp.one", **numbers),
        beat(2 * CUT_S, "sequence.sp" if slices > 1 else "sequence.sp.one", **numbers),
        beat(3 * CUT_S, "sequence.send" if p.pp > 1 else "sequence.send.one", **told),
    ]
    known: dict[str, float | str] = {
        "seq_len": job.seq_len,
        "cp": p.cp,
        "tokens_each": job.seq_len / p.cp,
        "send_bytes": sent,
    }
    scene = _scene("links", marks, known, paper, beats, **numbers, sent_bytes=sent)
    shape = ("" if p.cp > 1 else ".whole") + ("" if p.pp > 1 else ".none")
    return replace(scene, caption=replace(scene.caption, code=f"links.transformation{shape}"))
