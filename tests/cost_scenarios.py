"""Scenarios and plans for tests of the cost model."""

from __future__ import annotations

from typing import Any

from meshplan.inputs.cluster import Cluster
from meshplan.inputs.job import Job
from meshplan.inputs.load.cluster import parse_cluster
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.model import (
    Attention,
    Layer,
    Mlp,
    Model,
    Moe,
)
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import CpComm, Framework, Plan, PlanGrid, Recompute, Schedule, Split


def scenario(
    model: str | Model = "llama-3.1-8b",
    *,
    cluster: str | Cluster = "64xH100",
    seq_len: int = 8192,
    global_batch: int = 128,
    **job: Any,
) -> Scenario:
    """A scenario by preset names."""
    return Scenario(
        model=load_model(model) if isinstance(model, str) else model,
        cluster=parse_cluster(cluster) if isinstance(cluster, str) else cluster,
        job=Job(seq_len=seq_len, global_batch=global_batch, **job),
    )


def plan(num_gpus: int = 64, **fields: Any) -> Plan:
    """A plan on all GPUs; data parallelism takes what the other axes leave."""
    values: dict[str, Any] = {
        "framework": Framework.MEGATRON,
        "tp": 1,
        "sp": False,
        "pp": 1,
        "vpp": 1,
        "schedule": Schedule.ONE_F_ONE_B,
        "cp": 1,
        "cp_comm": CpComm.P2P,
        "ep": 1,
        "etp": 1,
        "zero": 0,
        "micro_batch": 1,
        "num_micro_batches": 2,
        "recompute": Recompute.NONE,
        "dp_replicate": 1,
        **fields,
    }
    dp = num_gpus // (values["tp"] * values["pp"] * values["cp"])
    values.setdefault("dp", dp)
    values.setdefault("dp_shard", values["dp"] // values["dp_replicate"])
    return Plan(**values)


def deepseek_v3_on_gb200() -> tuple[Scenario, Plan]:
    """DeepSeek-V3 on 256 GB200, laid out as Megatron-Bridge's recipe has it."""
    scene = scenario("deepseek-v3", cluster="256xGB200", seq_len=4096, global_batch=2048)
    layout = plan(
        256,
        pp=4,
        vpp=4,
        schedule=Schedule.INTERLEAVED,
        ep=64,
        zero=1,
        num_micro_batches=32,
        split=Split.BALANCED,
    )
    return scene, layout


def grid(*plans: Plan) -> PlanGrid:
    """Some plans as a grid."""
    return PlanGrid.of(plans)


def mixture(
    *, hidden: int = 1024, num_experts: int = 8, top_k: int = 2, num_layers: int = 2
) -> Model:
    """A small mixture of experts."""
    layer = Layer(
        mixer=Attention(
            num_heads=8,
            num_kv_heads=8,
            head_dim=hidden // 8,
            v_head_dim=hidden // 8,
            window_size=None,
            qkv_bias=False,
            out_bias=False,
            qk_norm="none",
            sinks=False,
            rotary=True,
        ),
        ffn=Moe(
            num_experts=num_experts,
            top_k=top_k,
            expert_ffn_hidden=4 * hidden,
            gated=True,
            bias=False,
            activation="silu",
            shared_ffn_hidden=0,
            shared_gate=False,
            router_bias=False,
        ),
        num_norms=2,
    )
    return _model(layer, hidden=hidden, num_layers=num_layers)


def dense(*, hidden: int = 1024, num_layers: int = 2, tied: bool = False) -> Model:
    """A small dense model without gate."""
    layer = Layer(
        mixer=Attention(
            num_heads=8,
            num_kv_heads=8,
            head_dim=hidden // 8,
            v_head_dim=hidden // 8,
            window_size=None,
            qkv_bias=False,
            out_bias=False,
            qk_norm="none",
            sinks=False,
            rotary=False,
        ),
        ffn=Mlp(ffn_hidden=4 * hidden, gated=False, bias=False, activation="gelu"),
        num_norms=2,
    )
    return _model(layer, hidden=hidden, num_layers=num_layers, tied=tied)


def _model(layer: Layer, *, hidden: int, num_layers: int, tied: bool = False) -> Model:
    return Model(
        name="small",
        family="small",
        hidden=hidden,
        vocab=32000,
        layers=(layer,) * num_layers,
        tied_embeddings=tied,
        head_bias=False,
        embedding_dim=hidden,
        num_positions=0,
        norm="rmsnorm",
        embedding_norm=False,
        final_norm=True,
        max_seq_len=8192,
    )
