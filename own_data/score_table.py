"""`python predictive.py my.csv`: trains predictive GPs on a table, scores them on held-out rows."""
import math
import time
import warnings
from functools import partial
from statistics import NormalDist

import numpy as np

import predictive
from pacgp_ref import FitWarning, check_count
from predictive import (BETAS, GAMMAS, KERNELS, METHODS, START, choose, crps, fit, nll,
                        noise_fraction, predict_y, rmse)
from beyond.stream import directions
from own_data.command_line import (UNSCALED, WHOLE, answer_and_conditions, at_most_rows,
                                   check_counts, check_files, draw_predicted, emit, exit_status,
                                   finish, interval, new_rows, parser, progress, until_interrupted,
                                   use_model)
from own_data import saving
from own_data.saving import Model, save
from own_data.scale import scale_of, scaled
from own_data.tables import Table, table_of

# Training rows up to which `exact` is compared, too: 2 s with 10 inputs, 8 s at 1000 rows.
EXACT_ROWS = 600
# From LARGE rows on a method is trained for a fifth of the epochs, in two rounds with so large a
# step of Adam, and for all epochs only where that may lower the validation NLL: where the second
# round did, by more than GAIN, or where they have learnt next to nothing: less than LEARNT below
# the constant's.
LARGE = 3000
LARGE_STEP = 0.05
GAIN = 0.01
LEARNT = 0.1
# These have all rows in each of their evaluations.
WHOLE_ROWS = ("exact", "FITC")
# Fractions of the rows that central intervals are to hold.
FRACTIONS = (0.5, 0.8, 0.95)


def demo_table():
    """The Table of 600 rows that stands in for a file: a wave whose noise grows along x.

    So short a wave that with 10 inducing inputs rounding moves no digit that is printed.
    """
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, 600)
    y = np.sin(2 * x) + (0.02 + 0.05 * x) * rng.standard_normal(600)
    return Table(["x", "y"], np.column_stack([x, y]), True)


def is_series(X):
    """Whether a column of X (n, d) moves one way only, as a date does in the order of time."""
    rises, falls = directions(X)
    return bool(np.any(rises != falls))


def three_parts(X, y, rng):
    """[(X, y) of training, test, validation], scaled by the training rows, and the Scale.

    15:3:2 at random, as in J App. C.1; of a series the first, the last and those between. A column
    that does not vary in the training rows becomes 0. ValueError for fewer than 25 rows, of which
    fewer than four would be test rows, and where scaling overflows.
    """
    n = len(y)
    if n < 25:
        raise ValueError(f"{n} rows are too few to train, test and validate on: at least 25")
    parts = np.split(rng.permutation(n), [n * 15 // 20, n * 18 // 20])
    if is_series(X):
        training, validation, test = np.split(np.arange(n), [n * 15 // 20, n * 17 // 20])
        parts = [training, test, validation]
    scale = scale_of(X[parts[0]], y[parts[0]])
    X, y = scaled(X, y, scale)
    return [(X[rows], y[rows]) for rows in parts], scale


def within(wanted, y, mean, var):
    """The fraction of targets y (n,) inside central intervals that are to hold `wanted` of them."""
    half = NormalDist().inv_cdf((1 + wanted) / 2) * np.sqrt(var)
    return float(np.mean(np.abs(y - mean) < half))


def scores(y, mean, var, noise):
    """Scores of predictions of y (n,), a dict; `inside`: what the intervals of FRACTIONS hold.

    noise: the part of var that is noise.
    """
    return dict(
        NLL=nll(y, mean, var), RMSE=rmse(y, mean), CRPS=crps(y, mean, var),
        noise_fraction=noise_fraction(var - noise, noise),
        inside=[within(wanted, y, mean, var) for wanted in FRACTIONS])


def all_scores(fits, X, y):
    """{method: scores} of fits {method: Fit} on rows X (n, d), y (n,); "constant" is N(0, 1)."""
    found = {}
    for method, trained in fits.items():
        noise = np.exp(trained.params["ln_noise"])
        found[method] = scores(y, *predict_y(trained, X), noise)
    found["constant"] = scores(y, 0 * y, 0 * y + 1, 1.0)
    return found


def no_better(found):
    """A sentence on the methods of all_scores whose density is not recommended; "" for none.

    Their NLL is not below the constant's by more than a hundredth, whatever their RMSE.
    """
    most = found["constant"]["NLL"] - 0.01
    names = [name for name, one in found.items() if name != "constant" and one["NLL"] > most]
    return ("Not recommended, since the density is no better than a constant's on the held-out "
            f"rows: {', '.join(names)}.") * bool(names)


def score_lines(found, unit):
    """The table of all_scores, as lines; RMSE and CRPS in the target's unit, too."""
    inside = "".join(f"{f'in {100 * wanted:g} %':>9}" for wanted in FRACTIONS)
    pairs = f"{'RMSE':>8}{'in unit':>10}{'CRPS':>8}{'in unit':>10}"
    lines = [f"{'':<14}{'NLL':>8}{pairs}{'noise':>8}{inside}"]
    for method, one in found.items():
        inside = "".join(f"{fraction:9.2f}" for fraction in one["inside"])
        lines.append(f"{method:<14}{one['NLL']:8.2f}{one['RMSE']:8.2f}{unit * one['RMSE']:10.4g}"
                     f"{one['CRPS']:8.2f}{unit * one['CRPS']:10.4g}{one['noise_fraction']:8.2f}"
                     + inside)
    return lines


def quarter_lines(predictions, y, unit):
    """Predicted standard deviation and actual RMSE in four quarters of the rows, as lines.

    From the surest by the first method on, in the target's unit. predictions:
    {method: (mean, var)}.
    """
    first = next(iter(predictions))
    _, var = predictions[first]
    quarters = np.array_split(np.argsort(var, kind="stable"), 4)
    lines = ["Predicted standard deviation and actual RMSE in four quarters of the rows, in the "
             "target's unit,", f"from the surest by {first} on:", "",
             f"{'':<14}" + "".join(f"{'quarter ' + str(i):>20}" for i in (1, 2, 3, 4)),
             f"{'':<14}" + f"{'predicted':>11}{'RMSE':>9}" * 4]
    for method, (mean, var) in predictions.items():
        line = f"{method:<14}"
        for rows in quarters:
            sd = unit * np.sqrt(np.mean(var[rows]))
            line += f"{sd:11.4g}{unit * rmse(y[rows], mean[rows]):9.4g}"
        lines.append(line)
    return lines


def report(fits, best, X, y, name, unit, trained, validated, series=False):
    """What is said of the fits {method: Fit} on held-out rows X, y: the answer, tables, conditions.

    best: the method with the lowest NLL on `validated` rows; name, unit: the target's name and
    standard deviation; trained: rows that trained; series: of is_series.
    """
    how = (f"{trained} rows trained each GP, drawn at random: of a time series the held-out rows "
           "lie between those that trained.")
    which = f"these {trained} rows"
    if series:
        how = (f"The first {trained} rows trained each GP, the next {validated} are the validation "
               "rows, and the last are held out, since an input moves one way only: shuffle the "
               "rows if they are no series.")
        which = f"all {trained + validated + len(y)} rows, anew"
    predictions = {method: predict_y(fit, X) for method, fit in fits.items()}
    found = all_scores(fits, X, y)
    answer = (f"{best} has the lowest NLL on the {validated} validation rows. On {len(y)} held-out "
              f"rows its RMSE is {unit * found[best]['RMSE']:.4g} in the unit of {name}, and "
              f"{unit * found['constant']['RMSE']:.4g} for a constant. {no_better(found)}")
    table = [*score_lines(found, unit), "", *quarter_lines(predictions, y, unit)]
    spread = math.sqrt(0.25 / len(y))
    return answer_and_conditions(answer.strip(), [line.rstrip() for line in table], [
        f"RMSE and CRPS are in standard deviations of {name} ({unit:.4g}), and beside it in its "
        "unit. NLL is in nats, of the standardised target.",
        "noise: the fraction of the predicted variance that is observation noise.",
        "in 50 % to in 95 %: the fraction of the held-out rows inside central intervals of that "
        f"probability. {len(y)} rows leave +-{spread:.2f} on it.",
        how,
        "Training can be sensitive to rounding: last digits may differ on another machine.",
        f"--predict and --save are about {best}, trained on {which}."])


def draw_calibration(ax, fits, X, y):
    """Fraction of held-out rows inside central intervals against their probability."""
    wanted = np.linspace(0.02, 0.98, 49)
    for method, trained in fits.items():
        mean, var = predict_y(trained, X)
        ax.plot(wanted, [within(one, y, mean, var) for one in wanted], label=method)
    ax.axline((0, 0), slope=1, color="0.4", lw=1)
    ax.set(xlabel="probability of the interval", ylabel="fraction of held-out rows inside",
           xlim=(0, 1), ylim=(0, 1))
    ax.legend()


def limits(model, X_new):
    """mean, sd, lower, upper (n,) of y at X_new (n, d), of a Model: the interval holds 95 %."""
    return interval(*saving.predict_y(model, X_new))


def command_line():
    """The parser of main."""
    ap = parser(predictive.__file__, "where 95 %% of the targets lie",
                description="Predictive densities for your table by PPGPR and SVGP "
                            "(Jankowiak et al. 2020).")
    ap.add_argument("--methods", nargs="+", choices=list(METHODS), metavar="METHOD",
                    help=f"what to compare, of {', '.join(METHODS)}; default: PPGPR-MFD SVGP, and "
                         f"exact up to {EXACT_ROWS} training rows; what has the lowest NLL on the "
                         "validation rows predicts and is saved")
    ap.add_argument("--inducing", type=WHOLE, metavar="M",
                    help="inducing inputs; default: a 20th of the training rows, at least 10, at "
                         "most 100")
    ap.add_argument("--kernel", choices=list(KERNELS), default="Matern52")
    ap.add_argument("--search", action="store_true",
                    help="choose beta_reg, or gamma-robust's gamma, by the validation rows from "
                         "the paper's values: up to four trainings a method; without: 0.05 for "
                         "PPGPR, 1 for the others")
    ap.add_argument("--epochs", type=WHOLE, help="default: 400, fewer for large tables")
    ap.add_argument("--batch", type=WHOLE,
                    help="rows per step; default: 200, or 1000 above 20,000 training rows")
    ap.add_argument("--seed", type=WHOLE, default=0,
                    help="which rows are held out, which order, which first inducing inputs")
    return ap


def main(argv=None):
    """`python predictive.py [table] [options]`: fits --methods, prints scores on held-out rows.

    Returns the exit status. Ctrl-C stops the training: what was found is scored, and the status is
    130.
    """
    return exit_status(lambda: score_table(argv))


def trained(method, training, val, settings, search, short):
    """The Fit of rows (X, y), with the lowest NLL on validation rows (X, y) of what is trained.

    short: two rounds of a tenth of the epochs, the second from where the first ended; and all
    epochs, from the start, where GAIN or LEARNT say so. search: the first training is by choose.
    """
    X_val, y_val = val
    once = partial(fit, *training, method, X_val=X_val, y_val=y_val)
    start_of = partial(choose, *training, *val, method) if search else once
    if not short or method in WHOLE_ROWS:
        return start_of(**settings)
    few = dict(settings, epochs=round_epochs(settings), lr=LARGE_STEP)
    first = start_of(**few)
    chosen = dict(beta_reg=first.beta_reg, gamma=first.gamma)
    fits = [first, once(**dict(few, start=first.params) | chosen)]
    now = fits[1].validation
    if now < first.validation - GAIN or now > nll(y_val, 0 * y_val, 1 + 0 * y_val) - LEARNT:
        fits.append(once(**settings | chosen))
    return min(fits, key=lambda one: one.validation)


def round_epochs(settings):
    """The epochs of a round of `trained`."""
    return max(1, settings["epochs"] // 10)


def epochs_of(method, settings, search, short):
    """The least and the most epochs of `trained`."""
    values = GAMMAS if method == "gamma-robust" else BETAS.get(method, (1.0,))
    trainings = len(values) if search else 1
    if not short:
        return np.full(2, trainings * settings["epochs"])
    least = (trainings + 1) * round_epochs(settings)
    return np.array([least, least + settings["epochs"]])


def fit_each(methods, training, val, settings, search, stop, short=False, say=lambda text: None):
    """{method: Fit} of rows (X, y) and validation rows; where stop() is true, of those begun.

    short: of `trained`. say: takes what is expected in seconds, by the second epoch's, which end on
    the machine that runs.
    """
    fits = {}
    ends = []
    epochs = sum(epochs_of(method, settings, search, short) for method in methods)
    for method in methods:
        with progress(settings["epochs"]) as show:
            def callback(epoch, f):
                ends.append(time.monotonic())
                if len(ends) == 2:
                    show(None, "")
                    least, most = (ends[1] - ends[0]) * epochs
                    say(f"about {least:.0f}" + f" to {most:.0f}" * short + " s of training")
                return show(epoch, f"{method}, objective {f:.5g}, epoch") or stop()
            settings["callback"] = callback
            fits[method] = trained(method, training, val, settings, search, short)
        if stop():
            break
    return fits


def settings_of(args, N, d):
    """The arguments of fit for N training rows (N, d); a wide table sticks from l = START."""
    batch = args.batch or (200 if N <= 20_000 else 1000)
    ln_start = math.log(START)
    ln_l2 = [2 * ln_start + math.log(d)] * d                             # l = START sqrt(d)
    others = [ln_start] * (d * (args.kernel == "periodic") + 1)
    return dict(
        M=args.inducing or min(max(N // 20, 10), 100), kernel=args.kernel, batch=batch,
        epochs=args.epochs or min(400, 2000 * batch // N + 10), seed=args.seed,
        start=dict(ln_theta=np.array(ln_l2 + others)))


def score_table(argv):
    """The work of main."""
    ap = command_line()
    args = ap.parse_args(argv)
    check_files(ap, args)
    check_counts(args, "epochs", "batch", "inducing")
    check_count("--seed", args.seed, 0)
    if args.model is not None:
        return use_model(args, saving.load(args.model, "predictive"), limits)
    table, said, read = table_of(args, demo_table())
    if args.table is None:
        args.inducing = args.inducing or 10
    *inputs, name = table.names
    new = new_rows(args, inputs)
    X, y = table.values[:, :-1], table.values[:, -1]
    (training, test, val), scale = three_parts(X, y, np.random.default_rng(args.seed))
    warnings.filterwarnings("ignore", UNSCALED)      # scaled as well as the training rows allow

    def work(stop):
        N = len(training[1])
        if args.inducing is not None:
            args.inducing = at_most_rows(args.inducing, training[1])
        settings = settings_of(args, N, len(inputs))
        cut = args.epochs is None and settings["epochs"] < 400
        epochs = f"; at most {settings['epochs']} epochs (--epochs), for its size" * cut
        emit(args, said + epochs + "\n")
        methods = args.methods or ["PPGPR-MFD", "SVGP"] + ["exact"] * (N <= EXACT_ROWS)
        large = len(y) >= LARGE
        short = large and args.epochs is None
        say = lambda text: warnings.warn(text, FitWarning, stacklevel=2)
        if not large or set(methods) & set(WHOLE_ROWS):
            say = lambda text: None
        fits = fit_each(methods, training, val, settings, args.search, stop, short, say)
        best = min(fits, key=lambda method: fits[method].validation)
        found = all_scores(fits, *test)
        series = is_series(X)
        text = report(fits, best, *test, name, scale.unit, N, len(val[1]), series)
        emit(args, text)
        about = dict(held_out_rows=len(test[1]), unit=scale.unit, scores=found, best=best,
                     text=text)
        last = fits[best]
        if series and (args.predict is not None or args.save is not None):
            rows = map(np.concatenate, zip(training, val, test))
            same = dict(settings, beta_reg=last.beta_reg, gamma=last.gamma)
            last = fit_each([best], list(rows), val, same, False, stop, short)[best]
        model = Model(last, scale, inputs, name, about)
        means = {method: saving.in_table(*predict_y(fit, test[0]), scale)[0]
                 for method, fit in fits.items()}
        targets, _ = saving.in_table(test[1], 0, scale)
        plots = [lambda ax: draw_predicted(ax, means, targets, name),
                 lambda ax: draw_calibration(ax, fits, *test)]
        finish(args, model, new, save, limits, dict(read=read, **about), plots)
        return 130 if stop() else 0
    return until_interrupted(work)
