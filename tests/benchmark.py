"""Times and memory of value and gradient next to their bare products. Nothing is asserted: a time
belongs to a machine.

python tests/benchmark.py [method ...]   one BLAS thread; a method is a key of CASES, "predict"
or "stream"; default: all

`python figures.py scaling` shows the same as a picture.
"""

import os
import pathlib
import sys
import time

if __name__ == "__main__":
    for name in (
        "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # before NumPy is imported
        os.environ.setdefault(name, "1")
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import numpy as np  # noqa: E402

import beyond.stream
import pacgp_ref as R  # noqa: E402
import predictive as J  # noqa: E402
from beyond.costs import seconds_of  # noqa: E402
from beyond.studies import cost  # noqa: E402
from figures import Run  # noqa: E402
from figures_of.shared import cell  # noqa: E402

RUN = Run()
CASES = {  # method -> (N or B, M, autograd too)
    "kl-PAC-GP": ((400, 400, True), (1000, 1000, True), (2000, 2000, False)),
    "full-GP": ((400, 400, True), (1000, 1000, True)),
    **{
        m: ((12000, 100, True), (12000, 200, True), (12000, 500, False))
        for m in ("kl-PAC-SGP", "VFE", "FITC")
    },
    **{
        m: ((1000, 100, True), (1000, 500, True), (1000, 1000, False))
        for m in ("SVGP", "VFITC", "PPGPR-Chol", "PPGPR-MFD")
    },
}


def beside_bare(run, bare):
    """Milliseconds of run, and their ratio to those of bare: the shortest of three interleaved
    measurements.
    """
    hand, least = np.min([(seconds_of(run), seconds_of(bare)) for _ in range(3)], 0)
    return f"{1e3 * hand:.1f} ms, {hand / least:.2f} of the bare products and factorisations"


def objective(method):
    """One line per case: time and memory by hand, of the bare products, and by autograd of the same
    forward code.
    """
    for case in CASES[method]:
        row = RUN.once(cost, method, *case)
        print(", ".join(f"{name} {cell(value)}" for name, value in row.items()), flush=True)


def predictions(N=10_000, M=500):
    """Predictions beside their bare products."""
    rng = np.random.default_rng(0)
    X, Z, A, C = (rng.standard_normal(shape) for shape in ((N, 8), (M, 8), (N, M), (M, M)))
    p = dict(J.initial_parameters(X, "SVGP", M, Z=Z, rng=rng), m=rng.standard_normal(M))

    def bare():
        for rows in R.row_blocks(N, M):
            A[rows] @ C

    for name in ("SE", "Matern52"):
        kernel = J.KERNELS[name]
        fit = J.Fit("SVGP", kernel, 1.0, 1.03, p, [], np.nan, "", J.predictor_at(p, kernel))
        print(
            f"predictive.predict, {name}, {N} rows, M = {M}: "
            f"{beside_bare(lambda: J.predict(fit, X), bare)}",
            flush=True,
        )


def rows_a_second(M=50, n=2000):
    """Rows a second of a stream, in its first and its last tenth."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n + 100, 2))
    y = np.sin(4 * X[:, 0]) + X[:, 1] + 0.4 * rng.standard_normal(n + 100)
    for learn in ("nothing", "window"):
        learner = beyond.stream.begin(X[:100], y[:100], beyond.stream.Settings(learn=learn, M=M))
        times = []
        for i in range(100, n + 100):
            start = time.perf_counter()
            learner = beyond.stream.step(learner, X[i : i + 1], y[i : i + 1])
            times.append(time.perf_counter() - start)
        rate = [len(part) / sum(part) for part in (times[: n // 10], times[-n // 10 :])]
        print(
            f"online.step, {learn}, M = {M}: {rate[0]:.0f} rows a second at first, {rate[1]:.0f} "
            f"after {n}",
            flush=True,
        )


if __name__ == "__main__":
    for name in sys.argv[1:] or [*CASES, "predict", "stream"]:
        (
            objective(name)
            if name in CASES
            else {"predict": predictions, "stream": rows_a_second}[name]()
        )
