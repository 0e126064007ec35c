"""Which axis the ranks of a process group stand for, when the plan of the run is known."""

from __future__ import annotations

from meshplan.diagnose.records import REDUCTIONS, Axis, CollectiveKind
from meshplan.record import record
from meshplan.space.placement import AxisName, coordinates, ranks_of_group
from meshplan.space.plan import Plan

__all__ = ["Layout"]

# Combinations first where the same ranks serve two axes: the kind of collective decides then.
_AXES: tuple[tuple[AxisName, Axis], ...] = (
    ("tp", "tp"),
    ("etp", "tp"),
    ("cp", "cp"),
    ("ep", "ep"),
    ("pp", "pp"),
    ("dp_cp", "dp"),
    ("dp", "dp"),
    ("dp_shard_cp", "dp"),
    ("dp_shard", "dp"),
    ("dp_replicate", "dp"),
    ("edp", "dp"),
    ("edp_shard", "dp"),
)


@record
class Layout:
    """The process groups of a plan.

    Attributes:
        plan: the plan.
    """

    plan: Plan

    @property
    def num_ranks(self) -> int:
        """Ranks of the job."""
        return self.plan.tp * self.plan.cp * self.plan.dp * self.plan.pp

    def stage_of(self, rank: int) -> int:
        """Pipeline stage of a rank."""
        return coordinates(self.plan, rank)["pp"]

    def axis_of_ranks(self, ranks: tuple[int, ...], kind: CollectiveKind) -> Axis | None:
        """The axis whose group these ranks are; None when they are of no single axis."""
        if len(ranks) < 2 or max(ranks) >= self.num_ranks:
            return None
        first = min(ranks)
        found = [
            axis
            for name, axis in _AXES
            if set(ranks_of_group(self.plan, name, first)) == set(ranks)
        ]
        if not found and set(ranks) <= set(ranks_of_group(self.plan, "pp", first)):
            found = ["pp"]
        return _by_kind(list(dict.fromkeys(found)), kind)

    def axis_of_size(self, size: int, rank: int, kind: CollectiveKind) -> Axis | None:
        """The axis whose groups have this size, or any size when it is 0; None when several do."""
        found = []
        for name, axis in _AXES:
            members = len(ranks_of_group(self.plan, name, rank % self.num_ranks))
            if members > 1 and size in (0, members):
                found.append(axis)
        axes = list(dict.fromkeys(found))
        chosen = _by_kind(axes, kind)
        return chosen if len(axes) == 1 or kind in ("send_recv", "all_to_all") else None

    def ranks_of_axis(self, axis: Axis, rank: int) -> tuple[int, ...]:
        """Ranks that a rank of the job shares the widest group of an axis with; may be empty."""
        if not 0 <= rank < self.num_ranks:
            return ()
        groups = [ranks_of_group(self.plan, name, rank) for name, own in _AXES if own == axis]
        widest = max(groups, key=len, default=())
        return widest if len(widest) > 1 else ()


def _by_kind(axes: list[Axis], kind: CollectiveKind) -> Axis | None:
    """Of axes with the same ranks, the one that uses this kind of collective."""
    if not axes:
        return None
    order: tuple[Axis, ...] = ("tp", "dp", "cp", "ep", "pp")
    if kind == "all_to_all":
        order = ("ep", "cp", "tp", "dp", "pp")
    elif kind == "send_recv":
        order = ("pp", "cp", "ep", "tp", "dp")
    elif kind in REDUCTIONS:
        order = ("tp", "dp", "ep", "cp", "pp")
    return min(axes, key=order.index)
