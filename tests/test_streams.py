"""Streams with a certificate, beyond/stream.py: the ledger and its certificates against a loop over
the rows written out densely; what is learnt, kept, refused; units.
"""

import functools
import itertools
import math
import pickle

import numpy as np
from numpy.random import default_rng
import pytest

import online as L
import pacgp_ref as R
from beyond import stream
from beyond.certificates import certificate
from tests.dense import dense_process_kl, Known
from tests.oracles import (
    assert_all_close, assert_close, assert_just_above, DEFINITIONS, each, leaves, NAN, quadrature,
    refuses)
from tests.problems import certified, wave


# --- L Algorithm 1, certified: the ledger written out densely ------------------------------------


def ledger_by_hand(learners, X, y, goal, n0, batch):
    """The ledger and the last Known, in the target's own units; of the learners only Z, kernel and
    noise are looked at.
    """
    X = (X - np.mean(X[:n0], 0)) / np.std(X[:n0], 0)
    ledger = np.zeros(5)
    loss = DEFINITIONS[goal.loss][0]
    owner = learners[0]  # kernel and noise are those declared before the batch
    Z, theta, *_ = owner.posterior

    def scale(n):
        return dict(middle=np.mean(y[:n]), unit=np.std(y[:n]))

    def rows_of(n, m):
        return X[n:m], y[n:m], np.exp(owner.ln_noise) * np.var(y[: max(n, n0)])

    know = Known(Z, theta, 0 * np.eye(len(Z)), 0 * Z[:, 0], **scale(n0)).with_rows(*rows_of(0, n0))
    for n, learner in zip(range(n0, len(y), batch), learners[1:], strict=True):
        old = know._replace(theta=owner.posterior.ln_theta, **scale(n))
        rows = rows_of(n, n + batch)
        new = old.with_rows(*rows, stream.extended(owner.posterior, rows[0], goal.M).Z)
        mean, _ = old.at(rows[0])
        eps = goal.eps * {"first": np.std(y[:n0]), "y": 1.0}[goal.unit]
        before, after = (
            quadrature(goal.loss, rows[1], *q.at(rows[0]), eps)[0].sum() for q in (old, new))
        KL = dense_process_kl(new, old)
        off = rows[1] - mean
        if after + KL / math.sqrt(2 * (ledger[4] + 3) / (ledger[3] + 1)) >= before:
            after = before
            KL = 0.0  # P_i is booked, not its posterior
        ledger += [len(off), before, loss(off, eps).sum(), after, KL]
        owner = learner
        Z, theta, *_ = owner.posterior
        know = new.with_rows(rows[0][:0], rows[1][:0], 1.0, Z, theta)
        know = know._replace(P=goal.forgetting * know.P, h=goal.forgetting * know.h)
    return ledger, know._replace(theta=theta, **scale(len(y)))


@each("d, batch, goal", [
    (1, 1, stream.Settings(M=8, learn="nothing")),
    (1, 4, stream.Settings(M=8, learn="window", window=9, loss="square")),
    (1, 1, stream.Settings(M=6, loss="exp", eps=12.0, unit="y")),
    (2, 5, stream.Settings(M=9, lams=(0.3, 0.1), delta=0.08)),
    (1, 3, stream.Settings(M=7, forgetting=0.9))],
    ids=["nothing", "square", "exp", "two inputs", "forgetting"])
def test_L_certified_step_value(d, batch, goal):
    """Ledger, certificates and last forecast against a loop over the rows in the target's own
    units: scale by np.mean and np.std of the rows so far, losses by quadrature, dense KL, kernel
    and noise those before the batch. All rounded up. Each certificate has a third of delta, that of
    training alone a KL.
    """
    X, y = wave(26, seed=3, d=d)
    X = 5 * X - 2
    y = 30 * y + 70
    learners = certified(X, y, goal, 8, batch, ln_theta=np.full(d + 1, -0.7), pretrain=5)
    ledger, know = ledger_by_hand(learners, X, y, goal, 8, batch)
    last = learners[-1]
    booked = np.array(last.ledger)
    assert_just_above(1 + booked, 1 + ledger, 1e-8, oracle=2e-8)  # inverses in float64
    assert np.all(ledger[1:4] > 0)
    assert stream.certificates(last) == tuple(
        certificate(loss, KL, 18, goal.lams, goal.delta / 3)
        for loss, KL in zip(booked[1:4], (0, 0, booked[4])))
    X_new = default_rng(2).uniform(-8, 4, (7, d))
    mean, var, with_noise = stream.forecast(last, X_new)
    assert_all_close((mean, var), know.at((X_new - np.mean(X[:8], 0)) / np.std(X[:8], 0)), 1e-7)
    assert_close(with_noise - var, np.full(7, np.exp(last.ln_noise) * np.var(y)), 1e-9)
    assert max(len(learner.posterior.Z) for learner in learners) <= goal.M
    assert np.array_equal(last.recent, np.column_stack([X, y])[-goal.window :])


@each("batch", [1, 3])
def test_L_certified_step_learns(batch):
    """Kernel and noise move by one step of Adam, at goal.rate, along the gradient of the evidence
    of the last rows. Then the noise changes its unit.
    """
    goal = stream.Settings(M=6, window=9, rate=0.03, loss="exp")
    X, y = wave(28)
    learners = certified(X, y, goal, batch=batch, ln_theta=np.array([-0.5, 0.2]))
    for a, b in list(itertools.pairwise(learners))[::4]:
        n = int(a.target.n)
        last = int(b.target.n)
        unit = np.std(y[:n])
        X_s = (X[last - 9 : last] - a.input_scale[0]) / a.input_scale[1]
        y_s = (y[last - 9 : last] - np.mean(y[:n])) / unit
        _, back = R.full_gp_nll(X_s, y_s, a.posterior.ln_theta, a.ln_noise)
        start = np.append(a.posterior.ln_theta, a.ln_noise)
        want, adam = R.adam_step(start, R.pack(back(1.0)), a.adam, 0.03)
        assert_all_close(b.adam, adam, 1e-7)
        moved_noise = b.ln_noise + 2 * np.log(np.std(y[:last]) / unit)
        assert_close(np.append(b.posterior.ln_theta, moved_noise) - start, want - start, 1e-6)


# --- L Algorithm 1, certified: what is kept, refused, counted; units -----------------------------


def test_L_certified_constant_targets():
    """A target that is steady in the first rows and then moves: these are forgotten, once."""
    X, y = wave(16)
    y[:12] = 5.3
    learners = certified(X, y, stream.Settings(eps=0.3, unit="y", M=8))
    said = [np.any(one.posterior.A) for one in learners]
    assert said[0] and said[-1] and said.count(False) == 1


@pytest.mark.filterwarnings("ignore")
def test_L_certified_step_refused_batch():
    """A refused batch, or one of no rows, leaves the learner as it was; the first rows do not
    count, and nothing is certified of them. What is kept does not grow.
    """
    X, y = wave(40, d=2)
    first, *learners = certified(X, y, stream.Settings(M=8, window=9))
    assert not np.any(first.ledger)
    with refuses("no row counts yet"):
        stream.certificates(first)
    *_, learner, last = learners
    assert [*map(np.shape, leaves(learner))] == [*map(np.shape, leaves(last))]
    before = pickle.dumps(last)
    for values in ([0.0, NAN, 0.0], 1e200 * y[:3], []):
        with refuses("y has 1 val|y has a value more|X and y differ"):
            stream.step(last, X[:3], values)
    assert pickle.dumps(last) == before
    assert stream.step(last, [], []) is last


@each("a, b, c, e, tol", [
    (5, -2, 3, 7, 1e-8), (2.0**40, 0, 2.0**-60, 0, 0.0), (1e-140, 0, 1e140, 0, 1e-7)])
def test_L_certified_units(a, b, c, e, tol):
    """y -> c y + e and x -> a x + b move neither ledger nor forecast, but by their unit; powers of
    two move no bit.
    """
    X, y = wave(24, d=2)
    goal = stream.Settings(M=10)
    want = certified(X, y, goal)[-1]
    got = certified(a * X + b, c * y + e, goal)[-1]
    assert_close(got.ledger, want.ledger, tol)
    mean, var, _ = stream.forecast(got, a * X + b)
    want_mean, want_var, _ = stream.forecast(want, X)
    assert_all_close(((mean - e) / c, var / c), (want_mean, want_var * c), tol)


def test_remaining_inputs_value():
    """The last ones, or those that explain the others best: of near copies one; all where few."""
    Z = np.array([[0.0], [1e-3], [1.0], [1.001], [2.0]])
    state = L.prior(Z, np.zeros(2))
    assert stream.remaining_inputs(state, 5) is state.Z
    assert np.array_equal(stream.remaining_inputs(state, 3, "oldest"), Z[2:])
    assert np.array_equal(np.round(stream.remaining_inputs(state, 3)), [[0], [1], [2]])


# --- outliers, inputs that wake ------------------------------------------------------------------


def after_rows(X, y, goal=stream.Settings(M=12), batch=1):
    """The last Learner of 10 + 90 rows or more, and its RMSE from 3 sin(x/5), x in 0..30."""
    learner = certified(X, y, goal, batch=batch, ln_theta=np.zeros(X.shape[1] + 1))[-1]
    at = np.full((60, X.shape[1]), 15.0)
    at[:, 0] = np.linspace(1, 29, 60)
    mean, _, _ = stream.forecast(learner, at)
    return learner, np.sqrt(np.mean((mean - 3 * np.sin(at[:, 0] / 5)) ** 2))


def rows_of_sine(n, d=1):
    """X (n, d) in 0..30, y = 3 sin(x/5) with noise 0.1."""
    rng = default_rng(0)
    X = rng.uniform(0, 30, (n, d))
    return X, 3 * np.sin(X[:, 0] / 5) + 0.1 * rng.standard_normal(n)


@functools.cache
def error_without_outlier():
    _, error = after_rows(*rows_of_sine(100))
    return error


@each("column, row, size", [
    (-1, 4, -9999.0), (-1, 13, 1e12), (-1, 40, 1e2), (0, 4, 1e6), (0, 40, -1e12)])
def test_outlier_is_counted_not_learnt(column, row, size):
    """One wild target or input, in the first rows or later: the function is known as well as
    without it; where it counts, its miss does.
    """
    data = np.column_stack(rows_of_sine(100))
    data[row, column] = size
    got, off = after_rows(data[:, :-1], data[:, -1])
    assert off < max(1.15 * error_without_outlier(), 0.05)
    if column == -1 and row > 9:
        assert got.ledger.mean >= 1


def test_level_is_learnt():
    """Of a level that moves for good the third row is no outlier; in a batch as well."""
    before = np.array([2.0, 1.0, 1.0, 2.0])
    far = np.array([1.0, 900.0, 800.0, 990.0, 1e9])
    want = [True, False, False, True, False]
    assert stream.expected(far, np.full(5, 3.0), before).tolist() == want
    X, y = rows_of_sine(40)
    moved, = certified(X, y + 1000 * (np.arange(40) > 30), stream.Settings(M=12), 10, 3)[-1:]
    assert moved.target.n == 38 and moved.recent[-1, -1] > 990
    assert stream.ordinary(np.array([0, 1, 1, 0, 3, -25, 0, 900.0])).tolist()[-2:] == [True, False]


@each("quiet, d", [(0.0, 1), (0.05, 2), (1e-9, 1)])
def test_input_wakes(quiet, d):
    """Inputs that are steady in the first rows, as a plant at rest, and then move are learnt."""
    X, y = rows_of_sine(130, d)
    y[:10] += 3 * np.sin(4) - 3 * np.sin(X[:10, 0] / 5)
    X[:10] = 20 + quiet * default_rng(1).uniform(-1, 1, (10, d))
    learner, off = after_rows(X, y)
    assert off < 0.25 and np.all(learner.input_scale[1] > 0.9 * quiet)


def test_clock_with_an_outlier():
    """A clock that is wrong once is a clock: its unit stays, the oldest inducing inputs go; not
    where it turns.
    """
    X = np.arange(60.0)[:, None]
    X[30] = -9999.0
    first, *_, last = certified(X, np.sin(X[:, 0] / 5), stream.Settings(M=8, discard="auto"))
    assert np.array_equal(last.input_scale, first.input_scale)
    assert stream.discarded(last.settings, last.moved) == "oldest"
    turned = stream.step(last, X[28:20:-1], np.zeros(8))
    assert stream.discarded(turned.settings, turned.moved) == "redundant"


def test_forecast_far_from_0():
    """Misses of the forecasts as the table has them, rounded to the spacing of y, are counted."""
    rng = default_rng(0)
    X = rng.standard_normal((150, 1))
    y = 1.7e18 + 1700 * rng.standard_normal(150)
    goal = stream.Settings(eps=1023.0, unit="y", M=5, learn="nothing")
    learners = certified(X, y, goal)
    off = [abs(stream.forecast(a, x[None])[0][0] - v) for a, x, v in zip(learners, X[10:], y[10:])]
    assert learners[-1].ledger.mean >= np.sum(np.array(off) > 1023)
