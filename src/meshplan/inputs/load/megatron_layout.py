"""Pipeline layouts in Megatron-LM's notation: ``Et*3|t*4|...|t*5mL`` or ``Et|(tt|)*30mL``."""

from __future__ import annotations

import re

__all__ = ["read_layout"]

_MOST = 100_000


def read_layout(text: str) -> tuple[int, ...]:
    """Layers of each virtual stage; empty when the text is no layout.

    References:
        1. ``megatron/core/transformer/pipeline_parallel_layer_layout.py`` of megatron-core 0.19.2.
    """
    spelled = text.replace(" ", "").replace(",", "")
    for pattern in (r"\(([^()]*)\)\*(\d{1,6})", r"([Etm L])\*(\d{1,6})".replace(" ", "")):
        sizes = sum(len(m[1]) * int(m[2]) for m in re.finditer(pattern, spelled))
        if sizes > _MOST:
            return ()
        spelled = re.sub(pattern, lambda m: m[1] * int(m[2]), spelled)
    if not re.fullmatch(r"E[t|mL]*L", spelled):
        return ()
    return tuple(part.count("t") for part in spelled.split("|"))
