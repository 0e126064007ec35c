"""Pages say what the code does: generated pages are fresh, commands run, links lead somewhere."""

import gzip
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from diagnose_traces import TraceMaker
from meshplan.app import service
from meshplan.app.cli.commands import VERBS, load_verb
from meshplan.app.cli.main import run
from meshplan.app.encode import to_json
from meshplan.inputs.load.profile_file import dump_profile, read_profile
from meshplan.text import LANGUAGES, catalog

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
HAND_WRITTEN = sorted(
    path
    for path in [ROOT / "README.md", ROOT / "README.zh.md", *DOCS.glob("*/*.md")]
    if path.name not in ("cli.md", "errors.md", "rules.md", "agreement.md", "recipes.md")
)
PAIRS = [
    *["getting-started.md", "inputs.md", "rules.md", "memory.md", "time.md", "cli.md"],
    *[
        "calibrate.md",
        "thumb.md",
        "errors.md",
        "emit.md",
        "check.md",
        "agreement.md",
        "diagnose.md",
    ],
]


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "tools/generate_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("LC_ALL", "LC_MESSAGES", "LANG", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    # set, so that what the generator changes is put back
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("page", ["cli.md", "errors.md", "rules.md", "agreement.md", "diagnose.md"])
def test_generated_pages_are_fresh(generator, lang, page):
    text = (DOCS / lang / page).read_text(encoding="utf-8")
    assert text == generator.PAGES[page](lang), "run: make docs"


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_readme_shows_what_is_really_printed(generator, lang):
    name = generator.READMES[lang]
    text = (ROOT / name).read_text(encoding="utf-8")
    assert text == generator.readme_page(name, lang), "run: make docs"


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("page", PAIRS)
def test_every_page_is_there_in_both_languages(lang, page):
    assert (DOCS / lang / page).stat().st_size > 500


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_page_is_linked_and_translated(generator, lang):
    pages = {path.name for path in (DOCS / lang).glob("*.md")}
    assert pages == {path.name for path in (DOCS / "en").glob("*.md")}
    readme = (ROOT / generator.READMES[lang]).read_text(encoding="utf-8")
    assert [page for page in pages if f"docs/{lang}/{page})" not in readme] == []


def commands_in_docs() -> list[str]:
    found: dict[str, None] = {}
    for path in HAND_WRITTEN:
        text = path.read_text(encoding="utf-8")
        for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
            for line in block.splitlines():
                if line.startswith("$ meshplan "):
                    found.setdefault(line.removeprefix("$ meshplan "))
    return list(found)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with the files that commands in the docs name."""
    folder = tmp_path_factory.mktemp("docs")
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    config["zero_optimization"] = {"stage": 3}
    (folder / "ds_config.json").write_text(json.dumps(config))
    script = service.emit({**SMALL, "to": "megatron"})["files"][0]["text"]
    (folder / "train.sh").write_text(script)
    (folder / "plans.json").write_text(to_json(service.plan(SMALL)))
    (folder / "traces").mkdir()
    trace = TraceMaker(0, 64)
    trace.step(0, 0, 1000)
    trace.kernel("gemm", 0, 900, launch=-5)
    trace.write(folder / "traces" / "rank0.json")
    for name, text in files_of(DOCS / "en" / "calibrate.md").items():
        (folder / name).write_text(text)
    calibrated = service.calibrate({"runs": [str(folder / "runs.csv")]})
    (folder / "profile.yaml").write_text(dump_profile(calibrated["profile"]))
    return folder


def files_of(path):
    """Files that a page shows, by name."""
    text = path.read_text(encoding="utf-8")
    return dict(re.findall(r"<!-- file: (\S+) -->\n\n```\w+\n(.*?)```", text, flags=re.DOTALL))


@pytest.mark.parametrize("lang", LANGUAGES)
def test_calibrating_goes_as_its_page_says(lang, tmp_path):
    """Every command of the page, one after the other, with the files that it shows."""
    page = DOCS / lang / "calibrate.md"
    assert files_of(page) == files_of(DOCS / "en" / "calibrate.md")
    for name, text in files_of(page).items():
        (tmp_path / name).write_text(text)
    (tmp_path / "runs.csv.gz").write_bytes(gzip.compress((tmp_path / "runs.csv").read_bytes()))
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"```(?:console|bash)\n(.*?)```", text, flags=re.DOTALL)
    commands = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    assert len(commands) == 7
    said = []
    for command in commands:
        shell = f'meshplan() {{ "{sys.executable}" -m meshplan "$@"; }}; {command}'
        done = subprocess.run(
            ["bash", "-c", shell],
            cwd=tmp_path,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "LC_ALL": lang},
            timeout=300,
        )
        assert done.returncode == 0, (command, done.stderr.decode())
        said.append(done.stdout.decode())
    assert (tmp_path / "more.yaml").read_bytes() == (tmp_path / "profile.yaml").read_bytes()


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_key_of_a_profile_file_is_documented(lang, workplace):
    text = (DOCS / lang / "calibrate.md").read_text(encoding="utf-8")
    keys = read_profile(str(workplace / "profile.yaml"))
    assert len(keys) == 7
    assert [key for key in keys if f"| `{key}` |" not in text] == []


SMALL = {
    "model": "llama-3.1-8b",
    "cluster": "64xH100",
    "job": {"seq_len": 8192, "global_batch": 256},
    "axes": {"cp": [1], "tp": [1, 2]},
}


@pytest.mark.parametrize("command", commands_in_docs())
def test_commands_in_the_docs_run(capsys, command, workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    assert run(shlex.split(command)) == 0
    out, err = capsys.readouterr()
    # what goes to a file is told on standard error
    assert (err if " -o " in command else out).strip()
    assert err == "" or " -o " in command


def test_there_are_commands_in_the_docs():
    assert len(commands_in_docs()) >= 10


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("getting-started.md", ["'framework': 'megatron'"]),
        ("thumb.md", ["'dp': 4, 'tp': 2, 'pp': 8", "medium large", "tp_across_nodes"]),
    ],
)
@pytest.mark.parametrize("lang", LANGUAGES)
def test_python_in_the_docs_runs(capsys, lang, name, printed):
    text = (DOCS / lang / name).read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(code, name, "exec"), {})
    out = capsys.readouterr().out
    assert [text for text in printed if text not in out] == []


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_rule_of_thumb_is_documented(lang):
    from meshplan import thumb

    text = (DOCS / lang / "thumb.md").read_text(encoding="utf-8")
    functions = [name for name in thumb.__all__ if name.islower()]
    shards = {"column_shards", "row_shards"}
    assert [f for f in functions if f"`{f}`" not in text and f not in shards] == []


@pytest.mark.parametrize("name", ["inputs.md"])
@pytest.mark.parametrize("lang", LANGUAGES)
def test_yaml_in_the_docs_is_a_scenario(tmp_path, lang, name):
    from meshplan.inputs.load.documents import parse_yaml
    from meshplan.inputs.load.scenario import load_scenario

    text = (DOCS / lang / name).read_text(encoding="utf-8")
    whole, cluster = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    scenario = load_scenario(parse_yaml(whole))
    assert scenario.job.total_tokens == 15e12
    other = load_scenario({**parse_yaml(whole), **parse_yaml(cluster)})
    assert [tier.name for tier in other.cluster.tiers] == ["nvlink", "leaf", "spine"]
    assert other.cluster.num_gpus == 256


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_option_and_verb_is_documented(lang):
    text = (DOCS / lang / "cli.md").read_text(encoding="utf-8")
    for verb in VERBS:
        section = text.split(f"## meshplan {verb}\n")[1].split("\n## ")[0]
        for param in load_verb(verb).params:
            for option in param.opts:
                assert not option.startswith("-") or option in section, f"{verb} {option}"


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_error_is_documented(lang):
    text = (DOCS / lang / "errors.md").read_text(encoding="utf-8")
    codes = [c.removeprefix("error.") for c in catalog(lang) if c.startswith("error.")]
    assert [code for code in codes if f"`{code}`" not in text] == []


@pytest.mark.parametrize("path", HAND_WRITTEN, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    text = path.read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert [t for t in targets if not (path.parent / t).exists()] == []


@pytest.mark.parametrize("path", HAND_WRITTEN, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_named_in_the_docs_exist(path):
    """``cost/step.py: step_time`` is a promise."""
    source = ROOT / "src" / "meshplan"
    text = path.read_text(encoding="utf-8")
    for name, function in re.findall(
        r"`([\w/]+\.(?:py|yaml|json)|[\w/]+/)(?:: (\w+)[^`]*)?`", text
    ):
        if "/" not in name.rstrip("/"):
            continue
        file = next((base / name for base in (source, ROOT) if (base / name).exists()), None)
        assert file is not None, name
        if function:
            defined = rf"^(def|class) {function}\b|^ +def {function}\("
            found = re.search(defined, file.read_text(encoding="utf-8"), re.MULTILINE)
            assert found, f"{name}: {function}"


@pytest.mark.parametrize(
    "path",
    sorted([ROOT / "README.md", *DOCS.glob("*/*.md")]),
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_rows_of_tables_have_the_columns_of_their_header(path):
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for table in re.findall(r"(?:^\|.*\n?)+", text, flags=re.MULTILINE):
        counts = {row: len(re.findall(r"(?<!\\)\|", row)) for row in table.strip().split("\n")}
        assert len(set(counts.values())) == 1, max(counts, key=lambda row: counts[row])
