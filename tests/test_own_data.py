"""A table of one's own, by the three command lines and in Python: predictions, saved models,
columns, a stream's rows, plots.

Predictions are compared with those of Python's `predict` and `forecast` exactly, limits, columns
and rows with definitions.
"""

import csv
import functools
import importlib.util
import io
import itertools
import json
import math
import os
import pickle
import re

import numpy as np
import pytest

import online as L
import pacgp_ref as R
import predictive as J
from beyond import rounding, search, stream
from beyond.certificates import part_one
from own_data import certify_table, command_line, follow_stream, saving, score_table
from own_data.scale import Scale
from tests.oracles import assert_close, crossed
from tests.problems import certified, wave
from tests.programs import (
    each_module, fed, load, mixed, numbers, posix, printed, run, save, scaled, table)

pytestmark = pytest.mark.filterwarnings("ignore")
INF = float("inf")
HEAD = ["mean", "sd", "lower", "upper"]


def strict(text):
    """The one JSON value of each line; NaN and infinities, which are no JSON, are errors."""

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def csv_of(text):
    """The columns (4, n) of predictions as CSV."""
    head, *rows = csv.reader(io.StringIO(text))
    assert head == HEAD
    return np.array(rows, float).reshape(-1, 4).T


def identical(a, b):
    """Whether two values are of one type, and equal to the last bit, part by part; NumPy's scalars
    count as numbers.
    """
    a, b = (v.item() if isinstance(v, np.generic) else v for v in (a, b))
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, dict):
        return list(a) == list(b) and all(identical(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(identical, a, b))
    return repr(a) == repr(b)


def test_harness_identical():
    """Check the checker: types, names, shapes, signs of zero and NaN count."""
    same = [
        0.5, "a", None, math.nan, (1, [2.0]), {"a": np.zeros(2)}, np.array(3.0),
        stream.Settings()]
    other = [
        0.5 + 1e-16, "b", 0, 1.0, (1, [2]), {"b": np.zeros(2)}, np.array(3),
        stream.Settings(M=51)]
    assert identical(same, same)
    assert identical(np.float64(0.5), 0.5)
    assert not identical(0.0, -0.0)
    assert not identical((1,), [1])
    assert not any(map(identical, same, other))
    assert not identical(np.zeros(2), np.zeros((2, 1)))


# --- predictions ---------------------------------------------------------------------------------


def python_limits(module, path, X):
    """mean, sd, lower, upper (4, n) by Python: the model's own predictions, and the goal or 1.96
    deviations about them.
    """
    model = load(module, path)
    if module is R:
        mean, var = saving.predict(model, X)
        half = saving.fit_of(model).eps * model.scale.unit
    else:
        if module is J:
            mean, var = saving.predict_y(model, X)
        else:
            mean, _, var = stream.forecast(model.learner, X)
        half = 1.96 * np.sqrt(var)
    return np.array([mean, np.sqrt(var), mean - half, mean + half])


# rows 2 and 4 lack an input
NEW = "id,y,b,note,a\nu1,,0.5,high,-1\n,2,NA,,0.25\nu3,x,1e-1,\"a, b\",0.75\nu4,4,2,low,\n"
X_NEW = np.array([[-1, 0.5], [0.75, 0.1]])  # (a, b) of rows 1 and 3


@posix
@each_module
def test_predict_value(module, path):
    """After training, from the saved model, to a file, from a pipe, as JSON: the same numbers,
    which are Python's to the last bit. Columns in another order; others, texts and the target among
    them, are named; a line a row, nan for incomplete ones.
    """
    model, new, out = (path.with_name(name) for name in ("m.npz", "new.csv", "out.csv"))
    new.write_text(NEW)
    first = printed(module, path, "--save", model, "--predict", new)
    again = printed(module, "--model", model, "--predict", new, quick=[])
    got = csv_of(first[0])
    assert got.shape == (4, 4)
    assert np.isnan(got[:, [1, 3]]).all()
    assert first[0].splitlines()[2] == "nan,nan,nan,nan"
    assert identical(got[:, [0, 2]], python_limits(module, model, X_NEW))
    assert first[0] == again[0]
    certified = "nothing is certified of mean, sd, lower and upper"
    if module is L:
        certified = "not certified: the certificate is about the rows that came, not about these"
    if "the bound is" in first[1]:
        certified = r"outside lower and upper with probability at most 0\.\d{4}; mean and sd are"
    assert re.search(
        f"4 predictions: .*{certified}.*; not used: id, y, note; 2 are nan, for incomplete rows\n$",
        first[1])
    assert "inputs a, b; target y; header: yes" in first[1]

    text = printed(module, path, "--out", out, "--predict", new)[
        0]  # on stdout now: what stood on stderr
    assert out.read_text() == first[0]
    assert text == re.sub(r"(?m)^note: .*\n", "", first[1])
    said = text[text.index({R: "With 9", J: "Predicted", L: "With 9"}[module]) :]
    assert said in first[1]
    assert said.split("4 predictions")[0].strip() in again[1]
    for data in (new, fed(NEW.encode(), path.with_name("fifo"))):
        assert printed(module, "--model", model, "--predict", data, "--out", out, quick=[]) == (
            again[1], "")
        assert out.read_text() == first[0]
    piped, _ = printed(module, "--model", model, "--predict", "-", stdin=NEW.encode(), quick=[])
    assert piped == first[0]

    after, err = printed(module, path, "--json", "--predict", new)
    kept, _ = printed(module, "--model", model, "--json", "--predict", new, "--out", out, quick=[])
    for facts in (strict(after)[-1], strict(kept)[-1]):
        found = np.array([facts["predictions"][name] for name in HEAD], float)  # null is NaN
        assert identical(found, got)
        assert facts["version"] == R.__version__
    assert out.read_text() == first[0]
    assert "mean,sd" not in after
    assert all(line[:5] == "note:" for line in err.splitlines())


@each_module
def test_predict_rows(module, path):
    """A row of separators alone is a row: its line is nan, and the others stay beside their rows.
    """
    path.with_name("new").write_text("a\tb\n1\t2\n\t\n3\t1\n4\t4\n")
    got = csv_of(printed(module, path, "--predict", path.with_name("new"))[0])
    path.with_name("new").write_text("a,b\n1,2\n3,1\n4,4\n")
    assert np.isnan(got[:, 1]).all()
    assert identical(
        got[:, [0, 2, 3]], csv_of(printed(module, path, "--predict", path.with_name("new"))[0]))


@pytest.mark.parametrize("kernel", ["SE", "Matern32", "Matern52", "periodic"])
@each_module
def test_predict_certificate(module, kernel, path):
    """The bounds, or the scores, of --json are those that Python finds in the model, and the
    text's; each kernel is remembered, and named.
    """
    model = path.with_name("m.npz")
    kernel_option = ["--kernel", kernel]
    out, _ = printed(module, path, "--json", "--save", model, *kernel_option)
    *running, facts = strict(out)
    model = load(module, model)
    shown = printed(module, path, *kernel_option)[0]
    assert facts["text"] in shown if module is not R else facts["certificates"][0]["text"] in shown
    if module is R:
        (one,) = facts["certificates"]
        assert one == model.about
        fit = saving.fit_of(model)
        assert one["bound"] == fit.bound
        assert one["mean_bound"] == min(1, 2 * fit.bound)
        assert (one["risk"], one["KL"], one["N"], one["unit"]) == (
            fit.risk, fit.KL, 54, model.scale.unit)
        numbers_of = [
            math.log(one["noise"]), *2 * np.log(one["lengthscales"]), *np.log(one["periods"]),
            math.log(one["signal"])]
        assert np.allclose(numbers_of, [fit.ln_noise, *fit.ln_theta], rtol=1e-12, atol=1e-12)
        X, y, _ = scaled(path.read_text(), "tenth", False, 0)
        assert_close(one["guessing"], np.mean(np.abs(y - y.mean()) > 0.6), 1e-15)
        assert (one["kernel"], fit.kernel) == (kernel, saving.KERNELS[kernel])
        assert (f"; kernel: {kernel};" in one["text"]) == (kernel != "SE")
    elif module is J:
        (training, test, val), scale = score_table.three_parts(
            *numbers(path.read_text()), np.random.default_rng(0))
        assert facts["scores"] == score_table.all_scores({"SVGP": model.fit}, *test)
        assert facts["best"] == "SVGP"
        assert not running
        assert identical(model.scale, scale)
        assert facts["held_out_rows"] == 9
        assert facts["unit"] == scale.unit
    else:
        six = {
            name: one._asdict()
            for name, one in stream.certificates(model.learner)._asdict().items()
        }
        assert facts["certificates"] == six
        assert len(six) == 6
        assert (facts["kernel"], model.learner.posterior.kernel) == (kernel, saving.KERNELS[kernel])
        assert (f"Kernel: {kernel}." in facts["text"]) == (kernel != "SE")
        assert (facts["rows"], facts["seen"]) == (50, 60)
        assert [now["rows"] for now in running] == [10, 20, 50]
        assert running[-1]["certificates"] == six
        ledger = model.learner.ledger
        assert facts["rmse"] == math.sqrt(ledger.squares / ledger.rows)
    read = facts.get("read") or dict(rows=60, inputs=["a", "b"], target="y")
    assert (read["rows"], read["inputs"], read["target"]) == (60, ["a", "b"], "y")


# options of which two lead to one file: t.csv, its symlink, its hard link, a model, or none there
# yet
ONE_FILE = [
    "t.csv --out t.csv --predict new.csv", "t.csv --save link.csv", "t.csv --plot hard.csv",
    "t.csv --predict ./t.csv", "t.csv --predict new.csv --save new.csv",
    "t.csv --predict new.csv --out o --save ./o", "t.csv --save o --plot o",
    "t.csv --save to_o --plot o", "--model m --predict m", "--model m --predict new.csv --out m"]
ONE_STATE = [
    "t.csv --out hard.csv", "t.csv --state t.csv", "t.csv --state m --save m",
    "t.csv --state s --out s", "t.csv --state s --plot s", "- --state s --out ./s"]


@posix
@pytest.mark.parametrize(
    "module, typed",
    [(module, typed) for module in (R, J, L) for typed in ONE_FILE + ONE_STATE * (module is L)])
def test_predict_one_file(module, typed, path, monkeypatch):
    """Two options that lead to one file: status 2 and one line that names both; no file is read,
    made or changed.
    """
    monkeypatch.chdir(path.parent)
    for name in ("new.csv", "m"):
        path.with_name(name).write_text("a,b\n1,2\n")
    os.symlink("t.csv", "link.csv")
    os.symlink("o", "to_o")
    os.link("t.csv", "hard.csv")

    def files():
        return {
            name: os.path.exists(name) and path.with_name(name).read_bytes()
            for name in os.listdir()
        }

    before = files()
    out, err = printed(module, *typed.split(), quick=[], stdin=table(60).encode(), check=2)
    assert out == ""
    assert re.search("^error: (table|--[a-z]+) '.*' and --[a-z]+ '.*' are one file$", err)
    assert files() == before


@posix
@pytest.mark.parametrize(
    "module, typed",
    [*((module, typed) for module in (R, J, L) for typed in (
        "- --predict new.csv --out t.csv", "- --save ./t.csv", "t.csv --predict - --out t.csv")),
     (L, "- --out t.csv"), (L, "- --state t.csv")])
def test_predict_one_stdin(module, typed, path, monkeypatch):
    """Standard input that is a file is compared with every output."""
    monkeypatch.chdir(path.parent)
    path.with_name("new.csv").write_text("a,b\n1,2\n")
    before = path.read_bytes()
    kept = os.dup(0)
    try:
        with path.open() as file:
            os.dup2(file.fileno(), 0)
        err = printed(module, *typed.split(), stdin=before, check=2)[1]
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    assert re.search("^error: (table|--[a-z]+) '.*' and --[a-z]+ '.*' are one file$", err)
    assert path.read_bytes() == before


@each_module
def test_predict_replaces_its_own(module, path, monkeypatch):
    """What an option wrote is replaced by the same command. Another file, and the lines of another
    stream, are left as they are, and one line says what to do.
    """
    monkeypatch.chdir(path.parent)
    path.with_name("new.csv").write_text(NEW)
    typed = "t.csv --save m --predict new.csv --out p.csv --plot p.png".split()
    for name, text in (("d.txt", "diary\n"), ("d.png", "diary\n")):
        path.with_name(name).write_text(text)
    run(module, *typed)
    before = {name: path.with_name(name).read_bytes() for name in os.listdir()}
    assert {*before} == {"t.csv", "new.csv", "d.txt", "d.png", "m", "p.csv", "p.png"}
    assert run(module, *typed)[1] == run(module, *typed[:1], *typed[3:7])[1]
    assert {name: path.with_name(name).read_bytes() for name in os.listdir()} == before
    swapped = ["--save d.txt", "--save p.csv", "--predict new.csv --out d.txt", "--plot d.png",
               "--plot d", "--predict new.csv --out m"]
    if module is L:
        run(L, "t.csv", "--state", "s", "--out", "f.csv")
        run(L, "t.csv", "--state", "s", "--out", "f.csv")
        before |= {name: path.with_name(name).read_bytes() for name in ("s", "f.csv")}
        swapped += ["--state s2 --out f.csv", "--out f.csv", "--save s", "--out d.txt"]
    for typed in swapped:
        *_, option, name = typed.split()
        out, err = run(module, "t.csv", *typed.split(), check=2)
        assert out == ""
        assert err == (
            f"error: {option} {name!r} is there, and not from this option, or of another stream: "
            "choose another name, or remove it\n")
    assert {name: path.with_name(name).read_bytes() for name in os.listdir()} == before


def test_L_out_of_another(path):
    """A resumed stream refuses --out where a line is no row's, or another stream's."""
    state, out, other = (path.with_name(name) for name in ("s", "o", "other"))
    options = "--state", state, "--out"
    run(L, path, *options, out)
    run(L, "-", "--out", other, stdin=table(70, seed=1))
    lines = out.read_text().splitlines(True)
    for text, said in (
        (lines[:4] + ["\n"] + lines[4:], "line 5 has no row: remove it, or choose another file"),
        (lines[:4] + ["x,1\n"] + lines[4:], "line 5 has no row"),
        ([other.read_text()], "has row 60 of another stream: choose another file")):
        out.write_text("".join(text))
        before = out.read_text()
        err = run(L, path, *options, out, check=2)[1]
        assert re.fullmatch(f"error: --out {out},? {said}.*\n", err)
        assert out.read_text() == before
    run(L, path, "--state", path.with_name("without"))
    err = run(L, path, "--state", path.with_name("without"), "--out", out, check=2)[1]
    assert "has rows of another stream: choose another file" in err
    assert out.read_text() == before


def test_RJL_python_models(path):
    """A Learner or a Fit saved from Python is refused by --model in one line, or predicts; a Model
    with names predicts, and says its text, or else what is known of it.
    """
    X, y = numbers(path.read_text())
    new = path.with_name("new.csv")
    model = path.with_name("m.npz")
    new.write_text("a,b\n0.1,0.2\n")
    learner = certified(X, y, stream.Settings(M=5, learn="nothing"))[-1]
    for module, value in (
        (R, R.fit(X, y, max_evals=5)), (J, J.fit(X, y, "SVGP", 5, epochs=1)), (L, learner)):
        save(module, model, value)
        err = printed(module, "--model", model, "--predict", new, check=2, quick=[])[1]
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        if module is not L:
            scale = Scale(np.zeros(2), np.ones(2), 7.0, 2.0, 60)
            mean, *variances = module.predict(value, [[0.1, 0.2]])
            of_table = saving.predict(
                saving.Model(value, scale, ["a", "b"], "y"), [[0.1, 0.2]])
            assert np.allclose(
                of_table, [7 + 2 * mean, *(4 * var for var in variances)], rtol=1e-13, atol=0)
            said = f"bound {value.bound!r}; " if module is R else "method SVGP; kernel Matern52; "
            for about, text in (({"text": "mine"}, "mine\n"), ({}, said)):
                save(module, model, saving.Model(value, scale, ["a", "b"], "y", about))
                out, err = printed(module, "--model", model, "--predict", new, quick=[])
                assert identical(csv_of(out), python_limits(module, model, np.array([[0.1, 0.2]])))
                assert text in err
                (mean,), _ = module.predict(value, [[0.1, 0.2]])
                assert abs(csv_of(out)[0, 0] - 7 - 2 * mean) < 1e-14


@pytest.mark.parametrize(
    "how, loss",
    [("tenth", "01"), ("all", "square"), ("none", "exp"), ("tenth", "band"), ("tenth", "relative")])
def test_R_limits_value(how, loss, path):
    """mean -+ eps in the table's units; for band and relative all y with |mean - y| <= eps |y|, of
    either sign. Mean and sd are those of the fit to a table scaled here.
    """
    model = path.with_name("m.npz")
    relative = loss in R.RELATIVE_LOSSES
    run(R, path, "--loss", loss, "--scale", how, "--eps", "0.4", "--save", model)
    X, y, unit = scaled(path.read_text(), how, relative, 0)
    X_new, _ = numbers(table(9, seed=1))
    mean, sd, lower, upper = certify_table.tolerance_limits(
        saving.load(model), X_new)
    model = saving.load(model)
    fit = search.paper_fit(
        X, y, "kl-PAC-SGP", 5, eps=0.4, loss=loss, max_evals=5, last_evals=5, seed=0)
    want = R.predict(fit, (X_new - model.scale.middle_X) / model.scale.unit_X)
    middle = model.scale.middle
    assert np.allclose(mean, middle + unit * want[0], rtol=0, atol=1e-9)
    assert np.allclose(sd, unit * np.sqrt(want[1]), rtol=1e-9)
    if not relative:
        assert np.allclose(upper - mean, 0.4 * unit, rtol=1e-12)
        assert np.allclose(mean - lower, 0.4 * unit, rtol=1e-12)
        return
    assert min(mean) < 0 < max(mean)
    for m, a, b in zip(mean, lower, upper):
        step = 1e-9 * (b - a)
        around = a - step, a + step, b - step, b + step
        assert [v for v in around if abs(m - v) <= 0.4 * abs(v)] == [a + step, b - step]
        assert abs(m - (a + b) / 2) <= 0.4 * abs(a + b) / 2
    for eps in (1.0, 1.5):  # the set has no end: |mean - y| <= |y| for all large y
        ends = certify_table.tolerance_limits(
            model._replace(fit=saving.fit_of(model)._replace(eps=eps)), X_new)[2:]
        assert np.all(ends[0] == -INF)
        assert np.all(ends[1] == INF)


@pytest.mark.parametrize(
    "options, X_new", [(["--clock"], [[20.0], [21.0], [22.0]]), ([], None)],
    ids=["--clock", "one column"])
def test_L_predict_clock(options, X_new, path):
    """Where the row number is the input, the rows of the new table are the next ones, whatever
    their columns.
    """
    state = path.with_name("m.npz")
    new = path.with_name("new.csv")
    path.write_text(table(20, "a,y" if options else "y"))
    new.write_text("whatever\n1\n2\n3\n")
    out, _ = printed(L, path, *options, "--save", state, "--predict", new)
    assert identical(csv_of(out), python_limits(L, state, np.array([[20.0], [21.0], [22.0]])))


# --- saved models --------------------------------------------------------------------------------


def fitted(module, method):
    """A Model, or for streams a Session, of one method; of sqrt-... methods with a Certified."""
    X, y = wave(24, d=2)
    if module is L:
        learners = certified(
            X, y, stream.Settings(M=5, learn=method, unit="running", window=6), 8)
        return follow_stream.Session(
            learners[-1], [np.arange(4.0)],
            {"seen": 3, "names": ["a", "b"], "used": None, "lams": [0.1, 1e-300]})
    if module is R:
        fit = R.fit(X, y, method, 4, max_evals=4)
        fit = rounding.strict(fit, X, y) if "sqrt" in method else fit
    else:
        fit = J.fit(X, y, method, 4, "periodic" if method == "MAP" else "Matern52", epochs=2)
    scale = Scale(np.array([0.1, -0.0]), np.array([INF, 1e-300]), 0.1, 3.0, 9)
    about = {"text": "two\nlines", "bound": 1 / 3, "held": None, "at": [math.nan]}
    return saving.Model(fit, scale, ["a", "gr\u00f6\u00dfe, \"b\""], "", about)


METHODS = [
    (module, method)
    for module in (R, J, L)
    for method in (stream.LEARN if module is L else module.METHODS)
]


@pytest.mark.parametrize(
    "module, method", METHODS, ids=[f"{module.__name__}-{method}" for module, method in METHODS])
def test_save_load_identical(module, method, tmp_path):
    """All fields come back, of the same types, to the last bit, and are written as the same bytes
    again, those of a Fit or a Learner alone, too; what is loaded predicts the same.
    """
    whole = fitted(module, method)
    X, _ = wave(5, 1, d=2)
    part = whole.learner if module is L else whole.fit

    def keep(value):
        return save(
            module, tmp_path / "m",
            *(value if isinstance(value, follow_stream.Session) else [value]))

    for value in (whole, part):
        keep(value)
        raw = (tmp_path / "m").read_bytes()
        loaded = load(module, tmp_path / "m")
        keep(loaded)
        if value is part and module is L:
            value = follow_stream.Session(part, [], {})
        assert identical(loaded, value)
        assert (tmp_path / "m").read_bytes() == raw

    def predict(kept):
        if module is L:
            return stream.forecast(kept.learner, X)
        whole = isinstance(kept, saving.Model)
        return (saving if whole else module).predict(kept, X)

    loaded = load(module, tmp_path / "m")
    assert identical(
        predict(loaded), predict(loaded._replace(learner=part) if module is L else part))
    assert os.listdir(tmp_path) == ["m"]


@pytest.mark.parametrize("method", ["free-sqrt-PAC-SGP", "exact", "bound", "no learner"])
@pytest.mark.parametrize("every", [97, pytest.param(1, marks=pytest.mark.slow)])
def test_load_damaged(method, every, tmp_path):
    """A bit or a byte turned over, or the file cut there: a ValueError that names the file, or all
    is as saved.
    """
    module = {"free-sqrt-PAC-SGP": R, "exact": J}.get(method, L)
    value = fitted(module, "bound" if method == "no learner" else method)
    if method == "no learner":
        value = value._replace(learner=None)
    good = tmp_path / "m"
    damaged = tmp_path / "d"
    save(module, good, *(value if module is L else [value]))
    raw = good.read_bytes()
    read = 0
    for i in range(0, len(raw), every):
        byte, bit = (bytes([raw[i] ^ turned]) for turned in (255, 1 << i % 8))
        for spoilt in (byte + raw[i + 1:], bit + raw[i + 1:], b""):
            damaged.write_bytes(raw[:i] + spoilt)
            try:
                assert identical(load(module, damaged), value), i
                read += 1
            except ValueError as err:
                assert str(damaged) in str(err)
                assert "\n" not in str(err)
    assert 0 < read < len(raw) / every


def test_load_damaged_shape(tmp_path):
    """A shape that is made smaller hides a part of its array from the check sum: it is noticed."""
    path = tmp_path / "m"
    save(J, path, fitted(J, "exact"))
    raw = path.read_bytes()
    assert b"'shape': (24, 24)" in raw
    path.write_bytes(raw.replace(b"'shape': (24, 24)", b"'shape': (24, 20)"))
    with pytest.raises(ValueError, match="damaged"):
        load(J, path)


class Trap:
    """Says so if it is ever unpickled."""

    def __reduce__(self):
        return pytest.fail, ("it was unpickled",)


def archive(path, about, *arrays):
    """An archive as write_archive writes it, of any JSON."""
    np.savez(path.open("wb"), np.frombuffer(json.dumps(about).encode(), np.uint8), *arrays)


def one_array_for_another(path):
    """Writes a model whose second array is named in the archive's directory, which no check sum
    covers, as the third.
    """
    saving.save(path, fitted(R, "VFE"))
    before, after = path.read_bytes().rsplit(b"arr_1.npy", 1)
    path.write_bytes(before + b"arr_2.npy" + after)


NO_MODEL = {  # name -> what writes it, what the ValueError says
    "pickle": (lambda path: path.write_bytes(pickle.dumps(Trap())), "no saved model"),
    "pickled array": (
        lambda path: np.save(path.open("wb"), np.array([Trap()]), allow_pickle=True),
        "no saved model"),
    "pickled in an archive": (
        lambda path: np.savez(path.open("wb"), np.array([Trap()])), "no saved model"),
    "text": (lambda path: path.write_text("a,b\n1,2\n"), "no saved model"),
    "empty": (lambda path: path.touch(), "no saved model"),
    "other arrays": (lambda path: np.savez(path.open("wb"), a=np.zeros(3)), "no saved model"),
    "no archive": (lambda path: np.save(path.open("wb"), np.zeros(3)), "no saved model"),
    "an array twice": (one_array_for_another, "no saved model"),
    "a folder": (lambda path: path.mkdir(), "cannot read"),
    "not there": (lambda path: None, "cannot read"),
    "later format": (
        lambda path: archive(
            path, dict(format=9, module="pacgp_ref", version="9.1", value={"dict": {}})),
        "was saved by pacgp_ref.py 9.1, format 9: this is pacgp_ref.py .*, format 4",
    ),
    "other module": (
        lambda path: follow_stream.save(path, None),
        "was saved by online.py .*: this is pacgp_ref.py"),
    "no version": (lambda path: archive(path, dict(format=4, module="pacgp_ref")), "saved"),
    "no format": (
        lambda path: archive(path, dict(module="pacgp_ref", version="1")), "no saved model"),
    "no such array": (
        lambda path: archive(
            path, dict(format=4, module="pacgp_ref", version="1", value={"array": 3})),
        "no saved model",
    ),
    "no such kind": (
        lambda path: archive(
            path, dict(format=4, module="pacgp_ref", version="1", value={"Popen": {"a": 1}})),
        "no saved model",
    ),
}


@pytest.mark.parametrize("name", NO_MODEL)
def test_load_refused(name, tmp_path):
    """A ValueError that names the file and what is wrong; nothing is unpickled."""
    write, message = NO_MODEL[name]
    write(tmp_path / "m")
    with pytest.raises(
        ValueError,
        match=f"{tmp_path}/m .*{message}|{message} {tmp_path}/m|{message}.*{tmp_path}/m"):
        saving.load(tmp_path / "m")


def test_save_refused(tmp_path):
    """What is no model, a kernel without a name, and a place where nothing can be written: a
    ValueError, and no file is left.
    """
    nameless = functools.partial(R.se_kernel, exact=True)
    with pytest.raises(ValueError, match="a kernel without a name cannot be saved"):
        saving.save(tmp_path / "m", fitted(R, "VFE").fit._replace(kernel=nameless))
    for module, makers in ((R, "fit"), (J, "fit"), (L, "begin or step")):
        with pytest.raises(ValueError, match=f"(model|learner) .*{makers}"):
            save(module, tmp_path / "m", 3.0)
        with pytest.raises(ValueError, match="cannot write .*nowhere"):
            save(
                module,
                tmp_path / "nowhere" / "m",
                *(
                    fitted(module, "nothing")[:1]
                    if module is L
                    else [fitted(module, "VFE" if module is R else "MAP")]
                ),
            )
    assert os.listdir(tmp_path) == []


NO_FIELD = {      # field of a Model, what it must not hold -> what the ValueError says
    "number": (dict(inputs=[0, 1]), "inputs of a Model must be a list of texts"),
    "one text": (dict(inputs="xz"), "inputs of a Model"),
    "no text": (dict(target=3), "target of a Model must be a text"),
    "a set": (dict(about={"tags": {1}}), "about of a Model must be a dict that JSON can say"),
    "an array": (dict(about={"a": np.zeros(2)}), "about of a Model"),
    "other text": (dict(about={"text": 3}), "about of a Model"),
    "other bound": (dict(about={"mean_bound": "low"}), "about of a Model"),
    "other loss": (dict(about={"mean_bound": 0.1, "loss": 3}), "about of a Model"),
    "a number as name": (dict(about={3: 1}), "about|cannot save a dict"),
    "no dict": (dict(about=[1]), "about of a Model"),
    "no fit": (dict(fit=3), "fit .*Fit"),
    "no scale": (dict(scale=(0, 1)), "scale must be a Scale"),
    "flat scale": (dict(scale=Scale(np.zeros(3), np.ones(3), 0.0, 1.0, 9)), "fit of a Model"),
    "a text in it": (dict(scale=Scale(np.zeros(2), np.ones(2), "a", 1.0, 9)), "fit of a Model"),
    "two units": (
        dict(scale=Scale(np.zeros(2), np.ones(2), 0.0, np.ones(1), 9)), "fit of a Model"),
    "objects": (
        dict(scale=Scale(np.array([0, None]), np.ones(2), 0.0, 1.0, 9)), "fit of a Model"),
}


@pytest.mark.parametrize("name", [*NO_FIELD, "eps", "posterior", "method", "x"])
@pytest.mark.parametrize("module, method", [(R, "VFE"), (J, "SVGP")])
def test_save_model_refused(module, method, name, path, monkeypatch):
    """A Model that the command line could not use is refused by save, and by load where it was
    written all the same; so is a Fit with another field.
    """
    model = fitted(module, method)
    changed, message = NO_FIELD.get(name, ({}, "fit of a Model must be one that predicts"))
    if not changed:
        field = {
            "eps": "eps" if module is R else "beta_reg", "method": "method",
            "posterior": "posterior" if module is R else "predictor",
            "x": "posterior" if module is R else "predictor"}[name]
        value = (model.fit.posterior if module is R else model.fit.predictor)[:2]
        changed = dict(fit=model.fit._replace(**{field: value if name == "x" else [{}]}))
    bad = model._replace(**changed)
    new = path.with_name("m")
    with pytest.raises(ValueError, match=message):
        saving.save(new, bad)
    assert not new.exists()
    monkeypatch.setattr(saving, "checked", lambda model, _, **__: model)
    try:
        saving.write_archive(new, bad, module.__name__, saving.MODELS[module.__name__])
    except ValueError:
        return
    monkeypatch.undo()
    err = printed(module, "--model", new, "--predict", path, check=2, quick=[])[1]
    assert str(new) in err


@pytest.mark.parametrize(
    "about, learner",
    [
        *(({name: value}, {}) for name, value in (
            ("seen", "a"), ("skipped", [1]), ("used", 3), ("first", "a"), ("batch", None))),
        *(({}, {name: value}) for name, value in (
            ("posterior", (1, 2)), ("ledger", stream.Ledger("a")), ("input_scale", 3),
            ("target", stream.Moments(*"abc")), ("settings", None)))])
def test_L_state_kinds(about, learner, path):
    """A state whose parts are of other kinds is refused in one line, as state and as model."""
    state = path.with_name("s")
    run(L, path, "--state", state)
    whole = follow_stream.load(state)
    follow_stream.save(
        state, whole.learner._replace(**learner), whole.waiting, dict(whole.about, **about))
    for typed, quick in (([path, "--state", state], None), (["--model", state], [])):
        err = printed(L, *typed, check=2, quick=quick)[1]
        assert re.search(f"{state} .*(it lacks|made with)", err)


@each_module
def test_save_texts(module, path):
    """Names as pandas or NumPy has them are kept as a list of texts; nothing is pickled."""
    if module is L:
        with pytest.raises(ValueError, match="cannot save an array of Python objects"):
            follow_stream.save(path, None, [], {"a": np.array([{}])})
        follow_stream.save(path, None, [], {"a": np.array(["x", "zz"], object)})
        assert identical(follow_stream.load(path).about["a"], np.array(["x", "zz"]))
        return
    model = fitted(module, "VFE" if module is R else "SVGP")
    for names in (np.array(["x", "zz"], object), np.array(["x", "zz"]), ("x", "zz")):
        saving.save(path, model._replace(inputs=names, about=dict(mean_bound=0.1)))
        assert load(module, path).inputs == ["x", "zz"]
        new = path.with_name("new")
        new.write_text("x,zz\n1,2\n")
        said = printed(module, "--model", path, "--predict", new, quick=[])[1]
        assert "nothing is certified of mean" in said


# --- columns -------------------------------------------------------------------------------------

COLUMNS = (
    {  # name -> options, inputs, target, what is not used, of the columns a, b, "c, d", text, y, y
        "inputs": (["--inputs", "a,b", "--target", "4"], ["a", "b"], "y", "c, d, text, y"),
        "order": (
            ["--inputs", "b,a", "--drop", "5,text", "--target", "4"], ["b", "a"], "y",
            "c, d, text, y"),
        "quoted": (["--inputs", '"c, d",0', "--target", "b"], ["c, d", "a"], "b", "text, y, y"),
        "drop": (["--drop", "text,5"], ["a", "b", "c, d"], "y", "text, y"),
        "drop a quoted one": (["--drop", '"c, d",3,5'], ["a", "b"], "y", "c, d, text, y"),
        "target": (["--drop", "text,4,5", "--target", "a"], ["b", "c, d"], "a", "text, y, y"),
    }
)


@each_module
@pytest.mark.parametrize("name", COLUMNS)
def test_columns_value(module, name, path):
    """The same numbers as from a table that has these columns alone, in this order; names, and what
    is not used, are said.
    """
    typed, inputs, target, unused = COLUMNS[name]
    text, columns = mixed()
    path.write_text(text)
    with path.with_name("plain.csv").open("w") as file:
        csv.writer(file).writerows(
            [[*inputs, target], *zip(*(columns[name].tolist() for name in (*inputs, target)))])
    out, _ = run(module, path, *typed, "--save", path.with_name("m"))
    want, _ = run(module, path.with_name("plain.csv"), "--save", path.with_name("n"))
    assert f"inputs {', '.join(inputs)}; target {target}; header: yes; not used: {unused}" in out
    assert out.replace(f"; not used: {unused}", "") == want
    model, plain = (load(module, path.with_name(name)) for name in "mn")
    assert identical(model[:2], plain[:2])
    assert module is L or (model.inputs, model.target) == (inputs, target)


@each_module
def test_columns_texts(module, path):
    """All texts of a line in one message; the --drop that it gives, by names or, where one is no
    word, numbers, leaves a table that is read. The target is not to be dropped; no column of
    --predict is.
    """
    head, *rows = table(40).splitlines()
    for names, drop in (
        ("day,shop", "day,shop"), ('"day, hour",shop', "0,shop"),
        (",".join(f"t{i}" for i in range(11)), None)):
        texts = [f"t{i}" for i in range(names.count(",") + 1 - (drop == "0,shop"))]
        path.write_text(
            "\n".join([f"{names},{head}", *(",".join([*texts, row]) for row in rows)]) + "\n")
        err = run(module, path, check=2)[1]
        assert all(repr(text) in err for text in texts[:10])
        assert err.count("\n") == 1
        found = re.search(r"docs/own-data.md says, or leave it out: --drop (\S+)\)", err)
        if drop:
            assert found[1] == drop
            assert "inputs a, b; target y" in run(module, path, "--drop", drop)[0]
        else:
            assert "and 1 more (11) are not" in err
            assert "leave it out: --drop A,B)" in err
    path.write_text(table(40))
    path.with_name("new").write_text("a,b\nx,0\n")
    assert run(module, path, "--predict", path.with_name("new"), check=2)[1].endswith(
        "a: 'x' is not a finite number\n")


@each_module
@pytest.mark.parametrize("mark", [";", "\t"])
def test_columns_decimal(module, mark, path):
    """--decimal , with semicolons or tabs: the numbers of the table with points. Points are then
    refused, commas else.
    """
    plain = table(40)
    path.write_text(plain)
    want = run(module, path, "--save", path.with_name("m"))
    new = "a,b\n-1.5,0.25\n"
    path.write_text(plain.replace(",", mark).replace(".", ","))
    assert run(module, path, "--decimal", ",", "--save", path.with_name("n")) == want
    assert "'0,1" in run(module, path, check=2)[1]
    assert "(a decimal comma? use --decimal ,)" in run(module, path, check=2)[1]
    predictions = []
    for name, text, options in (
        ("m", new, []), ("n", new.replace(",", mark).replace(".", ","), ["--decimal", ","])):
        (file := path.with_name("new.csv")).write_text(text)
        predictions.append(
            printed(module, "--model", path.with_name(name), "--predict", file, *options, quick=[]))
    assert predictions[0] == predictions[1]
    path.write_text(plain.replace(",", mark))
    assert re.search(
        r"line 2, a: '0\.1\d+', .* \(a decimal point\? use --decimal \.\)",
        run(module, path, "--decimal", ",", check=2)[1])


@each_module
def test_columns_missing(module, path):
    """--missing refuse: an incomplete row is an error that names it; an empty cell of a column that
    is not used is none.
    """
    path.write_text(table(60, row=["1,,3"]))
    _, err = run(module, path, "--missing", "refuse", check=2)
    assert all(
        part in err for part in (" row 41", " empty cell, NA, NaN or null", "--missing drop"))
    assert err.count("\n") == 1
    assert run(module, path, "--missing", "drop")[0] == run(module, path)[0]
    assert "incomplete" not in run(module, path, "--missing", "refuse", "--drop", "b")[0]


# --- a stream's rows -----------------------------------------------------------------------------

OUT = ["row", "mean", "sd", "lower", "upper", "y", "loss", "bound"]


@pytest.mark.parametrize(
    "first, batch, options, goal",
    [
        (10, 1, "", {}), (9, 4, "--loss square --delta 0.2", dict(loss="square", delta=0.2)),
        (12, 5, "--learn window --unit running", dict(learn="window", unit="running"))],
)
def test_L_out_value(first, batch, options, goal, path):
    """A line for each row that counts: its number, the forecast before its batch came, its target,
    the mean loss of a draw over the batch, and the bound then; by a loop of begin, step, forecast,
    certificates. Incomplete rows have a number, no line.
    """
    path.write_text(table(45, row=["1,2,NA"]))
    X, y = numbers(table(45))
    run(L, path, "--out", path.with_name("o"), "--first", first, "--batch", batch, *options.split())
    head, *rows = csv.reader(path.with_name("o").open())
    learners = certified(
        X, y, stream.Settings(**{**dict(M=8, learn="nothing"), **goal}), first, batch,
        ln_theta=np.log([2, 2, 1]))
    want = []
    for i, (old, new) in enumerate(itertools.pairwise(learners)):
        at = slice(first + i * batch, min(first + i * batch + batch, 45))
        mean = stream.forecast(old, X[at])[0]
        sd = np.sqrt(stream.forecast(old, X[at])[2])
        loss = (new.ledger.before - old.ledger.before) / len(mean)
        bound = stream.certificates(new).draw.bound
        for n, m, s, target in zip(range(at.start, at.stop), mean, sd, y[at], strict=True):
            want.append([n + 1 + (n >= 40), m, s, m - 1.96 * s, m + 1.96 * s, target, loss, bound])
    assert head == OUT
    assert identical(np.array(rows, float), np.array(want))
    assert len(rows) == 45 - first
    path.with_name("o").unlink()
    assert run(L, path, "--first", first, "--batch", batch, *options.split()) == run(
        L, path, "--first", first, "--batch", batch, *options.split(), "--out", path.with_name("o"))


@crossed("piped, batch", [False, True], [1, 3], default=lambda piped, batch: piped == (batch == 3))
def test_L_out_killed(piped, batch, path):
    """Stopped after any row, and then killed in the next run before it saves: it goes on from the
    older state, and no line is there twice, none is lost, and one that was being written is whole.
    """
    lines = table(18).splitlines(True)
    options = ["--first", 5, "--batch", batch, "--every", 100]
    out, state, want = (path.with_name(name) for name in ("o", "s", "want"))
    path.write_text("".join(lines))
    run(L, path, *options, "--state", path.with_name("s0"), "--out", want)
    assert len(want.read_text().splitlines()) == 1 + (18 - 5) // batch * batch
    for cut in range(1, 18):
        path.write_text("".join(lines[: cut + 1]))
        run(L, path, *options, "--state", state, "--out", out)
        saved = state.read_bytes()
        rest = "".join(lines[:1] + lines[cut + 1 :]).encode()
        whole = len(out.read_text())
        path.write_text("".join(lines))
        for kill in (True, False):  # killed before it saved; then whole
            run(L, "-" if piped else path, *options, "--state", state, "--out", out, stdin=rest)
            assert out.read_text() == want.read_text(), (cut, kill)
            state.write_bytes(saved)
            out.write_text(out.read_text()[: max(whole, len(out.read_text()) - 9)])
        state.unlink()
        out.unlink()


# --- plots ---------------------------------------------------------------------------------------


@each_module
def test_plot_value(module, path, monkeypatch):
    """--plot writes a PNG that is no empty canvas, and changes nothing that is printed; without
    matplotlib the remedy is said before anything is trained.
    """
    from matplotlib.image import imread

    png = path.with_name("p.png")
    find = importlib.util.find_spec
    assert run(module, path, "--plot", png) == run(module, path)
    pixels = imread(png)[..., :3]
    assert pixels.shape[:2] == (570, 1440 if module is J else 720)  # J: two drawings, side by side
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50
    no_picture = (
        f"error: --plot {str(png) + '.foo'!r}: no picture ends in .foo: write .png, .pdf or .svg\n")
    assert run(module, path, "--plot", f"{png}.foo", check=2) == ("", no_picture)
    png.unlink()
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *_: None if name == "matplotlib" else find(name))
    said = "error: --plot needs matplotlib: python -m pip install matplotlib\n"
    assert run(module, path, "--plot", png, check=2) == ("", said)
    assert not png.exists()


@each_module
def test_plot_comes_last(module, path, monkeypatch):
    """A name that looks like a formula is drawn as it stands; where a picture fails, what was
    trained, certified and predicted is there.
    """
    from matplotlib.figure import Figure

    model, out, png = (path.with_name(name) for name in ("m", "o", "p.png"))
    path.write_text(table(60, "a,b,cost_$^{x$"))
    (new := path.with_name("new.csv")).write_text(path.read_text())
    options = "--save", model, "--predict", new, "--out", out, "--json", "--plot", png
    want = printed(module, path, *options)[0]
    assert png.exists()
    assert strict(want)[-1]["predictions"]
    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: 1 / 0)
    for file in (model, out):
        file.unlink()
    failed, err = printed(module, path, *options, check=2)
    assert failed == want
    assert "division by zero" in err
    assert model.exists()
    assert out.exists()


def axes():
    """Axes to draw on."""
    from matplotlib.figure import Figure

    return Figure().add_subplot()


def lines(ax):
    """[(label, x, y)] of what is plotted as lines or points."""
    return [(line.get_label(), *line.get_data()) for line in ax.get_lines()]


def test_J_draw_value():
    """Predicted against actual targets, and the share of rows inside central intervals, counted one
    by one.
    """
    X, y = wave(40)
    ax, at = axes(), axes()
    fits = {"SVGP": J.fit(X, y, "SVGP", 5, epochs=3)}
    mean, var = J.predict_y(fits["SVGP"], X)
    command_line.draw_predicted(
        ax, {method: mean + i for i, method in enumerate(J.METHODS)}, y, "a$b")
    score_table.draw_calibration(at, fits, X, y)
    for i, (line, method) in enumerate(zip(lines(ax), J.METHODS)):      # the diagonal is the last
        assert identical(line, (method, mean + i, y))
    assert (ax.get_xlabel(), ax.get_ylabel()) == (r"predicted a\$b", r"actual a\$b")
    assert len({*command_line.MARKS}) == len(J.METHODS)
    (name, wanted, inside), _ = lines(at)
    pit = np.array(
        [R.norm_cdf(v) for v in (y - mean) / np.sqrt(var)])  # inside where |2 pit - 1| < share
    assert name == "SVGP"
    assert np.array_equal(inside, [np.mean(np.abs(2 * pit - 1) < share) for share in wanted])
    assert 0 < wanted[0] < 0.05
    assert wanted[-1] > 0.95
    assert np.ptp(inside) > 0.5


@pytest.mark.parametrize("kind, loss", [("paper", "01"), ("held-out", "band")])
def test_R_draw_goal_value(kind, loss, path, monkeypatch):
    """A single goal: targets against means of the rows that train or are held out, and the limits
    that --predict gives, all in the table's units.
    """
    drawn = []
    model = path.with_name("m")
    draw = certify_table.draw_tolerance
    ax = axes()
    monkeypatch.setattr(
        certify_table, "draw_tolerance",
        lambda ax, **given: drawn.append(given) or draw(ax, **given))
    run(
        R, path, "--certificate", kind, "--loss", loss, "--save", model, "--plot",
        path.with_name("p.png"))
    X, y = numbers(path.read_text())
    model = saving.load(model)
    rest = (
        np.random.default_rng(0).permutation(60)[:6] if kind == "paper" else part_one(60, 0.5, 0))
    rest = np.setdiff1d(np.arange(60), rest)
    draw(ax, **drawn[0])
    mean, _, *ends = certify_table.tolerance_limits(model, X[rest])
    (_, at, lower), (_, _, upper), (label, means, targets), _ = lines(ax)
    assert label == ("training rows" if kind == "paper" else "held-out rows")
    assert np.allclose(means, mean, rtol=0, atol=1e-9)
    assert np.allclose(targets, y[rest], rtol=0, atol=1e-9)
    assert np.array_equal(at, np.sort(means))
    assert ax.get_xlabel() == "predicted y"
    for got, want in zip((lower, upper), ends):
        assert np.allclose(got, want[np.argsort(mean)], rtol=0, atol=1e-9)


def test_RL_draw_value(path, monkeypatch):
    """Bounds and risks against the goals in their order and in the table's units; certificates over
    the rows that count.
    """
    drawn = []
    draw = certify_table.draw_bounds
    monkeypatch.setattr(
        certify_table, "draw_bounds",
        lambda ax, **given: drawn.append(given) or draw(ax, **given))
    out, _ = printed(R, path, "--eps", "0.9", "0.3", "--json", "--plot", path.with_name("p.png"))
    certificates = strict(out)[-1]["certificates"]
    ax = axes()
    draw(ax, **drawn[0])
    assert ax.get_xlabel() == "tolerance eps, in the unit of y"
    small, large = certificates[::-1]
    assert [one["eps"] for one in (small, large)] == [0.3, 0.9]
    want = [("paper: bound", "bound"), ("paper: risk", "risk")]
    for (label, eps, values), (name, key) in zip(lines(ax), want, strict=True):
        assert label == name
        assert np.array_equal(eps, [0.3 * small["unit"], 0.9 * large["unit"]])
        assert list(values) == [small[key], large[key]]
        assert values[0] != values[1]
    history = strict(printed(L, path, "--every", "10", "--json")[0])
    ax = axes()
    follow_stream.draw_history(ax, history)
    assert [label for label, *_ in lines(ax)[::2]] == ["sampled", "mean", "interval", "persistence"]
    keys = dict(sampled="draw", mean="mean", interval="interval", persistence="last")
    for (title, rows, bounds), (_, _, losses) in zip(lines(ax)[::2], lines(ax)[1::2], strict=True):
        name = keys[title]
        assert list(rows) == [10, 20, 30, 40, 50, 50]
        assert list(bounds) == [now["certificates"][name]["bound"] for now in history]
        assert list(losses) == [now["certificates"][name]["loss"] for now in history]
