"""What a console log says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from itertools import pairwise
from statistics import median

from meshplan.diagnose.records import Note
from meshplan.record import record

__all__ = ["LogMeasures", "LogStep", "OutOfMemory"]


@record
class LogStep:
    """One step as a log prints it; None where it does not.

    Attributes:
        number: number of the step.
        step_time_s: time of it, or the mean since the step logged before [s].
        tokens_per_s: throughput of the job [tokens/s].
        tokens_per_s_per_gpu: throughput per device [tokens/s].
        samples_per_s: throughput of the job [sequences/s].
        flop_per_s_per_gpu: speed per device as the framework counts it [FLOP/s].
        mfu: model FLOP utilisation as the framework counts it, a fraction.
        memory_bytes: memory that it prints with the step [bytes].
        memory_share: the same as a share of the device.
        loss: training loss.
        clock_s: time of day that stands before the line, from any origin [s].
        phases_s: by phase, shortest and longest time among the ranks [s].
    """

    number: int
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    samples_per_s: float | None = None
    flop_per_s_per_gpu: float | None = None
    mfu: float | None = None
    memory_bytes: float | None = None
    memory_share: float | None = None
    loss: float | None = None
    clock_s: float | None = None
    phases_s: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@record
class OutOfMemory:
    """A failed allocation, in bytes; None where the message does not say.

    Attributes:
        requested_bytes: what was asked for.
        capacity_bytes: the device.
        allocated_bytes: what tensors held.
        reserved_bytes: what the allocator held.
        free_bytes: what was free.
    """

    requested_bytes: float
    capacity_bytes: float | None = None
    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    free_bytes: float | None = None


@record
class LogMeasures:
    """What one console log says.

    Attributes:
        file: name of the file, as it may be shown.
        framework: whose log it is.
        device: name of the device as it states it; empty when it does not.
        precision: number format of the matrix products as it states it; empty when it does not,
            or when it states two.
        peak_flop_per_s: the peak that it says it divides by [FLOP/s].
        steps: steps in the order of their numbers, each once.
        restarts: for each time that the run began again, the step that it went back to; the steps
            are those since the last one.
        num_lines: lines that state a step, repeats by other ranks included.
        settings: degrees, batches and sizes that it states, by plan or job field.
        totals: figures of the whole run, by name: seconds, per second, counts, bytes.
        peak_allocated_bytes: largest peak of allocated memory [bytes].
        peak_reserved_bytes: largest peak of reserved memory [bytes].
        capacity_bytes: memory of the device that it implies [bytes].
        num_memory_records: records of memory that it holds.
        memory_after: step after which they were printed.
        out_of_memory: the first failed allocation.
        num_allocator_flushes: times that the allocator gave back its cache to go on.
        notes: what is missing or contradicts itself.
    """

    file: str
    framework: str
    steps: tuple[LogStep, ...]
    num_lines: int
    settings: Mapping[str, int]
    totals: Mapping[str, float]
    restarts: tuple[int, ...] = ()
    device: str = ""
    precision: str = ""
    peak_flop_per_s: float | None = None
    peak_allocated_bytes: float | None = None
    peak_reserved_bytes: float | None = None
    capacity_bytes: float | None = None
    num_memory_records: int = 0
    memory_after: int | None = None
    out_of_memory: OutOfMemory | None = None
    num_allocator_flushes: int = 0
    notes: tuple[Note, ...] = ()

    @property
    def steady(self) -> tuple[LogStep, ...]:
        """Steps without the one that warms up and those that cannot be right.

        The first step of the training warms up (with an interval of logging, its first mean), and
        that of a run that began again; a log that starts later has none. A step in less than half
        the usual time was not waited for.
        """
        interval = 0 if not self.steps else self.steps[0].number if self.restarts else self.interval
        kept = [s for s in self.steps if s.number > interval or s.number != self.steps[0].number]
        kept = kept or list(self.steps)
        times = [s.step_time_s for s in kept if s.step_time_s]
        usual = median(times) if times else 0.0
        return tuple(s for s in kept if s.step_time_s is None or s.step_time_s >= usual / 2)

    @property
    def interval(self) -> int:
        """Steps from one line to the next; 1 when a single one is logged."""
        numbers = [s.number for s in self.steps]
        gaps = [b - a for a, b in pairwise(numbers)]
        return int(median(gaps)) if len(gaps) > 1 else 1

    def steady_value(self, name: str) -> float | None:
        """Median over the steady steps of one attribute; None when none states it."""
        values = [v for s in self.steady if (v := getattr(s, name)) is not None]
        return float(median(values)) if values else None

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens of one step; None when batch or sequence are not known."""
        batch, length = self.settings.get("global_batch"), self.settings.get("seq_len")
        if batch and length:
            return float(batch * length)
        return self.totals.get("tokens_per_step")

    def spread(self) -> float:
        """How many times as long as the shortest of the steady steps the longest takes; 1 of one.

        By their times, else by their throughput.
        """
        for name in ("step_time_s", "tokens_per_s_per_gpu", "tokens_per_s", "samples_per_s"):
            values = [value for step in self.steady if (value := getattr(step, name))]
            if values:
                return float(max(values) / min(values))
        return 1.0

    def timers_s(self) -> dict[str, float]:
        """Mean over the steady steps of each timer, of the rank that takes longest [s]."""
        found: dict[str, list[float]] = {}
        for step in self.steady:
            for name, (_, longest) in step.phases_s.items():
                found.setdefault(name, []).append(longest)
        return {name: sum(values) / len(values) for name, values in found.items()}

    def steady_step_s(self) -> float | None:
        """Step time after warm-up [s]: as logged, or from throughput and batch."""
        found = self.steady_value("step_time_s")
        if found is not None:
            return found
        tokens, gpus = self.tokens_per_step, self.settings.get("num_gpus")
        rate = self.steady_value("tokens_per_s")
        per_gpu = self.steady_value("tokens_per_s_per_gpu")
        if rate is None and per_gpu is not None and gpus:
            rate = per_gpu * gpus
        if tokens and rate:
            return tokens / rate
        batch, samples = self.settings.get("global_batch"), self.samples_per_s()
        if batch and samples and self.steps:
            return batch / samples
        return self.totals.get("step_s")

    def samples_per_s(self) -> float | None:
        """Throughput of the job after warm-up [sequences/s]; a running mean counts at its end."""
        running = self.totals.get("running_samples_per_s")
        if running is not None and self.steady_value("step_time_s") is None:
            return running
        found = self.steady_value("samples_per_s")
        return self.totals.get("samples_per_s") if found is None else found

    def steady_tokens_per_s(self) -> float | None:
        """Throughput of the job after warm-up [tokens/s]: as logged, or from time and batch."""
        found = self.steady_value("tokens_per_s")
        if found is not None:
            return found
        per_gpu, gpus = self.steady_value("tokens_per_s_per_gpu"), self.settings.get("num_gpus")
        if per_gpu is not None and gpus:
            return per_gpu * gpus
        samples, length = self.samples_per_s(), self.settings.get("seq_len")
        if samples and length:
            return samples * length
        step_s, tokens = self.steady_step_s(), self.tokens_per_step
        return tokens / step_s if step_s and tokens else None

    def steady_tokens_per_s_per_gpu(self) -> float | None:
        """Throughput per device after warm-up [tokens/s]."""
        found = self.steady_value("tokens_per_s_per_gpu")
        if found is not None:
            return found
        rate, gpus = self.steady_tokens_per_s(), self.settings.get("num_gpus")
        return rate / gpus if rate and gpus else None

    def clock_step_s(self) -> float | None:
        """Step time by the time of day of the lines, after warm-up [s]."""
        marked = [s for s in self.steady if s.clock_s is not None]
        rates = [
            (b.clock_s - a.clock_s) / (b.number - a.number)
            for a, b in pairwise(marked)
            if a.clock_s is not None and b.clock_s is not None and b.clock_s > a.clock_s
        ]
        return float(median(rates)) if rates else None

    def implied_peak_flop_per_s(self) -> float | None:
        """The peak that its MFU is a share of [FLOP/s]; None when it prints no MFU.

        As it states the peak, else as speed and MFU have it.
        """
        if self.peak_flop_per_s is not None:
            return self.peak_flop_per_s
        both = [(s.flop_per_s_per_gpu, s.mfu) for s in self.steady]
        peaks = [speed / mfu for speed, mfu in both if speed and mfu]
        return float(median(peaks)) if peaks else None
