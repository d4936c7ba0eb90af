"""The scale of a table: mean and deviation of its columns, from rows that certify nothing."""
from typing import NamedTuple

import numpy as np

from pacgp_ref import check_data
from beyond.certificates import draw_part
from beyond.stream import column_middle, column_scale


class Scale(NamedTuple):
    """Mean and deviation of each input and of the target in the rows that set the scale.

    A constant input has deviation inf, so that it becomes 0.
    """
    middle_X: np.ndarray       # (d,)
    unit_X: np.ndarray         # (d,)
    middle: float              # [y]
    unit: float                # [y]
    rows: int                  # how many set it


def scale_of(X, y, relative=False):
    """The Scale of the rows X (N, d), y (N,).

    relative: the target's unit is its root mean square, and its middle 0, so that a fraction of y
    keeps its meaning. ValueError where y does not vary.
    """
    X, y = check_data(X, y, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        middle_X = column_middle(X)
        middle = 0.0 if relative else float(column_middle(y))
        unit_X = column_scale(X, middle_X)
        unit = float(column_scale(y, middle))
    if np.isinf(unit):
        raise ValueError(f"the target does not vary in the {len(y)} rows that set the scale")
    if not 1e-150 < unit < 1e150:
        raise ValueError(f"the target's deviation, {unit:.3g}, is too far from 1 to be squared")
    return Scale(middle_X, unit_X, middle, unit, len(y))


def scaled(X, y, scale):
    """X (N, d), y (N,) in units of the Scale; ValueError for values above 1e100 then."""
    X, y = check_data(X, y, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        X = (X - scale.middle_X) / scale.unit_X
        y = (y - scale.middle) / scale.unit
    if not (np.all(np.abs(X) < 1e100) and np.all(np.abs(y) < 1e100)):
        raise ValueError("the table has values more than 1e100 deviations apart: drop or correct "
                         "them")
    return X, y


def tenth(X, y, seed=0):
    """Numbers of the tenth of the rows X (N, d), y (N,), at least two, that draw_part draws."""
    return draw_part(X, y, max(0.1, 2 / len(y)), seed)


def standardise(X, y, how="tenth", seed=0):
    """X, y of the rows that count, scaled, and the Scale.

    how = "tenth": by a tenth of the rows, which are then left out, so that the scale owes nothing
    to the rows that the bound counts; an array: by the rows so numbered, which stay; "all": by all
    rows, as the papers do.
    """
    X, y = check_data(X, y, copy=False)
    first = counts = np.arange(len(y))
    if isinstance(how, np.ndarray):
        first = how
    elif how == "tenth":
        first = tenth(X, y, seed)
        counts = np.setdiff1d(counts, first)
    scale = scale_of(X[first], y[first])
    return *scaled(X[counts], y[counts], scale), scale


def in_table(mean, var, scale):
    """mean, var (n,) of a scaled target in units of the table."""
    return scale.middle + scale.unit * mean, scale.unit**2 * var
