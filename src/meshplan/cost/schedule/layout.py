"""What each device of a pipeline holds, as integer tables that a whole grid shares.

A plan's stages differ from another's by ``(pp, vpp, schedule shape, split, recompute_layers)``
alone, and a grid has few of those. For each one the table holds, per device, how many blocks of
each kind are on it, before it and behind it in model order. Times of stages are then sums of
counts times the time of one block, for all plans at once.

Devices that hold the same, one after another, need not all be looked at: times before and behind
them are linear in their position, so that the first and the last of a run bound the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt

from meshplan.cost.factoring import factor
from meshplan.cost.recent import Recent
from meshplan.inputs.model import Layer, Model
from meshplan.record import record
from meshplan.space.plan import Plan, PlanGrid, Schedule, Split
from meshplan.space.stages import V_SHAPED, StageLayout, dealing_costs, stage_layout

__all__ = [
    "KEPT_LAYOUTS",
    "StageTable",
    "chunk_counts",
    "layout_of",
    "layout_of_plan",
    "stage_table",
]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@record
class StageTable:
    """Counts by layout, representative device and unit.

    A unit is a kind of block, in the order of ``model.layer_kinds``, then the embedding, then the
    head with all its passes (one more for each MTP block). Arrays hold whole numbers as floats,
    which times are multiplied with, and have shape ``(num_units, num_devices, num_layouts)``
    unless said otherwise; ``num_devices`` is that of the layout with the most, and layouts with
    fewer repeat their last.

    Attributes:
        index: layout of each plan, ``(num_plans,)``.
        num_own: devices of each layout before its last one is repeated, ``(num_layouts,)``.
        device: position in the pipeline, ``(num_devices, num_layouts)``.
        count: units on the device.
        before: units of the virtual stages ahead of the device's first one.
        after: units of the virtual stages behind the device's last one.
        recomputed: units on the device that a recompute mode applies to.
        recomputed_before: the same for ``before``.
        recomputed_after: the same for ``after``.
    """

    index: IntArray
    num_own: IntArray
    device: IntArray
    count: FloatArray
    before: FloatArray
    after: FloatArray
    recomputed: FloatArray
    recomputed_before: FloatArray
    recomputed_after: FloatArray

    @property
    def num_devices(self) -> int:
        """Representative devices per layout."""
        return len(self.device)

    def take(self, index: npt.NDArray[np.integer] | slice) -> StageTable:
        """The table of some of the plans, with no more devices than their layouts have."""
        own = self.index[index]
        most = int(self.num_own[own].max(initial=1))
        tables = {name: getattr(self, name)[:, :most] for name in _TABLES}
        device = self.device[:most]
        return StageTable(index=own, num_own=self.num_own, device=device, **tables)

    def only(self, chosen: IntArray) -> StageTable:
        """The table with one representative of each layout.

        Args:
            chosen: its row among the representatives, ``(num_layouts,)``.
        """
        layouts = np.arange(len(chosen))
        tables = {name: getattr(self, name)[:, chosen, layouts][:, None] for name in _TABLES}
        device = self.device[chosen, layouts][None]
        alone = np.ones_like(self.num_own)
        return StageTable(index=self.index, num_own=alone, device=device, **tables)


def layout_of(
    model: Model,
    *,
    pp: int,
    vpp: int,
    schedule: Schedule,
    split: Split,
    stage_layers: tuple[int, ...],
) -> StageLayout:
    """Return the stages that these degrees, schedule and split make."""
    layout = stage_layout(
        num_layers=model.num_layers,
        pp=pp,
        vpp=vpp,
        schedule=schedule,
        split=split,
        stage_layers=stage_layers,
        num_mtp_layers=len(model.mtp_layers),
        costs=dealing_costs(model),
    )
    assert layout is not None, "a legal plan has a layout"
    return layout


def layout_of_plan(model: Model, plan: Plan) -> StageLayout:
    """Return the stages of a legal plan, see :func:`layout_of`."""
    return layout_of(
        model,
        pp=plan.pp,
        vpp=plan.vpp,
        schedule=plan.schedule,
        split=plan.split,
        stage_layers=plan.stage_layers,
    )


@lru_cache(maxsize=64)
def _kinds_before(model: Model) -> tuple[IntArray, IntArray]:
    """How many blocks of each kind stand before each block, and the same of MTP blocks.

    Returns:
        ``(num_blocks + 1, num_units)`` each; the columns of embedding and head are empty.
    """
    kinds = {kind: i for i, kind in enumerate(model.layer_kinds)}

    def before(layers: Sequence[Layer]) -> IntArray:
        rows = np.zeros((len(layers) + 1, len(kinds) + 2), dtype=np.int64)
        rows[np.arange(1, len(layers) + 1), [kinds[layer] for layer in layers]] = 1
        return np.cumsum(rows, axis=0)

    return before(model.layers), before(model.mtp_layers)


def chunk_counts(
    model: Model, layout: StageLayout, *, recompute_layers: int
) -> tuple[IntArray, IntArray]:
    """Count the units of each virtual stage, in model order.

    Args:
        model: the model.
        layout: its stages.
        recompute_layers: first blocks of each virtual stage that are recomputed; 0 means all.

    Returns:
        All units and those that are recomputed, ``(num_virtual_stages, num_units)``.
    """
    blocks, mtp = _kinds_before(model)
    num_kinds = blocks.shape[1] - 2
    chunks = [chunk for _, chunk in layout.virtual_stages]
    first = np.array([chunk.first_layer for chunk in chunks])
    num_layers = np.array([chunk.num_layers for chunk in chunks])
    head = np.array([chunk.has_head for chunk in chunks])
    with_mtp = num_layers + head * (len(mtp) - 1)
    repeated = np.minimum(with_mtp, recompute_layers or with_mtp)

    def first_of(number: IntArray) -> IntArray:
        """Kinds of so many first blocks of each virtual stage, MTP blocks last."""
        own = np.minimum(number, num_layers)
        kinds: IntArray = blocks[first + own] - blocks[first] + mtp[number - own]
        return kinds

    count, again = first_of(with_mtp), first_of(repeated)
    count[:, num_kinds] = [chunk.has_embedding for chunk in chunks]
    count[:, num_kinds + 1] = head
    return count, again


KEPT_LAYOUTS = 4096  # of one model; a search asks for some hundreds
_TABLES = (
    "count",
    "before",
    "after",
    "recomputed",
    "recomputed_before",
    "recomputed_after",
)


@record(kw_only=False)
class _Rows:
    """Representative devices of one layout, and their counts by table and unit."""

    device: IntArray
    counts: IntArray


@lru_cache(maxsize=16)
def _known_rows(model: Model) -> Recent[_Rows]:
    """Rows of a model so far, by layout: one look-up of the model serves a whole grid."""
    del model
    return Recent(KEPT_LAYOUTS)


def stage_table(model: Model, grid: PlanGrid) -> StageTable:
    """Make the table of a grid of legal plans."""
    layouts = factor(grid, ("pp", "vpp", "schedule", "split", "recompute_layers"))
    known = _known_rows(model)
    rows = []
    for pp, vpp, schedule, split, layers in zip(
        layouts.grid.pp.tolist(),
        layouts.grid.vpp.tolist(),
        layouts.grid.schedule.tolist(),
        layouts.grid.split.tolist(),
        layouts.grid.recompute_layers.tolist(),
        strict=True,
    ):
        key = (pp, vpp, schedule in V_SHAPED, split, layers, grid.stage_layers)
        rows.append(known.get(key, partial(_representatives, model, *key)))
    sizes = np.array([len(row.device) for row in rows])
    # layouts with few devices repeat their last
    within = np.minimum(np.arange(sizes.max())[:, None], sizes - 1)
    places = np.cumsum(sizes) - sizes + within
    counts = np.concatenate([row.counts for row in rows]).astype(np.float64)
    tables = np.ascontiguousarray(np.moveaxis(counts, 0, -1)).take(places, axis=-1)
    return StageTable(
        index=layouts.places,
        num_own=sizes,
        device=np.concatenate([row.device for row in rows])[places],
        **dict(zip(_TABLES, tables, strict=True)),
    )


def _representatives(
    model: Model,
    pp: int,
    vpp: int,
    v_shaped: bool,
    split: int,
    recompute_layers: int,
    stage_layers: tuple[int, ...],
) -> _Rows:
    """Return the counts of the first and the last device of each run of equal ones."""
    layout = layout_of(
        model,
        pp=pp,
        vpp=vpp,
        schedule=Schedule.ZBV if v_shaped else Schedule.INTERLEAVED,
        split=Split(split),
        stage_layers=stage_layers,
    )
    count, again = chunk_counts(model, layout, recompute_layers=recompute_layers)
    stages = np.array([[chunk.virtual_stage for chunk in row] for row in layout.chunks])
    held, held_again = count[stages].sum(axis=1), again[stages].sum(axis=1)
    both = np.concatenate([held, held_again], axis=1)
    borders = np.flatnonzero(np.any(both[1:] != both[:-1], axis=1))
    chosen = sorted({0, pp - 1, *borders.tolist(), *(borders + 1).tolist()})
    sums = [np.concatenate([np.zeros_like(c[:1]), np.cumsum(c, axis=0)]) for c in (count, again)]
    firsts, lasts = stages[chosen].min(axis=1), stages[chosen].max(axis=1) + 1
    tables = [held[chosen], sums[0][firsts], sums[0][-1] - sums[0][lasts]]
    tables += [held_again[chosen], sums[1][firsts], sums[1][-1] - sums[1][lasts]]
    return _Rows(np.array(chosen), np.stack(tables, axis=1))
