"""What the prior of ``calibrate`` is learned by, against normal distributions."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import multivariate_normal

import planted_path  # noqa: F401  (puts tools/ on the path)
from fit_calibration import Draws, Unit, draws_of
from meshplan.validate.calibrate import Slopes
from meshplan.validate.prior import DEVIATIONS, NUMBERS, SPREADS, usual_prior


def density(errors, slopes, apart, prior):
    """Of the errors of some runs, averaged over the width of the cluster and their spread."""
    like = prior.alike * np.exp(-apart / prior.reach) + (1.0 - prior.alike) * np.eye(len(errors))
    widths = np.exp(-0.5 * DEVIATIONS**2)
    shares = np.exp(prior.log_spread_weights())
    return sum(
        width
        * share
        * multivariate_normal(cov=slopes @ root @ root.T @ slopes.T + spread**2 * like).pdf(errors)
        for width, root in zip(widths / widths.sum(), prior.roots(known=False), strict=True)
        for share, spread in zip(shares, SPREADS, strict=True)
    )


@pytest.mark.parametrize("num", [2, 4])
def test_a_prior_is_judged_by_what_the_others_say_of_each_run(num):
    prior = replace(usual_prior(), alike=0.6, reach=1.5)
    rng = np.random.default_rng(num)
    errors, slopes = rng.normal(-0.1, 0.2, num), rng.normal(0.0, 0.4, (num, len(NUMBERS)))
    places = rng.integers(0, 5, num)
    apart = np.abs(np.subtract.outer(places, places)).astype(float)
    wanted = 0.0
    for run in range(num):
        kept = np.delete(np.arange(num), run)
        without = density(errors[kept], slopes[kept], apart[np.ix_(kept, kept)], prior)
        wanted -= np.log(density(errors, slopes, apart, prior) / without) / num
    draws = Draws(
        errors=errors[None],
        moves=slopes[None],
        per_wait=None,
        apart=apart[None],
        weight=np.array([1.0]),
    )
    assert draws.unlikely(prior) == pytest.approx(wanted - 0.5 * np.log(2 * np.pi), rel=1e-9)


def unit(source, name, num):
    slopes = Slopes(moves=np.zeros((num, len(NUMBERS))), per_wait=np.zeros(num))
    return Unit(key=(source, name), errors=np.zeros(num), slopes=slopes, apart=np.zeros((num, num)))


def test_the_weight_of_runs_alone_is_lost():
    """Two sources of one weight; a quarter of the runs of the second have no others."""
    units = [unit("a", "group", 4), unit("b", "group", 3), unit("b", "alone", 1)]
    weights = {len(some.errors[0]): float(some.weight.sum()) for some in draws_of(units)}
    assert weights == pytest.approx({4: 0.5, 3: 0.375})
    assert draws_of([unit("a", "alone", 1)]) == []
