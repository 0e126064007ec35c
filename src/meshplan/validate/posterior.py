r"""What measured runs say of the numbers of a cluster profile: one inference for all calibrations.

Errors ``e``, logarithms of predicted over measured, are taken as linear in the moves ``t`` of the
logarithms of the profile's numbers,

.. math:: e = e_0 + S t + \epsilon, \quad
          t \sim N(0, \Lambda), \quad \epsilon \sim N(0, \sigma^2 R), \quad
          R_{ij} = (1 - \rho) \delta_{ij} + \rho \exp(-d_{ij} / \ell)

Clusters differ in few ways: all speeds together, the network, attention and memory-bound kernels,
the host, and each number a little by itself; ``Lambda`` is the sum of these, with widths that were
learned from measured runs (``calibration.yaml``). Neither the spread ``sigma`` of the runs nor how
unusual the cluster is are known, so that both are averaged over, each value weighted by how well
it explains the runs: runs that agree move the profile, runs that contradict each other tell that
the spread is large, and move it little. Runs with layouts that are alike, at a distance ``d`` of
few doublings (:mod:`meshplan.cost.likeness`), miss alike: two of them tell less of the profile
than two that differ, and what the profile leaves of them is what plans like them will miss by.
The wait of each micro-batch in a pipeline, which most clusters do not have, takes the median of
what the runs allow.

A cluster that has a profile of its own may be as that says, or may have changed. Its profile stays
unless the runs are several times likelier with moves than without any.

References:
    Berger, Statistical Decision Theory and Bayesian Analysis, 1985, chapter 4.
    Kass and Raftery, Bayes Factors, JASA 1995, section 3.2.
    Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, sections 2.2 and 2.7.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from meshplan.record import record
from meshplan.validate.prior import DEVIATIONS, NUMBERS, SPREADS, Prior, normalised

__all__ = ["INSIDE", "Posterior", "fit", "infer", "log_evidence", "residual_weights"]

FloatArray = npt.NDArray[np.float64]

INSIDE = 1.2816
"""Deviations on either side of the middle that hold 80 % of a normal distribution."""
_ROUNDS = 3
_WITHIN = math.erf(INSIDE / math.sqrt(2.0))
_HALVINGS = 40


@record
class Posterior:
    """What runs say of a cluster.

    Attributes:
        move: moves of the logarithms of :data:`NUMBERS`, ``(7,)``.
        covariance: how sure they are, ``(7, 7)``.
        wait_s: wait of each micro-batch in a pipeline [s].
        spread: spread of the logarithm of a run around its prediction: the deviation of a normal
            distribution with the same middle 80 % as the average over all spreads, whose tails are
            longer.
        unlike: what is left of that for a further run like these, once they are known.
        stays: the cluster has a profile, and the runs say nothing against it.
    """

    move: FloatArray
    covariance: FloatArray
    wait_s: float
    spread: float
    unlike: float
    stays: bool

    def deviation(self, slopes: FloatArray) -> float:
        """Deviation of the logarithm of a further run like those with some slopes ``(n, 7)``."""
        unsure = np.einsum("ij,jk,ik->i", slopes, self.covariance, slopes)
        return float(np.sqrt((self.spread * self.unlike) ** 2 + np.mean(unsure)))


def fit(
    errors_at: Callable[[FloatArray, float], FloatArray],
    slopes: FloatArray,
    *,
    prior: Prior,
    known: bool,
    share_per_wait: FloatArray | None = None,
    apart: FloatArray | None = None,
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
        apart: distances between the layouts of the runs, ``(n, n)``; else no two are alike.
        noise: deviation of each error where it is known, ``(n,)``; else one unknown spread.
    """
    move = np.zeros(len(NUMBERS))
    scatter = {"apart": apart, "noise": noise}
    if known:
        still = errors_at(move, 0.0)
        as_it_is = replace(prior, known=0.0)
        moves = log_evidence(
            still, slopes, prior=prior, known=True, share_per_wait=share_per_wait, **scatter
        )
        stays = log_evidence(still, slopes, prior=as_it_is, known=True, **scatter)
        if moves - stays < np.log(prior.evidence):
            as_known = infer(still, slopes, prior=as_it_is, known=True, **scatter)
            return replace(as_known, stays=True, unlike=1.0)
    found = None
    for _ in range(_ROUNDS):
        errors = errors_at(move, 0.0) - slopes @ move
        found = infer(
            errors, slopes, prior=prior, known=known, share_per_wait=share_per_wait, **scatter
        )
        move = found.move
    assert found is not None
    return found


def infer(
    errors: FloatArray,
    slopes: FloatArray,
    *,
    prior: Prior,
    known: bool = False,
    share_per_wait: FloatArray | None = None,
    apart: FloatArray | None = None,
    noise: FloatArray | None = None,
) -> Posterior:
    """What errors ``(n,)`` with slopes ``(n, 7)`` say, linear; arguments as of :func:`fit`."""
    white = _whitening(len(slopes), prior, apart, noise)
    roots = prior.roots(known=known)
    waits = prior.waits_s() if share_per_wait is not None else np.zeros(1)
    parts = _Parts.of(errors, slopes, roots, waits, share_per_wait, white)
    weight = np.exp(normalised(_log_joint(parts, prior)))
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
    away = all_moves - move
    within = np.tensordot(shares, np.array(covariances), axes=1)
    spread = 0.0 if white.known else _spread(chosen.sum(axis=0))
    return Posterior(
        move=move,
        covariance=within + (away.T * shares) @ away,
        wait_s=float(waits[at]),
        spread=spread,
        unlike=white.unlike,
        stays=False,
    )


def log_evidence(
    errors: FloatArray,
    slopes: FloatArray,
    *,
    prior: Prior,
    known: bool = False,
    share_per_wait: FloatArray | None = None,
    apart: FloatArray | None = None,
    noise: FloatArray | None = None,
) -> FloatArray:
    """Logarithm of how likely errors are under a prior, up to a constant.

    Args:
        errors: those of some runs, ``(n,)``, or of several sets, ``(sets, n)``.
        slopes: ``(..., n, 7)``.
        prior: how clusters differ.
        known: the clusters have profiles of their own.
        share_per_wait: as of :func:`fit`, ``(..., n)``; no wait where it is None.
        apart: as of :func:`fit`, ``(..., n, n)``.
        noise: as of :func:`fit`, ``(n,)``.
    """
    white = _whitening(errors.shape[-1], prior, apart, noise)
    waits = prior.waits_s() if share_per_wait is not None else np.zeros(1)
    parts = _Parts.of(errors, slopes, prior.roots(known=known), waits, share_per_wait, white)
    joint = _log_joint(parts, prior)
    most = joint.max(axis=(-3, -2, -1), keepdims=True)
    total = np.log(np.exp(joint - most).sum(axis=(-3, -2, -1))) + most[..., 0, 0, 0]
    return np.asarray(total + white.log_volume, dtype=np.float64)


def residual_weights(errors: FloatArray, apart: FloatArray, *, prior: Prior) -> FloatArray:
    """Weights of runs in what plans like them will miss by.

    A plan at distances ``d`` from the runs misses by ``sum(weight * exp(-d / reach))``, the mean of
    a Gaussian process (Rasmussen and Williams, equation 2.25).

    Args:
        errors: what the profile leaves of the errors of the runs, ``(n,)``.
        apart: distances between their layouts, ``(n, n)``.
        prior: how runs scatter.

    Returns:
        ``(n,)``.
    """
    return np.asarray(prior.alike * np.linalg.solve(_correlation(apart, prior), errors))


def _correlation(apart: FloatArray, prior: Prior) -> FloatArray:
    common = prior.alike * np.exp(-apart / prior.reach)
    found: FloatArray = (1.0 - prior.alike) * np.eye(apart.shape[-1]) + common
    return found


@record
class _Whitening:
    """What makes errors of runs independent and alike.

    Attributes:
        factor: ``W`` with ``W R W' = 1``, ``(..., n, n)``.
        log_volume: logarithm of its determinant, ``(...)``.
        unlike: deviation of a further run like these, over that of one that is like none.
        known: ``R`` is the variance itself and not in units of an unknown one.
    """

    factor: FloatArray
    log_volume: FloatArray
    unlike: float
    known: bool


def _whitening(
    num: int, prior: Prior, apart: FloatArray | None, noise: FloatArray | None
) -> _Whitening:
    """What makes errors of ``num`` runs independent and alike."""
    assert apart is None or noise is None, "errors of known noise are of no layouts"
    if apart is None:
        scale = np.ones(num) if noise is None else noise
        return _Whitening(
            factor=np.diag(1.0 / scale),
            log_volume=-np.log(scale).sum(),
            unlike=1.0,
            known=noise is not None,
        )
    correlation = _correlation(apart, prior)
    factor = np.linalg.inv(np.linalg.cholesky(correlation))
    diagonal = np.diagonal(factor, axis1=-2, axis2=-1)
    # the variance of each run once the others are known is one over the precision
    precision = np.square(factor).sum(axis=-2)
    return _Whitening(
        factor=factor,
        log_volume=np.log(diagonal).sum(axis=-1),
        unlike=float(np.sqrt(np.mean(1.0 / precision))),
        known=False,
    )


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
        spread_known: the spread of the errors was given.
    """

    values: FloatArray
    right: FloatArray
    projected: FloatArray
    rest: FloatArray
    num_rest: int
    variances: FloatArray
    spread_known: bool

    @classmethod
    def of(
        cls,
        errors: FloatArray,
        slopes: FloatArray,
        roots: FloatArray,
        waits: FloatArray,
        share_per_wait: FloatArray | None,
        white: _Whitening,
    ) -> _Parts:
        added = np.zeros((*errors.shape[:-1], len(waits), errors.shape[-1]))
        if share_per_wait is not None:
            added = np.log1p(waits[:, None] * share_per_wait[..., None, :])
        factor = white.factor[..., None, :, :]
        error = (factor @ (errors[..., None, :] + added)[..., None])[..., 0]
        slope = factor @ (slopes[..., None, :, :] * np.exp(-added)[..., None])
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
            variances=np.ones(1) if white.known else SPREADS**2,
            spread_known=white.known,
        )


def _spread(shares: FloatArray) -> float:
    """Spread with the middle 80 % of an average over :data:`SPREADS` with some shares."""
    low, high = 0.0, float(SPREADS.max())
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        inside = [math.erf(INSIDE * middle / (spread * math.sqrt(2.0))) for spread in SPREADS]
        low, high = (low, middle) if shares @ inside > _WITHIN else (middle, high)
    return high


def _log_joint(parts: _Parts, prior: Prior) -> FloatArray:
    """Logarithm of prior times likelihood by width, wait and spread."""
    variance = parts.values[..., None, :] + parts.variances[:, None]
    fits = np.sum(parts.projected[..., None, :] ** 2 / variance + np.log(variance), axis=-1)
    fits = fits + parts.rest[..., None] / parts.variances
    fits = fits + parts.num_rest * np.log(parts.variances)
    width = normalised(-0.5 * DEVIATIONS**2)
    found = -0.5 * fits + width[:, None, None]
    if parts.values.shape[-2] > 1:
        found = found + prior.log_wait_weights()[:, None]
    if not parts.spread_known:
        found = found + prior.log_spread_weights()
    return np.asarray(found, dtype=np.float64)
