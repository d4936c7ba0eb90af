"""Scales a table by rows that enter no bound; finds signs that its rows are dependent."""
import math
import shlex
import warnings
from typing import NamedTuple

import numpy as np

from pacgp_ref import TINY, FitWarning, check_data, repeated_rows
from beyond.certificates import draw_part
from beyond.stream import column_middle, column_scale, directions


class Scale(NamedTuple):
    """Mean and standard deviation of each input and of the target, in the rows that set the scale.

    middle is the mean and unit the deviation; _X stands for the inputs. The unit of a constant
    input is inf, so that its scaled values are 0.
    """
    middle_X: np.ndarray       # (d,)
    unit_X: np.ndarray         # (d,)
    middle: float              # [y]
    unit: float                # [y]
    rows: int                  # how many set it


def scale_of(X, y, relative=False):
    """Returns the Scale of the rows X (N, d), y (N,).

    relative: True if y is to be divided by its root mean square, and no mean subtracted, so that
    errors relative to y stay the same. ValueError where y does not vary, or its deviation is too
    large or small to be squared.
    """
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
    """Returns X (N, d), y (N,) in the units of a Scale.

    ValueError for scaled values above 1e100.
    """
    X, y = check_data(X, y, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        X = (X - scale.middle_X) / scale.unit_X
        y = (y - scale.middle) / scale.unit
    if not max(np.max(np.abs(X), initial=0), np.max(np.abs(y), initial=0)) < 1e100:
        raise ValueError("the table has values more than 1e100 deviations apart: drop or correct "
                         "them")
    return X, y


def tenth(X, y, seed):
    """Returns the indices of a tenth of the rows X (N, d), y (N,), at least two.

    draw_part of beyond/certificates.py draws them at random, with this seed.
    """
    return draw_part(X, y, max(0.1, 2 / len(y)), seed)


def standardise(X, y, seed=0):
    """Scales X (N, d), y (N,) by a tenth of the rows; returns X and y of the others, and the Scale.

    The tenth, drawn by `tenth`, is left out so that the scale is independent of the other rows, of
    which a bound is computed.
    """
    X, y = check_data(X, y, copy=False)
    first = tenth(X, y, seed)
    scale = scale_of(X[first], y[first])
    return *scaled(np.delete(X, first, axis=0), np.delete(y, first), scale), scale


def in_table(mean, var, scale):
    """Converts mean, var (n,) of the scaled target to the table's units; returns mean and var.

    scale: the Scale by which the target was scaled.
    """
    return scale.middle + scale.unit * mean, scale.unit**2 * var


# --- dependence ----------------------------------------------------------------------------------

CORRELATED = 4.0               # deviations of r of independent rows
SHARED = 0.1                   # of the rows


def dependence(X, y, residuals):
    """Looks for signs that the rows X (N, d), y (N,) are dependent; returns a dict for facts_.

    residuals (n,): y minus a model's mean, at n of these rows, in the order of the file. The dict:

        order      r sqrt(n), where r is the correlation of each residual with the next one; it is
                   within +-4 (CORRELATED) for independent rows
        shared     number of rows with the inputs of an earlier row
        repeats    number of rows with the inputs and the target of an earlier row
        classes    whether the target has two values
        counts     indices of the inputs that rise, or fall, by the same step from each row to the
                   next; empty if d = 1
        sorted     indices of the other columns that only rise or only fall; d stands for the target
        dependent  whether `order` is beyond +-4, `shared` is above a tenth (SHARED) of the rows, or
                   `counts` or `sorted` is not empty
    """
    e = residuals - np.mean(residuals)
    order = e[1:] @ e[:-1] / max(e @ e, TINY) * math.sqrt(len(e))
    shared = repeated_rows(X, 0 * y)
    rises, falls = directions(np.column_stack([X, y]))
    steps = np.diff(X, axis=0)
    even = np.append(np.all(steps == steps[0], axis=0) & (X.shape[1] > 1), False)
    one_way = rises != falls
    signs = dict(counts=np.flatnonzero(one_way & even).tolist(),
                 sorted=np.flatnonzero(one_way & ~even).tolist())
    said = abs(order) > CORRELATED or shared > SHARED * len(y) or any(signs.values())
    return dict(order=float(order), shared=shared, repeats=repeated_rows(X, y), **signs,
                dependent=bool(said), classes=len(np.unique(y)) == 2)


def dependence_text(facts, names, rows):
    """Yields a sentence for each sign that rows are dependent or the target is a class.

        facts   from `dependence`
        names   list of the inputs' names, then the target's
        rows    number of rows. A sentence on repeated inputs is yielded if `shared` is above a
                tenth of it. inf leaves this sentence out: where a split of the rows keeps equal
                inputs in one part, they do no harm
    """
    if facts["classes"]:
        yield f"{names[-1]} has two values: of classes, a classifier predicts their probabilities."
    for i in facts["counts"]:
        yield (f"{names[i]} counts the rows: leave an index out (--drop "
               f"{shlex.quote(names[i])}), and of a clock use follow.")
    for i in facts["sorted"]:
        yield f"The rows are sorted by {names[i]}: if that is their order in time, use follow."
    if abs(facts["order"]) > CORRELATED and len(names) - 1 not in facts["sorted"]:
        yield (f"The residuals of neighbouring rows are correlated (r sqrt(N) = "
               f"{facts['order']:.1f}), as if rows were dependent: of a series use follow.")
    if facts["shared"] > SHARED * rows:
        yield (f"{facts['shared']} of {rows} rows have the inputs of an earlier row: if they "
               "belong together, the numbers here are too good, and certify --group is right.")


def warn_dependent(facts, names, rows):
    """Gives the sentences of dependence_text, if there are any, as one FitWarning.

    Arguments as in dependence_text.
    """
    said = " ".join(dependence_text(facts, names, rows))
    if said:
        warnings.warn(said, FitWarning, stacklevel=3)
