"""Nothing is sure where the files are not the whole of one run."""

import gzip
import json

import pytest

from meshplan.app import service


def trace(rank, *, world_size=2, device="NVIDIA H100 80GB HBM3"):
    """A rank whose kernels each find an empty queue."""
    events = []
    for step in range(3):
        base = 1e6 + step * 20_000.0
        mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "tid": 1}
        events.append({**mark, "pid": 1, "ts": base, "dur": 20_000.0})
        for i in range(200):
            at, args = base + i * 100.0, {"correlation": step * 200 + i + 1}
            launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1}
            events.append({**launch, "pid": 1, "ts": at + 80, "dur": 5, "args": args})
            kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7}
            args = {**args, "stream": 7, "device": 0}
            events.append({**kernel, "ts": at + 88, "dur": 10, "args": args})
    info = {"rank": rank, "world_size": world_size}
    properties = [{"name": device}]
    return json.dumps(
        {"distributedInfo": info, "deviceProperties": properties, "traceEvents": events}
    )


def certainty(folder):
    found = service.diagnose({"paths": [str(folder)]})["findings"]
    assert found
    return {(finding["confidence"], finding["reason"]) for finding in found}


def test_whole_files_of_one_run_are_sure(tmp_path):
    (tmp_path / "rank0.json").write_text(trace(0))
    assert ("high", "launches_measured") in certainty(tmp_path)


def test_a_file_that_is_cut_off_is_not(tmp_path):
    packed = gzip.compress(trace(0).encode())
    (tmp_path / "rank0.json.gz").write_bytes(packed[: len(packed) * 2 // 3])
    assert certainty(tmp_path) == {("low", "file_cut_off")}


@pytest.mark.parametrize("other", [{"world_size": 8}, {"device": "NVIDIA A100-SXM4-80GB"}])
def test_files_of_several_runs_are_not(tmp_path, other):
    (tmp_path / "rank0.json").write_text(trace(0))
    (tmp_path / "rank1.json").write_text(trace(1, **other))
    assert certainty(tmp_path) == {("low", "files_of_several_runs")}
