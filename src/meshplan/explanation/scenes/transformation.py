"""Transformation: how tensors, layers and batches are cut, and how they are joined again."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.memory import states, term_bytes
from meshplan.explanation.scenes.records import HEIGHT, WIDTH, Label, Mark, Scene, box, text
from meshplan.inputs.model import Moe
from meshplan.space.names import to_text
from meshplan.units import format_memory

__all__ = ["transformation"]

_CUT_S, _PLAY_S = 2.0, 8.0
_MOST = 16


def transformation(facts: PlanFacts, mechanism: str) -> Scene:
    """How things are cut and joined."""
    made: Mapping[str, Callable[[PlanFacts], Scene]] = {
        "panorama": _model_to_ranks,
        "data": _batch,
        "tensor": _matrices,
        "pipeline": _layers,
        "combination": _product,
        "scale": states,
        "links": _sequence,
    }
    return made[mechanism](facts)


def _scene(
    mechanism: str, marks: list[Mark], known: dict[str, float | str], **numbers: object
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
    )


def _later(stage: int) -> tuple[float, float]:
    """From the given act of the play to its end, and beyond."""
    return stage * _CUT_S, 1e9


def _row(
    y: float,
    count: int,
    *,
    left: float = 150.0,
    width: float = WIDTH - 150.0,
    height: float = 52.0,
    names: str = "",
    tone: str = "",
    act: int = 0,
    num_bytes: float | None = None,
    group: str = "",
) -> list[Mark]:
    """Equal boxes side by side; beyond a limit the rest shows as dots."""
    shown = min(count, _MOST)
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


def _model_to_ranks(facts: PlanFacts) -> Scene:
    """The whole model, its stages, their slices, and the copies of it all."""
    p = facts.plan
    layers = facts.scenario.model.num_layers
    marks = [
        text(0, 82, "rows.model", tone="strong"),
        box(150, 50, WIDTH - 150, 52, tone="accent", literal=f"L0 – L{layers - 1}"),
        text(0, 192, "rows.stages", tone="strong"),
        *_row(160, p.pp, names="PP", act=1, group="pp"),
        text(0, 302, "rows.slices", tone="strong"),
        *_row(270, p.tp, names="TP", act=2, group="tp"),
        text(0, 412, "rows.copies", tone="strong"),
        *_row(380, p.dp, names="DP", act=3, group="dp"),
    ]
    known: dict[str, float | str] = {"tp": p.tp, "pp": p.pp, "dp": p.dp, "cp": p.cp}
    return _scene("panorama", marks, known, num_layers=layers, pp=p.pp, tp=p.tp, dp=p.dp, cp=p.cp)


def _batch(facts: PlanFacts) -> Scene:
    """Batch to replicas, replicas to micro-batches, and optimizer state to shards."""
    p, job = facts.plan, facts.scenario.job
    shards = facts.group("dp_shard_cp")[0] if p.zero else 1
    state = term_bytes(facts.stages[0], "optimizer")
    marks = [
        text(0, 72, "rows.batch", tone="strong"),
        box(150, 40, WIDTH - 150, 52, tone="accent", literal=str(job.global_batch)),
        text(0, 182, "rows.replicas", tone="strong"),
        *_row(150, p.dp, names="DP", act=1, group="dp"),
        text(0, 292, "rows.micro_batches", tone="strong"),
        *_row(260, p.num_micro_batches, names="m", tone="t2", act=2, group="micro_batch"),
        text(0, 402, "rows.states", tone="strong"),
        *_row(370, shards, names="", act=3, num_bytes=state, group="optimizer", height=64),
        text(150, 462, "shard_bytes", shards=shards, state_bytes=state, zero=p.zero),
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
        global_batch=job.global_batch,
        dp=p.dp,
        num_micro_batches=p.num_micro_batches,
        micro_batch=p.micro_batch,
        shards=shards,
        state_bytes=state,
        zero=p.zero,
    )


def _matrices(facts: PlanFacts) -> Scene:
    """Columns of the first matrix, rows of the second, and the sum that follows."""
    tp, hidden = facts.plan.tp, facts.scenario.model.hidden
    ffn = facts.layer.ffn
    inner = hidden
    if ffn is not None:
        inner = ffn.expert_ffn_hidden if isinstance(ffn, Moe) else ffn.ffn_hidden
    shown = min(tp, 8)
    tokens = facts.plan.micro_batch * facts.scenario.job.seq_len // facts.plan.cp
    marks: list[Mark] = []
    y = 130.0
    x_input, x_first, x_second, x_out = 20.0, 220.0, 560.0, 830.0
    marks += [
        text(x_input, 60, literal="X", tone="strong"),
        text(x_input, 84, literal=f"{tokens:,} × {hidden:,}", tone="soft"),
        text(x_first, 60, "matrix.columns", tone="strong"),
        text(x_first, 84, literal=f"{hidden:,} × {inner:,}", tone="soft"),
        text(x_second, 60, "matrix.rows", tone="strong"),
        text(x_second, 84, literal=f"{inner:,} × {hidden:,}", tone="soft"),
        text(x_out, 60, "matrix.sum", tone="strong"),
        text(x_out, 84, literal=f"{tokens:,} × {hidden:,}", tone="soft"),
        box(x_input, y, 120, 200, tone="accent"),
    ]
    wide, tall = 260.0, 260.0
    for i in range(shown):
        gap = 6.0
        column = (wide - gap * (shown - 1)) / shown
        row = (tall - gap * (shown - 1)) / shown
        name = f"TP{i}"
        whole = box(x_first + i * wide / shown, y, wide / shown, 200, tone="accent", span=(0, 2))
        marks.append(whole)
        literal = name if column > 30 else ""
        left = x_first + i * (column + gap)
        marks.append(
            box(
                left, y, column, 200, tone=f"t{i}", literal=literal, span=_later(1), group="columns"
            )
        )
        top = y + i * tall / shown
        marks.append(box(x_second, top, 200, tall / shown, tone="accent", span=(0, 2)))
        top = y + i * (row + gap)
        marks.append(
            box(x_second, top, 200, row, tone=f"t{i}", literal=name, span=_later(1), group="rows")
        )
        marks.append(
            box(x_out + i * 7, y + i * 7, 110, 200, tone=f"t{i}", span=(4, 6), group="partial")
        )
    marks.append(box(x_out, y, 120, 200, tone="accent", span=_later(3), group="sum"))
    for x, sign in ((168, "×"), (508, "×"), (786, "=")):
        marks.append(text(x, y + 112, literal=sign, tone="strong"))
    tp_bytes = float(facts.block.tp_forward.num_bytes[0])
    marks.append(text(x_input, 450, "matrix.note", tp=tp, columns=inner // tp))
    marks.append(text(x_input, 478, "matrix.traffic", sent_bytes=tp_bytes))
    known: dict[str, float | str] = {
        "tp": tp,
        "hidden": hidden,
        "inner": inner,
        "columns_each": inner / tp,
        "tp_forward_bytes": tp_bytes,
    }
    return _scene("tensor", marks, known, tp=tp, hidden=hidden, inner=inner, sent_bytes=tp_bytes)


def _layers(facts: PlanFacts) -> Scene:
    """Layers to stages, as they are really dealt."""
    p = facts.plan
    layers = facts.scenario.model.num_layers
    left, width = 20.0, WIDTH - 40
    each = width / layers
    marks: list[Mark] = [text(left, 40, "rows.layers", tone="strong")]
    for i in range(layers):
        marks.append(box(left + i * each, 56, each * 0.86, 46, tone="accent"))
    marks.append(text(left, 170, "rows.stages", tone="strong"))
    shown = min(p.pp, 16)
    pitch = width / shown
    known: dict[str, float | str] = {"num_layers": layers, "pp": p.pp, "vpp": p.vpp}
    for stage, chunks in enumerate(facts.layout.chunks):
        known[f"stage_{stage}_layers"] = sum(chunk.num_layers for chunk in chunks)
        if stage >= shown:
            continue
        x = left + stage * pitch
        marks.append(box(x, 190, pitch - 6, 220, tone="frame", literal=""))
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
    marks.append(text(left, 446, ends, tone="soft", span=_later(2)))
    return _scene(
        "pipeline",
        marks,
        known,
        num_layers=layers,
        pp=p.pp,
        vpp=p.vpp,
        schedule=to_text(p.schedule),
    )


def _product(facts: PlanFacts) -> Scene:
    """The degrees multiply to the number of GPUs."""
    p = facts.plan
    degrees = [("TP", p.tp), ("CP", p.cp), ("DP", p.dp), ("PP", p.pp)]
    marks: list[Mark] = []
    product, top = 1, 30.0
    for act, (name, degree) in enumerate(degrees):
        product *= degree
        y = top + act * 108
        marks.append(text(0, y + 32, literal=f"{name} = {degree}", tone="strong"))
        marks += _row(y, degree, names=name, width=640, act=act, group=name.lower())
        marks.append(text(WIDTH, y + 32, "so_far", anchor="end", num_gpus=product))
    total = facts.scenario.cluster.num_gpus
    marks.append(
        text(
            0,
            HEIGHT - 22,
            literal=" × ".join(str(d) for _, d in degrees) + f" = {total}",
            tone="strong",
            span=_later(3),
        )
    )
    known: dict[str, float | str] = {name.lower(): degree for name, degree in degrees}
    known |= {"product": product, "num_gpus": total}
    return _scene("combination", marks, known, tp=p.tp, cp=p.cp, dp=p.dp, pp=p.pp, num_gpus=total)


def _sequence(facts: PlanFacts) -> Scene:
    """A sequence in chunks, the messages that follow from it, and the levels they cross."""
    p, job = facts.plan, facts.scenario.job
    tokens = job.seq_len // p.cp
    slices = p.tp if p.sp else 1
    marks = [
        text(0, 82, "rows.sequence", tone="strong"),
        box(150, 50, WIDTH - 150, 52, tone="accent", literal=f"{job.seq_len:,}"),
        text(0, 192, "rows.chunks", tone="strong"),
        *_row(160, p.cp, names="CP", act=1, group="cp"),
        text(0, 302, "rows.sp", tone="strong"),
        *_row(270, slices, names="TP", act=2, group="sp"),
        text(0, 412, "rows.message", tone="strong"),
        box(150, 380, 180, 52, tone="t4", literal=format_memory(facts.send_bytes), span=_later(3)),
        text(350, 412, "message_bytes", sent_bytes=facts.send_bytes, tokens=tokens // slices),
    ]
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
        seq_len=job.seq_len,
        cp=p.cp,
        chunk=tokens,
        slices=slices,
        sent_bytes=facts.send_bytes,
    )
