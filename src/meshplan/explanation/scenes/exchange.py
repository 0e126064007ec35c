"""What one GPU sends to all others: every axis on the floor plan, or one exchange in rounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshplan.cost.collectives import Collective
from meshplan.cost.operators import expert_rows, shapes_of
from meshplan.cost.schedule.actions import device_of
from meshplan.cost.unit_time import tuning_of
from meshplan.explanation.scenes.cells import rank_cells
from meshplan.explanation.scenes.facts import AxisTraffic, PlanFacts
from meshplan.explanation.scenes.places import PALE, key_height, key_places
from meshplan.explanation.scenes.records import (
    AXIS_TONE,
    Cells,
    Label,
    Mark,
    Paper,
    Scene,
    amount,
    beat,
    box,
    packet,
    text,
)
from meshplan.explanation.scenes.rounds import collective_scene
from meshplan.explanation.scenes.runs import Group, Run
from meshplan.inputs.model import Moe
from meshplan.record import record
from meshplan.space.placement import AxisName
from meshplan.space.plan import CpComm
from meshplan.units import BF16_BYTES, format_duration

__all__ = ["exchange", "partners"]

_ACT_S = 2.0
_GROUP_OF: dict[str, AxisName] = {"dp": "dp_cp", "tp": "tp", "cp": "cp", "ep": "ep", "pp": "pp"}


def exchange(facts: PlanFacts, shown: str, paper: Paper) -> Scene:
    """All axes together, or the exchange of one of them.

    Args:
        facts: numbers of the plan.
        shown: ``together``, ``ep`` or ``cp``; anything else is the first that the plan has.
        paper: what it is laid out on.
    """
    names = [axis for axis in ("ep", "cp") if getattr(facts.plan, axis) > 1]
    offered = (*names, "together")
    shown = shown if shown in offered else offered[0]
    if shown == "ep":
        return _experts(facts, offered, paper)
    if shown == "cp":
        return _context(facts, offered, paper)
    return _together(facts, offered, paper)


def _expert_bytes(facts: PlanFacts) -> tuple[float, float]:
    """Bytes that a device sends for one block and micro-batch, forward.

    Returns:
        One exchange between the devices that hold different experts, of which there are two; and
        what is gathered and scattered between those that share an expert.
    """
    layer = next(x for x in facts.scenario.model.layer_kinds if isinstance(x.ffn, Moe))
    assert isinstance(layer.ffn, Moe)
    shapes = shapes_of(facts.scenario, facts.grid, tuning_of(facts.profile, facts.scenario.cluster))
    width = float(layer.ffn.routed_dim(hidden=facts.scenario.model.hidden))
    arriving = float(np.ravel(BF16_BYTES * expert_rows(layer.ffn, shapes) * width)[0])
    etp = facts.plan.etp
    shared = 2.0 * arriving * (etp - 1) / etp
    whole = float(facts.block_of(layer).ep_forward.num_bytes[0])
    return (whole - shared) / 2.0, shared


def _experts(facts: PlanFacts, offered: tuple[str, ...], paper: Paper) -> Scene:
    """Tokens to their experts and back: two all-to-alls in the forward pass of a block."""
    group = Group.of(facts, "ep", name="ep")
    each, _ = _expert_bytes(facts)
    buffer = each * group.size / (group.size - 1)
    how = "deduplicated" if facts.network.tuning.deduplicated_dispatch else ""
    runs = [
        Run(
            kind=Collective.ALL_TO_ALL,
            buffer_bytes=buffer,
            code=f"run.{name}",
            how=how,
            beats=name,
            home=name == "combine",
        )
        for name in ("dispatch", "combine")
    ]
    return collective_scene(
        "combination", group, runs, paper, algorithm="ep", algorithms=offered, shape="ep"
    )


def _context(facts: PlanFacts, offered: tuple[str, ...], paper: Paper) -> Scene:
    """Keys and values, or heads, between the devices that share a sequence."""
    group = Group.of(facts, "cp", name="cp")
    sent = float(facts.block.cp_forward.num_bytes[0])
    buffer = sent * group.size / (group.size - 1)
    swaps = facts.plan.cp_comm is CpComm.ALL_TO_ALL
    kind = Collective.ALL_TO_ALL if swaps else Collective.ALL_GATHER
    code = {
        CpComm.ALL_TO_ALL: "run.heads",
        CpComm.P2P: "run.ring",
        CpComm.ALL_GATHER: "run.gather",
    }[facts.plan.cp_comm]
    calls = float(facts.block.cp_forward.num_calls[0])
    how = "sends" if facts.plan.cp_comm is CpComm.P2P else ""
    beats = code.removeprefix("run.")
    runs = [Run(kind=kind, buffer_bytes=buffer, code=code, calls=calls, how=how, beats=beats)]
    runs = runs if sent else []
    return collective_scene(
        "combination", group, runs, paper, algorithm="cp", algorithms=offered, shape="cp"
    )


def partners(facts: PlanFacts, axis: str, rank: int) -> list[tuple[int, float]]:
    """To which ranks a rank of the middle stage sends on an axis, and what share of its bytes.

    Rings send to the next member, exchanges to all, a pipeline to the stage after (activations)
    and the one before (gradients).
    """
    if axis == "ep":
        each, shared = _expert_bytes(facts)
        total = 2.0 * each + shared
        swaps = _peers(facts, "ep", rank, share=2.0 * each / total)
        return swaps + _next(facts, "etp", rank, share=shared / total)
    if axis == "cp" and facts.plan.cp_comm is CpComm.ALL_TO_ALL:
        return _peers(facts, "cp", rank, share=1.0)
    if axis == "pp":
        size, stride = facts.group("pp")
        return _stages(facts, rank - rank // stride % size * stride, stride)
    if axis == "dp" and facts.group("dp_cp")[0] == 1:
        # experts may have copies where the rest of the model has none
        return _next(facts, "edp", rank, share=1.0)
    return _next(facts, _GROUP_OF[axis], rank, share=1.0)


def _peers(facts: PlanFacts, axis: AxisName, rank: int, *, share: float) -> list[tuple[int, float]]:
    """All other members of the group, equally."""
    size, stride = facts.group(axis)
    first = rank - rank // stride % size * stride
    others = [first + i * stride for i in range(size) if first + i * stride != rank]
    return [(other, share / len(others)) for other in others]


def _next(facts: PlanFacts, axis: AxisName, rank: int, *, share: float) -> list[tuple[int, float]]:
    """The next member in the ring."""
    size, stride = facts.group(axis)
    place = rank // stride % size
    return [(rank + ((place + 1) % size - place) * stride, share)] if size > 1 else []


def _stages(facts: PlanFacts, first: int, stride: int) -> list[tuple[int, float]]:
    p = facts.plan
    sends: dict[int, int] = {}
    for chunk in facts.layout.chunks[facts.middle]:
        for other in (chunk.virtual_stage - 1, chunk.virtual_stage + 1):
            if not 0 <= other < p.pp * p.vpp:
                continue
            where = device_of(other, pp=p.pp, schedule=p.schedule)
            if where != facts.middle:
                sends[where] = sends.get(where, 0) + 1
    total = sum(sends.values())
    return [(first + where * stride, count / total) for where, count in sorted(sends.items())]


@record
class _Place:
    """A rank on the floor plan, and where the others are."""

    cells: Cells
    rank: int

    @property
    def edge(self) -> float:
        return self.cells.size

    @property
    def here(self) -> tuple[float, float]:
        return self.at(self.rank)

    def at(self, other: int) -> tuple[float, float]:
        i = other // self.cells.ranks_per_cell
        return self.cells.x[i] + self.edge / 2, self.cells.y[i] + self.edge / 2


def _together(facts: PlanFacts, offered: tuple[str, ...], paper: Paper) -> Scene:
    """One GPU of the middle stage, and what it sends to whom in a step, axis after axis."""
    lanes = facts.traffic
    cells, frames = rank_cells(
        facts, "pp", paper=paper, tone=PALE, below=key_height(len(lanes), paper)
    )
    places = key_places(len(lanes), paper, cells)
    rank = facts.middle * facts.group("pp")[1]
    place = _Place(cells=cells, rank=rank)
    marks: list[Mark] = [*frames]
    said = [_conversation(facts, lane, place, act=act) for act, lane in enumerate(lanes)]
    # lines of a later axis must not cross out the numbers of an earlier one
    marks += [mark for talk in said for mark in talk if mark.kind == "line"]
    marks += [mark for talk in said for mark in talk if mark.kind != "line"]
    edge, (x, y) = cells.size, place.here
    literal = str(rank) if edge > 24 else ""
    marks.append(box(x - edge / 2, y - edge / 2, edge, edge, tone="bad", literal=literal))
    marks += _list(lanes, facts, places)
    duration = len(lanes) * _ACT_S
    total = sum(lane.num_bytes for lane in lanes)
    largest = max(lanes, key=lambda lane: lane.num_bytes).name if lanes else "-"
    known: dict[str, float | str] = {f"{lane.axis}_bytes": lane.num_bytes for lane in lanes}
    chosen = {"algorithm": "together", "algorithms": " ".join(offered)}
    return Scene(
        mechanism="combination",
        mode="transmission",
        duration_s=duration,
        stops=tuple(_ACT_S * i for i in range(len(lanes) + 1)) if lanes else (),
        marks=tuple(marks),
        cells=cells,
        caption=Label(
            code="combination.transmission" + {0: ".none", 1: ".one"}.get(len(lanes), ""),
            numbers={"total_bytes": total, "count": len(lanes), "largest": largest, "rank": rank},
        ),
        facts={**known, "total_bytes": total, "rank": rank, **_sizes(facts), **chosen},
        controls="collective" if len(offered) > 1 else "",
        opens_s=duration,
        paper=paper,
        beats=tuple(
            beat(
                act * _ACT_S,
                f"talk.{lane.axis}",
                rank=rank,
                sent_bytes=lane.num_bytes,
                num_others=len(partners(facts, lane.axis, rank)),
                tier=facts.scenario.cluster.tiers[lane.tier].name,
            )
            for act, lane in enumerate(lanes)
        ),
    )


def _sizes(facts: PlanFacts) -> dict[str, float | str]:
    """Sizes of the groups, which pointing at a rank tells."""
    return {axis: facts.group(_GROUP_OF[axis])[0] for axis in _GROUP_OF}


def _conversation(facts: PlanFacts, lane: AxisTraffic, place: _Place, *, act: int) -> list[Mark]:
    """Lines to everyone whom the rank sends to on one axis, and packets on their way."""
    marks: list[Mark] = []
    tone = AXIS_TONE[lane.axis]
    begin = act * _ACT_S
    for other, share in partners(facts, lane.axis, place.rank):
        there = place.at(other)
        w, h = there[0] - place.here[0], there[1] - place.here[1]
        since = (begin, 1e9)
        x, y = place.here
        marks.append(Mark(kind="line", x=x, y=y, w=w, h=h, tone=tone, span=since))
        edge = place.edge
        left, top = there[0] - edge / 2, there[1] - edge / 2
        literal = str(other) if edge > 24 else ""
        title = Label(
            code="title.axis_bytes",
            numbers={"axis": lane.name, "sent_bytes": share * lane.num_bytes},
        )
        marks.append(
            box(left, top, edge, edge, tone=tone, literal=literal, title=title, span=since)
        )
        sent = share * lane.num_bytes
        span = (begin, begin + _ACT_S)
        marks.append(packet(place.here, there, span, num_bytes=sent, tone=tone, group=lane.axis))
    return marks


def _list(
    lanes: tuple[AxisTraffic, ...], facts: PlanFacts, places: list[tuple[float, float]]
) -> list[Mark]:
    """The axes with what they send, over which level."""
    marks = []
    for (x, y), lane in zip(places, lanes, strict=True):
        marks.append(box(x, y - 11, 12, 12, tone=AXIS_TONE[lane.axis]))
        tier = facts.scenario.cluster.tiers[lane.tier].name
        told: dict[str, Any] = {"axis": lane.name, "size": lane.size, "tier": tier}
        marks.append(text(x + 19, y, "axis_at", tone="strong", **told))
        literal = f"{amount(lane.num_bytes)} · {format_duration(lane.seconds)}"
        marks.append(text(x + 19, y + 23, literal=literal, tone="soft"))
    return marks
