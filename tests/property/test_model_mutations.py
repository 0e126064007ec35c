"""Real configurations, mutated: a model or a UserError, and never silently another total."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshplan.cost.parameters import count_parameters
from meshplan.cost.shards import layer_shard
from meshplan.errors import UserError
from meshplan.inputs.load.hf_config import model_from_config
from meshplan.inputs.load.hf_json import parse_json
from meshplan.inputs.load.hf_names import ALIASES
from meshplan.inputs.load.model_presets import load_preset, model_names
from meshplan.inputs.model import Model
from meshplan.text import has, t
from shared_data import find_shared


def _configs() -> dict[str, dict[str, Any]]:
    """All presets, all shared files, and the defaults of every known class."""
    found = {f"preset {name}": dict(load_preset(name).config) for name in model_names()}
    golden = Path(__file__).parents[1] / "golden" / "hf_class_totals.json"
    for name, entry in json.loads(golden.read_text())["families"].items():
        found[f"class {name}"] = entry["config"]
    shared = find_shared()
    if shared is not None:
        for file in sorted((shared / "data" / "hf_configs").glob("[!_]*.json")):
            found[file.name] = parse_json(file.read_bytes(), where=file.name)[0]
    return found


CONFIGS = _configs()
READABLE = sorted(CONFIGS)
BAD = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    3,
    7,
    10**9,
    10**40,
    -(10**40),
    1.5,
    -0.0,
    0.0,
    1e400,
    float("nan"),
    float("-inf"),
    "",
    "4096",
    "auto",
    "silu",
    [],
    [1],
    [[]],
    ["full_attention"],
    {},
    {"a": 1},
    "\0",
    "模型",
    [None],
    [1.5, 2],
    [True] * 3,
    [10**9] * 40,
)


# Notes that say what was taken for a key that is not there.
SAYING = {"model_default", "model_derived", "model_from_outside", "model_unstated"}
TYPES = {"model_type", "architectures"}
# Keys under which a note may speak of another: names of one fact in different families.
SAME = {
    **{
        key: {"hidden_act"}
        for key in ("activation_function", "hidden_activation", "mlp_hidden_act", "activation")
    },
    "layer_types": {"sliding_window_pattern"},
}


def read(config: dict[str, Any]) -> int | None:
    """The total; None after a UserError whose every problem can be said in both languages."""
    try:
        model = model_from_config(config, name="x")
    except UserError as error:
        for problem in error.problems:
            for lang in ("en", "zh"):
                values = {
                    **problem.numbers,
                    "where": problem.where,
                    "value": problem.value,
                    "allowed": ", ".join(map(str, problem.allowed)),
                }
                assert t(f"error.{problem.code}", lang, **values)
                assert t(f"hint.{problem.code}", lang, **values)
        return None
    for code, value in model.notes:
        assert has(f"note.{code}", "en") and has(f"note.{code}", "zh")
        assert isinstance(value, str)
    parameters = count_parameters(model)
    assert 0 < parameters.active <= parameters.total
    return parameters.total


def paths(config: dict[str, Any], prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every key, nested ones too."""
    found = []
    for key, value in config.items():
        found.append((*prefix, key))
        if isinstance(value, dict):
            found += paths(value, (*prefix, key))
    return found


def changed(config: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy with one key set, or dropped where the value is ``...``."""
    copy = dict(config)
    if len(path) == 1:
        copy.pop(path[0], None)
        if value is not ...:
            copy[path[0]] = value
        return copy
    copy[path[0]] = changed(copy[path[0]], path[1:], value)
    return copy


def architecture(config: dict[str, Any]) -> tuple[Model, set[tuple[str, str]]] | None:
    """The model without what sizes nothing, and its notes; None where it is refused."""
    if read(config) is None:
        return None
    model = model_from_config(config, name="x")
    text = {k: v for k, v in model.other_parameters.items() if k != "vision_config"}
    bare = replace(model, notes=(), max_seq_len=0, family="", other_parameters=text)
    return bare, set(model.notes)


@pytest.mark.parametrize("name", READABLE)
def test_a_dropped_key_is_missed_or_its_default_is_noted(name: str) -> None:
    """Every single key: the architecture stays, or an error or a note names the key."""
    config = CONFIGS[name]
    whole = architecture(config)
    if whole is None:
        return
    before, known = whole
    for path in paths(config):
        without = changed(config, path, ...)
        found = architecture(without)
        if found is None or found[0] == before:
            continue
        key, (after, notes) = path[-1], found
        names = {key.lstrip("0")} | {k for k, others in ALIASES.items() if key in (k, *others)}
        names |= {other for k in names for other in ALIASES.get(k, ())}
        names |= SAME.get(key, set())
        new = notes - known
        said = [v for code, v in new if code in SAYING]
        by_type = any(code == "model_generic" for code, _ in new) and key in TYPES
        two_names = key == "hidden_act" and "activation_function" in config
        assert by_type or two_names or any(n in v for n in names for v in said), (
            path,
            before,
            after,
            new,
        )


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_value_anywhere_is_a_model_or_a_user_error(data: st.DataObject) -> None:
    config = CONFIGS[data.draw(st.sampled_from(READABLE))]
    for _ in range(data.draw(st.integers(1, 3))):
        keys = paths(config)
        path = data.draw(st.sampled_from(keys))
        value = data.draw(st.sampled_from((..., *BAD)))
        config = changed(config, path, value)
        if not config:
            return
    read(config)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_keys_of_one_family_in_another(data: st.DataObject) -> None:
    """What two configurations say, thrown together: read, or refused."""
    one = CONFIGS[data.draw(st.sampled_from(READABLE))]
    other = CONFIGS[data.draw(st.sampled_from(READABLE))]
    keys = data.draw(st.lists(st.sampled_from(sorted(other)), max_size=4))
    read({**one, **{key: other[key] for key in keys if key in other}})


@pytest.mark.parametrize("section", ["text_config", "language_config", "llm_config"])
@pytest.mark.parametrize("name", ["preset llama-3.1-8b", "preset qwen3-30b-a3b", "preset gpt2"])
def test_nesting_changes_nothing(name: str, section: str) -> None:
    config = CONFIGS[name]
    nested = {"model_type": "somebodys_vlm", section: config, "vision_config": {"hidden_size": 8}}
    assert read(nested) == read(config)
    deeper = {"thinker_config": nested, "model_type": "somebodys_omni"}
    assert read(deeper) == read(config)


@settings(max_examples=300, deadline=None)
@given(raw=st.binary(max_size=200))
def test_garbage_is_a_user_error(raw: bytes) -> None:
    try:
        value, _ = parse_json(raw, where="x")
    except UserError:
        return
    assert isinstance(value, dict)


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(model_names()),
    tp=st.sampled_from([1, 2, 4, 8, 16, 32]),
    ep=st.sampled_from([1, 2, 4, 8]),
    etp=st.sampled_from([1, 2, 4]),
)
def test_shards_cover_the_layer(name: str, tp: int, ep: int, etp: int) -> None:
    """The shards of all devices together hold at least the layer, and no less."""
    model = model_from_config(load_preset(name).config, name=name)
    for layer in model.layer_kinds:
        whole = layer_shard(layer, model, tp=1, ep=1, etp=1)
        part = layer_shard(layer, model, tp=tp, ep=ep, etp=etp)
        assert part.dense * tp >= whole.dense
        assert part.expert * ep * etp >= whole.expert
        assert part.replicated == whole.replicated
        assert math.isclose(part.total, part.dense + part.replicated + part.expert)
