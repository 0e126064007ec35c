"""Runs that a profile file holds count once; further ones are fitted together with them."""

import csv
from dataclasses import replace

import pytest
import yaml
from test_calibrate import cases_on

from meshplan.app.calibration import calibrate_profile
from meshplan.app.cli.main import run
from meshplan.app.validation import validate
from meshplan.errors import UserError
from meshplan.inputs.load.profile import cluster_profile, profile_of
from meshplan.inputs.load.profile_file import dump_profile, read_profile
from meshplan.text import LANGUAGES, t
from meshplan.validate.calibrate import calibrate
from meshplan.validate.held import fresh_runs, job_of

SIZES = {"layers": "24", "hidden": "2048", "heads": "16", "vocab": "50304"}
ROW = {
    "row_id": "1",
    "source_id": "mine",
    "framework": "megatron",
    "gpu": "A100-SXM-80GB",
    "num_gpus": "8",
    "seq_len": "2048",
    "global_batch": "64",
    "micro_batch": "2",
    "tp": "2",
    "pp": "2",
    "step_time_s": "1.4",
    **SIZES,
}
ROWS = [
    ROW,
    ROW | {"row_id": "2", "tp": "1", "step_time_s": "1.26"},
    ROW | {"row_id": "3", "tp": "4", "pp": "1", "step_time_s": "1.63"},
]


def write(path, rows):
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def fitted(tmp_path, rows, *, profile=None, name="profile.yaml"):
    """Calibrate on a table, write the profile down, and return its path and the answer."""
    request = {"runs": [write(tmp_path / "runs.csv", rows)], "profile": profile}
    found = calibrate_profile(request)
    path = tmp_path / name
    path.write_text(dump_profile(found["profile"]), "utf-8")
    return str(path), found


def counted(found):
    return [one["counted"] for one in found["runs"]]


def test_the_same_runs_again_leave_the_profile_as_it_is(tmp_path):
    first, one = fitted(tmp_path, ROWS)
    again, two = fitted(tmp_path, ROWS, profile=first, name="again.yaml")
    assert counted(one) == [True] * 3 and counted(two) == [False] * 3
    assert two["profile"] == one["profile"]
    assert two["before"] == two["after"] == pytest.approx(one["after"], rel=1e-9)
    with open(first) as a, open(again) as b:
        assert a.read() == b.read()


def test_what_a_run_is_called_does_not_make_it_another_one(tmp_path):
    first, _ = fitted(tmp_path, ROWS)
    renamed = [row | {"row_id": f"x{row['row_id']}", "source_id": "other"} for row in ROWS]
    assert counted(fitted(tmp_path, renamed, profile=first)[1]) == [False] * 3


@pytest.mark.parametrize(
    "change",
    [{"step_time_s": "1.401"}, {"tp": "1"}, {"global_batch": "128"}, {"layers": "26"}],
)
def test_another_time_layout_or_job_is_a_new_run(tmp_path, change):
    first, _ = fitted(tmp_path, ROWS[:1])
    assert counted(fitted(tmp_path, [ROW, ROW | change], profile=first)[1]) == [False, True]


def test_the_same_time_twice_in_one_table_is_a_repeat_and_across_tables_the_same_run(tmp_path):
    repeat = ROW | {"row_id": "9"}
    first, found = fitted(tmp_path, [ROW, repeat])
    assert counted(found) == [True, True]
    assert counted(fitted(tmp_path, [ROW, repeat], profile=first)[1]) == [False, False]
    third = ROW | {"row_id": "10"}
    assert counted(fitted(tmp_path, [ROW, repeat, third], profile=first)[1]) == [False] * 2 + [True]
    both = [write(tmp_path / name, [ROW]) for name in ("a.csv", "b.csv")]
    assert counted(calibrate_profile({"runs": both})) == [True, False]
    # one line copied twice is one run
    assert counted(fitted(tmp_path, [ROW, ROW])[1]) == [True, False]


def test_runs_one_after_the_other_are_fitted_as_all_at_once(tmp_path):
    """The order in which runs become known changes neither numbers nor band."""
    first, _ = fitted(tmp_path, ROWS[:2])
    _, later = fitted(tmp_path, ROWS[2:], profile=first)
    _, whole = fitted(tmp_path, ROWS)
    for name, value in whole["profile"]["fitted"].items():
        assert later["profile"]["fitted"][name] == pytest.approx(value, rel=0.01, abs=1e-9), name
    assert later["profile"]["band"]["base"] == pytest.approx(
        whole["profile"]["band"]["base"], rel=0.02
    )
    weights = [
        {run["tp"]: run["weight"] for run in found["profile"]["residuals"]["runs"]}
        for found in (later, whole)
    ]
    assert weights[0] == pytest.approx(weights[1], abs=0.01)
    assert len(later["profile"]["runs"]) == 3


def test_a_new_repeat_counts_and_does_not_make_the_band_of_other_layouts_narrow(tmp_path):
    first, one = fitted(tmp_path, ROWS[:1])
    _, two = fitted(tmp_path, [ROW | {"step_time_s": "1.41"}], profile=first)
    assert counted(two) == [True]
    bands = [found["profile"]["band"]["base"] for found in (one, two)]
    assert bands[1] == pytest.approx(bands[0], rel=0.1)
    assert len(two["profile"]["runs"]) == 2


def test_a_profile_without_its_runs_can_be_read_and_moved_on(tmp_path):
    """Files of before hold neither runs nor where the fit began."""
    path = tmp_path / "old.yaml"
    path.write_text("fitted: {gemm: 0.8, attention: 0.9}\nband: {base: 0.1}\n", "utf-8")
    moved, found = fitted(tmp_path, ROWS, profile=str(path))
    assert counted(found) == [True] * 3
    assert "start" not in found["profile"]
    assert counted(fitted(tmp_path, ROWS, profile=moved)[1]) == [False] * 3


def test_a_profile_says_which_blocks_its_runs_had(tmp_path):
    first, found = fitted(tmp_path, ROWS[:1])
    assert found["profile"]["covers"] == {"ampere": ["attention", "mlp"]}
    experts = {"moe_experts": "8", "moe_topk": "2", "moe_ffn": "4096"}
    _, more = fitted(tmp_path, [ROW | {"row_id": "7", "layers": "12", **experts}], profile=first)
    assert more["profile"]["covers"] == {"ampere": ["attention", "experts", "mlp"]}


def test_numbers_that_a_file_leaves_out_are_those_of_the_default_profile(tmp_path):
    path = tmp_path / "part.yaml"
    path.write_text("fitted: {gemm: 0.8}\n", "utf-8")
    for family in ("hopper", "blackwell"):
        found, usual = cluster_profile(str(path), family), cluster_profile("default", family)
        assert replace(found, name=usual.name, sources=usual.sources) == replace(usual, gemm=0.8)
        assert found.sources["attention"] == usual.sources["attention"]


def test_the_answer_says_what_a_file_leaves_to_the_default(tmp_path, capsys):
    path = tmp_path / "part.yaml"
    path.write_text("fitted: {gemm: 0.8}\n", "utf-8")
    job = ("--cluster", "8xH100", "--seq-len", "4096", "--global-batch", "64", "--tp", "2")
    run(["estimate", "llama-3.2-1b", *job, "--profile", str(path), "--json"])
    assert '"profile_filled"' in capsys.readouterr().out
    for lang in LANGUAGES:
        assert "attention" in t("assumed.profile_filled", lang, value="attention")


def test_a_profile_can_stand_in_the_scenario_itself():
    (case, *_) = cases_on({}, 1)
    text = "fitted:\n  gemm: 0.5\n"
    own = replace(case.scenario, profile=text)
    assert profile_of(own, "megatron").cluster.gemm == 0.5
    assert read_profile(text)["fitted"] == {"gemm": 0.5}


@pytest.mark.parametrize(
    ("text", "code", "where"),
    [
        ("runs: 5", "bad_runs", "runs"),
        ("runs: [1]", "bad_runs", "runs[0].run"),
        ("runs: [{run: a, job: xyz}]", "bad_runs", "runs[0].job"),
        ("start: nowhere", "unknown_profile", "start"),
        ("start: [1]", "unknown_profile", "start"),
        ("covers: 5", "bad_coverage", "covers"),
        ("covers: {hopper: [dragons]}", "bad_coverage", "covers.hopper"),
        ("covers: {hopper: mlp}", "bad_coverage", "covers.hopper"),
        ("covers: {hopper: [[]]}", "bad_coverage", "covers.hopper"),
        ("answers: 42", "unknown_key_far", "answers"),
    ],
)
def test_what_no_profile_holds_is_the_users_mistake(tmp_path, text, code, where):
    path = tmp_path / "profile.yaml"
    path.write_text(f"fitted: {{gemm: 0.9}}\n{text}\n", "utf-8")
    with pytest.raises(UserError) as caught:
        cluster_profile(str(path))
    (problem,) = caught.value.problems
    assert problem.code == code and problem.where.endswith(where)


def test_runs_of_another_chip_do_not_join_a_profile(tmp_path):
    first, _ = fitted(tmp_path, ROWS)
    with pytest.raises(UserError, match="profile_of_another_chip"):
        fitted(tmp_path, [ROW | {"gpu": "H100-SXM-80GB"}], profile=first)


def test_validate_takes_the_profile(tmp_path):
    first, found = fitted(tmp_path, ROWS)
    runs = write(tmp_path / "runs.csv", ROWS)
    without, with_it = (validate({"runs": runs, "profile": name}) for name in (None, first))
    assert with_it["groups"][0]["mape"] == pytest.approx(found["after"]["mape"])
    assert without["groups"][0]["mape"] == pytest.approx(found["before"]["mape"])


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_terminal_says_what_counted(tmp_path, capsys, lang):
    first, _ = fitted(tmp_path, ROWS[:2])
    paths = [write(tmp_path / "more.csv", ROWS), write(tmp_path / "same.csv", ROWS[:2])]
    for path, said in zip(paths, ("held", "all_held"), strict=True):
        count = 3 if said == "held" else 2
        assert run(["calibrate", path, "--profile", first, "--lang", lang]) == 0
        text = capsys.readouterr().out.replace("\n", "").replace(" ", "")
        words = t(f"cli.calibrate.{said}", lang, held=2, count=count)
        assert words.replace(" ", "") in text


def test_identity_of_a_run():
    one, two = cases_on({}, 2)
    assert job_of(one) != job_of(two)
    budget = replace(one.scenario.job, total_tokens=1e12, deadline_days=3.0)
    assert job_of(replace(one, scenario=replace(one.scenario, job=budget))) == job_of(one)
    held = calibrate([one]).book.runs
    assert fresh_runs([[one, two]], held) == [False, True]


def test_what_a_fit_was_is_written_as_it_is_read(tmp_path):
    found = calibrate(cases_on({"gemm": 0.7}, 3))
    path = tmp_path / "profile.yaml"
    path.write_text(dump_profile(found.document(sources=["a.csv"])), "utf-8")
    assert dict(read_profile(str(path))) == yaml.safe_load(path.read_text("utf-8"))
    assert read_profile(str(path))["start"] == "default"


@pytest.mark.parametrize(
    "name", ["7", "2024-01-01", "no", "1e3", "~", "a: b", "\x1b[31mred", "名字", ""]
)
def test_names_of_runs_come_back_as_they_were(tmp_path, name):
    rows = [row | {"row_id": name} for row in ROWS[:1]]
    first, found = fitted(tmp_path, rows)
    assert [run["run"] for run in read_profile(first)["runs"]] == [name]
    assert dict(read_profile(first)) == found["profile"]
    assert counted(fitted(tmp_path, rows, profile=first)[1]) == [False]
