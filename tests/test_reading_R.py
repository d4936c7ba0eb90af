"""docs/reading-R.md: the printed and the computed form of each equation agree in a random case.

The printed forms are dense NumPy, letter by letter. Matrices are well-conditioned (condition number
below 1e3), so that 1e-12 leaves room for rounding and for nothing else.
"""

import math

import numpy as np
import pytest
from tests.dense import dense_K_MM, dense_kernel
from tests.oracles import assert_close

import pacgp_ref as R

TOL = 1e-12


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
    """d_b, d_A of the page: the slope of a function of c, S, ln|S| along a change of A and b."""
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
