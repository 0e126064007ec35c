"""What ``nvidia-smi`` would have sampled of a played run: how much of the time each GPU works."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from planted.play import Played
from planted.write import Seen, rank_trace

__all__ = ["write_samples"]

FloatArray = npt.NDArray[np.float64]

_PERIOD_S = 1.0 / 6.0
"""What a sample looks back at: between a sixth of a second and a second, by product (the manual of
``nvidia-smi``, Utilization)."""
_SAMPLES = 90
_LINE = (
    "2026/03/01 10:{minute:02d}:{second:02d}.000, {gpu}, {device}, {busy:.0f} %, {memory:.0f} MiB, "
    "{clock:.0f} MHz, {power:.2f} W"
)
_HEAD = (
    "timestamp, index, name, utilization.gpu [%], memory.used [MiB], clocks.current.sm [MHz], "
    "power.draw [W]"
)


def write_samples(played: Played, seen: Seen, folder: Path, *, seed: int) -> Path:
    """Write a table that begins before the training and ends after it, a sample a second."""
    rng = np.random.default_rng(seed + 9)
    before, after = int(rng.integers(10, 40)), int(rng.integers(0, 10))
    busy = [_busy(played, rank, seen, rng) for rank in range(len(played.steps))]
    lines = [_HEAD]
    for sample in range(before + _SAMPLES + after):
        at = sample - before
        for gpu, shares in enumerate(busy):
            works = 0 <= at < _SAMPLES
            share = float(shares[at]) if works else 0.0
            lines.append(
                _LINE.format(
                    minute=sample // 60,
                    second=sample % 60,
                    gpu=gpu,
                    device=seen.device,
                    busy=100.0 * share,
                    memory=61000 if works else 700,
                    clock=rng.normal(1720, 8) if works else 345,
                    power=90 + 560 * share,
                )
            )
    path = folder / "smi.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def _busy(played: Played, rank: int, seen: Seen, rng: np.random.Generator) -> FloatArray:
    """Share of the time before each sample in which some kernel ran, ``(samples,)``.

    The steps that were played repeat for as long as it takes.
    """
    trace = rank_trace(played, rank, seen)
    kinds = (trace.compute, trace.communication, trace.copies)
    start = np.concatenate([events.start for events in kinds])
    end = np.concatenate([events.end for events in kinds])
    order = np.argsort(start)
    start, over = start[order], np.maximum.accumulate(end[order])
    gap = np.maximum(0.0, start[1:] - over[:-1])
    first, last = trace.steps[0].start, trace.steps[-1].end
    # work done up to each edge of a kernel
    edges = np.concatenate(([first], np.column_stack((start, over)).ravel(), [last]))
    idle = np.concatenate(
        ([0.0], np.repeat(np.cumsum(np.concatenate(([start[0] - first], gap))), 2))
    )
    edges = np.maximum.accumulate(edges)
    done = np.concatenate((edges[:-1] - first - idle, [0.0]))
    done[-1] = done[-2]
    whole = last - first

    def up_to(us: FloatArray) -> FloatArray:
        rounds = np.floor(us / whole)
        inside: FloatArray = np.interp(us - rounds * whole + first, edges, done)
        return rounds * done[-1] + inside

    at = np.sort(rng.uniform(1.0, 40.0, _SAMPLES)) * whole
    shares: FloatArray = (up_to(at) - up_to(at - _PERIOD_S * 1e6)) / (_PERIOD_S * 1e6)
    return shares
