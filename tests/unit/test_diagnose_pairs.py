"""Events written as two, where they begin and where they end, are the events that they are."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose_traces import TraceMaker
from meshplan.diagnose.rank import measure_rank
from meshplan.diagnose.read.event import Event
from meshplan.diagnose.read.pairs import Pairs
from meshplan.diagnose.trace import read_trace


def _in_pairs(path, *, names_at_end=True):
    """Rewrite a trace: each event as two, all in order of time."""
    document = json.loads(path.read_text())
    halves = []
    for event in document["traceEvents"]:
        if event["ph"] != "X":
            continue
        # as PyTorch's profiler has them: a process per device, a thread per stream
        stream = event["args"].get("stream")
        event |= {"pid": 1, "tid": 1} if stream is None else {"pid": 0, "tid": stream}
        begin = {k: v for k, v in event.items() if k != "dur"} | {"ph": "B"}
        end = {"ph": "E", "pid": event["pid"], "tid": event["tid"]}
        end["ts"] = event["ts"] + event["dur"]
        if names_at_end:
            end["name"] = event["name"]
        # at one time ends come first; of two that begin together the longer one is outside
        halves.append(((event["ts"], 1, -event["dur"]), begin))
        halves.append(((end["ts"], 0, 0.0), end))
    document["traceEvents"] = [half for _, half in sorted(halves, key=lambda pair: pair[0])]
    path.write_text(json.dumps(document))
    return path


def _trace(path):
    made = TraceMaker(0, 2)
    for step in range(2):
        start = 10_000.0 * step
        made.host(f"ProfilerStep#{step}", start, 10_000.0, cat="user_annotation")
        for i in range(20):
            at = start + 400.0 * i
            made.kernel("gemm", at + 100, 250.0, launch=at)
        made.collective(
            "all_reduce", start + 7000.0, 900.0, ranks=(0, 1), elements=1 << 20, launch=start + 50
        )
    return made.write(path)


@pytest.mark.parametrize("names_at_end", [True, False])
def test_a_trace_in_pairs_measures_as_one_of_whole_events(tmp_path, names_at_end):
    path = _trace(tmp_path / "rank0.json")
    whole = measure_rank(read_trace(path))
    paired = read_trace(_in_pairs(path, names_at_end=names_at_end))
    assert paired.num_bad_times == 0
    found = measure_rank(paired)
    assert found.whole == whole.whole
    assert [s.idle for s in found.steps] == [s.idle for s in whole.steps]
    assert [s.traffic for s in found.steps] == [s.traffic for s in whole.steps]


def test_pairs_across_blocks(tmp_path):
    path = _in_pairs(_trace(tmp_path / "rank0.json"))
    assert len(read_trace(path, block_bytes=512).compute) == 40


def test_operators_on_the_host_in_pairs(tmp_path):
    made = TraceMaker(0, 2)
    made.host("aten::mm", 0, 80, cat="cpu_op")
    made.host("gloo:all_reduce", 100, 50, cat="cpu_op")
    path = _in_pairs(made.write(tmp_path / "rank0.json"))
    found = measure_rank(read_trace(path)).whole
    assert (found.compute_us, found.communication_us) == (80, 50)


def test_halves_are_counted(tmp_path):
    path = _in_pairs(_trace(tmp_path / "rank0.json"))
    document = json.loads(path.read_text())
    events = document["traceEvents"]
    events.insert(0, {"ph": "E", "pid": 0, "tid": 7, "ts": 1.0})
    last = max(i for i, event in enumerate(events) if event["ph"] == "E")
    del events[last]
    path.write_text(json.dumps(document))
    notes = {note.code: note.numbers for note in measure_rank(read_trace(path)).notes}
    assert notes["bad_times"] == {"num": 2}


@given(
    st.lists(st.tuples(st.sampled_from("BE"), st.integers(0, 1), st.integers(0, 1)), max_size=40)
)
def test_every_half_is_in_one_event_or_counted(halves):
    pairs = Pairs()
    whole = [
        pairs.close(Event(ph=ph, name="x", ts=float(i), pid=pid, tid=tid))
        for i, (ph, pid, tid) in enumerate(halves)
    ]
    closed = [event for event in whole if event is not None]
    assert all(event.ph == "X" and event.dur > 0 for event in closed)
    assert 2 * len(closed) + pairs.num_halves == len(halves)
