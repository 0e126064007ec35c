"""Official recipes are legal by our rules, or the disagreement is known and explained.

Every recipe of Megatron-Bridge 0.6.2 whose model is a preset is judged with the real dimensions of
the model. What is refused would not start on the number of GPUs in its name: 15 recipes need
``etp * ep * pp`` more ranks than that (some say so themselves, "1024-GPU layout"), two ask for a
batch that their data-parallel degree does not divide, and two deal 92 and 46 layers to 8 and 4
stages without counting the ends (``recipes/glm/h100/glm45.py``). One takes rounds of 16
micro-batches for 13 stages, which no plan says.
"""

from collections import Counter

import pytest

from meshplan.space.rules import check_plan
from recipes import Recipe, read_recipes, stage_layers_of

EXPERTS_OUTNUMBER_RANKS = {
    "deepseek_v3_pretrain_64gpu_h100_bf16_config",
    "deepseek_v3_pretrain_64gpu_h100_fp8cs_config",
    "deepseek_v3_pretrain_128gpu_vr200_bf16_config",
    "deepseek_v3_pretrain_128gpu_vr200_fp8cs_config",
    "deepseek_v3_pretrain_128gpu_vr200_fp8mx_config",
    "deepseek_v3_pretrain_128gpu_vr200_nvfp4_config",
    "qwen3_235b_a22b_pretrain_64gpu_gb200_fp8cs_config",
    "qwen3_235b_a22b_pretrain_64gpu_gb200_fp8mx_config",
    "qwen3_235b_a22b_pretrain_64gpu_gb200_nvfp4_config",
    "qwen3_235b_a22b_pretrain_64gpu_gb200_nvfp4_full_iteration_config",
    "qwen3_235b_a22b_pretrain_64gpu_gb300_bf16_config",
    "qwen3_235b_a22b_pretrain_64gpu_gb300_fp8cs_config",
    "qwen3_235b_a22b_pretrain_64gpu_gb300_fp8mx_config",
    "qwen3_235b_a22b_pretrain_64gpu_gb300_nvfp4_config",
    "qwen3_235b_a22b_pretrain_64gpu_gb300_nvfp4_full_iteration_config",
}
BATCH_DOES_NOT_DIVIDE = {
    "nemotronh_56b_pretrain_256gpu_b200_bf16_config",
    "nemotronh_56b_pretrain_256gpu_gb300_bf16_config",
}
LAYERS_ARE_LEFT_OVER = {
    "glm45_355b_pretrain_128gpu_h100_bf16_config",
    "glm45_air_106b_pretrain_32gpu_h100_bf16_config",
}
EXPLAINED = {name: {"expert_grid_divides"} for name in EXPERTS_OUTNUMBER_RANKS} | {
    name: {"batch_divides"} for name in BATCH_DOES_NOT_DIVIDE
}
EXPLAINED |= {name: {"layers_are_dealt"} for name in LAYERS_ARE_LEFT_OVER}
LONGER_ROUNDS = {"glm52_pretrain_416gpu_h100_bf16_config"}
EXPLAINED |= {name: {"interleaving_fills_rounds"} for name in LONGER_ROUNDS}


@pytest.fixture(scope="module")
def recipes(shared) -> list[Recipe]:
    return list(read_recipes(shared))


def test_recipes_are_legal_or_explained(recipes):
    refused = {}
    for recipe in recipes:
        if recipe.plan is not None:
            codes = {v.code for v in check_plan(recipe.scenario, recipe.plan)}
            if codes:
                refused[recipe.name] = codes
    assert refused == EXPLAINED


def test_most_recipes_are_judged(recipes):
    left_out = Counter(recipe.reason for recipe in recipes if recipe.plan is None)
    print("recipes judged:", sum(recipe.plan is not None for recipe in recipes))
    print(*left_out.most_common(), sep="\n")
    assert sum(recipe.plan is not None for recipe in recipes) >= 0.8 * len(recipes)


@pytest.mark.parametrize(
    ("layout", "layers"),
    [
        ("Et|(tt|)*30mL", (1, *[2] * 30, 0)),
        ("Et*3|t*4|tL", (3, 4, 1)),
        ("[['embedding', 'decoder'], ['decoder', 'mtp', 'loss']]", (1, 1)),
        ("", ()),
    ],
)
def test_layouts_are_read(layout, layers):
    assert stage_layers_of(layout) == layers
