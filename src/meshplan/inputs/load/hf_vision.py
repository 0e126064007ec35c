"""How many parameters the vision tower beside a text decoder has.

It is outside all that is planned; the number is stated apart. A tower of another kind, or one whose
section leaves a size open, is named without a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["vision_parameters"]

Section = Mapping[str, Any]


def vision_parameters(section: Section) -> int | None:
    """Parameters of a vision tower with what joins it to the text, where both are known.

    Formulas follow the classes in Hugging Face Transformers 5.24 (``models/siglip``, ``clip``,
    ``pixtral``, ``qwen2_vl``, ``qwen2_5_vl``, ``qwen3_vl``), without the projectors of SigLIP,
    CLIP and Pixtral, which belong to the composite model.

    Args:
        section: ``vision_config`` of the configuration.

    Returns:
        The count; None where the kind is unknown or a size is missing.
    """
    kind = section.get("model_type")
    count = _TOWERS.get(kind) if isinstance(kind, str) else None
    if count is None:
        return None
    try:
        return count(section)
    except (KeyError, TypeError):
        return None


def _size(section: Section, *names: str) -> int:
    for name in names:
        value = section.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    raise KeyError(names[0])


def _flag(section: Section, name: str) -> bool:
    value = section[name]
    if not isinstance(value, bool):
        raise TypeError(name)
    return value


def _blocks(h: int, f: int, layers: int) -> int:
    """Transformer blocks with biases and two LayerNorms each."""
    return layers * (4 * h * h + 4 * h + 2 * h * f + f + h + 4 * h)


def _sizes(section: Section) -> tuple[int, int, int, int]:
    """Width, inner width, depth, and elements of one patch."""
    patch = _size(section, "patch_size")
    channels = _size(section, "num_channels", "in_channels", "in_chans")
    return (
        _size(section, "hidden_size", "embed_dim"),
        _size(section, "intermediate_size"),
        _size(section, "num_hidden_layers", "depth"),
        channels * patch * patch,
    )


def _num_patches(section: Section) -> int:
    return (_size(section, "image_size") // _size(section, "patch_size")) ** 2


def _siglip(section: Section) -> int:
    h, f, layers, patch = _sizes(section)
    total = h * patch + h + _num_patches(section) * h + _blocks(h, f, layers) + 2 * h
    if _flag(section, "vision_use_head"):
        total += h + 4 * h * h + 4 * h + 2 * h + 2 * h * f + f + h
    return total


def _clip(section: Section) -> int:
    h, f, layers, patch = _sizes(section)
    return h + h * patch + (_num_patches(section) + 1) * h + _blocks(h, f, layers) + 4 * h


def _pixtral(section: Section) -> int:
    h, f, layers, patch = _sizes(section)
    return h * patch + h + layers * (4 * h * h + 3 * h * f + 2 * h)


def _merger(h: int, out: int, merge: int, norm: int) -> int:
    wide = h * merge * merge
    return norm + wide * wide + wide + wide * out + out


def _qwen2_vl(section: Section) -> int:
    h, out = _size(section, "embed_dim"), _size(section, "hidden_size")
    ratio = _size(section, "mlp_ratio")
    patch = _size(section, "patch_size") ** 2 * _size(section, "temporal_patch_size")
    patch *= _size(section, "in_channels", "in_chans")
    merge = _size(section, "spatial_merge_size")
    blocks = _blocks(h, ratio * h, _size(section, "depth"))
    return h * patch + blocks + _merger(h, out, merge, 2 * h)


def _qwen2_5_vl(section: Section) -> int:
    h, f, layers, patch = _sizes(section)
    patch *= _size(section, "temporal_patch_size")
    merge, out = _size(section, "spatial_merge_size"), _size(section, "out_hidden_size")
    block = 4 * h * h + 4 * h + 3 * h * f + 2 * f + h + 2 * h
    return h * patch + layers * block + _merger(h, out, merge, h)


def _qwen3_vl(section: Section) -> int:
    h, f, layers, patch = _sizes(section)
    patch *= _size(section, "temporal_patch_size")
    merge, out = _size(section, "spatial_merge_size"), _size(section, "out_hidden_size")
    deep = section["deepstack_visual_indexes"]
    if not isinstance(deep, list):
        raise TypeError("deepstack_visual_indexes")
    positions = _size(section, "num_position_embeddings") * h
    mergers = _merger(h, out, merge, 2 * h)
    mergers += len(deep) * _merger(h, out, merge, 2 * h * merge * merge)
    return h * patch + h + positions + _blocks(h, f, layers) + mergers


_TOWERS: dict[str, Callable[[Section], int]] = {
    "siglip_vision_model": _siglip,
    "clip_vision_model": _clip,
    "pixtral": _pixtral,
    "qwen2_vl": _qwen2_vl,
    "qwen2_vl_vision": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen2_5_vl_vision": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
    "qwen3_vl_vision": _qwen3_vl,
    "qwen3_vl_moe": _qwen3_vl,
    "qwen3_vl_moe_vision": _qwen3_vl,
}
