"""The engine of the guide: placeholders, formulas, blocks, and the verb."""

import json
import subprocess
import sys

import pytest

from meshplan.app.cli.main import run
from meshplan.errors import UserError
from meshplan.learn import chapter_html
from meshplan.learn.content import chapter_source
from meshplan.learn.expressions import Link, evaluate, parse_placeholder, show
from meshplan.learn.latex import to_mathml, to_plain
from meshplan.learn.numbers import FUNCTIONS


def shown(inner, lang="en"):
    return show(parse_placeholder(inner), lang)


def test_placeholder_splits_at_the_last_colon_outside_a_call():
    placeholder = parse_placeholder('fact("a:b", "c") : .1%')
    assert (placeholder.expression, placeholder.spec) == ('fact("a:b", "c")', ".1%")
    assert parse_placeholder("8").spec == ""


@pytest.mark.parametrize(
    ("inner", "text"),
    [
        ("bubble(pp=8, m=32):.1%", "17.9%"),
        ("2*1024*1024*1024:gib", "2.0 GiB"),
        ("1.5e9:gb", "1.5 GB"),
        ("2.5e7:gb", "25 MB"),
        ("1234567:whole", "1,234,567"),
        ("3.55e18:sci", "3.55 × 10¹⁸"),
        ("divisors(40, 10)", "1, 2, 5, 10"),
        ("1/8", "0.125"),
    ],
)
def test_numbers_print_with_their_unit(inner, text):
    assert shown(inner) == text


def test_words_are_said_in_the_language():
    assert shown("tier(billions=70)") == "large"
    assert shown("tier(billions=70)", "zh") == "大"


def test_sources_are_links():
    link = shown('source("neox-20b")')
    assert isinstance(link, Link)
    assert link.url.startswith("https://arxiv.org/")


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "open('x')",
        "params.__globals__",
        "[x for x in (1, 2)]",
        "(lambda: 1)()",
        "bubble",
        "2 ** 99",
    ],
)
def test_nothing_but_the_table_can_be_called(expression):
    with pytest.raises(ValueError, match="not in the table"):
        evaluate(expression)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_function_says_what_it_gives(name):
    assert FUNCTIONS[name].__doc__


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"\frac{p-1}{m+p-1}", "(p-1) / (m + p-1)"),
        (r"2 \cdot \frac{n-1}{n} \cdot M \approx 2 M", "2 · (n-1) / n · M ≈ 2 M"),
        (r"T_\text{compute}", "T_compute"),
        (r"\frac{T_1}{n}", "T_1 / n"),
        (r"x^2 + y_{ij}", "x^2 + y_ij"),
        (r"17.9\%", "17.9%"),
    ],
)
def test_formulas_read_as_text(latex, text):
    assert to_plain(latex) == text


def test_an_unknown_command_is_our_mistake():
    with pytest.raises(KeyError):
        to_plain(r"\unknown{x}")


def test_formulas_become_mathml():
    assert to_mathml(r"\frac{1}{2}", display=True).startswith("<math")


def test_chapters_are_found_by_number_and_beginning():
    assert chapter_source("4", "en")[0].id == "pipeline"
    assert chapter_source("pipe", "zh")[0].id == "pipeline"
    with pytest.raises(UserError) as caught:
        chapter_source("nothing", "en")
    assert caught.value.problems[0].code == "unknown_chapter"
    with pytest.raises(UserError):
        chapter_html("", "en")


def test_answers_are_hidden_until_asked_for(capsys):
    assert run(["learn", "pipeline", "--quiz"]) == 0
    asked = capsys.readouterr().out
    assert run(["learn", "pipeline", "--quiz", "--answers"]) == 0
    told = capsys.readouterr().out
    assert "pipeline-budget" in asked
    assert "135" not in asked
    assert "135" in told


def test_list_and_wrong_chapter(capsys):
    assert run(["learn"]) == 0
    assert "interview" in capsys.readouterr().out
    assert run(["learn", "nothing"]) == 2
    assert "pipeline" in capsys.readouterr().err


def test_json(capsys):
    assert run(["learn", "pipeline", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["verb"] == "learn"
    assert result["blocks"][0] == {
        "kind": "heading",
        "level": 2,
        "id": "idea",
        "spans": [{"text": "An assembly line", "style": ""}],
    }


def test_help_loads_nothing_of_it():
    code = (
        "import sys; from meshplan.app.cli.main import run; run(['--help']);"
        "print([m for m in sys.modules if 'learn' in m or m in ('markdown_it', 'latex2mathml')],"
        "file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
