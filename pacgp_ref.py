"""Learning GPs by minimising PAC-Bayesian generalization bounds, in NumPy, equation by equation.

D. Reeb, A. Doerr, S. Gerwinn, B. Rakitsch: Learning Gaussian Processes by Minimizing PAC-Bayesian
Generalization Bounds, NeurIPS 2018. Tag: R. A comment, # and R (n), marks the statement that
computes Eq. (n); docs/reading-R.md derives each such line.

The idea. A GP prior P and a GP posterior Q give three things: the posterior's mean and variance at
each training input, and KL(Q||P). A bounded loss turns mean and variance into the training risk
R_S(Q); R_S and KL give a number B(Q). With probability at least 1 - delta over the data, the true
risk is at most B(Q) for every Q at once. So Q may be chosen by minimising B, which is
differentiable:

    (X, y) -> kernel -> (mean_n, var_n), KL -> expected loss per point -> R_S
           -> kl^-1(R_S, complexity / N) = B,      and back by hand, in reverse order.

Symbols of R alone; README.md has those that the three papers share, and says what `back` is:

    paper             code            shape      meaning, unit
    R_S(Q), B(Q)      R_S, bound      scalars    training risk; bound on the true risk
    mhat, sigma-hat^2 mean, var       (N,) (N,)  marginals of Q at the data [y], [y^2]
    a_M, B_MM         L m, L S L^T    (M,) (M,M) mean and covariance of Q(f_M)
    Q_MM              L (I + A) L^T   (M,M)      so that S = (I + A)^-1
    Lambda            ktilde          (N,)       diagonal of K_NN less that of K_NM K_MM^-1 K_MN
    alpha             alpha           scalar     1 = FITC, 0 = VFE, DTC
    p_theta           penalty         scalar     ln(1/p_theta) [nats]
    eps               eps             scalar     accuracy goal of the loss [y]; for the losses
                                                 "band" and "relative" a fraction of |y_i|
    delta             delta           scalar     probability that the certificate fails
    kl^-1             kl_inv                     upper inverse of the binary KL divergence

The order is the paper's, with App. A and C where they are first needed; then numerics, then checks
of arguments. This file can be imported alone, with NumPy.

The mean function is zero. For another m(x), fixed before the data are seen, pass y - m(X) and add
m(X_new) to the predictions; not with "band" and "relative", whose accuracy goal is relative to y.

Equations without code of their own: (2), the true risk, is what the bound is about and cannot be
computed; (7) is the step from KL(Q||P) to KL(Q(f_N)||P(f_N)), of N-dimensional laws; (15)-(17)
prove that ln(1/p_theta) pays for choosing theta. The tests confirm each numerically.
"""
import functools
import math
import warnings
from collections.abc import Sequence
from typing import Callable, NamedTuple

import numpy as np


__version__ = "2.0.0"      # of all three modules

# Added to the diagonal of K_MM, times sigma_s^2: u = f(Z) + noise under P and Q. Then
# KL(q(u)||p(u)) is the KL of (f, u), at least that of f, as (4) needs; and P's law of f does not
# depend on Z, so that Z may be learnt. 1e-8 keeps Cholesky safe at M = 1000; 1e-4 changes B by
# 0.0005.
JITTER = 1e-8
# Smallest predictive variance, relative to sigma_s^2: below it there is only rounding.
VAR_FLOOR = 1e-12
# Smallest noise variance of a full GP that fit trains, relative to N sigma_s^2: K + sigma^2 I then
# has a Cholesky factor in doubles for all theta, also where y is an exact function of X.
NOISE_FLOOR = 1e-13
# Relative margin that makes a rounded kl^-1 an upper bound; its rounding error is below 1e-14.
ROUND_UP = 1e-13
# What everything is computed in.
DOUBLE = np.dtype(float)
# Relative rounding error of one operation.
ULP = 2.0**-53
# Largest relative error of a kernel whose distances come from one matrix product.
EXPANSION_ERROR = 5e-11
# Just above the smallest normal double: replaces 0 in divisors, and q = 0 where d kl^-1/dq = inf.
TINY = 2.3e-308
# Bytes per block of rows, which fits in the cache; for M > 221, 4 M rows instead.
BLOCK_BYTES = 3 * 2**19
# Triangles up to this size are inverted at once, larger ones by halves.
LEAF = 48
# The initial Z come from k-means on at most so many points, drawn at random.
SMALL = 20_000
# Search box: |ln variance| <= 16. Here it limits sigma_n^2 alone, for eps below about 1e-3 standard
# deviations of y; in predictive and online every parameter of kernel and noise.
LN_BOX = 16.0
# (L, G) of the theta grid, R Sec. 3.1: two decimals of ln theta in [-6, 6].
GRID = (6.0, 1200)
STOPPED = "stopped by the callback"
# eps/s below which _where_narrow replaces the closed forms of two losses, which cancel there.
NARROW = 0.02
SQUARE_SERIES = (4 / 3, 2 / 15, 1 / 210)        # its a_k for the loss t^2
RELATIVE_SERIES = (1.0, 1 / 12, 1 / 360)        # and for |t|


# --- the binary KL divergence and its inverse: R Sec. 2.2, App. A --------------------------------

def x_minus_log1p(x, x1):
    """h(x) = x - ln(1 + x) >= 0, elementwise, to all digits; x1 = 1 + x has more of them near -1.

    ln(1 + x) = 2 atanh(s) with s = x / (2 + x), so h = s (x - 2 s^2 (1/3 + s^2/5 + s^4/7 + ...)).
    """
    x = as_float(x)
    s = x / (2 + x)
    t = s * s
    series = 0.0
    for n in range(23, 1, -2):
        series = series * t + 1 / n
    near_0 = s * (x - 2 * t * series)
    return np.where(np.abs(x) < 0.3, near_0, x - np.log(as_float(x1)))


def binary_kl(q, p):
    """kl(q||p) = q ln(q/p) + (1-q) ln((1-q)/(1-p)) in nats, elementwise; R Sec. 2.2, above (3).

    Computed as q h(d/q) + (1-q) h(-d/(1-q)), d = p - q: two terms that are never negative, so
    nothing cancels near p = q.

    q, p in [0, 1] broadcast. Returns values in [0, inf]. ValueError outside [0, 1].
    """
    q, p = as_float(q), as_float(p)
    if not np.all((0 <= q) & (q <= 1)) or not np.all((0 <= p) & (p <= 1)):
        raise ValueError("q and p must lie in [0, 1]")
    d = p - q
    w = np.maximum(1 - q, TINY)
    q = np.maximum(q, TINY)
    with np.errstate(divide="ignore", under="ignore"):
        return q * x_minus_log1p(d / q, p / q) + w * x_minus_log1p(-d / w, (1 - p) / w)


def kl_inv_gap(q, eps):
    """q, eps as float arrays of one shape, and d = kl^-1(q, eps) - q >= 0 to 14 digits; as kl_inv.

    Newton on f(d) = q h(d/q) + (1-q) h(-d/(1-q)) - eps, convex with f' = d / ((q+d)(1-q-d)). It
    starts at the least of three upper bounds: Pinsker's, sqrt(eps/2); the root of d^2 = 2 eps
    (q+d); 1-p >= (1-q) exp(-(eps - q ln q)/(1-q)), from kl(q||p) = eps without q ln p <= 0.
    """
    q, eps = np.broadcast_arrays(1.0 * as_float(q), 1.0 * as_float(eps))
    given = q, eps
    if not np.all((0 <= q) & (q <= 1) & (0 <= eps)):
        raise ValueError("q must lie in [0, 1], and eps be at least 0")
    w = 1 - q
    q = np.maximum(q, TINY)
    eps = eps + 2e-323 * (eps > 0)      # a denormal eps rounds f
    with np.errstate(all="ignore"):
        pinsker = np.sqrt(eps) * math.sqrt(0.5)
        root = eps + np.sqrt(eps) * np.sqrt(eps + 2 * q)
        near_1 = -w * np.expm1(-(eps - q * np.log(q)) / w)
        d = np.fmin(np.minimum(pinsker, root), near_1)
        for _ in range(60):
            kl = q * x_minus_log1p(d / q, (q + d) / q) + w * x_minus_log1p(-d / w, (w - d) / w)
            step = np.where((d > 0) & (d < w), (kl - eps) / d * (q + d) * (w - d), 0.0)
            d = np.minimum(d - step, w)
            if np.all(np.abs(step) <= 4e-16 * d):
                break
    return *given, d


def kl_inv(q, eps):
    """max{p in [0, 1] : kl(q||p) <= eps}, rounded up, by 3e-13 (relative) or 1e-304 at most; R (3).

    q in [0, 1], eps in [0, inf] nats: scalars or arrays that broadcast. Returns p in [q, 1], a
    float for scalars. ValueError for q outside [0, 1], eps < 0 and NaN.
    """
    q, eps, d = kl_inv_gap(q, eps)
    with np.errstate(under="ignore"):
        above = np.where(eps > 0, (q + d) * (1 + ROUND_UP), q)
    p = np.minimum(above, 1.0)                              # R (3): p = kl^-1(q, eps) = q + d
    return p if p.ndim else float(p)


def kl_inv_grad(q, eps):
    """d kl^-1/dq and d kl^-1/deps; R (12), (13). Arguments as kl_inv.

    With p = kl^-1(q, eps) and d = p - q:
        dp/deps = p (1-p) / d,   dp/dq = (ln(p/q) + ln((1-q)/(1-p))) dp/deps.

    Never NaN; infinite only where the derivative is: d/dq at q = 0 < eps, d/deps at
    eps = 0 < q < 1. As 1 - p nears rounding it loses digits: 6e-4 off at q = 0.001, eps = 30.
    """
    q, eps, d = kl_inv_gap(q, eps)
    w = 1 - q
    with np.errstate(all="ignore"):
        d_eps = (q + d) * (w - d) / d                                  # R (13): d kl^-1/deps
        d_q = (np.log1p(d / q) - np.log1p(-d / w)) * d_eps             # R (12): d kl^-1/dq
    at_0 = eps == 0
    at_1 = d >= w      # kl^-1 = 1
    d_q = np.select([at_0, at_1], [1.0, 0.0], d_q)
    d_eps = np.select([at_0 & (q == 0), at_1, at_0], [1.0, 0.0, np.inf], d_eps)
    return (d_q, d_eps) if d_q.ndim else (float(d_q), float(d_eps))


# --- the bounds: R Sec. 2.2 ----------------------------------------------------------------------

def ln_confidence(N, delta, xi=False):
    """ln(2 sqrt(N)/delta) as in R (4), valid for every N >= 1; or ln(xi(N)/delta), xi=True.

        xi(N) = sum_k C(N,k) (k/N)^k (1-k/N)^(N-k) = 2 + sum_{j=1}^{N-1} prod_{i<=j} (1 - i/N)
              <= 2 sqrt(N)
    is the constant that the theorem's proof needs (Maurer 2004); it saves up to 0.47 nats. The
    second form (Ramanujan's Q) has only positive terms; its rounding error, below N ulp, is added.

    ValueError unless N is a whole number of at least 1 and delta in (0, 1].
    """
    if not (N >= 1 and N % 1 == 0 and 0 < delta <= 1):
        raise ValueError(f"N must be a whole number, delta in (0, 1], got {N!r}, {delta!r}")
    N = int(N)
    delta = float(delta)
    if not xi:
        return math.log(2 * math.sqrt(N) / delta)
    xi_N = 2 + np.cumprod(1 - np.arange(1, N) / N).sum()
    return math.nextafter(math.log(xi_N * (1 + 4.5e-16 * N) / delta), math.inf)


def complexity(KL, N, delta=0.01, penalty=0.0, xi=False):
    """(KL + penalty + ln(2 sqrt(N)/delta)) / N [nats per point]: bounds kl(R_S||true risk).

    R (4), (5). Arguments as pac_bayes_bound. Values of KL and penalty in (-1e-9, 0) are rounding
    and count as 0; lower ones raise ValueError.
    """
    if not (KL > -1e-9 and penalty > -1e-9):
        raise ValueError(f"KL and penalty must be at least 0, got {KL}, {penalty}")
    KL = max(float(KL), 0.0)
    penalty = max(float(penalty), 0.0)
    return (KL + penalty + ln_confidence(N, delta, xi)) / int(N)


def pac_bayes_bound(R_S, KL, N, delta=0.01, penalty=0.0, xi=False):
    """B = kl^-1(R_S, (KL + penalty + ln(2 sqrt(N)/delta)) / N); R (4), (5).

    For losses in [0, 1] and N i.i.d. data points: with probability at least 1 - delta over the
    data, the true risk of Q is at most B, for all Q at once.

        R_S         training risk R_S(Q), in [0, 1]
        KL          KL(Q||P) [nats]
        penalty     ln(1/p_theta) for a prior chosen on the data from a countable set, ln|Theta| for
                    a grid (ln_grid_size); add ln E where the best of E values of eps, fixed
                    beforehand, is reported
        xi          the constant xi(N) of ln_confidence
    Only kl^-1 is rounded up; for rounding in R_S and KL see `strict` of beyond/rounding.py.
    Returns a float in [R_S, 1].
    """
    eps = complexity(KL, N, delta, penalty, xi)
    return kl_inv(R_S, eps)                # R (5)  # R (4), penalty = 0: B = kl^-1(R_S, eps)


def pac_bayes_bound_grad(R_S, KL, N, delta=0.01, penalty=0.0, xi=False):
    """dB/dR_S and dB/dKL: the factors in parentheses of R (14), the second over N.

    R_S = 0 is replaced by TINY, where dB/dR_S is finite.
    """
    R_S = np.maximum(R_S, TINY)
    d_R_S, d_eps = kl_inv_grad(R_S, complexity(KL, N, delta, penalty, xi))
    return d_R_S, d_eps / int(N)


def pinsker_bound(R_S, KL, N, delta=0.01, penalty=0.0, xi=False):
    """B_Pin = R_S + sqrt((KL + penalty + ln(2 sqrt(N)/delta)) / (2N)) >= B; R Sec. 2.2, below (5).

    It may exceed 1. Arguments as pac_bayes_bound.
    """
    R_S = float(R_S)
    if not 0 <= R_S <= 1:
        raise ValueError(f"R_S must lie in [0, 1], got {R_S}")
    return R_S + math.sqrt(complexity(KL, N, delta, penalty, xi) / 2)


def pinsker_bound_grad(R_S, KL, N, delta=0.01, penalty=0.0, xi=False):
    """dB_Pin/dR_S and dB_Pin/dKL."""
    return 1.0, 1 / math.sqrt(complexity(KL, N, delta, penalty, xi) / 2) / 4 / int(N)


def bayes_risk_bound(bound):
    """min(2 B, 1), a bound on the risk of the posterior mean itself: R_Bay <= 2 R; R Sec. 2.1.

    For losses quasi-convex in the prediction, and predictions symmetric about their mean: all
    losses here. bound: a number of at least 0, or an array of them.
    """
    bound = as_float(bound)
    if not np.all(bound >= 0):
        raise ValueError("bound must be at least 0")
    return np.minimum(2 * bound, 1.0)


# --- losses and their expectation under a Gaussian prediction: R App. C --------------------------

def doubled(f):
    """f and its VJP with arguments by as_float, where underflow to 0 is no error."""
    def f_in_doubles(*args, **named):
        with np.errstate(under="ignore"):
            result = f(*map(as_float, args), **as_float(named))
        if type(result) is tuple and callable(result[-1]):
            return *result[:-1], doubled(result[-1])
        return result
    f_in_doubles.__wrapped__ = f
    return f_in_doubles


def in_doubles(f):
    """Decorator: f and its VJP compute in float64 whatever they get; see as_float."""
    return functools.wraps(f)(doubled(f))


@in_doubles
def norm_cdf(z):
    """Phi(z) = erfc(-z/sqrt 2)/2, any shape, to 1e-12 relative in both tails; R (30)."""
    z = np.asarray(z)
    arguments = (z * -math.sqrt(0.5)).ravel().tolist()
    erfc = np.fromiter(map(math.erfc, arguments), float, z.size)
    return erfc.reshape(z.shape) / 2                                   # R (30): Phi(z)


@in_doubles
def norm_pdf(z):
    """phi(z) = exp(-z^2/2) / sqrt(2 pi)."""
    return np.exp(-z**2 / 2) / math.sqrt(2 * math.pi)


@in_doubles
def loss_01(y, yhat, eps):
    """1 where the prediction misses by more than eps, else 0; R (18)."""
    check_shapes("y, yhat and eps", y, yhat, eps)
    return (np.abs(y - yhat) > eps) * 1.0                              # R (18): l_1


@in_doubles
def loss_clipped_square(y, yhat, eps):
    """min(((y - yhat)/eps)^2, 1); R (19)."""
    check_shapes("y, yhat and eps", y, yhat, eps)
    return np.minimum(((y - yhat) / eps) ** 2, 1.0)                    # R (19): l_2


@in_doubles
def loss_exp(y, yhat, eps):
    """1 - exp(-((y - yhat)/eps)^2), the inverted Gaussian; R (20)."""
    check_shapes("y, yhat and eps", y, yhat, eps)
    return -np.expm1(-(((y - yhat) / eps) ** 2))                       # R (20): l_exp


@in_doubles
def loss_band(y, yhat, lower, upper):
    """1 where yhat is outside [lower, upper] = [r_-(y), r_+(y)], else 0; R (21).

    y enters through lower and upper alone.
    """
    check_shapes("yhat, lower and upper", yhat, lower, upper)
    return ((yhat < lower) | (yhat > upper)) * 1.0                     # R (21): l_+-


@in_doubles
def loss_relative(y, yhat, eps=1.0):
    """min(|yhat - y| / (eps |y|), 1); R App. C, below (21), with eps = 1.

    The paper has max for min, which is not bounded. At y = 0 every prediction other than 0 has
    loss 1.
    """
    check_shapes("y, yhat and eps", y, yhat, eps)
    goal = eps * np.abs(y)
    missed_0 = (y == 0) * (yhat != 0)
    return np.minimum(np.abs(yhat - y), goal) / np.maximum(goal, TINY) + missed_0


def _residual_of(y, mean, var, eps):
    """u = mean - y, var and eps as floats; ValueError unless var > 0 and eps > 0 (NaN fails)."""
    check_shapes("y, mean, var and eps", y, mean, var, eps)
    if not (np.all(var > 0) and np.all(eps > 0)):
        raise ValueError("var and eps must be positive")
    return mean - y, var, np.multiply(1.0, eps)


@in_doubles
def expected_band_loss(mean, var, lower, upper):
    """P(v outside [lower, upper]), v ~ N(mean, var), per point, and its d/dmean, d/dvar.

    R (29), (31).
        a = (lower - mean)/s, b = (upper - mean)/s, s = sqrt(var):   loss = Phi(a) + Phi(-b)
        da/dmean = -1/s,   da/dvar = -a/(2 var),   and the same for b

    mean [y], var [y^2] and lower <= upper (not checked) are (N,) or scalars. Returns three arrays
    (N,), the first in [0, 1]. ValueError unless var > 0.

    The paper has 1 - Phi(b); Phi(-b) is equal and keeps its digits below 1e-16. (31) lacks the
    factor 1/sqrt(2 pi) of phi.
    """
    if not np.all(var > 0):
        raise ValueError("var must be positive")
    check_shapes("mean, var, lower and upper", mean, var, lower, upper)
    s = np.sqrt(var)
    a = (lower - mean) / s
    b = (upper - mean) / s
    phi_a = norm_pdf(a)
    phi_b = norm_pdf(b)
    loss = norm_cdf(a) + norm_cdf(-b)                                  # R (29): E l_+-
    d_mean = (phi_b - phi_a) / s                                       # R (31): dE l/dmean
    d_var = (b * phi_b - a * phi_a) / (2 * var)                        # R (31): dE l/dvar
    return loss, d_mean, d_var


@in_doubles
def expected_01_loss(y, mean, var, eps):
    """P(|f_n - y_n| > eps), f_n ~ N(mean_n, var_n), per point, and its d/dmean_n, d/dvar_n.

    R (26), (31): the band loss of the residual mean - y, which is formed first, so that small
    differences of large numbers keep their digits.

    y, mean [y] and var [y^2] are (N,), eps [y] a scalar or (N,). Returns three arrays (N,); the
    mean of the first is R_S (24), (25). ValueError unless var > 0 and eps > 0 (NaN fails).
    """
    u, var, eps = _residual_of(y, mean, var, eps)
    return expected_band_loss(u, var, -eps, eps)                       # R (26): E l_1


@in_doubles
def expected_relative_band_loss(y, mean, var, eps):
    """P(|f_n - y_n| > eps |y_n|) and its d/dmean_n, d/dvar_n; R (29) with r = y +- eps |y|.

    Arguments as expected_01_loss, except that eps has no unit.
    """
    u, var, eps = _residual_of(y, mean, var, eps)
    goal = eps * np.abs(y)
    return expected_band_loss(u, var, -goal, goal)


@in_doubles
def expected_clipped_square_loss(y, mean, var, eps):
    """E min(((y - v)/eps)^2, 1), v ~ N(mean, var), and its d/dmean, d/dvar; R (27).

        u = mean - y, a = (-eps - u)/s, b = (eps - u)/s, inside = Phi(b) - Phi(a), e = eps/s:
        loss = ((u^2 + var) inside - s ((u + eps) phi(b) + (eps - u) phi(a))) / eps^2
               + Phi(a) + Phi(-b)
        dE l/dmean = E l',  dE l/dvar = E l''/2,  l'' = 2/eps^2 inside, -(2/eps) at each edge

    Arguments as expected_01_loss. The paper has the wrong sign at one of its two boundary terms,
    and 1 - inside, which loses the digits of small losses.
    """
    u, var, eps = _residual_of(y, mean, var, eps)
    s = np.sqrt(var)
    u = _cut_far(u, s, eps)
    a = (-eps - u) / s
    b = (eps - u) / s
    e = eps / s
    phi_a = norm_pdf(a)
    phi_b = norm_pdf(b)
    inside, tails = _inside_and_tails(a, b)
    edges = s * ((u + eps) * phi_b + (eps - u) * phi_a)
    loss = ((u**2 + var) * inside - edges) / eps**2 + tails            # R (27): E l_2
    d_mean = 2 / eps**2 * (u * inside - s * (phi_b - phi_a))
    d_var = (inside - e * (phi_b + phi_a)) / eps**2
    return _where_narrow(e, SQUARE_SERIES, u, var, (loss, d_mean, d_var))


@in_doubles
def expected_exp_loss(y, mean, var, eps):
    """E[1 - exp(-((y - v)/eps)^2)], v ~ N(mean, var), and its d/dmean, d/dvar; R (28).

        g = 1 - loss = (1 + 2 var/eps^2)^(-1/2) exp(-u^2/w),   u = mean - y,   w = 2 var + eps^2
        d ln g/dmean = -2 u/w,   d ln g/dvar = -1/w + 2 u^2/w^2

    Arguments as expected_01_loss. The paper has the standard deviation sigma-hat where the variance
    belongs.
    """
    u, var, eps = _residual_of(y, mean, var, eps)
    u = _cut_far(u, np.sqrt(var), eps)
    w = 2 * var + eps**2
    ln_g = -np.log1p(2 * var / eps**2) / 2 - u**2 / w                  # R (28): ln(1 - E l_exp)
    g = np.exp(ln_g)
    d_mean = g * 2 * u / w
    d_var = g * (1 / w - 2 * (u / w) ** 2)
    return -np.expm1(ln_g), d_mean, d_var


@in_doubles
def expected_relative_loss(y, mean, var, eps=1.0):
    """E min(|v - y|/(eps |y|), 1), v ~ N(mean, var), and its d/dmean, d/dvar; R App. C, below (21).

        u = mean - y, goal = eps |y|, a = (-goal - u)/s, b = (goal - u)/s:
        loss = (u (P(0 < v-y < goal) - P(-goal < v-y < 0))
                + s (2 phi(u/s) - phi(a) - phi(b))) / goal + Phi(a) + Phi(-b)
        l' = sign(v - y)/goal inside,   l'' = 2/goal at 0 and -1/goal at each edge

    Arguments as expected_01_loss, except that eps has no unit.
    """
    u, var, eps = _residual_of(y, mean, var, eps)
    s = np.sqrt(var)
    goal = np.maximum(eps * np.abs(y), TINY)
    a = (-goal - u) / s
    b = (goal - u) / s
    at_y = -u / s
    e = goal / s
    above = _inside_and_tails(at_y, b)[0]
    below = _inside_and_tails(a, at_y)[0]
    tails = _inside_and_tails(a, b)[1]
    edges = 2 * norm_pdf(at_y) - norm_pdf(a) - norm_pdf(b)
    goal = np.where(e < NARROW, 1.0, goal)      # there the series is used
    loss = (u * (above - below) + s * edges) / goal + tails
    d_mean = (above - below) / goal
    d_var = edges / (2 * goal * s)
    return _where_narrow(e, RELATIVE_SERIES, u, var, (loss, d_mean, d_var))


# name -> function (y, mean, var, eps) that returns the expected loss, its d/dmean and its d/dvar
LOSSES = {
    "01": expected_01_loss,
    "square": expected_clipped_square_loss,
    "exp": expected_exp_loss,
    "band": expected_relative_band_loss,
    "relative": expected_relative_loss,
}
ZERO_ONE_LOSSES = ("01", "band")          # losses that are 0 or 1
RELATIVE_LOSSES = ("band", "relative")    # their eps is a fraction of |y|, without unit


def mean_loss(total, N):
    """The mean of N expected losses, in [0, 1].

    ValueError where it is NaN, or outside [0, 1] by more than rounding, 1e-9.
    """
    mean = float(total) / float(N)
    if not -1e-9 <= mean <= 1 + 1e-9:
        raise ValueError(f"the mean loss is {mean}, outside [0, 1]: y, mean or var lost digits")
    return min(max(mean, 0.0), 1.0)


def expected_losses(y, mean, var, eps, loss="01"):
    """Expected loss of each point, its d/dmean and its d/dvar, (N,) each, for a key of LOSSES.

    ValueError where they differ in shape: a column y would broadcast to N x N.
    """
    return LOSSES[loss](y, mean, var, eps)


def gibbs_risk(y, mean, var, eps, loss="01"):
    """Mean expected loss: R_S(Q) on the training data, an unbiased estimate of R(Q) on other data.

    R (1), (24), (25). Arguments as expected_losses. On a mini-batch it is the unbiased estimate of
    R_S(Q) in (32).
    """
    losses, *_ = expected_losses(y, mean, var, eps, loss)
    return mean_loss(np.sum(losses), len(losses))                  # R (1)  # R (24)  # R (25): R_S


@in_doubles
def hoeffding_term(n, delta):
    """sqrt(ln(2/delta) / (2n)); R (32).

    With probability at least 1 - delta, |R_S - its estimate from n random points| is at most this.
    """
    if not (n >= 1 and 0 < delta <= 1):
        raise ValueError(f"n must be at least 1, delta in (0, 1], got {n!r}, {delta!r}")
    return math.sqrt(math.log(2 / float(delta)) / 2 / float(n))        # R (32): |R_S - estimate|


# --- the kernel and the full GP: R Sec. 3.1 ------------------------------------------------------

# Every kernel of the three modules has the arguments and results of se_kernel, parameters of its
# own between the lengthscales and ln sigma_s^2, k(x, x) = exp(ln_theta[-1]) for every x, and an
# attribute `start` (see start_of) if its parameters are others than those of se_kernel.

@in_doubles
def se_kernel(X1, X2, ln_theta, by_differences=False):
    """K_ij = sigma_s^2 exp(-1/2 sum_k (X1_ik - X2_jk)^2 / l_k^2), ARD or not, and back.

    R Sec. 3.1, below (8). X1 (N1, d), X2 (N2, d); by_differences: see ln_se_kernel.
        ln_theta   ln of (l_1^2 .. l_d^2, sigma_s^2), T = d+1, or of (l^2, sigma_s^2), T = 2
    Returns K (N1, N2) [y^2], never above sigma_s^2.

    back(d_K, of_X1=True), the VJP, returns d_ln_theta (T,), d_X1 (N1, d), d_X2 (N2, d): dK = K dE.
    With of_X1 = False d_X1 may be None, which saves a third. Where X1 is X2 and d_K is symmetric,
    the whole gradient is 2 d_X2.
    """
    E, E_back = ln_se_kernel(X1, X2, ln_theta, by_differences)
    K = np.exp(np.minimum(E, ln_theta[-1]))

    def back(d_K, of_X1=True):
        return E_back(d_K * K, of_X1)
    return K, back


def signal_variance(ln_theta):
    """k(x, x) [y^2]: sigma_s^2, or the sum of the weights of a mixture of kernels, ln_theta (Q, T).

    Its derivative w.r.t. ln_theta[..., -1] is exp(ln_theta[..., -1]).
    """
    return np.sum(np.exp(as_float(ln_theta)[..., -1]))


@in_doubles
def noisy_factors(K, y, ln_noise):
    """sigma^2, ln|K_y|, L^-1, L^-1 y and a = K_y^-1 y, for K_y = K + sigma^2 I = L L^T.

    ValueError if K_y is not positive definite.
    """
    check_shapes("y and the rows of K", y, K[:, 0])
    sigma2 = np.exp(ln_noise)
    L = cholesky(K + sigma2 * np.eye(len(y)), "K + sigma^2 I")
    ln_det = 2 * np.sum(np.log(np.diag(L)))
    Linv = tri_inv(L)
    Linv_y = Linv @ y
    return sigma2, ln_det, Linv, Linv_y, Linv.T @ Linv_y


@in_doubles
def full_gp(X, y, ln_theta, ln_noise, kernel=se_kernel):
    """(mean, var, KL), back: marginals (N,) of the GP posterior at its own data, and KL(Q||P).

    R (6) and (8) with K_NN = K_y - sigma_n^2 I, K_y = K_NN + sigma_n^2 I, a = K_y^-1 y:
        mean = y - sigma_n^2 a,   var = sigma_n^2 - sigma_n^4 diag(K_y^-1),
        KL = (ln|K_y| - N ln sigma_n^2 - N + sigma_n^2 tr K_y^-1 + a^T y - sigma_n^2 a^T a) / 2

    X (N, d), y (N,) [y], ln_theta (T,), ln_noise a scalar. A variance below VAR_FLOOR k is
    rounding: it is set to that, with derivative 0. ValueError if K_y is not positive definite.

    back(d_mean, d_var, d_KL), the VJP, returns a dict of gradients w.r.t. ln_theta and ln_noise:
        da = -K_y^-1 dK_y a,   dK_y^-1 = -K_y^-1 dK_y K_y^-1,   d ln|K_y| = tr(K_y^-1 dK_y),
        dK_y = dK_NN + dsigma_n^2 I
    """
    N = len(y)
    K_NN, K_back = kernel(X, X, ln_theta)
    sigma2, ln_det, Linv, _, a = noisy_factors(K_NN, y, ln_noise)
    K_y_inv = Linv.T @ Linv
    mean = y - sigma2 * a                                                  # R (6): mean
    var = sigma2 - sigma2**2 * np.diag(K_y_inv)                            # R (6): variance
    trace = sigma2 * np.trace(K_y_inv)
    KL = (ln_det - N * ln_noise - N + trace + a @ y - sigma2 * a @ a) / 2  # R (8): KL(Q||P)
    floor = VAR_FLOOR * signal_variance(ln_theta)

    def back(d_mean, d_var, d_KL):
        d_var = d_var * (var > floor)
        d_a = -sigma2 * d_mean + d_KL * (y / 2 - sigma2 * a)               # a in mean, KL
        d_diag = d_KL * sigma2 / 2 - sigma2**2 * d_var                     # diag K_y^-1 in var, KL
        d_K_y = d_KL / 2 * K_y_inv - weighted_gram(K_y_inv, d_diag)        # via ln|K_y|, diag
        d_K_y -= np.outer(K_y_inv @ d_a, a)     # via a; only its symmetric part acts on dK_NN
        of_var = d_var @ (1 - 2 * sigma2 * np.diag(K_y_inv))               # explicit sigma_n^2
        of_KL = d_KL / 2 * (np.trace(K_y_inv) - N / sigma2 - a @ a)
        d_sigma2 = np.trace(d_K_y) - a @ d_mean + of_var + of_KL
        d_ln_theta, *_ = K_back(d_K_y, of_X1=False)
        return dict(ln_theta=d_ln_theta, ln_noise=sigma2 * d_sigma2)
    return (mean, np.maximum(var, floor), KL), back


@in_doubles
def gaussian_nll(K, y, ln_noise):
    """-ln N(y | 0, K_y) = (ln|K_y| + N ln 2 pi + y^T K_y^-1 y) / 2, K_y = K + sigma^2 I, and back.

    R (33) for any kernel matrix K (N, N) [y^2]; y (N,), ln_noise = ln sigma^2. ValueError if K_y is
    not positive definite.

    back(d_value), the VJP, returns d_K (N, N) and d_ln_noise = sigma^2 tr d_K_y:
        d_K = d_K_y = d_value (K_y^-1 - a a^T) / 2,   a = K_y^-1 y
    """
    sigma2, ln_det, Linv, _, a = noisy_factors(K, y, ln_noise)
    value = (ln_det + len(y) * np.log(2 * np.pi) + y @ a) / 2              # R (33): -ln p(y)

    def back(d_value):
        d_K_y = d_value / 2 * (Linv.T @ Linv - np.outer(a, a))
        return d_K_y, sigma2 * np.trace(d_K_y)
    return value, back


@in_doubles
def full_gp_nll(X, y, ln_theta, ln_noise, kernel=se_kernel):
    """-ln p(y | theta, sigma_n), R (33), and back(d_value), a dict; arguments as full_gp."""
    K_NN, K_back = kernel(X, X, ln_theta)
    value, nll_back = gaussian_nll(K_NN, y, ln_noise)

    def back(d_value):
        d_K, d_ln_noise = nll_back(d_value)
        d_ln_theta, *_ = K_back(d_K, of_X1=False)
        return dict(ln_theta=d_ln_theta, ln_noise=d_ln_noise)
    return value, back


@in_doubles
def full_predict(X, y, X_new, ln_theta, ln_noise, kernel=se_kernel):
    """mean, var (n,) of the GP given X, y at X_new (n, d), without noise; R (6) at any x.

    As printed, with K_y^-1 = L^-T L^-1. Arguments as full_gp. A variance below VAR_FLOOR k is
    rounding, and set to that.
    """
    k = signal_variance(ln_theta)
    K_NN, _ = kernel(X, X, ln_theta)
    _, _, Linv, Linv_y, _ = noisy_factors(K_NN, y, ln_noise)
    V = kernel(X_new, X, ln_theta)[0] @ Linv.T
    mean = V @ Linv_y                                                      # R (6): mean
    var = k - row_dots(V, V)                                               # R (6): variance
    return mean, np.maximum(var, VAR_FLOOR * k)


# --- the theta grid: R Sec. 3.1 ------------------------------------------------------------------

@in_doubles
def round_to_grid(ln_theta, grid=GRID):
    """Each entry of ln_theta at the closest of the G+1 points -L, -L + 2L/G .. L; R Sec. 3.1.

    An entry beyond the edge is set to the edge. ln_theta (T,), finite; grid = (L, G), L > 0
    [ln units], G >= 1. Declare the grid, and the parametrisation it is for, before seeing the data.
    """
    L, G = map(float, grid)
    ln_theta = np.asarray(ln_theta, dtype=float)
    if not (0 < L < np.inf and G >= 1 and G % 1 == 0 and np.all(np.isfinite(ln_theta))):
        raise ValueError(f"ln_theta must be finite, grid (L, G) above 0, got {ln_theta}, {grid}")
    steps = np.clip(np.round((ln_theta + L) * G / (2 * L)), 0, G)
    return steps * (2 * L / G) - L


def ln_grid_size(T, grid=GRID):
    """ln(1/p_theta) = ln|Theta| = T ln(G + 1): what choosing theta costs; R Sec. 3.1."""
    if not (T >= 1 and grid[1] >= 1):
        raise ValueError(f"T and grid = (L, G) must be at least 1, got {T!r}, {grid!r}")
    return float(T) * math.log(1.0 + grid[1])


# --- the sparse GP: R Sec. 3.2 -------------------------------------------------------------------
# Whitened: L L^T = K_MM, V = K_NM L^-T with rows V_i, Q(f_M) = N(L m, L S L^T). One function per
# step:
#
#     1 inverse_cholesky     Z, theta                 -> L^-1
#     2 features             X, L^-1                  -> V, ktilde       ktilde_i = k - V_i V_i
#     3 data_sums            V, ktilde, y, sigma_n^2  -> A, b            V^T D^-1 V, V^T D^-1 y
#     4 gaussian_posterior   A, b                     -> m, S            R (11)
#     5 marginals            V, ktilde, m, S          -> mean, var       R (22), R (23)
#     6 kl_to_prior          m, S                     -> KL              R (10)
#
# Each returns value, back. No gradient w.r.t. L^-1 is formed: back of 2 returns gram = d_V^T V,
# which back of 1 takes. sparse_gp composes the steps; its back undoes them in reverse order. Up to
# eight N x M matrices are in memory; beyond/blocks.py works in blocks of rows instead.

@in_doubles
def inverse_cholesky(Z, ln_theta, kernel=se_kernel, jitter=JITTER, by_differences=False):
    """L^-1 (M, M) of L L^T = K_MM + jitter k I, K_MM = k(Z, Z), and back(gram): d_ln_theta, d_Z.

    Z (M, d), ln_theta (T,); by_differences: see se_kernel. ValueError as cholesky.

    For any objective that depends on L only through V = K L^-T, K = k(X, Z), at one or more sets of
    inputs X; gram is the sum of d_V^T V (M, M) over them:
        dV = dK L^-T - V (L^-1 dL)^T,   L^-1 dL = half(L^-1 dK_MM L^-T),
        half(G) = tril(G) - diag(G)/2
        d_K_MM = -L^-T low(gram) L^-1 / 2,   low(G) = tril(G) + tril(G, -1)^T
    """
    accurate = dict(by_differences=True) if by_differences else {}
    K_MM, K_back = kernel(Z, Z, ln_theta, **accurate)
    k = signal_variance(ln_theta)
    name = f"k(Z, Z) with a jitter of {jitter:g} sigma_s^2"
    Linv = tri_inv(cholesky(K_MM + jitter * k * np.eye(len(Z)), name))

    def back(gram):
        low = np.tril(gram) + np.tril(gram, -1).T
        d_K_MM = ((low @ Linv).T @ Linv).T / -2      # transposed: a third of the rounding in d_Z
        d_ln_theta, _, d_Z = K_back(d_K_MM, of_X1=False)
        d_ln_theta[..., -1] += jitter * np.exp(ln_theta[..., -1]) * np.trace(d_K_MM)
        return d_ln_theta, 2 * d_Z      # K_MM has Z on both sides
    return Linv, back


@in_doubles
def features(X, Z, ln_theta, Linv, kernel=se_kernel):
    """V = k(X, Z) L^-T (N, M), ktilde = k - V V (N,), the diagonal of Lambda in R (11), and back.

    ktilde < 0 (rounding) is set to 0; back ignores that.

    back(d_V, d_ktilde), the VJP, returns d_ln_theta (T,) and d_Z (M, d) through K_NM and k, and
    gram = d_V^T V (M, M) for back of inverse_cholesky:
        dktilde = dk - 2 V dV,   d_K_NM = d_V L^-1
    """
    K_NM, K_back = kernel(X, Z, ln_theta)
    V = K_NM @ Linv.T
    ktilde = np.maximum(signal_variance(ln_theta) - row_dots(V, V), 0.0)   # R (11): diag Lambda

    def back(d_V, d_ktilde):
        d_V = d_V - V * (2 * d_ktilde)[:, None]
        d_ln_theta, _, d_Z = K_back(d_V @ Linv, of_X1=False)
        d_ln_theta[..., -1] += np.exp(ln_theta[..., -1]) * np.sum(d_ktilde)
        return d_ln_theta, d_Z, d_V.T @ V
    return (V, ktilde), back


@in_doubles
def data_sums(V, ktilde, y, sigma2, alpha):
    """A = V^T D^-1 V (M, M), b = V^T D^-1 y (M,), the sums of ln D, y^2/D, ktilde, and back.

        D = alpha ktilde + sigma_n^2
    All that (11) and (34) need from the data: sums over rows, so those of blocks can be added.

    back(d_A, d_b, d_ln_D, d_y2, d_sum_ktilde), the VJP, returns d_V (N, M), d_ktilde (N,), d_sigma2
    and d_alpha; d_A (M, M) must be symmetric:
        d_V_i = (2 d_A V_i + y_i d_b)/D_i
        d_D_i = d_ln_D/D_i - (d_y2 y_i^2 + V_i d_A V_i + y_i V_i d_b)/D_i^2
    """
    check_shapes("y and the rows of V", y, V[:, 0])
    D = alpha * ktilde + sigma2
    scaled_V = V * (1 / np.sqrt(D))[:, None]
    A = scaled_V.T @ scaled_V                                    # R (11): Q_MM = L (I + A) L^T
    b = V.T @ (y / D)
    ln_D = np.sum(np.log(D))
    y2 = np.sum(y**2 / D)

    def back(d_A, d_b, d_ln_D=0.0, d_y2=0.0, d_sum_ktilde=0.0):
        V_d_A = V @ d_A
        d_V = (2 * V_d_A + np.outer(y, d_b)) * (1 / D)[:, None]
        of_squares = d_y2 * y**2 + row_dots(V_d_A, V) + y * (V @ d_b)
        d_D = (d_ln_D - of_squares / D) / D
        return d_V, alpha * d_D + d_sum_ktilde, np.sum(d_D), d_D @ ktilde
    return (A, b, ln_D, y2, np.sum(ktilde)), back


@in_doubles
def gaussian_posterior(A, b):
    """m = S b (M,), S = (I + A)^-1 (M, M), ln|S| and root with root^T root = S, and back.

    R (11): a_M = L m, B_MM = L S L^T. (11) holds for a zero prior mean: it omits + m_M in a_M and
    - m_N in y.

    back(d_m, d_S, d_ln_det), the VJP, returns d_A (M, M) and d_b (M,); d_S must be symmetric:
        dm = S (db - dA m),   dS = -S dA S,   d ln|S| = -tr(S dA)
    """
    root = tri_inv(cholesky(np.eye(len(b)) + A, "Q_MM"))
    S = root.T @ root                                            # R (11): B_MM = L S L^T
    m = S @ b                                                    # R (11): a_M = L m
    ln_det_S = 2 * np.sum(np.log(np.diag(root)))

    def back(d_m, d_S, d_ln_det):
        d_b = S @ d_m
        of_m = (np.outer(d_b, m) + np.outer(m, d_b)) / 2
        return -S @ d_S @ S - d_ln_det * S - of_m, d_b
    return (m, S, ln_det_S, root), back


@in_doubles
def marginals(V, ktilde, m, S):
    """mean, var (N,) of Q(f_M) = N(L m, L S L^T) at the rows of V, and back; R (22), (23).

    (23) prints x' for x, twice; a variance takes the same x on both sides.

    back(d_mean, d_var), the VJP, returns d_V (N, M), d_ktilde (N,), d_m (M,), d_S (M, M):
        dmean_i = m dV_i + V_i dm,   dvar_i = dktilde_i + 2 V_i S dV_i + V_i dS V_i
    """
    V_S = V @ S
    mean = V @ m                                                 # R (22): mean
    var = ktilde + row_dots(V_S, V)                              # R (23): variance

    def back(d_mean, d_var):
        d_V = np.outer(d_mean, m) + V_S * (2 * d_var)[:, None]
        return d_V, d_var, V.T @ d_mean, weighted_gram(V, d_var)
    return (mean, var), back


@in_doubles
def kl_to_prior(m, S, ln_det_S):
    """KL(N(m, S)||N(0, I)) = KL(Q||P), R (10), and back(d_KL): d_m, d_S, d_ln_det.

    S and ln|S| count as two arguments.
    """
    KL = (np.trace(S) - ln_det_S - len(m) + m @ m) / 2           # R (10): KL(Q||P)

    def back(d_KL):
        return d_KL * m, d_KL / 2 * np.eye(len(m)), -d_KL / 2
    return KL, back


@in_doubles
def sparse_gp(X, y, Z, ln_theta, ln_noise, alpha=1.0, kernel=se_kernel):
    """(mean, var, KL), back for the Q given by the data; R (22), (23), (10) with (11).

        X, y, Z              (N, d), (N,) [y], (M, d)
        ln_theta, ln_noise   (T,), a scalar
        alpha                in [0, 1]: 1 FITC, 0 VFE and DTC; R has alpha >= 0
    mean, var (N,) are those at the data. A variance below VAR_FLOOR k is rounding: it is set to
    that, with derivative 0. ValueError if K_MM is not positive definite.

    back(d_mean, d_var, d_KL), the VJP, returns a dict of d_ln_theta, d_ln_noise, d_Z, d_alpha.
    """
    sigma2 = np.exp(ln_noise)
    floor = VAR_FLOOR * signal_variance(ln_theta)
    Linv, Linv_back = inverse_cholesky(Z, ln_theta, kernel)                              # 1
    (V, ktilde), features_back = features(X, Z, ln_theta, Linv, kernel)                  # 2
    (A, b, *_), sums_back = data_sums(V, ktilde, y, sigma2, alpha)                       # 3
    (m, S, ln_det_S, _), posterior_back = gaussian_posterior(A, b)                       # 4
    (mean, var), marginals_back = marginals(V, ktilde, m, S)                             # 5
    KL, KL_back = kl_to_prior(m, S, ln_det_S)                                            # 6

    def back(d_mean, d_var, d_KL):
        d_m, d_S, d_ln_det = KL_back(d_KL)                                               # 6
        d_V_5, d_ktilde_5, d_m_5, d_S_5 = marginals_back(d_mean, d_var * (var > floor))  # 5
        d_A, d_b = posterior_back(d_m + d_m_5, d_S + d_S_5, d_ln_det)                    # 4
        d_V, d_ktilde, d_sigma2, d_alpha = sums_back(d_A, d_b)                           # 3
        d_ln_theta, d_Z, gram = features_back(d_V + d_V_5, d_ktilde + d_ktilde_5)        # 2
        d_ln_theta_MM, d_Z_MM = Linv_back(gram)                                          # 1
        return dict(ln_theta=d_ln_theta + d_ln_theta_MM, ln_noise=sigma2 * d_sigma2,
                    Z=d_Z + d_Z_MM, alpha=d_alpha)
    return (mean, np.maximum(var, floor), KL), back


@in_doubles
def sparse_free(X, Z, ln_theta, m, L_S, kernel=se_kernel):
    """(mean, var, KL), back for a free Q(f_M) = N(L m, L S L^T), S = L_S L_S^T; R (10), (22), (23).

    R Sec. 3.2, after (10): a_M = L m and B_MM = (L L_S)(L L_S)^T are parameters.
        X, Z       (N, d), (M, d); X may be a mini-batch, whose mean and var (N,) are returned
        ln_theta   (T,)
        m, L_S     (M,), (M, M) lower triangular with a diagonal that is not 0

    back(d_mean, d_var, d_KL), the VJP, returns a dict of gradients w.r.t. ln_theta, Z, m, L_S:
        d_L_S = tril(2 d_S L_S) + 2 d_ln_det diag(1/diag L_S)
    """
    floor = VAR_FLOOR * signal_variance(ln_theta)
    S = L_S @ L_S.T
    ln_det_S = 2 * np.sum(np.log(np.abs(np.diag(L_S))))
    Linv, Linv_back = inverse_cholesky(Z, ln_theta, kernel)                              # 1
    (V, ktilde), features_back = features(X, Z, ln_theta, Linv, kernel)                  # 2
    (mean, var), marginals_back = marginals(V, ktilde, m, S)                             # 5
    KL, KL_back = kl_to_prior(m, S, ln_det_S)                                            # 6

    def back(d_mean, d_var, d_KL):
        d_m, d_S, d_ln_det = KL_back(d_KL)                                               # 6
        d_V, d_ktilde, d_m_5, d_S_5 = marginals_back(d_mean, d_var * (var > floor))      # 5
        d_ln_theta, d_Z, gram = features_back(d_V, d_ktilde)                             # 2
        d_ln_theta_MM, d_Z_MM = Linv_back(gram)                                          # 1
        d_L_S = np.tril(2 * (d_S + d_S_5) @ L_S) + 2 * d_ln_det * np.diag(1 / np.diag(L_S))
        return dict(ln_theta=d_ln_theta + d_ln_theta_MM, Z=d_Z + d_Z_MM, m=d_m + d_m_5, L_S=d_L_S)
    return (mean, np.maximum(var, floor), KL), back


# (alpha, t) of R (34): G = alpha Lambda, T = t Lambda
SPARSE_NLL = {"FITC": (1.0, 0.0), "VFE": (0.0, 1.0), "DTC": (0.0, 0.0)}


@in_doubles
def sparse_nll(X, y, Z, ln_theta, ln_noise, kind="VFE", kernel=se_kernel):
    """F, the training objective of FITC, VFE or DTC, and back; R (34). Arguments as sparse_gp.

        F = (ln|V V^T + D| + N ln 2 pi + y^T (V V^T + D)^-1 y + t sum ktilde/sigma_n^2) / 2
        |V V^T + D| = |D| |I + A| = |D| / |S|                               (determinant lemma)
        y^T (V V^T + D)^-1 y = sum y^2/D - b^T S b = sum y^2/D - m b        (inversion lemma)

    The paper's G and G^theta are one matrix, alpha Lambda. Its sentence "whereas F equals the exact
    negative log likelihood plus" KL(Q||Q~) holds for VFE only.

    back(d_F), the VJP, returns a dict of gradients w.r.t. ln_theta, ln_noise, Z:
        d(m b) = b dm + m db
    """
    alpha, t = SPARSE_NLL[kind]
    sigma2 = np.exp(ln_noise)
    Linv, Linv_back = inverse_cholesky(Z, ln_theta, kernel)                              # 1
    (V, ktilde), features_back = features(X, Z, ln_theta, Linv, kernel)                  # 2
    (A, b, ln_D, y2, sum_ktilde), sums_back = data_sums(V, ktilde, y, sigma2, alpha)     # 3
    (m, S, ln_det_S, _), posterior_back = gaussian_posterior(A, b)                       # 4
    ln_det = ln_D - ln_det_S                                       # ln|V V^T + D|
    quadratic = y2 - m @ b                                         # y^T (V V^T + D)^-1 y
    trace = t * sum_ktilde / sigma2                                # tr T / sigma_n^2
    F = (ln_det + len(y) * np.log(2 * np.pi) + quadratic + trace) / 2                    # R (34): F

    def back(d_F):
        half = d_F / 2
        d_A, d_b = posterior_back(-half * b, 0 * S, -half)                               # 4
        d_sums = half, half, half * t / sigma2
        d_V, d_ktilde, d_sigma2, _ = sums_back(d_A, d_b - half * m, *d_sums)             # 3
        d_ln_theta, d_Z, gram = features_back(d_V, d_ktilde)                             # 2
        d_ln_theta_MM, d_Z_MM = Linv_back(gram)                                          # 1
        d_ln_noise = sigma2 * d_sigma2 - half * trace
        return dict(ln_theta=d_ln_theta + d_ln_theta_MM, ln_noise=d_ln_noise, Z=d_Z + d_Z_MM)
    return F, back


class SparsePosterior(NamedTuple):
    """Q of R (11), without back."""
    Linv: np.ndarray        # (M, M)
    A: np.ndarray           # (M, M) V^T D^-1 V
    b: np.ndarray           # (M,) V^T D^-1 y
    m: np.ndarray           # (M,) S b
    S: np.ndarray           # (M, M)
    root: np.ndarray        # (M, M) lower triangular, root^T root = S = (I + A)^-1


@in_doubles
def sparse_posterior(X, y, Z, ln_theta, ln_noise, alpha=1.0, kernel=se_kernel):
    """The SparsePosterior given by the data, R (11); arguments as sparse_gp."""
    Linv, _ = inverse_cholesky(Z, ln_theta, kernel)
    (V, ktilde), _ = features(X, Z, ln_theta, Linv, kernel)
    (A, b, *_), _ = data_sums(V, ktilde, y, np.exp(ln_noise), alpha)
    (m, S, _, root), _ = gaussian_posterior(A, b)
    return SparsePosterior(Linv, A, b, m, S, root)


class StoredPosterior(NamedTuple):
    """What predicts: Q(f_M) = N(L m, L S L^T).

    The full GP, (6), is the same: Z = X, L L^T = K_NN + sigma_n^2 I, m = L^-1 y, and S = 0.
    """
    Z: np.ndarray           # (M, d)
    Linv: np.ndarray        # (M, M)
    ln_theta: np.ndarray    # (T,)
    m: np.ndarray           # (M,)
    root: np.ndarray        # (r, M), root^T root = S; r = M, of the full GP 0
    kernel: Callable = se_kernel


@in_doubles
def sparse_predict(posterior, X_new):
    """mean, var (n,) of a StoredPosterior at X_new (n, d), without observation noise.

    R (6), (9), (22), (23).
    """
    Z, Linv, ln_theta, m, root, kernel = posterior
    mean = np.empty(len(X_new))
    var = np.empty(len(X_new))
    for rows in row_blocks(len(X_new), len(Z)):
        (V, ktilde), _ = features(X_new[rows], Z, ln_theta, Linv, kernel)
        U = V @ root.T
        mean[rows] = V @ m                                       # R (9)  # R (22): mean
        var[rows] = ktilde + row_dots(U, U)                      # R (9)  # R (23): variance
    return mean, np.maximum(var, VAR_FLOOR * signal_variance(ln_theta))


class Sparse(NamedTuple):
    """An implementation of the sparse GP: five functions with the signatures of PLAIN's."""
    gp: Callable
    free: Callable
    nll: Callable
    posterior: Callable
    predict: Callable


# Whole matrices, one function per step. beyond.blocks.blocks(over) makes another Sparse.
PLAIN = Sparse(sparse_gp, sparse_free, sparse_nll, sparse_posterior, sparse_predict)


# --- training: R Sec. 3.1, 3.2, 4 ----------------------------------------------------------------

class Family(NamedTuple):
    """A form of the posterior Q."""
    inducing: bool             # whether Q has inducing inputs Z
    given: bool                # whether theta, noise and data give Q; else m, L_S are parameters


FAMILIES = {
    "full": Family(False, True),       # (6), (8)
    "sparse": Family(True, True),      # (11)
    "free": Family(True, False),       # Sec. 3.2, after (10)
}
# R Sec. 4; DTC and the free form Sec. 3.2 -> (family of Q, objective)
METHODS = {
    "kl-PAC-GP": ("full", "kl"),
    "sqrt-PAC-GP": ("full", "sqrt"),
    "full-GP": ("full", "nll"),
    "kl-PAC-SGP": ("sparse", "kl"),
    "sqrt-PAC-SGP": ("sparse", "sqrt"),
    "VFE": ("sparse", "VFE"),
    "FITC": ("sparse", "FITC"),
    "DTC": ("sparse", "DTC"),
    "free-kl-PAC-SGP": ("free", "kl"),
    "free-sqrt-PAC-SGP": ("free", "sqrt"),
}
BOUNDS = {
    "kl": (pac_bayes_bound, pac_bayes_bound_grad),
    "sqrt": (pinsker_bound, pinsker_bound_grad),
}


@in_doubles
def pac_objective(losses, KL, bound=(pac_bayes_bound, pac_bayes_bound_grad), N=None, **terms):
    """B or B_Pin, R (5), from expected losses (n,) and KL; its d/dloss, d/dKL, R (14).

    The derivative w.r.t. each of the n losses is the same number.
        bound   a value of BOUNDS
        N       size of the training set where the n losses are a mini-batch; value and gradient are
                then biased, since kl^-1 is not linear in the risk; R App. C, (32)
        terms   delta, penalty, xi of pac_bayes_bound
    """
    n = len(losses)
    N = n if N is None else N
    R_S = mean_loss(np.sum(losses), n)
    value, value_grad = bound
    d_R_S, d_KL = value_grad(R_S, KL, N, **terms)                # R (14): dB/dR_S, dB/dKL
    return value(R_S, KL, N, **terms), d_R_S / n, d_KL


def family_gp(p, X, y, family, alpha=1.0, kernel=se_kernel, sparse=PLAIN):
    """(mean, var, KL), back of Q at the dict p of parameters, for a key of FAMILIES."""
    if family == "full":
        return full_gp(X, y, **p, kernel=kernel)
    if family == "sparse":
        return sparse.gp(X, y, **p, alpha=alpha, kernel=kernel)
    return sparse.free(X, **p, kernel=kernel)


@in_doubles
def training_objective(p, X, y, method, eps, loss="01", alpha=1.0, kernel=se_kernel, sparse=PLAIN,
                       N=None, **terms):
    """What a method minimises at the dict p of its parameters, and the dict of gradients.

    A bound, R (5), or the negative log likelihood (33), (34) in nats. Arguments as fit and
    pac_objective.
    """
    family, objective = METHODS[method]
    if objective in BOUNDS:
        (mean, var, KL), back = family_gp(p, X, y, family, alpha, kernel, sparse)
        losses, d_mean, d_var = expected_losses(y, mean, var, eps, loss)
        value, d_loss, d_KL = pac_objective(losses, KL, BOUNDS[objective], N, **terms)
        grads = back(d_loss * d_mean, d_loss * d_var, d_KL)
    else:
        if family == "full":
            value, back = full_gp_nll(X, y, **p, kernel=kernel)
        else:
            value, back = sparse.nll(X, y, **p, kind=objective, kernel=kernel)
        grads = back(1.0)
    return value, {name: grads[name] for name in p}


class FitWarning(UserWarning):
    """Warning about a result that is still valid."""


class Fit(NamedTuple):
    """A trained GP and its certificate.

    With probability 1 - delta over the data the true risk is at most `bound`. The risk is the
    expected loss, in [0, 1]; the data are i.i.d.; loss, eps, delta and grid were fixed before they
    were seen.
    """
    method: str
    loss: str
    eps: float
    kernel: Callable           # as se_kernel
    ln_theta: np.ndarray       # (T,), on the grid
    ln_noise: float            # not rounded: sigma_n^2 belongs to Q; NaN for the free form, which
                               # has none
    Z: np.ndarray              # (M, d); of the full GP all inputs
    alpha: float
    bound: float               # B, R (5), for this theta
    pinsker: float             # B_Pin
    R_S: float                 # training risk R_S(Q)
    KL: float                  # KL(Q||P^theta) [nats]
    penalty: float             # ln(n_eps) + ln|Theta|
    ln_confidence: float       # ln(2 sqrt(N)/delta), or ln(xi(N)/delta)
    delta: float
    N: int
    repeats: int               # data points that equal an earlier one: the theorem assumes
                               # independence
    optimum: "Optimum"         # of training; x is the dict of parameters before theta is rounded, a
                               # `start` for another fit
    posterior: StoredPosterior      # what the certificate is about


def pack(p):
    """One vector of all values of the dict p, in its order."""
    return np.concatenate([np.ravel(as_float(v)) for v in p.values()])


def unpack(x, like):
    """The dict whose pack is x, with the keys and shapes of the dict `like`."""
    x = as_float(x)
    ends = np.cumsum([np.size(v) for v in like.values()])
    return {name: x[end - np.size(v):end].reshape(np.shape(v))
            for end, (name, v) in zip(ends, like.items())}


def se_start(d, ard=False):
    """ln_theta at l^2 = d, sigma_s^2 = 1, for d inputs.

    From there every full-GP objective converged on Boston; from l = 1, as in the authors' code,
    sqrt-PAC can get stuck.
    """
    return np.append(np.full(d if ard else 1, math.log(d)), 0.0)


se_kernel.start = se_start


def start_of(kernel, d, ard=False):
    """ln_theta where training of a kernel starts, for d inputs: kernel.start(d, ard), as se_start.

    Without `start` its parameters must be those of SE, whose start it has then. ValueError if K is
    not the same where inputs and lengthscales are longer by the same factors.
    """
    if hasattr(kernel, "start"):
        return kernel.start(d, ard)
    ln_theta = se_start(d, ard)
    x = np.cos(np.arange(1.0, 4 * d + 1)).reshape(4, d)
    ln_longer = np.linspace(0.5, 1.0, len(ln_theta) - 1)
    K, _ = kernel(x, x, ln_theta)
    K_longer, _ = kernel(x * np.exp(ln_longer), x * np.exp(ln_longer),
                         ln_theta + np.append(2 * ln_longer, 0.0))
    if not np.allclose(K, K_longer, 1e-6):
        name = getattr(kernel, "__name__", kernel)
        raise ValueError(f"{name} does not have the parameters of SE alone: set {name}.start, or "
                         "give start_theta, a function of d and ard as se_start")
    return ln_theta


def start_of_family(X, y, family, M, ln_theta, Z, rng, kernel=se_kernel, sparse=PLAIN):
    """Initial dict p of the parameters of Q, for a key of FAMILIES.

    full: ln_theta, ln_noise; sparse: also Z; free: ln_theta, Z, m, L_S. sigma_n^2 = 1; Z by k-means
    unless given; m and L_S those of (11) at alpha = 1.
    """
    p = dict(ln_theta=ln_theta, ln_noise=np.array(0.0))
    if family == "full":
        return p
    if Z is None:
        N = len(X)
        drawn = X if N <= SMALL else X[np.sort(rng.choice(N, SMALL, replace=False))]
        Z = kmeans(drawn, M, rng)
    p["Z"] = Z
    return p if family == "sparse" else free_form(X, y, **p, kernel=kernel, sparse=sparse)


def free_form(X, y, ln_theta, ln_noise, Z, kernel=se_kernel, sparse=PLAIN):
    """The parameters of the free form whose Q is that of (11) at alpha = 1."""
    q = sparse.posterior(X, y, Z, ln_theta, ln_noise, 1.0, kernel)
    return dict(ln_theta=ln_theta, Z=Z, m=q.m, L_S=cholesky(q.S, "S"))


def with_start(p, start):
    """p with the values of the dict start.

    ValueError for an unknown name, another shape, values that are not finite numbers, or an L_S
    that is not lower triangular with a diagonal free of 0.
    """
    p = dict(p)
    if not isinstance(start, (dict, type(None))):
        raise ValueError(f"start must be a dict of parameters, got {start!r}")
    for name, value in (start or {}).items():
        if name not in p:
            raise ValueError(f"start has {name!r}: the parameters are {', '.join(p)}")
        shape = np.shape(p[name])
        if np.shape(value) != shape:
            raise ValueError(f"start's {name} must have shape {shape}, got {np.shape(value)}")
        p[name] = check_array(f"start's {name}", value, len(shape))
        if name == "L_S" and len(shape) == 2:
            if np.any(np.triu(p[name], 1)) or not np.all(np.diag(p[name])):
                raise ValueError("start's L_S must be lower triangular, its diagonal not 0")
    return p


@in_doubles
def lifted_noise(ln_theta, ln_noise, N):
    """ln_noise, at least ln(NOISE_FLOOR N sigma_s^2) for N rows, and back(d_lifted), a dict."""
    k = signal_variance(ln_theta)
    least = np.log(NOISE_FLOOR * N * k)
    below = ln_noise < least

    def back(d_lifted):
        d_ln_theta = np.zeros_like(ln_theta)
        d_ln_theta[..., -1] = d_lifted * below * np.exp(ln_theta[..., -1]) / k
        return dict(ln_theta=d_ln_theta, ln_noise=d_lifted * (1 - below))
    return np.maximum(ln_noise, least), back


@in_doubles
def stored_posterior(p, X, y, family, alpha=1.0, kernel=se_kernel, sparse=PLAIN):
    """The StoredPosterior at p; arguments as family_gp."""
    ln_theta = p["ln_theta"]
    if family == "full":
        K_NN, _ = kernel(X, X, ln_theta)
        _, _, Linv, m, _ = noisy_factors(K_NN, y, p["ln_noise"])
        return StoredPosterior(X.copy(), Linv, ln_theta, m, np.zeros((0, len(m))), kernel)
    if family == "sparse":
        q = sparse.posterior(X, y, **p, alpha=alpha, kernel=kernel)
        return StoredPosterior(p["Z"], q.Linv, ln_theta, q.m, q.root, kernel)
    Linv, _ = inverse_cholesky(p["Z"], ln_theta, kernel)
    return StoredPosterior(p["Z"], Linv, ln_theta, p["m"], p["L_S"].T, kernel)


@in_doubles
def repeated_rows(X, y):
    """Number of rows of (X, y) that equal an earlier one."""
    columns = [*X.T, y]
    order = np.lexsort(columns)
    equal = [x[order[1:]] == x[order[:-1]] for x in columns]
    return int(np.sum(np.all(equal, axis=0)))


def fit(X, y, method="kl-PAC-GP", M=None, eps=0.6, delta=0.01, loss="01", ard=False, alpha=1.0,
        grid=GRID, n_eps=1, xi=False, Z=None, start=None, max_evals=400, ftol=1e-8, batch=None,
        lr=0.01, seed=0, callback=None, kernel=se_kernel, start_theta=None, sparse=PLAIN):
    """Trains a GP by one of the paper's methods and certifies it; R Sec. 3.1, 3.2, 4.

    Returns a Fit, for predict. One search from one start, as in the paper; multistart_fit of
    beyond/search.py has several.

    Fixed before seeing the data (choosing the best of runs that differ in these voids the
    certificate):
        eps [y]       accuracy goal, a fraction of |y| for "band" and "relative"; n_eps > 1: one of
                      so many values of eps
        delta         probability that the certificate fails
        loss          a key of LOSSES
        kernel        a function as se_kernel
        ard, grid     one lengthscale per input dimension; (L, G) of theta's grid
        xi            xi(N) for 2 sqrt(N), a slightly tighter certificate
    The data:
        X, y          (N, d), (N,): scale them first, by other data if the guarantee is to be strict
    The method, which may be chosen by the certificate:
        method        a key of METHODS
        M, Z          number of inducing inputs, found by k-means, or Z (M, d) itself; the full
                      methods ignore both
        alpha         of (11), for PAC-SGP alone
        start_theta   initial ln_theta: a function of d and ard, as se_start; None: see start_of
        start         dict of values that replace those of start_of_family
        seed          of k-means and batches
    The search:
        max_evals     largest number of evaluations of L-BFGS, which stops where the objective f
                      falls by less than ftol max(|f|, 1)
        batch, lr     points per step of Adam, max_evals steps, and its rate, a tenth of it in the
                      last quarter, for the free form alone, since (11) sums over all data; the
                      gradient through kl^-1 of a mini-batch risk is biased
        callback      called with (n_evals, objective) after each iteration: training stops where it
                      returns true
        sparse        an implementation of the sparse GP. PLAIN holds about eight N x M matrices in
                      memory, beyond.blocks.blocks(over) as many as KEEP_BYTES there allows
    The certificate uses all data and the rounded theta.

    ValueError for bad input. Warns where the optimiser stopped early (the certificate is valid all
    the same), where B > 0.999, where rows repeat, where data are not scaled.
    """
    X, y = check_data(X, y, copy=False)      # a memory map stays where it is
    N, d = X.shape
    method = check_choice("method", method, METHODS)
    family, _ = METHODS[method]
    loss = check_choice("loss", loss, LOSSES)
    check_kernel(kernel)
    start_theta = start_theta or functools.partial(start_of, kernel)
    check_kernel(start_theta, "start_theta", "se_start")
    ln_theta = start_theta(d, check_flag("ard", ard))
    check_signal(kernel, X, ln_theta)
    check_kind("sparse", sparse, Sparse, "PLAIN or beyond.blocks.blocks")
    if batch is not None:
        batch = check_count("batch", batch)
        if FAMILIES[family].given:
            raise ValueError(f"batch (got {batch}) needs one of the free-... methods: "
                             "(11) sums over all data")
    if family == "full":
        Z = None
    elif Z is not None:
        Z = check_columns("Z", Z, d, 1)
    elif M is None:
        raise ValueError(f"{method} needs M, the number of inducing inputs, or Z")
    else:
        M = check_count("M", M)
    if method in SPARSE_NLL:
        alpha, _ = SPARSE_NLL[method]
    alpha = check_scalar("alpha", alpha, 0, 1, closed=True)
    eps = check_scalar("eps", eps, 0)
    delta = check_scalar("delta", delta, 0, 1)
    grid = check_grid(grid)
    n_eps = check_count("n_eps", n_eps)
    xi = check_flag("xi", xi)
    max_evals = check_count("max_evals", max_evals)
    ftol = check_scalar("ftol", ftol, 0, closed=True)
    lr = check_scalar("lr", lr, 0)
    rng = np.random.default_rng(check_count("seed", seed, 0))
    warn_unscaled(X, y, "own_data.scale.standardise")
    repeats = repeated_rows(X, y)
    if repeats:
        warnings.warn(f"{repeats} rows of (X, y) repeat: the theorem assumes independent rows",
                      FitWarning, stacklevel=2)

    # minimise the objective over kernel, noise, Z, or m and L_S
    p = start_of_family(X, y, family, M, ln_theta, Z, rng, kernel, sparse)
    p = with_start(p, start)
    terms = dict(delta=delta, xi=xi, penalty=math.log(n_eps) + ln_grid_size(len(ln_theta), grid))
    model = dict(alpha=alpha, kernel=kernel, sparse=sparse)

    def lifted(p):
        if family != "full":
            return p, dict
        ln_noise, noise_back = lifted_noise(p["ln_theta"], p["ln_noise"], N)

        def back(grads):
            d_lifted = noise_back(grads["ln_noise"])
            return dict(d_lifted, ln_theta=grads["ln_theta"] + d_lifted["ln_theta"])
        return dict(p, ln_noise=ln_noise), back

    def evaluate(p):
        rows = slice(None)
        if batch is not None:
            rows = rng.choice(N, min(batch, N), replace=False)
        at, back = lifted(p)
        value, grads = training_objective(at, X[rows], y[rows], method, eps, loss, N=N,
                                          **model, **terms)
        return value, back(grads)

    box = dict(ln_theta=(-grid[0], grid[0]), ln_noise=(-LN_BOX, LN_BOX))
    if batch is None:
        optimum = minimum(evaluate, p, box, max_evals=max_evals, ftol=ftol, callback=callback)
    else:
        fast = max_evals * 3 // 4
        rates = [lr] * fast + [lr * 0.1] * (max_evals - fast)
        optimum = adam(evaluate, p, rates, box, callback=callback)
    optimum = optimum._replace(x=lifted(optimum.x)[0])

    # certify Q at the rounded theta
    p, _ = lifted(dict(optimum.x, ln_theta=round_to_grid(optimum.x["ln_theta"], grid)))
    (mean, var, KL), _ = family_gp(p, X, y, family, **model)
    R_S = gibbs_risk(y, mean, var, eps, loss)
    posterior = stored_posterior(p, X, y, family, **model)
    result = Fit(
        method=method, loss=loss, eps=eps, kernel=kernel, ln_theta=p["ln_theta"],
        ln_noise=float(p.get("ln_noise", np.nan)), Z=posterior.Z, alpha=alpha,
        bound=pac_bayes_bound(R_S, KL, N, **terms), pinsker=pinsker_bound(R_S, KL, N, **terms),
        R_S=R_S, KL=max(float(KL), 0.0), penalty=terms["penalty"],
        ln_confidence=ln_confidence(N, delta, xi), delta=delta, N=N, repeats=repeats,
        optimum=optimum, posterior=posterior)
    if not optimum.converged and batch is None and optimum.message != STOPPED:
        warnings.warn(f"{method}: {optimum.message}; the certificate of what was found is valid",
                      FitWarning, stacklevel=2)
    if result.bound > 0.999:
        warnings.warn(f"{method}: B > 0.999 certifies next to nothing", FitWarning, stacklevel=2)
    return result


def predict(fit, X_new, sparse=PLAIN):
    """mean [y], var [y^2] (n,) of Q at X_new (n, d), without observation noise.

    fit: what has a StoredPosterior as its `posterior`: a Fit, or a Certified of beyond/rounding.py.
    sparse: as in fit.
    """
    posterior = getattr(fit, "posterior", None)
    check_kind("the posterior of fit", posterior, StoredPosterior, "fit")
    check_kind("sparse", sparse, Sparse, "PLAIN or beyond.blocks.blocks")
    X_new = check_columns("X_new", X_new, posterior.Z.shape[1], copy=False)
    return sparse.predict(posterior, X_new)


# --- numerics: float64, whatever is given --------------------------------------------------------

def is_real(a):
    """Whether `a` is a real number, or array-like and holds real numbers alone, none masked."""
    if isinstance(a, (int, float)):
        return True
    if isinstance(a, Sequence):
        return not isinstance(a, (str, bytes)) and all(map(is_real, a))
    if not hasattr(a, "__array__"):
        return hasattr(a, "__float__")
    if isinstance(a, np.ndarray) and np.any(getattr(a, "mask", False)):
        return False
    values = np.asarray(a)
    return values.dtype.kind in "buif" or (
        values.dtype.kind == "O" and all(map(is_real, values.ravel().tolist())))


def real_array(name, a):
    """`a`, a number or array-like, as a float64 array; ValueError unless is_real."""
    try:
        if is_real(a):
            return np.asarray(a, dtype=float)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"{name} must hold real numbers only, got {a!r:.80}")


def as_float(a, name="an argument"):
    """`a`, array-like or a dict of such, in float64; ValueError for what holds no real numbers.

    Otherwise differences of unsigned integers wrap around, float16 rounds to three digits, data
    frames are aligned by their index, and values under a mask count. Single Python numbers, texts,
    functions and models stay as they are, and so do lists with functions or of several shapes.
    """
    if type(a) is np.ndarray and a.dtype is DOUBLE:
        return a
    if a is None or isinstance(a, (int, float, str)) or callable(a) or hasattr(a, "_fields"):
        return a
    if isinstance(a, dict):
        return {key: as_float(value, key) for key, value in a.items()}
    if isinstance(a, np.generic) and a.dtype.kind in "bui":
        return a.item()
    if isinstance(a, Sequence) and not isinstance(a, bytes):
        if any(map(callable, a)) or len({np.shape(part) for part in a}) > 1:
            return [as_float(part, name) for part in a]
    elif not (hasattr(a, "__array__") or isinstance(a, (bytes, complex))):
        return a
    return real_array(name, a)[()]


# --- numerics: distances, triangles, blocks of rows ----------------------------------------------

def differences(X1, X2, inv_l):
    """Yields (x1_k - x2_k)/l_k (N1, N2) for each k, to 3 ulp, clipped where squares overflow."""
    X1, X2, inv_l = as_float(X1), as_float(X2), as_float(inv_l)
    for k, inverse in enumerate(inv_l):
        difference = X1[:, k, None] - X2[None, :, k]
        yield np.clip(difference * inverse, -1e150, 1e150)


def _ln_se_by_differences(X1, X2, ln_theta, inv_l):
    """ln_se_kernel with r^2 as a sum of squared differences, to d + 8 ulp; inv_l (d,) is 1/l."""
    E = ln_theta[-1] - sum(D**2 for D in differences(X1, X2, inv_l)) / 2

    def back(d_E, of_X1=True):
        sums = [(-np.sum(d_E * D, 1), np.sum(d_E * D, 0), np.sum(d_E * D * D) / 2)
                for D in differences(X1, X2, inv_l)]
        d_A1, d_A2, d_ln_l2 = (np.stack(parts, -1) for parts in zip(*sums))
        if len(ln_theta) == 2:
            d_ln_l2 = d_ln_l2.sum()
        return np.append(d_ln_l2, np.sum(d_E, 0).sum()), d_A1 * inv_l, d_A2 * inv_l
    return E, back


@in_doubles
def ln_se_kernel(X1, X2, ln_theta, by_differences=False):
    """E = ln sigma_s^2 - r^2/2 (N1, N2), r_ij^2 = sum_k (X1_ik - X2_jk)^2 / l_k^2, and back.

    Arguments as se_kernel; ValueError if they do not fit. One product, centred at m = mean(X2):
        E = (a, -|a|^2/2, 1) (b, 1, ln sigma_s^2 - |b|^2/2)^T,   a = (x1 - m)/l, b = (x2 - m)/l
    It errs by 4 (d+4) ulp of its largest term. Rows where that is too near EXPANSION_ERROR, and
    all with by_differences, have the E of _ln_se_by_differences.

    back(d_E, of_X1=True), the VJP, as that of se_kernel, by products while those have the digits:
        dE/d ln l_k^2 = (x1_k - x2_k)^2 / (2 l_k^2),   dE/d ln sigma_s^2 = 1,
        dE/d x2_k = (x1_k - x2_k) / l_k^2 = -dE/d x1_k
    """
    d = X1.shape[1]
    if X2.shape[1] != d or np.shape(ln_theta) not in ((2,), (d + 1,)):
        raise ValueError(f"ln_theta must have 2 or {d + 1} entries for {d} columns, X2 as many "
                         f"columns: got {np.shape(ln_theta)}, {X2.shape[1]}")
    ln_k = ln_theta[-1]
    inv_l = np.exp(-ln_theta[:-1] / 2) * np.ones(d)
    m = np.sum(X2 / len(X2), 0)
    with np.errstate(over="ignore", invalid="ignore"):
        A1 = (X1 - m) * inv_l
        A2 = (X2 - m) * inv_l
        squares1 = row_dots(A1, A1)
        squares2 = row_dots(A2, A2)
        limit = EXPANSION_ERROR / (4 * (d + 4) * ULP)           # far, too, where squares overflow
        far = not np.max(np.concatenate([squares1, squares2])) + np.abs(ln_k) < limit

    def back(d_E, of_X1=True):
        powers = np.concatenate([np.ones((len(A1), 1)), A1, A1**2], 1)          # 1, a, a^2
        zeroth, first, second = np.split((powers.T @ d_E).T, [1, d + 1], axis=1)
        d_A2 = first - zeroth * A2
        d_ln_l2 = np.sum(zeroth * A2**2 - 2 * A2 * first + second, 0) / 2
        if len(ln_theta) == 2:
            d_ln_l2 = d_ln_l2.sum()
        d_X1 = None
        if of_X1:
            sums = d_E @ np.concatenate([np.ones((len(A2), 1)), A2], 1)
            d_X1 = (sums[:, 1:] - sums[:, :1] * A1) * inv_l
        return np.append(d_ln_l2, zeroth.sum()), d_X1, d_A2 * inv_l
    if far or by_differences:
        near1, near2 = squares1 < limit / 4, squares2 < limit / 4      # products from any centre
        if not by_differences and near1.any() and near2.any():
            return _near_and_far(X1, X2, ln_theta, near1, near2)
        E, far_back = _ln_se_by_differences(X1, X2, ln_theta, inv_l)
        return E, far_back if far else back
    left = np.concatenate([A1, squares1[:, None] / -2, np.ones((len(X1), 1))], axis=1)
    right = np.concatenate([A2, np.ones((len(X2), 1)), ln_k - squares2[:, None] / 2], axis=1)
    return left @ right.T, back


def _near_and_far(X1, X2, ln_theta, near1, near2):
    """ln_se_kernel by differences for the rows that are not `near`, by products for the others."""
    E = np.empty((len(X1), len(X2)))
    parts = []
    for rows, columns, far in ((near1, near2, False), (near1, ~near2, True),
                               (~near1, near2 | True, True)):
        if rows.any() and columns.any():
            at = np.ix_(rows, columns)
            E[at], back_at = ln_se_kernel(X1[rows], X2[columns], ln_theta, far)
            parts.append((rows, columns, at, back_at))

    def back(d_E, of_X1=True):
        d_ln_theta, d_X1, d_X2 = np.zeros(len(ln_theta)), np.zeros(X1.shape), np.zeros(X2.shape)
        for rows, columns, at, back_at in parts:
            d_theta_at, d_X1_at, d_X2_at = back_at(d_E[at], of_X1)
            d_ln_theta += d_theta_at
            d_X2[columns] += d_X2_at
            if of_X1:
                d_X1[rows] += d_X1_at
        return d_ln_theta, d_X1 if of_X1 else None, d_X2
    return E, back


def cholesky(A, name):
    """Lower L with L L^T = A; ValueError that names the matrix if it is not positive definite."""
    try:
        return np.linalg.cholesky(as_float(A))
    except np.linalg.LinAlgError:
        question = "is a variance too small or a lengthscale too large?"
        raise ValueError(f"{name} is not positive definite: {question}") from None


def solve_triangle(A, L, Linv):
    """X (n, M) with X L = A, for a lower triangular L (M, M) and its inverse Linv.

    By halves, (X1 X2) (L11 0; L21 L22) = (A1 A2). Up to LEAF columns X = A L^-1, refined once, is
    as accurate as substitution.
    """
    A, L, Linv = as_float(A), as_float(L), as_float(Linv)
    M = len(L)
    if M <= LEAF:
        X = A @ Linv
        return X - (X @ L - A) @ Linv
    h = M // 2
    X2 = solve_triangle(A[:, h:], L[h:, h:], Linv[h:, h:])
    X1 = solve_triangle(A[:, :h] - X2 @ L[h:, :h], L[:h, :h], Linv[:h, :h])
    return np.concatenate([X1, X2], 1)


def tri_inv(L):
    """L^-1 of a lower triangular L (n, n), by halves: (A 0; C D)^-1 = (A^-1 0; E D^-1).

    E solves E A = -D^-1 C: then L^-1 L = I to 1e-12 at cond(L) = 1e5, where E = -D^-1 C A^-1 is off
    by 1e-6 and makes ktilde of R (11) 20 % wrong. An upper triangle spares LAPACK its pivoting.
    """
    L = as_float(L)
    n = len(L)
    if n <= LEAF:
        return np.linalg.inv(L.T).T
    h = n // 2
    Ainv = tri_inv(L[:h, :h])
    Dinv = tri_inv(L[h:, h:])
    E = solve_triangle(-Dinv @ L[h:, :h], L[:h, :h], Ainv)
    upper = np.concatenate([Ainv, np.zeros((h, n - h))], 1)
    return np.concatenate([upper, np.concatenate([E, Dinv], 1)], 0)


@in_doubles
def check_jitter(K_MM, Linv, k):
    """ValueError unless L L^T - K_MM, the jitter of the inducing variables, is positive definite.

    L is the inverse of L^-1 as stored. Half of JITTER is kept for the rounding of this check.
    """
    L = tri_inv(Linv)
    jitter = L @ L.T - K_MM - JITTER / 2 * k * np.eye(len(L))
    cholesky(jitter, "the jitter of K_MM, after rounding,")


@in_doubles
def weighted_gram(V, w):
    """V^T diag(w) V (M, M), V (n, M), w (n,) of any sign.

    Two symmetric products of copied rows, half the cost of one general product.
    """
    check_shapes("w and the rows of V", w, V[:, 0])
    plus = V[w > 0]
    plus *= np.sqrt(w[w > 0])[:, None]
    minus = V[w <= 0]
    minus *= np.sqrt(-w[w <= 0])[:, None]
    return plus.T @ plus - minus.T @ minus


def row_dots(A, B):
    """sum_j A_ij B_ij (n,), for A, B (n, m)."""
    return np.einsum("ij,ij->i", as_float(A), as_float(B))


def row_blocks(N, M, least=4):
    """Slices that cut N rows into blocks of BLOCK_BYTES, or of least M rows if that is more.

    4 M rows outweigh the M x M sums of each block; M are enough where there are none. Blocks differ
    by at most one row; if more than one, their number is a multiple of 4 (for 2 or 4 threads).
    """
    n = math.ceil(N / max(BLOCK_BYTES // (8 * M), least * M))
    n = max(n, 1) if n < 2 else 4 * math.ceil(n / 4)
    ends = [N * i // n for i in range(n + 1)]
    return [slice(*pair) for pair in zip(ends, ends[1:])]


# --- numerics: optimisers, k-means ---------------------------------------------------------------

class Optimum(NamedTuple):
    """Where an optimiser stopped, and why."""
    x: np.ndarray              # of minimum and adam a dict
    f: float                   # f(x); of adam the last noisy value, a step before x
    n_evals: int
    history: list              # f after each iteration
    message: str               # why it stopped
    converged: bool            # whether that is an optimum
    state: tuple = None        # of adam, which can go on from it


def _lbfgs_direction(g, pairs):
    """-H g by the two-loop recursion; Nocedal & Wright, Algorithm 7.4.

    pairs = [(s, y)], the latest last.
    """
    q = g.copy()
    steps = []
    for s, y in reversed(pairs):
        steps.append(s @ q / (s @ y))
        q -= steps[-1] * y
    if pairs:
        s, y = pairs[-1]
        q *= s @ y / (y @ y)
    for (s, y), a in zip(pairs, reversed(steps)):
        q += s * (a - y @ q / (s @ y))
    return -q


def cubic_minimum(a, f_a, g_a, b, f_b, g_b):
    """Minimiser of the cubic with these values and derivatives at a and b.

    At least a tenth of the interval away from both ends.

    Nocedal & Wright, Eq. (3.59).
    """
    with np.errstate(all="ignore"):
        d1 = g_a + g_b - 3 * (f_a - f_b) / (a - b)
        d2 = np.sign(b - a) * np.sqrt(d1**2 - g_a * g_b)
        t = b - (b - a) * (g_b + d2 - d1) / (g_b - g_a + 2 * d2)
    w = b - a
    if not np.isfinite(t):
        return a + 0.5 * w
    return min(max(t, a + 0.1 * w), b - 0.1 * w)


def wolfe_search(phi, f0, slope0, t, max_evals):
    """A point with f <= f0 + 1e-4 t slope0 and slope >= 0.9 slope0 (Wolfe), and the calls of phi.

    After max_evals calls the last point that meets the first condition; None if none does. phi(t)
    returns (f, slope, point); f = inf or NaN means that t is too large. Once some t was too large,
    a Wolfe point lies between lo and hi.
    """
    lo = (0.0, f0, slope0)
    hi = None
    point_lo = None
    for n in range(1, max_evals + 1):
        f, slope, point = phi(t)
        if not f <= f0 + 1e-4 * t * slope0:
            hi = (t, f, slope)
        elif slope >= 0.9 * slope0:
            return point, n
        else:
            lo = (t, f, slope)
            point_lo = point
        t = cubic_minimum(*lo, *hi) if hi else 4 * t
    return point_lo, max_evals


def evaluated(fun, x):
    """f and a copy of the gradient, which fun may overwrite with its next."""
    f, g = fun(x)
    return float(f), np.array(as_float(g))


def start_in_box(x0, lower, upper):
    """x0, clipped, as an array; ValueError unless lower <= upper."""
    if not np.all(lower <= upper):
        raise ValueError(f"lower must be at most upper, got {lower} and {upper}")
    return np.clip(np.asarray(x0, dtype=float), lower, upper)


def _box_path(fun, x, d, lower, upper):
    """phi of wolfe_search along x + t d, clipped to the box; a ValueError from fun is f = inf."""
    def phi(t):
        x_t = np.clip(x + t * d, lower, upper)
        try:
            f, g = evaluated(fun, x_t)
        except ValueError:
            return np.inf, np.nan, None
        moves = (x_t > lower) & (x_t < upper)
        return f, g @ np.where(moves, d, 0.0), (x_t, f, g)
    return phi


@in_doubles
def lbfgs(fun, x0, lower=-np.inf, upper=np.inf, max_evals=400, memory=40, gtol=1e-6, ftol=1e-9,
          callback=None):
    """Minimises fun(x) -> (f, gradient) over lower <= x <= upper by limited-memory BFGS. Optimum.

    Wolfe line search. Coordinates pushed against a bound are frozen; the search path is clipped to
    the box (as in Bertsekas 1982). A step is too long where f is inf or NaN, or fun raises a
    ValueError (a matrix not positive definite). With steps that are only shortened, not
    interpolated, kl-PAC-SGP takes 1.4 to 1.9 times the evaluations.

        max_evals    largest number of evaluations
        memory       pairs of steps and gradients kept; with 10 some figures took 1.5 times as many
                     evaluations
        gtol, ftol   converged where no free entry of the gradient exceeds gtol, or f decreases by
                     at most ftol max(|f|, 1)
        callback     called with (n_evals, f) after each iteration; stops where it returns true

    Not converged, with the message "no decrease along the gradient", where f does not fall though
    the gradient says so: it has a wrong sign or is NaN, or f has lost its digits.

    ValueError at x0 where fun raises one, or f is not finite, and unless lower <= upper.
    """
    x = start_in_box(x0, lower, upper)
    f, g = evaluated(fun, x)
    if not np.isfinite(f):
        raise ValueError(f"the objective is {f} at the start x0")
    n_evals = 1
    history = [f]
    pairs = []
    decrease = np.inf

    def stop(message, converged=False):
        return Optimum(x, f, n_evals, history, message, converged)

    while True:
        free = ~(((x <= lower) & (g > 0)) | ((x >= upper) & (g < 0)))
        if np.max(np.abs(g), where=free, initial=0.0) <= gtol:
            return stop(f"gradient below {gtol:g}", True)
        if decrease <= ftol * max(abs(f), 1.0):
            return stop(f"decrease below {ftol:g} max(|f|, 1)", True)
        if n_evals >= max_evals:
            return stop(f"stopped after {n_evals} evaluations")
        d = np.where(free, _lbfgs_direction(np.where(free, g, 0.0), pairs), 0.0)
        if not g @ d < 0:
            pairs = []
            d = np.where(free, -g, 0.0)
        t = 1.0 if pairs else 1 / np.linalg.norm(d)
        phi = _box_path(fun, x, d, lower, upper)
        evals = min(25, max_evals - n_evals)
        point, n = wolfe_search(phi, f, g @ d, t, evals)
        n_evals += n
        least = max(ftol, 1e-9) * max(abs(f), 1.0)       # rounding may hide less
        small = point is None or n == evals and f - point[1] <= least
        if small and not -(g @ d) <= least:              # f should have fallen, or g is NaN
            if not pairs and n_evals < max_evals:
                return stop("no decrease along the gradient")
            pairs = []                                   # once more, along the gradient
            continue
        if point is None:
            return stop(f"decrease below {ftol:g} max(|f|, 1)", True)
        x_new, f_new, g_new = point
        s = x_new - x
        y = g_new - g
        decrease = f - f_new
        x, f, g = point
        if s @ y > 1e-10 * np.linalg.norm(s) * np.linalg.norm(y):
            pairs = (pairs + [(s, y)])[-memory:]
        history.append(f)
        if callback and callback(n_evals, f):
            return stop(STOPPED)


@in_doubles
def adam_step(x, g, state=None, lr=0.01):
    """x after one step of Adam along -g, and the new state (m, v, t); None starts it.

    Kingma & Ba 2015, Algorithm 1.
    """
    m, v, t = (0.0, 0.0, 0) if state is None else state
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g**2
    t = t + 1
    step = lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return x - step, (m, v, t)


def on_vectors(objective, p, box):
    """fun(x) -> (f, gradient), start and limits of x = pack(p), for an objective of dicts like p.

        objective   of a dict -> f, and a dict with the derivative w.r.t. each value of p
        box         dict name -> (lower, upper) of what has limits; names that p lacks do nothing
    """
    def fun(x):
        f, grads = objective(unpack(x, p))
        return float(f), pack({name: grads[name] for name in p})
    ends = [box.get(name, (-np.inf, np.inf)) for name in p]
    lower, upper = np.repeat(ends, [np.size(v) for v in p.values()], axis=0).T
    return fun, start_in_box(pack(p), lower, upper), lower, upper


def minimum(objective, p, box, **options):
    """The Optimum that lbfgs finds from the dict p; options: its other arguments.

    objective, box: see on_vectors.
    """
    found = lbfgs(*on_vectors(objective, p, box), **options)
    return found._replace(x=unpack(found.x, p))


def adam(objective, p, rates, box, state=None, callback=None):
    """The Optimum after a step of Adam at each of the rates on a noisy objective, from the dict p.

        objective, box   see on_vectors
        rates            numbers, or vectors with the layout of pack(p)
        state            of the Optimum from which this goes on
        callback         called with (number of steps, f) after each; stops where it returns true
    history holds the noisy values.
    """
    fun, x, lower, upper = on_vectors(objective, p, box)
    history = []
    message = f"{len(rates)} mini-batch steps"
    for rate in rates:
        f, g = fun(x)
        x, state = adam_step(x, g, state, rate)
        x = np.clip(x, lower, upper)
        history.append(f)
        if callback and callback(len(history), f):
            message = STOPPED
            break
    return Optimum(unpack(x, p), history[-1], len(history), history, message, False, state)


@in_doubles
def kmeans(X, M, rng, n_iter=20):
    """M centres (M, d) of the points X (N, d): Lloyd's algorithm from M distinct random points.

    If N < M, points repeat.
    """
    mean = X.mean(0)
    X = X - mean                           # far from 0 the distances would lose their digits
    Z = X[np.resize(rng.permutation(len(X)), M)]
    for _ in range(n_iter):
        half_squares = np.sum(Z**2, 1) / 2
        blocks = row_blocks(len(X), M)
        nearest = np.concatenate([np.argmax(X[rows] @ Z.T - half_squares, 1) for rows in blocks])
        count = np.bincount(nearest, minlength=M)
        sums = np.stack([np.bincount(nearest, weights=x, minlength=M) for x in X.T], 1)
        Z_new = np.where(count[:, None] > 0, sums / np.maximum(count, 1)[:, None], Z)
        if np.array_equal(Z_new, Z):
            break
        Z = Z_new
    return Z + mean


# --- numerics: two expected losses without cancellation ------------------------------------------

def _cut_far(u, s, eps):
    """u, clipped to 50 (s + eps): beyond, a loss is 1, its derivatives 0, and u^2 may overflow."""
    far = 50 * (s + eps)
    return np.minimum(np.maximum(u, -far), far)


def _inside_and_tails(a, b):
    """P(a < z < b) and P(z < a or z > b) for z ~ N(0, 1), a <= b of any shape.

    No cancellation unless b - a is small.
    """
    tail_a = norm_cdf(-np.abs(a))
    tail_b = norm_cdf(-np.abs(b))
    one_side = a * b > 0      # a and b are on one side of 0
    between = np.abs(tail_a - tail_b)
    outer = tail_a + tail_b
    inside = np.where(one_side, between, 1 - outer)
    outside = np.where(one_side, 1 - between, outer)
    return inside, outside


def _where_narrow(e, series, u, var, closed_form):
    """Expected loss, d/dmean and d/dvar: closed_form, or a series where e < NARROW.

    The closed forms cancel there. For a loss l that is 1 unless |v - y| < e s, s = sqrt(var):
        1 - loss = sum_k a_k e^(2k+1) He_2k(z) phi(z),   z = (mean - y)/s,
        (He_n phi)' = -He_n+1 phi

    u = mean - y, var, e (N,); closed_form three arrays (N,); series = (a_0, a_1, a_2),
    a_k = int_-1^1 (1 - l(t)) t^2k dt / (2k)!, t = (v - y)/(e s).
    """
    s = np.sqrt(var)
    narrow = e < NARROW
    e = np.minimum(e, 1.0)      # what is computed where e is large is discarded
    z = np.clip(u / s, -50.0, 50.0)      # phi(50) is 0, where z^6 may overflow
    He = [1.0, z]
    for n in range(1, 6):
        He.append(z * He[n] - n * He[n - 1])
    b_0, b_1, b_2 = (a * e ** (2 * k) for k, a in enumerate(series))
    sum_0, sum_1, sum_2 = (b_0 * He[n] + b_1 * He[n + 2] + b_2 * He[n + 4] for n in range(3))
    p = e * norm_pdf(z)
    by_series = 1 - p * sum_0, p * sum_1 / s, -p * sum_2 / (2 * var)
    return tuple(np.where(narrow, *pair) for pair in zip(by_series, closed_form))


# --- checks of arguments -------------------------------------------------------------------------
# Each returns the value that is used: float64, int, bool or str. A ValueError says the argument,
# the rule and the value.

def check_array(name, a, ndim, copy=True):
    """`a` as a float64 array with `ndim` dimensions, all finite; an (N, 1) column passes as (N,).

    Lists, integers, float32, data frames and read-only or strided arrays are fine; strings, complex
    numbers and masked values are not. A copy, unless copy = False and it is float64 already.
    """
    out = np.asarray(real_array(name, a), float, order="C")
    if ndim == 1 and out.ndim == 2 and out.shape[1] == 1:
        out = out[:, 0]
    if out.ndim != ndim:
        raise ValueError(f"{name} must be {ndim}-dimensional, got shape {out.shape}")
    bad = np.argwhere(~np.isfinite(out))
    if len(bad):
        raise ValueError(f"{name} has {len(bad)} values that are NaN or infinite, the first at "
                         f"index {tuple(bad[0].tolist())}")
    return out.copy() if copy else out


def check_shapes(names, *arrays):
    """ValueError unless all arrays but scalars have one shape: (n, 1) by (n,) would give n x n."""
    shapes = {getattr(a, "shape", ()) for a in arrays} - {()}
    if len(shapes) > 1:
        raise ValueError(f"{names} differ in shape: {', '.join(map(str, sorted(shapes)))}")


def check_data(X, y, copy=True, d=None, least=1, names=("X", "y")):
    """(X, y) as float arrays (N, d) and (N,), N >= least, of equal length; copy: as check_array.

    d: None for any number of columns above 0; names: of the two, for the error.
    """
    X_name, y_name = names
    if d is None:
        X = check_array(X_name, X, 2, copy)
    else:
        X = check_columns(X_name, X, d, least, copy)
    y = check_array(y_name, y, 1, copy)
    if len(X) != len(y):
        raise ValueError(f"{X_name} and {y_name} differ in length: {len(X)} rows against {len(y)}")
    if least and X.size == 0:
        raise ValueError(f"{X_name} is empty: shape {X.shape}")
    return X, y


def check_columns(name, X, d, least=0, copy=True):
    """X (n, d), n >= least, as a float array; an empty list has no rows. copy: as check_array."""
    if np.shape(X) == (0,):
        X = np.zeros((0, d))
    X = check_array(name, X, 2, copy)
    if X.shape[1] != d or len(X) < least:
        raise ValueError(f"{name} must have {d} columns and at least {least} rows, got shape "
                         f"{X.shape}")
    return X


def is_number(value):
    """Whether `value` is one integer or float; a truth value is not."""
    numbers = (int, float, np.integer, np.floating)
    return isinstance(value, numbers) and not isinstance(value, bool)


def check_scalar(name, value, low, high=np.inf, closed=False):
    """`value` as a finite float in (low, high], or in [low, high] where closed."""
    if is_number(value) and (low < value or closed and low == value):
        if value <= high and value < np.inf:
            return float(value)
    rule = f"{'at least' if closed else 'above'} {low:g}"
    limit = f"at most {high:g}" if high < np.inf else "finite"
    hint = ": 0.05 for 95 % confidence" if name == "delta" else ""
    raise ValueError(f"{name} must be {rule} and {limit}, got {value!r}{hint}")


def check_count(name, value, least=1):
    """`value`, a whole number of at least `least`, as an int."""
    if not (is_number(value) and least <= value < np.inf and value % 1 == 0):
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def check_choice(name, value, known):
    """`value`, one of `known`, as a str."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    return str(value)


def check_flag(name, value):
    """`value`, True or False, as a bool."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def check_kind(name, value, kind, makers):
    """ValueError unless value has the fields of `kind`, a NamedTuple or several, from `makers`."""
    kinds = [kind] if isinstance(kind, type) else kind
    if getattr(value, "_fields", ()) not in [one._fields for one in kinds]:
        raise ValueError(f"{name} must be a {kinds[0].__name__}, from {makers}, got "
                         f"{type(value).__name__}")


def check_kernel(kernel, name="kernel", like="se_kernel"):
    """ValueError unless `kernel`, or the argument of that name, is a function."""
    if not callable(kernel):
        raise ValueError(f"{name} must be a function as {like}, got {kernel!r}")


def check_signal(kernel, X, ln_theta):
    """ValueError unless k(x, x) is signal_variance(ln_theta), which every variance here relies on.

    Tested around points of X (N, d) and around ln_theta, whose entries may all be equal.
    """
    x = np.stack([X[0], X[-1], X[0] + 1.0, X[-1] / 2 - 1.0])
    theta = ln_theta + np.linspace(0.1, 0.5, np.size(ln_theta)).reshape(np.shape(ln_theta))
    K, _ = kernel(x, x, theta)
    k = signal_variance(theta)
    if np.shape(K) != (4, 4) or not np.all(np.abs(np.diag(K) - k) <= 1e-6 * k):
        raise ValueError("k(x, x) must be exp(ln_theta[-1]) for every x, of a mixture the sum over "
                         f"its rows; not so for {getattr(kernel, '__name__', kernel)}")


def check_grid(grid):
    """grid as (L, G), L > 0 a float, G >= 1 an int."""
    if not isinstance(grid, (tuple, list, np.ndarray)) or len(grid) != 2:
        raise ValueError(f"grid must be two numbers (L, G), got {grid!r}")
    return check_scalar("grid's L", grid[0], 0), check_count("grid's G", grid[1])


@in_doubles
def warn_unscaled(X, y, scaler):
    """A warning where y, or a column of X, is far from mean 0 and standard deviation 1.

    It names the first such column, and `scaler`, a function that scales.
    """
    columns = {"y": y} | {f"column {k} of X": x for k, x in enumerate(X.T)}
    for name, v in columns.items():
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            mean = np.mean(v, dtype=float)
            std = np.std(v, dtype=float)
        centred = abs(mean) <= 20 * max(std, 1)
        if not (centred and (0.02 <= std <= 20 or std == 0)):
            warnings.warn(f"{name} has mean {mean:.3g} and deviation {std:.3g}: all starts here "
                          f"expect 0 and 1; {scaler} scales X and y",
                          FitWarning, stacklevel=3)      # UNSCALED matches it
            return
