"""The job: fields, defaults, and what only fits together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields as record_fields
from typing import Any, get_args

from meshplan.errors import ProblemList
from meshplan.inputs.job import Job, Optimizer, Precision, Task
from meshplan.inputs.load.fields import FLAG, TOKENS, Field, choice, count, number, read_fields

__all__ = ["JOB_FIELDS", "dump_job", "read_job"]

_PRECISIONS = {name: () for name in get_args(Precision)} | {
    "bf16": ("bfloat16",),
    "fp16": ("float16", "half"),
    "fp8": ("float8",),
    "nvfp4": ("fp4",),
}
_OPTIMIZERS = {name: () for name in get_args(Optimizer)} | {
    "adamw": ("adam",),
    "adamw16bit": ("adam16bit", "16bit", "adamw-16bit", "precision-aware"),
    "adamw8bit": ("adam8bit", "8bit", "adamw-8bit", "bnb-adamw"),
}
_TASKS = {name: () for name in get_args(Task)} | {
    "pretrain": ("pretraining", "train"),
    "full_finetune": ("finetune", "full", "sft", "full-finetuning"),
}
_ATTENTIONS = {"flash": ("flash-attention", "fused", "sdpa"), "unfused": ("eager", "math", "torch")}
_TARGETS = ("attention", "mlp", "all")
_LORA_TASKS = ("lora", "qlora")
_USUAL_RANK = 16

JOB_FIELDS = (
    Field(name="seq_len", kind=count(example=8192), required=True),
    Field(name="global_batch", kind=count(example=1024)),
    Field(name="global_batch_tokens", kind=TOKENS),
    Field(name="precision", kind=choice(_PRECISIONS)),
    Field(name="optimizer", kind=choice(_OPTIMIZERS)),
    Field(name="task", kind=choice(_TASKS)),
    Field(name="lora_rank", kind=count(least=0, most=65536)),
    Field(name="lora_targets", kind=choice(_TARGETS)),
    Field(name="total_tokens", kind=TOKENS),
    Field(name="deadline_days", kind=number(most=1e6)),
    Field(name="attention", kind=choice(_ATTENTIONS)),
    Field(name="dropout", kind=FLAG),
)


def read_job(data: Any, *, problems: ProblemList, where: str = "job") -> Job | None:
    """Read a job; None, with the reasons in ``problems``, when it cannot be made.

    The batch is given in sequences (``global_batch``) or in tokens (``global_batch_tokens``),
    which must be whole sequences.
    """
    given = read_fields(data, JOB_FIELDS, where=where, problems=problems)
    if not isinstance(data, Mapping):
        return None
    batch = _global_batch(given, data, problems=problems, where=where)
    rank = _lora_rank(given, problems=problems, where=where)
    if "deadline_days" in given and data.get("total_tokens") is None:
        problems.add(
            "deadline_without_tokens",
            where=f"{where}.deadline_days",
            value=given["deadline_days"],
        )
    if "seq_len" not in given or batch is None or rank is None:
        return None
    rest = {k: v for k, v in given.items() if k not in ("global_batch_tokens", "lora_rank")}
    return Job(**{**rest, "global_batch": batch, "lora_rank": rank})


def _global_batch(
    given: dict[str, Any], data: Mapping[str, Any], *, problems: ProblemList, where: str
) -> int | None:
    in_sequences: int | None = given.get("global_batch")
    in_tokens: float | None = given.get("global_batch_tokens")
    seq_len: int | None = given.get("seq_len")
    if in_tokens is None:
        if all(data.get(key) is None for key in ("global_batch", "global_batch_tokens")):
            problems.add("missing_key", where=f"{where}.global_batch")
        return in_sequences
    if in_sequences is not None:
        problems.add("batch_given_twice", where=f"{where}.global_batch_tokens", value=in_tokens)
        return None
    if seq_len is None:
        return None
    sequences, left = divmod(in_tokens, seq_len)
    if left or not 1 <= sequences <= 1e9:
        below = max(1, int(sequences)) * seq_len
        problems.add(
            "batch_not_whole_sequences",
            where=f"{where}.global_batch_tokens",
            value=int(in_tokens),
            allowed=(below, below + seq_len),
            seq_len=seq_len,
        )
        return None
    return int(sequences)


def _lora_rank(given: dict[str, Any], *, problems: ProblemList, where: str) -> int | None:
    rank: int | None = given.get("lora_rank")
    if given.get("task") in _LORA_TASKS:
        if rank == 0:
            problems.add("bad_count", where=f"{where}.lora_rank", value=0, least=1, example=8)
            return None
        return rank or _USUAL_RANK
    stated = {name: given[name] for name in ("lora_rank", "lora_targets") if given.get(name)}
    for name, value in stated.items():
        problems.add("lora_without_lora", where=f"{where}.{name}", value=value)
    return None if stated else 0


def dump_job(job: Job) -> dict[str, Any]:
    """Plain values that ``read_job`` reads back; defaults are left out."""
    plain: dict[str, Any] = {}
    for field in record_fields(job):
        value = getattr(job, field.name)
        if field.name in ("seq_len", "global_batch") or value != field.default:
            whole = isinstance(value, float) and value.is_integer()
            plain[field.name] = int(value) if whole else value
    if job.task in _LORA_TASKS:
        plain["lora_rank"] = job.lora_rank
    return plain
