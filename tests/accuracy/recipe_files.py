"""Official recipes as the files that a person would keep: what ``check`` reads."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache

import yaml

from meshplan.check.records import Source
from recipes import DATA, arguments_of

__all__ = ["file_of"]


def file_of(row: Mapping[str, str]) -> Source | None:
    """A recipe as one file; None where its model is none that the framework still has."""
    if row["source"].startswith("torchtitan"):
        return Source(name="recipe.sh", text=_torchtitan(row))
    if row["source"].startswith("nanotron"):
        text = _nanotron(row)
        return None if text is None else Source(name="recipe.yaml", text=text)
    return Source(name="recipe.sh", text=arguments_of(dict(row)))


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
    ]
    shard = dict(part.split("=") for part in row["fsdp"].split(","))["shard"]
    if shard != "-1":
        words.append(f"--parallelism.data_parallel_shard_degree {shard}")
    return "torchrun -m torchtitan.train \\\n  " + " \\\n  ".join(words) + "\n"


@cache
def _examples() -> dict[str, dict[str, str]]:
    with (DATA / "nanotron_examples.csv").open(encoding="utf-8", newline="") as file:
        return {row["recipe"]: row for row in csv.DictReader(file)}


def _nanotron(row: Mapping[str, str]) -> str | None:
    """YAML of nanotron; sizes of its example models from ``tests/data/nanotron_examples.csv``."""
    model = _examples().get(row["recipe"])
    if model is None:
        return None
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
