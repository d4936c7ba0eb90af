"""What is refused and what is taken: one table of rules x parameters x bad values for every entry
point and every option.

Refused: a ValueError that begins with the argument's name and states its rule; on the command line
status 2 and one line that names the option. Taken: other forms of the same numbers, which must give
the same result to the last bit.
"""

import functools
import inspect
import math
import re
import warnings

import numpy as np
import pytest

import online as L
import pacgp_ref as R
import predictive as J
from beyond import certificates, rounding, search, stream
from own_data import certify_table, follow_stream, saving
from test_streams import certified
from test_tables import PROGRAM
from test_training import ODD
from tests.dense import dense_predict
from tests.oracles import assert_close
from tests.problems import wave

ROOMS = (rounding, certificates, stream)
MODULES = dict(R=R, J=J, L=L)
INF = float("inf")
NAN = float("nan")
HUGE = 10**400
NOTHING = [None, "a", "0.5", b"1", 1j, {}, NAN, np.ma.masked]
NO_NUMBER = NOTHING + [True, [0.1], np.array([0.1, 0.2])]
NO_COUNT = NO_NUMBER + [-1, 2.5, INF, -INF]
NO_NUMBERS = NOTHING + [["a", "b"], [None, 0.1], [0.1, NAN], np.ma.masked_less([0.1, 0.2], 0.15)]
NO_KIND = [None, 5, "a", (1, 2), {}, np.zeros(3)]
# rule -> what it refuses, and how the message states it; None is no bad value where it is the
# default
RULES = {
    "positive": (NO_NUMBER + [0, -0.1, INF, -INF, HUGE], "above 0 and finite"),
    "above1": (NO_NUMBER + [1.0, 0.9, INF, HUGE], "above 1 and finite"),
    "least0": (NO_NUMBER + [-0.1, INF, -INF, HUGE], "at least 0|above -1e-09"),
    "unit": (NO_NUMBER + [-0.1, 1.1, INF, HUGE], "at least 0 and at most 1"),
    "share": (NO_NUMBER + [0, -0.01, 1.5, 95, 100, INF, HUGE], "above 0 and at most 1"),
    "noise": (NO_NUMBER + [0, -0.1, INF, 1e7, HUGE], "above 0 and at most"),
    "count": (NO_COUNT + [0], "a whole number of at least 1"),
    "seed": (NO_COUNT, "a whole number of at least 0"),
    "choice": (NOTHING + [5, "", "nope", True, ["01"], np.array(["01"])], "must be one of"),
    "kernel": ([None, 5, "", "nope", True, ["SE"]], "must be (one of|a function|se_kernel)"),
    "flag": (NOTHING + [0, 1, "yes", [True], np.array([True])], "must be True or False"),
    "start": (
        [
            5, "ab", [1.0], {"nope": 1.0}, {5: 1.0}, {"ln_theta": "ab"}, {"ln_theta": np.zeros(9)},
            {"ln_theta": [NAN] * 2}, {"ln_theta": [NAN] * 3}, {"Z": None}],
        "",
    ),
    "grid": (
        [
            5, None, "ab", (6,), (6, 1, 1), (6, 0), (0, 5), (6, 2.5), (-1, 10), (NAN, 5), (6, NAN),
            (6, None), ("6", 5), (INF, 5), (6, INF), (6, True), {6, 5}, {}],
        "",
    ),
    "betas": ([5, "ab", (), (-0.1,), (NAN,), ("a",), (0.1, None), (INF,), [[0.1, 0.2]]], ""),
    "gammas": (
        [5, None, "ab", (), (1.0,), (NAN,), ("a",), (1.03, None), (INF,), [[1.03, 1.05]]], ""),
    "shares": (
        [5, None, "ab", (-0.1,), (1.1,), (NAN,), ("a",), (0.1, None), (INF,), [[0.1, 0.2]]], ""),
    "rates": (NO_NUMBERS + [0, -1, INF, [], [0.1, 0], [0.1, INF], [[0.1, 0.2]]], ""),
    "number": (NOTHING + [[0.1], INF, -INF], ""),
    "ln_var": (NOTHING + [[0.1], INF, -INF, 1e5, -1e5], ""),
    "theta": (
        NO_NUMBERS
        + [5, [0.1], np.zeros(5), [NAN] * 3, [INF, 0, 0], [400.0, 0, 0], np.zeros((1, 3)), []],
        "",
    ),
    "scale": (
        [
            5, "a", [0.1], {}, np.ones((2, 3)), [[0, 0], [0, 1]], [[0, 0], [-1, 1]],
            [[0, 0], [NAN, 1]], [[0, 0], ["a", 1]]],
        "",
    ),
    "groups": (
        [5, "ab", [], np.zeros(3), np.zeros((20, 2)), np.full(20, NAN)], "a label for each row"),
    **{
        kind: (NO_KIND, f"must be a {kind}")
        for kind in ("Settings", "Posterior", "Learner", "Fit", "Sparse")
    },
}


def put(a, i, value):
    """A copy of the array a with one value changed."""
    a = np.array(a)
    a[i] = value
    return a


TABLE = {  # what is wrong with a table (N, d)
    "no columns": lambda A: A[:, :0],
    "1-D": lambda A: A[:, 0],
    "3-D": lambda A: A[None],
    "a number": lambda A: 3.0,
    "None": lambda A: None,
    "a dict": lambda A: {},
    "NaN": lambda A: put(A, (1, 0), NAN),
    "infinity": lambda A: put(A, (1, 0), INF),
    "strings": lambda A: A.astype(str),
    "masked": lambda A: np.ma.masked_greater(A, -9.0),
    "bytes": lambda A: A.astype(bytes),
    "complex": lambda A: A + 0j,
    "missing": lambda A: put(A.astype(object), (1, 0), None),
    "ragged": lambda A: [[1.0], *A[1:].tolist()],
    "dates": lambda A: A.astype("M8[D]"),
    "columns": lambda A: np.c_[A, A],
}
COLUMN = {  # and with a column (N,)
    "2-D": lambda b: np.c_[b, b],
    "a row": lambda b: b[None],
    "shorter": lambda b: b[1:],
    "a number": lambda b: 3.0,
    **{
        name: lambda b, f=TABLE[name]: f(b[:, None])
        for name in (
            "NaN", "infinity", "strings", "masked", "bytes", "complex", "missing", "None", "a dict",
            "dates")
    },
}
SAYS_COLUMNS = {
    "L.prior-Z", "L.begin-X", "L.stream-X", "R.fit-X", "R.fit/sparse-X", "R.fit/full-X",
    "R.prior_from_part-X", "J.fit-X", "J.choose-X"}


X = np.round(16 * np.random.default_rng(0).standard_normal((20, 2))) / 16    # float32 has these
y = np.round(16 * np.sin(X[:, 0])) / 16
Z = X[:4]


@functools.cache
def entries():
    """name of an entry point, and a variant -> its good arguments, the rules of the others, which
    are tables or columns.

    A good argument that has to be trained is a function, called where the entry is.
    """
    fit_R = functools.cache(lambda: R.fit(X, y, "kl-PAC-SGP", 3, max_evals=2))
    fit_J = functools.cache(lambda: J.fit(X, y, "SVGP", 3, epochs=1))
    learner = functools.cache(
        lambda: stream.step(stream.begin(X, y, pretrain=1), X, y))
    state = functools.cache(lambda: L.update(L.prior(Z, np.zeros(3)), X, y, -1.0))
    data = dict(X=X, y=y)
    val = dict(data, X_val=X, y_val=y, M=3, epochs=1)
    return {
        "R.fit": (
            dict(data, Z=Z, method="free-kl-PAC-SGP", max_evals=2, batch=5),
            "Sparse: sparse, count: max_evals n_eps batch, positive: eps lr, choice: method loss, "
            "flag: ard exact, kernel: kernel first, "
            "share: delta, unit: alpha, least0: ftol, seed: seed, grid: grid, start: start",
            "X y Z",
        ),
        "R.fit/sparse": (
            dict(data, method="kl-PAC-SGP", M=3, max_evals=2), "count: M, start: start", "X y"),
        "R.fit/full": (
            dict(data, max_evals=2), "positive: eps, unit: alpha, count: batch, start: start",
            "X y"),
        "R.strict": (dict(data, fit=fit_R), "Fit: fit", "X y"),
        "R.prior_from_part": (
            dict(data, M=3, method="VFE", max_evals=2),
            "count: M n_eps, choice: method, " "share: share, flag: exact, seed: seed", "X y"),
        "R.held_out": (dict(data, fit=fit_R), "Fit: fit, share: delta, groups: groups", "X y"),
        "R.predict": (dict(fit=fit_R, X_new=X), "Fit: fit, Sparse: sparse", "X_new"),
        "J.predict": (dict(fit=fit_J, X_new=X), "Fit: fit", "X_new"),
        "J.predict_y": (dict(fit=fit_J, X_new=X), "Fit: fit", "X_new"),
        "J.fit": (
            dict(val, Z=Z, method="gamma-robust", patience=2),
            "count: M batch epochs patience, choice: method, kernel: kernel, flag: ard, "
            "least0: beta_reg, "
            "above1: gamma, "
            "positive: lr, noise: min_noise, shares: milestones, seed: seed, start: start",
            "X y Z X_val y_val",
        ),
        "J.choose": (
            dict(val, method="SVGP", betas=(0.5,)), "betas: betas, choice: method",
            "X y X_val y_val"),
        "J.choose/robust": (dict(val, method="gamma-robust", gammas=(1.5,)), "gammas: gammas", ""),
        "L.Settings": (
            {},
            "count: M window, positive: eps rate, share: delta forgetting, choice: unit loss "
            "learn discard, "
            "rates: lams",
            "",
        ),
        "L.begin": (
            dict(data, pretrain=1),
            "Settings: settings, count: pretrain, theta: ln_theta, number: ln_noise, scale: "
            "input_scale, kernel: kernel",
            "X y",
        ),
        "L.step": (dict(data, learner=learner), "Learner: learner", "X y"),
        "L.forecast": (dict(learner=learner, X_new=X), "Learner: learner", "X_new"),
        "L.certificates": (dict(learner=learner), "Learner: learner", ""),
        "L.prior": (dict(Z=Z, ln_theta=np.zeros(3)), "theta: ln_theta, kernel: kernel", "Z"),
        "L.update": (
            dict(data, posterior=state, Z=Z, ln_noise=-1.0),
            "Posterior: posterior, ln_var: ln_noise, theta: ln_theta", "X y Z"),
        "L.predict": (dict(posterior=state, X_new=X), "Posterior: posterior", "X_new"),
        "L.process_kl": (dict(new=state, old=state), "Posterior: new old", ""),
        "L.stream": (
            dict(data, Z=Z, method="O-PACGP", n0=8, pretrain=1, steps=1, batch=6),
            "count: n0 pretrain steps batch window, positive: eps lam K, choice: method loss, "
            "share: delta, "
            "number: ln_noise, theta: ln_theta, kernel: kernel",
            "X y Z",
        ),
    }


def function(entry):
    """The function an entry is about, of a paper's module or of beyond/."""
    name = entry[2:].split("/")[0]
    return next(getattr(room, name) for room in (MODULES[entry[0]], *ROOMS) if hasattr(room, name))


def arguments(entry):
    """name -> inspect.Parameter of an entry; `settings`, handed on to another entry, left out."""
    return {
        name: p
        for name, p in inspect.signature(function(entry)).parameters.items()
        if p.kind is not p.VAR_KEYWORD
    }


def rules_of(entry):
    """argument -> rule, for all but tables and columns."""
    parts = [part.split(": ") for part in entries()[entry][1].split(", ")]
    return {name: rule for rule, names in parts for name in names.split()}


def call(entry, **changed):
    """The result of an entry for its good arguments, some of them changed; Settings are declared to
    `begin`.
    """
    good = {name: v() if callable(v) else v for name, v in entries()[entry][0].items()}
    result = function(entry)(**{**good, **changed})
    if entry == "L.Settings":
        return stream.begin(**entries()["L.begin"][0], settings=result)
    return result


def bad_values(entry):
    """{argument: [(what is wrong, value, the rule's words)]} of an entry."""
    good, _, tables = entries()[entry]
    found = {}
    for name, rule in rules_of(entry).items():
        values, words = RULES[rule]
        if name in arguments(entry) and arguments(entry)[name].default is None:
            values = [value for value in values if value is not None]
        found[name] = [("10**400" if v is HUGE else repr(v), v, words) for v in values]
    for name in tables.split():
        spoilt = COLUMN if name[0] == "y" else TABLE
        if f"{entry}-{name}" in SAYS_COLUMNS:
            spoilt = {what: spoil for what, spoil in spoilt.items() if what != "columns"}
        found[name] = [(what, spoil(good[name]), "") for what, spoil in spoilt.items()]
        if name in arguments(entry) and arguments(entry)[name].default is None:
            found[name] = [case for case in found[name] if case[1] is not None]
    return found


def complaint(f, *args, **named):
    """The message of the ValueError that f raises; what else it raises or returns, as text."""
    try:
        return f"accepted: {f(*args, **named)}"
    except ValueError as err:
        return str(err)
    except Exception as err:
        return f"raised: {err!r}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "entry, name", [(entry, name) for entry in entries() for name in bad_values(entry)])
def test_input_refused(entry, name):
    """A ValueError that begins with the argument and states the rule; never another exception,
    never a number.
    """
    for what, value, rule in bad_values(entry)[name]:
        said = complaint(call, entry, **{name: value})
        assert re.match(rf"(?s)({name}|X and y|X_val and y_val)\b.*({rule})", said), (what, said)


def test_input_covered():
    """Every argument of every entry point is in the table, but functions."""
    for f in {entry.split("/")[0] for entry in entries()}:
        listed = [{*rules_of(entry), *entries()[entry][2].split()}
                  for entry in entries() if entry.split("/")[0] == f]
        assert set(arguments(f)) - {"callback", "over", "search"} == set().union(*listed), f


# --- rules about several arguments, and about what is inside one ---------------------------------


def refused(entry, **changed):
    return lambda: call(entry, **changed)


def with_delta(delta):
    return lambda: R.check_scalar("delta", delta, 0, 1)


UNBOUNDED = dict(patience=None, y=y * 1e200, epochs=3)
HIDDEN = [np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 1]), np.ones(3)]     # a mask in a list
SAID = [  # what the message begins with, and the call
    (r"y has 2 .* the first at index \(1,\)", lambda: R.check_array("y", [1.0, NAN, INF], 1)),
    ("y must hold real", lambda: R.check_array("y", np.array([1, "x"], dtype=object), 1)),
    ("y must hold real", lambda: R.check_array("y", np.array([1, 2j], dtype=object), 1)),
    ("X has 2 masked", lambda: R.check_array("X", HIDDEN, 2)),
    ("delta .* for 98.5 % confidence give 0.015$", with_delta(1.5)),
    ("delta .* for 95 % confidence give 0.05$", with_delta(5)),
    ("delta .* for 95 % confidence give 0.05$", with_delta(np.float32(95))),
    ("delta .* got 100$", with_delta(100)),
    *(("Z must have at least one row", refused(entry, Z=Z[:0]))
      for entry in ("R.fit", "J.fit", "L.prior", "L.update", "L.stream")),
    ("M, .* or Z is needed", refused("R.fit/sparse", M=None)),
    ("last_evals must be a whole", lambda: search.multistart_fit(X, y, last_evals=0)),
    ("fit must be a Fit", lambda: R.predict(saving.Model(R.fit(X, y, max_evals=1), None), X)),
    ("batch .*10.*free", refused("R.fit/sparse", batch=10)),
    ("start's L_S .* lower triangular", refused("R.fit", start={"L_S": np.ones((4, 4))})),
    ("start's L_S .* not 0", refused("R.fit", start={"L_S": np.zeros((4, 4))})),
    ("ln_theta must have 2 or 3 entries", lambda: R.full_gp(X, y, np.zeros(5), 0.0)),
    *(("the objective is (nan|inf)", refused("J.fit", method=method, **UNBOUNDED))
      for method in J.METHODS),
    ("the objective is .* lr", refused("J.fit", method="SVGP", lr=1e200, epochs=4, patience=None)),
    (".*NLL is (nan|inf) .*lr", refused("J.fit", method="PPGPR-MFD", lr=1e200, patience=1)),
    ("X_val and y_val go together", refused("J.fit", patience=None, X_val=None)),
    ("X_val and y_val go together", refused("J.fit", patience=None, y_val=None)),
    ("patience needs X_val and y_val", refused("J.fit", X_val=None, y_val=None)),
    ("X_val does not fit", refused("J.fit", X_val=X[:0], y_val=y[:0])),
    ("X_val and y_val", refused("J.choose", X_val=None)),
    ("X_val and y_val", refused("J.choose", y_val=None)),
    ("X_val and y_val", refused("J.choose", X_val=None, y_val=None)),
    ("beta_reg .* give betas", refused("J.choose", beta_reg=0.1)),
    ("gamma .* give gammas", refused("J.choose/robust", gamma=1.1)),
    ("1 row is too few", lambda: stream.begin(X[:1], y[:1])),
    ("y is too large", lambda: stream.begin(X, y * 1e200)),
    ("y does not vary", lambda: stream.begin(X, np.ones(20))),
    ("X in units of input_scale has .* infinite",
     lambda: stream.begin(X[:, :1], y, input_scale=[[0.0], [1e-320]])),
    ("ln_theta must not be empty", lambda: L.prior(np.ones((2, 1)), np.zeros((0, 3)))),
    ("the KL divergence is inf", lambda: L.process_kl(
        L.update(L.prior(Z, np.zeros(3)), X, y * 1e200, -1.0), L.prior(Z, np.zeros(3)))),
    ("delta must be below 1 where KL = 0", lambda: L.best_lam(9, delta=1)),
    ("n0 = 21 rows", refused("L.stream", n0=21)),
    ("WISKI here", refused("L.stream", method="WISKI")),
    ("WISKI here", refused("L.stream", method="WISKI", X=X[:, :1], Z=Z[:3, :1])),
    ("a row has 2 columns, those before it 3", lambda: follow_stream.learn_waiting(
        follow_stream.Session(None, [np.zeros(3), np.zeros(2)], {}), stream.Settings(), 9, 1)),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("message, refused", SAID)
def test_input_message(message, refused):
    """What no single argument's rule says: its name, the rule, and a remedy where there is one."""
    with pytest.raises(ValueError, match=f"^{message}"):
        refused()


def test_input_matrices(monkeypatch):
    """A matrix that is not positive definite is named, with the jitter that did not help."""
    monkeypatch.setattr(R, "JITTER", 0.0)
    with pytest.raises(ValueError, match="K_MM with a jitter of 0"):
        R.sparse_gp(X, y, np.zeros((9, 2)), np.zeros(2), 0.0)
    with pytest.raises(ValueError, match=r"K \+ sigma\^2 I is not positive"):
        R.full_gp(X * 0, y, np.zeros(2), -80.0)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "entry", [entry for entry, (_, _, tables) in entries().items() if tables[:1] == "X"])
def test_input_no_rows(entry):
    """Refused, but for a stream's batch and for predictions; these may be of one row as well."""
    good = entries()[entry][0]
    none = {name: good[name][:0] for name in ("X", "y", "X_new") if name in good}
    if entry in ("L.update", "L.step"):
        at, before = (
            (L.predict, "posterior") if entry == "L.update" else (stream.forecast, "learner")
        )
        for got, want in zip(at(call(entry, **none), X), at(good[before](), X), strict=True):
            assert np.allclose(got, want, rtol=1e-9, atol=1e-12)
    elif "X_new" in none:
        want = call(entry)
        for given, rows in ((X[:0], 0), ([], 0), (X[:1], 1)):
            for got, value in zip(call(entry, X_new=given), want, strict=True):
                assert got.shape == (rows,)
                assert np.allclose(got, value[:rows], rtol=1e-9, atol=1e-12)
    else:
        with pytest.raises(ValueError, match="^X is empty"):
            call(entry, **none)


# --- what is taken -------------------------------------------------------------------------------


class Frame:
    """As little of a data frame as NumPy needs."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype=dtype)


FORMS = [
    np.ndarray.tolist,
    np.float32,
    np.asfortranarray,
    lambda A: np.frombuffer(A.tobytes()).reshape(A.shape),  # read-only
    lambda A: np.repeat(A, 2, 0)[::2],
    lambda A: A[::-1].copy()[::-1],
    lambda A: A.astype(">f8"),
    Frame,
    lambda A: A.astype(object),
    np.ma.array,
]
SCALES = [
    np.int8(13), np.uint8(13), np.int16(13), np.float16(13), np.float32(13), np.array(13.0),
    np.array(13, np.int8), 13]
SHARES = [np.float16(0.25), np.float32(0.25), np.array(0.25)]
COUNTS = [np.int8(4), np.uint8(4), np.array(4), np.array(4, np.int8), 4.0, np.float32(4)]
PAIR = np.array([0.25, 0.5])
PAIRS = [[0.25, 0.5], (0.25, 0.5), np.float32([0.25, 0.5]), Frame([0.25, 0.5])]
FORMS_OF = {  # rule -> a value, other forms of it
    **dict.fromkeys(("count", "seed"), (4, COUNTS)),
    **dict.fromkeys(("share", "unit", "noise"), (0.25, SHARES)),
    **dict.fromkeys(("positive", "least0", "above1"), (13.0, SCALES)),
    "flag": (True, [np.bool_(True)]),
    "rates": (PAIR, PAIRS),
    "betas": ((0.25,), [[0.25], np.float32([0.25])]),
    "gammas": ((1.25,), [[1.25], np.float32([1.25])]),
    "grid": ((100, 255), [(np.int8(100), np.uint8(255)), [100.0, 255.0]]),
    **dict.fromkeys(("number", "ln_var"), (-1.0, [-1, np.int8(-1), np.float32(-1)])),
    "theta": (np.ones(3), [[1, 1, 1], Frame([1, 1, 1])]),
    "shares": (PAIR, PAIRS),
    "scale": (np.ones((2, 2)), [[[1, 1], [1, 1]], Frame(np.ones((2, 2)))]),
}


def same(names, arguments, value, forms, **others):
    """Cells of test_input_taken: entry, argument, its value, other forms of it, more arguments."""
    return [
        (entry, name, value, forms, others)
        for entry in names.split()
        for name in arguments.split()
    ]


def by_rule():
    """Cells of the arguments of every entry, by their rules, and of its tables and columns."""
    for entry, (good, _, tables) in entries().items():
        for name, rule in rules_of(entry).items():
            if rule in FORMS_OF and (entry, name) != ("R.fit/full", "batch"):
                yield from same(entry, name, *FORMS_OF[rule])
        for name in tables.split():
            column = [good[name][:, None]] * (name[0] == "y")
            yield from same(entry, name, good[name], [form(good[name]) for form in FORMS] + column)


TAKEN = [
    *by_rule(),
    *same("R.fit", "n_eps", 200, [np.uint8(200), np.int16(200)]),
    *same("R.fit", "loss", "square", [np.str_("square")]),
    *same("R.fit", "start", {"ln_theta": np.ones(2)}, [{"ln_theta": [1, 1]}]),
]


def numbers(result):
    """All numbers of a result, in order, as bytes; names and functions are left out. A Learner
    first takes a step.
    """
    if isinstance(result, stream.Learner):
        result = stream.step(result, X, y)
        result = (*result, *stream.certificates(result))
    if isinstance(result, dict):
        result = tuple(result.values())
    if hasattr(result, "__next__") or isinstance(result, (tuple, list)):
        return [a for part in result for a in numbers(part)]
    if result is None or isinstance(result, str) or callable(result):
        return []
    return [np.asarray(result, float).tobytes()]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "entry, name, value, forms, others", TAKEN, ids=[f"{cell[0]}-{cell[1]}" for cell in TAKEN])
def test_input_taken(entry, name, value, forms, others):
    """Another form of the same numbers gives the same result, to the last bit."""
    want = numbers(call(entry, **others, **{name: value}))
    assert want
    for form in forms:
        assert numbers(call(entry, **others, **{name: form})) == want, (type(form), form)


def test_input_check_array():
    """A float64 array in memory of its own; float64 stays where it is if that is wanted; a matrix
    may have no rows.
    """
    own = np.arange(3.0)
    for copy in (True, False):
        assert np.shares_memory(R.check_array("y", own, 1, copy=copy), own) != copy
        for a in (
            range(3), np.arange(3, dtype="u1"), np.array([0, 1.0, np.float32(2)], dtype=object),
            own[:, None]):
            out = R.check_array("y", a, 1, copy=copy)
            assert out.dtype == np.float64
            assert out.shape == (3,)
            assert np.array_equal(out, own)
    assert R.check_array("X", np.empty((0, 4)), 2).shape == (0, 4)


# --- odd data ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "method, case",
    [(method, case) for i, method in enumerate(J.METHODS) for j, case in enumerate(ODD)
     if method in ("SVGP", "PPGPR-MFD", "exact") or (i + j) % 6 == 0])
def test_odd_data_J_fit(method, case):
    """Finite predictions that the dense formulas confirm, variances above zero."""
    settings = dict(zip("Xy", wave(25, d=2)), M=4, batch=10, epochs=4)
    settings |= ODD[case](settings["X"], settings["y"])
    f, X, y = J.fit(method=method, **settings), *(np.array(settings[name], float) for name in "Xy")
    X_new = np.concatenate([X[:6], X[:3] + 0.1 * (X[:1] - X.mean(0))])
    mean, var = J.predict(f, X_new)
    want_mean, want_var = dense_predict(method, f.params, X_new, X, y)
    assert np.all(np.isfinite(f.history))
    assert np.all(var > 0)
    assert np.max(np.abs(mean - want_mean)) < 1e-5 * max(np.max(np.abs(y)), 1e-3)
    assert np.max(np.abs(var - want_var)) < 1e-5 * math.exp(f.params["ln_theta"][-1])


@pytest.mark.parametrize("case", [case for case in ODD if case not in ("N = 1", "d > N")])
@pytest.mark.parametrize(
    "entry, more",
    [("L.update", {}), ("L.step", {}), ("L.begin", {"settings": stream.Settings(unit="y")})])
def test_odd_data_L(entry, more, case):
    """The rows are taken without a complaint, and what is learnt predicts numbers."""
    rows = {
        name: value for name, value in (dict(X=X, y=y) | ODD[case](X, y)).items() if name in "Xy"}
    mean, *variances = (L.predict if entry == "L.update" else stream.forecast)(
        call(entry, **rows, **more), rows["X"])
    assert np.all(np.isfinite(mean))
    assert all(np.all((v > 0) & np.isfinite(v)) for v in variances)


@pytest.mark.parametrize(
    "middle, size, warns",
    [
        (15, 1, False), (25, 1, True), (25, 1.5, False), (0, 15, False), (0, 25, True),
        (0, 0.03, False), (0, 0.01, True), (15, 0, False)],
)
def test_RJ_unscaled(middle, size, warns):
    """A warning where |mean| is above 20 deviations, above 20 if these are below 1, or a deviation
    outside [.02, 20] but 0.
    """
    X = np.array([[-1.0], [1.0]])
    v = np.array([-1.0, 1.0])
    for data in ((X, middle + size * v), (middle + size * X, v)):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            R.warn_unscaled(*data, "it")
        assert len(said) == warns


@pytest.mark.parametrize("method", J.METHODS)
def test_odd_data_J_shift_order_and_distance(method):
    """X shifted by 1000, or rows of one batch in another order: the same predictions. X times
    1e200: a warning, and numbers.
    """
    X, y = wave(30, d=2)

    def predictions(X, y, X_new, Z):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            f = J.fit(X, y, method, Z=Z, epochs=5)
        return J.predict(f, X_new), " ".join(str(w.message) for w in said)

    want, _ = predictions(X, y, X, X[:4])
    others = [predictions(X + 1000, y, X + 1000, X[:4] + 1000)[0]]
    if method not in ("PPGPR-MFD", "OD-SVGP"):  # their second inducing inputs are always drawn
        others.append(predictions(X[::-1], y[::-1], X, X[:4])[0])
    assert max(np.max(np.abs(g - w)) for other in others for g, w in zip(other, want)) < 1e-7
    far, said = predictions(X * 1e200, y, X * 1e200, X[:4] * 1e200)
    assert "column 0 of X has mean" in said
    assert "scales X and y" in said
    assert all(np.all(np.isfinite(a)) for a in far)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "method", [f"{name} {method}" for name, module in MODULES.items() for method in module.METHODS])
def test_input_kept(method):
    """Read-only arguments pass; overwritten after a fit, or between two batches of a stream, they
    change no prediction.
    """
    name, method = method.split(" ")
    X = np.sort(np.linspace(-1, 1, 20) ** 3)[:, None]
    new = np.linspace(-1, 1, 5)[:, None]
    train = L.stream if name == "L" else MODULES[name].fit
    more = dict(R=dict(max_evals=4), J=dict(epochs=2, batch=10), L=dict(n0=5, pretrain=3))[name]

    def results(spoil):
        mine = dict(X=X.copy(), y=np.sin(3 * X[:, 0]), Z=X[::4].copy())
        given = mine | more | (dict(X_val=mine["X"], y_val=mine["y"]) if name == "J" else {})
        if name != "L":
            found = train(method=method, **given)
            given["start"] = {
                key: np.array(a)
                for key, a in (found.params if name == "J" else found.optimum.x).items()
            }
        arrays = [*mine.values(), *given.get("start", {}).values()]
        for a in arrays:
            a.setflags(write=False)
        trained = train(method=method, **given)
        if name == "L":
            first = next(trained).predict
        else:
            first = functools.partial(MODULES[name].predict, trained)
        for a in arrays if spoil else ():
            a.setflags(write=True)
            a[...] = 7.0
        return *first(new), *(next(trained).predict(new) if name == "L" else ())

    assert all(np.array_equal(a, b) for a, b in zip(results(False), results(True), strict=True))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_J_alg1_fit_start():
    """start replaces what it names and nothing else: an epoch of a step of nearly 0 returns it; its
    arrays are not written.
    """
    X, y = wave(30)
    start = dict(ln_theta=[0.3, -0.2, 0.1], m=np.linspace(-1, 1, 4))
    start["m"].setflags(write=False)

    def at(**more):
        return J.fit(X, y, "SVGP", 4, "periodic", epochs=1, lr=1e-300, **more).params

    p = at(start=start)
    default = at()
    for name in p:
        assert np.allclose(p[name], start.get(name, default[name]), rtol=0, atol=1e-290), name


@pytest.mark.parametrize("learn", stream.LEARN)
def test_odd_data_L_step_survives(learn):
    """Constant y is forecast, with a goal in its units; rows that are all the same, or come ten
    times, and a target that moves only later are survived; a constant column changes nothing; one
    with mean 0 has its scale.
    """
    goal = stream.Settings(M=8, learn=learn)
    X, y = wave(30)
    row = np.arange(30)
    own = goal._replace(unit="y")
    for c in (7.3, 0.0, -1e6):
        learner = certified(X, np.full(30, c), own)[-1]
        assert np.allclose(stream.forecast(learner, X)[0], c, rtol=1e-9, atol=1e-9)
        assert stream.certificates(learner).draw.loss < 0.3
    same = certified(np.ones((30, 2)), y, goal)[-1]
    assert len(same.posterior.Z) == 1
    assert abs(stream.forecast(same, np.ones((1, 2)))[0][0] - y.mean()) < 0.3 * np.std(y)
    copies = certified(np.repeat(X, 10, 0), np.repeat(y, 10), goal, 100, 10)[-1]
    assert copies.ledger[0] == 200
    assert len(copies.posterior.Z) <= 8
    even = stream.begin(
        np.array([[-3.0], [3.0]]), y[:2], goal)  # its mean is 0 to the last bit
    assert np.array_equal(even.input_scale, [[0.0], [3.0]])
    late = certified((row * (row > 12.0))[:, None], np.where(row > 20, y, 5.0), own)[-1]
    assert all(np.all(np.isfinite(a)) for a in (copies.ledger, late.ledger, *late.posterior[:6]))
    with_column = certified(np.column_stack([X, np.full(30, 3.0)]), y, goal)[-1]
    assert_close(with_column.ledger, certified(X, y, goal)[-1].ledger, 1e-9)


def test_L_eq03_exact_predict_floor(monkeypatch):
    """A variance that rounds below zero is VAR_FLOOR times the signal variance, whatever that is.
    """
    X = np.linspace(-1, 1, 40)[:, None]
    tri_inv = R.tri_inv
    monkeypatch.setattr(R, "tri_inv", lambda A: 1.001 * tri_inv(A))  # a rounding error, made larger
    for k in (3.0, -3.0):
        _, var = L.exact_predict(X, np.sin(X[:, 0]), X, np.array([1.0, k]), k - 18.0)
        assert_close(var, np.full(40, L.VAR_FLOOR * math.exp(k)), 1e-12)


# --- the command line ----------------------------------------------------------------------------

FLOATS = ["a", "", "nan", "inf", "-inf", "-1", "1e400", "1_0", "0x1", None]
WHOLES = ["a", "", "nan", "inf", "-1", "2.5", "1e3", "1e400", "1_0", None]
# rule -> texts an option refuses (a blank between two values, None: no value, "=1": joined), its
# words
TYPED = {
    "positive": (FLOATS + ["0"], "above 0 and finite"),
    "positives": (FLOATS + ["0", "1 0", "1 nan"], "above 0 and finite|NaN or infinite"),
    "share": (FLOATS + ["0", "1.5", "95"], "above 0 and at most 1"),
    "count": (WHOLES + ["0"], "a whole number of at least 1"),
    "seed": (WHOLES, "a whole number of at least 0"),
    "choice": (["a", "", "nope", "0", None], "must be one of"),
    "choices": (["a", "", "MAP nope", None], "must be one of"), "flag": (["=1", "="], ""),
    "column": (["nope", "", "3", "-1", "2.5", "1_0", "nan", "\u00b2", None], "is no column"),
    "columns": (["nope", "", "a,3", "a,-1", "2.5", "\"a,b\"", None], "is no column"),
    "inputs": (["nope", "a,3", "y", "a,-1"], "is no column|'y', which is the target")}
SHARED = dict(
    target="column", inputs="inputs", drop="columns", decimal="choice", missing="choice",
    json="flag")
OPTIONS = {  # module -> arguments that make it fast, its options
    R: (
        "--evals 2",
        dict(
            eps="positives", unit="choice", delta="share", sparse="count", method="choice",
            loss="choice", scale="choice", ard="flag", exact="flag", evals="count", seed="seed",
            certificate="choices", prior="share", kernel="choice", group="column",
            **{"no-ard": "flag"}, **SHARED),
    ),
    J: (
        "--methods MAP --epochs 1",
        dict(
            methods="choices", inducing="count", kernel="choice", search="flag", epochs="count",
            batch="count", seed="seed", **SHARED),
    ),
    L: (
        "--first 5",
        dict(
            eps="positive", unit="choice", kernel="choice", loss="choice", delta="share",
            lam="positives",
            inducing="count", learn="choice", discard="choice", memory="share", clock="flag",
            first="count", batch="count", every="count", **SHARED),
    ),
}
FILES = {"--predict", "--out", "--save", "--model", "--plot", "--state"}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "module, option",
    [
        pytest.param(module, option, id=f"{module.__name__}-{option}")
        for module, (_, options) in OPTIONS.items()
        for option in [*options, "nope"]
    ])
def test_option_refused(module, option, tmp_path, capsys):
    """Status 2 and one line on stderr that names the option as typed, before anything is printed or
    computed.
    """
    fast, options = OPTIONS[module]
    texts, rule = TYPED[options.get(option, "flag")]
    table = tmp_path / "table.csv"
    rows = np.c_[X, y]
    np.savetxt(table, np.r_[rows, rows + 9], delimiter=",", header="a,b,y", comments="")
    for text in texts:
        typed = [f"--{option}"]
        if text is not None:
            typed = [f"--{option}{text}"] if text[:1] == "=" else [*typed, *text.split(" ")]
        try:
            status = PROGRAM[module].main([str(table), *fast.split(), *typed])
        except SystemExit as stop:
            status = stop.code
        out, err = capsys.readouterr()
        lines = [line for line in err.splitlines() if line.strip()]
        assert status == 2, (text, out[:300])
        assert out == "", text
        assert len(lines) == 1, (text, err[-600:])
        assert re.search(rf"--{option}\b.*({rule}|invalid|expected)", lines[0]), (text, lines[0])


@pytest.mark.parametrize(
    "typed, hint",
    [
        ("--eps 0.5 table.csv", True), ("--certificate prior table.csv", True),
        ("table.csv --eps a", False), ("table.csv --loss nope", False)],
)
def test_option_took_the_table(typed, hint, tmp_path, monkeypatch, capsys):
    """Where an option of several values took the table, the line says so; not where a value is just
    bad.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").touch()
    assert certify_table.main(typed.split()) == 2
    assert ("write the table before the options" in capsys.readouterr().err) == hint


def test_options_covered():
    """Every option of the three parsers is in the table, but those that name a file or a function,
    or print and exit.
    """
    for module, (_, options) in OPTIONS.items():
        known = {
            name
            for action in PROGRAM[module].command_line()._actions
            for name in action.option_strings
        }
        assert known - FILES - {"-h", "--help", "--copy", "--version"} == {
            f"--{name}" for name in options}


# --- leaves of a fit -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "at, want", [(0.4, 0.4), (0.02, 0.1), (0.97, 0.9), (-3.0, 0.1), (5.0, 0.9)])
@pytest.mark.parametrize("a, b", [(0.0, 1.0), (2.0, 5.0), (-7.0, -6.9)])
def test_R_lbfgs_cubic_minimum_value(a, b, at, want):
    """The minimum of a cubic that has it at the share `at` of the way from a to b; at least a tenth
    away from both ends.
    """
    place = a + at * (b - a)

    def f(t):
        return (t - place) ** 2 + 0.01 * (t - place) ** 3

    def g(t):
        return 2 * (t - place) + 0.03 * (t - place) ** 2

    assert math.isclose(
        R.cubic_minimum(a, f(a), g(a), b, f(b), g(b)), a + want * (b - a), rel_tol=1e-9)
    for half in (R.cubic_minimum(a, 0.0, NAN, b, 0.0, 1.0),
                 R.cubic_minimum(a, 0.0, 1.0, b, INF, NAN)):
        assert half == a + 0.5 * (b - a)


@pytest.mark.parametrize("ard", [False, True])
@pytest.mark.parametrize(
    "family, names",
    [
        ("full", "ln_theta ln_noise"), ("sparse", "ln_theta ln_noise Z"),
        ("free", "ln_theta Z c L_S")],
)
def test_R_sec31_initial_parameters_value(family, names, ard):
    """l^2 = d, sigma_s^2 = sigma_n^2 = 1, Z from k-means or as given, and q at (11) with alpha = 1;
    the keys say what Q is.
    """
    p, by_k_means = (
        R.initial_parameters(
            X, y, R.FAMILIES[family], 4, R.first_theta(2, ard), given, np.random.default_rng(3))
        for given in (Z, None)
    )
    assert list(p) == names.split()
    assert p.get("ln_noise", 0) == 0
    assert np.array_equal(p["ln_theta"], [*[math.log(2)] * (2 if ard else 1), 0.0])
    assert family == "full" or np.array_equal(p["Z"], Z)
    assert family == "full" or np.array_equal(
        by_k_means["Z"], R.kmeans(X, 4, np.random.default_rng(3)))
    if family == "free":
        q = R.sparse_posterior(X, y, Z, p["ln_theta"], 0.0, 1.0)
        assert_close(p["c"], q.c, 1e-12)
        assert_close(p["L_S"] @ p["L_S"].T, q.S, 1e-12)
        assert np.array_equal(p["L_S"], np.tril(p["L_S"]))
