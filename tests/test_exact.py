"""Strict certificates of fits and streams: never below the truth in 60 digits (exact.py), and just
above it.
"""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
from numpy.random import default_rng

import pacgp_ref as R
from beyond import rounding, stream
from tests.exact import distance, exact_fit, exact_sums, expected_loss, OTHERS, process_kl
from tests.oracles import each, NAMES, slow_from
from tests.problems import close_inputs, ill_conditioned, strict, theta_of

METHODS = (("full-GP", "kl-PAC-GP"), ("kl-PAC-SGP",) * 2, ("VFE",) * 2, ("free-kl-PAC-SGP",) * 2)


# --- cases: ill-conditioned, most bounds below 1 -------------------------------------------------


def ill_conditioned_fit(i, kernel):
    """X, y, Fit. Over all i every family with every loss and every kind of inputs."""
    rng = default_rng([0, i])
    loss = NAMES[i // 4 % len(NAMES)]
    N, M = rng.integers(32, 51), rng.integers(12, 21)
    d = int(rng.integers(1, 3))
    X, y, Z, ln_theta, ln_noise, eps = ill_conditioned(rng, loss, i // 20 % 3, N, M, d)
    start = dict(ln_noise=np.array(ln_noise))
    if i % 4 == 3:  # the free form starts at the best q(u) of an SE kernel
        best = R.sparse_posterior(X, y, Z, ln_theta, ln_noise, 0.0)
        start = dict(m=best.m, L_S=np.linalg.cholesky(best.S))
    start["ln_theta"] = theta_of(kernel, d, ln_theta)
    method = METHODS[i % 4][(i // 20 + i // 4) % 2]
    return X, y, strict(
        X, y, method, eps=eps, loss=loss, Z=Z, start=start, kernel=kernel,
        max_evals=int(rng.integers(10, 41)))


def ill_conditioned_stream(i, monkeypatch, kernel):
    """Learner, records. Repeated and nearly equal inputs, little noise; every other with an
    outlier.
    """
    rng = default_rng([0, 1000 + i])
    d = 1 + i // 2 % 2
    records = []
    real = stream.charged_update
    goal = stream.Settings(
        eps=10 ** (rng.uniform(-1.5, 0) + 0.8 * (i % 2)), loss=NAMES[i % 3],
        M=int(rng.integers(5, 9)), learn=stream.LEARN[i // 2 % 2],
        window=12, forgetting=float(rng.choice([0.9, 0.99, 0.999])))
    X = close_inputs(rng, int(rng.integers(28, 39)), d, i // 3 % 3)
    X[rng.random(len(X)) < 0.3] = X[0]
    y = np.sin((X - X.mean(0)).sum(1) * 1.5)
    y = y + 10 ** rng.uniform(-5, -2) * rng.standard_normal(len(X))
    y[8 + rng.integers(8)] += i % 2 * 10 ** rng.uniform(3, 5)

    def recorded(old, X, y, ln_noise, eps, *more):
        out = real(old, X, y, ln_noise, eps, *more)
        records.append((old, *out[:2], X, y, eps, goal.loss))
        return out

    monkeypatch.setattr(stream, "charged_update", recorded)
    ln_theta = theta_of(kernel, d, np.array([rng.uniform(0, 3), 0.0]))
    learner = stream.begin(X[:8], y[:8], goal, ln_theta, math.log(1e-3), pretrain=5, kernel=kernel)
    row = 8
    while row < len(X):
        n = rng.integers(1, 3)
        learner = stream.step(learner, X[row : row + n], y[row : row + n])
        row += n
    return learner, records


# --- tests ---------------------------------------------------------------------------------------


def shuffled(n, fast, step):
    """Cases 0 .. n - 1 in steps, the first of which are not slow."""
    return each("i", slow_from(fast, [(step * j % n,) for j in range(n)]))


@shuffled(80, 8, 9)
def test_fit_is_never_below(i):
    """Fit.bound against the bound of the stored Q in 60 digits. 60 of SE, 20 of other kernels."""
    X, y, fit = ill_conditioned_fit(i, R.se_kernel if i < 60 else OTHERS[i % 3])
    bound, risk, KL = exact_fit(fit, X, y)
    above = distance(fit.bound, bound), Decimal(fit.R_S) - risk, Decimal(fit.KL) - KL
    print(f"{i:3d} {fit.method:16s}{fit.loss:9s} B {fit.bound:.4f}, above by {above[0]:9.1e} of "
          f"it; risk {fit.R_S:.4f} by {above[1]:9.1e}, KL {fit.KL:.5g} by {above[2]:9.1e}")
    assert 0 <= min(above)
    assert above[0] < 1e-2


@shuffled(26, 4, 7)
def test_stream_is_never_below(i, monkeypatch):
    """The sums that make the three certificates of a stream, and the KL of each batch, against
    those of the stored States in 60 digits. 20 of SE, 6 of other kernels.
    """
    learner, records = ill_conditioned_stream(
        i, monkeypatch, R.se_kernel if i < 20 else OTHERS[i % 3])
    ledger = learner.ledger
    above = [(Decimal(got) - exact) / (1 + exact) for got, exact in zip(
        ledger, exact_sums(records), strict=True)]
    print(f"{i:3d} {learner.settings.loss:7s} above by", *(f"{a:9.1e}" for a in above))
    assert 0 <= min(above)
    assert max(above) < 1e-2
    for old, new, _, X, *_ in records:
        booked = stream.enclosed_kl(new, stream.extended(old, X, learner.settings.M))
        assert rounding.KL_from_above(*booked) >= process_kl(new, old)


@each("loss", R.ZERO_ONE_LOSSES)
@each("y, c", [(1e6 + 0.123, 0.3), (1.0, 0.03)])
def test_large_target_is_never_below(y, c, loss):
    """A mean that misses a target of many of its deviations by just the goal: mean - y and eps |y|
    are rounded, too.
    """
    rows = np.zeros((100, 1)), np.full(100, y)
    eps = (y - c * math.exp(-3)) / (1.0 if loss == "01" else y)
    start = dict(ln_theta=np.array([0.0, -6.0]), m=np.array([c]), L_S=np.array([[1e-4]]))
    found = strict(
        *rows, "free-kl-PAC-SGP", eps=eps, loss=loss, Z=rows[0][:1], max_evals=1, start=start)
    for got, exact in zip((found.bound, found.R_S, found.KL), exact_fit(found, *rows)):
        assert exact <= got < exact + Decimal("1e-4")


def test_rounded_difference_is_never_below():
    """Where mean - y may be above eps, though rounded to it, and the variance is next to none, the
    loss is 1.
    """
    y, mean = default_rng(0).uniform(0, 1, (2, 300)) + [[0.0], [1.5]]
    error = 1e-3 * (np.arange(300) % 2)
    eps = mean - y + error
    above = [sum(map(Fraction, row)) > 0 for row in zip(mean, -y, error, -eps)]
    assert sum(above) > 50
    y, mean, error, eps = (a[above] for a in (y, mean, error, eps))
    enclosed = rounding.Enclosed(None, mean, 0 * mean + 1e-60, 0.0, error, 0 * mean, 0.0)
    assert rounding.risk_from_above(y, enclosed, eps, "01", 1e-60) == 1


def test_small_variance_is_never_below():
    """Below what a prediction's variance is floored at the loss of a row that is missed would be
    smaller at the floor.
    """
    y = np.array([0.1 + 2e-7])
    var = np.array([1e-13])
    enclosed = rounding.Enclosed(None, np.zeros(1), var, 0.0, np.zeros(1), np.zeros(1), 0.0)
    risk = rounding.risk_from_above(y, enclosed, 0.1, "01", 1e-24)
    exact = expected_loss("01", Decimal(y[0]), Decimal(0), Decimal(var[0]), Decimal(0.1))
    assert exact <= risk < exact + Decimal("1e-8")
    assert risk > R.gibbs_risk(y, np.zeros(1), np.array([1e-12]), 0.1) + 0.05


@each("M, ulps", [(400, 1), (8, 1e6)])
def test_sums_are_enclosed(M, ulps):
    """A sum of M products may err by M ulp of the sum of their sizes: 4 sqrt(M) ulp of their norms
    would be less. So may each entry of k(x, Z) by its ulp of k(x, x).
    """
    V = np.full((1, M), 0.05)
    c = np.ones(M)
    error = rounding.enclosed_marginals(V, np.eye(M), 1.0, c, np.zeros((1, M)), ulps)[2]
    assert error[0] >= R.ULP * max(M * 0.05, ulps) * M
