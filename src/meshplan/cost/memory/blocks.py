"""How many blocks of each kind devices keep activations of, and what these add up to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meshplan.cost.memory.activations import LayerActivations
from meshplan.cost.memory.devices import DeviceTable, Flight
from meshplan.cost.memory.graphs import LayerGraphs
from meshplan.cost.memory.shapes import FloatArray
from meshplan.record import record

__all__ = ["ALL_LAYERS", "BlockCounts", "BlockTable", "Recomputed", "among_first", "split_chunk"]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

ALL_LAYERS = np.iinfo(np.int64).max
"""More first layers than any chunk has."""


@record
class Recomputed:
    """First layers of a chunk that are recomputed as a whole, and that wait in host memory.

    Attributes:
        first: of each row and way to recompute, ``(n, num_modes)`` or ``(1, num_modes)``.
        offloaded: of each row, ``(n,)``; None where nothing waits there.
    """

    first: IntArray
    offloaded: IntArray | None


def split_chunk(
    among: IntArray, content: IntArray, length: IntArray, recomputed: Recomputed
) -> tuple[IntArray, IntArray, IntArray | None]:
    """Tell what becomes of the blocks of one kind in one chunk.

    Where n_full of the n layers of a kind are among the first that are recomputed, these keep
    their checkpoint alone. Activations of the first layers that are offloaded have left the
    device by the time that the last of the others are there, and return as those are freed: at
    no time does the device hold more than those of the layers that stay.

    Args:
        among: see :func:`among_first`.
        content: which chunk each row is about, ``(n,)``.
        length: layers of each chunk, ``(n,)``.
        recomputed: first layers of each row.

    Returns:
        Blocks with a checkpoint alone, with all that they save, and in host memory;
        ``(n, num_modes)`` each, the last None where nothing is there.

    References:
        1. Transformer Engine, ``pytorch/cpu_offload.py: DefaultOffloadSynchronizer``: the copy of
           layer i ends before layer ``L - n + i`` begins, for n of L layers.
    """
    row, size = content[:, None], length[:, None]
    num = among[row, size]
    num_full = among[row, np.minimum(recomputed.first, size)]
    if recomputed.offloaded is None:
        return num_full, num - num_full, None
    num_gone = among[row, np.minimum(recomputed.offloaded, length)[:, None]]
    return num_full, num - np.maximum(num_full, num_gone), np.maximum(num_gone - num_full, 0)


def among_first(kind: int, contents: Sequence[Sequence[int]]) -> IntArray:
    """How many of the first n blocks of a chunk are of a kind, ``(num_contents, most n + 1)``."""
    counts = np.zeros((len(contents), 1 + max(map(len, contents))), dtype=np.int64)
    for row, layers in zip(counts, contents, strict=True):
        row[1 : len(layers) + 1] = np.cumsum(np.array(layers, dtype=np.int64) == kind)
    return counts


class BlockCounts:
    """Blocks of one kind over all chunks of devices and all micro-batches in flight.

    All are ``(n, num_modes)``; bytes are whole numbers, and so are these, in the same type.

    Attributes:
        kept: blocks with all that their modules save.
        full: blocks with their checkpoint alone.
        kept_less: as ``kept``, once the last chunk is through a backward pass.
        full_less: as ``full``, then.
        offloaded: blocks in host memory.
        offloaded_once: those of one micro-batch in each chunk.
        is_there: where a device has such blocks, ``(n, 1)``.
        spared: where it recomputes none of them as a whole, though its plan does so with others.
    """

    def __init__(
        self,
        kind: int,
        table: DeviceTable,
        device: IntArray,
        flight: Flight,
        recomputed: Recomputed,
    ) -> None:
        shape = len(device), recomputed.first.shape[1]
        self._table, self._flight, self._recomputed = table, flight, recomputed
        self.kept, self.full = np.zeros(shape), np.zeros(shape)
        self.kept_less, self.full_less = np.zeros(shape), np.zeros(shape)
        self.offloaded, self.offloaded_once = np.zeros(shape), np.zeros(shape)
        self.is_there = np.zeros((len(device), 1), dtype=np.bool_)
        recomputes = np.zeros(shape, dtype=np.bool_)
        among, length = among_first(kind, table.contents), table.lengths
        for slot in range(table.content.shape[1]):
            content = table.content[device, slot]
            there = (table.num_contents[device] > slot) & (among[content, length[content]] > 0)
            rows = np.flatnonzero(there)
            if len(rows):
                recomputes[rows] |= self._add(slot, rows, device[rows], content[rows], among)
        self.spared = self.is_there & ~recomputes & (recomputed.first > 0)

    def _add(
        self, slot: int, rows: IntArray, device: IntArray, content: IntArray, among: IntArray
    ) -> BoolArray:
        """Add the blocks of one of the distinct chunks of some devices.

        Args:
            slot: which of their distinct chunks.
            rows: places of the devices, ``(k,)``.
            device: rows of the table of devices, ``(k,)``.
            content: which chunk that is, ``(k,)``.
            among: see :func:`among_first`.

        Returns:
            Where any of them is recomputed as a whole, ``(k, num_modes)``.
        """
        table, flight = self._table, self._flight
        first, offloaded = self._recomputed.first, self._recomputed.offloaded
        full, kept, gone = split_chunk(
            among,
            content,
            table.lengths[content],
            Recomputed(
                first=first if len(first) == 1 else first[rows],
                offloaded=None if offloaded is None else offloaded[rows],
            ),
        )
        count = flight.contents[rows, slot]
        is_last = table.last_content[device] == slot
        left = (count - is_last * np.minimum(flight.last[rows], 1))[:, None]
        self.kept[rows] += count[:, None] * kept
        self.full[rows] += count[:, None] * full
        self.kept_less[rows] += left * kept
        self.full_less[rows] += left * full
        self.is_there[rows] = True
        if gone is not None:
            self.offloaded[rows] += count[:, None] * gone
            self.offloaded_once[rows] += table.num_alike[device, slot, None] * gone
        recomputes: BoolArray = full > 0
        return recomputes


class BlockTable:
    """Activations of one kind of block, ``(num_combinations, num_modes)``.

    Args:
        activations: of each combination with every way to recompute, one combination after
            another.
        num_modes: ways to recompute.
        full: which of the entries recompute as a whole.

    Attributes:
        saved: bytes by line under module-wise recompute.
        saved_bytes: their sum [bytes].
        checkpoint_bytes: what is left of a block that is recomputed as a whole [bytes].
        before_exchange_bytes: what of the saved is there before tokens are exchanged [bytes].
        graphs: what CUDA graphs of the block hold; None where no plan has any.
    """

    def __init__(self, activations: LayerActivations, *, num_modes: int, full: BoolArray) -> None:
        def by_mode(values: FloatArray) -> FloatArray:
            return values.reshape(-1, num_modes)

        whole = np.maximum(activations.full_bytes, 0.0)
        part = np.maximum(activations.full_bytes - activations.saved_bytes, 0.0)
        ahead, back = activations.forward_bytes, activations.backward_bytes
        self._full = full.reshape(-1, num_modes)
        self.saved = {code: by_mode(values) for code, values in activations.saved.items()}
        self.saved_bytes = by_mode(activations.saved_bytes)
        self.checkpoint_bytes = by_mode(activations.checkpoint_bytes)
        self.before_exchange_bytes = by_mode(activations.before_exchange_bytes)
        own = activations.graphs
        self.graphs = own and LayerGraphs(
            saved=by_mode(own.saved),
            static=by_mode(own.static),
            working=by_mode(own.working),
            beside=by_mode(own.beside),
        )
        self._forward = by_mode(ahead), by_mode(ahead + whole)
        self._backward = by_mode(back + part), by_mode(back + whole)

    @property
    def backward_needs_more(self) -> bool:
        """Whether no forward pass has a larger working set than the backward pass."""
        pairs = zip(self._forward, self._backward, strict=True)
        return all(bool((ahead <= back).all()) for ahead, back in pairs)

    def least_saved(self) -> FloatArray:
        """What a block saves at the least, however it recomputes, ``(num_combinations,)``."""
        least: FloatArray = np.minimum(self.saved_bytes, self.checkpoint_bytes).min(axis=1)
        return least

    def least_backward(self) -> FloatArray:
        """The least working set of a backward pass, ``(num_combinations,)``."""
        least: FloatArray = self._backward[0].min(axis=1)
        return least

    def forward(self, counts: BlockCounts, at: IntArray, combination: IntArray) -> FloatArray:
        """Working set of the forward pass: of a recomputed block with all that it drops again.

        Args:
            counts: blocks of this kind on devices.
            at: row of the counts, ``(n,)``.
            combination: combination of each row, ``(n,)``.
        """
        return self._working(self._forward, counts, at, combination)

    def backward(self, counts: BlockCounts, at: IntArray, combination: IntArray) -> FloatArray:
        """Working set of the backward pass, with what it recomputes; see :meth:`forward`."""
        return self._working(self._backward, counts, at, combination)

    def _working(
        self,
        bytes_of: tuple[FloatArray, FloatArray],
        counts: BlockCounts,
        at: IntArray,
        combination: IntArray,
    ) -> FloatArray:
        part, whole = bytes_of
        # nearly always a device recomputes a block as a whole wherever its plan does
        usual = np.where(self._full, whole, part).take(combination, axis=0)
        if not counts.is_there.all():
            usual *= counts.is_there.take(at, axis=0)
        if counts.spared.any():
            row, mode = np.nonzero(counts.spared.take(at, axis=0))
            usual[row, mode] = part[combination[row], mode]
        return usual
