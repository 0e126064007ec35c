"""Small models, clusters and jobs for the tests of the space of plans."""

import sys
from dataclasses import replace

from meshplan.inputs.cluster import Cluster, Device, Tier
from meshplan.inputs.job import Job
from meshplan.inputs.model import (
    Attention,
    LatentAttention,
    Layer,
    LinearAttention,
    Mixer,
    Mlp,
    Model,
    Moe,
    StateSpace,
)
from meshplan.inputs.scenario import Scenario
from meshplan.space.enumerate import Enumeration, enumerate_parts

DEVICE = Device(
    name="test-device",
    vendor="nvidia",
    architecture="hopper",
    memory_bytes=80e9,
    usable_bytes=78e9,
    memory_bandwidth_bytes_per_s=3e12,
    peak_flop_per_s={"bf16": 1e15, "fp16": 1e15, "fp8": 2e15},
    num_sms=132,
    kernel_table=None,
)


def cluster(
    num_gpus: int, *, gpus_per_node: int = 8, sizes: tuple[int, ...] = (), nics: int = 8
) -> Cluster:
    """A cluster whose tiers hold ``gpus_per_node``, then ``sizes``, then all GPUs."""
    node = min(gpus_per_node, num_gpus)
    counts = sorted({node, *[s for s in sizes if node < s < num_gpus], num_gpus})
    tiers = tuple(
        Tier(
            name=f"tier{i}",
            fabric="nvlink" if i == 0 else "infiniband",
            num_gpus=count,
            bandwidth_bytes_per_s=450e9 if i == 0 else 50e9,
            latency_s=1e-6 * (i + 1),
            nics_per_node=0 if i == 0 else nics,
        )
        for i, count in enumerate(counts)
    )
    return Cluster(
        name=f"{num_gpus}x{DEVICE.name}",
        device=DEVICE,
        num_gpus=num_gpus,
        gpus_per_node=node,
        tiers=tiers,
        host_memory_bytes=2e12,
        host_link_bytes_per_s=50e9,
    )


def attention(*, heads: int, kv_heads: int, head_dim: int = 128) -> Attention:
    return Attention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=head_dim,
        window_size=None,
        qkv_bias=False,
        out_bias=False,
        qk_norm="none",
        sinks=False,
        rotary=True,
    )


def mlp(ffn_hidden: int) -> Mlp:
    return Mlp(ffn_hidden=ffn_hidden, gated=True, bias=False, activation="silu")


def model_of(*layers: Layer, hidden: int = 4096, vocab: int = 32000, **changes: object) -> Model:
    model = Model(
        name="test",
        family="test",
        hidden=hidden,
        vocab=vocab,
        layers=layers,
        tied_embeddings=False,
        head_bias=False,
        embedding_dim=hidden,
        num_positions=0,
        norm="rmsnorm",
        embedding_norm=False,
        final_norm=True,
        max_seq_len=0,
    )
    return replace(model, **changes)  # type: ignore[arg-type]


def dense_model(
    *,
    num_layers: int,
    hidden: int = 4096,
    heads: int = 32,
    kv_heads: int | None = None,
    ffn_hidden: int = 11008,
    vocab: int = 32000,
) -> Model:
    layer = Layer(
        mixer=attention(heads=heads, kv_heads=heads if kv_heads is None else kv_heads),
        ffn=mlp(ffn_hidden),
        num_norms=2,
    )
    return model_of(*([layer] * num_layers), hidden=hidden, vocab=vocab)


def scenario(
    model: Model,
    *,
    num_gpus: int,
    seq_len: int = 2048,
    global_batch: int = 64,
    frameworks: tuple[str, ...] = ("megatron",),
    axes: dict[str, tuple[object, ...]] | None = None,
    gpus_per_node: int = 8,
    **job: object,
) -> Scenario:
    return Scenario(
        model=model,
        cluster=cluster(num_gpus, gpus_per_node=gpus_per_node),
        job=Job(seq_len=seq_len, global_batch=global_batch, **job),  # type: ignore[arg-type]
        frameworks=frameworks,
        axes=axes or {},
    )


def enumerate_plans(scenario: Scenario) -> Enumeration:
    """All legal plans at once, however many."""
    (whole,) = enumerate_parts(scenario, most_candidates=sys.maxsize)
    return whole


def moe(*, num_experts: int = 8, top_k: int = 2, width: int = 1024, **changes: object) -> Moe:
    block = Moe(
        num_experts=num_experts,
        top_k=top_k,
        expert_ffn_hidden=width,
        gated=True,
        bias=False,
        activation="silu",
        shared_ffn_hidden=0,
        shared_gate=False,
        router_bias=False,
    )
    return replace(block, **changes)  # type: ignore[arg-type]


def moe_model(*, num_layers: int = 8, num_experts: int = 8, **changes: object) -> Model:
    layer = Layer(
        mixer=attention(heads=32, kv_heads=8),
        ffn=moe(num_experts=num_experts, **changes),
        num_norms=2,
    )
    return model_of(*([layer] * num_layers))


def mamba(*, heads: int = 64, groups: int = 8, version: int = 2) -> StateSpace:
    return StateSpace(
        version=version,  # type: ignore[arg-type]
        inner_dim=heads * 64,
        state_dim=128,
        num_heads=heads if version == 2 else 0,
        num_groups=groups if version == 2 else 0,
        conv_kernel=4,
        dt_rank=0 if version == 2 else 128,
        chunk_size=256,
        conv_bias=True,
        proj_bias=False,
        inner_norms=heads * 64,
    )


def linear_attention(*, heads: int = 16) -> LinearAttention:
    return LinearAttention(
        num_key_heads=heads,
        num_value_heads=2 * heads,
        key_head_dim=128,
        value_head_dim=128,
        conv_kernel=4,
    )


def latent_attention(*, heads: int = 16, index_num_heads: int = 0) -> LatentAttention:
    return LatentAttention(
        num_heads=heads,
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        bias=False,
        index_num_heads=index_num_heads,
    )


def mixer_model(mixer: Mixer, *, num_layers: int = 8) -> Model:
    """A dense model whose blocks all have the mixer given."""
    return model_of(*([Layer(mixer=mixer, ffn=mlp(8192), num_norms=2)] * num_layers))
