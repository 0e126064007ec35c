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

from meshplan.cost.factoring import factor
from meshplan.search.objective import pack
from meshplan.space.plan import PlanGrid

__all__ = ["FAMILY_FIELDS", "family_ids"]

FAMILY_FIELDS = ("framework", "tp", "pp", "cp", "ep", "etp", "dp_replicate")

IntArray = npt.NDArray[np.int64]


def family_ids(grid: PlanGrid) -> IntArray:
    """Number the families of a grid.

    Returns:
        Ids ``0 .. num_families - 1``, shape ``(num_plans,)``; plans of one family share an id.
    """
    some = factor(grid, (*FAMILY_FIELDS, "zero"))
    # without sharding the replica groups are only a way of counting
    sharded = some.grid.zero >= 3
    columns = [getattr(some.grid, name) for name in FAMILY_FIELDS[:-1]]
    columns += [np.where(sharded, some.grid.dp_replicate, 1), sharded.astype(np.int64)]
    first, *more = pack(columns)
    _, ids = np.unique(first, return_inverse=True)
    for word in more:
        values, codes = np.unique(word, return_inverse=True)
        _, ids = np.unique(ids * len(values) + codes, return_inverse=True)
    families: IntArray = ids.astype(np.int64)[some.places]
    return families
