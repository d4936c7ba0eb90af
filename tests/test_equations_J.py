"""The equations of J (Jankowiak et al. 2020) against their definitions computed another way."""

import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from numpy.random import default_rng
import pytest

import pacgp_ref as R
import predictive as J
from tests.dense import dense_marginals, dense_predict, dense_q, dense_reg, ln_pdf, prior_of
from tests.oracles import assert_all_close, assert_close, each, expectation, same_bytes
from tests.problems import fit_near, J_problem

SIGMA2 = 0.3


# --- J Eq. (4): features; (1), (2) are in test_equations_L.py ------------------------------------


@each("kernel", J.KERNELS)
def test_J_eq04_features_value(kernel):
    """K_MM^-1 is the square of L^-1, whose triangle R_sec31_tri_inv tests; K_NN - V V^T is the
    covariance given u, from the joint precision. Where inducing inputs coincide the jitter keeps L.
    """
    X, _, p = J_problem(kernel=kernel, N=5)
    k, K = prior_of(p, kernel)
    Z, theta = p["Z"], p["ln_theta"]
    for inducing, tol in ((Z, 1e-13), (np.concatenate([Z, Z]), 1e-7)):
        Linv, _ = J.inverse_cholesky(inducing, theta, J.KERNELS[kernel])
        assert_close(Linv @ K(inducing) @ Linv.T, np.eye(len(Linv)), tol)
    (V, ktilde), _ = J.whitened_features(X, Z, theta, J.KERNELS[kernel])
    joint = np.block([[k(X, X), k(X, Z)], [k(Z, X), K(Z)]])
    given_u = np.linalg.inv(np.linalg.inv(joint)[:5, :5])
    assert_close(k(X, X) - V @ V.T, given_u, 1e-11)
    assert_close(ktilde, np.diag(given_u), 1e-11)


@each("method", ["PPGPR-Chol", "PPGPR-MF", "PPGPR-delta", "PPGPR-MFD"])
def test_J_eq18_eq24_batch_objective_mean_of_p(method):
    """As it stands batch_objective is PPGPR's, with the mean that p is for: no Z_mean is lost."""
    X, y, p = J_problem(method)
    value, back = J.batch_objective(p, X, y, 20, 0.3)
    want, want_back = J.objective(p, X, y, 20, method, 0.3)
    assert same_bytes((value, back(1.0)), (want, want_back(1.0)))
    assert back(1.0).keys() == {*p, "X"}


# --- J Eq. (10)-(13), App. B: prediction, FITC ---------------------------------------------------


@pytest.mark.filterwarnings("ignore::UserWarning")
@each("kernel", J.KERNELS)
@each("method", J.METHODS)
def test_J_eq10_eq11_predict_value(method, kernel):
    """At new points, some far away, by dense formulas, and the noise on top."""
    X, y, f = fit_near(method, kernel)
    X_new = np.concatenate(
        [X[:5], default_rng(0).standard_normal((20, 2)), [[1e4, -1e4]]])
    mean, var_f = dense_predict(method, f.params, X_new, X, y, kernel)
    assert_all_close(J.predict(f, X_new), (mean, var_f), 1e-10)
    assert_all_close(J.predict_y(f, X_new), (mean, var_f + math.exp(f.params["ln_noise"])), 1e-10)


@each("method", J.METHODS)
def test_J_appB_predict_cached(monkeypatch, method):
    """After training no factorisation is left; blocks change nothing, nor do threads."""
    X, _, f = fit_near(method)
    X_new = default_rng(0).standard_normal((200, 2))
    want = J.predict(f, X_new)
    for name in ("inverse_cholesky whitened_features marginals_and_reg noisy_factors predictor_at "
                 "predictor_given_data").split():
        monkeypatch.setattr(J, name, None)
    monkeypatch.setattr(R, "BLOCK_BYTES", 1)
    assert len(J.row_blocks(200, 4, least=1)) >= 2
    got = J.predict(f._replace(params={}), X_new)
    assert_all_close(got, want, 1e-12)
    with ThreadPoolExecutor(2) as pool:
        assert same_bytes(J.predict_y(f, X_new, pool.map), J.predict_y(f, X_new))


# --- J Eq. (16): PPGPR's divergence ---------------------------------------------------------------

def test_J_eq16_data_fit_value():
    """-KL(p_data||p) and E ln p differ by p_data's entropy: quadrature over y at one x."""
    a, b = 0.4, 0.7

    def ln_p(y):
        return J.data_fit(y, 0.1, 0.2, 0.3, SIGMA2, 1.0, 1.0)[0]

    minus_kl = -expectation(lambda y: ln_pdf(y, a, b) - ln_p(y), a, b)
    entropy = math.log(2 * math.pi * math.e * b) / 2
    assert_close(minus_kl - expectation(ln_p, a, b), entropy, 1e-13)


# --- J Eq. (27), (28), App. F: Bayes risk and Gibbs risk -----------------------------------------

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(100)
WEIGHTS = WEIGHTS / math.sqrt(2 * math.pi)


def test_J_eq26_eq27_eq28_data_fit_risks():
    """(27) is PPGPR's data term; (28) is VFITC's with p(y|u) of (12), SVGP's with p(y|f), f = k
    K_MM^-1 u + sqrt(ktilde) xi.

    Gauss-Hermite in u (M = 1) and f, without whitening. Per row Bayes < VFITC < SVGP, by Jensen.
    """
    X, y, p = J_problem("SVGP", N=6, M=1)
    (m,), ((S,),) = dense_q(p)
    k, K = prior_of(p)
    s2 = math.exp(p["ln_noise"])
    b = k(X, p["Z"]) / K(p["Z"])
    mean = b * (m + math.sqrt(S) * NODES)
    std = np.sqrt(math.exp(p["ln_theta"][-1]) - b * k(X, p["Z"]))  # rows, nodes of u
    by_f = ln_pdf(y[:, None, None], mean[:, :, None] + std[:, :, None] * NODES, s2)
    by_u = np.log(np.exp(by_f) @ WEIGHTS)  # (12) is (1) with f integrated
    risks = {
        "PPGPR-Chol": -np.log(np.exp(by_u) @ WEIGHTS), "VFITC": -by_u @ WEIGHTS,
        "SVGP": -by_f @ WEIGHTS @ WEIGHTS}
    for method, risk in risks.items():
        value, _ = J.objective(p, X, y, len(y), method, beta_reg=0.0)
        assert_close(risk.mean(), value, 1e-8)
    assert np.all(risks["PPGPR-Chol"] < risks["VFITC"] - 1e-5)
    assert np.all(risks["VFITC"] < risks["SVGP"] - 1e-5)


# --- J Algorithm 1, Sec. 5: units, scores --------------------------------------------------------


@each("z", [-60.0, -9.0, -1.3, 0.0, 1e-9, 0.4, 3.0, 8.0, 40.0])
def test_J_sec5_crps_value(z):
    """E|Y - y| - E|Y - Y'|/2, Y and Y' ~ N(mean, var), by quadrature (Gneiting & Raftery 2007),
    from the middle to far tails, averaged over two rows.
    """
    y = np.array([0.7 + z * math.sqrt(2.3), -0.2])
    mean = np.array([0.7, 0.1])
    var = np.array([2.3, 0.5])
    distance = [expectation(lambda t: np.abs(t - y_i), *at, [y_i])
                for y_i, *at in zip(y, mean, var)]
    spread = [expectation(np.abs, 0.0, 2 * v, [0.0]) for v in var]
    assert_close(J.crps(y, mean, var), np.mean(distance) - np.mean(spread) / 2, 1e-12)


def test_J_sec5_nll_rmse_noise_fraction_value():
    """Row by row; 130 deviations away nothing underflows; a mean of shares, not a share of means.
    """
    y, mean, var = np.array([[0.3, -1.2, 4.0], [0.1, 0.5, -9.0], [0.2, 3.0, 1e-2]])
    scores = J.nll(y, mean, var), J.rmse(y, mean), J.noise_fraction(np.array([1.0, 3.0]), 1.0)
    ln_p = sum(ln_pdf(*row) for row in zip(y, mean, var))
    want = -ln_p / 3, math.sqrt((0.2**2 + 1.7**2 + 13**2) / 3), (1 / 2 + 1 / 4) / 2
    assert_all_close(scores, want, 1e-14)
    assert {*map(type, (*scores, J.crps(y, mean, var)))} == {float}


def test_J_sec5_scores_limit_no_spread():
    """The CRPS of a forecast without spread is its distance; its NLL is refused, elsewhere."""
    y, mean = np.array([[1.0, 2.0, -7.0], [1.0, 2.5, 300.0]])
    assert_close(J.crps(y, mean, np.zeros(3)), (0.5 + 307.0) / 3, 1e-15)
    assert_close(J.crps(y, mean, np.full(3, 1e-30)), (0.5 + 307.0) / 3, 1e-14)


# --- headline equations: marginals J (7), (8), objectives J (3) .. J (18) ----------------------


@each(
    "method", ["PPGPR-Chol", "PPGPR-MF", "PPGPR-delta", "PPGPR-MFD", "OD-SVGP"])
def test_J_eq07_eq08_eq23_eq24_eq25_marginals_value(method):
    """mean, ktilde, the variance of f and reg against the paper, unwhitened, with inverses."""
    for kernel in J.KERNELS:
        X, _, p = J_problem(method, kernel)
        mean, ktilde, svar, reg = J.marginals_and_reg(p, X, J.KERNELS[kernel])[0]
        want_mean, left, seen = dense_marginals(p, X, kernel)
        assert_all_close((mean, ktilde, ktilde + svar), (want_mean, left, left + seen), 1e-12)
        assert np.any(svar) == (method != "PPGPR-delta")
        assert_close(reg, dense_reg(p, kernel), 1e-9 if method == "OD-SVGP" else 1e-12)


def gamma_definition(y, mu, F, s2, gamma):
    """gamma/(gamma-1) (E p(y|f)^(gamma-1) / (int p(t|f)^gamma dt)^((gamma-1)/gamma) - 1), both
    integrals by quadrature.
    """
    c = gamma - 1
    cuts = y + math.sqrt(s2 / c) * np.arange(-40, 41)
    top = expectation(lambda f: np.exp(c * ln_pdf(y, f, s2)), mu, F, cuts)
    integral = expectation(lambda t: np.exp(c * ln_pdf(t, mu, s2)), mu, s2)  # the same for every f
    return gamma / c * (top / integral ** (c / gamma) - 1)


def expected_log(y, mu, outside, inside):
    """E ln N(y | f, inside) over f ~ N(mu, outside), by quadrature."""
    return expectation(lambda f: ln_pdf(y, f, inside), mu, outside)


def log_expected(y, mu, outside, inside):
    """ln E N(y | f, inside) over f ~ N(mu, outside), by quadrature."""
    return math.log(expectation(lambda f: np.exp(ln_pdf(y, f, inside)), mu, outside))


# name -> methods, and g of the target, the mean and the three variances, by its definition
OBJECTIVES = {
    "eq03": (["MAP"], lambda y, mu, kt, sv, s2: expected_log(y, mu, kt, s2)),
    "eq06": (["SVGP", "OD-SVGP"], lambda y, mu, kt, sv, s2: expected_log(y, mu, kt + sv, s2)),
    "eq12": (["PPGPR-delta"], lambda y, mu, kt, sv, s2: ln_pdf(y, mu, kt + s2)),
    "eq15": (["VFITC"], lambda y, mu, kt, sv, s2: expected_log(y, mu, sv, kt + s2)),
    "eq18": (
        [name for name, (g, _) in J.METHODS.items() if g is J.PPGPR_FIT],
        lambda y, mu, kt, sv, s2: log_expected(y, mu, kt + sv, s2)),
}


def assert_objective(method, definition, ln_noise=-1.3, **settings):
    """-mean_i g(y_i, mu_i, ktilde_i, svar_i, sigma2) + beta_reg/N reg, from dense formulas."""
    X, y, p = J_problem(method, ln_noise=ln_noise)
    fit = np.mean([definition(*row, math.exp(ln_noise)) for row in zip(y, *dense_marginals(p, X))])
    for beta, N in ((1.0, 14), (0.05, 20)):  # all rows, and a mini-batch of 20
        value, _ = J.objective(p, X, y, N, method, beta, **settings)
        assert_close(value, beta / N * dense_reg(p) - fit, 1e-12)  # quadrature has 14 digits


@each(
    "name, method", [(name, method) for name, (methods, _) in OBJECTIVES.items()
                     for method in methods])
def test_J_eq03_eq06_eq12_eq15_eq17_eq18_objective_value(name, method):
    """Each objective is its g, by quadrature, and the variant's regulariser: J Sec. 3.3."""
    assert_objective(method, OBJECTIVES[name][1])


def test_J_eq03_eq06_eq12_eq15_eq18_every_method_has_its_definition():
    """A row of METHODS that no test below or above compares with a definition is noticed."""
    defined = {method for methods, _ in OBJECTIVES.values() for method in methods}
    elsewhere = {"gamma-robust", "FITC", "exact"}      # J_eq09, R_eq34, R_eq33
    assert defined | elsewhere == {*J.METHODS}
    assert not defined & elsewhere


def test_J_eq06_eq14_eq15_eq18_eq19_eq20_eq21_eq22_data_fit_value():
    """Between the three objectives: variances seen in part, the rest averaged over outside the
    logarithm, by quadrature. So the factors of (y - mean)^2 are (19)-(21)'s, and what is seen with
    what is averaged over is (14) = (22).
    """
    rng = default_rng(0)
    rows = *rng.standard_normal((2, 5)), *10 ** rng.uniform(-2, 0.5, (2, 5))
    want = [
        expectation(lambda g: ln_pdf(y, g, SIGMA2 + 0.3 * kt + 0.6 * sv), mu, 0.7 * kt + 0.4 * sv)
        for y, mu, kt, sv in zip(*rows)
    ]
    assert_close(J.data_fit(*rows, SIGMA2, 0.3, 0.6)[0], want, 1e-12)


@each("gamma", [1.01, 1.07, 1.5, 2.0])
def test_J_eq09_objective_value(gamma):
    """gamma-robust: the loss of the gamma divergence by its definition, and the KL.

    The print of (9) is another function: tests/test_misprints.py, test_J_eq09_gamma_fit_misprint.
    """
    for sigma2 in (0.3, 1e-2, 30.0):
        def definition(y, mu, kt, sv, s2):
            return gamma_definition(y, mu, kt + sv, s2, gamma)

        assert_objective("gamma-robust", definition, ln_noise=math.log(sigma2),
                         g=partial(J.gamma_fit, gamma=gamma))
