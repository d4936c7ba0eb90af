"""Extremes that no paper has: far inputs, ill-conditioned K_MM, floors of a variance, refusals."""

import functools
import itertools
import math
from decimal import Decimal, localcontext

import autograd
import autograd.numpy as anp
import numpy as np
import pytest

import online as L
import pacgp_ref as R
import predictive as J
from beyond import kernels, rounding
from test_ref import TABLE, TRACES
from tests.dense import (
    decimal_kernel, dense_K_MM, dense_L_eq08, gaussian_kl, inverse, joint_covariance, known,
    ln_normal)
from tests.oracles import (
    assert_all_close, assert_close, central_difference, decimal_cholesky, decimal_solve, decimals,
    EPS, GENERIC, NAMES, NAN, same_bytes)
from tests.problems import (
    as_traced, crowded, far_problem, first_state, fit_near, J_problem, kernel_case,
    kernel_function, KERNELS, L_KINDS, L_problem, pac_objective, problem,
    second_parameters, SHIPPED)


LN_THETA = np.array([2 * math.log(0.7), 0.0])
X, Y, rng = crowded(30, 5)
D_MEAN, D_VAR = rng.standard_normal((2, 30))
LN_NOISE = -6.0


def decimal_features(Z):
    """V = L^-1 k(Z, X), L L^T = k(Z, Z) with the jitter, in Decimal."""
    L_MM = decimal_cholesky(joint_covariance([(Z, True)], LN_THETA))
    return decimal_solve(L_MM, decimal_kernel(Z, X, LN_THETA))


def sparse_gp_at(modules, Z):
    """value, back: weighted marginals and KL of R (11), alpha = 1."""
    (mean, var, KL), back = modules.R.sparse_gp(X, Y, Z, LN_THETA, LN_NOISE, 1.0)
    value = anp.sum(D_MEAN * mean) + anp.sum(D_VAR * var) + KL
    return value, lambda d: back(d * D_MEAN, d * D_VAR, d)


def exact_sparse_gp(Z):
    V = decimal_features(Z)
    lam = 1 - (V * V).sum(0)
    D = lam + Decimal(LN_NOISE).exp()
    eye = decimals(np.eye(len(Z)))
    S = inverse(eye + (V / D) @ V.T)
    c = S @ (V @ (decimals(Y) / D))
    var = lam + (V * (S @ V)).sum(0)
    KL = gaussian_kl(c, S, 0 * c, eye)
    return decimals(D_MEAN) @ (V.T @ c) + decimals(D_VAR) @ var + KL


@functools.cache
def crowded_q():
    """The best q(u) of SVGP at these inducing inputs."""
    (V, _), _ = J.whitened_features(X, CROWDED_Z, LN_THETA, R.se_kernel)
    sigma2 = math.exp(LN_NOISE)
    (m, S, *_), _ = R.gaussian_posterior(V.T @ V / sigma2, V.T @ Y / sigma2)
    return dict(ln_theta=LN_THETA, ln_noise=LN_NOISE, m=m, L_S=np.linalg.cholesky(S))


def objective_at(modules, Z):
    """J Eq. (18), PPGPR-Chol."""
    p = dict(crowded_q(), Z=Z)
    return modules.J.objective(p, X, Y, 30, "PPGPR-Chol", 0.3, kernel=modules.R.se_kernel)


def exact_objective(Z):
    V = decimal_features(Z)
    m, L_S = (decimals(crowded_q()[name]) for name in ("m", "L_S"))
    var = 1 - (V * V).sum(0) + ((L_S.T @ V) ** 2).sum(0) + Decimal(LN_NOISE).exp()
    reg = gaussian_kl(m, L_S @ L_S.T, 0 * m, decimals(np.eye(len(Z))))
    return (Decimal(0.3) * reg - ln_normal(decimals(Y), V.T @ m, np.diag(var))) / 30


@functools.cache
def crowded_old():
    """The Posterior of the first 20 rows."""
    return L.update(L.prior(np.linspace(0, 2, 11)[:, None], LN_THETA), X[:20], Y[:20], -3.0)


def free_energy_at(modules, Z):
    """L Eq. (8). By hand the error is 1e-5 to 3e-4 at lengthscales .69 to .71."""
    p = dict(ln_theta=LN_THETA, ln_noise=np.array(-3.0), Z=Z)
    return modules.L.free_energy(p, as_traced(crowded_old(), modules), X[20:], Y[20:])


def exact_free_energy(Z):
    old = known(crowded_old(), decimals)
    rows = (decimals(X[20:]), decimals(Y[20:]), Decimal(-3).exp())
    return dense_L_eq08(old, old.with_rows(*rows, Z), *rows)[0]


CROWDED_Z = np.linspace(0, 5, 26)[:, None] + 0.013
CROWDED = {  # -> value and way back, the value in Decimal, tolerances
    "R_eq11_sparse_gp": (sparse_gp_at, exact_sparse_gp, 1e-9, 1e-5),
    "J_eq18_objective": (objective_at, exact_objective, 1e-8, 1e-5),
    "L_eq08_free_energy": (free_energy_at, exact_free_energy, 1e-7, 5e-4)}


@pytest.mark.parametrize("name", CROWDED)
def test_grad_ill_conditioned(name):
    """Inducing inputs .2 apart, lengthscale .7: cond(K_MM) = 1e9, bounded by the jitter alone.

    Reference: differences of 50-digit arithmetic, in the entry of d_Z where the two gradients
    differ most and in a direction of all. Autograd, which goes through the Cholesky factor, is far
    off; the gradient by hand, which does not, is not.
    """
    f, exact, tol_value, tol = CROWDED[name]
    Z = CROWDED_Z
    value, back = f(SHIPPED, Z)
    hand = back(1.0)["Z"][:, 0]
    auto = autograd.grad(lambda Z: f(TRACES, Z)[0])(Z)[:, 0]
    signs = np.random.default_rng(1).choice([-1.0, 1.0], len(Z))
    errors = []
    with localcontext() as context:
        context.prec = 50
        h = Decimal(10) ** -18
        at = decimals(Z)
        assert_close(value, float(exact(at)), tol_value)
        for direction in (np.arange(len(Z)) == np.argmax(np.abs(hand - auto)), signs):
            step = h * decimals(direction)[:, None]
            true = float((exact(at + step) - exact(at - step)) / (2 * h))
            errors.append([abs(g @ direction - true) for g in (hand, auto)])
    by_hand, by_autograd = np.max(errors, 0) / np.abs(hand).max()
    print(f"error over max|d_Z|: by hand {by_hand:.1e}, by autograd {by_autograd:.1e}")
    assert by_hand < tol
    assert by_autograd > 10 * by_hand


def sparse_predict():
    X, _, Z, ln_theta, _ = problem(N=10)
    Linv = np.linalg.inv(np.linalg.cholesky(dense_K_MM(Z, ln_theta)))
    return R.sparse_predict(X, Z, Linv, ln_theta, np.arange(6.0), np.eye(6) + 0.1)


FLOORED = {  # -> f() -> (outputs, back or None), the second output a variance
    "R_eq23_sparse_predict": lambda: (sparse_predict(), None),
    "J_eq10_predict": lambda: (
        J.predict(fit_near("SVGP")[2], J_problem("SVGP", N=10)[0]), None)}
for name in (
    "R_eq08_full_gp-SE", "R_eq10_sparse_free-SE", "R_eq11_sparse_gp-SE",
    "J_eq07_eq08_marginals_Chol-Matern52", "L_eq13_marginals_and_kl_given-SE",
    "L_eq13_marginals_and_kl_free-SE"):
    call, point, *_ = TABLE[name]
    FLOORED[name] = functools.partial(call, SHIPPED, point)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", FLOORED)
def test_grad_at_floor(name, monkeypatch):
    """A variance below VAR_FLOOR k, as rounding may leave of 0, is VAR_FLOOR k.

    It has no gradient: what is left is that of the rows above the floor, to the last bit.
    """
    f = FLOORED[name]
    module = getattr(SHIPPED, name[0])
    rng = np.random.default_rng(1)
    outputs, back = f()
    var = outputs[1]
    monkeypatch.setattr(module, "VAR_FLOOR", 1e6)
    k = f()[0][1][0] / 1e6                                  # every variance is floored
    floor = np.median(var)
    above = var > floor
    monkeypatch.setattr(module, "VAR_FLOOR", floor / k)
    floored, floored_back = f()
    assert_close(floored[1], np.where(above, var, floor), 1e-15)
    assert above.sum() == len(above) // 2
    if back:
        adjoints = [rng.standard_normal(np.shape(out)) for out in outputs]
        got = floored_back(*adjoints)
        adjoints[1] *= above
        assert same_bytes(got, back(*adjoints))


@pytest.mark.parametrize("kind", L_KINDS)
def test_L_eq08_posterior_grad_coincidence(kind):
    """Where a Z stands on an old one the value jumps by the shared jitter, the gradient does not.

    At the point it is that of the shared jitter kept (autograd), and to 1e-5 that of the value
    around it: central differences leave the point out.
    """
    q = L_problem(kind, keep=3)
    state = first_state(q)
    p = second_parameters(q)

    def F(Z, modules=SHIPPED):
        old = as_traced(state, modules)
        return modules.L.free_energy(dict(p, Z=Z), old, q["X_b"], q["y_b"])

    hand = F(p["Z"])[1](1.0)["Z"]
    assert_close(hand, central_difference(lambda Z: F(Z)[0], p["Z"]), 1e-5)
    assert_close(hand, autograd.grad(lambda Z: F(Z, TRACES)[0])(p["Z"]), 1e-11)
    beside = p["Z"] + 1e-13 * np.eye(6, 1, -1)
    assert 1e-11 < abs(F(beside)[0] - F(p["Z"])[0]) < 1e-5


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("d", [1, 2])
def test_kernel_errors(kind, d):
    """Columns that differ, also where one would be broadcast; parameters that do not fit them."""
    X1, X2, ln_theta = kernel_case(kind, d)

    def wide(X):
        return np.c_[X, X]

    bad = [
        (X1, wide(X2), ln_theta), (wide(X1), X2, ln_theta),
        (X1, X2, np.concatenate([ln_theta] * 3, -1)), (X1, X2, ln_theta[..., -1:])]
    if ln_theta.size > 2:                                  # one lengthscale fits all columns
        bad.append((wide(X1), wide(X2), ln_theta))
    for args in bad:
        said = f"ln_theta must have .*entries for {args[0].shape[1]} columns"
        with pytest.raises(ValueError, match=said):
            kernel_function(kind)(*args)


FAR = [
    "far", "outlier", "clusters", "close clusters", "unscaled", "unscaled, l = 1", "nearly equal",
    "ordinary"]


def wide_problem(kind, seed):
    """Random X1, X2, ln_theta: ln sigma_s^2 in [-16, 16], up to a thousand waves; some inputs are
    equal or nearly so.
    """
    rng = np.random.default_rng(seed)
    d = 1 + seed % 4
    X1, X2 = rng.standard_normal((2, 6, d))
    X2[:2] = X1[:2] + [[0.0], [1e-5]]
    ln_l2 = rng.uniform(-3, 3, d)
    ln_k = rng.uniform(-16, 16)
    ln_waves = rng.uniform(-3, 6, (2, d))
    return X1, X2, {
        "periodic": np.array([*ln_l2, *-ln_waves[0], ln_k]),
        "mixture": np.array([[*ln_waves[0], *ln_l2, ln_k], [*ln_waves[1], *ln_l2, ln_k - 1]]),
    }.get(kind, np.append(ln_l2, ln_k))


def long_waves(kind, seed):
    """A wave of one column whose phases err, and whose distance costs nothing."""
    rng = np.random.default_rng(seed)
    X1, X2 = np.array([[[1.0]], [[-1.0]]]) * rng.uniform(1, 2, (2, 2, 1))
    waves = rng.uniform(5, 9)
    return X1, X2, np.array({
        "periodic": [rng.uniform(-2, 2), -min(waves, 6), 0.0],
        "mixture": [[waves, 9.0, 0.0]]}.get(kind, [9.0, 0.0]))


@pytest.mark.parametrize("kind", kernels.KERNELS)
def test_kernel_ulps(kind):
    """No entry errs by more than stated: far inputs, random ones, and mixtures of one long wave,
    which come closest. Of ordinary inputs, whose sigma_s^2 is about 1, at most 30 ulp are stated,
    or 2000 where phases of several periods err.
    """
    row = kernels.KERNELS[kind]
    problems = [far_problem(case, kind) for case in FAR]
    problems += [wide_problem(kind, seed) for seed in range(50)]
    problems += [long_waves(kind, seed) for seed in range(100)]
    shares = []
    worst = 0.0
    for X1, X2, ln_theta in problems:
        K, _ = row.function(X1, X2, ln_theta, by_differences=True)
        k = sum(ln_w.exp() for ln_w in decimals(np.atleast_2d(ln_theta)[:, -1]))
        off = np.abs(decimals(K) - decimal_kernel(X1, X2, ln_theta, kind)).max() / k
        ulps = float(off) / R.ULP
        worst = max(worst, ulps)
        shares.append(ulps / row.ulps(X1, X2, ln_theta))
    print(f"{kind}: at most {worst:.3g} ulp, {max(shares):.2f} of what is stated")
    assert 0.1 < max(shares) <= 1
    X1, X2, ln_theta = kernel_case(kind)
    assert row.ulps(X1, X2, ln_theta) < (2000 if kind in ("periodic", "mixture") else 30)


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("case", FAR)
def test_kernel_far_value(case, kind):
    """Within 1e-10 of the signal variance of 60 digits, and never above it.

    A mixture, whose K is a sum, by an ulp at most.
    """
    X1, X2, ln_theta = far_problem(case, kind)
    K, _ = kernel_function(kind)(X1, X2, ln_theta)
    most = R.signal_variance(ln_theta)
    want = decimal_kernel(X1, X2, ln_theta, kind)

    def error(K):
        return np.abs(decimals(K) - want).max() / Decimal(most)

    print(f"{kind}, {case}: K off by {error(K):.1e}")
    assert error(K) < 1e-10
    assert np.sum(K > 1e-3) > 2
    assert np.all(K <= most * (1 + 2**-52 * (kind == "mixture")))


@pytest.mark.parametrize("kind", KERNELS)
def test_kernel_far_is_near(kind, monkeypatch):
    """On ordinary inputs the branches for near and far ones give the same values and gradients."""
    X1, X2, ln_theta = kernel_case(kind)
    d_K = np.random.default_rng(1).standard_normal((6, 5))
    both_ways = []
    for limit in (math.inf, 0.0):
        monkeypatch.setattr(R, "EXPANSION_ERROR", limit)
        K, back = kernel_function(kind)(X1, X2, ln_theta)
        both_ways.append((K, *back(d_K)))
    assert not np.array_equal(both_ways[0][0], both_ways[1][0])
    assert_all_close(*both_ways, 1e-12)


def test_R_eq08_KL_from_above():
    """The error is added; a KL below 0 by more than its error, or NaN, is a ValueError."""
    for KL, above in ((2.0, 2.25), (0.0, 0.25), (-0.25, 0.25)):
        assert rounding.KL_from_above(KL, 0.25) == above
    for KL in (-0.26, NAN):
        with pytest.raises(ValueError, match="KL divergence .* below 0"):
            rounding.KL_from_above(KL, 0.25)


def test_R_eq24_errors():
    """The objective gives an error, not a number, where an argument is not in its domain."""
    good = dict(GENERIC, KL=1.0, eps=EPS)
    for key, bad in (
        ("var", np.where(np.arange(7) == 4, -1.0, GENERIC["var"])), ("eps", 0.0), ("eps", NAN),
        ("KL", NAN), ("delta", NAN), ("delta", 95), ("N", 0), ("N", -7)):
        with pytest.raises(ValueError, match=key):
            pac_objective(**{**good, key: bad})
    for key in GENERIC:
        for bad in (GENERIC[key][:, None], np.where(np.arange(7) == 4, NAN, GENERIC[key])):
            with pytest.raises(ValueError):
                pac_objective(**{**good, key: bad})


@pytest.mark.parametrize("name", R.LOSSES)
def test_RL_eq31_expected_loss_far(name):
    """1e10 to 1e154 deviations and goals from y a loss is 1, and each derivative 0, not 0 inf."""
    far = 10.0 ** np.array([10, 50, 52, 60, 100, 120, 154])
    for eps, s, sign in itertools.product((1e-3, 1.0), (0.1, 1.0, 1e3), (-1, 1)):
        y = np.ones(7)
        mean = sign * far * max(s, eps)
        with np.errstate(all="ignore"):
            loss, *slopes = R.LOSSES[name](y, mean, np.full(7, s * s), eps)
        assert np.array_equal(loss, y)
        assert not np.any(slopes)


@pytest.mark.parametrize("name", ["Matern52", "SE"])
def test_variances_of_predictors_are_positive(name):
    """Inputs that nearly coincide, and hardly any noise: no predictor claims less than the floor."""
    kernel = kernel_function(name)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        base = rng.uniform(0, 1, (rng.integers(3, 15), 1))
        X = np.concatenate([base, base + rng.choice([0, 1e-9, 1e-7, 1e-5])
                            * rng.standard_normal(base.shape)])
        y = np.sin(6 * X[:, 0])
        ln_k = rng.uniform(-2, 12)
        args = X, y, X, np.array([rng.uniform(-2, 6), ln_k]), ln_k + rng.uniform(-34, -26), kernel
        try:
            _, var = R.full_predict(*args)
        except ValueError:
            continue
        assert np.min(var) >= R.VAR_FLOOR * math.exp(ln_k) * (1 - 1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_R_eq24_risk_from_above(name):
    """No loss at a mean and a variance within the errors is greater.

    A variance below 0 by more than its error is refused.
    """
    y, mean, var = GENERIC.values()
    rng = np.random.default_rng(0)

    def bound(var, error):
        enclosed = rounding.Enclosed(None, mean, var, 0.0, 0.1 * error, error * var, 0.0)
        return rounding.risk_from_above(y, enclosed, EPS, name, 1e-12)

    exact = R.gibbs_risk(y, mean, var, EPS, name)
    above = bound(var, 0.3)
    assert exact < bound(var, 0.0) < exact + 2e-12
    assert above < exact + (0.25 if name == "square" else 0.2)          # its slope is bounded
    for _ in range(300):
        mean_near = mean + 0.03 * rng.choice([-1, 0, 1], 7)
        var_near = var * (1 + 0.3 * rng.uniform(-1, 1, 7))
        assert R.gibbs_risk(y, mean_near, var_near, EPS, name) < above
    with pytest.raises(ValueError, match="variance is -0.01, below 0"):
        bound(np.where(np.arange(7) == 2, -0.01, var), 0.5)


def test_R_eq27_risk_from_above_between():
    """The clipped square may be largest inside an interval of variances, here [0, 2 var]."""
    for c, var in itertools.product((0.3, 0.7, 1.0, 1.5), (1e-12, 1e-8, 1e-4)):
        y = np.zeros(1)
        mean = np.array([EPS - c * math.sqrt(var)])
        between = np.linspace(1e-6, 2, 401) * var
        enclosed = rounding.Enclosed(
            None, mean, np.array([var]), 0.0, 0.0, np.array([var]), 0.0)
        top = R.expected_clipped_square_loss(0.0, mean, between, EPS)[0].max()
        bound = rounding.risk_from_above(y, enclosed, EPS, "square", 1e-30)
        assert top <= bound <= top + 4 * var / EPS**2 + 2e-12


def test_J_sec5_metrics_errors():
    """A column for y, mean or var would give n x n terms: refused. A scalar variance is taken."""
    rows = [np.arange(3.0), np.ones(3), np.full(3, 2.0)]
    for f, n in ((J.nll, 3), (J.crps, 3), (J.rmse, 2)):
        for i in range(n):
            bad = [a[:, None] if j == i else a for j, a in enumerate(rows[:n])]
            with pytest.raises(ValueError, match=r"shape: .*\(3, 1\)"):
                f(*bad)
    for f in (J.nll, J.crps):
        assert f(*rows[:2], 2.0) == f(*rows)
