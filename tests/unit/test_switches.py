"""Settings of a framework worth turning on: what they gain, where they apply, how they are said."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from typing import Any

import pytest
import yaml

from meshplan.app import service
from meshplan.app.cli.main import run as command_line
from meshplan.app.request import read_plan, read_scenario
from meshplan.app.sentences import switch_texts
from meshplan.errors import UserError
from meshplan.inputs.load.framework import memory_behaviour
from meshplan.inputs.load.presets import PRESETS
from meshplan.inputs.load.profile import framework_profile, stacks_of
from meshplan.inputs.load.switches import (
    least_gain,
    switches_of,
    switches_off,
    switches_undone,
)
from meshplan.inputs.profile import FrameworkProfile
from meshplan.inputs.scenario import Scenario
from meshplan.inputs.variants import split_variant
from meshplan.search import switches
from meshplan.space.rules import check_plan
from meshplan.text import LANGUAGES, has

MIXTURE = {
    "model": "mixtral-8x7b",
    "cluster": "32xH100",
    "job": {"seq_len": 4096, "global_batch": 512},
    "frameworks": ["megatron"],
    "axes": {"cp": [1], "etp": [1], "micro_batch": [1]},
}
DENSE = {
    "model": "llama-3.1-70b",
    "cluster": "64xH100",
    "job": {"seq_len": 8192, "global_batch": 1024},
    "frameworks": ["megatron"],
    "axes": {"cp": [1, 4], "micro_batch": [1]},
}


def _estimate(request: dict[str, Any], variant: str, plan: dict[str, Any]) -> dict[str, Any]:
    scenario = read_scenario({**request, "variant": variant})
    given = {name: value for name, value in plan.items() if name != "stage_layers" or value}
    assert not check_plan(scenario, read_plan(scenario, given))
    entry: dict[str, Any] = service.estimate({**request, "variant": variant, "plan": given})
    return entry["plans"][0]  # type: ignore[no-any-return]


@pytest.fixture(scope="module", params=[MIXTURE, DENSE], ids=["mixture", "dense"])
def answered(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    return request.param, service.plan(request.param)


def test_gains_are_those_of_two_estimates(answered: tuple[dict[str, Any], dict[str, Any]]) -> None:
    asked, answer = answered
    best = answer["plans"][0]
    assert answer["switches"]
    for item in answer["switches"]:
        for part in ("same", "best"):
            if item[part] is None:
                continue
            on = _estimate(asked, item["variant"], item[part]["plan"])
            assert item[part]["step_time_s"] == on["step_time_s"]
            assert item[part]["peak_bytes"] == on["memory"]["peak_bytes"]
            assert item[part]["saved_bytes"] == (
                best["memory"]["peak_bytes"] - on["memory"]["peak_bytes"]
            )
            saved = 1.0 - on["step_time_s"] / best["step_time_s"]
            assert item[part]["gain"] == pytest.approx(saved, rel=1e-12)
        if item["same"]:
            assert item["same"]["plan"] == best["plan"]
        gains = [item[part]["gain"] for part in ("same", "best") if item[part]]
        assert item["gain"] == max(gains) >= least_gain()


def test_the_best_plan_with_a_setting_is_what_a_search_with_it_finds(
    answered: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    asked, answer = answered
    for item in answer["switches"]:
        again = service.plan({**asked, "variant": item["variant"]})
        if item["best"]:
            assert item["best"]["plan"] == again["plans"][0]["plan"]
        else:
            known = item["same"]["step_time_s"]
            assert again["plans"][0]["step_time_s"] >= known
        # what is on already is not offered again, nor what excludes it
        later = {other["switch"] for other in again["switches"]}
        assert item["switch"] not in later
        assert all(item["switch"] in split_variant(o["variant"])[1] for o in again["switches"])


def test_the_most_stands_first(answered: tuple[dict[str, Any], dict[str, Any]]) -> None:
    gains = [item["gain"] for item in answered[1]["switches"]]
    assert gains == sorted(gains, reverse=True)


def test_mixtures_are_offered_the_overlapped_exchange_and_dense_models_are_not() -> None:
    mixture, dense = (service.plan(asked)["switches"] for asked in (MIXTURE, DENSE))
    found = {item["switch"]: item for item in mixture}
    assert found["overlapped-exchange"]["flags"] == ["--overlap-moe-expert-parallel-comm"]
    assert found["overlapped-exchange"]["variant"] == "megatron+overlapped-exchange"
    plan = (found["overlapped-exchange"]["best"] or found["overlapped-exchange"]["same"])["plan"]
    assert plan["ep"] > 1
    assert not {"overlapped-exchange", "graph-router"} & {item["switch"] for item in dense}


def test_nothing_is_shown_where_nothing_gains() -> None:
    asked = {"model": "llama-3.1-8b", "cluster": "8xH100", "job": {"seq_len": 8192}}
    asked["job"]["global_batch"] = 512  # type: ignore[index]
    on = "megatron+bf16-gradients"
    answer = service.plan({**asked, "frameworks": ["megatron"], "variant": on})
    assert answer["switches"] == []
    # a framework without settings has none to offer
    assert not switches_of("torchtitan")
    assert service.plan({**asked, "frameworks": ["torchtitan"]})["switches"] == []


def test_settings_that_cost_are_not_shown() -> None:
    """Plain all-to-all in place of a dispatcher that sends each token once to a device."""
    bridge = {**MIXTURE, "variant": "megatron-bridge"}
    best = service.plan(bridge)
    with_it = _estimate(bridge, "megatron-bridge+alltoall", best["plans"][0]["plan"])
    assert with_it["step_time_s"] > best["plans"][0]["step_time_s"]
    assert "alltoall" not in {item["switch"] for item in best["switches"]}


def test_pieces_of_tensor_parallel_traffic_are_not_offered_between_nodes() -> None:
    """Transformer Engine's buffers are mapped by the devices of one node or domain of NVLink."""
    offered = {}
    for tp, cluster in ((8, "64xH100"), (16, "64xH100"), (16, "64xGB200")):
        plan = {"tp": tp, "pp": 4, "vpp": 1, "zero": 1}
        asked = {**DENSE, "cluster": cluster, "axes": {}, "plan": plan}
        answer = service.estimate(asked, with_remedies=False)
        offered[tp, cluster] = "tp-overlap" in {item["switch"] for item in answer["switches"]}
    assert offered == {(8, "64xH100"): True, (16, "64xH100"): False, (16, "64xGB200"): True}


def test_a_setting_that_makes_a_plan_fit_is_offered() -> None:
    """16-bit gradients save two bytes per parameter of the busiest device."""
    plan = {"tp": 4, "pp": 4, "vpp": 1, "zero": 1, "recompute": "none"}
    for layout in (plan, {**plan, "pp": 8}, {**plan, "tp": 8}):
        given = {**DENSE, "axes": {}, "plan": layout}
        off = service.estimate(given)
        on = service.estimate({**given, "variant": "megatron+bf16-gradients"})
        verdicts = [x["plans"][0]["memory"]["verdict"] for x in (off, on)]
        offered = {item["switch"]: item for item in off["switches"]}
        assert ("bf16-gradients" in offered) == (verdicts[0] != "fits" and verdicts[1] == "fits")


def test_settings_cost_one_evaluation_each_and_a_search_where_they_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The plans and their reasons come first; a given plan is never searched for."""
    counts = {"evaluate": 0, "rank_plans": 0}
    for name in counts:
        real = getattr(switches, name)

        def counted(*args: Any, real: Any = real, name: str = name, **options: Any) -> Any:
            counts[name] += 1
            return real(*args, **options)

        monkeypatch.setattr(switches, name, counted)
    steps = service.plan_steps(DENSE)
    first, second = next(steps), next(steps)
    assert first["plans"] and second["reasons"] and not any(counts.values())
    *_, whole = steps
    # of attention or whole layers as graphs, of tensor-parallel traffic in pieces and of 16-bit
    # gradients, the last two promise something
    assert counts == {"evaluate": 4, "rank_plans": 2}
    assert {item["switch"] for item in whole["switches"]} == {"bf16-gradients", "tp-overlap"}
    given = {"tp": 4, "pp": 4, "vpp": 1, "zero": 1}
    service.estimate({**DENSE, "axes": {}, "plan": given}, with_remedies=False)
    assert counts == {"evaluate": 8, "rank_plans": 2}


STACKS = stacks_of(["megatron"])
NAMES = tuple(switch.name for switch in switches_of("megatron"))
OTHER = {"alltoall": "flex", "flex": "alltoall", "tensorwise": "delayed", "delayed": "tensorwise"}
ONE = ("tensorwise", "delayed", "blockwise")


def _asked(model: str, precision: str, variant: str) -> Scenario:
    job = {"seq_len": 4096, "global_batch": 512, "precision": precision}
    asked = {"model": model, "cluster": "64xH100", "job": job, "frameworks": ["megatron"]}
    return read_scenario({**asked, "variant": variant})


def _stands_for(stack: str) -> dict[str, bool]:
    """What a setting stands for in traffic and memory, and whether a stack does it."""
    profile, memory = framework_profile("megatron", stack), memory_behaviour("megatron", stack)
    return {
        "alltoall": not profile.deduplicated_dispatch,
        "flex": profile.deduplicated_dispatch,
        "tensorwise": profile.current_scaling,
        "delayed": not profile.current_scaling and not profile.block_scaling,
        "blockwise": profile.block_scaling,
        "tp-overlap": profile.overlap_tensor > 0.0,
        "bf16-gradients": profile.gradient_bytes == 2,
        "fused-loss": profile.fused_loss,
        "fp8-weights": memory.low_precision["fp8"].weight_copy_bytes == 0.0,
        "overlapped-exchange": profile.overlap_experts > 0.0,
        "graph-attention": profile.graph_attention,
        "graph-router": profile.graph_router,
    }


@pytest.mark.parametrize("model", ["mixtral-8x7b", "llama-3.1-70b"])
def test_what_a_stack_has_on_is_not_offered(model: str) -> None:
    asked = _asked(model, "fp8", "megatron")
    for stack in STACKS:
        has = _stands_for(stack)
        offered = switches_off(replace(asked, variant=stack), "megatron")
        names = {switch.name for switch in offered.values()}
        assert not [name for name in names if has.get(name)], stack
        # of two recipes of scales the other one is
        assert ("delayed" if has["tensorwise"] else "tensorwise") in names, stack
        for variant, switch in offered.items():
            on = replace(asked, variant=variant)
            now = {s.name for s in switches_off(on, "megatron").values()}
            assert switch.name not in now, variant
            # and what it took the place of is
            assert switch.name not in OTHER or OTHER[switch.name] in now, variant


@pytest.mark.parametrize("stack", STACKS)
def test_a_setting_that_a_stack_has_changes_nothing_there(stack: str) -> None:
    for name in NAMES:
        asked = [_asked("mixtral-8x7b", "bf16", v) for v in (stack, f"{stack}+{name}")]
        if switches_undone("megatron", f"{stack}+{name}"):
            profiles = [framework_profile("megatron", a.variant) for a in asked]
            values = [{k: v for k, v in _numbers(p).items()} for p in profiles]
            assert values[0] == values[1], (stack, name)
    # recipes that have it on were fitted, each with a share of its own
    for own in ("nemo", "megatron-bridge", "mlperf"):
        assert switches_undone("megatron", f"{own}+tp-overlap") == ("tp-overlap",)


def _numbers(profile: FrameworkProfile) -> dict[str, object]:
    return {f.name: getattr(profile, f.name) for f in fields(profile) if f.name != "sources"}


@pytest.mark.parametrize("pair", list(itertools.combinations(NAMES, 2)))
def test_settings_that_exclude_each_other_are_refused(pair: tuple[str, str]) -> None:
    """One option of the framework has one value, unless it lists modules; rules refuse others."""
    values: list[dict[str, str]] = [{}, {}]
    for known, name in zip(values, pair, strict=True):
        (switch,) = [s for s in switches_of("megatron") if s.name == name]
        for flag in switch.flags:
            option, _, value = flag.partition(" ")
            known[option] = value
    both = values[0].keys() & values[1].keys() - {"--cuda-graph-modules"}
    exclude = any(values[0][option] != values[1][option] for option in both)
    if exclude and not {"graph-layer"} & set(pair):  # of graphs a rule speaks
        with pytest.raises(UserError) as caught:
            _asked("mixtral-8x7b", "fp8", f"megatron+{pair[1]}+{pair[0]}")
        (problem,) = caught.value.problems
        assert problem.code == "contradicting_switches"
        assert problem.value == f"+{pair[1]} +{pair[0]}"
        return
    # what is named first does not matter
    ways = [f"megatron+{one}+{other}" for one, other in (pair, pair[::-1])]
    assert len({str(_numbers(framework_profile("megatron", way))) for way in ways}) == 1
    assert len({str(memory_behaviour("megatron", way)) for way in ways}) == 1


def test_every_setting_says_how_it_is_turned_on() -> None:
    text = (PRESETS / "profiles.yaml").read_text("utf-8")
    known = yaml.safe_load(text)["settings"]
    listed = {
        name: s for f in ("megatron", "torchtitan") for s in switches_of(f) for name in [s.name]
    }
    assert {name: entry["framework"] for name, entry in known.items()} == {
        name: switch.framework for name, switch in listed.items()
    }
    cautions = yaml.safe_load((PRESETS / "switches.yaml").read_text("utf-8"))["switches"]
    for switch in listed.values():
        assert switch.source.startswith("Megatron-LM megatron/")
        assert all(flag.startswith("--") for flag in switch.flags)
        for source in (cautions[switch.name].get("cautions") or {}).values():
            assert source.startswith("Megatron-LM megatron/")
        for lang in LANGUAGES:
            assert not switch.flags or has(f"switch.name.{switch.name}", lang)
            assert all(has(f"switch.caution.{code}", lang) for code in switch.cautions)
    # its arguments refuse it (arguments.py:1698)
    assert [name for name, switch in listed.items() if not switch.flags] == ["fused-loss"]


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_command_line_says_what_a_setting_gains(
    lang: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = service.plan(MIXTURE)
    for item in answer["switches"]:
        claim, how, *cautions = switch_texts(item, answer["plans"][0], lang)
        assert f"{item['gain']:.1%}" in claim
        assert f"--set variant={item['variant']}" in how
        assert all(flag in how for flag in item["flags"])
        assert len(cautions) == len(item["cautions"])
    line = ["plan", "mixtral-8x7b", "--cluster", "32xH100", "--seq-len", "4096", "--lang", lang]
    pins = [f"--set=axes.{axis}=1" for axis in ("cp", "etp", "micro_batch")]
    command_line([*line, "--global-batch", "512", "--framework", "megatron", *pins])
    told = "".join(capsys.readouterr().out.split())  # lines are broken to the width
    assert "--setvariant=megatron+overlapped-exchange" in told


def test_overlap_of_tensor_traffic_is_the_median_of_what_was_fitted() -> None:
    """The stacks whose recipes have it on: NeMo, Megatron-Bridge and MLPerf."""
    presets = yaml.safe_load((PRESETS / "profiles.yaml").read_text("utf-8"))
    fitted = [
        presets["frameworks"][name]["fitted"]["overlap_tensor"]
        for name in ("nemo", "megatron-bridge", "mlperf")
    ]
    assert presets["settings"]["tp-overlap"]["sourced"]["overlap_tensor"][0] == sorted(fitted)[1]


def test_scales_by_block_cost_their_bytes_and_no_further_pass() -> None:
    """Transformer Engine finds the maximum of a block in the pass that casts it.

    quantize_transpose_vector_blockwise.cu reads a tile of 128 x 128 once and writes both
    orientations, each with a 32-bit scale per 128 elements: 2 * 4 / 128 bytes an element beside the
    2 + 1 + 1 of delayed scaling. Scales of whole tensors take 2 more, for a pass over them.
    """
    asked = {**DENSE, "job": {**DENSE["job"], "precision": "fp8"}}
    plan = {"tp": 4, "pp": 4, "vpp": 1, "zero": 1, "sp": True, "recompute": "none"}
    on = {name: _estimate({**asked, "axes": {}}, f"megatron+{name}", plan) for name in ONE}
    step = {name: entry["step_time_s"] for name, entry in on.items()}
    assert step["delayed"] < step["blockwise"] < step["tensorwise"]
    extra = (step["blockwise"] - step["delayed"]) / (step["tensorwise"] - step["delayed"])
    assert extra == pytest.approx(2 * 4 / 128 / 2, rel=0.05)
    # a saved input has one 32-bit scale per 128 bytes
    peak = {name: entry["memory"]["peak_bytes"] for name, entry in on.items()}
    assert peak["delayed"] == peak["tensorwise"] < peak["blockwise"]
    behaviour = memory_behaviour("megatron", "megatron+blockwise").low_precision["fp8"]
    assert behaviour.input_bytes == 1 + 4 / 128
    # beside weights in 8 bits both hold
    both = memory_behaviour("megatron", "megatron+fp8-weights+blockwise").low_precision["fp8"]
    assert (both.input_bytes, both.weight_copy_bytes) == (1 + 4 / 128, 0.0)
