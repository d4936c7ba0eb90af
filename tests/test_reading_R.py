"""docs/reading-R.md: the printed and the computed form of each equation agree in a random case.

The printed forms are dense NumPy, letter by letter, corrected where the page has a star. Matrices
are well-conditioned (condition number below 1e3), so that 1e-12 leaves room for rounding and for
nothing else. Every equation has a display, and every misprint a star.
"""

import ast
import inspect
import math
import pathlib
import re

import numpy as np
import pytest
from tests.dense import dense_K_MM, dense_kernel
from tests.oracles import assert_close

import pacgp_ref as R

TOL = 1e-12
DOCS = pathlib.Path(__file__).resolve().parents[1] / "docs"
PAGE = (DOCS / "reading-R.md").read_text()


@pytest.fixture
def rows():
    """X, y, Z, ln_theta, ln_noise, alpha of a small problem, one inducing input a unit length."""
    rng = np.random.default_rng(11)
    X = rng.uniform(0, 6, (12, 1))
    Z = np.linspace(0.3, 5.7, 5)[:, None]
    return X, rng.standard_normal(12), Z, np.array([-0.4, 0.3]), -0.7, 0.6


@pytest.fixture
def matrices(rows):
    """K_NN, K_NM, K_MM of these rows; K_MM with its jitter."""
    X, _, Z, ln_theta, _, _ = rows
    return dense_kernel(X, X, ln_theta), dense_kernel(X, Z, ln_theta), dense_K_MM(Z, ln_theta)


def test_R_eq05_reading():
    """kl(R_S||B) is the complexity in brackets: B inverts it."""
    risk, KL, N, delta, penalty = 0.2, 3.0, 50, 0.05, 1.5
    B = R.pac_bayes_bound(risk, KL, N, delta, penalty)
    kl = risk * math.log(risk / B) + (1 - risk) * math.log((1 - risk) / (1 - B))
    assert_close(kl, (KL + penalty + math.log(2 * math.sqrt(N) / delta)) / N, 1e-10)  # B + 1e-12


def test_R_eq12_eq13_reading():
    """The printed derivatives of kl^-1, with the denominator in front, and those computed."""
    q, eps = 0.3, 0.2
    k = R.kl_inv(q, eps)
    denominator = (1 - q) / (1 - k) - q / k
    by_q = (math.log((1 - q) / (1 - k)) - math.log(q / k)) / denominator
    assert_close(R.kl_inv_grad(q, eps), [by_q, 1 / denominator], 1e-11)  # k + 1e-12


LOSSES = {
    "01": lambda y, v, eps: float(abs(y - v) > eps),
    "square": lambda y, v, eps: min(((y - v) / eps) ** 2, 1),
    "exp": lambda y, v, eps: 1 - math.exp(-(((y - v) / eps) ** 2)),
    "band": lambda y, v, eps: float(not y - eps * abs(y) <= v <= y + eps * abs(y)),
    "relative": lambda y, v, eps: min(abs((v - y) / (eps * y)), 1),
}


@pytest.mark.parametrize("name", LOSSES)
def test_R_eq18_eq19_eq20_eq21_reading(name):
    """The losses as printed, the relative one with min for max and with eps."""
    shipped = {
        "01": R.loss_01,
        "square": R.loss_clipped_square,
        "exp": R.loss_exp,
        "band": lambda y, v, eps: R.loss_band(y, v, y - eps * abs(y), y + eps * abs(y)),
        "relative": R.loss_relative,
    }
    for y, v in ((1.3, 1.2), (1.3, 2.9), (-0.7, -0.9), (-0.7, 0.4)):
        assert_close(shipped[name](y, v, 0.5) + 1, LOSSES[name](y, v, 0.5) + 1, TOL)


def test_R_eq27_reading():
    """(27*) with the signs of the page; with the printed sign it is another number."""
    y, mean, var, eps = 0.3, 0.1, 0.25, 0.6
    s = math.sqrt(var)
    u = mean - y
    a = (-eps - u) / s
    b = (eps - u) / s
    phi_a, phi_b = (math.exp(-z * z / 2) / math.sqrt(2 * math.pi) for z in (a, b))
    Phi_a, Phi_b = (math.erfc(-z / math.sqrt(2)) / 2 for z in (a, b))
    middle = (1 - (u**2 + var) / eps**2) * (Phi_a - Phi_b) + 1
    edge_b = s / eps**2 * (u + eps) * phi_b
    edge_a = s / eps**2 * (eps - u) * phi_a
    loss, d_mean, d_var = R.LOSSES["square"](*np.array([[y], [mean], [var]]), eps)
    assert_close(loss[0], middle - edge_b - edge_a, TOL)
    assert abs(loss[0] - (middle + edge_b - edge_a)) > 0.01
    assert_close(d_mean[0], 2 / eps**2 * (u * (Phi_b - Phi_a) + s * (phi_a - phi_b)), TOL)
    assert_close(d_var[0], ((Phi_b - Phi_a) - eps / s * (phi_a + phi_b)) / eps**2, TOL)


def test_R_eq28_reading():
    """(28*), and that the printed exponent is another number."""
    y, mean, var, eps = 0.3, -0.2, 0.6, 0.5
    front = 1 / math.sqrt(1 + 2 * var / eps**2)
    star = 1 - front * math.exp(-((y - mean) ** 2) / (2 * var + eps**2))
    printed = 1 - front * math.exp(-((y - mean) ** 2) / (2 * math.sqrt(var) + eps**2))
    loss = R.LOSSES["exp"](*np.array([[y], [mean], [var]]), eps)[0][0]
    assert_close(loss, star, TOL)
    assert abs(loss - printed) > 0.01


def test_R_appC_reading_series():
    """The numbers a_k of the series by the midpoint rule; NARROW as the page has it."""
    t = (np.arange(2_000_000) + 0.5) / 1_000_000 - 1
    for series, loss in ((R.SQUARE_SERIES, t**2), (R.RELATIVE_SERIES, np.abs(t))):
        a = [np.mean(2 * (1 - loss) * t ** (2 * k)) / math.factorial(2 * k) for k in range(3)]
        assert_close(series, a, 1e-10)
    assert f"below {R.NARROW} these two" in " ".join(PAGE.split())


def test_R_eq31_reading():
    """Slopes of Phi(a) + 1 - Phi(b): da and db times the density, which print lacks a factor of."""
    y, mean, var, eps = 0.3, -0.2, 0.6, 0.5
    s = math.sqrt(var)
    a = (y - eps - mean) / s
    b = (y + eps - mean) / s
    density_a, density_b = (math.exp(-z * z / 2) / math.sqrt(2 * math.pi) for z in (a, b))
    by_mean = -1 / s * density_a + 1 / s * density_b
    by_var = -a / (2 * var) * density_a + b / (2 * var) * density_b
    _, d_mean, d_var = R.expected_01_loss(np.array([y]), np.array([mean]), np.array([var]), eps)
    assert_close([d_mean[0], d_var[0]], [by_mean, by_var], TOL)


def test_R_sec31_reading_kernel():
    """The SE kernel as printed, and the slopes of its logarithm."""
    rng = np.random.default_rng(2)
    X1, X2, ln_theta = rng.standard_normal((4, 2)), rng.standard_normal((3, 2)), rng.normal(size=3)
    l2 = np.exp(ln_theta[:2])
    dx = X1[:, None] - X2[None]
    printed = np.exp(ln_theta[2]) * np.exp(-np.sum(dx**2 / l2, 2) / 2)
    K, back = R.se_kernel(X1, X2, ln_theta)
    d_K = rng.standard_normal(K.shape)
    d_E = d_K * printed
    by_theta = [*np.einsum("ij,ijk->k", d_E, dx**2 / (2 * l2)), np.sum(d_E)]
    by_X2 = np.einsum("ij,ijk->jk", d_E, dx / l2)
    assert_close(K, printed, TOL)
    assert_close(back(d_K)[0], by_theta, TOL)
    assert_close(back(d_K)[2], by_X2, TOL)


def test_R_eq06_eq08_reading(rows, matrices):
    """Mean, variance (6) and KL (8) as printed; computed: with K_NN = A - sigma^2 I."""
    X, y, _, ln_theta, ln_noise, _ = rows
    K_NN = matrices[0]
    sigma2 = math.exp(ln_noise)
    A = K_NN + sigma2 * np.eye(len(y))
    inverse = np.linalg.inv(A)
    mean = K_NN @ inverse @ y
    var = np.diag(K_NN - K_NN @ inverse @ K_NN)
    KL = (
        np.linalg.slogdet(A)[1] / 2
        - len(y) / 2 * ln_noise
        - np.trace(K_NN @ inverse) / 2
        + y @ inverse @ K_NN @ inverse @ y / 2
    )
    (got_mean, got_var, got_KL), _ = R.full_gp(X, y, ln_theta, ln_noise)
    assert_close(got_mean, mean, TOL)
    assert_close(got_var, var, TOL)
    assert_close(got_KL, KL, TOL)


def test_R_eq06_eq33_reading(rows, matrices):
    """(6) at new inputs, and the likelihood (33), as printed."""
    X, y, X_new, ln_theta, ln_noise, _ = rows
    K_NN, K_N_new, _ = matrices
    A = K_NN + math.exp(ln_noise) * np.eye(len(y))
    inverse = np.linalg.inv(A)
    mean, var = R.full_predict(X, y, X_new, ln_theta, ln_noise)
    assert_close(mean, K_N_new.T @ inverse @ y, TOL)
    assert_close(var, math.exp(ln_theta[-1]) - np.diag(K_N_new.T @ inverse @ K_N_new), TOL)
    N = len(y)
    nll = np.linalg.slogdet(A)[1] / 2 + N / 2 * math.log(2 * math.pi) + y @ inverse @ y / 2
    assert_close(R.full_gp_nll(X, y, ln_theta, ln_noise)[0], nll, TOL)


def test_R_sec31_reading_grid():
    """The grid as printed, with the paper's numbers, and what it costs for T = 2."""
    L, G = R.GRID
    assert (L, G) == (6, 1200)
    points = np.array([-L + 2 * L / G * n for n in range(G + 1)])
    ln_theta = np.array([-0.4049, 1.2351, 7.0])
    closest = points[np.argmin(np.abs(points[:, None] - ln_theta), 0)]
    assert_close(R.round_to_grid(ln_theta), closest, TOL)
    assert f"which is {R.ln_grid_size(2):.2f} for $T=2$" in " ".join(PAGE.split())


def test_R_eq09_eq10_eq22_eq23_reading(rows, matrices):
    """Marginals (22), (23) and KL (10) of a free Q(f_M) as printed; computed: whitened."""
    X, _, Z, ln_theta, _, _ = rows
    _, K_NM, K_MM = matrices
    M = len(Z)
    rng = np.random.default_rng(3)
    c = rng.standard_normal(M)
    L_S = np.tril(rng.standard_normal((M, M))) / 3 + np.eye(M)
    L = np.linalg.cholesky(K_MM)
    a_M = L @ c
    B_MM = L @ L_S @ L_S.T @ L.T
    inverse = np.linalg.inv(K_MM)
    k = math.exp(ln_theta[-1])
    mean = K_NM @ inverse @ a_M
    var = k - np.diag(K_NM @ inverse @ (K_MM - B_MM) @ inverse @ K_NM.T)
    ratio = B_MM @ inverse
    KL = (-np.linalg.slogdet(ratio)[1] + np.trace(ratio) - M + a_M @ inverse @ a_M) / 2
    (got_mean, got_var, got_KL), _ = R.sparse_free(X, Z, ln_theta, c, L_S)
    assert_close(got_mean, mean, TOL)
    assert_close(got_var, var, TOL)
    assert_close(got_KL, KL, TOL)


def printed_eq11(rows, matrices):
    """a_M, B_MM of (11) as printed; the diagonals of Lambda and of alpha Lambda + sigma^2 I."""
    _, y, _, ln_theta, ln_noise, alpha = rows
    _, K_NM, K_MM = matrices
    lam = math.exp(ln_theta[-1]) - np.diag(K_NM @ np.linalg.inv(K_MM) @ K_NM.T)
    D = alpha * lam + math.exp(ln_noise)
    Q_MM = K_MM + K_NM.T @ (K_NM / D[:, None])
    a_M = K_MM @ np.linalg.inv(Q_MM) @ K_NM.T @ (y / D)
    return a_M, K_MM @ np.linalg.inv(Q_MM) @ K_MM, lam, D


def test_R_eq11_reading(rows, matrices):
    """a_M = L c and B_MM = L S L^T, with c and S as computed."""
    a_M, B_MM, _, _ = printed_eq11(rows, matrices)
    q = R.sparse_posterior(*rows)
    L = np.linalg.cholesky(matrices[2])
    assert_close(L @ q.c, a_M, TOL)
    assert_close(L @ q.S @ L.T, B_MM, TOL)


def test_R_eq11_reading_gradient(rows, matrices):
    """Step 4 of the page: the slope of a function of c, S, ln|S| along a change of VDV and VDy."""
    q = R.sparse_posterior(*rows)
    M = len(q.c)
    rng = np.random.default_rng(5)
    d_c, dS, dA, db = (rng.standard_normal(shape) for shape in ((M,), (M, M), (M, M), (M,)))
    d_S = dS + dS.T
    dA = dA + dA.T
    d_KL = 0.7
    A = np.eye(M) + q.VDV

    def value(t):
        S = np.linalg.inv(A + t * dA)
        return d_c @ S @ (q.VDy + t * db) + np.sum(d_S * S) - d_KL / 2 * np.linalg.slogdet(S)[1]

    d_b = q.S @ d_c
    d_A = d_KL / 2 * q.S - q.S @ d_S @ q.S - (np.outer(d_b, q.c) + np.outer(q.c, d_b)) / 2
    h = 1e-4  # of order 2: h^2 in error
    slope = (value(h) - value(-h)) / (2 * h)
    assert_close(slope, d_b @ db + np.sum(d_A * dA), 1e-6)


@pytest.mark.parametrize("kind", ["FITC", "VFE", "DTC"])
def test_R_eq34_reading(rows, matrices, kind):
    """F as printed, N x N, and by the two lemmas."""
    X, y, Z, ln_theta, ln_noise, _ = rows
    _, K_NM, K_MM = matrices
    sigma2 = math.exp(ln_noise)
    Nystroem = K_NM @ np.linalg.inv(K_MM) @ K_NM.T
    residual = math.exp(ln_theta[-1]) - np.diag(Nystroem)
    G = residual if kind == "FITC" else 0 * residual
    T = residual if kind == "VFE" else 0 * residual
    C = Nystroem + np.diag(sigma2 + G)
    F = (
        np.linalg.slogdet(C)[1]
        + len(y) * math.log(2 * math.pi)
        + np.sum(T) / sigma2
        + y @ np.linalg.inv(C) @ y
    ) / 2
    assert_close(R.sparse_nll(X, y, Z, ln_theta, ln_noise, kind)[0], F, TOL)


# --- the page itself -----------------------------------------------------------------------------


def numbers_of(tag):
    return {int(n) for n in re.findall(r"\d+", tag)}


def test_R_reading_every_equation_is_shown():
    """Each of the 34 has a display of its own; those with a star are the formulas that misprints.md
    calls wrong. (11) is right for the zero mean that the page has."""
    shown = [numbers_of(tag) for tag in re.findall(r"\\tag\{([^}]*)\}", PAGE)]
    assert set().union(*shown) == set(range(1, 35))
    starred = numbers_of(" ".join(re.findall(r"\\tag\{(\d+)\*\}", PAGE)))
    misprints = (DOCS / "misprints.md").read_text()
    wrong = numbers_of(" ".join(re.findall(r"\| R (\(\d+\)) \| wrong", misprints)))
    assert starred == wrong - {11}


def test_R_reading_sparse_gp_is_whole():
    """One block is all of sparse_gp below its docstring."""
    source = inspect.getsource(R.sparse_gp)
    (function,) = ast.parse(source).body
    body = source.splitlines()[function.body[1].lineno - 1 :]
    block = "\n".join(["# pacgp_ref.sparse_gp", *(line[4:] for line in body)])
    assert f"```python\n{block}\n```" in PAGE
