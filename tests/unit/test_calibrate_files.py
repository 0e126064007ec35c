"""What people give to ``calibrate``: tables and logs, told apart by what they hold."""

import bz2
import csv
import gzip
import io
import lzma
import os
import shutil
import subprocess
import sys
import zipfile

import pytest
import yaml
from test_calibrate_again import ROW, ROWS

from meshplan.app.calibration import _MAY_BE, calibrate_profile
from meshplan.app.validation import validate
from meshplan.diagnose.read.log import FRAMEWORKS as LOGS
from meshplan.errors import UserError
from meshplan.text import LANGUAGES, has
from meshplan.validate.calibrate import MOST_RUNS

LOG = """\
  tensor_model_parallel_size ...................... 2
  micro_batch_size ................................ 1
  global_batch_size ............................... 64
  seq_length ...................................... 4096
{more} [2024-05-01 10:00:10] iteration        5/     100 | consumed samples:          320 | \
elapsed time per iteration (ms): 2510.0 | learning rate: 1.0E-04 | global batch size:    64 |
 [2024-05-01 10:00:13] iteration        6/     100 | consumed samples:          384 | \
elapsed time per iteration (ms): 2490.0 | learning rate: 1.0E-04 | global batch size:    64 |
 [2024-05-01 10:00:15] iteration        7/     100 | consumed samples:          448 | \
elapsed time per iteration (ms): 2500.0 | learning rate: 1.0E-04 | global batch size:    64 |
"""
SCENARIO = {
    "model": "llama-3.2-1b",
    "cluster": "8xH100",
    "job": {"seq_len": 4096, "global_batch": 64},
    "axes": {"zero": 1},
}


def table(rows=ROWS, *, delimiter=","):
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def zipped(data):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("runs.csv", data)
    return packed.getvalue()


PACKED = {
    "runs.csv": lambda data: data,
    "runs.csv.gz": gzip.compress,
    "runs.csv.xz": lzma.compress,
    "runs.bz2": bz2.compress,
    "runs.zip": zipped,
    # names say nothing
    "runs": lambda data: data,
    "runs.log": lambda data: data,
    "runs.txt": gzip.compress,
}


@pytest.mark.parametrize("name", PACKED)
def test_a_table_is_one_whatever_it_is_called_and_packed_in(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(PACKED[name](table().encode()))
    plain = tmp_path / "plain.csv"
    plain.write_text(table())
    found = calibrate_profile({"runs": [str(path)]})
    assert found["runs"] == calibrate_profile({"runs": [str(plain)]})["runs"]
    assert validate({"runs": str(path)})["groups"] == validate({"runs": str(plain)})["groups"]


@pytest.mark.skipif(shutil.which("zstd") is None, reason="the program zstd is absent")
def test_a_table_packed_with_zstd(tmp_path):
    packed = subprocess.run(["zstd", "-q"], input=table().encode(), capture_output=True, check=True)
    (tmp_path / "runs.csv.zst").write_bytes(packed.stdout)
    found = calibrate_profile({"runs": [str(tmp_path / "runs.csv.zst")]})
    assert [one["row_id"] for one in found["runs"]] == ["1", "2", "3"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_tables_of_spreadsheets(tmp_path, delimiter, encoding):
    path = tmp_path / "runs.csv"
    path.write_bytes(("\r\n" + table(delimiter=delimiter)).encode(encoding))
    found = calibrate_profile({"runs": [str(path)]})
    assert [one["row_id"] for one in found["runs"]] == ["1", "2", "3"]


def test_pipes_and_the_standard_input(tmp_path):
    """A table by the standard input, its models through a pipe of the shell."""
    models = [{"model_key": "small", "layers": "24", "hidden": "2048", "heads": "16"}]
    rows = [
        {k: v for k, v in row.items() if k not in models[0]} | {"model_key": "small"}
        for row in ROWS
    ]
    (tmp_path / "models.csv").write_text(table(models))
    command = f"{sys.executable} -m meshplan calibrate - --models <(gzip -c models.csv) --json"
    done = subprocess.run(
        ["bash", "-c", command],
        input=gzip.compress(table(rows).encode()),
        capture_output=True,
        cwd=tmp_path,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    found = yaml.safe_load(done.stdout)
    assert [one["row_id"] for one in found["runs"]] == ["1", "2", "3"], done.stderr
    assert found["profile"]["fitted_by"] == "meshplan calibrate stdin"


def log_in(tmp_path, more="", name="runs.csv", **scenario):
    """Calibrate on a log, whose name lies about it."""
    (tmp_path / name).write_text(LOG.format(more=more))
    (tmp_path / "scenario.yaml").write_text(yaml.safe_dump({**SCENARIO, **scenario}))
    request = {"runs": [str(tmp_path / name)], "scenario": str(tmp_path / "scenario.yaml")}
    return calibrate_profile(request)


def test_a_log_is_one_whatever_it_is_called(tmp_path):
    (run,) = log_in(tmp_path)["runs"]
    assert run["framework"] == "megatron"
    assert run["measured_step_time_s"] == pytest.approx(2.5)


def test_a_log_takes_the_framework_that_wrote_it(tmp_path):
    (run,) = log_in(tmp_path, frameworks=["torchtitan", "megatron"])["runs"]
    assert run["framework"] == "megatron"
    with pytest.raises(UserError) as caught:
        log_in(tmp_path, frameworks=["torchtitan"])
    (problem,) = caught.value.problems
    assert problem.code == "log_of_another_framework"
    assert (problem.value, problem.numbers["known"]) == ("megatron", "torchtitan")
    assert problem.allowed == ("megatron", "deepspeed")


def test_deepspeed_may_print_as_megatron_does(tmp_path):
    (run,) = log_in(tmp_path, frameworks=["deepspeed"])["runs"]
    assert run["framework"] == "deepspeed"


def test_a_log_of_a_framework_that_is_not_modelled_is_told(tmp_path):
    line = "[rank 0] Step: 1 | Loss: 1.0 | Global batch size: 8K | Tokens/s: 24K | Tokens/s/GPU: 3K"
    (tmp_path / "run.log").write_text("\n".join([line] * 4))
    (tmp_path / "scenario.yaml").write_text(yaml.safe_dump(SCENARIO))
    request = {"runs": [str(tmp_path / "run.log")], "scenario": str(tmp_path / "scenario.yaml")}
    with pytest.raises(UserError) as caught:
        calibrate_profile(request)
    (problem,) = caught.value.problems
    assert (problem.code, problem.value) == ("log_of_unknown_framework", "picotron")
    assert {*_MAY_BE} < {*LOGS}


def test_all_that_a_log_says_against_its_scenario_is_said(tmp_path):
    stated = {"num_layers": 99, "hidden_size": 1234, "world_size": 16}
    more = "".join(f"  {name} .................. {n}\n" for name, n in stated.items())
    with pytest.raises(UserError) as caught:
        log_in(tmp_path, more)
    assert {p.numbers["name"]: p.value for p in caught.value.problems} == {
        "num_gpus": 16,
        "num_layers": 99,
        "hidden": 1234,
    }
    with pytest.raises(UserError, match="log_of_another_job"):
        log_in(tmp_path, "  data_parallel_size .................. 2\n")


NOT_RUNS = {
    "empty": (b"", "measured_empty"),
    "blank": (b"\n\n", "measured_unknown"),
    "binary": (bytes(range(256)) * 20, "measured_unknown"),
    "other table": (b"a,b,c\n1,2,3\n", "measured_unknown"),
    "half a header": (b"source_id,gpu\nmine,H100\n", "table_columns"),
    "no rows": (table().splitlines()[0].encode(), "table_empty"),
    "cut off": (gzip.compress(table().encode())[:40], "measured_unknown"),
    "latin": (table().replace("mine", "M\xfcnchen").encode("latin-1"), "table_unreadable"),
    "json": (b'{"traceEvents": []}', "measured_unknown"),
}


@pytest.mark.parametrize("name", NOT_RUNS)
def test_what_holds_no_runs_is_the_users_mistake(tmp_path, name):
    data, code = NOT_RUNS[name]
    path = tmp_path / "runs.csv"
    path.write_bytes(data)
    with pytest.raises(UserError) as caught:
        calibrate_profile({"runs": [str(path)], "scenario": "scenario.yaml"})
    assert [problem.code for problem in caught.value.problems] == [code]
    assert all(has(f"{part}.{code}", lang) for part in ("error", "hint") for lang in LANGUAGES)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"runs": ["absent.csv"]}, "file_missing"),
        ({"runs": ["."]}, "file_is_folder"),
        ({"runs": ["run.log"]}, "log_without_scenario"),
        ({"runs": ["runs.csv"], "models": "absent.csv"}, "file_missing"),
        ({"runs": ["runs.csv"], "rows": ["77"]}, "no_such_run"),
        ({"runs": ["runs.csv"], "profile": "absent.yaml"}, "unknown_profile"),
        ({"runs": ["runs.csv"], "profile": "runs.csv"}, "no_profile"),
        ({"runs": ["runs.csv", "h100.csv"]}, "several_clusters"),
        ({"runs": ["slow.csv"]}, "run_out_of_reach"),
        ({"runs": ["lightning.csv"]}, "no_run_to_calibrate"),
        ({"runs": ["many.csv"]}, "too_many_runs"),
    ],
)
def test_mistakes_have_one_sentence_each(tmp_path, monkeypatch, given, code):
    monkeypatch.chdir(tmp_path)
    files = {
        "runs.csv": ROWS,
        "h100.csv": [ROW | {"gpu": "H100-SXM-80GB"}],
        "slow.csv": [ROW | {"step_time_s": "1400"}],
        "lightning.csv": [ROW | {"framework": "pytorch-lightning"}],
        "many.csv": [ROW | {"row_id": str(i)} for i in range(MOST_RUNS + 1)],
    }
    for name, rows in files.items():
        (tmp_path / name).write_text(table(rows))
    (tmp_path / "run.log").write_text(LOG.format(more=""))
    with pytest.raises(UserError) as caught:
        calibrate_profile(given)
    assert [problem.code for problem in caught.value.problems] == [code]


def test_a_run_of_a_framework_that_is_not_modelled_is_left_out_and_said(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(table([*ROWS, ROW | {"row_id": "4", "framework": "pytorch-lightning"}]))
    found = calibrate_profile({"runs": [str(path)]})
    assert len(found["runs"]) == 3
    assert found["skipped_by_source"] == [
        {"source_id": "mine", "reason": "unknown_framework", "num_rows": 1}
    ]
