"""Settings that a log states: dumps of arguments, command lines, names of folders."""

from __future__ import annotations

from meshplan.diagnose.read.logs.draft import Draft, pattern

__all__ = ["finish_settings", "read_settings"]

# "  hidden_size ..................... 8192" of Megatron and of DeepSpeed
_ARGUMENT = pattern(r"(?:^|[\s\]])([A-Za-z_]+) (?:\.{2,}|) ?<count>\s*$")
_NAMES = {
    "global_batch_size": "global_batch",
    "train_batch_size": "global_batch",
    "micro_batch_size": "micro_batch",
    "batch_size": "micro_batch",
    "train_micro_batch_size_per_gpu": "micro_batch",
    "gradient_accumulation_steps": "accumulation",
    "gas": "accumulation",
    "seq_length": "seq_len",
    "tensor_model_parallel_size": "tp",
    "model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "pipe_parallel_size": "pp",
    "data_parallel_size": "dp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "num_layers": "num_layers",
    "hidden_size": "hidden",
    "log_interval": "log_interval",
    "world_size": "num_gpus",
    "zero_stage": "zero",
    "zero_optimization_stage": "zero",
}
# "--grad_acc_steps 2 --mbs 4" of picotron, "--training.seq_len=8192" of torchtitan,
# "per_device_batch_size=24" of MaxText
_FLAG = pattern(r"(?:^|\s)(?:--)?([A-Za-z_.]+)[ =]+<count>(?=\s|$|\\)")
_FLAGS = {
    "dp": "dp",
    "tp": "tp",
    "pp": "pp",
    "cp": "cp",
    "mbs": "micro_batch",
    "grad_acc_steps": "accumulation",
    "seq_len": "seq_len",
    "per_device_train_batch_size": "micro_batch",
    "per_device_batch_size": "micro_batch",
    "max_target_length": "seq_len",
    "parallelism.data_parallel_shard_degree": "dp_shard",
    "parallelism.expert_parallel_degree": "ep",
    "parallelism.tensor_parallel_degree": "tp",
    "parallelism.pipeline_parallel_degree": "pp",
    "parallelism.context_parallel_degree": "cp",
    "training.seq_len": "seq_len",
    "training.local_batch_size": "micro_batch",
    "training.global_batch_size": "global_batch",
    "NGPU": "num_gpus",
}
# ".._gpus8_tp1_pp1_cp1_vpNone_ep1_mbs4_gbs128/.." of Megatron-Bridge
_FOLDER = pattern(r"(?:^|_)(gpus|tp|pp|cp|ep|mbs|gbs)<count>(?=_|/|$)")
_AT_LEAST_ONE = {
    *("tp", "pp", "cp", "ep", "dp", "dp_shard", "num_gpus", "num_layers", "hidden"),
    *("micro_batch", "global_batch", "num_micro_batches", "accumulation", "seq_len", "num_steps"),
}
_FOLDERS = {"gpus": "num_gpus", "mbs": "micro_batch", "gbs": "global_batch"}


def read_settings(line: str, draft: Draft) -> None:
    """Note what one line states of the run; what was stated before stays."""
    if ".." in line or "  " in line:
        argument = _ARGUMENT.search(line)
        if argument is not None and argument[1] in _NAMES:
            draft.settings.setdefault(_NAMES[argument[1]], _count(argument[2]))
    if "--" in line or "=" in line:
        for name, number in _FLAG.findall(line):
            if name in _FLAGS:
                draft.settings.setdefault(_FLAGS[name], _count(number))
    if "_tp" in line and "_pp" in line:
        for name, number in _FOLDER.findall(line):
            draft.settings.setdefault(_FOLDERS.get(name, name), _count(number))


def _count(text: str) -> int:
    return min(int(text[:18]), 10**15)


def finish_settings(draft: Draft, framework: str) -> None:
    """Work out what follows from what was stated; a degree or size of 0 states nothing."""
    _drop_empty(draft.settings)
    _finish(draft, framework)
    _drop_empty(draft.settings)


def _drop_empty(settings: dict[str, int]) -> None:
    for name in _AT_LEAST_ONE & settings.keys():
        if settings[name] < 1:
            del settings[name]


def _finish(draft: Draft, framework: str) -> None:
    s = draft.settings
    if framework in ("megatron", "deepspeed", "nemo"):
        _finish_degrees(s)
    if framework == "picotron" and {"dp", "tp", "pp"} <= s.keys():
        s.setdefault("num_gpus", s["dp"] * s["tp"] * s["pp"] * s.get("cp", 1))
    if framework == "torchtitan" and "dp_shard" in s:
        s.setdefault("num_gpus", s["dp_shard"] * s.get("tp", 1) * s.get("pp", 1) * s.get("cp", 1))
        s.setdefault("dp", s["dp_shard"])
    if framework == "nanotron":
        for step in draft.steps.get("nanotron", {}).values():
            both = step.values.get("tokens_per_s"), step.values.get("tokens_per_s_per_gpu")
            if both[0] and both[1]:
                s.setdefault("num_gpus", round(both[0] / both[1]))
    if framework == "huggingface":
        _finish_trainer(draft)
    workers = s.get("dp") or (s.get("num_gpus") if framework == "maxtext" else None)
    if workers and "micro_batch" in s:
        batch = workers * s["micro_batch"] * s.get("accumulation", 1)
        if framework in ("picotron", "maxtext", "torchtitan"):
            s.setdefault("global_batch", batch)


def _finish_degrees(s: dict[str, int]) -> None:
    """Degrees of Megatron and its descendants from the others."""
    batch, micro = s.get("global_batch"), s.get("num_micro_batches")
    if "num_gpus" in s and "tp" in s:
        rest = s["num_gpus"] // max(1, s["tp"] * s.get("pp", 1) * s.get("cp", 1))
        s.setdefault("dp", max(1, rest))
        s.setdefault("pp", 1)
    elif batch and micro and batch == micro:
        s.setdefault("dp", 1)  # one sequence is in flight in each micro-batch
    if batch and micro and "dp" in s:
        s.setdefault("micro_batch", max(1, batch // (micro * s["dp"])))
    if {"tp", "pp", "dp"} <= s.keys():
        s.setdefault("num_gpus", s["tp"] * s["pp"] * s["dp"] * s.get("cp", 1))
    if "num_gpus" in s and {"tp", "pp", "dp"} <= s.keys():
        s.setdefault("cp", max(1, s["num_gpus"] // (s["tp"] * s["pp"] * s["dp"])))


def _finish_trainer(draft: Draft) -> None:
    """Batch, steps and workers of the Hugging Face Trainer."""
    s, totals = draft.settings, draft.totals
    if totals.get("steps_per_s") and totals.get("samples_per_s"):
        s.setdefault("global_batch", round(totals["samples_per_s"] / totals["steps_per_s"]))
    if totals.get("runtime_s") and s.get("num_steps"):
        totals.setdefault("step_s", totals["runtime_s"] / s["num_steps"])
    if totals.get("runtime_s") and totals.get("samples_per_s"):
        totals.setdefault("num_samples", totals["runtime_s"] * totals["samples_per_s"])
    if "micro_batch" in s and "global_batch" in s:
        s.setdefault("dp", s["global_batch"] // (s["micro_batch"] * s.get("accumulation", 1)))
        s.setdefault("num_gpus", s["dp"])
