"""How clusters differ and how runs scatter, before any run of a cluster is seen."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from meshplan.record import record

__all__ = ["DEVIATIONS", "NUMBERS", "SPREADS", "Prior", "normalised", "usual_prior"]

FloatArray = npt.NDArray[np.float64]

NUMBERS = ("gemm", "attention", "memory_bound", "scale_up", "scale_out", "latency", "launch")
"""Numbers of a cluster profile that runs move."""
_TIMES = ("latency", "launch")
_WAYS = {
    "common": NUMBERS,
    "network": ("scale_up", "scale_out", "latency"),
    "kernels": ("attention", "memory_bound"),
    "host": ("launch",),
}
"""What moves together by the same factor: speeds up, times down."""
DEVIATIONS = np.array([-1.8, -0.9, 0.0, 0.9, 1.8])
"""Nodes of the average over a normal distribution, the logarithm of an unknown width."""
SPREADS = np.exp(np.linspace(np.log(0.02), np.log(1.6), 10))
"""Nodes of the average over the spread of runs, from repeats of one run to runs of all kinds."""
_NUM_WAITS = 9


@record
class Prior:
    """How clusters differ, and how runs scatter, before any run of a cluster is seen.

    Attributes:
        common: width of the speed of the whole cluster, in logarithm.
        common_spread: deviation of the logarithm of that width: some clusters are very unusual.
        network: width of the network apart from the rest.
        kernels: width of attention and memory-bound kernels apart from products.
        host: width of the host's speed.
        each: width of each number by itself.
        noise: middle of the spread of runs around a profile that fits them.
        noise_spread: deviation of the logarithm of that spread.
        alike: share of the variance of that spread that runs with one layout have in common.
        reach: distance between layouts over which that share falls by ``e`` [doublings].
        wait_chance: chance that micro-batches wait in a pipeline.
        wait_least_s: shortest such wait [s].
        wait_most_s: longest such wait [s].
        known: widths of a cluster that has a profile of its own, over those of one that has none.
        evidence: times by which runs must be likelier with moves than without before the profile
            of such a cluster moves.
    """

    common: float
    common_spread: float
    network: float
    kernels: float
    host: float
    each: float
    noise: float
    noise_spread: float
    alike: float
    reach: float
    wait_chance: float
    wait_least_s: float
    wait_most_s: float
    known: float
    evidence: float

    def roots(self, *, known: bool) -> FloatArray:
        """Factors ``L`` of the covariance ``L L'`` of the moves, by width of all, ``(5, 7, k)``."""
        widths = {"network": self.network, "kernels": self.kernels, "host": self.host}
        common = self.common * np.exp(self.common_spread * DEVIATIONS)
        rest = [widths[name] * _way(name) for name in widths]
        rest += list(self.each * np.eye(len(NUMBERS)))
        roots = [np.stack([width * _way("common"), *rest], axis=1) for width in common]
        return np.array(roots) * (self.known if known else 1.0)

    def waits_s(self) -> FloatArray:
        """Waits to choose from [s], the first of them none."""
        return np.array([0.0, *np.geomspace(self.wait_least_s, self.wait_most_s, _NUM_WAITS)])

    def log_wait_weights(self) -> FloatArray:
        """Logarithm of the chance of each wait."""
        some = np.full(_NUM_WAITS, self.wait_chance / _NUM_WAITS)
        found: FloatArray = np.log(np.array([1.0 - self.wait_chance, *some]))
        return found

    def log_spread_weights(self) -> FloatArray:
        """Logarithm of the chance of each spread of the runs."""
        z = (np.log(SPREADS) - np.log(self.noise)) / self.noise_spread
        return normalised(-0.5 * z**2)


@lru_cache(maxsize=1)
def usual_prior() -> Prior:
    """The prior that ``tools/fit_calibration.py`` learned from measured runs."""
    text = (resources.files("meshplan.validate") / "calibration.yaml").read_text("utf-8")
    document: dict[str, Any] = yaml.safe_load(text)
    values = {**document["fitted"], **{k: v[0] for k, v in document["assumed"].items()}}
    return Prior(**{name: float(value) for name, value in values.items()})


def normalised(log_weights: FloatArray) -> FloatArray:
    """Logarithms of weights, shifted so that the weights add up to one."""
    shifted = log_weights - log_weights.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), dtype=np.float64)


def _way(name: str) -> FloatArray:
    members = _WAYS[name]
    signs = [(-1.0 if n in _TIMES else 1.0) if n in members else 0.0 for n in NUMBERS]
    # a faster host takes less time; the network's latency falls as its bandwidth grows
    return np.array(signs)
