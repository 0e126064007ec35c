"""Text names of the enums of a plan, for the command line, scenario files and JSON.

``to_text`` and ``from_text`` are inverse to each other. Spellings stand in
``meshplan.inputs.vocabulary``; here they meet the enums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum, IntFlag
from typing import Any, TypeVar

from meshplan.errors import UserError
from meshplan.inputs import vocabulary
from meshplan.inputs.vocabulary import AXES, canonical, squeeze, unknown
from meshplan.space.plan import CpComm, Framework, Offload, Recompute, Schedule, Split

__all__ = [
    "axis_values",
    "from_text",
    "parse_recompute",
    "recompute_pins",
    "recompute_text",
    "to_text",
]

_Names = Mapping[str, tuple[str, ...]]

_VOCABULARY: dict[Any, _Names] = {
    Framework: vocabulary.FRAMEWORKS,
    Schedule: vocabulary.SCHEDULES,
    CpComm: vocabulary.CP_COMMS,
    Recompute: vocabulary.RECOMPUTES,
    Offload: vocabulary.OFFLOADS,
    Split: vocabulary.SPLITS,
}
# The vocabulary lists names in the order of the enum's members (a flag's zero member first).
_MEMBERS: dict[Any, dict[str, int]] = {
    enum: dict(zip(names, (int(m) for m in enum.__members__.values()), strict=True))
    for enum, names in _VOCABULARY.items()
}

# What "selective" means to each framework: Megatron's default modules are ["core_attn"]
# (transformer_config.py, recompute_modules); torchtitan's selective mode keeps every second
# matrix product.
_SELECTIVE = {
    Framework.MEGATRON: Recompute.CORE_ATTENTION,
    Framework.TORCHTITAN: Recompute.SELECTIVE_OP,
    Framework.DEEPSPEED: Recompute.CORE_ATTENTION,
    Framework.ACCELERATE: Recompute.SELECTIVE_OP,
    Framework.NANOTRON: Recompute.CORE_ATTENTION,
}

E = TypeVar("E", bound=IntEnum | IntFlag)


def to_text(value: IntEnum | IntFlag) -> str:
    """Return the canonical name, flags joined by ``+`` (``core_attention+norm``)."""
    members = _MEMBERS[type(value)]
    if isinstance(value, IntEnum) or value == 0:
        return next(name for name, number in members.items() if number == value)
    return "+".join(name for name, number in members.items() if number & value)


def from_text(kind: type[E], text: str, *, where: str = "") -> E:
    """Return the enum value for a name in any accepted spelling; the inverse of ``to_text``.

    Raises:
        UserError: ``unknown_name`` with the allowed names and those that come close.
    """
    members = _MEMBERS[kind]
    parts = text.split("+") if issubclass(kind, IntFlag) else [text]
    number = 0
    for part in parts:
        name = canonical(_VOCABULARY[kind], part)
        if name is None:
            raise unknown(
                "unknown_name",
                where=where or kind.__name__.lower(),
                value=part.strip(),
                names=members,
            )
        number |= members[name]
    return kind(number)


def parse_recompute(
    text: str, *, framework: Framework, where: str = "recompute"
) -> tuple[Recompute, int]:
    """Read ``none``, ``selective``, ``full``, ``full:4`` or modules such as ``mlp+norm``.

    ``selective`` is what the framework does by that name: core attention in Megatron-LM,
    every second matrix product in torchtitan.

    Returns:
        What is recomputed, and the first layers of each stage to which ``full`` applies
        (0 for all).

    Raises:
        UserError: ``unknown_name`` or ``bad_recompute_layers``.
    """
    head, colon, tail = text.partition(":")
    if squeeze(head) == "selective":
        mode = _SELECTIVE[framework]
    else:
        mode = from_text(Recompute, head, where=where)
    if not colon:
        return mode, 0
    if mode != Recompute.FULL or not tail.strip().isdecimal() or int(tail) < 1:
        raise UserError.of(
            "bad_recompute_layers", where=where, value=text, allowed=("full:1", "full:4")
        )
    return mode, int(tail)


def recompute_text(recompute: Recompute, *, layers: int = 0) -> str:
    """Return the text that ``parse_recompute`` reads back: ``none``, ``full:4``, ``mlp+norm``."""
    text = to_text(recompute)
    return f"{text}:{layers}" if layers else text


def axis_values(
    axes: Mapping[str, tuple[object, ...]], name: str, *, framework: Framework
) -> tuple[int, ...] | None:
    """Integer codes that a scenario pins a plan field to; None when it leaves it free.

    ``recompute`` gives the codes of the modes without their layers; see ``recompute_pins``.
    """
    pinned = axes.get(name)
    if pinned is None:
        return None
    if name == "recompute":
        modes = (mode for mode, _ in recompute_pins(pinned, framework=framework))
        return tuple(dict.fromkeys(int(mode) for mode in modes))
    return tuple(dict.fromkeys(_code(name, value) for value in pinned))


def recompute_pins(
    pinned: Iterable[object], *, framework: Framework
) -> tuple[tuple[Recompute, int], ...]:
    """Recompute modes with their layers that a scenario allows, for one framework."""
    pairs = []
    for value in pinned:
        if isinstance(value, str):
            pairs.append(parse_recompute(value, framework=framework, where="axes.recompute"))
        else:
            assert isinstance(value, int), value
            pairs.append((Recompute(value), 0))
    return tuple(dict.fromkeys(pairs))


_AXIS_ENUMS: dict[str, type[IntEnum] | type[IntFlag]] = {
    "schedule": Schedule,
    "cp_comm": CpComm,
    "offload": Offload,
    "split": Split,
}


def _code(name: str, value: object) -> int:
    assert name in AXES, name
    if isinstance(value, str):
        return int(from_text(_AXIS_ENUMS[name], value, where=f"axes.{name}"))
    assert isinstance(value, int), value
    return int(value)
