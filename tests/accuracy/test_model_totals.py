"""Every real configuration of the shared folder: its known total, or the key that it lacks."""

import json
from pathlib import Path
from typing import Any

import pytest

from meshplan.cost.parameters import count_parameters
from meshplan.errors import UserError
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.model import (
    Attention,
    CrossAttention,
    LatentAttention,
    Mlp,
    Model,
    Moe,
    StateSpace,
)
from shared_data import find_shared

SHARED = find_shared()
FOLDER = (SHARED or Path()) / "data" / "hf_configs"
INDEX: dict[str, Any] = (
    {entry["file"]: entry for entry in json.loads((FOLDER / "_INDEX.json").read_text())}
    if SHARED
    else {}
)
pytestmark = pytest.mark.skipif(SHARED is None, reason="measured data is absent: ../shared")

TOLERANCE = {"grok-1-nonhf.json": 0.006}  # its authors round 315.7 to 314

# Files that lack a key, or are no decoder, and what the error must name.
REFUSED = {
    "bloom-176b.json": ("model_key_missing", "hidden_size"),
    "falcon-rw-1b.json": ("model_key_missing", "multi_query"),
    "falcon-180b-partial.json": ("model_key_missing", "vocab_size"),
    "t5-small.json": ("model_encoder_decoder", "model_type"),
}


def load(file: str) -> Model:
    return load_model(FOLDER / file)


@pytest.mark.parametrize("file", sorted(INDEX))
def test_total(file: str) -> None:
    if file in REFUSED:
        code, key = REFUSED[file]
        with pytest.raises(UserError) as caught:
            load(file)
        assert (code, True) in [(p.code, p.where.endswith(key)) for p in caught.value.problems]
        return
    total = count_parameters(load(file)).total
    assert total > 0
    known = INDEX[file]["known_total_params_b"]
    if known is not None:
        assert total / 1e9 == pytest.approx(known, rel=TOLERANCE.get(file, 0.005))


def test_only_what_lacks_a_key_is_refused() -> None:
    with_total = [f for f, e in INDEX.items() if e["known_total_params_b"] is not None]
    assert len(INDEX) >= 71
    assert set(REFUSED) <= set(INDEX)
    # One file has a known total and lacks a key that sizes it: the hidden width.
    assert set(REFUSED) & set(with_total) == {"bloom-176b.json"}


def notes(model: Model) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for code, value in model.notes:
        found.setdefault(code, []).append(value)
    return found


def attention(model: Model, layer: int = 0) -> Attention:
    mixer = model.layers[layer].mixer
    assert isinstance(mixer, Attention)
    return mixer


def test_nested_text_config_is_the_text_and_the_rest_is_stated() -> None:
    model = load("gemma3-27b.json")
    assert (model.hidden, model.num_layers) == (5376, 62)
    assert notes(model)["model_nested"] == ["text_config"]
    assert notes(model)["model_left_out"] == ["vision_config"]


@pytest.mark.parametrize(
    ("file", "tied"),
    [
        ("gemma-2b.json", True),
        ("gpt2.json", True),
        ("falcon-7b.json", True),
        ("mpt-7b.json", True),
        ("starcoder2.json", True),
        ("bloom-7b1.json", True),
        ("gpt-neox-20b.json", False),
        ("llama4-scout.json", False),
        ("dbrx.json", False),
    ],
)
def test_tie_follows_the_family_where_the_file_is_silent(file: str, tied: bool) -> None:
    model = load(file)
    assert model.tied_embeddings is tied
    raw = json.loads((FOLDER / file).read_text())
    if "tie_word_embeddings" not in raw:
        assert any("tie_word_embeddings" in value for value in notes(model)["model_default"])


def test_flags_of_falcon_decide_key_value_heads() -> None:
    seven = load("falcon-7b.json")
    assert attention(seven).num_kv_heads == 1
    assert notes(seven)["model_ignored"] == ["num_kv_heads = 71 -> 1"]
    assert attention(load("falcon-40b.json")).num_kv_heads == 8


def test_latent_attention_and_dense_first() -> None:
    model = load("deepseek-v3.json")
    assert all(isinstance(layer.mixer, LatentAttention) for layer in model.layers)
    assert [isinstance(layer.ffn, Moe) for layer in model.layers[:4]] == [False] * 3 + [True]
    assert len(model.mtp_layers) == 1
    parameters = count_parameters(model)
    assert parameters.mtp / 1e9 == pytest.approx(11.5, rel=0.02)  # shares embedding and head
    assert parameters.active / 1e9 == pytest.approx(37.5, rel=0.01)


def test_hybrid_pattern_counts_single_mixer_blocks() -> None:
    model = load("nemotron-h-56b.json")
    kinds = [type(layer.mixer or layer.ffn) for layer in model.layers]
    assert model.num_layers == 118
    assert (kinds.count(StateSpace), kinds.count(Mlp), kinds.count(Attention)) == (54, 54, 10)


def test_jamba_mixes_by_period() -> None:
    model = load("jamba-testcut.json")
    assert [isinstance(layer.mixer, Attention) for layer in model.layers] == [
        False,
        False,
        True,
        False,
    ]
    assert [isinstance(layer.ffn, Moe) for layer in model.layers] == [False, True, False, True]


def test_cross_attention_layers() -> None:
    model = load("mllama-testcut.json")
    crossed = [i for i, b in enumerate(model.layers) if isinstance(b.mixer, CrossAttention)]
    assert crossed == [3, 8, 13, 18, 23, 28, 33, 38]


def test_doubled_width_of_qwen1() -> None:
    ffn = load("qwen1.json").layers[0].ffn
    assert isinstance(ffn, Mlp) and ffn.ffn_hidden == 5504


def test_experts_take_their_own_width() -> None:
    model = load("qwen3-30b-a3b.json")
    assert all(
        isinstance(layer.ffn, Moe) and layer.ffn.expert_ffn_hidden == 768 for layer in model.layers
    )


def test_shared_expert_and_interleaving_of_llama4() -> None:
    ffn = load("llama4-scout.json").layers[0].ffn
    assert isinstance(ffn, Moe)
    assert (ffn.num_experts, ffn.top_k, ffn.shared_ffn_hidden) == (16, 1, 8192)


def test_windows_by_layer() -> None:
    oss = load("gpt-oss-20b.json")
    assert [attention(oss, i).window_size for i in range(4)] == [128, None, 128, None]
    assert attention(oss).sinks
    gemma = load("gemma3-27b.json")
    assert [attention(gemma, i).window_size for i in range(6)] == [1024] * 5 + [None]
    assert attention(load("mistral-7b.json")).window_size == 4096
    assert attention(load("qwen2-7b.json")).window_size is None


def test_head_width_need_not_be_hidden_over_heads() -> None:
    mixer = attention(load("qwen3-32b.json"))
    assert mixer.num_heads * mixer.head_dim == 8192
    assert attention(load("glm-4.5-air.json")).head_dim == 128


def test_parallel_blocks_learned_positions_and_biases() -> None:
    assert load("gpt-j-6b.json").layers[0].num_norms == 1
    assert load("gpt2.json").num_positions == 1024
    assert load("opt-1.3b.json").num_positions == 2050
    assert attention(load("qwen2-7b.json")).qkv_bias
    assert not attention(load("qwen2-7b.json")).out_bias
    assert load("phi-2.json").head_bias


def test_a_type_that_nobody_states_is_read_as_a_plain_decoder_and_said_so() -> None:
    model = load("qwen3-14b.json")
    assert notes(model)["model_generic"] == ["generic"]
