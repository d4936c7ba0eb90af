"""`python predictive.py my.csv`: trains predictive GPs on a table and scores them on held-out rows."""
import math
import warnings
from statistics import NormalDist

import numpy as np

import predictive
from pacgp_ref import check_count, scale_of, scaled
from predictive import (METHODS, PROFILES, START, choose, crps, fit, nll,
                        noise_fraction, predict, rmse)
from own_data.command_line import (UNSCALED, at_most_rows, check_files, draw_predicted, emit,
                                   exit_status, finish, interval, new_rows, option, parser,
                                   progress, until_interrupted, use_model)
from own_data import saving
from own_data.saving import Model, save
from own_data.tables import Table, table_of

EXACT_ROWS = 600       # training rows up to which the command line compares exact, too: 2 s with 10 inputs, 8 s at 1000 rows


def demo_table():
    """The Table of 600 rows that the command line uses without a file: a wave whose noise grows along x."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, 600)
    return Table(["x", "y"], np.column_stack([x, np.sin(x) + (0.02 + 0.05 * x) * rng.standard_normal(600)]), True)


def three_parts(X, y, rng):
    """[(X, y) of training, test, validation], 15:3:2 at random as in J App. C.1, scaled by the training rows; the Scale.

    A column that does not vary in the training rows becomes 0. ValueError for fewer than 25 rows, and where scaling overflows.
    """
    order, n = rng.permutation(len(y)), len(y)
    if n < 25:                                                           # fewer than four test rows, which report cuts in four
        raise ValueError(f"{n} rows are too few to train, test and validate on: at least 25")
    parts = np.split(order, [n * 15 // 20, n * 18 // 20])
    scale = scale_of(X[parts[0]], y[parts[0]])
    X, y = scaled(X, y, scale)
    return [(X[rows], y[rows]) for rows in parts], scale


SHARES = (0.5, 0.8, 0.95)      # of the rows, that central intervals are to hold


def scores(y, mean, var_f, var):
    """Scores of predictions of y (n,), as a dict; `inside`: shares of rows in the intervals of SHARES."""
    inside = [float(np.mean(np.abs(y - mean) < NormalDist().inv_cdf((1 + share) / 2) * np.sqrt(var))) for share in SHARES]
    return dict(NLL=nll(y, mean, var), RMSE=rmse(y, mean), CRPS=crps(y, mean, var),
                noise_fraction=noise_fraction(var_f, var - var_f), inside=inside)


def all_scores(fits, X, y):
    """{method: scores} of the fits {method: Fit} on held-out rows X (n, d), y (n,), and of N(0, 1) as "constant"."""
    predictions = {method: predict(fit, X) for method, fit in fits.items()}
    return {name: scores(y, *at) for name, at in (predictions | {"constant": (0 * y, 0 * y, 0 * y + 1)}).items()}


def no_better(found):
    """A sentence on the methods of all_scores whose RMSE and NLL, but for a hundredth, are not below the constant's."""
    of = found["constant"]
    names = [name for name, one in found.items()
             if name != "constant" and one["RMSE"] > 0.99 * of["RMSE"] and one["NLL"] > of["NLL"] - 0.01]
    return f"\nNo better than a constant on the held-out rows: {', '.join(names)}." * bool(names)


def report(fits, X, y, name, unit):
    """Two tables of the fits {method: Fit} on held-out rows X, y: scores, and the errors they state and make by quarters.

    name, unit: the target's name and deviation.
    """
    lines = [f"{len(y)} held-out rows; {name} in units of its deviation, {unit:.5g}; NLL in nats; shares of the rows inside "
             "central intervals.", "", f"{'':<14}{'NLL':>9}{'RMSE':>9}{'CRPS':>9}{'noise fraction':>17}"
             + "".join(f"{f'in {100 * share:g} %':>10}" for share in SHARES)]
    for method, (*four, inside) in ((method, one.values()) for method, one in all_scores(fits, X, y).items()):
        lines.append(f"{method:<14}" + "".join(f"{v:9.4f}" for v in four[:3]) + f"{four[3]:17.3f}"
                     + "".join(f"{v:10.3f}" for v in inside))
    at = {method: predict(fit, X) for method, fit in fits.items()}
    first = next(iter(at))
    quarters = np.array_split(np.argsort(at[first].var, kind="stable"), 4)
    lines += ["", f"Stated and actual root mean square error in four quarters of the rows, from the surest by {first} on:", "",
              f"{'':<14}" + "".join(f"{'quarter ' + str(i):^19}" for i in (1, 2, 3, 4)),
              f"{'':<14}" + f"{'states':>9}{'errs':>9} " * 4]
    for method, (mean, _, var) in at.items():
        lines.append(f"{method:<14}" + "".join(f"{np.sqrt(np.mean(var[r])):9.4f}{rmse(y[r], mean[r]):9.4f} " for r in quarters))
    return "\n".join(line.rstrip() for line in lines)


def draw_calibration(ax, fits, X, y):
    """Share of held-out rows inside central intervals against the share that these are to hold, on an Axes."""
    wanted = np.linspace(0.02, 0.98, 49)
    for method, fit in fits.items():
        mean, _, var = predict(fit, X)
        half = np.array([NormalDist().inv_cdf((1 + share) / 2) for share in wanted])
        ax.plot(wanted, np.mean(np.abs(y - mean) < half[:, None] * np.sqrt(var), 1), label=method)
    ax.axline((0, 0), slope=1, color="0.4", lw=1)
    ax.set(xlabel="share that the interval is to hold", ylabel="share of held-out rows inside", xlim=(0, 1), ylim=(0, 1))
    ax.legend()


def limits(model, X_new):
    """mean, sd, lower, upper (n,) of y at X_new (n, d), of a Model: the interval holds 95 %."""
    mean, _, var = saving.predict(model, X_new)
    return interval(mean, var)


def command_line():
    """The parser of main."""
    ap = parser(predictive.__file__, description="Predictive densities for your table by PPGPR and SVGP (Jankowiak et al. 2020).")
    ap.add_argument("--methods", nargs="+", choices=list(METHODS), metavar="METHOD",
                    help=f"what to compare, of {', '.join(METHODS)}; default: PPGPR-MFD SVGP, and exact up to {EXACT_ROWS} "
                         "training rows; what has the lowest NLL on the validation rows predicts and is saved")
    ap.add_argument("--inducing", type=option(int), metavar="M",
                    help="inducing inputs; default: a 20th of the training rows, at least 10, at most 100")
    ap.add_argument("--kernel", choices=list(PROFILES), default="Matern52")
    ap.add_argument("--search", action="store_true", help="choose beta_reg, or gamma-robust's gamma, by the validation "
                    "rows from the paper's values: up to four trainings a method; without: 0.05 for PPGPR, 1 for the others")
    ap.add_argument("--epochs", type=option(int), help="default: 400, fewer for large tables")
    ap.add_argument("--batch", type=option(int), help="rows per step; default: 200, or 1000 above 20,000 training rows")
    ap.add_argument("--seed", type=option(int), default=0,
                    help="which rows are held out, which order, which first inducing inputs")
    return ap


def main(argv=None):
    """`python predictive.py [table] [options]`: fits --methods, prints scores on held-out rows, returns the exit status.

    Ctrl-C stops the training: what was found is scored, and the status is 130.
    """
    return exit_status(lambda: score_table(argv))


def fit_each(methods, training, val, settings, search, stop):
    """{method: Fit} of rows (X, y) and validation rows, with progress; of the methods begun where stop() says so."""
    fits = {}
    for method in methods:
        with progress(settings["epochs"]) as show:
            settings["callback"] = lambda epoch, f: show(epoch, f"{method}, objective {f:.5g}, epoch") or stop()
            fits[method] = choose(*training, *val, method, **settings) if search else \
                fit(*training, method, X_val=val[0], y_val=val[1], **settings)
        if stop():
            break
    return fits


def score_table(argv):
    """The work of main."""
    ap = command_line()
    args = ap.parse_args(argv)
    check_files(ap, args)
    epochs, batch, M = [None if given is None else check_count(f"--{name}", given) for name, given in
                        (("epochs", args.epochs), ("batch", args.batch), ("inducing", args.inducing))]
    seed = check_count("--seed", args.seed, 0)
    if args.model is not None:
        return use_model(args, saving.load(args.model, "predictive"), limits)
    table, said, read = table_of(args, demo_table())
    new = new_rows(args, table.names[:-1])
    name = table.names[-1]
    (training, test, val), scale = three_parts(table.values[:, :-1], table.values[:, -1], np.random.default_rng(seed))
    warnings.filterwarnings("ignore", UNSCALED)                          # scaled as well as the training rows allow

    def work(stop):
        N = len(training[1])
        inducing = min(max(N // 20, 10), 100) if M is None else at_most_rows(M, training[1])
        rows = batch or (200 if N <= 20_000 else 1000)
        settings = dict(M=inducing, kernel=args.kernel, batch=rows, epochs=epochs or min(400, 2000 * rows // N + 10), seed=seed)
        d, ln = len(table.names) - 1, math.log(START)                    # l = START sqrt(d): from START wide tables stick
        ln_theta = [2 * ln + math.log(d)] * d + [ln] * (d * (args.kernel == "periodic") + 1)
        settings["start"] = dict(ln_theta=np.array(ln_theta))
        cut = epochs is None and settings["epochs"] < 400
        emit(args, said + f"; {settings['epochs']} epochs (--epochs), for its size" * cut + "\n")
        methods = args.methods or ["PPGPR-MFD", "SVGP"] + ["exact"] * (N <= EXACT_ROWS)
        fits = fit_each(methods, training, val, settings, args.search, stop)
        best = min(fits, key=lambda method: fits[method].validation)
        found = all_scores(fits, *test)
        text = report(fits, *test, name, scale.unit) + \
            f"\n\n{best} has the lowest NLL on the {len(val[1])} validation rows: --predict and --save are about it." + \
            no_better(found)
        emit(args, text)
        about = dict(held_out_rows=len(test[1]), unit=scale.unit, scores=found, best=best, text=text)
        model = Model(fits[best], scale, table.names[:-1], name, about)
        predicted = {method: predict(fit, test[0]).mean for method, fit in fits.items()}
        finish(args, model, new, save, limits, dict(read=read, **about),
               [lambda ax: draw_predicted(ax, predicted, test[1], f"{name} [deviations]"),
                lambda ax: draw_calibration(ax, fits, *test)])
        return 130 if stop() else 0
    return until_interrupted(work)
