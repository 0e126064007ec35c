"""Architectures that flags of Megatron-LM express in full or that are refused, nothing dropped."""

from dataclasses import replace

import pytest

from meshplan.emit.megatron_model import model_flags, model_obstacles
from meshplan.inputs.load.hf_config import load_model


def changed(name, **fields):
    model = load_model(name)
    return replace(model, layers=tuple(replace(layer, **fields) for layer in model.layers))


def test_gpt_oss_keeps_sinks_windows_and_its_gate():
    flags = dict((flag[0], flag[1:]) for flag in model_flags(load_model("gpt-oss-20b")))
    assert flags["--softmax-type"] == ("learnable",)
    assert flags["--window-size"] == ("127,0",)
    assert flags["--window-attn-skip-freq"] == ("([1]*1+[0]*1)*12",)
    assert flags["--activation-func-clamp-value"] == ("7.0",)
    assert "--quick-geglu" in flags and "--swiglu" not in flags


def test_a_window_that_the_first_layer_lacks_is_written():
    model = load_model("mistral-7b")
    first, *rest = model.layers
    inside = replace(first, mixer=replace(first.mixer, window_size=1024))
    whole = replace(first, mixer=replace(first.mixer, window_size=None))
    layers = (whole, *([inside] * len(rest)))
    flags = dict((f[0], f[1:]) for f in model_flags(replace(model, layers=layers)))
    assert flags["--window-size"] == ("1023,0",)
    assert flags["--window-attn-skip-freq"] == (f"([0]*1+[1]*{len(rest)})",)


def test_windows_of_two_sizes_are_refused():
    model = load_model("mistral-7b")
    kinds = [replace(model.layers[0].mixer, window_size=size) for size in (512, 1024)]
    layers = tuple(replace(layer, mixer=kinds[i % 2]) for i, layer in enumerate(model.layers))
    assert "mixed_attention" in codes(replace(model, layers=layers))


def test_a_second_mixer_is_refused():
    mixer = load_model("mamba-2.8b").layers[0].mixer
    assert codes(changed("llama-3.2-1b", second_mixer=mixer)) == ["mixer"]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("mpt-7b", "no_positions"),
        ("gpt-j-6b", "some_biases"),
        ("gpt-neox-20b", "parallel_block"),
        ("falcon-40b", "parallel_block"),
        ("command-r-35b", "parallel_block"),
    ],
)
def test_what_no_flag_says_is_refused(name, code):
    assert code in codes(load_model(name))


@pytest.mark.parametrize(
    "name",
    ["llama-3.1-8b", "qwen2.5-7b", "gpt3-175b", "starcoder2-7b", "deepseek-v3", "gpt-oss-20b"],
)
def test_what_flags_say_is_written(name):
    assert codes(load_model(name)) == []


def codes(model):
    return [obstacle.code for obstacle in model_obstacles(model)]
