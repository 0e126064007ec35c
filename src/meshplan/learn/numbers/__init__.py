"""The functions that a chapter can name, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meshplan.learn.numbers import facts, hardware, models, plans, rules, states

__all__ = ["FUNCTIONS"]

_MODULES = (rules, models, states, hardware, plans, facts)

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    name: getattr(module, name) for module in _MODULES for name in module.__all__
}
"""All functions; a name in two modules would be our own mistake."""

assert len(FUNCTIONS) == sum(len(module.__all__) for module in _MODULES)
