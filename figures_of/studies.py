"""Figures that are in none of the papers; `python figures.py NAME` makes one.

`run` is a figures.Run. It has the size (quick, default or full), the seed, the tables of --data, a
random generator and a line of progress. R, J and L are pacgp_ref.py, predictive.py and online.py.
rng is a NumPy generator. A row is a dict: column -> entry.
"""
import inspect
import math
import re
import time
from functools import partial

import numpy as np
from matplotlib.figure import Figure

import beyond.certificates
import beyond.stream
import online as L
import pacgp_ref as R
import predictive as J

from figures_of.authors import authors_fit
from figures_of.imitations import kin40k_like, robot_arm
from figures_of.L import PRETRAINED, learners
from figures_of.published import agreement, committed, in_words, printed
from figures_of.R import (SPARSE_FILES, SPARSE_STUDY, measure, ratios, sparse_rows, sparse_run,
                          sparse_table)
from figures_of.shared import (BLACK, BLUE, GREEN, ORANGE, RED, RING, at_most, average, band,
                               below, col, curve, data_set, experiment, figure, key, panels, rings,
                               train, train_test, where)


@figure("The printed theorem 3.1 on dependent rows: all are copies of one coin, which shows 0.",
        m=100, delta=0.05)
def L_dependent(run, m, delta):
    t = np.arange(1, m + 1)
    lam = L.best_lam(m, 0.0, delta, 2.0)
    allowed = [L.online_bound(0.0, 0.0, int(k), lam, delta, 2.0) / k for k in t]
    picture, ax = panels(1, 1, 7, 4.2)
    half = np.full(m, 0.5)
    fails = np.less(allowed, half)
    ax.plot(t, allowed, color=BLUE, label="right-hand side of (9), as printed, no loss seen")
    ax.plot(t, half, color=RED, ls="--", label="risk by the plain expectation")
    ax.plot(t, half / t, color=BLACK, ls=":", label="risk given the past")
    ax.fill_between(t, allowed, half, where=fails, color=RED, alpha=0.15, lw=0,
                    label="the theorem is violated")
    ax.set(xlabel="rows $m$", xlim=(1, m), ylabel="per row, units of the loss", ylim=(0, 1.05))
    ax.legend(loc="upper right")
    rows = [{"m": k, "right-hand side": allowed[k - 1], "plain": 0.5, "given the past": 0.5 / k}
            for k in (1, 10, 20, 50, m)]
    return picture, rows, [
        f"Theorem 3.1 as printed fails with probability 1/2 on {t[fails][0]} or more copies of one "
        f"coin; {delta:g} is allowed."]


@experiment("kl-PAC-SGP on N rows of the robot arm (d = 8, noise 0.15 sd); the scale comes from "
            "rows of its own.", n_test=(1000, 100_000, 100_000), M=(10, 100, 100),
            max_evals=(15, 100, 400), eps=0.6, delta=0.01)
def arm_run(run, N, n_test, M, **settings):
    rng = run.seeded("arm")
    pilot = robot_arm(rng, 100_000)[1]
    X, y = np.empty((N + n_test, 8)), np.empty(N + n_test)
    for i in range(0, len(y), 100_000):
        rows = slice(i, i + 100_000)
        turn, distance = robot_arm(rng, len(y[rows]))
        X[rows] = turn * math.sqrt(3)
        noise = 0.15 * rng.standard_normal(len(turn))
        y[rows] = (distance - pilot.mean()) / pilot.std() + noise
    start = time.monotonic()
    fit = train(run, f"N = {N}", X[:N], y[:N], "kl-PAC-SGP", M, ard=True, seed=run.seed,
                **settings)
    took = time.monotonic() - start
    return {"N": N, "B": fit.bound, "R_S train": fit.R_S,
            "R_S test": R.gibbs_risk(y[N:], *R.predict(fit, X[N:]), fit.eps), "KL/N": fit.KL / N,
            "evaluations": fit.optimum.n_evals, "seconds": took}


@figure("kl-PAC-SGP on the robot arm, one run for each N: seconds of training, k-means and a "
        "search on a part of the rows included, and the certificate.",
        Ns=([300, 1000], *[[1000, 10_000, 100_000, 1_000_000]] * 2))
def million(run, Ns):
    picture, (left, right) = panels(1, 2, 8.3, 3.8)
    rows = [run.once(arm_run, N) for N in Ns]
    seconds = col(rows, "seconds")
    left.plot(Ns, seconds, "^-", color=RED, label="training")
    left.plot(Ns, seconds[-1] * np.divide(Ns, Ns[-1]), color="0.5", ls=":",
              label="in proportion to $N$")
    left.set(xscale="log", yscale="log", xlabel="training rows $N$ (evaluations)",
             ylabel="seconds in all",
             xlim=(0.6 * Ns[0], 2 * Ns[-1]))
    left.set_xticks(Ns, [f"{n:,}\n({row['evaluations']})" for n, row in zip(Ns, rows)])
    left.legend(loc="lower right")
    band(right, Ns, col(rows, "R_S test"), col(rows, "B"), BLUE, 0.12)
    right.plot(Ns, col(rows, "B"), "o-", color=BLUE, label="certificate, 99 % confidence")
    right.plot(Ns, col(rows, "R_S test"), "x--", color=BLACK, label="risk on fresh rows")
    right.set(xscale="log", yscale="log", xlabel="training rows $N$",
              ylabel="P(a prediction misses by more than 0.6 sd)")
    right.set_yticks([0.001, 0.01, 0.1], ["0.1 %", "1 %", "10 %"])
    right.set_xticks(Ns, [f"{n:,}" for n in Ns])
    right.legend(loc="lower left")
    last = rows[-1]
    return picture, rows, [
        f"{last['N']:,} rows train in {last['seconds']:.0f} s and certify {at_most(last['B'], 4)}; "
        f"the true risk is {last['R_S test']:.4f}."]


MISS, NOISE = 0.3, 0.12                 # of ripples: what counts as a miss; sd of the noise


def ripples(rng, N):
    """X (N, 2) on [-2, 2]^2, y (N,): a product of two waves, and noise.

    The standard deviation of the product is 0.8, that of the noise NOISE.
    """
    X = rng.uniform(-2, 2, (N, 2))
    f = 1.6 * np.sin(1.5 * X[:, 0]) * np.cos(1.5 * X[:, 1])
    return X, f + NOISE * rng.standard_normal(N)


SHOWN = ("draw", "mean")       # of the certificates, which share delta


def two_risks(mean, var, y, eps):
    """Returns two risks on fresh rows, a dict: "draw, true risk" and "mean, true risk".

    The first is the risk of a function drawn from the GP, the second that of the GP's mean. A risk
    is the expected share of rows whose target is missed by more than eps. mean, var: (n,), the GP's
    predictions of f for these rows; y: (n,), their targets.
    """
    return {"draw, true risk": R.gibbs_risk(y, mean, var, eps),
            "mean, true risk": np.mean(np.abs(mean - y) > eps)}


@experiment("Three certificates of table i of N rows, and the true risks; inputs and target "
            "are not scaled.",
            eps=MISS, delta=0.05, M=50, max_evals=(20, 100, 100), n_new=(1000, 400_000, 400_000))
def table_certificates(run, N, i, eps, delta, M, max_evals, n_new):
    X, y = ripples(run.rng, N)
    X_new, y_new = ripples(run.rng, n_new)
    first = beyond.certificates.draw_part(X, y, 0.5)
    rest = np.setdiff1d(np.arange(N), first)
    made = partial(train, run, f"N = {N}", M=min(M, N // 4), eps=eps, delta=delta,
                   max_evals=max_evals)
    paper = made(X, y, "kl-PAC-SGP")
    prior = made(X, y, "VFE", share=0.5)
    half = made(X[first], y[first], "VFE")
    held = beyond.certificates.held_out(
        half, X[rest], y[rest], beyond.certificates.delta_each(delta, SHOWN))
    bounds = {"paper": (paper, paper.bound, R.bayes_risk_bound(paper.bound)),
              "prior": (prior, prior.bound, R.bayes_risk_bound(prior.bound)),
              "held-out": (half, held.bound, held.mean_bound)}
    return {name: {"draw, bound": draw, "mean, bound": mean}
            | two_risks(*R.predict(fit, X_new), y_new, eps)
            for name, (fit, draw, mean) in bounds.items()}


@experiment("Bounds of a stream after N rows, and the mean risks of all its predictors so "
            "far, on fresh rows.", eps=MISS, delta=0.05, M=50, each=20)
def stream_certificates(run, *Ns, eps, delta, M, each):
    X, y = ripples(run.rng, max(Ns))
    delta = beyond.certificates.delta_each(delta, SHOWN) * len(beyond.stream.Certificates._fields)
    settings = beyond.stream.Settings(eps=eps, unit="y", M=M, delta=delta)
    scale = [[0.0, 0.0], [1.0, 1.0]]
    rows, sums = [], np.zeros(2)
    for m, learner in enumerate(learners(X, y, settings=settings, input_scale=scale)):
        if m + PRETRAINED in Ns:
            bounds = beyond.stream.certificates(learner)
            draw, mean = sums / m
            rows.append({"certificate": "any-time", "N": m + PRETRAINED,
                         "draw, bound": bounds.draw.bound, "mean, bound": bounds.mean.bound,
                         "draw, true risk": draw, "mean, true risk": mean})
        X_new, y_new = ripples(run.rng, each)
        mean, var, _ = beyond.stream.forecast(learner, X_new)
        sums += list(two_risks(mean, var, y_new, eps).values())
        run.tick(f"a stream of {max(Ns)}: row {m}")
    return rows


TABLES = [100, 300, 1000, 3000, 10_000, 30_000, 100_000]


@figure("Four certificates of one goal against the number of rows, each over its true risk, of the "
        "stream (one, to 10,000 rows) the mean risk of all its predictors so far; means over "
        "tables, above 10,000 rows one table; bars: s.e. over tables. The noise alone misses with "
        f"probability {2 * R.norm_cdf(-MISS / NOISE):.4f}.",
        Ns=([100, 300], TABLES, TABLES), tables=(1, 3, 10), longest=10_000)
def certificates(run, Ns, tables, longest):
    rows = list(run.once(stream_certificates, *(N for N in Ns if N <= longest)))
    for N in Ns:
        found = [run.once(table_certificates, N, i) for i in range(tables if N <= longest else 1)]
        rows += [{"certificate": name, "N": N} | average([one[name] for one in found])
                 for name in found[0]]
    best = [min(where(rows, N=N), key=lambda row: col([row], "draw, bound"))["certificate"]
            for N in Ns]
    picture, axes = panels(1, 2, 8.3, 4.6, sharey=True)
    for ax, what, title in zip(axes, SHOWN, ("a prediction drawn from the GP", "the GP's mean")):
        for name in ("paper", "prior", "held-out", "any-time"):
            part = where(rows, certificate=name)
            curve(ax, part, "N", f"{what}, bound", name)
            curve(ax, part, "N", f"{what}, true risk", name, ls=":", mfc="white", label=None)
        ax.set(xscale="log", yscale="log", xlabel="rows $N$", title=title,
               ylabel="P(a miss by more than 0.3 in $y$)")
    below(axes[0], 4, key("dotted: the true risk", color="0.4", ls=":", marker="o", mfc="white"))
    return picture, rows, [
        "Held-out rows give a prediction drawn from the GP its lowest bound at "
        f"{best.count('held-out')} of {len(Ns)} sizes, {Ns[0]:,} to {Ns[-1]:,} rows."]


@experiment("measures as of sparse_run, but trained as by R's authors' code: L-BFGS moves Z and "
            "softplus^-1 of l, sigma_s^2 and sigma_n^2, from ones and SciPy's kmeans2. Every Q, "
            "of VFE too, is (11) with alpha = 1.",
            needs="0.4 GB and a core for 20 to 30 minutes (pol)",
            N=(400, 1000, 40_000, "all", "all"), eps=0.6, delta=0.01,
            max_evals=(15, 60, 1000, 100, 1000), memory=10, ftol=1e-8)
def authors_run(run, data, M, method, ard, loss, split, *, N, **settings):
    X, y = data_set(run, data, kin40k_like, N, "sparse_table", run.size, data)
    a, b = train_test(len(y), split)
    fit = authors_fit(run, f"{data}, M = {M}, split {split + 1}, {method}", X[a], y[a], M, method,
                      ard == "ARD", loss=loss, **settings)
    return measure(fit, X[b], y[b])


@figure("R Table 2 trained in two ways, as by R's authors' code and as by ours; kl-PAC-SGP also "
        "with the exponential loss, as in R Table 3.", *SPARSE_FILES, **SPARSE_STUDY)
def authors_table(run, Ms, splits):
    found = [sparse_rows(run, splits, Ms[-1:], *what, trained=f) for f, *what in (
        (authors_run, ("-", "ARD")), (authors_run, None, "exp", ["kl-PAC-SGP"]),
        (sparse_run, ("-", "ARD")))]
    tables = [sparse_table(rows, f"R_table{i}") for rows, i in zip(found, (2, 3, 2))]
    ways = "the authors' way", "the same, exponential loss", "our way"
    rows = [row | {"": way} if row[""] == "ours" else row
            for way, table in zip(ways, tables) for row in table]
    if run.real and found[0]:
        return None, rows, [f"Trained the authors' way, {in_words(*agreement(tables[0])[:4], [])}"]
    return None, rows, [ratios(where(found[0], ARD="ARD"), Ms[-1])]


# zero mean; the code's names are in docs/reading-R.md
FORMULAS = r"""R (8) as printed:
$\mathrm{KL}(Q\Vert P)=\frac{1}{2}\ln|K_{NN}+\sigma_n^2I|-\frac{N}{2}\ln\sigma_n^2$
$-\frac{1}{2}\mathrm{tr}\,K_{NN}(K_{NN}+\sigma_n^2I)^{-1}$
$+\frac{1}{2}y^{\top}(K_{NN}+\sigma_n^2I)^{-1}K_{NN}(K_{NN}+\sigma_n^2I)^{-1}y$
As computed, $K_y=K_{NN}+\sigma_n^2I$, $a=K_y^{-1}y$:
$\frac{1}{2}[\ln|K_y|-N\ln\sigma_n^2-N$
$+\sigma_n^2\mathrm{tr}\,K_y^{-1}+a^{\top}y-\sigma_n^2a^{\top}a\,]$"""


def printed_kl(X, y, p):
    """KL(Q||P) of the full GP by R (8) as printed, with the SE kernel, to check full_gp against.

    It inverts K_y = K_NN + sigma_n^2 I as a dense matrix. X (N, d), y (N,); p (T+1,): ln_theta,
    then ln_noise.
    """
    K_NN, _ = R.se_kernel(X, X, p[:-1])
    K_y = K_NN + math.exp(p[-1]) * np.eye(len(y))
    inverse = np.linalg.inv(K_y)
    return (np.linalg.slogdet(K_y)[1] - len(y) * p[-1] - np.trace(K_NN @ inverse)
            + y @ inverse @ K_NN @ inverse @ y) / 2


@experiment("R (8) at N random rows: relative differences of the code from the formula as printed, "
            "and of its gradient from central differences of the formula.", N=40)
def off_print(run, N):
    X, y, p = run.rng.standard_normal((N, 3)), run.rng.standard_normal(N), np.zeros(5)
    (_, _, KL), back = R.full_gp(X, y, p[:-1], p[-1])
    grads = back(np.zeros(N), np.zeros(N), 1.0)
    steps = 1e-5 * np.eye(5)
    want = [(printed_kl(X, y, p + h) - printed_kl(X, y, p - h)) / 2e-5 for h in steps]
    off = np.abs(np.append(grads["ln_theta"], grads["ln_noise"]) - want)
    return abs(KL / printed_kl(X, y, p) - 1), np.max(off) / np.max(np.abs(want))


def in_powers(x):
    """Returns as text the smallest power of ten that is at least x and at least 1e-16."""
    return f"{10.0 ** math.ceil(math.log10(max(x, 1e-16))):.0e}"


def wave(rng, N):
    """X (N, 1) on [0, 10], y (N,): a decaying sine and noise, rounded to four decimals.

    The noise has standard deviation 0.2.
    """
    x = rng.uniform(0, 10, N)
    y = np.sin(x) * np.exp(-x / 10) + 0.2 * rng.standard_normal(N)
    return np.round(x[:, None], 4), np.round(y, 4)


@experiment("N rows of a wave (the table of `python -m own_data certify`): half of them train a GP "
            "by its likelihood, the others certify its mean, which meets n_new new rows.",
            N=300, eps=0.5, delta=0.01, n_new=(1000, 400_000, 400_000))
def certified_wave(run, N, eps, delta, n_new):
    X, y = wave(np.random.default_rng(0), N)
    first = beyond.certificates.draw_part(X, y, 0.5)
    rest = np.setdiff1d(np.arange(N), first)
    fit = train(run, "a wave", X[first], y[first], "full-GP", eps=eps)
    held = beyond.certificates.held_out(fit, X[rest], y[rest], delta)
    X_new, y_new = wave(run.rng, n_new)
    missed = np.mean(np.abs(R.predict(fit, X_new)[0] - y_new) > eps)
    grid = np.linspace(0, 10, 300)[:, None]
    parts = [(X[rows], y[rows]) for rows in (first, rest)]
    return parts, (grid, R.predict(fit, grid)[0]), dict(
        eps=eps, delta=delta, bound=held.mean_bound, n_new=n_new, missed=missed)


def code_lines(f, first, last):
    """Returns part of a function's source as text, with line numbers, without comments.

    f: the function; first, last: regular expressions. The part goes from the first line that begins
    with `first` up to and including the next line that begins with `last`. Indentation does not
    count.
    """
    lines, number = inspect.getsourcelines(f)
    text = "".join(f"{number + i} {line}" for i, line in enumerate(lines))
    found = re.search(rf"(?ms)^\d+ +{first}.*?^\d+ +{last}.*?$", text)[0]
    return re.sub(r"(?m) +#.*", "", found)


@figure("Above: a GP, certified by rows held out; R's bound on Boston housing, from "
        "pictures/R_table1_real.md (ten splits; bars: s.e.), and the published one. Below: "
        "R (8), the KL divergence in R's bound, and the code of its value and gradient, read from "
        "the source.", head="Two guarantees, and code beside its formula")
def hero(run):
    parts, (grid, mean), facts = run.once(certified_wave)
    to_formula, to_differences = run.once(off_print)
    picture = Figure((8.3, 5.7), layout="constrained")
    above, below = picture.subfigures(2, 1, height_ratios=(6, 5))
    left, right = above.subplots(1, 2, width_ratios=(3, 2))
    eps = facts["eps"]
    for (X, y), colour, label in zip(parts, (BLACK, ORANGE), ("trains", "certifies")):
        left.plot(X, y, ".", color=colour, ms=3, label=label)
    left.plot(grid, mean, color=BLUE, label="mean of the GP")
    band(left, grid, mean - eps, mean + eps, GREEN, 0.2, f"$\\pm$ {eps:g}, the tolerance")
    left.set(xlabel="input $x$", ylabel="target $y$", xlim=(0, 10))
    left.legend(ncols=2, loc="upper right")
    table = committed("R_table1_real")
    theirs = printed("R_table1", "setting", "method")
    for method in ("kl-PAC-GP", "full-GP"):
        curve(right, where(table, method=method), "eps", "B", method)
        rings(right, where(theirs, method=method), "setting", "B", method)
    right.set(xlabel="tolerance $\\varepsilon$ [sd of $y$]", ylabel="bound on P(a draw misses) $B$",
              ylim=(0, 1), title="Boston housing, ours and published")
    right.legend(handles=[*right.get_legend_handles_labels()[0], RING])
    ax = below.subplots()
    ax.axis("off")
    ax.text(0, 1, FORMULAS, fontsize=10, va="top", linespacing=1.8, math_fontfamily="cm")
    ax.text(0, -0.1, f"On random rows the code equals\nthe formula to {in_powers(to_formula)}, "
            f"its gradient the\nformula's finite differences to {in_powers(to_differences)}.",
            color=RED)
    code = ("pacgp_ref.py, full_gp", code_lines(R.full_gp, "trace = ", "KL = "),
            code_lines(R.full_gp, "def back", "return dict"))
    ax.text(0.4, 0.5, "\n".join(code), family="monospace", fontsize=7.5,
            va="center", bbox=dict(boxstyle="round", fc="0.95", ec="none"))
    rows = [facts | {"off formula": to_formula, "off differences": to_differences}]
    return picture, rows, [
        f"With {100 - 100 * facts['delta']:g} % confidence the GP's mean misses a new y by more "
        f"than {eps:g} with probability at most {at_most(facts['bound'], 4)}; it misses "
        f"{100 * facts['missed']:.1f} % of {facts['n_new']:,} new ones."]
