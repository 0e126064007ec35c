"""Single settings over a scenario: ``job.seq_len=8192``, ``cluster.network=25GbE``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from meshplan.errors import ProblemList, UserError
from meshplan.inputs.load.documents import Located, parse_yaml
from meshplan.inputs.vocabulary import shown

__all__ = ["apply_settings", "without_replaced"]

# What says the same in other words, so that one of them set anew takes the other's place.
_OTHER_WORDS = {
    "cluster": (("gpus", "nodes"), ("usd_per_gpu_hour", "usd_per_hour")),
}

# Where commas make a list.
_LISTS = ("axes", "frameworks")


def apply_settings(data: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """Return the scenario's plain values with some of them replaced.

    A key is a path through the mappings; a number in it counts items of a list from 0. A value
    is read as YAML; under ``axes`` and ``frameworks`` commas make a list. The data that is given
    stays as it was.

    Raises:
        UserError: for what is no ``key=value`` and for paths through something that has no keys.
        Unknown keys are the reader's to find.
    """
    made: dict[str, Any] = _copied(data)
    problems = ProblemList()
    changed: dict[str, set[str]] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        path = [part.strip().replace("-", "_") for part in key.strip().split(".")]
        if not equals or not all(path):
            problems.add("bad_setting", where="--set", value=setting[:80])
            continue
        try:
            _put(made, path, _value(path, text.strip()))
        except UserError as error:
            problems.extend(error)
        changed.setdefault(path[0], set()).update(path[1:2])
    problems.raise_if_any()
    for name, keys in changed.items():
        if isinstance(made.get(name), dict):
            made[name] = without_replaced(made[name], keys, name)
    return made


def without_replaced(data: Mapping[str, Any], changed: Collection[str], name: str) -> Any:
    """Leave out what a change says in other words: ``nodes`` where ``gpus`` is set anew.

    Args:
        data: one level of a scenario, changes included.
        changed: keys that were set anew.
        name: what level it is, such as ``cluster``.
    """
    gone = set()
    for pair in _OTHER_WORDS.get(name, ()):
        for key, other in (pair, pair[::-1]):
            if key in changed and other not in changed and other in data:
                gone.add(other)
    if not gone:
        return data
    kept = data.copy() if isinstance(data, dict) else dict(data)
    for key in gone:
        del kept[key]
    return kept


def _value(path: list[str], text: str) -> Any:
    if path[0] in _LISTS and "," in text and not text.startswith("["):
        return [_value(path, part.strip()) for part in text.split(",")]
    if not text:
        return None
    # text of other kinds stays text, so that a path or a shorthand needs no quotes
    if text[0] in "[{" or not set(text) & set(":#&*!|>'\"%@`{}[],"):
        return parse_yaml(text, origin="--set")
    return text


def _copied(value: Any) -> Any:
    if isinstance(value, Located):
        made = value.copy()
        made.update((key, _copied(item)) for key, item in value.items())
        return made
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list | tuple) else value


def _put(data: dict[str, Any], path: list[str], value: Any) -> None:
    place: Any = data
    for depth, part in enumerate(path[:-1]):
        inner = _get(place, part, path)
        if inner is None:
            inner = _set(place, part, {}, path)
        elif depth == 0 and part == "cluster" and isinstance(inner, str):
            # a shorthand with changes is a mapping with a base
            inner = _set(place, part, {"base": inner}, path)
        place = inner
    _set(place, path[-1], value, path)


def _get(place: Any, part: str, path: list[str]) -> Any:
    if isinstance(place, list):
        return place[_index(place, part, path)]
    if isinstance(place, dict):
        return place.get(part)
    raise UserError.of("setting_has_no_keys", where=f"--set {'.'.join(path)}", value=shown(place))


def _set(place: Any, part: str, value: Any, path: list[str]) -> Any:
    if isinstance(place, list):
        place[_index(place, part, path)] = value
    elif isinstance(place, dict):
        place[part] = value
        if isinstance(place, Located):
            place.lines.pop(part, None)
    else:
        where = f"--set {'.'.join(path)}"
        raise UserError.of("setting_has_no_keys", where=where, value=shown(place))
    return value


def _index(place: list[Any], part: str, path: list[str]) -> int:
    if not part.isdecimal() or len(part) > 6 or int(part) >= len(place):
        allowed = tuple(str(i) for i in range(len(place)))
        where = f"--set {'.'.join(path)}"
        raise UserError.of("setting_no_such_item", where=where, value=part, allowed=allowed)
    return int(part)
