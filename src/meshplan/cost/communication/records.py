"""Traffic as bytes and seconds, and the network that turns the one into the other."""

from __future__ import annotations

from dataclasses import field

import numpy as np
import numpy.typing as npt

from meshplan.cost.collectives import Collective, algorithm_times, collective_time, send_time
from meshplan.cost.factoring import Factored
from meshplan.cost.operators import merged_share
from meshplan.cost.routes import route
from meshplan.cost.surfaces import constant
from meshplan.cost.tuning import Tuning
from meshplan.inputs.cluster import Cluster
from meshplan.inputs.model import Moe
from meshplan.record import record
from meshplan.space.placement import AxisGroup, members_per_tier, tier_groups_spanned

__all__ = ["Network", "Traffic"]

FloatArray = npt.NDArray[np.float64]


@record
class Traffic:
    """What one device sends, and how long that takes when nothing else runs.

    Attributes:
        num_bytes: bytes that one device sends [bytes], ``(num_plans,)``.
        seconds: time alone on the network [s], ``(num_plans,)``.
        num_calls: collectives and sends that the host launches, ``(num_plans,)``.
    """

    num_bytes: FloatArray
    seconds: FloatArray
    num_calls: FloatArray

    @classmethod
    def none(cls, num_plans: int) -> Traffic:
        """No traffic."""
        nothing = np.zeros(num_plans)
        return cls(num_bytes=nothing, seconds=nothing, num_calls=nothing)

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            num_bytes=self.num_bytes + other.num_bytes,
            seconds=self.seconds + other.seconds,
            num_calls=self.num_calls + other.num_calls,
        )

    def expand(self, factored: Factored) -> Traffic:
        """Spread the traffic of distinct plans to all plans."""
        return Traffic(
            num_bytes=factored.expand(self.num_bytes),
            seconds=factored.expand(self.seconds),
            num_calls=factored.expand(self.num_calls),
        )

    def at(self, places: slice) -> Traffic:
        """The traffic of some of the plans."""
        return Traffic(
            num_bytes=self.num_bytes[places],
            seconds=self.seconds[places],
            num_calls=self.num_calls[places],
        )

    def times(self, count: FloatArray | float) -> Traffic:
        """The same traffic ``count`` times, one after another."""
        return Traffic(
            num_bytes=self.num_bytes * count,
            seconds=self.seconds * count,
            num_calls=self.num_calls * count,
        )


@record
class Network:
    """The network of a cluster as the groups of a plan see it.

    Attributes:
        cluster: devices and levels.
        tuning: factors of the profile.
    """

    cluster: Cluster
    tuning: Tuning
    _known: dict[int, tuple[AxisGroup, FloatArray]] = field(default_factory=dict, repr=False)

    def _members(self, group: AxisGroup) -> FloatArray:
        """Members of a group that share one group of each tier, found once for each axis."""
        found = self._known.get(id(group))
        if found is None:
            members = members_per_tier(self.cluster, group.size, group.stride).astype(np.float64)
            # the group is kept with them, so that no other takes its identity
            found = self._known[id(group)] = (group, members)
        return found[1]

    def collective(
        self,
        kind: Collective,
        group: AxisGroup,
        message_bytes: FloatArray,
        *,
        busy_share: FloatArray | float = 1.0,
        merged: FloatArray | float = 1.0,
    ) -> Traffic:
        """One collective in every group of an axis at the same time.

        Equation: a device sends ``V (N - 1) / N``, and twice that in an all-reduce. Nothing is
        launched for an empty buffer or a group of one.

        Args:
            kind: which collective.
            group: size and stride of the groups.
            message_bytes: the whole buffer ``V`` [bytes].
            busy_share: see :func:`~meshplan.cost.collectives.collective_time`.
            merged: messages of that size that travel as one; the time is a share of theirs.
        """
        launched = (group.size > 1) & (message_bytes > 0)
        if not launched.any():
            return Traffic.none(len(group.size))
        size = group.size.astype(np.float64)
        passes = 2.0 if kind is Collective.ALL_REDUCE else 1.0
        seconds = collective_time(
            self.cluster,
            kind,
            message_bytes=message_bytes * merged,
            members=self._members(group),
            busy_share=busy_share,
            tuning=self.tuning,
        )
        num_bytes = passes * message_bytes * (size - 1.0) / size
        return Traffic(
            num_bytes=num_bytes,
            seconds=np.where(launched, seconds / merged, 0.0),
            num_calls=np.where(launched, 1.0 / merged, 0.0),
        )

    def algorithms(
        self, kind: Collective, group: AxisGroup, message_bytes: FloatArray
    ) -> dict[str, tuple[float, str]]:
        """Algorithms that a collective of one group is weighed by, fastest first.

        See :func:`~meshplan.cost.collectives.algorithm_times`.
        """
        return algorithm_times(
            self.cluster,
            kind,
            message_bytes=message_bytes,
            members=self._members(group),
            tuning=self.tuning,
        )

    def send(
        self,
        group: AxisGroup,
        message_bytes: FloatArray,
        *,
        busy_share: FloatArray | float = 1.0,
    ) -> Traffic:
        """A send from each device to its neighbour in the groups of an axis.

        Where some neighbours share a node and others do not, all sends take as long as the
        longest: a pipeline runs at the pace of its slowest hop.
        """
        active = group.size > 1
        tier_index = np.zeros(group.size.shape, dtype=np.int64)
        spans = tier_groups_spanned(self.cluster, size=group.size, stride=group.stride)
        for spanned in spans[:-1]:
            tier_index = tier_index + (spanned > 1)
        # only the last stage inside a node sends through its cards
        busy_share = np.minimum(1.0, group.stride / self.cluster.gpus_per_node) * busy_share
        message = np.where(active, message_bytes, 0.0)
        seconds = send_time(
            self.cluster,
            message_bytes=message,
            tier_index=tier_index,
            busy_share=busy_share,
            tuning=self.tuning,
        )
        return Traffic(
            num_bytes=message,
            seconds=np.where(active, seconds, 0.0),
            num_calls=np.where(active, 1.0, 0.0),
        )

    def deduplicated_exchange(
        self, group: AxisGroup, message_bytes: FloatArray, *, moe: Moe
    ) -> Traffic:
        """An exchange of tokens that sends no token twice to one node or to one device.

        Equation: with ``p(n)`` the share of ``k`` copies that remains when they are merged over
        ``n`` places, the network carries ``V p(D) (D - 1) / D`` of a device to other nodes, and
        the links inside a node ``V p(N) (m - 1) / m``; the slower one counts [1]_.

        Args:
            group: size and stride of the groups.
            message_bytes: all copies of the tokens of one device, ``V`` [bytes].
            moe: experts per token, ``k``, and the groups that they come from.

        References:
            .. [1] DeepSeek-AI, DeepEP; arXiv:2603.07685, section 4 (HybridEP).
        """
        members = self._members(group)
        path = route(self.cluster, members=members, tuning=self.tuning)
        remote = message_bytes * merged_share(path.domains, moe)
        leaving = remote * (path.domains - 1.0) / path.domains
        reached = path.device_bytes_per_s * constant("dispatch_network_efficiency")
        outer = leaving / reached + path.outer_latency_s
        inside = message_bytes * merged_share(path.size, moe)
        inside = inside * (path.inside - 1.0) / path.inside
        rate = path.link_bytes_per_s * constant("dispatch_efficiency")
        inner = inside / rate + path.inner_latency_s
        seconds = np.maximum(np.where(path.domains > 1, outer, 0.0), inner)
        num_bytes = leaving + inside
        active = group.size > 1
        return Traffic(
            num_bytes=num_bytes,
            seconds=np.where(active, seconds, 0.0),
            num_calls=np.where(active, 1.0, 0.0),
        )
