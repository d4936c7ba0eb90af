"""The figures and tables of J = Jankowiak et al. 2020."""
import math
from functools import partial

import numpy as np

import pacgp_ref as R
import predictive as J
from beyond import networks

from figures_of.imitations import (CITIES, boston_like, kin40k_like, motorcycle_like, taxi_like,
                                   uneven_noise)
from figures_of.published import beside, ours_and_theirs, published
from figures_of.shared import (BLACK, BLUE, ORANGE, RED, SKY, WORDS, band, below, col, data_set,
                               dot, draw_gp, draw_inducing, experiment, figure, gaps, look, panels,
                               standard, where)

SCORES = ("NLL", "RMSE", "CRPS", "noise fraction")
COMPARED = (            # J Table 1, Fig. 2-4; PPGPR there is MFD
    "MAP", "gamma-robust", "SVGP", "OD-SVGP", "VFITC", "PPGPR-MFD")
VARIANTS = (            # J Table 2
    "MAP", "SVGP", "PPGPR-delta", "PPGPR-MF", "PPGPR-Chol", "PPGPR-MFD")
ALL_TEN = ("MAP", "SVGP", "gamma-robust", "OD-SVGP", "VFITC", "PPGPR-delta", "PPGPR-MF",
           "PPGPR-Chol", "PPGPR-MFD", "exact")
J_FILES = ("pol.csv.gz", "bike.csv.gz", "kin40k.csv.gz")
J_SETS = ("pol", "bike", "kin40k")
J_SPLITS = dict(splits=(2, 3, 10), real=dict(splits=(1, 1, 10)))
GENERATED = {
    "uneven_noise": uneven_noise, "boston_like": boston_like,
    "kin40k_like": lambda rng, N: kin40k_like(rng, N, 0.05)}


@experiment(N=(100, 1000, 10_000), M=(5, 40, 1000), batch=(75, 100, 1000), epochs=(3, 30, 400),
            lr=(0.05, 0.1, 0.01), exact_rows=(50, 400, 4000), validate=(False, False, True),
            real=dict(N="all", M=(10, 100, 1000), batch=(2000, 1000, 1000), epochs=(1, 60, 400),
                      lr=(0.03, 0.03, 0.01), exact_rows=(100, 1000, 4000)))
def score_run(run, name, method, i, N, exact_rows, validate, **settings):
    """SCORES on the test rows of split i, the same for all methods; J App. C.1."""
    generate = lambda rng: GENERATED[name](rng, N)
    X, y = data_set(run, name, generate, "score_table", run.size, name)
    order = run.seeded(name, i).permutation(len(y))
    a, b, c = np.split(order, [len(y) * 15 // 20, len(y) * 18 // 20])
    label = f"{name}, split {i + 1}, {method}"
    settings["callback"] = lambda n, f: run.tick(f"{label}: epoch {n}, objective {f:.5g}")
    settings["seed"] = i
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


def score_rows(run, splits, methods, scores, names=None):
    """A row for each data set and method: the scores, and what they are minus SVGP's on the same
    splits."""
    rows = []
    for name in names or (J_SETS if run.real else GENERATED):
        runs = {m: [run.once(score_run, name, m, i) for i in range(splits)]
                for m in (*methods, "SVGP")}
        found = gaps(runs, "SVGP")
        for m in methods:
            each, gap = (dict(zip(SCORES, part)) for part in found[m])
            row = {"data": name, "method": m} | {s: each[s] for s in scores}
            row |= {f"{s} - SVGP's": gap[s] for s in scores if s != "noise fraction"}
            rows.append(row)
    return rows


def score_panel(ax, rows, score, down=0.0, **style):
    """The methods below one another on one data set.

    Our errors are those of the difference from SVGP on the same splits.
    """
    for k, row in enumerate(rows):
        if score in row:
            mean, error = (col([row], score, part)[0] for part in (0, 1))
            gap = col([row], f"{score} - SVGP's", 1)[0] if f"{score} - SVGP's" in row else error
            dot(ax, {score: (mean, gap)}, score, -k - down, row["method"], **style)
    name = rows[0]["data"]
    ax.set(title=WORDS.get(name, name), xlabel=WORDS[score], ylim=(-len(rows) + 0.3, 0.5))
    ax.locator_params(axis="x", nbins=4)                # labels that do not touch


def paper_rows(methods, name):
    """Rows of J Table 3 for a data set."""
    paper = published("J_table3", "data", "method")
    return [{"data": name, "method": m} | paper.get((name, m), {}) for m in methods]


def score_figure(run, splits, score, methods, found):
    """Figures 2-4 and 6-9: one score, a panel per data set; found(rows): a sentence.

    The paper's numbers are hollow: beside ours of the same data set, or in panels of their own.
    """
    rows = score_rows(run, splits, methods, (score,))
    sets = list(dict.fromkeys(row["data"] for row in rows))
    printed = [] if run.real or score == "noise fraction" else ["pol", "kin40k"]
    n = len(sets + printed)
    picture, axes = panels(1, n, 2.4 + 2.3 * n, 1.3 + 0.24 * len(methods), sharey=True)
    for ax, name in zip(axes[0], sets):
        score_panel(ax, where(rows, data=name), score)
        if run.real:
            score_panel(ax, paper_rows(methods, name), score, 0.35, mfc="white")
        if score == "noise fraction":
            ax.set_xlim(-0.03, 1.03)
    for ax, name in zip(axes[0, len(sets):], printed):
        score_panel(ax, paper_rows(methods, name), score, mfc="white")
        ax.set(title=f"the paper: {name}", facecolor="0.96")
    axes[0, 0].set_yticks(-np.arange(len(methods)), methods)
    if score != "noise fraction":
        ours_and_theirs(picture)
    return picture, beside(rows, published("J_table3", "data", "method"), "data", "method")[0], [
        found(rows)]


def below_svgp(name, rows):
    """A sentence on PPGPR-MFD's and SVGP's score by data set."""
    gap, error = (col(where(rows, method="PPGPR-MFD"), f"{name} - SVGP's", i) for i in (0, 1))
    return (f"PPGPR-MFD's {name} is below SVGP's on {np.sum(gap < 0)} of {len(gap)} data sets, on "
            f"{np.sum(gap < -2 * error)} by more than two standard errors; the difference is "
            f"{min(-gap):.3f} to {max(-gap):.3f}.")


def best_found(name, rows):
    """A sentence on the methods with the best score by data set."""
    methods = list(dict.fromkeys(row["method"] for row in rows if row["method"] != "exact"))
    best = np.argmin([col(where(rows, method=m), name) for m in methods], axis=0)
    counts = {m: int(np.sum(best == i)) for i, m in enumerate(methods)}
    said = [f"{m} on {n}" for m, n in counts.items() if n or m == "PPGPR-MFD"]
    return f"Lowest {name}, exact GP apart: {', '.join(said)} of {len(best)} data sets."


def rmse_found(rows):
    """A sentence on the best RMSE by data set, and on the paper's ranks."""
    ranks = [f"{m} {published('J_table1', 'method')[m,]['RMSE']}" for m in ("PPGPR-MFD", "MAP")]
    return f"{best_found('RMSE', rows)} The paper's mean ranks, 1 is best: {', '.join(ranks)}."


def order_found(rows):
    """A sentence on the order of RMSE among the variants of PPGPR, here and in the paper."""
    theirs = [{"data": data, "method": method} | scores for (data, method), scores
              in published("J_table3", "data", "method").items()]
    said = []
    for part in (rows, theirs):
        RMSE = [col(where(part, method=f"PPGPR-{m}"), "RMSE") for m in ("delta", "MF", "Chol")]
        steps = np.diff(np.round(RMSE, 4), axis=0)
        said.append(f"{np.sum(steps.min(0) > 0)} of {steps.shape[1]}")
    return (f"RMSE grows from PPGPR-delta to MF to Chol on {said[0]} data sets, in the paper on "
            f"{said[1]}.")


def noise_found(rows):
    """A sentence on the mean share of noise."""
    shares = [f"{col(where(rows, method=m), 'noise fraction').mean():.2f} of {m}'s"
              for m in ("SVGP", "PPGPR-MFD")]
    return f"Noise is {shares[0]} predictive variance and {shares[1]}, on average over data sets."


for number, score, methods, found in (
        (2, "NLL", (*COMPARED, "exact"), partial(below_svgp, "NLL")),
        (3, "RMSE", (*COMPARED, "exact"), rmse_found),
        (4, "noise fraction", (*COMPARED, "exact"), noise_found),
        (6, "NLL", ALL_TEN, partial(best_found, "NLL")),
        (7, "RMSE", ALL_TEN, order_found),
        (8, "noise fraction", ALL_TEN, noise_found),
        (9, "CRPS", ALL_TEN, partial(below_svgp, "CRPS"))):
    of = "mean" if score == "noise fraction" else "difference from SVGP"
    made = partial(score_figure, score=score, methods=methods, found=found)
    made.__name__ = f"J_fig{number}"
    made.__doc__ = f"Test {score} of {len(methods)} methods; bars of ours: s.e. of the {of}."
    figure(*J_FILES, **J_SPLITS)(made)


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
    best = min(rows, key=lambda row: row["RMSE"])["method"]
    paper = published(table, "method")
    theirs = min(methods, key=lambda m: col([paper[m,]], "RMSE")[0])
    said = [f"{m} (here {where(rows, method=m)[0]['RMSE']:.2f}, there {paper[m,]['RMSE']})"
            for m in (best, theirs)]
    rows, _ = beside(rows, paper, "method")
    return None, rows, [
        f"The best rank of RMSE has {said[0]}; in the paper {said[1]}.",
        f"Ranks over {len(found)} cases, data sets times splits; the paper's over twelve data sets "
        "and ten splits."]


@figure(*J_FILES, **J_SPLITS)
def J_table1(run, splits):
    """Average ranks of MAP, gamma-robust, SVGP, OD-SVGP, VFITC, PPGPR-MFD; 1 is best."""
    return rank_table(run, splits, "J_table1", COMPARED)


@figure(*J_FILES, **J_SPLITS)
def J_table2(run, splits):
    """Average ranks of MAP, SVGP, PPGPR-delta, PPGPR-MF, PPGPR-Chol, PPGPR-MFD; 1 is best."""
    return rank_table(run, splits, "J_table2", VARIANTS)


@figure(*J_FILES, **J_SPLITS)
def J_table3(run, splits):
    """All scores of all methods, and what they are minus SVGP's on the same splits."""
    rows = score_rows(run, splits, ALL_TEN, SCORES)
    notes = [below_svgp("NLL", rows)]
    if run.real:
        methods = ("SVGP", "PPGPR-MFD", "exact")
        rows += score_rows(run, splits, methods, SCORES, ["bike, 15 inputs"])
        notes.append("bike: inputs 15 and 16 (casual, registered) add up to the count whose "
                     "logarithm is y, an exact function of them. The last rows are without them.")
    rows, _ = beside(rows, published("J_table3", "data", "method"), "data", "method")
    return None, rows, notes


def draw_two_bands(ax, grid, mean, s_f, s):
    """The mean, and two deviations of f and of y around it."""
    band(ax, grid, mean - s, mean + s, SKY, 0.4, "$\\pm 2$ sd of $y$: noise on top")
    band(ax, grid, mean - s_f, mean + s_f, BLUE, 0.65, "$\\pm 2$ sd of $f$")
    ax.plot(grid, mean, color=BLACK, label="mean")


def motorcycle_panel(ax, run, x, y, method, M, epochs):
    """A panel of figure 1: data, mean, bands of f and of y. Returns its row."""
    unit = y.std()
    grid = np.linspace(x.min() - 2, x.max() + 2, 300)[:, None]
    say = lambda epoch, value: run.tick(f"{method}: epoch {epoch}, objective {value:.5g}")
    fit = J.fit(standard(x), standard(y), method, M, beta_reg=1.0, epochs=epochs, seed=run.seed,
                callback=say)
    _, var_f = J.predict(fit, (grid - x.mean()) / x.std())
    mean, var = J.predict_y(fit, (grid - x.mean()) / x.std())
    mean_x, var_x = J.predict_y(fit, standard(x))
    sigma2 = math.exp(fit.params["ln_noise"])
    sigma_k = math.exp(fit.params["ln_theta"][-1] / 2) * unit
    sigma_obs = math.sqrt(sigma2) * unit
    noise = J.noise_fraction(var_x - sigma2, sigma2)
    nll = J.nll(standard(y), mean_x, var_x)
    bands = 2 * unit * np.sqrt(var_f), 2 * unit * np.sqrt(var)
    draw_two_bands(ax, grid, y.mean() + unit * mean, *bands)
    ax.plot(x, y, ".", color=ORANGE, ms=5, mec=BLACK, mew=0.4, label="data")
    Z = x.mean() + x.std() * fit.params["Z"]
    draw_inducing(ax, Z, "inducing inputs", height=0.03)
    like = "" if run.real else ", generated"
    ax.set(xlabel=f"time [ms{like}]", ylabel=f"acceleration [g{like}]", xlim=grid[[0, -1], 0])
    ax.set_title(f"{method}: $\\sigma_k={sigma_k:.0f}$ g, $\\sigma_{{obs}}={sigma_obs:.1f}$ g, "
                 f"noise {noise:.0%} of the variance, NLL {nll:.2f}")
    ax.margins(y=0.1)
    return {"method": method, "sigma_k [g]": sigma_k, "sigma_obs [g]": sigma_obs,
            "noise fraction": noise, "NLL": nll, "RMSE [g]": J.rmse(standard(y), mean_x) * unit}


@figure("motorcycle.csv", M=20, epochs=(30, 1500, 10_000))
def J_fig1(run, M, epochs):
    """SVGP and PPGPR on a series of uneven noise: the mean, two deviations of f and of y."""
    if run.real:
        x, y = np.split(run.tables["motorcycle.csv"], 2, axis=1)
    else:
        x, y = motorcycle_like(run.rng)
    picture, axes = panels(2, 1, 7.2, 6.6, sharex=True, sharey=True)
    rows = [motorcycle_panel(ax, run, x, np.ravel(y), method, M, epochs)
            for ax, method in zip(axes[:, 0], ("SVGP", "PPGPR-Chol"))]
    below(picture, axes[0, 0], 5)
    noise = col(rows, "noise fraction")
    k = [f"{row['sigma_k [g]']:.0f}" for row in rows]
    return picture, rows, [
        f"Noise is {noise[0]:.2f} of SVGP's predictive variance and {noise[1]:.2f} of PPGPR's.",
        f"sigma_k is {k[0]} g with SVGP and {k[1]} g with PPGPR; the paper: SVGP's is smaller."]


@experiment(N=(300, 3000, 20_000), n_test=(300, 2000, 20_000),
            hidden=([16, 4], [64, 32, 8], [256, 256, 128, 128, 64]), M=(10, 32, 1024),
            batch=(100, 100, 1000), epochs=(3, 20, 200),
            betas=([0.2], [0.05, 0.5], [0.05, 0.2, 0.5, 1.0]),
            drops=([0.1], [0.05, 0.15], [0.05, 0.1, 0.15, 0.2, 0.25]))
def city_run(run, city, N, n_test, betas, drops, **plan):
    """{method: (choice, z of the test rows, NLL, RMSE)} on one city; choices by NLL on N/4
    validation rows."""
    ends = [N, N + N // 4]
    X, y = taxi_like(run.rng, ends[1] + n_test, city)
    X, X_val, X_test = np.split((X - X[:N].mean(0)) / X[:N].std(0), ends)
    y, y_val, y_test = np.split((y - y[:N].mean(0)) / y[:N].std(0), ends)
    say = lambda text: run.tick(f"{city}: {text}")
    deep = lambda *which: networks.deep_gp(run.rng, X, y, *which, plan, say)
    found = {"SVGP+DKL": [("beta_reg 1", deep("SVGP", 1.0))],
             "PPGPR+DKL": [(f"beta_reg {b:g}", deep("PPGPR-MFD", b)) for b in betas],
             "MC dropout": []}
    for drop in drops:
        tau, predict = networks.dropout_net(run.rng, X, y, X_val, y_val, drop, plan, say)
        found["MC dropout"].append((f"p {drop:g}, tau {tau:g}", predict))
    out = {}
    for name, choices in found.items():
        choice, predict = min(choices, key=lambda c: J.nll(y_val, *c[1](X_val)))
        mean, var = predict(X_test)
        z = (y_test - mean) / np.sqrt(var)
        out[name] = choice, z, J.nll(y_test, mean, var), J.rmse(y_test, mean)
    return out


@figure()
def J_fig5(run):
    """Calibration of three deep models on trips in three cities: the CDF of z-scores."""
    grid = np.linspace(-4, 4, 401)
    picture, axes = panels(1, 3, 11, 3.9, sharey=True)
    rows = []
    for ax, city in zip(axes[0], CITIES):
        for name, (choice, scores, nll, rmse) in run.once(city_run, city).items():
            D = networks.kolmogorov(scores)
            rows.append({"data": city, "method": name, "chosen": choice, "NLL": nll, "RMSE": rmse,
                         "distance from Phi": D})
            style = look(name, label=f"{name}: {D:.3f}")
            ax.plot(grid, networks.z_score_cdf(scores, grid), **style)
        ax.plot(grid, R.norm_cdf(grid), color=BLACK, lw=1, label="ideal: normal CDF")
        ax.set(title=city, xlabel="$z=(y-\\mu_f)/\\sigma$", xlim=(-4, 4), ylim=(0, 1))
        ax.legend(loc="lower right", title="largest distance from ideal", prop={"size": 7},
                  title_fontsize=7)
    axes[0, 0].set_ylabel("share of test rows below $z$")
    D = {m: col(where(rows, method=m), "distance from Phi") for m in ("SVGP+DKL", "PPGPR+DKL",
                                                                      "MC dropout")}
    best = [min(D, key=lambda m: D[m][k]) for k in range(len(CITIES))]
    counts = {m: best.count(m) for m in D}
    return picture, rows, [
        f"Closest to the normal CDF: PPGPR+DKL in {counts['PPGPR+DKL']} of {len(best)} cities, MC "
        f"dropout in {counts['MC dropout']}, SVGP+DKL in {counts['SVGP+DKL']}.",
        "The paper: PPGPR+DKL is best overall, MC dropout better than SVGP+DKL or like it."]


DRAWS = {               # kernel -> theta of the draw, where the data end, M, rate
    "periodic": ((1.0, 0.2, 1.0), 0.5, 25, 0.01), "Matern52": ((0.1**2, 1.0), 1.0, 40, 0.02)}


def draw_fit(run, kernel, method, start, x, y, grid, epochs):
    """A row of a fit whose period, or lengthscale, starts at start, and mean, var of y on the grid.

    J.fit starts both at J.START: x is scaled instead, and with it what a step of Adam means for Z.
    """
    *_, M, rate = DRAWS[kernel]
    unit = start / J.START
    say = lambda epoch, value: run.tick(f"{kernel}, {method}: epoch {epoch}")
    fit = J.fit(x / unit, y, method, M, kernel, epochs=epochs, lr=rate, seed=run.seed, callback=say)
    mean, var = J.predict_y(fit, grid / unit)
    l2, *period, s2 = np.exp(fit.params["ln_theta"])
    l = math.sqrt(l2)
    row = {"kernel": kernel, "method": method, "start": start,
           "period": period[0] * unit if period else None, "l": l if period else l * unit,
           "sigma_k": math.sqrt(s2), "sigma_obs": math.exp(fit.params["ln_noise"] / 2),
           "objective": fit.history[-1]}
    return row, mean, var


def drawn_function(run, kernel, noise):
    """x (n, 1), y (n,), grid (201, 1), f (201,), end: of a GP's draw, seen up to end, with
    noise."""
    theta, end, *_ = DRAWS[kernel]
    grid = np.linspace(0, 1, 201)[:, None]
    K, _ = J.KERNELS[kernel](grid, grid, np.log(theta))
    f = R.cholesky(K + 1e-9 * np.eye(len(K)), "K") @ run.rng.standard_normal(len(K))
    x = grid[::2][grid[::2, 0] <= end]
    return x, f[:2 * len(x):2] + noise * run.rng.standard_normal(len(x)), grid, f, end


def draw_panel(ax, data, fit):
    """A panel of figure 10: the function drawn, and what a fit makes of it."""
    x, y, grid, f, end = data
    row, mean, var = fit
    draw_gp(ax, grid, mean, var, BLUE, "$y$")
    ax.plot(grid, f, color=BLACK, ls="--", lw=1, label="the function drawn")
    ax.plot(x, y, ".", color=RED, ms=3, label="training data")
    ax.axvspan(end, 1, color="0.93", zorder=0, label="no training data")
    found = f"$l={row['l']:.3f}$"
    if row["period"]:
        found = f"period {row['period']:.3f}"
    ax.set(xlim=(0, 1), title=f"{row['method']}: RMSE {row['RMSE']:.3f}, {found}", xlabel="$x$")


@figure(noise=0.05, epochs=(10, 1000, 10_000), starts=[round(J.START, 3), 0.12])
def J_fig10(run, noise, epochs, starts):
    """Exact GP, SVGP and PPGPR on a function drawn from their prior: from the default start, as in
    the paper, and from the start of two with the lower objective."""
    picture, axes = panels(4, 3, 10, 9.6, sharex=True, sharey="row")
    rows = []
    near = {}
    for k, kernel in enumerate(DRAWS):
        data = drawn_function(run, kernel, noise)
        *_, grid, f, end = data
        asked = grid[:, 0] > end % 1                    # RMSE beyond end; everywhere if end is 1
        for j, method in enumerate(("exact", "SVGP", "PPGPR-Chol")):
            fits = [draw_fit(run, kernel, method, start, *data[:3], epochs) for start in starts]
            for row, mean, _ in fits:
                row["RMSE"] = J.rmse(f[asked], mean[asked])
                rows.append(row)
            best = min(fits, key=lambda fit: fit[0]["objective"])
            best[0]["lower objective"] = "yes"
            for i, (name, fit) in enumerate((("default start", fits[0]), ("better of 2", best))):
                draw_panel(axes[2 * k + i, j], data, fit)
                axes[2 * k + i, 0].set_ylabel(f"{WORDS[kernel]}, {name}")
                near.setdefault((kernel, name), []).append(fit[0]["RMSE"] < 0.1)
    below(picture, axes[0, 0], 5)
    first, best = (sum(near["periodic", name]) for name in ("default start", "better of 2"))
    also, found = (sum(near["Matern52", name]) for name in ("default start", "better of 2"))
    return picture, rows, [
        f"RMSE below 0.1: from the default start {first} of 3 methods on the periodic draw and "
        f"{also} on the Matern draw, from the better of two starts {best} and {found}; in the "
        "paper all find both.",
        "The period is a hard search: which optimum is found depends on the draw, and on "
        "rounding."]
