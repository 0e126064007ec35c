"""Config files that are JSON, YAML or TOML, each key with the line it stands on."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from meshplan.check.records import Setting, Source
from meshplan.errors import ProblemList, UserError
from meshplan.inputs.load.documents import deep_line, parse_yaml

__all__ = ["LinedValues", "Values", "json_values", "toml_values", "too_deep", "yaml_values"]


# a key with what stands after it, and a section: a key, or the header of a table
_STANDS = r"(?<![\w.-]){name}(?![\w-])[\"']?\s*[:=]"
_OPENS = r"(?<![\w-]){name}(?![\w-])[\"']?\s*(?:[:=]|\][ \t]*$|\.)"


def _places(start: int) -> Iterator[tuple[str, int]]:
    """What a key looks like and from where to look for it: below its sections, then anywhere."""
    yield from ((_STANDS, start), (_STANDS, 0), (_OPENS, 0))


def _found(pattern: str, name: str, text: str, start: int) -> re.Match[str] | None:
    """The first place of a name after another, comments left out."""
    wanted = re.compile(pattern.format(name=re.escape(name)), re.MULTILINE)
    for match in wanted.finditer(text, start):
        line = text.rfind("\n", 0, match.start()) + 1
        if not text[line : match.start()].lstrip().startswith("#"):
            return match
    return None


class Values:
    """A mapping of a config file by dotted keys, which knows lines and what is wrong."""

    def __init__(self, source: Source, data: dict[str, Any], problems: ProblemList) -> None:
        self.source, self.data, self.problems = source, data, problems

    def raw(self, key: str) -> Any:
        """The value under a dotted key; None when there is none."""
        value: Any = self.data
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                return None
            value = value[part]
        return value

    def where(self, key: str) -> str:
        """The file and the line of a key: of its last part, below what its sections open."""
        text, start = self.source.text, 0
        *sections, last = key.split(".")
        for section in sections:
            if match := _found(_OPENS, section, text, start):
                start = match.end()
        match = next(filter(None, (_found(p, last, text, s) for p, s in _places(start))), None)
        if match is None:
            return self.source.name
        return f"{self.source.name}:{text.count(chr(10), 0, match.start()) + 1}"

    def setting(self, key: str, value: object) -> Setting:
        """A value of ours with the key it comes from."""
        return Setting(value=value, where=self.where(key), spelled=key)

    def count(self, key: str, *, least: int = 1) -> int | None:
        """A whole number; None when it is missing, ``auto`` or wrong (which is noted)."""
        value = self.raw(key)
        if value is None or value == "auto":
            return None
        if isinstance(value, str) and value.isdecimal() and len(value) < 16:
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.problems.add(
                "check_not_a_count", where=self.where(key), value=str(value)[:40], option=key
            )
            return None
        return value

    def counts(self, table: dict[str, str]) -> dict[str, Setting]:
        """All whole numbers of a table of keys to our names."""
        found = {}
        for key, name in table.items():
            if (value := self.count(key)) is not None:
                found[name] = self.setting(key, value)
        return found

    def name(self, key: str, names: dict[str, Any]) -> Any | None:
        """A value that is one of a few names; None when it is missing or wrong."""
        value = self.raw(key)
        if value is None or value == "auto":
            return None
        text = str(value)
        if text.lower() in names:
            return names[text.lower()]
        self.problems.add(
            "check_unknown_value",
            where=self.where(key),
            value=text[:60],
            allowed=tuple(names),
            option=key,
        )
        return None


class LinedValues(Values):
    """Values whose lines are known."""

    def __init__(
        self, source: Source, data: dict[str, Any], problems: ProblemList, lines: Mapping[str, int]
    ) -> None:
        super().__init__(source, data, problems)
        self.lines = lines

    def where(self, key: str) -> str:
        """The file, and the line where the key is set."""
        line = self.lines.get(key)
        return self.source.name if line is None else f"{self.source.name}:{line}"


def json_values(source: Source, problems: ProblemList) -> Values:
    """Read JSON.

    Raises:
        UserError: with the line, when it is none.
    """
    try:
        data = json.loads(source.text)
    except json.JSONDecodeError as error:
        where = f"{source.name}:{error.lineno}"
        raise UserError.of("check_syntax", where=where, value="JSON") from None
    except RecursionError:
        raise too_deep(source) from None
    except ValueError:  # a number of more digits than Python reads
        raise UserError.of("check_syntax", where=_longest_line(source), value="JSON") from None
    return _mapping(source, data, problems)


def too_deep(source: Source) -> UserError:
    """Say where brackets are nested deeper than a parser goes."""
    where = f"{source.name}:{deep_line(source.text) or 1}"
    return UserError.of("check_too_deep", where=where)


def _longest_line(source: Source) -> str:
    lines = source.text.splitlines()
    longest = max(range(len(lines)), key=lambda i: len(lines[i]))
    return f"{source.name}:{longest + 1}"


def yaml_values(source: Source, problems: ProblemList) -> Values:
    """Read YAML: one document, no tags, aliases within limits."""
    return _mapping(source, parse_yaml(source.text, origin=source.name), problems)


def toml_values(source: Source, problems: ProblemList) -> Values:
    """Read TOML.

    Raises:
        UserError: with the line, when it is none.
    """
    try:
        data = tomllib.loads(source.text)
    except RecursionError:
        raise too_deep(source) from None
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        where = f"{source.name}:{line[1]}" if line else source.name
        raise UserError.of("check_syntax", where=where, value="TOML") from None
    return _mapping(source, data, problems)


def _mapping(source: Source, data: Any, problems: ProblemList) -> Values:
    if not isinstance(data, dict):
        raise UserError.of("not_a_mapping", where=source.name, value=str(data)[:40])
    return Values(source, data, problems)
