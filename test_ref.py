"""Every gradient derived by hand against autograd and against differences. Read it top to bottom.

1. The shipped source is run a second time with autograd.numpy in place of numpy.
2. `errors` compares the VJP of one function with both.
3. TABLE has one line for each function: how it is called, and at which point. The kernels, losses,
   methods and forms of q are loops around it; extremes follow: far inputs, jitters, much and little
   noise, repeated rows. Random sizes: test_grad_any_size in tests/test_arguments.py.
4. The tests: the table holds; no function with a gradient is missing from it; a wrong gradient is
   rejected.

`python -m pytest test_ref.py -rP -k R_eq08` prints both errors of each argument. Values are tested
in tests/test_equations_R.py (Reeb et al. 2018, pacgp_ref.py), _J.py (Jankowiak et al. 2020,
predictive.py) and _L.py (Liu et al. 2022, online.py); so are the gradients of beyond/blocks.py
(test_R_sec3_blocks), which are those of pacgp_ref.py.
"""
import copy
import inspect
import math
import pathlib
import re
import sys
import types
from unittest import mock

import autograd
import autograd.extend
import autograd.numpy as anp
import numpy as np
import pytest

import online as L
import pacgp_ref as R
import predictive as J
from beyond import certificates, kernels, rounding, search, stream
from figures_of import baselines


# --- 1. the shipped source, traced ----------------------------------------------------------------

TRACED = {}            # name of a module -> its trace


def trace(module):
    """The module from its own source, with np = autograd.numpy; what it imports from modules that
    were traced before is theirs.
    """
    source = pathlib.Path(module.__file__).read_text()
    line = "\nimport numpy as np\n"
    assert source.count(line) == 1, f"{module.__name__} must import numpy as np once"
    traced_source = source.replace(line, "\nimport autograd.numpy as np\n")
    out = types.ModuleType(module.__name__)
    out.__file__ = module.__file__
    with mock.patch.dict(sys.modules, TRACED):
        exec(compile(traced_source, module.__file__, "exec"), out.__dict__)
    return TRACED.setdefault(module.__name__, out)


def primitive(f, *vjps):
    """f, which autograd cannot differentiate, with its VJPs."""
    f = autograd.extend.primitive(f)
    autograd.extend.defvjp(f, *vjps)
    return f


def ln_ratio(k, q):
    """ln(1-q)/(1-k) - ln q/k: the numerator of R (12) as printed."""
    return np.log((1 - q) / (1 - k)) - np.log(q / k)


def denominator(k, q):
    """(1-q)/(1-k) - q/k: that of R (12) and (13) as printed."""
    return (1 - q) / (1 - k) - q / k


traced = trace(R)
traced.norm_cdf = primitive(R.norm_cdf, lambda value, z: lambda g: g * R.norm_pdf(z))
traced.kl_inv = primitive(
    lambda q, eps: R.kl_inv(q, eps),
    lambda k, q, eps: lambda g: g * ln_ratio(k, q) / denominator(k, q),
    lambda k, q, eps: lambda g: g / denominator(k, q))
SHIPPED = types.SimpleNamespace(R=R, J=J, L=L, baselines=baselines)
TRACES = types.SimpleNamespace(R=traced, J=trace(J), L=trace(L), baselines=trace(baselines))


# --- 2. one gradient by hand, by autograd, by differences -----------------------------------------

def lower(name, a):
    """The lower triangle of an array that belongs to a Cholesky factor; another array as it is."""
    return np.tril(a) if name == "L_S" and np.ndim(a) == 2 else np.asarray(a)


def difference(f, h):
    """f'(0) by central differences of order 6."""
    near, middle, far = (f(k * h) - f(-k * h) for k in (1, 2, 3))
    return (45 * near - 9 * middle + far) / (60 * h)


def same(a, b):
    """Whether two dicts of arrays are equal to the last bit."""
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def as_tuple(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


def errors(call, point):
    """{(argument, output): [error against autograd, against differences]} of a VJP, relative.

    call(modules, p) -> outputs, back, where modules.R, .J and .L are shipped or traced; back, given
    derivatives w.r.t. the outputs, returns a dict with the keys of the dict p. The outputs are
    weighted at random, each alone and all together, so that no term hides behind a larger one.
    Differences are taken in a random direction of one argument.
    """
    rng = np.random.default_rng(1)
    before = copy.deepcopy(point)
    outputs, back = call(SHIPPED, point)
    weights = [rng.standard_normal(np.shape(out)) for out in as_tuple(outputs)]
    n = len(weights)
    which = dict(enumerate(np.eye(n)))
    if n > 1:
        which["all"] = np.ones(n)

    def sums(p, modules=SHIPPED):
        outputs, _ = call(modules, p)
        return anp.array([anp.sum(w * out) for w, out in zip(weights, as_tuple(outputs))])

    auto_back, _ = autograd.make_vjp(lambda p: sums(p, TRACES))(point)
    found = {}
    moves = {}
    for name, at in point.items():
        way = lower(name, rng.standard_normal(np.shape(at)))
        h = 2e-3 / max(1, np.linalg.norm(way))
        moves[name] = way, difference(lambda t: sums({**point, name: at + t * way}), h)
    for output, switch in which.items():
        adjoints = [w * on for w, on in zip(weights, switch)]
        hand = copy.deepcopy(back(*adjoints))
        assert hand.keys() == point.keys(), f"gradients of {[*hand]}, arguments {[*point]}"
        auto = auto_back(switch)
        for name, (way, slopes) in moves.items():
            want = lower(name, auto[name])
            assert np.shape(hand[name]) == np.shape(want), f"shape of d_{name}"
            size = np.max(np.abs(want)) or 1e-300           # a gradient of 0 must be 0
            off = np.max(np.abs(hand[name] - want)) / size
            along = np.sum(way * hand[name]) - slopes @ switch
            along *= np.any(want)                           # differences of a constant are noise
            found[name, output] = [off, abs(along) / (size * np.sum(np.abs(way)))]
    assert same(back(*adjoints), hand), "the second call of back gives other gradients"
    assert same(point, before), "an argument is written to"
    return found


def assert_right(call, point, by_autograd=1e-12, by_differences=1e-8):
    """The gradients hold; else the message says the argument, the output and the errors."""
    wrong = []
    for (name, output), (auto, differences) in errors(call, point).items():
        says = f"d_{name} of output {output}: {auto:.1e} off autograd, {differences:.1e} off " \
               "differences"
        print(says)
        if not (auto < by_autograd and differences < by_differences):
            wrong.append(says)
    if wrong:
        raise AssertionError("\n".join(wrong))


# --- 3. the points, and the table -----------------------------------------------------------------

rng = np.random.default_rng(0)
N, M, d = 20, 5, 2
X = rng.standard_normal((N, d))
X2 = rng.standard_normal((6, d))
y = np.sin(X.sum(1)) + 0.3 * rng.standard_normal(N)
Z, Z_mean = X[:M] + 0.3 * rng.standard_normal((2, M, d))
ln_noise = np.array(-1.3)
m, a = rng.standard_normal((2, M))
L_S = np.tril(0.3 * rng.standard_normal((M, M))) + np.diag([0.5, -1.0, 1.5, 0.8, 1.1])
MARGINALS = dict(mean=y + 0.5 * rng.standard_normal(N), ln_var=np.log(rng.uniform(0.1, 2, N)))
W = rng.dirichlet(np.ones(9), N)                            # weights of nine grid points
SUMS = baselines.GridSums(np.linspace(-2, 2, 9), W.T @ W, W.T @ y, y @ y, N)
THETA = {              # ln_theta; "one_l": SE with one lengthscale
    "SE": [0.3, -0.2, 0.1], "one_l": [0.3, 0.1], "Matern32": [0.3, -0.2, 0.1],
    "Matern52": [0.3, -0.2, 0.1], "periodic": [0.3, -0.2, 1.9, 1.6, 0.1],
    "mixture": [[-1.5, -1.2, 0.3, -0.2, 0.1], [-1.9, -1.6, 0.3, -0.2, -0.6]]}
THETA = {kind: np.array(theta) for kind, theta in THETA.items()}
Q = {                  # what the variants of J's q(u) hold besides Z
    "Chol": dict(m=m, L_S=L_S), "MF": dict(m=m, L_S=np.diag(L_S)), "delta": dict(m=m),
    "MFD": dict(m=m, L_S=np.diag(L_S), Z_mean=Z_mean),
    "OD": dict(m=m, L_S=L_S, Z_mean=Z_mean, a=a)}
FORMS = {"given": {}, "free": dict(m=m, L_S=L_S)}          # L: q given by the data, or free
SPARSE = dict(ln_theta=THETA["SE"], ln_noise=ln_noise, Z=Z)
TABLE = {}             # name -> call, point, largest errors against autograd and differences


def line(name, call, point, *largest):
    assert name not in TABLE
    TABLE[name] = call, point, *largest


def kernel(at, kind):
    others = {"Matern32": at.J.matern32, "Matern52": at.J.matern52, "periodic": at.J.periodic,
              "mixture": at.L.spectral_mixture}
    return others.get(kind, at.R.se_kernel)


def named(names, outputs, back):
    """The VJP returns a dict in place of a tuple."""
    return outputs, lambda *adjoints: dict(zip(names.split(), back(*adjoints)))


def only(p, outputs, back):
    """The VJP returns the keys of p alone: what else it returns cannot move here."""
    return outputs, lambda *adjoints: {name: back(*adjoints)[name] for name in p}


def pointwise(value, p, **derivatives):
    """value_i depends on the i-th entry of each argument alone, or on a scalar."""
    def back(g):
        return {name: g * d if np.ndim(p[name]) else np.sum(g * d)
                for name, d in derivatives.items()}
    return value, back


def loss_at(loss, p):
    """A function (mean, var) -> expected loss, d/dmean, d/dvar."""
    var = anp.exp(p["ln_var"])
    value, d_mean, d_var = loss(p["mean"], var)
    return pointwise(value, p, mean=d_mean, ln_var=d_var * var)


def kl_inv_at(at, p):
    """kl^-1 and R (12), (13); traced: its value, and these as printed."""
    q, eps = p["q"], p["eps"]
    if at is not SHIPPED:
        return at.R.kl_inv(q, eps), None
    d_q, d_eps = R.kl_inv_grad(q, eps)
    return pointwise(R.kl_inv(q, eps), p, q=d_q, eps=d_eps)


def bound_at(at, p, which):
    """A row of BOUNDS at the mean 0-1 loss of N of 200 data points; traced: R (5), Pinsker's."""
    var = anp.exp(p["ln_var"])
    if at is SHIPPED:
        losses, d_mean, d_var = R.expected_losses(y, p["mean"], var, 0.6)
        value, d_loss, d_KL = R.pac_objective(losses, p["KL"], R.BOUNDS[which], 200)
        return value, lambda g: dict(mean=g * d_loss * d_mean, ln_var=g * d_loss * d_var * var,
                                     KL=g * d_KL)
    R_S = anp.mean(at.R.LOSSES["01"](y, p["mean"], var, 0.6)[0])
    paid = (p["KL"] + math.log(2 * math.sqrt(200) / 0.01)) / 200
    return (at.R.kl_inv(R_S, paid) if which == "kl" else R_S + anp.sqrt(paid / 2)), None


def data_term(f, p, *constants):
    """data_fit or gamma_fit of J, its variances by their logarithms."""
    names = "ktilde", "svar", "sigma2"
    variances = [anp.exp(p[f"ln_{name}"]) for name in names]
    g, d_mean, *derivatives = f(y[:5], p["mean"], *variances, *constants)
    of_ln = {f"ln_{name}": d * v for name, d, v in zip(names, derivatives, variances)}
    return pointwise(g, p, mean=d_mean, **of_ln)


def inverse_cholesky_at(at, p, k, **options):
    """V = k(X, Z) L^-T, through which alone an objective may depend on L."""
    Linv, Linv_back = at.R.inverse_cholesky(p["Z"], p["ln_theta"], k, **options)
    K, K_back = k(X, p["Z"], p["ln_theta"])
    V = K @ Linv.T

    def back(d_V):
        d_ln_theta, _, d_Z = K_back(d_V @ Linv)
        d_ln_theta_MM, d_Z_MM = Linv_back(d_V.T @ V)
        return dict(ln_theta=d_ln_theta + d_ln_theta_MM, Z=d_Z + d_Z_MM)
    return V, back


def old(at, kind, noise=-1.0, unit=1.0):
    """The Posterior of a first batch, its kernel shipped or traced."""
    first = L.prior(Z, THETA[kind], kernel(SHIPPED, kind))
    return L.update(first, X[:10], unit * y[:10], noise)._replace(kernel=kernel(at, kind))


def stream_sums_at(at, p):
    """A + A^T and b, so that d_A is symmetric."""
    (A, b), carried_back = at.L._carried(old(at, "SE"), p["U"])
    (A, b), back = at.L._stream_sums(A, b, p["V"], y, p["sigma2"])

    def back_at(d_A, d_b):
        d_V, d_sigma2 = back(d_A + d_A.T, d_b)
        return dict(V=d_V, U=carried_back(d_A + d_A.T, d_b), sigma2=d_sigma2)
    return (A + A.T, b), back_at


# losses, bounds, data terms: functions of numbers
for loss in R.LOSSES:
    line(f"R_eq24_eq31_loss-{loss}", lambda at, p, loss=loss: loss_at(
        lambda mean, var: at.R.LOSSES[loss](y, mean, var, 0.6), p), MARGINALS)
line("R_eq29_eq31_band_not_centred", lambda at, p: loss_at(
    lambda mean, var: at.R.expected_band_loss(mean, var, y - 0.2, y + 0.9), p), MARGINALS)
line("R_eq12_eq13_kl_inv", kl_inv_at, dict(
    q=np.array([0.1, 0.3, 0.5, 0.8]), eps=np.array([0.1, 0.02, 2.0, 0.05])), 1e-11)
for which in R.BOUNDS:                                      # kl^-1 has 12 digits
    line(f"R_eq14_pac_objective-{which}", lambda at, p, which=which: bound_at(at, p, which),
         dict(MARGINALS, KL=np.array(0.8)), 1e-11)
for sigma2 in (0.3, 1e-2, 3e-7, 30.0, 3e5):
    p = dict(mean=y[:5] + 0.3, ln_ktilde=np.log([0.25, 0.09, 0.5, 2.0, 0.01]),
             ln_svar=np.log([0.4, 0.02, 0.3, 1.0, 3.0]), ln_sigma2=np.log(sigma2))
    largest = () if 1e-3 < sigma2 < 1e3 else (1e-11, np.inf)
    for see in ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.3, 0.6)):
        line(f"J_eq06_eq15_eq18_data_fit-{see}-{sigma2}",
             lambda at, p, see=see: data_term(at.J.data_fit, p, *see), p, *largest)
    for gamma in (1.01, 1.07, 2.0):
        line(f"J_eq09_gamma_fit-{gamma}-{sigma2}",
             lambda at, p, gamma=gamma: data_term(at.J.gamma_fit, p, gamma), p, *largest)

# everything with a kernel
for kind, theta in THETA.items():
    k = lambda at, kind=kind: kernel(at, kind)
    of_k = dict(ln_theta=theta)
    noisy = dict(of_k, ln_noise=ln_noise)
    sparse = dict(noisy, Z=Z)
    line(f"R_sec31_J_sec21_L_sec51_kernel-{kind}", lambda at, p, k=k: named(
        "ln_theta X1 X2", *k(at)(p["X1"], p["X2"], p["ln_theta"])), dict(of_k, X1=X, X2=X2))
    line(f"R_eq08_full_gp-{kind}", lambda at, p, k=k: at.R.full_gp(X, y, **p, kernel=k(at)), noisy)
    line(f"R_eq33_full_gp_nll-{kind}",
         lambda at, p, k=k: at.R.full_gp_nll(X, y, **p, kernel=k(at)), noisy)
    line(f"R_eq10_sparse_free-{kind}", lambda at, p, k=k: at.R.sparse_free(X, **p, kernel=k(at)),
         dict(of_k, Z=Z, m=m, L_S=L_S))
    line(f"R_eq11_sparse_gp-{kind}", lambda at, p, k=k: at.R.sparse_gp(X, y, **p, kernel=k(at)),
         dict(sparse, alpha=np.array(0.4)))
    for nll in R.SPARSE_NLL:
        line(f"R_eq34_sparse_nll_{nll}-{kind}", lambda at, p, k=k, nll=nll: at.R.sparse_nll(
            X, y, **p, kind=nll, kernel=k(at)), sparse)
    line(f"J_eq04_features-{kind}", lambda at, p, k=k: named(
        "ln_theta X Z", *at.J.whitened_features(**p, kernel=k(at))), dict(of_k, X=X, Z=Z))
    for variant, q in Q.items():
        line(f"J_eq07_eq08_marginals_{variant}-{kind}", lambda at, p, k=k: at.J.marginals_and_reg(
            p, p["X"], k(at)), dict(of_k, Z=Z, X=X, **q))
    for form, q in FORMS.items():
        p = dict(Z=Z_mean, ln_theta=theta + 0.1, ln_noise=ln_noise, **q)
        for tag, f, more in (("eq08", "free_energy", ()), ("eq13", "marginals_and_kl", ()),
                             ("eq12", "online_objective", (0.7, 0.6))):
            line(f"L_{tag}_{f}_{form}-{kind}", lambda at, p, kind=kind, f=f, more=more:
                 getattr(at.L, f)(p, old(at, kind), X[10:], y[10:], *more), p)
line("L_eq07_stream_sums", stream_sums_at, dict(V=W[:, :M], sigma2=np.array(0.3), U=L_S))
for method, (g, variant) in J.METHODS.items():
    if g is not None:                                       # FITC, exact: R (34), R (33)
        line(f"J_alg1_objective-{method}", lambda at, p, method=method: at.J.objective(
            p, p["X"], y, 50, method, 0.3, at.J.matern52), dict(SPARSE, X=X, **Q[variant]))
line("L_sec5_grid_nll", lambda at, p: at.baselines.grid_nll(p, SUMS),
     dict(ln_theta=THETA["one_l"], ln_noise=ln_noise))
p = dict(ln_theta=THETA["SE"], Z=Z)

# extremes: jitters, noises, alphas
for jitter in (1e-8, 0.03, 1.0):
    line(f"R_sec32_inverse_cholesky_jitter-{jitter}",
         lambda at, p, jitter=jitter: inverse_cholesky_at(at, p, at.R.se_kernel, jitter=jitter), p)
line("R_sec32_inverse_cholesky_by_differences", lambda at, p: inverse_cholesky_at(
    at, p, at.J.matern52, by_differences=True), p)
for noise in (-R.LN_BOX, -5.0, 4.0, R.LN_BOX):
    largest = (1e-8, np.inf) if abs(noise) == R.LN_BOX else (1e-10, 1e-6)
    data = dict(ln_theta=THETA["SE"], ln_noise=np.array(noise))
    p = dict(data, Z=Z)
    line(f"R_eq33_full_gp_nll_noise-{noise}", lambda at, p: at.R.full_gp_nll(X, y, **p), data,
         *largest)
    line(f"R_eq34_sparse_nll_noise-{noise}", lambda at, p: at.R.sparse_nll(X, y, **p, kind="FITC"),
         p, *largest)
    if noise < R.LN_BOX:                                    # there the data say nothing: KL = 0
        line(f"R_eq08_full_gp_noise-{noise}", lambda at, p: at.R.full_gp(X, y, **p), data, *largest)
        line(f"L_eq08_free_energy_noise-{noise}", lambda at, p: at.L.free_energy(
            p, old(at, "SE"), X[10:], y[10:]), p, *largest)
    for method in ("SVGP", "gamma-robust", "PPGPR-Chol"):
        line(f"J_alg1_objective_{method}_noise-{noise}", lambda at, p, method=method:
             at.J.objective(p, p["X"], y, 50, method, 0.3), dict(p, X=X, m=m, L_S=L_S), *largest)
for alpha in (0.0, 1.0):
    line(f"R_eq11_sparse_gp_alpha-{alpha}", lambda at, p: at.R.sparse_gp(X, y, **p),
         dict(SPARSE, alpha=np.array(alpha)))
for scale in (0.2, 3.0):
    line(f"L_eq08_free_energy_lengthscale-{scale}", lambda at, p: at.L.free_energy(
        p, old(at, "SE", unit=1e3), X[10:], 1e3 * y[10:]), dict(
        Z=Z_mean, ln_theta=THETA["SE"] + [2 * math.log(scale), 0, 0], ln_noise=ln_noise),
         1e-9, 1e-6)

for low, kind in ((-40.0, "SE"), (-40.0, "mixture"), (-1.3, "SE")):
    line(f"R_sec31_lifted_noise_from_{low}-{kind}", lambda at, p: at.R.lifted_noise(**p, N=N),
         dict(ln_theta=THETA[kind], ln_noise=np.array(low)))

# extremes: inputs around 1000, far ones, nearly equal ones, repeated ones
clusters = 1e7 * rng.integers(0, 3, (N, 1))
FAR = {"clusters": (X + clusters, 1.0), "close_clusters": (X + 3e-4 * clusters, 1.0),
       "outliers": (X + 150 * np.isin(np.arange(N), (3, 5))[:, None], 1.0),
       "far": (4e9 + np.round(5 * X), 1.0), "unscaled": (2e8 * (1 + X), 2e8),
       "nearly_equal": (X[:1] + 1e-9 * X, 2e-9)}
for kind, theta in THETA.items():
    call = lambda at, p, kind=kind: named(
        "ln_theta X1 X2", *kernel(at, kind)(
            p["X1"], p["X2"], p["ln_theta"], at is not SHIPPED))            # traced: by differences
    line(f"R_sec31_J_sec21_L_sec51_kernel_around_1000-{kind}", call, dict(
        ln_theta=theta, X1=X + 1e3, X2=X2 + 1e3), 1e-11)
    for place, (inputs, l) in FAR.items():                  # waves are 1e-4 of the inputs' range
        theta = THETA[kind] + 0.0
        if kind == "periodic":
            theta[2:4] = np.log(np.ptp(inputs, axis=0) / 1e4)
        elif kind == "mixture":
            theta[:, :4] += [*[math.log(1e3 / l)] * 2, *[2 * math.log(l)] * 2]
        else:
            theta[:-1] += 2 * math.log(l)
        line(f"R_sec31_J_sec21_L_sec51_kernel_{place}-{kind}", call, dict(
            ln_theta=theta, X1=inputs[:4], X2=inputs[2:9]), 1e-11, np.inf)
    X_twice = X[[0, 0, 0, *range(3, N)]]
    at_twice = dict(Z=X[[0, 0, 5, 6, 7]], Z_mean=Z_mean[[0, 0, 2, 3, 4]])      # Z among the data
    line(f"J_alg1_objective_repeated_rows-{kind}",
         lambda at, p, kind=kind, X=X_twice, twice=at_twice: only(p, *at.J.objective(
             dict(p, **twice), X, y, 50, "OD-SVGP", 0.3, kernel=kernel(at, kind))),
         dict(ln_theta=THETA[kind], ln_noise=ln_noise, m=m, L_S=L_S, a=a), 1e-11)


# --- 4. the tests ---------------------------------------------------------------------------------

each = pytest.mark.parametrize


@each("name", TABLE)
def test_grad(name):
    """By hand, by autograd of the shipped source, by differences."""
    assert_right(*TABLE[name])


def test_grad_complete():
    """TABLE calls every gradient by hand: each VJP, whose name is back, and each function that is
    named _grad or _back or whose docstring says that it returns derivatives with its value.
    """
    with_derivatives = re.compile(r"_(grad|back)$|d/d", re.M)
    wanted = {}
    modules = R, J, L, baselines, certificates, kernels, rounding, search, stream
    for module in modules:
        for name, f in vars(module).items():
            if isinstance(f, types.FunctionType) and f.__module__ == module.__name__:
                code = inspect.unwrap(f).__code__
                if with_derivatives.search(f"{name}\n{f.__doc__}"):
                    wanted[code] = f"{module.__name__}.{name}"
                for inner in code.co_consts:
                    if isinstance(inner, types.CodeType) and inner.co_name == "back":
                        wanted[inner] = f"back of {module.__name__}.{name}"
    seen = set()
    before = sys.getprofile()
    sys.setprofile(lambda frame, *_: seen.add(frame.f_code))
    try:
        for call, point, *_ in TABLE.values():
            outputs, back = call(SHIPPED, point)
            back(*as_tuple(outputs))
    finally:
        sys.setprofile(before)
    assert {"back of pacgp_ref.sparse_gp", "pacgp_ref.kl_inv_grad"} <= {*wanted.values()}
    assert [name for code, name in wanted.items() if code not in seen] == []


@each("factor", [1.001, -1.0, 0.0])
@each("spoilt, of", [("ln_theta", 0), ("Z", 0), ("m", 0), ("L_S", 1)])
def test_errors_rejects(spoilt, of, factor):
    """One argument's gradient, wrong for one output that is small beside another, is named: it
    alone.
    """
    call, point, *_ = TABLE["R_eq10_sparse_free-SE"]

    def wrong(at, p):
        (mean, var, KL), back = call(at, p)

        def spoilt_back(*adjoints):
            grads = back(*(d * u for d, u in zip(adjoints, (1e-6, 1e-6, 1e6))))
            if [np.any(d) for d in adjoints] == [i == of for i in range(3)]:
                grads[spoilt] = factor * grads[spoilt]
            return grads
        return (1e-6 * mean, 1e-6 * var, 1e6 * KL), spoilt_back

    found = errors(wrong, point).items()
    assert [key for key, error in found if max(error) > 1e-8] == [(spoilt, of)]
    with pytest.raises(AssertionError, match=rf"^d_{spoilt} of output {of}: .*$"):
        assert_right(wrong, point)


def test_trace_is_of_the_shipped_source():
    """All traces share those of the modules below."""
    assert traced.np is TRACES.J.np is TRACES.L.np is anp
    assert TRACES.L.LOSSES["01"].__globals__ is traced.__dict__ is not R.__dict__
    assert TRACES.L.cholesky is traced.cholesky is not R.cholesky
