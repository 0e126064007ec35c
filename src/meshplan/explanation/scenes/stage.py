"""Where the members of a collective stand, and the panels beside them."""

from __future__ import annotations

from meshplan.record import record

__all__ = ["NARROW_STAGE", "WIDE_STAGE", "Point", "Stage"]

Point = tuple[float, float]


@record
class Stage:
    """Where things stand: the ring or the trees, and the panels of the collectives.

    Attributes:
        centre: of the ring.
        radius: of the ring.
        trees: width of the trees.
        tree_tops: where each tree begins.
        fall: height of a tree.
        foot: where the remark on the members stands; under the trees and under the ring.
        panel: upper left corner of the first panel, its width and its height.
        tree_panel: upper edge of the panel beside or under the trees.
        line: from one line of a panel to the next.
        remark: upper left corner of a note on trees.
        member: width and height of a member of the ring.
    """

    centre: Point
    radius: float
    trees: float
    tree_tops: tuple[float, float]
    fall: float
    foot: tuple[float, float]
    panel: tuple[float, float, float, float]
    tree_panel: float
    line: float
    remark: Point
    member: Point


WIDE_STAGE = Stage(
    centre=(330.0, 258.0),
    radius=165.0,
    trees=600.0,
    tree_tops=(62.0, 294.0),
    fall=150.0,
    foot=(508.0, 508.0),
    panel=(644.0, 60.0, 356.0, 148.0),
    tree_panel=60.0,
    line=22.0,
    remark=(660.0, 246.0),
    member=(72.0, 28.0),
)
NARROW_STAGE = Stage(
    centre=(190.0, 134.0),
    radius=104.0,
    trees=380.0,
    tree_tops=(44.0, 206.0),
    fall=92.0,
    foot=(332.0, 288.0),
    panel=(0.0, 304.0, 380.0, 120.0),
    tree_panel=348.0,
    line=20.0,
    remark=(12.0, 500.0),
    member=(56.0, 22.0),
)
