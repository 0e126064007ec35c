"""The console log of a played run, as its framework prints it: right, or wrong in a known way."""

from __future__ import annotations

from pathlib import Path

from meshplan.cost.flop import step_flop
from planted.faults import Built, Fault

__all__ = ["FIGURES", "LOG_KINDS", "slow_share", "write_log"]

FIGURES = ("wrong_peak", "mfu_convention")
"""Faults of the figures of a log; they cost no time."""
LOG_KINDS = (*FIGURES, "slow_steps")
"""Faults that a log alone shows."""

_STEPS = 24
_WARM_UP = 2.5
"""The first step compiles and allocates."""
_SCATTERED = (6, 7, 13, 20)
"""Steps that come at no regular distance."""


def write_log(built: Built, step_s: float, faults: tuple[Fault, ...], folder: Path) -> Path:
    """Write a log of a few steps."""
    scenario = built.scenario
    flop = step_flop(scenario)
    counted, peak = flop.full, scenario.cluster.device.peak_flop_per_s[scenario.job.precision]
    for fault in faults:
        if fault.kind == "mfu_convention":
            counted = flop.causal if fault.how == "causal" else flop.full * 4.0 / 3.0
        if fault.kind == "wrong_peak":
            peak *= fault.size
    lines = []
    for step, length in enumerate(_lengths(faults), start=1):
        seconds = step_s * length
        speed = counted / seconds / scenario.cluster.num_gpus
        if built.plan.framework.name == "TORCHTITAN":
            lines.append(_titan(built, step, seconds, speed, speed / peak))
        else:
            lines.append(_megatron(built, step, seconds, speed))
    path = folder / "train.log"
    path.write_text("\n".join(lines) + "\n")
    return path


def _lengths(faults: tuple[Fault, ...]) -> list[float]:
    """How long each step is beside the usual one; steps spread by a quarter of a percent."""
    lengths = [1.0 + 0.0025 * ((step * 7) % 5 - 2) for step in range(1, _STEPS + 1)]
    lengths[0] *= _WARM_UP
    for fault in faults:
        if fault.kind != "slow_steps":
            continue
        every = int(fault.how or 0)
        slow = range(every, _STEPS + 1, every) if every else _SCATTERED
        for step in slow:
            lengths[step - 1] *= fault.size
    return lengths


def slow_share(fault: Fault) -> float:
    """What slow steps take beyond the same steps without the fault, as a share of all [1].

    The first step warms up and counts for neither.
    """
    with_it, without = sum(_lengths((fault,))[1:]), sum(_lengths(())[1:])
    return 1.0 - without / with_it


def _titan(built: Built, step: int, seconds: float, speed: float, mfu: float) -> str:
    scenario = built.scenario
    tps = scenario.job.tokens_per_step / seconds / scenario.cluster.num_gpus
    return (
        f"[rank0]:2026-03-0{1 + step // 10} 10:00:{step:02d},000 - root - INFO - step: {step:2d}  "
        f"loss: {9.0 - 0.1 * step:.4f}  memory: 42.20GiB(53.27%)  tps: {tps:,.0f}  "
        f"tflops: {speed / 1e12:,.2f}  mfu: {mfu * 100:.2f}%"
    )


def _megatron(built: Built, step: int, seconds: float, speed: float) -> str:
    batch = built.scenario.job.global_batch
    return (
        f" [2026-03-01 10:00:{step:02d}] iteration {step:8d}/    {_STEPS} | consumed samples: "
        f"{step * batch:12d} | elapsed time per iteration (ms): {seconds * 1e3:.1f} | throughput "
        f"per GPU (TFLOP/s/GPU): {speed / 1e12:.1f} | learning rate: 1.0E-04 | global batch size: "
        f"{batch:5d} | lm loss: {9.0 - 0.1 * step:.6E} | loss scale: 1.0 | grad norm: 1.0 | number "
        f"of skipped iterations:   0 | number of nan iterations:   0 |"
    )
