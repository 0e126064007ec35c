"""What each member of a collective holds, part by part, and what happens round by round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshplan.cost.collectives import Collective
from meshplan.explanation.scenes.hops import Hop
from meshplan.explanation.scenes.records import Beat, Mark, beat, box
from meshplan.record import record

__all__ = ["Held", "beats_of", "held", "shelf"]

_FOREVER = 1e9
_REDUCED = (Collective.REDUCE_SCATTER, Collective.ALL_REDUCE)


@record
class Held:
    """A part of the buffer at a member, while it stays as it is.

    Attributes:
        member: its place in the group.
        place: where among its parts it stands.
        tone: index of its colour: the part, or whom it is for.
        shares: contributions that are in it, as many as there are members when it is whole.
        since: round from which it is there.
        until: round from which it is not.
    """

    member: int
    place: int
    tone: int
    shares: int
    since: float
    until: float


def held(
    kind: Collective, hops: Sequence[Hop], *, size: int, home: bool = False
) -> tuple[Held, ...]:
    """Follow every part through the rounds of a ring or an exchange.

    Args:
        kind: which collective.
        hops: its messages.
        size: members that are drawn.
        home: whether an exchange brings back what an earlier one sent out.
    """
    if kind is Collective.ALL_TO_ALL:
        return tuple(_swapped(hops, size=size, home=home))
    summed = kind in _REDUCED
    now: dict[tuple[int, int], tuple[float, int]] = {
        (i, part): (0.0, 1 if summed else size)
        for i in range(size)
        for part in (range(size) if summed else (i,))
    }
    found: list[Held] = []

    def close(member: int, part: int, until: float) -> int:
        since, shares = now.pop((member, part))
        kept = {"member": member, "place": part, "tone": part, "shares": shares}
        found.append(Held(**kept, since=since, until=until))
        return shares

    for turn in sorted({hop.turn for hop in hops}):
        sent = [hop for hop in hops if hop.turn == turn]
        if summed and turn < size - 1:  # the receiver adds its own share to what comes
            carried = [close(hop.source, hop.part, turn + 1.0) for hop in sent]
            own = [close(hop.target, hop.part, turn + 1.0) for hop in sent]
            sums = [a + b for a, b in zip(carried, own, strict=True)]
        else:
            sums = [size] * len(sent)
        for hop, shares in zip(sent, sums, strict=True):
            now[hop.target, hop.part] = (turn + 1.0, shares)
    for member, part in list(now):
        close(member, part, _FOREVER)
    return tuple(found)


def _swapped(hops: Iterable[Hop], *, size: int, home: bool) -> Iterable[Held]:
    """An exchange: what is for another member makes room for what comes from one."""
    for i in range(size):
        yield Held(member=i, place=0, tone=i, shares=size, since=0.0, until=_FOREVER)
    for hop in hops:
        place = hop.turn + 1
        came_from = (hop.source - place) % size
        before, after = (hop.source, came_from) if home else (hop.target, hop.source)
        kept = {"member": hop.source, "place": place, "shares": size}
        yield Held(**kept, tone=before, since=0.0, until=hop.turn + 1.0)
        yield Held(**kept, tone=after, since=hop.turn + 1.0, until=_FOREVER)


def shelf(
    parts: Iterable[Held],
    where: Sequence[tuple[float, float]],
    *,
    size: int,
    begin: float,
    end: float,
    extent: tuple[float, float],
) -> list[Mark]:
    """Draw what the members hold as bars under their boxes, as high as their contributions.

    Args:
        parts: what is held when.
        where: upper left corners of the bars of each member.
        size: members that are drawn.
        begin: moment of the first round [s].
        end: moment at which the next collective takes the room [s].
        extent: width and height of the bars of a member.
    """
    wide, tall = extent
    each = wide / size
    marks = [box(x, y, wide, tall, tone="track", span=(begin, end)) for x, y in where]
    for part in parts:
        x, y = where[part.member]
        high = tall * part.shares / size
        span = (begin + part.since, min(begin + part.until, end))
        left = x + part.place * each
        tone = f"t{part.tone % 8}"
        marks.append(
            box(left, y + tall - high, each * 0.86, high, tone=tone, span=span, group="held")
        )
    return marks


def beats_of(
    kind: Collective, story: str, *, turns: int, size: int, begin: float, last: bool
) -> list[Beat]:
    """Say what happens in every round, and at the end what has come of it.

    Args:
        kind: which collective.
        story: code of its beats.
        turns: rounds that are drawn.
        size: members that are drawn.
        begin: moment of the first round [s].
        last: whether no other collective follows.
    """
    said = []
    for turn in range(turns):
        code = story
        if kind is Collective.ALL_REDUCE:
            code = f"{story}.sum" if turn < size - 1 else f"{story}.share"
        said.append(beat(begin + turn, code, round=turn + 1, rounds=turns, size=size))
    if last and turns:
        said.append(beat(begin + turns, f"{story}.done", size=size))
    return said
