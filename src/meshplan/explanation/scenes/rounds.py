"""Collectives of one axis, round by round: ring, double binary tree, all-to-all."""

from __future__ import annotations

import math
from dataclasses import replace
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
from meshplan.explanation.scenes.records import (
    Beat,
    Label,
    Mark,
    Paper,
    Scene,
    beat,
    box,
    packet,
    text,
)
from meshplan.explanation.scenes.runs import Group, Run
from meshplan.explanation.scenes.shelves import beats_of, held, shelf
from meshplan.explanation.scenes.stage import NARROW_STAGE, WIDE_STAGE, Point, Stage
from meshplan.units import BF16_BYTES

__all__ = ["MOST_DRAWN", "activations", "collective_scene", "gradients"]

MOST_DRAWN = 8
_SHELF = 20.0
_PROTOCOLS = {"ll": "LL", "ll128": "LL128", "simple": "Simple", "": ""}


def gradients(facts: PlanFacts, algorithm: str, paper: Paper) -> Scene:
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
    messages = facts.messages(group.size)
    runs = [
        replace(run, calls=run.buffer_bytes / messages[run.kind])
        for run in runs
        if run.buffer_bytes
    ]
    return _ring_or_tree("data", group, runs, algorithm, paper)


def activations(facts: PlanFacts, algorithm: str, paper: Paper) -> Scene:
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
    calls = float(facts.block.tp_forward.num_calls[0]) / max(len(runs), 1)
    runs = [replace(run, calls=calls) for run in runs]
    return _ring_or_tree("tensor", group, runs, algorithm, paper)


def _ring_or_tree(
    mechanism: str, group: Group, runs: list[Run], algorithm: str, paper: Paper
) -> Scene:
    """As the cost model takes it, or as an all-reduce of the same buffer over trees."""
    shown, note = runs, ""
    if not algorithm and runs:
        algorithm = next(iter(group.weigh(runs[0])), "ring")
    if algorithm == "tree" and runs:
        # rings alone scatter and gather; a tree does both at once
        note = "" if runs[0].kind is Collective.ALL_REDUCE else "tree_instead"
        shown = [replace(runs[0], kind=Collective.ALL_REDUCE)]
    return collective_scene(
        mechanism,
        group,
        shown,
        paper,
        algorithm="tree" if algorithm == "tree" else "ring",
        algorithms=("ring", "tree") if runs else (),
        note=note,
    )


def collective_scene(
    mechanism: str,
    group: Group,
    runs: list[Run],
    paper: Paper,
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
        paper: what it is laid out on.
        algorithm: which of ``algorithms`` is shown.
        algorithms: what a person may switch to.
        note: code of a remark of two lines.
        shape: ``pairwise`` for exchanges; otherwise the algorithm's own.
    """
    drawn = min(group.size, MOST_DRAWN)
    tree = algorithm == "tree"
    inside = min(group.inside, drawn) if tree else 1
    at = NARROW_STAGE if paper.narrow else WIDE_STAGE
    places = _tree_places(drawn, inside, at) if tree else [_circle(drawn, at)]
    marks: list[Mark] = []
    beats: list[Beat] = []
    begin, sent, known = 0.0, 0.0, {}
    for row, run in enumerate(runs):
        if tree:
            hops = list(double_tree(buffer_bytes=run.buffer_bytes, size=drawn, inside=inside))
        else:
            hops = _in_rounds(run, group, drawn)
        end = begin + (max((hop.turn for hop in hops), default=-1) + 1)
        last = row == len(runs) - 1
        marks += _packets(hops, places, begin=begin, group=run.kind.value, home=run.home)
        if tree:
            beats += _tree_beats(hops, begin=begin)
        else:
            marks += _shelves(run, hops, places[0], at, begin=begin, end=1e9 if last else end)
            turns = int(end - begin)
            beats += beats_of(run.kind, run.story, turns=turns, size=drawn, begin=begin, last=last)
        told = _told(run, group, at, row=row, tree=tree)
        marks += [replace(told[0], span=(begin, end)), *told[1:]]
        known[f"{run.kind.value}_bytes"] = run.sent_bytes(group.size)
        sent += run.sent_bytes(group.size)
        begin = end
    marks = [*_links(drawn, inside, places, tree=tree, runs=runs), *marks]
    marks += _members(places, at, group=group, drawn=drawn)
    marks += _remarks(group, runs, at, drawn=drawn, note=note, tree=tree)
    facts_of: dict[str, float | str] = {
        **known,
        "sent_bytes": sent,
        "step_bytes": group.step_bytes,
        "size": group.size,
        "algorithm": algorithm,
        "algorithms": " ".join(algorithms),
    }
    numbers = {"sent_bytes": sent, "step_bytes": group.step_bytes, "size": group.size}
    code = f"{mechanism}.transmission" + (f".{shape}" if shape else "" if runs else ".none")
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
        paper=paper,
        beats=tuple(beats),
    )


def _in_rounds(run: Run, group: Group, drawn: int) -> list[Hop]:
    """Round by round to the next member, or in an exchange to each of the others."""
    # a chunk is what a member of the whole group sends, however few are drawn
    chunk = run.buffer_bytes / group.size
    if run.kind is Collective.ALL_TO_ALL:
        return list(pairwise(chunk_bytes=chunk, size=drawn))
    return list(ring(run.kind, chunk_bytes=chunk, size=drawn))


def _circle(drawn: int, at: Stage) -> list[Point]:
    return [
        (
            at.centre[0] + at.radius * math.sin(2 * math.pi * i / drawn),
            at.centre[1] - at.radius * math.cos(2 * math.pi * i / drawn),
        )
        for i in range(drawn)
    ]


def _tree_places(drawn: int, inside: int, at: Stage) -> list[list[Point]]:
    """Places of the members in both trees: one above the other, roots on top."""
    found = []
    step = at.trees / drawn
    for tree, parents in enumerate(tree_parents(drawn, inside=inside)):
        depth = [tree_depth(i, parents) for i in range(drawn)]
        fall = at.fall / max(max(depth), 1)
        top = at.tree_tops[tree]
        found.append([(step * (i + 0.5), top + fall * depth[i]) for i in range(drawn)])
    return found


def _shelves(
    run: Run, hops: list[Hop], where: list[Point], at: Stage, *, begin: float, end: float
) -> list[Mark]:
    """What the members of a ring hold, under their boxes."""
    (wide, tall), size = at.member, len(where)
    corners = [(x - wide / 2, y + tall / 2 + 3) for x, y in where]
    parts = held(run.kind, hops, size=size, home=run.home)
    return shelf(parts, corners, size=size, begin=begin, end=end, extent=(wide, _SHELF))


def _tree_beats(hops: list[Hop], *, begin: float) -> list[Beat]:
    """The way up, the way down, and the end of it."""
    turns = max((hop.turn for hop in hops), default=-1) + 1
    up = beat(begin, "tree.up")
    down, end = beat(begin + turns // 2, "tree.down"), beat(begin + turns, "tree.done")
    return [up, down, end] if turns else []


def _packets(
    hops: list[Hop], places: list[list[Point]], *, begin: float, group: str, home: bool
) -> list[Mark]:
    marks = []
    for hop in hops:
        where = places[hop.part if len(places) > 1 else 0]
        span = (begin + hop.turn, begin + hop.turn + 1.0)
        tone = f"t{(hop.source if home else hop.part) % 8}"
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


def _members(places: list[list[Point]], at: Stage, *, group: Group, drawn: int) -> list[Mark]:
    marks = []
    wide, tall = at.member if len(places) == 1 else (min(at.trees / drawn - 8, 54.0), 24.0)
    for tree, where in enumerate(places):
        for i, (x, y) in enumerate(where):
            tone = f"t{i}" if len(places) == 1 else f"t{tree}"
            literal = str(i * group.stride)
            marks.append(box(x - wide / 2, y - tall / 2, wide, tall, tone=tone, literal=literal))
    return marks


def _told(run: Run, group: Group, at: Stage, *, row: int, tree: bool) -> list[Mark]:
    """The panel of one collective: what lights it while it runs, its frame and its words."""
    x, top, width, height = at.panel
    top = at.tree_panel if tree else top + row * (height + 8)
    turns, chunk = ring_of(run.kind, buffer_bytes=run.buffer_bytes, size=group.size)
    if tree:
        rounds = Label(code="tree_rounds", numbers={"half_bytes": run.buffer_bytes / 2})
    else:
        rounds = Label(code="rounds", numbers={"rounds": turns, "chunk_bytes": chunk})
    each = {"sent_bytes": run.sent_bytes(group.size), "buffer_bytes": run.buffer_bytes}
    lines = [
        ("strong", Label(code=run.name)),
        ("ink", rounds),
        ("ink", Label(code="sent_each", numbers=each)),
        *[("soft", label) for label in _weighed(run, group)],
    ]
    frame = box(x, top, width, height, tone="frame")
    return [
        replace(frame, tone="glow"),
        frame,
        *[
            Mark(
                kind="text",
                x=x + 12,
                y=top + 24 + k * at.line,
                label=label,
                tone=tone,
                room=width - 20,
            )
            for k, (tone, label) in enumerate(lines)
        ],
    ]


def _weighed(run: Run, group: Group) -> list[Label]:
    """Which algorithm the cost model takes for a message of that size, and what others would do."""
    numbers: dict[str, Any] = {"message_bytes": run.message_bytes}
    if run.how:
        return [Label(code=f"weighed.{run.how}"), Label(code="weighed.messages", numbers=numbers)]
    weighed = group.weigh(run)
    if not weighed:
        return [Label(code="weighed.measured"), Label(code="weighed.messages", numbers=numbers)]
    (first, (seconds, protocol)), *others = weighed.items()
    taken = {"alone_s": seconds, "protocol": _PROTOCOLS[protocol]}
    said = "weighed.messages"
    if others:
        second, (seconds, _) = others[0]
        said, numbers = f"weighed.not_{second}", {**numbers, "alone_s": seconds}
    return [Label(code=f"weighed.{first}", numbers=taken), Label(code=said, numbers=numbers)]


def _remarks(
    group: Group, runs: list[Run], at: Stage, *, drawn: int, note: str, tree: bool
) -> list[Mark]:
    marks = []
    if not tree:
        x, y = at.centre
        if drawn == 2:  # the line between the two passes through the centre
            x -= 60
        marks.append(text(x, y + 5, literal=group.axis, tone="strong", anchor="middle"))
    told = "ring_more" if group.size > drawn else "ring_all" if drawn > 1 else "ring_one"
    x = at.centre[0] if not tree else at.trees / 2
    numbers: dict[str, Any] = {"size": group.size, "drawn": drawn}
    foot = at.foot[0] if tree else at.foot[1]
    marks.append(text(x, foot, told, anchor="middle", tone="soft", **numbers))
    if note:
        x, y = at.remark
        marks.append(text(x, y, f"{note}.1", tone="soft"))
        marks.append(text(x, y + 22, f"{note}.2", tone="soft"))
    if tree:
        marks.append(text(0, at.tree_tops[0] - 26, "tree.first", tone="t0"))
        marks.append(text(0, at.tree_tops[1] - 26, "tree.second", tone="t1"))
    if not runs:
        x, y, width, _ = at.panel
        marks.append(text(x, y + 40, "nothing_moves", tone="soft", room=width))
    return marks
