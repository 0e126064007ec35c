"""Laws of the measures: what holds for every trace."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshplan.diagnose.columns import Collective, DeviceEvents, HostRanges, RankTrace, Window
from meshplan.diagnose.intervals import (
    complement,
    contains,
    covered,
    difference,
    intersection,
    length,
    union,
)
from meshplan.diagnose.rank import measure_rank
from meshplan.diagnose.read.kineto import Header, read_events
from meshplan.diagnose.run import measure_run

TIMES = st.integers(0, 60)
SPANS = st.lists(st.tuples(TIMES, st.integers(0, 12)), max_size=12)


def as_set(spans):
    """An interval set, and the unit cells that it covers."""
    found = union([s for s, _ in spans], [s + d for s, d in spans])
    return found, {t for s, d in spans for t in range(s, s + d)}


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SPANS, SPANS)
def test_set_operations_agree_with_counting_cells(a, b):
    (first, cells), (second, others) = as_set(a), as_set(b)
    assert length(first) == len(cells)
    assert length(intersection(first, second)) == len(cells & others)
    assert length(difference(first, second)) == len(cells - others)
    assert length(complement(first, start=0, end=80)) == 80 - len(cells)
    times = np.arange(0, 80, dtype=np.float64)
    assert covered(first, times).tolist() == [len([c for c in cells if c < t]) for t in times]
    assert set(np.flatnonzero(contains(first, times + 0.5)).tolist()) == cells
    assert np.all(first[1:, 0] > first[:-1, 1])


NAMES = ("gemm", "ncclDevKernel_AllReduce", "ncclDevKernel_SendRecv", "multimem_all_reduce_kernel")
GROUPS = (
    Collective(kind="allreduce", in_elements=8, out_elements=8, dtype="Float", group="1",
               purpose="mesh_tp", ranks=(0, 1)),
    Collective(kind="allgather", in_elements=8, out_elements=32, dtype="Float", group="2",
               purpose="mesh_fsdp", ranks=(0, 2, 4, 6)),
    Collective(kind="send", group="3", ranks=(0, 8)),
)  # fmt: skip


@st.composite
def events(draw, names, collectives):
    rows = draw(
        st.lists(
            st.tuples(
                TIMES,
                st.integers(0, 12),
                st.integers(0, 3),
                st.sampled_from(names),
                st.one_of(st.none(), TIMES),
                st.sampled_from(collectives),
            ),
            max_size=15,
        )
    )
    columns = list(zip(*rows, strict=True)) or [()] * 6
    start = np.array(columns[0], dtype=np.float64)
    return DeviceEvents(
        start=start,
        end=start + np.array(columns[1], dtype=np.float64),
        stream=np.array(columns[2], dtype=np.int64),
        name=np.array(columns[3], dtype=np.int64),
        launch=np.array([np.nan if v is None else v for v in columns[4]], dtype=np.float64),
        collective=np.array(columns[5], dtype=np.int64),
    )


@st.composite
def traces(draw, rank=0):
    kinds = draw(st.lists(st.integers(0, 5), max_size=6))
    starts = np.array([draw(TIMES) for _ in kinds], dtype=np.float64)
    width = np.array([draw(st.integers(1, 20)) for _ in kinds], dtype=np.float64)
    edges = sorted({draw(TIMES) for _ in range(draw(st.integers(0, 4)))})
    return RankTrace(
        file=f"rank{rank}.json",
        rank=rank,
        world_size=16,
        device="made up",
        compute=draw(events([0], [-1])),
        communication=draw(events([1, 2, 3], [-1, 0, 1, 2])),
        copies=draw(events([0], [-1])),
        steps=tuple(
            Window(name=f"ProfilerStep#{i}", start=float(a), end=float(b))
            for i, (a, b) in enumerate(pairwise(edges))
        ),
        names=NAMES,
        collectives=GROUPS,
        host=HostRanges(start=starts, end=starts + width, kind=np.array(kinds, dtype=np.int64)),
        num_events=1,
    )


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(traces())
def test_parts_add_up(trace):
    for step in measure_rank(trace).steps:
        time, idle = step.time, step.idle
        assert 0 <= time.exposed_us <= time.communication_us <= time.wall_us + 1e-9
        assert time.compute_us + time.exposed_us + time.idle_us <= time.wall_us + 1e-6
        parts = (idle.host_us, idle.data_us, idle.device_us, idle.unknown_us)
        assert min(parts) >= -1e-9
        assert sum(parts) == pytest.approx(time.idle_us, abs=1e-6)
        assert sum(step.exposed_by_axis_us.values()) == pytest.approx(time.exposed_us, abs=1e-6)
        assert 0 <= idle.num_late <= idle.num_launched
        for traffic in step.traffic:
            assert 0 <= traffic.exposed_us <= traffic.total_us + 1e-9
            assert traffic.wait_us is None or traffic.wait_us >= 0
        if step.peer_wait_us is not None:
            assert step.peer_wait_us <= time.exposed_us + 1e-6
        phases = sum(p.compute_us for p in step.phases)
        assert phases <= len(step.phases) * time.compute_us + 1e-6


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.floats(-1e6, 1e6))
def test_a_clock_of_its_own_changes_nothing(data, shift):
    """Times of one trace may start anywhere."""
    trace = data.draw(traces())

    def moved(columns):
        return DeviceEvents(
            start=columns.start + shift,
            end=columns.end + shift,
            stream=columns.stream,
            name=columns.name,
            launch=columns.launch + shift,
            collective=columns.collective,
        )

    other = RankTrace(
        **{
            name: getattr(trace, name)
            for name in (
                "file",
                "rank",
                "world_size",
                "device",
                "names",
                "collectives",
                "num_events",
            )
        },
        compute=moved(trace.compute),
        communication=moved(trace.communication),
        copies=moved(trace.copies),
        steps=tuple(
            Window(name=s.name, start=s.start + shift, end=s.end + shift) for s in trace.steps
        ),
        host=HostRanges(
            start=trace.host.start + shift, end=trace.host.end + shift, kind=trace.host.kind
        ),
    )
    for a, b in zip(measure_rank(trace).steps, measure_rank(other).steps, strict=True):
        assert a.time.compute_us == pytest.approx(b.time.compute_us, abs=1e-3)
        assert a.time.exposed_us == pytest.approx(b.time.exposed_us, abs=1e-3)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.data())
def test_any_ranks_make_a_run(numbers, data):
    """Ranks that have nothing in common, or the same number, are measured all the same."""
    ranks = [measure_rank(data.draw(traces(rank=number))) for number in numbers]
    run = measure_run(ranks)
    assert len(run.ranks) == len(numbers)
    assert set(run.offset_us) <= set(numbers)
    for skew in run.skew:
        assert min(skew.wait_us.values(), default=0.0) >= 0


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 10**18), st.text(max_size=6), st.floats()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
EVENT = st.dictionaries(
    st.sampled_from(("ph", "cat", "name", "ts", "dur", "args", "x")), JSON, max_size=6
)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(EVENT, max_size=6), st.integers(8, 400), st.integers(0, 300))
def test_any_events_are_read_counted_or_said_to_be_missing(tmp_path, entries, block, cut):
    text = json.dumps({"traceEvents": entries, "after": {"a": 1}})
    path = tmp_path / "trace.json"
    path.write_text(text)
    header = Header()
    blocks = read_events(path, header=header, block_bytes=block)
    kept = sum(len(block) for block in blocks)
    assert kept + header.num_unreadable == len(entries)
    assert header.complete
    path.write_text(text[: max(len('{"traceEvents": ['), len(text) - cut)])
    header = Header()
    kept = sum(len(block) for block in read_events(path, header=header, block_bytes=block))
    assert kept + header.num_unreadable <= len(entries)
