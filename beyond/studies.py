"""Figures and tables that no paper has: `python figures.py NAME` finds them here."""
import math
import pathlib
import sys
import tempfile
import textwrap
import time
import tracemalloc
import warnings
from unittest import mock

import numpy as np

import beyond.certificates
import beyond.stream
import own_data.command_line
import online as L
import pacgp_ref as R
import predictive as J

from figures import (BLACK, BLUE, GENERATED, GREEN, J_FILES, ORANGE, PRETRAINED, RANGE, RED,
                     SCORES, SD, SIN_COS, SKY, WORDS, average, band, below, boston_like,
                     certified_run, col, curve, data_set, dot, draw_gp, experiment, figure, follow,
                     gaps, key, kin40k_like, look, mean_se, panels, predictors_at, published,
                     rate_like, robot_arm, rounds, scaled, sine_stream, snelson_like, split, train,
                     true_risk, where)

DELTAS = (0.05, 0.01)


@experiment(eps=0.6, max_evals=(8, 80, 50))
def certificate_run(run, name, i, M, eps, max_evals):
    """{delta: bounds of one goal} on the training rows of split i, risks on the test rows."""
    make = boston_like if name == "boston" else lambda rng: kin40k_like(rng, 1500)
    X, y = data_set(run, name, make, "certificates", run.size, name)
    a, b = split(len(y), i)
    paper, likelihood = ("kl-PAC-SGP", "VFE") if M else ("kl-PAC-GP", "full-GP")
    first = R.part_one(len(a), 0.5, i)
    rest = np.setdiff1d(np.arange(len(a)), first)

    def made(how, method, rows=slice(None), **options):
        """Fits for DELTAS, of one search, on rows of the training rows, scaled by `how`.

        Returns them, all training rows, and the risk on the test rows.
        """
        X_s, y_s, scale = R.standardise(X[a], y[a], how, seed=i)
        goal = eps / scale.unit
        options |= dict(eps=goal, ard=bool(M), seed=i)
        search, fits = dict(max_evals=max_evals), []
        for delta in DELTAS:
            fits.append(train(run, f"{name}, split {i + 1}", X_s[rows], y_s[rows], method, M,
                              delta=delta, **search, **options))
            search = dict(start=fits[0].optimum.x, max_evals=1)
        X_test, y_test = R.scaled(X[b], y[b], scale)
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
            "test risk, paper": risk, "test risk, prior 1/2": half_risk}
    return found


@figure("boston.csv", "pol.csv.gz", "kin40k.csv.gz", splits=(1, 3, 10), M=(10, 50, 500), sparse_splits=(1, 2, 2))
def R_certificates(run, splits, M, sparse_splits):
    """A prior from a part of the rows has a lower bound than the paper's, rows held out one that is a little lower still."""
    tables = [("boston", None, splits)] + [(name, M, sparse_splits) for name in (("pol", "kin40k") if run.real else ("arm",))]
    rows = [{"data": name, "M": M or "full", "delta": delta, "splits": n} | average(
        [run.once(certificate_run, name, i, M)[delta] for i in range(n)]) for name, M, n in tables for delta in DELTAS]
    (picture, axes), part = panels(1, 2, 9.5, 1.6 + 0.4 * len(tables), sharey=True), where(rows, delta=DELTAS[0])
    for ax, title, names in zip(axes[0], ("a prediction drawn from the GP", "the GP's mean"), (
            ("paper", "prior 1/4", "prior 1/2", "held-out 1/2", "test risk, paper"), ("mean, paper", "mean, held-out"))):
        for name in names:
            style = look(next(known for known in ("test risk", "paper", "prior", "held-out") if known in name), ls="none")
            hollow = dict(mfc="white") if name == "prior 1/4" else {}
            style |= dict(label=name, capsize=2) | hollow
            ax.errorbar(col(part, name), -np.arange(len(part)), xerr=np.nan_to_num(col(part, name, 1)), **style)
        ax.set(xlim=(0, None), ylim=(0.4 - len(part), 0.6), title=title,
               xlabel=f"bound on P(a miss by more than 0.6 deviations), $\\delta={DELTAS[0]}$")
    named = {} if run.real else {"boston": "like Boston", "arm": "robot arm"}
    axes[0, 0].set_yticks(-np.arange(len(part)), [f"{named.get(row['data'], row['data'])}, M = {row['M']}" for row in part])
    below(picture, axes[0, 0], 6, *axes[0, 1].get_legend_handles_labels()[0])
    order = [col(rows, name) for name in ("paper", "prior 1/2", "held-out 1/2")]
    return picture, rows, [f"The bounds fall from the paper's to the prior's to the held-out one in "
                           f"{np.sum(np.all(np.diff(order, axis=0) < 0, axis=0))} of {len(rows)} rows."]


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


def binomial(n, p):
    """(.., n+1) the probabilities of k = 0 .. n of n independent cases, p (..): that of a case."""
    k = np.arange(n + 1)
    p = np.asarray(p)[..., None]
    ln_factorial = np.cumsum(np.log(np.maximum(k, 1)))
    ln_ways = ln_factorial[-1] - ln_factorial - ln_factorial[::-1]
    return np.exp(ln_ways + k * np.log(p) + (n - k) * np.log1p(-p))


def worst_failure(bounds):
    """p (N,) and P(bound < p) just above each bound when k ~ Bin(N, p) of N losses are 1.

    Exact, and the worst case near p. Bounds (N+1,) increase with k: those below such a p belong
    to the counts up to k.
    """
    p = np.minimum(bounds[:-1] + 1e-9, 1 - 1e-12)
    return p, np.sum(np.tril(binomial(len(p), p)), 1)


def trained_panel(ax, found):
    """Left panel of R_coverage: bound and training risk against the true risk. Returns how often each was below it."""
    for n, colour, marker in zip(np.unique(found[:, 0]), (ORANGE, GREEN, SKY, BLUE), "os^D"):
        _, bound, risk, true = found[found[:, 0] == n].T
        ax.plot(true, bound, marker, color=colour, ms=4, label=f"$B$, $N={n:g}$")
        ax.plot(true, risk, marker, color=colour, ms=3, mfc="none", mew=0.7)
    ax.plot([], [], "o", color="0.4", mfc="none", ms=3, label="training risk $R_S$")
    ax.plot([0, 1], [0, 1], "k-", lw=1, label="the true risk")
    broken, under = (int(np.sum(found[:, i] < found[:, 3])) for i in (1, 2))
    ax.set(xlim=(0, 1.1 * found[:, 3].max()), ylim=(0, 1.05 * found[:, 1].max()), xlabel="true risk $R(Q)$",
           ylabel="$B$ (filled), $R_S$ (hollow)",
           title=f"trained $Q$: $B<R$ in {broken} of {len(found)} data sets, $\\delta=0.01$")
    return broken, under


@figure(N=100, delta=0.01)
def R_coverage(run, N, delta):
    """The certificate holds on data sets whose true risk is known, and a bound with a term left out would be noticed."""
    (picture, ((left, right),)), rows, found, counts = panels(1, 2, 10.5, 4.2), [], run.once(coverage_runs), np.arange(N + 1)
    broken, under = trained_panel(left, found)
    bound = lambda exact: np.array([R.pac_bayes_bound(k / N, 0.0, N, delta, exact=exact) for k in counts])
    for name, label, colour, line, bounds in (
            ("2 sqrt(N)", "$2\\sqrt{N}$, as printed", BLUE, "-", bound(False)),
            ("xi(N)", "exact constant $\\xi(N)$", GREEN, "--", bound(True)),
            ("no term at all", "broken: no confidence term", RED, ":", counts / N)):
        p, failed = worst_failure(bounds)
        right.semilogy(p, failed, color=colour, ls=line, label=label)
        rows.append({"constant": name, "largest failure probability": failed.max(), "at R": p[np.argmax(failed)],
                     "median over R": np.median(failed)})
    right.axhline(delta, color="k", lw=1, label=f"allowed: $\\delta={delta}$")
    right.set(xlabel="true risk $R$", ylabel="probability that the bound fails", xlim=(0, 1), ylim=(1e-5, 2),
              title=f"one fixed $Q$, $N={N}$: exact probability of failure")
    for ax, columns in ((left, 3), (right, 2)):
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=columns)
    return picture, rows, [f"The certificate failed in {broken} of {len(found)} data sets (allowed: delta = 0.01 of them); the "
                           f"training risk was below the true risk in {under}."] + [
        "N = {:.0f}: mean B {:.3f}, R_S {:.3f}, true risk {:.3f}".format(*found[found[:, 0] == n].mean(0))
        for n in np.unique(found[:, 0])]


FACTORS = {             # factor -> {setting: JITTERS or arguments of fit}; ours first, then those of the framework or the notebook
    "jitter": {"relative": J.JITTERS, "absolute": (0.0, 1e-3, 1e-4)},
    "rate": {"long": dict(), "short": dict(milestones=(1 / 8, 15 / 16))},           # after 20 and 150 of 160 epochs
    "inputs": {"standardised": dict(), "[-1, 1]": dict()},
    "start of S": {"I, .01^2": dict(), "I": dict(), ".01^2": dict()}}           # ours: of Chol, of MFD
OURS, SETTINGS_OF = ("relative", "long", "standardised", "I, .01^2"), ("SVGP", "VFITC", "PPGPR-Chol", "PPGPR-MFD")


@experiment(N=(100, 1000, 10_000), batch=(75, 100, 1000), epochs=(5, 30, 400), lr=(0.05, 0.1, 0.01), real=dict(
    N="all", batch=1000, epochs=(3, 60, 400), lr=(0.03, 0.03, 0.01)))
def setting_run(run, name, method, M, beta_reg, setting, i, N, batch, epochs, lr):
    """NLL, RMSE, CRPS on the test rows of split i, NLL on its validation rows, sigma_k^2, sigma_obs^2; setting: of FACTORS."""
    jitter, rate, inputs, std = setting
    X, y = data_set(run, name, lambda rng: GENERATED[name](rng, N), "score_table", run.size, name)
    if inputs == "[-1, 1]":
        width = np.ptp(X, 0)
        X = 2 * (X - X.min(0)) / np.where(width > 0, width, 1.0) - 1
    a, b, c = np.split(run.seeded(name, i).permutation(len(y)), [len(y) * 15 // 20, len(y) * 18 // 20])
    std = {"I": 1.0, ".01^2": 0.01}.get(std, 0.01 if method == "PPGPR-MFD" else 1.0)
    with warnings.catch_warnings(), mock.patch.object(J, "JITTERS", FACTORS["jitter"][jitter]):
        warnings.simplefilter("ignore", UserWarning)                                # inputs in [-1, 1] are not standardised
        fit = J.fit(X[a], y[a], method, M=M, beta_reg=beta_reg, batch=batch, lr=lr, seed=i, X_val=X[c], y_val=y[c],
                    epochs=epochs if rate == "long" else 2 * epochs // 5,
                    start={"L_S": std * (np.ones(M) if method == "PPGPR-MFD" else np.eye(M))},
                    callback=lambda n, f: run.tick(f"{name}, {', '.join(setting)}, {method}: epoch {n}, objective {f:.5g}"),
                    **FACTORS["rate"][rate])
    mean, _, var = J.predict(fit, X[b])
    return [J.nll(y[b], mean, var), J.rmse(y[b], mean), J.crps(y[b], mean, var), fit.validation,
            math.exp(fit.params["ln_theta"][-1]), math.exp(fit.params["ln_noise"])]


def within(row, theirs, n):
    """{score: how many allowances our mean of n splits is from the paper's}: 3 standard errors of the two, or .05 nats, 5 %.

    theirs: {score: 'value +- error'} of ten splits; one split of ours has sqrt(10) times that error.
    """
    out = {}
    for q in theirs:
        value, error = (col([theirs], q, part)[0] for part in (0, 1))
        allowed = max(3 * error * math.sqrt(1 + 10 / n), 0.05 if q == "NLL" else 0.05 * value)
        out[q] = abs(col([row], q)[0] - value) / allowed
    return out


SETTINGS = tuple(dict.fromkeys((            # ours; one factor changed; the framework's jitter, the notebook's rate; all
    OURS, *((*OURS[:k], list(FACTORS[factor])[1], *OURS[k + 1:]) for k, factor in enumerate(FACTORS)),
    ("absolute", "short", *OURS[2:]), ("absolute", "short", "[-1, 1]", "I"), ("absolute", "short", "[-1, 1]", ".01^2"))))


@figure(*J_FILES, M=(5, 20, 250), splits=1, sets=["kin40k_like"], real=dict(sets=["pol", "kin40k"]))
def J_settings(run, M, splits, sets):
    """Scores by settings that the paper leaves open: the length of training moves the NLL most."""
    paper, rows, notes = published(run, "J_table3", "data", "method"), [], []
    columns = (*SCORES[:3], "validation NLL", "sigma_k^2", "sigma_obs^2")
    words = [", ".join(f"{factor} = {word}" for factor, word, ours in zip(FACTORS, setting, OURS) if word != ours) or "ours"
             for setting in SETTINGS]
    for name in sets:
        for setting, said in zip(SETTINGS, words):
            part, far = [], []
            for method in SETTINGS_OF:
                std = ".01^2" if setting[3] == ".01^2" or setting[3] != "I" and method == "PPGPR-MFD" else "I"
                each = zip(columns, mean_se([run.once(setting_run, name, method, M, 0.05 if "PPGPR" in method else 1.0,
                                                      (*setting[:3], std), i) for i in range(splits)]))
                part.append({"data": name, **dict(zip(FACTORS, setting)), "method": method} | dict(each))
                theirs = {q: v for q, v in paper.get((name, method), {}).items() if q in columns}
                far += within(part[-1], theirs, splits).values()
            rows += part
            if far:
                notes.append(f"{name}, {said}: {np.sum(np.array(far) <= 1)} of {len(far)} numbers within the allowance, "
                             f"the median {np.median(far):.1f} allowances away, the farthest {max(far):.1f}.")
        rows += [{"data": name, "jitter": "the paper", "method": m} | {q: v for q, v in paper[name, m].items() if q in columns}
                 for m in SETTINGS_OF if (name, m) in paper]
    picture, axes = panels(len(sets), 3, 10.5, 0.9 + 2.9 * len(sets), sharey=True)
    labels = [textwrap.fill(said, 37) for said in words] + ["the paper"] * bool(paper)
    for line, name in zip(axes, sets):
        line[0].set_yticks(-np.arange(len(labels)), labels, fontsize=8)
        for ax, score in zip(line, SCORES):
            for k, setting in enumerate([*SETTINGS, ("the paper",)]):
                for row in where(rows, data=name, **dict(zip(FACTORS, setting))):
                    dot(ax, row, score, -k, row["method"], mfc="white" if len(setting) == 1 else None)
            ax.set(title=f"{WORDS.get(name, name)}: {WORDS[score]}")
            ax.locator_params(axis="x", nbins=6)
    picture.legend(handles=[key(**look(m, ls="none")) for m in SETTINGS_OF], loc="outside lower center", ncols=4)
    return picture, rows, notes


GUESS = 10.0                   # nats of KL that the fixed lam of the training certificate is tuned for
BROKEN = ("full", "printed", "no lam m K^2/8", "no confidence")         # what stands on the right of (11)
LAMBDAS = {             # how lam is chosen -> the rates a certificate of m of `last` rows may choose from
    "1/m": lambda m, last, KL, K: (1 / m,), "1": lambda m, last, KL, K: (1.0,),
    "best": lambda m, last, KL, K: (L.best_lam(last, KL, K=K),), "grid": lambda m, last, KL, K: beyond.certificates.LAMS}


def paper_bound(loss, KL, m, lams, printed=False, delta=0.05):
    """(9) per row at the best of lams, each at its share of delta."""
    return np.min(L.online_bound(loss, KL, m, np.array(lams), delta / len(lams), printed=printed)) / m


@figure(shown=(12, 30, 80))
def L_certificate(run, shown):
    """Which lam makes (10) and (11) small? The paper's 1/m never does; K^2/8 for the printed K^2/2 helps all others."""
    (picture, axes), rows = panels(2, 2, 11, 7.2, sharex=True, sharey=True), []
    for column, order in zip(axes.T, ("shuffled", "time")):
        sums = run.once(certified_run, order)
        last = sums.shape[1]
        times = np.unique(np.geomspace(1, last, shown).round().astype(int))
        for ax, (bound, k, guess) in zip(column, (("one-step (11)", 1, 0.0), ("training (10)", 3, GUESS))):
            part = [{"bound": bound, "order": order, "m": t, "loss": sums[k, t - 1] / t, "true risk": sums[k + 1, t - 1] / t}
                    | {f"{lam}, {constant}": paper_bound(
                        sums[k, t - 1], sums[5, t - 1] if guess else 0.0, t, rates(t, last, guess, K), K == 2)
                       for lam, rates in LAMBDAS.items() for constant, K in (("K^2/8", 1.0), ("K^2/2", 2.0))}
                    | {"mixture": beyond.certificates.certificate(sums[k, t - 1], sums[5, t - 1] if guess else 0.0, t).bound} for t in times]
            for lam in LAMBDAS:
                curve(ax, part, "m", f"{lam}, K^2/8", lam, markevery=5)
                curve(ax, part, "m", f"{lam}, K^2/2", lam, ls="--", marker="", label=None)
            curve(ax, part, "m", "mixture", markevery=5)
            for name in ("loss", "true risk"):
                curve(ax, part, "m", name, lw=2)
            ax.axhspan(1, 9, color="0.93", zorder=0, label="says nothing: above 1")
            ax.set(xscale="log", xlim=(1, last), ylim=(0, 1.6), title=f"{bound}, {WORDS[order]}", xlabel="rows $m$",
                   ylabel="risk per row")
            rows += part
    below(picture, axes[0, 0], 4, key("dashed: with $K^2/2$, as printed", color="0.4", ls="--"))
    failed = sum(min(v for name, v in row.items() if "K^2" in name or name == "mixture") < row["true risk"] for row in rows)
    least = min(col(rows, "1/m, K^2/8").min(), col(rows, "1/m, K^2/2").min())
    return picture, rows, [f"A right-hand side is below the true risk in {failed} of {len(rows)} rows.",
                           f"With lam = 1/m the least is {own_data.command_line.rounded_up(least)}: above 1, and not drawn."]


def allowances(name, m, lam, delta):
    """(m,) what (11) adds to the sum of t = 1 .. m losses, whole or with a term left out; KL = 0."""
    t = np.arange(1, m + 1)
    whole = [L.online_bound(0.0, 0.0, int(k), lam, delta, printed=name == "printed") for k in t]
    left_out = {"no lam m K^2/8": lam * t / 8, "no confidence": math.log(1 / delta) / lam}
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


def clopper_pearson(k, n, level=0.95):
    """The exact two-sided interval for a probability that k of n showed."""
    def lower(k):
        """p at which P(Bin(n, p) >= k) = (1 - level)/2."""
        low, high = 0.0, 1.0
        for _ in range(40):
            p = (low + high) / 2
            low, high = (p, high) if np.sum(binomial(n, p)[k:]) < (1 - level) / 2 else (low, p)
        return p if k else 0.0
    return lower(k), 1 - lower(n - k)


def violated(what, delta, streams, failed, exact=None):
    """A row of L_coverage: how many streams were violated, the exact binomial 95 % interval, the exact probability."""
    low, high = clopper_pearson(failed, streams)
    return {"what": what, "delta": delta, "streams": streams, "violated": failed, "low": low, "high": high, "exact": exact}


@experiment(streams=(4, 60, 1000), m=40, batch=4, M=8)
def gp_slacks(run, order, streams, m, batch, M):
    """{what: least over time of bound minus true risk (streams,)}, sums: (11) for each of BROKEN and (10)."""
    goal, lam, out = beyond.stream.Goal(M=M, lams=(L.best_lam(m),)), L.best_lam(m, GUESS / 2), []
    options = dict(first=8, batch=batch, goal=goal, ln_noise=math.log(0.25))
    ends = np.arange(batch - 1, m, batch)
    one = [allowances(name, m, goal.lams[0], goal.delta)[ends] for name in BROKEN]
    training = allowances("full", m, lam, goal.delta)[ends]
    for s in range(streams):
        _, loss, risk, after, risk_after, KL = follow(run.rng, 8 + m, order, **options)
        out.append([*(np.min(loss + allowed - risk) for allowed in one), np.min(after + KL / lam + training - risk_after)])
        run.tick(f"coverage, {order}: stream {s + 1} of {streams}")
    return dict(zip((*BROKEN, "training (10)"), np.transpose(out)))


def coin_panel(ax, rng, coins, deltas, m):
    """Rows and left panel of L_coverage: one hypothesis on coin streams."""
    deficit, rows = np.arange(1, m + 1) / 2 - np.cumsum(rng.integers(0, 2, (coins, m)), 1), []
    for name in BROKEN:
        part = []
        for d in np.geomspace(0.01, 0.5, deltas):
            allowed = allowances(name, m, L.best_lam(m, 0.0, d, 2.0 if name == "printed" else 1.0), d)
            part.append(violated(f"coin, {name}", d, coins, int(np.sum(np.any(deficit > allowed, 1))), coin_failure(allowed)))
        ax.loglog(col(part, "delta"), col(part, "exact"), **look(name, marker=""))
        seen = [row for row in part if row["violated"]]
        ax.loglog(col(seen, "delta"), col(seen, "violated") / coins, **look(name, ls="none", label=None))
        rows += part
    ax.loglog([0.01, 0.5], [0.01, 0.5], color=BLACK, lw=1, label="allowed: $\\delta$")
    ax.minorticks_off()
    ax.set_xticks((0.01, 0.05, 0.1, 0.5), ("0.01", "0.05", "0.1", "0.5"))
    ax.set(xlabel="$\\delta$", ylabel=f"share of streams violated at any $t\\leq{m}$", ylim=(1e-5, 1.6),
           title="a fair coin: lines exact, marks simulated")
    return rows


@figure(coins=(500, 4000, 100_000), deltas=(4, 8, 12), m=100)
def L_coverage(run, coins, deltas, m):
    """The online certificate holds at all times at once, whatever the order of the rows; without a term it would not."""
    (picture, ((left, right),)), delta = panels(1, 2, 10, 4.2), beyond.stream.Goal().delta
    rows = coin_panel(left, run.rng, coins, deltas, m)
    for order, colour in (("shuffled", BLUE), ("time", ORANGE), ("walk", GREEN)):
        slack = run.once(gp_slacks, order)
        rows += [violated(f"GP {order}, {name}", delta, len(v), int(np.sum(v < 0))) for name, v in slack.items()]
        for name, line, words in (("full", "-", "(11)"), ("training (10)", "--", "(10)")):
            least = np.sort(slack[name])
            right.step(least, np.arange(1, len(least) + 1) / len(least), where="post", color=colour, ls=line,
                       label=f"{words} {order}")
    right.axvspan(-100, 0, color="0.9", zorder=0, label="violated")
    right.axhline(delta, color=BLACK, lw=1, label=f"allowed: $\\delta={delta:g}$")
    right.set(xlim=(-1, 8), yscale="log", ylim=(0.7 / len(least), 1.2), ylabel="share of streams below",
              xlabel="least margin over time, bound - true risk [losses]",
              title=f"certified GP, {len(least)} streams each")
    for panel in (left, right):
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
    total = lambda name: sum(row["violated"] for row in rows if row["what"].startswith("GP") and row["what"].endswith(name))
    return picture, rows, ["GP streams violated, of {}: (11) {}; (10) {}; (11) without the confidence term {}, without lam m "
                           "K^2/8 {}. Allowed: {:g} of the streams.".format(
                               3 * len(least), *map(total, (", full", "(10)", "confidence", "K^2/8")), delta)]


@figure(coins=(500, 4000, 100_000), m=100, delta=0.05)
def L_dependent(run, coins, m, delta):
    """Theorem 3.1 as printed, with dependent rows, is false: here every row is a copy of one coin."""
    (picture, ((ax,),)), t = panels(1, 1, 7, 4.2), np.arange(1, m + 1)
    allowed = allowances("printed", m, L.best_lam(m, 0.0, delta, 2.0), delta)
    sums = run.rng.integers(0, 2, coins)[:, None] * t
    plain, given = (int(np.sum(np.any(sums + allowed < risk, 1))) for risk in (t / 2, 0.5 + sums - sums / t))
    ax.plot(t, allowed / t, color=BLUE, label="right-hand side of (9), as printed, no loss seen")
    ax.plot(t, np.full(m, 0.5), color=RED, ls="--", label="risk by the plain expectation")
    ax.plot(t, 0.5 / t, color=BLACK, ls=":", lw=2, label="risk given the past")
    ax.fill_between(t, allowed / t, 0.5, where=allowed < t / 2, color=RED, alpha=0.15, lw=0, label="the theorem is violated")
    ax.set(xlabel="rows $m$, all copies of one coin that shows 0", ylabel="per row, units of the loss", ylim=(0, 1.05),
           xlim=(1, m))
    ax.legend(loc="upper right")
    first = int(t[allowed < t / 2][0])
    rows = [violated("plain expectation", delta, coins, plain, 0.5), violated("given the past", delta, coins, given, 0.0)]
    return picture, rows, [f"The plain expectation is violated from m = {first} on, in every stream whose coin shows 0: "
                           f"allowed is a share of {delta:g}, it happens in {plain / coins:.3f}."]


PREDICTORS = ("certified GP", "O-PACGP", "O-SGPR", "O-SVGP", "OVC", "WISKI", "exact", "window", "mean so far",
              "last value", "true function", "certified, noise from 1", "O-SGPR, noise from 1")


@experiment(m=(5, 30, 200), pretrain=(20, 50, 400), noisy=(0, 0, 2))
def error_run(run, order, seed, m, pretrain, noisy):
    """{predictor: squared one-step errors (m,)} on one stream, 10 rows before them."""
    n = PRETRAINED + m
    times = range(PRETRAINED, n)
    goal = beyond.stream.Goal(memory=0.95 if order == "drift" else 1.0)
    X, y, _ = sine_stream(run.rng, n, "time" if order == "time" else "shuffled")
    phase = np.pi * np.maximum(np.arange(n) - PRETRAINED, 0) / m if order == "drift" else 0.0
    f = np.sin(4 * X[:, 0] + phase)
    y = y - np.sin(4 * X[:, 0]) + f
    errors = {}
    for name in PREDICTORS[:11 + noisy]:
        if name == "true function":
            errors[name] = (y - f)[PRETRAINED:] ** 2
            continue
        options = dict(ln_noise=0.0 if "noise" in name else math.log(0.1), pretrain=pretrain)
        begin = dict(goal=goal, input_scale=RANGE, **options)
        predictors, _ = predictors_at(times, X, y, name.split(",")[0], begin=begin, **options)
        means = [predict(X[i:i + 1])[0][0] for i, predict in zip(times, predictors)]
        errors[name] = (y[PRETRAINED:] - np.array(means)) ** 2
        run.tick(f"errors, {order}, stream {seed + 1}: {name}")
    return errors


@figure(streams=(2, 6, 20), orders=(["shuffled", "time"], ["shuffled", "time"], ["shuffled", "time", "drift"]))
def L_errors(run, streams, orders):
    """One-step errors of all online methods, less those of the exact GP on the same streams."""
    (picture, axes), rows = panels(1, len(orders), 4.2 * len(orders) + 1.4, 3.8, sharey=True), []
    for ax, order in zip(axes[0], orders):
        runs = [run.once(error_run, order, seed) for seed in range(streams)]
        root = {name: [[math.sqrt(np.mean(one[name]))] for one in runs] for name in runs[0]}
        for name, ((each,), (gap,)) in gaps(root, "exact").items():
            rows.append({"order": order, "predictor": name, "RMSE": each, "RMSE - exact": gap})
        part = [row for row in where(rows, order=order) if row["predictor"] not in ("exact", "mean so far", "last value")]
        for k, row in enumerate(part):
            dot(ax, row, "RMSE - exact", -k, row["predictor"])
        ax.axvline(0, color="0.4", lw=1)
        level = where(rows, order=order, predictor="exact")[0]["RMSE"][0]
        ax.set(title=f"{WORDS[order]}: the exact GP's RMSE is {level:.3f}", xlabel="RMSE, less the exact GP's [units of $y$]")
        ax.set_yticks(-np.arange(len(part)), [row["predictor"] for row in part])
    far = [f"{row['predictor']} ({row['order']}) {row['RMSE - exact'][0]:+.3f}" for row in rows
           if row["predictor"] in PREDICTORS[:8] and abs(row["RMSE - exact"][0]) > 2 * row["RMSE - exact"][1]]
    return picture, rows, [f"More than two standard errors from exact on the same streams: {', '.join(far) or 'none'}."]


@experiment(goals=[0.4, 0.6, 0.8, 1.0, 1.5, 2.0])
def losses_by_goal(run, name, order, m, i, goals):
    """goals; by goals on stream i, (3, goals): the mean one-step loss, its certificate, that of the loss after learning."""
    n, total = m + PRETRAINED, np.zeros((2, len(goals)))
    if name == "rates":
        X, y = np.arange(n) + 1.0, run.tables["fx2007.csv"][:n, 3] if run.real else rate_like(run.rng, n)
    else:
        X = np.sort(run.rng.uniform(-1, 1, n))
        y = SIN_COS[name](4 * X) + SD * run.rng.standard_normal(n)
    at = run.rng.permutation(n) if order == "shuffled" else np.arange(n)
    X, y = X[at, None], y[at]
    for row, before, Q, after, _ in rounds(X, y):
        x_s, y_s, eps = scaled(before, X[row], y[row], goals)
        total += [R.expected_01_loss(y_s, *L.predict(state, x_s), eps)[0] for state in (before.state, Q)]
        run.tick(f"{name}, {order}, stream {i + 1}: row {row.start} of {n}")
    share = beyond.stream.Goal().delta / len(beyond.stream.Certificates._fields)
    bound = lambda loss, KL: beyond.certificates.certificate(loss, KL, m, delta=share).bound
    return goals, [total[0] / m, [bound(loss, 0.0) for loss in total[0]], [bound(loss, after.ledger.KL) for loss in total[1]]]


@figure("fx2007.csv", streams=(1, 2, 10), ms=([29], [29, 200], [29, 200, 1000]))
def L_bounds(run, streams, ms):
    """How large the goal eps must be for a certificate below one half, on streams as in L Sec. 5: the paper computes none."""
    (picture, axes), rows = panels(2, 3, 10.5, 6.2, sharex=True, sharey=True), []
    for ax, (order, name) in zip(axes.flat, ((o, n) for o in ("time", "shuffled") for n in ("rates", "sin", "cos"))):
        lengths = [m if m < 200 else 241 for m in ms[:2]] if name == "rates" else ms
        for m, colour in zip(lengths, (ORANGE, BLUE, BLACK)):
            n = 1 if name == "rates" and order == "time" and run.real else streams
            (goals, *_), found = zip(*(run.once(losses_by_goal, name, order, m, i) for i in range(n)))
            part = [{"stream": name, "order": order, "m": m, "eps": eps, "one-step loss": loss.mean(),
                     "one-step bound": one.mean(), "least": one.min(), "largest": one.max(), "training bound": after.mean()}
                    for eps, (loss, one, after) in zip(goals, np.transpose(found))]
            ax.plot(goals, col(part, "one-step bound"), color=colour, marker="o", ms=4)
            band(ax, goals, col(part, "least"), col(part, "largest"), colour, 0.15)
            ax.plot(goals, col(part, "training bound"), color=colour, marker="s", ms=4, ls="--", mfc="white")
            rows += part
        ax.axhline(0.5, color=RED, ls=":")
        ax.set(ylim=(0, 1.03), title=f"{'CAD per USD' if name == 'rates' and run.real else WORDS[name]}, {WORDS[order]}",
               ylabel="certificate per row", xlabel="goal $\\varepsilon$ [deviations of the first ten rows]")
    marks = [key(f"$m={m}$" + " (rates: 241)" * (m == 200), color=c) for m, c in zip(ms, (ORANGE, BLUE, BLACK))]
    below(picture, axes[0, 0], 6, *marks, key("one-step certificate", color="grey", marker="o"),
          key("training certificate", color="grey", marker="s", ls="--", mfc="white"), key("one half", color=RED, ls=":"))
    least = lambda bound, stream: min((row["eps"] for row in where(rows, **stream) if row[bound] < 0.5), default=math.inf)
    each = [dict(part) for part in dict.fromkeys(tuple((k, row[k]) for k in ("stream", "order", "m")) for row in rows)]
    return picture, rows, ["Least eps whose mean {} is below one half (inf: none): {}.".format(bound, ", ".join(
        "{stream} {order} m = {m}: {eps:g}".format(**part, eps=least(bound, part)) for part in each))
        for bound in ("one-step bound", "training bound")]


LEAST = {    # method -> full, symmetric, triangular products of value and gradient with an N x M
    # (N x N, B x M) matrix; the same of M x M matrices; factors with their inverse
    "kl-PAC-GP": ((0, 2, 0), (0, 0, 0), 1),
    "full-GP": ((0, 1, 0), (0, 0, 0), 1),
    "kl-PAC-SGP": ((2, 3, 2), (4, 1, 3), 2),
    "VFE": ((1, 1, 1), (1, 1, 3), 2),
    "FITC": ((1, 2, 2), (1, 1, 3), 2),
    "SVGP": ((0, 0, 6), (0, 0, 2), 1),
    "VFITC": ((0, 0, 6), (0, 0, 2), 1),
    "PPGPR-Chol": ((0, 0, 6), (0, 0, 2), 1),
    "PPGPR-MFD": ((0, 0, 3), (0, 0, 4), 2),
}
BLOCKWISE = ("kl-PAC-SGP", "VFE", "FITC")


def bare(method, N, M):
    """A function that runs the products and factorisations of LEAST and nothing else.

    It takes the same blocks of rows. NumPy has no triangular product.
    """
    rng = np.random.default_rng(0)
    large, small, factors = LEAST[method]
    blocks = R.row_blocks(N, M) if method in BLOCKWISE else [slice(0, N)]
    C, A = rng.standard_normal((M, M)), rng.standard_normal((blocks[0].stop, M))
    T, S = np.tril(C), C @ C.T + np.eye(M)

    def products(counts, A):
        for count, product in zip(counts, (lambda: A @ C, lambda: A.T @ A, lambda: A @ T)):
            for _ in range(count):
                product()

    def run():
        for rows in blocks:
            products(large, A[:rows.stop - rows.start])
        products(small, C)
        for _ in range(factors):
            R.tri_inv(np.linalg.cholesky(S))
    return run


def steps(rng, method, N, M, with_autograd=True):
    """hand, by_autograd: functions that compute value and gradient of a method once, d = 8.

    N rows, or a batch of N. By autograd: of the same source, traced, the oracle of the tests.
    """
    X = rng.standard_normal((N, 8))
    y = np.sin(X.sum(1)) + 0.1 * rng.standard_normal(N)
    Z = X[:M] + 0.1 * rng.standard_normal((min(M, N), 8))
    if method in R.METHODS:
        p, value, hand = posterior_steps(method, X, y, Z)
    else:
        p = J.initial_parameters(X, method, M, Z=Z, rng=rng)
        p["m"] = rng.standard_normal(M)
        if p["L_S"].ndim == 2:
            p["L_S"] = p["L_S"] + 0.01 * np.tril(rng.standard_normal((M, M)))
        value = lambda p: test_ref.traced_J.objective(p, X, y, N, method, 0.05)[0]
        hand = lambda: J.objective(p, X, y, N, method, 0.05)[1](1.0)
    if with_autograd:
        import autograd
        import test_ref
    return hand, lambda: autograd.value_and_grad(value)(p)


def posterior_steps(method, X, y, Z):
    """p, value, hand of a method of R: parameters, the value in the traced module at some p.

    hand() is value and gradient by hand, at p.
    """
    family, kind = R.METHODS[method]
    full = family == "full"
    p = R.initial_parameters(X, y, family, len(Z), True, Z, None)

    def nll(module, p):
        if full:
            return module.full_gp_nll(X, y, **p)
        return module.sparse_nll(X, y, kind=kind, **p)

    def hand():
        if kind != "kl":
            return nll(R, p)[1](1.0)
        (mean, var, KL), back = R.posterior(p, X, y, 1.0)
        losses, d_mean, d_var = R.expected_losses(y, mean, var, 0.6)
        _, d_loss, d_KL = R.pac_objective(losses, KL)
        return back(d_loss * d_mean, d_loss * d_var, d_KL)

    def value(p):
        from autograd.tracer import getval
        from test_ref import traced as T
        if kind != "kl":
            return nll(T, p)[0]
        given = T.full_gp(X, y, **p) if full else T.sparse_gp(X, y, alpha=1.0, **p)
        mean, var, KL = given[0]
        risk = T.np.mean(T.expected_01_loss(y, mean, var, 0.6)[0])
        # R Eq. (14): the slopes of kl^-1 as constants, which needs no autograd of it
        d_risk, d_KL = R.pac_bayes_bound_grad(getval(risk), getval(KL), len(y))
        return d_risk * risk + d_KL * KL
    return p, value, hand


def seconds_of(run, least=0.25):
    """The shortest of at least 3 calls that take `least` seconds, after one that does not count."""
    run()
    times = []
    while len(times) < 3 or sum(times) < least:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def megabytes_of(run):
    """Peak of the memory that one call takes, in 2^20 bytes."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


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
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


@experiment(least=(0.01, 0.25, 0.25))
def cost(run, method, N, M, with_autograd, least):
    """One value and gradient: seconds by hand, of its products alone, by autograd; megabytes."""
    hand, auto = steps(run.rng, method, N, M, with_autograd)
    row = {"method": method, "N or B": N, "M": M, "s by hand": seconds_of(hand, least),
           "s bare": seconds_of(bare(method, N, M), least), "s autograd": math.nan,
           "MB by hand": megabytes_of(hand), "MB by hand, in blocks": math.nan,
           "MB autograd": math.nan}
    if with_autograd:
        row |= {"s autograd": seconds_of(auto, least), "MB autograd": megabytes_of(auto)}
    if method in BLOCKWISE:
        with mock.patch.object(R, "KEEP_BYTES", 0):
            row["MB by hand, in blocks"] = megabytes_of(hand)
    run.tick(f"{method}, N = {N}, M = {M}")
    return row | {"hand/bare": row["s by hand"] / row["s bare"],
                  "autograd/hand": row["s autograd"] / row["s by hand"]}


@figure(Ns=([200, 400], [1000, 3000, 10_000, 30_000, 100_000], [1000, 3000, 10_000, 30_000, 100_000, 300_000]),
        full_Ns=([100, 200], [200, 400, 1000, 2000], [200, 400, 1000, 2000, 4000]), N=(300, 12_000, 12_000),
        Ms=([10, 20], [50, 100, 200, 500, 1000], [50, 100, 200, 500, 1000]), B=(100, 1000, 1000))
def scaling(run, Ns, full_Ns, N, Ms, B):
    """A value and gradient costs little more than its products with wide matrices, and beats autograd wherever both ran."""
    plan = {("kl-PAC-SGP, $M=100$", "rows $N$"): [("kl-PAC-SGP", n, 100, n <= 30_000) for n in Ns],
            (f"kl-PAC-SGP, $N={N}$", "inducing inputs $M$"): [("kl-PAC-SGP", N, M, M <= 200) for M in Ms if M <= 500],
            (f"PPGPR, batches of {B}", "inducing inputs $M$"): [("PPGPR-Chol", B, M, True) for M in Ms],
            ("kl-PAC-GP", "rows $N$"): [("kl-PAC-GP", n, n, n <= 1000) for n in full_Ns]}
    (picture, axes), rows = panels(2, 4, 13, 6), []
    for column, ((title, label), cases) in zip(axes.T, plan.items()):
        part, x = [run.once(cost, *case) for case in cases], "N or B" if "N" in label else "M"
        for ax, unit, also in zip(column, ("s", "MB"), ("bare", "by hand, in blocks")):
            for name in ("by hand", also, "autograd"):
                curve(ax, part, x, f"{unit} {name}", name)
            ax.set(xscale="log", yscale="log", xlabel=label)
            ax.set_xticks(col(part, x), [f"{v:g}" if v < 1000 else f"{v / 1000:g}k" for v in col(part, x)], fontsize=8)
            ax.minorticks_off()
        column[0].set_title(title)
        rows += part
    axes[0, 0].set_ylabel("seconds, value and gradient")
    axes[1, 0].set_ylabel("memory it takes, peak [MB]")
    below(picture, axes[0, 0], 4, axes[1, 0].get_legend_handles_labels()[0][1])
    first, last = rows[len(Ns) - 2:len(Ns)]
    slope = (last["s by hand"] - first["s by hand"]) / (last["N or B"] - first["N or B"])
    return picture, rows, [f"kl-PAC-SGP, M = 100: {1e6 * slope:.1f} microseconds a row more, to N = {last['N or B']}.",
                           "The products alone: LEAST, in the same blocks."]


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
        mean, var = R.predict(fit, X[N:])
        row = {"N": N, "B": fit.bound, "R_S train": fit.risk,
               "R_S test": R.gibbs_risk(y[N:], mean, var, eps),
               "bound for the mean": R.bayes_risk_bound(fit.bound),
               "its risk on test rows": np.mean(np.abs(mean - y[N:]) > eps),
               "KL/N": fit.KL / N,
               "(penalty + confidence)/N": (fit.penalty + fit.confidence) / N,
               "evaluations": fit.optimum.n_evals, "seconds": took,
               "process MB so far": peak_megabytes()}
        del X, y                            # the files can then be removed, on Windows too
    return row


NS = dict(Ns=([300, 1000], [1000, 10_000, 100_000, 1_000_000], [1000, 10_000, 100_000, 1_000_000]))


def against_rows(ax, rows):
    """The certificate and the risk on fresh rows against N."""
    N = col(rows, "N")
    ax.fill_between(N, col(rows, "R_S test"), col(rows, "B"), color=BLUE, alpha=0.12, lw=0)
    ax.plot(N, col(rows, "B"), "o-", color=BLUE, label="certificate, 99 % confidence")
    ax.plot(N, col(rows, "R_S test"), "x--", color=BLACK, label="risk on fresh rows")
    ax.set(xscale="log", yscale="log", xlabel="training rows $N$", ylabel="P(a prediction misses by more than 0.6 sd)")
    ax.set_yticks([0.001, 0.01, 0.1], ["0.1 %", "1 %", "10 %"])
    ax.set_xticks(N, [f"{int(n):,}" for n in N])
    ax.minorticks_off()
    ax.legend(loc="lower left")


@figure(**NS)
def million(run, Ns):
    """The certificate tightens with the number of rows, at a cost a row that does not grow, up to a million."""
    rows, (picture, axes) = [run.once(arm_run, N) for N in Ns], panels(1, 2, 9.5, 3.6)
    against_rows(axes[0, 0], rows)
    axes[0, 1].plot(Ns, col(rows, "seconds"), color=RED, marker="^")
    evaluations = ", ".join(str(row["evaluations"]) for row in rows)
    axes[0, 1].set(xscale="log", yscale="log", xlabel="training rows $N$",
                   ylabel=f"seconds of training\n({evaluations} evaluations)")
    last = rows[-1]
    return picture, rows, [f"N = {last['N']:,}: a draw is off by more than 0.6 sd with probability at most "
                           f"{math.ceil(last['B'] * 1e4) / 1e4:.4f}, with 99 % confidence. Training: {last['seconds']:.0f} s "
                           f"({last['evaluations']} evaluations); the process peaked at {last['process MB so far']:.0f} MB."]


def against_stream(ax, rows, **settings):
    """Certificate, true risk and loss so far against the rows of a stream."""
    band(ax, col(rows, "m"), col(rows, "true risk"), col(rows, "certificate"), BLUE, 0.12)
    for name in ("certificate", "true risk", "loss"):
        curve(ax, rows, "m", name)
    ax.set(ylim=(0, 1.02), ylabel="risk of a prediction, mean so far", **settings)
    ax.legend()


def ripples(rng, N):
    """X (N, 2) on [-2, 2]^2, y (N,): a product of two waves of deviation 0.8, and noise of 0.12."""
    X = rng.uniform(-2, 2, (N, 2))
    return X, 1.6 * np.sin(1.5 * X[:, 0]) * np.cos(1.5 * X[:, 1]) + 0.12 * rng.standard_normal(N)


def two_risks(mean, var, y, eps):
    """The risks of a draw and of the mean on fresh rows."""
    return {"draw, true risk": R.gibbs_risk(y, mean, var, eps),
            "mean, true risk": np.mean(np.abs(mean - y) > eps)}


@experiment(eps=0.3, delta=0.05, M=50, max_evals=(20, 100, 100), n_new=(1000, 400_000, 400_000))
def table_certificates(run, N, i, eps, delta, M, max_evals, n_new):
    """Three certificates, and risks, of table i of N rows; no scale is taken from them."""
    X, y = ripples(run.rng, N)
    X_new, y_new = ripples(run.rng, n_new)
    first = R.part_one(N, 0.5)
    rest = np.setdiff1d(np.arange(N), first)

    def made(X, y, method, **share):
        return train(run, f"N = {N}", X, y, method, min(M, N // 4), eps=eps, delta=delta,
                     max_evals=max_evals, **share)
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
    goal = beyond.stream.Goal(eps=eps, unit="y", M=M, delta=3 * delta)
    scale = np.array([[0.0, 0.0], [1.0, 1.0]])
    rows, sums = [], np.zeros(2)
    for at, before, _, after, _ in rounds(X, y, goal=goal, input_scale=scale):
        X_new, y_new = ripples(run.rng, each)
        mean, var, _ = beyond.stream.forecast(before, X_new)
        sums += list(two_risks(mean, var, y_new, eps).values())
        run.tick(f"a stream of {max(Ns)}: row {at.stop}")
        if at.stop in Ns:
            bounds = beyond.stream.certificates(after)
            draw, mean = sums / (at.stop - PRETRAINED)
            rows.append({"certificate": "any-time", "N": at.stop,
                         "draw, bound": bounds.draw.bound, "mean, bound": bounds.mean.bound,
                         "draw, true risk": draw, "mean, true risk": mean})
    return rows


TABLES = [100, 300, 1000, 3000, 10_000, 30_000, 100_000]


@figure(Ns=([100, 300], TABLES, TABLES), tables=(1, 3, 10), longest=10_000)
def certificates(run, Ns, tables, longest):
    """Four certificates of one goal against the number of rows, each over its true risk."""
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
            curve(ax, part, "N", f"{what}, true risk", name, ls=":", mfc="white", label=None)
        ax.set(xscale="log", yscale="log", xlabel="rows $N$",
               ylabel="P(a miss by more than 0.3 in $y$)")
    left.set_title("a prediction drawn from the GP")
    right.set_title("the GP's mean")
    below(picture, left, 4,
          key("dotted: the true risk", color="0.4", ls=":", marker="o", mfc="white"))
    failed = sum(np.sum(col(rows, f"{what}, bound") < col(rows, f"{what}, true risk"))
                 for what in ("draw", "mean"))
    return picture, rows, [
        f"A bound is below the true risk at {failed} of {2 * len(rows)} points."]


@figure(N=(200, 1000, 1000), n_new=(2000, 50_000, 50_000), eps=0.8, M=15, Ns=([300, 1000], *[[1000, 10_000, 100_000]] * 2))
def hero(run, N, n_new, eps, M, Ns):
    """A Gaussian process with a guarantee: how often it will miss, from the training rows alone; also while rows come in."""
    (x, y), (x_new, y_new) = (snelson_like(run.rng, n) for n in (N, n_new))
    fit, (picture, ((a, b, c),)) = train(run, "hero", x, y, "kl-PAC-SGP", M, eps, seed=0), panels(1, 3, 12.6, 4)
    true, grid = R.gibbs_risk(y_new, *R.predict(fit, x_new), eps), np.linspace(-0.3, 6.3, 300)[:, None]
    mean, _ = R.predict(fit, grid)
    a.plot(x, y, ".", color="0.6", ms=2.5, label=f"{N:,} training rows")
    band(a, grid, mean - eps, mean + eps, BLUE, 0.18, f"mean $\\pm\\varepsilon$, {eps}")
    a.plot(grid, mean, color=BLUE, lw=2)
    a.set(xlabel="$x$", ylabel="$y$", ylim=(-4, 2.8), title="1  A GP that states how often it misses")
    a.text(0.03, 0.03, f"99 % sure: a prediction drawn from it misses a new row\nby more than $\\varepsilon$ in at most "
           f"{100 * math.ceil(fit.bound * 1000) / 1000:.1f} % of cases (in fact {100 * true:.1f} %)", transform=a.transAxes,
           fontsize=8.5, bbox=dict(boxstyle="round", fc="white", ec=BLUE))
    a.legend(loc="upper right")
    rows = [run.once(arm_run, n) for n in Ns]
    against_rows(b, rows)
    b.set_title("2  It tightens with more rows")
    after = [{"m": m, "certificate": beyond.certificates.certificate(loss, 0.0, m).bound, "loss": loss / m, "true risk": risk / m}
             for m, loss, risk, *_ in run.once(certified_run, "time").T]
    against_stream(c, after, xscale="log", xlim=(5, len(after)), xlabel="rows of a stream, in time order",
                   title="3  It holds at every moment of a stream")
    broken = sum(row["certificate"] < row["true risk"] for row in after)
    return picture, rows, [f"Panel 1: B = {own_data.command_line.bound_text(fit.bound)}, R_S = {fit.risk:.4f}, risk on fresh rows "
                           f"{true:.4f}; for the mean the bound is {own_data.command_line.bound_text(2 * fit.bound)}. Panel 3: the "
                           f"bound is below the true risk at {broken} of {len(after)} times."]


@figure(n=(30, 130, 130), every=(10, 3, 3), eps=1.0)
def stream(run, n, every, eps):
    """Predict, then the row comes, and the certificate falls: the certified GP on a stream in time order."""
    (X, y, chance), rows, frames, risk = sine_stream(run.rng, n, "time"), [], [], 0.0
    for at, before, _, after, _ in rounds(X, y, input_scale=RANGE, goal=beyond.stream.Goal(eps, unit="y")):
        i, one = at.start, beyond.stream.certificates(after).draw
        risk, m = risk + true_risk(before, before.state, [chance(i)]), i - PRETRAINED + 1
        rows.append({"m": m, "certificate": one.bound, "loss": one.loss, "true risk": risk / m})
        if i % every and i < n - 1:
            continue
        (picture, ((a, c),)), grid = panels(1, 2, 8.4, 3.2), np.linspace(-1, 1, 161)[:, None]
        draw_gp(a, grid, *beyond.stream.forecast(before, grid)[:2], BLUE, "$f$")
        a.plot(X[:i], y[:i], ".", color="0.55", ms=4)
        a.plot(X[i], y[i], "*", color=RED, ms=13, mec="white")
        a.set(xlim=(-1, 1), ylim=(-2.6, 2.6), xlabel="$x$", ylabel="$y$", title="predict, then the row comes (red)")
        against_stream(c, rows, xlim=(0, n - PRETRAINED), xlabel="rows so far")
        frames.append(picture)
    return frames, rows, []
