"""Who checks what: entry points check every argument, a formula has its domain, and no wrong
certificate comes of a bad argument: a formula gives an error or the right value."""

import pathlib
import re
import warnings

import numpy as np
import pytest

import online as L
import pacgp_ref as R
import predictive as J
from beyond import certificates, kernels, rounding, search, stream
from own_data import copying, scale

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROOMS = dict(R=R, J=J, L=L, certificates=certificates, kernels=kernels, rounding=rounding,
             search=search, stream=stream, scale=scale)


# --- an error or the right value ------------------------------------------------------------------

BOUND = "0 <= R_S <= 1 and KL > -1e-9 and N >= 1 and N % 1 == 0 and 0 < delta <= 1"
BOUNDED = dict(R_S=0.1, KL=3.0, N=100, delta=0.05)
SUM = "-1e-9 < loss_sum <= n * K * (1 + 1e-9) and KL > -1e-9 and n >= 1 and 0 < delta <= 1"
SUMMED = dict(loss_sum=3.25, KL=1.5, n=20, lam=0.25, delta=0.25, K=1.0)
FORMULAS = {  # -> arguments, and what must be true of them as real numbers
    "R.kl_inv": (dict(q=0.1, eps=0.5), "0 <= q <= 1 and eps >= 0"),
    "R.kl_inv_grad": (dict(q=0.1, eps=0.5), "0 <= q <= 1 and eps >= 0"),
    "R.binary_kl": (dict(q=0.1, p=0.5), "0 <= q <= 1 and 0 <= p <= 1"),
    "R.ln_confidence": (dict(N=9, delta=0.2), "N >= 1 and N % 1 == 0 and 0 < delta <= 1"),
    "R.complexity": ({k: BOUNDED[k] for k in ("KL", "N", "delta")}, BOUND.split(" and ", 1)[1]),
    "R.pac_bayes_bound": (BOUNDED, BOUND),
    "R.pinsker_bound": (BOUNDED, BOUND),
    "R.bayes_risk_bound": (dict(bound=0.3), "bound >= 0"),
    "R.hoeffding_term": (dict(n=9, delta=0.2), "n >= 1 and 0 < delta <= 1"),
    "R.ln_grid_size": (dict(T=3), "T >= 1"),
    "certificates.binomial_bound": (
        dict(misses=3, n=20, delta=0.2),
        "misses >= 0 and misses % 1 == 0 and n >= 1 and n % 1 == 0 and 0 < delta <= 1"),
    "L.online_bound": (SUMMED, SUM + " and 0 < lam < np.inf and K > 0"),
    "L.best_lam": (dict(n=20, KL=1.5, delta=0.2), SUM.split(" and ", 1)[1]),
    "certificates.certificate": (
        {k: v for k, v in SUMMED.items() if k != "lam"} | dict(lams=0.25),
        SUM + " and 0 < lams < np.inf and K > 0"),
}
NARROW = (np.int8, np.uint8, np.int16, np.float16, np.float32)
NUMBERS = (np.nan, np.inf, -np.inf, -1, -0.1, -1e-10, 0, 0.0, 0.25, 0.5, 1, 1.0, 1.5, 2.5, 3, 20,
           95, 100, 127, 200, 1e9, 1e300, True)


def forms_of(value):
    """A value as other code may hand it over: narrow, in a list, an array or a column, as text."""
    return (value, [value], (value, value), np.array([value]), np.array([[value], [value]]),
            str(value), None, {}, "a", *(np.array(value).astype(of)[()] for of in NARROW))


def real(value):
    """The one real number that a value stands for; TypeError or ValueError if it is none."""
    numbers = np.unique(np.asarray(value, dtype=float))
    if len(numbers) != 1:
        raise ValueError("not one number")
    return float(numbers[0])


def outcome(f, named):
    """What f gives, as an array, or None for an error."""
    try:
        return np.asarray(f(**named), dtype=float) if f is not certificates.certificate else (
            np.asarray(f(**named)[:3], dtype=float))
    except (ValueError, TypeError, OverflowError):
        return None


def wrong_values(name, rng, n):
    """The drawn arguments, n times one or two of them changed, at which a formula is wrong."""
    good, domain = FORMULAS[name]
    tag, own = name.split(".")
    f = getattr(ROOMS[tag], own)
    found = []
    for _ in range(n):
        named = dict(good)
        for key in rng.choice(list(good), min(len(good), rng.integers(1, 3)), replace=False):
            value = NUMBERS[rng.integers(len(NUMBERS))] if rng.random() < 0.7 else good[key]
            forms = forms_of(value)
            named[str(key)] = forms[rng.integers(len(forms))]
        got = outcome(f, named)
        if got is None:
            continue
        exact = {key: real(value) for key, value in named.items()}
        if not eval(domain, {"np": np}, exact):
            found.append((named, got))
            continue
        want = outcome(f, exact)
        if want is None or not np.allclose(got.reshape(*want.shape, -1), want[..., None],
                                           rtol=1e-13, atol=0, equal_nan=True):
            found.append((named, got, want))
    return found


@pytest.mark.parametrize("n", [600, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FORMULAS)
def test_formula_error_or_right_value(name, n):
    """Of NaN, negative, large, narrow, boxed and spelt arguments come an error or the value of the
    real numbers that they stand for, never another one."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        assert wrong_values(name, np.random.default_rng(0), n)[:3] == []


ROWS = dict(y=np.array([0.5, -1.0, 2.0, 0.25]), mean=np.array([0.0, -1.5, 2.5, 0.0]),
            var=np.array([0.25, 1.0, 0.5, 4.0]), eps=5.0)      # small losses
SPOILT = {  # a vector of rows as other code may hand it over
    "column": lambda a: np.reshape(a, (-1, 1)), "row": lambda a: np.reshape(a, (1, -1)),
    "shorter": lambda a: a[1:], "text": lambda a: np.array(a).astype(str).tolist(),
    "list": lambda a: np.array(a).tolist(), "float32": np.float32, "float16": np.float16,
    "int8": lambda a: np.array(np.round(a), dtype=np.int8),
    "large int8": lambda a: np.array(100 * np.sign(a) + 0 * a, dtype=np.int8),
    "NaN": lambda a: np.where(np.arange(np.size(a)) == 1, np.nan, a), "0": lambda a: 0 * a,
    "negative": lambda a: -np.abs(a), "word": lambda a: ["a"] * np.size(a), "None": lambda a: None,
}


@pytest.mark.parametrize("loss", R.LOSSES)
def test_formula_gibbs_risk(loss):
    """The risk of spoilt rows is an error or that of the real numbers they stand for."""
    for name in ROWS:
        for how, spoil in SPOILT.items():
            vector = np.full(4, ROWS[name]) if name == "eps" else ROWS[name]
            named = dict(ROWS, **{name: spoil(vector)})
            try:
                got = R.gibbs_risk(**named, loss=loss)
            except (ValueError, TypeError, IndexError):
                continue
            rows = {key: np.asarray(value, dtype=float) for key, value in named.items()}
            assert rows["y"].shape == rows["mean"].shape == rows["var"].shape, (name, how)
            assert np.all(rows["var"] > 0) and np.all(rows["eps"] > 0), (name, how)
            eps = rows["eps"] * np.ones(4)
            one_by_one = [R.LOSSES[loss](*row)[0]
                          for row in zip(rows["y"], rows["mean"], rows["var"], eps)]
            assert abs(got - np.mean(one_by_one)) < 1e-14, (name, how)


@pytest.mark.parametrize("grid", [(np.int8(100), np.uint8(255)), [100.0, 255.0], (100, 255)])
def test_formula_grid_narrow(grid):
    """A grid of narrow integers is the grid of their values."""
    assert R.ln_grid_size(np.int8(3), grid) == 3 * np.log(256)
    assert np.allclose(R.round_to_grid([0.3, -200], grid), [100 / 255, -100], rtol=1e-12)


# --- copies, differentiated -----------------------------------------------------------------------

CALLS = {  # functions -> a scalar of a vector x, and their own slopes of it
    "R expected_01_loss expected_clipped_square_loss expected_exp_loss": ("""
LINES
losses = expected_01_loss, expected_clipped_square_loss, expected_exp_loss
def f(x):
    return sum(np.sum(loss(y[:4], x, x**2, 0.6)[0]) for loss in losses)
own = sum(d_mean + 2 * x * d_var for _, d_mean, d_var in (loss(y[:4], x, x**2, 0.6)
                                                           for loss in losses))"""),
    "J batch_objective": ("""
p = dict(ln_noise=-1.0, Z=X[:3], m=np.ones(3), L_S=np.eye(3))
def f(x):
    return batch_objective(dict(p, ln_theta=x[:3], ln_noise=x[3]), X, y, 40, 1.0)[0]
d = batch_objective(dict(p, ln_theta=x[:3], ln_noise=x[3]), X, y, 40, 1.0)[1](1.0)
own = np.append(d["ln_theta"], d["ln_noise"])"""),
}


@pytest.mark.parametrize("names", CALLS)
def test_copy_differentiates(names):
    """A copy, where np is autograd.numpy, has the slopes that it returns."""
    tag, *copied_names = names.split()
    text = copying.copied(*(f"{ROOMS[tag].__name__}.{name}" for name in copied_names))
    head, *_ = text.splitlines()
    assert f"{ROOMS[tag].__name__}.py" in head
    assert f" {R.__version__}, SPDX-License-Identifier: MIT, (c) " in head
    assert head.split("(c) ")[1].lower() in (ROOT / "LICENSE").read_text().lower()
    printed = (ROOT / "docs" / "trust.md").read_text().split("## To copy")[1]
    lines = re.search(r"```python\n(.*?)```", printed, re.S)[1]
    text = text.replace("import numpy as np", "import autograd.numpy as np")
    copy = {}
    exec(text + f"""
from autograd import grad
X = np.sin(np.arange(16.0)).reshape(8, 2)
y = np.cos(3 * X[:, 0])
x = np.array([0.3, -0.2, 0.4, -0.7])
{CALLS[names].replace("LINES", lines)}
error = np.max(np.abs(grad(f)(x) - own)) / np.max(np.abs(own))
""", copy)
    assert copy["error"] < 1e-12
