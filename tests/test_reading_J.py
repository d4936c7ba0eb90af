"""docs/reading-J.md: the printed and the computed form of each equation agree in a random case.

The printed forms are dense NumPy, letter by letter. Matrices are well-conditioned (condition number
below 1e4), so that 1e-11 leaves room for rounding and for nothing else.
"""

import inspect
import math
import pathlib
import re

import numpy as np
import pytest
from tests.dense import dense_K_MM, dense_kernel, ln_normal, ln_pdf
from tests.oracles import assert_close, same_bytes

import predictive as J

DOCS = pathlib.Path(__file__).resolve().parents[1] / "docs"
PAGE = (DOCS / "reading-J.md").read_text()
TOL = 1e-11


def test_J_alg1_reading_example():
    """The page's epoch is fit's, to the last bit."""
    names = {}
    exec(re.search(r"```python\n(import .*?)```", PAGE, re.S)[1], names)
    X, y = names["X"], names["y"]
    gp = J.fit(X, y, "PPGPR-Chol", M=8, batch=20, epochs=1)
    assert same_bytes(gp.params, J.unpack(names["x"], names["p"]))
    assert same_bytes(J.predict_y(gp, np.array([[0.0], [1.5]])), (names["mean"], names["var"]))
    shown = [float(value) for value in re.findall(r"rows: (\d\S+)", PAGE)]
    assert abs(gp.history[0] - np.mean(shown)) < 1e-6


class Problem:
    """A small problem with q(u') = N(m, S), and the printed quantities of J Sec. 2."""

    def __init__(self):
        rng = np.random.default_rng(7)
        N, M = 9, 4
        self.X = rng.uniform(0, 5, (N, 1))
        self.y = rng.standard_normal(N)
        Z = np.linspace(0.5, 4.5, M)[:, None]
        ln_theta = np.array([-0.3, 0.2])
        m = rng.standard_normal(M)
        L_S = np.tril(rng.standard_normal((M, M))) / 3 + np.eye(M)
        self.p = dict(ln_theta=ln_theta, ln_noise=np.array(-1.1), Z=Z, m=m, L_S=L_S)
        self.sigma2 = math.exp(-1.1)
        self.K_NM = dense_kernel(self.X, Z, ln_theta, "Matern52")
        self.K_MM = dense_K_MM(Z, ln_theta, "Matern52")
        self.L = np.linalg.cholesky(self.K_MM)
        self.m_u = self.L @ m  # q(u) = N(m_u, S_u)
        self.S_u = self.L @ L_S @ L_S.T @ self.L.T
        inverse = np.linalg.inv(self.K_MM)
        self.mean = self.K_NM @ inverse @ self.m_u  # (7)
        self.ktilde = math.exp(0.2) - np.diag(self.K_NM @ inverse @ self.K_NM.T)  # (4)
        self.svar = np.diag(self.K_NM @ inverse @ self.S_u @ inverse @ self.K_NM.T)  # of (8)
        ratio = inverse @ self.S_u
        self.KL = (
            np.trace(ratio) - np.linalg.slogdet(ratio)[1] - M + self.m_u @ inverse @ self.m_u) / 2


@pytest.fixture
def case():
    return Problem()


def test_J_eq04_eq07_eq08_reading(case):
    """ktilde, mean, variance and KL as printed, of u; computed: of u' = L^-1 u."""
    (mu, ktilde, svar, reg), _ = J.marginals(case.p, case.X, mean=J.mean_of(case.p))
    assert_close(mu, case.mean, TOL)
    assert_close(ktilde, case.ktilde, TOL)
    assert_close(svar, case.svar, TOL)
    assert_close(reg, case.KL, TOL)


@pytest.mark.parametrize("method", ["SVGP", "VFITC", "PPGPR-Chol"])
def test_J_eq06_eq15_eq17_eq18_reading(case, method):
    """The three sums as printed; computed: one function of v and w. beta_reg = .3; (17) is the mean
    over rows, with (18)'s beta_reg over N.
    """
    sigma2 = case.sigma2
    ktilde = case.ktilde
    svar = case.svar
    printed = {
        "SVGP": ln_pdf(case.y, case.mean, sigma2) - (ktilde + svar) / (2 * sigma2),
        "VFITC": ln_pdf(case.y, case.mean, ktilde + sigma2) - svar / (ktilde + sigma2) / 2,
        "PPGPR-Chol": ln_pdf(case.y, case.mean, sigma2 + ktilde + svar)}[method]
    N = len(case.y)
    value, _ = J.objective(case.p, case.X, case.y, N, method, 0.3)
    assert_close(-N * value, np.sum(printed) - 0.3 * case.KL, TOL)
    assert_close(-value, np.mean(printed) - 0.3 / N * case.KL, TOL)


def test_J_eq03_reading(case):
    """MAP's sum as printed is SVGP's g with svar = 0."""
    g, *_ = J.data_fit(case.y, case.mean, case.ktilde, 0.0, case.sigma2, 0.0, 0.0)
    printed = np.sum(ln_pdf(case.y, case.mean, case.sigma2))
    printed = printed - np.sum(case.ktilde) / (2 * case.sigma2)
    assert_close(np.sum(g), printed, TOL)


def test_J_eq09_reading(case):
    """The expectation in (9), corrected, by quadrature over f; computed: in closed form."""
    gamma = 1.05
    y = 0.4
    mean = -0.2
    F = 0.7
    sigma2 = case.sigma2
    f = np.linspace(-12, 12, 4001)
    power = np.exp((gamma - 1) * ln_pdf(y, f, sigma2))
    expected = np.sum(power * np.exp(ln_pdf(f, mean, F))) * (f[1] - f[0])
    z = np.linspace(-30, 30, 8001)
    whole = np.sum(np.exp(gamma * ln_pdf(z, 0.0, sigma2))) * (z[1] - z[0])
    printed = gamma / (gamma - 1) * (expected / whole ** ((gamma - 1) / gamma) - 1)
    g, *_ = J.gamma_fit(*(np.array([v]) for v in (y, mean, F, 0.0)), sigma2, gamma)
    assert_close(g[0], printed, 1e-9)  # of 1 - 1 + .., divided by gamma - 1


def test_J_eq13_reading(case):
    """-ln N(y | 0, (13)), N x N, and by the two lemmas."""
    C = case.K_NM @ np.linalg.inv(case.K_MM) @ case.K_NM.T
    C = C + np.diag(case.ktilde + case.sigma2)
    N = len(case.y)
    printed = (np.linalg.slogdet(2 * np.pi * C)[1] + case.y @ np.linalg.inv(C) @ case.y) / 2
    p = {name: case.p[name] for name in ("ln_theta", "ln_noise", "Z")}
    assert_close(N * J.fitc_nll(p, case.X, case.y)[0], printed, TOL)


def test_J_eq11_eq22_reading(case):
    """The predictive mean and variance as printed, at the data, and those of predict_y."""
    mean, var = J.predict_y(J.predictor_at(case.p), case.X)
    assert_close(mean, case.mean, TOL)
    assert_close(var, case.sigma2 + case.ktilde + case.svar, TOL)


def test_J_eq23_eq24_reading(case):
    """MFD's mean as printed, with a kernel matrix of its own, and as computed; the second line of
    (23) less ln|K^mu|/2 and the constant of a KL.
    """
    Z_mean = np.array([[0.2], [2.1], [3.9]])
    m = np.array([0.4, -1.0, 0.3])
    K = dense_K_MM(Z_mean, case.p["ln_theta"], "Matern52")
    k = dense_kernel(case.X, Z_mean, case.p["ln_theta"], "Matern52")
    printed = k @ np.linalg.inv(K) @ (np.linalg.cholesky(K) @ m)
    p = dict(case.p, m=m, Z_mean=Z_mean)
    (mu, _), _ = J.separate_mean(p, case.X, None, J.matern52)
    assert_close(mu, printed, TOL)
    inverse = np.linalg.inv(case.K_MM)
    m_u = np.linalg.cholesky(K) @ m
    eq23 = (
        np.trace(case.S_u @ inverse)
        + m_u @ np.linalg.inv(K) @ m_u
        + np.linalg.slogdet(case.K_MM)[1]
        + np.linalg.slogdet(K)[1]
        - np.linalg.slogdet(case.S_u)[1]
    ) / 2
    reg = J.marginals(p, case.X, mean=J.mean_of(p))[0][3]
    assert_close(reg, eq23 - np.linalg.slogdet(K)[1] / 2 - len(case.K_MM) / 2, TOL)


def best_lengthscales(N):
    """ln l^2 (2,) on a grid where MAP is best at its best m': whitened, and by (3) as printed."""
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, (N, 1))
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 0] * rng.standard_normal(N)
    Z = np.linspace(-2, 2, 8)[:, None]
    grid = np.arange(-60, 160, 5) / 100
    values = []
    for ln_l2 in grid:
        ln_theta = np.array([ln_l2, 0.0])
        K_MM = dense_K_MM(Z, ln_theta, "Matern52")
        K_NM = dense_kernel(X, Z, ln_theta, "Matern52")
        L = np.linalg.cholesky(K_MM)
        V = np.linalg.solve(L, K_NM.T).T
        m = np.linalg.solve(np.eye(8) + V.T @ V / 0.1, V.T @ y / 0.1)
        p = dict(ln_theta=ln_theta, ln_noise=np.log(0.1), Z=Z, m=m)
        whitened = N * J.objective(p, X, y, N, "MAP")[0]
        u = L @ m
        ktilde = 1 - np.sum(K_NM * np.linalg.solve(K_MM, K_NM.T).T, 1)
        ln_p = ln_pdf(y, K_NM @ np.linalg.solve(K_MM, u), 0.1)
        eq03 = np.sum(ln_p) - np.sum(ktilde) / 0.2 + ln_normal(u, np.zeros(8), K_MM)
        values.append((whitened, -eq03))
    return grid[np.argmin(values, 0)]


def test_J_appE_reading_whitening():
    """The page's table: the lengthscale that MAP takes, whitened and as printed.

    (3*) less (3) is ln|K_MM|/2 and a constant, which moves the optimum, and less for more rows.
    """
    rows = [f"N = {N}" for N in (60, 600, 6000)]
    best = np.array([best_lengthscales(N) for N in (60, 600, 6000)])
    print(*rows, best.T, sep="\n")
    head, _, whitened, printed = re.search(r"\| MAP: best.*?\n\n", PAGE, re.S)[0].split(
        "\n")[:4]
    assert [cell.strip() for cell in head.split("|")[2:-1]] == rows
    for line, column in ((whitened, 0), (printed, 1)):
        shown = [float(cell) for cell in line.split("|")[2:-1]]
        assert_close(np.array(shown), best[:, column], 1e-12)
    moved = best[:, 1] - best[:, 0]
    assert np.all(moved > 0)
    assert np.all(np.diff(moved) < 0)


def test_J_appC_reading_settings():
    """Every `name=value` and every constant of the table of settings is that of predictive.py."""
    section = PAGE.split("## The settings of App. C")[1].split("## ")[0]
    defaults = inspect.signature(J.fit).parameters
    shown = re.findall(r"`(\w+)=([^`]+)`", section)
    assert len(shown) == 10
    for name, value in shown:
        assert value == repr(defaults[name].default), name
    chosen = J.fit(np.eye(3), np.arange(3.0), "PPGPR-delta", M=2, epochs=1)
    others = J.fit(np.eye(3), np.arange(3.0), "SVGP", M=2, epochs=1)
    assert (chosen.beta_reg, others.beta_reg) == (0.05, 1)
    sets = {"SVGP": (0.1, 0.3, 0.5, 1), "PPGPR": (0.01, 0.05, 0.2, 1), "gamma": J.GAMMAS}
    for name in ("SVGP", "OD-SVGP", "VFITC"):
        assert J.BETAS[name] == sets["SVGP"]
    for name in (method for method in J.METHODS if method.startswith("PPGPR")):
        assert J.BETAS[name] == sets["PPGPR"]
    for values in sets.values():
        assert "{" + ", ".join(map(str, values)) + "}" in section
    p = J.initial_parameters(np.eye(3), "PPGPR-MF", 2)
    assert np.all(np.exp(p["ln_theta"]) == np.append(np.full(3, math.log(2) ** 2), math.log(2)))
    assert np.all(p["L_S"] == 0.01)
    assert J.JITTERS == (1e-8, 0, 0)


def numbers_of(text):
    """{3, 4, 15, 16} of "(3), (4*) and (15)-(16)"; a star may follow a number."""
    found = {int(n) for n in re.findall(r"\((\d+)\*?\)", text)}
    for first, last in re.findall(r"\((\d+)\)-\((\d+)\)", text):
        found |= {*range(int(first), int(last) + 1)}
    return found


def test_J_reading_every_equation_is_shown():
    """Each of the 34 has a display or a cell beside the print; those with a star are those that
    misprints.md calls wrong, and (3), (23), from which whitening drops a term.
    """
    head, body = PAGE.split("## The five numbers")
    tagged = re.sub(r"[\d*]+", r"(\g<0>)", " ".join(re.findall(r"\\tag\{([^}]*)\}", body)))
    cells = " ".join(re.findall(r"^\|.*", body, re.M))
    assert numbers_of(tagged + cells) >= {*range(1, 35)}
    starred = numbers_of(" ".join(re.findall(r"\(\d+\*\)", tagged + cells)))
    misprints = (DOCS / "misprints.md").read_text()
    wrong = numbers_of(" ".join(re.findall(r"^\| \d+ \| J (\(.*?) \| wrong", misprints, re.M)))
    assert starred == wrong - {18} | {3, 23}  # of (17) and (18) one is wrong
