"""Training from several starts, in blocks of rows: what the programs use.

pacgp_ref.fit is the paper's: one search from one start, for one parametrisation of the kernel. Here
a likelihood is searched from two starts, the better of which goes on; a bound begins where the
likelihood of some rows ends; many rows begin with a part of them; and both parametrisations are
tried. Any start may depend on the data: the certificate holds for every Q at once. Rows that
certify nothing may choose more: the box, the kernel, and whether far targets are cut. Not in the
papers.
"""
import math
import warnings

import numpy as np

from pacgp_ref import (BOUNDS, FAMILIES, GRID, METHODS, SMALL, STOPPED, FitWarning, check_count,
                       check_data, fit, free_form, initial_parameters, ln_grid_size, se_kernel)
from predictive import matern32, matern52
from beyond.blocks import blocks
from beyond.kernels import start_of

# Above SMALL rows training starts from the optimum of a tenth of them, and takes at most LAST_EVALS
# evaluations or, if more, as many as see LAST_ROWS rows in all: docs/scale.md has the cost in B.
LAST_EVALS = 30
LAST_ROWS = 5_000_000
# The second start has lengthscales so many times shorter: from the first one, sqrt(d) deviations,
# half of the waves of a few periods end at a constant.
SHORT = 10.0
# Evaluations after which the better of several starts goes on alone.
RACE = 5
# A search ends where the objective f falls by less than FTOL max(|f|, 1); a likelihood, which is
# hundreds of nats, by ROUGH where it is one of several.
FTOL = 1e-6
ROUGH = 1e-4
# Of more rows the likelihood where a bound begins sees half, but so many at least.
FEW = 300
# Where B is above it, nothing is certified of the mean, and the paper's start is followed, too.
VACUOUS = 0.5
# The box and steps of theta where no grid is paid for: over 400 deviations a wave is a line.
WIDE = (12.0, 2400)
# Where its grid costs so many nats a row more than that of one lengthscale, ARD is not tried.
PRICE = 0.25
# With fewer rows a column, ARD fits the noise by it: then the paper's box stays.
ROWS_PER_COLUMN = 10
# Kernels rougher than SE, in this order. One is taken for more than STRONG nats, evidence of 20 to
# 1: functions that are rough leave Q more variance, for which B pays.
ROUGHER = (matern52, matern32)
STRONG = 3.0
# Targets farther from the median, in deviations by the median absolute one, may be cut.
FAR = 4.0


def search(p, X, y, method, rng, last_evals=None, **settings):
    """The Fit that training from the dict of parameters p finds; settings are those of fit.

    Above SMALL rows, if sparse, it begins at what is found with a tenth of them, and so on. Else a
    bound begins at the likelihood's optimum, a likelihood at the better of two starts. A stopped
    search is the last.
    """
    family, objective = METHODS[method]
    N = len(y)
    many = N > SMALL and FAMILIES[family].inducing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        if many:
            rows = np.sort(rng.choice(N, N // 10, replace=False))
            found = search(p, X[rows], y[rows], method, rng, last_evals, **settings)
        elif objective in BOUNDS:
            found = likelihood_start(p, X, y, family, rng, last_evals, **settings)
        else:
            found = race(p, X, y, method, **settings)
    if found.optimum.message == STOPPED:
        return found
    if many:
        most = last_evals or max(LAST_EVALS, LAST_ROWS // N)
        settings["max_evals"] = min(settings.get("max_evals", most), most)
    return from_start(found.optimum.x, X, y, method, **settings)


def from_start(p, X, y, method, **settings):
    """The Fit of one search from the dict of parameters p."""
    return fit(X, y, method, **settings | dict(start=p, Z=p.get("Z")))


def race(p, X, y, method, **settings):
    """The better Fit of RACE evaluations from p and from lengthscales SHORT times shorter."""
    ln_theta = p["ln_theta"].copy()
    ln_theta[:min(X.shape[1], len(ln_theta) - 1)] -= 2 * math.log(SHORT)
    settings = racing(settings)
    as_given = from_start(p, X, y, method, **settings)
    if stopped(as_given):
        return as_given
    shorter = from_start(dict(p, ln_theta=ln_theta), X, y, method, **settings)
    better = min(as_given, shorter, key=lambda found: found.optimum.f)
    return better._replace(optimum=better.optimum._replace(message=shorter.optimum.message))


def likelihood_start(p, X, y, family, rng, last_evals, **settings):
    """The Fit of the marginal likelihood (33), or (34) of VFE, from parameters p.

    Its optimum has a dict x with p's keys.
    """
    settings = settings | dict(ftol=max(settings["ftol"], ROUGH))
    q = {name: p[name] for name in p if name not in ("m", "L_S")}
    q.setdefault("ln_noise", np.array(0.0))
    likelihood = "VFE" if FAMILIES[family].inducing else "full-GP"
    found = search(q, X, y, likelihood, rng, last_evals, **settings)
    if FAMILIES[family].given:
        return found
    x = free_form(X, y, **found.optimum.x, kernel=found.kernel, sparse=settings["sparse"])
    return found._replace(optimum=found.optimum._replace(x=x))


def multistart_fit(X, y, method="kl-PAC-GP", M=None, *args, last_evals=None, over=map, **settings):
    """A Fit as pacgp_ref.fit, whose arguments X, y, args and settings are, by `search`, in blocks.

    last_evals: most evaluations that start from the optimum of a part; None: LAST_EVALS, or, if
    more, as many as see LAST_ROWS. over: map, or what works like it: the sums over blocks of rows
    by a pool's or an engine's map, docs/scale.md. Rows in memory-mapped files are read where they
    are used; the files must stay as they are. seed also draws the parts of the rows; callback is
    called in each of the searches, and a true result ends them all. `start_theta` is by default the
    start of the kernel's row in beyond/kernels.py. With a start or a batch there is one search.
    """
    named = dict(zip(("eps", "delta", "loss", "ard"), args))
    settings = dict(start_theta=start_of(settings.get("kernel", se_kernel)), ftol=FTOL,
                    sparse=blocks(over)) | named | settings
    if last_evals is not None:
        last_evals = check_count("last_evals", last_evals)
    if settings.get("start") is not None or settings.get("batch") is not None:
        return fit(X, y, method, M, **settings)
    X, y = check_data(X, y, copy=False)
    rng = np.random.default_rng(settings.get("seed", 0))
    start_theta = settings["start_theta"]
    ln_theta = start_theta(X.shape[1], settings.get("ard", False))
    p = initial_parameters(X, y, METHODS[method][0], M, ln_theta, settings.get("Z"), rng,
                           settings.get("kernel", se_kernel), settings["sparse"])
    found = search(p, X, y, method, rng, last_evals, **settings)
    if found.N == len(y) and found.method == method:
        return found
    with warnings.catch_warnings():      # stopped early: certified with all rows
        warnings.simplefilter("ignore", FitWarning)
        settings = settings | dict(max_evals=1, callback=None)
        at = from_start(found.optimum.x, X, y, method, **settings)
    return at._replace(optimum=found.optimum)


# --- one lengthscale, or one a column; what starts a bound ---------------------------------------

def leg(X, y, method, M, x=None, **settings):
    """The multistart_fit from the dict x of parameters, if given, without its Notes."""
    if x is not None:
        settings = settings | dict(start=x, Z=x.get("Z"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        return multistart_fit(X, y, method, M, **settings)


def racing(settings):
    """The settings of a leg that ends after RACE evaluations."""
    return settings | dict(max_evals=min(RACE, settings.get("max_evals", RACE)))


def stopped(*fits):
    """Whether the callback stopped the training of one of the Fits."""
    return any(fit.optimum.message == STOPPED for fit in fits)


def as_stopped(fit):
    """The Fit, as one whose training was stopped."""
    return fit._replace(optimum=fit.optimum._replace(message=STOPPED))


def is_ard(fit):
    """Whether a Fit has one lengthscale a column; the same for one column."""
    return len(fit.ln_theta) == fit.Z.shape[1] + 1


def has_both(d, kernel):
    """Whether a kernel of d columns has two parametrisations, with one lengthscale and with d."""
    first = start_of(kernel)
    return len(first(d, False)) < len(first(d, True))


def some_rows(N, M, seed=0, **settings):
    """The numbers of half of N rows, at least FEW and M, if any, in order, drawn by seed.

    Above SMALL rows they are a tenth. Other settings are ignored.
    """
    n = N // 10 if N > SMALL else min(N, max(FEW, N // 2, M or 0))
    return np.sort(np.random.default_rng(seed).choice(N, n, replace=False))


def likelihood_fits(X, y, method, M, ard, **settings):
    """The Fits of a likelihood with one lengthscale and with one a column; of one, if ard says so.

    ARD starts half-way, in ln l, from sqrt(d) to the optimum with one lengthscale: from that
    optimum itself half of the tables with a wave in one of eight columns ended without the wave.
    """
    settings = settings | dict(ftol=ROUGH if ard is None else FTOL)
    one = leg(X, y, method, M, **settings)
    if ard is False or stopped(one):
        return [one]
    d = X.shape[1]
    ln_l2, ln_signal = one.optimum.x["ln_theta"]
    ln_theta = np.append(np.full(d, (ln_l2 + math.log(d)) / 2), ln_signal)
    each = leg(X, y, method, M, dict(one.optimum.x, ln_theta=ln_theta), ard=True, **settings)
    return [each] if ard else [one, each]


def schwarz(fit):
    """-ln p(y), and ln(N)/2 nats for each parameter of theta that is not at the end of its box.

    Of the Fit of a likelihood. Schwarz 1978.
    """
    ln_theta = np.abs(fit.optimum.x["ln_theta"])
    return fit.optimum.f + np.sum(ln_theta < np.max(ln_theta)) * math.log(fit.N) / 2


def bound_fit(X, y, method, M, ard, **settings):
    """The Fit of a bound, with the parametrisation that is better after RACE evaluations.

    Each begins at the likelihood's optimum, of half of the rows if they are many. Where B ends
    above VACUOUS, the paper's own search is tried, too, and the lower B taken.
    """
    family, _ = METHODS[method]
    inducing, given, *_ = FAMILIES[family]
    rows = some_rows(len(y), M, **settings)
    likelihood = "VFE" if inducing else "full-GP"
    fits = likelihood_fits(X[rows], y[rows], likelihood, M, ard, **settings)
    starts = []
    for found in fits:
        x = found.optimum.x
        if not given:
            x = free_form(X, y, **x, kernel=found.kernel)
        starts.append((x, is_ard(found)))
    if not stopped(*fits) and len(starts) > 1:
        fits = [leg(X, y, method, M, x, ard=each, **racing(settings)) for x, each in starts]
        best = min(fits, key=lambda fit: fit.bound)
        starts = [(best.optimum.x, is_ard(best))]
    x, each = starts[-1]
    if stopped(*fits):
        return as_stopped(leg(X, y, method, M, x, ard=each, **settings | dict(max_evals=1)))
    found = multistart_fit(X, y, method, M, start=x, Z=x.get("Z"), ard=each, **settings)
    if found.bound <= VACUOUS or stopped(found):
        return found
    paper = leg(X, y, method, M, {}, ard=bool(ard), **dict(settings, ftol=1e-8))
    return min(found, paper, key=lambda fit: fit.bound)


def paper_fit(X, y, method="kl-PAC-GP", M=None, ard=None, n_eps=1, kernel=None, grid=GRID,
              **settings):
    """The Fit with the paper's certificate, in blocks; ard = None: the better of two. kernel: SE.

    Theorem: with theta in the union of two grids, each theta of grid i having p_theta =
    1/(2 |Theta_i|), (4) holds for all theta and Q at once. So ln 2 is paid, as by n_eps. Not where
    N and d alone say that one lengthscale is taken.
    """
    N, d = X.shape
    kernel = kernel or se_kernel
    more = ln_grid_size(d + 1, grid) - ln_grid_size(2, grid)
    if not has_both(d, kernel) or ard is None and more > PRICE * N:
        ard = False
    if ard is None:
        n_eps = 2 * n_eps
    settings = settings | dict(n_eps=n_eps, kernel=kernel, grid=grid)
    if N > SMALL and ard is None:
        rows = some_rows(N, M, **settings)
        ard = is_ard(part_fit(X[rows], y[rows], "VFE", M, **settings))
    if N > SMALL or "start" in settings:
        return multistart_fit(X, y, method, M, ard=bool(ard), **settings)
    _, objective = METHODS[method]
    if objective in BOUNDS:
        return bound_fit(X, y, method, M, ard, **settings)
    return min(likelihood_fits(X, y, method, M, ard, **settings), key=lambda fit: fit.bound)


# --- rows that certify nothing -------------------------------------------------------------------

def rougher_fit(se, X, y, method, M, **settings):
    """The Fit of a likelihood by SE, or by a rougher kernel: the best after RACE evaluations each.

    The first begins where SE ends, with the lengthscales of that, the next where the one before is.
    """
    best = se
    below = se.optimum.f - STRONG
    settings = settings | dict(ard=is_ard(se), ftol=ROUGH)
    for kernel in ROUGHER:
        tried = leg(X, y, method, M, best.optimum.x, kernel=kernel, **racing(settings))
        if tried.optimum.f >= below:
            break
        best = tried
        below = best.optimum.f
    if best is se:
        return se
    return leg(X, y, method, M, best.optimum.x, kernel=best.kernel, **settings)


def cut(y):
    """Targets y (N,), those farther than FAR deviations from the median at that distance.

    A deviation is 1.4826 times the median absolute one, as of a normal law; y itself if it is 0.
    """
    middle = np.median(y)
    far = FAR * 1.4826 * np.median(np.abs(y - middle))
    return np.clip(y, middle - far, middle + far) if far > 0 else y


def leave_one_out_error(fit, trained, y):
    """Mean square of y (N,) less the mean by all other rows, of a full GP that `trained` (N,) gave.

    With A = K + sigma_n^2 I that mean is trained - (A^-1 trained)/diag A^-1; Rasmussen & Williams
    2006, Eq. (5.12).
    """
    _, Linv, _, c, _ = fit.posterior
    mean = trained - Linv.T @ c / np.sum(Linv**2, 0)
    return float(np.mean((mean - y)**2))


def part_fit(X, y, *args, **settings):
    """The Fit of trained_part."""
    found, _ = trained_part(X, y, *args, **settings)
    return found


def trained_part(X, y, method="full-GP", M=None, ard=None, kernel=None, **settings):
    """A Fit of rows that certify nothing, in blocks, and the targets (N,) that give it.

    ard = None: by schwarz; kernel = None: by the likelihood; a full GP is trained by cut(y) where
    that has the lower leave_one_out_error, of y itself. A tenth of more than SMALL rows chooses.
    Theorem: given these rows the prior, or what is tested, is fixed, whatever chose it. The other
    rows are independent of them, so that starts, kernel, box and targets cost nothing.
    """
    N, d = X.shape
    _, objective = METHODS[method]
    settings = dict(grid=WIDE if N >= ROWS_PER_COLUMN * d else GRID) | settings
    if objective in BOUNDS or "start" in settings:
        kernel = kernel or se_kernel
    if not has_both(d, kernel or se_kernel):
        ard = False
    if N > SMALL and (ard is None or kernel is None):
        rows = some_rows(N, M, **settings)
        few = part_fit(X[rows], y[rows], "VFE", M, ard, kernel, **settings)
        ard = is_ard(few)
        kernel = few.kernel
    if N > SMALL or "start" in settings:
        return multistart_fit(X, y, method, M, ard=bool(ard), kernel=kernel, **settings), y
    if objective in BOUNDS:
        return bound_fit(X, y, method, M, ard, kernel=kernel, **settings), y

    targets = cut(y) if objective == "nll" else y
    fits = likelihood_fits(X, targets, method, M, ard, kernel=kernel or se_kernel, **settings)
    found = min(fits, key=schwarz)
    if stopped(*fits):
        return as_stopped(found), targets
    if kernel is None:
        found = rougher_fit(found, X, targets, method, M, **settings)
    far = np.sum(targets != y)
    if not far or stopped(found):
        return found, targets
    settings = settings | dict(kernel=found.kernel, ard=is_ard(found), ftol=ROUGH)
    whole = leg(X, y, method, M, found.optimum.x, **settings)
    if leave_one_out_error(whole, y, y) <= leave_one_out_error(found, targets, y):
        return whole, y
    message = f"{found.optimum.message}, {far} far targets cut"
    return found._replace(optimum=found.optimum._replace(message=message)), targets
