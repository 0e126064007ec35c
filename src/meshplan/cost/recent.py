"""What was worked out before, of a bounded number of keys."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["Recent"]

T = TypeVar("T")


class Recent(Generic[T]):
    """Values by key; where there are many, the one that was made first goes.

    Unlike :func:`functools.lru_cache` it is asked with the key alone, so that what all keys of a
    grid have in common (a model, which takes long to compare) is looked up once and not each time.

    Args:
        most: how many values are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[Hashable, T] = {}

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of a key, which is made where there is none."""
        found = self._values.get(key)
        if found is None:
            if len(self._values) >= self._most:
                del self._values[next(iter(self._values))]
            found = self._values[key] = make()
        return found
