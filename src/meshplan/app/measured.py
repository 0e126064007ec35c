"""Measures of a run as JSON: where the time goes, by rank, stage and traffic."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean, median
from typing import Any

from meshplan.app.result import jsonable
from meshplan.diagnose.records import (
    TRAFFIC_AXES,
    RankMeasures,
    RunMeasures,
    StepMeasures,
    Traffic,
)

__all__ = ["run_json"]

Json = dict[str, Any]


def run_json(run: RunMeasures) -> Json:
    """What was measured: means over the steady steps, medians over the ranks; times in seconds."""
    measured = [rank for rank in run.ranks if rank.steps]
    return {
        "num_ranks": len(run.ranks),
        "world_size": max((r.world_size or 0 for r in run.ranks), default=0) or None,
        "device": next((r.device for r in run.ranks if r.device), None),
        "step_time_s": _median(_step_s(rank) for rank in measured),
        "parts": _parts(measured),
        "efficiency": _median(
            e
            for rank in measured
            for step in rank.steady
            if (e := step.time.efficiency) is not None
        ),
        "ranks": [_rank_json(run, rank) for rank in run.ranks],
        "stages": [
            {
                "stage": stage.stage,
                "ranks": list(stage.ranks),
                "compute_s": stage.compute_us / 1e6,
                "bubble_s": stage.bubble_us / 1e6,
                "bubble_fraction": stage.bubble_share,
            }
            for stage in run.stages
        ],
        "stage_times_s": list(run.stage_times_s),
        "traffic": _traffic(measured),
        "logs": [_log_json(log) for log in run.logs],
        "metrics": jsonable(run.metrics),
        "notes": jsonable(run.notes),
    }


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return float(median(found)) if found else None


def _step_s(rank: RankMeasures) -> float:
    return fmean(step.time.wall_us for step in rank.steady) / 1e6


def _parts(ranks: list[RankMeasures]) -> Json:
    """Shares of the step, by part: means over all ranks."""
    shares: dict[str, list[float]] = {}
    for rank in ranks:
        wall = fmean(step.time.wall_us for step in rank.steady)
        for name, us in _rank_parts(rank).items():
            shares.setdefault(name, []).append(us / wall if wall > 0 else 0.0)
    return {name: float(fmean(values)) for name, values in shares.items()}


def _rank_parts(rank: RankMeasures) -> dict[str, float]:
    """Microseconds of a step by part; they add up to the step but for copies beside kernels."""
    found = {"compute": _mean(rank, lambda s: s.time.compute_us)}
    for axis in TRAFFIC_AXES:
        found[f"exposed_{axis}"] = _mean(rank, lambda s, a=axis: s.exposed_by_axis_us.get(a, 0.0))
    found["idle_host"] = _mean(rank, lambda s: s.idle.host_us)
    found["idle_data"] = _mean(rank, lambda s: s.idle.data_us)
    found["idle_other"] = _mean(rank, lambda s: s.idle.device_us + s.idle.unknown_us)
    busy = sum(found.values())
    found["copies"] = max(0.0, _mean(rank, lambda s: s.time.wall_us) - busy)
    return found


def _mean(rank: RankMeasures, value: Any) -> float:
    return fmean(float(value(step)) for step in rank.steady)


def _rank_json(run: RunMeasures, rank: RankMeasures) -> Json:
    steps = [_step_json(step) for step in rank.steps]
    return {
        "rank": rank.rank,
        "file": rank.file,
        "rank_basis": rank.rank_basis,
        "on_host": rank.on_host,
        "clock_offset_us": run.offset_us.get(rank.rank),
        "step_time_s": _step_s(rank) if rank.steps else None,
        "parts": {k: v / 1e6 for k, v in _rank_parts(rank).items()} if rank.steps else {},
        "steps": steps,
    }


def _step_json(step: StepMeasures) -> Json:
    time = step.time
    return {
        "name": step.name,
        "warm_up": step.warm_up,
        "start_us": float(time.window.start),
        "end_us": float(time.window.end),
        "compute_us": float(time.compute_us),
        "communication_us": float(time.communication_us),
        "exposed_us": float(time.exposed_us),
        "copy_us": float(time.copy_us),
        "idle_us": float(time.idle_us),
        "idle": jsonable(step.idle),
        "phases": jsonable(step.phases),
    }


def _traffic(ranks: list[RankMeasures]) -> list[Json]:
    """Traffic by axis, kind and size of group: means per step and rank, most exposed first."""
    rows: dict[tuple[str, str, int], list[Traffic]] = {}
    steps = sum(len(rank.steady) for rank in ranks)
    for rank in ranks:
        for step in rank.steady:
            for row in step.traffic:
                rows.setdefault((row.axis, row.kind, row.group_size), []).append(row)
    found = []
    for (axis, kind, size), same in rows.items():
        rates = [r.bus_bytes_per_s for r in same if r.bus_bytes_per_s]
        found.append(
            {
                "axis": axis,
                "kind": kind,
                "group_size": size,
                "basis": same[0].basis,
                "count": sum(r.count for r in same) / steps,
                "total_s": sum(r.total_us for r in same) / steps / 1e6,
                "exposed_s": sum(r.exposed_us for r in same) / steps / 1e6,
                "wait_s": sum(r.wait_us or 0.0 for r in same) / steps / 1e6,
                "bus_bytes_per_s": float(median(rates)) if rates else None,
            }
        )
    return sorted(found, key=lambda row: -float(row["exposed_s"]))


def _log_json(log: Any) -> Json:
    return {
        "file": log.file,
        "framework": log.framework,
        "num_steps": len(log.steps),
        "step_time_s": log.steady_step_s(),
        "tokens_per_s_per_gpu": log.steady_tokens_per_s_per_gpu(),
        "flop_per_s_per_gpu": log.steady_value("flop_per_s_per_gpu"),
        "mfu": log.steady_value("mfu"),
        "timers_s": log.timers_s(),
        "device": log.device,
        "precision": log.precision,
        "peak_flop_per_s": log.implied_peak_flop_per_s(),
        "peak_allocated_bytes": log.peak_allocated_bytes,
        "peak_reserved_bytes": log.peak_reserved_bytes,
        "out_of_memory": jsonable(log.out_of_memory),
        "settings": dict(log.settings),
    }
