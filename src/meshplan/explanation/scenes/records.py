"""What a scene is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal

from meshplan.record import record
from meshplan.space.plan import Schedule
from meshplan.units import GIB, MIB, format_memory

__all__ = [
    "ALGORITHMS",
    "AXIS_TONE",
    "NARROW",
    "WIDE",
    "Beat",
    "Cells",
    "Label",
    "Mark",
    "Paper",
    "Scene",
    "WhatIf",
    "amount",
    "beat",
    "box",
    "packet",
    "percent",
    "still",
    "text",
]


@record
class Paper:
    """What a picture is laid out on; whoever draws it scales it.

    Attributes:
        width: extent across.
        height: extent down.
    """

    width: float
    height: float

    @property
    def narrow(self) -> bool:
        """Rows carry their names above them instead of beside them."""
        return self.width < 600.0


WIDE, NARROW = Paper(width=1000.0, height=520.0), Paper(width=380.0, height=560.0)
"""Of a desk and of a phone, on which letters keep their size."""

ALGORITHMS = ("ring", "tree", "ep", "cp", "together")
"""What a person may switch a collective to, see :class:`WhatIf`."""

AXIS_TONE = {"tp": "t0", "cp": "t3", "ep": "t1", "pp": "t2", "dp": "t5"}
"""Colour of each axis, the same in all pictures."""

Kind = Literal["box", "grow", "text", "line", "packet", "curve"]


@record
class Label:
    """Words on a picture: a code of the catalogues, or a literal such as ``TP0``.

    Attributes:
        code: key ``scene.<code>``; empty for a literal.
        numbers: what the sentence mentions.
        literal: shown as it is.
    """

    code: str = ""
    numbers: Mapping[str, object] = field(default_factory=dict)
    literal: str = ""


@record
class Mark:
    """One thing on the picture.

    Attributes:
        kind: ``box``, ``grow`` (a box that fills from its left edge during ``span`` and stays),
            ``text``, ``line`` (from ``x, y`` by ``w, h``), ``packet`` (moves along such a line
            during ``span``) or ``curve`` (through ``points``).
        x: left edge, or where it starts.
        y: upper edge, or where it starts.
        w: width, or distance across.
        h: height, or distance down.
        tone: colour by meaning: ``t0`` to ``t7``, ``muted``, ``accent``, ``good``, ``warn``,
            ``bad``, ``paper``.
        label: words on it.
        title: words that tell more on request.
        span: when it is there, from and to; None for always.
        num_bytes: what a packet carries or a box holds [bytes].
        seconds: real duration that its extent stands for [s].
        points: of a curve.
        anchor: how text stands at its place: ``start``, ``middle`` or ``end``.
        group: things that belong together.
        room: width that a text may take before it goes on in the next line; 0 for any.
    """

    kind: Kind
    x: float = 0.0
    y: float = 0.0
    w: float = 0.0
    h: float = 0.0
    tone: str = "muted"
    label: Label | None = None
    title: Label | None = None
    span: tuple[float, float] | None = None
    num_bytes: float | None = None
    seconds: float | None = None
    points: tuple[tuple[float, float], ...] = ()
    anchor: Literal["start", "middle", "end"] = "start"
    group: str = ""
    room: float = 0.0


@record
class Cells:
    """Many equal squares: ranks, or nodes where there are too many ranks.

    Attributes:
        size: edge of a square.
        x: left edges.
        y: upper edges.
        first_rank: rank that a square stands for, or the first of its ranks.
        ranks_per_cell: ranks that one square stands for.
        tone: index of the colour of each.
        groups: by axis, the lowest rank of the group that each belongs to.
    """

    size: float
    x: tuple[float, ...]
    y: tuple[float, ...]
    first_rank: tuple[int, ...]
    ranks_per_cell: int
    tone: tuple[int, ...]
    groups: Mapping[str, tuple[int, ...]]


@record
class Beat:
    """What happens from a moment on, in words.

    Attributes:
        at_s: moment from which it holds, until the next one [s].
        said: the words; their code is below ``scene.beat``.
    """

    at_s: float
    said: Label


@record
class Scene:
    """One moving picture.

    Attributes:
        mechanism: what it is about.
        mode: how it looks at it.
        duration_s: how long it plays [s]; 0 for a still picture.
        stops: moments at which a stepper halts [s], ascending.
        marks: what is drawn, back to front.
        cells: the map of ranks, where there is one.
        caption: words under it; ``scene.field.<code>`` and ``scene.kitchen.<code>`` say it twice.
        facts: numbers that the picture stands for, by name.
        controls: what a person may vary in it: ``pipeline``, ``collective`` or nothing.
        opens_s: moment at which it is first shown [s].
        paper: what it is laid out on, as tall as what is drawn.
        beats: what happens when, ascending in time.
    """

    mechanism: str
    mode: str
    duration_s: float
    stops: tuple[float, ...]
    marks: tuple[Mark, ...]
    cells: Cells | None = None
    caption: Label
    facts: Mapping[str, float | str]
    controls: str = ""
    opens_s: float = 0.0
    paper: Paper = WIDE
    beats: tuple[Beat, ...] = ()


def still(
    mechanism: str,
    marks: Sequence[Mark],
    facts: Mapping[str, float | str],
    paper: Paper,
    *,
    mode: str,
    **numbers: object,
) -> Scene:
    """Make a picture that does not move.

    Args:
        mechanism: what it is about.
        marks: what is drawn, back to front.
        facts: numbers that the picture stands for, by name.
        paper: what it is laid out on.
        mode: how it looks at the mechanism.
        numbers: what its caption says.
    """
    return Scene(
        mechanism=mechanism,
        mode=mode,
        duration_s=0.0,
        stops=(),
        marks=tuple(marks),
        caption=Label(code=f"{mechanism}.{mode}", numbers=numbers),
        facts=facts,
        paper=paper,
    )


@record
class WhatIf:
    """A pipeline or a collective that a person plays with, beside the plan in hand.

    Attributes:
        schedule: its schedule; None for the plan's.
        pp: its stages; 0 for the plan's.
        num_micro_batches: its micro-batches; 0 for the plan's.
        num_layers: layers of the model; 0 for the model's own.
        algorithm: how a collective is done, or which of several is shown; empty for the first
            that the picture offers.
    """

    schedule: Schedule | None = None
    pp: int = 0
    num_micro_batches: int = 0
    num_layers: int = 0
    algorithm: str = ""


def amount(num_bytes: float) -> str:
    """Print bytes so that small messages keep their digits: MiB below one GiB."""
    if num_bytes >= GIB or not num_bytes:
        return format_memory(num_bytes)
    return f"{num_bytes / MIB:.3g} MiB" if num_bytes < 1000 * MIB else f"{num_bytes / MIB:.0f} MiB"


def percent(share: float) -> str:
    """Print a share; what is there but too small for a digit is not nothing."""
    return "<0.1%" if 0 < share < 5e-4 else f"{share:.1%}"


def beat(at_s: float, code: str, /, **numbers: object) -> Beat:
    """Words from a moment on; ``code`` is below ``scene.beat``."""
    return Beat(at_s=at_s, said=Label(code=f"beat.{code}", numbers=numbers))


def text(
    x: float,
    y: float,
    code: str = "",
    /,
    *,
    literal: str = "",
    tone: str = "ink",
    anchor: Literal["start", "middle", "end"] = "start",
    span: tuple[float, float] | None = None,
    room: float = 0.0,
    **numbers: object,
) -> Mark:
    """Words at a place."""
    label = Label(code=code, numbers=numbers, literal=literal)
    return Mark(kind="text", x=x, y=y, label=label, tone=tone, anchor=anchor, span=span, room=room)


def box(
    x: float,
    y: float,
    w: float,
    h: float,
    *,
    tone: str = "muted",
    literal: str = "",
    title: Label | None = None,
    span: tuple[float, float] | None = None,
    num_bytes: float | None = None,
    seconds: float | None = None,
    group: str = "",
) -> Mark:
    """A rectangle with a short word on it."""
    label = Label(literal=literal) if literal else None
    return Mark(
        kind="box",
        x=x,
        y=y,
        w=w,
        h=h,
        tone=tone,
        label=label,
        title=title,
        span=span,
        num_bytes=num_bytes,
        seconds=seconds,
        group=group,
    )


def packet(
    start: tuple[float, float],
    end: tuple[float, float],
    span: tuple[float, float],
    *,
    num_bytes: float,
    tone: str = "accent",
    literal: str = "",
    group: str = "",
) -> Mark:
    """Something that moves from one place to another."""
    return Mark(
        kind="packet",
        x=start[0],
        y=start[1],
        w=end[0] - start[0],
        h=end[1] - start[1],
        span=span,
        num_bytes=num_bytes,
        tone=tone,
        label=Label(literal=literal) if literal else None,
        title=Label(code="title.packet", numbers={"sent_bytes": num_bytes}),
        group=group,
    )
