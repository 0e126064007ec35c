"""GPU metrics over time: nvidia-smi (query and dmon), dcgmi dmon, dcgm-exporter, rocm-smi.

What each tool calls a figure, and in which unit, stands in ``presets/metrics.yaml``.
"""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import yaml

from meshplan.diagnose.names import measure_constant
from meshplan.diagnose.read.text import text_lines
from meshplan.diagnose.records import Note
from meshplan.diagnose.values import number, shown_name
from meshplan.errors import UserError
from meshplan.record import record

__all__ = ["BUSY", "Figure", "GpuMetrics", "GpuSeries", "read_metrics"]

_FILE = Path(__file__).parents[1] / "presets" / "metrics.yaml"
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
BUSY = ("sm_active", "graphics_active", "utilization")
"""Figures that say for how much of the time a device works, the narrowest first."""
_MOST = 1e18  # no share, clock, power or count of bytes is that large
_LONGEST_LINE = 1 << 16


@record
class Figure:
    """One figure of one GPU over time.

    Attributes:
        num: samples.
        mean: their mean.
        low: their tenth percentile.
        median: their median.
        high: their ninetieth percentile.
    """

    num: int
    mean: float
    low: float
    median: float
    high: float


@record
class GpuSeries:
    """One GPU.

    Attributes:
        gpu: its number or name as the table has it.
        figures: by name: shares (``utilization``, ``sm_active``, ``tensor_active``, ...), bytes,
            Hz, W, byte/s.
        throttled: by reason, the share of samples in which it lowered the clocks.
    """

    gpu: str
    figures: Mapping[str, Figure]
    throttled: Mapping[str, float]


@record
class GpuMetrics:
    """One table of metrics.

    Attributes:
        file: name of the file, as it may be shown.
        gpus: GPUs in order.
        num_rows: rows that were read.
        notes: what could not be read.
    """

    file: str
    gpus: tuple[GpuSeries, ...]
    num_rows: int
    notes: tuple[Note, ...] = ()

    def mean(self, name: str) -> float | None:
        """Mean over GPUs of the mean of one figure; None when no GPU has it."""
        values = [g.figures[name].mean for g in self.gpus if name in g.figures]
        return float(np.mean(values)) if values else None


@cache
def _presets() -> dict[str, Any]:
    return cast(dict[str, Any], yaml.load(_FILE.read_text("utf-8"), Loader=_Loader))


@dataclass(slots=True)
class _Series:
    figures: dict[str, array[float]] = field(default_factory=dict)
    masks: list[int] = field(default_factory=list)
    reasons: dict[str, list[bool]] = field(default_factory=dict)


@record(kw_only=False)
class _Column:
    figure: str
    unit: str
    gpu: str | None = None  # of a table that has one column per GPU


def read_metrics(path: Path) -> GpuMetrics:
    """Read a table of GPU metrics.

    Raises:
        UserError: ``metrics_unknown`` when no column is a figure that is known,
            ``trace.unreadable`` when the file cannot be read.
    """
    table = _Table()
    table.read(text_lines(path, code="trace.unreadable"))
    if not table.series:
        raise UserError.of("metrics_unknown", where=shown_name(path))
    return table.finish(shown_name(path))


class _Table:
    """A table while it is read; a new line of names starts a new part of it."""

    def __init__(self) -> None:
        self.series: dict[str, _Series] = {}
        self._columns: dict[int, _Column] = {}
        self._gpu_column: int | None = None
        self._num_rows = 0
        self._num_odd = 0

    def read(self, stream: Iterable[str]) -> None:
        for line in _lines(stream):
            if line.startswith("DCGM_FI_"):
                self._exported(line)
                continue
            cells = _cells(line)
            if self._take_names(cells, is_comment=line.startswith("#")):
                continue
            if self._columns and len(cells) > 1 and not line.startswith("#"):
                self._row(cells)

    def _take_names(self, cells: list[str], *, is_comment: bool) -> bool:
        """Whether the cells are names of columns; they are kept then."""
        found: dict[int, _Column] = {}
        gpu = None
        shift = 1 if is_comment and cells and cells[0] == "#" else 0
        for i, cell in enumerate(cells[shift:]):
            name, unit = _split_unit(cell.lstrip("#").strip())
            if name.lower() in ("index", "gpu", "entity", "device", "gpu_id", "idx", "uuid"):
                gpu = i if gpu is None or name.lower() != "uuid" else gpu
                continue
            column = _column(name, unit)
            if column is not None:
                found[i] = column
        if len(found) < (1 if gpu is not None or any(c.gpu for c in found.values()) else 2):
            return False
        self._columns, self._gpu_column = found, gpu
        return True

    def _row(self, cells: list[str]) -> None:
        if len(cells) > 1 and cells[0].upper() in ("GPU", "GPU-I", "ID") and cells[1].isdigit():
            cells = [cells[1], *cells[2:]]  # "GPU 0  0.95 .." of dcgmi
        used = 0
        for i, column in self._columns.items():
            if i >= len(cells):
                continue
            gpu = column.gpu
            if gpu is None:
                own = self._gpu_column
                gpu = cells[own] if own is not None and own < len(cells) else "0"
            used += self._value(gpu, column, cells[i])
        self._num_rows += bool(used)
        self._num_odd += not used

    def _value(self, gpu: str, column: _Column, text: str) -> bool:
        """Keep one value; whether there was one."""
        series = self.series.get(gpu) or _Series()
        if column.unit == "mask":
            try:
                series.masks.append(int(float(text)) if "x" not in text else int(text, 16))
            except (ValueError, OverflowError):
                return False
        elif column.unit in ("flag", "active"):
            if not text or "N/A" in text or text == "-":
                return False
            is_on = text.strip().lower() == "active" or (number(text) or 0.0) > 0
            series.reasons.setdefault(column.figure, []).append(is_on)
        else:
            plain, unit = _split_unit(text)
            found = number(plain)
            if found is None:
                return False
            value = found * float(_presets()["units"]["values"].get(unit or column.unit, 1.0))
            if not abs(value) < _MOST:
                return False
            series.figures.setdefault(column.figure, array("d")).append(value)
        self.series[gpu] = series
        return True

    def _exported(self, line: str) -> None:
        """A line of dcgm-exporter: ``DCGM_FI_DEV_GPU_UTIL{gpu="0",...} 98``."""
        match = re.match(r"([A-Z_0-9]+)\{([^}]*)\}\s+([-+0-9.eE]+)", line)
        column = _column(match[1], "") if match else None
        if match is None or column is None:
            return
        gpu = re.search(r'\bgpu="([^"]*)"', match[2])
        host = re.search(r'\bHostname="([^"]*)"', match[2])
        name = "/".join(m[1] for m in (host, gpu) if m is not None) or "0"
        self._num_rows += self._value(name, column, match[3])

    def finish(self, file: str) -> GpuMetrics:
        """Close the series."""
        notes = []
        if self._num_odd:
            notes.append(Note(code="metrics_rows", where=file, numbers={"num": self._num_odd}))
        left_out = max((_cut_ends(series) for series in self.series.values()), default=0)
        if left_out:
            notes.append(Note(code="metrics_ends", where=file, numbers={"num": left_out}))
        gpus = tuple(
            GpuSeries(
                gpu=name,
                figures={key: _figure(values) for key, values in self.series[name].figures.items()},
                throttled=_throttled(self.series[name]),
            )
            for name in sorted(self.series, key=_by_number)
        )
        return GpuMetrics(file=file, gpus=gpus, num_rows=self._num_rows, notes=tuple(notes))


def _cut_ends(series: _Series) -> int:
    """Leave out what was sampled before the first work of a GPU and after its last.

    Returns:
        Samples that are left out; none of a GPU that never works, or of figures that were not
        sampled together.
    """
    name = next((name for name in BUSY if name in series.figures), None)
    if name is None:
        return 0
    works = np.flatnonzero(np.array(series.figures[name]) >= measure_constant("idle_sample"))
    num = len(series.figures[name])
    if not len(works) or len(works) == num:
        return 0
    first, last = int(works[0]), int(works[-1]) + 1
    for key, values in series.figures.items():
        if len(values) == num:
            series.figures[key] = values[first:last]
    if len(series.masks) == num:
        series.masks = series.masks[first:last]
    for reason, flags in series.reasons.items():
        if len(flags) == num:
            series.reasons[reason] = flags[first:last]
    return num - (last - first)


def _lines(stream: Iterable[str]) -> Iterator[str]:
    for line in stream:
        text = line.strip()[:_LONGEST_LINE]
        if text:
            yield text


def _cells(line: str) -> list[str]:
    if "," in line:
        try:
            return [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True))]
        except csv.Error:
            return [cell.strip() for cell in line.split(",")]
    return line.split()


def _split_unit(text: str) -> tuple[str, str]:
    """Split ``utilization.gpu [%]``, ``95 %`` or ``40537 MiB`` into a name or number and a unit."""
    match = re.match(r"^(.*?)\s*\[([^\]]+)\]$", text)
    if match is not None:
        return match[1], match[2]
    parts = text.split()
    if len(parts) == 2 and parts[1] in _presets()["units"]["values"]:
        return parts[0], parts[1]
    return (text[:-1], "%") if text.endswith("%") and text[:-1] else (text, "")


def _column(name: str, unit: str) -> _Column | None:
    """The figure that a column holds; None for all that is not used."""
    label = re.match(r'^(DCGM_FI_\w+)\{.*?\bgpu="?([^",}]+)', name)
    if label is not None:
        known = _presets()["columns"].get(label[1].lower())
        return _Column(known["figure"], known["unit"], label[2]) if known else None
    reason = re.match(r"^clocks_(?:throttle|event)_reasons\.(\w+)$", name)
    if reason is not None and reason[1] in _presets()["throttle"]["columns"]:
        return _Column(_presets()["throttle"]["columns"][reason[1]], "active")
    known = _presets()["columns"].get(name.lower())
    if known is None:
        return None
    if known["unit"] == "flag":
        return _Column(known["figure"].removeprefix("throttle_"), "flag")
    return _Column(
        known["figure"], unit if unit in _presets()["units"]["values"] else known["unit"]
    )


def _figure(values: array[float]) -> Figure:
    found = np.array(values)
    low, middle, high = np.quantile(found, (0.1, 0.5, 0.9))
    return Figure(
        num=len(found),
        mean=float(found.mean()),
        low=float(low),
        median=float(middle),
        high=float(high),
    )


def _throttled(series: _Series) -> dict[str, float]:
    """Share of samples by reason; reasons that never held are left out."""
    found: dict[str, float] = {}
    if series.masks:
        masks = np.array([m & (2**62 - 1) for m in series.masks], dtype=np.int64)
        for name, bit in _presets()["throttle"]["bits"].items():
            found[name] = float(((masks & int(bit)) != 0).mean())
    for name, flags in series.reasons.items():
        found[name] = max(found.get(name, 0.0), float(np.mean(flags)))
    if "throttle_power" in series.figures:
        found["power"] = float(np.mean(np.array(series.figures["throttle_power"]) > 0))
    return {name: share for name, share in found.items() if share > 0}


def _by_number(name: str) -> tuple[int, str]:
    digits = re.sub(r"\D", "", name)
    return (int(digits[:12]) if digits else 0, name)
