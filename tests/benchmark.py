"""Times and memory of value and gradient beside their bare products, and the figures that are made only where they are named.

    python tests/benchmark.py [method ...]   one BLAS thread; a method is a key of CASES, "predict" or "stream"; default: all
    python figures.py scaling million        the same as a picture; a certificate for a million rows
    python figures.py hero stream            the title picture, and a stream as an animation

Nothing is asserted: a time belongs to a machine.
"""
import math
import os
import pathlib
import sys
import tempfile
import time
import tracemalloc

if __name__ == "__main__":
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):    # before NumPy is imported
        os.environ.setdefault(name, "1")
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import numpy as np                                           # noqa: E402

import figures as F                                          # noqa: E402
import online as L                                           # noqa: E402
import pacgp_ref as R                                        # noqa: E402
import predictive as J                                       # noqa: E402
from experiments import (                                    # noqa: E402
    RANGE, certified_run, experiment, robot_arm, sine_stream, snelson_like, train, true_risk)

CASES = {              # method -> (N or B, M, autograd too)
    "kl-PAC-GP": ((400, 400, True), (1000, 1000, True), (2000, 2000, False)),
    "full-GP": ((400, 400, True), (1000, 1000, True)),
    **{m: ((12000, 100, True), (12000, 200, True), (12000, 500, False)) for m in ("kl-PAC-SGP", "VFE", "FITC")},
    **{m: ((1000, 100, True), (1000, 500, True), (1000, 1000, False)) for m in ("SVGP", "VFITC", "PPGPR-Chol", "PPGPR-MFD")},
}
LEAST = {    # method -> full, symmetric, triangular products of value and gradient with an N x M (N x N, B x M) matrix; the
             # same of M x M matrices; factors with their inverse. The docstrings say which, a test counts them.
    "kl-PAC-GP": ((0, 2, 0), (0, 0, 0), 1), "full-GP": ((0, 1, 0), (0, 0, 0), 1),
    "kl-PAC-SGP": ((2, 3, 2), (3, 1, 2), 2), "VFE": ((1, 1, 1), (1, 1, 3), 2), "FITC": ((1, 2, 2), (1, 1, 2), 2),
    "SVGP": ((0, 0, 6), (0, 0, 2), 1), "VFITC": ((0, 0, 6), (0, 0, 2), 1), "PPGPR-Chol": ((0, 0, 6), (0, 0, 2), 1),
    "PPGPR-MFD": ((0, 0, 3), (0, 0, 3), 2),
}
METHOD_FAMILY = {method: R.METHODS[method][0] if method in R.METHODS else "batch" for method in LEAST}


# --- one value and gradient, and what it needs at least -----------------------------------------------------------------

def bare(method, N, M):
    """A function that runs the products and factorisations of LEAST and nothing else, over the same blocks of rows.

    NumPy has no triangular product.
    """
    rng, (large, small, factors) = np.random.default_rng(0), LEAST[method]
    blocks = R.row_blocks(N, M) if METHOD_FAMILY[method] == "sparse" else [slice(0, N)]
    C, A = rng.standard_normal((M, M)), rng.standard_normal((blocks[0].stop, M))
    T, S = np.tril(C), C @ C.T + np.eye(M)

    def products(counts, A):
        for _ in range(counts[0]):
            A @ C
        for _ in range(counts[1]):
            A.T @ A
        for _ in range(counts[2]):
            A @ T

    def run():
        for rows in blocks:
            products(large, A[:rows.stop - rows.start])
        products(small, C)
        for _ in range(factors):
            R.tri_inv(np.linalg.cholesky(S))
    return run


def rows_for(rng, N, M):
    """X (N, 8), y (N,), Z (M, 8) to take times on."""
    X = rng.standard_normal((N, 8))
    return X, np.sin(X.sum(1)) + 0.1 * rng.standard_normal(N), X[:M] + 0.1 * rng.standard_normal((min(M, N), 8))


def traced(wanted):
    """pacgp_ref and predictive with np = autograd.numpy: the oracle of the tests."""
    if not wanted:
        return None, None
    import test_ref
    return test_ref.traced, test_ref.traced_J


def steps(rng, method, N, M, with_autograd=True):
    """hand, by_autograd: functions that compute value and gradient of a method once, at N rows (a batch of N), d = 8."""
    import autograd
    (X, y, Z), T, T_J = rows_for(rng, N, M), *traced(with_autograd)
    if METHOD_FAMILY[method] == "batch":
        p = J.initial_parameters(X, method, M, Z=Z, rng=rng)
        p["m"] = rng.standard_normal(M)
        if p["L_S"].ndim == 2:
            p["L_S"] = p["L_S"] + 0.01 * np.tril(rng.standard_normal((M, M)))
        at = list(p.values())
        value = lambda *v: T_J.objective(dict(zip(p, v)), X, y, N, method, 0.05)[0]
        hand = lambda: J.objective_back(1.0, J.objective(p, X, y, N, method, 0.05)[1])
    else:
        family, kind = R.METHODS[method]
        at = [np.append(np.full(8, math.log(8)), 0.0), 0.0] + [Z] * (family == "sparse")
        names = {"full": ("full_gp_nll", "full_gp"), "sparse": ("sparse_nll", "sparse_gp")}[family]
        value, hand = posterior_steps(T, names[kind == "kl"], kind, X, y, at)
    return hand, lambda: autograd.value_and_grad(value, tuple(range(len(at))))(*at)


def posterior_steps(T, name, kind, X, y, at):
    """value(ln_theta, ln_noise, Z) of the traced module T, and hand, for a function `name` of pacgp_ref at parameters `at`."""
    from autograd.tracer import getval
    last = (kind,) if name == "sparse_nll" else ()

    def hand():
        out, cache = getattr(R, name)(X, y, *at[2:], *at[:2], *last)
        adjoints = R.pac_objective(y, *out, 0.6)[1:] if kind == "kl" else (1.0,)
        return getattr(R, name + "_back")(*adjoints, cache)

    def value(ln_theta, ln_noise, *Z):                    # "kl" by R Eq. (14), which needs no autograd of kl^-1
        out, _ = getattr(T, name)(X, y, *Z, ln_theta, ln_noise, *last)
        if kind != "kl":
            return out
        risk = T.np.mean(T.expected_01_loss(y, *out[:2], 0.6)[0])
        d_risk, d_KL = R.pac_bayes_bound_grad(getval(risk), getval(out[2]), len(y))
        return d_risk * risk + d_KL * out[2]
    return value, hand


def seconds_of(run, least=0.25):
    """The shortest of several calls, after one that does not count: at least 3, and `least` seconds of them."""
    run()
    times = []
    while len(times) < 3 or sum(times) < least:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def megabytes_of(run):
    """Peak of the memory that one call takes, in 2^20 bytes."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def arm_files(rng, N, folder):
    """X (N, 8) and y (N,) of the robot arm as read-only memory-mapped files, made and scaled 100,000 rows at a time.

    The scale comes from rows of its own, so that the certificate is strict; noise of 0.15 deviations.
    """
    pilot = robot_arm(rng, 100_000)[1]
    paths = [folder / f"{name}_{N}.npy" for name in "Xy"]
    X = np.lib.format.open_memmap(paths[0], "w+", shape=(N, 8))
    y = np.lib.format.open_memmap(paths[1], "w+", shape=(N,))
    for i in range(0, N, 100_000):
        rows = slice(i, min(i + 100_000, N))
        turn, distance = robot_arm(rng, rows.stop - i)
        X[rows] = turn * math.sqrt(3)
        y[rows] = (distance - pilot.mean()) / pilot.std() + 0.15 * rng.standard_normal(rows.stop - i)
    del X, y
    return [np.load(path, mmap_mode="r") for path in paths]


def peak_megabytes():
    """The most memory this process has had, in 2^20 bytes; NaN where the system does not say."""
    try:
        import resource
    except ImportError:
        return math.nan
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


# --- figures made where they are named ----------------------------------------------------------------------------------

@experiment(least=(0.01, 0.25, 0.25))
def cost(run, method, N, M, with_autograd, least):
    """One value and gradient: seconds by hand, of its products alone, by autograd; megabytes, NaN where it is not run.

    d = 8, SE kernel (PPGPR: Matern-5/2), one lengthscale a column; the shortest of at least three calls, with the threads that
    the matrix library takes. Memory: the peak of what NumPy allocates during a call, X and y apart. The first MB keep matrices
    from the forward to the backward pass, where they fit; the second compute them again, block by block.
    """
    (hand, auto), keep = steps(run.rng, method, N, M, with_autograd), R.KEEP_BYTES
    row = {"method": method, "N or B": N, "M": M, "s by hand": seconds_of(hand, least), "s bare":
           seconds_of(bare(method, N, M), least), "s autograd": math.nan, "MB by hand": megabytes_of(hand),
           "MB by hand, in blocks": math.nan, "MB autograd": math.nan}
    if METHOD_FAMILY[method] == "sparse":
        try:
            R.KEEP_BYTES = 0
            row["MB by hand, in blocks"] = megabytes_of(hand)
        finally:
            R.KEEP_BYTES = keep
    if with_autograd:
        row |= {"s autograd": seconds_of(auto, least), "MB autograd": megabytes_of(auto)}
    run.tick(f"{method}, N = {N}, M = {M}")
    return row | {"hand/bare": row["s by hand"] / row["s bare"], "autograd/hand": row["s autograd"] / row["s by hand"]}


@F.figure(Ns=([200, 400], [1000, 3000, 10_000, 30_000, 100_000], [1000, 3000, 10_000, 30_000, 100_000, 300_000]),
          full_Ns=([100, 200], [200, 400, 1000, 2000], [200, 400, 1000, 2000, 4000]), N=(300, 12_000, 12_000),
          Ms=([10, 20], [50, 100, 200, 500, 1000], [50, 100, 200, 500, 1000]), B=(100, 1000, 1000))
def scaling(run, Ns, full_Ns, N, Ms, B):
    """A value and gradient costs little more than its matrix products, and half of autograd's time or less.

    A row of panels: seconds above, memory below.
    """
    plan = {("kl-PAC-SGP, $M=100$", "rows $N$"): [("kl-PAC-SGP", n, 100, n <= 30_000) for n in Ns],
            (f"kl-PAC-SGP, $N={N}$", "inducing inputs $M$"): [("kl-PAC-SGP", N, M, M <= 200) for M in Ms if M <= 500],
            (f"PPGPR, batches of {B}", "inducing inputs $M$"): [("PPGPR-Chol", B, M, True) for M in Ms],
            ("kl-PAC-GP", "rows $N$"): [("kl-PAC-GP", n, n, n <= 1000) for n in full_Ns]}
    (picture, axes), rows = F.panels(2, 4, 13, 6), []
    for column, ((title, label), cases) in zip(axes.T, plan.items()):
        part = [run.once(cost, *case) for case in cases]
        at = F.col(part, "N or B" if "N" in label else "M")
        for ax, unit, names in zip(column, ("s", "MB"), (("by hand", "bare", "autograd"),
                                                         ("by hand", "by hand, in blocks", "autograd"))):
            for name in names:
                again = {"label": None} if unit == "MB" and name != names[1] else {}
                ax.plot(at, F.col(part, f"{unit} {name}"), **F.look(name, **again))
            ax.set(xscale="log", yscale="log", xlabel=label)
            ax.set_xticks(at, [f"{v:g}" if v < 1000 else f"{v / 1000:g}k" for v in at], fontsize=8)
            ax.minorticks_off()
        column[0].set_title(title)
        rows += part
    axes[0, 0].set_ylabel("seconds, value and gradient")
    axes[1, 0].set_ylabel("memory it takes, peak [MB]")
    F.below(picture, axes[0, 0], 4, *axes[1, 0].get_legend_handles_labels()[0])
    first, last = rows[len(Ns) - 2:len(Ns)]
    slope = (last["s by hand"] - first["s by hand"]) / (last["N or B"] - first["N or B"])
    return picture, rows, [f"kl-PAC-SGP, M = 100: {1e6 * slope:.1f} microseconds a row more, to N = {last['N or B']}.",
                           "The products alone: LEAST of tests/benchmark.py, in the same blocks."]


@experiment(n_test=(1000, 100_000, 100_000), M=(10, 100, 100), max_evals=(15, 100, 400), eps=0.6, delta=0.01)
def arm_run(run, N, n_test, M, max_evals, eps, delta):
    """kl-PAC-SGP on N rows of the robot arm (d = 8, noise of 0.15 deviations) from read-only memory-mapped files.

    One lengthscale a column. The scale comes from rows of its own: the certificate is strict.
    """
    with tempfile.TemporaryDirectory() as folder:
        X, y = arm_files(run.seeded("arm"), N + n_test, pathlib.Path(folder))
        start = time.monotonic()
        fit = train(run, f"N = {N}", X[:N], y[:N], "kl-PAC-SGP", M, eps, delta, ard=True, max_evals=max_evals, seed=run.seed)
        took = time.monotonic() - start
        mean, var = R.predict(fit, X[N:])
        row = {"N": N, "B": fit.bound, "R_S train": fit.risk, "R_S test": R.gibbs_risk(y[N:], mean, var, eps),
               "bound for the mean": R.bayes_risk_bound(fit.bound),
               "its risk on test rows": np.mean(np.abs(mean - y[N:]) > eps), "KL/N": fit.KL / N,
               "(penalty + confidence)/N": (fit.penalty + fit.confidence) / N,
               "evaluations": fit.optimum.n_evals, "seconds": took, "s an evaluation": took / fit.optimum.n_evals,
               "process MB so far": peak_megabytes()}
        del X, y                                                         # the files can then be removed, on Windows too
    return row


NS = dict(Ns=([300, 1000], [1000, 10_000, 100_000, 1_000_000], [1000, 10_000, 100_000, 1_000_000]))


def against_rows(ax, rows):
    """The certificate and the risk on fresh rows against N."""
    N = F.col(rows, "N")
    ax.fill_between(N, F.col(rows, "R_S test"), F.col(rows, "B"), color=F.BLUE, alpha=0.12, lw=0)
    ax.plot(N, F.col(rows, "B"), "o-", color=F.BLUE, label="certificate, 99 % confidence")
    ax.plot(N, F.col(rows, "R_S test"), "x--", color=F.BLACK, label="risk on fresh rows")
    ax.set(xscale="log", yscale="log", xlabel="training rows $N$", ylabel="P(a prediction misses by more than 0.6 sd)")
    ax.set_yticks([0.001, 0.01, 0.1], ["0.1 %", "1 %", "10 %"])
    ax.set_xticks(N, [f"{int(n):,}" for n in N])
    ax.minorticks_off()
    ax.legend(loc="lower left")


@F.figure(**NS)
def million(run, Ns):
    """The certificate tightens with the number of rows, up to a million of them, at a constant cost a row."""
    rows, (picture, axes) = [run.once(arm_run, N) for N in Ns], F.panels(1, 2, 9.5, 3.6)
    against_rows(axes[0, 0], rows)
    axes[0, 1].plot(Ns, F.col(rows, "s an evaluation"), color=F.RED, marker="^")
    axes[0, 1].set(xscale="log", yscale="log", xlabel="training rows $N$", ylabel="seconds, value and gradient")
    last = rows[-1]
    return picture, rows, [f"N = {last['N']:,}: a draw is off by more than 0.6 sd with probability at most "
                           f"{math.ceil(last['B'] * 1e4) / 1e4:.4f}, with 99 % confidence. Training: {last['seconds']:.0f} s "
                           f"({last['evaluations']} evaluations); the process peaked at {last['process MB so far']:.0f} MB."]


@F.figure(N=(200, 1000, 1000), n_new=(2000, 50_000, 50_000), eps=0.8, M=15, **NS)
def hero(run, N, n_new, eps, M, Ns):
    """A Gaussian process with a guarantee: how often it will miss, from the training rows alone; also while rows come in."""
    (x, y), (x_new, y_new) = (snelson_like(run.rng, n) for n in (N, n_new))
    fit, (picture, ((a, b, c),)) = train(run, "hero", x, y, "kl-PAC-SGP", M, eps, seed=0), F.panels(1, 3, 12.6, 4)
    true, grid = R.gibbs_risk(y_new, *R.predict(fit, x_new), eps), np.linspace(-0.3, 6.3, 300)[:, None]
    mean, _ = R.predict(fit, grid)
    a.plot(x, y, ".", color="0.6", ms=2.5, label=f"{N:,} training rows")
    a.fill_between(grid[:, 0], mean - eps, mean + eps, color=F.BLUE, alpha=0.18, lw=0, label=f"mean $\\pm\\varepsilon$, {eps}")
    a.plot(grid[:, 0], mean, color=F.BLUE, lw=2)
    a.set(xlabel="$x$", ylabel="$y$", ylim=(-4, 2.8), title="1  A GP that states how often it misses")
    a.text(0.03, 0.03, f"99 % sure: a prediction drawn from it misses a new row\nby more than $\\varepsilon$ in at most "
           f"{100 * math.ceil(fit.bound * 1000) / 1000:.1f} % of cases (in fact {100 * true:.1f} %)", transform=a.transAxes,
           fontsize=8.5, bbox=dict(boxstyle="round", fc="white", ec=F.BLUE))
    a.legend(loc="upper right")
    rows = [run.once(arm_run, n) for n in Ns]
    against_rows(b, rows)
    b.set_title("2  It tightens with every row")
    sums = run.once(certified_run, "time")
    t, loss, risk = sums[0], sums[1] / sums[0], sums[2] / sums[0]
    bound = np.array([L.certificate(s, 0.0, m).bound for s, m in zip(sums[1], t)])
    c.fill_between(t, risk, bound, color=F.BLUE, alpha=0.12, lw=0)
    c.plot(t, bound, color=F.BLUE, label="certificate, 95 %, at all times")
    c.plot(t, risk, "--", color=F.BLACK, label="true risk, mean so far")
    c.plot(t, loss, color=F.ORANGE, lw=1, label="observed loss, mean so far")
    c.set(xscale="log", xlim=(5, t[-1]), ylim=(0, 1.02), xlabel="rows of a stream, in time order",
          ylabel="risk of a prediction", title="3  It holds at every moment of a stream")
    c.legend(loc="lower left")
    return picture, rows, [f"Panel 1: B = {fit.bound:.4f}, R_S = {fit.risk:.4f}, risk on fresh rows {true:.4f}; for the mean "
                           f"the bound is {R.bayes_risk_bound(fit.bound):.4f}. Panel 3: the bound is below the true risk at "
                           f"{np.sum(bound < risk)} of {len(t)} times."]


@F.figure(n=(30, 130, 130), first=10, every=(10, 3, 3))
def stream(run, n, first, every):
    """Predict, then the row comes, and the certificate falls: the certified O-PACGP on a stream in time order."""
    X, y, chance = sine_stream(run.rng, n, "time")
    learner, grid = L.begin(X[:first], y[:first], L.Goal(), input_scale=RANGE), np.linspace(-1, 1, 161)[:, None]
    rows, frames, risk = [], [], 0.0
    for i in range(first, n):
        old, risk = learner, risk + true_risk(learner, learner.state, [chance(i)])
        learner = L.step(old, X[i:i + 1], y[i:i + 1])
        one, _ = L.certificates(learner)
        rows.append({"m": i - first + 1, "certificate": one.bound, "loss": one.risk, "true risk": risk / (i - first + 1)})
        if i % every and i < n - 1:
            continue
        picture, ((a, c),) = F.panels(1, 2, 8.4, 3.2)
        mean, var = L.forecast(old, grid)[:2]
        a.fill_between(grid[:, 0], mean - 2 * np.sqrt(var), mean + 2 * np.sqrt(var), color=F.BLUE, alpha=0.2, lw=0)
        a.plot(grid, mean, color=F.BLUE)
        a.plot(X[:i], y[:i], ".", color="0.55", ms=4)
        a.plot(X[i], y[i], "*", color=F.RED, ms=13, mec="white")
        a.set(xlim=(-1, 1), ylim=(-2.6, 2.6), xlabel="$x$", ylabel="$y$", title="predict, then the row comes (red)")
        c.plot(F.col(rows, "m"), F.col(rows, "certificate"), color=F.BLUE, label="certificate, 95 %, at all times")
        F.curves(c, rows, "m", "loss", "true risk")
        c.set(xlim=(0, n - first), ylim=(0, 1.02), xlabel="rows so far", ylabel="risk of a prediction, mean so far")
        c.legend(loc="upper right")
        frames.append(picture)
    return frames, rows, []


# --- printed lines ----------------------------------------------------------------------------------------------------------

def beside_bare(run, bare):
    """Milliseconds of run, and their ratio to those of bare: the shortest of three interleaved measurements."""
    hand, least = np.min([(seconds_of(run), seconds_of(bare)) for _ in range(3)], 0)
    return f"{1e3 * hand:.1f} ms, {hand / least:.2f} of the bare products and factorisations", hand


def objective(method):
    """One line per case: time and memory by hand, and by autograd of the same forward code."""
    for N, M, with_autograd in CASES[method]:
        hand, auto = steps(np.random.default_rng(0), method, N, M, with_autograd)
        text, seconds = beside_bare(hand, bare(method, N, M))
        more = "" if not with_autograd else \
            f"; autograd {seconds_of(auto) / seconds:.1f} times slower, {megabytes_of(auto):.0f} MB"
        print(f"{method}, N = {N}, M = {M}: {text}, {megabytes_of(hand):.0f} MB{more}", flush=True)


def predictions(N=10_000, M=500):
    """Predictions beside their bare products."""
    rng = np.random.default_rng(0)
    X, Z, A, C = (rng.standard_normal(shape) for shape in ((N, 8), (M, 8), (N, M), (M, M)))
    p = dict(J.initial_parameters(X, "SVGP", M, Z=Z, rng=rng), m=rng.standard_normal(M))

    def bare():
        for rows in R.row_blocks(N, M):
            A[rows] @ C
    for kernel in ("SE", "Matern52"):
        fit = J.Fit("SVGP", kernel, 1.0, 1.03, p, [], np.nan, "", J.predictor(p, kernel))
        print(f"predictive.predict, {kernel}, {N} rows, M = {M}: {beside_bare(lambda: J.predict(fit, X), bare)[0]}", flush=True)


def rows_a_second(M=50, n=2000):
    """Rows a second of a stream, in its first and its last tenth."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n + 100, 2))
    y = np.sin(4 * X[:, 0]) + X[:, 1] + 0.4 * rng.standard_normal(n + 100)
    for learn in ("nothing", "window"):
        learner, times = L.begin(X[:100], y[:100], L.Goal(learn=learn, M=M)), []
        for i in range(100, n + 100):
            start = time.perf_counter()
            learner = L.step(learner, X[i:i + 1], y[i:i + 1])
            times.append(time.perf_counter() - start)
        rate = [len(part) / sum(part) for part in (times[:n // 10], times[-n // 10:])]
        print(f"online.step, {learn}, M = {M}: {rate[0]:.0f} rows a second at first, {rate[1]:.0f} after {n}", flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or [*CASES, "predict", "stream"]:
        objective(name) if name in CASES else {"predict": predictions, "stream": rows_a_second}[name]()
