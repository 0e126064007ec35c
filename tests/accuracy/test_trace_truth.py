"""Compute, communication, exposed and idle time of real traces against an independent count."""

import json
from pathlib import Path

import pytest

from meshplan.diagnose.measure import Sets, breakdown_in
from meshplan.diagnose.records import Breakdown
from meshplan.diagnose.trace import read_trace

TOLERANCE_US = 2.0


def check(found: Breakdown, truth: dict[str, float], place: str) -> None:
    pairs = {
        "wall_us": found.wall_us,
        "compute_us": found.compute_us,
        "comm_us": found.communication_us,
        "exposed_comm_us": found.exposed_us,
        "mem_us": found.copy_us,
        "idle_us": found.idle_us,
    }
    wrong = {k: (v, truth[k]) for k, v in pairs.items() if abs(v - truth[k]) > TOLERANCE_US}
    assert not wrong, f"{place}: {wrong}"
    # the truth also counts events of zero length at the edge of a window
    assert abs(found.num_compute_kernels - truth["n_compute_kernels"]) <= 1
    assert found.num_communication_kernels == truth["n_comm_kernels"]


def test_every_trace_equals_the_truth(shared: Path) -> None:
    folder = shared / "data" / "traces"
    if not folder.is_dir():
        pytest.skip("the traces are absent")
    truth = json.loads((folder / "truth.json").read_text())
    assert len(truth) == 20
    for name, expected in truth.items():
        trace = read_trace(folder / name)
        assert trace.complete
        assert (trace.rank, trace.world_size) == (expected["rank"], expected["world_size"]), name
        assert trace.num_events == expected["n_events"], name
        sets = Sets.of(trace)
        assert trace.span is not None
        check(breakdown_in(trace, sets, trace.span), expected["whole"], name)
        steps = {window.name: breakdown_in(trace, sets, window) for window in trace.steps}
        assert steps.keys() == expected["steps"].keys(), name
        for step, values in expected["steps"].items():
            check(steps[step], values, f"{name} {step}")
