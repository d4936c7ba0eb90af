"""Training in R and J: what a trained model and its certificate are worth, against dense matrices
with quadrature of the loss.
"""

import math

import numpy as np
import pytest

import pacgp_ref as R
import predictive as J
from beyond import certificates, kernels, rounding, search, stream
from own_data import models
from tests.dense import best_free, dense_certificate, dense_fit, dense_K_MM
from tests.oracles import (
    assert_all_close, assert_close, assert_just_above, central_difference, crossed)
from tests.problems import fit, J_objective, ODD, same, sine, small_fit, wave


# --- R: a trained model and its certificate ------------------------------------------------------

OTHERS = {name: row for name, row in kernels.KERNELS.items() if row.start and name != "SE"}


@crossed("method, name, in_blocks", R.METHODS, OTHERS, (False, True),
         default=lambda method, name, in_blocks: in_blocks != ("sqrt" in method))
@pytest.mark.filterwarnings("ignore:.*stopped after", "ignore:B > 0.999", "ignore:.*B > 0.999")
def test_R_eq05_fit_value_other_kernel(method, name, in_blocks, tmp_path):
    """Another kernel trains, is certified, predicts and is saved: one and the same in all, dense.

    With whole matrices, and in blocks of rows; the strict certificate is above by rounding alone.
    """
    X, y = wave(30, d=2)
    kernel, start, *_ = OTHERS[name]
    settings = dict(M=5, eps=0.8, alpha=0.3, kernel=kernel, max_evals=30)
    if in_blocks:
        result = search.multistart_fit(X, y, method, **settings)
    else:
        result = R.fit(X, y, method, start_theta=start, **settings)
    assert len(result.ln_theta) == {"periodic": 5}.get(name, 2)
    got = 1 + np.array([result.R_S, result.KL, result.bound, result.pinsker])
    assert_close(got, 1 + np.array(dense_certificate(result, X, y)), 1e-8)
    certified = rounding.strict(result, X, y)
    above = np.array([getattr(certified.fit, one) - getattr(result, one)
                      for one in ("R_S", "KL", "bound", "pinsker")])
    assert np.all(above >= -1e-9) and np.all(above < 1e-6)
    mean, var, _ = dense_fit(result, X, y)
    arrays = []
    again = models.unpacked(models.packed(certified, arrays), arrays)
    assert again.fit.kernel is kernel
    for fitted in (result, certified, again):
        assert_all_close(R.predict(fitted, X), (mean, var), 1e-7)
    if name != "periodic":
        other = R.predict(result._replace(kernel=R.se_kernel), X)
        assert np.max(np.abs(other[0] - mean)) > 1e-4


def test_R_eq05_fit_value_kernel_without_row():
    """A kernel that is not in the table trains; a strict certificate is refused."""
    def rough(X1, X2, ln_theta, by_differences=False):
        return J.matern32(X1, X2, ln_theta, by_differences)
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
    default=lambda method, case: case in ("01", "exp") or method in ("kl-PAC-GP", "kl-PAC-SGP"))
def test_R_eq05_fit_value_certificate(method, case):
    """What is reported is the bound, rounded up, of the GP that predicts, with theta on the grid:
    random sizes, goals, grids, alpha, ARD, xi(N) and numbers of goals; each loss, and odd data. In
    60 digits: tests/test_exact.py.
    """
    rng = np.random.default_rng([*method.encode(), *case.encode()])
    odd = case in ODD
    X, y = sine(30 if odd else int(rng.integers(10, 40)))
    asked = dict(
        method=method, loss=rng.choice(["01", "square", "exp"]) if odd else case,
        eps=rng.uniform(0.4, 1.5), delta=10 ** rng.uniform(-3, -1), alpha=rng.random())
    G = int(rng.choice([12, 1200]))
    n_eps = int(rng.choice([1, 7]))
    xi = bool(rng.integers(2))
    settings = dict(X=X, y=y, M=int(rng.integers(1, 12)), ard=bool(rng.integers(2)), **asked) | (
        ODD[case](X, y) if odd else {})
    result = fit(grid=(6.0, G), n_eps=n_eps, xi=xi, max_evals=50, **settings)
    X, y = (np.array(settings[name], float) for name in "Xy")
    got = np.array([result.R_S, result.KL, result.bound, result.pinsker])
    cond = 1.0
    if "free" in method:        # dense_eq09 solves with K_MM
        cond = np.linalg.cond(dense_K_MM(result.Z, result.ln_theta))
    tolerances = (1e-6, 1e-7) if odd else (1e-9, max(1e-11, 4e-17 * cond))
    assert_just_above(
        1 + got, 1 + np.array(dense_certificate(result, X, y, G, n_eps, xi)), *tolerances)
    assert 0 <= result.R_S <= result.bound <= min(1.0, result.pinsker)
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
        (mean, var, KL), _ = R.posterior_at(at, X, y, R.METHODS[method][0], result.alpha)
        losses, _, _ = R.expected_losses(y, mean, var, asked["eps"], case)
        terms = dict(delta=asked["delta"], penalty=result.penalty, xi=xi)
        B, *_ = R.pac_objective(losses, KL, R.BOUNDS[bound], **terms)
        assert_close(result.optimum.f, B, 1e-14)


@pytest.mark.parametrize("eps", [0.3, 1.0])
def test_R_sec4_fit_order_of_methods(eps):
    """Who minimises a bound has the smallest, up to the rounding of theta: B for kl, B_Pin for
    sqrt; full and sparse. The free form, started from the best (11), cannot end above it.
    """
    X, y = sine(N=60)
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


# --- J Algorithm 1, App. C: training -------------------------------------------------------------

SHAPES = {
    "delta": {"Z", "m"}, "MF": {"Z", "m", "L_S"}, "Chol": {"Z", "m", "L_S"},
    "MFD": {"Z", "m", "L_S", "Z_mean"}, "OD": {"Z", "m", "L_S", "Z_mean", "a"}, "Z only": {"Z"},
    "no Z": set()}


@pytest.mark.parametrize("ard", [True, False])
@pytest.mark.parametrize("kernel", J.KERNELS.values())
@pytest.mark.parametrize("method", J.METHODS)
def test_J_appC_initial_parameters_value(method, kernel, ard):
    """Names and shapes of each variant, all scales softplus(0); q(u') is the prior, or narrow."""
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


def test_J_appC_step_size_value():
    """The paper's drops at 100 and 150 of 200 epochs, and the smallest number of epochs; drops
    where they are wished.
    """
    for epochs, milestones, lengths in (
        (200, J.MILESTONES, (100, 50, 50)), (4, J.MILESTONES, (2, 1, 1)), (3, (), (3,)),
        (400, (0.05, 0.375, 0.75), (20, 130, 150, 100))):
        want = np.repeat([0.02, 0.002, 2e-4, 2e-5][:len(lengths)], lengths)
        got = [J.step_size(0.02, epoch, epochs, milestones) for epoch in range(epochs)]
        assert_close(got, want, 1e-14)


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


@pytest.mark.parametrize("method", ["exact", "FITC"])
def test_J_eq02_eq13_fit_minimum(method):
    """L-BFGS ends where the differences of the objective on all rows are nearly zero, and far below
    the start.
    """
    X, y = wave(60)
    f = J.fit(X, y, method, M=5)
    start = J.initial_parameters(X, method, 5, rng=np.random.default_rng(0))

    def value(x):
        return J_objective(method, J.unpack(x, start), X, y)[0]

    def slope(p):
        return np.max(np.abs(central_difference(value, J.pack(p), 1e-4)))

    assert slope(f.params) < 1e-3 < 1e-2 < slope(start)
    assert "evaluations" not in f.message
    assert value(J.pack(f.params)) == f.history[-1] < value(J.pack(start)) - 0.05


@pytest.mark.parametrize("method", ["exact", "FITC"])
@pytest.mark.parametrize("period", [0.7, 3.0, 7.0])
@pytest.mark.parametrize("column", [None, 0, 1])
def test_J_sec21_fit_value_period(method, period, column):
    """The wave is found, whatever its period, in one column or either of two: without
    `likely_periods` 12 of these 18 fits fail.
    """
    rng = np.random.default_rng(3)
    x = rng.uniform(0, 20, 200)
    f = np.sin(2 * np.pi * x / period)
    y = f + 0.3 * rng.standard_normal(200)
    X = x[:, None]
    if column is not None:
        X = np.insert(X, 1 - column, rng.uniform(0, 20, 200), axis=1)
    X = (X - X.mean(0)) / X.std(0)
    found = J.fit(X, y, method, 30, "periodic", epochs=100)
    assert J.rmse(f, J.predict(found, X)[0]) < 0.2


@pytest.mark.parametrize("method", J.METHODS)
def test_J_appC_choose_value(method, monkeypatch):
    """Each of the paper's values is tried once, with the other settings as given; the fit with the
    best validation score is returned.
    """
    X, y, X_val, y_val, _ = small_fit("SVGP")
    values = J.GAMMAS if method == "gamma-robust" else J.BETAS.get(method, (1.0,))
    name = "gamma" if method == "gamma-robust" else "beta_reg"
    fits = []
    J_fit = J.fit

    def fit(*args, **settings):
        found = J_fit(*args, **settings)
        fits.append((settings, found))
        return found

    monkeypatch.setattr(J, "fit", fit)
    settings = dict(X_val=X_val, y_val=y_val, M=4, epochs=2, lr=0.05)
    best = J.choose(X, y, method=method, **settings)
    assert [tried for tried, _ in fits] == [{**settings, name: value} for value in values]
    assert best is min((found for _, found in fits), key=lambda f: f.validation)
    assert best.method == method
    assert len({found.validation for _, found in fits}) == len(values)


def test_J_sec33_fit_noise_depends_on_x():
    """J Sec. 3.3, 5: where the noise depends on x, PPGPR has the better NLL and calls less variance
    noise.
    """
    X, y = wave(200)
    X_new, y_new = wave(1000, 100)
    scores = []
    for method in ("SVGP", "PPGPR-Chol", "PPGPR-MFD"):
        f = J.fit(X, y, method, M=15, batch=50, epochs=60, lr=0.03)
        _, var_f = J.predict(f, X_new)
        noise = J.noise_fraction(var_f, np.exp(f.params["ln_noise"]))
        scores.append((J.nll(y_new, *J.predict_y(f, X_new)), noise))
    (nll, noise), *ours = scores
    assert all(a < nll - 0.05 and b < 0.6 * noise for a, b in ours), scores
