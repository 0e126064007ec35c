"""Blocks that no measured run covers widen the band, and the answer says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_scenarios import scenario
from meshplan.app.document import document
from meshplan.inputs.blocks import kinds_of
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.load.profile import profile_of, uncovered_kinds, uncovered_width
from meshplan.text import LANGUAGES, t


def base(model: str, cluster: str) -> float:
    return profile_of(scenario(model, cluster=cluster), "megatron").band.base


def test_kinds_of_blocks() -> None:
    def kinds(name: str) -> set[str]:
        return {kind for layer in load_model(name).layers for kind in kinds_of(layer)}

    assert kinds("llama-3.1-8b") == {"attention", "mlp"}
    assert kinds("gpt-oss-120b") == {"attention", "window", "sinks", "experts", "clamped_experts"}
    assert kinds("deepseek-v3") == {"latent_attention", "mlp", "experts"}
    super_ = {"attention", "state_space", "experts", "latent_experts"}
    assert kinds("nemotron-3-super-120b-a12b") == super_


def test_the_band_is_wider_where_no_run_covers_a_block() -> None:
    """Runs of Nemotron 3 on H100 lie in the band, not all of Blackwell; of A100 none is known."""
    for cluster in ("64xA100-80GB", "64xH100", "64xGB300"):
        assert not uncovered_kinds(scenario(cluster=cluster))
    hybrid = "nemotron-3-nano-30b-a3b"
    assert uncovered_width(scenario(hybrid, cluster="64xH100")) == 0.0
    for cluster in ("64xGB300", "64xA100-80GB"):
        case = scenario(hybrid, cluster=cluster)
        assert uncovered_kinds(case) == {"state_space": 23}
        plain = base("qwen3-30b-a3b", cluster)
        assert base(hybrid, cluster) == pytest.approx(plain + uncovered_width(case))


def test_it_grows_with_the_share_of_such_blocks() -> None:
    whole = uncovered_width(scenario("gpt-oss-120b", cluster="64xA100-80GB"))
    part = uncovered_width(scenario("nemotron-3-nano-30b-a3b", cluster="64xA100-80GB"))
    assert whole > 0.0
    assert part == pytest.approx(whole * 23 / 52)


@pytest.mark.parametrize(
    "covers,kinds,wider",
    [
        ("{ampere: [attention, window, sinks, experts, clamped_experts]}", set(), 0.0),
        # half of the blocks have a window, and all have sinks and experts with clamped gates
        ("{ampere: [attention, mlp]}", {"window", "sinks", "clamped_experts"}, 1.0),
        ("{hopper: [attention]}", {"window", "sinks", "clamped_experts"}, 1.0),
        # a file that does not say what its runs had covers what published runs do
        ("null", {"window", "sinks", "clamped_experts"}, 0.0),
    ],
)
def test_a_profile_file_covers_the_blocks_of_its_runs(tmp_path, covers, kinds, wider) -> None:  # type: ignore[no-untyped-def]
    """For other blocks the band is as without the file, and wider where no run had such."""
    file = tmp_path / "own.yaml"
    file.write_text(f"fitted: {{gemm: 0.8}}\nband: {{base: 0.05}}\ncovers: {covers}\n", "utf-8")
    usual = scenario("gpt-oss-120b", cluster="64xA100-80GB")
    case = replace(usual, profile=str(file))
    assert set(uncovered_kinds(case)) == kinds
    added = uncovered_width(usual) if kinds else 0.0
    usual_base = profile_of(usual, "megatron").band.base - uncovered_width(usual)
    expected = 0.05 + wider * (usual_base - 0.05) + added
    assert profile_of(case, "megatron").band.base == pytest.approx(expected)


def test_blocks_that_only_published_runs_had_take_the_band_of_those(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Mixtral on Hopper, with a profile of dense runs: published runs had experts, these not."""
    file = tmp_path / "own.yaml"
    text = "fitted: {gemm: 0.8}\nband: {base: 0.05}\ncovers: {hopper: [attention, mlp]}\n"
    file.write_text(text, "utf-8")
    dense = replace(scenario("llama-3.1-8b", cluster="64xH100"), profile=str(file))
    sparse = replace(scenario("mixtral-8x7b", cluster="64xH100"), profile=str(file))
    assert profile_of(dense, "megatron").band.base == pytest.approx(0.05)
    assert profile_of(sparse, "megatron").band.base == base("mixtral-8x7b", "64xH100") > 0.05
    codes = {a["code"]: a["value"] for a in document("plan", sparse)["assumptions"]}
    assert codes["blocks_of_no_own_run"] == "32 / 32"
    assert not any(code.startswith("uncovered_") for code in codes)


def test_own_runs_count_on_chips_that_nobody_published_runs_of(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plain = scenario("llama-3.1-8b", cluster="64xMI300X")
    family = plain.cluster.device.architecture
    file = tmp_path / "own.yaml"
    file.write_text(f"fitted: {{gemm: 0.8}}\ncovers: {{{family}: [attention, mlp]}}\n", "utf-8")
    assert uncovered_kinds(plain) and not uncovered_kinds(replace(plain, profile=str(file)))


@pytest.mark.parametrize(
    "model,cluster,codes",
    [
        ("llama-3.1-8b", "64xGB300", set()),
        ("gpt-oss-120b", "64xH100", set()),
        ("gpt-oss-120b", "64xGB300", {"sinks", "window", "clamped_experts"}),
        ("gpt-oss-120b", "64xA100-80GB", {"sinks", "window", "clamped_experts"}),
        ("nemotron-3-super-120b-a12b", "64xH100", {"latent_experts"}),
        ("llama-3.1-8b", "64xMI300X", {"chip"}),
        ("mixtral-8x7b", "64xV100", {"experts"}),  # dense models were run on V100
    ],
)
def test_the_answer_says_why(model: str, cluster: str, codes: set[str]) -> None:
    head = document("plan", scenario(model, cluster=cluster))
    said = {
        each["code"].removeprefix("uncovered_"): each["value"]
        for each in head["assumptions"]
        if each["code"].startswith("uncovered_")
    }
    assert set(said) == codes
    for code, value in said.items():
        for lang in LANGUAGES:
            assert value in t(f"assumed.uncovered_{code}", lang, value=value)


def test_every_kind_has_words() -> None:
    names = ("llama-3.1-8b", "gpt-oss-120b", "deepseek-v3.2", "qwen3-next-80b-a3b")
    models = [load_model(name) for name in (*names, "nemotron-3-super-120b-a12b")]
    found = {kind for model in models for layer in model.layers for kind in kinds_of(layer)}
    assert len(found) >= 11
    for kind in found | {"cross_attention", "short_convolution", "gated_recurrence"}:
        for lang in LANGUAGES:
            assert "3 / 7" in t(f"assumed.uncovered_{kind}", lang, value="3 / 7")
