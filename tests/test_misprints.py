"""Evidence that a printed form is wrong, in the order of the papers, by oracles that use neither
form.
"""

import itertools
import math
from decimal import localcontext
from fractions import Fraction

import numpy as np
import pytest

import online as L
import pacgp_ref as R
import predictive as J
from tests.oracles import (
    EPS, INF, NAN, assert_close, central_difference, decimals, dense_K_MM, dense_kernel,
    expectation, gaussian_kl, joint_covariance, ln_normal, ln_pdf, quadrature, relative_error,
    trapezoid)
from test_ref import (
    J_problem, J_total, Known, L_problem, NODES, WEIGHTS, dense_eq11, dense_full_gp, dense_kl,
    dense_marginals, dense_q, dense_reg, first_state, joint_and_gap, known, prior_of, problem,
    whitened)

# --- misprints of R ------------------------------------------------------------------------------

POINT = dict(y=0.3, mean=0.1, var=0.25)


def test_R_eq11_misprint_zero_mean_only():
    """(11) as printed, put into (9) with m(x) = 2, against the exact posterior (6): Z = X, alpha =
    0.

    The right form is a_M = m_M + K_MM Q_MM^-1 K_MN (alpha Lambda + s_n^2 I)^-1 (y - m_N), which is
    what passing y - m(X) and adding m(X_new) does.
    """
    X, y, _, _, ln_noise = problem(N=15)
    ln_theta = np.array([-0.7, -0.5, -0.9, 0.1])

    def m(A):
        return np.full(len(A), 2.0)

    y = y + 2
    X_new = np.random.default_rng(5).standard_normal((9, 3))
    exact, _ = dense_full_gp(X, y, ln_theta, ln_noise, X_new, m)

    def put_in(a_M):
        return m(X_new) + dense_kernel(X_new, X, ln_theta) @ np.linalg.solve(
            dense_K_MM(X, ln_theta), a_M - m(X))

    right, B_MM = dense_eq11(X, y - m(X), X, ln_theta, ln_noise, 0.0)
    printed = put_in(dense_eq11(X, y, X, ln_theta, ln_noise, 0.0)[0])
    print(
        f"R (11): printed {printed[0]:.4f}, right {put_in(m(X) + right)[0]:.4f}, exact "
        f"{exact[0]:.4f}"
    )
    assert relative_error(printed, exact) > 0.1
    assert_close(put_in(m(X) + right), exact, 1e-7)
    Linv, c, S = whitened(X, ln_theta, right, B_MM)
    assert_close(
        m(X_new) + R.sparse_predict(X_new, X, Linv, ln_theta, c, np.linalg.cholesky(S).T)[0], exact,
        1e-7)


def test_R_eq23_misprint_x_is_x():
    """(23) with K(x, x') for K(x, x) gives a covariance with another input where the variance is
    meant.
    """
    X, y, Z, ln_theta, ln_noise = problem()
    (_, var, _), _ = R.sparse_gp(X, y, Z, ln_theta, ln_noise, 1.0)
    K = dense_kernel(X, X, ln_theta)
    printed = var - np.diag(K) + np.diag(K[:, np.r_[1 : len(X), 0]])  # x' = the next row
    print(f"R (23): printed {printed[0]:.4f}, the variance {var[0]:.4f}")
    assert relative_error(printed, var) > 0.5
    assert printed.min() < 0  # not even a variance


def test_R_eq27_L_eq22_expected_clipped_square_loss_misprint():
    """Printed R (27) has the wrong sign at its first boundary term; L (22) has that, and eps^2
    under the root as well.
    """
    y, mean, var = POINT.values()
    s = math.sqrt(var)
    w = y - mean

    def Phi(z):
        return float(R.norm_cdf(z))

    core = (1 - (w**2 + var) / EPS**2) * (Phi((w - EPS) / s) - Phi((w + EPS) / s)) + 1
    terms = [
        (w - EPS) * math.exp(-((w + EPS) ** 2) / (2 * var)),
        (w + EPS) * math.exp(-((w - EPS) ** 2) / (2 * var))]

    def value(sign, front):
        return core + sign * front * terms[0] - front * terms[1]

    under_root = s / math.sqrt(2 * math.pi * EPS**2)
    right = s / (math.sqrt(2 * math.pi) * EPS**2)
    truth = quadrature("square", y, mean, var, EPS)[0, 0]
    print(
        f"R (27) {value(-1, right):.6f}; L (22) {value(-1, under_root):.6f}, with the right sign "
        f"{value(1, under_root):.6f}; "
        f"both right {value(1, right):.6f}, quadrature {truth:.6f}"
    )
    assert abs(value(-1, right) - truth) > 0.1
    assert min(abs(value(sign, under_root) - truth) for sign in (-1, 1)) > 0.03
    assert_close(value(1, right), truth, 2e-15)
    for losses in (R.LOSSES, L.STREAM_LOSSES):
        assert_close(losses["square"](**POINT, eps=EPS)[0], truth, 2e-15)


def test_R_eq28_L_eq16_eq20_expected_exp_loss_misprint():
    """Printed R (28), L (16) = (20) have the standard deviation for the variance in the exponent:
    its units differ.
    """
    y, mean, var = POINT.values()

    def form(y, mean, var, x, eps):
        return 1 - (1 + 2 * var / eps**2) ** -0.5 * math.exp(-((y - mean) ** 2) / (2 * x + eps**2))

    printed = form(y, mean, var, math.sqrt(var), EPS)
    right = form(y, mean, var, var, EPS)
    truth = quadrature("exp", y, mean, var, EPS)[0, 0]
    print(f"printed {printed:.6f}, right {right:.6f}, quadrature {truth:.6f}")
    assert abs(printed - truth) > 0.01
    assert_close(right, truth, 2e-15)
    for y_, mean_, var_, eps in ((y, mean, var, EPS), (3 * y, 3 * mean, 9 * var, 3 * EPS)):
        for f in (R.LOSSES["exp"], L.STREAM_LOSSES["exp"]):
            assert_close(f(y_, mean_, var_, eps)[0], truth, 2e-15)
        as_printed = L.STREAM_LOSSES["exp-printed"](y_, mean_, var_, eps)[0]
        assert_close(as_printed, form(y_, mean_, var_, math.sqrt(var_), eps), 2e-15)
    assert abs(as_printed - printed) > 0.005
    for bad in (0.0, NAN):
        with pytest.raises(ValueError):
            L.expected_printed_exp_loss(y, mean, bad * var, EPS)


def test_R_eq31_expected_01_loss_misprint():
    """Printed (31) lacks 1/sqrt(2 pi): it is 2.5066 times the derivative."""
    y, mean, var = POINT.values()
    s = math.sqrt(var)
    a = (y - EPS - mean) / s
    b = (y + EPS - mean) / s
    printed = -math.exp(-a * a / 2) / s + math.exp(-b * b / 2) / s  # da/dmean = db/dmean = -1/s
    truth = quadrature("01", y, mean, var, EPS)[1, 0]
    print(f"R (31): printed {printed:.5f}, quadrature {truth:.5f}")
    assert_close(printed / truth, math.sqrt(2 * math.pi), 1e-14)
    assert_close(R.expected_01_loss(**POINT, eps=EPS)[1], truth, 1e-14)


def test_R_eq34_sparse_nll_misprint_one_G():
    """exp(-F) of FITC and DTC is a density of y: it integrates to 1 with one G, not with a G in one
    of its two places.
    """
    x = np.array([[0.8]])
    Z = np.zeros((1, 1))
    ln_theta = np.array([0.0, 0.5])
    ln_noise = -1.0
    y = np.linspace(-15, 15, 201)
    for kind in ("FITC", "DTC"):
        F = np.array([R.sparse_nll(x, np.array([v]), Z, ln_theta, ln_noise, kind)[0] for v in y])
        assert_close(np.exp(-F).sum() * (y[1] - y[0]), 1.0, 1e-12)
    q = dense_kernel(Z, x, ln_theta)[0, 0] ** 2 / dense_K_MM(Z, ln_theta)[0, 0]
    det = math.exp(-1.0) + math.exp(0.5)
    quad = q + math.exp(-1.0)  # G in the determinant alone
    one_place = np.exp(-(y**2) / (2 * quad)) / np.sqrt(2 * np.pi * det)
    assert_close(one_place.sum() * (y[1] - y[0]), math.sqrt(quad / det), 1e-12)
    print(
        f"R (34): exp(-F) integrates to {math.sqrt(quad / det):.3f} or "
        f"{math.sqrt(det / quad):.3f} with G in one place"
    )
    assert math.sqrt(quad / det) < 0.8


@pytest.mark.parametrize("kind, alpha", [("VFE", 0.0), ("FITC", 1.0), ("DTC", 0.0)])
def test_R_eq34_sparse_nll_misprint_identity(kind, alpha):
    """F = -ln p(y) + KL(Q||exact posterior), the sentence below (34), holds for VFE: 18.307 =
    18.307, all on (f_M, f_N).

    FITC: 12.79 against 18.60; DTC: 10.62 against 18.31, below -ln p(y) = 12.45 itself.
    """
    X, y, Z, ln_theta, ln_noise = problem(N=12, M=4)
    K_MM = dense_K_MM(Z, ln_theta)
    K_MN = dense_kernel(Z, X, ln_theta)
    K_NN = dense_kernel(X, X, ln_theta)
    P = np.block([[K_MM, K_MN], [K_MN.T, K_NN]])
    A = K_NN + np.exp(ln_noise) * np.eye(12)
    cross = np.vstack([K_MN, K_NN])
    exact = cross @ np.linalg.solve(A, y), P - cross @ np.linalg.solve(A, cross.T)
    a, B = dense_eq11(X, y, Z, ln_theta, ln_noise, alpha)
    F = np.linalg.solve(K_MM, K_MN).T
    Q = np.r_[a, F @ a], np.block([[B, B @ F.T], [F @ B, F @ B @ F.T + K_NN - F @ K_MN]])
    nll = R.full_gp_nll(X, y, ln_theta, ln_noise)[0]
    sides = R.sparse_nll(X, y, Z, ln_theta, ln_noise, kind)[0], nll + gaussian_kl(*Q, *exact)
    print(f"R, below (34): {kind}: F {sides[0]:.4f}, -ln p + KL {sides[1]:.4f}, -ln p {nll:.3f}")
    if kind == "VFE":
        assert_close(*sides, 1e-13)
    else:
        assert sides[0] < sides[1] - 5  # nats


def test_R_sec4_ln_grid_size_misprint():
    """sarcos: 14.18 nats over 39146 rows is .0004; the print has .0003."""
    assert round(R.ln_grid_size(2), 2) == 14.18
    assert round(R.ln_grid_size(2) / 39146, 4) == 0.0004


def test_R_appC_loss_relative_misprint():
    """Printed max{|yhat - y|/|y|, 1}: no prediction, not even the right one, is below 1, and there
    is no upper bound.
    """

    def printed(y, yhat):
        return max(abs((yhat - y) / y), 1)

    z = np.linspace(-8, 8, 4001)

    # yhat ~ N(y, y^2/16)
    def mean(cut):
        return np.average([cut(abs(v) / 4, 1) for v in z], weights=np.exp(-(z**2) / 2))

    print(
        f"App. C, expected: printed {mean(max):.4f}, right {mean(min):.5f}, at 20 for 2 "
        f"{printed(2.0, 20.0):.0f}"
    )
    assert printed(2.0, 2.0) == 1
    assert printed(2.0, 20.0) == 9
    assert R.loss_relative(2.0, 2.0) == 0
    assert R.loss_relative(2.0, 20.0) == 1


# --- misprints of J ------------------------------------------------------------------------------


def test_J_eq05_objective_misprint():
    """The first line, E_q ln p(y, u) + H[q], is above the second, the SVGP objective: no equality
    but another Jensen bound.

    One inducing input, quadrature over u of the dense density of (y, u). The gap is E_q KL(p(f|u)
    || p(f|u, y)).
    """
    X, y, p = J_problem("SVGP", N=3, M=1)
    (m,), ((S,),) = dense_q(p)
    nodes, weights = np.polynomial.hermite_e.hermegauss(
        10)  # exact here: both integrands are parabolas in u
    mean_ln_p, gap = (
        weights
        @ [joint_and_gap(y, np.array([m + math.sqrt(S) * t]), X, p) for t in nodes]
        / weights.sum()
    )
    first = mean_ln_p + math.log(2 * math.pi * math.e * S) / 2
    second = J_total(p, X, y, "SVGP")
    print(
        f"J (5): first line {first:.6f}, second line {second:.6f}, difference "
        f"{first - second:.6f} nats"
    )
    assert first - second > 0.5
    assert_close(first - second, gap, 1e-10)


@pytest.mark.parametrize("gamma", [1.05, 1.5])
def test_J_eq09_gamma_fit_misprint(gamma):
    """y ~ N(a, b), no uncertainty of f: the best mu, sigma2 are a, b. Printed, p^(gamma-1): a, (2 -
    gamma) b, and 1 for ln p.

    Expectations over y by quadrature; at a maximum the slopes vanish and neighbours are lower.
    """
    a, b, zero = 0.4, 0.7, 0.0

    def full(mu, s2):
        return expectation(lambda y: J.gamma_fit(y, mu, zero, zero, s2, gamma)[0], a, b)

    def printed(mu, s2):
        return expectation(lambda y: np.exp((gamma - 1) * ln_pdf(y, mu, s2)), a, b)

    for g, best in ((full, b), (printed, (2 - gamma) * b)):
        slopes = central_difference(lambda v: g(v[0], math.exp(v[1])), [a, math.log(best)], 1e-2)
        assert np.max(np.abs(slopes)) < 1e-9
        assert g(a, best) > max(
            g(a + 0.1, best), g(a - 0.1, best), g(a, 1.1 * best), g(a, 0.9 * best))
        print(
            f"J (9), gamma {gamma}: the {'printed' if g is printed else 'full'} loss is largest "
            f"at sigma2 = {best / b:.2f} b"
        )
    y, mu = 1.3, 0.2
    print(
        f"J (9), gamma - 1 = 1e-8: printed {math.exp(1e-8 * ln_pdf(y, mu, b)):.6f}, ln p "
        f"{ln_pdf(y, mu, b):.6f}"
    )
    assert abs(math.exp(1e-8 * ln_pdf(y, mu, b)) - 1) < 1e-7
    assert ln_pdf(y, mu, b) < -1.5
    assert_close(J.gamma_fit(y, mu, zero, zero, b, 1 + 1e-8)[0], ln_pdf(y, mu, b), 1e-6)


def test_J_eq17_eq18_objective_misprint():
    """(17) averages over the data, (18) sums: N times (17) is (18) where (17)'s beta_reg is the
    N-th part of (18)'s.
    """
    X, y, p = J_problem("PPGPR-Chol")
    mu, kt, sv = dense_marginals(p, X)
    N = len(y)
    beta = 0.2
    KL = dense_reg(p)
    per_row = ln_pdf(y, mu, kt + sv + math.exp(p["ln_noise"]))

    def eq17(beta):
        return np.mean(per_row) - beta * KL

    eq18 = np.sum(per_row) - beta * KL
    objective = -J.objective(p, X, y, N, "PPGPR-Chol", beta)[0]
    print(f"J (17) {eq17(beta):.6f}, (18)/N {eq18 / N:.6f} at beta_reg = {beta}, N = {N}")
    assert_close(objective, eq18 / N, 1e-13)
    assert_close(objective, eq17(beta / N), 1e-13)
    assert abs(eq17(beta) - eq18 / N) > 0.1


@pytest.mark.parametrize("method", ["MAP", "PPGPR-delta", "PPGPR-MFD"])
def test_J_eq23_marginals_misprint_whitening(method):
    """Whitening drops ln|K|/2, of the inducing inputs of the mean, from -ln p(u) and from (23)'s
    second line: it depends on ln_theta and Z, so the optimum moves; J Sec. 3.4, App. E.
    """
    X, _, p = J_problem(method)
    dropped = []
    for theta in (p["ln_theta"], p["ln_theta"] + [1.0, -1.0, 0.5]):
        q = dict(p, ln_theta=theta)
        u, S = dense_q(q)
        K = prior_of(q)[1]
        zero = np.zeros(4)
        constant = len(p["m"]) / 2 * math.log(2 * math.pi)
        K_mean = K(q.get("Z_mean", q["Z"]))
        full = -ln_normal(u, 0 * u, K_mean) + (
            gaussian_kl(zero, S, zero, K(q["Z"])) if "L_S" in p else 0.0)
        reg = J.marginals(q, X)[0][3]
        dropped.append(full - reg - constant)
        assert_close(dropped[-1], np.linalg.slogdet(K_mean)[1] / 2, 1e-11)
        print(
            f"-ln p(u) {full:.4f}; reg {reg:.4f} less by M ln(2 pi)/2 {constant:.4f} and "
            f"{dropped[-1]:.4f}"
        )
    assert abs(dropped[1] - dropped[0]) > 0.1


def two_inducing_inputs():
    """p of SE with Z 0.8 apart, x; K_MM, k(x, Z), Cholesky factor; b, v of p(f(x) | u) = N(b u, v)
    by the joint precision.
    """
    p = dict(
        ln_theta=np.array([0.0, math.log(2)]), ln_noise=np.array(math.log(0.09)),
        Z=np.array([[0.0], [0.8]]), m=np.array([1.0, -0.5]), L_S=np.array([[0.6, 0.0], [0.3, 0.4]]))
    x = np.array([[0.3]])
    k, K = prior_of(p, "SE")
    Z = p["Z"]
    P = np.linalg.inv(np.block([[k(x, x), k(x, Z)], [k(Z, x), K(Z)]]))
    return p, x, K(Z), k(x, Z)[0], np.linalg.cholesky(K(Z)), -P[0, 1:] / P[0, 0], 1 / P[0, 0]


def test_J_appE_features_misprint():
    """Printed k^T L^-1 u' for k^T L^-T u', against E[f | u], u = L u'; it is right for a symmetric
    root of K_MM alone.

    Printed S' = L^-1 S L^-1, not symmetric, against the covariance of L^-1 u over points u that
    have covariance S.
    """
    p, x, K, k, L, b, v = two_inducing_inputs()
    (mu, ktilde, svar, _), _ = J.marginals(p, x, "SE")
    w, E = np.linalg.eigh(K)
    Linv = np.linalg.inv(L)
    m = p["m"]
    S = L @ p["L_S"] @ p["L_S"].T @ L.T
    root = E @ np.diag(np.sqrt(w)) @ E.T
    points = np.linalg.solve(L, np.linalg.cholesky(S))
    assert_close(k @ np.linalg.inv(root) @ m, b @ root @ m, 1e-12)
    assert_close([mu[0], ktilde[0], svar[0]], [b @ L @ m, v, b @ S @ b], 1e-12)
    assert_close(p["L_S"] @ p["L_S"].T, points @ points.T, 1e-12)
    mean = k @ Linv @ m
    printed = Linv @ S @ Linv
    var = k @ Linv.T @ printed @ Linv @ k
    print(
        f"J App. E, mean at x = 0.3: printed {mean:.6f}, transposed {mu[0]:.6f}, oracle "
        f"{b @ L @ m:.6f}"
    )
    print(
        f"J App. E, S': printed {np.round(printed, 4).tolist()}; variance {var:.6f}, oracle "
        f"{b @ S @ b:.6f}"
    )
    assert abs(mean - mu[0]) > 0.1
    assert abs(var - svar[0]) > 1e-2
    assert abs(printed[0, 1] - printed[1, 0]) > 0.1


def test_J_appE_objective_misprint():
    """The whitened bound has sigma_obs for sigma_obs^2, twice. Oracle: E ln p(y|f) given u' by
    quadrature, and ln N(u'|0,I).
    """
    p, x, K, k, L, b, ktilde = two_inducing_inputs()
    del p["L_S"]
    s = 0.3
    y = 0.9
    mean = b @ (L @ p["m"])
    ln_prior = -np.sum(p["m"] ** 2) / 2 - math.log(2 * math.pi)
    true = expectation(lambda f: ln_pdf(y, f, s**2), mean, ktilde) + ln_prior
    printed = ln_pdf(y, mean, s) - ktilde / (2 * s) + ln_prior
    ours = J_total(p, x, np.array([y]), "MAP", kernel="SE") - math.log(2 * math.pi)
    print(
        f"J App. E, bound at sigma_obs = 0.3: printed {printed:.6f}, with variances {ours:.6f}, "
        f"oracle {true:.6f}"
    )
    assert_close(ours, true, 1e-12)
    assert abs(printed - true) > 0.1


def test_J_appE_marginals_misprint_two_families():
    """'S diagonal' (Sec. 3.4, (25)) and 'S' diagonal' (App. E) are two families: the prior, S =
    K_MM, is in the second alone.

    KL(N(0,S)||N(0,K_MM)) is least, over diagonal S, at S_ii = 1/(K^-1)_ii, where it is not 0; over
    diagonal S' at S' = I: 0.
    """
    p, _, K, _, L, _, _ = two_inducing_inputs()
    zero = np.zeros(2)
    best = np.diag(1 / np.diag(np.linalg.inv(K)))
    rng = np.random.default_rng(0)
    least = gaussian_kl(zero, best, zero, K)
    others = [
        gaussian_kl(zero, best * np.exp(s * rng.standard_normal(2)), zero, K)
        for s in np.repeat([0.01, 0.1, 1.0], 20)
    ]
    reg = J.marginals(dict(p, m=zero, L_S=np.ones(2)), p["Z"], "SE")[0][3]
    print(f"J App. E: least KL(q||p) with S diagonal {least:.6f} nats, with S' diagonal {reg:.6f}")
    assert min(others) > least > 0.3
    assert reg == 0


# --- misprints of J, App. G, about BB-alpha ------------------------------------------------------

GRID = np.linspace(-11, 11, 8801)  # omega


def integral(ln_f):
    return float(np.log(trapezoid(np.exp(ln_f - ln_f.max()), GRID)) + ln_f.max())


def normalised(ln_f):
    return ln_f - integral(ln_f)


def grid_kl(ln_q, ln_p):
    return trapezoid(np.exp(ln_q) * (ln_q - ln_p), GRID)


def eq30(ln_q, ln_p0, ln_f, alpha, ln_mean=None):
    """-1/alpha sum_n ln E_q[(f_n p0^(1/N) / q^(1/N))^alpha]; the mean over ln_mean in place of q,
    if given.
    """
    N = len(ln_f)
    ln_mean = ln_q if ln_mean is None else ln_mean
    return -sum(integral(ln_mean + alpha * (f + (ln_p0 - ln_q) / N)) for f in ln_f) / alpha


def data_term(ln_q, ln_f, alpha):
    """-1/alpha sum_n ln E_q[f_n^alpha]: the second term of (31), (33) and, at alpha = 1, (34)."""
    return -sum(integral(ln_q + alpha * f) for f in ln_f) / alpha


def student_case(N):
    """ln p0, ln q~ and N log-factors, none Gaussian but p0: Student factors, a skewed q~."""
    y = np.random.default_rng(0).standard_normal(N) + 1
    ln_f = [-2.5 * np.log1p((GRID - v) ** 2 / 2) for v in y]
    return (
        ln_pdf(GRID, 0, 1),
        normalised(np.logaddexp(ln_pdf(GRID, 0.8, 0.2), ln_pdf(GRID, 1.5, 0.6))), ln_f)


def gp_case(alpha):
    """A sparse GP, N = 6, M = 1: X, y, p; ln p0 and ln q of omega = u'; factors whose alpha-th
    power is E p(y_n|f)^alpha given u', f ~ N(V_n u', ktilde_n), by Gauss-Hermite.
    """
    X, y, p = J_problem("SVGP", N=6, M=1)
    V = J.features(X, p["Z"], p["ln_theta"])[0][:, 0]
    ktilde = J.marginals(p, X)[0][1]
    s2 = math.exp(p["ln_noise"])
    ln_f = [
        np.log(np.exp(alpha * ln_pdf(t, v * GRID[:, None] + math.sqrt(k) * NODES, s2)) @ WEIGHTS)
        / alpha
        for t, v, k in zip(y, V, ktilde)
    ]
    return (X, y, p), ln_pdf(GRID, 0, 1), ln_pdf(GRID, p["m"][0], p["L_S"][0, 0] ** 2), ln_f


@pytest.mark.parametrize("alpha", [1.0, 0.5, 0.05])
@pytest.mark.parametrize("N", [2, 5, 20, "gp"])
def test_J_eq29_eq30_eq31_eq32_misprint(N, alpha):
    """(30) = (31) if q is made from q~ by (32): q is the approximation and q~, prop. to
    q^(1-alpha/N) p0^(alpha/N), the cavity.

    The text below (30) calls q the cavity. With that, q the cavity of q~, the two differ; so they
    do with the mean in (30) taken over the cavity.
    """
    ln_p0, ln_tilde, ln_f = gp_case(alpha)[1:] if N == "gp" else student_case(N)
    N = len(ln_f)

    def cavity(ln_q):
        return normalised((1 - alpha / N) * ln_q + alpha / N * ln_p0)

    ln_q = normalised(ln_tilde + (ln_tilde - ln_p0) * alpha / (N - alpha))  # (32)
    assert np.max(np.abs(np.exp(cavity(ln_q)) - np.exp(ln_tilde))) < 1e-12
    xi = N / (N - alpha)
    renyi = integral(xi * ln_tilde + (1 - xi) * ln_p0) / (xi - 1)  # R_xi(q~||p0)
    want = renyi + data_term(ln_tilde, ln_f, alpha)  # (31)
    assert_close(eq30(ln_q, ln_p0, ln_f, alpha), want, 1e-11)
    others = [
        eq30(cavity(ln_tilde), ln_p0, ln_f, alpha) - want,
        eq30(ln_q, ln_p0, ln_f, alpha, ln_mean=ln_tilde) - want]
    print(
        f"N = {N}, alpha = {alpha}: (31) {want:.5f}; q read as cavity, or the mean over it: off by",
        np.round(others, 5))
    assert min(np.abs(others)) > 1e-4 * alpha  # both readings meet as alpha -> 0


def test_J_eq30_eq33_limit():
    """alpha -> 0, N fixed: (30) tends to (33), the gap a multiple of alpha, and both to the bound
    of variational inference.
    """
    ln_p0, ln_q, ln_f = student_case(5)
    KL = grid_kl(ln_q, ln_p0)
    alphas = np.array([0.2, 0.02, 0.002])
    at30 = np.array([eq30(ln_q, ln_p0, ln_f, alpha) for alpha in alphas])
    gaps = at30 - KL - [data_term(ln_q, ln_f, alpha) for alpha in alphas]
    assert abs(gaps[0]) > 1e-2
    assert np.all(np.abs(gaps[:-1] / gaps[1:] / 10 - 1) < [0.25, 0.025])
    elbo = KL - sum(trapezoid(np.exp(ln_q) * f, GRID) for f in ln_f)
    assert abs((10 * at30[2] - at30[1]) / 9 - elbo) < 1e-3 < abs(at30[1] - elbo)


def test_J_eq31_eq33_eq34_objective_limit():
    """The data term at alpha = 1 is PPGPR's, for alpha -> 0 SVGP's or, with f integrated out of
    each factor, VFITC's.
    """
    (X, y, p), ln_p0, ln_q, ln_f = gp_case(1.0)

    def of(method, beta):
        return len(y) * J.objective(p, X, y, len(y), method, beta)[0]

    assert_close(data_term(ln_q, ln_f, 1.0), of("PPGPR-Chol", 0.0), 1e-11)
    assert_close(
        grid_kl(ln_q, ln_p0) + data_term(ln_q, ln_f, 1.0), of("PPGPR-Chol", 1.0), 1e-11)  # (34)
    for method, factors in (
        ("SVGP", lambda alpha: gp_case(alpha)[3]), ("VFITC", lambda alpha: ln_f)):
        a, b = (
            data_term(ln_q, factors(alpha), alpha) - of(method, 0.0) for alpha in (0.002, 0.001))
        assert abs(2 * b - a) < 0.01 * abs(b) < 1e-3
        assert abs(b) > 1e-4


def test_J_eq33_eq34_misprint():
    """alpha = 1: N -> oo is not enough for (34). For a fixed q what is dropped does not shrink and
    may be twice the KL kept.

    q = N(.5, .3^2), p0 = N(0, 1), f_n = N(y_n | omega, .1), y_n = 2: (30) - (34) tends to mean_n
    E[ln q/p0] - KL, E under q f_n / Z_n, here -2.3 KL. At the posterior (30) - (34) does go down
    like 1/N.
    """
    ln_p0 = ln_pdf(GRID, 0, 1)
    ln_q = ln_pdf(GRID, 0.5, 0.09)
    f = ln_pdf(GRID, 2.0, 0.1)
    Ns = (10, 100, 1000)

    def dropped(ln_q, N):
        return (
            N
            * (integral(ln_q + f) - integral(ln_q + f + (ln_p0 - ln_q) / N))
            / grid_kl(ln_q, ln_p0)
            - 1
        )

    limit = (
        trapezoid(np.exp(normalised(ln_q + f)) * (ln_q - ln_p0), GRID) / grid_kl(ln_q, ln_p0) - 1)
    at_q = [dropped(ln_q, N) for N in Ns]
    at_posterior = [dropped(ln_pdf(GRID, 2 * N / (N + 0.1), 0.1 / (N + 0.1)), N) for N in Ns]
    print(
        f"N = {Ns}: (30) - (34) over the KL kept {np.round(at_q, 4)}; at the posterior "
        f"{np.round(at_posterior, 5)}"
    )
    assert limit < -2.2
    assert all(abs(b - limit) < 0.11 * abs(a - limit) for a, b in zip(at_q, at_q[1:]))
    assert all(abs(b) < 0.11 * abs(a) for a, b in zip(at_posterior, at_posterior[1:]))
    assert abs(at_q[2] - limit) < 0.01


# --- misprints of L ------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["same", "new"])
def test_L_eq07_eq08_free_energy_misprint(kernel):
    """One inducing input, two old rows, a new one: (7) as printed does not integrate to 1, with an
    old or a new kernel.

    Reference: integrals on a plane, (a, f(x_new)), of p(f|theta_new) p(y_new|f)
    q_old(a)/p(a|theta_old), and Z_2/Z_1 of (5), (6) from the exact evidences. The right constant is
    1/(that integral), for one kernel 1/p(y_new|y_old) of the approximate posterior. So (8) less its
    constant has as its minimum -ln of the integral, which is reached where Z holds a and x_new.
    """
    Z = np.zeros((1, 1))
    x_new = np.array([[0.6]])
    y_new = np.array([-0.4])
    ln_noise = -1.0
    X = np.array([[0.8], [-1.1]])
    y = np.array([1.2, -0.7])
    theta = np.array([0.0, 0.3])
    theta_new = theta + (kernel == "new") * np.array([0.3, -0.4])
    s2 = math.exp(ln_noise)
    m, S = Known(Z, theta, np.zeros((1, 1)), np.zeros(1)).with_rows(X, y, s2).moments()
    state = L.update(L.prior(Z, theta), X, y, ln_noise)
    v = np.linspace(-12, 12, 1201)
    C = joint_covariance([(Z, True), (x_new, False)], theta_new)
    K_old = joint_covariance([(Z, True)], theta)[0, 0]
    a, f = np.meshgrid(v, v, indexing="ij")
    slope = C[1, 0] / C[0, 0]  # p(a) p(f|a) p(y|f) q_old(a) / p_old(a)
    ln = (
        ln_pdf(a, 0, C[0, 0])
        + ln_pdf(f, slope * a, C[1, 1] - slope * C[0, 1])
        + ln_pdf(y_new[0], f, s2)
    )
    integral = trapezoid(
        trapezoid(np.exp(ln + ln_pdf(a, m[0], S[0, 0]) - ln_pdf(a, 0, K_old)), v), v)

    def evidence(X, y, theta):
        return math.exp(ln_normal(y, 0 * y, dense_kernel(X, X, theta) + s2 * np.eye(len(y))))

    prefactor = evidence(X, y, theta) / evidence(
        np.concatenate([X, x_new]), np.concatenate([y, y_new]), theta_new)
    print(
        f"{kernel} kernel: the printed (7) integrates to {prefactor * integral:.4f}; right "
        f"prefactor {1 / integral:.4f}, "
        f"printed {prefactor:.4f}"
    )
    assert abs(prefactor * integral - 1) > 0.5
    if kernel == "same":
        mean, var = L.predict(state, x_new)
        assert_close(integral, math.exp(ln_normal(y_new, mean, np.diag(var + s2))), 1e-12)
    p = dict(Z=np.concatenate([Z, x_new]), ln_theta=theta_new, ln_noise=np.array(ln_noise))
    F = L.free_energy(p, state, x_new, y_new)[0]
    assert_close(F, -math.log(integral), 1e-7)  # the jitter of x_new's inducing variable
    assert L.free_energy(dict(p, Z=Z + 0.3), state, x_new, y_new)[0] > -math.log(integral) + 1e-3
    assert abs(F - math.log(prefactor)) > 0.1  # (8) as printed, at q = p^: no KL, which is 0


def test_L_eq09_online_bound_misprint_expectation():
    """One fair coin copied m times, h fixed, KL = 0: the printed left side, m E l, is above the
    right in half of all runs.

    The risk given the past is 1/2 once, then the coin itself: no run of the two violates the bound
    on that sum.
    """
    m, delta = 100, 0.05
    for printed in (True, False):
        lam = L.best_lam(m, 0.0, delta) / (2 if printed else 1)  # the best for either constant
        plain = Fraction(0)
        conditional = Fraction(0)
        for coin in (0, 1):
            right = L.online_bound(float(m * coin), 0.0, m, lam, delta, printed=printed)
            plain += Fraction(1, 2) * (Fraction(m, 2) > right)
            conditional += Fraction(1, 2) * (Fraction(1, 2) + (m - 1) * coin > right)
        assert plain == Fraction(1, 2) > delta
        assert conditional == 0


@pytest.mark.parametrize("moved", [None, "variance", "lengthscale"])
def test_L_eq13_process_kl_misprint_kernel_moves(moved):
    """KL of the values of f on 5, 10, 20, 40 inputs, in 180 digits: where the kernel stays it grows
    to the process KL.

    Where it moves it has no limit, and the process KL is inf: a variance 10 % other adds (r - 1 -
    ln r)/2 an input, a lengthscale ever more.
    """
    q = L_problem("SE")
    old = first_state(q)
    change = {"variance": [0.0, math.log(1.1)], "lengthscale": [2 * math.log(1.1), 0.0]}.get(moved)
    new = (
        L.update(old, q["X_a"][:0], q["y_a"][:0], 0.0, ln_theta=old.ln_theta + change)
        if moved
        else L.update(old, q["X_b"], q["y_b"], -0.8, q["Z_b"])
    )
    with localcontext() as context:
        context.prec = 180
        pair = (known(new, decimals), known(old, decimals))
        grids = [np.linspace(-2, 2, n)[:, None] for n in (5, 10, 20, 40)]
        kls = [dense_kl(*pair, (decimals(grid), False)) for grid in grids]
    value = L.process_kl(new, old)
    steps = np.diff(kls)
    print(
        f"{moved} moves: KL on 5, 10, 20, 40 inputs {', '.join(f'{v:.8g}' for v in kls)}, of the "
        f"processes {value:.8g}"
    )
    assert np.all(steps > 0)
    assert kls[-1] < value
    if moved is None:
        assert_close(kls[-1], value, 1e-6)
        assert kls[0] < 0.99 * value
        return
    assert value == INF == L.process_kl(old, new)
    if moved == "variance":
        assert_close(steps[-1] / 20, (1.1 - 1 - math.log(1.1)) / 2, 0.05)
    else:
        assert np.all(steps[1:] > 4 * steps[:-1])  # as the square of their number, at least


@pytest.mark.parametrize("m", [1, 2, 10, 1000, 10**6])
def test_L_sec51_online_bound_misprint_lam(m):
    """lam = 1/m: the bound is above m, what is known without a theorem, for every delta < 1/e; with
    K^2/8, too.
    """
    for delta, printed in itertools.product((math.exp(-1), 0.3, 0.05, 1e-9), (True, False)):
        assert L.online_bound(0.0, 0.0, m, 1 / m, delta, printed=printed) > m
    assert m <= 2 or L.online_bound(0.0, 0.0, m, 1 / m, 0.5) < m
    assert m < 10 or L.online_bound(0.0, 0.0, m, L.best_lam(m)) < m
