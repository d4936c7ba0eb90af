"""A table of one's own, by the three command lines and in Python: predictions, saved models,
columns, a stream's rows, plots.

Predictions are compared with those of Python's `predict` and `forecast` exactly, limits, columns
and rows with definitions. What is printed, and most of what is refused, is in transcripts.txt.
"""

import csv
import importlib.util
import io
import itertools
import json
import math
import os
import pickle
import re
import shlex

import numpy as np
import pytest

import online as L
import pacgp_ref as R
import predictive as J
from beyond import rounding, stream
from beyond.certificates import part_one
from own_data import certify_table, follow_stream, saving, score_table, tables
from own_data.scale import FACTORS, Scale
from tests.oracles import assert_close, crossed
from tests.problems import certified, wave
from tests.programs import (
    each_module, fed, load, mixed, numbers, posix, printed, PROGRAM, run, save, scaled, table)

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
    same = [0.5, math.nan, (1, [2.0]), {"a": np.zeros(2)}, stream.Settings()]
    other = [0.5 + 1e-16, 0, (1, [2]), {"b": np.zeros(2)}, stream.Settings(M=51)]
    assert identical(same, same)
    assert not any(map(identical, same, other))
    for a, b in ((0.0, -0.0), ((1,), [1]), (np.zeros(2), np.zeros((2, 1)))):
        assert not identical(a, b)


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
    which are Python's to the last bit. Columns in another order; a line a row, nan for incomplete
    ones.
    """
    model, new, out = (path.with_name(name) for name in ("m.npz", "new.csv", "out.csv"))
    new.write_text(NEW)
    kept = ["--model", model]
    text, said = printed(module, path, "--save", model, "--predict", new)
    got = csv_of(text)
    assert np.isnan(got[:, [1, 3]]).all()
    assert identical(got[:, [0, 2]], python_limits(module, model, X_NEW))
    beside, _ = printed(module, path, "--out", out, "--predict", new)
    assert out.read_text() == text
    assert beside == re.sub(r"(?m)^note: .*\n", "", said)      # on stdout now
    assert printed(module, *kept, "--predict", new, quick=[])[0] == text
    assert printed(module, *kept, "--predict", "-", stdin=NEW.encode(), quick=[])[0] == text
    fifo = fed(NEW.encode(), path.with_name("fifo"))
    printed(module, *kept, "--predict", fifo, "--out", out, quick=[])
    assert out.read_text() == text
    for typed, quick in (([path], None), (kept, [])):
        facts = strict(printed(module, *typed, "--json", "--predict", new, quick=quick)[0])[-1]
        found = np.array([facts["predictions"][name] for name in HEAD], float)  # null is NaN
        assert identical(found, got)
        assert facts["version"] == R.__version__


@pytest.mark.parametrize("kernel", ["SE", "periodic"])
def test_R_predict_certificate(kernel, path):
    """The certificate of --json is that of the model, whose Fit has its numbers; the unit and the
    risk of guessing are those of the table scaled here.
    """
    model = path.with_name("m.npz")
    out, _ = printed(R, path, "--json", "--save", model, "--kernel", kernel)
    (facts,) = strict(out)
    (one,) = facts["certificates"]
    model = saving.load(model)
    assert one == model.about
    fit = saving.fit_of(model)
    assert fit.kernel is saving.KERNELS[kernel]
    assert one["mean_bound"] == min(1, 2 * fit.bound)
    for name in ("bound", "risk", "KL", "N"):
        assert one[name] == getattr(fit, name)
    logs = [
        math.log(one["noise"]), *2 * np.log(one["lengthscales"]), *np.log(one["periods"]),
        math.log(one["signal"])]
    assert np.allclose(logs, [fit.ln_noise, *fit.ln_theta], rtol=1e-12, atol=1e-12)
    _, y, _, unit = scaled(path.read_text(), "tenth", False, 0)
    factor = min(FACTORS, key=lambda f: abs(math.log(np.std(y) / f)))
    y = y / factor
    assert_close(one["unit"], unit * factor, 1e-15)
    assert_close(one["guessing"], np.mean(np.abs(y - y.mean()) > 0.6), 1e-15)


@posix
@pytest.mark.parametrize("typed", [
    "t.csv --save link.csv", "t.csv --plot hard.csv", "t.csv --save to_o --plot o",
    "- --predict new.csv --out t.csv", "- --save ./t.csv", "t.csv --predict - --out t.csv",
    "- --out t.csv", "- --state t.csv"])
def test_predict_one_file(typed, path, monkeypatch):
    """Links to the table and to a file that is not there yet, and standard input that is the
    table: an output that leads to them is refused, and no file is changed.
    """
    monkeypatch.chdir(path.parent)
    path.with_name("new.csv").write_text("a,b\n1,2\n")
    os.symlink("t.csv", "link.csv")
    os.symlink("o", "to_o")
    os.link("t.csv", "hard.csv")
    before = path.read_bytes()
    there = os.listdir()
    kept = os.dup(0)
    try:
        with path.open() as file:
            os.dup2(file.fileno(), 0)
        out, err = printed(L, *typed.split(), stdin=before, check=2)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    assert out == ""
    assert re.search("^error: (table|--[a-z]+) '.*' and --[a-z]+ '.*' are one file$", err)
    assert path.read_bytes() == before
    assert os.listdir() == there


@pytest.mark.parametrize("module, method", [(R, "VFE"), (J, "SVGP")])
def test_RJ_python_models(module, method, path):
    """A Model saved from Python predicts in the table's units, and says its text, or else what is
    known of it, and its bound. A Fit alone, without names, is refused.
    """
    new, model = (path.with_name(name) for name in ("new.csv", "m.npz"))
    new.write_text("x,zz\n0.1,0.2\n")
    typed = "--model", model, "--predict", new
    whole = fitted(module, method)
    saving.save(model, whole.fit)
    printed(module, *typed, check=2, quick=[])
    scale = Scale(np.zeros(2), np.ones(2), 7.0, 2.0, 60)
    mean, *variances = module.predict(whole.fit, [[0.1, 0.2]])
    known = f"bound {whole.fit.bound!r}; " if module is R else "method SVGP; kernel Matern52; "
    sure = "of complete rows the true value lies outside .* with probability at most 0.1250"
    for names, about, text in (
        (["x", "zz"], {}, known), (("x", "zz"), {"text": "mine"}, "mine\n"),
        (np.array(["x", "zz"], object), {"mean_bound": 0.1}, "nothing is certified of mean"),
        (["x", "zz"], {"mean_bound": 0.125, "loss": "01", "dropped": 2}, sure)):
        value = saving.Model(whole.fit, scale, names, "y", about)
        saving.save(model, value)
        of_table = saving.predict(value, [[0.1, 0.2]])
        assert_close(of_table, [7 + 2 * mean, *(4 * var for var in variances)], 1e-13)
        assert load(module, model).inputs == ["x", "zz"]
        out, said = printed(module, *typed, quick=[])
        assert identical(csv_of(out), python_limits(module, model, np.array([[0.1, 0.2]])))
        assert re.search(text, said)


@pytest.mark.parametrize("how, loss", [
    ("tenth", "01"), ("all", "square"), ("none", "exp"), ("tenth", "band"), ("tenth", "relative")])
def test_R_limits_value(how, loss, path):
    """mean -+ eps in the table's units; for band and relative all y with |mean - y| <= eps |y|, of
    either sign. The risk that is stated is that of the predictions for the table scaled here.
    """
    saved = path.with_name("m.npz")
    relative = loss in R.RELATIVE_LOSSES
    run(R, path, "--loss", loss, "--scale", how, "--eps", "0.4", "--save", saved)
    model = saving.load(saved)
    fit = saving.fit_of(model)
    X, y, middle, unit = scaled(path.read_text(), how, relative, 0)
    if how == "tenth" and not relative:
        y = y * unit / model.scale.unit
        unit = model.scale.unit
    assert_close(R.gibbs_risk(y, *R.predict(fit, X), 0.4, loss), fit.risk, 1e-7)
    X_new, _ = numbers(table(9, seed=1))
    mean, sd, lower, upper = certify_table.tolerance_limits(model, X_new)
    scale = model.scale
    want, var = R.predict(fit, (X_new - scale.middle_X) / scale.unit_X)
    assert_close(mean, middle + unit * want, 1e-12)
    assert_close(sd, unit * np.sqrt(var), 1e-12)
    if not relative:
        assert_close([mean - lower, upper - mean], np.full((2, 9), 0.4 * unit), 1e-12)
        return
    assert min(mean) < 0 < max(mean)
    assert np.all((lower < mean) & (mean < upper))
    for end in (lower, upper):      # the two where |mean - y| = eps |y|
        assert_close(np.abs(mean - end), 0.4 * np.abs(end), 1e-12)
    for eps in (1.0, 1.5):  # the set has no end: |mean - y| <= |y| for all large y
        *_, low, high = certify_table.tolerance_limits(
            model._replace(fit=fit._replace(eps=eps)), X_new)
        assert np.all(low == -INF)
        assert np.all(high == INF)


@pytest.mark.parametrize("options, columns", [(["--clock"], "a,y"), ([], "y")])
def test_L_predict_clock(options, columns, path):
    """Where the row number is the input, the rows of the new table are the next ones, whatever
    their columns.
    """
    state = path.with_name("m.npz")
    new = path.with_name("new.csv")
    path.write_text(table(20, columns))
    new.write_text("whatever\n1\n2\n3\n")
    out, _ = printed(L, path, *options, "--save", state, "--predict", new)
    assert identical(csv_of(out), python_limits(L, state, np.array([[20.0], [21.0], [22.0]])))


# --- saved models --------------------------------------------------------------------------------


def fitted(module, method):
    """A Model, or for streams a Session, of one method; of sqrt-... methods with a Certified."""
    X, y = wave(24, d=2)
    if module is L:
        learners = certified(
            X, y, stream.Settings(M=5, learn=method, window=6), 8)
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


def kept(module, path, value):
    """Saves what `fitted` or `load` gave, or a part of it."""
    save(module, path, *(value if isinstance(value, follow_stream.Session) else [value]))


METHODS = [
    (module, method)
    for module in (R, J, L)
    for method in (stream.LEARN if module is L else module.METHODS)
]


@pytest.mark.parametrize(
    "module, method", METHODS, ids=[f"{module.__name__}-{method}" for module, method in METHODS])
def test_save_load_identical(module, method, tmp_path):
    """All fields come back, of the same types, to the last bit, and are written as the same bytes
    again, those of a Fit or a Learner alone, too.
    """
    path = tmp_path / "m"
    whole = fitted(module, method)
    part = follow_stream.Session(whole.learner, [], {}) if module is L else whole.fit
    for value in (whole, part):
        kept(module, path, value)
        raw = path.read_bytes()
        loaded = load(module, path)
        assert identical(loaded, value)
        kept(module, path, loaded)
        assert path.read_bytes() == raw
    assert os.listdir(tmp_path) == ["m"]


@pytest.mark.parametrize("module, method", [
    (R, "free-sqrt-PAC-SGP"), (J, "exact"), (L, "window"), (L, None)])
@pytest.mark.parametrize("every", [97, pytest.param(7, marks=pytest.mark.slow)])
def test_load_damaged(module, method, every, tmp_path):
    """A bit or a byte turned over, or the file cut there: a ValueError that names the file, or all
    is as saved. None: a stream without a learner yet.
    """
    value = fitted(module, method or "nothing")
    if method is None:
        value = value._replace(learner=None)
    path = tmp_path / "m"
    kept(module, path, value)
    raw = path.read_bytes()
    read = 0
    for i in range(0, len(raw), every):
        byte, bit = (bytes([raw[i] ^ turned]) for turned in (255, 1 << i % 8))
        for spoilt in (byte + raw[i + 1:], bit + raw[i + 1:], b""):
            path.write_bytes(raw[:i] + spoilt)
            try:
                assert identical(load(module, path), value), i
                read += 1
            except ValueError as err:
                assert str(path) in str(err)
                assert "\n" not in str(err)
    assert 0 < read < len(raw) / every


class Trap:
    """Says so if it is ever unpickled."""

    def __reduce__(self):
        return pytest.fail, ("it was unpickled",)


def archive(path, **about):
    """An archive as write_archive writes it, of any JSON."""
    about = dict(module="pacgp_ref", version="9.1") | about
    np.savez(path.open("wb"), np.frombuffer(json.dumps(about).encode(), np.uint8))


def replaced(path, module, method, before, after):
    """A saved model with other bytes in their last place."""
    saving.save(path, fitted(module, method))
    head, tail = path.read_bytes().rsplit(before, 1)
    path.write_bytes(head + after + tail)


NO_MODEL = {  # name -> what writes it, what the ValueError says
    "pickle": (lambda path: path.write_bytes(pickle.dumps(Trap())), "no saved model"),
    "pickled in an archive": (
        lambda path: np.savez(path.open("wb"), np.array([Trap()])), "no saved model"),
    "empty": (lambda path: path.touch(), "no saved model"),
    "no archive": (lambda path: np.save(path.open("wb"), np.zeros(3)), "no saved model"),
    # the archive's directory and a shape are covered by no check sum
    "an array twice": (lambda path: replaced(path, R, "VFE", b"arr_1.npy", b"arr_2.npy"),
                       "no saved model"),
    "a smaller shape": (lambda path: replaced(path, J, "exact", b"(24, 24)", b"(24, 20)"),
                        "damaged"),
    "a folder": (lambda path: path.mkdir(), "cannot read"),
    "later format": (
        lambda path: archive(path, format=9, value={"dict": {}}),
        "saved by pacgp_ref.py 9.1, format 9: this is pacgp_ref.py .*, format 4"),
    "no format": (archive, "no saved model"),
    "no such array": (lambda path: archive(path, format=4, value={"array": 3}), "no saved model"),
    "no such kind": (
        lambda path: archive(path, format=4, value={"Popen": {"a": 1}}), "no saved model"),
}


@pytest.mark.parametrize("name", NO_MODEL)
def test_load_refused(name, tmp_path):
    """A ValueError that names the file and what is wrong; nothing is unpickled."""
    write, message = NO_MODEL[name]
    write(tmp_path / "m")
    with pytest.raises(ValueError, match=message) as error:
        saving.load(tmp_path / "m")
    assert str(tmp_path / "m") in str(error.value)


@pytest.mark.parametrize("module, method", [(R, "VFE"), (L, "nothing")])
def test_save_refused(module, method, tmp_path):
    """A place where nothing can be written: a ValueError, and no file is left. A Model that save
    refuses (refused.txt) is refused by load where it was written all the same.
    """
    whole = fitted(module, method)
    with pytest.raises(ValueError, match="cannot write .*nowhere"):
        kept(module, tmp_path / "nowhere" / "m", whole)
    assert os.listdir(tmp_path) == []
    bad = whole._replace(about=[1])
    classes = follow_stream.KINDS if module is L else saving.MODELS["pacgp_ref"]
    saving.write_archive(tmp_path / "m", bad, module.__name__, classes)
    with pytest.raises(ValueError, match="m is no saved"):
        load(module, tmp_path / "m")


@pytest.mark.parametrize("part, name, value", [
    ("about", "seen", "a"), ("about", "batch", None), ("learner", "ledger", stream.Ledger("a"))])
def test_L_state_kinds(part, name, value, path):
    """A state whose parts are of other kinds is refused in one line, as state and as model, and
    left as it is.
    """
    state = path.with_name("s")
    path.write_text(table(14))
    run(L, path, "--state", state)
    whole = follow_stream.load(state)
    changed = {**whole.about, name: value}
    if part == "learner":
        changed = whole.learner._replace(**{name: value})
    follow_stream.save(state, *whole._replace(**{part: changed}))
    before = state.read_bytes()
    for typed, quick in (([path, "--state", state], None), (["--model", state], [])):
        err = printed(L, *typed, check=2, quick=quick)[1]
        assert re.search(f"{state} .*(it lacks|made with)", err)
    assert state.read_bytes() == before


# --- columns -------------------------------------------------------------------------------------

COLUMNS = [  # options, inputs, target, what is not used, of the columns a, b, "c, d", text, y, y
    ("--inputs b,a --drop 5,text --target 4", ["b", "a"], "y", ["c, d", "text", "y"]),
    ("--inputs '\"c, d\",0' --target b", ["c, d", "a"], "b", ["text", "y", "y"]),
    ("--drop text,5", ["a", "b", "c, d"], "y", ["text", "y"]),
    ("--drop '\"c, d\",3,5'", ["a", "b"], "y", ["c, d", "text", "y"]),
    ("--drop text,4,5 --target a", ["b", "c, d"], "a", ["text", "y", "y"]),
]


@each_module
@pytest.mark.parametrize("typed, inputs, target, unused", COLUMNS)
def test_columns_value(module, typed, inputs, target, unused, path):
    """The columns that are named, in this order, by names or numbers; what is not used is known."""
    text, columns = mixed()
    path.write_text(text)
    args = PROGRAM[module].command_line().parse_args([str(path), *shlex.split(typed)])
    if module is L:
        about = follow_stream.resumed(None, {}).about
        _, about, rows = follow_stream.stream_rows(tables.lines_of(path), args, about)
        values = np.array(list(rows))[:, 1:]
        assert about["used"] == [*inputs, target]
    else:
        found, *_ = tables.table_of(args, None)
        values = found.values
        assert (found.names, found.ignored) == ([*inputs, target], unused)
    assert np.array_equal(values, np.transpose([columns[name] for name in (*inputs, target)]))


@pytest.mark.parametrize("mark", [";", "\t"])
def test_columns_decimal(mark, path):
    """--decimal , with semicolons or tabs: the numbers of the table with points."""
    want = tables.read_table(path)
    path.write_text(path.read_text().replace(",", mark).replace(".", ","))
    assert identical(tables.read_table(path, decimal=","), want)


# --- a stream's rows -----------------------------------------------------------------------------

OUT = ["row", "mean", "sd", "lower", "upper", "y", "loss", "bound"]


@pytest.mark.parametrize("first, batch, options, goal", [
    (10, 1, "", {}), (9, 4, "--loss square --delta 0.2", dict(loss="square", delta=0.2)),
    (12, 5, "--learn window", dict(learn="window"))])
def test_L_out_value(first, batch, options, goal, path):
    """A line for each row that counts: its number, the forecast before its batch came, its target,
    the mean loss of a draw over the batch, and the bound then; by a loop of begin, step, forecast,
    certificates. Incomplete rows have a number, no line.
    """
    path.write_text(table(45, row=["1,2,NA"]))
    X, y = numbers(table(45))
    out = path.with_name("o")
    typed = [path, "--first", first, "--batch", batch, *options.split()]
    assert run(L, *typed, "--out", out) == run(L, *typed)
    head, *rows = csv.reader(out.open())
    settings = stream.Settings(**{**dict(M=8, learn="nothing"), **goal})
    learners = certified(X, y, settings, first, batch, ln_theta=np.log([2, 2, 1]))
    want = []
    for i, (old, new) in enumerate(itertools.pairwise(learners)):
        at = slice(first + i * batch, min(first + i * batch + batch, 45))
        mean, _, var = stream.forecast(old, X[at])
        loss = (new.ledger.before - old.ledger.before) / len(mean)
        bound = stream.certificates(new).draw.bound
        for n, m, s, target in zip(range(at.start, at.stop), mean, np.sqrt(var), y[at]):
            want.append([n + 1 + (n >= 40), m, s, m - 1.96 * s, m + 1.96 * s, target, loss, bound])
    assert head == OUT
    assert identical(np.array(rows, float), np.array(want))


@crossed("piped, batch", [False, True], [1, 3], default=lambda piped, batch: piped == (batch == 3))
def test_L_out_killed(piped, batch, path):
    """Stopped after any row, and then killed in the next run before it saves: it goes on from the
    older state, and no line is there twice, none is lost, and one that was being written is whole.
    """
    lines = table(12).splitlines(True)
    options = ["--first", 5, "--batch", batch, "--every", 100]
    out, state, want = (path.with_name(name) for name in ("o", "s", "want"))
    path.write_text("".join(lines))
    run(L, path, *options, "--state", path.with_name("s0"), "--out", want)
    assert len(want.read_text().splitlines()) == 1 + (12 - 5) // batch * batch
    for cut in range(1, 12):
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


@pytest.mark.parametrize("module", [R, J])
def test_plot_value(module, path, monkeypatch):
    """--plot writes a PNG that is no empty canvas, and changes nothing that is printed; a name that
    looks like a formula is drawn as it stands. Without matplotlib the remedy is said before
    anything is trained.
    """
    from matplotlib.image import imread

    png = path.with_name("p.png")
    path.write_text(table(60, "a,b,cost_$^{x$"))
    assert run(module, path, "--plot", png) == run(module, path)
    pixels = imread(png)[..., :3]
    assert pixels.shape[:2] == (570, 1440 if module is J else 720)  # J: two drawings, side by side
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *_: None if name == "matplotlib" else find(name))
    said = "error: --plot needs matplotlib: python -m pip install matplotlib\n"
    assert run(module, path, "--plot", path.with_name("q.png"), check=2) == ("", said)


@each_module
def test_plot_comes_last(module, path, monkeypatch):
    """Where a picture fails, what was trained, certified and predicted is there."""
    from matplotlib.figure import Figure

    new, model, out = (path.with_name(name) for name in ("new.csv", "m", "o"))
    new.write_text(path.read_text())
    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: 1 / 0)
    typed = path, "--save", model, "--predict", new, "--out", out, "--json", "--plot", "p.png"
    said, err = printed(module, *typed, check=2)
    assert "division by zero" in err
    assert strict(said)[-1]["predictions"]
    assert model.exists()
    assert out.exists()


@pytest.fixture
def drawn(monkeypatch):
    """A function of what `printed` takes: its standard output and, of each Axes, [(label, x, y)] of
    the lines and points that are drawn, and the names of the axes.
    """
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))

    def of(module, *typed):
        out, _ = printed(module, *typed, "--plot", "p.png")
        found = [[(line.get_label(), *line.get_data()) for line in ax.get_lines()]
                 for ax in figures[-1].axes]
        return out, *found, (figures[-1].axes[0].get_xlabel(), figures[-1].axes[0].get_ylabel())
    return of


def test_J_draw_value(path, drawn):
    """Predicted against actual targets of the held-out rows, and the share of them inside central
    intervals, counted one by one.
    """
    model = path.with_name("m")
    _, predicted, inside, names = drawn(J, path, "--save", model, "--methods", "SVGP", "MAP")
    (_, (X, y), _), scale = score_table.three_parts(
        *numbers(path.read_text()), np.random.default_rng(0))
    model = saving.load(model, "predictive")
    mean, var = J.predict_y(model.fit, X)
    assert names == ("predicted y", "actual y")
    assert [label for label, *_ in predicted[:2]] == ["SVGP", "MAP"]
    of = ["SVGP", "MAP"].index(model.fit.method)
    _, means, targets = predicted[of]
    assert_close(means, scale.middle + scale.unit * mean, 1e-12)
    assert_close(targets, scale.middle + scale.unit * y, 1e-12)
    _, wanted, shares = inside[of]
    pit = np.array([R.norm_cdf(v) for v in (y - mean) / np.sqrt(var)])
    assert np.array_equal(shares, [np.mean(np.abs(2 * pit - 1) < share) for share in wanted])
    assert 0 < wanted[0] < 0.05
    assert wanted[-1] > 0.95
    assert np.ptp(shares) > 0.5


@pytest.mark.parametrize("kind, loss", [("paper", "01"), ("held-out", "band")])
def test_R_draw_goal_value(kind, loss, path, drawn):
    """A single goal: targets against means of the rows that train or are held out, and the limits
    that --predict gives, all in the table's units.
    """
    model = path.with_name("m")
    _, found, (name, _) = drawn(R, path, "--certificate", kind, "--loss", loss, "--save", model)
    (_, at, lower), (_, _, upper), (label, means, targets), _ = found
    X, y = numbers(path.read_text())
    first = np.random.default_rng(0).permutation(60)[:6]
    if kind == "held-out":
        first = part_one(60, 0.5, 0)
    rest = np.setdiff1d(np.arange(60), first)
    mean, _, *ends = certify_table.tolerance_limits(saving.load(model), X[rest])
    assert (label, name) == (dict(paper="training rows").get(kind, "held-out rows"), "predicted y")
    order = np.argsort(mean)
    for got, want in (
        (means, mean), (targets, y[rest]), (at, mean[order]), (lower, ends[0][order]),
        (upper, ends[1][order])):
        assert np.allclose(got, want, rtol=0, atol=1e-9)


def test_RL_draw_value(path, drawn):
    """Bounds and risks against the goals in their order and in the table's units; certificates over
    the rows that count.
    """
    out, found, (name, _) = drawn(R, path, "--eps", "0.9", "0.3", "--json")
    large, small = strict(out)[-1]["certificates"]
    assert name == "tolerance eps, in the unit of y"
    assert [one["eps"] for one in (small, large)] == [0.3, 0.9]
    for (label, eps, values), key in zip(found, ("bound", "risk"), strict=True):
        assert label == f"paper: {key}"
        assert list(eps) == [0.3 * small["unit"], 0.9 * large["unit"]]
        assert list(values) == [small[key], large[key]]
        assert values[0] != values[1]
    out, found, _ = drawn(L, path, "--every", "10", "--json")
    history = strict(out)
    keys = dict(sampled="draw", mean="mean", interval="interval", persistence="last")
    assert [label for label, *_ in found[::2]] == [*keys]
    for (title, rows, bounds), (_, _, losses) in zip(found[::2], found[1::2], strict=True):
        for now in history:
            at = list(rows).index(now["rows"])
            one = now["certificates"][keys[title]]
            assert (bounds[at], losses[at]) == (one["bound"], one["loss"])
