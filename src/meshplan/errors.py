"""What a person did wrong, and the way out.

The core raises :class:`UserError` with codes and values and no prose; ``meshplan.text`` turns each
:class:`Problem` into one sentence and one hint in the reader's language. Our own mistakes are
``assert``, never a ``UserError``.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from dataclasses import field

from meshplan.record import record

__all__ = ["Problem", "ProblemList", "UserError", "os_reason"]


@record
class Problem:
    """One thing that is wrong with what the user gave.

    Attributes:
        code: key of the sentence ``error.<code>`` and the hint ``hint.<code>`` in the catalogues.
        where: the place, such as ``cluster.node.gpus`` or ``config.json: num_attention_heads``.
        value: what stands there.
        allowed: what could stand there, if it can be listed.
        numbers: further values that the sentence mentions.
    """

    code: str
    where: str = ""
    value: object = None
    allowed: tuple[object, ...] = ()
    numbers: Mapping[str, object] = field(default_factory=dict)


def os_reason(error: Exception) -> str:
    """Why a file could not be read or written: the name of the system's error, such as ``ENOENT``.

    A sentence that mentions ``{os_reason}`` says it in the reader's language. An error that is
    not the system's goes by its type.
    """
    number = error.errno if isinstance(error, OSError) else None
    return errno.errorcode.get(number or 0, type(error).__name__)


class UserError(Exception):
    """One or more problems with what the user gave, all reported at once."""

    def __init__(self, *problems: Problem) -> None:
        assert problems, "a UserError names at least one problem"
        self.problems = problems
        super().__init__("; ".join(f"{p.code} at {p.where or '-'}: {p.value!r}" for p in problems))

    @classmethod
    def of(
        cls,
        code: str,
        *,
        where: str = "",
        value: object = None,
        allowed: Iterable[object] = (),
        **numbers: object,
    ) -> UserError:
        """Make an error that holds a single problem."""
        return cls(
            Problem(code=code, where=where, value=value, allowed=tuple(allowed), numbers=numbers)
        )


class ProblemList:
    """Collects problems so that all of them are reported in one go."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []

    def add(
        self,
        code: str,
        *,
        where: str = "",
        value: object = None,
        allowed: Iterable[object] = (),
        **numbers: object,
    ) -> None:
        """Note one more problem."""
        self._problems.append(
            Problem(code=code, where=where, value=value, allowed=tuple(allowed), numbers=numbers)
        )

    def extend(self, error: UserError) -> None:
        """Take over the problems of an error that was caught."""
        self._problems.extend(error.problems)

    def __bool__(self) -> bool:
        return bool(self._problems)

    def raise_if_any(self) -> None:
        """Raise one :class:`UserError` with all that was noted, if anything was."""
        if self._problems:
            raise UserError(*self._problems)
