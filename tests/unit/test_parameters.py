"""Parameter counts, shards and adapters, worked by hand."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cost_scenarios import grid, plan, scenario
from meshplan.cost.adapters import adapter_shard
from meshplan.cost.behaviour import training_vocab
from meshplan.cost.parameters import count_parameters
from meshplan.cost.shards import embedding_shard, layer_shard, padded_vocab
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.load.plain_model import plain_model
from meshplan.space.plan import Framework

H, F, V, L = 8192, 28672, 128256, 80
ATTENTION_70B = 2 * H * H + 2 * H * 1024
MLP_70B = 3 * H * F


def test_llama_70b_part_by_part() -> None:
    count = count_parameters(load_model("llama-3.1-70b"))
    assert count.embedding == count.head == V * H
    assert count.attention == L * ATTENTION_70B
    assert count.mlp == L * MLP_70B
    assert count.norms == (2 * L + 1) * H
    assert count.experts == count.router == count.mtp == count.outside == count.other == 0
    assert count.total == count.active == 70_553_706_496


def test_deepseek_v3_total_and_active() -> None:
    count = count_parameters(load_model("deepseek-v3"))
    # 671,026,419,200 in the published checkpoint holds 256 routing biases in each of 58 layers,
    # which no gradient trains.
    assert count.total == 671_026_419_200 - 58 * 256
    one_expert = 3 * 7168 * 2048
    assert count.experts == 58 * 256 * one_expert
    assert count.total - count.active == 58 * (256 - 8) * one_expert
    assert count.router == 58 * 256 * 7168


def test_gpt2_has_biases_positions_and_one_embedding() -> None:
    assert count_parameters(load_model("gpt2")).total == 124_439_808


def test_parts_add_up_for_every_part_of_a_mixture() -> None:
    c = count_parameters(load_model("qwen1.5-moe-a2.7b"))
    parts = (
        c.embedding,
        c.positions,
        c.head,
        c.attention,
        c.mlp,
        c.experts,
        c.shared_experts,
        c.router,
        c.norms,
        c.other,
    )
    assert sum(parts) == c.total
    assert c.shared_experts == 24 * (3 * 2048 * 5632 + 2048)


def test_experts_that_compute_nothing_take_their_share_of_the_tokens() -> None:
    count = count_parameters(load_model("longcat-flash-560b"))
    one_expert = 3 * 6144 * 2048
    assert count.total - count.active == 28 * (512 - 8) * one_expert  # 12 * 512 / 768 = 8
    assert count.active / 1e9 == pytest.approx(27, rel=0.04)  # arXiv 2509.01322: about 27 B


def test_shared_weights_count_once() -> None:
    zamba = load_model_zamba()
    blocks = [layer for layer in zamba.layers if layer.weight_set is not None]
    assert len(blocks) == 13 and len(set(blocks)) == 1
    assert count_parameters(zamba).mlp == 3 * 3712 * 14848


def load_model_zamba():
    from meshplan.inputs.load.hf_config import model_from_config

    return model_from_config(
        {
            "model_type": "zamba",
            "vocab_size": 32000,
            "hidden_size": 3712,
            "num_hidden_layers": 76,
            "intermediate_size": 14848,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "attn_layer_period": 6,
            "attn_layer_offset": 4,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_dt_rank": 232,
            "mamba_conv_bias": True,
            "mamba_proj_bias": False,
            "tie_word_embeddings": True,
            "n_mamba_heads": 2,
            "hidden_act": "gelu",
        },
        name="zamba",
    )


def test_column_and_row_splits() -> None:
    model = load_model("llama-3.1-70b")
    shard = layer_shard(model.layers[0], model, tp=8, ep=1, etp=1)
    assert shard.dense == (ATTENTION_70B + MLP_70B) // 8
    assert shard.replicated == 2 * H
    assert shard.expert == 0


def test_key_value_heads_are_copied_when_devices_outnumber_them() -> None:
    model = load_model("llama-3.1-70b")  # 8 key-value heads of 128
    shard = layer_shard(model.layers[0], model, tp=16, ep=1, etp=1)
    assert shard.dense == (2 * H * H + MLP_70B) // 16 + 2 * H * 128


def test_latent_attention_keeps_its_compressions_whole() -> None:
    model = load_model("deepseek-v3")
    shard = layer_shard(model.layers[0], model, tp=8, ep=1, etp=1)
    down = 7168 * 1536 + 7168 * (512 + 64)
    up = 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168
    assert shard.replicated == down + (1536 + 512) + 2 * 7168
    assert shard.dense == (up + 3 * 7168 * 18432) // 8


def test_experts_spread_over_their_own_axes() -> None:
    model = load_model("mixtral-8x7b")
    shard = layer_shard(model.layers[0], model, tp=2, ep=4, etp=2)
    assert shard.expert == 2 * 3 * 4096 * 14336 // 2
    assert shard.replicated == 2 * 4096 + 8 * 4096  # norms and router
    assert shard.dense == (2 * 4096 * 4096 + 2 * 4096 * 1024) // 2


def test_row_biases_are_replicated_and_column_biases_split() -> None:
    model = load_model("gpt3-175b")
    shard = layer_shard(model.layers[0], model, tp=8, ep=1, etp=1)
    h = 12288
    assert shard.replicated == 2 * 2 * h + 2 * h
    assert shard.dense == (12 * h * h + 3 * h + 4 * h) // 8


@pytest.mark.parametrize("name", ["llama-3.1-70b", "deepseek-v3", "nemotron-h-56b", "gpt-oss-20b"])
def test_arrays_give_what_numbers_give(name: str) -> None:
    model = load_model(name)
    tp, ep, etp = np.array([1, 2, 8, 16]), np.array([1, 4, 2, 8]), np.array([1, 1, 2, 4])
    for layer in model.layer_kinds:
        grid = layer_shard(layer, model, tp=tp, ep=ep, etp=etp)
        for i in range(4):
            one = layer_shard(layer, model, tp=int(tp[i]), ep=int(ep[i]), etp=int(etp[i]))
            assert (grid.dense[i], grid.replicated[i], grid.expert[i]) == (
                one.dense,
                one.replicated,
                one.expert,
            )


def test_whole_model_is_the_sum_of_its_layers_and_ends() -> None:
    for name in ("llama-3.1-8b", "gemma-2-9b", "qwen3-30b-a3b", "bloom-7b1", "opt-13b"):
        model = load_model(name)
        layers = sum(layer_shard(b, model, tp=1, ep=1, etp=1).total for b in model.layers)
        ends = embedding_shard(model, tp=1, padded_vocab=model.vocab)
        head = 0 if model.tied_embeddings else ends.head
        whole = layers + ends.embedding + ends.positions + head + ends.final_norm
        assert whole == count_parameters(model).total, name


def test_vocabulary_is_padded_to_a_multiple_of_the_group() -> None:
    assert padded_vocab(50257, multiple=128, tp=8) == 51200
    assert padded_vocab(50257, multiple=128, tp=1) == 50304
    assert padded_vocab(128256, multiple=1, tp=8) == 128256
    assert padded_vocab(50257, multiple=128, tp=np.array([1, 8])).tolist() == [50304, 51200]


def test_embedding_shard() -> None:
    model = load_model("gpt3-175b")
    ends = embedding_shard(model, tp=8, padded_vocab=51200)
    assert ends.embedding == ends.head == 51200 // 8 * 12288
    assert ends.positions == 2048 * 12288
    assert ends.final_norm == 2 * 12288


def test_factorised_embedding_has_projections_at_both_ends() -> None:
    from meshplan.inputs.load.hf_config import model_from_config

    model = model_from_config(  # OPT-350m, 331,196,416 parameters on the hub
        {
            "model_type": "opt",
            "vocab_size": 50272,
            "hidden_size": 1024,
            "ffn_dim": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "word_embed_proj_dim": 512,
            "max_position_embeddings": 2048,
            "do_layer_norm_before": False,
            "enable_bias": True,
            "layer_norm_elementwise_affine": True,
            "tie_word_embeddings": True,
            "activation_function": "relu",
        },
        name="opt-350m",
    )
    assert count_parameters(model).total == 331_196_416


def test_adapters_of_llama_2_7b() -> None:
    model = load_model("llama-2-7b")
    h, f, r = 4096, 11008, 16

    def total(targets, **axes):
        degrees = {"tp": 1, "ep": 1, "etp": 1, **axes}
        return adapter_shard(model.layers[0], model, rank=r, targets=targets, **degrees)

    assert total("attention").total * 32 == 32 * 4 * r * 2 * h  # 16,777,216
    assert total("mlp").total == 3 * r * (h + f)
    assert total("all").total == total("attention").total + total("mlp").total
    split = total("all", tp=8)
    assert split.dense == (3 * r * h + r * h + 2 * r * f + r * f) // 8
    assert split.replicated == 3 * r * h + r * h + 2 * r * h + r * h


def test_adapters_of_experts_follow_the_expert_axes() -> None:
    model = load_model("mixtral-8x7b")
    shard = adapter_shard(model.layers[0], model, rank=8, targets="mlp", tp=1, ep=4, etp=1)
    assert shard.expert == 2 * 3 * 8 * (4096 + 14336)


def test_tables_of_training_runs_give_plain_models(shared: Path) -> None:
    """Rows of the shared table: within 0.5 % of the totals computed there from the same sizes."""
    checked = 0
    with (shared / "data" / "measured" / "models.csv").open() as file:
        for row in csv.DictReader(file):
            sizes = {k: int(float(row[k])) for k in ("layers", "hidden", "vocab") if row[k]}
            if len(sizes) < 3 or not row["params_b_computed"] or not row["heads"]:
                continue
            norms = {"RMSNorm": "rmsnorm", "LayerNorm": "layernorm"}
            if row["norm"] not in norms or float(row["params_b_computed"]) < 1.5:
                continue  # small ones differ by their biases and positions, which the table omits
            model = plain_model(
                name=row["model_key"],
                num_layers=sizes["layers"],
                hidden=sizes["hidden"],
                ffn_hidden=number(row["ffn_hidden"]),
                num_heads=number(row["heads"]),
                num_kv_heads=number(row["kv_heads"]),
                head_dim=number(row["head_dim"]) or None,
                vocab=sizes["vocab"],
                gated=row["gated_mlp"] == "True",
                tied=row["tied_embeddings"] == "True",
                norm=norms[row["norm"]],
                num_positions=2048 if row["pos_emb"] == "learned" else 0,
                num_experts=number(row["moe_experts"]),
                top_k=number(row["moe_topk"]),
                expert_ffn_hidden=number(row["moe_ffn"]),
                shared_ffn_hidden=number(row["moe_shared_ffn"]),
                num_dense_layers=number(row["moe_dense_layers"]),
                q_lora_rank=number(row["mla_q_lora"]) or None,
                kv_lora_rank=number(row["mla_kv_lora"]),
                qk_nope_head_dim=number(row["mla_qk_nope"]),
                qk_rope_head_dim=number(row["mla_qk_rope"]),
                v_head_dim=number(row["mla_v"]),
            )
            found = count_parameters(model).total / 1e9
            assert found == pytest.approx(float(row["params_b_computed"]), rel=0.007), row
            checked += 1
    assert checked >= 75


def number(text: str) -> int:
    return int(float(text)) if text else 0


def test_moe_interleaving_and_mtp_of_plain_models() -> None:
    model = plain_model(
        name="x",
        num_layers=6,
        hidden=64,
        ffn_hidden=256,
        num_heads=4,
        num_kv_heads=4,
        vocab=100,
        gated=False,
        tied=True,
        norm="layernorm",
        num_positions=32,
        num_experts=4,
        top_k=2,
        expert_ffn_hidden=128,
        moe_every=2,
        num_dense_layers=2,
        num_mtp_layers=1,
    )
    assert [type(layer.ffn).__name__ for layer in model.layers] == [
        "Mlp",
        "Mlp",
        "Mlp",
        "Moe",
        "Mlp",
        "Moe",
    ]
    assert count_parameters(model).mtp > 2 * 64 * 64


def test_time_and_memory_pad_the_vocabulary_alike():
    """Each framework's multiple stands in one file; DeepSpeed trains the model as configured."""
    case = scenario("gpt3-175b", cluster="64xA100-80GB", seq_len=2048, global_batch=64)
    frameworks = {"megatron": 51200, "deepspeed": 50264, "torchtitan": 50264, "nanotron": 50264}
    for name, rows in frameworks.items():
        plans = grid(plan(64, framework=Framework[name.upper()], tp=8))
        assert training_vocab(case, plans).tolist() == [rows], name
    megatron_deepspeed = replace(case, variant="megatron-deepspeed-2021")
    plans = grid(plan(64, framework=Framework.DEEPSPEED, tp=8))
    assert training_vocab(megatron_deepspeed, plans).tolist() == [51200]
