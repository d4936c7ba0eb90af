"""What figures.py runs: data that imitate the papers' data sets, and the experiments whose results it draws.

An experiment is a function `name(run, *args, **settings)` with @experiment above it; run is a Run of figures.py: size and seed,
rng, a generator of the experiment's own, tables (with --data), once(f, *args) for the result of another experiment, tick(text)
for a progress line. Its docstring goes into the text files of the figures that show it. Generated data end in _like where they
imitate a data set. R = Reeb et al. 2018, J = Jankowiak et al. 2020, L = Liu et al. 2022.
"""
import hashlib
import math
import types
import warnings

import numpy as np

import online as L
import pacgp_ref as R
import predictive as J


def experiment(*files, real={}, **settings):
    """Declares the data files that a function reads with --data, and its settings; real: those that --data changes.

    A setting is a tuple (quick, default, full), or one value for all sizes.
    """
    def declare(f):
        f.files, f.settings, f.real = files, settings, real
        return f
    return declare


def reach(thing, found=None):
    """{function or constant: what it is made of} of this folder, the papers' modules apart, that a function reaches by name.

    A function is made of its bytecode, constants, defaults and settings.
    """
    found = {} if found is None else found
    if isinstance(thing, types.FunctionType) and thing not in found and thing.__globals__.get("experiment") is experiment:
        found[thing], codes = [], [thing.__code__]
        for code in codes:
            consts = [sorted(c) if isinstance(c, frozenset) else c for c in code.co_consts if not isinstance(c, types.CodeType)]
            found[thing].append((code.co_code, code.co_names, consts))
            codes += [part for part in code.co_consts if isinstance(part, types.CodeType)]
            for name in code.co_names:
                reach(thing.__globals__.get(name), found)
        found[thing] += [thing.__name__, getattr(thing, "settings", None), getattr(thing, "real", None)]
        reach(thing.__defaults__, found)
    elif isinstance(thing, (dict, list, tuple)):
        for part in thing.items() if isinstance(thing, dict) else thing:
            reach(part, found)
    elif isinstance(thing, (str, int, float, np.ndarray)):
        name = repr(np.asarray(thing).tolist())
        found[name] = name
    return found


def digest(*parts):
    """Of bytes, or of what repr says."""
    each = (part if isinstance(part, bytes) else repr(part).encode() for part in parts)
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in each)).hexdigest()[:16]


def mean_se(values):
    """[(mean, standard error)] of the columns; NaN errors for a single row."""
    values = np.asarray(values, dtype=float)
    se = values.std(0, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else np.full(values.shape[1], math.nan)
    return list(zip(values.mean(0), se))


def average(found):
    """{name: (mean, standard error)} of dicts of numbers."""
    return dict(zip(found[0], mean_se([list(one.values()) for one in found])))


def standard(table):
    """Columns with mean 0 and deviation 1 over all rows, test rows included, as in R; constant columns become 0."""
    return (table - table.mean(0)) / np.where(table.std(0) > 0, table.std(0), 1.0)


def split(n, i, share=0.2):
    """Rows to train on and rows to test on, number i: the splits of the authors' code (data/README)."""
    order, k = np.random.RandomState(i).permutation(n), math.ceil(share * n)
    return order[k:], order[:k]


def train(run, label, X, y, method, *args, **options):
    """R.fit with a progress line, and without its warnings: the number of evaluations goes into the tables instead."""
    say = lambda n, f: run.tick(f"{label}, {method}: evaluation {n}, objective {f:.5g}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return R.fit(X, y, method, *args, **options, callback=say)


# --- data that imitate the papers' ---------------------------------------------------------------------------------

def snelson_like(rng, N=200, uneven=False):
    """x (N, 1) on [0, 6], y (N,): imitates Snelson's set, a wave of lengthscale 0.6 and amplitude 0.9, unevenly seen.

    Two thirds of the inputs are even, the rest crowd around four places. The noise has deviation 0.28, or, uneven, one that
    grows from 0.02 to 0.52 along x.
    """
    crowd = rng.choice([0.2, 1.0, 2.6, 4.0], N) + 0.12 * rng.standard_normal(N)
    x = np.where(rng.random(N) < 0.66, rng.uniform(0, 6, N), crowd)
    bump = lambda height, centre, width: height * np.exp(-(((x - centre) / width) ** 2))
    f = bump(-1.85, 1.45, 0.7) + bump(0.8, 2.75, 0.45) + bump(1.0, 4.35, 0.45) + bump(-0.9, 5.3, 0.5)
    s = 0.02 + 0.5 / (1 + np.exp(-3 * (x - 3))) if uneven else 0.28
    return np.abs(x)[:, None], f + s * rng.standard_normal(N)


def boston_like(rng, N=506, d=13):
    """X (N, d), y (N,), standardised: imitates Boston housing, 13 correlated inputs and a skewed target.

    Four hidden factors make the inputs; two inputs are skewed, one is 0 or 1. The target is the exponential of a bent sum,
    and its noise grows with it.
    """
    F = rng.standard_normal((N, 4))
    X = F @ rng.standard_normal((4, d)) + 0.4 * rng.standard_normal((N, d))
    g = 0.45 * F[:, 0] - 0.3 * np.tanh(1.5 * F[:, 1]) + 0.12 * F[:, 2] ** 2 + 0.1 * F[:, 0] * F[:, 3]
    X[:, :2], X[:, 3] = np.exp(X[:, :2] / 2), X[:, 3] > 2
    return standard(X), standard(np.exp(0.6 * g) * (1 + 0.11 * rng.standard_normal(N)))


def kin40k_like(rng, N=40000, noise=0.15):
    """X (N, 8), y (N,), standardised: imitates kin40k, the distance of a robot arm's hand from a point for 8 joint angles.

    The arm lies in a plane; each of 8 links turns against the one before it by up to 0.7 rad. noise: a share of the
    deviation.
    """
    turn, distance = robot_arm(rng, N)
    return standard(turn), standard(standard(distance) + noise * rng.standard_normal(N))


def robot_arm(rng, N):
    """turn (N, 8), uniform on [-1, 1], and the distance (N,) of the hand from a point, in lengths of the arm."""
    turn = rng.uniform(-1, 1, (N, 8))
    angle = np.cumsum(0.7 * turn, axis=1)
    hand = np.stack([np.cos(angle).sum(1), np.sin(angle).sum(1)], 1) / 8
    return turn, np.hypot(*(hand - [0.6, 0.3]).T)


def sample_ard(rng, N, n_test):
    """X, y, X_test, y_test: a draw from a GP on [-3, 3]^3, SE-ARD with ln l_i ~ U(-1, 1), sigma_s^2 = 1, no noise; R App. F.

    Test values are drawn one by one given y: the test risk is a mean over single points and needs no more.
    """
    ln_theta = np.append(2 * rng.uniform(-1, 1, 3), 0.0)
    X, X_test = rng.uniform(-3, 3, (N, 3)), rng.uniform(-3, 3, (n_test, 3))
    L = R.cholesky(R.se_kernel(X, X, ln_theta) + 1e-8 * np.eye(N), "K_NN")
    white = rng.standard_normal(N)
    mean, var = R.sparse_predict(X_test, X, R.tri_inv(L), ln_theta, white)
    return X, L @ white, X_test, mean + np.sqrt(var) * rng.standard_normal(n_test)


def uneven_noise(rng, N):
    """X (N, 2), y (N,), standardised: a wave, and noise whose deviation grows from 0.02 to 0.32 along the first input."""
    X = rng.uniform(-2, 2, (N, 2))
    s = 0.02 + 0.3 / (1 + np.exp(-4 * X[:, 0]))
    return standard(X), standard(np.sin(2 * X[:, 0]) * np.cos(X[:, 1]) + s * rng.standard_normal(N))


def motorcycle_like(rng, N=133):
    """x (N, 1) [ms], y (N,) [g]: imitates a helmet's acceleration after an impact; noise of 1.5 g, then 24 g, then 12 g."""
    x = np.sort(np.append(rng.uniform(2, 58, N - N // 2), np.clip(20 + 6 * rng.standard_normal(N // 2), 2, 58)))
    f = -125 * np.exp(-(((x - 20.5) / 4.6) ** 2)) + 55 * np.exp(-(((x - 31.5) / 4.5) ** 2))
    s = 1.5 + 22.5 / (1 + np.exp((15 - x) / 0.8)) - 12 / (1 + np.exp((41 - x) / 1.5))
    return x[:, None], f + s * rng.standard_normal(N)


CITIES = {"city A": (15.0, 0.35, 0.2), "city B": (8.0, 0.6, 0.35), "city C": (25.0, 0.2, 0.5)}     # extent [km], rush, jams


def taxi_like(rng, N, city):
    """X (N, 24), y (N,) [min]: trips in a made-up city; a river stands east of its centre, the centre and rush hours are slow.

    Columns: where from, where to, way (east, north; km each), distance, blocks, direction (2), distances from the centre (2),
    bridge, time of day (4), weekday (7). The noise is lognormal, its spread grows with jams; a bridge may be blocked.
    """
    extent, rush, jam = CITIES[city]
    start, end = rng.standard_normal((2, N, 2)) * [extent / 2, 0.3 * extent]
    way, hour, day = end - start, rng.uniform(0, 24, N), rng.integers(0, 7, N)
    bridge = (start[:, 0] > extent / 5) ^ (end[:, 0] > extent / 5)
    peak = (day < 5) * (np.exp(-(((hour - 8.5) / 1.5) ** 2)) + np.exp(-(((hour - 17.5) / 2) ** 2)))
    centre = np.exp(-np.sum(((start + end) / extent) ** 2, 1))
    blocks, clock, turn = np.abs(way).sum(1), np.pi * hour / 12, np.arctan2(*way.T)
    mean = 2 + 60 * blocks * (1 + 2 * rush * peak + 1.2 * centre) / 45 + 5 * bridge * (1 + 2 * peak)
    spread = 0.05 + jam * (0.2 + 0.8 * peak) * (0.3 + 0.7 * centre)
    y = mean * np.exp(spread * rng.standard_normal(N)) + bridge * peak * rng.exponential(8, N)
    return np.column_stack([
        start, end, way, np.hypot(*way.T), blocks, np.cos(turn), np.sin(turn), np.hypot(*start.T), np.hypot(*end.T), bridge,
        np.cos(clock), np.sin(clock), np.cos(2 * clock), np.sin(2 * clock), np.eye(7)[day]]), y


def rate_like(rng, N=39):
    """N daily rates: imitates CAD per USD in 2007, a random walk in ln from 1.17 on, 0.5 % a day (the real one: 0.56 %)."""
    return 1.17 * np.exp(np.cumsum(0.005 * rng.standard_normal(N)))


SD, RHO = 0.4, 0.7                                         # noise of L Sec. 5.1; how much of it the walk's next row keeps


def sine_stream(rng, n, order):
    """X (n, 1), y (n,) of y = sin(4x) + 0.4 e and chance(i): the law of row i given rows 0 .. i-1, as nodes (k,), weights (k,),
    means of y (k,) and its deviation there.

    shuffled: x uniform on [-1, 1]; time: the same sorted, so that x_i is the least of those left, uniform above x_{i-1};
    walk: x one step left or right on 21 points, 0 and 20 turned back, and e_i = 0.7 e_{i-1} + fresh noise.
    """
    x, e, (u, w) = rng.uniform(-1, 1, n), SD * rng.standard_normal(n), np.polynomial.legendre.leggauss(24)
    u, w = (u + 1) / 2, w / 2                                            # on [0, 1]
    if order == "time":
        x = np.sort(x)
    if order == "walk":
        at = np.empty(n, dtype=int)
        for i in range(n):
            at[i] = 10 if i == 0 else abs(at[i - 1] + (1 if x[i] > 0 else -1))
            at[i] = min(at[i], 40 - at[i])
            e[i] = RHO * e[i - 1] + math.sqrt(1 - RHO**2) * e[i] if i else e[i]
        x = at / 10 - 1

    def chance(i):
        if order == "walk":
            sides = np.abs(at[i - 1] + np.array([-1, 1]))
            nodes = np.minimum(sides, 40 - sides) / 10 - 1
            return nodes, np.array([0.5, 0.5]), np.sin(4 * nodes) + RHO * e[i - 1], SD * math.sqrt(1 - RHO**2)
        low = x[i - 1] if order == "time" else -1.0
        nodes = low + (1 - low) * (1 - u ** (1 / (n - i if order == "time" else 1)))
        return nodes, w, np.sin(4 * nodes), SD
    return x[:, None], np.sin(4 * x) + e, chance


# --- R: Reeb et al. 2018 -------------------------------------------------------------------------------------------

QUANTITIES = ("B", "B_Pin", "R_S train", "R_S test", "MSE", "KL/N", "sigma_n^2")
SPARSE_FILES = {"pol": "pol.csv.gz", "sarcos": "sarcos_test.csv.gz", "kin40k": "kin40k.csv.gz"}


def measure(fit, X, y):
    """QUANTITIES of a fit, tested on X, y, and its evaluations. The test risk is the 0-1 risk whatever it was trained with."""
    mean, var = R.predict(fit, X)
    return dict(zip((*QUANTITIES, "evaluations"), (
        fit.bound, fit.pinsker, fit.risk, R.gibbs_risk(y, mean, var, fit.eps), np.mean((mean - y) ** 2), fit.KL / fit.N,
        math.exp(fit.ln_noise), fit.optimum.n_evals)))


def measured(found):
    """The average of such dicts, evaluations as a whole number."""
    row = average(found)
    return row | {"evaluations": round(row["evaluations"][0])}


@experiment("snelson.csv")
def line_data(run):
    """x (N, 1), y (N,) of the one-dimensional set, in its own units, and the full GP that sets the scale of eps."""
    x, y = (run.tables["snelson.csv"][:, :1], run.tables["snelson.csv"][:, 1]) if run.real else snelson_like(run.rng)
    return x, y, train(run, "1-D", x, y, "full-GP")


@experiment(starts=(2, 8, 20), max_evals=(40, 400, 2000), M=15)
def best_start(run, method, times, starts, max_evals, M):
    """The best of several k-means starts of the inducing inputs, its start, and KL/N of every one; eps = times sigma_n."""
    x, y, gp = run.once(line_data)
    eps, Zs = times * math.exp(gp.ln_noise / 2), [R.kmeans(x, M, run.rng) for _ in range(starts)]
    fits = [train(run, "1-D", x, y, method, Z=Z, eps=eps, max_evals=max_evals) for Z in Zs]
    best = min(range(starts), key=lambda i: fits[i].optimum.f)
    return fits[best], Zs[best], [f.KL / f.N for f in fits]


@experiment("boston.csv", N=(150, 506, 506), real=dict(N="all"))
def boston_study(run, N):
    """X, y of R Sec. 4(b), standardised on all rows."""
    table = run.tables["boston.csv"] if run.real else np.column_stack(boston_like(run.rng, N))
    return standard(table[:, :-1]), standard(table[:, -1])


@experiment(all_eps=[0.2, 0.4, 0.6, 0.8, 1.0], ftol=1e-6)
def boston_split(run, i, all_eps, ftol):
    """{(eps, method): measures} of a split. The full GP is trained once and certified for each eps."""
    (X, y), found = run.once(boston_study), {}
    a, b = split(len(y), i)
    gp = train(run, f"split {i + 1}", X[a], y[a], "full-GP", ftol=ftol)
    for eps in all_eps:
        label = f"split {i + 1}, eps {eps}"
        fits = {m: train(run, label, X[a], y[a], m, eps=eps, ftol=ftol) for m in ("kl-PAC-GP", "sqrt-PAC-GP")}
        again = train(run, label, X[a], y[a], "full-GP", eps=eps, start=gp.optimum.x, max_evals=1)
        fits["full-GP"] = again._replace(optimum=gp.optimum)
        found |= {(f"{eps:.1f}", method): measure(fit, X[b], y[b]) for method, fit in fits.items()}
    return found


@experiment(*SPARSE_FILES.values(), N=(400, 1500, 40000), real=dict(N="all"))
def sparse_table(run, name, N):
    """X, y of a data set, standardised on all rows."""
    if name == "kin40k_like":
        return kin40k_like(run.rng, N)
    table = standard(run.tables[SPARSE_FILES[name]][:, :22] if name == "sarcos" else run.tables[SPARSE_FILES[name]])
    return table[:, :-1], table[:, -1]


@experiment(eps=0.6, max_evals=(15, 80, 200), ftol=1e-7, real=dict(max_evals=(8, 100, 200)))
def sparse_run(run, name, M, method, ard, loss, i, eps, max_evals, ftol):
    """measures, optimum of one method on split i of a data set: R Sec. 4(c). The test risk is the 0-1 risk.

    The box on ln l^2 is twice as wide as printed where ARD needs it, [-12, 12]: the authors' code has [-6, 6] on ln l. VFE and
    FITC know no loss: for another one they are only certified anew.
    """
    X, y = run.once(sparse_table, name)
    a, b = split(len(y), i)
    again = run.once(sparse_run, name, M, method, ard, "01", i)[1] if loss != "01" and "PAC" not in method else None
    options = dict(start=again.x, max_evals=1) if again else dict(max_evals=max_evals, ftol=ftol, seed=i)
    fit = train(run, f"{name}, M = {M}, split {i + 1}", X[a], y[a], method, M, eps=eps, loss=loss, ard=ard == "ARD",
                grid=R.GRID if name == "sarcos" else (12.0, 1200), **options)
    fit = fit._replace(optimum=again or fit.optimum)
    return measure(fit, X[b], y[b]), fit.optimum


@experiment("snelson.csv", starts=(6, 16, 100), max_evals=(60, 1500, 4000), ftol=1e-8, M=8,
            real=dict(starts=(6, 100, 100), max_evals=(60, 2000, 4000)))
def restarts(run, method, starts, max_evals, ftol, M):
    """A row for each random start of sigma_n^2 and Z; every second point in the file's order; R App. E."""
    x, y = (run.once(line_data)[:2]) if run.real else snelson_like(run.seeded("uneven line"), uneven=True)
    x, y, found = x[::2], y[::2], []
    for i in range(starts):
        ln_noise = run.rng.uniform(math.log(1e-5), math.log(10))
        start = dict(ln_theta=[0.0, 0.0], ln_noise=ln_noise, Z=x[run.rng.permutation(len(x))[:M]])
        fit = train(run, f"start {i + 1}", x, y, method, start=start, M=M, ftol=ftol, max_evals=max_evals)
        found.append({"start": math.exp(ln_noise), "learned": math.exp(fit.ln_noise), "objective": fit.optimum.f,
                      "evaluations": fit.optimum.n_evals, "at the cap": int(fit.optimum.n_evals >= max_evals)})
    return found


@experiment(N=(60, 300, 2000), n_test=(200, 2000, 10_000), boxes=[1, 2, 4, 8], decimals=[0, 1, 2, 4])
def grid_run(run, i, N, n_test, boxes, decimals):
    """{(L, r): measures} of a data set: trained in each box L once, the optimum then rounded to r decimals, G = 2 L 10^r."""
    X, y, X_test, y_test = sample_ard(run.rng, N, n_test)
    fit = lambda L, r, **more: train(run, f"data set {i + 1}, L = {L}", X, y, "kl-PAC-GP", ard=True, ftol=1e-6,
                                     grid=(2.0 * L, 2 * L * 10**r), **more)
    wide, found = fit(max(boxes), 2).optimum.x, {}
    for L in boxes:
        best = fit(L, 2, start=wide).optimum.x
        for r in decimals:
            f = fit(L, r, start=best, max_evals=1)
            found[L, r] = measure(f, X_test, y_test) | {"ln|Theta|": f.penalty, "ln|Theta|/N": f.penalty / N}
    return found


@experiment(Ns=[50, 100, 200, 400], each=(4, 50, 500), n_new=(2000, 20_000, 100_000), M=8, max_evals=60)
def coverage_runs(run, Ns, each, n_new, M, max_evals):
    """Rows (N, B, R_S, true risk) of GPs trained on many small data sets; the true risk is a mean over new rows."""
    def draw(n):
        x = run.rng.uniform(0, 6, n)
        return x[:, None], np.sin(2 * x) + 0.3 * run.rng.standard_normal(n)

    (X_new, y_new), found = draw(n_new), []
    for N, i in ((N, i) for N in Ns for i in range(each)):
        X, y = draw(N)
        fit = train(run, f"N = {N}, data set {i + 1}", X, y, "kl-PAC-SGP", M=M, max_evals=max_evals, ftol=1e-5, seed=i)
        found.append([N, fit.bound, fit.risk, R.gibbs_risk(y_new, *R.predict(fit, X_new), fit.eps)])
    return np.array(found)


def worst_failure(bounds):
    """p (N,) and P(bound < p) just above each bound when k ~ Bin(N, p) of N losses are 1: exact, the worst case near p.

    Bounds (N+1,) increase with k: those below such a p belong to the counts up to k.
    """
    N, k = len(bounds) - 1, np.arange(len(bounds) - 1)
    ln_choose = math.lgamma(N + 1) - np.array([math.lgamma(i + 1) + math.lgamma(N - i + 1) for i in k])
    p = np.minimum(bounds[:-1] + 1e-9, 1 - 1e-12)
    ln_prob = ln_choose + k * np.log(p)[:, None] + (N - k) * np.log1p(-p)[:, None]
    return p, np.sum(np.tril(np.exp(ln_prob)), 1)


# --- J: Jankowiak et al. 2020 --------------------------------------------------------------------------------------

SCORES = ("NLL", "RMSE", "CRPS", "noise fraction")
J_FILES = {"pol": "pol.csv.gz", "bike": "bike.csv.gz", "kin40k": "kin40k.csv.gz"}
GENERATED = {"uneven_noise": uneven_noise, "boston_like": boston_like, "kin40k_like": lambda rng, N: kin40k_like(rng, N, 0.05)}


@experiment(*J_FILES.values(), N=(100, 1000, 10_000), real=dict(N="all"))
def score_table(run, name, N):
    """X, y of a data set, standardised on all rows, test rows included. 'bike, 15 inputs': without casual, registered."""
    if not run.real:
        return GENERATED[name](run.rng, N)
    table = standard(run.tables[J_FILES[name.split(",")[0]]])
    return np.delete(table, [15, 16], 1)[:, :-1] if "," in name else table[:, :-1], table[:, -1]


@experiment(M=(5, 40, 1000), batch=(75, 100, 1000), epochs=(3, 30, 400), lr=(0.05, 0.1, 0.01), exact_rows=(50, 400, 4000),
            validate=(False, False, True), real=dict(
                M=(10, 100, 1000), batch=(2000, 1000, 1000), epochs=(1, 60, 400), lr=(0.03, 0.03, 0.01),
                exact_rows=(100, 1000, 4000)))
def score_run(run, name, method, i, M, batch, epochs, lr, exact_rows, validate):
    """SCORES on the test rows of split i, the same for all methods; J App. C.1.

    Random 15 : 3 : 2 to train, test and validate; standardised on all rows, as in J. Matern-5/2 kernel, one lengthscale a
    column. beta_reg and gamma are chosen by the validation rows, or else 0.05 for PPGPR, 1 for the others, and 1.03. exact: at
    most exact_rows of the training rows, L-BFGS. The paper: M = 1000, batches of 1000, 400 epochs, rate 0.01, 10 splits.
    """
    X, y = run.once(score_table, name)
    a, b, c = np.split(run.seeded(name, i).permutation(len(y)), [len(y) * 15 // 20, len(y) * 18 // 20])
    a, epochs = (a[:exact_rows], 2 * epochs) if method == "exact" else (a, epochs)
    settings = dict(M=M, batch=batch, epochs=epochs, lr=lr, seed=i, callback=lambda n, f: run.tick(
        f"{name}, split {i + 1}, {method}: epoch {n}, objective {f:.5g}"))
    fit = J.choose(X[a], y[a], X[c], y[c], method, **settings) if validate else \
        J.fit(X[a], y[a], method, beta_reg=0.05 if "PPGPR" in method else 1.0, **settings)
    mean, var_f, var = J.predict(fit, X[b])
    noise = J.noise_fraction(var_f, np.exp(fit.params["ln_noise"]))
    return [J.nll(y[b], mean, var), J.rmse(y[b], mean), J.crps(y[b], mean, var), noise]


DRAWS = {               # kernel -> theta of the draw, where the data end, M, rate
    "periodic": ((1.0, 0.2, 1.0), 0.5, 25, 0.01), "Matern52": ((0.1**2, 1.0), 1.0, 40, 0.02)}


def draw_fit(run, kernel, method, start, x, y, grid, epochs):
    """A row of a fit whose period, or lengthscale, starts at start, and mean, var of y on the grid.

    J.fit starts both at J.START: x is scaled instead, and with it what a step of Adam means for Z.
    """
    unit, (M, rate) = start / J.START, DRAWS[kernel][2:]
    fit = J.fit(x / unit, y, method, M, kernel, epochs=epochs, lr=rate, seed=run.seed,
                callback=lambda epoch, value: run.tick(f"{kernel}, {method}: epoch {epoch}"))
    mean, _, var = J.predict(fit, grid / unit)
    l2, *period, s2 = np.exp(fit.params["ln_theta"])
    return {"kernel": kernel, "method": method, "start": start, "period": period[0] * unit if period else None,
            "l": math.sqrt(l2) * (1 if period else unit), "sigma_k": math.sqrt(s2),
            "sigma_obs": math.exp(fit.params["ln_noise"] / 2), "objective": fit.history[-1]}, mean, var


# --- J Fig. 5: a network in front of the GP, or dropout inside it --------------------------------------------------

TAUS = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0)                                                            # J App. C.3


def mlp_start(rng, sizes):
    """Dict W0 (sizes[0], sizes[1]), b0, W1, ..: normal weights of variance 2/fan-in (He et al. 2015), no offsets."""
    p = {}
    for i, shape in enumerate(zip(sizes, sizes[1:])):
        p |= {f"W{i}": rng.standard_normal(shape) * math.sqrt(2 / shape[0]), f"b{i}": np.zeros(shape[1])}
    return p


def mlp(p, X, drop=0.0, rng=None):
    """A (N, out) of the last layer, cache: A_i = H_i W_i + b_i, H_0 = X, H_i = gate_i A_i-1, gate_i = 1[A_i-1 > 0]: ReLU.

    drop > 0: a hidden unit's gate is 0 with that probability, by rng, and divided by 1 - drop otherwise: dropout.
    """
    A, cache = X, []
    for i in range(sum(name[0] == "W" for name in p)):
        kept = (rng.random(A.shape) >= drop) / (1 - drop) if drop else 1.0
        gate = (A > 0) * kept if i else np.ones(A.shape)
        H = A * gate
        A = H @ p[f"W{i}"] + p[f"b{i}"]
        cache.append((H, gate, p[f"W{i}"]))
    return A, cache


def mlp_back(d_A, cache):
    """Gradients and "X" (N, d) from d_A (N, out):  d_W_i = H_i^T d_A_i,  d_b_i = sum d_A_i,  d_A_i-1 = gate_i d_A_i W_i^T"""
    out = {}
    for i, (H, gate, W) in reversed(list(enumerate(cache))):
        out |= {f"W{i}": H.T @ d_A, f"b{i}": d_A.sum(0)}
        d_A = gate * (d_A @ W.T)
    return out | {"X": d_A}


def deep_gp_back(p, X, y, N, method, beta_reg):
    """Gradient dict of J.objective with the network's output in place of X: what the GP calls d_X is the network's d_A."""
    H, cache = mlp(p, X)
    grads = J.objective_back(1.0, J.objective(p, H, y, N, method, beta_reg)[1])
    return grads | mlp_back(grads["X"], cache)


def deep_train(rng, p, gradient, N, plan, say):
    """p after plan's epochs of Adam along gradient(p, rows), the rate J.step_size from 0.01 on; J App. C.3."""
    x, state, epochs = J.pack(p), None, plan["epochs"]
    for epoch in range(epochs):
        for rows in np.array_split(rng.permutation(N), math.ceil(N / plan["batch"])):
            grads = gradient(J.unpack(x, p), rows)
            x, state = R.adam_step(x, J.pack({name: grads[name] for name in p}), state, J.step_size(0.01, epoch, epochs))
        say(f"epoch {epoch + 1} of {epochs}")
    return J.unpack(x, p)


def deep_gp(rng, X, y, method, beta_reg, plan, say):
    """X_new -> mean, variance of y, by deep kernel learning; inducing inputs start at the features of random rows."""
    net, M = mlp_start(rng, (X.shape[1], *plan["hidden"])), plan["M"]
    H = rng.permutation(mlp(net, X)[0])
    p = J.initial_parameters(H, method, M, Z=H[:M]) | net
    if "Z_mean" in p:
        p["Z_mean"] = H[-M:]
    p = deep_train(rng, p, lambda q, i: deep_gp_back(q, X[i], y[i], len(y), method, beta_reg), len(y), plan, say)

    def predict(X_new):
        (mu, ktilde, svar, _), _ = J.marginals(p, mlp(p, X_new)[0])
        return mu, ktilde + svar + math.exp(p["ln_noise"])
    return predict


def dropout_net(rng, X, y, X_val, y_val, drop, plan, say):
    """tau; X_new -> mean, variance of y, by MC dropout (Gal & Ghahramani 2016): those of 50 passes, and tau for the noise.

    Trained on squared errors; tau is the one of TAUS with the least NLL on X_val, y_val.
    """
    def gradient(p, i):
        out, cache = mlp(p, X[i], drop, rng)
        return mlp_back(2 * (out - y[i, None]) / len(i), cache)
    p = deep_train(rng, mlp_start(rng, (X.shape[1], *plan["hidden"], 1)), gradient, len(y), plan, say)

    def passes(X_new):
        out = np.stack([mlp(p, X_new, drop, rng)[0][:, 0] for _ in range(50)])
        return out.mean(0), out.var(0)
    mean, var = passes(X_val)
    tau = min(TAUS, key=lambda t: J.nll(y_val, mean, var + t))
    return tau, lambda X_new: np.add(passes(X_new), [[0.0], [tau]])


def kolmogorov(z):
    """Largest distance between the empirical CDF of z (n,) and Phi, looking at both sides of each step."""
    Phi, steps = R.norm_cdf(np.sort(z)), np.arange(len(z) + 1) / len(z)
    return float(np.max(np.maximum(steps[1:] - Phi, Phi - steps[:-1])))


@experiment(N=(300, 3000, 20_000), n_test=(300, 2000, 20_000), hidden=([16, 4], [64, 32, 8], [256, 256, 128, 128, 64]),
            M=(10, 32, 1024), batch=(100, 100, 1000), epochs=(3, 20, 200), betas=([0.2], [0.05, 0.5], [0.05, 0.2, 0.5, 1.0]),
            drops=([0.1], [0.05, 0.15], [0.05, 0.1, 0.15, 0.2, 0.25]))
def city_run(run, city, N, n_test, betas, drops, **plan):
    """{method: (choice, z of the test rows, NLL, RMSE)} on one city; choices by NLL on N/4 validation rows."""
    rng, say = run.rng, lambda text: run.tick(f"{city}: {text}")
    X, y = taxi_like(rng, N + N // 4 + n_test, city)
    X, y = (np.split((v - v[:N].mean(0)) / v[:N].std(0), [N, N + N // 4]) for v in (X, y))    # training, validation, test
    found = {"SVGP+DKL": [("beta_reg 1", deep_gp(rng, X[0], y[0], "SVGP", 1.0, plan, say))], "MC dropout": [],
             "PPGPR+DKL": [(f"beta_reg {b:g}", deep_gp(rng, X[0], y[0], "PPGPR-MFD", b, plan, say)) for b in betas]}
    for drop in drops:
        tau, predict = dropout_net(rng, X[0], y[0], X[1], y[1], drop, plan, say)
        found["MC dropout"].append((f"p {drop:g}, tau {tau:g}", predict))
    out = {}
    for name in ("SVGP+DKL", "PPGPR+DKL", "MC dropout"):
        choice, predict = min(found[name], key=lambda c: J.nll(y[1], *c[1](X[1])))
        mean, var = predict(X[2])
        out[name] = choice, (y[2] - mean) / np.sqrt(var), J.nll(y[2], mean, var), J.rmse(y[2], mean)
    return out


# --- L: Liu et al. 2022, streams whose true risk is known ----------------------------------------------------------

RANGE = np.array([[0.0], [3**-0.5]])                       # mean and deviation of x on [-1, 1], known before the stream
GUESS = 10.0                   # nats of KL that the fixed lam of the training certificate is tuned for
BROKEN = ("full", "printed", "no lam m K^2/8", "no confidence")         # what stands on the right of (11)
PREDICTORS = ("certified O-PACGP", "O-PACGP", "O-SGPR", "O-SVGP", "OVC", "WISKI", "exact", "window", "mean so far",
              "last value", "true function", "certified, noise from 1", "O-SGPR, noise from 1")


def scaled(learner, X, y):
    """X, y in the units of a Learner's State."""
    middle, unit = L.middle_and_unit(learner.target)
    return (X - learner.input_scale[0]) / learner.input_scale[1], (y - middle) / unit


def scaled_eps(learner, eps):
    """eps in the units of a Learner's State; it counts deviations of the first rows."""
    return eps * learner.units.low / L.middle_and_unit(learner.target)[1]


def learnt_from(learner, X, y):
    """Q_i, a State: P_i after the batch, under its own kernel; L.step counts its KL before kernel and scale move."""
    at, goal = (*scaled(learner, X, y), learner.ln_noise), learner.goal
    return L.paid_update(learner.state, *at, scaled_eps(learner, goal.eps), goal.loss, goal.M)[0]


def true_risk(learner, state, laws):
    """Sum over rows of the expected 0-1 loss of a State, each row drawn from its law (see sine_stream).

    y is normal at a node, so that f - y is: the noise adds to the variance, and Phi gives the expectation.
    """
    nodes, weights, means = (np.concatenate(part) for part in list(zip(*laws))[:3])
    sd = np.repeat([law[3] for law in laws], [len(law[0]) for law in laws])
    X, means = scaled(learner, nodes[:, None], means)
    (mean, var), unit = L.predict(state, X), L.middle_and_unit(learner.target)[1]
    return weights @ R.expected_01_loss(means, mean, var + (sd / unit) ** 2, scaled_eps(learner, learner.goal.eps))[0]


def follow(rng, n, order, goal, first, batch=1, say=lambda i: None, **start):
    """Sums after each step, (6, steps): rows, loss and true risk before learning, loss and true risk after, KL."""
    X, y, chance = sine_stream(rng, n, order)
    learner, sums, total = L.begin(X[:first], y[:first], goal, input_scale=RANGE, **start), [], np.zeros(2)
    for i in range(first, n, batch):
        rows = slice(i, i + batch)
        laws = [chance(j) for j in range(n)[rows]]
        total += [true_risk(learner, state, laws) for state in (learner.state, learnt_from(learner, X[rows], y[rows]))]
        learner = L.step(learner, X[rows], y[rows])
        m, before, after, KL, _ = learner.ledger
        sums.append([m, before, total[0], after, total[1], KL])
        say(i)
    return np.transpose(sums)


@experiment(m=(120, 1000, 1000))
def certified_run(run, order, m):
    """Sums along a stream of the certified O-PACGP (begin, step), row by row, with the default Goal: see follow.

    y = sin(4x) + 0.4 e on [-1, 1]; ten rows set scale and start and do not count. The rows are generated, so that the true risk
    is known: the expected loss of each predictor on a row drawn as its row was, given the rows before it.
    """
    return follow(run.rng, 10 + m, order, L.Goal(), 10, say=lambda i: run.tick(f"certified O-PACGP, {order}: row {i}"))


def allowances(name, m, lam, delta):
    """(m,) what (11) adds to the sum of t = 1 .. m losses, whole or with a term left out; KL = 0."""
    t, printed = np.arange(1, m + 1), name == "printed"
    whole = np.array([L.online_bound(0.0, 0.0, int(k), lam, delta, printed=printed) for k in t])
    return whole - {"no lam m K^2/8": lam * t / 8, "no confidence": math.log(1 / delta) / lam}.get(name, 0.0)


def coin_failure(allowed):
    """Probability that a fair coin's sum is, at any t, below t/2 by more than allowed[t-1]: exact, over the counts."""
    alive, failed = np.ones(1), 0.0
    for t, extra in enumerate(allowed, 1):
        alive = (np.append(alive, 0.0) + np.append(0.0, alive)) / 2
        out = np.arange(t + 1) + extra < t / 2
        failed, alive = failed + alive[out].sum(), np.where(out, 0.0, alive)
    return failed


def clopper_pearson(k, n, level=0.95):
    """The exact two-sided interval for a probability that k of n showed."""
    j = np.arange(n + 1)
    ln_factorial = np.cumsum(np.log(np.maximum(j, 1)))
    ln_choose = ln_factorial[-1] - ln_factorial - ln_factorial[::-1]

    def solve(first, last):
        """p at which P(first <= Bin(n, p) <= last) = (1 - level)/2: increasing in p for k .. n, decreasing for 0 .. k."""
        low, high, some = 0.0, 1.0, slice(first, last + 1)
        for _ in range(40):
            p = (low + high) / 2
            tail = np.sum(np.exp(ln_choose[some] + j[some] * math.log(p) + (n - j[some]) * math.log1p(-p)))
            low, high = (p, high) if (tail < (1 - level) / 2) == (last == n) else (low, p)
        return (low + high) / 2
    return 0.0 if k == 0 else solve(k, n), 1.0 if k == n else solve(0, k)


@experiment(streams=(4, 60, 1000), m=40, batch=4, M=8)
def gp_slacks(run, order, streams, m, batch, M):
    """{what: least over time of bound minus true risk (streams,)}, sums: (11) for each of BROKEN and (10)."""
    goal, lam, out = L.Goal(M=M, lams=(L.best_lam(m),)), L.best_lam(m, GUESS / 2), []
    ends = np.arange(batch - 1, m, batch)
    one = [allowances(name, m, goal.lams[0], goal.delta)[ends] for name in BROKEN]
    training = allowances("full", m, lam, goal.delta)[ends]
    for s in range(streams):
        _, loss, risk, after, risk_after, KL = follow(run.rng, 8 + m, order, goal, 8, batch, ln_noise=math.log(0.25))
        out.append([*(np.min(loss + allowed - risk) for allowed in one), np.min(after + KL / lam + training - risk_after)])
        run.tick(f"coverage, {order}: stream {s + 1} of {streams}")
    return dict(zip((*BROKEN, "training (10)"), np.transpose(out)))


@experiment(m=(5, 30, 200), pretrain=(20, 50, 400), noisy=(0, 0, 2))
def error_run(run, order, seed, m, pretrain, noisy):
    """{predictor: squared one-step errors (m,)} on one stream, 10 rows before them; the GPs start at one theta and noise."""
    n0, goal, Z = 10, L.Goal(memory=0.95 if order == "drift" else 1.0), np.linspace(-1, 1, 12)[:, None]
    X, y, _ = sine_stream(run.rng, n0 + m, "time" if order == "time" else "shuffled")
    f = np.sin(4 * X[:, 0])
    if order == "drift":
        turned = np.sin(4 * X[:, 0] + np.pi * np.maximum(np.arange(n0 + m) - n0, 0) / m)
        y, f = y - f + turned, turned
    means = {"mean so far": np.cumsum(y)[n0 - 1:-1] / np.arange(n0, n0 + m), "last value": y[n0 - 1:-1],
             "true function": f[n0:]}
    names = PREDICTORS[:11 + noisy]
    for name in names:
        method, ln_noise = name.split(",")[0], 0.0 if "noise" in name else math.log(0.1)
        if method in L.METHODS:
            snapshots = L.stream(X, y, method, Z, ln_noise=ln_noise, n0=n0, pretrain=pretrain)
            means[name] = np.array([s.predict(X[i:i + 1])[0][0] for i, s in zip(range(n0, n0 + m), snapshots)])
        if "certified" in name:
            learner = L.begin(X[:n0], y[:n0], goal, ln_noise=ln_noise, pretrain=pretrain, input_scale=RANGE)
            means[name] = np.empty(m)
            for i in range(n0, n0 + m):
                means[name][i - n0] = L.forecast(learner, X[i:i + 1])[0][0]
                learner = L.step(learner, X[i:i + 1], y[i:i + 1])
        run.tick(f"errors, {order}, stream {seed + 1}: {name}")
    return {name: (y[n0:] - means[name]) ** 2 for name in names}


# --- L: the streams of Sec. 5 --------------------------------------------------------------------------------------

PRETRAINED = 10                                                          # rows that come before the stream
SIN_COS = {"sin": np.sin, "cos": np.cos}
GRID = np.linspace(-1.25, 1.25, 251)[:, None]
RATE_STUDY = dict(
    N=(39, 39, 251), times=([10, 20, 30], [10, 20, 30], [10, 20, 30, 100, 200]),
    real=dict(N=39, times=[10, 20, 30]))


def stream_at(times, X, y, method, Q=0, **options):
    """The Snapshots of L.stream with the settings of L Sec. 5.1 after so many rows; Q: components of the kernel, 0 for SE."""
    Z = np.linspace(-1, 1, 12)[:, None]
    ln_theta = np.log([[0.25 * 2**q, 1.0, 1 / Q] for q in range(Q)]) if Q else None        # frequency, lengthscale, weight
    batch, found = options.get("batch", 1), {}
    for t, snapshot in zip(range(PRETRAINED, len(y) + batch, batch), L.stream(X, y, method, Z, ln_theta, **options)):
        found[t] = snapshot
        if t >= max(times):
            break
    return [found[t] for t in times]


def predictors_at(times, X, y, method, pretrain, Q):
    """Functions X_new -> mean, variance at times, by a method of L_METHODS or L_EXTRA; what was learnt last."""
    options = dict(Q=Q, pretrain=min(2 * pretrain, 400) if method == "O-SVGP" else pretrain)      # whose q is searched, too
    if method == "O-PACGP, certified":
        learners = {PRETRAINED: L.begin(X[:PRETRAINED], y[:PRETRAINED])}
        for t in range(PRETRAINED, max(times)):
            learners[t + 1] = L.step(learners[t], X[t:t + 1], y[t:t + 1])
        return [lambda X_new, t=t: L.forecast(learners[t], X_new)[:2] for t in times], learners[max(times)]
    if method == "nearest row seen":                            # in time order the last value; no variance
        near = lambda X_new, t: y[np.argmin(np.abs(X_new - X[:t, 0]), axis=1)]
        return [lambda X_new, t=t: (near(X_new, t), np.full(len(X_new), np.nan)) for t in times], None
    if method in ("mean so far", "0, mean of all rows"):
        seen = [y[:t] if method == "mean so far" else y for t in times]
        return [lambda X_new, v=v: (np.full(len(X_new), v.mean()), np.full(len(X_new), v.var())) for v in seen], None
    if method == "O-SGPR, new rows twice":
        twice = np.repeat(np.arange(len(y)), np.where(np.arange(len(y)) < PRETRAINED, 1, 2))
        times, X, y, method = [2 * t - PRETRAINED for t in times], X[twice], y[twice], "O-SGPR"
        options["batch"] = 2
    if method == "exact GP, retrained":
        method, options = "exact", dict(batch=10)
    if method == "O-PACGP, (16) as printed":
        method, options["loss"] = "O-PACGP", "exp-printed"
    snapshots = stream_at(times, X, y, method, **options)
    return [snapshot.predict for snapshot in snapshots], snapshots[-1]


def drawn(snapshot):
    """What a panel needs of a Snapshot: mean and variance of f on GRID, and Z; none for what is no Snapshot."""
    return (*snapshot.predict(GRID), snapshot.p["Z"][:, 0]) if hasattr(snapshot, "p") and "Z" in snapshot.p else None


def held(thing, d=1):
    """How many numbers a state, a dict, a tuple of such or a range of rows (d inputs and a target each) is made of."""
    if isinstance(thing, slice):
        return (thing.stop - thing.start) * (d + 1)
    if isinstance(thing, (tuple, dict)):
        return sum(held(part, d) for part in (thing.values() if isinstance(thing, dict) else thing))
    return np.size(thing)


@experiment(t=(20, 60, 60), pretrain=(10, 60, 400))
def wave_run(run, name, i, t, pretrain):
    """[row, x, y, drawn] for both orders and kernels, noise number i; the settings of L Sec. 5.1.

    12 inducing inputs, evenly spaced at first; 10 rows of pretraining, then one step and one row at a time; Adam at 0.1, and
    0.01 for Z and q; O-PACGP: exp loss, eps^2 = 0.01, lam = 1. SE kernel, or a spectral mixture of Q (the paper's, which does
    not say Q) from frequencies 0.25, 0.5, 1, .. per unit of x, lengthscales 1, weights 1/Q.
    """
    x, found = np.linspace(-1, 1, 100)[:, None], []
    f, shuffle = SIN_COS[name](4 * x[:, 0]), run.rng.permutation(len(x))
    y = f + 0.4 * run.rng.standard_normal(len(x))
    for order, at in (("time", np.arange(len(x))), ("shuffled", shuffle)):
        for Q in (0, 2):
            run.tick(f"{name}, {order} order, Q = {Q}, noise {i + 1}")
            snapshot, = stream_at([t], x[at], y[at], "O-PACGP", Q, pretrain=pretrain)
            (mean, var), Z = snapshot.predict(x[at]), snapshot.p["Z"]
            squares, off, near = (y[at] - mean) ** 2, (mean - f[at]) ** 2, np.abs(mean - f[at]) <= 2 * np.sqrt(var)
            found.append([{"data": name, "order": order, "kernel": f"mixture of {Q}" if Q else "SE", "noise": i,
                           "train MSE": squares[:t].mean(), "test MSE": squares[t:].mean(),
                           "mean sd of f, rows to come": np.sqrt(var[t:]).mean(),
                           "Z beyond the picture": int(np.sum(np.abs(Z) > 1.25)), "RMSE to f, seen": math.sqrt(off[:t].mean()),
                           "RMSE to f, to come": math.sqrt(off[t:].mean()), "f in band, seen": near[:t].mean(),
                           "f in band, to come": near[t:].mean()}, x[at], y[at], drawn(snapshot)])
    return found


def rate_rows(run, order, i, N):
    """X (N, 1) on [-1, 1], y (N,), standardised on all N rows (divisor n - 1), as they arrive; walk or shuffle number i."""
    rate = run.tables["fx2007.csv"][:N, 3] if run.real else rate_like(run.seeded("rate_like", i), N)
    rows = run.seeded("shuffle", i).permutation(N) if order == "shuffled" else np.arange(N)
    return np.linspace(-1, 1, N)[rows, None], ((rate - rate.mean()) / rate.std(ddof=1))[rows]


@experiment("fx2007.csv", pretrain=(10, 60, 400), **RATE_STUDY | dict(real=RATE_STUDY["real"] | dict(pretrain=(10, 400, 400))))
def rate_run(run, order, method, Q, i, pretrain, N, times):
    """Run number i: (times, 3) training MSE, test MSE, exp loss (eps = 0.1) on the test rows; drawn; risk bound and loss.

    Daily rates, x the day, scaled to [-1, 1]; y standardised on all rows, later ones included, divisor n - 1, as in L: a
    forecast would not know them. Else as wave_run; O-SVGP, whose q is searched, too, has twice the pretraining.
    """
    X, y = rate_rows(run, order, i, N)
    run.tick(f"{order} order, {method}, run {i + 1}")
    (predictors, last), errors = predictors_at(times, X, y, method, pretrain, Q), []
    for t, predict in zip(times, predictors):
        mean, var = predict(X)
        squares = (y - mean) ** 2
        loss = math.nan if np.isnan(var).any() else np.mean(R.expected_exp_loss(y[t:], mean[t:], var[t:], 0.1)[0])
        errors.append([math.nan if method == "nearest row seen" else squares[:t].mean(), squares[t:].mean(), loss])
    return np.array(errors), drawn(last), L.certificates(last)[0][:2] if isinstance(last, L.Learner) else None


@experiment("fx2007.csv", goals=[0.4, 0.6, 0.8, 1.0, 1.5, 2.0])
def losses_by_goal(run, name, order, m, i, goals):
    """goals; sums over stream i of the one-step loss and of the loss after learning, each by goals; of the KL.

    m rows count after ten others. The default Goal learns kernel and noise from the evidence, so that nothing but the losses
    depends on eps.
    """
    n, total = m + PRETRAINED, np.zeros((2, len(goals)))
    if name == "rates":
        X, y = np.arange(n) + 1.0, run.tables["fx2007.csv"][:n, 3] if run.real else rate_like(run.rng, n)
    else:
        X = np.sort(run.rng.uniform(-1, 1, n))
        y = SIN_COS[name](4 * X) + 0.4 * run.rng.standard_normal(n)
    at = run.rng.permutation(n) if order == "shuffled" else np.arange(n)
    X, y = X[at, None], y[at]
    learner = L.begin(X[:PRETRAINED], y[:PRETRAINED])
    for j in range(PRETRAINED, n):
        row = slice(j, j + 1)
        (x_s, y_s), eps = scaled(learner, X[row], y[row]), scaled_eps(learner, np.array(goals))
        total += [R.expected_01_loss(y_s, *L.predict(state, x_s), eps)[0]
                  for state in (learner.state, learnt_from(learner, X[row], y[row]))]
        learner = L.step(learner, X[row], y[row])
        run.tick(f"{name}, {order}, stream {i + 1}: row {j} of {n}")
    return goals, total, learner.ledger[3]
