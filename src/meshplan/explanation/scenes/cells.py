"""The map of ranks: every GPU in its node, nodes in rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.records import Cells, Mark, Paper, box, text
from meshplan.space.placement import AxisName

__all__ = ["AXES", "rank_cells"]

MOST_CELLS = 4096
_WHOLE_ROWS = 1.1
"""How much larger squares must be to leave a row that is not full."""
AXES: tuple[AxisName, ...] = ("tp", "cp", "ep", "dp", "pp")
_ABOVE, _BELOW = 48.0, 30.0


def rank_cells(
    facts: PlanFacts,
    axis: AxisName,
    *,
    paper: Paper,
    tone: int | None = None,
    above: float = _ABOVE,
    below: float = _BELOW,
) -> tuple[Cells, list[Mark]]:
    """Place every rank in its node, nodes in rows; too many ranks become one square per node.

    Args:
        facts: numbers of the plan.
        axis: what gives the colours.
        paper: what it is drawn on.
        tone: one colour for all instead.
        above: room that is left free over the map.
        below: room that is left free under the map.

    Returns:
        The squares, and the frames of the nodes with their numbers.
    """
    cluster = facts.scenario.cluster
    num, per_node = cluster.num_gpus, cluster.gpus_per_node
    stands_for = 1
    while num // stands_for > MOST_CELLS:
        stands_for = per_node if stands_for == 1 else stands_for * 2
    inside = max(per_node // stands_for, 1)
    count = -(-num // stands_for)
    across = math.ceil(math.sqrt(inside * 2)) if inside > 1 else 1
    down = -(-inside // across)
    blocks = -(-count // inside)
    width, height = paper.width - 8, paper.height - above - below
    pad = 0.9 if inside > 1 else 0.15
    columns = min(
        range(1, blocks + 1),
        # large squares, and no row that is half empty
        key=lambda c: (
            -min(width / (c * (across + pad)), height / (math.ceil(blocks / c) * (down + pad)))
            * (blocks / (c * math.ceil(blocks / c))) ** 2
            * (_WHOLE_ROWS if blocks % c == 0 else 1.0)
        ),
    )
    rows = math.ceil(blocks / columns)
    pitch = min(width / (columns * (across + pad)), height / (rows * (down + pad)), 112.0)
    left = (paper.width - pitch * columns * (across + pad) + pitch * pad) / 2
    index = np.arange(count)
    block, place = np.divmod(index, inside)
    x = left + pitch * ((block % columns) * (across + pad) + place % across)
    top = above + pitch * 0.45
    y = top + pitch * ((block // columns) * (down + pad) + place // across)
    rank = index * stands_for
    groups: dict[str, tuple[int, ...]] = {}
    for name in AXES:
        size, stride = facts.group(name)
        if size > 1:
            groups[name] = tuple((rank - rank // stride % size * stride).tolist())
    size, stride = facts.group(axis)
    position = rank // stride % size
    tones = position * 8 // size if size > 8 else position
    if tone is not None:
        tones = np.full(count, tone)
    cells = Cells(
        size=round(pitch * 0.88, 3),
        x=tuple(np.round(x, 2).tolist()),
        y=tuple(np.round(y, 2).tolist()),
        first_rank=tuple(rank.tolist()),
        ranks_per_cell=stands_for,
        tone=tuple(tones.tolist()),
        groups=groups,
    )
    frames = []
    if inside > 1 and blocks <= 512:
        for b in range(blocks):
            fx = left + pitch * (b % columns) * (across + pad) - pitch * 0.2
            fy = top + pitch * (b // columns) * (down + pad) - pitch * 0.2
            frames.append(box(fx, fy, pitch * (across + 0.28), pitch * (down + 0.28), tone="frame"))
            if pitch > 30:
                marked: dict[str, Any] = {"node": b}
                frames.append(text(fx + 2, fy - 6, "node", tone="soft", **marked))
    return cells, frames
