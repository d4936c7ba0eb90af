"""Learning GPs by minimising PAC-Bayesian generalization bounds, in NumPy, equation by equation.

D. Reeb, A. Doerr, S. Gerwinn, B. Rakitsch: Learning Gaussian Processes by Minimizing PAC-Bayesian
Generalization Bounds, NeurIPS 2018. Tag below: R. The order is the paper's, but App. A and C come
where they are first needed, and optimisers before training. `R Eq. (22), (23)` cites equations, at
the statement or in the docstring of the function; the table of docs/reading-R.md names the function
of each. After `predict` stand checks of arguments. Elsewhere are blocks of rows, beyond/blocks.py;
training from several starts, beyond/search.py; rounding errors, beyond/rounding.py; certificates by
held-out rows or by a prior from a part of them, beyond/certificates.py; tables, their scale and
files, own_data/.
This file can be imported alone, with NumPy.

The idea. A GP prior P and a GP posterior Q give three things: the posterior's mean and variance at
each training input, and KL(Q||P). A bounded loss turns mean and variance into the training risk
R_S(Q); R_S and KL give a number B(Q). With probability at least 1 - delta over the rows, the true
risk is at most B(Q) for every Q at once. So Q may be chosen by minimising B, which is
differentiable:

    (X, y) -> kernel -> (mean_n, var_n), KL -> expected loss per point -> R_S
           -> kl^-1(R_S, complexity / N) = B,      and back by hand, in the reverse order.

    paper             code            shape      meaning, unit
    x_i, y_i          X, y            (N,d) (N,) inputs; targets [y]
    z_j               Z               (M, d)     inducing inputs
    theta             ln_theta        (T,)       ln of (l_1^2 .. l_d^2, sigma_s^2), T = d+1;
                                                 or of (l^2, sigma_s^2), T = 2
    sigma_n^2         ln_noise        scalar     ln of the noise variance: of Q, not of P
    K_NN, K_NM, K_MM  K_NN, K, K_MM   as named   kernel matrices [y^2]; k = sigma_s^2 is every
                                                 diagonal entry of K_NN
    mhat, sigma-hat^2 mean, var       (N,) (N,)  marginals of Q at the data [y], [y^2]
    a_M, B_MM         L c, L S L^T    (M,) (M,M) Q(f_M), kept whitened as (c, S), where
                                                 L L^T = K_MM + JITTER k I, which the formulas
                                                 below call K_MM
    k_M(x_i) L^-T     V               (N,M)      whitened features, row V_i; V_i c, c c, V_i V_i
                                                 are inner products
    L^-1 Q_MM L^-T    VDV             (M,M)      less I: V^T D^-1 V, D = alpha lam + sigma_n^2;
                                                 VDy = V^T D^-1 y, c = S VDy,
                                                 S = (I + VDV)^-1 = root^T root
    Lambda, alpha     lam, alpha      (N,)       Nystroem residual [y^2]; 1 = FITC, 0 = VFE, DTC
    eps               eps             scalar     accuracy goal of the loss [y]; for "band" and
                                                 "relative" a fraction of |y_i|
    delta             delta           scalar     probability that the certificate fails
    kl^-1             kl_inv                     upper inverse of the binary KL divergence

README.md says what `f_grad`, `back` and `d_x` are. The mean function is zero.
For another m(x), fixed before the data are seen, pass y - m(X) and add m(X_new) to the predictions;
not with the losses "band" and "relative", whose goal is relative to y itself.

Equations without code of their own: (2), the true risk, is what the bound is about and cannot be
computed; (7) is the step from KL(Q||P) to KL(Q(f_N)||P(f_N)), of N-dimensional laws; (15)-(17)
prove that ln(1/p_theta) pays for choosing theta. Each is confirmed numerically in the tests. Where
the paper has a misprint the docstring says so.
"""
import functools
import math
import warnings
from types import SimpleNamespace
from typing import Callable, NamedTuple

import numpy as np


__version__ = "1.0.0"      # of all three modules

# On K_MM, relative to the signal variance: the inducing variables are u = f(Z) + noise, in P and Q
# alike, and KL(q(u)||p(u)) is exactly the KL of (f, u). P's marginal on f is N(0, k) for any Z and
# jitter. So Z may be chosen on the data: the KL of f, which (4) needs, is at most that of (f, u).
# 1e-8 keeps Cholesky safe at M = 1000; 1e-4 would move B by .0005.
JITTER = 1e-8
# Smallest predictive variance, relative to the signal variance: below it there is only rounding.
VAR_FLOOR = 1e-12
# Relative margin that makes a rounded kl^-1 an upper bound; its rounding error is below 1e-14.
ROUND_UP = 1e-13
# Relative rounding error of one operation.
ULP = 2.0**-53
# Relative error of a kernel beyond which distances come from differences, not from one product.
EXPANSION_ERROR = 5e-11
# Just above the smallest normal double: replaces 0 in divisors, and q = 0, where d kl^-1/dq is
# infinite.
TINY = 2.3e-308
# Rows are taken in blocks of this size, which stay in the cache; above M = 221 in blocks of 4 M.
BLOCK_BYTES = 3 * 2**19
# Triangles up to this size are inverted at once, larger ones by halves.
LEAF = 48
# Above SMALL rows k-means sees so many of them, drawn at random.
SMALL = 20_000
# |ln| of a variance that is searched for is at most this: here sigma_n^2, binding for goals eps
# below about 1e-3 deviations; in predictive and online every parameter of kernel and noise.
LN_BOX = 16.0
# (L, G) of the theta grid, R Sec. 3.1: two decimals of ln theta in [-6, 6].
GRID = (6.0, 1200)
STOPPED = "stopped by the callback"
# eps/s below which where_narrow replaces the closed forms of two losses, which cancel there.
NARROW = 0.02
SQUARE_SERIES = (4 / 3, 2 / 15, 1 / 210)        # its a_k for 1 - t^2
RELATIVE_SERIES = (1.0, 1 / 12, 1 / 360)        # and for 1 - |t|


# glibc then reuses freed blocks of up to 31 MiB; page by page they cost a fifth of each evaluation.
np.empty(31 * 2**17)


# --- arithmetic in float64 -----------------------------------------------------------------------

def as_float(a):
    """`a` in float64, where it is an array of integers, truth values or shorter floats.

    A narrow scalar is a Python number. A dict: its values. All else, as what autograd traces, as it
    is.
    """
    if isinstance(a, dict):
        return {name: as_float(value) for name, value in a.items()}
    dtype = getattr(a, "dtype", None)
    if dtype is None or dtype.kind not in "biuf" or dtype.kind == "f" and dtype.itemsize >= 8:
        return a
    return a.item() if isinstance(a, np.generic) else a.astype(float)


def in_doubles(f):
    """Decorator: f computes in float64, whatever numbers it is given, and so does the VJP that it
    returns.

    Otherwise differences of unsigned integers wrap around, squares of narrow ones overflow, and
    float16 rounds to three digits. Numbers that underflow to 0, as exp(-800), are meant: they raise
    no error under np.seterr(under="raise").
    """
    @functools.wraps(f)
    def f_in_doubles(*args, **named):
        args = [as_float(a) for a in args]
        named = {name: as_float(a) for name, a in named.items()}
        with np.errstate(under="ignore"):
            result = f(*args, **named)
        if type(result) is tuple and callable(result[-1]):
            return *result[:-1], in_doubles(result[-1])
        return in_doubles(result) if callable(result) else result
    return f_in_doubles


# --- the binary KL divergence and its inverse: R Sec. 2.2, App. A --------------------------------

def x_minus_log1p(x, x1):
    """h(x) = x - ln(1 + x) >= 0, elementwise, to full relative accuracy, near x = 0 and x = -1.

    x1 = 1 + x, which the caller knows to more digits near x = -1.
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


@in_doubles
def binary_kl(q, p):
    """kl(q||p) = q ln(q/p) + (1-q) ln((1-q)/(1-p)) in nats, elementwise; R Sec. 2.2, above Eq. (3).

    Written q h(d/q) + (1-q) h(-d/(1-q)), d = p - q: two terms that are never negative, so nothing
    cancels near p = q. q, p in [0, 1] broadcast. Returns values in [0, inf].
    ValueError outside [0, 1].
    """
    q = np.asarray(q, dtype=float)
    p = np.asarray(p, dtype=float)
    if not np.all((0 <= q) & (q <= 1)) or not np.all((0 <= p) & (p <= 1)):
        raise ValueError("q and p must lie in [0, 1]")
    d = p - q
    w = np.maximum(1 - q, TINY)
    q = np.maximum(q, TINY)
    with np.errstate(divide="ignore"):
        return q * x_minus_log1p(d / q, p / q) + w * x_minus_log1p(-d / w, (1 - p) / w)


def kl_inv_gap(q, eps):
    """q, eps as float arrays of one shape, and d = kl^-1(q, eps) - q >= 0 to 14 digits.

    Newton on f(d) = q h(d/q) + (1-q) h(-d/(1-q)) - eps, which is convex with
    f' = d / ((q+d)(1-q-d)): from the right it stays on the right. The start is the least of three
    upper bounds: Pinsker's, sqrt(eps/2); the root of d^2 = 2 eps (q+d); and, dropping q ln p <= 0
    from kl(q||p) = eps, 1-p >= (1-q) exp(-(eps - q ln q)/(1-q)), within a factor e of 1-p.
    Arguments and errors as kl_inv.
    """
    given = np.broadcast_arrays(np.asarray(q, dtype=float), np.asarray(eps, dtype=float))
    q, eps = given
    if not np.all((0 <= q) & (q <= 1) & (0 <= eps)):
        raise ValueError("q must lie in [0, 1], and eps be at least 0")
    w = 1 - q
    q = np.maximum(q, TINY)
    eps = eps + 2e-323 * (eps > 0)      # a denormal eps rounds f
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
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


@in_doubles
def kl_inv(q, eps):
    """max{p in [0, 1] : kl(q||p) <= eps}, never below the true value; R Eq. (3).

    At most 3e-13 of it, or 1e-304, above it. q in [0, 1], eps in [0, inf] nats; scalars or arrays
    that broadcast. Returns p in [q, 1], a float for scalars.
    Corners: kl_inv(0, eps) = 1 - exp(-eps), kl_inv(1, eps) = 1, kl_inv(q, 0) = q,
    kl_inv(q, inf) = 1.
    ValueError for q outside [0, 1], eps < 0 and NaN.
    """
    q, eps, d = kl_inv_gap(q, eps)
    above = np.where(eps > 0, (q + d) * (1 + ROUND_UP), q)
    p = np.minimum(above, 1.0)                                                        # R Eq. (3)
    return p if p.ndim else float(p)


@in_doubles
def kl_inv_grad(q, eps):
    """d kl^-1/dq and d kl^-1/deps; arguments as kl_inv; R Eq. (12), (13).

    With p = kl^-1(q, eps) and d = p - q:
        dp/deps = p (1-p) / d,   dp/dq = (ln(p/q) + ln((1-q)/(1-p))) dp/deps.
    Never NaN; infinite only where the derivative is: d/dq at q = 0 < eps, d/deps at
    eps = 0 < q < 1.
    """
    q, eps, d = kl_inv_gap(q, eps)
    w = 1 - q
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        d_eps = (q + d) * (w - d) / d                                                 # R Eq. (13)
        d_q = (np.log1p(d / q) - np.log1p(-d / w)) * d_eps                            # R Eq. (12)
    at_0 = eps == 0
    at_1 = d >= w      # kl^-1 = 1
    d_q = np.select([at_0, at_1], [1.0, 0.0], d_q)
    d_eps = np.select([at_0 & (q == 0), at_1, at_0], [1.0, 0.0, np.inf], d_eps)
    return (d_q, d_eps) if d_q.ndim else (float(d_q), float(d_eps))


# --- the bounds: R Sec. 2.2 ----------------------------------------------------------------------

def ln_confidence(N, delta, xi=False):
    """ln(2 sqrt(N)/delta) as in R Eq. (4), valid for every N >= 1; or ln(xi(N)/delta), xi=True.

        xi(N) = sum_k C(N,k) (k/N)^k (1-k/N)^(N-k) = 2 + sum_{j=1}^{N-1} prod_{i<=j} (1 - i/N)
              <= 2 sqrt(N)
    is the constant the theorem's proof needs (Maurer 2004); it saves up to 0.47 nats. The second
    form (Ramanujan's Q) has only positive terms; its rounding error, below N ulp, is added.
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
    """(KL + penalty + ln(2 sqrt(N)/delta)) / N [nats per row]: bounds kl(R_S||true risk).

    R Eq. (4), (5). Arguments as pac_bayes_bound. ValueError unless KL and penalty are above -1e-9:
    what rounding leaves below 0 counts as 0.
    """
    if not (KL > -1e-9 and penalty > -1e-9):
        raise ValueError(f"KL and penalty must be at least 0, got {KL}, {penalty}")
    KL = max(float(KL), 0.0)
    penalty = max(float(penalty), 0.0)
    return (KL + penalty + ln_confidence(N, delta, xi)) / int(N)


def pac_bayes_bound(risk, KL, N, delta=0.01, penalty=0.0, xi=False):
    """B = kl^-1(R_S, (KL + penalty + ln(2 sqrt(N)/delta)) / N): bounds the true risk of Q.

    R Eq. (4), (5). For losses in [0, 1] and N i.i.d. rows, with probability at least 1 - delta over
    the rows, for all Q at once.
    risk = R_S(Q) in [0, 1]; KL = KL(Q||P) [nats]; penalty = ln(1/p_theta) for a prior chosen on the
    data from a countable set: ln|Theta| for a grid (ln_grid_size); add ln E where the best of E
    values of eps, fixed beforehand, is reported. kl^-1 is rounded up; what rounding did to risk and
    KL before is enclosed by `strict` of beyond/rounding.py, for a Fit.
    Returns a float in [risk, 1].
    """
    return kl_inv(risk, complexity(KL, N, delta, penalty, xi))                     # R Eq. (5)


def pac_bayes_bound_grad(risk, KL, N, delta=0.01, penalty=0.0, xi=False):
    """d B/d risk and d B/d KL: the factors in parentheses of R Eq. (14), the second over N.

    At risk = 0 taken at TINY.
    """
    risk = np.maximum(risk, TINY)
    d_risk, d_eps = kl_inv_grad(risk, complexity(KL, N, delta, penalty, xi))
    return d_risk, d_eps / int(N)


def pinsker_bound(risk, KL, N, delta=0.01, penalty=0.0, xi=False):
    """B_Pin = R_S + sqrt((KL + penalty + ln(2 sqrt(N)/delta)) / (2N)) >= B; R Sec. 2.2.

    The paper has it below Eq. (5). It may exceed 1. Arguments as pac_bayes_bound.
    """
    risk = float(risk)
    if not 0 <= risk <= 1:
        raise ValueError(f"risk must lie in [0, 1], got {risk}")
    return risk + math.sqrt(complexity(KL, N, delta, penalty, xi) / 2)


def pinsker_bound_grad(risk, KL, N, delta=0.01, penalty=0.0, xi=False):
    """d B_Pin/d risk, d B_Pin/d KL."""
    return 1.0, 1 / math.sqrt(complexity(KL, N, delta, penalty, xi) / 2) / 4 / int(N)


def bayes_risk_bound(bound):
    """min(2 B, 1) bounds the risk of the posterior mean itself, R_Bay <= 2 R; R Sec. 2.1.

    For losses quasi-convex in the prediction and predictions symmetric about their mean: all losses
    here. bound: a number or an array of numbers of at least 0.
    """
    bound = np.asarray(bound, dtype=float)
    if not np.all(bound >= 0):
        raise ValueError("bound must be at least 0")
    return np.minimum(2 * bound, 1.0)


# --- losses and their expectation under a Gaussian prediction: R App. C --------------------------

@in_doubles
def norm_cdf(z):
    """Phi(z) = erfc(-z/sqrt 2)/2, any shape, to 1e-12 relative in both tails; R Eq. (30)."""
    z = np.asarray(z, dtype=float)
    arguments = (z * -math.sqrt(0.5)).ravel().tolist()
    erfc = np.fromiter(map(math.erfc, arguments), float, z.size)
    return erfc.reshape(z.shape) / 2


@in_doubles
def norm_pdf(z):
    """phi(z) = exp(-z^2/2) / sqrt(2 pi)."""
    return np.exp(-z**2 / 2) / math.sqrt(2 * math.pi)


@in_doubles
def loss_01(y, yhat, eps):
    """1 where the prediction misses by more than eps, else 0; R Eq. (18)."""
    return (np.abs(y - yhat) > eps) * 1.0


@in_doubles
def loss_clipped_square(y, yhat, eps):
    """min(((y - yhat)/eps)^2, 1); R Eq. (19)."""
    return np.minimum(((y - yhat) / eps) ** 2, 1.0)


@in_doubles
def loss_exp(y, yhat, eps):
    """1 - exp(-((y - yhat)/eps)^2), the inverted Gaussian; R Eq. (20)."""
    return -np.expm1(-(((y - yhat) / eps) ** 2))


@in_doubles
def loss_band(y, yhat, lower, upper):
    """1 where yhat is outside [lower, upper] = [r_-(y), r_+(y)], else 0; R Eq. (21).

    y is in lower and upper.
    """
    return ((yhat < lower) | (yhat > upper)) * 1.0


@in_doubles
def loss_relative(y, yhat, eps=1.0):
    """min(|yhat - y| / (eps |y|), 1); R App. C, below Eq. (21), with eps = 1.

    The paper has max for min: not bounded. At y = 0 every prediction other than 0 has loss 1.
    """
    goal = eps * np.abs(y)
    missed_0 = (y == 0) * (yhat != 0)
    return np.minimum(np.abs(yhat - y), goal) / np.maximum(goal, TINY) + missed_0


@in_doubles
def residual_of(y, mean, var, eps):
    """mean - y, var and eps in float64; ValueError unless var > 0 and eps > 0 (NaN included)."""
    if not (np.all(var > 0) and np.all(eps > 0)):
        raise ValueError("var and eps must be positive")
    return mean - y, var, np.multiply(1.0, eps)


@in_doubles
def cut_far(u, s, eps):
    """u, at most 50 (s + eps) in size: farther a loss is 1 and its derivatives are 0, but u^2 may
    overflow."""
    far = 50 * (s + eps)
    return np.minimum(np.maximum(u, -far), far)


@in_doubles
def expected_band_loss(mean, var, lower, upper):
    """P(v outside [lower, upper]), v ~ N(mean, var), per point, and its d/d mean, d/d var.

    R Eq. (29), (31); (21) under (24).
        a = (lower - mean)/s, b = (upper - mean)/s, s = sqrt(var):   loss = Phi(a) + Phi(-b)
        da/dmean = -1/s,   da/dvar = -a/(2 var),   and so for b
    mean [y], var [y^2], lower <= upper (not checked) are (N,) or scalars. Returns three arrays
    (N,), the first in [0, 1]. The paper has 1 - Phi(b): Phi(-b) is equal and keeps its digits below
    1e-16. (31) lacks the factor 1/sqrt(2 pi) of phi. Raises ValueError unless var > 0.
    """
    if not np.all(var > 0):
        raise ValueError("var must be positive")
    s = np.sqrt(var)
    a = (lower - mean) / s
    b = (upper - mean) / s
    phi_a = norm_pdf(a)
    phi_b = norm_pdf(b)
    loss = norm_cdf(a) + norm_cdf(-b)                                                 # R Eq. (29)
    d_mean = (phi_b - phi_a) / s                                                      # R Eq. (31)
    d_var = (b * phi_b - a * phi_a) / (2 * var)                                       # R Eq. (31)
    return loss, d_mean, d_var


@in_doubles
def expected_01_loss(y, mean, var, eps):
    """P(|f_n - y_n| > eps), f_n ~ N(mean_n, var_n), per point, and its d/d mean_n, d/d var_n.

    R Eq. (26), (31). The band loss of the residual mean - y, which is formed first: small
    differences of large numbers keep their digits. y, mean [y], var [y^2] are (N,), eps [y] a
    scalar or (N,). Returns three arrays (N,); R_S (24), (25) is the first's mean.
    Raises ValueError unless var > 0 and eps > 0 (NaN included).
    """
    u, var, eps = residual_of(y, mean, var, eps)
    return expected_band_loss(u, var, -eps, eps)                                      # R Eq. (26)


@in_doubles
def expected_relative_band_loss(y, mean, var, eps):
    """P(|f_n - y_n| > eps |y_n|) and its slopes as expected_01_loss; eps has no unit.

    R Eq. (29) with r = y +- eps|y|.
    """
    u, var, eps = residual_of(y, mean, var, eps)
    goal = eps * np.abs(y)
    return expected_band_loss(u, var, -goal, goal)


@in_doubles
def inside_and_tails(a, b):
    """P(a < z < b) and P(z < a or z > b) for z ~ N(0, 1), a <= b of any shape.

    No cancellation unless b - a is small.
    """
    tail_a = norm_cdf(-np.abs(a))
    tail_b = norm_cdf(-np.abs(b))
    one_side = a * b > 0      # both ends are on one side of 0
    between = np.abs(tail_a - tail_b)
    beyond = tail_a + tail_b
    inside = np.where(one_side, between, 1 - beyond)
    outside = np.where(one_side, 1 - between, beyond)
    return inside, outside


@in_doubles
def where_narrow(e, series, u, var, wide):
    """Expected loss, its d/d mean and d/d var: `wide`, but a series where e < NARROW.

    Closed forms cancel there.
        1 - loss = sum_k a_k e^(2k+1) He_2k(z) phi(z),   z = (mean - y)/s,
        (He_n phi)' = -He_n+1 phi
    for a loss that is 1 unless |v - y| < e s, s = sqrt(var). u = mean - y, var, e (N,);
    series = (a_0, a_1, a_2), a_k = int_-1^1 (1 - l(t)) t^2k dt / (2k)!, t = (v - y)/(e s).
    """
    s = np.sqrt(var)
    narrow = e < NARROW
    e = np.minimum(e, 1.0)      # what is computed where e is large is discarded
    z = np.clip(u / s, -50.0, 50.0)      # phi(50) is 0, where z^6 may overflow
    He = (
        1,
        z,
        z**2 - 1,
        z**3 - 3 * z,
        z**4 - 6 * z**2 + 3,
        z**5 - 10 * z**3 + 15 * z,
        z**6 - 15 * z**4 + 45 * z**2 - 15,
    )
    b_0, b_1, b_2 = (a * e ** (2 * k) for k, a in enumerate(series))
    sum_0, sum_1, sum_2 = (b_0 * He[n] + b_1 * He[n + 2] + b_2 * He[n + 4] for n in range(3))
    p = e * norm_pdf(z)
    near = 1 - p * sum_0, p * sum_1 / s, -p * sum_2 / (2 * var)
    return tuple(np.where(narrow, *pair) for pair in zip(near, wide))


@in_doubles
def expected_clipped_square_loss(y, mean, var, eps):
    """E min(((y - v)/eps)^2, 1), v ~ N(mean, var), and its d/d mean, d/d var; R Eq. (27).

        u = mean - y, a = (-eps - u)/s, b = (eps - u)/s, inside = Phi(b) - Phi(a), e = eps/s:
        loss = ((u^2 + var) inside - s ((u + eps) phi(b) + (eps - u) phi(a))) / eps^2
               + Phi(a) + Phi(-b)
        d E l/d mean = E l',  d E l/d var = E l''/2,  l'' = 2/eps^2 inside, -(2/eps) at each edge
    Arguments as expected_01_loss. The paper has the wrong sign at one of its two boundary terms,
    and 1 - inside, which loses the digits of small losses.
    """
    u, var, eps = residual_of(y, mean, var, eps)
    s = np.sqrt(var)
    u = cut_far(u, s, eps)
    a = (-eps - u) / s
    b = (eps - u) / s
    e = eps / s
    phi_a = norm_pdf(a)
    phi_b = norm_pdf(b)
    inside, tails = inside_and_tails(a, b)
    edges = s * ((u + eps) * phi_b + (eps - u) * phi_a)
    loss = ((u**2 + var) * inside - edges) / eps**2 + tails                           # R Eq. (27)
    d_mean = 2 / eps**2 * (u * inside - s * (phi_b - phi_a))
    d_var = (inside - e * (phi_b + phi_a)) / eps**2
    return where_narrow(e, SQUARE_SERIES, u, var, (loss, d_mean, d_var))


@in_doubles
def expected_exp_loss(y, mean, var, eps):
    """E[1 - exp(-((y - v)/eps)^2)], v ~ N(mean, var), and its d/d mean, d/d var; R Eq. (28).

        g = 1 - loss = (1 + 2 var/eps^2)^(-1/2) exp(-u^2/w),   u = mean - y,   w = 2 var + eps^2
        d ln g/dmean = -2 u/w,   d ln g/dvar = -1/w + 2 u^2/w^2
    Arguments as expected_01_loss. The paper has the standard deviation sigma-hat where the
    variance belongs.
    """
    u, var, eps = residual_of(y, mean, var, eps)
    u = cut_far(u, np.sqrt(var), eps)
    w = 2 * var + eps**2
    ln_g = -np.log1p(2 * var / eps**2) / 2 - u**2 / w                                 # R Eq. (28)
    g = np.exp(ln_g)
    d_mean = g * 2 * u / w
    d_var = g * (1 / w - 2 * (u / w) ** 2)
    return -np.expm1(ln_g), d_mean, d_var


@in_doubles
def expected_relative_loss(y, mean, var, eps=1.0):
    """E min(|v - y|/(eps |y|), 1), v ~ N(mean, var), and its d/d mean, d/d var.

    R App. C, below Eq. (21).
        u = mean - y, goal = eps |y|, a = (-goal - u)/s, b = (goal - u)/s:
        loss = (u (P(0 < v-y < goal) - P(-goal < v-y < 0))
                + s (2 phi(u/s) - phi(a) - phi(b))) / goal + Phi(a) + Phi(-b)
        l' = sign(v - y)/goal inside,   l'' = 2/goal at 0 and -1/goal at each edge
    Arguments as expected_01_loss, but that eps > 0 has no unit.
    """
    u, var, eps = residual_of(y, mean, var, eps)
    s = np.sqrt(var)
    goal = np.maximum(eps * np.abs(y), TINY)
    a = (-goal - u) / s
    b = (goal - u) / s
    middle = -u / s
    e = goal / s
    above = inside_and_tails(middle, b)[0]
    below = inside_and_tails(a, middle)[0]
    tails = inside_and_tails(a, b)[1]
    edges = 2 * norm_pdf(middle) - norm_pdf(a) - norm_pdf(b)
    goal = np.where(e < NARROW, 1.0, goal)      # where the series stands
    loss = (u * (above - below) + s * edges) / goal + tails
    d_mean = (above - below) / goal
    d_var = edges / (2 * goal * s)
    return where_narrow(e, RELATIVE_SERIES, u, var, (loss, d_mean, d_var))


# name -> function (y, mean, var, eps) that returns the expected loss, its d/d mean and its d/d var
LOSSES = {
    "01": expected_01_loss,
    "square": expected_clipped_square_loss,
    "exp": expected_exp_loss,
    "band": expected_relative_band_loss,
    "relative": expected_relative_loss,
}
ZERO_ONE_LOSSES = ("01", "band")                   # losses that are 0 or 1
RELATIVE_LOSSES = ("band", "relative")    # have a fraction of |y| as their eps, without unit


def mean_loss(total, N):
    """The mean of N expected losses, in [0, 1].

    ValueError where it lies outside by more than rounding, 1e-9, or is NaN.
    """
    mean = float(total) / float(N)
    if not -1e-9 <= mean <= 1 + 1e-9:
        lost = "outside [0, 1]: y, mean or var have lost their digits"
        raise ValueError(f"the mean loss is {mean}, {lost}")
    return min(max(mean, 0.0), 1.0)


@in_doubles
def expected_losses(y, mean, var, eps, loss="01"):
    """Expected loss of each row, its d/d mean and its d/d var, (N,) each, for a key of LOSSES.

    ValueError where the shapes of y, mean, var differ: y as a column would silently be paired with
    every mean.
    """
    y, mean, var, eps = (np.asarray(a, dtype=float) for a in (y, mean, var, eps))
    if not y.shape == mean.shape == var.shape or eps.shape not in ((), y.shape):
        raise ValueError("y, mean and var must have one shape, and eps it or none")
    return LOSSES[loss](y, mean, var, eps)


@in_doubles
def gibbs_risk(y, mean, var, eps, loss="01"):
    """Mean expected loss: R_S(Q) on training rows, an unbiased estimate of R(Q) on others.

    R Eq. (1), (24), (25). Arguments as expected_losses. On a mini-batch it is the unbiased estimate
    of R_S(Q) of R Eq. (32).
    """
    losses, *_ = expected_losses(y, mean, var, eps, loss)
    return mean_loss(np.sum(losses), len(losses))


def hoeffding_term(n, delta):
    """sqrt(ln(2/delta) / (2n)): the distance of R_S from the risk on n random rows; R Eq. (32).

    It is at most that with probability at least 1 - delta.
    """
    if not (n >= 1 and 0 < delta <= 1):
        raise ValueError(f"n must be at least 1, delta in (0, 1], got {n!r}, {delta!r}")
    return math.sqrt(math.log(2 / float(delta)) / 2 / float(n))


# --- the SE kernel and matrix leaves -------------------------------------------------------------

def differences(X1, X2, inv_l):
    """Yields (x1_k - x2_k)/l_k (N1, N2) for each column k, to 3 ulp, cut where squares overflow."""
    X1, X2 = as_float(X1), as_float(X2)
    for k, inverse in enumerate(inv_l):
        difference = X1[:, k, None] - X2[None, :, k]
        yield np.clip(difference * inverse, -1e150, 1e150)


@in_doubles
def ln_se_kernel(X1, X2, ln_theta, by_differences=False):
    """E_ij = ln sigma_s^2 - r^2/2 (N1, N2), r^2 = sum_k (X1_ik - X2_jk)^2 / l_k^2, and back.

    Arguments and back as se_kernel. With m the mean of X2, which changes rounding alone, a product:
        (a, -|a|^2/2, 1) (b, 1, ln sigma_s^2 - |b|^2/2)^T = ln sigma_s^2 - |a-b|^2/2,
        a = (x1 - m)/l, b = (x2 - m)/l,
    which errs by 4 (d+4) ulp of its terms at most, and may exceed ln sigma_s^2 by that. Where it is
    more than EXPANSION_ERROR, as for inputs far from each other, or with by_differences = True, the distance
    is a sum of squared differences, right to d + 8 ulp. ValueError where shapes do not fit.

    back(d_E):  dE/d ln l_k^2 = (x1_k - x2_k)^2 / (2 l_k^2),   dE/d ln sigma_s^2 = 1,
                dE/d x2_k = (x1_k - x2_k) / l_k^2 = -dE/d x1_k,
    by products or, as before, by differences.
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
        largest = np.max(np.concatenate([squares1, squares2])) + np.abs(ln_k)
        near = 4 * (d + 4) * ULP * largest < EXPANSION_ERROR      # False where squares overflow
    if near and not by_differences:
        left = np.concatenate([A1, squares1[:, None] / -2, np.ones((len(X1), 1))], axis=1)
        right = np.concatenate([A2, np.ones((len(X2), 1)), ln_k - squares2[:, None] / 2], axis=1)
        E = left @ right.T
    else:
        E = ln_k - sum(D**2 for D in differences(X1, X2, inv_l)) / 2

    def back(d_E, of_X1=True):
        if near:
            powers = np.concatenate([np.ones((len(A1), 1)), A1, A1**2], 1)      # 1, a, a^2
            sums = (powers.T @ d_E).T
            zeroth, first, second = np.split(sums, [1, d + 1], axis=1)
            d_A2 = first - zeroth * A2
            d_ln_l2 = np.sum(zeroth * A2**2 - 2 * A2 * first + second, 0) / 2
            if of_X1:
                sums = d_E @ np.concatenate([np.ones((len(A2), 1)), A2], 1)
                d_A1 = sums[:, 1:] - sums[:, :1] * A1
        else:
            zeroth = np.sum(d_E, 0)
            sums = [(-np.sum(d_E * D, 1), np.sum(d_E * D, 0), np.sum(d_E * D * D) / 2)
                    for D in differences(X1, X2, inv_l)]
            d_A1, d_A2, d_ln_l2 = (np.stack(parts, -1) for parts in zip(*sums))
        if len(ln_theta) == 2:
            d_ln_l2 = d_ln_l2.sum()
        d_X1 = d_A1 * inv_l if of_X1 else None
        return np.append(d_ln_l2, zeroth.sum()), d_X1, d_A2 * inv_l
    return E, back


@in_doubles
def se_kernel(X1, X2, ln_theta, by_differences=False):
    """K_ij = sigma_s^2 exp(-1/2 sum_k (X1_ik - X2_jk)^2 / l_k^2), ARD or not, and back; R Sec. 3.1.

    The SE kernel, below Eq. (8). X1 (N1, d), X2 (N2, d); ln_theta (T,), T = d+1 or 2. Returns
    (N1, N2) [y^2], never above sigma_s^2. by_differences: see ln_se_kernel.

    Every kernel here and in the other modules has these arguments and results, parameters of its
    own between the lengthscales and ln sigma_s^2, and k(x, x) = exp(ln_theta[-1]) for every x.
    back(d_K, of_X1=True) returns d_ln_theta (T,), d_X1 (N1, d) and d_X2 (N2, d) from d_K (N1, N2):
    dK = K dE,  E = ln K. With of_X1 = False d_X1 may be None, which saves a third. Where X1 is X2
    and d_K is symmetric, the whole gradient is 2 d_X2.
    """
    E, E_back = ln_se_kernel(X1, X2, ln_theta, by_differences)
    K = np.exp(np.minimum(E, ln_theta[-1]))

    def back(d_K, of_X1=True):
        return E_back(d_K * K, of_X1)
    return K, back


def signal_variance(ln_theta):
    """k(x, x) [y^2]: sigma_s^2, or the sum of the weights of a mixture of kernels, ln_theta (Q, T).

    Its slope by ln_theta[..., -1] is exp(ln_theta[..., -1]).
    """
    return np.sum(np.exp(as_float(ln_theta)[..., -1]))


def cholesky(A, name):
    """Lower L with L L^T = A; ValueError that names the matrix if it is not positive definite."""
    try:
        return np.linalg.cholesky(as_float(A))
    except np.linalg.LinAlgError:
        question = "is a variance too small or a lengthscale too large?"
        raise ValueError(f"{name} is not positive definite: {question}") from None


def solve_triangle(A, L, Linv):
    """X (n, M) with X L = A, for a lower triangular L (M, M) and its inverse Linv.

    By halves, from the right: (X1 X2) (L11 0; L21 L22) = (A1 A2). Up to LEAF columns X = A L^-1,
    refined once; so X is as good as by substitution.
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

    E A = -D^-1 C is solved: L^-1 L = I to 1e-12 at cond(L) = 1e5, where E = -D^-1 C A^-1 leaves
    1e-6 and makes the lam of (11) 20 % wrong. A leaf is inverted as an upper triangle, where
    LAPACK's pivoting finds nothing to exchange.
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
    lower = np.concatenate([E, Dinv], 1)
    return np.concatenate([upper, lower], 0)


@in_doubles
def check_jitter(K_MM, Linv, k):
    """ValueError unless L L^T - K_MM, the jitter of the inducing variables, is positive definite.

    L is the inverse of L^-1 as it is stored. Half of JITTER is left for the rounding of this check
    itself.
    """
    L = tri_inv(Linv)
    jitter = L @ L.T - K_MM - JITTER / 2 * k * np.eye(len(L))
    cholesky(jitter, "the jitter of K_MM, after rounding,")


def row_blocks(N, M, least=4):
    """Slices that cut N rows into blocks of at most BLOCK_BYTES, or of `least` M rows if more.

    4 pays for each M x M sum; 1 does where there is none. They are equally long but for one row,
    and several are a multiple of 4, so that two or four threads end together.
    """
    n = math.ceil(N / max(BLOCK_BYTES // (8 * M), least * M))
    n = max(n, 1) if n < 2 else 4 * math.ceil(n / 4)
    ends = [N * i // n for i in range(n + 1)]
    return [slice(*pair) for pair in zip(ends, ends[1:])]


@in_doubles
def weighted_gram(V, w):
    """V^T diag(w) V (M, M), V (n, M), w (n,) of any sign.

    Two symmetric products over copied rows, half the cost of one.
    """
    plus = V[w > 0]
    plus *= np.sqrt(w[w > 0])[:, None]
    minus = V[w <= 0]
    minus *= np.sqrt(-w[w <= 0])[:, None]
    return plus.T @ plus - minus.T @ minus


def row_dots(A, B):
    """sum_j A_ij B_ij, (n,), of A, B (n, m)."""
    return np.einsum("ij,ij->i", as_float(A), as_float(B))


# --- full GP: R Sec. 3.1 -------------------------------------------------------------------------

@in_doubles
def noisy_factors(K, y, ln_noise):
    """sigma^2, ln|K_y|, L^-1, L^-1 y, a = K_y^-1 y for K_y = K + sigma^2 I = L L^T.

    ValueError if K_y is not positive definite.
    """
    sigma2 = np.exp(ln_noise)
    L = cholesky(K + sigma2 * np.eye(len(y)), "K + sigma^2 I")
    ln_det = 2 * np.sum(np.log(np.diag(L)))
    Linv = tri_inv(L)
    Linv_y = Linv @ y
    return sigma2, ln_det, Linv, Linv_y, Linv.T @ Linv_y


@in_doubles
def full_gp(X, y, ln_theta, ln_noise, kernel=se_kernel):
    """(mean, var, KL), back: marginals (N,) of the GP posterior at its own data, and KL(Q||P).

    R Eq. (6) and (8), with K_NN = K_y - sigma_n^2 I put in:
        K_y = K_NN + sigma_n^2 I, a = K_y^-1 y:
        mean = y - sigma_n^2 a,   var = sigma_n^2 - sigma_n^4 diag(K_y^-1),
        KL = (ln|K_y| - N ln sigma_n^2 - N + sigma_n^2 tr K_y^-1 + a^T y - sigma_n^2 a^T a) / 2
    X (N, d), y (N,) [y], ln_theta (T,), ln_noise scalar. A variance below VAR_FLOOR k, which
    rounding may leave of 0, is set to it, without slope. ValueError if K_y is not positive definite.

    back(d_mean, d_var, d_KL), from slopes (N,), (N,) and a scalar, returns a dict of gradients by
    ln_theta and ln_noise. Its cost is a symmetric product, K_y^-1 diag(.) K_y^-1:
        da = -K_y^-1 dK_y a,   dK_y^-1 = -K_y^-1 dK_y K_y^-1,   d ln|K_y| = tr(K_y^-1 dK_y),
        dK_y = dK_NN + dsigma_n^2 I
    """
    N = len(y)
    K_NN, K_back = kernel(X, X, ln_theta)
    sigma2, ln_det, Linv, _, a = noisy_factors(K_NN, y, ln_noise)
    K_y_inv = Linv.T @ Linv
    mean = y - sigma2 * a                                                             # R Eq. (6)
    var = sigma2 - sigma2**2 * np.diag(K_y_inv)                                          # R Eq. (6)
    trace = sigma2 * np.trace(K_y_inv)
    KL = (ln_det - N * ln_noise - N + trace + a @ y - sigma2 * a @ a) / 2             # R Eq. (8)
    floor = VAR_FLOOR * signal_variance(ln_theta)

    def back(d_mean, d_var, d_KL):
        d_var = d_var * (var > floor)
        d_a = -sigma2 * d_mean + d_KL * (y / 2 - sigma2 * a)
        d_diag = d_KL * sigma2 / 2 - sigma2**2 * d_var
        d_K_y = d_KL / 2 * K_y_inv - weighted_gram(K_y_inv, d_diag)
        d_K_y -= np.outer(K_y_inv @ d_a, a)      # only its symmetric part acts on dK_NN
        through_var = d_var @ (1 - 2 * sigma2 * np.diag(K_y_inv))
        through_KL = d_KL / 2 * (np.trace(K_y_inv) - N / sigma2 - a @ a)
        d_sigma2 = np.trace(d_K_y) - a @ d_mean + through_var + through_KL
        d_ln_theta, *_ = K_back(d_K_y, of_X1=False)
        return dict(ln_theta=d_ln_theta, ln_noise=sigma2 * d_sigma2)
    return (mean, np.maximum(var, floor), KL), back


@in_doubles
def gaussian_nll(K, y, ln_noise):
    """-ln N(y | 0, K_y) = (ln|K_y| + N ln 2 pi + y^T K_y^-1 y) / 2, K_y = K + sigma^2 I, and back.

    R Eq. (33) for any kernel. K (N, N) [y^2], y (N,), ln_noise = ln sigma^2.
    ValueError if K_y is not positive definite.

    back(d_value) returns d_K (N, N) and d_ln_noise = sigma^2 tr d_K_y:
        d_K = d_K_y = d_value (K_y^-1 - a a^T) / 2,   a = K_y^-1 y
    """
    sigma2, ln_det, Linv, _, a = noisy_factors(K, y, ln_noise)
    value = (ln_det + len(y) * np.log(2 * np.pi) + y @ a) / 2                         # R Eq. (33)

    def back(d_value):
        d_K_y = d_value / 2 * (Linv.T @ Linv - np.outer(a, a))
        return d_K_y, sigma2 * np.trace(d_K_y)
    return value, back


@in_doubles
def full_gp_nll(X, y, ln_theta, ln_noise, kernel=se_kernel):
    """-ln p(y | theta, sigma_n), R Eq. (33), and back(d_value), a dict; arguments as full_gp."""
    K_NN, K_back = kernel(X, X, ln_theta)
    value, nll_back = gaussian_nll(K_NN, y, ln_noise)

    def back(d_value):
        d_K, d_ln_noise = nll_back(d_value)
        d_ln_theta, *_ = K_back(d_K, of_X1=False)
        return dict(ln_theta=d_ln_theta, ln_noise=d_ln_noise)
    return value, back


@in_doubles
def full_predict(X, y, X_new, ln_theta, ln_noise, kernel=se_kernel):
    """mean, var (n,) of the GP given X, y at X_new (n, d), without noise; R Eq. (6) for any x.

    Arguments as full_gp. As printed, by K_y^-1 = L^-T L^-1, K_y = K_NN + sigma_n^2 I. A variance below
    VAR_FLOOR k, which rounding may leave, is set to it.
    """
    k = signal_variance(ln_theta)
    K_NN, _ = kernel(X, X, ln_theta)
    _, _, Linv, Linv_y, _ = noisy_factors(K_NN, y, ln_noise)
    V = kernel(X_new, X, ln_theta)[0] @ Linv.T
    var = k - row_dots(V, V)                                                          # R Eq. (6)
    return V @ Linv_y, np.maximum(var, VAR_FLOOR * k)


# --- the theta grid: R Sec. 3.1 ------------------------------------------------------------------

@in_doubles
def round_to_grid(ln_theta, grid=GRID):
    """Each entry of ln_theta at the closest of the G+1 points -L, -L + 2L/G .. L; R Sec. 3.1.

    An entry beyond the edge is set to the edge. ln_theta (T,), finite; grid = (L, G):
    L > 0 [ln units], G >= 1. Declare the grid, and the parametrisation it lives in, before seeing
    the data.
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


# --- sparse GP: R Sec. 3.2 -----------------------------------------------------------------------
# Whitened: L L^T = K_MM, V = K_NM L^-T with rows V_i, Q(f_M) = N(L m, L S L^T). A function a step:
#
#     1 inverse_cholesky   Z, theta              -> L^-1
#     2 features       X, L^-1               -> V, ktilde             ktilde_i = k - V_i V_i
#     3 data_sums     V, ktilde, y, sigma_n^2  -> A, b           V^T D^-1 V and V^T D^-1 y
#     4 gaussian_posterior       A, b              -> m, S               R Eq. (11)
#     5 marginals      V, ktilde, m, S          -> mean, var          R Eq. (22), (23)
#     6 kl_to_prior    m, S                  -> KL                 R Eq. (10)
#
# Each returns value, back, and back takes the slopes of the value and returns those of the
# arguments; but for L^-1 there is none: 2 returns gram = d_V^T V, which 1 takes. sparse_gp takes
# the steps forwards, and its way back takes them in the reverse order. Up to eight matrices of
# N x M are held. In blocks of rows, on several cores, or with rows in files: beyond/blocks.py.

@in_doubles
def inverse_cholesky(Z, ln_theta, kernel=se_kernel, jitter=JITTER, by_differences=False):
    """L^-1 (M, M) of L L^T = K_MM + jitter k I, K_MM = k(Z, Z), and back(gram): d_ln_theta, d_Z.

    For any objective that depends on L only through features V = K L^-T, K = k(X, Z), at one or
    more sets of inputs X; gram is then the sum of d_V^T V (M, M) over them:
        dV = dK L^-T - V (L^-1 dL)^T,   L^-1 dL = half(L^-1 dK_MM L^-T),
        half(G) = tril(G) - diag(G)/2
        d_K_MM = -L^-T low(gram) L^-1 / 2,   low(G) = tril(G) + tril(G, -1)^T
    No gradient of a Cholesky factor is needed. by_differences: as in se_kernel.
    ValueError if K_MM + jitter k I is not positive definite.
    """
    how = dict(by_differences=True) if by_differences else {}
    K_MM, K_back = kernel(Z, Z, ln_theta, **how)
    k = signal_variance(ln_theta)
    what = f"k(Z, Z) with a jitter of {jitter:g} sigma_s^2"
    Linv = tri_inv(cholesky(K_MM + jitter * k * np.eye(len(Z)), what))

    def back(gram):
        low = np.tril(gram) + np.tril(gram, -1).T
        d_K_MM = ((low @ Linv).T @ Linv).T / -2      # transposed: a third of the rounding in d_Z
        d_ln_theta, _, d_Z = K_back(d_K_MM, of_X1=False)
        d_ln_theta[..., -1] += jitter * np.exp(ln_theta[..., -1]) * np.trace(d_K_MM)
        return d_ln_theta, 2 * d_Z      # K_MM has Z on both sides
    return Linv, back


@in_doubles
def features(X, Z, ln_theta, Linv, kernel=se_kernel):
    """V = k(X, Z) L^-T (N, M), ktilde = k - V V (N,), the diagonal of R's Lambda, and back.

    A ktilde below 0, which rounding may leave, is set to 0; its slope is kept.

    back(d_V, d_ktilde) returns d_ln_theta (T,) and d_Z (M, d) by K_NM and k, and gram = d_V^T V (M, M)
    for the way back of inverse_cholesky:
        dktilde = dk - 2 V dV,   d_K_NM = d_V L^-1
    """
    K_NM, K_back = kernel(X, Z, ln_theta)
    V = K_NM @ Linv.T
    ktilde = np.maximum(signal_variance(ln_theta) - row_dots(V, V), 0.0)

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
    All that (11) and (34) need of the data: sums over rows, so that those of blocks add up.

    back(d_A, d_b, d_ln_D, d_y2, d_sum_ktilde), of which d_A (M, M) is symmetric, returns
    d_V (N, M), d_ktilde (N,), d_sigma2 and d_alpha:
        d_V_i = (2 d_A V_i + y_i d_b)/D_i
        d_D_i = d_ln_D/D_i - (d_y2 y_i^2 + V_i d_A V_i + y_i V_i d_b)/D_i^2
    """
    D = alpha * ktilde + sigma2
    scaled_V = V * (1 / np.sqrt(D))[:, None]
    A = scaled_V.T @ scaled_V
    b = V.T @ (y / D)
    ln_D = np.sum(np.log(D))
    y2 = np.sum(y**2 / D)

    def back(d_A, d_b, d_ln_D=0.0, d_y2=0.0, d_sum_ktilde=0.0):
        V_d_A = V @ d_A
        d_V = (2 * V_d_A + np.outer(y, d_b)) * (1 / D)[:, None]
        through_squares = d_y2 * y**2 + row_dots(V_d_A, V) + y * (V @ d_b)
        d_D = (d_ln_D - through_squares / D) / D
        return d_V, alpha * d_D + d_sum_ktilde, np.sum(d_D), d_D @ ktilde
    return (A, b, ln_D, y2, np.sum(ktilde)), back


@in_doubles
def gaussian_posterior(A, b):
    """m = S b (M,), S = (I + A)^-1 (M, M), ln|S| and root with S = root^T root, and back.

    R Eq. (11): a_M = L m, B_MM = L S L^T, Q_MM = L (I + A) L^T. (11) needs m = 0: it omits
    + m_M in a_M and - m_N in y.

    back(d_m, d_S, d_ln_det), of which d_S (M, M) is symmetric, returns d_A (M, M) and d_b (M,):
        dm = S (db - dA m),   dS = -S dA S,   d ln|S| = -tr(S dA)
    """
    root = tri_inv(cholesky(np.eye(len(b)) + A, "Q_MM"))
    S = root.T @ root                                                # R Eq. (11): B_MM = L S L^T
    m = S @ b                                                      # R Eq. (11): a_M = L m
    ln_det_S = 2 * np.sum(np.log(np.diag(root)))

    def back(d_m, d_S, d_ln_det):
        d_b = S @ d_m
        through_m = (np.outer(d_b, m) + np.outer(m, d_b)) / 2
        return -S @ d_S @ S - d_ln_det * S - through_m, d_b
    return (m, S, ln_det_S, root), back


@in_doubles
def marginals(V, ktilde, m, S):
    """mean, var (N,) of Q(f_M) = N(L m, L S L^T) at the rows of V, and back; R Eq. (22), (23).

    R Eq. (23) prints x' for x, twice; a variance takes the same x on both sides.

    back(d_mean, d_var) returns d_V (N, M), d_ktilde (N,), d_m (M,), d_S (M, M):
        dmean_i = m dV_i + V_i dm,   dvar_i = dktilde_i + 2 V_i S dV_i + V_i dS V_i
    """
    V_S = V @ S
    mean = V @ m                                                                     # R Eq. (22)
    var = ktilde + row_dots(V_S, V)                                                     # R Eq. (23)

    def back(d_mean, d_var):
        d_V = np.outer(d_mean, m) + V_S * (2 * d_var)[:, None]
        return d_V, d_var, V.T @ d_mean, weighted_gram(V, d_var)
    return (mean, var), back


@in_doubles
def kl_to_prior(m, S, ln_det_S):
    """KL(N(m, S)||N(0, I)) = KL(Q||P), R Eq. (10), and back(d_KL): d_m, d_S with ln|S| held, and
    d_ln_det.
    """
    KL = (np.trace(S) - ln_det_S - len(m) + m @ m) / 2                                # R Eq. (10)

    def back(d_KL):
        return d_KL * m, d_KL / 2 * np.eye(len(m)), -d_KL / 2
    return KL, back


@in_doubles
def sparse_gp(X, y, Z, ln_theta, ln_noise, alpha=1.0, kernel=se_kernel):
    """(mean, var, KL), back for Q given by the data; R Eq. (22), (23), (10) with (11).

    mean, var (N,) at the data. alpha = 1 FITC, 0 VFE and DTC. X (N, d), y (N,) [y], Z (M, d),
    ln_theta (T,), ln_noise scalar, alpha in [0, 1], where R has alpha >= 0. A variance below
    VAR_FLOOR k, which rounding may leave of 0, is set to it, without slope. ValueError if K_MM is
    not positive definite.

    back(d_mean, d_var, d_KL) returns a dict of gradients by ln_theta, ln_noise, Z, alpha.
    """
    sigma2 = np.exp(ln_noise)
    floor = VAR_FLOOR * signal_variance(ln_theta)
    Linv, Linv_back = inverse_cholesky(Z, ln_theta, kernel)                               # 1
    (V, ktilde), features_back = features(X, Z, ln_theta, Linv, kernel)                  # 2
    (A, b, *_), sums_back = data_sums(V, ktilde, y, sigma2, alpha)            # 3
    (m, S, ln_det_S, _), posterior_back = gaussian_posterior(A, b)                              # 4
    (mean, var), marginals_back = marginals(V, ktilde, m, S)                             # 5
    KL, KL_back = kl_to_prior(m, S, ln_det_S)                                         # 6

    def back(d_mean, d_var, d_KL):
        d_m, d_S, d_ln_det = KL_back(d_KL)                                            # 6
        d_V_5, d_ktilde_5, d_m_5, d_S_5 = marginals_back(d_mean, d_var * (var > floor))  # 5
        d_A, d_b = posterior_back(d_m + d_m_5, d_S + d_S_5, d_ln_det)                 # 4
        d_V, d_ktilde, d_sigma2, d_alpha = sums_back(d_A, d_b)                 # 3
        d_ln_theta, d_Z, gram = features_back(d_V + d_V_5, d_ktilde + d_ktilde_5)           # 2
        d_ln_theta_MM, d_Z_MM = Linv_back(gram)                                       # 1
        return dict(ln_theta=d_ln_theta + d_ln_theta_MM, ln_noise=sigma2 * d_sigma2,
                    Z=d_Z + d_Z_MM, alpha=d_alpha)
    return (mean, np.maximum(var, floor), KL), back


@in_doubles
def sparse_free(X, Z, ln_theta, m, L_S, kernel=se_kernel):
    """(mean, var, KL), back for a free Q(f_M) = N(L m, L S L^T), S = L_S L_S^T; R Eq. (10).

    R Sec. 3.2, below (10). mean, var as sparse_gp. m (M,), L_S (M, M) lower triangular with
    a diagonal that is not 0. In the paper's coordinates a_M = L m, B_MM = (L L_S)(L L_S)^T. X may
    be a mini-batch: mean and var are then the batch's, KL is the whole.

    back(d_mean, d_var, d_KL) returns a dict of gradients by ln_theta, Z, m, L_S:
        d_L_S = tril(2 d_S L_S) + 2 d_ln_det diag(1/diag L_S)
    """
    floor = VAR_FLOOR * signal_variance(ln_theta)
    S = L_S @ L_S.T
    ln_det_S = 2 * np.sum(np.log(np.abs(np.diag(L_S))))
    Linv, Linv_back = inverse_cholesky(Z, ln_theta, kernel)                               # 1
    (V, ktilde), features_back = features(X, Z, ln_theta, Linv, kernel)                  # 2
    (mean, var), marginals_back = marginals(V, ktilde, m, S)                             # 5
    KL, KL_back = kl_to_prior(m, S, ln_det_S)                                         # 6

    def back(d_mean, d_var, d_KL):
        d_m, d_S, d_ln_det = KL_back(d_KL)                                            # 6
        d_V, d_ktilde, d_m_5, d_S_5 = marginals_back(d_mean, d_var * (var > floor))      # 5
        d_ln_theta, d_Z, gram = features_back(d_V, d_ktilde)                             # 2
        d_ln_theta_MM, d_Z_MM = Linv_back(gram)                                       # 1
        d_L_S = np.tril(2 * (d_S + d_S_5) @ L_S) + 2 * d_ln_det * np.diag(1 / np.diag(L_S))
        return dict(ln_theta=d_ln_theta + d_ln_theta_MM, Z=d_Z + d_Z_MM, m=d_m + d_m_5, L_S=d_L_S)
    return (mean, np.maximum(var, floor), KL), back


# R Eq. (34): G = alpha Lambda, T = t Lambda
SPARSE_NLL = {"FITC": (1.0, 0.0), "VFE": (0.0, 1.0), "DTC": (0.0, 0.0)}


@in_doubles
def sparse_nll(X, y, Z, ln_theta, ln_noise, kind="VFE", kernel=se_kernel):
    """F, the training objective of FITC, VFE or DTC, and back; R Eq. (34).

        F = (-ln|S| + sum ln(2 pi D) + sum y^2/D - m b + t sum ktilde/sigma_n^2) / 2
    by the determinant and inversion lemmas; the last term is tr T/sigma_n^2. Arguments as
    sparse_gp. One G where the paper has G and G^theta. Where R writes "whereas F equals the exact
    negative log likelihood plus" KL(Q||Q~), "for VFE" is left out.

    back(d_F) returns a dict of gradients by ln_theta, ln_noise, Z. m b has the slopes b by m
    and m by b.
    """
    alpha, t = SPARSE_NLL[kind]
    sigma2 = np.exp(ln_noise)
    Linv, Linv_back = inverse_cholesky(Z, ln_theta, kernel)                               # 1
    (V, ktilde), features_back = features(X, Z, ln_theta, Linv, kernel)                  # 2
    (A, b, ln_D, y2, sum_ktilde), sums_back = data_sums(V, ktilde, y, sigma2, alpha)   # 3
    (m, S, ln_det_S, _), posterior_back = gaussian_posterior(A, b)                              # 4
    ln_det = len(y) * np.log(2 * np.pi) + ln_D - ln_det_S
    F = (ln_det + y2 - m @ b + t * sum_ktilde / sigma2) / 2                            # R Eq. (34)

    def back(d_F):
        half = d_F / 2
        d_A, d_b = posterior_back(-half * b, 0 * S, -half)                          # 4
        d_sums = half, half, half * t / sigma2
        d_V, d_ktilde, d_sigma2, _ = sums_back(d_A, d_b - half * m, *d_sums)   # 3
        d_ln_theta, d_Z, gram = features_back(d_V, d_ktilde)                             # 2
        d_ln_theta_MM, d_Z_MM = Linv_back(gram)                                       # 1
        d_ln_noise = sigma2 * d_sigma2 - half * t * sum_ktilde / sigma2
        return dict(ln_theta=d_ln_theta + d_ln_theta_MM, ln_noise=d_ln_noise, Z=d_Z + d_Z_MM)
    return F, back


class SparsePosterior(NamedTuple):
    """Q of (11) as it is stored, without a way back."""
    Linv: np.ndarray        # (M, M)
    A: np.ndarray         # (M, M) V^T D^-1 V
    b: np.ndarray         # (M,) V^T D^-1 y
    m: np.ndarray           # (M,) S b
    S: np.ndarray           # (M, M)
    root: np.ndarray        # (M, M) lower triangular, root^T root = S = (I + A)^-1


@in_doubles
def sparse_posterior(X, y, Z, ln_theta, ln_noise, alpha=1.0, kernel=se_kernel):
    """The SparsePosterior given by the data, R Eq. (11); arguments as sparse_gp."""
    Linv, _ = inverse_cholesky(Z, ln_theta, kernel)
    (V, ktilde), _ = features(X, Z, ln_theta, Linv, kernel)
    (A, b, *_), _ = data_sums(V, ktilde, y, np.exp(ln_noise), alpha)
    (m, S, _, root), _ = gaussian_posterior(A, b)
    return SparsePosterior(Linv, A, b, m, S, root)


@in_doubles
def sparse_predict(X_new, Z, Linv, ln_theta, m, root=None, kernel=se_kernel):
    """mean, var (n,) of Q at X_new (n, d), without observation noise; R Eq. (9), (22), (23).

    Z (M, d), Linv (M, M), m (M,), root (M, M) with S = root^T root. The full GP, R Eq. (6), is the
    same formula with root = None: Z = X, L L^T = K_NN + sigma_n^2 I, m = L^-1 y and S = 0.
    """
    root = np.zeros((1, len(m))) if root is None else root
    mean = np.empty(len(X_new))
    var = np.empty(len(X_new))
    for rows in row_blocks(len(X_new), len(Z)):
        (V, ktilde), _ = features(X_new[rows], Z, ln_theta, Linv, kernel)
        U = V @ root.T
        mean[rows] = V @ m                                                           # R Eq. (22)
        var[rows] = ktilde + row_dots(U, U)                                             # R Eq. (23)
    return mean, np.maximum(var, VAR_FLOOR * signal_variance(ln_theta))


class Sparse(NamedTuple):
    """What computes the sparse GP: five functions with the arguments and results of PLAIN's."""
    gp: Callable
    free: Callable
    nll: Callable
    posterior: Callable
    predict: Callable


# Whole matrices, one function a step. beyond.blocks.blocks(over) makes another Sparse.
PLAIN = Sparse(sparse_gp, sparse_free, sparse_nll, sparse_posterior, sparse_predict)


# --- optimisers ----------------------------------------------------------------------------------

class FitWarning(UserWarning):
    """Warning about a result that is still valid."""


class Optimum(NamedTuple):
    """Where an optimiser stopped, and why."""
    x: np.ndarray
    f: float                   # f(x); of adam the last noisy value, a step before x
    n_evals: int
    history: list              # f after each iteration
    message: str               # why it stopped
    converged: bool            # whether that is an optimum


@in_doubles
def lbfgs_direction(g, pairs):
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
    """Minimiser of the cubic with these values and slopes at a and b, kept off both ends.

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

    After max_evals of them the last point that meets the first condition; None if none does. phi(t)
    returns (f, slope, point); f = inf or NaN means t is too far. Once some t was too far, a Wolfe
    point lies between lo and hi.
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


def box_path(fun, x, d, lower, upper):
    """phi of wolfe_search along x + t d, clipped to the box.

    A ValueError from fun is f = inf: a point too far.
    """
    def phi(t):
        x_t = np.clip(x + t * d, lower, upper)
        try:
            f, g = fun(x_t)
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
    the box (as in Bertsekas 1982). f = inf or NaN, or a ValueError from fun (a matrix not positive
    definite), is a point too far. With steps that are only shortened, not interpolated, kl-PAC-SGP
    takes 1.4 to 1.9 times the evaluations.
    Stops: largest free gradient entry <= gtol (converged); decrease <= ftol max(|f|, 1)
    (converged); no decrease found; max_evals; callback(n_evals, f) after an iteration returned
    true. At x0 itself a ValueError is raised, also where f is not finite. memory: pairs of steps
    and gradients kept; with 10 some figures took half as many evaluations more.
    """
    x = np.clip(np.asarray(x0, dtype=float), lower, upper)
    f, g = fun(x)
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
        d = np.where(free, lbfgs_direction(np.where(free, g, 0.0), pairs), 0.0)
        if not g @ d < 0:
            pairs = []
            d = np.where(free, -g, 0.0)
        t = 1.0 if pairs else 1 / np.linalg.norm(d)
        phi = box_path(fun, x, d, lower, upper)
        point, n = wolfe_search(phi, f, g @ d, t, min(25, max_evals - n_evals))
        n_evals += n
        if point is None and not pairs:
            return stop("no decrease along the gradient")
        if point is None:
            pairs = []                                   # once more, along the gradient
            continue
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


@in_doubles
def adam(fun, x0, n_steps, lr=0.01, decay=0.1, lower=-np.inf, upper=np.inf, callback=None):
    """Minimises a noisy fun(x) -> (f, gradient) in n_steps steps of Adam. Returns Optimum.

    The step is lr, and lr * decay over the last quarter. history holds the noisy values. Stops
    where callback(t, f) is true.
    """
    x = np.clip(np.asarray(x0, dtype=float), lower, upper)
    state = None
    history = []
    for t in range(1, n_steps + 1):
        f, g = fun(x)
        rate = lr * decay if 4 * t > 3 * n_steps else lr
        x, state = adam_step(x, g, state, rate)
        x = np.clip(x, lower, upper)
        history.append(f)
        if callback and callback(t, f):
            return Optimum(x, f, t, history, STOPPED, False)
    return Optimum(x, history[-1], n_steps, history, f"{n_steps} mini-batch steps", False)


@in_doubles
def kmeans(X, M, rng, n_iter=20):
    """M centres (M, d) of the rows of X (N, d): Lloyd's algorithm from M distinct random rows.

    Fewer than M rows repeat.
    """
    middle = X.mean(0)
    X = X - middle                         # far from 0 the distances would lose their digits
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
    return Z + middle


# --- training: R Sec. 3.1, 3.2, 4 ----------------------------------------------------------------

# R Sec. 4; DTC Sec. 3.2, free form below (10) -> (posterior family, objective)
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


class Fit(NamedTuple):
    """A trained GP and its certificate.

    With probability 1 - delta over the data the true risk is at most `bound`. The risk is the
    expected loss, in [0, 1]; rows are i.i.d.; loss, eps, delta and grid were fixed before seeing
    them.
    """
    method: str
    loss: str
    eps: float
    kernel: Callable           # as se_kernel
    ln_theta: np.ndarray       # (T,), on the grid
    ln_noise: float            # not rounded: sigma_n^2 belongs to Q; NaN for the free form, which
                               # has none
    Z: np.ndarray              # (M, d); of the full GP all rows
    alpha: float
    bound: float               # B, R Eq. (5), for this theta
    pinsker: float             # B_Pin
    risk: float                # R_S(Q)
    KL: float                  # KL(Q||P^theta) [nats]
    penalty: float             # ln(n_eps) + ln|Theta|
    ln_confidence: float       # ln(2 sqrt(N)/delta), or ln(xi(N)/delta)
    delta: float
    N: int
    repeats: int               # rows that equal an earlier one: the theorem assumes independence
    optimum: Optimum           # of training; x is the dict of parameters before theta is rounded, a
                               # `start` for another fit
    posterior: tuple           # (Z, Linv, ln_theta, m, root) of sparse_predict: what the
                               # certificate is about, S = root^T root


def repeated_rows(X, y):
    """Number of rows of (X, y) that equal an earlier one."""
    columns = [*X.T, y]
    order = np.lexsort(columns)
    equal = [x[order[1:]] == x[order[:-1]] for x in columns]
    return int(np.sum(np.all(equal, axis=0)))


def check_fit(args):
    """Checks the arguments of fit, attributes of args, in place; warns of repeats, unscaled data.

    Adds family, a Family, and repeats; M = 0 for the full GP.
    """
    args.X, args.y = check_data(args.X, args.y, copy=False)      # a memory map stays where it is
    args.method = check_choice("method", args.method, METHODS)
    args.loss = check_choice("loss", args.loss, LOSSES)
    check_kernel(args.kernel)
    check_kernel(args.start_theta, "start_theta", "se_start")
    args.ard = check_flag("ard", args.ard)
    check_signal(args.kernel, args.X, args.start_theta(args.X.shape[1], args.ard))
    check_kind("sparse", args.sparse, Sparse, "PLAIN or beyond.blocks.blocks")
    family, _ = METHODS[args.method]
    args.family = FAMILIES[family]
    if args.batch is not None:
        args.batch = check_count("batch", args.batch)
        if args.family.given:
            raise ValueError(f"batch (got {args.batch}) needs one of the free-... methods: "
                             "(11) sums over all rows")
    if not args.family.inducing:
        args.Z = None
        args.M = 0
    elif args.Z is not None:
        args.Z = check_columns("Z", args.Z, args.X.shape[1], 1)
        args.M = len(args.Z)
    elif args.M is None:
        raise ValueError(f"M, the number of inducing inputs, or Z is needed by {args.method}")
    else:
        args.M = check_count("M", args.M)
    if args.method in SPARSE_NLL:
        args.alpha, _ = SPARSE_NLL[args.method]
    args.alpha = check_scalar("alpha", args.alpha, 0, 1, closed=True)
    args.eps = check_scalar("eps", args.eps, 0)
    args.delta = check_scalar("delta", args.delta, 0, 1)
    args.grid = check_grid(args.grid)
    args.n_eps = check_count("n_eps", args.n_eps)
    args.xi = check_flag("xi", args.xi)
    args.max_evals = check_count("max_evals", args.max_evals)
    args.ftol = check_scalar("ftol", args.ftol, 0, closed=True)
    args.lr = check_scalar("lr", args.lr, 0)
    args.seed = check_count("seed", args.seed, 0)
    warn_unscaled(args.X, args.y, "own_data.scale.standardise")
    args.repeats = repeated_rows(args.X, args.y)
    if args.repeats:
        warnings.warn(f"{args.repeats} rows of (X, y) repeat: the theorem assumes independent rows",
                      FitWarning, stacklevel=3)


def pack(p):
    """One vector of all values of the dict p, in its order."""
    return np.concatenate([np.ravel(v) for v in p.values()])


def unpack(x, like):
    """The dict whose pack is x; keys and shapes of the dict `like`."""
    ends = np.cumsum([np.size(v) for v in like.values()])
    return {name: x[end - np.size(v):end].reshape(np.shape(v))
            for end, (name, v) in zip(ends, like.items())}


def se_start(d, ard=False):
    """ln_theta at l^2 = d, sigma_s^2 = 1, for d columns.

    From there every full-GP objective converged on Boston; from l = 1, as in the authors' code,
    sqrt-PAC can stick.
    """
    return np.append(np.full(d if ard else 1, math.log(d)), 0.0)


@in_doubles
def initial_parameters(X, y, family, M, ln_theta, Z, rng, kernel=se_kernel, sparse=PLAIN):
    """Start dict p of the parameters of Q, of a Family.

    ln_theta, ln_noise of the full GP; these and Z of (11); ln_theta, Z, m, L_S of the free form.
    sigma_n^2 = 1, Z by k-means unless given, m and L_S those of (11) at alpha = 1.
    """
    N = len(X)
    p = dict(ln_theta=ln_theta, ln_noise=np.array(0.0))
    if not family.inducing:
        return p
    if Z is None:
        few = X if N <= SMALL else X[np.sort(rng.choice(N, SMALL, replace=False))]
        Z = kmeans(few, M, rng)
    p["Z"] = Z
    return p if family.given else free_form(X, y, **p, kernel=kernel, sparse=sparse)


@in_doubles
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
                raise ValueError("start's L_S must be lower triangular with a diagonal that is "
                                 "not 0")
    return p


class Family(NamedTuple):
    """A form of Q. Its functions take (p, X, y, alpha, kernel, sparse), p as initial_parameters."""
    inducing: bool             # whether Q has inducing inputs Z
    given: bool                # whether theta, noise and data give Q; else it has a (m, L_S)
    marginals: Callable        # (mean, var, KL), back
    stored: Callable           # (Z, Linv, ln_theta, m, root), the arguments of sparse_predict


def full_marginals(p, X, y, alpha, kernel=se_kernel, sparse=PLAIN):
    """full_gp at the parameters p."""
    return full_gp(X, y, **p, kernel=kernel)


@in_doubles
def full_stored(p, X, y, alpha, kernel=se_kernel, sparse=PLAIN):
    """What sparse_predict takes for R Eq. (6): Z = X, L L^T = A, m = L^-1 y, no root."""
    K_NN, _ = kernel(X, X, p["ln_theta"])
    _, _, Linv, m, _ = noisy_factors(K_NN, y, p["ln_noise"])
    return X.copy(), Linv, p["ln_theta"], m, None


def given_marginals(p, X, y, alpha, kernel=se_kernel, sparse=PLAIN):
    """sparse_gp at the parameters p."""
    return sparse.gp(X, y, **p, alpha=alpha, kernel=kernel)


@in_doubles
def given_stored(p, X, y, alpha, kernel=se_kernel, sparse=PLAIN):
    """What sparse_predict takes for R Eq. (9) with (11)."""
    q = sparse.posterior(X, y, **p, alpha=alpha, kernel=kernel)
    return p["Z"], q.Linv, p["ln_theta"], q.m, q.root


def free_marginals(p, X, y, alpha, kernel=se_kernel, sparse=PLAIN):
    """sparse_free at the parameters p."""
    return sparse.free(X, **p, kernel=kernel)


@in_doubles
def free_stored(p, X, y, alpha, kernel=se_kernel, sparse=PLAIN):
    """What sparse_predict takes for R Eq. (9) with a free m and L_S."""
    Linv, _ = inverse_cholesky(p["Z"], p["ln_theta"], kernel)
    return p["Z"], Linv, p["ln_theta"], p["m"], p["L_S"].T


# R Eq. (8); (11); below (10)
FAMILIES = {
    "full": Family(False, True, full_marginals, full_stored),
    "sparse": Family(True, True, given_marginals, given_stored),
    "free": Family(True, False, free_marginals, free_stored),
}


@in_doubles
def pac_objective(losses, KL, bound=(pac_bayes_bound, pac_bayes_bound_grad), N=None, **terms):
    """B or B_Pin, R Eq. (5) with (24), from expected losses (n,) and KL; its slopes, R Eq. (14).

    The slopes are by any one of the losses, all being equal, and by KL. bound: a value of BOUNDS.
    terms: delta, penalty, xi of pac_bayes_bound. N: rows of the whole training set where the n
    are a mini-batch; the value and gradient are then biased, since kl^-1 is not linear in the risk;
    R App. C, Eq. (32).
    """
    n = len(losses)
    N = n if N is None else N
    risk = mean_loss(np.sum(losses), n)
    value, value_grad = bound
    d_risk, d_KL = value_grad(risk, KL, N, **terms)                     # two factors of R Eq. (14)
    return value(risk, KL, N, **terms), d_risk / n, d_KL


@in_doubles
def train(p, args, objective, penalty, rng, max_evals=None):
    """The Optimum of an objective ("kl", "sqrt", or a likelihood) from the dict of parameters p.

    args: the checked arguments of fit; max_evals: their own, if None.
    """
    max_evals = args.max_evals if max_evals is None else max_evals
    limits = dict(ln_theta=args.grid[0], ln_noise=LN_BOX)
    box = pack({name: np.full(np.shape(v), limits.get(name, np.inf)) for name, v in p.items()})
    terms = dict(delta=args.delta, penalty=penalty, xi=args.xi)
    bound = BOUNDS.get(objective)
    in_batches = args.batch is not None and bound is not None

    def likelihood(q):
        if args.family.inducing:
            return args.sparse.nll(args.X, args.y, **q, kind=objective, kernel=args.kernel)
        return full_gp_nll(args.X, args.y, kernel=args.kernel, **q)

    def evaluate(x):
        q = unpack(x, p)
        if bound:
            rows = slice(None)
            if in_batches:
                rows = rng.choice(len(args.y), min(args.batch, len(args.y)), replace=False)
            (mean, var, KL), back = args.family.marginals(q, args.X[rows], args.y[rows], args.alpha,
                                                          args.kernel, args.sparse)
            losses, d_mean, d_var = expected_losses(args.y[rows], mean, var, args.eps, args.loss)
            value, d_loss, d_KL = pac_objective(losses, KL, bound, len(args.y), **terms)
            grads = back(d_loss * d_mean, d_loss * d_var, d_KL)
        else:
            value, back = likelihood(q)
            grads = back(1.0)
        return value, pack({name: grads[name] for name in q})

    if in_batches:
        found = adam(evaluate, pack(p), max_evals, args.lr, lower=-box, upper=box,
                     callback=args.callback)
    else:
        found = lbfgs(evaluate, pack(p), -box, box, max_evals, ftol=args.ftol,
                      callback=args.callback)
    return found._replace(x=unpack(found.x, p))


@in_doubles
def certify(optimum, args, penalty):
    """The Fit of optimum.x, a dict of parameters; args: the checked arguments of fit.

    theta is rounded to the grid, and everything computed again.
    """
    N = len(args.y)
    p = dict(optimum.x, ln_theta=round_to_grid(optimum.x["ln_theta"], args.grid))
    at = (p, args.X, args.y, args.alpha, args.kernel, args.sparse)
    (mean, var, KL), _ = args.family.marginals(*at)
    risk = gibbs_risk(args.y, mean, var, args.eps, args.loss)
    of_Q = args.family.stored(*at)
    terms = (risk, KL, N, args.delta, penalty, args.xi)
    return Fit(
        method=args.method, loss=args.loss, eps=args.eps, kernel=args.kernel,
        ln_theta=p["ln_theta"],
        ln_noise=float(p.get("ln_noise", np.nan)), Z=of_Q[0], alpha=args.alpha,
        bound=pac_bayes_bound(*terms), pinsker=pinsker_bound(*terms), risk=risk,
        KL=max(float(KL), 0.0), penalty=penalty,
        ln_confidence=ln_confidence(N, args.delta, args.xi), delta=args.delta, N=N,
        repeats=args.repeats, optimum=optimum, posterior=of_Q)


def fit(X, y, method="kl-PAC-GP", M=None, eps=0.6, delta=0.01, loss="01", ard=False, alpha=1.0,
        grid=GRID, n_eps=1, xi=False, Z=None, start=None, max_evals=400, ftol=1e-8, batch=None,
        lr=0.01, seed=0, callback=None, kernel=se_kernel, start_theta=se_start, sparse=PLAIN,
        search=train):
    """Trains a GP by one of the paper's methods and certifies it; R Sec. 3.1, 3.2, 4.

    Returns a Fit, for predict. One search from one start, as in the paper. multistart_fit of
    beyond/search.py has more starts, and works in blocks of rows: it is what the programs use.

    The goal, fixed before seeing the data (of runs with other goals, ard or grids the best is not
    certified):
        eps [y]     accuracy goal, a fraction of |y| for "band" and "relative"; n_eps > 1: one of
                    so many values of eps
        delta       probability that the certificate fails
        loss        a key of LOSSES
        kernel      a function as se_kernel
        ard, grid   one lengthscale per column; (L, G) of theta's grid
        xi          xi(N) for 2 sqrt(N), a slightly tighter certificate
    The data:
        X, y        (N, d), (N,): standardise them first, not with these rows if the guarantee is
                    to be strict
    The method, which the certificate may choose:
        method      a key of METHODS
        M, Z        number of inducing inputs, by k-means, or Z (M, d) itself; the full methods
                    ignore both
        alpha       of (11), for PAC-SGP alone
        start_theta where ln_theta starts, of its shape: a function of d and ard, as se_start
        start       dict of values that replace those of initial_parameters
        seed        of k-means and batches
    The search:
        max_evals   most evaluations of L-BFGS, which stops where the objective f falls by less
                    than ftol max(|f|, 1)
        batch, lr   rows per step of Adam and its rate, max_evals steps, for the free form alone:
                    (11) sums over all rows, and the gradient through kl^-1 of a mini-batch risk is
                    biased
        callback    called with (n_evals, objective) after each iteration: where it returns true,
                    training stops
        sparse      what computes the sparse GP, a Sparse. PLAIN holds about eight matrices of
                    N x M; beyond.blocks.blocks(over) holds as many numbers as are kept, up to
                    KEEP_BYTES there
        search      what finds the optimum, a function as train
    The certificate uses all rows and the rounded theta. ValueError for bad input; warns where the
    optimiser stopped early (the certificate holds all the same), where B > 0.999, where rows
    repeat, where data are not scaled.
    """
    args = SimpleNamespace(**locals())
    check_fit(args)
    rng = np.random.default_rng(args.seed)
    ln_theta = args.start_theta(args.X.shape[1], args.ard)
    p = initial_parameters(args.X, args.y, args.family, args.M, ln_theta, args.Z, rng, args.kernel,
                           args.sparse)
    p = with_start(p, start)
    penalty = math.log(args.n_eps) + ln_grid_size(len(p["ln_theta"]), args.grid)
    _, objective = METHODS[args.method]
    optimum = search(p, args, objective, penalty, rng)                          # kernel, noise, Z
    result = certify(optimum, args, penalty)
    if not optimum.converged and args.batch is None and optimum.message != STOPPED:
        warnings.warn(f"{method}: {optimum.message}; the certificate of what was found is valid",
                      FitWarning, stacklevel=2)
    if result.bound > 0.999:
        warnings.warn(f"{method}: B > 0.999 certifies next to nothing", FitWarning, stacklevel=2)
    return result


@in_doubles
def predict(fit, X_new, sparse=PLAIN):
    """mean [y], var [y^2] (n,) of Q at X_new (n, d), without observation noise.

    fit: a Fit, or a Certified of beyond/rounding.py. sparse: as in fit.
    """
    fit = fit.fit if hasattr(fit, "prior_rows") else fit
    check_kind("fit", fit, Fit, "fit")
    check_kind("sparse", sparse, Sparse, "PLAIN or beyond.blocks.blocks")
    X_new = check_columns("X_new", X_new, fit.Z.shape[1], copy=False)
    return sparse.predict(X_new, *fit.posterior, kernel=fit.kernel)


# --- what every entry point checks ---------------------------------------------------------------
# What a check returns is what is used: float64, int, bool or str. A ValueError names the argument
# and the rule.

def real_numbers(name, a):
    """`a` as a float64 array.

    Refused are strings, complex numbers, missing or masked values, ragged lists.
    """
    parts = a if isinstance(a, (list, tuple)) else [a]      # NumPy drops a list's masks
    masked = sum(np.ma.count_masked(part) for part in parts if np.ma.is_masked(part))
    if masked:
        raise ValueError(f"{name} has {masked} masked values: fill or drop them first")
    try:
        raw = np.asarray(a)
        kind = raw.dtype.kind
        objects = list(raw.flat) if kind == "O" else []
        if kind in "US" or any(isinstance(v, (str, bytes)) for v in objects):
            raise TypeError("strings")
        if kind not in "buifO":
            raise TypeError("complex numbers" if kind == "c" else raw.dtype)
        return np.asarray(raw, dtype=float)
    except (TypeError, ValueError, OverflowError) as err:
        raise ValueError(f"{name} must hold real numbers only: got {err}") from None


def check_array(name, a, ndim, copy=True):
    """`a` as a float64 array with `ndim` dimensions, all finite; an (N, 1) column passes as (N,).

    Lists, integers, float32, data frames and read-only or strided arrays are fine. A copy, unless
    copy = False and it is float64 already.
    """
    out = real_numbers(name, a).astype(float, order="C", copy=copy)
    if ndim == 1 and out.ndim == 2 and out.shape[1] == 1:
        out = out[:, 0]
    if out.ndim != ndim:
        raise ValueError(f"{name} must be {ndim}-dimensional, got shape {out.shape}")
    bad = np.argwhere(~np.isfinite(out))
    if len(bad):
        where = tuple(int(i) for i in bad[0])
        raise ValueError(f"{name} has {len(bad)} values that are NaN or infinite, "
                         f"the first at index {where}")
    return out


def check_data(X, y, copy=True):
    """(X, y) as float arrays (N, d) and (N,), N >= 1, of equal length; copy: as check_array."""
    X = check_array("X", X, 2, copy)
    y = check_array("y", y, 1, copy)
    if len(X) != len(y):
        raise ValueError(f"X and y differ in length: {len(X)} rows against {len(y)}")
    if X.size == 0:
        raise ValueError(f"X is empty: shape {X.shape}")
    return X, y


def check_columns(name, X, d, least=0, copy=True):
    """X (n, d), n >= least, as a float array; an empty list has no rows. copy: as check_array."""
    if isinstance(X, (list, tuple)) and len(X) == 0:
        X = np.zeros((0, d))
    X = check_array(name, X, 2, copy)
    if X.shape[1] != d or len(X) < least:
        rule = f"at least one row and {d} columns like X" if least else f"{d} columns like the fit"
        raise ValueError(f"{name} must have {rule}, got shape {X.shape}")
    return X


def scalar(value):
    """`value` as an array (), or an array of strings where it is none or masked."""
    none = np.array("")
    try:
        v = np.asarray(value)
    except ValueError:      # a ragged list
        return none
    return none if v.ndim or np.ma.is_masked(value) else v


def check_scalar(name, value, low, high=np.inf, closed=False):
    """`value` as a finite float in (low, high], or [low, high] where closed.

    Truth values and arrays are refused.
    """
    v = scalar(value)
    number = v.ndim == 0 and v.dtype.kind in "iuf"
    if number and (low < v or closed and low == v) and v <= high and v < np.inf:
        return float(v)
    hint = ""
    if name.endswith("delta") and number and 1 < v < 100:
        fails = min(v, 100 - v)
        hint = ("; it is the probability to fail: "
                f"for {100 - fails:g} % confidence give {fails / 100:.3g}")
    rule = f"{'at least' if closed else 'above'} {low:g}"
    limit = f"at most {high:g}" if high < np.inf else "finite"
    raise ValueError(f"{name} must be {rule} and {limit}, got {value!r}{hint}")


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
    """ValueError unless value is a `kind`, a NamedTuple or several, that comes from `makers`."""
    if not isinstance(value, kind):
        kind = kind if isinstance(kind, type) else kind[0]
        got = type(value).__name__
        raise ValueError(f"{name} must be a {kind.__name__}, from {makers}, got {got}")


def check_kernel(kernel, name="kernel", like="se_kernel"):
    """ValueError unless kernel, or what is so named, is a function, as se_kernel or another."""
    if not callable(kernel):
        raise ValueError(f"{name} must be a function as {like}, got {kernel!r}")


def check_signal(kernel, X, ln_theta):
    """ValueError unless k(x, x) is signal_variance(ln_theta), as every variance here takes it to be.

    Looked at near rows of X (N, d), and near ln_theta: equal entries hide their order.
    """
    x = np.concatenate([X[[0, -1]], X[:1] + 1.0, X[-1:] / 2 - 1.0])
    near = ln_theta + np.linspace(0.1, 0.5, np.size(ln_theta)).reshape(np.shape(ln_theta))
    K, _ = kernel(x, x, near)
    k = signal_variance(near)
    if np.shape(K) != (4, 4) or not np.all(np.abs(np.diag(K) - k) <= 1e-6 * k):
        raise ValueError("k(x, x) must be exp(ln_theta[-1]) for every x, of a mixture the sum over "
                         f"its rows: {getattr(kernel, '__name__', kernel)} has another one")


def check_count(name, value, least=1):
    """`value` as an int >= least; truth values, 2.5, NaN and arrays are refused."""
    v = scalar(value)
    number = v.ndim == 0 and v.dtype.kind in "iuf"
    if not number or not v >= least or v != np.floor(v) or v == np.inf:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(v)


def check_grid(grid):
    """grid as (L, G), L > 0 a float, G >= 1 an int."""
    if not isinstance(grid, (tuple, list, np.ndarray)) or len(grid) != 2:
        raise ValueError(f"grid must be two numbers (L, G), got {grid!r}")
    return check_scalar("grid's L", grid[0], 0), check_count("grid's G", grid[1])


def warn_unscaled(X, y, scaler):
    """A warning that names `scaler` where data are far from mean 0 and deviation 1.

    It is about y or a column of X, the first that is so: all starts here expect 0 and 1.
    """
    columns = {"y": y} | {f"column {k} of X": x for k, x in enumerate(X.T)}
    for name, v in columns.items():
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            middle = np.mean(v, dtype=float)
            size = np.std(v, dtype=float)
        near = abs(middle) <= 20 * max(size, 1)
        if not (near and (0.02 <= size <= 20 or size == 0)):
            warnings.warn(f"{name} has mean {middle:.3g} and deviation {size:.3g}: all starts here "
                          f"expect 0 and 1; {scaler} scales X and y",
                          FitWarning, stacklevel=4)      # UNSCALED matches it
            return
