"""Training from several starts, in blocks of rows: what the programs use.

pacgp_ref.fit is the paper's: one search from one start, for one parametrisation of the kernel. Here
a likelihood is searched from two starts, the better of which goes on; a bound begins where the
likelihood ends; many rows begin with a part of them; and both parametrisations are tried. Any start
may depend on the data: the certificate holds for every Q at once. Not in the papers.
"""
import math
from functools import partial
from types import SimpleNamespace

import numpy as np

from pacgp_ref import (BOUNDS, GRID, METHODS, SMALL, STOPPED, check_count, fit, free_form,
                       ln_grid_size, se_kernel, train)
from beyond.blocks import blocks
from beyond.kernels import first_of

# Above SMALL rows training starts from the optimum of a tenth of them, and takes at most LAST_EVALS
# evaluations or, if more, as many as see LAST_ROWS rows in all: docs/scale.md has the cost in B.
LAST_EVALS = 30
LAST_ROWS = 5_000_000
# The second start has lengthscales so many times shorter: from the first one, sqrt(d) deviations,
# half of the waves of a few periods end at a constant.
SHORT = 10.0
# Evaluations after which the better of the two starts goes on alone.
RACE = 5
# A search ends where the objective f falls by less than FTOL max(|f|, 1).
FTOL = 1e-6
# The box and steps of theta where no grid is paid for: over 400 deviations a wave is a line.
WIDE = (12.0, 2400)
# Above so many nats a row for its grid, by which alone B is above .39, ARD is not tried.
PRICE = 0.5
# With fewer rows a column, ARD fits the noise by it: then the paper's box stays.
ROWS_PER_COLUMN = 10


def search(p, args, objective, penalty, rng, last_evals=None, begin=None):
    """The Optimum that training from the dict of parameters p finds; arguments as train.

    Above SMALL rows, if sparse, it begins at what is found with a tenth of them, and so on. Else a
    bound begins at the likelihood's optimum, a likelihood at the dict `begin`, if given, or at the
    better of two starts. Where fit has a start or a batch, there is one search; a stopped one is
    last.
    """
    if args.start is not None or args.batch is not None:
        return train(p, args, objective, penalty, rng)
    N = len(args.y)
    many = N > SMALL and args.family.inducing
    if begin and objective not in BOUNDS:
        return train(begin, args, objective, penalty, rng)
    if many:
        rows = np.sort(rng.choice(N, N // 10, replace=False))
        few = SimpleNamespace(**vars(args) | dict(X=args.X[rows], y=args.y[rows]))
        found = search(p, few, objective, penalty, rng, last_evals, begin)
    elif objective in BOUNDS:
        found = likelihood_start(p, args, penalty, rng, last_evals, begin)
    else:
        found = race(p, args, objective, penalty, rng)
    if found.message == STOPPED:
        return found
    max_evals = args.max_evals
    if many:
        max_evals = min(max_evals, last_evals or max(LAST_EVALS, LAST_ROWS // N))
    return train(found.x, args, objective, penalty, rng, max_evals)


def race(p, args, objective, penalty, rng):
    """The better Optimum of RACE evaluations from p and from lengthscales SHORT times shorter."""
    ln_theta = p["ln_theta"].copy()
    ln_theta[:min(args.X.shape[1], len(ln_theta) - 1)] -= 2 * math.log(SHORT)
    max_evals = min(RACE, args.max_evals)
    first = train(p, args, objective, penalty, rng, max_evals)
    if first.message == STOPPED:
        return first
    second = train(dict(p, ln_theta=ln_theta), args, objective, penalty, rng, max_evals)
    better = min(first, second, key=lambda optimum: optimum.f)
    return better._replace(message=second.message)


def likelihood_start(p, args, *settings):
    """The Optimum of the marginal likelihood (33), or (34) of VFE, from parameters p.

    Its x is a dict with p's keys. settings: the other arguments of search.
    """
    given = args.family.given
    q = {name: p[name] for name in p if name not in ("c", "L_S")}
    if not given:
        q["ln_noise"] = np.array(0.0)
    optimum = search(q, args, "VFE" if args.family.inducing else "nll", *settings)
    if given:
        return optimum
    x = free_form(args.X, args.y, **optimum.x, kernel=args.kernel, sparse=args.sparse)
    return optimum._replace(x=x)


def multistart_fit(X, y, *args, last_evals=None, begin=None, over=map, **settings):
    """A Fit as pacgp_ref.fit, whose arguments X, y, args and settings are, by `search`, in blocks.

    last_evals: most evaluations that start from the optimum of a part; None: LAST_EVALS, or, if
    more, as many as see LAST_ROWS. begin: dict of parameters where the likelihood begins. over:
    map, or what works like it: the sums over blocks of rows by a pool's or an engine's map,
    docs/scale.md. Rows in memory-mapped files are read where they
    are used; the files must stay as they are. seed also draws the parts of the rows; callback is
    called in each of the searches, and a true result ends them all. `first` is by default that of
    the kernel's row in beyond/kernels.py.
    """
    settings = dict(first=first_of(settings.get("kernel", se_kernel)), ftol=FTOL) | settings
    if last_evals is not None:
        last_evals = check_count("last_evals", last_evals)
    return fit(X, y, *args, sparse=blocks(over),
               search=partial(search, last_evals=last_evals, begin=begin), **settings)


# --- one lengthscale, or one a column ------------------------------------------------------------

def either_fit(X, y, method, M, ard, cost, **settings):
    """The multistart_fit of least cost(fit), with one lengthscale or, from there, one a column.

    ard: whether it has one a column; None: either. Above SMALL rows a tenth of them says which; a
    start is followed as it is.
    """
    d = X.shape[1]
    if ard is None and len(y) > SMALL and "start" not in settings:
        rng = np.random.default_rng(settings["seed"])
        rows = np.sort(rng.choice(len(y), len(y) // 10, replace=False))
        part = either_fit(X[rows], y[rows], "VFE", M, None, schwarz, **settings)
        ard = len(part.ln_theta) == d + 1
    if ard is False or len(y) > SMALL or "start" in settings:
        return multistart_fit(X, y, method, M, ard=bool(ard), **settings)
    one = multistart_fit(X, y, method, M, **settings)
    if one.optimum.message == STOPPED and ard is None:
        return one
    ln_l2, ln_signal = one.optimum.x["ln_theta"]
    begin = dict(one.optimum.x, ln_theta=np.append(np.full(d, ln_l2), ln_signal))
    each = multistart_fit(X, y, method, M, ard=True, begin=begin, **settings)
    return each if ard else min(one, each, key=cost)


def schwarz(fit):
    """What the search minimised; a likelihood, -ln p(y), pays ln(N)/2 nats for each parameter of
    theta that is not at the end of its box. Schwarz 1978.
    """
    _, objective = METHODS[fit.method]
    if objective in BOUNDS:
        return fit.optimum.f
    ln_theta = np.abs(fit.optimum.x["ln_theta"])
    return fit.optimum.f + np.sum(ln_theta < np.max(ln_theta)) * math.log(fit.N) / 2


def has_both(d, kernel):
    """Whether a kernel of d columns has two parametrisations, with one lengthscale and with d."""
    first = first_of(kernel)
    return len(first(d, False)) < len(first(d, True))


def paper_fit(X, y, method="kl-PAC-GP", M=None, ard=None, n_eps=1, kernel=se_kernel, grid=GRID,
              **settings):
    """The Fit with the paper's certificate, by multistart_fit; ard = None: the lower B of two.

    Theorem: with theta in the union of two grids, each theta of grid i having p_theta =
    1/(2 |Theta_i|), (4) holds for all theta and Q at once. So ln 2 is paid, as by n_eps. Not where
    N and d alone say that one lengthscale is taken: a grid of PRICE nats a row certifies little.
    """
    N, d = X.shape
    if not has_both(d, kernel) or ard is None and ln_grid_size(d + 1, grid) > PRICE * N:
        ard = False
    if ard is None:
        n_eps = 2 * n_eps
    return either_fit(X, y, method, M, ard, lambda fit: fit.bound, n_eps=n_eps, kernel=kernel,
                      grid=grid, **settings)


def part_fit(X, y, method="full-GP", M=None, ard=None, kernel=se_kernel, **settings):
    """A Fit of rows that certify nothing, by multistart_fit; ard = None: the better by schwarz.

    Theorem: given these rows the prior, or what is tested, is fixed, whatever chose it. The other
    rows are independent of them, so that starts, parametrisation and box cost nothing.
    """
    both = has_both(X.shape[1], kernel)
    wide = len(y) >= ROWS_PER_COLUMN * X.shape[1]
    return either_fit(X, y, method, M, ard if both else False, schwarz, kernel=kernel,
                      **dict(grid=WIDE if wide else GRID) | settings)
