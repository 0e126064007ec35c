"""A console log of one job makes the forecast of another job on its cluster better."""

import json

import pytest
import yaml

from meshplan.app import service

# GPT models of BigScience on Jean Zay, May 2021: the logs state their layers, widths and degrees
JOBS = {
    "megatron_lm_2021_gpt18b_v100x16_tp4_pp4_interval10.log": {
        "model": {"n_layer": 40, "n_embd": 6144, "n_head": 48},
        "cluster": "16xV100-32GB",
        "job": {"seq_len": 1024, "global_batch": 4, "precision": "fp16"},
        "axes": {"tp": 4, "pp": 4, "micro_batch": 1, "zero": 0},
    },
    "megatron_lm_2021_gpt52b_v100x64_tp4_pp16.log": {
        "model": {"n_layer": 64, "n_embd": 8192, "n_head": 64},
        "cluster": "64xV100-32GB",
        "job": {"seq_len": 1024, "global_batch": 1024, "precision": "fp16"},
        "axes": {"tp": 4, "pp": 16, "micro_batch": 4, "zero": 0, "recompute": "FULL"},
    },
}


def calibrated(folder, tmp_path, log, **more):
    """Calibrate on one log; its error before is that of the profile that the scenario names."""
    job = JOBS[log]
    model = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_positions": 1024,
        "vocab_size": 50304,
        "tie_word_embeddings": True,
        **job["model"],
    }
    (tmp_path / "config.json").write_text(json.dumps(model), "utf-8")
    scenario = {**job, "model": str(tmp_path / "config.json"), "frameworks": ["megatron"], **more}
    (tmp_path / "scenario.yaml").write_text(yaml.safe_dump(scenario), "utf-8")
    request = {"runs": [str(folder / log)], "scenario": str(tmp_path / "scenario.yaml")}
    return service.calibrate(request)


@pytest.mark.parametrize("order", [1, -1])
def test_a_log_helps_another_job_of_its_cluster(shared, tmp_path, order):
    given, other = list(JOBS)[::order]
    folder = shared / "data" / "logs"
    profile = tmp_path / "profile.yaml"
    own = calibrated(folder, tmp_path, given)
    profile.write_text(yaml.safe_dump(own["profile"]), "utf-8")
    before = calibrated(folder, tmp_path, other)["before"]["mape"]
    after = calibrated(folder, tmp_path, other, profile=str(profile))["before"]["mape"]
    assert own["after"]["mape"] < 0.7 * own["before"]["mape"]
    assert after < 0.75 * before
