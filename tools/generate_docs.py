"""Write the documentation pages that are generated: ``python tools/generate_docs.py [--check]``.

``docs/<lang>/cli.md`` holds the real help of every verb, ``errors.md`` every error and its way out,
``rules.md`` every rule with the framework that enforces it; both READMEs and ``diagnose.md`` show a
real answer. A test runs the check.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import yaml

from meshplan.app.cli.commands import VERBS
from meshplan.app.cli.main import run
from meshplan.text import LANGUAGES, catalog, t

DOCS = Path(__file__).resolve().parents[1] / "docs"
WIDTH, README_WIDTH = "80", "90"
OUTPUT = re.compile(
    r"(?P<head><!-- output of: (?P<command>.+?) -->).*?(?P<tail><!-- end of output -->)", re.DOTALL
)


def help_text(arguments: list[str], lang: str) -> str:
    """What a command prints, laid out for 80 columns without colour."""
    os.environ.update(COLUMNS=WIDTH, NO_COLOR="1")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = run([*arguments, "--help", "--lang", lang])
    assert code == 0, arguments
    return out.getvalue().rstrip()


def cli_page(lang: str) -> str:
    """The page of the command line."""
    parts = [t("docs.cli.top", lang), fenced(help_text([], lang))]
    for verb in VERBS:
        parts += [f"## meshplan {verb}", fenced(help_text([verb], lang))]
    return "\n\n".join(parts) + "\n"


def errors_page(lang: str) -> str:
    """The page of all errors."""
    sentences = catalog(lang)
    codes = sorted(c.removeprefix("error.") for c in sentences if c.startswith("error."))
    rows = [
        f"| `{code}` | {cell(sentences[f'error.{code}'])} | {cell(sentences[f'hint.{code}'])} |"
        for code in codes
    ]
    top = t("docs.errors.top", lang)
    head = t("docs.errors.columns", lang)
    return "\n".join([top, "", head, "| --- | --- | --- |", *rows]) + "\n"


def rules_page(lang: str) -> str:
    """The page of all rules."""
    from meshplan.space.names import to_text
    from meshplan.space.rules import RULES

    lines = [t("docs.rules.top", lang)]
    for code in dict.fromkeys(rule.code for rule in RULES):
        lines += ["", f"### {code}", "", t(f"rule.{code}", lang), ""]
        for rule in RULES:
            if rule.code == code:
                where = ", ".join(to_text(framework) for framework in rule.frameworks)
                version = f" ({rule.version})" if rule.version else ""
                lines.append(f"- {where}{version}: `{rule.source}`")
    return "\n".join(lines) + "\n"


def agreement_page(lang: str) -> str:
    """The page of verdicts beside those of the frameworks' own validators."""
    folder = DOCS.parent / "tools" / "frameworks"
    record = json.loads((folder / "agreement.json").read_text(encoding="utf-8"))
    gaps = yaml.safe_load((folder / "gaps.yaml").read_text(encoding="utf-8"))
    lines = [t("docs.agreement.top", lang), "", t("docs.agreement.columns", lang)]
    lines.append("| --- " * 8 + "|")
    for target, found in record.items():
        accepted = found["legal"] - sum(w.startswith("legal,") for w in found["wrong"])
        cells = [target, found["legal"], accepted, found["illegal"], found["refused"]]
        cells += [found["gaps"], len(found["rules"]), len(found["wrong"])]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", t("docs.agreement.gaps", lang), "", t("docs.agreement.gap_columns", lang)]
    lines.append("| --- " * 3 + "|")
    for target, rules in gaps.items():
        for rule, why in rules.items():
            reason = why["reason"] if isinstance(why, dict) else why
            lines.append(f"| {target} | `{rule}` | {cell(reason)} |")
    return "\n".join(lines) + "\n"


def readme_page(name: str, lang: str) -> str:
    """The README with the first part of a real answer in it."""
    text = (DOCS.parent / name).read_text(encoding="utf-8")
    found = OUTPUT.search(text)
    assert found, f"{name} has no place for an output"
    command = found["command"]
    os.environ.update(COLUMNS=README_WIDTH, NO_COLOR="1")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = run(shlex.split(command)[1:])
    assert code == 0, command
    first = out.getvalue().split("\n" + t("cli.title.why", lang))[0].rstrip()
    block = fenced(f"$ {command}\n\n{first}")
    return text[: found.end("head")] + f"\n\n{block}\n\n" + text[found.start("tail") :]


def diagnose_page(lang: str) -> str:
    """The page of ``diagnose`` with the real answers for the runs of ``tools/example_run.py``."""
    text = (DOCS / lang / "diagnose.md").read_text(encoding="utf-8")
    assert OUTPUT.search(text), "diagnose.md has no place for an output"
    os.environ.update(COLUMNS=README_WIDTH, NO_COLOR="1")
    with contextlib.chdir(example()):
        return OUTPUT.sub(lambda found: answer_of(found, lang), text)


@cache
def example() -> Path:
    """A folder with the traces, logs and launch scripts of the runs; it goes with the process."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    script = DOCS.parent / "tools" / "example_run.py"
    subprocess.run([sys.executable, str(script), str(folder)], check=True)
    return folder


def answer_of(found: re.Match[str], lang: str) -> str:
    """A real answer between the marks of its place, whole or from the title that is named on."""
    command, _, title = found["command"].partition(" | from ")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = run(shlex.split(command)[1:])
    assert code == 0, command
    answer = out.getvalue().rstrip()
    if title:
        answer = "..." + answer[answer.index("\n\n" + t(title, lang) + "\n") :]
    block = fenced(f"$ {command}\n\n{answer}")
    return f"{found['head']}\n\n{block}\n\n{found['tail']}"


def fenced(text: str) -> str:
    """A code block."""
    return f"```text\n{text}\n```"


def cell(text: str) -> str:
    """A sentence inside a table cell."""
    return text.replace("|", "\\|").replace("\n", " ")


PAGES = {
    "agreement.md": agreement_page,
    "cli.md": cli_page,
    "diagnose.md": diagnose_page,
    "errors.md": errors_page,
    "rules.md": rules_page,
}
READMES = {"en": "README.md", "zh": "README.zh.md"}


def all_pages() -> dict[Path, str]:
    """Every generated page with its text."""
    pages = {DOCS / lang / name: make(lang) for lang in LANGUAGES for name, make in PAGES.items()}
    return pages | {DOCS.parent / name: readme_page(name, lang) for lang, name in READMES.items()}


def main() -> int:
    """Write the pages, or say which ones are out of date."""
    check = "--check" in sys.argv[1:]
    stale = []
    for path, text in all_pages().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(str(path.relative_to(DOCS.parent)))
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    print("\n".join(stale) if stale else "all pages are up to date")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
