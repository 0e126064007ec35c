"""Records: frozen dataclasses that cost little to define.

The standard decorator writes and compiles six methods for each class when its module is imported.
A plan imports some 150 records, and that was two fifths of its start-up. Only ``__init__`` differs
from class to class; the others are the same for all, and are shared here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform, overload

__all__ = ["record"]

T = TypeVar("T")


@overload
def record(cls: type[T], /) -> type[T]: ...


@overload
def record(*, kw_only: bool) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field, Field))
def record(cls: type[T] | None = None, /, *, kw_only: bool = True) -> Any:
    """Make a class a frozen dataclass with slots.

    It behaves as under ``@dataclass(frozen=True, slots=True, kw_only=True)``: it has fields, can
    be replaced, compares, hashes and prints by them, and refuses to be changed.

    Args:
        cls: a class with annotated fields.
        kw_only: whether all fields have to be named where one is made.
    """
    if cls is None:
        return lambda cls: _record(cls, kw_only=kw_only)
    return _record(cls, kw_only=kw_only)


def _record(cls: type[T], *, kw_only: bool) -> type[T]:
    assert not hasattr(cls, "__post_init__"), "records are made of their fields alone"
    cls.__doc__ = cls.__doc__ or cls.__name__  # a class without one would get its signature
    made = dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(cls)
    own = fields(made)  # type: ignore[arg-type]
    methods = {
        "__init__": _init(own, kw_only=kw_only),
        "__eq__": _equals(_values([f.name for f in own if f.compare])),
        "__hash__": _hash(_values([f.name for f in own if f.compare and f.hash is not False])),
        "__repr__": _shown([f.name for f in own if f.repr]),
        "__setattr__": _refuse_to_assign,
        "__delattr__": _refuse_to_delete,
        "__setstate__": _restore,
    }
    for name, method in methods.items():
        if name not in cls.__dict__:
            setattr(made, name, method)
    return made


def _init(own: Sequence[Field[Any]], *, kw_only: bool) -> Callable[..., None]:
    """The one method that is written for each class: its parameters are the fields."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_missing": MISSING}
    parameters, lines = [], []
    for f in own:
        usual, make = f"_usual_{f.name}", f"_make_{f.name}"
        known |= {usual: f.default, make: f.default_factory}
        parameter, value = f.name, f.name if f.init else usual
        if f.default is not MISSING:
            parameter = f"{f.name}={usual}"
        elif f.default_factory is not MISSING:
            parameter = f"{f.name}=_missing"
            value = f"{make}() if {f.name} is _missing else {f.name}"
        parameters += [parameter] if f.init else []
        lines.append(f" _set(self, {f.name!r}, {value})")
    parameters = ["self", *(["*"] if kw_only and parameters else []), *parameters]
    exec("\n".join([f"def __init__({', '.join(parameters)}):", *lines, " pass"]), known)
    init: Callable[..., None] = known["__init__"]
    return init


def _values(names: Sequence[str]) -> Callable[[Any], Any]:
    """What tells one record of a class from another, as a tuple."""
    if not names:
        return lambda self: ()
    values = attrgetter(*names)
    return values if len(names) > 1 else lambda self: (values(self),)


def _equals(values: Callable[[Any], Any]) -> Callable[[Any, object], bool]:
    def equals(self: Any, other: object) -> bool:
        return values(self) == values(other) if type(self) is type(other) else NotImplemented

    return equals


def _hash(values: Callable[[Any], Any]) -> Callable[[Any], int]:
    return lambda self: hash(values(self))


def _shown(names: Sequence[str]) -> Callable[[Any], str]:
    def shown(self: Any) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({values})"

    return shown


def _refuse_to_assign(self: object, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _restore(self: object, state: tuple[None, Mapping[str, object]]) -> None:
    """Fill a copy, which is no change."""
    for name, value in state[1].items():
        object.__setattr__(self, name, value)
