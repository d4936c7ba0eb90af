"""The three command lines: how a table is read, what is printed, what ends a run, and the saved
state of a stream.

`run` calls main in this process; a process of its own is started only where signals, pipes or
outputs that fail are the point.
"""

import contextlib
import gzip
import io
import itertools
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import warnings
from decimal import Decimal

import numpy as np
import pytest

import online as L
import pacgp_ref as R
import predictive as J
from beyond import certificates, rounding, search, stream
from own_data import certify_table, command_line, follow_stream, saving, score_table, tables
from own_data import scale as table_scale
from tests.oracles import assert_close
from tests.problems import certified
from tests.programs import (
    each_module, fed, load, numbers, posix, printed, PROGRAM, QUICK, run, table, words)

pytestmark = pytest.mark.filterwarnings("ignore")


# --- how a table is read -------------------------------------------------------------------------


@posix
def test_table_comes_as(path):
    """File, FIFO, standard input; gzip, UTF-8's mark, CRLF, CR, another separator, no header: the
    same numbers. A byte that is not UTF-8 is shown as an escape.
    """
    text = table(60, "a,gr\u00f6\u00dfe,y")
    plain = text.encode()
    zipped = gzip.compress(plain)
    _, want = numbers(text)

    def names_of(data):
        path.write_bytes(data)
        found = tables.read_table(path)
        assert np.array_equal(found.values[:, 2], want)
        return found.names

    for data in (
        zipped, b"\xef\xbb\xbf" + plain.replace(b"\n", b"\r\n\r\n"), plain.replace(b"\n", b"\r"),
        *(plain.replace(b",", mark) for mark in (b"\t", b";", b"  "))):
        assert names_of(data) == ["a", "gr\u00f6\u00dfe", "y"], data[:20]
    assert names_of(text.encode("cp1252"))[1] == r"gr\xf6\xdfe"
    assert names_of(plain.split(b"\n", 1)[1])[1] == "column 1"
    path.write_bytes(plain)
    out = run(L, path)
    for name, data in (("fifo", plain), ("zipped", zipped)):
        assert run(L, fed(data, path.with_name(name))) == out
    assert run(L, "-", stdin=zipped) == out


@pytest.mark.parametrize(
    "text, names, rows",
    [
        ("a\tb\n1\t2\n\t\n3\t4\n\t\n", "ab", "12 ?? 34 ??"),
        ("a,b\n1,2\n\n,\n3,4\n", "ab", "12 ?? 34"), ("a b\n1 2\n\n3 4\n", "ab", "12 34"),
        ("a,b\n1,\nNA,2\n1,nan\n1,NaN\nNull,3\n1, na \n5,6", "ab", "1? ?2 1? 1? ?3 1? 56"),
        ("\n \ny\n\n1\n \n\n2\n\"\"\n3\n\n", "y", "? 1 ? ? 2 ? 3"),
        ("1\n\"\"\nNA\n\n4", ["column 0"], "1 ? ? ? 4"),
        ('"a price"\n"1"\n2\n', ["a price"], "1 2")])
def test_table_rows_counted(text, names, rows, tmp_path):
    """Rows without a number, by separators alone, and of one column an empty line before another
    row, are incomplete rows; empty lines of several columns, above a header, and at the end are
    none. A ? stands for a missing cell.
    """
    (tmp_path / "t").write_text(text)
    table = tables.read_table(tmp_path / "t", missing="keep")
    want = [[math.nan if cell == "?" else float(cell) for cell in row] for row in rows.split()]
    assert table.names == list(names)
    assert np.array_equal(table.values, want, equal_nan=True)
    missing = np.isnan(want).any(1)
    assert table.dropped == np.sum(missing)
    assert np.array_equal(tables.read_table(tmp_path / "t").values, np.array(want)[~missing])


def test_L_series_missing(tmp_path):
    """An empty line, "" and NA move the clock alike, where a file grows and a state goes on after
    any line, and for standard input that ends with a number.
    """
    lines = table(20, "y").splitlines(True)
    for at, cell in ((5, "NA\n"), (12, "\n"), (12, '""\n'), (17, " \n")):
        lines.insert(at, cell)
    path = tmp_path / "t.csv"
    for end in range(4, 20):
        state = tmp_path / f"{end}"
        piped = end % 2 and lines[end - 1].strip()
        path.write_text("".join(lines[:end]))
        run(L, "-" if piped else path, *kept(state), stdin=path.read_bytes())
        path.write_text("".join(lines))
        completed(state, path, piped)
    assert follow_stream.load(state).about["seen"] == 24
    rows = state.with_suffix(".csv").read_text().splitlines()[1:]
    assert [int(row.split(",")[0]) for row in rows] == [14, 15, 16, *range(18, 25)]


PLAIN = table(60).encode()
ZIPPED = gzip.compress(PLAIN, mtime=0)
BAD_FILE = {  # name -> bytes, what the one line says
    "truncated": (ZIPPED[:-20], "cannot read .*t.csv"),
    "corrupt": (
        ZIPPED[:15] + bytes(b ^ 255 for b in ZIPPED[15:40]) + ZIPPED[40:], "cannot read .*t.csv"),
    "no text": (bytes(range(256)), "cannot read .*t.csv: UTF-16, or no text"),
    "utf-16": (PLAIN.decode().encode("utf-16"), "UTF-16, or no text"),
    "long cell": (b"a,b\n1," + b"x" * 99_999, r"line 2, b: 'x{12}\.\.\.x{13}' is not a")}


@pytest.mark.parametrize("name", BAD_FILE)
def test_table_bad_file(name, path):
    """A ValueError that names the file."""
    data, message = BAD_FILE[name]
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message):
        tables.read_table(path)


# moves the cursor, deletes a line, turns the writing round
HOSTILE = "y\xa0z\x1b[1A\x1b[2K\x7f\x9b\u202e\u540d"


def test_table_harmless(path):
    """A hostile name, file name or cell reaches no terminal as it is; line ends and blanks stay. A
    stream that cannot encode a name shows its escape.
    """
    hostile = path.with_name(HOSTILE)
    hostile.write_text(table(60, f"a,b,{HOSTILE}"))
    seen = [
        *printed(L, hostile), *printed(L, "--target", HOSTILE, check=2),
        *printed(L, "nowhere" + HOSTILE, check=2)]
    harmless = HOSTILE.replace("\x1b", "?").replace("\x7f\x9b\u202e", "???")
    assert f"inputs a, b; target {harmless};" in seen[0]
    assert all(c in "\n\xa0" or c.isprintable() for text in seen for c in text)
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "cp1252")) as narrow:
        assert follow_stream.main([*QUICK[L], str(hostile)]) == 0
        assert harmless.replace("\u540d", r"\u540d").encode("cp1252") in narrow.buffer.getvalue()


# --- what is printed -----------------------------------------------------------------------------


def test_R_shares_of_delta(path):
    """Prior and held-out: each bound has its share of delta, three bounds for each of two goals."""
    typed = "--certificate prior held-out --prior 0.4 --delta 0.12 --eps 0.6 0.9 --json"
    out, _ = printed(R, path, *typed.split(), quick=["--evals", "15"])
    found = {(one["certificate"], one["eps"]): one for one in json.loads(out)["certificates"]}
    X, y, _ = table_scale.standardise(*numbers(path.read_text()), 0.4)
    first = certificates.part_one(60, 0.4)
    rest = np.setdiff1d(np.arange(60), first)
    for eps in (0.6, 0.9):
        options = dict(eps=eps, delta=0.12 / 3, n_eps=2, max_evals=15)
        prior = certificates.prior_from_part(X, y, "full-GP", share=0.4, **options).fit
        half = search.part_fit(X[first], y[first], "full-GP", seed=0, **options)
        half = rounding.strict(half, X[first], y[first])
        held = certificates.held_out(half, X[rest], y[rest], 0.12 / 6)
        for kind, bounds, guess in (
            ("prior", (prior.bound, min(1, 2 * prior.bound)), y.mean()),
            ("held-out", (held.bound, held.mean_bound), y[first].mean())):
            one = found[kind, eps]
            assert (one["bound"], one["mean_bound"]) == bounds
            assert_close(one["guessing"], np.mean(np.abs(y[rest] - guess) > eps), 1e-15)


def test_R_lag_correlation():
    """Of rows in their order; of constant ones 0."""
    assert certify_table.lag_correlation(np.arange(4.0)) == 0.25
    assert certify_table.lag_correlation(np.ones(4)) == 0


def test_R_lengthscales():
    """Of more than ten the nine shortest in the table's order, and the least of the others."""
    *rows, last = certify_table.lengthscale_rows(
        np.arange(11.0)[::-1], [f"x{i}" for i in range(11)])
    assert rows == [
        (f"lengthscale l_{i} (x{i - 1}), scaled", math.exp(11 - i)) for i in range(3, 12)]
    assert last == ("the 2 other lengthscales, at least", math.exp(9))


def test_J_settings_value():
    """One inducing input for 20 training rows, 10 to 100; fewer epochs and larger batches above
    20,000 rows; all start at l = START sqrt(d).
    """
    args = score_table.command_line().parse_args([])
    for N, M, batch, epochs in ((45, 10, 200, 400), (300, 15, 200, 400), (25_000, 100, 1000, 90)):
        given = score_table.settings_of(args, N, 3)
        start = given.pop("start")["ln_theta"]
        assert given == dict(M=M, kernel="Matern52", batch=batch, epochs=epochs, seed=0)
        assert np.allclose(np.exp(start), [3 * math.log(2) ** 2] * 3 + [math.log(2)])


def test_J_quarters_value():
    """Deviation and error of four quarters of the rows, from the surest by the first method on."""
    y = np.array([3.0, 1.0, 4.0, 2.0])
    predictions = {"A": (0 * y, y**2), "B": (y + [1, 2, 3, 4], 9 + 0 * y)}
    *_, A, B = score_table.quarter_lines(predictions, y, 10.0)
    assert [float(cell) for cell in A.split()[1:]] == [10, 10, 20, 20, 30, 30, 40, 40]
    assert [float(cell) for cell in B.split()[1:]] == [30, 20, 30, 40, 30, 10, 30, 30]


def test_R_printed_evals(path, monkeypatch):
    """--evals counts on all rows, where the search starts on a part of them, too."""
    for name in ("SMALL", "LAST_EVALS", "LAST_ROWS"):
        monkeypatch.setattr(search, name, 20 if name == "SMALL" else 2)
    for evals in (3, 6):
        out, _ = run(R, path, "--evals", evals, quick=["--sparse", "4"])
        assert f"stopped after {evals} evaluations" in out


def test_R_printed_evals_cut(monkeypatch, path):
    """Fewer evaluations for the size of a table are said of each certificate that has them."""
    monkeypatch.setattr(certify_table, "certificate_of", lambda *_: 1 / 0)
    path.write_text(table(1000))
    for typed, said in (
        ("held-out", ""), ("paper", "; at most 274 evaluations (--evals), for its size"),
        ("held-out paper", "; at most 274 evaluations of paper (--evals), for its size"),
        ("paper held-out --prior 0.9 --sparse 600",
         "; at most 154 evaluations of paper, 154 evaluations of held-out (--evals), for its "
         "size")):
        out, _ = run(R, path, "--certificate", *typed.split(), quick=[], check=2)
        assert out.endswith(f"header: yes{said}"), out


def test_J_printed_inside():
    """Targets at known z-scores: those within 0.674, 1.282 and 1.96 deviations are counted, on
    either side.
    """
    z = np.array([-2.1, -1.97, -1.95, -1.29, -1.27, 0.66, 0.69, 1.97])
    inside = [score_table.within(wanted, 5 + 2 * z, 5.0, 4.0) for wanted in score_table.FRACTIONS]
    assert inside == [1 / 8, 3 / 8, 5 / 8]


def lines_in(out):
    """The running lines: m, error, bound and loss of the four certificates, KL."""
    found = re.findall(r"(\d+) (\S+)" + r" \| (\S+) (\S+)" * 4 + r" (\S+)", out)
    return np.array(found, dtype=float).reshape(-1, 11)


def test_L_printed_every():
    """By default a line is due where the rows that count pass 1, 2, 5 times a power of 10."""
    due = [m for m in range(2000) if follow_stream.is_due(m, m + 1, None)]
    assert due == [9, 19, 49, 99, 199, 499, 999, 1999]


def test_L_printed_tie():
    """A naive forecast whose bound is no worse than the mean's is preferred; not where it is 1."""
    learner = certified(
        *numbers(table(60)), stream.Settings(), ln_theta=np.log([2, 2, 1]))[-1]
    for mean, last, average, said in (
        (20.0, 20.0, 30.0, "The persistence forecast has a bound no worse"),
        (20.0, 21.0, 30.0, ""), (50.0, 50.0, 50.0, ""),
        (30.0, 40.0, 29.0, "The average of the values so far has a bound no worse")):
        ledger = learner.ledger._replace(mean=mean, last=last, average=average)
        text = words(follow_stream.summary(learner._replace(ledger=ledger), "y", 10))
        assert said in text
        assert ("prefer it" in text) == (said != "")


def test_L_printed_batch(path, capsys):
    """Above 20,000 rows, one at a time, a batch that is faster is named before the first is taken.
    """
    for rows, batch in ((20_000, 1), (20_001, 1), (20_001, 2)):
        path.write_text("x,y\n" + "1,2\n" * rows)
        args = follow_stream.command_line().parse_args([str(path), "--batch", str(batch)])
        follow_stream.begun_reading(
            tables.lines_of(path), args, follow_stream.resumed(None, {}))
        said = capsys.readouterr().out
        assert ("; --batch 50 is faster" in said) == (rows > 20_000 and batch == 1)


def test_printed_rounding():
    """Confidence is rounded down; goals and bounds are rounded up, by less than their last digit.
    """
    rng = np.random.default_rng(0)
    for delta in [1e-300, 0.05, 1, *10 ** rng.uniform(-30, 0, 300)]:
        said = command_line.confidence_percent(delta)
        exact = 100 * Decimal(float(delta))
        assert -Decimal("1e-13") * exact <= 100 - exact - Decimal(said) < Decimal("2e-13")
        assert said != "100"
    for value in map(Decimal, 10 ** rng.uniform(-300, 300, 1000)):
        assert value <= Decimal(command_line.rounded_up(value)) <= value * Decimal("1.001")
    for bound in map(Decimal, [0.25, 0.99995, 1.0, *rng.uniform(0, 1, 1000)]):
        said = command_line.bound_text(bound)
        assert bound <= Decimal(said) <= min(bound + Decimal("1e-4"), 1)
        assert len(said) == 6
    assert [command_line.as_given(eps) for eps in (0.7499999, 0.30000001, 2)] == [
        "0.7499999", "0.30000001", "2"]


def test_R_printed_bounds():
    """Of random bounds none that a certificate prints, B, B_Pin or that of the mean, is below its
    value. Nothing is certified of the mean from 1/2 on, nothing at all above 0.9999. A KL near 0 is
    said.
    """
    X, y = numbers(table(20))
    gp = R.fit(X, y, max_evals=1)

    def text(B, other, held=None, KL=1.0):
        of = rounding.Certified(gp._replace(bound=B, pinsker=other, KL=KL))
        return words(certify_table.certificate_text(of, "y", 1.0, "", y, 1.0, held=held))

    for B, other in np.random.default_rng(0).uniform(0, 0.49, (300, 2)):
        paper = text(B, other)
        held = text(B, other, certificates.HeldOut(B, other, 0.1, 0.1, 0.01, 9))
        for said, label, value in (
            (paper, "sum of the three)", B), (paper, "B_Pin (Pinsker)", other),
            (paper, "with probability at most", 2 * B), (held, "delta)/N)", B),
            (held, "with probability at most", other), (held, "bound for the mean", other)):
            number = Decimal(said.split(label)[1][:7])
            assert 0 <= number - Decimal(float(value)) < Decimal("1e-4")
    assert "at most 0.5000. Nothing is certified of the GP's mean, since" in text(0.5, 0.5)
    assert "at most 0.9999. Nothing is certified of the GP's mean, since" in text(0.99989, 1)
    assert "confidence nothing is certified" in text(0.99991, 1)
    assert "learnt next to nothing" in text(0.1, 0.1, KL=1e-4)
    assert "learnt next to nothing" not in paper


def test_printed_repeats():
    """Repeated rows against a set of rows, with and without a column that only counts; signs of
    zero and sums that overflow among them.
    """
    for seed in range(30):
        rng = np.random.default_rng(seed)
        n, d = rng.integers([30, 1], [60, 4])
        X = rng.choice([-0.0, 0.0, 1.0, 1.7e308], (n, d))
        y = rng.integers(2, size=n) * 1.0
        want = n - len(set(map(tuple, np.column_stack([X, y]))))
        counts = [np.arange(n), 7 - 0.1 * np.arange(n), np.sort(rng.permutation(3 * n)[:n])]
        counted = np.insert(X, rng.integers(d + 1), counts[seed % 3], axis=1)
        for rows, plain in ((X, want), (counted, 0)):
            assert R.repeated_rows(table_scale.without_counters(rows), y) == want
            assert R.repeated_rows(rows, y) == plain
    ones = np.ones(50)
    irregular = np.cumsum(rng.uniform(1, 2, 50))  # in order, but it counts nothing
    for columns in ([np.arange(50.0)], [ones, irregular]):
        assert R.repeated_rows(table_scale.without_counters(np.transpose(columns)), ones) == 0


class Terminal(io.StringIO):
    """A stderr in front of someone."""

    def isatty(self):
        return True


@pytest.mark.parametrize("done", [0, 1])
def test_printed_progress(done, monkeypatch):
    """One line, written over at most every 0.2 s: step of how many, seconds left at the pace so
    far, anew where a search begins again. It is gone where there is something to print, and at the
    end, whatever ends it. An earlier run has done some. Without a number of steps none is left.
    """
    steps = [
        (0.1, 1, None), (1.0, 2, f"2 of 8, {6 / (2 - done):.0f} s left"), (1.1, 3, None),
        (4.0, 4, f"4 of 8, {16 / (4 - done):.0f} s left"), (5.0, None, ""),
        (6.0, 1, "1 of 8, 14 s left"), (8.0, 4, "4 of 8, 4 s left")]
    seconds = iter([0.0, *(now for now, *_ in steps), 0.0, 1.0])
    terminal = Terminal()
    clear = "\r" + 78 * " " + "\r"
    want = ""
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(KeyboardInterrupt), command_line.progress(8, done) as say:
        for _, step, said in steps:
            say(step, "objective 1.5, evaluation")
            if said is not None:
                want += f"\r{'objective 1.5, evaluation ' + said:<78}" if step else clear
            assert terminal.getvalue() == want
        raise KeyboardInterrupt
    with command_line.progress(None) as say:
        say(1, "row")
    assert terminal.getvalue() == want + clear + f"\r{'row 1':<78}" + clear


@each_module
def test_printed_progress_of(module, path, monkeypatch):
    """Shown while a table is learnt from, on a terminal alone, and none of it is left; what is
    printed stays the same.
    """
    seconds = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    want, notes = run(module, path)
    out, shown = run(module, path, err=Terminal())
    for note in notes.splitlines(keepends=True):
        shown = shown.replace(note, "")
    assert out == want
    assert "\r" not in notes
    assert re.search(r"(evaluation|epoch|row) \d+ of \d+, \d+ s left", shown)
    assert re.fullmatch("(\r(.{78})?)*", shown)
    assert shown.endswith("\r" + 78 * " " + "\r")


# --- the scale of a table ------------------------------------------------------------------------


def test_RJ_scale_odd_columns():
    """Ids of 16 digits and nanoseconds get deviation 1; a column constant to rounding becomes 0,
    and R says that.
    """
    rng = np.random.default_rng(0)
    X = np.column_stack([
        1e15 + rng.integers(100, size=300), 1.7e18 + 1e3 * np.arange(300), np.full(300, 0.1),
        0.3 * (1 + 2.0**-52 * rng.integers(2, size=300)), rng.standard_normal(300)])
    A, _, scale = table_scale.standardise(X, X[:, 4], "all")
    (B, _), *_ = score_table.three_parts(X, X[:, 4], rng)[0]
    for scaled_by in (A, B):
        assert np.allclose(scaled_by.std(0), [1, 1, 0, 0, 1], atol=1e-3)
        assert np.all(scaled_by[:, 2:4] == 0)
    said = certify_table.scale_text("all", scale, "abcde")
    assert said.endswith(" Not used, since constant there: c, d.")


# --- what ends a run -----------------------------------------------------------------------------


@pytest.mark.parametrize("presses", [1, 2])
@pytest.mark.parametrize("module, result", [(R, "B = kl^-1"), (J, "held-out rows")])
def test_interrupted_in_training(module, result, presses, path, monkeypatch, ctrl_c):
    """Ctrl-C once: training stops, what was found is printed. Twice: at once. Then it is Python's
    own again.
    """
    said = []

    def press(step, text):
        said.append(text)
        for _ in range(presses):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(PROGRAM[module], "progress", lambda steps: contextlib.nullcontext(press))
    out, err = run(module, path, check=130)
    (text,) = said
    assert "objective " in text
    assert "note: stopping" in err
    assert (result in out) == (presses == 1)
    assert presses == 2 or module is J or R.STOPPED in out


UNWRITTEN = "error: cannot write standard output:"
TAILS = {  # what the shell is told -> status, the line on stderr
    "> /dev/full": (2, UNWRITTEN), ">&-": (2, UNWRITTEN), "2>&- > /dev/full": (2, ""),
    "2>&- > /dev/null": (0, ""), "": (0, ""),
    "<&-": (2, "error: cannot read standard input: it is closed")}


@posix
@pytest.mark.parametrize("tail", TAILS)
def test_output_cannot_be_written(tail, path):
    """A full disk, a closed output or input: status 2 and one line, no traceback; a closed stderr
    hides the line alone. Where the reader of the output has left, as `head` does, it is status 0
    and no word.
    """
    if "full" in tail and not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    reader, writer = os.pipe()
    os.close(reader)
    command = shlex.join([sys.executable, L.__file__, "-" if tail == "<&-" else str(path)])
    process = subprocess.run(f"{command} {tail}", shell=True, stdout=writer, stderr=-1, text=True)
    os.close(writer)
    status, said = TAILS[tail]
    assert process.returncode == status
    assert process.stderr.startswith(said)
    assert process.stderr.count("\n") == bool(said)


@posix
def test_output_full(path):
    """Where the file of --out takes no more, it is named, not standard output."""
    import resource

    out = path.with_name("o")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, limits[1]))
    try:
        _, err = run(L, path, "--out", out, check=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert err.startswith(f"error: cannot write {out}: ")


def test_output_notes(path, monkeypatch):
    """Of warnings the project's own alone are shown; an exhausted memory is said."""
    def warned(*_):
        warnings.warn("'parseString' deprecated", DeprecationWarning, stacklevel=2)
        warnings.warn("glyph missing", UserWarning, stacklevel=2)
        warnings.warn("ours", R.FitWarning, stacklevel=2)
        raise MemoryError

    monkeypatch.setattr(follow_stream, "new_rows", warned)
    said = "note: ours\nerror: not enough memory: give fewer rows or columns\n"
    assert run(L, path, check=2) == ("", said)


# --- the state of a stream -----------------------------------------------------------------------


def kept(state):
    """Options that keep a state, and the lines of its rows beside it."""
    return "--state", state, "--out", state.with_suffix(".csv")


def completed(state, path, piped, *options):
    """How many rows `state` has seen, and what the run prints that completes it: of the whole
    table, or of the other rows on standard input. It must say where it goes on, and leave the state
    and the lines of --out of one run without a stop.
    """
    want = state.with_name("want")
    seen = follow_stream.load(state).about["seen"] if state.exists() else 0
    if not want.exists():
        run(L, path, *options, *kept(want))
    header, *lines = path.read_text().splitlines(True)
    rest = header * (seen == 0) + "".join(lines[seen:])
    out, err = run(L, "-" if piped else path, *options, *kept(state), stdin=rest)
    assert err == ""
    assert (f"Going on after row {seen}." in out) == (seen > 0)
    for got, whole in zip(kept(state)[1::2], kept(want)[1::2]):
        assert got.read_bytes() == whole.read_bytes()
    return seen, out


@posix
@pytest.mark.parametrize(
    "how, sent",
    [
        (signal.SIGINT, 20), (signal.SIGKILL, 20), ("closed pipe", 30),
        *(pytest.param(how, 20, marks=pytest.mark.slow) for how in (signal.SIGTERM, "closed pipe"))
    ],
)
def test_state_process_stopped(how, sent, path):
    """A process of its own, with Ctrl-C and buffers as a user has them; killed after two minutes.
    Rows through a pipe, each answered before the next is sent. Stopped by a signal, or because
    the reader leaves, in the middle or before the summary, it saves without a word on stderr, and
    the rest completes the state to the last bit.
    """
    state = path.with_name("s")
    options = "--first 6 --every 1".split()
    path.write_text(table(30))
    header, *lines = table(30).splitlines(True)
    process = subprocess.Popen(
        [sys.executable, L.__file__, "-", *QUICK[L], *options, *map(str, kept(state))],
        stdin=-1, stdout=-1, stderr=-1, text=True,
        env={name: v for name, v in os.environ.items() if name != "PYTHONUNBUFFERED"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    timer = threading.Timer(120, process.kill)
    timer.daemon = True
    timer.start()
    process.stdin.write(header)
    answers = []
    for i, line in enumerate(lines[:sent]):
        process.stdin.write(line)
        process.stdin.flush()
        due = {0: 1, 6: 6}.get(i, i > 5)        # what is read; headings; rows
        answers += [process.stdout.readline() for _ in range(due)]
    assert list(lines_in(words("".join(answers)))[:, 0]) == list(range(1, sent - 5))
    if how == "closed pipe":
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write("".join(lines[sent:]))
            process.stdin.close()
        assert process.stderr.read() == ""
        assert process.wait() == 0
    else:
        process.send_signal(how)
        out, err = process.communicate()
        assert (process.returncode, err) == (-9 if how == signal.SIGKILL else 130, "")
        assert how == signal.SIGKILL or f"% of {sent - 6} evaluated rows." in words(out)
    seen, out = completed(state, path, sent < 30, *options)
    # a row whose line nobody took is in it
    assert seen == sent + (how == "closed pipe" and sent < 30)
    assert list(lines_in(out)[:, 0]) == list(range(seen - 5, 25))


def test_state_killed(path, monkeypatch):
    """Killed before or after any state is written, a stream on standard input that goes on with
    other rows loses none that it has learnt from: each line that --out had is there at the end, and
    there are as many as rows count.
    """
    _, state, _, out = options = kept(path.with_name("s"))
    moments = []

    def saved(*args, real=follow_stream.save, **known):
        moments.append([*map(saving.contents, (state, out))])
        real(*args, **known)
        moments.append([*map(saving.contents, (state, out))])

    with monkeypatch.context() as patch:
        patch.setattr(follow_stream, "save", saved)
        run(L, "-", "--first", 6, *options, stdin=table(12))
    seen = set()
    for there, had in moments[1:]:
        state.write_bytes(there)
        out.write_bytes(had)
        seen.add(follow_stream.load(state).about["seen"])
        run(L, "-", "--first", 6, *options, stdin=table(9, seed=1))
        lines = out.read_bytes()
        assert lines.startswith(had)
        assert lines.count(b"\n") == 1 + follow_stream.load(state).learner.ledger.rows
    assert seen == {0, *range(6, 13)}


@pytest.mark.parametrize(
    "where, piped",
    [
        ("begin", False), ("step", True), ("save", False), ("running_line", True),
        ("out_lines", False), ("savez", True)])
def test_state_interrupted(where, piped, path, monkeypatch, ctrl_c):
    """Interrupted at any call of these: status 130, and a state to go on from. Ctrl-C while an
    archive is packed is put off.
    """
    path.write_text(table(22))
    options = "--first 6 --batch 2 --every 3".split()
    packed = []
    module = np if where == "savez" else follow_stream
    for stop in range(1 if where == "begin" else 4):
        calls = itertools.count()
        state = path.with_name(f"{stop}")

        def interrupted(*args, real=getattr(module, where), **arrays):
            if args[0] is not None and next(calls) == stop:
                signal.raise_signal(signal.SIGINT)
                packed.append(where)
            return real(*args, **arrays)

        with monkeypatch.context() as patch:
            patch.setattr(module, where, interrupted)
            typed = ["-" if piped else path, *options, *kept(state)]
            run(L, *typed, stdin=path.read_bytes(), check=130)
        seen, _ = completed(state, path, piped, *options)
        assert seen < 22
        assert seen > 0 or stop == 0
    assert packed == ["savez"] * 4 * (where == "savez")


@pytest.mark.parametrize(
    "at, line, message",
    [
        (5, "1,2,two\n", "line 6, y: 'two'"), (25, "1,2\n", "line 26: 2 cells"),
        *((at, "0.5,0.", "the last line has no end") for at in (4, 5, 6, 43, 44, 45))])
def test_state_bad_line(at, line, message, path):
    """A bad line, or a last one without an end, is named, the rows before it are in the state, and
    once it is mended the stream goes on where it stopped, from a file or, at odd lines, a pipe.
    Incomplete rows among the first ten, last before a stop, first after it are counted once; rows
    that wait for a batch are said.
    """
    lines = table(46, row=["1,2,NA", "NA,,"]).splitlines(True)
    lines.insert(4, ",2,3\n")
    state = path.with_name("s")
    path.write_text("".join([*lines[:at], line]))
    bad = line.endswith("\n")
    options = ["--learn", "window", "--batch", 1 if bad else 7]
    assert message in run(L, path, *kept(state), *options, check=2 * bad)[1]
    path.write_text("".join(lines))
    seen, out = completed(state, path, at % 2, *options)
    assert seen == at - 1
    assert "3 incomplete rows left out" in out
    assert bad or re.search(f"Kept in {state} .*: 1 row.", out)


def test_state_ends(path):
    """Rows that end in CR, alone or among others, and a last one without a line feed, are read the
    same with a state and without.
    """
    plain = table(30).replace("\n", "\r", 1)
    for name, text in (
        ("all", plain.replace("\n", "\r")), ("one", plain[:-1].replace("\n", "\r", 5) + "\n"),
        ("last", plain[:-1] + "\r")):
        path.write_bytes(text.encode())
        want, _ = printed(L, path, "--json")
        assert printed(L, path, "--json", "--state", path.with_name(name)) == (want, "")
        assert follow_stream.load(path.with_name(name)).about["seen"] == 30


@posix
def test_state_linked(path):
    """A state at a symbolic link, one that leads nowhere yet among them, is kept where it leads."""
    real, link = (path.with_name(name) for name in ("real", "link"))
    link.symlink_to("real")
    for n, through in ((20, link), (40, link), (60, real)):
        path.write_text("".join(table(60).splitlines(True)[: n + 1]))
        run(L, path, "--state", through)
        assert link.is_symlink()
        assert follow_stream.load(real).about["seen"] == n
    saving.save(link, R.fit(*numbers(table(9)), max_evals=2))
    assert link.is_symlink()
    assert load(R, real).N == 9


@pytest.mark.parametrize("batch, piped", [(1, True), (3, False)])
def test_state_row_refused(batch, piped, path):
    """A row that is too large is left out of its batch, counted in the state and said with its
    number, in this run and in all that follow, which go on after it: as if it were incomplete.
    """
    state, want = (path.with_name(name) for name in ("s", "want"))
    options = "--batch", batch
    path.write_text(table(50, row=["1,2,NA"]))
    run(L, path, *options, *kept(want))
    path.write_text(table(50, row=["1,2,1e200"]))
    out, err = printed(L, path, "--json", *options, *kept(state), check=2)
    said = "error: row 41: y has a value more than 1e100 deviations .* left out and counted"
    assert re.fullmatch(f"{said}\n", err)
    assert '"refused": [41]' in out
    seen = follow_stream.load(state).about["seen"]
    rest = "".join(path.read_text().splitlines(True)[seen + 1 :])
    out, _ = run(L, "-" if piped else path, *options, *kept(state), stdin=rest)
    assert ", of complete rows, was at most" in out
    assert "about complete rows: 1 row refused for size (number 41)." in out
    assert follow_stream.load(state).about["refused"] == [41]
    ledger, same = (follow_stream.load(one).learner.ledger for one in (state, want))
    assert ledger == same
    assert ledger.rows == 40 - 40 % batch
    assert len({saving.contents(one.with_suffix(".csv")) for one in (state, want)}) == 1
    # alone, in the last batch, which is smaller
    path.write_text(table(20) + "1,2,1e200\n0,0,0\n")
    out, err = run(L, path, "--batch", 7, check=2)
    assert "row 21: y has" in err
    assert "1 row refused for size (number 21)" in out


def test_state_kept_is_said_after(path, monkeypatch):
    """Where the state cannot be written, nothing is said to be kept."""
    state = path.with_name("s")
    run(L, path, "--state", state, "--batch", 50)
    rows = "".join(table(4, seed=1).splitlines(True)[1:])
    calls = itertools.count()
    monkeypatch.setattr(      # another process writes between the first state and the last
        saving, "contents",
        lambda path, real=saving.contents: real(path) + b"by another" * (next(calls) > 0))
    out, err = printed(L, "-", "--state", state, "--batch", 50, stdin=rows, check=2)
    assert "changed by another process" in err
    assert "Kept" not in out
    monkeypatch.undo()
    assert f"Kept in {state}" in run(L, "-", "--state", state, "--batch", 50, stdin=rows)[0]


def test_state_of_two(path, monkeypatch):
    """Of two runs with one state, begun anew or gone on with, the second that learns is refused:
    neither the state nor a line of the first is overwritten.
    """
    state = path.with_name("s")
    opened = follow_stream.rows_out
    typed = "-", "--batch", 3, *kept(state)
    header, *lines = table(40).splitlines(True)
    for rows in (lines[:20], lines[20:]):
        text = header + "".join(rows)
        first = []

        def with_another(*args):
            file = opened(*args)
            monkeypatch.setattr(follow_stream, "rows_out", opened)
            run(L, *typed, stdin=text)
            first.extend(map(saving.contents, typed[4::2]))
            return file

        monkeypatch.setattr(follow_stream, "rows_out", with_another)
        _, err = run(L, *typed, stdin=text, check=2)
        assert err == f"error: {state} was changed by another process: it is left as it is\n"
        assert [*map(saving.contents, typed[4::2])] == first
    assert follow_stream.load(state).about["seen"] == 40
    assert first[1].count(b"\n") == 1 + 30


def test_state_saved_whole(path, monkeypatch):
    """A disk that fills up while the state is written leaves the state before it whole, and no
    other file.
    """
    state = path.with_name("s")
    run(L, path, "--state", state)
    before = state.read_bytes()

    def full(part, path):
        assert os.path.getsize(part) > 1000
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", full)
    _, err = run(L, "-", "--state", state, stdin=table(9), check=2)
    assert "No space left" in err
    assert state.read_bytes() == before
    assert sorted(os.listdir(path.parent)) == ["s", "t.csv"]


def expected_wave_loss(y, mean, var, eps):
    """E[1 - cos((v - y)/eps)]/2, v ~ N(mean, var), and its slopes: a loss that is not monotone."""
    wave = np.exp(-var / eps**2 / 2) / 2
    u = (mean - y) / eps
    return 0.5 - wave * np.cos(u), wave * np.sin(u) / eps, wave * np.cos(u) / eps**2 / 2


def test_R_new_loss_is_one_function_and_one_row(monkeypatch):
    """A row of LOSSES is trained, certified and an option; rounded up it needs a row of AT_SHARE,
    since it must grow with the distance.
    """
    monkeypatch.setitem(R.LOSSES, "wave", expected_wave_loss)
    X = np.linspace(-2, 2, 30)[:, None]
    y = np.sin(2 * X[:, 0])
    found = R.fit(X, y, loss="wave", eps=2.0, max_evals=20)
    risk = R.gibbs_risk(y, *R.predict(found, X), 2.0, "wave")
    assert found.loss == "wave" and abs(found.risk - risk) < 1e-9
    assert found.optimum.f < found.optimum.history[0]
    assert certify_table.command_line().parse_args(["--loss", "wave"]).loss == "wave"
    with pytest.raises(ValueError, match="^loss must be one of 01, band, square, exp, relative"):
        rounding.strict(found, X, y)
    monkeypatch.setitem(rounding.AT_SHARE, "wave", lambda share: np.minimum(share, 1.0))
    assert rounding.strict(found, X, y).fit.bound >= found.bound


@pytest.mark.parametrize("loss", R.LOSSES)
def test_R_relative_losses_have_no_unit(loss):
    """Those in RELATIVE_LOSSES, and no other, stay as they are where y has another unit."""
    y = np.array([1.0, -2.0])
    one = R.gibbs_risk(y, y + 0.3, 0.1 * y**2, 0.5, loss)
    other = R.gibbs_risk(3 * y, 3 * y + 0.9, 0.9 * y**2, 0.5, loss)
    assert (abs(one - other) < 1e-12) == (loss in R.RELATIVE_LOSSES)
