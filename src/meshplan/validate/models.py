"""The model of a row: inline columns first, then the table of models."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, cast

from meshplan.inputs.load.model_mapping import MOST_LAYERS
from meshplan.inputs.load.plain_model import plain_model
from meshplan.inputs.model import Model
from meshplan.validate.assume import Assumptions
from meshplan.validate.table import Row, Skip, count, flag

__all__ = ["model_of"]

QkNorm = Literal["none", "head", "full"]

_INLINE = ("layers", "hidden", "heads", "ffn_hidden", "kv_heads", "head_dim", "vocab")
_LATENT = ("mla_q_lora", "mla_kv_lora", "mla_qk_nope", "mla_qk_rope", "mla_v")
_INLINE_MOE = ("moe_experts", "moe_topk", "moe_ffn", "moe_shared_ffn")


def model_of(row: Row, models: Mapping[str, Row], assumed: Assumptions) -> Model:
    """Build the model of a row.

    Raises:
        Skip: ``no_architecture``, ``senseless_number`` where heads would have no width, or
            ``state_space_model`` where the columns cannot say it.
    """
    known = models.get(row.get("model_key", ""), {})
    merged = dict(known)
    for name in (*_INLINE, *_INLINE_MOE, "gated_mlp", "tied_embeddings"):
        if row.get(name):
            merged[name] = row[name]
    if "mamba" in (known.get("notes", "") + known.get("attn_type", "")).lower():
        raise Skip("state_space_model")
    sizes = tuple(count(merged, name) for name in _INLINE)
    if not (sizes[0] and sizes[1] and sizes[2]):
        raise Skip("no_architecture")
    if sizes[0] > MOST_LAYERS or not (sizes[5] or sizes[1] // sizes[2]):
        raise Skip("senseless_number")
    for name in (*_LATENT, "moe_dense_layers"):
        if row.get(name):
            merged[name] = row[name]
    latent = tuple(count(merged, name) for name in _LATENT)
    if row.get("attention_arch", "").startswith("MLA") and not latent[1]:
        raise Skip("latent_attention_without_ranks")
    tied = flag(merged, "tied_embeddings") is not False and assumed.text("tied") != "untied"
    mtp_layers = count(row, "mtp_layers") or assumed.number("mtp_layers")
    if mtp_layers > MOST_LAYERS:
        raise Skip("senseless_number")
    moe = tuple(count(merged, name) or 0 for name in (*_INLINE_MOE, "moe_dense_layers"))
    gated = bool(flag(merged, "gated_mlp"))
    return _build(
        merged.get("model_key") or row.get("model", "model"),
        sizes,
        latent,
        moe,
        gated,
        tied,
        merged.get("norm", "") or ("RMSNorm" if gated else "LayerNorm"),
        merged.get("pos_emb", "") or ("RoPE" if gated else "learned"),
        assumed.number("seed_vocab"),
        count(row, "seq_len") or 0,
        mtp_layers,
        cast(QkNorm, assumed.text("qk_norm")),
        (assumed.number("route_groups"), assumed.number("route_top_groups")),
    )


@lru_cache(maxsize=512)
def _build(
    name: str,
    sizes: tuple[int | None, ...],
    latent: tuple[int | None, ...],
    moe: tuple[int, ...],
    gated: bool,
    tied: bool,
    norm: str,
    position: str,
    seed_vocab: int,
    seq_len: int,
    num_mtp_layers: int,
    qk_norm: QkNorm,
    route: tuple[int, int],
) -> Model:
    layers, hidden, heads, ffn, kv_heads, head_dim, vocab = sizes
    assert layers and hidden and heads
    experts, top_k, expert_ffn, shared, dense = moe
    alternating = experts > 0 and dense > 0 and dense * 2 == layers
    learned = position.startswith("learned")
    return plain_model(
        name=name,
        num_layers=layers,
        hidden=hidden,
        ffn_hidden=ffn or 4 * hidden,
        num_heads=heads,
        num_kv_heads=kv_heads or heads,
        head_dim=head_dim,
        vocab=vocab or seed_vocab,
        gated=gated,
        tied=tied,
        norm="rmsnorm" if norm.startswith("RMS") else "layernorm",
        num_positions=seq_len if learned else 0,
        bias=None if not norm.endswith("(no bias)") else False,
        num_experts=experts,
        top_k=top_k,
        expert_ffn_hidden=expert_ffn or (ffn or 4 * hidden if experts else 0),
        shared_ffn_hidden=shared,
        num_dense_layers=0 if alternating else dense,
        moe_every=2 if alternating else 1,
        q_lora_rank=latent[0],
        kv_lora_rank=latent[1] or 0,
        qk_nope_head_dim=latent[2] or 0,
        qk_rope_head_dim=latent[3] or 0,
        v_head_dim=latent[4] or 0,
        num_mtp_layers=num_mtp_layers,
        qk_norm=qk_norm,
        route_groups=route[0],
        route_top_groups=route[1],
        source="table of models",
    )
