"""Collectives of one axis, round by round: ring, double binary tree, all-to-all."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise as neighbours
from typing import Any

from meshplan.cost.collectives import Collective
from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.hops import (
    Hop,
    double_tree,
    pairwise,
    ring,
    ring_of,
    tree_depth,
    tree_parents,
)
from meshplan.explanation.scenes.records import HEIGHT, WIDTH, Label, Mark, Scene, box, packet, text
from meshplan.space.placement import AxisName
from meshplan.units import BF16_BYTES

__all__ = ["MOST_DRAWN", "Group", "Run", "activations", "collective_scene", "gradients"]

MOST_DRAWN = 8
_RADIUS = 165.0
_CENTRE = (WIDTH / 2 - 150, HEIGHT / 2 + 8)
_SIDE = WIDTH - 330.0

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One collective that a group does.

    Attributes:
        kind: which collective.
        buffer_bytes: the whole buffer ``V`` [bytes].
        code: what it is called.
    """

    kind: Collective
    buffer_bytes: float
    code: str = ""

    def sent_bytes(self, size: int) -> float:
        """What the mean device sends in all rounds [bytes]."""
        turns, chunk = ring_of(self.kind, buffer_bytes=self.buffer_bytes, size=size)
        return turns * chunk

    @property
    def name(self) -> str:
        """Code of its words."""
        return self.code or f"collective.{self.kind.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The devices that take part.

    Attributes:
        axis: letters on the picture.
        size: devices.
        stride: distance of their ranks.
        inside: neighbours of the group that share a node.
        tier: name of the outermost level that they cross.
        step_bytes: what a device sends on the axis in a step [bytes].
    """

    axis: str
    size: int
    stride: int
    inside: int
    tier: str
    step_bytes: float

    @classmethod
    def of(cls, facts: PlanFacts, axis: AxisName, *, name: str) -> Group:
        """The groups of an axis of the plan."""
        size, stride = facts.group(axis)
        per_node = facts.scenario.cluster.gpus_per_node
        inside = max(min(size, per_node // stride), 1)
        while size % inside:
            inside -= 1
        lanes = (lane.num_bytes for lane in facts.traffic if lane.axis == name)
        return cls(
            axis=name.upper(),
            size=size,
            stride=stride,
            inside=inside,
            tier=facts.scenario.cluster.tiers[facts.tier_of(axis)].name,
            step_bytes=next(lanes, 0.0),
        )


def gradients(facts: PlanFacts, algorithm: str) -> Scene:
    """Gradients of one block over its replicas."""
    plan, replicas = facts.plan, facts.replicas
    sharded = plan.zero > 0
    group = Group.of(facts, "dp_shard_cp" if sharded else "dp_cp", name="dp")
    size = group.size
    share = (size - 1) / size if size > 1 else 1.0
    reduce, gather = float(replicas.reduce.num_bytes[0]), float(replicas.gather.num_bytes[0])
    runs: list[Run] = []
    if size > 1 and not sharded and plan.dp_replicate == 1 and plan.ep == 1:
        runs.append(Run(kind=Collective.ALL_REDUCE, buffer_bytes=reduce / (2.0 * share)))
    elif size > 1:
        # where several groups take part the buffer is the one that gives what the model counts
        runs.append(Run(kind=Collective.REDUCE_SCATTER, buffer_bytes=reduce / share))
        runs.append(Run(kind=Collective.ALL_GATHER, buffer_bytes=gather / share))
    return _ring_or_tree("data", group, runs, algorithm)


def activations(facts: PlanFacts, algorithm: str) -> Scene:
    """Activations of one block, forward, inside a tensor-parallel group."""
    group = Group.of(facts, "tp", name="tp")
    size, total = group.size, float(facts.block.tp_forward.num_bytes[0])
    share = (size - 1) / size if size > 1 else 1.0
    runs: list[Run] = []
    if size > 1 and facts.plan.sp:
        tokens = facts.plan.micro_batch * facts.scenario.job.seq_len / facts.plan.cp
        pairs = BF16_BYTES * tokens * facts.scenario.model.hidden * share
        # what is gathered and what is scattered together are what the block sends
        half = pairs * max(round(total / pairs / 2), 1)
        gathered = Run(kind=Collective.ALL_GATHER, buffer_bytes=(total - half) / share)
        runs = [gathered, Run(kind=Collective.REDUCE_SCATTER, buffer_bytes=half / share)]
    elif size > 1:
        runs = [Run(kind=Collective.ALL_REDUCE, buffer_bytes=total / (2 * share))]
    return _ring_or_tree("tensor", group, runs, algorithm)


def _ring_or_tree(mechanism: str, group: Group, runs: list[Run], algorithm: str) -> Scene:
    """As the plan does it, or as an all-reduce of the same buffer over trees."""
    shown, note = runs, ""
    if algorithm == "tree" and runs:
        # rings alone scatter and gather; a tree does both at once
        note = "" if runs[0].kind is Collective.ALL_REDUCE else "tree_instead"
        shown = [Run(kind=Collective.ALL_REDUCE, buffer_bytes=runs[0].buffer_bytes)]
    return collective_scene(
        mechanism,
        group,
        shown,
        algorithm="tree" if algorithm == "tree" else "ring",
        algorithms=("ring", "tree") if runs else (),
        note=note,
    )


def collective_scene(
    mechanism: str,
    group: Group,
    runs: list[Run],
    *,
    algorithm: str,
    algorithms: tuple[str, ...],
    note: str = "",
    shape: str = "",
) -> Scene:
    """Draw the rounds of some collectives of a group, one collective after another.

    Args:
        mechanism: what the scene is about.
        group: who takes part.
        runs: what they do.
        algorithm: which of ``algorithms`` is shown.
        algorithms: what a person may switch to.
        note: code of a remark of two lines.
        shape: ``pairwise`` for exchanges; otherwise the algorithm's own.
    """
    drawn = min(group.size, MOST_DRAWN)
    tree = algorithm == "tree"
    inside = min(group.inside, drawn) if tree else 1
    places = _tree_places(drawn, inside) if tree else [_circle(drawn)]
    marks: list[Mark] = []
    begin, sent, known = 0.0, 0.0, {}
    for run in runs:
        if tree:
            hops: Iterable[Hop] = double_tree(
                buffer_bytes=run.buffer_bytes, size=drawn, inside=inside
            )
        else:
            # a chunk is what a member of the whole group sends, however few are drawn
            chunk = run.buffer_bytes / group.size
            swaps = run.kind is Collective.ALL_TO_ALL
            hops = (
                pairwise(chunk_bytes=chunk, size=drawn)
                if swaps
                else ring(run.kind, chunk_bytes=chunk, size=drawn)
            )
        hops = list(hops)
        end = begin + (max((hop.turn for hop in hops), default=-1) + 1)
        marks += _packets(hops, places, begin=begin, group=run.kind.value)
        marks += _told(run, group, begin=begin, end=end, row=runs.index(run), tree=tree)
        known[f"{run.kind.value}_bytes"] = run.sent_bytes(group.size)
        sent += run.sent_bytes(group.size)
        begin = end
    marks = [*_links(drawn, inside, places, tree=tree, runs=runs), *marks]
    marks += _members(places, group=group, drawn=drawn)
    marks += _remarks(group, runs, drawn=drawn, note=note, tree=tree)
    facts_of: dict[str, float | str] = {
        **known,
        "sent_bytes": sent,
        "step_bytes": group.step_bytes,
        "size": group.size,
        "algorithm": algorithm,
        "algorithms": " ".join(algorithms),
    }
    numbers = {"sent_bytes": sent, "step_bytes": group.step_bytes, "size": group.size}
    code = f"{mechanism}.transmission" + ("" if not shape else f".{shape}")
    return Scene(
        mechanism=mechanism,
        mode="transmission",
        duration_s=begin,
        stops=tuple(float(t) for t in range(int(begin) + 1)),
        marks=tuple(marks),
        caption=Label(code=code, numbers={**numbers, "axis": group.axis, "tier": group.tier}),
        facts=facts_of,
        controls="collective" if len(algorithms) > 1 else "",
        opens_s=min(0.45, begin),
    )


def _circle(drawn: int) -> list[Point]:
    return [
        (
            _CENTRE[0] + _RADIUS * math.sin(2 * math.pi * i / drawn),
            _CENTRE[1] - _RADIUS * math.cos(2 * math.pi * i / drawn),
        )
        for i in range(drawn)
    ]


def _tree_places(drawn: int, inside: int) -> list[list[Point]]:
    """Places of the members in both trees: one above the other, roots on top."""
    found = []
    step = (_SIDE - 60.0) / drawn
    for tree, parents in enumerate(tree_parents(drawn, inside=inside)):
        depth = [tree_depth(i, parents) for i in range(drawn)]
        fall = 150.0 / max(max(depth), 1)
        top = 62.0 + tree * 232.0
        found.append([(30 + step * (i + 0.5), top + fall * depth[i]) for i in range(drawn)])
    return found


def _packets(hops: list[Hop], places: list[list[Point]], *, begin: float, group: str) -> list[Mark]:
    marks = []
    for hop in hops:
        where = places[hop.part if len(places) > 1 else 0]
        span = (begin + hop.turn, begin + hop.turn + 1.0)
        tone = f"t{hop.part % 8}"
        a, b = where[hop.source], where[hop.target]
        marks.append(packet(a, b, span, num_bytes=hop.num_bytes, tone=tone, group=group))
    return marks


def _links(
    drawn: int, inside: int, places: list[list[Point]], *, tree: bool, runs: list[Run]
) -> list[Mark]:
    """What joins the members: a ring, every pair, or the two trees."""
    marks: list[Mark] = []
    if tree:
        for where, parents in zip(places, tree_parents(drawn, inside=inside), strict=True):
            pairs = [(where[i], where[p]) for i, p in enumerate(parents) if p is not None]
            marks += [_line(a, b) for a, b in pairs]
        return marks
    if drawn < 2:
        return []
    where = places[0]
    if runs and runs[0].kind is Collective.ALL_TO_ALL:
        return [_line(where[i], where[j]) for i in range(drawn) for j in range(i)]
    return [_line(a, b) for a, b in neighbours([*where, where[0]])]


def _line(a: Point, b: Point) -> Mark:
    return Mark(kind="line", x=a[0], y=a[1], w=b[0] - a[0], h=b[1] - a[1], tone="frame")


def _members(places: list[list[Point]], *, group: Group, drawn: int) -> list[Mark]:
    marks = []
    wide = 54.0 if len(places) == 1 else min((_SIDE - 60.0) / drawn - 8, 54.0)
    tall = 34.0 if len(places) == 1 else 24.0
    for tree, where in enumerate(places):
        for i, (x, y) in enumerate(where):
            tone = f"t{i}" if len(places) == 1 else f"t{tree}"
            literal = str(i * group.stride)
            marks.append(box(x - wide / 2, y - tall / 2, wide, tall, tone=tone, literal=literal))
    return marks


def _told(run: Run, group: Group, *, begin: float, end: float, row: int, tree: bool) -> list[Mark]:
    """The panel of one collective, lit while it runs."""
    y = 110 + row * 132
    turns, chunk = ring_of(run.kind, buffer_bytes=run.buffer_bytes, size=group.size)
    marks = [
        box(_SIDE - 16, y - 32, 346, 116, tone="glow", span=(begin, end)),
        box(_SIDE - 16, y - 32, 346, 116, tone="frame"),
        text(_SIDE, y - 2, run.name, tone="strong"),
    ]
    if tree:
        marks.append(text(_SIDE, y + 25, "tree_rounds", half_bytes=run.buffer_bytes / 2))
    else:
        marks.append(text(_SIDE, y + 25, "rounds", rounds=turns, chunk_bytes=chunk))
    each = run.sent_bytes(group.size)
    marks.append(text(_SIDE, y + 47, "sent_each", sent_bytes=each))
    marks.append(text(_SIDE, y + 69, "buffer", buffer_bytes=run.buffer_bytes, tone="soft"))
    return marks


def _remarks(group: Group, runs: list[Run], *, drawn: int, note: str, tree: bool) -> list[Mark]:
    marks = []
    if not tree:
        marks.append(text(*_CENTRE, literal=group.axis, tone="strong", anchor="middle"))
    told = "ring_more" if group.size > drawn else "ring_all"
    x = _CENTRE[0] if not tree else (_SIDE - 30) / 2
    numbers: dict[str, Any] = {"size": group.size, "drawn": drawn}
    marks.append(text(x, HEIGHT - 12, told, anchor="middle", tone="soft", **numbers))
    if note:
        marks.append(text(_SIDE, 262, f"{note}.1", tone="soft"))
        marks.append(text(_SIDE, 284, f"{note}.2", tone="soft"))
    if tree:
        marks.append(text(0, 30, "tree.first", tone="t0"))
        marks.append(text(0, 262, "tree.second", tone="t1"))
    if not runs:
        marks.append(text(_SIDE, 120, "nothing_moves", tone="soft"))
    return marks
