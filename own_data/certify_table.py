"""`python pacgp_ref.py my.csv`: trains a GP on a table and prints its certificate."""
import math
import warnings
from functools import partial
from typing import Callable, NamedTuple

import numpy as np

import pacgp_ref
from pacgp_ref import (BOUNDS, FAMILIES, GRID, LN_BOX, LOSSES, METHODS, RELATIVE_LOSSES, SMALL,
                       TINY, VAR_FLOOR, bayes_risk_bound, check_count, check_scalar, gibbs_risk,
                       predict, repeated_rows)
from beyond.certificates import draw_part, held_out, prior_from_part
from beyond.rounding import strict
from beyond.search import WIDE, paper_fit, trained_part
from own_data.command_line import (REAL, UNSCALED, WHOLE, answer_and_conditions, as_given,
                                   at_most_rows, bound_text, check_counts, check_files,
                                   check_square, check_unit, confidence_percent, deviations,
                                   draw_predicted,
                                   emit, exit_status, finish, kernel_option, kernel_said,
                                   many_deviations, new_rows, parser, progress, rounded_up, threads,
                                   until_interrupted, use_model)
from own_data import saving
from own_data.saving import KERNELS, Model, fit_of, kernel_name, load, save
from own_data.scale import (FACTORS, Scale, shared_inputs, standardise, unit_of_all,
                            without_counters)
from own_data.tables import Table, few, incomplete, many, table_of

# Of the objective; fewer for large tables.
MOST_EVALS = 400


def demo_table():
    """The Table of 300 rows that the command line uses without a file: a noisy wave."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, 300)
    y = np.sin(x) * np.exp(-x / 10) + 0.2 * rng.standard_normal(300)
    return Table(["x", "y"], np.column_stack([x, y]), True)


# --- what the text says --------------------------------------------------------------------------

def scale_text(how, scale, inputs, units=1):
    """What the scale of `standardise` means for the guarantee, in words; inputs: their names.

    units: how many the target's own was chosen from.
    """
    scaled = "Inputs and target are scaled by"
    strict = "so the scale does not weaken the bound: it is strict"
    text = {
        "none": "The table is used in its own units: no scale was taken from it.",
        "tenth": f"{scaled} {scale.rows} rows set aside for that, {strict}.",
        "all": f"{scaled} all rows, as in the paper: the scale saw the data, so it is not strict.",
    }.get(how, f"{scaled} the {scale.rows} other rows, {strict}.")
    if units > 1:
        text += (f" The target's unit is one of {units} multiples of their deviation, the nearest "
                 f"to that of all rows: ln {units} is paid for it.")
    constant = [name for name, unit in zip(inputs, scale.unit_X) if np.isinf(unit)]
    return text + f" Not used, since constant there: {few(constant)}." * bool(constant)


def lag_correlation(residuals):
    """Correlation of each residual (N,) with the next one; 0 where there is none to measure."""
    e = residuals - np.mean(residuals)
    return float(e[1:] @ e[:-1] / (e @ e)) if e @ e > 0 else 0.0


def claim_text(fit, prediction, unit, tolerance=None, scale_rows=0, spread=1.0):
    """What a bound on the risk of a prediction, so named, says, up to the number.

    unit: of the scaled target [y]; tolerance: eps in the target's own unit, if it was given so. It
    is rounded up. scale_rows: how many have the deviation `spread`, scaled; 0: the unit is 1.
    """
    eps = as_given(fit.eps)
    of = f" of {many(scale_rows)}"
    if tolerance is not None:
        size = as_given(tolerance)
        size += f" ({rounded_up(fit.eps)} standard deviations{of})" * (scale_rows > 0)
    elif not scale_rows:
        size = eps
    else:
        multiple = deviations(fit.eps) if spread == 1 else (
            f"{fit.eps / spread:.3g} standard deviations")
        size = f"{rounded_up(fit.eps * unit)} ({multiple}{of})"
    times = f"{eps} times the true value's size"
    if fit.loss == "01":
        return f"{prediction} misses by more than {size} with probability"
    if fit.loss == "band":
        return f"{prediction} misses by more than {times} with probability"
    if fit.loss == "relative":
        return f"the error of {prediction}, divided by {times} and cut at 1, is on average"
    return f"the {fit.loss} loss with eps = {size} of {prediction} is on average"


def lengthscale_rows(ln_l, inputs, name="lengthscale"):
    """[(label, value)] of the lengthscales; of many the nine shortest, and the least of the others.

    Many are more than ten. name: of what they are.
    """
    order = np.argsort(ln_l, kind="stable")
    first = range(len(ln_l))
    if len(ln_l) > 10:
        first = sorted(order[:9])
    rows = []
    for i in first:
        of = f" ({inputs[i]})" if len(inputs) == len(ln_l) > 1 else ""
        rows.append((f"{name} {name[0]}_{i + 1}{of}, scaled", math.exp(ln_l[i])))
    if len(first) < len(ln_l):
        label = f"the {len(ln_l) - 9} other {name}s, at least"
        rows.append((label, math.exp(ln_l[order[9]])))
    return rows


def scales_of(fit):
    """ln of the lengthscales of a Fit, and of the periods of a periodic kernel."""
    ln_l2, ln_periods = np.split(fit.ln_theta[:-1], [fit.Z.shape[1]])
    return ln_l2 / 2, ln_periods


def stated(bound, mean_bound):
    """The bound that the answer states: the mean's, where that says anything."""
    return mean_bound if mean_bound < 1 else bound


def at_limit(fit, inputs):
    """Names of the parameters of a Fit that end where their search does."""
    ln_l, ln_periods = scales_of(fit)
    names = [label.split(",")[0] for label, _ in lengthscale_rows(ln_l, inputs)]
    if len(ln_l) > 10:
        names = [f"lengthscale l_{i + 1}" for i in range(len(ln_l))]
    names += [f"period p_{i + 1}" for i in range(len(ln_periods))] + ["signal"]
    ends = np.isin(np.abs(fit.ln_theta), (GRID[0], WIDE[0]))
    ends = [name for name, end in zip(names, ends) if end]
    return ends + ["noise"] * (abs(fit.ln_noise) >= LN_BOX)


def number_rows(certified, held, bounds, mean_bound, guessing, r, r_sqrt_N, inputs):
    """[(label, value)] of the table under the paragraph; arguments as certificate_text."""
    fit = certified.fit
    by_bound = METHODS[fit.method][1] in BOUNDS
    if held:
        rows = [("risk on the held-out rows", f"{held.risk:.4f}"),
                ("risk of the mean there", f"{held.mean_risk:.4f}"),
                (f"B = kl^-1(risk, ln({bounds}/delta)/N)", bound_text(held.bound)),
                ("bound for the mean", bound_text(mean_bound))]
    else:
        rows = [("training risk R_S", f"{fit.risk:.4f}"),
                ("KL(Q||P)/N", fit.KL / fit.N),
                ("penalty/N (grid, choice of eps)", fit.penalty / fit.N),
                ("confidence term/N", fit.ln_confidence / fit.N),
                ("B = kl^-1(R_S, sum of the three)", bound_text(fit.bound)),
                ("B_Pin (Pinsker)", bound_text(fit.pinsker))]
    noise = f"{math.exp(fit.ln_noise):12.4g}" + "  (by the bound: no estimate)" * by_bound
    rows += [("measured: guessing the mean", f"{guessing:.4f}"),
             ("repeated rows", str(fit.repeats)),
             ("lag-1 correlation r of residuals", f"{r:.4f}"),
             ("r sqrt(N)", f"{r_sqrt_N:.4f}"),
             ("noise sigma_n^2, scaled", noise)]
    if certified.prior_rows:
        rows += [("the same, rows that certify", math.exp(fit.ln_noise + certified.temper))]
    rows += [("signal sigma_s^2, scaled", math.exp(fit.ln_theta[-1]))]
    ln_l, ln_periods = scales_of(fit)
    return (rows + lengthscale_rows(ln_l, inputs)
            + lengthscale_rows(ln_periods, inputs, "period"))


def certificate_text(certified, name, unit, about_scale, residuals, guessing, dropped=0,
                     held=None, delta=None, bounds=1, tolerance=None, inputs=(), scale_rows=0,
                     shared=0, spread=1.0):
    """The certificate of a Certified: the answer, a table, the conditions as a list.

    Tolerance and bounds are rounded up, the confidence down. unit, tolerance, scale_rows, spread:
    of claim_text; about_scale: a sentence; residuals: of rows in file order; guessing: risk of the
    training rows' mean as a prediction; dropped: incomplete rows; held: HeldOut, if its bounds are
    meant; delta: of all that is printed, so many bounds; inputs: their names; shared: rows that
    certify and have the inputs of another.
    """
    fit = certified.fit
    rows = "groups of rows" if held and held.grouped else "rows"
    N, B, mean_bound = fit.N, fit.bound, bayes_risk_bound(fit.bound)
    others = ""
    if held:
        N, B, mean_bound = held.N, held.bound, held.mean_bound
        others = f" held out ({fit.N} other{' rows' * held.grouped or 's'} trained it)"
    if certified.prior_rows:
        others += f" that certify ({certified.prior_rows} others chose the prior)"
    delta = fit.delta if delta is None else delta
    name += " of complete rows" * (dropped > 0)
    r = lag_correlation(residuals)
    r_sqrt_N = r * math.sqrt(len(residuals))
    claim_of = partial(claim_text, fit, unit=unit, tolerance=tolerance, scale_rows=scale_rows,
                       spread=spread)
    if mean_bound < 1:
        claim = (f"{claim_of(f'the predicted {name}')} at most "
                 f"{bound_text(mean_bound)}. For a function sampled from the GP it is at most "
                 f"{bound_text(B)}.")
    elif B <= 0.9999:
        sampled = claim_of(f"a prediction of {name} sampled from this GP")
        claim = (f"{sampled} at most {bound_text(B)}. Nothing is "
                 "certified of the GP's mean" + ", since twice that is above 1" * (not held) + ".")
    else:
        claim = "nothing is certified (B > 0.9999)."
    answer = f"With {confidence_percent(delta)} % confidence {claim}"
    if stated(B, mean_bound) >= guessing:
        answer += (" By this certificate the GP cannot be told from guessing the mean of the "
                   f"training rows, whose measured risk on the same rows is {guessing:.4f}"
                   + "; --certificate held-out may tell" * (not held) + ".")
    if shared:
        answer += (f" {many(shared)} that certify {'has' if shared == 1 else 'have'} the inputs of "
                   "another row: of new groups of such rows this says nothing (--group).")
    if fit.KL < 0.01 and not others:
        answer += f" The GP learnt next to nothing: KL = {fit.KL:.2g} nats."
    table = []
    for label, value in number_rows(certified, held, bounds, mean_bound, guessing, r,
                                    r_sqrt_N, inputs):
        value = value if isinstance(value, str) else format(value, ".4g")
        table.append(f"  {label:<34}{value:>12}")
    family, _ = METHODS[fit.method]
    size = f", M = {len(fit.Z)}" * FAMILIES[family].inducing
    kernel = kernel_said(fit.kernel)
    kernel += "; " * bool(kernel)
    return answer_and_conditions(answer, table, [
        many_deviations(fit.eps) * (tolerance is None and unit != 1),
        f"The confidence is over the draw of the {N} {rows}{others}.",
        f"These {rows}, and new ones, must be drawn independently from one source.",
        "The residuals of neighbouring rows are correlated, so the rows do not look independent: "
        "python online.py certifies rows in their order, whatever their dependence."
        * (abs(r_sqrt_N) > 4),
        f"Equal to an earlier row: {many(fit.repeats)}. Independent rows seldom are."
        * (fit.repeats > 0),
        "The prediction is the GP's mean. A function sampled from the GP has no observation noise; "
        "its risk is the Gibbs risk.",
        about_scale,
        f"All {bounds} bounds printed hold together (a union bound)." * (bounds > 1),
        f"It is about complete rows: {incomplete(dropped)}." * (dropped > 0),
        f"At an end of the range that is searched: {few(at_limit(fit, inputs))}."
        * bool(at_limit(fit, inputs)),
        f"Method: {fit.method}{size}; {kernel}optimiser: {fit.optimum.message}."])


def next_step(certificates, args):
    """What to try next, a line; certificates: dicts of `described`."""
    told = any(stated(one["bound"], one["mean_bound"]) < one["guessing"] for one in certificates)
    if not told and "held-out" not in args.certificate:
        both = confidence_percent(min(2 * args.delta, 1))
        return ("Next: --certificate held-out, which is often tighter; this run and that hold "
                f"together with {both} % confidence.")
    if not told:
        return "Next: more rows, or a larger tolerance, fixed before new rows are seen."
    if args.table is None:
        return "Next: your own table, python pacgp_ref.py my.csv; --help lists the options."
    return "Next: --predict NEW predicts, --save MODEL keeps what was trained."


# --- predictions and plots -----------------------------------------------------------------------

def tolerance_ends(model, mean):
    """lower, upper of tolerance_limits about means (n,) [y]."""
    fit = fit_of(model)
    eps = fit.eps
    tolerance = eps * model.scale.unit
    if fit.loss not in RELATIVE_LOSSES:
        return mean - tolerance, mean + tolerance
    if eps >= 1:
        return np.full(len(mean), -np.inf), np.full(len(mean), np.inf)
    lower, upper = np.sort([mean / (1 + eps), mean / (1 - eps)], axis=0)
    return lower, upper


def tolerance_limits(model, X_new):
    """mean, sd, lower, upper (n,) [y] at X_new (n, d), of a Model.

    The limits are the mean -+ eps, or where |mean - y| <= eps |y| is met. No finite limit is sure
    where that tolerance has eps >= 1.
    """
    mean, var = saving.predict(model, X_new)
    return mean, np.sqrt(var), *tolerance_ends(model, mean)


def draw_tolerance(ax, model, mean, y):
    """Actual targets y (n,) against means (n,), between mean -+ tolerance, on an Axes."""
    along = np.sort(mean)
    for end, label in zip(tolerance_ends(model, along), ("tolerance", None)):
        ax.plot(along, end, "--", color="#D55E00", lw=1, label=label)
    kind = CERTIFICATES[model.about["certificate"]]
    draw_predicted(ax, {kind.rows: mean}, y, model.target)


def draw_bounds(ax, certificates, name):
    """Risk and bound against eps, on an Axes."""
    order = sorted(certificates, key=lambda one: one["eps"])
    for i, kind in enumerate(dict.fromkeys(one["certificate"] for one in order)):
        ours = [one for one in order if one["certificate"] == kind]
        eps = [one["eps"] * one["unit"] for one in ours]
        for what, style in (("bound", "o-"), ("risk", "s--")):
            values = [one[what] for one in ours]
            ax.plot(eps, values, style, color=f"C{i}", label=f"{kind}: {what}")
    name = name.replace("$", r"\$")
    ax.set(xlabel=f"tolerance eps, in the unit of {name}", ylabel="risk and its bound", ylim=(0, 1))
    ax.legend()


# --- the program ---------------------------------------------------------------------------------

def command_line():
    """The parser of main."""
    ap = parser(pacgp_ref.__file__, "the mean -+ the tolerance",
                description="PAC-Bayes certificate for a Gaussian process on your table "
                            "(Reeb et al. 2018).")
    ap.add_argument("--eps", type=REAL, nargs="+",
                    help="tolerance, fixed before seeing the data; several loosen the bound a "
                         "little; default: 0.6 in --unit scale")
    ap.add_argument("--unit", choices=["scale", "y"], default="scale",
                    help="unit of eps: the standard deviation of the rows that --scale takes, or "
                         "the target's own unit (scale)")
    ap.add_argument("--delta", type=REAL, default=0.01,
                    help="probability that the certificate fails (0.01)")
    ap.add_argument("--sparse", type=WHOLE, metavar="M",
                    help="M inducing inputs; default: 100 above 1000 rows, else the full GP")
    ap.add_argument("--certificate", choices=list(CERTIFICATES), nargs="+", default=["paper"],
                    help="by a prior before all rows (paper); not in the paper: by a prior that a "
                         "part of the rows trains, by held-out rows; delta is divided among "
                         "several (union bound)")
    ap.add_argument("--prior", type=REAL, default=0.5, metavar="FRACTION",
                    help="fraction of the rows that trains, for prior and held-out (0.5)")
    ap.add_argument("--method", choices=[m for m in METHODS if "free" not in m],
                    help="default: kl-PAC-GP or kl-PAC-SGP; full-GP or VFE for prior and held-out")
    ap.add_argument("--loss", choices=list(LOSSES), default="01", help="default: 01")
    ap.add_argument("--scale", choices=["tenth", "all", "none"],
                    help="rows to standardise by (paper: a tenth, then left out; prior and "
                         "held-out: the part that trains)")
    kernel_option(ap, None, "; prior and held-out: the part that trains chooses SE or Matern")
    for option, ard in (("--ard", True), ("--no-ard", False)):
        ap.add_argument(option, dest="ard", action="store_const", const=ard,
                        help=f"{'one lengthscale per column' if ard else 'one lengthscale'}; "
                             "default: the better of both, for which the bound pays")
    ap.add_argument("--group",
                    help="column of numbers, not an input, equal in rows that belong together; for "
                         "held-out alone: a group stays in one part and counts as one row")
    ap.add_argument("--exact", action="store_true",
                    help="xi(N) for 2 sqrt(N): a slightly tighter certificate")
    ap.add_argument("--evals", type=WHOLE,
                    help="most evaluations of the objective; default: 400, fewer for large tables")
    ap.add_argument("--seed", type=WHOLE, default=0,
                    help="which tenth or part, which first inducing inputs; the best of several "
                         "seeds is not certified")
    return ap


def main(argv=None):
    """`python pacgp_ref.py [table] [options]`: trains a GP on a table, prints its certificate.

    Returns the exit status. Ctrl-C stops the training: what was found is certified, and the status
    is 130.
    """
    return exit_status(lambda: certify_table(argv))


def check_options(args):
    """Checks the options, in place; ValueError that names the option."""
    check_unit(args)
    args.eps = [check_scalar("--eps", eps, 0) for eps in args.eps or [0.6]]
    for eps in args.eps:
        check_square(eps, args.loss)
    args.delta = check_scalar("--delta", args.delta, 0, 1)
    if args.delta < 1e-300:
        raise ValueError(f"--delta must be at least 1e-300, got {args.delta:g}")
    args.seed = check_count("--seed", args.seed, 0)
    check_counts(args, "evals", "sparse")
    args.certificate = list(dict.fromkeys(args.certificate))
    args.prior = check_scalar("--prior", args.prior, 0, 1)
    if args.unit == "y" and args.loss in RELATIVE_LOSSES:
        raise ValueError(f"--unit y: eps of --loss {args.loss} is a fraction of the target's "
                         "size and has no unit")
    if args.scale == "tenth" and any(CERTIFICATES[name].part for name in args.certificate):
        raise ValueError("--scale tenth is for --certificate paper alone: the others are scaled "
                         "by the part that trains")


def certify_table(argv):
    """The work of main."""
    ap = command_line()
    args = ap.parse_args(argv)
    check_files(ap, args)
    check_options(args)
    if args.model is not None:
        return use_model(args, load(args.model), tolerance_limits)
    several = len(args.eps) * len(args.certificate) > 1
    if several and (args.predict is not None or args.save is not None):
        raise ValueError("--predict and --save are about one GP: "
                         "give one --eps and one --certificate")
    table, said, read = table_of(args, demo_table())
    *inputs, name = table.names
    new = new_rows(args, inputs)
    X, y = table.values[:, :-1], table.values[:, -1]
    if args.scale != "none":
        warnings.filterwarnings("ignore", UNSCALED)      # scaled as well as the rows for it allow
    # The text says it, of the bound that is meant.
    warnings.filterwarnings("ignore", ".* certifies next to nothing|.* rows of .* repeat")
    # Refused before anything is printed.
    plans = [planned(kind, X, y, args, table.groups) for kind in args.certificate]

    def work(stop):
        cuts = [f"{plan.evals} evaluations" + f" of {plan.kind}" * (len(plans) > 1)
                for plan in plans if args.evals is None and plan.evals < MOST_EVALS]
        cut = f"; at most {', '.join(cuts)} (--evals), for its size" * bool(cuts)
        emit(args, said + cut + "\n")
        certificates = []
        for plan in plans:
            for eps in args.eps:
                model, mean, y = certificate_of(plan, eps, args, table, stop)
                title = f"Certificate: {plan.kind}, eps = {as_given(eps)}\n\n" * several
                emit(args, f"{title}{model.about['text']}\n")
                certificates.append(model.about)
        if args.predict is None:
            emit(args, next_step(certificates, args))
        draw = partial(draw_tolerance, model=model, mean=mean, y=y)
        if several:
            draw = partial(draw_bounds, certificates=certificates, name=name)
        facts = dict(read=read, certificates=certificates)
        finish(args, model, new, save, tolerance_limits, facts, [draw])
        return 130 if stop() else 0
    return until_interrupted(work)


class Plan(NamedTuple):
    """How one of CERTIFICATES is made."""
    kind: str
    first: np.ndarray          # rows that train, or a slice: all
    rest: np.ndarray           # rows that certify, the others, or all
    X: np.ndarray              # (N, d) scaled
    y: np.ndarray              # (N,) scaled
    scale: Scale
    how: str                   # of standardise
    method: str
    M: int
    evals: int
    groups: np.ndarray = None  # (N,) labels, or None: each row is one
    units: int = 1             # how many units of y there were to choose from


def planned(name, X, y, args, groups=None):
    """The Plan of one of CERTIFICATES for rows X (N, d), y (N,), in groups (N,) if given."""
    kind = CERTIFICATES[name]
    if groups is not None and (name != "held-out" or args.scale is not None):
        raise ValueError("--group is for --certificate held-out, without --scale")
    how = args.scale or (args.prior if kind.part else "tenth")
    relative = args.loss in RELATIVE_LOSSES
    first = rest = slice(None)
    if kind.part:
        first = draw_part(X, y, args.prior, args.seed, groups)
        rest = np.setdiff1d(np.arange(len(y)), first)
    X, y, scale = standardise(X, y, first if args.scale is None and kind.part else how, relative, args.seed)
    units = 1
    if how == "tenth" and args.unit == "scale" and not relative:
        y, scale = unit_of_all(y, scale)
        units = len(FACTORS)
    small = args.sparse is None and len(y) <= 1000
    full, sparse = kind.methods
    method = args.method or (full if small else sparse)
    family, _ = METHODS[method]
    inducing = FAMILIES[family].inducing
    if args.sparse is not None and not inducing:
        raise ValueError(f"--sparse {args.sparse} needs a sparse method, not {method}")
    trains = y[first]
    n = len(trains)
    M = min(100, n) if args.sparse is None else at_most_rows(args.sparse, trains)
    columns = M if inducing else n / 2
    most = int(np.clip(5e10 / (min(n, SMALL) * columns**2), 30, MOST_EVALS))
    return Plan(name, first, rest, X, y, scale, how, method, M, args.evals or most, groups, units)


def guessing_risk(plan, eps, loss):
    """Risk, on the rows that certify, of the mean of the rows that give Q as a prediction."""
    kind = CERTIFICATES[plan.kind]
    y = plan.y[plan.rest]
    mean = np.mean(plan.y if kind.whole else plan.y[plan.first])
    nothing = max(VAR_FLOOR**2 * np.mean(plan.y**2), TINY)  # so small a variance: the mean itself
    guess = np.full(len(y), mean)
    return gibbs_risk(y, guess, 0 * guess + nothing, eps, loss)


def trained(plan, eps, share, args, stop):
    """The Certified of a Plan; share: the number of bounds delta is divided among, of one eps."""
    with progress(plan.evals) as show:
        def callback(n, f):
            return show(n, f"objective {f:.5g}, evaluation") or stop()
        gp = CERTIFICATES[plan.kind].train(
            plan, args, eps=eps, delta=args.delta / share, loss=args.loss, ard=args.ard,
            n_eps=len(args.eps) * plan.units, exact=args.exact, max_evals=plan.evals,
            last_evals=args.evals, seed=args.seed, over=threads(), callback=callback,
            kernel=KERNELS.get(args.kernel))
    repeats = repeated_rows(without_counters(plan.X), plan.y)    # a twin elsewhere is no new row
    return gp._replace(fit=gp.fit._replace(repeats=repeats))


def certificate_of(plan, eps, args, table, stop):
    """The Model of a Plan at the tolerance eps, trained and certified; mean and target (n,) [y].

    Its `about` is the certificate as a dict for --json. The rows of mean and target are those that
    give Q, or are held out.
    """
    share = sum(CERTIFICATES[name].bounds for name in args.certificate)
    bounds = share * len(args.eps)
    tolerance = None
    if args.unit == "y":
        tolerance = eps
        eps = eps / plan.scale.unit
    guessing = guessing_risk(plan, eps, args.loss)
    gp = trained(plan, eps, share, args, stop)
    held = CERTIFICATES[plan.kind].certify(gp, plan, args.delta / bounds)
    return described(plan, gp, held, guessing, tolerance, bounds, args.delta, table)


def described(plan, gp, held, guessing, tolerance, bounds, delta, table):
    """As certificate_of, of the Certified gp; held: its HeldOut or None; others: certificate_text.
    """
    *inputs, name = table.names
    scale = plan.scale
    rows = slice(None) if CERTIFICATES[plan.kind].whole else plan.rest
    y = plan.y[rows]
    mean, _ = predict(gp, plan.X[rows])
    fit = gp.fit
    shared = 0 if plan.groups is not None else shared_inputs(plan.X, plan.rest)
    by = held or fit
    mean_bound = held.mean_bound if held else bayes_risk_bound(fit.bound)
    scale_rows, spread = (len(y), np.std(y)) if plan.units > 1 else (scale.rows, 1.0)
    text = certificate_text(
        gp, name, scale.unit, scale_text(plan.how, scale, inputs, plan.units), y - mean, guessing,
        table.dropped, held, delta, bounds, tolerance, inputs, scale_rows, shared, spread)
    lengthscales, periods = map(np.exp, scales_of(fit))
    about = dict(
        certificate=plan.kind, method=plan.method, kernel=kernel_name(fit.kernel), loss=fit.loss,
        eps=fit.eps, unit=scale.unit, delta=delta, bounds=bounds, risk=by.risk, bound=by.bound,
        mean_bound=mean_bound, N=by.N, dropped=table.dropped, shared_inputs=shared,
        KL=fit.KL, guessing=guessing,
        noise=math.exp(fit.ln_noise), signal=math.exp(fit.ln_theta[-1]),
        lengthscales=lengthscales.tolist(), periods=periods.tolist(), text=text)
    target = scale.middle + scale.unit * y
    return Model(gp, scale, inputs, name, about), target - scale.unit * (y - mean), target


# --- the kinds of certificates -------------------------------------------------------------------

class Kind(NamedTuple):
    """A kind of certificate: its rows, how it trains, certifies and is drawn."""
    bounds: int                # how many it states
    part: bool                 # whether a part of the rows trains, and the others certify
    whole: bool                # whether all rows give Q, and are drawn; else those that certify are
    methods: tuple             # the full and the sparse one, by default
    rows: str                  # what the drawn ones are called
    train: Callable            # (plan, args, settings of multistart_fit) -> Certified
    certify: Callable          # (Certified, plan, delta) -> HeldOut, or None: it has its bound


def train_paper(plan, args, **settings):
    """The Certified of all rows, which certify."""
    X = plan.X[plan.first]
    y = plan.y[plan.first]
    return strict(paper_fit(X, y, plan.method, plan.M, **settings), X, y, settings["over"])


def train_part(plan, args, **settings):
    """The Certified of a part, which certifies nothing."""
    X = plan.X[plan.first]
    gp, y = trained_part(X, plan.y[plan.first], plan.method, plan.M, **settings)
    return strict(gp, X, y, settings["over"])


def train_prior(plan, args, **settings):
    """The Certified whose prior is trained by a part of the rows."""
    return prior_from_part(plan.X, plan.y, plan.method, plan.M, plan.first, **settings)


def certify_trained(gp, plan, delta):
    """None: the Certified gp has its bound."""


def certify_held_out(gp, plan, delta):
    """The HeldOut of the rows that did not train."""
    groups = None if plan.groups is None else plan.groups[plan.rest]
    return held_out(gp, plan.X[plan.rest], plan.y[plan.rest], delta, groups=groups)


# Of the command line.
CERTIFICATES = {
    "paper": Kind(1, False, True, ("kl-PAC-GP", "kl-PAC-SGP"), "training rows", train_paper,
                  certify_trained),
    "prior": Kind(1, True, True, ("full-GP", "VFE"), "training rows", train_prior, certify_trained),
    "held-out": Kind(2, True, False, ("full-GP", "VFE"), "held-out rows", train_part,
                     certify_held_out),
}
