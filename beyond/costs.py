"""What a value and gradient cost: products that no code can spare, seconds, megabytes."""
import time
import tracemalloc

import numpy as np

import pacgp_ref as R
import predictive as J
from beyond import blocks

LEAST = {    # method -> full, symmetric, triangular products of value and gradient with an N x M
    # (N x N, B x M) matrix; the same of M x M matrices; factors with their inverse
    "kl-PAC-GP": ((0, 2, 0), (0, 0, 0), 1),
    "full-GP": ((0, 1, 0), (0, 0, 0), 1),
    "kl-PAC-SGP": ((2, 3, 2), (4, 1, 3), 2),
    "VFE": ((1, 1, 1), (1, 1, 3), 2),
    "FITC": ((1, 2, 2), (1, 1, 3), 2),
    "SVGP": ((0, 0, 6), (0, 0, 2), 1),
    "VFITC": ((0, 0, 6), (0, 0, 2), 1),
    "PPGPR-Chol": ((0, 0, 6), (0, 0, 2), 1),
    "PPGPR-MFD": ((0, 0, 3), (0, 0, 4), 2),
}
BLOCKWISE = ("kl-PAC-SGP", "VFE", "FITC")


def bare(method, N, M):
    """A function that runs the products and factorisations of LEAST and nothing else.

    It takes the same blocks of rows. NumPy has no triangular product.
    """
    rng = np.random.default_rng(0)
    large, small, factors = LEAST[method]
    parts = R.row_blocks(N, M) if method in BLOCKWISE else [slice(0, N)]
    C, A = rng.standard_normal((M, M)), rng.standard_normal((parts[0].stop, M))
    T, S = np.tril(C), C @ C.T + np.eye(M)

    def products(counts, A):
        for count, product in zip(counts, (lambda: A @ C, lambda: A.T @ A, lambda: A @ T)):
            for _ in range(count):
                product()

    def run():
        for rows in parts:
            products(large, A[:rows.stop - rows.start])
        products(small, C)
        for _ in range(factors):
            R.tri_inv(np.linalg.cholesky(S))
    return run


def steps(rng, method, N, M, with_autograd=True):
    """hand, by_autograd: functions that compute value and gradient of a method once, d = 8.

    N rows, or a batch of N. By autograd: of the same source, traced, the oracle of the tests.
    """
    X = rng.standard_normal((N, 8))
    y = np.sin(X.sum(1)) + 0.1 * rng.standard_normal(N)
    Z = X[:M] + 0.1 * rng.standard_normal((min(M, N), 8))
    if method in R.METHODS:
        p, value, hand = posterior_steps(method, X, y, Z)
    else:
        p = J.initial_parameters(X, method, M, Z=Z, rng=rng)
        p["m"] = rng.standard_normal(M)
        if p["L_S"].ndim == 2:
            p["L_S"] = p["L_S"] + 0.01 * np.tril(rng.standard_normal((M, M)))
        value = lambda p: test_ref.traced_J.objective(p, X, y, N, method, 0.05)[0]
        hand = lambda: J.objective(p, X, y, N, method, 0.05)[1](1.0)
    if with_autograd:
        import autograd
        import test_ref
    return hand, lambda: autograd.value_and_grad(value)(p)


def posterior_steps(method, X, y, Z):
    """p, value, hand of a method of R: parameters, the value in the traced module at some p.

    hand() is value and gradient by hand, at p.
    """
    name, kind = R.METHODS[method]
    family = R.FAMILIES[name]
    full = not family.inducing
    by_blocks = blocks.blocks()
    p = R.initial_parameters(X, y, family, len(Z), R.se_start(X.shape[1], True), Z, None)

    def nll(module, sparse_nll, p):
        if full:
            return module.full_gp_nll(X, y, **p)
        return sparse_nll(X, y, kind=kind, **p)

    def hand():
        if kind != "kl":
            return nll(R, by_blocks.nll, p)[1](1.0)
        (mean, var, KL), back = family.marginals(p, X, y, 1.0, sparse=by_blocks)
        losses, d_mean, d_var = R.expected_losses(y, mean, var, 0.6)
        _, d_loss, d_KL = R.pac_objective(losses, KL)
        return back(d_loss * d_mean, d_loss * d_var, d_KL)

    def value(p):
        from autograd.tracer import getval
        from test_ref import traced as T
        if kind != "kl":
            return nll(T, T.sparse_nll, p)[0]
        given = T.full_gp(X, y, **p) if full else T.sparse_gp(X, y, alpha=1.0, **p)
        mean, var, KL = given[0]
        risk = T.np.mean(T.expected_01_loss(y, mean, var, 0.6)[0])
        # R Eq. (14): the slopes of kl^-1 as constants, which needs no autograd of it
        d_risk, d_KL = R.pac_bayes_bound_grad(getval(risk), getval(KL), len(y))
        return d_risk * risk + d_KL * KL
    return p, value, hand


def seconds_of(run, least=0.25):
    """The shortest of at least 3 calls that take `least` seconds, after one that does not count."""
    run()
    times = []
    while len(times) < 3 or sum(times) < least:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def megabytes_of(run):
    """Peak of the memory that one call takes, in 2^20 bytes."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()
