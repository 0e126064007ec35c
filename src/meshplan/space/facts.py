"""What the rules read of a scenario: counts and widths, gathered once.

A rule is evaluated on millions of prefixes, so that all that it needs of the model is reduced
here to a few integers: ``tp`` divides all of several head counts exactly when it divides their
greatest common divisor.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd

from meshplan.inputs.job import Optimizer, Precision, Task
from meshplan.inputs.load.profile import framework_profile
from meshplan.inputs.model import (
    Attention,
    CrossAttention,
    GatedRecurrence,
    LatentAttention,
    LinearAttention,
    Mlp,
    Moe,
    ShortConv,
    StateSpace,
)
from meshplan.inputs.profile import FrameworkProfile
from meshplan.inputs.scenario import Scenario
from meshplan.inputs.variants import split_variant
from meshplan.record import record
from meshplan.space.stages import dealing_costs

__all__ = ["Facts", "facts_of"]


@record
class Facts:
    """Counts of a scenario that rules read and that their sentences mention.

    A width that the model lacks is 0, which every degree divides.

    Attributes:
        num_gpus: accelerators in the cluster.
        gpus_per_node: accelerators per host.
        joined_gpus: accelerators that reach one another's memory: those of a host, or of a larger
            domain of links.
        seq_len: tokens per sequence.
        global_batch: sequences per optimizer step.
        precision: number format of the large matrix products.
        optimizer: the update rule.
        task: pretraining, full fine-tuning or adapters.
        attention: ``flash`` or ``unfused``.
        options: switches of the framework that the scenario names.
        delayed_scaling: scales of 8-bit tensors come from the maxima of earlier steps.
        num_layers: blocks of the decoder without MTP.
        num_mtp_layers: blocks that predict further tokens.
        dealing_costs: weight of a block and of the head where layers are dealt by cost.
        hidden: width of the residual stream.
        vocab: rows of the embedding as configured.
        tied_embeddings: embedding and head are one matrix.
        num_heads: greatest common divisor of the query heads of all softmax attention.
        kv_heads: distinct numbers of key-value heads of all softmax attention.
        num_kv_heads: greatest common divisor of ``kv_heads``.
        has_latent_attention: some block has latent attention (MLA).
        has_up_projection: some attention compresses its queries or keys (MLA and kin).
        has_state_space: some block has a state-space mixer.
        has_linear_attention: some block has linear attention.
        has_other_recurrence: some block has a gated recurrence or a short convolution.
        has_window: some attention sees only the latest tokens.
        scores_all_tokens: some attention scores all tokens, not those alone that an index picks.
        has_sinks: some attention has sink logits.
        has_sparse_index: some latent attention picks the tokens it sees (DeepSeek-V3.2).
        has_expert_bias: some expert has biases.
        state_versions: distinct versions of state-space mixers.
        state_heads: greatest common divisor of the heads of state-space mixers.
        state_groups: distinct numbers of groups of state-space mixers (version 2).
        linear_heads: greatest common divisor of the key and value heads of linear attention.
        ffn_hidden: greatest common divisor of the inner widths of dense networks.
        num_experts: greatest common divisor of the routed experts per block; 0 when dense.
        expert_ffn_hidden: greatest common divisor of the inner widths of experts.
        shared_ffn_hidden: greatest common divisor of the inner widths of shared experts.
    """

    num_gpus: int
    gpus_per_node: int
    joined_gpus: int
    seq_len: int
    global_batch: int
    precision: Precision
    optimizer: Optimizer
    task: Task
    attention: str
    options: tuple[str, ...]
    delayed_scaling: bool
    num_layers: int
    num_mtp_layers: int
    dealing_costs: tuple[int, int]
    hidden: int
    vocab: int
    tied_embeddings: bool
    num_heads: int
    kv_heads: tuple[int, ...]
    num_kv_heads: int
    has_latent_attention: bool
    has_up_projection: bool
    has_state_space: bool
    has_linear_attention: bool
    has_other_recurrence: bool
    has_window: bool
    scores_all_tokens: bool
    has_sinks: bool
    has_sparse_index: bool
    has_expert_bias: bool
    state_versions: tuple[int, ...]
    state_heads: int
    state_groups: tuple[int, ...]
    linear_heads: int
    ffn_hidden: int
    num_experts: int
    expert_ffn_hidden: int
    shared_ffn_hidden: int

    @property
    def is_moe(self) -> bool:
        """Whether tokens are routed to experts."""
        return self.num_experts > 0

    @property
    def is_recurrent(self) -> bool:
        """Whether some block carries a state along the sequence."""
        return self.has_state_space or self.has_linear_attention or self.has_other_recurrence


def _of_earlier_steps(profile: FrameworkProfile) -> bool:
    return not profile.current_scaling and not profile.block_scaling


def facts_of(scenario: Scenario) -> Facts:
    """Gather what the rules read of a scenario."""
    model, cluster, job = scenario.model, scenario.cluster, scenario.job
    kinds = model.layer_kinds
    mixers = [m for layer in kinds for m in layer.mixers]
    attention = [m for m in mixers if isinstance(m, Attention | CrossAttention)]
    latent = [m for m in mixers if isinstance(m, LatentAttention)]
    state = [m for m in mixers if isinstance(m, StateSpace)]
    linear = [m for m in mixers if isinstance(m, LinearAttention)]
    other = [m for m in mixers if isinstance(m, ShortConv | GatedRecurrence)]
    dense = [layer.ffn for layer in kinds if isinstance(layer.ffn, Mlp)]
    moe = [layer.ffn for layer in kinds if isinstance(layer.ffn, Moe)]
    kv_heads = sorted({m.num_kv_heads for m in attention})
    return Facts(
        num_gpus=cluster.num_gpus,
        gpus_per_node=cluster.gpus_per_node,
        joined_gpus=cluster.joined_gpus,
        seq_len=job.seq_len,
        global_batch=job.global_batch,
        precision=job.precision,
        optimizer=job.optimizer,
        task=job.task,
        attention=job.attention,
        options=split_variant(scenario.variant)[1],
        delayed_scaling=job.precision == "fp8"
        and _of_earlier_steps(framework_profile("megatron", scenario.variant)),
        num_layers=model.num_layers,
        dealing_costs=dealing_costs(model),
        num_mtp_layers=len(model.mtp_layers),
        hidden=model.hidden,
        vocab=model.vocab,
        tied_embeddings=model.tied_embeddings,
        num_heads=_gcd(m.num_heads for m in [*attention, *latent]),
        kv_heads=tuple(kv_heads),
        num_kv_heads=_gcd(kv_heads),
        has_latent_attention=bool(latent),
        has_up_projection=bool(latent)
        or any(isinstance(m, Attention) and m.q_lora_rank is not None for m in mixers),
        has_state_space=bool(state),
        has_linear_attention=bool(linear),
        has_other_recurrence=bool(other),
        has_window=any(isinstance(m, Attention) and m.window_size is not None for m in mixers),
        scores_all_tokens=bool(attention) or any(m.index_top_k == 0 for m in latent),
        has_sinks=any(isinstance(m, Attention) and m.sinks for m in mixers),
        has_sparse_index=any(m.index_num_heads > 0 for m in latent),
        has_expert_bias=any(f.bias for f in moe),
        state_versions=tuple(sorted({m.version for m in state})),
        state_heads=_gcd(m.num_heads for m in state),
        state_groups=tuple(sorted({m.num_groups for m in state if m.version == 2})),
        linear_heads=_gcd(h for m in linear for h in (m.num_key_heads, m.num_value_heads)),
        ffn_hidden=_gcd(f.ffn_hidden for f in dense),
        num_experts=_gcd(f.num_experts for f in moe),
        expert_ffn_hidden=_gcd(f.expert_ffn_hidden for f in moe),
        shared_ffn_hidden=_gcd(f.shared_ffn_hidden for f in moe),
    )


def _gcd(numbers: Iterable[int]) -> int:
    return gcd(*numbers)
