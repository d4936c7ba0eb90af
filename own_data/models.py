"""What the models of a table share: parameters, scikit-learn's conventions, files, wording.

A Model is a GP regressor; each of its parameters is a dataclass field, made by `option`. KERNELS,
from beyond/kernels.py, maps a kernel's name to a record with its function.
Columns are counted from 0.
"""
import contextlib
import csv
import hashlib
import io
import itertools
import json
import os
import pathlib
import secrets
import stat
import sys
import textwrap
import warnings
from dataclasses import field, fields
from decimal import ROUND_DOWN, ROUND_UP, Context, Decimal
from functools import partial
from types import SimpleNamespace

import numpy as np

import online
import pacgp_ref
import predictive
from pacgp_ref import (FitWarning, __version__, check_array, check_choice, check_count, check_data,
                       check_flag, check_scalar)
from beyond import kernels, rounding, stream
from own_data import scale

FORMAT = 8                     # of saved models: what has another must be made again
SAVED = {                      # name -> NamedTuple, or tuple, that a saved model may be made of
    "builtins.tuple": lambda *values: values} | {
    f"{kind.__module__}.{kind.__name__}": kind
    for module in (pacgp_ref, predictive, online, rounding, stream, scale)
    for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, tuple)}


# --- parameters ----------------------------------------------------------------------------------

def option(default, help, **rule):
    """Declares a parameter of a Model; returns a dataclass field.

    The parameter is then a keyword of the Model, an option of the program, an entry of its JSON,
    and saved with the Model.
        default   the value if none is given; if it is None, None is also a value allowed
        help      the text of the program option
        rule      keywords, applied by `checked`. Each may be left out:
                  choices   a function, without arguments, that returns the values allowed
                  least     smallest value of an int; by default 1
                  most      largest value of a float; any float must be above 0
                  nargs     if given, even as None, a list of values is allowed, too. The program
                            takes them as separate words for "+", as one text "A,B" for None
    """
    return field(default=default, metadata=dict(help=help, **rule))


def categories():
    """Returns the field of the parameter `categories` of all Models: inputs that are categories."""
    return option(None, "A,B: input columns of categories, names or numbers; each becomes "
                        "indicators of the levels of the rows that train", nargs=None)


def kernel_names():
    """Returns the names of the kernels in KERNELS that can be trained.

    Their functions have an attribute `start`, which returns the ln_theta where training starts.
    """
    return [name for name, row in kernels.KERNELS.items() if hasattr(row.function, "start")]


def kernel_named(name):
    """Returns the kernel function in KERNELS with this name; None for None."""
    return name and kernels.KERNELS[name].function


def checked(parameter, value):
    """Returns `value`, checked and converted by a parameter's rule; ValueError names the parameter.

    parameter: a dataclass field, made by `option`.
    """
    name, rule = parameter.name, parameter.metadata
    if value is None and parameter.default is None:
        return None
    if "nargs" in rule and np.ndim(value) == 1 and (len(value) or parameter.type is str):
        return [checked(parameter, one) for one in value]
    if "choices" in rule:
        return check_choice(name, value, rule["choices"]())
    if parameter.type is bool:
        return check_flag(name, value)
    if parameter.type is int:
        return check_count(name, value, rule.get("least", 1))
    if parameter.type is float:
        return check_scalar(name, value, 0, rule.get("most", np.inf))
    return value if isinstance(value, str) else check_count(name, value, 0)       # of a column


def known_kind(name, default):
    """Returns scikit-learn's exception or warning class of this name.

    If scikit-learn's exceptions are not loaded, it returns `default`.
    """
    return getattr(sys.modules.get("sklearn.exceptions"), name, default)


def column_names(X):
    """Returns the column names of a data frame X if all are strings, else an empty list."""
    names = list(getattr(X, "columns", ()))
    return names if all(isinstance(name, str) for name in names) else []


class NotFittedError(ValueError, AttributeError):
    """Raised before fit for an attribute that fit makes.

    If scikit-learn is loaded, its class of this name is raised instead.
    """


class NoNumber(ValueError, TypeError):
    """Raised for an entry that is no number; a TypeError, too, which scikit-learn may expect."""


class Model:
    """A GP regressor for a table, by scikit-learn's conventions; base class of the models.

    Parameters are fields, checked by fit. X (n, d) and y (n,) are in the table's own units, and
    scaled inside. The names of attributes that fit makes end in _:

        n_features_in_       d
        feature_names_in_    (d,) names of a data frame's columns; predict requires the same
        names_               names of inputs and target, for the text
        rows_, dropped_      number of complete rows, and of incomplete rows, which are left out
        notes_               sentences on how a file was read
        facts_               all results as a dict: text() and --json read it
        levels_              for each column of categories its index and its codes: see levels_of

    `inputs` replaces each category by its code, a number (see code_of). `indicators` replaces each
    column of codes by columns of 0 and 1, which the GP sees.
    """
    levels_ = ()
    _estimator_type = "regressor"                        # for scikit-learn before 1.6

    def __getattr__(self, name):
        """Raises NotFittedError for an attribute that fit makes, AttributeError for any other."""
        kind = type(self).__name__
        if name.endswith("_") and not name.startswith("_"):
            raise known_kind("NotFittedError", NotFittedError)(
                f"{kind} has no {name}: fit comes before this")
        raise AttributeError(f"{kind} has no {name}")

    def get_params(self, deep=True):
        """Returns the parameters as a dict; `deep` has no effect."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def set_params(self, **params):
        """Sets parameters, given as keywords, and returns this model.

        ValueError for a name that is no parameter.
        """
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise ValueError(f"{name} is no parameter of {type(self).__name__}, which has "
                                 f"{', '.join(known)}")
            setattr(self, name, value)
        return self

    def checked(self):
        """Returns the parameters as a dict, each checked by its rule.

        ValueError names a wrong one.
        """
        return {one.name: checked(one, getattr(self, one.name)) for one in fields(self)}

    def remember(self, X, y):
        """Starts a fit; returns the parameters as a namespace, X (n, d) and y (n,), all checked.

        X, y: as given to fit. First deletes what an earlier fit has learnt, so that a failed fit
        leaves no old answers. Stores the number of X's columns, and the names of inputs and target.
        ValueError if a parameter, X or y is not valid.
        """
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        asked = SimpleNamespace(**self.checked())
        if y is None:
            raise ValueError("fit requires y to be passed, but the target y is None")
        names = column_names(X)
        if names:
            self.feature_names_in_ = np.array(names, dtype=object)
        self.n_features_in_ = [1, *np.asarray(X).shape][-1]
        names = names or [f"column {i}" for i in range(self.n_features_in_)]
        self.names_ = [*names, str(getattr(y, "name", None) or "y")]
        X, y = self.table(X, y)
        self.rows_, self.dropped_, self.notes_ = len(y), 0, []
        return asked, X, y

    def inputs(self, X):
        """Returns X (n, d), an array or data frame, as floats, with codes in place of categories.

        ValueError if number or names of the columns are not those of fit, or for cells that are no
        numbers.
        """
        d = self.n_features_in_
        raw = np.asarray(X)
        if raw.ndim != 2 or raw.dtype.kind == "c":
            raise ValueError(f"X must be (n, d), and real: its shape is {raw.shape}. Sparse X: "
                             "give X.toarray(). Reshape your data. Complex data not supported")
        if not raw.shape[1]:
            raise ValueError(f"0 feature(s) (shape={raw.shape}) while a minimum of 1 is required.")
        names = column_names(X)
        ours = [*getattr(self, "feature_names_in_", names)]
        if names and names != ours:
            raise ValueError(f"X has the columns {', '.join(names)}, where fit had, in this order, "
                             f"{', '.join(ours)}")
        if raw.shape[1] != d:
            raise ValueError(f"X has {raw.shape[1]} features, but {type(self).__name__} is "
                             f"expecting {d} features as input")
        texts = self.category_columns()
        if texts:
            X = raw = raw.astype(object)                 # a copy
            raw[:, texts] = np.vectorize(code_of, otypes=[float])(raw[:, texts])
        if raw.dtype.kind in "OU":
            check_cells(raw, self.names_)
        return check_array("X", X, 2)

    def category_columns(self):
        """Returns the indices of the columns in `categories`; ValueError if one is not an input."""
        return columns(self.names_[:-1], "categories", self.categories)

    def table(self, X, y):
        """Returns X (n, d), y (n,) as float arrays.

        Categories become codes. ValueError if `inputs` rejects X, if y has another length than X,
        or if y holds anything but finite numbers.
        """
        X = self.inputs(X)
        if np.asarray(y).ndim == 2:
            warnings.warn("A column-vector y was passed when a 1d array was expected",
                          known_kind("DataConversionWarning", FitWarning), stacklevel=3)
        return check_data(X, y)

    def predict(self, X, return_std=False):
        """Returns the mean (n,) [y] predicted at X (n, d); with return_std also sd (n,) [y].

        sd is the standard deviation. Both come from `limits`, a method of each derived class, whose
        docstring says whether sd includes noise.
        """
        mean, sd, *_ = self.limits(X)
        return (mean, sd) if return_std else mean

    def score(self, X, y):
        """R^2 at X (n, d), y (n,): 1 - sum (y - predicted)^2 / sum (y - mean of y)^2.

        Two cases follow scikit-learn's r2_score. For one row R^2 is NaN, with a warning. For equal
        targets it is 1 if all are predicted exactly, else 0.
        """
        X, y = self.table(X, y)
        if len(y) < 2:
            warnings.warn("R^2 of one row is not defined",
                          known_kind("UndefinedMetricWarning", FitWarning), stacklevel=2)
            return np.nan
        mean = self.predict(X)
        if np.ptp(y) == 0:
            return float(np.all(y == mean))
        return float(1 - np.sum((y - mean) ** 2) / np.sum((y - np.mean(y)) ** 2))

    def draw(self, ax, X, y):
        """Draws actual against predicted targets, with the interval ends that `limits` returns.

        ax: matplotlib axes; X (n, d), y (n,): the rows to draw.
        """
        X, y = self.table(X, y)
        order = np.argsort(self.predict(X))
        mean, _, *ends = self.limits(X[order])
        ax.plot(mean, y[order], ".", alpha=0.5)
        ax.plot(mean, np.transpose(ends), "--", color="C1", lw=1)
        ax.set_xlabel(f"predicted {self.names_[-1]}", parse_math=False)
        ax.set_ylabel(f"actual {self.names_[-1]}", parse_math=False)

    def __sklearn_tags__(self):
        """Returns the tags of a regressor; only scikit-learn, in 1.6 and later, calls this."""
        from sklearn.utils import InputTags, RegressorTags, Tags, TargetTags
        return Tags(estimator_type="regressor", target_tags=TargetTags(required=True),
                    regressor_tags=RegressorTags(), input_tags=InputTags())

    # --- files -----------------------------------------------------------------------------------

    def save(self, path):
        """Writes the model to the file at path, for `load`, without pickle.

        NotFittedError before fit.
        """
        getattr(self, "asked_", None) or self.facts_
        arrays = []
        about = dict(format=FORMAT, version=__version__, kind=type(self).__name__,
                     learnt=packed(vars(self), arrays))
        archive = io.BytesIO()
        np.savez(archive, json.dumps(about), *arrays)
        write_file(path, archive.getvalue())

    @classmethod
    def load(cls, path):
        """Returns the model that `save` wrote to path, the same to the last bit.

        ValueError for any other file.
        """
        with open(path, "rb") as raw:
            try:
                with np.load(raw, allow_pickle=False) as file:
                    about, *arrays = file.values()
                about = json.loads(str(about), object_hook=partial(unpacked, arrays=arrays))
                if (about["format"], about["kind"]) != (FORMAT, cls.__name__):
                    raise ValueError(f"it has format {about['format']}, {about['kind']}")
                model = cls()
                vars(model).update(about["learnt"])
                model.usable()
                return model
            except Exception as err:                     # a broken archive raises many kinds
                raise ValueError(f"{path} is no saved {cls.__name__} of format {FORMAT}, or "
                                 f"damaged: {err}") from None

    def usable(self):
        """Raises an exception unless a loaded model is whole.

        Whole means: its parameters are valid, and it can predict and make its text and JSON.
        """
        self.checked()
        self.limits(np.zeros((1, self.n_features_in_)))
        self.text()
        json.dumps([self.facts_, "".join(self.names_ + self.notes_)])
        range(self.rows_, self.dropped_)                 # TypeError unless whole numbers


# --- categories ----------------------------------------------------------------------------------

def code_of(cell):
    """Returns the number that stands for a category: its code.

    The code is the cell as a float if it is a number or reads as one, and NaN if it is missing.
    Else it is the whole number made of the first 48 bits of the SHA-256 digest of the cell's text.
    """
    if str(cell).lower() in ("none", "nan", "<na>", "nat"):
        return np.nan
    try:
        return float(cell)
    except (TypeError, ValueError):
        return float(int.from_bytes(hashlib.sha256(str(cell).encode()).digest()[:6], "big"))


def levels_of(X, numbers):
    """Returns the list of pairs [index, sorted codes] for levels_, one per column of categories.

    X (n, d): the rows, with codes for categories; numbers: the indices of these columns.
    """
    return [[i, np.unique(X[:, i])] for i in numbers]


def indicators(X, levels):
    """Returns X (n, d) with each column of codes replaced by indicators, which come last.

    levels: from `levels_of`, the index of each such column and its codes. Each of these codes gets
    an indicator: a column, 1 in rows of X with this code and 0 elsewhere. A row whose code is not
    among the levels has 0 in all indicators of that column.
    """
    if not len(levels):
        return X
    others = np.delete(X, [i for i, _ in levels], axis=1)
    return np.column_stack([others, *(1.0 * (X[:, [i]] == codes) for i, codes in levels)])


def check_cells(X, names):
    """Raises ValueError if X (n, d) has texts, NoNumber if it has other objects than numbers.

    names: names of the columns of X, for the message.
    """
    texts = []
    for name, column in zip(names, X.T):
        if any(isinstance(cell, str) for cell in column):
            texts.append(name)
            continue
        try:
            column.astype(float)
        except TypeError as err:
            raise NoNumber(f"{name} must hold real numbers only: {err}") from None
    if texts:
        raise ValueError(f"texts in {few(texts)}: categories={texts} makes indicators of them, "
                         f"X.drop(columns={texts}) leaves them out")


def write_file(path, data=None):
    """Replaces the file at path by the bytes `data`, whole or not at all.

    The new file has the mode of the old one. If path is a link, it stays one, and the file that it
    leads to is replaced. A pipe or a device is written to directly. If data is None, nothing is
    written, but OSError is raised if writing would fail.
    """
    try:
        there = os.stat(path)
    except FileNotFoundError:
        there = None
    if there and not stat.S_ISFIFO(there.st_mode):
        open(path, "ab").close()                         # raises where it may not be changed
    if there and not stat.S_ISREG(there.st_mode):
        if data is not None:
            pathlib.Path(path).write_bytes(data)
        return
    target = os.path.realpath(path)
    part = os.path.join(os.path.dirname(target), f".{secrets.token_hex(8)}.part")
    mode = stat.S_IMODE(there.st_mode) if there else 0o666
    try:
        file = open(part, "xb", opener=partial(os.open, mode=mode))
    except OSError as err:
        err.filename = path
        raise
    try:
        with file:
            if there:
                with contextlib.suppress(PermissionError, AttributeError):       # not ours; Windows
                    os.chown(part, there.st_uid, there.st_gid)
                os.chmod(part, mode)
            file.write(data or b"")
        if data is not None:
            os.replace(part, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(part)


def packed(value, arrays):
    """Returns `value` in a form that JSON can hold; `unpacked` reverses this.

    `value` consists of numbers, texts, lists, dicts, tuples, NamedTuples, arrays and kernels. Each
    array is appended to the list `arrays`, and the result holds its index there instead. A kernel
    is replaced by its name.
    """
    again = partial(packed, arrays=arrays)
    kind = type(value)
    if isinstance(value, dict):
        return {name: again(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [*map(again, value)]
        return parts if kind is list else {f"{kind.__module__}.{kind.__name__}": parts}
    if isinstance(value, np.ndarray):
        arrays.append(value.astype(str) if value.dtype == object else value)
        return {".array": [len(arrays) - 1]}
    if callable(value):
        return {".kernel": [kernel_name(value)]}
    return value.item() if isinstance(value, np.generic) else value


def unpacked(part, arrays):
    """Reverses `packed` for one dict, `part`, of the JSON.

    If `packed` wrote this dict in place of an array, kernel or tuple, returns that array, kernel
    or tuple; else the dict itself. arrays: the list that `packed` has filled. json.loads calls this
    function, as its object_hook, with each dict.
    """
    makers = SAVED | {".array": arrays.__getitem__, ".kernel": kernel_named}
    for kind in part.keys() & makers:
        return makers[kind](*part[kind])
    return part


def kernel_name(kernel):
    """Returns the name in KERNELS of a kernel function."""
    return next(name for name, row in kernels.KERNELS.items() if row.function is kernel)


# --- columns -------------------------------------------------------------------------------------

def listed(asked):
    """Returns as a list what an option asks for: a text, a value or several, or None for nothing.

    A text is split at commas and line ends outside quotes.
    """
    if isinstance(asked, str):
        return [*itertools.chain.from_iterable(csv.reader(io.StringIO(asked, newline="")))]
    return [] if asked is None else np.ravel(asked).tolist()


def columns(names, option, asked):
    """Returns the indices of the columns that an option asks for; ValueError names the option.

        names    list of the names of all columns
        option   name of the option, for the error
        asked    a list of columns, each by its name or its number from 0; or one such number; or a
                 text of names and numbers, which `listed` splits. None: no columns
    """
    found = []
    for one in listed(asked):
        number = names.index(one) if one in names else int(one) if str(one).isdecimal() else -1
        if not 0 <= number < len(names):
            raise ValueError(f"{option} {one!r} is no column; the columns are {few(names)}")
        found.append(number)
    return found


# --- numbers and words ---------------------------------------------------------------------------

def bound_text(bound):
    """Returns a bound as text with four decimals, rounded up, at most 1."""
    return str(Decimal(min(bound, 1)).quantize(Decimal("1e-4"), ROUND_UP))


def exact(value):
    """Returns a number as the shortest text that converts back to it, 2 for 2.0."""
    return repr(value).removesuffix(".0")


def rounded_up(value):
    """Returns a positive number as text with four significant digits, rounded up."""
    value = Context(4, ROUND_UP).create_decimal(value)
    return f"{value:{'f' if -9 < value.adjusted() < 12 else 'e'}}"


def eps_text(eps, given):
    """Returns a tolerance as text: as it was given, or rounded up if it was not `given`."""
    return exact(eps) if given else rounded_up(eps)


def confidence_percent(delta):
    """Returns 100 (1 - delta) as text, rounded down to 12 digits."""
    percent = Context(12, ROUND_DOWN).subtract(100, 100 * Decimal(repr(delta)))
    return f"{percent.normalize():f}"


def many(n, thing="row"):
    """Returns a number with its noun as text, such as 1 row, 2 rows.

    n: the number; thing: the noun in the singular.
    """
    return f"{n} {thing}{'s' * bool(n != 1)}"


def few(names):
    """Returns names as a text, separated by commas: the first 20, then how many others.

    names: a list of texts.
    """
    more = len(names) - 20
    return ", ".join(names[:20]) + f" and {more} others" * (more > 0)


def paragraphs(answer, table, conditions):
    """Returns a text in three parts, with an empty line between them; empty parts are left out.

    answer: a text; table: an iterable of lines; conditions: an iterable of sentences.
    """
    fill = partial(textwrap.fill, width=100, break_on_hyphens=False, break_long_words=False)
    listed = [fill(one, initial_indent="- ", subsequent_indent="  ") for one in conditions if one]
    return "\n\n".join(filter(None, [fill(answer), "\n".join(table), "\n".join(listed)]))
