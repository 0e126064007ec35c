"""The devices of pipeline layouts: what each holds, and how many micro-batches it has in flight."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from meshplan.cost.schedule.in_flight import in_flight
from meshplan.inputs.model import Model
from meshplan.record import record
from meshplan.space.plan import PlanGrid, Schedule, Split
from meshplan.space.stages import (
    Chunk,
    dealing_costs,
    representative_stages,
    stage_layout,
)

__all__ = ["LAYOUT_FIELDS", "DeviceTable", "Flight"]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

LAYOUT_FIELDS = ("pp", "vpp", "schedule", "split")
"""Plan fields that say which layers a device holds."""


@record
class _Device:
    """One device of a pipeline.

    Attributes:
        stage: its place in the pipeline.
        contents: kinds of the blocks of each chunk; small numbers are compared faster than blocks.
        num_layers: blocks of the decoder that it holds.
        embedding: whether it holds the input embedding.
        head: whether it holds the output head, which is in its last chunk.
    """

    stage: int
    contents: tuple[tuple[int, ...], ...]
    num_layers: int
    embedding: bool
    head: bool


@lru_cache(maxsize=4096)
def _devices(
    *,
    kinds: tuple[int, ...],
    mtp_kinds: tuple[int, ...],
    pp: int,
    vpp: int,
    schedule: Schedule,
    split: Split,
    stage_layers: tuple[int, ...],
    costs: tuple[int, int],
    every: bool,
) -> tuple[_Device, ...]:
    """The devices of a layout, all or those that can hold the most."""
    layout = stage_layout(
        num_layers=len(kinds),
        pp=pp,
        vpp=vpp,
        schedule=schedule,
        split=split,
        stage_layers=stage_layers,
        num_mtp_layers=len(mtp_kinds),
        costs=costs,
    )
    assert layout is not None, "an illegal split reached the memory model"
    stages = range(pp) if every else representative_stages(layout, kinds)

    def content(chunk: Chunk) -> tuple[int, ...]:
        own = kinds[chunk.first_layer : chunk.first_layer + chunk.num_layers]
        return own + mtp_kinds if chunk.has_head else own

    rows = [(stage, layout.chunks[stage]) for stage in stages]
    return tuple(
        _Device(
            stage=stage,
            contents=tuple(content(chunk) for chunk in row),
            num_layers=sum(chunk.num_layers for chunk in row),
            embedding=any(chunk.has_embedding for chunk in row),
            head=row[-1].has_head,
        )
        for stage, row in rows
    )


@record
class Flight:
    """Micro-batches alive on some devices at their peak.

    Attributes:
        chunks: of each chunk, ``(n, most chunks)``; 0 where a device has fewer.
        contents: of all chunks with the same blocks, ``(n, most contents)``.
        last: of the last chunk, which has the head where there is one, ``(n,)``.
        goes_on: whether a forward pass follows once so many are alive, ``(n,)``.
    """

    chunks: IntArray
    contents: IntArray
    last: IntArray
    goes_on: BoolArray


class DeviceTable:
    """The devices of some layouts, one layout after the other.

    Args:
        model: whose blocks are dealt.
        layouts: plans of which only the layout matters.
        every: all devices of a pipeline, and not only those that can hold the most.

    Attributes:
        count: devices of each layout, ``(num_layouts,)``.
        first: row of the first device of each layout, ``(num_layouts,)``.
        stage: place of each device in its pipeline, ``(num_devices,)``.
        num_layers: blocks of the decoder on each device, ``(num_devices,)``.
        head: whether a device holds the output head, ``(num_devices,)``.
        contents: the distinct chunks, as the kinds of their blocks.
        lengths: how many blocks each of them has, ``(num_contents,)``.
        content: the distinct chunks of each device, ``(num_devices, most contents)``; those past
            ``num_contents`` repeat the first.
        num_contents: how many distinct chunks a device has, ``(num_devices,)``.
        num_alike: how many chunks of a device each of them stands for, as ``content``.
        last_content: which of them is the last chunk of a device, ``(num_devices,)``.
        holding: what each device holds, as a row of the arrays below, ``(num_devices,)``.
        held_kinds: blocks of each kind, ``(num_kinds, num_holdings)``.
        held_embedding: whether the embedding is held, ``(num_holdings,)``.
        held_head: whether the head is held, ``(num_holdings,)``.
        held_pipeline: whether other devices hold the rest, ``(num_holdings,)``.
    """

    def __init__(self, model: Model, layouts: PlanGrid, *, every: bool) -> None:
        own = _devices_of_layouts(model, layouts, every=every)
        self.count = np.array([len(row) for row in own], dtype=np.int64)
        self.first = np.cumsum(self.count) - self.count
        devices = [device for row in own for device in row]
        layout = np.repeat(np.arange(len(own)), self.count)
        self.stage = np.array([device.stage for device in devices], dtype=np.int64)
        self.num_layers = np.array([device.num_layers for device in devices], dtype=np.int64)
        self.head = np.array([device.head for device in devices], dtype=np.bool_)
        self._pp, self._vpp = layouts.pp[layout], layouts.vpp[layout]
        self._schedule = layouts.schedule[layout]
        self._number_contents(devices)
        self._number_holdings(devices, len(model.layer_kinds))

    def _number_contents(self, devices: Sequence[_Device]) -> None:
        numbers: dict[tuple[int, ...], int] = {}
        chunks = [[numbers.setdefault(c, len(numbers)) for c in d.contents] for d in devices]
        distinct = [list(dict.fromkeys(row)) for row in chunks]
        self.contents = tuple(numbers)
        self.lengths = np.array([len(content) for content in numbers], dtype=np.int64)
        self.num_contents = np.array([len(row) for row in distinct], dtype=np.int64)
        most = int(self.num_contents.max())
        self.content = np.array(
            [row + row[:1] * (most - len(row)) for row in distinct], dtype=np.int64
        )
        self.num_alike = np.zeros_like(self.content)
        self._slot = np.zeros((len(devices), int(self._vpp.max())), dtype=np.int64)
        for place, (row, own) in enumerate(zip(chunks, distinct, strict=True)):
            self._slot[place, : len(row)] = [own.index(number) for number in row]
            np.add.at(self.num_alike[place], self._slot[place, : len(row)], 1)
        self.last_content = self._slot[np.arange(len(devices)), self._vpp - 1]

    def _number_holdings(self, devices: Sequence[_Device], num_kinds: int) -> None:
        numbers: dict[tuple[tuple[int, ...], bool, bool, bool], int] = {}
        blocks = [np.array(content, dtype=np.int64) for content in self.contents]
        counts = np.array([np.bincount(kinds, minlength=num_kinds) for kinds in blocks])
        held = (self.num_alike[:, :, None] * counts[self.content]).sum(axis=1)
        holding = []
        for device, pp, row in zip(devices, self._pp.tolist(), held.tolist(), strict=True):
            key = (tuple(row), device.embedding, device.head, pp > 1)
            holding.append(numbers.setdefault(key, len(numbers)))
        self.holding = np.array(holding, dtype=np.int64)
        kinds_held, embedding, head, pipeline = zip(*numbers, strict=True)
        self.held_kinds = np.array(kinds_held, dtype=np.int64).T
        self.held_embedding = np.array(embedding, dtype=np.bool_)
        self.held_head = np.array(head, dtype=np.bool_)
        self.held_pipeline = np.array(pipeline, dtype=np.bool_)

    def chunks_of(self, device: int) -> tuple[int, ...]:
        """Which distinct chunk each chunk of a device is, as a column of ``content``."""
        return tuple(self._slot[device, : self._vpp[device]].tolist())

    def flight(self, device: IntArray, num_micro_batches: IntArray) -> Flight:
        """Count the micro-batches alive on devices.

        Args:
            device: rows of the table, ``(n,)``.
            num_micro_batches: of a step, ``(n,)``.
        """
        chunks = np.zeros((len(device), self._slot.shape[1]), dtype=np.int64)
        contents = np.zeros((len(device), self.content.shape[1]), dtype=np.int64)
        last = np.zeros(len(device), dtype=np.int64)
        schedule, vpp = self._schedule[device], self._vpp[device]
        for code, chunk_count in sorted(set(zip(schedule.tolist(), vpp.tolist(), strict=True))):
            rows = np.flatnonzero((schedule == code) & (vpp == chunk_count))
            own = device[rows]
            passes = in_flight(
                schedule=Schedule(code),
                pp=self._pp[own],
                vpp=chunk_count,
                stage=self.stage[own],
                num_micro_batches=num_micro_batches[rows],
            )
            for chunk, count in enumerate(passes):
                chunks[rows, chunk] = count
                contents[rows, self._slot[own, chunk]] += count
            last[rows] = passes[-1]
        goes_on = chunks.sum(axis=1) < num_micro_batches * vpp
        return Flight(chunks=chunks, contents=contents, last=last, goes_on=goes_on)


def _devices_of_layouts(
    model: Model, layouts: PlanGrid, *, every: bool
) -> list[tuple[_Device, ...]]:
    numbers = {kind: number for number, kind in enumerate(model.layer_kinds)}
    kinds = tuple(numbers[layer] for layer in model.layers)
    mtp_kinds = tuple(numbers[layer] for layer in model.mtp_layers)
    columns = (layouts.pp, layouts.vpp, layouts.schedule, layouts.split)
    return [
        _devices(
            kinds=kinds,
            mtp_kinds=mtp_kinds,
            pp=pp,
            vpp=vpp,
            schedule=Schedule(schedule),
            split=Split(split),
            stage_layers=layouts.stage_layers,
            costs=dealing_costs(model),
            every=every,
        )
        for pp, vpp, schedule, split in zip(*(c.tolist() for c in columns), strict=True)
    ]
