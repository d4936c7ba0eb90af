"""What the tests are run on: kernels, and problems of each paper at generic or extreme points."""

import functools
import math
import types
import warnings

import numpy as np
from numpy.random import default_rng

import online as L
import pacgp_ref as R
import predictive as J
from beyond import certificates, rounding, search, stream


# --- kernels -------------------------------------------------------------------------------------

KERNELS = {"SE": R.se_kernel, "Matern32": J.matern32, "Matern52": J.matern52,
           "periodic": J.periodic, "mixture": L.spectral_mixture}
WAVES = ("periodic", "mixture")


def kind_of(function):
    """The kind of a kernel."""
    return next(kind for kind, kernel in KERNELS.items() if kernel is function)


def kernel_for(ln_theta):
    """SE, or a mixture where ln_theta is a table."""
    return KERNELS["mixture" if np.ndim(ln_theta) == 2 else "SE"]


def kernel_case(kind, d=2, shared=False):
    """X1 (6, d), X2 (5, d), ln_theta."""
    rng = default_rng(4)
    T = 2 if shared else d + 1 + d * (kind in WAVES)
    ln_theta = rng.uniform(-0.6, 0.6, (2, T) if kind == "mixture" else T)
    ln_theta[..., : d if kind == "mixture" else T] += {"periodic": 1.5, "mixture": -1.0}.get(
        kind, 0.0)  # long waves
    return rng.standard_normal((6, d)), rng.standard_normal((5, d)), ln_theta


# --- R -------------------------------------------------------------------------------------------


def pac_objective(y, mean, var, KL, eps, loss="01", bound="kl", N=None, **terms):
    """R.pac_objective of the losses at these marginals; derivatives w.r.t. mean, var, KL."""
    losses, *slopes = R.expected_losses(y, mean, var, eps, loss)
    value, d_loss, d_KL = R.pac_objective(losses, KL, R.BOUNDS[bound], N, **terms)
    return value, *(d_loss * slope for slope in slopes), d_KL


IRRATIONAL = np.sqrt([2.0, 3.0, 5.0, 7.0])  # their multiples are spread evenly over the unit cube


def drawn(seed):
    """X (N, d), y (N,) and p = dict(ln_theta, ln_noise, Z, alpha, c, L_S) of random size, scale,
    unit of y and noise.

    About one inducing input in each cube of a unit length, lengthscales of .3 to 1 units: no matrix
    is nearly singular. T = 2 if seed is odd. c is a whitened mean, L_S a whitened factor, its
    diagonal of either sign.
    """
    rng = default_rng(seed)
    N, M, d = (int((most + 1) ** rng.random()) for most in (160, 130, 4))
    N = N + 1
    shared = seed % 2
    unit = 10 ** rng.uniform(-3, 3)
    scale = 10 ** rng.uniform(-3, 3, 1 if shared else d)
    l = rng.uniform(0.3, 1, 1 if shared else d)
    X, Z = (
        max(N, M) ** (1 / d) * scale * u
        for u in (rng.random((N, d)), np.arange(1, M + 1)[:, None] * IRRATIONAL[:d] % 1)
    )
    p = dict(
        ln_theta=np.append(2 * np.log(l * scale), 2 * math.log(unit) + rng.uniform(-1, 1)),
        ln_noise=2 * math.log(unit) + rng.uniform(-5, 2), Z=Z,
        alpha=rng.choice([0.0, rng.random(), 1.0]), m=rng.standard_normal(M),
        L_S=np.tril(rng.standard_normal((M, M)) / (2 * M)))
    p["L_S"][np.diag_indices(M)] = rng.uniform(0.4, 1.2, M) * rng.choice([-1, 1], M)
    return types.SimpleNamespace(
        X=X, y=unit * rng.standard_normal(N), p=p, unit=unit, scale=scale, rng=rng)


def problem(N=40, M=6):
    """X (N, 3), y, Z (M, 3), ln_theta, ln_noise: a generic, well-conditioned check point."""
    rng = default_rng(0)
    X = rng.standard_normal((N, 3))
    y = np.sin(X.sum(1)) + 0.3 * rng.standard_normal(N)
    return X, y, X[:M] + 0.3 * rng.standard_normal((M, 3)), np.array([0.3, -0.2, 0.5, 0.1]), -1.3


# --- J -------------------------------------------------------------------------------------------


def wave(N, seed=0, d=1):
    """X (N, d) with scale 1, y (N,): a wave along the first column whose noise grows from 0.02 to
    0.52 along it.
    """
    rng = default_rng(seed)
    x = rng.uniform(0, 10, N)
    X = np.column_stack([(x - 5) / 2.9, rng.standard_normal((N, d - 1))])
    return X, np.sin(x) + (0.02 + 0.05 * x) * rng.standard_normal(N)


def diagonal(rng, M):
    """That of a generic factor, of either sign."""
    return rng.uniform(0.4, 1.2, M) * np.where(np.arange(M) == 1, -1, 1)


def J_problem(method="PPGPR-Chol", kernel="Matern52", N=14, M=4, **changes):
    """X (N, 2), y and a generic, well-conditioned dict p, the diagonal of L_S of either sign;
    changes: to ln_theta, ln_noise.
    """
    rng = default_rng(4)
    X = rng.standard_normal((N, 2))
    y = np.sin(X.sum(1)) + 0.3 * rng.standard_normal(N)
    ln_theta = [-0.2, 0.1, 1.5, 1.3, 0.2] if kernel == "periodic" else [-0.4, 0.3, 0.2]
    p = dict(ln_theta=ln_theta, ln_noise=-1.3) | changes
    p = {name: np.array(v) for name, v in p.items()}
    variant = J.METHODS[method][1]
    if variant == "no Z":
        return X, y, p

    def near(first, n):
        return X[np.arange(first, first + n) % N] + 0.3 * rng.standard_normal((n, 2))

    p["Z"] = near(0, M)
    if variant in ("MFD", "OD"):
        p["Z_mean"] = near(M, M + 1)
    if variant != "Z only":
        p["m"] = rng.standard_normal(len(p["Z_mean" if variant == "MFD" else "Z"]))
    if variant in ("Chol", "OD"):
        p["L_S"] = np.tril(0.3 * rng.standard_normal((M, M))) + np.diag(diagonal(rng, M))
    if variant in ("MF", "MFD"):
        p["L_S"] = diagonal(rng, M)
    if variant == "OD":
        p["a"] = rng.standard_normal(M + 1)
    return X, y, p


def J_objective(method, p, X, y, N=None, beta_reg=1.0):
    """value, back of the objective that a method minimises, in nats per row."""
    if method not in ("exact", "FITC"):
        return J.objective(p, X, y, N, method, beta_reg)
    nll = J.full_gp_nll if method == "exact" else functools.partial(J.sparse_nll, kind="FITC")
    value, back = nll(X, y, **p, kernel=J.matern52)
    return value / len(y), lambda d: back(d / len(y))


@functools.cache
def fit_near(method, kernel="Matern52"):
    """X, y and a short training run from generic parameters."""
    X, y, p = J_problem(method, kernel)
    start = {name: v[:4] if name in ("m", "a", "Z_mean") else v for name, v in p.items()}
    return X, y, J.fit(X, y, method, M=4, kernel=kernel, epochs=2, lr=0.05, start=start)


# --- L -------------------------------------------------------------------------------------------

L_KINDS = {
    "SE": (1, [-0.7, 0.3]), "ARD": (2, [-0.3, 0.4, 0.2]), "T=2": (2, [-0.2, 0.1]),
    "mixture": (1, [[-1.5, -0.2, 0.1], [-0.4, 0.5, -0.8]]),
    "mixture 2-D": (2, [[-1.6, -1.1, 0.2, 0.5, -0.1], [-0.8, -1.9, 0.4, 0.1, -0.9]])}


def L_problem(kind, keep=0):
    """Two batches and two sets of parameters, well-conditioned: dict of Z_a, Z_b, theta_a, theta_b,
    X_a, y_a, X_b, y_b, noise.

    Z_b: `keep` rows of Z_a, the rest all other.
    """
    rng = default_rng(5)
    d, theta = L_KINDS[kind]

    def even(n):
        return np.linspace(-2, 2, n)[:, None] if d == 1 else rng.uniform(-2, 2, (n, d))

    Z_a, Z_b, X_a = (even(n) + 0.1 * rng.standard_normal((n, d)) for n in (5, 6, 7))
    Z_b[1 : 1 + keep] = Z_a[2 : 2 + keep]
    X_b = rng.uniform(-2, 2, (4, d))
    theta = np.array(theta)
    y_a, y_b = (np.sin(2 * X.sum(1)) + 0.3 * rng.standard_normal(len(X)) for X in (X_a, X_b))
    return dict(
        Z_a=Z_a, Z_b=Z_b, theta_a=theta, theta_b=theta + 0.2 * rng.standard_normal(theta.shape),
        X_a=X_a, y_a=y_a, X_b=X_b, y_b=y_b, noise=-1.1)


def L_grid(q):
    """Inputs around those of an L_problem, (9, d)."""
    return default_rng(0).uniform(-3, 3, (9, q["Z_a"].shape[1]))


def first_state(q):
    """The Posterior after the first batch of an L_problem."""
    nothing = L.prior(q["Z_a"], q["theta_a"], kernel_for(q["theta_a"]))
    return L.update(nothing, q["X_a"], q["y_a"], q["noise"])


def second_parameters(q, free):
    """p of the second batch, with an arbitrary q(alpha) if free."""
    p = dict(Z=q["Z_b"], ln_theta=q["theta_b"], ln_noise=np.array(q["noise"] + 0.3))
    if free:
        rng = default_rng(6)
        M = len(q["Z_b"])
        p.update(
            m=rng.standard_normal(M),
            L_S=np.tril(0.3 * rng.standard_normal((M, M)), -1) + np.diag(diagonal(rng, M)))
    return p


def crowded(N, top):
    """X (N, 1) on [0, top], y and rng: rows for inducing inputs that are close to each other."""
    rng = default_rng(0)
    X = rng.uniform(0, top, (N, 1))
    return X, np.sin(X[:, 0]) + 0.3 * rng.standard_normal(N), rng


BOUND_POINTS = [
    (3.2, 1.7, 20, 0.3, 0.05, 1.0), (0.0, 0.0, 1, 1e-3, 1.0, 1.0),
    (5e5, 812.5, 10**6, 7e-3, 1e-9, 1.0), (70.0, 0.3, 40, 0.2, 0.01, 2.5),
    (0.3, 4.0, 7, 6.0, 0.9, 0.1)]


class Table:
    """A data frame, as far as arrays go: indexed by names of columns alone."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype=dtype)

    def __len__(self):
        return len(self.values)

    def __getitem__(self, key):
        raise KeyError(key)


# --- trained fits and streams --------------------------------------------------------------------


def sine(N=60, d=2, seed=0):
    rng = default_rng(seed)
    X = rng.standard_normal((N, d))
    return X, np.sin(1.5 * X[:, 0]) + 0.3 * X[:, -1] + 0.2 * rng.standard_normal(N)


def fit(*args, **options):
    """beyond.search.multistart_fit, or with a share the Fit of prior_from_part of
    beyond/certificates.py, without the warnings that some tests provoke on purpose elsewhere.
    """
    train = certificates.prior_from_part if "share" in options else search.multistart_fit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = train(*args, **options)
    return getattr(result, "fit", result)


def strict(X, y, *args, **options):
    """The Fit of rounding.strict of this fit."""
    return rounding.strict(fit(X, y, *args, **options), X, y).fit


def certified(X, y, goal, n0=10, batch=1, **start):
    """The Learners after the first n0 rows and after each batch of further ones."""
    learners = [stream.begin(X[:n0], y[:n0], goal, **start)]
    for i in range(n0, len(y), batch):
        learners.append(stream.step(learners[-1], X[i : i + batch], y[i : i + batch]))
    return learners


def close_inputs(rng, n, d, kind):
    """n rows of inputs in [-1, 1]^d, of which many are nearly the same; kind 0: clusters, 1: near
    copies, 2: far from 0.
    """
    if kind == 0:
        return rng.uniform(-1, 1, (5, d))[rng.integers(5, size=n)] + 10 ** rng.uniform(
            -4, -1) * rng.standard_normal((n, d))
    if kind == 1:
        X = rng.uniform(-1, 1, (n // 2 + 1, d))
        return np.concatenate([X, X + 10 ** rng.uniform(-9, -4) * rng.standard_normal(X.shape)])[:n]
    return 10 ** rng.uniform(2, 6) + rng.uniform(-1, 1, (n, d))


def ill_conditioned(rng, loss, kind, N, M, d):
    """X, y, Z, ln_theta, ln_noise, eps: close_inputs, long lengthscales, little noise."""
    X = close_inputs(rng, N, d, kind)
    eps = 10 ** rng.uniform(-3, -0.5)
    noise = eps * 10 ** rng.uniform(-1.5, -0.3)
    middle = 2.0 * (loss in R.RELATIVE_LOSSES)
    y = middle + np.sin((1.5 * (X - X.mean(0))).sum(1) + rng.uniform(0, 6))
    y = y + noise * rng.standard_normal(N)
    Z = X[rng.permutation(N)[:M]] + 1e-3 * rng.standard_normal((M, d))
    ln_theta = rng.uniform((0.3, 0), (2.5, 2))
    return X, y, Z, ln_theta, 2 * math.log(noise) + rng.uniform(0, 1), eps


def theta_of(function, d, ln_theta):
    """ln_theta of a kernel with the lengthscale and variance of this one; periods of 3 to 5."""
    if function is not J.periodic:
        return ln_theta
    return np.concatenate([np.full(d, ln_theta[0]), np.log(np.linspace(3, 5, d)), ln_theta[1:]])


ODD = """
M > N: M=40
duplicate Z: Z=np.repeat(X[:3], 2, axis=0)
duplicate X: X=np.tile(X[:15], (2, 1)), y=np.tile(y[:15], 2)
same inputs: X=np.tile(X[: len(y) // 2], (2, 1)), y=y[: len(y) // 2 * 2]
constant column: X=X * [1, 0] + 3, ard=True
constant y: y=0 * y + 0.7
zero y: y=0 * y
N = 1: X=X[:1], y=y[:1]
N = 2: X=X[:2], y=y[:2]
tiny scale: X=X * 1e-6
tiniest scale: X=X * 1e-150
large scale: X=X * 1e3
far from 0: X=X + 1e6
d > N: X=wave(12, d=20)[0], y=y[:12]
integers: X=(X * 5).astype(int), y=(y * 5).astype(int)
bytes: X=np.abs(X * 9).astype("u1"), y=np.abs(y * 9).astype("u1")
batch > N: batch=10**6
batch 1: batch=1
"""
ODD = dict(line.split(": ", 1) for line in ODD.strip().splitlines())


def odd_data(case, X, y):
    """Arguments of a fit of X (n, 2), y: these, or what ODD has in their place."""
    rows = dict(X=X, y=y)
    return rows | eval(f"dict({ODD.get(case, '')})", globals(), rows)
