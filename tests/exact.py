"""An oracle in 60-digit arithmetic: what the certificate of a trained fit, or of a stream, truly
is. None may report less.

Nothing here comes from the modules' formulas. What is stored defines Q: for a fit (Z, Linv,
ln_theta, c, root) and ln_noise, for a stream the States before and after each batch. The float64
numbers are taken as the exact numbers they are; every kernel value, mean, variance, loss, KL and
kl^-1 is then computed in decimal.Decimal. Linv defines the whitening: the inducing variables u are
f(Z) plus independent noise of covariance (Linv^T Linv)^-1 - K_MM, which must be positive definite.
"""

from decimal import Decimal

import numpy as np

import pacgp_ref as R
import predictive as J
from tests.dense import decimal_kernel, expected_ln_normal
from tests.oracles import (
    decimal_cholesky, decimal_solve, decimals, DEFINITIONS, exact_kl_inv, exact_norm_cdf,
    JITTER, OF_TARGET, PI)
from tests.problems import kind_of

OTHERS = (J.matern32, J.matern52, J.periodic)  # the kernels of fits beside SE


def ln_det(G):
    """ln |det| of a triangle."""
    return sum(abs(g).ln() for g in np.diag(G))


def inverse(G):
    """That of a lower triangle."""
    return decimal_solve(G, decimals(np.eye(len(G))))


def kernel(X1, X2, ln_theta, function=R.se_kernel):
    """A kernel of arrays, and its signal variance; one lengthscale may be that of all columns."""
    K = decimal_kernel(X1, X2, ln_theta, kind_of(function))
    return K, Decimal(float(ln_theta[-1])).exp()


def gauss(z):
    """Phi(z), phi(z); beyond 20 deviations those of 20, which are 0 or 1 to 1e-88."""
    z = max(min(z, Decimal(20)), Decimal(-20))
    return exact_norm_cdf(z), (-z * z / 2).exp() / (2 * PI).sqrt()


def expected_loss(loss, y, mean, var, eps):
    """E loss(v, y), v ~ N(mean, var), of Decimals; R (18)-(21). v - y = u + s z; within the
    goal c for z in (a, b).
    """
    u = mean - y
    s = var.sqrt()
    c = eps * abs(y) if loss in OF_TARGET else eps
    if c == 0:
        return Decimal(1)
    if loss == "exp":
        return 1 - (-u * u / (2 * var + c * c)).exp() / (1 + 2 * var / (c * c)).sqrt()
    a = (-c - u) / s
    b = (c - u) / s
    Phi_a, phi_a = gauss(a)
    Phi_b, phi_b = gauss(b)
    Phi_0, phi_0 = gauss(-u / s)
    P = Phi_b - Phi_a
    inside = 0
    if loss == "square":  # E (u + s z)^2 over (a, b)
        inside = (u * u * P + 2 * u * s * (phi_a - phi_b) + var * (P + a * phi_a - b * phi_b)) / (
            c * c)
    if loss == "relative":  # E (u + s z) over (-u/s, b), less that over (a, -u/s)
        inside = (u * (Phi_b + Phi_a - 2 * Phi_0) + s * (2 * phi_0 - phi_a - phi_b)) / c
    return inside + 1 - P


def total_loss(loss, y, mean, var, eps):
    """The sum of the rows' expected losses."""
    return sum(
        expected_loss(loss, *row, Decimal(float(eps))) for row in zip(decimals(y), mean, var))


def loss_of_mean(loss, y, mean, eps):
    """The sum of the rows' losses of the mean itself, a Decimal: R (18)-(21), misses counted.
    """
    goal = Decimal(float(eps)) * (abs(decimals(y)) if loss in OF_TARGET else 1)
    losses = DEFINITIONS[loss][0](decimals(mean) - decimals(y), goal)
    return sum(decimals(losses), Decimal(0))


def marginals(X, Z, Linv, ln_theta, mu, root, function=R.se_kernel):
    """Mean and variance at rows X under q(Linv u) = N(mu, root^T root), root without rows for 0;
    ArithmeticError unless u can be f(Z) and noise.
    """
    mu = decimals(mu)
    root = decimals(root)
    G = inverse(decimals(Linv))
    K, k = kernel(X, Z, ln_theta, function)
    decimal_cholesky(G @ G.T - kernel(Z, Z, ln_theta, function)[0])
    V = K @ decimals(Linv).T
    return V @ mu, k - (V * V).sum(1) + ((V @ root.T) ** 2).sum(1)


def kl_to_prior(mu, root):
    """KL(N(mu, root^T root)||N(0, I))."""
    return ((root * root).sum() + mu @ mu - len(mu)) / 2 - ln_det(root)


def full_gp(posterior, ln_noise, function=R.se_kernel, n1=0, temper=0.0):
    """mean, var after n1 rows and KL, to the GP of these rows alone, of the stored full GP, whose
    other rows have the noise e^temper s.

    P has mean k(., X1) a1, a1 = L1^-T c1, and precision K^-1 + I_11/s; Q mean K a and covariance C
    - C (C + s' I)^-1 C at the other rows, C that of P. With d = a - a1 the means differ by K d, and
    so the KL by (d K d + |(K d)_1|^2/s)/2.
    """
    X, Linv, ln_theta, c, *_ = posterior
    K, _ = kernel(X, X, ln_theta, function)
    s = Decimal(float(ln_noise)).exp()
    s2 = Decimal(float(ln_noise + temper)).exp()
    Linv = decimals(Linv)
    c = decimals(c)
    I = decimals(np.eye(len(X)))
    V = decimal_solve(decimal_cholesky(K[:n1, :n1] + s * I[:n1, :n1]), K[:n1, n1:])
    C = K[n1:, n1:] - V.T @ V
    G = decimal_cholesky(C + s2 * I[n1:, n1:])
    a = Linv.T @ c
    var = np.diag(C) - (decimal_solve(G, C) ** 2).sum(0)
    d = np.concatenate([a[:n1] - Linv[:n1, :n1].T @ c[:n1], a[n1:]])
    of_mean = d @ K @ d + ((K @ d)[:n1] ** 2).sum() / s
    KL = ln_det(G) + (-len(C) * s2.ln() - var.sum() / s2 + of_mean) / 2
    return (K @ a)[n1:], var, KL


def exact_fit(fit, X, y):
    """The true bound, risk and KL of a Fit, Decimals; X, y as given to fit; not for exact = True.
    """
    _, _, ln_theta, c, root, _ = fit.posterior
    if not len(root):
        mean, var, KL = full_gp(fit.posterior, fit.ln_noise, fit.kernel)
    else:
        mean, var = marginals(X, *fit.posterior)
        KL = kl_to_prior(decimals(c), decimals(root))
    risk = total_loss(fit.loss, y, mean, var, fit.eps) / len(y)
    penalty = len(ln_theta) * Decimal(1201).ln()
    ln_confidence = (2 * Decimal(len(y)).sqrt() / Decimal(fit.delta)).ln()
    paid = KL + penalty + ln_confidence
    return exact_kl_inv(risk, paid / len(y)), risk, KL


def moments(state):
    """m, root of q(Linv u) = N(m, root^T root), m = root^T root b."""
    root = decimals(state.root)
    return root.T @ (root @ decimals(state.b)), root


def process_kl(new, old):
    """KL(Q_new||Q_old) of two States with one kernel, a Decimal: KL(q_new(b)||N(0,I)) - E_q_new(a)
    ln(q_old(a)/N(a|0,I)).

    Whitened; prior covariance of a and b: U = Linv_a (k(Z_a, Z_b) + jitter) Linv_b^T, where a point
    in both has the jitter in common; (I 0) where those of a come first in b and are the same
    variables. Under q_new, a has mean U mu_b and covariance I - U U^T + U S_b U^T.
    """
    mu_a, root_a = moments(old)
    mu_b, root_b = moments(new)
    M = len(old.Z)
    U = decimals(np.eye(M, len(new.Z)))
    if not (np.array_equal(new.Z[:M], old.Z) and np.array_equal(new.Linv[:M, :M], old.Linv)):
        K, k = kernel(old.Z, new.Z, new.ln_theta, new.kernel)
        same = np.all(old.Z[:, None] == new.Z, 2)
        U = decimals(old.Linv) @ (K + Decimal(JITTER) * k * same) @ decimals(new.Linv).T
    I = decimals(np.eye(M))
    half = root_b @ U.T
    under_new = U @ mu_b, I - U @ U.T + half.T @ half
    of_old = expected_ln_normal(*under_new, mu_a, root_a.T @ root_a)
    return kl_to_prior(mu_b, root_b) - of_old + expected_ln_normal(*under_new, 0 * mu_a, I)


def exact_sums(records):
    """The sums of a Ledger over records (old, new, Q, X, y, eps, loss) in scaled units."""
    sums = np.full(5, Decimal(0))
    for old, _, Q, X, y, eps, loss in records:
        (mean, var), after = (
            marginals(X, s.Z, s.Linv, s.ln_theta, *moments(s), s.kernel) for s in (old, Q))
        before, after = (total_loss(loss, y, *at, eps) for at in ((mean, var), after))
        KL = 0 if Q is old else process_kl(Q, old)
        sums = sums + [len(y), before, loss_of_mean(loss, y, mean, eps), after, KL]
    return sums


def distance(got, exact):
    """(got - exact)/exact of a float and a Decimal."""
    return (Decimal(float(got)) - exact) / exact
