"""A GP of a table of independent rows, with a certificate; Reeb et al. 2018, and beyond/."""
import math
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from pacgp_ref import (FAMILIES, METHODS, SMALL, TINY, VAR_FLOOR, bayes_risk_bound, gibbs_risk,
                       predict, repeated_rows)
from beyond.certificates import draw_part, held_out, prior_from_part
from beyond.rounding import strict
from beyond.search import paper_fit, trained_part
from own_data.models import (KERNELS, Model, bound_text, confidence_percent, exact, kernel_name,
                             many, option, paragraphs, rounded_up)
from own_data.scale import in_table, scale_of, scaled, tenth

METHODS_OF = {                 # certificate -> its method for few rows, and for many
    "held-out": ("full-GP", "VFE"),
    "prior": ("full-GP", "VFE"),
    "paper": ("kl-PAC-GP", "kl-PAC-SGP")}


@dataclass(eq=False)
class CertifiedGP(Model):
    """A GP that states at most how often its predictions miss by more than a tolerance.

    Attributes: those of Model; fit_, a Certified; scale_.
    """
    eps: float = option(None, "tolerance in the target's unit, fixed before seeing the data; "
                              "default: 0.6 deviations of the rows that set the scale")
    relative: bool = option(False, "eps is a fraction of the target's size: 0.2 is 20 %%")
    certificate: str = option(
        "held-out", "by half of the rows, held out (held-out); by a prior that half of them trains "
                    "(prior); by one before all rows (paper)", choices=list(METHODS_OF))
    gibbs: bool = option(False, "held-out: certify functions sampled from the GP, too; the two "
                                "share delta")
    delta: float = option(0.01, "probability that the certificate fails (0.01)", most=1)
    inducing: int = option(None, "inducing inputs; default: 100 above 1000 rows, else the full GP")
    kernel: str = option(None, "default: SE, or what the half that trains chooses",
                         choices=list(KERNELS))
    evals: int = option(None, "most evaluations; default: 400, fewer for large tables")
    seed: int = option(0, "of the parts and starts; the best of several is not certified", least=0)

    def fit(self, X, y, groups=None, over=map, show=None):
        """Trains and certifies.

        X (N, d), y (N,): a table whose rows, or groups, are drawn independently
        groups (N,): labels, equal in rows that belong together, for held-out
        over: map, or what works like it, of a pool
        show: called with (evaluations, objective); a true result ends the training
        """
        asked = SimpleNamespace(**self.checked())
        X, y = self.remember(X, y)
        if groups is not None and asked.certificate != "held-out":
            raise ValueError("groups are for the certificate held-out")
        scales, trains, certifies = three_sets(X, y, groups, asked)
        self.scale_ = scale_of(X[scales], y[scales], asked.relative)
        X, y = scaled(X, y, self.scale_)
        unit = 1.0 if asked.relative else self.scale_.unit
        eps = 0.6 if asked.eps is None else asked.eps / unit
        settings = dict(
            eps=eps, delta=asked.delta, loss="band" if asked.relative else "01", over=over,
            kernel=KERNELS.get(asked.kernel), seed=asked.seed, callback=show)
        settings |= size_of(asked, len(y) - len(scales) * (asked.certificate == "paper"), trains)
        held = None
        if asked.certificate == "paper":
            gp = paper_fit(X[trains], y[trains], **settings)
            gp = strict(gp, X[trains], y[trains], over)
        elif asked.certificate == "prior":
            gp = prior_from_part(X, y, share=trains, **settings)
        else:
            gp, targets = trained_part(X[trains], y[trains], **settings)
            gp = strict(gp, X[trains], targets, over)
            labels = None if groups is None else np.asarray(groups)[certifies]
            held = held_out(gp, X[certifies], y[certifies], asked.delta / (1 + asked.gibbs),
                            over, labels)
        self.fit_ = gp
        self.facts_ = vars(asked) | dict(
            eps=eps * unit if asked.eps is None else asked.eps, given=asked.eps is not None,
            deviations=eps, unit=unit, scale_rows=len(scales))
        self.facts_ |= certified_facts(gp.fit, held, asked.gibbs)
        self.facts_ |= measured_facts(gp.fit, X, y, trains, certifies, asked.certificate)
        return self

    def limits(self, X):
        """mean, sd (n,) of f at X (n, d), and what the certificate is about: mean -+ eps.

        Of relative misses: the y with |mean - y| <= eps |y|, all of them where eps >= 1.
        """
        X = self.inputs(X)
        X, _ = scaled(X, np.zeros(len(X)), self.scale_)
        mean, var = in_table(*predict(self.fit_, X), self.scale_)
        eps = self.facts_["eps"]
        if not self.relative:
            ends = mean - eps, mean + eps
        elif eps < 1:
            ends = np.sort([mean / (1 + eps), mean / (1 - eps)], axis=0)
        else:
            ends = np.full((2, len(mean)), [[-np.inf], [np.inf]])
        return mean, np.sqrt(var), *ends

    def text(self):
        """The certificate: the answer, a table, the conditions."""
        return certificate_text(self.names_, self.dropped_, SimpleNamespace(**self.facts_))


def three_sets(X, y, groups, asked):
    """Numbers of the rows that set the scale, of those that train, and of those that certify."""
    if len(y) < 4:
        raise ValueError(f"n_samples = {len(y)} rows are too few: at least 4")
    if asked.certificate == "paper":
        first = tenth(X, y, asked.seed)
        others = np.setdiff1d(np.arange(len(y)), first)
        return first, others, others
    first = draw_part(X, y, 0.5, asked.seed, groups)
    return first, first, np.setdiff1d(np.arange(len(y)), first)


def size_of(asked, N, trains):
    """method, M and evaluations for N rows, of which those numbered `trains` train."""
    many_rows = asked.inducing is not None or N > 1000
    n = len(trains)
    M = min(asked.inducing or 100, n)
    columns = M if many_rows else n / 2
    fewer = int(np.clip(5e10 / (min(n, SMALL) * columns**2), 30, 400))
    return dict(method=METHODS_OF[asked.certificate][many_rows], M=M,
                max_evals=asked.evals or fewer, last_evals=asked.evals)


# --- facts ---------------------------------------------------------------------------------------

def certified_facts(fit, held, gibbs):
    """What a Fit, or the HeldOut of its rows, certifies: a dict."""
    if held is None:
        return dict(N=fit.N, mean_bound=bayes_risk_bound(fit.bound), bound=fit.bound,
                    risk=fit.R_S, KL=fit.KL, penalty=fit.penalty, confidence=fit.ln_confidence)
    sampled = dict(bound=held.bound, risk=held.risk) if gibbs else {}
    return dict(N=held.N, mean_bound=held.mean_bound, mean_risk=held.mean_risk) | sampled | dict(
        grouped=held.grouped)


def measured_facts(fit, X, y, trains, certifies, certificate):
    """What was measured, no bound, on scaled rows X (N, d), y (N,): a dict."""
    whole = certificate == "prior"
    rows = np.arange(len(y)) if whole else certifies
    guess = np.full(len(certifies), np.mean(y[rows if whole else trains]))
    nothing = max(VAR_FLOOR**2 * np.mean(y[certifies] ** 2), TINY)      # a variance so small
    family, _ = METHODS[fit.method]
    return dict(
        trained=len(trains) * (certificate != "paper"),
        guessing=gibbs_risk(y[certifies], guess, 0 * guess + nothing, fit.eps, fit.loss),
        repeats=repeated_rows(X, y), order=order_of(y[rows] - predict(fit, X[rows])[0]),
        noise=math.exp(fit.ln_noise), signal=math.exp(fit.ln_theta[-1]),
        lengthscales=np.exp(fit.ln_theta[:X.shape[1]][:len(fit.ln_theta) - 1] / 2).tolist(),
        method=fit.method, kernel=kernel_name(fit.kernel),
        M=len(fit.Z) if FAMILIES[family].inducing else None, ended=fit.optimum.message)


def order_of(residuals):
    """r sqrt(N) of residuals (N,) in the order of the file, r the correlation of neighbours."""
    e = residuals - np.mean(residuals)
    return float(e[1:] @ e[:-1] / max(e @ e, TINY) * math.sqrt(len(e)))


# --- the text ------------------------------------------------------------------------------------

def tolerance_text(facts):
    """What a miss is, rounded so that the claim is never too good."""
    if facts.relative:
        return f"more than {exact(facts.eps)} times its size"
    eps = exact(facts.eps) if facts.given else rounded_up(facts.eps)
    return (f"more than {eps} ({rounded_up(facts.deviations)} standard deviations of "
            f"{many(facts.scale_rows)})")


def certificate_text(names, dropped, facts):
    """The facts_ of a CertifiedGP in words. Bounds are rounded up, the confidence down."""
    name = names[-1] + " of complete rows" * (dropped > 0)
    misses = f"misses by {tolerance_text(facts)} with probability"
    bound = vars(facts).get("bound", 1.0)
    drawn = f"A function sampled from the GP does with probability at most {bound_text(bound)}."
    if facts.mean_bound < 1:
        claim = f"the predicted {name} {misses} at most {bound_text(facts.mean_bound)}."
        claim += f" {drawn}" * (bound < 1)
    elif bound < 1:
        claim = (f"a function sampled from the GP {misses} at most {bound_text(bound)}; nothing is "
                 "certified of the mean.")
    else:
        claim = f"nothing is certified of {name}."
    answer = f"With {confidence_percent(facts.delta)} % confidence {claim}"
    if min(bound, facts.mean_bound) >= facts.guessing:
        answer += (" It cannot be told from guessing the mean of the training rows, which misses "
                   f"{facts.guessing:.4f} of these.")
    return paragraphs(answer, number_lines(facts), list(conditions(facts, dropped)))


def number_lines(facts):
    """The lines of the table under the answer."""
    rows = {"risk": "risk", "mean_risk": "risk of the mean there", "guessing": "guessing the mean",
            "repeats": "repeated rows", "order": "r sqrt(N), r: of neighbours",
            "noise": "noise, scaled", "signal": "signal, scaled"}
    known = vars(facts)
    lines = [f"  {label:<30}{known[key]:>10.4g}" for key, label in rows.items() if key in known]
    if "KL" in known:
        parts = " ".join(f"{one / facts.N:.3g}" for one in (facts.KL, facts.penalty,
                                                             facts.confidence))
        lines.insert(1, f"  {'KL, grid, confidence, by N':<30}{parts}")
    short = " ".join(f"{one:.4g}" for one in sorted(facts.lengthscales)[:5])
    return [*lines, f"  {'lengthscales, shortest':<30}{short:>10}"]


def conditions(facts, dropped):
    """Sentences on what the claim rests on, those that differ from run to run."""
    rows = "groups of rows" if vars(facts).get("grouped") else "rows"
    others = f"; {facts.trained} others trained it" * (facts.trained > 0)
    yield (f"The confidence is over the draw of {facts.N} {rows}{others}. They and new ones must "
           "be drawn independently from one source.")
    if abs(facts.order) > 4:
        yield ("The residuals of neighbouring rows are correlated: follow certifies rows in their "
               "order, whatever their dependence.")
    if facts.repeats:
        yield f"Equal to an earlier row: {facts.repeats}. Independent rows seldom are."
    if dropped:
        yield f"It is about complete rows: {many(dropped, 'incomplete row')} left out."
    M = f", M = {facts.M}" * bool(facts.M)
    yield f"Method: {facts.method}{M}; kernel {facts.kernel}; optimiser: {facts.ended}."
