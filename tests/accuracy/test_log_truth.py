"""Every value that real console logs hold, against ``logs/expected.json``.

Some values of the table are not in a log but in the page that it was published on: who runs the
reader knows them, and they are given here as ``KNOWN``, with the place where they stand.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meshplan.diagnose.read.log import LogMeasures, read_log
from meshplan.units import GIB

# what stands on the page of the log and not in it
_TITAN_8B = {"dp_shard": 8, "seq_len": 8192, "micro_batch": 1, "global_batch": 8}
_B200 = {"num_gpus": 8, "tp": 1, "pp": 1, "cp": 1, "dp": 8, "micro_batch": 1, "seq_len": 8192}
_MIXTRAL = "rerendered_from_issues/megatron_lm_mixtral8x7b_h100x16_throughput.log"
KNOWN = {
    "deepspeed_cifar_samplespersec_1gpu.log": {"dp": 1},
    "hf_trainer_sft_llama2_7b_mi_1gpu.log": {"num_gpus": 1, "dp": 1},
    "torchtitan_llama3_8b_h100x8_bf16.log": _TITAN_8B,
    "torchtitan_llama3_8b_h100x8_float8_rowwise.log": _TITAN_8B,
    "torchtitan_llama3_8b_h100x32_ansi_srun.log": {"num_gpus": 32, "dp_shard": 32},
    "primus_megatron_tail_inst_avg.log": {"num_gpus": 8, "global_batch": 1024, "micro_batch": 128},
    "nemo2_small_llama_8gpu_tp2.log": {"seq_len": 128},
    "maxtext_deepseek2_16b_v5p_4chips.log": {"fsdp": 4},
    "mlperf_v5.0_llama2_70b_lora_b200x8_nemo.log": _B200,
    "mlperf_v4.0_llama2_70b_lora_h100x32_deepspeed.log": {"num_gpus": 32, "dp": 32, "zero": 3},
    _MIXTRAL: {"num_gpus": 16, "ep": 8, "hidden": 4096},
}

FRAMEWORK = {
    "Megatron-LM": "megatron",
    "Megatron-DeepSpeed,": "megatron",
    "Megatron-DeepSpeed (old": "megatron",
    "Megatron-DeepSpeed pipeline": "deepspeed",
    "Megatron-Bridge": "megatron",
    "Primus": "megatron",
    "GPT-NeoX": "megatron",
    "DeepSpeed": "deepspeed",
    "HF": "huggingface",
    "torchtitan": "torchtitan",
    "picotron": "picotron",
    "NeMo": "nemo",
    "llm-foundry": "composer",
    "MaxText": "maxtext",
    "MLPerf": "mlperf",
    "nanotron": "nanotron",
}

MB = 2**20
SETTINGS = {
    "n_devices": "num_gpus",
    "mbs": "micro_batch",
    "gbs": "global_batch",
    "gbs_samples": "global_batch",
    "ga": "accumulation",
    "seq": "seq_len",
    "seq_from_repo_default": "seq_len",
    "mbs_from_repo_default": "micro_batch",
    "layers": "num_layers",
    "microbatches": "num_micro_batches",
    "mp": "tp",
}


def setting(name):
    key = SETTINGS.get(name, name)
    return lambda log: log.settings[key]


def column(name, scale=1.0):
    def values(log: LogMeasures):
        found = [getattr(s, name) for s in log.steps]
        return [None if v is None else v / scale for v in found]

    return values


def total(name, scale=1.0):
    return lambda log: log.totals[name] / scale


def phase(name):
    return lambda log: log.steps[-1].phases_s[name][1] * 1e3


STEPS = {
    "step_time_s": column("step_time_s"),
    "iterations": lambda log: [s.number for s in log.steps],
    "steps": lambda log: [s.number for s in log.steps],
    "global_step": lambda log: [s.number for s in log.steps],
    "iteration": lambda log: [s.number for s in log.steps],
    "n_steps": lambda log: len(log.steps),
    "n_records": lambda log: log.num_lines,
    "first_step_s": lambda log: log.steps[0].step_time_s,
    "median_rest_s": lambda log: log.steady_step_s(),
    "samples_per_s": column("samples_per_s"),
    "first": lambda log: log.steps[0].samples_per_s,
    "last": lambda log: log.steps[-1].samples_per_s,
    "throughput_samples_s": column("samples_per_s"),
    "train_step_time_s": column("step_time_s"),
    "max_memory_usage": lambda log: log.peak_reserved_bytes / GIB,
    "tps": column("tokens_per_s_per_gpu"),
    "tokens_per_s": column("tokens_per_s"),
    "tokens_per_s_per_gpu": column("tokens_per_s_per_gpu"),
    "tokens_per_s_per_device": column("tokens_per_s_per_gpu"),
    "tflops": column("flop_per_s_per_gpu", 1e12),
    "tflops_per_gpu": column("flop_per_s_per_gpu", 1e12),
    "mfu_pct": column("mfu", 0.01),
    "memory_gib": column("memory_bytes", GIB),
    "memory_gb": column("memory_bytes", 1e9),
    "memory_pct": column("memory_share", 0.01),
    "loss": column("loss"),
    "step_time_s_inst": column("step_time_s"),
    "step_time_s_avg": total("mean_step_s"),
    "consumed_samples": total("consumed_samples"),
    "val_loss": total("validation_loss"),
    "train_runtime_s": lambda log: [log.totals[f"runtime_s.{i + 1}"] for i in range(log.num_lines)],
    "train_samples_per_second": total("samples_per_s"),
    "train_steps_per_second": total("steps_per_s"),
    "train_loss": total("train_loss"),
    "params_m": total("num_parameters", 1e6),
    "fwd_latency_ms": total("forward_s", 1e-3),
    "bwd_latency_ms": total("backward_s", 1e-3),
    "iter_latency_ms": total("step_s", 1e-3),
    "fwd_tflops": total("forward_flop_per_s", 1e12),
    "bwd_tflops": total("backward_flop_per_s", 1e12),
    "fwd_bwd_tflops": total("flop_per_s", 1e12),
    "forward_ms": phase("forward"),
    "backward_ms": phase("backward"),
    "allreduce_ms": phase("backward_allreduce"),
    "optimizer_step_ms": phase("step"),
}

BATCH = {
    "steps": lambda log: log.settings["num_steps"],
    "gbs_tokens": lambda log: log.settings["global_batch"] * log.settings["seq_len"],
    "gbs_derived": lambda log: log.steady_value("samples_per_s") * log.steady_step_s(),
    "seq_derived": lambda log: log.steady_value("tokens_per_s") * log.steady_step_s() / 64,
}

DERIVED = {
    "steady_step_s": lambda log: log.steady_step_s(),
    "median_step_s": lambda log: log.steady_step_s(),
    "mean_step_s": lambda log: log.steady_step_s(),
    "step_s": lambda log: log.steady_step_s(),
    "step_ms": lambda log: log.steady_step_s() * 1e3,
    "step_s_from_tps": lambda log: log.steady_step_s(),
    "step_s_from_timestamps": lambda log: log.clock_step_s(),
    "step_s_step3": lambda log: 2048 / log.steps[2].tokens_per_s,
    "tokens_per_s": lambda log: log.steady_tokens_per_s(),
    "tokens_per_s_total": lambda log: log.steady_tokens_per_s(),
    "tokens_per_s_from_samples": lambda log: log.steady_tokens_per_s(),
    "tokens_per_s_step2": lambda log: log.steps[1].samples_per_s * log.settings["seq_len"],
    "tokens_per_s_per_gpu": lambda log: log.steady_tokens_per_s_per_gpu(),
    "steady_tps_per_gpu": lambda log: log.steady_tokens_per_s_per_gpu(),
    "samples_per_s": lambda log: log.settings["global_batch"] / log.steady_step_s(),
    "samples": total("num_samples"),
    "peak_tflops": lambda log: log.implied_peak_flop_per_s() / 1e12,
    "unique_steps": lambda log: len(log.steps),
    "lines": lambda log: log.num_lines,
    "gbs": setting("gbs"),
    "tflops_per_step_per_device": total("flop_per_step_per_gpu", 1e12),
    "flop_per_step_P": lambda log: (
        (log.steady_step_s() * log.steady_value("flop_per_s_per_gpu") * log.settings["num_gpus"])
        / 1e15
    ),
}

MEMORY = {
    "max_allocated_mb": lambda log: log.peak_allocated_bytes / MB,
    "max_reserved_mb": lambda log: log.peak_reserved_bytes / MB,
    "max_allocated_gb": None,  # decimal in Megatron-Bridge, binary in DeepSpeed: see below
    "max_reserved_gb": lambda log: log.peak_reserved_bytes / 1e9,
    "max_reserved": lambda log: log.peak_reserved_bytes,
    "allocated_gb": total("allocated_bytes", GIB),
    "n_memory_records": lambda log: log.num_memory_records,
    "after_iteration": lambda log: log.memory_after,
    "theoretical_weight_opt_mb": total("weights_and_optimizer_bytes", MB),
    "peak_reserved_gib": lambda log: log.peak_reserved_bytes / GIB,
    "capacity_gib": lambda log: log.capacity_bytes / GIB,
    "peak_gb": lambda log: log.peak_reserved_bytes / 1e9,
    "used_gb_per_device": lambda log: log.peak_allocated_bytes / 1e9,
    "capacity_gb": lambda log: log.capacity_bytes / 1e9,
    "xla_estimate_gb": total("estimated_bytes", 1e9),
    "max_memory_usage_gib": lambda log: log.peak_reserved_bytes / GIB,
}

# derived figures of the table are rounded to four digits; these were rounded further
LOOSE = {
    "seq_derived": 1e-3,  # 22.8K x 11.5 s / 64 is 4097
    "gbs_derived": 1e-3,
    "capacity_gib": 1e-3,  # from a memory that is rounded to 0.01 GiB and 0.01 %
    "peak_tflops": 1e-3,
    "step_s_from_tps": 1e-3,
    "step_s_step3": 5e-3,
    "flop_per_step_P": 1e-3,
    "samples": 1e-3,
}
# the table has one interval (5760 to 6080 samples); ours is the median of all, and that interval
# is asserted by itself below
MLPERF = {"step_s": 1e-2, "samples_per_s": 1e-2}


def extractor(name: str, section: str, key: str):
    if section == "memory" and key == "max_allocated_gb":
        unit = GIB if "gptneox" in name else 1e9
        return lambda log: log.peak_allocated_bytes / unit
    if section == "parallel":
        return setting(key)
    if section == "batch":
        return BATCH.get(key, setting(key))
    table = {"steps": STEPS, "derived": DERIVED, "memory": MEMORY}[section]
    if section == "steps" and key == "samples_per_s" and "profiler" in name:
        return total("samples_per_s")
    return table[key]


def same(found, wanted, rel: float) -> bool:
    if wanted is None:
        return found is None or all(v is None for v in found)
    if isinstance(wanted, list):
        return found[: len(wanted)] == pytest.approx(wanted, rel=rel)
    if isinstance(found, list):  # one value stands for all steps of a rounded log
        return all(v == pytest.approx(wanted, rel=rel) for v in found)
    return found == pytest.approx(wanted, rel=rel)


def entries(shared: Path):
    folder = shared / "data" / "logs"
    if not folder.is_dir():
        pytest.skip("the logs are absent")
    return folder, json.loads((folder / "expected.json").read_text())


def test_every_value_of_every_log(shared: Path) -> None:
    folder, table = entries(shared)
    assert len(table) == 28
    wrong, checked = [], 0
    for name, row in table.items():
        log = read_log(folder / name)
        log = replace(log, settings={**KNOWN.get(name, {}), **log.settings})
        if row["n_devices"] is not None:
            checked += 1
            if log.settings["num_gpus"] != row["n_devices"]:
                wrong.append((name, "n_devices", log.settings["num_gpus"], row["n_devices"]))
        for section in ("parallel", "batch", "steps", "derived", "memory"):
            for key, wanted in (row[section] or {}).items():
                rel = LOOSE.get(key, 5e-4 if section == "derived" else 1e-6)
                if "mlperf_v4" in name:
                    rel = MLPERF.get(key, rel)
                try:
                    found = extractor(name, section, key)(log)
                except (KeyError, TypeError, AttributeError) as error:
                    found = repr(error)
                checked += 1
                if isinstance(found, str) or not same(found, wanted, rel):
                    wrong.append((name, f"{section}.{key}", found, wanted))
    assert not wrong, "\n".join(map(str, wrong))
    assert checked > 250


def test_the_framework_is_recognized(shared: Path) -> None:
    folder, table = entries(shared)
    for name, row in table.items():
        wanted = next(v for k, v in FRAMEWORK.items() if row["framework"].startswith(k))
        assert read_log(folder / name).framework == wanted, name


def test_lists_that_a_log_holds_have_no_extra_steps(shared: Path) -> None:
    folder, table = entries(shared)
    for name, row in table.items():
        steps = row["steps"].get("steps") or row["steps"].get("iterations")
        if steps is not None:
            assert [s.number for s in read_log(folder / name).steps] == steps, name


def test_one_interval_of_an_mlperf_log(shared: Path) -> None:
    folder, _ = entries(shared)
    log = read_log(folder / "mlperf_v4.0_llama2_70b_lora_h100x32_deepspeed.log")
    step = next(s for s in log.steps if s.number == 6080 // 32)
    assert step.step_time_s == pytest.approx(97.823 / 10, rel=1e-6)


def test_no_throughput_is_not_zero(shared: Path) -> None:
    folder, _ = entries(shared)
    log = read_log(folder / "llmfoundry_mpt125m_noperf.log")
    assert log.steady_step_s() is None
    assert log.steady_tokens_per_s() is None
    assert "log_no_speed" in [note.code for note in log.notes]


def test_contradictions_are_said(shared: Path) -> None:
    folder, _ = entries(shared)
    edited = read_log(folder / "torchtitan_dsv3_16b_mxfp8_ep8_tps_only.log")
    assert "log_contradicts" in [note.code for note in edited.notes]
    twice = read_log(folder / "torchtitan_llama3_8b_h100x32_ansi_srun.log")
    assert "log_step_twice" in [note.code for note in twice.notes]
    early = read_log(folder / "maxtext_deepseek2_16b_v5p_4chips.log")
    assert [n.numbers["step"] for n in early.notes if n.code == "log_step_implausible"] == [1]
    healthy = read_log(folder / "torchtitan_llama3_8b_h100x8_bf16.log")
    assert not healthy.notes
