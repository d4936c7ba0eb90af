"""What the tests share: comparisons, exact arithmetic, quadrature.

Nothing here is imported from the modules.
"""

import functools
import math
import pathlib
import types
from decimal import Decimal, getcontext, localcontext

import numpy as np
import pytest


HERE = pathlib.Path(__file__).resolve().parents[1]
INF = float("inf")
NAN = float("nan")
each = pytest.mark.parametrize
slow = pytest.mark.slow
trapezoid = getattr(np, "trapezoid", None) or np.trapz  # its name in NumPy 2, in 1.26
getcontext().prec = 60  # digits of the decimal oracles


# --- comparisons ---------------------------------------------------------------------------------


def relative_error(got, want):
    """max|got - want| / max|want|, of equal shapes; refuses a want that is 0 or not finite."""
    got = np.asarray(got, dtype=float)
    want = np.asarray(want, dtype=float)
    assert got.shape == want.shape, f"shapes differ: {got.shape} and {want.shape}"
    assert np.all(np.isfinite(want)), "a reference that is not finite proves nothing"
    assert np.any(want != 0), "a reference that is zero proves nothing"
    return float(np.max(np.abs(got - want)) / np.max(np.abs(want)))


def place(name, errors):
    """The name with the index of the largest error, and that index; NaN is the largest."""
    at = np.unravel_index(np.argmax(errors), np.shape(errors))
    return f"{name}[{', '.join(map(str, at))}]" if at else name, at


def assert_close(got, want, tol, what="value"):
    """relative_error(got, want) <= tol; NaN fails. The message says where `what` is worst."""
    error = relative_error(got, want)
    if not error <= tol:
        where, at = place(what, np.abs(np.subtract(got, want, dtype=float)))
        raise AssertionError(f"{where} is {np.asarray(got)[at]}, not {np.asarray(want)[at]}: "
                             f"{error:.2e} off, relative to the largest, above {tol:.0e}")


def assert_all_close(gots, wants, tol, what="value"):
    """assert_close, pair by pair."""
    for i, (got, want) in enumerate(zip(gots, wants, strict=True)):
        assert_close(got, want, tol, f"{what} {i}")


def assert_just_above(got, truth, above=1e-10, oracle=1e-11, what="value"):
    """got is rounded up: not below the truth, which is known to `oracle` of it, nor far above."""
    excess = np.asarray(got, dtype=float) / np.asarray(truth, dtype=float) - 1
    for side, errors, most in (("below", -excess, oracle), ("above", excess, above)):
        where, at = place(what, errors)
        assert np.all(errors <= most), f"{where} is {side} the truth by {errors[at]:.3g} of it"


def central_difference(f, x, h=4e-3):
    """d f/d x by central differences of order 6, of the shape of x; n values of f: (.., n).

    h is a hundredth of the distance over which f changes.
    """
    x = np.array(x, dtype=float)
    slopes = []
    for i in np.ndindex(x.shape):
        def at(k):
            moved = x.copy()
            moved[i] += k * h
            return np.array(f(moved if x.ndim else moved[()]))
        slopes.append((45 * (at(1) - at(-1)) - 9 * (at(2) - at(-2)) + at(3) - at(-3)) / (60 * h))
    return np.reshape(slopes, x.shape + np.shape(slopes)[1:])


def refuses(says):
    """A context that must raise a ValueError which says this."""
    return pytest.raises(ValueError, match=says)


def slow_from(n, cases):
    """The cases of a parametrize; from the n-th on they are slow."""
    return [pytest.param(*case, marks=() if i < n else slow)
            for i, case in enumerate(cases)]


def leaves(a):
    """The arrays and numbers in a nest of tuples, lists, dicts and generators."""
    if isinstance(a, dict):
        return leaves(list(a.values()))
    if isinstance(a, (tuple, list, types.GeneratorType)):
        return [x for v in a for x in leaves(v)]
    return [a.__name__ if isinstance(a, types.FunctionType) else a]


def numbers(a):
    """The numbers in a nest, in order, in one array; None, texts and functions are left out."""
    return np.concatenate([[], *(np.ravel(x).astype(float) for x in leaves(a)
                                 if not (x is None or isinstance(x, str) or callable(x)))])


def same_bytes(a, b):
    """Whether two nests of arrays are equal to the last bit."""
    a = leaves(a)
    b = leaves(b)
    return len(a) == len(b) > 0 and all(np.array_equal(u, v) for u, v in zip(a, b))


# --- exact arithmetic and quadrature -------------------------------------------------------------


def exact_log1p(x):
    """ln(1 + x) of a Decimal, to 60 digits of x - ln(1 + x), also for tiny x."""
    with localcontext() as context:
        context.prec += 2 * max(0, -x.adjusted())
        return (1 + x).ln()


def exact_kl(q, p):
    """kl(q||p) as in the paper, in 60-digit arithmetic, Decimal."""
    q = Decimal(q)
    p = Decimal(p)
    if (q > 0 and p == 0) or (q < 1 and p == 1):
        return Decimal("inf")
    inside = q * (q / p).ln() if q > 0 else 0
    outside = (1 - q) * (exact_log1p(-q) - exact_log1p(-p)) if q < 1 else 0
    return inside + outside


def exact_kl_inv(q, eps):
    """max{p : kl(q||p) <= eps} by bisection in 60-digit arithmetic, Decimal."""
    low = Decimal(q)
    high = Decimal(1)
    eps = Decimal(eps)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if exact_kl(q, middle) <= eps else (low, middle)
    return low


def exact_xi(N):
    """sum_k C(N,k) (k/N)^k (1-k/N)^(N-k) in 60 digits, the constant of the proof (Maurer 2004)."""
    total = Decimal(2)                                      # k = 0 and k = N
    binomial = Decimal(N)
    for k in range(1, N):
        total += binomial * (Decimal(k) / N) ** k * (Decimal(N - k) / N) ** (N - k)
        binomial = binomial * (N - k) / (k + 1)
    return total


@functools.cache
def half_gauss(x):
    """int_0^x exp(-t^2/2) dt = exp(-x^2/2) sum_k x^(2k+1)/(2k+1)!! of a Decimal x >= 0.

    In 450 digits; all terms are positive.
    """
    with localcontext() as context:
        context.prec = 450
        term = x
        total = Decimal(0)
        k = 1
        while term > total * Decimal(10) ** -450:
            total += term
            k += 2
            term *= x * x / k
        return total * (-x * x / 2).exp()


def exact_norm_cdf(z):
    """Phi(z) of R (30) to 60 digits for |z| < 40, Decimal.

    By int_0^z over int_0^45, which is the whole to 1e-440.
    """
    z = Decimal(z)
    whole = half_gauss(Decimal(45))
    with localcontext() as context:
        context.prec = 450
        part = half_gauss(abs(z))
        return (whole + part if z > 0 else whole - part) / (2 * whole)


PI = 2 * half_gauss(Decimal(45)) ** 2  # to 60 digits


def decimals(a):
    """The numbers of an array as the exact Decimals they are; Decimals as they are."""
    a = np.asarray(a)
    return a if a.dtype == object else np.vectorize(Decimal, otypes=[object])(a.astype(float))


def decimal_solve(L, B):
    """L^-1 B by forward substitution, in Decimal."""
    X = B.copy()
    for i in range(len(L)):
        X[i] = (X[i] - L[i, :i] @ X[:i] if i else X[i]) / L[i, i]
    return X


def decimal_cholesky(A):
    """Lower G with G G^T = A, in Decimal."""
    G = A * 0
    for j in range(len(A)):
        column = A[j:, j] - G[j:, :j] @ G[j, :j] if j else A[:, 0]
        G[j:, j] = column / column[0].sqrt()
    return G


@functools.partial(np.vectorize, otypes=[object])
def decimal_sin(a):
    """sin a of Decimals, by its series after whole turns are taken off."""
    a -= (a / (2 * PI)).to_integral_value() * 2 * PI
    term = a
    total = a
    for k in range(3, 80, 2):
        term *= -a * a / (k * (k - 1))
        total += term
    return total


def decimal_cos(a):
    return decimal_sin(a + PI / 2)


GAUSS_LEGENDRE = np.polynomial.legendre.leggauss(20)


def expectation(f, mean, var, cuts=()):
    """E f(v) for v ~ N(mean, var), scalars.

    20 Gauss-Legendre nodes on panels of s/4 out to 38 s, cut at the kinks of f.
    """
    s = math.sqrt(var)
    grid = mean + s * np.arange(-38, 38.1, 0.25)
    edges = np.unique(np.concatenate([grid, [c for c in cuts if grid[0] < c < grid[-1]]]))
    middle = (edges[1:] + edges[:-1]) / 2
    half = (edges[1:] - edges[:-1]) / 2
    v = middle[:, None] + half[:, None] * GAUSS_LEGENDRE[0]
    density = np.exp(-(((v - mean) / s) ** 2) / 2) / (s * math.sqrt(2 * math.pi))
    return float(np.sum((f(v) * density) @ GAUSS_LEGENDRE[1] * half))


def expm1(a):
    """exp(a) - 1 of doubles, which keep their digits, or of Decimals."""
    return np.exp(a) - 1 if np.asarray(a).dtype == object else np.expm1(a)


MISSED = (lambda r, c: np.abs(r) > c, (-1, 1))
# name -> loss of the residual r = v - y with goal c, and its kinks in units of c; R (18)-(21);
# of doubles or of Decimals
DEFINITIONS = {
    "01": MISSED,
    "square": (lambda r, c: np.minimum((r / c) ** 2, 1), (-1, 1)),
    "exp": (lambda r, c: -expm1(-((r / c) ** 2)), np.arange(-8, 8.1, 0.5)),
    "band": MISSED,
    "relative": (lambda r, c: np.minimum(np.abs(r) / c, 1), (-1, 0, 1))}
NAMES = list(DEFINITIONS)
OF_TARGET = ("band", "relative")        # R App. C: their goal is eps |y|
JITTER = 1e-8                           # of k(Z, Z), in k(x, x); no paper has its value


def quadrature(name, y, mean, var, eps):
    """E loss, d/dmean and d/dvar, each (N,), by the definition: E of loss times 1 or a score.

    The residual's density is integrated. A score has mean 0, so where the loss is nearly 1 it is
    1 - loss that is integrated.
    """
    loss, cuts = DEFINITIONS[name]
    out = []
    for target, m, v, goal in np.broadcast(y, mean, var, eps):
        c = goal * abs(target) if name in OF_TARGET else goal
        u = m - target
        kinks = np.multiply(c, cuts)
        value = expectation(lambda r: loss(r, c), u, v, kinks)
        whole = 1.0 if value > 0.5 else 0.0

        def of_mean(r):
            return (loss(r, c) - whole) * (r - u) / v

        def of_var(r):
            return (loss(r, c) - whole) * ((r - u) ** 2 / v - 1) / (2 * v)

        slopes = [expectation(f, u, v, kinks) for f in (of_mean, of_var)]
        out.append([value, *slopes])
    return np.array(out).T


GENERIC = dict(  # inside, near either edge, outside, either sign of y, narrow and wide
    y=np.array([0.3, -1.2, 0.9, 2.0, -0.5, 1.1, 0.7]),
    mean=np.array([0.1, -0.5, 1.55, -1.0, -0.45, 0.55, 0.71]),
    var=np.array([0.25, 0.09, 0.5, 2.0, 0.04, 1.3, 0.6]),
)
EPS = 0.6
