"""A batch over the replicas, and what each replica holds of the training state."""

from __future__ import annotations

from typing import Any

from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.memory import STATE_TONES, term_bytes
from meshplan.explanation.scenes.records import Beat, Label, Mark, Paper, Scene, beat, box, text
from meshplan.explanation.scenes.rows import CUT_S, Rows, enlarged, later, row, widths
from meshplan.space.plan import Plan

__all__ = ["batch_to_replicas"]

_SHARDED_FROM = {"weights": 3, "gradients": 2, "optimizer": 1}
"""Lowest ZeRO stage that cuts a state over the replicas."""

_ACTS = 4


def batch_to_replicas(facts: PlanFacts, paper: Paper) -> Scene:
    """Batch to replicas, one replica's part to micro-batches, and what each replica holds."""
    p, job = facts.plan, facts.scenario.job
    shards = facts.group("dp_shard_cp")[0] if p.zero else 1
    held = {name: term_bytes(facts.stages[0], name) for name in _SHARDED_FROM}
    rows = Rows(paper=paper, top=40.0, pitch=104.0)
    left, width = rows.left, rows.width
    at: dict[str, Any] = {"left": left, "width": width}
    each = p.num_micro_batches * p.micro_batch
    numbers: dict[str, Any] = {
        "global_batch": job.global_batch,
        "dp": p.dp,
        "each": each,
        "num_micro_batches": p.num_micro_batches,
        "micro_batch": p.micro_batch,
        "shards": shards,
        "zero": p.zero,
        **{f"{name}_bytes": size for name, size in held.items()},
    }
    marks = [
        rows.name(0, "rows.batch"),
        box(left, rows.y(0), width, 52, tone="accent", literal=f"{job.global_batch:,}"),
        rows.name(1, "rows.replicas"),
        *row(rows.y(1), p.dp, **at, names="DP", act=1, group="dp"),
        rows.name(2, "rows.micro_batches"),
        *row(
            rows.y(2), p.num_micro_batches, **at, names="m", tone="t0", act=2, group="micro_batch"
        ),
        *enlarged(rows, 2, wide=widths(p.dp, width)[1], act=2),
        rows.name(3, "rows.states"),
        *_states(facts, rows, held, shards=shards),
    ]
    known: dict[str, float | str] = {
        "dp": p.dp,
        "micro_batches": p.num_micro_batches,
        "sequences": p.dp * each,
        "optimizer_bytes": held["optimizer"],
        "shards": shards,
    }
    return Scene(
        mechanism="data",
        mode="transformation",
        duration_s=_ACTS * CUT_S,
        stops=tuple(CUT_S * act for act in range(_ACTS + 1)),
        marks=tuple(marks),
        caption=Label(
            code="data.transformation", numbers={**numbers, "state_bytes": held["optimizer"]}
        ),
        facts=known,
        opens_s=_ACTS * CUT_S,
        paper=paper,
        beats=_beats(p, numbers, shards=shards),
    )


def _beats(p: Plan, numbers: dict[str, Any], *, shards: int) -> tuple[Beat, ...]:
    replicas = "batch.replicas" if p.dp > 1 else "batch.replicas.one"
    story = f"states.zero{p.zero}" if shards > 1 else "states.zero0"
    if p.dp == 1 and shards == 1:
        story = "states.alone"
    return (
        beat(0.0, "batch.whole", **numbers),
        beat(CUT_S, replicas, **numbers),
        beat(2 * CUT_S, "batch.micro", **numbers),
        beat(3 * CUT_S, story, **numbers),
    )


def _states(facts: PlanFacts, rows: Rows, held: dict[str, float], *, shards: int) -> list[Mark]:
    """Weights, gradients and optimizer state of every replica: filled where it holds them."""
    p, span = facts.plan, later(3)
    shown, each = widths(p.dp, rows.width)
    marks: list[Mark] = []
    top = rows.y(3)
    for i in range(shown):
        number = i if i < shown - 1 or shown == p.dp else p.dp - 1
        x = rows.left + i * (each + 5.0)
        for k, (name, least) in enumerate(_SHARDED_FROM.items()):
            y = top + k * 21.0
            cut = p.zero >= least and shards > 1
            wide = max(each / shards, 2.0) if cut else each
            place = (number % shards) * (each - wide) / max(shards - 1, 1) if cut else 0.0
            marks.append(box(x, y, each, 18, tone="track", span=span))
            marks.append(
                box(
                    x + place,
                    y,
                    wide,
                    18,
                    tone=STATE_TONES[name],
                    span=span,
                    num_bytes=held[name],
                    group=name,
                )
            )
    narrow = rows.paper.narrow
    for k, (name, size) in enumerate(held.items()):
        x = 0.0 if narrow else rows.left + k * rows.width / 3
        y = top + 88.0 + (k * 21.0 if narrow else 0.0)
        marks.append(box(x, y - 11, 13, 13, tone=STATE_TONES[name], span=span))
        told: dict[str, Any] = {"held_bytes": size, "span": span}
        marks.append(text(x + 20, y, f"state.{name}", tone="soft", **told))
    return marks
