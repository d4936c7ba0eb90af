"""The command lines around their numbers: how a table is read, what is printed, interrupts, and the state of a stream."""
import contextlib
import gzip
import io
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import threading
import warnings
from decimal import Decimal

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import online as L                                           # noqa: E402
import pacgp_ref as R                                        # noqa: E402
import predictive as J                                       # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
posix = pytest.mark.skipif(os.name != "posix", reason="pipes and signals of POSIX")
QUICK = {R: ["--evals", "5", "--sparse", "5"], J: ["--epochs", "2", "--methods", "SVGP"], L: ["--learn", "nothing"]}
each_module = pytest.mark.parametrize("module", QUICK, ids=lambda module: module.__name__)


def table(n, columns="a,b,y", seed=0, row=None):
    """n rows of text with these columns, the last a noisy wave of the first; row: lines to put after line 41."""
    V = np.random.default_rng(seed).standard_normal((n, columns.count(",") + 1))
    V[:, -1] = np.sin(2 * V[:, 0]) + 0.1 * V[:, -1]
    lines = [columns, *(",".join(map(repr, map(float, row))) for row in V)]
    return "\n".join(lines[:41] + (row or []) + lines[41:]) + "\n"


def run(module, *argv, stdin=b"", check=0):
    """stdout and stderr of a command line in this process, as one line without double blanks; its status must be `check`."""
    out, err, before = io.StringIO(), io.StringIO(), sys.stdin
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("always")
        try:
            sys.stdin = io.TextIOWrapper(io.BytesIO(stdin))
            status = module.main([*map(str, argv), *QUICK[module]])
        finally:
            sys.stdin = before
    assert status == check, err.getvalue()
    return " ".join(out.getvalue().split()), err.getvalue()


def python(module, *argv, **settings):
    """The command line as a process of its own, in which Ctrl-C works however the tests were started."""
    return subprocess.Popen([sys.executable, module.__file__, *map(str, argv)], stdout=-1, stderr=-1, text=True, **settings,
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))


@contextlib.contextmanager
def fed(way, data, folder):
    """The path of a pipe, or of a FIFO that gets 100 bytes at a time."""
    ends, path = os.pipe(), folder / "fifo"
    if way == "fifo":
        os.mkfifo(path)

    def feed(size=100 if way == "fifo" else len(data)):
        with contextlib.suppress(BrokenPipeError), open(ends[1] if way == "pipe" else path, "wb", buffering=0) as file:
            for i in range(0, len(data), size):
                file.write(data[i:i + size])
    threading.Thread(target=feed, daemon=True).start()
    yield path if way == "fifo" else f"/dev/fd/{ends[0]}"


@posix
@each_module
def test_table_comes_as(module, tmp_path):
    """File, pipe, FIFO, standard input; gzip, marks of byte order, CRLF, Windows-1252: the same output."""
    text = table(200, "a,gr\u00f6\u00dfe,y")
    plain, path = text.encode(), tmp_path / "t.csv"
    path.write_bytes(plain)
    want = run(module, path)
    assert "inputs a, gr\u00f6\u00dfe; target y; header: yes" in want[0] and len(plain) > 9000
    for data in (gzip.compress(plain), b"\xef\xbb\xbf" + plain, plain.replace(b"\n", b"\r\n"), text.encode("utf-16"),
                 b"\xfe\xff" + text.encode("utf-16-be"), text.encode("cp1252"), gzip.compress(text.encode("utf-16")),
                 plain.replace(b",", b"\t"), plain.replace(b",", b";")):
        path.write_bytes(data)
        assert run(module, path) == want, data[:20]
    for way, data in (("pipe", plain), ("pipe", gzip.compress(plain)), ("fifo", plain)):
        with fed(way, data, tmp_path) as source:
            assert run(module, source) == want, way
    process = python(module, "-", *QUICK[module], stdin=-1)
    assert " ".join(process.communicate(text)[0].split()) == want[0]
    assert run(module, "-", stdin=gzip.compress(plain)) == want


@each_module
def test_table_is_said(module, tmp_path):
    """Names, target, header or none, a column without a name, a first row that numbers the columns."""
    path, rows = tmp_path / "t.csv", "60 rows; " * (module is not L)
    for head, said in (("a,b,y", f"{rows}inputs a, b; target y; header: yes"), (",b,y", f"{rows}inputs (no name), b; target y"),
                       ("0,1,2", f"{rows.replace('60', '61')}inputs column 0, column 1; target column 2; header: none"),
                       (",0,1", f"{rows}inputs column 0, column 1; target column 2; header: none"),
                       ("a,b,", f"{rows}inputs a, b; target (no name); header: yes")):
        path.write_text(table(60, head))
        out, err = run(module, path)
        assert said in out and ("incomplete" in out) == (head == ",0,1")
        assert ("the first line is 0, 1, 2, ...: if it numbers the columns, delete it" in err) == (head in ("0,1,2", ",0,1"))
    path.write_text(table(60))
    assert f"{rows}inputs b, y; target a; header: yes" in run(module, path, "--target", "a")[0]


@each_module
def test_table_missing_cells(module, tmp_path):
    """Rows with a missing cell are left out and counted; the rest gives the same numbers."""
    path, gaps = tmp_path / "t.csv", ["1,2,", ",,", "NA,2,3", "1,nan,3", "1,NaN,3", "Null,2,3", "1,2,nAn", "1, na ,3"]
    path.write_text(table(60))
    want = run(module, path)[0]
    path.write_text(table(60, row=gaps))
    out, said = run(module, path)[0], "8 incomplete rows left out (a cell is empty, NA, NaN or null)"
    assert said in out and ("about complete rows" in out or module is J)
    assert out.replace(f"; {said}", "").replace(f" It is about complete rows: {said}.", "").replace(
        f" {said}: it is about complete rows.", "") == want
    for rows, said in ((30, "complete row"), (0, "no rows")):
        path.write_text("a,b,y\n" + "1,2,NA\n" * rows)
        err = run(module, path, check=2)[1]
        assert "t.csv" in err and (said in err or module is L) and err.count("\n") == 1


BAD = {"1,inf,3": "b: 'inf' is not a finite number$", "1,-Infinity,3": "b: ", "1_0,2,3": "a: '1_0'", "1,1e400,3": "b: ",
       "1,2,x": "y: 'x' is not a finite number$", "1,2": ": 2 cells where the first line has 3", "1,2,3,4": ": 4 cells",
       "1,0x1,3": "b: ", "1,2,?": "y: ", '1,"2,5",3': r"b: '2,5' is not a finite number \(a decimal comma"}


@each_module
@pytest.mark.parametrize("row", BAD)
def test_table_refused(module, row, tmp_path):
    """One line that names file and line, and no result."""
    path = tmp_path / "t.csv"
    path.write_text(table(60, row=[row]))
    out, err = run(module, path, check=2)
    assert err.count("\n") == 1 and err.startswith(f"error: {path}, line 42") and re.search(BAD[row], err), err
    assert out == "" or module is L


def test_printed_rounding():
    """Confidence is rounded down; goals and bounds are rounded up, by less than their last digit."""
    assert [R.confidence(delta) for delta in (1, 0.07, 0.05, 0.01, 1e-13)] == ["0", "93", "95", "99", "99.99999999999"]
    for delta in [1e-300, *10 ** np.random.default_rng(0).uniform(-30, 0, 300)]:
        short = 100 - 100 * Decimal(float(delta)) - Decimal(R.confidence(delta))
        assert -Decimal("1e-13") * 100 * Decimal(float(delta)) <= short < Decimal("2e-13") and R.confidence(delta) != "100"
    for value in 10 ** np.random.default_rng(1).uniform(-300, 300, 1000):
        assert Decimal(float(value)) <= Decimal(R.rounded_up(value)) <= Decimal(float(value)) * Decimal("1.001")
    for bound in [0.25, 0.99995, 1.0, *np.random.default_rng(2).uniform(0, 1, 1000)]:
        assert Decimal(float(bound)) <= Decimal(R.bound_text(bound)) <= min(Decimal(float(bound)) + Decimal("1e-4"), 1)
    assert [R.bound_text(bound) for bound in (0.25, 0.250001, 7)] == ["0.2500", "0.2501", "1.0000"]


def test_printed_repeats():
    """Repeated rows against a set of rows, with and without a column that only counts."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        n, d = int(rng.integers(20, 60)), int(rng.integers(1, 4))
        X, y = rng.integers(3, size=(n, d)) * 10.0 ** rng.integers(-8, 9), rng.integers(2, size=n) * 1.0
        want = n - len({tuple(row) for row in np.column_stack([X, y])})
        assert R.repeated_rows(X, y) == want > 0
        counts = (np.arange(n), 7 - 0.1 * np.arange(n), np.sort(rng.permutation(3 * n)[:n]))[seed % 3]
        assert R.repeated_rows(np.insert(X, rng.integers(d + 1), counts, axis=1), y) == want
    assert R.repeated_rows(np.arange(9.0)[:, None], np.zeros(9)) == 0


def test_printed_dependence(tmp_path):
    """Independence is assumed, strict is the scale alone; repeats, correlated residuals of a random walk, KL near 0."""
    path, rng = tmp_path / "t.csv", np.random.default_rng(0)
    path.write_text(table(60))
    out = run(R, path)[0]
    assert out.count("strict") == 1 and "as far as the scale goes, it is strict" in out and "drawn independently" in out
    assert "repeated rows 0 " in out and not re.search("online.py|repeat an earlier|next to nothing", out)
    assert "so it is not strict" in run(R, path, "--scale", "all")[0]
    path.write_text(table(60, row=table(60).splitlines()[1:6] * 3))
    assert re.search(r" 1[0-5] rows repeat an earlier one.* repeated rows 1[0-5] ", run(R, path)[0])
    np.savetxt(path, np.column_stack([rng.standard_normal(300), np.cumsum(rng.standard_normal(300))]), delimiter=",")
    out = run(R, path)[0]
    r, z = (float(re.search(rf" {name} ([-.\d]+)", out)[1]) for name in ("lag-1 correlation r of residuals", r"r sqrt\(N\)"))
    assert r > 0.5 and abs(z / r / 270**0.5 - 1) < 1e-3 and "python online.py certifies rows in their order" in out
    fit = R.fit(rng.standard_normal((30, 1)), rng.standard_normal(30), max_evals=5)
    said = [" ".join(R.certificate_text(fit._replace(KL=KL), "y", 1, "", 0).split()) for KL in (1e-4, 1.0)]
    assert ["learnt next to nothing" in text for text in said] == [True, False]


def test_printed_scale():
    """Ids of 16 digits and nanoseconds get deviation 1; a column constant to rounding becomes 0, and that is said."""
    rng = np.random.default_rng(0)
    rounding = 0.3 * (1 + 2.0**-52 * rng.integers(2, size=300))
    X = np.column_stack([1e15 + rng.integers(100, size=300), 1.7e18 + 1e3 * np.arange(300), np.full(300, 0.1), rounding,
                         rng.standard_normal(300)])
    A, _, _, said = R.standardise(X, X[:, 4], "all", False, rng)
    assert np.allclose(A.std(0), [1, 1, 0, 0, 1], atol=1e-3) and np.all(A[:, 2:4] == 0)
    assert re.search(r"[Nn]ot used.*inputs number 2, 3 \(from 0\)", said)
    assert np.allclose(J.three_parts(X, X[:, 4], rng)[0][0][0].std(0), [1, 1, 0, 0, 1], atol=1e-3)


@posix
@pytest.mark.parametrize("module, result", [(R, "B = kl^-1"), (J, "held-out rows"), (L, "confidence")])
@pytest.mark.parametrize("until", ["read", pytest.param("trained for 3 s", marks=pytest.mark.slow)])
def test_interrupted(module, result, until, tmp_path):
    """Ctrl-C while training: status 130 and the result so far, one note, no traceback."""
    path, options = tmp_path / "t.csv", {R: "--evals 99999 --sparse 250", J: "--epochs 99999", L: "--every 1"}[module]
    path.write_text(table(4000))
    process = python(module, path, *options.split())
    first = [process.stdout.readline() for _ in range(5 if module is L else 1)]
    told = process.stderr.readline() if until != "read" and module is not L else ""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    notes = [line for line in err.splitlines() if not re.match(r" +\d+ s, |.* what was found is valid", line)]
    assert process.returncode == 130 and result in out and "header: yes" in first[0] and "Traceback" not in err
    assert [line[:14] for line in notes] == ["note: stopping"] * (module is not L) and ("objective" in told) == bool(told)


@posix
@each_module
def test_reader_leaves(module, tmp_path):
    """Status 0 and a silent stderr where the reader of the output leaves after one line, as `head -1` does."""
    path = tmp_path / "t.csv"
    path.write_text(table(60))
    process = python(module, path, "--every", "1") if module is L else python(module, path)
    assert "header: yes" in process.stdout.readline()
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == ("", 0)


@each_module
def test_main_puts_back(module, tmp_path):
    """What main changes in the process for its notes and for Ctrl-C is as before, after a result and after an error."""
    state = lambda: (warnings.formatwarning, warnings.showwarning, signal.getsignal(signal.SIGINT), np.geterr())
    before, path = state(), tmp_path / "t.csv"
    for text, status in ((table(60), 0), (table(60, row=["1,x,2"]), 2)):
        path.write_text(text)
        run(module, path, check=status)
        assert state() == before


@posix
@each_module
@pytest.mark.parametrize("where", ["full", "closed", "no stderr"])
def test_output_cannot_be_written(module, where, tmp_path):
    """A full disk or a closed output: status 2 and one line, no traceback; a closed stderr hides the line alone."""
    if where == "full" and not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    path, tail = tmp_path / "t.csv", {"full": "> /dev/full", "closed": ">&-", "no stderr": "2>&- > /dev/full"}[where]
    path.write_text(table(60))
    command = [sys.executable, module.__file__, path, *QUICK[module]]
    process = subprocess.run(f"{shlex.join(map(str, command))} {tail}", shell=True, capture_output=True, text=True)
    assert process.returncode == 2 and process.stdout == ""
    notes = [line for line in process.stderr.splitlines() if not re.match(r"note: |.*objective", line)]
    assert [line[:36] for line in notes] == ["error: cannot write standard output:"] * (where != "no stderr")


@posix
@each_module
def test_input_closed(module):
    """Standard input that is closed is an error of one line."""
    process = subprocess.run(f"{shlex.quote(sys.executable)} {shlex.quote(module.__file__)} - <&-", shell=True,
                             capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (2, "error: cannot read standard input: it is closed\n")


def test_goal_as_given(tmp_path):
    """Every digit of a goal is printed: `.7499999` is not said as .75."""
    path = tmp_path / "t.csv"
    path.write_text(table(60))
    for module in (R, L):
        for eps, said in (("0.7499999", "0.7499999 standard"), ("0.30000001", "0.30000001 standard"), ("2", "2 standard")):
            assert said in run(module, path, "--eps", eps)[0]


@pytest.mark.parametrize("module", [R, L])
def test_values_far_apart(module, tmp_path):
    """A target more than 1e100 deviations of the others away is refused in one line."""
    path = tmp_path / "t.csv"
    path.write_text(table(60, row=["1,1,1e200"]))
    assert "1e100 deviations" in run(module, path, check=2)[1]


@pytest.mark.parametrize("module, option", [(R, "--sparse"), (J, "--inducing")])
def test_more_inducing_inputs_than_rows(module, option, tmp_path):
    """As many as rows, and a note says so; the default is cut without one."""
    path = tmp_path / "t.csv"
    path.write_text(table(60))
    for more, said in (([option, "99"], True), ([], False)):
        with contextlib.redirect_stderr(io.StringIO()) as err, warnings.catch_warnings():
            warnings.simplefilter("always")
            assert module.main([str(path), *QUICK[module][:2], *more]) == 0
        assert ("inducing inputs in place of 99: there are no more rows" in err.getvalue()) == said


def test_stream_errors(tmp_path):
    """No deviation to measure a goal by, no column, no name of a state, options before the table: one line that says it."""
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "1,5\n2,5\n3,5\n" * 20)
    assert "error: y does not vary in the rows so far" in run(L, path, check=2)[1]
    assert "confidence" in run(L, path, "--unit", "y")[0]
    path.write_text("y\n" + "1\n2\n" * 30)
    assert "is no column: there is one, y" in run(L, path, "--target", "z", check=2)[1]
    assert "--state needs the name of a file" in run(L, path, "--state", "", check=2)[1]
    assert "write the table before the options" in run(L, "--lam", "0.5", path, check=2)[1]
    path.write_text(table(20, row=["1,2,NA"] * 3))
    assert "20 complete rows, 3 incomplete rows left out" in run(L, path, "--first", "40", check=2)[1]


def test_state_half_line(tmp_path):
    """A last line without an end is left for the next run; rows that wait are said; a disk that fails is said once."""
    part, whole, states = tmp_path / "part.csv", tmp_path / "whole.csv", [tmp_path / "one", tmp_path / "two"]
    whole.write_text(table(60))
    want = run(L, whole, "--state", states[0], "--batch", "7")[0]
    assert "1 rows wait in" in want and "a batch is 7" in want
    part.write_text(table(60)[:-9])
    assert "the last line has no end" in run(L, part, "--state", states[1], "--batch", "7")[1]
    run(L, whole, "--state", states[1], "--batch", "7")
    assert states[0].read_bytes() == states[1].read_bytes()
    out, err = run(L, whole, "--state", tmp_path / "no folder" / "s", check=2)
    assert err.count("error:") == 1


def test_state_missing_cells(tmp_path):
    """Incomplete rows among the first ten, last before a stop, first after it: two runs leave the bytes of one."""
    lines = table(60, row=["1,2,NA", "NA,,"]).splitlines(True)
    lines.insert(4, ",2,3\n")
    part, whole, states = tmp_path / "part.csv", tmp_path / "whole.csv", [tmp_path / "one", tmp_path / "two"]
    whole.write_text("".join(lines))
    want = run(L, whole, "--state", states[0])[0]
    assert "3 incomplete rows left out" in want
    for stop in (4, 5, 6, 43, 44, 45):
        part.write_text("".join(lines[:stop]))
        run(L, part, "--state", states[1])
        assert run(L, whole, "--state", states[1])[0][-900:] == want[-900:]
        assert states[0].read_bytes() == states[1].read_bytes()
        states[1].unlink()


def test_state_columns(tmp_path):
    """Rows with other names, in another order, or of another number are refused, and the state stays."""
    path, state = tmp_path / "t.csv", tmp_path / "s"
    path.write_text(table(30, "t,y"))
    run(L, path, "--state", state)
    before = state.read_bytes()
    for more in (*(table(20, names) for names in ("y,t", "t,z", "t,u,y")), table(20, "t,u,y").split("\n", 1)[1]):
        err = run(L, "-", "--state", state, stdin=more.encode(), check=2)[1]
        assert "has the columns" in err and f"{state} was made with t, y" in err and state.read_bytes() == before
    run(L, "-", "--state", state, stdin=table(20, "t,y", seed=1).encode())
    run(L, "-", "--state", state, stdin=table(20, "t,y", seed=2).split("\n", 1)[1].encode())
    settings = L.load(state)[2]
    assert (settings["seen"], settings["names"]) == (70, ["t", "y"])


@pytest.mark.parametrize("rows", [9, pytest.param(33, id="learner")])
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_state_damaged(rows, every, tmp_path):
    """A byte turned over, or the file cut there: a ValueError, or all is as saved; with and without a Learner."""
    path, damaged = tmp_path / "t.csv", tmp_path / "d"
    path.write_text(table(rows, "t,y"))
    run(L, path, "--state", tmp_path / "s", "--inducing", "4", "--batch", "5")
    raw, read = (tmp_path / "s").read_bytes(), 0

    def contents(path):
        learner, waiting, settings = L.load(path)
        arrays = [np.asarray(a) for a in (*waiting, *(learner and (*learner.state, *learner[2:]) or ()))]
        return json.dumps(settings), learner and learner.goal, [(a.tobytes(), a.shape, str(a.dtype)) for a in arrays]
    want = contents(tmp_path / "s")
    assert (want[1] is None) == (rows == 9) and len(want[2]) > 2
    for i in range(0, len(raw), every):
        for data in (raw[:i] + bytes([raw[i] ^ 0xFF]) + raw[i + 1:], raw[:i]):
            damaged.write_bytes(data)
            try:
                assert contents(damaged) == want, i
                read += 1
            except ValueError as err:
                assert str(err).startswith(str(damaged))
    assert read < len(raw) / every


def test_goal_keeps_its_size():
    """A goal in deviations of the first rows is not softened by an outlier; one in running deviations is."""
    x, rng = np.linspace(0, 20, 200)[:, None], np.random.default_rng(0)
    y = np.sin(x[:, 0]) + 0.4 * rng.standard_normal(200)
    y[100] = 1000
    ranges = []
    for unit in ("first", "running"):
        learner = L.begin(x[:10], y[:10], L.Goal(M=10, learn="nothing", unit=unit))
        for i in range(10, 200):
            learner = L.step(learner, x[i:i + 1], y[i:i + 1])
        ranges.append(learner.unit_range)
    assert ranges[0][0] == ranges[0][1] == np.std(y[:10]) and ranges[1][1] > 50 * ranges[0][1]


def test_integer_goal():
    """eps = 13 is the same goal in any type of number; the square of int8 overflows."""
    X, y = np.random.default_rng(0).standard_normal((500, 2)), 13 * np.random.default_rng(1).standard_normal(500)
    for loss in R.LOSSES:
        types = (float, np.int8, np.uint8, np.int16)
        fits = [R.fit(X, y, "kl-PAC-SGP", 5, eps=kind(13), loss=loss, max_evals=5) for kind in types]
        assert len({(fit.bound, fit.risk, fit.KL, fit.eps) for fit in fits}) == 1, loss
