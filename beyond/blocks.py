"""The sparse GP of pacgp_ref.py in blocks of rows, for large tables, several cores or machines.

V = K_NM L^-T has a row for each data point. Here only blocks of its rows exist, and `total`
computes a sum over all rows by adding f(block) over blocks. `over` applies f: it is map, or the map
of a pool of threads or processes, or of an engine such as Dask. Other processes get f by pickling,
so f is a top-level function or a partial of one. `blocks(over)` returns a Sparse, a tuple of five
functions, for fit(..., sparse=...). Their results equal those of PLAIN, the default of fit, up to
rounding. They are the same to the last bit for every `over`. Not in the papers. Equation numbers
are R's, see pacgp_ref.py.

Symbols are those of pacgp_ref.py:

    X, y, Z            (N, d), (N,), (M, d): inputs, targets, inducing inputs; a block has n rows
    ln_theta, kernel   (T,), a function as se_kernel
    ln_noise, sigma2   ln of the noise variance sigma_n^2; sigma_n^2
    Linv               (M, M): L^-1, where L L^T = K_MM
    V_i, ktilde_i      (M,), a number: row i of V; k - |V_i|^2, where k = k(x, x)
    alpha, D_i         1 for FITC, 0 for VFE and DTC; alpha ktilde_i + sigma_n^2
    A, b               (M, M), (M,): V^T D^-1 V, V^T D^-1 y
    m, S, root         (M,), (M, M), (M, M): Q(f_M) = N(L m, L S L^T), S = root^T root
    d_x                derivative of the objective w.r.t. x: what `back`, a VJP, returns

`back` needs fewer matrix products here than in PLAIN. With W = S - I the data enter through two
linear maps, each the adjoint of the other,
    `at_rows`   (m, W) -> V_i m  and  V_i W V_i  for each row i,
    `over_rows` (u, w) -> V^T u  and  V^T diag(w) V,
since  sum_i u_i (V_i m) + w_i (V_i W V_i) = m (V^T u) + tr(W V^T diag(w) V).

R (22) and (23) use the first map; there (u, w) is (d_mean, d_var), the derivatives of the objective
w.r.t. what the map returns. R (11) uses the second, at u = y/D and w = 1/D; there (m, W) is
(d_b, d_A), the derivatives of the objective w.r.t. what this map returns. In both cases
    d_V_i = u_i m + 2 w_i W V_i,   gram = d_V^T V = m (V^T u)^T + 2 W V^T diag(w) V.
So gram, which the VJP of L^-1 needs, follows from the sums V^T u and V^T diag(w) V, which are known
by then. The same holds for ktilde_i, since it is k + V_i W V_i at W = -I.
"""
import math
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from typing import Callable, NamedTuple

import numpy as np

from pacgp_ref import (SPARSE_NLL, VAR_FLOOR, Sparse, SparsePosterior, check_shapes,
                       gaussian_posterior, in_doubles, inverse_cholesky, kl_to_prior, row_blocks,
                       row_dots, se_kernel, signal_variance, weighted_gram)

# Bytes of N x M matrices kept from the forward for the backward pass; the others are computed
# again.
KEEP_BYTES = 1.5e8

# After this glibc keeps freed arrays of up to 31 MiB. Else it returns them to the system and gets
# them back page by page: docs/scale.md#one-value-and-gradient has what that costs.
np.empty(31 * 2**17)


# --- sums over blocks of rows --------------------------------------------------------------------

def mapped_again(a):
    """Returns what to pickle for the array `a`: a function that maps its file again, or `a`.

    So the rows of a memory map are not copied. The function is returned only if `a` is a contiguous
    memory map, or a contiguous view of one, whose file still holds the values of `a`: up to a
    hundred rows are compared. For a map in mode "c" `a` is returned, since changes to such a map
    are not in the file.
    """
    file = a
    while isinstance(getattr(file, "base", None), np.ndarray):
        file = file.base
    if not isinstance(file, np.memmap) or file.mode in ("c", None) or not a.flags.c_contiguous:
        return a
    start = file.offset + a.ctypes.data - file.ctypes.data
    there = partial(np.memmap, file.filename, a.dtype, "r", start, a.shape)
    step = len(a) // 100 + 1
    try:
        same = np.array_equal(there()[::step], a[::step])
    except (TypeError, OSError, ValueError):      # no name, no file, a file that is too short
        return a
    return there if same else a


class Rows:
    """A block of rows of the data, with what is needed to compute its k(X, Z), V and ktilde.

        at         slice: its place among all rows
        X, y       (n, d), (n,); y may be None. Either may be given by a function without arguments
                   that returns it
        inducing   (Z, ln_theta, L^-1, kernel)
        keep       whether `once` caches what it computes
    Pickling a block drops the cache. Of memory-mapped rows it stores only the file name and where
    in the file they are.
    """
    def __init__(self, at, X, y, inducing, keep=False):
        self.at = at
        self.X = X() if callable(X) else X
        self.y = y() if callable(y) else y
        self.inducing = inducing
        self.keep = keep
        self.memory = {}

    def __reduce__(self):
        return Rows, (self.at, mapped_again(self.X), mapped_again(self.y), self.inducing)

    def once(self, f, *args):
        """Returns f(*args), cached under f alone if `keep`: args must be the same at each call."""
        value = self.memory[f] if f in self.memory else f(*args)
        if self.keep:
            self.memory[f] = value
        return value

    def features(self):
        """Returns (k(X, Z), V, ktilde) of this block and the VJP of k(X, Z): see block_features."""
        return self.once(block_features, self.X, *self.inducing)

    def V_times(self, W):
        """Returns V W (n, M), cached if `keep`: W (M, M) must be the same at each call."""
        (_, V, _), _ = self.features()
        return self.once(np.matmul, V, W)


@in_doubles
def in_blocks(X, y, inducing, keep=True):
    """Cuts the data X (N, d) and y, (N,) or None, into a list of Rows.

        inducing   (Z, ln_theta, L^-1, kernel), as in Rows
        keep       True: the first blocks, as many as fit into KEEP_BYTES together, cache k(X, Z),
                   V and the result of V_times. False: none does
    """
    row_bytes = 3 * 8 * len(inducing[0])

    def block(at):
        y_at = None if y is None else y[at]
        return Rows(at, X[at], y_at, inducing, keep and at.stop * row_bytes <= KEEP_BYTES)
    return [block(at) for at in row_blocks(len(X), len(inducing[0]))]


def add_up(f, items):
    """Adds the tuples f(*item) over items, entry by entry: returns one sum per entry.

    Numbers and arrays are added, lists are joined.
        f       a function that returns a tuple or list, of the same length each time
        items   an iterable of argument lists
    """
    def added_to(sums, part):
        return [a + b for a, b in zip(sums, part)]
    return reduce(added_to, (f(*item) for item in items))


def numbered(f, pair):
    """Returns (number, f(item)) for the pair (number, item), so that results can be sorted."""
    number, item = pair
    return number, f(item)


def total(over, f, blocks, *columns):
    """Returns the sums over blocks of f(rows, *columns at these rows), entry by entry.

        over      like map, but may return results in any order
        f         gets a Rows and the entries (n,) of each column at its rows; returns a tuple or
                  list, see add_up
        blocks    list of Rows
        columns   (N,) each, over all rows

    The b blocks go to `over` in about 4 sqrt(b) groups. The sums over a group are taken where f is
    applied, so few sums travel between processes. Sums are always added in the same order. Groups
    are nested lists, without tuples, since Dask would call a function that begins a tuple.
    ValueError if `over` loses a group or returns one twice.
    """
    items = [[rows, *(column[rows.at] for column in columns)] for rows in blocks]
    step = math.ceil(math.sqrt(len(items)) / 4)
    groups = [items[i:i + step] for i in range(0, len(items), step)]
    pairs = [list(pair) for pair in enumerate(groups)]
    results = sorted(over(partial(numbered, partial(add_up, f)), pairs), key=lambda pair: pair[0])
    if [number for number, _ in results] != list(range(len(groups))):
        raise ValueError(f"over must return a result for each of {len(groups)} items, like map: "
                         "some are lost or came twice")
    return add_up(lambda *sums: sums, [sums for _, sums in results])


# --- steps of the sparse GP, in blocks -----------------------------------------------------------

@in_doubles
def block_features(X, Z, ln_theta, Linv, kernel):
    """Returns (K, V, ktilde), K_back for rows X (n, d), where K is k(X, Z) (n, M).

    V is K L^-T (n, M); ktilde is k - |V_i|^2 (n,). K_back is the VJP of K alone, as the kernel
    returns it. The other arguments are as in `features` of pacgp_ref.py.
    """
    K, K_back = kernel(X, Z, ln_theta)
    V = K @ Linv.T
    ktilde = np.maximum(signal_variance(ln_theta) - row_dots(V, V), 0.0)
    return (K, V, ktilde), K_back


@in_doubles
def at_rows(rows, m, W):
    """Returns V_i m and V_i W V_i for the rows i of a block: two lists, each of one array (n,).

    rows: a Rows; m (M,); W (M, M). `total` joins the lists of all blocks.
    """
    (_, V, _), _ = rows.features()
    return [V @ m], [row_dots(V, rows.V_times(W))]


@in_doubles
def over_rows(rows, u, w):
    """For a block, returns V^T u (M,), V^T diag(w) V (M, M) and sum(w).

    rows: the block, a Rows, with V (n, M) among its features; u, w: (n,).
    """
    (_, V, _), _ = rows.features()
    return V.T @ u, weighted_gram(V, w), np.sum(w)


def _gaussian(rows, m, S, ln_det_S, k, over=map):
    """Marginals and KL of the posterior Q(f_M) = N(L m, L S L^T); R (9), (22), (23), (10).

    Returns (mean, var, KL), back; mean and var are (N,), var at least VAR_FLOOR k.
        rows       a list of Rows
        m, S       (M,), (M, M)
        ln_det_S   ln|S|
        k          k(x, x), a number
        over       as in total

    back(d_mean, d_var, d_KL), the VJP, returns
        d_m        (M,)
        d_S        (M, M), at fixed ln|S|
        d_ln_det   a number: w.r.t. ln|S|
        d_var      (N,): the d_var given, but 0 where var is at its floor VAR_FLOOR k
        gram       (M, M): d_V^T V
        d_k        a number: w.r.t. k, at fixed V
    """
    W = S - np.eye(len(m))
    floor = VAR_FLOOR * k
    mean, V_W_V = map(np.concatenate, total(over, partial(at_rows, m=m, W=W), rows))
    var = k + V_W_V
    KL, KL_back = kl_to_prior(m, S, ln_det_S)

    def back(d_mean, d_var, d_KL):
        d_m, d_S, d_ln_det = KL_back(d_KL)
        d_var = d_var * (var > floor)
        Vt_d_mean, Vt_d_var_V, d_k = total(over, over_rows, rows, d_mean, d_var)
        gram = np.outer(m, Vt_d_mean) + 2 * W @ Vt_d_var_V
        return Vt_d_mean + d_m, Vt_d_var_V + d_S, d_ln_det, d_var, gram, d_k
    return (mean, np.maximum(var, floor), KL), back


@in_doubles
def gaussian_d_V(rows, d_mean, d_var, m, W):
    """Returns d_V (n, M) of a block through its mean and variance, (22) and (23).

        d_V_i = d_mean_i m + 2 d_var_i W V_i,   W = S - I
    rows: the block, a Rows; d_mean, d_var (n,); m (M,); W (M, M).
    """
    d_V = rows.V_times(W) * (2 * d_var)[:, None]
    d_V += np.outer(d_mean, m)
    return d_V


@in_doubles
def block_sums(rows, sigma2, alpha):
    """Returns the sums over a block that (11) and (34) need, with D = alpha ktilde + sigma_n^2.

    They are V^T D^-1 V (M, M), V^T D^-1 y (M,), and the sums of ln D, y^2/D and ktilde as (3,).
    rows: a Rows with y; sigma2: sigma_n^2.
    """
    (_, V, ktilde), _ = rows.features()
    D = alpha * ktilde + sigma2
    scaled_V = V * (1 / np.sqrt(D))[:, None]
    sums = np.array([np.sum(np.log(D)), np.sum(rows.y**2 / D), np.sum(ktilde)])
    return scaled_V.T @ scaled_V, V.T @ (rows.y / D), sums


@in_doubles
def block_sums_back(rows, *d_marginals, m, W, E, d_b, h, sigma2, alpha):
    """VJP of block_sums and, if d_marginals are given, of the marginals of the block.

        rows            a Rows with y
        d_marginals     d_mean, d_var (n,): w.r.t. the mean and variance at the rows; or nothing
        m, W            (M,), (M, M): the mean of Q, and S - I; used only if d_marginals are given
        E               (M, M): 2 d_A L^-1
        d_b             (M,)
        h               a number: the derivative w.r.t. the sum of ln D_i, which in (34) equals that
                        w.r.t. the sum of y_i^2/D_i
        sigma2, alpha   as in block_sums

    Returns four values:
        d_ln_theta   (T,): through K = k(X, Z) alone, at fixed L^-1 and k(x, x)
        d_Z          (M, d): likewise
        gram         (M, M): the part of d_V^T V due to ktilde, -2 alpha sum_i d_D_i V_i V_i^T, or
                     0.0 if alpha = 0. The caller knows the rest from sums over all blocks
        sums         (2,): the derivatives w.r.t. sigma2 and alpha, which are the sums of d_D_i and
                     of d_D_i ktilde_i over the block

    Apart from the marginals, the objective is a function of A = sum V_i V_i^T/D_i,
    b = sum V_i y_i/D_i and the sums of ln D_i and y_i^2/D_i, where D_i = alpha ktilde_i + sigma_n^2
    and ktilde_i = k - V_i V_i. Its derivatives w.r.t. D_i and V_i are
        d_D_i = h (1 - y_i^2/D_i)/D_i - (V_i d_A V_i + y_i V_i d_b)/D_i^2
        d_V_i = (2 d_A V_i + y_i d_b)/D_i - 2 alpha d_D_i V_i
    If d_marginals are given, gaussian_d_V of them is added to d_V. Row i of K obeys V_i = L^-1 K_i
    and d_K_i = L^-T d_V_i. So d_A adds (V_i E)/D_i to d_K_i, and V_i d_A V_i = (V_i E) K_i/2.
    """
    (K, V, ktilde), K_back = rows.features()
    _, _, Linv, _ = rows.inducing
    y = rows.y
    D = alpha * ktilde + sigma2
    V_E = V @ E
    V_d_A_V = row_dots(V_E, K) / 2
    d_D = (h - (h * y**2 + V_d_A_V + y * (V @ d_b)) / D) / D
    d_K = V_E
    d_K *= (1 / D)[:, None]
    d_K += np.outer(y / D, d_b @ Linv)
    d_V = gaussian_d_V(rows, *d_marginals, m, W) if d_marginals else 0.0
    gram = 0.0
    if alpha:
        d_V -= V * (2 * alpha * d_D)[:, None]
        gram = weighted_gram(V, -2 * alpha * d_D)
    if d_marginals or alpha:
        d_K += d_V @ Linv
    d_ln_theta, _, d_Z = K_back(d_K, of_X1=False)
    return d_ln_theta, d_Z, gram, np.array([np.sum(d_D), d_D @ ktilde])


class DataSums(NamedTuple):
    """Sums over the data, and the posterior Q that follows from them by (11).

    (11) needs the sums A and b, which are in `posterior`. The training objective of FITC, VFE and
    DTC, (34), also needs those of ln D_i, y_i^2/D_i and ktilde_i, which are in `sums`.
    """
    rows: list              # of Rows
    sums: np.ndarray        # over rows, of ln D, y^2/D and ktilde
    posterior: SparsePosterior
    ln_det_S: float
    posterior_back: Callable    # `back` of gaussian_posterior: the VJP of m, S, ln|S|


@in_doubles
def sums_in_blocks(X, y, Z, ln_theta, ln_noise, alpha, kernel=se_kernel, over=map):
    """Returns the DataSums of the posterior that the data determine by R (11), and back.

    Arguments as in sparse_gp of pacgp_ref.py; `over` as in total. ValueError unless y has an entry
    for each row of X.

    back(d_A, d_b, h, d_k, gram, *d_marginals), the VJP, returns a dict of derivatives w.r.t.
    ln_theta, ln_noise, Z and alpha:
        d_A, d_b      (M, M) symmetric, (M,)
        h             a number: the derivative w.r.t. the sum of ln D_i, equal to that w.r.t. the
                      sum of y_i^2/D_i; both at fixed A and b
        d_k           a number: w.r.t. k(x, x), except through D = alpha ktilde + sigma_n^2
        gram          (M, M): the part of d_V^T V that passes through the marginals, at fixed A and
                      b; 0.0 without d_marginals
        d_marginals   d_mean, d_var (N,): w.r.t. the mean and variance at the rows; or nothing
    """
    check_shapes("y and the rows of X", y, X[:, 0])
    sigma2 = np.exp(ln_noise)
    Linv, Linv_back = inverse_cholesky(Z, ln_theta, kernel)
    rows = in_blocks(X, y, (Z, ln_theta, Linv, kernel))
    f = partial(block_sums, sigma2=sigma2, alpha=alpha)
    A, b, sums = total(over, f, rows)
    (m, S, ln_det_S, root), posterior_back = gaussian_posterior(A, b)

    def back(d_A, d_b, h, d_k, gram=0.0, *d_marginals):
        g = partial(block_sums_back, m=m, W=S - np.eye(len(m)), E=2 * d_A @ Linv,
                    d_b=d_b, h=h, sigma2=sigma2, alpha=alpha)
        d_ln_theta, d_Z, gram_ktilde, (sum_d_D, d_alpha) = total(over, g, rows, *d_marginals)
        gram_sums = np.outer(d_b, b) + 2 * d_A @ A
        d_ln_theta_MM, d_Z_MM = Linv_back(gram + gram_ktilde + gram_sums)
        d_ln_theta = d_ln_theta + d_ln_theta_MM
        d_ln_theta[..., -1] += np.exp(ln_theta[..., -1]) * (d_k + alpha * sum_d_D)
        return dict(ln_theta=d_ln_theta, ln_noise=sigma2 * sum_d_D, Z=d_Z + d_Z_MM, alpha=d_alpha)
    posterior = SparsePosterior(Linv, A, b, m, S, root)
    return DataSums(rows, sums, posterior, ln_det_S, posterior_back), back


# --- the five functions of a Sparse --------------------------------------------------------------

@in_doubles
def gp_in_blocks(X, y, Z, ln_theta, ln_noise, alpha=1.0, kernel=se_kernel, over=map):
    """The function sparse_gp of pacgp_ref.py in blocks of rows: same arguments, values, back.

    over: as in total.
    """
    q, q_back = sums_in_blocks(X, y, Z, ln_theta, ln_noise, alpha, kernel, over)
    k = signal_variance(ln_theta)
    values, values_back = _gaussian(q.rows, q.posterior.m, q.posterior.S, q.ln_det_S, k, over)

    def back(d_mean, d_var, d_KL):
        d_m, d_S, d_ln_det, d_var, gram, d_k = values_back(d_mean, d_var, d_KL)
        d_A, d_b = q.posterior_back(d_m, d_S, d_ln_det)
        return q_back(d_A, d_b, 0.0, d_k, gram, d_mean, d_var)
    return values, back


@in_doubles
def block_free_back(rows, d_mean, d_var, m, W):
    """VJP of a block's marginals for a free Q, one whose m and S are parameters.

    Returns d_ln_theta (T,) and d_Z (M, d) through K = k(X, Z) alone, at fixed L^-1 and k(x, x).
    Arguments as in gaussian_d_V.
    """
    _, K_back = rows.features()
    _, _, Linv, _ = rows.inducing
    d_K = gaussian_d_V(rows, d_mean, d_var, m, W) @ Linv
    d_ln_theta, _, d_Z = K_back(d_K, of_X1=False)
    return d_ln_theta, d_Z


@in_doubles
def free_in_blocks(X, Z, ln_theta, m, L_S, kernel=se_kernel, over=map):
    """The function sparse_free of pacgp_ref.py in blocks of rows: same arguments, values, back.

    over: as in total.
    """
    k = signal_variance(ln_theta)
    Linv, Linv_back = inverse_cholesky(Z, ln_theta, kernel)
    rows = in_blocks(X, None, (Z, ln_theta, Linv, kernel))
    S = L_S @ L_S.T
    ln_det_S = 2 * np.sum(np.log(np.abs(np.diag(L_S))))
    values, values_back = _gaussian(rows, m, S, ln_det_S, k, over)

    def back(d_mean, d_var, d_KL):
        d_m, d_S, d_ln_det, d_var, gram, d_k = values_back(d_mean, d_var, d_KL)
        f = partial(block_free_back, m=m, W=S - np.eye(len(m)))
        d_ln_theta, d_Z = total(over, f, rows, d_mean, d_var)
        d_ln_theta_MM, d_Z_MM = Linv_back(gram)
        d_ln_theta = d_ln_theta + d_ln_theta_MM
        d_ln_theta[..., -1] += np.exp(ln_theta[..., -1]) * d_k
        d_L_S = np.tril(2 * d_S @ L_S) + 2 * d_ln_det * np.diag(1 / np.diag(L_S))
        return dict(ln_theta=d_ln_theta, Z=d_Z + d_Z_MM, m=d_m, L_S=d_L_S)
    return values, back


@in_doubles
def nll_in_blocks(X, y, Z, ln_theta, ln_noise, kind="VFE", kernel=se_kernel, over=map):
    """The function sparse_nll of pacgp_ref.py in blocks of rows: same arguments, value, back.

    For VFE, sum ktilde = N k - sigma_n^2 tr A, so `back` needs no derivative through ktilde.
    over: as in total.
    """
    alpha, t = SPARSE_NLL[kind]
    q, q_back = sums_in_blocks(X, y, Z, ln_theta, ln_noise, alpha, kernel, over)
    b, m, S = q.posterior.b, q.posterior.m, q.posterior.S
    N = len(y)
    k = signal_variance(ln_theta)
    sigma2 = np.exp(ln_noise)
    ln_D, y2, ktilde = q.sums
    ln_det = N * np.log(2 * np.pi) + ln_D - q.ln_det_S
    F = (ln_det + y2 - b @ m + t * ktilde / sigma2) / 2

    def back(d_F):
        h = d_F / 2
        d_A = h * (S + np.outer(m, m) - t * np.eye(len(m)))
        d_k = h * t * N / sigma2
        grads = q_back(d_A, -d_F * m, h, d_k)
        del grads["alpha"]      # kind fixes it
        return dict(grads, ln_noise=grads["ln_noise"] - d_k * k)
    return F, back


@in_doubles
def posterior_in_blocks(X, y, Z, ln_theta, ln_noise, alpha=1.0, kernel=se_kernel, over=map):
    """The function sparse_posterior of pacgp_ref.py in blocks of rows: returns a SparsePosterior.

    Arguments as in sparse_gp there; `over` as in total.
    """
    q, _ = sums_in_blocks(X, y, Z, ln_theta, ln_noise, alpha, kernel, over)
    return q.posterior


@in_doubles
def block_predict(rows, m, root):
    """Returns mean and variance at the rows of a block: two lists, each of one array (n,).

    rows: a Rows; m, root: of a StoredPosterior. The variance may still be below the floor
    VAR_FLOOR k, to which predict_in_blocks raises it. `total` joins the lists of all blocks.
    """
    (_, V, ktilde), _ = rows.features()
    U = V @ root.T
    return [V @ m], [ktilde + row_dots(U, U)]


@in_doubles
def predict_in_blocks(posterior, X_new, over=map):
    """The function sparse_predict of pacgp_ref.py in blocks of rows: returns mean, var (n,) of f.

    posterior: a StoredPosterior; X_new (n, d); `over` as in total.
    """
    Z, Linv, ln_theta, m, root, kernel = posterior
    rows = in_blocks(X_new, None, (Z, ln_theta, Linv, kernel), keep=False)
    mean, var = map(np.concatenate, total(over, partial(block_predict, m=m, root=root), rows))
    return mean, np.maximum(var, VAR_FLOOR * signal_variance(ln_theta))


def blocks(over=map):
    """Returns a Sparse, with which fit and predict of pacgp_ref.py work in blocks of rows.

    A Sparse holds five functions: here gp_in_blocks, free_in_blocks, nll_in_blocks,
    posterior_in_blocks and predict_in_blocks, each with this `over`, see total.
    """
    functions = (gp_in_blocks, free_in_blocks, nll_in_blocks, posterior_in_blocks,
                 predict_in_blocks)
    return Sparse(*(partial(f, over=over) for f in functions))


def threads():
    """Returns a map to pass as `over`: of a pool with one thread per usable core, or plain map.

    It is plain map unless the environment variable OPENBLAS_NUM_THREADS is 1, since threads of BLAS
    and of a pool at once are slower than either alone. The pool's threads get the np.errstate that
    holds at this call.
    """
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        return map
    cores = os.cpu_count()
    if hasattr(os, "sched_getaffinity"):            # a process may have fewer than the machine
        cores = len(os.sched_getaffinity(0))
    return ThreadPoolExecutor(cores, initializer=partial(np.seterr, **np.geterr())).map
