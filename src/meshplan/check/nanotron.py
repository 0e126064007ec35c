"""nanotron: its YAML config.

References:
    1. ``src/nanotron/config`` at 2411b022.
"""

from __future__ import annotations

import re

from meshplan.check.documents import Values
from meshplan.check.foreign import foreign_keys
from meshplan.check.records import ForeignKey, Reading, Setting
from meshplan.space.plan import CpComm, Framework, Recompute, Schedule

__all__ = ["read_nanotron"]

_COUNTS = {
    "parallelism.dp": "dp",
    "parallelism.tp": "tp",
    "parallelism.pp": "pp",
    "parallelism.context_parallel_size": "cp",
    "parallelism.expert_parallel_size": "ep",
    "tokens.micro_batch_size": "micro_batch",
    "tokens.batch_accumulation_per_replica": "num_micro_batches",
    "tokens.sequence_length": "seq_len",
}
_MODEL = {
    "model.model_config.num_hidden_layers": "num_layers",
    "model.model_config.hidden_size": "hidden",
    "model.model_config.num_attention_heads": "num_heads",
    "model.model_config.num_key_value_heads": "num_kv_heads",
    "model.model_config.intermediate_size": "ffn_hidden",
    "model.model_config.vocab_size": "vocab",
    "model.model_config.sliding_window_size": "window_size",
    "model.model_config.moe_config.num_experts": "num_experts",
    "model.model_config.moe_config.top_k": "top_k",
    "model.model_config.moe_config.moe_intermediate_size": "expert_ffn_hidden",
}
_CP_COMM = {"ring": CpComm.P2P, "llama3_ring_attention": CpComm.ALL_GATHER}
_OTHER_MODEL = re.compile(r"model\.model_config\.is_\w+_config")
# What no job of ours says, and is listed as unknown.
_UNMODELLED = {"model.dtype": ("float32",)}


def read_nanotron(values: Values) -> Reading:
    """Read a nanotron config."""
    settings = values.counts(_COUNTS)
    engine = values.name(
        "parallelism.pp_engine", {"afab": Schedule.GPIPE, "1f1b": Schedule.ONE_F_ONE_B}
    )
    if engine is not None and settings.get("pp") and settings["pp"].value != 1:
        settings["schedule"] = values.setting("parallelism.pp_engine", engine)
    mode = values.name("parallelism.tp_mode", {"reduce_scatter": True, "all_reduce": False})
    tp = settings.get("tp")
    if mode is not None and tp is not None and tp.value != 1:
        settings["sp"] = values.setting("parallelism.tp_mode", mode)
    cp, attention = settings.get("cp"), "model.model_config._attn_implementation"
    comm = _CP_COMM.get(str(values.raw(attention)))
    if comm is not None and cp is not None and cp.value != 1:
        settings["cp_comm"] = values.setting(attention, comm)
    if values.raw("parallelism.recompute_layer") is True:
        settings["recompute"] = values.setting("parallelism.recompute_layer", Recompute.FULL)
    zero = values.count("optimizer.zero_stage", least=0)
    settings["zero"] = values.setting("optimizer.zero_stage", zero or 0)
    kind = "optimizer.optimizer_factory.name"
    if (optimizer := values.name(kind, {"adamw": "adamw", "sgd": "sgd"})) is not None:
        settings["optimizer"] = values.setting(kind, optimizer)
    dtype = values.name("model.dtype", {"bfloat16": "bf16", "float16": "fp16", "float32": ""})
    if dtype:
        settings["precision"] = values.setting("model.dtype", dtype)
    model = values.counts(_MODEL)
    if model:
        fixed = {"gated": True, "bias": False, "norm": "RMSNorm", "positions": "rope"}
        here = values.source.name
        model |= {k: Setting(value=v, where=here, spelled="-") for k, v in fixed.items()}
        tied = values.raw("model.model_config.tie_word_embeddings")
        model["untied"] = values.setting("tie_word_embeddings", tied is not True)
        if values.raw("model.model_config.attention_bias") is True:
            model["qkv_bias"] = values.setting("attention_bias", True)
    unknown = tuple(
        values.setting(key, f"{key}: {word}")
        for key, words in _UNMODELLED.items()
        for word in words
        if values.raw(key) == word
    )
    return Reading(
        framework=Framework.NANOTRON,
        settings=settings,
        model=model,
        unknown=unknown,
        foreign=_foreign(values),
    )


def _foreign(values: Values) -> tuple[ForeignKey, ...]:
    """Keys that nanotron does not have.

    A script may bring a model of its own, which names itself as those of nanotron do
    (``is_llama_config``, reference 1: models_config.py); its keys are not known here.
    """
    found = foreign_keys(values, "nanotron")
    own = [key for key in found if _OTHER_MODEL.fullmatch(key.key)]
    parts = ("model.model_config.", "model.init_method.") if own else ()
    return tuple(key for key in found if not key.key.startswith(parts))
