"""What runs say of a cluster profile, against closed forms and simulated clusters."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from meshplan.validate.posterior import INSIDE, fit, infer, log_evidence, residual_weights
from meshplan.validate.prior import DEVIATIONS, NUMBERS, SPREADS, usual_prior

NUM = len(NUMBERS)
# one width of the cluster and hardly any doubt about it, so that the closed form is known
SURE = replace(usual_prior(), common_spread=1e-6, wait_chance=1e-12, noise_spread=1e-3)


def covariance(prior):
    root = prior.roots(known=False)[2]
    return root @ root.T


# more of a speed makes the predicted step shorter, more of a time longer
SIGNS = np.array([1.0 if name in ("latency", "launch") else -1.0 for name in NUMBERS])


def runs(num, seed=0):
    rng = np.random.default_rng(seed)
    slopes = SIGNS * rng.dirichlet(np.ones(NUM), num)
    return rng.normal(-0.2, 0.1, num), slopes


@pytest.mark.parametrize("num", [1, 3, 20])
def test_known_noise_gives_the_normal_posterior(num):
    """Bishop, Pattern Recognition and Machine Learning, 2006, equations 3.50 and 3.51."""
    errors, slopes = runs(num)
    noise = np.full(num, 0.07)
    found = infer(errors, slopes, prior=SURE, noise=noise)
    precision = np.linalg.inv(covariance(SURE)) + slopes.T @ slopes / 0.07**2
    assert found.covariance == pytest.approx(np.linalg.inv(precision), rel=1e-4, abs=1e-8)
    wanted = -np.linalg.solve(precision, slopes.T @ errors / 0.07**2)
    assert found.move == pytest.approx(wanted, rel=1e-4, abs=1e-8)


def test_evidence_is_that_of_the_mixture():
    """Averages over widths and spreads, each a normal distribution of its own."""
    prior = usual_prior()
    errors, slopes = runs(4)
    got = log_evidence(errors[None], slopes[None], prior=prior)[0]
    widths = np.exp(-0.5 * np.array([-1.8, -0.9, 0.0, 0.9, 1.8]) ** 2)
    spreads = np.exp(np.linspace(np.log(0.02), np.log(1.6), 10))
    weights = np.exp(prior.log_spread_weights())
    total = 0.0
    for width, root in zip(widths / widths.sum(), prior.roots(known=False), strict=True):
        for weight, spread in zip(weights, spreads, strict=True):
            variance = slopes @ root @ root.T @ slopes.T + spread**2 * np.eye(4)
            total += width * weight * multivariate_normal(np.zeros(4), variance).pdf(errors)
    assert got - np.log(total) == pytest.approx(0.5 * 4 * np.log(2 * np.pi), rel=1e-9)


def test_runs_of_layouts_alike_scatter_together():
    """Evidence is that of normal distributions whose errors correlate by distance."""
    prior = replace(usual_prior(), alike=0.6, reach=1.5)
    errors, slopes = runs(3)
    apart = np.array([[0.0, 1.0, 3.0], [1.0, 0.0, 2.0], [3.0, 2.0, 0.0]])
    like = 0.6 * np.exp(-apart / 1.5) + 0.4 * np.eye(3)
    widths = np.exp(-0.5 * np.array([-1.8, -0.9, 0.0, 0.9, 1.8]) ** 2)
    spreads = np.exp(np.linspace(np.log(0.02), np.log(1.6), 10))
    weights = np.exp(prior.log_spread_weights())
    total = 0.0
    for width, root in zip(widths / widths.sum(), prior.roots(known=False), strict=True):
        for weight, spread in zip(weights, spreads, strict=True):
            variance = slopes @ root @ root.T @ slopes.T + spread**2 * like
            total += width * weight * multivariate_normal(np.zeros(3), variance).pdf(errors)
    got = log_evidence(errors[None], slopes[None], prior=prior, apart=apart[None])[0]
    assert got - np.log(total) == pytest.approx(0.5 * 3 * np.log(2 * np.pi), rel=1e-9)


def test_residuals_are_those_of_a_gaussian_process():
    """Rasmussen and Williams, 2006, equation 2.25, solved for a plan between two runs."""
    prior = replace(usual_prior(), alike=0.6, reach=1.5)
    errors, apart = np.array([0.2, 0.1]), np.array([[0.0, 2.0], [2.0, 0.0]])
    weights = residual_weights(errors, apart, prior=prior)
    near, far = 0.6 * np.exp(-1 / 1.5), 0.6 * np.exp(-2 / 1.5)
    expected = np.array([near, near]) @ np.linalg.solve([[1.0, far], [far, 1.0]], errors)
    assert weights @ np.exp(-np.array([1.0, 1.0]) / 1.5) == pytest.approx(expected, rel=1e-12)


def test_two_runs_alike_tell_less_than_two_that_differ():
    errors, slopes = np.array([-0.2, -0.2]), np.repeat(runs(1)[1], 2, axis=0)
    alike, differ = (
        infer(errors, slopes, prior=usual_prior(), apart=np.array([[0.0, d], [d, 0.0]]))
        for d in (0.0, 50.0)
    )
    assert abs(np.mean(slopes @ alike.move)) < abs(np.mean(slopes @ differ.move))
    assert alike.unlike < 0.8
    assert differ.unlike == pytest.approx(1.0, rel=1e-6)
    alone = infer(errors, slopes, prior=usual_prior())
    assert alone.move == pytest.approx(differ.move, rel=1e-6)


def test_runs_as_predicted_move_nothing():
    found = infer(np.zeros(3), runs(3)[1], prior=usual_prior())
    assert np.abs(found.move).max() < 1e-12
    assert found.wait_s == 0.0


def test_runs_that_contradict_each_other_move_less_than_those_that_agree():
    slopes = np.repeat(runs(1)[1], 3, axis=0)
    agree = infer(np.array([-0.2, -0.2, -0.2]), slopes, prior=usual_prior())
    apart = infer(np.array([-0.5, 0.1, -0.2]), slopes, prior=usual_prior())
    shift = [float(np.mean(slopes @ found.move)) for found in (agree, apart)]
    assert shift[0] > 0.15
    assert 0 < shift[1] < 0.6 * shift[0]
    assert apart.spread > 2 * agree.spread
    assert apart.deviation(slopes) > agree.deviation(slopes)


def test_the_band_of_three_runs_holds_four_of_five_further_ones():
    """Whatever the spread of the runs is: clusters and runs as the prior has them, simulated."""
    prior = usual_prior()
    rng = np.random.default_rng(3)
    width = np.exp(-0.5 * DEVIATIONS**2)
    roots, spreads = prior.roots(known=False), np.exp(prior.log_spread_weights())
    held = []
    for _ in range(1500):
        root = roots[rng.choice(len(roots), p=width / width.sum())]
        slopes = SIGNS * rng.dirichlet(np.ones(NUM), 4)
        errors = rng.choice(SPREADS, p=spreads) * rng.normal(size=4)
        errors += slopes @ root @ rng.normal(size=root.shape[1])
        found = infer(errors[:3], slopes[:3], prior=prior)
        further = errors[3] + slopes[3] @ found.move
        held.append(abs(further) <= INSIDE * found.deviation(slopes[3:]))
    assert 0.77 < np.mean(held) < 0.83


def test_a_cluster_with_a_profile_moves_less():
    errors, slopes = runs(2)
    new, known = (infer(errors, slopes, prior=usual_prior(), known=k) for k in (False, True))
    assert np.abs(slopes @ known.move).mean() < np.abs(slopes @ new.move).mean()


def fitted(errors, slopes, *, known):
    """What runs say whose errors are linear in the moves."""
    return fit(lambda move, _: errors + slopes @ move, slopes, prior=usual_prior(), known=known)


@pytest.mark.parametrize("errors", [(0.03, -0.04, 0.01), (0.3, -0.1, 0.1), (-0.02, -0.02, -0.02)])
def test_a_profile_stays_where_runs_do_not_speak_against_it(errors):
    slopes = runs(3)[1]
    found = fitted(np.array(errors), slopes, known=True)
    assert not found.move.any()
    assert found.wait_s == 0.0
    assert found.deviation(slopes) == pytest.approx(found.spread)
    assert fitted(np.array(errors), slopes, known=False).move.any()


@pytest.mark.parametrize("shift", [-0.15, 0.15])
def test_a_profile_moves_where_runs_agree_that_it_changed(shift):
    slopes = runs(3)[1]
    found = fitted(shift + np.array([0.01, 0.0, -0.01]), slopes, known=True)
    assert np.abs(shift + slopes @ found.move).max() < 0.6 * abs(shift)


def test_evidence_is_the_odds_between_moves_and_none():
    """Two runs alike: the odds of two normal distributions."""
    slopes = np.repeat(runs(1)[1], 2, axis=0)
    noise = np.full(2, 0.03)
    root = SURE.roots(known=True)[2]
    moved = slopes @ root @ root.T @ slopes.T + np.diag(noise**2)
    at, shifts = None, np.linspace(0.0, 0.2, 201)
    for shift in shifts:
        error = np.full(2, shift)
        densities = [multivariate_normal.logpdf(error, cov=c) for c in (moved, np.diag(noise**2))]
        if densities[0] - densities[1] > np.log(SURE.evidence):
            at = shift
            break
    assert at
    for shift, moves in ((at - 0.002, False), (at + 0.002, True)):
        error = np.full(2, shift)
        found = fit(
            lambda move, _, e=error: e + slopes @ move,
            slopes,
            prior=SURE,
            known=True,
            noise=noise,
        )
        assert found.move.any() == moves


def test_a_wait_of_every_micro_batch_is_told_from_slow_kernels():
    """Runs of 1, 8 and 32 micro-batches of 0.1 s that wait for a second each."""
    micro_batches = np.array([1.0, 8.0, 32.0, 4.0])
    step_s = 0.1 * (micro_batches + 1.0)
    errors = np.log(step_s / (step_s + micro_batches))
    slopes = runs(4)[1]
    found = infer(errors, slopes, prior=usual_prior(), share_per_wait=micro_batches / step_s)
    assert found.wait_s == pytest.approx(1.0, rel=0.5)
    none = infer(errors, slopes, prior=usual_prior(), share_per_wait=np.zeros(4))
    assert none.spread > found.spread


def test_many_runs_are_fitted_at_once():
    """As many as a table has; the numbers that made them come out."""
    truth = np.array([0.1, -0.05, 0.0, 0.1, -0.1, 0.02, 0.0])
    _, slopes = runs(3000)
    noise = np.random.default_rng(1).normal(0, 0.05, 3000)
    found = infer(-slopes @ truth + noise, slopes, prior=usual_prior())
    assert found.move == pytest.approx(truth, abs=0.02)


def test_errors_that_bend_are_followed():
    """A step of two parts, of which one is 1.6 times slower than known."""
    share = np.array([0.9, 0.5, 0.2])

    def errors_at(move, wait_s):
        assert wait_s == 0.0
        speed = np.exp(move[[0, 4]])
        step = share / speed[0] + (1 - share) / speed[1]
        return np.log(step / (share * 1.6 + (1 - share)))

    step = 1e-4 * np.eye(NUM)
    slopes = np.stack([(errors_at(u, 0.0) - errors_at(-u, 0.0)) / 2e-4 for u in step], axis=1)
    found = fit(errors_at, slopes, prior=usual_prior(), known=False, noise=np.full(3, 0.005))
    assert np.abs(errors_at(found.move, 0.0)).max() < 0.02


def test_simulated_clusters_are_predicted_better_with_three_runs():
    """Clusters as the prior has them: three runs never hurt in the mean, and help."""
    prior, rng = usual_prior(), np.random.default_rng(3)
    before, after = [], []
    for _ in range(200):
        root = prior.roots(known=False)[rng.integers(5)]
        spread = np.exp(rng.normal(np.log(prior.noise), prior.noise_spread))
        slopes = -rng.dirichlet(np.ones(NUM), 8)
        errors = slopes @ root @ rng.normal(size=root.shape[1]) + spread * rng.normal(size=8)
        found = infer(errors[:3], slopes[:3], prior=prior)
        before.append(np.mean(errors[3:] ** 2))
        after.append(np.mean((errors[3:] + slopes[3:] @ found.move) ** 2))
    assert np.mean(np.log(after)) < np.mean(np.log(before)) - 0.2
