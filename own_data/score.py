"""Predictive densities of a table, compared on rows held out; Jankowiak et al. 2020."""
import math
from dataclasses import dataclass
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np

from predictive import (KERNELS, METHODS, START, crps, fit, nll, noise_fraction, predict_y, rmse)
from beyond.stream import directions
from own_data.models import Model, check_choice, interval, option, paragraphs
from own_data.scale import in_table, scale_of, scaled

EXACT_ROWS = 600               # training rows up to which `exact` is compared by default
FRACTIONS = (0.5, 0.8, 0.95)   # of the rows, that central intervals are to hold


@dataclass(eq=False)
class PredictiveGP(Model):
    """Predictive densities by several methods: the best on validation rows predicts.

    Attributes: those of Model; fit_, a Fit of predictive.py; scale_.
    """
    methods: str = option("PPGPR-MFD,SVGP,exact", f"what to compare, of {', '.join(METHODS)}; "
                                                  f"exact up to {EXACT_ROWS} training rows")
    inducing: int = option(None, "inducing inputs; default: a 20th of the training rows, 10 to 100")
    kernel: str = option("Matern52", "Matern52 is the default", choices=list(KERNELS))
    epochs: int = option(None, "default: 400, fewer for large tables")
    batch: int = option(None, "rows a step; default: 200, or 1000 above 20,000 training rows")
    seed: int = option(0, "which rows are held out, in which order, from which start", least=0)

    def fit(self, X, y, over=map, show=None):
        """Trains each method on 15/20 of the rows X (N, d), y (N,), validates on 2/20, scores on
        3/20, drawn at random.

        Of a series, where an input moves one way only, the last rows are held out, and the best
        method is trained again on all. show: called with (epochs, objective).
        """
        asked = SimpleNamespace(**self.checked())
        X, y = self.remember(X, y)
        rises, falls = directions(X)
        series = bool(np.any(rises != falls))
        train, test, val = three_parts(len(y), series, asked.seed)
        self.scale_ = scale_of(X[train], y[train])
        X, y = scaled(X, y, self.scale_)
        settings = settings_of(asked, len(train), X.shape[1])
        settings |= dict(X_val=X[val], y_val=y[val], callback=show)
        fits = {}
        for method in asked.methods.split(","):
            check_choice("methods", method, METHODS)
            if method != "exact" or len(train) <= EXACT_ROWS or asked.methods == "exact":
                fits[method] = fit(X[train], y[train], method, **settings)
        best = min(fits, key=lambda method: fits[method].validation)
        found = {method: scores(one, X[test], y[test], self.scale_.unit)
                 for method, one in fits.items()}
        zero = 0 * y[test]
        found["constant"] = score(y[test], zero, zero + 1, 1.0, self.scale_.unit)
        self.facts_ = vars(asked) | dict(
            best=best, scores=found, series=series, train=len(train), validate=len(val),
            test=len(test))
        last = fit(X, y, best, **settings) if series else fits[best]
        self.fit_ = last._replace(history=[])
        return self

    def limits(self, X):
        """mean, sd (n,) of y at X (n, d), noise included, and an interval that is to hold 95 %."""
        X = self.inputs(X)
        X, _ = scaled(X, np.zeros(len(X)), self.scale_)
        return interval(*in_table(*predict_y(self.fit_, X), self.scale_))

    def text(self):
        """The scores: the answer, a table, the conditions."""
        return scores_text(self.names_[-1], SimpleNamespace(**self.facts_))


def three_parts(n, series, seed):
    """Numbers of the rows that train, test and validate: 15:3:2, J App. C.1."""
    if n < 5:
        raise ValueError(f"n_samples = {n} rows are too few to train, test and validate on: at "
                         "least 5")
    a, b, c = n * 15 // 20, n * 17 // 20, n * 18 // 20
    if series:
        train, val, test = np.split(np.arange(n), [a, max(b, a + 1)])
        return train, test, val
    return np.split(np.random.default_rng(seed).permutation(n), [a, min(max(c, a + 1), n - 1)])


def settings_of(asked, N, d):
    """Arguments of fit for N training rows of d inputs; a wide table sticks from l = START."""
    ln_start = math.log(START)
    others = [ln_start] * (d * (asked.kernel == "periodic") + 1)
    batch = asked.batch or (200 if N <= 20_000 else 1000)
    return dict(
        M=min(asked.inducing or min(max(N // 20, 10), 100), N), kernel=asked.kernel, batch=batch,
        epochs=asked.epochs or min(400, 2000 * batch // N + 10), seed=asked.seed,
        start=dict(ln_theta=np.array([2 * ln_start + math.log(d)] * d + others)))


def scores(fit, X, y, unit):
    """Scores of a Fit on rows X (n, d), y (n,), a dict; unit: of the scaled target [y]."""
    return score(y, *predict_y(fit, X), np.exp(fit.params["ln_noise"]), unit)


def score(y, mean, var, noise, unit):
    """Scores of predictions of y (n,); noise: the part of var that is noise."""
    off = np.abs(y - mean) / np.sqrt(var)
    inside = [float(np.mean(off < NormalDist().inv_cdf((1 + part) / 2))) for part in FRACTIONS]
    return dict(NLL=nll(y, mean, var), RMSE=unit * rmse(y, mean), CRPS=unit * crps(y, mean, var),
                noise=noise_fraction(var - noise, noise), inside=inside)


def scores_text(name, facts):
    """The facts_ of a PredictiveGP in words; name: of the target."""
    found, best = facts.scores, facts.best
    answer = (f"{best} has the lowest NLL on {facts.validate} validation rows. On {facts.test} "
              f"held-out rows its RMSE is {found[best]['RMSE']:.4g}, and "
              f"{found['constant']['RMSE']:.4g} for a constant.")
    most = found["constant"]["NLL"] - 0.01
    vague = [method for method, one in found.items() if one["NLL"] > most and method != "constant"]
    if vague:
        answer += f" No better than a constant's density: {', '.join(vague)}."
    heads = "".join(f"{f'in {100 * part:g} %':>9}" for part in FRACTIONS)
    table = [f"{'':<14}{'NLL':>8}{'RMSE':>10}{'CRPS':>10}{'noise':>8}{heads}"]
    for method, one in found.items():
        inside = "".join(f"{part:9.2f}" for part in one["inside"])
        table.append(f"{method:<14}{one['NLL']:8.2f}{one['RMSE']:10.4g}{one['CRPS']:10.4g}"
                     f"{one['noise']:8.2f}{inside}")
    how = f"the last are held out; then {best} was trained on all." if facts.series else (
        "drawn at random.")
    return paragraphs(answer, table, [
        f"RMSE and CRPS are in the unit of {name}; NLL is in nats, of the scaled target; noise: its "
        "share of the predicted variance.",
        "in 50 % to in 95 %: the share of the held-out rows inside central intervals of that "
        f"probability, +-{math.sqrt(0.25 / facts.test):.2f}.",
        f"{facts.train} rows trained each, {how}"])
