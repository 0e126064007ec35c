"""Every rule has a source, sentences in both languages, and a plan that breaks it."""

import string
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest

from meshplan.inputs.load.scenario import load_scenario
from meshplan.inputs.model import Layer
from meshplan.inputs.scenario import Scenario
from meshplan.space.complete import complete_plan
from meshplan.space.facts import facts_of
from meshplan.space.names import to_text
from meshplan.space.plan import CpComm, Framework, Offload, Plan, PlanGrid, Schedule
from meshplan.space.rules import RULES, Rule, check_plan, rules_of
from meshplan.text import LANGUAGES, catalog, t
from rule_examples import EXAMPLES
from space_scenarios import (
    dense_model,
    enumerate_plans,
    latent_attention,
    mamba,
    mixer_model,
    model_of,
    moe_model,
    scenario,
)

REAL = [rule for rule in RULES if not rule.duplicate]
PLAN_FIELDS = {f.name for f in fields(Plan)}


def owner(rule: Rule) -> Framework | None:
    return rule.frameworks[0] if len(rule.frameworks) == 1 else None


def name_of(rule: Rule) -> str:
    return f"{owner(rule).name.lower() if owner(rule) is not None else 'all'}:{rule.code}"


def example(rule: Rule) -> tuple[object, Plan]:
    there, given = EXAMPLES[owner(rule), rule.code]
    framework = owner(rule)
    if framework is None:
        framework = Framework.MEGATRON
    return there, complete_plan(there, framework=framework, **given)


def test_every_example_belongs_to_a_rule():
    assert {(owner(rule), rule.code) for rule in REAL} == set(EXAMPLES)


@pytest.mark.parametrize("rule", REAL, ids=name_of)
def test_rule_refuses_its_example(rule):
    there, plan = example(rule)
    violations = check_plan(there, plan)
    assert rule.code in {v.code for v in violations}


@pytest.mark.parametrize("rule", REAL, ids=name_of)
def test_rule_says_where_it_stands(rule):
    assert rule.source
    assert (rule.version == "") == (owner(rule) is None)
    assert set(rule.reads) <= PLAN_FIELDS
    assert rule.axis in PLAN_FIELDS
    facts = facts_of(scenario(dense_model(num_layers=2), num_gpus=1))
    assert all(hasattr(facts, name) for name in rule.numbers)


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_rule_reads_what_it_declares(rule):
    """The predicate sees nothing but the fields that it names."""
    there = scenario(moe_model(), num_gpus=8)
    grid = PlanGrid.of([complete_plan(there, framework=rule.frameworks[0])])
    only = SimpleNamespace(**{name: getattr(grid, name) for name in rule.reads})
    legal = np.asarray(rule.legal(facts_of(there), only))
    assert legal.dtype == np.bool_


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("rule", REAL, ids=name_of)
def test_violation_has_its_sentences(rule, lang):
    there, plan = example(rule)
    found = next(v for v in check_plan(there, plan) if v.code == rule.code)
    for kind in ("error", "hint"):
        sentence = t(
            f"{kind}.rule_{rule.code}",
            lang,
            where=found.field,
            value=found.value,
            allowed=found.legal,
            **found.numbers,
        )
        assert sentence and "{" not in sentence
    assert f"rule.{rule.code}" in catalog(lang)


def test_both_languages_fill_in_the_same_values():
    def names(sentence: str) -> set[str]:
        return {field for _, field, _, _ in string.Formatter().parse(sentence) if field}

    for rule in REAL:
        for kind in ("error.rule_", "hint.rule_"):
            en, zh = (catalog(lang)[kind + rule.code] for lang in LANGUAGES)
            assert names(en) == names(zh), rule.code


DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp", "zero", "dp_replicate", "micro_batch")


@pytest.mark.parametrize("rule", REAL, ids=name_of)
def test_degrees_that_are_offered_obey_the_rule(rule):
    there, given = EXAMPLES[owner(rule), rule.code]
    _, plan = example(rule)
    found = next(v for v in check_plan(there, plan) if v.code == rule.code)
    assert found.value not in found.legal
    if found.field in DEGREES:
        for value in found.legal:
            changed = complete_plan(
                there, framework=plan.framework, **{**given, found.field: value}
            )
            assert rule.code not in {v.code for v in check_plan(there, changed)}


def test_codes_are_unique_within_a_framework():
    for framework in Framework:
        codes = [rule.code for rule in rules_of(framework) if not rule.duplicate]
        assert len(codes) == len(set(codes))


def test_zero_degrees_are_named():
    there = scenario(dense_model(num_layers=8), num_gpus=8)
    plan = complete_plan(there, framework=Framework.MEGATRON, tp=0)
    (found,) = [v for v in check_plan(there, plan) if v.field == "tp"]
    assert found.code == "degree_is_positive"


def test_uneven_layers_get_a_split_that_works():
    """46 layers on pp 4: 11+12+12+11, embedding and head counted (ms-swift issue 5737)."""
    there = scenario(dense_model(num_layers=46), num_gpus=8)
    plan = complete_plan(there, framework=Framework.MEGATRON, pp=4)
    (found,) = check_plan(there, plan)
    assert found.code == "layers_are_dealt"
    assert found.numbers["balanced"] == "11+12+12+11"
    assert found.legal == (1, 2)


def test_more_stages_than_layers_is_said_as_that():
    there = scenario(dense_model(num_layers=4), num_gpus=8)
    plan = complete_plan(there, framework=Framework.MEGATRON, pp=8)
    (found,) = check_plan(there, plan)
    assert found.code == "more_stages_than_layers"
    assert found.legal == (1, 2, 4)
    for lang in LANGUAGES:
        assert "4" in t("error.rule_more_stages_than_layers", lang, **found.numbers)


def test_batch_names_the_nearest_that_work():
    """Seven GPUs, micro-batch 2, global batch 256: 252 or 266 (OpenRLHF issue 346)."""
    there = scenario(dense_model(num_layers=8, heads=28), num_gpus=7, global_batch=256)
    plan = complete_plan(there, framework=Framework.DEEPSPEED, micro_batch=2)
    (found,) = check_plan(there, plan)
    assert found.code == "batch_divides"
    assert found.numbers["nearest_global_batch"] == "252, 266"


def test_a_missing_framework_feature_names_the_frameworks_that_have_it():
    there = scenario(dense_model(num_layers=8), num_gpus=8, task="qlora")
    plan = complete_plan(there, framework=Framework.MEGATRON)
    (found,) = check_plan(there, plan)
    assert (found.code, found.field) == ("task_exists", "framework")
    assert found.legal == (to_text(Framework.DEEPSPEED), to_text(Framework.ACCELERATE))


def test_zero_bubble_schedules_run_in_torchtitan():
    there = scenario(dense_model(num_layers=16), num_gpus=8)
    for schedule in Schedule:
        vpp = 1 if schedule in (0, 1, 3, 4, 5) else 2
        plan = complete_plan(
            there, framework=Framework.TORCHTITAN, pp=4, vpp=vpp, schedule=schedule
        )
        assert check_plan(there, plan) == (), schedule


@pytest.mark.parametrize("framework", Framework)
def test_defaults_of_a_framework_are_legal(framework):
    dense = scenario(dense_model(num_layers=8), num_gpus=16)
    for given in ({}, {"tp": 2}, {"cp": 2}, {"tp": 8}):
        assert check_plan(dense, complete_plan(dense, framework=framework, **given)) == ()
    if framework is not Framework.ACCELERATE:
        assert check_plan(dense, complete_plan(dense, framework=framework, pp=4)) == ()
    experts = scenario(moe_model(), num_gpus=16)
    assert check_plan(experts, complete_plan(experts, framework=framework)) == ()
    single = scenario(dense_model(num_layers=8), num_gpus=1)
    assert check_plan(single, complete_plan(single, framework=framework)) == ()


def test_a_lone_process_of_accelerate_shards_in_order_to_offload():
    """``accelerate launch --use_fsdp`` with one process: no mesh, so nothing to refuse."""
    there = scenario(dense_model(num_layers=4), num_gpus=1, gpus_per_node=1)
    offload = Offload.OPTIMIZER | Offload.PARAMETERS
    lone = complete_plan(there, framework=Framework.ACCELERATE, zero=3, offload=offload)
    assert not list(check_plan(there, lone))
    wider = scenario(dense_model(num_layers=4), num_gpus=2, gpus_per_node=2)
    whole = complete_plan(wider, framework=Framework.ACCELERATE, tp=2, zero=3)
    assert "fsdp_has_shards" in [broken.code for broken in check_plan(wider, whole)]


def stored_scores_codes(there: Scenario, framework: Framework, **given: object) -> set[str]:
    plan = complete_plan(there, framework=framework, **given)
    return {v.code for v in check_plan(there, plan)} & {"stored_scores_without_cp"}


STORED = scenario(dense_model(num_layers=8), num_gpus=8, attention="unfused")
REFUSED = {"stored_scores_without_cp"}


@pytest.mark.parametrize(
    "framework", [Framework.MEGATRON, Framework.TORCHTITAN, Framework.NANOTRON]
)
@pytest.mark.parametrize("cp_comm", CpComm)
def test_stored_scores_are_not_cut_along_the_sequence(framework, cp_comm):
    """Transformer Engine switches its unfused backend off, and no ring of the others has one."""
    flash = replace(STORED, job=replace(STORED.job, attention="flash"))
    assert stored_scores_codes(STORED, framework, cp=2, cp_comm=cp_comm) == REFUSED
    assert not stored_scores_codes(flash, framework, cp=2, cp_comm=cp_comm)
    assert not stored_scores_codes(STORED, framework)


def test_ulysses_takes_attention_that_stores_its_scores():
    """Each rank has whole sequences of its heads, for any kernel; torch's ring has its own."""
    accelerate = Framework.ACCELERATE
    for ring in (CpComm.P2P, CpComm.ALL_GATHER):
        assert stored_scores_codes(STORED, accelerate, cp=2, cp_comm=ring) == REFUSED
    ulysses = {"cp": 2, "cp_comm": CpComm.ALL_TO_ALL}
    assert not stored_scores_codes(STORED, accelerate, **ulysses)
    assert not stored_scores_codes(STORED, Framework.DEEPSPEED, **ulysses)


def test_stored_scores_matter_where_there_are_scores_of_all_tokens():
    """DSAttention of Megatron-LM gathers keys by itself (dsa.py:1805), without such a backend."""
    gather = {"framework": Framework.MEGATRON, "cp": 2, "cp_comm": CpComm.ALL_GATHER}
    indexed = latent_attention(index_num_heads=64)
    picking = replace(indexed, index_head_dim=128, index_top_k=2048)
    borrowing = replace(picking, index_num_heads=0, index_head_dim=0)
    mixed = model_of(
        *(Layer(mixer=m, ffn=None, num_norms=1) for m in (picking, latent_attention()))
    )
    for model, refused in (
        (mixer_model(picking), set()),
        (mixer_model(borrowing), set()),
        (mixer_model(latent_attention()), REFUSED),
        (mixed, REFUSED),
        (mixer_model(mamba()), set()),
    ):
        there = scenario(model, num_gpus=8, attention="unfused")
        assert stored_scores_codes(there, **gather) == refused, model.layers


STATED = [("8xA100", {"attention": "unfused"}, {1}), ("8xV100", {}, {1}), ("8xA100", {}, {1, 2})]


@pytest.mark.parametrize(("cluster", "job", "degrees"), STATED)
def test_what_is_enumerated_cuts_no_stored_scores(cluster, job, degrees):
    """V100 stores scores without being told to."""
    there = load_scenario(
        {
            "model": "llama-3.2-1b",
            "cluster": cluster,
            "job": {"seq_len": 16384, "global_batch": 16, "precision": "fp16", **job},
            "axes": {"cp": [1, 2]},
            "frameworks": ["megatron"],
        }
    )
    found = enumerate_plans(there)
    assert set(found.grid.cp.tolist()) == degrees
    assert ("stored_scores_without_cp" in found.rejected) == (2 not in degrees)
