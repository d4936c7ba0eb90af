"""The search on 24 generated tables: what B it ends at, and the CPU seconds beside another tree's.

python tests/search_tables.py [CHECKOUT]     the folder of another version

1 to 8 columns, 120 and 240 rows; slow and fast waves in the first column, or a jump there with
noise of Student's t, 2 degrees of freedom. delta = 0.01; held out is half of the rows. A line a
table: B of paper_fit; of held_out the Gibbs bound and the mean's; CPU seconds of both trainings.
Nothing is asserted: a time belongs to a machine.
"""
import itertools
import json
import os
import subprocess
import sys
import time

import numpy as np

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TABLES = [*itertools.product((120, 240), (1, 2, 4, 8), ("slow", "fast", "jump"))]


def table(seed, N, d, kind):
    """X (N, d) and y (N,), of mean 0 and deviation 1."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (N, d))
    noise = rng.standard_t(2, N) if kind == "jump" else rng.standard_normal(N)
    f = dict(slow=np.sin(X[:, 0]), fast=np.sin(3 * X[:, 0]), jump=np.sign(X[:, 0]) + 0.3 * X[:, -1])
    y = f[kind] + 0.2 * noise
    return (X - np.mean(X, 0)) / np.std(X, 0), (y - np.mean(y)) / np.std(y)


def measure(X, y):
    """B of the paper's certificate, the two of held-out rows, and CPU seconds of both."""
    from beyond.certificates import draw_part, held_out
    from beyond.search import paper_fit, trained_part
    start = time.process_time()
    paper = paper_fit(X, y)
    middle = time.process_time()
    first = draw_part(X, y, 0.5)
    rest = np.setdiff1d(np.arange(len(y)), first)
    part, _ = trained_part(X[first], y[first])
    seconds = middle - start, time.process_time() - middle
    held = held_out(part, X[rest], y[rest], 0.01)
    return paper.bound, held.bound, held.mean_bound, *seconds


def numbers(root, seed):
    """What the tree in the folder `root` measures, in a process of its own."""
    env = os.environ | dict(PYTHONPATH=root, OPENBLAS_NUM_THREADS="1")
    run = [sys.executable, __file__, "--table", str(seed)]
    return json.loads(subprocess.run(run, env=env, check=True, capture_output=True).stdout)


if __name__ == "__main__":
    if "--table" in sys.argv:
        seed = int(sys.argv[-1])
        print(json.dumps(measure(*table(seed, *TABLES[seed]))))
        raise SystemExit
    found = []
    for seed, (N, d, kind) in enumerate(TABLES):
        found.append([numbers(root, seed) for root in (HERE, *sys.argv[1:])])
        print(f"{kind} {N} x {d}:", *(np.round(row, 3) for row in found[-1]), flush=True)
    print("mean:", *np.round(np.mean(found, 0), 4))
