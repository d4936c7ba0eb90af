"""Figures that no paper has: `python figures.py NAME` finds them here."""
import inspect
import math
import re
import textwrap
import time

import matplotlib
import numpy as np
from matplotlib.figure import Figure

import beyond.certificates
import beyond.stream
import online as L
import pacgp_ref as R

from figures_of.imitations import robot_arm
from figures_of.L import PRETRAINED, learners
from figures_of.published import agreement, committed, printed
from figures_of.shared import (BLACK, BLUE, RED, at_most, average, band, below,
                               col, curve, experiment, figure, key, look, panels, train, where)


@figure("The printed theorem 3.1 on dependent rows: all are copies of one coin, which shows 0.",
        m=100, delta=0.05)
def L_dependent(run, m, delta):
    t = np.arange(1, m + 1)
    lam = L.best_lam(m, 0.0, delta, 2.0)
    allowed = [L.online_bound(0.0, 0.0, int(k), lam, delta, 2.0) / k for k in t]
    picture, ((ax,),) = panels(1, 1, 7, 4.2)
    half = np.full(m, 0.5)
    for values, colour, ls, label in (
            (allowed, BLUE, "-", "right-hand side of (9), as printed, no loss seen"),
            (half, RED, "--", "risk by the plain expectation"),
            (half / t, BLACK, ":", "risk given the past")):
        ax.plot(t, values, color=colour, ls=ls, label=label)
    ax.fill_between(t, allowed, half, where=np.less(allowed, half), color=RED, alpha=0.15, lw=0,
                    label="the theorem is violated")
    ax.set(xlabel="rows $m$", xlim=(1, m), ylabel="per row, units of the loss", ylim=(0, 1.05))
    ax.legend(loc="upper right")
    rows = [{"m": k, "right-hand side": allowed[k - 1], "plain": 0.5, "given the past": 0.5 / k}
            for k in (1, 10, 20, 50, m)]
    return picture, rows, ["Theorem 3.1 as printed fails with probability 1/2 on dependent rows; "
                           f"{delta:g} is allowed."]


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
    fit = train(run, f"N = {N}", X[:N], y[:N], "kl-PAC-SGP", M, eps=eps, delta=delta, ard=True,
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
    picture, ((left, right),) = panels(1, 2, 8.3, 3.8)
    rows = [run.once(arm_run, N) for N in Ns]
    seconds = col(rows, "seconds")
    left.plot(Ns, seconds, "^-", color=RED, label="training")
    slope = seconds[-1] * np.divide(Ns, Ns[-1])
    left.plot(Ns, slope, color="0.5", ls=":", label="in proportion to $N$")
    left.set(xscale="log", yscale="log", xlabel="training rows $N$ (evaluations)",
             ylabel="seconds in all",
             xlim=(0.6 * Ns[0], 2 * Ns[-1]))
    left.set_xticks(Ns, [f"{n:,}\n({row['evaluations']})" for n, row in zip(Ns, rows)])
    left.legend(loc="lower right")
    against_rows(right, rows)
    last = rows[-1]
    return picture, rows, [
        f"{last['N']:,} rows train in {last['seconds']:.0f} s and certify {at_most(last['B'], 4)}; "
        f"fresh rows have {last['R_S test']:.4f}."]


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
    picture, axes = panels(1, 2, 8.3, 4.6, sharey=True)
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


PRINTED = (             # R (8), zero mean
    r"$\mathrm{KL}(Q\Vert P)=\frac{1}{2}\ln|K_{NN}+\sigma_n^2I|-\frac{N}{2}\ln\sigma_n^2$",
    r"$-\frac{1}{2}\mathrm{tr}\,K_{NN}(K_{NN}+\sigma_n^2I)^{-1}$",
    r"$+\frac{1}{2}y^{\top}(K_{NN}+\sigma_n^2I)^{-1}K_{NN}(K_{NN}+\sigma_n^2I)^{-1}y$")


def off_print(rng, N):
    """Relative differences of R (8), KL and gradient: from the print and from autograd's, on N
    random rows.
    """
    from autograd import grad
    from test_ref import traced
    X, y = rng.standard_normal((N, 3)), rng.standard_normal(N)
    (_, _, KL), back = R.full_gp(X, y, np.zeros(4), -1.0)
    got = back(np.zeros(N), np.zeros(N), 1.0)["ln_theta"]
    K = np.exp(-np.sum((X[:, None] - X) ** 2, 2) / 2)
    K_y = K + np.exp(-1.0) * np.eye(N)
    inv = np.linalg.inv(K_y)
    printed = np.linalg.slogdet(K_y)[1] + N - np.trace(K @ inv) + y @ inv @ K @ inv @ y
    want = grad(lambda ln_theta: traced.full_gp(X, y, ln_theta, -1.0)[0][2])(np.zeros(4))
    return abs(2 * KL / printed - 1), np.max(np.abs(got - want)) / np.max(np.abs(want))


@figure("Left: R (8) as printed, and the code. Right: the bound on Boston housing, from "
        "pictures/R_table1_real.md and docs/published.csv.", drawn=False,
        head="Page, code, guarantee", N=40)
def hero(run, N):
    off = off_print(run.rng, N)
    to_print, to_autograd = (f"{10.0 ** math.ceil(math.log10(max(x, 1e-15))):.0e}" for x in off)
    code = [re.sub(r"\s+#.*", "", line).strip() for line in
            inspect.getsource(R.full_gp).splitlines() if re.match(r" {4}(trace|KL) =", line)]
    matplotlib.rc("font", size=12)
    picture = Figure((8.3, 3.1), layout="constrained")
    left, right = picture.subplots(1, 2, width_ratios=(3, 2))
    left.axis("off")
    for line, height in zip(("R (8):", *PRINTED), (0.95, 0.95, 0.81, 0.67)):
        left.text(0.01 if line[0] == "R" else 0.16, height, line)
    arrow = dict(arrowstyle="-|>", color=RED, lw=2)
    left.annotate("", (0.08, 0.38), (0.08, 0.85), arrowprops=arrow)
    left.text(0.16, 0.42, f"code equals formula to {to_print};\ngradient equals autograd's to "
              f"{to_autograd}", color=RED)
    left.text(0.03, 0.02, "\n\n".join(textwrap.fill(line, 40, subsequent_indent="      ")
                                       for line in code),
              family="monospace", fontsize=11.5, bbox=dict(boxstyle="round", fc="0.94", ec="none"))
    table = committed("R_table1_real")
    theirs = printed("R_table1", "setting", "method")
    for method in ("kl-PAC-GP", "full-GP"):
        curve(right, where(table, method=method), "eps", "B", method)
        paper = where(theirs, method=method)
        right.plot(col(paper, "setting"), col(paper, "B"),
                   **look(method, ls="none", ms=10, mfc="none", label=None))
    right.plot([], [], "o", color="0.3", ms=10, mfc="none", label="published")
    right.set(xlabel="tolerance $\\varepsilon$ [sd of $y$]", ylabel="bound on P(miss) $B$",
              ylim=(0, 1), title="Boston housing, ten splits")
    right.legend()
    agree, total, *_ = agreement(table)
    rows = [{"off print": off[0], "off autograd": off[1], "numbers": total, "agree": agree}]
    return picture, rows, [f"{agree} of {total} published numbers of Boston are within half a "
                           "standard error."]
