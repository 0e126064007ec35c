"""The formulas behind a plan's numbers, each with its numbers filled in.

A formula is shown only with the result that the cost model gave: ``result`` is the model's number,
and evaluating ``expression`` with ``values`` gives it again.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshplan.cost.flop import matrix_parameters, recompute_flop, step_flop
from meshplan.cost.likeness import time_of_runs_alike
from meshplan.cost.parameters import count_parameters
from meshplan.cost.step import PARTS
from meshplan.explanation.communication_formulas import communication_formulas
from meshplan.explanation.memory_formulas import memory_formulas
from meshplan.explanation.records import Formula, Value, agrees, formula
from meshplan.inputs.load.profile import profile_of
from meshplan.inputs.model import Attention
from meshplan.inputs.scenario import Scenario
from meshplan.search.economics import run_cost
from meshplan.search.evaluate import Evaluation, part_seconds
from meshplan.space.plan import Schedule

__all__ = ["formulas_of", "ideal_bubble"]

_PARAMETER_PARTS = (
    "embedding",
    "positions",
    "head",
    "attention",
    "mlp",
    "experts",
    "shared_experts",
    "router",
    "norms",
    "other",
)
_ARITHMETIC = "arithmetic"
_FLOP_TOLERANCE = 1e-9
_ZERO_BUBBLE = "Qi et al., arXiv:2401.10241, table 1 (three passes of equal length, even stages)"
# Passes that a device waits for each other device of the pipeline, of the three that a micro-batch
# takes once the backward pass is split: T_F + T_B - T_W with the memory of 1F1B, T_F + T_B - 2 T_W
# with twice that.
_IDLE_PASSES = {
    Schedule.ZB_H1: 1,
    Schedule.ZB_1P: 1,
    Schedule.ZB_2P: 0,
    Schedule.ZBV: 1,
    Schedule.DUALPIPE_V: 1,
    Schedule.INTERLEAVED_ZB: 1,
}
_GAUSSIAN_PROCESSES = (
    "Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, equation 2.25"
)
_PALM = "Chowdhery et al., PaLM, arXiv:2204.02311, appendix B"


def formulas_of(scenario: Scenario, result: Evaluation) -> tuple[Formula, ...]:
    """List the formulas of one plan: parameters, memory, compute, traffic, bubble, step.

    Args:
        scenario: what it is a plan for.
        result: its exact numbers, of length one.
    """
    return (
        *_parameters(scenario),
        *_degrees(scenario, result),
        *memory_formulas(scenario, result),
        *_compute(scenario, result),
        *communication_formulas(scenario, result),
        *_bubble(result),
        *_step(scenario, result),
        *_efficiency(scenario, result),
        *_run(scenario, result),
    )


def _parameters(scenario: Scenario) -> Iterator[Formula]:
    count = count_parameters(scenario.model)
    parts = [name for name in _PARAMETER_PARTS if getattr(count, name)]
    yield formula(
        "total_parameters",
        " + ".join(parts),
        *(Value(symbol=name, value=getattr(count, name), kind="derived") for name in parts),
        group="parameters",
        unit="",
        source=scenario.model.source or "config.json",
        result=count.total,
    )


def _degrees(scenario: Scenario, result: Evaluation) -> Iterator[Formula]:
    plan, job = result.grid.plan(0), scenario.job
    degrees = (Value(symbol="tp", value=plan.tp), Value(symbol="pp", value=plan.pp))
    yield formula(
        "data_parallel",
        "N / (tp * pp * cp)",
        Value(symbol="N", value=scenario.cluster.num_gpus),
        *degrees,
        Value(symbol="cp", value=plan.cp),
        group="degrees",
        unit="",
        source=_ARITHMETIC,
        result=plan.dp,
    )
    yield formula(
        "num_micro_batches",
        "B / (dp * b)",
        Value(symbol="B", value=job.global_batch),
        Value(symbol="dp", value=plan.dp),
        Value(symbol="b", value=plan.micro_batch),
        group="degrees",
        unit="",
        source=_ARITHMETIC,
        result=plan.num_micro_batches,
    )
    yield formula(
        "tokens_per_step",
        "B * s",
        Value(symbol="B", value=job.global_batch),
        Value(symbol="s", value=job.seq_len),
        group="degrees",
        unit="tokens",
        source=_ARITHMETIC,
        result=job.tokens_per_step,
    )


def _model_flop(scenario: Scenario) -> Iterator[Formula]:
    """FLOP of a step from parameters and sequence length, where every block is softmax attention.

    ``6 P T`` for the products with weights that a token meets (2 forward, 4 backward), and three
    times ``2 s^2 a (d_qk + d_v)`` per block and sequence for the scores.
    """
    model, job = scenario.model, scenario.job
    mixers = {layer.mixer for layer in model.layers + model.mtp_layers}
    mixer = next(iter(mixers))
    if len(mixers) != 1 or not isinstance(mixer, Attention):
        return
    made = formula(
        "model_flop",
        "6 * P * B * s + 6 * L * B * s ** 2 * a * d",
        Value(symbol="P", value=matrix_parameters(scenario), unit="parameters", kind="derived"),
        Value(symbol="B", value=job.global_batch),
        Value(symbol="s", value=job.seq_len),
        Value(symbol="L", value=model.num_layers + len(model.mtp_layers)),
        Value(symbol="a", value=mixer.num_heads),
        Value(symbol="d", value=mixer.head_dim + mixer.v_head_dim),
        group="compute",
        unit="flop",
        source=_PALM,
        result=step_flop(scenario).full,
    )
    if agrees(made, rel_tol=_FLOP_TOLERANCE):
        yield made


def _compute(scenario: Scenario, result: Evaluation) -> Iterator[Formula]:
    """Computation of the device that sets the pace, against the peak."""
    yield from _model_flop(scenario)
    plan, parts = result.grid.plan(0), part_seconds(result)
    flop = step_flop(scenario)
    peak = _peak(scenario)
    yield formula(
        "compute_at_peak",
        "F / (N * P)",
        Value(symbol="F", value=flop.causal, unit="flop", kind="derived", source=_PALM),
        Value(symbol="N", value=scenario.cluster.num_gpus),
        peak,
        group="compute",
        unit="s",
        source="roofline",
    )
    yield formula(
        "compute_efficiency",
        "F / (N * P) / t_compute",
        Value(symbol="F", value=flop.causal, unit="flop", kind="derived", source=_PALM),
        Value(symbol="N", value=scenario.cluster.num_gpus),
        peak,
        Value(symbol="t_compute", value=parts["compute_s"], unit="s", kind="derived"),
        group="compute",
        unit="1",
        source="roofline",
    )
    if parts["recompute_s"]:
        again = float(recompute_flop(scenario, result.grid)[0])
        yield formula(
            "recompute_share",
            "F_again / F",
            Value(symbol="F_again", value=again, unit="flop", kind="derived", source=_PALM),
            Value(symbol="F", value=flop.full, unit="flop", kind="derived", source=_PALM),
            group="compute",
            unit="1",
            source="Korthikanti et al., arXiv:2205.05198, appendix A",
            recompute=plan.recompute,
        )


def ideal_bubble(*, schedule: Schedule, pp: int, vpp: int, num_micro_batches: int) -> Formula:
    """The bubble of even stages whose sends take no time, as a fraction of the step.

    Where the backward pass is split, its halves take as long as the forward pass.

    Args:
        schedule: pipeline schedule.
        pp: devices of the pipeline.
        vpp: chunks per device.
        num_micro_batches: micro-batches of one step.
    """
    shape = (
        Value(symbol="pp", value=pp),
        Value(symbol="vpp", value=vpp),
        Value(symbol="m", value=num_micro_batches),
    )
    passes = _IDLE_PASSES.get(schedule)
    if passes is None:
        return formula(
            "bubble_ideal",
            "(pp - 1) / (vpp * m + pp - 1)",
            *shape,
            group="bubble",
            unit="1",
            source="Narayanan et al., SC 2021, section 2.2 (1F1B and interleaved, even stages)",
        )
    return formula(
        "bubble_ideal_split",
        "c * (pp - 1) / (3 * vpp * m + c * (pp - 1))",
        *shape,
        Value(symbol="c", value=passes, kind="derived", source=_ZERO_BUBBLE),
        group="bubble",
        unit="1",
        source=_ZERO_BUBBLE,
    )


def _bubble(result: Evaluation) -> Iterator[Formula]:
    plan, parts = result.grid.plan(0), part_seconds(result)
    if plan.pp == 1:
        return
    yield ideal_bubble(
        schedule=plan.schedule,
        pp=plan.pp,
        vpp=plan.vpp,
        num_micro_batches=plan.num_micro_batches,
    )
    yield formula(
        "bubble_share",
        "t_bubble / t",
        Value(symbol="t_bubble", value=parts["bubble_s"], unit="s", kind="derived"),
        Value(symbol="t", value=_step_s(result), unit="s", kind="derived"),
        group="bubble",
        unit="1",
        source="event simulation of the schedule",
    )


def _step(scenario: Scenario, result: Evaluation) -> Iterator[Formula]:
    parts = part_seconds(result)
    used = [part for part in PARTS if parts[part]]
    yield formula(
        "step_time",
        " + ".join(used),
        *(Value(symbol=part, value=parts[part], unit="s", kind="derived") for part in used),
        group="step",
        unit="s",
        source=_ARITHMETIC,
        result=_step_s(result),
    )
    step = Value(symbol="t", value=_step_s(result), unit="s", kind="derived")
    yield from _runs_alike(scenario, result, step)
    yield formula(
        "tokens_per_s_per_gpu",
        "B * s / (t * N)",
        Value(symbol="B", value=scenario.job.global_batch),
        Value(symbol="s", value=scenario.job.seq_len),
        step,
        Value(symbol="N", value=scenario.cluster.num_gpus),
        group="step",
        unit="tokens/s",
        source=_ARITHMETIC,
        result=scenario.job.tokens_per_step / _step_s(result) / scenario.cluster.num_gpus,
    )


def _runs_alike(scenario: Scenario, result: Evaluation, step: Value) -> Iterator[Formula]:
    """By how much measured runs stretch all parts of the step; nothing where there are none."""
    profile = profile_of(scenario, result.grid.plan(0).framework.name.lower())
    slower = time_of_runs_alike(scenario, result.grid, profile)
    if slower is None:
        return
    factor = float(slower[0])
    yield formula(
        "runs_alike",
        "t / t_profile",
        step,
        Value(symbol="t_profile", value=step.value / factor, unit="s", kind="derived"),
        group="step",
        unit="1",
        source=_GAUSSIAN_PROCESSES,
        result=factor,
    )


def _efficiency(scenario: Scenario, result: Evaluation) -> Iterator[Formula]:
    """The three conventions of utilisation."""
    flop, time = step_flop(scenario), result.time
    again = float(recompute_flop(scenario, result.grid)[0])
    shared = (
        Value(symbol="t", value=_step_s(result), unit="s", kind="derived"),
        Value(symbol="N", value=scenario.cluster.num_gpus),
        _peak(scenario),
    )
    for code, work, reached in (
        ("mfu", flop.full, time.mfu),
        ("mfu_causal", flop.causal, time.mfu_causal),
        ("hfu", flop.full + again, time.hfu),
    ):
        yield formula(
            code,
            "F / (t * N * P)",
            Value(symbol="F", value=work, unit="flop", kind="derived", source=_PALM),
            *shared,
            group="efficiency",
            unit="1",
            source=_PALM,
            result=float(reached[0]),
        )


def _run(scenario: Scenario, result: Evaluation) -> Iterator[Formula]:
    cost = run_cost(scenario, step_time_s=_step_s(result))
    if cost is None or scenario.job.total_tokens is None:
        return
    step = Value(symbol="t", value=_step_s(result), unit="s", kind="derived")
    yield formula(
        "days",
        "T / (B * s) * t / 86400",
        Value(symbol="T", value=scenario.job.total_tokens, unit="tokens"),
        Value(symbol="B", value=scenario.job.global_batch),
        Value(symbol="s", value=scenario.job.seq_len),
        step,
        group="run",
        unit="days",
        source=_ARITHMETIC,
        result=cost.days,
    )
    hours = Value(symbol="days", value=cost.days, unit="days", kind="derived")
    yield formula(
        "gpu_hours",
        "days * 24 * N",
        hours,
        Value(symbol="N", value=scenario.cluster.num_gpus),
        group="run",
        unit="GPU-hours",
        source=_ARITHMETIC,
        result=cost.gpu_hours,
    )
    price = scenario.cluster.device.usd_per_hour
    if price is not None and cost.cost_usd is not None:
        yield formula(
            "cost",
            "gpu_hours * price",
            Value(symbol="gpu_hours", value=cost.gpu_hours, unit="GPU-hours", kind="derived"),
            Value(symbol="price", value=price, unit="USD/h"),
            group="run",
            unit="USD",
            source=_ARITHMETIC,
            result=cost.cost_usd,
        )


def _step_s(result: Evaluation) -> float:
    return float(result.time.step_time_s[0])


def _peak(scenario: Scenario) -> Value:
    """Dense peak of one device in the job's precision, as utilisation counts it."""
    device, precision = scenario.cluster.device, scenario.job.precision
    name = device.peak_precision(precision)
    return Value(
        symbol="P",
        value=device.peak_flop_per_s[name],
        unit="flop/s",
        kind="published",
        source=device.sources.get(f"peak_flop_per_s.{name}", ""),
    )
