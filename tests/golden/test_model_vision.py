"""Vision towers, against the parameters of their classes in Transformers 5.24."""

from typing import Any

import pytest

from meshplan.cost.parameters import count_parameters
from meshplan.inputs.load.hf_config import model_from_config
from meshplan.inputs.load.hf_vision import vision_parameters
from meshplan.inputs.load.model_presets import load_preset

VIT = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_channels": 3}
QWEN = {"in_channels": 3, "spatial_merge_size": 2, "temporal_patch_size": 2}
TOWERS: list[tuple[dict[str, Any], int]] = [
    (
        {**VIT, "model_type": "siglip_vision_model", "image_size": 224, "patch_size": 16,
         "vision_use_head": True},
        92_884_224,
    ),
    ({**VIT, "model_type": "clip_vision_model", "image_size": 224, "patch_size": 32}, 87_456_000),
    (
        {"model_type": "pixtral", "hidden_size": 1024, "intermediate_size": 4096,
         "num_hidden_layers": 24, "num_channels": 3, "patch_size": 16},
        403_489_792,
    ),
    (
        {**QWEN, "model_type": "qwen3_vl", "depth": 27, "hidden_size": 1152, "patch_size": 16,
         "intermediate_size": 4304, "out_hidden_size": 3584, "num_position_embeddings": 2304,
         "deepstack_visual_indexes": [8, 16, 24]},
        566_949_104,
    ),
    (
        {**QWEN, "model_type": "qwen2_5_vl", "depth": 32, "hidden_size": 3584, "patch_size": 14,
         "intermediate_size": 3420, "out_hidden_size": 3584},
        3_083_025_152,
    ),
    (
        {**QWEN, "model_type": "qwen2_vl", "depth": 32, "embed_dim": 1280, "hidden_size": 3584,
         "mlp_ratio": 4, "patch_size": 14},
        675_759_104,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("section", "total"), TOWERS, ids=lambda v: str(v)[:40])
def test_tower(section: dict[str, Any], total: int) -> None:
    assert vision_parameters(section) == total


@pytest.mark.parametrize(("section", "total"), TOWERS, ids=lambda v: str(v)[:40])
def test_a_tower_with_a_size_missing_is_named_without_a_number(
    section: dict[str, Any], total: int
) -> None:
    for key in section:
        for value in (None, "12", -1, float("nan"), True):
            found = vision_parameters({**section, key: value})
            assert found is None or key == "vision_use_head"


def test_the_tower_stands_apart() -> None:
    config = {**load_preset("gemma-3-12b").config, "vision_config": TOWERS[0][0]}
    with_tower = count_parameters(model_from_config(config, name="x"))
    without = count_parameters(model_from_config(load_preset("gemma-3-12b").config, name="x"))
    assert with_tower.total == without.total
    assert with_tower.outside == 92_884_224
