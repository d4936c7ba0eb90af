"""Seconds of a value and gradient over those of their matrix products alone; rows of a stream per
second. Nothing is asserted: a time belongs to a machine.

python tests/benchmark.py [method ...]   keys of CASES; default: all
"""

import os
import pathlib
import sys
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is imported
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import numpy as np  # noqa: E402

import beyond.stream  # noqa: E402
import pacgp_ref as R  # noqa: E402
import predictive as J  # noqa: E402
from beyond import blocks  # noqa: E402
from tests.test_long import gradient_step, LEAST  # noqa: E402

CASES = {  # method -> (N or B, M)
    "kl-PAC-GP": ((400, 400), (1000, 1000), (2000, 2000)),
    "kl-PAC-SGP": ((12000, 100), (12000, 200), (12000, 500)),
    "PPGPR-Chol": ((1000, 100), (1000, 500), (1000, 1000))}


def bare(method, N, M):
    """A function that runs the products and factorisations of LEAST, over the same blocks."""
    rng = np.random.default_rng(0)
    C, A = rng.standard_normal((M, M)), rng.standard_normal((N, M))
    large, small, factors = LEAST[method]

    def run():
        for matrices, counts in [(A[i], large) for i in R.row_blocks(N, M)] + [(C, small)]:
            for _ in range(counts[0] + counts[2]):      # NumPy has no triangular product
                matrices @ C
            for _ in range(counts[1]):
                matrices.T @ matrices
        for _ in range(factors):
            R.tri_inv(np.linalg.cholesky(C @ C.T + np.eye(M)))
    return run


def seconds_of(run):
    """The shortest of five calls, after one that does not count."""
    times = []
    for _ in range(6):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def rows_per_second(M=50, n=500):
    """Rows of a stream per second, after the first 100 + n."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (100 + 2 * n, 2))
    y = np.sin(4 * X[:, 0]) + X[:, 1] + 0.4 * rng.standard_normal(len(X))
    learner = beyond.stream.begin(X[:100], y[:100], beyond.stream.Settings(M=M))
    times = []
    for i in range(100, len(X)):
        times.append(time.perf_counter())
        learner = beyond.stream.step(learner, X[i : i + 1], y[i : i + 1])
    return (n - 1) / (times[-1] - times[n])


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        for N, M in CASES[name]:
            took = seconds_of(gradient_step(R, J, blocks, name, N, M))
            alone = seconds_of(bare(name, N, M))
            print(f"{name}, {N} rows, M = {M}: {took:.4f} s, {took / alone:.2f} times its products")
    print(f"stream: {rows_per_second():.0f} rows per second")
