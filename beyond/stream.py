"""A Gaussian process that learns from a stream, with six certificates that hold at every row.

O-PACGP as Liu et al. (2022) publish it is `online.stream`; its number is no bound. Here the KL is
paid before kernel, noise and scale move, so that the certificates hold: `begin` takes the first
rows, `step` a batch, `forecast` predicts, `certificates` says what is certified.
"""
import math
from functools import partial
from typing import NamedTuple

import numpy as np

from pacgp_ref import (TINY, ULP, VAR_FLOOR, check_array, check_choice, check_columns, check_count,
                       check_data, check_kind, check_scalar, cholesky, column_middle, column_scale,
                       tri_inv)
from online import (MIN_NOISE, State, check_batch, check_bound, check_logarithm, check_parameters,
                    descend, entry_ulps, exact_nll, extended, free_energy, kernel, kl_to_old,
                    old_features, pac_objective, pivot_rows, predict, prior, same_points, signal_variance, update)
from beyond.certificates import LAMS, Certificate, certificate
from beyond.rounding import Enclosed, KL_from_above, enclosed_marginals, risk_from_above

MAX_TRACE_A = 1e12     # of tr A after a change of units: above, as after a huge outlier, I + A would lose the digits of I
GOAL_LOSSES = ("01", "square", "exp")
DISCARD = ("redundant", "least", "oldest")
GOAL_UNITS = ("first", "running", "y")
LEARN = ("window", "evidence", "bound", "nothing")


def process_kl_enclosed(new, old):
    """KL(Q_new||Q_old) of two States with one kernel, and by how much rounding may have moved it; L Eq. (13).

    Errors as those of a fit: each with the worst sign. Sums err by 4 M ulp of the size of their terms; U, where Z moves, as
    L_a^-1 E L^-T and by its own sums; d KL = <A_a U (S - I) + r mu^T, dU>, r = A_a U mu - c_a. The jitter of points that stay
    is one variable; as rounded L_a, L have it, the two are only correlated to M such errors of k, the last term.
    """
    size, moved = np.abs, not np.array_equal(new.Z, old.Z)
    unit = 4 * ULP * (entry_ulps(old.Z, new.Z, new.ln_theta) + len(new.c))
    U, S, trace = old_features(new, old), new.root.T @ new.root, np.trace(old.A)
    mu, mu_error = new.root.T @ (new.root @ new.c), unit * (size(new.root.T) @ (size(new.root) @ size(new.c)))
    KL = float(kl_to_old(mu, S, new.root, U, trace, old))                                              # L Eq. (13)
    AU, m_a, W = size(old.A) @ size(U), size(U) @ size(mu), size(new.root.T) @ size(new.root) + np.eye(len(mu))
    root_c = size(old.root) @ size(old.c)
    terms = np.trace(S) + mu @ mu + len(mu) + trace + np.sum(AU * (size(U) @ W)) \
        + m_a @ size(old.A) @ m_a + 2 * size(old.c) @ m_a + root_c @ root_c \
        + 2 * sum(np.sum(size(np.log(size(np.diag(root))))) for root in (new.root, old.root))
    r = old.A @ (U @ mu) - old.c
    error = unit * terms + size(mu + U.T @ r) @ mu_error
    k, slope = signal_variance(new.ln_theta), old.A @ U @ (S - np.eye(len(mu))) + np.outer(r, mu)
    slope_L, rows_a, rows = slope @ new.Linv, size(old.Linv).sum(1), size(new.Linv).sum(1)
    U_error = k * (rows_a @ size(slope_L).sum(1)) + math.sqrt(k) * (size(slope).sum(0) @ rows) \
        + k * len(mu) * abs(np.sum((old.Linv.T @ slope_L) * same_points(old.Z, new.Z)))
    return KL, float(error + moved * unit * U_error)


def drop_costs(state):
    """KL(Q without u_j || Q) [nats] (M,): what each inducing input of a State is worth; not in the paper.

        v_j = L^-1 e_j/|L^-1 e_j|, S = root^T root:   (v^T A v + ln(v^T S v) + (v^T S c)^2/(v^T S v))/2
    """
    v = state.Linv / np.sqrt(np.sum(state.Linv**2, 0))
    s, t = np.sum((state.root @ v) ** 2, 0), v.T @ (state.root.T @ (state.root @ state.c))
    return (np.sum(v * (state.A @ v), 0) + np.log(s) + t**2 / s) / 2


def kept(state, M, discard="redundant"):
    """Z (at most M, d) of the inducing inputs that stay: without the most redundant, those worth least, or the oldest."""
    Z = state.Z
    if len(Z) <= M:
        return Z
    if discard == "oldest":
        return Z[-M:]
    if discard == "redundant":
        return Z[pivot_rows(Z, M, state.ln_theta)]
    others = np.delete(Z, np.argmin(drop_costs(state)), 0)
    return others if len(others) == M else kept(update(state, Z[:0], np.zeros(0), 0.0, others), M, discard)


class Goal(NamedTuple):
    """What is declared before the stream: the best of several choices tried on one stream is not certified."""
    eps: float = 0.6           # accuracy goal of the loss, in units of `unit`
    loss: str = "01"           # "01", "square" or "exp"
    delta: float = 0.05        # probability that any of the six certificates ever fails
    lams: tuple = LAMS         # rates that the bound averages over, with equal weights
    M: int = 50                # inducing inputs at most
    discard: str = "redundant" # which of more go: the most redundant, those worth "least", or the "oldest" (for a clock)
    learn: str = "window"      # what moves kernel and noise between steps: the exact evidence (4) of the last rows ("window"),
                               # the streaming evidence (8) of the batch ("evidence"), the bound (12) ("bound"), "nothing"
    window: int = 50           # those last rows
    rate: float = 0.05         # Adam's
    memory: float = 1.0        # share of what is known that is kept from batch to batch: below 1 for a target that drifts
    unit: str = "first"        # of eps: the deviation of the first rows ("first"), of all rows before ("running": an outlier
                               # then softens the goal of every later row), or the target's own unit ("y")


class Ledger(NamedTuple):
    """Sums over the rows that count: what the certificates are made of."""
    rows: float = 0.0
    before: float = 0.0        # loss of predictions drawn from the GP before each row came
    mean: float = 0.0          # loss of that GP's mean
    outside: float = 0.0       # rows outside its 95 % interval of y
    after: float = 0.0         # loss of the Q_i of each batch, and
    KL: float = 0.0            # KL(Q_i||P_i) [nats], over batches
    squares: float = 0.0       # squared errors of the predictions [y^2]
    last: float = 0.0          # losses of two naive forecasts: the last value before each batch,
    average: float = 0.0       # and the mean of all values before it


class Moments(NamedTuple):
    """Of the targets so far."""
    n: float = 0.0             # rows
    mean: float = 0.0          # [y]
    squares: float = 0.0       # sum of the squared deviations from it [y^2]


class Units(NamedTuple):
    """The least and the greatest unit of eps that a row which counts was measured by [y]."""
    low: float
    high: float


class Learner(NamedTuple):
    """All that the certified O-PACGP carries from batch to batch: arrays whose size does not grow with the rows seen."""
    goal: Goal                 # the same from the first row to the last
    state: State               # P_{i+1}, in scaled units
    ln_noise: np.ndarray       # ()
    input_scale: np.ndarray    # (2, d) mean and deviation of the inputs, from the first rows, fixed
    target: Moments            # of all targets so far: the running scale
    recent: np.ndarray         # (w, d+1) the last rows, target last, w at most goal.window
    adam: np.ndarray           # (3, T+1) m, v, t of adam_step, for ln_theta and ln_noise
    ledger: Ledger
    units: Units


def running_moments(moments, y):
    """The Moments with the targets y (n,) added; Chan et al. 1983."""
    n, mean, squares = moments
    if len(y) == 0:
        return moments
    total, shift = n + len(y), np.mean(y) - mean
    squares = squares + np.sum((y - np.mean(y)) ** 2) + shift**2 * n * len(y) / total
    return Moments(float(total), float(mean + shift * len(y) / total), float(squares))


def middle_and_unit(moments, unit="y"):
    """Mean and standard deviation of the targets so far; the deviation is 1 if they are constant to rounding.

    unit: of a Goal. ValueError where it is a deviation and they are constant, and where the squares overflow.
    """
    n, mean, squares = moments
    if not math.isfinite(squares):
        raise ValueError("y is too large: the squares of its values overflow")
    deviation = math.sqrt(squares / n)
    varies = deviation > 1e-15 * abs(mean) + 1e-150                      # whose square keeps its digits
    if unit != "y" and not varies:
        raise ValueError("y does not vary in the rows so far: no goal can be in its deviations; use unit y, or more first rows")
    return mean, deviation if varies else 1.0


def rescale(state, ratio, shift, memory=1.0):
    """The State of f' where f = ratio f' + shift: what the rows say, of which a share `memory` is kept, in new units.

        alpha = ratio alpha' + shift L^-1 1,   so A' = ratio^2 A and c' = ratio (c - shift A L^-1 1)
    The prior of f' is again N(0, k): a new prior, chosen from the past alone, which a certificate allows.
    """
    A = memory * ratio**2 * state.A
    c = memory * ratio * (state.c - shift * state.A @ np.sum(state.Linv, 1))
    return state._replace(A=A, c=c, root=tri_inv(cholesky(np.eye(len(c)) + A, "I + A")))


def what_to_learn(goal, eps, old, Z, X, y, X_recent, y_recent, ledger):
    """The objective of ln_theta and ln_noise, p -> value, back, that goal.learn names; the batch is one `old` has not seen.

    eps: in scaled units. (12) takes the lam that the training certificate of the ledger has chosen so far.
    """
    if goal.learn == "window":
        return lambda p: exact_nll(p, X_recent, y_recent)
    if goal.learn == "evidence":
        return lambda p: free_energy(dict(p, Z=Z), old, X, y)
    lam = one_of_six(goal, ledger, ledger.after, ledger.KL).lam
    return lambda p: pac_objective(dict(p, Z=Z), old, X, y, lam, eps, goal.loss)


def enclosed_state(state, X):
    """The Enclosed marginals of a State at X (n, d): those of `predict` with their rounding errors; KL is not used, and 0."""
    M, k, ulps = len(state.Z), signal_variance(state.ln_theta), entry_ulps(X, state.Z, state.ln_theta)
    size, mu = np.abs(state.root.T) @ (np.abs(state.root) @ np.abs(state.c)), state.root.T @ (state.root @ state.c)
    K_XZ = kernel(X, state.Z, state.ln_theta, exact=True)
    mean, var, mean_error, var_error = enclosed_marginals(K_XZ, state.Linv, k, mu, state.root, ulps - 8)
    mean_error = mean_error + 4 * ULP * M * math.sqrt(k) * np.linalg.norm(size)
    return Enclosed(None, mean, var, 0.0, mean_error, var_error, 0.0)


def paid_update(old, X, y, ln_noise, eps, loss, M, ledger=Ledger(), unit=1.0):
    """The posterior, a State under the kernel of P_i = old; Q_i; and the Ledger with this batch, its sums rounded up.

    Any Q_i may be booked: here the posterior, or P_i itself where that is cheaper at about the best lam so far. The posterior
    has all inducing inputs of P_i and at most M more: which of them go is decided later, and not paid for. X, y, ln_noise,
    eps: in scaled units, of `unit` [y].
    """
    new, k = update(old, X, y, ln_noise, extended(old, X, M)), signal_variance(old.ln_theta)
    drawn, drawn_after = (enclosed_state(state, X) for state in (old, new))
    mean = drawn._replace(var=0 * drawn.var, var_error=0 * drawn.var)
    before, of_mean, after = (len(y) * risk_from_above(y, at, eps, loss, VAR_FLOOR**power * k)
                              for at, power in ((drawn, 2), (mean, 4), (drawn_after, 2)))    # 4: a miss of the mean is 0 or 1
    variance = np.maximum(drawn.var - drawn.var_error, 0.0) + np.exp(ln_noise)
    outside = np.abs(y - drawn.mean) + drawn.mean_error >= 1.96 * np.sqrt(variance)
    KL = KL_from_above(*process_kl_enclosed(new, old))
    lam = math.sqrt(2 * (ledger.KL + 3) / (ledger.after + 1))            # any guess is valid: about what minimises the bound
    Q, after, KL = (new, after, KL) if after + KL / lam < before else (old, before, 0.0)
    above = lambda a, b: math.nextafter(a + b, math.inf) if b else a     # adding 0 is exact
    return new, Q, ledger._replace(
        rows=ledger.rows + len(y), before=above(ledger.before, before), mean=above(ledger.mean, of_mean),
        outside=ledger.outside + float(np.sum(outside)), after=above(ledger.after, after), KL=above(ledger.KL, KL),
        squares=ledger.squares + float(np.sum((y - drawn.mean) ** 2)) * unit**2)


def naive_losses(ledger, y, forecasts, eps, loss):
    """The Ledger with the losses of two forecasts of the batch y (n,), the last value and the mean so far, rounded up.

    y, forecasts, eps: in scaled units.
    """
    sums = []
    for so_far, value in zip((ledger.last, ledger.average), forecasts):
        at = Enclosed(None, np.full(len(y), value), np.zeros(len(y)), 0.0, 4 * ULP * abs(value), 0.0, 0.0)
        sums.append(math.nextafter(so_far + len(y) * risk_from_above(y, at, eps, loss, VAR_FLOOR**4), math.inf))
    return ledger._replace(last=sums[0], average=sums[1])


def begin(X, y, goal=Goal(), ln_theta=None, ln_noise=math.log(0.1), pretrain=50, input_scale=None):
    """The Learner that has seen the first rows X (n, d), y (n,), n >= 2: they set the scale and P_1, and do not count in m.

    X, y in their own units; input_scale (2, d): mean and deviation of the inputs where they are known beforehand (the range of
    a clock or a sensor). ln_theta, ln_noise: where kernel and noise start, in scaled units (default: lengthscales and signal
    variance 1); a noise variance below MIN_NOISE is lifted to it by the first step. `pretrain` steps of Adam move them, at
    2 goal.rate, none with goal.learn = "nothing"; "window" takes all first rows here, however many: O(n^3) a step. Inducing
    inputs: at most goal.M of the rows, by pivot_rows. ValueError for bad input.
    """
    X, y = check_data(X, y)
    goal, ln_noise, pretrain = check_goal(goal), check_logarithm("ln_noise", ln_noise, 0), check_count("pretrain", pretrain)
    if len(y) < 2:
        raise ValueError(f"{len(y)} row is too few to take a scale from: at least 2")
    if input_scale is None:
        centre = column_middle(X)
        size = column_scale(X, centre)
        input_scale = [centre, np.where(np.isinf(size), 1.0, size)]      # constant so far: it may yet move
    scale = check_array("input_scale", input_scale, 2)
    if scale.shape != (2, X.shape[1]) or np.any(scale[1] <= 0):
        raise ValueError(f"input_scale must be (2, {X.shape[1]}), means and positive deviations: got {scale.tolist()}")
    moments = running_moments(Moments(), y)
    middle, unit = middle_and_unit(moments, goal.unit)
    with np.errstate(over="ignore"):
        X_s, y_s = check_array("X in units of input_scale", (X - scale[0]) / scale[1], 2), (y - middle) / unit
    goal_unit = 1.0 if goal.unit == "y" else unit
    _, ln_theta = check_parameters(X_s[:1], np.zeros(X.shape[1] + 1) if ln_theta is None else ln_theta)
    start, p = prior(X_s[pivot_rows(X_s, goal.M, ln_theta)], ln_theta), dict(ln_theta=ln_theta, ln_noise=ln_noise)
    if goal.learn != "nothing":                                          # "bound" takes its lam from a ledger without losses
        objective = what_to_learn(goal, goal.eps * goal_unit / unit, start, start.Z, X_s, y_s, X_s, y_s, Ledger(len(y)))
        p, _ = descend(objective, p, None, pretrain, dict.fromkeys(p, 2 * goal.rate))
    state = update(prior(start.Z, p["ln_theta"]), X_s, y_s, p["ln_noise"])
    return Learner(goal, state, p["ln_noise"], scale, moments, recent=np.column_stack([X, y])[-goal.window:],
                   adam=np.zeros((3, ln_theta.size + 1)), ledger=Ledger(),
                   units=Units(math.inf, 0.0) if goal.unit == "running" else Units(goal_unit, goal_unit))


def step(learner, X, y):
    """The Learner after a batch X (n, d), y (n,), n >= 0, in the target's own units.

    First what counts: the loss of P_i on the batch it has not seen; Q_i under the kernel of P_i; its loss and KL(Q_i||P_i).
    Then what may look at the whole past: kernel, noise and scale move, and with them P_{i+1}. Within a batch the KL is paid
    once and the losses add up. ValueError for bad input; `learner` is then as before. A certificate does not
    cover a row that is skipped for this.
    """
    check_kind("learner", learner, Learner, "begin or step")
    goal, old, (middle, unit) = learner.goal, learner.state, middle_and_unit(learner.target)
    X, y = check_batch(X, y, learner.input_scale.shape[1])
    if len(y) == 0:
        return learner
    scaled = lambda X, y: ((X - learner.input_scale[0]) / learner.input_scale[1], (y - middle) / unit)
    X_s, y_s = scaled(X, y)
    for name, value in (("X", X_s), ("y", y_s)):
        if np.max(np.abs(value)) > 1e100:
            raise ValueError(f"{name} has a value more than 1e100 deviations away from the rows before")
    goal_unit = middle_and_unit(learner.target, goal.unit)[1] if goal.unit == "running" else learner.units.low
    eps = goal.eps * goal_unit / unit
    new, _, ledger = paid_update(old, X_s, y_s, learner.ln_noise, eps, goal.loss, goal.M, learner.ledger, unit)
    ledger = naive_losses(ledger, y_s, ((learner.recent[-1, -1] - middle) / unit, 0.0), eps, goal.loss)
    Z = kept(new, goal.M, goal.discard)
    p = dict(ln_theta=old.ln_theta, ln_noise=learner.ln_noise)
    recent, adam = np.concatenate([learner.recent, np.column_stack([X, y])])[-goal.window:], learner.adam
    if goal.learn != "nothing":
        objective = what_to_learn(goal, eps, old, Z, X_s, y_s, *scaled(recent[:, :-1], recent[:, -1]), ledger)
        p, adam = descend(objective, p, adam, 1, dict.fromkeys(p, goal.rate))
    new = update(new, X_s[:0], y_s[:0], p["ln_noise"], Z, p["ln_theta"])
    moments = running_moments(learner.target, y)
    next_middle, next_unit = middle_and_unit(moments)
    ratio, shift = next_unit / unit, (next_middle - middle) / unit
    new = rescale(new, ratio, shift, min(goal.memory, MAX_TRACE_A / max(ratio**2 * np.trace(new.A), TINY)))
    ln_noise = np.maximum(p["ln_noise"] - 2 * math.log(ratio), math.log(MIN_NOISE))      # the same noise, in the next unit
    units = Units(min(goal_unit, learner.units.low), max(goal_unit, learner.units.high))
    return learner._replace(state=new, ln_noise=ln_noise, target=moments, recent=recent, adam=np.array(adam), ledger=ledger,
                            units=units)


def forecast(learner, X_new):
    """mean [y], var_f, var [y^2] (n,) at X_new (n, d) in the target's own units: var_f of f, var of y, noise included."""
    check_kind("learner", learner, Learner, "begin or step")
    X_new = check_columns("X_new", X_new, learner.input_scale.shape[1])
    middle, unit = middle_and_unit(learner.target)
    mean, var = predict(learner.state, (X_new - learner.input_scale[0]) / learner.input_scale[1])
    return middle + unit * mean, unit**2 * var, unit**2 * (var + np.exp(learner.ln_noise))


class Certificates(NamedTuple):
    """Of the rows that count; each holds with probability 1 - delta/6, at all times at once."""
    draw: Certificate          # predictions drawn from the GP before each row came; L Eq. (11)
    mean: Certificate          # its mean
    interval: Certificate      # how often a row lies outside its 95 % interval
    training: Certificate      # the Q_i of each batch, on a row drawn anew as the batch's was; L Eq. (10)
    last: Certificate          # the last value before each batch as forecast: a GP that does not beat it is not worth its cost
    average: Certificate       # the mean of all values before it


def one_of_six(goal, ledger, loss, KL=0.0):
    """The Certificate of the rows of a Ledger with its share of the Goal's delta; loss, KL: sums, as certificate has them."""
    return certificate(loss, KL, int(ledger.rows), goal.lams, goal.delta / len(Certificates._fields))


def certificates(learner):
    """The Certificates so far: all hold at once, at all times, with probability 1 - delta. ValueError if no row counts yet.

    The risk is conditional on the rows before. The same numbers bound the risk conditional on these rows and on x_i, with a
    probability delta of failure of their own. Only the training certificate has a KL. It is about the Q_i that was booked: the
    posterior before inducing inputs are discarded, or P_i.
    """
    check_kind("learner", learner, Learner, "begin or step")
    ledger, goal = learner.ledger, learner.goal
    if ledger.rows == 0:
        raise ValueError("no row counts yet: the first ones set the scale")
    of = partial(one_of_six, goal, ledger)
    return Certificates(of(ledger.before), of(ledger.mean), of(ledger.outside), of(ledger.after, ledger.KL), of(ledger.last),
                        of(ledger.average))


def check_goal(goal):
    """The Goal as float, int and str; ValueError that names what is wrong with it."""
    check_kind("goal", goal, Goal, "Goal(...)")
    *_, lams, delta, _, _ = check_bound(0.0, 0.0, 1, goal.lams, goal.delta, 1.0, False, "lams")
    return Goal(check_scalar("eps", goal.eps, 0), check_choice("loss", goal.loss, GOAL_LOSSES), delta,
                tuple(np.atleast_1d(lams).tolist()), check_count("M", goal.M), check_choice("discard", goal.discard, DISCARD),
                check_choice("learn", goal.learn, LEARN), check_count("window", goal.window),
                check_scalar("rate", goal.rate, 0), check_scalar("memory", goal.memory, 0, 1),
                check_choice("unit", goal.unit, GOAL_UNITS))
