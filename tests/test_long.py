"""The long tests: do certificates of fits and streams hold where the GP learns (by simulation), and
R Table 1 on the paper's data.

With -s the numbers are printed. `STREAMS=500 pytest -m slow -k certified_coverage
tests/test_long.py` takes 500 streams in place of 60.
"""

import itertools
import math
import os
import pathlib

import numpy as np
from numpy.random import default_rng
import pytest

import figures
import online as L
import pacgp_ref as R
import predictive as J
from beyond import stream
from figures_of.imitations import SD
from figures_of.published import published
from figures_of.R import boston_split
from tests.oracles import each, HERE, slow
from tests.problems import certified, fit

DATA = pathlib.Path(os.environ.get("PACGP_DATA", HERE.parent / "shared" / "data"))

# --- does the certificate hold, and can the check fail? ------------------------------------------

COVERAGE = [
    ("kl-PAC-GP", None, "01", 60, 200, "SE"), ("kl-PAC-GP", None, "01", 60, 100, "Matern52"),
    *(("kl-PAC-GP", None, loss, 50, 60, "SE") for loss in ("square", "relative")),
    *(("kl-PAC-SGP", 6, loss, 50, 60, "SE") for loss in ("01", "exp", "band"))]


@slow
@each(
    "method, M, loss, N, n, kernel", COVERAGE,
    ids=[f"{method}-{loss}-{kernel}" for method, _, loss, *_, kernel in COVERAGE])
def test_R_eq05_fit_coverage(method, M, loss, N, n, kernel):
    """n sets of N rows from a law that is no GP, all parameters trained on each, delta = 0.1: B is
    below the true risk (on 4000 fresh rows) in a fraction delta of them at most, R_S in most.
    """
    rng = default_rng(1)
    delta = 0.1
    wrong = 0
    naive = 0
    for i in range(n):
        x = rng.uniform(-3, 3, (N + 4000, 1))
        y = 2 * (N == 50) + np.sin(2 * x[:, 0]) + 0.25 * rng.standard_t(4, N + 4000)
        fitted = fit(x[:N], y[:N], method, M, delta=delta, eps=0.5, loss=loss, max_evals=25, seed=i,
                     kernel=J.KERNELS[kernel])
        risk = R.gibbs_risk(y[N:], *R.predict(fitted, x[N:]), 0.5, loss)
        wrong = wrong + (fitted.bound < risk)
        naive = naive + (fitted.R_S < risk)
    print(f"\n{method}, {loss}, {kernel}: B too low in {wrong} of {n}, R_S in {naive}", end="")
    assert wrong <= delta * n
    assert naive > (0.8 if N == 60 else 0.5) * n


@each("N", [20, 50, 200, 400])
def test_R_eq05_eq15_eq17_bound_power(N):
    """The best of a million fair coins, chosen on N rows: the exact probability that the bound is
    below 1/2, delta = 0.05.

    KL(Q||P) = ln 10^6 for a point mass and a uniform prior; as well a point of a grid of that size,
    paid by the penalty. With all terms it is far below delta; with half the KL, without penalty or
    without the confidence term it is above.
    """
    coins = 10**6
    delta = 0.05
    KL = math.log(coins)
    term = R.ln_confidence(N, delta)

    def failure(nats):
        low = np.flatnonzero(R.kl_inv(np.arange(N + 1) / N, nats / N) < 0.5).tolist()
        each = sum(math.comb(N, k) for k in low) / 2**N
        return -math.expm1(coins * math.log1p(-each))

    right = max(failure(KL + term), failure(KL + R.ln_confidence(N, delta, xi=True)))
    broken = {
        "half the KL": failure(KL / 2 + term), "no penalty": failure(term),
        "no confidence": failure(KL)}
    print(f"\nN = {N}: {right:.4f};", {name: f"{p:.3f}" for name, p in broken.items()})
    assert right < 0.01 * delta < delta < min(broken.values())


# --- streams that are learnt from ----------------------------------------------------------------

RHO = 0.7               # how much of it a walk's next row keeps


def sine_stream(rng, n, order):
    """X (n, 1), y (n,) of y = sin(4x) + 0.4 e, and chance(i).

    chance(i): the law of row i given rows 0 .. i-1, as nodes (k,), weights (k,), means and
    deviations of y there (k,).
    shuffled: x uniform on [-1, 1]. time: the same sorted, so that x_i is the least of those left,
    uniform above x_{i-1}. walk: x one step left or right on 21 points, 0 and 20 turned back, and
    e_i = 0.7 e_{i-1} + fresh noise.
    """
    x = rng.uniform(-1, 1, n)
    e = SD * rng.standard_normal(n)
    fresh = SD * math.sqrt(1 - RHO**2)
    u, w = np.polynomial.legendre.leggauss(24)
    u, w = (u + 1) / 2, w / 2                           # on [0, 1]
    if order == "time":
        x = np.sort(x)
    if order == "walk":
        at = np.empty(n, dtype=int)
        at[0] = 10
        for i in range(1, n):
            at[i] = abs(at[i - 1] + (1 if x[i] > 0 else -1))
            at[i] = min(at[i], 40 - at[i])
            e[i] = RHO * e[i - 1] + math.sqrt(1 - RHO**2) * e[i]
        x = at / 10 - 1

    def chance(i):
        if order == "walk":
            sides = np.abs(at[i - 1] + np.array([-1, 1]))
            nodes = np.minimum(sides, 40 - sides) / 10 - 1
            means = np.sin(4 * nodes) + RHO * e[i - 1]
            return nodes, np.array([0.5, 0.5]), means, np.full(2, fresh)
        low, left = (x[i - 1], n - i) if order == "time" else (-1.0, 1)
        nodes = low + (1 - low) * (1 - u ** (1 / left))
        return nodes, w, np.sin(4 * nodes), np.full(24, SD)
    return x[:, None], np.sin(4 * x) + e, chance


def scaled(learner, X, y):
    """X and y in the units of a Learner's Posterior."""
    middle, unit = stream.middle_and_unit(learner.target)
    X_s = (X - learner.input_scale[0]) / learner.input_scale[1]
    return X_s, (y - middle) / unit


def violations(order, goal, seed, batch, n=68):
    """Whether, after any batch, each of the three certificates is below the true mean conditional
    risk, and the mean loss alone; by how much the first is above it after all.

    y = sin(4 x) + noise. Given the past, the law of a row is known (sine_stream). The loss of a
    prediction N(mean, var) is then, on average over y, that of N(mean, var + noise) at y's mean.
    Risks are those of P_i, of its mean, and of the Q_i booked, on rows drawn anew. A certificate is
    below p where the mixture over lam at p is above 3/delta.
    """
    X, y, chance = sine_stream(default_rng(seed), n, order)
    start = dict(ln_theta=np.array([-2.0, 0.0]), ln_noise=math.log(0.05), pretrain=3)
    true = np.zeros(3)
    lams = np.array(goal.lams)[:, None]
    too_low = []
    learners = certified(X, y, goal, 8, batch, **start)
    for i, (before, after) in zip(range(8, n, batch), itertools.pairwise(learners)):
        laws = [chance(j) for j in range(i, i + batch)]
        nodes, weights, means, sd = (np.concatenate(part) for part in zip(*laws))
        _, unit = stream.middle_and_unit(before.target)
        at, centre = scaled(before, nodes[:, None], means)
        eps = before.eps_y / unit
        noise = (sd / unit) ** 2
        mean, var = L.predict(before.posterior, at)
        X_s, y_s = scaled(before, X[i : i + batch], y[i : i + batch])
        Q = stream.extended(before.posterior, X_s, goal.M)
        if after.ledger.KL > before.ledger.KL + 1e-9:
            Q = L.update(Q, X_s, y_s, before.ln_noise)
        risks = [
            R.LOSSES[goal.loss](centre, f, v + noise, eps)[0] for f, v in (
                (mean, var), (mean, 0.0), L.predict(Q, at))]
        true = true + np.array(risks) @ weights
        m, *losses, KL = after.ledger
        losses = np.array(losses)
        paid = np.array([0.0, 0.0, KL])
        gain = -m * np.log1p(np.expm1(-lams) * true / m)
        mixture = np.mean(np.exp(gain - lams * losses - paid), 0)
        too_low.append([mixture > 3 / goal.delta, losses < true])
    bounds = np.array([c.bound for c in stream.certificates(after)])
    margins = bounds - true / m
    assert np.array_equal(margins < 0, too_low[-1][0])
    return np.any(too_low, 0), margins[0]


STREAMS = {  # name -> order, batch, Settings
    "shuffled": ("shuffled", 4, stream.Settings(M=10, delta=0.1)),
    "time order, exp": (
        "time", 4, stream.Settings(M=10, delta=0.1, lams=(0.8, 0.4), loss="exp")),
    "walk, nothing": (
        "walk", 2, stream.Settings(M=9, learn="nothing", delta=0.1, lams=(0.5, 0.25))),
    "walk, window": (
        "walk", 2,
        stream.Settings(M=9, learn="window", window=20, delta=0.1, forgetting=0.97, lams=(0.5,)))}


@slow
@each("name", STREAMS)
def test_L_certified_coverage(name, streams=int(os.environ.get("STREAMS", 60))):
    """Each certificate is below the true risk, at any m up to 60, in at most delta of the streams.
    The mean losses alone, of which the bounds are made, are so in most: the simulation sees a risk
    that is not covered. A certificate that fails in a fifth of all streams, twice delta, passes
    with probability 0.03.
    """
    order, batch, goal = STREAMS[name]
    too_low, margins = zip(*(violations(order, goal, seed, batch) for seed in range(streams)))
    found, losses_alone = np.sum(too_low, 0)
    names = stream.Certificates._fields
    print(f"\n{name}, {streams} streams, delta {goal.delta}: losses alone {losses_alone}; "
          f"violations {dict(zip(names, found.tolist()))}")
    assert np.all(found <= goal.delta * streams)
    assert np.min(losses_alone) > 0.5 * streams
    assert np.median(margins) < 0.35  # and the bound is not met by being 1


# --- R Table 1 -----------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def boston():
    """(eps, method), quantity -> its numbers in the ten splits of the data, by figures.py."""
    if not (DATA / "boston.csv").exists():
        pytest.skip(f"no boston.csv in {DATA}: set PACGP_DATA to the folder of real data")
    run = figures.Run("full", 0, DATA, ["boston.csv"])
    splits = [run.once(boston_split, i) for i in range(10)]
    return lambda key, name: np.array([found[key][name] for found in splits])


@slow
@each("method", ["kl-PAC-GP", "sqrt-PAC-GP", "full-GP"])
@each("eps", ["0.2", "0.4", "0.6", "0.8", "1.0"])
def test_R_table1_golden(boston, eps, method):
    """Each number within two printed standard errors and half a unit of its last digit.

    Not so sqrt-PAC-GP at eps = 0.2: of its ten runs one stuck at a huge sigma_n^2, as the paper's
    footnote says, and none does here. So B_Pin, which it minimises, must be below the printed one,
    and no worse than that of kl-PAC-GP.
    """
    key = eps, method
    for name, text in published("R_table1", "setting", "method")[key].items():
        mean, error = map(float, text.split(" +- "))
        if key != ("0.2", "sqrt-PAC-GP"):
            assert abs(boston(key, name).mean() - mean) <= 2 * error + 0.0005, name
        elif name == "B_Pin":
            other = "0.2", "kl-PAC-GP"
            assert boston(key, "sigma_n^2").max() < 1
            assert boston(key, name).mean() < mean - error
            assert np.all(boston(key, name) <= boston(other, name) + 1e-4)
            assert np.all(boston(other, "B") <= boston(key, "B") + 1e-4)
