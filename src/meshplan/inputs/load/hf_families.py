"""All families, and how a configuration names its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshplan.errors import UserError
from meshplan.inputs.load.hf_families_blocks import BLOCKS
from meshplan.inputs.load.hf_families_deepseek4 import DEEPSEEK4
from meshplan.inputs.load.hf_families_dense import DENSE
from meshplan.inputs.load.hf_families_gemma import GEMMA
from meshplan.inputs.load.hf_families_hybrid import HYBRID
from meshplan.inputs.load.hf_families_moe import MOE
from meshplan.inputs.load.hf_families_more import MORE
from meshplan.inputs.load.hf_families_mosaic import MOSAIC
from meshplan.inputs.load.hf_families_own import OWN
from meshplan.inputs.load.hf_family import AttentionFacts, Family, Flag, MlpFacts

__all__ = ["FAMILIES", "GENERIC", "family_of"]

FAMILIES: dict[str, Family] = {
    **DENSE,
    **MOE,
    **HYBRID,
    **MORE,
    **OWN,
    **MOSAIC,
    **BLOCKS,
    **GEMMA,
    **DEEPSEEK4,
}

GENERIC = Family(
    source="what most decoders have: RMSNorm, two norms a block, rotary positions",
    tied=None,
    attention=AttentionFacts(
        qkv_bias=Flag("attention_bias", False), out_bias=Flag("attention_bias", False)
    ),
    mlp=MlpFacts(gated=None, bias=Flag("mlp_bias", False)),
)


def family_of(config: Mapping[str, Any], *, where: str) -> tuple[str, Family]:
    """Name a configuration's family: by ``model_type``, else by ``architectures``."""
    name = config.get("model_type")
    if name is not None and not isinstance(name, str):
        raise UserError.of(
            "model_key_type", where=f"{where}: model_type", value=name, expected="string"
        )
    if name in FAMILIES:
        return name, FAMILIES[name]
    return name or "", GENERIC
