"""What an operator is, and the shapes it is built from.

Shape letters: ``t`` tokens of one micro-batch on one device, ``h`` hidden width, ``f`` inner width
of the feed-forward network, ``V`` vocabulary. All arrays have shape ``(num_plans,)`` or are
scalars; one device and one micro-batch unless said otherwise.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from meshplan.cost.tuning import Tuning
from meshplan.inputs.job import Job
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.plan import CpComm, PlanGrid, Recompute

__all__ = [
    "ALIGNED",
    "Elementwise",
    "Gemm",
    "Operator",
    "Scan",
    "ScanKind",
    "ScoreProduct",
    "Shapes",
    "shapes_of",
]

FloatArray = npt.NDArray[np.float64]
Number = FloatArray | float
FIELDS = ("framework", "tp", "sp", "cp", "cp_comm", "ep", "etp", "micro_batch")
"""Plan fields that operators depend on."""
ALIGNED = 8
"""Elements of 16 bits in 16 bytes. Rows that are no multiple of those do not reach the matrix units
before cuBLAS 11; later ones take any rows, less efficiently (NVIDIA, Matrix Multiplication
Background User's Guide, tensor core requirements)."""


@record
class Gemm:
    """A matrix product ``y[m, n] = x[m, k] w[k, n]``.

    Attributes:
        name: what it computes.
        m: rows, the tokens.
        n: columns of the weight.
        k: width of the contraction.
        count: equal products launched one after another.
        groups: products run by one grouped kernel, each with ``m`` rows (experts).
        precision: number format; ``job`` stands for the format of the job.
        weight_gradient: whether the weight is trained, so that its gradient is a product too.
        dense_weight: the second operand is a weight, not an activation.
        launched_apart: every group is a kernel of its own, launched by itself.
        peak_share: share of the 16-bit peak that it reaches at most, where rows that are no
            multiple of 16 bytes are slow; 1 where they are.
        rerun: recompute modules that run it again.
    """

    name: str
    m: Number
    n: Number
    k: Number
    count: Number = 1.0
    groups: Number = 1.0
    precision: str = "job"
    weight_gradient: bool = True
    dense_weight: bool = True
    launched_apart: npt.NDArray[np.bool_] | bool = False
    peak_share: Number = 1.0
    rerun: Recompute = Recompute.NONE

    @property
    def forward_flop(self) -> Number:
        """FLOP of the forward product, ``2 m n k`` each [flop]."""
        return 2.0 * self.m * self.n * self.k * self.count * self.groups


@record
class ScoreProduct:
    """The core of softmax attention: scores, softmax and their product with the values.

    Attributes:
        name: what it computes.
        batch: sequences.
        heads: query heads.
        kv_heads: key-value heads.
        query_len: queries on the device.
        key_len: keys that those queries meet (before masking).
        pairs: query-key pairs that the mask leaves, per sequence and head.
        full_pairs: the same when causality is not counted (a window still is).
        qk_dim: width of a query and key head.
        v_dim: width of a value head.
        rounds: kernels into which the work is cut (steps of a ring).
        fused: scores stay on chip (flash attention); otherwise they are written and read, all of
            them whatever the mask.
        dropout: dropout on the scores.
        softmax_kernels: kernels that scale, mask and softmax take where scores are stored.
        softmax_bytes_forward: what those move for each score forward [bytes].
        softmax_bytes_backward: the same backward [bytes].
        rerun: recompute modules that run it again.
    """

    name: str
    batch: Number
    heads: Number
    kv_heads: Number
    query_len: Number
    key_len: Number
    pairs: Number
    full_pairs: Number
    qk_dim: Number
    v_dim: Number
    rounds: Number = 1.0
    fused: bool = True
    dropout: bool = False
    softmax_kernels: Number = 1.0
    softmax_bytes_forward: Number = 0.0
    softmax_bytes_backward: Number = 0.0
    rerun: Recompute = Recompute.CORE_ATTENTION

    @property
    def forward_flop(self) -> Number:
        """FLOP inside the mask, ``2 pairs (d_qk + d_v)`` per head [flop]."""
        return 2.0 * self.batch * self.heads * self.pairs * (self.qk_dim + self.v_dim)


@record
class Elementwise:
    """Work that the memory bandwidth bounds.

    Attributes:
        name: what it computes.
        forward_bytes: bytes read and written forward, fused as the framework fuses it [bytes].
        backward_bytes: the same backward [bytes].
        kernels: kernels launched forward; backward launches as many.
        groups: parts of the work, each with kernels of its own (experts).
        rerun: recompute modules that run it again.
        fusable: a compiler could merge it with its neighbours (eager mode pays more).
    """

    name: str
    forward_bytes: Number
    backward_bytes: Number
    kernels: Number = 1.0
    groups: Number = 1.0
    rerun: Recompute = Recompute.NONE
    fusable: bool = True


ScanKind = Literal["state_space", "delta_rule", "convolution"]


@record
class Scan:
    """Kernels that walk along a sequence: recurrences in chunks, and short convolutions.

    They neither stream at the bandwidth of the memory nor multiply at the speed of large products;
    how many of their bytes a device moves in a second is measured kind by kind.

    Attributes:
        name: what it computes.
        kind: which kernels compute it.
        forward_flop: FLOP of the products inside it [flop].
        forward_bytes: bytes that its kernels read and write forward [bytes].
        backward_bytes: the same backward, with what its own backward pass computes again [bytes].
        kernels: kernels launched forward.
    """

    name: str
    kind: ScanKind
    forward_flop: Number
    forward_bytes: Number
    backward_bytes: Number
    kernels: Number = 1.0


Operator = Gemm | ScoreProduct | Elementwise | Scan


@record
class Shapes:
    """Sizes that the operators of a layer are built from; arrays of shape ``(num_plans,)``.

    Attributes:
        job: the job.
        hidden: width of the residual stream.
        tokens: tokens of a micro-batch on a device before sequence parallelism splits them.
        tokens_split: tokens in regions that sequence parallelism splits.
        micro_batch: sequences in a micro-batch.
        framework: framework of each plan.
        tp: tensor-parallel degree.
        cp: context-parallel degree.
        ep: expert-parallel degree.
        etp: tensor-parallel degree inside an expert.
        ring: context parallelism passes keys and values around a ring.
        ulysses: context parallelism exchanges heads for tokens.
        separate: projections are separate products, not one fused product.
        trained: whether base weights get gradients.
        expert_imbalance: tokens of the busiest device over the mean.
        fused_softmax: a kernel does scale, mask and softmax of stored scores at once.
        softmax_bytes_forward: what PyTorch's operators move for each score otherwise [bytes].
        softmax_bytes_backward: the same backward [bytes].
        fused_loss: the loss leaves the gradient of the logits in their place.
        fused_dropout: the sum of branch and residual stream drops out too.
        merged_dispatch: a token travels once to each device that holds experts of its choice.
    """

    job: Job
    hidden: int
    tokens: FloatArray
    tokens_split: FloatArray
    micro_batch: FloatArray
    framework: npt.NDArray[np.int64]
    tp: FloatArray
    cp: FloatArray
    ep: FloatArray
    etp: FloatArray
    ring: npt.NDArray[np.bool_]
    ulysses: npt.NDArray[np.bool_]
    separate: npt.NDArray[np.bool_]
    trained: bool
    expert_imbalance: float
    fused_softmax: bool
    softmax_bytes_forward: float
    softmax_bytes_backward: float
    fused_loss: bool
    fused_dropout: bool
    merged_dispatch: bool


def shapes_of(scenario: Scenario, grid: PlanGrid, tuning: Tuning) -> Shapes:
    """Derive the sizes for a grid of plans.

    ``t = micro_batch * seq_len / cp``; sequence parallelism divides the tokens outside the
    tensor-parallel products by ``tp`` [1]_.

    References:
        .. [1] Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models,
           2022, section 4.2.
    """
    micro_batch = grid.micro_batch.astype(np.float64)
    tp = grid.tp.astype(np.float64)
    cp = grid.cp.astype(np.float64)
    tokens = micro_batch * scenario.job.seq_len / cp
    return Shapes(
        job=scenario.job,
        hidden=scenario.model.hidden,
        tokens=tokens,
        tokens_split=np.where(grid.sp.astype(bool), tokens / tp, tokens),
        micro_batch=micro_batch,
        framework=grid.framework,
        tp=tp,
        cp=cp,
        ep=grid.ep.astype(np.float64),
        etp=grid.etp.astype(np.float64),
        ring=(grid.cp_comm == CpComm.P2P) & (grid.cp > 1),
        ulysses=(grid.cp_comm == CpComm.ALL_TO_ALL) & (grid.cp > 1),
        separate=grid.is_torch_native,
        trained=scenario.job.task in ("pretrain", "full_finetune"),
        expert_imbalance=tuning.expert_imbalance,
        fused_softmax=tuning.fused_softmax,
        softmax_bytes_forward=tuning.softmax_bytes_forward,
        softmax_bytes_backward=tuning.softmax_bytes_backward,
        fused_loss=tuning.fused_loss,
        fused_dropout=tuning.fused_dropout,
        merged_dispatch=tuning.deduplicated_dispatch,
    )
