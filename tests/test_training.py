"""Training in R and J: the optimisers, what a trained model's certificate is worth, stopping,
starting again, choosing.

Oracles: the known minimum; every set of active bounds; Adam in plain Python; dense matrices with
quadrature of the loss.
"""

import functools
import itertools
import math
import os
import pickle
import re
import tempfile
import types
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import online as L
import pacgp_ref as R
import predictive as J
from beyond import blocks, certificates, kernels, rounding, search, stream
from own_data import saving
from tests.dense import (
    dense_dual, dense_eq08, dense_eq09, dense_eq11, dense_full_gp, dense_K_MM, dense_kernel,
    gaussian_kl, whitened)
from tests.oracles import (
    assert_all_close, assert_close, assert_just_above, central_difference, crossed, DEFINITIONS,
    exact_kl_inv, exact_xi, expectation, INF, NAN, same_bytes)
from tests.problems import kind_of, pac_objective, rough_parameters, wave


def rosenbrock(x):
    a = x[1:] - x[:-1] ** 2
    b = 1 - x[:-1]
    g = np.zeros(len(x))
    g[:-1] = -400 * x[:-1] * a - 2 * b
    g[1:] += 200 * a
    return np.sum(100 * a**2 + b**2), g


def table(N=60, d=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, d))
    return X, np.sin(1.5 * X[:, 0]) + 0.3 * X[:, -1] + 0.2 * rng.standard_normal(N)


def fit(*args, **options):
    """beyond.search.multistart_fit, or with a share the Fit of prior_from_part of
    beyond/certificates.py, without the warnings that some tests provoke on purpose elsewhere.
    """
    train = certificates.prior_from_part if "share" in options else search.multistart_fit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = train(*args, **options)
    return getattr(result, "fit", result)


def strict(X, y, *args, **options):
    """The Fit of rounding.strict of this fit."""
    return rounding.strict(fit(X, y, *args, **options), X, y).fit


def same(p, q):
    """Whether two dicts of parameters are equal to the last bit."""
    return p.keys() == q.keys() and all(np.array_equal(p[name], q[name]) for name in p)


def dense_fit(result, X, y):
    """mean, var (N,) and KL of a Fit at its training rows from dense matrices; what training found
    is in result.optimum.
    """
    ln_theta = result.ln_theta
    Z = result.Z
    kind = kind_of(result.kernel)
    family = R.METHODS[result.method][0]
    if family == "full":
        mean, cov = dense_full_gp(X, y, ln_theta, result.ln_noise, X, kind=kind)
        KL = dense_eq08(dense_kernel(X, X, ln_theta, kind), y, math.exp(result.ln_noise))
        return mean, np.diag(cov), KL
    if family == "sparse":
        return dense_dual(X, y, Z, ln_theta, result.ln_noise, result.alpha, kind)
    K_MM = dense_K_MM(Z, ln_theta, kind)
    L = np.linalg.cholesky(K_MM)
    L_S = result.optimum.x["L_S"]
    a_M = L @ result.optimum.x["c"]
    B_MM = L @ L_S @ L_S.T @ L.T
    mean, cov = dense_eq09(X, Z, ln_theta, a_M, B_MM, kind)
    return mean, np.diag(cov), gaussian_kl(a_M, B_MM, np.zeros(len(Z)), K_MM)


def dense_certificate(result, X, y, G=1200, n_eps=1, exact=False):
    """risk, KL, B, B_Pin of a Fit from first principles: dense matrices, quadrature of the loss,
    bisection in 60 digits.
    """
    N = len(y)
    mean, var, KL = dense_fit(result, X, y)
    loss, cuts = DEFINITIONS[result.loss]
    goal = result.eps * (np.abs(y) if result.loss in R.RELATIVE_LOSSES else np.ones(N))
    risk = np.mean([expectation(lambda r: loss(r, c), m, v, np.multiply(c, cuts))
                    for c, m, v in zip(goal, mean - y, var)])
    factor = float(exact_xi(N)) if exact else 2 * math.sqrt(N)
    penalty = len(result.ln_theta) * math.log(G + 1)
    complexity = (KL + penalty + math.log(n_eps * factor / result.delta)) / N
    B = float(exact_kl_inv(float(risk), float(complexity)))
    return risk, KL, B, risk + math.sqrt(complexity / 2)


@functools.cache
def small_fit(method, kernel="Matern52"):
    """X, y, X_val, y_val and a short training run of a method on 40 rows whose noise depends on x.
    """
    X, y = wave(40, d=2)
    X_val, y_val = wave(30, 1, d=2)
    settings = dict(method=method, M=6, kernel=kernel, beta_reg=0.3, batch=15, epochs=40, lr=0.02)
    return X, y, X_val, y_val, J.fit(X, y, X_val=X_val, y_val=y_val, **settings)


# --- L-BFGS --------------------------------------------------------------------------------------

ROTATION, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((20, 20)))
STIFF = ROTATION @ np.diag(np.logspace(-2, 4, 20)) @ ROTATION.T


def beyond_zero(kind):
    """f = x_0 - ln x_0 + x_1^2 for x_0 > 0, and beyond it nothing but `kind`: the first step goes
    there.
    """

    def fun(x):
        if x[0] > 0:
            return x[0] - math.log(x[0]) + x[1] ** 2, np.array([1 - 1 / x[0], 2 * x[1]])
        if kind is ValueError:
            raise ValueError("not positive definite")
        return kind, np.full(2, NAN)

    return fun


def bent_at_one(x):
    """x_0 falls along a straight line, where s^T y = 0 teaches nothing; only then x_2 begins to
    move.
    """
    below = max(1 - x[0], 0.0)
    value = x[0] * x[1] - x[2] * below + x[2] ** 2
    return value, np.array([x[1] + x[2] * (below > 0), x[0], 2 * x[2] - below])


MINIMA = {  # name -> fun, x0, lower, upper, the minimiser, its tolerance, most evaluations
    "valley, n = 2": (rosenbrock, [-1.2, 1.0], -INF, INF, np.ones(2), 1e-5, 100),
    "valley, n = 10": (rosenbrock, np.tile([-1.2, 1.0], 5), -INF, INF, np.ones(10), 1e-5, 150),
    "condition 1e6": (
        lambda x: (x @ STIFF @ x / 2 - x.sum(), STIFF @ x - 1), np.ones(20), -INF, INF,
        np.linalg.solve(STIFF, np.ones(20)), 1e-3, 4500),
    "short first step": (lambda x: (x @ x / 2, x), [100.0], -INF, INF, [0.0], 1e-5, 15),
    "nearly level": (
        lambda x: (math.hypot(x[0], 1e-3), x / math.hypot(x[0], 1e-3)), [0.50001], -INF, INF, [0.0],
        1e-5, 60),
    "valley that leaves the box": (
        rosenbrock, [-1.2, 1.0], -2.0, [0.5, 2.0], [0.5, 0.25], 1e-6, 100),
    "towards an edge": (
        lambda x: (-30 * x[0] + (x[1] - 2) ** 2, np.array([-30.0, 2 * (x[1] - 2)])), [0.0, 0.0],
        -1.0, [0.5, 9.0], [0.5, 2.0], 1e-5, 15),
    "without curvature": (
        bent_at_one, [2.0, 1.0, 0.0], [0.5, 1.0, -9.0], 9.0, [0.5, 1.0, 0.25], 1e-6, 60),
    **{
        f"{kind} beyond 0": (beyond_zero(kind), [30.0, 20.0], -INF, INF, [1.0, 0.0], 1e-5, 60)
        for kind in (INF, NAN, ValueError)
    },
}


@pytest.mark.parametrize("name", MINIMA)
def test_R_lbfgs_value(name):
    """The minimum is found; steps fulfil both Wolfe conditions where no bound cuts them off; what
    is returned is consistent.
    """
    fun, x0, lower, upper, want, tol, most = MINIMA[name]
    seen = []
    points = {}
    told = []
    start = np.array(x0)
    last_digit = name == "condition 1e6"

    def recorded(x):
        seen.append(x.copy())
        f, g = fun(x)
        points[f] = x.copy(), g
        return f, g

    with np.errstate(all="raise"):
        best = R.lbfgs(
            recorded, start, lower, upper, ftol=0.0, max_evals=5000,
            callback=lambda n, f: told.append((n, f)))
    assert best.converged
    assert best.n_evals == len(seen) <= most
    if not last_digit:      # there f has no digits left in which to decrease
        assert best.message == "gradient below 1e-06"
    assert np.max(np.abs(best.x - want)) < tol
    assert best.f == fun(best.x)[0] == best.history[-1]
    assert np.array_equal(start, x0)
    assert all(np.all((x >= lower) & (x <= upper)) for x in seen)
    assert best.history == [fun(start)[0]] + [f for _, f in told]
    assert np.all(np.diff(best.history[:-1]) < 0)
    assert "beyond" not in name or np.min(seen, 0)[0] <= 0
    if last_digit or not np.all(np.isinf(upper)):
        return
    for f0, f1 in itertools.pairwise(best.history):
        x0, g0 = points[f0]
        x1, g1 = points[f1]
        assert f1 <= f0 + 1e-4 * (g0 @ (x1 - x0)) * (1 - 1e-9)
        assert g1 @ (x1 - x0) >= 0.9 * (g0 @ (x1 - x0)) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_R_lbfgs_value_random_boxes(seed):
    """A random quadratic against every choice of active bounds; some bounds are infinite; a start
    outside is put inside.
    """
    rng = np.random.default_rng(seed)
    n = 1 + seed % 5
    A = rng.standard_normal((n, n))
    b = 3 * rng.standard_normal(n)
    A = A @ A.T + 0.1 * np.eye(n)
    lower, upper = (
        np.where(rng.random(n) < 0.7, sign * rng.uniform(0, 1, n), sign * INF) for sign in (-1, 1))

    def f(x):
        return (x @ A @ x / 2 - b @ x, A @ x - b)

    values = []
    for active in itertools.product((lower, upper, None), repeat=n):
        x = np.array([0.0 if a is None else a[i] for i, a in enumerate(active)])
        free = np.array([a is None for a in active])
        if np.all(np.isfinite(x)):
            x[free] = np.linalg.solve(A[np.ix_(free, free)], (b - A @ x)[free])
            values += [f(x)[0]] if np.all((x >= lower) & (x <= upper)) else []
    best = R.lbfgs(f, np.full(n, 7.0), lower, upper, ftol=0.0)
    assert np.all((best.x >= lower) & (best.x <= upper))
    assert abs(best.f - min(values)) < 1e-9 * max(1, abs(min(values)))


@pytest.mark.parametrize(
    "fun, x0, options, converged, message",
    [
        (rosenbrock, [1.0, 1.0], {}, True, "gradient below 1e-06"),
        (rosenbrock, [-1.2, 1.0], dict(max_evals=1), False, "stopped after 1 evaluations"),
        (rosenbrock, [-1.2, 1.0], dict(max_evals=12), False, "stopped after 12 evaluations"),
        (
            rosenbrock, [-1.2, 1.0], dict(gtol=0.0, ftol=1e-3), True,
            "decrease below 0.001 max(|f|, 1)"),
        (
            lambda x: (1e6 * x[0] ** 4, 4e6 * x**3), [1.3], {}, True,
            "decrease below 1e-09 max(|f|, 1)"),
        (
            lambda x: (0.0 if np.array_equal(x, [1, 2]) else INF, x), [1.0, 2.0], {}, False,
            "no decrease along the gradient"),
    ],
    ids=["at the minimum", "one evaluation", "twelve", "ftol", "flat", "no decrease"],
)
def test_R_lbfgs_stop_reasons(fun, x0, options, converged, message):
    best = R.lbfgs(fun, x0, **options)
    assert (best.converged, best.message) == (converged, message)
    assert len(best.history) > 1 or np.array_equal(best.x, x0)
    with pytest.raises(ValueError, match="start x0"):
        R.lbfgs(lambda x: (NAN, x), [1.0])


def test_R_lbfgs_limit_no_descent(monkeypatch):
    """Where the quasi-Newton direction leads uphill, the gradient is followed instead."""
    monkeypatch.setattr(R, "lbfgs_direction", lambda g, pairs: g if pairs else -g)
    best = R.lbfgs(lambda x: (x @ x + x[0] ** 2, 2 * x + [2 * x[0], 0]), [3.0, 4.0])
    assert best.converged
    assert np.max(np.abs(best.x)) < 1e-3
    assert len(best.history) > 3


@pytest.mark.parametrize("options, most", [(dict(memory=1), 1), (dict(memory=3), 3), ({}, 40)])
def test_R_lbfgs_memory(monkeypatch, options, most):
    """So many pairs of steps and gradients are kept, the latest, and no more."""
    kept = []
    direction = R.lbfgs_direction
    monkeypatch.setattr(
        R, "lbfgs_direction", lambda g, pairs: kept.append(list(pairs)) or direction(g, pairs))
    R.lbfgs(rosenbrock, np.tile([-1.2, 1.0], 10), **options)
    assert kept[0] == []
    assert max(map(len, kept)) == most
    assert all(new[-1][0] is not old[-1][0] for old, new in zip(kept[1:], kept[2:]))


# --- Adam: one oracle for adam_step, R.adam, J.algorithm1 and L.descend --------------------------


def kingma_ba(fun, x, rates, lower, upper):
    """x and the values met by Kingma & Ba 2015, Algorithm 1, in plain Python, one coordinate after
    the other, in a box.

    fun(x) -> (value, gradient); rates (steps, n).
    """
    x = [min(max(z, low), high) for z, low, high in zip(x, lower, upper)]
    m = [0.0] * len(x)
    v = [0.0] * len(x)
    values = []
    for t, rate in enumerate(rates, 1):
        value, gradient = fun(np.array(x))
        values.append(value)
        for i, g in enumerate(gradient.tolist()):
            m[i] = 0.9 * m[i] + (1 - 0.9) * g
            v[i] = 0.999 * v[i] + (1 - 0.999) * g * g
            x[i] -= rate[i] * (m[i] / (1 - 0.9**t)) / (math.sqrt(v[i] / (1 - 0.999**t)) + 1e-8)
            x[i] = min(max(x[i], lower[i]), upper[i])
    return x, values


def in_order(p, grads):
    """One vector of the gradients, in the order of the parameters."""
    return np.concatenate([np.ravel(grads[name]) for name in p])


def spread(p, **values):
    """A vector in the order of the parameters: values[name] in the place of each entry of p[name],
    INF where there is none.
    """
    return np.concatenate([np.full(np.size(v), values.get(name, INF)) for name, v in p.items()])


def R_fit_run(rng):
    """R.fit of the free form: batches without repeats, the rate a tenth in the last quarter, theta
    within the grid's range.
    """
    X, y = table()
    seed = int(rng.integers(99))
    batch = int(rng.integers(10, 70))
    n = int(rng.integers(5, 13))
    bound = ("kl", "sqrt")[seed % 2]
    steps = []
    options = dict(method=f"free-{bound}-PAC-SGP", Z=X[:4], grid=(0.2, 10), delta=0.2)
    p = fit(X, y, max_evals=1, **options).optimum.x
    best = fit(
        X, y, batch=batch, max_evals=n, lr=0.1, seed=seed, callback=lambda *a: steps.append(a),
        **options).optimum
    assert steps == list(enumerate(best.history, 1))
    assert (best.n_evals, best.f) == steps[-1]
    assert not best.converged
    rng = np.random.default_rng(seed)
    limits = spread(p, ln_theta=0.2)

    def fun(x):
        q = R.unpack(x, p)
        rows = rng.choice(60, min(batch, 60), replace=False)
        (mean, var, KL), back = R.sparse_free(X[rows], **q)
        value, *adjoints = pac_objective(
            y[rows], mean, var, KL, 0.6, "01", bound, 60, delta=0.2, penalty=2 * math.log(11))
        return value, in_order(p, back(*adjoints))

    rates = [np.full(len(limits), 0.1 if 4 * t <= 3 * n else 0.01) for t in range(1, n + 1)]
    return in_order(p, best.x), best.history, fun, in_order(p, p), rates, -limits, limits


def algorithm1_run(rng):
    """J.algorithm1: an epoch visits each row once, in batches of nearly one size; the start is read
    only.
    """
    N = int(rng.integers(1, 30))
    seed = int(rng.integers(99))
    method = rng.choice(BATCHED)
    kernel = rng.choice(list(J.KERNELS))
    lr, batch, epochs = 50.0, N, 1
    if N % 4:
        lr, batch, epochs = 0.05, int(rng.integers(1, 40)), int(rng.integers(1, 9))
    milestones = ((0.5, 0.75), (), (0.2, 0.4, 0.9))[seed % 3]
    X, y = wave(N, d=2)
    terms = (method, 0.5, 1.03, J.KERNELS[kernel])
    p = rough_parameters(method, X, kernel=kernel)
    low = -spread(p, ln_theta=16, ln_noise=-math.log(0.2))
    high = spread(p, ln_theta=16, ln_noise=16)
    for a in p.values():
        a.setflags(write=False)
    settings = dict(
        X=X, y=y, method=method, beta_reg=0.5, gamma=1.03, kernel=J.KERNELS[kernel], batch=batch,
        epochs=epochs, lr=lr, min_noise=0.2, milestones=milestones)
    out = list(J.algorithm1(p, types.SimpleNamespace(**settings), np.random.default_rng(seed)))
    orders = np.random.default_rng(seed)
    n = math.ceil(N / batch)
    visits = iter(
        [rows for _ in range(epochs) for rows in np.array_split(orders.permutation(N), n)])

    def fun(x):
        rows = next(visits)
        assert 0 < len(rows) <= batch
        value, back = J.objective(R.unpack(x, p), X[rows], y[rows], N, *terms)
        return value, in_order(p, back(1.0))

    passed = [np.sum(e >= np.array(milestones) * epochs) for e in range(epochs)]
    rates = np.outer(10.0 ** -np.repeat(passed, n), np.full(len(low), lr))
    history = [v for _, v in out]
    return in_order(p, out[-1][0]), history, fun, in_order(p, p), rates, low, high


def descend_run(rng):
    """L.descend: a rate for each parameter, theta within e^-16 to e^16, the noise above 1e-4;
    Adam's state is handed on.
    """
    p = start = dict(
        ln_theta=np.array([15.9, -15.9, 0.0]), ln_noise=np.array(math.log(1e-4) + 0.05),
        Z=np.zeros((2, 1)))
    gs = rng.standard_normal((6, 6)) + [-1, 1, 0, 1, 0, 0]
    adam = None
    for part in (gs[:2], gs[2:2], gs[2:]):
        gradients = iter(part)
        p, adam = L.descend(
            lambda p: (0.0, lambda d_value: R.unpack(next(gradients), p)), p, adam, len(part))
    gradients = iter(gs)
    rates = [spread(start, ln_theta=0.1, ln_noise=0.1, Z=0.01)] * 6
    low = -spread(start, ln_theta=16, ln_noise=-math.log(1e-4))
    high = spread(start, ln_theta=16, ln_noise=16)
    return (
        in_order(p, p), [0.0], lambda x: (0.0, next(gradients)), in_order(start, start), rates, low,
        high)


BATCHED = [method for method, (data_fit, _) in J.METHODS.items() if data_fit]


@pytest.mark.parametrize(
    "run, seed",
    [
        (descend_run, 0), *((R_fit_run, seed) for seed in range(4)),
        *((algorithm1_run, seed) for seed in range(20))],
    ids=lambda v: getattr(v, "__name__", str(v)),
)
def test_RJL_adam_value(run, seed):
    """Everything that steps by Adam takes the steps of the printed algorithm, at the rates, in the
    box and on the rows of its paper; the history holds the values met, J's their mean over each
    epoch.
    """
    found, history, fun, x0, rates, lower, upper = run(np.random.default_rng(seed))
    x, values = kingma_ba(fun, x0, rates, lower, upper)
    assert_close(found, x, 1e-9)
    assert np.allclose(
        history, np.mean(np.reshape(values, (len(history), -1)), 1), rtol=1e-9, atol=0)


def test_R_adam_limit_first_step():
    """The rate, .01 where none is given, times the sign of the gradient."""
    assert_close(R.adam_step(np.zeros(2), np.array([1e-3, -7.0]))[0], [-0.01, 0.01], 1e-4)
    assert_close(R.adam(lambda x: (0.0, np.array([2.0])), [0.0], 1).x, [-0.001], 1e-4)


# --- k-means -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "N, M, d",
    [(1, 1, 1), (40, 1, 3), (60, 7, 2), (6, 6, 2), (200, 10, 1), (3000, 60, 2), (5, 30, 2)])
def test_R_kmeans_value(N, M, d):
    """A fixed point of Lloyd's algorithm by brute force: each centre is the mean of the rows that
    it is nearest to; where M >= N all rows are centres. The same from the same seed, and far from
    the origin.
    """
    X = np.round(np.random.default_rng(0).standard_normal((N, d)) * 2**16) / 2**16
    Z, again, far = (
        R.kmeans(X + shift, M, np.random.default_rng(1), 300) - shift
        for shift in (0.0, 0.0, 2.0**30)
    )
    assert np.array_equal(Z, again)
    assert np.max(np.abs(far - Z)) < 1e-5
    assert Z.shape == (M, d)
    nearest = ((X[:, None] - Z) ** 2).sum(2).argmin(1)
    assert np.allclose(Z[nearest], [X[nearest == j].mean(0) for j in nearest], atol=1e-12)
    assert len(set(nearest)) == min(M, N)


def test_R_kmeans_limit():
    """Rows that are all the same: an empty cluster keeps its centre. Clusters far apart are found
    from some seed, one that is left with a single row from any.
    """
    lone = [
        R.kmeans(np.array([[0.0], [1.0], [10.0]]), 2, np.random.default_rng(seed))
        for seed in range(10)
    ]
    assert all(np.allclose(np.sort(Z[:, 0]), [0.5, 10.0]) for Z in lone)
    assert np.array_equal(R.kmeans(np.ones((8, 2)), 3, np.random.default_rng(0)), np.ones((3, 2)))
    rng = np.random.default_rng(0)
    middles = np.array([[0, 0], [0, 9], [9, 0]])
    X = np.concatenate([m + 0.1 * rng.standard_normal((n, 2)) for m, n in zip(middles, (5, 4, 7))])
    found = [R.kmeans(X, 3, np.random.default_rng(seed)) for seed in range(10)]
    assert any(all(np.abs(Z - m).max(1).min() < 0.3 for m in middles) for Z in found)


# --- R: a trained model and its certificate ------------------------------------------------------

ODD = {  # name -> arguments of a fit made of X (n, 2), y
    "M > N": lambda X, y: dict(M=40),
    "duplicate Z": lambda X, y: dict(Z=np.repeat(X[:3], 2, axis=0)),
    "duplicate X": lambda X, y: dict(X=np.tile(X[:15], (2, 1)), y=np.tile(y[:15], 2)),
    "same inputs": lambda X, y: dict(X=np.tile(X[: len(y) // 2], (2, 1)), y=y[: len(y) // 2 * 2]),
    "constant column": lambda X, y: dict(X=X * [1, 0] + 3, ard=True),
    "constant y": lambda X, y: dict(y=0 * y + 0.7),
    "zero y": lambda X, y: dict(y=0 * y),
    "N = 1": lambda X, y: dict(X=X[:1], y=y[:1]),
    "N = 2": lambda X, y: dict(X=X[:2], y=y[:2]),
    "tiny scale": lambda X, y: dict(X=X * 1e-6),
    "tiniest scale": lambda X, y: dict(X=X * 1e-150),
    "large scale": lambda X, y: dict(X=X * 1e3),
    "far from 0": lambda X, y: dict(X=X + 1e6),
    "d > N": lambda X, y: dict(X=wave(12, d=20)[0], y=y[:12]),
    "integers": lambda X, y: dict(X=(X * 5).astype(int), y=(y * 5).astype(int)),
    "bytes": lambda X, y: dict(X=np.abs(X * 9).astype("u1"), y=np.abs(y * 9).astype("u1")),
    "batch > N": lambda X, y: dict(batch=10**6),
    "batch 1": lambda X, y: dict(batch=1),
}


OTHERS = {name: row for name, row in kernels.KERNELS.items() if row.start and name != "SE"}


@crossed("method, name, in_blocks", R.METHODS, OTHERS, (False, True),
         default=lambda method, name, in_blocks: in_blocks or "sqrt" not in method)
@pytest.mark.filterwarnings("ignore:.*stopped after", "ignore:B > 0.999", "ignore:.*B > 0.999")
def test_R_eq05_fit_value_other_kernel(method, name, in_blocks, tmp_path):
    """Another kernel trains, is certified, predicts and is saved: one and the same in all, dense.

    With whole matrices, and in blocks of rows; the strict certificate is above by rounding alone.
    """
    X, y = wave(30, d=2)
    kernel, start, _ = OTHERS[name]
    settings = dict(M=5, eps=0.8, alpha=0.3, kernel=kernel, max_evals=30)
    if in_blocks:
        result = search.multistart_fit(X, y, method, **settings)
    else:
        result = R.fit(X, y, method, first=start, **settings)
    assert len(result.ln_theta) == {"periodic": 5}.get(name, 2)
    got = 1 + np.array([result.risk, result.KL, result.bound, result.pinsker])
    assert_close(got, 1 + np.array(dense_certificate(result, X, y)), 1e-8)
    certified = rounding.strict(result, X, y)
    above = np.array([getattr(certified.fit, one) - getattr(result, one)
                      for one in ("risk", "KL", "bound", "pinsker")])
    assert np.all(above >= -1e-9) and np.all(above < 1e-6)
    mean, var, _ = dense_fit(result, X, y)
    saving.save(tmp_path / "model.npz", certified)
    again = saving.load(tmp_path / "model.npz")
    assert again.fit.kernel is kernel
    for fitted in (result, certified, again):
        assert_all_close(R.predict(fitted, X), (mean, var), 1e-7)
    if name != "periodic":
        other = R.predict(result._replace(kernel=R.se_kernel), X)
        assert np.max(np.abs(other[0] - mean)) > 1e-4


def test_R_eq05_fit_value_kernel_without_row():
    """A kernel that is not in the table trains; a strict certificate is refused."""
    def rough(X1, X2, ln_theta, exact=False):
        return J.matern32(X1, X2, ln_theta, exact)
    X, y = wave(30, d=2)
    result = fit(X, y, kernel=rough, max_evals=5)
    refused = [
        lambda: rounding.strict(result, X, y), lambda: certificates.held_out(result, X, y),
        lambda: certificates.prior_from_part(X, y, kernel=rough, max_evals=5),
        lambda: stream.begin(X, y, kernel=rough)]
    for use in refused:
        with pytest.raises(ValueError, match="rounding of rough is not enclosed"):
            use()


@crossed(
    "method, case", R.METHODS, [*R.LOSSES, *(case for case in ODD if "batch" not in case)],
    default=lambda method, case: case in R.LOSSES or method in ("kl-PAC-GP", "kl-PAC-SGP"))
def test_R_eq05_fit_value_certificate(method, case):
    """What is reported is the bound, rounded up, of the GP that predicts, with theta on the grid:
    random sizes, goals, grids, alpha, ARD, xi(N) and numbers of goals; each loss, and odd data. In
    60 digits: tests/test_exact.py.
    """
    rng = np.random.default_rng([*method.encode(), *case.encode()])
    odd = case in ODD
    X, y = table(30 if odd else int(rng.integers(10, 40)))
    asked = dict(
        method=method, loss=rng.choice(["01", "square", "exp"]) if odd else case,
        eps=rng.uniform(0.4, 1.5), delta=10 ** rng.uniform(-3, -1), alpha=rng.random())
    G = int(rng.choice([12, 1200]))
    n_eps = int(rng.choice([1, 7]))
    exact = bool(rng.integers(2))
    settings = dict(X=X, y=y, M=int(rng.integers(1, 12)), ard=bool(rng.integers(2)), **asked) | (
        ODD[case](X, y) if odd else {})
    result = fit(grid=(6.0, G), n_eps=n_eps, exact=exact, max_evals=50, **settings)
    X, y = (np.array(settings[name], float) for name in "Xy")
    got = np.array([result.risk, result.KL, result.bound, result.pinsker])
    cond = 1.0
    if "free" in method:        # dense_eq09 solves with K_MM
        cond = np.linalg.cond(dense_K_MM(result.Z, result.ln_theta))
    tolerances = (1e-6, 1e-7) if odd else (1e-9, max(1e-11, 4e-17 * cond))
    assert_just_above(
        1 + got, 1 + np.array(dense_certificate(result, X, y, G, n_eps, exact)), *tolerances)
    assert 0 <= result.risk <= result.bound <= min(1.0, result.pinsker)
    assert_close(
        result.bound,
        R.kl_inv(result.risk, (result.KL + result.penalty + result.ln_confidence) / len(y)), 1e-12)
    assert_close(result.penalty, len(result.ln_theta) * math.log(G + 1) + math.log(n_eps), 1e-13)
    if method in R.SPARSE_NLL:      # the method's, whatever is asked
        asked["alpha"], _ = R.SPARSE_NLL[method]
    assert result.N == len(y)
    assert all(getattr(result, name) == value for name, value in asked.items())
    steps = (result.ln_theta + 6) * G / 12
    at = result.optimum.x
    bound = R.METHODS[method][1]
    assert np.max(np.abs(at["ln_theta"])) <= 6
    assert np.max(np.abs(at.get("ln_noise", 0))) <= R.LN_BOX
    if odd:
        return
    assert np.max(np.abs(steps - np.round(steps))) < 1e-9
    assert result.repeats == 0
    assert np.max(np.abs(result.ln_theta - at["ln_theta"])) <= 6 / G + 1e-9
    for got, want in zip(R.predict(result, X), dense_fit(result, X, y)):
        assert_close(got, want, max(1e-9, 4e-16 * cond))
    if bound in ("kl", "sqrt"):
        (mean, var, KL), _ = R.FAMILIES[R.METHODS[method][0]].marginals(at, X, y, result.alpha)
        losses, _, _ = R.expected_losses(y, mean, var, asked["eps"], case)
        terms = dict(bound=bound, delta=asked["delta"], penalty=result.penalty, exact=exact)
        assert_close(result.optimum.f, R.pac_objective(losses, KL, **terms)[0], 1e-14)


def best_free(p, X, y):
    """ln_theta, Z and, by dense matrices, c and L_S of the free form that is (11) at the parameters
    p.
    """
    _, c, S = whitened(
        p["Z"], p["ln_theta"], *dense_eq11(X, y, p["Z"], p["ln_theta"], p["ln_noise"], 1.0))
    return dict(ln_theta=p["ln_theta"], Z=p["Z"], c=c, L_S=np.linalg.cholesky((S + S.T) / 2))


@pytest.mark.parametrize("eps", [0.3, 0.6, 1.0])
def test_R_sec4_fit_order_of_methods(eps):
    """Who minimises a bound has the smallest, up to the rounding of theta: B for kl, B_Pin for
    sqrt; full and sparse. The free form, started from the best (11), cannot end above it.
    """
    X, y = table(N=60)
    Z = R.kmeans(X, 6, np.random.default_rng(0))
    for group in (
        ("kl-PAC-GP", "sqrt-PAC-GP", "full-GP"), ("kl-PAC-SGP", "sqrt-PAC-SGP", "VFE", "FITC")):
        fits = {name: fit(X, y, name, Z=Z, eps=eps) for name in group}
        for result in fits.values():
            assert fits[group[0]].bound <= result.bound + 1e-4
            assert fits[group[1]].pinsker <= result.pinsker + 1e-4
        assert fits[group[0]].bound < max(result.bound for result in fits.values()) - 5e-4
    given = fits["kl-PAC-SGP"]
    start = best_free(dict(Z=given.Z, ln_theta=given.ln_theta, ln_noise=given.ln_noise), X, y)
    first, last = (
        fit(X, y, "free-kl-PAC-SGP", M=6, eps=eps, start=start, max_evals=n) for n in (1, 400))
    assert_close(first.bound, given.bound, 1e-12)
    assert last.bound <= given.bound + 1e-9


def elsewhere(f, blocks):
    """A map as of another process, which gets copies, and takes the blocks and gives the results in
    an order of its own.
    """
    copies = [pickle.loads(pickle.dumps((f, block))) for block in blocks]
    return [f(block) for f, block in copies[::-1]]


@pytest.mark.parametrize(
    "method, options",
    [
        ("kl-PAC-SGP", {}), ("sqrt-PAC-SGP", dict(share=0.5)), ("VFE", {}),
        ("FITC", dict(share=0.5)), ("DTC", {}), ("free-kl-PAC-SGP", {})],
)
def test_R_fit_over_same_bits(method, options, tmp_path, monkeypatch):
    """Threads, other processes, rows in files, of any slice: certificates and predictions as by
    map, to the last bit.
    """
    monkeypatch.setattr(R, "BLOCK_BYTES", 1)
    X, y = table(300)
    for name, a in (("X", X), ("y", y)):
        np.save(tmp_path / name, a)
    files = [np.load(tmp_path / f"{name}.npy", mmap_mode="r")[20:] for name in "Xy"]
    assert len(R.row_blocks(280, 4)) == 20
    assert callable(blocks.mapped_again(files[0][3:9]))
    found = []
    for rows, over in itertools.product(
        ((X[20:], y[20:]), files), (map, ThreadPoolExecutor(2).map, elsewhere)):
        result = fit(*rows, method, 4, max_evals=5, over=over, **options)
        held = certificates.held_out(result, *rows, over=over)
        predicted = R.predict(result, rows[0], sparse=blocks.blocks(over))
        found.append((result.bound, result.risk, result.KL, result.posterior, held, predicted))
    assert all(same_bytes(found[0], other) for other in found[1:])


@pytest.mark.skipif(os.name != "posix", reason="a mapped file can be removed as POSIX has it")
def test_R_mapped_again_without_file(tmp_path):
    """A map whose file does not have its values is taken as it is: changed in memory, a copy,
    without a name or a file, or with another file in its place.
    """
    X = table(30)[0]
    slices = [slice(0, 11), slice(11, 30)]
    np.save(tmp_path / "X", X)

    def opened(mode="r"):
        return np.load(tmp_path / "X.npy", mmap_mode=mode)

    changed = opened("c")
    gone = opened()
    changed *= 2
    with tempfile.TemporaryFile() as file:
        nameless = np.memmap(file, float, "w+", shape=X.shape)
        nameless[:] = X
        copies = [
            opened().copy(), pickle.loads(pickle.dumps(opened())),
            np.take(opened(), np.arange(30), 0)]
        maps = [changed, *copies, nameless, gone]
        assert all(callable(blocks.mapped_again(gone[rows])) for rows in slices)
        for other in (None, 3 * X, X[:9]):
            os.remove(tmp_path / "X.npy")
            if other is not None:
                np.save(tmp_path / "X", other)
            for a, want in zip(maps, [2 * X] + [X] * 5, strict=True):
                parts = [blocks.mapped_again(a[rows]) for rows in slices]
                assert np.array_equal(
                    np.concatenate([part() if callable(part) else part for part in parts]), want)
            np.save(tmp_path / "X", X)


@pytest.mark.parametrize(
    "over",
    [
        lambda f, blocks: [], lambda f, blocks: list(map(f, blocks))[1:],
        lambda f, blocks: 2 * list(map(f, blocks)),
        lambda f, blocks: list(map(f, [*blocks[:1], *blocks[:-1]]))],
    ids=["none", "one lost", "twice", "one lost, one twice"],
)
def test_R_over_must_be_a_map(over, monkeypatch):
    """Results that are lost or come twice are noticed."""
    monkeypatch.setattr(R, "BLOCK_BYTES", 1)
    with pytest.raises(ValueError, match="a result for each of .* items, like map"):
        fit(*table(300), "kl-PAC-SGP", 4, max_evals=2, over=over)


@pytest.mark.parametrize(
    "method, share, N",
    [("kl-PAC-SGP", {}, 1500), ("VFE", dict(share=0.5), 3000), ("free-kl-PAC-SGP", {}, 1500)])
def test_R_fit_starts_small(method, share, N, monkeypatch):
    """Above SMALL rows the search begins on a hundredth, then a tenth, each from the last optimum,
    with LAST_EVALS evaluations or LAST_ROWS rows seen from the second on, or last_evals if given;
    not where a start is given. The callback stops it at any stage; the certificate is of all rows.
    """
    monkeypatch.setattr(search, "SMALL", 100)
    monkeypatch.setattr(search, "LAST_EVALS", 4)
    monkeypatch.setattr(search, "LAST_ROWS", 900)
    searches = []
    lbfgs = R.lbfgs
    calls = []

    def searched(fun, x0, *args, **options):
        best = lbfgs(fun, x0, *args, **options)
        searches.append((x0, best))
        return best

    monkeypatch.setattr(R, "lbfgs", searched)
    run = functools.partial(fit, *table(N), method, 5, max_evals=9, **share)
    result = run(callback=lambda *a: calls.append(a))
    assert [best.n_evals for _, best in searches] == [9, 6, 4]
    assert result.optimum.n_evals == 4
    assert all(np.array_equal(best.x, x0) for (_, best), (x0, _) in zip(searches, searches[1:]))
    assert result.N == (N // 2 if "share" in share else N)
    assert same_bytes(result.posterior, run().posterior)
    for stage in (1, 2, 3):
        searches.clear()
        stopped = run(callback=lambda n, f: len(searches) == stage - 1)
        assert stopped.optimum.message == R.STOPPED
        assert len(searches) == stage
        assert stopped.N == result.N
    searches.clear()
    run(last_evals=8)
    assert [best.n_evals for _, best in searches] == [9, 8, 8]
    searches.clear()
    assert run(start={}).optimum.n_evals == 9
    assert len(searches) == 1


@pytest.mark.parametrize(
    "method, likelihood",
    [("kl-PAC-GP", "full-GP"), ("sqrt-PAC-SGP", "VFE"), ("free-kl-PAC-SGP", "VFE")])
def test_R_fit_leaves_the_plateau(method, likelihood, monkeypatch):
    """Little noise and a small eps: B is 1 and flat at the start. The search starts again from the
    optimum of the marginal likelihood, here by hand; whoever stops the first search wants no other.
    """
    rng = np.random.default_rng(0)
    eps = 1e-3 if likelihood == "full-GP" else 0.02
    free = "free" in method
    X = rng.uniform(-3, 3, (150, 1))
    Z = np.linspace(-3, 3, 12)[:, None]
    y = np.sin(3 * X[:, 0]) + eps / 5 * rng.standard_normal(150)

    def run(method, **options):
        return fit(X, y, method, Z=Z, eps=eps, **{"max_evals": 150, **options})

    at = run(likelihood).optimum.x
    calls = []
    monkeypatch.setattr(
        search, "PLATEAU", 0.9 if free else search.PLATEAU)  # the free form gets to .94 without
    found = run(method)
    by_hand = run(method, start=best_free(at, X, y) if free else at)
    first = run(method, max_evals=1)
    assert found.bound < 0.9 < 0.999 < first.bound
    assert_close(
        found.optimum.history[0], by_hand.optimum.history[0], 1e-5)  # dense inverses lose digits
    stopped = run(method, callback=lambda *a: calls.append(a) or len(calls) == 1)
    assert len(calls) == 1
    assert stopped.optimum.message == R.STOPPED


@pytest.mark.parametrize("d, waves, M, start", [(1, 16, 30, None), (2, 8, 12, {})])
def test_R_fit_leaves_a_constant(d, waves, M, start, monkeypatch):
    """Training that ends at a constant, on a tenth of the rows or on all, starts again from the
    likelihood's optimum.
    """
    monkeypatch.setattr(search, "SMALL", 100)
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (600, d))
    y = 1.4 * np.sin(waves * X[:, 0]) + 0.1 * rng.standard_normal(600)
    found = fit(X, y, "kl-PAC-SGP", M, start=start, max_evals=60)
    assert found.bound < np.mean(np.abs(y) > found.eps)
    assert found.KL > 10


def test_R_fit_keeps_the_better_search(monkeypatch):
    """Started at the optimum, a second search that ends above it changes nothing."""
    X, y = table()
    best = fit(X, y)
    monkeypatch.setattr(search, "PLATEAU", -1.0)
    again, other = (fit(X, y, start=start, max_evals=2) for start in (best.optimum.x, None))
    assert again.bound <= best.bound + 1e-9
    assert other.bound > best.bound + 1e-3


@pytest.mark.parametrize(
    "change, options, message",
    [
        (
            None, dict(max_evals=2),
            "stopped after 2 evaluations; the certificate of what was found is valid"),
        ("row", {}, "^1 rows of .* repeat: the theorem assumes independent rows"),
        ("row", dict(method="kl-PAC-SGP", M=5), "independent rows"),
        (None, dict(eps=1e-9), r"B > 0.999 certifies next to nothing"),
        ("input", dict(method="kl-PAC-SGP", M=5), None),
        (None, {}, None),
    ],
)
def test_R_fit_warnings(change, options, message):
    """A warning where training stopped early, where rows repeat (the same input twice is fine),
    where B is vacuous; else none. The certificate is there all the same.
    """
    X, y = table()
    if change:
        X[7], y[7] = X[3], y[3] + (change == "input")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = R.fit(X, y, **options)
    texts = [str(w.message) for w in caught]
    assert result.bound <= 1
    assert result.repeats == (change == "row")
    assert any(re.search(message, text) for text in texts) if message else not texts, texts


# --- R and J: stopping, seeds --------------------------------------------------------------------

TRAININGS = {  # name -> run(**options) -> what has history, message and parameters
    "lbfgs": lambda **o: R.lbfgs(rosenbrock, [-1.2, 1.0], **o),
    "adam": lambda **o: R.adam(rosenbrock, [-1.2, 1.0], 50, **o),
    **{
        f"R.fit, {name}": lambda name=name, **o: R.fit(*table(), name, 3, **o).optimum
        for name in ("kl-PAC-GP", "VFE")
    },
    "R.fit, batch": lambda **o: R.fit(
        *table(), "free-kl-PAC-SGP", 3, batch=20, max_evals=30, **o).optimum,
    **{
        f"J.fit, {name}": lambda name=name, **o: J.fit(
            *wave(40, d=2), name, 3, batch=15, epochs=9, **o)
        for name in ("SVGP", "PPGPR-MFD", "OD-SVGP", "exact", "FITC")
    },
    "J.fit, patience": lambda **o: J.fit(
        *table(), "SVGP", 3, X_val=np.ones((2, 2)), y_val=[0, 1], patience=9, epochs=9, **o),
}


@pytest.mark.parametrize("name", TRAININGS)
@pytest.mark.filterwarnings("ignore")
def test_RJ_callback_value(name):
    """It is told the count so far and each value of the history, but for that of L-BFGS's start;
    where it returns true, training stops, says so, and what was found is returned.
    """
    told = []
    calls = []
    whole = TRAININGS[name](callback=lambda *a: told.append(a))
    stopped = TRAININGS[name](callback=lambda n, f: calls.append(n) or len(calls) == 3)
    counts, values = zip(*told)
    start = len(whole.history) - len(told)
    assert list(values) == whole.history[start:]
    assert start in (0, 1)
    assert counts[0] < 9
    assert list(counts) == sorted(set(counts))
    assert counts[-1] == getattr(whole, "n_evals", counts[-1])
    assert len(calls) == 3
    assert stopped.message == R.STOPPED != whole.message
    assert stopped.history == whole.history[: 3 + start]
    assert np.all(np.isfinite(stopped.history))


@pytest.mark.parametrize("name", [name for name in TRAININGS if "fit" in name])
@pytest.mark.filterwarnings("ignore")
def test_RJ_fit_deterministic(name):
    """The same seed gives the same bits, another seed another answer; NumPy's global generator is
    left alone.
    """
    state = np.random.get_state()[1].copy()
    one, two, other = (
        getattr(run, "params", None) or run.x
        for run in (TRAININGS[name](seed=seed) for seed in (3, 3, 4))
    )
    assert np.array_equal(state, np.random.get_state()[1])
    assert same(one, two)
    assert same(two, other) == any(given in name for given in ("kl-PAC-GP", "exact"))


# --- J Algorithm 1, App. C: training -------------------------------------------------------------

SHAPES = {
    "delta": {"Z", "m"}, "MF": {"Z", "m", "L_S"}, "Chol": {"Z", "m", "L_S"},
    "MFD": {"Z", "m", "L_S", "Z_mean"}, "OD": {"Z", "m", "L_S", "Z_mean", "a"}, "Z only": {"Z"},
    "no Z": set()}


@pytest.mark.parametrize("ard", [True, False])
@pytest.mark.parametrize("kernel", J.KERNELS.values())
@pytest.mark.parametrize("method", J.METHODS)
def test_J_appC_initial_parameters_value(method, kernel, ard):
    """Names and shapes of each variant, all scales softplus(0); the start predicts the prior
    (delta: what Z leaves open).
    """
    X, _ = wave(30, d=2)
    variant = J.METHODS[method][1]
    start = math.log(2)
    p = J.initial_parameters(X, method, 5, kernel, ard, None, np.random.default_rng(1))
    given = J.initial_parameters(X, method, 99, kernel, ard, X[:3] + 1)
    assert list(p)[:2] == ["ln_theta", "ln_noise"]
    assert set(p) == {"ln_theta", "ln_noise"} | SHAPES[variant] == set(given)
    l2 = [start**2] * (2 if ard or kernel is J.periodic else 1)
    period = [start] * (2 if kernel is J.periodic else 0)
    assert_close(np.exp([*p["ln_theta"], p["ln_noise"]]), [*l2, *period, start, start], 1e-14)
    for q, M, Z in ((p, 5, R.kmeans(X, 5, np.random.default_rng(1))), (given, 3, X[:3] + 1)):
        S = np.eye(M) if variant in ("Chol", "OD") else np.full(M, 0.01)
        want = dict(Z=Z, m=np.zeros(M), a=np.zeros(M), L_S=S)
        assert all(np.array_equal(q.get(name, value), value) for name, value in want.items())
        if "Z_mean" in q:
            assert q["Z_mean"].shape == (M, 2)
            assert not np.array_equal(q["Z"], q["Z_mean"])
    if "m" in p:
        (mu, ktilde, svar, reg), _ = J.marginals(p, X, kernel)
        spread = 0.01**2 if variant in ("MF", "MFD") else 1.0
        assert np.all(mu == 0)
        assert abs(reg - 5 * (spread - math.log(spread) - 1) / 2) < 1e-12
        assert np.max(np.abs(svar / spread - (variant != "delta") * (start - ktilde))) < 1e-6


def test_J_appC_step_size_value():
    """The paper's drops at 100 and 150 of 200 epochs, and the smallest numbers of epochs; drops
    where they are wished; none.
    """
    for epochs, half, quarter in ((200, 100, 50), (8, 4, 2), (4, 2, 1)):
        want = [0.02] * half + [0.002] * quarter + [0.0002] * quarter
        assert_close([J.step_size(0.02, epoch, epochs) for epoch in range(epochs)], want, 1e-14)
    want = [1.0] * 20 + [0.1] * 130 + [0.01] * 150 + [0.001] * 100
    assert_close(
        [J.step_size(1.0, epoch, 400, np.array([20, 150, 300]) / 400) for epoch in range(400)],
        want, 1e-14)
    assert [J.step_size(0.02, epoch, 3, ()) for epoch in range(3)] == [0.02] * 3


@pytest.mark.parametrize("method", ["PPGPR-Chol", "FITC", "exact"])
def test_J_alg1_fit_limit_min_noise(method):
    """sigma_obs^2 stays above min_noise, in mini-batches and in L-BFGS."""
    X, _ = wave(30)
    fits = (
        J.fit(X, np.sin(X[:, 0]), method, M=6, epochs=150, lr=0.1, min_noise=low)
        for low in (1e-2, 1e-4)
    )
    high, low = (math.exp(f.params["ln_noise"]) for f in fits)
    assert abs(high / 1e-2 - 1) < 1e-12
    assert 1e-4 * (1 - 1e-12) <= low < 9e-3


@pytest.mark.parametrize(
    "patience, best, last", [(1, 2, 3), (3, 2, 5), (4, 6, 7), (99, 6, 7), (None, 7, 7)])
def test_J_alg1_fit_early_stopping(monkeypatch, patience, best, last):
    """The parameters with the best validation score, the first of equals, after `patience` epochs
    without a better one.
    """
    X, y = wave(40, d=2)
    val = wave(9, 1, d=2)
    told = []
    scores = iter([5.0, 3.0, 4.0, 3.0, 3.5, 1.0, 2.0])
    settings = dict(
        X=X, y=y, method="SVGP", beta_reg=1.0, gamma=1.03, kernel=R.se_kernel, batch=15, epochs=7,
        lr=0.1, min_noise=1e-4, milestones=J.MILESTONES)
    path = list(
        J.algorithm1(
            J.initial_parameters(X, "SVGP", 3, Z=X[:3]), types.SimpleNamespace(**settings),
            np.random.default_rng(5))
    )

    def run(stop=0):
        return J.fit(
            X, y, "SVGP", Z=X[:3], kernel="SE", batch=15, epochs=7, lr=0.1, X_val=val[0],
            y_val=val[1], patience=patience, seed=5,
            callback=lambda n, f: told.append((n, f)) or n == stop)

    monkeypatch.setattr(
        J, "held_out_nll", lambda p, *rows: np.array_equal(rows[0], val[0]) and next(scores, NAN))
    f = run()
    assert same(f.params, path[best - 1][0])
    assert f.history == [value for _, value in path[:last]]
    assert told == list(enumerate(f.history, 1))
    assert f.message == (
        f"stopped after {last} epochs, best after {best}" if last < 7 else "7 epochs")
    if patience in (99, None):  # the callback, too, leaves the best
        scores = iter([5.0, 3.0, 4.0, 3.0, 3.5])
        assert same((f := run(stop=5)).params, path[1 if patience else 4][0])
        assert f.message == R.STOPPED
    for score in (INF, NAN) if patience else ():
        scores = iter([1.0, score])
        with pytest.raises(
            ValueError,
            match=f"validation NLL is {score} after epoch 2: scale X and y, or lower lr"):
            run()


@pytest.mark.parametrize("method", J.METHODS)
def test_J_alg1_fit_value(method):
    """The objective falls well; the fields are what was asked for; the validation score is that of
    the final parameters, and validation rows train nothing.
    """
    X, y, X_val, y_val, f = small_fit(method)
    assert (f.method, f.kernel, f.beta_reg, f.gamma) == (method, J.matern52, 0.3, 1.03)
    assert np.mean(f.history[-3:]) < np.mean(f.history[:3]) - 0.05
    assert len(f.history) == 40 or method in ("exact", "FITC")
    mean, var = J.predict_y(f, X_val)
    assert_close(
        f.validation, np.mean((y_val - mean) ** 2 / (2 * var) + np.log(2 * math.pi * var) / 2),
        1e-10)
    without = J.fit(X, y, method, M=6, beta_reg=0.3, batch=15, epochs=40, lr=0.02)
    assert same(without.params, f.params)
    assert math.isnan(without.validation)


@pytest.mark.parametrize("method, forward", [("exact", J.exact_nll), ("FITC", J.fitc_nll)])
def test_J_eq02_eq13_fit_minimum(method, forward):
    """L-BFGS ends where the differences of the objective on all rows are nearly zero, and far below
    the start.
    """
    X, y = wave(60)
    f = J.fit(X, y, method, M=5)
    start = J.initial_parameters(X, method, 5, rng=np.random.default_rng(0))

    def value(x):
        return forward(J.unpack(x, start), X, y)[0]

    def slope(p):
        return np.max(np.abs(central_difference(value, J.pack(p), 1e-4)))

    assert slope(f.params) < 1e-3 < 1e-2 < slope(start)
    assert "evaluations" not in f.message
    assert value(J.pack(f.params)) == f.history[-1] < value(J.pack(start)) - 0.05


@pytest.mark.parametrize("method", J.METHODS)
def test_J_appC_choose_value(method, monkeypatch):
    """Each of the paper's values is tried once, with the other settings as given; the fit with the
    best validation score is returned.
    """
    X, y, X_val, y_val, _ = small_fit("SVGP")
    values = {
        "P": (0.01, 0.05, 0.2, 1.0), "g": (1.01, 1.03, 1.05, 1.07), "M": (1.0,), "F": (1.0,),
        "e": (1.0,)}.get(method[0], (0.1, 0.3, 0.5, 1.0))
    name = "gamma" if method == "gamma-robust" else "beta_reg"
    fits = []
    J_fit = J.fit

    def fit(*args, **settings):
        found = J_fit(*args, **settings)
        fits.append((settings, found))
        return found

    monkeypatch.setattr(J, "fit", fit)
    settings = dict(X_val=X_val, y_val=y_val, M=4, epochs=5, lr=0.05)
    best = J.choose(X, y, method=method, **settings)
    assert [tried for tried, _ in fits] == [{**settings, name: value} for value in values]
    assert best is min((found for _, found in fits), key=lambda f: f.validation)
    assert best.method == method
    assert len({found.validation for _, found in fits}) == len(values)


def test_J_sec33_fit_noise_depends_on_x():
    """J Sec. 3.3, 5: where the noise depends on x, PPGPR has the better NLL and calls less variance
    noise. Three seeds.
    """
    scores = np.empty((3, 3, 2))
    for seed in range(3):
        X, y = wave(200, seed)
        X_new, y_new = wave(1000, 100 + seed)
        for i, (method, beta) in enumerate(
            (("SVGP", 1.0), ("PPGPR-Chol", 0.05), ("PPGPR-MFD", 0.05))):
            f = J.fit(X, y, method, M=15, beta_reg=beta, batch=50, epochs=60, lr=0.03, seed=seed)
            mean, var = J.predict_y(f, X_new)
            _, var_f = J.predict(f, X_new)
            scores[seed, i] = J.nll(y_new, mean, var), J.noise_fraction(
                var_f, np.exp(f.params["ln_noise"]))
    assert np.all(scores[:, 1:] < scores[:, :1])
    (nll, noise), *ours = scores.mean(0)
    assert all(a < nll - 0.05 and b < 0.6 * noise for a, b in ours), scores
