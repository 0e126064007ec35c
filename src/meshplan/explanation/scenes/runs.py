"""Collectives of a group as the cost model has them, from which their rounds are drawn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshplan.cost.collectives import Collective
from meshplan.explanation.scenes.facts import PlanFacts
from meshplan.explanation.scenes.hops import ring_of
from meshplan.record import record
from meshplan.space.placement import AxisName, axis_group

__all__ = ["Group", "Run"]


@record
class Run:
    """One collective that a group does.

    Attributes:
        kind: which collective.
        buffer_bytes: the whole buffer ``V`` [bytes].
        code: what it is called.
        calls: messages of equal size that the buffer stands for, below 1 where several buffers
            travel as one.
        how: how the cost model does it where it weighs no algorithms: ``sends`` or
            ``deduplicated``.
        beats: code of what is said round by round; empty for the collective's own.
        home: whether it brings back what the one before sent out.
    """

    kind: Collective
    buffer_bytes: float
    code: str = ""
    calls: float = 1.0
    how: str = ""
    beats: str = ""
    home: bool = False

    @property
    def story(self) -> str:
        """Code of what is said round by round."""
        return self.beats or self.kind.value

    def sent_bytes(self, size: int) -> float:
        """What the mean device sends in all rounds [bytes]."""
        turns, chunk = ring_of(self.kind, buffer_bytes=self.buffer_bytes, size=size)
        return turns * chunk

    @property
    def message_bytes(self) -> float:
        """The buffer of one message [bytes]."""
        return self.buffer_bytes / self.calls

    @property
    def name(self) -> str:
        """Code of its words."""
        return self.code or f"collective.{self.kind.value}"


@record
class Group:
    """The devices that take part.

    Attributes:
        axis: letters on the picture.
        size: devices.
        stride: distance of their ranks.
        inside: neighbours of the group that share a node.
        tier: name of the outermost level that they cross.
        step_bytes: what a device sends on the axis in a step [bytes].
        weigh: what the cost model weighs for a collective of a group, see
            :func:`~meshplan.cost.collectives.algorithm_times`.
    """

    axis: str
    size: int
    stride: int
    inside: int
    tier: str
    step_bytes: float
    weigh: Callable[[Run], dict[str, tuple[float, str]]]

    @classmethod
    def of(cls, facts: PlanFacts, axis: AxisName, *, name: str) -> Group:
        """The groups of an axis of the plan."""
        size, stride = facts.group(axis)
        per_node = facts.scenario.cluster.gpus_per_node
        inside = max(min(size, per_node // stride), 1)
        while size % inside:
            inside -= 1
        groups = axis_group(facts.grid, axis)

        def weigh(run: Run) -> dict[str, tuple[float, str]]:
            message = np.array([run.message_bytes])
            return facts.network.algorithms(run.kind, groups, message)

        lanes = (lane.num_bytes for lane in facts.traffic if lane.axis == name)
        return cls(
            axis=facts.replicas_name if name == "dp" else name.upper(),
            size=size,
            stride=stride,
            inside=inside,
            tier=facts.scenario.cluster.tiers[facts.tier_of(axis)].name,
            step_bytes=next(lanes, 0.0),
            weigh=weigh,
        )
