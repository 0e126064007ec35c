"""DeepSeek-V4: keys that are values, compressed keys, several residual streams."""

from __future__ import annotations

from dataclasses import replace

from meshplan.inputs.load.hf_families_dense import transformers
from meshplan.inputs.load.hf_family import Family, Flag, MoeFacts
from meshplan.inputs.load.hf_ffn import read_moes
from meshplan.inputs.load.hf_keys import Keys
from meshplan.inputs.load.hf_moe_layers import all_layers
from meshplan.inputs.model import Attention, Layer, Model

__all__ = ["DEEPSEEK4"]

_HEAVY, _SPARSE, _LOCAL = (
    "heavily_compressed_attention",
    "compressed_sparse_attention",
    "sliding_attention",
)


def _kinds(keys: Keys, num_layers: int) -> list[str]:
    types = keys.names_list("layer_types", num_layers)
    if types is not None:
        unknown = sorted(set(types) - {_HEAVY, _SPARSE, _LOCAL})
        if unknown:
            keys.problem(
                "model_layer_type_unknown",
                "layer_types",
                value=unknown[0],
                allowed=(_HEAVY, _SPARSE, _LOCAL),
            )
        return types
    ratios = keys.raw("compress_ratios")
    if not isinstance(ratios, list):
        keys.missing("layer_types")
        return [_HEAVY] * num_layers
    ratios = ratios[:num_layers]  # the file may go on with the ratios of MTP blocks
    rates = keys.per_layer("compress_ratios", ratios, num_layers, zero=True)
    return [_LOCAL if r == 0 else _SPARSE if r <= 16 else _HEAVY for r in rates]


def _rate(keys: Keys, kind: str, default: int) -> int:
    if keys.has("compress_rates"):
        return keys.section("compress_rates").size(kind)
    return default


def _blocks(keys: Keys, family: Family) -> list[Layer]:
    num_layers, hidden = keys.size("num_hidden_layers"), keys.size("hidden_size")
    head_dim, rank = keys.size("head_dim"), keys.size("q_lora_rank")
    mixer = Attention(
        num_heads=keys.size("num_attention_heads"),
        num_kv_heads=keys.size("num_key_value_heads"),
        head_dim=head_dim,
        v_head_dim=head_dim,
        window_size=keys.size("sliding_window"),
        qkv_bias=False,
        out_bias=False,
        qk_norm="none",
        sinks=True,
        rotary=True,
        q_lora_rank=rank,
        values_are_keys=True,
        out_lora_rank=keys.size("o_lora_rank"),
        out_groups=keys.size("o_groups"),
    )
    assert family.moe is not None
    moe = read_moes(keys, family.moe, 1)[0]
    extra = _compressors(keys, hidden, head_dim, rank)
    streams = keys.size("hc_mult")
    mix = (2 + streams) * streams
    mixing = 2 * (mix * streams * hidden + mix + 3)
    # beside its window a token sees the compressed keys that the indexer picks
    picked = keys.size_or_none("index_topk")
    if picked is None:
        keys.note("model_unstated", "index_topk")
    picking = replace(mixer, window_size=keys.size("sliding_window") + (picked or 0))
    made = {
        kind: Layer(
            mixer=picking if kind == _SPARSE else mixer,
            ffn=moe,
            num_norms=2,
            extra_parameters=head_dim + mixing + compressor,
        )
        for kind, compressor in extra.items()
    }
    keys.note("model_attention_compressed", str(mixer.window_size))
    return [made.get(kind, made[_HEAVY]) for kind in _kinds(keys, num_layers)]


def _compressors(keys: Keys, hidden: int, head_dim: int, rank: int) -> dict[str, int]:
    """Weights that compress keys, and that pick among them, by kind of layer."""
    heads, width = keys.size("index_n_heads"), keys.size("index_head_dim")

    def compress(rate: int, wide: int, norm: int) -> int:
        return rate * wide + 2 * wide * hidden + norm

    sparse_rate = _rate(keys, _SPARSE, 4)
    indexer = compress(sparse_rate, 2 * width, width) + heads * width * rank + heads * hidden
    return {
        _HEAVY: compress(_rate(keys, _HEAVY, 128), head_dim, head_dim),
        _SPARSE: compress(sparse_rate, 2 * head_dim, head_dim) + indexer,
        _LOCAL: 0,
    }


def _streams(keys: Keys, family: Family, model: Model) -> Model:
    """What joins the residual streams before the head."""
    streams = keys.size("hc_mult")
    join = streams * streams * model.hidden + streams + 1
    if keys.size_or_none("num_nextn_predict_layers", zero=True):
        keys.note("model_left_out", "num_nextn_predict_layers")
    return replace(model, extra_parameters={**model.extra_parameters, "stream_join": join})


DEEPSEEK4: dict[str, Family] = {
    "deepseek_v4": Family(
        source=transformers("deepseek_v4"),
        moe=MoeFacts(layers=all_layers, shared="count", shared_bias=Flag("mlp_bias", False)),
        blocks=_blocks,
        finish=_streams,
    ),
}
