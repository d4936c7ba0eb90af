"""An oracle in 70-digit arithmetic: what the certificate of a trained fit, or of a stream, truly is. None may report less.

Nothing here comes from the modules' formulas. What is stored defines Q: for a fit (Z, Linv, ln_theta, c, root) and ln_noise,
for a stream the States before and after each batch. The float64 numbers are taken as the exact numbers they are; every kernel
value, mean, variance, loss, KL and kl^-1 is then computed in decimal.Decimal. Linv defines the whitening: the inducing
variables u are f(Z) plus independent noise of covariance (Linv^T Linv)^-1 - K_MM, which must be positive definite.
"""
import functools
import math
import operator
import pathlib
import sys
import warnings
from decimal import Decimal, localcontext

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import online as L                                           # noqa: E402
import pacgp_ref as R                                        # noqa: E402

PI = Decimal("3.1415926535897932384626433832795028841971693993751058209749445923078164062862089986280348253421170679")
METHODS = (("full-GP", "kl-PAC-GP"), ("kl-PAC-SGP",) * 2, ("VFE",) * 2, ("free-kl-PAC-SGP",) * 2)
LOSSES = ("01", "square", "exp", "band", "relative")
FITS, STREAMS = 60, 20                                      # cases; in a shuffled order, the first 10 and 3 run by default
CASES = [[pytest.param(7 * j % n, marks=() if j < fast else pytest.mark.slow) for j in range(n)]
         for n, fast in ((FITS, 10), (STREAMS, 3))]


# --- matrices of Decimals: lists of rows; of a lower triangle the rows up to the diagonal -----------------------------

def precise(f):
    """f, run with 70 digits whatever the caller's context is."""
    @functools.wraps(f)
    def run(*args, **kwargs):
        with localcontext() as context:
            context.prec = 70
            return f(*args, **kwargs)
    return run


def dec(a):
    """The exact values of a number or an array as Decimals, in lists."""
    a = a.tolist() if hasattr(a, "tolist") else a
    return [dec(v) for v in a] if isinstance(a, list) else Decimal(a)


dot = lambda a, b: sum(map(operator.mul, a, b), Decimal(0))              # over the shorter of the two
times = lambda A, B: [[dot(a, b) for b in B] for a in A]                 # A B^T
transpose = lambda A: [list(column) for column in zip(*A)]
squares = lambda A: sum((dot(a, a) for a in A), Decimal(0))              # of all entries
ln_det = lambda A: sum((abs(a[i]).ln() for i, a in enumerate(A)), Decimal(0))         # of a triangle, either way up
lower = lambda a: [row[:i + 1] for i, row in enumerate(dec(np.where(np.triu(a, 1) == 0, a, np.nan)))]
inverse = lambda G: [solve(G, [Decimal(i == j) for i in range(len(G))]) for j in range(len(G))]       # G^-T


def cholesky(A):
    """Lower G, G G^T = A; ArithmeticError where A is not positive definite."""
    G = []
    for i, a in enumerate(A):
        g = []
        for j in range(i):
            g.append((a[j] - dot(g, G[j])) / G[j][j])
        left = a[i] - dot(g, g)
        if left <= 0:
            raise ArithmeticError(f"not positive definite: pivot {i} is {left:.3e}")
        G.append(g + [left.sqrt()])
    return G


def solve(G, b):
    """x with G x = b, by substitution."""
    x = []
    for g, v in zip(G, b):
        x.append((v - dot(g, x)) / g[len(x)])
    return x


def kernel(X1, X2, ln_theta):
    """k exp(-sum_k (x1_k - x2_k)^2 / (2 l_k^2)) of arrays, and k."""
    *ln_l2, ln_k = dec(ln_theta)
    inverse_l2 = [(-v).exp() for v in (ln_l2 if len(ln_l2) > 1 else ln_l2 * X1.shape[1])]
    exponent = lambda a, b: sum(w * (s - t) ** 2 for s, t, w in zip(a, b, inverse_l2)) / 2
    X1, X2 = dec(X1), dec(X2)
    return [[(ln_k - exponent(a, b)).exp() for b in X2] for a in X1], ln_k.exp()


# --- losses and bounds ------------------------------------------------------------------------------------------------

@precise
def gauss(z):
    """Phi(z), phi(z): 1/2 + phi(z) sum_k z^(2k+1)/(2k+1)!!, terms of one sign; beyond 20 deviations, 1e-88, 0 or 1."""
    if abs(z) > 20:
        return Decimal(z > 0), Decimal(0)
    density, total, term, k = (-z * z / 2).exp() / (2 * PI).sqrt(), Decimal(0), z, 1
    while abs(term) > abs(total) * Decimal("1e-72"):
        total, k = total + term, k + 2
        term = term * (z * z) / k
    return Decimal("0.5") + density * total, density


@precise
def expected_loss(loss, y, mean, var, eps):
    """E loss(v, y), v ~ N(mean, var), of Decimals; R Eq. (18)-(21). v - y = u + s z; within the goal c for z in (a, b)."""
    u, s, c = mean - y, var.sqrt(), eps * abs(y) if loss in ("band", "relative") else eps
    if c == 0:
        return Decimal(1)
    if loss == "exp":
        return 1 - (-u * u / (2 * var + c * c)).exp() / (1 + 2 * var / (c * c)).sqrt()
    a, b = (-c - u) / s, (c - u) / s
    (Phi_a, phi_a), (Phi_b, phi_b), (Phi_0, phi_0) = gauss(a), gauss(b), gauss(-u / s)
    P, inside = Phi_b - Phi_a, 0
    if loss == "square":                                    # E (u + s z)^2 over (a, b)
        inside = (u * u * P + 2 * u * s * (phi_a - phi_b) + var * (P + a * phi_a - b * phi_b)) / (c * c)
    if loss == "relative":                                  # E (u + s z) over (-u/s, b), less that over (a, -u/s)
        inside = (u * (Phi_b + Phi_a - 2 * Phi_0) + s * (2 * phi_0 - phi_a - phi_b)) / c
    return inside + 1 - P


@precise
def kl_inv(q, eps):
    """max{p : kl(q||p) <= eps} to 1e-50: Newton in a bracket."""
    low, high, p = q, Decimal(1), (1 + q) / 2
    while q < 1 and high - low > Decimal("1e-50"):
        f = (q * (q / p).ln() if q > 0 else 0) + (1 - q) * ((1 - q) / (1 - p)).ln() - eps
        low, high = (p, high) if f <= 0 else (low, p)
        step = f * p * (1 - p) / (p - q)
        if abs(step) < Decimal("1e-55"):
            return p
        p = p - step if low < p - step < high else (low + high) / 2
    return low


# --- a fit ------------------------------------------------------------------------------------------------------------

@precise
def noise_of(Z, Linv, ln_theta):
    """(Linv^T Linv)^-1 - k(Z, Z): covariance of the noise on the inducing variables; ArithmeticError unless it can be one."""
    G, K = transpose(inverse(lower(Linv))), kernel(Z, Z, ln_theta)[0]
    noise = [[a - b for a, b in zip(*rows)] for rows in zip(times(G, G), K)]
    cholesky(noise)
    return noise


def marginals(X, Z, Linv, ln_theta, mu, root):
    """Mean and variance at each row of X under q(Linv u) = N(mu, root^T root)."""
    noise_of(Z, Linv, ln_theta)
    K, k = kernel(X, Z, ln_theta)
    V = times(K, lower(Linv))
    return [dot(v, mu) for v in V], [k - dot(v, v) + dot(w, w) for v, w in zip(V, times(V, root))]


def kl_to_prior(mu, root):
    """KL(N(mu, root^T root)||N(0, I))."""
    return (squares(root) + dot(mu, mu) - len(mu)) / 2 - ln_det(root)


def full_gp(X, Linv, ln_theta, c, ln_noise):
    """mean, var, KL of N(K a, K - K A^-1 K), A = K + s I, a = Linv^T c, to N(0, K), where s tr A^-1 K = tr(K - K A^-1 K)."""
    (K, k), sigma2, a = kernel(X, X, ln_theta), ln_noise.exp(), [dot(row, dec(c)) for row in transpose(dec(Linv))]
    G = cholesky([[v + sigma2 * (i == j) for j, v in enumerate(row)] for i, row in enumerate(K)])
    mean, var = [dot(row, a) for row in K], [k - squares([solve(G, row)]) for row in K]
    return mean, var, ln_det(G) + (-len(X) * ln_noise - sum(var) / sigma2 + dot(a, mean)) / 2


@precise
def exact_fit(fit, X, y, G=1200, n_eps=1):
    """The true bound, risk and KL of a Fit, Decimals; X, y as given to fit; not for exact = True."""
    Z, Linv, ln_theta, c, root = fit.posterior
    if root is None:
        mean, var, KL = full_gp(X, Linv, ln_theta, c, Decimal(fit.ln_noise))
    else:
        c, root = dec(c), dec(root)
        (mean, var), KL = marginals(X, Z, Linv, ln_theta, c, root), kl_to_prior(c, root)
    risk = sum(expected_loss(fit.loss, *row, Decimal(fit.eps)) for row in zip(dec(y), mean, var)) / len(y)
    paid = KL + len(ln_theta) * Decimal(G + 1).ln() + (n_eps * 2 * Decimal(len(y)).sqrt() / Decimal(fit.delta)).ln()
    return kl_inv(risk, paid / len(y)), risk, KL


def exact_fit_bound(fit, X, y):
    """The true bound alone."""
    return exact_fit(fit, X, y)[0]


# --- a stream ---------------------------------------------------------------------------------------------------------

def moments(state):
    """mu, root of q(Linv u) = N(mu, root^T root), mu = root^T root c."""
    root = dec(state.root)
    return times(times([dec(state.c)], root), transpose(root))[0], root


@precise
def process_kl(new, old, shared=1):
    """KL(Q_new||Q_old) of two States with one kernel, a Decimal: KL(q_new(b)||N(0,I)) - E_q_new(a) ln(q_old(a)/N(a|0,I)).

    Whitened; prior covariance of a and b: U = Linv_a (k(Z_a, Z_b) + jitter) Linv_b^T, where a point in both has `shared` of the
    jitter in common; I where nothing moved. Under q_new, a has mean U mu_b and covariance C = I - U U^T + U S_b U^T.
    """
    assert np.array_equal(new.ln_theta, old.ln_theta) and all(len(np.unique(s.Z, axis=0)) == len(s.Z) for s in (old, new))
    (mu_a, root_a), (mu_b, root_b) = moments(old), moments(new)
    G = inverse(lower(old.root))                                         # root_a^-T: S_a^-1 = G^T G
    excess = lambda A: squares(times(A, G)) - squares(A)                 # sum of a^T (S_a^-1 - I) a over the rows of A
    if np.array_equal(new.Z, old.Z) and np.array_equal(new.Linv, old.Linv):
        m, trace = mu_b, excess(root_b)                                  # trace = tr C (S_a^-1 - I)
    else:
        K, k = kernel(old.Z, new.Z, new.ln_theta)
        jitter = shared * Decimal(L.JITTER) * k
        K = [[v + jitter * np.array_equal(a, b) for v, b in zip(row, new.Z)] for row, a in zip(K, old.Z)]
        U = times(lower(old.Linv), transpose(times(K, lower(new.Linv))))
        m, trace = times([mu_b], U)[0], squares(G) - len(G) - excess(transpose(U)) + excess(times(root_b, U))
    misfit = squares(times([[v - w for v, w in zip(m, mu_a)]], G)) - dot(m, m)
    return kl_to_prior(mu_b, root_b) + (trace + misfit) / 2 + ln_det(root_a)


@precise
def exact_sums(records):
    """The sums of a Ledger but the last over records (old, new, X, y, eps, loss, ln_noise, booked) in scaled units.

    Of the Q_i that is booked: that of the batch, or P_i, whose KL is 0.
    """
    sums = [Decimal(0)] * 6
    for old, new, X, y, eps, loss, ln_noise, booked in records:
        y, eps = dec(y), Decimal(eps)
        (mean, var), after = (marginals(X, s.Z, s.Linv, s.ln_theta, *moments(s)) for s in (old, new))
        of = lambda mean, var: sum(expected_loss(loss, *row, eps) for row in zip(y, mean, var))
        outside = sum(abs(v - m) >= Decimal("1.96") * (w + Decimal(ln_noise).exp()).sqrt() for v, m, w in zip(y, mean, var))
        before = of(mean, var)
        sums = [a + b for a, b in zip(sums, [len(y), before, of(mean, [Decimal("1e-60")] * len(y)), outside,
                                             *((of(*after), process_kl(new, old)) if booked else (before, 0))])]
    return sums


@precise
def exact_stream(records, lams=L.LAMS, delta=0.05):
    """The four true certificates, Decimals: where the mean over lams of exp(-lam loss - KL - m ln(1 - c p)) is 4/delta; at most
    1. By bisection, to 1e-15."""
    m, *losses, KL = exact_sums(records)
    lams, out = dec(list(lams)), []
    for loss, paid in zip(losses, (0, 0, 0, KL)):
        low, high = loss / m, Decimal(1)
        while high - low > Decimal("1e-15"):
            p = (low + high) / 2
            logs = [-v * loss - paid - m * (1 - (1 - (-v).exp()) * p).ln() for v in lams]
            low, high = (low, p) if sum(v.exp() for v in logs) / len(lams) > 4 / Decimal(delta) else (p, high)
        out.append(low)
    return out


# --- cases: ill-conditioned, most bounds below 1 ----------------------------------------------------------------------

def close_inputs(rng, n, d, kind):
    """n rows of inputs in [-1, 1]^d, of which many are nearly the same; kind 0: clusters, 1: near copies, 2: far from 0."""
    if kind == 0:
        return rng.uniform(-1, 1, (5, d))[rng.integers(5, size=n)] + 10 ** rng.uniform(-4, -1) * rng.standard_normal((n, d))
    if kind == 1:
        X = rng.uniform(-1, 1, (n // 2 + 1, d))
        return np.concatenate([X, X + 10 ** rng.uniform(-9, -4) * rng.standard_normal(X.shape)])[:n]
    return 10 ** rng.uniform(2, 6) + rng.uniform(-1, 1, (n, d))


def free_start(X, y, Z, ln_theta, ln_noise):
    """ln_theta, c, L_S of the best q(u) = N(L c, L L_S L_S^T L^T) for this noise: where the free form starts."""
    k = lambda A, B: np.exp(ln_theta[-1] - np.sum((A[:, None] - B[None]) ** 2, 2) / 2 / np.exp(ln_theta[0]))
    V = np.linalg.solve(np.linalg.cholesky(k(Z, Z) + 1e-8 * np.exp(ln_theta[-1]) * np.eye(len(Z))), k(Z, X)).T
    S = np.linalg.inv(np.eye(len(Z)) + V.T @ V / np.exp(ln_noise))
    return dict(ln_theta=ln_theta, c=S @ V.T @ y / np.exp(ln_noise), L_S=np.linalg.cholesky((S + S.T) / 2))


def ill_conditioned_fits(seed=0, cases=range(FITS)):
    """Yields X, y, Fit. Every family with every loss and every kind of inputs; long lengthscales, little noise."""
    for i in cases:
        rng, loss = np.random.default_rng([seed, i]), LOSSES[i // 4 % 5]
        N, M, d = rng.integers(32, 51), rng.integers(12, 21), int(rng.integers(1, 3))
        X, eps = close_inputs(rng, N, d, i // 20), 10 ** rng.uniform(-3, -0.5)
        noise, middle = eps * 10 ** rng.uniform(-1.5, -0.3), 2.0 * (loss in ("band", "relative"))
        y = middle + np.sin((1.5 * (X - X.mean(0))).sum(1) + rng.uniform(0, 6)) + noise * rng.standard_normal(N)
        Z = X[rng.permutation(N)[:M]] + 1e-3 * rng.standard_normal((M, d))
        start = dict(ln_theta=rng.uniform((0.3, 0), (2.5, 2)), ln_noise=np.array(2 * math.log(noise) + rng.uniform(0, 1)))
        start = free_start(X, y, Z, **start) if i % 4 == 3 else start
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield X, y, R.fit(X, y, METHODS[i % 4][(i // 20 + i // 4) % 2], eps=eps, loss=loss, Z=Z, start=start,
                              max_evals=int(rng.integers(10, 41)))


def ill_conditioned_streams(seed=0, cases=range(STREAMS)):
    """Yields Learner, records. Repeated and nearly equal inputs, little noise; every other with an outlier.

    In most of those the account is opened after the outlier: with it the training certificate would be 1.
    """
    for i in cases:
        rng, records, real, cheaper, row = np.random.default_rng([seed, 1000 + i]), [], L.paid_update, L.cheaper, 8
        goal = L.Goal(eps=10 ** (rng.uniform(-1.5, 0) + 0.8 * (i % 2)), loss=LOSSES[i % 3], M=int(rng.integers(5, 9)),
                      learn=("window", "evidence", "nothing", "bound")[i // 2 % 4], window=12,
                      memory=float(rng.choice([0.9, 0.99, 0.999])), unit=("first", "running")[i % 2])
        X = close_inputs(rng, int(rng.integers(28, 39)), 1 + i // 2 % 2, i // 3 % 3)
        X[rng.random(len(X)) < 0.3] = X[0]
        y = np.sin((X - X.mean(0)).sum(1) * 1.5) + 10 ** rng.uniform(-5, -2) * rng.standard_normal(len(X))
        outlier = 8 + int(rng.integers(8))
        y[outlier] += i % 2 * 10 ** rng.uniform(3, 5)

        def recorded(old, X, y, ln_noise, eps, loss, M):
            out = real(old, X, y, ln_noise, eps, loss, M)
            records.append((old, out[0], X, y, float(eps), loss, float(ln_noise)))
            return out

        def booked(entry, ledger):
            out = cheaper(entry, ledger) if i % 3 == 0 else entry        # any Q_i may be booked: mostly the posterior
            records[-1] = (*records[-1], out is entry)
            return out

        learner = L.begin(X[:row], y[:row], goal, np.array([rng.uniform(0, 3), 0.0]), math.log(1e-3), pretrain=5)
        try:
            L.paid_update, L.cheaper = recorded, booked
            while row < len(X):
                batch = slice(row, row + int(rng.integers(1, 3)))
                learner, row = L.step(learner, X[batch], y[batch]), batch.stop
                if i % 2 and i % 8 > 1 and batch.start <= outlier + 6 * (i % 4 == 1) < batch.stop:
                    learner = learner._replace(ledger=L.Ledger())
                    records.clear()
        finally:
            L.paid_update, L.cheaper = real, cheaper
        yield learner, records


# --- tests ------------------------------------------------------------------------------------------------------------

def distance(got, exact):
    """(got - exact)/exact of a float and a Decimal."""
    return (Decimal(float(got)) - exact) / exact


@pytest.mark.parametrize("i", CASES[0])
def test_fit_is_never_below(i):
    """Fit.bound against the bound of the stored Q in 70 digits."""
    (X, y, fit), = ill_conditioned_fits(cases=[i])
    bound, risk, KL = exact_fit(fit, X, y)
    print(f"{i:3d} {fit.method:16s}{fit.loss:9s} B {fit.bound:.4f}, above by {distance(fit.bound, bound):9.1e} of it; "
          f"risk {fit.risk:.4f} by {fit.risk - float(risk):9.1e}, KL {fit.KL:.5g} by {fit.KL - float(KL):9.1e}")
    assert Decimal(fit.bound) >= bound


@pytest.mark.parametrize("i", CASES[1])
def test_stream_is_never_below(i):
    """The four certificates of a stream against those of the stored States in 70 digits."""
    (learner, records), = ill_conditioned_streams(cases=[i])
    exact = exact_stream(records, learner.goal.lams, learner.goal.delta)
    got = [c.bound for c in L.certificates(learner)]
    print(f"{i:3d} {learner.goal.loss:7s}" + "; ".join(f"{b:.4f}, above by {distance(b, e):9.1e}" for b, e in zip(got, exact)))
    assert all(Decimal(b) >= e for b, e in zip(got, exact))
    assert all(Decimal(float(a)) >= b for a, b in zip(learner.ledger[1:6], exact_sums(records)[1:]))


@precise
def test_oracle_scalars():
    """Phi at known values and by Laplace's continued fraction; kl^-1 where it has a closed form, and kl(q||p) = eps put in."""
    for z, value in ((1, "0.841344746068542948585232545632"), (-5, "2.86651571879193911673752333e-7")):
        assert abs(gauss(Decimal(z))[0] / Decimal(value) - 1) < 1e-26
    for z in map(Decimal, ("7.5", "9", "15")):
        fraction = functools.reduce(lambda value, k: z + k / value, range(1500, 0, -1), z)
        tail, density = gauss(-z)
        assert abs(tail - density / fraction) < 1e-68 and abs(gauss(z)[0] + tail - 1) < 1e-68
    for eps in map(Decimal, ("1e-6", "0.3", "4", "40")):
        assert abs(kl_inv(Decimal(0), eps) - 1 + (-eps).exp()) < 1e-48
        assert abs(kl_inv(Decimal("0.5"), eps) - (1 + (1 - (-2 * eps).exp()).sqrt()) / 2) < 1e-48
    for q, p in (dec([q, p]) for q, p in ((0.01, 0.4), (0.7, 0.70001), (0.99, 0.99999))):
        assert abs(kl_inv(q, q * (q / p).ln() + (1 - q) * ((1 - q) / (1 - p)).ln()) - p) < 1e-48


@pytest.mark.parametrize("loss", LOSSES)
def test_oracle_losses(loss):
    """Expected losses by quadrature of their definition between the kinks, float64; nearly 0 or 1 far from the goal."""
    nodes, weights = np.polynomial.legendre.leggauss(40)
    for y, mean, var, eps in ((0.7, 0.9, 0.04, 0.3), (-1.1, -1.0, 0.5, 0.2), (2.0, 1.2, 1.0, 1.5), (0.5, 0.51, 1e-3, 0.02)):
        c, s = eps * abs(y) if loss in ("band", "relative") else eps, math.sqrt(var)
        edges = np.unique(np.concatenate([mean + s * np.linspace(-12, 12, 97), y + c * np.array([-1, 0, 1])]))
        v = (edges[:-1, None] * (1 - nodes) + edges[1:, None] * (1 + nodes)) / 2
        r = np.abs(v - y) / c
        value = {"square": np.minimum(r**2, 1), "exp": -np.expm1(-(r**2)), "relative": np.minimum(r, 1)}.get(loss, r > 1)
        want = np.sum(value * np.exp(-((v - mean) / s) ** 2 / 2) @ weights * np.diff(edges)) / 2 / s / math.sqrt(2 * math.pi)
        assert abs(float(expected_loss(loss, *dec([y, mean, var, eps]))) - want) < 1e-13
    far = [expected_loss(loss, Decimal(1), Decimal(m), Decimal("1e-12"), Decimal("0.5")) for m in (1, 1000)]
    assert 0 <= far[0] < 1e-5 and abs(far[1] - 1) < 1e-60


@pytest.mark.parametrize("method", ["full-GP", "VFE", "free-kl-PAC-SGP"])
def test_oracle_fit(method):
    """exact_fit against NumPy's solve, slogdet and inv on a well-conditioned fit, to 1e-12, and against the Fit itself."""
    X = np.linspace(-3, 3, 20)[:, None]
    y, start = np.sin(X[:, 0]) + 0.3 * np.cos(40 * X[:, 0]), dict(ln_theta=np.array([-3.0, 0.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = R.fit(X, y, method, loss="exp", Z=X[::4], start=start, max_evals=1)
    Z, Linv, ln_theta, c, root = fit.posterior
    K, k = (np.array(v, dtype=float) for v in kernel(X, Z, ln_theta))
    if root is None:
        A = K + np.exp(fit.ln_noise) * np.eye(20)
        mean, Q, P = K @ np.linalg.solve(A, y), K - K @ np.linalg.solve(A, K), K
        var, m = np.diag(Q), mean
    else:
        Q, P, V, m = root.T @ root, np.eye(5), K @ Linv.T, c
        mean, var = V @ c, k + np.sum(V @ (Q - P) * V, 1)
    ln_ratio = np.linalg.slogdet(P)[1] - np.linalg.slogdet(Q)[1]
    KL = (np.trace(np.linalg.solve(P, Q)) + m @ np.linalg.solve(P, m) - len(m) + ln_ratio) / 2
    risk = np.mean(1 - np.exp(-((y - mean) ** 2) / (2 * var + 0.36)) / np.sqrt(1 + 2 * var / 0.36))
    bound, *parts = (float(v) for v in exact_fit(fit, X, y))
    assert np.allclose(parts, (risk, KL), rtol=1e-12, atol=0) and abs(fit.bound - bound) < 1e-10


def test_oracle_process_kl():
    """process_kl against the KL of the joint normals of both sets of inducing variables; 0 for one State, also turned round."""
    rng, ln_theta = np.random.default_rng(2), np.array([-1.0, 0.2])
    X = rng.uniform(-2, 2, (12, 1))
    old = L.update(L.prior(np.linspace(-2, 2, 5)[:, None], ln_theta), X[:8], np.sin(X[:8, 0]), -2.0)
    new = L.update(old, X[8:], np.sin(X[8:, 0]) + 0.3, -2.0, Z=np.linspace(-1.8, 2.3, 6)[:, None])
    U, joint = old.Linv @ np.array(kernel(old.Z, new.Z, ln_theta)[0], dtype=float) @ new.Linv.T, []
    for state, T in ((old, U.T), (new, U)):                  # the other set given this one: mean T a, I - T T^T
        S = state.root.T @ state.root
        m, C = S @ state.c, np.block([[S, S @ T.T], [T @ S, np.eye(len(T)) - T @ T.T + T @ S @ T.T]])
        joint += [np.concatenate([m, T @ m]), C]
    m0, C0, m1, C1 = joint[0], joint[1], np.roll(joint[2], 5), np.roll(joint[3], (5, 5), (0, 1))
    want = (np.trace(np.linalg.solve(C0, C1)) + (m1 - m0) @ np.linalg.solve(C0, m1 - m0) - 11
            + np.linalg.slogdet(C0)[1] - np.linalg.slogdet(C1)[1]) / 2
    assert abs(float(process_kl(new, old)) / want - 1) < 1e-10 and want > 0.1
    turned = L.update(old, X[:0], X[:0, 0], -2.0, Z=old.Z[::-1])         # the same inducing variables, jitter included
    assert abs(process_kl(old, old)) < 1e-60 and abs(process_kl(turned, old)) < 1e-12 < process_kl(turned, old, shared=0)


@pytest.mark.parametrize("loss", ["01", "band"])
@pytest.mark.parametrize("y, c, L_S", [(1e6 + 0.123, 0.3, 1e-4), (1234.567, 0.3, 1e-3), (1.0, 0.03, 1e-4)])
def test_large_target_is_never_below(y, c, L_S, loss, ln_k=-6.0):
    """A mean that misses a target of many of its deviations by just the goal: mean - y and eps |y| are rounded, too."""
    X, eps = np.zeros((100, 1)), (y - c * math.exp(ln_k / 2)) / (1.0 if loss == "01" else y)
    start = dict(ln_theta=np.array([0.0, ln_k]), c=np.array([c]), L_S=np.array([[L_S]]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = R.fit(X, np.full(100, y), "free-kl-PAC-SGP", eps=eps, loss=loss, Z=X[:1], max_evals=1, start=start)
    bound, risk, KL = exact_fit(fit, X, np.full(100, y))
    assert bound <= fit.bound < bound + Decimal("1e-4") and risk <= fit.risk and KL <= fit.KL < KL + Decimal("1e-10")


def test_small_variance_is_never_below():
    """Below what a prediction's variance is floored at the loss of a row that is missed would be smaller at the floor."""
    y, var = np.array([0.1 + 2e-7]), np.array([1e-13])
    enclosed = R.Enclosed(None, np.zeros(1), var, 0.0, np.zeros(1), np.zeros(1), 0.0)
    risk = R.risk_from_above(y, enclosed, 0.1, "01", 1e-24)
    exact = precise(expected_loss)("01", Decimal(y[0]), Decimal(0), Decimal(var[0]), Decimal(0.1))
    assert exact <= risk < exact + Decimal("1e-8") and risk > R.gibbs_risk(y, np.zeros(1), np.array([1e-12]), 0.1) + 0.05


def test_mixture_marginals_are_enclosed():
    """With 2000 cycles between the inputs a cosine has lost four digits: its angle's rounding is enclosed, too."""
    rng, ln_theta = np.random.default_rng(0), np.array([[math.log(1000.0), 2.0, 0.0]])
    X = rng.uniform(-1, 1, (40, 1))
    state = L.update(L.prior(X[:8], ln_theta), X[:20], rng.standard_normal(20), math.log(0.1))
    at, K, dx = L.enclosed_state(state, X[20:]), L.kernel(X[20:], state.Z, ln_theta, exact=True), X[20:] - X[:8, 0]
    error = K - np.exp(-dx**2 / (2 * math.exp(2.0))) * np.cos(2 * math.pi * np.fmod(1000 * dx, 1.0))
    assert 1e-13 < np.abs(error).max() < 1e-10
    assert np.all(np.abs(error @ state.Linv.T @ (state.root.T @ (state.root @ state.c))) <= at.mean_error)
