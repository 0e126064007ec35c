"""What the model class of a family fixes and a configuration does not say.

A :class:`Family` is data: which biases and norms the blocks have, what is tied when the file is
silent, where the widths of experts stand. The numbers themselves always come from the file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from meshplan.inputs.load.hf_keys import Keys
from meshplan.inputs.model import Ffn, Layer, Mixer, Model
from meshplan.record import record

__all__ = [
    "AttentionFacts",
    "Block",
    "Family",
    "Flag",
    "MlpFacts",
    "MoeFacts",
    "Positions",
    "Windows",
    "flag",
    "no_windows",
]

# For each layer, how many tokens back it sees (None: all).
Windows = Callable[[Keys, int], list[int | None]]
# One list of blocks in place of one mixer and one network per layer.
Block = Callable[[Keys, "Family"], list[Layer]]


@record(kw_only=False)
class Flag:
    """A yes or no that a key of the file decides.

    Attributes:
        key: the key.
        default: what the family's configuration class takes when the key is missing; None when
            the key must be there.
    """

    key: str
    default: bool | None = None


def flag(keys: Keys, fact: bool | Flag) -> bool:
    """Look a fact up: fixed by the family, or decided by a key."""
    return fact if isinstance(fact, bool) else keys.flag(fact.key, fact.default)


def no_windows(keys: Keys, num_layers: int) -> list[int | None]:
    """Every layer sees all tokens."""
    return [None] * num_layers


@record
class AttentionFacts:
    """Attention of a family.

    Attributes:
        qkv_bias: biases on query, key and value.
        out_bias: bias on the output.
        qk_norm: which norm queries and keys get where they get one.
        qk_norm_if: whether they get one.
        qk_norm_bias: that norm has a bias.
        kv_heads: ``required`` in the file (null means one per query head, as in the
            classes that allow it),
            ``derived`` (missing means that too),
            ``same`` (always one per query head), ``single`` (always one) or ``nested`` (in a
            section that the family reads itself).
        head_dim: ``derived`` (missing means ``hidden / heads``) or ``required``.
        own_v_head_dim: value heads have a width of their own (``v_head_dim``).
        sinks: a learned sink per head.
        output_gate: the query projection is doubled to gate the output.
        indexed: latent attention sees only the tokens that an indexer picks.
        rotary: positions are rotations.
        unrotated_every: every so-manyth layer goes without where the file names no layers; 0
            for none.
        windows: sliding windows of the layers.
    """

    qkv_bias: bool | Flag = False
    out_bias: bool | Flag = False
    qk_norm: Literal["head", "full"] = "head"
    qk_norm_if: bool | Flag = False
    qk_norm_bias: bool = False
    kv_heads: Literal["required", "derived", "same", "single", "nested"] = "required"
    head_dim: Literal["derived", "required"] = "derived"
    own_v_head_dim: bool = False
    sinks: bool = False
    output_gate: bool | Flag = False
    indexed: bool = False
    rotary: bool = True
    unrotated_every: int = 0
    windows: Windows = no_windows


@record
class MlpFacts:
    """Dense feed-forward network of a family.

    Attributes:
        gated: two input branches; None when the activation has to tell.
        bias: biases.
        width: key of the inner width.
        multiple: inner width over hidden width when the key is missing or null; 0 when the key
            must be there.
    """

    gated: bool | None = True
    bias: bool | Flag = False
    width: str = "intermediate_size"
    multiple: int = 0


@record
class MoeFacts:
    """Mixture of experts of a family.

    Attributes:
        layers: which layers have experts.
        width: key of the inner width of an expert.
        gated: experts have two input branches.
        bias: biases of experts.
        shared: how shared experts are given: ``none``, ``count`` (of experts as wide as a
            routed one) or ``width`` (of all of them together).
        shared_gate: a learned gate on the shared experts.
        router_bias: a bias per expert in the router.
        shared_bias: biases of the shared experts where routed ones have none.
        optional: a file without experts is a dense model of the family.
        clamped: what enters the non-linearity of an expert is clamped first.
    """

    layers: Callable[[Keys, int], list[bool]]
    width: str = "moe_intermediate_size"
    gated: bool = True
    bias: bool = False
    shared: Literal["none", "count", "width"] = "none"
    shared_gate: bool = False
    router_bias: bool | Flag = False
    shared_bias: bool | Flag = False
    optional: bool = False
    clamped: bool = False


@record
class Positions:
    """Learned positions: the key of their number, and rows beyond it."""

    key: str = "max_position_embeddings"
    offset: int = 0


@record
class Family:
    """A family of decoders.

    Attributes:
        source: where the facts come from.
        tied: whether embedding and head are one matrix when the file does not say; None when it
            must say.
        attention: the attention, unless ``mixers`` reads something else.
        mlp: the dense network, unless ``ffns`` reads something else.
        moe: the experts of families that have them.
        norm: the norm over the hidden width.
        num_norms: norms of a block.
        parallel: attention and network of a block read the same state.
        embedding_norm: a norm after the embedding.
        final_norm: a norm before the head.
        head_bias: a bias on the head.
        positions: learned positions.
        refine: changes the facts by what the file says, before anything else is read.
        mixers: reads the mixer of every layer.
        ffns: reads the network of every layer.
        extra: weights of a block that belong to neither mixer nor network.
        blocks: reads whole blocks where layers are not one mixer and one network.
        finish: adds what only this family has.
    """

    source: str
    tied: bool | None = False
    attention: AttentionFacts = AttentionFacts()
    mlp: MlpFacts = MlpFacts()
    moe: MoeFacts | None = None
    norm: Literal["rmsnorm", "layernorm", "layernorm_no_bias", "layernorm_no_params"] = "rmsnorm"
    num_norms: int = 2
    parallel: bool | Flag = False
    embedding_norm: bool | Flag = False
    final_norm: bool = True
    head_bias: bool | Flag = False
    positions: Positions | None = None
    refine: Callable[[Keys, Family], Family] | None = None
    mixers: Callable[[Keys, Family, int, int], list[Mixer | None]] | None = None
    ffns: Callable[[Keys, Family, int, int], list[Ffn | None]] | None = None
    extra: Callable[[Keys, int, Mixer | None, Ffn | None], int] | None = None
    blocks: Block | None = None
    finish: Callable[[Keys, Family, Model], Model] | None = None
