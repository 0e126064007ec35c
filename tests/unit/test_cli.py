"""The command line's own behaviour: language, usage errors, exit codes, help, options."""

import json
import os
import subprocess
import sys

import pytest

from meshplan.app.cli.commands import VERBS, load_verb
from meshplan.app.cli.language import from_environment, take_language
from meshplan.app.cli.layout import cell_len, wrap
from meshplan.app.cli.main import run
from meshplan.errors import UserError
from meshplan.text import LANGUAGES

COMMON_JOB = ["cluster", "seq_len", "global_batch"]
DEGREES = [
    "tp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "etp",
    "micro_batch",
    "zero",
    "recompute",
    "schedule",
    "framework",
]
OPTIONS = {
    "plan": [
        *COMMON_JOB,
        "objective",
        "profile",
        "set",
        *DEGREES,
        "json",
        "output",
        "save_scenario",
    ],
    "estimate": [*COMMON_JOB, "profile", "set", *DEGREES, "json", "output", "save_scenario"],
    "explain": [*COMMON_JOB, "profile", "set", *DEGREES, "json", "output"],
    "compare": [*COMMON_JOB, "profile", "set", "framework", "json", "output"],
}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("LC_ALL", "LC_MESSAGES", "LANG", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")


def long_options(verb: str) -> list[str]:
    params = load_verb(verb).params
    names = [max(p.opts, key=len) for p in params if p.opts[0].startswith("-")]
    return [name.removeprefix("--").replace("-", "_") for name in names]


@pytest.mark.parametrize("verb", OPTIONS)
def test_options_are_frozen(verb):
    """An option is a promise: a new one is a decision, not an accident."""
    assert long_options(verb) == OPTIONS[verb]


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_has_at_most_twenty_options(verb):
    assert len(long_options(verb)) <= 20


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_in_both_languages(capsys, verb, lang):
    assert run([verb, "--help", "--lang", lang] if verb else ["--help", "--lang", lang]) == 0
    shown = capsys.readouterr().out
    assert ("用法" in shown) == (lang == "zh")
    commands = [line for line in shown.splitlines() if line.startswith("    meshplan ")]
    assert commands, "help ends with examples"
    too_wide = [x for x in shown.splitlines() if cell_len(x) > 80 and x not in commands]
    assert too_wide == []


def test_no_argument_prints_help_and_is_wrong_use(capsys):
    assert run([]) == 2
    assert "plan" in capsys.readouterr().out


def test_version(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("meshplan 0.")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["plna"], ["no verb 'plna'", "allowed: plan"]),
        (["plan"], ["MODEL is missing"]),
        (["plan", "m", "extra"], ["extra"]),
        (["plan", "m", "--sq-len", "3"], ["no option --sq-len", "--seq-len"]),
        (["plan", "m", "--zzzzzz"], ["no option --zzzzzz", "--set"]),
        (["plan", "--tp"], ["--tp needs a value"]),
        (["plan", "m", "--json=3"], ["--json takes no value"]),
        (["--lang", "fr", "plan"], ["--lang cannot be 'fr'", "en, zh"]),
        (["plan", "--lang"], ["--lang needs a value"]),
        (["--nonsense"], ["no option --nonsense"]),
    ],
)
def test_wrong_use_is_said_once_with_a_hint(capsys, argv, words):
    assert run(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert "\n  hint: " in err
    assert "Traceback" not in err
    for word in words:
        assert word in err


def test_wrong_use_in_chinese(capsys, monkeypatch):
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert run(["plna"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("错误：没有“plna”这个命令")
    assert "提示：" in err


def test_wrong_use_as_json(capsys):
    assert run(["plan", "m", "--sq-len", "3", "--json"]) == 2
    out, err = capsys.readouterr()
    (problem,) = json.loads(out)["problems"]
    assert problem["code"] == "usage_no_such_option"
    assert "--seq-len" in problem["hint"]
    assert err.startswith("error: ")


@pytest.mark.parametrize(
    ("environ", "lang"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh-TW"}, "zh"),
        ({"LANG": "zh.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "zh_CN"}, "zh"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": ""}, "zh"),
    ],
)
def test_language_of_the_environment(environ, lang):
    assert from_environment(environ) == lang


@pytest.mark.parametrize(
    "argv",
    [["--lang", "zh", "plan", "m"], ["plan", "--lang=zh", "m"], ["plan", "m", "--lang", "zh"]],
)
def test_language_option_may_stand_anywhere(argv):
    assert take_language(argv, {"LANG": "en_US"}) == ("zh", ["plan", "m"], None)


def test_words_after_two_dashes_are_left_alone():
    assert take_language(["plan", "--", "--lang", "zh"], {})[1] == ["plan", "--", "--lang", "zh"]


def test_a_fault_of_our_own_shows_no_traceback(capsys, monkeypatch):
    def broken(*_):
        raise RuntimeError("boom")

    monkeypatch.setattr("meshplan.app.cli.main._dispatch", broken)
    assert run(["plan"]) == 70
    err = capsys.readouterr().err
    assert "RuntimeError: boom" in err
    assert "Traceback" not in err


def test_interruption(capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("meshplan.app.cli.main._dispatch", interrupted)
    assert run(["plan"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_all_problems_are_said_each_once(capsys, monkeypatch):
    def wrong(*_):
        first = UserError.of("number_not_positive", where="a", value=0)
        second = UserError.of("number_negative", where="b", value=-1)
        raise UserError(*first.problems, *second.problems, *first.problems)

    monkeypatch.setattr("meshplan.app.cli.main._dispatch", wrong)
    assert run(["plan"]) == 2
    err = capsys.readouterr().err
    assert err.count("error: ") == 2
    assert err.index("a is 0") < err.index("b is -1")


def test_long_lists_of_allowed_values_start_with_what_looks_alike(capsys, monkeypatch):
    def wrong(*_):
        names = [f"model-{i}" for i in range(40)] + ["llama-3.1-70b"]
        raise UserError.of("unknown_choice", where="model", value="lama-3.1-70b", allowed=names)

    monkeypatch.setattr("meshplan.app.cli.main._dispatch", wrong)
    run(["plan"])
    err = capsys.readouterr().err
    assert "allowed: llama-3.1-70b, model-0" in err
    assert "29 more" in err.replace("\n           ", " ")


@pytest.mark.parametrize("arguments", [["--help"], ["list", "devices"], ["schema", "result"]])
def test_a_reader_that_stops_is_no_answer(arguments):
    """As in ``meshplan list devices | head -1``: not 1, which would mean no."""
    code = f"import sys; from meshplan.app.cli.main import run; sys.exit(run({arguments!r}))"
    script = f'{sys.executable} -c "{code}" | true; echo ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.strip() == "141"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_is_said():
    command = f"{sys.executable} -m meshplan inspect llama-3.1-8b > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot write")


@pytest.mark.parametrize(
    ("command", "expected"),
    [("list devices >&-", 0), ("list devices >&- 2>&-", 0), ("oops >&-", 2)],
)
def test_closed_outputs_change_no_exit_code(command, expected):
    script = f"{sys.executable} -m meshplan {command}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == expected
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", ["plan", "estimate", "explain"])
def test_a_key_that_only_verbs_fill_in_is_not_dropped_in_silence(capsys, verb):
    job = ["llama-3.1-8b", "--cluster", "8xH100", "--seq-len", "4096", "--global-batch", "64"]
    assert run([verb, *job, "--set", "plan.sp=false", "--lang", "en"]) == 2
    assert "plan is not a key that is known here" in capsys.readouterr().err


def test_python_m_meshplan():
    done = subprocess.run(
        [sys.executable, "-m", "meshplan", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LANG": "C"},
    )
    assert "usage: meshplan VERB" in done.stdout


def test_a_terminal_without_our_characters():
    done = subprocess.run(
        [sys.executable, "-m", "meshplan", "--help", "--lang", "zh"],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"meshplan" in done.stdout


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("meshplan pl", ["plan", "为模型在集群上寻找最佳并行方案"]),
        ("meshplan plan --se", ["--seq-len", "每条序列的 token 数", "--set"]),
    ],
)
def test_completion_speaks_the_language(words, offered):
    done = subprocess.run(
        [sys.executable, "-m", "meshplan"],
        capture_output=True,
        text=True,
        check=True,
        env={
            **os.environ,
            "LANG": "zh_CN.UTF-8",
            "PYTHONUTF8": "1",
            "_MESHPLAN_COMPLETE": "complete_zsh",
            "_TYPER_COMPLETE_ARGS": words,
        },
    )
    assert [text for text in offered if text not in done.stdout] == []


def test_help_loads_nothing_heavy():
    """What keeps ``--help`` under 150 ms: a count of modules, since seconds vary."""
    code = (
        "import sys; from meshplan.app.cli.main import run; run(['--help']); "
        "print(sorted({m.split('.')[0] for m in sys.modules}), len(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for heavy in ("numpy", "pydantic", "yaml", "rich", "starlette"):
        assert f"'{heavy}'" not in done.stderr
    assert int(done.stderr.split()[-1]) < 220


@pytest.mark.parametrize("value", ["zh", "zh-CN", "zh_CN.UTF-8", "ZH_tw"])
def test_a_locale_is_a_language(value):
    assert take_language(["--lang", value, "plan"], {}) == ("zh", ["plan"], None)


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_the_short_option_for_help(capsys, verb):
    shown = []
    for option in ("-h", "--help"):
        assert run([*([verb] if verb else []), option]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]


@pytest.mark.parametrize("width", [20, 33, 80])
@pytest.mark.parametrize(
    "text",
    [
        "degrees that are not given are 1; data parallelism takes the GPUs that are left",
        "没有给出的并行度为 1；剩余的 GPU 做数据并行（data parallel），不需要再指定。",
        "76.1 GiB of 78.5 GiB usable, 450 GB/s inside, 19.1 s of 2.05 min and 464 ms",
    ],
)
def test_wrapping_keeps_words_widths_and_punctuation(text, width):
    lines = wrap(text, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert not any(line[0] in "，；。）" for line in lines)
    assert not any(line.startswith(("GiB", "GB/s", "s ", "ms", "min")) for line in lines)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["inspect", "gpt2", "-o", "absent/out.json"], "没有这个文件或目录"),
        (["inspect", "gpt2", "-o", "folder"], "这是一个目录"),
        (["inspect", "gpt2", "-o", "n" * 300], "名称过长"),
    ],
)
def test_why_a_file_cannot_be_used_is_said_in_the_language(
    capsys, tmp_path, monkeypatch, argv, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    assert run([*argv, "--lang", "zh"]) == 2
    assert said in capsys.readouterr().err
