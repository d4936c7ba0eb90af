"""How test_ref.py calls each function with a gradient, and at which points."""

import itertools
import math
import types

import autograd.extend
import autograd.numpy as anp
import numpy as np

import pacgp_ref as R
import predictive as J
from figures_of import baselines
from tests.oracles import EPS, GENERIC, INF, NAMES
from tests.problems import (
    as_traced, far_problem, first_state, FORWARDS, grid_rows, IN_BLOCKS, J_objective, J_problem,
    kernel_case, kernel_function, kernel_sizes, KERNELS, L_KINDS, L_problem,
    pac_objective, pick, problem, second_parameters, SHIPPED, VARIANTS, WAVES)


# --- how each function is called: at.R, .J, .L are shipped or traced, q is given, p the point -----


def as_tuple(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


@autograd.extend.primitive
def kl_inv_traced(q, eps):
    return R.kl_inv(q, eps)


def kl_slope(k, q):
    return (1 - q) / (1 - k) - q / k


autograd.extend.defvjp(                                     # (12), (13) as printed
    kl_inv_traced,
    lambda k, q, eps: lambda g: g * math.log((1 - q) * k / ((1 - k) * q)) / kl_slope(k, q),
    lambda k, q, eps: lambda g: g / kl_slope(k, q))


def named(names, outputs, back):
    """The way back returns a dict in place of a tuple."""
    return outputs, lambda *adjoints: dict(zip(names.split(), back(*adjoints)))


def slopes_at(loss, p):
    """A loss that returns its slopes, at GENERIC's y."""
    var = anp.exp(p["ln_var"])
    value, d_mean, d_var = loss(GENERIC["y"], p["mean"], var, EPS)
    return value, lambda d: dict(mean=d * d_mean, ln_var=d * d_var * var)


def band_at(at, q, p):
    """A band around y that is not centred."""
    def loss(y, mean, var, eps):
        return at.R.expected_band_loss(mean, var, y - 0.2, y + 0.9)
    return slopes_at(loss, p)


def pac_objective_at(at, q, p):
    """A batch of N rows. Traced: B of the mean loss, R (5) with (24)."""
    loss, bound, N = q
    y, mean, var, KL = GENERIC["y"], p["mean"], anp.exp(p["ln_var"]), p["KL"]
    if at is SHIPPED:
        value, d_mean, d_var, d_KL = pac_objective(y, mean, var, KL, EPS, loss, bound, N,
                                                   delta=0.05, penalty=1.0)
        return value, lambda d: dict(mean=d * d_mean, ln_var=d * d_var * var, KL=d * d_KL)
    complexity = (KL + 1 + math.log(2 * math.sqrt(N) / 0.05)) / N
    risk = anp.mean(at.R.LOSSES[loss](y, mean, var, EPS)[0])
    if bound == "kl":
        return kl_inv_traced(risk, complexity), None
    if bound != "sqrt":
        raise KeyError(bound)
    return risk + anp.sqrt(complexity / 2), None


def kernel_at(at, q, p):
    return named("ln_theta X1 X2", *kernel_function(q, at)(**p))


def full_at(name):
    """full_gp or full_gp_nll with the kernel of the case."""
    return lambda at, q, p: getattr(at.R, name)(*q[:2], **p, kernel=kernel_function(q[2], at))


def sparse_at(at, q, p):
    X, y, kernel, name = q
    kernel = kernel_function(kernel, SHIPPED if at is IN_BLOCKS else at)
    if name == "R_eq10_sparse_free":
        return at.R.sparse_free(X, **p, kernel=kernel)
    if name == "R_eq11_sparse_gp":
        return at.R.sparse_gp(X, y, **p, kernel=kernel)
    return at.R.sparse_nll(X, y, **p, kind=name.split("_")[-1], kernel=kernel)


def features_at(at, q, p):
    return named("ln_theta X Z", *at.J.whitened_features(**p, kernel=kernel_function(q, at)))


def marginals_at(at, q, p):
    return at.J.marginals(p, p["X"], kernel_function(q, at))


def J_objective_at(at, q, p):
    """Without the gradients of what does not move."""
    p = {**q.fixed, **p}
    value, back = J_objective(q.method, p, p["X"], q.y, kernel=q.kernel, module=at.J)
    return value, lambda d: {name: g for name, g in back(d).items() if name not in q.fixed}


def grid_at(at, q, p):
    sums, kind = q
    return at.baselines.grid_nll(p, sums, kernel_function(kind, at))


def L_at(name):
    """free_energy or marginals_and_kl with the old Posterior's kernel."""
    return lambda at, q, p: getattr(at.L, name)(p, as_traced(q[0], at), *q[1:])


def online_objective_at(at, q, p):
    old, *rows, loss = q
    return at.L.online_objective(p, as_traced(old, at), *rows, lam=0.7, eps=0.6, loss=loss,
                                 delta=0.1)


# --- where: q and p of a case, then the tolerances against autograd and differences ---------------

STRICT = 1e-12, 1e-10                                       # well-conditioned, a few matrices deep


def loss_point(name, loss):
    p = dict(mean=GENERIC["mean"], ln_var=np.log(GENERIC["var"]))
    return loss, p, 1e-14, 1e-10                            # a closed form, no matrix


def pac_point(name, *case):
    _, p, *_ = loss_point(name, "any")
    return case, {**p, "KL": np.array(0.8)}, 1e-9, 1e-8     # kl^-1 has 12 digits


def kernel_point(name, kind, place, *size):
    """Inputs around 0 or 1000, where phases have lost digits; or far, 1e4 periods apart."""
    if size:
        X1, X2, ln_theta = kernel_case(kind, *size)
        X1, X2 = X1 + place, X2 + place
        tolerances = (1e-11 if place and kind in WAVES else 1e-13), (1e-9 if place else 1e-10)
    else:
        X1, X2, ln_theta = far_problem(place, kind)
        tolerances = (3e-10 if kind == "periodic" else 1e-12), INF
    return kind, dict(X1=X1, X2=X2, ln_theta=ln_theta), *tolerances


def some_theta(kind, d):
    """A generic ln_theta of a kernel for d columns; waves are longer than the inputs."""
    ln_l2 = [0.3, -0.2, 0.5][:d]
    if kind == "mixture":
        waves = [-1.5, -1.2, -1.9][:d]
        return np.array([[*waves, *ln_l2, 0.1], [*(w - 0.4 for w in waves), *ln_l2, -0.6]])
    periods = [1.9, 1.6, 2.1][:d] if kind == "periodic" else []
    return np.array([*ln_l2, *periods, 0.1])


def R_point(name, kind, change, value):
    X, y, Z, ln_theta, ln_noise = problem("ard" if kind in KERNELS else kind)
    rng = np.random.default_rng(2)
    p = dict(ln_theta=ln_theta, ln_noise=ln_noise, Z=Z, m=rng.standard_normal(6))
    p["L_S"] = np.tril(0.3 * rng.standard_normal((6, 6)))
    p["L_S"] += np.diag([0.5, -1.0, 1.5, 0.8, 1.1, -0.4])
    p[change] = value
    if kind in KERNELS:
        p["ln_theta"] = some_theta(kind, X.shape[1])
    # A^-1 with little noise; differences with steps h and 2 h are 4e-10 apart
    tolerances = (1e-11 if "full" in name else 1e-12), 4e-10
    q = (X, y, kind if kind in KERNELS else "SE", name)
    return q, pick(p, FORWARDS[name][1]), *tolerances


def features_point(name, kernel):
    X, _, p = J_problem()
    return kernel, dict(X=X, Z=p["Z"], ln_theta=some_theta(kernel, X.shape[1])), *STRICT


def q_point(name, variant, kernel):
    X, _, p = J_problem(VARIANTS[variant], N=7, M=3)
    del p["ln_noise"]
    if kernel != "Matern52":
        p["ln_theta"] = some_theta(kernel, X.shape[1])
    return kernel, dict(p, X=X), *STRICT


J_CHANGES = {          # -> ln_theta or ln_noise, tolerances
    "generic": ({}, *STRICT),
    "little noise": (dict(ln_noise=-5.0), 1e-11, 1e-8),
    "much noise": (dict(ln_noise=3.0), 1e-11, 1e-8),
    "T = 2": (dict(ln_theta=[3.0, 1.0]), 1e-11, 1e-9),
    "least noise": (dict(ln_noise=-J.LN_BOX), 1e-11, INF),
    "most noise": (dict(ln_noise=J.LN_BOX), 1e-11, INF),
    "rows repeated": ({}, 1e-11, 1e-8)}                     # r = 0, also among inputs


def J_given(X, y, p, method, kernel="Matern52"):
    """q and p of an objective; d_X by the way, where X is not the GP's own."""
    q = types.SimpleNamespace(fixed={}, y=y, method=method, kernel=kernel)
    if method in ("exact", "FITC"):
        q.fixed["X"] = X
        return q, p
    return q, dict(p, X=X)


def J_point(name, method, kernel, change):
    changes, *tolerances = J_CHANGES[change]
    X, y, p = J_problem(method, kernel, **changes)
    q, p = J_given(X, y, p, method, kernel)
    if change == "rows repeated":                           # these are not free to move
        X[1], X[2], p["Z"][1] = X[0], p["Z"][0], p["Z"][0]
        for key in {"X", "Z", "Z_mean"} & set(p):
            q.fixed[key] = p.pop(key)
    if (method, change) == ("FITC", "most noise"):
        tolerances[0] = 1e-8         # d_Z is made of S - I, 1e-7 of S, by hand and by autograd
    return q, p, *tolerances


def grid_point(name, kind):
    x, y, empty = grid_rows()
    p = dict(ln_theta=some_theta(kind, 1), ln_noise=np.array(-1.3))
    return (baselines.grid_add(empty, x, y), kind), p, 1e-12, 1e-9


L_CHANGES = {          # an L_problem's kind, or what is changed in SE: its noise, factors of l, y
    "ARD": {}, "T=2": {}, "mixture 2-D": {},
    "noise e^-9.3": dict(noise=-9.3), "noise e^4.7": dict(noise=4.7),
    "lengthscale * 0.2": dict(l=0.2), "lengthscale * 3": dict(l=3.0),
    "targets * 1e3": dict(unit=1e3),
    **{kind: dict(kernel=kind) for kind in ("Matern32", "Matern52", "periodic")}}


def L_given(change, noise=None, l=1.0, unit=1.0, kernel=None):
    """An L_problem, and its tolerances: at the ends of what is learnt, ill-conditioned."""
    usual = change in L_KINDS or kernel is not None
    q = L_problem(change if change in L_KINDS else "ARD" if kernel else "SE")
    if kernel:
        q["theta_a"] = some_theta(kernel, 2)
        q["theta_b"] = some_theta(kernel, 2) + 0.1 * np.arange(len(q["theta_a"]))
    q["kernel"] = kernel or ("mixture" if q["theta_a"].ndim == 2 else "SE")
    q["noise"] = q["noise"] if noise is None else noise
    for rows, theta in (("y_a", "theta_a"), ("y_b", "theta_b")):
        q[rows] = unit * q[rows]
        q[theta][..., 0] += 2 * math.log(l)
    return q, (1e-12, 1e-9) if usual else (1e-9, 1e-6)


def online_point(name, loss, change, form):
    q, *point = L_point(name, change, form)
    return (*q, loss), *point


def L_point(name, change, form):
    q, tolerances = L_given(change, **L_CHANGES[change])
    p = second_parameters(q, free=form == "uncollapsed")
    return (first_state(q), q["X_b"], q["y_b"]), p, *tolerances


def cases(*lists):
    return list(itertools.product(*lists))


def kernel_cases(*kinds):
    """Each kernel near 0 at all sizes, around 1000, and at far inputs."""
    far = "far", "clusters", "unscaled, l = 1", "nearly equal"
    return [(kind, *place) for kind in kinds
            for place in [*((0.0, *size) for size in kernel_sizes(kind)), (1e3, 2, False),
                          *((case,) for case in far)]]


PAC_CASES = [*cases(NAMES, ["kl"], [7]), *cases(NAMES, ["sqrt"], [400]), ("01", "kl", 400)]
NOT_SE = [kind for kind in KERNELS if kind != "SE"]
EACH = cases(["ard", "T=2", *NOT_SE], ["ln_noise"], [-1.3])
NOISES = [*cases(["ard"], ["ln_noise"], [-5.0, 4.0]), *EACH]
ALPHAS = [*cases(["ard"], ["alpha"], [0.0, 1.0]), *cases(["ard", "T=2", *NOT_SE], ["alpha"], [0.4])]
REGIMES = ["little noise", "much noise", "T = 2", "least noise", "most noise"]
J_CASES = [
    *cases(J.METHODS, ["Matern52"], ["generic"]),
    *cases(["SVGP", "gamma-robust", "PPGPR-Chol", "FITC", "exact"], ["Matern52"], REGIMES),
    ("OD-SVGP", "Matern52", "T = 2"),
    *cases(["SVGP", "PPGPR-MFD", "OD-SVGP", "FITC", "exact"], ["periodic"], ["generic"]),
    ("SVGP", "Matern52", "rows repeated"),
    ("OD-SVGP", "Matern32", "rows repeated"),
    ("PPGPR-MFD", "SE", "rows repeated"),
    ("FITC", "periodic", "rows repeated")]
FORMS = ["collapsed", "uncollapsed"]
F_CASES = cases(L_CHANGES, FORMS)
OTHERS = ["Matern32", "Matern52", "periodic"]
KINDS = cases(["ARD", "mixture 2-D", *OTHERS], FORMS)
L_CASES = [*cases(R.LOSSES, ["ARD"], FORMS),
           *cases(["01"], ["T=2", "mixture 2-D", *OTHERS], FORMS)]
