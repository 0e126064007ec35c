"""Totals agree with the model classes of Transformers, to the last parameter.

``hf_class_totals.json`` was written by ``tools/hf_class_totals.py``: each class was built without
weights, as its defaults are and with every key changed once.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from meshplan.cost.parameters import count_parameters
from meshplan.errors import UserError
from meshplan.inputs.load.hf_class_defaults import CLASS_DEFAULTS
from meshplan.inputs.load.hf_config import model_from_config
from meshplan.inputs.load.hf_families import FAMILIES

DATA: dict[str, Any] = json.loads(
    (Path(__file__).parent / "hf_class_totals.json").read_text(encoding="utf-8")
)["families"]

# Variants that no published model has and that the class or the record treats differently.
EXCEPTIONS = {
    ("helium", "*"): "its output projection is hidden x hidden, whatever the heads",
    ("longcat_flash", "*"): "the class also allocates a gate for experts that compute nothing",
    ("zamba", "tie_word_embeddings"): "untied, the class gives each shared block its own weights",
    ("zamba2", "tie_word_embeddings"): "untied, the class gives each shared block its own weights",
    ("zamba", "attention_hidden_size"): "its norm keeps twice the hidden width",
    ("zamba2", "attention_hidden_size"): "its norm keeps twice the hidden width",
    ("afmoe", "attention_bias"): "its gate has no bias of its own",
    ("falcon_h1", "mamba_proj_bias"): "refused: the record has one flag for both projections",
    ("falcon_h1", "projectors_bias"): "refused: the record has one flag for both projections",
}


M3_TOTAL = 25_040_051_968  # the same class, built the same way with these lists


def total(config: dict[str, Any], **changes: Any) -> int:
    config = {**config, **changes}
    for key in ("num_experts_per_tok", "moe_topk"):  # null in some classes; sizes nothing
        if key in config and config[key] is None:
            config[key] = 1
    return count_parameters(model_from_config(config, name="x")).total


def heads_divide(config: dict[str, Any]) -> bool:
    heads, kv_heads = config.get("num_attention_heads"), config.get("num_key_value_heads")
    return not (isinstance(heads, int) and isinstance(kv_heads, int)) or heads % kv_heads == 0


KNOWN = sorted(set(DATA) & set(FAMILIES))


def test_most_decoder_classes_are_known() -> None:
    assert len(KNOWN) >= 100


@pytest.mark.parametrize("family", KNOWN)
def test_total_is_that_of_the_class(family: str) -> None:
    entry = DATA[family]
    if (family, "*") in EXCEPTIONS and family != "helium":
        pytest.skip(EXCEPTIONS[family, "*"])
    assert total(entry["config"]) == entry["total"]


@pytest.mark.parametrize("family", KNOWN)
def test_every_key_that_matters_is_read(family: str) -> None:
    entry = DATA[family]
    checked = 0
    for variant in entry["variants"]:
        key = variant["key"]
        config = {**entry["config"], **variant["set"]}
        if (family, "*") in EXCEPTIONS or (family, key) in EXCEPTIONS:
            continue
        if not heads_divide(config) or key in ("add_cross_attention", "is_decoder"):
            continue
        assert total(config) == variant["total"], key
        checked += 1
    if checked == 0:
        pytest.skip(EXCEPTIONS.get((family, "*"), "no key of this class changes its total"))


# Classes that hold vision or audio towers beside the text decoder, which is all that is counted.
COMPOSITE = {"got_ocr2", "moss_transcribe_diarize", "phi4_multimodal", "fuyu", "gemma3"}


@pytest.mark.parametrize("family", sorted(set(DATA) - set(FAMILIES)))
def test_an_unknown_type_is_refused_or_read_right(family: str) -> None:
    entry = DATA[family]
    if family in COMPOSITE:
        assert total(entry["config"]) < entry["total"]
        return
    try:
        found = total(entry["config"])
    except UserError:
        return
    assert found == pytest.approx(entry["total"], rel=0.005)


def test_a_copy_of_a_family_under_another_name_is_read_alike_or_refused() -> None:
    """The generic reading is within 0.5 % wherever it does not refuse."""
    read = 0
    for family in KNOWN:
        entry = DATA[family]
        if (family, "*") in EXCEPTIONS:
            continue
        config = {**entry["config"], "model_type": "somebodys_model", "architectures": None}
        try:
            found = total(config)
        except UserError:
            continue
        read += 1
        # What no key tells (gates on the output, sinks) is the 0.7 % of AFMoE at most.
        assert found == pytest.approx(entry["total"], rel=0.007), family
    assert read >= 20


def test_indexers_of_minimax_m3() -> None:
    """Four layers, one dense with full attention, three that pick their tokens."""
    config = {
        **DATA["minimax_m3_vl_text"]["config"],
        "num_hidden_layers": 4,
        "layer_types": ["full_attention"] + ["minimax_m3_sparse"] * 3,
        "mlp_layer_types": ["dense"] + ["sparse"] * 3,
    }
    assert total(config) == M3_TOTAL


@pytest.mark.parametrize("family", CLASS_DEFAULTS)
def test_what_sections_leave_out_is_what_the_classes_have(family: str) -> None:
    """All but the depth, which the golden classes were built without."""
    built = DATA[family]["config"]
    stated = {k: v for k, v in CLASS_DEFAULTS[family].items() if k != "num_hidden_layers"}
    assert stated == {key: built[key] for key in stated}
