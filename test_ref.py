"""Tests of pacgp_ref.py: every numbered equation against its definition computed another way, every gradient twice.

Oracles, in this order of preference: the definition by brute force or exact fractions; 60-digit decimal arithmetic;
Gauss-Legendre quadrature of the loss itself; simulation. They share no formula with the code. Gradients are compared with
autograd's of the shipped source (`traced`) and with central differences, which share nothing with either.

Names: `test_R_eq<nn>_<function>_<property>`; where the paper has no number, the section stands in its place (sec31, appC),
and `input`, `house` where it has neither. Properties: value, grad, limit, units, tail, errors, bound, golden, misprint (the
printed form is shown to be wrong by an oracle that uses neither form). `pytest -k R_eq27`, `-k grad`, `-k misprint` work.
The tests stand in the order of the paper. Real data are looked for in the folder PACGP_DATA, or in ../shared/data; without
them the tests that need them skip. R = Reeb et al. 2018.
"""
import ast
import dis
import functools
import io
import itertools
import math
import os
import pathlib
import re
import tokenize
import types
import warnings
from decimal import Decimal, getcontext, localcontext
from fractions import Fraction

import autograd
import numpy as np
import pytest
from autograd.extend import defvjp, primitive

import pacgp_ref as R

HERE = pathlib.Path(__file__).resolve().parent
DATA = pathlib.Path(os.environ.get("PACGP_DATA", HERE.parent / "shared" / "data"))
getcontext().prec = 60                                      # digits of the decimal oracles
INF, NAN = float("inf"), float("nan")


# --- harness: traced source, comparisons, oracles -------------------------------------------------------------------

def trace(module):
    """The module executed from its source with np = autograd.numpy and Phi as a primitive: for gradients by autograd."""
    source = pathlib.Path(module.__file__).read_text()
    assert source.count("\nimport numpy as np\n") == 1
    out = types.ModuleType(module.__name__ + "_traced")
    exec(compile(source.replace("import numpy as np", "import autograd.numpy as np"), module.__file__, "exec"), out.__dict__)
    out.norm_cdf = primitive(R.norm_cdf)
    defvjp(out.norm_cdf, lambda ans, z: lambda g: g * R.norm_pdf(z))
    return out


traced = trace(R)


def relative_error(got, want):
    """max|got - want| / max|want|; refuses shapes that differ and a reference that is zero or not finite."""
    got, want = np.asarray(got, dtype=float), np.asarray(want, dtype=float)
    assert got.shape == want.shape, f"shapes differ: {got.shape} and {want.shape}"
    assert np.all(np.isfinite(want)) and np.any(want != 0), "a reference that is zero or not finite proves nothing"
    return float(np.max(np.abs(got - want)) / np.max(np.abs(want)))


def assert_close(got, want, tol):
    """relative_error(got, want) <= tol; NaN fails."""
    error = relative_error(got, want)
    assert error <= tol, f"relative error {error:.2e} above {tol:.0e}"


def central_difference(f, x, h=4e-3):
    """Gradient of the scalar f at x (any shape) by central differences of order 6; h: a hundredth of where f changes."""
    x = np.array(x, dtype=float)
    grad = np.empty(x.shape)
    for i in np.ndindex(x.shape):
        def at(k):
            moved = x.copy()
            moved[i] += k * h
            return float(f(moved if x.ndim else moved[()]))
        grad[i] = (45 * (at(1) - at(-1)) - 9 * (at(2) - at(-2)) + at(3) - at(-3)) / (60 * h)
    return grad


def data_file(name):
    """Path of a real data set, or the test skips."""
    if not (DATA / name).exists():
        pytest.skip(f"no {name} in {DATA}: set PACGP_DATA to the folder of real data")
    return DATA / name


def exact_log1p(x):
    """ln(1 + x) of a Decimal, to 60 digits of x - ln(1 + x), also for tiny x."""
    with localcontext() as context:
        context.prec += 2 * max(0, -x.adjusted())
        return (1 + x).ln()


def exact_kl(q, p):
    """kl(q||p) as in the paper, in 60-digit arithmetic, Decimal."""
    q, p = Decimal(q), Decimal(p)
    if (q > 0 and p == 0) or (q < 1 and p == 1):
        return Decimal("inf")
    return (q * (q / p).ln() if q > 0 else 0) + ((1 - q) * (exact_log1p(-q) - exact_log1p(-p)) if q < 1 else 0)


def exact_kl_inv(q, eps):
    """max{p : kl(q||p) <= eps} by bisection in 60-digit arithmetic, Decimal."""
    low, high, eps = Decimal(q), Decimal(1), Decimal(eps)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if exact_kl(q, middle) <= eps else (low, middle)
    return low


@functools.cache
def half_gauss(x):
    """int_0^x exp(-t^2/2) dt = exp(-x^2/2) sum_k x^(2k+1)/(2k+1)!!: positive terms only. Decimal x >= 0; 450 digits."""
    with localcontext() as context:
        context.prec = 450
        term, total, k = x, Decimal(0), 1
        while term > total * Decimal(10) ** -450:
            total, term, k = total + term, term * x * x / (k + 2), k + 2
        return total * (-x * x / 2).exp()


def exact_norm_cdf(z):
    """Phi(z) of R Eq. (30) to 60 digits for |z| < 40, Decimal: int_0^z over int_0^45, which is the whole to 1e-440."""
    z, whole = Decimal(z), half_gauss(Decimal(45))
    with localcontext() as context:
        context.prec = 450
        part = half_gauss(abs(z))
        return (whole + part if z > 0 else whole - part) / (2 * whole)


GAUSS_LEGENDRE = np.polynomial.legendre.leggauss(20)


def expectation(f, mean, var, cuts=()):
    """E f(v) for v ~ N(mean, var), scalars: 20 Gauss-Legendre nodes on panels of s/4 out to 38 s, cut at the kinks of f."""
    s = math.sqrt(var)
    grid = mean + s * np.arange(-38, 38.1, 0.25)
    edges = np.unique(np.concatenate([grid, [c for c in cuts if grid[0] < c < grid[-1]]]))
    middle, half = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
    v = middle[:, None] + half[:, None] * GAUSS_LEGENDRE[0]
    density = np.exp(-(((v - mean) / s) ** 2) / 2) / (s * math.sqrt(2 * math.pi))
    return float(np.sum((f(v) * density) @ GAUSS_LEGENDRE[1] * half))


DEFINITIONS = {        # name -> loss of the residual r = v - y with goal c, and its kinks in units of c; R Eq. (18)-(21)
    "01": (lambda r, c: np.abs(r) > c, (-1, 1)),
    "square": (lambda r, c: np.minimum((r / c) ** 2, 1), (-1, 1)),
    "exp": (lambda r, c: -np.expm1(-((r / c) ** 2)), np.arange(-8, 8.1, 0.5)),
    "band": (lambda r, c: np.abs(r) > c, (-1, 1)),
    "relative": (lambda r, c: np.minimum(np.abs(r) / c, 1), (-1, 0, 1)),
}
NAMES = list(DEFINITIONS)


def quadrature(name, y, mean, var, eps):
    """E loss, d/dmean and d/dvar, each (N,), by the definition: of the loss, and of loss times the score of the density.

    The residual's density is integrated. A score has mean 0, so where the loss is nearly 1 it is 1 - loss that is integrated.
    """
    (loss, cuts), out = DEFINITIONS[name], []
    for y, m, v in np.broadcast(y, mean, var):
        c, u = (eps * abs(y) if name in ("band", "relative") else eps), m - y
        E = lambda f: expectation(f, u, v, np.multiply(c, cuts))
        value = E(lambda r: loss(r, c))
        part = lambda r: loss(r, c) - (1.0 if value > 0.5 else 0.0)
        out.append((value, E(lambda r: part(r) * (r - u) / v), E(lambda r: part(r) * ((r - u) ** 2 / v - 1) / (2 * v))))
    return np.array(out).T


def both(grad, mean, var):
    """(d_mean, d_var) as one array without units: what moves the loss by a relative step; so one cannot hide the other."""
    return np.array([grad[0] * np.sqrt(var), grad[1] * 2 * var])


GENERIC = dict(        # inside, near either edge, outside, either sign of y, narrow and wide
    y=np.array([0.3, -1.2, 0.9, 2.0, -0.5, 1.1, 0.7]), mean=np.array([0.1, -0.5, 1.55, -1.0, -0.45, 0.55, 0.71]),
    var=np.array([0.25, 0.09, 0.5, 2.0, 0.04, 1.3, 0.6]))
EPS = 0.6


def test_harness_relative_error_rejects():
    """The comparison itself: 1.01 x, -1 x, 0 x the right gradient, NaN, other shapes and useless references are refused."""
    right = np.array([1.0, -2.0, 1e-9])
    assert_close(right * (1 + 1e-12), right, 1e-11)
    for wrong in (1.01 * right, -right, 0 * right, right * NAN, right[:2], right[:, None]):
        with pytest.raises(AssertionError):
            assert_close(wrong, right, 1e-3)
    for reference in (0 * right, np.array([1.0, NAN, 1.0]), np.array([INF, 1.0, 1.0])):
        with pytest.raises(AssertionError):
            assert_close(reference, reference, 1.0)


def test_harness_central_difference_rejects():
    """Differences have 12 digits, and tell 1.01 x, -1 x and 0 x a true gradient of the code from the gradient."""
    x = np.array([[0.3, -1.0], [2.0, 0.7]])
    assert_close(central_difference(lambda x: np.sum(np.sin(x) * x), x), np.cos(x) * x + np.sin(x), 3e-13)
    d_mean, _ = R.expected_01_loss_grad(**GENERIC, eps=EPS)
    want = central_difference(lambda m: R.expected_01_loss(GENERIC["y"], m, GENERIC["var"], EPS).sum(), GENERIC["mean"])
    assert_close(d_mean, want, 2e-11)
    for factor in (1.01, -1.0, 0.0):
        with pytest.raises(AssertionError):
            assert_close(factor * d_mean, want, 1e-3)


def test_harness_oracles_known_values():
    """The oracles against numbers from tables and exact results."""
    assert_close(float(exact_norm_cdf(-1)), 0.15865525393145705141, 1e-16)
    assert_close(float(exact_norm_cdf(-10)), 7.6198530241605260660e-24, 1e-15)
    assert exact_norm_cdf(0) == Decimal("0.5") and abs(exact_norm_cdf(2) + exact_norm_cdf(-2) - 1) < Decimal("1e-50")
    assert_close(float(exact_kl("0.5", "0.25")), math.log(4 / 3) / 2, 1e-15)
    assert abs(exact_kl_inv(0, 2) - (1 - Decimal(-2).exp())) < Decimal("1e-50")
    assert_close(expectation(lambda v: v**4, 0.5, 4.0), 0.5**4 + 6 * 0.25 * 4 + 3 * 16, 2e-15)


def test_harness_traced_runs_shipped_source():
    """Traced values are the shipped ones, and it is autograd that differentiates them."""
    args = (GENERIC["y"], GENERIC["mean"], GENERIC["var"], EPS)
    for name in NAMES:
        assert np.array_equal(traced.LOSSES[name][0](*args), R.LOSSES[name][0](*args))
    assert traced.np is autograd.numpy and R.np is np


# --- what a user may throw at it ------------------------------------------------------------------------------------

class Frame:
    """Stands in for a data frame: no list, no array, but NumPy knows how to ask it."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype=dtype)


READ_ONLY = np.arange(3.0)
READ_ONLY.setflags(write=False)


@pytest.mark.parametrize("a", [
    [0, 1, 2], (0.0, 1.0, 2.0), range(3), np.arange(3), np.arange(3, dtype=np.float32), np.arange(3, dtype=np.uint8),
    np.arange(6.0)[::2] / 2, np.arange(2.0, -1, -1)[::-1], READ_ONLY, np.arange(3.0)[:, None], Frame([0, 1, 2]),
    np.ma.array([0.0, 1.0, 2.0]), np.array([0, 1.0, np.float32(2)], dtype=object), np.arange(3.0).astype(">f8")],
    ids=lambda a: f"{type(a).__name__}-{getattr(a, 'dtype', '')}")
def test_R_input_check_array_survives(a):
    """All of these are (0, 1, 2) as float64 (N,), in memory of their own."""
    out = R.check_array("y", a, 1)
    assert out.dtype == np.float64 and out.shape == (3,) and np.array_equal(out, [0, 1, 2])
    assert not (isinstance(a, np.ndarray) and np.shares_memory(a, out))


def test_R_input_check_array_matrices():
    """2-D input of any layout; no row and no column is fine here (empty test sets)."""
    X = np.arange(12.0).reshape(3, 4)
    for a in (X.tolist(), np.asfortranarray(X), np.repeat(X, 2, 0)[::2], X.astype(int), Frame(X)):
        assert np.array_equal(R.check_array("X", a, 2), X)
    assert R.check_array("X", np.empty((0, 4)), 2).shape == (0, 4)


@pytest.mark.parametrize("a, message", [
    ([1.0, NAN, INF], r"^y has 2 values that are NaN or infinite, the first at index \(1,\)"),
    ([[1.0], [-INF]], r"^y has 1 .* index \(1,\)"),
    (["1", "2"], "^y .*strings"), ([b"1", b"2"], "^y .*strings"), ("12", "^y .*strings"), ([1.0, "x"], "^y .*strings"),
    (np.array(["1", "2"], dtype=object), "^y must hold real numbers"), (np.array([1, "x"], dtype=object), "^y must hold real"),
    ([1 + 0j, 2], "^y .*complex"), (np.array([1, 2j], dtype=object), "^y must hold real numbers"),
    ([1.0, None], "^y "), (np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 1]), "^y has 2 masked"), ({1: 2.0}, "^y must hold"),
    ([[1.0], [1.0, 2.0]], "^y must hold"), (3.0, r"^y must be 1-dimensional, got shape \(\)"),
    (np.ones((2, 2)), r"^y must be 1-dimensional, got shape \(2, 2\)"), (np.ones((1, 3)), r"^y must be 1-dimensional"),
    (np.array(["2020-01-01"], dtype="datetime64[D]"), "^y must hold")], ids=lambda a: str(a)[:24].replace("\n", " "))
def test_R_input_check_array_errors(a, message):
    with pytest.raises(ValueError, match=message):
        R.check_array("y", a, 1)


def test_R_input_check_array_first_index():
    X = np.zeros((4, 3))
    X[2, 1] = X[3, 0] = NAN
    with pytest.raises(ValueError, match=r"^X has 2 values .* \(2, 1\)"):
        R.check_array("X", X, 2)


@pytest.mark.parametrize("X, y, message", [
    (np.ones((3, 2)), np.ones(4), "^X and y differ in length: 3 rows against 4"), (np.ones(3), np.ones(3), "^X must be 2-dim"),
    (np.ones((0, 2)), [], "^X is empty"), (np.ones((3, 0)), np.ones(3), "^X is empty"),
    (np.ones((2, 1)), np.ones((2, 2)), "^y must be 1-dim"), ([["a"]], [1], "^X .*strings"), ([[1]], [NAN], "^y has 1")])
def test_R_input_check_data_errors(X, y, message):
    with pytest.raises(ValueError, match=message):
        R.check_data(X, y)


def test_R_input_check_data_column():
    """y as a column is y."""
    X, y = R.check_data([[1], [2], [3]], np.array([[4], [5], [6]], dtype=np.uint8))
    assert X.shape == (3, 1) and y.shape == (3,) and X.dtype == y.dtype == np.float64


@pytest.mark.parametrize("value", [0, -1, 1.5, NAN, INF, -INF, None, "a", "0.1", b"a", [0.1], np.array([0.1]), 0.1j, {}],
                         ids=repr)
def test_R_input_check_scalar_errors(value):
    with pytest.raises(ValueError, match=r"^delta must be above 0 and at most 1, got "):
        R.check_scalar("delta", value, 0, 1)


def test_R_input_check_scalar_survives():
    for value in (1, np.int64(1), np.float32(1), np.array(1.0), np.uint8(1)):
        out = R.check_scalar("delta", value, 0, 1)
        assert type(out) is float and out == 1
    with pytest.raises(ValueError, match="^eps must be above 0 and at most inf, got inf"):
        R.check_scalar("eps", INF, 0)


@pytest.mark.parametrize("delta", [95, 95.0, np.int64(95), np.float32(95)], ids=repr)
def test_R_input_check_scalar_percent(delta):
    """delta = 95 most likely means 95 % confidence: the message says what to give."""
    with pytest.raises(ValueError, match=r"for 95 % confidence give 0\.05$"):
        R.check_scalar("delta", delta, 0, 1)


# --- R Sec. 2.1: risks ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", NAMES)
def test_R_sec21_bayes_risk_bound_value(name):
    """R_Bay <= 2 R: no Gaussian prediction's expected loss is below half the loss of its mean."""
    y, u, var = (a.ravel() for a in np.meshgrid([0.7, -1.5], np.linspace(-2, 2, 81) + 1e-9, [1e-6, 1e-3, 0.1, 1.0, 30.0]))
    c = EPS * np.abs(y) if name in ("band", "relative") else EPS
    at_mean, expected = DEFINITIONS[name][0](u, c), R.LOSSES[name][0](y, y + u, var, EPS)
    assert np.all(at_mean <= 2 * expected * (1 + 1e-12))
    if name in ("01", "band"):
        assert np.any(at_mean > 1.99 * expected)                           # no smaller factor than 2 would do
    assert np.all(R.bayes_risk_bound(np.array([0.1, 0.5, 0.7])) == [0.2, 1.0, 1.0])


# --- R Sec. 2.2 and App. A: kl and its inverse ----------------------------------------------------------------------

UNIT = [0.0, 1e-300, 1e-100, 1e-20, 1e-12, 1e-8, 1e-5, 1e-3, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95,
        0.99, 0.999, 1 - 1e-5, 1 - 1e-8, 1 - 1e-12, 1.0]
NATS = [1e-10, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 36.0, 40.0,
        100.0, 300.0, 700.0, INF]


def test_R_sec22_x_minus_log1p_value():
    """x - ln(1+x) to 14 digits from 1e-150 to 1e300, through the switch at 0.3 and down to -1."""
    x = np.concatenate([s * 10.0 ** np.arange(-150, 0, 3.7) for s in (1, -1)] + [
        [0.2999999, 0.3, 0.3000001, -0.2999999, -0.3, -0.3000001, -0.9, -0.999999, 1.0, 1e3, 1e300]])
    with localcontext() as context:
        context.prec = 400
        want = [float(Decimal(v) - exact_log1p(Decimal(v))) for v in x]
    assert max(relative_error(g, w) for g, w in zip(R.x_minus_log1p(x), want)) < 2e-15
    with np.errstate(divide="ignore"):
        assert R.x_minus_log1p(0.0) == 0 and R.x_minus_log1p(-1.0) == INF


PAIRS = [(0.3, 0.3 * (1 + 1e-9)), (0.3, 0.3 * (1 - 1e-13)), (0.5, 0.5 + 1e-8), (1e-12, 1.1e-12), (1e-12, 0.9), (0.9, 1e-12),
         (0.5, 1e-20), (0.5, 1e-300), (0.3, 1 - 1e-12), (0.99, 1e-5), (1 - 1e-12, 1 - 2e-12), (1e-300, 1e-290), (1e-300, 0.5),
         (0.0, 1e-290), (0.0, 0.3), (1.0, 0.3), (1.0, 1e-300), (0.0, 1 - 1e-16), (0.2, 0.6), (0.6, 0.2), (1e-5, 1e-9)]


@pytest.mark.parametrize("q, p", PAIRS)
def test_R_sec22_binary_kl_value(q, p):
    assert_close(R.binary_kl(q, p), float(exact_kl(q, p)), 2e-15)


def test_R_sec22_binary_kl_limit():
    """kl(q||q) = 0 exactly; infinite exactly where Q has mass that P has not; arrays broadcast; never negative."""
    q = np.array(UNIT)
    assert np.all(R.binary_kl(q, q) == 0)
    assert [R.binary_kl(0, 1), R.binary_kl(1, 0), R.binary_kl(0.5, 0), R.binary_kl(0.5, 1)] == [INF] * 4
    assert np.all(R.binary_kl(q[:, None], q) >= 0) and R.binary_kl(q[:, None], q).shape == (len(q), len(q))


@pytest.mark.parametrize("q, p", [(-0.1, 0.5), (0.5, 1.1), (NAN, 0.5), (0.5, NAN), ([0.1, 2.0], 0.5)])
def test_R_sec22_binary_kl_errors(q, p):
    with pytest.raises(ValueError, match=r"^[qp] must lie in \[0, 1\]"):
        R.binary_kl(q, p)


def kl_inv_grid():
    """q, eps (n,): all pairs of UNIT and NATS, and 1500 random ones over the same range."""
    q, eps = (a.ravel() for a in np.meshgrid(UNIT, NATS))
    rng = np.random.default_rng(0)
    small = np.where(rng.random(1500) < 0.5, rng.random(1500), 10 ** rng.uniform(-13, 0, 1500))
    q_random = np.where(rng.random(1500) < 0.3, 1 - small, small)
    return np.append(q, q_random), np.append(eps, 10 ** rng.uniform(-10, 2, 1500))


def test_R_eq03_kl_inv_value():
    """On a dense grid never below the truth, and at most 1e-12 above it relatively: kl(q||.) rises, so two values bracket."""
    q, eps = kl_inv_grid()
    p = R.kl_inv(q, eps)
    above, near = Decimal(1), 1 - Decimal("1e-12")
    for q, eps, p in zip(q.tolist(), eps.tolist(), p.tolist()):
        assert p == 1 or exact_kl(q, p) >= eps or p == q == 1, f"kl_inv({q}, {eps}) = {p} is below the truth"
        assert Decimal(p) * near <= Decimal(q) or exact_kl(q, Decimal(p) * near) <= eps, f"kl_inv({q}, {eps}) = {p} is too high"


@pytest.mark.parametrize("q, eps", [(0.0, 0.3), (1e-12, 0.01), (0.07, 0.05), (0.3, 1e-6), (0.5, 3.0), (1 - 1e-8, 0.2)])
def test_R_eq03_kl_inv_oracle(q, eps):
    """The same against the inverse itself, by bisection in 60 digits."""
    want = exact_kl_inv(q, eps)
    assert 0 <= Decimal(R.kl_inv(q, eps)) - want <= Decimal("2e-13") * want


def test_R_eq03_kl_inv_limit():
    """Corners, and in between: a float for scalars, arrays broadcast, [q, 1]."""
    q, eps = np.array(UNIT), np.array(NATS)
    assert_close(R.kl_inv(0, eps), -np.expm1(-eps), 2e-13)                 # App. A: kl^-1(0, eps) = 1 - exp(-eps)
    assert np.all(R.kl_inv(1, eps) == 1) and np.all(R.kl_inv(q, 0) == q) and np.all(R.kl_inv(q, INF) == 1)
    assert R.kl_inv(0, 0) == 0 and R.kl_inv(1, 0) == 1
    p = R.kl_inv(q[:, None], eps)
    assert type(R.kl_inv(0.1, 0.1)) is float and type(R.kl_inv(0, 0)) is float and p.shape == (len(q), len(eps))
    assert np.all((p >= q[:, None]) & (p <= 1)) and np.all(np.diff(p, axis=1) >= 0) and np.all(np.diff(p, axis=0) >= 0)
    assert p[3, 7] == R.kl_inv(q[3], eps[7]) and R.kl_inv([], []).shape == (0,)


def test_R_eq03_kl_inv_bound():
    """Even the upper end of a bisection on the textbook formula in doubles is below the truth in a third of all cases."""
    rng = np.random.default_rng(1)
    q, eps = rng.uniform(0.01, 0.5, 400), 10 ** rng.uniform(-4, 0, 400)
    low, high = q.copy(), np.ones(400)
    for _ in range(60):
        p = (low + high) / 2
        with np.errstate(divide="ignore"):
            inside = q * np.log(q / p) + (1 - q) * np.log((1 - q) / (1 - p)) <= eps
        low, high = np.where(inside, p, low), np.where(inside, high, p)
    below = lambda p: np.mean([exact_kl(*pair) < e for *pair, e in zip(q.tolist(), p.tolist(), eps.tolist())])
    assert 0.25 < below(high) < 0.5 and below(R.kl_inv(q, eps)) == 0


@pytest.mark.parametrize("function", [R.kl_inv, R.kl_inv_grad])
@pytest.mark.parametrize("q, eps, message", [
    (-0.1, 1, r"q must lie in \[0, 1\], got -0.1"), (1.1, 1, "q must"), (NAN, 1, "q must"), ([0.1, 7.0], 1, "q must .* 7.0"),
    (0.1, -1, "eps must be at least 0, got -1"), (0.1, NAN, "eps must"), (0.1, [1.0, NAN], "eps must .* got nan")])
def test_R_eq03_kl_inv_errors(function, q, eps, message):
    with pytest.raises(ValueError, match=message):
        function(q, eps)


GRAD_PAIRS = [(1e-12, 1e-3), (1e-6, 0.5), (0.001, 1e-6), (0.01, 0.05), (0.07, 0.1), (0.3, 1e-8), (0.3, 0.3), (0.5, 2.0),
              (0.9, 0.01), (0.9, 1e-4), (0.999, 1e-6), (1 - 1e-8, 1e-10)]


@pytest.mark.parametrize("q, eps", GRAD_PAIRS)
def test_R_eq12_eq13_kl_inv_grad(q, eps):
    """Against R Eq. (12), (13) as printed, in 60 digits at the exact inverse."""
    k, q_ = exact_kl_inv(q, eps), Decimal(q)
    with localcontext() as context:
        context.prec = 110
        slope = (1 - q_) / (1 - k) - q_ / k
        want = (((1 - q_) / (1 - k)).ln() - (q_ / k).ln()) / slope, 1 / slope
    for got, want in zip(R.kl_inv_grad(q, eps), want):
        assert_close(got, float(want), 2e-14)


@pytest.mark.parametrize("q, eps", [(1e-3, 1e-3), (0.07, 0.1), (0.3, 1e-6), (0.5, 2.0), (0.9, 0.01)])
def test_R_eq12_eq13_kl_inv_grad_differences(q, eps):
    """Against differences of the exact inverse in 60 digits, and of the shipped one in doubles."""
    h = Decimal("1e-20")
    q_, e_ = Decimal(q), Decimal(eps)
    d_q, d_eps = R.kl_inv_grad(q, eps)
    assert_close(d_q, float((exact_kl_inv(q_ + h, e_) - exact_kl_inv(q_ - h, e_)) / (2 * h)), 2e-14)
    assert_close(d_eps, float((exact_kl_inv(q_, e_ + h) - exact_kl_inv(q_, e_ - h)) / (2 * h)), 2e-14)
    assert_close(d_q, central_difference(lambda q: R.kl_inv(q, eps), q, 3e-3 * q * (1 - q)), 3e-11)
    assert_close(d_eps, central_difference(lambda eps: R.kl_inv(q, eps), eps, 5e-3 * eps), 3e-11)


def test_R_eq12_eq13_kl_inv_grad_limit():
    """Never NaN, never negative; infinite only where the derivative is: d/dq at q = 0 < eps, d/deps at eps = 0 < q < 1."""
    q, eps = (a.ravel() for a in np.meshgrid(UNIT, [0.0] + NATS))
    d_q, d_eps = R.kl_inv_grad(q, eps)
    assert not np.isnan(d_q).any() and not np.isnan(d_eps).any() and np.all(d_q >= 0) and np.all(d_eps >= 0)
    assert np.all(~np.isinf(d_q) | ((q == 0) & (eps > 0))) and np.isinf(d_q[(q == 0) & (eps == 0.1)]).all()
    assert np.array_equal(np.isinf(d_eps), (eps == 0) & (q > 0) & (q < 1))
    assert R.kl_inv_grad(0, 0) == (1, 1) and R.kl_inv_grad(1, 0) == (1, 0) and R.kl_inv_grad(0.3, 0)[0] == 1
    assert_close(R.kl_inv_grad(0, 0.7)[1], math.exp(-0.7), 1e-15)          # of 1 - exp(-eps)
    assert type(d_q) is np.ndarray and type(R.kl_inv_grad(0.1, 0.1)[0]) is float


# --- R Eq. (4), (5): the bounds -------------------------------------------------------------------------------------

def exact_xi(N):
    """sum_k C(N,k) (k/N)^k (1-k/N)^(N-k), a Fraction: the constant of the proof (Maurer 2004) by its definition."""
    return sum(math.comb(N, k) * Fraction(k, N) ** k * Fraction(N - k, N) ** (N - k) for k in range(N + 1))


@pytest.mark.parametrize("N", [*range(1, 13), 20, 37, 60])
def test_R_eq04_ln_confidence_exact(N):
    """exact=True: never below ln(xi(N)/delta), and at most 1e-13 above; never above the printed constant but for rounding."""
    xi = exact_xi(N)
    for delta in (1.0, 0.3, 0.05, 0.01, 1e-6):
        want = (Decimal(xi.numerator) / Decimal(xi.denominator) / Decimal(delta)).ln()
        assert 0 <= Decimal(R.ln_confidence(N, delta, exact=True)) - want < Decimal("1e-13")
        assert_close(R.ln_confidence(N, delta), math.log(2 * math.sqrt(N) / delta), 1e-15)


def test_R_eq04_ln_confidence_large():
    """N = 1e4 against the sum of its definition, term by term in 60 digits."""
    N, total, binomial = 10000, Decimal(0), Decimal(1)
    for k in range(N + 1):
        total += binomial * (Decimal(k) / N) ** k * (Decimal(N - k) / N) ** (N - k) if 0 < k < N else 1
        binomial = binomial * (N - k) / (k + 1)
    assert 0 <= Decimal(R.ln_confidence(N, 1.0, exact=True)) - total.ln() < Decimal("1e-11")


def test_R_eq04_ln_confidence_bound():
    """xi(N) <= 2 sqrt(N) for every N >= 1, equal at N = 1; the saving rises to ln(2 sqrt(2/pi)) = 0.47 nats."""
    saved = np.array([R.ln_confidence(N, 0.05) - R.ln_confidence(N, 0.05, exact=True) for N in range(1, 1500)])
    assert abs(saved[0]) < 2e-15 and np.all(np.diff(saved) > 0)
    assert 0.46 < R.ln_confidence(10**6, 0.05) - R.ln_confidence(10**6, 0.05, exact=True) < math.log(2 * math.sqrt(2 / math.pi))


@pytest.mark.parametrize("N, p", [(1, 0.3), (7, 0.02), (30, 0.5), (60, 0.9)])
def test_R_eq04_binary_kl_maurer(N, p):
    """The lemma behind Eq. (4): E exp(N kl(k/N||p)) = xi(N) for a binomial k, whatever p."""
    k = np.arange(N + 1)
    weight = np.array([math.comb(N, i) * p**i * (1 - p) ** (N - i) for i in k])
    assert_close(weight @ np.exp(N * R.binary_kl(k / N, p)), float(exact_xi(N)), 1e-14)


def violation(N, p, radius):
    """P(kl^-1(k/N, radius) < p) for a binomial k: the exact probability that a bound of this radius fails."""
    fails = R.kl_inv(np.arange(N + 1) / N, radius) < p
    return sum(math.comb(N, k) * p**k * (1 - p) ** (N - k) for k in range(N + 1) if fails[k])


def test_R_eq04_pac_bayes_bound_coverage():
    """200 independent hypotheses, Q all on the worst: the bound with KL = ln 200 fails at most delta often, without KL more.

    Exact: no simulation. Without ln(2 sqrt N / delta) already a single hypothesis fails more often than delta.
    """
    N, H, delta = 30, 200, 0.05
    grid = np.linspace(0.005, 0.995, 67)
    ever = lambda v: 1 - (1 - v) ** H
    with_KL, without_KL = ((KL + R.ln_confidence(N, delta)) / N for KL in (math.log(H), 0.0))
    assert R.pac_bayes_bound(0.1, math.log(H), N, delta) == R.kl_inv(0.1, with_KL)
    assert max(ever(violation(N, p, with_KL)) for p in grid) <= delta
    assert max(ever(violation(N, p, without_KL)) for p in grid) > 4 * delta
    assert max(violation(N, p, without_KL) for p in grid) <= delta < max(violation(N, p, 0.0) for p in grid)


@pytest.mark.parametrize("exact", [False, True])
def test_R_eq05_pac_bayes_bound_value(exact):
    """B is where kl(R_S||B) equals the complexity, ln(1/p_theta) included."""
    for risk, KL, N, delta, penalty in ((0.1, 12.0, 80, 0.01, 14.18), (0.0, 0.0, 50, 0.05, 0.0), (0.4, 3.0, 60, 1.0, 19.0)):
        xi = float(exact_xi(N)) if exact else 2 * math.sqrt(N)
        B = R.pac_bayes_bound(risk, KL, N, delta, penalty, exact)
        assert_close(float(exact_kl(risk, B)), (KL + penalty + math.log(xi / delta)) / N, 5e-12)
        assert type(B) is float and risk < B < R.pinsker_bound(risk, KL, N, delta, penalty, exact)


def test_R_eq05_pac_bayes_bound_union():
    """Paying ln E for the best of E values of eps is running each of them at delta / E."""
    for bound in (R.pac_bayes_bound, R.pinsker_bound):
        assert_close(bound(0.1, 5.0, 500, 0.01, 14.0 + math.log(7)), bound(0.1, 5.0, 500, 0.01 / 7, 14.0), 2e-15)


def test_R_eq05_pinsker_bound_bound():
    """B <= B_Pin everywhere, and B_Pin = R_S + sqrt(complexity / 2)."""
    for risk, KL, N in itertools.product((0.0, 1e-6, 0.01, 0.2, 0.5, 0.9, 1.0), (0.0, 1.0, 50.0, 1e4), (1, 10, 500, 10**6)):
        pinsker = R.pinsker_bound(risk, KL, N, 0.05, 3.0)
        assert R.pac_bayes_bound(risk, KL, N, 0.05, 3.0) <= pinsker
        assert_close(pinsker, risk + math.sqrt((KL + 3.0 + math.log(2 * math.sqrt(N) / 0.05)) / (2 * N)), 1e-15)


def test_R_eq05_pac_bayes_bound_limit():
    """A KL that rounds just below 0 counts as 0; more data, less KL, larger delta: a smaller bound."""
    assert R.pac_bayes_bound(0.1, -1e-12, 100) == R.pac_bayes_bound(0.1, 0.0, 100)
    assert R.pinsker_bound(0.1, -1e-12, 100) == R.pinsker_bound(0.1, 0.0, 100)
    for f in (R.pac_bayes_bound, R.pac_bayes_bound_grad, R.pinsker_bound, R.pinsker_bound_grad):
        assert f(0.1, 5.0, 100) == f(0.1, 5.0, 100, 0.01, 0.0, False)                 # the paper's delta, no penalty, 2 sqrt(N)
    B = R.pac_bayes_bound(0.1, 5.0, 100, 0.01)
    assert B > R.pac_bayes_bound(0.1, 5.0, 200, 0.01) and B > R.pac_bayes_bound(0.1, 4.0, 100, 0.01)
    assert B > R.pac_bayes_bound(0.1, 5.0, 100, 0.02) and B > R.pac_bayes_bound(0.1, 5.0, 100, 0.01, exact=True)
    assert B > R.pac_bayes_bound(0.09, 5.0, 100, 0.01) and B < R.pac_bayes_bound(0.1, 5.0, 100, 0.01, penalty=1e-3)


@pytest.mark.parametrize("bound", [R.pac_bayes_bound, R.pinsker_bound])
@pytest.mark.parametrize("name, bad", [
    *(("risk", v) for v in (-0.1, 1.1, NAN)), *(("KL", v) for v in (-1.0, NAN, INF, None)),
    *(("penalty", v) for v in (-1.0, NAN)), *(("N", v) for v in (0, -3, 0.5, NAN, INF, None)),
    *(("delta", v) for v in (0, -0.1, NAN, None, "a", 95))])
def test_R_eq05_pac_bayes_bound_errors(bound, name, bad):
    """The message names the argument. In plain NumPy a NaN delta would give a "bound" equal to the empirical risk."""
    with pytest.raises(ValueError, match=f"^{name} must"):
        bound(**{**dict(risk=0.1, KL=1.0, N=100, delta=0.05, penalty=0.0), name: bad})


@pytest.mark.parametrize("N, delta, name", [
    *((v, 0.1, "N") for v in (0, 0.5, NAN, None)), *((10, v, "delta") for v in (0, 95, NAN, None))])
def test_R_eq04_ln_confidence_errors(N, delta, name):
    for exact in (False, True):
        with pytest.raises(ValueError, match=f"^{name} must"):
            R.ln_confidence(N, delta, exact)


# --- R Eq. (14): the gradient of the bounds -------------------------------------------------------------------------

BOUND_PAIRS = [(R.pac_bayes_bound, R.pac_bayes_bound_grad), (R.pinsker_bound, R.pinsker_bound_grad)]


@pytest.mark.parametrize("bound, grad", BOUND_PAIRS)
@pytest.mark.parametrize("risk, KL, N, exact", [(0.1, 12.0, 400, False), (0.3, 900.0, 1000, False), (1e-9, 3.0, 50, True)])
def test_R_eq14_pac_bayes_bound_grad(bound, grad, risk, KL, N, exact):
    """Against differences; risk = 1e-9 is the ill-conditioned point: there d B/d risk is about 20."""
    d_risk, d_KL = grad(risk, KL, N, 0.01, 14.2, exact)
    f = lambda risk, KL: bound(risk, KL, N, 0.01, 14.2, exact)
    assert_close(d_risk, central_difference(lambda risk: f(risk, KL), risk, 1e-2 * risk), 1e-9 if risk > 1e-3 else 1e-5)
    assert_close(d_KL, central_difference(lambda KL: f(risk, KL), KL, 1e-2 * KL), 2e-11)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bound", ["kl", "sqrt"])
@pytest.mark.parametrize("N", [None, 400])
def test_R_eq14_pac_objective_grad(name, bound, N):
    """The chain rule through loss, mean and kl^-1, against differences of the value in mean, var and KL."""
    y, mean, var = GENERIC["y"], GENERIC["mean"], GENERIC["var"]
    terms = dict(loss=name, bound=bound, N=N, delta=0.05, penalty=1.0)
    f = lambda mean, var, KL: R.pac_objective(y, mean, var, KL, EPS, **terms)[0]
    value, d_mean, d_var, d_KL = R.pac_objective(y, mean, var, 0.8, EPS, **terms)
    assert_close(d_mean, central_difference(lambda m: f(m, var, 0.8), mean, 2e-3), 1e-10)
    assert_close(d_var * var, central_difference(lambda t: f(mean, var * np.exp(t), 0.8), np.zeros(7), 1e-2), 1e-10)
    assert_close(d_KL, central_difference(lambda KL: f(mean, var, KL), 0.8), 1e-10)


def test_R_eq14_pac_objective_value():
    """The value is B of the mean loss, the printed Eq. (5) with (24)."""
    args = GENERIC["y"], GENERIC["mean"], GENERIC["var"]
    risk = np.mean(quadrature("01", *args, EPS)[0])
    assert_close(R.pac_objective(*args, 0.8, EPS, delta=0.05)[0], R.pac_bayes_bound(risk, 0.8, 7, 0.05), 1e-15)
    assert_close(R.pac_objective(*args, 0.8, EPS, bound="sqrt", N=90)[0], R.pinsker_bound(risk, 0.8, 90), 1e-15)


def test_R_eq14_pac_objective_limit():
    """At R_S = 0 exactly, where d kl^-1/dq is infinite, value and gradient stay finite; at R_S = 1 they are flat."""
    y, var = np.zeros(5), np.full(5, 1e-6)
    assert all(np.all(np.isfinite(g)) for g in R.pac_bayes_bound_grad(0.0, 1.0, 50))
    value, d_mean, d_var, d_KL = R.pac_objective(y, y, var, 1.0, EPS)
    assert 0 < value < 1 and np.all(d_mean == 0) and np.all(d_var == 0) and 0 < d_KL < 1 / 5
    value, d_mean, d_var, d_KL = R.pac_objective(y, y + 9, var, 1.0, EPS)
    assert value == 1 and np.all(d_mean == 0) and np.all(d_var == 0) and d_KL == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bound", ["kl", "sqrt"])
def test_R_eq14_pac_objective_units(name, bound):
    """y in other units, and eps with it: the bound does not move, and each gradient scales as its variable's inverse."""
    y, mean, var = GENERIC["y"], GENERIC["mean"], GENERIC["var"]
    eps = EPS if name in ("band", "relative") else 3 * EPS
    value, d_mean, d_var, d_KL = R.pac_objective(y, mean, var, 0.8, EPS, name, bound)
    scaled = R.pac_objective(3 * y, 3 * mean, 9 * var, 0.8, eps, name, bound)
    for got, want in zip(scaled, (value, d_mean / 3, d_var / 9, d_KL)):
        assert_close(got, want, 1e-14)


@pytest.mark.parametrize("name", NAMES)
def test_R_eq14_pac_objective_errors(name):
    """NaN anywhere is an error, not a bound."""
    good = dict(GENERIC, KL=1.0, eps=EPS, loss=name)
    for key in ("y", "mean", "var"):
        bad = good[key].copy()
        bad[3] = NAN
        with pytest.raises(ValueError):
            R.pac_objective(**{**good, key: bad})
    for change in (dict(KL=NAN), dict(eps=NAN), dict(eps=0.0), dict(delta=NAN), dict(delta=95), dict(N=0), dict(N=-7)):
        with pytest.raises(ValueError, match=next(iter(change))):
            R.pac_objective(**{**good, **change})


@pytest.mark.parametrize("name", NAMES)
def test_R_eq24_gibbs_risk_errors(name):
    """y as a column against mean as a row would be averaged over all N^2 pairs: a silently wrong number."""
    y, mean, var = GENERIC.values()
    for args in ((y[:, None], mean, var), (y, mean[:, None], var), (y[:1], mean, var)):
        with pytest.raises(ValueError, match="shape"):
            R.gibbs_risk(*args, EPS, name)
        with pytest.raises(ValueError, match="shape"):
            R.pac_objective(*args, 1.0, EPS, name)


# --- R Eq. (15)-(17): what choosing theta costs ---------------------------------------------------------------------

def test_R_eq15_eq17_mixture_prior_bound():
    """KL(Q || sum_theta p_theta P_theta) <= ln(1/p_theta) + KL(Q||P_theta) for each theta, by quadrature in one dimension."""
    ln_normal = lambda x, m, s: -(((x - m) / s) ** 2) / 2 - math.log(s * math.sqrt(2 * math.pi))
    priors = [(0.2, 0.0, 1.0), (0.5, 3.0, 0.5), (0.3, -2.0, 2.0)]                     # p_theta, mean, deviation
    for m, s in ((0.3, 0.4), (2.8, 0.5), (-6.0, 1.0)):
        KL = lambda ln_p: expectation(lambda x: ln_normal(x, m, s) - ln_p(x), m, s**2)
        mixed = KL(lambda x: np.logaddexp.reduce([math.log(w) + ln_normal(x, *theta) for w, *theta in priors]))
        slack = [KL(lambda x: ln_normal(x, *theta)) + math.log(1 / w) - mixed for w, *theta in priors]
        assert 0 <= min(slack) < 0.4 and 0 < mixed                                    # it holds, and is not idle


# --- R Eq. (18)-(21): losses ----------------------------------------------------------------------------------------

def test_R_eq18_loss_01_value():
    """At the edge the prediction still counts as a hit: the inequality in (18) is strict."""
    assert R.loss_01(1.0, np.array([1.5, 1.5000001, 0.5, 0.4999999, 1.0, -9.0]), 0.5).tolist() == [0, 1, 0, 1, 0, 1]


def test_R_eq19_loss_clipped_square_value():
    assert R.loss_clipped_square(1.0, np.array([1.0, 1.25, 0.75, 1.5, 7.0]), 0.5).tolist() == [0, 0.25, 0.25, 1, 1]


def test_R_eq20_loss_exp_value():
    r = np.array([0.25, -0.5, 1.0, 1e-20])
    assert_close(R.loss_exp(0.0, r, 0.5), [1 - math.exp(-0.25), 1 - math.exp(-1), 1 - math.exp(-4), 4e-40], 1e-15)
    assert_close(R.loss_exp(0.0, 1e-20, 0.5), 4e-40, 1e-15)                           # its digits survive, too


def test_R_eq21_loss_band_value():
    """Outside [r_-, r_+], whose ends belong to it; with r = y +- eps|y| the same as the 0-1 loss of goal eps|y|."""
    assert R.loss_band(0.0, np.array([-0.3, -0.31, 0.5, 0.51, 0.0]), -0.3, 0.5).tolist() == [0, 1, 0, 1, 0]
    y, yhat = np.array([4.0, -4.0, 4.0, -4.0, 0.0, 0.0]), np.array([4.9, -3.1, 5.1, -2.9, 0.0, 1e-9])
    assert R.loss_band(y, yhat, *R.relative_band(y, 0.25)).tolist() == [0, 0, 1, 1, 0, 1]
    assert R.relative_band(-4.0, 0.25) == (-5.0, -3.0)


def test_R_appC_loss_relative_value():
    """min, not max; at y = 0 everything but 0 has loss 1."""
    y, yhat = np.array([2.0, -2.0, 2.0, 2.0, 0.0, 0.0]), np.array([2.5, -1.5, 4.0, 99.0, 0.0, 1e-300])
    assert R.loss_relative(y, yhat).tolist() == [0.25, 0.25, 1, 1, 0, 1]
    assert R.loss_relative(y, yhat, 0.5).tolist() == [0.5, 0.5, 1, 1, 0, 1]


def test_R_appC_loss_relative_misprint():
    """Printed max{|yhat - y|/|y|, 1}: no prediction, not even the right one, is below 1, and there is no upper bound."""
    printed = lambda y, yhat: max(abs((yhat - y) / y), 1)
    assert printed(2.0, 2.0) == 1 and printed(2.0, 20.0) == 9
    assert R.loss_relative(2.0, 2.0) == 0 and R.loss_relative(2.0, 20.0) == 1


@pytest.mark.parametrize("loss", [R.loss_01, R.loss_clipped_square, R.loss_exp, R.loss_relative])
def test_R_eq18_eq21_losses_units(loss):
    """In [0, 1], quasi-convex in the prediction (up to a minimum at y, then up), and without units."""
    yhat = np.linspace(-3, 5, 801)
    value = loss(1.3, yhat, EPS)
    assert np.all((value >= 0) & (value <= 1))
    assert np.all(np.diff(value[yhat > 1.3]) >= 0) and np.all(np.diff(value[yhat < 1.3]) <= 0)
    assert_close(loss(3.9, 3 * yhat, EPS if loss is R.loss_relative else 3 * EPS), value, 3e-15)


# --- R Eq. (24)-(31): expected losses and their gradients -----------------------------------------------------------

@pytest.mark.parametrize("name", NAMES)
def test_R_eq24_expected_loss_value(name):
    """E loss at generic points, R Eq. (26)-(29), and its mean, R Eq. (1), (24), (25), against quadrature of the definition."""
    args = *GENERIC.values(), EPS
    want = quadrature(name, *args)[0]
    got = R.LOSSES[name][0](*args)
    assert max(relative_error(g, w) for g, w in zip(got, want)) < 5e-15
    assert_close(R.gibbs_risk(*args, name), np.mean(want), 1e-15)
    assert type(R.gibbs_risk(*args, name)) is float


@pytest.mark.parametrize("name", NAMES)
def test_R_eq24_gibbs_risk_range(name):
    """In [0, 1] whatever rounds, so that it can be handed to the bound: saturated predictions, 1 .. 1e4 goals wide."""
    s = EPS * 10 ** np.random.default_rng(6).uniform(0, 4, 2000)
    for u in (10 * s, -5 * s, 30 * s):
        risks = [R.gibbs_risk(np.ones(1), np.array([1 + u]), np.array([s**2]), EPS, name) for u, s in zip(u, s)]
        assert 0 <= min(risks) and max(risks) <= 1
    with np.errstate(over="ignore", invalid="ignore"):
        assert R.gibbs_risk(np.ones(1), np.ones(1), np.full(1, 1e-300), EPS, name) >= 0


@pytest.mark.parametrize("name", NAMES)
def test_R_eq31_expected_loss_grad(name):
    """Both partial derivatives at generic points: autograd of the shipped forward, differences, quadrature with the score."""
    y, mean, var = GENERIC.values()
    got = both(R.LOSSES[name][1](y, mean, var, EPS), mean, var)
    forward = lambda m, v: traced.LOSSES[name][0](y, m, v, EPS).sum()
    assert_close(got, both(autograd.grad(forward, (0, 1))(mean, var), mean, var), 1e-14)
    assert_close(got, both(quadrature(name, y, mean, var, EPS)[1:], mean, var), 1e-14)
    shipped = R.LOSSES[name][0]
    differences = (central_difference(lambda m: shipped(y, m, var, EPS).sum(), mean, 2e-3),
                   central_difference(lambda t: shipped(y, mean, var * np.exp(t), EPS).sum(), np.zeros(7), 1e-2) / var)
    assert_close(got, both(differences, mean, var), 1e-11)


def test_R_eq29_expected_band_loss_value():
    """A band that is not centred: against the two tails in 60 digits, and its gradient against differences."""
    y, mean, var = GENERIC.values()
    lower, upper = y - 0.2, y + 0.9
    tail = lambda u, v: exact_norm_cdf(u / Decimal(v).sqrt())
    want = [float(tail(Decimal(l) - Decimal(m), v) + tail(Decimal(m) - Decimal(u), v))
            for l, m, u, v in zip(lower, mean, upper, var)]
    assert_close(R.expected_band_loss(y, mean, var, lower, upper), want, 1e-15)
    d_mean, d_var = R.expected_band_loss_grad(y, mean, var, lower, upper)
    assert_close(d_mean, central_difference(lambda m: R.expected_band_loss(y, m, var, lower, upper).sum(), mean, 2e-3), 3e-12)
    grad = autograd.grad(lambda m, v: traced.expected_band_loss(y, m, v, lower, upper).sum(), (0, 1))(mean, var)
    assert_close(both((d_mean, d_var), mean, var), both(grad, mean, var), 1e-15)


@pytest.mark.parametrize("z", [-37.5, -37.0, -30.0, -20.0, -12.0, -8.0, -5.0, -2.0, -0.5, -1e-9, 0.0, 1e-9, 0.3, 1.0, 4.0, 8.0])
def test_R_eq30_norm_cdf_tail(z):
    """Phi keeps its digits down to 1e-300, against a series in 450 digits."""
    assert_close(R.norm_cdf(z), float(exact_norm_cdf(z)), 4e-16 + 4e-16 * z**2)


def test_R_eq30_norm_cdf_shape():
    """Any shape, integers, infinities; phi is its derivative."""
    z = np.linspace(-3, 3, 12)
    assert R.norm_cdf(z.reshape(3, 4)).shape == (3, 4) and R.norm_cdf(np.empty(0)).shape == (0,) and R.norm_cdf(0).shape == ()
    assert R.norm_cdf(np.array([-INF, INF, 0])).tolist() == [0, 1, 0.5]
    assert_close(R.norm_pdf(z), central_difference(lambda z: R.norm_cdf(z).sum(), z, 2e-2), 3e-11)


@pytest.mark.parametrize("s", [0.1, 0.04, 0.03, 0.0163])
def test_R_eq26_expected_01_loss_tail(s):
    """Losses of 1e-9 .. 1e-300 keep ten digits and more: against Phi in 450 digits. The printed 1 - Phi(b) would be 0."""
    y, mean = np.array([0.7, 0.7, -3.0]), np.array([0.7, 0.71, -3.005])
    got = R.expected_01_loss(y, mean, np.full(3, s**2), EPS)
    d_mean, _ = R.expected_01_loss_grad(y, mean, np.full(3, s**2), EPS)
    for y, m, g, d in zip(y.tolist(), mean.tolist(), got, d_mean):
        u, s_, e = Decimal(m) - Decimal(y), Decimal(s**2).sqrt(), Decimal(EPS)
        want = exact_norm_cdf((-e - u) / s_) + exact_norm_cdf((u - e) / s_)
        assert_close(float(g), float(want), 2e-12)
        if u:
            slope = ((-((e - u) / s_) ** 2 / 2).exp() - (-((e + u) / s_) ** 2 / 2).exp()) / s_ / Decimal(2 * math.pi).sqrt()
            assert_close(float(d), float(slope), 2e-12)
    assert s > 0.02 or max(got) < 1e-280


@pytest.mark.parametrize("ratio", [1e-3, 0.01, 0.03, 0.1, 0.3])
@pytest.mark.parametrize("name", NAMES)
def test_R_eq26_eq29_expected_loss_narrow(name, ratio):
    """s << eps: value and gradient against quadrature, each point by itself, so that small losses keep their digits."""
    y, s = np.full(5, 1.0), ratio * EPS
    mean, var = 1 + np.array([0.0, 0.15, -0.4, 0.59, 0.75]), np.full(5, s**2)
    value, *grad = quadrature(name, y, mean, var, EPS)
    got = R.LOSSES[name][0](y, mean, var, EPS)
    tol = 1e-14 / min(ratio, 0.1)                       # z = eps/s carries an error z ulp, the tail z^2 ulp
    for g, w in zip(got, value):
        assert (g == 0 or g < 1e-300) if w < 1e-300 else relative_error(g, w) < tol
    assert_close(both(R.LOSSES[name][1](y, mean, var, EPS), mean, var), both(grad, mean, var), tol)


@pytest.mark.parametrize("name, power", [("square", 2), ("exp", 2), ("relative", 1)])
def test_R_eq27_eq28_expected_loss_tiny(name, power):
    """Losses down to 1e-300: a prediction that is right to s << eps has E (r/eps)^2 = s^2/eps^2, E |r|/c = s/c sqrt(2/pi)."""
    y = one = np.array([1.0])
    for eps in (1e9, 1e40, 1e75, 1e150):
        want = eps**-2 if power == 2 else math.sqrt(2 / math.pi) / eps
        with np.errstate(over="ignore", invalid="ignore"):                # in the branch for s >> eps, which is not taken
            assert_close(R.LOSSES[name][0](y, y, one, eps)[0], want, 1e-15)


RATIOS = [1.0, 3.0, 10.0, 30.0, 49.0, 51.0, 100.0, 900.0, 1100.0, 1e4, 1e6]


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("name", NAMES)
def test_R_eq26_eq29_expected_loss_wide(name, ratio):
    """s >> eps, where all terms cancel and series take over: value against quadrature, gradient against it and autograd."""
    y, s = np.full(5, 1.0), ratio * EPS
    mean, var = 1 + s * np.array([0.0, 0.3, 1.0, -2.0, 4.0]), np.full(5, s**2)
    value, *want = quadrature(name, y, mean, var, EPS)
    assert_close(R.LOSSES[name][0](y, mean, var, EPS), value, {"square": 5e-13, "relative": 3e-14}.get(name, 1e-15))
    got = both(R.LOSSES[name][1](y, mean, var, EPS), mean, var)
    rounding = 1e-14 + 3e-15 * ratio                                        # of a difference of two densities
    assert_close(got, both(want, mean, var), {"exp": 1e-14, "square": 1e-10, "relative": 1e-11}.get(name, rounding))
    by_autograd = autograd.grad(lambda m, v: traced.LOSSES[name][0](y, m, v, EPS).sum(), (0, 1))(mean, var)
    assert_close(got, both(by_autograd, mean, var), {"square": 1e-10, "relative": 1e-11}.get(name, rounding))


@pytest.mark.parametrize("name", ["square", "relative"])
@pytest.mark.parametrize("ratio", [50.0, 1000.0])
def test_R_eq27_expected_loss_limit(name, ratio):
    """Value and gradient do not jump where the closed form hands over to the series."""
    f, f_grad = R.LOSSES[name]
    below, above = ((ratio * EPS * (1 + step)) ** 2 for step in (-1e-12, 1e-12))
    y, mean = np.full(3, 1.0), 1 + ratio * EPS * np.array([0.1, 1.0, 2.0])
    assert_close(f(y, mean, below, EPS), f(y, mean, above, EPS), 1e-12)
    assert_close(both(f_grad(y, mean, below, EPS), mean, below), both(f_grad(y, mean, above, EPS), mean, above), 1e-10)


@pytest.mark.parametrize("name", ["band", "relative"])
def test_R_eq29_expected_relative_loss_zero_target(name):
    """y = 0: a relative goal cannot be met, the loss is 1 and flat; without a warning."""
    y, mean, var = np.zeros(3), np.array([0.0, 0.3, -40.0]), np.array([1e-8, 1.0, 1e8])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert R.LOSSES[name][0](y, mean, var, EPS).tolist() == [1, 1, 1]
        assert np.all(np.abs(R.LOSSES[name][1](y, mean, var, EPS)) < 1e-290)


@pytest.mark.parametrize("name", NAMES)
def test_R_eq26_eq29_expected_loss_units(name):
    """y, mean, eps in a unit a third as large, var in its square: the same losses; the gradients scale."""
    y, mean, var = GENERIC.values()
    f, f_grad = R.LOSSES[name]
    eps = EPS if name in ("band", "relative") else 3 * EPS
    assert_close(f(3 * y, 3 * mean, 9 * var, eps), f(y, mean, var, EPS), 2e-15)
    d_mean, d_var = f_grad(3 * y, 3 * mean, 9 * var, eps)
    assert_close(both((3 * d_mean, 9 * d_var), mean, var), both(f_grad(y, mean, var, EPS), mean, var), 1e-14)


@pytest.mark.parametrize("name", NAMES)
def test_R_eq26_eq29_expected_loss_symmetry(name):
    """Mirrored prediction, same loss; one point at a time or all at once, scalar or array eps, same numbers."""
    y, mean, var = GENERIC.values()
    f = R.LOSSES[name][0]
    assert_close(f(-y, -mean, var, EPS), f(y, mean, var, EPS), 2e-15)
    assert np.array_equal(f(y, mean, var, np.full(7, EPS)), f(y, mean, var, EPS))
    assert np.array_equal([f(y[i], mean[i], var[i], EPS) for i in range(7)], f(y, mean, var, EPS))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", ["var", "eps"])
@pytest.mark.parametrize("bad", [0.0, -1.0, NAN])
def test_R_eq26_eq29_expected_loss_errors(name, key, bad):
    """var and eps that are not positive are named, also where only one entry is bad."""
    good = dict(GENERIC, eps=np.full(7, EPS))
    good[key] = np.where(np.arange(7) == 4, bad, good[key])
    with pytest.raises(ValueError, match=key):
        R.LOSSES[name][0](**good)


def test_R_eq29_expected_band_loss_errors():
    with pytest.raises(ValueError, match="var"):
        R.expected_band_loss(0.0, 0.0, np.array([1.0, 0.0]), -1.0, 1.0)


POINT = dict(y=0.3, mean=0.1, var=0.25)


def test_R_eq27_expected_clipped_square_loss_misprint():
    """Printed (27) has the wrong sign at its first boundary term."""
    y, mean, var = POINT.values()
    s, w, Phi = math.sqrt(var), y - mean, lambda z: float(R.norm_cdf(z))
    front = s / (math.sqrt(2 * math.pi) * EPS**2)
    boundary = lambda sign: front * (w - sign * EPS) * math.exp(-((w + sign * EPS) ** 2) / (2 * var))
    core = (1 - (w**2 + var) / EPS**2) * (Phi((w - EPS) / s) - Phi((w + EPS) / s)) + 1
    truth = quadrature("square", y, mean, var, EPS)[0, 0]
    assert abs(core - boundary(1) - boundary(-1) - truth) > 0.1                       # as printed
    assert_close(core + boundary(1) - boundary(-1), truth, 2e-15)                     # with one sign turned
    assert_close(R.expected_clipped_square_loss(**POINT, eps=EPS), truth, 2e-15)


def test_R_eq28_expected_exp_loss_misprint():
    """Printed (28) has the standard deviation for the variance in the exponent: its units do not agree either."""
    y, mean, var = POINT.values()
    form = lambda y, mean, var, x, eps: 1 - (1 + 2 * var / eps**2) ** -0.5 * math.exp(-((y - mean) ** 2) / (2 * x + eps**2))
    printed = lambda y, mean, var, eps: form(y, mean, var, math.sqrt(var), eps)
    truth = quadrature("exp", y, mean, var, EPS)[0, 0]
    assert abs(printed(y, mean, var, EPS) - truth) > 0.01
    assert abs(printed(3 * y, 3 * mean, 9 * var, 3 * EPS) - printed(y, mean, var, EPS)) > 0.005
    assert_close(form(y, mean, var, var, EPS), truth, 2e-15)
    assert_close(R.expected_exp_loss(**POINT, eps=EPS), truth, 2e-15)


def test_R_eq31_expected_01_loss_misprint():
    """Printed (31) lacks 1/sqrt(2 pi): it is 2.5066 times the derivative."""
    y, mean, var = POINT.values()
    s = math.sqrt(var)
    a, b = (y - EPS - mean) / s, (y + EPS - mean) / s
    printed = -math.exp(-a * a / 2) / s + math.exp(-b * b / 2) / s                    # da/dmean = db/dmean = -1/s
    truth = quadrature("01", y, mean, var, EPS)[1, 0]
    assert_close(printed / truth, math.sqrt(2 * math.pi), 1e-14)
    assert_close(R.expected_01_loss_grad(**POINT, eps=EPS)[0], truth, 1e-14)


# --- R Eq. (32): mini-batches ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", NAMES)
def test_R_eq32_gibbs_risk_unbiased(name):
    """The mean over all 35 batches of 3 of 7 rows is the training risk."""
    args = list(GENERIC.values())
    batches = [R.gibbs_risk(*(a[list(rows)] for a in args), EPS, name) for rows in itertools.combinations(range(7), 3)]
    assert len(batches) == 35 and np.ptp(batches) > 0.1
    assert_close(np.mean(batches), R.gibbs_risk(*args, EPS, name), 1e-15)


def test_R_eq32_pac_objective_biased():
    """kl^-1 bends, so the mean of mini-batch bounds is not the bound: why the certificate uses all rows."""
    args = list(GENERIC.values())
    values = [R.pac_objective(*(a[list(rows)] for a in args), 0.8, EPS, N=7)[0] for rows in itertools.combinations(range(7), 3)]
    assert abs(np.mean(values) - R.pac_objective(*args, 0.8, EPS)[0]) > 1e-3


@pytest.mark.parametrize("B, N", [(10, 30), (40, 120)])
def test_R_eq32_hoeffding_term_coverage(B, N):
    """Of 0-1 losses, |R_S - R_B| exceeds the term at most delta often, half the term more often. Exact, for every R_S = K/N.

    The batch risk is hypergeometric where rows are drawn without replacement, binomial where with.
    """
    delta, comb = 0.1, math.comb
    without = lambda K, k: comb(K, k) * comb(N - K, B - k) / comb(N, B)
    replaced = lambda K, k: comb(B, k) * (K / N) ** k * (1 - K / N) ** (B - k)
    for weight in (without, replaced):
        failure = lambda K, radius: sum(weight(K, k) for k in range(B + 1) if abs(k / B - K / N) > radius)
        worst = lambda radius: max(failure(K, radius) for K in range(N + 1))
        assert worst(R.hoeffding_term(B, delta)) <= delta < worst(R.hoeffding_term(B, delta) / 2)


def test_R_eq32_hoeffding_term_value():
    assert_close(R.hoeffding_term(50, 0.01), math.sqrt(math.log(200) / 100), 1e-15)
    for B, delta, name in ((0, 0.1, "B"), (NAN, 0.1, "B"), (10, 1.5, "delta"), (10, NAN, "delta"), (10, 0, "delta")):
        with pytest.raises(ValueError, match=f"^{name} must"):
            R.hoeffding_term(B, delta)


# --- R Sec. 3.1: the SE kernel and matrix leaves --------------------------------------------------------------------

def loop_kernel(X1, X2, ln_theta):
    """The formula below R Eq. (8), one entry at a time."""
    l2 = [math.exp(ln_theta[k] if len(ln_theta) > 2 else ln_theta[0]) for k in range(X1.shape[1])]
    entry = lambda x1, x2: math.exp(ln_theta[-1]) * math.exp(-sum((a - b) ** 2 / l for a, b, l in zip(x1, x2, l2)) / 2)
    return np.array([[entry(x1, x2) for x2 in X2.tolist()] for x1 in X1.tolist()])


def kernel_inputs(T):
    """X1 (5, 3), X2 (4, 3) and ln theta with T = 4 (ARD) or 2."""
    rng, ln_theta = np.random.default_rng(2), np.array([0.3, -0.4, 0.8, 0.5])
    return rng.standard_normal((5, 3)), rng.standard_normal((4, 3)), ln_theta if T == 4 else ln_theta[[0, 3]]


@pytest.mark.parametrize("T", [2, 4])
def test_R_sec31_se_kernel_value(T):
    """Against loops over the paper's formula, ARD and not; and far from the origin, where differences lose no digit."""
    X1, X2, ln_theta = kernel_inputs(T)
    assert_close(R.se_kernel(X1, X2, ln_theta), loop_kernel(X1, X2, ln_theta), 1e-15)
    far = np.array([1e6, -1e6, 3e5])
    assert_close(R.se_kernel(X1 + far, X2 + far, ln_theta), loop_kernel(X1 + far, X2 + far, ln_theta), 1e-15)


def test_R_sec31_se_kernel_limit():
    """Symmetric, sigma_s^2 on the diagonal; one column: both kernels are one; no row; 2-D equal lengthscales: ARD is not."""
    X1, X2, ln_theta = kernel_inputs(4)
    K = R.se_kernel(X1, X1, ln_theta)
    assert np.max(np.abs(K - K.T)) < 1e-15 and np.max(np.abs(np.diag(K) / math.exp(0.5) - 1)) < 2e-15
    assert_close(R.se_kernel(X1, X2, np.array([0.3, 0.3, 0.3, 0.5])), R.se_kernel(X1, X2, np.array([0.3, 0.5])), 1e-15)
    assert R.se_kernel(np.empty((0, 3)), X2, ln_theta).shape == (0, 4)


def test_R_sec31_se_kernel_units():
    """Inputs times 3 and l^2 times 9: no change. sigma_s^2 times 9: K times 9."""
    X1, X2, ln_theta = kernel_inputs(4)
    K = R.se_kernel(X1, X2, ln_theta)
    assert_close(R.se_kernel(3 * X1, 3 * X2, ln_theta + math.log(9) * np.array([1, 1, 1, 0])), K, 2e-15)
    assert_close(R.se_kernel(X1, X2, ln_theta + math.log(9) * np.array([0, 0, 0, 1])), 9 * K, 2e-15)


def test_R_sec31_se_kernel_errors():
    X1, X2, ln_theta = kernel_inputs(4)
    for args in ((X1, X2, ln_theta[1:]), (X1, X2[:, :2], ln_theta), (X1, X2, np.append(ln_theta, 0)), (X1, X2, ln_theta[:1])):
        with pytest.raises(ValueError, match="columns"):
            R.se_kernel(*args)


@pytest.mark.parametrize("T", [2, 4])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_R_sec31_se_kernel_back_grad(T, offset):
    """d_ln_theta, d_X2, and d_X1 by exchange, against autograd of the shipped kernel and differences of the looped one."""
    X1, X2, ln_theta = kernel_inputs(T)
    X1, X2, d_K = X1 + offset, X2 + offset, np.random.default_rng(3).standard_normal((5, 4))
    K = R.se_kernel(X1, X2, ln_theta)
    d_ln_theta, d_X2 = R.se_kernel_back(d_K, K, X1, X2, ln_theta)
    same, d_X1 = R.se_kernel_back(d_K.T, K.T, X2, X1, ln_theta)
    loops = lambda *a: np.sum(d_K * loop_kernel(*a))
    got, differences = (d_ln_theta, d_X2, d_X1), (central_difference(lambda t: loops(X1, X2, t), ln_theta),
                                                   central_difference(lambda x: loops(X1, x, ln_theta), X2),
                                                   central_difference(lambda x: loops(x, X2, ln_theta), X1))
    by_autograd = autograd.grad(lambda t, x2, x1: np.sum(d_K * traced.se_kernel(x1, x2, t)), (0, 1, 2))(ln_theta, X2, X1)
    for g, a, d in zip(got, by_autograd, differences):
        assert_close(g, a, 2e-14)
        assert_close(g, d, 3e-12 if offset == 0 else 1e-9)
    assert_close(same, d_ln_theta, 1e-14)


def test_R_sec31_cholesky_errors():
    """The factor, or an error that names the matrix and the likely reasons."""
    A = np.array([[4.0, 2.0], [2.0, 5.0]])
    assert_close(R.cholesky(A, "A"), [[2.0, 0.0], [1.0, 2.0]], 1e-15)
    with pytest.raises(ValueError, match="^K_MM is not positive definite: .*variance.*lengthscale"):
        R.cholesky(A - 5 * np.eye(2), "K_MM")


def exact_tri_inv(L):
    """L^-1 by forward substitution in 60 digits."""
    n, L = len(L), [[Decimal(v) for v in row] for row in L.tolist()]
    out = np.zeros((n, n))
    for j in range(n):
        x = [Decimal(0)] * n
        for i in range(j, n):
            x[i] = ((i == j) - sum(L[i][k] * x[k] for k in range(j, i))) / L[i][i]
        out[:, j] = [float(v) for v in x]
    return out


@pytest.mark.parametrize("n, jitter", [(1, 1e-8), (30, 1e-8), (48, 1e-2), (49, 1e-8), (100, 1e-8), (100, 1e-10)])
def test_R_sec31_tri_inv_value(n, jitter):
    """Factors of kernel matrices of condition up to 6e11, against exact substitution: the error is of order cond(L) ulp."""
    x = np.linspace(0, 3, n)[:, None]
    L = R.cholesky(R.se_kernel(x, x, np.zeros(2)) + jitter * np.eye(n), "K")
    Linv = R.tri_inv(L)
    assert_close(Linv, exact_tri_inv(L), 2e-15 * np.linalg.cond(L))
    assert np.array_equal(Linv, np.tril(Linv))


# --- R Sec. 3.1: the grid of theta ----------------------------------------------------------------------------------

@pytest.mark.parametrize("grid", [(6.0, 1200), (6.0, 10), (2.0, 7), (0.5, 1)])
def test_R_sec31_round_to_grid_value(grid):
    """The nearest of the G+1 points by brute force; beyond the edge the edge; rounding again changes no bit."""
    L, G = grid
    points = np.array([-L + 2 * L * i / G for i in range(G + 1)])
    ln_theta = np.random.default_rng(4).uniform(-1.3 * L, 1.3 * L, 500)
    want = points[np.argmin(np.abs(ln_theta[:, None] - points), axis=1)]
    got = R.round_to_grid(ln_theta, grid)
    assert np.max(np.abs(got - want)) < 4e-15 and np.array_equal(R.round_to_grid(got, grid), got)
    assert np.array_equal(R.round_to_grid(np.array([-99.0, 99.0, -L, L]), grid), [-L, L, -L, L])


def test_R_sec31_round_to_grid_digits():
    """The paper's grid is two decimals in [-6, 6]."""
    assert np.max(np.abs(R.round_to_grid(np.array([0.123, -2.718, 5.999, 7.0])) - [0.12, -2.72, 6.0, 6.0])) < 1e-15


def test_R_sec31_ln_grid_size_golden():
    """The paper's numbers: 7.1 (d+1) with ARD, 14.2 without. G counts intervals: |grid| = (G+1)^T."""
    assert [round(R.ln_grid_size(T) / T, 1) for T in (2, 9, 27)] == [7.1, 7.1, 7.1] and round(R.ln_grid_size(2), 1) == 14.2
    assert_close(R.ln_grid_size(3, (6.0, 4)), math.log(len(list(itertools.product(range(5), repeat=3)))), 1e-15)


@pytest.mark.parametrize("name, rows, T, printed", [("pol", 15000, 27, 0.0160), ("kin40k", 40000, 9, 0.0020)])
def test_R_sec4_ln_grid_size_golden(name, rows, T, printed):
    """The penalty per row in the paper's tables, from the number of columns and 80 % of the rows."""
    assert round(R.ln_grid_size(T) / (0.8 * rows), 4) == printed
    table = np.loadtxt(data_file(name + ".csv.gz"), delimiter=",")
    assert table.shape == (rows, T)                                                    # d inputs and y: d + 1 = T


def test_R_sec4_ln_grid_size_misprint():
    """sarcos: 14.18 nats over 39146 rows is .0004; the print has .0003."""
    assert round(R.ln_grid_size(2), 2) == 14.18 and round(R.ln_grid_size(2) / 39146, 4) == 0.0004


# --- house rules: Needs lines, copying one function, the equation map ----------------------------------------------

class Source:
    """What a module defines, from its text: top-level names, their lines, and the names of the module each of them uses."""

    def __init__(self, module):
        self.module, self.text = module, pathlib.Path(module.__file__).read_text()
        self.nodes = {}
        for node in ast.parse(self.text).body:
            for target in node.targets if isinstance(node, ast.Assign) else [node]:
                name = getattr(target, "name", getattr(target, "id", None))
                if name:
                    self.nodes[name] = node
        self.functions = [n for n, node in self.nodes.items() if isinstance(node, ast.FunctionDef)]
        lines = self.text.splitlines(keepends=True)
        self.segments = {n: "".join(lines[node.lineno - 1:node.end_lineno]) for n, node in self.nodes.items()}

    def uses(self, name):
        """Names of the module that a definition needs, itself apart: from its bytecode, defaults, decorators; or its value."""
        node = self.nodes[name]
        if name in self.functions:
            outside = node.args.defaults + [d for d in node.args.kw_defaults if d] + node.decorator_list
            found = code_globals(getattr(self.module, name).__code__)
        else:
            outside, found = [node], set()
        found = found | {n.id for part in outside for n in ast.walk(part) if isinstance(n, ast.Name)}
        return (found & set(self.nodes)) - {name}

    def declared(self, name):
        """Names on the docstring's `Needs:` line, which may run on after a comma."""
        doc = ast.get_docstring(self.nodes[name]) or ""
        match = re.search(r"Needs:((?:[^\n]*,\s*\n)*[^\n]*)", doc)
        return set(re.split(r"\s*,\s*", match[1].strip())) if match else set()

    def closure(self, name):
        """The definition and all it needs, by what docstrings declare (and constants contain), in the module's order."""
        todo, seen = [name], set()
        while todo:
            n = todo.pop()
            if n in self.nodes and n not in seen:
                seen.add(n)
                todo.extend(self.declared(n) if n in self.functions else self.uses(n))
        return [n for n in self.nodes if n in seen]

    def copy(self, name):
        """Namespace in which the definition was executed from its own lines and its needs' alone."""
        space = {"__name__": "copied"}
        exec("import math, warnings\nimport numpy as np\nfrom typing import NamedTuple", space)
        for n in self.closure(name):
            exec(self.segments[n], space)
        return space


def code_globals(code):
    """Global names a code object reads, those of the functions inside it included."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(code_globals(c) for c in code.co_consts if isinstance(c, types.CodeType)))


def lying_needs(source):
    """One line per function whose `Needs:` line is not the set of names its bytecode and defaults use."""
    lies = []
    for name in source.functions:
        uses, declared = source.uses(name), source.declared(name) - {name}
        if uses != declared:
            lies.append(f"{name}: missing {sorted(uses - declared)}, not needed {sorted(declared - uses)}")
    return lies


SOURCE = Source(R)


def test_R_house_needs_lines_are_true():
    lies = lying_needs(SOURCE)
    assert not lies, f"{len(lies)} Needs lines lie:\n" + "\n".join(lies)


def test_R_house_needs_check_rejects(tmp_path):
    """Check the checker: a missing name, a name too many, a name used in a nested function and one in a default are found."""
    text = '''
A = 1
B = 2
C = 3
def good(x=C):
    """Needs: C, inner,
    B"""
    return [B + inner(x) for _ in range(2)]
def inner(x): return x
def missing():
    """Says nothing."""
    return C
def extra():
    """Needs: inner"""
def nested():
    """Needs: inner"""
    return lambda: inner(C)
def default(x=C):
    """Copy me."""
'''
    path = tmp_path / "m.py"
    path.write_text(text)
    module = types.ModuleType("m")
    module.__file__ = str(path)
    exec(text, module.__dict__)
    assert [line.split(":")[0] for line in lying_needs(Source(module))] == ["missing", "extra", "nested", "default"]


@pytest.mark.parametrize("name", SOURCE.functions)
def test_R_house_copy_is_complete(name):
    """Copied with what the Needs lines name, every global that could be reached is there."""
    space = SOURCE.copy(name)
    used = set().union(*(code_globals(v.__code__) for v in space.values() if isinstance(v, types.FunctionType)))
    missing = {n for n in used if n in SOURCE.nodes and n not in space}
    assert not missing, f"{name} copied with its needs lacks {sorted(missing)}"


def copy_calls():
    """name -> arguments, for bounds, losses, kernel and grid."""
    X1, X2, ln_theta = kernel_inputs(4)
    y, mean, var = GENERIC.values()
    K, risk, point = R.se_kernel(X1, X2, ln_theta), (0.1, 3.0, 50), (y, mean, var, EPS)
    calls = {
        "check_array": ("y", [1, 2], 1), "check_data": (X1, X1[:, 0]), "check_scalar": ("delta", 0.1, 0, 1),
        "x_minus_log1p": (var,), "binary_kl": (0.1, 0.3), "kl_inv": (0.1, 0.3), "kl_inv_grad": (0.1, 0.3),
        "ln_confidence": (50, 0.1, True), "pac_bayes_bound": risk, "pac_bayes_bound_grad": risk, "pinsker_bound": risk,
        "pinsker_bound_grad": risk, "bayes_risk_bound": (0.2,), "norm_cdf": (mean,), "norm_pdf": (mean,),
        "loss_band": (y, mean, y - 1, y + 1), "relative_band": (y, EPS), "expected_band_loss": (y, mean, var, y - 1, y + 1),
        "expected_band_loss_grad": (y, mean, var, y - 1, y + 1), "gibbs_risk": point, "hoeffding_term": (10, 0.1),
        "pac_objective": (y, mean, var, 1.0, EPS), "se_kernel": (X1, X2, ln_theta), "se_kernel_back": (K, K, X1, X2, ln_theta),
        "cholesky": (np.eye(3), "I"), "tri_inv": (np.tril(np.ones((60, 60))),), "round_to_grid": (ln_theta,),
        "ln_grid_size": (3,)}
    for name in ("01", "clipped_square", "exp", "relative"):
        calls[f"loss_{name}"] = (y, mean, EPS)
        calls[f"expected_{name}_loss"] = calls[f"expected_{name}_loss_grad"] = point
    calls["expected_relative_band_loss"] = calls["expected_relative_band_loss_grad"] = point
    return calls


COPY_CALLS = copy_calls()


@pytest.mark.parametrize("name", COPY_CALLS)
def test_R_house_copy_runs(name):
    """Copied with what its Needs line names, and run: the same numbers to the last bit."""
    args = COPY_CALLS[name]
    got, want = SOURCE.copy(name)[name](*args), getattr(R, name)(*args)
    for g, w in zip(*((v if isinstance(v, tuple) else (v,)) for v in (got, want)), strict=True):
        assert np.array_equal(g, w)


@pytest.mark.parametrize("name", COPY_CALLS)
def test_R_house_arguments_are_not_written(name):
    """Read-only arrays pass through every function: an argument is never written to."""
    def frozen(a):
        if isinstance(a, np.ndarray):
            a = a.copy()
            a.setflags(write=False)
        return a
    getattr(R, name)(*map(frozen, COPY_CALLS[name]))


def claimed_equations(text):
    """Numbers n cited as `R Eq. (n)` in docstrings and comments, lists and ranges included, the module docstring apart."""
    tree = ast.parse(text)
    prose = [ast.get_docstring(n) or "" for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    prose += [t.string for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == tokenize.COMMENT]
    lists = [m[0] for p in prose for m in re.finditer(r"R Eq\.\s+\(\d+\)(?:(?:,|;| and|-|, and)\s*\(\d+\))*", p)]
    return set().union(*(equation_numbers(part) for part in lists))


def equation_numbers(text):
    """{3, 4, 15, 16, 17} of "(3), (4) and (15)-(17)"."""
    numbers = set(map(int, re.findall(r"\((\d+)\)", text)))
    for first, last in re.findall(r"\((\d+)\)-\((\d+)\)", text):
        numbers |= set(range(int(first), int(last) + 1))
    return numbers


def test_R_house_equation_map_is_complete():
    """Every R Eq. (1) .. (34) is cited where it is implemented, or heads a clause of the list of those without code."""
    listed = re.search(r"Equations without code of their own: (.*)", R.__doc__, re.S)[1]
    without_code = equation_numbers(" ".join(re.findall(r"(?:^|[;,.]\s)(\(\d+\)(?:-\(\d+\))?)", listed)))
    claimed, wanted = claimed_equations(SOURCE.text), set(range(1, 35))
    assert claimed | without_code == wanted, f"missing {wanted - claimed - without_code}, unknown {claimed - wanted}"
    assert without_code == {2, 7, 15, 16, 17} and not claimed & without_code


def test_R_house_equation_map_rejects():
    """Check the checker: lists and ranges are read, text without R Eq. and strings are not."""
    text = '''
def f():
    """Right; R Eq. (3), (4) and (6)-(8); see (9) and J Eq. (10)."""
    return "R Eq. (11)"     # R Eq. (12)
'''
    assert claimed_equations(text) == {3, 4, 6, 7, 8, 12}
