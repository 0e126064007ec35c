"""Official recipes as the files that a person would keep: what ``check`` reads."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache

import yaml

from meshplan.check.records import Source
from recipes import DATA, PRESETS, arguments_of

__all__ = ["GONE", "UNSIZED", "file_of", "model_of"]

# Examples of nanotron with a trainer of their own (examples/mamba, examples/moe), which nanotron at
# 2411b022 does not run any more, and a framework that has their model. They are written down as
# arguments of Megatron-LM, which has no Mamba-1.
GONE = {"config_mamba.yaml": "accelerate", "config_llamoe.yaml": "megatron"}
# Sizes of the experts' example (examples/moe/config_llamoe.yaml; moe.py at 4f880e38: two matrices).
_LLAMOE = """--num-layers 1 --hidden-size 512 --num-attention-heads 8 --ffn-hidden-size 2048
  --num-experts 4 --moe-router-topk 1 --vocab-size 32000 --normalization RMSNorm
  --disable-bias-linear --position-embedding-type rope --untie-embeddings-and-output-weights"""
# A recipe whose model has 0 layers until they are given on the command line, and the sizes of the
# one example of its package that gives any (examples/training_features/pure_eval.py).
UNSIZED = {"vanilla_gpt_pretrain_1gpu_h100_bf16_config": "2 x 128"}
_EXAMPLE = "--num-layers 2 --hidden-size 128 --num-attention-heads 4 --vocab-size 32000"
# Models that are no presets: sizes stand in the recipe or beside it.
_MODELS = {
    "config_mamba.yaml": "nanotron-mamba.json",
    "qwen3_moe_deepep": "qwen3-debugmodel-moe.json",
}


def model_of(row: Mapping[str, str]) -> str:
    """What ``--model`` says beside the file; empty where the file has the sizes."""
    if row["recipe"] in _MODELS:
        return str(DATA / "recipe_models" / _MODELS[row["recipe"]])
    if row["source"].startswith("nanotron") or row["recipe"] in UNSIZED:
        return ""
    return PRESETS.get(row["model"], row["model"].replace("_", "-"))


def file_of(row: Mapping[str, str]) -> Source:
    """A recipe as one file."""
    if row["source"].startswith("torchtitan"):
        return Source(name="recipe.sh", text=_torchtitan(row))
    if row["recipe"] in GONE:
        return Source(name="recipe.sh", text=_gone(row))
    if row["source"].startswith("nanotron"):
        return Source(name="recipe.yaml", text=_nanotron(row))
    text = arguments_of(dict(row))
    if row["recipe"] in UNSIZED:
        text = f"{text.rstrip()} {_EXAMPLE}\n"
    return Source(name="recipe.sh", text=text)


def _gone(row: Mapping[str, str]) -> str:
    """A recipe of nanotron as arguments of Megatron-LM; schedule and mode are its defaults."""
    plain = {**row, "vpp": "", "sp": "False", "dist_opt": "False", "etp": "1"}
    text = arguments_of(plain).rstrip()
    return text if row["recipe"] in _MODELS else f"{text} {' '.join(_LLAMOE.split())}\n"


def _torchtitan(row: Mapping[str, str]) -> str:
    """Arguments of torchtitan 0.3.0; ``-1`` leaves the batch to the number of GPUs."""
    checkpoint = {"FullAC": "full", "SelectiveAC": "selective"}[row["recompute"]]
    words = [
        f"--module {row['model'].split('_')[0]} --config {row['recipe']}",
        f"--training.seq_len {row['seq']}",
        f"--training.local_batch_size {row['mbs']}",
        f"--parallelism.tensor_parallel_degree {row['tp']}",
        f"--parallelism.pipeline_parallel_degree {row['pp']}",
        f"--parallelism.context_parallel_degree {row['cp']}",
        f"--parallelism.expert_parallel_degree {row['ep']}",
        f"activation-checkpoint:{checkpoint}",
        # the table does not say; compiled, as the plan beside it is
        "--compile.enable",
    ]
    shard = dict(part.split("=") for part in row["fsdp"].split(","))["shard"]
    if shard != "-1":
        words.append(f"--parallelism.data_parallel_shard_degree {shard}")
    return "torchrun -m torchtitan.train \\\n  " + " \\\n  ".join(words) + "\n"


@cache
def _examples() -> dict[str, dict[str, str]]:
    with (DATA / "nanotron_examples.csv").open(encoding="utf-8", newline="") as file:
        return {row["recipe"]: row for row in csv.DictReader(file)}


def _nanotron(row: Mapping[str, str]) -> str:
    """YAML of nanotron; sizes of its example models from ``tests/data/nanotron_examples.csv``."""
    model = _examples()[row["recipe"]]
    gpus, tp, pp, cp = (int(row[key]) for key in ("gpus", "tp", "pp", "cp"))
    dp = gpus // (tp * pp * cp)
    sizes = {
        "num_hidden_layers": "layers",
        "hidden_size": "hidden",
        "num_attention_heads": "heads",
        "num_key_value_heads": "kv_heads",
        "intermediate_size": "ffn",
        "vocab_size": "vocab",
    }
    config = {f"is_{model['kind']}_config": True, "tie_word_embeddings": model["tied"] == "yes"}
    config |= {key: int(model[name]) for key, name in sizes.items()}
    if model["experts"]:
        config["moe_config"] = {"num_experts": int(model["experts"]), "top_k": 1}
    if model["window"]:
        config["sliding_window_size"] = int(model["window"])
    content = {
        "model": {"dtype": row["precision"], "model_config": config},
        "optimizer": {"zero_stage": int(row["dist_opt"].removeprefix("zero") or 0)},
        "parallelism": {
            "dp": dp,
            "tp": tp,
            "pp": pp,
            "context_parallel_size": cp,
            "expert_parallel_size": int(row["ep"]),
            "pp_engine": row["vpp"],
            "tp_mode": row["sp"],
        },
        "tokens": {
            "sequence_length": int(row["seq"]),
            "micro_batch_size": int(row["mbs"]),
            "batch_accumulation_per_replica": int(row["gbs"]) // (int(row["mbs"]) * dp),
        },
    }
    return yaml.safe_dump(content, sort_keys=False)
