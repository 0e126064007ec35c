"""Flags of Megatron-LM that describe the model.

References:
    1. ``megatron/training/arguments.py`` and ``megatron/core/transformer/transformer_config.py``
       of megatron-core 0.19.2, whose fields are flags of the same name.
"""

from __future__ import annotations

from dataclasses import replace

from meshplan.emit.megatron_hybrid import (
    hybrid_obstacles,
    is_hybrid,
    mixer_flags,
    unused_attention_flags,
)
from meshplan.emit.records import Flag, Obstacle, once
from meshplan.inputs.model import Attention, LatentAttention, Layer, Mlp, Model, Moe

__all__ = ["model_flags", "model_obstacles"]

_ACTIVATIONS: dict[tuple[bool, str], str | None] = {
    (True, "silu"): "--swiglu",
    (True, "swish"): "--swiglu",
    (True, "swiglu"): "--swiglu",
    (False, "relu2"): "--squared-relu",
    (False, "squared-relu"): "--squared-relu",
    (False, "gelu"): None,
    (False, "gelu_new"): None,
    (False, "gelu_fast"): None,
    (False, "gelu_pytorch_tanh"): None,
}
# The gate of gpt-oss: x * sigmoid(1.702 x), clamped, times the other branch plus one.
_CLAMPED: tuple[Flag, ...] = (
    ("--quick-geglu",),
    ("--glu-linear-offset", "1.0"),
    ("--activation-func-clamp-value", "7.0"),
)


def model_obstacles(model: Model) -> tuple[Obstacle, ...]:
    """What of the architecture neither GPTModel nor HybridModel has flags for."""
    hybrid = is_hybrid(model)
    found: list[Obstacle] = [*hybrid_obstacles(model)] if hybrid else []
    kinds = model.layer_kinds
    if not hybrid and any(layer.second_mixer for layer in kinds):
        found.append(Obstacle(code="mixer", model=True))
    windows = {window for window in _windows(model) if window is not None}
    if len(windows) > 1 or (hybrid and windows):
        found.append(Obstacle(code="mixed_attention", model=True))
    if not hybrid and len({_without_window(layer) for layer in kinds}) > 1:
        found.append(Obstacle(code="mixed_attention", model=True))
    for layer in model.layer_kinds:
        ffn = layer.ffn
        numbers: dict[str, object]
        if ffn is not None and (ffn.gated, ffn.activation) not in _ACTIVATIONS:
            numbers = {"activation": ffn.activation}
            found.append(Obstacle(code="activation", numbers=numbers, model=True))
        found += _attention_obstacles(layer)
        if layer.parallel:
            found.append(Obstacle(code="parallel_block", model=True))
        elif not hybrid and layer.num_norms != 2:
            numbers = {"num_norms": layer.num_norms}
            found.append(Obstacle(code="norms", numbers=numbers, model=True))
    if model.embedding_norm or model.embedding_dim != model.hidden or model.head_bias:
        found.append(Obstacle(code="embedding", model=True))
    if not hybrid and not model.num_positions and not any(map(_is_rotary, model.layers)):
        # ALiBi adds no weights, and no flag adds it
        found.append(Obstacle(code="no_positions", model=True))
    return once(found)


def _attention_obstacles(layer: Layer) -> list[Obstacle]:
    mixer, ffn = layer.mixer, layer.ffn
    if not isinstance(mixer, Attention):
        return []
    found: list[Obstacle] = []
    if mixer.qk_norm == "full":
        found.append(Obstacle(code="qk_norm_full", model=True))
    biased = ffn is not None and ffn.bias
    if mixer.out_bias is not biased or (biased and not mixer.qkv_bias):
        # one flag turns the biases of attention and network off
        found.append(Obstacle(code="some_biases", model=True))
    return found


def _is_rotary(layer: Layer) -> bool:
    mixer = layer.mixer
    return isinstance(mixer, LatentAttention) or (isinstance(mixer, Attention) and mixer.rotary)


def _without_window(layer: Layer) -> object:
    mixer = layer.mixer
    if isinstance(mixer, Attention):
        return replace(mixer, window_size=None)
    return mixer


def model_flags(model: Model) -> list[Flag]:
    """Flags of the architecture, in the order in which Megatron-LM documents them."""
    hybrid = is_hybrid(model)
    # the layers of a hybrid are letters, which the stages of the plan divide
    count: list[Flag] = [] if hybrid else [("--num-layers", str(model.num_layers))]
    flags: list[Flag] = [
        *count,
        ("--hidden-size", str(model.hidden)),
        *_attention_flags(_attention(model), model),
        *_window_flags(model),
        *(mixer_flags(model) if hybrid else ()),
        *_ffn_flags(model),
        ("--normalization", "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"),
        *_position_flags(model),
    ]
    if not model.tied_embeddings:
        flags.append(("--untie-embeddings-and-output-weights",))
    if model.mtp_layers:
        flags.append(("--mtp-num-layers", str(len(model.mtp_layers))))
    return flags


def _position_flags(model: Model) -> list[Flag]:
    if model.num_positions:
        return [
            ("--position-embedding-type", "learned_absolute"),
            ("--max-position-embeddings", str(model.num_positions)),
        ]
    rotary = any(_is_rotary(layer) for layer in model.layers)
    return [("--position-embedding-type", "rope" if rotary else "none")]


def _attention(model: Model) -> Attention | LatentAttention | None:
    """The attention that all layers with one share; None in a model without."""
    known = (layer.mixer for layer in model.layers)
    return next((m for m in known if isinstance(m, Attention | LatentAttention)), None)


def _attention_flags(mixer: Attention | LatentAttention | None, model: Model) -> list[Flag]:
    if mixer is None:
        return unused_attention_flags(model)
    if isinstance(mixer, LatentAttention):
        flags: list[Flag] = [
            ("--num-attention-heads", str(mixer.num_heads)),
            ("--multi-latent-attention",),
            ("--kv-lora-rank", str(mixer.kv_lora_rank)),
            ("--qk-head-dim", str(mixer.qk_nope_head_dim)),
            ("--qk-pos-emb-head-dim", str(mixer.qk_rope_head_dim)),
            ("--v-head-dim", str(mixer.v_head_dim)),
        ]
        if mixer.q_lora_rank is not None:
            flags.append(("--q-lora-rank", str(mixer.q_lora_rank)))
        return flags
    flags = [
        ("--num-attention-heads", str(mixer.num_heads)),
        ("--kv-channels", str(mixer.head_dim)),
    ]
    if mixer.num_kv_heads != mixer.num_heads:
        flags.append(("--group-query-attention",))
        flags.append(("--num-query-groups", str(mixer.num_kv_heads)))
    if mixer.qkv_bias:
        flags.append(("--add-qkv-bias",))
    if mixer.qk_norm == "head":
        flags.append(("--qk-layernorm",))
    if mixer.output_gate:
        flags.append(("--attention-output-gate",))
    if mixer.sinks:
        flags.append(("--softmax-type", "learnable"))
    return flags


def _windows(model: Model) -> list[int | None]:
    return [getattr(layer.mixer, "window_size", None) for layer in model.layers]


def _window_flags(model: Model) -> list[Flag]:
    """The width of the window, and which of the layers have one where not all do."""
    windows = _windows(model)
    size = next((window for window in windows if window is not None), None)
    if size is None:
        return []
    # Megatron counts the tokens to the left of the current one
    flags: list[Flag] = [("--window-size", f"{size - 1},0")]
    if None in windows:
        inside = [int(window is not None) for window in windows]
        flags.append(("--window-attn-skip-freq", _pattern(inside)))
    return flags


def _ffn_flags(model: Model) -> list[Flag]:
    ffns = [layer.ffn for layer in model.layers]
    dense = next((ffn for ffn in ffns if isinstance(ffn, Mlp)), None)
    moe = next((ffn for ffn in ffns if isinstance(ffn, Moe)), None)
    any_ffn = dense or moe
    flags: list[Flag] = []
    if any_ffn is None:
        return flags
    if dense is not None:
        flags.append(("--ffn-hidden-size", str(dense.ffn_hidden)))
    elif moe is not None:
        flags.append(("--ffn-hidden-size", str(moe.expert_ffn_hidden)))
    activation = _ACTIVATIONS[(any_ffn.gated, any_ffn.activation)]
    if model.family == "gpt_oss":
        flags += _CLAMPED
    elif activation is not None:
        flags.append((activation,))
    if not any_ffn.bias:
        flags.append(("--disable-bias-linear",))
    if moe is not None:
        flags += _moe_flags(model, moe)
    return flags


def _moe_flags(model: Model, moe: Moe) -> list[Flag]:
    routed = [int(isinstance(layer.ffn, Moe)) for layer in model.layers]
    flags: list[Flag] = [
        ("--num-experts", str(moe.num_experts)),
        ("--moe-router-topk", str(moe.top_k)),
        ("--moe-ffn-hidden-size", str(moe.expert_ffn_hidden)),
        ("--moe-grouped-gemm",),
    ]
    if moe.shared_ffn_hidden:
        flags.append(("--moe-shared-expert-intermediate-size", str(moe.shared_ffn_hidden)))
    if moe.shared_gate:
        flags.append(("--moe-shared-expert-gate",))
    if moe.latent_dim:
        flags.append(("--moe-latent-size", str(moe.latent_dim)))
    if not all(routed) and not is_hybrid(model):
        flags.append(("--moe-layer-freq", _pattern(routed)))
    return flags


def _pattern(routed: list[int]) -> str:
    """A Python list as Megatron-LM reads it, with repeats and runs short: ``([0]*3+[1]*58)``."""
    for length in range(1, len(routed) // 2 + 1):
        # layers in turn, such as a window on every second one
        times, rest = divmod(len(routed), length)
        if not rest and routed[:length] * times == routed and len(set(routed)) > 1:
            return f"{_runs(routed[:length])}*{times}"
    return _runs(routed)


def _runs(routed: list[int]) -> str:
    runs: list[list[int]] = []
    for flag in routed:
        if runs and runs[-1][0] == flag:
            runs[-1][1] += 1
        else:
            runs.append([flag, 1])
    return "(" + "+".join(f"[{flag}]*{count}" for flag, count in runs) + ")"
