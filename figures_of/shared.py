"""What the figures share: the registry, looks and words, drawing, averages, data, training.

`run` is a figures.Run. It has the size (quick, default or full), the seed, the tables of --data, a
random generator and a line of progress; run.real tells whether --data is given. `ax` is a
matplotlib axes, `picture` a Figure. A row is a dict: name of a column -> entry. An entry is a
number, a pair (mean, standard error) or a text.
"""
import math
import pathlib
import re
import warnings
from functools import partial

import matplotlib
from matplotlib.figure import Figure
import numpy as np

import beyond.certificates
import beyond.search
import pacgp_ref as R
from beyond.blocks import blocks

ROOT = pathlib.Path(__file__).resolve().parents[1]
BLACK, ORANGE, SKY, GREEN, BLUE, RED, PURPLE = (        # Okabe & Ito: colour-blind eyes tell them
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7")
INDIGO, FOREST, SAND, PINK, GREY = "#332288", "#117733", "#DDCC77", "#EE99CC", "0.45"
# looks that names of different figures share
MAIN, SECOND, THIRD = (BLUE, "o", "-"), (GREEN, "^", "-."), (ORANGE, "D", ":")
LOOKS = {               # what a line or a mark stands for, in every figure: colour, marker, line
    "kl-PAC-GP": MAIN,
    "sqrt-PAC-GP": (SKY, "s", "--"),
    "full-GP": (RED, "^", "-."),
    "kl-PAC-SGP": MAIN,
    "VFE": SECOND,
    "FITC": THIRD,
    "MAP": (BLACK, "s", "-"),
    "SVGP": (RED, "^", "--"),
    "gamma-robust": (PINK, "v", "-."),
    "OD-SVGP": THIRD,
    "VFITC": (FOREST, "P", "-."),
    "PPGPR-delta": (SKY, "<", ":"),
    "PPGPR-MF": (SAND, "h", "--"),
    "PPGPR-Chol": (INDIGO, "X", "--"),
    "PPGPR-MFD": MAIN,
    "exact": (GREY, "*", "-"),
    "SVGP+DKL": (RED, "", "--"),
    "PPGPR+DKL": (BLUE, "", "-"),
    "MC dropout": (GREEN, "", "-."),
    "O-SGPR": THIRD,
    "O-SVGP": SECOND,
    "WISKI": (PURPLE, "v", "--"),
    "O-PACGP": MAIN,
    "O-PACGP, certified": (SKY, "s", "-"),
    "exact GP, retrained": (GREY, "*", "-"),
    "B": MAIN,
    "R_S train": (SKY, "s", "--"),
    "R_S test": SECOND,
    "KL/N": (RED, "D", ":"),
    "ln|Theta|/N": (ORANGE, "v", "-"),
    "loss": (GREY, "", "--"),
    "bound, K^2/2": (BLUE, "", "-"),
    "bound, K^2/8": (GREEN, "", ":"),
    "paper": MAIN,
    "prior": (GREEN, "D", "-"),
    "held-out": (ORANGE, "s", "-"),
    "any-time": (PURPLE, "v", "--")}
WORDS = {               # what a name is called in a picture, where that is not the name itself
    "B": "upper bound $B$",
    "R_S train": "Gibbs risk, training", "R_S test": "Gibbs risk, test",
    "MSE": "test MSE [sd$^2$]", "KL/N": "KL$(Q\\|P)/N$ [nats]",
    "ln|Theta|/N": "$\\ln|\\Theta|/N$ [nats]",
    "NLL": "NLL [nats]", "RMSE": "RMSE [sd of $y$]", "CRPS": "CRPS [sd of $y$]",
    "noise fraction": "share of noise in the variance", "kin40k_like": "robot arm (like kin40k)",
    "boston_like": "housing (like Boston)", "uneven_noise": "a wave, uneven noise",
    "O-PACGP, certified": "O-PACGP,\ncertified", "exact GP, retrained": "exact GP,\nretrained",
    "sarcos": "sarcos (test part only)", "sin": "sin(4x)", "cos": "cos(4x)",
    "periodic": "periodic kernel", "Matern52": "Matern-5/2 kernel",
    "mean of all rows": "mean of all rows, later ones too", "time": "in time order",
    "loss": "observed loss",
    "bound, K^2/2": "(11) as printed, $K^2/2$", "bound, K^2/8": "sharper constant, $K^2/8$",
    "paper": "the paper's: all rows train and certify", "prior": "prior from half of the rows",
    "held-out": "half of the rows held out", "any-time": "a stream, at all times"}
FIGURES = {}
ONE_BLOCK = 2000        # rows up to which threads over blocks take longer than whole matrices


def experiment(caption, needs=None, **settings):
    """Decorates a function f(run, *args, **settings) with its caption and its settings.

        caption    what a call returns, or what a figure shows, in words; it becomes f's docstring
        settings   keyword arguments of f. Each is one value, or a tuple of a value for each size:
                   (quick, default, full, default with --data, full with --data). The last one or
                   two may be left out; the values without --data then hold with it, too
        needs      None, or a text: the memory and time of a call at full size. With a text, each
                   call of f is a cell (cells.py): what it returns is kept in a file, so it must
                   fit in JSON
    """
    def declare(f):
        f.__doc__ = f.caption = caption
        f.needs = needs
        f.settings = settings
        return f
    return declare


def figure(caption, *files, at_full=(), drawn=True, name=None, head="Not in the papers",
           of_data="", **settings):
    """Decorates and registers a function f(run, **settings) -> (picture, rows, notes).

    The picture of a table is None. The title is `head` and the first note.
        caption, settings   see experiment
        files               the data files that the figure reads with --data
        at_full             further data files, which it reads with --data and --full
        drawn               whether it uses data, real or generated; if so, its text says which
        name                of the figure; None: the function's name
        head                the start of the title; not used if the name gives the figure's number
                            in a paper (R_fig1, J_table2)
        of_data             text that is appended to the caption with --data
    """
    def register(f):
        f.__name__ = name or f.__name__
        f.files, f.at_full, f.drawn = files, at_full, drawn
        f.head, f.of_data = head, of_data
        number = re.fullmatch(r"([RJL])_(fig|table|app)(\w+)", f.__name__)
        if number:
            kind = {"fig": "Fig.", "table": "Table", "app": "App."}[number[2]]
            f.head = f"{number[1]} {kind} {number[3]}"
        FIGURES[f.__name__] = experiment(caption, **settings)(f)
        return f
    return register


def plus_minus(value, form):
    """Returns a pair (number, error) as text, without what is NaN.

    form: how both are formatted, such as ".2f".
    """
    return " +- ".join(format(part, form) for part in value if not math.isnan(part))


def cell(value):
    """Returns a table's entry as text.

    value: a number, a pair (number, error) or a text; NaN and None become "-".
    """
    if isinstance(value, tuple):
        mean, _ = value
        form = ".4f" if 1e-3 <= abs(mean) < 1e3 or mean == 0 else ".1e"
        return plus_minus(value, form) or "-"
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.4g}"
    return "-" if value is None else str(value)


def at_most(bound, digits=3):
    """Returns a bound, a number, as text, rounded up to `digits` decimals."""
    return f"{math.ceil(bound * 10**digits) / 10**digits:.{digits}f}"


def panels(rows, columns, width, height, **options):
    """Returns a Figure that needs no window, and its axes as matplotlib's subplots returns them.

    width, height: in inches; options: other arguments of subplots.
    """
    picture = Figure((width, height), layout="constrained")
    return picture, picture.subplots(rows, columns, **options)


def called(name):
    """Returns what a name is called in a picture: its entry in WORDS, else the name itself."""
    return WORDS.get(name, name)


def look(name, **more):
    """Matplotlib keywords for a method's colour, mark and line (LOOKS), and its label (`called`).

    name: a key of LOOKS; more: keywords to add or to replace.
    """
    colour, marker, line = LOOKS[name]
    return dict(color=colour, marker=marker, ls=line, ms=4, label=called(name)) | more


def col(rows, name, part=0):
    """Returns a column of rows as an array: numbers (part 0) or their standard errors (1).

    name: the column's. Its entries are numbers, pairs of numbers, or texts like '0.333 +- 0.004';
    an error that is missing becomes NaN.
    """
    found = []
    for row in rows:
        entry = row[name]
        parts = entry.split(" +- ") if isinstance(entry, str) else np.atleast_1d(entry)
        found.append([*parts, math.nan][part])
    return np.array(found, dtype=float)


def bars(errors):
    """Returns errors (n,) with NaN replaced by 0, for errorbar of matplotlib.

    Returns None if all are NaN: the legend then has no error bars.
    """
    return None if np.isnan(errors).all() else np.nan_to_num(errors)


def curve(ax, rows, x, y, name, **more):
    """Draws column y of rows against column x, with bars where entries are (value, error).

        x      the name of a column, or the numbers themselves
        y      the name of a column
        name   the key of LOOKS whose look the curve has
        more   keywords to add to this look or to replace in it
    """
    at = col(rows, x) if isinstance(x, str) else x
    ax.errorbar(at, col(rows, y), bars(col(rows, y, 1)), capsize=2, **look(name, **more))


def rings(ax, rows, x, y, name):
    """Draws the paper's own numbers, column y of rows against column x, as rings.

    x, y: names of columns; name: the method whose look they take, a key of LOOKS.
    """
    ax.plot(col(rows, x), col(rows, y), clip_on=False, in_layout=False,
            **look(name, ls="none", ms=8, mfc="none", label=None))


def where(rows, **equal):
    """Returns the rows that have all the given entries, such as where(rows, method="SVGP")."""
    return [row for row in rows if equal.items() <= row.items()]


def below(ax, columns, *handles):
    """Puts a legend below the picture of the panel ax: the panel's entries, then the handles given.

    columns: how many the legend has; handles: matplotlib artists with labels. Panels that share
    their y axis keep axis labels at the outer edges only.
    """
    handles = [*ax.get_legend_handles_labels()[0], *handles]
    ax.figure.legend(handles=handles, loc="outside lower center", ncols=columns)
    for panel in ax.figure.axes:
        if len(panel.get_shared_y_axes().get_siblings(panel)) > 1:
            panel.label_outer()


def key(label, **style):
    """Returns a legend entry that belongs to no curve, such as a grey ring for "the paper's".

    label: its text; style: keywords of matplotlib's Line2D.
    """
    return matplotlib.lines.Line2D([], [], label=label, **style)


RING = key("the paper's", color="0.3", marker="o", ls="none", ms=8, mfc="none")


def band(ax, x, low, high, colour, alpha, label=None):
    """Shades the region between two curves, low and high (n,), over x (n,) or (n, 1).

    alpha: opacity, 0 to 1; label: for the legend.
    """
    ax.fill_between(np.ravel(x), low, high, color=colour, alpha=alpha, lw=0, label=label)


def draw_gp(ax, grid, mean, var, colour, label, filled=True):
    """Draws a GP's mean and mean +- 2 standard deviations on a grid.

        grid        (n, 1), the inputs
        mean, var   (n,) of the GP at these inputs
        colour      of matplotlib
        label       what the legend calls the GP
        filled      True to draw +- 2 standard deviations as a band; False to draw them as dotted
                    lines, which can be seen over another GP's band
    """
    edges = mean + np.outer([-2, 2], np.sqrt(var))
    spread = f"$\\pm$ 2 sd: {label}"
    style = {} if filled else dict(lw=1.2, ls="--")
    ax.plot(grid, mean, color=colour, label=f"mean: {label}", **style)
    if filled:
        band(ax, grid, *edges, colour, 0.22, spread)
    else:
        ax.plot(grid, edges.T, color=colour, ls=":", lw=1.2, label=[spread, None])


def draw_inducing(ax, Z, label, marker="|", height=0.04, **style):
    """Draws a mark for each inducing input in Z, (M,) or (M, 1).

    height: where the marks are in the panel, from 0 (bottom) to 1 (top); label: for the legend;
    marker, style: of matplotlib.
    """
    style = dict(color=BLACK, ms=7, label=label, transform=ax.get_xaxis_transform()) | style
    ax.plot(Z, np.full(len(Z), height), marker, **style)


def deviation(values):
    """Returns the standard deviation over runs, divisor runs - 1; NaN if there is a single run.

    values: (runs,), or (runs, columns) for the deviation of each column.
    """
    return values.std(0, ddof=1) if len(values) > 1 else math.nan * values[0]


def mean_se(values):
    """Returns the mean and standard error of each column, as a list of pairs.

    values: (runs, columns); of a single run the errors are NaN.
    """
    values = np.asarray(values, dtype=float)
    return list(zip(values.mean(0), deviation(values) / math.sqrt(len(values))))


def average(found):
    """Averages the list `found` of dicts with the same keys: returns a dict with these keys.

    Each key has a pair (mean, standard error) over the list. A key whose values in `found` are
    whole numbers has their mean alone, rounded.
    """
    means = dict(zip(found[0], mean_se([list(one.values()) for one in found])))
    for name, first in found[0].items():
        if isinstance(first, int):
            means[name] = round(means[name][0])
    return means


def standard(table):
    """Returns a table (n, columns) or column (n,), scaled to mean 0 and deviation 1 over all rows.

    These include the test rows, as in R. Constant columns become 0.
    """
    sd = table.std(0)
    return (table - table.mean(0)) / np.where(sd > 0, sd, 1.0)


def train_test(n, i):
    """Returns the indices of the training and of the test rows in split i of Reeb et al.'s code.

    n: the number of rows, of which a fifth is for the test.
    """
    order = np.random.RandomState(i).permutation(n)
    k = math.ceil(0.2 * n)
    return order[k:], order[:k]


def line(run, file, generate):
    """Returns x (N, 1), y (N,) of a data set with one input, in their own units.

    file: the name of the real data's file, used with --data; generate: a function of a random
    generator that returns x, y, used without --data.
    """
    if not run.real:
        return generate(run.rng)
    return run.tables[file][:, :1], run.tables[file][:, 1]


def data_set(run, name, generate, N, *key):
    """Returns X (N, d), y (N,) of a data set; real data are standardised over all rows.

        name       of the real data's file, or its beginning. The target is the last column; of
                   sarcos, which has seven targets, it is the first torque
        generate   a function of a random generator and N that returns X, y, used without --data
        N          how many rows to generate
        key        any values; together with run.seed they seed the generator that `generate` gets
    """
    if not run.real:
        return generate(run.seeded(*key), N)
    table = next(table for file, table in run.tables.items() if file.startswith(name))
    if name == "sarcos":
        table = table[:, :22]
    table = standard(table)
    return table[:, :-1], table[:, -1]


def train(run, label, X, y, method, *args, **options):
    """Trains a GP of R (pacgp_ref.py) and returns its Fit; prints progress.

        label     the text that a line of progress begins with
        X, y      (N, d), (N,): the training data
        method    a method of pacgp_ref.fit; args and options are the other arguments of fit
    If the options have `share`, prior_from_part of beyond/certificates.py trains, and this share of
    the rows trains the prior. If not, pacgp_ref.fit trains, or, for more than pacgp_ref.SMALL rows,
    multistart_fit of beyond/search.py. UserWarnings are not shown.
    """
    fit = R.fit
    if "share" in options:
        fit = partial(beyond.certificates.prior_from_part, over=run.over)
    elif len(y) > R.SMALL:
        fit = partial(beyond.search.multistart_fit, over=run.over)
    elif len(y) > ONE_BLOCK:
        fit = partial(R.fit, sparse=blocks(run.over))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = fit(X, y, method, *args, **options,
                    callback=run.progress(f"{label}, {method}: evaluation"))
    return getattr(found, "fit", found)
