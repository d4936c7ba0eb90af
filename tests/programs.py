"""The three command lines in this process: `run` calls main.

A process of its own is started only where signals, pipes or outputs that fail are the point.
"""

import contextlib
import io
import math
import os
import re
import signal
import sys
import threading
import warnings

import numpy as np
import pytest

import online as L
import pacgp_ref as R
import predictive as J
from own_data import certify_table, follow_stream, saving, score_table

posix = pytest.mark.skipif(os.name != "posix", reason="pipes and signals of POSIX")
PROGRAM = {R: certify_table, J: score_table, L: follow_stream}
QUICK = {
    R: "--evals 5 --sparse 5".split(),
    J: "--methods SVGP --epochs 2 --inducing 5".split(),
    L: "--learn nothing --inducing 8".split()}
each_module = pytest.mark.parametrize("module", QUICK, ids=lambda module: module.__name__)


def table(n, columns="a,b,y", seed=0, row=None):
    """n rows of text with these columns, the last a noisy wave of the first; row: lines to put
    after line 41.
    """
    V = np.random.default_rng(seed).standard_normal((n, columns.count(",") + 1))
    V[:, -1] = np.sin(2 * V[:, 0]) + 0.1 * V[:, -1]
    lines = [columns, *(",".join(map(repr, row)) for row in V.tolist())]
    return "\n".join(lines[:41] + (row or []) + lines[41:]) + "\n"


def mixed(n=40):
    """The text of a table with texts, a name with a comma and a name twice, and its numbers by
    column.
    """
    V = np.random.default_rng(5).standard_normal((n, 5))
    V[:, 3] = np.sin(2 * V[:, 0]) + 0.1 * V[:, 3]
    lines = [
        'a,b,"c, d",text,y,y',
        *(
            ",".join([*map(repr, v[:3]), "no, never".split(", ")[i % 2], *map(repr, v[3:])])
            for i, v in enumerate(V.tolist())
        ),
    ]
    return "\n".join(lines) + "\n", {"a": V[:, 0], "b": V[:, 1], "c, d": V[:, 2], "y": V[:, 3]}


def numbers(text):
    """X and y of a table that begins with a header."""
    V = np.loadtxt(io.StringIO(text), delimiter=",", skiprows=1)
    return V[:, :-1], V[:, -1]


def scaled(text, how, relative, seed):
    """X, y of the rows that count, the target's middle and unit: scaled by a random tenth, then
    left out, by all rows, or not.
    """
    X, y = numbers(text)
    if how == "none":
        return X, y, 0.0, 1.0
    by = rest = np.arange(60)
    if how == "tenth":
        by = np.random.default_rng(seed).permutation(60)[:6]
        rest = np.setdiff1d(rest, by)
    middle = 0 if relative else y[by].mean()
    unit = math.sqrt(np.mean((y[by] - middle) ** 2))
    X = (X[rest] - X[by].mean(0)) / X[by].std(0)
    return X, (y[rest] - middle) / unit, middle, unit


def words(text):
    """The text with one blank for each gap."""
    return " ".join(text.split())


def process_state():
    """What main changes in the process for its notes and for Ctrl-C."""
    return warnings.showwarning, signal.getsignal(signal.SIGINT), np.geterr()


def run(module, *argv, **more):
    """printed(...), with one blank for each gap of stdout."""
    out, err = printed(module, *argv, **more)
    return words(out), err


def printed(module, *argv, stdin=b"", check=0, quick=None, err=None):
    """stdout and stderr of a command line in this process, which it must leave as it was; `check`
    is its status: with 2, stderr is notes and one line that says why.

    quick: options before argv; err: stands in for stderr.
    """
    out = io.StringIO()
    err = err or io.StringIO()
    data = stdin if isinstance(stdin, bytes) else stdin.encode()
    typed = [*(QUICK[module] if quick is None else quick), *map(str, argv)]
    state = process_state()
    with (
        contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings(),
        pytest.MonkeyPatch.context() as patch):
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))
        warnings.simplefilter("always")
        status = PROGRAM[module].main(typed)
    said = err.getvalue()
    assert status == check, said
    assert bool(re.fullmatch(r"(note: .*\n)*error: .*\n", said)) == (check == 2), said
    assert process_state() == state, said
    return out.getvalue(), said


def fed(data, path):
    """path, now that of a FIFO that gets 100 bytes at a time."""

    def feed():
        with contextlib.suppress(BrokenPipeError), open(path, "wb", buffering=0) as file:
            for i in range(0, len(data), 100):
                file.write(data[i : i + 100])

    os.mkfifo(path)
    threading.Thread(target=feed, daemon=True).start()
    return path


def save(module, path, *value):
    """What the module's program keeps, in a file."""
    (follow_stream if module is L else saving).save(path, *value)


def load(module, path):
    """What save wrote."""
    if module is L:
        return follow_stream.load(path)
    return saving.load(path, module.__name__)
