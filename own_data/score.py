"""Compares predictive densities on held-out rows of a table; J is Jankowiak et al. 2020.

An argument `asked` is a namespace with the parameters of a PredictiveGP. The method `constant`
predicts a normal density with the mean and variance of the target in the training rows; it has None
in place of a Fit.
"""
import math
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np

from predictive import METHODS, crps, fit, nll, predict_y, rmse
from beyond.certificates import draw_part
from beyond.search import end_of, trained_part
from beyond.stream import directions
from own_data.models import (Model, categories, check_choice, indicators, kernel_name, kernel_named,
                             kernel_names, levels_of, listed, option, paragraphs)
from own_data.scale import (dependence, dependence_text, in_table, scale_of, scaled,
                            warn_dependent)

EXACT_ROWS = 2000              # training rows up to which `exact` is a default
START_ROWS = 500               # that choose kernel and start
FEW = 30                       # validation rows that choose by luck: folds do then
FOLDS = 5
TOGETHER = math.inf            # rows for dependence_text: those of equal inputs are in one part


@dataclass(eq=False)
class PredictiveGP(Model):
    """A GP by one of several methods, chosen by NLL on held-out rows; trained again on all rows.

    NLL is the mean negative log-likelihood of a row. Attributes: those of Model; fit_, a Fit of
    predictive.py, or None for `constant`; scale_, the Scale of all rows.
    """
    methods: str = option(
        None, f"A,B of {', '.join(METHODS)}; default: PPGPR-MFD and exact, above {EXACT_ROWS} "
              f"training rows SVGP; below {FEW} validation rows exact, isotropic (exact with one "
              "lengthscale) and constant", nargs=None)
    inducing: int = option(None, "inducing inputs; default: a 20th of the training rows, 10 to 100")
    kernel: str = option(None, "default: the likelier of SE and Matern", choices=kernel_names)
    epochs: int = option(None, "default: 400, fewer for large tables")
    batch: int = option(None, "rows a step; default: 200, or 1000 above 20,000 training rows")
    seed: int = option(0, "which rows are held out, in which order, from which start", least=0)
    categories: str = categories()

    def fit(self, X, y, show=None):
        """Trains and scores the candidates, chooses one by its NLL, and trains it on all rows.

        The candidates are those of the parameter `methods`; None: it depends on the number of rows.

        Of the rows X (N, d), y (N,) 15/20 train, 2/20 validate, 3/20 test. These three parts are
        drawn at random. If the file is a series, i.e. some input only rises or only falls, they
        follow each other in its order. Rows of equal inputs stay in one part.

        The NLL is that on the validation rows. There is one exception: with fewer than FEW of them,
        no `methods` given and no series, it is that of cross-validation on the training and
        validation rows.

        show: called with (epochs, objective) during training. Returns this model.
        """
        asked, X, y = self.remember(X, y)
        texts = self.category_columns()
        rises, falls = directions(np.delete(X, texts, axis=1))
        series = bool(np.any(rises != falls))
        train, val, test = three_parts(X, y, series, asked.seed)
        with_levels = indicators(X, levels_of(X[train], texts))
        scale = scale_of(with_levels[train], y[train])
        X_s, y_s = scaled(with_levels, y, scale)
        methods = listed(asked.methods)
        folds = not methods and len(val) < FEW and not series
        if not methods:
            methods = ["PPGPR-MFD"] * (len(val) >= FEW)
            methods += ["exact" if len(train) <= EXACT_ROWS else "SVGP"]
            methods += ["isotropic", "constant"] * folds
        settings = begin(X_s[train], y_s[train], asked)

        def trained(method, X, y):
            if method == "constant":
                return None
            how = settings | size_of(asked, len(y))
            if method == "isotropic":
                how |= dict(ard=False, start=None)
                method = "exact"
            check_choice("methods", method, METHODS)
            return fit(X, y, method, callback=show, **how)._replace(history=[])
        fits = {method: trained(method, X_s[train], y_s[train])
                for method in [*methods, "constant"]}
        if folds:
            chooses = np.sort(np.r_[train, val])
            forecasts = {method: by_folds(partial(trained, method), X_s[chooses], y_s[chooses],
                                          asked.seed) for method in fits}
        else:
            chooses = val
            forecasts = {method: density(one, X_s[val]) for method, one in fits.items()}
        best = lowest_nll({method: forecasts[method] for method in methods}, y_s[chooses])
        factors = {method: widened(y_s[chooses], *one) for method, one in forecasts.items()}
        found = {method: score(y_s[test], *density(one, X_s[test]), scale.unit, factors[method])
                 for method, one in fits.items()}
        held = np.sort(np.r_[val, test])
        mean, _ = density(fits[best], X_s[held])
        self.facts_ = vars(asked) | dependence(X, y, y_s[held] - mean) | dict(
            best=best, kernel=kernel_name(settings["kernel"]), scores=found, series=series,
            factor=factors[best], folds=FOLDS * folds, train=len(train), validate=len(val),
            test=len(test))
        self.levels_ = levels_of(X, texts)
        X = indicators(X, self.levels_)
        self.scale_ = scale_of(X, y)
        self.fit_ = trained(best, *scaled(X, y, self.scale_))
        warn_dependent(self.facts_, self.names_, TOGETHER)
        return self

    def limits(self, X):
        """Returns mean, sd, lower, upper, (n,) each, of y at X (n, d), noise included.

        lower and upper are the ends of the 95 % interval of y: mean - factor sd, mean + factor sd.
        The factor is at least 1.96; fit computed it for the chosen method, by `widened`.
        """
        X = indicators(self.inputs(X), self.levels_)
        X, _ = scaled(X, np.zeros(len(X)), self.scale_)
        mean, var = in_table(*density(self.fit_, X), self.scale_)
        half = self.facts_["factor"] * np.sqrt(var)
        return mean, np.sqrt(var), mean - half, mean + half

    def text(self):
        """Returns the scores as text: the answer, a table, the conditions."""
        facts = SimpleNamespace(**self.facts_)
        best, constant = facts.scores[facts.best], facts.scores["constant"]
        answer = [f"{facts.best} predicts {self.names_[-1]} with RMSE {best['RMSE']:.4g} on "
                  f"{facts.test} rows held out, where a constant has {constant['RMSE']:.4g}. Its "
                  f"95 % intervals hold {100 * best['inside']:.0f} % of them."]
        table = [f"{'':<14}{'NLL':>8}{'RMSE':>10}"]
        vague = []
        for method, one in facts.scores.items():
            table.append(f"{method:<14}{one['NLL']:8.2f}{one['RMSE']:10.4g}")
            if method != "constant" and one["NLL"] > constant["NLL"] - 0.01:
                vague.append(method)
        if vague:
            answer.append(f"No better than a constant's density: {', '.join(vague)}.")
        answer += dependence_text(self.facts_, self.names_, TOGETHER)
        how = "the last are held out" if facts.series else "drawn at random"
        return paragraphs(" ".join(answer), table, [
            f"{facts.train} rows trained each, {how}; kernel {facts.kernel}. Then {facts.best} was "
            "trained on all.",
            f"Folds of {facts.train + facts.validate} rows chose, and set the width of the "
            "intervals." * bool(facts.folds)])


def three_parts(X, y, series, seed):
    """Returns the indices of the rows that train, validate and test, 15:2:3; J App. C.1.

    X (N, d), y (N,): all rows. Rows of equal inputs are in one part. If `series`, the parts follow
    each other in the file, else draw_part draws them at random, by `seed`. ValueError for fewer
    than 6 different inputs.
    """
    _, first, group = np.unique(X, axis=0, return_index=True, return_inverse=True)
    rank = np.searchsorted(np.sort(first), first[group.ravel()])      # groups in order of the file
    G = len(first)
    if G < 6:
        raise ValueError(f"n_samples = {len(y)} rows with {G} different inputs are too few to "
                         "train, validate and test on: at least 6")

    def part(rows, n):
        there = np.unique(rank[rows])
        if series:
            return rows[rank[rows] < there[n]]
        return rows[draw_part(X[rows], y[rows], n / len(there), seed, rank[rows])]
    others = max(4, round(G / 4))
    rows = np.arange(len(y))
    train = part(rows, G - others)
    held = np.setdiff1d(rows, train)
    val = part(held, round(0.4 * others))
    return train, val, np.setdiff1d(held, val)


def begin(X, y, asked):
    """Returns a dict of kernel, ard, start for predictive.fit, from a full GP on START_ROWS rows.

    X (n, d), y (n,): the training rows, scaled. The START_ROWS are drawn at random by asked.seed.
    The full GP has asked.kernel, or the likelier of SE and Matern if that is None. ard tells
    whether it has one lengthscale per input; start is a dict of its parameters. For the periodic
    kernel, which has its own start, no GP is trained: the dict holds the kernel alone.
    """
    if asked.kernel == "periodic":
        return dict(kernel=kernel_named(asked.kernel))
    rows = np.random.default_rng(asked.seed).permutation(len(y))[:START_ROWS]
    found, _ = trained_part(X[rows], y[rows], kernel=kernel_named(asked.kernel))
    x, kernel, ard = end_of(found, {})
    return dict(kernel=kernel, ard=ard, start=x)


def size_of(asked, N):
    """Returns a dict of M, batch, epochs and seed for predictive.fit on N training rows.

    M, the number of inducing inputs, is asked.inducing, but at most N. The others are those of
    asked. Where asked has None, the value is a default that depends on N.
    """
    batch = asked.batch or (200 if N <= 20_000 else 1000)
    return dict(
        M=min(asked.inducing or min(max(N // 20, 10), 100), N), batch=batch, seed=asked.seed,
        epochs=asked.epochs or min(400, 2000 * batch // N + 10))


def density(fit, X):
    """Returns the mean and variance (n,) of y that a Fit predicts at X (n, d), in scaled units.

    fit: None for the method `constant`, whose mean is 0 and variance 1.
    """
    return (np.zeros(len(X)), np.ones(len(X))) if fit is None else predict_y(fit, X)


def by_folds(trained, X, y, seed):
    """Cross-validates: returns mean, var (n,), predicted for each row by a Fit to the other folds.

    trained: a function (X, y) -> Fit; X (n, d), y (n,): the rows; seed: draws the FOLDS folds. Rows
    of equal inputs are in one fold.
    """
    _, group = np.unique(X, axis=0, return_inverse=True)
    group = group.ravel()
    fold = np.random.default_rng(seed).permutation(group.max() + 1)[group] % FOLDS
    found = np.zeros((2, len(y)))
    for k in range(FOLDS):
        found[:, fold == k] = density(trained(X[fold != k], y[fold != k]), X[fold == k])
    return found


def widened(y, mean, var):
    """Returns the half-width, in standard deviations, of 95 % intervals for new y; at least 1.96.

    y, mean, var (n,): targets of held-out rows, and their predicted means and variances sd^2. By
    split conformal prediction, the half-width is the k-th smallest |y - mean|/sd, where
    k = ceil(0.95 (n + 1)). With fewer than 19 rows it is the largest |y - mean|/sd, and the
    intervals may hold less than 95 % of new y.
    """
    off = np.sort(np.abs(y - mean) / np.sqrt(var))
    k = min(math.ceil(0.95 * (len(y) + 1)), len(y))
    return max(1.96, float(off[k - 1]))


def lowest_nll(forecasts, y):
    """Returns the method with the lowest NLL on held-out targets y (n,).

    forecasts: dict of method -> (mean, var), (n,) each. If `exact` is one of the methods, it is
    returned unless its NLL exceeds the lowest by more than one standard error of the difference.
    """
    losses = {method: (np.log(var) + (y - mean) ** 2 / var) / 2
              for method, (mean, var) in forecasts.items()}
    best = min(losses, key=lambda method: np.mean(losses[method]))
    if "exact" in losses:
        more = losses["exact"] - losses[best]
        if np.mean(more) <= np.std(more) / math.sqrt(len(y)):
            return "exact"
    return best


def score(y, mean, var, unit, factor):
    """Returns a dict of the NLL, RMSE and CRPS of predictions, and `inside`, their coverage.

    y, mean, var (n,): targets, and their predicted means and variances, scaled. unit [y]: what
    scaling divided y by; RMSE and CRPS are multiplied by it, NLL is not. factor: half-width, in
    predicted standard deviations, of the intervals whose coverage is returned.
    """
    inside = np.abs(y - mean) <= factor * np.sqrt(var)
    return dict(NLL=nll(y, mean, var), RMSE=unit * rmse(y, mean), CRPS=unit * crps(y, mean, var),
                inside=float(np.mean(inside)))
