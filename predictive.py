"""Parametric Gaussian process regressors, in NumPy, equation by equation.

M. Jankowiak, G. Pleiss, J. R. Gardner: Parametric Gaussian Process Regressors, ICML 2020. Tag: J.
A comment, # and J (n), marks the statement that computes Eq. (n). README.md defines `value,
back`, `d_x` and the symbols that the papers share. docs/reading-J.md has each equation beside its
lines.

The idea. At each training point an objective needs five numbers: the target y, the mean, and three
variances that add up to the predictive variance, J (14), J (22):

    Var[y] = sigma2 + ktilde + svar

    sigma2   observation noise
    ktilde   variance of f given u
    svar     variance from u under q(u)

What is minimised is -L/N [nats per data point]. A batch of B data points estimates it without bias:

    -(1/B) sum_i g_i + (beta_reg/N) reg,   g = ln N(y | mean, v) - w/(2 v),   v + w = Var[y]

v is the variance that the likelihood sees, w the variance that Jensen's inequality charges for:

    method        v                       w              mean                       L_S
    MAP           sigma2                  ktilde         V m                        none, S = 0
    SVGP          sigma2                  ktilde + svar  V m                        (M, M)
    OD-SVGP       sigma2                  ktilde + svar  V (m - C a) + K_mean a     (M, M)
    VFITC         sigma2 + ktilde         svar           V m                        (M, M)
    PPGPR-delta   sigma2 + ktilde         0              V m                        none, S = 0
    PPGPR-MF      sigma2 + ktilde + svar  0              V m                        (M,)
    PPGPR-Chol    sigma2 + ktilde + svar  0              V m                        (M, M)
    PPGPR-MFD     sigma2 + ktilde + svar  0              k(X, Z_mean) L_mean^-T m   (M,)
    gamma-robust  another g: gamma_fit                   V m                        (M, M)
    FITC, exact   -ln p(y)/N, J (13), J (2)

Everything is whitened (App. E): V = k(X, Z) L^-T, ktilde_i = k - |V_i|^2, svar_i = |V_i L_S|^2. reg
is KL(q(u')||N(0, I)), without L_S |m|^2/2; orthogonal_mean has OD-SVGP's. A diagonal S of u' (App.
E) and a diagonal S of u (Sec. 3.4) are different families. For MAP, PPGPR-delta and PPGPR-MFD
whitening changes the objective: it drops ln|K|/2 from the regulariser, K = K_MM or, for MFD,
k(Z_mean, Z_mean).

    paper            code      shape       meaning, unit
    z_m              Z         (M, d)      inducing inputs of q(u)
                     Z_mean    (M', d)     MFD, OD: those of the mean; m of MFD is (M',)
                     a         (M',)       OD: weights of the orthogonal part of the mean
    S                L_S       (M[, M])    S = L_S L_S^T, or the standard deviations of a diagonal S
    theta_ker        ln_theta  (T,)        as in pacgp_ref; of `periodic` with ln periods
    sigma_obs^2      ln_noise  scalar      ln of the noise variance
                     svar      (N,)        J (8) less ktilde [y^2]
    beta_reg, gamma  the same  scalar      weight of reg; exponent of the robust loss

Parameters are a dict p: ln_theta, ln_noise and, by method, Z, m, L_S, Z_mean, a. Gradients are
dicts with its keys, and X where inputs have a gradient. beta_reg is that of J (18), a sum over data
points; J (17) is a mean, whose weight is beta_reg/N. The mean function is zero.

Equations without code of their own: (1) and (26) are joint densities; (5) is no equality in its
first line: the expectation of (3) bounds E ln p(y, u) from below; (10), given u, is what (11)
integrates; (12) is what (13) integrates; (16) drops the entropy of the data, a constant; (27) is
estimated by PPGPR's data term (not MFD's: it has no single q(u)); (28) is by VFITC's, and with f in
place of u by SVGP's; (29)-(34) are BB-alpha: (33) at alpha = 1, which is (34), is
PPGPR's objective at beta_reg = 1, and for alpha -> 0 (33) tends to VFITC's (f integrated out of
each factor) or SVGP's (f kept). In (30) the paper calls q the cavity: it is the approximation. What
(33) drops of (31) vanishes for alpha -> 0, not for N -> infinity at alpha = 1. The tests confirm
each numerically; docs/misprints.md lists all misprints.
"""
import math
from functools import partial
from typing import Callable, NamedTuple

import numpy as np

from pacgp_ref import (LN_BOX, STOPPED, TINY, VAR_FLOOR, adam, as_float, check_array,
                       check_choice, check_columns, check_count, check_data, check_flag,
                       check_kernel, check_kind, check_scalar, check_shapes, check_signal,
                       data_sums, full_gp_nll, gaussian_posterior, in_doubles, inverse_cholesky,
                       kmeans, ln_se_kernel, minimum, noisy_factors, norm_cdf, norm_pdf,
                       row_blocks, row_dots, se_kernel, se_start, signal_variance, sparse_nll,
                       start_of, warn_unscaled, with_start)


# Start of l, periods, signal and noise variance: softplus(0), as in GPyTorch, which the paper used.
# The optimum depends on it: from l^2 = d, sigma_k^2 = 1, sigma_obs^2 = 0.1, SVGP has 30 % more RMSE
# on kin40k.
START = math.log(2)
# Shares of the epochs after which the rate falls to a tenth. J App. C.3: at 100 and 150 of 200;
# App. C.1 says "progressively decimated" only.
MILESTONES = (0.5, 0.75)
# Start of a diagonal L_S; a full one starts at I. From 1, PPGPR-MFD on pol ends with a lower NLL,
# but with 1.6 times the RMSE and a larger CRPS: it explains misfit by variance.
START_STD = 0.01
# J App. C.1: what the validation set chooses from; the others have beta_reg = 1.
BETAS = {
    **dict.fromkeys(("SVGP", "OD-SVGP", "VFITC"), (0.1, 0.3, 0.5, 1.0)),
    **dict.fromkeys(("PPGPR-delta", "PPGPR-MF", "PPGPR-Chol", "PPGPR-MFD"), (0.01, 0.05, 0.2, 1.0)),
}
GAMMAS = (1.01, 1.03, 1.05, 1.07)


# --- kernels --------------------------------------------------------------------------------------
# kernel(X1, X2, ln_theta, by_differences=False) -> K, back, as se_kernel of pacgp_ref. Matern's
# depend on E = -r^2/2, r^2 = sum_k (x1_k - x2_k)^2 / l_k^2: dK = dK/dE dE + K d ln sigma_k^2.

def of_distance(X1, X2, ln_theta, by_differences=False):
    """E = -r^2/2 (N1, N2) and back: ln_se_kernel of pacgp_ref at sigma_s^2 = 1."""
    return ln_se_kernel(X1, X2, np.append(as_float(ln_theta)[:-1], 0.0), by_differences)


@in_doubles
def matern32(X1, X2, ln_theta, by_differences=False):
    """K = sigma_k^2 (1 + u) exp(-u), u = sqrt(3) r, and back; arguments and back as se_kernel.

    dK/dE = 3 sigma_k^2 exp(-u).
    """
    E, E_back = of_distance(X1, X2, ln_theta, by_differences)
    u = np.sqrt(np.maximum(-6 * E, TINY))       # rounding may leave E above 0
    decay = np.exp(ln_theta[-1] - u)
    K = np.minimum((1 + u) * decay, np.exp(ln_theta[-1]))

    def back(d_K, of_X1=True):
        d_ln_theta, d_X1, d_X2 = E_back(3 * d_K * decay, of_X1)
        d_ln_theta[-1] = np.vdot(d_K, K)
        return d_ln_theta, d_X1, d_X2
    return K, back


@in_doubles
def matern52(X1, X2, ln_theta, by_differences=False):
    """K = sigma_k^2 (1 + u + u^2/3) exp(-u), u = sqrt(5) r, and back; see matern32.

    dK/dE = 5/3 sigma_k^2 (1 + u) exp(-u). The paper says Matern without the 5/2, the default of
    GPyTorch.
    """
    E, E_back = of_distance(X1, X2, ln_theta, by_differences)
    u2 = np.maximum(-10 * E, TINY)
    u = np.sqrt(u2)
    decay = np.exp(ln_theta[-1] - u)
    K_1 = (1 + u) * decay
    K = np.minimum(K_1 + u2 / 3 * decay, np.exp(ln_theta[-1]))

    def back(d_K, of_X1=True):
        d_ln_theta, d_X1, d_X2 = E_back(5 / 3 * d_K * K_1, of_X1)
        d_ln_theta[-1] = np.vdot(d_K, K)
        return d_ln_theta, d_X1, d_X2
    return K, back


def _on_circle(X, ln_period):
    """U = (cos a, sin a) (N, 2d), a = 2 pi X / period, and back(d_U), d_X (N, d) and d_ln_period.

        d cos a = -sin a da,   d sin a = cos a da,   da/d ln p = -a
    """
    d = X.shape[1]
    angle = 2 * np.pi * X * np.exp(-ln_period)
    U = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)

    def back(d_U):
        d_a = U[:, :d] * d_U[:, d:] - U[:, d:] * d_U[:, :d]
        d_X = d_a * 2 * np.pi * np.exp(-ln_period)
        return d_X, -np.sum(d_X * X, 0)
    return U, back


@in_doubles
def centre(X2, ln_period):
    """The origin of phases (d,): 0, or the mean of X2 where X2 reaches a thousand periods."""
    periods_away = np.max(np.abs(X2), 0) * np.exp(-ln_period)
    return np.where(periods_away < 1000, 0.0, np.sum(X2 / len(X2), 0))


@in_doubles
def periodic(X1, X2, ln_theta, by_differences=False):
    """The periodic kernel, which is SE on circles, and back; arguments and back as se_kernel.

        sigma_k^2 exp(-2 sum_k sin^2(pi (x1_k - x2_k)/p_k)/l_k^2)

    ln_theta (2d+1,): ln of (l_1^2 .. l_d^2, p_1 .. p_d, sigma_k^2); ValueError for another shape.
    Phases are counted from `centre`: the error is as many ulp as there are periods between inputs.
    """
    d = X1.shape[1]
    if X2.shape[1] != d or np.shape(ln_theta) != (2 * d + 1,):
        raise ValueError(f"ln_theta must have {2 * d + 1} entries for {d} columns, X2 as many "
                         f"columns: got {np.shape(ln_theta)}, {X2.shape[1]}")
    ln_period = ln_theta[d:2 * d]
    origin = centre(X2, ln_period)
    U1, U1_back = _on_circle(X1 - origin, ln_period)
    U2, U2_back = _on_circle(X2 - origin, ln_period)
    theta = np.concatenate([ln_theta[:d], ln_theta[:d], ln_theta[-1:]])
    K, K_back = se_kernel(U1, U2, theta, by_differences)

    def back(d_K, of_X1=True):
        d_theta, d_U1, d_U2 = K_back(d_K)
        d_X1, d_ln_period1 = U1_back(d_U1)
        d_X2, d_ln_period2 = U2_back(d_U2)
        d_ln_l2 = d_theta[:d] + d_theta[d:2 * d]
        d_ln_period = d_ln_period1 + d_ln_period2
        return np.concatenate([d_ln_l2, d_ln_period, d_theta[-1:]]), d_X1, d_X2
    return K, back


matern32.start = se_start
matern52.start = se_start


def periodic_start(d, ard=True):
    """ln of l_k^2 = d, p_k = 2 pi, sigma_s^2 = 1: near 0 the SE kernel of se_start."""
    return np.concatenate([np.full(d, math.log(d)), np.full(d, math.log(2 * math.pi)), [0.0]])


periodic.start = periodic_start


def softplus_start(kernel, d, ard=True):
    """ln_theta where lengthscales, periods and signal variance are START.

    A kernel that is not the paper's, with a `start` of its own, has that: see start_of.
    """
    ln_theta = start_of(kernel, d, ard)
    if hasattr(kernel, "start") and kernel not in (se_kernel, matern32, matern52, periodic):
        return ln_theta
    lengths = d if kernel is periodic else len(ln_theta) - 1
    others = len(ln_theta) - lengths
    return math.log(START) * np.concatenate([np.full(lengths, 2.0), np.ones(others)])


@in_doubles
def likely_periods(X, y, ln_theta, ln_noise, rng):
    """ln_theta (2d+1,) of `periodic` with the most likely periods; X (N, d), y (N,).

    The likelihood has narrow peaks, which gradients do not find from afar. So the periods 4 span/j,
    j = 1 .. min(2 N, 400), are tried one column at a time on 100 random data points; the columns
    not yet tried have the period span. A product of waves in several columns may be missed. Adam
    stays on a peak only if its rate is well below period/span.
    """
    N, d = X.shape
    rows = rng.permutation(N)[:100]
    span = np.ptp(X, axis=0)
    span[span == 0] = 1.0
    ln_theta = ln_theta.copy()
    ln_theta[d:2 * d] = np.log(span)

    def nll(k, ln_period):
        ln_theta[d + k] = ln_period
        value, _ = full_gp_nll(X[rows], y[rows], ln_theta, ln_noise, periodic)
        return value
    for k in range(d):
        tried = np.log(4 * span[k] / np.arange(1, min(2 * N, 400) + 1))
        ln_theta[d + k] = min(tried, key=partial(nll, k))
    return ln_theta


KERNELS = {            # name -> kernel
    "SE": se_kernel,
    "Matern32": matern32,
    "Matern52": matern52,
    "periodic": periodic,
}


# --- whitened features: J App. E ------------------------------------------------------------------

@in_doubles
def whitened_features(X, Z, ln_theta, kernel=matern52):
    """(V, ktilde), back: V = k(X, Z) L^-T (N, M) and ktilde_i = k - |V_i|^2 (N,) [y^2]; J App. E.

    f(x_i) = V_i u' + a part independent of u', of variance ktilde_i. Where ktilde is rounded to
    below VAR_FLOOR k, it is set to that floor and has no gradient.

    App. E omits a transpose in the whitened mean, k_i^T L^-T u', and in the whitened S, L^-1 S L^-T
    (twice): as printed both hold only for a symmetric root. Its bound prints sigma_obs for
    sigma_obs^2, twice.

    back(d_V, d_ktilde) returns d_ln_theta (T,), d_X (N, d), d_Z (M, d):
        dktilde_i = dk - 2 V_i dV_i,   d_K_NM = d_V L^-1
    """
    Linv, Linv_back = inverse_cholesky(Z, ln_theta, kernel)
    K_NM, K_back = kernel(X, Z, ln_theta)
    k = signal_variance(ln_theta)
    floor = VAR_FLOOR * k
    V = K_NM @ Linv.T
    ktilde = k - row_dots(V, V)                                     # J (4): ktilde = k - |V_i|^2

    def back(d_V, d_ktilde):
        d_ktilde = d_ktilde * (ktilde > floor)
        d_V = d_V - (2 * d_ktilde)[:, None] * V
        d_ln_theta_MM, d_Z_MM = Linv_back(d_V.T @ V)
        d_ln_theta, d_X, d_Z = K_back(d_V @ Linv)
        d_ln_theta[..., -1] += np.exp(ln_theta[..., -1]) * d_ktilde.sum()
        return d_ln_theta + d_ln_theta_MM, d_X, d_Z + d_Z_MM
    return (V, np.maximum(ktilde, floor)), back


# --- the marginals of f at the data: J (7), J (8), J (24), J (25) ---------------------------------
# Three means. Each takes (p, X, V, kernel) and returns (mean (N,), reg), back: reg is the mean's
# part of the regulariser, back(d_mean, d_reg) a dict of gradients w.r.t. V (N, M), X and
# parameters.

@in_doubles
def shared_mean(p, X, V, kernel):
    """mean = V m, reg = |m|^2/2, and back: the mean has the inducing inputs of the variance.

    d_V = d_mean m^T,   d_m = V^T d_mean + d_reg m
    """
    m = p["m"]
    mean = V @ m                                                    # J (7): mean = V m

    def back(d_mean, d_reg):
        return dict(V=np.outer(d_mean, m), m=V.T @ d_mean + d_reg * m)
    return (mean, m @ m / 2), back


@in_doubles
def separate_mean(p, X, V, kernel):
    """mean = k(X, Z_mean) L_mean^-T m, reg = |m|^2/2, and back: MFD. In full PPGPR-MFD minimises

        -(1/B) sum_i ln N(y_i | k(x_i, Z_mean) L_mean^-T m, sigma2 + ktilde_i + |V_i L_S|^2)
        + beta_reg/(2N) (|m|^2 + sum L_S^2 - sum ln L_S^2 - M),      V = k(X, Z) L^-T

    d_m = L_mean^-1 K^T d_mean + d_reg m,   d_K = d_mean (L_mean^-T m)^T,   K = k(X, Z_mean);
    with V_mean = K L_mean^-T:  d_V_mean = d_mean m^T,
    gram = d_V_mean^T V_mean = m (V_mean^T d_mean)^T
    """
    m, Z_mean, ln_theta = p["m"], p["Z_mean"], p["ln_theta"]
    Linv, Linv_back = inverse_cholesky(Z_mean, ln_theta, kernel)
    K, K_back = kernel(X, Z_mean, ln_theta)
    weights = Linv.T @ m
    mean = K @ weights                                              # J (24): mean = K L_mean^-T m

    def back(d_mean, d_reg):
        V_d_mean = Linv @ (K.T @ d_mean)
        d_ln_theta_MM, d_Z_MM = Linv_back(np.outer(m, V_d_mean))
        d_ln_theta, d_X, d_Z = K_back(np.outer(d_mean, weights))
        return dict(m=V_d_mean + d_reg * m, ln_theta=d_ln_theta + d_ln_theta_MM,
                    X=d_X, Z_mean=d_Z + d_Z_MM)
    return (mean, m @ m / 2), back


@in_doubles
def orthogonal_mean(p, X, V, kernel):
    """mean, reg and back of OD-SVGP: a second part of the mean, orthogonal to the first.

        mean = V (m - C a) + K_mean a,   reg = (|m|^2 + a^T K_mm a - |C a|^2)/2
        K_mean = k(X, Z_mean), K_mm = k(Z_mean, Z_mean), C^T = V_mean = k(Z_mean, Z) L^-T

    Salimbeni et al. 2018.

    d_V = d_mean (m - C a)^T,   d_(C a) = -V^T d_mean - d_reg C a,
    d_K_mean = d_mean a^T,   d_K_mm = d_reg a a^T/2
    """
    m, a, Z_mean, ln_theta = p["m"], p["a"], p["Z_mean"], p["ln_theta"]
    (V_mean, _), whitened_back = whitened_features(Z_mean, p["Z"], ln_theta, kernel)
    K_mean, K_mean_back = kernel(X, Z_mean, ln_theta)
    K_mm, K_mm_back = kernel(Z_mean, Z_mean, ln_theta)
    C_a = V_mean.T @ a
    mean = V @ (m - C_a) + K_mean @ a
    reg = (m @ m + a @ K_mm @ a - C_a @ C_a) / 2

    def back(d_mean, d_reg):
        d_m = V.T @ d_mean
        d_C_a = -d_m - d_reg * C_a
        d_theta_V, d_Z_mean_V, d_Z = whitened_back(np.outer(a, d_C_a), 0 * a)
        d_theta_K, d_X, d_Z_mean_K = K_mean_back(np.outer(d_mean, a))
        d_theta_mm, _, d_Z_mm = K_mm_back(d_reg / 2 * np.outer(a, a), of_X1=False)
        d_a = V_mean @ d_C_a + K_mean.T @ d_mean + d_reg * K_mm @ a
        d_ln_theta = d_theta_V + d_theta_K + d_theta_mm
        d_Z_mean = d_Z_mean_V + d_Z_mean_K + 2 * d_Z_mm
        return dict(V=np.outer(d_mean, m - C_a), m=d_m + d_reg * m, a=d_a,
                    ln_theta=d_ln_theta, X=d_X, Z=d_Z, Z_mean=d_Z_mean)
    return (mean, reg), back


def mean_of(p):
    """The one of the three means whose parameters p holds."""
    if "a" in p:
        return orthogonal_mean
    if "Z_mean" in p:
        return separate_mean
    return shared_mean


def _times_root(V, L_S):
    """V L_S for L_S (M, M) or, of a diagonal, (M,)."""
    return V * L_S if L_S.ndim == 1 else V @ L_S


@in_doubles
def marginals_and_reg(p, X, kernel=matern52):
    """(mean, ktilde, svar, reg), back: marginals N(mean, ktilde + svar) of f at X, and reg.

        ktilde = k - |V|^2,   svar = |V L_S|^2,
        reg = KL(q(u')||N(0, I)) = (tr S - ln|S| - M + |m|^2)/2

    p        ln_theta, Z, m and what its method adds: L_S, Z_mean, a
    p.L_S    (M, M), lower triangular without 0 on its diagonal; or standard deviations (M,); none:
             S = 0 and reg = |m|^2/2, which is -ln p(u') up to a constant
    X        (N, d)

    mean and its part of reg come from mean_of(p). For MFD reg is J (23) without ln|k(Z_mean,
    Z_mean)|/2 and a constant. mean [y], ktilde, svar [y^2] are (N,).

    back(d_mean, d_ktilde, d_svar, d_reg), three (N,) and a scalar, returns a dict with the keys of
    p except ln_noise, and "X" (N, d). Contributions to one array add.
        svar = |W|^2, W = V L_S:  d_W = 2 d_svar W,   d_V = d_W L_S^T,
                                  d_L_S = tril(V^T d_W) + d_reg (L_S - diag(1/diag L_S))
    """
    L_S = p.get("L_S")
    (V, ktilde), whitened_back = whitened_features(X, p["Z"], p["ln_theta"], kernel)
    (mean, reg), mean_back = mean_of(p)(p, X, V, kernel)
    svar = np.zeros(len(X))
    if L_S is not None:
        diagonal = L_S if L_S.ndim == 1 else np.diag(L_S)
        W = _times_root(V, L_S)
        svar = row_dots(W, W)                   # J (8)  # J (25): ktilde + svar, the variance of f
        half_ln_det = np.sum(np.log(np.abs(diagonal)))
        reg = reg + np.sum(L_S**2) / 2 - half_ln_det - len(diagonal) / 2    # J (23): reg, a KL

    def back(d_mean, d_ktilde, d_svar, d_reg):
        out = dict(V=0.0, Z=0.0, X=0.0, ln_theta=0.0) | mean_back(d_mean, d_reg)
        d_V = out.pop("V")
        if L_S is not None:
            d_W = W * (2 * d_svar)[:, None]
            d_V = d_V + _times_root(d_W, L_S.T)
            if L_S.ndim == 1:
                out["L_S"] = np.einsum("ij,ij->j", V, d_W) + d_reg * (L_S - 1 / L_S)
            else:
                out["L_S"] = np.tril(V.T @ d_W) + d_reg * (L_S - np.diag(1 / np.diag(L_S)))
        d_ln_theta, d_X, d_Z = whitened_back(d_V, d_ktilde)
        out["ln_theta"] += d_ln_theta
        out["X"] += d_X
        out["Z"] += d_Z
        return out
    return (mean, ktilde, svar, reg), back


# --- the objectives: J Sec. 2.3, 3 ----------------------------------------------------------------

@in_doubles
def data_fit(y, mean, ktilde, svar, sigma2, see_ktilde=1.0, see_svar=1.0):
    """g = ln N(y | mean, v) - w/(2 v) per point [nats], and its d/d mean, ktilde, svar, sigma2.

        v = sigma2 + see_ktilde ktilde + see_svar svar,
        w = (1 - see_ktilde) ktilde + (1 - see_svar) svar,
        dg/dmean = (y - mean)/v,   dg/dv = ((y - mean)^2 + w - v) / (2 v^2),   dg/dw = -1/(2 v)

    y, mean [y], ktilde, svar [y^2] (N,); sigma2 [y^2] scalar. Returns five arrays (N,).

    g = E ln N(y | mean + sqrt(w) xi, v), xi ~ N(0, 1): the variances in v are averaged over inside
    the logarithm, those in w outside. METHODS has (see_ktilde, see_svar): (0, 0) for SVGP J (6)
    and, with svar = 0, MAP J (3); (1, 0) for VFITC J (15); (1, 1), the default, for PPGPR J (18).

    A data fit of one's own, g of fit and objective, has these arguments and results.
    """
    check_shapes("y, mean, ktilde and svar", y, mean, ktilde, svar)
    v = sigma2 + see_ktilde * ktilde + see_svar * svar
    w = (1 - see_ktilde) * ktilde + (1 - see_svar) * svar
    r = y - mean
    g = -(np.log(2 * np.pi * v) + (r**2 + w) / v) / 2         # J (6)  # J (15)  # J (18): data term
    d_v = (r**2 + w - v) / (2 * v**2)
    d_w = -1 / (2 * v)
    d_ktilde = see_ktilde * d_v + (1 - see_ktilde) * d_w
    d_svar = see_svar * d_v + (1 - see_svar) * d_w
    return g, r / v, d_ktilde, d_svar, d_v


@in_doubles
def gamma_fit(y, mean, ktilde, svar, sigma2, gamma=1.03):
    """g of the gamma-robust objective per point, J (9) corrected, and its d/d as data_fit.

        g = gamma/(gamma - 1) (E p(y|f)^(gamma-1) / (int p(z|f)^gamma dz)^((gamma-1)/gamma) - 1)

    With f ~ N(mean, F), F = ktilde + svar, p(y|f) = N(y | f, sigma2), power = gamma - 1:
        g = gamma/power (exp(h) - 1),   r = y - mean,   t = sigma2 + power F,
        h = -power/(2 gamma) ln(2 pi sigma2/gamma) - ln(1 + power F/sigma2)/2 - power r^2/(2 t),
        dh/dmean = power r/t,   dh/dF = -power/(2 t) + power^2 r^2/(2 t^2),
        dh/dsigma2 = -power/(2 gamma sigma2) + power F/(2 sigma2 t) + power r^2/(2 t^2)

    g is from the gamma divergence (Fujisawa & Eguchi 2008). For every gamma > 1 and known f (F = 0)
    the mean of g over the data is largest where p(y|f) is their density; as gamma -> 1, g tends to
    SVGP's. The paper's p(y|f)^(gamma-1) lacks the factor and the normaliser: it tends to 1, not to
    ln p(y|f), and the sigma2 that maximises it is (2 - gamma) times the true one.
    """
    check_shapes("y, mean, ktilde and svar", y, mean, ktilde, svar)
    power = gamma - 1
    F = ktilde + svar
    r = y - mean
    t = sigma2 + power * F
    ln_normaliser = -power / (2 * gamma) * np.log(2 * np.pi * sigma2 / gamma)
    h = ln_normaliser - np.log1p(power * F / sigma2) / 2 - power * r**2 / (2 * t)
    g = gamma / power * np.expm1(h)                             # J (9): gamma divergence
    weight = gamma * np.exp(h)                                  # dg = weight/power dh
    d_F = weight * (power * r**2 / t - 1) / (2 * t)
    d_sigma2 = weight * (r**2 / t**2 + F / (sigma2 * t) - 1 / (gamma * sigma2)) / 2
    return g, weight * r / t, d_F, d_F, d_sigma2      # F = ktilde + svar


@in_doubles
def batch_objective(p, X, y, N, beta_reg, g=data_fit, kernel=matern52):
    """-L/N [nats per data point], and back: an unbiased estimate from a batch of the N data points.

        value = -(1/B) sum_i g(y_i, mean_i, ktilde_i, svar_i, sigma2) + (beta_reg/N) reg

    p          ln_noise and what marginals_and_reg takes
    X, y       (B, d), (B,): the batch; with B = N the value is exact
    beta_reg   weight of reg
    g          data_fit (PPGPR's), or another of METHODS, or a function as data_fit

    ValueError unless y is (B,): a (B, 1) would broadcast to B x B terms.

    back(d_value) returns a dict with the keys of p, and "X" (B, d), for a network in front of the
    GP.

    Least cost of value and gradient, in products (B x M)(M x M), where triangular ones count 1/2:
    Chol 3 (V, V L_S, d_W L_S^T, d_L_S, d_V^T V, d_V L^-1); MF, MFD, delta 1.5 (V, d_V^T V,
    d_V L^-1); OD 1.5 on B + M' rows and 1.5 on B. The code's products are full, at 1 each. Add a
    Cholesky factor, its inverse and two triangular products, all M x M, twice for MFD.
    """
    check_shapes("y and the rows of X", y, X[:, 0])
    (mean, ktilde, svar, reg), marginals_back = marginals_and_reg(p, X, kernel)
    sigma2 = np.exp(p["ln_noise"])
    terms, *derivatives = g(y, mean, ktilde, svar, sigma2)
    reg_weight = beta_reg / N
    value = -np.mean(terms) + reg_weight * reg                  # J (17): -L/N, a mean

    def back(d_value):
        d_g = -d_value / len(y)
        d_mean, d_ktilde, d_svar, d_sigma2 = (d_g * derivative for derivative in derivatives)
        grads = marginals_back(d_mean, d_ktilde, d_svar, d_value * reg_weight)
        return dict(grads, ln_noise=sigma2 * d_sigma2.sum())
    return value, back


SVGP_FIT = partial(data_fit, see_ktilde=0.0, see_svar=0.0)      # J (21): v = sigma2
VFITC_FIT = partial(data_fit, see_ktilde=1.0, see_svar=0.0)     # J (19): v = sigma2 + ktilde
PPGPR_FIT = partial(data_fit, see_ktilde=1.0, see_svar=1.0)     # J (20): v = Var[y]
METHODS = {            # name in J Sec. 2.5, 5 -> (data fit g, variant)
    "MAP": (SVGP_FIT, "delta"),                                 # J (3): SVGP at S = 0
    "SVGP": (SVGP_FIT, "Chol"),
    "gamma-robust": (gamma_fit, "Chol"),
    "OD-SVGP": (SVGP_FIT, "OD"),
    "VFITC": (VFITC_FIT, "Chol"),
    "PPGPR-delta": (PPGPR_FIT, "delta"),
    "PPGPR-MF": (PPGPR_FIT, "MF"),
    "PPGPR-Chol": (PPGPR_FIT, "Chol"),
    "PPGPR-MFD": (PPGPR_FIT, "MFD"),
    "FITC": (None, "Z only"),                       # the data give q(u): no m, no L_S
    "exact": (None, "no Z"),
}
VARIANTS = {           # variant -> what p holds besides ln_theta and ln_noise
    "no Z": (),
    "Z only": ("Z",),
    "delta": ("Z", "m"),                            # S = 0
    "MF": ("Z", "m", "L_S"),                        # L_S (M,), as for MFD
    "Chol": ("Z", "m", "L_S"),                      # L_S (M, M), as for OD
    "MFD": ("Z", "m", "L_S", "Z_mean"),
    "OD": ("Z", "m", "L_S", "Z_mean", "a"),
}
FULL = ("Chol", "OD")  # variants with L_S (M, M)


def check_variant(p, method):
    """ValueError unless p holds the parameters of the method's variant."""
    g, variant = METHODS[check_choice("method", method, METHODS)]
    if g is None:
        raise ValueError(f"{method} has no q(u) to train: use full_gp_nll or sparse_nll")
    wanted = VARIANTS[variant]
    got = tuple(key for key in VARIANTS["OD"] if key in p)
    ndim = 1 + (variant in FULL)
    if got != wanted or "L_S" in got and p["L_S"].ndim != ndim:
        raise ValueError(f"{method} wants {', '.join(wanted)} in p, with {ndim} dimensions of "
                         f"L_S: got {', '.join(got)}")


@in_doubles
def objective(p, X, y, N, method, beta_reg, kernel=matern52, g=None):
    """value, back of batch_objective for a method.

    The table at the top of the module says what is minimised.

    p          ln_noise and the parameters of the method's variant, see VARIANTS
    method     a key of METHODS except FITC and exact, which fit minimises itself
    g          data fit in place of the method's, see data_fit

    ValueError where p holds the parameters of another variant.
    """
    check_variant(p, method)
    of_method, _ = METHODS[method]
    return batch_objective(p, X, y, N, beta_reg, g or of_method, kernel)


# --- the predictive distribution: J Sec. 2.4, App. B ----------------------------------------------

class Predictor(NamedTuple):
    """What predict needs: mean = k(x, Z_mean) @ mean_weights,
    var = k + (k(x, Z) @ var_weights)**2 @ eigenvalues."""
    kernel: Callable           # as se_kernel
    ln_theta: np.ndarray
    ln_noise: np.ndarray       # scalar
    Z_mean: np.ndarray         # (n', d)
    mean_weights: np.ndarray   # (n',)
    Z: np.ndarray              # (M, d)
    var_weights: np.ndarray    # (M, M)
    eigenvalues: np.ndarray    # (M,) of S - I
    predictor = property(lambda self: self)      # as of a Fit


@in_doubles
def predictor_at(p, kernel=matern52):
    """The Predictor at parameters p with m; J App. B.

    With k_x = k(x, Z), V = k_x L^-T and S - I = E diag(eigenvalues) E^T (E = I for a diagonal S):
        mean = V m = k_x mean_weights,   mean_weights = L^-T m,
        var = k + V (S - I) V^T = k + (k_x var_weights)^2 eigenvalues,   var_weights = L^-T E

    For MFD mean = k(x, Z_mean) mean_weights with the L of Z_mean; for OD the rows of (Z_mean, Z)
    have the weights a and L^-T (m - C a), C as in orthogonal_mean. O(M^3) once, then O(M) for a
    mean and O(M^2) for a variance.
    """
    ln_theta, Z, m = p["ln_theta"], p["Z"], p["m"]
    Linv = inverse_cholesky(Z, ln_theta, kernel)[0]
    if "a" in p:
        C_a = Linv @ (kernel(Z, p["Z_mean"], ln_theta)[0] @ p["a"])
        Z_mean = np.concatenate([p["Z_mean"], Z])
        mean_weights = np.concatenate([p["a"], Linv.T @ (m - C_a)])
    elif "Z_mean" in p:
        Z_mean = p["Z_mean"]
        mean_weights = inverse_cholesky(Z_mean, ln_theta, kernel)[0].T @ m
    else:
        Z_mean, mean_weights = Z, Linv.T @ m
    L_S = p.get("L_S", np.zeros(len(Z)))
    if L_S.ndim == 1:
        eigenvalues_S, E = L_S**2, np.eye(len(Z))
    else:
        eigenvalues_S, E = np.linalg.eigh(L_S @ L_S.T)
    return Predictor(kernel, ln_theta, p["ln_noise"], Z_mean, mean_weights, Z, Linv.T @ E,
                     eigenvalues_S - 1)


@in_doubles
def predictor_given_data(p, X, y, kernel=matern52):
    """The Predictor of FITC (p with Z) or of the exact GP, whose q(u) the data X, y give.

    FITC: m and S of gaussian_posterior. Exact GP: Z = X, mean_weights = K_y^-1 y, eigenvalues = -1,
    var_weights = L^-T with L L^T = K_y, without jitter.
    """
    ln_theta, ln_noise = p["ln_theta"], p["ln_noise"]
    if "Z" not in p:
        K_NN, _ = kernel(X, X, ln_theta)
        _, _, Linv, _, mean_weights = noisy_factors(K_NN, y, ln_noise)
        return Predictor(kernel, ln_theta, ln_noise, X, mean_weights, X, Linv.T, -np.ones(len(X)))
    (V, ktilde), _ = whitened_features(X, p["Z"], ln_theta, kernel)
    (A, b, *_), _ = data_sums(V, ktilde, y, np.exp(ln_noise), 1.0)
    (m, _, _, root), _ = gaussian_posterior(A, b)
    return predictor_at(dict(p, m=m, L_S=root.T), kernel)


@in_doubles
def predict(fit, X_new, over=map):
    """mean [y], var [y^2] (n,) of f at X_new (n, d), without noise.

    fit: what has a `predictor`, a Fit or a Predictor. over: map, or a thread pool's, over blocks of
    rows. ValueError for bad input.
    """
    predictor = getattr(fit, "predictor", None)
    check_kind("the predictor of fit", predictor, Predictor, "fit or predictor_at")
    kernel, ln_theta, _, Z_mean, mean_weights, Z, var_weights, eigenvalues = predictor
    X_new = check_columns("X_new", X_new, Z.shape[1])
    k = signal_variance(ln_theta)

    def moments(rows):
        K = K_mean = kernel(X_new[rows], Z, ln_theta)[0]
        if Z_mean is not Z:
            K_mean = kernel(X_new[rows], Z_mean, ln_theta)[0]
        mean = K_mean @ mean_weights                                # J (7): mean at x
        var = k + (K @ var_weights) ** 2 @ eigenvalues              # J (8): variance of f at x
        return mean, var
    mean, var = zip(*over(moments, row_blocks(len(X_new), len(Z), least=1)))
    return np.concatenate(mean), np.maximum(np.concatenate(var), VAR_FLOOR * k)


@in_doubles
def predict_y(fit, X_new, over=map):
    """mean [y], var [y^2] (n,) of y = f + noise at X_new (n, d); arguments as predict.

    The noise is Gaussian with variance sigma_obs^2, whatever data fit has trained.
    """
    mean, var = predict(fit, X_new, over)
    return mean, var + np.exp(fit.predictor.ln_noise)           # J (11)  # J (14)  # J (22): Var[y]


# --- metrics: J Sec. 5 ----------------------------------------------------------------------------

@in_doubles
def residual(y, mean, var=0.0):
    """y - mean. ValueError unless y, mean and var have one shape, or are scalars."""
    check_shapes("y, mean and var", y, mean, var)
    return np.subtract(y, mean)


@in_doubles
def nll(y, mean, var):
    """-ln N(y | mean, var) averaged over data points [nats]; var: of y, noise included.

    ValueError unless var > 0: without spread it would be infinite, of either sign.
    """
    if np.any(var <= 0):
        raise ValueError(f"var must be positive, got {np.min(var)}")
    return float(np.mean(np.log(2 * np.pi * var) + residual(y, mean, var) ** 2 / var) / 2)


@in_doubles
def held_out_nll(fit, X, y):
    """nll of the predictions of a Fit or Predictor at X (n, d), y (n,) not trained on."""
    return nll(y, *predict_y(fit, X))


@in_doubles
def rmse(y, mean):
    """Root mean squared error of the mean [y]."""
    return float(np.sqrt(np.mean(residual(y, mean) ** 2)))


@in_doubles
def crps(y, mean, var):
    """Continuous ranked probability score, int (F(t) - 1[t >= y])^2 dt, averaged [y].

        s (z (2 Phi(z) - 1) + 2 phi(z) - 1/sqrt(pi)) for F = N(mean, var)
    s = sqrt(var), z = (y - mean)/s; Gneiting & Raftery 2007. Where var = 0 it is |y - mean|.
    ValueError unless var >= 0.
    """
    if np.any(var < 0):
        raise ValueError(f"var must be at least 0, got {np.min(var)}")
    s = np.sqrt(np.where(var > 0, var, 1.0))
    z = residual(y, mean, var) / s
    central = norm_cdf(z) - norm_cdf(-z)                                        # 2 Phi(z) - 1
    scores = s * (z * central + 2 * norm_pdf(z) - 1 / math.sqrt(math.pi))
    scores = np.where(var > 0, scores, np.abs(residual(y, mean)))
    return float(np.mean(scores))


@in_doubles
def noise_fraction(var_f, sigma2):
    """Mean share of the predictive variance that is noise, sigma2/(sigma2 + var_f); J Fig. 4, 8."""
    return float(np.mean(sigma2 / (sigma2 + var_f)))


# --- training: J Algorithm 1, App. C --------------------------------------------------------------

class Fit(NamedTuple):
    """A trained GP; params is the dict p of the module's docstring."""
    method: str
    kernel: Callable           # as se_kernel
    beta_reg: float
    gamma: float
    params: dict
    history: list              # objective [nats per data point] per epoch or iteration
    validation: float          # NLL on the validation rows, NaN without
    message: str               # why training stopped
    predictor: Predictor       # what predict needs


@in_doubles
def initial_parameters(X, method, M, kernel=matern52, ard=True, Z=None, rng=None, start_theta=None):
    """Start dict p: l, periods, sigma_k^2, sigma_obs^2 are START; m = 0, a = 0.

    start_theta: a function of d and ard that gives ln_theta instead; see softplus_start.

    L_S = I (Chol, OD) or START_STD (MF, MFD). Z comes from k-means unless Z (M, d) is given, whose
    length then replaces M. Z_mean (MFD, OD) is another run of k-means.
    """
    variant = METHODS[method][1]
    names = VARIANTS[variant]
    rng = rng or np.random.default_rng(0)
    start_theta = start_theta or partial(softplus_start, kernel)
    p = dict(ln_theta=start_theta(X.shape[1], ard), ln_noise=np.array(math.log(START)))
    if not names:
        return p
    Z = kmeans(X, M, rng) if Z is None else Z
    M = len(Z)
    L_S = np.eye(M) if variant in FULL else np.full(M, START_STD)
    values = dict(Z=Z, m=np.zeros(M), L_S=L_S, a=np.zeros(M))
    if "Z_mean" in names:
        values["Z_mean"] = kmeans(X, M, rng)
    return p | {name: values[name] for name in names}


def step_size(lr, epoch, epochs, milestones=MILESTONES):
    """lr, over ten for each milestone with epoch (0 .. epochs - 1) >= milestone * epochs."""
    return lr * 0.1 ** sum(epoch >= share * epochs for share in milestones)


def algorithm1(p, at_rows, N, batch, rates, box, rng):
    """Yields (p, mean objective of the epoch's steps) after each epoch of J Algorithm 1.

        at_rows   at_rows(p, rows) -> value, dict of gradients: the objective on a batch
        batch     data points per step; the random batches of an epoch visit each of N once
        rates     Adam's, one for each epoch
        box       dict name -> (lower, upper) of what has limits
    """
    batches = math.ceil(N / min(batch, N))
    state = None
    for epoch, rate in enumerate(rates, 1):
        left = iter(np.array_split(rng.permutation(N), batches))

        def at_batch(p):
            value, grads = at_rows(p, next(left))
            if not np.isfinite(value):
                raise ValueError(f"the objective is {value} in epoch {epoch}: "
                                 "scale X and y, or lower lr")
            return value, grads
        found = adam(at_batch, p, [rate] * batches, box, state)
        p, state = found.x, found.state
        yield p, float(np.mean(found.history))


def train(epochs_of_p, score=None, patience=None, callback=None):
    """p, history, message from epochs_of_p, an iterator of (p, objective) per epoch.

    patience None: the last p. Else the p with the lowest score(p), the NLL on validation rows;
    training stops after `patience` epochs without improvement. It also stops when callback(epoch,
    objective) returns true. ValueError for an NLL that is not finite.
    """
    history, best_nll = [], np.inf
    for epoch, (p, value) in enumerate(epochs_of_p, 1):
        history.append(value)
        stop = callback and callback(epoch, value)
        if patience is None:
            best_p, best_epoch = p, epoch
        else:
            nll_p = score(p)
            if not np.isfinite(nll_p):
                raise ValueError(f"the validation NLL is {nll_p} after epoch {epoch}: "
                                 "scale X and y, or lower lr")
            if nll_p < best_nll:
                best_nll, best_p, best_epoch = nll_p, p, epoch
        if stop:
            return best_p, history, STOPPED
        if patience is not None and epoch - best_epoch >= patience:
            return best_p, history, f"stopped after {epoch} epochs, best after {best_epoch}"
    return best_p, history, f"{epoch} epochs"


def likelihood(p, X, y, method, kernel):
    """-ln p(y)/N of exact or FITC at all N data points, and the dict of gradients."""
    if method == "exact":
        value, back = full_gp_nll(X, y, **p, kernel=kernel)         # J (2): -ln p(y)
    else:
        value, back = sparse_nll(X, y, **p, kind="FITC",
                                 kernel=kernel)                     # J (13): -ln p(y) of FITC
    return value / len(y), back(1 / len(y))


def fit(X, y, method="PPGPR-MFD", M=100, kernel="Matern52", beta_reg=None, gamma=1.03, batch=200,
        epochs=400, lr=0.01, milestones=MILESTONES, ard=True, min_noise=1e-4, Z=None,
        X_val=None, y_val=None, patience=None, start=None, seed=0, callback=None, start_theta=None,
        g=None):
    """A GP regressor trained by one of the paper's methods, as a Fit; J Algorithm 1, App. C.1.

    The table at the top of the module says what each method minimises.

    The data:
        X, y          (N, d), (N,): standardise them first
        X_val, y_val  validation rows; their NLL, of Gaussian noise as in predict_y, becomes
                      Fit.validation
    The model:
        method        a key of METHODS
        M, Z          number of inducing inputs, by k-means, or Z (M, d) itself; MFD and OD have as
                      many again for the mean, by k-means
        kernel        a key of KERNELS, or a function as se_kernel
        ard           one lengthscale per column, as `periodic` always has
        beta_reg      weight of the regulariser, see J (18); None: 0.05 for PPGPR, which prefers
                      small values (J Sec. 5.1), 1 for the others
        gamma         exponent of gamma-robust, above 1
        g             data fit in place of the method's, such as another likelihood: see data_fit
        min_noise     least sigma_obs^2 [y^2]; 1e-4 is GPyTorch's, the paper does not say. Where
                      targets repeat (pol) it decides PPGPR's scores
    The search:
        batch         data points per step
        epochs        at most; of exact and FITC evaluations
        lr            Adam's first rate, a tenth of it after each of the milestones
        milestones    shares of the epochs
        patience      stop after as many epochs without a lower validation NLL, and return the best
                      p; None: all epochs
        start         {name: value} in place of those of initial_parameters
        start_theta   start of ln_theta, a function of d and ard; None:
                      softplus_start, with likely_periods for `periodic`
        seed          of k-means and batches
        callback      called with (epoch, objective), of exact and FITC with (evaluations,
                      objective); training stops when it returns true

    exact and FITC use L-BFGS on all data and ignore batch, lr, milestones, beta_reg, gamma,
    patience; exact ignores M and Z. ValueError for bad input, or when the objective is no longer
    finite. Warns where the data are not scaled.
    """
    X, y = check_data(X, y)
    N, d = X.shape
    method = check_choice("method", method, METHODS)
    if beta_reg is None:
        beta_reg = 0.05 if method.startswith("PPGPR") else 1.0
    if (X_val is None) != (y_val is None):
        raise ValueError("X_val and y_val go together")
    if X_val is not None:
        X_val, y_val = check_data(X_val, y_val, d=d, names=("X_val", "y_val"))
    elif patience is not None:
        raise ValueError("patience needs X_val and y_val")
    M = check_count("M", M)
    if isinstance(kernel, str):
        kernel = KERNELS[check_choice("kernel", kernel, KERNELS)]
    check_kernel(kernel)
    first_theta = start_theta or partial(softplus_start, kernel)
    check_kernel(first_theta, "start_theta", "se_start")
    ard = check_flag("ard", ard)
    check_signal(kernel, X, first_theta(d, ard))
    if g is not None:
        check_kernel(g, "g", "data_fit")
        if METHODS[method][0] is None:
            raise ValueError(f"{method} has no data fit for g to replace")
    beta_reg = check_scalar("beta_reg", beta_reg, 0, closed=True)
    gamma = check_scalar("gamma", gamma, 1)
    if method == "gamma-robust":
        g = g or partial(gamma_fit, gamma=gamma)
    batch = check_count("batch", batch)
    epochs = check_count("epochs", epochs)
    lr = check_scalar("lr", lr, 0)
    milestones = check_array("milestones", milestones, 1)
    if np.any((milestones < 0) | (milestones > 1)):
        raise ValueError(f"milestones must lie in [0, 1], got {milestones}")
    ln_least = math.log(check_scalar("min_noise", min_noise, 0, math.exp(LN_BOX)))
    if Z is not None:
        Z = check_columns("Z", Z, d, 1)
    if patience is not None:
        patience = check_count("patience", patience)
    rng = np.random.default_rng(check_count("seed", seed, 0))
    warn_unscaled(X, y, "own_data.scale.standardise")

    p = initial_parameters(X, method, M, kernel, ard, Z, rng, start_theta)
    p = with_start(p, start)
    if kernel is periodic and not start_theta and "ln_theta" not in (start or {}):
        p["ln_theta"] = likely_periods(X, y, p["ln_theta"], p["ln_noise"], rng)
    box = dict(ln_theta=(-LN_BOX, LN_BOX), ln_noise=(max(ln_least, -LN_BOX), LN_BOX))

    def at_rows(p, rows):
        value, back = objective(p, X[rows], y[rows], N, method, beta_reg, kernel, g)
        return value, back(1.0)

    def score(p):
        return held_out_nll(predictor_at(p, kernel), X_val, y_val)

    if method in ("exact", "FITC"):
        all_data = partial(likelihood, X=X, y=y, method=method, kernel=kernel)
        found = minimum(all_data, p, box, max_evals=epochs, callback=callback)
        p, history, message = found.x, found.history, found.message
        predictor = predictor_given_data(p, X, y, kernel)
    else:
        rates = [step_size(lr, epoch, epochs, milestones) for epoch in range(epochs)]
        epochs_of_p = algorithm1(p, at_rows, N, batch, rates, box, rng)
        p, history, message = train(epochs_of_p, score, patience, callback)
        predictor = predictor_at(p, kernel)
    validation = math.nan
    if X_val is not None:
        validation = held_out_nll(predictor, X_val, y_val)
    return Fit(method, kernel, beta_reg, gamma, p, history, validation, message, predictor)


def choose(X, y, X_val, y_val, method="PPGPR-MFD", betas=None, gammas=GAMMAS, **settings):
    """The Fit with the lowest validation NLL over beta_reg in betas; J App. C.1.

    For gamma-robust over gamma in gammas. betas None: the paper's, BETAS. settings: the other
    arguments of fit.
    """
    if X_val is None or y_val is None:
        raise ValueError("choose needs X_val and y_val")
    if betas is None:
        betas = BETAS.get(str(method), (1.0,))              # fit raises for an unknown method
    name, values = ("gamma", gammas) if method == "gamma-robust" else ("beta_reg", betas)
    if name in settings or len(values) == 0:
        raise ValueError(f"choose needs at least one value of {name}, in gammas or betas")
    values = check_array("gammas or betas", values, 1)
    settings.update(X_val=X_val, y_val=y_val)
    fits = [fit(X, y, method, **{name: value}, **settings) for value in values]
    return min(fits, key=lambda f: f.validation)
