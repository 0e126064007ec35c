"""Rules of thumb, counting and pipelines, as chapters call them."""

from __future__ import annotations

import math

import numpy as np

from meshplan import thumb
from meshplan.cost.schedule.actions import PipelineTimes
from meshplan.cost.schedule.in_flight import in_flight
from meshplan.cost.schedule.simulate import simulate
from meshplan.learn.expressions import Term
from meshplan.space.plan import Schedule

__all__ = [
    "bubble",
    "ceil_div",
    "divisors",
    "efficiency",
    "exchanges",
    "held",
    "imbalance",
    "medium_limit",
    "micro_batches_for",
    "recommended",
    "remainder",
    "rest",
    "ring_bytes",
    "ring_share",
    "score",
    "simulated_bubble",
    "speedup",
    "thumb_memory",
    "tier",
]


def bubble(*, pp: int, m: int) -> float:
    """Idle share of a pipeline of ``pp`` stages and ``m`` micro-batches."""
    return thumb.bubble_fraction(pp=pp, num_micro_batches=m)


def micro_batches_for(*, pp: int, bubble: float) -> int:
    """Fewest micro-batches that keep the bubble at or under a share."""
    return thumb.micro_batches_for_bubble(pp=pp, max_bubble=bubble)


def simulated_bubble(schedule: str, *, pp: int, m: int, vpp: int = 1) -> float:
    """Idle share of a played schedule: forward 1, backward 2 (half of it for the weights)."""
    chunks = pp * vpp
    unit = 1.0 / vpp
    times = PipelineTimes(
        forward_s=(unit,) * chunks,
        backward_input_s=(unit,) * chunks,
        backward_weight_s=(unit,) * chunks,
    )
    makespan_s = simulate(
        schedule=Schedule[schedule.upper()], pp=pp, vpp=vpp, num_micro_batches=m, times=times
    )
    return 1.0 - 3.0 * m / makespan_s


def held(schedule: str, *, pp: int, stage: int, m: int, vpp: int = 1) -> int:
    """Chunk passes whose activations a stage (from 0) holds at the peak."""
    chunks = in_flight(
        schedule=Schedule[schedule.upper()],
        pp=pp,
        vpp=vpp,
        stage=stage,
        num_micro_batches=np.array([m]),
    )
    return sum(int(chunk[0]) for chunk in chunks)


def speedup(*, num_gpus: int, compute_s: float, comm_s: float) -> float:
    """Speed-up over one GPU once communication is paid for."""
    return thumb.real_speedup(
        num_gpus=num_gpus, compute_time_s=compute_s, communication_time_s=comm_s
    )


def efficiency(*, compute_s: float, comm_s: float) -> float:
    """Share of the time that computes."""
    return thumb.efficiency(compute_time_s=compute_s, communication_time_s=comm_s)


def ring_bytes(model_bytes: float, *, dp: int = 0) -> float:
    """Bytes that each replica sends to add gradients up; without ``dp`` by the rule of thumb."""
    return thumb.gradient_traffic_bytes(model_bytes=model_bytes, dp=dp or None)


def ring_share(*, n: int) -> float:
    """Bytes sent by each member of a ring all-reduce, over the size of the buffer."""
    return thumb.gradient_traffic_bytes(model_bytes=1.0, dp=n)


def thumb_memory(*, billions: float, tp: int = 1, pp: int = 1) -> float:
    """Memory of one GPU by the 16-byte rule [bytes]."""
    return thumb.estimate_memory_gb(num_params_b=billions, tp=tp, pp=pp) * 1e9


def rest(*, num_gpus: int, tp: int = 1, pp: int = 1) -> int:
    """Data-parallel degree that is left."""
    return thumb.solve_degrees(num_gpus=num_gpus, tp=tp, pp=pp).dp


def recommended(*, billions: float, num_gpus: int) -> str:
    """Degrees of the short recommender."""
    found = thumb.recommend(num_params_b=billions, num_gpus=num_gpus)
    return f"DP {found.dp} × TP {found.tp} × PP {found.pp}"


def score(*, tp: int, pp: int, dp: int) -> float:
    """Communication score of the short recommender."""
    return thumb.communication_score(tp=tp, pp=pp, dp=dp)


def tier(*, billions: float) -> Term:
    """Size tier of a model."""
    return Term(f"tier.{thumb.size_tier(num_params_b=billions).value}")


def medium_limit() -> float:
    """Billions of parameters whose training state one node of eight 80 GB GPUs holds."""
    return thumb.medium_limit_b()


def exchanges(axis: str, *, layers: int, m: int) -> int:
    """Exchanges of an axis in a step, per direction."""
    return thumb.communications_per_step(axis, num_layers=layers, num_micro_batches=m)


def imbalance(times: list[float]) -> float:
    """Share of the time lost to waiting for the slowest part."""
    return thumb.imbalance(part_times_s=times)


def divisors(*numbers: int) -> list[int]:
    """Degrees that divide all of the numbers."""
    common = math.gcd(*numbers)
    return [d for d in range(1, common + 1) if common % d == 0]


def remainder(number: int, *, by: int) -> int:
    """What is left over."""
    return number % by


def ceil_div(number: float, *, by: float) -> int:
    """Quotient rounded up."""
    return math.ceil(number / by)
