"""Memory of each stage, kind by kind, against what the device can use."""

from __future__ import annotations

from dataclasses import replace

from meshplan.cost.memory import StageMemory, stage_memory
from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.records import Label, Mark, Paper, Scene, beat, box, text
from meshplan.space.plan import Recompute
from meshplan.space.rules import check_plan
from meshplan.units import format_memory

__all__ = ["STATE_TONES", "states", "term_bytes"]

_ACT_S = 2.0
_OTHERWISE = 4
"""The act that shows what the plan would need with recompute, or without it."""

_MOST_STAGES, _MOST_SEEN = 12, 1.6
_STATES = ("weights", "gradients", "optimizer")
_KINDS = {
    "weights": ("weights", "weight_copies", "gathered", "loading"),
    "gradients": (
        *("gradients", "autograd_gradients", "replica_buckets", "placeholders", "reduced"),
        *("step_gradients", "head_gradient", "embedding_gradient"),
    ),
    "optimizer": ("optimizer", "optimizer_temporaries"),
}
STATE_TONES = {"weights": "t0", "gradients": "t6", "optimizer": "t3", "activations": "t2"}


def _kind(code: str, *, allowance: bool) -> str:
    """What a line of memory counts as in a picture."""
    if allowance:
        return "other"
    return next((kind for kind, codes in _KINDS.items() if code in codes), "activations")


def states(facts: PlanFacts, paper: Paper) -> Scene:
    """What each stage holds at its peak, kind by kind, against the usable line."""
    usable = facts.scenario.cluster.device.usable_bytes
    stages = facts.stages
    worst = max(stages, key=lambda s: s.peak_bytes)
    other = _otherwise(facts)
    seen = min(other[worst.stage].peak_bytes, _MOST_SEEN * usable) if other else 0.0
    most = max(usable, worst.peak_bytes, seen) * 1.04
    every = -(-len(stages) // _MOST_STAGES)
    shown = [s for s in stages if s is worst or s.stage % every == 0]
    above = 110.0 if paper.narrow else 84.0
    left, room = (44.0, 252.0) if paper.narrow else (70.0, 760.0)
    pitch = min((paper.height - above - 46) / len(shown), 84.0)
    title = text(0, 24, "title.memory", usable_bytes=usable, room=paper.width)
    marks: list[Mark] = [title, *_memory_key(paper)]
    known: dict[str, float | str] = {"usable_bytes": usable}
    for i, stage in enumerate(shown):
        y = above + i * pitch
        marks.append(text(0, y + pitch * 0.46, literal=f"PP{stage.stage}", tone="strong"))
        known[f"stage_{stage.stage}_bytes"] = stage.peak_bytes
        marks += _stage_bar(stage, left=left, y=y, height=pitch * 0.72, scale=room / most)
        if other:
            reach = min(other[stage.stage].peak_bytes, most) * room / most
            marks += _outline(left, y, height=pitch * 0.72, reach=reach)
        literal = format_memory(stage.peak_bytes)
        tone = "bad" if stage.peak_bytes > usable else "ink"
        marks.append(text(paper.width, y + pitch * 0.46, literal=literal, anchor="end", tone=tone))
    line = left + room * usable / most
    marks.append(
        Mark(kind="line", x=line, y=above - 12, w=0, h=pitch * len(shown) + 16, tone="bad")
    )
    of_kind = dict.fromkeys((*STATE_TONES, "other"), 0.0)
    for term in worst.peak_terms:
        of_kind[_kind(term.code, allowance=term.allowance)] += term.num_bytes
    numbers: dict[str, object] = {
        "peak_bytes": worst.peak_bytes,
        "usable_bytes": usable,
        "stage": worst.stage,
        "state_bytes": sum(term_bytes(worst, code) for code in _STATES),
    }
    beats = [
        beat(act * _ACT_S, f"held.{kind}", held_bytes=of_kind[kind], stage=worst.stage)
        for act, kind in enumerate(STATE_TONES)
    ]
    if other:
        code = "held.without_recompute" if facts.plan.recompute else "held.with_recompute"
        told = {"other_bytes": other[worst.stage].peak_bytes, "stage": worst.stage}
        beats.append(beat(_OTHERWISE * _ACT_S, code, **told, again_s=facts.parts["recompute_s"]))
    return Scene(
        mechanism="scale",
        mode="transformation",
        duration_s=len(beats) * _ACT_S,
        stops=tuple(_ACT_S * i for i in range(len(beats) + 1)),
        marks=tuple(marks),
        caption=Label(code="scale.transformation", numbers=numbers),
        facts=known,
        opens_s=len(beats) * _ACT_S,
        paper=paper,
        beats=tuple(beats),
    )


def _otherwise(facts: PlanFacts) -> tuple[StageMemory, ...]:
    """The same plan without recompute, or with all of it; nothing where rules forbid that."""
    recompute = Recompute.NONE if facts.plan.recompute else Recompute.FULL
    plan = replace(facts.plan, recompute=recompute, recompute_layers=0)
    return () if check_plan(facts.scenario, plan) else stage_memory(facts.scenario, plan)


def _outline(left: float, y: float, *, height: float, reach: float) -> list[Mark]:
    """How far a bar would reach otherwise."""
    span = (_OTHERWISE * _ACT_S, 1e9)
    edges = ((left, y, reach, 0.0), (left, y + height, reach, 0.0), (left + reach, y, 0.0, height))
    return [
        Mark(kind="line", x=x, y=top, w=w, h=h, tone="accent", span=span) for x, top, w, h in edges
    ]


def _memory_key(paper: Paper) -> list[Mark]:
    marks = []
    for i, kind in enumerate((*STATE_TONES, "other")):
        x, y = (i % 3 * 126, 66 + i // 3 * 22) if paper.narrow else (70 + i * 150, 54)
        marks.append(box(x, y - 11, 13, 13, tone=STATE_TONES.get(kind, "muted")))
        marks.append(text(x + 20, y, f"../cli.memory.{kind}", tone="soft"))
    return marks


def _stage_bar(
    stage: StageMemory, *, left: float, y: float, height: float, scale: float
) -> list[Mark]:
    """The lines of one stage side by side, those of a kind in one colour."""
    order = {kind: i for i, kind in enumerate((*STATE_TONES, "other"))}
    lines = [
        (_kind(term.code, allowance=term.allowance), term)
        for term in stage.peak_terms
        if term.num_bytes > 0
    ]
    lines.sort(key=lambda line: (order[line[0]], -line[1].num_bytes))
    marks = []
    for kind, term in lines:
        width = term.num_bytes * scale
        numbers = {"term": term.code, "term_bytes": term.num_bytes}
        marks.append(
            box(
                left,
                y,
                width,
                height,
                tone=STATE_TONES.get(kind, "muted"),
                title=Label(code="title.term", numbers=numbers),
                num_bytes=term.num_bytes,
                span=(_ACT_S * min(order[kind], 3), 1e9),
                group=f"stage{stage.stage}",
            )
        )
        left += width
    return marks


def term_bytes(stage: StageMemory, code: str) -> float:
    """What the lines of one code take at the peak of a stage [bytes]."""
    return float(sum(term.num_bytes for term in stage.peak_terms if term.code == code))
