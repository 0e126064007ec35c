"""Which kinds of block measured runs cover: those of a chip family, or those of a profile file.

What published runs cover is found by ``tools/fit_coverage.py``; the kinds are those of
:func:`~meshplan.inputs.blocks.kinds_of`. A profile file says what its own runs had; one that does
not, such as one written by hand, is taken to cover what published runs do.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from meshplan.inputs.blocks import kinds_of
from meshplan.inputs.load.profile_file import profile_presets, read_profile
from meshplan.inputs.model import Model
from meshplan.inputs.scenario import Scenario

__all__ = [
    "foreign_blocks",
    "foreign_share",
    "has_runs",
    "profile_name",
    "uncovered_kinds",
    "uncovered_width",
]


def profile_name(scenario: Scenario) -> str:
    """Name of the cluster profile, path of its file, or its text."""
    return scenario.profile or scenario.cluster.profile or "default"


def has_runs(scenario: Scenario) -> bool:
    """Whether any measured run on chips of the device's family confirms predictions."""
    return bool(_published(scenario) | (_own(scenario) or frozenset()))


def uncovered_kinds(scenario: Scenario) -> dict[str, int]:
    """Kinds of block that no run covers, and how many blocks have each."""
    return dict(_without(scenario.model, _anywhere(scenario))[0])


def uncovered_width(scenario: Scenario) -> float:
    """What blocks that no run covers add to the half width of the band, as a share of the step.

    Equation: the share under ``coverage`` in the presets, times the share of such blocks.
    """
    blocks = _without(scenario.model, _anywhere(scenario))[1]
    return float(profile_presets()["coverage"]["share"]) * blocks / _num_blocks(scenario.model)


def foreign_blocks(scenario: Scenario) -> int:
    """Blocks of kinds that no run of the profile file had; none of a profile that is shipped."""
    own = _own(scenario)
    return 0 if own is None else _without(scenario.model, own)[1]


def foreign_share(scenario: Scenario) -> float:
    """The same as a share of the blocks, for which the profile's own band says nothing."""
    return foreign_blocks(scenario) / _num_blocks(scenario.model)


def _num_blocks(model: Model) -> int:
    return max(len(model.layers), 1)


def _published(scenario: Scenario) -> frozenset[str]:
    covered = profile_presets()["coverage"]["kinds"]
    return frozenset(covered.get(scenario.cluster.device.architecture, ()))


def _own(scenario: Scenario) -> frozenset[str] | None:
    """Kinds that runs of the profile file had on this chip family; None where no file says."""
    name = profile_name(scenario)
    if name in profile_presets()["clusters"]:
        return None
    covers = read_profile(name).get("covers")
    if covers is None:
        return None
    return frozenset(covers.get(scenario.cluster.device.architecture, ()))


def _anywhere(scenario: Scenario) -> frozenset[str]:
    return _published(scenario) | (_own(scenario) or frozenset())


@lru_cache(maxsize=64)
def _without(model: Model, covered: frozenset[str]) -> tuple[tuple[tuple[str, int], ...], int]:
    """Blocks by kind that is not covered, and how many blocks have any."""
    found = [kinds_of(layer) - covered for layer in model.layers]
    kinds = Counter(kind for own in found for kind in own)
    return tuple(sorted(kinds.items())), sum(map(bool, found))
