"""Reasons and formulas as codes and numbers; sentences stand in the catalogues."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Literal

from meshplan.provenance import Kind
from meshplan.record import record

__all__ = ["Formula", "Reason", "Topic", "Value", "agrees", "evaluate", "formula"]

Topic = Literal["memory", "communication", "degrees"]


@record
class Reason:
    """One thing that speaks for the plan, or about it.

    Attributes:
        code: key of the sentence ``reason.<code>``.
        topic: where it stands in the order memory, communication, degrees.
        numbers: what the sentence mentions, in the unit that the name ends in.
    """

    code: str
    topic: Topic
    numbers: Mapping[str, object] = field(default_factory=dict)


@record
class Value:
    """A number in a formula.

    Attributes:
        symbol: as the formula writes it.
        value: the number.
        unit: its unit; empty for a count.
        kind: how it came to be; ``given`` when the user or the plan states it.
        source: where it can be looked up.
    """

    symbol: str
    value: float
    unit: str = ""
    kind: Kind | Literal["given"] = "given"
    source: str = ""


@record
class Formula:
    """A formula with its numbers.

    Attributes:
        code: key of the name ``formula.<code>``.
        group: the part of the answer it belongs to: ``parameters``, ``memory``, ``compute``,
            ``communication``, ``bubble``, ``step`` or ``efficiency``.
        expression: arithmetic over the symbols, see :func:`evaluate`.
        values: the numbers by symbol, in the order of the expression.
        result: what the expression gives.
        unit: unit of the result.
        source: document, equation or rule that the formula follows.
        subject: what it is about where there are several, such as a stage or a collective.
    """

    code: str
    group: str
    expression: str
    values: tuple[Value, ...]
    result: float
    unit: str
    source: str
    subject: Mapping[str, object] = field(default_factory=dict)

    def substituted(self) -> str:
        """The expression with the numbers in place of the symbols."""
        tree = ast.parse(self.expression, mode="eval")
        numbers = {v.symbol: v.value for v in self.values}
        return ast.unparse(_Fill(numbers).visit(tree)).replace("**", "^")


_LARGEST_COUNT = 1e15


class _Fill(ast.NodeTransformer):
    def __init__(self, numbers: Mapping[str, float]) -> None:
        self._numbers = numbers

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in self._numbers:
            return node
        return ast.copy_location(ast.Constant(_short(self._numbers[node.id])), node)


def _short(value: float) -> int | float:
    """Counts in full, other numbers with six significant digits."""
    return (
        int(value) if value == int(value) and abs(value) < _LARGEST_COUNT else float(f"{value:.6g}")
    )


_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {"ceil": math.ceil, "max": max, "min": min}


def evaluate(expression: str, values: Mapping[str, float]) -> float:
    """Work out an expression over ``+ - * / **``, ``ceil``, ``max``, ``min`` and symbols.

    Raises:
        KeyError: for a symbol without a value.
        ValueError: for anything else than such arithmetic.
    """
    return _value(ast.parse(expression, mode="eval").body, values)


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, values), _value(right, values))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, values)
        case ast.Call(func=ast.Name(id=name), args=args) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(arg, values) for arg in args))
    raise ValueError(ast.unparse(node))


def formula(
    code: str,
    expression: str,
    *values: Value,
    group: str,
    unit: str,
    source: str,
    result: float | None = None,
    **subject: object,
) -> Formula:
    """Make a formula.

    Args:
        code: see :class:`Formula`, as the others.
        expression: arithmetic over the symbols of ``values``.
        values: numbers by symbol.
        group: part of the answer.
        unit: unit of the result.
        source: what the formula follows.
        result: the number of the cost model that the formula explains; what the expression
            gives when no single number of the model stands for it.
        subject: what it is about.
    """
    if result is None:
        result = evaluate(expression, {v.symbol: v.value for v in values})
    return Formula(
        code=code,
        group=group,
        expression=expression,
        values=values,
        result=float(result),
        unit=unit,
        source=source,
        subject=subject,
    )


def agrees(candidate: Formula, *, rel_tol: float) -> bool:
    """Whether evaluating the formula gives its result."""
    values = {v.symbol: v.value for v in candidate.values}
    return math.isclose(evaluate(candidate.expression, values), candidate.result, rel_tol=rel_tol)
