"""The figures and tables of J = Jankowiak et al. 2020.

`run` is a figures.Run. It has the size (quick, default or full), the seed, the tables of --data, a
random generator and a line of progress. `ax` is a matplotlib axes. `J.` is predictive.py; methods
are named as there, such as "PPGPR-MFD". SCORES are the NLL, RMSE and CRPS of predictions, and the
share of noise in their variance. A row is a dict: column -> entry. An entry is a number, a pair
(mean, standard error), or a text.
"""
import itertools
import math
from functools import partial

import numpy as np

import pacgp_ref as R
import predictive as J

from figures_of import networks
from figures_of.authors import library_kernel, scales_of, whitened
from figures_of.imitations import (CITIES, boston_like, kin40k_like, snelson_like, taxi_like,
                                   uneven_noise)
from figures_of.published import beside, printed, published
from figures_of.shared import (BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, SKY, band, bars, below,
                               called, col, curve, data_set, draw_gp, draw_inducing, experiment,
                               figure, line, look, mean_se, panels, plus_minus, standard, where)

SCORES = ("NLL", "RMSE", "CRPS", "noise fraction")
J_SIZES = dict(         # of a training
    N=(100, 1000, 10_000, "all", "all"), M=(5, 40, 1000, 100), batch=(75, 100, 1000, 1000))
COMPARED = (            # J Table 1, Fig. 2-4; PPGPR there is MFD
    "MAP", "gamma-robust", "SVGP", "OD-SVGP", "VFITC", "PPGPR-MFD")
VARIANTS = (            # J Table 2
    "MAP", "SVGP", "PPGPR-delta", "PPGPR-MF", "PPGPR-Chol", "PPGPR-MFD")
ALL_TEN = ("MAP", "SVGP", "gamma-robust", "OD-SVGP", "VFITC", "PPGPR-delta", "PPGPR-MF",
           "PPGPR-Chol", "PPGPR-MFD", "exact")
J_SETS = ("pol", "bike", "kin40k")
AT_FULL = ("elevators", "protein")
J_FILES = tuple(f"{name}.csv.gz" for name in J_SETS)
J_SPLITS = dict(at_full=tuple(f"{name}.csv.gz" for name in AT_FULL), splits=(2, 3, 10, 1))
# whether the validation rows choose beta_reg and gamma; with --data only J_table3 does both
COMPARISON = J_SPLITS | dict(validate=(False, False, True, False, False))
GENERATED = {
    "uneven_noise": uneven_noise, "boston_like": boston_like,
    "kin40k_like": lambda rng, N: kin40k_like(rng, N, 0.05)}


def series_panel(ax, run, x, y, method, M, epochs):
    """Draws a panel of Fig. 1: data, mean, and bands of +- 2 standard deviations of f and of y.

        x, y        (N, 1), (N,): the standardised data
        method, M   "SVGP" or "PPGPR-Chol", trained here with M inducing inputs
        epochs      how many epochs of training
    Returns the method's row of the figure's table. It has the method, two standard deviations
    (sigma_k of the kernel, sigma_obs of the noise), the NLL of the data, and the share of noise in
    the predictive variance, a mean over the data.
    """
    fit = J.fit(x, y, method, M, beta_reg=1.0, epochs=epochs, seed=run.seed,
                callback=run.progress(f"{method}: epoch"))
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


@figure("SVGP and PPGPR on a series of uneven noise: the mean, and +- 2 standard deviations of f "
        "and of y; share of noise: mean over the rows; NLL: of these rows, which train.",
        "motorcycle.csv", M=20, epochs=(30, 1500, 10_000))
def J_fig1(run, M, epochs):
    x, y = map(standard, line(run, "motorcycle.csv", partial(snelson_like, uneven=True)))
    picture, axes = panels(2, 1, 7.2, 6.6, sharex=True, sharey=True)
    rows = [series_panel(ax, run, x, y, method, M, epochs)
            for ax, method in zip(axes, ("SVGP", "PPGPR-Chol"))]
    below(axes[0], 5)
    noise = col(rows, "noise fraction")
    return picture, rows, [
        f"On average over rows noise is {noise[0]:.2f} of SVGP's predictive variance and "
        f"{noise[1]:.2f} of PPGPR-Chol's."]


def sets_of(run):
    """Returns the names of the data sets that J's methods are compared on.

    With --data they are three real sets, and at full size two more. Without, they are generated.
    """
    if run.real:
        return J_SETS + AT_FULL * (run.size == "full")
    return tuple(GENERATED)


@experiment("The SCORES of a method on the test and the validation rows of a split, which all "
            "methods share; J App. C.1.",
            needs="0.4 GB and a core, for pol, elevators and bike 30 to 50 minutes, for kin40k and "
            "protein 70 to 120",
            **J_SIZES, epochs=(3, 30, 400, 60), lr=(0.05, 0.1, 0.01, 0.03),
            exact_rows=(50, 400, 4000, 1000))
def score_run(run, data, method, split, beta_reg, gamma=1.03, *, N, exact_rows, **settings):
    X, y, (a, test, validation) = split_of(run, data, split, N)
    settings["callback"] = run.progress(f"{data}, split {split + 1}, {method}: epoch")
    if method == "exact":
        a = a[:exact_rows]
        settings["epochs"] *= 2
    fit = J.fit(X[a], y[a], method, beta_reg=beta_reg, gamma=gamma, seed=split, **settings)
    return {part: scores_at(fit.predictor, X[b], y[b])
            for part, b in (("test", test), ("validation", validation))}


EXAMPLE = dict(
    needs="0.4 GB and a core, for pol, elevators and bike 15 to 25 minutes, for kin40k and protein "
    "35 to 70",
    **J_SIZES, epochs=(3, 30, 200, 60), lr=0.01, milestones=[0.1, 0.75])


@experiment("as score_run, but trained as in GPyTorch's example of deep sigma point processes, a "
            "later model of the paper's authors: inputs scaled to [-1, 1], S' = I at the start, "
            "Adam moves softplus^-1 of lengthscales and variances, its rate falls tenfold after 20 "
            "and 150 of 200 epochs. The example has 200 epochs more, at rates of 1e-4 and 1e-5.",
            **EXAMPLE)
def example_run(run, data, method, split, beta_reg, gamma=1.03, *, N, M, by_values=False,
                kernel=J.matern52, **plan):
    X, y, (a, test, validation) = split_of(run, data, split, N)
    low, high = X.min(0), X.max(0)
    X = 2 * (X - low) / np.where(high > low, high - low, 1.0) - 1
    rng = np.random.default_rng(split)
    raw = J.initial_parameters(X[a], method, M, rng=rng)
    raw |= {name: np.zeros_like(raw[name]) for name in ("ln_theta", "ln_noise")}
    if "L_S" in raw and raw["L_S"].ndim == 1:
        raw["L_S"] = np.ones_like(raw["L_S"])
    data_fit = partial(J.gamma_fit, gamma=gamma) if method == "gamma-robust" else None

    def params_of(raw):
        p, slopes = scales_of(raw)
        p, whitened_back = whitened(p, kernel) if by_values else (p, lambda grads: grads)
        return p, whitened_back, slopes

    def at_rows(raw, rows):
        p, whitened_back, slopes = params_of(raw)
        value, back = J.objective(p, X[a[rows]], y[a[rows]], len(a), method, beta_reg, kernel,
                                  data_fit)
        grads = whitened_back(back(1.0))
        return value, grads | {name: grads[name] * slopes[name] for name in slopes}

    raw = networks.train(rng, raw, at_rows, len(a), plan,
                         run.progress(f"{data}, split {split + 1}, {method}: epoch"))
    predictor = J.predictor_at(params_of(raw)[0], kernel)
    return {part: scores_at(predictor, X[b], y[b])
            for part, b in (("test", test), ("validation", validation))}


@experiment("as example_run, of PPGPR-MFD, but Adam moves m of J (24), the values of the mean at "
            "its inducing inputs, where J App. E has m' = L^-1 m; both start at 0.", **EXAMPLE)
def values_run(run, data, method, split, beta_reg, **settings):
    return example_run(run, data, method, split, beta_reg, by_values=True, **settings)


@experiment("as example_run, of PPGPR-MFD as values_run, but kernel matrices are in float32 and "
            "have a jitter of 1e-3, not 1e-8, as in GPyTorch of 2020.", **EXAMPLE)
def library_run(run, data, method, split, beta_reg, **settings):
    return example_run(run, data, method, split, beta_reg, by_values=method == "PPGPR-MFD",
                       kernel=library_kernel, **settings)


def split_of(run, data, split, N):
    """Returns X (N, d), y (N,) of a data set, and [training, test, validation] row numbers.

        data    the name of the data set
        split   the number of the split, from 0
        N       rows to generate, unless the data are real
    Training, test and validation rows are as 15 : 3 : 2, J App. C.1.
    """
    X, y = data_set(run, data, GENERATED.get(data), N, "score_table", run.size, data)
    order = run.seeded(data, split).permutation(len(y))
    return X, y, np.split(order, [len(y) * 15 // 20, len(y) * 18 // 20])


def scores_at(predictor, X, y):
    """Returns the list of the four SCORES at X (n, d), y (n,).

    The last is the mean share of noise in the predictive variance. predictor: a J.Predictor.
    """
    _, var_f = J.predict(predictor, X)
    mean, var = J.predict_y(predictor, X)
    return [J.nll(y, mean, var), J.rmse(y, mean), J.crps(y, mean, var),
            J.noise_fraction(var_f, np.exp(predictor.ln_noise))]


def weights(method, validate):
    """Returns a list of the weights to train a method with, one tuple per training.

    The tuple is (beta_reg,), the weight of the KL divergence. For "gamma-robust" it is (1, gamma):
    beta_reg = 1 and the exponent gamma of the robust loss. validate: if True, the list has all
    values that the paper tries, and validation rows choose one of them (see `scores_of`); if False,
    it has one fixed value.
    """
    if method == "gamma-robust":
        return [(1.0, gamma) for gamma in (J.GAMMAS if validate else (1.03,))]
    fixed = 0.05 if method.startswith("PPGPR") else 1.0
    return [(beta_reg,) for beta_reg in (J.BETAS.get(method, (1.0,)) if validate else (fixed,))]


def scores_of(run, data, method, split, validate, train=score_run):
    """Returns a method's SCORES on the test rows of a split, or None if too few trainings are done.

    data: the name of a data set; split: a number from 0; validate: as in `weights`; train:
    score_run, example_run, values_run or library_run. There is one training for each of the
    `weights`. Of those that have been run, the one with the lowest validation NLL counts. If there
    are several `weights`, at least two trainings must have been run.
    """
    each = [run.once(train, data, method, split, *one) for one in weights(method, validate)]
    found = [scores for scores in each if scores]
    if len(found) < min(2, len(each)):
        return None
    return min(found, key=lambda scores: scores["validation"][0])["test"]


def score_rows(run, splits, methods, scores, validate, train=score_run, of_MFD=None):
    """Returns a row per data set and method: mean scores, and mean differences from SVGP's.

        splits            how many splits of a data set
        methods           a list of names
        scores            which of SCORES to report
        validate, train   as in scores_of
        of_MFD            the train of PPGPR-MFD, unless None
    A difference is the method's score minus SVGP's on the same split. For the share of noise there
    is none. Numbers are pairs (mean, standard error over splits). A method that has not been run on
    a data set has no row there.
    """
    rows = []
    for name in sets_of(run):
        runs = {m: [scores_of(run, name, m, i, validate,
                              of_MFD if of_MFD and m == "PPGPR-MFD" else train)
                    for i in range(splits)] for m in (*methods, "SVGP")}
        for m in methods:
            there = [found for found in runs[m] if found]
            both = [np.subtract(*pair) for pair in zip(runs[m], runs["SVGP"]) if None not in pair]
            if there:
                each, gap = (dict(zip(SCORES, mean_se(values)))
                             for values in (there, both or [[math.nan] * len(SCORES)]))
                row = {"data": name, "method": m} | {s: each[s] for s in scores}
                rows.append(row | {f"{s} - SVGP's": gap[s] for s in scores
                                   if s != "noise fraction"})
    return rows


def score_lines(ax, rows, score, quantity, title):
    """Draws a mark per method and data set, the methods of a set side by side.

        rows       from `score_rows` or printed_rows
        score      a name in SCORES, for the label
        quantity   the column to draw: the score or its difference from SVGP's
        title      of the panel
    Error bars are +- one standard error.
    """
    sets = list(dict.fromkeys(row["data"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for k, method in enumerate(methods):
        part = where(rows, method=method)
        at = [sets.index(row["data"]) + 0.08 * (k - len(methods) / 2) for row in part]
        curve(ax, part, at, quantity, method, lw=1, ls="none", ms=6)
    ax.set_xticks(range(len(sets)), [called(name) for name in sets])
    ax.set(title=title, ylabel=called(score).replace(" [", quantity.removeprefix(score) + " ["))


def printed_rows(methods, score):
    """Returns rows of J Table 3 as published, each with a column added: its score minus SVGP's.

    methods: the names of the methods to return; score: the name of that score, in SCORES. Rows
    without this score are left out.
    """
    rows = [row for row in printed("J_table3", "data", "method")
            if row["method"] in methods and score in row]
    svgp = {row["data"]: col([row], score)[0] for row in where(rows, method="SVGP")}
    return [row | {f"{score} - SVGP's": col([row], score)[0] - svgp[row["data"]]} for row in rows]


def score_figure(run, splits, validate, score, methods, title):
    """Draws Figs. 2-4 and 6-9: our scores above, below them the paper's on its twelve sets.

        splits, validate, methods   as in score_rows
        score                       one of SCORES. The paper prints no numbers for the share of
                                    noise: there the lower panel is left out
        title                       a function that returns the title, given the name of the column
                                    drawn, our rows and the paper's
    Returns the picture, the rows of the table (ours, each followed by the paper's) and [title].
    """
    rows = score_rows(run, splits, methods, (score,), validate)
    theirs = printed_rows(methods, score)
    quantity = f"{score} - SVGP's" if theirs else score
    picture, _ = panels(2 if theirs else 1, 1, 8.3, 6.6 if theirs else 3.8)
    upper, lower = picture.axes[0], picture.axes[-1]
    plan = run.settings_of(score_run)
    score_lines(upper, rows, score, quantity, "ours" + ", generated data" * (not run.real)
                + f": M = {plan['M']}, {plan['epochs']} epochs")
    if theirs:
        log = score == "RMSE"                           # else 3droad dwarfs the others
        score_lines(lower, theirs, score, quantity, "the paper's Table 3: M = 1000, 400 epochs"
                    + "; logarithmic beyond 0.05" * log)
        lower.tick_params(axis="x", rotation=25)
        if log:
            ticks = -0.4, -0.2, -0.1, -0.05, 0, 0.05, 0.1, 0.2, 0.4
            lower.set_yscale("symlog", linthresh=0.05)
            lower.set_yticks(ticks, ticks)
    else:
        upper.axhline(0.5, color="0.6", label="one half")
    below(upper, 5)
    table = beside(rows, published("J_table3", "data", "method"), "data", "method")
    return picture, table, [title(quantity, rows, theirs)]


def counted(claim, pairs, column, rows, theirs):
    """Returns a title that says on how many data sets a claim holds, here and in the paper.

    The claim is a list of inequalities, lower < higher. It holds on a data set if all of them do. A
    set is tied if none of them is reversed, but at least one is an equality; the title also counts
    the tied sets. If our rows have standard errors, the title says how many of our inequalities
    (one per set and pair) hold by more than the sum of their two errors, and how many are reversed
    by more than that.
        claim    the claim in words, which the title begins with
        pairs    the inequalities, a list of (lower, higher). Each of the two is the name of a
                 method, which stands for its value in `column`, or the number 0.5
        column   the name of the column that is compared
        rows     our rows
        theirs   the paper's rows, an empty list if there are none
    Sets that lack one of the methods do not count.
    """
    names = [*itertools.chain(*pairs)]
    counts = []
    for part in (rows, theirs):
        sets = {}
        for row in part:
            at = sets.setdefault(row["data"], {0.5: (0.5, 0.0)})
            at[row["method"]] = [col([row], column, k)[0] for k in (0, 1)]
        found = [[at[m] for m in names] for at in sets.values() if at.keys() >= {*names}]
        found = np.reshape(found, (-1, len(pairs), 2, 2))   # set, pair, lower/higher, value/bar
        gap = np.diff(found[..., 0])[..., 0]
        bar = found[..., 1].sum(2)
        holds = np.sum((gap > 0).all(1))
        ties = np.sum((gap >= 0).all(1)) - holds
        text = f"{holds} of {len(gap)} sets" + f", {ties} tied" * bool(ties)
        if np.isfinite(bar).any():
            so, not_so = (np.sum(side > bar) for side in (gap, -gap))
            ways = f"for it in {so}, against it in {not_so}" if not_so else f"in {so}"
            apart = "clear of one half" if 0.5 in names else "apart"
            text += f", with bars {apart} {ways} of {gap.size} comparisons"
        counts.append(text)
    return f"{claim} on {counts[0]}" + f" (paper: {counts[1]})" * bool(theirs) + "."


MFD_BELOW_SVGP = [("PPGPR-MFD", "SVGP")]


for number, score, claim, pairs in (
        (2, "NLL", "PPGPR-MFD's NLL is below SVGP's", MFD_BELOW_SVGP),
        (3, "RMSE", "PPGPR-MFD's RMSE is below SVGP's", MFD_BELOW_SVGP),
        (4, "noise fraction", "Noise is most of SVGP's variance, not of PPGPR-MFD's,",
         [("PPGPR-MFD", 0.5), (0.5, "SVGP")]),
        (6, "NLL", "PPGPR's NLL falls from delta to MF to Chol",
         [("PPGPR-Chol", "PPGPR-MF"), ("PPGPR-MF", "PPGPR-delta")]),
        (7, "RMSE", "PPGPR's RMSE rises from delta to MF to Chol",
         [("PPGPR-delta", "PPGPR-MF"), ("PPGPR-MF", "PPGPR-Chol")]),
        (8, "noise fraction", "Every PPGPR's share of noise is below MAP's and SVGP's",
         [*itertools.product(VARIANTS[2:], VARIANTS[:2])]),
        (9, "CRPS", "PPGPR-MFD has the lowest CRPS, except for the exact GP,",
         [("PPGPR-MFD", m) for m in ALL_TEN[:8]])):
    methods = (*COMPARED, "exact") if number < 5 else ALL_TEN
    what, of = f"Test {score} of", "difference from SVGP"
    if score == "noise fraction":
        what, of = "Share of noise in the variance at test rows,", "mean"
    figure(f"{what} {len(methods)} methods; exact: the exact GP on exact_rows training rows; bars: "
           f"s.e. of the {of} over splits.", *J_FILES, name=f"J_fig{number}", **COMPARISON)(
        partial(score_figure, score=score, methods=methods,
                title=partial(counted, claim, pairs)))


@figure("PPGPR-MFD's test RMSE and NLL against beta_reg, minus those at beta_reg = 0; grey: the "
        "paper's claim.", *J_FILES,
        betas=[0.0, 0.01, 0.05, 0.2, 0.5, 1.0], **J_SPLITS)
def J_appD(run, betas, splits):
    picture, axes = panels(1, 2, 8.3, 3.6)
    rows = []
    largest = [(0.0, math.nan)] * 2
    for name, colour, marker in zip(sets_of(run), (BLUE, ORANGE, RED, GREEN, PURPLE), "os^Dv"):
        found = [[run.once(score_run, name, "PPGPR-MFD", i, beta) for beta in betas]
                 for i in range(splits)]
        found = np.array([[scores["test"][:2] for scores in one]
                          for one in found if None not in one])     # split, beta_reg, (NLL, RMSE)
        if not len(found):
            continue
        off = found - found[:, :1]
        off[..., 1] *= 100 / found[:, :1, 1]
        for k, quantity in enumerate(("NLL - that at 0 [nats]", "RMSE - that at 0 [%]")):
            means = mean_se(off[..., k])
            rows += [{"data": name, "score": quantity, "beta_reg": beta, "value": value}
                     for beta, value in zip(betas, means)]
            value, error = np.transpose(means)
            largest[k] = max(largest[k], *zip(np.abs(value), error))
            axes[k].errorbar(range(len(betas)), value, bars(error), color=colour, marker=marker,
                             capsize=2, label=called(name))
            axes[k].set(xlabel="$\\beta_{reg}$", ylabel=quantity,
                        title="bars: s.e. of the difference" * (splits > 1))
    for ax, claim in zip(axes, (0.05, 5)):
        ax.axhspan(-claim, claim, color="0.9", zorder=0, label="the paper: within this")
        ax.set_xticks(range(len(betas)), betas)
    below(axes[0], 4)
    NLL, RMSE = (plus_minus((value, error), f".{digits}f")
                 for (value, error), digits in zip(largest, (2, 1)))
    return picture, rows, [
        f"For beta_reg up to 1 the largest difference from beta_reg = 0 is {RMSE} % in RMSE "
        f"(paper: 5 %), {NLL} nats in NLL (0.05)"
        + ", on one split" * (splits == 1) + "."]


@experiment("{method: (z-scores of the test rows, NLL, RMSE)} of a city; N/4 validation rows "
            "choose tau.", N=(300, 3000, 20_000), n_test=(300, 2000, 20_000),
            hidden=([16, 4], [64, 32, 8], [256, 256, 128, 128, 64]), M=(10, 32, 1024),
            batch=(100, 100, 1000), epochs=(3, 20, 200), beta_reg=0.2, drop=0.1)
def city_run(run, city, N, n_test, beta_reg, drop, **plan):
    ends = [N, N + N // 4]
    (X, X_val, X_test), (y, y_val, y_test) = (
        np.split((data - data[:N].mean(0)) / data[:N].std(0), ends)
        for data in taxi_like(run.rng, ends[1] + n_test, city))
    say = run.progress(f"{city}: epoch")
    found = {
        "SVGP+DKL": networks.deep_gp(run.rng, X, y, "SVGP", 1.0, plan, say),
        "PPGPR+DKL": networks.deep_gp(run.rng, X, y, "PPGPR-MFD", beta_reg, plan, say),
        "MC dropout": networks.dropout_net(run.rng, X, y, X_val, y_val, drop, plan, say)}
    out = {}
    for name, predict in found.items():
        mean, var = predict(X_test)
        z = (y_test - mean) / np.sqrt(var)
        out[name] = z, J.nll(y_test, mean, var), J.rmse(y_test, mean)
    return out


@figure("Calibration of three deep models on trips in three cities: the CDF of z-scores.")
def J_fig5(run):
    grid = np.linspace(-4, 4, 401)
    picture, axes = panels(1, 3, 8.3, 3.6, sharey=True)
    rows = []
    for ax, city in zip(axes, CITIES):
        for name, (z, nll, rmse) in run.once(city_run, city).items():
            rows.append({"data": city, "method": name, "NLL": nll, "RMSE": rmse,
                         "distance from Phi": networks.kolmogorov(z)})
            ax.plot(np.sort(z), np.linspace(0, 1, len(z)), **look(name))
        ax.plot(grid, R.norm_cdf(grid), color=BLACK, lw=1, label="ideal: normal CDF")
        ax.set(title=city, xlabel="$z=(y-\\mu_f)/\\sigma$", xlim=(-4, 4), ylim=(0, 1))
        found = "".join(f"\n{row['method']}: {row['distance from Phi']:.3f}" for row in rows[-3:])
        ax.text(0.97, 0.03, f"largest distance{found}", ha="right", fontsize=8,
                transform=ax.transAxes)
    axes[0].set_ylabel("share of test rows below $z$")
    below(axes[0], 4)
    closest = [min(where(rows, data=city), key=lambda row: row["distance from Phi"])["method"]
               for city in CITIES]
    best = max(closest, key=closest.count)
    return picture, rows, [f"{best} is closest to the normal CDF in {closest.count(best)} of "
                           f"{len(CITIES)} generated cities."]


DRAWS = {               # kernel -> theta of the draw, where the data end, M, rate
    "periodic": ((1.0, 0.2, 1.0), 0.5, 25, 0.01), "Matern52": ((0.1**2, 1.0), 1.0, 40, 0.02)}
THREE = ("exact", "SVGP", "PPGPR-Chol")


@experiment("Data x, y and, on a grid, the function behind them, drawn from a GP with the "
            "kernel; J App. D.", noise=0.05)
def draw(run, kernel, i, noise):
    theta, end, *_ = DRAWS[kernel]
    grid = np.linspace(0, 1, 201)[:, None]
    K, _ = J.KERNELS[kernel](grid, grid, np.log(theta))
    f = R.cholesky(K + 1e-9 * np.eye(len(K)), "K") @ run.rng.standard_normal(len(K))
    x = grid[::2][grid[::2, 0] <= end]
    return x, f[:2 * len(x):2] + noise * run.rng.standard_normal(len(x)), grid, f


@experiment("Mean and variance of y on the grid, and a row with the RMSE to the function "
            "beyond the data, in units of its standard deviation.", epochs=(10, 1000, 1000))
def draw_fit(run, kernel, method, i, start, epochs):
    x, y, grid, f = run.once(draw, kernel, i)
    _, end, M, rate = DRAWS[kernel]
    run.tick(f"{kernel}, {method}, draw {i + 1}")
    at = {} if start == "likely period" else dict(ln_theta=J.softplus_start(J.periodic, 1))
    fit = J.fit(x, y, method, M, kernel, epochs=epochs, lr=rate, seed=run.seed, start=at)
    mean, var = J.predict_y(fit, grid)
    asked = grid[:, 0] > end % 1                        # beyond end; everywhere if end is 1
    l2, *period, _ = np.exp(fit.params["ln_theta"])
    return mean, var, {"kernel": kernel, "method": method, "start": start, "draw": i,
                       "RMSE / sd": J.rmse(f[asked], mean[asked]) / f.std(), "l": math.sqrt(l2),
                       "period": period[0] if period else None}


@figure("Exact GP, SVGP and PPGPR on functions drawn from their prior. Above: the draw with the "
        "median sum of the three RMSEs, from our start, the likeliest period of a grid; then one "
        "of another kernel. RMSE: beyond the data, of Matern everywhere; M = "
        f"{DRAWS['periodic'][2]}, of Matern {DRAWS['Matern52'][2]}. Below: the share of draws that "
        "are extrapolated, from our start and from GPyTorch's, ln 2 for all, with 68 % binomial "
        "bars (Wilson).",
        draws=(1, 2, 20), good=0.2)
def J_fig10(run, draws, good):
    picture, axes = panels(3, 3, 8.3, 7.6)
    starts = ("ln 2", "likely period")
    rows = [run.once(draw_fit, "periodic", method, i, start)[-1]
            for start in starts for method in THREE for i in range(draws)]
    spread = col(where(rows, start=starts[-1]), "RMSE / sd").reshape(3, draws).sum(0)
    typical = int(np.argsort(spread)[(draws - 1) // 2])
    for part, (kernel, (_, end, *_)) in zip(axes, DRAWS.items()):
        i = typical if kernel == "periodic" else 0
        x, y, grid, f = run.once(draw, kernel, i)
        for ax, method in zip(part, THREE):
            mean, var, row = run.once(draw_fit, kernel, method, i, starts[-1])
            rows += [row] * (kernel != "periodic")
            draw_gp(ax, grid, mean, var, BLUE, "$y$")
            ax.plot(grid, f, color=BLACK, ls="--", lw=1, label="the function drawn")
            ax.plot(x, y, ".", color=RED, ms=3, label="training data")
            ax.axvspan(end, 1, color="0.93", zorder=0, label="no training data")
            ax.set(xlim=(0, 1), ylim=(f.min() - 1, f.max() + 1), xlabel="$x$",
                   title=f"{method}: RMSE {row['RMSE / sd']:.2f} sd")
        part[0].set_ylabel(f"$y$, draw {i}, {called(kernel)}")
    below(axes[0, 0], 5)
    counts = {}
    for ax, method in zip(axes[2], THREE):
        for at, start in enumerate(starts):
            k = sum(col(where(rows, method=method, start=start, kernel="periodic"), "RMSE / sd")
                    < good)
            centre, half = (k + 0.5) / (draws + 1), math.sqrt(k * (draws - k) / draws + 0.25)
            ax.bar(at, k / draws, 0.6, color=(SKY, BLUE)[at])
            ax.errorbar(at, centre, half / (draws + 1), color=BLACK, capsize=3)
            ax.text(at - 0.28, k / draws + 0.02, k)
            counts[method, start] = k
        ax.set_xticks([0, 1], ["GPyTorch's start", "likely period"])
        ax.set(ylim=(0, 1.1), title=f"{method}, {draws} draws")
    axes[2, 0].set_ylabel(f"share with RMSE < {good:g} sd")
    few, many = ("{}, {} and {}".format(*(counts[method, start] for method in THREE))
                 for start in starts)
    return picture, rows, [
        f"The exact GP, SVGP and PPGPR-Chol extrapolate {many} of {draws} functions from likely "
        f"periods, {few} from GPyTorch's start."]


def average_ranks(scores):
    """Returns the mean rank (methods,) of each method over cases; ties share a rank.

    scores: (cases, methods); the lowest score of a case has rank 1.
    """
    below = (scores[:, None] < scores[..., None]).sum(2)
    equal = (scores[:, None] == scores[..., None]).sum(2)
    return (below + (equal + 1) / 2).mean(0)


def rank_table(run, splits, validate, table, methods):
    """Makes Tables 1 and 2: methods' average ranks in NLL, RMSE and CRPS, beside the paper's.

        splits     how many splits of each data set; a case is a data set and a split
        validate   as in scores_of
        table      "J_table1" or "J_table2"
        methods    those to rank
    Returns None (a table has no picture), the rows, and [title]. Only cases on which all methods
    have been run count; if there are none, there are no rows.
    """
    found = [[scores_of(run, name, m, i, validate) for m in methods]
             for name in sets_of(run) for i in range(splits)]
    found = np.array([case for case in found if None not in case])
    if not len(found):
        return None, [], ["No case has been run with all methods."]
    ranks = np.transpose([average_ranks(found[..., k]) for k in range(3)])
    rows = [{"method": m} | dict(zip(SCORES, rank)) for m, rank in zip(methods, ranks)]
    paper = published(table, "method")
    best = [methods[np.argmin(RMSE)]
            for RMSE in (ranks[:, 1], [float(paper[m,]["RMSE"]) for m in methods])]
    return None, beside(rows, paper, "method"), [
        f"Over {len(found)} cases {best[0]} has the best rank of RMSE, in the paper {best[1]}."]


for number, methods in ((1, COMPARED), (2, VARIANTS)):
    figure(f"Average ranks of {', '.join(methods)}; 1 is best.", *J_FILES,
           name=f"J_table{number}", **COMPARISON)(
        partial(rank_table, table=f"J_table{number}", methods=methods))


def near_paper(rows, share, nats):
    """Returns how many scores are near the published ones, and how many there are, as a text.

    A score is near if it differs by at most this share of the published one, an NLL also if it
    differs by at most so many nats. Of rows with the same data and method the last counts.
    """
    theirs = published("J_table3", "data", "method")
    ours = {(row["data"], row["method"]): row for row in rows}
    pairs = [(score, *(col([one], score)[0] for one in (ours[key], theirs[key])))
             for key in ours if key in theirs for score in SCORES[:3]]
    near = [abs(a - b) <= max(share * abs(b), nats * (score == "NLL")) for score, a, b in pairs]
    return f"{sum(near)} of {len(near)} within {100 * share:g} % or {nats:g} nats"


@figure("All scores of all methods, and what they are minus SVGP's on the same splits. At full "
        "size with two ways of training, the example's (example_run, of PPGPR-MFD values_run; "
        "whitened: example_run of PPGPR-MFD; float32: library_run) and that of fit (score_run), "
        "and also with the beta_reg, of two or more that have been run, whose validation NLL is "
        "lowest.",
        *J_FILES, **COMPARISON)
def J_table3(run, splits, validate):
    rows, notes = score_rows(run, splits, ALL_TEN, SCORES, validate), []
    counts = rows
    if run.size == "full" and not validate:
        ways = {way: [dict(data=None, method=None, training=way, beta_reg=choice) | row
                      for choice, chosen in (("fixed", methods),
                                             ("validation", [*J.BETAS, "gamma-robust"]))
                      for row in score_rows(run, splits, [m for m in methods if m in chosen],
                                            SCORES, choice == "validation", *trains)]
                for way, methods, *trains in (
                    ("example", ALL_TEN[:-1], example_run, values_run),
                    ("whitened", ["PPGPR-MFD"], example_run),
                    ("float32", ["VFITC", "PPGPR-MFD"], library_run),
                    ("fit", ALL_TEN, score_run))}
        notes = [f'Scores near the paper\'s, training "{way}": {near_paper(found, 0.05, 0.05)}, '
                 f"{near_paper(found, 0.1, 0.12)}; beta_reg by validation where that is shown."
                 for way, found in ways.items()]
        counts = where(ways["example"], beta_reg="fixed")
        rows = sorted(itertools.chain(*ways.values()),
                      key=lambda row: sets_of(run).index(row["data"]))
    title = counted("PPGPR-MFD's NLL is below SVGP's", MFD_BELOW_SVGP, "NLL - SVGP's", counts,
                    printed_rows(ALL_TEN, "NLL"))
    table = beside(rows, published("J_table3", "data", "method"), "data", "method")
    return None, table, [title, *notes]
