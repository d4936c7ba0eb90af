"""Figures and tables that no paper has: `python figures.py NAME` finds them here."""
import math
import pathlib
import sys
import tempfile
import time
import warnings
from unittest import mock

import numpy as np

import beyond.certificates
import beyond.kernels
import beyond.rounding
import beyond.stream
import own_data.command_line
import own_data.scale
import online as L
import pacgp_ref as R
import predictive as J
from beyond import blocks, costs

from figures_of.imitations import (SD, boston_like, kin40k_like, motorcycle_like, rate_like,
                                   robot_arm, sine_stream, snelson_like)
from figures_of.J import GENERATED, J_FILES, SCORES
from figures_of.L import (PRETRAINED, RANGE, SIN_COS, certified_run, follow, predictors_at, rounds,
                          scaled, true_risk)
from figures_of.published import published
from figures_of.shared import (BLACK, BLUE, GREEN, ORANGE, RED, SKY, WORDS, average, band, below,
                               col, curve, data_set, dot, draw_gp, experiment, figure, gaps,
                               key, look, panels, split, standard, train, where)

DELTAS = (0.05, 0.01)


@experiment(eps=0.6, max_evals=(8, 80, 50))
def certificate_run(run, name, i, M, eps, max_evals):
    """{delta: bounds of one goal} on the training rows of split i, risks on the test rows."""
    make = boston_like if name == "boston" else lambda rng: kin40k_like(rng, 1500)
    X, y = data_set(run, name, make, "certificates", run.size, name)
    a, b = split(len(y), i)
    paper, likelihood = "kl-PAC-GP", "full-GP"
    if M:
        paper, likelihood = "kl-PAC-SGP", "VFE"
    first = beyond.certificates.part_one(len(a), 0.5, i)
    rest = np.setdiff1d(np.arange(len(a)), first)

    def made(how, method, rows=slice(None), **options):
        """Fits for DELTAS, of one search, on rows of the training rows, scaled by `how`.

        Returns them, all training rows, and the risk on the test rows.
        """
        X_s, y_s, scale = own_data.scale.standardise(X[a], y[a], how, seed=i)
        goal = eps / scale.unit
        options |= dict(eps=goal, ard=bool(M), seed=i)
        search = dict(max_evals=max_evals)
        fits = []
        for delta in DELTAS:
            fits.append(train(run, f"{name}, split {i + 1}", X_s[rows], y_s[rows], method, M,
                              delta=delta, **search, **options))
            search = dict(start=fits[0].optimum.x, max_evals=1)
        X_test, y_test = own_data.scale.scaled(X[b], y[b], scale)
        return fits, (X_s, y_s), R.gibbs_risk(y_test, *R.predict(fits[0], X_test), goal)

    whole, _, risk = made("all", paper)
    quarter, _, _ = made(0.25, likelihood, share=0.25)
    half, _, half_risk = made(0.5, likelihood, share=0.5)
    (trained, _), (X_s, y_s), _ = made(0.5, likelihood, first)
    found = {}
    for delta, p, q, h in zip(DELTAS, whole, quarter, half):
        o = beyond.certificates.held_out(trained, X_s[rest], y_s[rest], delta)
        found[delta] = {
            "paper": p.bound, "prior 1/4": q.bound, "prior 1/2": h.bound, "held-out 1/2": o.bound,
            "mean, paper": R.bayes_risk_bound(p.bound), "mean, held-out": o.mean_bound,
            "test risk, paper": risk,
            "test risk, prior 1/2": half_risk}
    return found


SHOWN_BOUNDS = (        # of a prediction drawn from the GP, of its mean: name -> look
    {"paper": look("paper"),
     "prior 1/4": look("prior", mfc="white", label="prior from a quarter of the rows"),
     "prior 1/2": look("prior"), "held-out 1/2": look("held-out"),
     "test risk, paper": look("test risk", marker="x", label="the paper's GP on test rows")},
    {"mean, paper": look("paper"), "mean, held-out": look("held-out")})


@figure("boston.csv", "pol.csv.gz", "kin40k.csv.gz", splits=(1, 3, 10), M=(10, 50, 500),
        sparse_splits=(1, 2, 2))
def R_certificates(run, splits, M, sparse_splits):
    """Certificates of a table: the paper's, a prior from a part of the rows, rows held out."""
    sparse = ("pol", "kin40k") if run.real else ("arm",)
    rows = []
    for name, M, n in [("boston", None, splits), *((name, M, sparse_splits) for name in sparse)]:
        found = [run.once(certificate_run, name, i, M) for i in range(n)]
        for delta in DELTAS:
            row = {"data": name, "M": M or "full", "delta": delta, "splits": n}
            rows.append(row | average([bounds[delta] for bounds in found]))
    part = where(rows, delta=DELTAS[0])
    heights = -np.arange(len(part))
    picture, axes = panels(1, 2, 11, 1.9 + 0.4 * len(part), sharey=True)
    titles = "a prediction drawn from the GP", "its mean: twice the paper's, or held out"
    for ax, marks, title in zip(axes[0], SHOWN_BOUNDS, titles):
        for name, style in marks.items():
            errors = np.nan_to_num(col(part, name, 1))
            ax.errorbar(col(part, name), heights, xerr=errors, **style | dict(ls="none"))
        ax.set(xlim=(0, None), ylim=(heights[-1] - 0.6, 0.6), title=title,
               xlabel=f"P(a miss by more than 0.6 sd), $\\delta={DELTAS[0]}$")
    below(picture, axes[0, 0], 3)
    words = {} if run.real else {"boston": "like Boston", "arm": "robot arm"}
    names = [words.get(row["data"], row["data"]) for row in part]
    axes[0, 0].set_yticks(heights, [f"{name}, M = {row['M']}" for name, row in zip(names, part)])
    less = col(part, "paper") / col(part, "held-out 1/2")
    mean = col(part, "mean, paper") / col(part, "mean, held-out")
    return picture, rows, [
        f"A held-out half certifies {min(less):.1f} to {max(less):.1f} times lower than the "
        f"paper's bound, for the mean {min(mean):.1f} to {max(mean):.1f} times."]


def standardised(like):
    """What X, y `like` draws from rng, with mean 0 and deviation 1."""
    def draw(rng):
        X, y = like(rng)
        return standard(X), standard(y)
    return draw


CERTIFIED = ("SE", "Matern32", "Matern52")
SMALL_SETS = {
    "boston": boston_like, "snelson": standardised(snelson_like),
    "motorcycle": standardised(motorcycle_like)}


@experiment(eps=0.6, delta=0.01, max_evals=(10, 80, 150))
def kernel_run(run, name, kernel, i, eps, delta, max_evals):
    """Of split i: B of the paper's GP on the training rows and its risk on the test rows; bounds of
    a GP trained on half of the training rows, tested on the others."""
    X, y = data_set(run, name, SMALL_SETS[name], "kernels", name)
    a, b = split(len(y), i)
    first = beyond.certificates.part_one(len(a), 0.5, i)
    rest = np.setdiff1d(np.arange(len(a)), first)
    settings = dict(eps=eps, delta=delta, max_evals=max_evals, seed=i,
                    kernel=beyond.kernels.KERNELS[kernel].function)
    label = f"{name}, {kernel}, split {i + 1}"
    fit = train(run, label, X[a], y[a], "kl-PAC-GP", **settings)
    half = train(run, label, X[a[first]], y[a[first]], "full-GP", **settings)
    held = beyond.certificates.held_out(half, X[a[rest]], y[a[rest]], delta)
    return {"B": beyond.rounding.strict(fit, X[a], y[a]).fit.bound, "held-out": held.bound,
            "mean, held-out": held.mean_bound,
            "test risk": R.gibbs_risk(y[b], *R.predict(fit, X[b]), eps)}


def compared(what, less, error):
    """A sentence on a mean difference of bounds and its standard error."""
    verdict = "no difference beyond two standard errors"
    if abs(less) > 2 * error:
        verdict = "a gain" if less < 0 else "a loss"
    return f"{what}: Matern 5/2 less SE {less:+.4f} +- {error:.4f}, {verdict}."


@figure("boston.csv", "snelson.csv", "motorcycle.csv", splits=(2, 10, 10))
def R_kernels(run, splits):
    """What SE and Matern kernels certify on small tables, by the paper's bound and by held-out
    rows."""
    rows, notes = [], []
    for name in SMALL_SETS:
        found = {kernel: [run.once(kernel_run, name, kernel, i) for i in range(splits)]
                 for kernel in CERTIFIED}
        rows += [{"data": name, "kernel": kernel, "splits": splits} | average(runs)
                 for kernel, runs in found.items()]
        bounds = {kernel: [[one["B"], one["held-out"]] for one in runs]
                  for kernel, runs in found.items()}
        _, differences = gaps(bounds, "SE")["Matern52"]
        notes += [compared(f"{name}, {what}", *one)
                  for what, one in zip(("B", "held-out"), differences)]
    gains = sum(note.endswith("a gain.") for note in notes)
    return None, rows, [f"Matern 5/2 certifies less than SE, beyond two standard errors, in "
                        f"{gains} of {len(notes)} comparisons.", *notes]


@experiment(Ns=[50, 100, 200, 400], each=(4, 50, 500), n_new=(2000, 20_000, 100_000), M=8,
            max_evals=60)
def coverage_runs(run, Ns, each, n_new, M, max_evals):
    """Rows (N, B, R_S, true risk) of GPs trained on small data sets; R by many new rows."""
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
            found.append([N, fit.bound, fit.risk, risk])
    return np.array(found)


def worst_failure(bounds):
    """p (N,) and P(bound < p) just above each bound when k ~ Bin(N, p) of N losses are 1.

    Exact, and the worst case near p. Bounds (N+1,) increase with k: those below such a p belong
    to the counts up to k.
    """
    p = np.minimum(bounds[:-1] + 1e-9, 1 - 1e-12)
    N = len(p)
    k = np.arange(N + 1)
    ln_factorial = np.cumsum(np.log(np.maximum(k, 1)))
    ln_ways = ln_factorial[-1] - ln_factorial - ln_factorial[::-1]
    ln_chance = np.outer(np.log(p), k) + np.outer(np.log1p(-p), N - k)
    return p, np.sum(np.tril(np.exp(ln_ways + ln_chance)), 1)


def trained_panel(ax, found):
    """Left panel of R_coverage: bound and training risk against the true risk."""
    sizes = np.unique(found[:, 0])
    for n, colour, marker in zip(sizes, (ORANGE, GREEN, SKY, BLUE), "os^D"):
        _, bound, risk, true = found[found[:, 0] == n].T
        style = dict(color=colour, marker=marker, ls="none")
        ax.plot(true, bound, ms=4, label=f"$B$, $N={n:g}$", **style)
        ax.plot(true, risk, ms=3, mfc="none", mew=0.7, **style)
    _, bound, risk, true = found.T
    ax.plot([], [], "o", color="0.4", mfc="none", ms=3, label="training risk $R_S$")
    ax.plot([0, 1], [0, 1], "k-", lw=1, label="the true risk")
    ax.set(xlim=(0, 1.1 * true.max()), ylim=(0, 1.05 * bound.max()),
           xlabel="true risk $R(Q)$",
           ylabel="$B$ (filled), $R_S$ (hollow)",
           title="trained on data sets, $\\delta=0.01$")


@figure(N=100, delta=0.01)
def R_coverage(run, N, delta):
    """The certificate of trained GPs over their true risk; how often one of a fixed Q fails."""
    picture, ((left, right),) = panels(1, 2, 10.5, 4.2)
    found = run.once(coverage_runs)
    trained_panel(left, found)
    risks = np.arange(N + 1) / N
    bound = lambda exact: np.array([R.pac_bayes_bound(risk, 0.0, N, delta, exact=exact)
                                    for risk in risks])
    rows = []
    for name, label, colour, line, bounds in (
            ("2 sqrt(N)", "$2\\sqrt{N}$, as printed", BLUE, "-", bound(False)),
            ("xi(N)", "exact constant $\\xi(N)$", GREEN, "--", bound(True)),
            ("no term at all", "broken: no confidence term", RED, ":", risks)):
        p, failed = worst_failure(bounds)
        right.semilogy(p, failed, color=colour, ls=line, label=label)
        rows.append({"constant": name, "largest failure probability": failed.max(),
                     "at R": p[np.argmax(failed)], "median over R": np.median(failed)})
    right.axhline(delta, color="k", label=f"allowed: $\\delta={delta}$")
    right.set(xlabel="true risk $R$ (no curve: it cannot fail)", xlim=(0, 1), ylim=(1e-5, 2),
              ylabel="probability that the bound fails",
              title=f"one fixed $Q$, $N={N}$, exact")
    left.legend()
    right.legend(loc=(0.55, 0.33))
    for N in np.unique(found[:, 0]):
        part = found[found[:, 0] == N]
        below_true = int(np.sum(part[:, 1] < part[:, 3]))
        means = dict(zip(("N", "mean B", "mean R_S", "mean true risk"), part.mean(0)))
        rows.append(means | {"data sets": len(part), "B below the true risk": below_true})
    _, B, _, true = found.T
    return picture, rows, [
        f"The bound is below the true risk in {np.sum(B < true)} of {len(found)} data sets; "
        f"without its confidence term it fails with probability {np.median(failed):.2f} (median "
        f"over the true risk), where {delta:g} is allowed."]


ROUGH = dict(jitters=(0.0, 1e-3, 1e-4))
BRIEF = dict(brief=True)
MAPPED = dict(mapped=True)
SETTINGS = {            # what differs from ours -> options of setting_run
    "ours": {},
    "jitter 1e-3 on K_MM, 1e-4 on k(x, x)": ROUGH,
    "the notebook's rate": BRIEF,
    "inputs in [-1, 1]": MAPPED,
    "S from I": dict(start=1.0),
    "that jitter and rate": ROUGH | BRIEF,
    "that jitter, rate and inputs, S from I": ROUGH | BRIEF | MAPPED | dict(start=1.0),
    "that jitter, rate and inputs, S from .01^2": ROUGH | BRIEF | MAPPED | dict(start=0.01)}
SETTINGS_OF = ("SVGP", "VFITC", "PPGPR-Chol", "PPGPR-MFD")


@experiment(N=(100, 1000, 10_000), batch=(75, 100, 1000), epochs=(5, 30, 400), lr=(0.05, 0.1, 0.01),
            real=dict(N="all", batch=1000, epochs=(3, 60, 400), lr=(0.03, 0.03, 0.01)))
def setting_run(run, name, method, M, setting, i, N, batch, epochs, lr):
    """Scores on the test rows of split i, and NLL on its validation rows."""
    X, y = data_set(run, name, lambda rng: GENERATED[name](rng, N), "score_table", run.size, name)
    start, unit = 1.0, np.eye(M)
    if method == "PPGPR-MFD":
        start, unit = 0.01, np.ones(M)
    options = dict(jitters=J.JITTERS, brief=False, mapped=False, start=start) | SETTINGS[setting]
    if options["mapped"]:
        width = np.ptp(X, 0)
        X = 2 * (X - X.min(0)) / np.where(width > 0, width, 1.0) - 1
    rate = dict(epochs=epochs)
    if options["brief"]:                    # a tenth after 20 and 150 of 160 epochs
        rate = dict(epochs=2 * epochs // 5, milestones=(1 / 8, 15 / 16))
    n = len(y)
    order = run.seeded(name, i).permutation(n)
    a, b, c = np.split(order, [n * 15 // 20, n * 18 // 20])
    L_S = options["start"] * unit
    say = lambda n, f: run.tick(f"{name}, {setting}, {method}: epoch {n}, objective {f:.5g}")
    beta_reg = 0.05 if "PPGPR" in method else 1.0
    with warnings.catch_warnings(), mock.patch.object(J, "JITTERS", options["jitters"]):
        warnings.simplefilter("ignore", UserWarning)            # inputs that are not standardised
        fit = J.fit(X[a], y[a], method, X_val=X[c], y_val=y[c], M=M, start={"L_S": L_S},
                    beta_reg=beta_reg, batch=batch, lr=lr, seed=i, callback=say, **rate)
    mean, var = J.predict_y(fit, X[b])
    return {"NLL": J.nll(y[b], mean, var),
            "RMSE": J.rmse(y[b], mean),
            "CRPS": J.crps(y[b], mean, var),
            "validation NLL": fit.validation}


@figure(*J_FILES, M=(5, 20, 250), splits=1, sets=["kin40k_like"],
        real=dict(sets=["pol", "kin40k"]))
def J_settings(run, M, splits, sets):
    """A table of scores by settings that the paper leaves open."""
    paper = published("J_table3", "data", "method")
    rows = []
    for name in sets:
        for method in SETTINGS_OF:
            about = {"data": name, "method": method}
            for setting in SETTINGS:
                # all but MFD start from I anyway
                made = "ours" if setting == "S from I" and method != "PPGPR-MFD" else setting
                found = [run.once(setting_run, name, method, M, made, i) for i in range(splits)]
                rows.append(about | {"setting": setting} | average(found))
            theirs = paper.get((name, method), {})
            if theirs:
                rows.append(about | {"setting": "the paper"}
                            | {score: theirs[score] for score in SCORES[:3]})
    tried = [where(rows, data=name, method=method) for name in sets for method in SETTINGS_OF]
    first = sum(part[0]["validation NLL"] == min(row["validation NLL"] for row in part
                                                 if "validation NLL" in row) for part in tried)
    return None, rows, [f"Our settings have the lowest validation NLL in {first} of {len(tried)} "
                        "cases, data sets times methods."]


BROKEN = ("full", "printed", "no lam m K^2/8", "no confidence")       # right-hand sides of (11)


@figure(shown=(12, 30, 80))
def L_certificate(run, shown):
    """The right-hand side of (11) along a stream, by how lambda is chosen, over the true risk."""
    picture, axes = panels(1, 2, 11, 4, sharey=True)
    rows = []
    for ax, order in zip(axes[0], ("shuffled", "time")):
        sums = run.once(certified_run, order)
        last = sums.shape[1]
        best, printed = (L.best_lam(last, K=K) for K in (1.0, 2.0))
        part = []
        for m in np.unique(np.geomspace(1, last, shown).round().astype(int)):
            loss, risk = sums[1:3, m - 1]
            bound = lambda lam, **K: L.online_bound(loss, 0.0, m, lam, **K) / m
            part.append({"order": order, "m": m, "loss": loss / m, "true risk": risk / m,
                         "1/m": bound(1 / m), "1": bound(1.0, printed=True),
                         "best": bound(best),
                         "best, K^2/2": bound(printed, printed=True),
                         "mixture": beyond.certificates.certificate(loss, 0.0, m).bound})
        for name in ("1", "best", "mixture", "loss", "true risk"):
            curve(ax, part, "m", name, marker="")
        curve(ax, part, "m", "best, K^2/2", "best", ls=":", marker="",
              label="best $\\lambda$ with $K^2/2$, as printed")
        ax.axhspan(1, 9, color="0.96", zorder=0, label="says nothing: above 1")
        ax.set(xscale="log", xlim=(1, last), ylim=(0, 1.6), title=WORDS[order],
               xlabel="rows $m$", ylabel="risk per row")
        rows += part
    below(picture, axes[0, 0], 4)
    end = part[-1]
    least = col(rows, "1/m").min()
    return picture, rows, [
        f"After {end['m']} rows in time order, loss {end['loss']:.3f}: {end['mixture']:.3f} with "
        f"lambda mixed, {end['best']:.3f} with the best one, {end['1']:.3f} with the authors' 1. "
        f"With lambda = 1/m it is at least {least:.2f}, not drawn."]


def allowances(name, m, lam, delta):
    """(m,) what (11) adds to the sum of t = 1 .. m losses, KL = 0; whole or without a term."""
    t = np.arange(1, m + 1)
    printed = name == "printed"
    whole = [L.online_bound(0.0, 0.0, int(k), lam, delta, printed=printed) for k in t]
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


def violated(what, delta, failed, exact=None):
    """A row of L_coverage: how many streams were violated, and the exact probability."""
    return {"what": what, "delta": delta, "streams": len(failed),
            "violated": int(np.sum(failed)), "exact": exact}


@experiment(streams=(4, 60, 1000), m=40, batch=4, M=8)
def gp_slacks(run, order, streams, m, batch, M):
    """{what: least bound minus true risk over time (streams,)}: (11) for each of BROKEN, (10)."""
    lam = L.best_lam(m)
    lam_training = L.best_lam(m, 5.0)       # for a KL of 5 nats
    settings = beyond.stream.Settings(M=M, lams=(lam,))
    options = dict(first=8, batch=batch, settings=settings, ln_noise=math.log(0.25))
    ends = np.arange(batch - 1, m, batch)
    one_step = {name: allowances(name, m, lam, settings.delta)[ends] for name in BROKEN}
    training = allowances("full", m, lam_training, settings.delta)[ends]
    slacks = []
    for s in range(streams):
        _, loss, risk, after, risk_after, KL = follow(run.rng, 8 + m, order, **options)
        least = {name: np.min(loss + allowed - risk) for name, allowed in one_step.items()}
        bound = after + KL / lam_training + training
        least["training (10)"] = np.min(bound - risk_after)
        slacks.append(least)
        run.tick(f"coverage, {order}: stream {s + 1} of {streams}")
    return {name: np.array([least[name] for least in slacks]) for name in slacks[0]}


@figure(coins=(500, 4000, 100_000), deltas=(4, 8, 12), m=100)
def L_coverage(run, coins, deltas, m):
    """How often a bound for all times at once fails, also with a term left out: on coins, and on
    streams of the certified GP."""
    tosses = run.rng.integers(0, 2, (coins, m))
    deficit = np.arange(1, m + 1) / 2 - np.cumsum(tosses, 1)
    picture, ((ax, right),) = panels(1, 2, 11, 4.2)
    rows = []
    for name in BROKEN:
        part = []
        for delta in np.geomspace(0.01, 0.5, deltas):
            lam = L.best_lam(m, 0.0, delta, 2.0 if name == "printed" else 1.0)
            allowed = allowances(name, m, lam, delta)
            failed = np.any(deficit > allowed, 1)
            part.append(violated(f"coin, {name}", delta, failed, coin_failure(allowed)))
        ax.loglog(col(part, "delta"), col(part, "exact"), **look(name, marker=""))
        shares = col(part, "violated") / coins
        ax.loglog(col(part, "delta"), shares, **look(name, ls="none", label=None))
        rows += part
    ax.loglog([0.01, 0.5], [0.01, 0.5], color=BLACK, lw=1, label="allowed: $\\delta$")
    ax.set(xlabel="$\\delta$", ylabel=f"share of streams violated at any $t\\leq{m}$",
           ylim=(1e-5, 1.6), title="a fair coin: lines exact, marks simulated")
    below(picture, ax, 5)
    slacks = [run.once(gp_slacks, order) for order in ("shuffled", "time", "walk")]
    for name in (*BROKEN, "training (10)"):
        failed = np.concatenate([slack[name] for slack in slacks]) < 0
        rows.append(violated(f"GP, {name}", beyond.stream.Settings().delta, failed))
    part = rows[-len(BROKEN) - 1:]
    shares = col(part, "violated") / len(failed)
    right.plot(shares, -np.arange(len(part)), "o", color=BLUE)
    right.axvline(beyond.stream.Settings().delta, color=BLACK, lw=1)
    delta = part[0]["delta"]
    right.set(title=f"{len(failed)} streams of the certified GP, $\\delta={delta:g}$",
              xlim=(-0.02, 1), xlabel="share violated; line: allowed, $\\delta$")
    right.set_yticks(-np.arange(len(part)), [row["what"].removeprefix("GP, ") for row in part])
    whole, *_, cut = (col(where(rows, what=f"coin, {name}"), "exact") for name in BROKEN)
    return picture, rows, [
        f"On coins, delta = {rows[0]['delta']:g}, the whole bound fails with probability "
        f"{whole[0]:.4f}, without ln(1/delta)/lambda {cut[0]:.2f}; on GPs, delta = {delta:g}, in "
        f"{part[0]['violated']} of {len(failed)} streams, without it in {part[3]['violated']}."]


@figure(coins=(500, 4000, 100_000), m=100, delta=0.05)
def L_dependent(run, coins, m, delta):
    """The printed theorem 3.1 on dependent rows: each is a copy of one coin."""
    t = np.arange(1, m + 1)
    allowed = allowances("printed", m, L.best_lam(m, 0.0, delta, 2.0), delta)
    sums = run.rng.integers(0, 2, coins)[:, None] * t
    plain = np.any(sums + allowed < t / 2, 1)
    given = np.any(sums + allowed < 0.5 + sums - sums / t, 1)
    rows = [violated("plain expectation", delta, plain, 0.5),
            violated("given the past", delta, given, 0.0)]
    picture, ((ax,),) = panels(1, 1, 7, 4.2)
    ax.plot(t, allowed / t, color=BLUE,
            label="right-hand side of (9), as printed, no loss seen")
    ax.plot(t, np.full(m, 0.5), color=RED, ls="--", label="risk by the plain expectation")
    ax.plot(t, 0.5 / t, color=BLACK, ls=":", label="risk given the past")
    ax.fill_between(t, allowed / t, 0.5, where=allowed < t / 2, color=RED, alpha=0.15, lw=0,
                    label="the theorem is violated")
    ax.set(xlabel="rows $m$, all copies of one coin that shows 0", xlim=(1, m),
           ylabel="per row, units of the loss", ylim=(0, 1.05))
    ax.legend(loc="upper right")
    return picture, rows, [f"Theorem 3.1 as printed is false for dependent rows: it fails in "
                           f"{rows[0]['violated']} of {coins} streams, where a share of "
                           f"{delta:g} is allowed."]


PREDICTORS = ("certified GP", "O-PACGP", "O-SGPR", "O-SVGP", "OVC", "WISKI", "exact", "window",
              "mean so far", "last value")


@experiment(m=(5, 30, 200), pretrain=(20, 50, 400))
def error_run(run, order, seed, m, pretrain):
    """{predictor: squared one-step errors (m,)} on one stream, 10 rows before them."""
    n = PRETRAINED + m
    times = range(PRETRAINED, n)
    X, y, _ = sine_stream(run.rng, n, "time" if order == "time" else "shuffled")
    f = np.sin(4 * X[:, 0])
    settings = beyond.stream.Settings()
    if order == "drift":
        still = f
        phase = np.pi * np.maximum(np.arange(n) - PRETRAINED, 0) / m
        f = np.sin(4 * X[:, 0] + phase)
        y = y - still + f
        settings = beyond.stream.Settings(forgetting=0.95)
    start = dict(ln_noise=math.log(0.1), pretrain=pretrain)
    begin = dict(settings=settings, input_scale=RANGE, **start)
    errors = {}
    for name in PREDICTORS:
        predictors, _ = predictors_at(times, X, y, name, begin=begin, **start)
        means = [predict(X[i:i + 1])[0][0] for i, predict in zip(times, predictors)]
        errors[name] = (y[PRETRAINED:] - np.array(means)) ** 2
        run.tick(f"errors, {order}, stream {seed + 1}: {name}")
    return errors | {"true function": (y - f)[PRETRAINED:] ** 2}


@figure(streams=(2, 6, 20), orders=(["shuffled", "time"], ["shuffled", "time"],
                                    ["shuffled", "time", "drift"]))
def L_errors(run, streams, orders):
    """One-step errors of all online methods and of two naive forecasts, on the same streams."""
    picture, axes = panels(1, len(orders), 4.2 * len(orders) + 1.4, 3.8, sharey=True)
    rows = []
    for ax, order in zip(axes[0], orders):
        runs = [run.once(error_run, order, seed) for seed in range(streams)]
        root = {name: [[math.sqrt(np.mean(errors[name]))] for errors in runs]
                for name in runs[0]}
        for name, ((each,), (gap,)) in gaps(root, "exact").items():
            rows.append({"order": order, "predictor": name, "RMSE": each, "RMSE - exact": gap})
        part = where(rows, order=order)
        for k, row in enumerate(part):
            dot(ax, row, "RMSE", -k, "mixture", marker="o")
        level = where(part, predictor="exact")[0]["RMSE"][0]
        ax.axvline(level, color="0.4", lw=1)
        ax.set(title=WORDS[order], xlabel="RMSE [units of $y$], logarithmic", xscale="log")
        ticks = [0.4, 0.5, 0.7, 1, 1.5, 2]
        ax.set_xticks(ticks, ticks)
        ax.minorticks_off()
        ax.set_yticks(-np.arange(len(part)), [row["predictor"] for row in part])
    said = []
    for name in ("certified GP", "O-SVGP", "last value"):
        parts = [where(rows, order=order, predictor=name)[0]["RMSE - exact"] for order in orders]
        said.append(f"{name} {', '.join('{:.3f} +- {:.3f}'.format(*part) for part in parts)}")
    return picture, rows, [f"RMSE minus the exact GP's, {' and '.join(map(WORDS.get, orders))}: "
                           f"{'; '.join(said)}."]


GOALS = {               # tolerances in units of y, and its unit
    "rates": ([0.002, 0.005, 0.01, 0.015, 0.02, 0.03], "CAD per USD"),
    "sin": ([0.2, 0.4, 0.6, 0.8, 1.2, 2.0], "units of $y$"),
    "cos": ([0.2, 0.4, 0.6, 0.8, 1.2, 2.0], "units of $y$")}


@experiment()
def losses_by_goal(run, name, order, m, i):
    """{eps: mean one-step loss, its certificate, that of the loss after learning} of stream i."""
    n = m + PRETRAINED
    goals = np.array(GOALS[name][0])
    if name == "rates":
        X = np.arange(n) + 1.0
        y = run.tables["fx2007.csv"][:n, 3] if run.real else rate_like(run.rng, n)
    else:
        X = np.sort(run.rng.uniform(-1, 1, n))
        y = SIN_COS[name](4 * X) + SD * run.rng.standard_normal(n)
    if order == "shuffled":
        at = run.rng.permutation(n)
        X, y = X[at], y[at]
    X = X[:, None]
    total = np.zeros((2, len(goals)))
    for row, before, Q, after, _ in rounds(X, y):
        x_s, y_s, eps = scaled(before, X[row], y[row], goals / before.eps_unit)
        for k, q in enumerate((before.posterior, Q)):
            total[k] += R.expected_01_loss(y_s, *L.predict(q, x_s), eps)[0]
        run.tick(f"{name}, {order}, stream {i + 1}: row {row.start} of {n}")
    share = beyond.stream.Settings().delta / len(beyond.stream.Certificates._fields)
    bound = lambda loss, KL: beyond.certificates.certificate(loss, KL, m, delta=share).bound
    return {eps: {"one-step loss": one / m,
                  "one-step bound": bound(one, 0.0),
                  "training bound": bound(training, after.ledger.KL)}
            for eps, one, training in zip(goals, *total)}


@figure("fx2007.csv", streams=(2, 10, 10), ms=([29], [29, 200], [29, 200, 1000]))
def L_bounds(run, streams, ms):
    """The certificate (11) by the tolerance on streams as in L Sec. 5, a faint line a stream and
    their mean. The paper computes none."""
    picture, axes = panels(2, 3, 10.5, 6.2, sharex="col", sharey=True)
    cases = [(order, name) for order in ("time", "shuffled") for name in GOALS]
    rows = []
    for ax, (order, name) in zip(axes.flat, cases):
        series = run.real and name == "rates"
        n = 1 if series and order == "time" else streams
        for m, colour, marker in zip(ms, (ORANGE, BLUE, BLACK), "os^"):
            m = min(m, 241) if name == "rates" else m
            found = [run.once(losses_by_goal, name, order, m, i) for i in range(n)]
            for bounds in found:
                ax.plot(bounds.keys(), [one["one-step bound"] for one in bounds.values()],
                        color=colour, lw=0.6, alpha=0.4)
            part = [{"stream": name, "order": order, "m": m, "eps": eps}
                    | average([bounds[eps] for bounds in found]) for eps in found[0]]
            means = col(part, "one-step bound")
            ax.plot(col(part, "eps"), means, color=colour, marker=marker, ms=4, lw=2)
            rows += part
        ax.set(ylim=(0, 1.03), ylabel="certificate per row",
               title=f"{'CAD per USD' if series else WORDS[name]}, {WORDS[order]}",
               xlabel=f"tolerance $\\varepsilon$ [{GOALS[name][1]}]")
    below(picture, None, 3, *(
        key(f"$m={m}$" + " (rates: 241)" * (m > 241), color=colour, marker=marker)
        for m, colour, marker in zip(ms, (ORANGE, BLUE, BLACK), "os^")))
    eps = GOALS["sin"][0][3]
    at = {order: where(rows, stream="sin", order=order, m=ms[-1], eps=eps)[0]["one-step bound"][0]
          for order in ("shuffled", "time")}
    return picture, rows, [
        f"The mean certificate of sin, m = {ms[-1]}, eps = {eps:g}, is {at['time']:.2f} in time "
        f"order and {at['shuffled']:.2f} shuffled."]


def arm_files(rng, N, folder):
    """X (N, 8) and y (N,) of the robot arm as read-only memory-mapped files.

    They are made and scaled 100,000 rows at a time. The scale comes from rows of its own, so that
    the certificate is strict; noise of 0.15 deviations.
    """
    pilot = robot_arm(rng, 100_000)[1]
    paths = [folder / f"{name}_{N}.npy" for name in "Xy"]
    X = np.lib.format.open_memmap(paths[0], "w+", shape=(N, 8))
    y = np.lib.format.open_memmap(paths[1], "w+", shape=(N,))
    for i in range(0, N, 100_000):
        rows = slice(i, min(i + 100_000, N))
        turn, distance = robot_arm(rng, rows.stop - i)
        X[rows] = turn * math.sqrt(3)
        noise = 0.15 * rng.standard_normal(rows.stop - i)
        y[rows] = (distance - pilot.mean()) / pilot.std() + noise
    del X, y
    return [np.load(path, mmap_mode="r") for path in paths]


def peak_megabytes():
    """The most memory this process has had, in 2^20 bytes; NaN where the system does not say."""
    try:
        import resource
    except ImportError:
        return math.nan
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


@experiment(least=(0.01, 0.25, 0.25))
def cost(run, method, N, M, with_autograd, least):
    """One value and gradient: seconds by hand, of its products alone, by autograd; megabytes."""
    hand, auto = costs.steps(run.rng, method, N, M, with_autograd)
    row = {"method": method, "N or B": N, "M": M, "s by hand": costs.seconds_of(hand, least),
           "s bare": costs.seconds_of(costs.bare(method, N, M), least), "s autograd": math.nan,
           "MB by hand": costs.megabytes_of(hand), "MB by hand, in blocks": math.nan,
           "MB autograd": math.nan}
    if with_autograd:
        row |= {"s autograd": costs.seconds_of(auto, least),
                "MB autograd": costs.megabytes_of(auto)}
    if method in costs.BLOCKWISE:
        with mock.patch.object(blocks, "KEEP_BYTES", 0):
            row["MB by hand, in blocks"] = costs.megabytes_of(hand)
    return row | {"hand/bare": row["s by hand"] / row["s bare"],
                  "autograd/hand": row["s autograd"] / row["s by hand"]}


@figure(Ns=([200, 400], [1000, 3000, 10_000, 30_000, 100_000],
            [1000, 3000, 10_000, 30_000, 100_000, 300_000]),
        full_Ns=([100, 200], [200, 400, 1000, 2000], [200, 400, 1000, 2000, 4000]),
        N=(300, 12_000, 12_000), B=(100, 1000, 1000),
        Ms=([10, 20], [50, 100, 200, 500, 1000], [50, 100, 200, 500, 1000]))
def scaling(run, Ns, full_Ns, N, B, Ms):
    """Seconds and memory of a value and gradient: by hand, its products alone, by autograd."""
    plan = {"kl-PAC-SGP, $M=100$": [("kl-PAC-SGP", n, 100, n <= 30_000) for n in Ns],
            f"kl-PAC-SGP, $N={N}$": [("kl-PAC-SGP", N, M, M <= 200) for M in Ms if M <= 500],
            f"PPGPR, batches of {B}": [("PPGPR-Chol", B, M, True) for M in Ms],
            "kl-PAC-GP": [("kl-PAC-GP", n, n, n <= 1000) for n in full_Ns]}
    rows = []
    picture, axes = panels(2, 4, 13, 6)
    axes[0, 0].set_ylabel("seconds, value and gradient")
    axes[1, 0].set_ylabel("memory it takes, peak [MB]")
    for k, (title, cases) in enumerate(plan.items()):
        part = [run.once(cost, *case) for case in cases]
        x, label = "N or B", "rows $N$"
        if k in (1, 2):
            x, label = "M", "inducing inputs $M$"
        at = col(part, x)
        for ax, unit, also in zip(axes[:, k], ("s", "MB"), ("bare", "by hand, in blocks")):
            for name in ("by hand", also, "autograd"):
                curve(ax, part, x, f"{unit} {name}", name)
            ax.set(xscale="log", yscale="log", xlabel=label)
            ax.set_xticks(at, at.astype(int))
            ax.minorticks_off()
        axes[0, k].set_title(title)
        rows += part
    below(picture, axes[0, 0], 4, axes[1, 0].get_legend_handles_labels()[0][1])
    hand, auto = (col(rows, name) for name in ("hand/bare", "autograd/hand"))
    return picture, rows, [
        f"By hand a gradient takes {min(hand):.2f} to {max(hand):.2f} times its matrix products; "
        f"autograd {np.nanmin(auto):.1f} to {np.nanmax(auto):.1f} times as long as by hand."]


@experiment(n_test=(1000, 100_000, 100_000), M=(10, 100, 100), max_evals=(15, 100, 400), eps=0.6,
            delta=0.01)
def arm_run(run, N, n_test, M, max_evals, eps, delta):
    """kl-PAC-SGP on N rows of the robot arm (d = 8, noise 0.15 sd) from memory-mapped files."""
    with tempfile.TemporaryDirectory() as folder:
        X, y = arm_files(run.seeded("arm"), N + n_test, pathlib.Path(folder))
        start = time.monotonic()
        fit = train(run, f"N = {N}", X[:N], y[:N], "kl-PAC-SGP", M, eps, delta, ard=True,
                    max_evals=max_evals, seed=run.seed)
        took = time.monotonic() - start
        row = {"N": N,
               "B": fit.bound,
               "R_S train": fit.risk,
               "R_S test": R.gibbs_risk(y[N:], *R.predict(fit, X[N:]), eps),
               "KL/N": fit.KL / N,
               "evaluations": fit.optimum.n_evals,
               "seconds": took,
               "process MB so far": peak_megabytes()}
        del X, y                            # the files can then be removed, on Windows too
    return row


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


@figure(Ns=([300, 1000], *[[1000, 10_000, 100_000, 1_000_000]] * 2))
def million(run, Ns):
    """Seconds of training, k-means and a search on a part of the rows included, and the
    certificate, against the number of rows."""
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
    at_most = math.ceil(10_000 * last["B"]) / 10_000
    return picture, rows, [
        f"{last['N']:,} rows train in {last['seconds']:.0f} s, in {last['evaluations']} "
        f"evaluations, and certify {at_most:.4f}, where fresh rows have {last['R_S test']:.4f}."]


def against_stream(ax, rows, names=("certificate", "true risk", "loss"), **settings):
    """Certificate, true risk and loss so far against the rows of a stream."""
    band(ax, col(rows, "m"), col(rows, "true risk"), col(rows, "certificate"), BLUE, 0.12)
    for name in names:
        curve(ax, rows, "m", name)
    ax.set(ylim=(0, 1.02), ylabel="risk of a prediction, mean so far", **settings)
    ax.legend()


def ripples(rng, N):
    """X (N, 2) on [-2, 2]^2, y (N,): a product of two waves of deviation 0.8, and noise of 0.12."""
    X = rng.uniform(-2, 2, (N, 2))
    f = 1.6 * np.sin(1.5 * X[:, 0]) * np.cos(1.5 * X[:, 1])
    return X, f + 0.12 * rng.standard_normal(N)


def two_risks(mean, var, y, eps):
    """The risks of a draw and of the mean on fresh rows."""
    return {"draw, true risk": R.gibbs_risk(y, mean, var, eps),
            "mean, true risk": np.mean(np.abs(mean - y) > eps)}


@experiment(eps=0.3, delta=0.05, M=50, max_evals=(20, 100, 100), n_new=(1000, 400_000, 400_000))
def table_certificates(run, N, i, eps, delta, M, max_evals, n_new):
    """Three certificates, and risks, of table i of N rows; no scale is taken from them."""
    X, y = ripples(run.rng, N)
    X_new, y_new = ripples(run.rng, n_new)
    first = beyond.certificates.part_one(N, 0.5)
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
    return [{"certificate": name, "N": N, "draw, bound": draw, "mean, bound": mean}
            | two_risks(*R.predict(fit, X_new), y_new, eps)
            for name, (fit, draw, mean) in bounds.items()]


@experiment(eps=0.3, delta=0.05, M=50, each=20)
def stream_certificates(run, *Ns, eps, delta, M, each):
    """The same of a stream after N rows: mean risks of all predictors so far, by fresh rows."""
    X, y = ripples(run.rng, max(Ns))
    # of its six bounds two are shown
    settings = beyond.stream.Settings(eps=eps, unit="y", M=M, delta=3 * delta)
    scale = np.array([[0.0, 0.0], [1.0, 1.0]])
    rows, sums = [], np.zeros(2)
    for at, before, _, after, _ in rounds(X, y, settings=settings, input_scale=scale):
        X_new, y_new = ripples(run.rng, each)
        mean, var, _ = beyond.stream.forecast(before, X_new)
        sums += list(two_risks(mean, var, y_new, eps).values())
        run.tick(f"a stream of {max(Ns)}: row {at.stop}")
        if at.stop in Ns:
            bounds = beyond.stream.certificates(after)
            draw, mean = sums / (at.stop - PRETRAINED)
            rows.append({"certificate": "any-time", "N": at.stop,
                         "draw, bound": bounds.draw.bound,
                         "mean, bound": bounds.mean.bound,
                         "draw, true risk": draw,
                         "mean, true risk": mean})
    return rows


TABLES = [100, 300, 1000, 3000, 10_000, 30_000, 100_000]


@figure(Ns=([100, 300], TABLES, TABLES), tables=(1, 3, 10), longest=10_000)
def certificates(run, Ns, tables, longest):
    """Four certificates of one goal against the number of rows, each over its true risk; means
    over tables, above 10,000 rows one table."""
    rows = list(run.once(stream_certificates, *(N for N in Ns if N <= longest)))
    for N in Ns:
        found = [run.once(table_certificates, N, i) for i in range(tables if N <= longest else 1)]
        for same in zip(*found):
            numbers = [{k: v for k, v in row.items() if "," in k} for row in same]
            rows.append({"certificate": same[0]["certificate"], "N": N} | average(numbers))
    picture, ((left, right),) = panels(1, 2, 10.5, 4.6, sharey=True)
    for ax, what in ((left, "draw"), (right, "mean")):
        for name in ("paper", "prior", "held-out", "any-time"):
            part = where(rows, certificate=name)
            curve(ax, part, "N", f"{what}, bound", name)
            thin = dict(lw=0.7, ms=2) if name == "any-time" else {}
            curve(ax, part, "N", f"{what}, true risk", name, ls=":", mfc="white", label=None,
                  **thin)
        ax.set(xscale="log", yscale="log", xlabel="rows $N$",
               ylabel="P(a miss by more than 0.3 in $y$)")
    left.set_title("a prediction drawn from the GP")
    right.set_title("the GP's mean")
    below(picture, left, 4,
          key("dotted: the true risk", color="0.4", ls=":", marker="o", mfc="white"))
    best = []
    for N in Ns:
        part = where(rows, N=N)
        best.append(part[np.argmin(col(part, "draw, bound"))]["certificate"])
    failed = sum(np.sum(col(rows, f"{what}, bound") < col(rows, f"{what}, true risk"))
                 for what in ("draw", "mean"))
    return picture, rows, [
        f"Held-out rows certify a draw lowest at {best.count('held-out')} of {len(Ns)} sizes, "
        f"{Ns[0]:,} to {Ns[-1]:,} rows.",
        f"A bound is below the true risk at {failed} of {2 * len(rows)} points."]


def guarantee_panel(ax, run, N, n_new, eps, M):
    """Panel 1 of hero: a trained GP, its tolerance, and how often it misses. Returns notes."""
    x, y = snelson_like(run.rng, N)
    x_new, y_new = snelson_like(run.rng, n_new)
    fit = train(run, "hero", x, y, "kl-PAC-SGP", M, eps, seed=0)
    true = R.gibbs_risk(y_new, *R.predict(fit, x_new), eps)
    grid = np.linspace(-0.3, 6.3, 300)[:, None]
    mean, _ = R.predict(fit, grid)
    ax.plot(x, y, ".", color="0.6", ms=2.5, label=f"{N:,} training rows")
    band(ax, grid, mean - eps, mean + eps, BLUE, 0.18, f"mean $\\pm\\varepsilon$, {eps}")
    ax.plot(grid, mean, color=BLUE, lw=2, label="mean; certified is a draw around it")
    ax.set(xlabel="$x$", ylabel="$y$", ylim=(-4, 3.4),
           title="1  A GP that states at most how often it misses")
    at_most = math.ceil(fit.bound * 1000) / 10
    ax.text(0.03, 0.03, "99 % sure: a prediction drawn from it misses a new row\nby more than "
            f"$\\varepsilon$ in at most {at_most:.1f} % of cases (in fact {100 * true:.1f} %)",
            transform=ax.transAxes, fontsize=8.5, bbox=dict(boxstyle="round", fc="white", ec=BLUE))
    ax.legend(loc="upper right")
    return [f"A GP with a guarantee from independent training rows: a draw from it misses at most "
            f"{at_most:.1f} % of new rows, in fact {100 * true:.1f} %.",
            f"Panel 1: B = {own_data.command_line.bound_text(fit.bound)}, R_S = {fit.risk:.4f}, "
            f"risk on fresh rows {true:.4f}."]


@figure(N=(200, 1000, 1000), n_new=(2000, 50_000, 50_000), eps=0.8, M=15,
        Ns=([300, 1000], *[[1000, 10_000, 100_000]] * 2))
def hero(run, N, n_new, eps, M, Ns):
    """A certified GP, certificates against the number of rows, and a stream's."""
    picture, ((first, second, third),) = panels(1, 3, 12.6, 4)
    notes = guarantee_panel(first, run, N, n_new, eps, M)
    rows = [run.once(arm_run, n) for n in Ns]
    against_rows(second, rows)
    second.set_title("2  The certificate against the number of rows")
    after = []
    for m, loss, risk, *_ in run.once(certified_run, "shuffled").T:
        bound = beyond.certificates.certificate(loss, 0.0, m).bound
        after.append({"m": m, "certificate": bound, "loss": loss / m, "true risk": risk / m})
    against_stream(third, after, ("certificate", "true risk"), xscale="log",
                   xlim=(10, len(after)), xlabel="rows of a stream",
                   title=f"3  A stream, $\\varepsilon={beyond.stream.Settings().eps}$ deviations")
    last = after[-1]
    return picture, rows, [
        *notes, f"Panel 3: after {last['m']:.0f} rows the certificate is "
        f"{last['certificate']:.4f}, the true risk {last['true risk']:.4f}."]


def stream_frame(i, X, y, before, rows, m, eps, came):
    """A frame: the prediction of row i; once it came, the row, green inside the tolerance."""
    picture, ((a, c),) = panels(1, 2, 10, 3.8)
    picture.suptitle("Not in the papers: a certified GP on a stream", weight="bold", fontsize=10)
    grid = np.linspace(-1, 1, 161)[:, None]
    mean, _, var = beyond.stream.forecast(before, grid)
    draw_gp(a, grid, mean, var, BLUE, "a new row")
    a.plot(grid, np.c_[mean - eps, mean + eps], color=GREEN, ls="--",
           label=[f"mean $\\pm$ {eps:g}, the tolerance", None])
    a.plot(X[:i], y[:i], ".", color="0.55", ms=4)
    text = f"row {i + 1}: predicted"
    if came:
        inside = abs(y[i] - beyond.stream.forecast(before, X[i:i + 1])[0][0]) <= eps
        text = f"row {i + 1} came: {'inside' if inside else 'outside'} the tolerance"
        a.plot(X[i], y[i], "*", color=GREEN if inside else RED, ms=15, mec=BLACK, mew=0.6)
    else:
        a.axvline(X[i, 0], color="0.4", lw=1)
    a.legend(loc="upper center", ncols=2)
    a.set(xlim=(-1.1, 1.1), xlabel="$x$", xticks=(-1, -0.5, 0, 0.5, 1), ylim=(-2.6, 3.6),
          ylabel="$y$", title=text)
    against_stream(c, rows, xlim=(0, m), xlabel="rows so far")
    return picture


@figure(n=(30, 130, 130), shown=(3, 20, 20), eps=1.0)
def stream(run, n, shown, eps):
    """Predict, then the row comes: the certified GP on a stream in time order."""
    X, y, chance = sine_stream(run.rng, n, "time")
    settings = beyond.stream.Settings(eps, unit="y")
    drawn = np.linspace(PRETRAINED, n - 1, shown).round()
    rows, frames, risk = [], [], 0.0
    for at, before, _, after, _ in rounds(X, y, input_scale=RANGE, settings=settings):
        i = at.start
        m = i - PRETRAINED + 1
        risk += true_risk(before, before.posterior, [chance(i)])
        one = beyond.stream.certificates(after).draw
        row = {"m": m, "certificate": one.bound, "loss": one.loss, "true risk": risk / m}
        if i in drawn:
            frames.append(stream_frame(i, X, y, before, rows, n - PRETRAINED, eps, False))
        rows.append(row)
        if i in drawn:
            frames.append(stream_frame(i, X, y, before, rows, n - PRETRAINED, eps, True))
    return frames, rows, [f"After {m} rows the certificate is {one.bound:.3f}, the mean loss "
                          f"{one.loss:.3f} and the true risk {risk / m:.3f}."]
