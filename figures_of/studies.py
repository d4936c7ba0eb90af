"""Figures that no paper has: `python figures.py NAME` finds them here."""
import math
import time

import numpy as np

import beyond.certificates
import beyond.stream
import online as L
import pacgp_ref as R

from figures_of.imitations import robot_arm, snelson_like
from figures_of.L import PRETRAINED, learners
from figures_of.shared import (BLACK, BLUE, GREEN, ORANGE, RED, SKY, at_most, average, band, below,
                               col, curve, experiment, figure, key, panels, train, where)


@experiment("Rows (N, B, R_S, true risk) of GPs trained on small data sets; R by many new rows.",
            Ns=[50, 100, 200, 400], each=(4, 50, 500), n_new=(2000, 20_000, 100_000), M=8,
            max_evals=60)
def coverage_runs(run, Ns, each, n_new, M, max_evals):
    def draw(n):
        x = run.rng.uniform(0, 6, n)
        return x[:, None], np.sin(2 * x) + 0.3 * run.rng.standard_normal(n)

    X_new, y_new = draw(n_new)
    found = []
    for N in Ns:
        for i in range(each):
            X, y = draw(N)
            fit = train(run, f"N = {N}, data set {i + 1}", X, y, "kl-PAC-SGP", M=M,
                        max_evals=max_evals, ftol=1e-5, seed=i)
            risk = R.gibbs_risk(y_new, *R.predict(fit, X_new), fit.eps)
            found.append([N, fit.bound, fit.R_S, risk])
    return np.array(found)


@figure("The certificate of trained GPs, and their training risk, over their true risk.")
def R_coverage(run):
    found = run.once(coverage_runs)
    picture, ((ax,),) = panels(1, 1, 6.4, 4.4)
    rows = []
    for n, colour, marker in zip(np.unique(found[:, 0]), (ORANGE, GREEN, SKY, BLUE), "os^D"):
        _, bound, risk, true = part = found[found[:, 0] == n].T
        style = dict(color=colour, marker=marker, ls="none")
        ax.plot(true, bound, ms=4, label=f"$B$, $N={n:g}$", **style)
        ax.plot(true, risk, ms=3, mfc="none", mew=0.7, **style)
        rows.append(dict(zip(("N", "mean B", "mean R_S", "mean true risk"), part.mean(1)))
                    | {"B too low": int(sum(bound < true)), "R_S too low": int(sum(risk < true)),
                       "data sets": len(true)})
    _, bound, _, true = found.T
    ax.plot([], [], "o", color="0.4", mfc="none", ms=3, label="training risk $R_S$")
    ax.plot([0, 1], [0, 1], "k-", lw=1, label="the true risk")
    ax.set(xlim=(0, 1.1 * true.max()), ylim=(0, 1.05 * bound.max()), xlabel="true risk $R(Q)$",
           ylabel="$B$ (filled), $R_S$ (hollow)")
    ax.legend()
    few, many = (sum(row[f"{name} too low"] for row in rows) for name in ("B", "R_S"))
    return picture, rows, [f"The bound is below the true risk in {few} of {len(found)} data sets, "
                           f"the training risk in {many}; delta = 0.01."]


BROKEN = ("full", "printed", "no lam m K^2/8", "no confidence")       # right-hand sides of (11)


def allowances(name, m, lam, delta):
    """(m,) what (11) adds to the sum of t = 1 .. m losses, KL = 0; whole or without a term."""
    t = np.arange(1, m + 1)
    K = 2.0 if name == "printed" else 1.0       # K^2/8 of the double is the printed K^2/2
    whole = [L.online_bound(0.0, 0.0, int(k), lam, delta, K) for k in t]
    left_out = {"no lam m K^2/8": lam * t / 8,
                "no confidence": math.log(1 / delta) / lam}
    return np.array(whole) - left_out.get(name, 0.0)


def coin_failure(allowed):
    """Probability that a fair coin's sum is, at any t, below t/2 by more than allowed[t-1].

    Exact, over the counts.
    """
    alive, failed = np.ones(1), 0.0
    for t, extra in enumerate(allowed, 1):
        alive = (np.append(alive, 0.0) + np.append(0.0, alive)) / 2
        out = np.arange(t + 1) + extra < t / 2
        failed += alive[out].sum()
        alive = np.where(out, 0.0, alive)
    return failed


@figure("How often a bound for all times at once fails on coins, also with a term left out: exact.",
        deltas=(4, 8, 12), m=100)
def L_coverage(run, deltas, m):
    picture, ((ax,),) = panels(1, 1, 6.4, 4.4)
    rows = []
    for delta in np.geomspace(0.01, 0.5, deltas):
        row = {"delta": delta}
        for name in BROKEN:
            lam = L.best_lam(m, 0.0, delta, 2.0 if name == "printed" else 1.0)
            row[name] = coin_failure(allowances(name, m, lam, delta))
        rows.append(row)
    for name in BROKEN:
        curve(ax, rows, "delta", name)
    ax.plot([0.01, 0.5], [0.01, 0.5], color=BLACK, lw=1, label="allowed: $\\delta$")
    ax.set(xscale="log", yscale="log", ylim=(1e-5, 1.6), xlabel="$\\delta$",
           ylabel=f"P(a stream violates it at any $t\\leq{m}$)")
    below(picture, ax, 3)
    return picture, rows, [
        f"At delta = 0.01 the whole bound fails with probability {rows[0]['full']:.4f}, without "
        f"ln(1/delta)/lambda {rows[0]['no confidence']:.2f}."]


@figure("The printed theorem 3.1 on dependent rows: all are copies of one coin, which shows 0.",
        m=100, delta=0.05)
def L_dependent(run, m, delta):
    t = np.arange(1, m + 1)
    allowed = allowances("printed", m, L.best_lam(m, 0.0, delta, 2.0), delta) / t
    picture, ((ax,),) = panels(1, 1, 7, 4.2)
    half = np.full(m, 0.5)
    for values, colour, ls, label in (
            (allowed, BLUE, "-", "right-hand side of (9), as printed, no loss seen"),
            (half, RED, "--", "risk by the plain expectation"),
            (half / t, BLACK, ":", "risk given the past")):
        ax.plot(t, values, color=colour, ls=ls, label=label)
    ax.fill_between(t, allowed, half, where=allowed < half, color=RED, alpha=0.15, lw=0,
                    label="the theorem is violated")
    ax.set(xlabel="rows $m$", xlim=(1, m), ylabel="per row, units of the loss", ylim=(0, 1.05))
    ax.legend(loc="upper right")
    rows = [{"m": k, "right-hand side": allowed[k - 1], "plain": 0.5, "given the past": 0.5 / k}
            for k in (1, 10, 20, 50, m)]
    return picture, rows, ["Theorem 3.1 as printed is false for dependent rows: it fails with "
                           f"probability 1/2, where {delta:g} is allowed."]


@experiment("kl-PAC-SGP on N rows of the robot arm (d = 8, noise 0.15 sd); the scale comes from "
            "rows of its own.", n_test=(1000, 100_000, 100_000), M=(10, 100, 100),
            max_evals=(15, 100, 400), eps=0.6, delta=0.01)
def arm_run(run, N, n_test, M, max_evals, eps, delta):
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
    fit = train(run, f"N = {N}", X[:N], y[:N], "kl-PAC-SGP", M, eps, delta, ard=True,
                max_evals=max_evals, seed=run.seed)
    took = time.monotonic() - start
    return {"N": N, "B": fit.bound, "R_S train": fit.R_S,
            "R_S test": R.gibbs_risk(y[N:], *R.predict(fit, X[N:]), eps), "KL/N": fit.KL / N,
            "evaluations": fit.optimum.n_evals, "seconds": took}


def against_rows(ax, rows):
    """The certificate and the risk on fresh rows against N."""
    N = col(rows, "N")
    band(ax, N, col(rows, "R_S test"), col(rows, "B"), BLUE, 0.12)
    ax.plot(N, col(rows, "B"), "o-", color=BLUE, label="certificate, 99 % confidence")
    ax.plot(N, col(rows, "R_S test"), "x--", color=BLACK, label="risk on fresh rows")
    ax.set(xscale="log", yscale="log", xlabel="training rows $N$",
           ylabel="P(a prediction misses by more than 0.6 sd)")
    ax.set_yticks([0.001, 0.01, 0.1], ["0.1 %", "1 %", "10 %"])
    ax.set_xticks(N, [f"{n:,.0f}" for n in N])
    ax.legend(loc="lower left")


@figure("Seconds of training, k-means and a search on a part of the rows included, and the "
        "certificate, against the number of rows.",
        Ns=([300, 1000], *[[1000, 10_000, 100_000, 1_000_000]] * 2))
def million(run, Ns):
    picture, ((left, right),) = panels(1, 2, 10.5, 3.8)
    rows = [run.once(arm_run, N) for N in Ns]
    seconds = col(rows, "seconds")
    left.plot(Ns, seconds, "^-", color=RED, label="training")
    slope = seconds[-1] * np.divide(Ns, Ns[-1])
    left.plot(Ns, slope, color="0.5", ls=":", label="in proportion to $N$")
    left.set(xscale="log", yscale="log", xlabel="training rows $N$", ylabel="seconds in all",
             xlim=(0.6 * Ns[0], 2 * Ns[-1]))
    left.set_xticks(Ns, [f"{n:,}\n{row['evaluations']} evaluations" for n, row in zip(Ns, rows)])
    left.legend(loc="lower right")
    against_rows(right, rows)
    last = rows[-1]
    return picture, rows, [
        f"{last['N']:,} rows train in {last['seconds']:.0f} s, in {last['evaluations']} "
        f"evaluations, and certify {at_most(last['B'], 4)}, where fresh rows have "
        f"{last['R_S test']:.4f}."]


def ripples(rng, N):
    """X (N, 2) on [-2, 2]^2, y (N,): a product of two waves of deviation 0.8, and noise of 0.12."""
    X = rng.uniform(-2, 2, (N, 2))
    f = 1.6 * np.sin(1.5 * X[:, 0]) * np.cos(1.5 * X[:, 1])
    return X, f + 0.12 * rng.standard_normal(N)


def two_risks(mean, var, y, eps):
    """The risks of a draw and of the mean on fresh rows."""
    return {"draw, true risk": R.gibbs_risk(y, mean, var, eps),
            "mean, true risk": np.mean(np.abs(mean - y) > eps)}


@experiment("Three certificates, and risks, of table i of N rows; no scale is taken from them.",
            eps=0.3, delta=0.05, M=50, max_evals=(20, 100, 100), n_new=(1000, 400_000, 400_000))
def table_certificates(run, N, i, eps, delta, M, max_evals, n_new):
    X, y = ripples(run.rng, N)
    X_new, y_new = ripples(run.rng, n_new)
    first = beyond.certificates.draw_part(X, y, 0.5)
    rest = np.setdiff1d(np.arange(N), first)

    def made(X, y, method, **share):
        return train(run, f"N = {N}", X, y, method, min(M, N // 4),
                     eps=eps, delta=delta, max_evals=max_evals, **share)

    paper = made(X, y, "kl-PAC-SGP")
    prior = made(X, y, "VFE", share=0.5)
    half = made(X[first], y[first], "VFE")
    # its two bounds share delta
    held = beyond.certificates.held_out(half, X[rest], y[rest], delta / 2)
    bounds = {"paper": (paper, paper.bound, R.bayes_risk_bound(paper.bound)),
              "prior": (prior, prior.bound, R.bayes_risk_bound(prior.bound)),
              "held-out": (half, held.bound, held.mean_bound)}
    return {name: {"draw, bound": draw, "mean, bound": mean}
            | two_risks(*R.predict(fit, X_new), y_new, eps)
            for name, (fit, draw, mean) in bounds.items()}


@experiment("The same of a stream after N rows: mean risks of all predictors so far, by fresh "
            "rows.", eps=0.3, delta=0.05, M=50, each=20)
def stream_certificates(run, *Ns, eps, delta, M, each):
    X, y = ripples(run.rng, max(Ns))
    # of its six bounds two are shown
    settings = beyond.stream.Settings(eps=eps, unit="y", M=M, delta=3 * delta)
    scale = np.array([[0.0, 0.0], [1.0, 1.0]])
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


@figure("Four certificates of one goal against the number of rows, each over its true risk; means "
        "over tables, above 10,000 rows one table.", Ns=([100, 300], TABLES, TABLES),
        tables=(1, 3, 10), longest=10_000)
def certificates(run, Ns, tables, longest):
    rows = list(run.once(stream_certificates, *(N for N in Ns if N <= longest)))
    for N in Ns:
        found = [run.once(table_certificates, N, i) for i in range(tables if N <= longest else 1)]
        rows += [{"certificate": name, "N": N} | average([one[name] for one in found])
                 for name in found[0]]
    picture, axes = panels(1, 2, 10.5, 4.6, sharey=True)
    for ax, what, title in zip(axes[0], ("draw", "mean"), ("a prediction drawn from the GP",
                                                           "the GP's mean")):
        for name in ("paper", "prior", "held-out", "any-time"):
            part = where(rows, certificate=name)
            curve(ax, part, "N", f"{what}, bound", name)
            thin = dict(lw=0.7, ms=2) if name == "any-time" else {}
            curve(ax, part, "N", f"{what}, true risk", name, ls=":", mfc="white", label=None,
                  **thin)
        ax.set(xscale="log", yscale="log", xlabel="rows $N$", title=title,
               ylabel="P(a miss by more than 0.3 in $y$)")
    below(picture, axes[0, 0], 4,
          key("dotted: the true risk", color="0.4", ls=":", marker="o", mfc="white"))
    best = [min(where(rows, N=N), key=lambda row: col([row], "draw, bound"))["certificate"]
            for N in Ns]
    return picture, rows, [
        f"Held-out rows certify a draw lowest at {best.count('held-out')} of {len(Ns)} sizes, "
        f"{Ns[0]:,} to {Ns[-1]:,} rows."]


@figure("A certified GP, and certificates against the number of rows.", N=(200, 1000, 1000),
        n_new=(2000, 50_000, 50_000), eps=0.8, M=15,
        Ns=([300, 1000], *[[1000, 10_000, 100_000]] * 2))
def hero(run, N, n_new, eps, M, Ns):
    picture, ((ax, right),) = panels(1, 2, 10, 4.2)
    x, y = snelson_like(run.rng, N)
    x_new, y_new = snelson_like(run.rng, n_new)
    fit = train(run, "hero", x, y, "kl-PAC-SGP", M, eps, seed=0)
    true = R.gibbs_risk(y_new, *R.predict(fit, x_new), eps)
    grid = np.linspace(-0.3, 6.3, 300)[:, None]
    mean, _ = R.predict(fit, grid)
    ax.plot(x, y, ".", color="0.6", ms=2.5, label=f"{N:,} training rows")
    band(ax, grid, mean - eps, mean + eps, BLUE, 0.18, f"mean $\\pm\\varepsilon$, {eps}")
    ax.plot(grid, mean, color=BLUE, lw=2, label="mean; certified is a draw around it")
    percent = f"{at_most(100 * fit.bound, 1)} %"
    ax.text(0.03, 0.03, "99 % sure: a prediction drawn from it misses a new row\nby more than "
            f"$\\varepsilon$ in at most {percent} of cases (in fact {100 * true:.1f} %)",
            transform=ax.transAxes, fontsize=8.5, bbox=dict(boxstyle="round", fc="white", ec=BLUE))
    ax.set(xlabel="$x$", ylabel="$y$", ylim=(-4, 3.4),
           title="1  A GP that states at most how often it misses")
    ax.legend(loc="upper right")
    rows = [run.once(arm_run, n) for n in Ns]
    against_rows(right, rows)
    right.set_title("2  The certificate against the number of rows")
    return picture, [{"N": N, "B": fit.bound, "R_S test": true}, *rows], [
        "A GP with a guarantee from independent training rows: a draw from it misses at most "
        f"{percent} of new rows, in fact {100 * true:.1f} %."]
