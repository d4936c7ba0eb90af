"""A kernel that is not there, with a parameter of its own: one function and one row of
beyond.kernels.KERNELS, and it trains, is certified, predicts, follows a stream and is saved. Every
entry point takes every kernel of the table, and refuses one whose k(x, x) is not the signal
variance."""

import math

import numpy as np
import pytest

import online as L
import pacgp_ref as R
import predictive as J
from beyond import certificates, kernels, rounding, search, stream
from own_data import models
from tests.oracles import assert_close, central_difference, decimals


def rational_quadratic(X1, X2, ln_theta, by_differences=False):
    """K = sigma_s^2 (1 + r^2/(2 alpha))^-alpha: Rasmussen & Williams 2006, Eq. (4.19).

    ln_theta = ln (l_1^2 .., alpha, sigma_s^2), one lengthscale or d. With u = -E/alpha, E = -r^2/2:
        dK/dE = K/(1 + u),   dK/d ln alpha = alpha K (u/(1 + u) - ln(1 + u))
    """
    alpha = np.exp(ln_theta[-2])
    E, E_back = J.of_distance(X1, X2, np.append(ln_theta[:-2], 0.0), by_differences)
    u = np.maximum(-E, 0.0) / alpha
    K = np.exp(ln_theta[-1] - alpha * np.log1p(u))

    def back(d_K, of_X1=True):
        d_ln_theta, d_X1, d_X2 = E_back(d_K * K / (1 + u), of_X1)
        d_ln_alpha = alpha * np.vdot(d_K * K, u / (1 + u) - np.log1p(u))
        return np.concatenate([d_ln_theta[:-1], [d_ln_alpha, np.vdot(d_K, K)]]), d_X1, d_X2
    return K, back


def rational_quadratic_ulps(X1, X2, ln_theta):
    """r^2/2 errs by d + 8 ulp, u by d + 11, ln(1 + u) by 2 more; K by alpha times as much of
    max(u/(1 + u)^(1 + alpha)) <= 1/alpha, and by the rounding of the exponent, alpha ln(1 + u)
    (1 + u)^-alpha <= 1/e, of its factor alpha (2 ulp) and of exp."""
    return X1.shape[1] + 16 + abs(ln_theta[-1])


def rational_quadratic_start(d, ard):
    return np.append(np.full(d if ard else 1, math.log(d)), [math.log(2.0), 0.0])


def rational_quadratic_names(d, ard):
    return [*kernels.names_theta(d, ard)[:-1], "alpha", "signal"]


ROW = kernels.Kernel(rational_quadratic, rational_quadratic_start, rational_quadratic_ulps,
                     rational_quadratic_names)
rng = np.random.default_rng(0)
X = rng.standard_normal((40, 2))
y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(40)
THETA = np.array([0.3, -0.2, 0.4, 0.1])
GIVEN = dict(ln_theta=THETA, ln_noise=-1.0, Z=X[:5] + 0.1)


# --- its gradients --------------------------------------------------------------------------------

def bound(**p):
    """The objective B of the sparse GP's marginals, and its way back."""
    (mean, var, KL), gp_back = R.sparse_gp(X, y, **p, kernel=rational_quadratic)
    losses, d_mean, d_var = R.expected_01_loss(y, mean, var, 0.6)
    value, d_loss, d_KL = R.pac_objective(losses, KL)
    return value, lambda d: gp_back(d * d_loss * d_mean, d * d_loss * d_var, d * d_KL)


def svgp(**p):
    return J.objective(p, X, y, 40, "SVGP", 1.0, kernel=rational_quadratic)


def free_energy(**p):
    old = L.update(L.prior(X[:5], THETA, rational_quadratic), X[:20], y[:20], -1.0)
    return L.free_energy(p, old, X[20:], y[20:])


OBJECTIVES = {  # -> parameters, and a function of them that returns value, back
    "R_eq24": (GIVEN, bound),
    "J_eq03": (GIVEN | dict(m=rng.standard_normal(5), L_S=np.eye(5) / 2), svgp),
    "L_eq08": (GIVEN, free_energy)}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_new_kernel_grad(name):
    """Along a random direction each paper's gradient is that of its differences."""
    p, objective = OBJECTIVES[name]
    grads = objective(**p)[1](1.0)
    way = {key: rng.standard_normal(np.shape(value)) for key, value in p.items()}
    if "L_S" in p:
        way["L_S"] = np.tril(way["L_S"])

    def along(h):
        return objective(**{key: value + h * way[key] for key, value in p.items()})[0]

    slope = sum(np.sum(way[key] * grads[key]) for key in p)
    assert_close(slope, central_difference(along, 0.0, 1e-3), 1e-8)


# --- the row ---------------------------------------------------------------------------------------

@pytest.fixture
def in_table(monkeypatch):
    """The row is in the table, and what was made from it at import has the kernel."""
    monkeypatch.setitem(kernels.KERNELS, "RQ", ROW)
    monkeypatch.setitem(models.KERNELS, "RQ", rational_quadratic)


def kernel_named(name):
    """The row of a name; where its ln_theta starts, also of a mixture, two waves here."""
    row = kernels.KERNELS[name]

    def two_waves(d, ard):
        return np.array([[-1.0] * d + [0.5] * d + [-0.7], [-3.0] * d + [0.0] * d + [-0.7]])
    return row, row.start or two_waves


@pytest.mark.parametrize("name", [*kernels.KERNELS, "RQ"])
def test_kernel_names(name, in_table):
    """The row names each entry of ln_theta once, signal last; where inputs are 3 times as long, the
    kernel is the same with lengthscales and periods 3 times as long (those of `periodic` have no
    unit), and frequencies 3 times as low.
    """
    row, start = kernel_named(name)
    units = {"lengthscale": 2.0 * (name != "periodic"), "period": 1.0, "frequency": -1.0}
    for d, ard in ((1, True), (1, False), (2, True), (2, False)):
        names = row.names(d, ard)
        ln_theta = 0.1 + start(d, ard)
        assert len(names) == len({*names}) == np.shape(ln_theta)[-1]
        assert names[-1] == "signal"
        unit = np.array([units.get(label.split()[0], 0.0) for label in names])
        K, _ = row.function(X[:, :d], X[:4, :d], ln_theta)
        longer, _ = row.function(3 * X[:, :d], 3 * X[:4, :d], ln_theta + math.log(3) * unit)
        assert_close(longer, K, 1e-12)


ENTRIES = ["R.fit", "J.fit", "J.choose", "L.update", "L.certified_stream", "L.stream", "strict",
           "held_out", "multistart_fit", "prior_from_part", "begin"]


def results(entry, kernel, first):
    """Numbers of an entry point with this kernel."""
    ln_theta = first(2, True)
    some = dict(kernel=kernel, start_theta=first)
    few = dict(some, max_evals=4)
    if entry == "R.fit":
        fits = [R.fit(X, y, method, M=5, ard=ard, **few) for ard in (True, False)
                for method in R.METHODS]
        return [number for fit in fits for number in (fit.bound, *R.predict(fit, X))]
    if entry == "J.fit":
        fits = [J.fit(X, y, method, M=5, epochs=2, **some) for method in J.METHODS]
        return [number for fit in fits for number in J.predict_y(fit, X + 0.1)]
    if entry == "J.choose":
        found = J.choose(X, y, X + 0.1, y, "SVGP", betas=(0.1, 1.0), M=5, epochs=2, **some)
        return [found.validation]
    if entry == "L.update":
        old = L.update(L.prior(X[:5], ln_theta, kernel), X, y, -1.0)
        new = L.update(old, X, y, -1.0, X[:6])
        return [L.process_kl(new, old), *L.predict(new, X)]
    if entry == "L.certified_stream":
        return [bound for _, bound in L.certified_stream(X, y, X[:5], ln_theta, -1.0, 1.0, batch=20,
                                                         kernel=kernel)]
    if entry == "L.stream":
        return [number for method in L.METHODS
                for at in L.stream(X, y, method, X[:5], ln_theta, pretrain=2, batch=20, eps=0.6,
                                   kernel=kernel) for number in at.predict(X)]
    if entry == "begin":
        learner = stream.begin(X[:20], y[:20], ln_theta=ln_theta, pretrain=2, kernel=kernel)
        learner = stream.step(learner, X[20:], y[20:])
        return [*stream.forecast(learner, X), stream.certificates(learner).mean.bound]
    if entry == "multistart_fit":
        return [search.multistart_fit(X, y, **few).bound]
    if entry == "prior_from_part":
        part = certificates.prior_from_part(X, y, ard=False, **few)
        return [part.fit.bound, *R.predict(part, X)]
    found = []
    for method in ("full-GP", "VFE", "free-kl-PAC-SGP"):
        fit = R.fit(X, y, method, M=5, **few)
        strict = rounding.strict(fit, X, y)
        assert fit.bound < strict.fit.bound < fit.bound + 1e-4
        held = certificates.held_out(strict, X + 0.1, y)
        found += [strict.fit.bound] if entry == "strict" else [held.bound, held.mean_bound]
    return found


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("name", [*kernels.KERNELS, "RQ"])
def test_kernel_entries(name, entry, in_table):
    """Every entry point takes every row of KERNELS, and gives numbers."""
    row, start = kernel_named(name)
    assert np.all(np.isfinite(np.concatenate([np.ravel(a) for a in
                                              results(entry, row.function, start)])))


def with_line(X1, X2, ln_theta, by_differences=False):
    """SE and a linear kernel."""
    K, back = R.se_kernel(X1, X2, ln_theta, by_differences)
    return K + np.exp(ln_theta[-1]) * X1 @ X2.T, back


def order_changed(X1, X2, ln_theta, by_differences=False):
    """SE whose signal variance comes first."""
    return R.se_kernel(X1, X2, np.roll(ln_theta, -1), by_differences)


def amplitude(X1, X2, ln_theta, by_differences=False):
    """SE whose last parameter is ln of the signal's deviation."""
    return R.se_kernel(X1, X2, np.append(ln_theta[:-1], 2 * ln_theta[-1]), by_differences)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("kernel", [with_line, order_changed, amplitude])
def test_kernel_signal_refused(kernel, entry, monkeypatch):
    """A kernel whose k(x, x) is not the signal variance is refused with the rule, also where it
    looks right at the start or at the first rows."""
    monkeypatch.setitem(kernels.KERNELS, "wrong", kernels.Kernel(
        kernel, R.se_start, kernels.se_ulps, kernels.names_theta))
    for data in (X, 0 * X):
        monkeypatch.setitem(globals(), "X", data)
        with pytest.raises(ValueError, match=r"k\(x, x\) must be exp\(ln_theta\[-1\]\)"):
            results(entry, kernel, lambda d, ard: np.zeros(d + 1 if ard else 2))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_new_kernel_row(in_table, monkeypatch):
    """Without a row no strict certificate; with one its start is taken from it, it is saved and
    read, and a large alpha is SE."""
    fit = search.multistart_fit(X, y, "VFE", 5, kernel=rational_quadratic, max_evals=20)
    assert len(fit.ln_theta) == 3
    mean, _ = R.predict(fit, X)
    assert np.mean((mean - y) ** 2) < np.var(y) / 2
    learner = stream.begin(X[:20], y[:20], pretrain=2, kernel=rational_quadratic)
    assert learner.posterior.ln_theta.shape == (4,)
    se, _ = R.se_kernel(X, X[:5], np.array([0.3, -0.2, 0.1]))
    limit, _ = rational_quadratic(X, X[:5], np.array([0.3, -0.2, 25.0, 0.1]))
    assert_close(limit, se, 1e-9)
    monkeypatch.delitem(kernels.KERNELS, "RQ")
    with pytest.raises(ValueError, match="rational_quadratic is not enclosed"):
        rounding.strict(fit, X, y)


def test_new_kernel_ulps():
    """The row's error is never below the error against 60 digits."""
    for seed in range(20):
        draw = np.random.default_rng(seed)
        A, B = draw.standard_normal((2, 4, 2)) * 10 ** draw.uniform(-2, 2)
        ln_theta = draw.uniform(-4, 4, 4)
        K, _ = rational_quadratic(A, B, ln_theta, True)
        l2_1, l2_2, alpha, k = (a.exp() for a in decimals(ln_theta))
        r2 = (decimals(A)[:, None] - decimals(B)) ** 2 @ np.array([1 / l2_1, 1 / l2_2])
        exact = k * (1 + r2 / 2 / alpha) ** -alpha
        error = np.max(np.abs(decimals(K) - exact)) / k
        assert float(error) <= rational_quadratic_ulps(A, B, ln_theta) * R.ULP
