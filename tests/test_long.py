"""Random tables through all three command lines: a result, or one line that says what is wrong. There is no third outcome.

    pytest -m slow tests/test_long.py        30 tables of at most 60 rows each
    python tests/test_long.py 500 300        500 tables of 2 to 300 rows; prints the outcomes, and the seed of any other one
"""
import collections
import contextlib
import gzip
import io
import math
import os
import pathlib
import re
import sys
import tempfile
import time
import unittest.mock
import warnings

if __name__ == "__main__":
    os.environ["OPENBLAS_NUM_THREADS"] = "1"                 # there are two processes
import numpy as np
import pytest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent), str(pathlib.Path(__file__).resolve().parent)]

import online as L                                           # noqa: E402
import pacgp_ref as R                                        # noqa: E402
import predictive as J                                       # noqa: E402
from test_exact import exact_fit_bound                       # noqa: E402

MODULES = (R, J, L)
NUMPY_SAYS = "divide by zero|invalid value|overflow|underflow|empty slice|Degrees of freedom|RuntimeWarning|rank|deprecated"


def random_values(rng, n, d):
    """(n, d): the last column a wave of the others; scales 1e-8 to 1e8, far means, outliers, repeats, constants, counts."""
    V = rng.standard_normal((n, d))
    V[:, -1] = np.sin(V[:, :-1].sum(1) * rng.uniform(0.3, 3)) + 10 ** rng.uniform(-4, 0) * V[:, -1]
    V = (V + (rng.random(d) < 0.2) * 10 ** rng.uniform(0, 8, d)) * 10 ** rng.uniform(-8, 8, d)
    if rng.random() < 0.3:
        V[rng.integers(n), rng.integers(d)] *= 10 ** rng.uniform(1, 8)
    for chance, column in ((0.2, np.full(n, V[0, 0])), (0.3, rng.integers(100) + np.arange(n)), (0.1, rng.integers(3, size=n))):
        if rng.random() < chance:
            V[:, rng.integers(d)] = column
    if rng.random() < 0.3:
        V[rng.random(n) < 0.3] = V[0]
    return V


def broken(rng, cells):
    """The cells with one thing wrong, and what that is."""
    wrong = ["x", "inf", "1_0", "short row", "one row", "one column"]
    i, j, kind = rng.integers(len(cells)), rng.integers(len(cells[0])), rng.integers(6)
    if kind < 3:
        cells[i][j] = wrong[kind]
    if kind == 3:
        cells[i] = cells[i][1:]
    return [cells, cells[:1], [row[:1] for row in cells]][max(kind - 3, 0)], wrong[kind]


def random_table(seed, most=60):
    """A random table of 2 to `most` rows and 2 to 6 columns, as bytes, and what is wrong with it: one in eight is broken."""
    rng = np.random.default_rng([seed, most])
    V = random_values(rng, int(rng.integers(2, most + 1)), int(rng.integers(2, 7)))
    form = [repr, "{:.4g}".format, "{:.6e}".format, "{:+.3f}".format][rng.integers(4)]
    cells, mark, newline = [[form(float(v)) for v in row] for row in V], rng.choice(list(";,\t ")), rng.choice(["\n", "\r\n"])
    for row in cells if rng.random() < 0.3 else []:
        if rng.random() < 0.2:
            row[rng.integers(len(row))] = str(rng.choice(["NA", "nan", "NULL", "NaN", "NA" if mark == " " else ""]))
    cells, wrong = broken(rng, cells) if rng.random() < 0.125 else (cells, "")
    if mark != " " and rng.random() < 0.2:
        cells = [[f'"{cell}"' for cell in row] for row in cells]
    if rng.random() < 0.6:
        cells = [["temp_\u00e9", "x1", "b", "day", "dose", "y"][-len(cells[0]):]] + cells
    text = newline.join(mark.join(row) for row in cells) + newline * int(rng.integers(3))
    data = text.encode(str(rng.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16", "cp1252"])))
    return gzip.compress(data, mtime=0) if rng.random() < 0.2 else data, wrong


def random_options(module, seed):
    """Options that are quick."""
    rng = np.random.default_rng([seed, MODULES.index(module)])
    pick = lambda *values: str(rng.choice(values))
    if module is R:
        sparse = ["", "--sparse 5", "--sparse 12 --method VFE", "--method full-GP", "--sparse 3 --method FITC"][rng.integers(5)]
        return f"--evals 5 --loss {pick(*R.LOSSES)} --eps {pick(.01, .6, 3)} --scale {pick('tenth', 'tenth', 'all')} {sparse}"
    if module is J:
        return (f"--epochs 2 --methods {' '.join(rng.permutation(list(J.METHODS))[:2])} --kernel {pick(*J.PROFILES)} "
                f"--inducing {pick(3, 10)} --batch {pick(7, 200)}")
    return (f"--learn {pick(*L.LEARN)} --loss {pick(*L.GOAL_LOSSES)} --unit {pick('first', 'running', 'y')} --inducing 12 "
            f"--eps {pick(.1, .6, 3)} --first {pick(2, 5, 10)} --batch {pick(1, 1, 4)} --memory {pick(1, .95)}")


def run(module, data, options):
    """Exit status, stdout, stderr and what fit or the stream was about: (Fit, X, y) of each fit, a Learner a certificate."""
    seen, fit, certificates = [], R.fit, L.certificates

    def fit_seen(X, y, *args, **kwargs):
        seen.append((fit(X, y, *args, **kwargs), X, y))
        return seen[-1][0]

    def certificates_seen(learner):
        seen.append(learner)
        return certificates(learner)
    out, err = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), \
            contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), \
            unittest.mock.patch.object(R, "fit", fit_seen), unittest.mock.patch.object(L, "certificates", certificates_seen):
        warnings.simplefilter("always")
        path = pathlib.Path(folder, "table")
        path.write_bytes(data)
        status = module.main([str(path), *options.split()])
    return status, out.getvalue(), err.getvalue().replace(str(path), "TABLE"), seen


def check_stream(out, seen):
    """L Eq. (9), added up anew over the grid, is what each printed bound rounds up."""
    printed = re.findall(r"^ +\d+ +[^ ]+ +\| +([^ ]+) +[^ ]+ +\| +([^ ]+) .*$|^  bound +([^ ]+) +([^ ]+)$", out, re.M)
    assert len(printed) == len(seen) > 0, f"{len(printed)} lines of bounds for {len(seen)} certificates"
    for texts, learner in zip(printed, seen):
        (m, before, after, KL, _), goal = learner.ledger.tolist(), learner.goal
        for text, loss, paid in zip(filter(None, texts), (before, after), (0.0, KL)):
            paid += math.log(len(goal.lams) / goal.delta)
            want = min(1.0, *(math.fsum([loss / m, paid / (lam * m), lam / 8]) for lam in goal.lams))
            assert want - 1e-12 <= float(text) <= want + 1.0001e-4, f"printed {text}, formula (9) gives {want!r}"


def outcome(module, seed, most=60, oracle_rows=40):
    """The kind of outcome and the lines on stderr, numbers left out; AssertionError where it is a third one."""
    data, wrong = random_table(seed, most)
    status, out, err, seen = run(module, data, random_options(module, seed))
    lines = [line for line in err.splitlines() if not re.match(r" +\d+ s, ", line)]
    notes = [line for line in lines if line.startswith("note: ")]
    told = [line for line in lines if line not in notes]
    assert not re.search(f"Traceback|{NUMPY_SAYS}", err) and len(told) == (status == 2) and status in (0, 2), (status, err)
    assert status == 2 or not wrong or module is L and wrong == "one column", f"{wrong}: taken"
    texts = sorted({re.sub(r"'.*'|TABLE.*?(?=has|: )|[-+\d.e]*\d[-+\d.e]*", "..", line)[:120] for line in lines})
    if status == 2:
        assert told[0].startswith("error: ") and not notes, err
        return "exit 2", texts
    if module is R:
        (fit, X, y), = seen
        assert f" {R.bound_text(fit.bound)}\n" in out and 0 <= fit.risk <= 1 and fit.KL >= 0 and "nan" not in out
        if len(y) <= oracle_rows:
            exact = exact_fit_bound(fit, X, y)
            assert fit.bound >= exact, f"B = {fit.bound!r} is below the exact {exact:.20f}"
    if module is J:
        scores = out[out.index("held-out rows"):]
        assert not re.search(r"\b(nan|inf)\b", scores), scores
    if module is L:
        check_stream(out, seen)
    return "exit 0", texts or ["(nothing on stderr)"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_random_table(module, seed):
    """A result whose numbers are checked, or status 2 and one line."""
    outcome(module, seed)


def attempted(job):
    """outcome of (module number, seed, most rows), with the seconds it took; "other" with what was wrong."""
    module, start = MODULES[job[0]], time.monotonic()
    try:
        result = outcome(module, *job[1:])
    except BaseException as err:                             # a SystemExit or an interrupt is a third outcome, too
        result = "other", [f"{type(err).__name__}: {err}"]
    return *result, module.__name__, job[1], time.monotonic() - start


if __name__ == "__main__":
    import multiprocessing
    N, most = (int(text) for text in (*sys.argv[1:], *("100", "300")[len(sys.argv) - 1:]))
    counts, slowest, jobs = collections.Counter(), (0, ""), [(i, seed, most) for seed in range(N) for i in range(3)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for kind, texts, name, seed, seconds in pool.imap_unordered(attempted, jobs):
            counts.update([(name, kind), *((name, kind, text) for text in texts)])
            slowest = max(slowest, (seconds, f"{name}, seed {seed}"))
            if kind == "other":
                print(f"OTHER: {name}, seed {seed}: {texts[0]}", flush=True)
    for key, count in sorted(counts.items(), key=lambda item: (item[0][:2], -item[1])):
        print(f"{count:6d}  {'  '.join(key)}" if len(key) == 2 else f"{count:14d}  {key[2]}")
    print(f"third outcomes: {sum(counts[module.__name__, 'other'] for module in MODULES)} of {3 * N}; slowest: "
          f"{slowest[0]:.1f} s, {slowest[1]}")
