"""Command-line flags of Megatron-LM that a row lists, read into the columns that they belong to."""

from __future__ import annotations

import re

from meshplan.inputs.load.model_mapping import MOST_LAYERS
from meshplan.validate.table import Row, Skip, count

__all__ = ["pipeline_layout", "with_flags"]

_TOKENIZERS = {"GPTSentencePieceTokenizer": "256000", "Llama2Tokenizer": "32000"}
"""Vocabulary by tokenizer in NVIDIA's release tests: Nemotron's and Llama 2's."""
_LATENT = {"mla_qk_nope": "128", "mla_qk_rope": "64", "mla_v": "128"}
"""Megatron-LM's defaults of --qk-head-dim, --qk-pos-emb-head-dim and --v-head-dim."""

_LONGEST = 2 * MOST_LAYERS
"""Characters of a layout that is written out: one a layer, and one a stage."""


def with_flags(row: Row) -> Row:
    """Fill blank cells of a row from the flags in ``other_flags``.

    Raises:
        Skip: ``state_space_model`` where a hybrid's pattern is not given, or
            ``activation_offloading``, which is not modelled.
    """
    flags = row.get("other_flags", "")
    if "transformer-impl" not in flags and "tokenizer-type" not in flags:
        return row
    name = row.get("model", "")
    if name.startswith(("hybrid/", "nemotron/nemotron3")):
        raise Skip("state_space_model")
    if "offloading" in name:
        raise Skip("activation_offloading")
    filled = {"vocab": _flag(flags, "vocab-size")}
    filled["vocab"] = filled["vocab"] or _TOKENIZERS.get(_flag(flags, "tokenizer-type"), "")
    if row.get("attention_arch", "") == "MLA":
        filled |= _LATENT
        filled["mla_q_lora"] = _flag(flags, "q-lora-rank")
        filled["mla_kv_lora"] = _flag(flags, "kv-lora-rank")
    filled["mtp_layers"] = _flag(flags, "mtp-num-layers")
    dense = re.search(r"moe-layer-freq=\(\[0\]\*(\d+)", flags)
    filled["moe_dense_layers"] = dense[1] if dense else ""
    layout = pipeline_layout(flags)
    pp = count(row, "pp")
    if layout and pp:
        filled["vpp"] = str(len(layout) // pp)
    if name.startswith(("moe/", "mixtral/")) or "release" in name:
        filled["dropout"] = "0"  # these test configurations set both dropouts to 0.0
    blank = {key: value for key, value in filled.items() if value and not row.get(key)}
    return {**row, **blank}


def pipeline_layout(flags: str) -> tuple[int, ...]:
    """Layers per virtual stage of ``--pipeline-model-parallel-layout``, empty without one.

    ``Et*3|(tt|)*6mL`` is eight stages of 3, 2, 2, 2, 2, 2, 2 and 0 layers.

    Raises:
        Skip: ``senseless_number`` where it is longer than any model has layers.
    """
    found = re.search(r"pipeline-model-parallel-layout=([^;\s]+)", flags)
    if not found:
        return ()
    text = _written_out(r"\(([^)]*)\)\*(\d+)", found[1])
    text = _written_out(r"(t)\*(\d+)", text)
    return tuple(part.count("t") for part in text.split("|"))


def _written_out(pattern: str, text: str) -> str:
    """Write out the repeated parts of a layout."""
    length = len(text)
    for part, times in re.findall(pattern, text):
        # digits are counted first, since a number of very many of them takes long to read
        if len(times) > len(str(MOST_LAYERS)):
            raise Skip("senseless_number")
        length += len(part) * int(times)
    if length > _LONGEST:
        raise Skip("senseless_number")
    return re.sub(pattern, lambda m: m[1] * int(m[2]), text)


def _flag(flags: str, name: str) -> str:
    found = re.search(rf"(?:^|[;\s]){name}=([^;\s]+)", flags)
    return found[1] if found else ""
