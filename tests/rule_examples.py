"""One plan that breaks each rule: a rule without an example fails its test.

Keys are the framework (None for arithmetic that all share) and the code; values are the scenario
and what was asked for. Everything else of the plan is what the framework does by itself.
"""

from dataclasses import replace
from typing import Any

from meshplan.inputs.model import Attention, GatedRecurrence, Layer
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import CpComm, Framework, Offload, Recompute, Schedule, Split
from space_scenarios import (
    attention,
    dense_model,
    latent_attention,
    linear_attention,
    mamba,
    mixer_model,
    model_of,
    moe_model,
    scenario,
)

__all__ = ["EXAMPLES"]

M, T, D, A, N = Framework

Example = tuple[Scenario, dict[str, Any]]


def dense(num_gpus: int = 8, **changes: Any) -> Scenario:
    job = {k: changes.pop(k) for k in list(changes) if k in _JOB}
    return scenario(dense_model(**{"num_layers": 8, **changes}), num_gpus=num_gpus, **job)


_JOB = ("seq_len", "global_batch", "precision", "optimizer", "task", "attention")


def experts(num_gpus: int = 8, **changes: Any) -> Scenario:
    job = {k: changes.pop(k) for k in list(changes) if k in _JOB}
    return scenario(moe_model(**changes), num_gpus=num_gpus, **job)


def biased_experts() -> Scenario:
    base = experts(bias=True)
    layers = (
        replace(layer, mixer=replace(layer.mixer, qkv_bias=True, out_bias=True))
        for layer in base.model.layers
        if isinstance(layer.mixer, Attention)
    )
    return replace(base, model=replace(base.model, layers=tuple(layers)))


def mixing(mixer: Any, num_gpus: int = 8) -> Scenario:
    return scenario(mixer_model(mixer), num_gpus=num_gpus)


def predicting(num_gpus: int = 8) -> Scenario:
    base = dense_model(num_layers=8)
    return scenario(replace(base, mtp_layers=base.layers[:1]), num_gpus=num_gpus)


def predicting_experts(num_layers: int) -> Scenario:
    base = moe_model()
    return scenario(replace(base, mtp_layers=base.layers[:1] * num_layers), num_gpus=8)


def switched(base: Scenario, switch: str = "fp8-weights") -> Scenario:
    return replace(base, variant=f"megatron+{switch}")


def graphed(base: Scenario, *parts: str) -> Scenario:
    return replace(base, variant="+".join(["megatron", *(f"graph-{part}" for part in parts)]))


def windowed() -> Scenario:
    return mixing(replace(attention(heads=32, kv_heads=8), window_size=1024))


def sinking() -> Scenario:
    return mixing(replace(attention(heads=32, kv_heads=8), sinks=True))


RECURRENT = mixing(GatedRecurrence(inner_dim=4096, num_heads=16, conv_kernel=4))
NO_ATTENTION = scenario(model_of(*[Layer(mixer=mamba(), ffn=None, num_norms=1)] * 8), num_gpus=8)

_ARITHMETIC: dict[str, Example] = {
    "degrees_multiply_to_gpus": (dense(), {"tp": 3}),
    "ep_needs_experts": (dense(), {"ep": 2}),
    "etp_needs_experts": (dense(), {"tp": 2, "etp": 2}),
    "shards_multiply_to_dp": (dense(), {"dp_replicate": 3}),
    "batch_divides": (dense(global_batch=60), {}),
    "vpp_matches_schedule": (
        dense(),
        {"pp": 2, "vpp": 1, "schedule": Schedule.INTERLEAVED},
    ),
    "layers_are_dealt": (dense(num_layers=7), {"pp": 2}),
    "expert_grid_divides": (experts(16, num_experts=48), {"tp": 4, "ep": 3, "etp": 1}),
    "full_recompute_is_alone": (dense(), {"recompute": Recompute.FULL | Recompute.MLP}),
    "layers_come_with_full_recompute": (
        dense(),
        {"recompute": Recompute.MLP, "recompute_layers": 2},
    ),
    "full_recompute_fits_chunk": (
        dense(),
        {"pp": 2, "recompute": Recompute.FULL, "recompute_layers": 5},
    ),
}

_MEGATRON: dict[str, Example] = {
    "mixer_exists": (RECURRENT, {}),
    "task_exists": (dense(task="qlora"), {}),
    "optimizer_exists": (dense(optimizer="adafactor"), {}),
    "graphs_are_of_one_kind": (graphed(dense(), "layer", "attention"), {}),
    "graphs_leave_the_exchange": (
        switched(experts(), "graph-layer+overlapped-exchange"),
        {"ep": 2},
    ),
    "graph_router_needs_experts": (graphed(dense(), "router"), {}),
    "graphs_without_full_recompute": (
        graphed(dense(), "attention"),
        {"recompute": Recompute.FULL},
    ),
    "graph_router_keeps_experts": (graphed(experts(), "router"), {"recompute": Recompute.MOE}),
    "graphs_without_activation_offload": (graphed(dense(), "layer"), {"offload_layers": 2}),
    "tp_divides_heads": (dense(heads=36, kv_heads=36), {"tp": 8}),
    "tp_shares_kv_heads": (dense(heads=40, kv_heads=10), {"tp": 4}),
    "tp_divides_ffn": (dense(ffn_hidden=10_994), {"tp": 4}),
    "tp_divides_state_heads": (mixing(mamba(heads=64, groups=2)), {"tp": 4}),
    "ring_splits_sequence": (dense(seq_len=2050), {"cp": 2}),
    "cp_divides_state_heads": (mixing(mamba(heads=4, groups=1)), {"cp": 8}),
    "tp_cp_divide_linear_heads": (mixing(linear_attention(heads=4)), {"tp": 4, "cp": 2}),
    "stored_scores_without_cp": (dense(attention="unfused"), {"cp": 2}),
    "all_to_all_splits_heads": (
        dense(kv_heads=2),
        {"cp": 4, "cp_comm": CpComm.ALL_TO_ALL},
    ),
    "window_needs_other_traffic": (windowed(), {"cp": 2, "cp_comm": CpComm.P2P}),
    "sinks_need_all_to_all": (sinking(), {"cp": 2, "cp_comm": CpComm.ALL_GATHER}),
    "sparse_index_needs_all_gather": (
        mixing(latent_attention(index_num_heads=64)),
        {"cp": 2, "cp_comm": CpComm.P2P},
    ),
    "schedule_exists": (dense(), {"pp": 2, "schedule": Schedule.ZB_H1}),
    "interleaving_needs_pipeline": (dense(), {"vpp": 2}),
    "interleaving_fills_rounds": (dense(global_batch=24), {"pp": 2, "vpp": 2, "micro_batch": 2}),
    "sp_needs_tp": (dense(), {"sp": True}),
    "sp_splits_sequence": (dense(seq_len=2050), {"tp": 4}),
    "experts_divide_over_ep": (experts(num_experts=12), {"ep": 8}),
    "etp_divides_expert_ffn": (experts(width=1022), {"tp": 4, "etp": 4}),
    "expert_bias_is_whole": (biased_experts(), {"tp": 2, "etp": 2}),
    "widths_are_aligned": (dense(precision="mxfp8", ffn_hidden=1056), {"tp": 2}),
    "expert_widths_are_aligned": (experts(precision="fp8", width=1040), {"tp": 2, "etp": 2}),
    "sharded_gradients_without_pipeline": (dense(), {"pp": 2, "zero": 3}),
    "fsdp_needs_plain_optimizer": (dense(optimizer="muon"), {"zero": 3}),
    "replicas_divide_experts": (experts(), {"ep": 4, "dp_replicate": 4}),
    "recompute_exists": (dense(), {"recompute": Recompute.MOE}),
    "delayed_scaling_keeps_norms": (dense(precision="fp8"), {"recompute": Recompute.NORM}),
    "offload_exists": (dense(), {"offload": Offload.PARAMETERS}),
    "offload_needs_adam": (dense(optimizer="sgd"), {"offload": Offload.OPTIMIZER}),
    "fp8_weights_need_fp8": (switched(dense()), {}),
    "fp8_weights_are_sharded": (
        switched(dense(precision="fp8")),
        {"zero": 0},
    ),
    "offloaded_fp8_weights_are_delayed": (
        switched(dense(precision="fp8"), "fp8-weights+tensorwise"),
        {"offload": Offload.OPTIMIZER},
    ),
    "overlapped_exchange_takes_one_mtp": (
        switched(predicting_experts(2), "overlapped-exchange"),
        {"ep": 2},
    ),
    "tensor_overlap_needs_sp": (switched(experts(), "tp-overlap"), {"tp": 2, "sp": 0}),
    "tensor_overlap_stays_inside": (
        switched(dense(num_gpus=16), "tp-overlap"),
        {"tp": 16, "sp": True},
    ),
    "overlapped_exchange_needs_experts": (switched(dense(), "overlapped-exchange"), {}),
    "overlapped_exchange_needs_ep": (switched(experts(), "overlapped-exchange"), {"tp": 2}),
    "overlapped_exchange_interleaves": (
        switched(experts(), "overlapped-exchange"),
        {"ep": 2, "pp": 2},
    ),
    "overlapped_exchange_keeps_experts": (
        switched(experts(), "overlapped-exchange"),
        {"ep": 2, "recompute": Recompute.FULL},
    ),
    "precision_aware_is_distributed": (dense(optimizer="adamw16bit"), {"zero": 0}),
    "offload_leaves_a_layer": (dense(), {"offload_layers": 8}),
    "offload_layers_without_pipeline": (dense(), {"pp": 2, "offload_layers": 2}),
    "offload_layers_without_recompute": (
        dense(),
        {"offload_layers": 2, "recompute": Recompute.FULL},
    ),
    "split_exists": (dense(), {"pp": 2, "split": Split.BY_COST}),
}

_TORCHTITAN: dict[str, Example] = {
    "mixer_exists": (NO_ATTENTION, {}),
    "precision_exists": (dense(precision="fp16"), {}),
    "task_exists": (dense(task="qlora"), {}),
    "tp_divides_heads": (dense(heads=36, kv_heads=36), {"tp": 8}),
    "tp_divides_kv_heads": (dense(kv_heads=2), {"tp": 4}),
    "tp_divides_ffn": (dense(ffn_hidden=10_994), {"tp": 4}),
    "tp_cp_divide_linear_heads": (mixing(linear_attention(heads=4)), {"tp": 8}),
    "cp_splits_recurrence": (mixing(linear_attention()), {"cp": 2}),
    "mtp_without_cp": (predicting(), {"cp": 2}),
    "stored_scores_without_cp": (dense(attention="unfused"), {"cp": 2}),
    "cp_comm_exists": (dense(), {"cp": 2, "cp_comm": CpComm.ALL_TO_ALL}),
    "tied_without_pipeline": (
        scenario(replace(dense_model(num_layers=8), tied_embeddings=True), num_gpus=8),
        {"pp": 2},
    ),
    "mtp_without_pipeline": (predicting(), {"pp": 2}),
    "pipeline_is_filled": (dense(global_batch=4), {"pp": 8, "micro_batch": 2}),
    "rounds_are_equal": (dense(global_batch=20), {"pp": 2, "vpp": 2}),
    "sp_needs_tp": (dense(), {"sp": True}),
    "sp_splits_sequence": (dense(seq_len=2050), {"tp": 4}),
    "experts_divide_over_ep": (experts(num_experts=12), {"ep": 8}),
    "etp_follows_ep": (experts(), {"tp": 2, "ep": 2, "etp": 2}),
    "etp_divides_expert_ffn": (experts(width=1022), {"tp": 4}),
    "zero_exists": (dense(), {"zero": 1}),
    "cp_shards_states": (dense(), {"cp": 2, "zero": 0}),
    "ep_divides_mesh": (experts(), {"ep": 8, "dp_replicate": 2}),
    "recompute_exists": (dense(), {"recompute": Recompute.MLP}),
    "recompute_covers_all_layers": (
        dense(),
        {"recompute": Recompute.FULL, "recompute_layers": 2},
    ),
    "offload_exists": (dense(), {"offload": Offload.OPTIMIZER}),
    "offload_layers_exist": (dense(), {"offload_layers": 2}),
    "offload_needs_shards": (
        dense(),
        {"zero": 0, "offload": Offload.OPTIMIZER | Offload.PARAMETERS},
    ),
    "split_exists": (dense(), {"pp": 2, "split": Split.BY_COST}),
}

_DEEPSPEED: dict[str, Example] = {
    "precision_exists": (dense(precision="fp8"), {}),
    "tp_divides_heads": (dense(heads=36, kv_heads=36), {"tp": 8}),
    "tp_divides_kv_heads": (dense(kv_heads=2), {"tp": 4}),
    "tp_divides_ffn": (dense(ffn_hidden=10_994), {"tp": 4}),
    "tp_splits_recurrence": (mixing(mamba()), {"tp": 2}),
    "quantized_weights_are_whole": (dense(task="qlora"), {"tp": 2}),
    "no_sequence_parallelism": (dense(), {"tp": 2, "sp": True}),
    "ulysses_is_alone": (dense(), {"tp": 2, "cp": 2}),
    "ulysses_splits_sequence": (dense(seq_len=2049), {"cp": 2}),
    "cp_splits_recurrence": (mixing(mamba()), {"cp": 2}),
    "cp_comm_exists": (dense(), {"cp": 2, "cp_comm": CpComm.P2P}),
    "all_to_all_shares_kv_heads": (dense(40, heads=40, kv_heads=8, global_batch=64), {"cp": 10}),
    "schedule_exists": (dense(), {"pp": 2, "schedule": Schedule.GPIPE}),
    "experts_divide_over_ep": (experts(num_experts=12), {"ep": 8}),
    "etp_is_one": (experts(), {"etp": 2}),
    "folding_without_pipeline": (experts(), {"tp": 2, "pp": 2, "ep": 2}),
    "folding_needs_ep": (experts(), {"tp": 2}),
    "sharded_gradients_without_pipeline": (dense(), {"pp": 2, "zero": 2}),
    "sharded_experts_without_ulysses": (experts(), {"cp": 2, "zero": 3}),
    "no_replicas": (dense(), {"dp_replicate": 2}),
    "recompute_exists": (dense(), {"recompute": Recompute.NORM}),
    "recompute_covers_all_layers": (
        dense(),
        {"recompute": Recompute.FULL, "recompute_layers": 2},
    ),
    "offload_needs_shards": (dense(), {"zero": 2, "offload": Offload.PARAMETERS}),
    "folding_without_offload": (experts(), {"tp": 2, "ep": 4, "offload": Offload.OPTIMIZER}),
    "offload_layers_exist": (dense(), {"offload_layers": 2}),
    "split_exists": (dense(), {"pp": 2, "split": Split.BY_COST}),
}

_ACCELERATE: dict[str, Example] = {
    "precision_exists": (dense(precision="nvfp4"), {}),
    "no_pipeline": (dense(), {"pp": 2}),
    "tp_divides_heads": (dense(heads=36, kv_heads=36), {"tp": 8}),
    "tp_divides_kv_heads": (dense(kv_heads=4), {"tp": 8}),
    "tp_divides_ffn": (dense(ffn_hidden=10_994), {"tp": 4}),
    "tp_splits_recurrence": (mixing(mamba()), {"tp": 2}),
    "quantized_weights_are_whole": (dense(task="qlora"), {"tp": 2}),
    "no_sequence_parallelism": (dense(), {"tp": 2, "sp": True}),
    "cp_splits_recurrence": (mixing(mamba()), {"cp": 2}),
    "stored_scores_without_cp": (dense(attention="unfused"), {"cp": 2}),
    "ring_splits_sequence": (dense(seq_len=2050), {"cp": 2}),
    "all_to_all_shares_kv_heads": (
        dense(40, heads=40, kv_heads=8, global_batch=64),
        {"cp": 10, "cp_comm": CpComm.ALL_TO_ALL},
    ),
    "ulysses_is_alone": (dense(), {"tp": 2, "cp": 2, "cp_comm": CpComm.ALL_TO_ALL}),
    "no_expert_parallelism": (experts(), {"ep": 2}),
    "etp_is_tp": (experts(), {"tp": 2, "etp": 1}),
    "etp_divides_expert_ffn": (experts(width=1022), {"tp": 4}),
    "zero_exists": (dense(), {"zero": 1}),
    "fsdp_has_shards": (dense(), {"zero": 3, "dp_replicate": 8}),
    "ddp_is_alone": (dense(), {"tp": 2, "zero": 0}),
    "replicas_have_shards": (dense(), {"tp": 2, "dp_replicate": 4, "zero": 3}),
    "recompute_exists": (dense(), {"recompute": Recompute.SELECTIVE_OP}),
    "recompute_covers_all_layers": (
        dense(),
        {"recompute": Recompute.FULL, "recompute_layers": 2},
    ),
    "offload_exists": (dense(), {"offload": Offload.OPTIMIZER}),
    "offload_layers_exist": (dense(), {"offload_layers": 2}),
    "offload_needs_shards": (
        dense(),
        {"zero": 0, "offload": Offload.OPTIMIZER | Offload.PARAMETERS},
    ),
    "split_exists": (dense(), {"split": Split.BALANCED}),
}

_NANOTRON: dict[str, Example] = {
    "mixer_exists": (mixing(latent_attention()), {}),
    "precision_exists": (dense(precision="fp8"), {}),
    "task_exists": (dense(task="lora"), {}),
    "optimizer_exists": (dense(optimizer="muon"), {}),
    "tp_divides_heads": (dense(heads=36, kv_heads=36), {"tp": 8}),
    "tp_divides_kv_heads": (dense(kv_heads=4), {"tp": 8}),
    "tp_divides_ffn": (dense(ffn_hidden=10_994), {"tp": 4}),
    "sp_needs_tp": (dense(), {"sp": True}),
    "sp_splits_sequence": (dense(seq_len=2050), {"tp": 4}),
    "ring_splits_sequence": (dense(seq_len=2050), {"cp": 2}),
    "stored_scores_without_cp": (dense(attention="unfused"), {"cp": 2}),
    "cp_comm_exists": (dense(), {"cp": 2, "cp_comm": CpComm.ALL_TO_ALL}),
    "schedule_exists": (dense(), {"pp": 2, "vpp": 2}),
    "pipeline_is_filled": (dense(global_batch=4), {"pp": 8, "micro_batch": 4}),
    "no_expert_parallelism": (experts(), {"ep": 2}),
    "etp_is_one": (experts(), {"tp": 2, "etp": 2}),
    "zero_exists": (dense(), {"zero": 3}),
    "no_replicas": (dense(), {"dp_replicate": 2}),
    "recompute_exists": (dense(), {"recompute": Recompute.CORE_ATTENTION}),
    "recompute_covers_all_layers": (
        dense(),
        {"recompute": Recompute.FULL, "recompute_layers": 2},
    ),
    "offload_exists": (dense(), {"offload": Offload.OPTIMIZER}),
    "offload_layers_exist": (dense(), {"offload_layers": 2}),
    "split_exists": (dense(), {"pp": 2, "split": Split.EVEN}),
}

_BY_FRAMEWORK: tuple[tuple[Framework | None, dict[str, Example]], ...] = (
    (None, _ARITHMETIC),
    (M, _MEGATRON),
    (T, _TORCHTITAN),
    (D, _DEEPSPEED),
    (A, _ACCELERATE),
    (N, _NANOTRON),
)

EXAMPLES: dict[tuple[Framework | None, str], Example] = {
    (framework, code): example
    for framework, examples in _BY_FRAMEWORK
    for code, example in examples.items()
}
