"""Placeholders in the prose: a call of a declared function, arithmetic, and a format.

``{{bubble(pp=8, num_micro_batches=32):.1%}}`` calls ``bubble`` of the table of functions. Text
that names anything else is refused: there is no way from a chapter to the rest of Python.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from meshplan.record import record
from meshplan.text import t
from meshplan.text.quantity import plain_number
from meshplan.units import (
    GB,
    TERA,
    format_bandwidth,
    format_count,
    format_duration,
    format_memory,
)

__all__ = ["PLACEHOLDER", "Link", "Placeholder", "Term", "evaluate", "parse_placeholder", "show"]

PLACEHOLDER = re.compile(r"\{\{(?P<inner>[^{}]+)\}\}")

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _decimal(value: float) -> str:
    """Traffic and rules of thumb go by powers of ten."""
    return f"{value / GB:.4g} GB" if value >= GB else f"{value / 1e6:.4g} MB"


def _scientific(value: float) -> str:
    mantissa, exponent = f"{value:.2e}".split("e")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa} × 10{raised}"


_FORMATS: dict[str, Callable[[float], str]] = {
    "gib": format_memory,
    "gb": _decimal,
    "mib": lambda value: f"{value / 2**20:.4g} MiB",
    "time": format_duration,
    "count": format_count,
    "rate": format_bandwidth,
    "tflops": lambda value: f"{value / TERA:.4g} TFLOP/s",
    "whole": lambda value: f"{round(value):,}",
    "sci": _scientific,
}


@record(kw_only=False)
class Link:
    """A source that can be followed."""

    url: str
    title: str


@record(kw_only=False)
class Term:
    """A word that every language says in its own way."""

    code: str


@record
class Placeholder:
    """What stands between double braces.

    Attributes:
        expression: the call or arithmetic.
        spec: how the value prints; empty for four significant digits.
    """

    expression: str
    spec: str


def parse_placeholder(inner: str) -> Placeholder:
    """Split the text between the braces into expression and format."""
    depth = 0
    quoted = False
    for i, char in enumerate(inner):
        quoted ^= char == '"'
        depth += (char in "([") - (char in ")]")
        if char == ":" and not depth and not quoted:
            return Placeholder(expression=inner[:i].strip(), spec=inner[i + 1 :].strip())
    return Placeholder(expression=inner.strip(), spec="")


@lru_cache(maxsize=4096)
def evaluate(expression: str) -> Any:
    """Work an expression out.

    Raises:
        ValueError: for a name that is not declared, or anything else than calls of declared
            functions, ``+ - * /`` and literals (a mistake in a chapter).
    """
    from meshplan.learn.numbers import FUNCTIONS

    return _value(ast.parse(expression, mode="eval").body, FUNCTIONS)


def _value(node: ast.expr, functions: Mapping[str, Callable[..., Any]]) -> Any:
    match node:
        case ast.Constant(value=int() | float() | str() as value):
            return value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item, functions) for item in items]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, functions)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, functions), _value(right, functions))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in functions:
            named = {str(k.arg): _value(k.value, functions) for k in keywords}
            return functions[name](*(_value(arg, functions) for arg in args), **named)
    raise ValueError(f"not in the table of numbers: {ast.unparse(node)}")


def show(placeholder: Placeholder, lang: str) -> str | Link:
    """Work a placeholder out and print it."""
    value = evaluate(placeholder.expression)
    if isinstance(value, Link):
        return value
    if isinstance(value, Term):
        return t(value.code, lang)
    if placeholder.spec in _FORMATS:
        return _FORMATS[placeholder.spec](value)
    if placeholder.spec:
        return str(format(value, placeholder.spec))
    if isinstance(value, list):
        return ", ".join(plain_number(item) for item in value)
    return value if isinstance(value, str) else plain_number(value)
