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
    *, schedule: Schedule, pp: int, vpp: int, stage: int, num_micro_batches: IntArray
) -> tuple[IntArray, ...]:
    """Count the chunk passes alive at the peak, for each chunk of one device.

    With p devices, v chunks, stage i (from 0) and m micro-batches the device holds at most

    ===================  ==========================================================
    GPipe                ``m`` of each chunk
    1F1B, ZB-H1, ZB-1p   ``min(m, p - i)``; with a split backward ``min(m, p)``
    ZB-2p                ``min(m, 2p)``
    interleaved          ``min(m v, p v + p - 1 - 2 i)`` in all, in groups of p
    ZBV                  ``min(2 m, 2 p)`` in all, the first chunk filling first
    DualPipeV            ``min(2 m, 2 p + 1)`` in all
    ===================  ==========================================================

    Args:
        schedule: the pipeline schedule.
        pp: devices p in the pipeline.
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
        return _interleaved(m, pp=pp, vpp=vpp, stage=stage)
    if schedule is Schedule.ZB_2P:
        return (np.minimum(m, 2 * pp),)
    if schedule in (Schedule.ZB_H1, Schedule.ZB_1P):
        return (np.minimum(m, pp),)
    return (np.minimum(m, pp - stage),)


def _interleaved(m: IntArray, *, pp: int, vpp: int, stage: int) -> tuple[IntArray, ...]:
    """Spread ``p v + p - 1 - 2 i`` passes over the chunks in the order they are run."""
    total = np.minimum(m * vpp, pp * vpp + pp - 1 - 2 * stage)
    group = np.minimum(m, pp)
    counts = []
    left = total
    for _ in range(vpp):
        here = np.minimum(left, group)
        counts.append(here)
        left = left - here
    counts[0] = counts[0] + left
    return tuple(counts)


def _v_shaped(m: IntArray, *, limit: int, pp: int, stage: int) -> tuple[IntArray, ...]:
    """Spread the limit over the way down and the way back.

    A micro-batch comes back to stage i after ``2 (p - i)`` chunk passes, so the first chunk
    leads by ``p - i`` micro-batches.
    """
    total = np.minimum(2 * m, limit)
    first = np.minimum(m, (total + (pp - stage) + 1) // 2)
    second = np.minimum(first, total - first)
    return (first, second)
