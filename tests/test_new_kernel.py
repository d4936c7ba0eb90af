"""A kernel that is not there: one function and one row of beyond.kernels.KERNELS, and it trains, is
certified, predicts, follows a stream and is an option of the programs."""

import numpy as np
import pytest

import online as L
import pacgp_ref as R
import predictive as J
from beyond import certificates, kernels, rounding, search, stream
from own_data import certify_table, saving
from tests.oracles import assert_close, central_difference


def rational_quadratic(X1, X2, ln_theta, exact=False):
    """K = sigma_s^2 / (1 + r^2/2): Rasmussen & Williams 2006, Eq. (4.19), alpha = 1.

    dK/dE = K^2/sigma_s^2,  E = -r^2/2.
    """
    E, E_back = J.of_distance(X1, X2, ln_theta, exact)
    K = np.exp(ln_theta[-1]) / (1 - np.minimum(E, 0.0))

    def back(d_K, of_X1=True):
        d_ln_theta, d_X1, d_X2 = E_back(d_K * K**2 * np.exp(-ln_theta[-1]), of_X1)
        d_ln_theta[-1] = np.vdot(d_K, K)
        return d_ln_theta, d_X1, d_X2
    return K, back


ROW = kernels.Kernel(rational_quadratic, R.first_theta, lambda X1, X2, ln_theta: (
    X1.shape[1] + 12 + abs(ln_theta[-1])))
rng = np.random.default_rng(0)
X = rng.standard_normal((40, 2))
y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(40)
THETA = np.array([0.3, -0.2, 0.1])
GIVEN = dict(ln_theta=THETA, ln_noise=-1.0, Z=X[:5] + 0.1)


def bound(**p):
    """The objective B of the sparse GP's marginals, and its way back."""
    (mean, var, KL), gp_back = R.sparse_gp(X, y, **p, kernel=rational_quadratic)
    losses, d_mean, d_var = R.expected_01_loss(y, mean, var, 0.6)
    value, d_loss, d_KL = R.pac_objective(losses, KL)
    return value, lambda d: gp_back(d * d_loss * d_mean, d * d_loss * d_var, d * d_KL)


def svgp(**p):
    return J.objective(p, X, y, 40, "SVGP", kernel=rational_quadratic)


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


@pytest.mark.filterwarnings("ignore:.*stopped after")
def test_new_kernel_row(monkeypatch, tmp_path, capsys):
    """Without a row fits and predicts, without a strict certificate; with one all of the rest."""
    fit = R.fit(X, y, "kl-PAC-SGP", 5, kernel=rational_quadratic, max_evals=20)
    mean, _ = R.predict(fit, X)
    assert np.mean((mean - y) ** 2) < np.var(y)
    with pytest.raises(ValueError, match="rational_quadratic is not enclosed"):
        rounding.strict(fit, X, y)
    monkeypatch.setitem(kernels.KERNELS, "RQ", ROW)
    monkeypatch.setitem(saving.KERNELS, "RQ", rational_quadratic)      # made from it at import
    strict = rounding.strict(fit, X, y)
    assert fit.bound < strict.fit.bound < fit.bound + 1e-4
    part = certificates.prior_from_part(X, y, kernel=rational_quadratic, max_evals=20)
    held = certificates.held_out(fit, X + 0.1, y)
    assert 0 < part.fit.bound < 1 and 0 < held.bound <= 1
    many = search.multistart_fit(X, y, kernel=rational_quadratic, max_evals=20)
    assert many.bound < 1
    learner = stream.step(stream.begin(X[:20], y[:20], pretrain=2, kernel=rational_quadratic),
                          X[20:], y[20:])
    assert 0 < stream.certificates(learner).mean.bound <= 1
    table = tmp_path / "t.csv"
    np.savetxt(table, np.c_[X, y], delimiter=",", header="a,b,y", comments="")
    model = str(tmp_path / "m.npz")
    certify = certify_table.main
    assert certify([str(table), "--kernel", "RQ", "--evals", "5", "--save", model]) == 0
    said = capsys.readouterr().out
    assert "RQ" in said
    assert certify(["--model", model, "--predict", str(table)]) == 0
