"""A plan as settings of its framework, one by one: what to change to get from one to another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from meshplan.emit import accelerate, deepspeed, maxtext, megatron, nanotron, torchtitan
from meshplan.emit.hugging_face import hugging_face_flags
from meshplan.emit.records import Flag, Order
from meshplan.emit.targets import TARGETS, obstacles_of
from meshplan.record import record
from meshplan.space.plan import Framework

__all__ = ["Difference", "differences", "settings"]

_MEGATRON_GROUPS = ("PARALLEL", "MEMORY", "BATCH")
"""Groups of flags that follow from the plan."""


@record
class Difference:
    """One setting that two plans spell differently.

    Attributes:
        option: the framework's own name of it.
        before: its value, empty for a flag that takes none; None where it is not set.
        after: the same of the other plan.
    """

    option: str
    before: str | None
    after: str | None


def settings(order: Order) -> Mapping[str, str]:
    """The settings of a plan by the framework's own names, as :mod:`meshplan.emit` writes them."""
    match order.plan.framework:
        case Framework.MEGATRON:
            groups = megatron.flag_groups(order)
            return _flags(flag for name in _MEGATRON_GROUPS for flag in groups[name])
        case Framework.TORCHTITAN:
            return torchtitan.settings(order)
        case Framework.DEEPSPEED:
            return {**_flat(deepspeed.config(order)), **_flags(hugging_face_flags(order))}
        case Framework.ACCELERATE:
            return {**_flat(accelerate.config(order)), **_flags(hugging_face_flags(order))}
        case Framework.NANOTRON:
            return _flat(nanotron.config(order))
        case _:
            return _flat(maxtext.config(order))


def differences(before: Order, after: Order) -> tuple[Difference, ...]:
    """What to change in the settings of a plan to run another one.

    Returns:
        The settings in which they differ, in the order in which they are written; empty where
        the framework cannot be told one of the plans.
    """
    target = TARGETS[after.plan.framework.name.lower()]
    if any(obstacles_of(order, target) for order in (before, after)):
        return ()
    now, then = settings(before), settings(after)
    return tuple(
        Difference(option=name, before=now.get(name), after=then.get(name))
        for name in {**now, **then}
        if now.get(name) != then.get(name)
    )


def _flags(flags: Iterator[Flag] | list[Flag]) -> dict[str, str]:
    return {flag[0]: " ".join(flag[1:]) for flag in flags}


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Nested settings by their path, ``zero_optimization.stage``."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{above}{name}.")
        elif isinstance(value, bool):
            found[above + name] = str(value).lower()
        elif isinstance(value, str | int | float):
            found[above + name] = str(value)
    return found
