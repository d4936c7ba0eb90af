"""Training from several starts, in blocks of rows: what the programs use.

pacgp_ref.fit is the paper's: one search from one start. Here a search on many rows begins with a
part of them, and one that ends no better than a constant starts again. Any start may depend on the
data: the certificate holds for every Q at once. Not in the papers.
"""
from functools import partial
from types import SimpleNamespace

import numpy as np

from pacgp_ref import (BOUNDS, SMALL, STOPPED, VAR_FLOOR, certify, check_count, fit, free_form,
                       gibbs_risk, se_kernel, train)
from beyond.blocks import blocks
from beyond.kernels import first_of

# Above SMALL rows training starts from the optimum of a tenth of them, and takes at most LAST_EVALS
# evaluations or, if more, as many as see LAST_ROWS rows in all: docs/scale.md has the cost in B.
LAST_EVALS = 30
LAST_ROWS = 5_000_000
# B above this share of a constant's, or of 1, is flat: the search starts again from the optimum of
# the marginal likelihood.
PLATEAU = 0.99


def search(p, args, objective, penalty, rng, last_evals=None):
    """The Optimum that training from the dict of parameters p finds; arguments as train.

    Above SMALL rows a sparse GP without a start or a batch begins with what is found with a tenth
    of the rows, and so on. Where B is then no better than a constant's, training starts again from
    the optimum of the likelihood, and the better B of the two is kept.
    """
    begin = p
    max_evals = args.max_evals
    N = len(args.y)
    if N > SMALL and args.family.inducing and args.start is None and args.batch is None:
        rows = np.sort(rng.choice(N, N // 10, replace=False))
        few = SimpleNamespace(**vars(args) | dict(X=args.X[rows], y=args.y[rows]))
        part = search(p, few, objective, penalty, rng, last_evals)
        if part.message == STOPPED:
            return part
        p = part.x
        max_evals = min(max_evals, last_evals or max(LAST_EVALS, LAST_ROWS // N))
    found = train(p, args, objective, penalty, rng, max_evals)
    if objective not in BOUNDS or found.message == STOPPED:
        return found
    guess = gibbs_risk(args.y, 0 * args.y, np.full(N, VAR_FLOOR), args.eps, args.loss)
    bound, _ = BOUNDS[objective]
    constant = bound(guess, 0.0, N, args.delta, penalty, args.exact)
    if found.f <= PLATEAU * min(constant, 1.0):
        return found
    again = likelihood_start(begin, args, penalty, rng, last_evals)
    if again.message != STOPPED:
        again = train(again.x, args, objective, penalty, rng, max_evals)
    return min(found, again, key=lambda optimum: certify(optimum, args, penalty).bound)


def likelihood_start(p, args, penalty, rng, last_evals=None):
    """The Optimum of the marginal likelihood (33), or (34) of VFE, from parameters p.

    Its x is a dict with p's keys.
    """
    given = args.family.given
    q = {name: p[name] for name in p if name not in ("c", "L_S")}
    if not given:
        q["ln_noise"] = np.array(0.0)
    optimum = search(q, args, "VFE" if args.family.inducing else "nll", penalty, rng, last_evals)
    if given:
        return optimum
    x = free_form(args.X, args.y, **optimum.x, kernel=args.kernel, sparse=args.sparse)
    return optimum._replace(x=x)


def multistart_fit(X, y, *args, last_evals=None, over=map, **settings):
    """A Fit as pacgp_ref.fit, whose arguments X, y, args and settings are, by `search`, in blocks.

    last_evals: most evaluations that start from the optimum of a part; None: LAST_EVALS, or, if
    more, as many as see LAST_ROWS. over: map, or what works like it: the sums over blocks of rows
    by a pool's or an engine's map, docs/scale.md. Rows in memory-mapped files are read where they
    are used; the files must stay as they are. seed also draws the parts of the rows; callback is
    called in each of the searches, and a true result ends them all. `first` is by default that of
    the kernel's row in beyond/kernels.py.
    """
    settings.setdefault("first", first_of(settings.get("kernel", se_kernel)))
    if last_evals is not None:
        last_evals = check_count("last_evals", last_evals)
    return fit(X, y, *args, sparse=blocks(over), search=partial(search, last_evals=last_evals),
               **settings)
