"""Order of the actions of each device, for the schedules whose order is fixed beforehand.

Within one virtual stage every schedule runs the micro-batches in order, for each kind of action.
An order is therefore a sequence of kinds on chunks, and the micro-batch is a running count.

References:
    1. Huang et al., GPipe, 2019.
    2. Narayanan et al., Efficient large-scale language model training on GPU clusters using
       Megatron-LM, SC 2021 (1F1B and interleaving).
    3. Qi et al., Zero bubble pipeline parallelism, 2023 (ZB-H1, ZB-H2, ZBV).
    4. DeepSeek-AI, DeepSeek-V3 technical report, 2024, and the DualPipe repository (DualPipeV).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from meshplan.cost.schedule.actions import Kind, Program, virtual_stages_of
from meshplan.record import record
from meshplan.space.plan import Schedule

__all__ = ["Actions", "all_actions", "device_programs", "group_size"]

IntArray = npt.NDArray[np.int64]

F, B, I, W = (int(kind) for kind in Kind)  # noqa: E741
_NUM_KINDS = len(Kind)
Steps = Sequence[int] | IntArray
"""Actions of one device in order, each ``kind + 4 * chunk``."""


def _at(kind: int, chunks: Iterable[int]) -> list[int]:
    """Actions of one kind on chunks."""
    return [kind + _NUM_KINDS * chunk for chunk in chunks]


F1, B1, I1, W1 = (_at(kind, [1])[0] for kind in (F, B, I, W))
"""The same on the second chunk."""


@record
class Actions:
    """What all devices do, device after device, each in its order; arrays ``(num_actions,)``.

    Attributes:
        kind: codes of :class:`~meshplan.cost.schedule.actions.Kind`.
        stage: virtual stage, in model order.
        micro_batch: for which micro-batch.
        starts: where each device begins, and the end, ``(pp + 1,)``.
    """

    kind: IntArray
    stage: IntArray
    micro_batch: IntArray
    starts: IntArray


def group_size(*, num_micro_batches: int, pp: int) -> int:
    """Return how many micro-batches an interleaved schedule sends through a chunk in a row.

    One round of the pipeline carries ``pp`` micro-batches; what is left over widens the rounds.
    """
    return num_micro_batches // max(1, num_micro_batches // pp)


def device_programs(
    *, schedule: Schedule, pp: int, vpp: int, num_micro_batches: int
) -> tuple[Program, ...]:
    """Write down what each device does, in order.

    Args:
        schedule: pipeline schedule.
        pp: devices of the pipeline.
        vpp: chunks per device.
        num_micro_batches: micro-batches of one step.

    Returns:
        One program per device.
    """
    actions = all_actions(schedule=schedule, pp=pp, vpp=vpp, num_micro_batches=num_micro_batches)
    columns = (actions.kind, actions.stage, actions.micro_batch)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    return tuple(tuple(rows[start:stop]) for start, stop in pairwise(actions.starts.tolist()))


def all_actions(*, schedule: Schedule, pp: int, vpp: int, num_micro_batches: int) -> Actions:
    """Write down what all devices do; see :func:`device_programs`."""
    steps = [_STEPS[schedule](pp, vpp, num_micro_batches, device) for device in range(pp)]
    sizes = [len(own) for own in steps]
    flat = np.concatenate([np.asarray(own, dtype=np.int64) for own in steps])
    chunk, kind = np.divmod(flat, _NUM_KINDS)
    held = [virtual_stages_of(device, pp=pp, vpp=vpp, schedule=schedule) for device in range(pp)]
    stage = np.array(held)[np.repeat(np.arange(pp), sizes), chunk]
    # a full backward counts as an input gradient and as a weight gradient
    micro_batch = _count(4 * stage + np.where(kind == B, I, kind))
    weighs = np.flatnonzero((kind == B) | (kind == W))
    micro_batch[weighs] = np.where(kind[weighs] == W, _count(stage[weighs]), micro_batch[weighs])
    return Actions(
        kind=kind,
        stage=stage,
        micro_batch=micro_batch,
        starts=np.cumsum([0, *sizes]),
    )


def _count(codes: IntArray) -> IntArray:
    """How many of the same code stand before each entry."""
    order = np.argsort(codes, kind="stable")
    first = np.cumsum(np.bincount(codes)) - np.bincount(codes)
    counts = np.empty_like(order)
    counts[order] = np.arange(len(codes)) - first[codes[order]]
    return counts


def _gpipe(pp: int, vpp: int, m: int, device: int) -> Steps:
    """All forwards, chunk by chunk, then all backwards, from the last chunk."""
    chunks = [c for c in range(vpp) for _ in range(m)]
    return _at(F, chunks) + _at(B, reversed(chunks))


def _one_f_one_b(pp: int, vpp: int, m: int, device: int) -> Steps:
    """Fill the pipeline, then alternate, then drain."""
    warmup = min(m, pp - device - 1)
    return [F] * warmup + [F, B] * (m - warmup) + [B] * warmup


def _chunk_order(pp: int, vpp: int, m: int) -> list[int]:
    """Chunk of each forward of an interleaved schedule: group after group through the chunks."""
    group = group_size(num_micro_batches=m, pp=pp)
    order: list[int] = []
    for first in range(0, m, group):
        size = min(group, m - first)
        order += [chunk for chunk in range(vpp) for _ in range(size)]
    return order


def _interleaved(pp: int, vpp: int, m: int, device: int) -> Steps:
    """Megatron-LM's interleaved 1F1B."""
    chunks = np.array(_chunk_order(pp, vpp, m), dtype=np.int64)
    group = group_size(num_micro_batches=m, pp=pp)
    warmup = min(len(chunks), (vpp - 1) * group + 2 * (pp - 1 - device))
    forwards = F + _NUM_KINDS * chunks
    backwards = B + _NUM_KINDS * (vpp - 1 - chunks)
    turns = len(chunks) - warmup
    pairs = np.stack([forwards[warmup:], backwards[:turns]], axis=1)
    return np.concatenate([forwards[:warmup], pairs.ravel(), backwards[turns:]])


def _delayed_weights(
    *, forwards: list[int], inputs: list[int], warmup: int, delay: int
) -> list[int]:
    """Alternate forward and input gradient; weight gradients follow ``delay`` actions later."""
    steps = forwards[:warmup]
    weights = [step - I + W for step in inputs]
    for i, backward in enumerate(inputs):
        if warmup + i < len(forwards):
            steps.append(forwards[warmup + i])
        steps.append(backward)
        if i >= delay:
            steps.append(weights[i - delay])
    return steps + weights[max(0, len(inputs) - delay) :]


def _zb_h1(pp: int, vpp: int, m: int, device: int) -> Steps:
    """1F1B with the weight gradients moved into the drain, at the memory of 1F1B."""
    return _delayed_weights(
        forwards=[F] * m,
        inputs=[I] * m,
        warmup=min(m, pp - 1 - device),
        delay=device,
    )


def _zb_2p(pp: int, vpp: int, m: int, device: int) -> Steps:
    """ZB-H2: twice the forwards in flight, so that the weight gradients fill both ends."""
    return _delayed_weights(
        forwards=[F] * m,
        inputs=[I] * m,
        warmup=min(m, 2 * (pp - 1 - device)),
        delay=2 * device,
    )


def _interleaved_zb(pp: int, vpp: int, m: int, device: int) -> Steps:
    """Interleaved 1F1B with a shorter warm-up and delayed weight gradients."""
    chunks = _chunk_order(pp, vpp, m)
    group = group_size(num_micro_batches=m, pp=pp)
    return _delayed_weights(
        forwards=_at(F, chunks),
        inputs=_at(I, [vpp - 1 - c for c in chunks]),
        warmup=min(len(chunks), (vpp - 1) * group + pp - 1 - device),
        delay=device,
    )


def _zbv(pp: int, vpp: int, m: int, device: int) -> Steps:
    """ZBV: two chunks per device, down and back, so that each device ends early and starts early.

    The order is made for at least ``2 pp - 1`` micro-batches; with fewer, those beyond are left
    out.
    """
    full = max(2 * pp - 1, m)
    last = pp - device
    steps = [F] * (2 * last - 1)
    steps += [F1, F] * device
    steps += [F1, I1, W1] * last
    pairs = full - pp  # forwards of chunk 1 that are left
    fresh = full - (2 * last - 1) - device  # forwards of chunk 0 that are left
    for i in range(pairs):
        if i < fresh:
            steps.append(F)
        steps += [I, W, F1, I1, W1]
    done = [pairs, last + pairs]  # input gradients so far, by chunk
    steps += [I, I1] * device
    steps += [I, W] * last
    steps += [W1] * (full - done[1])
    steps += [W] * (full - done[0] - last)
    return _drop_beyond(steps, m)


def _drop_beyond(steps: Iterable[int], m: int) -> list[int]:
    """Leave out the actions of micro-batches that do not exist."""
    counts: dict[int, int] = {}
    kept = []
    for step in steps:
        counts[step] = counts.get(step, 0) + 1
        if counts[step] <= m:
            kept.append(step)
    return kept


def _dualpipe_v(pp: int, vpp: int, m: int, device: int) -> Steps:
    """DualPipeV: forwards and backwards of the two chunks side by side.

    Needs ``2 pp`` micro-batches or more.
    """
    after = pp - 1 - device
    pending: deque[int] = deque()
    steps = [F] * (2 * after)
    steps += [F, F1] * (device + 1)
    for _ in range(after):
        steps += [I1, W1, F1]
    steps += [F, B1, F1, B] * (m - 2 * pp + device + 1)
    steps += [B1, F1, B] * after
    # the drain: from its middle on, weight gradients wait for the gaps
    split = False
    half = (device + 1) // 2
    for i in range(device + 1):
        for whole, inputs, weights, parity in ((B1, I1, W1, 1), (B, I, W, 0)):
            split = split or (i == half and device % 2 == parity)
            steps.append(inputs if split else whole)
            if split:
                pending.append(weights)
    for _ in range(after):
        if pending:
            steps.append(pending.popleft())
        steps.append(I if split else B)
        if split:
            pending.append(W)
    return steps + list(pending)


_STEPS: dict[Schedule, Callable[[int, int, int, int], Steps]] = {
    Schedule.GPIPE: _gpipe,
    Schedule.ONE_F_ONE_B: _one_f_one_b,
    Schedule.INTERLEAVED: _interleaved,
    Schedule.ZB_H1: _zb_h1,
    Schedule.ZB_1P: _zb_h1,
    Schedule.ZB_2P: _zb_2p,
    Schedule.ZBV: _zbv,
    Schedule.DUALPIPE_V: _dualpipe_v,
    Schedule.INTERLEAVED_ZB: _interleaved_zb,
}
