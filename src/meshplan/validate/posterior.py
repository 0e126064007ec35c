r"""What measured runs say of the numbers of a cluster profile: one inference for all calibrations.

Errors ``e``, logarithms of predicted over measured, are taken as linear in the moves ``t`` of the
logarithms of the profile's numbers,

.. math:: e = e_0 + S t + \epsilon, \quad
          t \sim N(0, \Lambda), \quad \epsilon \sim N(0, \sigma^2 R)

Clusters differ in few ways: all speeds together, the network, attention and memory-bound kernels,
the host, and each number a little by itself; ``Lambda`` is the sum of these, with widths that were
learned from measured runs (``calibration.yaml``). Neither the spread ``sigma`` of the runs nor how
unusual the cluster is are known, so that both are averaged over, each value weighted by how well
it explains the runs: runs that agree move the profile, runs that contradict each other tell that
the spread is large, and move it little. The wait of each micro-batch in a pipeline, which most
clusters do not have, takes the median of what the runs allow.

A cluster that has a profile of its own may be as that says, or may have changed. Its profile stays
unless the runs are several times likelier with moves than without any.

References:
    Berger, Statistical Decision Theory and Bayesian Analysis, 1985, chapter 4.
    Kass and Raftery, Bayes Factors, JASA 1995, section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from meshplan.record import record

__all__ = ["NUMBERS", "Posterior", "Prior", "fit", "infer", "log_evidence", "usual_prior"]

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
_DEVIATIONS = np.array([-1.8, -0.9, 0.0, 0.9, 1.8])
"""Nodes of the average over a normal distribution, the logarithm of an unknown width."""
_SPREADS = np.exp(np.linspace(np.log(0.02), np.log(1.6), 10))
"""Nodes of the average over the spread of runs, from repeats of one run to runs of all kinds."""
_NUM_WAITS = 9
_ROUNDS = 3


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
    wait_chance: float
    wait_least_s: float
    wait_most_s: float
    known: float
    evidence: float

    def roots(self, *, known: bool) -> FloatArray:
        """Factors ``L`` of the covariance ``L L'`` of the moves, by width of all, ``(5, 7, k)``."""
        widths = {"network": self.network, "kernels": self.kernels, "host": self.host}
        common = self.common * np.exp(self.common_spread * _DEVIATIONS)
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
        z = (np.log(_SPREADS) - np.log(self.noise)) / self.noise_spread
        return _normal(-0.5 * z**2)


@record
class Posterior:
    """What runs say of a cluster.

    Attributes:
        move: moves of the logarithms of :data:`NUMBERS`, ``(7,)``.
        covariance: how sure they are, ``(7, 7)``.
        wait_s: wait of each micro-batch in a pipeline [s].
        spread: spread of the logarithm of a run around its prediction.
    """

    move: FloatArray
    covariance: FloatArray
    wait_s: float
    spread: float

    def deviation(self, slopes: FloatArray) -> float:
        """Deviation of the logarithm of a further run like those with some slopes ``(n, 7)``."""
        unsure = np.einsum("ij,jk,ik->i", slopes, self.covariance, slopes)
        return float(np.sqrt(self.spread**2 + np.mean(unsure)))


@lru_cache(maxsize=1)
def usual_prior() -> Prior:
    """The prior that ``tools/fit_calibration.py`` learned from measured runs."""
    text = (resources.files("meshplan.validate") / "calibration.yaml").read_text("utf-8")
    document: dict[str, Any] = yaml.safe_load(text)
    values = {**document["fitted"], **{k: v[0] for k, v in document["assumed"].items()}}
    return Prior(**{name: float(value) for name, value in values.items()})


def fit(
    errors_at: Callable[[FloatArray, float], FloatArray],
    slopes: FloatArray,
    *,
    prior: Prior,
    known: bool,
    share_per_wait: FloatArray | None = None,
    noise: FloatArray | None = None,
) -> Posterior:
    """Find what runs say where errors are not quite linear in the moves.

    Args:
        errors_at: errors of the runs with moves ``(7,)`` and a wait [s].
        slopes: of the errors along the moves, at the profile as it is, ``(n, 7)``.
        prior: how clusters differ.
        known: the cluster has a profile of its own already, which stays unless runs speak
            against it.
        share_per_wait: what one second of wait adds to each run, over the predicted step [1/s].
        noise: deviation of each error where it is known, ``(n,)``; else one unknown spread.
    """
    move = np.zeros(len(NUMBERS))
    if known:
        still = errors_at(move, 0.0)
        as_it_is = replace(prior, known=0.0)
        odds = _log_odds(still, slopes, prior, as_it_is, share_per_wait, noise)
        if odds < np.log(prior.evidence):
            return infer(still, slopes, prior=as_it_is, known=True, noise=noise)
    found = None
    for _ in range(_ROUNDS):
        errors = errors_at(move, 0.0) - slopes @ move
        found = infer(
            errors, slopes, prior=prior, known=known, share_per_wait=share_per_wait, noise=noise
        )
        move = found.move
    assert found is not None
    return found


def _log_odds(
    errors: FloatArray,
    slopes: FloatArray,
    prior: Prior,
    as_it_is: Prior,
    share_per_wait: FloatArray | None,
    noise: FloatArray | None,
) -> float:
    """Logarithm of how many times likelier errors are where the profile moved."""
    waits = None if share_per_wait is None else share_per_wait[None]
    found = [
        log_evidence(
            errors[None], slopes[None], prior=one, known=True, share_per_wait=wait, noise=noise
        )[0]
        for one, wait in ((prior, waits), (as_it_is, None))
    ]
    return float(found[0] - found[1])


def infer(
    errors: FloatArray,
    slopes: FloatArray,
    *,
    prior: Prior,
    known: bool = False,
    share_per_wait: FloatArray | None = None,
    noise: FloatArray | None = None,
) -> Posterior:
    """What errors ``(n,)`` with slopes ``(n, 7)`` say, linear; arguments as of :func:`fit`."""
    roots = prior.roots(known=known)
    waits = prior.waits_s() if share_per_wait is not None else np.zeros(1)
    parts = _Parts.of(errors, slopes, roots, waits, share_per_wait, noise)
    weight = np.exp(_normal(_log_joint(parts, prior)))
    by_wait = weight.sum(axis=(0, 2))
    at = int(np.searchsorted(np.cumsum(by_wait), 0.5))
    chosen = weight[:, at] / by_wait[at]
    moves, covariances = [], []
    for z, root in enumerate(roots):
        w, v, y = parts.values[z, at], parts.right[z, at], parts.projected[z, at]
        for variance in parts.variances:
            gain = np.sqrt(w) / (w + variance)
            moves.append(-root @ (v.T @ (gain * y)))
            kept = np.eye(root.shape[1]) - (v.T * (w / (w + variance))) @ v
            covariances.append(root @ kept @ root.T)
    shares = chosen.reshape(-1)
    all_moves = np.array(moves)
    move = shares @ all_moves
    apart = all_moves - move
    within = np.tensordot(shares, np.array(covariances), axes=1)
    spread = float(np.sqrt(chosen.sum(axis=0) @ parts.variances)) if noise is None else 0.0
    return Posterior(
        move=move,
        covariance=within + (apart.T * shares) @ apart,
        wait_s=float(waits[at]),
        spread=spread,
    )


def log_evidence(
    errors: FloatArray,
    slopes: FloatArray,
    *,
    prior: Prior,
    known: bool = False,
    share_per_wait: FloatArray | None = None,
    noise: FloatArray | None = None,
) -> FloatArray:
    """Logarithm of how likely errors are under a prior, up to a constant.

    Args:
        errors: those of several sets of runs, ``(sets, n)``.
        slopes: ``(sets, n, 7)``.
        prior: how clusters differ.
        known: the clusters have profiles of their own.
        share_per_wait: as of :func:`fit`, ``(sets, n)``; no wait where it is None.
        noise: as of :func:`fit`, ``(n,)``.
    """
    waits = prior.waits_s() if share_per_wait is not None else np.zeros(1)
    parts = _Parts.of(errors, slopes, prior.roots(known=known), waits, share_per_wait, noise)
    joint = _log_joint(parts, prior)
    most = joint.max(axis=(-3, -2, -1), keepdims=True)
    total = np.log(np.exp(joint - most).sum(axis=(-3, -2, -1))) + most[..., 0, 0, 0]
    return np.asarray(total, dtype=np.float64)


@record
class _Parts:
    """Errors in the axes in which prior and runs are independent, for each width and wait.

    Attributes:
        values: squared singular values of ``S L``, ``(..., widths, waits, k)``.
        right: right singular vectors, ``(..., widths, waits, k, directions)``.
        projected: errors along the left ones, ``(..., widths, waits, k)``.
        rest: squared error that no move explains, ``(..., widths, waits)``.
        num_rest: dimensions of that.
        variances: squared spreads to average over.
        known_noise: the spread of each error was given.
    """

    values: FloatArray
    right: FloatArray
    projected: FloatArray
    rest: FloatArray
    num_rest: int
    variances: FloatArray
    known_noise: bool

    @classmethod
    def of(
        cls,
        errors: FloatArray,
        slopes: FloatArray,
        roots: FloatArray,
        waits: FloatArray,
        share_per_wait: FloatArray | None,
        noise: FloatArray | None,
    ) -> _Parts:
        added = np.zeros((*errors.shape[:-1], len(waits), errors.shape[-1]))
        if share_per_wait is not None:
            added = np.log1p(waits[:, None] * share_per_wait[..., None, :])
        scale = np.ones(errors.shape[-1]) if noise is None else noise
        error = (errors[..., None, :] + added) / scale
        slope = slopes[..., None, :, :] * (np.exp(-added) / scale)[..., None]
        spanned = slope[..., None, :, :, :] @ roots[:, None]
        left, values, right = np.linalg.svd(spanned, full_matrices=False)
        projected = np.einsum("...zdik,...di->...zdk", left, error)
        whole = np.sum(error**2, axis=-1)[..., None, :]
        rest = whole - np.sum(projected**2, axis=-1)
        return cls(
            values=values**2,
            right=right,
            projected=projected,
            rest=np.maximum(rest, 0.0),
            num_rest=errors.shape[-1] - values.shape[-1],
            variances=_SPREADS**2 if noise is None else np.ones(1),
            known_noise=noise is not None,
        )


def _log_joint(parts: _Parts, prior: Prior) -> FloatArray:
    """Logarithm of prior times likelihood by width, wait and spread."""
    variance = parts.values[..., None, :] + parts.variances[:, None]
    fits = np.sum(parts.projected[..., None, :] ** 2 / variance + np.log(variance), axis=-1)
    fits = fits + parts.rest[..., None] / parts.variances
    fits = fits + parts.num_rest * np.log(parts.variances)
    width = _normal(-0.5 * _DEVIATIONS**2)
    found = -0.5 * fits + width[:, None, None]
    if parts.values.shape[-2] > 1:
        found = found + prior.log_wait_weights()[:, None]
    if not parts.known_noise:
        found = found + prior.log_spread_weights()
    return np.asarray(found, dtype=np.float64)


def _normal(log_weights: FloatArray) -> FloatArray:
    """Logarithms of weights, shifted so that the weights add up to one."""
    shifted = log_weights - log_weights.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), dtype=np.float64)


def _way(name: str) -> FloatArray:
    members = _WAYS[name]
    signs = [(-1.0 if n in _TIMES else 1.0) if n in members else 0.0 for n in NUMBERS]
    # a faster host takes less time; the network's latency falls as its bandwidth grows
    return np.array(signs)
