"""The JSON Schema holds for real results, and every name in it is documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from meshplan.app import service
from meshplan.app.schema import KINDS, result_schema
from meshplan.app.schema_verbs import VERB_SCHEMAS
from meshplan.cost.step import PARTS
from meshplan.search.answer import DecidedBy
from meshplan.text import LANGUAGES

DOCS = Path(__file__).resolve().parents[2] / "docs"
ASKED = {
    "model": "llama-3.1-8b",
    "cluster": "16xH100",
    "job": {"seq_len": 8192, "global_batch": 64, "total_tokens": 1e12},
    "axes": {"cp": [1], "micro_batch": [1, 2]},
}


def results():
    yield service.plan(ASKED)
    yield service.plan({**ASKED, "objective": "pareto"})
    yield service.plan({**ASKED, "cluster": "1xH100", "axes": {}})  # nothing fits
    yield service.estimate({**ASKED, "plan": {"tp": 2}})
    yield service.estimate({**ASKED, "model": "llama-3.1-70b", "plan": {}})
    yield service.compare({**ASKED, "plans": [{"tp": 2}, {"tp": 4}]})
    yield service.explain(ASKED)


def test_schemas_are_schemas():
    for kind in KINDS:
        Draft202012Validator.check_schema(service.schema({"kind": kind}))


def test_results_follow_the_schema():
    validator = Draft202012Validator(result_schema())
    verbs = set()
    for result in results():
        errors = [f"{e.json_path}: {e.message[:200]}" for e in validator.iter_errors(result)]
        assert not errors
        verbs.add(result["verb"])
    assert verbs == {"plan", "estimate", "compare", "explain"}


ABOUT_PLANS = ("plan", "estimate", "compare", "explain")
NO_RESULTS = ("schema",)
LOG = "".join(
    f" iteration {i:8d}/ 100 | consumed samples: {64 * i:12d} | elapsed time per iteration (ms): "
    f"{5000 + i % 3}.0 | learning rate: 1.0E-04 | global batch size:    64 | lm loss: 1.0E+01 |\n"
    for i in range(1, 20)
)
SCRIPT = """torchrun pretrain_gpt.py --tensor-model-parallel-size {tp} --micro-batch-size 1 \\
  --global-batch-size 64 --seq-length 4096 --bf16 --sequence-parallel --strange-option 3
"""


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Runs that someone measured, in the form that ``validate`` reads."""
    folder = tmp_path_factory.mktemp("tables")
    models, runs = folder / "models.csv", folder / "runs.csv"
    models.write_text(
        "model_key,layers,hidden,ffn_hidden,heads,kv_heads,vocab\ntiny,32,4096,11008,32,32,32000\n"
    )
    columns = (
        "row_id,source_id,sweep_id,framework,gpu,num_gpus,gpus_per_node,model_key,seq_len,"
        "global_batch,micro_batch,tp,pp,precision,step_time_s,peak_mem_gib,oom\n"
    )
    common = "lab,a,Megatron-LM,A100-80GB,8,8,tiny,4096,64,1"
    runs.write_text(
        f"{columns}l1,{common},8,1,bf16,12.5,50,\nl2,{common},4,1,bf16,11.0,,\n"
        f"l3,{common},2,1,bf16,10.0,,\nl4,{common},1,1,bf16,,,yes\n"
    )
    return {"runs": str(runs), "models": str(models)}


def verb_results(folder, tables):
    """Real results of every verb that is not about a list of plans."""
    yield service.emit({**ASKED, "to": "megatron", "plan": {"tp": 2}})
    yield service.emit({**ASKED, "to": "accelerate", "launcher": "slurm"})
    for tp, model in ((2, "llama-3.1-8b"), (3, "llama-3.1-8b"), (2, "llama-3.1-70b")):
        path = folder / f"{model}-{tp}.sh"
        path.write_text(SCRIPT.format(tp=tp))
        yield service.check({"files": [str(path)], "model": model, "cluster": "16xH100"})
    yield service.learn({})
    yield from (service.learn({"chapter": str(number)}) for number in (1, 2, 5))
    yield service.learn({"chapter": "1", "quiz": True})
    yield service.validate({**tables, "details": True})
    yield service.calibrate({**tables, "runs": [tables["runs"]]})
    log = folder / "train.log"
    log.write_text(LOG)
    yield service.diagnose({"paths": [str(log)]})
    yield service.diagnose({**ASKED, "plan": {"tp": 2}, "paths": [str(log)], "timeline": True})
    yield service.diagnose({"stage_times": "1.0,1.4,1.0,1.0", "cluster": "16xH100"})
    yield service.diagnose({**ASKED, "plan": {"tp": 2}, "allocation": "12.94 GiB"})
    for model in ("llama-3.1-8b", "deepseek-v3", "jamba-mini-52b"):
        yield service.inspect({"model": model})
    for kind in ("models", "devices", "clusters", "rules", "frameworks"):
        yield service.list_things({"kind": kind})
    yield service.quick({"num_params_b": 7, "num_gpus": 8})
    yield service.quick({"num_params_b": 1000, "num_gpus": 3})


def test_every_verb_has_a_schema():
    verbs = {name.replace("list_things", "list") for name in service.__all__}
    verbs -= {"plan_steps"}  # plan, told step by step
    assert verbs == {*ABOUT_PLANS, *NO_RESULTS, *VERB_SCHEMAS}


def test_results_of_every_verb_follow_their_schema(tables, tmp_path):
    seen = set()
    for result in verb_results(tmp_path, tables):
        verb = result["verb"]
        validator = Draft202012Validator(service.schema({"kind": verb}))
        errors = [f"{verb} {e.json_path}: {e.message[:200]}" for e in validator.iter_errors(result)]
        assert not errors
        broken = {**result, "verb": verb, "one_name_more": 1}
        assert list(validator.iter_errors(broken)), "a schema that takes anything says nothing"
        seen.add(verb)
    assert seen == set(VERB_SCHEMAS)


def test_scenario_echo_follows_the_schema():
    validator = Draft202012Validator(service.schema({"kind": "scenario"}))
    echo = service.estimate({**ASKED, "plan": {"tp": 2}})["scenario"]
    assert not list(validator.iter_errors(echo))


def names(schema):
    """Every property name, at any depth."""
    if isinstance(schema, dict):
        properties = schema.get("properties")
        if isinstance(properties, dict):
            yield from properties
        for value in schema.values():
            yield from names(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from names(item)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_name_is_documented(lang):
    page = (DOCS / lang / "json.md").read_text(encoding="utf-8")
    quoted = set(re.findall(r"`([a-z0-9_]+)`", page))
    schemas = [result_schema(), *(make() for make in VERB_SCHEMAS.values())]
    known = {name for schema in schemas for name in names(schema)}
    missing = {*known, *PARTS, *DecidedBy.__args__} - quoted
    assert not missing


def test_both_languages_document_the_same_names():
    pages = [(DOCS / lang / "json.md").read_text(encoding="utf-8") for lang in LANGUAGES]
    quoted = [set(re.findall(r"`([^`]+)`", page)) for page in pages]
    assert quoted[0] == quoted[1]
