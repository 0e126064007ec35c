"""Field cases about unusual architectures and configurations (kind j)."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from field_cases import expectations, field_cases, judge
from meshplan.cost.parameters import count_parameters
from meshplan.errors import UserError
from meshplan.inputs.load.hf_config import load_model, model_from_config
from meshplan.inputs.load.model_presets import load_preset
from meshplan.inputs.model import Attention, Model, Moe
from shared_data import find_shared

SHARED = find_shared()
pytestmark = pytest.mark.skipif(SHARED is None, reason="measured data is absent: ../shared")
DATA = (SHARED or Path()) / "data"
# J10 is about memory and stands with those cases.
ELSEWHERE = ("J10",)


def real(name: str) -> Model:
    return load_model(DATA / "hf_configs" / f"{name}.json")


def billions(model: Model) -> float:
    return count_parameters(model).total / 1e9


def attention(model: Model) -> Attention:
    mixer = model.layers[0].mixer
    assert isinstance(mixer, Attention)
    return mixer


def sizes_without_a_default() -> bool:
    """Whether a nested text decoder without its sizes is read with sizes from somewhere."""
    config = dict(load_preset("qwen3-8b").config)
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        inner = {k: v for k, v in config.items() if k != key}
        try:
            model_from_config({"model_type": "qwen3_vl", "text_config": inner}, name="x")
        except UserError as error:
            if not any(problem.where.endswith(key) for problem in error.problems):
                return True
        else:
            return True
    return False


def with_dense_width() -> float:
    """Qwen3-30B-A3B as an estimator reads it that takes the dense width for its experts."""
    model = real("qwen3-30b-a3b")
    layers = []
    for layer in model.layers:
        assert isinstance(layer.ffn, Moe)
        layers.append(replace(layer, ffn=replace(layer.ffn, expert_ffn_hidden=6144)))
    return billions(replace(model, layers=tuple(layers)))


def degrees_that_divide_the_heads(model: Model) -> list[int]:
    heads = attention(model).num_heads
    return [tp for tp in range(1, heads + 1) if heads % tp == 0]


def attention_width(model: Model) -> int:
    return attention(model).num_heads * attention(model).head_dim


ANSWERS: dict[tuple[str, str], Callable[[], Any]] = {
    ("J01", "silent_default_allowed"): sizes_without_a_default,
    ("J02", "params_b"): lambda: billions(real("mixtral-8x7b")),
    ("J05", "params_b"): lambda: billions(real("qwen3-30b-a3b")),
    ("J05", "wrong_params_b_if_dense_width"): with_dense_width,
    ("J06", "kv_heads_7b"): lambda: attention(real("falcon-7b")).num_kv_heads,
    ("J06", "kv_heads_40b"): lambda: attention(real("falcon-40b")).num_kv_heads,
    ("J06", "params_7b_b_tied"): lambda: billions(real("falcon-7b")),
    ("J06", "params_7b_b_with_head"): lambda: billions(
        replace(real("falcon-7b"), tied_embeddings=False)
    ),
    ("J06", "legal_tp_7b"): lambda: degrees_that_divide_the_heads(real("falcon-7b")),
    ("J08", "blocks_total"): lambda: real("nemotron-h-56b").num_layers,
    ("J11", "attention_width"): lambda: attention_width(real("qwen3-32b")),
    ("J11", "params_b"): lambda: billions(real("qwen3-32b")),
    ("J12", "gemma_2b_params_b"): lambda: billions(real("gemma-2b")),
    ("J12", "gemma2_27b_params_b"): lambda: billions(real("gemma2-27b")),
    ("J12", "aya_8b_params_b"): lambda: billions(load_model("aya-23-8b")),
    ("J12", "starcoder2_7b_params_b"): lambda: billions(real("starcoder2")),
    ("J12", "olmo2_7b_params_b"): lambda: billions(real("olmo2-7b")),
}
CASES = field_cases("j", but=ELSEWHERE)
EXPECTED = expectations(CASES)


@pytest.mark.parametrize(("case", "expect"), EXPECTED)
def test_expected_value(case: str, expect: dict[str, Any]) -> None:
    judge(case, expect, ANSWERS)


def test_answers_belong_to_cases() -> None:
    wanted = {(name, e["metric"]) for name, case in CASES.items() for e in case["expect"]}
    assert set(ANSWERS) <= wanted
