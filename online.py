"""Streaming PAC-Bayes Gaussian process regression, in NumPy, equation by equation.

T. Liu, J. Lu, Z. Yan, G. Zhang: Streaming PAC-Bayes Gaussian process regression with a performance
guarantee for online decision making, 2022. Tag: L. A comment, # and L (n), marks the statement
that computes Eq. (n); docs/reading-L.md names the function of each equation.

The idea. A GP that learns from a stream keeps M inducing inputs and what the data seen so far say
about the function there.

    P_i   the posterior before batch i, the prior of the theorem
    Q_i   the posterior after it

Theorem 3.1: the losses, the KL(Q_i||P_i) and two constants, summed, bound the sum of the risks, as
printed for one m, here at all times at once (`online_bound`). Between batches P_{i+1} may be
changed freely, using past data only. The paper's Q^_{i+1} of (10), (12) is our Q_i; its Q^_i of
(11), (15), (17), (19) is our P_i.

Three algorithms:

    stream              O-PACGP as published, O-SGPR, O-SVGP; no bound, since their kernel moves
                        inside the step
    certified_stream    Corollary 3.2: a bound, with kernel, noise and Z fixed
    beyond/stream.py    bounds while all three follow the stream, by a tighter theorem than 3.1
                        (`certificate` in beyond/certificates.py)

The bounded risk is conditional on the past: the mean over the data points z_j of the expected loss
on a point drawn as z_j was, given those before it. It says nothing about inputs that the stream has
not reached. With plain expectations, as printed, and dependent data the theorem is false (one coin
copied m times).

    paper             code            shape        meaning, unit
    X_t, y_t          X, y            (n,d) (n,)   one batch; n may be 0 or 1
    a, b              u_a, u          (M_a,) (M,)  f at the inducing inputs old.Z (M_a, d) before
                                                   and Z (M, d) after a batch
    theta             ln_theta        (T,)         as in pacgp_ref, or
                                      (Q, 2d+1)    spectral mixture: rows ln of
                                                   (mu_1 .. mu_d, l_1^2 .. l_d^2, w)
    sigma_y^2         ln_noise        scalar       ln of the noise variance
    q_old, q_new      Posterior       A, b         q(u) = p(u) exp(-alpha^T A alpha/2 + b^T alpha)
                                                   / const, u = L alpha, L L^T = k(Z, Z) + jitter;
                                                   A_a, b_a, L_a those of q_old
    lambda, delta, m  lam, delta, n   scalars      weight of the losses; probability of failure;
                                                   number of data points
    K, eps            K, eps          scalars      the loss lies in [0, K]; its tolerance [y]
                      p               dict         argument of every objective: ln_theta, ln_noise,
                                                   Z; for O-SVGP also m (M,), L_S (M, M) with
                                                   q(alpha) = N(m, L_S L_S^T)

The prior is A = 0, b = 0; a batch adds to both. The old posterior acts on the new one as M_a extra
data points, whose features are U = L_a^-1 k(Z_a, Z) L^-T in place of V = k(X, Z) L^-T.

Equations without code of their own: (1) is the joint density that (3) conditions; (2) is the
likelihood; (4) is R (33), `full_gp_nll` of pacgp_ref; (14), (18) and (21)-(24) are R (18)-(27),
(29), (30), its losses. Where the paper has a misprint the docstring says so.
"""
import math
from functools import partial
from typing import Callable, NamedTuple

import numpy as np

from pacgp_ref import (JITTER, LN_BOX, LOSSES, ULP, VAR_FLOOR, StoredPosterior, adam, check_array,
                       check_choice, check_columns, check_count, check_data, check_jitter,
                       check_kernel, check_kind, check_scalar, check_shapes, check_signal, cholesky,
                       features, gaussian_posterior, in_doubles, inverse_cholesky, kl_to_prior,
                       marginals, real_array, se_kernel, signal_variance, sparse_predict, tri_inv,
                       x_minus_log1p)


# Lower bound on sigma_y^2 in every search: that of GPyTorch, which the paper was run in.
MIN_NOISE = 1e-4
# Limits of what Adam and L-BFGS move.
BOX = {"ln_theta": (-LN_BOX, LN_BOX), "ln_noise": (math.log(MIN_NOISE), LN_BOX)}
# Adam's, L Sec. 5.1.
LEARNING_RATES = {"ln_theta": 0.1, "ln_noise": 0.1, "Z": 0.01, "m": 0.01, "L_S": 0.01}
# Of L Sec. 5.1; its WISKI and other baselines are in figures_of/baselines.py.
METHODS = ("O-SGPR", "O-SVGP", "O-PACGP")


# --- kernels -------------------------------------------------------------------------------------

@in_doubles
def waves(X1, X2, row):
    """Angles 2 pi mu_k (x1_k - x2_k), (N1, N2, d), of one component of a spectral mixture."""
    mu = np.exp(row[:X1.shape[1]])
    differences = np.clip(X1[:, None, :] - X2[None, :, :], -1e150, 1e150)
    return 2 * np.pi * mu * differences


@in_doubles
def spectral_mixture(X1, X2, ln_theta, by_differences=False):
    """K_12 (N1, N2) [y^2] of a spectral mixture, and back; L Sec. 5.1.

        K_12 = sum_q w_q exp(-sum_k (x1_k - x2_k)^2/(2 l_qk^2)) prod_k cos(2 pi mu_qk (x1_k - x2_k))

    Wilson & Adams 2013, Eq. (12), whose v is 1/(4 pi^2 l^2). ln_theta (Q, 2d+1), else ValueError;
    other arguments as se_kernel.

    back(d_K, of_X1=True) returns d_ln_theta (Q, 2d+1), d_X1, d_X2:
        d prod_k cos(a_k) = -sum_k sin(a_k) prod_{j != k} cos(a_j) da_k,
        da_k/d ln mu_k = a_k,   da_k/d x1_k = 2 pi mu_k = -da_k/d x2_k
    """
    d = X1.shape[1]
    if np.ndim(ln_theta) != 2 or ln_theta.shape[1] != 2 * d + 1:
        raise ValueError(f"ln_theta must have rows of {2 * d + 1} entries for {d} columns, "
                         f"got shape {np.shape(ln_theta)}")
    components = [(row, *se_kernel(X1, X2, row[d:], by_differences), waves(X1, X2, row))
                  for row in ln_theta]
    K_12 = sum(E * np.prod(np.cos(angle), 2) for _, E, _, angle in components)

    def back(d_K, of_X1=True):
        d_rows = []
        d_X1 = d_X2 = 0.0
        for row, E, E_back, angle in components:
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
    """Whether two Posteriors have the same kernel, however its ln_theta is written.

    One lengthscale may replace d equal ones; the components of a mixture have no order.
    """
    d = new.Z.shape[1]

    def in_full(ln_theta):
        if ln_theta.ndim == 2:
            return ln_theta[np.lexsort(ln_theta.T)]
        return np.append(np.full(d, ln_theta[0]), ln_theta[1]) if len(ln_theta) == 2 else ln_theta
    alike = new.kernel == old.kernel and old.Z.shape[1] == d
    return alike and np.array_equal(in_full(new.ln_theta), in_full(old.ln_theta))


def _same_points(Z1, Z2):
    """(M1, M2): 1.0 where both rows denote the same inducing variable, which has one jitter.

    Duplicates are matched in order.
    """
    def equal(A, B):
        return np.all(A[:, None, :] == B[None, :, :], axis=2)
    order1, order2 = (np.sum(np.tril(equal(Z, Z), -1), 1) for Z in (Z1, Z2))
    return 1.0 * (equal(Z1, Z2) & (order1[:, None] == order2[None, :]))


def _inducing_kernel(Z1, Z2, ln_theta, kernel=se_kernel):
    """Covariance (M1, M2) of inducing variables, and back as that of the kernel.

    k(Z1, Z2) by differences, plus JITTER k(x, x) where both are the same variable.
    """
    K_12, K_back = kernel(Z1, Z2, ln_theta, by_differences=True)
    same = np.eye(len(Z1)) if Z1 is Z2 else _same_points(Z1, Z2)

    def back(d_K, of_X1=True):
        d_ln_theta, d_Z1, d_Z2 = K_back(d_K, of_X1)
        d_ln_theta[..., -1] += JITTER * np.sum(d_K * same) * np.exp(ln_theta[..., -1])
        return d_ln_theta, d_Z1, d_Z2
    return K_12 + JITTER * signal_variance(ln_theta) * same, back


# --- the streaming posterior: L Sec. 3.1, (5)-(7) ------------------------------------------------

class Posterior(NamedTuple):
    """A posterior that data can still be added to; L (5), (6). An update returns a new one."""
    Z: np.ndarray              # (M, d) inducing inputs
    ln_theta: np.ndarray       # (T,) or (Q, 2d+1) the kernel
    Linv: np.ndarray           # (M, M) L^-1, L L^T = k(Z, Z) + jitter
    # L (5): q_old(alpha) = p(alpha) exp(-alpha^T A alpha/2 + b^T alpha) / const
    A: np.ndarray              # (M, M)
    b: np.ndarray              # (M,)
    root: np.ndarray           # (M, M) triangular, S = (I + A)^-1 = root^T root; the mean is S b
    kernel: Callable = se_kernel


def check_prior(Z, ln_theta, Linv, kernel=se_kernel):
    """ValueError where rounding leaves no jitter (check_jitter), or a mixture's angles are too
    large.

    A kernel by differences errs by about d + 8 ulp of k(x, x); a mixture by d times its largest
    angle more.
    """
    d = Z.shape[1]
    largest = 0.0
    if ln_theta.ndim == 2:
        largest = max(np.max(np.abs(waves(Z, Z, row))) for row in ln_theta)
    if 4 * len(Z) * ULP * (d * (1 + largest) + 8) > JITTER:
        raise ValueError("ln_theta has frequencies too high, or Z is too wide, "
                         "for k(Z, Z) to keep its digits")
    K_ZZ, _ = kernel(Z, Z, ln_theta, by_differences=True)
    check_jitter(K_ZZ, Linv, signal_variance(ln_theta))


@in_doubles
def prior(Z, ln_theta, kernel=se_kernel):
    """The Posterior before any data: A = 0, b = 0."""
    Z, ln_theta = check_parameters(Z, ln_theta, kernel=kernel)
    M = len(Z)
    Linv, _ = inverse_cholesky(Z, ln_theta, kernel, by_differences=True)
    check_prior(Z, ln_theta, Linv, kernel)
    return Posterior(Z, ln_theta, Linv, np.zeros((M, M)), np.zeros(M), np.eye(M), kernel)


def _old_features(old, Z, ln_theta, Linv):
    """U = L_a^-1 k(Z_a, Z) L^-T (M_a, M), the features of the old posterior, and back.

    k is the kernel at ln_theta; L_a is that of `old`, at its own ln_theta. An inducing variable
    that stays keeps its jitter, so U = I where nothing changes.

    back(d_U) returns d_ln_theta, d_Z and gram = d_U^T U for the VJP of inverse_cholesky.
    """
    K_aZ, K_back = _inducing_kernel(old.Z, Z, ln_theta, old.kernel)
    U = old.Linv @ K_aZ @ Linv.T

    def back(d_U):
        d_ln_theta, _, d_Z = K_back(old.Linv.T @ d_U @ Linv, of_X1=False)
        return d_ln_theta, d_Z, d_U.T @ U
    return U, back


def _carried(old, U):
    """A = U^T A_a U (M, M), b = U^T b_a (M,), the old data at new Z and theta, and back.

    U as _old_features. back(d_A, d_b), of which d_A is symmetric, returns d_U:
        d_U = 2 A_a U d_A + b_a d_b^T
    """
    AU = old.A @ U

    def back(d_A, d_b):
        return 2 * AU @ d_A + np.outer(old.b, d_b)
    return (U.T @ AU, U.T @ old.b), back


def _stream_sums(A, b, V, y, sigma2):
    """A (M, M), b (M,) of the posterior after a batch with Gaussian noise, and back; L (6), (7).

        A = U^T A_a U + V^T V/sigma_y^2,   b = U^T b_a + V^T y/sigma_y^2

    The posterior of this form that minimises (8). The arguments A, b are those of `_carried`, or of
    the old posterior where Z and theta stay; V (n, M) are the features of the batch. The prefactor
    Z_1/Z_2 of (7) normalises it only where q_old is exact; A and b need none.

    back(d_A, d_b), of which d_A is symmetric, returns d_V, d_sigma2; those of A and b are d_A, d_b:
        d_V = (2 V d_A + y d_b^T)/sigma_y^2
    """
    A = A + V.T @ V / sigma2                      # L (7): A = U^T A_a U + V^T V/sigma_y^2
    b = b + V.T @ y / sigma2

    def back(d_A, d_b):
        V_d_A = V @ d_A
        d_V = (2 * V_d_A + np.outer(y, d_b)) / sigma2
        return d_V, -(np.sum(V_d_A * V) + y @ (V @ d_b)) / sigma2**2
    return (A, b), back


@in_doubles
def conjugate_update(old, X, y, sigma2, Z, ln_theta):
    """The Posterior after a batch; L (6), (7). `update` without checks of its arguments.

    X (n, d), y (n,), noise variance sigma2 [y^2], new inducing inputs Z (M, d), kernel ln_theta.
    """
    check_shapes("y and the rows of X", y, X[:, 0])
    Linv, A, b = old.Linv, old.A, old.b
    if not (np.array_equal(Z, old.Z) and np.array_equal(ln_theta, old.ln_theta)):
        Linv, _ = inverse_cholesky(Z, ln_theta, old.kernel, by_differences=True)
        U, _ = _old_features(old, Z, ln_theta, Linv)
        (A, b), _ = _carried(old, U)
    elif len(y) == 0:
        return old
    K_XZ, _ = old.kernel(X, Z, ln_theta)
    (A, b), _ = _stream_sums(A, b, K_XZ @ Linv.T, y, sigma2)
    root = tri_inv(cholesky(np.eye(len(b)) + A, "I + A"))
    return Posterior(Z, ln_theta, Linv, A, b, root, old.kernel)                 # L (6): q_new


@in_doubles
def update(posterior, X, y, ln_noise, Z=None, ln_theta=None):
    """The Posterior after a batch: q_new of L (6), (7), which minimises (8).

    X (n, d), y (n,)    the batch, n >= 0
    ln_noise            ln of its noise variance [ln y^2]
    Z (M, d), ln_theta  new inducing inputs and kernel; None: as they were

    While Z and theta stay, neither the order nor the split into batches matters; with Z = X it is
    the exact GP. With no data and a new Z or theta it carries the posterior over.
    O((n + M) M^2) operations, however many data came before. ValueError for bad input.
    """
    check_kind("posterior", posterior, Posterior, "prior or update")
    d = posterior.Z.shape[1]
    X, y = check_data(X, y, d=d, least=0)
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
    """mean [y], var [y^2] (n,) of f at X_new (n, d), without noise; L (3) for a Posterior."""
    check_kind("posterior", posterior, Posterior, "prior or update")
    X_new = check_columns("X_new", X_new, posterior.Z.shape[1])
    Z, ln_theta, Linv, _, b, root, kernel = posterior
    m = root.T @ (root @ b)
    # L (3): mean = V m, var = k - V V^T + V S V^T
    return sparse_predict(StoredPosterior(Z, Linv, ln_theta, m, root, kernel), X_new)


# --- what the objectives are made of: L (8), (12), (13) ------------------------------------------

def _kl_to_old(m, S, ln_det_S, U, ln_theta, old):
    """E ln(q_new(u)/p(u)) - E ln(q_old(u_a)/p(u_a)), under q_new(u) = N(L m, L S L^T); L (13).

        KL(N(m, S)||N(0, I)) + tr(A_a Sigma)/2 + m_a^T A_a m_a/2 - b_a^T m_a
        + b_a^T (I + A_a)^-1 b_a/2 - ln|I + A_a|/2

    m_a = U m, Sigma = L_a^-1 K_aa L_a^-T + U (S - I) U^T: mean and covariance of alpha_a under
    q_new. U (M_a, M) as _old_features; K_aa = k(Z_a, Z_a) + jitter at ln_theta, the new kernel.

    While the kernel stays this is KL(Q_new||Q_old) of the processes. If it changes, that KL is
    infinite, and this is (13) without the factor p(f|u)/p(f|u_a), as in (8): it may be negative.

    Returns KL, back. back(d_KL) returns d_m, d_S, d_ln_det, d_U, d_ln_theta; with r = A_a U m - b_a
    and d_KL = 1:
        d_m = m + U^T r,   d_S = (I + U^T A_a U)/2,   d_U = A_a U (S - I) + r m^T
    """
    K_aa, K_aa_back = _inducing_kernel(old.Z, old.Z, ln_theta, old.kernel)
    to_prior, prior_back = kl_to_prior(m, S, ln_det_S)
    m_a = U @ m
    AU = old.A @ U
    W = S - np.eye(len(m))
    trace = np.sum(old.A * (old.Linv @ K_aa @ old.Linv.T)) + np.sum(AU * (U @ W))
    root_b = old.root @ old.b
    half_ln_det_old = np.sum(np.log(np.abs(np.diag(old.root))))
    quadratic = (trace + m_a @ (old.A @ m_a) + root_b @ root_b) / 2 - old.b @ m_a
    KL = to_prior + quadratic + half_ln_det_old                             # L (13): KL(Q||P)

    def back(d_KL):
        d_m, d_S, d_ln_det = prior_back(d_KL)
        r = AU @ m - old.b
        d_U = d_KL * (AU @ W + np.outer(r, m))
        d_ln_theta, *_ = K_aa_back(d_KL / 2 * old.Linv.T @ old.A @ old.Linv, of_X1=False)
        return d_m + d_KL * U.T @ r, d_S + d_KL / 2 * U.T @ AU, d_ln_det, d_U, d_ln_theta
    return KL, back


@in_doubles
def marginals_and_kl(p, old, X, y):
    """(mean, var, KL), back: marginals (n,) of q_new at the batch, and its KL to `old`; L (12).

    p: Z (M, d), ln_theta, ln_noise. q_new is then given by the data, (7) (O-SGPR, O-PACGP). With
    m (M,) and a lower triangular L_S (M, M) as well, q_new(alpha) = N(m, L_S L_S^T) (O-SVGP).
    Where the kernel moves, "KL" is what _kl_to_old says. L (15), (19) have the marginals before the
    batch, where (12) needs those after it.

    back(d_mean, d_var, d_KL) returns a dict with the keys of p; the VJPs of six steps, and
        d_L_S = tril(2 d_S L_S) + 2 d_ln_det diag(1/diag L_S)
    """
    check_shapes("y and the rows of X", y, X[:, 0])
    Z = p["Z"]
    ln_theta = p["ln_theta"]
    sigma2 = np.exp(p["ln_noise"])
    floor = VAR_FLOOR * signal_variance(ln_theta)
    free = "m" in p
    Linv, Linv_back = inverse_cholesky(Z, ln_theta, old.kernel, by_differences=True)          # 1
    (V, ktilde), V_back = features(X, Z, ln_theta, Linv, old.kernel)                          # 2
    U, U_back = _old_features(old, Z, ln_theta, Linv)                                         # 3
    if free:
        m = p["m"]
        L_S = p["L_S"]
        S = L_S @ L_S.T
        ln_det_S = 2 * np.sum(np.log(np.abs(np.diag(L_S))))
    else:
        (A, b), carried_back = _carried(old, U)                                               # 4
        (A, b), sums_back = _stream_sums(A, b, V, y, sigma2)                                  # 4
        (m, S, ln_det_S, _), posterior_back = gaussian_posterior(A, b)                        # 4
    (mean, var), marginals_back = marginals(V, ktilde, m, S)                                  # 5
    KL, KL_back = _kl_to_old(m, S, ln_det_S, U, ln_theta, old)                                # 6

    def back(d_mean, d_var, d_KL):
        d_m_6, d_S_6, d_ln_det, d_U, d_ln_theta = KL_back(d_KL)                               # 6
        d_V, d_ktilde, d_m, d_S = marginals_back(d_mean, d_var * (var > floor))               # 5
        d_m = d_m + d_m_6
        d_S = d_S + d_S_6
        if free:
            d_L_S = np.tril(2 * d_S @ L_S) + 2 * d_ln_det * np.diag(1 / np.diag(L_S))
            of_q = dict(m=d_m, L_S=d_L_S, ln_noise=0.0)
        else:
            d_A, d_b = posterior_back(d_m, d_S, d_ln_det)                                     # 4
            d_V_4, d_sigma2 = sums_back(d_A, d_b)                                             # 4
            d_V = d_V + d_V_4
            d_U = d_U + carried_back(d_A, d_b)                                                # 4
            of_q = dict(ln_noise=sigma2 * d_sigma2)
        d_ln_theta_3, d_Z_3, gram_3 = U_back(d_U)                                             # 3
        d_ln_theta_2, d_Z_2, gram_2 = V_back(d_V, d_ktilde)                                   # 2
        d_ln_theta_1, d_Z_1 = Linv_back(gram_2 + gram_3)                                      # 1
        d_ln_theta = d_ln_theta + d_ln_theta_1 + d_ln_theta_2 + d_ln_theta_3
        return dict(of_q, ln_theta=d_ln_theta, Z=d_Z_1 + d_Z_2 + d_Z_3)
    return (mean, np.maximum(var, floor), KL), back


@in_doubles
def process_kl(new, old):
    """KL(Q_new||Q_old) of two posterior processes, Posteriors with any Z; L (13).

    inf where their kernels differ (`same_kernel`). Paths of the SE kernel and of its mixtures are
    analytic: their values on any interval reveal the kernel, so two such processes have no density
    w.r.t. each other. (Rougher ones may: Matern-1/2 with equal sigma_s^2/l.) So (13) has no meaning
    while the kernel moves; move it between batches, as `step` in beyond/stream.py does.

    In coordinates z, N(0, I) under P, with alpha_a = H z (`joint_sums`), Q_old has the precision
    I + H^T A_a H = (root^T root)^-1, and Q_new that plus D = diag(A, 0) - H^T A_a H. With
    e = E_new z - E_old z and t the eigenvalues of root D root^T,

        KL = (sum_i ln(1 + t_i) - t_i/(1 + t_i) + e^T e + (H e)^T A_a H e)/2

    No term is negative, so a small KL keeps its digits, unlike in _kl_to_old. The gradient is that
    of marginals_and_kl with d_KL = 1.
    ValueError where rounding leaves a t of -1 or below, or none.
    """
    check_kind("new", new, Posterior, "prior or update")
    check_kind("old", old, Posterior, "prior or update")
    if not same_kernel(new, old):
        return math.inf
    A, b, root = joint_sums(new, old)
    M = len(new.b)
    e = -root.T @ (root @ b)
    e[:M] += new.root.T @ (new.root @ new.b)
    D = -A
    D[:M, :M] += new.A
    of_means = e @ e + e @ A @ e
    if not (np.all(np.isfinite(D)) and of_means < math.inf):
        raise ValueError("the KL divergence is infinite: the kernel lost digits")
    t = np.linalg.eigvalsh(root @ D @ root.T)
    if not np.min(t) > -1:
        raise ValueError(f"a precision is {1 + np.min(t):.3g} of the old one, not above 0: "
                         "the kernel lost digits")
    of_S = np.sum(x_minus_log1p(-t / (1 + t), 1 / (1 + t)))
    return float(of_S + of_means) / 2                                       # L (13): KL(Q||P)


@in_doubles
def joint_sums(new, old):
    """A = H^T A_a H (M', M'), b = H^T b_a (M',) and root of Q_old, as process_kl has them.

    For Posteriors with one kernel. H = I where no inducing input moves; else H = L_a^-1 (W C),
    W = k(Z_a, Z) L^-T (M_a, M), C C^T = k(Z_a, Z_a) - W W^T, which is 0 for inputs that stay.
    """
    if np.array_equal(new.Z, old.Z):
        return old.A, old.b, old.root
    K_aZ, _ = _inducing_kernel(old.Z, new.Z, new.ln_theta, new.kernel)
    K_aa, _ = _inducing_kernel(old.Z, old.Z, new.ln_theta, new.kernel)
    W = K_aZ @ new.Linv.T
    moved = np.flatnonzero(~np.any(_same_points(old.Z, new.Z), axis=1))
    variances, E = np.linalg.eigh((K_aa - W @ W.T)[np.ix_(moved, moved)])
    C = np.zeros((len(W), len(moved)))
    C[moved] = E * np.sqrt(np.maximum(variances, 0.0))
    H = old.Linv @ np.concatenate([W, C], axis=1)
    A = H.T @ (old.A @ H)
    return A, H.T @ old.b, tri_inv(cholesky(np.eye(len(A)) + A, "I + H^T A H"))


@in_doubles
def free_energy(p, old, X, y):
    """-E ln p(y|f) + E ln(q_new(u)/p(u)) - E ln(q_old(u_a)/p(u_a)) [nats], and back; L (8).

    Without the constant ln(Z_2/Z_1). Minus the streaming bound of Bui et al. (2017): collapsed
    where p has no m (O-SGPR), uncollapsed otherwise (O-SVGP), with the same minimum. With fixed Z
    and theta its values over batches add up to that of all data. Arguments as marginals_and_kl.

    back(d_value) returns a dict with the keys of p.
    """
    (mean, var, KL), posterior_back = marginals_and_kl(p, old, X, y)
    sigma2 = np.exp(p["ln_noise"])
    misfit = (y - mean) ** 2 + var
    # L (8): -E ln p(y|f) + KL
    value = np.sum(np.log(2 * np.pi * sigma2) + misfit / sigma2) / 2 + KL

    def back(d_value):
        d_mean = d_value * (mean - y) / sigma2
        d_var = np.full(len(y), d_value / (2 * sigma2))
        grads = posterior_back(d_mean, d_var, d_value)
        d_ln_noise = d_value * (len(y) - np.sum(misfit) / sigma2) / 2
        return dict(grads, ln_noise=grads["ln_noise"] + d_ln_noise)
    return value, back


@in_doubles
def online_objective(p, old, X, y, lam=1.0, eps=0.1, loss="exp", delta=0.05, K=1.0):
    """J, which O-PACGP minimises at a batch, and back; L (12), with its printed constants.

        J = sum_i E_Q loss(f_i, y_i) + KL(Q||P)/lam + lam n K^2/2 + ln(1/delta)/lam

    q is not optimised: Q is given by the data, (7), at every p = (Z, ln_theta, ln_noise), as in
    O-SGPR. Only p moves, and Q follows. (With m and L_S in p, Q is free; the paper has no such
    algorithm.)

    p, old, X, y   as marginals_and_kl; P is `old`
    eps, loss      tolerance [y], and the key of the loss in LOSSES
    lam, delta, K  as online_bound; lam None: the paper's 1/len(x), here 1/n

    Where the kernel moves, the KL is what _kl_to_old says: it may be negative or huge.

    back(d_value) returns a dict with the keys of p.
    """
    lam = 1 / len(y) if lam is None else lam                                # L Sec. 5.1
    (mean, var, KL), posterior_back = marginals_and_kl(p, old, X, y)
    # L (15)  # L (19): sum of E_Q loss
    # L (16)  # L (20): the same for loss = "exp"
    losses, d_mean, d_var = LOSSES[loss](y, mean, var, eps)
    constants = lam * len(y) * K * K / 2 + math.log(1 / delta) / lam
    value = np.sum(losses) + KL / lam + constants                           # L (12): J

    def back(d_value):
        return posterior_back(d_value * d_mean, d_value * d_var, d_value / lam)
    return value, back


# --- L Sec. 5, Algorithm 1: METHODS --------------------------------------------------------------

@in_doubles
def descend(objective, p, state, steps, rates=LEARNING_RATES):
    """p and Adam's state after `steps` steps on objective(p) -> value, back, in BOX; L Sec. 5.1.

    Each key of p has its own rate.
    """
    def evaluate(p):
        value, back = objective(p)
        return value, back(1.0)
    lr = np.repeat([rates[name] for name in p], [np.size(v) for v in p.values()])
    found = adam(evaluate, p, [lr] * steps, BOX, state)
    return found.x, found.state


@in_doubles
def posterior_at(p, old, X, y):
    """The Posterior at parameters p: given by `old` and the batch, or q(alpha) = N(m, L_S L_S^T)
    where p has m.
    """
    if "m" not in p:
        return update(old, X, y, p["ln_noise"], p["Z"], p["ln_theta"])
    inverse = tri_inv(p["L_S"])
    precision = inverse.T @ inverse
    A = precision - np.eye(len(precision))
    empty = prior(p["Z"], p["ln_theta"], old.kernel)
    return empty._replace(A=A, b=precision @ p["m"], root=p["L_S"].T)


class Snapshot(NamedTuple):
    """What stream yields."""
    p: dict                    # ln_theta, ln_noise, Z as learnt so far; m, L_S for O-SVGP
    state: Posterior           # all that is kept of the data
    predict: Callable          # X_new (n, d) -> mean, var (n,) of f, without noise


def sparse_stream(X, y, p, schedule, constants=None, kernel=se_kernel):
    """Yields a Snapshot after each pair (slice of data, steps of Adam) of the schedule.

    L Algorithm 1. constants: None for (8) throughout, O-SGPR or O-SVGP; else the keyword arguments
    of online_objective, O-PACGP. The first data pretrain, with (8), as in the paper. Adam's moments
    are carried on from there to the end.
    """
    posterior = prior(p["Z"], p["ln_theta"], kernel)
    state = None
    for rows, steps in schedule:
        objective = free_energy
        if rows.start > 0 and constants is not None:
            objective = partial(online_objective, **constants)
        at_batch = partial(objective, old=posterior, X=X[rows], y=y[rows])
        p, state = descend(at_batch, p, state, steps)
        posterior = posterior_at(p, posterior, X[rows], y[rows])
        yield Snapshot(p, posterior, partial(predict, posterior))


def schedule_of(N, n0, pretrain, steps, batch):
    """[(slice of data, steps of Adam)]: the first n0 of N data points, then batches."""
    batches = [slice(i, min(i + batch, N)) for i in range(n0, N, batch)]
    return [(slice(0, n0), pretrain)] + [(rows, steps) for rows in batches]


def stream(X, y, method, Z, ln_theta=None, ln_noise=0.0, n0=10, pretrain=400, steps=1, batch=1,
           eps=0.1, loss="exp", lam=None, delta=0.05, K=1.0, kernel=se_kernel):
    """Yields a Snapshot, with predict(X_new) -> mean, var, after n0 data points and each batch.

    L Sec. 5. At a batch Adam takes `steps` steps on the objective of the method; then the posterior
    at the new parameters becomes the next `old`:

        method    objective   Adam moves                    posterior
        O-SGPR    (8)         ln_theta, ln_noise, Z         (7), given by the data
        O-SVGP    (8)         the same, and m, L_S          N(m, L_S L_S^T)
        O-PACGP   (12)        ln_theta, ln_noise, Z         (7), given by the data

    X (N, d), y (N,)     the stream, scaled beforehand
    Z (M, d)             inducing inputs at the start
    ln_theta, ln_noise   initial values; with few data they hardly move. Default: lengthscales,
                         signal and noise variance 1
    n0, pretrain         the first data points, and the Adam steps on them, with (8)
    eps .. K             of online_objective, for O-PACGP

    No certificate: the kernel moves inside the step. ValueError for bad input.
    """
    X, y = check_data(X, y)
    N, d = X.shape
    ln_theta = np.zeros(d + 1) if ln_theta is None else ln_theta
    Z, ln_theta = check_parameters(Z, ln_theta, d, kernel)
    p = dict(ln_theta=ln_theta, ln_noise=check_logarithm("ln_noise", ln_noise, 0), Z=Z)
    method = check_choice("method", method, METHODS)
    counts = dict(n0=n0, pretrain=pretrain, steps=steps, batch=batch)
    n0, *counts = (check_count(*count) for count in counts.items())
    if n0 > N:
        raise ValueError(f"n0 = {n0} rows for pretraining, but there are {N}")
    if lam is not None:
        lam = check_scalar("lam", lam, 0)
    constants = dict(
        lam=lam, eps=check_scalar("eps", eps, 0), loss=check_choice("loss", loss, LOSSES),
        delta=check_scalar("delta", delta, 0, 1), K=check_scalar("K", K, 0))
    if method == "O-SVGP":
        p = dict(p, m=np.zeros(len(Z)), L_S=np.eye(len(Z)))
    if method != "O-PACGP":
        constants = None
    return sparse_stream(X, y, p, schedule_of(N, n0, *counts), constants, kernel)


# --- the bounds: L Sec. 3.2, Theorem 3.1 ---------------------------------------------------------

def bound_terms(loss_sum, KL, n, lam, delta, K):
    """The arguments as floats (lam may be an array); loss_sum, KL in (-1e-9, 0) become 0.

    ValueError unless 0 <= loss_sum <= n K, KL >= 0, n >= 1, 0 < lam < inf, 0 < delta <= 1, K > 0.
    """
    numbers = dict(loss_sum=loss_sum, KL=KL, n=n, delta=delta, K=K)
    loss_sum, KL, n, delta, K = (float(real_array(name, one)) for name, one in numbers.items())
    lam = np.asarray(real_array("lam", lam))[()]
    sums = -1e-9 < loss_sum <= n * K * (1 + 1e-9) and KL > -1e-9
    if not (sums and n >= 1 and np.all((0 < lam) & (lam < np.inf)) and 0 < delta <= 1 and K > 0):
        raise ValueError("the bound needs 0 <= loss_sum <= n K, KL >= 0, n >= 1, lam > 0, "
                         f"0 < delta <= 1, K > 0: got {loss_sum, KL, n, lam, delta, K}")
    return max(loss_sum, 0.0), max(KL, 0.0), n, lam, delta, K


def online_bound(loss_sum, KL, n, lam, delta=0.05, K=1.0):
    """Upper bound on sum_j risk_j over n data points, valid for all n at once; L (9)-(11), (17).

        loss_sum + KL/lam + lam n K^2/8 + ln(1/delta)/lam           (printed: K^2/2, also valid)

    loss_sum  sum over points j of E_{h~Q_i} loss(h, z_j), i the batch of j; losses in [0, K]
    KL        sum over batches of KL(Q_i||P_i); 0 for (11), (17), where Q_i = P_i
    risk_j    E_{h~Q_i} of E[loss(h, z_j) | z_1 .. z_{j-1}], h held fixed; the past includes
              earlier points of the same batch

    Fixed in advance: lam, delta. P_i may use earlier batches only; whether a point opens a new
    batch must be decided before it is seen. Each of several lam holds alone: to take the least, pay
    delta/len(lam). It may exceed n K, and then says nothing. ValueError for values out of range.

    Proof (Haddouche & Guedj 2022). For fixed h, exp(lam sum_j (risk_j - loss_j) - lam^2 n K^2/8) is
    a supermartingale (Hoeffding), so is its P_i-average, batch by batch; Ville bounds its supremum;
    Donsker & Varadhan pass from P_i to Q_i.
    """
    loss_sum, KL, n, lam, delta, K = bound_terms(loss_sum, KL, n, lam, delta, K)
    variance = n * K * K / 8
    # L (9): any Q_i
    # L (10): training, Q_i the posterior after batch i
    # L (11)  # L (17): test, Q_i = P_i
    return loss_sum + KL / lam + lam * variance + math.log(1 / delta) / lam


def best_lam(n, KL=0.0, delta=0.05, K=1.0):
    """sqrt(8 (KL + ln(1/delta))/n)/K: minimises (9) for n points and a KL guessed beforehand."""
    _, KL, n, _, delta, K = bound_terms(0.0, KL, n, 1.0, delta, K)
    if delta == 1 and KL == 0:
        raise ValueError("delta must be below 1 where KL = 0: the bound falls with lam to 0")
    return math.sqrt(8 * (KL + math.log(1 / delta)) / n) / K


def certified_stream(X, y, Z, ln_theta, ln_noise, lam, eps=0.1, loss="exp", delta=0.05, batch=1,
                     kernel=se_kernel):
    """Yields Q_i and the bound of L (10) on the mean risk so far, after each batch; Corollary 3.2.

    P_i is the posterior before batch i, Q_i the one after it. All else is fixed before the first
    point: Z (M, d), ln_theta, ln_noise, lam and eps, the tolerance of a loss in LOSSES. (The first
    three move in Algorithm 1 and, with a bound, in beyond/stream.py.) The bounds hold together with
    probability 1 - delta, except for rounding. One above 1 says nothing. ValueError for bad input.
    """
    X, y = check_data(X, y)
    Z, ln_theta = check_parameters(Z, ln_theta, X.shape[1], kernel)
    ln_noise = check_logarithm("ln_noise", ln_noise, 0)
    eps = check_scalar("eps", eps, 0)
    loss = check_choice("loss", loss, LOSSES)
    delta = check_scalar("delta", delta, 0, 1)
    batch = check_count("batch", batch)
    bound_terms(0.0, 0.0, 1, lam, delta, 1.0)      # its ValueError for lam
    P_1 = prior(Z, ln_theta, kernel)

    def bounds():
        Q = P_1
        loss_sum = KL = 0.0
        for start in range(0, len(y), batch):
            rows = slice(start, start + batch)
            P = Q                                                           # P_i
            Q = update(P, X[rows], y[rows], ln_noise)                       # Q_i
            mean, var = predict(Q, X[rows])
            loss_sum += np.sum(LOSSES[loss](y[rows], mean, var, eps)[0])
            KL += process_kl(Q, P)
            n = start + len(y[rows])
            yield Q, online_bound(loss_sum, KL, n, lam, delta) / n          # L (10): training
    return bounds()


# --- what every entry point checks ---------------------------------------------------------------

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
    check_signal(kernel, Z, ln_theta)      # or the kernel's ValueError where ln_theta does not fit
    return Z, ln_theta
