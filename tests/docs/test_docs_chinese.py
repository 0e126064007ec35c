"""Chinese pages and sentences: one name for one thing, and no sentence that a line break cuts."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "meshplan"
PAGES = [
    ROOT / "README.zh.md",
    *sorted((ROOT / "docs" / "zh").glob("*.md")),
    *sorted((SOURCE / "learn" / "content" / "zh").glob("*.md")),
]
CATALOGS = sorted((SOURCE / "text" / "catalog" / "zh").glob("*.json"))
IDS = [path.name for path in [*PAGES, *CATALOGS]]
HAN = "[\u4e00-\u9fff]"


def glossary():
    """The name that is used, and those that are not, from the table in ``text/README.md``."""
    text = (SOURCE / "text" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", text, flags=re.MULTILINE)
    return {used: others.split("、") for used, others in rows if used not in ("用", "---")}


def test_the_glossary_is_read():
    names = glossary()
    assert names["micro-batch"] == ["微批", "微批次", "微批量"]
    assert len(names) > 10


def said(path):
    text = path.read_text(encoding="utf-8")
    return list(json.loads(text).values()) if path.suffix == ".json" else [text]


@pytest.mark.parametrize("path", [*PAGES, *CATALOGS], ids=IDS)
def test_one_thing_has_one_name(path):
    found = [
        (other, used)
        for text in said(path)
        for used, others in glossary().items()
        for other in others
        if other in text
    ]
    assert found == []


@pytest.mark.parametrize("path", [*PAGES, *CATALOGS], ids=IDS)
def test_chinese_and_latin_letters_stand_apart(path):
    """But for what a person types: code, links and the names of places in a page."""
    for text in said(path):
        prose = re.sub(r"```.*?```|`[^`]*`|\{\{.*?\}\}|\{[^}]*\}", " 0 ", text, flags=re.DOTALL)
        prose = prose.replace("\\n", "\n")
        assert re.findall(rf"{HAN}[A-Za-z]|[A-Za-z]{HAN}", prose) == []
        assert re.findall(rf"{HAN} +{HAN}", re.sub(r"^\|.*$", "", prose, flags=re.M)) == []


@pytest.mark.parametrize("path", PAGES, ids=IDS[: len(PAGES)])
def test_no_line_break_cuts_a_sentence(path):
    """A break inside a paragraph is shown as a space, which Chinese has none of."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    begins = re.compile(r"\s*([-*+] |\d+\. |#|>|\||<|:::|\$\$|---)")
    lines = text.split("\n")
    cut = [
        (above, line)
        for above, line in pairwise(lines)
        if above.strip() and line.strip() and not begins.match(line)
        if not re.match(r"\s*(#|\||<|:::|\$\$|---|>)", above)
        if re.search(HAN, above) and re.search(HAN, line)
    ]
    assert cut == []


@pytest.mark.parametrize("path", PAGES, ids=IDS[: len(PAGES)])
def test_emphasis_ends_where_it_should(path):
    """Stars between punctuation and a letter neither open nor close (CommonMark 0.31, 6.2)."""
    text = re.sub(r"```.*?```|`[^`]*`|\{\{.*?\}\}", "0", path.read_text("utf-8"), flags=re.DOTALL)
    spans = re.finditer(r"(?<!\*)(\*{1,2})(?![\s*])([^*\n]+)\1(?!\*)", text)
    broken = [
        span[0]
        for span in spans
        if re.fullmatch(rf"[^\w\s]{HAN}", span[2][-1] + text[span.end() : span.end() + 1])
        or re.fullmatch(rf"{HAN}[^\w\s]", text[span.start() - 1 : span.start()] + span[2][0])
    ]
    assert broken == []
