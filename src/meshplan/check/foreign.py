"""Keys and options that a framework does not have, and those that they may stand for.

A framework that meets one either refuses to start or never looks at it, so that a run goes on
without what its owner wrote. The known ones stand in ``inputs/presets/config_keys.yaml``, read from
the frameworks' own sources by ``tools/framework_keys.py``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import yaml

from meshplan.check.documents import Values
from meshplan.check.options import Option
from meshplan.check.records import ForeignKey
from meshplan.check.shell_words import State
from meshplan.inputs.load.presets import PRESETS, Loader
from meshplan.record import record

__all__ = [
    "Known",
    "foreign_keys",
    "foreign_options",
    "known_to",
    "knows_any",
    "nearest_key",
    "unset_variables",
]

_ROOT = "."
_CLOSE = 0.75
# Comments, where a format has none.
_COMMENT = re.compile(r"[_#/].*|.*comment.*", re.IGNORECASE)
# A name of several words is the same thing in another section; ``enabled`` may be of anything.
_SEVERAL = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)+")
# Options that count as known and that no other is taken for: of older versions, of tools.
_FORMER = "(former)"
# Below the first length any edit may make another name, up to the second one edit is a slip.
_SHORT, _LONG = 4, 12
_DIGITS = "0123456789"
# More keys than these that are like no others are those of a fork with a config of its own.
_MANY = 3


@record
class Known:
    """What one framework knows.

    Attributes:
        framework: its name and version for people.
        refuses: sections in which it refuses other keys; ``*`` for all.
        source: where that was read.
        sections: keys by the dotted place of their mapping; a place that is missing takes any.
    """

    framework: str
    refuses: frozenset[str]
    source: str
    sections: Mapping[str, frozenset[str]]

    def refuses_in(self, section: str) -> bool:
        """Whether a key of a section that it does not know ends the run."""
        top = section.partition(".")[0]
        return "*" in self.refuses or section in self.refuses or top in self.refuses


@cache
def known_to(kind: str) -> Known:
    """The keys or options of one kind of config, such as ``deepspeed``."""
    text = (PRESETS / "config_keys.yaml").read_text("utf-8")
    block = re.search(rf"^{kind}:\n(?:[ ].*\n)+", text, re.MULTILINE)
    assert block is not None, f"config_keys.yaml knows no {kind}"
    content: dict[str, Any] = yaml.load(block[0], Loader)[kind]
    return Known(
        framework=content["framework"],
        refuses=frozenset(content["refuses"].split()),
        source=content["source"],
        sections={name: frozenset(keys.split()) for name, keys in content["sections"].items()},
    )


def foreign_keys(
    values: Values,
    kind: str,
    *,
    data: Mapping[str, Any] | None = None,
    version: str = "",
    refused: bool = True,
) -> tuple[ForeignKey, ...]:
    """Keys of a file that its framework does not have.

    Args:
        values: the file.
        kind: whose keys count.
        data: what of the file is looked at; all of it if None.
        version: the one to name, where several share the keys.
        refused: false where the framework may have been extended: it need not refuse a key, and
            one that is no slip of the hand is taken as of the extension. So are keys of which
            there are many.
    """
    known = known_to(kind)
    found = [
        ForeignKey(
            key=_joined(section, key),
            where=values.where(_joined(section, key)),
            nearest=_elsewhere(key, section, known),
            framework=known.framework.format(version=version),
            refused=refused and known.refuses_in(section),
            source=known.source,
        )
        for section, key in _walk(values.data if data is None else data, _ROOT, known)
    ]
    own = [key for key in found if not _is_slip(key)]
    if refused and len(own) <= _MANY:
        return tuple(found)
    return tuple(replace(key, refused=False) for key in found if _is_slip(key))


def _is_slip(key: ForeignKey) -> bool:
    names = [name.rsplit(".", 1)[-1] for name in (key.key, key.nearest)]
    return bool(key.nearest) and (names[0] == names[1] or bool(_misspelt(names[0], names[1:])))


def _joined(section: str, key: str) -> str:
    return key if section == _ROOT else f"{section}.{key}"


def _walk(data: Mapping[str, Any], section: str, known: Known) -> Iterator[tuple[str, str]]:
    keys = known.sections.get(section)
    if keys is None:
        return
    for name, value in data.items():
        key = str(name)
        if key not in keys:
            if known.refuses_in(section) or not _COMMENT.fullmatch(key):
                yield section, key
            continue
        for inner in value if isinstance(value, list) else (value,):
            if isinstance(inner, dict):
                yield from _walk(inner, _joined(section, key), known)


def _elsewhere(key: str, section: str, known: Known) -> str:
    """The key that is meant: of another section by the same name, or one like it of this one.

    Where several sections have the name, the one with most keys is its usual place.
    """
    others = [(len(keys), s) for s, keys in known.sections.items() if key in keys]
    others = [(size, s) for size, s in others if s == _ROOT or not s.startswith(f"{section}.")]
    named = _SEVERAL.fullmatch(key)
    if others and named:
        most = max(size for size, _ in others)
        return _joined(min(s for size, s in others if size == most), key)
    near = nearest_key(key, known.sections[section])
    return _joined(section, near) if near else ""


def knows_any(values: Values, kind: str) -> bool:
    """Whether a file has any key of the outermost level of its framework."""
    return bool(known_to(kind).sections[_ROOT] & {str(key) for key in values.data})


def nearest_key(key: str, names: Iterable[str]) -> str:
    """The name that is most like a key; empty where none is alike."""
    return (difflib.get_close_matches(key, sorted(names), 1, _CLOSE) or [""])[0]


def foreign_options(
    options: Sequence[Option], kind: str, *, file: str, refused: bool = True
) -> tuple[ForeignKey, ...]:
    """Options of a command that look like misspelt ones.

    A script adds options of its own, so that one like no other is taken as such.
    """
    known = known_to(kind)
    names = known.sections[_ROOT]
    all_names = names | known.sections.get(_FORMER, frozenset())
    return tuple(
        ForeignKey(
            key=option.spelled,
            where=f"{file}:{option.line}",
            nearest=f"--{near}",
            framework=known.framework,
            refused=refused and known.refuses_in(_ROOT),
            source=known.source,
        )
        for option in options
        if option.name not in all_names and (near := _misspelt(option.name, names))
    )


def unset_variables(state: State) -> Iterator[ForeignKey]:
    """Variables that a script reads and never sets, where it sets one that is a slip away."""
    known = {*state.variables, *state.arrays}
    for name, line in state.unset.items():
        if name not in known and (near := _misspelt(name, known)):
            yield ForeignKey(
                key=f"${name}",
                where=f"{state.source.name}:{line}",
                nearest=f"${near}",
                framework="",
                refused=False,
                source="",
            )


def _misspelt(name: str, names: Iterable[str]) -> str:
    """The name from which one differs by a slip of the hand; empty where it does from all."""
    if len(name) < _SHORT:
        return ""
    most = 1 if len(name) <= _LONG else 2
    # a second of something is no misspelt first (--data-path2), and hands rarely slip at once
    near = [
        (far, n)
        for n in names
        if name[0] == n[0]
        and (far := _edits(name, n, most)) <= most
        and name.rstrip(_DIGITS) != n.rstrip(_DIGITS)
    ]
    return min(near)[1] if near else ""


def _edits(one: str, other: str, most: int) -> int:
    """Letters to insert, drop, change or swap with a neighbour; more than ``most`` is not counted.

    Restricted Damerau-Levenshtein distance.
    """
    if abs(len(one) - len(other)) > most:
        return most + 1
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        row = [i]
        for j, b in enumerate(other, 1):
            best = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a != b))
            if before and j > 1 and a == other[j - 2] and one[i - 2] == b:
                best = min(best, before[j - 2] + 1)
            row.append(best)
        if min(row) > most:
            return most + 1
        before, last = last, row
    return last[-1]
