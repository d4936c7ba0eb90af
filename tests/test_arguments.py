"""Arguments of all public functions: what is taken, what is refused, what odd and extreme data do.

That all compute in float64: tests/test_arithmetic.py.
"""

import copy
import functools
import itertools
import math
import re
import warnings
from decimal import Decimal, localcontext

import autograd
import autograd.numpy as anp
import numpy as np
from numpy.random import default_rng
import pytest

import online as L
import pacgp_ref as R
import predictive as J
from beyond import certificates, kernels, rounding, stream
from own_data import copying
from test_ref import assert_right, SHIPPED, TABLE, TRACES
from tests.dense import decimal_kernel, dense_predict, gaussian_kl, inverse, joint_covariance
from tests.oracles import (
    assert_close, decimal_cholesky, decimal_solve, decimals, each, EPS, GENERIC, HERE, INF, leaves,
    NAMES, NAN, numbers, refuses, same_bytes)
from tests.problems import (
    certified, crowded, drawn, kernel_case, KERNELS, ODD, odd_data, pac_objective, Table, wave)

X = np.round(16 * default_rng(0).standard_normal((20, 2))) / 16    # float32 has these
y = np.round(16 * np.sin(X[:, 0])) / 16
Z = X[:4]
pytestmark = pytest.mark.filterwarnings("ignore")


# --- the arguments of the entry points -----------------------------------------------------------


@functools.cache
def learnt():
    """A Fit of R, one of J, a Learner and a Posterior of the table."""
    return (
        R.fit(X, y, "kl-PAC-SGP", 3, max_evals=2), J.fit(X, y, "SVGP", 3, epochs=1),
        stream.step(stream.begin(X, y, pretrain=1), X, y),
        L.update(L.prior(Z, np.zeros(3)), X, y, -1.0))


def begin(X, y, **settings):
    return stream.begin(X, y, stream.Settings(**settings))


THETA = np.ones(3)
DATA = dict(X=X, y=y, Z=Z, THETA=THETA, START=dict(ln_theta=THETA))
NOISE = np.array(-1.0)
PAIR = (0.25, 0.5)
# An entry point, its arguments; floats and whole numbers have short forms, too.
ENTRIES = """
R.fit: X=X, y=y, method="free-kl-PAC-SGP", Z=Z, loss="square", eps=13.0, delta=0.25, ard=True,
    xi=True, n_eps=200, grid=(100, 255), max_evals=4, ftol=0.25, batch=4, lr=0.25, start=START
R.fit: X=X, y=y, method="kl-PAC-SGP", M=4, seed=4, max_evals=4, alpha=0.25, kernel=J.matern32
rounding.strict: X=X, y=y, fit=0
certificates.prior_from_part: X=X, y=y, method="full-GP", share=0.5, n_eps=200, xi=True, seed=4,
    M=5, max_evals=3
certificates.held_out: X=X, y=y, fit=0, delta=0.25
R.predict: fit=0, X_new=X
J.predict_y: fit=1, X_new=X
J.fit: X=X, y=y, Z=Z, method="gamma-robust", gamma=13.0, beta_reg=13.0, batch=4, patience=4,
    milestones=PAIR, min_noise=0.25, start=START, X_val=X, y_val=y, epochs=4, seed=4
J.choose: X=X, y=y, M=4, seed=4, X_val=X, y_val=y, epochs=4, ard=True, kernel="Matern32",
    lr=0.25, method="SVGP", betas=PAIR
J.choose: X=X, y=y, M=4, X_val=X, y_val=y, epochs=4, method="gamma-robust", gammas=(1.25, 1.5)
begin: X=X, y=y, eps=13.0, loss="square", delta=0.25, lams=PAIR, M=4, learn="window", window=4,
    rate=0.25, forgetting=0.5, unit="y", discard="oldest"
stream.begin: X=X, y=y, ln_theta=THETA, ln_noise=NOISE, input_scale=np.ones((2, 2)), pretrain=4
stream.step: X=X, y=y, learner=2
stream.forecast: learner=2, X_new=X
L.prior: Z=Z, ln_theta=THETA
L.update: X=X, y=y, posterior=3, Z=Z, ln_noise=NOISE, ln_theta=THETA
L.predict: posterior=3, X_new=X
L.stream: X=X, y=y, Z=Z, method="O-PACGP", n0=8, pretrain=4, steps=4, batch=4, eps=13.0, lam=13.0,
    K=13.0, loss="square", delta=0.25, ln_noise=NOISE, ln_theta=THETA
""".strip().replace("\n    ", " ").splitlines()
MODELS = {"fit", "learner", "posterior"}


def another(value):
    """The same value in another form, in which arithmetic would overflow or round."""
    if isinstance(value, dict):
        return {name: another(v) for name, v in value.items()}
    forms = {np.ndarray: Table, bool: np.bool_, int: np.uint8, tuple: np.float32,
             float: lambda v: (np.int8 if v == int(v) else np.float16)(v)}
    return forms.get(type(value), lambda v: v)(value)


def arguments(entry):
    return eval(f"dict({entry.split(': ')[1]})", globals() | copy.deepcopy(DATA))


def called(entry, changes=None, spoil=False):
    """The numbers of an entry point, as bytes; arguments are read-only, and overwritten once there
    is a result, or the first of a stream. A Learner then takes a step.
    """
    given = arguments(entry)
    for name in MODELS & given.keys():
        given[name] = learnt()[given[name]]
    given |= changes or {}
    arrays = [a for name, a in given.items() if name not in MODELS]
    arrays = [a for a in leaves(arrays) if isinstance(a, np.ndarray)]
    for a in arrays:
        a.setflags(write=False)
    result = eval(entry.split(": ")[0])(**given)
    result = [next(result), result] if "L.stream" in entry else result
    for a in arrays if spoil else ():
        a.setflags(write=True)
        a[...] = 7.0
    if isinstance(result, stream.Learner):
        result = stream.step(result, X, y)
        result = result, stream.certificates(result)
    return numbers(result).tobytes()


@each("entry", ENTRIES)
def test_entry_takes(entry):
    """All arguments in another form give the same result, to the last bit; no argument is written
    to, and those overwritten later change no result.
    """
    want = called(entry)
    others = {name: another(v) for name, v in arguments(entry).items() if name not in MODELS}
    assert called(entry, others) == called(entry, spoil=True) == want


def bad_for(value):
    """What must be refused in place of a value that is taken."""
    if isinstance(value, np.ndarray):
        masked = np.ma.array(value, mask=True)
        other = (value.astype(str), 1j * value, value[None, None], "ab", {})
        return [value * NAN, value + INF, masked, *other]
    if isinstance(value, (bool, str)):
        return ["nonsense", 7, NAN]
    if isinstance(value, (int, float)):
        return [NAN, INF, -INF, "1", [value, value], 1j, True]
    if isinstance(value, tuple):
        return [(NAN, 0.5), ("a", "b"), [[0.5, 0.5]] * 2, "ab"]
    return ["nonsense", {"nonsense": 1.0}]


@each("entry", ENTRIES)
def test_entry_refuses(entry):
    """NaN, infinities, other shapes and types: a ValueError that names the argument."""
    for name, value in arguments(entry).items():
        for bad in bad_for("fit" if name in MODELS else value):
            with refuses(name.rstrip("s")):
                called(entry, {name: bad})


# --- an error or the right value ------------------------------------------------------------------

# A function, its arguments, and what must be true of them as real numbers.
FORMULAS = """
R.kl_inv: q=0.1, eps=0.5: 0 <= q <= 1 and eps >= 0
R.kl_inv_grad: q=0.1, eps=0.5: 0 <= q <= 1 and eps >= 0
R.binary_kl: q=0.1, p=0.5: 0 <= q <= 1 and 0 <= p <= 1
R.ln_confidence: N=9, delta=0.2: WHOLE and DELTA
R.complexity: KL=3.0, N=100, delta=0.05: KL > -1e-9 and WHOLE and DELTA
R.pac_bayes_bound: R_S=0.1, KL=3.0, N=100, delta=0.05: 0 <= R_S <= 1 and PAID and WHOLE
R.pinsker_bound: R_S=0.1, KL=3.0, N=100, delta=0.05: 0 <= R_S <= 1 and PAID and WHOLE
R.bayes_risk_bound: bound=0.3: bound >= 0
R.hoeffding_term: n=9, delta=0.2: n >= 1 and DELTA
R.ln_grid_size: T=3: T >= 1
certificates.binomial_bound: misses=3, n=20, delta=0.2: misses >= 0 and misses % 1 == 0 and ROWS
L.online_bound: loss_sum=3.25, KL=1.5, n=20, lam=0.25, delta=0.25, K=1.0: SUM and 0 < lam < np.inf
L.best_lam: n=20, KL=1.5, delta=0.2: n >= 1 and PAID
certificates.certificate: loss_sum=3.25, KL=1.5, n=20, lams=0.25, delta=0.25, K=1.0: SUM and \
    0 < lams < np.inf
""".strip()
for name, domain in dict(
        SUM="-1e-9 < loss_sum <= n * K * (1 + 1e-9) and K > 0 and n >= 1 and PAID",
        WHOLE="N >= 1 and N % 1 == 0", ROWS="n >= 1 and n % 1 == 0 and DELTA",
        PAID="KL > -1e-9 and DELTA", DELTA="0 < delta <= 1").items():
    FORMULAS = FORMULAS.replace(name, domain)


VALUES = (NAN, INF, -INF, -1, -0.1, -1e-10, 0, 0.0, 0.25, 0.5, 1, 1.0, 1.5, 2.5, 3, 20, 95, 100,
          127, 200, 1e9, 1e300, True)
BOXES = (lambda v: [v], lambda v: (v, v), np.array, lambda v: np.array([[v], [v]]), str,
         lambda v: None, lambda v: {}, lambda v: "a", np.int8, np.uint8, np.int16, np.float16,
         np.float32)


def outcome(f, named):
    """What f gives, as an array, or None for an error."""
    try:
        return np.asarray(f(**named), dtype=float)
    except (ValueError, TypeError, OverflowError):
        return None


def real(value):
    """The one real number that a value stands for; an error if it is none."""
    number, = np.unique(np.asarray(value, dtype=float))
    return float(number)


@each("n", [200, pytest.param(10_000, marks=pytest.mark.slow)])
@each("line", FORMULAS.splitlines())
def test_formula_error_or_right_value(line, n):
    """Of NaN, negative, large, narrow, boxed and spelt arguments come an error or the value of the
    real numbers that they stand for, never another one.
    """
    name, named, domain = line.split(": ")
    f, good = eval(name), eval(f"dict({named})")
    rng = default_rng(0)
    for _ in range(n):
        named = dict(good)
        for key in rng.choice(list(good), min(len(good), rng.integers(1, 3)), replace=False):
            value = VALUES[rng.integers(len(VALUES))] if rng.random() < 0.7 else good[key]
            box = BOXES[rng.integers(len(BOXES))] if rng.random() < 0.9 else lambda v: v
            try:
                named[str(key)] = box(value)
            except (OverflowError, ValueError):         # NumPy 2: no such narrow integer
                named[str(key)] = value
        got = outcome(f, named)
        if got is not None:
            exact = {key: real(value) for key, value in named.items()}
            assert eval(domain, {"np": np}, exact), named
            want = np.asarray(f(**exact), dtype=float)
            assert np.allclose(got.reshape(*want.shape, -1), want[..., None], rtol=1e-13, atol=0,
                               equal_nan=True), named


def test_copied_losses_differentiate():
    """A copy, where np is autograd.numpy, has the derivatives that it returns."""
    text = copying.copied("pacgp_ref.expected_01_loss")
    text = text.replace("import numpy", "import autograd.numpy")
    lines = (HERE / "docs" / "trust.md").read_text().split("```python\n")[1].split("```")[0]
    space = {}
    exec(text + lines, space)

    def loss(mean):
        return space["expected_01_loss"](y[:3], mean, 0.2, 0.6)

    slope = autograd.grad(lambda mean: anp.sum(loss(mean)[0]))(X[:3, 0])
    assert_close(slope, loss(X[:3, 0])[1], 1e-12)


# --- refusals with a remedy, few rows, odd data ---------------------------------------------------


COLUMN = np.ones((3, 1))
REFUSED = r"""
R.full_gp(X * 0, y, np.zeros(2), -80.0)                               K . sigma.2 I is not positive
R.inverse_cholesky(np.zeros((9, 2)), np.zeros(2), jitter=0.0)         with a jitter of 0 sigma_s
R.with_start(dict(L_S=np.eye(2)), dict(L_S=np.ones((2, 2))))          L_S.*triangular
L.certified_stream(X, y, Z, THETA, -1.0, 0.4, 0.1, "nonsense")        loss
L.certified_stream(X, y, Z, THETA, -1.0, 0.4, batch=2.5)              batch
L.certified_stream(X, y, Z, THETA, -1.0, 0.4, batch=0)                batch
L.certified_stream(X, y, Z, THETA, -1.0, 0.4, eps=0.0)                eps
L.certified_stream(X, y, Z, THETA, -1.0, 0.4, delta=0.0)              delta
L.certified_stream(X, y, Z, THETA, -1.0, -1.0)                        lam
L.certified_stream(X, y, Z, THETA, -1.0, "a")                         must hold real numbers
L.certified_stream(X, y, Z, THETA, 400.0, 0.4)                        ln_noise
L.online_bound("5", 1.0, 10, 0.1)          loss_sum must hold real numbers
L.online_bound(5.0, 1.0, 10, np.ma.array([0.1, 0.2], mask=[0, 1]))          lam must hold real
R.lbfgs(lambda x: (NAN, x), X[0])                                     start x0
R.fit(X, y, "VFE")                                                    VFE needs M
R.fit(X, y[1:])                                                       length: 20 rows against 19
R.fit(X, y, "VFE", 3, batch=2)                                        batch.*free
R.fit(X, y, "VFE", Z=X[:, :1])                                        Z must have 2 columns
R.fit(X, y, "VFE", Z=X[:0])                                           at least 1 rows
J.fit(X, y * 1e200, "gamma-robust")                                   the objective is (nan|inf)
J.fit(X, y * 1e200, "exact")                                          the objective is (nan|inf)
J.fit(X, y, "SVGP", lr=1e200)                                         objective is (nan|inf) .*lr
J.fit(X, y, epochs=1, X_val=X, y_val=y, patience=1, lr=1e200)         NLL is .*lr
J.fit(X, y, "FITC", g=J.data_fit)                                     FITC has no data fit
J.fit(X, y, g="poisson")                                              g must be a function
J.fit(X, y, X_val=X)                                                  go together
J.fit(X, y, X_val=X, y_val=y[1:])                                     20 rows against 19
J.fit(X, y, X_val=X[:, :1], y_val=y)                                  X_val must have 2 columns
J.fit(X, y, patience=1)                                               needs X_val
J.nll(y[:3], COLUMN, 1.0)                                             \(3, 1\)
J.rmse(COLUMN, y[:3])                                                 \(3, 1\)
J.crps(y[:3], y[:3], COLUMN)                                          \(3, 1\)
J.crps(y, y, np.append(np.ones(19), -1.0))                            var must be
J.nll(y, y, np.append(np.ones(19), 0.0))                              var must be
certificates.prior_from_part(X, y, share=0.02)                        fewer than two
certificates.prior_from_part(X, y, rows=[3])                          leave two rows in each
certificates.prior_from_part(X, y, rows=[3, 3])                       increasing row indices
certificates.prior_from_part(X, y, rows=[3, 20])                      increasing row indices
rounding.KL_from_above(-0.26, 0.25)                                   KL divergence .* below 0
pac_objective(**GENERIC, KL=1.0, eps=NAN)                             eps
pac_objective(**GENERIC, KL=NAN, eps=EPS)                             KL
pac_objective(**GENERIC, KL=1.0, eps=EPS, delta=95)                   delta
pac_objective(**GENERIC, KL=1.0, eps=EPS, N=-7)                       N
pac_objective(**GENERIC | dict(var=-y[:7]), KL=1.0, eps=EPS)          var
pac_objective(**GENERIC | dict(y=y[:7, None]), KL=1.0, eps=EPS)       differ in shape
""".strip().splitlines()


@each("line", REFUSED)
def test_refused_with_a_remedy(line):
    call, says = re.split("  +", line)
    with refuses(says):
        eval(call)


@each("i, predict", [
    (0, R.predict), (1, J.predict), (1, J.predict_y), (2, stream.forecast), (3, L.predict)])
def test_few_rows(i, predict):
    """Predictions for no row and for one; an empty batch of a stream changes none."""
    model = learnt()[i]
    whole = np.array(predict(model, X))
    for given in ([], X[:0], X[:1]):
        got, want = np.array(predict(model, given)), whole[:, :len(given)]
        assert got.shape == want.shape and np.allclose(got, want, rtol=1e-9, atol=1e-12)
    if i > 1:
        step = (stream.step, functools.partial(L.update, ln_noise=-1.0))[i - 2]
        assert_close(predict(step(model, X[:0], y[:0]), X), whole, 1e-9)


@each("method, case", [
    (method, case) for i, method in enumerate(J.METHODS) for j, case in enumerate(ODD)
    if method == "PPGPR-MFD" or (i + j) % 6 == 0])
def test_odd_data_J_fit(method, case):
    """Predictions that the dense formulas confirm, variances above zero."""
    settings = dict(M=4, batch=10, epochs=4) | odd_data(case, *wave(25, d=2))
    X, y = (np.array(settings[name], float) for name in "Xy")
    fitted = J.fit(method=method, **settings)
    got = np.array(J.predict(fitted, X[:6]))
    off = np.abs(got - dense_predict(method, fitted.params, X[:6], X, y))
    sizes = max(np.max(np.abs(y)), 1e-3), math.exp(fitted.params["ln_theta"][-1])
    assert np.all(off.max(1) < 1e-5 * np.array(sizes)) and np.all(got[1] > 0)


@each("method", J.METHODS)
def test_odd_data_J_distance(method):
    """X times 1e200: a warning, and numbers."""
    X, y = wave(30, d=2)
    X = X * 1e200
    with pytest.warns(R.FitWarning, match="column 0 of X has mean .* scales X and y"):
        found = J.fit(X, y, method, Z=X[:4], epochs=5)
    assert np.all(np.isfinite(J.predict(found, X)))


@each("case", [case for case in ODD if case not in ("N = 1", "d > N")])
def test_odd_data_L(case):
    """The rows are taken, and what is learnt predicts numbers."""
    rows = [odd_data(case, X, y)[name] for name in "Xy"]
    _, _, learner, state = learnt()
    began = stream.begin(*rows, stream.Settings(unit="y"), pretrain=1)
    for predicted in (L.predict(L.update(state, *rows, -1.0), rows[0]),
                      stream.forecast(stream.step(learner, *rows), rows[0]),
                      stream.forecast(began, rows[0])):
        assert np.all(np.isfinite(predicted)) and np.all(np.array(predicted[1:]) > 0)


@each("learn", stream.LEARN)
def test_odd_data_L_steps(learn):
    """Constant y is forecast, with a goal in its units; a constant column changes nothing; equal
    rows need one inducing input.
    """
    goal = stream.Settings(M=8, learn=learn)
    X, y = wave(18)
    constant = certified(X, np.full(18, -1e6), goal._replace(unit="y"))[-1]
    assert_close(stream.forecast(constant, X)[0], np.full(18, -1e6), 1e-9)
    wide = certified(np.column_stack([X, np.full(18, 3.0)]), y, goal)[-1]
    assert_close(wide.ledger, certified(X, y, goal)[-1].ledger, 1e-9)
    assert len(certified(0 * X, y, goal)[-1].posterior.Z) == 1


@each("middle, size, warns", [
    (15, 1, 0), (25, 1, 1), (25, 1.5, 0), (0, 15, 0), (0, 25, 1), (0, 0.03, 0), (0, 0.01, 1),
    (15, 0, 0)])
def test_RJ_unscaled(middle, size, warns):
    """A warning where |mean| is above 20 deviations, above 20 if these are below 1, or a deviation
    outside [0.02, 20] except 0.
    """
    v = np.array([-1.0, 1.0])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        R.warn_unscaled(v[:, None], middle + size * v, "it")
        R.warn_unscaled(middle + size * v[:, None], v, "it")
    assert len(said) == 2 * warns


# --- extremes: close and far inputs, floors, what is rounded up -----------------------------------

LN_THETA = np.array([2 * math.log(0.7), 0.0])


def test_grad_ill_conditioned():
    """R (11), inducing inputs 0.2 apart, lengthscale 0.7: cond(K_MM) = 1e9, bounded by the jitter
    alone. Reference: differences of 50-digit arithmetic, in the entry of d_Z where the two
    gradients differ most. Autograd goes through the Cholesky factor, the gradient by hand does not.
    """
    X, y, rng = crowded(30, 5)
    d_mean, d_var = rng.standard_normal((2, 30))
    Z = np.linspace(0, 5, 26)[:, None] + 0.013

    def value(Z, modules=SHIPPED):
        (mean, var, KL), back = modules.R.sparse_gp(X, y, Z, LN_THETA, -6.0)
        return anp.sum(d_mean * mean) + anp.sum(d_var * var) + KL, back

    def exact(Z):
        L_MM = decimal_cholesky(joint_covariance([(Z, True)], LN_THETA))
        V = decimal_solve(L_MM, decimal_kernel(Z, X, LN_THETA))
        ktilde = 1 - (V * V).sum(0)
        D = ktilde + Decimal(-6).exp()
        eye = decimals(np.eye(len(Z)))
        S = inverse(eye + (V / D) @ V.T)
        c = S @ (V @ (decimals(y) / D))
        var = ktilde + (V * (S @ V)).sum(0)
        return decimals(d_mean) @ (V.T @ c) + decimals(d_var) @ var + gaussian_kl(c, S, 0 * c, eye)

    got, back = value(Z)
    hand = back(d_mean, d_var, 1.0)["Z"]
    auto = autograd.grad(lambda Z: value(Z, TRACES)[0])(Z)
    with localcontext() as context:
        context.prec = 50
        step = decimals(hand) * 0
        step[np.argmax(np.abs(hand - auto))] = h = Decimal(10) ** -18
        at = decimals(Z)
        assert_close(got, float(exact(at)), 1e-9)
        true = float((exact(at + step) - exact(at - step)) / (2 * h))
    errors = [abs(g[step > 0][0] - true) / np.abs(hand).max() for g in (hand, auto)]
    print("error over max|d_Z|: by hand {:.1e}, by autograd {:.1e}".format(*errors))
    assert errors[0] < 1e-5 < errors[1] / 10


@each("seed, N", [(5, 60), (13, 81), (28, 76), (26, 1), (32, 1), (36, 1)])
def test_grad_any_size(seed, N):
    """Random data, scales and units, few and many (triangles of 51 and more are halved)."""
    case = drawn(seed)
    X, y = case.X[:N], case.y[:N]
    calls = {
        "ln_theta ln_noise": lambda at, p: at.R.full_gp(X, y, **p),
        "ln_theta Z m L_S": lambda at, p: at.R.sparse_free(X, **p),
        "ln_theta ln_noise Z alpha": lambda at, p: at.R.sparse_gp(X, y, **p),
        "ln_theta ln_noise Z": lambda at, p: at.R.sparse_nll(X, y, **p, kind="VFE"),
        "ln_theta ln_noise Z m L_S X": lambda at, p: at.J.objective(
            p, p["X"], y, 2 * N, "PPGPR-Chol", 0.3)}
    for names, call in calls.items():
        p = dict(case.p, X=X)
        assert_right(call, {name: p[name] for name in names.split()}, 1e-9, np.inf)


FLOORED = [name for name in TABLE if re.match(
    "(R_eq08_full_gp|R_eq10_sparse_free|R_eq11_sparse_gp|L_eq13_marginals_and_kl_(given|free)"
    "|J_eq07_eq08_marginals_Chol)-SE", name)]


@each("name", FLOORED)
def test_grad_at_floor(name, monkeypatch):
    """A variance below VAR_FLOOR k, as rounding may leave of 0, is VAR_FLOOR k.

    It has no gradient: what is left is that of the rows above the floor, to the last bit.
    """
    call, point, *_ = TABLE[name]
    outputs, back = call(SHIPPED, point)
    var = outputs[1]
    floor = np.median(var)
    above = var > floor
    k = R.signal_variance(point["ln_theta"])
    monkeypatch.setattr(getattr(SHIPPED, name[0]), "VAR_FLOOR", floor / k)
    floored, floored_back = call(SHIPPED, point)
    assert_close(floored[1], np.where(above, var, floor), 1e-15)
    adjoints = [np.ones(np.shape(out)) for out in outputs]
    got = floored_back(*adjoints)
    adjoints[1] *= above
    assert same_bytes(got, back(*adjoints))


@each("i, module, predict", [
    (0, R, R.predict), (1, J, J.predict), (3, L, L.predict),
    (0, R, lambda fit, X: R.full_predict(X, y, X, fit.ln_theta, 0.0))])
def test_predict_at_floor(i, module, predict, monkeypatch):
    """No variance is below VAR_FLOOR of the signal variance."""
    monkeypatch.setattr(module, "VAR_FLOOR", 1e6)
    monkeypatch.setattr(R, "VAR_FLOOR", 1e6)
    model = learnt()[i]
    ln_theta = model.params["ln_theta"] if i == 1 else model.ln_theta
    assert_close(predict(model, X)[1], np.full(20, 1e6 * math.exp(ln_theta[-1])), 1e-12)


def wide_problem(kind, seed):
    """Random X1, X2, ln_theta: ln sigma_s^2 in [-16, 16], up to a thousand waves; some inputs are
    equal or nearly so.
    """
    rng = default_rng(seed)
    d = 1 + seed % 4
    X1, X2 = rng.standard_normal((2, 6, d))
    X2[:2] = X1[:2] + [[0.0], [1e-5]]
    ln_l2, waves = rng.uniform(-3, 3, d), rng.uniform(-3, 6, (2, d))
    k = rng.uniform(-16, 16)
    return X1, X2, {
        "periodic": np.array([*ln_l2, *-waves[0], k]),
        "mixture": np.array([[*waves[0], *ln_l2, k], [*waves[1], *ln_l2, k - 1]]),
    }.get(kind, np.append(ln_l2, k))


@each("kind", kernels.KERNELS)
def test_kernel_far_value_and_ulps(kind):
    """By differences no entry errs by more than stated, by products none by 1e-10 of the signal
    variance, which none exceeds, against 60 digits. Of ordinary inputs at most 30 ulp are stated,
    or 2000 where phases of several periods err.
    """
    row = kernels.KERNELS[kind]
    problems = [(p["X1"], p["X2"], p["ln_theta"]) for name, (_, p, *_) in TABLE.items()
                if re.fullmatch(f"R_sec31_J.*kernel.*-{kind}", name)]
    problems += [wide_problem(kind, seed) for seed in range(25)]
    shares = []
    for X1, X2, ln_theta in problems:
        most = R.signal_variance(ln_theta)
        exact = decimal_kernel(X1, X2, ln_theta, kind)
        for by_differences in (True, False):
            K, _ = row.function(X1, X2, ln_theta, by_differences)
            error = float(np.abs(decimals(K) - exact).max()) / most
            assert error < 1e-10 and np.all(K <= most * (1 + 2e-16 * (kind == "mixture")))
            if by_differences:
                shares.append(error / R.ULP / row.ulps(X1, X2, ln_theta))
    assert 0.05 < max(shares) <= 1
    X1, X2, ln_theta = kernel_case(kind)
    at = X1 + 1e6, X2 + 1e6, ln_theta
    ln_theta[..., -1] = 5
    less = row.ulps(*at)
    ln_theta[..., -1] = -15
    _, stated = kernels.exact_kernel(row.function, *at)
    assert stated == row.ulps(*at) < (2000 if kind in ("periodic", "mixture") else 30)
    assert abs(stated - less - 10) < 1e-9
    with refuses("keep its digits"):
        kernels.check_digits(12, 1.9e6)


def test_kernel_outliers(monkeypatch):
    """Only outliers cost differences, one each of 60 and 40 rows. Values: above; gradients:
    "outliers" in test_ref.py.
    """
    X1, X2 = np.split(default_rng(0).standard_normal((100, 4)), [60])
    X1[7], X2[3] = 100, -70
    cells, plain = [], R.differences
    monkeypatch.setattr(R, "differences", lambda a, b, inv_l: (
        cells.append(len(a) * len(b)), plain(a, b, inv_l))[1])
    R.ln_se_kernel(X1, X2, np.array([0.3, 0.5]))
    assert sum(cells) == 60 + 40 - 1


@each("kind", KERNELS)
def test_kernel_refuses(kind):
    """Columns that differ, also where one would be broadcast; parameters that do not fit them."""
    X1, X2, theta = kernel_case(kind)
    wide = np.c_[X1, X1]
    for args in ((X1[:, :1], X2, theta), (wide, X2, theta), (wide, wide, theta),
                 (X1, X2, theta[..., -1:])):
        with refuses("ln_theta must have .*entries for"):
            KERNELS[kind](*args)


@each("name", NAMES)
def test_RL_eq31_expected_loss_far(name):
    """1e10 to 1e154 deviations and goals from y a loss is 1, and each derivative 0, not 0 inf."""
    far = 10.0 ** np.array([10, 50, 52, 60, 100, 120, 154])
    y = np.ones(7)
    for eps, s, sign in itertools.product((1e-3, 1.0), (0.1, 1.0, 1e3), (-1, 1)):
        with np.errstate(all="ignore"):
            loss, *slopes = R.LOSSES[name](y, sign * far * max(s, eps), 0 * y + s * s, eps)
        assert np.array_equal(loss, y) and not np.any(slopes)


@each("share", [0.0, 0.3, 1.0])
@each("name", NAMES)
def test_R_eq24_risk_from_above(name, share):
    """No loss at a mean and a variance within the errors is greater: the clipped square may be
    largest inside an interval of variances. A variance below 0 by more than its error is refused.
    """
    y, mean, var = GENERIC.values()
    off = 0.1 * share

    def bound(var):
        enclosed = rounding.Enclosed(None, mean, var, 0.0, off, share * var, 0.0)
        return rounding.risk_from_above(y, enclosed, EPS, name, 1e-12)

    near = [R.expected_losses(y, mean + side * off, var * (1 + share * t) + 1e-9, EPS, name)[0]
            for side in (-1, 0, 1) for t in np.linspace(-1, 1, 41)]
    largest = np.mean(np.max(near, 0))
    assert largest - 1e-9 <= bound(var) < largest + 1e-8 + 0.25 * (share > 0)
    with refuses("variance is .*, below 0"):
        bound(-np.abs(var) - 1)
