"""Training in R and J, and the search of beyond/: optimisers, starts, stops, seeds, certificates.

Oracles: known minima, Adam in plain Python, brute force, and for what is trained dense matrices
with quadrature of the loss.
"""

import itertools
import math
import os
import pickle
import re
import types
import warnings
from functools import partial
from unittest.mock import Mock

import numpy as np
from numpy.random import default_rng
import pytest

import online as L
import pacgp_ref as R
import predictive as J
from beyond import blocks, certificates, kernels, search
from own_data import certify
from tests.dense import dense_certificate, dense_fit, dense_K_MM, ln_pdf
from tests.oracles import (
    assert_all_close, assert_close, assert_just_above, each, INF, NAN, refuses, same_bytes)
from tests.problems import fit, J_objective, kind_of, ODD, odd_data, sine, wave

pytestmark = pytest.mark.filterwarnings("ignore::pacgp_ref.FitWarning")


# --- L-BFGS --------------------------------------------------------------------------------------


def rosenbrock(x):
    a = x[1:] - x[:-1] ** 2
    g = np.append(-400 * x[:-1] * a - 2 * (1 - x[:-1]), 0.0)
    g[1:] += 200 * a
    return np.sum(100 * a**2 + (1 - x[:-1]) ** 2), g


def beyond_zero(x, kind):
    """x_0 - ln x_0 + x_1^2, and beyond x_0 = 0 nothing but `kind`: the first step goes there."""
    if x[0] > 0:
        return x[0] - math.log(x[0]) + x[1] ** 2, np.array([1 - 1 / x[0], 2 * x[1]])
    if kind is ValueError:
        raise ValueError("not positive definite")
    return kind, np.full(2, NAN)


def nearly_level(x):
    f = math.hypot(x[0], 1e-3)
    return f, x / f


VALLEY = np.tile([-1.2, 1.0], 5)
MINIMA = [  # fun, x0, upper, the minimiser, most evaluations
    (rosenbrock, VALLEY, INF, np.ones(10), 150),
    (rosenbrock, VALLEY[:2], [0.5, 2.0], [0.5, 0.25], 60),
    (nearly_level, [0.50001], INF, [0.0], 60),
    *((partial(beyond_zero, kind=kind), [30.0, 20.0], INF, [1.0, 0.0], 30)
      for kind in (INF, NAN, ValueError))]


@each("fun, x0, upper, want, most", MINIMA)
def test_R_lbfgs_value(fun, x0, upper, want, most):
    """The minimum is found, by steps that fulfil both Wolfe conditions where no bound cuts them
    off.
    """
    seen = []
    path = [np.array(x0)]
    best = R.lbfgs(lambda x: seen.append(x) or fun(x), x0, -INF, upper, ftol=0.0,
                   callback=lambda n, f: path.append(seen[n - 1]))
    assert best.message == "gradient below 1e-06"
    assert best.n_evals <= most
    assert np.max(np.abs(best.x - want)) < 1e-5
    assert np.all(np.concatenate(seen) <= np.resize(upper, len(x0) * len(seen)))
    assert [fun(x)[0] for x in path] == best.history
    for x0, x1 in itertools.pairwise(path if upper is INF else ()):
        (f0, g0), (f1, g1) = fun(x0), fun(x1)
        slope = g0 @ (x1 - x0)
        assert f1 <= f0 + 1e-4 * slope * (1 - 1e-9)
        assert g1 @ (x1 - x0) >= 0.9 * slope * (1 + 1e-9)


@each("seed", range(15))
def test_R_lbfgs_value_random_boxes(seed):
    """Of a random quadratic only free coordinates have no slope, at a bound it leads outwards; some
    bounds are infinite; a start outside is put inside.
    """
    rng = default_rng(seed)
    n = 1 + seed % 5
    A = rng.standard_normal((n, n))
    A = A @ A.T + 0.1 * np.eye(n)
    b = 3 * rng.standard_normal(n)
    ends = [np.where(rng.random(n) < 0.7, sign * rng.random(n), sign * INF) for sign in (-1, 1)]
    x = R.lbfgs(lambda x: (x @ A @ x / 2 - b @ x, A @ x - b), np.full(n, 7.0), *ends, ftol=0.0).x
    assert np.max(np.abs(x - np.clip(x - (A @ x - b), *ends))) < 1e-5


def alone(x):
    """0 where x_0 = 1, and INF elsewhere, which the gradient does not say."""
    return (0.0 if x[0] == 1 else INF), x


@each("fun, x0, options, message", [
    (rosenbrock, [1.0, 1.0], {}, "gradient below 1e-06"),
    (rosenbrock, VALLEY, dict(max_evals=12), "stopped after 12 evaluations"),
    (rosenbrock, VALLEY, dict(gtol=0.0, ftol=1e-3), "decrease below 0.001 max(|f|, 1)"),
    (alone, [1.0], {}, "no decrease along the gradient"),
    (alone, [1.0], dict(max_evals=3), "stopped after 3 evaluations"),
    (lambda x: (x @ x, -2 * x), [3.0, 1.0], dict(ftol=0.0), "no decrease along the gradient"),
    (lambda x: (x @ x, NAN * x), [3.0, 1.0], {}, "no decrease along the gradient"),
    (lambda x: (rosenbrock(x)[0] + 1.0, rosenbrock(x)[1]), VALLEY, dict(gtol=0.0, ftol=0.0),
     "decrease below 0 max(|f|, 1)")])
def test_R_lbfgs_stops(fun, x0, options, message):
    """A gradient of the wrong sign is told from a minimum; rounding of f is none."""
    best = R.lbfgs(fun, x0, **options)
    assert (best.message, best.converged) == (message, "below" in message)


@each("minimise", [
    R.minimum, lambda *args: R.adam(*args[:2], [0.1] * 50, args[2])])
def test_R_optimisers_own_gradient(minimise):
    """An objective of dicts may return the same arrays each time, others beside them and in
    another order; bounds that cross are refused; vectors give the same."""
    buffer = np.zeros(3)
    start = dict(b=np.array(VALLEY[0]), a=np.array(VALLEY[1:2]))

    def fun(p, form=np.array):
        buffer[0], buffer[1:] = rosenbrock(R.pack(p))
        out = form(buffer)
        return out[0, ...], dict(more=1.0, a=out[2:], b=out[1, ...])
    box = dict(a=(-INF, 0.5), no=(3.0, 4.0))
    ours, want = (minimise(partial(fun, form=form), start, box)
                  for form in (np.asarray, np.array))
    assert same_bytes(ours, want)
    assert [np.shape(v) for v in ours.x.values()] == [(), (1,)] and ours.x["a"] <= 0.5
    if minimise is R.minimum:
        assert same_bytes(R.pack(ours.x), R.lbfgs(rosenbrock, VALLEY[:2], upper=[INF, 0.5]).x)
    with refuses("lower"):
        minimise(fun, start, dict(b=(1.0, 0.0)))


def test_R_lbfgs_limit_no_descent(monkeypatch):
    """Where the quasi-Newton direction leads uphill, the gradient is followed instead."""
    monkeypatch.setattr(R, "_lbfgs_direction", lambda g, pairs: g if pairs else -g)
    assert R.lbfgs(lambda x: (x @ x, 2 * x), [3.0, 4.0]).f < 1e-6


@each("at, want", [(0.4, 0.4), (-3.0, 0.1), (0.97, 0.9)])
def test_R_lbfgs_cubic_minimum_value(at, want, a=2.0, b=5.0):
    """The minimum of a cubic that has it at the share `at` of the way from a to b; at least a tenth
    away from both ends; the middle where there is no cubic.
    """
    u = np.array([a, b]) - a - at * (b - a)
    (f_a, f_b), (g_a, g_b) = u**2 + 0.01 * u**3, 2 * u + 0.03 * u**2
    assert_close(R.cubic_minimum(a, f_a, g_a, b, f_b, g_b), a + want * (b - a), 1e-9)
    assert R.cubic_minimum(a, 0.0, NAN, b, 0.0, 1.0) == (a + b) / 2


# --- Adam: the steps, and what fit, algorithm1 and descend ask of it ------------------------------


def kingma_ba(x, gradients, rates, low, high):
    """x after Kingma & Ba 2015, Algorithm 1, in a box, one number in plain Python."""
    m = v = 0.0
    for t, (g, rate) in enumerate(zip(gradients, rates), 1):
        m = 0.9 * m + (1 - 0.9) * g
        v = 0.999 * v + (1 - 0.999) * g * g
        x -= rate * (m / (1 - 0.9**t)) / (math.sqrt(v / (1 - 0.999**t)) + 1e-8)
        x = min(max(x, low), high)
    return x


def test_RJL_adam_value():
    """The printed algorithm for each number, at rates of its own, in a box; in two parts as in one.
    """
    gradients = default_rng(0).standard_normal((40, 3)) + [-1, 1, 0]
    rates = np.geomspace(0.1, 0.01, 40)[:, None] * [1, 2, 3]
    left = enumerate(gradients)

    def fun(p):
        i, g = next(left)
        return i, dict(a=g[:2], b=g[2])
    start = dict(a=np.array([-0.3, 0.2]), b=np.array(1.0))
    box = dict(a=(-0.4, 0.5))
    first = R.adam(fun, start, rates[:15], box)
    last = R.adam(fun, first.x, rates[15:], box, first.state)
    ends = (-0.4, 0.5), (-0.4, 0.5), (-INF, INF)
    want = [kingma_ba(*of_one, *low_high) for *of_one, low_high in zip(
        R.pack(start), gradients.T, rates.T, ends)]
    assert_close(R.pack(last.x), want, 1e-12)
    assert first.history + last.history == [*range(40)]


@each("bound", R.BOUNDS)
def test_R_fit_batches(bound, monkeypatch, N=60, batch=25, seed=3):
    """Adam on the bound of N rows at a batch without repeats; theta within the grid's range, the
    rate a tenth in the last quarter.
    """
    adam = Mock(wraps=R.adam)
    monkeypatch.setattr(R, "adam", adam)
    X, y = sine(N)
    fit(X, y, f"free-{bound}-PAC-SGP", Z=X[:4], grid=(0.2, 10), delta=0.2, batch=batch,
        max_evals=9, lr=0.1, seed=seed)
    objective, p, rates, box = adam.call_args.args
    assert_close(rates, [0.1] * 6 + [0.01] * 3, 1e-15)
    assert box == dict(ln_theta=(-0.2, 0.2), ln_noise=(-16, 16))
    rows = default_rng(seed)
    *_, last = (rows.choice(N, batch, replace=False) for _ in range(10))
    (mean, var, KL), back = R.sparse_free(X[last], **p)
    losses, d_mean, d_var = R.expected_losses(y[last], mean, var, 0.6)
    B, (d_loss, d_KL) = (f(np.mean(losses), KL, N, delta=0.2, penalty=2 * math.log(11))
                         for f in R.BOUNDS[bound])
    want = back(d_loss / batch * d_mean, d_loss / batch * d_var, d_KL)
    value, grads = objective(p)
    assert_close(value, B, 1e-12)
    assert_all_close((grads[name] for name in want), want.values(), 1e-9)


@each("N, batch, n", [(30, 7, 5), (11, 40, 1), (12, 1, 12)])
def test_J_alg1_epochs(N, batch, n, monkeypatch):
    """An epoch visits each row once, in another order, in batches of nearly one size; Adam goes on;
    the history holds the mean of the epoch's values. The rate falls to a tenth at each milestone.
    """
    adam = Mock(wraps=J.adam)
    monkeypatch.setattr(J, "adam", adam)
    visits = []

    def at_rows(p, rows):
        visits.append(rows)
        return len(visits), dict(a=p["a"] - 1)
    box = dict(a=(-0.1, 0.1))
    found = list(J.algorithm1(
        dict(a=np.zeros(2)), at_rows, N, batch, [0.3, 0.2], box, default_rng(0)))
    assert [value for _, value in found] == [(n + 1) / 2, (3 * n + 1) / 2]
    epochs = [np.concatenate(visits[i:i + n]) for i in (0, n)]
    assert same_bytes([*np.sort(epochs)], [np.arange(N)] * 2) and np.any(np.diff(epochs, axis=0))
    assert np.ptp([*map(len, visits)]) <= 1
    (_, _, *first), (_, start, *second) = (call.args for call in adam.call_args_list)
    assert first == [[0.3] * n, box, None] and second[:2] == [[0.2] * n, box]
    assert same_bytes(start, found[0][0]) and second[2][2] == n             # the count of steps
    for milestones, falls in (
            (J.MILESTONES, (0, 0, 1, 2)), ((), (0, 0, 0, 0)), ((0.2,), (0, 1, 1, 1))):
        assert_close([J.step_size(3.0, i, 4, milestones) for i in range(4)],
                     3 / 10.0 ** np.array(falls), 1e-15)


def test_L_sec51_descend_limit():
    """theta stays within e^-16 to e^16, the noise above 1e-4."""
    p = dict(ln_theta=np.array([15.9, -15.9]), ln_noise=np.array(-9.2))
    outwards = dict(ln_theta=np.array([-1.0, 1.0]), ln_noise=np.array(1.0))
    found, _ = L.descend(lambda p: (0.0, lambda d_value: outwards), p, None, 6)
    assert_all_close(found.values(), ([16, -16], math.log(1e-4)), 1e-15)


# --- k-means, and where a fit starts --------------------------------------------------------------


@each("N, M, d", [(1, 1, 1), (40, 1, 3), (3000, 60, 2), (5, 30, 2)])
def test_R_kmeans_value(N, M, d):
    """Each centre is the mean of the rows that it is nearest to; where M >= N all rows are centres.
    Also far from the origin.
    """
    X = np.round(default_rng(0).standard_normal((N, d)) * 2**16) / 2**16
    Z = R.kmeans(X + 2.0**30, M, default_rng(1), 300) - 2.0**30
    nearest = ((X[:, None] - Z) ** 2).sum(2).argmin(1)
    assert np.allclose(Z[nearest], [X[nearest == j].mean(0) for j in nearest], rtol=0, atol=1e-5)
    assert (len(Z), len({*nearest})) == (M, min(M, N))


@each("family, names", [
    ("full", "ln_theta ln_noise"), ("sparse", "ln_theta ln_noise Z"), ("free", "ln_theta Z m L_S")])
def test_R_sec31_initial_parameters_value(family, names):
    """l^2 = d, sigma_s^2 = sigma_n^2 = 1, Z from k-means, and q at (11) with alpha = 1; the keys
    say what Q is.
    """
    X, y = sine(20)
    theta = np.log([2.0, 2.0, 1.0])
    Z = R.kmeans(X, 4, default_rng(3))
    q = R.sparse_posterior(X, y, Z, theta, 0.0)
    want = dict(ln_theta=theta, ln_noise=0, Z=Z, m=q.m, L_S=np.linalg.cholesky(q.S))
    p = R.start_of_family(X, y, family, 4, R.se_start(2, True), None, default_rng(3))
    assert list(p) == names.split()
    assert all(np.allclose(p[name], want[name], rtol=0, atol=1e-12) for name in p)


@each("kernel, ard, l2, periods", [
    (J.matern52, True, 2, 0), (J.matern32, False, 1, 0), (J.periodic, False, 2, 2)])
@each("method", J.METHODS)
def test_J_appC_initial_parameters_value(method, kernel, ard, l2, periods):
    """All scales are softplus(0); q(u') is the prior, or narrow."""
    X, _ = wave(30, d=2)
    ln = math.log(math.log(2))
    given, Z = (None, R.kmeans(X, 5, default_rng(0))) if ard else (X[:3], X[:3])
    p = J.initial_parameters(X, method, 5, kernel, ard, given)
    narrow = method in ("PPGPR-MF", "PPGPR-MFD")
    zeros = np.zeros(len(Z))
    want = dict(ln_theta=[2 * ln] * l2 + [ln] * (periods + 1), ln_noise=ln, Z=Z, m=zeros, a=zeros,
                L_S=zeros + 0.01 if narrow else np.eye(len(Z)), Z_mean=p.get("Z_mean"))
    assert all(np.allclose(p[name], want[name], rtol=1e-14, atol=0) for name in p)
    assert not np.array_equal(want["Z_mean"], Z)


@each("period, column", [(0.7, 0), (7.0, 1)])
def test_J_sec21_fit_value_period(period, column):
    """The wave is found, whatever its period, in either of two columns: gradients alone miss it."""
    rng = default_rng(3)
    X = rng.uniform(-1.7, 1.7, (80, 2))
    f = np.sin(2 * np.pi * X[:, column] / period * 5.8)
    found = J.fit(X, f + 0.3 * rng.standard_normal(80), "exact", kernel="periodic", epochs=30)
    assert J.rmse(f, J.predict(found, X)[0]) < 0.3


# --- R and J: stopping, seeds --------------------------------------------------------------------

TRAININGS = {  # name -> run(**options) -> what has history and message; values not told
    "R.fit": (lambda **o: R.fit(*sine(), "VFE", 3, **o).optimum, 1),
    "R.fit, batch": (lambda **o: R.fit(
        *sine(), "free-kl-PAC-SGP", 3, batch=9, max_evals=9, **o).optimum, 0),
    "J.fit": (lambda **o: J.fit(*wave(40, d=2), "OD-SVGP", 3, batch=15, epochs=9, **o), 0),
    "J.fit, exact": (lambda **o: J.fit(*wave(40, d=2), "exact", epochs=9, **o), 1)}


@each("name", TRAININGS)
def test_RJ_callback_and_seed(name):
    """The callback is told the count so far and each value of the history, except that of L-BFGS's
    start; where it returns true, training stops and says so. The same seed gives the same bits,
    another seed another answer; NumPy's global generator is left alone.
    """
    run, start = TRAININGS[name]
    state = np.random.get_state()[1].copy()
    found = []
    for seed in (3, 3, 4):
        told = []
        found.append(run(callback=lambda *a: told.append(a), seed=seed))
        assert [f for _, f in told] == found[-1].history[start:]
        assert told[-1][0] == getattr(found[-1], "n_evals", told[-1][0])
    whole, again, other = (of_run.history for of_run in found)
    assert (whole == again, whole == other) == (True, name == "J.fit, exact")
    stopped = run(callback=lambda n, f: f == whole[2], seed=3)
    assert stopped.message == R.STOPPED != found[0].message
    assert stopped.history == whole[:3]
    assert np.array_equal(state, np.random.get_state()[1])


@each("patience, best, last", [(1, 2, 3), (3, 2, 5), (4, 6, 7), (None, 7, 7)])
def test_J_alg1_fit_early_stopping(patience, best, last):
    """The parameters with the best validation score, the first of equals, after `patience` epochs
    without a better one.
    """
    scores = [5.0, 3.0, 4.0, 3.0, 3.5, 1.0, 2.0]
    epochs = ((epoch, -epoch) for epoch in range(7))
    p, history, message = J.train(epochs, scores.__getitem__, patience)
    assert (p, history) == (best - 1, [-epoch for epoch in range(last)])
    stopped = f"stopped after {last} epochs, best after {best}"
    assert message == (stopped if last < 7 else "7 epochs")


@each("method", ["PPGPR-Chol", "FITC", "exact"])
def test_J_alg1_fit_limit_min_noise(method):
    """sigma_obs^2 stays above min_noise, in mini-batches and in L-BFGS."""
    X, _ = wave(30)
    found = J.fit(X, np.sin(X[:, 0]), method, 6, epochs=99, lr=0.1, min_noise=0.007)
    assert_close(found.params["ln_noise"], math.log(0.007), 1e-12)


# --- R: a trained model and its certificate ------------------------------------------------------

OTHERS = {name: row.function for name, row in kernels.KERNELS.items()
          if hasattr(row.function, "start") and name != "SE"}


CASES = [*R.LOSSES, *OTHERS, *(case for case in ODD if "batch" not in case)]
FAST = "kl-PAC-GP", "kl-PAC-SGP", "01", "Matern32"          # of all others the case is slow


@each("method, case", [
    pytest.param(*pair, marks=() if {*pair} & {*FAST} else pytest.mark.slow)
    for pair in itertools.product(R.METHODS, CASES)])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_R_eq05_fit_value_certificate(method, case):
    """What is reported is the bound, rounded up, of the GP that predicts, with theta on the grid:
    random sizes, goals, grids, alpha, ARD, xi(N) and numbers of goals, whole and in blocks; each
    loss and kernel, and odd data. Training minimises what the method's name says.
    """
    rng = default_rng([*method.encode(), *case.encode()])
    odd = case in ODD
    kernel = OTHERS.get(case, R.se_kernel)
    loss = case if case in R.LOSSES else rng.choice(["01", "square", "exp"])
    asked = dict(method=method, loss=loss, eps=rng.uniform(0.4, 1.5), alpha=rng.random(),
                 delta=10 ** rng.uniform(-3, -1), kernel=kernel)
    G, n_eps, xi, M, ard, train = map(rng.choice, (
        (12, 1200), (1, 7), (False, True), range(1, 12), (False, True),
        (R.fit, search.multistart_fit)))
    settings = dict(M=M, ard=ard) | asked | odd_data(case, *sine(rng.integers(12, 26)))
    result = train(
        grid=(6.0, G), n_eps=n_eps, xi=xi, max_evals=20, **settings)
    X, y = (np.array(settings[name], float) for name in "Xy")

    def dense(result):
        return dense_certificate(result, X, y, G, n_eps, xi)

    # full_gp subtracts var from sigma_n^2; dense_eq09 solves with K_MM
    cond = max(1.0, math.exp(result.ln_noise - result.ln_theta[-1]))
    if "free" in method or case in OTHERS:
        cond = 10 * np.linalg.cond(dense_K_MM(result.Z, result.ln_theta, kind_of(kernel)))
    tolerances = (1e-6, 1e-7) if odd else (1e-9, max(1e-11, 4e-17 * cond))
    got = np.array([result.R_S, result.KL, result.bound, result.pinsker])
    assert_just_above(1 + got, 1 + np.array(dense(result)), *tolerances)
    if method in ("FITC", "VFE", "DTC"):          # the method's, whatever is asked
        asked["alpha"] = float(method == "FITC")
    asked["N"] = len(y)
    assert all(getattr(result, name) == value for name, value in asked.items())
    at = result.optimum.x
    assert np.max(np.abs([*at["ln_theta"] / 6, at.get("ln_noise", 0.0) / 16])) <= 1
    if odd:
        return
    steps = (np.array([result.ln_theta, at["ln_theta"]]) + 6) * G / 12
    assert_close(1 + steps[0], 1 + np.round(steps[1]), 1e-12)
    assert_all_close(R.predict(result, X), dense_fit(result, X, y)[:2], max(1e-9, 4e-16 * cond))
    if "PAC" in method:
        want = dense(result._replace(ln_theta=at["ln_theta"]))[2 + ("sqrt" in method)]
    else:
        nll = {"full-GP": R.full_gp_nll}.get(method, partial(R.sparse_nll, kind=method))
        want, _ = nll(X, y, **at, kernel=kernel)
    assert_close(result.optimum.f, want, max(1e-8, 4e-17 * cond))


@each("at_3, options, message", [
    (3, dict(max_evals=2), "stopped after 2 evaluations; the certificate of what was found is"),
    (7, {}, "^1 rows of .* repeat: the theorem assumes independent rows"),
    (3, dict(eps=1e-9), "B > 0.999 certifies next to nothing"), (3, {}, None)])
def test_R_fit_warnings(at_3, options, message):
    """A warning where training stopped early, where rows repeat (the same input twice is fine),
    where B is vacuous; else none.
    """
    X, y = sine()
    X[3], y[3] = X[7], y[at_3]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert R.fit(X, y, **options).repeats == (at_3 == 7)
    texts = [str(w.message) for w in caught]
    assert any(re.search(message, text) for text in texts) if message else not texts, texts


# --- R: blocks of rows ---------------------------------------------------------------------------


def elsewhere(f, blocks):
    """A map as of another process, which gets copies, and takes the blocks and gives the results in
    an order of its own.
    """
    copies = [pickle.loads(pickle.dumps((f, block))) for block in blocks]
    return [f(block) for f, block in copies[::-1]]


@each("method, options", [("FITC", dict(share=0.5)), ("free-kl-PAC-SGP", {})])
def test_R_fit_over_same_bits(method, options, tmp_path, monkeypatch):
    """Other processes, rows in files: certificates and predictions as by map, to the last bit.
    Results that come twice are noticed; a file that is gone, or was changed in memory, is not read.
    """
    monkeypatch.setattr(R, "BLOCK_BYTES", 1)
    X, y = sine(40)
    np.save(tmp_path / "X.npy", X)
    file, changed = (np.load(tmp_path / "X.npy", mmap_mode=mode) for mode in "rc")
    changed *= 2
    assert callable(blocks.mapped_again(file[3:9]))

    def numbers(X, over):
        found = fit(X, y, method, 3, max_evals=2, over=over, **options)
        held = certificates.held_out(found, X, y, over=over)
        predicted = R.predict(found, X, sparse=blocks.blocks(over))
        return found.bound, found.KL, found.posterior, held, predicted

    want = numbers(X, map)
    assert same_bytes(numbers(X, elsewhere), want) and same_bytes(numbers(file, elsewhere), want)
    with refuses("a result for each of .* items, like map"):
        numbers(X, lambda *args: 2 * list(map(*args)))
    np.save(tmp_path / "other.npy", 3 * X)
    (tmp_path / "other.npy").replace(tmp_path / "X.npy")
    assert same_bytes((blocks.mapped_again(changed), blocks.mapped_again(file)), (2 * X, X))


def test_threads_of_this_process(monkeypatch):
    """One per core that the process may use; none where BLAS has threads of its own."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5}, raising=False)
    for of_blas, workers in (("1", 2), ("2", None)):
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", of_blas)
        pool = getattr(blocks.threads(), "__self__", None)
        assert getattr(pool, "_max_workers", None) == workers


# --- the search of beyond/ -----------------------------------------------------------------------


def wave_in(d, N, omega, seed=0, noise=0.3):
    """One of d columns counts, in a wave; all have mean 0 and deviation 1."""
    rng = default_rng(seed)
    X = rng.uniform(-1.73, 1.73, (N, d))
    return X, 1.4 * np.sin(omega * X[:, 0]) + noise * rng.standard_normal(N)


@pytest.fixture
def legs(monkeypatch):
    """[(X, Fit, start, largest number of evaluations)] of the searches, in order."""
    found = []
    train = search.fit

    def recorded(X, *args, **settings):
        leg = train(X, *args, **settings)
        found.append((X, leg, settings["start"], settings["max_evals"]))
        return leg
    monkeypatch.setattr(search, "fit", recorded)
    return found


@each("method, share", [
    ("kl-PAC-SGP", {}), ("VFE", dict(share=0.5, kernel=R.se_kernel)), ("free-kl-PAC-SGP", {})])
@each("rows, last, evals", [
    (30, {}, 4), (3000, {}, 0), (30, dict(last_evals=2), 2)])
def test_many_rows_begin_with_a_part(rows, last, evals, method, share, legs, monkeypatch):
    """FEW rows choose, or a tenth of more; all begin where these end, with LAST_EVALS evaluations
    or LAST_ROWS rows seen, or last_evals if given. Several starts race for RACE evaluations; the
    best goes on.
    """
    for name, value in dict(FEW=20, LAST_EVALS=4, LAST_ROWS=rows).items():
        monkeypatch.setattr(search, name, value)
    fit(*sine(600), method, 5, max_evals=25, **share, **last)
    inputs, fits, starts, most = zip(*legs)
    N = 300 if share else 600
    assert list(dict.fromkeys(map(len, inputs))) == [20, N // 10, N]
    assert not np.array_equal(inputs[0], inputs[-1][:20])
    assert most[-1] == (evals or 3000 // N) and 20 in most
    assert same_bytes(starts[-1], fits[-2].optimum.x)
    raced = []
    for leg, start, evals in zip(fits, starts, most[:-2]):
        if evals == 25 and raced:
            assert same_bytes(start, min(raced, key=lambda leg: leg.optimum.f).optimum.x)
        raced = [*raced, leg] if evals == 20 else []


def test_part_finds_wave_in_one_of_eight_columns():
    """A search of ARD from half-way to one lengthscale's optimum ended at a constant, 170."""
    assert search.trained_part(*wave_in(8, 120, 5.2, 19))[0].optimum.f < 100


@each("method", ["kl-PAC-GP", "sqrt-PAC-SGP", "free-kl-PAC-SGP"])
def test_bound_has_two_starts(method, legs):
    """With little noise and a small eps B is 1 and flat at the paper's start, not from the
    likelihood's optimum; both race. A start that is given is followed. Rounding does not choose
    between two optima, B = 0.926 and 0.956: a search does not end on the plateau before the first.
    """
    eps = 1e-3 if method == "kl-PAC-GP" else 0.02
    X, y = wave_in(1, 80, 5.2, noise=eps / 5)
    train = partial(fit, X, y, method, 9, eps=eps)
    found = train(max_evals=80).optimum
    if method == "sqrt-PAC-SGP":
        for k in (-22, 18):
            moved = fit(X * (1 + k * 1e-13), y, method, 9, eps=eps, max_evals=80)
            assert moved.optimum.f == pytest.approx(found.f, abs=1e-5)
    first, second, *_ = [start for _, leg, start, _ in legs if leg.method == method]
    assert (first, *second) == ({}, *found.x)
    assert found.f < 0.95 < 0.999 < train(start={}, max_evals=1).bound
    assert train(start=found.x, max_evals=1).optimum.f == pytest.approx(found.f)


@each("d, ard, T, two", [
    (3, False, 2, 0), (3, True, 4, 0), (3, None, 4, math.log(2)), (1, None, 2, 0)])
def test_paper_fit_pays_for_two(d, ard, T, two):
    """The lower B of both parametrisations, ln 2 in the penalty; nothing where one is asked for or
    there is one column.
    """
    gp = search.paper_fit(*wave_in(d, 60, 1.7), ard=ard, n_eps=3)
    assert len(gp.ln_theta) == T and gp.kernel is R.se_kernel
    assert gp.penalty == pytest.approx(math.log(3) + T * math.log(1201) + two, rel=1e-13)


def columns_alike(N):
    """X (N, 3), y to which all columns contribute the same, its noise."""
    rng = default_rng(10)
    X = rng.standard_normal((N, 3))
    noise = 0.5 * rng.standard_normal(N)
    return X, np.sin(np.sum(X, 1)) + noise, noise


def both_ways(X, y, *args):
    """trained_part with one lengthscale, with one for each column, and as it chooses itself."""
    return [search.trained_part(X, y, *args, ard=ard, kernel=R.se_kernel)[0]
            for ard in (False, True, None)]


def left_out_error(X, y, trained, gp):
    """The mean square of y less the mean that all other rows of `trained` give, by brute force."""
    means = [R.full_predict(np.delete(X, i, 0), np.delete(trained, i), X[[i]], gp.ln_theta,
                            gp.ln_noise)[0][0] for i in range(len(y))]
    return np.mean((means - y) ** 2)


@each("N, alike, T", [(80, False, 4), (25, False, 4), (40, True, 2)])
def test_part_chooses_parametrisation(N, alike, T):
    """One lengthscale or three: the lower error of rows left out, not the likelihood. Columns that
    do not count leave the paper's box, except where rows are few.
    """
    X, y = wave_in(3, N, 1.7)
    if alike:
        X, y, _ = columns_alike(N)
    one, three, chosen = both_ways(X, y)
    assert three.optimum.f < one.optimum.f
    best = min(one, three, key=lambda gp: left_out_error(X, y, y, gp))
    assert len(best.ln_theta) == T
    assert_close(chosen.ln_theta, best.ln_theta, 1e-9)
    top = np.max(three.ln_theta)
    assert alike or (top == 6 if N < 30 else top > 6)


def test_sparse_part_chooses_parametrisation():
    """By Schwarz's criterion: each of two more lengthscales must gain ln(N)/2 nats."""
    X, y, noise = columns_alike(40)
    for y, T in ((y, 2), (np.sin(2 * X[:, 0]) + 0.2 * noise, 4)):
        one, three, chosen = both_ways(X, y, "VFE", 6)
        gain = one.optimum.f - three.optimum.f
        assert gain > 0 and (gain > math.log(40)) == (T == 4)
        assert len(chosen.ln_theta) == T


def test_part_chooses_kernel():
    """The best of the kernels where it gains more than 3 nats; SE where waves are smooth, and for a
    bound.
    """
    X, smooth = wave_in(2, 60, 1.7, noise=0.1)
    rough = 2.0 * (X[:, 0] > 0.3) + 0.1 * X[:, 1]
    f = {kernel: search.trained_part(X, rough, kernel=kernel)[0].optimum.f
         for kernel in (R.se_kernel, J.matern52, J.matern32)}
    best = min(f, key=f.get)
    assert f[R.se_kernel] - 3 > f[best]
    for y, method, kernel in (
        (rough, "full-GP", best), (smooth, "full-GP", R.se_kernel), (rough, "VFE", R.se_kernel)):
        assert search.trained_part(X, y, method, 2, max_evals=30)[0].kernel is kernel


def test_part_cuts_far_targets():
    """Targets are cut, at 4 deviations from the median, where that lowers the error of the mean by
    all other rows, as brute force has it; not where there is a hump. What is certified is the risk
    of the targets themselves, of which a spike is a miss.
    """
    X, y = wave_in(1, 60, 2.0, noise=0.1)
    spikes = y + 0
    spikes[[10, 30, 45]] += [9.0, -12.0, 15.0]
    gp, targets = search.trained_part(X, spikes)
    u = spikes - np.median(spikes)
    far = 4 * 1.4826 * np.median(np.abs(u))
    assert_close(targets, np.median(spikes) + np.clip(u, -far, far), 1e-14)
    error = left_out_error(X, spikes, targets, gp)
    assert_close(search.criterion(gp, targets, spikes), error, 1e-9)
    certified = certificates.prior_from_part(X, spikes, eps=5.0)
    rest = np.setdiff1d(np.arange(60), certificates.draw_part(X, spikes, 0.5))
    risk = R.gibbs_risk(spikes[rest], *R.predict(certified, X[rest]), 5.0)
    assert np.mean(np.abs(spikes[rest]) > 8) / 2 < risk <= certified.fit.R_S < risk + 1e-6
    hump = y + 8 * np.exp(-((X[:, 0] - 1.2) / 0.1) ** 2)
    assert np.any(search.cut(hump) != hump)
    assert search.trained_part(X, hump)[1] is hump
    assert search.trained_part(X, spikes, "VFE", 5, max_evals=5)[1] is spikes


def test_certified_as_trained(monkeypatch):
    """What is certified is the GP of the targets that were cut, not of the spikes themselves."""
    X, y = wave_in(1, 64, 2.0, noise=0.1)
    y[[10, 30, 45]] += [9.0, -12.0, 15.0]
    found = []
    monkeypatch.setattr(certify, "trained_part", lambda *rows, **settings: found.append(
        search.trained_part(*rows, **settings)) or found[0])
    gp = certify.CertifiedGP().fit(X, y, train=np.arange(64) < 60)
    (one, targets), = found
    assert np.ptp(targets) < np.ptp(y) / gp.scale_.unit / 2
    assert_all_close(R.predict(gp.fit_, X), R.predict(one, X), 1e-9)


# --- J Algorithm 1, App. C -----------------------------------------------------------------------


@each("method", J.METHODS)
def test_J_alg1_fit_value(method):
    """The objective falls well; beta_reg is 0.05 for PPGPR; the validation score is that of the
    final parameters, and validation rows train nothing.
    """
    X, y = wave(40, d=2)
    X_val, y_val = wave(30, 1, d=2)
    train = partial(J.fit, X, y, method, M=6, batch=15, epochs=30, lr=0.03)
    found = train(X_val=X_val, y_val=y_val)
    assert found.beta_reg == (0.05 if "PPGPR" in method else 1.0)
    assert np.mean(found.history[-3:]) < np.mean(found.history[:3]) - 0.05
    if method in ("exact", "FITC"):
        assert J_objective(method, found.params, X, y)[0] == found.history[-1]
    mean, var = J.predict_y(found, X_val)
    assert_close(found.validation, -np.mean(ln_pdf(y_val, mean, var)), 1e-10)
    without = train()
    assert same_bytes(without.params, found.params)
    assert math.isnan(without.validation)


def poisson_fit(y, mean, ktilde, svar, sigma2):
    """E ln p(y | rate e^f), f ~ N(mean, ktilde + svar), without ln y!; sigma2 is not used."""
    rate = np.exp(mean + (ktilde + svar) / 2)
    return y * mean - rate, y - rate, -rate / 2, -rate / 2, 0 * y


def test_J_alg1_fit_own_data_fit():
    """g takes the place of the method's: SVGP with PPGPR's is PPGPR-Chol, and counts are fitted by
    their log rate."""
    X, y = wave(40, d=2)
    ours, want = (J.fit(X, y, *of, M=6, epochs=3, beta_reg=0.5, g=g).params
                  for *of, g in (("SVGP", J.data_fit), ("PPGPR-Chol", None)))
    assert same_bytes(ours, want)
    ln_rate = 2 + np.sin(2.9 * X[:, 0] + 5)
    counts = default_rng(0).poisson(np.exp(ln_rate))
    found = J.fit(X, counts, "SVGP", M=12, epochs=150, batch=40, lr=0.05, g=poisson_fit)
    mean, _ = J.predict(found, X)
    assert np.sqrt(np.mean((mean - ln_rate) ** 2)) < 0.3
    assert found.params["ln_noise"] == math.log(J.START)


@each("method", [method for method in J.METHODS if J.METHODS[method][0]])
def test_J_appC_choose_value(method, monkeypatch):
    """Each of the paper's values is tried once, with the other settings as given; the fit with the
    best validation score is returned.
    """
    values = {"gamma": (1.01, 1.03, 1.05, 1.07), "MAP": (1.0,), "PPGPR": (0.01, 0.05, 0.2, 1.0)}
    values = values.get(method.split("-")[0], (0.1, 0.3, 0.5, 1.0))
    name = "gamma" if method == "gamma-robust" else "beta_reg"
    tried = []

    def fit(*args, X_val, y_val, **settings):
        tried.append(settings)
        return types.SimpleNamespace(validation=abs(len(tried) - 2), settings=settings)

    monkeypatch.setattr(J, "fit", fit)
    best = J.choose(*[[[0.0]]] * 4, method, M=4)
    assert tried == [{"M": 4, name: value} for value in values]
    assert best.settings is tried[len(tried) > 1]
