"""Weights, gradients and optimizer state of a stage, on the device and in host memory.

Shape letters: P parameters of the stage on one device, D devices that share them out (data times
context parallelism), in bytes per parameter: w weights, g gradient buffer, m master copy, o
moments.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from meshplan.cost.adapters import adapter_shard
from meshplan.cost.memory.shapes import Behaviours, BoolArray, FloatArray, rounded
from meshplan.cost.memory.state_records import Parameters, StageStates
from meshplan.cost.memory.units import ShardedUnits
from meshplan.cost.shards import embedding_shard, layer_shard, padded_vocab
from meshplan.inputs.framework import MemoryConstants
from meshplan.inputs.job import Job
from meshplan.inputs.model import Layer, Model
from meshplan.record import record
from meshplan.space.plan import Framework, Offload, PlanGrid

__all__ = ["STATE_FIELDS", "StateTable"]

IntArray = npt.NDArray[np.int64]

STATE_FIELDS = (
    "framework",
    "tp",
    "ep",
    "etp",
    "cp",
    "dp",
    "dp_shard",
    "dp_replicate",
    "zero",
    "offload",
)
"""Plan fields that weights, gradients and optimizer state depend on, given the layers."""


@record
class _Placed:
    """Bytes of the states in one place."""

    weights: FloatArray
    gradients: FloatArray
    optimizer: FloatArray


class StateTable:
    """Parameter counts and states of stages, for combinations of their layers and plan fields."""

    def __init__(
        self,
        model: Model,
        job: Job,
        grid: PlanGrid,
        behaviours: Behaviours,
        constants: MemoryConstants,
    ) -> None:
        self._model, self._job, self._grid = model, job, grid
        self._b, self._constants = behaviours, constants
        self._adapters = job.task in ("lora", "qlora")
        tp = grid.tp
        self._layers = {kind: self._layer_counts(kind) for kind in model.layer_kinds}
        self.vocab = padded_vocab(
            model.vocab, multiple=self._b["vocab_multiple"].astype(np.int64), tp=tp
        )
        ends = embedding_shard(model, tp=tp, padded_vocab=self.vocab)
        self._embedding = (ends.embedding + ends.positions).astype(np.float64)
        self._head = (ends.head + ends.final_norm).astype(np.float64)
        self._joins = ends.mtp_joins.astype(np.float64)
        self._shared_head = ends.head.astype(np.float64)
        self.head_matrix = ends.head.astype(np.float64)
        self.embedding_matrix = ends.embedding.astype(np.float64)
        self._dense_shards, self._expert_shards = self._shard_degrees()
        self._units = ShardedUnits(
            model,
            grid,
            behaviours,
            self._layers,
            frozen_bytes=self._frozen_bytes(),
            adapters=self._adapters,
        )

    def _shard_degrees(self) -> tuple[FloatArray, FloatArray]:
        """Devices that share states: ``dp_shard cp``, for experts ``dp_shard cp tp / (ep etp)``."""
        g = self._grid
        dense = (g.dp_shard * g.cp).astype(np.float64)
        expert = np.maximum(dense * g.tp / (g.ep * g.etp), 1.0)
        return dense, expert

    def _layer_counts(self, layer: Layer) -> Parameters:
        model, job, g = self._model, self._job, self._grid
        shard = layer_shard(layer, model, tp=g.tp, ep=g.ep, etp=g.etp)
        dense = (shard.dense + shard.replicated).astype(np.float64)
        expert = shard.expert.astype(np.float64)
        if not self._adapters:
            return Parameters(
                dense=dense,
                expert=expert,
                ends=np.zeros_like(dense),
                trainable_dense=dense,
                trainable_expert=expert,
                vectors=np.zeros_like(dense),
            )
        low = adapter_shard(
            layer,
            model,
            rank=job.lora_rank,
            targets=job.lora_targets,
            tp=g.tp,
            ep=g.ep,
            etp=g.etp,
        )
        return Parameters(
            dense=dense,
            expert=expert,
            ends=np.zeros_like(dense),
            trainable_dense=(low.dense + low.replicated).astype(np.float64),
            trainable_expert=low.expert.astype(np.float64),
            vectors=np.zeros_like(dense),
        )

    def count(
        self, layers: Mapping[Layer, IntArray], *, embedding: BoolArray, head: BoolArray
    ) -> Parameters:
        """Add up the parameters of a set of layers and of the ends of the model.

        Blocks that share one set of weights count once per device. What joins MTP blocks to the
        decoder stands with the head; Megatron-LM's MTP blocks read a copy of the embedding where
        their stage is not the first.
        """
        owned = {
            layer: np.minimum(times, 1) if layer.weight_set is not None else times
            for layer, times in layers.items()
        }
        zero = np.zeros(len(self._grid), dtype=np.float64)
        shared = np.where(embedding & self._model.tied_embeddings, self._shared_head, 0.0)
        ends = np.where(embedding, self._embedding, 0.0)
        ends = ends + np.where(head, self._head - shared, 0.0)
        if self._model.mtp_layers:
            copied = (self._grid.framework == Framework.MEGATRON) & head & ~embedding
            ends = ends + np.where(copied, self._embedding, 0.0)
        sums = {
            name: sum((n * getattr(self._layers[k], name) for k, n in owned.items()), zero)
            for name in ("dense", "expert", "trainable_dense", "trainable_expert")
        }
        joins = np.where(head, self._joins, 0.0)
        trained_ends, trained_joins = (zero, zero) if self._adapters else (ends, joins)
        return Parameters(
            dense=sums["dense"] + joins,
            expert=sums["expert"],
            ends=ends,
            trainable_dense=sums["trainable_dense"] + trained_joins + trained_ends,
            trainable_expert=sums["trainable_expert"],
            vectors=trained_ends,
        )

    def states(
        self,
        layers: Mapping[Layer, IntArray],
        *,
        embedding: BoolArray,
        head: BoolArray,
        pipeline: BoolArray,
    ) -> StageStates:
        """Bytes of all states of a stage.

        Equation:
            weights ``w P / (D if ZeRO-3)``; gradients ``g P / (D if ZeRO-2)``; optimizer
            ``(m + o) P / (D if ZeRO-1)``; routed experts with their own D. Adapters: the frozen
            weights are sharded by ZeRO-3 alone, gradients and optimizer count the adapters.

        Args:
            layers: how many blocks of each kind a stage has, ``(num_combinations,)``.
            embedding: where the stage holds the input embedding.
            head: where the stage holds the output head.
            pipeline: where there is more than one stage.

        Returns:
            Bytes [bytes], shape ``(num_combinations,)``.

        References:
            1. S. Rajbhandari et al., ZeRO, SC20, section 5.
            2. Megatron-LM, docs, distributed optimizer: 6 + 12 / d bytes per parameter.
        """
        p = self.count(layers, embedding=embedding, head=head)
        g, b = self._grid, self._b
        sharded_weights = g.zero >= b["shards_weights_from"]
        sharded_gradients = (g.zero >= 2) & (b["shards_gradients"] != 0)
        trained = (p.trainable_dense, p.trainable_expert)
        whole = p.trainable_dense + p.trainable_expert
        local = self._spread(np.ones_like(whole), *trained, g.zero >= 1)
        gathered, at_loss = self._units.gathered(p, layers, sharded_weights, pipeline)
        waits = (b["ends_form_a_unit"] != 0) & sharded_gradients
        # what autograd leaves where gradients are not sharded, and what waits whole where they are
        left = np.where(sharded_gradients, 0.0, b["autograd_gradient_bytes"] * whole)
        device, host = self._placed(p, sharded_weights, sharded_gradients)
        stays = (g.offload & int(Offload.OPTIMIZER)) == 0
        wide = np.where(pipeline, b["pipeline_gradient_bytes"], b["accumulation_gradient_bytes"])
        wrapped = (g.dp > 1) & (g.zero < b["shards_weights_from"])
        return StageStates(
            parameters=p,
            weights=device.weights,
            weight_copies=self._copies(p, sharded_weights),
            gradients=device.gradients,
            unsharded_gradients=rounded(np.where(sharded_gradients, wide * whole, 0.0)),
            autograd_gradients=rounded(left),
            replica_buckets=rounded(np.where(wrapped, b["replica_bucket_bytes"] * whole, 0.0)),
            optimizer=np.where(stays, device.optimizer, rounded(b["offload_buffer_bytes"] * local)),
            step_gradients=np.where(stays, rounded(b["step_gradient_bytes"] * local), 0.0),
            optimizer_temporaries=np.where(
                stays, rounded(b["optimizer_temporary_bytes"] * local), 0.0
            ),
            gathered=gathered,
            gathered_at_loss=at_loss,
            reduced_ends=rounded(np.where(waits, b["bucket_bytes"] * p.vectors, 0.0)),
            reduced=self._units.reduced(whole, layers),
            offloaded=host.weights + host.gradients + host.optimizer,
            loading=self._loading(p, device.weights),
        )

    def _loading(self, p: Parameters, weights: FloatArray) -> FloatArray:
        """What loading needs: whole weights, unless the host cuts them to shards first."""
        whole = self._stored(p, np.zeros(len(self._grid), dtype=np.bool_))
        return np.maximum(weights, np.where(self._b["load_on_host"] != 0, 0.0, whole))

    def _placed(
        self, p: Parameters, sharded_weights: BoolArray, sharded_gradients: BoolArray
    ) -> tuple[_Placed, _Placed]:
        """Weights, gradients and optimizer state on the device, and what of them is on the host.

        Where a framework's gradients follow an offloaded optimizer, they are in host memory in
        the width in which the optimizer reads them.
        """
        g, b = self._grid, self._b
        trained = (p.trainable_dense, p.trainable_expert)
        weights = self._stored(p, sharded_weights)
        gradients = self._spread(b["gradient_bytes"], *trained, sharded_gradients)
        follow = self._spread(b["host_gradient_bytes"], *trained, sharded_gradients)
        optimizer = self._spread(self._master_bytes(), *trained, g.zero >= 1) + self._moments(p)
        optimizer_off = (g.offload & int(Offload.OPTIMIZER)) != 0
        weights_off = (g.offload & int(Offload.PARAMETERS)) != 0
        gradients_off = optimizer_off & (b["host_gradient_bytes"] > 0)
        device = _Placed(
            weights=np.where(weights_off, 0.0, weights),
            gradients=np.where(gradients_off, 0.0, gradients),
            optimizer=np.where(optimizer_off, 0.0, optimizer),
        )
        host = _Placed(
            weights=np.where(weights_off, weights, 0.0),
            gradients=np.where(gradients_off, follow, 0.0),
            optimizer=np.where(optimizer_off, optimizer, 0.0),
        )
        return device, host

    def _spread(
        self,
        width: FloatArray,
        dense: FloatArray,
        expert: FloatArray,
        sharded: BoolArray,
    ) -> FloatArray:
        over_dense = np.where(sharded, self._dense_shards, 1.0)
        over_expert = np.where(sharded, self._expert_shards, 1.0)
        return rounded(width * dense / over_dense) + rounded(width * expert / over_expert)

    def _stored(self, p: Parameters, sharded: BoolArray) -> FloatArray:
        """Weights on the device; frozen 4-bit ones for QLoRA, embedding and head excepted."""
        full = self._b["weight_bytes"]
        if not self._adapters:
            return self._spread(full, p.dense + p.ends, p.expert, sharded)
        half = self._b["gathered_weight_bytes"]
        frozen = self._frozen_bytes()
        none = np.zeros_like(half)
        return (
            self._spread(frozen, p.dense, p.expert, sharded)
            + self._spread(half, p.ends, none, sharded)
            + self._spread(full, p.trainable_dense, p.trainable_expert, sharded)
        )

    def _master_bytes(self) -> FloatArray:
        """Width of the optimizer's copy of the weights, or of what bf16 weights lack of it."""
        whole = self._b["master_bytes"]
        remainder = self._constants.optimizers[self._job.optimizer].remainder_bytes
        if remainder is None or self._job.precision != "bf16":
            return whole
        # FSDP keeps the copy in a buffer of its own
        return np.where(self._grid.zero < 2, remainder, whole)

    def _moments(self, p: Parameters) -> FloatArray:
        """Moments of the optimizer, sharded from ZeRO-1 on."""
        state = self._constants.optimizers[self._job.optimizer]
        sharded = self._grid.zero >= 1
        ones = np.ones_like(p.dense)
        none = np.zeros_like(p.dense)
        matrices = p.trainable_dense - p.vectors
        return self._spread(
            state.moment_bytes * ones, matrices, p.trainable_expert, sharded
        ) + self._spread(state.vector_moment_bytes * ones, p.vectors, none, sharded)

    def _copies(self, p: Parameters, sharded: BoolArray) -> FloatArray:
        """Low-precision copies of the matrices of the blocks (the ends stay in 16 bits)."""
        width = self._b.low_precision(self._job.precision, "weight_copy_bytes", 0.0)
        return self._spread(width, p.dense, p.expert, sharded)

    def _frozen_bytes(self) -> FloatArray:
        """Width of the weights of a block as they are gathered; 4 bits for QLoRA."""
        half = self._b["gathered_weight_bytes"]
        if self._job.task != "qlora":
            return half
        return np.full_like(half, self._constants.frozen_4bit_bytes)
