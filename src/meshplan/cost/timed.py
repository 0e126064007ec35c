"""Plans of one profile with the times of their units: what every forecast of a step starts from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.cost.communication import pipeline_send, tied_embedding_reduce
from meshplan.cost.handovers import num_handovers
from meshplan.cost.likeness import time_of_runs_alike
from meshplan.cost.schedule.bound import PipelineShape
from meshplan.cost.schedule.layout import StageTable, stage_table
from meshplan.cost.unit_time import Units, shared_units, tuning_of
from meshplan.inputs.profile import Profile
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.plan import PlanGrid

__all__ = ["Timed"]

FloatArray = npt.NDArray[np.float64]


@record
class Timed:
    """Plans of one profile, with what is worked out once for many of them.

    Attributes:
        scenario: model, cluster and job.
        profile: what holds for the framework of the plans on the cluster.
        grid: the plans.
        units: times of their units.
        table: what the devices of their pipelines hold.
        send_s: one activation to the next stage [s], ``(num_plans,)``.
        tied_s: the reduction of a tied embedding between its two ends [s], ``(num_plans,)``.
        slower: times by which measured runs like each plan took longer, ``(num_plans,)``; None
            where the profile has no runs.
    """

    scenario: Scenario
    profile: Profile
    grid: PlanGrid
    units: Units
    table: StageTable
    send_s: FloatArray
    tied_s: FloatArray
    slower: FloatArray | None

    @classmethod
    def of(cls, scenario: Scenario, grid: PlanGrid, profile: Profile) -> Timed:
        """Time the units of a grid."""
        units, tuning = shared_units(scenario, grid, profile), tuning_of(profile, scenario.cluster)
        few = units.factored
        send = pipeline_send(scenario, few.grid, tuning=tuning)
        tied = tied_embedding_reduce(scenario, few.grid, tuning=tuning)
        return cls(
            scenario=scenario,
            profile=profile,
            grid=grid,
            units=units,
            table=stage_table(scenario.model, grid),
            send_s=few.expand(send.seconds),
            tied_s=np.where(grid.pp > 1, few.expand(tied.seconds), 0.0),
            slower=time_of_runs_alike(scenario, grid, profile),
        )

    def take(self, index: npt.NDArray[np.intp] | slice) -> Timed:
        """The same of some of the plans."""
        return Timed(
            scenario=self.scenario,
            profile=self.profile,
            grid=self.grid.take(index),
            units=self.units.take(index),
            table=self.table.take(index),
            send_s=self.send_s[index],
            tied_s=self.tied_s[index],
            slower=None if self.slower is None else self.slower[index],
        )

    @property
    def shape(self) -> PipelineShape:
        """What is common to all devices of the pipeline of each plan."""
        grid, blocking = self.grid, self.profile.framework.blocking_sends
        return PipelineShape(
            schedule=grid.schedule,
            pp=grid.pp,
            vpp=grid.vpp,
            num_micro_batches=grid.num_micro_batches,
            send_s=self.send_s,
            blocking=np.full(len(grid), blocking) & (grid.vpp == 1),
        )

    def host_s(self, so_far_s: FloatArray) -> FloatArray:
        """Host time that nothing hides, and the waits for the slowest nodes [s].

        Args:
            so_far_s: the step without it [s], ``(num_plans,)``.
        """
        framework, cluster = self.profile.framework, self.profile.cluster
        nodes = np.log2(float(max(self.scenario.cluster.num_nodes, 1)))
        host = framework.step_s + framework.micro_batch_s * self.grid.num_micro_batches
        host = cluster.launch * self.scenario.cluster.host_time_factor * host
        other: FloatArray = host + cluster.straggler * nodes * so_far_s
        return other + cluster.wait_s * num_handovers(self.grid)

    def as_measured(self, seconds: FloatArray) -> FloatArray:
        """Times of the plans as measured runs like them have it, ``(num_plans,)`` [s]."""
        return seconds if self.slower is None else seconds * self.slower
