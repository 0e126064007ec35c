"""The guide: numbers come from code, both languages say the same, no raw markup is shown.

Numbers of other people stand in ``facts.yaml`` and are compared with the data they come from.
"""

import ast
import csv
import math
import re

import pytest
import yaml

from meshplan.app import service
from meshplan.app.cli.main import run
from meshplan.explanation.scenes import MECHANISMS, MODES
from meshplan.learn import chapter_blocks, chapter_html, chapters
from meshplan.learn.content import chapter_source
from meshplan.learn.expressions import PLACEHOLDER, Link, evaluate, parse_placeholder, show
from meshplan.learn.numbers import FUNCTIONS, searches
from meshplan.learn.numbers.reports import all_reports
from meshplan.text import LANGUAGES

CHAPTERS = [info.id for info in chapters("en")]
NAMES = re.compile(
    r"""\b(?:
    Llama-[\d.]+(?:-[\d.]+B)? | GPT-NeoX-20B | GPT-3(?:\ 175B)? | BLOOM-176B | Mixtral-8x22B
  | Qwen3-235B | DeepSeek-V3 | Nemotron-4\ 15B | NLG\ 530B | Megatron-[\w.]+
  | [HAV]\d{3,4} | MI300X | RTX\ 4090 | ZeRO-[123] | ZeRO\ stages?\ one | 1F1B | ZB-H1
  | (?:bf|fp|FP)\d+ | \d+(?:\.\d+)?B
)(?![\w])""",
    re.VERBOSE,
)
"""Names of models, devices, formats and schedules, and sizes as in "a 7B model"."""

STRUCTURAL = {"1", "2", "3", "4", "6", "12", "16"}
"""Constants of formulas: two bytes, three gathers, sixteen bytes per parameter."""


def body(chapter, lang):
    return chapter_source(chapter, lang)[1]


def placeholders(text):
    return sorted(match["inner"] for match in PLACEHOLDER.finditer(text))


def worked_out(text):
    """Expressions that work a number out instead of stating it."""
    expressions = (parse_placeholder(inner).expression for inner in placeholders(text))
    return [
        e
        for e in expressions
        if any(isinstance(node, ast.Call | ast.BinOp) for node in ast.walk(ast.parse(e)))
    ]


def sections(text):
    """Split a chapter at its anchors, so that numbers are compared place by place."""
    parts = re.split(r"(?:\{#|::::quiz id=)([a-z0-9-]+)", text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def quizzes(chapter, lang="en"):
    return [block for block in chapter_blocks(chapter, lang) if block["kind"] == "quiz"]


def test_chapters_are_the_same_in_both_languages():
    listed = {lang: [(c.id, c.order, c.mechanism) for c in chapters(lang)] for lang in LANGUAGES}
    assert listed["en"] == listed["zh"]
    assert [order for _, order, _ in listed["en"]] == list(range(1, len(CHAPTERS) + 1))
    assert len(CHAPTERS) == 11


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_both_languages_carry_the_same_numbers_and_anchors(chapter):
    en, zh = (sections(body(chapter, lang)) for lang in ("en", "zh"))
    assert list(en) == list(zh)
    for anchor, text in en.items():
        assert placeholders(text) == placeholders(zh[anchor]), anchor
    pictures = [re.findall(r":::widget .*", body(chapter, lang)) for lang in ("en", "zh")]
    assert pictures[0] == pictures[1]


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_no_number_is_typed(chapter, lang):
    info, text = chapter_source(chapter, lang)
    text = "\n".join([info.title, info.summary, text])
    text = re.sub(r":::+\w* ?.*", "", text)
    text = re.sub(r"\{#[^}]+\}", "", text)
    text = PLACEHOLDER.sub("", text)
    for formula in re.findall(r"\$\$?([^$]+)\$\$?", text):
        assert set(re.findall(r"\d+", formula)) <= STRUCTURAL, formula
    text = re.sub(r"\$\$?[^$]+\$\$?", "", text)
    text = NAMES.sub("", text)
    typed = re.findall(r".{0,30}\d.{0,20}", text)
    assert typed == []


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_number_is_worked_out(chapter):
    for inner in placeholders(body(chapter, "en")):
        placeholder = parse_placeholder(inner)
        value = evaluate(placeholder.expression)
        if isinstance(value, float):
            assert math.isfinite(value), inner
        for lang in LANGUAGES:
            shown = show(placeholder, lang)
            assert isinstance(shown, Link) or shown.strip(), inner


def test_every_function_is_named_by_a_chapter():
    texts = [inner for chapter in CHAPTERS for inner in placeholders(body(chapter, "en"))]
    expressions = [parse_placeholder(inner).expression for inner in texts]
    nodes = [node for text in expressions for node in ast.walk(ast.parse(text))]
    assert set(FUNCTIONS) == {n.func.id for n in nodes if isinstance(n, ast.Call)}


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_quiz_answer_is_computed(chapter):
    assert quizzes(chapter)
    text = body(chapter, "en")
    answers = re.findall(r"::::quiz id=([\w-]+).*?:::answer\n(.*?)\n:::", text, re.DOTALL)
    assert [name for name, _ in answers] == [quiz["id"] for quiz in quizzes(chapter)]
    for name, answer in answers:
        computed = [e for e in worked_out(answer) if not e.startswith(("fact(", "source("))]
        assert computed, name


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_has_idea_formula_number_picture_and_quiz(chapter):
    blocks = chapter_blocks(chapter, "en")
    kinds = [block["kind"] for block in blocks]
    anchors = [block["id"] for block in blocks if block["kind"] == "heading"]
    assert anchors[0] == "idea"
    assert {"formula", "widget", "quiz"} <= set(kinds)


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_html_holds_no_raw_markup(chapter, lang):
    html = chapter_html(chapter, lang)
    bare = re.sub(r"<[^>]*>", "", html)
    assert [raw for raw in ("{{", "}}", "$", ":::", "{#", "\\", "**", "](") if raw in bare] == []
    assert not re.search(r"<script|<style|style=|onclick|src=", html)
    ids = re.findall(r'<(?:h\d|section)[^>]* id="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert html.count("<details>") == html.count("</details>") == len(quizzes(chapter, lang))
    for mechanism, mode in re.findall(r'data-mechanism="(\w+)" data-mode="(\w+)"', html):
        assert mechanism in MECHANISMS
        assert mode in MODES


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_terminal_holds_no_raw_markup(chapter, lang, capsys):
    assert run(["learn", chapter, "--answers", "--lang", lang]) == 0
    out = capsys.readouterr().out
    assert [
        raw for raw in ("{{", "}}", "$", ":::", "{#", "\\", "**", "](", "\ue000") if raw in out
    ] == []
    assert max(map(len, re.sub(r"\S{90,}", "", out).splitlines())) <= 110


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_pictures_show_legal_plans(chapter):
    pictures = [block for block in chapter_blocks(chapter, "en") if block["kind"] == "widget"]
    assert pictures
    for picture in pictures:
        assert picture["mechanism"] in MECHANISMS
        assert picture["mode"] in MODES
        given = dict(picture["options"])
        request = {name: given.pop(name) for name in ("model", "cluster")}
        request["job"] = {name: given.pop(name) for name in ("seq_len", "global_batch")}
        if "framework" in given:
            request["frameworks"] = [given.pop("framework")]
        judged = service.estimate({**request, "plan": given})
        assert judged["plans"][0]["memory"]["verdict"] == "fits"


def test_there_are_enough_scenarios_with_sources():
    found = sections(body("scenarios", "en"))
    told = {name: text for name, text in found.items() if name not in ("idea", "scenarios-quiz")}
    assert len(told) >= 8
    for name, text in told.items():
        assert "{{source(" in text, name
        assert "{{pick(" in text, name
        assert "{{fact(" in text, name
    assert {"consumer-card", "llama-405b"} <= set(told)
    assert evaluate('fact("llama3-herd", "gpus")') == 16384


def test_there_are_enough_misconceptions_each_with_report_and_number():
    found = sections(body("misconceptions", "en"))
    told = {n: x for n, x in found.items() if n not in ("idea", "misconceptions-quiz")}
    assert len(told) >= 20
    for name, text in told.items():
        assert "{{source(" in text, name
        computed = [e for e in worked_out(text) if not e.startswith("source(")]
        assert computed, name
    reports = [re.findall(r'source\("([^"]+)"\)', text)[0] for text in told.values()]
    assert all(
        "case" in all_reports()[report] or "row" in all_reports()[report] for report in reports
    )


def test_there_are_enough_interview_questions_of_every_grade():
    levels = [quiz["level"] for quiz in quizzes("interview")]
    assert len(levels) >= 50
    assert min(levels.count(level) for level in (1, 2, 3)) >= 10


def test_quiz_ids_are_unique():
    ids = [quiz["id"] for chapter in CHAPTERS for quiz in quizzes(chapter)]
    assert len(ids) == len(set(ids))


def test_searches_are_kept():
    """No chapter waits for a search."""
    for chapter in CHAPTERS:
        for inner in placeholders(body(chapter, "en")):
            evaluate(parse_placeholder(inner).expression)
    kept = yaml.safe_load(searches.STORE.read_text(encoding="utf-8"))
    assert set(kept) == set(searches.asked()), "run: python tools/compute_guide.py"


REFRESH = "run: python tools/compute_guide.py"

QUICK = 96
"""GPUs up to which a search is quick enough to repeat in every run of the tests."""


def check_search(key):
    for chapter in CHAPTERS:
        chapter_blocks(chapter, "en")
    fresh = searches.asked()[key]()
    kept = yaml.safe_load(searches.STORE.read_text(encoding="utf-8"))[key]
    assert fresh.keys() == kept.keys(), REFRESH
    for name, value in kept.items():
        assert fresh[name] == (
            pytest.approx(value, rel=0.01) if isinstance(value, float) else value
        ), REFRESH


def kept_searches(*, quick):
    names = yaml.safe_load(searches.STORE.read_text(encoding="utf-8"))
    return [key for key in names if (int(key.split()[1].split("x")[0]) <= QUICK) == quick]


@pytest.mark.parametrize("key", kept_searches(quick=True))
def test_kept_searches_come_out_the_same(key):
    check_search(key)


@pytest.mark.slow
@pytest.mark.parametrize("key", kept_searches(quick=False))
def test_kept_large_searches_come_out_the_same(key):
    check_search(key)


def numbers_in(data):
    if isinstance(data, dict):
        for value in data.values():
            yield from numbers_in(value)
    elif isinstance(data, list):
        for value in data:
            yield from numbers_in(value)
    elif isinstance(data, bool):
        return
    elif isinstance(data, int | float):
        yield float(data)
    elif isinstance(data, str):
        yield from (float(x.replace(",", "")) for x in re.findall(r"\d[\d,]*(?:\.\d+)?", data))


def test_facts_of_reports_stand_in_the_reports(shared):
    cases = yaml.safe_load((shared / "data/cases/cases.yaml").read_text(encoding="utf-8"))["cases"]
    by_id = {case["id"]: case for case in cases}
    checked = 0
    for name, fact in all_reports().items():
        if "case" not in fact:
            continue
        case = by_id[fact["case"]]
        assert fact["source"] == case["source"]["url"], name
        known = list(numbers_in(case))
        for key, value in fact["values"].items():
            near = any(math.isclose(value, number, rel_tol=2e-3) for number in known)
            assert near, f"{name}.{key} = {value}"
            checked += 1
    assert checked >= 60


def test_facts_of_measured_rows_stand_in_the_rows(shared):
    with (shared / "data/measured/runs.csv").open(encoding="utf-8") as file:
        rows = {row["row_id"]: row for row in csv.DictReader(file)}
    checked = 0
    for name, fact in all_reports().items():
        if "row" not in fact:
            continue
        row = rows[fact["row"]]
        known = list(numbers_in({key: row[key] for key in row if key != "source_ref"}))
        assert row["consistency"] != "MISMATCH", name
        for key, value in fact["values"].items():
            assert any(math.isclose(value, number, rel_tol=1e-3) for number in known), (name, key)
            checked += 1
    assert checked >= 30


def test_facts_of_papers_stand_in_the_line_that_is_quoted():
    for name, fact in all_reports().items():
        if "case" in fact or "row" in fact:
            continue
        known = set(numbers_in(fact["printed"]))
        assert {float(value) for value in fact["values"].values()} <= known, name


def test_facts_are_all_used():
    text = "".join(body(chapter, "en") for chapter in CHAPTERS)
    assert [name for name in all_reports() if f'"{name}"' not in text] == []
    for name in ("deepseek-v3-layout", "llama3-herd"):
        values = all_reports()[name]["values"]
        assert [key for key in values if f'fact("{name}", "{key}")' not in text] == []


@pytest.mark.parametrize("lang", LANGUAGES)
def test_service_gives_plain_json(lang):
    listed = service.learn({"lang": lang})
    assert [chapter["id"] for chapter in listed["chapters"]] == CHAPTERS
    read = service.learn({"lang": lang, "chapter": "pipe", "quiz": True})
    assert read["chapter"]["id"] == "pipeline"
    assert {block["kind"] for block in read["blocks"]} == {"quiz"}
