"""How the authors of R and J trained, where it differs from this project's way.

R's code and GPyTorch, which J's experiments used, move softplus^-1 of lengthscales and variances,
not their ln. R = Reeb et al. 2018, code at github.com/boschresearch/PAC_GP; J = Jankowiak et al.
2020. `R.` is pacgp_ref.py, `J.` predictive.py; run is a figures.Run.
"""
import math

import numpy as np

import pacgp_ref as R
import predictive as J
from beyond.blocks import blocks

from figures_of.shared import train

GRID = (12.0, 1200)     # of ln l^2: twice the paper's, since the authors' code rounds ln l


def scales_of(raw, least_noise=1e-4):
    """Returns this project's parameters p for the authors' raw ones, and the derivatives of p.

        raw           a dict like predictive.Fit's params, but with raw values under ln_theta and
                      ln_noise. The softplus of a raw value is a lengthscale (not its square), the
                      signal variance, or the noise variance minus least_noise
        least_noise   the least noise variance; the default is GPyTorch's

    In p, ln_theta and ln_noise are logarithms as elsewhere; all other entries are those of raw. The
    derivatives are a dict of ln_theta and ln_noise: of each logarithm w.r.t. its raw value.
    """
    slopes, logs = {}, {}
    for name, least in (("ln_theta", 0.0), ("ln_noise", least_noise)):
        softplus = np.logaddexp(0, raw[name])
        scale = softplus + least
        powers = np.append(np.full(scale.size - 1, 2.0), 1.0).reshape(scale.shape)  # l^2, sigma^2
        logs[name] = powers * np.log(scale)
        slopes[name] = powers * np.exp(raw[name] - softplus) / scale
    return raw | logs, slopes


def whitened(p, kernel):
    """Returns p with m' in the place of m, and back: m' = L_mean^-1 m, L_mean as in J App. E.

        p        predictive.Fit's params of PPGPR-MFD, but m (M',) are the values of the mean at
                 Z_mean, as in J (24), where Fit has m'
        kernel   as in predictive.Fit
        back     of gradients w.r.t. the params returned, a dict, it makes those w.r.t. p:
                 d_m = L_mean^-T d_m', and what Z_mean and ln_theta change in m' adds to theirs
    """
    Linv, Linv_back = R.inverse_cholesky(p["Z_mean"], p["ln_theta"], kernel)
    m = Linv @ p["m"]

    def back(grads):
        d_ln_theta, d_Z_mean = Linv_back(np.outer(grads["m"], m))
        return grads | dict(m=Linv.T @ grads["m"], ln_theta=grads["ln_theta"] + d_ln_theta,
                            Z_mean=grads["Z_mean"] + d_Z_mean)
    return p | dict(m=m), back


def library_kernel(X1, X2, ln_theta, by_differences=False):
    """matern52 as in GPyTorch of 2020: K in float32, and k(Z, Z), of one array Z, + 1e-3 I.

    Arguments and back as pacgp_ref.se_kernel. From these kernel matrices on GPyTorch, too, computes
    Cholesky factors and solves in float64.
    """
    K, back = J.matern52(X1, X2, ln_theta, by_differences)
    K = K.astype(np.float32).astype(float)
    return K + 1e-3 * np.eye(len(K)) if X1 is X2 else K, back


def authors_start(X, M):
    """Returns the inducing inputs (M, d) that R's authors' code starts from, for inputs X (N, d).

    They are the centres that SciPy's kmeans2, as it was in 2018, would find. It starts from M draws
    of a normal law with the mean and covariance of X, and takes ten steps of k-means. A centre that
    is nearest to no row stays where it is. The seed, the first entry of X, is that of their code.
    """
    rng = np.random.RandomState(int(abs(X[0, 0])))
    Z = rng.randn(M, X.shape[1]) @ np.linalg.cholesky(np.atleast_2d(np.cov(X.T))).T + X.mean(0)
    for _ in range(10):
        nearest = np.argmin(np.sum(Z**2, 1) - 2 * X @ Z.T, 1)
        count = np.bincount(nearest, minlength=M)[:, None]
        sums = np.zeros_like(Z)
        np.add.at(sums, nearest, X)
        Z = np.where(count, sums / np.maximum(count, 1), Z)
    return Z


def authors_fit(run, label, X, y, M, method, ard, max_evals, memory, ftol, **model):
    """Trains a sparse GP as R's authors' code does, and certifies it: returns its Fit.

        label                     the text that a line of progress begins with
        X, y                      (N, d), (N,): the training data
        M, method, ard            as in pacgp_ref.fit. Whatever the method, Q is (11) with alpha = 1
        max_evals, memory, ftol   of L-BFGS, see pacgp_ref.lbfgs
        model                     eps, and if they are not fit's defaults delta and loss
    """
    T = X.shape[1] + 1 if ard else 2
    one = math.log(math.e - 1)                           # its softplus is 1
    raw = {"ln_theta": np.full(T, one), "ln_noise": np.array(one), "Z": authors_start(X, M)}

    def objective(raw):
        p, slopes = scales_of(raw, 1e-6)
        value, grads = R.training_objective(p, X, y, method, sparse=blocks(run.over),
                                            penalty=R.ln_grid_size(T, GRID), **model)
        return value, grads | {name: grads[name] * slopes[name] for name in slopes}

    optimum = R.minimum(objective, raw, {}, max_evals=max_evals, memory=memory, ftol=ftol,
                        callback=run.progress(f"{label}: evaluation"))
    p, _ = scales_of(optimum.x, 1e-6)
    fit = train(run, label, X, y, "kl-PAC-SGP", M, start=p, max_evals=1, grid=GRID, ard=ard,
                **model)
    return fit._replace(optimum=optimum)
