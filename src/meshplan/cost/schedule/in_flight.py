"""How many micro-batches a pipeline device holds activations of, at most.

A *chunk pass* is the forward of one micro-batch through one virtual stage. Its activations stay
on the device until the backward (for schedules that split it: until the weight gradient) is done.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.space.plan import Schedule

__all__ = ["in_flight"]

IntArray = npt.NDArray[np.int64]


def in_flight(
    *,
    schedule: Schedule,
    pp: int | IntArray,
    vpp: int,
    stage: int | IntArray,
    num_micro_batches: IntArray,
) -> tuple[IntArray, ...]:
    """Count the chunk passes alive at the peak, for each chunk of one device.

    With p devices, v chunks, stage i (from 0) and m micro-batches the device holds at most

    ===================  ==========================================================
    GPipe                ``m`` of each chunk
    1F1B, ZB-H1, ZB-1p   ``min(m, p - i)``; with a split backward ``min(m, p)``
    ZB-2p                ``min(m, 2p)``
    interleaved          ``min(m v, g (v - 1) + 2 (p - i) - 1)`` in all, in groups of g
    interleaved ZB       ``min(m v, g v)`` in all, in groups of g
    ZBV                  ``min(2 m, 2 p)`` in all, the first chunk filling first
    DualPipeV            ``min(2 m, 2 p + 1)`` in all
    ===================  ==========================================================

    A group g is p micro-batches, or more where m is no multiple of p: ``m // max(1, m // p)``.

    Args:
        schedule: the pipeline schedule.
        pp: devices p in the pipeline; this and the stage may be arrays ``(n,)`` too.
        vpp: chunks v per device.
        stage: the device i, from 0.
        num_micro_batches: micro-batches m per step, shape ``(n,)``.

    Returns:
        One array of shape ``(n,)`` per chunk, in the order of the device's chunks.

    Assumes:
        Zero-bubble schedules delay weight gradients evenly, so that every device reaches the
        memory limit of the schedule [2]. A plan that uses an interleaved schedule with one chunk
        behaves like its plain form.

    References:
        1. D. Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters
           Using Megatron-LM, SC21, section 2.2.
        2. P. Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, sections 3 and 6.
        3. DeepSeek-AI, DualPipe (repository), table of activations per device.
        4. ``torch.distributed.pipelining`` action tables: interleaved 11, 9, 7, 5 chunk passes
           for p=4, v=2, m=8.
    """
    m = np.asarray(num_micro_batches, dtype=np.int64)
    if schedule is Schedule.GPIPE:
        return (m,) * vpp
    if schedule in (Schedule.ZBV, Schedule.DUALPIPE_V) and vpp == 2:
        limit = 2 * pp + (1 if schedule is Schedule.DUALPIPE_V else 0)
        return _v_shaped(m, limit=limit, pp=pp, stage=stage)
    if vpp > 1:
        split = schedule is Schedule.INTERLEAVED_ZB
        return _interleaved(m, pp=pp, vpp=vpp, stage=stage, split=split)
    if schedule is Schedule.ZB_2P:
        return (np.minimum(m, 2 * pp),)
    if schedule in (Schedule.ZB_H1, Schedule.ZB_1P):
        return (np.minimum(m, pp),)
    return (np.minimum(m, pp - stage),)


def _interleaved(
    m: IntArray, *, pp: int | IntArray, vpp: int, stage: int | IntArray, split: bool
) -> tuple[IntArray, ...]:
    """Spread the passes over the chunks in the order they are run, group after group."""
    group = m // np.maximum(1, m // pp)
    ahead = group if split else 2 * (pp - stage) - 1
    left = np.minimum(m * vpp, group * (vpp - 1) + ahead)
    counts = []
    for _ in range(vpp):
        here = np.minimum(left, group)
        counts.append(here)
        left = left - here
    for chunk in range(vpp):
        here = np.minimum(left, m - counts[chunk])
        counts[chunk] = counts[chunk] + here
        left = left - here
    return tuple(counts)


def _v_shaped(
    m: IntArray, *, limit: int | IntArray, pp: int | IntArray, stage: int | IntArray
) -> tuple[IntArray, ...]:
    """Spread the limit over the way down and the way back.

    A micro-batch comes back to stage i after ``2 (p - i)`` chunk passes, so the first chunk
    leads by ``p - i`` micro-batches.
    """
    total = np.minimum(2 * m, limit)
    first = np.minimum(m, (total + (pp - stage) + 1) // 2)
    second = np.minimum(first, total - first)
    return (first, second)
