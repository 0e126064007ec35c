"""Which plans are variants of one.

Five plans that differ in a knob tell a person nothing. A *family* is what decides where data
goes and what hardware the traffic needs: the framework, the degrees tp, pp, cp, ep and etp, the
size of the replica groups, and whether parameters are sharded (ZeRO-3, FSDP). Micro-batch,
interleaving, schedule, recompute, sequence parallelism, the split of layers, offload and the
ZeRO stage below 3 are variants inside it: the best one stands for its family, and the answer
says how many others there are.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshplan.space.plan import PlanGrid

__all__ = ["FAMILY_FIELDS", "family_ids"]

FAMILY_FIELDS = ("framework", "tp", "pp", "cp", "ep", "etp", "dp_replicate")

IntArray = npt.NDArray[np.int64]


def family_ids(grid: PlanGrid) -> IntArray:
    """Number the families of a grid.

    Returns:
        Ids ``0 .. num_families - 1``, shape ``(num_plans,)``; plans of one family share an id.
    """
    ids = np.zeros(len(grid), dtype=np.int64)
    if not len(grid):
        return ids
    sharded = (grid.zero >= 3).astype(np.int64)
    # without sharding the replica groups are only a way of counting
    replicate = np.where(grid.zero >= 3, grid.dp_replicate, 1)
    columns = [replicate if n == "dp_replicate" else getattr(grid, n) for n in FAMILY_FIELDS]
    for column in [*columns, sharded]:
        values, code = np.unique(column, return_inverse=True)
        ids = ids * len(values) + code
    _, ids = np.unique(ids, return_inverse=True)
    return ids.astype(np.int64)
