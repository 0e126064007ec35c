"""What the activation formulas need to know about each plan, as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from meshplan.inputs.framework import FrameworkMemory
from meshplan.inputs.job import Job
from meshplan.record import record
from meshplan.space.plan import Framework, PlanGrid, Recompute
from meshplan.units import BF16_BYTES

__all__ = ["Behaviours", "Shapes", "per_device", "rounded"]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

_NUMERIC = tuple(
    f.name for f in fields(FrameworkMemory) if f.name not in ("name", "low_precision", "sources")
)
ACTIVATION_BYTES = BF16_BYTES
"""Width of an activation: every supported precision keeps activations in 16 bits."""


def rounded(num_bytes: FloatArray) -> FloatArray:
    """Round up to whole bytes, so that sums are exact in any order."""
    return np.ceil(num_bytes)


def per_device(units: int, degree: FloatArray) -> FloatArray:
    """Share indivisible units (heads, experts) out; more devices than units hold copies."""
    return np.ceil(units / degree)


class Behaviours:
    """The memory behaviour of each plan's framework, one array per figure."""

    def __init__(self, records: Mapping[Framework, FrameworkMemory], grid: PlanGrid) -> None:
        self._records = records
        self._code = grid.framework
        self._figures: dict[str, FloatArray] = {}

    def __getitem__(self, name: str) -> FloatArray:
        """Return a figure of :class:`FrameworkMemory` with shape ``(num_plans,)``."""
        found = self._figures.get(name)
        if found is None:
            assert name in _NUMERIC, name
            table = np.zeros(len(Framework), dtype=np.float64)
            for framework, behaviour in self._records.items():
                table[framework] = float(getattr(behaviour, name))
            found = self._figures[name] = table[self._code]
        return found

    def low_precision(self, precision: str, name: str, otherwise: float) -> FloatArray:
        """Return a figure of the job's number format, or its 16-bit value."""
        table = np.full(len(Framework), otherwise, dtype=np.float64)
        for framework, behaviour in self._records.items():
            low = behaviour.low_precision.get(precision)
            if low is not None:
                table[framework] = float(getattr(low, name))
        return table[self._code]


@record
class Shapes:
    """Shapes of one micro-batch on one device; arrays of shape ``(num_plans,)``.

    Attributes:
        behaviours: of each plan's framework.
        seq_len: tokens s of a whole sequence.
        framework: framework of each plan.
        sequences: sequences of a micro-batch.
        tokens: T, tokens of a micro-batch on a device, ``b s / cp``.
        shared_tokens: tokens of tensors outside the tensor-parallel region: ``T / tp`` with
            sequence parallelism, else T.
        input_tokens: tokens of a saved input of a column-parallel product: as above where the
            framework gathers it again, T where it keeps the gathered one.
        tp: tensor-parallel degree.
        cp: context-parallel degree.
        ep: expert-parallel degree.
        etp: tensor-parallel degree inside experts.
        cp_all_to_all: context parallelism exchanges heads for tokens.
        recompute: bit mask of :class:`Recompute`.
        recompute_layers: first layers of a chunk to which full recompute applies; 0 means all.
        offload_layers: first layers of a chunk whose activations wait in host memory.
        input_bytes: width of a saved input of a matrix product [bytes per element].
        trains_mixers: projections of mixers are trained, or have adapters, so that their inputs
            are needed for a weight gradient.
        trains_mlp: the same for feed-forward networks.
        adapters: only adapters are trained.
        unfused: scores of the attention are stored.
        dropout: dropout masks are stored.
    """

    behaviours: Behaviours
    seq_len: int
    framework: npt.NDArray[np.int64]
    sequences: FloatArray
    tokens: FloatArray
    shared_tokens: FloatArray
    input_tokens: FloatArray
    tp: FloatArray
    cp: FloatArray
    ep: FloatArray
    etp: FloatArray
    cp_all_to_all: BoolArray
    recompute: npt.NDArray[np.int64]
    recompute_layers: npt.NDArray[np.int64]
    offload_layers: npt.NDArray[np.int64]
    input_bytes: FloatArray
    trains_mixers: bool
    trains_mlp: bool
    adapters: bool
    unfused: bool
    dropout: bool

    @classmethod
    def of(cls, job: Job, grid: PlanGrid, records: Mapping[Framework, FrameworkMemory]) -> Shapes:
        """Derive the shapes of each plan of a grid."""
        behaviours = Behaviours(records, grid)
        adapters = job.task in ("lora", "qlora")
        tp = grid.tp.astype(np.float64)
        cp = grid.cp.astype(np.float64)
        tokens = grid.micro_batch * (job.seq_len / cp)
        shared = tokens / np.where(grid.sp != 0, tp, 1.0)
        return cls(
            behaviours=behaviours,
            seq_len=job.seq_len,
            framework=grid.framework,
            sequences=grid.micro_batch.astype(np.float64),
            tokens=tokens,
            shared_tokens=shared,
            input_tokens=np.where(behaviours["keeps_gathered_input"] != 0, tokens, shared),
            tp=tp,
            cp=cp,
            ep=grid.ep.astype(np.float64),
            etp=grid.etp.astype(np.float64),
            cp_all_to_all=grid.cp_comm == 2,
            recompute=grid.recompute,
            recompute_layers=grid.recompute_layers,
            offload_layers=grid.offload_layers,
            input_bytes=behaviours.low_precision(job.precision, "input_bytes", ACTIVATION_BYTES),
            trains_mixers=not adapters or job.lora_targets in ("attention", "all"),
            trains_mlp=not adapters or job.lora_targets in ("mlp", "all"),
            adapters=adapters,
            unfused=job.attention == "unfused",
            dropout=job.dropout,
        )

    def has(self, mode: Recompute) -> BoolArray:
        """Tell which plans recompute something."""
        return np.asarray((self.recompute & int(mode)) != 0, dtype=np.bool_)
