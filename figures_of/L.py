"""The figures and tables of L = Liu et al. 2022.

`run` is a figures.Run. It has the size (quick, default or full), the seed, the tables of --data, a
random generator and a line of progress. `ax` is a matplotlib axes. A row of a table is a dict:
column -> entry. Data X or x (N, 1), y (N,) are in order of arrival. A Snapshot is what an online GP
of online.py or baselines.py yields: parameters, state, predictions. The certified GP is the one in
beyond/stream.py.
"""
import itertools
import math
from functools import partial

import numpy as np

import beyond.stream
import online as L
import pacgp_ref as R

from figures_of import baselines
from figures_of.imitations import SD, rate_like, sine
from figures_of.published import beside, published
from figures_of.shared import (BLACK, BLUE, ORANGE, RED, RING, below, called, col, curve,
                               deviation, draw_gp, draw_inducing, experiment, figure, key, look,
                               panels, plus_minus, where)

RANGE = [[0.0], [3**-0.5]]  # mean, deviation of x on [-1, 1], known before the stream
PRETRAINED = 10             # rows that come before a stream: they set scale and start


def learners(X, y, **start):
    """Yields a beyond.stream.Learner after the first PRETRAINED rows, then after each later row.

    X (N, d), y (N,): the stream; start: keywords of beyond.stream.begin.
    """
    learner = beyond.stream.begin(X[:PRETRAINED], y[:PRETRAINED], **start)
    yield learner
    for i in range(PRETRAINED, len(y)):
        learner = beyond.stream.step(learner, X[i:i + 1], y[i:i + 1])
        yield learner


@figure("The bound (11) against the confidence, with the printed constant K^2/2 and with K^2/8, "
        "which suffices; K = 1 is the largest loss, a miss by more than "
        f"{beyond.stream.Settings().eps:g} sd of the first {PRETRAINED} rows. The paper's is a "
        "drawing; these are numbers of the certified GP, not of O-PACGP.",
        ms=([10, 40, 120], [29, 200, 1000], [29, 200, 1000]))
def L_fig1(run, ms):
    X, y = sine(run.rng, PRETRAINED + ms[-1])
    losses = [learner.ledger.before for learner in learners(X, y, input_scale=RANGE)]
    rows = []
    picture, axes = panels(1, len(ms), 8.3, 3.6, sharey=True)
    for ax, m in zip(axes, ms):
        part = []
        for delta in np.geomspace(0.5, 0.001, 25):
            row = {"m": m, "delta": delta, "loss": losses[m] / m}
            for name, K in (("bound, K^2/2", 2.0), ("bound, K^2/8", 1.0)):     # 2^2/8 is 1/2
                lam = L.best_lam(m, 0.0, delta, K)
                row[name] = L.online_bound(losses[m], 0.0, m, lam, delta, K) / m
            part.append(row)
        for name in ("bound, K^2/2", "bound, K^2/8", "loss"):
            curve(ax, part, "delta", name, name, marker="")
        ax.axhspan(1, 2, color="0.93", zorder=0, label="says nothing: above 1")
        ax.set(xscale="log", xlim=(0.7, 0.0007), ylim=(0, 1.15), title=f"$m={m}$ shuffled rows",
               xlabel="confidence $1-\\delta$", ylabel="0-1 loss per row")
        ax.set_xticks([0.5, 0.1, 0.01, 0.001], ["0.5", "0.9", "0.99", "0.999"])
        ax.minorticks_off()
        rows += part
    below(axes[0], 4)
    first, last = (row["bound, K^2/2"] for row in (part[0], part[-1]))
    return picture, rows, [
        f"After {m} rows the printed bound is {first:.3f} at confidence 0.5, {last:.3f} at 0.999; "
        f"the observed loss is {row['loss']:.3f}."]


THEIRS = (              # the boxes of one round
    "prior $P_t$\nfrom the rows\nbefore $t$", "row $z_t$ arrives\nat time $t$",
    "posterior $Q_t$\nby $P_t$ and $z_t$")
OURS = ("prior $P_t$\nfrom the rows\nbefore $t$ alone",
        "row $z_t$ arrives\nthe loss of $P_t$\ncounts in (11)",
        "posterior $Q_t$\nits loss and KL\ncount in (10)", "certificate\nholds at\nevery $t$",
        "kernel moves\nby past rows,\nat no cost")


def draw_loop(ax, boxes, back, title):
    """Draws one round of an online algorithm, a row of boxes joined by arrows.

        boxes   the texts of the boxes. The fourth and later ones are not in the paper and are
                outlined
        back    the text at the arrow from the last box to the first
        title   of the panel
    """
    arrow = dict(arrowstyle="-|>", color="0.25", lw=1.6)
    for k, text in enumerate(boxes):
        style = dict(boxstyle="round", fc="0.92", ec=RED if k > 2 else "none", lw=1.8)
        ax.text(k / 5 + 0.1, 0.75, text, ha="center", va="center", bbox=style)
        if k:
            ax.annotate("", (k / 5 + 0.03, 0.75), (k / 5 - 0.03, 0.75), arrowprops=arrow)
    arrow["connectionstyle"] = f"bar,fraction={-0.16 / len(boxes)}"
    ax.annotate("", (0.1, 0.45), (len(boxes) / 5 - 0.1, 0.45), arrowprops=arrow)
    ax.text(len(boxes) / 10, 0.05, back, ha="center")
    ax.set_title(title, loc="left", weight="bold")
    ax.axis("off")


@figure("The paper's loop; our loop, what is added is outlined.", drawn=False)
def L_fig2(run):
    picture, (first, second) = panels(2, 1, 8.3, 3.6)
    draw_loop(first, THEIRS, "$P_{t+1}=Q_t$: the posterior is the next prior", "L Fig. 2")
    draw_loop(second, OURS, "$P_{t+1}$: $Q_t$ carried over to the new kernel, in the new units",
              "The certified GP")
    return picture, [{"round": " -> ".join(" ".join(box.split()) for box in boxes)}
                     for boxes in (THEIRS, OURS)], [
        "Ours adds a certificate, and moves the kernel between rounds."]


L_METHODS = ("O-SGPR", "O-SVGP", "WISKI", "O-PACGP")
L_EXTRA = ("O-PACGP, certified", "exact GP, retrained", "nearest row seen", "mean of all rows")
SIN_COS = {"sin": np.sin, "cos": np.cos}
GRID = np.linspace(-1.25, 1.25, 251)[:, None]


# The authors' mixture: ln mu, ln l^2, ln w. Its three components start equal, at GPyTorch's
# softplus(0) = ln 2, get equal steps and so act as one of three times the weight.
MIXTURE = np.log([[math.log(2), (2 * math.pi * math.log(2))**-2, 3 * math.log(2)]])


def snapshots(X, y, method, mixture=False, batch=1, **options):
    """Runs an online GP, set as in L Sec. 5.1. Returns {number of rows seen: Snapshot}.

        method    a method's name in online.stream or baselines.stream
        mixture   whether the kernel is the authors' spectral mixture instead of SE
        batch     rows per step
        options   other keywords of that `stream`
    """
    Z = np.linspace(-1, 1, 12)[:, None]
    if mixture:
        options["ln_theta"] = MIXTURE
        options["kernel"] = L.spectral_mixture
    module = L if method in L.METHODS else baselines
    found = module.stream(X, y, method, Z, batch=batch, **options)
    return dict(zip(range(PRETRAINED, len(y) + 1, batch), found))


def extra_predictors(method, X, y, times):
    """Returns a predictor per number of rows seen: a list of functions X_new -> mean, variance.

    method: one of L_EXTRA, methods that the paper does not compare; X (N, 1), y (N,): the stream;
    times: list of the numbers of rows seen. X_new is (n, 1), mean and variance are (n,).
    """
    seen = X[:times[-1]], y[:times[-1]]
    if method == "O-PACGP, certified":
        found = list(learners(*seen))
        return [lambda X_new, t=t: beyond.stream.forecast(found[t - PRETRAINED], X_new)[:2]
                for t in times]
    if method == "exact GP, retrained":
        found = snapshots(*seen, "exact", batch=10)
        return [found[t].predict for t in times]
    if method == "nearest row seen":
        return [lambda X_new, t=t: (y[np.argmin(np.abs(X_new - X[:t, 0]), axis=1)],
                                    np.zeros(len(X_new))) for t in times]
    return [lambda X_new: np.full((2, len(X_new)), [[y.mean()], [y.var()]])] * len(times)


@experiment("[row, x, y, what a panel draws] in both orders of the rows, for noise number i; "
            "settings of L Sec. 5.1.",
            t=(20, 60, 60), pretrain=(10, 60, 400))
def wave_run(run, name, i, t, pretrain):
    x = np.linspace(-1, 1, 100)[:, None]
    f = SIN_COS[name](4 * x[:, 0])
    shuffle = run.rng.permutation(len(x))
    y = f + SD * run.rng.standard_normal(len(x))
    found = []
    for order, at in (("time", slice(None)), ("shuffled", shuffle)):
        run.tick(f"{name}, {order} order, noise {i + 1}")
        snapshot = snapshots(x[at][:t], y[at][:t], "O-PACGP", True, pretrain=pretrain)[t]
        off = (snapshot.predict(x[at])[0] - f[at]) ** 2
        row = {"data": name, "order": order, "noise": i, "RMSE, seen": math.sqrt(off[:t].mean()),
               "RMSE, to come": math.sqrt(off[t:].mean())}
        found.append([row, x[at], y[at], *snapshot.predict(GRID), snapshot.p["Z"]])
    return found


def draw_rows(ax, x, y, t):
    """Draws the first t rows, which the GP has seen, and the later ones."""
    ax.plot(x[:t], y[:t], "o", color=BLACK, ms=3, label="rows seen")
    ax.plot(x[t:], y[t:], "o", color=BLACK, mfc="white", ms=4, mew=0.8, label="rows to come")


@figure("O-PACGP as published on noisy waves, in time order and shuffled: the mean and +- 2 "
        "standard deviations of f; RMSE to the function, in the title its mean and range over "
        "both waves and all draws of noise. The draw shown is the one with the median error in "
        "time order.",
        draws=(1, 3, 21), t=(20, 60, 60))
def L_fig3(run, draws, t):
    rows = []
    picture, axes = panels(2, 2, 8.3, 6, sharex=True, sharey=True)
    for part, (name, function) in zip(axes, SIN_COS.items()):
        runs = [run.once(wave_run, name, i) for i in range(draws)]
        rows += [row for found in runs for row, *_ in found]
        off = col(where(rows, data=name, order="time"), "RMSE, to come")
        for ax, (row, x, y, mean, var, Z) in zip(part, runs[np.argsort(off)[draws // 2]]):
            draw_gp(ax, GRID, mean, var, BLUE, "$f$, without noise")
            draw_rows(ax, x, y, t)
            draw_inducing(ax, Z, "inducing inputs", "x", color=RED, ms=5)
            ax.plot(GRID, function(4 * GRID), color=ORANGE, ls="--", label="true function")
            ax.set_title(f"{called(name)}, {called(row['order'])}: RMSE "
                         f"{row['RMSE, seen']:.2f} seen, {row['RMSE, to come']:.2f} to come")
            ax.set(xlabel="input $x$", ylabel="target $y$", xlim=(-1.25, 1.25), ylim=(-2.6, 2.6))
    below(axes[0, 0], 3)
    each = []
    for order in ("shuffled", "time"):
        off = col(where(rows, order=order), "RMSE, to come")
        each.append(f"{off.mean():.2f} {called(order)} "
                    f"({min(off):.2f} to {max(off):.2f})")
    return picture, rows, [f"O-PACGP's mean RMSE at rows to come is {', '.join(each)}."]


def rate_rows(run, order, i, N):
    """Returns times x (N, 1) on [-1, 1] and rates y (N,), standardised, in order of arrival.

        order   "time" or "shuffled"
        i       the number of the run. It seeds the shuffle and, if the data are generated, the
                series
        N       how many daily rates
    As in the paper, y is standardised by the mean and standard deviation (divisor N - 1) of all
    rows, also of those still to come.
    """
    if run.real:
        rate = run.tables["fx2007.csv"][:N, 3]
    else:
        rate = rate_like(run.seeded("rate_like", i), N)
    rows = np.arange(N)
    if order == "shuffled":
        rows = run.seeded("shuffle", i).permutation(N)
    y = (rate - rate.mean()) / rate.std(ddof=1)
    return np.linspace(-1, 1, N)[rows, None], y[rows]


RATES = dict(N=39, times=[10, 20, 30])


@experiment("Run number i of a method: training MSE, test MSE and exponential loss (eps = "
            "0.1) on the test rows, (times, 3); and what a panel draws.",
            pretrain=(10, 60, 400, 400), **RATES)
def rate_run(run, order, method, mixture, i, pretrain, N, times):
    X, y = rate_rows(run, order, i, N)
    run.tick(f"{order} order, {method}, run {i + 1}")
    if method in L_EXTRA:
        predictors = extra_predictors(method, X, y, times)
    else:
        if method == "O-SVGP":
            pretrain = min(2 * pretrain, 400)
        seen = slice(times[-1])
        found = snapshots(X[seen], y[seen], method, mixture, pretrain=pretrain)
        predictors = [found[t].predict for t in times]
    errors = []
    for t, predict in zip(times, predictors):
        mean, var = predict(X)
        losses, _, _ = R.expected_exp_loss(y[t:], mean[t:], np.maximum(var[t:], 1e-12), 0.1)
        squares = (y - mean) ** 2
        errors.append([squares[:t].mean(), squares[t:].mean(), losses.mean()])
    mean, _ = predictors[-1](GRID)
    return np.array(errors), mean


def rate_figure(run, N, times, runs, mixture, order):
    """Draws Figs. 4 and 5: predictions of one run, and the test MSE of all runs.

        N         number of rows of the series
        times     numbers of rows seen; predictions after the last of these are drawn
        runs      how many repetitions. If order is "shuffled", each shuffles the rows anew. If the
                  data are generated, each also has a series of its own
        mixture   whether the kernel is the authors' spectral mixture
        order     "time" or "shuffled"
    The run drawn is the one in which O-SGPR's test MSE is the median. Returns the picture, the
    rows of the table, one per method, and [title].
    """
    t, several = times[-1], runs > 1
    naive = ("nearest row seen", "mean of all rows")
    methods = (*L_METHODS, *L_EXTRA[:2])
    found = {m: [run.once(rate_run, order, m, mixture and m in L_METHODS, i) for i in range(runs)]
             for m in (*methods, *naive)}
    ends = {m: np.array([errors[-1] for errors, _ in each]) for m, each in found.items()}
    tests = {m: errors[:, 1] for m, errors in ends.items()}
    i = int(np.argsort(tests["O-SGPR"])[(runs - 1) // 2])
    x, y = rate_rows(run, order, i, N)
    picture, (left, right) = panels(1, 2, 8.3, 4.2, width_ratios=(3, 2))
    draw_rows(left, x, y, t)
    training = [ends[m][i, 0] for m in L_METHODS]
    for m in L_METHODS:
        left.plot(GRID, found[m][i][1], **look(m, marker=""))
    left.set(xlim=(-1.05, 1.05), ylim=y.mean() + 0.8 * np.ptp(y) * np.array([-1, 1]),
             xlabel="time, scaled to $[-1,1]$", ylabel="rate [sd]",
             title="kernel: the authors' mixture, which acts as one component\n" * mixture
             + f"training MSE of the four: {min(training):.2f} to {max(training):.2f} at $t={t}$")
    paper = {m: float(published("L_table2", "data", "method")[order, m][f"t = {t}, test"])
             for m in L_METHODS * run.real}
    for k, m in enumerate(methods):
        aside = -k + 0.25 * np.linspace(-1, 1, runs) * several
        one = dict(alpha=0.5) if runs > 10 else dict(ms=6)
        right.plot(tests[m], aside, **look(m, ls="none", mew=0, **one))
        if several:
            right.plot(tests[m].mean(), -k, "|", color=BLACK, ms=18, mew=2)
        if m in paper:
            right.plot(paper[m], -k, **look(m, ls="none", ms=9, mew=2, mfc="none", zorder=4))
    lines = [key("ours", color="0.3", marker="o", ls="none"), *[RING] * run.real]
    if several:
        lines[0] = key("mean of the runs", color=BLACK, marker="|", ls="none", ms=12, mew=2)
    for m, ls in zip(naive, ("--", ":")):
        lines.append(right.axvline(tests[m].mean(), color="0.4", ls=ls, label=called(m)))
    right.set_yticks(-np.arange(len(methods)), [called(m) for m in methods])
    right.set(xscale="log", xlabel="test MSE [sd$^2$]",
              title=f"{runs} runs" if several else "one run")
    right.margins(y=0.1)
    limits = right.get_xlim()
    ticks = 0.01, 0.03, 0.1, 0.3, 1, 2, 4
    right.set_xticks(ticks, ticks)
    right.minorticks_off()
    right.set_xlim(limits)
    below(left, 5, *lines)
    rows = [{"method": m, "run drawn": i, "runs": runs, "train MSE": ends[m][:, 0].mean(),
             "test MSE": test.mean(),
             "deviation of a run": deviation(test), "the paper's": paper.get(m)}
            for m, test in tests.items()]
    three = [row["test MSE"] for row in rows[:3]]
    ours = where(rows, method="O-PACGP")[0]
    return picture, rows, [
        f"{called(order).capitalize()}, O-PACGP's test MSE is "
        + plus_minus((ours["test MSE"], ours["deviation of a run"]), ".2f")
        + f" (paper: {paper.get('O-PACGP', 0):.2f})" * run.real
        + f", those of O-SGPR, O-SVGP and WISKI are {min(three):.2f} to {max(three):.2f}; "
        f"forecasting the nearest row seen gives {tests[naive[0]].mean():.2f}."]


for number, order, runs in (
        (4, "time", (1, 10, 50, 1, 1)),                             # nothing is random in one
        (5, "shuffled", (1, 10, 50, 50))):
    figure(f"Four online GPs on a daily rate, {called(order)}: their means in one run, "
           "of several that with O-SGPR's median error; the test MSE of every run, of several also "
           "the mean (+-: deviation of one run), beside naive forecasts.", "fx2007.csv",
           name=f"L_fig{number}", of_data=" The lower two rows: without the mixture.", runs=runs,
           mixture=(False, False, True, True), **RATES)(
        partial(rate_figure, order=order))


OBJECTIVES = (      # method, what it minimises, where, equations, certificate, operations per row
    ("O-SGPR",
     "KL(q_new || p_hat), q_new the best: E ln 1/p(y_new | f) + KL(q_new || q_old)",
     (L.free_energy, L.update), "(5)-(8)", "none", "M^3"),
    ("O-SVGP",
     "the same, q_new = N(m, L_S L_S^T) searched by gradients",
     (L.free_energy, L.marginals_and_kl), "(5)-(8)", "none", "M^3"),
    ("WISKI",
     "ln 1/p(y | X, theta) of all rows so far, f interpolated on a grid of M points",
     (baselines.grid_nll, baselines.grid_add), "(4)", "none", "M^3"),
    ("O-PACGP",
     "sum E loss(Q_i+1) + KL(Q_i+1 || P_i)/lam + lam n K^2/2 + ln(1/delta)/lam",
     (L.online_objective, L.marginals_and_kl), "(12)-(16), (18)-(20)",
     "none that holds: the kernel moves inside the step; the constant is 1/2 per row", "M^3"),
    ("O-PACGP, certified",
     "(4) of the last 50 rows, (8) or (12), once loss and KL are counted under the kernel of P_i",
     (beyond.stream.step, beyond.stream.certificates), "(9)-(13), (17)",
     "yes: of the risk on the rows that came, given their past", "M^3"),
    ("OVC",
     "nothing after pretraining: each row becomes an inducing input",
     (beyond.stream.extended, L.update), "(6), (7)", "none", "(M + t)^3"),
    ("exact",
     "ln 1/p(y | X, theta) of all rows so far",
     (R.full_gp_nll, R.full_predict), "(3), (4)", "none", "t^3 for each evaluation"),
)


@figure("What each online GP minimises, by which functions, and what comes with it.",
        drawn=False)
def L_table1(run):
    heads = ("method", "minimised at each batch", "functions", "L Eq.", "certificate",
             "operations per row, t rows seen")
    rows = [dict(zip(heads, row)) for row in OBJECTIVES]
    for row in rows:
        row["functions"] = ", ".join(f.__name__ for f in row["functions"])
    count = sum(row["certificate"].startswith("yes") for row in rows)
    return None, rows, [f"{count} of {len(rows)} online GPs has a certificate; the bound of "
                        "O-PACGP does not hold."]


@figure("Training and test MSE of the four methods and of others as rows arrive, in both orders; "
        "of several runs +- the deviation of one.", "fx2007.csv", runs=(1, 10, 50, 50),
        kernels=(["SE"], ["SE"], *[["SE", "mixture of 3"]] * 2), **RATES)
def L_table2(run, runs, kernels, N, times):
    rows = []
    paper = published("L_table2", "data", "method")
    names = [f"t = {t}, {part}" for t in times for part in ("train", "test")]
    for order in ("time", "shuffled"):
        for kernel, method in (*itertools.product(kernels, L_METHODS),
                               *itertools.product(["SE"], L_EXTRA)):
            mixture = kernel != "SE"
            n = 1 if run.real and order == "time" else runs         # nothing is random
            found = np.array([run.once(rate_run, order, method, mixture, i)[0] for i in range(n)])
            values = np.hstack([found[..., :2].reshape(len(found), -1), found[:, -1:, 2]])
            row = {"order": order, "method": f"{method}, {kernel}" if mixture else method}
            rows.append(row | dict(zip([*names, f"t = {times[-1]}, exp loss"],
                                       zip(values.mean(0), deviation(values)))))
    ours = {(row["order"], row["method"]): row for row in rows}
    test = [(order, f"t = {t}, test") for order in ("time", "shuffled") for t in times]
    here, ahead = (sum(min(L_METHODS, key=lambda m: col([part[order, m]], name)[0]) == "O-PACGP"
                       for order, name in test) for part in (ours, paper))
    return None, beside(rows, paper, "order", "method"), [
        f"O-PACGP has the lowest test MSE in {here} of {len(test)} columns (paper: {ahead})."]
