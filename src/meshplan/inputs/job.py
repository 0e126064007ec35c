"""The job: what is trained, for how long, in which numbers."""

from __future__ import annotations

from typing import Literal

from meshplan.record import record

__all__ = ["ADAPTERS", "LOW_PRECISIONS", "Job", "Optimizer", "Precision", "Task"]

Precision = Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4"]
Optimizer = Literal["adamw", "adamw16bit", "adamw8bit", "muon", "adafactor", "sgd"]
Task = Literal["pretrain", "full_finetune", "lora", "qlora"]

LOW_PRECISIONS: frozenset[Precision] = frozenset({"fp8", "mxfp8", "nvfp4"})
"""Formats of 8 bits or fewer, to which 16-bit values are cast before a product."""
ADAPTERS: tuple[Task, ...] = ("lora", "qlora")
"""Tasks that train adapters beside frozen weights."""


@record
class Job:
    """One training job.

    Attributes:
        seq_len: tokens per sequence.
        global_batch: sequences per optimizer step over all devices.
        precision: number format of the large matrix products.
        optimizer: the update rule, which decides the optimizer state.
        task: pretraining, full fine-tuning, or adapters on frozen weights.
        lora_rank: rank of the adapters; 0 unless ``task`` is ``lora`` or ``qlora``.
        lora_targets: which projections get adapters: ``attention``, ``mlp`` or ``all``.
        total_tokens: token budget of the whole run; None when not stated.
        deadline_days: the longest acceptable duration; None for no limit.
        attention: ``flash`` (scores never stored) or ``unfused`` (scores stored).
        dropout: dropout is on, so that its masks are stored.
    """

    seq_len: int
    global_batch: int
    precision: Precision = "bf16"
    optimizer: Optimizer = "adamw"
    task: Task = "pretrain"
    lora_rank: int = 0
    lora_targets: Literal["attention", "mlp", "all"] = "all"
    total_tokens: float | None = None
    deadline_days: float | None = None
    attention: Literal["flash", "unfused"] = "flash"
    dropout: bool = False

    @property
    def tokens_per_step(self) -> int:
        """Tokens per optimizer step over all devices."""
        return self.seq_len * self.global_batch
