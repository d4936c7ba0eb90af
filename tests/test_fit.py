"""What fit promises in R and J: where it starts, what stops it, that seeds decide, maps over
blocks of rows, warnings.
"""

import functools
import itertools
import math
import os
import pickle
import re
import tempfile
import types
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import pacgp_ref as R
import predictive as J
from beyond import blocks, certificates, search
from tests.oracles import INF, NAN, same_bytes
from tests.problems import fit, rosenbrock, same, sine, wave


# --- R: blocks of rows, and where the search starts ----------------------------------------------


def elsewhere(f, blocks):
    """A map as of another process, which gets copies, and takes the blocks and gives the results in
    an order of its own.
    """
    copies = [pickle.loads(pickle.dumps((f, block))) for block in blocks]
    return [f(block) for f, block in copies[::-1]]


@pytest.mark.parametrize(
    "method, options",
    [("kl-PAC-SGP", {}), ("VFE", {}), ("FITC", dict(share=0.5)), ("free-kl-PAC-SGP", {})])
def test_R_fit_over_same_bits(method, options, tmp_path, monkeypatch):
    """Threads, other processes, rows in files: certificates and predictions as by map, to the last
    bit.
    """
    monkeypatch.setattr(R, "BLOCK_BYTES", 1)
    X, y = sine(120)
    for name, a in (("X", X), ("y", y)):
        np.save(tmp_path / name, a)
    files = [np.load(tmp_path / f"{name}.npy", mmap_mode="r")[20:] for name in "Xy"]
    arrays = (X[20:], y[20:])
    assert len(R.row_blocks(100, 4)) > 5
    assert callable(blocks.mapped_again(files[0][3:9]))
    found = []
    for rows, over in (
        (arrays, map), (arrays, elsewhere), (files, elsewhere), (files, ThreadPoolExecutor(2).map)):
        result = fit(*rows, method, 4, max_evals=5, over=over, **options)
        held = certificates.held_out(result, *rows, over=over)
        predicted = R.predict(result, rows[0], sparse=blocks.blocks(over))
        found.append((result.bound, result.R_S, result.KL, result.posterior, held, predicted))
    assert all(same_bytes(found[0], other) for other in found[1:])


@pytest.mark.skipif(os.name != "posix", reason="a mapped file can be removed as POSIX has it")
def test_R_mapped_again_without_file(tmp_path):
    """A map whose file does not have its values is taken as it is: changed in memory, a copy,
    without a name or a file, or with another file in its place.
    """
    X = sine(30)[0]
    slices = [slice(0, 11), slice(11, 30)]
    np.save(tmp_path / "X", X)

    def opened(mode="r"):
        return np.load(tmp_path / "X.npy", mmap_mode=mode)

    changed = opened("c")
    gone = opened()
    changed *= 2
    with tempfile.TemporaryFile() as file:
        nameless = np.memmap(file, float, "w+", shape=X.shape)
        nameless[:] = X
        copies = [opened().copy(), np.take(opened(), np.arange(30), 0), nameless, gone]
        assert all(callable(blocks.mapped_again(gone[rows])) for rows in slices)
        for other in (X[:0], 3 * X, X[:9]):
            os.remove(tmp_path / "X.npy")
            if len(other):
                np.save(tmp_path / "X", other)
            for a, want in [(changed, 2 * X), *((copy, X) for copy in copies)]:
                parts = [blocks.mapped_again(a[rows]) for rows in slices]
                parts = [part() if callable(part) else part for part in parts]
                assert np.array_equal(np.concatenate(parts), want)
            np.save(tmp_path / "X", X)


@pytest.mark.parametrize(
    "over",
    [
        lambda f, blocks: [], lambda f, blocks: 2 * list(map(f, blocks)),
        lambda f, blocks: list(map(f, [*blocks[:1], *blocks[:-1]]))],
    ids=["none", "twice", "one lost, one twice"],
)
def test_R_over_must_be_a_map(over, monkeypatch):
    """Results that are lost or come twice are noticed."""
    monkeypatch.setattr(R, "BLOCK_BYTES", 1)
    with pytest.raises(ValueError, match="a result for each of .* items, like map"):
        fit(*sine(60), "kl-PAC-SGP", 4, max_evals=2, over=over)


@pytest.mark.parametrize(
    "method, share", [("kl-PAC-SGP", {}), ("VFE", dict(share=0.5)), ("free-kl-PAC-SGP", {})])
def test_R_fit_starts_small(method, share, monkeypatch):
    """Above FEW rows all rows begin where a tenth of them ends, with LAST_EVALS evaluations or
    LAST_ROWS rows seen, or last_evals if given; not where a start is given. The callback is called
    throughout; the certificate is of all rows, and the same each time.
    """
    monkeypatch.setattr(search, "FEW", 20)
    monkeypatch.setattr(search, "LAST_EVALS", 4)
    monkeypatch.setattr(search, "LAST_ROWS", 900)
    searches = []
    lbfgs = R.lbfgs

    def searched(fun, x0, *args, **options):
        searches.append((x0, lbfgs(fun, x0, *args, **options)))
        return searches[-1][1]

    monkeypatch.setattr(R, "lbfgs", searched)
    run = functools.partial(fit, *sine(1500), method, 25, max_evals=9, **share)
    result = run()
    for (_, found), (x0, _) in itertools.pairwise(searches[-3:]):
        assert np.array_equal(found.x, x0)
    N = 750 if "share" in share else 1500
    assert searches[-1][1].n_evals == max(4, 900 // N)
    assert result.N == N
    assert same_bytes(result.posterior, run().posterior)
    stopped = run(callback=lambda n, f: True)
    assert stopped.optimum.message == R.STOPPED
    searches.clear()
    run(last_evals=2)
    assert searches[-1][1].n_evals == 2
    searches.clear()
    if not share:
        assert run(start={}).optimum.n_evals == 9
        assert len(searches) == 1


@pytest.mark.parametrize("method", ["kl-PAC-GP", "sqrt-PAC-SGP", "free-kl-PAC-SGP"])
def test_R_fit_leaves_the_plateau(method):
    """Little noise and a small eps: B is 1 and flat at the start of fit, not at the optimum of the
    marginal likelihood.
    """
    rng = np.random.default_rng(0)
    eps = 1e-3 if method == "kl-PAC-GP" else 0.02
    X = rng.uniform(-3, 3, (150, 1))
    Z = np.linspace(-3, 3, 12)[:, None]
    y = np.sin(3 * X[:, 0]) + eps / 5 * rng.standard_normal(150)
    found = fit(X, y, method, Z=Z, eps=eps, max_evals=150)
    first = fit(X, y, method, Z=Z, eps=eps, max_evals=1, start={})
    assert found.bound < 0.9 < 0.999 < first.bound


@pytest.mark.parametrize(
    "change, options, message",
    [
        (
            None, dict(max_evals=2),
            "stopped after 2 evaluations; the certificate of what was found is valid"),
        ("row", {}, "^1 rows of .* repeat: the theorem assumes independent rows"),
        ("row", dict(method="kl-PAC-SGP", M=5), "independent rows"),
        (None, dict(eps=1e-9), r"B > 0.999 certifies next to nothing"),
        ("input", dict(method="kl-PAC-SGP", M=5), None),
        (None, {}, None),
    ],
)
def test_R_fit_warnings(change, options, message):
    """A warning where training stopped early, where rows repeat (the same input twice is fine),
    where B is vacuous; else none. The certificate is there all the same.
    """
    X, y = sine()
    if change:
        X[7], y[7] = X[3], y[3] + (change == "input")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = R.fit(X, y, **options)
    texts = [str(w.message) for w in caught]
    of_it = result.R_S, result.KL, result.N, result.delta, result.penalty
    assert result.bound == R.pac_bayes_bound(*of_it)
    assert result.repeats == (change == "row")
    assert any(re.search(message, text) for text in texts) if message else not texts, texts


# --- R and J: stopping, seeds --------------------------------------------------------------------

TRAININGS = {  # name -> run(**options) -> what has history, message and parameters
    "lbfgs": lambda **o: R.lbfgs(rosenbrock, [-1.2, 1.0], **o),
    "adam": lambda **o: R.adam(rosenbrock, [-1.2, 1.0], 50, **o),
    **{
        f"R.fit, {name}": lambda name=name, **o: R.fit(*sine(), name, 3, **o).optimum
        for name in ("kl-PAC-GP", "VFE")
    },
    "R.fit, batch": lambda **o: R.fit(
        *sine(), "free-kl-PAC-SGP", 3, batch=20, max_evals=30, **o).optimum,
    **{
        f"J.fit, {name}": lambda name=name, **o: J.fit(
            *wave(40, d=2), name, 3, batch=15, epochs=9, **o)
        for name in ("SVGP", "PPGPR-MFD", "OD-SVGP", "exact", "FITC")
    },
    "J.fit, patience": lambda **o: J.fit(
        *sine(), "SVGP", 3, X_val=np.ones((2, 2)), y_val=[0, 1], patience=9, epochs=9, **o),
}


@pytest.mark.parametrize("name", TRAININGS)
@pytest.mark.filterwarnings("ignore")
def test_RJ_callback_value(name):
    """It is told the count so far and each value of the history, but for that of L-BFGS's start;
    where it returns true, training stops, says so, and what was found is returned.
    """
    told = []
    calls = []
    whole = TRAININGS[name](callback=lambda *a: told.append(a))
    stopped = TRAININGS[name](callback=lambda n, f: calls.append(n) or len(calls) == 3)
    counts, values = zip(*told)
    start = len(whole.history) - len(told)
    assert list(values) == whole.history[start:]
    assert start in (0, 1)
    assert counts[0] < 9
    assert list(counts) == sorted(set(counts))
    assert counts[-1] == getattr(whole, "n_evals", counts[-1])
    assert len(calls) == 3
    assert stopped.message == R.STOPPED != whole.message
    assert stopped.history == whole.history[: 3 + start]
    assert np.all(np.isfinite(stopped.history))


@pytest.mark.parametrize("name", [name for name in TRAININGS if "fit" in name])
@pytest.mark.filterwarnings("ignore")
def test_RJ_fit_deterministic(name):
    """The same seed gives the same bits, another seed another answer; NumPy's global generator is
    left alone.
    """
    state = np.random.get_state()[1].copy()
    one, two, other = (
        getattr(run, "params", None) or run.x
        for run in (TRAININGS[name](seed=seed) for seed in (3, 3, 4))
    )
    assert np.array_equal(state, np.random.get_state()[1])
    assert same(one, two)
    assert same(two, other) == any(given in name for given in ("kl-PAC-GP", "exact"))


@pytest.mark.parametrize("method", ["PPGPR-Chol", "FITC", "exact"])
def test_J_alg1_fit_limit_min_noise(method):
    """sigma_obs^2 stays above min_noise, in mini-batches and in L-BFGS."""
    X, _ = wave(30)
    fits = (
        J.fit(X, np.sin(X[:, 0]), method, M=6, epochs=150, lr=0.1, min_noise=low)
        for low in (1e-2, 1e-4)
    )
    high, low = (math.exp(f.params["ln_noise"]) for f in fits)
    assert abs(high / 1e-2 - 1) < 1e-12
    assert 1e-4 * (1 - 1e-12) <= low < 9e-3


@pytest.mark.parametrize(
    "patience, best, last", [(1, 2, 3), (3, 2, 5), (4, 6, 7), (99, 6, 7), (None, 7, 7)])
def test_J_alg1_fit_early_stopping(monkeypatch, patience, best, last):
    """The parameters with the best validation score, the first of equals, after `patience` epochs
    without a better one.
    """
    X, y = wave(40, d=2)
    val = wave(9, 1, d=2)
    told = []
    scores = iter([5.0, 3.0, 4.0, 3.0, 3.5, 1.0, 2.0])
    settings = dict(X=X, y=y, method="SVGP", beta_reg=1.0, batch=15, epochs=7, lr=0.1)
    more = types.SimpleNamespace(
        **settings, gamma=1.03, kernel=J.matern52, min_noise=1e-4, milestones=J.MILESTONES)
    p = J.initial_parameters(X, "SVGP", 3, Z=X[:3])
    path = list(J.algorithm1(p, more, np.random.default_rng(5)))

    def run(stop=0):
        return J.fit(
            **settings, Z=X[:3], X_val=val[0], y_val=val[1], patience=patience, seed=5,
            callback=lambda n, f: told.append((n, f)) or n == stop)

    monkeypatch.setattr(
        J, "held_out_nll", lambda p, *rows: np.array_equal(rows[0], val[0]) and next(scores, NAN))
    f = run()
    assert same(f.params, path[best - 1][0])
    assert f.history == [value for _, value in path[:last]]
    assert told == list(enumerate(f.history, 1))
    assert f.message == (
        f"stopped after {last} epochs, best after {best}" if last < 7 else "7 epochs")
    if patience in (99, None):  # the callback, too, leaves the best
        scores = iter([5.0, 3.0, 4.0, 3.0, 3.5])
        assert same((f := run(stop=5)).params, path[1 if patience else 4][0])
        assert f.message == R.STOPPED
    for score in (INF, NAN) if patience else ():
        scores = iter([1.0, score])
        with pytest.raises(
            ValueError,
            match=f"validation NLL is {score} after epoch 2: scale X and y, or lower lr"):
            run()
