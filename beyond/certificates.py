"""Certificates that no paper here has: by held-out rows, by a prior that was trained, for streams.

For a table, `held_out` and `prior_from_part` certify a GP, `certify_predictions` the predictions of
any model. For a stream, `certificate` is a bound averaged over several rates lam, with its proof;
online.online_bound has a single lam. Symbols are those of pacgp_ref.py and online.py: P and Q are
the GP prior and posterior, delta is the probability that a certificate fails. `over` is map, or the
map of a pool of threads or processes, which then computes blocks of rows.
"""
import hashlib
import math
from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from pacgp_ref import (FAMILIES, METHODS, TINY, ULP, VAR_FLOOR, ZERO_ONE_LOSSES, Fit, check_array,
                       check_choice, check_count, check_data, check_kind, check_scalar,
                       check_shapes, kl_inv, ln_confidence, mean_loss, repeated_rows,
                       signal_variance)
from online import bound_terms
from beyond.search import trained_part
from beyond.rounding import (Certified, Enclosed, enclosed_at, enclosed_full_given,
                             enclosed_sparse_given, from_above, losses_of_mean, risk_from_above)


# ln of the factors that prior_from_part tries on the noise of the certifying rows. With the largest
# even the lower bound on the noise becomes 10^7 times the scale: then Q is P, and KL = 0.
TEMPERS = (*range(-2, 9), 10, 12, 16, 20, 24, 28, 32)
# The steps of a column's digest, by which draw_part draws.
SKETCH = 2.0**-32
# The rates that a certificate averages over: for n up to 10^8.
LAMS = tuple(8.0 * 0.5**k for k in range(15))


# --- tables: held-out rows, a prior from a part --------------------------------------------------

def draw_part(X, y, share, seed=0, groups=None):
    """Returns the sorted indices of part one, the rows that train, drawn at random.

    The other rows certify. The SHA-256 digest of the table and of `seed` seeds the generator.
        X, y      (N, d), (N,): the table; the digest depends on the order of its rows
        share     in (0, 1): part one's share of the rows or, with groups, of the groups
        seed      a whole number; choosing the seed by its certificate voids the certificate
        groups    (N,): labels; all rows of a group are in the same part. None: no groups

    A column c enters the digest as the sum of w c/|c|, rounded to a multiple of SKETCH, where the
    weights w (N,) are fixed random numbers. So all entries count, but the unit of a column does
    not. Nor does rounding: an ulp in each entry moves the sum by about 1e-16, which changes the
    multiple for one column in a million.

    Assumption, the usual one about a hash: the draw is as if independent of the rows. Then, given
    the set of rows (or groups), all parts of one size are equally likely, whatever the order of the
    file and the labels. So rows drawn independently stay independent in both parts. Tables that
    differ only by rounding may get the same draw, which does no harm. But the draw must not be
    the same for all tables: in a file sorted by an input it would then select by the rank of that
    input, and the rows that certify would not be drawn like new ones.

    ValueError unless both parts have at least two rows or groups.
    """
    X, y = check_data(X, y, copy=False)
    seed = check_count("seed", seed, 0)
    units = np.arange(len(y))
    if groups is not None:
        labels, units = np.unique(check_groups(groups, y), return_inverse=True)
    n = len(y) if groups is None else len(labels)
    n1 = round(check_scalar("share", share, 0, 1) * n)
    if not 2 <= n1 <= n - 2:
        what = "rows" if groups is None else "groups"
        raise ValueError(f"share {share} of {n} {what} leaves fewer than two in one part")
    weights = np.random.default_rng(181012263).random(len(y)) - 0.5     # a seed that is no table's
    sketch = [sketched(column, weights) for column in (*X.T, y, units)]
    digest = hashlib.sha256(f"{X.shape} {seed} {sketch}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest, "big"))
    return np.flatnonzero(np.isin(units, rng.permutation(n)[:n1]))


def sketched(column, weights):
    """Returns an int that stands for a column c (N,) in the digest that seeds draw_part.

    It is the sum of w c/|c|, divided by SKETCH and rounded; 0 if c is 0. weights: w (N,), fixed
    random numbers. Unlike a digest of the bytes of c, the int almost never changes if c is
    rounded or has another unit.
    """
    column = column / max(np.max(np.abs(column)), TINY)
    norm = max(np.linalg.norm(column), 1.0)              # below 1 only if rounding made the column
    return round(float(np.sum(weights * column) / norm / SKETCH))


def check_part(rows, N):
    """Returns `rows`, the indices of part one among all N rows, as an array.

    ValueError unless they increase, lie in 0 .. N - 1 and give each part at least two rows.
    """
    rows = np.asarray(rows)
    whole = rows.ndim == 1 and rows.dtype.kind in "iu" and np.all(np.diff(rows) > 0)
    if not (whole and 2 <= len(rows) <= N - 2 and 0 <= rows[0] and rows[-1] < N):
        raise ValueError("rows must be increasing row indices that leave two rows in each part of "
                         f"{N}, got {rows}")
    return rows


def check_groups(groups, y):
    """Returns the labels `groups`, (N,) or (N, 1), as an array (N,).

    ValueError unless each entry of y (N,) has a label, and none is NaN or None.
    """
    labels = np.asarray(groups)
    labels = labels[:, 0] if labels.shape == (len(y), 1) else labels
    try:
        _, known = np.unique(labels), not np.any(labels != labels)
    except TypeError:                                    # None or pandas' NA among them
        known = False
    if labels.shape != y.shape or not known:
        raise ValueError("groups must be a label for each row, none of them NaN or None")
    return labels


def binomial_bound(misses, n, delta):
    """Upper confidence bound on the probability of a miss, given `misses` in n independent trials.

        the largest p with P(Bin(n, p) <= misses) >= delta, rounded up; 1 if misses >= n
    Langford 2005. The bound fails with probability at most delta. P(Bin(n, p) <= k) is computed as
    P(Bin(n, p) = k) (1 + r_k + r_k r_(k-1) + ...), where r_j = j (1 - p)/((n - j + 1) p) > 0, so
    nothing cancels. ValueError unless misses and n are whole and delta is in (0, 1].
    """
    if not (misses >= 0 and misses % 1 == 0 and n >= 1 and n % 1 == 0 and 0 < delta <= 1):
        raise ValueError("misses and n must be whole numbers, delta in (0, 1], "
                         f"got {misses!r}, {n!r}, {delta!r}")
    misses = int(misses)
    n = int(n)
    if misses >= n:
        return 1.0
    j = np.arange(misses, 0, -1)
    ln_n_factorial = math.lgamma(n + 1)
    ln_choose = ln_n_factorial - math.lgamma(misses + 1) - math.lgamma(n - misses + 1)

    def ln_tail(p):
        terms = np.array([ln_choose, misses * math.log(p), (n - misses) * math.log1p(-p)])
        other_terms = np.cumprod(j * ((1 - p) / p) / (n - j + 1)).sum()
        error = 16 * ULP * (ln_n_factorial + np.abs(terms).sum() + misses + 1)
        return terms.sum() + math.log1p(other_terms) + error
    low = misses / n
    high = 1.0
    while low < (middle := (low + high) / 2) < high:
        if ln_tail(middle) < math.log(delta):
            high = middle
        else:
            low = middle
    return high


def delta_each(delta, names):
    """Returns delta / len(names), the share of delta for each certificate in the list `names`.

    All of them then hold at once with probability 1 - delta, by the union bound.
    """
    return delta / len(names)


class Predictions(NamedTuple):
    """What certify_predictions guarantees.

    "These rows" are those passed to it, and N is their number. A row misses if its prediction is
    off by more than eps. At least a share `coverage` of new rows are off by at most `half_width`.
    With groups, each group counts as one, with the share of its rows that miss. Then N is the
    number of groups, `missed` is the mean of these shares, and `bound` is on the expected share in
    a new group. `half_width` then suffices for all rows of at least a share `coverage` of groups.
    """
    bound: float               # on the probability that a new row misses
    missed: float              # the share of these rows that did
    half_width: float          # [y], inf if coverage needs more rows; None without coverage
    N: int


def certify_predictions(y, yhat, eps, delta=0.01, groups=None, coverage=None):
    """Certifies any model by its errors on rows it has not seen: returns Predictions.

    These rows must have no part in training, nor in the choice of the model, of any step before the
    model, or of eps.
        y, yhat   (n,): targets of these rows, drawn independently, and their predictions
        eps       [y]: a row misses if |y - yhat| > eps in floating point
        delta     probability that the bound fails or, with coverage, that bound or interval does
        groups    (n,): labels; rows of a group may depend on each other, but groups are drawn
                  independently. None: no groups
        coverage  in (0, 1): the interval yhat -+ half_width is to hold at least this share of new
                  y; with groups, all y of at least this share of new groups. None: no interval

    The bound is that of risk_bound, half_width that of covering_score. If coverage is given, each
    gets half of delta, and so both hold together with probability 1 - delta. ValueError for bad
    input.
    """
    y = check_array("y", y, 1, copy=False)
    yhat = check_array("yhat", yhat, 1, copy=False)
    check_shapes("y and yhat", y, yhat)
    eps = check_scalar("eps", eps, 0)
    named = ["bound"] + ["half_width"] * (coverage is not None)
    delta = delta_each(check_scalar("delta", delta, 0, 1), named)
    off = np.abs(y - yhat)
    bound, missed, n = risk_bound(1.0 * (off > eps), delta, groups)
    half_width = None
    if coverage is not None:
        ends = off + 4 * ULP * (np.abs(y) + np.abs(yhat))          # which are rounded, too
        half_width = covering_score(largest(ends, groups), coverage, delta)
    return Predictions(bound, missed, half_width, n)


def risk_bound(losses, delta, groups=None, zero_one=True):
    """Returns three numbers: an upper confidence bound on the expected loss; the mean loss; n.

        losses     (n,) in [0, 1], of rows that neither trained nor chose the model
        delta      probability with which the bound may fail
        groups     (n,): labels; each group counts as one, with its mean loss
        zero_one   whether each loss is 0 or 1
    n is the number of rows or, with groups, of groups. The bound is the binomial_bound if zero_one
    and without groups, else kl^-1(mean, ln(1/delta)/n).
    """
    if groups is not None:
        _, number = np.unique(check_groups(groups, losses), return_inverse=True)
        losses = np.bincount(number, losses) / np.bincount(number)
    n = len(losses)
    risk = mean_loss(np.sum(losses), n)
    if zero_one and groups is None:
        return binomial_bound(round(risk * n), n, delta), risk, n
    return kl_inv(risk, math.log(1 / delta) / n), risk, n


def largest(scores, groups):
    """Returns the largest of the scores (n,) in each group; the scores if groups is None.

    groups: (n,), a label for each score. The result has an entry per group, sorted by label.
    """
    if groups is None:
        return scores
    labels, number = np.unique(check_groups(groups, scores), return_inverse=True)
    found = np.zeros(len(labels))
    np.maximum.at(found, number, scores)
    return found


class HeldOut(NamedTuple):
    """Upper bounds on the true risk of Q and of its mean, from rows that training did not see.

    `bound` and `risk` are those of predictions drawn from Q, `mean_bound` and `mean_risk` those of
    predictions by the mean of Q. The risks are mean losses on the rows that training did not see; N
    is the number of these rows. Each bound holds with probability 1 - delta. If `grouped`, N is the
    number of groups of rows, and a bound is on the expected loss of a new group: the mean loss of
    its rows.
    """
    bound: float               # of a prediction drawn from Q
    mean_bound: float
    risk: float                # mean expected loss of Q on those rows, rounded up
    mean_risk: float
    delta: float
    N: int
    grouped: bool = False


def enclosed_rows(fit, X, over, offset):
    """Returns mean and variance (n,) of a Fit at X (n, d), and bounds on their rounding errors.

    Mean and variance are those of f, without noise. If the GP was trained on y = (t - middle)/unit,
    it predicts the target t by middle + unit mean. The bound for the mean also covers the rounding
    of this sum.
        over     map, or a pool's equivalent
        offset   |middle|/unit, or 0 if y was not scaled
    """
    mean, var, mean_error, var_error = enclosed_at(fit.posterior, X, over)
    return mean, var, mean_error + 2 * ULP * offset, var_error


def held_out(fit, X, y, delta=0.01, over=map, groups=None, offset=0.0):
    """Bounds the true risk of a Fit or Certified by rows X (n, d), y (n,) that had no part in it.

    Returns a HeldOut, with two bounds:
        for predictions drawn from Q    kl^-1(risk, ln(1/delta)/n), risk their mean expected loss
        for those by the mean of Q      binomial_bound, if each loss is 0 or 1 and there are no
                                        groups; otherwise kl^-1(mean_risk, ln(1/delta)/n)
    Langford 2005; Foong et al. 2021. The bounds certify `fit`, not a GP trained again on all rows.
    Choosing one of several Fits, or of several eps, by its bound on the same rows voids the bounds,
    unless each was computed with its share of delta.

        delta    probability with which each of the two bounds may fail
        over     map, or a pool's equivalent
        groups   (n,): labels; a group counts as one, with its mean loss. None: no groups
        offset   |middle|/unit, if y is (t - middle)/unit for the targets t of a table; otherwise 0.
                 The prediction of t is middle + unit mean. The bounds also cover the rounding of
                 this sum, which is about ULP |middle| and matters if t is far from 0

    Theorem: the mean losses of groups drawn independently are independent and in [0, 1]. So kl^-1
    holds with the number of groups in place of n, whatever the rows of a group have in common.

    ValueError for bad input.
    """
    check_kind("fit", fit, (Fit, Certified), "fit")
    X, y = check_data(X, y, copy=False, d=fit.posterior.Z.shape[1])
    delta = check_scalar("delta", delta, 0, 1)
    mean, var, mean_error, var_error = enclosed_rows(fit, X, over, offset)
    floor = VAR_FLOOR**2 * signal_variance(fit.posterior.ln_theta)
    parts = [slice(None)]
    if groups is not None:
        labels = check_groups(groups, y)
        parts = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    risks = []
    losses = np.zeros(len(y))
    for rows in parts:
        of_Q = Enclosed(None, mean[rows], var[rows], 0.0, mean_error[rows], var_error[rows], 0.0)
        risks.append(risk_from_above(y[rows], of_Q, fit.eps, fit.loss, floor))
        losses[rows] = losses_of_mean(y[rows], of_Q, fit.eps, fit.loss)
    risk = mean_loss(np.sum(risks), len(parts))
    mean_bound, mean_risk, n = risk_bound(losses, delta, groups, fit.loss in ZERO_ONE_LOSSES)
    bound = kl_inv(risk, math.log(1 / delta) / n)
    return HeldOut(bound, mean_bound, risk, mean_risk, delta, n, groups is not None)


def interval_scores(fit, X, y, by_deviation=False, least=0.0, over=map, groups=None, offset=0.0):
    """Returns conformal scores |y - mean|/u, rounded up, of rows X (n, d), y (n,).

    They are for covering_score: one per row or, with groups, the largest of each group's rows.
        fit            a Fit or Certified in which these rows had no part; `mean` is its prediction
        by_deviation   True: u is the standard deviation of y by `fit`, noise included. False: u = 1
        least          [y]: if by_deviation, a u smaller than `least` is replaced by `least`
        groups         (n,): labels. None: no groups
        over           map, or a pool's equivalent
        offset         |middle|/unit, if y is (t - middle)/unit for the targets t; otherwise 0
    """
    mean, var, mean_error, var_error = enclosed_rows(fit, X, over, offset)
    scores = np.abs(y - mean) + mean_error
    if by_deviation:
        var = np.maximum(var - var_error, 0.0) + math.exp(fit.ln_noise)
        scores = scores / np.maximum(np.sqrt(var), least)
    return largest(scores * (1 + 16 * ULP), groups)


def covering_score(scores, coverage=0.95, delta=0.01):
    """With confidence 1 - delta, at least a share `coverage` of new scores is at most this value.

        s_(k), the k-th smallest of scores (n,), k the least with P(Bin(n, coverage) >= k) <= delta
    It is inf if there is no such k in 1 .. n, that is, if coverage^n > delta.

    Scores |y - mean|/u, of rows that trained neither mean nor u > 0, give the intervals mean -+ u
    s_(k), in which y lies for at least a share `coverage` of new rows. If groups are drawn
    independently, pass for each group the largest score of its rows: then in at least a share
    `coverage` of new groups all rows lie in their intervals.

    To have two coverages hold together with probability 1 - delta, compute each with its share of
    delta, e.g. half. The same is true of a coverage and a bound on how often a row misses by more
    than eps (risk_bound).

    Theorem (Vovk 2012; Park et al. 2020): let the scores and a new one be independent draws of one
    law F(t) = P(score <= t), which may have atoms. Then P(F(s_(k)) < coverage) <= delta.

    Proof. Let q be the least t with F(t) >= coverage, which exists because F is continuous from the
    right. F(s_(k)) < coverage means s_(k) < q, i.e. at least k of the n scores are below q. Each
    score is below q with probability p = P(score < q) <= coverage, by the choice of q. So the
    probability is P(Bin(n, p) >= k), which grows with p, and is at most P(Bin(n, coverage) >= k) <=
    delta. Ties are safe: they can only make s_(k), and F there, larger.
    """
    coverage = check_scalar("coverage", coverage, 0, 1)
    n = len(scores)
    allowed = bisect_right(
        range(n), 1 - coverage, key=lambda misses: binomial_bound(misses, n, delta))
    return float(np.append(np.sort(scores), np.inf)[n - allowed])


def prior_from_part(X, y, method="full-GP", M=None, share=0.5, seed=0, over=map, n_eps=1,
                    xi=False, rows=None, **settings):
    """Trains the prior on part of the rows and certifies by the other rows: returns a Certified.

    Ambroladze et al. 2007; Perez-Ortiz et al. 2021.
        X, y          (N, d), (N,): all rows
        method        a key of METHODS, except "free-..."
        M             number of inducing inputs; the full methods ignore it
        share, seed   part one's share of the rows; the seed of its draw and of its training
        rows          the increasing indices of part one. None: draw_part draws them
        over          map, or a pool's equivalent
        n_eps         number of calls that differ in eps alone; the bounds of all hold at once
        xi            True: the bound has the smaller xi(N) in place of 2 sqrt(N), see ln_confidence
        settings      further arguments of trained_part or of pacgp_ref.fit, such as eps and delta

    Part one trains theta, noise and Z; theta is not rounded to a grid. The prior is the GP given
    part one. The posterior Q is the GP given all rows, with the noise variance of the other rows
    multiplied by e^temper. So a large temper leaves Q close to the prior. The bound holds for all Q
    at once. So every temper in TEMPERS may be tried, and the one with the least bound is taken.

    Anything else that the prior depends on, such as the units of X and y and all settings, may be
    chosen by part one, but not by the other rows. ValueError for bad input.
    """
    X, y = check_data(X, y, copy=False)
    family, _ = METHODS[check_choice("method", method, METHODS)]
    if not FAMILIES[family].given:
        raise ValueError("a prior from a part needs a posterior given by the data, "
                         f"not {method}")
    part1 = check_part(draw_part(X, y, share, seed) if rows is None else rows, len(y))
    part2 = np.setdiff1d(np.arange(len(y)), part1)
    trained, y1 = trained_part(X[part1], y[part1], method, M, seed=seed, over=over, n_eps=n_eps,
                               xi=xi, **settings)
    y2 = y[part2]
    if np.any(y1 != y[part1]):
        y2 = np.clip(y2, np.min(y1), np.max(y1))       # for Q alone: the risk is that of y
    p = trained.optimum.x
    trained = trained._replace(
        ln_theta=p["ln_theta"], ln_noise=float(p["ln_noise"]), penalty=math.log(n_eps),
        ln_confidence=ln_confidence(len(part2), trained.delta, xi), repeats=repeated_rows(X, y))
    enclosed_given = enclosed_full_given
    if FAMILIES[family].inducing:
        enclosed_given = enclosed_sparse_given
        p = dict(p, alpha=trained.alpha, over=over)
    tempered_fits = []
    for temper in TEMPERS:
        Q = enclosed_given(X[part1], y1, X[part2], y2, **p, temper=temper, kernel=trained.kernel)
        tempered = trained._replace(Z=Q.posterior.Z)
        tempered_fits.append(from_above(tempered, Q, y[part2], len(part1), float(temper)))
    return min(tempered_fits, key=lambda certified: certified.fit.bound)


# --- streams: an average over lam ----------------------------------------------------------------

class Certificate(NamedTuple):
    """Upper bound on the conditional risk, averaged over the n data points of a stream so far.

    The risk at a point is the expected loss there, given all points before it but not the point.
    `certificate` computes the bound, by a mean over several rates lam.
    """
    bound: float               # in units of the loss
    loss: float                # mean loss
    KL: float                  # [nats] per point
    lam: float                 # the rate with the largest term in the mean over lams
    n: int
    delta: float


def certificate(loss_sum, KL, n, lams=LAMS, delta=0.05, K=1.0):
    """Bounds the mean risk over the n points of a stream so far, at all n at once: a Certificate.

        bound = K max{p in [0, 1]: mean over lams of
                      exp(-lam loss_sum - KL - n ln(1 - (1 - exp(-lam K)) p)) <= 1/delta}
    The bound holds with probability at least 1 - delta for all n at once, and is rounded up. With a
    single lam it is never above online_bound/n.
        loss_sum   sum over the n points of the expected loss under Q_i, i the batch of the point
        KL         sum over batches i of KL(Q_i||P_i)
        lams       the rates lam to average over, fixed before the stream; LAMS suits K = 1
        K          losses are in [0, K]
    Hypotheses: delta is fixed before the stream. P_i may use earlier batches only. Whether a point
    opens a new batch is decided before the point is seen. In the proof h is a function drawn from
    P_i or Q_i, and loss_j(h) is its loss at point j.

    Proof (Catoni 2007; Seldin et al. 2012; Chugg, Wang & Ramdas 2023). Let c = 1 - exp(-lam K). Let
    r_j(h) be the risk of h at point j, divided by K. It is conditional on all points before j,
    those of the same batch included.
    (a) exp is convex, so E exp(-lam loss_j(h)) <= 1 - c r_j(h), given all points before j.
    (b) Let g_i(h) be the sum of -lam loss_j(h) - ln(1 - c r_j(h)) over the points j of batch i. The
        points before j fix P_i and whether j is still in batch i. So by (a) the product over
        batches of E_{h ~ P_i} exp g_i(h) is a supermartingale, point by point, that starts at 1.
        The mean of this product over lams is such a supermartingale, too.
    (c) By Ville's inequality this mean ever exceeds 1/delta with probability at most delta.
    (d) By Donsker & Varadhan the product is at least exp sum_i (E_{h ~ Q_i} g_i(h) -
        KL(Q_i||P_i)), for each lam.
    (e) -ln(1 - c r) is convex in r. So by Jensen's inequality the lower bound in (d) still holds
        where each r_j(h) is replaced by its mean p over h ~ Q_i and all n points.
    (f) The mean over lams of these lower bounds grows with p. By (c) it is at most 1/delta at all
        n, with probability 1 - delta. Then p, the mean risk divided by K, is at most the largest
        value at which that mean is at most 1/delta.
    """
    loss_sum, KL, n, lams, delta, K = bound_terms(loss_sum, KL, n, lams, delta, K)
    lams = np.atleast_1d(lams)
    c = -np.expm1(-lams * K)

    def exponents(p):
        """Returns the exponents in the formula of the bound, at p: one per lam, rounded down."""
        gain = -n * np.log1p(-c * p)
        cost = lams * loss_sum + KL
        return gain - cost - 4 * ULP * (gain + cost + 1)

    def ln_mean_exp(terms):
        return terms.max() + math.log(np.mean(np.exp(terms - terms.max())))
    low = loss_sum / (n * K)
    high = 1.0
    while low < (p := (low + high) / 2) < high:
        if ln_mean_exp(exponents(p)) > -math.log(delta):
            high = p
        else:
            low = p
    below_1 = min(high, 1 - 2 * ULP)      # c rounds to 1 where lam K > 37
    lam = float(lams[np.argmax(exponents(below_1))])
    return Certificate(min(K, K * high * (1 + 4 * ULP)), loss_sum / n, KL / n, lam, int(n),
                       delta)
