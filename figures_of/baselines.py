"""Online GPs that are not in online.py, to compare O-PACGP of L (Liu et al. 2022) with.

    WISKI           f interpolated from a grid, here in one dimension; Stanton et al. 2021, L
                    Table 1, Sec. 5.1
    OVC             each new input becomes an inducing input; Maddox et al. 2021, L Sec. 2.1
    exact           the exact GP of L (3), (4), trained anew on all data so far

`stream` yields Snapshots, as online.stream does. A Snapshot has the parameters p, the state (what
is kept of the data), and a function predict(X_new) -> mean, var of f. Symbols are those of
online.py. The vector w(x) has the weights by which f(x) is interpolated from the values of f on a
grid. Arguments of several functions:

    X, y            (N, d), (N,): the stream, in its order
    Z               (M, d), the inducing inputs at the start
    p               dict of the initial ln_theta (T,) and ln_noise (ln of the noise variance)
    schedule        list of (slice of rows, steps of Adam), one per batch
    kernel          a function as se_kernel of pacgp_ref.py
"""
from functools import partial
from typing import NamedTuple

import numpy as np

from pacgp_ref import (VAR_FLOOR, check_data, cholesky, full_gp_nll, full_predict,
                       gaussian_posterior, in_doubles, minimum, row_dots, se_kernel,
                       signal_variance)
from online import (BOX, Snapshot, _inducing_kernel, check_logarithm, check_parameters,
                    descend, free_energy, predict, prior, schedule_of, update)
from beyond.stream import extended


# --- WISKI in one dimension ----------------------------------------------------------------------

class GridSums(NamedTuple):
    """The grid, and the sums that WISKI keeps in place of the data.

    WW, Wy and yy are sums over the data points (x, y) of w w^T, w y and y^2. Here w has the weights
    by which f(x) is interpolated from the grid. n is the number of data points.
    """
    grid: np.ndarray           # (g,) equally spaced
    WW: np.ndarray             # (g, g)
    Wy: np.ndarray             # (g,)
    yy: float
    n: int


@in_doubles
def interpolation_weights(x, grid):
    """W (n, g): weights that interpolate from a grid to x, by cubic convolution (Keys 1981).

    x: (n,); grid: (g,), equally spaced. A row has at most four weights that are not 0. They add up
    to 1 if x is between the second grid point and the last but one.
    """
    t = np.abs((x[:, None] - grid) / (grid[1] - grid[0]))
    first = 1 - 2.5 * t**2 + 1.5 * t**3
    second = 2 - 4 * t + 2.5 * t**2 - 0.5 * t**3
    return np.where(t <= 1, first, np.where(t < 2, second, 0.0))


@in_doubles
def grid_add(sums, x, y):
    """Returns new GridSums: `sums`, the GridSums so far, with the data x, y, both (n,), added.

    Points beyond the ends of the grid are left out: the interpolation weights fall to 0 there, so
    the noise would have to explain y.
    """
    inside = (x >= sums.grid[0]) & (x <= sums.grid[-1])
    x, y = x[inside], y[inside]
    W = interpolation_weights(x, sums.grid)
    return GridSums(sums.grid, sums.WW + W.T @ W, sums.Wy + W.T @ y, sums.yy + y @ y,
                    sums.n + len(y))


@in_doubles
def grid_nll(p, sums, kernel=se_kernel):
    """WISKI's objective -ln p(y | theta), and back; L Table 1. O(g^3) operations for any n.

    In the model f(x) = w^T u, u are the values of f on the grid, and w interpolates from them. A
    priori u = L alpha, where L L^T = k(grid, grid) + jitter and alpha ~ N(0, I). The posterior
    alpha ~ N(m, S) is exact from the sums alone, by gaussian_posterior of pacgp_ref.py: the data
    add A = L^T WW L/sigma_y^2 to the precision, and b = L^T Wy/sigma_y^2 to precision times mean.
        p      dict of ln_theta and ln_noise (ln sigma_y^2)
        sums   the GridSums of the data

    back(d_value), the VJP, returns a dict of the derivatives w.r.t. ln_theta and ln_noise.
    d_ln_theta is computed from d_K_uu, where K_uu = k(grid, grid). For d_value = 1, and with
    B = WW/sigma_y^2, t = Wy/sigma_y^2 - B L m:
        d_K_uu = (B - B L S L^T B - t t^T)/2,
        d_ln_noise = (n - yy/sigma_y^2 - tr(S A) - m^T A m)/2 + b^T m
    """
    grid = sums.grid[:, None]
    sigma2 = np.exp(p["ln_noise"])
    K_uu, K_back = _inducing_kernel(grid, grid, p["ln_theta"], kernel)
    L = cholesky(K_uu, "k(grid, grid)")
    A = L.T @ sums.WW @ L / sigma2
    b = L.T @ sums.Wy / sigma2
    (m, S, ln_det_S, _), _ = gaussian_posterior(A, b)
    value = (sums.n * np.log(2 * np.pi * sigma2) + sums.yy / sigma2 - m @ b - ln_det_S) / 2

    def back(d_value):
        BL = sums.WW @ L / sigma2
        t = sums.Wy / sigma2 - BL @ m
        d_K_uu = d_value / 2 * (sums.WW / sigma2 - BL @ S @ BL.T - np.outer(t, t))
        d_ln_theta, *_ = K_back(d_K_uu, of_X1=False)
        d_ln_noise = (sums.n - sums.yy / sigma2 - np.sum(S * A) - m @ A @ m) / 2 + b @ m
        return dict(ln_theta=d_ln_theta, ln_noise=d_value * d_ln_noise)
    return value, back


@in_doubles
def grid_predict(p, sums, X_new, kernel=se_kernel):
    """WISKI's mean, var (n,) of f at X_new (n, 1); p, sums, kernel as in `grid_nll`.

    Beyond the ends of the grid the interpolation weights w fall to 0 within two steps of the grid,
    and with them the mean. There f gets an independent part of variance
    k(x, x) - w^T k(grid, grid) w, so that mean and variance become the prior's.
    """
    grid = sums.grid[:, None]
    sigma2 = np.exp(p["ln_noise"])
    K_uu, _ = _inducing_kernel(grid, grid, p["ln_theta"], kernel)
    L = cholesky(K_uu, "k(grid, grid)")
    (m, S, _, _), _ = gaussian_posterior(L.T @ sums.WW @ L / sigma2, L.T @ sums.Wy / sigma2)
    x = X_new[:, 0]
    V = interpolation_weights(x, sums.grid) @ L
    k = signal_variance(p["ln_theta"])
    outside = (x < sums.grid[0]) | (x > sums.grid[-1])
    var = row_dots(V @ S, V) + outside * np.maximum(k - row_dots(V, V), 0.0)
    return V @ m, np.maximum(var, VAR_FLOOR * k)


def grid_stream(X, y, Z, p, schedule, kernel=se_kernel):
    """Yields WISKI's Snapshots, one per batch.

    The grid has as many points as Z. At both ends it reaches one step of the grid beyond the range
    of Z. ValueError unless X is (N, 1) and Z has at least 4 points.
    """
    g = len(Z)
    if X.shape[1] != 1 or g < 4:
        raise ValueError("WISKI here is for one input and at least 4 points of Z: "
                         f"got shapes {X.shape} and {Z.shape}")
    h = (Z.max() - Z.min()) / (g - 3)
    grid = np.linspace(Z.min() - h, Z.max() + h, g)
    sums = GridSums(grid, np.zeros((g, g)), np.zeros(g), 0.0, 0)
    state = None
    for rows, steps in schedule:
        sums = grid_add(sums, X[rows, 0], y[rows])
        p, state = descend(partial(grid_nll, sums=sums, kernel=kernel), p, state, steps)
        forecast = partial(grid_predict, p, sums, kernel=kernel)
        yield Snapshot(dict(p, Z=grid[:, None]), sums, forecast)


# --- OVC, and the exact GP: L (3), (4) -----------------------------------------------------------

def growing_stream(X, y, Z, p, schedule, kernel=se_kernel):
    """Yields OVC's Snapshots, one per batch: each new input becomes an inducing input.

    The first batch trains p and Z to minimise the free energy, L (8). Later batches leave ln_theta
    and ln_noise as they are.
    """
    p = dict(p, Z=Z)
    posterior = prior(Z, p["ln_theta"], kernel)
    for rows, steps in schedule:
        if rows.start == 0:
            objective = partial(free_energy, old=posterior, X=X[rows], y=y[rows])
            p, _ = descend(objective, p, None, steps)
        else:
            posterior = extended(posterior, X[rows], share=0)
            p = dict(p, Z=posterior.Z)
        posterior = update(posterior, X[rows], y[rows], p["ln_noise"], p["Z"], p["ln_theta"])
        yield Snapshot(p, posterior, partial(predict, posterior))


def exact_stream(X, y, Z, p, schedule, kernel=se_kernel):
    """Yields Snapshots of the exact GP, trained anew at each batch on all data points so far.

    Each training takes 50 evaluations at most. Z is not used, and of the schedule only the rows,
    not the steps of Adam.
    """
    for rows, _ in schedule:
        data = X[:rows.stop], y[:rows.stop]

        def objective(p):
            value, back = full_gp_nll(*data, **p, kernel=kernel)                          # L (4)
            return value, back(1.0)
        best = minimum(objective, p, BOX, max_evals=50).x
        forecast = partial(full_predict, *data, **best, kernel=kernel)                    # L (3)
        yield Snapshot(best, data, forecast)


METHODS = {"WISKI": grid_stream, "OVC": growing_stream, "exact": exact_stream}


def stream(X, y, method, Z, ln_theta=None, ln_noise=0.0, n0=10, pretrain=400, steps=1, batch=1,
           kernel=se_kernel):
    """Yields a Snapshot after the first n0 data points and after each batch.

        method     "WISKI", "OVC" or "exact"
        Z          (M, d): the inducing inputs that OVC starts from. For WISKI, their range and
                   number set the grid. The exact GP does not use Z
        ln_theta   (T,): initial value; None: zeros
    Other arguments are as in online.stream. ValueError for bad input.
    """
    X, y = check_data(X, y)
    d = X.shape[1]
    ln_theta = np.zeros(d + 1) if ln_theta is None else ln_theta
    Z, ln_theta = check_parameters(Z, ln_theta, d, kernel)
    p = dict(ln_theta=ln_theta, ln_noise=check_logarithm("ln_noise", ln_noise, 0))
    schedule = schedule_of(len(y), n0, pretrain, steps, batch)
    return METHODS[method](X, y, Z, p, schedule, kernel=kernel)
