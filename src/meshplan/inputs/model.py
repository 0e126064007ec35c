"""The model: what is computed, layer by layer, with nothing about how it is spread.

Every architectural fact is stated by the config that was read; nothing here has a silent default.
Widths are counts of elements, ``bias`` and the like say whether the weights exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import lru_cache
from typing import Literal

from meshplan.record import record

__all__ = [
    "Attention",
    "CrossAttention",
    "Ffn",
    "GatedRecurrence",
    "LatentAttention",
    "Layer",
    "LinearAttention",
    "Mixer",
    "Mlp",
    "Model",
    "Moe",
    "ShortConv",
    "StateSpace",
]


@record
class Attention:
    """Softmax attention with full, grouped or single key-value heads.

    Attributes:
        num_heads: query heads.
        num_kv_heads: key and value heads (1 is multi-query, ``num_heads`` is multi-head).
        head_dim: width of a query or key head.
        v_head_dim: width of a value head (equals ``head_dim`` in most models).
        window_size: how many tokens back a token sees; None sees all.
        qkv_bias: biases on the query, key and value projections.
        out_bias: bias on the output projection.
        qk_norm: norm weights on queries and keys: ``none``, ``head`` (one per head channel,
            shared by the heads) or ``full`` (one per channel of all heads).
        sinks: one learned sink logit per head.
        rotary: queries and keys are rotated (RoPE).
        output_gate: the query projection is twice as wide and gates the output.
        qk_norm_bias: the norms on queries and keys have a bias as well as a weight.
        kv_shared: keys and values are those of an earlier block, so this one has no projections
            for them.
        q_lora_rank: rank of the query projection; None when it is a single matrix.
        input_dim: width that the projections read where it is not that of the residual stream
            (Zamba reads the state and the embedding side by side); None when it is.
        values_are_keys: keys serve as values too, so that there is no value projection.
        out_lora_rank: rank of the output projection of each group of heads; None when the
            output projection is a single matrix.
        out_groups: groups of heads whose outputs are compressed apart (DeepSeek-V4).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    window_size: int | None
    qkv_bias: bool
    out_bias: bool
    qk_norm: Literal["none", "head", "full"]
    sinks: bool
    rotary: bool
    output_gate: bool = False
    qk_norm_bias: bool = False
    kv_shared: bool = False
    q_lora_rank: int | None = None
    input_dim: int | None = None
    values_are_keys: bool = False
    out_lora_rank: int | None = None
    out_groups: int = 1


@record
class LatentAttention:
    """Multi-head latent attention (MLA): low-rank query and key-value projections.

    Attributes:
        num_heads: heads.
        q_lora_rank: rank of the query compression; None when queries are projected directly.
        kv_lora_rank: rank of the key-value compression.
        qk_nope_head_dim: width of the part of a head without position.
        qk_rope_head_dim: width of the rotated part, shared by all heads on the key side.
        v_head_dim: width of a value head.
        bias: biases on the projections.
        index_num_heads: heads of the indexer that picks which tokens are seen (DeepSeek-V3.2);
            0 when all are.
        index_head_dim: width of a head of the indexer.
        index_top_k: tokens that the indexer lets through.
    """

    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    bias: bool
    index_num_heads: int = 0
    index_head_dim: int = 0
    index_top_k: int = 0


@record
class CrossAttention:
    """Attention from text to another modality's states (vision layers of Llama 3.2)."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_dim: int
    qk_norm: Literal["none", "head"]
    gated: bool


@record
class StateSpace:
    """Selective state-space mixer (Mamba 1 and 2).

    Attributes:
        version: 1 or 2.
        inner_dim: width inside the mixer.
        state_dim: state size per channel.
        num_heads: heads (version 2; 0 for version 1).
        num_groups: groups that share B and C (version 2; 0 for version 1).
        conv_kernel: width of the causal convolution.
        dt_rank: rank of the time-step projection (version 1; 0 for version 2).
        chunk_size: tokens per block of the scan.
        conv_bias: bias on the convolution.
        proj_bias: biases on the input and output projections.
        inner_norms: norm weights inside the mixer, as a count of elements.
    """

    version: Literal[1, 2]
    inner_dim: int
    state_dim: int
    num_heads: int
    num_groups: int
    conv_kernel: int
    dt_rank: int
    chunk_size: int
    conv_bias: bool
    proj_bias: bool
    inner_norms: int


@record
class LinearAttention:
    """Attention with a recurrent state instead of a score matrix.

    Attributes:
        num_key_heads: heads of queries and keys.
        num_value_heads: heads of values.
        key_head_dim: width of a key head.
        value_head_dim: width of a value head.
        conv_kernel: width of the causal convolution; 0 when there is none.
        rule: ``gated_delta`` (Qwen3-Next), ``kimi_delta`` (Kimi Linear: a decay per channel) or
            ``lightning`` (MiniMax-01: a fixed decay per head).
    """

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    rule: Literal["gated_delta", "kimi_delta", "lightning"] = "gated_delta"


@record
class ShortConv:
    """Gated short convolution (LFM2).

    Attributes:
        inner_dim: width of the convolution.
        conv_kernel: taps of the convolution.
        bias: biases on projections and convolution.
    """

    inner_dim: int
    conv_kernel: int
    bias: bool


@record
class GatedRecurrence:
    """Real-gated linear recurrent unit (RecurrentGemma).

    Attributes:
        inner_dim: width of the recurrence.
        num_heads: blocks of the block-diagonal gates.
        conv_kernel: taps of the causal convolution.
    """

    inner_dim: int
    num_heads: int
    conv_kernel: int


@record
class Mlp:
    """Dense feed-forward network.

    Attributes:
        ffn_hidden: width of the inner layer (of each branch when gated).
        gated: two input branches multiplied (SwiGLU, GeGLU).
        bias: biases on all projections.
        activation: name of the non-linearity, as the config gives it.
    """

    ffn_hidden: int
    gated: bool
    bias: bool
    activation: str


@record
class Moe:
    """Mixture of experts.

    Attributes:
        num_experts: routed experts.
        top_k: routed experts per token.
        expert_ffn_hidden: inner width of one routed expert.
        gated: experts have two input branches multiplied.
        bias: biases on the expert projections.
        activation: name of the non-linearity.
        shared_ffn_hidden: inner width of the shared experts together; 0 when there are none.
        shared_gate: a learned scalar gate (``hidden`` weights) on the shared experts.
        router_bias: weights of the router beyond its matrix, one per expert.
        num_zero_experts: further choices of the router that compute nothing (LongCat).
        shared_bias: biases on the shared experts where routed ones have none.
        latent_dim: routed experts read and write a projection of the state to this width
            (Nemotron 3); 0 when they work on the residual stream itself.
        num_groups: groups of experts among which a token chooses first (DeepSeek-V3).
        top_groups: groups that a token chooses from; all of its experts stand in these.
        clamped: what enters the non-linearity is clamped first (gpt-oss).
    """

    num_experts: int
    top_k: int
    expert_ffn_hidden: int
    gated: bool
    bias: bool
    activation: str
    shared_ffn_hidden: int
    shared_gate: bool
    router_bias: bool
    num_zero_experts: int = 0
    shared_bias: bool = False
    latent_dim: int = 0
    num_groups: int = 1
    top_groups: int = 1
    clamped: bool = False

    @property
    def experts_per_token(self) -> float:
        """Routed experts that a token meets, the even share of its choices that compute."""
        return self.top_k * self.num_experts / (self.num_experts + self.num_zero_experts)

    def routed_dim(self, *, hidden: int) -> int:
        """Width that routed experts read and write on a residual stream of width ``hidden``."""
        return self.latent_dim or hidden


Mixer = (
    Attention
    | LatentAttention
    | CrossAttention
    | StateSpace
    | LinearAttention
    | ShortConv
    | GatedRecurrence
)
Ffn = Mlp | Moe


@record
class Layer:
    """One block: a mixer, a feed-forward network, or both.

    Attributes:
        mixer: the token mixer; None in blocks that are a feed-forward network alone.
        ffn: the feed-forward network; None in blocks that are a mixer alone.
        num_norms: norms over the hidden width in the block (2 in most models, 4 with
            post-norms, 1 when attention and MLP run in parallel on one norm).
        second_mixer: a mixer that reads the same normed input as ``mixer`` and is added to it
            (Falcon-H1 runs attention and a state-space mixer side by side).
        extra_parameters: weights of the block that no other field describes (scales, low-rank
            side paths); held by every device of a tensor-parallel group.
        weight_set: blocks with the same number use one set of weights (Zamba); None when the
            block owns its weights.
        parallel: attention and network both read the state that enters the block, and what they
            give is added together (GPT-J, GPT-NeoX, Falcon); one after the other otherwise.
    """

    mixer: Mixer | None
    ffn: Ffn | None
    num_norms: int
    second_mixer: Mixer | None = None
    extra_parameters: int = 0
    weight_set: int | None = None
    parallel: bool = False

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """All token mixers of the block: none, one or two."""
        return tuple(m for m in (self.mixer, self.second_mixer) if m is not None)

    def __hash__(self) -> int:
        # layers are looked up by the million: tell most kinds apart and leave the rest to ==,
        # which costs nothing for the equal objects that a model is made of
        window = getattr(self.mixer, "window_size", None)
        return hash((type(self.mixer), type(self.ffn), window, self.num_norms, self.weight_set))


@record
class Model:
    """A decoder-only language model, as its config states it.

    Attributes:
        name: how the user called it.
        family: ``model_type`` of the config.
        hidden: width of the residual stream.
        vocab: rows of the embedding as configured, before any padding.
        layers: the blocks in order; equal blocks are equal values.
        tied_embeddings: input embedding and output head are one matrix.
        head_bias: bias on the output head.
        embedding_dim: width of the embedding where it differs from ``hidden`` (factorised).
        num_positions: rows of a learned position embedding; 0 with RoPE, ALiBi or none.
        norm: ``rmsnorm`` (one weight per channel) or ``layernorm`` (weight and bias), or
            ``layernorm_no_bias`` or ``layernorm_no_params``.
        embedding_norm: a norm right after the embedding.
        final_norm: a norm before the head.
        max_seq_len: the longest sequence that the config names, 0 when it names none.
        mtp_layers: extra blocks that predict further tokens (training only).
        extra_parameters: parameters of the text decoder outside blocks, embedding and head by
            name (per-layer embeddings of Gemma 3n); they count in the total.
        other_parameters: parameters in no layer, outside the text decoder, by name (vision tower).
        notes: ``(code, value)`` of what was read from an unusual place or left out.
        source: where the config comes from.
    """

    name: str
    family: str
    hidden: int
    vocab: int
    layers: tuple[Layer, ...]
    tied_embeddings: bool
    head_bias: bool
    embedding_dim: int
    num_positions: int
    norm: Literal["rmsnorm", "layernorm", "layernorm_no_bias", "layernorm_no_params"]
    embedding_norm: bool
    final_norm: bool
    max_seq_len: int
    mtp_layers: tuple[Layer, ...] = ()
    extra_parameters: Mapping[str, int] = field(default_factory=dict, hash=False)
    other_parameters: Mapping[str, int] = field(default_factory=dict, hash=False)
    notes: tuple[tuple[str, str], ...] = ()
    source: str = ""

    def __hash__(self) -> int:
        # what tells models apart in a look-up; == does the rest, at no cost for equal objects
        return hash((self.name, self.family, self.hidden, self.vocab, len(self.layers)))

    @property
    def num_layers(self) -> int:
        """Blocks of the decoder, without MTP."""
        return len(self.layers)

    @property
    def layer_kinds(self) -> tuple[Layer, ...]:
        """The distinct blocks, in order of first appearance (MTP blocks included)."""
        return _layer_kinds(self)

    @property
    def has_attention(self) -> bool:
        """Whether any block computes scores between tokens."""
        kinds = (Attention, LatentAttention)
        return any(isinstance(mixer, kinds) for layer in self.layer_kinds for mixer in layer.mixers)

    @property
    def is_moe(self) -> bool:
        """Whether any block routes tokens to experts."""
        return any(isinstance(layer.ffn, Moe) for layer in self.layer_kinds)


@lru_cache(maxsize=64)
def _layer_kinds(model: Model) -> tuple[Layer, ...]:
    # by identity first: most layers of a model are one object
    objects = {id(layer): layer for layer in model.layers + model.mtp_layers}
    return tuple(dict.fromkeys(objects.values()))
