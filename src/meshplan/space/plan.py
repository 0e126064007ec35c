"""A plan, and a grid of plans with the same field names.

A :class:`Plan` is one way to spread the job. A :class:`PlanGrid` is a struct of NumPy arrays, one
entry per plan, with the same names and the same integer codes, so that one formula serves both.
Axis means an axis of the device mesh, dim a dimension of a tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from enum import IntEnum, IntFlag

import numpy as np
import numpy.typing as npt

from meshplan.record import record

__all__ = [
    "CpComm",
    "Framework",
    "Offload",
    "Plan",
    "PlanGrid",
    "Recompute",
    "Schedule",
    "Shared",
    "Split",
]


class Framework(IntEnum):
    """Training framework whose rules and behaviour a plan follows."""

    MEGATRON = 0
    TORCHTITAN = 1
    DEEPSPEED = 2
    ACCELERATE = 3
    NANOTRON = 4


class Schedule(IntEnum):
    """Order in which a pipeline runs its forwards and backwards.

    Plans without a pipeline use ``ONE_F_ONE_B``.
    """

    GPIPE = 0
    ONE_F_ONE_B = 1
    INTERLEAVED = 2
    ZB_H1 = 3
    ZB_1P = 4
    ZB_2P = 5
    ZBV = 6
    DUALPIPE_V = 7
    INTERLEAVED_ZB = 8


class CpComm(IntEnum):
    """How context parallelism moves keys and values."""

    P2P = 0
    ALL_GATHER = 1
    ALL_TO_ALL = 2


class Recompute(IntFlag):
    """What is thrown away in the forward pass and computed again in the backward pass."""

    NONE = 0
    CORE_ATTENTION = 1
    NORM = 2
    MLP_ACTIVATION = 4
    MLP = 8
    MOE = 16
    MLA_UP_PROJECTION = 32
    SHARED_EXPERTS = 64
    SELECTIVE_OP = 128  # torchtitan: every second matrix product is kept, the rest recomputed
    FULL = 256


class Offload(IntFlag):
    """What lives in host memory."""

    NONE = 0
    OPTIMIZER = 1
    PARAMETERS = 2


class Split(IntEnum):
    """How layers are dealt to pipeline stages when no explicit layout is given.

    ``EVEN`` gives every (virtual) stage the same number of layers, ``BALANCED`` counts the
    embedding, the head and each MTP block as a layer too and takes them from the ends. ``BY_COST``
    weighs blocks and head by their matrix products, as nanotron deals them.
    """

    EVEN = 0
    BALANCED = 1
    BY_COST = 2


@record
class Plan:
    """One way to spread a job over a cluster.

    Attributes:
        framework: whose rules and behaviour apply.
        tp: tensor-parallel degree.
        sp: Megatron sequence parallelism on the tensor-parallel axis.
        pp: pipeline stages on different devices.
        vpp: model chunks per device (1 without interleaving).
        schedule: pipeline schedule.
        cp: context-parallel degree.
        cp_comm: how context parallelism communicates.
        ep: expert-parallel degree.
        etp: tensor-parallel degree inside an expert.
        dp: data-parallel replicas, ``num_gpus / (tp * pp * cp)``.
        dp_shard: part of ``dp`` over which states are sharded (``dp`` unless HSDP).
        dp_replicate: ``dp / dp_shard``.
        zero: 0 (DDP), 1 (optimizer), 2 (and gradients) or 3 (and parameters; FSDP). States are
            sharded over ``dp_shard * cp``.
        micro_batch: sequences per device and micro-batch.
        num_micro_batches: micro-batches per step, ``global_batch / (dp * micro_batch)``.
        recompute: what is recomputed.
        recompute_layers: first layers of each virtual stage to which ``FULL`` applies; 0 means
            all.
        offload: what lives in host memory.
        offload_layers: first layers of each virtual stage whose activations wait in host memory
            between forward and backward pass.
        split: how layers are dealt to stages.
        stage_layers: explicit layers per virtual stage, in model order (empty: see ``split``).
    """

    framework: Framework
    tp: int
    sp: bool
    pp: int
    vpp: int
    schedule: Schedule
    cp: int
    cp_comm: CpComm
    ep: int
    etp: int
    dp: int
    dp_shard: int
    dp_replicate: int
    zero: int
    micro_batch: int
    num_micro_batches: int
    recompute: Recompute
    recompute_layers: int = 0
    offload: Offload = Offload.NONE
    offload_layers: int = 0
    split: Split = Split.EVEN
    stage_layers: tuple[int, ...] = ()


_ARRAY_FIELDS = tuple(f.name for f in fields(Plan) if f.name != "stage_layers")
_ENUMS = {
    "framework": Framework,
    "schedule": Schedule,
    "cp_comm": CpComm,
    "recompute": Recompute,
    "offload": Offload,
    "split": Split,
}

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@record
class Shared:
    """Fewer plans that those of a grid have most of their fields from.

    Attributes:
        rows: the fewer plans.
        row: row of each plan of the grid, ``(num_plans,)``.
        apart: fields that a plan does not have from its row.
    """

    rows: PlanGrid
    row: IntArray
    apart: frozenset[str]

    @classmethod
    def concatenate(cls, parts: Sequence[Shared]) -> Shared:
        """Join what the plans of several grids have, with the same fields apart."""
        sizes = np.cumsum([0, *(len(part.rows) for part in parts)]).tolist()
        return cls(
            rows=PlanGrid.concatenate([part.rows for part in parts]),
            row=np.concatenate(
                [part.row + start for part, start in zip(parts, sizes, strict=False)]
            ),
            apart=parts[0].apart,
        )


@record
class PlanGrid:
    """Many plans as arrays of shape ``(num_plans,)``; see :class:`Plan` for the fields.

    ``stage_layers`` is one explicit layout shared by the whole grid, empty in a search.
    ``shared`` says what the plans of a large grid have in common, where it was made that way.
    """

    framework: IntArray
    tp: IntArray
    sp: IntArray
    pp: IntArray
    vpp: IntArray
    schedule: IntArray
    cp: IntArray
    cp_comm: IntArray
    ep: IntArray
    etp: IntArray
    dp: IntArray
    dp_shard: IntArray
    dp_replicate: IntArray
    zero: IntArray
    micro_batch: IntArray
    num_micro_batches: IntArray
    recompute: IntArray
    recompute_layers: IntArray
    offload: IntArray
    offload_layers: IntArray
    split: IntArray
    stage_layers: tuple[int, ...] = ()
    shared: Shared | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def with_rows(cls, rows: PlanGrid, row: IntArray, columns: Mapping[str, IntArray]) -> PlanGrid:
        """Make many plans of fewer rows.

        Args:
            rows: plans.
            row: row of each plan, ``(num_plans,)``.
            columns: what a plan does not have from its row.
        """
        used = np.zeros(len(rows), dtype=np.bool_)
        used[row] = True
        fewer, place = rows.take(np.flatnonzero(used)), (np.cumsum(used) - 1)[row]
        arrays = {
            name: columns[name] if name in columns else getattr(fewer, name)[place]
            for name in _ARRAY_FIELDS
        }
        grid = cls(**arrays, stage_layers=rows.stage_layers)
        return grid._sharing(Shared(rows=fewer, row=place, apart=frozenset(columns)))

    def _sharing(self, shared: Shared) -> PlanGrid:
        # not an argument of the class: a grid of other columns, as `replace` makes it, has none
        object.__setattr__(self, "shared", shared)
        return self

    @classmethod
    def of(cls, plans: Sequence[Plan]) -> PlanGrid:
        """Gather plans into a grid; all must share one ``stage_layers``."""
        layouts = {plan.stage_layers for plan in plans}
        assert len(layouts) <= 1, "a grid holds one explicit layout"
        arrays = {
            name: np.array([int(getattr(plan, name)) for plan in plans], dtype=np.int64)
            for name in _ARRAY_FIELDS
        }
        return cls(**arrays, stage_layers=layouts.pop() if layouts else ())

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def frameworks(self) -> tuple[Framework, ...]:
        """The frameworks of the plans, each once."""
        # numpy's unique imports masked arrays, which takes longer than all look-ups of a search
        present = np.flatnonzero(np.bincount(self.framework, minlength=1)).tolist()
        return tuple(Framework(code) for code in present)

    @property
    def is_torch_native(self) -> BoolArray:
        """Plans that torch's own modules run (FSDP2, DTensor, its pipelines and checkpoints)."""
        native: BoolArray = (self.framework == Framework.TORCHTITAN) | (
            self.framework == Framework.ACCELERATE
        )
        return native

    def __iter__(self) -> Iterator[Plan]:
        return (self.plan(i) for i in range(len(self)))

    def plan(self, index: int) -> Plan:
        """Return one entry as a :class:`Plan`."""
        values: dict[str, object] = {}
        for name in _ARRAY_FIELDS:
            number = int(getattr(self, name)[index])
            enum = _ENUMS.get(name)
            values[name] = number if enum is None else enum(number)
        values["sp"] = bool(values["sp"])
        return Plan(**values, stage_layers=self.stage_layers)  # type: ignore[arg-type]

    def take(self, index: npt.NDArray[np.integer | np.bool_] | slice) -> PlanGrid:
        """Return the entries that an index array, a mask or a slice selects."""
        arrays = {name: getattr(self, name)[index] for name in _ARRAY_FIELDS}
        return PlanGrid(**arrays, stage_layers=self.stage_layers)

    @classmethod
    def concatenate(cls, grids: Iterable[PlanGrid]) -> PlanGrid:
        """Join grids that share one ``stage_layers``."""
        parts = list(grids)
        if len(parts) == 1:
            return parts[0]
        assert len({part.stage_layers for part in parts}) == 1, "a grid holds one explicit layout"
        arrays = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAY_FIELDS
        }
        whole = cls(**arrays, stage_layers=parts[0].stage_layers)
        shared = [part.shared for part in parts if part.shared]
        same = len(shared) == len(parts) and len({part.apart for part in shared}) == 1
        return whole._sharing(Shared.concatenate(shared)) if same else whole
