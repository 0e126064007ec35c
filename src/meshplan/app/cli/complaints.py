"""What a person did wrong, in sentences: an error line, the values that are allowed, a hint."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterable
from typing import TextIO

from meshplan.app.cli.layout import cell_len, colour_wanted, style, terminal_width, wrap
from meshplan.app.sentences import key_of
from meshplan.errors import Problem, UserError
from meshplan.text import has, t

__all__ = ["describe", "print_complaint", "problems_json"]

_MOST_LISTED = 12
_REASONS = {"no_legal_plan": "rule", "no_run_to_calibrate": "skipped"}
"""Problems that list reasons by their codes, and what the sentences of those start with."""


def describe(problem: Problem, lang: str) -> dict[str, str]:
    """Return the sentences of one problem: ``message``, ``allowed`` (may be empty), ``hint``."""
    # comes with numpy, which nobody who is helped or answered waits for
    from meshplan.diagnose.values import escaped

    allowed = _list_allowed(problem, lang)
    values = {
        "key": key_of(problem.where),
        **problem.numbers,
        "where": problem.where,
        "value": problem.value,
    }
    values = {**values, "allowed": allowed}
    said = {
        "message": t(f"error.{problem.code}", lang, **values),
        "allowed": allowed,
        "hint": t(f"hint.{problem.code}", lang, **values),
    }
    # names and values are a person's own: what acts on a terminal is shown instead
    return {name: "\n".join(map(escaped, text.split("\n"))) for name, text in said.items()}


def _list_allowed(problem: Problem, lang: str) -> str:
    names = [str(value) for value in problem.allowed]
    if problem.code in _REASONS:
        codes = [f"{_REASONS[problem.code]}.{name}" for name in names]
        return "; ".join(t(code, lang) for code in codes if has(code, lang))
    if len(names) <= _MOST_LISTED:
        return ", ".join(names)
    close = difflib.get_close_matches(str(problem.value), names, n=3, cutoff=0.5)
    shown = [*close, *(name for name in names if name not in close)][:_MOST_LISTED]
    more = t("cli.more", lang, count=len(names) - _MOST_LISTED)
    return ", ".join([*shown, more])


def problems_json(error: UserError, lang: str) -> str:
    """Return the problems as JSON, for ``--json``."""
    problems = [
        {
            "code": problem.code,
            "where": problem.where,
            "value": problem.value,
            "allowed": list(problem.allowed),
            "message": describe(problem, lang)["message"],
            "hint": describe(problem, lang)["hint"],
        }
        for problem in error.problems
    ]
    return json.dumps({"problems": problems}, ensure_ascii=False, indent=2, default=str)


def print_complaint(error: UserError, lang: str, *, stream: TextIO | None = None) -> None:
    """Print every problem, each with its hint, to standard error."""
    stream = stream or sys.stderr
    colour = colour_wanted(stream)
    for number, problem in enumerate(_distinct(error.problems)):
        if number:
            print(file=stream)
        said = describe(problem, lang)
        _print_labelled(t("cli.error", lang), said["message"], "1;31", colour, stream)
        # a sentence that names the allowed values itself needs no second list
        if said["allowed"] and said["allowed"] not in said["message"] + said["hint"]:
            label = "  " + t("cli.allowed", lang)
            _print_labelled(label, said["allowed"], "2", colour, stream)
        _print_labelled("  " + t("cli.hint", lang), said["hint"], "1;36", colour, stream)


def _distinct(problems: Iterable[Problem]) -> list[Problem]:
    """Drop repeats of the same problem at the same place."""
    seen: dict[tuple[str, str, str], Problem] = {}
    for problem in problems:
        seen.setdefault((problem.code, problem.where, repr(problem.value)), problem)
    return list(seen.values())


def _print_labelled(label: str, text: str, code: str, colour: bool, stream: TextIO) -> None:
    """Print ``label: text`` with a hanging indent."""
    # a full-width colon brings its own blank
    gap = "" if label.endswith("：") else " "
    indent = cell_len(label + gap)
    lines = wrap(text, max(20, terminal_width() - indent)) or [""]
    print(style(label, code, on=colour) + gap + lines[0], file=stream)
    for line in lines[1:]:
        print(" " * indent + line, file=stream)
