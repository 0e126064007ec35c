"""How much of a trace is held while it is read, by counts."""

import json

import pytest

from meshplan.diagnose.read import kineto
from meshplan.diagnose.read.kineto import Header, read_events

EVENT = {
    "ph": "X",
    "cat": "cpu_op",
    "name": "aten::mm",
    "ts": 1.5,
    "dur": 2,
    "args": {"a": [{}, {}]},
}
BLOCK = 2**16


@pytest.fixture
def held(monkeypatch):
    """Largest text that is decoded at once."""
    largest = [0]
    real = kineto.events_of

    def counted(text):
        largest[0] = max(largest[0], len(text))
        return real(text)

    monkeypatch.setattr(kineto, "events_of", counted)
    return largest


@pytest.mark.parametrize("num_events", [10_000, 80_000])
def test_text_and_events_held_do_not_grow(tmp_path, held, num_events):
    path = tmp_path / "trace.json"
    text = json.dumps(EVENT)
    path.write_text('{"traceEvents": [' + ",".join([text] * num_events) + "]}")
    most = total = 0
    for events in read_events(path, header=Header(), block_bytes=BLOCK):
        most, total = max(most, len(events)), total + len(events)
    assert total == num_events
    assert most <= 2 * BLOCK // len(text)
    assert held[0] <= 2 * BLOCK


def test_nonsense_without_end_is_not_held(tmp_path, monkeypatch, held):
    monkeypatch.setattr(kineto, "_LONGEST_EVENT", 4 * BLOCK)
    path = tmp_path / "trace.json"
    path.write_bytes(b'{"traceEvents": [' + b"x" * (40 * BLOCK))
    header = Header()
    assert sum(len(e) for e in read_events(path, header=header, block_bytes=BLOCK)) == 0
    assert not header.complete
    assert held[0] <= 7 * BLOCK
