"""Strict certificates of fits and streams are never below the truth in 60 digits: exact.py."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import online as L
import pacgp_ref as R
import predictive as J
from beyond import rounding, stream
from tests.dense import dense_certificate, dense_process_kl, known
from tests.exact import distance, exact_fit, exact_sums, expected_loss, OTHERS, process_kl
from tests.oracles import assert_all_close, assert_close, decimals, NAMES, slow_from
from tests.problems import close_inputs, fit, ill_conditioned, strict, theta_of

METHODS = (("full-GP", "kl-PAC-GP"), ("kl-PAC-SGP",) * 2, ("VFE",) * 2, ("free-kl-PAC-SGP",) * 2)


# --- cases: ill-conditioned, most bounds below 1 -------------------------------------------------


def ill_conditioned_fit(i, function=R.se_kernel):
    """X, y, Fit. Over all i every family with every loss and every kind of inputs."""
    rng = np.random.default_rng([0, i])
    loss = NAMES[i // 4 % len(NAMES)]
    N = rng.integers(32, 51)
    M = rng.integers(12, 21)
    d = int(rng.integers(1, 3))
    X, y, Z, ln_theta, ln_noise, eps = ill_conditioned(rng, loss, i // 20, N, M, d)
    start = dict(ln_noise=np.array(ln_noise))
    if i % 4 == 3:  # the free form starts at the best q(u) of an SE kernel
        (V, _), _ = J.whitened_features(X, Z, ln_theta, R.se_kernel)
        sigma2 = math.exp(ln_noise)
        (m, S, *_), _ = R.gaussian_posterior(V.T @ V / sigma2, V.T @ y / sigma2)
        start = dict(m=m, L_S=np.linalg.cholesky(S))
    start["ln_theta"] = theta_of(function, d, ln_theta)
    method = METHODS[i % 4][(i // 20 + i // 4) % 2]
    max_evals = int(rng.integers(10, 41))
    settings = dict(eps=eps, loss=loss, Z=Z, start=start, max_evals=max_evals, kernel=function)
    return X, y, strict(X, y, method, **settings)


def ill_conditioned_stream(i, monkeypatch, function=R.se_kernel):
    """Learner, records. Repeated and nearly equal inputs, little noise; every other with an
    outlier.

    In most of those the account is opened after the outlier: with it the training certificate would
    be 1.
    """
    rng = np.random.default_rng([0, 1000 + i])
    records = []
    real = stream.charged_update
    row = 8
    goal = stream.Settings(
        eps=10 ** (rng.uniform(-1.5, 0) + 0.8 * (i % 2)), loss=NAMES[i % 3],
        M=int(rng.integers(5, 9)), learn=("window", "evidence", "nothing", "bound")[i // 2 % 4],
        window=12, forgetting=float(rng.choice([0.9, 0.99, 0.999])),
        unit=("first", "running")[i % 2])
    X = close_inputs(rng, int(rng.integers(28, 39)), 1 + i // 2 % 2, i // 3 % 3)
    X[rng.random(len(X)) < 0.3] = X[0]
    y = np.sin((X - X.mean(0)).sum(1) * 1.5)
    y = y + 10 ** rng.uniform(-5, -2) * rng.standard_normal(len(X))
    outlier = 8 + int(rng.integers(8))
    y[outlier] += i % 2 * 10 ** rng.uniform(3, 5)

    def recorded(old, X, y, ln_noise, eps, *more):
        out = real(old, X, y, ln_noise, eps, *more)
        middle, unit = stream.middle_and_unit(learner.target)
        naive = ((learner.recent[-1, -1] - middle) / unit, 0.0)
        records.append((old, *out[:2], X, y, eps, goal.loss, ln_noise, naive))
        return out

    monkeypatch.setattr(stream, "charged_update", recorded)
    ln_theta = theta_of(function, 1 + i // 2 % 2, np.array([rng.uniform(0, 3), 0.0]))
    learner = stream.begin(
        X[:row], y[:row], goal, ln_theta, math.log(1e-3), pretrain=5, kernel=function)
    while row < len(X):
        batch = slice(row, row + int(rng.integers(1, 3)))
        learner = stream.step(learner, X[batch], y[batch])
        row = batch.stop
        if i % 2 and i % 8 > 1 and batch.start <= outlier + 6 * (i % 4 == 1) < batch.stop:
            learner = learner._replace(ledger=stream.Ledger())
            records.clear()
    return learner, records


# --- tests ---------------------------------------------------------------------------------------


def never_below(n, fast, n_others, fast_others):
    """Decorator: n cases with SE, in a shuffled order, others with the other kernels in turn."""
    cases = [(7 * j % n, R.se_kernel) for j in range(n)]
    others = [(7 * j % n_others, OTHERS[j % 3]) for j in range(n_others)]
    return pytest.mark.parametrize(
        "i, function", slow_from(fast, cases) + slow_from(fast_others, others))


@never_below(60, 8, 20, 3)
def test_fit_is_never_below(i, function):
    """Fit.bound against the bound of the stored Q in 60 digits."""
    X, y, fit = ill_conditioned_fit(i, function)
    bound, risk, KL = exact_fit(fit, X, y)
    print(
        f"{i:3d} {fit.method:16s}{fit.loss:9s} B {fit.bound:.4f}, above by "
        f"{distance(fit.bound, bound):9.1e} of it; "
        f"risk {fit.R_S:.4f} by {fit.R_S - float(risk):9.1e}, KL {fit.KL:.5g} by "
        f"{fit.KL - float(KL):9.1e}"
    )
    assert Decimal(fit.bound) >= bound


@never_below(20, 3, 6, 3)
def test_stream_is_never_below(i, function, monkeypatch):
    """The sums that make the six certificates of a stream, and the KL of each batch, against those
    of the stored States in 60 digits.
    """
    learner, records = ill_conditioned_stream(i, monkeypatch, function)
    ledger = learner.ledger
    exact = exact_sums(records)
    got = (*ledger[:6], *ledger[7:])
    off = [f"{b:.4f}, above by {b - float(e):9.1e}" for b, e in zip(got, exact, strict=True)]
    print(f"{i:3d} {learner.settings.loss:7s}", "; ".join(off))
    assert all(Decimal(b) >= e for b, e in zip(got, exact))
    for old, new, _, X, *_ in records:
        booked = stream.enclosed_kl(new, stream.extended(old, X, learner.settings.M))
        assert rounding.KL_from_above(*booked) >= process_kl(new, old)


def test_oracle_expected_loss_unknown():
    """The oracle has every loss, and no value for another."""
    for loss in R.LOSSES:
        assert 0 < expected_loss(loss, *map(Decimal, ("1", "0.7", "0.1", "0.3"))) < 1
    with pytest.raises(KeyError):
        expected_loss("absolute", *map(Decimal, ("1", "0.7", "0.1", "0.3")))


@pytest.mark.parametrize(
    "method, loss", [("full-GP", "exp"), ("VFE", "01"), ("free-kl-PAC-SGP", "square"),
                     ("full-GP", "relative"), ("VFE", "band")])
def test_oracle_fit(method, loss):
    """exact_fit of a well-conditioned fit against dense matrices, quadrature of the loss and
    bisection.
    """
    X = np.linspace(-3, 3, 20)[:, None]
    y = np.sin(X[:, 0]) + 0.3 * np.cos(40 * X[:, 0])
    start = dict(ln_theta=np.array([-3.0, 0.0]))
    result = fit(X, y, method, loss=loss, Z=X[::4], start=start, max_evals=1)
    bound, *parts = map(float, exact_fit(result, X, y))
    assert_close([*parts, bound], dense_certificate(result, X, y)[:3], 1e-11)


def test_oracle_process_kl():
    """process_kl against the KL of the joint normals of both sets of inducing variables; 0 for one
    Posterior, also turned round: jitter is shared.
    """
    rng = np.random.default_rng(2)
    X = rng.uniform(-2, 2, (12, 1))
    y = np.sin(X[:, 0])
    nothing = L.prior(np.linspace(-2, 2, 5)[:, None], np.array([-1.0, 0.2]))
    old = L.update(nothing, X[:8], y[:8], -2.0)
    for Z in (np.linspace(-1.8, 2.3, 6)[:, None], old.Z):
        new = L.update(old, X[8:], y[8:] + 0.3, -2.0, Z)
        want = dense_process_kl(known(new, decimals), known(old, decimals))
        assert_close(float(process_kl(new, old)), want, 1e-10)
    turned = L.update(old, X[:0], y[:0], -2.0, old.Z[::-1])
    assert abs(process_kl(old, old)) < 1e-50
    assert abs(process_kl(turned, old)) < 1e-12


@pytest.mark.parametrize("loss", R.ZERO_ONE_LOSSES)
@pytest.mark.parametrize(
    "y, c, L_S", [(1e6 + 0.123, 0.3, 1e-4), (1234.567, 0.3, 1e-3), (1.0, 0.03, 1e-4)])
def test_large_target_is_never_below(y, c, L_S, loss, ln_k=-6.0):
    """A mean that misses a target of many of its deviations by just the goal: mean - y and eps |y|
    are rounded, too.
    """
    X = np.zeros((100, 1))
    y_N = np.full(100, y)
    eps = (y - c * math.exp(ln_k / 2)) / (1.0 if loss == "01" else y)
    start = dict(ln_theta=np.array([0.0, ln_k]), m=np.array([c]), L_S=np.array([[L_S]]))
    found = strict(X, y_N, "free-kl-PAC-SGP", eps=eps, loss=loss, Z=X[:1], max_evals=1, start=start)
    bound, risk, KL = exact_fit(found, X, y_N)
    assert bound <= found.bound < bound + Decimal("1e-4")
    assert risk <= found.R_S
    assert KL <= found.KL < KL + Decimal("1e-10")


def test_rounded_difference_is_never_below():
    """Where mean - y may be above eps, though rounded to it, and the variance is next to none, the
    loss is 1.
    """
    y, mean = np.random.default_rng(0).uniform(0, 1, (2, 300)) + [[0.0], [1.5]]
    above = 0
    for i in range(300):
        error = (0.0, 1e-3)[i % 2]
        eps = mean[i] - y[i] + error
        if Fraction(mean[i]) - Fraction(y[i]) + Fraction(error) > Fraction(eps):
            above += 1
            enclosed = rounding.Enclosed(
                None, mean[i : i + 1], np.full(1, 1e-60), 0.0, error, np.zeros(1), 0.0)
            assert rounding.risk_from_above(y[i : i + 1], enclosed, eps, "01", 1e-60) == 1
    assert above > 50


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


@pytest.mark.parametrize("M, ulps", [(400, 1), (8, 1e6)])
def test_sums_are_enclosed(M, ulps):
    """A sum of M products may err by M ulp of the sum of their sizes: 4 sqrt(M) ulp of their norms
    would be less. So may each entry of k(x, Z) by its ulp of k(x, x).
    """
    V = np.full((1, M), 0.05)
    c = np.ones(M)
    none = np.zeros((1, M))
    error = rounding.enclosed_marginals(V, np.eye(M), 1.0, c, none, ulps)[2]
    assert error[0] >= R.ULP * max(M * 0.05, ulps) * M


def test_enclosed_marginals_units():
    """In another unit of y mean and its error have the unit, variance and its error the square."""
    rng = np.random.default_rng(0)
    K = rng.standard_normal((5, 3))
    Linv, root = np.tril(rng.standard_normal((2, 3, 3)))
    c = rng.standard_normal(3)
    want = rounding.enclosed_marginals(K, Linv, 1.3, c, root, 2)
    for a in (0.25, 16.0):
        got = rounding.enclosed_marginals(a * a * K, Linv / a, a * a * 1.3, c, root, 2)
        assert_all_close(got, (a * want[0], a * a * want[1], a * want[2], a * a * want[3]), 1e-14)
