"""The optimisers: L-BFGS in a box, Adam in every driver, k-means.

Oracles: the known minimum; every set of active bounds; Adam in plain Python.
"""

import itertools
import math
import types

import numpy as np
import pytest

import online as L
import pacgp_ref as R
import predictive as J
from tests.oracles import assert_close, INF, NAN
from tests.problems import fit, pac_objective, rosenbrock, rough_parameters, sine, wave


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
    X, y = sine()
    seed = int(rng.integers(99))
    batch = int(rng.integers(10, 70))
    n = int(rng.integers(5, 13))
    bound = ("kl", "sqrt")[seed % 2]
    steps = []
    options = dict(method=f"free-{bound}-PAC-SGP", Z=X[:4], grid=(0.2, 10), delta=0.2)
    p = fit(X, y, max_evals=1, start={}, **options).optimum.x
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
    """L.descend: a rate for each parameter, theta within e^-16 to e^16, the noise above 1e-4."""
    p = dict(
        ln_theta=np.array([15.9, -15.9, 0.0]), ln_noise=np.array(math.log(1e-4) + 0.05),
        Z=np.zeros((2, 1)))
    gradients = [*(rng.standard_normal((6, 6)) + [-1, 1, 0, 1, 0, 0])] * 2
    left = iter(gradients)

    def fun(x):
        return 0.0, next(left)

    found, _ = L.descend(lambda p: (0.0, lambda d_value: R.unpack(fun(p)[1], p)), p, None, 6)
    rates = [spread(p, ln_theta=0.1, ln_noise=0.1, Z=0.01)] * 6
    low = -spread(p, ln_theta=16, ln_noise=-math.log(1e-4))
    high = spread(p, ln_theta=16, ln_noise=16)
    return in_order(p, found), [0.0], fun, in_order(p, p), rates, low, high


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
    for seed in range(10):
        Z = R.kmeans(np.array([[0.0], [1.0], [10.0]]), 2, np.random.default_rng(seed))
        assert np.allclose(np.sort(Z[:, 0]), [0.5, 10.0])
    assert np.array_equal(R.kmeans(np.ones((8, 2)), 3, np.random.default_rng(0)), np.ones((3, 2)))
    rng = np.random.default_rng(0)
    middles = np.array([[0, 0], [0, 9], [9, 0]])
    X = np.concatenate([m + 0.1 * rng.standard_normal((n, 2)) for m, n in zip(middles, (5, 4, 7))])
    found = [R.kmeans(X, 3, np.random.default_rng(seed)) for seed in range(10)]
    assert any(all(np.abs(Z - m).max(1).min() < 0.3 for m in middles) for Z in found)
