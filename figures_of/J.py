"""The figures and tables of J = Jankowiak et al. 2020."""
import math
from functools import partial

import numpy as np

import pacgp_ref as R
import predictive as J

from figures_of import networks
from figures_of.imitations import (CITIES, boston_like, kin40k_like, snelson_like, taxi_like,
                                   uneven_noise)
from figures_of.published import beside, ours_and_theirs, published
from figures_of.shared import (BLACK, BLUE, ORANGE, RED, SKY, WORDS, band, below, col, data_set,
                               draw_gp, draw_inducing, experiment, figure, line, look, lowest,
                               mean_se, panels, standard, where)

SCORES = ("NLL", "RMSE", "CRPS", "noise fraction")
COMPARED = (            # J Table 1, Fig. 2-4; PPGPR there is MFD
    "MAP", "gamma-robust", "SVGP", "OD-SVGP", "VFITC", "PPGPR-MFD")
VARIANTS = (            # J Table 2
    "MAP", "SVGP", "PPGPR-delta", "PPGPR-MF", "PPGPR-Chol", "PPGPR-MFD")
ALL_TEN = ("MAP", "SVGP", "gamma-robust", "OD-SVGP", "VFITC", "PPGPR-delta", "PPGPR-MF",
           "PPGPR-Chol", "PPGPR-MFD", "exact")
J_FILES = ("pol.csv.gz", "bike.csv.gz", "kin40k.csv.gz")
J_SETS = ("pol", "bike", "kin40k")
J_SPLITS = dict(splits=(2, 3, 10, 1))
GENERATED = {
    "uneven_noise": uneven_noise, "boston_like": boston_like,
    "kin40k_like": lambda rng, N: kin40k_like(rng, N, 0.05)}


def series_panel(ax, run, x, y, method, M, epochs):
    """A panel of figure 1: data, mean, two deviations of f and of y. Returns its row."""
    say = lambda epoch, value: run.tick(f"{method}: epoch {epoch}, objective {value:.5g}")
    fit = J.fit(x, y, method, M, beta_reg=1.0, epochs=epochs, seed=run.seed, callback=say)
    sigma2 = math.exp(fit.params["ln_noise"])
    _, var_x = J.predict(fit, x)
    row = {"method": method, "sigma_k": math.exp(fit.params["ln_theta"][-1] / 2),
           "sigma_obs": math.sqrt(sigma2), "noise fraction": J.noise_fraction(var_x, sigma2),
           "NLL": J.nll(y, *J.predict_y(fit, x))}
    grid = np.linspace(x.min() - 0.1, x.max() + 0.1, 300)[:, None]
    mean, var = J.predict(fit, grid)
    for spread, colour, alpha, label in ((var + sigma2, SKY, 0.4, "$y$: noise on top"),
                                         (var, BLUE, 0.65, "$f$")):
        half = 2 * np.sqrt(spread)
        band(ax, grid, mean - half, mean + half, colour, alpha, f"$\\pm 2$ sd of {label}")
    ax.plot(grid, mean, color=BLACK, label="mean")
    ax.plot(x, y, ".", color=ORANGE, ms=5, mec=BLACK, mew=0.4, label="data")
    draw_inducing(ax, fit.params["Z"], "inducing inputs", height=0.03)
    ax.set(xlabel="input $x$ [sd]", ylabel="target $y$ [sd]", xlim=grid[[0, -1], 0],
           title=f"{method}: $\\sigma_k={row['sigma_k']:.2f}$, $\\sigma_{{obs}}="
           f"{row['sigma_obs']:.2f}$, NLL {row['NLL']:.2f}")
    ax.margins(y=0.1)
    return row


@figure("SVGP and PPGPR on a series of uneven noise: the mean, two deviations of f and of y.",
        "motorcycle.csv", M=20, epochs=(30, 1500, 10_000))
def J_fig1(run, M, epochs):
    x, y = map(standard, line(run, "motorcycle.csv", partial(snelson_like, uneven=True)))
    picture, axes = panels(2, 1, 7.2, 6.6, sharex=True, sharey=True)
    rows = [series_panel(ax, run, x, y, method, M, epochs)
            for ax, method in zip(axes[:, 0], ("SVGP", "PPGPR-Chol"))]
    below(picture, axes[0, 0], 5)
    noise = col(rows, "noise fraction")
    return picture, rows, [
        f"Noise is {noise[0]:.2f} of SVGP's predictive variance and {noise[1]:.2f} of PPGPR's."]


@experiment("SCORES on the test rows of split i, the same for all methods; J App. C.1.",
            N=(100, 1000, 10_000, "all", "all"), M=(5, 40, 1000, 100),
            batch=(75, 100, 1000, 1000), epochs=(3, 30, 400, 60), lr=(0.05, 0.1, 0.01, 0.03),
            exact_rows=(50, 400, 4000, 1000), validate=(False, False, True))
def score_run(run, name, method, i, N, exact_rows, validate, **settings):
    X, y = data_set(run, name, lambda rng: GENERATED[name](rng, N), "score_table", run.size, name)
    order = run.seeded(name, i).permutation(len(y))
    a, b, c = np.split(order, [len(y) * 15 // 20, len(y) * 18 // 20])
    settings["seed"] = i
    settings["callback"] = lambda n, f: run.tick(
        f"{name}, split {i + 1}, {method}: epoch {n}, objective {f:.5g}")
    if method == "exact":
        a = a[:exact_rows]
        settings["epochs"] *= 2
    if validate:
        fit = J.choose(X[a], y[a], X[c], y[c], method, **settings)
    else:
        beta_reg = 0.05 if "PPGPR" in method else 1.0
        fit = J.fit(X[a], y[a], method, beta_reg=beta_reg, **settings)
    _, var_f = J.predict(fit, X[b])
    mean, var = J.predict_y(fit, X[b])
    noise = J.noise_fraction(var_f, np.exp(fit.params["ln_noise"]))
    return [J.nll(y[b], mean, var), J.rmse(y[b], mean), J.crps(y[b], mean, var), noise]


def score_rows(run, splits, methods, scores):
    """A row for each data set and method: the scores, and what they are minus SVGP's on the same
    splits."""
    rows = []
    for name in J_SETS if run.real else GENERATED:
        runs = {m: np.array([run.once(score_run, name, m, i) for i in range(splits)])
                for m in (*methods, "SVGP")}
        for m in methods:
            each, gap = (dict(zip(SCORES, mean_se(values)))
                         for values in (runs[m], runs[m] - runs["SVGP"]))
            row = {"data": name, "method": m} | {s: each[s] for s in scores}
            rows.append(row | {f"{s} - SVGP's": gap[s] for s in scores if s != "noise fraction"})
    return rows


def score_panel(ax, rows, score, down=0.0, **style):
    """The methods below one another on one data set.

    Our errors are those of the difference from SVGP on the same splits.
    """
    for k, row in enumerate(rows):
        if score in row:
            gap = f"{score} - SVGP's"
            error = np.nan_to_num(col([row], gap if gap in row else score, 1))
            style = dict(ls="none", ms=6, capsize=2) | style
            ax.errorbar(col([row], score), -k - down, xerr=error, **look(row["method"], **style))
    name = rows[0]["data"]
    ax.set(title=WORDS.get(name, name), xlabel=WORDS[score], ylim=(-len(rows) + 0.3, 0.5))
    ax.locator_params(axis="x", nbins=4)                # labels that do not touch


def score_figure(run, splits, score, methods, title):
    """Figures 2-4 and 6-9: one score, a panel per data set; title: a function of rows.

    The paper's numbers are hollow: beside ours of the same data set, or in panels of their own.
    """
    rows = score_rows(run, splits, methods, (score,))
    paper = published("J_table3", "data", "method")
    sets = list(dict.fromkeys(row["data"] for row in rows))
    printed = [] if run.real or score == "noise fraction" else ["pol", "kin40k"]
    n = len(sets + printed)
    picture, axes = panels(1, n, 2.4 + 2.3 * n, 1.3 + 0.24 * len(methods), sharey=True)
    for ax, name in zip(axes[0], sets + printed):
        theirs = [{"data": name, "method": m} | paper.get((name, m), {}) for m in methods]
        if name in printed:
            score_panel(ax, theirs, score, mfc="white")
            ax.set(title=f"the paper: {name}", facecolor="0.96")
            continue
        score_panel(ax, where(rows, data=name), score)
        if run.real:
            score_panel(ax, theirs, score, 0.35, mfc="white")
        if score == "noise fraction":
            ax.set_xlim(-0.03, 1.03)
    axes[0, 0].set_yticks(-np.arange(len(methods)), methods)
    if score != "noise fraction":
        ours_and_theirs(picture)
    return picture, beside(rows, paper, "data", "method"), [title(rows)]


def below_svgp(name, rows):
    """A title on PPGPR-MFD's and SVGP's score by data set."""
    gap, error = (col(where(rows, method="PPGPR-MFD"), f"{name} - SVGP's", i) for i in (0, 1))
    return (f"PPGPR-MFD's {name} is below SVGP's on {np.sum(gap < 0)} of {len(gap)} data sets, on "
            f"{np.sum(gap < -2 * error)} by more than two standard errors; the difference is "
            f"{min(-gap):.3f} to {max(-gap):.3f}.")


def in_order(name, sign, rows):
    """A title on the order of a score among the variants of PPGPR, here and in the paper."""
    theirs = [{"method": method} | scores for (_, method), scores
              in published("J_table3", "data", "method").items()]
    counts = []
    for part in (rows, theirs):
        steps = sign * np.diff([col(where(part, method=f"PPGPR-{m}"), name)
                                for m in ("delta", "MF", "Chol")], axis=0)
        counts.append(f"{np.sum(np.all(steps > 0, axis=0))} of {steps.shape[1]}")
    return (f"{name} {'grows' if sign > 0 else 'falls'} from PPGPR-delta to MF to Chol on "
            f"{counts[0]} data sets, in the paper on {counts[1]}.")


def mean_noise(rows):
    """A title on the mean share of noise."""
    shares = [f"{col(where(rows, method=m), 'noise fraction').mean():.2f} of {m}'s"
              for m in ("SVGP", "PPGPR-MFD")]
    return f"Noise is {shares[0]} predictive variance and {shares[1]}, on average over data sets."


for number, score, methods, title in (
        (2, "NLL", (*COMPARED, "exact"), partial(below_svgp, "NLL")),
        (3, "RMSE", (*COMPARED, "exact"), partial(below_svgp, "RMSE")),
        (4, "noise fraction", (*COMPARED, "exact"), mean_noise),
        (6, "NLL", ALL_TEN, partial(in_order, "NLL", -1)),
        (7, "RMSE", ALL_TEN, partial(in_order, "RMSE", 1)),
        (8, "noise fraction", ALL_TEN, mean_noise),
        (9, "CRPS", ALL_TEN, partial(below_svgp, "CRPS"))):
    of = "mean" if score == "noise fraction" else "difference from SVGP"
    figure(f"Test {score} of {len(methods)} methods; bars of ours: s.e. of the {of}.", *J_FILES,
           name=f"J_fig{number}", **J_SPLITS)(
        partial(score_figure, score=score, methods=methods, title=title))


@experiment("{method: (z of the test rows, NLL, RMSE)} on one city; tau by NLL on N/4 validation "
            "rows.", N=(300, 3000, 20_000), n_test=(300, 2000, 20_000),
            hidden=([16, 4], [64, 32, 8], [256, 256, 128, 128, 64]), M=(10, 32, 1024),
            batch=(100, 100, 1000), epochs=(3, 20, 200), beta_reg=0.2, drop=0.1)
def city_run(run, city, N, n_test, beta_reg, drop, **plan):
    ends = [N, N + N // 4]
    X, y = taxi_like(run.rng, ends[1] + n_test, city)
    X, X_val, X_test = np.split((X - X[:N].mean(0)) / X[:N].std(0), ends)
    y, y_val, y_test = np.split((y - y[:N].mean(0)) / y[:N].std(0), ends)
    say = lambda text: run.tick(f"{city}: {text}")
    found = {
        "SVGP+DKL": networks.deep_gp(run.rng, X, y, "SVGP", 1.0, plan, say),
        "PPGPR+DKL": networks.deep_gp(run.rng, X, y, "PPGPR-MFD", beta_reg, plan, say),
        "MC dropout": networks.dropout_net(run.rng, X, y, X_val, y_val, drop, plan, say)[1]}
    out = {}
    for name, predict in found.items():
        mean, var = predict(X_test)
        z = (y_test - mean) / np.sqrt(var)
        out[name] = z, J.nll(y_test, mean, var), J.rmse(y_test, mean)
    return out


@figure("Calibration of three deep models on trips in three cities: the CDF of z-scores.")
def J_fig5(run):
    grid = np.linspace(-4, 4, 401)
    picture, axes = panels(1, 3, 11, 3.9, sharey=True)
    rows = []
    for ax, city in zip(axes[0], CITIES):
        for name, (z, nll, rmse) in run.once(city_run, city).items():
            D = networks.kolmogorov(z)
            rows.append({"data": city, "method": name, "NLL": nll, "RMSE": rmse,
                         "distance from Phi": D})
            ax.plot(np.sort(z), np.linspace(0, 1, len(z)), **look(name, label=f"{name}: {D:.3f}"))
        ax.plot(grid, R.norm_cdf(grid), color=BLACK, lw=1, label="ideal: normal CDF")
        ax.set(title=city, xlabel="$z=(y-\\mu_f)/\\sigma$", xlim=(-4, 4), ylim=(0, 1))
        ax.legend(loc="lower right", title="largest distance from ideal", prop={"size": 7},
                  title_fontsize=7)
    axes[0, 0].set_ylabel("share of test rows below $z$")
    cities = [where(rows, data=city) for city in CITIES]
    counts = [lowest(cities, "distance from Phi", row["method"]) for row in cities[0]]
    return picture, rows, [
        f"Closest to the normal CDF: SVGP+DKL in {counts[0]} of {len(cities)} cities, PPGPR+DKL in "
        f"{counts[1]}, MC dropout in {counts[2]}."]


DRAWS = {               # kernel -> theta of the draw, where the data end, M, rate
    "periodic": ((1.0, 0.2, 1.0), 0.5, 25, 0.01), "Matern52": ((0.1**2, 1.0), 1.0, 40, 0.02)}


def draw_panel(ax, run, kernel, method, data, epochs):
    """A panel of figure 10: the function drawn, and what a fit makes of it. Returns its row."""
    x, y, grid, f = data
    *_, end, M, rate = DRAWS[kernel]
    say = lambda epoch, value: run.tick(f"{kernel}, {method}: epoch {epoch}")
    fit = J.fit(x, y, method, M, kernel, epochs=epochs, lr=rate, seed=run.seed, callback=say)
    mean, var = J.predict_y(fit, grid)
    asked = grid[:, 0] > end % 1                        # beyond end; everywhere if end is 1
    l2, *period, _ = np.exp(fit.params["ln_theta"])
    row = {"kernel": kernel, "method": method, "RMSE": J.rmse(f[asked], mean[asked]),
           "l": math.sqrt(l2), "period": period[0] if period else None}
    draw_gp(ax, grid, mean, var, BLUE, "$y$")
    ax.plot(grid, f, color=BLACK, ls="--", lw=1, label="the function drawn")
    ax.plot(x, y, ".", color=RED, ms=3, label="training data")
    ax.axvspan(end, 1, color="0.93", zorder=0, label="no training data")
    found = f"period {period[0]:.3f}" if period else f"$l={row['l']:.3f}$"
    ax.set(xlim=(0, 1), xlabel="$x$", title=f"{method}: RMSE {row['RMSE']:.3f}, {found}")
    return row


@figure("Exact GP, SVGP and PPGPR on a function drawn from their prior, from the default start; "
        "periods from the most likely of a grid.", noise=0.05, epochs=(10, 1000, 10_000))
def J_fig10(run, noise, epochs):
    picture, axes = panels(2, 3, 10, 5.2, sharex=True, sharey="row")
    rows = []
    for part, (kernel, (theta, end, *_)) in zip(axes, DRAWS.items()):
        grid = np.linspace(0, 1, 201)[:, None]
        K, _ = J.KERNELS[kernel](grid, grid, np.log(theta))
        f = R.cholesky(K + 1e-9 * np.eye(len(K)), "K") @ run.rng.standard_normal(len(K))
        x = grid[::2][grid[::2, 0] <= end]
        data = x, f[:2 * len(x):2] + noise * run.rng.standard_normal(len(x)), grid, f
        rows += [draw_panel(ax, run, kernel, method, data, epochs)
                 for ax, method in zip(part, ("exact", "SVGP", "PPGPR-Chol"))]
        part[0].set_ylabel(WORDS[kernel])
    below(picture, axes[0, 0], 5)
    return picture, rows, ["Three GPs on a draw from a periodic and one from a Matern-5/2 kernel; "
                           "in the paper all find both."]


def average_ranks(scores):
    """Mean rank (methods,) over the rows of scores (cases, methods), 1 the lowest; ties share."""
    below = (scores[:, None, :] < scores[:, :, None]).sum(2)
    equal = (scores[:, None, :] == scores[:, :, None]).sum(2)
    return (below + (equal + 1) / 2).mean(0)


def rank_table(run, splits, table, methods):
    """Tables 1 and 2: average ranks over data sets and splits, 1 is best."""
    cases = [(name, i) for name in (J_SETS if run.real else GENERATED) for i in range(splits)]
    found = np.array([[run.once(score_run, name, m, i) for m in methods] for name, i in cases])
    ranks = np.transpose([average_ranks(found[:, :, k]) for k in range(3)])
    rows = [{"method": m} | dict(zip(SCORES, rank)) for m, rank in zip(methods, ranks)]
    paper = published(table, "method")
    best = [methods[np.argmin(RMSE)]
            for RMSE in (ranks[:, 1], [float(paper[m,]["RMSE"]) for m in methods])]
    return None, beside(rows, paper, "method"), [
        f"Over {len(cases)} cases {best[0]} has the best rank of RMSE, in the paper {best[1]}."]


for number, methods in ((1, COMPARED), (2, VARIANTS)):
    figure(f"Average ranks of {', '.join(methods)}; 1 is best.", *J_FILES,
           name=f"J_table{number}", **J_SPLITS)(
        partial(rank_table, table=f"J_table{number}", methods=methods))


@figure("All scores of all methods, and what they are minus SVGP's on the same splits.", *J_FILES,
        **J_SPLITS)
def J_table3(run, splits):
    rows = score_rows(run, splits, ALL_TEN, SCORES)
    return None, beside(rows, published("J_table3", "data", "method"), "data", "method"), [
        below_svgp("NLL", rows)]
