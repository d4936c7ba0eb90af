"""Certificates that rounding cannot break: KL, risk and bounds that are never below the exact ones.

In pacgp_ref.fit the bound B, R (5), is computed in doubles. `strict(fit, X, y)` rounds R_S, KL and
bounds up. The command line prints the rounded values; docs/trust.md#certificates says how far above
the exact ones they are. Not in the papers. Equation numbers are R's, and symbols those of
pacgp_ref.py: Q(f_M) = N(L m, L S L^T), S = root^T root, L L^T = K_MM, Linv = L^-1; for the full GP
L L^T = K_y = K + sigma_n^2 I and m = L^-1 y. ln_noise is ln sigma_n^2, and `over` is map or the map
of a pool.

A certificate is about the Q that is stored, however it was found: a StoredPosterior and, for the
full GP, sigma_n^2. So only the evaluation of KL and marginals of this Q can err. "Enclosed" numbers
come with a bound on that error. An entry of k(x, Z) errs by at most e ulp of k(x, x);
beyond/kernels.py gives e. A sum of n products errs by at most n ulp of the sum of their absolute
values. For a computed factor L, L L^T differs from the matrix that was factored by at most the
error of such a sum. For a computed inverse L^-1, L^-1 L differs from I by at most the error of such
a sum (Higham 2002, Ch. 3, 8, 10). Each error is taken with its worst sign, to first order. `unit`,
mostly 4 (n + e) ulp, covers up to four such errors in a row.
"""
import math
from functools import partial
from typing import NamedTuple

import numpy as np

from pacgp_ref import (FAMILIES, JITTER, LOSSES, METHODS, RELATIVE_LOSSES, ULP, VAR_FLOOR,
                       ZERO_ONE_LOSSES, Fit, StoredPosterior, check_choice, check_data,
                       check_jitter, check_kind, check_shapes, cholesky, in_doubles, kl_inv,
                       mean_loss, noisy_factors, row_dots, se_kernel, signal_variance, tri_inv)
from beyond.blocks import in_blocks, posterior_in_blocks, predict_in_blocks, total
from beyond.kernels import check_digits, exact_kernel

# Absolute error of an expected loss and of their mean: the closed forms cancel, down to NARROW.
LOSS_ERROR = 1e-12
# A loss -> its value at the distance |yhat - y| = share eps (share eps |y| for a relative loss); it
# grows with share. Certificates are rounded up for these and ZERO_ONE_LOSSES alone: their
# expectations grow with |mean - y| as well.
AT_SHARE = {
    "square": lambda share: share**2,
    "exp": lambda share: -np.expm1(-share**2),
    "relative": lambda share: share,
}


class Enclosed(NamedTuple):
    """Marginals and KL of a stored posterior, with bounds on their rounding errors.

    posterior is None, and KL 0, where only the marginals are wanted.
    """
    posterior: StoredPosterior
    mean: np.ndarray           # (N,) [y]
    var: np.ndarray            # (N,) [y^2]
    KL: float                  # [nats]
    mean_error: np.ndarray     # (N,) or a number [y]
    var_error: np.ndarray      # (N,) [y^2]
    KL_error: float            # [nats]


# --- the full GP ---------------------------------------------------------------------------------

@in_doubles
def enclosed_gaussian(K, y, ln_noise, K_error, unit):
    """Variances and KL of a full GP with targets y (N,), with bounds on their rounding errors.

    Returns three pairs: (Linv, m), which are to be stored; (var, KL), (N,) and a number, by R (6)
    and (8); (var_error, KL_error), bounds on the rounding errors of var and KL.

        mean = K a, a = L^-T m,   var = sigma^2 - sigma^4 diag(K_y^-1),   K_y = K + sigma^2 I,
        KL = (ln|K_y| - N ln sigma^2 - N + sigma^2 tr K_y^-1 + a^T K a)/2
    The computed `a` is not exactly K_y^-1 y. KL is that of the Q with mean K a for this `a`.
        K               (N, N): the covariance of f at the N rows under the prior P
        ln_noise        ln sigma^2
        K_error [y^2]   bound on the error of an entry of K
        unit            relative error of a sum, see the head of this file

    An error E of K_y or of L L^T changes K_y^-1 by K_y^-1 E K_y^-1. An error F of L^-1 L, |F| <=
    unit |L^-1| |L|, changes K_y^-1 by L^-T F L^-1 and its transpose. The sum of these two terms is
    at most 2 unit |L^-T| |L^-1| (|L| |L^-1|). Here the entry i, j of |L| |L^-1| is at most
    ((K_y)_ii (K_y^-1)_jj)^(1/2), by Cauchy-Schwarz. ValueError if K_y is not positive definite.
    """
    N = len(y)
    sigma2, ln_det, Linv, m, a = noisy_factors(K, y, ln_noise)
    K_y_inv = Linv.T @ Linv
    mean = K @ a
    var = sigma2 - sigma2**2 * np.diag(K_y_inv)
    terms = np.array([ln_det, -N * ln_noise, -N, sigma2 * np.trace(K_y_inv), a @ mean]) / 2

    E = K_error + unit * sigma2
    size = np.abs(Linv)
    K_size = np.abs(K)
    a_size = size.T @ np.abs(m)
    rows = np.abs(K_y_inv).sum(1)
    K_y_max = K_size.max() + sigma2
    factor_size = np.sqrt(K_y_max * np.diag(K_y_inv))
    F = 2 * unit * factor_size * (size.T @ size.sum(1))
    K_a_size = K_size @ np.abs(a)
    of_aKa = np.abs(mean) @ a_size + np.abs(a) @ K_a_size
    sums = of_aKa + np.abs(terms).sum()
    of_inverse = np.abs(K_y_inv - sigma2 * K_y_inv @ K_y_inv).sum()
    of_trace = E * of_inverse + sigma2 * F.sum()

    var_error = sigma2**2 * (E * rows**2 + F) + 4 * ULP * sigma2
    of_K = K_error * np.abs(a).sum() ** 2
    KL_error = (of_trace + of_K) / 2 + unit * sums
    return (Linv, m), (var, terms.sum()), (var_error, KL_error)


@in_doubles
def enclosed_stored(posterior, X, ln_noise, var, KL, var_error, KL_error):
    """Returns the Enclosed of a full GP at the rows X (n, d) that certify.

        posterior            the StoredPosterior of this GP
        ln_noise             ln of the noise variance that Q has in these rows
        var, KL              (n,) [y^2], [nats]: by (6) and (8), from enclosed_gaussian
        var_error, KL_error  their rounding errors, also from there

    The stored arrays predict a variance other than `var`, since L^-1 is rounded. The errors
    returned hold for both variances and for the KL that belongs to each. A change dvar of the
    variances changes KL by -sum dvar/(2 sigma^2), to first order, since dQ/dP is N(y | f, sigma^2)
    up to a constant.
    """
    mean, stored_var, mean_error, stored_error = enclosed_at(posterior, X)
    off = stored_error + np.abs(stored_var - var)
    of_var = np.sum(off + var_error) / (2 * np.exp(ln_noise))
    return Enclosed(posterior, mean, var, KL, mean_error, np.maximum(off, var_error),
                    KL_error + of_var)


@in_doubles
def enclosed_full(X, y, ln_theta, ln_noise, kernel=se_kernel):
    """Returns the Enclosed of the full GP given X (N, d), y (N,), at the rows X; R (6), (8).

    Other arguments as in full_gp of pacgp_ref.py. ValueError for a kernel that is not in KERNELS.
    """
    k = signal_variance(ln_theta)
    K, ulps = exact_kernel(kernel, X, X, ln_theta)
    unit = 4 * ULP * (ulps + len(y))
    (Linv, m), of_Q, errors = enclosed_gaussian(K, y, ln_noise, unit * k, unit)
    posterior = StoredPosterior(X.copy(), Linv, ln_theta, m, np.zeros((0, len(m))), kernel)
    return enclosed_stored(posterior, X, ln_noise, *of_Q, *errors)


@in_doubles
def enclosed_full_given(X1, y1, X, y, ln_theta, ln_noise, temper, kernel=se_kernel):
    """The full GP given (X1, y1) and (X, y), as an Enclosed at X (n, d), for prior_from_part.

    The prior P is the GP given (X1, y1) alone, see prior_from_part of beyond/certificates.py:
        P at X:  N(V m1, K),   V = k(X, X1) L1^-T,   K = k(X, X) - V V^T
        Q at X:  V m1 plus the GP of (6), (8) with kernel matrix K, targets y - V m1 and noise
                 e^temper sigma_n^2

        X1, y1               (n1, d), (n1,): the rows that choose the prior
        X, y                 (n, d), (n,): the rows that certify
        ln_theta, ln_noise   (T,), ln sigma_n^2: the noise variance in the rows X1
        temper               the noise variance is e^temper times as large in the rows X as in X1
        kernel               a function in KERNELS

    L1 and m1 are L and m of the GP given (X1, y1); L2 and m2 are those of the GP with K and
    y - V m1. Q is stored as one GP given all rows; the lower left block of its L^-1 is
    -L2^-1 V L1^-1. The rounding of this block moves the mean of Q at X by some dmean, and so KL by
    a^T dmean. Here a = L2^-T m2 = K^-1 (mean of Q - mean of P) is the gradient of KL w.r.t. the
    mean of Q.
    """
    n = len(X)
    n1 = len(X1)
    K1, ulps1 = exact_kernel(kernel, X1, X1, ln_theta)
    _, _, Linv1, m1, _ = noisy_factors(K1, y1, ln_noise)
    prior = StoredPosterior(X1, Linv1, ln_theta, m1, np.zeros((0, n1)), kernel)
    mean1, _, _, var_error = enclosed_at(prior, X)
    K_21, ulps21 = exact_kernel(kernel, X, X1, ln_theta)
    V = K_21 @ Linv1.T
    K2, ulps2 = exact_kernel(kernel, X, X, ln_theta)
    K = K2 - V @ V.T

    unit = 4 * ULP * (max(ulps1, ulps21, ulps2) + n + n1)
    K_y1 = signal_variance(ln_theta) + np.exp(ln_noise)
    rows1 = np.abs(Linv1).sum(1)
    by_K_y1 = np.max(np.abs(V @ Linv1).sum(1)) ** 2      # E of part 1
    by_inverse = 2 * np.max(np.abs(V) @ rows1)         # F of part 1
    K_error = np.max(var_error) + unit * K_y1 * (by_K_y1 + by_inverse)
    (Linv2, m2), (var, KL), (var_error, KL_error) = enclosed_gaussian(
        K, y - mean1, ln_noise + temper, K_error, unit)

    below = -Linv2 @ V @ Linv1
    Linv = np.block([[Linv1, np.zeros((n1, n))], [below, Linv2]])
    Z = np.concatenate([X1, X])
    m = np.concatenate([m1, m2])
    posterior = StoredPosterior(Z, Linv, ln_theta, m, np.zeros((0, n1 + n)), kernel)
    below_moved = unit * (np.abs(m2) @ np.abs(Linv2) @ np.abs(V) @ np.abs(Linv1))
    mean_moved = np.abs(K_21) @ below_moved
    KL_error += np.abs(Linv2.T @ m2) @ mean_moved
    return enclosed_stored(posterior, X, ln_noise + temper, var, KL, var_error, KL_error)


# --- the sparse GP -------------------------------------------------------------------------------

@in_doubles
def enclosed_sparse(X, Z, ln_theta, m, root, prior=None, kernel=se_kernel, over=map):
    """The sparse GP with posterior (m, root), as an Enclosed at X (N, d); R (9), (10), (22), (23).

        Z, ln_theta   (M, d), (T,)
        m, root       (M,), (M, M) triangular: with S = root^T root, N(m, S) is Q in the coordinates
                      where P is N(0, I)
        prior         None: f_M is N(0, L L^T) under P, N(L m, L S L^T) under Q. (m1, root1): f_M is
                      N(L m1, L root1^T root1 L^T) under P, and
                      N(L (m1 + root1^T m), L root1^T S root1 L^T) under Q
        kernel        a function in KERNELS
        over          map, or a pool's equivalent

    L is the exact inverse of L^-1 as stored. ValueError where rounding may change K_MM by as much
    as the jitter.
    """
    M = len(Z)
    k = signal_variance(ln_theta)
    unit = 4 * ULP * (M + 8)
    K_MM, ulps = exact_kernel(kernel, Z, Z, ln_theta)
    check_digits(M, ulps)
    of_K = f"K_MM with a jitter of {JITTER:g} sigma_s^2"
    Linv = tri_inv(cholesky(K_MM + JITTER * k * np.eye(M), of_K))
    check_jitter(K_MM, Linv, k)
    ln_det = 2 * np.log(np.abs(np.diag(root)))
    terms = np.array([np.sum(root**2), -ln_det.sum(), m @ m, -M]) / 2
    KL_error = unit * (np.abs(terms).sum() + np.abs(ln_det).sum())
    if prior:                   # m, root are rounded: how far that moves Q from P
        m1, root1 = prior
        to_prior = tri_inv(root1)
        m_size = np.abs(m1) + np.abs(root1.T) @ np.abs(m)
        root_moved = np.abs((root - tri_inv(root).T) @ to_prior.T)
        of_root = np.sum(root_moved * (np.abs(root) @ np.abs(root1)))
        KL_error += unit * (np.abs(to_prior @ m) @ m_size + of_root)
        m = m1 + root1.T @ m
        root = root @ root1
    posterior = StoredPosterior(Z, Linv, ln_theta, m, root, kernel)
    mean, var, *errors = enclosed_at(posterior, X, over)
    return Enclosed(posterior, mean, var, terms.sum(), *errors, KL_error)


@in_doubles
def enclosed_sparse_given(X1, y1, X, y, Z, ln_theta, ln_noise, alpha, temper, kernel=se_kernel,
                          over=map):
    """The sparse GP given (X1, y1) and (X, y), as an Enclosed at X (n, d).

    The prior P is the GP given (X1, y1) alone: under P, L^-1 f_M is N(m1, S1), with m1 and S1 by
    (11). In the coordinates where P is N(0, I), Q is N(m', S'), again by (11). Here V and D are
    those of the rows X, with the noise variance e^temper sigma_n^2 in D:
        S1 = root1^T root1,   S'^-1 = I + root1 V^T D^-1 V root1^T,
        m' = S' root1 V^T D^-1 (y - V m1)
    Z (M, d) and alpha are as in sparse_gp of pacgp_ref.py; other arguments as in
    enclosed_full_given.
    """
    one = posterior_in_blocks(X1, y1, Z, ln_theta, ln_noise, alpha, kernel, over)
    m1 = one.m
    root1 = one.root
    prior = StoredPosterior(Z, one.Linv, ln_theta, m1, root1, kernel)
    mean1, _ = predict_in_blocks(prior, X, over)
    noise = ln_noise + temper
    two = posterior_in_blocks(X, y - mean1, Z, ln_theta, noise, alpha, kernel, over)
    precision = np.eye(len(Z)) + root1 @ two.A @ root1.T
    root = tri_inv(cholesky(precision, "the precision of Q"))
    m = root.T @ (root @ (root1 @ two.b))
    return enclosed_sparse(X, Z, ln_theta, m, root, (m1, root1), kernel, over)


# --- marginals of rows ---------------------------------------------------------------------------

@in_doubles
def enclosed_at(posterior, X, over=map):
    """Returns [mean, var, mean_error, var_error], (n,) each, of a StoredPosterior at X (n, d).

    mean and var are of f, without noise; mean_error and var_error bound their rounding errors.
    over: map, or a pool's equivalent.
    """
    Z, Linv, ln_theta, m, root, kernel = posterior
    blocks = in_blocks(X, None, (Z, ln_theta, Linv, kernel), keep=False)
    parts = total(over, partial(block_enclosed, m=m, root=root), blocks)
    return [np.concatenate(part) for part in parts]


@in_doubles
def block_enclosed(rows, m, root):
    """Returns mean and variance at the rows of a block, then bounds on their rounding errors.

    They are four lists, each of one array (n,). `total` joins the lists of all blocks.
    rows: the block, a Rows; m, root: of a StoredPosterior.
    """
    Z, ln_theta, Linv, kernel = rows.inducing
    K, ulps = exact_kernel(kernel, rows.X, Z, ln_theta)
    k = signal_variance(ln_theta)
    return [[a] for a in enclosed_marginals(K, Linv, k, m, root, ulps)]


@in_doubles
def enclosed_marginals(K, Linv, k, m, root, ulps):
    """Returns mean and variance of f at n rows, then bounds on their rounding errors: (n,) each.

        V = K L^-T, U = V root^T, mean = V m, var_i = k - |V_i|^2 + |U_i|^2
    With unit = 4 (ulps + M) ulp, V_ij errs by at most unit k |row j of L^-1|_1. The sum over the
    products in U_ij errs by at most unit |V_i| |row j of root|.
        K               (n, M): k(x, Z), each entry of which errs by at most `ulps` ulp of k
        k               k(x, x)
        Linv, m, root   of a StoredPosterior
    """
    unit = 4 * ULP * (ulps + len(m))
    V = K @ Linv.T
    U = V @ root.T
    svar = row_dots(U, U)
    var = k - row_dots(V, V) + svar

    rows1 = np.abs(Linv).sum(1)
    V_size = np.abs(V)
    V_norm = np.linalg.norm(V, axis=1)
    root_norm = np.linalg.norm(root, axis=1)
    U_moved = V_norm * (np.abs(U) @ root_norm)
    by_V = (V_size + np.abs(U @ root)) @ rows1
    m_size = np.abs(m)
    mean_error = unit * (k * (rows1 @ m_size) + V_size @ m_size)
    var_error = unit * (2 * k * by_V + 2 * U_moved + k + svar)
    return V @ m, var, mean_error, var_error


# --- risk, KL and bound, rounded up --------------------------------------------------------------

@in_doubles
def farthest_mean(y, enclosed):
    """Returns the mean (n,) [y] farthest from y (n,) within the rounding error of the mean.

    enclosed: an Enclosed at the n rows. The rounding of mean - y is counted as well.
    """
    mean = enclosed.mean
    check_shapes("y and mean", y, mean)
    moved = enclosed.mean_error + 4 * ULP * (np.abs(y) + np.abs(mean))
    return mean + np.copysign(moved, mean - y)


@in_doubles
def losses_of_mean(y, enclosed, eps, loss):
    """The loss (n,), rounded up, of predicting by the mean of Q, not by a draw from it.

    This is the loss R (18)-(21) at the mean farthest from y within the mean's rounding error, since
    each loss grows with |mean - y|. So "01" and "band" are 1 wherever rounding may hide a miss.
        y          (n,): targets
        enclosed   the Enclosed of Q at these rows
        eps        tolerance of the loss [y], a fraction of |y| for "band" and "relative"
        loss       "01", "band", "square", "exp" or "relative"
    """
    off = np.abs(farthest_mean(y, enclosed) - y)
    goal = np.nextafter(eps * (np.abs(y) if loss in RELATIVE_LOSSES else 1.0), 0.0)
    if loss in ZERO_ONE_LOSSES:
        return 1.0 * (off > goal)                                      # R (18), R (21): rounded up
    with np.errstate(over="ignore", divide="ignore"):
        share = np.divide(off, goal, out=np.zeros(len(off)), where=off > 0)
        at_share = AT_SHARE[loss](share)
    return np.minimum(at_share + LOSS_ERROR, 1.0)


@in_doubles
def risk_from_above(y, enclosed, eps, loss, floor):
    """The empirical risk R_S(Q) at targets y (n,), rounded up: a number in [0, 1].

        enclosed    the Enclosed of Q at these rows
        eps, loss   as in losses_of_mean
        floor       [y^2]: smaller variances are replaced by it

    Expected losses are taken at the worst mean and variance within their rounding errors. Every
    expected loss here grows with |mean - y| and falls with eps. Over the short interval of possible
    variances it is largest at an end. The exception is "square", since it is clipped at 1: its
    expectation grows over the interval by at most 1/eps^2 times the interval's length. The rounding
    of eps |y| is counted as well.

    ValueError for another loss, and if a variance is below 0 by more than its rounding error.
    """
    check_choice("loss", loss, (*ZERO_ONE_LOSSES, *AT_SHARE))
    var, var_error = enclosed.var, enclosed.var_error
    if np.any(var < -var_error):
        raise ValueError(f"a variance is {var.min():.3g}, below 0 by more than rounding: "
                         "the kernel lost digits")
    worst = farthest_mean(y, enclosed)
    goal = eps * (1 - 4 * ULP)
    low, high = (np.maximum(var + sign * var_error, floor) for sign in (-1, 1))
    at_low = LOSSES[loss](y, worst, low, goal)[0]
    if loss == "square":
        above = np.minimum(at_low + 2 * var_error / goal**2, 1.0)
    else:
        above = np.maximum(at_low, LOSSES[loss](y, worst, high, goal)[0])
    return min(mean_loss(np.sum(above), len(above)) + LOSS_ERROR, 1.0)


def KL_from_above(KL, error):
    """Returns a KL divergence [nats], rounded up: max(KL, 0) + error.

    error: a bound on the rounding error of KL. ValueError if KL is below -error or not finite.
    """
    if not -error <= KL < math.inf:
        raise ValueError(f"the KL divergence is {KL:.3g}, infinite or below 0 by more than "
                         "rounding: the kernel lost digits")
    return max(float(KL), 0.0) + float(error)


class Certified(NamedTuple):
    """A Fit with its risk R_S, KL and bounds rounded up: never below those of the stored posterior.

    If prior_rows = 0, theta is on the grid Theta. Otherwise theta is as trained, so the penalty has
    no ln|Theta|, and the Z of a full GP begins with the rows that chose the prior.
    """
    fit: Fit                   # R_S, KL, bound and pinsker rounded up, on N rows
    prior_rows: int = 0        # rows that chose the prior and are not among the N: 0 in the paper
    temper: float = 0.0        # Q has the noise sigma_n^2 in those rows and e^temper sigma_n^2 in
                               # the N
    strict: bool = True        # whether rounding is counted
    # as of a Fit
    loss = property(lambda self: self.fit.loss)
    eps = property(lambda self: self.fit.eps)
    ln_noise = property(lambda self: self.fit.ln_noise)
    posterior = property(lambda self: self.fit.posterior)


@in_doubles
def from_above(fit, enclosed, y, prior_rows=0, temper=0.0):
    """Returns a Certified: its Fit is `fit` with the R_S, KL and bounds of Q, rounded up.

        fit                  a Fit, whose loss, eps, penalty and ln_confidence are used
        enclosed             the Enclosed of Q at the rows that certify
        y                    (N,): the targets of these rows
        prior_rows, temper   as in Certified
    """
    floor = VAR_FLOOR**2 * signal_variance(enclosed.posterior.ln_theta)
    R_S = risk_from_above(y, enclosed, fit.eps, fit.loss, floor)
    KL = KL_from_above(enclosed.KL, enclosed.KL_error)
    complexity = (KL + fit.penalty + fit.ln_confidence) / len(y)
    fit = fit._replace(
        R_S=R_S, KL=KL, bound=kl_inv(R_S, complexity), pinsker=R_S + math.sqrt(complexity / 2),
        N=len(y), posterior=enclosed.posterior)
    return Certified(fit, prior_rows, temper)


@in_doubles
def strict(fit, X, y, over=map):
    """Rounds R_S, KL and bounds of a Fit up, by the error of their evaluation: returns a Certified.

        fit    the Fit; if it is already a Certified, it is returned unchanged
        X, y   (N, d), (N,): the data that `fit` was given
        over   map, or a pool's equivalent
    ValueError for bad input.
    """
    if getattr(fit, "_fields", ()) == Certified._fields:
        return fit
    check_kind("fit", fit, Fit, "fit")
    X, y = check_data(X, y, copy=False, d=fit.Z.shape[1])
    family, _ = METHODS[fit.method]
    if FAMILIES[family].inducing:
        q = fit.posterior
        enclosed = enclosed_sparse(X, q.Z, q.ln_theta, q.m, q.root, kernel=q.kernel, over=over)
    else:
        enclosed = enclosed_full(X, y, fit.ln_theta, fit.ln_noise, fit.kernel)
    return from_above(fit, enclosed, y)
