"""Chunk passes in flight against the orders that the schedules really run."""

import numpy as np
import pytest

from meshplan.cost.schedule.actions import Kind, virtual_stages_of
from meshplan.cost.schedule.in_flight import in_flight
from meshplan.cost.schedule.orders import device_programs
from meshplan.space.plan import Schedule

FREES = (Kind.BACKWARD, Kind.BACKWARD_WEIGHT)


def counted(schedule: Schedule, *, pp: int, vpp: int, m: int) -> list[int]:
    """Most chunk passes alive on each device, by walking its program."""
    peaks = []
    for program in device_programs(schedule=schedule, pp=pp, vpp=vpp, num_micro_batches=m):
        alive = peak = 0
        for kind, _, _ in program:
            alive += kind == Kind.FORWARD
            peak = max(peak, alive)
            alive -= kind in FREES
        peaks.append(peak)
    return peaks


def stated(schedule: Schedule, *, pp: int, vpp: int, m: int) -> list[int]:
    return [
        int(
            sum(
                count[0]
                for count in in_flight(
                    schedule=schedule,
                    pp=pp,
                    vpp=vpp,
                    stage=stage,
                    num_micro_batches=np.array([m]),
                )
            )
        )
        for stage in range(pp)
    ]


@pytest.mark.parametrize("pp", [1, 2, 4, 8])
@pytest.mark.parametrize("m", [1, 2, 3, 8, 16, 32])
@pytest.mark.parametrize("schedule", [Schedule.GPIPE, Schedule.ONE_F_ONE_B])
def test_plain_schedules_are_exact(schedule, pp, m):
    assert stated(schedule, pp=pp, vpp=1, m=m) == counted(schedule, pp=pp, vpp=1, m=m)


@pytest.mark.parametrize(
    ("pp", "vpp", "m"),
    [(2, 2, 4), (4, 2, 8), (4, 4, 16), (8, 2, 16), (8, 5, 32), (4, 2, 5), (4, 2, 6), (2, 3, 7)],
)
@pytest.mark.parametrize("schedule", [Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB])
def test_interleaving_is_exact(schedule, pp, vpp, m):
    found = stated(schedule, pp=pp, vpp=vpp, m=m)
    exact = counted(schedule, pp=pp, vpp=vpp, m=m)
    if schedule is Schedule.INTERLEAVED or m % pp == 0:
        assert found == exact
    else:
        assert all(e <= f for e, f in zip(exact, found, strict=True))


def test_interleaving_of_torch():
    """torch.distributed.pipelining: 11, 9, 7, 5 chunk passes for p = 4, v = 2, m = 8."""
    assert stated(Schedule.INTERLEAVED, pp=4, vpp=2, m=8) == [11, 9, 7, 5]


@pytest.mark.parametrize("schedule", [Schedule.ZB_H1, Schedule.ZBV, Schedule.DUALPIPE_V])
@pytest.mark.parametrize(("pp", "m"), [(2, 8), (4, 8), (4, 16), (8, 16), (8, 32)])
def test_split_backward_is_exact(schedule, pp, m):
    vpp = 1 if schedule is Schedule.ZB_H1 else 2
    assert stated(schedule, pp=pp, vpp=vpp, m=m) == counted(schedule, pp=pp, vpp=vpp, m=m)


@pytest.mark.parametrize("schedule", [Schedule.ZBV, Schedule.DUALPIPE_V])
@pytest.mark.parametrize(("pp", "m"), [(4, 5), (4, 6), (8, 9)])
def test_few_micro_batches_are_never_below_what_runs(schedule, pp, m):
    exact = counted(schedule, pp=pp, vpp=2, m=m)
    assert all(e <= s for e, s in zip(exact, stated(schedule, pp=pp, vpp=2, m=m), strict=True))


@pytest.mark.parametrize("schedule", list(Schedule))
def test_chunks_add_up_and_never_exceed_the_micro_batches(schedule):
    m = np.array([1, 2, 5, 8, 64])
    vpp = 2 if schedule in (Schedule.INTERLEAVED, Schedule.ZBV, Schedule.DUALPIPE_V) else 1
    for stage in range(4):
        counts = in_flight(schedule=schedule, pp=4, vpp=vpp, stage=stage, num_micro_batches=m)
        assert len(counts) == vpp
        for count in counts:
            assert (count <= m).all()
            assert (count >= 0).all()
    assert len(virtual_stages_of(0, pp=4, vpp=vpp, schedule=schedule)) == vpp


def test_zero_bubble_limits():
    """ZB-1p holds p and ZB-2p twice as many on every device."""
    for stage in range(4):
        kw = {"pp": 4, "vpp": 1, "stage": stage, "num_micro_batches": np.array([16])}
        assert in_flight(schedule=Schedule.ZB_1P, **kw)[0] == 4
        assert in_flight(schedule=Schedule.ZB_2P, **kw)[0] == 8
