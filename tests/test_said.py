"""What the programs say first and last, and the defaults that they choose by the rows."""

import json
import math
import re

import numpy as np
import pytest

import predictive as J
from beyond import stream
from own_data import certify_table, follow_stream, saving, score_table
from own_data.scale import FACTORS, standardise
from tests.problems import certified, Frame
from tests.programs import run


# --- streams: which inducing inputs go, and when --memory is named -------------------------------


def test_L_said_discard_past():
    """By "auto" the inducing inputs that stay after a row depend on the rows up to it alone: on an
    input that has not yet fallen they are the last ones, from then on those of "redundant".
    """
    rng = np.random.default_rng(0)
    X = np.column_stack([np.arange(40) // 4, rng.uniform(-1, 1, 40)])
    y = np.sin(X[:, 0]) + X[:, 1]

    def after_each_row(X, discard):
        settings = stream.Settings(M=6, learn="nothing", discard=discard)
        return [one.posterior.Z for one in certified(X, y, settings, 5)]
    auto, oldest, redundant = (
        after_each_row(X, which) for which in ("auto", "oldest", "redundant"))
    assert all(map(np.array_equal, auto, oldest))
    assert not np.array_equal(oldest[-1], redundant[-1])
    falls = X.copy()
    falls[30:, 0] = 0
    mixed = after_each_row(falls, "auto")
    assert all(map(np.array_equal, mixed[:25], auto[:25]))     # of rows 5 to 29: none looks ahead
    assert not np.array_equal(mixed[-1], after_each_row(falls, "oldest")[-1])
    alone = stream.Settings(discard="auto")
    for rises, falls, want in (([1, 0], [1, 0], "redundant"), ([1, 1], [0, 1], "oldest"),
                               ([0, 0], [1, 0], "oldest"), ([0, 0], [0, 0], "redundant")):
        assert stream.discarded(alone, np.array([rises, falls], bool)) == want


def test_L_said_discard_of_older_state():
    """A Learner of a file that knew no directions goes on as it was declared."""
    X = np.arange(12.0)[:, None]
    learner = stream.begin(X, np.sin(X[:, 0]), stream.Settings(M=6))
    older = stream.Learner(*learner[:-1])
    Z = [stream.step(one, X[:1] + 12, np.ones(1)).posterior.Z for one in (learner, older)]
    assert np.array_equal(*Z)


@pytest.mark.parametrize("before, after, said", [(0.1, 0.1, False), (0.1, 0.2, True),
                                                 (0.1, 0.12, False), (0.3, 0.1, False)])
def test_L_said_memory(before, after, said):
    """--memory is named where the loss grew by 3 standard errors since the last mark of at most
    half of the rows; marks stand at 100, 200, 400, ... rows.
    """
    marks = []
    for rows in range(1, 1001):
        ledger = stream.Ledger(rows, mean=before * min(rows, 400) + after * max(rows - 400, 0))
        marks = follow_stream.doubled(marks, ledger)
    assert [mark[0] for mark in marks] == [100, 200, 400, 800]
    error = np.sqrt(before * (1 - before) / 400 + after * (1 - after) / 600)
    assert (after - before > 3 * error) == said
    text = follow_stream.drift_said(marks, ledger)
    assert bool(text) == said
    if said:
        assert f"from {before:g} in the first 400 evaluated rows to {after:g} after them" in text
    assert follow_stream.drift_said(marks[:1], stream.Ledger(199, mean=199)) == ""


# --- certificates of tables ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "kinds, bound, mean_bound, table, want",
    [
        (["paper"], 0.4, 0.8, "t", "--certificate held-out, .* together with 98 % confidence"),
        (["paper"], 0.4, 1.0, "t", "--predict NEW"), (["held-out"], 0.8, 0.4, "t", "--predict NEW"),
        (["held-out"], 0.4, 0.8, "t", "more rows"), (["prior", "held-out"], 1, 1, "t", "more rows"),
        (["paper"], 0.1, 0.2, None, "your own table")])
def test_R_said_next(kinds, bound, mean_bound, table, want):
    """The last line follows the bound that the answer states, that of the mean if it is below 1."""
    typed = [table] * bool(table) + ["--certificate", *kinds]
    args = certify_table.command_line().parse_args(typed)
    one = dict(bound=bound, mean_bound=mean_bound, guessing=0.5)
    assert re.fullmatch(f"Next: {want}.*", certify_table.next_step([one], args))


def test_R_said_standardise():
    """Data frames and a column of targets are as arrays; what is refused: refused.txt."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 2))
    y = rng.standard_normal(30)
    want = standardise(X, y)
    for got in (standardise(Frame(X), Frame(y)), standardise(X, y[:, None])):
        assert all(map(np.array_equal, got[:2], want[:2]))
        assert repr(got[2]) == repr(want[2])


@pytest.mark.filterwarnings("ignore:.*stopped after")
def test_R_said_unit(tmp_path, capsys):
    """The paper's tolerance is near so many deviations of all rows that count, whichever tenth the
    seed draws, and ln 9 is paid; not where eps is given in the unit of y.
    """
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 1))
    y = 20 + 5 * X[:, 0] + rng.standard_normal(60)
    np.savetxt(tmp_path / "t.csv", np.column_stack([X, y]), delimiter=",")
    found = []
    for seed in range(4):
        run = [str(tmp_path / "t.csv"), "--json", "--evals", "3", "--seed", str(seed)]
        assert certify_table.main(run) == 0
        one, = json.loads(capsys.readouterr().out)["certificates"]
        first = np.random.default_rng(seed).permutation(60)[:6]
        counted = np.delete(y, first)
        ratio = one["unit"] / np.std(counted)
        factor = one["unit"] / np.std(y[first])
        assert min(abs(factor - np.array(FACTORS))) < 1e-9
        assert 2**-0.125 <= ratio <= 2**0.125
        text = " ".join(one["text"].split())
        assert f"({0.6 * ratio:.3g} standard deviations of 54 rows)" in text
        assert "ln 9 is paid for it" in text
        found.append((np.std(y[first]), one["unit"]))
    tenths, units = np.array(found).T
    assert np.ptp(np.log(units)) < np.ptp(np.log(tenths)) / 2
    assert certify_table.main([*run, "--eps", "3", "--unit", "y"]) == 0
    one, = json.loads(capsys.readouterr().out)["certificates"]
    assert one["unit"] == pytest.approx(tenths[-1], rel=1e-12)
    args = certify_table.command_line().parse_args([*run, "--eps", "0.6"])
    for unit, units in (("scale", 9), ("y", 1)):
        args.unit = unit
        plan = certify_table.planned("paper", X, y, args)
        fit = certify_table.trained(plan, 0.6, 1, args, lambda: False).fit
        assert fit.penalty == pytest.approx(2 * math.log(1201) + math.log(units), rel=1e-12)


# --- predictive densities ------------------------------------------------------------------------

def test_J_said_not_recommended():
    """A density is not recommended by its NLL alone, however small its RMSE."""
    scores = {"far": dict(NLL=1.0, RMSE=2.0), "sure": dict(NLL=2.0, RMSE=0.1),
              "constant": dict(NLL=1.5, RMSE=1.0)}
    assert score_table.no_better(scores).endswith("a constant's on the held-out rows: sure.")
    del scores["sure"]
    assert score_table.no_better(scores) == ""


def test_J_said_series(path):
    """Where an input moves one way only, the first rows train, the next validate, the last are held
    out, and what is saved is trained on all; else none of it.
    """
    rng = np.random.default_rng(0)
    X = np.column_stack([np.arange(100) // 4, rng.uniform(-1, 1, 100)])
    y = np.arange(100.0)
    (training, test, val), scale = score_table.three_parts(X, y, rng)
    parts = [scale.middle + scale.unit * part for _, part in (training, val, test)]
    assert np.allclose(np.concatenate(parts), y) and [len(part) for part in parts] == [75, 10, 15]
    saved = path.with_name("m")
    for rows, series in ((X, True), (X[rng.permutation(100)], False)):
        np.savetxt(path, np.column_stack([rows, rows[:, 1] + 0.1 * y]), delimiter=",")
        out, _ = run(J, path, "--save", saved, quick="--methods exact --epochs 2".split())
        assert ("shuffle the rows if they are no series" in out) == series
        assert ("trained on all 100 rows, anew" in out) == series
        assert len(saving.load(saved, "predictive").fit.predictor.Z) == (100 if series else 75)
        saved.unlink()


def test_J_said_short(path, monkeypatch):
    """Many rows are trained in two rounds; then for all epochs where the second gained, or nothing
    is learnt. Seconds are said. --epochs is the one training as given.
    """
    used = []

    def fit(*args, **settings):
        used.append((settings["epochs"], settings.get("lr"), settings["start"]))
        return J.fit(*args, **settings)
    monkeypatch.setattr(score_table, "fit", fit)
    monkeypatch.setattr(score_table, "LARGE", 60)
    for gain, learnt, trainings in ((9, -9, 2), (-9, -9, 3), (9, 9, 3)):
        monkeypatch.setattr(score_table, "GAIN", gain)
        monkeypatch.setattr(score_table, "LEARNT", learnt)
        _, err = run(J, path, quick="--methods SVGP --inducing 5".split())
        assert [epochs for epochs, *_ in used] == [40, 40, 400][:trainings]
        assert used[0][1] == score_table.LARGE_STEP and "m" in used[1][2]
        assert re.fullmatch(r"note: about \d+ to \d+ s of training\n", err)
        used.clear()
    _, err = run(J, path)
    assert [epochs for epochs, *_ in used] == [2]
    assert re.fullmatch(r"note: about \d+ s of training\n", err)
