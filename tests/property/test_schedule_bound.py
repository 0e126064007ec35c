"""The closed forms of the pipeline never exceed the event simulation, and equal it when even."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.cost.schedule.actions import (
    SPLIT_BACKWARD,
    PipelineTimes,
    device_of,
    virtual_stages_of,
)
from meshplan.cost.schedule.bound import DeviceTimes, PipelineShape, pipeline_bound
from meshplan.cost.schedule.simulate import simulate, timeline
from meshplan.space.plan import Schedule

TWO_CHUNKS = {Schedule.ZBV, Schedule.DUALPIPE_V}
MANY_CHUNKS = {Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB}


def closed_form(*, schedule, pp, vpp, num_micro_batches, times):
    """The largest bound over all devices of one pipeline."""
    split = schedule in SPLIT_BACKWARD
    waits = [
        i + (0.0 if split else w)
        for i, w in zip(times.backward_input_s, times.backward_weight_s, strict=True)
    ]
    shape = PipelineShape(
        schedule=np.array([schedule]),
        pp=np.array([pp]),
        vpp=np.array([vpp]),
        num_micro_batches=np.array([num_micro_batches]),
        send_s=np.array([times.send_s]),
        blocking=np.array([times.blocking]),
    )
    bounds = []
    for device in range(pp):
        held = virtual_stages_of(device, pp=pp, vpp=vpp, schedule=schedule)
        first, last = min(held), max(held)

        def total(values, stages):
            return np.array([sum(values[v] for v in stages)])

        bounds.append(
            pipeline_bound(
                shape,
                DeviceTimes(
                    device=np.array([device]),
                    forward_s=total(times.forward_s, held),
                    input_s=total(times.backward_input_s, held),
                    weight_s=total(times.backward_weight_s, held),
                    forward_before_s=total(times.forward_s, range(first)),
                    backward_before_s=total(waits, range(first)),
                    forward_after_s=total(times.forward_s, range(last + 1, pp * vpp)),
                    backward_after_s=total(waits, range(last + 1, pp * vpp)),
                    last_weight_s=np.array([times.backward_weight_s[0]]),
                ),
            )[0]
        )
    return max(bounds)


@st.composite
def pipelines(draw):
    schedule = draw(st.sampled_from(list(Schedule)))
    pp = draw(st.integers(2, 6))
    vpp = 1
    if schedule in TWO_CHUNKS:
        vpp = 2
    elif schedule in MANY_CHUNKS:
        vpp = draw(st.integers(2, 3))
    m = draw(st.integers(1, 40))
    if schedule in MANY_CHUNKS:
        m = max(pp, m - m % pp)
    if schedule is Schedule.DUALPIPE_V:
        m = max(2 * pp, m)
    if schedule is Schedule.ONE_F_ONE_B:
        m = max(m, 1)
    seconds = st.floats(0.2, 3.0)
    stages = st.lists(seconds, min_size=pp * vpp, max_size=pp * vpp).map(tuple)
    times = PipelineTimes(
        forward_s=draw(stages),
        backward_input_s=draw(stages),
        backward_weight_s=draw(stages),
        send_s=draw(st.sampled_from([0.0, 0.0, 0.1, 0.7])),
        blocking=draw(st.booleans()) and vpp == 1,
    )
    return {"schedule": schedule, "pp": pp, "vpp": vpp, "num_micro_batches": m, "times": times}


@given(pipelines())
@settings(max_examples=400, deadline=None)
def test_closed_form_is_a_lower_bound(case):
    assert closed_form(**case) <= simulate(**case) * (1 + 1e-12)


@given(pipelines())
@settings(max_examples=150, deadline=None)
def test_timeline_respects_the_pipeline(case):
    slots = timeline(**case)
    times, pp, schedule = case["times"], case["pp"], case["schedule"]
    num_stages = pp * case["vpp"]
    forward = {(s.virtual_stage, s.micro_batch): s for s in slots if s.kind == 0}
    backward = {(s.virtual_stage, s.micro_batch): s for s in slots if s.kind in (1, 2)}
    weights = {(s.virtual_stage, s.micro_batch) for s in slots if s.kind in (1, 3)}
    assert len(forward) == len(backward) == len(weights) == num_stages * case["num_micro_batches"]
    eps = 1e-9
    for (stage, mb), slot in forward.items():
        if stage:
            before = forward[stage - 1, mb]
            hop = times.send_s if before.device != slot.device else 0.0
            assert slot.start_s >= before.end_s + hop - eps
        assert slot.device == device_of(stage, pp=pp, schedule=schedule)
    for (stage, mb), slot in backward.items():
        assert slot.start_s >= forward[stage, mb].end_s - eps
        if stage + 1 < num_stages:
            assert slot.start_s >= backward[stage + 1, mb].end_s - eps
    for device in range(pp):
        row = sorted((s for s in slots if s.device == device), key=lambda s: s.start_s)
        assert all(a.end_s <= b.start_s + eps for a, b in pairwise(row))


@given(pipelines(), st.integers(3, 9))
@settings(max_examples=150, deadline=None)
def test_extrapolation_equals_full_simulation(case, rounds):
    case["num_micro_batches"] = case["pp"] * 3 * rounds
    assert simulate(**case) == pytest.approx(span(case), rel=1e-10)


def span(case):
    slots = timeline(**case)
    if case["schedule"] in (Schedule.ZB_1P, Schedule.ZB_2P):
        rows = [[s for s in slots if s.device == d] for d in range(case["pp"])]
        return max(max(s.end_s for s in r) - min(s.start_s for s in r) for r in rows)
    return max(slot.end_s for slot in slots)


EVEN = [
    (Schedule.GPIPE, 4, 1, 8, 8 + 3),
    (Schedule.ONE_F_ONE_B, 4, 1, 8, 8 + 3),
    (Schedule.ONE_F_ONE_B, 8, 1, 64, 64 + 7),
    (Schedule.INTERLEAVED, 4, 2, 8, 8 + 3 / 2),
    (Schedule.INTERLEAVED, 8, 4, 32, 32 + 7 / 4),
]


@pytest.mark.parametrize(("schedule", "pp", "vpp", "m", "passes"), EVEN)
def test_even_stages_match_the_closed_form(schedule, pp, vpp, m, passes):
    n = pp * vpp
    times = PipelineTimes(
        forward_s=(1.0 / vpp,) * n,
        backward_input_s=(1.25 / vpp,) * n,
        backward_weight_s=(0.75 / vpp,) * n,
    )
    case = {
        "schedule": schedule,
        "pp": pp,
        "vpp": vpp,
        "num_micro_batches": m,
        "times": times,
    }
    assert simulate(**case) == pytest.approx(3.0 * passes, rel=1e-12)
    assert closed_form(**case) == pytest.approx(3.0 * passes, rel=1e-12)


ZERO_BUBBLE = [
    # bubbles of Qi et al., table 1: (p - 1)(f + b - w) and (p - 1)(f + b - 2 w)
    (Schedule.ZB_H1, 4, 16, 3 * (1.0 + 1.1 - 0.9)),
    (Schedule.ZB_2P, 4, 16, 0.0),
]


@pytest.mark.parametrize(("schedule", "pp", "m", "bubble"), ZERO_BUBBLE)
def test_zero_bubble_schedules(schedule, pp, m, bubble):
    f, b, w = (1.0, 1.1, 0.9) if schedule is Schedule.ZB_H1 else (1.0, 1.0, 1.0)
    times = PipelineTimes(
        forward_s=(f,) * pp, backward_input_s=(b,) * pp, backward_weight_s=(w,) * pp
    )
    case = {
        "schedule": schedule,
        "pp": pp,
        "vpp": 1,
        "num_micro_batches": m,
        "times": times,
    }
    expected = m * (f + b + w) + bubble
    assert simulate(**case) == pytest.approx(expected, rel=1e-12)
    assert closed_form(**case) == pytest.approx(expected, rel=1e-12)


FROM_TORCH = [
    # schedule, pp, m, v, bubble over ideal: list scheduling of torch's tables, F = 1, B = 2
    (Schedule.ONE_F_ONE_B, 4, 8, 1, 0.375),
    (Schedule.INTERLEAVED, 4, 8, 2, 0.1875),
    (Schedule.INTERLEAVED_ZB, 4, 8, 2, 0.0625),
    (Schedule.ZBV, 4, 8, 2, 0.0625),
]


@pytest.mark.parametrize(("schedule", "pp", "m", "v", "bubble"), FROM_TORCH)
def test_bubbles_of_torch_tables(schedule, pp, m, v, bubble):
    n = pp * v
    times = PipelineTimes(
        forward_s=(1 / v,) * n, backward_input_s=(1 / v,) * n, backward_weight_s=(1 / v,) * n
    )
    makespan = simulate(schedule=schedule, pp=pp, vpp=v, num_micro_batches=m, times=times)
    assert makespan / (3 * m) - 1 == pytest.approx(bubble, abs=1e-12)
