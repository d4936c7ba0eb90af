"""Streams with a certificate, beyond/stream.py, against the ledger written out densely."""

import gc
import itertools
import math
import pickle
import tracemalloc

import numpy as np
import pytest

import online as L
import pacgp_ref as R
from beyond import certificates, stream
from tests.dense import dense_process_kl, Known, known_first
from tests.oracles import (
    assert_all_close, assert_close, assert_just_above, central_difference, crossed, DEFINITIONS,
    leaves, NAN, quadrature, same_bytes)
from tests.problems import certified, first_state, L_grid, L_problem, wave


# --- L Algorithm 1, certified: the ledger written out densely ------------------------------------

FIXED = stream.Settings(M=8, learn="nothing")


def ledger_by_hand(learners, X, y, goal, n0, batch):
    """The ledger and the last Known, in the target's own units; of the learners only Z, kernel and
    noise are looked at.
    """
    X = (X - np.mean(X[:n0], 0)) / np.std(X[:n0], 0)
    ledger = np.zeros(9)
    first = learners[0]
    loss = DEFINITIONS[goal.loss][0]

    def scale(n):
        return dict(middle=np.mean(y[:n]), unit=np.std(y[:n]))

    def rows_of(n, m):
        return (X[n:m], y[n:m], np.exp(owner.ln_noise) * np.var(y[: max(n, n0)]))

    owner = first
    M = len(first.posterior.Z)  # kernel and noise are those declared before the batch
    know = Known(
        first.posterior.Z, first.posterior.ln_theta, np.zeros((M, M)), np.zeros(M),
        **scale(n0)).with_rows(*rows_of(0, n0))
    for n, learner in zip(range(n0, len(y), batch), learners[1:], strict=True):
        old = know._replace(theta=owner.posterior.ln_theta, **scale(n))
        rows = rows_of(n, n + batch)
        new = old.with_rows(*rows, stream.extended(owner.posterior, rows[0], goal.M).Z)
        mean, var = old.at(rows[0])
        eps = goal.eps * {"first": np.std(y[:n0]), "running": old.unit, "y": 1.0}[goal.unit]
        before, after = (
            quadrature(goal.loss, rows[1], *q.at(rows[0]), eps)[0].sum() for q in (old, new))
        KL = dense_process_kl(new, old)
        off = rows[1] - mean
        if after + KL / math.sqrt(2 * (ledger[5] + 3) / (ledger[4] + 1)) >= before:
            after = before
            KL = 0.0  # P_i is booked, not its posterior
        outside = np.sum(np.abs(off) >= 1.96 * np.sqrt(var + rows[2]))
        naive = [loss(rows[1] - value, eps).sum() for value in (y[n - 1], np.mean(y[:n]))]
        ledger += [len(off), before, loss(off, eps).sum(), outside, after, KL, off @ off, *naive]
        know = new.with_rows(
            rows[0][:0], rows[1][:0], 1.0, learner.posterior.Z, learner.posterior.ln_theta)
        know = know._replace(P=goal.forgetting * know.P, h=goal.forgetting * know.h)
        owner = learner
    return ledger, know._replace(theta=owner.posterior.ln_theta, **scale(len(y)))


HAND = {  # name -> d, order, batch, Settings, in the loss, rule of learning and size that differ
    "nothing": (1, "random", 1, stream.Settings(M=8, learn="nothing")),
    "nothing, time order": (
        1, "time", 1, stream.Settings(M=12, learn="nothing", loss="square", eps=0.3)),
    "window, square": (
        1, "random", 4,
        stream.Settings(M=8, learn="window", window=9, loss="square", unit="running")),
    "evidence, exp": (
        1, "time", 1,
        stream.Settings(M=6, learn="evidence", loss="exp", eps=12.0, unit="y")),
    "bound, two inputs": (
        2, "random", 5, stream.Settings(M=9, learn="bound", lams=(0.3, 0.1))),
    "memory": (1, "random", 3, stream.Settings(M=7, learn="evidence", forgetting=0.9)),
    "all at once": (2, "random", 99, stream.Settings(M=12, learn="window")),
}


@pytest.mark.parametrize("name", HAND)
def test_L_certified_step_value(name):
    """Ledger, certificates and last forecast against a loop over the rows in the target's own
    units: scale by np.mean and np.std of the rows so far, losses by quadrature, dense KL, kernel
    and noise those before the batch. All rounded up.
    """
    d, order, batch, goal = HAND[name]
    X, y = wave(26, seed=3, d=d)
    rows = np.argsort(X[:, 0]) if order == "time" else np.arange(26)
    X = 5 * X[rows] - 2
    y = 30 * y[rows] + 70
    learners = certified(X, y, goal, 8, batch, ln_theta=np.full(d + 1, -0.7), pretrain=5)
    ledger, know = ledger_by_hand(learners, X, y, goal, 8, batch)
    last = learners[-1]
    sums = [1, 2, 4, 5, 7, 8]
    assert_just_above(
        1 + np.array(last.ledger)[sums], 1 + ledger[sums], 1e-8,
        oracle=2e-8)  # dense inverses in float64
    assert_close(last.ledger[6], ledger[6], 1e-8)
    assert (last.ledger[0], last.ledger[3]) == (18, ledger[3])
    assert np.all(ledger[[1, 2, 4, 7, 8]] > 0)
    X_new = np.random.default_rng(2).uniform(-8, 4, (7, d))
    mean, var, with_noise = stream.forecast(last, X_new)
    assert_all_close((mean, var), know.at((X_new - np.mean(X[:8], 0)) / np.std(X[:8], 0)), 1e-7)
    assert_close(with_noise - var, np.full(7, np.exp(last.ln_noise) * np.var(y)), 1e-9)
    for a, b in itertools.pairwise(learners):
        assert len(b.posterior.Z) <= goal.M
        assert np.array_equal(a.posterior.ln_theta, b.posterior.ln_theta) == (
            goal.learn == "nothing")
    assert np.array_equal(last.recent, np.column_stack([X, y])[-goal.window :])


@pytest.mark.parametrize("learn", stream.LEARN[:3])
@pytest.mark.parametrize("batch", [1, 3])
def test_L_certified_step_learns(learn, batch):
    """Kernel and noise move by one step of Adam, at goal.rate, along the gradient of what
    goal.learn names, by differences: the evidence of the last rows, or (8) or (12) of the batch
    given P_i with lam the training certificate's. Then the noise changes its unit.
    """
    goal = stream.Settings(
        M=6, learn=learn, window=9, rate=0.03, loss="exp", lams=tuple(4 * 0.8 ** np.arange(12)))
    X, y = wave(28)
    learners = certified(X, y, goal, batch=batch, ln_theta=np.array([-0.5, 0.2]))
    for a, b in list(itertools.pairwise(learners))[::4]:
        n = int(a.target.n)
        last = int(b.target.n)
        middle = np.mean(y[:n])
        unit = np.std(y[:n])
        rows = slice(n, last)
        X_s = (X - a.input_scale[0]) / a.input_scale[1]
        y_s = (y - middle) / unit
        lam = certificates.certificate(
            b.ledger.after, b.ledger.KL, last - 10, goal.lams,
            goal.delta / 6).lam  # of the training one

        def value(p):
            p = dict(ln_theta=p[:2], ln_noise=p[2], Z=b.posterior.Z)
            if learn == "window":
                window = slice(max(0, last - 9), last)
                return R.full_gp_nll(X_s[window], y_s[window], p["ln_theta"], p["ln_noise"])[0]
            args = p, a.posterior, X_s[rows], y_s[rows]
            eps = goal.eps * np.std(y[:10]) / unit  # the unit of the goal is that of the first rows
            if learn == "evidence":
                return L.free_energy(*args)[0]
            return L.online_objective(*args, lam, eps, "exp")[0]

        start = np.append(a.posterior.ln_theta, a.ln_noise)
        want, adam = R.adam_step(start, central_difference(value, start, 1e-3), a.adam, 0.03)
        assert_all_close(b.adam, adam, 1e-7)
        assert np.all(b.adam[2] == (last - 10) / batch)
        moved_noise = b.ln_noise + 2 * np.log(np.std(y[:last]) / unit)
        assert_close(np.append(b.posterior.ln_theta, moved_noise) - start, want - start, 1e-6)


# --- L Algorithm 1, certified: what may look at what; units, order, batches; memory --------------


@pytest.mark.filterwarnings("ignore")
def test_L_certified_step_refused_batch():
    """A refused batch, or one of no rows, leaves the learner as it was; the first rows do not
    count, and nothing is certified of them.
    """
    X, y = wave(13, d=2)
    first, *_, learner = certified(X, y, FIXED._replace(learn="window"))
    before = pickle.dumps(learner)
    for *batch, message in (
        (X[:3], np.where(np.arange(3) == 1, NAN, y[:3]), "y has 1 val"),
        (X[:3], 1e200 * y[:3], "y has a value more"),
        (np.ones((3, 3)), y[:3], "X must have 2 columns"), (X[:3], [], "X and y differ"),
        ([[1], [3, 2]], y[:2], "X must hold")):
        with pytest.raises(ValueError, match="^" + message):
            stream.step(learner, *batch)
    assert pickle.dumps(learner) == before
    assert stream.step(learner, X[:0], y[:0]) is learner
    assert stream.step(learner, [], []) is learner
    assert [len(v) for v in stream.forecast(learner, X[:0])] == [0, 0, 0]
    assert not np.any(first.ledger)
    with pytest.raises(ValueError, match="no row counts yet"):
        stream.certificates(first)


UNITS = {
    "3 y + 7, 5 x - 2": (5, -2, 3, 7, 1e-8), "powers of two": (2.0**40, 0, 2.0**-60, 0, 0.0),
    **{f"y times {size}": (1 / size, 0, size, 0, 1e-7) for size in (1e-140, 1e140)}}


@crossed(
    "learn, change", stream.LEARN, UNITS,
    default=lambda learn, change: learn == "window" or change == "3 y + 7, 5 x - 2")
def test_L_certified_units(learn, change):
    """y -> c y + e and x -> a x + b move neither ledger nor forecast, but by their unit; powers of
    two move no bit.
    """
    goal = stream.Settings(M=10, learn=learn)
    X, y = wave(30, d=2)
    a, b, c, e, tol = UNITS[change]
    want = certified(X, y, goal)[-1]
    got = certified(a * X + b, c * y + e, goal)[-1]
    units = [1] * 6 + [c, 1, 1]
    assert_close(np.divide(got.ledger, units), np.multiply(want.ledger, units), tol)
    for g, w, power in zip(
        stream.forecast(got, a * X + b), stream.forecast(want, X), (1, 2, 2)):
        assert_close((g - e * (power == 1)) / c, w * c ** (power - 1), tol)


def test_L_certified_begin_given_scale():
    """input_scale: mean and deviation known beforehand, used as they are."""
    X, y = wave(30, d=2)
    scale = np.array([[0.5, -1.0], [2.0, 0.7]])
    got = certified(X, y, FIXED, input_scale=scale)[-1]
    want = certified(
        (X - scale[0]) / scale[1], y, FIXED, input_scale=np.array([[0.0, 0.0], [1.0, 1.0]]))[-1]
    assert same_bytes(got.ledger, want.ledger)


def peak_bytes(advance, n=10):
    """Peak of what n calls allocate."""
    gc.collect()
    tracemalloc.start()
    for _ in range(n):
        advance()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("learn", [None, "window", "evidence"])
def test_L_alg1_step_memory(learn):
    """Row by row with M = 50 inducing inputs: what is kept has the size it had at first, about
    three M x M matrices, and a row takes the memory it took at first.
    """
    rng = np.random.default_rng(0)
    ln_theta = np.array([-2.0, -2.0, 0.0])

    def rows(n):
        X = rng.uniform(-1, 1, (n, 2))
        return X, np.sin(4 * X[:, 0]) + X[:, 1] + 0.4 * rng.standard_normal(n)

    def advance():
        kept[0] = (
            stream.step(kept[0], *rows(1)) if learn else L.update(kept[0], *rows(1), -1.0))

    def size():
        return sum(np.asarray(a).nbytes for a in leaves(kept))

    if learn:
        settings = stream.Settings(learn=learn)
        kept = [stream.begin(*rows(100), settings, ln_theta=ln_theta)]
    else:
        kept = [L.prior(rows(50)[0], ln_theta)]
    at_first = size()
    before = peak_bytes(advance)
    for _ in range(20):
        advance()
    after = peak_bytes(advance)
    print(f"\n{learn}: peak {after / 2**10:.0f} KiB, {before / 2**10:.0f} KiB at first", end="")
    assert after < 1.05 * before
    assert size() == at_first
    assert 8 * 3 * 50**2 <= size() < 8 * 3.5 * 50**2


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_L_sec51_running_moments_value(offset):
    """Any cut into batches, empty ones too: n, mean and squares of everything, far from 0 as well;
    the unit of constant targets is 1.
    """
    y = offset + np.random.default_rng(0).standard_normal(40)
    target = stream.Moments()
    for start, end in itertools.pairwise([0, 1, 1, 2, 9, 10, 30, 40]):
        target = stream.running_moments(target, y[start:end])
        seen = y[:end]
        assert target[0] == end
        assert abs(target[1] - np.mean(seen)) < 1e-15 * (1 + offset)
        assert abs(target[2] - np.sum((seen - np.mean(seen)) ** 2)) < 1e-13 * (1 + 100 * offset)
    want = (target[1], np.std(y))
    assert_all_close(stream.middle_and_unit(target), want, 1e-9 if offset else 1e-13)
    constant = stream.running_moments(stream.Moments(), np.full(5, 0.1))
    assert stream.middle_and_unit(constant)[1] == 1.0


@pytest.mark.parametrize("kind", ["SE", "ARD", "mixture"])
def test_L_sec51_rescale_value(kind):
    """What the rows say about f = ratio g + shift stays, the prior is that of g: dense. Of that, a
    share is kept.
    """
    q = L_problem(kind)
    ratio = 1.7
    shift = -0.4
    state = first_state(q)
    old = known_first(q)
    for share in (1.0, 0.6):
        dense = old._replace(
            P=share * old.P, h=share * old.h, middle=shift, unit=ratio)  # of f, in the old unit
        mean, var = L.predict(stream.rescale(state, ratio, shift, share), L_grid(q))
        assert_all_close((shift + ratio * mean, ratio**2 * var), dense.at(L_grid(q)), 1e-9)
