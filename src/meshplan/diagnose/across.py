"""What shows only across ranks: who waits for whom, and what the stages of a pipeline do."""

from __future__ import annotations

from collections.abc import Mapping

from meshplan.record import record

__all__ = ["StageMeasures", "StepSkew"]


@record
class StepSkew:
    """One step across ranks, once clock offsets are taken away.

    Attributes:
        name: name of the step.
        compute_us: compute time by rank [us].
        wait_us: time each rank waits in collectives for ranks that come later, by rank
            [us].
        caused_us: time that each rank makes others wait, as the mean over the calls' other
            members, by rank [us].
        slowest: rank that is waited for most; None when the ranks wait equally or it is unknown.
    """

    name: str
    compute_us: Mapping[int, float]
    wait_us: Mapping[int, float]
    caused_us: Mapping[int, float]
    slowest: int | None


@record
class StageMeasures:
    """One pipeline stage: medians over its ranks and steady steps.

    Attributes:
        stage: its number.
        ranks: ranks of it that were measured.
        compute_us: compute time of a step [us].
        bubble_us: time of a step in which it neither computes nor talks inside itself [us].
        wall_us: the step [us].
    """

    stage: int
    ranks: tuple[int, ...]
    compute_us: float
    bubble_us: float
    wall_us: float

    @property
    def bubble_share(self) -> float:
        """Bubble as a share of the step."""
        return self.bubble_us / self.wall_us if self.wall_us > 0 else 0.0
