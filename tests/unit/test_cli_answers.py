"""Answers as people see them: widths, colour, languages, exit codes, files, and the same JSON."""

import json
import math
import re
from typing import get_args

import pytest

from meshplan.app import service
from meshplan.app.cli.layout import cell_len
from meshplan.app.cli.main import run
from meshplan.app.cli.render import blocks
from meshplan.app.cli.render.memory import GROUPS, group_of
from meshplan.text import LANGUAGES, catalog, has, t

JOB = ["--cluster", "8xH100", "--seq-len", "4096", "--global-batch", "64"]
MODEL = "llama-3.1-8b"
PINS = ["--pp", "1,2", "--cp", "1", "--recompute", "none,full", "--micro-batch", "1"]
REQUEST = {
    "model": MODEL,
    "cluster": "8xH100",
    "job": {"seq_len": 4096, "global_batch": 64},
}
COMMANDS = {
    "plan": ["plan", MODEL, *JOB, *PINS],
    "plan_with_budget": [
        *["plan", MODEL, *JOB, *PINS, "--set", "job.total_tokens=1T"],
        *["--set", "cluster.usd_per_gpu_hour=2.5", "--set", "job.deadline_days=30"],
    ],
    "plan_frameworks": ["plan", MODEL, *JOB, *PINS, "--framework", "megatron,torchtitan"],
    "plan_fewest": ["plan", MODEL, *JOB, *PINS, "--objective", "fewest_gpus"],
    "plan_nothing_fits": ["plan", "llama-3.1-405b", *JOB, "--pp", "1,8", "--recompute", "full"],
    "estimate": ["estimate", MODEL, *JOB, "--tp", "2", "--pp", "2"],
    "estimate_oom": ["estimate", "llama-3.1-70b", *JOB, "--pp", "8"],
    "compare": ["compare", MODEL, "tp=2,pp=2", "tp=1,zero=3", "tp=8", *JOB],
    "explain": ["explain", MODEL, *JOB, "--tp", "2", "--pp", "2"],
    "inspect": ["inspect", MODEL],
    "quick": ["quick", "7", "--gpus", "8"],
    "quick_beyond_the_rule": ["quick", "405", "--gpus", "64"],
    **{f"list_{k}": ["list", k] for k in ("models", "devices", "clusters", "rules", "frameworks")},
}
NOT_ONE_WAY = ("elapsed_s", "evaluations_per_s")
# what was assumed at first is stated by the file
STATED_NOW = ("assumptions",)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("LC_ALL", "LC_MESSAGES", "LANG", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def strict(monkeypatch):
    """A code without a sentence raises, where a reader would get the bare code."""
    monkeypatch.setattr(blocks, "has", lambda code, lang: True)


def shown(capsys, argv, *, code=None):
    found = run(argv)
    out, err = capsys.readouterr()
    assert code is None or found == code, err
    assert "Traceback" not in err
    assert "failed" not in err
    return out


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("name", COMMANDS)
def test_answers_fit_the_terminal_and_name_everything(capsys, strict, name, lang):
    out = shown(capsys, [*COMMANDS[name], "--lang", lang])
    assert out.strip()
    # a table whose columns are all numbers or names has no more to give
    too_wide = [x for x in out.splitlines() if cell_len(x) > 80]
    assert name.startswith("list") or too_wide == []
    assert "\x1b" not in out
    assert [x for x in out.splitlines() if x != x.rstrip()] == []
    assert "None" not in out
    assert "nan" not in out.split()


@pytest.mark.parametrize("width", [60, 100, 120, 200])
def test_the_plan_at_other_widths(capsys, strict, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    out = shown(capsys, COMMANDS["plan"], code=0)
    assert [x for x in out.splitlines() if cell_len(x) > width] == []
    assert "…" not in out, "something was cut"


def test_a_wide_terminal_gets_more_columns(capsys, monkeypatch):
    narrow = shown(capsys, COMMANDS["plan"])
    monkeypatch.setenv("COLUMNS", "140")
    wide = shown(capsys, COMMANDS["plan"])
    assert "tokens/s/GPU" not in narrow.split("what it gives")[0]
    assert "tokens/s/GPU" in wide.split("what it gives")[0]


@pytest.mark.parametrize("name", ["plan", "estimate", "explain", "inspect"])
def test_memory_is_never_called_gb(capsys, name):
    """Memory prints in GiB; GB stands only in bandwidth (and in a data sheet's own words)."""
    out = shown(capsys, COMMANDS[name])
    labels = re.findall(r"[\d.]+ GB(?!/s)", out.split("what was assumed")[0])
    assert labels == []


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("plan", 0),
        ("plan_nothing_fits", 1),
        ("estimate", 0),
        ("estimate_oom", 1),
        ("compare", 0),
        ("explain", 0),
        ("inspect", 0),
        ("quick", 0),
        ("list_models", 0),
    ],
)
def test_exit_codes(capsys, name, code):
    shown(capsys, COMMANDS[name], code=code)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["estimate", MODEL, *JOB, "--tp", "3"], ["3", "allowed: 1, 2, 4, 8"]),
        (["plan", "llama-3.1-8c", *JOB], ["llama-3.1-8b"]),
        (["plan", MODEL, "--cluster", "8xH10", *JOB[2:]], ["H100"]),
        (["plan", MODEL], ["--cluster 64xH100", "--seq-len is missing"]),
        (["plan", MODEL, *JOB, "--tp", "many", "--zero", "9"], ["many", "9"]),
        (["plan", MODEL, *JOB, "--set", "job.colour=red"], ["colour"]),
        (["plan", MODEL, *JOB, "--set", "nonsense"], ["nonsense"]),
        (["plan", "missing.yaml"], ["missing.yaml"]),
        (["compare", MODEL, "tp=2", *JOB], ["plans"]),
        (["compare", MODEL, "tp=2", "colour=red", *JOB], ["colour"]),
        (["compare", MODEL, "tp=2", "zero=1", "tp=2,zero=1", *JOB], ["plans.3", "plans.1"]),
        (["estimate", MODEL, *JOB, "--framework", "megatron,titan"], ["megatron, torchtitan"]),
        (["estimate", MODEL, *JOB, "--etp", "2"], ["etp 2", "dense"]),
        (["estimate", MODEL, *JOB, "--zero", "4"], ["allowed: 0, 1, 2, 3"]),
        (["plan", MODEL, *JOB, "--save-scenario", "x.json", "-o", "./x.json"], ["two files"]),
        (["compare", MODEL, "tp", "pp=2", *JOB], ["tp=8,pp=2"]),
        (["compare", MODEL, "tp=1,tp=2", "pp=2", *JOB], ["twice"]),
        (["estimate", MODEL, *JOB, "--tp", "1,2"], ["--tp 1,2", "meshplan plan"]),
        (["estimate", MODEL, *JOB, "--recompute", "none,full"], ["--recompute none,full"]),
        (["plan", MODEL, *JOB, "--tp", "1,,2"], ["''"]),
        (["plan", MODEL, *JOB, "--set", "job.deadline_days=3"], ["job.total_tokens=1T"]),
        (["quick", "-7", "--gpus", "8"], ["meshplan quick --help", "behind --"]),
        (["list", "sheep"], ["sheep", "models"]),
        (["schema", "sheep"], ["sheep", "scenario"]),
        (["inspect", "./no/such/config.json"], ["no/such"]),
        (["quick", "many", "--gpus", "8"], ["many"]),
        (["quick", "7", "--gpus", "8", "--device", "H1000"], ["H100"]),
        (["validate", "no.csv", "--models", "no.csv"], ["no.csv"]),
        (["validate", "no.csv"], ["no.csv"]),
        (["emit", "plans.json"], ["--to", "megatron, bridge"]),
        (["plan", MODEL, *JOB, *PINS, "-o", "no/such/folder/x.json"], ["no/such/folder"]),
    ],
)
def test_mistakes_get_a_sentence_and_a_way_out(capsys, argv, words):
    assert run(argv) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert "error: " in err
    assert "hint: " in err
    for word in words:
        assert word in err


def without(value, names=NOT_ONE_WAY):
    if isinstance(value, dict):
        return {k: without(v, names) for k, v in value.items() if k not in names}
    return [without(v, names) for v in value] if isinstance(value, list) else value


def test_the_json_is_what_the_service_returns(capsys):
    out = shown(capsys, [*COMMANDS["plan"], "--json"], code=0)
    axes = {
        "pp": ["1", "2"],
        "cp": ["1"],
        "recompute": ["none", "full"],
        "micro_batch": ["1"],
    }
    assert without(json.loads(out)) == without(service.plan({**REQUEST, "axes": axes}))


def test_the_names_that_scripts_rely_on(capsys):
    result = json.loads(shown(capsys, [*COMMANDS["plan"], "--json"]))
    entry = result["plans"][0]
    plan = (
        "framework tp sp pp vpp schedule cp ep etp dp dp_shard dp_replicate zero micro_batch "
        "num_micro_batches recompute"
    )
    assert set(plan.split()) <= entry["plan"].keys()
    assert {"step_time_s", "tokens_per_s_per_gpu", "mfu", "mfu_causal", "hfu"} <= entry.keys()
    assert {"peak_bytes", "usable_bytes", "verdict", "stages"} <= entry["memory"].keys()
    assert {"num_candidates", "num_legal", "elapsed_s"} <= result["searched"].keys()
    assert all(isinstance(count, int) for count in result["rejected"].values())
    inspected = json.loads(shown(capsys, ["inspect", MODEL, "--json"]))
    assert inspected["parameters"].keys() >= {"total", "active"}


def test_output_files(capsys, tmp_path):
    text, data = tmp_path / "plan.txt", tmp_path / "plan.json"
    assert shown(capsys, [*COMMANDS["plan"], "-o", str(text)], code=0) == ""
    assert "best plan" in text.read_text(encoding="utf-8")
    assert shown(capsys, [*COMMANDS["plan"], "-o", str(data)], code=0) == ""
    assert json.loads(data.read_text(encoding="utf-8"))["verb"] == "plan"


def test_a_saved_scenario_gives_the_same_answer(capsys, tmp_path):
    file = tmp_path / "scenario.yaml"
    first = shown(capsys, [*COMMANDS["plan"], "--json", "--save-scenario", str(file)], code=0)
    again = shown(capsys, ["plan", str(file), "--json"], code=0)
    ignored = NOT_ONE_WAY + STATED_NOW
    assert without(json.loads(again), ignored) == without(json.loads(first), ignored)


def test_options_override_a_scenario_file(capsys, tmp_path):
    file = tmp_path / "scenario.yaml"
    shown(capsys, [*COMMANDS["plan"], "--save-scenario", str(file)], code=0)
    changed = shown(capsys, ["plan", str(file), "--seq-len", "2048", "--tp", "2", "--json"], code=0)
    scenario = json.loads(changed)["scenario"]
    assert scenario["job"]["seq_len"] == 2048
    assert scenario["axes"]["tp"] == [2]
    assert scenario["axes"]["pp"] == [1, 2]


def test_estimate_takes_the_plan_that_a_scenario_pins(capsys, tmp_path):
    file = tmp_path / "scenario.yaml"
    file.write_text(
        f"model: {MODEL}\ncluster: 8xH100\njob: {{seq_len: 4096, global_batch: 64}}\n"
        "axes: {tp: [2], offload: [optimizer]}\n",
        encoding="utf-8",
    )
    plan = json.loads(shown(capsys, ["estimate", str(file), "--pp", "2", "--json"]))["plans"][0]
    assert (plan["plan"]["tp"], plan["plan"]["pp"]) == (2, 2)
    assert plan["plan"]["offload"] == "optimizer"


def test_colour_only_where_it_is_wanted(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in shown(capsys, COMMANDS["inspect"])
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in shown(capsys, COMMANDS["inspect"])


def test_schemas_are_json(capsys):
    for kind in ("scenario", "result"):
        schema = json.loads(shown(capsys, ["schema", kind], code=0))
        assert schema["$schema"].startswith("https://json-schema.org/")


def test_every_line_of_memory_has_a_group_on_purpose():
    codes = [c.removeprefix("memory.") for c in catalog("en") if c.startswith("memory.")]
    other_than_activations = {c for c in codes if group_of(c) != "activations"}
    states = re.compile(r"weight|gradient|optimizer|gathered|placeholder|bucket|reduced|loading")
    overheads = {"workspace", "imbalance", "fragmentation", "communicators"}
    overheads |= {"user_buffers", "graph_pool"}
    assert {c for c in codes if states.search(c)} | overheads == other_than_activations
    assert {group_of(code) for code in codes} == set(GROUPS)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_code_of_the_core_has_its_words(lang):
    """What a rare answer would show: every choice of a literal, every rule, every block."""
    from meshplan.cost.step import PARTS
    from meshplan.inputs.model import Ffn, Mixer
    from meshplan.provenance import Kind
    from meshplan.search.answer import DecidedBy
    from meshplan.search.fitting import Kind as RemedyKind
    from meshplan.search.sensitivity import Change
    from meshplan.space.rules import RULES

    needed = {f"part.{part}" for part in PARTS}
    needed |= {f"decided.{code}" for code in get_args(DecidedBy)}
    needed |= {f"cli.remedy.{code}" for code in get_args(RemedyKind)}
    needed |= {f"cli.change.{code}" for code in get_args(Change)}
    needed |= {f"cli.kind.{code}" for code in get_args(Kind)}
    needed |= {f"rule.{rule.code}" for rule in RULES}
    needed |= {f"cli.block.{kind.__name__}" for kind in (*get_args(Mixer), *get_args(Ffn))}
    assert sorted(code for code in needed if not has(code, lang)) == []


@pytest.fixture
def tables(tmp_path):
    """Two made-up runs of one model on one cluster, as someone would write them down."""
    models, runs = tmp_path / "models.csv", tmp_path / "runs.csv"
    models.write_text(
        "model_key,layers,hidden,ffn_hidden,heads,kv_heads,vocab\ntiny,32,4096,11008,32,32,32000\n",
        encoding="utf-8",
    )
    columns = (
        "row_id,source_id,framework,gpu,num_gpus,gpus_per_node,model_key,seq_len,global_batch,"
        "micro_batch,tp,pp,precision,step_time_s"
    )
    common = "lab,Megatron-LM,A100-80GB,8,8,tiny,4096,64,1"
    runs.write_text(
        f"{columns}\nlab:1,{common},8,1,bf16,12.5\nlab:2,{common},4,1,bf16,11.0\n",
        encoding="utf-8",
    )
    return runs, models


@pytest.mark.parametrize("lang", LANGUAGES)
def test_validate_and_calibrate_on_ones_own_runs(capsys, strict, tables, tmp_path, lang):
    runs, models = map(str, tables)
    out = shown(capsys, ["validate", runs, "--models", models, "--lang", lang], code=0)
    assert "2/2" in out
    profile = tmp_path / "profile.yaml"
    argv = ["calibrate", runs, "--models", models, "-o", str(profile), "--lang", lang]
    out = shown(capsys, argv, code=0)
    assert "lab:2" in out
    job = ["--cluster", "8xA100-80GB", "--seq-len", "4096", "--global-batch", "64", "--tp", "8"]
    before = json.loads(shown(capsys, ["estimate", MODEL, *job, "--json"]))["plans"][0]
    argv = ["estimate", MODEL, *job, "--profile", str(profile), "--json"]
    after = json.loads(shown(capsys, argv, code=0))["plans"][0]
    assert before["step_time_s"] != after["step_time_s"]


def test_calibrate_moves_predictions_towards_the_runs(capsys, tables):
    runs, models = map(str, tables)
    found = json.loads(shown(capsys, ["calibrate", runs, "--models", models, "--json"], code=0))
    assert found["after"]["mape"] < found["before"]["mape"]
    assert [run["row_id"] for run in found["runs"]] == ["lab:1", "lab:2"]
    assert run(["calibrate", runs, "--models", models, "--row", "lab:3"]) == 2


@pytest.mark.parametrize("lang", LANGUAGES)
def test_runs_that_contradict_each_other_move_hardly_anything(capsys, tables, lang):
    """One plan ran slower than predicted, then faster: no speed of the cluster explains both."""
    runs, models = tables
    text = runs.read_text("utf-8").replace(",4,1,bf16,11.0\n", ",8,1,bf16,10.8\n")
    runs.write_text(text, encoding="utf-8")
    argv = ["calibrate", str(runs), "--models", str(models)]
    found = json.loads(shown(capsys, [*argv, "--json"], code=0))
    assert found["after"]["mape"] == pytest.approx(found["before"]["mape"], abs=0.01)
    told = " ".join(shown(capsys, [*argv, "--lang", lang], code=0).split())
    assert {"en": "Hardly anything moved", "zh": "档案几乎没有变动"}[lang] in told


@pytest.mark.parametrize("lang", LANGUAGES)
def test_an_answer_that_follows_measured_runs_says_so(capsys, strict, tables, tmp_path, lang):
    """The runs differ from the profile by more than its numbers explain."""
    runs, models = tables
    text = runs.read_text("utf-8").replace(",8,1,bf16,12.5\n", ",8,1,bf16,22.5\n")
    runs.write_text(text.replace("Megatron-LM,A100-80GB", "Megatron-LM,H200"), encoding="utf-8")
    profile = tmp_path / "profile.yaml"
    argv = ["calibrate", str(runs), "--models", str(models), "-o", str(profile), "--lang", lang]
    assert {"en": "layouts kept: 2", "zh": "保留 2 种布局"}[lang] in told(capsys, argv)
    job = ["--cluster", "8xH200", "--seq-len", "4096", "--global-batch", "64", "--lang", lang]
    planned = told(capsys, ["plan", MODEL, *job, "--profile", str(profile)])
    assert {"en": "measured layouts in the profile (2)", "zh": "2 种实测布局"}[lang] in planned


def told(capsys, argv):
    """The text of an answer without its line breaks."""
    return " ".join(shown(capsys, argv, code=0).split())


@pytest.mark.parametrize("lang", LANGUAGES)
def test_runs_without_a_time_are_called_so(capsys, strict, tables, lang):
    runs, models = tables
    text = runs.read_text("utf-8").replace("step_time_s", "step_time_s,oom")
    runs.write_text(text.replace("12.5", ",true").replace("11.0", ",true"), encoding="utf-8")
    assert run(["calibrate", str(runs), "--models", str(models), "--lang", lang]) == 2
    said = "".join(capsys.readouterr().err.split())
    assert "".join(t("skipped.not_timed", lang).split()) in said


def test_runs_of_another_unit_are_refused_unless_one_insists(capsys, tables):
    """A time in milliseconds is a thousand times off."""
    runs, models = tables
    runs.write_text(runs.read_text("utf-8").replace("11.0\n", "11000\n"), encoding="utf-8")
    argv = ["calibrate", str(runs), "--models", str(models)]
    assert run(argv) == 2
    err = capsys.readouterr().err
    assert "lab:2" in err
    assert "--keep-far" in err
    assert shown(capsys, [*argv, "--keep-far", "--json"], code=0)


def test_calibrate_on_a_console_log(capsys, tmp_path):
    """Speeds of a log are those of the plan that the scenario pins."""
    log, file = tmp_path / "run.log", tmp_path / "scenario.yaml"
    line = "[titan] INFO - step: {step}  loss: 7.1  memory: 40.1GiB(50%)  tps: {tps}  tflops: 300\n"
    log.write_text("".join(line.format(step=i, tps=6_000 + i) for i in range(1, 6)))
    file.write_text(
        f"model: {MODEL}\ncluster: 8xH100\njob: {{seq_len: 8192, global_batch: 8}}\n"
        "axes: {zero: 3, micro_batch: 1}\n",
        encoding="utf-8",
    )
    argv = ["calibrate", str(log), "--scenario", str(file), "--json"]
    found = json.loads(shown(capsys, argv, code=0))
    measured = 8192 * 8 / 8 / 6_003.5
    assert found["runs"][0]["measured_step_time_s"] == pytest.approx(measured, rel=1e-3)
    assert abs(found["runs"][0]["after"]) < abs(found["runs"][0]["before"])


@pytest.mark.parametrize(
    ("text", "words"),
    [("nothing of use\n", ["run.log", "torchtitan"]), (None, ["run.log"])],
)
def test_logs_that_say_nothing(capsys, tmp_path, text, words):
    log = tmp_path / "run.log"
    if text:
        log.write_text(text)
    assert run(["calibrate", str(log), "--scenario", "any.yaml"]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert [word for word in [*words, "hint: "] if word not in err] == []


@pytest.mark.parametrize(
    ("lang", "said"),
    [
        ("en", ["unfused attention", "with dropout", "LoRA rank 8", "LoRA on mlp"]),
        ("zh", ["注意力实现 unfused", "使用 dropout", "LoRA 秩 8", "LoRA 作用于 mlp"]),
    ],
)
def test_a_job_is_told_in_words_and_not_as_fields(capsys, lang, said):
    stated = ["attention=unfused", "dropout=true", "task=lora", "lora_rank=8", "lora_targets=mlp"]
    settings = [part for one in stated for part in ("--set", f"job.{one}")]
    out = shown(capsys, ["plan", MODEL, *JOB, *PINS, *settings, "--lang", lang])
    head = "".join(out.split("\n\n")[0].split("\n"))
    assert [words for words in said if words.replace(" ", "") not in head.replace(" ", "")] == []
    assert "True" not in head and "lora_" not in head


@pytest.mark.parametrize(("deadline", "said"), [((), False), (("job.deadline_days=90",), True)])
def test_the_cheapest_speaks_of_a_deadline_only_where_there_is_one(capsys, deadline, said):
    sets = [f"--set={pair}" for pair in ("job.total_tokens=1B", *deadline)]
    argv = ["plan", MODEL, *JOB, *PINS, "--objective", "cheapest", *sets]
    told = " ".join(shown(capsys, argv).split())
    assert ("the cheapest that meets the deadline" in told) == said
    assert "the cheapest" in told


@pytest.mark.parametrize("objective", ["fastest", "fewest_gpus"])
def test_a_missed_deadline_says_how_many_gpus_at_least(capsys, objective):
    """Ten days for what takes years: the bound is proportional, and said as such."""
    command = ["plan", "llama-3.1-8b", "--cluster", "8xH100", "--seq-len", "4096"]
    command += ["--global-batch", "256", "--objective", objective, "--set", "axes.cp=1"]
    command += ["--set", "job.total_tokens=15T", "--set", "job.deadline_days=10"]
    run(command)
    said = capsys.readouterr().out
    assert "e+0" not in said
    run([*command, "--json"])
    result = json.loads(capsys.readouterr().out)
    entry = (result["plans"] or [result["closest"]])[0]
    least = math.ceil(entry["num_gpus"] * entry["run"]["days"] / 10)
    assert least > 1000
    assert f"at least {least:,} GPUs instead of 8" in " ".join(said.split())


@pytest.mark.parametrize("width", ["100", "130"])
def test_no_two_plans_with_another_degree_read_the_same(capsys, monkeypatch, width):
    """Plans of equal degrees and sharding tell their micro-batches, and recompute too."""
    monkeypatch.setenv("COLUMNS", width)
    job = ["llama-3.1-8b", "--cluster", "1xRTX4090", "--seq-len", "2048", "--global-batch", "16"]
    assert run(["plan", *job, "--set", "job.task=lora", "--framework", "megatron"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.lstrip().startswith("with  ")) + 1
    rows = [re.split(r" {2,}", line.strip()) for line in lines[first : lines.index("", first)]]
    named = [tuple(row[1:3] if width == "130" else row[1:2]) for row in rows]
    assert len(named) > 1 and len(set(named)) == len(named)


@pytest.mark.parametrize("kind", ["models", "devices", "clusters", "rules", "frameworks"])
def test_a_list_counts_what_it_lists(kind, capsys):
    assert run(["list", kind, "--lang", "en"]) == 0
    shown = capsys.readouterr().out
    items = service.list_things({"kind": kind})["items"]
    names = {item.get("code") or item["name"] for item in items}
    assert f"\n{len(names)} {kind}\n" in shown
    assert all(name in shown for name in names)
