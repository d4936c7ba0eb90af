"""Times and memory of value and gradient beside those of their bare products; rows a second of a
stream. Nothing is asserted: a time belongs to a machine.

python tests/benchmark.py [method ...]   a method is a key of CASES, or "stream"; default: all

`python figures.py scaling` shows the same as a picture.
"""

import os
import pathlib
import sys
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is imported
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import numpy as np  # noqa: E402

import beyond.stream  # noqa: E402
from beyond.studies import cost  # noqa: E402
from figures import Run  # noqa: E402
from figures_of.shared import cell  # noqa: E402

FULL = ((400, 400, True), (1000, 1000, True), (2000, 2000, False))
SPARSE = ((12000, 100, True), (12000, 200, True), (12000, 500, False))
BATCH = ((1000, 100, True), (1000, 500, True), (1000, 1000, False))
CASES = {  # method -> (N or B, M, autograd too)
    **dict.fromkeys(("kl-PAC-GP", "full-GP"), FULL),
    **dict.fromkeys(("kl-PAC-SGP", "VFE", "FITC"), SPARSE),
    **dict.fromkeys(("SVGP", "VFITC", "PPGPR-Chol", "PPGPR-MFD"), BATCH)}


def objective(run, method):
    """A line a case: time and memory by hand, of the bare products, and by autograd."""
    for case in CASES[method]:
        row = run.once(cost, method, *case)
        print(", ".join(f"{name} {cell(value)}" for name, value in row.items()), flush=True)


def rows_a_second(learn, M=50, n=2000):
    """Rows a second of a stream, in its first and its last tenth."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n + 100, 2))
    y = np.sin(4 * X[:, 0]) + X[:, 1] + 0.4 * rng.standard_normal(n + 100)
    learner = beyond.stream.begin(X[:100], y[:100], beyond.stream.Settings(learn=learn, M=M))
    times = [time.perf_counter()]
    for i in range(100, n + 100):
        learner = beyond.stream.step(learner, X[i : i + 1], y[i : i + 1])
        times.append(time.perf_counter())
    part = n // 10
    rates = part / (times[part] - times[0]), part / (times[-1] - times[-1 - part])
    print(f"stream, {learn}, M = {M}: {rates[0]:.0f} rows a second, then {rates[1]:.0f}")


if __name__ == "__main__":
    run = Run()
    for name in sys.argv[1:] or [*CASES, "stream"]:
        if name == "stream":
            rows_a_second("nothing")
            rows_a_second("window")
        else:
            objective(run, name)
