"""Lines of MLPerf Training: ``:::MLLOG {...}``."""

from __future__ import annotations

from typing import Any

import msgspec

from meshplan.diagnose.read.logs.draft import Draft
from meshplan.diagnose.values import integer, number
from meshplan.units import GIB

__all__ = ["MlperfReader"]

_MARK = ":::MLLOG"
_SETTINGS = {
    "global_batch_size": "global_batch",
    "gradient_accumulation_steps": "accumulation",
    "max_sequence_length": "seq_len",
}


class MlperfReader:
    """Steps from the statistics that a log tracks, or from its stamps inside one block.

    A block ends with an evaluation, so that times across its end do not count.
    """

    def __init__(self) -> None:
        self._mark: tuple[float, float] | None = None  # time [s] and samples
        self._samples = 0.0

    def read(self, line: str, draft: Draft) -> None:
        """Take what one line says."""
        at = line.find(_MARK)
        if at < 0:
            return
        try:
            entry = msgspec.json.decode(line[at + len(_MARK) :].strip())
        except msgspec.DecodeError:
            return
        if isinstance(entry, dict) and isinstance(entry.get("metadata", {}), dict):
            self._entry(entry, draft)

    def _entry(self, entry: dict[str, Any], draft: Draft) -> None:
        key, value, metadata = entry.get("key"), entry.get("value"), entry.get("metadata", {})
        if key in _SETTINGS and isinstance(value, int):
            draft.settings[_SETTINGS[key]] = value
        elif key == "tracked_stats" and isinstance(value, dict):
            self._stats(value, metadata, draft)
        elif isinstance(entry.get("time_ms"), int | float):
            self._stamp(str(key), entry["time_ms"] / 1e3, metadata, draft)

    def _stats(self, value: dict[str, Any], metadata: dict[str, Any], draft: Draft) -> None:
        step_s = number(value.get("train_step_time"))
        if step_s is None:
            return
        batch = max(1, draft.settings.get("global_batch", 1))
        values = {"step_time_s": step_s, "samples_per_s": number(value.get("throughput"))}
        draft.step("mlperf", max(0, integer(metadata.get("step"))) // batch, values)
        memory = number(value.get("max_memory_usage"))
        if memory is not None:
            draft.reserved.append(memory * GIB)
            draft.num_memory_records += 1

    def _stamp(self, key: str, time_s: float, metadata: dict[str, Any], draft: Draft) -> None:
        if key == "block_start":
            # its own count is of steps in some logs and of samples in others
            self._mark = (time_s, self._samples)
        elif key in ("block_stop", "eval_start", "epoch_stop"):
            self._samples = number(metadata.get("samples_count")) or self._samples
            self._mark = None
        elif key == "train_loss" and (samples := number(metadata.get("samples_count"))):
            batch = max(1, draft.settings.get("global_batch", 1))
            if self._mark is not None and samples > self._mark[1]:
                num_steps = (samples - self._mark[1]) / batch
                values = {"step_time_s": (time_s - self._mark[0]) / num_steps}
                draft.step("mlperf-stamps", int(samples // batch), values)
            self._mark, self._samples = (time_s, samples), samples
