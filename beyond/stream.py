"""A Gaussian process that learns from a stream, with three certificates that hold at every row.

O-PACGP as Liu et al. (2022) publish it is `online.stream`; the value it minimises is no bound. Here
the KL of a batch is counted before kernel, noise and scale change. This makes the certificates
hold. `begin` takes the first rows, `step` a batch; `forecast` predicts; `certificates` returns the
bounds. Symbols are those of online.py, and

    code            meaning, unit
    settings        what is declared before the stream, a Settings
    learner         the state carried from batch to batch, a Learner
    ledger          sums over the rows that count (all after those of `begin`), a Ledger
    old, new, Q     P_i, the posterior before batch i; the posterior after it; Q_i, the one of these
                    two that the ledger counts for batch i. All in scaled units
    posterior       a Posterior: f at the inducing inputs Z (M, d) is u = L alpha, where
                    L L^T = k(Z, Z) + jitter and alpha ~ N(S b, S), S = (I + A)^-1 = root^T root
    ln_theta        parameters of the kernel, a function as se_kernel; ln_noise is ln of the noise
                    variance
    middle, unit    mean and standard deviation of the targets learnt so far [y]: y = middle +
                    unit y_s, where y_s is in scaled units. X is scaled by Learner.input_scale
    eps_y, eps_s    tolerance of the loss: eps_y in [y], eps_s in scaled units. settings.eps is the
                    same tolerance in units of settings.unit
"""
import math
from functools import partial
from typing import NamedTuple

import numpy as np

from pacgp_ref import (JITTER, TINY, ULP, VAR_FLOOR, check_array, check_choice, check_columns,
                       check_count, check_data, check_kernel, check_kind, check_scalar, cholesky,
                       full_gp_nll, in_doubles, row_dots, se_kernel, signal_variance, tri_inv)
from online import (MIN_NOISE, Posterior, check_logarithm, check_parameters, check_prior, descend,
                    predict, prior, update)
from beyond.certificates import LAMS, Certificate, certificate, delta_each
from beyond.kernels import check_digits, exact_kernel, kernel_row
from beyond.rounding import (Enclosed, KL_from_above, enclosed_marginals, losses_of_mean,
                             risk_from_above)


# An outlier, which is not learnt, is farther off than is usual by more than this factor.
FAR = 10
# An input wakes when its changes exceed this many of its units. Changes between independent uniform
# inputs stay below 3.5 deviations.
WAKES = 4
# Steps of Adam on the first rows, and where an input wakes.
PRETRAIN = 50
CERTIFIED_LOSSES = ("01", "square", "exp")
DISCARD = ("redundant", "oldest", "auto")
EPS_UNITS = ("first", "y")
LEARN = ("window", "nothing")


# --- what is declared, and what is carried -------------------------------------------------------

class Settings(NamedTuple):
    """What is declared before the stream.

    If Settings are chosen by their results on a stream, the certificates on that stream are void.
    """
    eps: float = 0.6           # tolerance of the loss, in units of `unit`
    loss: str = "01"           # "01", "square" or "exp"
    delta: float = 0.05        # probability that any of the three certificates ever fails
    lams: tuple = LAMS         # rates that the bound averages over, with equal weights
    M: int = 50                # inducing inputs at most
    discard: str = "redundant" # what to drop above M: the most redundant, the "oldest" (a clock),
                               # or "auto": the oldest while an input has moved one way only, else
                               # the most redundant
    learn: str = "window"      # what moves kernel and noise between steps: the exact evidence (4)
                               # of the last rows, or "nothing"
    window: int = 50           # those last rows
    rate: float = 0.05         # step size of Adam
    forgetting: float = 1.0    # forgetting factor: the share of what is known that is kept from
                               # batch to batch, below 1 for a target that drifts
    unit: str = "first"        # unit of eps: the deviation of the first rows, or the target's ("y")


class Ledger(NamedTuple):
    """Sums over all rows after those of `begin`, from which certificates are computed.

    `before` and `mean` are of P_i, the posterior before batch i; `after` and `KL` of Q_i, which is
    the posterior after it, or P_i. The sums are rounded up; losses have no unit.
    """
    rows: float = 0.0
    before: float = 0.0        # loss of predictions drawn from P_i
    mean: float = 0.0          # loss of the mean of P_i
    after: float = 0.0         # loss of predictions drawn from Q_i
    KL: float = 0.0            # KL(Q_i||P_i) [nats], over batches


class Moments(NamedTuple):
    """Number, mean and sum of squared deviations of the targets learnt so far."""
    n: float = 0.0             # rows
    mean: float = 0.0          # [y]
    squares: float = 0.0       # sum of the squared deviations from it [y^2]


class Learner(NamedTuple):
    """The state of the certified O-PACGP after batch i, of a size that does not grow."""
    settings: Settings         # the same from the first row to the last
    posterior: Posterior       # P_{i+1}, in scaled units
    ln_noise: np.ndarray       # ()
    input_scale: np.ndarray    # (2, d) mean of the inputs in the first rows, and their unit, which
                               # grows where an input wakes
    target: Moments            # of the targets learnt so far: the running scale
    recent: np.ndarray         # (w, d+1) the last rows learnt, target last, w at most
                               # settings.window
    errors: np.ndarray         # of the last forecasts [y], four at most; 0 before the first
    adam: np.ndarray           # (3, T+1) m, v, t of adam_step, for ln_theta and ln_noise
    ledger: Ledger
    eps_y: float               # settings.eps [y]
    moved: np.ndarray = np.zeros((2, 1), bool)     # (2, d) which inputs have risen, which fallen


# --- units that follow the targets ---------------------------------------------------------------

@in_doubles
def running_moments(moments, y):
    """Returns the Moments of all targets, the earlier ones and y (n,); Chan et al. 1983.

    moments: the Moments of the earlier ones.
    """
    if len(y) == 0:
        return moments
    n, mean, squares = moments
    total = n + len(y)
    shift = np.mean(y) - mean
    within = np.sum((y - np.mean(y)) ** 2)
    squares = squares + within + shift**2 * n * len(y) / total
    return Moments(float(total), float(mean + shift * len(y) / total), float(squares))


@in_doubles
def middle_and_unit(moments, unit="y"):
    """Returns mean and standard deviation [y] of the targets so far.

        moments   the Moments of these targets
        unit      Settings.unit, the unit of eps: "first", the deviation of the first rows, or "y",
                  the unit of y itself
    If the targets are constant up to rounding, the deviation returned is 1 with unit "y". With unit
    "first" this raises ValueError, since eps would have no unit. ValueError also if the squares of
    the targets overflow.
    """
    n, mean, squares = moments
    if not math.isfinite(squares):
        raise ValueError("y is too large: the squares of its values overflow")
    deviation = math.sqrt(squares / n)
    varies = deviation > 1e-15 * abs(mean) + 1e-150      # whose square keeps its digits
    if unit != "y" and not varies:
        raise ValueError("y does not vary in the rows so far: eps cannot be in its deviations; "
                         "use unit y, or more first rows")
    return mean, deviation if varies else 1.0


@in_doubles
def rescale(posterior, ratio, shift, forgetting=1.0):
    """Returns the Posterior in new units of the target: that of f', where f = ratio f' + shift.

    So ratio is the new unit divided by the old, and f' = L alpha' at the inducing inputs:
        alpha = ratio alpha' + shift L^-1 1,   so A' = ratio^2 A and b' = ratio (b - shift A L^-1 1)
    A' and b' are also multiplied by `forgetting`, in [0, 1]: 1 forgets nothing. The prior of f' is
    again N(0, k): a new prior, chosen from the past alone, which a certificate allows.
    """
    A = forgetting * ratio**2 * posterior.A
    b = forgetting * ratio * (posterior.b - shift * posterior.A @ np.sum(posterior.Linv, 1))
    return posterior._replace(A=A, b=b, root=tri_inv(cholesky(np.eye(len(b)) + A, "I + A")))


@in_doubles
def column_middle(V):
    """Returns the mean (d,) of each column of V (n, d), exact for a constant column."""
    return V[0] + np.mean(V - V[0], 0)


@in_doubles
def column_scale(V, middle):
    """Root mean square (d,) of each column of V (n, d) after `middle` (d,) is subtracted.

    No square overflows. The result for a column equal to its middle is inf, so that a column
    divided by it is 0.
    """
    top = np.maximum(np.abs(V).max(0), TINY)
    size = np.sqrt(np.mean(((V - middle) / top) ** 2, 0))
    return np.where(size > 8 * ULP, size * top, np.inf)


@in_doubles
def ordinary(v):
    """Returns a mask (n,), False for outliers among the values v (n,).

    An outlier's distance from the median exceeds FAR times the upper quartile of all distances from
    the median that are not 0.
    """
    off = np.abs(v - np.median(v))
    usual = np.quantile(off[off > 0], 0.75, method="lower") if np.any(off) else 0.0
    return off <= FAR * usual


@in_doubles
def expected(off, sd, before):
    """Returns a mask (n,) of rows to learn: False where the forecast's error is an outlier.

        off      (n,): absolute errors of the forecasts, in the order of the rows
        sd       (n,): standard deviations of the forecasts, noise included
        before   absolute errors of earlier batches, the latest at the end
    An error is an outlier if it exceeds both FAR sd and FAR times the median of the four errors
    just before it. So after a jump in level two rows are left out, and the third is learnt.
    """
    errors = np.append(before, off)
    ends = len(before) + np.arange(len(off))
    usual = [np.median(errors[max(end - 4, 0):end]) for end in ends]
    return off <= FAR * np.maximum(sd, usual)


@in_doubles
def first_scale(X):
    """Returns mean and standard deviation of each column of X (n, d), without outliers: (2, d).

    The deviation of a constant column is set to 1.
    """
    middle, size = np.empty((2, X.shape[1]))
    for k, column in enumerate(X.T):
        V = column[ordinary(column), None]
        middle[k] = column_middle(V)[0]
        size[k] = column_scale(V, middle[k])[0]
    return np.array([middle, np.where(np.isinf(size), 1.0, size)])       # constant: it may yet move


def awake_units(X, y, ln_theta, ln_noise, kernel):
    """Returns factors (d,) by which inputs are to be divided: 1 for those that do not wake.

    An input wakes if it suddenly changes far more than before.

        X, y                 (w, d), (w,): the last rows, scaled
        ln_theta, ln_noise   parameters of the kernel and ln of the noise variance, for the evidence
        kernel               a function as se_kernel
    A change is the absolute difference of an input between two rows in succession, if not 0. An
    input wakes when the median of its last five changes is above WAKES. With fewer than three
    changes it does not wake, since a single outlying row makes two.

    The factor of an input that wakes is this median to the power 0, 1/3, 2/3 or 1. The power is the
    same for all of them: the one for which the last rows, their inputs divided by the factors, have
    the highest evidence, L (4).
    """
    ratio = np.ones(X.shape[1])
    for k, change in enumerate(np.abs(np.diff(X, axis=0)).T):
        last = change[change > 0][-5:]
        if len(last) > 2 and np.median(last) > WAKES:
            ratio[k] = np.median(last)
    if np.all(ratio == 1):
        return ratio

    def evidence(ratio):
        return full_gp_nll(X / ratio, y, ln_theta, ln_noise, kernel)[0]
    return min((ratio**share for share in (0, 1/3, 2/3, 1)), key=evidence)


# --- inducing inputs that follow the stream ------------------------------------------------------

@in_doubles
def pivot_rows(Z, M, ln_theta, kernel=se_kernel):
    """Returns the sorted indices of at most M rows of Z (N, d) that explain the others best.

    They are chosen by greedy pivoted Cholesky of k(Z, Z), where k is `kernel`, a function as
    se_kernel, with the parameters ln_theta. The choice ends when at most a share JITTER of the
    prior variance of each row is unexplained, so repeated rows are left out.
    """
    k = signal_variance(ln_theta)
    unexplained = np.full(len(Z), k)
    L = np.zeros((len(Z), min(M, len(Z))))
    chosen = []
    while len(chosen) < L.shape[1] and unexplained.max() > JITTER * k:
        i = int(np.argmax(unexplained))
        j = len(chosen)
        column, _ = kernel(Z, Z[i:i + 1], ln_theta)
        L[:, j] = (column[:, 0] - L[:, :j] @ L[i, :j]) / math.sqrt(unexplained[i])
        unexplained = unexplained - L[:, j] ** 2
        chosen = chosen + [i]
        unexplained[chosen] = 0.0
    return sorted(chosen)


@in_doubles
def extended(posterior, X, most=None, share=0.01):
    """Adds inducing inputs to a Posterior: the rows of X (n, d) least explained so far.

    With L_a, Z_a those of `posterior`, and X the rows that are added, the new L is
        L = (L_a 0; B C),   B = k(X, Z_a) L_a^-T,   C C^T = k(X, X) + jitter - B B^T

        most    how many rows are added at most, chosen by pivot_rows; None: no limit
        share   a row is added only if more than this share of its prior variance is unexplained.
                0: this condition is dropped, so without `most` all rows are added

    A and b get zeros for the new entries of alpha, since the data say nothing about them; the old
    entries of L^-1, A and b stay. Returns the new Posterior, or `posterior` itself if nothing is
    added.
    """
    ln_theta = posterior.ln_theta
    kernel = posterior.kernel
    K_Xa, _ = kernel(X, posterior.Z, ln_theta, by_differences=True)
    B = K_Xa @ posterior.Linv.T
    new = np.arange(len(X))
    if share > 0:
        unexplained = 1 - row_dots(B, B) / signal_variance(ln_theta)
        new = np.flatnonzero(unexplained > share)
    if most is not None:
        new = new[pivot_rows(X[new], most, ln_theta, kernel)]
    if len(new) == 0:
        return posterior
    B = B[new]
    Z = np.concatenate([posterior.Z, X[new]])
    K_XX, _ = kernel(X[new], X[new], ln_theta, by_differences=True)
    jitter = JITTER * signal_variance(ln_theta) * np.eye(len(new))
    Cinv = tri_inv(cholesky(K_XX + jitter - B @ B.T, "k(X, X) given Z"))
    zeros = np.zeros((len(posterior.b), len(new)))
    Linv = np.block([[posterior.Linv, zeros], [-Cinv @ B @ posterior.Linv, Cinv]])
    check_prior(Z, ln_theta, Linv, kernel)
    A = np.block([[posterior.A, zeros], [zeros.T, 0 * Cinv]])
    root = np.block([[posterior.root, zeros], [zeros.T, np.eye(len(new))]])
    return Posterior(Z, ln_theta, Linv, A, np.append(posterior.b, zeros[0]), root, kernel)


# --- losses and KL of a batch, rounded up --------------------------------------------------------

@in_doubles
def enclosed_kl(new, old):
    """Returns KL(Q_new||Q_old) [nats] of two Posteriors, and a bound on its rounding error; L (13).

        (tr P S - M + e^T P e)/2 + ln|root_old| - ln|root|,   P = I + A_old,   e = mu - mu_old
    Both have the same Z and kernel. S = root^T root and mu = S b are covariance and mean of alpha
    under `new`; A_old, mu_old and root_old are those of `old`. As in beyond/rounding.py, each error
    is taken with the worst sign; a sum errs by about 4 M ulp of the sum of its absolute terms.
    """
    rounding = 4 * ULP * (len(old.b) + 8)
    P = np.eye(len(old.b)) + old.A
    S = new.root.T @ new.root
    S_size = np.abs(new.root.T) @ np.abs(new.root)
    e = new.root.T @ (new.root @ new.b) - old.root.T @ (old.root @ old.b)
    means_size = sum(np.abs(q.root.T) @ (np.abs(q.root) @ np.abs(q.b)) for q in (new, old))
    ln_old, ln_new = (np.log(np.abs(np.diag(q.root))) for q in (old, new))
    KL = (np.sum(P * S) - len(e) + e @ P @ e) / 2 + np.sum(ln_old - ln_new)               # L (13)
    quadratic_size = np.abs(e) @ np.abs(P) @ np.abs(e)
    logs_size = np.sum(np.abs(ln_old)) + np.sum(np.abs(ln_new)) + len(e)
    size = np.sum(np.abs(P) * S_size) + len(e) + quadratic_size + 2 * logs_size
    return float(KL), float(rounding * (size + np.abs(P @ e) @ means_size))


@in_doubles
def enclosed_posterior(posterior, X):
    """Returns the marginals of a Posterior at X (n, d), with bounds on their rounding errors.

    What is returned is an Enclosed of beyond/rounding.py, in which `posterior` is None and KL is 0.
    """
    M = len(posterior.Z)
    k = signal_variance(posterior.ln_theta)
    row = kernel_row(posterior.kernel)
    check_digits(M, row.ulps(posterior.Z, posterior.Z, posterior.ln_theta))
    mu = posterior.root.T @ (posterior.root @ posterior.b)
    mu_size = np.abs(posterior.root.T) @ (np.abs(posterior.root) @ np.abs(posterior.b))
    K_XZ, ulps = exact_kernel(posterior.kernel, X, posterior.Z, posterior.ln_theta)
    mean, var, mean_error, var_error = enclosed_marginals(
        K_XZ, posterior.Linv, k, mu, posterior.root, ulps)
    mean_error = mean_error + 4 * ULP * M * math.sqrt(k) * np.linalg.norm(mu_size)
    return Enclosed(None, mean, var, 0.0, mean_error, var_error, 0.0)


def sum_above(a, b):
    """Returns a + b, rounded up; where b is 0, exactly a."""
    return math.nextafter(a + b, math.inf) if b else a


@in_doubles
def charged_update(old, X, y, ln_noise, eps, loss, M, ledger=Ledger(), middle=0.0, unit=1.0,
                   learnt=None):
    """Learns a batch and adds its losses and KL to the ledger.

    Returns the new Posterior, which has learnt the batch; Q_i, the Posterior that the ledger counts
    for this batch; and the new Ledger.
        old            P_i, the Posterior before; the new Posterior and Q_i have its kernel
        X, y           (n, d), (n,): the batch, in scaled units
        ln_noise       ln of the noise variance, in scaled units
        eps, loss      tolerance, in scaled units, and name of the loss, one of CERTIFIED_LOSSES
        M              how many inducing inputs are added at most; none is dropped here
        ledger         the Ledger before
        middle, unit   the forecast is middle + unit mean [y]: the rounding of this sum is counted
                       in the losses of P_i
        learnt         (X, y) of the rows to learn from; None: all

    Sums are rounded up. Any Q_i may be counted. Here it is P_i, whose KL is 0, if the loss of P_i
    on the batch is at most loss + KL/lam of the new Posterior; otherwise it is the new Posterior.
    lam is about the rate that gives the least bound for the rows so far.
    """
    n = len(y)
    k = signal_variance(old.ln_theta)
    drawn = enclosed_posterior(old, X)
    wide = extended(old, X, M)
    new = update(wide, *(learnt or (X, y)), ln_noise)
    rounded = 4 * ULP * (abs(middle) / unit + np.abs(drawn.mean))
    drawn = drawn._replace(mean_error=drawn.mean_error + rounded)
    drawn_after = enclosed_posterior(new, X)
    before = n * risk_from_above(y, drawn, eps, loss, VAR_FLOOR**2 * k)
    of_mean = float(np.sum(losses_of_mean(y, drawn, eps, loss)))
    after = n * risk_from_above(y, drawn_after, eps, loss, VAR_FLOOR**2 * k)
    KL = KL_from_above(*enclosed_kl(new, wide))
    lam = math.sqrt(2 * (ledger.KL + 3) / (ledger.after + 1))      # any: about what is best
    Q = new
    if after + KL / lam >= before:
        Q = old
        after = before
        KL = 0.0
    return new, Q, ledger._replace(
        rows=ledger.rows + n,
        before=sum_above(ledger.before, before),
        mean=sum_above(ledger.mean, of_mean),
        after=sum_above(ledger.after, after),
        KL=sum_above(ledger.KL, KL))


# --- the learner ---------------------------------------------------------------------------------

def learnt(p, adam, X, y, kernel, steps, rate):
    """Returns (p, adam) after `steps` of Adam on the exact evidence L (4) of X (n, d), y (n,).

        p        dict of ln_theta and ln_noise
        adam     Adam's state, None at first
        kernel   a function as se_kernel
        rate     Adam's step size
    """
    def evidence(p):
        return full_gp_nll(X, y, **p, kernel=kernel)
    return descend(evidence, p, adam, steps, dict.fromkeys(p, rate))


@in_doubles
def directions(X):
    """Returns whether each column of X (n, d) ever rises from row to row, and ever falls: (2, d).

    A column for which one is true and the other false goes one way only, as a clock does.
    """
    steps = np.diff(X, axis=0)
    return np.array([np.any(steps > 0, 0), np.any(steps < 0, 0)])


@in_doubles
def median_of_three(X):
    """Returns the running median over three rows of X (n, d): (n - 2, d), or no row if n < 3.

    It removes single outliers.
    """
    return np.median([X[:-2], X[1:-1], X[2:]], axis=0) if len(X) > 2 else X[:0]


def discarded(settings, moved):
    """Returns which inducing inputs Settings.discard says to drop: "oldest" or "redundant".

    "auto" means the oldest if some input has only risen or only fallen, since the stream will not
    return to old values. settings: the Settings; moved (2, d): which inputs have risen, and which
    have fallen.
    """
    if settings.discard != "auto":
        return settings.discard
    rises, falls = moved
    return "oldest" if np.any(rises != falls) else "redundant"


@in_doubles
def remaining_inputs(posterior, M, discard="redundant"):
    """Returns Z (at most M, d): the inducing inputs of a Posterior that are kept.

        M         how many at most; if there are no more, all are kept
        discard   "oldest": the last M are kept; "redundant": those that pivot_rows chooses
    """
    Z = posterior.Z
    if len(Z) <= M:
        return Z
    if discard == "oldest":
        return Z[-M:]
    return Z[pivot_rows(Z, M, posterior.ln_theta, posterior.kernel)]


def begin(X, y, settings=Settings(), ln_theta=None, ln_noise=math.log(0.1), pretrain=PRETRAIN,
          input_scale=None, kernel=se_kernel):
    """Starts learning from the first rows X (n, d), y (n,), n >= 2, in their own units: a Learner.

    These rows set the scale and P_1, and are not certified. Rows whose target is an outlier are
    left out.
        settings             a Settings
        ln_theta, ln_noise   where training starts, in scaled units; ln_theta None: lengthscales and
                             signal variance 1. The first `step` raises the noise variance to at
                             least MIN_NOISE
        pretrain             steps of Adam from this start, at twice settings.rate, on these rows:
                             O(n^3) a step; none with settings.learn = "nothing"
        input_scale          (2, d): mean and deviation of the inputs, if known beforehand, as from
                             the range of a clock or a sensor; None: those of these rows
        kernel               a function in KERNELS of beyond/kernels.py
    At most settings.M of the rows become inducing inputs, by pivot_rows. ValueError for bad input.
    """
    X, y = check_data(X, y)
    n, d = X.shape
    settings = check_settings(settings)
    check_kernel(kernel)
    kernel_row(kernel)      # its ValueError
    ln_noise = check_logarithm("ln_noise", ln_noise, 0)
    pretrain = check_count("pretrain", pretrain)
    if n < 2:
        raise ValueError(f"{n} row is too few to take a scale from: at least 2")
    moved = directions(median_of_three(X))
    X = X[ordinary(y)]
    y = y[ordinary(y)]
    if input_scale is None:
        input_scale = first_scale(X)
    scale = check_array("input_scale", input_scale, 2)
    if scale.shape != (2, d) or np.any(scale[1] <= 0):
        raise ValueError(f"input_scale must be (2, {d}), means and positive deviations: "
                         f"got {scale.tolist()}")
    moments = running_moments(Moments(), y)
    middle, unit = middle_and_unit(moments, settings.unit)
    with np.errstate(over="ignore", under="ignore"):
        X_s = check_array("X in units of input_scale", (X - scale[0]) / scale[1], 2)
        y_s = (y - middle) / unit
    eps_y = settings.eps * (1.0 if settings.unit == "y" else unit)
    if ln_theta is None:
        if not hasattr(kernel, "start"):
            raise ValueError(f"ln_theta is needed: {kernel.__name__} has no start of its own")
        ln_theta = np.zeros_like(kernel.start(d, True))
    _, ln_theta = check_parameters(X_s[:1], ln_theta, kernel=kernel)
    Z = X_s[pivot_rows(X_s, settings.M, ln_theta, kernel)]
    p = dict(ln_theta=ln_theta, ln_noise=ln_noise)
    if settings.learn != "nothing":
        p, _ = learnt(p, None, X_s, y_s, kernel, pretrain, 2 * settings.rate)
    posterior = update(prior(Z, p["ln_theta"], kernel), X_s, y_s, p["ln_noise"])
    recent = np.column_stack([X, y])[-settings.window:]
    adam = np.zeros((3, ln_theta.size + 1))
    return Learner(settings, posterior, p["ln_noise"], scale, moments, recent, np.zeros(1), adam,
                   Ledger(), eps_y, moved)


@in_doubles
def step(learner, X, y):
    """Learns a batch X (n, d), y (n,), n >= 0, in the units of `begin`: returns the new Learner.

    First come the terms of the certificates. These are the loss of P_i on the batch, which it has
    not seen; the loss of Q_i, which has the kernel of P_i; and KL(Q_i||P_i). So a batch adds one
    KL, and the losses of all its rows. Then kernel, noise and scale change, inducing inputs are
    dropped, and the result is P_{i+1}. These changes may use the whole past, this batch included.

    Whether a row opens a new batch must be decided before the row is seen. Batches of a fixed size
    satisfy this.

    learner: from `begin` or `step`; it is not changed. ValueError for bad input. If rows are
    skipped because of this error, or because of any value in them, a certificate does not cover the
    skipped rows: it is about the other rows alone.
    """
    check_kind("learner", learner, Learner, "begin or step")
    settings = learner.settings
    old = learner.posterior
    middle, unit = middle_and_unit(learner.target)
    X, y = check_data(X, y, d=learner.input_scale.shape[1], least=0)
    if len(y) == 0:
        return learner

    def scaled(X, y):
        return (X - learner.input_scale[0]) / learner.input_scale[1], (y - middle) / unit
    X_s, y_s = scaled(X, y)
    for name, value in (("X", X_s), ("y", y_s)):
        if np.max(np.abs(value)) > 1e100:
            raise ValueError(f"{name} has a value more than 1e100 deviations away from the rows "
                             "before")
    eps_s = learner.eps_y / unit
    mean, var = predict(old, X_s)
    off = np.abs(y_s - mean)
    kept = expected(off, np.sqrt(var + np.exp(learner.ln_noise)), learner.errors / unit)
    new, _, ledger = charged_update(
        old, X_s, y_s, learner.ln_noise, eps_s, settings.loss, settings.M, learner.ledger, middle,
        unit, (X_s[kept], y_s[kept]))
    errors = np.append(learner.errors, unit * off)[-4:]
    X, y = X[kept], y[kept]
    moved = learner.moved | directions(median_of_three(np.vstack([learner.recent[-3:, :-1], X])))
    recent = np.concatenate([learner.recent, np.column_stack([X, y])])[-settings.window:]
    Z = remaining_inputs(new, settings.M, discarded(settings, moved))
    p = dict(ln_theta=old.ln_theta, ln_noise=learner.ln_noise)
    adam = learner.adam
    centre, unit_X = learner.input_scale
    if settings.learn != "nothing":
        recent_X, recent_y = scaled(recent[:, :-1], recent[:, -1])
        p, adam = learnt(p, adam, recent_X, recent_y, old.kernel, 1, settings.rate)
        ratio = awake_units(recent_X, recent_y, **p, kernel=old.kernel)
        if np.any(ratio > 1):            # the kernel of `new` has no ln_theta in the new units
            new = new._replace(Z=new.Z / ratio, ln_theta=np.nan * old.ln_theta)
            Z = Z / ratio
            unit_X = unit_X * ratio
            p, _ = learnt(p, None, recent_X / ratio, recent_y, old.kernel, PRETRAIN,
                          2 * settings.rate)
    new = update(new, X_s[:0], y_s[:0], p["ln_noise"], Z, p["ln_theta"])
    moments = running_moments(learner.target, y)
    next_middle, next_unit = middle_and_unit(moments)
    ratio = next_unit / unit
    # No more than that many rows of the least noise say, or old rows outweigh those to come.
    most = moments.n * signal_variance(new.ln_theta) / MIN_NOISE
    forgetting = min(settings.forgetting, most / max(ratio**2 * np.trace(new.A), TINY))
    if ratio != 1 and unit != math.sqrt(learner.target.squares / learner.target.n):
        forgetting = 0.0                 # y was constant till now, which says nothing of its noise
    new = rescale(new, ratio, (next_middle - middle) / unit, forgetting)
    ln_noise = p["ln_noise"] - 2 * math.log(ratio)      # the same noise, in the next unit
    return learner._replace(
        posterior=new, ln_noise=np.maximum(ln_noise, math.log(MIN_NOISE)), target=moments,
        input_scale=np.array([centre, unit_X]), recent=recent, errors=errors,
        adam=np.array(adam), ledger=ledger, moved=moved)


@in_doubles
def forecast(learner, X_new):
    """Predicts at X_new (n, d), in the units of `begin`: returns mean [y], var_f and var [y^2].

    Each is (n,). var_f is the variance of f, and var that of y, noise included. learner: a Learner.
    """
    check_kind("learner", learner, Learner, "begin or step")
    X_new = check_columns("X_new", X_new, learner.input_scale.shape[1])
    middle, unit = middle_and_unit(learner.target)
    X_s = (X_new - learner.input_scale[0]) / learner.input_scale[1]
    mean, var = predict(learner.posterior, X_s)
    return middle + unit * mean, unit**2 * var, unit**2 * (var + np.exp(learner.ln_noise))


# --- what is certified ---------------------------------------------------------------------------

class Certificates(NamedTuple):
    """Certificates for the rows that count, each with probability 1 - delta/3 at all times.

    Each bounds a mean risk over these rows, which are all after those of `begin`. `draw` and `mean`
    are about P_i, the GP before batch i. `training` is about Q_i: P_i, or the GP after batch i.
    """
    draw: Certificate          # of predictions drawn from P_i; L (11)
    mean: Certificate          # of the mean of P_i
    training: Certificate      # of Q_i, on rows drawn anew as those of batch i were; L (10)


@in_doubles
def certificates(learner):
    """Returns the Certificates of a Learner so far.

    All hold at once, at all times, with probability 1 - delta. The risk at a row is its expected
    loss, given the rows before and, if incomplete rows are left out, that the row is complete. The
    same numbers bound the risk given the row's inputs as well, but this second statement may fail
    with another probability delta.

    Only the training certificate has a KL. For each batch this certificate is about the Q_i
    that charged_update chose: P_i, or the new posterior before inducing inputs are dropped.
    ValueError if no row counts yet.
    """
    check_kind("learner", learner, Learner, "begin or step")
    ledger = learner.ledger
    if ledger.rows == 0:
        raise ValueError("no row counts yet: the first ones set the scale")
    of = partial(certificate, n=int(ledger.rows), lams=learner.settings.lams,
                 delta=delta_each(learner.settings.delta, Certificates._fields))
    return Certificates(of(ledger.before, 0.0), of(ledger.mean, 0.0), of(ledger.after, ledger.KL))


def check_settings(settings):
    """Returns the Settings, each value checked and converted.

    ValueError names the first wrong value.
    """
    check_kind("settings", settings, Settings, "Settings(...)")
    lams = check_array("lams", np.atleast_1d(settings.lams), 1)
    if len(lams) == 0 or np.any(lams <= 0):
        raise ValueError("lams must hold at least one value, all above 0 and finite, "
                         f"got {lams.tolist()}")
    return Settings(
        eps=check_scalar("eps", settings.eps, 0),
        loss=check_choice("loss", settings.loss, CERTIFIED_LOSSES),
        delta=check_scalar("delta", settings.delta, 0, 1),
        lams=tuple(lams.tolist()),
        M=check_count("M", settings.M),
        discard=check_choice("discard", settings.discard, DISCARD),
        learn=check_choice("learn", settings.learn, LEARN),
        window=check_count("window", settings.window),
        rate=check_scalar("rate", settings.rate, 0),
        forgetting=check_scalar("forgetting", settings.forgetting, 0, 1),
        unit=check_choice("unit", settings.unit, EPS_UNITS))
