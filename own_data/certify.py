"""Trains a GP on a table of independent rows and certifies it; Reeb et al. 2018, and beyond/.

A claim is what is certified for one eps: a dict with the keys CLAIM. `asked` is a namespace of the
parameters of a CertifiedGP. `facts` are entries of CertifiedGP.facts_: the parameters, the claims
and how the GP was trained. They are a dict, but a namespace in functions that make text.
"""
import math
import warnings
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from types import SimpleNamespace

import numpy as np

from pacgp_ref import FAMILIES, METHODS, SMALL, FitWarning, bayes_risk_bound, kl_inv, predict
from beyond.certificates import (check_groups, covering_score, delta_each, draw_part, held_out,
                                 interval_scores, prior_from_part)
from beyond.rounding import strict
from beyond.search import left_out, paper_fit, trained_part
from own_data.models import (Model, bound_text, categories, confidence_percent, eps_text, exact,
                             indicators, kernel_name, kernel_named, kernel_names, levels_of, listed,
                             many, option, paragraphs, rounded_up)
from own_data.scale import (dependence, dependence_text, in_table, scale_of, scaled, tenth,
                            warn_dependent)

METHODS_OF = {                 # certificate -> its method for few rows, and for many
    "held-out": ("full-GP", "VFE"),
    "prior": ("full-GP", "VFE"),
    "paper": ("kl-PAC-GP", "kl-PAC-SGP")}
COLUMNS = {                    # entry of a claim -> head of its column in the text
    "mean_bound": "bound", "mean_risk": "missed", "guessing": "guessing", "bound": "sampled",
    "risk": "its risk"}
CLAIM = ("eps", "deviations", "mean_bound", "mean_risk", "guessing", "bound", "risk", "KL",
         "penalty", "confidence")                        # facts_ of an eps; None: not asked for
INTERVAL = ("by_sd", "least", "factor", "needs", "half_width")      # and of coverage


@dataclass(eq=False)
class CertifiedGP(Model):
    """A GP with a proven bound on how often its predictions miss by more than a tolerance.

    The bound is computed from the rows that certify. An earlier step of a Pipeline voids it if
    fitted with the targets of these rows (SelectKBest, TargetEncoder). So does a fitted transformer
    of the targets. Fit such a step on other rows, and mark those in the argument `train` of fit.

    Attributes: those of Model, and

        fit_      a Certified, the trained GP
        scale_    the Scale of inputs and target
        bound_    bound on the probability of a miss by more than the first eps
    """
    eps: float = option(None, "tolerance in the target's unit, fixed before seeing the data, or "
                              "several; default: 0.6 deviations of the rows that set the scale",
                        nargs="+")
    coverage: float = option(None, "held-out: intervals that hold this share of new targets, as "
                                   "0.95", most=0.9999)
    relative: bool = option(False, "eps is a fraction of the target's size: 0.2 is 20 %%")
    certificate: str = option(
        "held-out", "by half of the rows, held out (held-out); by a prior that half of them trains "
                    "(prior); by one before all rows (paper)", choices=METHODS_OF.keys)
    gibbs: bool = option(False, "held-out: certify functions sampled from the GP, too")
    delta: float = option(0.01, "probability that one of what is certified fails (0.01)", most=1)
    inducing: int = option(None, "inducing inputs; default: 100 above 1000 rows, else the full GP")
    kernel: str = option(None, "default: SE, or what the half that trains chooses",
                         choices=kernel_names)
    evals: int = option(None, "most evaluations; default: 400, fewer for large tables")
    seed: int = option(0, "of the parts and starts; the best of several is not certified", least=0)
    categories: str = categories()

    def fit(self, X, y, groups=None, train=None, over=map, show=None):
        """Trains and certifies the GP; returns this model.

            X, y     (N, d), (N,): a table whose rows, or groups, are drawn independently
            groups   (N,): labels, equal in rows that belong together; only if `certificate` is
                     held-out
            train    (N,): booleans, True for rows that train and set the scale. The others
                     certify: they must have had no part in any choice, that of `train`
                     included. None: a random half trains. The certificate paper takes no `train`
            over     map, or the map of a pool that shares the work
            show     called with (evaluations, objective) during each optimisation, which ends if
                     the result is true
        ValueError for bad input.
        """
        asked, X, y = self.remember(X, y)
        grouped = groups is not None
        needs_held_out = grouped or asked.coverage or asked.gibbs
        if needs_held_out and asked.certificate != "held-out":
            raise ValueError("groups, coverage and gibbs are for the certificate held-out")
        paper = asked.certificate == "paper"
        if train is not None and paper:
            raise ValueError("train is for the certificates held-out and prior")
        scales = first_part(X, y, groups, asked, train)
        certifies = np.setdiff1d(np.arange(len(y)), scales)
        trains = certifies if paper else scales
        self.levels_ = levels_of(X[scales], self.category_columns())
        table = X, y
        X = indicators(X, self.levels_)
        scale = scale_of(X[scales], y[scales], asked.relative)
        X, y = scaled(X, y, scale)
        unit = 1.0 if asked.relative else scale.unit
        goals = [(eps, eps / unit) for eps in listed(asked.eps)]       # eps_s, in deviations
        goals = goals or [(0.6 * unit, 0.6)]
        settings = dict(
            eps=goals[0][1], delta=asked.delta, loss="band" if asked.relative else "01",
            n_eps=len(goals), over=over, kernel=kernel_named(asked.kernel), seed=asked.seed,
            callback=show)
        settings |= size_of(asked, len(y) - len(scales) * paper, len(trains))
        targets = y[trains]
        if asked.certificate == "prior":
            certified = prior_from_part(X, y, rows=trains, **settings)
        else:
            if paper:
                gp = paper_fit(X[trains], targets, **settings)
            else:
                gp, targets = trained_part(X[trains], targets, **settings)
            certified = strict(gp, X[trains], targets, over)
        fit = certified.fit

        if asked.coverage and asked.eps is None:
            goals = []
        share = delta_each(asked.delta, goals * (1 + asked.gibbs)
                           + ["interval"] * (asked.coverage is not None))
        labels = check_groups(groups, y)[certifies] if grouped else None
        seen = dict(X=X[certifies], y=y[certifies], over=over, groups=labels,
                    offset=abs(scale.middle) / scale.unit)
        guess = np.mean(y[trains])
        facts = vars(asked) | dict(
            given=asked.eps is not None, unit=scale.unit, scale_rows=len(scales), share=share,
            N=len(np.unique(labels) if grouped else certifies), grouped=grouped,
            split="drawn" if train is None else "given", trained=len(trains) * (not paper))
        facts |= gp_facts(fit) | dependence(*table, y[certifies] - predict(fit, seen["X"])[0])
        claims = [claim(fit, eps, eps_s, guess, facts, seen) for eps, eps_s in goals]
        facts |= dict.fromkeys(INTERVAL + CLAIM) | dict(*claims[:1], claims=claims)
        if asked.coverage:
            facts |= interval_unit(fit, X[trains], targets, y[trains], facts)
            facts |= interval_facts(fit, facts, seen)
            if math.isinf(facts["factor"]):
                warnings.warn(interval_text("", SimpleNamespace(**facts)), FitWarning, stacklevel=2)
        self.scale_, self.fit_, self.facts_ = scale, certified, facts
        warn_dependent(facts, self.names_, self.rows_)
        return self

    @property
    def bound_(self):
        """Upper bound on the probability that the mean misses by more than the first eps.

        None if only intervals are certified.
        """
        return self.facts_["mean_bound"]

    def limits(self, X):
        """Returns mean, sd, lower, upper at X (n, d): (n,) each, in the target's unit.

            mean, sd       of f, without noise
            lower, upper   ends of the certified interval: the one for `coverage` if that was asked
                           for, else mean -+ the first eps

        The interval of a relative eps encloses the y with |mean - y| <= eps |y|, and is infinite if
        eps >= 1.
        """
        X = indicators(self.inputs(X), self.levels_)
        X, _ = scaled(X, np.zeros(len(X)), self.scale_)
        mean, var = predict(self.fit_, X)
        facts = SimpleNamespace(**self.facts_)
        half = half_width(var, self.facts_) if facts.coverage else facts.eps
        mean, var = in_table(mean, var, self.scale_)
        relative = facts.relative and not facts.coverage
        if relative and half < 1:
            ends = np.sort([mean / (1 + half), mean / (1 - half)], axis=0)
        else:
            half = np.inf if relative else half
            ends = mean - half, mean + half
        return mean, np.sqrt(var), *ends

    def text(self):
        """Returns the certificate as text: the answer, a table, the conditions.

        Bounds and tolerances are rounded up, the confidence down.
        """
        facts = SimpleNamespace(**self.facts_)
        name = self.names_[-1] + " of complete rows" * (self.dropped_ > 0)
        said = []
        if facts.coverage:
            said.append(interval_text(name, facts))
        if facts.claims:
            said.append(claim_text(name, facts))
        answer = [f"With {confidence_percent(facts.delta)} % confidence {', and '.join(said)}.",
                  *dependence_text(self.facts_, self.names_, self.rows_)]
        return paragraphs(" ".join(answer), claim_lines(facts), conditions(facts))


def first_part(X, y, groups, asked, train):
    """Returns the indices of the rows that set the scale and train; the other rows certify.

    If asked.certificate is "paper", these rows only set the scale, and the others also train.
        X, y     (N, d), (N,): all rows
        groups   (N,): labels, equal in rows that belong together, or None
        asked    its certificate and seed are used
        train    (N,): booleans, True for the rows to return. None: they are drawn
    ValueError unless each part has at least two rows, and all rows of a group are in one part.
    """
    if len(y) < 4:
        raise ValueError(f"n_samples = {len(y)} rows are too few: at least 4")
    if asked.certificate == "paper":
        return tenth(X, y, asked.seed)
    if train is None:
        return draw_part(X, y, 0.5, asked.seed, groups)
    train = np.asarray(train)
    if train.dtype != bool or train.shape != y.shape or not 2 <= np.sum(train) <= len(y) - 2:
        raise ValueError("train must be True or False for each row, and leave two rows in each "
                         f"part of {len(y)}")
    if groups is not None:
        labels = check_groups(groups, y)
        if np.isin(labels[train], labels[~train]).any():
            raise ValueError("train divides a group: all rows of a group are in one part")
    return np.flatnonzero(train)


def size_of(asked, N, n):
    """Returns a dict that says how to train on n rows of a table of N.

        method       name of the method: of a sparse GP if asked.inducing is given or N > 1000,
                     otherwise of a full GP
        M            number of inducing inputs, at most n
        max_evals    most evaluations of an optimisation: asked.evals. If that is None: 400, or
                     fewer for large tables, but at least 30
        last_evals   most evaluations of the last optimisation, on all n rows: asked.evals. None:
                     the default of multistart_fit
    These entries are arguments of trained_part, paper_fit and prior_from_part. asked: its
    certificate, inducing and evals are used.
    """
    many_rows = asked.inducing is not None or N > 1000
    M = min(asked.inducing or 100, n)
    columns = M if many_rows else n / 2
    fewer = int(np.clip(5e10 / (min(n, SMALL) * columns**2), 30, 400))
    return dict(method=METHODS_OF[asked.certificate][many_rows], M=M,
                max_evals=asked.evals or fewer, last_evals=asked.evals)


# --- facts ---------------------------------------------------------------------------------------

def claim(fit, eps, eps_s, guess, facts, seen):
    """Certifies how often `fit` misses by more than eps; returns a dict with the keys CLAIM.

        fit     the Fit that was trained
        eps     in the target's unit; if the loss is "band", a fraction of |target|
        eps_s   eps in scaled units; if the loss is "band", equal to eps
        guess   a constant prediction, in scaled units, whose misses are counted for comparison
        facts   a dict: certificate and gibbs as in CertifiedGP; share, the part of delta that each
                bound gets
        seen    the rows that certify: a dict of the keyword arguments X, y, .. of held_out
    """
    fit = fit._replace(eps=eps_s)
    held = held_out(fit, delta=facts["share"], **seen)
    y = seen["y"]
    size = np.abs(y) if fit.loss == "band" else 1.0
    found = dict.fromkeys(CLAIM) | dict(
        eps=eps, deviations=eps_s, mean_bound=held.mean_bound, mean_risk=held.mean_risk,
        guessing=float(np.mean(np.abs(y - guess) > eps_s * size)))
    if facts["gibbs"]:
        found |= dict(bound=held.bound, risk=held.risk)
    if facts["certificate"] != "held-out":
        bound = kl_inv(held.risk, (fit.KL + fit.penalty + fit.ln_confidence) / fit.N)
        found |= dict(
            mean_bound=bayes_risk_bound(bound), bound=bound, risk=held.risk, KL=fit.KL,
            penalty=fit.penalty, confidence=fit.ln_confidence)
    return found


def interval_facts(fit, facts, seen):
    """Certifies intervals that hold a given share of new targets; returns a dict.

        factor      a row's half-width, in scaled units, is factor times u. If by_sd, u is the
                    predicted deviation of y or, if larger, `least`. Otherwise u = 1
        half_width  mean half-width over the rows that certify, in the target's unit
        needs       least number of certifying rows (or groups) with which intervals are finite

    The arguments:

        fit     the Fit that was trained
        facts   a dict: coverage, the share of new targets that the intervals are to hold; share,
                the part of delta with which they may fail; by_sd and least, from interval_unit;
                noise, the noise variance in scaled units; unit, by which targets were divided
        seen    the rows that certify: a dict of the keyword arguments X, y, .. of held_out
    """
    coverage, share = facts["coverage"], facts["share"]
    scores = interval_scores(fit, by_deviation=facts["by_sd"], least=facts["least"], **seen)
    factor = covering_score(scores, coverage, share)
    _, var = predict(fit, seen["X"])
    found = dict(factor=factor, needs=math.ceil(math.log(share) / math.log(coverage)))
    return found | dict(half_width=float(np.mean(half_width(var, facts | found))))


def half_width(var, facts):
    """Returns the half-widths (n,) of intervals, in the target's unit.

    Each is factor times unit times the row's u. If by_sd, u is the predicted deviation of y or, if
    larger, `least`. Otherwise u = 1.
        var     (n,): variance of f, in scaled units
        facts   a dict: factor, from interval_facts; by_sd and least, from interval_unit; noise, the
                noise variance in scaled units; unit, by which targets were divided
    """
    sd = np.maximum(np.sqrt(var + facts["noise"]), facts["least"])
    return facts["factor"] * facts["unit"] * sd ** facts["by_sd"]


def interval_unit(fit, X, trained, y, facts):
    """Chooses the unit of each row's interval, from rows that trained; returns a dict.

        by_sd   True: a row's unit is sd, its predicted deviation of y, noise included, or `least`
                if sd is smaller. False: the unit is 1, in scaled units, for all rows. The choice is
                the one whose intervals would be shorter, on average, if these rows certified
        least   mean of sd over these rows. It limits the harm of a wrong choice of by_sd: units
                are at least mean sd, and at most 2 mean sd on average. So intervals are on average
                at most about twice as wide as those with unit 1

    A full GP predicts each of these rows from the others; a sparse GP leaves none out.

        fit       the Fit that was trained
        X, y      (n, d), (n,): the rows that trained, scaled
        trained   (n,): the targets that the GP was trained on, y or y with outliers clipped
        facts     a dict: coverage, the share of new targets; share, the part of delta; noise, the
                  noise variance; M, the number of inducing inputs, None for a full GP
    """
    mean, var = predict(fit, X)
    sd = np.sqrt(var + facts["noise"])
    if not facts["M"]:
        mean, sd = left_out(fit, trained)
    off = np.abs(y - mean)
    least = float(np.mean(sd))
    sd = np.maximum(sd, least)
    factor = partial(covering_score, coverage=facts["coverage"], delta=facts["share"])
    return dict(by_sd=bool(factor(off / sd) * np.mean(sd) < factor(off)), least=least)


def gp_facts(fit):
    """Returns a dict of a Fit's parameters, in scaled units, and of how it was trained.

    noise and signal are variances. M is the number of inducing inputs, None for a full GP.
    """
    family, _ = METHODS[fit.method]
    return dict(
        noise=math.exp(fit.ln_noise), signal=math.exp(fit.ln_theta[-1]),
        lengthscales=np.exp(fit.ln_theta[:-1][:fit.Z.shape[1]] / 2).tolist(),
        method=fit.method, kernel=kernel_name(fit.kernel),
        M=len(fit.Z) if FAMILIES[family].inducing else None, ended=fit.optimum.message)


# --- the text ------------------------------------------------------------------------------------

def interval_text(name, facts):
    """Returns a clause on the intervals: which share of new targets they hold, and their width.

    If too few rows certify, it says how many are needed.
    name: of the target; facts: facts_ as a namespace.
    """
    share = f"{(100 * Decimal(repr(facts.coverage))).normalize():f} %"
    if math.isinf(facts.factor):
        return (f"nothing is said of intervals that hold {share}: that needs {facts.needs} "
                f"{'groups' if facts.grouped else 'rows'} held out, and {facts.N} are")
    width = f"{rounded_up(facts.half_width)} of the prediction"
    if facts.by_sd:
        width = (f"{rounded_up(facts.factor)} predicted standard deviations (at least "
                 f"{rounded_up(facts.unit * facts.least)} each) of the prediction, "
                 f"{rounded_up(facts.half_width)} on average")
    new = f"values of {name} lie" if not facts.grouped else f"groups lie, in {name}, whole"
    return f"at least {share} of new {new} within {width}"


def claim_text(name, facts):
    """Returns a clause that bounds the probability of a miss.

    For several eps it refers to the table of claim_lines.
    name: of the target; facts: facts_ as a namespace.
    """
    if len(facts.claims) > 1:
        return (f"the predicted {name} misses by more than eps with probability at most the bound, "
                "at every eps at once")
    subject, bound = f"the predicted {name}", facts.mean_bound
    if bound == 1 and facts.bound is not None:
        subject, bound = f"a function sampled from the GP of {name}", facts.bound
    tolerance = f"{exact(facts.eps)} times its size"
    if not facts.relative:
        eps = eps_text(facts.eps, facts.given)
        tolerance = (f"{eps} ({rounded_up(facts.deviations)} standard deviations of "
                     f"{many(facts.scale_rows)})")
    said = f"{subject} misses by more than {tolerance} with probability at most {bound_text(bound)}"
    if bound < facts.guessing:
        return said
    return (f"{said}. It cannot be told from guessing the mean of the training rows, which misses "
            f"{facts.guessing:.4f} of these")


def claim_lines(facts):
    """Yields the lines of the table of claims: its head, then one per eps.

    facts: facts_ as a namespace.
    """
    heads = [one for one in COLUMNS if getattr(facts, one) is not None]
    if heads:
        yield f"{'eps':>12}" + "".join(f"{COLUMNS[one]:>10}" for one in heads)
    for one in facts.claims:
        eps = eps_text(one["eps"], facts.given)
        cells = [bound_text(one[head]) if "bound" in head else f"{one[head]:.4f}" for head in heads]
        yield f"{eps:>12}" + "".join(f"{cell:>10}" for cell in cells)


def conditions(facts):
    """Yields sentences on what the certificate assumes and how the GP was trained.

    facts: facts_ as a namespace.
    """
    rows = "groups of rows" if facts.grouped else "rows"
    others = f", {facts.trained} other rows trained" * (facts.trained > 0)
    yield (f"{facts.N} {rows} certify{others}. They and new ones must be drawn independently from "
           "one source.")
    if facts.split == "given":
        yield "The split was given: the rows that certify must not have chosen it, nor any step."
    if facts.KL is not None:
        terms = (f"{one / facts.N:.3g}" for one in (facts.KL, facts.penalty, facts.confidence))
        yield f"KL, grid and confidence, in nats a row: {', '.join(terms)}."
    M = f", M = {facts.M}" * bool(facts.M)
    yield f"{facts.method}{M}, kernel {facts.kernel}; {facts.ended}."
