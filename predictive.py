"""Parametric Gaussian process regressors, in NumPy, equation by equation.

M. Jankowiak, G. Pleiss, J. R. Gardner: Parametric Gaussian Process Regressors, ICML 2020. Tag
below: J. `J Eq. (6), (15), (18)` cites equations, at the statement or in the docstring of the
function; the table of docs/reading-J.md names the function of each. Functions that Reeb et al.
need, too, come from pacgp_ref.

The idea. At each training point an objective for mini-batches needs five numbers: the target y, the
mean mu, and three variances that add up to the predictive one, J Eq. (14) = (22):

    Var[y] = sigma2 (observation noise) + ktilde (what the inducing inputs leave open)
                                        + svar (what q(u) leaves open)

Such an objective is a sum over the data of a function g of the five, less beta_reg times a
regulariser. (Exact GP and FITC have objectives of their own.) The functions g, but for the
gamma-robust one (gamma_fit), have the form

    g = ln N(y | mu, v) - w/(2 v),   v + w = Var[y],

and differ in which variances the likelihood sees (v) and which only Jensen's inequality charges
(w), J Sec. 3.3:

    objective    v                       w                         its term -(y - mu)^2/(2 v)
    SVGP         sigma2                  ktilde + svar             J Eq. (21)
    MAP          sigma2                  ktilde (svar = 0)         J Eq. (21)
    VFITC        sigma2 + ktilde         svar                      J Eq. (19)
    PPGPR        sigma2 + ktilde + svar  0                         J Eq. (20)

The variants say what q(u) is. Everything is whitened (J App. E): u = L u', L L^T = K_MM, q(u') =
N(m, S), S = L_S L_S^T:

    delta   S = 0                  MF    S diagonal             Chol   S full
    MFD     S diagonal, and the mean has inducing inputs Z_mean of its own, J Eq. (23)-(25)
    OD      S full, and the mean gets a term at Z_mean orthogonal to the others
            (Salimbeni et al. 2018)

A diagonal S of u', as App. E has it for MFD, is another family than the diagonal S of u in J Sec.
3.4. For MAP, delta and MFD whitening changes the objective: it drops ln|K|/2 from the
regulariser, K = K_MM or, for MFD, k(Z_mean, Z_mean).

    (X, y) -> V = k(X, Z) L^-T -> mu, ktilde, svar -> sum of g - beta_reg * reg
           -> and back by hand, in the reverse order

    fit -> train -> algorithm1 -> objective, which says g and mean of a method
             -> batch_objective
             -> marginals (features, one of three means, nystroem_residual) -> data_fit
             -> the way back of each of them, in the reverse order -> adam_step
        -> predictor_at -> Predictor, which is all that predict takes

    paper            code           shape        meaning, unit
    x_i, y_i         X, y           (N,d) (N,)   inputs; targets [y]
    z_m              Z              (M,d)        inducing inputs of q(u)
                     Z_mean         (M',d)       MFD, OD: those of the mean; MFD's m is then (M',)
                     a              (M',)        OD: weights of the orthogonal part of the mean
    theta_ker        ln_theta       (T,)         ln of (l_1^2 .. l_d^2, sigma_k^2), T = d+1;
                                                 or of (l^2, sigma_k^2), T = 2; periodic: of
                                                 (l_1^2 .. l_d^2, p_1 .. p_d, sigma_k^2), T = 2d+1
    sigma_obs^2      ln_noise       scalar       ln of the noise variance
    m, S             m, L_S         (M,)         whitened mean and factor of S: deviations (M,)
                                    (M[,M])      or lower triangle (M, M)
    K~_ii            ktilde         (N,)         J Eq. (4): variance of f(x_i), u known [y^2]
                     svar           (N,)         the rest of J Eq. (8): from the variance of u [y^2]
    mu_f, sigma_f^2  mu,            (N,)         marginals of f at the data, J Eq. (7), (8)
                     ktilde + svar  (N,)         [y], [y^2]
    beta_reg, gamma  the same       scalar       weight of the regulariser; robust loss's exponent

Parameters are a dict p, which holds ln_theta, ln_noise and, by variant, Z, m, L_S, Z_mean, a;
gradients are dicts with its keys, and X where inputs have one. What factorises a matrix returns
value, back: back takes the derivative of the objective by the value and returns the gradients;
data_fit and gamma_fit return value and slopes; d_x is the derivative by x.
What is minimised is -L/N in nats per row. A batch of B rows estimates it without bias by -(1/B)
sum_i g_i + (beta_reg/N) reg. The beta_reg is that of J Eq. (18), which sums over rows; (17)
averages: there the equivalent weight is beta_reg/N. The mean function is zero.

Equations without code of their own: (1) and (26) are the joint density; (5) is no equality in its
first line: the expectation of (3) bounds E ln p(y, u) from below; (10), given u, is what (11)
integrates; (16) drops the data's entropy, a
constant; (27) is what PPGPR's data term estimates (but for MFD, which has no single q(u)), (28)
what VFITC's does, and SVGP's with f in place of u; (29)-(34) are BB-alpha: (33) at alpha = 1, which
is (34), is PPGPR's objective at beta_reg = 1, and for alpha -> 0 (33) tends to VFITC's (f
integrated out of each factor) or SVGP's (f kept). In (30) the paper calls q the cavity: it is the
approximation. What (33) drops of (31) vanishes for alpha -> 0, not for N -> infinity at alpha = 1.
The tests confirm each numerically; docs/misprints.md lists all misprints.
"""
import math
from functools import partial
from types import SimpleNamespace
from typing import Callable, NamedTuple

import numpy as np

from pacgp_ref import (LN_BOX, STOPPED, TINY, VAR_FLOOR, adam_step, check_array, check_choice,
                       check_columns, check_count, check_data, check_flag, check_kernel,
                       check_kind, check_scalar, check_signal, cholesky, gaussian_nll, in_doubles,
                       inverse_cholesky, kmeans, lbfgs, ln_se_kernel, noisy_factors, norm_cdf,
                       norm_pdf, pack, row_blocks, row_dots, se_kernel, signal_variance, tri_inv,
                       unpack, warn_unscaled, with_start)


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
# As se_kernel of pacgp_ref: kernel(X1, X2, ln_theta, by_differences=False) -> K, back. Matern's depend on
# E = -r^2/2, r^2 = sum_k (x1_k - x2_k)^2 / l_k^2: dK = dK/dE dE + K d ln sigma_k^2.

@in_doubles
def of_distance(X1, X2, ln_theta, by_differences=False):
    """E = -r^2/2 (N1, N2) and back: ln_se_kernel of pacgp_ref at sigma_s^2 = 1."""
    return ln_se_kernel(X1, X2, np.append(ln_theta[:-1], 0.0), by_differences)


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

    dK/dE = 5/3 sigma_k^2 (1 + u) exp(-u). The paper's kernel; it says Matern and leaves 5/2 to be
    guessed: the default of the framework it was run in.
    """
    E, E_back = of_distance(X1, X2, ln_theta, by_differences)
    u2 = np.maximum(-10 * E, TINY)
    u = np.sqrt(u2)
    decay = np.exp(ln_theta[-1] - u)
    slope = (1 + u) * decay
    K = np.minimum(slope + u2 / 3 * decay, np.exp(ln_theta[-1]))

    def back(d_K, of_X1=True):
        d_ln_theta, d_X1, d_X2 = E_back(5 / 3 * d_K * slope, of_X1)
        d_ln_theta[-1] = np.vdot(d_K, K)
        return d_ln_theta, d_X1, d_X2
    return K, back


@in_doubles
def on_circle(X, ln_period):
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
    """Where phases are counted from (d,): 0, or from a thousand periods on the mean of X2."""
    periods_away = np.max(np.abs(X2), 0) * np.exp(-ln_period)
    return np.where(periods_away < 1000, 0.0, np.sum(X2 / len(X2), 0))


@in_doubles
def periodic(X1, X2, ln_theta, by_differences=False):
    """The periodic kernel, which is SE on circles, and back; arguments and back as se_kernel.

        sigma_k^2 exp(-2 sum_k sin^2(pi (x1_k - x2_k)/p_k)/l_k^2)
    Far from 0 a phase loses digits. From a thousand periods on, a column is therefore moved by the
    mean of X2, which leaves the kernel as it is. The error is then as many ulp as there are periods
    between the inputs. ValueError unless ln_theta is (2d+1,).
    """
    d = X1.shape[1]
    if X2.shape[1] != d or np.shape(ln_theta) != (2 * d + 1,):
        raise ValueError(f"ln_theta must have {2 * d + 1} entries for {d} columns, and X2 as many "
                         f"columns: got shape {np.shape(ln_theta)} and {X2.shape[1]} columns")
    ln_period = ln_theta[d:2 * d]
    middle = centre(X2, ln_period)
    U1, U1_back = on_circle(X1 - middle, ln_period)
    U2, U2_back = on_circle(X2 - middle, ln_period)
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


def softplus_start(d, ard=True):
    """ln_theta where a search starts: lengthscales and signal variance are START."""
    return np.append(np.full(d if ard else 1, 2 * math.log(START)), math.log(START))


def start_periodic(d, ard=True):
    """The same of `periodic`: its periods are START, too; one lengthscale per column always."""
    return np.concatenate([np.full(d, 2 * math.log(START)), np.full(d + 1, math.log(START))])


KERNELS = {            # name -> kernel
    "SE": se_kernel,
    "Matern32": matern32,
    "Matern52": matern52,
    "periodic": periodic,
}
STARTS = {periodic: start_periodic}      # of kernels with parameters that SE has not


# --- whitened features: J App. E ------------------------------------------------------------------

@in_doubles
def features(X, Z, ln_theta, kernel=matern52):
    """V (N, M) = k(X, Z) L^-T, and back; J App. E.

    f(x_i) = V_i u' + a part independent of u', of variance ktilde_i.
    The paper lacks a transpose in the whitened mean, k_i^T L^-T u', and in the whitened S, L^-1 S
    L^-T (twice): without, they hold for a symmetric root of K_MM only. And its bound has sigma_obs
    for sigma_obs^2 (twice).

    back(d_V) returns d_ln_theta, d_X (N, d), d_Z (M, d), by d_K_NM = d_V L^-1 and by K_MM.
    """
    Linv, Linv_back = inverse_cholesky(Z, ln_theta, kernel)
    K_NM, K_back = kernel(X, Z, ln_theta)
    V = K_NM @ Linv.T

    def back(d_V):
        d_ln_theta_MM, d_Z_MM = Linv_back(d_V.T @ V)
        d_ln_theta, d_X, d_Z = K_back(d_V @ Linv)
        return d_ln_theta + d_ln_theta_MM, d_X, d_Z + d_Z_MM
    return V, back


# --- the marginals of f at the data: J Eq. (4), (7), (8), (24), (25) ------------------------------

@in_doubles
def nystroem_residual(V, ln_theta):
    """ktilde (N,) [y^2] = k(x, x) - |V|^2, J Eq. (4), and a mask (N,).

    The mask is False where ktilde rounded to below VAR_FLOOR k(x, x). There it is set to that
    floor, and has no gradient.
    """
    k = signal_variance(ln_theta)
    ktilde = k - row_dots(V, V)                                                     # J Eq. (4)
    floor = VAR_FLOOR * k
    return np.maximum(ktilde, floor), ktilde > floor


@in_doubles
def shared_mean(p, X, V, kernel):
    """(mu (N,), reg), back: mu = V m, J Eq. (7), and reg = |m|^2/2.

    back(d_mu, d_reg) returns a dict for V (N, M) and m:  d_V = d_mu m^T,  d_m = V^T d_mu + d_reg m.
    """
    m = p["m"]
    mu = V @ m                                                                      # J Eq. (7)

    def back(d_mu, d_reg):
        return dict(V=np.outer(d_mu, m), m=V.T @ d_mu + d_reg * m)
    return (mu, m @ m / 2), back


@in_doubles
def separate_mean(p, X, V, kernel):
    """(mu, reg), back of MFD: mu = k(X, Z_mean) L^-T m, J Eq. (24), and reg = |m|^2/2.

    In O(N M) once K and the root are there. back(d_mu, d_reg) returns a dict for m, ln_theta, X,
    Z_mean:
        d_m = L^-1 K^T d_mu + d_reg m,   d_K = d_mu (L^-T m)^T,
        d_V = d_mu m^T, gram = d_V^T V = m (V^T d_mu)^T for V = K L^-T
    """
    m, Z_mean, ln_theta = p["m"], p["Z_mean"], p["ln_theta"]
    Linv, Linv_back = inverse_cholesky(Z_mean, ln_theta, kernel)
    K, K_back = kernel(X, Z_mean, ln_theta)
    weights = Linv.T @ m
    mu = K @ weights                                                                # J Eq. (24)

    def back(d_mu, d_reg):
        V_d_mu = Linv @ (K.T @ d_mu)
        d_ln_theta_MM, d_Z_MM = Linv_back(np.outer(m, V_d_mu))
        d_ln_theta, d_X, d_Z = K_back(np.outer(d_mu, weights))
        return dict(m=V_d_mu + d_reg * m, ln_theta=d_ln_theta + d_ln_theta_MM,
                    X=d_X, Z_mean=d_Z + d_Z_MM)
    return (mu, m @ m / 2), back


@in_doubles
def orthogonal_mean(p, X, V, kernel):
    """(mu (N,), reg), back of OD-SVGP: a second part of the mean, orthogonal to the first.

        mu = V (m - C a) + K_mean a,   reg = (|m|^2 + a^T K_mm a - |C a|^2)/2
    K_mean = k(X, Z_mean), K_mm = k(Z_mean, Z_mean),
    C^T = V_mean = k(Z_mean, Z) L^-T. Salimbeni et al. 2018.

    back(d_mu, d_reg) returns a dict for V, m, a, ln_theta, X, Z, Z_mean:
        d_V = d_mu (m - C a)^T,   d_(C a) = -V^T d_mu - d_reg C a,
        d_K_mean = d_mu a^T,   d_K_mm = d_reg a a^T/2
    """
    m, a, Z_mean, ln_theta = p["m"], p["a"], p["Z_mean"], p["ln_theta"]
    V_mean, V_mean_back = features(Z_mean, p["Z"], ln_theta, kernel)
    K_mean, K_mean_back = kernel(X, Z_mean, ln_theta)
    K_mm, K_mm_back = kernel(Z_mean, Z_mean, ln_theta)
    C_a = V_mean.T @ a
    mu = V @ (m - C_a) + K_mean @ a
    reg = (m @ m + a @ K_mm @ a - C_a @ C_a) / 2

    def back(d_mu, d_reg):
        d_m = V.T @ d_mu
        d_C_a = -d_m - d_reg * C_a
        d_theta_V, d_Z_mean_V, d_Z = V_mean_back(np.outer(a, d_C_a))
        d_theta_K, d_X, d_Z_mean_K = K_mean_back(np.outer(d_mu, a))
        d_theta_mm, _, d_Z_mm = K_mm_back(d_reg / 2 * np.outer(a, a), of_X1=False)
        d_a = V_mean @ d_C_a + K_mean.T @ d_mu + d_reg * K_mm @ a
        d_ln_theta = d_theta_V + d_theta_K + d_theta_mm
        d_Z_mean = d_Z_mean_V + d_Z_mean_K + 2 * d_Z_mm
        return dict(V=np.outer(d_mu, m - C_a), m=d_m + d_reg * m, a=d_a,
                    ln_theta=d_ln_theta, X=d_X, Z=d_Z, Z_mean=d_Z_mean)
    return (mu, reg), back


def mean_of(p):
    """The mean of the variant with parameters p; each takes (p, X, V, kernel), needed or not."""
    if "a" in p:
        return orthogonal_mean
    if "Z_mean" in p:
        return separate_mean
    return shared_mean


@in_doubles
def times_root(V, L_S):
    """V L_S for L_S (M, M) or, of a diagonal, (M,)."""
    return V * L_S if L_S.ndim == 1 else V @ L_S


@in_doubles
def marginals(p, X, kernel=matern52, mean=None):
    """(mu, ktilde, svar, reg), back: (N,) arrays, J Eq. (7), (4), (8); what beta_reg weighs.

        ktilde = k - |V|^2,   svar = |V L_S|^2,
        reg = KL(q(u')||N(0, I)) = (tr S - ln|S| - M + |m|^2)/2
    mu and its part of reg come from mean, one of the three above, by default mean_of(p). p:
    ln_theta (T,), Z (M, d), m, and what makes the variant: L_S (M, M) lower triangular with a diagonal that is not
    0 (Chol), L_S (M,) deviations (MF), no L_S (delta: reg = |m|^2/2, which is -ln p(u') up to a
    constant); Z_mean (M', d) with m (M',) (MFD: reg is J Eq. (23) less ln|k(Z_mean, Z_mean)|/2 and
    a constant); Z_mean (M', d) with a (M',) besides m (OD).

    back(d_mu, d_ktilde, d_svar, d_reg), three (N,) and a scalar, returns a dict with the keys of p
    but ln_noise, and "X" (N, d):
        svar = |W|^2, W = V L_S:  d_W = 2 d_svar W,   d_V = d_W L_S^T,
                                  d_L_S = tril(V^T d_W) + d_reg (L_S - diag(1/diag L_S))
        ktilde = k - |V|^2:       d_V = -2 d_ktilde V, 0 at the floor
    and the mean's own. What two of them give for one array adds up.
    """
    mean = mean or mean_of(p)
    ln_theta = p["ln_theta"]
    L_S = p.get("L_S")                                                          # none: S = 0
    V, V_back = features(X, p["Z"], ln_theta, kernel)
    (mu, reg), mean_back = mean(p, X, V, kernel)
    ktilde, above_floor = nystroem_residual(V, ln_theta)
    svar = np.zeros(len(X))
    if L_S is not None:
        diagonal = L_S if L_S.ndim == 1 else np.diag(L_S)
        W = times_root(V, L_S)
        svar = row_dots(W, W)                                       # J Eq. (8), (25) less ktilde
        half_ln_det = np.sum(np.log(np.abs(diagonal)))
        reg = reg + np.sum(L_S**2) / 2 - half_ln_det - len(diagonal) / 2            # J Eq. (6)

    def back(d_mu, d_ktilde, d_svar, d_reg):
        d_ktilde = d_ktilde * above_floor
        out = dict(V=0.0, Z=0.0, X=0.0, ln_theta=0.0) | mean_back(d_mu, d_reg)
        d_V = out.pop("V") - (2 * d_ktilde)[:, None] * V
        if L_S is not None:
            d_W = W * (2 * d_svar)[:, None]
            d_V += times_root(d_W, L_S.T)
            if L_S.ndim == 1:
                out["L_S"] = np.einsum("ij,ij->j", V, d_W) + d_reg * (L_S - 1 / L_S)
            else:
                out["L_S"] = np.tril(V.T @ d_W) + d_reg * (L_S - np.diag(1 / np.diag(L_S)))
        d_ln_theta, d_X, d_Z = V_back(d_V)
        d_ln_theta[..., -1] += np.exp(ln_theta[..., -1]) * d_ktilde.sum()
        out["ln_theta"] += d_ln_theta
        out["X"] += d_X
        out["Z"] += d_Z
        return out
    return (mu, ktilde, svar, reg), back


# --- the objectives: J Sec. 2.3, 3 ----------------------------------------------------------------

@in_doubles
def data_fit(y, mu, ktilde, svar, sigma2, see_ktilde=1.0, see_svar=1.0):
    """g = ln N(y | mu, v) - w/(2 v) per point [nats], and its slopes: five arrays (N,).

        v = sigma2 + see_ktilde ktilde + see_svar svar,
        w = (1 - see_ktilde) ktilde + (1 - see_svar) svar,
        dg/dmu = (y - mu)/v,   dg/dv = ((y - mu)^2 + w - v) / (2 v^2),   dg/dw = -1/(2 v)
    The slopes are dg/dmu, dg/dktilde, dg/dsvar, dg/dsigma2.
    One formula for J Eq. (3), (6), (12), (15), (18): E ln N(y | mu + sqrt(w) xi, v), xi ~ N(0, 1):
    what is in v is averaged over inside the logarithm, w outside. y, mu [y], ktilde, svar [y^2]
    (N,); sigma2 [y^2] scalar. (see_ktilde, see_svar) is (0, 0) for SVGP (6) and, with svar = 0, MAP
    (3); (1, 0) for VFITC (15) and, with svar = 0, the joint density (12); (1, 1), the default, for
    PPGPR (18).
    """
    v = sigma2 + see_ktilde * ktilde + see_svar * svar
    w = (1 - see_ktilde) * ktilde + (1 - see_svar) * svar
    r = y - mu
    g = -(np.log(2 * np.pi * v) + (r**2 + w) / v) / 2                       # J Eq. (6), (15), (18)
    d_v = (r**2 + w - v) / (2 * v**2)
    d_w = -1 / (2 * v)
    d_ktilde = see_ktilde * d_v + (1 - see_ktilde) * d_w
    d_svar = see_svar * d_v + (1 - see_svar) * d_w
    return g, r / v, d_ktilde, d_svar, d_v


@in_doubles
def gamma_fit(y, mu, ktilde, svar, sigma2, gamma):
    """g of the gamma-robust objective per point, J Eq. (9), corrected, and slopes as data_fit.

        g = gamma/(gamma - 1) (E p(y|f)^(gamma-1) / (int p(z|f)^gamma dz)^((gamma-1)/gamma) - 1)
    With f ~ N(mu, F), F = ktilde + svar, p(y|f) = N(y | f, sigma2), power = gamma - 1:
        g = gamma/power (exp(h) - 1),   r = y - mu,   t = sigma2 + power F,
        h = -power/(2 gamma) ln(2 pi sigma2/gamma) - ln(1 + power F/sigma2)/2 - power r^2/(2 t),
        dh/dmu = power r/t,   dh/dF = -power/(2 t) + power^2 r^2/(2 t^2),
        dh/dsigma2 = -power/(2 gamma sigma2) + power F/(2 sigma2 t) + power r^2/(2 t^2)
    g is from the gamma divergence (Fujisawa & Eguchi 2008). For every gamma > 1 and known f (F = 0)
    the mean of g over the data is largest where p(y|f) is their density; as gamma -> 1, g tends to
    SVGP's. The paper's p(y|f)^(gamma-1) lacks the factor and the normaliser: it tends to 1, not to
    ln p(y|f), and the sigma2 that maximises it is (2 - gamma) times the true one.
    """
    power = gamma - 1
    F = ktilde + svar
    r = y - mu
    t = sigma2 + power * F
    ln_normaliser = -power / (2 * gamma) * np.log(2 * np.pi * sigma2 / gamma)
    h = ln_normaliser - np.log1p(power * F / sigma2) / 2 - power * r**2 / (2 * t)
    g = gamma / power * np.expm1(h)                                                 # J Eq. (9)
    weight = gamma * np.exp(h)                                          # dg = weight/power dh
    d_F = weight * (power * r**2 / t - 1) / (2 * t)
    d_sigma2 = weight * (r**2 / t**2 + F / (sigma2 * t) - 1 / (gamma * sigma2)) / 2
    return g, weight * r / t, d_F, d_F, d_sigma2


@in_doubles
def batch_objective(p, X, y, N, g=data_fit, beta_reg=1.0, kernel=matern52, mean=None):
    """-L/N [nats per row], back: an estimate without bias from B of N rows, X (B, d), y (B,).

        value = -(1/B) sum_i g(y_i, mu_i, ktilde_i, svar_i, sigma2) + (beta_reg/N) reg
    J Eq. (3), (6), (9), (15), (17), (18), by what g is: as it stands PPGPR's. With B = N it is
    -L/N. p: ln_noise and what marginals wants. ValueError unless y is (B,): a (B, 1) would give
    B x B terms.

    back(d_value) returns a dict with the keys of p, and "X" (B, d), for a network in front of the
    GP.
    Least cost with the gradient, in products of B x M by M x M: 3 for Chol, six triangular ones at
    1/2 each (V, V L_S, d_W L_S^T, d_L_S, d_V^T V, d_V L^-1), and 1.5 for delta, MF and MFD (V,
    d_V^T V, d_V L^-1); the code's are full, at 1 each. To these add a Cholesky factor, its inverse
    and two triangular products, all M x M; MFD has twice these.
    OD: 1.5 on B + M' rows and 1.5 on B.
    """
    if np.shape(y) != (len(X),):
        raise ValueError(f"y must be ({len(X)},) like the rows of X, got {np.shape(y)}")
    (mu, ktilde, svar, reg), marginals_back = marginals(p, X, kernel, mean)
    sigma2 = np.exp(p["ln_noise"])
    terms, *slopes = g(y, mu, ktilde, svar, sigma2)
    reg_weight = beta_reg / N
    value = -np.mean(terms) + reg_weight * reg                  # J Eq. (3), (6), (9), (15), (18)

    def back(d_value):
        d_g = -d_value / len(y)
        d_mu, d_ktilde, d_svar, d_sigma2 = (d_g * slope for slope in slopes)
        grads = marginals_back(d_mu, d_ktilde, d_svar, d_value * reg_weight)
        return dict(grads, ln_noise=sigma2 * d_sigma2.sum())
    return value, back


SEES = {               # name -> see_ktilde, see_svar of data_fit
    "SVGP": (0.0, 0.0),                                                         # J Eq. (6), (21)
    "VFITC": (1.0, 0.0),                                                        # J Eq. (15), (19)
    "PPGPR": (1.0, 1.0),                                                        # J Eq. (18), (20)
}
METHODS = {            # name in J Sec. 2.5, 5 -> (a key of SEES or gamma-robust, variant)
    "MAP": ("SVGP", "delta"),
    "SVGP": ("SVGP", "Chol"),
    "gamma-robust": ("gamma-robust", "Chol"),
    "OD-SVGP": ("SVGP", "OD"),
    "VFITC": ("VFITC", "Chol"),
    "PPGPR-delta": ("PPGPR", "delta"),
    "PPGPR-MF": ("PPGPR", "MF"),
    "PPGPR-Chol": ("PPGPR", "Chol"),
    "PPGPR-MFD": ("PPGPR", "MFD"),
    "FITC": (None, "Z only"),                       # q(u) in closed form: no m, no L_S
    "exact": (None, "no Z"),                        # the same
}


VARIANTS = {           # variant -> what p holds besides ln_theta, ln_noise, Z and m; ndim of L_S
    "delta": ((), 0),
    "Chol": (("L_S",), 2),
    "OD": (("L_S", "Z_mean", "a"), 2),
    "MF": (("L_S",), 1),
    "MFD": (("L_S", "Z_mean"), 1),
}


def check_variant(p, method):
    """ValueError unless p holds what marginals wants for the method's variant, and no other's."""
    variant = METHODS[check_choice("method", method, METHODS)][1]
    if variant not in VARIANTS:
        nll = "exact_nll" if method == "exact" else "fitc_nll"
        raise ValueError(f"objective is not for {method}, whose q(u) is in closed form: use {nll}")
    more, ndim = VARIANTS[variant]
    wanted = ("Z", "m", *more)
    got = [name for name in ("Z", "m", "L_S", "Z_mean", "a") if name in p]
    if got != list(wanted):
        raise ValueError(f"{method} wants {', '.join(wanted)} in p, got {', '.join(got)}")
    shape = (len(p["Z"]),) * ndim
    full = ndim == 2 and np.any(np.triu(p["L_S"], 1))
    if ndim and (p["L_S"].shape != shape or full):
        kind = "deviations" if ndim == 1 else "lower triangular"
        raise ValueError(f"{method} wants L_S {kind}, of shape {shape}: "
                         f"got {p['L_S'].shape}{', full' if full else ''}")


@in_doubles
def objective(p, X, y, N, method, beta_reg=1.0, gamma=1.03, kernel=matern52):
    """Value and back of batch_objective for a method.

    method: a key of METHODS but exact and FITC, which have exact_nll and fitc_nll. p: ln_noise and
    what marginals wants for the method's variant, no more and no less. ValueError for another's.
    """
    check_variant(p, method)
    name, _ = METHODS[method]
    if name == "gamma-robust":
        g = partial(gamma_fit, gamma=gamma)
    else:
        see_ktilde, see_svar = SEES[name]
        g = partial(data_fit, see_ktilde=see_ktilde, see_svar=see_svar)
    return batch_objective(p, X, y, N, g, beta_reg, kernel)


@in_doubles
def exact_nll(p, X, y, kernel=matern52):
    """-ln p(y | X)/N of the exact GP, J Eq. (2), and back(d_value), a dict: ln_theta, ln_noise."""
    K_NN, K_back = kernel(X, X, p["ln_theta"])
    value, nll_back = gaussian_nll(K_NN, y, p["ln_noise"])                          # J Eq. (2)

    def back(d_value):
        d_K, d_ln_noise = nll_back(d_value / len(y))
        d_ln_theta, *_ = K_back(d_K, of_X1=False)
        return dict(ln_theta=d_ln_theta, ln_noise=d_ln_noise)
    return value / len(y), back


@in_doubles
def optimal_q(V, y, D):
    """m, S of the q(u') that maximises VFITC or SVGP at beta_reg = 1; -ln|S|, b.

        b = V^T D^-1 y,   S^-1 = I + V^T D^-1 V,   m = S b
    V (N, M), y (N,), D (N,) or scalar [y^2]: sigma2 + ktilde for VFITC, sigma2 for SVGP.
    """
    sqrt_D = np.sqrt(D + np.zeros(len(y)))
    A = V / sqrt_D[:, None]
    b = A.T @ (y / sqrt_D)
    precision = np.eye(V.shape[1]) + A.T @ A
    Linv = tri_inv(cholesky(precision, "I + V^T D^-1 V"))
    S = Linv.T @ Linv
    return S @ b, S, -2 * np.sum(np.log(np.diag(Linv))), b


@in_doubles
def fitc_nll(p, X, y, kernel=matern52):
    """-ln p(y)/N of FITC, and back: J Eq. (13), by the determinant and inversion lemmas.

        (-ln|S| + sum ln(2 pi D) + sum y^2/D - b m) / (2N),   D = ktilde + sigma2
    S, b, m of optimal_q. p: ln_theta, ln_noise, Z.

    back(d_value) returns a dict with these keys; times 1/N:
        d_precision = (S + m m^T)/2,   d_b = -m,
        d_D_i = (1 - y_i^2/D_i)/(2 D_i) - (V_i d_precision V_i + y_i V_i d_b)/D_i^2,
        d_ktilde_i = d_D_i, 0 at the floor,
        d_V_i = (2 d_precision V_i + y_i d_b)/D_i - 2 d_ktilde_i V_i
    """
    V, V_back = features(X, p["Z"], p["ln_theta"], kernel)
    ktilde, above_floor = nystroem_residual(V, p["ln_theta"])
    sigma2 = np.exp(p["ln_noise"])
    D = ktilde + sigma2
    m, S, ln_det, b = optimal_q(V, y, D)
    twice = ln_det + np.sum(np.log(2 * np.pi * D)) + np.sum(y**2 / D) - b @ m       # J Eq. (13)

    def back(d_value):
        half_d_V = V @ ((S + np.outer(m, m)) / 2)
        d_D = ((1 - y**2 / D) / 2 - (row_dots(half_d_V, V) - y * (V @ m)) / D) / D
        d_ktilde = d_D * above_floor
        d_V = (2 * half_d_V - np.outer(y, m)) / D[:, None] - (2 * d_ktilde)[:, None] * V
        scale = d_value / len(y)
        d_ln_theta, _, d_Z = V_back(scale * d_V)
        d_ln_theta[..., -1] += scale * np.exp(p["ln_theta"][..., -1]) * d_ktilde.sum()
        return dict(ln_theta=d_ln_theta, ln_noise=scale * sigma2 * d_D.sum(), Z=d_Z)
    return twice / (2 * len(y)), back


# --- the predictive distribution: J Sec. 2.4, App. B ----------------------------------------------

class Predictor(NamedTuple):
    """What predict needs: k(x, Z_mean) mean_weights, and k + (k(x, Z) G)^2 eigenvalues."""
    kernel: Callable           # as se_kernel
    ln_theta: np.ndarray
    ln_noise: np.ndarray       # scalar
    Z_mean: np.ndarray         # (n', d)
    mean_weights: np.ndarray   # (n',)
    Z: np.ndarray              # (M, d)
    G: np.ndarray              # (M, M)
    eigenvalues: np.ndarray    # (M,) of S - I
    k: float                   # k(x, x) [y^2]


@in_doubles
def predictor_at(p, kernel=matern52):
    """The Predictor at parameters p with m; J App. B.

    O(M^3) once, then O(M) for a mean and O(M^2) for a variance. With the row k_x = k(x, Z),
    V = k_x L^-T, and S - I = E diag(eigenvalues) E^T (E = I where S is diagonal):
        mu = V m = k_x mean_weights,   mean_weights = L^-T m,
        sigma_f^2 = k(x, x) + V (S - I) V^T = k(x, x) + (k_x G)^2 eigenvalues,   G = L^-T E
    MFD has mu = k(x, Z_mean) mean_weights with the L of Z_mean; OD puts its a and L^-T (m - C a)
    on the rows of (Z_mean, Z), C as in orthogonal_mean.
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
    L_S = p.get("L_S", np.zeros(len(Z)))                                        # none: S = 0
    if L_S.ndim == 1:
        eigenvalues_S, E = L_S**2, np.eye(len(Z))
    else:
        eigenvalues_S, E = np.linalg.eigh(L_S @ L_S.T)
    k = signal_variance(ln_theta)
    return Predictor(kernel, ln_theta, p["ln_noise"], Z_mean, mean_weights, Z, Linv.T @ E,
                     eigenvalues_S - 1, k)


@in_doubles
def predictor_given_data(p, X, y, kernel=matern52):
    """The Predictor of FITC (p with Z) or the exact GP, whose q(u) is given by the data X, y.

    FITC has m, S of optimal_q; the exact GP has Z = X, mean_weights = A^-1 y, G = L^-T,
    eigenvalues = -1, L L^T = A = K_NN + sigma_obs^2 I, and no jitter.
    """
    ln_theta, ln_noise = p["ln_theta"], p["ln_noise"]
    if "Z" not in p:
        K_NN, _ = kernel(X, X, ln_theta)
        _, _, Linv, _, mean_weights = noisy_factors(K_NN, y, ln_noise)
        k = signal_variance(ln_theta)
        return Predictor(kernel, ln_theta, ln_noise, X, mean_weights, X, Linv.T,
                         -np.ones(len(X)), k)
    V, _ = features(X, p["Z"], ln_theta, kernel)
    ktilde, _ = nystroem_residual(V, ln_theta)
    m, S, _, _ = optimal_q(V, y, ktilde + np.exp(ln_noise))
    return predictor_at(dict(p, m=m, L_S=cholesky(S, "S")), kernel)


@in_doubles
def predict(fit, X_new):
    """mean [y], var [y^2] (n,) of f at X_new (n, d), without noise; J Eq. (7), (8).

    fit: a Fit, or its predictor alone. ValueError for bad input.
    """
    check_kind("fit", fit, (Fit, Predictor), "fit")
    predictor = fit.predictor if isinstance(fit, Fit) else fit
    kernel, ln_theta, _, Z_mean, mean_weights, Z, G, eigenvalues, k = predictor
    X_new = check_columns("X_new", X_new, Z.shape[1])
    mean = np.empty(len(X_new))
    var = np.empty(len(X_new))
    for rows in row_blocks(len(X_new), len(Z)):
        K = K_mean = kernel(X_new[rows], Z, ln_theta)[0]
        if Z_mean is not Z:
            K_mean = kernel(X_new[rows], Z_mean, ln_theta)[0]
        mean[rows] = K_mean @ mean_weights                                      # J Eq. (7)
        KG = K @ G
        KG *= KG
        var[rows] = k + KG @ eigenvalues                                        # J Eq. (8)
    return mean, np.maximum(var, VAR_FLOOR * k)


@in_doubles
def predict_y(fit, X_new):
    """mean [y], var [y^2] (n,) of y = f + noise; J Eq. (11), (14), (22); arguments as predict."""
    mean, var = predict(fit, X_new)
    predictor = fit.predictor if isinstance(fit, Fit) else fit
    return mean, var + np.exp(predictor.ln_noise)                               # J Eq. (11)


# --- metrics: J Sec. 5 ----------------------------------------------------------------------------

@in_doubles
def residual(y, mean, var=0.0):
    """y - mean. ValueError unless mean has y's shape, and var has it or is a scalar.

    (n, 1) by (n,) would give n x n scores.
    """
    shapes = np.shape(y), np.shape(mean), np.shape(var)
    if shapes[1] != shapes[0] or shapes[2] not in ((), shapes[0]):
        raise ValueError("y, mean and var differ in shape: {}, {}, {}".format(*shapes))
    return np.subtract(y, mean)


@in_doubles
def nll(y, mean, var):
    """-ln N(y | mean, var) averaged over rows [nats]; var: variance of y, noise included."""
    return float(np.mean(np.log(2 * np.pi * var) + residual(y, mean, var) ** 2 / var) / 2)


@in_doubles
def held_out_nll(predictor, X, y):
    """nll of the predictions of a Predictor or Fit at rows X (n, d), y (n,) not trained on."""
    return nll(y, *predict_y(predictor, X))


@in_doubles
def rmse(y, mean):
    """Root mean squared error of the mean [y]."""
    return float(np.sqrt(np.mean(residual(y, mean) ** 2)))


@in_doubles
def crps(y, mean, var):
    """Continuous ranked probability score, int (F(t) - 1[t >= y])^2 dt, averaged over rows [y].

        s (z (2 Phi(z) - 1) + 2 phi(z) - 1/sqrt(pi)) for F = N(mean, var)
    s = sqrt(var), z = (y - mean)/s; Gneiting & Raftery 2007.
    """
    s = np.sqrt(var)
    z = residual(y, mean, var) / s
    central = norm_cdf(z) - norm_cdf(-z)                                        # 2 Phi(z) - 1
    scores = s * (z * central + 2 * norm_pdf(z) - 1 / math.sqrt(math.pi))
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
    history: list              # objective per epoch, or per iteration of L-BFGS [nats per row]
    validation: float          # NLL on the validation rows, NaN without
    message: str               # why training stopped
    predictor: Predictor       # what predict needs


@in_doubles
def initial_parameters(X, method, M, kernel=matern52, ard=True, Z=None, rng=None, start_theta=None):
    """Start dict p: l, periods, sigma_k^2, sigma_obs^2 are START; m = 0, a = 0.

    start_theta: a function of d and ard that gives ln_theta instead.

    L_S = I (Chol, OD) or START_STD (MF, MFD). Z comes from k-means unless Z (M, d) is given, whose
    length then replaces M. Z_mean (MFD, OD) is another run of k-means.
    """
    variant, d = METHODS[method][1], X.shape[1]
    rng = rng or np.random.default_rng(0)
    start_theta = start_theta or STARTS.get(kernel, softplus_start)
    p = dict(ln_theta=start_theta(d, ard), ln_noise=np.array(math.log(START)))
    if variant != "no Z":
        p["Z"] = kmeans(X, M, rng) if Z is None else Z
    if variant in ("no Z", "Z only"):
        return p
    M = len(p["Z"])
    p["m"] = np.zeros(M)
    if variant in ("Chol", "OD"):
        p["L_S"] = np.eye(M)
    if variant in ("MF", "MFD"):
        p["L_S"] = np.full(M, START_STD)
    if variant in ("MFD", "OD"):
        p["Z_mean"] = kmeans(X, M, rng)
    if variant == "OD":
        p["a"] = np.zeros(M)
    return p


def log_box(p, min_noise):
    """Lower and upper limits of pack(p): LN_BOX for ln_theta and ln_noise, none for the others.

    The noise stays above min_noise.
    """
    limits = dict(ln_theta=LN_BOX, ln_noise=LN_BOX)
    high = {name: np.full(np.shape(v), limits.get(name, np.inf)) for name, v in p.items()}
    low = {name: -v for name, v in high.items()}
    low["ln_noise"] = max(math.log(min_noise), -LN_BOX)
    return pack(low), pack(high)


def step_size(lr, epoch, epochs, milestones=MILESTONES):
    """lr over ten for each of the milestones that lies behind.

    That is epoch (of 0 .. epochs - 1) >= milestone * epochs.
    """
    return lr * 0.1 ** sum(epoch >= share * epochs for share in milestones)


def check_validation(X_val, y_val, d):
    """X_val (n, d), y_val (n,), float64. ValueError unless they fit each other and d columns."""
    X_val, y_val = check_array("X_val", X_val, 2), check_array("y_val", y_val, 1)
    if X_val.shape != (len(y_val), d) or len(y_val) == 0:
        name = "y_val" if X_val.shape[1] == d and len(X_val) else "X_val"
        raise ValueError(f"{name} does not fit: want {d} columns like X, and as many rows of X_val "
                         f"as of y_val, at least one: got shapes {X_val.shape} and {y_val.shape}")
    return X_val, y_val


def check_fit(args):
    """Makes the arguments of fit, attributes of args, what fit uses: float64, int, bool or str.

    ValueError that names what is wrong. Warns of data not scaled.
    """
    args.X, args.y = check_data(args.X, args.y)
    d = args.X.shape[1]
    args.method = check_choice("method", args.method, METHODS)
    if args.beta_reg is None:
        args.beta_reg = 0.05 if args.method.startswith("PPGPR") else 1.0
    if args.patience is not None and (args.X_val is None or args.y_val is None):
        raise ValueError("patience needs X_val and y_val")
    if (args.X_val is None) != (args.y_val is None):
        raise ValueError("X_val and y_val go together")
    if args.X_val is not None:
        args.X_val, args.y_val = check_validation(args.X_val, args.y_val, d)
    args.M = check_count("M", args.M)
    if isinstance(args.kernel, str):
        args.kernel = KERNELS[check_choice("kernel", args.kernel, KERNELS)]
    check_kernel(args.kernel)
    args.start_theta = args.start_theta or STARTS.get(args.kernel, softplus_start)
    check_kernel(args.start_theta, "start_theta", "se_start")
    args.ard = check_flag("ard", args.ard)
    check_signal(args.kernel, args.X, args.start_theta(d, args.ard))
    args.beta_reg = check_scalar("beta_reg", args.beta_reg, 0, closed=True)
    args.gamma = check_scalar("gamma", args.gamma, 1)
    args.batch = check_count("batch", args.batch)
    args.epochs = check_count("epochs", args.epochs)
    args.lr = check_scalar("lr", args.lr, 0)
    args.milestones = check_array("milestones", args.milestones, 1)
    if np.any((args.milestones < 0) | (args.milestones > 1)):
        raise ValueError(f"milestones must lie in [0, 1], got {args.milestones}")
    args.min_noise = check_scalar("min_noise", args.min_noise, 0, math.exp(LN_BOX))
    if args.Z is not None:
        args.Z = check_columns("Z", args.Z, d, 1)
    if args.patience is not None:
        args.patience = check_count("patience", args.patience)
    args.seed = check_count("seed", args.seed, 0)
    warn_unscaled(args.X, args.y, "own_data.scale.standardise")


def algorithm1(p, args, rng):
    """Yields (p, mean objective of its steps) after each epoch of J Algorithm 1.

    An epoch's random batches visit each row once. args: the checked arguments of fit.
    """
    N = len(args.y)
    batches = math.ceil(N / min(args.batch, N))
    low, high = log_box(p, args.min_noise)
    x, state = pack(p), None
    for epoch in range(args.epochs):
        rate = step_size(args.lr, epoch, args.epochs, args.milestones)
        values = []
        for rows in np.array_split(rng.permutation(N), batches):
            value, back = objective(unpack(x, p), args.X[rows], args.y[rows], N, args.method,
                                    args.beta_reg, args.gamma, args.kernel)
            if not np.isfinite(value):
                raise ValueError(f"the objective is {value} in epoch {epoch + 1}: "
                                 "scale X and y, or lower lr")
            grads = back(1.0)
            gradient = pack({name: grads[name] for name in p})
            x, state = adam_step(x, gradient, state, rate)
            x = np.clip(x, low, high)
            values.append(value)
        yield unpack(x, p), float(np.mean(values))


@in_doubles
def train(epochs_of_p, args):
    """p, history, message from epochs_of_p, an iterator of (p, objective) per epoch.

    patience None: all epochs, and the last p. Otherwise the p with the lowest NLL on X_val, y_val,
    and the end once `patience` epochs in a row have not lowered it. Also the end where
    callback(epoch, objective) is true. args: the checked arguments of fit. ValueError for an NLL
    that is not finite.
    """
    history, best_score = [], np.inf
    for epoch, (p, value) in enumerate(epochs_of_p, 1):
        history.append(value)
        stop = args.callback and args.callback(epoch, value)
        if args.patience is None:
            best_p, best_epoch = p, epoch
        else:
            score = held_out_nll(predictor_at(p, args.kernel), args.X_val, args.y_val)
            if not np.isfinite(score):
                raise ValueError(f"the validation NLL is {score} after epoch {epoch}: "
                                 "scale X and y, or lower lr")
            if score < best_score:
                best_score, best_p, best_epoch = score, p, epoch
        if stop:
            return best_p, history, STOPPED
        if args.patience is not None and epoch - best_epoch >= args.patience:
            return best_p, history, f"stopped after {epoch} epochs, best after {best_epoch}"
    return best_p, history, f"{epoch} epochs"


@in_doubles
def fit_given(p, args):
    """p, history, message of exact or FITC by L-BFGS on all rows; args: the checked arguments."""
    nll = exact_nll if args.method == "exact" else fitc_nll

    def fun(x):
        value, back = nll(unpack(x, p), args.X, args.y, args.kernel)
        grads = back(1.0)
        return value, pack({name: grads[name] for name in p})
    low, high = log_box(p, args.min_noise)
    optimum = lbfgs(fun, pack(p), low, high, args.epochs, callback=args.callback)
    return unpack(optimum.x, p), optimum.history, optimum.message


def fit(X, y, method="PPGPR-MFD", M=100, kernel="Matern52", beta_reg=None, gamma=1.03, batch=200,
        epochs=400, lr=0.01, milestones=MILESTONES, ard=True, min_noise=1e-4, Z=None,
        X_val=None, y_val=None, patience=None, start=None, seed=0, callback=None, start_theta=None):
    """A GP regressor trained by one of the paper's methods, as a Fit; J Algorithm 1, App. C.1.

    X (N, d), y (N,): standardise them first. method: a key of METHODS; kernel: a key of KERNELS, or
    a function as se_kernel; start_theta: where its ln_theta starts, a function of d and ard as
    se_start of pacgp_ref, by default that of STARTS or the SE kernel's. M inducing inputs by k-means, or those of Z (M, d), whose number then
    replaces M; MFD and OD have as many again for the mean, always by k-means (start's Z_mean
    replaces them). ard: a lengthscale per column, as periodic always has.
    beta_reg >= 0: see J Eq. (18); None: 0.05 for PPGPR, which prefers small values (J Sec. 5.1), 1
    for the others. gamma > 1: of gamma-robust alone. batch: rows per step, all if there are fewer.
    lr: Adam's first step size, which falls to a tenth after each of the milestones, shares of the
    epochs. min_noise [y^2]: least sigma_obs^2; 1e-4 is GPyTorch's, unmentioned in the paper, and
    where targets repeat (pol) it decides PPGPR's scores.
    X_val, y_val: validation rows; their NLL becomes Fit.validation. patience: stop once so many
    epochs have not lowered it, and return the best p; None: all epochs. start: {name: value} in
    place of those of initial_parameters; to set a period, give the whole ln_theta.
    exact and FITC use L-BFGS on all rows, at most `epochs` evaluations, and ignore batch, lr,
    milestones, beta_reg, gamma, patience; exact also M and Z.
    callback(epoch, objective); for exact and FITC (evaluations so far, objective) after each
    iteration: true ends the training. The same seed gives the same result. ValueError for bad
    input, or when the objective is no longer finite. Warns where the data are not scaled.
    """
    args = SimpleNamespace(**locals())
    check_fit(args)
    rng = np.random.default_rng(args.seed)
    p = initial_parameters(args.X, args.method, args.M, args.kernel, args.ard, args.Z, rng,
                           args.start_theta)
    p = with_start(p, start)
    if args.method in ("exact", "FITC"):
        p, history, message = fit_given(p, args)
        predictor = predictor_given_data(p, args.X, args.y, args.kernel)
    else:
        p, history, message = train(algorithm1(p, args, rng), args)
        predictor = predictor_at(p, args.kernel)
    validation = math.nan
    if args.X_val is not None:
        validation = held_out_nll(predictor, args.X_val, args.y_val)
    return Fit(args.method, args.kernel, args.beta_reg, args.gamma, p, history, validation, message,
               predictor)


def choose(X, y, X_val, y_val, method="PPGPR-MFD", betas=None, gammas=GAMMAS, **settings):
    """The Fit with the best validation NLL over beta_reg in betas; J App. C.1.

    For gamma-robust over gamma in gammas. betas None: the paper's, BETAS. settings: the other
    arguments of fit.
    """
    if X_val is None or y_val is None:
        raise ValueError("X_val and y_val are what choose chooses by: both are needed")
    if betas is None:
        betas = BETAS.get(str(method), (1.0,))              # fit raises for an unknown method
    robust = method == "gamma-robust"
    name, plural, values = ("gamma", "gammas", gammas) if robust else ("beta_reg", "betas", betas)
    if name in settings:
        raise ValueError(f"{name} is what choose chooses: give {plural}")
    values = check_array(plural, values, 1)
    if len(values) == 0:
        raise ValueError(f"{plural} must hold at least one value")
    for value in values:
        check_scalar(plural, value, 1 if robust else 0, closed=not robust)
    settings.update(X_val=X_val, y_val=y_val)
    fits = [fit(X, y, method, **{name: value}, **settings) for value in values]
    return min(fits, key=lambda f: f.validation)
