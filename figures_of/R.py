"""The figures and tables of R = Reeb et al. 2018.

`run` is a figures.Run. It has the size (quick, default or full), the seed, the tables of --data, a
random generator and a line of progress. `ax` is a matplotlib axes. A row is a dict: column ->
entry. An entry is a number, a pair (mean, standard error), or a text. Methods are keys of
pacgp_ref.METHODS, such as "kl-PAC-SGP".
"""
import itertools
import math

import numpy as np

import pacgp_ref as R
import predictive as J

from figures_of.authors import authors_fit
from figures_of.imitations import boston_like, kin40k_like, sample_ard, snelson_like
from figures_of.published import agreement, beside, in_words, printed, published
from figures_of.shared import (BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, RING, SKY, at_most,
                               average, band, below, called, col, curve, data_set, draw_gp,
                               draw_inducing, experiment, figure, line, look, panels, rings, train,
                               train_test, where)

SHOWN = ("B", "R_S train", "R_S test", "MSE", "KL/N")


def measure(fit, X, y):
    """Returns the measures of a Fit that R's tables print, as a dict.

    Two are bounds on the risk: B, R (5), and the looser B_Pin, which R gives below (5). Two are
    risks: on the training data, of the loss that trained the GP; on the test data, always of the
    0-1 loss. The others are test MSE, KL/N, sigma_n^2, and how many evaluations the training took.
    fit: a pacgp_ref.Fit; X (n, d), y (n,): test data.
    """
    mean, var = R.predict(fit, X)
    return {"B": fit.bound, "B_Pin": fit.pinsker, "R_S train": fit.R_S,
            "R_S test": R.gibbs_risk(y, mean, var, fit.eps), "MSE": np.mean((mean - y) ** 2),
            "KL/N": fit.KL / fit.N, "sigma_n^2": math.exp(fit.ln_noise),
            "evaluations": fit.optimum.n_evals}


@experiment("x (N, 1), y (N,) of the one-dimensional set, in its own units, and the full GP that "
            "sets the scale of eps.")
def line_data(run):
    x, y = line(run, "snelson.csv", snelson_like)
    return x, y, train(run, "1-D", x, y, "full-GP")


@experiment("Fits from several k-means starts of the inducing inputs, the best first, and its "
            "start; eps = times sigma_n.", starts=(2, 5, 20, 20), max_evals=(40, 400, 2000), M=15)
def best_start(run, method, times, starts, max_evals, M):
    x, y, gp = run.once(line_data)
    eps = times * math.exp(gp.ln_noise / 2)
    Zs = [R.kmeans(x, M, run.rng) for _ in range(starts)]
    fits = [train(run, "1-D", x, y, method, Z=Z, eps=eps, max_evals=max_evals) for Z in Zs]
    order = sorted(range(starts), key=lambda i: fits[i].optimum.f)
    return [fits[i] for i in order], Zs[order[0]]


@experiment("kl-PAC-SGP trained as by the authors' code, from the start it draws; eps = "
            "times sigma_n.",
            max_evals=1000, memory=10, ftol=1e-8, M=15)
def authors_line(run, times, M, **search):
    x, y, gp = run.once(line_data)
    fit = authors_fit(run, "1-D", x, y, M, "kl-PAC-SGP", False, **search,
                      eps=times * math.exp(gp.ln_noise / 2))
    return {"KL/N, the authors' way": fit.KL / fit.N, "B, the authors' way": fit.bound}


def line_panel(ax, run, method, times):
    """Draws a panel of Figs. 1 and 6: data, full GP (red lines), sparse GP (blue), tolerance.

    method: that of the sparse GP; times: eps/sigma_n, with sigma_n of the full GP. The tolerance is
    the band mean +- eps, drawn for PAC methods only. Crosses are the inducing inputs before
    training (top) and after it (bottom). Returns two things: the panel's row of the table, and the
    sparse GP's mean on a grid over the range of the data.
    """
    x, y, gp = run.once(line_data)
    fits, Z0 = run.once(best_start, method, times)
    fit = fits[0]
    grid = np.linspace(x.min() - 0.9, x.max() + 0.9, 300)[:, None]
    inside = (grid[:, 0] >= x.min()) & (grid[:, 0] <= x.max())
    full_mean, var = R.predict(gp, grid)
    draw_gp(ax, grid, full_mean, var + math.exp(gp.ln_noise), RED, "full GP, with noise",
            filled=False)
    mean, var = R.predict(fit, grid)
    row = {"method": method, "eps/sigma_n": times, "KL/N": fit.KL / fit.N,
           "from full GP": J.rmse(full_mean[inside], mean[inside])}
    title = f"{method}: noise in its band"
    if "PAC" in method:
        draw_gp(ax, grid, mean, var, BLUE, "sparse GP, without noise")
        band(ax, grid, mean - fit.eps, mean + fit.eps, GREEN, 0.2, "mean $\\pm\\varepsilon$")
        simplest = min(fits, key=lambda one: one.KL)
        row |= {"B of a draw": fit.bound, "B of the mean": R.bayes_risk_bound(fit.bound),
                "least KL/N of a start": simplest.KL / fit.N, "its B": simplest.bound}
        title = (f"{method}, $\\varepsilon={times:g}\\,\\sigma_n={fit.eps:.2f}$\n"
                 f"KL/N {row['KL/N']:.3f}, a draw misses $\\leq$ {at_most(fit.bound)}")
    else:
        draw_gp(ax, grid, mean, var + math.exp(fit.ln_noise), BLUE, "sparse GP")
    ax.plot(x, y, "k.", ms=3, label="data")
    draw_inducing(ax, Z0, "inducing inputs before training", "x", 0.957, ms=5)
    draw_inducing(ax, fit.Z, "and after", "x", 0.043, ms=5, color=BLUE)
    ax.set(ylim=(-3.7, 3.2), xlim=grid[[0, -1], 0], xlabel="input $x$", title=title)
    return row, mean[inside]


def line_figure(run, panels_of, shape):
    """Draws Figs. 1 and 6: a panel per pair (method, eps/sigma_n) in the list panels_of.

    shape: how many rows and columns of panels. Returns the picture, a tuple of the panels' rows of
    the table, and a tuple of their sparse GPs' means on a grid, both as from `line_panel`.
    """
    picture, axes = panels(*shape, 8.3, 1 + 2.9 * shape[0], sharex=True, sharey=True,
                           squeeze=False)
    rows, means = zip(*(line_panel(ax, run, *one) for ax, one in zip(axes.flat, panels_of)))
    for ax in axes[:, 0]:
        ax.set_ylabel("target $y$")
    below(axes[0, 0], 3)
    return picture, rows, means


@figure("kl-PAC-SGP at three tolerances eps, beside the full GP: mean and +- 2 standard "
        "deviations.",
        "snelson.csv", times=[0.5, 2.0, 5.0])
def R_fig1(run, times):
    picture, rows, _ = line_figure(run, [("kl-PAC-SGP", t) for t in times], (1, 3))
    KLs = col(rows, "KL/N")
    three = lambda KLs: ", ".join(map("{:.3f}".format, KLs))
    title = f"The GP is nearest its prior at eps = {times[KLs.argmin()]:g} sigma_n: KL/N is "
    title += three(KLs)
    if run.real:
        rows = [row | run.once(authors_line, t) for row, t in zip(rows, times)]
        theirs = three(col(rows, "KL/N, the authors' way"))
        title += f"; trained the authors' way {theirs} (paper 0.097, 0.109, 0.031)"
    return picture, rows, [title + "."]


FULL = ("kl-PAC-GP", "sqrt-PAC-GP", "full-GP")
BOSTON = dict(splits=(2, 4, 10, 10))


@experiment("{(eps, method): measures} of a split. The full GP is trained once and certified for "
            "each eps.", N=(150, 506, 506, "all", "all"), all_eps=[0.2, 0.4, 0.6, 0.8, 1.0],
            ftol=1e-6)
def boston_split(run, i, N, all_eps, ftol):
    X, y = data_set(run, "boston", boston_like, N, "boston_study", run.size)
    a, b = train_test(len(y), i)
    gp = train(run, f"split {i + 1}", X[a], y[a], "full-GP", ftol=ftol)
    found = {}
    for eps in all_eps:
        for method in FULL:
            trained = dict(start=gp.optimum.x, max_evals=1) if method == "full-GP" else {}
            fit = train(run, f"split {i + 1}, eps {eps}", X[a], y[a], method, eps=eps, ftol=ftol,
                        **trained)
            if trained:
                fit = fit._replace(optimum=gp.optimum)
            found[f"{eps:.1f}", method] = measure(fit, X[b], y[b])
    return found


def boston_rows(run, splits):
    """Returns two lists of rows on Boston housing.

    The first has a row per eps and method: our measures, averaged over the splits. The second has
    the same rows, each followed by the paper's. splits: how many splits to average over.
    """
    found = [run.once(boston_split, i) for i in range(splits)]
    rows = [{"eps": eps, "method": method} | average([one[eps, method] for one in found])
            for eps, method in found[0]]
    return rows, beside(rows, published("R_table1", "setting", "method"), "eps", "method")


def measure_panels(axes, rows, theirs, x, methods):
    """Draws the panels of Figs. 2 and 3: in each, one of the measures SHOWN against column x.

        axes      one per measure
        rows      ours
        theirs    the paper's rows, drawn as rings
        x         the name of the column on the horizontal axis
        methods   those to draw
    The panels of the two risks have the same vertical scale.
    """
    for ax, quantity in zip(axes, SHOWN):
        for method in methods:
            curve(ax, where(rows, method=method), x, quantity, method)
            rings(ax, where(theirs, method=method), x, quantity, method)
        ax.set(ylim=(0, None), title=called(quantity))
    top = max(ax.get_ylim()[1] for ax in axes[1:3])
    for ax in axes[1:3]:
        ax.set_ylim(0, top)


@figure("Bound, risks, MSE and complexity of three full GPs against the tolerance eps; bars, of "
        "several splits: s.e. B_Pin and sigma_n^2 are in the table alone.",
        "boston.csv", **BOSTON)
def R_fig2(run, splits):
    rows, table = boston_rows(run, splits)
    theirs = [row | {"eps": row["setting"]} for row in printed("R_table1", "setting", "method")]
    picture, axes = panels(2, 3, 8.3, 5.2)
    measure_panels(axes.ravel(), rows, theirs * run.real, "eps", FULL)
    for ax in axes.flat:
        ax.set_xlabel("tolerance $\\varepsilon$ [sd of $y$]")
    corner = axes[1, 2]
    corner.axis("off")
    handles, _ = axes[0, 0].get_legend_handles_labels()
    corner.legend(handles=handles + [RING] * run.real, loc="center")
    if run.real:
        corner.set_title("in the paper one run of sqrt-PAC-GP\nat 0.2 ended in a local optimum")
        count, total, *_, others = agreement(table)
        others = [f"{method} at eps = {eps}" for eps, method in map(str.split, others)]
        return picture, table, [f"{count} of {total} published numbers of Boston are, up to "
                                "rounding, within half a standard error"
                                + f"; the other {total - count} are of {', '.join(others)}"
                                * bool(others) + "."]
    (kl, sqrt, full), MSE = ([col(where(rows, method=method), name) for method in FULL]
                             for name in ("B", "MSE"))
    return picture, table, [
        f"On {called('boston_like')} both PAC-GPs' bounds, at most "
        f"{at_most(max(abs(kl - sqrt)))} apart, are below the full GP's at "
        f"{np.sum(np.maximum(kl, sqrt) < full)} of {len(kl)} eps; their MSE is above the full GP's "
        f"at {np.sum(np.minimum(*MSE[:2]) > MSE[2])}."]


SPARSE = ("kl-PAC-SGP", "sqrt-PAC-SGP", "VFE", "FITC")
SPARSE_FILES = ("pol.csv.gz", "sarcos_test.csv.gz", "kin40k.csv.gz")
ARD = {                 # what R Fig. 3 and Table 3 use
    "pol": "ARD", "sarcos": "-", "kin40k": "ARD", "kin40k_like": "ARD"}
SPARSE_STUDY = dict(
    Ms=([5, 10], [10, 20, 40, 80], [100, 200, 300, 400, 500], [25, 50, 100]), splits=(2, 3, 1, 2))


@experiment("measures of one method on split i of a data set: R Sec. 4(c). The test risk is the "
            "0-1 risk.",
            needs="0.4 GB and a core, at M = 500 some hundred evaluations of 2 (pol) to 5 s",
            N=(400, 1000, 40000, "all", "all"), eps=0.6, max_evals=(15, 60, 3000, 100), ftol=1e-7)
def sparse_run(run, data, M, method, ard, loss, split, N, **settings):
    X, y = data_set(run, data, kin40k_like, N, "sparse_table", run.size, data)
    a, b = train_test(len(y), split)
    grid = R.GRID if data == "sarcos" else (12.0, 1200)
    fit = train(run, f"{data}, M = {M}, split {split + 1}", X[a], y[a], method, M, loss=loss,
                ard=ard == "ARD", grid=grid, start={}, seed=split, **settings)
    return measure(fit, X[b], y[b])


def sparse_sets(run):
    """The names of the data sets that R's sparse GPs are trained on."""
    return ("pol", "sarcos", "kin40k") if run.real else ("kin40k_like",)


def sparse_rows(run, splits, Ms, ards=None, loss="01", methods=SPARSE, trained=sparse_run):
    """Returns a row per data set, M, lengthscales and method: measures averaged over splits.

        splits    how many splits of a data set
        Ms        list of numbers of inducing inputs
        ards      a list of "ARD" (one lengthscale per input), "-" (a single one) or both; None:
                  the one that the paper uses for the data set
        loss      the loss that trains, a key of pacgp_ref.LOSSES
        methods   those to train
        trained   the experiment that trains: sparse_run, or another with the same arguments
    Measures are pairs (mean, standard error), counts of evaluations a mean alone. Trainings not yet
    run are left out.
    """
    rows = []
    for name in sparse_sets(run):
        for M, ard, method in itertools.product(Ms, ards or [ARD[name]], methods):
            each = [run.once(trained, name, M, method, ard, loss, i) for i in range(splits)]
            each = [found for found in each if found]
            if each:
                about = {"data": name, "M": str(M), "method": method, "ARD": ard}
                rows.append(about | average(each))
    return rows


@figure("Bound, risks, MSE and complexity of three sparse GPs with ARD against the number of "
        "inducing inputs; bars, none for one split: s.e. over splits.", *SPARSE_FILES,
        **SPARSE_STUDY,
        of_data=" On sarcos without ARD; the paper's sarcos marks are of the whole set.")
def R_fig3(run, Ms, splits):
    methods = ("kl-PAC-SGP", "VFE", "FITC")
    rows = sparse_rows(run, splits, Ms, methods=methods)
    theirs = [row | {"M": "500"} for row in printed("R_table2", "data", "method", "setting")
              if row["setting"] == ARD[row["data"]]]
    sets = sparse_sets(run)
    picture, axes = panels(len(sets), len(SHOWN), 8.3, 0.8 + 1.9 * len(sets), sharex=True,
                           squeeze=False)
    for name, part in zip(sets, axes):
        measure_panels(part, where(rows, data=name), where(theirs, data=name), "M", methods)
        part[0].set(ylabel=called(name), xticks=Ms[::3])
        part[0].set_xticks(Ms, minor=True)
    for ax in axes[-1]:
        ax.set_xlabel("inducing inputs $M$")
    below(axes[0, 0], 4, *[RING] * run.real)
    most = run.settings_of(sparse_run)["max_evals"]
    early = [f" {row['method']} on {row['data']} at M = {row['M']} ended after "
             f"{row['evaluations']} evaluations." for row in rows if 2 * row["evaluations"] < most]
    cut = np.sum(col(rows, "evaluations") == most)
    return picture, rows, [ratios(where(rows, M=str(Ms[-1])), Ms[-1]) + "".join(early)
                           + f" In {cut} of {len(rows)} cases training was cut at {most} "
                           "evaluations." * bool(cut)]


@figure("The inverse binary KL divergence: the largest p with kl(q, p) <= eps.", drawn=False,
        all_eps=[0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0])
def R_fig4(run, all_eps):
    picture, ax = panels(1, 1, 5.6, 4)
    grid = np.linspace(0, 1, 401)
    rows = []
    colours = (BLACK, BLUE, SKY, GREEN, ORANGE, RED, PURPLE)
    for eps, colour, ls in zip(all_eps, colours, ("-", "--", "-.", ":", "-", "--", "-.")):
        ax.plot(grid, R.kl_inv(grid, eps), color=colour, ls=ls, label=f"$\\varepsilon={eps:g}$")
        rows.append({"eps": eps} | {f"q = {q:g}": R.kl_inv(q, eps) for q in (0, 0.1, 0.5)})
    ax.set(xlabel="$q$", ylabel="$kl^{-1}(q,\\varepsilon)$", xlim=(0, 1), ylim=(0, 1.02))
    picture.legend(loc="outside right center", title="nats", reverse=True)
    return picture, rows, [f"At 0.1 nats q = 0 becomes {rows[1]['q = 0']:.3f}, q = 0.1 becomes "
                           f"{rows[1]['q = 0.1']:.3f}."]


@figure("Bounded losses of a regression against the deviation.", drawn=False, eps=1.0)
def R_fig5(run, eps):
    picture, ax = panels(1, 1, 6, 3.6)
    grid = np.linspace(-2.5, 2.5, 1001)
    rows = []
    for label, loss, colour, ls in (
            ("$\\ell_1$ (0-1), Eq. (18)", R.loss_01, BLUE, "-"),
            ("$\\ell_2$, Eq. (19)", R.loss_clipped_square, RED, "--"),
            ("$\\ell_{exp}$, Eq. (20)", R.loss_exp, ORANGE, "-.")):
        ax.plot(grid, loss(0.0, grid, eps), color=colour, ls=ls, label=label)
        rows.append({"loss": loss.__name__} | {f"at {at:g} eps": loss(0.0, at * eps, eps)
                                               for at in (0.5, 1.0, 2.0)})
    ax.set(xlabel="deviation $\\hat y-y$ [units of $\\varepsilon$]", ylabel="loss",
           ylim=(-0.03, 1.05))
    below(ax, 3)
    return picture, rows, ["Only the 0-1 loss jumps at eps; the exponential loss is "
                           f"{rows[2]['at 1 eps']:.2f} there."]


@figure("kl-PAC-SGP at two tolerances, FITC and VFE, each beside the full GP: mean and +- 2 "
        "standard deviations. Distances are root mean squares where data are.", "snelson.csv",
        runs=[("kl-PAC-SGP", 0.5), ("kl-PAC-SGP", 2.0), ("FITC", 1.0), ("VFE", 1.0)])
def R_fig6(run, runs):
    picture, rows, means = line_figure(run, runs, (2, 2))
    for row, mean in zip(rows, means):
        row["from FITC"] = J.rmse(means[2], mean)
    found = {}
    for row in rows[:2]:
        (near, a), (far, b) = sorted([(row["from FITC"], "FITC's"),
                                      (row["from full GP"], "the full GP's")])
        found.setdefault(f"nearer to {a} than to {b}", []).append(
            f"{near:.2f} against {far:.2f} at eps = {row['eps/sigma_n']:g} sigma_n")
    each = [f"{claim}: {', '.join(at)}" for claim, at in found.items()]
    return picture, rows, [f"kl-PAC-SGP's mean is {'; '.join(each)}."]


PRINTED_EPS = 0.6


@experiment("A row for each random start of sigma_n^2 and Z; every second point in the file's "
            "order; R App. E.", starts=(6, 16, 100, 100), max_evals=(60, 800, 4000, 2000),
            ftol=1e-8, M=8)
def restarts(run, method, eps=PRINTED_EPS, *, starts, M, **search):
    if run.real:
        x, y, _ = run.once(line_data)
    else:
        x, y = snelson_like(run.seeded("uneven line"), uneven=True)
    x, y = x[::2], y[::2]
    rows = []
    for i in range(starts):
        ln_noise = run.rng.uniform(math.log(1e-5), math.log(10))
        Z = x[run.rng.permutation(len(x))[:M]]
        fit = train(run, f"start {i + 1}", x, y, method, Z=Z, eps=eps,
                    start=dict(ln_noise=ln_noise), **search)
        rows.append({"learned": math.exp(fit.ln_noise), "objective": fit.optimum.f})
    return rows


OPTIMA = {              # method -> objective; the paper's best sigma_n^2
    "FITC": ("$-\\ln p$ [nats]", 1e-6), "kl-PAC-SGP": ("bound $B$", 2.1e-2)}
BOTH = [("FITC",), ("kl-PAC-SGP",)]
OTHER = ("kl-PAC-SGP", 0.12)            # gives the published values better


@figure("Local optima from many starts: a dot per start, darker where several agree, the "
        "objective over the noise variance that is learned. eps is in the unit of y.",
        "snelson.csv",
        cases=(BOTH, BOTH, BOTH, [*BOTH, OTHER], [*BOTH, OTHER]))
def R_fig7(run, cases):
    picture, axes = panels(1, len(cases), 8.3, 3.8)
    rows, finding = [], []
    for ax, case in zip(axes, cases):
        method, *eps = case
        name, paper = OPTIMA[method]
        found = run.once(restarts, *case)
        learned, value = (col(found, k) for k in ("learned", "objective"))
        noise, best = learned[value.argmin()], value.min()
        ax.plot(learned, value, "o", color=BLUE, ms=6, mew=0, alpha=0.3, label="one start")
        ax.plot(noise, best, "o", color=RED, ms=9, mfc="none", label="the best")
        if run.real:
            ax.axvline(paper, color="0.3", ls="--", label="the paper's best")
        ax.axvline(math.exp(-R.LN_BOX), color="0.6", lw=1, label="least allowed")
        at = None if method == "FITC" else (*eps, PRINTED_EPS)[0]
        elsewhere = f", at eps = {PRINTED_EPS}:" * bool(eps)
        title = f"{method}, eps = {at:g}" if at else method
        least = " (the least allowed)" * (math.log(noise) < 0.01 - R.LN_BOX)
        finding.append(f"{noise:.2g}{least} with {title}")
        near = np.sum(value < best + 1e-3 * abs(best))
        ax.set(xscale="log", xlim=(5e-8, 20), ylabel=f"objective: {name}",
               xlabel="learned noise $\\sigma_n^2$ [unit of $y^2$]",
               title=f"{title}\n{near} of {len(found)} starts reach the best,\n{noise:.2g}"
               + f" (paper{elsewhere} {paper:.2g})" * run.real)
        small = value[learned < 2e-3]
        rows.append({"method": method, "eps": at, "best sigma_n^2": noise,
                     "the paper's, on Snelson's data": paper, "best objective": best,
                     "starts within 0.1 %": near}
                    | {f"{end.__name__} objective, sigma_n^2 < 0.002": end(small, default=math.nan)
                       for end in (min, max)})
    below(axes[0], 4)
    return picture, rows, [f"The best optimum's noise variance sigma_n^2 is {'; '.join(finding)}."]


@experiment("{(L, r): measures} of a data set: trained in each box L once, the optimum then "
            "rounded to r decimals, G = 2 L 10^r.", N=(60, 300, 2000), n_test=(200, 2000, 10_000),
            boxes=[1, 2, 4, 8], decimals=[0, 1, 2, 4])
def grid_run(run, i, N, n_test, boxes, decimals):
    X, y, X_test, y_test = sample_ard(run.rng, N, n_test)

    def fit(box, r, **more):
        return train(run, f"data set {i + 1}, L = {box}", X, y, "kl-PAC-GP", ard=True, ftol=1e-6,
                     grid=(2.0 * box, 2 * box * 10**r), **more)
    widest = fit(max(boxes), 2).optimum.x
    found = {}
    for box in boxes:
        best = fit(box, 2, start=widest).optimum.x
        for r in decimals:
            f = fit(box, r, start=best, max_evals=1)
            found[box, r] = measure(f, X_test, y_test) | {
                "ln|Theta|": f.penalty, "ln|Theta|/N": f.penalty / N}
    return found


@figure("kl-PAC-GP: bound, risks and complexity, means over the same data sets at every point, "
        "against the size of the grid that theta is rounded to, r decimals in a box of +-L.",
        data_sets=(2, 8, 68))
def R_fig8(run, data_sets):
    found = [run.once(grid_run, i) for i in range(data_sets)]
    rows = [{"L": box, "r": r} | average([one[box, r] for one in found]) for box, r in found[0]]
    rows.sort(key=lambda row: row["ln|Theta|"])
    picture, ax = panels(1, 1, 6.6, 4.6)
    for name in ("B", "R_S train", "R_S test", "KL/N", "ln|Theta|/N"):
        ax.plot(col(rows, "ln|Theta|"), col(rows, name), **look(name))
    ax.axvspan(0, where(rows, r=0)[-1]["ln|Theta|"][0] + 0.5, color="0.9", zorder=0,
               label="whole numbers ($r=0$)")
    for row in rows:
        ax.annotate(row["r"], (row["ln|Theta|"][0], row["B"][0]), (2, 5), ha="center", fontsize=7,
                    textcoords="offset points")
    ax.set(xlabel="$\\ln|\\Theta|$ [nats]", ylabel="mean over data sets", xlim=(0, None),
           ylim=(0, 1.08 * max(col(rows, "B"))), title="above $B$: $r$, the decimals")
    below(ax, 3)
    fine = [row for row in rows if row["r"]]
    risk, B = (np.ptp(col(fine, name)) for name in ("R_S train", "B"))
    return picture, rows, [f"From one decimal on the training risk moves by {risk:.3f}, B by "
                           f"{B:.3f}."]


@figure("All measures of the full GPs for each tolerance eps.", "boston.csv", **BOSTON)
def R_table1(run, splits):
    rows, table = boston_rows(run, splits)
    ratio = np.divide(*(col(where(rows, method=m), "B") for m in ("full-GP", "kl-PAC-GP")))
    title = f"The full GP's bound is {min(ratio):.2f} to {max(ratio):.2f} times kl-PAC-GP's."
    return None, table, [title, *[in_words(*agreement(table))] * run.real]


def ratios(rows, M):
    """Returns a title with VFE's bound divided by kl-PAC-SGP's, on each data set.

    rows: those of `sparse_rows` at M inducing inputs.
    """
    B = {(row["data"], row["method"]): row["B"][0] for row in rows}
    each = [f"{B[name, 'VFE'] / B[name, 'kl-PAC-SGP']:.1f} on {called(name)}"
            for name in dict.fromkeys(row["data"] for row in rows)
            if {(name, "VFE"), (name, "kl-PAC-SGP")} <= {*B}]
    return f"At M = {M} VFE's bound exceeds kl-PAC-SGP's by a factor of {', '.join(each)}."


def sparse_table(rows, table):
    """Returns the rows of Table 2 or 3: ours, each followed by the paper's.

    rows: ours, from `sparse_rows`; table: "R_table2" or "R_table3".
    """
    rows = [{k: v for k, v in row.items() if k != "M"} for row in rows]
    return beside(rows, published(table, "data", "method", "setting"), "data", "method", "ARD")


@figure("All measures of the sparse GPs at the largest M, with one lengthscale and with one per "
        "column (ARD).", *SPARSE_FILES, **SPARSE_STUDY)
def R_table2(run, Ms, splits):
    rows = sparse_rows(run, splits, Ms[-1:], ("-", "ARD"))
    best = [row for row in rows if row["ARD"] == ARD[row["data"]]]
    return None, sparse_table(rows, "R_table2"), [ratios(best, Ms[-1])]


@figure("All measures of the sparse GPs at the largest M, trained with the exponential loss.",
        *SPARSE_FILES, **SPARSE_STUDY)
def R_table3(run, Ms, splits):
    rows = sparse_rows(run, splits, Ms[-1:], loss="exp")
    other = sparse_rows(run, splits, Ms[-1:], methods=("kl-PAC-SGP",))
    each = []
    for row in where(rows, method="kl-PAC-SGP"):
        for base in where(other, data=row["data"]):
            change = row["MSE"][0] / base["MSE"][0] - 1
            each.append(f"{row['data']} {100 * change:+.0f} %")
    return None, sparse_table(rows, "R_table3"), [
        f"Test MSE against the 0-1 loss: {', '.join(each)}."]
