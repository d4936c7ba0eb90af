"""docs/reading-L.md: the printed and the computed form of each equation agree in a random case.

The printed forms are dense NumPy. Matrices are well-conditioned (condition number below 1e4), so
that 1e-10 leaves room for rounding and for nothing else.
"""

import math
import pathlib
import re

import numpy as np
import pytest
from tests.dense import dense_kernel, expected_ln_normal, gaussian_kl
from tests.oracles import assert_close, same_bytes

import online as L

DOCS = pathlib.Path(__file__).resolve().parents[1] / "docs"
PAGE = (DOCS / "reading-L.md").read_text()
TOL = 1e-10
LN_THETA = np.array([-0.2, 0.3])
LN_NOISE = -1.0
SIGMA2 = math.exp(LN_NOISE)


def rows(seed, n):
    """X (n, 1), y (n,) of a small batch."""
    rng = np.random.default_rng(seed)
    return rng.uniform(0, 5, (n, 1)), rng.standard_normal(n)


def prior_covariance(Z):
    """k(Z, Z) with the jitter that is part of the model."""
    return dense_kernel(Z, Z, LN_THETA) + 1e-8 * math.exp(LN_THETA[-1]) * np.eye(len(Z))


def of_inducing(posterior):
    """Mean and covariance of f(Z) by a Posterior: (5), (6) at the inducing inputs."""
    chol = np.linalg.cholesky(prior_covariance(posterior.Z))
    S = np.linalg.inv(np.eye(len(posterior.c)) + posterior.A)
    return chol @ S @ posterior.c, chol @ S @ chol.T


@pytest.fixture
def old():
    """The Posterior after a first batch, with its own inducing inputs."""
    Z = np.array([[0.5], [2.0], [3.5], [4.8]])
    return L.update(L.prior(Z, LN_THETA), *rows(1, 6), LN_NOISE)


def test_L_eq03_eq04_reading():
    """Posterior and ln p(y) as printed, with an inverse; computed: by a Cholesky factor."""
    X, y = rows(2, 7)
    X_new, _ = rows(3, 3)
    A = dense_kernel(X, X, LN_THETA) + SIGMA2 * np.eye(7)
    k_star = dense_kernel(X_new, X, LN_THETA)
    mean, var = L.exact_predict(X, y, X_new, LN_THETA, LN_NOISE)
    assert_close(mean, k_star @ np.linalg.inv(A) @ y, TOL)
    printed = math.exp(LN_THETA[-1]) - np.diag(k_star @ np.linalg.inv(A) @ k_star.T)
    assert_close(var, printed, TOL)
    log_p = -y @ np.linalg.inv(A) @ y / 2 - np.linalg.slogdet(A)[1] / 2
    log_p = log_p - 7 / 2 * math.log(2 * math.pi)
    assert_close(L.exact_nll(dict(ln_theta=LN_THETA, ln_noise=LN_NOISE), X, y)[0], -log_p, TOL)


def test_L_eq07_reading(old):
    """q(b) as printed: p(b), times q_old(a)/p(a) and the likelihood at their means given b."""
    X, y = rows(4, 5)
    Z = np.array([[0.2], [1.5], [3.0], [4.4]])
    K_b = prior_covariance(Z)
    inverse_b = np.linalg.inv(K_b)
    to_a = dense_kernel(old.Z, Z, LN_THETA) @ inverse_b
    to_X = dense_kernel(X, Z, LN_THETA) @ inverse_b
    mean_a, cov_a = of_inducing(old)
    gained = np.linalg.inv(cov_a) - np.linalg.inv(prior_covariance(old.Z))
    precision = inverse_b + to_a.T @ gained @ to_a + to_X.T @ to_X / SIGMA2
    vector = to_a.T @ np.linalg.inv(cov_a) @ mean_a + to_X.T @ y / SIGMA2
    new = L.update(old, X, y, LN_NOISE, Z)
    mean, cov = of_inducing(new)
    assert_close(mean, np.linalg.solve(precision, vector), TOL)
    assert_close(cov, np.linalg.inv(precision), TOL)


def test_L_eq13_reading(old):
    """Where Z and kernel stay, the KL of the processes is that of f(Z), two normal laws."""
    new = L.update(old, *rows(5, 5), LN_NOISE)
    assert_close(L.process_kl(new, old), gaussian_kl(*of_inducing(new), *of_inducing(old)), TOL)


def test_L_eq08_reading(old):
    """(8) without its constant, as printed: the three expectations under q_new, other Z."""
    X, y = rows(6, 5)
    Z = np.array([[0.2], [1.5], [3.0], [4.4]])
    new = L.update(old, X, y, LN_NOISE, Z)
    mean_b, cov_b = of_inducing(new)
    K_b = prior_covariance(Z)
    to_a = dense_kernel(old.Z, Z, LN_THETA) @ np.linalg.inv(K_b)
    K_a = prior_covariance(old.Z)
    mean_a = to_a @ mean_b
    cov_a = K_a + to_a @ (cov_b - K_b) @ to_a.T
    zero_a = np.zeros(4)
    zero_b = np.zeros(4)
    ln_old = expected_ln_normal(mean_a, cov_a, *of_inducing(old)) - expected_ln_normal(
        mean_a, cov_a, zero_a, K_a)
    ln_new = expected_ln_normal(mean_b, cov_b, mean_b, cov_b) - expected_ln_normal(
        mean_b, cov_b, zero_b, K_b)
    mean, var = L.predict(new, X)
    likelihood = np.sum(-np.log(2 * np.pi * SIGMA2) / 2 - ((y - mean) ** 2 + var) / (2 * SIGMA2))
    p = dict(ln_theta=LN_THETA, ln_noise=LN_NOISE, Z=Z)
    assert_close(L.free_energy(p, old, X, y)[0], -likelihood + ln_new - ln_old, TOL)


def test_L_eq12_reading(old):
    """J of its parts: expected losses, KL and the printed constants."""
    X, y = rows(7, 3)
    new = L.update(old, X, y, LN_NOISE)
    mean, var = L.predict(new, X)
    eps, lam, delta = 0.4, 0.7, 0.1
    spread = 1 + 2 * var / eps**2
    losses = 1 - np.exp(-((y - mean) ** 2) / (2 * var + eps**2)) / np.sqrt(spread)  # (16)
    KL = gaussian_kl(*of_inducing(new), *of_inducing(old))
    printed = np.sum(losses) + KL / lam + lam * 3 / 2 + math.log(1 / delta) / lam
    p = dict(ln_theta=LN_THETA, ln_noise=LN_NOISE, Z=old.Z)
    assert_close(L.online_objective(p, old, X, y, lam, eps, "exp", delta)[0], printed, TOL)


def test_L_eq09_eq10_reading():
    """The right-hand side of (10) along a stream, with an eighth, summed by hand."""
    X, y = rows(8, 6)
    Z = np.array([[0.5], [2.0], [3.5]])
    q = L.prior(Z, LN_THETA)
    loss_sum = KL = 0.0
    bounds = [bound for _, bound in L.certified_stream(X, y, Z, LN_THETA, LN_NOISE, 0.5, 0.4)]
    for i in range(6):
        new = L.update(q, X[i : i + 1], y[i : i + 1], LN_NOISE)
        mean, var = L.predict(new, X[i : i + 1])
        loss_sum += L.LOSSES["exp"](y[i : i + 1], mean, var, 0.4)[0].sum()
        KL += gaussian_kl(*of_inducing(new), *of_inducing(q))
        q = new
        total = loss_sum + KL / 0.5 + 0.5 * (i + 1) / 8 + math.log(1 / 0.05) / 0.5
        assert_close(bounds[i], total / (i + 1), TOL)


def test_L_eq10_reading_example():
    """Posterior and bound of the page's three batches are certified_stream's, to the last bit."""
    names = {}
    exec(re.search(r"```python\n(import .*?)```", PAGE, re.S)[1], names)
    given = [names[name] for name in ("X", "y", "Z", "ln_theta", "ln_noise", "lam", "eps")]
    *_, (posterior, bound) = L.certified_stream(*given, batch=50)
    assert same_bytes(posterior, names["Q"])
    assert bound == names["ours"]


def test_L_reading_every_equation_is_shown():
    """Each of the 24 has a display or a cell beside the print; those with a star are those of which
    misprints.md says more than a remark, and (8), whose constant is left out.
    """
    body = PAGE.split("## The exact GP")[1]
    tagged = re.sub(r"[\d*]+", r"(\g<0>)", " ".join(re.findall(r"\\tag\{([^}]*)\}", body)))
    shown = tagged + " ".join(re.findall(r"^\|.*", body, re.M))
    assert {int(n) for n in re.findall(r"\((\d+)\*?\)", shown)} == {*range(1, 25)}
    starred = {int(n) for n in re.findall(r"\((\d+)\*\)", shown)}
    misprints = (DOCS / "misprints.md").read_text()
    rows = re.findall(r"^\| \d+ \| L (\(.*?) \| (?:wrong|omission|loose) ", misprints, re.M)
    said = {int(n) for n in re.findall(r"\((\d+)\)", " ".join(rows))}
    assert starred == said | {8, 11}  # (9)-(12): the KL that (11) lacks
