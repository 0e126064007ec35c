"""Collectives round by round: who sends how many bytes to whom.

What one device sends in all rounds together is what the cost model counts for it; in a tree, where
leaves send less than the rest, that holds for the mean device.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshplan.cost.collectives import Collective
from meshplan.record import record

__all__ = [
    "Hop",
    "double_tree",
    "pairwise",
    "ring",
    "ring_of",
    "tree_depth",
    "tree_parents",
]


@record
class Hop:
    """One message.

    Attributes:
        turn: round in which it travels, from 0.
        source: place of the sender in the group.
        target: place of the receiver.
        num_bytes: what it carries [bytes].
        part: which part of the buffer it carries, or which tree it belongs to.
    """

    turn: int
    source: int
    target: int
    num_bytes: float
    part: int


def ring_of(kind: Collective, *, buffer_bytes: float, size: int) -> tuple[int, float]:
    """Rounds of a ring collective, and what a device sends in each.

    Equation: a ring of ``N`` passes ``V / N`` on ``N - 1`` times, twice that often in an
    all-reduce.

    Args:
        kind: which collective.
        buffer_bytes: the whole buffer ``V`` [bytes].
        size: devices ``N``.

    Returns:
        Rounds, and bytes per round.
    """
    passes = 2 if kind is Collective.ALL_REDUCE else 1
    return passes * (size - 1), buffer_bytes / size


def ring(kind: Collective, *, chunk_bytes: float, size: int) -> Iterator[Hop]:
    """Every device passes one part on to the next, in every round another one.

    What is summed ends at the device of its number, as in NCCL; what is gathered begins there.
    """
    turns, _ = ring_of(kind, buffer_bytes=0.0, size=size)
    ahead = 1 if kind in (Collective.REDUCE_SCATTER, Collective.ALL_REDUCE) else 0
    for turn in range(turns):
        for i in range(size):
            part = (i - turn - ahead) % size
            yield Hop(turn=turn, source=i, target=(i + 1) % size, num_bytes=chunk_bytes, part=part)


def pairwise(*, chunk_bytes: float, size: int) -> Iterator[Hop]:
    """An all-to-all: in round ``r`` every device sends to the one ``r`` places on."""
    for turn in range(size - 1):
        for i in range(size):
            target = (i + turn + 1) % size
            yield Hop(turn=turn, source=i, target=target, num_bytes=chunk_bytes, part=target)


def tree_parents(
    size: int, *, inside: int = 1
) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
    """Parents in the two trees of an all-reduce; None for the root.

    Over nodes, the first tree hangs node ``i`` under the node that has its lowest set bit moved up
    by one, with 0 above all; the second is the first mirrored, or turned by one where their number
    is odd. A node is a leaf in one of them and has children in the other, so that both directions
    of every link are busy [1]_. Members of a node form a chain below the one that is in the tree.

    Args:
        size: devices of the group.
        inside: neighbours that share a node.

    References:
        .. [1] Sanders, Speck and Träff, Two-tree algorithms, 2009; NCCL, src/graph/trees.cc.
    """
    nodes = size // inside
    above = tuple(_parent(i, nodes) for i in range(nodes))

    def other(i: int) -> int:
        return nodes - 1 - i if nodes % 2 == 0 else (i + nodes - 1) % nodes

    def back(i: int) -> int:
        return nodes - 1 - i if nodes % 2 == 0 else (i + 1) % nodes

    mirrored = [above[other(i)] for i in range(nodes)]
    second = tuple(None if parent is None else back(parent) for parent in mirrored)
    return _chained(above, inside, first=0), _chained(second, inside, first=inside - 1)


def _parent(i: int, size: int) -> int | None:
    if i == 0:
        return None
    bit = i & -i
    above = (i ^ bit) | (bit << 1)
    return above if above < size else i ^ bit


def _chained(above: tuple[int | None, ...], inside: int, *, first: int) -> tuple[int | None, ...]:
    """Devices instead of nodes: the first of a node is in the tree, the others follow it."""
    step = 1 if first == 0 else -1
    parents: list[int | None] = []
    for node, parent in enumerate(above):
        for place in range(inside):
            if place != first:
                parents.append(node * inside + place - step)
            else:
                parents.append(None if parent is None else parent * inside + first)
    return tuple(parents)


def double_tree(*, buffer_bytes: float, size: int, inside: int = 1) -> list[Hop]:
    """An all-reduce over two trees that carry half of the buffer each.

    Contributions are added on the way up, the sum comes down the same way. Both trees together
    send ``2 (N - 1) V`` over ``N`` devices: per device as much as a ring.
    """
    hops: list[Hop] = []
    half = buffer_bytes / 2.0
    for tree, parents in enumerate(tree_parents(size, inside=inside)):
        depth = [tree_depth(i, parents) for i in range(size)]
        deepest = max(depth)
        for i, parent in enumerate(parents):
            if parent is None:
                continue
            up, down = deepest - depth[i], deepest + depth[i] - 1
            hops.append(Hop(turn=up, source=i, target=parent, num_bytes=half, part=tree))
            hops.append(Hop(turn=down, source=parent, target=i, num_bytes=half, part=tree))
    return sorted(hops, key=lambda hop: (hop.turn, hop.part, hop.source))


def tree_depth(i: int, parents: tuple[int | None, ...]) -> int:
    """Hops from a place up to the root."""
    steps = 0
    while (above := parents[i]) is not None:
        i, steps = above, steps + 1
    return steps
