"""The equations of R (Reeb et al. 2018) against their definitions computed another way."""

import itertools
import math
from decimal import Decimal, localcontext

import numpy as np
from numpy.random import default_rng
import pytest

import pacgp_ref as R
import predictive as J
from beyond import blocks, kernels
from test_ref import as_tuple
from tests.dense import (
    dense_dual, dense_eq09, dense_eq11, dense_full_gp, dense_K_MM, dense_kernel, eigen_eq08,
    gaussian_kl, ln_normal, lower_inverse)
from tests.oracles import (
    assert_all_close, assert_close, central_difference, DEFINITIONS, each, EPS, exact_kl,
    exact_kl_inv, exact_norm_cdf, exact_xi, expectation, GENERIC, INF, NAMES, NAN, quadrature,
    refuses)
from tests.problems import drawn, kernel_case, KERNELS, pac_objective, problem, WAVES

SMALL = 10.0 ** np.array([-300, -100, -20, -12, -8, -5, -3])
UNIT = [0.0, *SMALL, 0.01, 0.05, *np.linspace(0.1, 0.9, 9), 0.95, 0.99, *(1 - SMALL[3:]), 1.0]
NATS = [*10.0 ** np.arange(-10, 3), 0.03, 0.3, 0.5, 2.0, 5.0, 20.0, 36.0, 300.0, 700.0, INF]


# --- R (1)-(3), Sec. 2, App. A: risks, kl and its inverse ------------------------------------


@each("name", NAMES)
def test_R_sec21_bayes_risk_bound_value(name):
    """R_Bay <= 2 R: no Gaussian prediction's expected loss is below half the loss of its mean."""
    misses = np.linspace(-2, 2, 81) + 1e-9
    y, u, var = map(np.ravel, np.meshgrid([0.7, -1.5], misses, [1e-6, 1e-3, 0.1, 1.0, 30.0]))
    c = EPS * np.abs(y) if name in R.RELATIVE_LOSSES else EPS
    at_mean = DEFINITIONS[name][0](u, c)
    expected = R.LOSSES[name](y, y + u, var, EPS)[0]
    assert np.all(at_mean <= 2 * expected * (1 + 1e-12))
    assert np.all(R.bayes_risk_bound(np.array([0.1, 0.5, 0.7])) == [0.2, 1.0, 1.0])


def test_R_sec22_binary_kl_value():
    """Full accuracy on all pairs, also where p is next to q; kl(q||q) = 0 exactly; infinite where Q
    has mass that P has not.
    """
    shifts = (1e-13, -1e-13, 1e-9, -1e-9, 1e-4)
    near = [(q, q * (1 + s)) for q in UNIT for s in shifts if q * (1 + s) <= 1]
    q, p = np.array([*itertools.product(UNIT, UNIT), *near]).T
    got = R.binary_kl(q, p)
    want = [float(exact_kl(*pair)) for pair in zip(q.tolist(), p.tolist())]
    assert want.count(INF) == 2 * (len(UNIT) - 1)
    assert all(
        g == w if w in (0, INF) else abs(g - w) < 2e-15 * w + 1e-306 for g, w in zip(got, want))
    assert R.binary_kl(np.array(UNIT)[:, None], UNIT).shape == (len(UNIT), len(UNIT))


def test_R_eq03_kl_inv_limit():
    """Corners; a float for scalars, arrays broadcast."""
    q = np.array(UNIT)
    eps = np.array(NATS)
    for got, want in ((R.kl_inv(1, eps), 1), (R.kl_inv(q, 0), q), (R.kl_inv(q, INF), 1)):
        assert np.all(got == want)
    assert type(R.kl_inv(0.1, 0.1)) is type(R.kl_inv(0, 0)) is float
    assert R.kl_inv(q[:, None], eps)[3, 7] == R.kl_inv(q[3], eps[7])
    assert R.kl_inv([], []).shape == (0,)


# --- R (4), (5): the bounds ------------------------------------------------------------------


@each("N", [*range(1, 13), 20, 37, 60, 10000])
def test_R_eq04_ln_confidence_exact(N):
    """xi=True: never below ln(xi(N)/delta), and at most N ulp above; the printed constant
    otherwise, which is at most ln(2 sqrt(2/pi)) = 0.47 nats larger.
    """
    xi = exact_xi(N)
    assert -1e-15 < math.log(2 * math.sqrt(N) / float(xi)) < math.log(2 * math.sqrt(2 / math.pi))
    for delta in (1.0, 0.3, 0.05, 0.01, 1e-6):
        above = Decimal(R.ln_confidence(N, delta, xi=True)) - (xi / Decimal(delta)).ln()
        assert 0 <= above < 1e-15 * N + 1e-14
        assert_close(R.ln_confidence(N, delta), math.log(2 * math.sqrt(N) / delta), 1e-15)


def test_R_eq05_pac_bayes_bound_limit():
    """What rounding leaves of KL or penalty below 0 counts as 0; the paper's delta, no penalty and
    2 sqrt(N) by default.
    """
    for f in (R.pac_bayes_bound, R.pac_bayes_bound_grad, R.pinsker_bound, R.pinsker_bound_grad):
        assert np.array_equal(f(0.1, -5e-10, 50, 0.05, -5e-10), f(0.1, 0.0, 50, 0.05, 0.0))
        assert f(0.1, 5.0, 100) == f(0.1, 5.0, 100, 0.01, 0.0, False)


@each("name", R.BOUNDS)
def test_R_eq04_eq05_eq14_every_bound_is_a_bound(name):
    """A row of BOUNDS is never below kl^-1, in 60 digits; its derivatives are its own."""
    value, grad = R.BOUNDS[name]
    for risk, KL, N, xi in itertools.product(
        (0.0, 0.02, 0.2, 0.4), (0.0, 1.0, 20.0), (20, 50), (False, True)):
        terms = dict(N=N, delta=0.05, penalty=1.0, xi=xi)
        paid = KL + 1 + math.log((float(exact_xi(N)) if xi else 2 * math.sqrt(N)) / 0.05)
        B = value(risk, KL, **terms)
        assert B >= 1 or exact_kl(risk, B) >= paid / N * (1 - 1e-12)
        if risk and KL and B < 1:
            d_risk, d_KL = grad(risk, KL, **terms)
            by_risk = central_difference(lambda q: value(q, KL, **terms), risk, 1e-4)
            assert_close(d_risk, by_risk, 1e-6)
            by_KL = central_difference(lambda v: value(risk, v, **terms), KL, 1e-2)
            assert_close(d_KL, by_KL, 1e-8)


# --- R Sec. 3.1: matrix leaves, the grid of theta ------------------------------------------------


@each(
    "n, jitter",
    [(1, 1e-8), (30, 1e-8), (48, 1e-2), (49, 1e-8), (100, 1e-8), (100, 1e-10), (300, 1e-8)])
def test_R_sec31_tri_inv_value(n, jitter):
    """Factors of kernel matrices of condition up to 6e11: as by substitution X L = A to |X| |L|
    ulp, and L^-1 L = I to cond(L) 1e-16, where a product form alone is 1e5 times worse.
    """
    x = np.linspace(0, 3 if n <= 100 else 10, n)[:, None]
    L = R.cholesky(R.se_kernel(x, x, np.zeros(2))[0] + jitter * np.eye(n), "K")
    A = default_rng(n).standard_normal((5, n))
    Linv = R.tri_inv(L)
    X = R.solve_triangle(A, L, Linv)
    cond = np.linalg.cond(L)
    assert np.array_equal(Linv, np.tril(Linv))
    assert_close(Linv @ L, np.eye(n), 1e-16 * cond + 1e-15)
    assert np.max(np.abs(X @ L - A)) < 1e-14 * np.max(np.abs(X) @ np.abs(L))


@each("grid", [(6.0, 1200), (6.0, 10), (2.0, 7), (0.5, 1)])
def test_R_sec31_round_to_grid_value(grid):
    """The nearest of the G+1 points by brute force; beyond the edge the edge; rounding again
    changes no bit.
    """
    L, G = grid
    points = np.array([-L + 2 * L * i / G for i in range(G + 1)])
    ln_theta = default_rng(4).uniform(-1.3 * L, 1.3 * L, 500)
    want = points[np.argmin(np.abs(ln_theta[:, None] - points), axis=1)]
    got = R.round_to_grid(ln_theta, grid)
    assert np.max(np.abs(got - want)) < 4e-15
    assert np.array_equal(R.round_to_grid(got, grid), got)


def test_R_sec31_sec4_ln_grid_size_golden():
    """|grid| = (G+1)^T; over 80 % of the rows of pol the penalty of the paper's tables. The paper's
    grid is two decimals in [-6, 6].
    """
    got = R.round_to_grid(np.array([0.123, -2.718, 5.999, 7.0]))
    assert np.max(np.abs(got - [0.12, -2.72, 6.0, 6.0])) < 1e-15
    assert round(R.ln_grid_size(27) / 12000, 4) == 0.0160
    assert_close(R.ln_grid_size(3, (6.0, 4)), math.log(5**3), 1e-15)


# --- R (6)-(8): full GP ----------------------------------------------------------------------


def test_R_eq08_eq07_full_gp_value_kl_of_processes():
    """Adding inputs without data leaves the KL of the joint at KL(Q(f_N)||P(f_N)); leaving data
    inputs out lowers it.
    """
    X, y, _, ln_theta, ln_noise = problem(N=14)
    ln_theta = ln_theta - [1, 1, 1, 0]  # short lengthscales: K is well-conditioned
    (_, _, KL), _ = R.full_gp(X, y, ln_theta, ln_noise)
    more = np.vstack([X, default_rng(6).standard_normal((8, 3))])

    def kl_at(A):
        Q = dense_full_gp(X, y, ln_theta, ln_noise, A)
        P = np.zeros(len(A)), dense_kernel(A, A, ln_theta)
        return gaussian_kl(*Q, *P)

    assert_close(KL, kl_at(more), 1e-13)
    assert kl_at(more[5:]) < 0.9 * KL


# --- R (9)-(11): sparse GP -------------------------------------------------------------------


def test_R_eq09_eq10_eq11_eq22_eq23_sparse_gp_value():
    """Marginals (9), (22), (23) and KL (10) for any (a_M, B_MM), whitened, and for (11), as by
    sparse_predict: every printed formula on dense matrices. (11) in N x N form as well, without an
    M x M inverse. Of L_S only S counts: a column may change its sign.
    """
    for case in map(drawn, range(12)):
        p = case.p
        X, Z, ln_theta, c, L_S = case.X, p["Z"], p["ln_theta"], p["m"], p["L_S"]
        args = X, case.y, Z, ln_theta, p["ln_noise"], p["alpha"]
        K_MM = dense_K_MM(Z, ln_theta)
        L = np.linalg.cholesky(K_MM)
        Linv = np.linalg.inv(L)
        free, _ = R.sparse_free(X, Z, ln_theta, c, L_S)
        best, _ = R.sparse_gp(*args)
        any_law = L @ c, L @ L_S @ L_S.T @ L.T
        for out, (a_M, B_MM) in ((free, any_law), (best, dense_eq11(*args))):
            mean, cov = dense_eq09(X, Z, ln_theta, a_M, B_MM)
            KL = gaussian_kl(a_M, B_MM, 0 * a_M, K_MM)
            assert_all_close(out, (mean, np.diag(cov), KL), 1e-10)
            root = np.linalg.cholesky(Linv @ B_MM @ Linv.T).T
            stored = R.StoredPosterior(Z, Linv, ln_theta, Linv @ a_M, root)
            assert_all_close(R.sparse_predict(stored, X), out[:2], 1e-10)
        assert_all_close(best, dense_dual(*args), 1e-10)
        signs = (-1) ** np.arange(len(c))
        assert_all_close(R.sparse_free(X, Z, ln_theta, c, L_S * signs)[0], free, 1e-13)


# --- R (12)-(17): derivatives of the bounds, the choice of theta -----------------------------


def test_R_eq12_eq13_kl_inv_grad_limit():
    """Never NaN, never negative; infinite only where the derivative is: d/dq at q = 0 < eps, d/deps
    at eps = 0 < q < 1.
    """
    q, eps = (a.ravel() for a in np.meshgrid(UNIT, [0.0] + NATS))
    d_q, d_eps = R.kl_inv_grad(q, eps)
    assert np.all(d_q >= 0)
    assert np.all(d_eps >= 0)
    assert np.all(~np.isinf(d_q) | ((q == 0) & (eps > 0)))
    assert R.kl_inv_grad(0, 0.1)[0] == INF
    assert np.array_equal(np.isinf(d_eps), (eps == 0) & (q > 0) & (q < 1))
    assert R.kl_inv_grad(0, 0) == (1, 1)
    assert R.kl_inv_grad(1, 0) == (1, 0)
    assert R.kl_inv_grad(0.3, 0)[0] == 1
    assert R.kl_inv_grad(0.3, 1e5) == (0, 0)  # where kl^-1 is 1
    assert_close(R.kl_inv_grad(0, 0.7)[1], math.exp(-0.7), 1e-15)  # of 1 - exp(-eps)
    assert type(R.kl_inv_grad(0.1, 0.1)[0]) is float


def test_R_eq14_pac_objective_value():
    """At R_S = 0 exactly, where d kl^-1/dq is infinite, value and gradient stay finite; at R_S = 1
    they are flat.
    """
    y = np.zeros(5)
    var = np.full(5, 1e-6)
    assert np.all(np.isfinite(R.pac_bayes_bound_grad(0.0, 1.0, 50)))
    value, *flat, d_KL = pac_objective(y, y, var, 1.0, EPS)
    assert 0 < value < 1
    assert 0 < d_KL < 1 / 5
    assert not np.any(flat)
    value, *flat = pac_objective(y, y + 9, var, 1.0, EPS)
    assert value == 1
    assert not any(map(np.any, flat))


# --- R (18)-(21), App. C: losses -------------------------------------------------------------

# loss -> y, prediction, goal; values. An edge is a hit, since (18) is strict; 1e-20 keeps its
# digits
BY_HAND = {
    "R_eq18_loss_01": ((1.0, [1.5, 1.5000001, 0.5, 0.4999999, 1.0, -9.0], 0.5), [0, 1, 0, 1, 0, 1]),
    "R_eq19_loss_clipped_square": ((1.0, [1.0, 1.25, 0.75, 1.5, 7.0], 0.5), [0, 0.25, 0.25, 1, 1]),
    "R_eq20_loss_exp": (
        (0.0, [0.25, -0.5, 1e-20], 0.5), [1 - math.exp(-0.25), 1 - math.exp(-1), 4e-40]),
    "R_eq21_loss_band": ((0.0, [-0.3, -0.31, 0.5, 0.51, 0.0], -0.3, 0.5), [0, 1, 0, 1, 0]),
    "R_appC_loss_relative": (
        ([2, -2, 2, 2, 0, 0], [2.25, -1.75, 3, 99, 0, 1e-300], 0.5), [0.25, 0.25, 1, 1, 0, 1]),
}


def test_losses_by_hand_complete():
    """Every loss of the module has its values here."""
    shipped = {name for name in vars(R) if name.startswith("loss_")}
    assert {name.split("_", 2)[2] for name in BY_HAND} == shipped


@each("name", BY_HAND)
def test_losses_value(name):
    """By hand; and quasi-convex, which R_Bay <= 2 R needs: 0 at y, not falling to either side,
    never above 1.
    """
    (y, yhat, *goal), want = BY_HAND[name]
    loss = getattr(R, name.split("_", 2)[2])
    assert np.allclose(loss(np.array(y), np.array(yhat), *goal), want, rtol=1e-15, atol=0)
    goal = goal if len(goal) == 1 else (0.7, 1.9)
    for sign in (-1, 1):
        value = loss(1.3, 1.3 + sign * np.linspace(0, 4, 401), *goal)
        assert value[0] == 0
        assert np.all(np.diff(value) >= 0)
        assert 0.99 < value[-1] <= 1


# --- R (24)-(31): expected losses ------------------------------------------------------------


@each("name", NAMES)
def test_R_eq24_gibbs_risk_range(name):
    """In [0, 1] but for 1e-9, which the mean is cut by, whatever rounds: saturated predictions, 1
    to 1e4 goals wide.
    """
    s = EPS * 10 ** default_rng(6).uniform(0, 4, 60000)
    losses = R.LOSSES[name](1.0, 1 + np.repeat([10, -5, 30], 20000) * s, s**2, EPS)[0]
    assert -1e-9 < losses.min()
    assert losses.max() < 1 + 1e-9
    assert (R.mean_loss(-5e-10, 1), R.mean_loss(7 + 3e-9, 7)) == (0, 1)
    for bad in (-2e-9, 1 + 2e-9, NAN):
        with refuses(r"the mean loss is .* outside \[0, 1\]"):
            R.mean_loss(bad, 1)


@pytest.mark.filterwarnings("error")
def test_R_eq29_expected_band_loss_value():
    """A band that is not centred on y. At y = 0 a relative goal cannot be met: the loss is 1 and
    flat, without a warning.
    """
    y, mean, var = GENERIC.values()
    bands = y - 0.2, y + 0.9
    losses, *_ = R.expected_band_loss(mean, var, *bands)
    for got, m, v, low, high in zip(losses, mean, var, *bands):
        assert_close(got, expectation(lambda t: (t < low) | (t > high), m, v, (low, high)), 1e-14)
    var = np.array([1e-8, 1.0, 1e8])
    for name in R.RELATIVE_LOSSES:
        losses, *slopes = R.LOSSES[name](np.zeros(3), np.array([0.0, 0.3, -40.0]), var, EPS)
        assert losses.tolist() == [1, 1, 1]
        assert np.all(np.abs(slopes) < 1e-290)


def test_R_eq30_norm_cdf_value():
    """Phi keeps its digits down to 1e-300: against a series in 450. Any shape, integers,
    infinities; phi is its slope.
    """
    z = np.array([-37.5, -37.0, -30.0, -20.0, -12.0, -8.0, -5.0, -2.0, -0.5, -1e-9,
                  0.0, 1e-9, 0.3, 1.0, 4.0, 8.0])
    want = [float(exact_norm_cdf(v)) for v in z.tolist()]
    assert np.all(np.abs(R.norm_cdf(z) / want - 1) <= 4e-16 + 4e-16 * z**2)
    assert [R.norm_cdf(a).shape for a in (np.zeros((3, 4)), np.empty(0), 0)] == [(3, 4), (0,), ()]
    assert R.norm_cdf(np.array([-INF, INF, 0])).tolist() == [0, 1, 0.5]
    slopes = [central_difference(R.norm_cdf, v, 2e-2) for v in z[7:14]]
    assert_close(R.norm_pdf(z[7:14]), slopes, 3e-10)


# --- R (32)-(34): mini-batches, marginal likelihoods -----------------------------------------


@each("B, N", [(10, 30), (40, 120)])
def test_R_eq32_hoeffding_term_coverage(B, N):
    """Of 0-1 losses, |R_S - R_B| exceeds the term at most delta often, half the term more often.
    Exact, for every R_S = K/N, of rows drawn without replacement.
    """
    delta = 0.1
    comb = math.comb

    def failure(K, radius):
        return sum(comb(K, k) * comb(N - K, B - k) / comb(N, B)
                   for k in range(B + 1) if abs(k / B - K / N) > radius)

    def worst(radius):
        return max(failure(K, radius) for K in range(N + 1))

    assert worst(R.hoeffding_term(B, delta)) <= delta < worst(R.hoeffding_term(B, delta) / 2)


@each("seed", range(6))
def test_R_eq33_eq34_J_eq13_nll_value(seed):
    """-ln of the density of N(0, A) at y; the printed N x N form of (34), with one G."""
    case = drawn(seed)
    X, y, Z, ln_theta, ln_noise = case.X, case.y, *(
        case.p[name] for name in ("Z", "ln_theta", "ln_noise"))
    K_MN = dense_kernel(Z, X, ln_theta)
    noise = np.exp(ln_noise) * np.eye(len(y))
    K_NN = dense_kernel(X, X, ln_theta)
    Q_NN = K_MN.T @ np.linalg.solve(dense_K_MM(Z, ln_theta), K_MN)
    Lam = np.diag(np.diag(K_NN - Q_NN))
    full, _ = R.full_gp_nll(X, y, ln_theta, ln_noise)
    assert_close(full, -ln_normal(y, 0 * y, K_NN + noise), 1e-12)
    for nll, C, T in (("FITC", Q_NN + Lam, 0 * Lam), ("VFE", Q_NN, Lam), ("DTC", Q_NN, 0 * Lam)):
        want = np.trace(T) / (2 * np.exp(ln_noise)) - ln_normal(y, 0 * y, C + noise)
        assert_close(R.sparse_nll(X, y, Z, ln_theta, ln_noise, nll)[0], want, 1e-12)


# --- R: what blocks may not move ------------------------------------------------------------------


IN_BLOCKS = [  # functions of R and of beyond/blocks.py, and their arguments after X
    (R.sparse_free, blocks.free_in_blocks, "Z ln_theta m L_S"),
    (R.sparse_gp, blocks.gp_in_blocks, "y Z ln_theta ln_noise alpha"),
    *((R.sparse_nll, blocks.nll_in_blocks, f"y Z ln_theta ln_noise {kind}")
      for kind in R.SPARSE_NLL)]


@each("keep", [2**28, 5000, 0], ids=["kept", "partly kept", "not kept"])
@each("block", [1, 1600], ids=["smallest blocks", "larger blocks"])
@each("seed", [4, 9, 10, 14])
def test_R_sec3_blocks(monkeypatch, seed, block, keep):
    """In blocks of rows, however they are cut and kept: all as with whole matrices, but for
    rounding.
    """
    case = drawn(seed)
    p = dict(case.p, y=case.y)

    def all_of(column):
        return [row[column](case.X, *(p.get(name, name) for name in row[2].split()))
                for row in IN_BLOCKS]

    Linv = lower_inverse(dense_K_MM(p["Z"], p["ln_theta"]))
    stored = R.StoredPosterior(p["Z"], Linv, p["ln_theta"], p["m"], p["L_S"].T)
    want = all_of(0)
    predicted = R.sparse_predict(stored, case.X)
    monkeypatch.setattr(R, "BLOCK_BYTES", block)
    monkeypatch.setattr(blocks, "KEEP_BYTES", keep)
    assert len(R.row_blocks(len(case.y), len(case.p["Z"]))) > 1
    for (got, got_back), (outputs, back) in zip(all_of(1), want):
        outputs = as_tuple(outputs)
        assert_all_close(as_tuple(got), outputs, 1e-10)
        weights = [case.rng.standard_normal(np.shape(out)) / np.max(np.abs(out)) for out in outputs]
        grads, whole = got_back(*weights), back(*weights)
        assert_all_close([grads[name] for name in whole], whole.values(), 1e-10)
    assert_all_close(blocks.predict_in_blocks(stored, case.X), predicted, 1e-10)


# --- headline equations: R (3), (5), (12)-(14), (24)-(31), (6), (8), (11), kernels -----------


def test_R_eq12_eq13_kl_inv_grad():
    """Where kl(q||p) = eps, dp = (deps - dkl/dq dq)/(dkl/dp): against differences of kl in 110
    digits. test_ref.py has (12) and (13) as printed.
    """
    for q, eps in (
        (1e-12, 1e-3), (0.001, 1e-6), (0.3, 1e-8), (0.5, 2.0), (0.9, 0.01), (1 - 1e-8, 1e-10)):
        with localcontext() as context:
            context.prec = 110
            k = exact_kl_inv(q, eps)
            h, g = (v * (1 - v) * Decimal("1e-20") for v in (Decimal(q), k))
            by_q = (exact_kl(Decimal(q) + h, k) - exact_kl(Decimal(q) - h, k)) / (2 * h)
            by_k = (exact_kl(q, k + g) - exact_kl(q, k - g)) / (2 * g)
        assert_all_close(R.kl_inv_grad(q, eps), map(float, (-by_q / by_k, 1 / by_k)), 2e-14)


def test_R_eq03_kl_inv_value():
    """Never below the truth, and at most 3e-13 above it relatively: kl(q||.) rises, so two values
    bracket. Where eps is a denormal number, 1e-12 and 1e-304.

    On all pairs of UNIT and NATS, 700 random ones over the same range, and some far below any use.
    """
    rng = default_rng(0)
    small = np.where(rng.random(700) < 0.5, rng.random(700), 10 ** rng.uniform(-13, 0, 700))
    at_random = np.where(rng.random(700) < 0.3, 1 - small, small), 10 ** rng.uniform(-10, 2, 700)
    tiny = [(1e-200, 1e-200), (1e-300, 1e-305), (1e-307, 1e-307), (1e-305, 1e-12), (0.2, 1e-25)]
    denormal = 10 ** rng.uniform((-323, -323), (-300, -308), (200, 2))
    q, eps = np.array([*itertools.product(UNIT, NATS), *zip(*at_random), *tiny, *denormal]).T
    for q, eps, p in np.array([q, eps, R.kl_inv(q, eps)]).T.tolist():
        off, least = ("1e-12", "1e-304") if 0 < q and eps < 1e-307 else ("3e-13", 0)
        less = Decimal(p) * (1 - Decimal(off)) - Decimal(least)
        assert p == 1 or exact_kl(q, p) >= eps, f"kl_inv({q}, {eps}) = {p} is below the truth"
        assert less <= q or exact_kl(q, less) <= eps, f"kl_inv({q}, {eps}) = {p} is too high"


@each("exact", [False, True])
def test_R_eq05_pac_bayes_bound_value(exact):
    """B is where kl(R_S||B) equals the complexity, ln(1/p_theta) included; B_Pin is R_S +
    sqrt(complexity / 2), never below.
    """
    for risk, KL, N, delta, penalty in (
        (0.1, 12.0, 80, 0.01, 14.18), (0.0, 0.0, 50, 0.05, 0.0), (0.4, 3.0, 60, 1.0, 19.0),
        (0.9, 1e4, 10, 0.05, 3.0), (1e-6, 50.0, 10**6, 0.05, 3.0)):
        exact = exact and N <= 100
        xi = float(exact_xi(N)) if exact else 2 * math.sqrt(N)
        paid = (KL + penalty + math.log(xi / delta)) / N
        given = risk, KL, N, delta, penalty, exact
        B = R.pac_bayes_bound(*given)
        assert type(B) is float
        assert B == 1 or abs(exact_kl(risk, B) / Decimal(paid) - 1) < 5e-12
        assert risk < B <= R.pinsker_bound(*given)
        if not exact:
            assert_close(R.pinsker_bound(*given), risk + math.sqrt(paid / 2), 1e-15)


# s/eps -> what rounding may take of a slope: z^2 ulp in a tail; closed forms cancel, down to NARROW
ROUNDING = {
    0.003: 1e-13, 0.03: 5e-13, 0.1: 2e-14, 0.3: 1e-14, 1.0: 1e-14, 3.0: 1e-13, 10.0: 3e-12,
    49.0: 1e-10, 51.0: 3e-12, 100.0: 1e-13, 1e4: 1e-11}


def loss_points():
    """y, mean, var, eps, tolerance, (n,) each: GENERIC; s from far below eps to far above; goals of
    1e9 to 1e150 deviations.
    """
    parts = [
        (*GENERIC.values(), EPS, 1e-14), (1.0, 1.0, 1.0, 10.0 ** np.array([9, 40, 75, 150]), 1e-14)]
    for ratio, tol in ROUNDING.items():
        u = np.array([0.0, 0.15, -0.4, 0.59, 0.75])
        if ratio >= 1:
            u = ratio * EPS * np.array([0.0, 0.3, 1.0, -2.0, 4.0])
        parts.append((1.0, 1 + u, (ratio * EPS) ** 2, EPS, tol))
    return np.concatenate([np.broadcast_arrays(*part) for part in parts], axis=1)


@each("name", NAMES)
def test_R_eq01_eq24_eq25_eq26_eq27_eq28_eq29_eq31_expected_loss_value(name):
    """The integral (24) of the loss, and of its product with the score, point by point: relative
    errors, also of losses of 1e-300 and of slopes in the tails, where the printed 1 - Phi(b) would
    be 0.
    """
    y, mean, var, eps, tol = loss_points()
    with np.errstate(all="ignore"):  # in the branch that a point does not take
        got = np.array(R.LOSSES[name](y, mean, var, eps))
        risk = R.gibbs_risk(y, mean, var, eps, name)
    want = quadrature(name, y, mean, var, eps)
    units = np.array([1 + 0 * var, np.sqrt(var), 2 * var])
    size = np.abs(want) * units + np.minimum(want[0], np.abs(1 - want[0])) + 1e-300
    error = np.max(np.abs(got - want) * units / size / [np.minimum(tol, 5e-13), tol, tol], axis=0)
    assert np.all(error < 1), (np.sqrt(var) / eps)[error.argmax()]
    assert_close(risk, np.mean(want[0]), 1e-14)  # R (1), (25)


@each("noise, tol", [
    ("drawn", 1e-11),
    (1e-4, 1e-9),           # of cond(A) = 1e6
    (3e3, 1e-7)])           # terms of N/2 cancel
def test_R_eq06_eq08_full_gp_value(noise, tol):
    """Marginals as printed, for any size, scale, unit and noise; KL in the eigenvalue form of
    App. D (as a KL of normal laws: eq08_eq07 above).
    """
    for case in map(drawn, range(12)):
        ln_theta = case.p["ln_theta"]
        y = case.y
        ln_noise = case.p["ln_noise"] if noise == "drawn" else math.log(noise * case.unit**2)
        (mean, var, KL), _ = R.full_gp(case.X, y, ln_theta, ln_noise)
        want_mean, want_cov = dense_full_gp(case.X, y, ln_theta, ln_noise, case.X)
        assert_all_close((mean, var), (want_mean, np.diag(want_cov)), 1e-10)
        K = dense_kernel(case.X, case.X, ln_theta)
        assert_close(KL, eigen_eq08(K, y, math.exp(ln_noise)), tol)


def test_kernels_complete():
    """Every kernel of fits and of files has its formula here; J's by the same names."""
    assert {name: row.function for name, row in kernels.KERNELS.items()} == KERNELS
    assert J.KERNELS.items() <= KERNELS.items()


@each("kind", KERNELS)
def test_kernel_value(kind):
    """The formula; far from the origin no digit is lost; signal variance on the diagonal; no row.
    Where rows coincide nothing pulls at them.
    """
    kernel = KERNELS[kind]
    for size in [(1, False), (2, False), (3, False), *[(2, True), (3, True)] * (kind not in WAVES)]:
        X1, X2, ln_theta = kernel_case(kind, *size)
        assert_close(kernel(X1, X2, ln_theta)[0], dense_kernel(X1, X2, ln_theta, kind), 1e-14)
        if kind not in ("periodic", "mixture"):  # sine and cosine of 1e6 have lost ten digits
            assert_close(
                kernel(X1 + 1e6, X2 + 1e6, ln_theta)[0],
                dense_kernel(X1 + 1e6, X2 + 1e6, ln_theta, kind), 1e-14)
        variance = np.sum(np.exp(ln_theta[..., -1]))
        assert_close(np.diag(kernel(X1, X1, ln_theta)[0]), np.full(6, variance), 3e-15)
        assert kernel(X1[:0], X2, ln_theta)[0].shape == (0, 5)
        assert_close(R.signal_variance(ln_theta), variance, 1e-15)
        for same in (X1[[0, 0, 0]], X1[[0, 0, 0]] + 1e3):
            d_ln_theta, d_X1, d_X2 = kernel(same, same, ln_theta)[1](np.ones((3, 3)))
            assert max(np.max(np.abs(d)) for d in (d_X1, d_X2, d_ln_theta[..., :-1])) < 1e-13
            assert_close(d_ln_theta[..., -1], 9 * np.exp(ln_theta[..., -1]), 1e-14)
