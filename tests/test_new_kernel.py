"""A kernel that is not there, with a parameter of its own: one function and one row of
beyond.kernels.KERNELS, and it trains, is certified, predicts, follows a stream and is saved. Every
entry point takes every kernel of the table, and refuses one whose k(x, x) is not the signal
variance.
"""

import json
import math
from functools import partial

import numpy as np
from numpy.random import default_rng
import pytest

import online as L
import pacgp_ref as R
import predictive as J
from beyond import certificates, kernels, rounding, search, stream
from own_data import models
from own_data.certify import CertifiedGP
from own_data.command_line import parser
from own_data.follow import StreamGP
from own_data.score import PredictiveGP
from tests.oracles import assert_close, each, numbers, refuses


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


rational_quadratic.start = rational_quadratic_start
ROW = kernels.Kernel(rational_quadratic, rational_quadratic_ulps, rational_quadratic_names)
rng = default_rng(0)
X = rng.standard_normal((40, 2))
y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(40)
Z = X[:5] + 0.1
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def in_table(monkeypatch):
    monkeypatch.setitem(kernels.KERNELS, "RQ", ROW)


def two_waves(d, ard):
    """ln_theta of a mixture, which has no start."""
    return np.array([[-1.0] * d + [0.5] * d + [-0.7]] * 2)


def start_or_waves(row):
    return getattr(row.function, "start", two_waves)


@each("name", [*kernels.KERNELS, "RQ"])
def test_kernel_names(name, in_table):
    """The row names each entry of ln_theta once, signal last; where inputs are 3 times as long, the
    kernel is the same with lengthscales and periods 3 times as long (those of `periodic` have no
    unit), and frequencies 3 times as low.
    """
    row = kernels.KERNELS[name]
    units = dict(lengthscale=2.0 * (name != "periodic"), period=1.0, frequency=-1.0)
    for d, ard in ((1, True), (2, True), (2, False)):
        names = row.names(d, ard)
        ln_theta = 0.1 + start_or_waves(row)(d, ard)
        assert len(names) == len({*names}) == np.shape(ln_theta)[-1]
        assert names[-1] == "signal"
        longer = math.log(3) * np.array([units.get(label.split()[0], 0.0) for label in names])
        K, _ = row.function(X[:, :d], Z[:, :d], ln_theta)
        assert_close(row.function(3 * X[:, :d], 3 * Z[:, :d], ln_theta + longer)[0], K, 1e-12)


# Numbers of each entry point: o is the kernel and where it starts, k the kernel alone.
ENTRIES = """
[R.predict(R.fit(X, y, method, 5, max_evals=4, **o), X) for method in R.METHODS]
[rounding.strict(R.fit(X, y, way, 5, max_evals=4, **o), X, y).fit.KL for way in ("VFE", "full-GP")]
certificates.held_out(R.fit(X, y, "VFE", 5, max_evals=4, **o), X + 0.1, y).mean_bound
search.multistart_fit(X, y, max_evals=4, **o).bound
R.predict(certificates.prior_from_part(X, y, ard=False, max_evals=4, **o), X)
[J.predict_y(J.fit(X, y, method, 5, epochs=2, **o), X + 0.1) for method in J.METHODS]
J.choose(X, y, X, y, "SVGP", betas=(0.1, 1.0), M=5, epochs=2, **o).validation
L.predict(L.update(L.update(L.prior(Z, theta, **k), X, y, -1.0), X, y, -1.0, X[:6]), X)
[bound for _, bound in L.certified_stream(X, y, Z, theta, -1.0, 1.0, batch=20, **k)]
[a.predict(X) for way in L.METHODS for a in L.stream(X, y, way, Z, theta, -1, 10, 2, 1, 20, **k)]
stream.forecast(stream.step(stream.begin(X, y, ln_theta=theta, pretrain=2, **k), X, y), X)
""".strip().splitlines()


QUICK = {CertifiedGP: dict(evals=3), PredictiveGP: dict(epochs=1, methods="exact")}


def unnamed(X1, X2, ln_theta, by_differences=False):
    """The same without a start."""
    return rational_quadratic(X1, X2, ln_theta, by_differences)


def own_se(X1, X2, ln_theta, by_differences=False):
    """A kernel with SE's parameters, without a start."""
    return R.se_kernel(X1, X2, ln_theta, by_differences)


@each("ard", [True, False])
def test_new_kernel_start(ard):
    """Fits start where the kernel says; without a start SE's parameters are not taken for others,
    and a kernel that has them is trained as SE is.
    """
    start = rational_quadratic_start(2, ard)
    for fit in (R.fit, J.fit):
        steps = dict(max_evals=1) if fit is R.fit else dict(method="exact", epochs=1)
        found = fit(X, y, kernel=rational_quadratic, ard=ard, **steps)
        at = found.optimum.x if fit is R.fit else found.params
        assert np.array_equal(at["ln_theta"], start)
        with refuses("unnamed|entries"):
            fit(X, y, kernel=unnamed, ard=ard, **steps)
    assert_close(J.softplus_start(own_se, 2, ard), J.softplus_start(J.matern52, 2, ard), 0)
    assert_close(R.start_of(own_se, 2, ard), R.se_start(2, ard), 0)


def test_new_kernel_choices(in_table):
    """The program's --kernel knows it, and not the mixture, which has no start."""
    assert parser().parse_args(["follow", "--kernel", "RQ"]).kernel == "RQ"
    assert models.kernel_names() == ["SE", "Matern32", "Matern52", "periodic", "RQ"]


def called(entry, kernel, start, X=X):
    k = dict(kernel=kernel)
    names = dict(k=k, o=dict(k, start_theta=start), theta=start(2, True), X=X)
    return numbers(eval(entry, globals() | names))


@each("entry", ENTRIES)
@each("name", ["mixture", "RQ"])
def test_kernel_entries(name, entry, in_table):
    """Every entry point takes kernels with other parameters than SE's, and gives numbers."""
    row = kernels.KERNELS[name]
    got = called(entry, row.function, start_or_waves(row))
    assert len(got) and np.all(np.isfinite(got))


def with_line(X1, X2, ln_theta, by_differences=False):
    """SE and a linear kernel."""
    K, back = R.se_kernel(X1, X2, ln_theta, by_differences)
    return K + np.exp(ln_theta[-1]) * X1 @ X2.T, back


def amplitude(X1, X2, ln_theta, by_differences=False):
    """SE whose last parameter is ln of the signal's deviation."""
    return R.se_kernel(X1, X2, np.append(ln_theta[:-1], 2 * ln_theta[-1]), by_differences)


@each("entry", ENTRIES)
@each("kernel", [with_line, amplitude])
def test_kernel_signal_refused(kernel, entry, monkeypatch):
    """A kernel whose k(x, x) is not the signal variance is refused with the rule, also where it
    looks right at the start or at the first rows.
    """
    monkeypatch.setitem(kernels.KERNELS, "wrong", ROW._replace(function=kernel))
    for data in (X, 0 * X):
        with refuses(r"k\(x, x\) must be exp\(ln_theta\[-1\]\)"):
            called(entry, kernel, lambda d, ard: np.zeros(d + 1 if ard else 2), data)


def test_new_kernel_row(in_table, monkeypatch):
    """With a row its start is taken from it, of one lengthscale or of two, it is saved and read,
    and a large alpha is SE; without one there is no strict certificate.
    """
    fit = search.multistart_fit(X, y, "VFE", 5, kernel=rational_quadratic, max_evals=20)
    assert len(fit.ln_theta) == 3
    for kind in CertifiedGP, PredictiveGP, StreamGP:
        assert kind(kernel="RQ", **QUICK.get(kind, {})).fit(X, y).text()
    assert len(search.trained_part(X, y, kernel=rational_quadratic)[0].ln_theta) == 4
    arrays = []
    text = json.dumps(models.packed(fit, arrays))
    again = json.loads(text, object_hook=partial(models.unpacked, arrays=arrays))
    assert again.kernel is rational_quadratic
    se, _ = R.se_kernel(X, Z, np.array([0.3, -0.2, 0.1]))
    limit, _ = rational_quadratic(X, Z, np.array([0.3, -0.2, 25.0, 0.1]))
    assert_close(limit, se, 1e-9)
    monkeypatch.delitem(kernels.KERNELS, "RQ")
    for entry in ENTRIES[1], ENTRIES[2], ENTRIES[4], ENTRIES[-1]:
        with refuses("rational_quadratic is not enclosed"):
            called(entry, rational_quadratic, rational_quadratic_start)
