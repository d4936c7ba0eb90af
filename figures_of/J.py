"""The figures and tables of J = Jankowiak et al. 2020."""
import itertools
import math

import numpy as np

import pacgp_ref as R
import predictive as J
from beyond import networks

from figures_of.imitations import (CITIES, boston_like, kin40k_like, motorcycle_like, taxi_like,
                                   uneven_noise)
from figures_of.published import beside, dot_table, ours_and_theirs, published
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


def score_notes(rows, score, paper):
    """What the rows say about the paper's statements on one score, counted from them."""
    sets = list(dict.fromkeys(row["data"] for row in rows))
    methods = dict.fromkeys(row["method"] for row in rows)
    at = {m: col(where(rows, method=m), score) for m in methods}
    if score == "noise fraction":
        means = ", ".join(f"{m} {v.mean():.2f}" for m, v in at.items())
        return [f"Mean over the data sets: {means}. The paper: noise dominates the baselines' "
                "variance, function uncertainty that of VFITC and PPGPR; it prints no numbers."]
    mfd = at["PPGPR-MFD"]
    sparse = [m for m in at if m != "exact"]
    best = [min(sparse, key=lambda m: at[m][k]) for k in range(len(sets))]
    best = ", ".join(f"{m} ({WORDS.get(name, name)})" for m, name in zip(best, sets))
    wins = {m: f"{np.sum(mfd < at[m])} of {len(sets)} data sets" for m in ("SVGP", "OD-SVGP")}
    said = {"NLL": " (the paper, twelve sets: about 0.35)",
            "RMSE": " (the paper: MFD has the best average rank, 2.12)"}
    notes = [f"Lowest {score}, exact GP apart: {best}.",
             f"{score} of PPGPR-MFD is below SVGP's on {wins['SVGP']}, below OD-SVGP's on "
             f"{wins['OD-SVGP']}; OD-SVGP's minus PPGPR-MFD's: {np.mean(at['OD-SVGP'] - mfd):.2f} "
             f"on average{said.get(score, '')}."]
    if "PPGPR-Chol" in at:
        steps = np.diff([at[m] for m in ("PPGPR-delta", "PPGPR-MF", "PPGPR-Chol")], axis=0)
        notes.append(f"{score} falls in {np.sum(steps < 0)} of the {steps.size} steps delta -> MF "
                     "-> Chol (the paper: NLL tends to fall, RMSE to rise); Chol's is above MFD's "
                     f"on {np.sum(at['PPGPR-Chol'] > mfd)} of {len(sets)}.")
    pairs = []
    for k, name in enumerate(sets):
        theirs = {m: col([paper[name, m]], score)[0] for m in sparse if (name, m) in paper}
        for m, n in itertools.combinations(theirs, 2):
            if theirs[m] != theirs[n]:
                pairs.append((at[m][k] - at[n][k]) * (theirs[m] - theirs[n]) > 0)
    if pairs:
        notes.append(f"{score}: {sum(pairs)} of {len(pairs)} pairs of methods, exact GP apart, "
                     "stand in the paper's order.")
    return notes


def share_panel(ax, rows):
    """The methods below one another on one data set: shares of noise."""
    for k, row in enumerate(rows):
        dot(ax, row, "noise fraction", -k, row["method"])
    name = rows[0]["data"]
    ax.set(title=WORDS.get(name, name), xlabel=WORDS["noise fraction"], xlim=(-0.03, 1.03))


def score_panel(ax, rows, paper, score):
    """The same of a score: differences from SVGP on the same splits, the paper's hollow."""
    name = rows[0]["data"]
    svgp = where(rows, method="SVGP")[0][score][0]
    for k, row in enumerate(rows):
        dot(ax, row, f"{score} - SVGP's", -k, row["method"])
        theirs = paper.get((name, row["method"]), {})
        if score in theirs:
            gap = col([theirs], score)[0] - col([paper[name, "SVGP"]], score)[0]
            dot(ax, {"": gap}, "", -k - 0.35, row["method"], mfc="white")
    ax.set(title=f"{WORDS.get(name, name)}: SVGP's is {svgp:.3f}",
           xlabel=f"{WORDS[score]}, minus SVGP's")


def score_figure(run, splits, score, methods):
    """Figures 2-4 and 6-9: one score, a panel per data set."""
    rows = score_rows(run, splits, methods, (score,))
    paper = published(run, "J_table3", "data", "method")
    sets = list(dict.fromkeys(row["data"] for row in rows))
    picture, axes = panels(1, len(sets), 10.3, 1.3 + 0.24 * len(methods), sharey=True)
    share = score == "noise fraction"
    for ax, name in zip(axes[0], sets):
        part = where(rows, data=name)
        if share:
            share_panel(ax, part)
        else:
            score_panel(ax, part, paper, score)
        ax.axvline(0, color="0.4", lw=1)
        ax.set_ylim(-len(part) + 0.3, 0.5)
        ax.locator_params(axis="x", nbins=5)            # labels that do not touch
    axes[0, 0].set_yticks(-np.arange(len(methods)), methods)
    if paper and not share:
        ours_and_theirs(picture)
    return picture, beside(rows, paper, "data", "method")[0], score_notes(rows, score, paper)


@figure(*J_FILES, **J_SPLITS)
def J_fig2(run, splits):
    """PPGPR states far better densities than SVGP: test NLL of all methods, minus SVGP's."""
    return score_figure(run, splits, "NLL", (*COMPARED, "exact"))


@figure(*J_FILES, **J_SPLITS)
def J_fig3(run, splits):
    """Test RMSE of the methods, minus SVGP's on the same splits."""
    return score_figure(run, splits, "RMSE", (*COMPARED, "exact"))


@figure(*J_FILES, **J_SPLITS)
def J_fig4(run, splits):
    """Share of the predictive variance that is noise, of each method."""
    return score_figure(run, splits, "noise fraction", (*COMPARED, "exact"))


@figure(*J_FILES, **J_SPLITS)
def J_fig6(run, splits):
    """Test NLL of all methods and variants, minus SVGP's on the same splits."""
    return score_figure(run, splits, "NLL", ALL_TEN)


@figure(*J_FILES, **J_SPLITS)
def J_fig7(run, splits):
    """Test RMSE of all methods and variants, minus SVGP's on the same splits."""
    return score_figure(run, splits, "RMSE", ALL_TEN)


@figure(*J_FILES, **J_SPLITS)
def J_fig8(run, splits):
    """Share of the predictive variance that is noise, of all methods and variants."""
    return score_figure(run, splits, "noise fraction", ALL_TEN)


@figure(*J_FILES, **J_SPLITS)
def J_fig9(run, splits):
    """Test CRPS of all methods and variants, minus SVGP's on the same splits."""
    return score_figure(run, splits, "CRPS", ALL_TEN)


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
    rows, _ = beside(rows, published(run, table, "method"), "method")
    return dot_table(run, rows, SCORES[:3], "method"), rows, [
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
    paper = published(run, "J_table3", "data", "method")
    notes = [note for score in SCORES for note in score_notes(rows, score, paper)]
    if run.real:
        methods = ("SVGP", "PPGPR-MFD", "exact")
        rows += score_rows(run, splits, methods, SCORES, ["bike, 15 inputs"])
    rows, _ = beside(rows, paper, "data", "method")
    return dot_table(run, rows, SCORES[:3], "data", "method"), rows, notes


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
    ax.set(xlabel="time [ms]", ylabel="acceleration [g]", xlim=grid[[0, -1], 0])
    ax.set_title(f"{method}: $\\sigma_k={sigma_k:.0f}$ g, $\\sigma_{{obs}}={sigma_obs:.1f}$ g, "
                 f"noise {noise:.0%} of the variance, NLL {nll:.2f}")
    ax.margins(y=0.1)
    return {"method": method, "sigma_k [g]": sigma_k, "sigma_obs [g]": sigma_obs,
            "noise fraction": noise,
            "largest/smallest sd": math.sqrt(var_x.max() / var_x.min()),
            "NLL": nll, "RMSE [g]": J.rmse(standard(y), mean_x) * unit}


@figure("motorcycle.csv", M=20, epochs=(30, 1500, 10_000))
def J_fig1(run, M, epochs):
    """PPGPR follows noise that varies with its function uncertainty; SVGP can only call all of it
    noise."""
    if run.real:
        x, y = np.split(run.tables["motorcycle.csv"], 2, axis=1)
    else:
        x, y = motorcycle_like(run.rng)
    picture, axes = panels(2, 1, 7.2, 6.6, sharex=True, sharey=True)
    rows = [motorcycle_panel(ax, run, x, np.ravel(y), method, M, epochs)
            for ax, method in zip(axes[:, 0], ("SVGP", "PPGPR-Chol"))]
    below(picture, axes[0, 0], 5)
    k, share, ratio = (col(rows, name) for name in ("sigma_k [g]", "noise fraction",
                                                    "largest/smallest sd"))
    shows = "shows" if share[0] > 0.5 > share[1] and ratio[1] > 2 * ratio[0] else "does NOT show"
    smaller = "smaller" if k[0] < k[1] else "NOT smaller"
    return picture, rows, [
        f"The paper's point {shows}: most of SVGP's variance is noise (> 50 %), PPGPR's is not, "
        "and varies more (> x 2).",
        f"SVGP's sigma_k is {smaller} than PPGPR's; the paper: smaller."]


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
    """PPGPR with a network in front is calibrated better than SVGP with one, no worse than MC
    dropout: CDF of z-scores."""
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
    closer = lambda a, b: f"{a} than {b} in {np.sum(D[a] < D[b])}"
    return picture, rows, [
        f"Closer to ideal, of 3 cities: {closer('PPGPR+DKL', 'SVGP+DKL')}, "
        f"{closer('PPGPR+DKL', 'MC dropout')}, {closer('MC dropout', 'SVGP+DKL')}. The paper: "
        "PPGPR+DKL best overall, MC dropout better than SVGP+DKL or like it."]


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


@figure(noise=0.05, epochs=(10, 1000, 10_000), starts=[round(J.START, 3), 0.35, 0.12])
def J_fig10(run, noise, epochs, starts):
    """What exact GP, SVGP and PPGPR find of a function drawn from their prior, from the best of
    three starts: with a periodic kernel and with a Matern kernel."""
    grid = np.linspace(0, 1, 201)[:, None]
    picture, axes = panels(2, 3, 11, 5.6, sharex=True, sharey="row")
    rows = []
    found_by = {}
    for line, (kernel, (theta, end, *_)) in zip(axes, DRAWS.items()):
        K, _ = J.KERNELS[kernel](grid, grid, np.log(theta))
        f = R.cholesky(K + 1e-9 * np.eye(len(K)), "K") @ run.rng.standard_normal(len(K))
        x = grid[::2][grid[::2, 0] <= end]
        y = f[:2 * len(x):2] + noise * run.rng.standard_normal(len(x))
        asked = grid[:, 0] > end % 1                    # RMSE beyond end; everywhere if end is 1
        found_by[kernel] = []
        for ax, method in zip(line, ("exact", "SVGP", "PPGPR-Chol")):
            fits = [draw_fit(run, kernel, method, start, x, y, grid, epochs) for start in starts]
            for row, mean, _ in fits:
                row["RMSE"] = J.rmse(f[asked], mean[asked])
                rows.append(row)
            row, mean, var = min(fits, key=lambda fit: fit[0]["objective"])
            if row["RMSE"] < 0.2:
                found_by[kernel].append(method)
            draw_gp(ax, grid, mean, var, BLUE, "$y$")
            ax.plot(grid, f, color=BLACK, ls="--", lw=1, label="the function drawn")
            ax.plot(x, y, ".", color=RED, ms=3, label="training data")
            ax.axvspan(end, 1, color="0.93", zorder=0, label="no training data")
            found = f"$l={row['l']:.3f}$ (of 0.1)"
            if row["period"]:
                found = f"period {row['period']:.3f} (of 0.2)"
            ax.set(xlim=(0, 1), title=f"{method}: {found}, from {row['start']:g}", xlabel="$x$",
                   ylabel=WORDS[kernel])
    below(picture, axes[0, 0], 5)
    notes = []
    for start in starts:
        near = {kernel: sum(row["RMSE"] < 0.2 for row in where(rows, kernel=kernel, start=start))
                for kernel in DRAWS}
        notes.append(f"RMSE below 0.2 from {start:g}: periodic {near['periodic']} of 3, Matern "
                     f"{near['Matern52']} of 3.")
    for kernel, methods in found_by.items():
        notes.append(f"RMSE below 0.2 from the start of the lowest objective, {kernel}: "
                     f"{', '.join(methods) or 'none'}.")
    return picture, rows, [*notes, "The paper: all three extrapolate. The period is a hard search: "
                           "which optimum is found depends on the draw, and on rounding."]
