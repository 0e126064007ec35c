"""Typed access to the keys of one configuration.

Every read is strict about its type and range, knows the names that a key goes by, and leaves a
note when a value was not in the file. Problems are gathered, so that all are reported at once; a
read that failed returns a stand-in so that reading can go on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from meshplan.errors import ProblemList
from meshplan.inputs.load.hf_names import ALIASES, LIMITS, is_inert

__all__ = ["Keys"]


class Keys:
    """The keys of one configuration, read once each.

    Attributes:
        data: the configuration.
        where: what to call the file in errors.
        family: ``model_type``, mentioned in notes about defaults.
        problems: what was wrong so far.
        notes: what was read from an unusual place, defaulted or left out.
    """

    def __init__(self, data: Mapping[str, Any], *, where: str, family: str) -> None:
        self.data = data
        self.where = where
        self.family = family
        self.problems = ProblemList()
        self.notes: list[tuple[str, str]] = []
        self._used: set[str] = set()

    def note(self, code: str, value: str) -> None:
        """Leave a note, once."""
        if (code, value) not in self.notes:
            self.notes.append((code, value))

    def fill(self, defaults: Mapping[str, int]) -> None:
        """Take counts that the file does not name from the configuration class, and say so."""
        for key, value in defaults.items():
            if not any(name in self.data for name in self.names(key)):
                self.note("model_default", f"{key} = {value} ({self.family})")
                self.data = {**self.data, key: value}

    def names(self, key: str) -> tuple[str, ...]:
        """All names that a key goes by, the usual one first."""
        return (key, *ALIASES.get(key, ()))

    def has(self, key: str) -> bool:
        """Whether the key stands in the file under any of its names, not as null."""
        self._used.update(n for n in self.names(key) if self.data.get(n, 0) is None)
        return any(self.data.get(name) is not None for name in self.names(key))

    def is_null(self, key: str) -> bool:
        """Whether the key stands in the file as null, under any of its names, and nowhere else."""
        return not self.has(key) and any(name in self.data for name in self.names(key))

    def raw(self, key: str) -> Any:
        """The value under any of the names of a key; None when missing or null.

        Two names with different values are a problem: nobody can tell which one is meant.
        """
        found = {n: self.data[n] for n in self.names(key) if self.data.get(n) is not None}
        self._used.update(n for n in self.names(key) if n in self.data)
        if not found:
            return None
        name, value = next(iter(found.items()))
        for other, second in found.items():
            if second != value and not _both_nan(second, value):
                self.problem(
                    "model_keys_disagree", name, value=value, other=other, other_value=second
                )
        return value

    def size(self, key: str, *, zero: bool = False) -> int:
        """A count or width that must be in the file."""
        value = self.raw(key)
        if value is None:
            self.missing(key)
            return 1
        return self.check_size(key, value, zero=zero)

    def size_or_none(self, key: str, *, zero: bool = False) -> int | None:
        """A count or width where null or absence has a meaning of its own."""
        value = self.raw(key)
        return None if value is None else self.check_size(key, value, zero=zero)

    def size_or(self, key: str, derived: int, rule: str) -> int:
        """A count or width that the family derives from others by a documented rule."""
        value = self.raw(key)
        if value is None:
            self.note("model_derived", f"{key} = {derived} ({rule})")
            return derived
        return self.check_size(key, value)

    def size_default(self, key: str, default: int) -> int:
        """A count that the family's configuration class gives a documented default."""
        value = self.raw(key)
        if value is None:
            self.note("model_default", f"{key} = {default} ({self.family})")
            return default
        return self.check_size(key, value)

    def sizes(self, key: str, num: int, *, zero: bool = False) -> list[int]:
        """One value for each of ``num`` layers, given once or as a list."""
        value = self.raw(key)
        if value is None:
            self.missing(key)
            return [1] * num
        return self.per_layer(key, value, num, zero=zero)

    def per_layer(self, key: str, value: Any, num: int, *, zero: bool = False) -> list[int]:
        """Spread a value that was read over ``num`` layers."""
        if not isinstance(value, list):
            return [self.check_size(key, value, zero=zero)] * num
        value = self._without_mtp(value, num)
        if len(value) != num:
            self.problem("model_list_length", key, value=len(value), expected=num)
            return [1] * num
        return [self.check_size(f"{key}[{i}]", v, zero=zero) for i, v in enumerate(value)]

    def flag(self, key: str, default: bool | None = None) -> bool:
        """A yes or no; without a documented default it must be in the file."""
        value = self.raw(key)
        if value is None:
            if default is None:
                self.missing(key)
                return False
            self.note("model_default", f"{key} = {str(default).lower()} ({self.family})")
            return default
        if not isinstance(value, bool):
            self.problem("model_key_not_bool", key, value=value)
            return False
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A name; without a documented default it must be in the file."""
        value = self.raw(key)
        if value is None:
            if default is None:
                self.missing(key)
                return ""
            self.note("model_default", f"{key} = {default} ({self.family})")
            return default
        if not isinstance(value, str):
            self.problem("model_key_not_name", key, value=value)
            return ""
        return value

    def names_list(self, key: str, num: int) -> list[str] | None:
        """A list of ``num`` names, such as ``layer_types``; None when it is not there."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            self.problem("model_key_not_names", key, value=value)
            return None
        value = self._without_mtp(value, num)
        if len(value) != num:
            self.problem("model_list_length", key, value=len(value), expected=num)
            return None
        return value

    def _without_mtp(self, value: list[Any], num: int) -> list[Any]:
        """Cut the entries that some files append for their blocks of further tokens."""
        further = self.data.get("num_nextn_predict_layers")
        if isinstance(further, int) and len(value) == num + further:
            return value[:num]
        return value

    def indices(self, key: str, num: int) -> list[int] | None:
        """A list of layer numbers below ``num``; None when it is not there."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(
            isinstance(v, int) and not isinstance(v, bool) for v in value
        ):
            self.problem("model_key_not_layers", key, value=value)
            return []
        # A cut-down configuration may keep numbers of layers that it no longer has.
        return [v for v in value if 0 <= v < num]

    def ratio(self, key: str) -> float:
        """A positive number that must be in the file."""
        value = self.raw(key)
        if value is None:
            self.missing(key)
            return 1.0
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.problem("model_key_not_number", key, value=value)
            return 1.0
        if not math.isfinite(value) or not 0 < value <= LIMITS["ratio"]:
            self.problem("model_key_range", key, value=value, low=0, high=LIMITS["ratio"])
            return 1.0
        return float(value)

    def section(self, key: str) -> Keys:
        """A nested part of the configuration, with notes and problems shared."""
        value = self.raw(key)
        if value is None:
            self.missing(key)
            value = {}
        elif not isinstance(value, Mapping):
            self.problem("model_key_not_object", key, value=value)
            value = {}
        inner = Keys(value, where=f"{self.where}: {key}", family=self.family)
        inner.problems = self.problems
        inner.notes = self.notes
        return inner

    def check_size(self, key: str, value: Any, *, zero: bool = False) -> int:
        """Check a count or width; anything else is a problem and reads as 1."""
        if isinstance(value, float) and math.isfinite(value) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self.problem("model_key_not_count", key, value=value)
            return 1
        low = 0 if zero else 1
        high = LIMITS.get(key.partition("[")[0], LIMITS["width"])
        if not low <= value <= high:
            shown = value if abs(value) < 10**20 else f"{str(value)[:20]}..."
            self.problem("model_key_range", key, value=shown, low=low, high=high)
            return 1
        return value

    def missing(self, key: str) -> None:
        """Note that a key is missing which nothing else can stand in for."""
        self.problem("model_key_missing", key, allowed=self.names(key), family=self.family)

    def problem(
        self, code: str, key: str, *, value: Any = None, allowed: Sequence[Any] = (), **numbers: Any
    ) -> None:
        """Note a problem with a key."""
        if code.startswith(("model_key_not_", "model_key_unknown")):
            value = _as_written(value)
        self.problems.add(
            code, where=f"{self.where}: {key}", value=_short(value), allowed=allowed, **numbers
        )

    def read_all(self, *names: str) -> None:
        """Mark keys as read that say nothing beyond what others say."""
        self._used.update(names)

    def unread(self) -> list[str]:
        """Keys that nothing read, that say something, and that may matter for the model."""
        return sorted(
            k for k, v in self.data.items() if v and k not in self._used and not is_inert(k)
        )


def _as_written(value: Any) -> Any:
    """Quotes and the words of JSON, so that "4096" and 4096 can be told apart."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return value


def _short(value: Any) -> Any:
    text = value if isinstance(value, str) else repr(value)
    return value if len(text) <= 60 else text[:57] + "..."


def _both_nan(a: Any, b: Any) -> bool:
    return isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)
