"""What is whole for a while where states are sharded: units gathered for compute, and gradients."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from meshplan.cost.memory.shapes import Behaviours, BoolArray, FloatArray, rounded
from meshplan.cost.memory.state_records import Parameters
from meshplan.cost.weights import block_projections
from meshplan.inputs.model import Layer, Model
from meshplan.space.plan import PlanGrid

__all__ = ["ShardedUnits"]

IntArray = npt.NDArray[np.int64]


class ShardedUnits:
    """Units of any set of layers, for each combination of plan fields."""

    def __init__(
        self,
        model: Model,
        grid: PlanGrid,
        behaviours: Behaviours,
        counts: Mapping[Layer, Parameters],
        *,
        frozen_bytes: FloatArray,
        adapters: bool,
    ) -> None:
        """Prepare the units of a model.

        Args:
            model: gives the matrices of a block.
            grid: combinations of plan fields.
            behaviours: of their frameworks.
            counts: parameters of each kind of block on one device.
            frozen_bytes: width of a gathered weight of a block.
            adapters: only adapters are trained.
        """
        self._model, self._grid, self._b = model, grid, behaviours
        self._counts, self._frozen, self._adapters = counts, frozen_bytes, adapters
        self._modules: dict[Layer, FloatArray] = {}

    def _block(self, layers: Mapping[Layer, IntArray]) -> FloatArray:
        """Parameters of the largest block."""
        dense = expert = np.zeros(len(self._grid), dtype=np.float64)
        for kind, count in layers.items():
            own = self._counts[kind]
            dense = np.maximum(dense, np.where(count > 0, own.dense, 0.0))
            expert = np.maximum(expert, np.where(count > 0, own.expert, 0.0))
        return dense + expert

    def _module(self, layers: Mapping[Layer, IntArray]) -> FloatArray:
        """Parameters of the largest matrix; the experts of a block are one module."""
        most = np.zeros(len(self._grid), dtype=np.float64)
        for kind, count in layers.items():
            found = self._modules.get(kind)
            if found is None:
                found = self._modules[kind] = self._largest_matrix(kind)
            most = np.maximum(most, np.where(count > 0, found, 0.0))
        return most

    def _largest_matrix(self, kind: Layer) -> FloatArray:
        most = self._counts[kind].expert
        for product in block_projections(kind, hidden=self._model.hidden):
            shared = 1.0 if product.split == "none" else self._grid.tp
            most = np.maximum(most, product.in_features * product.out_features / shared)
        return np.ceil(most)

    def reduced(self, whole: FloatArray, layers: Mapping[Layer, IntArray]) -> FloatArray:
        """Gradients of one unit beside the sharded buffer, or of one bucket of fixed size."""
        b, zero = self._b, self._grid.zero
        bucket, unit = b["bucket_parameters"], self._block(layers)
        elements = np.where(bucket > 0, np.minimum(bucket, whole), np.minimum(unit, whole))
        used = np.where(bucket > 0, zero >= 1, (zero >= 2) & (b["shards_gradients"] != 0))
        return rounded(np.where(used, b["bucket_bytes"] * elements, 0.0))

    def gathered(
        self,
        p: Parameters,
        layers: Mapping[Layer, IntArray],
        sharded: BoolArray,
        pipeline: BoolArray,
    ) -> tuple[FloatArray, FloatArray]:
        """Parameters as the matrix products see them, beside the stored ones.

        Equation:
            ``w' max(n U + ends, live)`` with n units of U parameters alive at once and at least
            ``live`` parameters kept. Units are blocks, or single modules: then the next one is
            fetched only while fewer than ``live`` parameters are there, ``U + min(U, live)``.
            ``w' P`` where ZeRO-2 or a pipeline keeps all units of a stage gathered, and where
            weights are stored wider than they are used. Frozen weights are gathered in the width
            in which they are stored. While the loss is computed no block is gathered unless it
            is kept.

        References:
            1. DeepSpeed, ``runtime/zero/partitioned_param_coordinator.py: fetch_sub_module``.
        """
        b = self._b
        blocks, live = p.dense + p.expert, b["live_parameters"]
        modules = b["gathers_modules"] != 0
        # a module of its own, an end is there only while it is used
        ends = np.where(modules, 0.0, p.ends)
        ahead = b["prefetched_units"] * self._block(layers)
        if modules.any():
            module = self._module(layers)
            ahead = np.where(modules, module + np.minimum(module, live), ahead)
        some = np.maximum(ahead, live - ends)
        keeps = (b["keeps_units_in_pipeline"] != 0) & pipeline | (self._grid.zero < 3)
        units = np.where(keeps, blocks, np.minimum(np.maximum(some, 0.0), blocks))
        stays = np.where(keeps | (live > 0), units, 0.0)
        stays = np.where(modules, np.maximum(np.minimum(live, blocks), p.ends), stays)
        half = b["gathered_weight_bytes"]
        casts = b["weight_bytes"] > half
        whole = np.zeros_like(half) if self._adapters else np.where(casts, half, 0.0)
        unsharded = whole * (blocks + p.ends)
        sizes = [
            rounded(np.where(sharded, self._frozen * count + half * ends, unsharded))
            for count in (units, stays)
        ]
        return sizes[0], sizes[1]
