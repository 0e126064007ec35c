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
    """Runs of Nemotron 3 on H100 and Blackwell lie in the band; of A100 none were published."""
    for cluster in ("64xA100-80GB", "64xH100", "64xGB300"):
        assert not uncovered_kinds(scenario(cluster=cluster))
    hybrid = "nemotron-3-nano-30b-a3b"
    for cluster in ("64xH100", "64xGB300"):
        assert uncovered_width(scenario(hybrid, cluster=cluster)) == 0.0
    case = scenario(hybrid, cluster="64xA100-80GB")
    assert uncovered_kinds(case) == {"state_space": 23}
    plain = base("qwen3-30b-a3b", "64xA100-80GB")
    assert base(hybrid, "64xA100-80GB") == pytest.approx(plain + uncovered_width(case))


def test_it_grows_with_the_share_of_such_blocks() -> None:
    whole = uncovered_width(scenario("gpt-oss-120b", cluster="64xA100-80GB"))
    part = uncovered_width(scenario("nemotron-3-nano-30b-a3b", cluster="64xA100-80GB"))
    assert whole > 0.0
    assert part == pytest.approx(whole * 23 / 52)


def test_a_profile_of_own_runs_needs_no_wider_band(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "own.yaml"
    file.write_text("name: own\nfitted: {gemm: 0.8}\n", encoding="utf-8")
    case = replace(scenario("gpt-oss-120b", cluster="64xA100-80GB"), profile=str(file))
    assert uncovered_width(case) == 0.0 and not uncovered_kinds(case)


@pytest.mark.parametrize(
    "model,cluster,codes",
    [
        ("llama-3.1-8b", "64xGB300", set()),
        ("gpt-oss-120b", "64xGB300", set()),
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
