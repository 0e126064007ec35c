"""Single numbers of the time model by name, read from ``constants.json``."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from meshplan.cost.surfaces.shipped import shipped
from meshplan.provenance import Sourced
from meshplan.space.plan import Framework

__all__ = ["constant", "constants", "per_framework"]


@lru_cache(maxsize=1)
def constants() -> dict[str, Sourced]:
    """All constants of the time model by name."""
    return {name: Sourced(**entry) for name, entry in shipped("constants").items()}


def constant(name: str) -> float:
    """The value of one constant."""
    return constants()[name].value


def per_framework(name: str, framework: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """A constant that differs between frameworks, for each plan's, ``(num_plans,)``."""
    values = np.array([constant(f"{name}_{f.name.lower()}") for f in Framework])
    chosen: npt.NDArray[np.float64] = values[framework]
    return chosen
