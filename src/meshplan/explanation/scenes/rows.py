"""Rows of boxes with a name each, of which most transformations are made."""

from __future__ import annotations

from meshplan.explanation.scenes.records import Mark, Paper, box, text
from meshplan.record import record

__all__ = ["CUT_S", "Rows", "enlarged", "later", "row", "widths"]

CUT_S = 2.0
"""How long one act takes [s]."""

_MOST = 16


def later(stage: int) -> tuple[float, float]:
    """From the given act of the play to its end, and beyond."""
    return stage * CUT_S, 1e9


@record
class Rows:
    """Rows with a name each: beside them, or above them where the paper is narrow."""

    paper: Paper
    top: float = 50.0
    pitch: float = 110.0

    @property
    def left(self) -> float:
        """Left edge of the boxes."""
        return 0.0 if self.paper.narrow else 150.0

    @property
    def width(self) -> float:
        """Width of a whole row."""
        return self.paper.width - self.left

    def y(self, row: int) -> float:
        """Upper edge of the boxes of a row."""
        return self.top + row * self.pitch + (8.0 if self.paper.narrow else 0.0)

    def name(self, row: int, code: str = "", *, literal: str = "") -> Mark:
        """The name of a row."""
        if self.paper.narrow:
            return text(0, self.y(row) - 10.0, code, literal=literal, tone="strong")
        y, room = self.y(row) + 31.0, self.left - 8.0
        return text(0, y, code, literal=literal, tone="strong", room=room)


def widths(count: int, width: float, *, gap: float = 5.0) -> tuple[int, float]:
    """How many boxes of a row are drawn, and how wide each is."""
    shown = min(count, _MOST, int(width // 42))
    return shown, (width - gap * (shown - 1)) / shown


def enlarged(rows: Rows, number: int, *, wide: float, act: int) -> list[Mark]:
    """Lines from the first box of the row above to the ends of a row: it is that box, enlarged."""
    if rows.paper.narrow:
        return []
    upper, lower = rows.y(number - 1) + 52.0 + 4.0, rows.y(number) - 4.0
    return [
        Mark(
            kind="line", x=start, y=upper, w=across, h=lower - upper, tone="frame", span=later(act)
        )
        for start, across in ((rows.left, 0.0), (rows.left + wide, rows.width - wide))
    ]


def row(
    y: float,
    count: int,
    *,
    left: float,
    width: float,
    height: float = 52.0,
    names: str = "",
    tone: str = "",
    act: int = 0,
    num_bytes: float | None = None,
    group: str = "",
) -> list[Mark]:
    """Equal boxes side by side; beyond a limit the rest shows as dots."""
    gap = 5.0
    shown, each = widths(count, width, gap=gap)
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
                span=later(act),
                num_bytes=num_bytes,
                group=group,
            )
        )
    return marks
