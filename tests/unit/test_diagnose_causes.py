"""Findings on cases whose right answer is known by arithmetic, one kind of mistake each."""

import pytest

import planted_path  # noqa: F401
from meshplan.app import service


def titan_log(folder, *, tflops, peak_tflops):
    """Write a torchtitan log that divides its speed by a peak."""
    rows = [
        f"[rank0]:2026-03-01 10:00:{step:02d},000 - root - INFO - step: {step:2d}  "
        f"loss: {9.0 - 0.1 * step:.4f}  memory: 42.20GiB(53.27%)  tps: 7,000  "
        f"tflops: {tflops:,.2f}  mfu: {tflops / peak_tflops * 100:.2f}%"
        for step in range(1, 11)
    ]
    path = folder / "train.log"
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize(
    ("cluster", "peak_tflops", "state", "what"),
    [
        # NVIDIA's data sheets: H100 SXM BF16 989.4 dense, FP8 1978.9 dense = BF16 with sparsity
        ("8xH100", 989.4, "clear", ""),
        ("8xH100", 1978.9, "open", "precision_unknown"),
        ("8xH100", 3957.8, "found", "sparse"),
        # no FP8 on an A100: 624 is the sparse rate alone
        ("8xA100-80GB", 624.0, "found", "sparse"),
        ("8xA100-80GB", 989.4, "found", "device"),
        ("8xH100", 700.0, "found", "unknown"),
    ],
)
def test_a_peak_without_a_precision(tmp_path, cluster, peak_tflops, state, what):
    path = titan_log(tmp_path, tflops=200.0, peak_tflops=peak_tflops)
    result = service.diagnose({"paths": [str(path)], "cluster": cluster})
    (check,) = [c for c in result["checks"] if c["code"] == "wrong_peak"]
    assert check["state"] == state
    if state == "found":
        (one,) = result["findings"]
        assert one["numbers"]["what"] == what
    else:
        assert (check["reason"] or "") == what


@pytest.mark.parametrize(("precision", "state"), [("fp8", "clear"), ("bf16", "found")])
def test_a_peak_with_the_precision_stated(tmp_path, precision, state):
    path = titan_log(tmp_path, tflops=400.0, peak_tflops=1978.9)
    job = {"seq_len": 4096, "global_batch": 16, "precision": precision}
    result = service.diagnose(
        {"paths": [str(path)], "cluster": "8xH100", "model": "llama-2-13b", "job": job}
    )
    (check,) = [c for c in result["checks"] if c["code"] == "wrong_peak"]
    assert check["state"] == state
