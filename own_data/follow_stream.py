"""Streaming PAC-Bayes Gaussian process regression, in NumPy, equation by equation.

T. Liu, J. Lu, Z. Yan, G. Zhang: Streaming PAC-Bayes Gaussian process regression with a performance guarantee for online
decision making, 2022. Tag below: L. `L Eq. (9)` stands at the statement that is Eq. (9). Functions that Reeb et al. need, too,
come from pacgp_ref.

The idea. A GP that learns from a stream keeps M inducing inputs and what the rows seen so far said about the function there.
P_i knows the rows before batch i. Batch i turns it into a posterior. Q_i, which the training certificate books, is that
posterior, or P_i itself where that is cheaper. P_{i+1} may be anything computed from rows already counted, at no cost: here
the posterior, after its inducing inputs, kernel, noise and scale have moved. Theorem 3.1: the losses, the KL divergences of
learning and two constants, summed, bound the sum of the risks, at all times at once (`online_bound`). A tighter bound, which
averages over lam, is used here (`certificate`), six times with delta/6 (`certificates`):

    batch i -> one-step loss of P_i -> posterior -> Q_i as booked, its loss and KL(Q_i||P_i) -> certificates
            -> then, from the past alone, the posterior moves: that is P_{i+1}

Read `begin`, `step`, `paid_update`, `certificates`, `certificate` first; the rest is what they call, or compare with.

The paper's Q^_{i+1} is our Q_i in (10) and (12); its Q^_i is our P_i in (11), (15), (17) and (19).

Two algorithms stand side by side: O-PACGP as published (`stream`), whose number is no bound, and a certified one (`begin`,
`step`), whose number is. What is bounded is the risk conditional on the past: the mean over the rows z_i of the expected loss
of the predictor used for z_i on a row drawn as z_i was, given the rows before it. It says nothing about inputs the stream
has not come to. With plain expectations, as printed, and dependent rows the theorem is false (one coin copied m times).

    paper             code            shape        meaning, unit
    X_t, y_t          X, y            (n,d) (n,)   one batch; n may be 0 or 1
    a, b              old.Z, Z        (M_a,d)(M,d) inducing inputs before and after a batch
    theta             ln_theta        (T,)         SE: ln of (l_1^2 .. l_d^2, sigma_s^2) or (l^2, sigma_s^2), as in pacgp_ref;
                                      (Q, 2d+1)    spectral mixture: rows ln of (mu_1 .. mu_d, l_1^2 .. l_d^2, w)
    sigma_y^2         ln_noise        scalar       ln of the noise variance
    q_old, q_new      State           A, c         q(f(Z)) = p(f(Z)) exp(-alpha^T A alpha/2 + c^T alpha) / const, f(Z) = L alpha
                      mu, S           (M,) (M,M)   its mean and covariance, of alpha: mu = S c, S = (I + A)^-1 = root^T root
    P_i, Q_i          State                        before batch i; booked for it, the posterior or P_i
    m_i, sigma_i^2    mean, var       (n,) (n,)    marginals of Q at the rows [y], [y^2]
    lambda, delta, m  lam, delta, m   scalars      rate of the bound; probability that it fails; rows that count
    K, eps            K, eps          scalars      the loss lies in [0, K]; its accuracy goal [y]; of a Goal, see its unit
                      p               dict         of every objective: ln_theta, ln_noise; Z unless exact or on a grid; for
                                                   O-SVGP m (M,) and L_S (M, M), q(alpha) = N(m, L_S L_S^T)

Whitened: L L^T = k(Z, Z) + jitter; the prior is A = 0, c = 0. Everything the rows say is in A and c, sums to which a batch
adds; no covariance of a posterior is ever inverted. The old posterior acts on the new one as M_a more rows, with features
U = L_a^-1 k(Z_a, Z) L^-T in place of V = k(X, Z) L^-T. A kernel matrix is K_ and its two inputs: K_ZZ, K_XZ, or K_12.

Equations without code of their own: (1) is the joint density that (3) conditions, (2) the likelihood; (14), (18) and (21)-(24)
are the losses of R Eq. (18)-(30), in pacgp_ref. Where the paper has a misprint the docstring says so.
"""
import contextlib
import math
import os
import warnings
from functools import partial
from typing import Callable, NamedTuple
from zlib import crc32

if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")                   # two wait for each other where matrices are small

import numpy as np

from pacgp_ref import (JITTER, LN_BOX, LOSSES, TINY, ULP, VAR_FLOOR, Enclosed, KL_from_above, adam_step, as_given, bound_text,
                       check_array, check_choice, check_columns, check_count, check_data, check_files, check_flag,
                       check_jitter, check_kind, check_marginals, check_scalar, cholesky, chosen_columns, column_middle,
                       column_scale, confidence, contents, emit, enclosed_marginals, exit_status, few, finish,
                       gaussian_nll, gaussian_nll_back, incomplete, interval, lbfgs, lines_of, new_rows, noisy_factors,
                       option, pack, parser, progress, read_archive, read_rows, risk_from_above, rounded_up, row_blocks,
                       row_dots, se_kernel, se_kernel_back, tri_inv, unpack, what_was_read, write_archive, writing)

MAX_TRACE_A = 1e12     # of tr A after a change of units: above, as after a huge outlier, I + A would lose the digits of I
MIN_NOISE = 1e-4       # least sigma_y^2 of a search and after every step: the bound of the framework the paper was run in
RATES = {"ln_theta": 0.1, "ln_noise": 0.1, "Z": 0.01, "m": 0.01, "L_S": 0.01}      # Adam's, L Sec. 5.1
LAMS = tuple(8.0 * 0.5**k for k in range(15))      # the rates that a certificate averages over: for m up to 10^8
GOAL_LOSSES = ("01", "square", "exp")
DISCARD = ("redundant", "least", "oldest")
GOAL_UNITS = ("first", "running", "y")
LEARN = ("window", "evidence", "bound", "nothing")
METHODS = ("O-SGPR", "O-SVGP", "WISKI", "O-PACGP", "OVC", "exact", "window")


# --- kernels ----------------------------------------------------------------------------------------------------------

def waves(X1, X2, row):
    """2 pi mu_k (x1_k - x2_k), (N1, N2, d): the angles of one component of a spectral mixture."""
    return 2 * np.pi * np.exp(row[:X1.shape[1]]) * np.clip(X1[:, None, :] - X2[None, :, :], -1e150, 1e150)


def kernel(X1, X2, ln_theta, exact=False):
    """K_12 (N1, N2) [y^2]: SE where ln_theta is a vector, a spectral mixture where it is a table; L Sec. 5.1.

        K_12 = sum_q w_q exp(-sum_k (x1_k - x2_k)^2/(2 l_qk^2)) prod_k cos(2 pi mu_qk (x1_k - x2_k))
    Wilson & Adams 2013, Eq. (12), whose v is 1/(4 pi^2 l^2). X1 (N1, d), X2 (N2, d). exact: as se_kernel.
    """
    if ln_theta.ndim == 1:
        return se_kernel(X1, X2, ln_theta, exact)
    d = X1.shape[1]
    return sum(se_kernel(X1, X2, row[d:], exact) * np.prod(np.cos(waves(X1, X2, row)), 2) for row in ln_theta)


def kernel_back(d_K, K_12, X1, X2, ln_theta):
    """d_ln_theta, d_X2 (N2, d) from d_K (N1, N2); K_12 = kernel(X1, X2, ln_theta).

        d prod_k cos(a_k) = -sum_k sin(a_k) prod_{j != k} cos(a_j) da_k,   da_k/d ln mu_k = a_k,   da_k/d x2_k = -2 pi mu_k
    """
    if ln_theta.ndim == 1:
        return se_kernel_back(d_K, K_12, X1, X2, ln_theta)
    d, d_rows, d_X2 = X1.shape[1], [], 0.0
    for row in ln_theta:
        angle, E = waves(X1, X2, row), se_kernel(X1, X2, row[d:])
        cos = np.cos(angle)
        d_row, d_X2_E = se_kernel_back(d_K * np.prod(cos, 2), E, X1, X2, row[d:])
        others = np.stack([np.prod(np.delete(cos, k, 2), 2) for k in range(d)], 2)
        d_angle = -(d_K * E)[:, :, None] * np.sin(angle) * others
        d_rows.append(np.concatenate([np.sum(d_angle * angle, (0, 1)), d_row]))
        d_X2 = d_X2 + d_X2_E - 2 * np.pi * np.exp(row[:d]) * np.sum(d_angle, 0)
    return np.stack(d_rows), d_X2


def signal_variance(ln_theta):
    """k(x, x): sigma_s^2, or the sum of a mixture's weights [y^2]."""
    return np.sum(np.exp(ln_theta[..., -1]))


def entry_ulps(X1, X2, ln_theta):
    """By how many ulp of k(x, x) an exact kernel may err: d + 8, and for a mixture its largest angle."""
    angles = [np.max(np.abs(waves(X1, X2, row)), initial=0.0) for row in ln_theta] if ln_theta.ndim == 2 else [0.0]
    return X1.shape[1] * (1 + max(angles)) + 8


def same_points(Z1, Z2):
    """1.0 where row i of Z1 is row j of Z2, else 0.0 (M1, M2): equal rows share their jitter. Repeated rows pair in order."""
    equal = lambda A, B: np.all(A[:, None, :] == B[None, :, :], axis=2)
    order = [np.sum(np.tril(equal(Z, Z), -1), 1) for Z in (Z1, Z2)]
    return 1.0 * (equal(Z1, Z2) & (order[0][:, None] == order[1][None, :]))


def inducing_kernel(Z1, Z2, ln_theta):
    """Covariance (M1, M2) of inducing variables, cache: k(Z1, Z2), exact, plus the jitter where both are one variable."""
    K_12, same = kernel(Z1, Z2, ln_theta, exact=True), np.eye(len(Z1)) if Z1 is Z2 else same_points(Z1, Z2)
    return K_12 + JITTER * signal_variance(ln_theta) * same, (K_12, same, Z1, Z2, ln_theta)


def inducing_kernel_back(d_K, cache):
    """d_ln_theta, d_Z2 (M2, d) from d_K (M1, M2); the jitter is a share of k(x, x)."""
    K_12, same, Z1, Z2, ln_theta = cache
    d_ln_theta, d_Z2 = kernel_back(d_K, K_12, Z1, Z2, ln_theta)
    d_ln_theta[..., -1] += JITTER * np.sum(d_K * same) * np.exp(ln_theta[..., -1])
    return d_ln_theta, d_Z2


# --- the exact Gaussian process: L Sec. 3.1 ---------------------------------------------------------------------------

def exact_predict(X, y, X_new, ln_theta, ln_noise):
    """mean, var (n,) of f at X_new (n, d) given all rows; L Eq. (3)."""
    k = signal_variance(ln_theta)
    _, _, Linv, mu, _ = noisy_factors(kernel(X, X, ln_theta), y, ln_noise)
    V = kernel(X_new, X, ln_theta) @ Linv.T
    return V @ mu, np.maximum(k - row_dots(V, V), VAR_FLOOR * k)                                       # L Eq. (3)


def exact_nll(p, X, y):
    """-ln p(y | X, theta, sigma_y), cache; L Eq. (4). p: ln_theta, ln_noise."""
    K_XX = kernel(X, X, p["ln_theta"])
    value, cache = gaussian_nll(K_XX, y, p["ln_noise"])                                                # L Eq. (4)
    return value, dict(cache, ln_theta=p["ln_theta"], X=X, K_XX=K_XX)


def exact_nll_back(d_value, cache):
    """Gradient dict for ln_theta, ln_noise."""
    X, (d_K, d_ln_noise) = cache["X"], gaussian_nll_back(d_value, cache)
    return dict(ln_theta=kernel_back(d_K, cache["K_XX"], X, X, cache["ln_theta"])[0], ln_noise=d_ln_noise)


# --- the streaming posterior: L Sec. 3.1, Eq. (5)-(7) -----------------------------------------------------------------

class State(NamedTuple):
    """A posterior that rows can still be added to; L Eq. (5), (6). An update returns a new one and leaves this one as it is."""
    Z: np.ndarray              # (M, d) inducing inputs
    ln_theta: np.ndarray       # (T,) or (Q, 2d+1) the kernel
    Linv: np.ndarray           # (M, M) L^-1, L L^T = k(Z, Z) + jitter
    A: np.ndarray              # (M, M) what the rows say, in units of the prior's precision
    c: np.ndarray              # (M,) what they say of the mean: its information vector
    root: np.ndarray           # (M, M) triangular, (I + A)^-1 = root^T root


def check_prior(K_ZZ, Linv, Z, ln_theta):
    """ValueError where rounding leaves no jitter: see check_jitter; or where a mixture's angles are too large for it."""
    if 4 * len(Z) * ULP * entry_ulps(Z, Z, ln_theta) > JITTER:
        raise ValueError("ln_theta has frequencies too high, or Z is too wide, for k(Z, Z) to keep its digits")
    check_jitter(K_ZZ, Linv, signal_variance(ln_theta))


def prior(Z, ln_theta):
    """The State that knows no row: A = 0, c = 0."""
    Z, ln_theta = check_parameters(Z, ln_theta)
    K_bb, (K_ZZ, *_) = inducing_kernel(Z, Z, ln_theta)
    Linv, M = tri_inv(cholesky(K_bb, "k(Z, Z)")), len(Z)
    check_prior(K_ZZ, Linv, Z, ln_theta)
    return State(Z, ln_theta, Linv, np.zeros((M, M)), np.zeros(M), np.eye(M))


def features(X, Z, ln_theta, old):
    """V (n, M) = k(X, Z) L^-T, U (M_a, M) = L_a^-1 k(Z_a, Z) L^-T, cache: features of the new rows and of the old posterior.

    k is the kernel at ln_theta; L_a belongs to the State `old`, and to its kernel. An inducing variable that stays keeps
    its jitter, so that U = I where nothing changes.
    """
    (K_bb, bb), (K_ab, ab), K_xb = inducing_kernel(Z, Z, ln_theta), inducing_kernel(old.Z, Z, ln_theta), kernel(X, Z, ln_theta)
    Linv = tri_inv(cholesky(K_bb, "k(Z, Z)"))
    V, U = K_xb @ Linv.T, old.Linv @ K_ab @ Linv.T
    return V, U, dict(X=X, Z=Z, ln_theta=ln_theta, old=old, Linv=Linv, bb=bb, ab=ab, K_xb=K_xb, V=V, U=U)


def features_back(d_V, d_U, cache):
    """d_ln_theta, d_Z from d_V (n, M), d_U (M_a, M).

        d_k(Z, Z) = -L^-T low(P) L^-1 / 2,   P = d_V^T V + d_U^T U,   low(P) = tril(P) + tril(P, -1)^T
    so that no gradient of a Cholesky factor is needed.
    """
    X, Z, ln_theta, old, Linv = (cache[key] for key in ("X", "Z", "ln_theta", "old", "Linv"))
    P = d_V.T @ cache["V"] + d_U.T @ cache["U"]
    parts = [inducing_kernel_back(-Linv.T @ (np.tril(P) + np.tril(P, -1).T) @ Linv / 2, cache["bb"]),
             kernel_back(d_V @ Linv, cache["K_xb"], X, Z, ln_theta),
             inducing_kernel_back(old.Linv.T @ d_U @ Linv, cache["ab"])]
    return sum(d for d, _ in parts), 2 * parts[0][1] + parts[1][1] + parts[2][1]               # k(Z, Z) has Z on both sides


def absorb(V, U, y, sigma2, old):
    """A (M, M), c (M,), root of the posterior after a batch with Gaussian noise; L Eq. (6), (7), as far as Z can say it.

        A = U^T A_a U + V^T V/sigma_y^2,   c = U^T c_a + V^T y/sigma_y^2;   U None: U = I, where Z and theta stay
    The prefactor Z_1/Z_2 of (7) normalises it only where q_old is exact. Otherwise another constant does; it does not depend
    on q_new and is not needed here.
    """
    A, c = (old.A, old.c) if U is None else (U.T @ (old.A @ U), U.T @ old.c)
    A, c = A + V.T @ V / sigma2, c + V.T @ y / sigma2                                                  # L Eq. (7)
    return A, c, tri_inv(cholesky(np.eye(len(c)) + A, "I + A"))


def update(state, X, y, ln_noise, Z=None, ln_theta=None):
    """The State after a batch: q_new of L Eq. (6), (7), the optimum of (8).

    X (n, d), y (n,) with n >= 0; ln_noise of these rows; Z (M, d), ln_theta: new inducing inputs and kernel, or as they were.
    For the same Z and theta the order and the cut into batches do not matter; with Z = X it is the exact GP. An update with
    no rows and a new Z or theta carries a posterior over. Costs O((n + M) M^2), whatever was seen before: one factor and its
    inverse; with a new Z or theta also those of k(Z, Z) and four more products. ValueError for bad input.
    """
    check_kind("state", state, State, "prior or update")
    X, y = check_batch(X, y, state.Z.shape[1])
    sigma2 = np.exp(check_logarithm("ln_noise", ln_noise, 0))
    Z, ln_theta = check_parameters(state.Z if Z is None else Z, state.ln_theta if ln_theta is None else ln_theta,
                                   state.Z.shape[1])
    if np.array_equal(Z, state.Z) and np.array_equal(ln_theta, state.ln_theta):
        if len(y) == 0:
            return state
        V = kernel(X, state.Z, state.ln_theta) @ state.Linv.T
        return State(*state[:3], *absorb(V, None, y, sigma2, state))
    V, U, cache = features(X, Z, ln_theta, state)
    check_prior(cache["bb"][0], cache["Linv"], Z, ln_theta)
    return State(Z, ln_theta, cache["Linv"], *absorb(V, U, y, sigma2, state))


def predict(state, X_new):
    """mean [y], var [y^2] (n,) of f at X_new (n, d), without noise; L Eq. (3) for a State. n = 0 is fine."""
    check_kind("state", state, State, "prior or update")
    X_new = check_columns("X_new", X_new, state.Z.shape[1])
    k, mean, var = signal_variance(state.ln_theta), np.empty(len(X_new)), np.empty(len(X_new))
    for rows in row_blocks(len(X_new), len(state.Z)):
        V = kernel(X_new[rows], state.Z, state.ln_theta) @ state.Linv.T
        W = V @ state.root.T
        mean[rows], var[rows] = W @ (state.root @ state.c), k - row_dots(V, V) + row_dots(W, W)
    return mean, np.maximum(var, VAR_FLOOR * k)


# --- what the objectives are made of: L Eq. (8), (12), (13) -----------------------------------------------------------

def kl_to_old(mu, S, root, U, trace, old):
    """E ln(q_new(b)/p(b)) - E ln(q_old(a)/p(a)) under q_new(b) = N(L mu, L S L^T); L Eq. (13), and (8) without the likelihood.

        (tr S + mu^2 - M - ln|S|)/2 + tr(A_a Sig)/2 + m_a^T A_a m_a/2 - c_a^T m_a + c_a^T (I + A_a)^-1 c_a/2 - ln|I + A_a|/2
    with m_a = U mu, Sig = L_a^-1 k(Z_a, Z_a) L_a^-T + U (S - I) U^T: mean and covariance of alpha_a under Q_new. U (M_a, M) as
    `features`; trace = tr(A_a L_a^-1 k(Z_a, Z_a) L_a^-T), jitter included, which is tr A_a if the kernel stays; old: State.
    For one kernel that is KL(Q_new||Q_old) of the two processes. Where the kernels differ it is (13) without p(f|b)/p(f|a), as
    (8) has it: not a KL, possibly negative; the true KL is infinite.
    """
    m_a, root_c = U @ mu, old.root @ old.c
    to_prior = (np.trace(S) + mu @ mu - len(mu)) / 2 - np.sum(np.log(np.abs(np.diag(root))))
    quadratic = (trace + np.sum((old.A @ U) * (U @ (S - np.eye(len(mu)))))) / 2 + m_a @ (old.A @ m_a) / 2
    return to_prior + quadratic - old.c @ m_a + root_c @ root_c / 2 + np.sum(np.log(np.abs(np.diag(old.root))))


def posterior(p, old, X, y):
    """(mean, var, KL), cache: marginals (n,) of the new posterior at the batch, L Eq. (12), and its KL to the State `old`.

    p: Z (M, d), ln_theta, ln_noise; q is then the best for Gaussian noise (`absorb`: O-SGPR). With m (M,) and a lower
    triangular L_S (M, M) as well, q(alpha) = N(m, L_S L_S^T) (O-SVGP). Where the kernel moves, "KL" is what kl_to_old says.
    L (15) and (19) have the marginals before the batch, where (12) needs those after it.
    """
    k, sigma2 = signal_variance(p["ln_theta"]), np.exp(p["ln_noise"])
    V, U, features_cache = features(X, p["Z"], p["ln_theta"], old)
    c, root = (None, p["L_S"].T) if "m" in p else absorb(V, U, y, sigma2, old)[1:]
    S = root.T @ root
    mu = p["m"] if "m" in p else S @ c
    K_aa, aa = inducing_kernel(old.Z, old.Z, p["ln_theta"])
    trace = np.sum(old.A * (old.Linv @ K_aa @ old.Linv.T))
    raw = k - row_dots(V, V) + row_dots(V @ S, V)
    KL = kl_to_old(mu, S, root, U, trace, old)                                                         # L Eq. (13)
    cache = dict(p=p, old=old, y=y, sigma2=sigma2, V=V, U=U, mu=mu, S=S, features=features_cache, aa=aa,
                 above_floor=raw > VAR_FLOOR * k)
    return (V @ mu, np.maximum(raw, VAR_FLOOR * k), KL), cache


def posterior_back(d_mean, d_var, d_KL, cache):
    """Gradient dict with the keys of p from d_mean, d_var (n,) and the scalar d_KL. d_S is without -ln|S|/2 of the KL.

        d_mu = V^T d_mean + d_KL (mu + U^T r), r = A_a U mu - c_a;   d_S = V^T diag(d_var) V + d_KL (I + U^T A_a U)/2
        d_V  = d_mean mu^T + 2 diag(d_var) V (S - I),                d_U = d_KL (A_a U (S - I) + r mu^T)
        no m in p: mu = S c, S = (I + A)^-1:   d_c = S d_mu,   d_A = d_KL S/2 - S d_S S - (d_c mu^T + mu d_c^T)/2,
                   and through A and c on to V, U, sigma_y^2
        m in p:    d_m = d_mu,   d_L_S = tril(2 d_S L_S) - d_KL diag(1/diag L_S)
    """
    p, old, y, sigma2, V, U, mu, S = (cache[key] for key in ("p", "old", "y", "sigma2", "V", "U", "mu", "S"))
    AU, I, d_var, out = old.A @ U, np.eye(len(mu)), d_var * cache["above_floor"], dict(ln_noise=0.0)
    r = AU @ mu - old.c
    d_mu = V.T @ d_mean + d_KL * (mu + U.T @ r)
    d_S = (V.T * d_var) @ V + d_KL / 2 * (I + U.T @ AU)
    d_V = np.outer(d_mean, mu) + 2 * d_var[:, None] * (V @ (S - I))
    d_U = d_KL * (AU @ (S - I) + np.outer(r, mu))
    if "m" in p:
        out["m"], out["L_S"] = d_mu, np.tril(2 * d_S @ p["L_S"]) - d_KL * np.diag(1 / np.diag(p["L_S"]))
    else:
        d_c = S @ d_mu
        d_A = d_KL / 2 * S - S @ d_S @ S - (np.outer(d_c, mu) + np.outer(mu, d_c)) / 2
        d_V = d_V + (2 * V @ d_A + np.outer(y, d_c)) / sigma2
        d_U = d_U + 2 * AU @ d_A + np.outer(old.c, d_c)
        out["ln_noise"] = -(np.sum((V @ d_A) * V) + y @ (V @ d_c)) / sigma2
    d_ln_theta, d_Z = features_back(d_V, d_U, cache["features"])
    d_ln_theta = d_ln_theta + inducing_kernel_back(d_KL / 2 * old.Linv.T @ old.A @ old.Linv, cache["aa"])[0]
    d_ln_theta[..., -1] += d_var.sum() * np.exp(p["ln_theta"][..., -1])                        # k(x, x) in var
    return dict(out, Z=d_Z, ln_theta=d_ln_theta)


def process_kl(new, old):
    """KL(Q_new||Q_old) of two posterior processes, both States, any Z; L Eq. (13). inf where their kernels differ.

    Two Gaussian processes with different kernels have no density with respect to each other, so that (13) with online
    hyper-parameters has no meaning: on ever finer grids the KL of the values grows without bound. Move the kernel between
    steps instead (`step`). Its gradient is posterior_back's with d_KL = 1. ValueError where it is negative beyond rounding.
    """
    for name, state in (("new", new), ("old", old)):
        check_kind(name, state, State, "prior or update")
    if not np.array_equal(new.ln_theta, old.ln_theta):
        return math.inf
    KL, error = process_kl_enclosed(new, old)
    return KL_from_above(KL, error) - error


def process_kl_enclosed(new, old):
    """KL(Q_new||Q_old) of two States with one kernel, and by how much rounding may have moved it; L Eq. (13).

    Errors as those of a fit: each with the worst sign. Sums err by 4 M ulp of the size of their terms; U, where Z moves, as
    L_a^-1 E L^-T and by its own sums; d KL = <A_a U (S - I) + r mu^T, dU>, r = A_a U mu - c_a. The jitter of points that stay
    is one variable; as rounded L_a, L have it, the two are only correlated to M such errors of k, the last term.
    """
    size, moved = np.abs, not np.array_equal(new.Z, old.Z)
    unit = 4 * ULP * (entry_ulps(old.Z, new.Z, new.ln_theta) + len(new.c))
    U = old.Linv @ inducing_kernel(old.Z, new.Z, new.ln_theta)[0] @ new.Linv.T if moved else np.eye(len(old.c))
    S, trace = new.root.T @ new.root, np.trace(old.A)
    mu, mu_error = new.root.T @ (new.root @ new.c), unit * (size(new.root.T) @ (size(new.root) @ size(new.c)))
    KL = float(kl_to_old(mu, S, new.root, U, trace, old))                                              # L Eq. (13)
    AU, m_a, W = size(old.A) @ size(U), size(U) @ size(mu), size(new.root.T) @ size(new.root) + np.eye(len(mu))
    root_c = size(old.root) @ size(old.c)
    terms = np.trace(S) + mu @ mu + len(mu) + trace + np.sum(AU * (size(U) @ W)) \
        + m_a @ size(old.A) @ m_a + 2 * size(old.c) @ m_a + root_c @ root_c \
        + 2 * sum(np.sum(size(np.log(size(np.diag(root))))) for root in (new.root, old.root))
    r = old.A @ (U @ mu) - old.c
    error = unit * terms + size(mu + U.T @ r) @ mu_error
    k, slope = signal_variance(new.ln_theta), old.A @ U @ (S - np.eye(len(mu))) + np.outer(r, mu)
    slope_L, rows_a, rows = slope @ new.Linv, size(old.Linv).sum(1), size(new.Linv).sum(1)
    U_error = k * (rows_a @ size(slope_L).sum(1)) + math.sqrt(k) * (size(slope).sum(0) @ rows) \
        + k * len(mu) * abs(np.sum((old.Linv.T @ slope_L) * same_points(old.Z, new.Z)))
    return KL, float(error + moved * unit * U_error)


def free_energy(p, old, X, y):
    """-E ln p(y|f) + E ln(q_new(b)/p(b)) - E ln(q_old(a)/p(a)) [nats], cache; L Eq. (8), less the constant ln(Z_2/Z_1).

    Minus the streaming bound of Bui et al. (2017): collapsed where p has no m (O-SGPR), uncollapsed else (O-SVGP), with the
    same minimum. With fixed Z and theta its values over batches add up to that of all rows.
    """
    (mean, var, KL), cache = posterior(p, old, X, y)
    misfit, sigma2 = (y - mean) ** 2 + var, cache["sigma2"]
    value = np.sum(np.log(2 * np.pi * sigma2) + misfit / sigma2) / 2 + KL                              # L Eq. (8)
    slopes = (mean - y) / sigma2, np.full(len(y), 1 / (2 * sigma2)), (len(y) - np.sum(misfit) / sigma2) / 2
    return value, dict(cache, slopes=slopes, lam=1.0)


def expected_printed_exp_loss(y, mean, var, eps):
    """L Eq. (16), (20) as printed, with sigma_i where sigma_i^2 belongs, and its slopes: not the expectation of the loss (14).

        g = 1 - loss, u = y - mean, w = 2 s + eps^2:   d ln g/dmean = 2 u/w,   d ln g/dvar = -1/(2 var + eps^2) + u^2/(s w^2)
    """
    check_marginals(var, eps)
    s, u = np.sqrt(var), y - mean
    w = 2 * s + eps**2
    ln_g = -np.log1p(2 * var / eps**2) / 2 - u**2 / w
    g = np.exp(ln_g)
    return -np.expm1(ln_g), -g * 2 * u / w, g * (1 / (2 * var + eps**2) - u**2 / (s * w**2))


STREAM_LOSSES = {**LOSSES, "exp-printed": expected_printed_exp_loss}


def pac_objective(p, old, X, y, lam=1.0, eps=0.1, loss="exp", delta=0.05, K=1.0):
    """J, cache: what O-PACGP minimises at a batch; L Eq. (12), the KL inside the sum, with the constants as printed.

        J = sum_i E_Q loss(f_i, y_i) + KL(Q||P)/lam + lam n K^2/2 + ln(1/delta)/lam
    p, old, X, y as posterior; loss: a key of STREAM_LOSSES. Where the kernel moves, the KL is what kl_to_old says, and may be
    negative or huge.
    """
    (mean, var, KL), cache = posterior(p, old, X, y)
    losses, *slopes = STREAM_LOSSES[loss](y, mean, var, eps)
    value = np.sum(losses) + KL / lam + lam * len(y) * K * K / 2 + math.log(1 / delta) / lam           # L Eq. (12), (15), (19)
    return value, dict(cache, slopes=(*slopes, 0.0), lam=lam)


def objective_back(d_value, cache):
    """Gradient dict of free_energy or pac_objective, with the keys of p."""
    d_mean, d_var, d_ln_noise = (d_value * slope for slope in cache["slopes"])
    out = posterior_back(d_mean, d_var, d_value / cache["lam"], cache)
    return dict(out, ln_noise=out["ln_noise"] + d_ln_noise)


# --- inducing inputs that follow the stream ---------------------------------------------------------------------------

def pivot_rows(Z, M, ln_theta):
    """Indices, in order, of at most M rows of Z (N, d) that explain the others best: pivoted Cholesky, greedily.

    Stops where every row is explained to JITTER, so that repeated rows are left out.
    """
    k = signal_variance(ln_theta)
    left, L, chosen = np.full(len(Z), k), np.zeros((len(Z), min(M, len(Z)))), []
    while len(chosen) < L.shape[1] and left.max() > JITTER * k:
        i, j = int(np.argmax(left)), len(chosen)
        L[:, j] = (kernel(Z, Z[i:i + 1], ln_theta)[:, 0] - L[:, :j] @ L[i, :j]) / math.sqrt(left[i])
        left, chosen = left - L[:, j] ** 2, chosen + [i]
        left[chosen] = 0.0
    return sorted(chosen)


def extended(state, X, more=None, share=0.01):
    """Z: the State's, and the rows of X of whose variance they leave more than `share`; of those at most `more`, by pivot_rows.

    With share = 0 it is OVC (Maddox et al. 2021), Z = [Z_a; X]. Returns state.Z itself where nothing is new.
    """
    V = kernel(X, state.Z, state.ln_theta) @ state.Linv.T
    new = X[1 - row_dots(V, V) / signal_variance(state.ln_theta) > share] if share > 0 else X
    if len(new) == 0:
        return state.Z
    return np.concatenate([state.Z, new if more is None else new[pivot_rows(new, more, state.ln_theta)]])


def drop_costs(state):
    """KL(Q without u_j || Q) [nats] (M,): what each inducing input of a State is worth; not in the paper.

        v_j = L^-1 e_j/|L^-1 e_j|, S = root^T root:   (v^T A v + ln(v^T S v) + (v^T S c)^2/(v^T S v))/2
    """
    v = state.Linv / np.sqrt(np.sum(state.Linv**2, 0))
    s, t = np.sum((state.root @ v) ** 2, 0), v.T @ (state.root.T @ (state.root @ state.c))
    return (np.sum(v * (state.A @ v), 0) + np.log(s) + t**2 / s) / 2


def kept(state, M, discard="redundant"):
    """Z (at most M, d) of the inducing inputs that stay: without the most redundant, those worth least, or the oldest."""
    Z = state.Z
    if len(Z) <= M:
        return Z
    if discard == "oldest":
        return Z[-M:]
    if discard == "redundant":
        return Z[pivot_rows(Z, M, state.ln_theta)]
    others = np.delete(Z, np.argmin(drop_costs(state)), 0)
    return others if len(others) == M else kept(update(state, Z[:0], np.zeros(0), 0.0, others), M, discard)


# --- WISKI in one dimension: Stanton et al. 2021; L Table 1, Sec. 5.1 -------------------------------------------------

class GridSums(NamedTuple):
    """All WISKI keeps of the rows: sums over them of w w^T, w y, y^2 and 1, w the interpolation weights on a grid."""
    grid: np.ndarray           # (g,) equally spaced
    WW: np.ndarray             # (g, g)
    Wy: np.ndarray             # (g,)
    yy: float
    n: int


def interpolation_weights(x, grid):
    """W (n, g): cubic convolution (Keys 1981) of x (n,) on an equally spaced grid; four neighbours. Rows add up to 1 from the
    second to the last but one grid point.
    """
    t = np.abs((x[:, None] - grid[None, :]) / (grid[1] - grid[0]))
    near, far = 1 - 2.5 * t**2 + 1.5 * t**3, 2 - 4 * t + 2.5 * t**2 - 0.5 * t**3
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))


def grid_add(sums, x, y):
    """GridSums with rows x, y (n,) added; the kernel comes in only with grid_nll."""
    W = interpolation_weights(x, sums.grid)
    return GridSums(sums.grid, sums.WW + W.T @ W, sums.Wy + W.T @ y, sums.yy + y @ y, sums.n + len(y))


def grid_nll(p, sums):
    """-ln p(y | theta) of f(x) = w^T u, u ~ N(0, k(grid, grid) + jitter), cache; O(g^3) whatever n is. p: ln_theta, ln_noise.

    The features are V = W L, so A = L^T WW L/sigma_y^2 and c = L^T Wy/sigma_y^2 as in `absorb`; for this model that is exact.
    L Table 1, the objective of WISKI.
    """
    grid, sigma2 = sums.grid[:, None], np.exp(p["ln_noise"])
    K_uu, uu = inducing_kernel(grid, grid, p["ln_theta"])
    L = cholesky(K_uu, "k(grid, grid)")
    A, c = L.T @ sums.WW @ L / sigma2, L.T @ sums.Wy / sigma2
    root = tri_inv(cholesky(np.eye(len(c)) + A, "I + A"))
    rc = root @ c
    value = (sums.n * np.log(2 * np.pi * sigma2) + sums.yy / sigma2 - rc @ rc) / 2 - np.sum(np.log(np.diag(root)))
    return value, dict(sums=sums, sigma2=sigma2, uu=uu, L=L, A=A, c=c, root=root)


def grid_nll_back(d_value, cache):
    """Gradient dict of grid_nll; B = WW/sigma_y^2, b = Wy/sigma_y^2, S = (I + A)^-1, H = L S L^T, mu = S c:

        d_K_uu = (B - B H B - t t^T)/2,   t = b - B H b,   d_ln_noise = (n - yy/sigma_y^2 - tr(S A) - mu^T A mu)/2 + c^T mu
    """
    sums, sigma2, L, root, A, c = (cache[key] for key in ("sums", "sigma2", "L", "root", "A", "c"))
    B, b, S = sums.WW / sigma2, sums.Wy / sigma2, root.T @ root
    mu, BL = S @ c, B @ L
    t = b - BL @ mu
    d_ln_theta, _ = inducing_kernel_back(d_value / 2 * (B - BL @ S @ BL.T - np.outer(t, t)), cache["uu"])
    d_ln_noise = (sums.n - sums.yy / sigma2 - np.sum(S * A) - mu @ A @ mu) / 2 + c @ mu
    return dict(ln_theta=d_ln_theta, ln_noise=d_value * d_ln_noise)


def grid_predict(p, sums, X_new):
    """mean, var (n,) of f at X_new (n, 1). Beyond the grid all weights are 0, so both fall to 0: no forecast there."""
    cache = grid_nll(p, sums)[1]
    W = interpolation_weights(X_new[:, 0], sums.grid) @ cache["L"] @ cache["root"].T
    return W @ (cache["root"] @ cache["c"]), np.maximum(row_dots(W, W), VAR_FLOOR * signal_variance(p["ln_theta"]))


# --- the algorithms as published: L Algorithm 1, Sec. 5.1 -------------------------------------------------------------

def descend(objective, back, p, adam, steps, rates=RATES):
    """p, adam after `steps` steps of Adam on objective(p), each key of p at its own rate, ln_theta and ln_noise kept in LN_BOX,
    the noise above MIN_NOISE; L Sec. 5.1.
    """
    lr, ln_min = pack({name: np.full(np.shape(value), rates[name]) for name, value in p.items()}), math.log(MIN_NOISE)
    for _ in range(steps):
        grads = back(1.0, objective(p)[1])
        x, adam = adam_step(pack(p), pack({name: grads[name] for name in p}), adam, lr)
        p = unpack(x, p)
        p = dict(p, ln_theta=np.clip(p["ln_theta"], -LN_BOX, LN_BOX), ln_noise=np.clip(p["ln_noise"], ln_min, LN_BOX))
    return p, adam


def state_of(p, old, X, y):
    """The State at parameters p: the best given `old` and the batch, or q(alpha) = N(m, L_S L_S^T) where p has m."""
    if "m" not in p:
        return update(old, X, y, p["ln_noise"], p["Z"], p["ln_theta"])
    inverse = tri_inv(p["L_S"])
    precision = inverse.T @ inverse
    return prior(p["Z"], p["ln_theta"])._replace(A=precision - np.eye(len(p["m"])), c=precision @ p["m"], root=p["L_S"].T)


class Snapshot(NamedTuple):
    """What stream yields."""
    p: dict                    # ln_theta, ln_noise as learnt so far; Z unless the GP is exact; m, L_S for O-SVGP
    held: tuple                # all that is kept of the rows: a State, GridSums, or the rows (X, y) themselves
    predict: Callable          # a function of X_new (n, d): mean, var (n,) of f, without noise


def sparse_stream(X, y, p, parts, settings=None, grow=False):
    """Yields a Snapshot after each part (rows, steps of Adam), the first for pretraining; L Algorithm 1.

    settings None: (8) throughout, O-SGPR or O-SVGP. Else the keyword arguments of pac_objective, O-PACGP, from the second part
    on; the first minimises (8), as in the paper. grow, OVC: each new input becomes an inducing input. Adam's moments are
    carried on from pretraining to the last row.
    """
    state, adam = prior(p["Z"], p["ln_theta"]), None
    for rows, steps in parts:
        X_i, y_i, objective, terms = X[rows], y[rows], free_energy, {}
        if rows.start and settings is not None:
            lam = 1 / len(y_i) if settings["lam"] is None else settings["lam"]                         # L Sec. 5.1
            objective, terms = pac_objective, dict(settings, lam=lam)                                  # L Eq. (12)
        if rows.start and grow:
            p = dict(p, Z=extended(state, X_i, share=0))
        p, adam = descend(lambda p: objective(p, state, X_i, y_i, **terms), objective_back, p, adam, steps)
        state = state_of(p, state, X_i, y_i)
        yield Snapshot(p, state, partial(predict, state))


def grid_stream(X, y, p, Z, parts):
    """Yields as sparse_stream: WISKI, on a grid of as many points as Z, a step wider than Z at both ends. X (N, 1)."""
    g, low, high, adam = len(Z), Z.min(), Z.max(), None
    h = (high - low) / (g - 3)
    sums = GridSums(np.linspace(low - h, high + h, g), np.zeros((g, g)), np.zeros(g), 0.0, 0)
    for rows, steps in parts:
        sums = grid_add(sums, X[rows, 0], y[rows])
        p, adam = descend(lambda p: grid_nll(p, sums), grid_nll_back, p, adam, steps)
        yield Snapshot(dict(p, Z=sums.grid[:, None]), sums, partial(grid_predict, p, sums))


def exact_stream(X, y, p, parts, window, max_evals=50):
    """Yields as sparse_stream: the exact GP, trained from scratch on the last `window` rows; L Eq. (3), (4)."""
    high = np.full(pack(p).size, LN_BOX)
    low = np.append(-high[1:], math.log(MIN_NOISE))
    for part, _ in parts:
        rows = slice(max(0, part.stop - window), part.stop)

        def fun(x):
            value, cache = exact_nll(unpack(x, p), X[rows], y[rows])
            return value, pack(exact_nll_back(1.0, cache))
        best = unpack(lbfgs(fun, pack(p), low, high, max_evals).x, p)
        yield Snapshot(best, (X[rows], y[rows]), partial(exact_predict, X[rows], y[rows], **best))


def stream(X, y, method, Z, ln_theta=None, ln_noise=0.0, n0=10, pretrain=400, steps=1, batch=1, window=20, eps=0.1, loss="exp",
           lam=None, delta=0.05, K=1.0):
    """Yields a Snapshot, with predict(X_new) -> mean, var, after the first n0 rows and after each further batch; L Sec. 5.

    X (N, d), y (N,): scaled beforehand. method: one of METHODS. Z (M, d): inducing inputs; WISKI takes only their range and
    number, `exact` and `window` ignore them, but Z must be given. ln_theta (default: lengthscales and signal variance
    1), ln_noise (default: noise variance 1): where the search begins and, on few rows, often stays. pretrain: Adam steps on the
    n0 rows; steps: those at each batch, with the rates of RATES. window: rows that `window` keeps. eps, loss, lam, delta, K: of
    pac_objective, for O-PACGP (lam None: the paper's 1/len(x), which is 1 for one row at a time). No certificate comes with any
    of these: the kernel moves inside the step. ValueError for bad input.
    """
    X, y = check_data(X, y)
    Z, ln_theta = check_parameters(Z, np.zeros(X.shape[1] + 1) if ln_theta is None else ln_theta, X.shape[1])
    method, loss = check_choice("method", method, METHODS), check_choice("loss", loss, STREAM_LOSSES)
    counts = dict(n0=n0, pretrain=pretrain, steps=steps, batch=batch, window=window)
    n0, pretrain, steps, batch, window = (check_count(name, value) for name, value in counts.items())
    if n0 > len(y):
        raise ValueError(f"n0 = {n0} rows for pretraining, but there are {len(y)}")
    eps, lam = check_scalar("eps", eps, 0), lam if lam is None else check_scalar("lam", lam, 0)
    *_, delta, K, _ = check_bound(0.0, 0.0, 1, 1.0, delta, K, False)
    if method == "WISKI" and (X.shape[1] != 1 or len(Z) < 4):
        raise ValueError(f"WISKI here is for one input and at least 4 points of Z: got shapes {X.shape} and {Z.shape}")
    p, steps = dict(ln_theta=ln_theta, ln_noise=check_logarithm("ln_noise", ln_noise, 0)), 0 if method == "OVC" else steps
    parts = [(slice(0, n0), pretrain)] + [(slice(i, min(i + batch, len(y))), steps) for i in range(n0, len(y), batch)]
    if method in ("exact", "window"):
        return exact_stream(X, y, p, parts, window if method == "window" else len(y))
    if method == "WISKI":
        return grid_stream(X, y, p, Z, parts)
    p = dict(p, Z=Z, m=np.zeros(len(Z)), L_S=np.eye(len(Z))) if method == "O-SVGP" else dict(p, Z=Z)
    settings = dict(lam=lam, eps=eps, loss=loss, delta=delta, K=K) if method == "O-PACGP" else None
    return sparse_stream(X, y, p, parts, settings, grow=method == "OVC")


# --- the bounds: L Sec. 3.2, Theorem 3.1 ------------------------------------------------------------------------------

def online_bound(loss, KL, m, lam, delta=0.05, K=1.0, printed=False):
    """Bounds the sum of the conditional risks over m rows, for all m at once; L Eq. (9)-(11), (17).

        loss + KL/lam + lam m K^2/8 + ln(1/delta)/lam            [printed: K^2/2, four times what Hoeffding's lemma needs]
    loss: the sum over rows of E_{h ~ Q_i} loss(h, z_i), losses in [0, K]; KL: the sum over batches of KL(Q_i||P_i), inside the
    sum (the paper leaves that open). P_i may depend on the rows of earlier batches alone, lam on no row. Three readings:
    (9) any Q_i; (10), training: Q_i the posterior after the batch; (11) and (17), test: Q_i = P_i, the predictor as it was
    when the row came, KL = 0. Risk is E[loss(h, z_i) | z_1 .. z_{i-1}]. Haddouche & Guedj 2022; in three lines: for any h, by
    Hoeffding's lemma, exp(lam sum_i (risk_i - loss_i) - lam^2 m K^2/8) is a supermartingale, and so is the product over
    batches of its batch's part, averaged over h ~ P_i; by Ville's inequality it ever exceeds 1/delta with probability at most
    delta; and E_Q g - KL(Q||P) is at most ln E_P exp g (Donsker & Varadhan). Returns a number for a lam, an array for several.
    ValueError for values out of range.
    """
    loss, KL, m, lam, delta, K, printed = check_bound(loss, KL, m, lam, delta, K, printed)
    return loss + KL / lam + lam * m * K * K / (2 if printed else 8) + math.log(1 / delta) / lam       # L Eq. (9)


class Certificate(NamedTuple):
    """What certificate says, of m rows: on average over them the conditional risk is at most `bound`."""
    bound: float               # in units of the loss
    loss: float                # mean loss
    KL: float                  # [nats] per row
    lam: float                 # the rate that counts most in the mixture
    m: int
    delta: float


def certificate(loss, KL, m, lams=LAMS, delta=0.05, K=1.0):
    """The Certificate by a mixture over lams, declared before the stream; not in the paper. Arguments as online_bound.

        bound = K max{p in [0, 1]: mean over lams of exp(-lam loss - KL - m ln(1 - (1 - exp(-lam K)) p)) <= 1/delta}
    It holds with probability at least 1 - delta for all m at once, and is rounded up. Proof, with c = 1 - exp(-lam K) and
    r_j(h) the conditional risk of h on row j, divided by K:
    (a) exp is convex, so E exp(-lam loss_j(h)) <= 1 - c r_j(h), given the past.
    (b) Let g_i(h) be the sum of -lam loss_j(h) - ln(1 - c r_j(h)) over the rows j of batch i. By (a) the product over batches
        of E_{h ~ P_i} exp g_i(h) is a supermartingale that starts at 1. So is its mean over lams.
    (c) By Ville's inequality this mean ever exceeds 1/delta with probability at most delta.
    (d) By Donsker & Varadhan the product is at least exp sum_i (E_{h ~ Q_i} g_i(h) - KL(Q_i||P_i)), for each lam.
    (e) -ln(1 - c r) is convex in r: by Jensen's inequality the mean risk over h ~ Q_i and rows may stand for r_j(h).
    (f) What is then averaged over lams grows with p: the mean risk is at most the largest p that is left.
    Catoni 2007; Seldin et al. 2012; Chugg, Wang & Ramdas 2023. At one lam it is never above (9). LAMS is made for K = 1.
    """
    loss, KL, m, lams, delta, K, _ = check_bound(loss, KL, m, lams, delta, K, False, "lams")
    lams = np.atleast_1d(lams)
    c = -np.expm1(-lams * K)

    def exponents(p):
        """Rounded down."""
        gain, cost = -m * np.log1p(-c * p), lams * loss + KL
        return gain - cost - 4 * ULP * (gain + cost + 1)
    low, high = loss / (m * K), 1.0
    while low < (p := (low + high) / 2) < high:
        terms = exponents(p)
        above = terms.max() + math.log(np.mean(np.exp(terms - terms.max()))) > -math.log(delta)
        low, high = (low, p) if above else (p, high)
    lam = float(lams[np.argmax(exponents(min(high, 1 - 2 * ULP)))])      # below 1: c rounds to 1 where lam K > 37
    return Certificate(min(K, K * high * (1 + 4 * ULP)), loss / m, KL / m, lam, m, delta)


def best_lam(m, KL=0.0, delta=0.05, K=1.0):
    """sqrt(8 (KL + ln(1/delta))/m)/K: minimises (9) for m rows and a KL guessed before the stream."""
    _, KL, m, _, delta, K, _ = check_bound(0.0, KL, m, 1.0, delta, K, False)
    if delta == 1 and KL == 0:
        raise ValueError("delta must be below 1 where KL = 0: with nothing to pay, the smaller lam the better")
    return math.sqrt(8 * (KL + math.log(1 / delta)) / m) / K


# --- a streaming GP with a certificate that holds ---------------------------------------------------------------------

class Goal(NamedTuple):
    """What is declared before the stream: the best of several choices tried on one stream is not certified."""
    eps: float = 0.6           # accuracy goal of the loss, in units of `unit`
    loss: str = "01"           # "01", "square" or "exp"
    delta: float = 0.05        # probability that any of the six certificates ever fails
    lams: tuple = LAMS         # rates that the bound averages over, with equal weights
    M: int = 50                # inducing inputs at most
    discard: str = "redundant" # which of more go: the most redundant, those worth "least", or the "oldest" (for a clock)
    learn: str = "window"      # what moves kernel and noise between steps: the exact evidence (4) of the last rows ("window"),
                               # the streaming evidence (8) of the batch ("evidence"), the bound (12) ("bound"), "nothing"
    window: int = 50           # those last rows
    rate: float = 0.05         # Adam's
    memory: float = 1.0        # share of what is known that is kept from batch to batch: below 1 for a target that drifts
    unit: str = "first"        # of eps: the deviation of the first rows ("first"), of all rows before ("running": an outlier
                               # then softens the goal of every later row), or the target's own unit ("y")


class Ledger(NamedTuple):
    """Sums over the rows that count: what the certificates are made of."""
    rows: float = 0.0
    before: float = 0.0        # loss of predictions drawn from the GP before each row came
    mean: float = 0.0          # loss of that GP's mean
    outside: float = 0.0       # rows outside its 95 % interval of y
    after: float = 0.0         # loss of the Q_i of each batch, and
    KL: float = 0.0            # KL(Q_i||P_i) [nats], over batches
    squares: float = 0.0       # squared errors of the predictions [y^2]
    last: float = 0.0          # losses of two naive forecasts: the last value before each batch,
    average: float = 0.0       # and the mean of all values before it


class Moments(NamedTuple):
    """Of the targets so far."""
    n: float = 0.0             # rows
    mean: float = 0.0          # [y]
    squares: float = 0.0       # sum of the squared deviations from it [y^2]


class Units(NamedTuple):
    """The least and the greatest unit of eps that a row which counts was measured by [y]."""
    low: float
    high: float


class Learner(NamedTuple):
    """All that the certified O-PACGP carries from batch to batch: arrays whose size does not grow with the rows seen."""
    goal: Goal                 # the same from the first row to the last
    state: State               # P_{i+1}, in scaled units
    ln_noise: np.ndarray       # ()
    input_scale: np.ndarray    # (2, d) mean and deviation of the inputs, from the first rows, fixed
    target: Moments            # of all targets so far: the running scale
    recent: np.ndarray         # (w, d+1) the last rows, target last, w at most goal.window
    adam: np.ndarray           # (3, T+1) m, v, t of adam_step, for ln_theta and ln_noise
    ledger: Ledger
    units: Units


def running_moments(moments, y):
    """The Moments with the targets y (n,) added; Chan et al. 1983."""
    n, mean, squares = moments
    if len(y) == 0:
        return moments
    total, shift = n + len(y), np.mean(y) - mean
    squares = squares + np.sum((y - np.mean(y)) ** 2) + shift**2 * n * len(y) / total
    return Moments(float(total), float(mean + shift * len(y) / total), float(squares))


def middle_and_unit(moments, unit="y"):
    """Mean and standard deviation of the targets so far; the deviation is 1 if they are constant to rounding.

    unit: of a Goal. ValueError where it is a deviation and they are constant, and where the squares overflow.
    """
    n, mean, squares = moments
    if not math.isfinite(squares):
        raise ValueError("y is too large: the squares of its values overflow")
    deviation = math.sqrt(squares / n)
    varies = deviation > 1e-15 * abs(mean) + 1e-150                      # whose square keeps its digits
    if unit != "y" and not varies:
        raise ValueError("y does not vary in the rows so far: no goal can be in its deviations; use unit y, or more first rows")
    return mean, deviation if varies else 1.0


def rescale(state, ratio, shift, memory=1.0):
    """The State of f' where f = ratio f' + shift: what the rows say, of which a share `memory` is kept, in new units.

        alpha = ratio alpha' + shift L^-1 1,   so A' = ratio^2 A and c' = ratio (c - shift A L^-1 1)
    The prior of f' is again N(0, k): a new prior, chosen from the past alone, which a certificate allows.
    """
    A = memory * ratio**2 * state.A
    c = memory * ratio * (state.c - shift * state.A @ np.sum(state.Linv, 1))
    return state._replace(A=A, c=c, root=tri_inv(cholesky(np.eye(len(c)) + A, "I + A")))


def what_to_learn(goal, eps, old, Z, X, y, X_recent, y_recent, ledger):
    """The objective of ln_theta and ln_noise, and its gradient, that goal.learn names; the batch is one `old` has not seen.

    eps: in scaled units. (12) takes the lam that the training certificate of the ledger has chosen so far.
    """
    if goal.learn == "window":
        return lambda p: exact_nll(p, X_recent, y_recent), exact_nll_back
    if goal.learn == "evidence":
        return lambda p: free_energy(dict(p, Z=Z), old, X, y), objective_back
    lam = one_of_six(goal, ledger, ledger.after, ledger.KL).lam
    return lambda p: pac_objective(dict(p, Z=Z), old, X, y, lam, eps, goal.loss), objective_back


def enclosed_state(state, X):
    """The Enclosed marginals of a State at X (n, d): those of `predict` with their rounding errors; KL is not used, and 0."""
    M, k, ulps = len(state.Z), signal_variance(state.ln_theta), entry_ulps(X, state.Z, state.ln_theta)
    size, mu = np.abs(state.root.T) @ (np.abs(state.root) @ np.abs(state.c)), state.root.T @ (state.root @ state.c)
    K_XZ = kernel(X, state.Z, state.ln_theta, exact=True)
    mean, var, mean_error, var_error = enclosed_marginals(K_XZ, state.Linv, k, mu, state.root, ulps - 8)
    mean_error = mean_error + 4 * ULP * M * math.sqrt(k) * np.linalg.norm(size)
    return Enclosed(None, mean, var, 0.0, mean_error, var_error, 0.0)


def paid_update(old, X, y, ln_noise, eps, loss, M, ledger=Ledger(), unit=1.0):
    """The posterior, a State under the kernel of P_i = old; Q_i; and the Ledger with this batch, its sums rounded up.

    Any Q_i may be booked: here the posterior, or P_i itself where that is cheaper at about the best lam so far. The posterior
    has all inducing inputs of P_i and at most M more: which of them go is decided later, and not paid for. X, y, ln_noise,
    eps: in scaled units, of `unit` [y].
    """
    new, k = update(old, X, y, ln_noise, extended(old, X, M)), signal_variance(old.ln_theta)
    drawn, drawn_after = (enclosed_state(state, X) for state in (old, new))
    mean = drawn._replace(var=0 * drawn.var, var_error=0 * drawn.var)
    before, of_mean, after = (len(y) * risk_from_above(y, at, eps, loss, VAR_FLOOR**power * k)
                              for at, power in ((drawn, 2), (mean, 4), (drawn_after, 2)))    # 4: a miss of the mean is 0 or 1
    variance = np.maximum(drawn.var - drawn.var_error, 0.0) + np.exp(ln_noise)
    outside = np.abs(y - drawn.mean) + drawn.mean_error >= 1.96 * np.sqrt(variance)
    KL = KL_from_above(*process_kl_enclosed(new, old))
    lam = math.sqrt(2 * (ledger.KL + 3) / (ledger.after + 1))            # any guess is valid: about what minimises the bound
    Q, after, KL = (new, after, KL) if after + KL / lam < before else (old, before, 0.0)
    above = lambda a, b: math.nextafter(a + b, math.inf) if b else a     # adding 0 is exact
    return new, Q, ledger._replace(
        rows=ledger.rows + len(y), before=above(ledger.before, before), mean=above(ledger.mean, of_mean),
        outside=ledger.outside + float(np.sum(outside)), after=above(ledger.after, after), KL=above(ledger.KL, KL),
        squares=ledger.squares + float(np.sum((y - drawn.mean) ** 2)) * unit**2)


def naive_losses(ledger, y, forecasts, eps, loss):
    """The Ledger with the losses of two forecasts of the batch y (n,), the last value and the mean so far, rounded up.

    y, forecasts, eps: in scaled units.
    """
    sums = []
    for so_far, value in zip((ledger.last, ledger.average), forecasts):
        at = Enclosed(None, np.full(len(y), value), np.zeros(len(y)), 0.0, 4 * ULP * abs(value), 0.0, 0.0)
        sums.append(math.nextafter(so_far + len(y) * risk_from_above(y, at, eps, loss, VAR_FLOOR**4), math.inf))
    return ledger._replace(last=sums[0], average=sums[1])


def begin(X, y, goal=Goal(), ln_theta=None, ln_noise=math.log(0.1), pretrain=50, input_scale=None):
    """The Learner that has seen the first rows X (n, d), y (n,), n >= 2: they set the scale and P_1, and do not count in m.

    X, y in their own units; input_scale (2, d): mean and deviation of the inputs where they are known beforehand (the range of
    a clock or a sensor). ln_theta, ln_noise: where kernel and noise start, in scaled units (default: lengthscales and signal
    variance 1); a noise variance below MIN_NOISE is lifted to it by the first step. `pretrain` steps of Adam move them, at
    2 goal.rate, none with goal.learn = "nothing"; "window" takes all first rows here, however many: O(n^3) a step. Inducing
    inputs: at most goal.M of the rows, by pivot_rows. ValueError for bad input.
    """
    X, y = check_data(X, y)
    goal, ln_noise, pretrain = check_goal(goal), check_logarithm("ln_noise", ln_noise, 0), check_count("pretrain", pretrain)
    if len(y) < 2:
        raise ValueError(f"{len(y)} row is too few to take a scale from: at least 2")
    if input_scale is None:
        centre = column_middle(X)
        size = column_scale(X, centre)
        input_scale = [centre, np.where(np.isinf(size), 1.0, size)]      # constant so far: it may yet move
    scale = check_array("input_scale", input_scale, 2)
    if scale.shape != (2, X.shape[1]) or np.any(scale[1] <= 0):
        raise ValueError(f"input_scale must be (2, {X.shape[1]}), means and positive deviations: got {scale.tolist()}")
    moments = running_moments(Moments(), y)
    middle, unit = middle_and_unit(moments, goal.unit)
    with np.errstate(over="ignore"):
        X_s, y_s = check_array("X in units of input_scale", (X - scale[0]) / scale[1], 2), (y - middle) / unit
    goal_unit = 1.0 if goal.unit == "y" else unit
    _, ln_theta = check_parameters(X_s[:1], np.zeros(X.shape[1] + 1) if ln_theta is None else ln_theta)
    start, p = prior(X_s[pivot_rows(X_s, goal.M, ln_theta)], ln_theta), dict(ln_theta=ln_theta, ln_noise=ln_noise)
    if goal.learn != "nothing":                                          # "bound" takes its lam from a ledger without losses
        objective = what_to_learn(goal, goal.eps * goal_unit / unit, start, start.Z, X_s, y_s, X_s, y_s, Ledger(len(y)))
        p, _ = descend(*objective, p, None, pretrain, dict.fromkeys(p, 2 * goal.rate))
    state = update(prior(start.Z, p["ln_theta"]), X_s, y_s, p["ln_noise"])
    return Learner(goal, state, p["ln_noise"], scale, moments, recent=np.column_stack([X, y])[-goal.window:],
                   adam=np.zeros((3, ln_theta.size + 1)), ledger=Ledger(),
                   units=Units(math.inf, 0.0) if goal.unit == "running" else Units(goal_unit, goal_unit))


def step(learner, X, y):
    """The Learner after a batch X (n, d), y (n,), n >= 0, in the target's own units.

    First what counts: the loss of P_i on the batch it has not seen; Q_i under the kernel of P_i; its loss and KL(Q_i||P_i).
    Then what may look at the whole past: kernel, noise and scale move, and with them P_{i+1}. Within a batch the KL is paid
    once and the losses add up. ValueError for bad input; `learner` is then as before. A certificate does not
    cover a row that is skipped for this.
    """
    check_kind("learner", learner, Learner, "begin or step")
    goal, old, (middle, unit) = learner.goal, learner.state, middle_and_unit(learner.target)
    X, y = check_batch(X, y, learner.input_scale.shape[1])
    if len(y) == 0:
        return learner
    scaled = lambda X, y: ((X - learner.input_scale[0]) / learner.input_scale[1], (y - middle) / unit)
    X_s, y_s = scaled(X, y)
    for name, value in (("X", X_s), ("y", y_s)):
        if np.max(np.abs(value)) > 1e100:
            raise ValueError(f"{name} has a value more than 1e100 deviations away from the rows before")
    goal_unit = middle_and_unit(learner.target, goal.unit)[1] if goal.unit == "running" else learner.units.low
    eps = goal.eps * goal_unit / unit
    new, _, ledger = paid_update(old, X_s, y_s, learner.ln_noise, eps, goal.loss, goal.M, learner.ledger, unit)
    ledger = naive_losses(ledger, y_s, ((learner.recent[-1, -1] - middle) / unit, 0.0), eps, goal.loss)
    Z = kept(new, goal.M, goal.discard)
    p = dict(ln_theta=old.ln_theta, ln_noise=learner.ln_noise)
    recent, adam = np.concatenate([learner.recent, np.column_stack([X, y])])[-goal.window:], learner.adam
    if goal.learn != "nothing":
        objective = what_to_learn(goal, eps, old, Z, X_s, y_s, *scaled(recent[:, :-1], recent[:, -1]), ledger)
        p, adam = descend(*objective, p, adam, 1, dict.fromkeys(p, goal.rate))
    new = update(new, X_s[:0], y_s[:0], p["ln_noise"], Z, p["ln_theta"])
    moments = running_moments(learner.target, y)
    next_middle, next_unit = middle_and_unit(moments)
    ratio, shift = next_unit / unit, (next_middle - middle) / unit
    new = rescale(new, ratio, shift, min(goal.memory, MAX_TRACE_A / max(ratio**2 * np.trace(new.A), TINY)))
    ln_noise = np.maximum(p["ln_noise"] - 2 * math.log(ratio), math.log(MIN_NOISE))      # the same noise, in the next unit
    units = Units(min(goal_unit, learner.units.low), max(goal_unit, learner.units.high))
    return learner._replace(state=new, ln_noise=ln_noise, target=moments, recent=recent, adam=np.array(adam), ledger=ledger,
                            units=units)


def forecast(learner, X_new):
    """mean [y], var_f, var [y^2] (n,) at X_new (n, d) in the target's own units: var_f of f, var of y, noise included."""
    check_kind("learner", learner, Learner, "begin or step")
    X_new = check_columns("X_new", X_new, learner.input_scale.shape[1])
    middle, unit = middle_and_unit(learner.target)
    mean, var = predict(learner.state, (X_new - learner.input_scale[0]) / learner.input_scale[1])
    return middle + unit * mean, unit**2 * var, unit**2 * (var + np.exp(learner.ln_noise))


class Certificates(NamedTuple):
    """Of the rows that count; each holds with probability 1 - delta/6, at all times at once."""
    draw: Certificate          # predictions drawn from the GP before each row came; L Eq. (11)
    mean: Certificate          # its mean
    interval: Certificate      # how often a row lies outside its 95 % interval
    training: Certificate      # the Q_i of each batch, on a row drawn anew as the batch's was; L Eq. (10)
    last: Certificate          # the last value before each batch as forecast: a GP that does not beat it is not worth its cost
    average: Certificate       # the mean of all values before it


def one_of_six(goal, ledger, loss, KL=0.0):
    """The Certificate of the rows of a Ledger with its share of the Goal's delta; loss, KL: sums, as certificate has them."""
    return certificate(loss, KL, int(ledger.rows), goal.lams, goal.delta / len(Certificates._fields))


def certificates(learner):
    """The Certificates so far: all hold at once, at all times, with probability 1 - delta. ValueError if no row counts yet.

    The risk is conditional on the rows before. The same numbers bound the risk conditional on these rows and on x_i, with a
    probability delta of failure of their own. Only the training certificate has a KL. It is about the Q_i that was booked: the
    posterior before inducing inputs are discarded, or P_i.
    """
    check_kind("learner", learner, Learner, "begin or step")
    ledger, goal = learner.ledger, learner.goal
    if ledger.rows == 0:
        raise ValueError("no row counts yet: the first ones set the scale")
    of = partial(one_of_six, goal, ledger)
    return Certificates(of(ledger.before), of(ledger.mean), of(ledger.outside), of(ledger.after, ledger.KL), of(ledger.last),
                        of(ledger.average))


# --- what every entry point checks -----------------------------------------------------------------------------------

def check_batch(X, y, d):
    """X (n, d), y (n,) as float arrays, n >= 0; ValueError that names what is wrong."""
    X, y = check_columns("X", X, d), check_array("y", y, 1)
    if len(X) != len(y):
        raise ValueError(f"X and y differ in length: {len(X)} rows against {len(y)}")
    return X, y


def check_logarithm(name, a, ndim):
    """`a` as a float array of `ndim` dimensions; ValueError that names it unless exp(a) is positive and finite."""
    a = check_array(name, a, ndim)
    if np.max(np.abs(a), initial=0.0) > 300:
        raise ValueError(f"{name} must lie in [-300, 300], so that exp({name}) is positive and finite, got "
                         f"{a.flat[np.argmax(np.abs(a))]:g}")
    return a


def check_parameters(Z, ln_theta, d=None):
    """Z (M, d), M >= 1, and ln_theta as float arrays that fit each other; ValueError otherwise."""
    Z, ln_theta = check_array("Z", Z, 2), check_logarithm("ln_theta", ln_theta, 2 if np.ndim(ln_theta) == 2 else 1)
    columns = Z.shape[1]
    if Z.size == 0 or (d is not None and columns != d):
        raise ValueError(f"Z must have at least one row and {d or 'some'} columns, got shape {Z.shape}")
    if ln_theta.shape[-1] not in ((2 * columns + 1,) if ln_theta.ndim == 2 else (2, columns + 1)) or ln_theta.size == 0:
        raise ValueError(f"ln_theta must be ({columns + 1},) or (2,), or (Q, {2 * columns + 1}): got shape {ln_theta.shape}")
    return Z, ln_theta


def check_bound(loss, KL, m, lam, delta, K, printed, name="lam"):
    """All of these as float, int or bool, lam a float or an array (named `name`); what rounding leaves of KL and loss below 0
    is 0. ValueError unless 0 <= loss <= m K, KL >= 0, m >= 1, lam > 0, 0 < delta <= 1, K > 0.
    """
    m, K, delta = check_count("m", m), check_scalar("K", K, 0), check_scalar("delta", delta, 0, 1)
    KL, loss = max(check_scalar("KL", KL, -1e-9), 0.0), max(check_scalar("loss", loss, -1e-9, m * K * (1 + 1e-9)), 0.0)
    lam = check_array(name, lam, 1) if np.ndim(lam) else check_scalar(name, lam, 0)
    if np.size(lam) == 0 or np.any(np.asarray(lam) <= 0):
        raise ValueError(f"{name} must hold at least one value, all above 0 and finite, got {lam.tolist()}")
    return loss, KL, m, lam, delta, K, check_flag("printed", printed)


def check_goal(goal):
    """The Goal as float, int and str; ValueError that names what is wrong with it."""
    check_kind("goal", goal, Goal, "Goal(...)")
    *_, lams, delta, _, _ = check_bound(0.0, 0.0, 1, goal.lams, goal.delta, 1.0, False, "lams")
    return Goal(check_scalar("eps", goal.eps, 0), check_choice("loss", goal.loss, GOAL_LOSSES), delta,
                tuple(np.atleast_1d(lams).tolist()), check_count("M", goal.M), check_choice("discard", goal.discard, DISCARD),
                check_choice("learn", goal.learn, LEARN), check_count("window", goal.window),
                check_scalar("rate", goal.rate, 0), check_scalar("memory", goal.memory, 0, 1),
                check_choice("unit", goal.unit, GOAL_UNITS))


# --- the command line -------------------------------------------------------------------------------------------------

def demo_lines():
    """The lines of the table the command line uses without one: 300 rows of a wave in time order, noise 0.4 (authors' code)."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-1, 1, 300))
    yield "x,y"
    for a, b in zip(x, np.sin(4 * x) + 0.4 * rng.standard_normal(300)):
        yield f"{a},{b}"


class Session(NamedTuple):
    """What the command line hands on from row to row, and --state keeps."""
    learner: Learner           # None before the first rows are complete
    waiting: list              # rows (d+2,), their number first, the target last, that wait to be learnt from
    settings: dict             # the choices; `seen`, `skipped`, `digest`: number of all rows read, of the incomplete ones, a
                               # digest; `names` and `header`: of all columns; `used`: inputs and target; `lines`: of --out,
                               # the last batch's


def save(path, learner, waiting=(), settings=None, known=None):
    """Writes a Session, or a Learner alone, to a file for `load`. known and ValueError: as write_archive."""
    check_kind("learner", learner, (Learner, type(None)), "begin or step")
    write_archive(path, Session(learner, np.array(waiting), settings or {}), "online", known)


def load(path):
    """The Session that save wrote, the same to the last bit; ValueError for another file, or a damaged one."""
    session = read_archive(path, "online", (Session, Learner, Goal, State, Moments, Ledger, Units))
    return session._replace(waiting=list(session.waiting))


HEADINGS = (f"{'':20}" + "".join(f"  |{name:^16}" for name in Certificates._fields[:4]) + f"{'':10}\n"
            f"{'rows':>8}{'RMSE':>12}" + f"  |{'bound':>8}{'loss':>8}" * 4 + f"{'KL':>10}")


def running_line(learner):
    """The line of numbers under HEADINGS; RMSE [y] is that of the forecasts so far."""
    ledger, six = learner.ledger, certificates(learner)
    return (f"{ledger.rows:8.0f}{math.sqrt(ledger.squares / ledger.rows):12.5g}"
            + "".join(f"  |{bound_text(one.bound):>8}{one.loss:8.4f}" for one in six[:4]) + f"{ledger.KL:10.4g}")


def summary(learner, name, first, skipped=0, batch=1):
    """The certificates as a paragraph and a table, goals and bounds rounded up, confidence down.

    skipped: incomplete rows; batch: rows that are learnt from at once.
    """
    import textwrap
    six, goal, (low, high) = certificates(learner), learner.goal, learner.units
    eps = as_given(goal.eps) + {
        "y": "", "first": f" standard deviations of the first rows ({rounded_up(goal.eps * high)} in its units)",
        "running": f" running deviations ({rounded_up(goal.eps * low)} to {rounded_up(goal.eps * high)} in its units)",
    }[goal.unit]
    claim = f"the probability to miss {name} by more than {eps}" if goal.loss == "01" else \
        f"the {goal.loss} loss with eps = {eps}"
    at_most = lambda one: "at most " + (bound_text(one.bound) if one.bound < 0.9999 else "1 (nothing is certified)")
    unit = " A running deviation is that of the rows before: an outlier softens the goal of all rows after it." \
        if goal.unit == "running" else ""
    left_out = f" {incomplete(skipped)}: it is about complete rows." if skipped else ""
    naive = min(six.last, six.average, key=lambda one: one.bound)
    which = "the last value" if naive is six.last else "the mean of all values"
    better = f" So {which} has a bound no worse than that of the GP's mean: prefer it." \
        if naive.bound <= min(six.mean.bound, 0.9999) else ""
    room = " Of the inducing inputs the oldest make room (--discard)." * (goal.discard == "oldest")
    came = "row" if batch == 1 else f"batch of {batch} rows"
    text = (f"With {confidence(goal.delta)} % confidence, now and at all other rows at once, on average over the {six.draw.m} "
            f"rows that count, each given the rows before it: {claim} was {at_most(six.draw)} for a prediction drawn from the "
            f"GP just before its {came} came, {at_most(six.mean)} for the mean of that GP; of two "
            f"naive forecasts it was {at_most(six.last)} for the last value, and {at_most(six.average)} for "
            f"the mean of all values so far. The probability to lie outside the GP's 95 % interval was "
            f"{at_most(six.interval)}.{better} Any order and dependence of the rows is allowed. It is about the rows that came, given their past: not about inputs the "
            f"stream has not come to.{unit} The first {first} rows set scale and start, and do not count.{left_out}{room} The "
            f"training column is about the GP just after each batch, or before it where that gives the better bound. Each of "
            f"the six uses a sixth of the probability of failure.")
    columns = [[one.loss, one.KL, one.bound - one.loss, bound_text(one.bound), one.lam] for one in six]
    cell = lambda value: f"{value:>12}" if isinstance(value, str) else f"{value:12.5g}"
    return "\n".join([textwrap.fill(text, 100, break_on_hyphens=False), "",
                      f"  {'':<16}" + "".join(f"{title:>12}" for title in six._fields)]
                     + [f"  {title:<16}" + "".join(map(cell, row)) for title, row in
                        zip(("mean loss", "KL, nats a row", "bound - loss", "bound", "lam"), zip(*columns))])


def command_line():
    """The parser of main; Goal has the defaults of its choices."""
    ap = parser(__file__, description="A Gaussian process that learns from a stream, with a certificate at every row (Liu et "
                "al. 2022, made to hold).")
    ap.add_argument("--eps", type=option(float), help="accuracy goal in units of --unit (0.6)")
    ap.add_argument("--unit", choices=GOAL_UNITS, help="unit of eps: the deviation of the first rows, that of all rows "
                    "before (an outlier softens it), or the target's own unit (first)")
    ap.add_argument("--loss", choices=GOAL_LOSSES, help="default: 01")
    ap.add_argument("--delta", type=option(float), help="probability that the certificate ever fails (0.05)")
    ap.add_argument("--lam", type=option(float), nargs="+", dest="lams", metavar="LAM",
                    help=f"rates that the bound averages over; several loosen it a little ({LAMS[0]:g}, {LAMS[1]:g}, .., "
                         f"{len(LAMS)} of them)")
    ap.add_argument("--inducing", type=option(int), dest="M", metavar="M", help="inducing inputs at most (50)")
    ap.add_argument("--discard", choices=DISCARD,
                    help="inducing inputs that make room: the most redundant, those worth least, or the "
                    "oldest; default: redundant, but oldest where the only input counts in the first "
                    "rows, as the row number does")
    ap.add_argument("--learn", choices=LEARN,
                    help="what moves kernel and noise between steps (window: the exact evidence of the last 50 rows)")
    ap.add_argument("--memory", type=option(float),
                    help="share of what is known that is kept from batch to batch: below 1 where the target drifts (1)")
    ap.add_argument("--clock", action="store_true", help="the row number is the only input (so it is for a single column)")
    ap.add_argument("--first", type=option(int), default=10, help="rows that set scale and start, and do not count (10)")
    ap.add_argument("--batch", type=option(int), default=1, help="rows that are learnt from at once (1)")
    ap.add_argument("--every", type=option(int), help="rows between two printed lines; default: at 10, 20, 50, 100, ...")
    ap.add_argument("--state", metavar="FILE", help="save everything here after each batch; go on from here if it is "
                    "there (a table is then skipped up to where it was read, standard input is not)")
    ap.set_defaults(**dict(Goal()._asdict(), discard=None))              # by the first rows: consume
    return ap


def declared(args):
    """The Goal of the command line, and all choices a saved state must share, a dict. ValueError that names the option."""
    try:
        given = {name: getattr(args, name) for name in Goal._fields}
        goal = check_goal(Goal(**{name: value for name, value in given.items() if value is not None}))
    except ValueError as err:
        name, rest = str(err).split(" ", 1)
        raise ValueError(f"--{dict(M='inducing', lams='lam').get(name, name)} {rest}") from None
    for name in ("first", "batch", "every"):
        check_count(f"--{name}", 1 if getattr(args, name) is None else getattr(args, name))
    return goal, dict(goal._asdict(), lams=list(goal.lams), discard=args.discard, target=args.target, inputs=args.inputs,
                      drop=args.drop, clock=args.clock, first=args.first, batch=args.batch)


def resumed(path, choices):
    """The Session saved at path, or a new one. ValueError where the file was made with other choices."""
    import os
    new = dict(choices, seen=0, skipped=0, digest=0, names=None, header=False, used=None, lines=[])
    if not (path and os.path.exists(path)):
        return Session(None, [], new)
    session = load(path)
    missing = [name for name in new if name not in session.settings]
    if missing:
        raise ValueError(f"{path} is no saved state: it lacks {', '.join(missing)}")
    for name, value in choices.items():
        if session.settings[name] != value:
            raise ValueError(f"{path} was made with {name} = {session.settings[name]}, not {value}: a certificate is for one "
                             f"choice, made before the stream")
    return session


def stream_rows(lines, args, settings):
    """A line that says what is read, settings with the columns, and a generator of rows (d+2,), number first, target last.

    lines: of the table. A file's `seen` first rows are left out. ValueError where a file does not begin with the rows whose
    digest is given, and where the columns are not those of the settings: their names, or without a header their number.
    """
    piped, source = args.table == "-", {None: "the demo", "-": "standard input"}.get(args.table, args.table)
    known, seen = settings["names"], settings["seen"]

    def choose(names):
        settings["names"] = names
        if known and (len(names) != len(known) or settings["header"] and names != known):
            raise ValueError(f"{source} has the columns {few(names)}; {args.state} was made with {few(known)}")
        return chosen_columns(names, args, 1)[-1 if args.clock else 0:]
    table, settings = read_rows(lines, source, choose, args.decimal, known), dict(settings)
    columns = next(table, None)
    if columns is None:
        raise ValueError(f"{source} has no rows of numbers")
    clock = len(columns.names) == 1
    used = ["the row number"] * clock + columns.names
    settings.update(header=columns.header or settings["header"], used=used)
    rows = (np.concatenate([[n], [n - 1.0] * clock, row]) for n, row in enumerate(table, seen * piped + 1))
    digest = 0
    for _ in range(0 if piped else seen):
        digest = crc32(next(rows, b"no row"), digest)
    if not piped and digest != settings["digest"]:
        raise ValueError(f"{source} does not begin with the {seen} rows that {args.state} has seen: give the whole table, "
                         f"or new rows on standard input")
    return what_was_read(used, columns.header, columns.ignored), settings, rows


def whole_lines(lines):
    """The lines but a last one that has no end: it may be half written. A warning says so."""
    for line in lines:
        if line.endswith("\n"):
            yield line
        elif line.strip():
            warnings.warn("the last line has no end: it may be half written, and is left for the next "
                          "run (standard input must bring it again)", stacklevel=2)


def received(session, row):
    """The Session with one more row that waits; an incomplete one is counted and skipped."""
    was, missing = session.settings, bool(np.isnan(row).any())
    settings = dict(was, seen=was["seen"] + 1, skipped=was["skipped"] + missing, digest=crc32(row, was["digest"]))
    return Session(session.learner, session.waiting + [row] * (not missing), settings)


def only_counts(X):
    """Whether X (n, d) is one column that rises by whole multiples of its least step, as a clock does."""
    steps = np.diff(X[:, 0])
    if X.shape[1] != 1 or np.any(steps <= 0):
        return False
    multiples = steps / np.min(steps, initial=np.inf)
    return bool(np.all(np.abs(multiples - np.round(multiples)) < 0.01))


def consume(session, goal, first, batch, book=lambda *_: ()):
    """The Session after the first `first` of the rows that wait begin, and each whole batch is a step.

    Where no --discard was given, a single input that only counts there makes it "oldest".
    book: of the Learners before and after a step and the rows of its batch, the lines of --out.
    """
    (learner, waiting, settings), lines = session, []
    if len({len(row) for row in waiting}) > 1:
        raise ValueError(f"a row has {len(waiting[-1])} columns, those before it {len(waiting[0])}: is it another table?")
    while len(waiting) >= (size := first if learner is None else batch):
        rows, waiting, before = np.array(waiting[:size]), waiting[size:], learner
        X, y = rows[:, 1:-1], rows[:, -1]
        if before is None and settings["discard"] is None and only_counts(X):
            goal = goal._replace(discard="oldest")
        d = X.shape[1]                                                   # l^2 = d: from l = 1 wide tables stick
        learner = begin(X, y, goal, np.log([d] * d + [1])) if before is None else step(before, X, y)
        if before is not None:
            lines += book(before, learner, rows)
    return Session(learner, waiting, dict(settings, lines=lines) if lines else settings)


def counted(session):
    """Number of rows that count."""
    return int(session.learner.ledger.rows) if session.learner else 0


def due(before, after, every):
    """Whether the number of rows that count passes a multiple of `every` from `before` to `after`; None: 10, 20, 50, ..."""
    if every:
        return after // every > before // every
    return any(before < a * 10**b <= after for a in (1, 2, 5) for b in range(1, 12))


OUT = "row,mean,sd,lower,upper,y,loss,bound\n"


def rows_out(path, done, lines):
    """The open file of --out; what it says of rows up to the number `done` is kept.

    lines: of the last batch up to `done`, in case an earlier run was killed before it wrote them.
    ValueError where the file cannot be written.
    """
    number = lambda line: int(line.split(",")[0])
    with writing(path):
        file = open(path, "r+" if done and os.path.exists(path) else "w+")
        head, *old = file.readlines() or [""]
        if head not in ("", OUT):
            file.close()
            raise ValueError(f"--out {path}: not written by --out before")
        whole = [line for line in old + lines * (head == OUT) if line.endswith("\n")]
        file.seek(0)
        of = {number(line): line for line in whole if number(line) <= done}
        file.writelines([OUT, *of.values()])                             # the same text: killed here,
        file.truncate()                                                  # nothing is lost
        return file


def out_lines(before, after, rows):
    """A line of OUT for each row of a batch: y's forecast before it came, its loss (the batch's mean), the bound for draws."""
    mean, _, var = forecast(before, rows[:, 1:-1])
    loss = (after.ledger.before - before.ledger.before) / len(rows)
    bound = one_of_six(after.goal, after.ledger, after.ledger.before).bound
    for row, *numbers in zip(rows, *interval(mean, var)):
        yield ",".join([f"{row[0]:.0f}", *(repr(float(v)) for v in (*numbers, row[-1], loss, bound))]) + "\n"


def limits(session, X_new):
    """mean, sd, lower, upper (n,) [y] of y at X_new (n, d); of a clock without columns (n, 0) at the next n rows."""
    if session.learner is None:
        raise ValueError(f"the model has seen {len(session.waiting)} rows: too few to predict")
    if not input_names(session.settings):
        X_new = session.settings["seen"] + np.arange(len(X_new), dtype=float)[:, None]
    mean, _, var = forecast(session.learner, X_new)
    return interval(mean, var)


def facts(session):
    """What --json says of a Session whose rows count: the running numbers and the certificates."""
    ledger = session.learner.ledger
    return dict(rows=int(ledger.rows), seen=session.settings["seen"], skipped=session.settings["skipped"],
                rmse=math.sqrt(ledger.squares / ledger.rows),
                certificates={name: one._asdict() for name, one in certificates(session.learner)._asdict().items()})


def draw_history(ax, history):
    """Certificates over time, on an Axes; history: facts."""
    for name, colour in zip(("draw", "mean", "interval", "last"), ("#0072B2", "#D55E00", "#009E73", "0.5")):
        of = [(now["rows"], now["certificates"][name]["bound"], now["certificates"][name]["loss"]) for now in history]
        rows, bounds, losses = zip(*of)
        ax.plot(rows, bounds, color=colour, label=name)
        ax.plot(rows, losses, "--", color=colour, lw=0.8)
    ax.set(xlabel="rows that count", ylabel="bound (dashed: mean loss)", xscale="log", ylim=(0, 1))
    ax.legend()


def opened(lines, args, session):
    """The Session with what the table is, rows to come, their number or None, rows to predict for; says what was read."""
    said, settings, rows = stream_rows(lines, args, session.settings)
    new = new_rows(args, input_names(settings))
    total = sum(1 for _ in lines_of(args.table)) - settings["header"] if args.table and os.path.isfile(args.table) else None
    emit(args, "No table given: this is a demo on 300 generated rows.\n\n" * (args.table is None)
         + f"Going on after row {settings['seen']}.\n" * (settings["seen"] > 0) + said
         + "; --batch 50 is faster" * ((total or 0) > 20_000 and args.batch == 1))
    return session._replace(settings=settings), rows, total, new


def follow(lines, args):
    """Learns from the rows of the lines and prints certificates; whatever ends it, saves the state and prints the summary."""
    goal, choices = declared(args)
    known = [contents(args.state)] if args.state else []
    keep = partial(save, args.state, known=known) if args.state else lambda *session: None
    headings, history = f"\n{HEADINGS}\n", []
    session, rows, total, new = opened(lines, args, resumed(args.state, choices))
    keep(*session)                                                       # a place that cannot be written is noticed at once
    written = session.settings["lines"]
    done = int(session.waiting[0][0]) - 1 if session.waiting else session.settings["seen"]   # rows that wait get lines yet
    rows_file = rows_out(args.out, done, written) if args.out and args.predict is None else contextlib.nullcontext()
    with rows_file as out:
        book = out_lines if out else lambda *_: ()

        def settle():
            """The state first: it has each row that has a line in --out, and the lines that come next."""
            nonlocal written
            keep(*session)
            if out and written is not session.settings["lines"]:
                written = session.settings["lines"]
                out.writelines(written)
                out.flush()
        try:
            with progress(total, session.settings["seen"]) as show:
                for row in rows:
                    if args.missing == "refuse" and np.isnan(row).any():
                        raise ValueError(f"row {row[0]:.0f} has an empty cell, NA, NaN or null: "
                                         "--missing drop skips it")
                    before, session = session, received(session, row)    # interrupted now, the row waits
                    try:
                        session = consume(session, goal, args.first, args.batch, book)
                    except ValueError:
                        session = before
                        raise
                    show(session.settings["seen"], "row")
                    if session.learner is not before.learner:
                        settle()
                    if args.plot and counted(session) > 1.02 * (history[-1]["rows"] if history else 0):
                        history.append(facts(session))
                    if due(counted(before), counted(session), args.every):
                        show(None, "")
                        emit(args, headings + running_line(session.learner), args.json and facts(session))
                        headings = ""
                if not args.state:                                       # where nothing keeps the rows that are left
                    session = consume(session, goal, args.first, len(session.waiting) or 1, book)
        finally:
            try:
                settle()
            finally:
                print_end(session, args, new, history)
    if not counted(session) and (new is not None or not args.state):
        raise ValueError(none_counts(session, args))
    return 0


def none_counts(session, args):
    """What is said where no row is left to count."""
    skipped = session.settings["skipped"]
    left_out = f", {incomplete(skipped)}" * (skipped > 0)
    return (f"{args.table or 'the demo'}: {session.settings['seen'] - skipped} complete rows{left_out}: "
            f"the first {args.first} set the scale, none is left to count")


def input_names(settings):
    """Names of the input columns; none where the row number is the input."""
    return [] if settings["used"][0] == "the row number" else settings["used"][:-1]


def print_end(session, args, new, history=()):
    """Prints how many rows wait, and the summary where rows count; then saves, draws and predicts, as the options say."""
    settings = session.settings
    if session.waiting and (args.state or counted(session)):
        whom = "the first rows, which set the scale, are" if session.learner is None else "a batch is"
        emit(args, f"\n{len(session.waiting)} rows wait in {args.state}: {whom} "
             f"{settings['batch'] if session.learner else settings['first']}." if args.state else
             f"\n{len(session.waiting)} rows were not learnt from.")
    if counted(session):
        choices = [settings[name] for name in ("first", "skipped", "batch")]
        text = summary(session.learner, settings["used"][-1], *choices)
        emit(args, "\n" + text)
        finish(args, session, new, lambda path, session: save(path, *session), limits, dict(facts(session), text=text),
               [lambda ax: draw_history(ax, [*history, facts(session)])])


def learn_from_table(argv):
    """The work of main. With --state the rows go on in another run: only whole lines are read."""
    ap = command_line()
    args = ap.parse_args(argv)
    check_files(ap, args, out_alone=True)
    if args.model is not None:
        session = load(args.model)
        if not (counted(session) and "used" in session.settings):
            raise ValueError(f"{args.model} has no rows that count, or no names of columns: it must come from the command line")
        print_end(session, args, new_rows(args, input_names(session.settings)))
        return 0
    with contextlib.closing(demo_lines() if args.table is None else lines_of(args.table)) as lines:
        return follow(whole_lines(lines) if args.state and args.table else lines, args)


def main(argv=None):
    """`python online.py [table] [options]`: learns from rows as they come, prints certificates, returns the exit status."""
    return exit_status(lambda: learn_from_table(argv))


if __name__ == "__main__":
    import signal
    signal.signal(signal.SIGTERM, signal.default_int_handler)            # as Ctrl-C: the state is saved
    raise SystemExit(main())
