"""Hybrid models of Megatron-LM, whose layers and stages are one pattern of letters.

References:
    1. ``megatron/core/models/hybrid/hybrid_layer_allocation.py`` of megatron-core 0.19.2, and
       ``megatron/core/transformer/transformer_config.py`` for what is taken where nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from meshplan.check.records import Setting
from meshplan.emit.megatron_hybrid import letters_of
from meshplan.errors import UserError
from meshplan.inputs.model import Ffn, Layer, LinearAttention, Mixer, Model, StateSpace

__all__ = ["blocks_of", "read_pattern", "stages_of"]

_LETTERS = frozenset("MG*+-E")
_PAIRS = r"(?:[MG*+][-E])*"
_MOST = 100_000


def read_pattern(text: str, *, where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Letters of each virtual stage, and of each block that predicts further tokens.

    Raises:
        UserError: for letters that stand for no layer that is known here.
    """
    main, *further = text.split("/")
    stages = tuple(main.split("|"))
    unknown = set("".join((*stages, *further))) - _LETTERS
    if unknown or not main or len(text) > _MOST:
        raise UserError.of(
            "check_bad_pattern",
            where=where,
            value=text[:80],
            unknown=" ".join(sorted(unknown)) or "-",
            allowed=tuple(sorted(_LETTERS)),
        )
    return stages, tuple(part for part in further if part)


def blocks_of(
    parts: Sequence[str],
    given: Mapping[str, Any],
    *,
    attention: Mixer,
    dense: Ffn,
    routed: Ffn | None,
) -> tuple[Layer, ...]:
    """Blocks of letters: a mixer with its network where all come in pairs, else one for each.

    Args:
        parts: letters, cut where a stage ends.
        given: what options say about the mixers.
        attention: the mixer of a star.
        dense: the network of a dash.
        routed: the network of an ``E``.
    """
    paired = all(re.fullmatch(_PAIRS, part) for part in parts)
    texts = [part[i : i + 1 + paired] for part in parts for i in range(0, len(part), 1 + paired)]
    made: dict[str, Layer] = {}
    for text in dict.fromkeys(texts):
        mixer: Mixer | None = None
        ffn: Ffn | None = None
        for letter in text:
            own, network = _part(letter, given, attention=attention, dense=dense, routed=routed)
            mixer, ffn = mixer or own, ffn or network
        made[text] = Layer(mixer=mixer, ffn=ffn, num_norms=len(text))
    return tuple(made[text] for text in texts)


def _part(
    letter: str, given: Mapping[str, Any], *, attention: Mixer, dense: Ffn, routed: Ffn | None
) -> tuple[Mixer | None, Ffn | None]:
    if letter == "-":
        return None, dense
    if letter == "E":
        return None, routed or dense
    if letter == "M":
        return _state_space(given), None
    if letter == "G":
        return _linear(given), None
    return attention, None


def _state_space(given: Mapping[str, Any]) -> StateSpace:
    width = int(given.get("state_head_dim", 64))
    # twice the hidden width, in heads
    heads = int(given.get("state_heads") or 2 * int(given["hidden"]) // width)
    return StateSpace(
        version=2,
        inner_dim=heads * width,
        state_dim=int(given.get("state_dim", 128)),
        num_heads=heads,
        num_groups=int(given.get("state_groups", 8)),
        conv_kernel=4,
        dt_rank=0,
        chunk_size=128,
        conv_bias=True,
        proj_bias=False,
        inner_norms=heads * width,
    )


def _linear(given: Mapping[str, Any]) -> LinearAttention:
    return LinearAttention(
        num_key_heads=int(given.get("linear_key_heads", 16)),
        num_value_heads=int(given.get("linear_value_heads", 32)),
        key_head_dim=int(given.get("linear_key_dim", 128)),
        value_head_dim=int(given.get("linear_value_dim", 128)),
        conv_kernel=int(given.get("linear_kernel", 4)),
        rule="gated_delta",
    )


def stages_of(setting: Setting, model: Model) -> tuple[int, ...]:
    """Blocks of each virtual stage of a pattern.

    Raises:
        UserError: where the letters are not those of the model.
    """
    stages, _ = read_pattern(str(setting.value), where=setting.where)
    layers = iter(model.layers)
    counts = []
    for stage in stages:
        left, count = stage, 0
        while left:
            block = next(islice(layers, 1), None)
            letters = "" if block is None else letters_of(block)
            if not letters or not left.startswith(letters):
                raise UserError.of(
                    "check_other_pattern",
                    where=setting.where,
                    value=str(setting.value)[:80],
                    model=model.name,
                    pattern="".join(letters_of(layer) for layer in model.layers)[:160],
                )
            left, count = left[len(letters) :], count + 1
        counts.append(count)
    return tuple(counts)
