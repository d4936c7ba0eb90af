"""The equations as they are printed, on dense matrices: kernels, normal laws, posteriors.

Nothing here comes from the modules' formulas.
"""

import math
from decimal import Decimal
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.linalg import cholesky, inv, solve

from tests.oracles import (
    decimal_cholesky, decimal_cos, decimal_sin, decimal_solve, decimals, exact_kl_inv, exact_xi,
    JITTER, PI, quadrature)
from tests.problems import kind_of


# --- kernels and normal laws as dense matrices, of doubles or of Decimals ------------------------


def dense_kernel(X1, X2, ln_theta, kind=None):
    """Every kernel by its formula, from the differences of all pairs.

    SE: below R (8); Matern, periodic: J Sec. 2.1; mixture: L Sec. 5.1. In the arithmetic of the
    inputs, doubles or Decimals. kind: SE, or a mixture where ln_theta is 2-D, unless named.
    """
    kind = kind or {1: "SE", 2: "mixture"}[np.ndim(ln_theta)]
    exact = X1.dtype == object
    sin, cos, pi = (decimal_sin, decimal_cos, PI) if exact else (np.sin, np.cos, math.pi)
    d = X1.shape[1]
    K = 0
    for row in np.atleast_2d(decimals(ln_theta) if exact else ln_theta):
        theta = np.exp(row)
        variance = theta[-1]
        dx = X1[:, None] - X2[None]
        l2 = theta[:-1]
        if kind == "mixture":
            l2 = theta[d:-1]
            variance = variance * np.prod(cos(2 * pi * theta[:d] * dx), 2)
        if kind == "periodic":
            l2 = theta[:d]
            dx = 2 * sin(pi * dx / theta[d:-1])
        r2 = np.sum(dx**2 / l2, 2)
        if kind == "Matern32":
            u = np.sqrt(3 * r2)
            K = K + variance * (1 + u) * np.exp(-u)
        elif kind == "Matern52":
            u = np.sqrt(5 * r2)
            K = K + variance * (1 + u + u * u / 3) * np.exp(-u)
        else:
            K = K + variance * np.exp(-r2 / 2)
    return K


def decimal_kernel(X1, X2, ln_theta, kind=None):
    """The same in Decimal: the doubles are the exact numbers they are."""
    return dense_kernel(decimals(X1), decimals(X2), ln_theta, kind)


def dense_K_MM(Z, ln_theta, kind=None, jitter=JITTER):
    """K_MM of the prior, with the jitter, relative to the signal variance."""
    K = dense_kernel(Z, Z, ln_theta, kind)
    return K + jitter * np.exp(ln_theta[-1]) * np.eye(len(Z))


def joint_covariance(blocks, ln_theta):
    """Prior covariance of blocks of variables, (points, whether inducing).

    Inducing ones at equal points share jitter. In the arithmetic of the points: doubles, or
    Decimals whose values are doubles.
    """
    X = np.concatenate([points for points, _ in blocks])
    inducing = np.concatenate([np.full(len(points), u) for points, u in blocks])
    same = np.all(X[:, None] == X[None], 2) & np.outer(inducing, inducing)
    K = dense_kernel(X, X, ln_theta)
    number = type(K[0, 0])
    return K + np.where(same, number(JITTER) * K[0, 0], 0)


def lower_inverse(A):
    """L^-1 with L L^T = A, of doubles or of Decimals."""
    if A.dtype == object:
        return decimal_solve(decimal_cholesky(A), decimals(np.eye(len(A))))
    return inv(cholesky(A))


def inverse(A):
    """A^-1 of a positive definite A, of doubles or of Decimals."""
    half = lower_inverse(A)
    return half.T @ half


def ln_pdf(y, f, var):
    """ln N(y | f, var), elementwise."""
    return -((y - f) ** 2) / (2 * var) - 0.5 * np.log(2 * np.pi * var)


def expected_ln_normal(m, S, m0, S0):
    """E ln N(x | m0, S0) under x ~ N(m, S), of doubles or of Decimals."""
    half = lower_inverse(S0)
    exact = S0.dtype == object
    r = half @ (m - m0)
    diagonal = np.diag(half)
    ln_det = -2 * (sum(v.ln() for v in diagonal) if exact else np.sum(np.log(diagonal)))
    ln_2pi = (2 * PI).ln() if exact else math.log(2 * math.pi)
    return -(len(m) * ln_2pi + ln_det + np.sum((half.T @ half) * S) + r @ r) / 2


def ln_normal(y, mean, C):
    """ln N(y | mean, C)."""
    return expected_ln_normal(y, 0 * C, mean, C)


def gaussian_kl(m0, S0, m1, S1):
    """KL( N(m0, S0) || N(m1, S1) )."""
    return expected_ln_normal(m0, S0, m0, S0) - expected_ln_normal(m0, S0, m1, S1)


# --- R -------------------------------------------------------------------------------------------


def dense_full_gp(X, y, ln_theta, ln_noise, X_new, m=lambda X: np.zeros(len(X)), kind=None):
    """Mean and covariance of the posterior at X_new; R (6) as printed, mean function included.
    """
    A = dense_kernel(X, X, ln_theta, kind) + np.exp(ln_noise) * np.eye(len(X))
    k = dense_kernel(X_new, X, ln_theta, kind)
    mean = m(X_new) + k @ solve(A, y - m(X))
    cov = dense_kernel(X_new, X_new, ln_theta, kind) - k @ solve(A, k.T)
    return mean, cov


def eigen_eq08(K, y, s2):
    """KL(Q||P) of the full GP, R (8), from the eigenvalues and eigenvectors of K: nothing cancels;
    R App. D.
    """
    lam, E = np.linalg.eigh(K)
    lam = np.maximum(lam, 0)
    quadratic = lam / (lam + s2) ** 2 * (E.T @ y) ** 2
    return np.sum(np.log1p(lam / s2) - lam / (lam + s2) + quadratic) / 2


def dense_eq09(X_new, Z, ln_theta, a_M, B_MM, kind=None):
    """Mean and covariance at X_new from Q(f_M) = N(a_M, B_MM); R (9) as printed, with zero mean
    function.
    """
    K_MM = dense_K_MM(Z, ln_theta, kind)
    k = dense_kernel(X_new, Z, ln_theta, kind)
    Kinv = inv(K_MM)
    mean = k @ Kinv @ a_M
    cov = dense_kernel(X_new, X_new, ln_theta, kind) - k @ Kinv @ (K_MM - B_MM) @ Kinv @ k.T
    return mean, cov


def dense_eq11(X, y, Z, ln_theta, ln_noise, alpha):
    """a_M and B_MM; R (11) as printed."""
    K_MM = dense_K_MM(Z, ln_theta)
    K_MN = dense_kernel(Z, X, ln_theta)
    lam = np.diag(dense_kernel(X, X, ln_theta) - K_MN.T @ solve(K_MM, K_MN))
    Dinv = np.diag(1 / (alpha * lam + np.exp(ln_noise)))
    Qinv = inv(K_MM + K_MN @ Dinv @ K_MN.T)
    return K_MM @ Qinv @ K_MN @ Dinv @ y, K_MM @ Qinv @ K_MM


def dense_dual(X, y, Z, ln_theta, ln_noise, alpha, kind=None):
    """mean, var, KL of (9), (10) with (11) in N x N form, for Z that are nearly or exactly
    dependent.

    Q_NN = K_NM K_MM^-1 K_MN from the eigenvalues of K_MM; then (6), and (8) in its eigenvalue form,
    hold for Q_NN and D = alpha Lambda + s_n^2 I in the place of K_NN and s_n^2 I.
    """
    w, E = np.linalg.eigh(dense_K_MM(Z, ln_theta, kind))
    half = dense_kernel(X, Z, ln_theta, kind) @ E / np.sqrt(w)
    Q_NN = half @ half.T
    k = np.exp(ln_theta[-1])
    D = alpha * (k - np.diag(Q_NN)) + np.exp(ln_noise)
    A = Q_NN + np.diag(D)
    mean = Q_NN @ solve(A, y)
    var = k - np.sum(Q_NN * solve(A, Q_NN), 0)
    return mean, var, eigen_eq08(Q_NN / np.sqrt(np.outer(D, D)), y / np.sqrt(D), 1.0)


def dense_fit(result, X, y):
    """mean, var (N,) and KL of a Fit at its training rows from dense matrices; what training found
    is in result.optimum.
    """
    ln_theta = result.ln_theta
    Z = result.Z
    kind = kind_of(result.kernel)
    x = result.optimum.x
    if "Z" not in x:
        mean, cov = dense_full_gp(X, y, ln_theta, result.ln_noise, X, kind=kind)
        KL = eigen_eq08(dense_kernel(X, X, ln_theta, kind), y, math.exp(result.ln_noise))
        return mean, np.diag(cov), KL
    if "L_S" not in x:
        return dense_dual(X, y, Z, ln_theta, result.ln_noise, result.alpha, kind)
    K_MM = dense_K_MM(Z, ln_theta, kind)
    L = cholesky(K_MM)
    root = L @ x["L_S"]
    a_M = L @ x["m"]
    B_MM = root @ root.T
    mean, cov = dense_eq09(X, Z, ln_theta, a_M, B_MM, kind)
    return mean, np.diag(cov), gaussian_kl(a_M, B_MM, np.zeros(len(Z)), K_MM)


def dense_certificate(result, X, y, G=1200, n_eps=1, xi=False):
    """risk, KL, B, B_Pin of a Fit from first principles: dense matrices, quadrature of the loss,
    bisection in 60 digits.
    """
    N = len(y)
    mean, var, KL = dense_fit(result, X, y)
    risk = np.mean(quadrature(result.loss, y, mean, var, result.eps)[0])
    factor = float(exact_xi(N)) if xi else 2 * math.sqrt(N)
    penalty = len(result.ln_theta) * math.log(G + 1)
    complexity = (KL + penalty + math.log(n_eps * factor / result.delta)) / N
    B = float(exact_kl_inv(risk, complexity))
    return risk, KL, B, risk + math.sqrt(complexity / 2)


# --- J -------------------------------------------------------------------------------------------


def prior_of(p, kernel="Matern52"):
    """The functions k(A, B) and K(Z) = k(Z, Z) with the jitter, which is part of the prior, at the
    ln_theta of p.
    """
    at = dict(ln_theta=p["ln_theta"], kind=kernel)
    return partial(dense_kernel, **at), partial(dense_K_MM, **at)


def dense_q(p, kernel="Matern52"):
    """m and S of q(u), u = L u', as the paper writes them; S = 0 for a delta."""
    _, K = prior_of(p, kernel)
    L_S = p.get("L_S", np.zeros(len(p["Z"])))
    Z_of_m = p["Z"] if "a" in p else p.get("Z_mean", p["Z"])
    root = cholesky(K(p["Z"])) @ (np.diag(L_S) if L_S.ndim == 1 else L_S)
    return cholesky(K(Z_of_m)) @ p["m"], root @ root.T


def dense_marginals(p, X, kernel="Matern52"):
    """mean, ktilde, svar at X; J Eq. (7), (4), (8), (24), (25) as printed, mean of Salimbeni
    et al. (2018) for OD.
    """
    k, K = prior_of(p, kernel)
    m, S = dense_q(p, kernel)
    Z = p["Z"]
    A = k(X, Z) @ inv(K(Z))
    if "a" in p:
        mean = A @ m + (k(X, p["Z_mean"]) - A @ k(Z, p["Z_mean"])) @ p["a"]
    elif "Z_mean" in p:
        mean = k(X, p["Z_mean"]) @ inv(K(p["Z_mean"])) @ m
    else:
        mean = A @ m
    return mean, np.diag(k(X, X) - A @ k(Z, X)), np.diag(A @ S @ A.T)


def dense_reg(p, kernel="Matern52"):
    """The regulariser by densities of u, less what whitening drops, ln|2 pi K|/2; J Eq. (6), (23),
    Sec. 3.4, App. E.

    OD: the KL of the joint law of u and f(Z_mean), whose mean is that of f and whose covariance
    given u is the prior's.
    """
    k, K = prior_of(p, kernel)
    m, S = dense_q(p, kernel)
    M = len(p["Z"])
    if "a" in p:
        both = np.concatenate([p["Z"], p["Z_mean"]])
        prior = k(both, both)
        prior[:M, :M] = K(p["Z"])
        P = prior[:, :M] @ inv(prior[:M, :M])
        mean = (prior[:, M:] - P @ prior[:M, M:]) @ p["a"] + P @ m
        return gaussian_kl(mean, prior - P @ (prior[:M, :M] - S) @ P.T, 0 * mean, prior)
    if "Z_mean" in p or "L_S" not in p:
        K_mean = K(p.get("Z_mean", p["Z"]))
        zero = np.zeros(M)
        KL = gaussian_kl(zero, S, zero, K(p["Z"])) if "L_S" in p else 0.0
        return ln_normal(0 * m, 0 * m, K_mean) - ln_normal(m, 0 * m, K_mean) + KL
    return gaussian_kl(m, S, 0 * m, K(p["Z"]))


def dense_predict(method, p, X_new, X, y, kernel="Matern52"):
    """mean, var_f (n,) at X_new: dense_marginals; for FITC and the exact GP f given y, from their
    joint normal law.
    """
    if method not in ("FITC", "exact"):
        mu, ktilde, svar = dense_marginals(p, X_new, kernel)
        return mu, ktilde + svar
    k, K = prior_of(p, kernel)

    def Q(A, B):
        if method == "exact":
            return k(A, B)
        return k(A, p["Z"]) @ solve(K(p["Z"]), k(p["Z"], B))

    C = Q(X, X) + np.diag(np.diag(k(X, X) - Q(X, X)) + math.exp(p["ln_noise"]))
    gain = solve(C, Q(X, X_new)).T
    return gain @ y, np.diag(k(X_new, X_new) - gain @ Q(X, X_new))


def joint_and_gap(y, u, X, p):
    """ln p(y, u), and KL(p(f|u) || p(f|u, y)) of f at X, all dense normal laws."""
    k, K = prior_of(p)
    A = k(X, p["Z"]) @ inv(K(p["Z"]))
    noise = math.exp(p["ln_noise"]) * np.eye(len(X))
    C = k(X, X) - A @ k(p["Z"], X)
    mean = A @ u
    G = C @ inv(C + noise)
    ln_p = ln_normal(y, mean, C + noise) + ln_normal(u, 0 * u, K(p["Z"]))
    return ln_p, gaussian_kl(mean, C, mean + G @ (y - mean), C - G @ C)


# --- L -------------------------------------------------------------------------------------------

class Known(NamedTuple):
    """A posterior as the papers write it: the prior GP(middle, unit^2 k) times exp(-u^T P u/2 + h^T
    u), where u = f(Z).

    P and h are what rows say: they stay where the prior moves. All by explicit inverses, of doubles
    or of Decimals.
    """

    Z: np.ndarray
    theta: np.ndarray
    P: np.ndarray
    h: np.ndarray
    middle: float = 0
    unit: float = 1

    def moments(self, *blocks):
        """Mean and covariance of blocks of variables as joint_covariance takes them; without
        blocks, of f(Z).
        """
        C = self.unit**2 * joint_covariance([(self.Z, True), *blocks], self.theta)
        M = len(self.Z)
        K_inv = inverse(C[:M, :M])
        S = inverse(K_inv + self.P)
        W = C[M:, :M] @ K_inv
        m = S @ (K_inv.sum(1) * self.middle + self.h)
        if not blocks:
            return m, S
        return self.middle + W @ (m - self.middle), C[M:, M:] - W @ (C[:M, :M] - S) @ W.T

    def at(self, X):
        """Mean and variance of f at X."""
        mean, cov = self.moments((X, False))
        return mean, np.diag(cov)

    def with_rows(self, X, y, noise, Z=None, theta=None):
        """The optimum of (8): p(u) exp(E ln p(y|f) + E (-u_a^T P u_a/2 + h^T u_a)), expectations
        given u = f(Z).
        """
        Z = self.Z if Z is None else Z
        theta = self.theta if theta is None else theta
        M = len(Z)
        M_a = len(self.Z)
        C = joint_covariance([(Z, True), (self.Z, True), (X, False)], theta)
        W = C[M:, :M] @ inverse(C[:M, :M])
        shift = self.middle * (1 - W.sum(1))
        a = slice(M_a)
        x = slice(M_a, None)  # E (f(Z_a), f(X)) given u: W u + shift
        return self._replace(
            Z=Z, theta=theta, P=W[x].T @ W[x] / noise + W[a].T @ self.P @ W[a],
            h=W[x].T @ (y - shift[x]) / noise + W[a].T @ (self.h - self.P @ shift[a]))


def known(state, number=np.asarray):
    """The Known of a Posterior by its definition, u = L alpha; in Decimal arithmetic where `number`
    is decimals.
    """
    Z, A, b = map(number, (state.Z, state.A, state.b))
    Linv = lower_inverse(joint_covariance([(Z, True)], state.ln_theta))
    return Known(Z, state.ln_theta, Linv.T @ ((A + A.T) / 2) @ Linv, Linv.T @ b)


def known_first(q):
    """The dense first_state, from the rows themselves."""
    nothing = Known(q["Z_a"], q["theta_a"], np.zeros((5, 5)), np.zeros(5))
    return nothing.with_rows(q["X_a"], q["y_a"], math.exp(q["noise"]))


def known_free(p, number=np.asarray):
    """The Known of a free q(alpha); in Decimal arithmetic where `number` is decimals."""
    Z, m, L_S = map(number, (p["Z"], p["m"], p["L_S"]))
    K_MM = joint_covariance([(Z, True)], p["ln_theta"])
    Linv = lower_inverse(K_MM)
    S_inv = inverse(L_S @ L_S.T)
    return Known(Z, p["ln_theta"], Linv.T @ S_inv @ Linv - inverse(K_MM), Linv.T @ S_inv @ m)


def dense_kl(new, old, *blocks):
    """KL of two Known, on blocks of variables."""
    return float(gaussian_kl(*new.moments(*blocks), *old.moments(*blocks)))


def dense_process_kl(new, old):
    """KL of two Known on all their inducing variables, which is that of the processes where they
    share the kernel.
    """
    others = [z for z in new.Z if not np.any(np.all(z == old.Z, 1))]
    return dense_kl(new, old, (np.array([*old.Z, *others]), True))


def dense_L_eq08(old, new, X, y, s2):
    """The integral of L Eq. (8) as printed, and its part without the likelihood: expectations of
    five logarithms.
    """
    mean, cov = new.moments((old.Z, True), (new.Z, True), (X, False))
    a, b, f = map(slice, (0, len(old.Z), -len(y)), (len(old.Z), -len(y), None))

    def E(s, m0, S0):
        return expected_ln_normal(mean[s], cov[s, s], m0, S0)

    def prior(q):
        return (0 * q.h, joint_covariance([(q.Z, True)], q.theta))

    part = E(a, *prior(old)) + E(b, *new.moments()) - E(b, *prior(new)) - E(a, *old.moments())
    return part - E(f, y, s2 * np.eye(len(y), dtype=int)), part


def exact_bound(loss, KL, n, lam, delta, K):
    """The right side of (9), with K^2/8, of the doubles given, in Decimal."""
    loss, KL, lam, K, delta = map(Decimal, (loss, KL, lam, K, delta))
    return loss + KL / lam + lam * n * K**2 / 8 - delta.ln() / lam
