"""Training from several starts, in blocks of rows: what the programs of own_data use.

pacgp_ref.fit is the paper's: one optimisation from one start, with one parametrisation of the
kernel. Here several starts race for RACE evaluations each, and the one with the least objective
goes on. A bound is minimised from the paper's start and from the optimum of the likelihood.
Training on a large table begins with part of its rows. Any start may depend on the data: the
certificate holds for every Q at once. Rows that certify nothing, being used for training alone, may
also choose the box in which theta is searched, the kernel, and whether outlying targets are
clipped. Not in the papers.

Arguments that are not described are those of pacgp_ref.fit, among them X (N, d), y (N,), method (a
key of METHODS), M (number of inducing inputs), kernel (a function as se_kernel), and ard: whether
there is a lengthscale per input. `settings` are further arguments of fit, as keywords. `run` is the
function `leg` with all arguments but the first three filled in: a search calls it as
run(x, kernel, ard), where x is a dict of parameters to start from.
"""
import math
import warnings
from functools import partial

import numpy as np

from pacgp_ref import (BOUNDS, FAMILIES, GRID, METHODS, FitWarning, check_choice, check_count,
                       check_data, fit, free_form, se_kernel, start_of)
from predictive import matern32, matern52
from beyond.blocks import blocks

# Where a likelihood starts: lengthscales so many times shorter than at the kernel's start, and
# the noise variance. From much noise it ends at a constant, from none at noise that is explained.
STARTS = ((1.0, 0.1), (3.0, 0.01), (10.0, 1.0))
# Evaluations after which the best of several starts goes on alone.
RACE = 20
# More rows begin with a tenth of them, but so many at least. All rows then take at most LAST_EVALS
# evaluations or, if more, as many as see LAST_ROWS rows in all.
FEW = 500
LAST_EVALS = 30
LAST_ROWS = 5_000_000
# Box and steps of theta for rows that certify nothing: a linear target needs long lengthscales.
WIDE = (16.0, 3200)
# With fewer rows per column ARD would use that box to fit noise: it gets the paper's.
ROWS_PER_COLUMN = 10
# A kernel rougher than SE must be better by STRONG nats, evidence of 20 to 1: rough functions leave
# Q more variance, which raises B.
ROUGHER = (matern52, matern32)
STRONG = 3.0
# Targets farther from the median, in deviations by the median absolute one, may be cut.
FAR = 4.0


# --- one search, and several ---------------------------------------------------------------------

def start_for(kernel, start_theta=None, **settings):
    """Returns a function (d, ard) -> ln_theta: where training of a kernel starts.

    It is start_theta, if given, else the kernel's own. settings: other arguments of fit, ignored.
    """
    return start_theta or partial(start_of, kernel)


def leg(x, kernel, ard, X, y, over=map, Z=None, **settings):
    """Returns the Fit of one optimisation, in blocks of rows; a FitWarning is not shown.

        x          dict of parameters to start from; those it lacks start as in fit
        over       map, or the map of a pool
        Z          inducing inputs (M, d) to start from, if x has none; None: as in fit
        settings   other arguments of fit

    If settings have no grid, the grid is WIDE, whose box suits rows that only train. With ard and
    fewer than ROWS_PER_COLUMN rows per column, the grid is GRID instead.
    """
    few = ard and len(X) < ROWS_PER_COLUMN * X.shape[1]
    settings = dict(grid=GRID if few else WIDE) | settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        return fit(X, y, start=x, Z=x.get("Z", Z), kernel=kernel, ard=ard, sparse=blocks(over),
                   **settings)


def parametrisations(d, start_theta, ard):
    """Returns the list of values of `ard` to try with d inputs: [ard], or both if ard is None.

    If ard makes no difference, since the kernel has as many parameters with it as without, the list
    is [True] whatever ard is.
        start_theta   the function (d, ard) -> ln_theta that start_for returns
    """
    if len(start_theta(d, False)) == len(start_theta(d, True)):
        return [True]
    return [False, True] if ard is None else [ard]


def end_of(found, settings):
    """Returns (x, kernel, ard) at a Fit's optimum, as a start for another optimisation.

        found      the Fit
        settings   dict of arguments of fit, of which only start_theta is used, if given
    x is a dict of parameters, and ard says whether there is a lengthscale per input.
    """
    with_ard = start_for(found.kernel, **settings)(found.Z.shape[1], True)
    return found.optimum.x, found.kernel, len(found.ln_theta) == len(with_ard)


def objective_of(found):
    """Returns the objective at a Fit's optimum, plus STRONG if its kernel is rougher than SE.

    A race keeps the Fit for which this is least, so a rougher kernel must be better by STRONG.
    found: the Fit, trained by a bound or a likelihood.
    """
    return found.optimum.f + STRONG * (found.kernel in ROUGHER)


def left_out(found, y):
    """Leave-one-out predictive mean and standard deviation (N,) of a full GP at its own rows.

    The standard deviation includes the noise:
        sd^2 = 1/diag K_y^-1,   mean = y - sd^2 K_y^-1 y,   K_y = K + sigma_n^2 I
    Rasmussen & Williams 2006, Eqs. (5.10) to (5.12). found: the Fit; y (N,): the targets it was
    trained on.
    """
    Linv = found.posterior.Linv
    sd = 1 / np.linalg.norm(Linv, axis=0)
    return y - sd**2 * (Linv.T @ found.posterior.m), sd


def criterion(found, trained, y):
    """Returns a score of a Fit, the lower the better, to choose ard and whether to clip targets.

    Full GP: the mean squared leave-one-out error. Sparse GP: BIC (Schwarz 1978),
        -ln p(y) + ln(N)/2 * (number of free entries of ln_theta)
    Entries with the largest absolute value are not counted as free: they are taken to be at the
    edge of the box.
        found     the Fit, trained by the likelihood
        trained   (N,): the targets that `found` was trained on, which may be clipped
        y         (N,): the targets as given, from which the leave-one-out error is taken
    """
    family, _ = METHODS[found.method]
    if not FAMILIES[family].inducing:
        mean, _ = left_out(found, trained)
        return float(np.mean((mean - y)**2))
    ln_theta = np.abs(found.optimum.x["ln_theta"])
    return found.optimum.f + np.sum(ln_theta < np.max(ln_theta)) * math.log(found.N) / 2


def limited(run, evals):
    """Returns `run` limited to `evals` evaluations, or to its own max_evals if that is fewer.

    run: a partial of `leg`.
    """
    asked = check_count("max_evals", run.keywords.get("max_evals", evals))
    return partial(run, max_evals=min(evals, asked))


def race(run, starts, trained=()):
    """Trains from several starts; after RACE evaluations each, the best goes on: returns its Fit.

    The best is the one whose objective_of is least.
        run       a partial of `leg`: called with x, kernel, ard it returns a Fit
        starts    list of (x, kernel, ard)
        trained   Fits, already trained, that compete with those from `starts`
    """
    fits = [*trained, *(limited(run, RACE)(*start) for start in starts)]
    best = min(fits, key=objective_of)
    return best if best.optimum.converged else run(*end_of(best, run.keywords))


def likelihood_fits(run, kernel, ards):
    """Returns Fits by the marginal likelihood, one per value in ards, each by a race from STARTS.

        run      a partial of `leg` whose method is a likelihood
        kernel   the kernel to train, a function
        ards     list of values of ard
    """
    d = run.keywords["X"].shape[1]
    found = []
    for ard in ards:
        starts = []
        for shorter, noise in STARTS:
            ln_theta = start_for(kernel, **run.keywords)(d, ard).copy()
            ln_theta[:d if ard else 1] -= 2 * math.log(shorter)
            starts.append((dict(ln_theta=ln_theta, ln_noise=math.log(noise)), kernel, ard))
        found.append(race(run, starts))
    return found


def search(X, y, method, M, kernels, ards, last_evals=None, start=None, seed=0, **settings):
    """Chooses one of `kernels` (functions) and one of `ards` (values of ard); returns their Fit.

    If the method minimises a bound, only the first kernel is tried, and a race chooses ard. If the
    method is a likelihood, the first kernel is fitted with each of ards, and `criterion` chooses
    one of these Fits. From its optimum each further kernel is trained briefly, until one has a
    lower likelihood than the one before. Of all Fits so found, the one with the least objective_of
    is trained further.

    Training on many rows begins with part of them. Given `start` or `batch`, there is one
    optimisation, with the first of kernels and of ards. Other arguments as in multistart_fit.
    """
    family, objective = METHODS[method]
    family = FAMILIES[family]
    settings["seed"] = seed
    run = partial(leg, X=X, y=y, method=method, M=M, **settings)
    if start is not None or settings.get("batch"):
        return run(start or {}, kernels[0], ards[0])
    N = len(y)
    n = max(FEW, N // 10, check_count("M", M) if M else 0)
    if N > n:
        rows = np.sort(np.random.default_rng(seed).choice(N, n, replace=False))
        few = search(X[rows], y[rows], method, M, kernels, ards, last_evals, **settings)
        last = limited(run, last_evals or max(LAST_EVALS, LAST_ROWS // N))
        return last(*end_of(few, settings))
    if objective not in BOUNDS:
        fits = likelihood_fits(run, kernels[0], ards)
        best = min(fits, key=partial(criterion, trained=y, y=y))
        x, _, ard = end_of(best, settings)
        fits = [best]
        for kernel in kernels[1:]:
            fits.append(limited(run, RACE)(x, kernel, ard))
            if fits[-1].optimum.f > fits[-2].optimum.f:
                break
        return race(run, [], fits)
    likelihood = "VFE" if family.inducing else "full-GP"
    starts = []
    for found in likelihood_fits(partial(run, method=likelihood), kernels[0], ards):
        x, kernel, ard = end_of(found, settings)
        if not family.given:
            x = free_form(X, y, **x, kernel=kernel)
        starts += [({}, kernel, ard), (x, kernel, ard)]
    return race(run, starts)


def multistart_fit(X, y, method="kl-PAC-GP", M=None, ard=False, kernel=se_kernel, **settings):
    """Returns a Fit as pacgp_ref.fit does, with its arguments, but from several starts, in blocks.

    These arguments differ or are new:
        ard          False or True; None: both are tried, and the better is kept, see `search`
        last_evals   largest number of evaluations on all N rows, after training on part of them.
                     None: the larger of LAST_EVALS and LAST_ROWS // N
        over         map, or the map of a pool or an engine: docs/scale.md#threads-and-machines
        seed         as in fit; it also draws the part of the rows that trains first
        callback     as in fit, called in each optimisation; a true result ends that optimisation
        start        as in fit; if given, there is one optimisation, on all rows
    Rows in memory-mapped files are read where they are used; the files must stay as they are.
    """
    X, y = check_data(X, y, copy=False)
    ards = parametrisations(X.shape[1], start_for(kernel, **settings), ard)
    method = check_choice("method", method, METHODS)
    return search(X, y, method, M, [kernel], ards, **dict(grid=GRID) | settings)


def paper_fit(X, y, method="kl-PAC-GP", M=None, ard=None, n_eps=1, kernel=None, grid=GRID,
              **settings):
    """Trains from several starts, in blocks, for the paper's certificate: returns the Fit.

        ard      None: one lengthscale and one per input are tried, see `search`
        n_eps    number of values of eps that the certificate holds for
        kernel   None: SE
        grid     (L, G): each ln theta is rounded to one of G + 1 points in [-L, L]
    Other arguments as in multistart_fit.

    Theorem: let theta be in the union of two grids, Theta_1 for one lengthscale and Theta_2 for one
    per input. With p_theta = 1/(2 |Theta_i|) on grid i, R (4) holds for all theta and Q at once. So
    trying both grids adds ln 2 to the penalty.
    """
    X, y = check_data(X, y, copy=False)
    kernel = kernel or se_kernel
    ards = parametrisations(X.shape[1], start_for(kernel, **settings), ard)
    return search(X, y, method, M, [kernel], ards, grid=grid, n_eps=n_eps * len(ards), **settings)


# --- rows that certify nothing -------------------------------------------------------------------

def cut(y):
    """Returns the targets y (N,) with outliers clipped to FAR deviations from the median.

    A deviation is 1.4826 times the median absolute deviation, which estimates the standard
    deviation of a normal law. If it is 0, y is returned as it is.
    """
    middle = np.median(y)
    far = FAR * 1.4826 * np.median(np.abs(y - middle))
    return np.clip(y, middle - far, middle + far) if far > 0 else y


def trained_part(X, y, method="full-GP", M=None, ard=None, kernel=None, **settings):
    """Trains, in blocks, on rows that certify nothing: rows used for training alone.

    Returns the Fit and the targets (N,) it was trained on. For the method "full-GP" these are
    cut(y) if that is better by `criterion`, else y. For other methods they are y.
        ard      None: one lengthscale and one per input are tried, see `search`
        kernel   None: SE or, if the method is a likelihood, a rougher one that lowers the objective
                 by more than STRONG
    Other arguments as in multistart_fit.

    Theorem: the Fit serves as a prior, or is itself tested on other rows. In both cases it depends
    on these rows alone. The rows that certify are independent of them, so the choice of start,
    kernel, box and targets costs nothing.
    """
    X, y = check_data(X, y, copy=False)
    _, objective = METHODS[method]
    kernels = [kernel] if kernel else [se_kernel, *ROUGHER]
    ards = parametrisations(X.shape[1], start_for(kernels[0], **settings), ard)
    targets = cut(y) if objective == "nll" else y
    found = search(X, targets, method, M, kernels, ards, **settings)
    if np.array_equal(targets, y):
        return found, y
    x, kernel, ard = end_of(found, settings)
    whole = search(X, y, method, M, [kernel], [ard], **settings | dict(start=x))
    if criterion(whole, y, y) <= criterion(found, targets, y):
        return whole, y
    return found, targets
