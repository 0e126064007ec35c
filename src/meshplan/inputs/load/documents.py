"""YAML that a person wrote: size, encoding, syntax, duplicate keys, aliases, depth.

Scalars follow the core schema of YAML 1.2: ``no`` and ``12:30`` are text, ``1e3`` is a number.
Each mapping remembers the line of its keys, so that a problem can be shown where it stands.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import yaml

from meshplan.errors import ProblemList, UserError
from meshplan.inputs.load.opening import read_bytes
from meshplan.inputs.load.presets import Loader
from meshplan.inputs.vocabulary import shown

__all__ = ["Located", "deep_line", "parse_yaml", "read_yaml", "write_yaml"]

_MOST_BYTES = 1_000_000
_MOST_VALUES = 20_000
_MOST_DEPTH = 20
_INT = re.compile(r"[-+]?[0-9]{1,30}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}


class Located(dict[str, Any]):
    """A mapping that knows the file and the lines of its keys.

    Attributes:
        origin: name of the file.
        lines: line of each key, counted from 1.
    """

    origin: str = ""
    lines: dict[str, int]

    def copy(self) -> Located:
        """Copy one level, with the lines."""
        made = Located(self)
        made.origin, made.lines = self.origin, dict(self.lines)
        return made


def read_yaml(path: Path | str, *, where: str = "") -> Any:
    """Read a YAML file.

    Raises:
        UserError: when it cannot be read or is no YAML that we accept.
    """
    path = Path(path)
    place = where or str(path)
    try:
        raw = read_bytes(path, most_bytes=_MOST_BYTES)
        if len(raw) > _MOST_BYTES:
            raise UserError.of(
                "file_too_large",
                where=place,
                value=str(path),
                size_bytes=max(path.stat().st_size, len(raw)),
                most_bytes=_MOST_BYTES,
            )
        text = raw.decode("utf-8-sig")
    except IsADirectoryError:
        raise UserError.of("file_is_folder", where=place, value=str(path)) from None
    except FileNotFoundError:
        raise UserError.of("file_missing", where=place, value=str(path)) from None
    except UnicodeDecodeError:
        raise UserError.of("file_not_text", where=place, value=str(path)) from None
    except (OSError, ValueError):
        raise UserError.of("file_unreadable", where=place, value=str(path)) from None
    return parse_yaml(text, origin=path.name)


def parse_yaml(
    text: str,
    *,
    origin: str = "scenario",
    most_bytes: int = _MOST_BYTES,
    most_values: int = _MOST_VALUES,
) -> Any:
    """Read YAML text.

    Args:
        text: the text.
        origin: what it is called in messages.
        most_bytes: the longest text that is read.
        most_values: values that it may hold, aliases counted as often as they stand.

    Raises:
        UserError: for anything but one document of mappings, lists and scalars.
    """
    if len(text) > most_bytes:
        raise UserError.of(
            "file_too_large",
            where=origin,
            value=origin,
            size_bytes=len(text),
            most_bytes=most_bytes,
        )
    _check_depth(text, origin=origin)
    try:
        node = yaml.compose(text, Loader=Loader)
    except yaml.MarkedYAMLError as error:
        raise _syntax(error, text=text, origin=origin) from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UserError.of("yaml_syntax", where=origin, value=shown(text[:80])) from None
    if node is None:
        return None
    reader = _Reader(origin, most_values)
    value = reader.value(node, depth=0)
    reader.problems.raise_if_any()
    return value


def _check_depth(text: str, *, origin: str) -> None:
    """Refuse deep nesting before the parser recurses into it."""
    number = deep_line(text)
    if number is None:
        lines = enumerate(text.splitlines(), start=1)
        number = next((n for n, line in lines if len(line) - len(line.lstrip(" -?")) > 400), None)
    if number is not None:
        where = f"{origin}:{number}"
        raise UserError.of("yaml_too_deep", where=where, value="", most=_MOST_DEPTH)


def deep_line(text: str, *, most: int = 100) -> int | None:
    """Line of the bracket that is nested deeper than any config; None where none is."""
    depth = 0
    for place, character in enumerate(text):
        if character in "[{(":
            depth += 1
            if depth > most:
                return text.count("\n", 0, place) + 1
        elif character in "]})":
            depth = max(0, depth - 1)
    return None


def _syntax(error: yaml.MarkedYAMLError, *, text: str, origin: str) -> UserError:
    mark = error.problem_mark or error.context_mark
    number = mark.line + 1 if mark is not None else 1
    lines = text.splitlines()
    while number > 1 and (number > len(lines) or not lines[number - 1].strip()):
        number -= 1  # what is not closed is missed at the end: the last line that says something
    line = lines[number - 1] if number <= len(lines) else ""
    code = "yaml_tab" if "\t" in line else "yaml_syntax"
    return UserError.of(code, where=f"{origin}:{number}", value=line.strip()[:80])


class _Reader:
    """Turns a tree of nodes into values, within limits."""

    def __init__(self, origin: str, most_values: int) -> None:
        self.origin, self.most_values = origin, most_values
        self.problems = ProblemList()
        self.left = most_values

    def value(self, node: yaml.Node, *, depth: int) -> Any:
        self.left -= 1
        # an alias is its anchor's node again: a bomb of aliases runs out of values here, and one
        # that contains itself runs out of depth
        if self.left < 0 or depth > _MOST_DEPTH:
            code = "yaml_too_deep" if depth > _MOST_DEPTH else "yaml_too_many"
            most = _MOST_DEPTH if depth > _MOST_DEPTH else self.most_values
            raise UserError.of(code, where=self.place(node), value="", most=most)
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, depth=depth + 1) for item in node.value]
        assert isinstance(node, yaml.MappingNode)
        return self.mapping(node, depth=depth)

    def place(self, node: yaml.Node) -> str:
        return f"{self.origin}:{node.start_mark.line + 1}"

    def mapping(self, node: yaml.MappingNode, *, depth: int) -> Located:
        made = Located()
        made.origin, made.lines = self.origin, {}
        for key_node, value_node in node.value:
            key = self.value(key_node, depth=depth + 1)
            if isinstance(key, list | dict):
                self.problems.add("yaml_syntax", where=self.place(key_node), value="?")
                continue
            text = key if isinstance(key, str) else str(key_node.value)
            # a key that was left empty is filled, one with a value is contradicted
            if made.get(text) is not None:
                self.problems.add(
                    "duplicate_key",
                    where=f"{self.place(key_node)}: {text}",
                    value=text,
                    first_line=made.lines[text],
                )
            made.lines[text] = key_node.start_mark.line + 1
            made[text] = self.value(value_node, depth=depth + 1)
        return made

    def scalar(self, node: yaml.ScalarNode) -> Any:
        text: str = node.value
        return text if node.style in ("'", '"', "|", ">") else _plain(text)


def _plain(text: str) -> Any:
    """What a scalar without quotes means."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and len(text) < 40:
        return float(text)
    return text


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Quotes text that would read back as a number or a word."""


def _represent_text(dumper: Any, text: str) -> yaml.Node:
    style = None if isinstance(_plain(text), str) else "'"
    node: yaml.Node = dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
    return node


_Dumper.add_representer(str, _represent_text)


def write_yaml(value: Any, *, leaves_in_line: bool = False) -> str:
    """Write plain values so that ``parse_yaml`` reads back the same.

    Args:
        value: what to write.
        leaves_in_line: write lists and mappings that hold no others in brackets, on one line where
            they fit.
    """
    text: str = yaml.dump(
        value,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=100,
        default_flow_style=None if leaves_in_line else False,
    )
    return text
