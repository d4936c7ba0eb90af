"""The scale of a table, and rows that repeat in it."""
import math
from typing import NamedTuple

import numpy as np

from pacgp_ref import check_data
from beyond.certificates import draw_part
from beyond.stream import column_middle, column_scale


# --- the scale -----------------------------------------------------------------------------------

class Scale(NamedTuple):
    """Mean and deviation of each input and of the target in the rows that set the scale.

    A constant input has deviation inf.
    """
    middle_X: np.ndarray       # (d,)
    unit_X: np.ndarray         # (d,)
    middle: float              # [y]
    unit: float                # [y]
    rows: int                  # how many set it


def scale_of(X, y, relative=False):
    """The Scale of the rows X (N, d), y (N,).

    relative: a root mean square about 0 for y, whose size then keeps its meaning. ValueError where
    y does not vary, where the squares of its unit, which variances have, lose their digits, and for
    what check_data refuses.
    """
    X, y = check_data(X, y, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        middle_X = column_middle(X)
        middle = 0.0 if relative else float(column_middle(y))
        unit_X = column_scale(X, middle_X)
        unit = float(column_scale(y, middle))
    if math.isinf(unit):
        raise ValueError(f"the target does not vary in the {len(y)} rows that set the scale: "
                         "there is no deviation to measure it by")
    if not 1e-150 < unit < 1e150:
        raise ValueError(f"the target's deviation, {unit:.3g}, is too far from 1 to be squared: "
                         "use another unit")
    return Scale(middle_X, unit_X, middle, unit, len(y))


def scaled(X, y, scale):
    """X, y in units of the Scale: (X - middle_X)/unit_X, (y - middle)/unit.

    ValueError for values above 1e100 then, and for what check_data refuses.
    """
    X, y = check_data(X, y, copy=False)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        X = (X - scale.middle_X) / scale.unit_X
        y = (y - scale.middle) / scale.unit
    if not (np.all(np.abs(X) < 1e100) and np.all(np.abs(y) < 1e100)):
        raise ValueError("the table has values more than 1e100 deviations apart: "
                         "drop or correct them")
    return X, y


def standardise(X, y, how="tenth", relative=False, seed=0):
    """X, y of the rows that count, scaled, and the Scale.

    X_new is scaled as (X_new - middle_X)/unit_X. how = "tenth": the scale of a tenth of the rows,
    drawn by seed and then left out, so that it owes nothing to the rows that the bound counts; a
    share: of the rows that choose the prior in prior_from_part(share=how, seed=seed), which stay;
    an array: of the rows so numbered, which stay;
    "all": of all rows, as the paper does; "none": 1. relative: the goal is relative to y itself.
    Data frames and a column (N, 1) of y are fine; ValueError for what check_data refuses.
    """
    X, y = check_data(X, y, copy=False)
    N, d = X.shape
    if isinstance(how, np.ndarray):
        scale = scale_of(X[how], y[how], relative)
        return *scaled(X, y, scale), scale
    if how == "none":
        return X, y, Scale(np.zeros(d), np.ones(d), 0.0, 1.0, 0)
    first = counts = np.arange(N)
    if how == "tenth":
        if N < 4:
            raise ValueError(f"too few rows to take a scale from, {N}: use --scale none")
        first = draw_part(X, y, max(0.1, 2 / N), seed)
        counts = np.setdiff1d(counts, first)
    elif how != "all":
        first = draw_part(X, y, how, seed)
    scale = scale_of(X[first], y[first], relative)
    return *scaled(X[counts], y[counts], scale), scale


# The target's unit may be that of a tenth of the rows times one of these.
FACTORS = tuple(2.0 ** (k / 4) for k in range(-4, 5))


def unit_of_all(y, scale):
    """y (N,) in a unit near the deviation of all N, and the Scale with it: y/f, f of FACTORS.

    Theorem: the rows that set the Scale fix len(FACTORS) goals and priors, and a union bound over
    them, as by n_eps, holds for the one that y chooses.
    """
    factor = min(FACTORS, key=lambda f: abs(math.log(max(np.std(y), 1e-300) / f)))
    return y / factor, scale._replace(unit=scale.unit * factor)


# --- rows that repeat ----------------------------------------------------------------------------

def is_row_counter(x):
    """Whether x (N,) is a row counter or a subsequence of one.

    Its steps have one sign and are multiples of the least one.
    """
    steps = np.diff(x)
    one_sign = np.all(steps > 0) or np.all(steps < 0)
    steps = np.abs(steps)
    if len(x) < 3 or not one_sign or not np.isfinite(steps.max()):
        return False
    multiples = steps / steps.min()
    return bool(np.all(np.abs(multiples - np.round(multiples)) < 1e-6 * multiples))


def without_counters(X):
    """X (N, d) less the columns that only count, if it has others."""
    counting = np.array([is_row_counter(x) for x in X.T])
    return X[:, ~counting] if np.any(counting) and not np.all(counting) else X


def shared_inputs(X, rows):
    """How many of these rows of X (N, d) have the inputs of another row, counters aside."""
    _, which, counts = np.unique(without_counters(X), axis=0, return_inverse=True,
                                 return_counts=True)
    return int(np.sum(counts[which.ravel()][rows] > 1))
