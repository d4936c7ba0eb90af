"""Tables and streams of one's own: what is read, certified, predicted, printed, kept, refused.

Numbers are held against the same calls of Python, to the last bit; sentences against golden.txt.
`python tests/test_own_data.py` writes that anew: read the difference.
"""
import contextlib
import gzip
import io
import json
import math
import os
import pathlib
import pickle
import re
import subprocess
import sys
import time
import warnings
from dataclasses import fields

import numpy as np
import pytest

import online as L
import pacgp_ref as R
import predictive as J
from beyond import certificates, rounding, search, stream
from own_data import command_line, copying, follow, scale, score, tables
from own_data.certify import CertifiedGP
from own_data.follow import StreamGP
from own_data.score import PredictiveGP

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
GOLDEN = HERE / "golden.txt"
QUICK = {
    "certify": "--evals 4 --inducing 5",
    "score": "--methods SVGP --epochs 2 --inducing 5",
    "follow": "--inducing 8 --first 12"}
NAN = math.nan
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
posix = pytest.mark.skipif(os.name != "posix", reason="pipes, links and signals of POSIX")


def wave(n=60, d=2, seed=0):
    """X (n, d), y (n,): a noisy wave of the first column."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(n)


def csv_of(X, y):
    """The same as CSV."""
    names = [f"x{i}" for i in range(X.shape[1])] + ["y"]
    rows = [",".join(map(repr, row)) for row in np.c_[X, y].tolist()]
    return "\n".join([",".join(names), *rows, ""])


@pytest.fixture
def path(tmp_path):
    """A table of 60 rows."""
    (tmp_path / "t.csv").write_text(csv_of(*wave()))
    return tmp_path / "t.csv"


def run(*typed, status=0):
    """Standard output and error of a command line; its parts are split at blanks."""
    words = [word for part in typed for word in str(part).split()]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        assert command_line.main(words) == status, err.getvalue()
    return out.getvalue(), err.getvalue()


def command(*typed):
    """The words of a process of its own."""
    words = [word for part in typed for word in str(part).split()]
    return [sys.executable, "-m", "own_data", *words]


# --- files ---------------------------------------------------------------------------------------

def read(text, decimal=".", na="", skip=0, **columns):
    """The Table of a text."""
    def choose(names, unused):
        return tables.chosen(names, unused, **columns)
    return tables.read_table(io.StringIO(text), "t", choose, True, decimal=decimal, na=na, skip=skip)


@pytest.mark.parametrize("text, options, names, rows", [
    ("a,b\n1,2\n\n3,4e0\n", {}, "a b", [[1, 2], [3, 4]]),
    ("1 2\n3   4\n", {}, "column_0 column_1", [[1, 2], [3, 4]]),
    ('"a;1";b\n1,5;2\nNA;1\n', dict(decimal=","), "a;1 b", [[1.5, 2], [NAN, 1]]),
    ("1,5;2\n2,5;3\n", dict(decimal=","), "column_0 column_1", [[1.5, 2], [2.5, 3]]),
    ("a\tb\tc\n1\tx\t-2\n", dict(drop="b"), "a c", [[1, -2]]),
    ("a,b,c\n1,2,3\n", dict(target="a", inputs="2,b"), "c b a", [[3, 2, 1]]),
    ("g,x,y\n7,1,2\n", dict(group="g"), "g x y", [[7, 1, 2]]),
    ("a,b\nN/A,?\n#N/A,-999.0\n<NA>,None\n", dict(na="?,-999"), "a b", [[NAN, NAN]] * 3),
    ("# made today\n# a b y\n1 2 4\n", {}, "a b y", [[1, 2, 4]]),
    ("# a b y\nx z t\n# units\n1 2 3\n4 5 6\n# end\n", {}, "x z t", [[1, 2, 3], [4, 5, 6]]),
    ('#"a";"b"\n1;2\n', {}, "a b", [[1, 2]]),
    ("# two words\n1 2 4\n", {}, "column_0 column_1 column_2", [[1, 2, 4]]),
    ("A title\n\na,b\n1,2\n", dict(skip=2), "a b", [[1, 2]]),
    ("1.5 2\t\"ford pinto\"  3\n2.5 1\t\"a b\"  4\n", dict(drop="2"), "column_0 column_1 column_3",
     [[1.5, 2, 3], [2.5, 1, 4]]),
    ('a,"b\nc",t,y\n1,2,"of ""two""\nlines",3\n', dict(drop="t"), "a b\nc y", [[1, 2, 3]]),
    (",a,y\n0,5,6\n1,7,8\n", {}, "a y", [[5, 6], [7, 8]]),
    (",a,y\n0.5,5,6\n", {}, "column_0 a y", [[0.5, 5, 6]]),
    ('"a" "y"\n"1" 5 6\n"2" 7 8\n', {}, "a y", [[5, 6], [7, 8]]),
    (",a,y\n17,5,6\n", {}, "column_0 a y", [[17, 5, 6]]),
    ("# a b y\n1 2 3\n4 5 6\n", {}, "a b y", [[1, 2, 3], [4, 5, 6]]),
    ("a,y\n1,2\n# 3, of x\n5,6\n", {}, "a y", [[1, 2], [5, 6]]),
    (",0,1,2\n0,5,6,7\n", {}, "0 1 2", [[5, 6, 7]]),
    ("1;2;3\n5;6;7\n", {}, "1 2 3", [[5, 6, 7]]),
    ("a,b,,\n1,2,,\n", {}, "a b", [[1, 2]]),
    ("a,b\n1,2,\n3,4,\n", {}, "a b", [[1, 2], [3, 4]]),
    ("1.5,2,\n3,4,\n", {}, "column_0 column_1", [[1.5, 2], [3, 4]]),
    ("land,1990,1991\n5,6,7\n", {}, "land 1990 1991", [[5, 6, 7]]),
    ("a,a,y\n1,2,3\n", {}, "a column_1 y", [[1, 2, 3]]),
    ("a,t,y\n1," + "x" * 140_000 + ",2\n", dict(drop="t"), "a y", [[1, 2]])])
def test_read_value(text, options, names, rows):
    """The names and rows that are used, gaps counted."""
    found = read(text, **options)
    assert found.names == [name.replace("_", " ") for name in names.split(" ")]
    assert np.array_equal(found.values, rows, equal_nan=True)
    assert found.dropped == np.isnan(rows).any(1).sum()


@pytest.mark.parametrize("text, typed, said", [
    ("a,b\n1,2\n1,x\n", "", "line 3, b: 'x': no finite number .b is the target.*--drop b "),
    ("a,b,c\nmon,fri,1\n", "", "line 2, a: 'mon', b: 'fri': .*--drop a,b leaves"),
    ("a;b\n1,5;2\n", "", "line 2, a: '1,5': .*--decimal ,"),
    ("a;b\n1.5;2\n", "--decimal ,", "'1.5': no"), 
    ("a;b\n1.234,5;2\n", "", "thousands. remove them"),
    ("a,b\n1,2\n1\n", "", "line 3: 1 cells, not 2"),
    ("Title\na,b,c\n1,2,3\n", "", "--skip N"), ("a,b\n1,inf\n", "", "line 2, b: 'inf'"),
    ("a,b\n1_0,2\n", "", "'1_0'"), ("a,b\n,2\n", "", "no complete row of 1; empty in all: a"),
    ("", "", "no rows"), ("# all\n", "", "no rows"), ("a,b\n", "", "no complete row"),
    ("a,b\n1,2\n", "--drop z", "--drop 'z' is no column; the columns are a, b"),
    ("a,b\n1,2\n", "--drop 2", "--drop '2' is no"), ("a\n1\n", "", "needs inputs and a target"),
    ("a,b\n1,2\n", "--inputs a,b", "b is the target, and no input"),
    ('a,b\n1,"2\n3,4\n', "", "a quote opens after line 1 and does not close"),
    ("PK\0\1,b\n", "", "is no text"), ("a,y\n" + "1,2\n2,2\n" * 9, "", "it is y, the last column"),
    ("a,b\n", "--eps x", "argument --eps: invalid")])
def test_read_refused(text, typed, said, tmp_path):
    """One line names file, line, cell and remedy."""
    (tmp_path / "t").write_text(text)
    out, err = run("certify", tmp_path / "t", typed, status=2)
    assert re.fullmatch(f"error: .*{said}.*\n", err) and out == ""


@pytest.mark.parametrize("raw", [
    b"a,b\r\n1,2\r\n", b"a,b\r1,2\r", b"\xef\xbb\xbfa,b\n1,2", gzip.compress(b"a,b\n1,2\n", mtime=0)])
def test_read_files(raw, tmp_path, monkeypatch):
    """Line ends, marks, gzip by its content, from a file or standard input: one table."""
    (tmp_path / "t").write_bytes(raw)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(raw))))
    for name in (str(tmp_path / "t"), "-"):
        assert "".join(tables.lines_of(name)).split() == ["a,b", "1,2"]


def test_read_latin_1(tmp_path):
    (tmp_path / "t").write_bytes(b"Gr\xf6\xdfe,y\n1,2\n")
    assert next(tables.lines_of(tmp_path / "t")) == "Gr\xf6\xdfe,y\n"
    (tmp_path / "t").write_bytes(gzip.compress(b"a,b\n1,2\n")[:-9])
    assert "error: " in run("certify", tmp_path / "t", status=2)[1]
    (tmp_path / "t").write_text("a,b\n1,2\n", "utf-16")
    assert "is no text in UTF-8" in run("certify", tmp_path / "t", status=2)[1]


@pytest.mark.parametrize("values, code", [
    ([1, 2, 3, -999, -999, 2.5], "-999"), ([0.2, 2.2, 1, -200, -200, 1.1], "-200"),
    ([0, 800, 1400, 9999, 9999, 300], "9999"), ([1, 2, 3, -999], None), ([0, 1, 0, 1, 1], None),
    ([5, 5, 5], None), ([1, 2, 2, 3, 4, 4], None), ([0, 50, 99, 99, 98], None)])
def test_read_codes(values, code):
    """What repeats far outside the others is named, and --na makes it missing."""
    said = [*tables.likely_codes(["v"], np.array(values, float)[:, None])]
    assert [re.search("--na=(.*)", one)[1] for one in said] == [code] * (code is not None)


# --- certificates --------------------------------------------------------------------------------

@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("kind, groups", [
    ("paper", False), ("prior", False), ("held-out", False), ("held-out", True)])
@pytest.mark.parametrize("M", [None, 5])
def test_certified_value(kind, groups, M, relative):
    """Each certificate by the calls that beyond/ documents, in the table's units."""
    X, y = wave()
    X, y = 3 + 2 * X, 10 + 5 * y
    labels = np.arange(60) // 2 if groups else None
    eps = 0.2 if relative else 3.0
    gp = CertifiedGP([eps, 2 * eps], None, relative, kind, kind == "held-out", 0.02, M, evals=4,
                     seed=1)
    gp.fit(X, y, groups=labels)
    first = certificates.draw_part(X, y, 0.1 if kind == "paper" else 0.5, 1, labels)
    rest = np.setdiff1d(np.arange(60), first)
    of = scale.scale_of(X[first], y[first], relative)
    assert of.middle == pytest.approx(0 if relative else np.mean(y[first]))
    X_s, y_s = scale.scaled(X, y, of)
    unit = 1.0 if relative else of.unit
    settings = dict(eps=eps / unit, delta=0.02, max_evals=4, seed=1, n_eps=2,
                    loss="band" if relative else "01")
    guess = np.mean(y_s[rest if kind == "paper" else first])
    method = "VFE" if M else "full-GP"
    if kind == "paper":
        fit = search.paper_fit(X_s[rest], y_s[rest], "kl-PAC-SGP" if M else "kl-PAC-GP", M,
                               **settings)
        certified = rounding.strict(fit, X_s[rest], y_s[rest])
    elif kind == "prior":
        certified = certificates.prior_from_part(X_s, y_s, method, M, share=first, **settings)
    else:
        fit, used = search.trained_part(X_s[first], y_s[first], method, M, **settings)
        certified = rounding.strict(fit, X_s[first], used)
    fit = certified.fit
    bound, twice = fit.bound, None
    mean_bound = min(1, 2 * bound)
    if kind == "held-out":
        held, twice = [certificates.held_out(
            fit._replace(eps=one * eps / unit), X_s[rest], y_s[rest], 0.005,
            groups=labels[rest] if groups else None) for one in (1, 2)]
        bound, mean_bound = held.bound, held.mean_bound
        assert gp.facts_["N"] == held.N == (15 if groups else 30)
        assert gp.facts_["claims"][1]["mean_bound"] == twice.mean_bound
        alone = CertifiedGP(eps, None, relative, kind, False, 0.005, M, evals=4, seed=1)
        assert alone.fit(X, y, groups=labels).bound_ == mean_bound
    else:
        mean, var = R.predict(fit, X_s[rest])
        risk = R.gibbs_risk(y_s[rest], mean, var, 2 * eps / unit, settings["loss"])
        twice = R.pac_bayes_bound(risk, fit.KL, fit.N, 0.02, fit.penalty)
        assert gp.facts_["claims"][1]["bound"] == pytest.approx(twice, rel=1e-9)
    facts = gp.facts_
    assert [facts["bound"], gp.bound_] == pytest.approx([bound, mean_bound], rel=1e-9)
    assert (facts["eps"], facts["claims"][1]["eps"]) == (eps, 2 * eps)
    assert facts["trained"] == (0 if kind == "paper" else 30)
    misses = np.abs(guess - y_s[rest]) > eps * (np.abs(y_s[rest]) if relative else 1 / of.unit)
    assert facts["guessing"] == pytest.approx(np.mean(misses))
    mean, sd, *ends = gp.limits(X[:5])
    by = [mean / (1 + eps), mean / (1 - eps)] if relative else [mean - eps, mean + eps]
    assert np.allclose(ends, np.sort(by, axis=0), rtol=1e-12) and np.all(sd > 0)
    assert np.array_equal(gp.predict(X[:5], return_std=True), [mean, sd])
    e = (y - gp.predict(X))[rest]
    r = np.corrcoef(e[1:], e[:-1])[0, 1]
    assert facts["order"] == pytest.approx(r * math.sqrt(len(e)), rel=0.2, abs=0.05)


@pytest.mark.parametrize("by_sd", [False, True])
@pytest.mark.parametrize("M", [None, 5])
def test_intervals_value(by_sd, M, monkeypatch, tmp_path):
    """mean -+ so many units that hold exactly the rows that covering_score asks for; alone all of
    delta, beside two eps a third; too few rows certify none, and the text says how many do.
    """
    X, y = wave(200)
    y = 10 + 5 * y
    monkeypatch.setattr("own_data.certify.deviation_pays", lambda *_: by_sd)
    rest = np.setdiff1d(np.arange(200), certificates.draw_part(X, y, 0.5))
    for eps, share in ((None, 0.1), ([1, 2.0], 0.1 / 3)):
        gp = CertifiedGP(eps, 0.8, delta=0.1, inducing=M, evals=5).fit(X, y)
        facts = gp.facts_
        mean, sd, lower, upper = gp.limits(X[rest])
        unit = gp.scale_.unit
        if by_sd:
            unit = np.sqrt(sd**2 + facts["noise"] * unit**2)
        scores = np.abs(y[rest] - mean) / unit
        assert facts["factor"] == pytest.approx(certificates.covering_score(scores, 0.8, share))
        assert np.allclose([upper - mean, mean - lower], facts["factor"] * unit, rtol=1e-12)
        assert facts["half_width"] == pytest.approx(np.mean(upper - mean))
        assert facts["by_sd"] == by_sd and len(facts["claims"]) == (0 if eps is None else 2)
        assert gp.bound_ == (facts["mean_bound"] if eps else None)
        gp.save(tmp_path / "m")
        assert np.array_equal(CertifiedGP.load(tmp_path / "m").limits(X), gp.limits(X))
    few = CertifiedGP(coverage=0.96, evals=2).fit(X, y)
    assert np.all(np.isinf(few.limits(X)[2:])) and few.facts_["needs"] == 113
    assert "needs 113 rows held out" in few.text()
    with pytest.raises(ValueError, match="coverage are for the certificate held-out"):
        CertifiedGP(coverage=0.9, certificate="paper").fit(X, y)


def test_dependence():
    """Each sign is a flag and a sentence; independent rows have none."""
    rng = np.random.default_rng(0)
    X, y = wave(100)
    names = ["a", "b", "y"]

    def of(X, y, e):
        facts = scale.dependence(X, y, e)
        said = " ".join(scale.dependence_text(facts, names, len(y)))
        assert facts["dependent"] == bool(said)
        return facts, said
    assert of(X, y, y)[1] == ""
    r = np.cumsum(rng.standard_normal(100))
    facts, said = of(X, y, r)
    want = np.corrcoef(r[1:], r[:-1])[0, 1] * 10
    assert facts["order"] == pytest.approx(want, rel=0.1) and "neighbouring rows" in said
    facts, said = of(np.c_[X[:, 0], 3.0 - np.arange(100)], y, y)
    assert facts["counts"] == [1] and said.startswith("b counts the rows") and "--drop b" in said
    facts, said = of(np.c_[X[:, 0], np.sort(y)], np.sort(y), r)
    assert facts["sorted"] == [1, 2] and "sorted by y" in said and "neighbour" not in said
    facts, said = of(np.repeat(X[:50], 2, 0), np.r_[y[1], y[1], y[2:]], y)
    assert (facts["shared"], facts["repeats"]) == (50, 1) and "50 of 100 rows" in said


def test_certified_default():
    """0.6 deviations; held-out; above 1000 rows 100 inducing inputs; the callback ends it."""
    X, y = wave(1200, 1)
    gp = CertifiedGP().fit(X, y, show=lambda n, f: n >= 2)
    assert gp.fit_.fit.method == "VFE" and gp.facts_["M"] == 100
    assert gp.facts_["eps"] == 0.6 * gp.scale_.unit and "bound" not in gp.facts_
    assert gp.facts_["certificate"] == "held-out" and "callback" in gp.facts_["ended"]
    assert CertifiedGP(certificate="paper", evals=2).fit(*wave()).facts_["method"] == "kl-PAC-GP"
    whole = CertifiedGP(2.0, relative=True, evals=2).fit(*wave())
    assert np.array_equal(whole.limits(X[:1].repeat(2, 1))[2:], [[-np.inf], [np.inf]])


# --- densities -----------------------------------------------------------------------------------

@pytest.mark.parametrize("series", [False, True])
def test_scored_value(series):
    """Scores by the calls of predictive.py on the rows held out; the chosen method trained anew."""
    X, y = wave(80)
    y = 4 * y
    if series:
        X[:, 1] = np.arange(80) // 2
    gp = PredictiveGP("SVGP,PPGPR-MFD", epochs=3, inducing=6, seed=2).fit(X, y)
    train, val, test = score.three_parts(X, y, series, 2)
    of = scale.scale_of(X[train], y[train])
    X_s, y_s = scale.scaled(X, y, of)
    begun = score.begin(X_s[train], y_s[train], gp)
    settings = dict(M=6, batch=200, epochs=3, seed=2, **begun)
    facts = gp.facts_
    losses = {}
    for method in ("SVGP", "PPGPR-MFD"):
        fit = J.fit(X_s[train], y_s[train], method, **settings)
        losses[method] = J.held_out_nll(fit.predictor, X_s[val], y_s[val])
        one = facts["scores"][method]
        mean, var = J.predict_y(fit, X_s[test])
        assert one["NLL"] == J.nll(y_s[test], mean, var)
        assert one["RMSE"] == pytest.approx(of.unit * J.rmse(y_s[test], mean), rel=1e-12)
        assert one["CRPS"] == pytest.approx(of.unit * J.crps(y_s[test], mean, var), rel=1e-12)
        assert one["inside"] == np.mean(np.abs(y_s[test] - mean) < 1.96 * np.sqrt(var))
    best = min(losses, key=losses.get)
    assert (facts["best"], facts["series"]) == (best, series)
    assert begun["kernel"] is J.KERNELS[facts["kernel"]]
    constant = facts["scores"]["constant"]["RMSE"]
    assert constant == pytest.approx(np.sqrt(np.mean((y[test] - np.mean(y[train])) ** 2)))
    X_s, y_s = scale.scaled(X, y, of := scale.scale_of(X, y))
    mean, var = J.predict_y(J.fit(X_s, y_s, best, **settings), X_s[:4])
    found, sd, lower, upper = gp.limits(X[:4])
    assert np.allclose(found, of.middle + of.unit * mean, rtol=1e-12)
    assert np.allclose([upper - found, found - lower], 1.96 * of.unit * np.sqrt(var), rtol=1e-9)


@pytest.mark.parametrize("series", [False, True])
def test_scored_parts(series):
    """Each row is in one part, with all rows of its inputs; a series is held out from its end."""
    X, y = wave(200)
    X = np.round(X, 1) + np.c_[np.arange(200) // 4 * series, np.zeros(200)]
    X[3::2] = X[2:-1:2]
    parts = score.three_parts(X, y, series, 0)
    assert [*np.sort(np.concatenate(parts))] == [*range(200)]
    inputs = [{*map(tuple, X[rows])} for rows in parts]
    assert sum(map(len, inputs)) == len(set.union(*inputs))
    assert np.allclose([len(one) / len(set.union(*inputs)) for one in inputs], [0.75, 0.1, 0.15],
                       atol=0.02)
    train, val, test = parts
    assert (train.max() < val.min() < val.max() < test.min()) == series
    with pytest.raises(ValueError, match="60 rows with 5 different inputs"):
        score.three_parts(np.arange(60)[:, None] % 5, y[:60], False, 0)


def test_scored_copies():
    """Copies of noise do not make it predictable."""
    X, y = wave(100, 4)
    noise = np.random.default_rng(1).standard_normal(100)
    copies = np.random.default_rng(2).integers(0, 100, 300)
    facts = PredictiveGP("exact").fit(X[copies], noise[copies]).facts_
    assert facts["scores"]["exact"]["RMSE"] > 0.7 and facts["dependent"]


def test_scored_starts():
    """A fast wave is found, in one column or one of four; the kernel is the likeliest."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 20, (300, 1))
    X = rng.standard_normal((300, 4))
    for inputs, y in ((x, np.sin(9 * x[:, 0])), (X, np.sin(4 * X[:, 2]))):
        facts = PredictiveGP("exact").fit(inputs, y + 0.3 * rng.standard_normal(300)).facts_
        assert facts["scores"]["exact"]["RMSE"] < 0.5 and facts["kernel"] != "periodic"
    X = np.linspace(-2, 2, 80)[:, None]
    for y, kernel in ((np.sin(2 * X[:, 0]), "SE"), (rng.standard_normal(80).cumsum(), "Matern32")):
        assert score.begin(X, y / np.std(y), PredictiveGP())["kernel"] is J.KERNELS[kernel]


def test_scored_choice():
    """The lowest NLL, but the exact GP where that of another is no standard error lower."""
    X, y = wave(40)
    fit = J.fit(X, y, "exact", epochs=5)
    other = fit._replace(predictor=fit.predictor._replace(
        mean_weights=-fit.predictor.mean_weights))
    fits = dict(SVGP=other, exact=fit)
    mean, _ = J.predict_y(fit, X)
    sign = (-1.0) ** np.arange(40)
    sign *= -np.sign(sign @ mean**2)
    for y, best in ((mean, "exact"), (-mean, "SVGP"), (sign * mean, "exact")):
        assert score.chosen_method(fits, X, y) == best
    assert score.chosen_method(dict(SVGP=other, MAP=fit), X, sign * mean) == "SVGP"


# --- streams -------------------------------------------------------------------------------------

@pytest.mark.parametrize("eps, batch", [(None, 1), (0.5, 4)])
def test_followed_value(eps, batch):
    """The learner, its forecasts, losses and bounds by begin, step, forecast; the naive ones anew."""
    X, y = wave(40)
    y = 3 * y
    gp = StreamGP(eps, inducing=8, first=12, batch=batch, memory=0.98)
    lines = gp.partial_fit(X[:7], y[:7]).forecasts_
    lines += gp.partial_fit(X[7:], y[7:]).forecasts_
    eps_y = eps or np.sqrt(np.mean((y[1:12] - y[:11]) ** 2))
    settings = stream.Settings(eps_y, unit="y", M=8, forgetting=0.98, discard="auto",
                               delta=0.05 * 6 / 7)
    learner = stream.begin(X[:12], y[:12], settings, np.log([2.0, 2.0, 1.0]))
    V = np.c_[np.ones(40), (X - X[:12].mean(0)) / X[:12].std(0)]
    want, errors = [], []
    for i in range(12, 40 - batch + 1, batch):
        some = slice(i, i + batch)
        mean, _, var = stream.forecast(learner, X[some])
        age = [0.98 ** ((i - 12) // batch - max((k - 12) // batch + 1, 0)) for k in range(i)]
        D = np.diag([1e-9, 1, 1]) + V[:i].T @ (np.array(age)[:, None] * V[:i])
        ridge = V[some] @ np.linalg.solve(D, V[:i].T @ (age * y[:i]))
        errors += [*np.transpose([mean, ridge, 0 * mean + y[i - 1], 0 * mean + y[:i].mean()])
                   - y[some, None]]
        before = learner.ledger.mean
        learner = stream.step(learner, X[some], y[some])
        loss = (learner.ledger.mean - before) / batch
        bound = stream.certificates(learner).mean.bound
        want += [(i + 1 + k, *row, loss, bound)
                 for k, row in enumerate(zip(mean, np.sqrt(var), y[some]))]
    assert np.array_equal(np.delete(lines, [3, 4], 1), want)
    facts = gp.facts_
    assert (facts["rows"], facts["seen"], facts["eps"]) == (28, 40, eps_y)
    assert np.allclose([*facts["rmse"].values()], np.sqrt(np.mean(np.square(errors), 0)))
    found = stream.certificates(learner)._asdict()
    lower, upper = np.transpose(lines)[[3, 4]]
    misses = dict(interval=(y[12:] < lower) | (y[12:] > upper),
                  ridge=np.abs(np.array(errors)[:, 1]) > eps_y)
    for name, missed in misses.items():
        found[name] = certificates.certificate(np.sum(missed), 0.0, 28, delta=0.05 / 7)
    assert facts["certificates"] == {name: one._asdict() for name, one in found.items()}
    assert StreamGP(**gp.get_params()).fit(X, y).facts_ == facts
    assert np.array_equal(gp.predict(X), stream.forecast(learner, X)[0])


@pytest.mark.parametrize("kind", ["steady", "worse", "better", "bursts"])
def test_followed_intervals(kind, monkeypatch):
    """Gibbs & Candes: |share outside - 0.05| <= 1.005/(0.005 n) for any rows; 0.05 in the end."""
    sizes = dict(steady=1.0, worse=np.linspace(1, 30, 2000), better=np.linspace(1, 0.01, 2000),
                 bursts=1 + 30 * (np.arange(2000) // 200 % 2))
    gp = StreamGP(1.0)
    y = sizes[kind] * np.random.default_rng(0).standard_normal(2000)
    monkeypatch.setattr(follow, "forecast", lambda learner, X: (0 * X[:, 0], None, 1 + 0 * X[:, 0]))
    monkeypatch.setattr(follow, "step", lambda learner, X, y: learner)
    monkeypatch.setattr(StreamGP, "note", lambda *_: None)
    gp.partial_fit(np.zeros((2000, 1)), y)
    share = gp.losses_[1] / 1990
    assert abs(share - 0.05) < min(1.005 / (0.005 * 1990), 0.01)
    assert gp.alpha_ == pytest.approx(0.05 + 0.005 * 1990 * (0.05 - share))
    for alpha, width in ((1.0, -math.inf), (0.0, math.inf), (0.5, np.sort(gp.scores_)[50])):
        gp.alpha_ = alpha
        assert gp.width_ == width


def test_followed_eps():
    """Of the warm-up's changes, whatever the level; a target that does not change is refused."""
    X, y = wave(30)
    eps = StreamGP().fit(X, y).facts_["eps"]
    assert StreamGP().fit(X, 1000 + 5 * y).facts_["eps"] == pytest.approx(5 * eps)
    assert StreamGP().fit(X, np.r_[y[:10], 9 * y[10:]]).facts_["eps"] == eps
    with pytest.raises(ValueError, match="does not vary in the first 10 rows"):
        StreamGP().fit(X, np.r_[0 * y[:10], y[10:]])


def followed(path, tmp_path):
    """The command that goes on with a stream."""
    return f"follow {path} {QUICK['follow']} --eps 0.5 --save {tmp_path}/s --out {tmp_path}/o"


def test_followed_goes_on(path, tmp_path):
    """In two runs, cut after any row, its last line half written: the same lines and state."""
    lines = path.read_text().splitlines(True)
    lines.insert(20, "NA,1,2\n")
    path.write_text("".join(lines))
    options = followed(path, tmp_path)
    text, _ = run(options)
    want, state = (tmp_path / "o").read_bytes(), (tmp_path / "s").read_bytes()
    assert want.startswith(b"row,mean,sd,lower,upper,y,loss,bound\n13,") and want.count(b"\n") == 49
    for cut in (3, 13, 30):
        (tmp_path / "s").unlink()
        path.write_text("".join(lines[:cut]))
        run(options, status=0 if cut > 13 else 2)
        with open(tmp_path / "o", "a") as out:
            out.write("61,0.1,0.2\n62,0.")
        path.write_text("".join(lines))
        again, _ = run(options)
        assert (tmp_path / "o").read_bytes() == want and (tmp_path / "s").read_bytes() == state
        assert again == text and "1 incomplete row left out" in text
    for changed, said in ((["--delta", "0.1"], "a certificate is for one choice"),
                          (["--inputs", "x1"], "other columns")):
        assert said in run(options, *changed, status=2)[1]
    for changed in (lines[:5], [*lines[:-1], "1,2,3\n"]):
        path.write_text("".join(changed))
        assert "does not begin with the 61 rows" in run(options, status=2)[1]


@posix
def test_followed_killed(tmp_path):
    """Killed by -9 again and again, it ends with the same lines and state."""
    (tmp_path / "t.csv").write_text(csv_of(*wave(300)))
    options = followed(tmp_path / "t.csv", tmp_path)
    run(options)
    want = [(tmp_path / name).read_bytes() for name in "os"]
    for name in "os":
        (tmp_path / name).unlink()
    lines = 0
    while True:
        process = subprocess.Popen(command(options), cwd=ROOT, stdout=subprocess.DEVNULL)
        lines += 37
        while process.poll() is None and lines < 280:
            time.sleep(0.002)
            with contextlib.suppress(FileNotFoundError):      # not there yet
                if (tmp_path / "o").read_bytes().count(b"\n") > lines:
                    process.kill()
        if process.wait() == 0:
            break
    assert lines > 280
    assert [(tmp_path / name).read_bytes() for name in "os"] == want
    assert sorted(os.listdir(tmp_path))[-3:] == ["o", "s", "t.csv"]


def test_followed_piped(path, monkeypatch, tmp_path):
    """Standard input brings new rows, with or without the header; an index stays out; a column
    alone gets a clock."""
    index = ["", *range(60)]
    whole = [f"{i},{line}" for i, line in zip(index, path.read_text().splitlines(True))]
    path.write_text("".join(whole))
    for some in (whole[:30], [whole[0], *whole[30:50]], whole[50:]):
        raw = io.BufferedReader(io.BytesIO("".join(some).encode()))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(raw))
        out, _ = run("follow -", QUICK["follow"], "--save", tmp_path / "s")
    assert out == run("follow", path, QUICK["follow"])[0]
    assert re.findall(r"(?m)^GP, row (\d+) ", out) == ["10", "20"]
    path.write_text("y\n" + "\n".join(map(str, wave(40)[1])))
    (tmp_path / "s").unlink()
    out, err = run("follow", path, "--save", tmp_path / "s", "--predict", path, "--json")
    model = StreamGP.load(tmp_path / "s")
    assert np.array_equal(model.learner_.recent[:, 0], np.arange(40))
    said = json.loads(out)
    assert said["inputs"] == ["the row number"]
    clock = 40.0 + np.arange(40)[:, None]
    assert said["predictions"]["mean"] == model.predict(clock).tolist()


# --- the program ---------------------------------------------------------------------------------

@pytest.mark.parametrize("kind", QUICK)
def test_predicted(kind, path, tmp_path):
    """From the model, from its file, to a file, to standard output, in JSON: the same."""
    new = tmp_path / "new.csv"
    new.write_text("x1,no,x0\n1,a,2\n,b,3\n0.5,c,-1\n")
    out, err = run(kind, path, QUICK[kind], "--predict", new, "--save", tmp_path / "m")
    model = command_line.KINDS[kind][0].load(tmp_path / "m")
    want = np.transpose(model.limits(np.array([[2.0, 1.0], [-1.0, 0.5]])))
    head, *rows = out.splitlines()
    found = np.array([row.split(",") for row in rows], float)
    assert head == "mean,sd,lower,upper" and np.array_equal(found[[0, 2]], want)
    assert np.isnan(found[1]).all() and model.text() in err
    use = f"{kind} --model {tmp_path}/m --predict {new}"
    again, _ = run(use, "--out", tmp_path / "p")
    assert (tmp_path / "p").read_text() == out and again == err
    model.save(tmp_path / "m2")
    assert (tmp_path / "m2").read_bytes() == (tmp_path / "m").read_bytes()
    said = json.loads(run(use, "--json")[0])
    assert said.items() >= json.loads(json.dumps(model.facts_)).items()
    assert said["predictions"]["mean"] == [want[0, 0], None, want[1, 0]]
    assert said["inputs"] == ["x0", "x1"] and said["target"] == "y"
    new.write_text("x1\n2\n")
    assert "has no column x0; it has x1" in run(use, status=2)[1]


@pytest.mark.parametrize("kind", QUICK)
def test_options_are_parameters(kind, path, tmp_path):
    """Each field is an option, checked by fit; --plot draws."""
    model = command_line.KINDS[kind][0]()
    asked = vars(command_line.parser().parse_args([kind]))
    assert model.get_params().items() <= asked.items()
    for one in fields(model):
        wrong = type(model)(**{one.name: -1})
        with pytest.raises(ValueError, match=f"{one.name} must"):
            wrong.fit(*wave())
    with pytest.raises(ValueError, match="nothing is no parameter"):
        model.set_params(nothing=1)
    for name, start in (("p.png", b"\x89PNG"), ("q", b"\x89PNG"), ("p.pdf", b"%PDF")):
        run(kind, path, QUICK[kind], "--plot", tmp_path / name)
        assert (tmp_path / name).read_bytes()[:4] == start


def test_grouped(path):
    """--group takes its column out of the inputs, and is fit's groups."""
    X, y = wave()
    labels = np.arange(60) // 3
    path.write_text(csv_of(np.c_[X[:, :1], labels, X[:, 1:]], y).replace("x1", "g", 1))
    facts = json.loads(run("certify", path, QUICK["certify"], "--group g --json")[0])
    gp = CertifiedGP(evals=4, inducing=5).fit(X, y, groups=labels)
    assert facts["inputs"] == ["x0", "x2"] and facts["N"] == 10
    assert facts["mean_bound"] == gp.facts_["mean_bound"]


def test_refused(path, tmp_path):
    """One line, status 2, before anything is learnt."""
    run("follow", path, QUICK["follow"], "--save", tmp_path / "m")
    whole = (tmp_path / "m").read_bytes()
    damaged = bytearray(whole)
    damaged[300] ^= 1                                    # in what is read
    (tmp_path / "d").write_bytes(damaged)
    (tmp_path / "half").write_bytes(whole[:len(whole) // 2])
    np.savez(tmp_path / "z", np.array([{}], dtype=object))
    for typed, said in (
        (f"certify {tmp_path}/none", "No such file"), (f"certify --model {tmp_path}/m", "no saved"),
        *[(f"follow --model {tmp_path}/{name}", "no saved StreamGP of format 5")
          for name in ("d", "half", "z.npz", "t.csv")],
        (f"certify {path} --eps 0", "eps must be above 0"),
        (f"certify {path} --delta 2", "delta must be"), (f"score {path} --methods no", "methods must"),
        (f"certify {path} --group x0 --certificate prior", "held-out"), ("certify --no 1", "unrec"),
        (f"follow {path} --first 60", "none is left to evaluate"), ("copy nope", "no function nope"),
        (f"certify {path} --plot {tmp_path}/p.xyz", "xyz.* is not supported"),
        (f"certify {path} --out {tmp_path}/p", "--out needs --predict"),
        (f"certify {path} --model {tmp_path}/m", "takes the place"),
        (f"certify --model {tmp_path}/m --plot {tmp_path}/p", "without --save and --plot"),
        (f"certify {path} --save {tmp_path}/no/m", "No such file")):
        out, err = run(typed, status=2)
        assert re.fullmatch(f"error: .*{said}.*\n", err) and out == "", (typed, err)
    (tmp_path / "far").write_text(path.read_text() + "1,2,1e300\n")
    assert "far, row 61: y has a value" in run("follow", tmp_path / "far", status=2)[1]


@posix
@pytest.mark.parametrize("option", ["out", "save", "plot"])
def test_refused_overwriting(option, path, tmp_path):
    """No input is overwritten, by whatever name; a loop of links is refused; a link stays one."""
    (tmp_path / "hard").hardlink_to(path)
    (tmp_path / "soft").symlink_to(path)
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    before = path.read_bytes()
    (tmp_path / "new").write_text("x0,x1\n1,2\n")
    for name, said in (("t.csv", "one file"), ("hard", "one file"), ("soft", "one file"),
                       ("new", "one file"), ("a", "symbolic links"), ("", "irectory")):
        _, err = run("certify", path, QUICK["certify"], f"--predict {tmp_path}/new",
                     f"--{option} {tmp_path}/{name}", status=2)
        assert said in err and path.read_bytes() == before and err.count("\n") == 1
    (tmp_path / "link").symlink_to(tmp_path / "real")
    run("certify", path, QUICK["certify"], f"--predict {tmp_path}/new --{option} {tmp_path}/link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").stat().st_size > 0


@posix
@pytest.mark.parametrize("kind", QUICK)
def test_ends_in_a_line(kind, path, tmp_path):
    """A full disk is an error, a reader who leaves is none."""
    typed = command(kind, path, QUICK[kind])
    with open("/dev/full", "w") as full:
        ended = subprocess.run(typed, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stderr) == (2, "error: [Errno 28] No space left on device\n")
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(typed, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize("kind", QUICK)
def test_interrupted(kind, path, monkeypatch):
    """Ctrl-C ends the training and certifies nothing; of a stream, the rows so far."""
    def pressed(*_):
        raise KeyboardInterrupt

    def take(model, row, learn=StreamGP.take):
        learn(model, row) if model.seen_ < 30 else pressed()
    monkeypatch.setattr(command_line, "show", pressed)
    monkeypatch.setattr(StreamGP, "take", take)
    out, err = run(kind, path, status=130)
    assert err == "interrupted: nothing more is learnt or certified\n"
    assert ("of 20 rows" in out) == (kind == "follow") and bool(out) == (kind == "follow")


@pytest.mark.parametrize("flags", ["-I", "-P", "-O", "-OO"])
def test_runs_anywhere(flags, tmp_path):
    """With Python's stricter flags, another backend and a plain locale."""
    if flags == "-P" and sys.version_info < (3, 11):
        pytest.skip("no -P before Python 3.11")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "nope", "PYTHONIOENCODING": "ascii"}
    (tmp_path / "t").write_text("Gr\xf6\xdfe,y\n" + "1,2\n2,3\n" * 5, encoding="utf-8")
    typed = f"certify {tmp_path}/t --evals 2 --plot {tmp_path}/p.png"
    start = ["-m", "own_data"]
    if flags == "-I":                                    # takes no PYTHONPATH
        start = ["-c", f"import sys; sys.path.append({str(ROOT)!r}); sys.argv[0] = 'own_data'; "
                       "import runpy; runpy.run_module('own_data', run_name='__main__')"]
    ended = subprocess.run([sys.executable, flags, *start, *typed.split()], env=env, cwd=tmp_path,
                           capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "") and "target y" in ended.stdout


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="affinity of Linux")
def test_threads(monkeypatch):
    """As many as cores that this process may use, if BLAS has one; else none."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7})
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert command_line.threads().__self__._max_workers == 3
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    assert command_line.threads() is map


# --- scikit-learn --------------------------------------------------------------------------------

NO_SCALE = "targets whose first ten rows are equal have no deviations for eps to count"


@pytest.mark.parametrize("gp, failed", [
    (CertifiedGP(), {}), (PredictiveGP("exact", epochs=60), {}),
    (StreamGP(), {"check_positive_only_tag_during_fit": NO_SCALE})], ids=[*QUICK])
@pytest.mark.filterwarnings("ignore")
def test_sklearn_checks(gp, failed):
    """Every check of scikit-learn but those with a reason here."""
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    found = checks.check_estimator(gp, expected_failed_checks=failed)
    assert sum(one["status"] == "passed" for one in found) >= 51 - len(failed)
    assert {one["check_name"] for one in found if one["status"] == "xfail"} == {*failed}


@pytest.mark.filterwarnings("ignore")
def test_sklearn_used():
    """In a search within a pipeline, cross-validated; cloned, pickled; a frame's names checked."""
    pytest.importorskip("sklearn")
    pandas = pytest.importorskip("pandas")
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    X, y = wave()
    frame, target = pandas.DataFrame(X, columns=["a", "b"]), pandas.Series(y, name="price")
    gp = CertifiedGP(eps=0.5, evals=20)
    chosen = GridSearchCV(gp, {"kernel": ["SE", "Matern32"]}, cv=2).fit(frame, target)
    assert chosen.best_estimator_.names_ == ["a", "b", "price"]
    assert "predicted price misses" in chosen.best_estimator_.text()
    assert cross_val_score(make_pipeline(StandardScaler(), gp), X, y, cv=3).mean() > 0.7
    gp.fit(frame, target)
    again = pickle.loads(pickle.dumps(gp))
    assert np.array_equal(again.predict(frame), gp.predict(X))
    assert clone(gp).get_params() == gp.get_params() and not hasattr(clone(gp), "fit_")
    assert [*gp.feature_names_in_] == ["a", "b"]
    with pytest.raises(ValueError, match="columns b, a, where fit had, in this order, a, b"):
        gp.predict(frame[["b", "a"]])
    assert gp.score(X, y) == pytest.approx(1 - np.mean((y - gp.predict(X)) ** 2) / np.var(y))


# --- copies, words, the page ---------------------------------------------------------------------

@pytest.mark.parametrize("names, call, own", [
    ("kl_inv kl_inv_grad", "kl_inv(0.1, 0.2)", R), ("predictive.crps", "crps(a, a + 1, a)", J),
    ("online.best_lam", "best_lam(20, 1.5)", L),
    ("held_out binomial_bound", "binomial_bound(3, 50, 0.01)", certificates),
    ("full_gp_nll", "full_gp_nll(a[:, None], a, a[:2], 0.0)[0]", R)])
def test_copied(names, call, own, tmp_path):
    """Alone in an empty folder a copy gives the module's numbers; its head says whose it is."""
    text, _ = run("copy", names)
    assert text == run("score --copy", names)[0]
    head, *_ = text.splitlines()
    assert re.fullmatch(rf"# [\w, /.]+\.py {R.__version__}, .*: MIT, \(c\) 20\d\d The authors.*", head)
    (tmp_path / "copy.py").write_text(
        f"{text}\nimport numpy as np\na = np.array([0.5, 1.0, 2.0])\nprint(repr(float({call})))\n")
    found = subprocess.run([sys.executable, "-I", "copy.py"], cwd=tmp_path, capture_output=True,
                           text=True)
    want = eval(call, dict(vars(own), a=np.array([0.5, 1.0, 2.0])))
    assert (found.stderr, float(found.stdout)) == ("", want)


def test_copied_twins(monkeypatch):
    """A name that is needed from two files is refused."""
    rooms = {
        "online": ({"f": ("def f(): return g()", {"g"}), "g": ("def g(): return 1", set())}, {}),
        "predictive": ({"g": ("def g(): return 2", set())}, {}),
        "pacgp_ref": ({"h": ("def h(): return f() + g()", {"f", "g"})},
                      {"f": "online", "g": "predictive"})}
    monkeypatch.setattr(copying, "definitions", lambda room: rooms.get(room, ({}, {})))
    assert "return 1" in copying.copied("f") and "return 2" in copying.copied("g")
    assert "return 1" in copying.copied("online.g")
    with pytest.raises(ValueError, match="g: needed from two files under one name"):
        copying.copied("h")


def examples():
    """(command, output) of golden.txt."""
    parts = re.split(r"(?m)^\$ (.*)\n", GOLDEN.read_text())[1:]
    return list(zip(parts[::2], parts[1::2]))


COMMANDS = (
    "certify --evals 4", "certify --evals 3 --eps 2 --delta 0.03 --gibbs",
    "certify t.csv --certificate prior --evals 3 --eps 0.3 --kernel Matern32",
    "certify t.csv --certificate paper --evals 3 --eps 0.5 --relative",
    "certify gaps.csv --evals 2", "certify --evals 4 --coverage 0.9 --eps 0.3 0.6",
    "score --epochs 2 --inducing 5", "follow --inducing 6",
    "score series.csv --epochs 1 --methods SVGP", "certify --help")


def said(typed, folder):
    """What a command prints in a folder of tables."""
    X, y = wave()
    count = np.arange(60.0)[:, None]
    (folder / "t.csv").write_text(csv_of(X, y))
    (folder / "gaps.csv").write_text(csv_of(count // 2, count[:, 0]) + "1,\n" + "3,4\n" * 2)
    (folder / "series.csv").write_text(csv_of(count, y))
    before = os.getcwd()
    os.chdir(folder)
    try:
        return run(typed)[0]
    except SystemExit:
        return ""
    finally:
        os.chdir(before)


def assert_same_text(found, want, rough=0.0):
    """Words are the same, numbers within a unit of their last digit or a share of themselves."""
    number = r"-?\d+\.\d+"
    words = [re.sub(r"\s+", " ", re.sub(number, "#", text)) for text in (found, want)]
    assert words[0] == words[1]
    for a, b in zip(re.findall(number, found), re.findall(number, want)):
        digit = 10.0 ** -len(b.split(".")[1])
        assert abs(float(a) - float(b)) <= max(1.01 * digit, rough * abs(float(b))), (a, b)


@pytest.mark.parametrize("i", range(len(COMMANDS) - 1))
def test_golden(i, tmp_path):
    typed, want = examples()[i]
    assert typed == COMMANDS[i]
    assert_same_text(said(typed, tmp_path), want)


STEP = re.compile(r"```python\n(.*?)```|^    ((?:python|head) [^\n]*)\n|```text\n(.*?)```", re.S | re.M)


def test_readme_golden():
    """The third command prints README's two lines."""
    text = (ROOT / "README.md").read_text()
    typed = re.search(r"python -m own_data (certify --eps \S+)\n", text)[1]
    _, answer, *_ = run(typed)[0].split("\n\n")
    assert_same_text(answer, re.search("```text\n(With .*?)\n```", text, re.S)[1], 2e-3)


@posix
def test_page_golden(tmp_path):
    """The commands and examples of docs/own-data.md, in order, print what is below them."""
    text = (ROOT / "docs" / "own-data.md").read_text()
    assert len(re.sub("```.*?```", "", text, flags=re.S).split()) < 1700
    steps = STEP.findall(text)
    *_, (tables_of_page, _, _) = steps
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    steps.insert(0, (tables_of_page, "", ""))
    printed = last = None
    for code, typed, shown in steps:
        if shown:
            assert_same_text(printed, shown, 0.05 if "score" in last else 2e-3)
            continue
        last = typed
        if "pandas" in code:
            pytest.importorskip("pandas")
            pytest.importorskip("sklearn")
        words = [sys.executable, "-c", code] if code else typed.split("2>")[0].split()
        words[0] = words[0].replace("python", sys.executable) if typed else words[0]
        ended = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        printed = ended.stdout


if __name__ == "__main__":
    import tempfile
    with tempfile.TemporaryDirectory() as place:
        GOLDEN.write_text("".join(f"$ {typed}\n{said(typed, pathlib.Path(place))}"
                                  for typed in COMMANDS[:-1]))
