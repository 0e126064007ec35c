"""What a Python module would hold, read from its text: literals, calls, names bound to them.

Nothing is imported or run. A function without branches is followed statement by statement, calls
of other functions stay calls with their arguments, and whatever depends on more than the text is
:class:`Unread` and never guessed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from meshplan.check.documents import too_deep
from meshplan.check.records import Source
from meshplan.errors import UserError

__all__ = ["Call", "Module", "Unread", "parse_module"]

_MOST_STEPS = 20_000
_MOST_DEPTH = 20
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_LARGEST = 10**15


@dataclass(slots=True)
class Unread:
    """A value that only a run would show.

    Attributes:
        text: how it is written.
        line: where it stands.
    """

    text: str
    line: int


@dataclass(slots=True, eq=False)
class Call:
    """What a call gives, whose fields later statements may set.

    Attributes:
        name: dotted name of what is called, without the object of a method.
        args: values by place.
        fields: values by name, those that statements set included.
        lines: lines of the fields.
        line: where it stands.
        owner: the object of a method; None for a function.
    """

    name: str
    args: tuple[Any, ...] = ()
    fields: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    line: int = 0
    owner: Any = None

    def get(self, name: str) -> Any:
        """A field; one that nothing set yet is an object of its own, so that it can be set."""
        if name not in self.fields:
            self.fields[name] = Call(name="", line=self.line)
        return self.fields[name]

    def put(self, name: str, value: Any, line: int) -> None:
        """Set a field."""
        self.fields[name], self.lines[name] = value, line


class _ReturnedError(Exception):
    """A function is left with a value."""

    def __init__(self, value: Any) -> None:
        self.value = value


@dataclass(slots=True)
class Module:
    """A module that can be followed.

    Attributes:
        source: its text.
        functions: functions of the module itself, by name.
        imported: module of each imported name.
        names: values of the module's own names.
        steps: statements followed so far.
    """

    source: Source
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    imported: dict[str, str] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=dict)
    steps: int = 0

    def result(self, name: str) -> Any:
        """What a function without arguments would return."""
        return self._call(self.functions[name], (), {}, depth=0)

    def called(self, name: str) -> bool:
        """Whether a function of the module is called by another one."""
        return any(
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
            for function in self.functions.values()
            for node in ast.walk(function)
        )

    def _call(
        self,
        function: ast.FunctionDef,
        args: tuple[Any, ...],
        fields: Mapping[str, Any],
        *,
        depth: int,
    ) -> Any:
        there = _Scope(self, depth=depth)
        there.bind(function, args, fields)
        try:
            there.follow(function.body)
        except _ReturnedError as returned:
            return returned.value
        return None


class _Scope:
    """Names of one call of a function, or of the module itself."""

    def __init__(self, module: Module, *, depth: int) -> None:
        self.module, self.depth = module, depth
        self.names: dict[str, Any] = module.names if depth < 0 else {}

    def bind(
        self, function: ast.FunctionDef, args: tuple[Any, ...], fields: Mapping[str, Any]
    ) -> None:
        """Bind parameters to arguments; defaults where none is given."""
        given = function.args
        names = [arg.arg for arg in (*given.posonlyargs, *given.args)]
        for name, default in zip(reversed(names), reversed(given.defaults), strict=False):
            self.names[name] = self.value(default)
        for arg, keyword in zip(given.kwonlyargs, given.kw_defaults, strict=True):
            if keyword is not None:
                self.names[arg.arg] = self.value(keyword)
        self.names |= dict(zip(names, args, strict=False)) | dict(fields)

    def unread(self, node: ast.AST) -> Unread:
        text = ast.unparse(node).split("\n")[0][:60]
        return Unread(text=text, line=getattr(node, "lineno", 0))

    def follow(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self.module.steps += 1
            if self.module.steps > _MOST_STEPS:
                raise _ReturnedError(self.unread(statement))
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                self._bound(node)
            case ast.Return(value=value):
                raise _ReturnedError(None if value is None else self.value(value))
            case ast.Import() | ast.ImportFrom():
                here = (
                    "." * node.level + (node.module or "")
                    if isinstance(node, ast.ImportFrom)
                    else ""
                )
                self.module.imported |= {n.asname or n.name: here or n.name for n in node.names}
            case ast.FunctionDef(name=name) if self.depth < 0:
                self.module.functions[name] = node
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                self.names[name] = self.unread(node)
            case ast.For(target=target, iter=items, orelse=[]):
                self._loop(target, self.value(items), node)
            case ast.Expr(value=value):
                self._done(value, node)
            case ast.Pass() | ast.Assert() | ast.ClassDef():
                pass
            case _:
                self._undecided(node)

    def _bound(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> None:
        if isinstance(node, ast.AugAssign):
            known = ast.BinOp(left=_loaded(node.target), op=node.op, right=node.value)
            self._assign(node.target, self.value(ast.copy_location(known, node)))
        elif node.value is not None:
            found = self.value(node.value)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self._assign(target, found)

    def _done(self, value: ast.expr, node: ast.stmt) -> None:
        """A call for its effect; a method may change what it belongs to."""
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            self._forget(value.func.value, node)
        elif isinstance(value, ast.Call):
            self.value(value)

    def _loop(self, target: ast.expr, items: Any, node: ast.For) -> None:
        """A loop over a known list, item by item."""
        leaves = any(isinstance(x, ast.Break | ast.Continue) for x in ast.walk(node))
        if not isinstance(items, list) or leaves:
            self._undecided(node)
            return
        for item in items:
            self._assign(target, item)
            self.follow(node.body)

    def _undecided(self, node: ast.stmt) -> None:
        """Whatever a statement may set is unread, and what it may return."""
        for inner in _own(node):
            if isinstance(inner, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.For):
                targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
                for target in targets:
                    self._assign(target, self.unread(inner))
            elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
                self._forget(inner.func.value, inner)
            elif isinstance(inner, ast.Return):
                raise _ReturnedError(self.unread(inner))
            elif isinstance(inner, ast.Import | ast.ImportFrom):
                self._statement(inner)

    def _forget(self, owner: ast.expr, node: ast.AST) -> None:
        if isinstance(owner, ast.Name | ast.Attribute) and not isinstance(
            self.value(owner), Unread
        ):
            root = owner.id if isinstance(owner, ast.Name) else ""
            if root not in self.module.imported:
                self._assign(owner, self.unread(node))

    def _assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(id=name):
                self.names[name] = value
            case ast.Attribute(value=owner, attr=name):
                there = self.value(owner)
                if isinstance(there, Call):
                    there.put(name, value, target.lineno)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                values = value if isinstance(value, list) and len(value) == len(parts) else None
                for place, part in enumerate(parts):
                    self._assign(part, self.unread(target) if values is None else values[place])
            case ast.Subscript(value=owner) | ast.Starred(value=owner):
                self._assign(owner, self.unread(target))

    def value(self, node: ast.expr) -> Any:
        """The value of an expression, as far as the text shows it."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._name(name, node)
            case ast.Attribute(value=owner, attr=attr):
                there = self.value(owner)
                return there.get(attr) if isinstance(there, Call) else self.unread(node)
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return [self.value(part) for part in parts]
            case ast.Dict(keys=keys, values=values) if all(keys):
                named = [self.value(key) for key in keys if key is not None]
                pairs = zip(named, map(self.value, values), strict=True)
                return {str(key): value for key, value in pairs}
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                found = self.value(operand)
                return -found if type(found) in (int, float) else self.unread(node)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return self._number(node, self.value(left), self.value(right))
            case ast.Call():
                return self._called(node)
        return self.unread(node)

    def _known(self, name: str) -> bool:
        return name in self.names or name in self.module.names

    def _name(self, name: str, node: ast.expr) -> Any:
        for names in (self.names, self.module.names):
            if name in names:
                return names[name]
        return self.unread(node)

    def _number(self, node: ast.BinOp, left: Any, right: Any) -> Any:
        """Whole-number arithmetic within bounds."""
        if type(left) is not int or type(right) is not int or max(abs(left), abs(right)) > _LARGEST:
            return self.unread(node)
        try:
            return _OPERATORS[type(node.op)](left, right)
        except ZeroDivisionError:
            return self.unread(node)

    def _called(self, node: ast.Call) -> Any:
        if any(isinstance(arg, ast.Starred) for arg in node.args) or any(
            keyword.arg is None for keyword in node.keywords
        ):
            return self.unread(node)
        args = tuple(self.value(arg) for arg in node.args)
        fields = {str(k.arg): self.value(k.value) for k in node.keywords}
        lines = {str(k.arg): k.value.lineno for k in node.keywords}
        name, owner = self._callee(node.func)
        own = self.module.functions.get(name)
        if own is not None and owner is None and self.depth < _MOST_DEPTH:
            found = self.module._call(own, args, fields, depth=max(self.depth, 0) + 1)
            if not isinstance(found, Unread) and found is not None:
                return found
        if name in ("replace", "dataclasses.replace") and args and isinstance(args[0], Call):
            old = args[0]
            return Call(
                old.name, old.args, {**old.fields, **fields}, {**old.lines, **lines}, old.line
            )
        return Call(name, args, fields, lines, node.lineno, owner)

    def _callee(self, node: ast.expr) -> tuple[str, Any]:
        """The dotted name of what is called, and the value whose method it is."""
        parts: list[str] = []
        inner = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name) and not self._known(inner.id):
            return ".".join([inner.id, *reversed(parts)]), None
        if isinstance(node, ast.Attribute):
            return node.attr, self.value(node.value)
        return "", self.value(inner)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and what is inside it, functions and classes left out."""
    for inner in ast.iter_child_nodes(node):
        if not isinstance(
            inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
        ):
            yield inner
            yield from _own(inner)


def _loaded(target: ast.expr) -> ast.expr:
    """The same place, read instead of written."""
    return ast.copy_location(ast.parse(ast.unparse(target), mode="eval").body, target)


def parse_module(source: Source) -> Module:
    """Read a module's own statements.

    Raises:
        UserError: with the line, when it is no Python.
    """
    try:
        tree = ast.parse(source.text)
        module = Module(source=source)
        there = _Scope(module, depth=-1)
        for statement in _statements(tree):
            there.follow([statement])
    except SyntaxError as error:
        if error.msg.startswith("too many nested"):
            raise too_deep(source) from None
        where = f"{source.name}:{error.lineno or 1}"
        raise UserError.of("check_syntax", where=where, value="Python") from None
    except (RecursionError, ValueError, MemoryError):
        raise too_deep(source) from None
    except _ReturnedError:
        pass
    return module


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Functions first, which statements of the module may call before they stand there."""
    yield from (node for node in tree.body if isinstance(node, ast.FunctionDef))
    yield from (node for node in tree.body if not isinstance(node, ast.FunctionDef))
