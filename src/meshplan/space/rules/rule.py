"""What a rule is: a named predicate over plan fields, with the place that enforces it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from meshplan.record import record
from meshplan.space.facts import Facts
from meshplan.space.plan import Framework

__all__ = ["ALL_FRAMEWORKS", "Fields", "IntArray", "Legal", "Predicate", "Rule"]

ALL_FRAMEWORKS = tuple(Framework)

IntArray = npt.NDArray[np.int64]
Legal = npt.NDArray[np.bool_]


class Fields(Protocol):
    """Plan fields by attribute: a ``PlanGrid``, or some columns that broadcast together.

    NumPy integers serve as well as arrays. See :class:`~meshplan.space.plan.Plan`.
    """

    tp: IntArray
    sp: IntArray
    pp: IntArray
    vpp: IntArray
    schedule: IntArray
    cp: IntArray
    cp_comm: IntArray
    ep: IntArray
    etp: IntArray
    dp: IntArray
    dp_shard: IntArray
    dp_replicate: IntArray
    zero: IntArray
    micro_batch: IntArray
    num_micro_batches: IntArray
    recompute: IntArray
    recompute_layers: IntArray
    offload: IntArray
    offload_layers: IntArray
    split: IntArray
    stage_layers: tuple[int, ...]


Predicate = Callable[[Facts, Fields], Legal]


@record
class Rule:
    """One thing that must hold for a plan to run.

    Several frameworks may enforce what is one rule to a person; each then has an entry of its
    own with the same code and its own source.

    Attributes:
        code: name of the rule; ``error.rule_<code>`` and ``hint.rule_<code>`` are its sentences.
        frameworks: where it holds.
        version: version of the framework that was read; empty for arithmetic.
        source: ``file:line`` that enforces it, or the reason when it is arithmetic.
        reads: plan fields that the predicate reads; none when it depends on the scenario alone.
        axis: the plan field that a person would change first.
        legal: predicate that is true where the rule holds; works on scalars and arrays.
        numbers: facts of the scenario that the sentences mention besides the fields read.
        duplicate: the plan would run, but is the same as a simpler one that is kept.
    """

    code: str
    frameworks: tuple[Framework, ...]
    version: str
    source: str
    reads: tuple[str, ...]
    axis: str
    legal: Predicate
    numbers: tuple[str, ...] = ()
    duplicate: bool = False
