"""Streaming PAC-Bayes Gaussian process regression, in NumPy, equation by equation.

T. Liu, J. Lu, Z. Yan, G. Zhang: Streaming PAC-Bayes Gaussian process regression with a performance
guarantee for online decision making, 2022. Tag below: L. `L Eq. (12), (15), (19)` cites equations,
at the statement or in the docstring of the function; the table of docs/reading-L.md names the
function of each. Functions that Reeb et al. need, too, come from pacgp_ref.

The idea. A GP that learns from a stream keeps M inducing inputs and what the rows seen so far said
about the function there. P_i knows the rows before batch i. Batch i turns it into a posterior. Q_i,
which the training certificate counts, is that posterior; in beyond/stream.py P_i itself where that
is cheaper. P_{i+1} may be anything computed from rows already counted, at no cost: in
`certified_stream` the posterior, in beyond/stream.py after its inducing inputs, kernel, noise and
scale have moved. Theorem 3.1: the losses, the KL divergences of learning and two constants, summed,
bound the sum of the risks, at all times at once (`online_bound`). A tighter bound, which averages
over lam, is `certificate` in beyond/certificates.py; beyond/stream.py uses it six times with
delta/6:

    batch i -> one-step loss of P_i -> posterior -> Q_i, its loss and KL(Q_i||P_i)
            -> certificates -> then, from the past alone, the posterior moves: that is P_{i+1}

Read `absorb`, `update`, `marginals_and_kl`, `free_energy`, `online_objective`, `stream`,
`online_bound`, `certified_stream` in this order.

The paper's Q^_{i+1} is our Q_i in (10) and (12); its Q^_i is our P_i in (11), (15), (17) and (19).

Three algorithms: O-PACGP as published (`stream`) yields no bound, since its objective J is none.
Corollary 3.2 (`certified_stream`) yields one, with kernel, noise and Z fixed. `begin`, `step` in
beyond/stream.py yield bounds while all three follow the stream. What is bounded is the risk
conditional on the past: the mean over the rows z_i of the expected loss of the predictor used for
z_i on a row drawn as z_i was, given the rows before it. It says nothing about inputs the stream has
not come to. With plain expectations, as printed, and dependent rows the theorem is false (one coin
copied m times).

    paper             code            shape        meaning, unit
    X_t, y_t          X, y            (n,d) (n,)   one batch; n may be 0 or 1
    a, b              old.Z, Z        (M_a,d)(M,d) inducing inputs before and after a batch
    theta             ln_theta        (T,)         SE: ln of (l_1^2 .. l_d^2, sigma_s^2) or of
                                                   (l^2, sigma_s^2), as in pacgp_ref;
                                      (Q, 2d+1)    spectral mixture: rows ln of
                                                   (mu_1 .. mu_d, l_1^2 .. l_d^2, w)
    sigma_y^2         ln_noise        scalar       ln of the noise variance
    q_old, q_new      Posterior       A, c         q(f(Z)) = p(f(Z)) exp(-alpha^T A alpha/2
                                                   + c^T alpha) / const, f(Z) = L alpha
                      mu, S           (M,) (M,M)   its mean and covariance, of alpha: mu = S c,
                                                   S = (I + A)^-1 = root^T root
    P_i, Q_i          Posterior                    before batch i; counted for it, the posterior
                                                   or P_i
    m_i, sigma_i^2    mean, var       (n,) (n,)    marginals of Q at the rows [y], [y^2]
    lambda, delta, m  lam, delta, m   scalars      weight of the losses; probability of failure;
                                                   rows that count
    K, eps            K, eps          scalars      the loss lies in [0, K]; its tolerance [y]
                      p               dict         of every objective: ln_theta, ln_noise; Z unless
                                                   exact or on a grid; for O-SVGP m (M,) and
                                                   L_S (M, M), q(alpha) = N(m, L_S L_S^T)

Whitened: L L^T = k(Z, Z) + jitter; the prior is A = 0, c = 0. Everything the rows say is in A and
c, sums to which a batch adds; no covariance of a posterior is inverted but that of O-SVGP's q, by
`posterior_at`. The old posterior acts on the new one as M_a more rows, with features
U = L_a^-1 k(Z_a, Z) L^-T in place of V = k(X, Z) L^-T. A kernel matrix is K_ and its two inputs:
K_ZZ, K_XZ, or K_12.

Equations without code of their own: (1) is the joint density that (3) conditions, (2) the
likelihood; (14), (18) and (21)-(24) are the losses of R Eq. (18)-(30), in pacgp_ref. Where the
paper has a misprint the docstring says so.
"""
import math
from functools import partial
from typing import Callable, NamedTuple

import numpy as np

from pacgp_ref import (JITTER, LN_BOX, LOSSES, ULP, VAR_FLOOR, adam_step, check_array,
                       check_choice, check_columns, check_count, check_data, check_jitter,
                       check_kernel, check_kind, check_scalar, check_signal, cholesky,
                       gaussian_nll, in_doubles, inverse_cholesky, lbfgs, noisy_factors, pack,
                       residual_of, row_blocks, row_dots, se_kernel, signal_variance, tri_inv,
                       unpack, x_minus_log1p)


# Least sigma_y^2 of a search and after every step: the bound of the framework the paper was run in.
MIN_NOISE = 1e-4
# Adam's, L Sec. 5.1.
LEARNING_RATES = {"ln_theta": 0.1, "ln_noise": 0.1, "Z": 0.01, "m": 0.01, "L_S": 0.01}
# L Sec. 5.1 has the first four. OVC is of Maddox et al. 2021 (L Sec. 2.1), the exact GP in L Sec.
# 3.1; the window is ours.
METHODS = ("O-SGPR", "O-SVGP", "WISKI", "O-PACGP", "OVC", "exact", "window")


# --- kernels -------------------------------------------------------------------------------------

@in_doubles
def waves(X1, X2, row):
    """2 pi mu_k (x1_k - x2_k), (N1, N2, d): the angles of one component of a spectral mixture."""
    mu = np.exp(row[:X1.shape[1]])
    differences = np.clip(X1[:, None, :] - X2[None, :, :], -1e150, 1e150)
    return 2 * np.pi * mu * differences


@in_doubles
def spectral_mixture(X1, X2, ln_theta, by_differences=False):
    """K_12 (N1, N2) [y^2] of a mixture, ln_theta (Q, 2d+1), and back; arguments as se_kernel.

        K_12 = sum_q w_q exp(-sum_k (x1_k - x2_k)^2/(2 l_qk^2)) prod_k cos(2 pi mu_qk (x1_k - x2_k))
    L Sec. 5.1; Wilson & Adams 2013, Eq. (12), whose v is 1/(4 pi^2 l^2). ValueError where ln_theta
    has another shape.

    back(d_K, of_X1=True) returns d_ln_theta (Q, 2d+1), d_X1, d_X2, as that of se_kernel:
        d prod_k cos(a_k) = -sum_k sin(a_k) prod_{j != k} cos(a_j) da_k,
        da_k/d ln mu_k = a_k,   da_k/d x1_k = 2 pi mu_k = -da_k/d x2_k
    """
    d = X1.shape[1]
    if np.ndim(ln_theta) != 2 or ln_theta.shape[1] != 2 * d + 1:
        raise ValueError(f"ln_theta must have rows of {2 * d + 1} entries for {d} columns, "
                         f"got shape {np.shape(ln_theta)}")
    components = [se_kernel(X1, X2, row[d:], by_differences) for row in ln_theta]
    angles = [waves(X1, X2, row) for row in ln_theta]
    K_12 = sum(E * np.prod(np.cos(angle), 2) for (E, _), angle in zip(components, angles))

    def back(d_K, of_X1=True):
        d_rows = []
        d_X1 = d_X2 = 0.0
        for row, (E, E_back), angle in zip(ln_theta, components, angles):
            cos = np.cos(angle)
            d_row, d_X1_E, d_X2_E = E_back(d_K * np.prod(cos, 2))
            others = np.stack([np.prod(np.delete(cos, k, 2), 2) for k in range(d)], 2)
            d_angle = -(d_K * E)[:, :, None] * np.sin(angle) * others
            d_ln_mu = np.sum(d_angle * angle, (0, 1))
            d_rows.append(np.concatenate([d_ln_mu, d_row]))
            frequency = 2 * np.pi * np.exp(row[:d])
            d_X1 = d_X1 + d_X1_E + frequency * np.sum(d_angle, 1)
            d_X2 = d_X2 + d_X2_E - frequency * np.sum(d_angle, 0)
        return np.stack(d_rows), d_X1, d_X2
    return K_12, back


def same_kernel(new, old):
    """Whether two Posteriors have one kernel, however its ln_theta is written.

    One lengthscale may stand for all; the components of a mixture have no order.
    """
    d = new.Z.shape[1]

    def in_full(ln_theta):
        if ln_theta.ndim == 2:
            return ln_theta[np.lexsort(ln_theta.T)]
        return np.append(np.full(d, ln_theta[0]), ln_theta[1]) if len(ln_theta) == 2 else ln_theta
    one_place = new.kernel == old.kernel and old.Z.shape[1] == d
    return one_place and np.array_equal(in_full(new.ln_theta), in_full(old.ln_theta))


@in_doubles
def entry_ulps(X1, X2, ln_theta):
    """About how many ulp of k(x, x) an exact kernel errs: d + 8, or a mixture's largest angle."""
    largest = 0.0
    if ln_theta.ndim == 2:
        largest = max(np.max(np.abs(waves(X1, X2, row)), initial=0.0) for row in ln_theta)
    return X1.shape[1] * (1 + largest) + 8


@in_doubles
def same_points(Z1, Z2):
    """1.0 where row i of Z1 is row j of Z2, else 0.0 (M1, M2): equal rows share their jitter.

    Repeated rows pair in order.
    """
    def equal(A, B):
        return np.all(A[:, None, :] == B[None, :, :], axis=2)
    order1, order2 = (np.sum(np.tril(equal(Z, Z), -1), 1) for Z in (Z1, Z2))
    return 1.0 * (equal(Z1, Z2) & (order1[:, None] == order2[None, :]))


@in_doubles
def inducing_kernel(Z1, Z2, ln_theta, kernel=se_kernel):
    """Covariance (M1, M2) of inducing variables, and back as that of the kernel.

    It is k(Z1, Z2), exact, plus the jitter, a share of k(x, x), where both are one variable.
    """
    K_12, K_back = kernel(Z1, Z2, ln_theta, by_differences=True)
    same = np.eye(len(Z1)) if Z1 is Z2 else same_points(Z1, Z2)

    def back(d_K, of_X1=True):
        d_ln_theta, d_Z1, d_Z2 = K_back(d_K, of_X1)
        d_ln_theta[..., -1] += JITTER * np.sum(d_K * same) * np.exp(ln_theta[..., -1])
        return d_ln_theta, d_Z1, d_Z2
    return K_12 + JITTER * signal_variance(ln_theta) * same, back


# --- the exact Gaussian process: L Sec. 3.1 ------------------------------------------------------

@in_doubles
def exact_predict(X, y, X_new, ln_theta, ln_noise, kernel=se_kernel):
    """mean, var (n,) of f at X_new (n, d) given all rows; L Eq. (3)."""
    k = signal_variance(ln_theta)
    K_XX, _ = kernel(X, X, ln_theta)
    _, _, Linv, mu, _ = noisy_factors(K_XX, y, ln_noise)
    K_new, _ = kernel(X_new, X, ln_theta)
    V = K_new @ Linv.T
    var = k - row_dots(V, V)                                                           # L Eq. (3)
    return V @ mu, np.maximum(var, VAR_FLOOR * k)


@in_doubles
def exact_nll(p, X, y, kernel=se_kernel):
    """-ln p(y | X, theta, sigma_y), L Eq. (4), and back(d_value), a dict. p: ln_theta, ln_noise."""
    K_XX, K_back = kernel(X, X, p["ln_theta"])
    value, nll_back = gaussian_nll(K_XX, y, p["ln_noise"])                             # L Eq. (4)

    def back(d_value):
        d_K, d_ln_noise = nll_back(d_value)
        d_ln_theta, *_ = K_back(d_K, of_X1=False)
        return dict(ln_theta=d_ln_theta, ln_noise=d_ln_noise)
    return value, back


# --- the streaming posterior: L Sec. 3.1, Eq. (5)-(7) --------------------------------------------

class Posterior(NamedTuple):
    """A posterior that rows can still be added to; L Eq. (5), (6).

    An update returns a new one and leaves this one as it is.
    """
    Z: np.ndarray              # (M, d) inducing inputs
    ln_theta: np.ndarray       # (T,) or (Q, 2d+1) the kernel
    Linv: np.ndarray           # (M, M) L^-1, L L^T = k(Z, Z) + jitter
    A: np.ndarray              # (M, M) what the rows say, in units of the prior's precision
    c: np.ndarray              # (M,) what they say of the mean: its information vector
    root: np.ndarray           # (M, M) triangular, (I + A)^-1 = root^T root
    kernel: Callable = se_kernel


@in_doubles
def check_prior(Z, ln_theta, Linv, kernel=se_kernel):
    """ValueError where rounding leaves no jitter: see check_jitter; or a mixture's angles are too
    large for it."""
    if 4 * len(Z) * ULP * entry_ulps(Z, Z, ln_theta) > JITTER:
        raise ValueError("ln_theta has frequencies too high, or Z is too wide, "
                         "for k(Z, Z) to keep its digits")
    K_ZZ, _ = kernel(Z, Z, ln_theta, by_differences=True)
    check_jitter(K_ZZ, Linv, signal_variance(ln_theta))


@in_doubles
def prior(Z, ln_theta, kernel=se_kernel):
    """The Posterior that knows no row: A = 0, c = 0."""
    Z, ln_theta = check_parameters(Z, ln_theta, kernel=kernel)
    M = len(Z)
    Linv, _ = inverse_cholesky(Z, ln_theta, kernel, by_differences=True)
    check_prior(Z, ln_theta, Linv, kernel)
    return Posterior(Z, ln_theta, Linv, np.zeros((M, M)), np.zeros(M), np.eye(M), kernel)


@in_doubles
def stream_features(X, Z, ln_theta, old):
    """(V, U, L^-1), back: features V (n, M) of the new rows, U (M_a, M) of the old posterior.

        V = k(X, Z) L^-T,   U = L_a^-1 k(Z_a, Z) L^-T
    k is the kernel of the Posterior `old` at ln_theta; L_a is that of `old`, at its own ln_theta.
    An inducing variable that stays keeps its jitter, so that U = I where nothing changes.

    back(d_V, d_U) returns d_ln_theta, d_Z.
    """
    Linv, Linv_back = inverse_cholesky(Z, ln_theta, old.kernel, by_differences=True)
    K_XZ, K_XZ_back = old.kernel(X, Z, ln_theta)
    K_aZ, K_aZ_back = inducing_kernel(old.Z, Z, ln_theta, old.kernel)
    V = K_XZ @ Linv.T
    U = old.Linv @ K_aZ @ Linv.T

    def back(d_V, d_U):
        d_ln_theta_ZZ, d_Z_ZZ = Linv_back(d_V.T @ V + d_U.T @ U)
        d_ln_theta_XZ, _, d_Z_XZ = K_XZ_back(d_V @ Linv, of_X1=False)
        d_ln_theta_aZ, _, d_Z_aZ = K_aZ_back(old.Linv.T @ d_U @ Linv, of_X1=False)
        return d_ln_theta_ZZ + d_ln_theta_XZ + d_ln_theta_aZ, d_Z_ZZ + d_Z_XZ + d_Z_aZ
    return (V, U, Linv), back


@in_doubles
def absorb(V, U, y, sigma2, old):
    """A (M, M), c (M,), root of the posterior after a batch with Gaussian noise; L Eq. (6), (7).

        A = U^T A_a U + V^T V/sigma_y^2,   c = U^T c_a + V^T y/sigma_y^2
    as far as Z can say it; U None: U = I, where Z and theta stay. The prefactor Z_1/Z_2 of (7)
    normalises it only where q_old is exact. Otherwise another constant does; it does not depend on
    q_new and is not needed here.
    """
    A = old.A if U is None else U.T @ (old.A @ U)
    c = old.c if U is None else U.T @ old.c
    A = A + V.T @ V / sigma2                                                           # L Eq. (7)
    c = c + V.T @ y / sigma2                                                           # L Eq. (7)
    return A, c, tri_inv(cholesky(np.eye(len(c)) + A, "I + A"))


@in_doubles
def conjugate_update(old, X, y, sigma2, Z, ln_theta):
    """The Posterior after a batch, of Gaussian noise sigma2 [y^2], for inducing inputs Z and kernel
    ln_theta; L Eq. (6), (7). The formula of update, whose arguments are checked."""
    if np.array_equal(Z, old.Z) and np.array_equal(ln_theta, old.ln_theta):
        if len(y) == 0:
            return old
        K_XZ, _ = old.kernel(X, Z, ln_theta)
        A, c, root = absorb(K_XZ @ old.Linv.T, None, y, sigma2, old)
        return old._replace(A=A, c=c, root=root)
    (V, U, Linv), _ = stream_features(X, Z, ln_theta, old)
    A, c, root = absorb(V, U, y, sigma2, old)
    return Posterior(Z, ln_theta, Linv, A, c, root, old.kernel)


@in_doubles
def update(posterior, X, y, ln_noise, Z=None, ln_theta=None):
    """The Posterior after a batch: q_new of L Eq. (6), (7), the optimum of (8).

    X (n, d), y (n,) with n >= 0; ln_noise of these rows; Z (M, d), ln_theta: new inducing inputs
    and kernel, or as they were. For the same Z and theta the order and the cut into batches do not
    matter; with Z = X it is the exact GP. An update with no rows and a new Z or theta carries a
    posterior over. Costs O((n + M) M^2), whatever was seen before: one factor and its inverse; with
    a new Z or theta also those of k(Z, Z) and four more products. ValueError for bad input.
    """
    check_kind("posterior", posterior, Posterior, "prior or update")
    d = posterior.Z.shape[1]
    X, y = check_batch(X, y, d)
    sigma2 = np.exp(check_logarithm("ln_noise", ln_noise, 0))
    moves = Z is not None or ln_theta is not None
    Z = posterior.Z if Z is None else Z
    ln_theta = posterior.ln_theta if ln_theta is None else ln_theta
    if moves:
        Z, ln_theta = check_parameters(Z, ln_theta, d, posterior.kernel)
    new = conjugate_update(posterior, X, y, sigma2, Z, ln_theta)
    if new.Linv is not posterior.Linv:
        check_prior(Z, ln_theta, new.Linv, posterior.kernel)
    return new


@in_doubles
def predict(posterior, X_new):
    """mean [y], var [y^2] (n,) of f at X_new (n, d), without noise; L Eq. (3) for a Posterior.

    n = 0 is fine.
    """
    check_kind("posterior", posterior, Posterior, "prior or update")
    X_new = check_columns("X_new", X_new, posterior.Z.shape[1])
    k = signal_variance(posterior.ln_theta)
    mean = np.empty(len(X_new))
    var = np.empty(len(X_new))
    for rows in row_blocks(len(X_new), len(posterior.Z)):
        K, _ = posterior.kernel(X_new[rows], posterior.Z, posterior.ln_theta)
        V = K @ posterior.Linv.T
        W = V @ posterior.root.T
        mean[rows] = W @ (posterior.root @ posterior.c)
        var[rows] = k - row_dots(V, V) + row_dots(W, W)
    return mean, np.maximum(var, VAR_FLOOR * k)


# --- what the objectives are made of: L Eq. (8), (12), (13) --------------------------------------

@in_doubles
def kl_to_old(mu, S, root, U, trace, old):
    """E ln(q_new(b)/p(b)) - E ln(q_old(a)/p(a)) under q_new(b) = N(L mu, L S L^T); L Eq. (13).

        (tr S + mu^2 - M - ln|S|)/2 + tr(A_a Sig)/2 + m_a^T A_a m_a/2 - c_a^T m_a
        + c_a^T (I + A_a)^-1 c_a/2 - ln|I + A_a|/2
    with m_a = U mu, Sig = L_a^-1 k(Z_a, Z_a) L_a^-T + U (S - I) U^T: mean and covariance of alpha_a
    under Q_new. (8) has it, too. U (M_a, M) as `stream_features`;
    trace = tr(A_a L_a^-1 k(Z_a, Z_a) L_a^-T), jitter included, which is tr A_a if the kernel stays;
    old: Posterior. For one kernel that is KL(Q_new||Q_old) of the two processes. Where the kernels
    differ it is (13) without p(f|b)/p(f|a), as (8) has it: not a KL, possibly negative; the true KL
    of the kernels here is infinite.
    """
    m_a = U @ mu
    root_c = old.root @ old.c
    half_ln_det_S = np.sum(np.log(np.abs(np.diag(root))))
    half_ln_det_old = np.sum(np.log(np.abs(np.diag(old.root))))
    to_prior = (np.trace(S) + mu @ mu - len(mu)) / 2 - half_ln_det_S
    W = S - np.eye(len(mu))
    quadratic = (trace + np.sum((old.A @ U) * (U @ W))) / 2 + m_a @ (old.A @ m_a) / 2
    return to_prior + quadratic - old.c @ m_a + root_c @ root_c / 2 + half_ln_det_old


@in_doubles
def marginals_and_kl(p, old, X, y):
    """(mean, var, KL), back: marginals (n,) of the new posterior at the batch, and its KL to `old`.

    L Eq. (12), (13). p: Z (M, d), ln_theta, ln_noise; q is then the best for Gaussian noise
    (`absorb`: O-SGPR). With m (M,) and a lower triangular L_S (M, M) as well,
    q(alpha) = N(m, L_S L_S^T) (O-SVGP). Where the kernel moves, "KL" is what kl_to_old says. L (15)
    and (19) have the marginals before the batch, where (12) needs those after it.

    back(d_mean, d_var, d_KL) returns a dict with the keys of p. d_S is without -ln|S|/2 of the KL.
        d_mu = V^T d_mean + d_KL (mu + U^T r), r = A_a U mu - c_a
        d_S = V^T diag(d_var) V + d_KL (I + U^T A_a U)/2
        d_V = d_mean mu^T + 2 diag(d_var) V (S - I),   d_U = d_KL (A_a U (S - I) + r mu^T)
        no m in p: mu = S c, S = (I + A)^-1:   d_c = S d_mu,
                   d_A = d_KL S/2 - S d_S S - (d_c mu^T + mu d_c^T)/2,
                   and through A and c on to V, U, sigma_y^2
        m in p:    d_m = d_mu,   d_L_S = tril(2 d_S L_S) - d_KL diag(1/diag L_S)
    """
    ln_theta = p["ln_theta"]
    k = signal_variance(ln_theta)
    sigma2 = np.exp(p["ln_noise"])
    (V, U, _), features_back = stream_features(X, p["Z"], ln_theta, old)
    if "m" in p:
        mu = p["m"]
        root = p["L_S"].T
        S = root.T @ root
    else:
        _, c, root = absorb(V, U, y, sigma2, old)
        S = root.T @ root
        mu = S @ c
    K_aa, K_aa_back = inducing_kernel(old.Z, old.Z, ln_theta, old.kernel)
    trace = np.sum(old.A * (old.Linv @ K_aa @ old.Linv.T))
    mean = V @ mu
    var = k - row_dots(V, V) + row_dots(V @ S, V)
    KL = kl_to_old(mu, S, root, U, trace, old)                                        # L Eq. (13)

    def back(d_mean, d_var, d_KL):
        d_var = d_var * (var > VAR_FLOOR * k)
        I = np.eye(len(mu))
        AU = old.A @ U
        r = AU @ mu - old.c
        d_mu = V.T @ d_mean + d_KL * (mu + U.T @ r)
        d_S = (V.T * d_var) @ V + d_KL / 2 * (I + U.T @ AU)
        d_V = np.outer(d_mean, mu) + 2 * d_var[:, None] * (V @ (S - I))
        d_U = d_KL * (AU @ (S - I) + np.outer(r, mu))
        if "m" in p:
            d_L_S = np.tril(2 * d_S @ p["L_S"]) - d_KL * np.diag(1 / np.diag(p["L_S"]))
            out = dict(m=d_mu, L_S=d_L_S, ln_noise=0.0)
        else:
            d_c = S @ d_mu
            d_A = d_KL / 2 * S - S @ d_S @ S - (np.outer(d_c, mu) + np.outer(mu, d_c)) / 2
            d_V = d_V + (2 * V @ d_A + np.outer(y, d_c)) / sigma2
            d_U = d_U + 2 * AU @ d_A + np.outer(old.c, d_c)
            out = dict(ln_noise=-(np.sum((V @ d_A) * V) + y @ (V @ d_c)) / sigma2)
        d_ln_theta, d_Z = features_back(d_V, d_U)
        d_ln_theta_aa, *_ = K_aa_back(d_KL / 2 * old.Linv.T @ old.A @ old.Linv, of_X1=False)
        d_ln_theta = d_ln_theta + d_ln_theta_aa
        d_ln_theta[..., -1] += d_var.sum() * np.exp(ln_theta[..., -1])      # k(x, x) in var
        return dict(out, Z=d_Z, ln_theta=d_ln_theta)
    return (mean, np.maximum(var, VAR_FLOOR * k), KL), back


@in_doubles
def process_kl(new, old):
    """KL(Q_new||Q_old) of two posterior processes, both Posteriors, any Z; L Eq. (13).

    inf where their kernels differ (`same_kernel`). Paths of the SE kernel and of its mixtures are
    analytic: those on any interval tell the kernel, so that two such processes have no density with
    respect to each other, and on ever finer grids the KL of the values grows without bound. So (13)
    with online hyper-parameters has no meaning. (Rougher processes of two kernels may have one, as
    Matern-1/2 with equal sigma_s^2/l.) Move the kernel between steps instead (`step` in
    beyond/stream.py). Its gradient is that of marginals_and_kl with d_KL = 1.

    In coordinates z = (alpha, xi) that P has as N(0, I), alpha_a = H z with H = (U B) and
    B B^T = I - U U^T (`old_features`). There Q_old has the precision I + H^T A_a H = (root^T root)^-1, and that of
    Q_new has D = diag(A, 0) - H^T A_a H more. With e = E_new z - E_old z and t the eigenvalues of
    root D root^T
        KL = (sum_i ln(1 + t_i) - t_i/(1 + t_i) + e^T e + (H e)^T A_a H e)/2
    whose terms are never negative, so that a small KL keeps its digits, unlike in kl_to_old.
    ValueError where rounding leaves a t of -1 or below, or none.
    """
    for name, posterior in (("new", new), ("old", old)):
        check_kind(name, posterior, Posterior, "prior or update")
    if not same_kernel(new, old):
        return math.inf
    H, root = old_features(new, old)
    A = H.T @ (old.A @ H)
    mu = new.root.T @ (new.root @ new.c)
    more = np.zeros(H.shape[1] - len(mu))
    e = np.append(mu, more) - root.T @ (root @ (H.T @ old.c))
    D = -A
    D[:len(mu), :len(mu)] += new.A
    of_means = e @ e + e @ A @ e
    if not (np.all(np.isfinite(D)) and of_means < math.inf):
        raise ValueError("the KL divergence is infinite: the kernel lost digits")
    t = np.linalg.eigvalsh(root @ D @ root.T)
    if not np.min(t) > -1:
        raise ValueError(f"a precision is {1 + np.min(t):.3g} of the old one, not above 0: "
                         "the kernel lost digits")
    of_S = np.sum(x_minus_log1p(-t / (1 + t), 1 / (1 + t)))
    return float(of_S + of_means) / 2                                                 # L Eq. (13)


@in_doubles
def old_features(new, old):
    """H (M_a, M') and root (M', M') of process_kl, of Posteriors with one kernel.

    H = I and the old root where no input moves. Else H = (U B) = L_a^-1 (W C), with
    W (M_a, M) = k(Z_a, Z) L^-T and C C^T = k(Z_a, Z_a) - W W^T, which is 0 for inputs that stay.
    """
    if np.array_equal(new.Z, old.Z):
        return np.eye(len(old.c)), old.root
    K_aZ, _ = inducing_kernel(old.Z, new.Z, new.ln_theta, new.kernel)
    K_aa, _ = inducing_kernel(old.Z, old.Z, new.ln_theta, new.kernel)
    W = K_aZ @ new.Linv.T
    moved = np.flatnonzero(~np.any(same_points(old.Z, new.Z), axis=1))
    left, E = np.linalg.eigh((K_aa - W @ W.T)[np.ix_(moved, moved)])
    C = np.zeros((len(W), len(moved)))
    C[moved] = E * np.sqrt(np.maximum(left, 0.0))
    H = old.Linv @ np.concatenate([W, C], axis=1)
    precision = np.eye(H.shape[1]) + H.T @ (old.A @ H)
    return H, tri_inv(cholesky(precision, "I + H^T A H"))


@in_doubles
def free_energy(p, old, X, y):
    """-E ln p(y|f) + E ln(q_new(b)/p(b)) - E ln(q_old(a)/p(a)) [nats], and back; L Eq. (8).

    Less the constant ln(Z_2/Z_1). Minus the streaming bound of Bui et al. (2017): collapsed where p
    has no m (O-SGPR), uncollapsed else (O-SVGP), with the same minimum. With fixed Z and theta its
    values over batches add up to that of all rows.

    back(d_value) returns a dict with the keys of p.
    """
    (mean, var, KL), posterior_back = marginals_and_kl(p, old, X, y)
    sigma2 = np.exp(p["ln_noise"])
    misfit = (y - mean) ** 2 + var
    value = np.sum(np.log(2 * np.pi * sigma2) + misfit / sigma2) / 2 + KL              # L Eq. (8)

    def back(d_value):
        d_mean = d_value * (mean - y) / sigma2
        d_var = np.full(len(y), d_value / (2 * sigma2))
        grads = posterior_back(d_mean, d_var, d_value)
        d_ln_noise = d_value * (len(y) - np.sum(misfit) / sigma2) / 2
        return dict(grads, ln_noise=grads["ln_noise"] + d_ln_noise)
    return value, back


@in_doubles
def expected_printed_exp_loss(y, mean, var, eps):
    """L Eq. (16), (20) as printed, with sigma_i where sigma_i^2 belongs, and its slopes.

        g = 1 - loss, u = mean - y, w = 2 s + eps^2:
        d ln g/dmean = -2 u/w,   d ln g/dvar = -1/(2 var + eps^2) + u^2/(s w^2)
    It is not the expectation of the loss (14).
    """
    u, var, eps = residual_of(y, mean, var, eps)
    s = np.sqrt(var)
    w = 2 * s + eps**2
    ln_g = -np.log1p(2 * var / eps**2) / 2 - u**2 / w                           # L Eq. (16), (20)
    g = np.exp(ln_g)
    g_u = g * u / w      # 0 where u^2/w^2 may overflow
    d_var = g / (2 * var + eps**2) - g_u * u / (s * w)
    return -np.expm1(ln_g), 2 * g_u, d_var


STREAM_LOSSES = {**LOSSES, "exp-printed": expected_printed_exp_loss}


@in_doubles
def online_objective(p, old, X, y, lam=1.0, eps=0.1, loss="exp", delta=0.05, K=1.0):
    """J, what O-PACGP minimises at a batch, and back; L Eq. (12), the constants as printed.

        J = sum_i E_Q loss(f_i, y_i) + KL(Q||P)/lam + lam n K^2/2 + ln(1/delta)/lam
    One batch: over a stream its KL is counted once. p, old, X, y as marginals_and_kl; loss: a key
    of STREAM_LOSSES. Where the kernel moves, the KL is what kl_to_old says, and may be negative
    or huge.

    back(d_value) returns a dict with the keys of p.
    """
    (mean, var, KL), posterior_back = marginals_and_kl(p, old, X, y)
    losses, d_mean, d_var = STREAM_LOSSES[loss](y, mean, var, eps)
    constants = lam * len(y) * K * K / 2 + math.log(1 / delta) / lam
    value = np.sum(losses) + KL / lam + constants                         # L Eq. (12), (15), (19)

    def back(d_value):
        return posterior_back(d_value * d_mean, d_value * d_var, d_value / lam)
    return value, back


# --- inducing inputs that follow the stream ------------------------------------------------------

@in_doubles
def pivot_rows(Z, M, ln_theta, kernel=se_kernel):
    """Indices, in order, of at most M rows of Z (N, d) that explain the others best.

    Pivoted Cholesky, greedily. Stops where every row is explained to JITTER, so that repeated rows
    are left out.
    """
    k = signal_variance(ln_theta)
    left = np.full(len(Z), k)
    L = np.zeros((len(Z), min(M, len(Z))))
    chosen = []
    while len(chosen) < L.shape[1] and left.max() > JITTER * k:
        i = int(np.argmax(left))
        j = len(chosen)
        column, _ = kernel(Z, Z[i:i + 1], ln_theta)
        L[:, j] = (column[:, 0] - L[:, :j] @ L[i, :j]) / math.sqrt(left[i])
        left = left - L[:, j] ** 2
        chosen = chosen + [i]
        left[chosen] = 0.0
    return sorted(chosen)


@in_doubles
def extended(posterior, X, more=None, share=0.01):
    """The same posterior with more inducing inputs: rows of X which they explain least.

        L = (L_a 0; B C),   B = k(X, Z_a) L_a^-T,   C C^T = k(X, X) + jitter - B B^T
    These are the rows of whose variance more than `share` is left; of those at most `more`, by
    pivot_rows. With share = 0 it is OVC (Maddox et al. 2021), Z = [Z_a; X]. L_a^-1, A and c stay as
    they are: of the new entries of alpha no row has said anything. Returns it as it is where
    nothing is new.
    """
    ln_theta = posterior.ln_theta
    kernel = posterior.kernel
    K_Xa, _ = kernel(X, posterior.Z, ln_theta, by_differences=True)
    B = K_Xa @ posterior.Linv.T
    new = np.arange(len(X))
    if share > 0:
        left = 1 - row_dots(B, B) / signal_variance(ln_theta)
        new = np.flatnonzero(left > share)
    if more is not None:
        new = new[pivot_rows(X[new], more, ln_theta, kernel)]
    if len(new) == 0:
        return posterior
    B = B[new]
    Z = np.concatenate([posterior.Z, X[new]])
    K_XX, _ = inducing_kernel(X[new], X[new], ln_theta, kernel)
    Cinv = tri_inv(cholesky(K_XX - B @ B.T, "k(X, X) given Z"))
    beside = np.zeros((len(posterior.c), len(new)))
    Linv = np.block([[posterior.Linv, beside], [-Cinv @ B @ posterior.Linv, Cinv]])
    check_prior(Z, ln_theta, Linv, kernel)
    A = np.block([[posterior.A, beside], [beside.T, 0 * Cinv]])
    root = np.block([[posterior.root, beside], [beside.T, np.eye(len(new))]])
    return Posterior(Z, ln_theta, Linv, A, np.append(posterior.c, beside[0]), root, kernel)


# --- WISKI in one dimension: Stanton et al. 2021; L Table 1, Sec. 5.1 ----------------------------

class GridSums(NamedTuple):
    """All WISKI keeps of the rows: sums over them of w w^T, w y, y^2 and 1.

    w: the interpolation weights on a grid.
    """
    grid: np.ndarray           # (g,) equally spaced
    WW: np.ndarray             # (g, g)
    Wy: np.ndarray             # (g,)
    yy: float
    n: int


@in_doubles
def interpolation_weights(x, grid):
    """W (n, g): cubic convolution (Keys 1981) of x (n,) on an equally spaced grid; four neighbours.

    Rows add up to 1 from the second to the last but one grid point.
    """
    t = np.abs((x[:, None] - grid[None, :]) / (grid[1] - grid[0]))
    near = 1 - 2.5 * t**2 + 1.5 * t**3
    far = 2 - 4 * t + 2.5 * t**2 - 0.5 * t**3
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))


@in_doubles
def grid_add(sums, x, y):
    """GridSums with rows x, y (n,) added; the kernel comes in only with grid_nll.

    Rows beyond the ends of the grid, of which the model says nothing, are left out: they would
    count as noise.
    """
    inside = (x >= sums.grid[0]) & (x <= sums.grid[-1])
    x, y = x[inside], y[inside]
    W = interpolation_weights(x, sums.grid)
    return GridSums(sums.grid, sums.WW + W.T @ W, sums.Wy + W.T @ y, sums.yy + y @ y,
                    sums.n + len(y))


@in_doubles
def grid_posterior(L, sums, sigma2):
    """A (g, g), c (g,), root as `absorb` has them, which for this model is exact: V = W L."""
    A = L.T @ sums.WW @ L / sigma2
    c = L.T @ sums.Wy / sigma2
    return A, c, tri_inv(cholesky(np.eye(len(c)) + A, "I + A"))


@in_doubles
def grid_nll(p, sums, kernel=se_kernel):
    """-ln p(y | theta) of f(x) = w^T u, u ~ N(0, k(grid, grid) + jitter), and back; L Table 1.

    The objective of WISKI. O(g^3) whatever n is. p: ln_theta, ln_noise.

    back(d_value) returns a dict; B = WW/sigma_y^2, b = Wy/sigma_y^2, S = (I + A)^-1, H = L S L^T,
    mu = S c:
        d_K_uu = (B - B H B - t t^T)/2,   t = b - B H b,
        d_ln_noise = (n - yy/sigma_y^2 - tr(S A) - mu^T A mu)/2 + c^T mu
    """
    grid = sums.grid[:, None]
    sigma2 = np.exp(p["ln_noise"])
    K_uu, K_back = inducing_kernel(grid, grid, p["ln_theta"], kernel)
    L = cholesky(K_uu, "k(grid, grid)")
    A, c, root = grid_posterior(L, sums, sigma2)
    root_c = root @ c
    square = sums.yy / sigma2 - root_c @ root_c
    half_ln_det = -np.sum(np.log(np.diag(root)))
    value = (sums.n * np.log(2 * np.pi * sigma2) + square) / 2 + half_ln_det

    def back(d_value):
        B = sums.WW / sigma2
        b = sums.Wy / sigma2
        S = root.T @ root
        mu = S @ c
        BL = B @ L
        t = b - BL @ mu
        d_K_uu = d_value / 2 * (B - BL @ S @ BL.T - np.outer(t, t))
        d_ln_theta, *_ = K_back(d_K_uu, of_X1=False)
        d_ln_noise = (sums.n - sums.yy / sigma2 - np.sum(S * A) - mu @ A @ mu) / 2 + c @ mu
        return dict(ln_theta=d_ln_theta, ln_noise=d_value * d_ln_noise)
    return value, back


@in_doubles
def grid_predict(p, sums, X_new, kernel=se_kernel):
    """mean, var (n,) of f at X_new (n, 1).

    Beyond the ends of the grid the weights w fall to 0, within a step. There f has a part of its
    own, of variance k - w^T k(grid, grid) w: mean and variance become the prior's.
    """
    grid = sums.grid[:, None]
    K_uu, _ = inducing_kernel(grid, grid, p["ln_theta"], kernel)
    L = cholesky(K_uu, "k(grid, grid)")
    _, c, root = grid_posterior(L, sums, np.exp(p["ln_noise"]))
    x = X_new[:, 0]
    V = interpolation_weights(x, sums.grid) @ L
    W = V @ root.T
    k = signal_variance(p["ln_theta"])
    outside = (x < sums.grid[0]) | (x > sums.grid[-1])
    var = row_dots(W, W) + outside * np.maximum(k - row_dots(V, V), 0.0)
    return W @ (root @ c), np.maximum(var, VAR_FLOOR * k)


# --- L Algorithm 1 and what it is compared with: METHODS -----------------------------------------

@in_doubles
def descend(objective, p, adam, steps, rates=LEARNING_RATES):
    """p, adam after `steps` steps of Adam on objective(p) -> value, back; L Sec. 5.1.

    Each key of p has its own rate; ln_theta and ln_noise are kept in LN_BOX, the noise above
    MIN_NOISE.
    """
    lr = pack({name: np.full(np.shape(value), rates[name]) for name, value in p.items()})
    ln_min = math.log(MIN_NOISE)
    for _ in range(steps):
        _, back = objective(p)
        grads = back(1.0)
        gradient = pack({name: grads[name] for name in p})
        x, adam = adam_step(pack(p), gradient, adam, lr)
        p = unpack(x, p)
        ln_theta = np.clip(p["ln_theta"], -LN_BOX, LN_BOX)
        ln_noise = np.clip(p["ln_noise"], ln_min, LN_BOX)
        p = dict(p, ln_theta=ln_theta, ln_noise=ln_noise)
    return p, adam


@in_doubles
def posterior_at(p, old, X, y):
    """The Posterior at parameters p: the best given `old` and the batch, or, where p has m,
    q(alpha) = N(m, L_S L_S^T).
    """
    if "m" not in p:
        return update(old, X, y, p["ln_noise"], p["Z"], p["ln_theta"])
    inverse = tri_inv(p["L_S"])
    precision = inverse.T @ inverse
    A = precision - np.eye(len(p["m"]))
    empty = prior(p["Z"], p["ln_theta"], old.kernel)
    return empty._replace(A=A, c=precision @ p["m"], root=p["L_S"].T)


class Snapshot(NamedTuple):
    """What stream yields."""
    p: dict                    # ln_theta, ln_noise as learnt so far; Z unless the GP is exact;
                               # m, L_S for O-SVGP
    held: tuple                # all that is kept of the rows: a Posterior, GridSums, or the rows
    predict: Callable          # a function of X_new (n, d): mean, var (n,) of f, without noise


def sparse_stream(X, y, p, parts, settings=None, grow=False, kernel=se_kernel):
    """Yields a Snapshot after each part (rows, steps of Adam), the first for pretraining.

    L Algorithm 1. settings None: (8) throughout, O-SGPR or O-SVGP. Else the keyword arguments of
    online_objective, O-PACGP, from the second part on; the first minimises (8), as in the paper.
    grow, OVC: each new input becomes an inducing input. Adam's moments are carried on from
    pretraining to the last row.
    """
    posterior = prior(p["Z"], p["ln_theta"], kernel)
    adam = None
    for rows, steps in parts:
        X_i = X[rows]
        y_i = y[rows]
        if rows.start and grow:
            posterior = extended(posterior, X_i, share=0)
            p = dict(p, Z=posterior.Z)
        objective = partial(free_energy, old=posterior, X=X_i, y=y_i)
        if rows.start and settings is not None:
            lam = 1 / len(y_i) if settings["lam"] is None else settings["lam"]         # L Sec. 5.1
            objective = partial(online_objective, old=posterior, X=X_i, y=y_i,
                                **dict(settings, lam=lam))                            # L Eq. (12)
        p, adam = descend(objective, p, adam, steps)
        posterior = posterior_at(p, posterior, X_i, y_i)
        yield Snapshot(p, posterior, partial(predict, posterior))


def grid_stream(X, y, p, Z, parts, kernel=se_kernel):
    """Yields as sparse_stream: WISKI, on a grid of as many points as Z. X (N, 1).

    The grid is a step wider than Z at both ends.
    """
    g = len(Z)
    h = (Z.max() - Z.min()) / (g - 3)
    grid = np.linspace(Z.min() - h, Z.max() + h, g)
    sums = GridSums(grid, np.zeros((g, g)), np.zeros(g), 0.0, 0)
    adam = None
    for rows, steps in parts:
        sums = grid_add(sums, X[rows, 0], y[rows])
        p, adam = descend(partial(grid_nll, sums=sums, kernel=kernel), p, adam, steps)
        forecast = partial(grid_predict, p, sums, kernel=kernel)
        yield Snapshot(dict(p, Z=grid[:, None]), sums, forecast)


def exact_stream(X, y, p, parts, window, max_evals=50, kernel=se_kernel):
    """Yields as sparse_stream: the exact GP, trained from scratch on the last `window` rows.

    L Eq. (3), (4).
    """
    high = np.full(pack(p).size, LN_BOX)
    low = np.append(-high[1:], math.log(MIN_NOISE))
    for part, _ in parts:
        rows = slice(max(0, part.stop - window), part.stop)

        def fun(x):
            value, back = exact_nll(unpack(x, p), X[rows], y[rows], kernel)
            return value, pack(back(1.0))
        best = unpack(lbfgs(fun, pack(p), low, high, max_evals).x, p)
        forecast = partial(exact_predict, X[rows], y[rows], **best, kernel=kernel)
        yield Snapshot(best, (X[rows], y[rows]), forecast)


def stream(X, y, method, Z, ln_theta=None, ln_noise=0.0, n0=10, pretrain=400, steps=1, batch=1,
           window=20, eps=0.1, loss="exp", lam=None, delta=0.05, K=1.0, kernel=se_kernel):
    """Yields a Snapshot, with predict(X_new) -> mean, var, after n0 rows and each further batch.

    L Sec. 5. X (N, d), y (N,): scaled beforehand. method: one of METHODS. Z (M, d): inducing
    inputs; WISKI takes only their range and number, `exact` and `window` ignore them, but Z must be
    given. ln_theta (default: lengthscales and signal variance 1), ln_noise (default: noise variance
    1): where the search begins and, on few rows, often stays. pretrain: Adam steps on the n0 rows;
    steps: those at each batch, with the LEARNING_RATES. window: rows that `window` keeps. eps,
    loss, lam, delta, K: of online_objective, for O-PACGP (lam None: the paper's 1/len(x), which is
    1 for one row at a time). No certificate comes with any of these: the kernel moves inside the
    step. ValueError for bad input.
    """
    X, y = check_data(X, y)
    N, d = X.shape
    ln_theta = np.zeros(d + 1) if ln_theta is None else ln_theta
    Z, ln_theta = check_parameters(Z, ln_theta, d, kernel)
    method = check_choice("method", method, METHODS)
    loss = check_choice("loss", loss, STREAM_LOSSES)
    counts = dict(n0=n0, pretrain=pretrain, steps=steps, batch=batch, window=window)
    n0, pretrain, steps, batch, window = (check_count(*count) for count in counts.items())
    if n0 > N:
        raise ValueError(f"n0 = {n0} rows for pretraining, but there are {N}")
    eps = check_scalar("eps", eps, 0)
    lam = lam if lam is None else check_scalar("lam", lam, 0)
    delta = check_scalar("delta", delta, 0, 1)
    K = check_scalar("K", K, 0)
    if method == "WISKI" and (d != 1 or len(Z) < 4):
        raise ValueError("WISKI here is for one input and at least 4 points of Z: "
                         f"got shapes {X.shape} and {Z.shape}")
    p = dict(ln_theta=ln_theta, ln_noise=check_logarithm("ln_noise", ln_noise, 0))
    if method == "OVC":
        steps = 0
    batches = [slice(i, min(i + batch, N)) for i in range(n0, N, batch)]
    parts = [(slice(0, n0), pretrain)] + [(rows, steps) for rows in batches]
    if method == "exact":
        return exact_stream(X, y, p, parts, N, kernel=kernel)
    if method == "window":
        return exact_stream(X, y, p, parts, window, kernel=kernel)
    if method == "WISKI":
        return grid_stream(X, y, p, Z, parts, kernel)
    p = dict(p, Z=Z)
    if method == "O-SVGP":
        p = dict(p, m=np.zeros(len(Z)), L_S=np.eye(len(Z)))
    settings = None
    if method == "O-PACGP":
        settings = dict(lam=lam, eps=eps, loss=loss, delta=delta, K=K)
    return sparse_stream(X, y, p, parts, settings, method == "OVC", kernel)


# --- the bounds: L Sec. 3.2, Theorem 3.1 ---------------------------------------------------------

def bound_terms(loss_sum, KL, m, lam, delta, K):
    """All as floats, lam also as an array; what rounding leaves of loss_sum and KL below 0 is 0.

    ValueError unless 0 <= loss_sum <= m K, KL >= 0, m >= 1, 0 < lam < inf, 0 < delta <= 1, K > 0.
    """
    loss_sum, KL, m, delta, K = map(float, (loss_sum, KL, m, delta, K))
    lam = np.asarray(lam, dtype=float)[()]
    sums = -1e-9 < loss_sum <= m * K * (1 + 1e-9) and KL > -1e-9
    if not (sums and m >= 1 and np.all((0 < lam) & (lam < np.inf)) and 0 < delta <= 1 and K > 0):
        raise ValueError("the bound needs 0 <= loss_sum <= m K, KL >= 0, m >= 1, lam > 0, "
                         f"0 < delta <= 1, K > 0: got {loss_sum, KL, m, lam, delta, K}")
    return max(loss_sum, 0.0), max(KL, 0.0), m, lam, delta, K


def online_bound(loss_sum, KL, m, lam, delta=0.05, K=1.0, printed=False):
    """Bounds the sum of the conditional risks over m rows, for all m at once; L Eq. (9)-(11), (17).

        loss_sum + KL/lam + lam m K^2/8 + ln(1/delta)/lam
    printed: with K^2/2, four times what Hoeffding's lemma needs. loss_sum: the sum over rows j of E
    loss(h, z_j), h ~ Q_i of the row's batch i, losses in [0, K]; KL: the sum over batches of
    KL(Q_i||P_i). P_i may depend on the rows of earlier batches alone, lam on no row; whether a
    row opens a new batch must be decided before that row is seen. Three readings: (9) any Q_i;
    (10), training: Q_i the posterior after the batch; (11) and (17), test: Q_i = P_i, the
    predictor as it was when the row came, KL = 0. Risk is E[loss(h, z_j) | z_1 .. z_{j-1}],
    given all rows before, those of the same batch included. Haddouche & Guedj 2022.

    Returns a number for a lam, an array for several, each of which holds for its lam alone: the
    least of them needs delta/len(lam) for delta. ValueError for values out of range.

    Proof: for any h, by Hoeffding's lemma, exp(lam sum_j (risk_j - loss_j) - lam^2 m K^2/8) is a
    supermartingale, and so is the product over batches of its batch's part, averaged over h ~
    P_i; by Ville's inequality it ever exceeds 1/delta with probability at most delta; and E_Q g
    - KL(Q||P) is at most ln E_P exp g (Donsker & Varadhan).
    """
    loss_sum, KL, m, lam, delta, K = bound_terms(loss_sum, KL, m, lam, delta, K)
    variance = m * K * K / (2 if printed else 8)
    return loss_sum + KL / lam + lam * variance + math.log(1 / delta) / lam            # L Eq. (9)


def best_lam(m, KL=0.0, delta=0.05, K=1.0):
    """sqrt(8 (KL + ln(1/delta))/m)/K: minimises (9) for m rows and a KL guessed beforehand."""
    _, KL, m, _, delta, K = bound_terms(0.0, KL, m, 1.0, delta, K)
    if delta == 1 and KL == 0:
        raise ValueError("delta must be below 1 where KL = 0: with nothing to pay, "
                         "the smaller lam the better")
    return math.sqrt(8 * (KL + math.log(1 / delta)) / m) / K


def certified_stream(X, y, Z, ln_theta, ln_noise, lam, eps=0.1, loss="exp", delta=0.05, batch=1,
                     kernel=se_kernel):
    """Yields the Posterior and the bound of L Eq. (10) on the mean risk so far, after each batch.

    L Corollary 3.2: P_i is the posterior of the rows before batch i, Q_i the one with them. All
    else is fixed before the first row, Z (M, d), ln_theta, ln_noise, lam and the tolerance eps of a
    loss in LOSSES; Algorithm 1 moves the first three. So the bound holds for all m at once with
    probability 1 - delta, except for rounding. It may exceed 1, and then says nothing. With
    beyond/stream.py kernel, noise and Z follow the stream. ValueError for bad input.
    """
    X, y = check_data(X, y)
    Z, ln_theta = check_parameters(Z, ln_theta, X.shape[1], kernel)
    ln_noise = check_logarithm("ln_noise", ln_noise, 0)
    eps = check_scalar("eps", eps, 0)
    loss = check_choice("loss", loss, LOSSES)
    delta = check_scalar("delta", delta, 0, 1)
    batch = check_count("batch", batch)
    bound_terms(0.0, 0.0, 1, lam, delta, 1.0)      # its ValueError for lam
    first = prior(Z, ln_theta, kernel)

    def bounds():
        new = first
        loss_sum = KL = 0.0
        for start in range(0, len(y), batch):
            rows = slice(start, start + batch)
            old = new
            new = update(old, X[rows], y[rows], ln_noise)
            mean, var = predict(new, X[rows])
            loss_sum += np.sum(LOSSES[loss](y[rows], mean, var, eps)[0])
            KL += process_kl(new, old)
            m = start + len(y[rows])
            yield new, online_bound(loss_sum, KL, m, lam, delta) / m                    # L Eq. (10)
    return bounds()


# --- what every entry point checks ---------------------------------------------------------------

def check_batch(X, y, d):
    """X (n, d), y (n,) as float arrays, n >= 0; ValueError that names what is wrong."""
    X = check_columns("X", X, d)
    y = check_array("y", y, 1)
    if len(X) != len(y):
        raise ValueError(f"X and y differ in length: {len(X)} rows against {len(y)}")
    return X, y


def check_logarithm(name, a, ndim):
    """`a` as a float array of `ndim` dimensions; ValueError unless 0 < exp(a) < inf."""
    a = check_array(name, a, ndim)
    if np.max(np.abs(a), initial=0.0) > 300:
        worst = a.flat[np.argmax(np.abs(a))]
        raise ValueError(f"{name} must lie in [-300, 300], so that exp({name}) is positive and "
                         f"finite, got {worst:g}")
    return a


def check_parameters(Z, ln_theta, d=None, kernel=se_kernel):
    """Z (M, d), M >= 1, and ln_theta as float arrays that fit each other and the kernel.

    ValueError otherwise.
    """
    check_kernel(kernel)
    Z = check_array("Z", Z, 2)
    ln_theta = check_logarithm("ln_theta", ln_theta, 2 if np.ndim(ln_theta) == 2 else 1)
    columns = Z.shape[1]
    if Z.size == 0 or (d is not None and columns != d):
        raise ValueError(f"Z must have at least one row and {d or 'some'} columns, "
                         f"got shape {Z.shape}")
    if ln_theta.size == 0:
        raise ValueError(f"ln_theta must not be empty, got shape {ln_theta.shape}")
    check_signal(kernel, Z, ln_theta)      # or the kernel's ValueError where ln_theta does not fit
    return Z, ln_theta
