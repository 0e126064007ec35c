"""What findings rest on: means over the steady steps of each rank, and ranks side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from statistics import fmean, median

from meshplan.diagnose.findings.flows import (
    ChannelKey,
    Flow,
    calls_of,
    channel_of,
    flows_of_rank,
    quantile,
    weighted_median,
)
from meshplan.diagnose.findings.records import Context
from meshplan.diagnose.findings.replay import saved_us
from meshplan.diagnose.findings.thresholds import threshold
from meshplan.diagnose.machine import domain_gpus, machine_of
from meshplan.diagnose.names import measure_constant
from meshplan.diagnose.records import Axis, CollectiveKind, RankMeasures, RunMeasures
from meshplan.inputs.cluster import Cluster
from meshplan.space.placement import AxisName, axis_group
from meshplan.space.plan import PlanGrid

__all__ = ["Facts"]

_GROUPS: Mapping[Axis, tuple[AxisName, ...]] = {
    "tp": ("tp", "etp"),
    "cp": ("cp",),
    "ep": ("ep",),
    "pp": ("pp",),
    "dp": ("dp_shard_cp", "dp_cp", "dp", "edp_shard", "edp", "dp_replicate"),
}
"""Groups of ranks that the traffic of an axis may use, the likeliest first."""


class Facts:
    """Derived values of one run, worked out when they are asked for.

    Args:
        run: what was measured.
        context: what is known besides.
    """

    def __init__(self, run: RunMeasures, context: Context) -> None:
        self.run, self.context = run, context

    @cached_property
    def ranks(self) -> tuple[RankMeasures, ...]:
        """Ranks with steps to look at."""
        return tuple(r for r in self.run.ranks if r.steps)

    @cached_property
    def step_us(self) -> float:
        """The step: mean over the steady steps, median over the ranks [us]."""
        return median(self.mean(r, "wall_us") for r in self.ranks) if self.ranks else 0.0

    @staticmethod
    def mean(rank: RankMeasures, name: str) -> float:
        """Mean over the steady steps of one attribute of their ``time``."""
        return fmean(float(getattr(step.time, name)) for step in rank.steady)

    def share(self, us: float) -> float:
        """Microseconds as a share of the step."""
        return us / self.step_us if self.step_us > 0 else 0.0

    @cached_property
    def compute_us(self) -> dict[int, float]:
        """Compute time of a step by rank."""
        return {r.rank: self.mean(r, "compute_us") for r in self.ranks}

    def last_to_wait(self, name: str, *, among: tuple[int, ...] = ()) -> dict[int, float]:
        """One part of the idle time by rank, of each step on the rank that has most of it.

        The rank whose host comes last differs from step to step; the others wait for it in
        collectives. The value of a rank is the sum over the steps in which it is that rank, over
        the number of steps [us]. Ranks may be named that alone are looked at.
        """
        chosen = [r for r in self.ranks if r.rank in among] or self.ranks
        made = {r.rank: 0.0 for r in chosen}
        steps: dict[str, dict[int, float]] = {}
        for rank in chosen:
            for step in rank.steady:
                value = float(getattr(step.idle, name))
                steps.setdefault(step.name, {})[rank.rank] = value
        for values in steps.values():
            worst = max(values, key=lambda r: values[r])
            made[worst] += values[worst] / len(steps)
        return made

    def pace_rank(self, flows: Iterable[Flow]) -> int | None:
        """Of the ranks of some flows the one that waits least: the others wait for it."""
        ranks = {flow.rank for flow in flows}
        waits = {rank: 0.0 for rank in ranks}
        for flow in self.flows:
            if flow.rank in ranks:
                pipeline = flow.traffic.axis == "pp"
                waits[flow.rank] += flow.exposed_us if pipeline else flow.wait_us
        return min(waits, key=lambda r: waits[r]) if waits else None

    @property
    def steps_marked(self) -> bool:
        """Whether steps are told apart, so that what starts a run is not in them."""
        return any(len(rank.steps) > 1 or rank.steps[0].name != "whole" for rank in self.ranks)

    # -- groups of ranks ---------------------------------------------------------------------

    @cached_property
    def gpus_per_node(self) -> int | None:
        """GPUs that share a node: as many as the traces list, or those of the cluster.

        A trace that lists one device says little: its process may have been shown its own alone.
        """
        listed = {r.num_devices for r in self.ranks if r.num_devices}
        stated = self.context.cluster
        if len(listed) == 1 and (max(listed) > 1 or stated is None):
            return listed.pop()
        return None if stated is None else stated.gpus_per_node

    @cached_property
    def machine(self) -> tuple[Cluster | None, bool]:
        """The cluster, and whether it was stated; see :func:`machine_of`."""
        return machine_of(
            self.context.cluster,
            node=self.gpus_per_node,
            devices=frozenset(r.device for r in self.ranks if r.device),
            world=self.world_size,
        )

    @cached_property
    def domain_gpus(self) -> int | None:
        """GPUs of a scale-up domain: those of the machine, else of a node; None when unknown."""
        cluster, _ = self.machine
        return self.gpus_per_node if cluster is None else domain_gpus(cluster)

    @cached_property
    def world_size(self) -> int:
        """Ranks of the job, as far as known."""
        stated = [r.world_size for r in self.ranks if r.world_size]
        return max([*stated, *(r.rank + 1 for r in self.ranks)], default=0)

    @cached_property
    def stages(self) -> tuple[tuple[int, ...], ...]:
        """Measured ranks of each pipeline stage; all in one when no stages are known."""
        known = tuple(r.rank for r in self.ranks)
        if self.run.stages:
            return tuple(stage.ranks for stage in self.run.stages)
        per_stage = self.world_size // self._pipeline_size
        stages = [
            tuple(r for r in known if r // per_stage == stage)
            for stage in range(self._pipeline_size)
        ]
        return tuple(ranks for ranks in stages if ranks) if len(stages) > 1 else (known,)

    @cached_property
    def _pipeline_size(self) -> int:
        """Stages as the groups that send between them are large; 1 when they do not say.

        Every framework numbers the stages last, see :mod:`meshplan.space.placement`.
        """
        sizes = {f.traffic.group_size for f in self.flows_of("pp") if f.traffic.group_size > 1}
        size = max(sizes, default=1)
        return size if self.world_size % size == 0 and self.world_size > size else 1

    @cached_property
    def num_stages(self) -> int:
        """Stages of the pipeline; 1 when none is known."""
        plan = self.context.plan
        return plan.pp if plan is not None else max(len(self.run.stages), self._pipeline_size)

    @cached_property
    def stages_hidden(self) -> bool:
        """Whether ranks send to each other on an axis that is not known: there may be stages.

        Each stage of a pipeline sends or receives twice for a micro-batch, or more often.
        """
        sends = any(flow.count >= 2 for flow in self.flows_of("unknown", kinds=("send_recv",)))
        return sends and self.num_stages == 1 and self.context.plan is None

    # -- how fast a device is ----------------------------------------------------------------

    @cached_property
    def per_call_us(self) -> dict[int, dict[str, tuple[float, float]]]:
        """By rank and compute kernel: mean time of a call and time of all calls of a step [us]."""
        fewest = threshold("common_calls")
        made: dict[int, dict[str, tuple[float, float]]] = {}
        for rank in self.ranks:
            sums: dict[str, list[float]] = {}
            for step in rank.steady:
                for kernel in step.kernels:
                    if kernel.kind == "compute":
                        entry = sums.setdefault(kernel.name, [0.0, 0.0])
                        entry[0] += kernel.count
                        entry[1] += kernel.total_us
            num = len(rank.steady)
            made[rank.rank] = {
                name: (total / count, total / num)
                for name, (count, total) in sums.items()
                if count >= fewest
            }
        return made

    @cached_property
    def ratios(self) -> dict[int, dict[str, tuple[float, float]]]:
        """By rank and kernel: time of a call over that of fast peers, and its time per step.

        Peers are the ranks of the same stage, which run the same kernels on the same shapes; a
        stage of one rank is put beside all others.
        """
        made: dict[int, dict[str, tuple[float, float]]] = {}
        for stage in self.stages:
            peers = stage if len(stage) > 1 else tuple(self.per_call_us)
            for rank in stage:
                found = {}
                for name, (call, total) in self.per_call_us.get(rank, {}).items():
                    others = [
                        self.per_call_us[p][name][0]
                        for p in peers
                        if name in self.per_call_us.get(p, {})
                    ]
                    if len(others) > 1:
                        found[name] = (call / quantile(others, threshold("fast_peers")), total)
                made[rank] = found
        return made

    @cached_property
    def slowdown(self) -> dict[int, float]:
        """By rank: by how much all its kernels are slower than those of fast peers."""
        q, least = threshold("straggler_quantile"), threshold("kernel_share")
        on_host = {r.rank for r in self.ranks if r.on_host}
        made = {}
        for rank, found in self.ratios.items():
            known = [(r, us) for r, us in found.values() if us >= least * self.compute_us[rank]]
            if rank in on_host:
                # operators hold each other: those that take most time are the work itself
                made[rank] = weighted_median(known)
            else:
                made[rank] = quantile((r for r, _ in known), q) if known else 1.0
        return made

    @cached_property
    def work_us(self) -> dict[int, float]:
        """Compute time of a step by rank, as it would be on a device of the usual speed."""
        return {rank: us / self.slowdown.get(rank, 1.0) for rank, us in self.compute_us.items()}

    @cached_property
    def stage_work_us(self) -> list[float]:
        """Compute time of each stage on devices of the usual speed, per step [us]."""
        return [
            median(self.work_us[r] for r in ranks if r in self.work_us) for ranks in self.stages
        ]

    @property
    def slow_from(self) -> float:
        """From which slowdown on a rank is a straggler."""
        on_host = any(rank.on_host for rank in self.ranks)
        return threshold("straggler_ratio_on_host" if on_host else "straggler_ratio")

    # -- traffic -----------------------------------------------------------------------------

    @cached_property
    def flows(self) -> tuple[Flow, ...]:
        """Traffic of all ranks, means over their steady steps."""
        return tuple(flow for rank in self.ranks for flow in flows_of_rank(rank))

    def flows_of(self, *axes: Axis, kinds: Iterable[CollectiveKind] = ()) -> Iterator[Flow]:
        """Traffic on some axes, of some kinds (all when none is named)."""
        wanted = tuple(kinds)
        for flow in self.flows:
            if flow.traffic.axis in axes and (not wanted or flow.traffic.kind in wanted):
                yield flow

    def last_to_come_us(self, *axes: Axis, kinds: Iterable[CollectiveKind] = ()) -> float:
        """Exposed traffic of the rank that waits least, per step [us].

        The members of a group that come early wait inside the collective; the one that comes
        last shows what the traffic itself costs.
        """
        sums: dict[int, float] = {r.rank: 0.0 for r in self.ranks}
        for flow in self.flows_of(*axes, kinds=kinds):
            known = flow.exposed_us - min(flow.wait_us, flow.exposed_us)
            sums[flow.rank] += known
        return max(sums.values(), default=0.0)

    def group_of(self, flow: Flow) -> tuple[int, int] | None:
        """Size and stride of the groups of a flow; None when that cannot be told.

        From the ranks, else from the axes of the plan, else from the sizes of the groups, since
        every framework numbers its ranks in the same order of axes.
        """
        ranks, size = flow.traffic.ranks, flow.traffic.group_size
        if len(ranks) > 1:
            return len(ranks), ranks[1] - ranks[0]
        if size > 1 and size == self.world_size:
            return size, 1
        plan = self.context.plan
        if plan is not None:
            grid = PlanGrid.of([plan])
            for name in _GROUPS.get(flow.traffic.axis, ()):
                group = axis_group(grid, name)
                if size in (0, int(group.size[0])):
                    return int(group.size[0]), int(group.stride[0])
        return self._by_size(flow.traffic.axis, size)

    def _by_size(self, axis: Axis, size: int) -> tuple[int, int] | None:
        if size < 2 or axis not in _GROUPS:
            return None
        inner = {a: self._size_of(a) for a in ("tp", "cp", "ep")}
        if axis == "tp":
            return size, 1
        if axis == "ep":
            # the degree of tensor parallelism in experts is that of the rest by default, or 1
            return (size, 1) if inner["tp"] == 1 else None
        if axis == "cp":
            return size, inner["tp"]
        if axis == "pp":
            return size, max(self.world_size // size, 1)
        stages = self.num_stages
        for stride in (inner["tp"], inner["tp"] * inner["cp"], inner["ep"]):
            if size * stride * stages == self.world_size:
                return size, stride
        return None

    def _size_of(self, axis: Axis) -> int:
        return max((f.traffic.group_size for f in self.flows_of(axis)), default=1) or 1

    def leaves_domain(self, flow: Flow) -> bool | None:
        """Whether a group spans several scale-up domains; None when that cannot be told."""
        domain = self.domain_gpus
        if domain is None:
            return None
        ranks = flow.traffic.ranks
        if len(ranks) > 1:
            return len({rank // domain for rank in ranks}) > 1
        if 0 < self.world_size <= domain:
            return False
        group = self.group_of(flow)
        return None if group is None else group[0] * group[1] > domain

    @cached_property
    def axis_of_channel(self) -> dict[ChannelKey, Axis]:
        """What each channel serves."""
        return {channel_of(flow.traffic): flow.traffic.axis for flow in self.flows}

    @cached_property
    def hop_us(self) -> float:
        """What a send to the next stage takes when nobody waits: that of the fastest ones [us]."""
        taken: list[float] = []
        for flow in self.flows_of("pp", kinds=("send_recv",)):
            found = self.run.rank(flow.rank)
            if found is not None and found.steady:
                own = calls_of(found, flow)
                taken += (found.calls.end - found.calls.start)[own].tolist()
        return quantile(taken, measure_constant("fast_quantile")) if taken else 0.0

    def shown_us(self, flow: Flow) -> float:
        """Exposed time of a flow without the wait for other ranks [us]."""
        return max(0.0, flow.exposed_us - flow.wait_us)

    def saved_us(self, rank: int | None, factors: Mapping[ChannelKey, float]) -> float:
        """What a step of a rank is shorter when some of its traffic takes another time [us]."""
        found = None if rank is None else self.run.rank(rank)
        sends = self.flows_of("pp", "unknown", kinds=("send_recv",))
        beside = {channel_of(flow.traffic) for flow in sends if flow.rank == rank}
        return 0.0 if found is None else saved_us(found, factors, beside=beside)

    @cached_property
    def late_share(self) -> float:
        """Share of kernels whose stream had run dry before they were launched.

        Of the rank that waits most for its host: the others wait for it in collectives.
        """
        shares = [step.idle.late_share or 0.0 for r in self.ranks for step in r.steady]
        return max(shares, default=0.0)

    @property
    def host_paces(self) -> bool:
        """Whether the host sets the pace, so that traffic shows because it is launched late."""
        return self.late_share >= threshold("late_share")
