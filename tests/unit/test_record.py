"""Records behave like the frozen dataclasses that they stand for."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace

import pytest

from meshplan.record import record


class Body:
    a: int
    b: str = "b"
    c: Mapping[str, int] = field(default_factory=dict, hash=False)
    d: int = field(default=4, compare=False, repr=False)
    e: int = field(default=5, init=False)


def _make(decorate):
    names = {"__annotations__": dict(Body.__annotations__), "__module__": __name__}
    names |= {name: getattr(Body, name) for name in "bcde"} | {"__qualname__": "Body"}
    return decorate(type("Body", (), names))


Own = _make(record)
Usual = _make(dataclass(frozen=True, slots=True, kw_only=True))
ARGUMENTS = [{"a": 1}, {"a": 2}, {"a": 1, "b": "x"}, {"a": 1, "c": {"k": 1}}, {"a": 1, "d": 9}]


@record(kw_only=False)
class Point:
    """Two numbers, and what follows from them."""

    x: int
    y: int = 0

    def __eq__(self, other):
        return isinstance(other, Point) and self.x == other.x

    def __hash__(self):
        return self.x


@record
class Empty:
    """No field at all."""


@record
class Tree:
    """A record that calls a method of its class."""

    depth: int

    @property
    def next(self):
        """One level deeper."""
        return replace(self, depth=self.depth + 1)


@pytest.mark.parametrize("one", ARGUMENTS)
@pytest.mark.parametrize("other", ARGUMENTS)
def test_they_compare_and_hash_by_the_same_fields(one, other):
    assert (Own(**one) == Own(**other)) is (Usual(**one) == Usual(**other))
    assert (hash(Own(**one)) == hash(Own(**other))) is (hash(Usual(**one)) == hash(Usual(**other)))


@pytest.mark.parametrize("given", ARGUMENTS)
def test_they_print_and_are_taken_apart_alike(given):
    assert repr(Own(**given)) == repr(Usual(**given))
    assert asdict(Own(**given)) == asdict(Usual(**given))
    assert [f.name for f in fields(Own)] == [f.name for f in fields(Usual)]
    assert Own.__slots__ == Usual.__slots__
    assert Own.__match_args__ == Usual.__match_args__


@pytest.mark.parametrize("value", [float("nan"), 1.0, (1, 2)])
def test_records_of_one_field_compare_as_usual_ones_do(value):
    own, usual = (
        decorate(type("One", (), {"__annotations__": {"x": object}, "__module__": __name__}))
        for decorate in (record, dataclass(frozen=True, slots=True, kw_only=True))
    )
    assert (own(x=value) == own(x=value)) is (usual(x=value) == usual(x=value))
    assert hash(own(x=value)) == hash(usual(x=value))


def test_what_would_run_after_init_is_refused():
    with pytest.raises(AssertionError):
        record(type("Late", (), {"__post_init__": lambda self: None}))


def test_records_of_two_classes_differ():
    assert Own(a=1) != Usual(a=1)
    assert Own(a=1) != 1


def test_nothing_in_a_record_changes():
    one = Own(a=1)
    with pytest.raises(FrozenInstanceError, match="'a'"):
        one.a = 2
    with pytest.raises(FrozenInstanceError, match="'a'"):
        del one.a
    with pytest.raises(FrozenInstanceError):
        one.unknown = 2
    assert one.a == 1


def test_defaults_that_are_made_are_not_shared():
    assert Own(a=1).c is not Own(a=1).c
    assert Own(a=1, c={"k": 2}).c == {"k": 2}


@pytest.mark.parametrize("given", [{}, {"a": 1, "e": 2}, {"a": 1, "unknown": 2}])
def test_what_is_missing_or_unknown_is_refused(given):
    with pytest.raises(TypeError):
        Own(**given)


def test_fields_have_to_be_named_unless_a_class_says_otherwise():
    with pytest.raises(TypeError):
        Own(1)
    assert (Point(1, 2).y, Point(x=1).y) == (2, 0)


def test_methods_of_a_class_stay():
    assert Point(1, 2) == Point(1, 3)
    assert hash(Point(7, 2)) == 7
    assert Tree(depth=1).next == Tree(depth=2)


def test_a_record_without_fields_is_one_value():
    assert Empty() == Empty()
    assert hash(Empty()) == hash(Empty())
    assert repr(Empty()) == "Empty()"


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_are_equal(again):
    assert again(Point(1, 2)).y == 2
    assert again(Tree(depth=3)) == Tree(depth=3)
