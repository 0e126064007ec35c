"""The map of ranks: every GPU in its node, nodes in rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.records import Cells, Mark, Paper, box, text
from meshplan.record import record
from meshplan.space.placement import AxisName

__all__ = ["AXES", "rank_cells"]

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.floating[Any]]

MOST_CELLS = 4096
_MOST_FRAMES = 512
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
    laid = _laid_out(cluster.num_gpus, cluster.gpus_per_node, paper, above=above, below=below)
    index = np.arange(laid.count)
    block, place = np.divmod(index, laid.inside)
    x, y = laid.at(block, place)
    rank = index * laid.stands_for
    cells = Cells(
        size=round(laid.pitch * 0.88, 3),
        x=tuple(np.round(x, 2).tolist()),
        y=tuple(np.round(y, 2).tolist()),
        first_rank=tuple(rank.tolist()),
        ranks_per_cell=laid.stands_for,
        tone=_tones(facts, axis, rank) if tone is None else (tone,) * laid.count,
        groups=_groups(facts, rank),
    )
    return cells, _frames(laid)


@record
class _Layout:
    """Where squares stand: in blocks, one for each node, blocks in rows.

    Attributes:
        stands_for: ranks of one square.
        count: squares.
        inside: squares of one block.
        across: squares side by side in a block.
        down: rows of squares in a block.
        columns: blocks side by side.
        pitch: distance of two squares.
        pad: room between two blocks, in pitches.
        left: where the first square begins.
        top: where it begins from above.
    """

    stands_for: int
    count: int
    inside: int
    across: int
    down: int
    columns: int
    pitch: float
    pad: float
    left: float
    top: float

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return -(-self.count // self.inside)

    def at(self, block: IntArray, place: IntArray) -> tuple[FloatArray, FloatArray]:
        """Left and upper edges of squares, by their block and their place in it."""
        column, row = block % self.columns, block // self.columns
        x = self.left + self.pitch * (column * (self.across + self.pad) + place % self.across)
        y = self.top + self.pitch * (row * (self.down + self.pad) + place // self.across)
        return x, y


def _laid_out(num: int, per_node: int, paper: Paper, *, above: float, below: float) -> _Layout:
    """Squares as large as the paper allows."""
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
    return _Layout(
        stands_for=stands_for,
        count=count,
        inside=inside,
        across=across,
        down=down,
        columns=columns,
        pitch=pitch,
        pad=pad,
        left=(paper.width - pitch * columns * (across + pad) + pitch * pad) / 2,
        top=above + pitch * 0.45,
    )


def _groups(facts: PlanFacts, rank: IntArray) -> dict[str, tuple[int, ...]]:
    """The first rank of each rank's group, by axis."""
    groups: dict[str, tuple[int, ...]] = {}
    for name in AXES:
        size, stride = facts.group(name)
        if size > 1:
            groups[name] = tuple((rank - rank // stride % size * stride).tolist())
    return groups


def _tones(facts: PlanFacts, axis: AxisName, rank: IntArray) -> tuple[int, ...]:
    """Eight colours at most, by the position on an axis."""
    size, stride = facts.group(axis)
    position = rank // stride % size
    return tuple((position * 8 // size if size > 8 else position).tolist())


def _frames(laid: _Layout) -> list[Mark]:
    """A frame around every node, with its number where there is room."""
    frames: list[Mark] = []
    if laid.inside == 1 or laid.blocks > _MOST_FRAMES:
        return frames
    pitch, nodes = laid.pitch, np.arange(laid.blocks)
    lefts, tops = laid.at(nodes, np.zeros_like(nodes))
    wide, high = pitch * (laid.across + 0.28), pitch * (laid.down + 0.28)
    for node, (left, top) in enumerate(zip(lefts.tolist(), tops.tolist(), strict=True)):
        x, y = left - pitch * 0.2, top - pitch * 0.2
        frames.append(box(x, y, wide, high, tone="frame"))
        if pitch > 30:
            marked: dict[str, Any] = {"node": node}
            frames.append(text(x + 2, y - 6, "node", tone="soft", **marked))
    return frames
