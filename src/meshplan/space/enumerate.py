"""All legal plans of a scenario, and how many candidates each rule refuses.

The candidates are the full product of the axis values. They are never built: the product is
walked as a growing set of prefixes, one axis at a time, and each rule is applied as soon as all
fields that it reads are known. A prefix that is refused stands for all its completions and is
counted as their number, so that ``sum(rejected) + num_legal == num_candidates`` exactly. The last
axes leave most prefixes all their values: those stay a product (see :mod:`meshplan.space.crossed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from math import prod
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.axes import CROSSING_AXES, DERIVED, Axis, axes_of
from meshplan.space.crossed import MODE_FIELDS, CrossedGrid
from meshplan.space.facts import Facts, facts_of
from meshplan.space.habits import habits_of
from meshplan.space.plan import (
    CpComm,
    Framework,
    Offload,
    Plan,
    PlanGrid,
    Recompute,
    Schedule,
    Split,
)
from meshplan.space.rules.predicates import only
from meshplan.space.rules.registry import rules_of
from meshplan.space.rules.rule import Fields, Rule

__all__ = ["Enumeration", "Rejection", "count_candidates", "enumerate_parts"]

MOST_CANDIDATES = 100_000_000
"""Candidates of a space that is built at once."""

_Columns = dict[str, npt.NDArray[np.signedinteger[Any]]]


@record
class Rejection:
    """What one rule refuses.

    Attributes:
        count: candidates refused.
        example: the first of them.
    """

    count: int
    example: Plan


@dataclass(frozen=True, kw_only=True)
class Enumeration:
    """The legal plans and the count of what was refused.

    Attributes:
        crossed: the legal plans in the order of the product, framework by framework.
        num_candidates: size of the full product over all frameworks.
        rejected: what each rule refuses, by its code. A candidate counts for the first rule
            that refuses it.
    """

    crossed: tuple[CrossedGrid, ...]
    num_candidates: int
    rejected: Mapping[str, Rejection]

    @cached_property
    def grid(self) -> PlanGrid:
        """The legal plans one by one."""
        return PlanGrid.concatenate([part.flat() for part in self.crossed])

    @property
    def num_legal(self) -> int:
        """Number of legal plans."""
        return sum(map(len, self.crossed))


def count_candidates(scenario: Scenario) -> int:
    """Count the candidates of a scenario, legal or not."""
    return sum(walk.num_candidates for walk in _walks(scenario))


def enumerate_parts(
    scenario: Scenario, *, most_candidates: int = MOST_CANDIDATES
) -> Iterator[Enumeration]:
    """Build the legal plans of a scenario in parts, so that a large space never stands whole.

    Args:
        scenario: model, cluster, job, frameworks and pinned axes.
        most_candidates: a space of up to so many is one part; a larger one has a part for each
            framework and tensor-parallel degree.

    Yields:
        The legal plans, one framework after the other, and what was refused.
    """
    walks = list(_walks(scenario))
    if sum(walk.num_candidates for walk in walks) <= most_candidates:
        yield _joined([walk.run() for walk in walks])
        return
    for walk in walks:
        for tp in walk.axes["tp"].values[0]:
            yield walk.only_tp(tp).run()


def _walks(scenario: Scenario) -> Iterator[_Walk]:
    facts = facts_of(scenario)
    for name in scenario.frameworks:
        framework = Framework[name.upper()]
        yield _Walk(facts=facts, framework=framework, pinned=scenario.axes)


def _joined(parts: Sequence[Enumeration]) -> Enumeration:
    rejected: dict[str, Rejection] = {}
    for part in parts:
        for code, rejection in part.rejected.items():
            seen = rejected.get(code)
            if seen is not None:
                count = seen.count + rejection.count
                rejection = Rejection(count=count, example=seen.example)
            rejected[code] = rejection
    return Enumeration(
        crossed=tuple(crossed for part in parts for crossed in part.crossed),
        num_candidates=sum(part.num_candidates for part in parts),
        rejected=rejected,
    )


class _Walk:
    """The walk over the product of one framework."""

    def __init__(
        self, *, facts: Facts, framework: Framework, pinned: Mapping[str, tuple[object, ...]]
    ) -> None:
        self.facts = facts
        self.framework = framework
        self.axes = axes_of(facts, framework=framework, pinned=pinned)
        self.num_candidates = prod(len(axis) for axis in self.axes.values())
        self.counts: dict[str, int] = {}
        self.examples: dict[str, Plan] = {}
        self._rules = [*rules_of(framework), *_pins(pinned), *habits_of(framework, pinned)]
        self._dtype = _narrowest(facts, self.axes)
        # fields of prefixes, (1, 1, n), and of the modes that cross them, (1, m, 1)
        self._columns: _Columns = {}
        self._modes: _Columns = {}
        self._legal = np.ones((1, 1), dtype=np.bool_)

    def only_tp(self, tp: int) -> _Walk:
        """The part of the walk with one tensor-parallel degree."""
        part = copy(self)
        part.axes = {**self.axes, "tp": Axis(fields=("tp",), values=((tp,),))}
        part.num_candidates = self.num_candidates // len(self.axes["tp"])
        part.counts, part.examples = {}, {}
        return part

    def run(self) -> Enumeration:
        """Walk the product.

        Returns:
            The legal plans of the framework.
        """
        remaining = self.num_candidates
        for name, axis in self.axes.items():
            remaining = remaining // len(axis) if len(axis) else 0
            alive, known = self._try(axis, completions=remaining)
            if name in CROSSING_AXES:
                self._cross(axis, alive)
            else:
                self._expand(axis, alive[:, 0], known)
        rejected = {
            code: Rejection(count=count, example=self.examples[code])
            for code, count in self.counts.items()
        }
        return Enumeration(
            crossed=(self._crossed(),), num_candidates=self.num_candidates, rejected=rejected
        )

    def _try(self, axis: Axis, *, completions: int) -> tuple[npt.NDArray[np.bool_], _Columns]:
        """Put the values of an axis behind all prefixes and ask the rules.

        The new values run along the first array axis, modes along the second and prefixes, which
        are many, along the last, so that a rule that reads few fields costs little and nothing is
        copied before the survivors are known.

        Returns:
            Which are legal so far, ``(num_values, num_modes, num_prefixes)``, and all fields
            that are known.
        """
        known = {**self._columns, **self._modes}
        before = set(known)
        for name, values in zip(axis.fields, axis.values, strict=True):
            known[name] = np.array(values, dtype=self._dtype)[:, None, None]
        known.update(_derive(self.facts, known))
        alive = np.repeat(self._legal[None], len(axis), axis=0)
        for rule in self._ready(known.keys(), before=before):
            self._apply(rule, known, alive, completions=completions)
        return alive, known

    def _expand(self, axis: Axis, alive: npt.NDArray[np.bool_], known: _Columns) -> None:
        """Make a prefix of each prefix with each of the values that are legal behind it."""
        whole = len(axis) == 1 and alive.all()  # the prefixes stay as they are
        parent, value = np.nonzero(alive.T)
        columns: _Columns = {}
        for name, column in known.items():
            values, _, prefixes = column.shape
            if whole and prefixes > 1:
                columns[name] = column
            elif prefixes == values == 1:
                columns[name] = np.broadcast_to(column.ravel(), len(parent))[None, None]
            elif prefixes > 1 and values > 1:
                columns[name] = column[value, 0, parent][None, None]
            else:
                columns[name] = column.ravel()[parent if prefixes > 1 else value][None, None]
        self._columns, self._legal = columns, np.ones((1, len(parent)), np.bool_)

    def _cross(self, axis: Axis, alive: npt.NDArray[np.bool_]) -> None:
        """Make a mode of each mode with each of the values, without those that never are legal."""
        num_values, num_modes, num_prefixes = alive.shape
        legal = alive.swapaxes(0, 1).reshape(num_modes * num_values, num_prefixes)
        kept = np.flatnonzero(legal.any(axis=1))
        mode, value = np.divmod(kept, max(num_values, 1))
        self._modes = {name: column[:, mode] for name, column in self._modes.items()}
        for name, values in zip(axis.fields, axis.values, strict=True):
            self._modes[name] = np.array(values, dtype=self._dtype)[value][None, :, None]
        self._legal = legal[kept]

    def _crossed(self) -> CrossedGrid:
        """The legal plans as a product of rows and ways to recompute, if they are one."""
        some = np.flatnonzero(self._legal.any(axis=0))
        kept = slice(None) if len(some) == self._legal.shape[1] else some
        legal = self._legal[:, kept]
        modes = {name: column.ravel().astype(np.int64) for name, column in self._modes.items()}
        rows = {
            name: column.ravel()[kept].astype(np.int64) for name, column in self._columns.items()
        }
        apart = all(
            len(column) and (column == column[0]).all()
            for name, column in modes.items()
            if name not in MODE_FIELDS
        )
        if not apart or len(legal) < 2:
            row, mode = np.nonzero(legal.T)
            rows = {name: column[row] for name, column in rows.items()}
            rows |= {name: column[mode] for name, column in modes.items()}
            return CrossedGrid.of(self._grid(rows, len(row)))
        fixed = {name: np.full(len(some), column[0]) for name, column in modes.items()}
        first = {name: np.full(len(legal), column[0]) for name, column in rows.items()}
        return CrossedGrid(
            rows=self._grid(rows | fixed, len(some)),
            modes=self._grid(first | modes, len(legal)),
            legal=np.ascontiguousarray(legal.T),
        )

    def _grid(self, columns: Mapping[str, npt.NDArray[np.int64]], num_plans: int) -> PlanGrid:
        framework = np.full(num_plans, int(self.framework), dtype=np.int64)
        return PlanGrid(framework=framework, **columns, stage_layers=())

    def _ready(self, known: Iterable[str], *, before: set[str]) -> list[Rule]:
        """Rules that read a field that has just become known, and none that is still open."""
        names = {*known, "stage_layers"}
        earlier = before | {"stage_layers"}
        return [
            rule
            for rule in self._rules
            if names.issuperset(rule.reads) and not (before and earlier.issuperset(rule.reads))
        ]

    def _apply(
        self,
        rule: Rule,
        known: _Columns,
        alive: npt.NDArray[np.bool_],
        *,
        completions: int,
    ) -> None:
        fields = SimpleNamespace(**{n: known[n] for n in rule.reads if n != "stage_layers"})
        if "stage_layers" in rule.reads:
            fields.stage_layers = ()
        legal = np.asarray(rule.legal(self.facts, cast(Fields, fields)), dtype=np.bool_)
        if legal.all():
            return
        refused = np.greater(alive, legal)  # alive and not legal
        num_refused = int(np.count_nonzero(refused))
        if not num_refused:
            return
        self.counts[rule.code] = self.counts.get(rule.code, 0) + num_refused * completions
        if rule.code not in self.examples:
            prefix = int(np.argmax(refused.any(axis=(0, 1))))
            among = refused[:, :, prefix].T
            mode, value = np.unravel_index(np.argmax(among), among.shape)
            self.examples[rule.code] = self._complete(known, (int(value), int(mode), prefix))
        alive &= legal

    def _complete(self, known: _Columns, place: tuple[int, int, int]) -> Plan:
        """Build the first plan that starts with a prefix."""
        chosen: dict[str, int] = {}
        for name, column in known.items():
            values, modes, prefixes = map(min, place, (size - 1 for size in column.shape))
            chosen[name] = int(column[values, modes, prefixes])
        for axis in self.axes.values():
            for name, values in zip(axis.fields, axis.values, strict=True):
                chosen.setdefault(name, values[0])
        for name in DERIVED:
            if name not in chosen:
                scalars = {n: np.array(v, ndmin=3, dtype=self._dtype) for n, v in chosen.items()}
                chosen.update({n: int(c.item()) for n, c in _derive(self.facts, scalars).items()})
        return Plan(
            framework=self.framework,
            tp=chosen["tp"],
            sp=bool(chosen["sp"]),
            pp=chosen["pp"],
            vpp=chosen["vpp"],
            schedule=Schedule(chosen["schedule"]),
            cp=chosen["cp"],
            cp_comm=CpComm(chosen["cp_comm"]),
            ep=chosen["ep"],
            etp=chosen["etp"],
            dp=chosen["dp"],
            dp_shard=chosen["dp_shard"],
            dp_replicate=chosen["dp_replicate"],
            zero=chosen["zero"],
            micro_batch=chosen["micro_batch"],
            num_micro_batches=chosen["num_micro_batches"],
            recompute=Recompute(chosen["recompute"]),
            recompute_layers=chosen["recompute_layers"],
            offload=Offload(chosen["offload"]),
            offload_layers=chosen["offload_layers"],
            split=Split(chosen["split"]),
        )


def _narrowest(facts: Facts, axes: Mapping[str, Axis]) -> np.dtype[np.signedinteger[Any]]:
    """The integer type that holds every product that a rule forms: half the memory if narrow."""

    def most(*names: str) -> int:
        return prod(max(axes[name].values[0], default=1) for name in names)

    largest = max(
        most("tp", "pp", "cp") * 2,
        most("pp", "vpp") * 2,
        most("etp", "ep", "dp_replicate"),
        facts.num_gpus * most("micro_batch"),
        facts.seq_len,
        facts.global_batch,
    )
    return np.dtype(np.int32 if largest < np.iinfo(np.int32).max else np.int64)


def _derive(facts: Facts, known: _Columns) -> _Columns:
    """Fields that follow from those known so far, rounded down where they do not divide."""
    derived: _Columns = {}

    def have(*names: str) -> bool:
        return all(name in known or name in derived for name in names)

    def get(name: str) -> npt.NDArray[np.signedinteger[Any]]:
        return derived[name] if name in derived else known[name]

    if "dp" not in known and have("tp", "pp", "cp"):
        derived["dp"] = facts.num_gpus // np.maximum(get("tp") * get("pp") * get("cp"), 1)
    if "num_micro_batches" not in known and have("dp", "micro_batch"):
        size = np.maximum(get("dp") * get("micro_batch"), 1)
        derived["num_micro_batches"] = facts.global_batch // size
    if "dp_shard" not in known and have("dp", "dp_replicate"):
        derived["dp_shard"] = get("dp") // np.maximum(get("dp_replicate"), 1)
    return derived


def _pins(pinned: Mapping[str, tuple[object, ...]]) -> list[Rule]:
    """Rules for fields that follow from others and that the scenario pins all the same."""
    return [
        Rule(
            code="outside_pinned_values",
            frameworks=(),
            version="",
            source="scenario",
            reads=(name,),
            axis=name,
            legal=only(name, *[int(cast(int, value)) for value in pinned[name]]),
        )
        for name in DERIVED
        if name in pinned
    ]
