"""What people hand in as a model: paths, folders, broken files, hub ids."""

import io
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from meshplan.cost.parameters import count_parameters
from meshplan.errors import UserError
from meshplan.inputs.load import hf_json, model_presets
from meshplan.inputs.load.hf_config import load_model, model_from_config
from meshplan.inputs.model import Attention, LatentAttention, Mlp
from meshplan.text import has

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
}


def fails(text: Any) -> tuple[str, ...]:
    """Codes of the problems; each has a sentence and a hint in both languages."""
    with pytest.raises(UserError) as caught:
        load_model(text)
    for problem in caught.value.problems:
        for lang in ("en", "zh"):
            assert has(f"error.{problem.code}", lang) and has(f"hint.{problem.code}", lang)
    return tuple(problem.code for problem in caught.value.problems)


def write(folder: Path, content: bytes | str, name: str = "config.json") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("family", "note", "gated"),
    [  # the defaults of Transformers 5.24, models/*/configuration_*.py
        ("llama", "hidden_act = silu (llama)", True),
        ("mistral", "hidden_act = silu (mistral)", True),
        ("qwen2", "hidden_act = silu (qwen2)", True),
        ("gemma", "hidden_act = gelu_pytorch_tanh (gemma)", True),
        ("nemotron", "hidden_act = relu2 (nemotron)", False),
        ("arcee", "hidden_act = relu2 (arcee)", False),
    ],
)
def test_an_activation_that_is_not_stated_is_the_family_s(
    family: str, note: str, gated: bool
) -> None:
    stated = {**LLAMA, "model_type": family, "head_dim": 128, "hidden_act": note.split()[2]}
    bare = {key: value for key, value in stated.items() if key != "hidden_act"}
    model = model_from_config(bare, name="m")
    assert ("model_default", note) in model.notes
    ffn = model.layers[0].ffn
    assert isinstance(ffn, Mlp) and ffn.gated == gated
    assert model.layers == model_from_config(stated, name="m").layers


def test_file_and_folder_are_read_alike(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    path = write(folder, json.dumps(LLAMA))
    assert load_model(str(path)).layers == load_model(str(folder)).layers
    assert load_model(folder).name == "my-model"
    assert load_model(path).name == "my-model"
    assert load_model(write(tmp_path, json.dumps(LLAMA), "mine.json")).name == "mine"


def test_a_folder_named_like_a_preset_is_reached_by_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "llama-3.1-70b"
    folder.mkdir()
    write(folder, json.dumps({**LLAMA, "num_hidden_layers": 2}))
    monkeypatch.chdir(tmp_path)
    assert load_model("llama-3.1-70b").num_layers == 80
    assert load_model("./llama-3.1-70b").num_layers == 2


@pytest.mark.parametrize("text", ["", "   ", "a\0b"])
def test_no_name_at_all(text: str) -> None:
    assert fails(text) == ("model_name_empty",)


def test_a_name_longer_than_any_is_unknown() -> None:
    assert fails("x" * 5000) == ("model_unknown_far",)


@pytest.mark.parametrize("text", ["./nowhere/config.json", "/no/such/file", "~/no.json", "a/b/c"])
def test_paths_that_do_not_exist(text: str) -> None:
    assert fails(text) == ("model_file_missing",)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("", "model_file_empty"),
        ("  \n ", "model_file_empty"),
        ("[1, 2]", "model_json_not_object"),
        ('"llama"', "model_json_not_object"),
        ("null", "model_json_not_object"),
        ('{"a": 1,}', "model_json_malformed"),
        ('{"hidden_size": 4096', "model_json_malformed"),
        ("hidden_size: 4096", "model_json_malformed"),
        (b"\x00\x01\x02\xff\xfe", "model_file_not_text"),
        (b"{\x00}", "model_file_not_text"),
        (b"PK\x03\x04\xff\xff", "model_file_not_text"),
        ('{"a": ' + "9" * 5000 + "}", "model_json_number_too_long"),
        ("[" * 100_000, "model_json_too_deep"),
        ('{"a":' * 80 + "1" + "}" * 80, "model_json_too_deep"),
    ],
)
def test_broken_files(tmp_path: Path, content: bytes | str, code: str) -> None:
    assert fails(write(tmp_path, content)) == (code,)


def test_malformed_json_names_line_and_column(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_model(write(tmp_path, '{\n  "hidden_size": 4096,\n  "vocab_size" 32000\n}'))
    numbers = caught.value.problems[0].numbers
    assert (numbers["line"], numbers["column"]) == (3, 16)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(2 * 2**30)  # sparse: takes no room on the disk
    read = 0

    class Counting(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            nonlocal read
            data = super().read(-1 if size is None else size)
            read += len(data)
            return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshplan.inputs.load.opening.opened", lambda path: Counting(path))
        assert fails(path) == ("model_file_too_large",)
    assert read == hf_json.MAX_CONFIG_BYTES + 1


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no such device on this system")
def test_a_device_is_no_file() -> None:
    assert fails("/dev/zero") == ("model_file_not_regular",)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps(LLAMA))
    path.chmod(0)
    assert fails(path) == ("model_file_unreadable",)


def test_nan_and_infinity_do_not_stop_the_reading(tmp_path: Path) -> None:
    text = json.dumps({**LLAMA, "time_step_limit": [0.0, float("inf")], "x": float("nan")})
    assert "Infinity" in text and "NaN" in text
    assert load_model(write(tmp_path, text)).hidden == 4096


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    assert load_model(write(tmp_path, json.dumps(LLAMA).encode(encoding))).hidden == 4096


def test_repeated_keys_are_noted(tmp_path: Path) -> None:
    text = json.dumps(LLAMA)[:-1] + ', "vocab_size": 32000}'
    model = load_model(write(tmp_path, text))
    assert model.vocab == 32000
    assert ("model_key_repeated", "vocab_size") in model.notes


def test_folders_without_a_model(tmp_path: Path) -> None:
    assert fails(tmp_path) == ("model_folder_without_config",)
    write(tmp_path, "{}", "adapter_config.json")
    assert fails(tmp_path) == ("model_folder_adapter",)


def test_a_hub_id_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert fails("someone/some-model") == ("model_hub_extra_missing",)


class RefusalError(Exception):
    """Stands for any error of huggingface_hub."""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("GatedRepoError", "model_hub_no_access"),
        ("RepositoryNotFoundError", "model_hub_not_found"),
        ("LocalEntryNotFoundError", "model_hub_unreachable"),
        ("EntryNotFoundError", "model_hub_no_config"),
        ("HfHubHTTPError", "model_hub_not_found"),
        ("HFValidationError", "model_hub_not_found"),
        ("ConnectionError", "model_hub_unreachable"),
    ],
)
def test_what_the_hub_may_answer(monkeypatch: pytest.MonkeyPatch, error: str, code: str) -> None:
    names = (
        "GatedRepoError",
        "RepositoryNotFoundError",
        "LocalEntryNotFoundError",
        "EntryNotFoundError",
        "HfHubHTTPError",
        "HFValidationError",
    )
    errors = ModuleType("huggingface_hub.errors")
    for name in names:
        setattr(errors, name, type(name, (RefusalError,), {}))
    hub = ModuleType("huggingface_hub")

    def download(repository: str, file: str) -> str:
        assert (repository, file) == ("someone/some-model", "config.json")
        raise getattr(errors, error, ConnectionError)("no")

    monkeypatch.setattr(hub, "hf_hub_download", download, raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
    assert fails("someone/some-model") == (code,)


def test_a_hub_id_that_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, json.dumps(LLAMA))
    hub, errors = ModuleType("huggingface_hub"), ModuleType("huggingface_hub.errors")
    monkeypatch.setattr(hub, "hf_hub_download", lambda *_: str(path), raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
    assert load_model("someone/some-model").name == "someone/some-model"


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("hidden_size", "4096", "model_key_not_count"),
        ("hidden_size", 4096.5, "model_key_not_count"),
        ("hidden_size", True, "model_key_not_count"),
        ("hidden_size", [4096], "model_key_not_count"),
        ("hidden_size", float("nan"), "model_key_not_count"),
        ("hidden_size", float("inf"), "model_key_not_count"),
        ("hidden_size", 0, "model_key_range"),
        ("hidden_size", -4096, "model_key_range"),
        ("hidden_size", 10**30, "model_key_range"),
        ("num_hidden_layers", 10**6, "model_key_range"),
        ("vocab_size", None, "model_key_missing"),
        ("tie_word_embeddings", "false", "model_key_not_bool"),
        ("tie_word_embeddings", 0, "model_key_not_bool"),
        ("num_attention_heads", 33, "model_hidden_not_divisible"),
        ("num_key_value_heads", 5, "model_kv_heads_not_divisor"),
        ("num_key_value_heads", 64, "model_kv_heads_not_divisor"),
        ("hidden_act", 7, "model_key_not_name"),
        ("model_type", 7, "model_key_not_name"),
        ("n_embd", 2048, "model_keys_disagree"),
        ("is_encoder_decoder", True, "model_encoder_decoder"),
        ("num_local_experts", 8, "model_key_unknown"),
        ("text_config", 7, "model_key_not_object"),
    ],
)
def test_wrong_values(tmp_path: Path, key: str, value: Any, code: str) -> None:
    codes = fails(write(tmp_path, json.dumps({**LLAMA, key: value})))
    assert code in codes


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    config = {**LLAMA, "hidden_size": "4096", "vocab_size": -1}
    del config["num_hidden_layers"]
    assert set(fails(write(tmp_path, json.dumps(config)))) == {
        "model_key_not_count",
        "model_key_range",
        "model_key_missing",
    }


def test_a_missing_key_is_named_with_its_aliases() -> None:
    with pytest.raises(UserError) as caught:
        model_from_config({k: v for k, v in LLAMA.items() if k != "hidden_size"}, name="x")
    problem = caught.value.problems[0]
    assert problem.where == "config.json: hidden_size"
    assert "n_embd" in problem.allowed


def test_unused_keys_are_noted() -> None:
    model = model_from_config({**LLAMA, "my_own_switch": 3, "attention_dropout": 0.1}, name="x")
    assert ("model_unread", "my_own_switch") in model.notes


@pytest.mark.parametrize("kind", ["t5", "bart", "whisper", "mt5", "nllb-moe"])
def test_encoder_decoders_are_refused(kind: str) -> None:
    with pytest.raises(UserError) as caught:
        model_from_config({"model_type": kind, "d_model": 512}, name="x")
    assert [p.code for p in caught.value.problems] == ["model_encoder_decoder"]


@pytest.mark.parametrize("kind", ["bert", "roberta", "deberta-v2", "modernbert", "electra"])
def test_encoders_are_refused(kind: str) -> None:
    with pytest.raises(UserError) as caught:
        model_from_config({"model_type": kind, "hidden_size": 768}, name="x")
    assert [p.code for p in caught.value.problems] == ["model_encoder"]


@pytest.mark.parametrize("kind", ["rwkv", "rwkv5", "rwkv7", "xlstm", "jetmoe", "retnet"])
def test_unknown_mixers_are_refused(kind: str) -> None:
    with pytest.raises(UserError) as caught:
        model_from_config({"model_type": kind, "hidden_size": 768}, name="x")
    assert [p.code for p in caught.value.problems] == ["model_mixer_unknown"]


META = {
    "dim": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "n_kv_heads": 8,
    "vocab_size": 128256,
    "multiple_of": 1024,
    "ffn_dim_multiplier": 1.3,
    "norm_eps": 1e-05,
    "rope_theta": 500000.0,
}
MISTRAL = {
    "dim": 4096,
    "n_layers": 32,
    "head_dim": 128,
    "hidden_dim": 14336,
    "n_heads": 32,
    "n_kv_heads": 8,
    "norm_eps": 1e-05,
    "vocab_size": 32000,
    "moe": {"num_experts_per_tok": 2, "num_experts": 8},
}


def test_params_json_of_meta_and_mistral(tmp_path: Path) -> None:
    folder = tmp_path / "native"
    folder.mkdir()
    write(folder, json.dumps({**META, "tied_embeddings": False}), "params.json")
    model = load_model(folder)
    assert model.layers == load_model("llama-3.1-8b").layers
    assert ("model_native", "params.json") in model.notes
    mixtral = model_from_config(MISTRAL, name="x")
    assert mixtral.layers == load_model("mixtral-8x7b").layers


def test_a_vocabulary_of_minus_one_is_missing() -> None:
    with pytest.raises(UserError) as caught:
        model_from_config({**META, "vocab_size": -1}, name="x")
    assert [p.where for p in caught.value.problems] == ["config.json: vocab_size"]


@pytest.mark.parametrize("key", sorted(META))
@pytest.mark.parametrize("value", [None, "x", -1, 0, float("nan"), 10**30, True, []])
def test_broken_params_json(key: str, value: Any) -> None:
    broken = {**META, key: value}
    if key in ("norm_eps", "rope_theta"):  # no size of anything
        assert (
            model_from_config(broken, name="x").layers == model_from_config(META, name="x").layers
        )
    elif value is None and key in ("n_kv_heads", "ffn_dim_multiplier"):  # may be left out
        assert model_from_config(broken, name="x").notes
    else:
        with pytest.raises(UserError) as caught:
            model_from_config(broken, name="x")
        assert all(has(f"error.{p.code}", "zh") for p in caught.value.problems)


def test_lists_that_go_on_with_blocks_of_further_tokens() -> None:
    """Some files append an entry per MTP block to their per-layer lists."""
    types = ["full_attention", "sliding_attention"] * 16
    config = {**LLAMA, "model_type": "ministral", "layer_types": types, "sliding_window": 512}
    whole = model_from_config(config, name="x")
    longer = {**config, "layer_types": [*types, "full_attention"], "num_nextn_predict_layers": 1}
    assert model_from_config(longer, name="x").layers == whole.layers
    with pytest.raises(UserError):
        model_from_config({**longer, "num_nextn_predict_layers": 2}, name="x")


def test_sections_state_what_the_outer_level_leaves_open() -> None:
    inner = {k: v for k, v in LLAMA.items() if k not in ("model_type", "tie_word_embeddings")}
    outer = {"model_type": "llava", "tie_word_embeddings": True, "text_config": inner}
    model = model_from_config(outer, name="x")
    assert model.tied_embeddings and model.family == "llama"
    notes = dict(model.notes)
    assert notes["model_from_outside"] == "tie_word_embeddings = true"
    assert notes["model_default"] == "text_config.model_type = llama (llava)"
    inner["tie_word_embeddings"] = False
    model = model_from_config(outer, name="x")
    assert not model.tied_embeddings
    assert dict(model.notes)["model_ignored"] == "tie_word_embeddings = true"


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
def test_null_stands_for_what_every_class_takes_it_for(family: str) -> None:
    config = {**LLAMA, "model_type": family, "num_key_value_heads": None, "head_dim": None}
    model = model_from_config(config, name="x")
    mixer = model.layers[0].mixer
    assert isinstance(mixer, Attention)
    assert (mixer.num_kv_heads, mixer.head_dim) == (32, 128)
    assert any("num_key_value_heads" in value for _, value in model.notes)


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"model_type": "llama"},
        {"weight_map": {"a": "b"}, "metadata": {"total_size": 3}},
        {"added_tokens_decoder": {}, "model_max_length": 4096},
        {"text_config": {"model_type": "x"}},
    ],
)
def test_json_of_something_else(tmp_path: Path, content: dict[str, Any]) -> None:
    assert fails(write(tmp_path, json.dumps(content))) == ("model_not_a_config",)


def test_case_of_the_type_does_not_matter() -> None:
    assert model_from_config({**LLAMA, "model_type": "LLaMA"}, name="x").family == "llama"


def test_a_number_in_quotes_is_shown_with_them() -> None:
    with pytest.raises(UserError) as caught:
        model_from_config({**LLAMA, "hidden_size": "4096"}, name="x")
    assert caught.value.problems[0].value == '"4096"'


def test_zero_experts_of_longcat_are_identities():
    """The hub's config.json names their kind, which the class in transformers does not know."""
    config = {
        "model_type": "longcat_flash",
        "hidden_size": 6144,
        "ffn_hidden_size": 12288,
        "expert_ffn_hidden_size": 2048,
        "num_layers": 28,
        "num_attention_heads": 64,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 512,
        "moe_topk": 12,
        "zero_expert_num": 256,
        "zero_expert_type": "identity",
        "router_bias": False,
        "attention_bias": False,
        "vocab_size": 131072,
        "tie_word_embeddings": False,
    }
    assert count_parameters(model_from_config(config, name="longcat")).total == pytest.approx(
        560.7e9, rel=1e-3
    )
    with pytest.raises(UserError) as caught:
        model_from_config({**config, "zero_expert_type": "copy"}, name="longcat")
    assert "model_value_unsupported" in {p.code for p in caught.value.problems}


GLM_5_2: dict[str, Any] = json.loads(
    (Path(model_presets.__file__).parents[1] / "presets" / "models" / "glm-5.2.json").read_text()
)["config"]


def indexers(config: dict[str, Any]) -> list[bool]:
    """Which layers have an indexer of their own."""
    layers = model_from_config(config, name="x").layers
    mixers = [mixer for layer in layers for mixer in layer.mixers]
    assert all(isinstance(m, LatentAttention) and m.index_top_k == 2048 for m in mixers)
    return [getattr(m, "index_num_heads", 0) > 0 for m in mixers]


def test_layers_that_share_an_indexer_have_none() -> None:
    # GlmMoeDsaConfig of Transformers 5.24.0: the list, a pattern, or a schedule say the same
    listed = indexers(GLM_5_2)
    assert (sum(listed), listed[:7]) == (21, [True, True, True, False, False, False, True])
    bare = {k: v for k, v in GLM_5_2.items() if k != "indexer_types"}
    assert indexers({**bare, "index_topk_freq": 4, "index_skip_topk_offset": 3}) == listed
    pattern = "".join("F" if own else "S" for own in listed)
    assert indexers({**bare, "index_topk_pattern": pattern}) == listed
    assert all(indexers(bare))


def test_an_indexer_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    bare = {k: v for k, v in GLM_5_2.items() if k != "indexer_types"}
    unknown = {**bare, "indexer_types": ["full"] * 77 + ["half"]}
    assert fails(write(tmp_path, json.dumps(unknown))) == ("model_layer_type_unknown",)
    short = {**bare, "index_topk_pattern": "FS"}
    assert fails(write(tmp_path, json.dumps(short))) == ("model_list_length",)


# text sections as the hub's files have them: gemma-3-4b-it, paligemma-3b, llava-1.5-7b
COMPOSITES = {
    "gemma3": (
        {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
        3_880_263_168,
    ),
    # Gemma 2B (2,506,172,416) with 1,152 more rows in its embedding
    "paligemma": (
        {
            "hidden_size": 2048,
            "intermediate_size": 16384,
            "model_type": "gemma",
            "num_attention_heads": 8,
            "num_hidden_layers": 18,
            "num_key_value_heads": 1,
            "vocab_size": 257152,
        },
        2_506_172_416 + 1152 * 2048,
    ),
    # Llama 2 7B (6,738,415,616) with 64 more rows in embedding and head
    "llava": (
        {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
        6_738_415_616 + 2 * 64 * 4096,
    ),
}


@pytest.mark.parametrize("outer", COMPOSITES)
def test_sections_leave_out_what_their_class_has(outer: str) -> None:
    section, total = COMPOSITES[outer]
    model = model_from_config({"model_type": outer, "text_config": section}, name="x")
    assert count_parameters(model).total == total
    assert any(code == "model_default" for code, _ in model.notes)


def test_only_sections_leave_sizes_to_their_class() -> None:
    section, _ = COMPOSITES["llava"]
    with pytest.raises(UserError) as caught:
        model_from_config(section, name="x")
    assert [p.code for p in caught.value.problems] == ["model_not_a_config"]


@pytest.mark.parametrize(
    ("name", "parallel"),
    [("gpt-neox-20b", True), ("falcon-40b", True), ("phi-2", True), ("llama-2-7b", False)],
)
def test_blocks_run_side_by_side_where_the_class_does(name: str, parallel: bool) -> None:
    assert all(layer.parallel is parallel for layer in load_model(name).layers)


def test_the_larger_baichuan_has_no_rotary_positions() -> None:
    config = model_presets.load_preset("baichuan2-7b").config
    large = {k: v for k, v in config.items() if k != "max_position_embeddings"}
    assert _rotary(config)
    assert not _rotary(large)


def _rotary(config: Any) -> bool:
    mixer = model_from_config(config, name="x").layers[0].mixer
    assert isinstance(mixer, Attention)
    return mixer.rotary
