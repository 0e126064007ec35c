"""Layers dealt to pipeline stages, virtual stage after virtual stage."""

from __future__ import annotations

from typing import Any

from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.records import Beat, Label, Mark, Paper, Scene, beat, box, text
from meshplan.explanation.scenes.rows import CUT_S
from meshplan.space.names import to_text

__all__ = ["layers_to_stages"]

_ACTS = 4
_TOP, _ROOM = 224.0, 176.0


def layers_to_stages(facts: PlanFacts, paper: Paper) -> Scene:
    """Layers to stages, as they are really dealt."""
    p = facts.plan
    layers = facts.scenario.model.num_layers
    left = 0.0 if paper.narrow else 20.0
    width = paper.width - 2 * left
    each = width / layers
    marks: list[Mark] = [text(left, 40, "rows.layers", tone="strong")]
    for i in range(layers):
        marks.append(box(left + i * each, 56, each * 0.86, 46, tone="accent"))
    marks.append(text(left, 140, "rows.stages", tone="strong"))
    shown = min(p.pp, int(width // 42), 16)
    pitch = width / shown
    known: dict[str, float | str] = {"num_layers": layers, "pp": p.pp, "vpp": p.vpp}
    most = max(sum(chunk.num_layers for chunk in chunks) for chunks in facts.layout.chunks)
    for stage, chunks in enumerate(facts.layout.chunks):
        known[f"stage_{stage}_layers"] = sum(chunk.num_layers for chunk in chunks)
        for chunk in chunks:
            span = (_dealt_at(chunk.virtual_stage, p.pp * p.vpp), 1e9)
            first, tone = chunk.first_layer, f"t{stage % 8}"
            marks += [
                box(left + i * each, 56, each * 0.86, 46, tone=tone, span=span)
                for i in range(first, first + chunk.num_layers)
            ]
        if stage >= shown:
            continue
        x = left + stage * pitch
        marks.append(box(x, 160, pitch - 6, 220, tone="frame"))
        marks.append(text(x + (pitch - 6) / 2, 182, literal=f"PP{stage}", anchor="middle"))
        marks += _stack(facts, stage, x=x + 8, wide=pitch - 22, scale=_ROOM / max(most, 1))
    if shown < p.pp:
        numbers: dict[str, Any] = {"shown": shown, "count": p.pp}
        marks.append(text(paper.width - left, 140, "some_of", tone="soft", anchor="end", **numbers))
    return Scene(
        mechanism="pipeline",
        mode="transformation",
        duration_s=_ACTS * CUT_S,
        stops=tuple(CUT_S * act for act in range(_ACTS + 1)),
        marks=tuple(marks),
        caption=Label(
            code="pipeline.transformation",
            numbers={
                "num_layers": layers,
                "pp": p.pp,
                "vpp": p.vpp,
                "schedule": to_text(p.schedule),
            },
        ),
        facts=known,
        opens_s=_ACTS * CUT_S,
        paper=paper,
        beats=_beats(facts),
    )


def _dealt_at(virtual_stage: int, count: int) -> float:
    """When a virtual stage gets its layers: all of them during two acts [s]."""
    return CUT_S * (1 + 2 * virtual_stage / count)


def _stack(facts: PlanFacts, stage: int, *, x: float, wide: float, scale: float) -> list[Mark]:
    """The chunks of a stage, as tall as their layers, so that stages compare."""
    p, top = facts.plan, _TOP - 30.0
    marks = []
    for chunk in facts.layout.chunks[stage]:
        tall = chunk.num_layers * scale
        last = chunk.first_layer + chunk.num_layers - 1
        name = f"L{chunk.first_layer}–{last}" if wide > 62 else f"{chunk.num_layers}"
        marks.append(
            box(
                x,
                top,
                wide,
                max(tall - 2, 0),
                tone=f"t{stage % 8}",
                literal=name if tall > 14 else "",
                title=Label(
                    code="title.chunk",
                    numbers={"first": chunk.first_layer, "count": chunk.num_layers},
                ),
                span=(_dealt_at(chunk.virtual_stage, p.pp * p.vpp), 1e9),
                group=f"stage{stage}",
            )
        )
        top += tall
    return marks


def _beats(facts: PlanFacts) -> tuple[Beat, ...]:
    p = facts.plan
    numbers: dict[str, Any] = {
        "num_layers": facts.scenario.model.num_layers,
        "pp": p.pp,
        "vpp": p.vpp,
        "last": p.pp - 1,
    }
    if p.pp == 1:
        return (beat(0.0, "layers.whole", **numbers), beat(CUT_S, "layers.one", **numbers))
    dealt = "layers.dealt" if p.vpp == 1 else "layers.dealt.chunks"
    return (
        beat(0.0, "layers.whole", **numbers),
        beat(CUT_S, dealt, **numbers),
        beat(3 * CUT_S, "layers.ends", **numbers),
    )
