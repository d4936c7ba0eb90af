"""`python pacgp_ref.py my.csv`: trains a GP on a table and prints its certificate."""
import math
import warnings
from functools import partial

import numpy as np

import pacgp_ref
from pacgp_ref import (BOUNDS, LOSSES, METHODS, SMALL, TINY, VAR_FLOOR, bayes_risk_bound,
                       check_count, check_scalar, fit, gibbs_risk, part_one, predict,
                       repeated_rows, standardise)
from beyond.certificates import held_out, prior_from_part
from beyond.rounding import strict
from own_data.command_line import (UNSCALED, as_given, at_most_rows, bound_text, check_files,
                                   confidence, draw_predicted, emit, exit_status, finish, new_rows,
                                   option, parser, progress, rounded_up, threads,
                                   until_interrupted, use_model)
from own_data import saving
from own_data.saving import Model, load, save
from own_data.tables import Table, few, incomplete, table_of

CERTIFICATES = {"paper": 1, "prior": 1, "held-out": 2}       # of the command line -> how many bounds it states


def demo_table():
    """The Table of 300 rows that the command line uses without a file: a noisy wave."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, 300)
    return Table(["x", "y"], np.column_stack([x, np.sin(x) * np.exp(-x / 10) + 0.2 * rng.standard_normal(300)]), True)


def scale_text(how, scale, inputs):
    """What the scale of `standardise` means for the guarantee, in words; inputs: their names."""
    text = {"none": "The table is used in its own units: no scale was taken from it.",
            "tenth": f"Inputs and target are scaled by {scale.rows} rows set aside for that: as far as the scale goes, it is "
                     f"strict.",
            "part": f"Inputs and target are scaled by the {scale.rows} other rows: as far as the scale goes, it is strict.",
            "all": "Inputs and target are scaled by all rows, as in the paper: the scale saw the data, so it is not strict."}
    constant = [name for name, unit in zip(inputs, scale.unit_X) if np.isinf(unit)]
    return text.get(how, text["part"]) + f" Not used, since constant there: {few(constant)}." * bool(constant)


def lag_correlation(residuals):
    """Correlation of each residual (N,) with the next one; 0 where there is none to measure."""
    e = residuals - np.mean(residuals)
    return float(e[1:] @ e[:-1] / (e @ e)) if e @ e > 0 else 0.0


def claim_text(fit, name, unit, goal=None):
    """What a bound on the risk of a drawn prediction says, up to the number; the goal rounded up.

    unit: of the scaled target [y]; goal: eps in the target's own unit, if it was given so.
    """
    if goal is not None:
        goal = as_given(goal) + f" ({rounded_up(fit.eps)} standard deviations)" * (unit != 1)
    elif unit == 1:
        goal = as_given(fit.eps)
    else:
        goal = f"{as_given(fit.eps)} standard deviations ({rounded_up(fit.eps * unit)} in its units)"
    drawn, times = f"prediction of {name} drawn from this GP", f"{as_given(fit.eps)} times the true value's size"
    return {"01": f"a {drawn} misses by more than {goal} with probability",
            "band": f"a {drawn} misses by more than {times} with probability",
            "relative": f"the error of a {drawn}, divided by {times} and cut at 1, is on average",
            }.get(fit.loss, f"the {fit.loss} loss with eps = {goal} of a {drawn} is on average")


def lengthscale_rows(ln_l, inputs):
    """[(label, value)] of the lengthscales; of more than ten the nine shortest, and the least of the others."""
    order = np.argsort(ln_l, kind="stable")
    first = range(len(ln_l)) if len(ln_l) <= 10 else sorted(order[:9])
    of = lambda i: f" ({inputs[i]})" if len(inputs) == len(ln_l) > 1 else ""
    rows = [(f"lengthscale l_{i + 1}{of(i)}, scaled", math.exp(ln_l[i])) for i in first]
    if len(first) < len(ln_l):
        rows += [(f"the {len(ln_l) - 9} other lengthscales, at least", math.exp(ln_l[order[9]]))]
    return rows


def goal_ends(model, mean):
    """lower, upper of goal_limits about means (n,) [y]."""
    eps, goal = model.fit.eps, model.fit.eps * model.scale.unit
    lower, upper = mean - goal, mean + goal
    if model.fit.loss in ("band", "relative"):
        ends = np.sort([mean / (1 + eps), mean / (1 - eps) if eps < 1 else np.inf * mean], axis=0)
        lower, upper = ends if eps < 1 else (np.full(len(mean), -np.inf), np.full(len(mean), np.inf))
    return lower, upper


def goal_limits(model, X_new):
    """mean, sd, lower, upper (n,) [y] at X_new (n, d), of a Model: the mean -+ eps, or where |mean - y| <= eps |y| is met.

    No finite limit is sure where that goal has eps >= 1.
    """
    mean, var = saving.predict(model, X_new)
    return mean, np.sqrt(var), *goal_ends(model, mean)


def draw_goal(ax, model, mean, y):
    """Actual targets y (n,) against means (n,), between the limits of the goal, on an Axes."""
    held, mean_line = model.about["certificate"] == "held-out", np.sort(mean)
    for end, label in zip(goal_ends(model, mean_line), ("goal", None)):
        ax.plot(mean_line, end, "--", color="#D55E00", lw=1, label=label)
    draw_predicted(ax, {"rows held out" if held else "training rows": mean}, y, model.target)


def certificate_text(fit, name, unit, about_scale, residuals, guessing, dropped=0, held=None, delta=None,
                     bounds=1, goal=None, inputs=()):
    """The certificate as a paragraph and a table, goals and bounds rounded up, confidence down.

    unit, goal: of claim_text; about_scale: a sentence; residuals: of rows in file order; guessing: risk of the training rows'
    mean as a prediction; dropped: incomplete rows; held: HeldOut, if its bounds are meant; delta: of all that is printed, so
    many bounds; inputs: their names.
    """
    import textwrap
    N, B, delta = held.N if held else fit.N, held.bound if held else fit.bound, fit.delta if delta is None else delta
    mean_bound, r = held.mean_bound if held else bayes_risk_bound(fit.bound), lag_correlation(residuals)
    r_sqrt_N = r * math.sqrt(len(residuals))
    by_bound = METHODS[fit.method][1] in BOUNDS
    others = f" held out ({fit.N} others trained it)" * bool(held)
    others += f" that certify ({fit.prior_rows} others chose the prior)" * bool(fit.prior_rows)
    bound = f"{claim_text(fit, name, unit, goal)} at most {bound_text(B)}." if B <= 0.9999 else "nothing is certified (B > 0.9999)."
    for_mean = " There is no bound for its mean."
    if mean_bound < 1:
        for_mean = f" For its mean the bound is {bound_text(mean_bound)}."
    guess = ""
    if min(B, mean_bound) >= guessing:
        guess = (" No bound here is better than guessing the mean of the training rows, which has a risk of "
                 f"{guessing:.4f} on the same rows.")
    together = " All bounds printed hold together." if bounds > 1 else ""
    learnt = f" The GP learnt next to nothing: KL = {fit.KL:.2g} nats." if fit.KL < 0.01 and not (held or others) else ""
    twins = f" {fit.repeats} rows repeat an earlier one, which independent rows seldom do." if fit.repeats else ""
    chained = " The residuals of neighbouring rows are correlated, so the rows do not look independent: python online.py " \
        "certifies rows in their order, whatever their dependence." if abs(r_sqrt_N) > 4 else ""
    left_out = f" It is about complete rows: {incomplete(dropped)}." if dropped else ""
    rows = [("risk on the rows held out", held.risk), ("risk of the mean there", held.mean_risk)] if held else [
        ("training risk R_S", fit.risk), ("KL(Q||P)/N", fit.KL / N), ("penalty/N (grid, choice of eps)", fit.penalty / N),
        ("confidence term/N", fit.confidence / N)]
    rows += [("B = kl^-1(risk, ln(1/delta)/N)" if held else "B = kl^-1(R_S, sum of the three)", bound_text(B))]
    rows += [("bound for the mean", bound_text(mean_bound))] if held else [("B_Pin (Pinsker)", rounded_up(fit.pinsker, 5))]
    rows += [("guessing the training rows' mean", guessing), ("repeated rows", str(fit.repeats)),
             ("lag-1 correlation r of residuals", r), ("r sqrt(N)", r_sqrt_N),
             ("noise sigma_n^2, scaled",
              f"{math.exp(fit.ln_noise):12.5g}" + "  (by the bound: no estimate)" * by_bound)]
    if fit.prior_rows:
        rows += [("the same, rows that certify", math.exp(fit.ln_noise + fit.temper))]
    rows += [("signal sigma_s^2, scaled", math.exp(fit.ln_theta[-1]))]
    rows += lengthscale_rows(fit.ln_theta[:-1] / 2, inputs)
    size = f", M = {len(fit.Z)}" if METHODS[fit.method][0] != "full" else ""
    text = (f"With {confidence(delta)} % confidence over the draw of the {N} rows{others}, {bound}{for_mean}{together}{guess} This "
            f"assumes that the rows, and new ones, are drawn independently from one source.{learnt}{twins}{chained}{left_out} "
            f"{about_scale} ({fit.method}{size}; optimiser: {fit.optimum.message})")
    text = textwrap.fill(text, 100, break_on_hyphens=False)
    return "\n".join([text, ""] + [f"  {a:<34}{b if isinstance(b, str) else format(b, '.5g'):>12}" for a, b in rows])


def command_line():
    """The parser of main."""
    ap = parser(pacgp_ref.__file__, description="PAC-Bayes certificate for a Gaussian process on your table (Reeb et al. 2018).")
    ap.add_argument("--eps", type=option(float), nargs="+", default=[0.6],
                    help="accuracy goal, fixed before seeing the data; several loosen the bound a little (0.6)")
    ap.add_argument("--unit", choices=["scale", "y"], default="scale",
                    help="unit of eps: the deviation that --scale takes, or the target's own unit (scale)")
    ap.add_argument("--delta", type=option(float), default=0.01, help="probability that the certificate fails (0.01)")
    ap.add_argument("--sparse", type=option(int), metavar="M",
                    help="M inducing inputs; default: 100 above 1000 rows, else the full GP")
    ap.add_argument("--certificate", choices=list(CERTIFICATES), nargs="+", default=["paper"],
                    help="by a prior before all rows (paper); not in the paper: by a prior that a part of the rows trains, by "
                         "rows held out; several share delta")
    ap.add_argument("--prior", type=option(float), default=0.5, metavar="SHARE",
                    help="part of the rows that trains, for prior and held-out (0.5)")
    ap.add_argument("--method", choices=[m for m in METHODS if "free" not in m],
                    help="default: kl-PAC-GP or kl-PAC-SGP; full-GP or VFE for prior and held-out")
    ap.add_argument("--loss", choices=list(LOSSES), default="01", help="default: 01")
    ap.add_argument("--scale", choices=["tenth", "all", "none"],
                    help="rows to standardise by (paper: a tenth, then left out; prior and held-out: the part that trains)")
    ap.add_argument("--ard", action="store_true", help="one lengthscale per column")
    ap.add_argument("--exact", action="store_true", help="xi(N) for 2 sqrt(N): a slightly tighter certificate")
    ap.add_argument("--evals", type=option(int), help="most evaluations of the objective; default: 400, fewer for large tables")
    ap.add_argument("--seed", type=option(int), default=0,
                    help="which tenth or part, which first inducing inputs; the best of several seeds is not certified")
    return ap


def main(argv=None):
    """`python pacgp_ref.py [table] [options]`: trains a GP on a table, prints its certificate, returns the exit status.

    Ctrl-C stops the training: what was found is certified, and the status is 130.
    """
    return exit_status(lambda: certify_table(argv))


def certify_table(argv):
    """The work of main."""
    ap = command_line()
    args = ap.parse_args(argv)
    check_files(ap, args)
    args.eps, args.delta = [check_scalar("--eps", eps, 0) for eps in args.eps], check_scalar("--delta", args.delta, 0, 1)
    args.seed = check_count("--seed", args.seed, 0)
    args.evals = args.evals if args.evals is None else check_count("--evals", args.evals)
    args.sparse = args.sparse if args.sparse is None else check_count("--sparse", args.sparse)
    args.certificate, args.prior = list(dict.fromkeys(args.certificate)), check_scalar("--prior", args.prior, 0, 1)
    if args.unit == "y" and args.loss in ("band", "relative"):
        raise ValueError(f"--unit y: eps of --loss {args.loss} is a share of the target's size and has no unit")
    if args.scale == "tenth" and args.certificate != ["paper"]:
        raise ValueError("--scale tenth is for --certificate paper alone: the others are scaled by the part that trains")
    if args.model is not None:
        return use_model(args, load(args.model), goal_limits)
    if (args.predict is not None or args.save is not None) and len(args.eps) * len(args.certificate) > 1:
        raise ValueError("--predict and --save are about one GP: give one --eps and one --certificate")
    table, said, read = table_of(args, demo_table())
    new = new_rows(args, table.names[:-1])
    X, y, name = table.values[:, :-1], table.values[:, -1], table.names[-1]
    if args.scale != "none":
        warnings.filterwarnings("ignore", UNSCALED)                      # scaled as well as the rows for it allow
    warnings.filterwarnings("ignore", ".* certifies next to nothing")    # the text says it, of the bound that is meant
    plans = [planned(kind, X, y, args) for kind in args.certificate]     # refused before anything is printed

    def work(stop):
        evals = plans[0][-1]
        cut = args.evals is None and evals < 400
        emit(args, said + f"; at most {evals} evaluations (--evals), for its size" * cut + "\n")
        certificates = []
        for plan in plans:
            for eps in args.eps:
                model, mean, y = certificate_of(plan, eps, args, table, stop)
                emit(args, model.about["text"] + "\n")
                certificates.append(model.about)
        several = partial(draw_bounds, certificates=certificates, name=name)
        draw = several if len(certificates) > 1 else partial(draw_goal, model=model, mean=mean, y=y)
        finish(args, model, new, save, goal_limits, dict(read=read, certificates=certificates), [draw])
        return 130 if stop() else 0
    return until_interrupted(work)


def planned(kind, X, y, args):
    """(kind, rows that train or None, scaled X, scaled y, Scale, its name, method, M, evaluations) of one of CERTIFICATES."""
    how = args.scale or ("tenth" if kind == "paper" else args.prior)
    X, y, scale = standardise(X, y, how, args.loss in ("band", "relative"), args.seed)
    first = None if kind == "paper" else part_one(len(y), args.prior, args.seed)
    full, sparse = ("kl-PAC-GP", "kl-PAC-SGP") if first is None else ("full-GP", "VFE")
    method = args.method or (full if args.sparse is None and len(y) <= 1000 else sparse)
    if args.sparse is not None and METHODS[method][0] == "full":
        raise ValueError(f"--sparse {args.sparse} needs a sparse method, not {method}")
    trains = y if first is None else first
    M = min(100, len(trains)) if args.sparse is None else at_most_rows(args.sparse, trains)
    size = min(len(trains), SMALL) * (M if METHODS[method][0] != "full" else len(trains) / 2) ** 2
    return kind, first, X, y, scale, how, method, M, args.evals or int(np.clip(5e10 / size, 30, 400))


def certificate_of(plan, eps, args, table, stop):
    """The Model of one plan at the goal eps, trained and certified, its certificate as a dict for --json.

    And of the rows that trained it, or are held out, mean and target [y].
    """
    kind, first, X, y, scale, how, method, M, evals = plan
    share, held, name = sum(CERTIFICATES[k] for k in args.certificate), None, table.names[-1]
    rows, bounds = first if kind == "held-out" else slice(None), share * len(args.eps)
    goal = None
    if args.unit == "y":
        goal, eps = eps, eps / scale.unit
    counts = np.setdiff1d(np.arange(len(y)), [] if first is None else first)
    narrow = max(VAR_FLOOR**2 * np.mean(y**2), TINY)                     # so small a variance: the mean itself
    guess = np.full(len(counts), np.mean(y[rows]))
    guessing = gibbs_risk(y[counts], guess, np.full(len(counts), narrow), eps, args.loss)
    with progress(evals) as show:
        settings = dict(
            eps=eps, delta=args.delta / share, loss=args.loss, ard=args.ard, n_eps=len(args.eps), exact=args.exact,
            max_evals=evals, last_evals=args.evals, seed=args.seed, over=threads(),
            callback=lambda n, f: show(n, f"objective {f:.5g}, evaluation") or stop())
        if kind == "prior":
            gp = prior_from_part(X, y, method, M, args.prior, **settings)
        else:
            gp = strict(fit(X[rows], y[rows], method, M, **settings), X[rows], y[rows], settings["over"])
    if kind == "held-out":
        rows = counts
        held = held_out(gp, X[rows], y[rows], args.delta / bounds)
        gp = gp._replace(repeats=repeated_rows(X, y))                    # a twin in the other part is no new row
    residuals = y[rows] - predict(gp, X[rows])[0]
    about_scale = scale_text(how, scale, table.names[:-1])
    text = certificate_text(gp, name, scale.unit, about_scale, residuals, guessing, table.dropped, held,
                            args.delta, bounds, goal, table.names[:-1])
    by, theta = held or gp, np.exp(gp.ln_theta)
    facts = dict(certificate=kind, method=method, loss=args.loss, eps=eps, unit=scale.unit, delta=args.delta, bounds=bounds,
                 risk=by.risk, bound=by.bound, mean_bound=held.mean_bound if held else bayes_risk_bound(gp.bound), N=by.N,
                 KL=gp.KL, guessing=guessing, noise=math.exp(gp.ln_noise), signal=float(theta[-1]),
                 lengthscales=np.sqrt(theta[:-1]).tolist(), text=text)
    y = scale.middle + scale.unit * y[rows]
    return Model(gp, scale, table.names[:-1], name, facts), y - scale.unit * residuals, y


def draw_bounds(ax, certificates, name):
    """Risk and bound against eps, on an Axes."""
    order = sorted(certificates, key=lambda one: one["eps"])
    for kind in dict.fromkeys(one["certificate"] for one in order):
        ours = [one for one in order if one["certificate"] == kind]
        eps = [one["eps"] * one["unit"] for one in ours]
        ax.plot(eps, [one["bound"] for one in ours], "o-", label=f"{kind}: bound")
        ax.plot(eps, [one["risk"] for one in ours], "s--", mfc="none", color=ax.lines[-1].get_color(), label=f"{kind}: risk")
    name = name.replace("$", r"\$")
    ax.set(xlabel=f"accuracy goal eps [{name}]", ylabel="risk and its bound", ylim=(0, 1))
    ax.legend()
