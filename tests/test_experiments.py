"""What a figure's numbers mean: each experiment gets known tables, fits and predictions, and what
it makes of them is held against the definition: which rows train, choose and are scored, in what
unit. Below, the same of figures, given what their experiments make.
"""

import itertools
import math
import re
import types
from unittest.mock import Mock, patch

import numpy as np
from numpy.random import default_rng
import pytest
from tests.oracles import assert_close, each, same_bytes

import beyond.certificates
import beyond.stream
import figures as F
import figures_of.J as of_J
import figures_of.L as of_L
import figures_of.R as of_R
import pacgp_ref as R
import predictive as J
from figures_of import authors, networks, shared, studies

LAWS = {}                               # name of an experiment or a figure -> its test
EXPERIMENTS = {name for room in (of_R, of_J, of_L, studies) for name, f in vars(room).items()
               if hasattr(f, "caption") and name not in F.FIGURES}


def law(f):
    LAWS[f.__name__] = f


@pytest.fixture
def give(monkeypatch):
    """Puts a function in the place of one of a module, and returns it with what it is called with.
    """
    def put(module, name, function):
        monkeypatch.setattr(module, name, Mock(side_effect=function))
        return getattr(module, name)
    return put


def numbered():
    """A generator of tables: row i of all that it makes has input i and target i + 1/2."""
    count = itertools.count()

    def table(rng=None, N=40, *_, **options):
        X = np.array([[next(count)] for _ in range(N)], float)
        return X, X[:, 0] + 0.5
    return table


def rows(X, y):
    """The numbers of rows of such a table, each with its own target."""
    assert np.array_equal(y, X[:, 0] + 0.5)
    return X[:, 0].tolist()


class Fit(types.SimpleNamespace):
    def _replace(self, **changes):
        return Fit(**vars(self) | changes)


def trained(run, label, X, y, method, M=None, **options):
    """A fit that says what has trained it; sigma_n = 2."""
    optimum = types.SimpleNamespace(x=(method, options.get("grid")), f=3.0, n_evals=9)
    return Fit(rows=rows(X, y), method=method, M=M, ln_noise=math.log(4), bound=0.1, R_S=0.2,
               KL=6.0, N=3, penalty=7.0, optimum=optimum, **{"start": None, "Z": X} | options)


def measured(fit, X, y):
    return {"fit": fit, "scored": rows(X, y)}


def held(fit, X, y, delta):
    return Fit(bound=0.5, mean_bound=(fit.rows, rows(X, y), delta))


def mean_misses(fit, X):
    """predict that misses every fourth row from number 300 on."""
    x = X[:, 0]
    return x + 0.5 + (x % 4 == 0) * (x >= 300), np.full(len(x), 1e-12)


def still(*_, **options):
    """Snapshots that predict f ~ N(0, 1)."""
    one = Fit(predict=lambda X: flat(1.0)(None, X), p={"Z": np.zeros((12, 1))})
    return dict.fromkeys((10, 20, 30), one)


def flat(var):
    """predict of f ~ N(0, var)."""
    return lambda fit, X: np.outer([0, var], np.ones(len(X)))


def said(title):
    """The numbers of a title, those inside names apart."""
    return [*map(float, re.findall(r"(?<![\w./^-])\d+(?:\.\d+)?(?![\w/^-])", title))]


def figure(run, name, *settings):
    """The rows of a figure, and the numbers of its title."""
    _, found, (title,) = F.FIGURES[name](run, *settings)
    return found, said(title)


def rms(a):
    return np.sqrt(np.mean(np.square(a)))


# --- R -------------------------------------------------------------------------------------------

@law
def line_data(run, give):
    """The full GP of all rows."""
    x, y, gp = run.once(of_R.line_data)
    assert gp.rows == rows(x, y) and gp.method == "full-GP"


@law
def best_start(run, give):
    """The start that ends in the least objective; eps in sigma_n of the full GP."""
    objective = iter([9.0, 2.0, 1.0])
    give(R, "kmeans", lambda x, M, rng: rng)
    give(of_R, "train", lambda *args, **options: trained(*args)._replace(
        optimum=types.SimpleNamespace(f=next(objective)), **options))
    (fit, *others), Z = run.once(of_R.best_start, "VFE", 5.0)
    assert (fit.method, fit.eps, fit.optimum.f) == ("VFE", 10.0, 1.0) and fit.Z is Z
    assert fit.rows == [*range(40)] and [one.optimum.f for one in others] == [2.0]


@law
def boston_split(run, give):
    """Four fifths train, the last is scored; the full GP is one at every eps."""
    a, b = shared.train_test(40, 1)
    searched = set()
    for (eps, method), found in run.once(of_R.boston_split, 1).items():
        fit = found["fit"]
        searched.add((method, method == "full-GP" and id(fit.optimum)))
        assert (fit.rows, found["scored"]) == ([*a], [*b])
        assert (f"{fit.eps:.1f}", fit.method) == (eps, method)
        assert (fit.start == (method, None)) == (method == "full-GP")
    assert len(searched) == 3


@law
def boston_rows(run, give):
    """Mean and standard error over the splits."""
    give(run, "once", lambda f, i: {("0.6", "full-GP"): {"B": i + 1.0}})
    (row,), _ = of_R.boston_rows(run, 3)
    assert_close(row["B"], (2, 3**-0.5), 1e-14)


@law
def R_fig2(run, give):
    """On how many of five eps both PAC-GPs' bounds are below the full GP's, and their MSE above."""
    give(run, "once", lambda f, i: {
        (str(eps), method): dict.fromkeys(of_R.SHOWN, 0.1 * k * eps) | {"MSE": -k * (eps > 1)}
        for eps in (-1, 1, 2, 3, 4) for k, method in enumerate(of_R.FULL)})
    assert figure(run, "R_fig2", 2)[1] == [0.4, 4, 5, 3]


@law
def sparse_run(run, give):
    """The same, of a split, with the loss, M and ARD of the cell."""
    found = run.once(of_R.sparse_run, "sarcos", 5, "VFE", "ARD", "exp", 1)
    fit = found["fit"]
    assert (fit.rows, found["scored"]) == tuple(part.tolist() for part in shared.train_test(40, 1))
    assert (fit.method, fit.M, fit.ard, fit.loss, fit.eps, fit.seed, fit.grid) == (
        "VFE", 5, True, "exp", 0.6, 1, R.GRID)


@law
def restarts(run, give):
    """Every second row; the noise variance that is learned, and the objective."""
    assert run.once(of_R.restarts, "FITC") == [{"learned": 4.0, "objective": 3.0}] * 6
    for call in of_R.train.call_args_list:
        assert rows(*call.args[2:4]) == [*range(0, 40, 2)]
        assert len(np.unique(call.kwargs["Z"])) == 8


@law
def grid_run(run, give):
    """ln|Theta| in nats and per row; the grid is G = 2 L 10^r; the optimum of a box at every r."""
    for (L, r), found in run.once(of_R.grid_run, 0).items():
        fit = found["fit"]
        assert (fit.rows, found["scored"]) == ([*range(60)], [*range(60, 260)])
        assert (found["ln|Theta|"], found["ln|Theta|/N"]) == (7.0, 7.0 / 60)
        assert fit.grid == (2 * L, 2 * L * 10**r) and fit.max_evals == 1
        assert fit.start == ("kl-PAC-GP", (2.0 * L, 200 * L))
    assert of_R.train.call_args_list[1].kwargs["start"] == ("kl-PAC-GP", (16.0, 1600))


@law
def R_fig3(run, give):
    """Mean and standard error over splits; the titles are of the last M, Table 2 shows it alone. A
    training that ended early is named, and those counted that were cut.
    """
    give(run, "once", lambda f, data, M, method, ard, loss, i: dict.fromkeys(
        of_R.SHOWN, (i + 1.0) * (M if method == "VFE" else 5))
        | {"evaluations": 7 if (M, method) == (10, "FITC") else 15})
    found, title = figure(run, "R_fig3", [5, 10, 20], 3)
    for row in shared.where(found, method="VFE"):
        assert_close(row["B"], np.multiply((2, 3**-0.5), int(row["M"])), 1e-14)
    found, again = figure(run, "R_table2", [5, 10, 20], 3)
    assert title == again + [10, 7, 8, 9, 15] == [20, 4, 10, 7, 8, 9, 15]
    assert [row["B"][0] for row in shared.where(found, method="VFE", **{"": "ours"})] == [40, 40]


@law
def R_fig6(run, give):
    """Root mean square distances of the means from that of FITC, and of the full GP. Noise is in
    every band but that of PAC-SGP.
    """
    x, y = numbered()()

    def once(f, method="", times=0.0):
        fit = trained(run, "", x, y, {"FITC": 4.0, "VFE": 8.0}.get(method, times), eps=1.0)
        simple = fit._replace(KL=1.5, bound=0.4)
        return ([fit, simple], x[:3]) if method else (x, y, fit)
    give(run, "once", once)
    give(R, "predict", lambda fit, X: np.where(     # only where data are do the means matter
        (X[:, 0] < x.min()) | (X[:, 0] > x.max()), abs(X[:, 0]) ** fit.method,
        [[fit.method], [1]]))
    draw = give(of_R, "draw_gp", lambda *_, **options: None)
    _, found, (title,) = run.do(F.FIGURES["R_fig6"], ())[0]
    assert [call.args[3][150] for call in draw.call_args_list] == [5, 1, 5, 1, 5, 5, 5, 5]
    assert [(row["from FITC"], row["from full GP"]) for row in found] == [
        (3.5, 0.5), (2, 2), (0, 4), (4, 8)]
    assert (found[0]["least KL/N of a start"], found[0]["its B"]) == (0.5, 0.4)
    assert said(title) == [0.5, 3.5, 0.5, 2, 2, 2]


@law
def R_fig7(run, give):
    """The noise of the least objective; starts that come within 0.1 % of it."""
    found = [{"learned": learned, "objective": f}
             for learned, f in ((0.1, -9.0), (0.2, -10.0), (0.3, -9.995), (0.4, -9.98))]
    give(run, "once", lambda f, method, *eps: found)
    (row, _), title = figure(run, "R_fig7", of_R.BOTH)
    assert (row["best sigma_n^2"], row["best objective"], row["starts within 0.1 %"]) == (
        0.2, -10.0, 2)
    assert title == [0.2, 0.2, 0.6]
    found[1]["learned"] = math.exp(-R.LN_BOX)               # at the edge of the box, which is said
    give(run, "once", lambda f, method, *eps: found[:2] if method == "FITC" else found[2:])
    *_, (title,) = F.FIGURES["R_fig7"](run, of_R.BOTH)
    assert ["allowed" in part for part in title.split(";")] == [True, False]


@law
def R_fig8(run, give):
    """Means over data sets; the title is of one decimal and more."""
    def once(f, i):
        return {(1, r): {"ln|Theta|": 1.0 + r} | dict.fromkeys(
            ("B", "R_S train", "R_S test", "KL/N", "ln|Theta|/N"), (i + 1.0) * (r or 0.25))
            for r in (0, 1, 2)}
    give(run, "once", once)
    found, title = figure(run, "R_fig8", 3)
    assert [row["B"][0] for row in found] == [0.5, 2, 4] and title == [2, 2]


@law
def draw_gp(run, give):
    """The mean +- 2 sd, as a band or between lines."""
    x = np.array([0.0, 1.0])
    for filled in (True, False):
        ax = Mock()
        shared.draw_gp(ax, x, x, np.array([1.0, 4.0]), "k", "f", filled)
        edges = (ax.fill_between if filled else ax.plot).call_args.args[1:]
        assert sorted(np.ravel(edges)) == [-3, -2, 2, 5]


@law
def data_set(run, give):
    """Of files: inputs first, the target last, of sarcos the first torque; the rate in column 3."""
    run.real = True
    table = default_rng(0).standard_normal((60, 28))
    run.tables = {f"{name}.csv": table for name in ("sarcos", "pol", "fx2007")}
    for name, d in (("sarcos", 21), ("pol", 27)):
        X, y = shared.data_set(run, name, None, 60)
        assert np.array_equal(np.c_[X, y], shared.standard(table[:, :d + 1]))
        x, y = shared.line(run, f"{name}.csv", None)
        assert np.array_equal(np.c_[x, y], table[:, :2])
    _, y = of_L.rate_rows(run, "time", 0, 50)
    assert_close(np.corrcoef(y, table[:50, 3])[0, 1], 1, 1e-14)


# --- J -------------------------------------------------------------------------------------------

@law
def score_run(run, give):
    """15, 3 and 2 twentieths train, test and validate; NLL, RMSE, CRPS of y ~ N(0, 4), of which the
    noise is 1.
    """
    fit = give(J, "fit", lambda *_, **options: Fit(predictor=Fit(ln_noise=0.0)))
    give(J, "predict", flat(3.0))
    predict = give(J, "predict_y", flat(4.0))
    found = run.once(of_J.score_run, "boston_like", "SVGP", 0, 1.0)
    used = rows(*fit.call_args.args[:2])
    for part, call, n in zip(("test", "validation"), predict.call_args_list, (6, 4), strict=True):
        y = call.args[1][:, 0] + 0.5
        used += [*(y - 0.5)]
        assert len(y) == n
        assert_close(found[part], [np.log(8 * np.pi) / 2 + np.mean(y**2) / 8, rms(y),
                                   J.crps(y, 0 * y, 0 * y + 4), 0.25], 1e-13)
    assert sorted(used) == [*range(40)]


@law
def example_run(run, give):
    """GPyTorch's scales; where Adam moves ln all the same, the scores are those of J.fit with the
    example's milestones and S' = I, on inputs scaled to [-1, 1]; a constant input is no trouble.
    """
    raw = dict(ln_theta=np.array([-1.0, 0.3, 2.0]), ln_noise=np.array(0.5))
    p, slopes = authors.scales_of(raw)
    softplus = [math.log1p(math.exp(one)) for one in (-1.0, 0.3, 2.0, 0.5)]
    assert_close(p["ln_theta"], np.log(softplus[:3]) * [2, 2, 1], 1e-14)
    assert_close(p["ln_noise"], math.log(softplus[3] + 1e-4), 1e-14)
    for name, slope in slopes.items():
        up, down = (authors.scales_of({**raw, name: raw[name] + h})[0][name] for h in (1e-5, -1e-5))
        assert_close(slope, (up - down) / 2e-5, 1e-9)
    start = math.log(J.START) * np.array([2, 2, 1])
    give(of_J, "scales_of", lambda p: (
        p | dict(ln_theta=p["ln_theta"] + start, ln_noise=p["ln_noise"] + start[-1]),
        dict(ln_theta=1.0, ln_noise=1.0)))
    x, y = default_rng(0).uniform(size=60), default_rng(1).standard_normal(60)
    parts = np.split(np.arange(60), [40, 50])
    give(of_J, "split_of", lambda *_: (np.c_[5 * x, 0 * x], y, parts))
    X = np.c_[2 * (x - x.min()) / np.ptp(x) - 1, 0 * x - 1]
    plan = run.settings_of(of_J.example_run)
    N = plan.pop("N")
    assert N == 100 and plan["milestones"] == [20 / 200, 150 / 200]
    cases = ("PPGPR-MFD", 1.03), ("gamma-robust", 1.05)
    found = [run.once(of_J.example_run, "boston_like", method, 3, 0.5, gamma)
             for method, gamma in cases]
    for (method, gamma), scores in zip(cases, found):
        with patch.object(J, "START_STD", 1.0):
            fit = J.fit(X[:40], y[:40], method, seed=3, beta_reg=0.5, gamma=gamma, **plan)
        for part, at in zip(("test", "validation"), parts[1:]):
            assert_close(scores[part], of_J.scores_at(fit.predictor, X[at], y[at]), 1e-9)


@law
def values_run(run, give):
    """What Adam moves is the mean at Z_mean itself (up to the jitter), with its gradient; the rest
    is example_run's.
    """
    assert of_J.values_run.settings == of_J.example_run.settings

    def train(rng, raw, at_rows, *_):
        raw |= {name: raw[name] + 0.3 * rng.standard_normal(np.shape(raw[name])) for name in raw}
        way = {name: rng.standard_normal(np.shape(raw[name])) for name in raw}
        up, down = (at_rows({name: raw[name] + h * way[name] for name in raw}, np.arange(9))[0]
                    for h in (1e-6, -1e-6))
        slope = sum(np.sum(grad * way[name])
                    for name, grad in at_rows(raw, np.arange(9))[1].items() if name in way)
        assert_close(slope, (up - down) / 2e-6, 1e-6)
        moved.append(raw)
        return raw

    moved = []
    give(networks, "train", train)
    predictors = give(of_J, "scores_at", lambda predictor, X, y: predictor)
    for f in (of_J.values_run, of_J.example_run):
        predictor = run.once(f, "boston_like", "PPGPR-MFD", 0, 0.5)["test"]
        mean, _ = J.predict(predictor, moved[-1]["Z_mean"])
        off = np.max(np.abs(mean - moved[-1]["m"]))
        assert off < 0.003 if f is of_J.values_run else off > 0.1
    assert_close(moved[0]["m"], moved[1]["m"], 0)
    assert predictors.call_count == 4


@law
def library_run(run, give):
    """The kernel is Matern's, rounded to float32, + 1e-3 on the diagonal of k(Z, Z); the start, the
    rows and the objective are example_run's, of PPGPR-MFD values_run's.
    """
    assert of_J.library_run.settings == of_J.example_run.settings
    Z, ln_theta = default_rng(0).random((9, 2)), np.zeros(3)
    for at in (Z, Z.copy()):
        exact, _ = J.matern52(at, Z, ln_theta)
        found = authors.library_kernel(at, Z, ln_theta)[0] - 1e-3 * np.eye(9) * (at is Z)
        off = np.max(np.abs(found - exact))
        assert 1e-9 < off < 2**-24
    values = []

    def train(rng, raw, at_rows, *_):
        raw |= dict(m=0.3 * rng.standard_normal(raw["m"].shape))
        values.append(at_rows(raw, np.arange(9))[0])
        return raw
    give(networks, "train", train)
    for method, other in (("VFITC", of_J.example_run), ("PPGPR-MFD", of_J.values_run)):
        for f in (of_J.library_run, other):
            predictor = give(of_J, "scores_at", lambda predictor, *_: predictor)
            run.once(f, "boston_like", method, 0, 0.5)
            (predictor, *_), _ = predictor.call_args
            assert predictor.kernel is (J.matern52 if f is other else authors.library_kernel)
        with patch.object(of_J, "library_kernel", J.matern52):
            run.memo.clear()
            run.once(of_J.library_run, "boston_like", method, 0, 0.5)
        library, other, without = values[-3:]
        assert library != other == without
        assert_close(library, other, 0.02)


@law
def city_run(run, give):
    """The rows that train set the units; others choose tau, others are tested; z = (y - mean)/sd.
    """
    predict = lambda X: flat(4.0)(None, X)
    deep = give(networks, "deep_gp", lambda *_: predict)
    dropout = give(networks, "dropout_net", lambda *_: predict)
    found = run.once(of_J.city_run, "city A")
    train, val, test = np.split((np.arange(675) - 149.5) / np.std(range(300)), [300, 375])
    for call, want in ((deep, [train] * 2), (dropout, [train] * 2 + [val] * 2)):
        for got, s in zip(call.call_args.args[1:], want):
            assert_close(np.ravel(got), s, 1e-14)
    for z, nll, rmse in found.values():
        assert_close(z, test / 2, 1e-14)
        assert_close([nll, rmse], [np.log(8 * np.pi) / 2 + rms(test) ** 2 / 8, rms(test)], 1e-14)


@law
def J_fig5(run, give):
    """The model that is closest to the normal CDF in most cities, and in how many."""
    z = np.linspace(-2, 2, 99)
    give(run, "once", lambda f, city: {
        name: (z + abs(k - (city == "city A")), 0.0, 1.0)
        for k, name in enumerate(("SVGP+DKL", "PPGPR+DKL", "MC dropout"))})
    *_, (title,) = F.FIGURES["J_fig5"](run)
    assert said(title) == [2, 3] and title.startswith("SVGP")


@law
def draw(run, give):
    """A function of the kernel's prior on the grid, and noisy values where there are data."""
    for kernel, n in (("periodic", 51), ("Matern52", 101)):
        x, y, grid, f = run.once(of_J.draw, kernel, 0)
        at = grid[:, 0].searchsorted(x[:, 0])
        assert np.array_equal(grid[at], x) and len(x) == n
        assert 0.7 < rms(y - f[at]) / 0.05 < 1.3
    K, _ = J.KERNELS["Matern52"](grid, grid, np.log([0.1**2, 1.0]))
    assert 0.6 < f @ np.linalg.solve(K + 1e-9 * np.eye(201), f) / 201 < 1.4     # chi^2 / 201


@law
def draw_fit(run, give):
    """RMSE to the function where no data are, in its deviations; the start that is named."""
    fit = give(J, "fit", lambda *_, **options: Fit(params=dict(ln_theta=np.log([4, 0.3, 1]))))
    give(J, "predict_y", flat(1.0))
    *_, row = run.once(of_J.draw_fit, "periodic", "SVGP", 1, "ln 2")
    x, y, grid, f = run.once(of_J.draw, "periodic", 1)
    assert_close([row[name] for name in ("RMSE / sd", "l", "period")],
                 [rms(f[grid[:, 0] > 0.5]) / f.std(), 2, 0.3], 1e-14)
    assert fit.call_args.args[:3] == (x, y, "SVGP") and "ln_theta" in fit.call_args.kwargs["start"]


@law
def J_appD(run, give):
    """The largest changes from beta_reg = 0: of NLL in nats, of RMSE in percent."""
    give(run, "once", lambda f, name, method, i, beta: {
        "test": [3.0 - beta, (2.125 if beta else 2.0) * (i + 1)]})
    found, title = figure(run, "J_appD", [0.0, 0.5], 2)
    assert_close([row["value"][0] for row in found[:4]], [0, -0.5, 0, 6.25], 1e-14)
    assert title == [1, 0, 6.2, 0, 5, 0.5, 0, 0.05]


@law
def J_fig2(run, give):
    """Scores and what they are minus SVGP's on the same splits; sets where MFD's is the lower, and
    comparisons in which bars are apart, either way.
    """
    give(run, "once", lambda f, name, method, i, *_: {
        "validation": [0], "test": [i + (name[0] == "b") * (method == "PPGPR-MFD")
                                    - 0.5 * (method == "PPGPR-MFD")] * 4})
    found, title = figure(run, "J_fig2", 3, False)
    for row in shared.where(found, method="PPGPR-MFD", **{"": "ours"}):
        off = 0.5 if row["data"][0] == "b" else -0.5
        assert_close(row["NLL"], (1 + off, 1 / np.sqrt(3)), 1e-14)
        assert row["NLL - SVGP's"] == (off, 0)
    assert title == [2, 3, 2, 1, 3, 12, 12]


@law
def claims(run, give):
    """The other comparisons' titles count the sets on which scores, here of one of three, have the
    order claimed; in the paper ties are counted apart.
    """
    give(run, "once", lambda f, data, method, *_: {"validation": [0], "test": 4 * [
        0.5 + 0.3 * ((method in high) - (method in low)) * (-1) ** (data[0] != "b")]})
    for number, paper, *order in (
            (3, [8, 12], "PPGPR-MFD", "SVGP"), (4, [], "PPGPR-MFD", "SVGP"),
            (6, [12, 12], "PPGPR-Chol", "PPGPR-delta"),
            (7, [7, 12, 1], "PPGPR-delta", "PPGPR-Chol"),
            (8, [], " ".join(of_J.VARIANTS[2:]), "MAP SVGP"),
            (9, [9, 12, 1], "PPGPR-MFD", "MAP SVGP")):
        low, high = map(str.split, order)
        *_, (title,) = F.FIGURES[f"J_fig{number}"](run, 1, False)
        assert said(title) == [1, 3, *paper], number


@law
def J_table1(run, give):
    """Ranks over data sets and splits, 1 for the lowest; the best of RMSE."""
    place = of_J.COMPARED.index
    give(run, "once", lambda f, name, method, i, *_: {
        "validation": [0], "test": [place(method), -place(method), i, 0.5]})
    _, found, (title,) = F.FIGURES["J_table1"](run, 2, False)
    assert [(row["NLL"], row["RMSE"], row["CRPS"]) for row in found if row[""] == "ours"] == [
        (k, 7 - k, 3.5) for k in range(1, 7)]
    assert said(title) == [6] and "PPGPR-MFD" in title


# --- L -------------------------------------------------------------------------------------------

@law
def wave_run(run, give):
    """The first rows in the order train; RMSE is to the function, of rows seen and to come."""
    for row, x, y, *_ in run.once(of_L.wave_run, "sin", 0):
        f = np.sin(4 * x[:, 0])
        assert_close([row["RMSE, seen"], row["RMSE, to come"]], [rms(f[:20]), rms(f[20:])], 1e-14)
        assert 0.7 < rms(y - f) / 0.4 < 1.3
        assert np.all(np.diff(x[:, 0]) > 0) == (row["order"] == "time")
    assert same_bytes(of_L.snapshots.call_args.args[:2], (x[:20], y[:20]))


@law
def L_fig3(run, give):
    """Mean and range, over functions and draws, of the RMSE at rows to come."""
    found, title = figure(run, "L_fig3", 2, 20)
    each = [shared.col(shared.where(found, order=order), "RMSE, to come")
            for order in ("shuffled", "time")]
    assert title == [round(f(off), 2) for off in each for f in (np.mean, min, max)]


@law
def rate_run(run, give):
    """Squares of rows seen and to come, in deviations (divisor n - 1) of the whole series."""
    for order in ("time", "shuffled"):
        X, y = of_L.rate_rows(run, order, 0, 39)
        errors, _ = run.once(of_L.rate_run, order, "O-SGPR", False, 0)
        assert_close(errors, [
            [np.mean(y[:t] ** 2), np.mean(y[t:] ** 2),
             np.mean(R.expected_exp_loss(y[t:], 0 * y[t:], 0 * y[t:] + 1, 0.1)[0])]
            for t in (10, 20, 30)], 1e-14)
        assert np.isclose(y.std(ddof=1), 1) and np.all(np.diff(X[:, 0]) > 0) == (order == "time")
        assert same_bytes(of_L.snapshots.call_args.args[:2], (X[:30], y[:30]))
    last = [run.once(of_L.rate_run, "time", name, False, 0)[0][-1, :2] for name in of_L.L_EXTRA[2:]]
    _, y = of_L.rate_rows(run, "time", 0, 39)
    assert_close(last, [[0, np.mean((y[30:] - y[29]) ** 2)],
                        [np.mean(y[:30] ** 2), np.mean(y[30:] ** 2)]], 1e-13)


@law
def L_fig1(run, give):
    """Losses before each update count; K^2/8 is the constant of a loss in [0, 1]."""
    ledger = Fit(before=3.0, after=1.0)
    give(of_L, "learners", lambda *_, **options: [Fit(ledger=ledger)] * 200)
    found, title = figure(run, "L_fig1", [10, 40])
    for row in found:
        m, more = row["m"], np.log(1 / row["delta"])
        want = np.array([0, 2, 1]) * np.sqrt(more / 2 / m) + 3 / m
        assert_close([row[name] for name in ("loss", "bound, K^2/2", "bound, K^2/8")], want, 1e-9)
    assert title == [40, 0.261, 0.5, 0.663, 0.999, 0.075]


@law
def L_fig4(run, give):
    """The run of O-SGPR's median error is drawn; the deviation of a run has divisor n - 1. The
    paper's numbers, of real data, do not stand beside generated data.
    """
    test = {"O-SGPR": (3.0, 1.0, 2.0), "O-PACGP": (1.0, 2.0, 3.0)}
    give(run, "once", lambda f, order, method, mixture, i: (
        np.array([[9, 8, 7]] * 2 + [[5, test.get(method, (1, 2, 4))[i], 6.0]]), np.zeros(251)))
    _, found, (title,) = of_L.rate_figure(run, 39, [10, 20, 30], 3, False, "time")
    assert {(row["run drawn"], row["the paper's"]) for row in found} == {(2, None)}
    assert [found[0][name] for name in ("train MSE", "test MSE", "deviation of a run")] == [5, 2, 1]
    assert said(title) == [2, 1, 2, 2.33, 2.33]


@law
def L_table2(run, give):
    """Both MSE at each t, the loss at the last; the deviation of a run has divisor n - 1."""
    give(run, "once", lambda f, order, method, mixture, i: (
        np.arange(9.0).reshape(3, 3) + 10 * i, None))
    (row, *_), title = figure(run, "L_table2", 3, ["SE"], 39, [10, 20, 30])
    names = [f"t = {t}, {part}" for t in (10, 20, 30) for part in ("train", "test")]
    assert_close([row[name] for name in (*names, "t = 30, exp loss")],
                 [(v + 10, 10) for v in (0, 1, 3, 4, 6, 7, 8)], 1e-14)
    assert title == [0, 6, 0]


# --- of no paper ---------------------------------------------------------------------------------

@law
def arm_run(run, give):
    """Distances in deviations of 100,000 rows of their own, and noise of 0.15; the risk is of rows
    that come after those that train.
    """
    table = numbered()

    def arm(rng, N):
        X, y = table(rng, N)
        return np.tile(X, 8), y

    def scaled(X):
        return (X[:, 0] / np.sqrt(3) - 49_999.5) / np.std(range(100_000))
    give(studies, "robot_arm", arm)
    fit = give(studies, "train", lambda *_, **options: Fit(
        bound=0.1, R_S=0.2, KL=6.0, optimum=Fit(n_evals=9), **options))
    predict = give(R, "predict", lambda fit, X: (scaled(X) + 0.6, np.full(len(X), 1e-12)))
    found = run.once(studies.arm_run, 300)
    X, y = fit.call_args.args[2:4]
    numbers = np.append(X, predict.call_args.args[1], axis=0)[:, 0] / np.sqrt(3)
    assert_close(numbers, np.arange(100_000, 101_300), 1e-14)
    assert len(X) == 300 and 0.8 < rms(y - scaled(X)) / 0.15 < 1.2
    assert 0.4 < found.pop("R_S test") < 0.6 and found.pop("seconds") < 1
    assert [*found.values()] == [300, 0.1, 0.2, 0.02, 9]


@law
def table_certificates(run, give):
    """All rows, half of them for the prior, or half held out, whose two bounds share delta; risks
    of new rows, of which 185 are missed.
    """
    give(beyond.certificates, "held_out", held)
    found = run.once(studies.table_certificates, 40, 0)
    assert [(len(call.args[3]), call.args[4], call.kwargs["M"], call.kwargs.get("share"))
            for call in studies.train.call_args_list] == [
        (40, "kl-PAC-SGP", 10, None), (40, "VFE", 10, 0.5), (20, "VFE", 10, None)]
    first, rest, delta = found["held-out"].pop("mean, bound")
    assert sorted(first + rest) == [*range(40)] and delta == 0.025
    for row in found.values():
        assert_close([row["draw, true risk"], row["mean, true risk"]], [0.185, 0.185], 1e-14)
    assert (found["paper"]["draw, bound"], found["paper"]["mean, bound"]) == (0.1, 0.2)


@law
def stream_certificates(run, give):
    """Of predictors 0 to m - 1, each on rows of its own, beside the bounds after m rows."""
    begun = give(studies, "learners", lambda *_, **options: range(100))
    give(beyond.stream, "certificates", lambda m: Fit(draw=Fit(bound=m), mean=Fit(bound=2 * m)))
    give(beyond.stream, "forecast", lambda m, X: (
        X[:, 0] + 0.5 + (m % 3 == 0), np.full(len(X), 1e-12), None))
    found = run.once(studies.stream_certificates, 40, 100)
    assert_close([[v for v in row.values() if v != "any-time"] for row in found],
                 [[40, 30, 60, 10 / 30, 10 / 30], [100, 90, 180, 30 / 90, 30 / 90]], 1e-14)
    settings = begun.call_args.kwargs["settings"]
    assert_close([settings.eps, settings.delta], [0.3, 0.05 * 3 / 2], 1e-14)


@law
def off_print(run, give):
    """A KL, or a gradient, that is 1 % off does not equal the formula."""
    right = R.full_gp

    def wrong(*args):
        (mean, var, KL), back = right(*args)
        return (mean, var, 1.01 * KL), lambda *d: {k: 1.01 * v for k, v in back(*d).items()}
    assert max(F.Run("quick").once(studies.off_print)) < 1e-9
    give(R, "full_gp", wrong)
    assert min(run.once(studies.off_print)) > 0.009


@law
def authors_run(run, give):
    """All starts at 1; L-BFGS finds the optimum over Z, l, sigma_s^2 and sigma_n^2 of the objective
    on the training rows; this is scored on the others, and counts evaluations.
    """
    asked = []

    def bowl(p, X, y, method, **settings):
        asked.append((p, rows(X, y), method, settings))
        off = {name: value - k for k, (name, value) in enumerate(p.items(), 1)}
        return sum(np.sum(d**2) for d in off.values()) / 2, off
    give(R, "training_objective", bowl)
    give(authors, "authors_start", lambda X, M: np.full((M, 1), 0.5))
    found = run.once(studies.authors_run, "pol", 5, "VFE", "ARD", "exp", 1)
    fit, (p, seen, method, settings) = found["fit"], asked[0]
    a, b = (part.tolist() for part in shared.train_test(40, 1))
    assert (fit.rows, seen, found["scored"], fit.method, method) == (a, a, b, "kl-PAC-SGP", "VFE")
    assert [fit.loss, fit.eps, fit.ard] == [settings["loss"], settings["eps"], True]
    assert settings["penalty"] == R.ln_grid_size(2, fit.grid)
    assert_close(np.exp(R.pack(p)), [1, 1, 1 + 1e-6, *[math.exp(0.5)] * 5], 1e-14)
    assert_close(R.pack(fit.start), [1, 1, 2, *[3] * 5], 1e-2)
    assert fit.optimum.n_evals == len(asked)


@law
def authors_line(run, give):
    """Trained on all rows to eps = times sigma_n; KL and B are those of the fit that it returns."""
    give(R, "training_objective", lambda p, *_, **settings: (
        settings["eps"], {name: 0 * value for name, value in p.items()}))
    found = run.once(of_R.authors_line, 0.5)
    assert found == {"KL/N, the authors' way": 2.0, "B, the authors' way": 0.1}
    (_, _, X, y, *_), options = authors.train.call_args
    assert len(rows(X, y)) == 40 and options["eps"] == 1 and not options["ard"]


@law
def authors_table(run, give):
    """With real data the trainings of the authors' way, not ours, are held against the paper's."""
    paper = {key: {q: float(text.split(" +- ")[0]) for q, text in row.items()}
             for key, row in of_R.published("R_table2", "data", "method", "setting").items()}
    give(run, "once", lambda f, data, M, method, ard, loss, i: f is studies.authors_run and paper[
        data, method, ard] | {"evaluations": 1} or {"B": 9.0, "evaluations": 2})
    run.real = True
    found, numbers = figure(run, "authors_table", [5], 1)
    assert numbers[:2] == [168, 168] and len(shared.where(found, **{"": "our way"})) == 24


@law
def authors_start(run, give):
    """kmeans2, by loops: means of the nearest rows; a centre without any stays where it was."""
    X = default_rng(3).exponential(1.0, (60, 2))
    rng = np.random.RandomState(int(X[0, 0]))
    Z = np.array([X.mean(0) + np.linalg.cholesky(np.cov(X.T)) @ rng.randn(2) for _ in range(12)])
    drawn = Z.tolist()
    for _ in range(10):
        nearest = [min(range(12), key=lambda k: sum((x - Z[k])**2)) for x in X]
        Z = np.array([np.mean([x for x, n in zip(X, nearest) if n == k] or [Z[k]], 0)
                      for k in range(12)])
    assert_close(authors.authors_start(X, 12), Z, 1e-13)
    assert 0 < sum(z in drawn for z in Z.tolist()) < 12


@law
def L_dependent(run, give):
    """Half of sqrt(2 ln(1/delta)/m) falls with the rows so far, half is fixed, lambda being that of
    all m; their sum is below the risk, 1/2, from then on.
    """
    _, title = figure(run, "L_dependent", 100, 0.05)
    half = math.sqrt(2 * math.log(20) / 100) / 2
    assert title[1:] == [math.ceil(100 * half / (0.5 - half)), 0.05]


@law
def certified_wave(run, give):
    """One half trains, the other certifies, with all of delta; of new rows a quarter is missed."""
    give(beyond.certificates, "held_out", held)
    parts, _, found = run.once(studies.certified_wave)
    first, rest, delta = found["bound"]
    assert sorted(first + rest) == [*range(300)] and delta == found["delta"] == 0.01
    assert [rows(*part) for part in parts] == [first, rest] and found["missed"] == 0.25


@each("name", sorted(EXPERIMENTS | {*LAWS}))
def test_RJL_house_experiments(name, give):
    """Each experiment has a law here, and obeys it."""
    table = numbered()
    for room, functions in (
            (authors, dict(train=trained)),
            (of_R, dict(train=trained, measure=measured, snelson_like=numbered(),
                        data_set=lambda *_: numbered()(), sample_ard=lambda rng, N, n: (
                            *table(rng, N), *table(rng, n)))),
            (of_J, dict(data_set=lambda *_: numbered()(), taxi_like=table)),
            (of_L, dict(snapshots=still)), (R, dict(predict=mean_misses)),
            (studies, dict(train=trained, measure=measured, ripples=table, wave=table,
                           data_set=lambda *_: numbered()()))):
        for place, function in functions.items():
            give(room, place, function)
    run = F.Run("quick")
    run.rng = run.seeded()
    LAWS[name](run, give)
