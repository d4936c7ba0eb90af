"""The reading pages docs/reading-R.md, -J.md, -L.md: their blocks of code stand in the modules,
their numbers are those of the modules, and every equation and misprint has its place.

That what is computed is what is printed: test_ref.py, test_equations_R.py, -J.py, -L.py.
"""

import ast
import inspect
import math
import re
import types

import numpy as np
import pytest
from tests.dense import dense_full_gp, dense_K_MM
from tests.oracles import assert_all_close, assert_close, same_bytes
from tests.pages import blocks, equation_numbers, PAGES, prose, table
from tests.problems import problem

import beyond.certificates
import beyond.search
import beyond.stream
import online as L
import pacgp_ref as R
import predictive as J

ROOMS = (R, J, L, beyond.certificates, beyond.search, beyond.stream)
KNOWN = {name for room in ROOMS for name in [*vars(room), room.__name__]}
READING = {tag: f"reading-{tag}.md" for tag in "RJL"}


# --- blocks of code ------------------------------------------------------------------------------


def quoted(page):
    """(name, lines) of each block of code: its first line is a comment that names the function."""
    parts = [block.splitlines() for block in blocks(page, "python")]
    examples = [lines for lines in parts if lines[0].startswith("import ")]  # test_house.py
    found = [(lines[0].removeprefix("# "), lines[1:]) for lines in parts if lines not in examples]
    assert all(name.split(".")[-1] in KNOWN for name, _ in found), page
    return found


def source_lines(name):
    """The stripped lines of code of `module.function`, or of a constant of a module."""
    module_name, _, function = name.rpartition(".")
    module = next(room for room in ROOMS if room.__name__ == module_name)
    value = getattr(module, function)
    if isinstance(value, (types.FunctionType, type)):
        text = inspect.getsource(value)
    else:
        text = re.split(rf"(?m)^(?={function} = )", inspect.getsource(module))[1].split("\n\n\n")[0]
    return [line.strip() for line in text.splitlines()]


def missing_line(lines, source):
    """The first line that does not follow in the source: next to the one before, or after `...`."""
    rest = source
    anywhere = True
    for line in map(str.strip, lines):
        if line != "...":
            if line not in (rest if anywhere else rest[:1]):
                return line
            rest = rest[rest.index(line) + 1:]
        anywhere = line == "..."
    return None


@pytest.mark.parametrize("page", [*READING.values(), "README.md"])
def test_RJL_reading_blocks(page):
    """The lines of each block stand in its function, consecutive and in this order."""
    for name, lines in quoted(page):
        line = missing_line(lines, source_lines(name))
        assert line is None, f"{name} has no such line, or not there: {line}"


def test_RJL_reading_faults_are_found():
    """The checker itself: another line, another order, a gap without `...` are found."""
    source = ["a = 1", "b = 2", "c = 3"]
    for lines, missing in (
        ("a = 1;b = 2", None), ("a = 1;...;c = 3", None), ("a = 1;c = 3", "c = 3"),
        ("b = 2;a = 1", "a = 1"), ("b = 3", "b = 3")):
        assert missing_line(lines.split(";"), source) == missing


def test_R_reading_sparse_gp_is_whole():
    """One block is all of sparse_gp below its docstring."""
    source = inspect.getsource(R.sparse_gp)
    (function,) = ast.parse(source).body
    body = source.splitlines()[function.body[1].lineno - 1 :]
    block = "\n".join(["# pacgp_ref.sparse_gp", *(line[4:] for line in body)])
    assert block + "\n" in blocks("reading-R.md", "python")


@pytest.mark.parametrize("page", READING.values())
def test_RJL_reading_names(page):
    """Every name in backticks that could be a function's, f or module.f, exists, or stands in a
    block of the page.
    """
    known = KNOWN | {word for _, lines in quoted(page) for word in re.findall(r"\w+", str(lines))}
    text = re.sub(r"^\|.*\n", "", prose(page), flags=re.M)  # cells of tables: tests/test_house.py
    for name in re.findall(r"`([a-z]+\w*_\w+|[a-z_.]+\.[a-z_]\w*)(?:\(\))?`", text):
        if not name.endswith((".py", ".md")):
            assert name.split(".")[-1] in known, f"docs/{page} names {name}, which is nowhere"


def test_L_beyond_theorem_lines():
    """docs/beyond.md: each hypothesis of the theorem quotes whole lines of its functions."""
    theorem = PAGES["beyond.md"].split("## The theorem of the stream")[1]
    items = re.split(r"^\d\. ", theorem.split("\n\n![")[0], flags=re.M)[1:]
    assert len(items) == 7
    for item in items:
        (name, said), = re.findall(r"`(\w+)`:\s+((?:`[^`]+`(?:,\s+)?)+)\.", item)
        for line in re.findall(r"`([^`]+)`", said):
            assert line in source_lines(f"beyond.stream.{name}"), line


# --- equations -----------------------------------------------------------------------------------

SHOWN = {  # tag -> last equation, where they begin, misprints with a star, those more and less
    "R": (34, "## The bound", "wrong", set(), {11}),    # right for the zero mean of the page
    "J": (34, "## The five numbers", "wrong", {3, 23}, {18}),   # whitened; one of (17), (18)
    "L": (24, "## The exact GP", "wrong omission loose", {8, 11}, set())}  # (11) lacks (9)'s KL


@pytest.mark.parametrize("tag", SHOWN)
def test_RJL_reading_every_equation_is_shown(tag):
    """Each has a display or a cell beside the print; a star have those that misprints.md calls
    wrong, in L those of which it says more than a remark.
    """
    last, start, kinds, more, less = SHOWN[tag]
    body = PAGES[READING[tag]].split(start)[1]
    tagged = re.sub(r"\d+\*?", r"(\g<0>)", " ".join(re.findall(r"\\tag\{([^}]*)\}", body)))
    shown = tagged + " ".join(re.findall(r"^\|.*", body, re.M))
    assert equation_numbers(shown) == {*range(1, last + 1)}
    starred = equation_numbers(" ".join(re.findall(r"\(\d+\*\)", shown)))
    wrong = [where for _, where, kind, *_ in table("misprints.md", "| no. | where | kind | printed")
             if where[0] == tag and kind in kinds.split()]
    assert starred == equation_numbers(" ".join(wrong)) - less | more


# --- numbers and examples ------------------------------------------------------------------------


def test_R_eq06_full_predict_value():
    """(6) at new inputs, dense; what the page says of the series and of the grid."""
    X, y, X_new, ln_theta, ln_noise = problem()
    mean, cov = dense_full_gp(X, y, ln_theta, ln_noise, X_new)
    got = R.full_predict(X, y, X_new, ln_theta, ln_noise)
    assert_all_close(got, (mean, np.diag(cov)), 1e-12)
    text = " ".join(PAGES["reading-R.md"].split())
    assert f"below {R.NARROW} these two" in text
    assert f"which is {R.ln_grid_size(2):.2f} for $T=2$" in text


def example(tag):
    """The names that the example of a page leaves behind."""
    names = {}
    exec(next(code for code in blocks(READING[tag], "python") if code.startswith("import")), names)
    return names


def test_J_alg1_reading_example():
    """The page's epoch is fit's, to the last bit."""
    names = example("J")
    gp = J.fit(names["X"], names["y"], "PPGPR-Chol", M=8, batch=20, epochs=1)
    assert same_bytes(gp.params, J.unpack(names["x"], names["p"]))
    assert same_bytes(J.predict_y(gp, np.array([[0.0], [1.5]])), (names["mean"], names["var"]))
    shown = [float(value) for value in re.findall(r"rows: (\d\S+)", PAGES["reading-J.md"])]
    assert abs(gp.history[0] - np.mean(shown)) < 1e-6


def test_L_eq10_reading_example():
    """Posterior and bound of the page's three batches are certified_stream's, to the last bit."""
    names = example("L")
    given = [names[name] for name in ("X", "y", "Z", "ln_theta", "ln_noise", "lam", "eps")]
    *_, (posterior, bound) = L.certified_stream(*given, batch=50)
    assert same_bytes(posterior, names["Q"])
    assert bound == names["ours"]


def best_lengthscales(N):
    """ln l^2 (2,) on a grid where MAP is best at its best m': whitened, and by (3) as printed,
    which has ln|K_MM|/2 more.
    """
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, (N, 1))
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 0] * rng.standard_normal(N)
    p = dict(ln_noise=np.log(0.1), Z=np.linspace(-2, 2, 8)[:, None])
    grid = np.arange(-60, 160, 5) / 100
    values = []
    for ln_l2 in grid:
        p["ln_theta"] = np.array([ln_l2, 0.0])
        (V, _), _ = J.whitened_features(X, p["Z"], p["ln_theta"])
        p["m"] = np.linalg.solve(np.eye(8) + V.T @ V / 0.1, V.T @ y / 0.1)
        whitened = N * J.objective(p, X, y, N, "MAP", 1.0)[0]
        _, ln_det = np.linalg.slogdet(dense_K_MM(p["Z"], p["ln_theta"], "Matern52"))
        values.append((whitened, whitened + ln_det / 2))
    return grid[np.argmin(values, 0)]


def test_J_appE_reading_whitening():
    """The page's table of the lengthscale that MAP takes; what whitening drops matters less for
    more rows.
    """
    best = np.transpose([best_lengthscales(N) for N in (60, 600, 6000)])
    print(best)
    shown = table("reading-J.md", "| MAP: best $\\ln l^2$ | N = 60 | N = 600 | N = 6000 |")
    assert_close(np.array([row[1:] for row in shown], float), best, 1e-12)
    moved = best[1] - best[0]
    assert np.all(moved > 0)
    assert np.all(np.diff(moved) < 0)


def test_J_appC_reading_settings():
    """Every `name=value` and every constant of the table of settings is that of predictive.py."""
    section = PAGES["reading-J.md"].split("## The settings of App. C")[1].split("## ")[0]
    defaults = inspect.signature(J.fit).parameters
    shown = re.findall(r"`(\w+)=([^`]+)`", section)
    assert len(shown) == 10
    for name, value in shown:
        assert value == repr(defaults[name].default), name
    sets = {"SVGP": (0.1, 0.3, 0.5, 1), "PPGPR": (0.01, 0.05, 0.2, 1), "gamma": J.GAMMAS}
    for name, values in sets.items():
        assert "{" + ", ".join(map(str, values)) + "}" in section, name
    for method, beta in (("SVGP", 1), ("OD-SVGP", 1), ("VFITC", 1), *(
        (method, 0.05) for method in J.METHODS if method.startswith("PPGPR"))):
        assert J.BETAS[method] == sets["PPGPR" if beta < 1 else "SVGP"]
        assert J.fit(np.eye(3), np.arange(3.0), method, M=2, epochs=1).beta_reg == beta
    assert J.START == math.log(2)
    assert (J.START_STD, R.JITTER) == (0.01, 1e-8)
