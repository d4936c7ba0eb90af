"""What is taken: other forms of the same numbers, which must give the same result to the last bit;
few rows; odd data. What is refused: refused.txt and, of command lines, transcripts.txt.
"""

import functools
import math
import warnings

import numpy as np
import pytest

import online as L
import pacgp_ref as R
import predictive as J
from beyond import certificates, rounding, stream
from tests.dense import dense_predict
from tests.oracles import assert_close, leaves
from tests.problems import certified, Frame, ODD, wave

INF = float("inf")
NAN = float("nan")
X = np.round(16 * np.random.default_rng(0).standard_normal((20, 2))) / 16    # float32 has these
y = np.round(16 * np.sin(X[:, 0])) / 16
Z = X[:4]


def test_input_check_array():
    """Any form of the same numbers is a float64 array in memory of its own; float64 stays where it
    is if that is wanted; a matrix may have no rows.
    """
    read_only = np.frombuffer(X.tobytes()).reshape(X.shape)
    for form in (
        X.tolist(), X.astype(np.float32), np.asfortranarray(X), read_only, np.repeat(X, 2, 0)[::2],
        X[::-1].copy()[::-1], X.astype(">f8"), Frame(X), X.astype(object), np.ma.array(X)):
        assert np.array_equal(R.check_array("X", form, 2), X)
    own = np.arange(3.0)
    for copy in (True, False):
        assert np.shares_memory(R.check_array("y", own, 1, copy=copy), own) != copy
        for a in (range(3), np.arange(3, dtype="u1"), own[:, None]):
            out = R.check_array("y", a, 1, copy=copy)
            assert out.dtype == np.float64
            assert np.array_equal(out, own)
    assert R.check_array("X", np.empty((0, 4)), 2).shape == (0, 4)


# --- the arguments of the entry points -----------------------------------------------------------

@functools.cache
def learnt():
    """A Fit of R, one of J, a Learner and a Posterior of the table."""
    return (
        R.fit(X, y, "kl-PAC-SGP", 3, max_evals=2), J.fit(X, y, "SVGP", 3, epochs=1),
        stream.step(stream.begin(X, y, pretrain=1), X, y),
        L.update(L.prior(Z, np.zeros(3)), X, y, -1.0))


def entries():
    """[(an entry point, its arguments)]; floats and whole numbers have short forms, too."""
    fit_R, fit_J, learner, state = learnt()
    data = dict(X=X, y=y)
    theta = np.ones(3)
    pair = (0.25, 0.5)
    val = dict(data, X_val=X, y_val=y, M=4, epochs=4, seed=4, ard=True, kernel="Matern32", lr=0.25)
    settings = dict(
        eps=13.0, loss="square", delta=0.25, lams=pair, M=4, discard="oldest", learn="bound",
        window=4, rate=0.25, forgetting=0.5, unit="y")
    return [
        (R.fit, dict(
            data, method="free-kl-PAC-SGP", Z=Z, loss="square", eps=13.0, delta=0.25, ard=True,
            xi=True, n_eps=200, grid=(100, 255), max_evals=4, ftol=0.25, batch=4, lr=0.25,
            seed=4, start=dict(ln_theta=theta))),
        (R.fit, dict(data, method="kl-PAC-SGP", M=4, max_evals=4, alpha=0.25, seed=4)),
        (rounding.strict, dict(data, fit=fit_R)),
        (certificates.prior_from_part, dict(
            data, method="VFE", M=4, share=0.5, n_eps=200, xi=True, seed=4, max_evals=4)),
        (certificates.held_out, dict(data, fit=fit_R, delta=0.25)),
        (certificates.held_out, dict(data, fit=fit_R, groups=np.floor(X[:, 0]))),
        (R.predict, dict(fit=fit_R, X_new=X)),
        (J.predict_y, dict(fit=fit_J, X_new=X)),
        (J.fit, dict(
            val, Z=Z, method="gamma-robust", gamma=13.0, beta_reg=13.0, batch=4, patience=4,
            milestones=pair, min_noise=0.25, start=dict(ln_theta=theta))),
        (J.choose, dict(val, method="SVGP", betas=pair)),
        (J.choose, dict(val, method="gamma-robust", gammas=(1.25, 1.5))),
        (lambda **given: stream.begin(X, y, stream.Settings(**given)), settings),
        (stream.begin, dict(
            data, ln_theta=theta, ln_noise=-1.0, input_scale=np.ones((2, 2)), pretrain=4)),
        (stream.step, dict(data, learner=learner)),
        (stream.forecast, dict(learner=learner, X_new=X)),
        (L.prior, dict(Z=Z, ln_theta=theta)),
        (L.update, dict(data, posterior=state, Z=Z, ln_noise=-1.0, ln_theta=theta)),
        (L.predict, dict(posterior=state, X_new=X)),
        (L.stream, dict(
            data, Z=Z, method="O-PACGP", n0=8, pretrain=4, steps=4, batch=4, eps=13.0, lam=13.0,
            K=13.0, loss="square", delta=0.25, ln_noise=-1.0, ln_theta=theta)),
        (L.stream, dict(data, Z=Z, method="O-SVGP", n0=8, pretrain=4)),
    ]


def another(value):
    """The same value in another form, in which arithmetic would overflow or round."""
    if isinstance(value, np.ndarray):
        return Frame(value)
    if isinstance(value, dict):
        return {name: another(v) for name, v in value.items()}
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int):
        return np.uint8(value)
    if isinstance(value, float):
        return np.int8(value) if value == int(value) else np.float16(value)
    return np.float32(value) if type(value) is tuple else value


def numbers(result):
    """All numbers of a result, in order, as bytes; a Learner first takes a step."""
    if isinstance(result, stream.Learner):
        result = stream.step(result, X, y)
        result = (*result, *stream.certificates(result))
    return [np.asarray(a, float).tobytes() for a in leaves(result)
            if not (a is None or isinstance(a, str) or callable(a))]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("i", range(20))
def test_input_taken(i):
    """All arguments in another form give the same result, to the last bit."""
    entry, given = entries()[i]
    want = numbers(entry(**given))
    assert want
    assert numbers(entry(**{name: another(value) for name, value in given.items()})) == want


def test_input_matrices():
    """A matrix that is not positive definite is named, with the jitter that did not help."""
    with pytest.raises(ValueError, match=r"k\(Z, Z\) with a jitter of 0 sigma_s\^2 is not positive"):
        R.inverse_cholesky(np.zeros((9, 2)), np.zeros(2), jitter=0.0)
    with pytest.raises(ValueError, match=r"K \+ sigma\^2 I is not positive"):
        R.full_gp(X * 0, y, np.zeros(2), -80.0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", J.METHODS)
def test_J_input_overflows(method):
    """Where the objective overflows the remedy is said."""
    with pytest.raises(ValueError, match="the objective is (nan|inf)"):
        J.fit(X, y * 1e200, method, epochs=3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method, more", [
    ("SVGP", dict(epochs=4)), ("PPGPR-MFD", dict(epochs=1, X_val=X, y_val=y, patience=1))])
def test_J_input_long_step(method, more):
    """Where a step is too long, in the objective or the validation rows, lr is named."""
    with pytest.raises(ValueError, match="(objective|NLL) is (nan|inf) .*lr"):
        J.fit(X, y, method, lr=1e200, **more)


@pytest.mark.parametrize("i, predict", [
    (0, R.predict), (1, J.predict), (1, J.predict_y), (2, stream.forecast), (3, L.predict)])
def test_input_few_rows(i, predict):
    """Predictions for no row and for one; an empty batch of a stream changes none."""
    model = learnt()[i]
    want = predict(model, X)
    for given in ([], X[:0], X[:1]):
        for got, value in zip(predict(model, given), want, strict=True):
            assert got.shape == (len(given),)
            assert np.allclose(got, value[:len(given)], rtol=1e-9, atol=1e-12)
    if i == 2:
        assert_close(predict(stream.step(model, X[:0], y[:0]), X), want, 1e-9)
    if i == 3:
        assert_close(predict(L.update(model, X[:0], y[:0], -1.0), X), want, 1e-9)


# --- odd data ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "method, case",
    [(method, case) for i, method in enumerate(J.METHODS) for j, case in enumerate(ODD)
     if method in ("SVGP", "PPGPR-MFD", "exact") or (i + j) % 6 == 0])
def test_odd_data_J_fit(method, case):
    """Finite predictions that the dense formulas confirm, variances above zero."""
    settings = dict(zip("Xy", wave(25, d=2)), M=4, batch=10, epochs=4)
    settings |= ODD[case](settings["X"], settings["y"])
    f = J.fit(method=method, **settings)
    X, y = (np.array(settings[name], float) for name in "Xy")
    X_new = np.concatenate([X[:6], X[:3] + 0.1 * (X[:1] - X.mean(0))])
    mean, var = J.predict(f, X_new)
    want_mean, want_var = dense_predict(method, f.params, X_new, X, y)
    assert np.all(np.isfinite(f.history))
    assert np.all(var > 0)
    assert np.max(np.abs(mean - want_mean)) < 1e-5 * max(np.max(np.abs(y)), 1e-3)
    assert np.max(np.abs(var - want_var)) < 1e-5 * math.exp(f.params["ln_theta"][-1])


@pytest.mark.parametrize("case", [case for case in ODD if case not in ("N = 1", "d > N")])
def test_odd_data_L(case):
    """The rows are taken without a complaint, and what is learnt predicts numbers."""
    rows = dict(X=X, y=y) | ODD[case](X, y)
    X_odd, y_odd = rows["X"], rows["y"]
    _, _, learner, state = learnt()
    for predict, after in (
        (L.predict, L.update(state, X_odd, y_odd, -1.0)),
        (stream.forecast, stream.step(learner, X_odd, y_odd)),
        (stream.forecast, stream.begin(X_odd, y_odd, stream.Settings(unit="y"), pretrain=1))):
        mean, *variances = predict(after, X_odd)
        assert np.all(np.isfinite(mean))
        assert all(np.all((v > 0) & np.isfinite(v)) for v in variances)


@pytest.mark.parametrize("middle, size, warns", [
    (15, 1, False), (25, 1, True), (25, 1.5, False), (0, 15, False), (0, 25, True),
    (0, 0.03, False), (0, 0.01, True), (15, 0, False)])
def test_RJ_unscaled(middle, size, warns):
    """A warning where |mean| is above 20 deviations, above 20 if these are below 1, or a deviation
    outside [.02, 20] but 0.
    """
    X = np.array([[-1.0], [1.0]])
    v = np.array([-1.0, 1.0])
    for data in ((X, middle + size * v), (middle + size * X, v)):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            R.warn_unscaled(*data, "it")
        assert len(said) == warns


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", J.METHODS)
def test_odd_data_J_shift_order_and_distance(method):
    """X shifted by 1000, or rows of one batch in another order: the same predictions. X times
    1e200: a warning, and numbers.
    """
    X, y = wave(30, d=2)

    def predictions(X, y, X_new, Z):
        return J.predict(J.fit(X, y, method, Z=Z, epochs=5), X_new)

    want = predictions(X, y, X, X[:4])
    with pytest.warns(R.FitWarning, match="column 0 of X has mean .* scales X and y"):
        far = predictions(X * 1e200, y, X * 1e200, X[:4] * 1e200)
        others = [predictions(X + 1000, y, X + 1000, X[:4] + 1000)]
    assert np.all(np.isfinite(far))
    if method not in ("PPGPR-MFD", "OD-SVGP"):  # their second inducing inputs are always drawn
        others.append(predictions(X[::-1], y[::-1], X, X[:4]))
    for other in others:
        assert np.max(np.abs(np.subtract(other, want))) < 1e-7


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("module, method", [
    (module, method) for module in (R, J, L) for method in module.METHODS])
def test_input_kept(module, method):
    """Read-only arguments pass; overwritten after a fit, or between two batches of a stream, they
    change no prediction.
    """
    X = np.sort(np.linspace(-1, 1, 20) ** 3)[:, None]
    new = np.linspace(-1, 1, 5)[:, None]
    options = {R: dict(max_evals=4), J: dict(epochs=2, batch=10), L: dict(n0=5, pretrain=3)}
    train = functools.partial(
        L.stream if module is L else module.fit, method=method, **options[module])

    def results(spoil):
        given = dict(X=X.copy(), y=np.sin(3 * X[:, 0]), Z=X[::4].copy())
        if module is J:
            given |= dict(X_val=X.copy(), y_val=np.cos(X[:, 0]))
        if module is not L:
            found = train(**given)
            start = found.params if module is J else found.optimum.x
            given["start"] = {name: np.array(a) for name, a in start.items()}
        arrays = leaves(given)
        for a in arrays:
            a.setflags(write=False)
        trained = train(**given)
        before = next(trained).predict(new) if module is L else ()
        for a in arrays if spoil else ():
            a.setflags(write=True)
            a[...] = 7.0
        if module is L:
            return *before, *next(trained).predict(new)
        return module.predict(trained, new)

    assert np.array_equal(results(False), results(True))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_J_alg1_fit_start():
    """start replaces what it names and nothing else: an epoch of a step of nearly 0 returns it; its
    arrays are not written.
    """
    X, y = wave(30)
    start = dict(ln_theta=[0.3, -0.2, 0.1], m=np.linspace(-1, 1, 4))
    start["m"].setflags(write=False)

    def at(**more):
        return J.fit(X, y, "SVGP", 4, "periodic", epochs=1, lr=1e-300, **more).params

    p = at(start=start)
    default = at()
    for name in p:
        assert np.allclose(p[name], start.get(name, default[name]), rtol=0, atol=1e-290), name


@pytest.mark.parametrize("learn", stream.LEARN)
def test_odd_data_L_step_survives(learn):
    """Constant y is forecast, with a goal in its units; rows that are all the same, or come ten
    times, and a target that moves only later are survived; a constant column changes nothing.
    """
    goal = stream.Settings(M=8, learn=learn)
    own = goal._replace(unit="y")
    X, y = wave(24)
    row = np.arange(24)
    for c in (7.3, 0.0, -1e6):
        learner = certified(X, np.full(24, c), own)[-1]
        assert np.allclose(stream.forecast(learner, X)[0], c, rtol=1e-9, atol=1e-9)
        assert stream.certificates(learner).draw.loss < 0.3
    same = certified(np.ones((24, 2)), y, goal)[-1]
    assert len(same.posterior.Z) == 1
    assert abs(stream.forecast(same, np.ones((1, 2)))[0][0] - y.mean()) < 0.3 * np.std(y)
    copies = certified(np.repeat(X, 10, 0), np.repeat(y, 10), goal, 100, 20)[-1]
    assert copies.ledger[0] == 140
    assert len(copies.posterior.Z) <= 8
    late = certified((row * (row > 12.0))[:, None], np.where(row > 17, y, 5.0), own)[-1]
    assert all(np.all(np.isfinite(a)) for a in (copies.ledger, late.ledger, *late.posterior[:6]))
    with_column = certified(np.column_stack([X, np.full(24, 3.0)]), y, goal)[-1]
    assert_close(with_column.ledger, certified(X, y, goal)[-1].ledger, 1e-9)


def test_L_begin_input_scale():
    """The deviation of a column whose mean is 0 to the last bit."""
    even = stream.begin(np.array([[-3.0], [3.0]]), np.array([0.0, 1.0]))
    assert np.array_equal(even.input_scale, [[0.0], [3.0]])


def test_R_eq06_full_predict_floor(monkeypatch):
    """A variance that rounds below zero is VAR_FLOOR times the signal variance, whatever that is.
    """
    X = np.linspace(-1, 1, 40)[:, None]
    tri_inv = R.tri_inv
    monkeypatch.setattr(R, "tri_inv", lambda A: 1.001 * tri_inv(A))  # a rounding error, made larger
    for k in (3.0, -3.0):
        _, var = R.full_predict(X, np.sin(X[:, 0]), X, np.array([1.0, k]), k - 18.0)
        assert_close(var, np.full(40, R.VAR_FLOOR * math.exp(k)), 1e-12)


# --- leaves of a fit -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "at, want", [(0.4, 0.4), (0.02, 0.1), (0.97, 0.9), (-3.0, 0.1), (5.0, 0.9)])
@pytest.mark.parametrize("a, b", [(0.0, 1.0), (2.0, 5.0), (-7.0, -6.9)])
def test_R_lbfgs_cubic_minimum_value(a, b, at, want):
    """The minimum of a cubic that has it at the share `at` of the way from a to b; at least a tenth
    away from both ends; the middle where there is no cubic.
    """
    place = a + at * (b - a)

    def f(t):
        return (t - place) ** 2 + 0.01 * (t - place) ** 3

    def g(t):
        return 2 * (t - place) + 0.03 * (t - place) ** 2

    assert math.isclose(
        R.cubic_minimum(a, f(a), g(a), b, f(b), g(b)), a + want * (b - a), rel_tol=1e-9)
    for slope, f_b, g_b in ((NAN, 0.0, 1.0), (1.0, INF, NAN)):
        assert R.cubic_minimum(a, 0.0, slope, b, f_b, g_b) == a + 0.5 * (b - a)


@pytest.mark.parametrize("ard", [False, True])
@pytest.mark.parametrize("family, names", [
    ("full", "ln_theta ln_noise"), ("sparse", "ln_theta ln_noise Z"), ("free", "ln_theta Z m L_S")])
def test_R_sec31_initial_parameters_value(family, names, ard):
    """l^2 = d, sigma_s^2 = sigma_n^2 = 1, Z from k-means or as given, and q at (11) with alpha = 1;
    the keys say what Q is.
    """
    p, by_k_means = (
        R.initial_parameters(
            X, y, family, 4, R.se_start(2, ard), given, np.random.default_rng(3))
        for given in (Z, None))
    assert list(p) == names.split()
    assert p.get("ln_noise", 0) == 0
    assert np.array_equal(p["ln_theta"], [*[math.log(2)] * (2 if ard else 1), 0.0])
    if family != "full":
        assert np.array_equal(p["Z"], Z)
        assert np.array_equal(by_k_means["Z"], R.kmeans(X, 4, np.random.default_rng(3)))
    if family == "free":
        q = R.sparse_posterior(X, y, Z, p["ln_theta"], 0.0, 1.0)
        assert_close(p["m"], q.m, 1e-12)
        assert_close(p["L_S"] @ p["L_S"].T, q.S, 1e-12)
        assert np.array_equal(p["L_S"], np.tril(p["L_S"]))
