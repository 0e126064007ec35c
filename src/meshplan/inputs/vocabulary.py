"""The words by which people name the choices of a plan.

Canonical names, the other spellings that are understood, and the shape of each axis that a
scenario may pin. The enums of ``meshplan.space`` map one to one onto these names
(``meshplan.space.names``); this module knows no enum, so that a scenario can be read and checked
without the space of plans.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from meshplan.errors import UserError
from meshplan.record import record

__all__ = [
    "AXES",
    "CP_COMMS",
    "FRAMEWORKS",
    "OFFLOADS",
    "RECOMPUTES",
    "SCHEDULES",
    "SPLITS",
    "Axis",
    "canonical",
    "nearest",
    "shown",
    "squeeze",
    "unknown",
]

# Canonical name -> other spellings. Case, blanks, "-", "_" and "." never matter.
FRAMEWORKS: Mapping[str, tuple[str, ...]] = {
    "megatron": ("megatron-lm", "megatron-core", "mcore", "nemo", "megatron-bridge"),
    "torchtitan": ("titan",),
    "deepspeed": ("megatron-deepspeed",),
    "accelerate": ("fsdp", "fsdp2", "pytorch-fsdp", "huggingface", "trainer"),
    "nanotron": (),
}

SCHEDULES: Mapping[str, tuple[str, ...]] = {
    "gpipe": ("afab", "all-forward-all-backward"),
    "1f1b": ("one-f-one-b", "pipedream-flush"),
    "interleaved": ("interleaved-1f1b", "1f1b-interleaved", "1f1b-i", "vpp"),
    "zb-h1": (),
    "zb-1p": (),
    "zb-2p": ("zb-h2",),
    "zbv": ("zb-v", "zbv-zero-bubble"),
    "dualpipe-v": (),
    "interleaved-zb": ("interleaved-zero-bubble",),
}

CP_COMMS: Mapping[str, tuple[str, ...]] = {
    "p2p": ("ring",),
    "all-gather": ("ag",),
    "all-to-all": ("a2a", "ulysses"),
}

RECOMPUTES: Mapping[str, tuple[str, ...]] = {
    "none": ("off", "no"),
    "core_attention": ("core-attn", "attention", "attn"),
    "norm": ("layernorm", "rmsnorm"),
    "mlp_activation": ("moe-act", "mlp-act", "activation"),
    "mlp": (),
    "moe": (),
    "mla_up_projection": ("mla-up-proj",),
    "shared_experts": (),
    "selective_op": ("per-op",),
    "full": (),
}

OFFLOADS: Mapping[str, tuple[str, ...]] = {
    "none": ("off", "no"),
    "optimizer": ("optim", "optimizer-state"),
    "parameters": ("params", "weights"),
}

SPLITS: Mapping[str, tuple[str, ...]] = {"even": (), "balanced": (), "by_cost": ()}


_LONGEST_NAME = 80


@record
class Axis:
    """What a scenario may pin one plan field to.

    Attributes:
        kind: ``count`` (a whole number), ``flag`` (true or false), ``name`` (one of ``names``)
            or ``flags`` (names joined by ``+``).
        minimum: smallest count.
        maximum: largest count, None when only the cluster limits it.
        names: canonical names and their other spellings.
        suffix: a name may carry a count, as in ``full:4``.
        extra: further names that stand for several, as ``selective``.
    """

    kind: Literal["count", "flag", "name", "flags"]
    minimum: int = 1
    maximum: int | None = None
    names: Mapping[str, tuple[str, ...]] | None = None
    suffix: bool = False
    extra: tuple[str, ...] = ()


_COUNT = Axis(kind="count")

AXES: Mapping[str, Axis] = {
    "tp": _COUNT,
    "sp": Axis(kind="flag"),
    "pp": _COUNT,
    "vpp": _COUNT,
    "schedule": Axis(kind="name", names=SCHEDULES),
    "cp": _COUNT,
    "cp_comm": Axis(kind="name", names=CP_COMMS),
    "ep": _COUNT,
    "etp": _COUNT,
    "dp": _COUNT,
    "dp_shard": _COUNT,
    "dp_replicate": _COUNT,
    "zero": Axis(kind="count", minimum=0, maximum=3),
    "micro_batch": _COUNT,
    "num_micro_batches": _COUNT,
    "recompute": Axis(kind="flags", names=RECOMPUTES, suffix=True, extra=("selective",)),
    "offload": Axis(kind="flags", names=OFFLOADS),
    "offload_layers": Axis(kind="count", minimum=0),
    "split": Axis(kind="name", names=SPLITS),
}


def squeeze(text: str) -> str:
    """Lower-case a name and drop blanks, ``-``, ``_`` and ``.``: how names are compared."""
    return "".join(c for c in text.lower() if c not in " -_.\t")


def canonical(names: Mapping[str, tuple[str, ...]], text: str) -> str | None:
    """Return the canonical name for any accepted spelling, None when there is none."""
    wanted = squeeze(text)
    for name, spellings in names.items():
        if wanted == squeeze(name) or any(wanted == squeeze(s) for s in spellings):
            return name
    return None


def nearest(text: str, names: Iterable[str], *, num: int = 3) -> tuple[str, ...]:
    """Names that look like the text, best first; empty when none comes close."""
    if len(text) > _LONGEST_NAME:
        return ()
    by_key = {squeeze(name): name for name in names}
    keys = difflib.get_close_matches(squeeze(text), list(by_key), n=num, cutoff=0.5)
    return tuple(by_key[key] for key in keys)


def unknown(
    code: str, *, where: str, value: object, names: Iterable[str], near_to: Iterable[str] = ()
) -> UserError:
    """Make the error for a name that does not exist.

    Its code is ``code`` with ``nearest`` filled where some names come close, and
    ``<code>_far`` where none does.

    Args:
        code: such as ``unknown_device``.
        where: the place.
        value: what stands there.
        names: what could stand there.
        near_to: where to look for close names, ``names`` by default.
    """
    allowed = tuple(names)
    text = value if isinstance(value, str) else shown(value)
    near = nearest(text, near_to or allowed)
    return UserError.of(
        code if near else f"{code}_far",
        where=where,
        value=shown(value),
        allowed=allowed,
        nearest=", ".join(near),
    )


def shown(value: Any) -> str:
    """A value as a sentence quotes it: short, and never too large to print."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 256:
        return f"{'-' if value < 0 else ''}1e{int(value.bit_length() * math.log10(2))}"
    try:
        text = str(value)
    except ValueError:  # a list of numbers of thousands of digits
        text = f"{type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
