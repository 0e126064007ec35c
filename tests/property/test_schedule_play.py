"""Pipelines that are played level by level, many at once, take as long as action by action."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.cost.schedule import simulate as simulating
from meshplan.cost.schedule.actions import Kind, Pipelines, PipelineTimes, device_of
from meshplan.cost.schedule.orders import device_programs
from meshplan.cost.schedule.simulate import simulate, simulate_all, timeline
from meshplan.space.plan import Schedule

TWO_CHUNKS = {Schedule.ZBV, Schedule.DUALPIPE_V}
MANY_CHUNKS = {Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB}


@st.composite
def pipelines(draw):
    schedule = draw(st.sampled_from(list(Schedule)))
    pp = draw(st.integers(1, 6))
    vpp = 2 if schedule in TWO_CHUNKS else draw(st.integers(2, 3))
    vpp = vpp if schedule in TWO_CHUNKS | MANY_CHUNKS else 1
    m = draw(st.integers(1, 60))
    if schedule in MANY_CHUNKS:
        m = max(pp, m - m % pp)
    if schedule is Schedule.DUALPIPE_V:
        m = max(2 * pp, m)
    seconds = st.one_of(st.just(1.0), st.floats(0.2, 3.0))
    stages = st.lists(seconds, min_size=pp * vpp, max_size=pp * vpp).map(tuple)
    times = PipelineTimes(
        forward_s=draw(stages),
        backward_input_s=draw(stages),
        backward_weight_s=draw(stages),
        send_s=draw(st.sampled_from([0.0, 0.1, 0.7])),
        blocking=draw(st.booleans()) and vpp == 1,
    )
    return {"schedule": schedule, "pp": pp, "vpp": vpp, "num_micro_batches": m, "times": times}


def action_by_action(*, schedule, pp, vpp, num_micro_batches, times):
    """End of every action, device by device: whoever can goes on, until all are done."""
    programs = device_programs(
        schedule=schedule, pp=pp, vpp=vpp, num_micro_batches=num_micro_batches
    )
    place = [device_of(v, pp=pp, schedule=schedule) for v in range(pp * vpp)]
    ends, rows, clock = {}, [[] for _ in programs], [0.0] * pp

    def hop(stage, other):
        inside = 0 <= other < pp * vpp
        return times.send_s if inside and place[stage] != place[other] else 0.0

    def duration(kind, stage):
        inputs, weights = times.backward_input_s[stage], times.backward_weight_s[stage]
        return (times.forward_s[stage], inputs + weights, inputs, weights)[kind]

    while any(len(row) < len(program) for row, program in zip(rows, programs, strict=True)):
        for device, program in enumerate(programs):
            while len(rows[device]) < len(program):
                kind, stage, micro_batch = program[len(rows[device])]
                other = stage - 1 if kind == Kind.FORWARD else stage + 1
                needed = (kind != Kind.FORWARD, other, micro_batch)
                if kind != Kind.FORWARD and other == pp * vpp:
                    needed = (False, stage, micro_batch)
                if kind != Kind.BACKWARD_WEIGHT and other >= 0:
                    if needed not in ends:
                        break
                    clock[device] = max(clock[device], ends[needed] + hop(stage, other))
                clock[device] += duration(kind, stage)
                rows[device].append(clock[device])
                if kind != Kind.BACKWARD_WEIGHT:
                    ends[kind != Kind.FORWARD, stage, micro_batch] = clock[device]
                    told = stage + 1 if kind == Kind.FORWARD else stage - 1
                    clock[device] += hop(stage, told) if times.blocking else 0.0
    return [end for row in rows for end in row]


@given(pipelines())
@settings(max_examples=300, deadline=None)
def test_every_action_ends_when_it_does_action_by_action(case):
    assert [slot.end_s for slot in timeline(**case)] == action_by_action(**case)


@given(st.lists(pipelines(), min_size=2, max_size=12))
@settings(max_examples=60, deadline=None)
def test_many_at_once_are_each_as_alone(cases):
    together = simulate_all([Pipelines.one(**case) for case in cases])
    assert [float(seconds[0]) for seconds in together] == [simulate(**case) for case in cases]


def test_a_pipeline_that_repeats_late_is_not_played_in_full(monkeypatch):
    played = []
    own = simulating.action_graph

    def counted(**shape):
        played.append(shape["num_micro_batches"])
        return own(**shape)

    monkeypatch.setattr(simulating, "action_graph", counted)
    # the last device is a hair slower, and what waits before it fills up one round at a time
    work = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.001)
    times = PipelineTimes(
        forward_s=work, backward_input_s=work, backward_weight_s=work, send_s=0.1, blocking=False
    )
    shape = {"schedule": Schedule.INTERLEAVED, "pp": 4, "vpp": 2, "times": times}
    long = simulate(num_micro_batches=100_000, **shape)
    assert max(played) < 20_000
    shorter, longer = (simulate(num_micro_batches=m, **shape) for m in (2000, 2400))
    per_micro_batch = (longer - shorter) / 400
    assert abs(long - (longer + 97_600 * per_micro_batch)) < 1e-6 * long


@pytest.mark.parametrize("schedule", [Schedule.GPIPE, Schedule.ZBV, Schedule.DUALPIPE_V])
def test_very_long_steps_go_on_at_their_pace(schedule, monkeypatch):
    vpp = 2 if schedule in TWO_CHUNKS else 1
    work = tuple(1.0 + 0.01 * stage for stage in range(3 * vpp))
    times = PipelineTimes(
        forward_s=work, backward_input_s=work, backward_weight_s=work, send_s=0.1, blocking=False
    )
    shape = {"schedule": schedule, "pp": 3, "vpp": vpp, "times": times}
    exact = simulate(num_micro_batches=3001, **shape)
    monkeypatch.setattr(simulating, "_MOST_PLAYED", 1 << 10)
    assert simulate(num_micro_batches=3001, **shape) == pytest.approx(exact, rel=1e-3)
