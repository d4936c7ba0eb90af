"""The house rules: a copied function is complete, every equation has its place, what README and
docs/ show is what runs.

Tests named in README.md and docs/ are looked for among those that pytest collects, by the words
that `pytest -k` would take.
"""

import ast
import builtins
import functools
import inspect
import io
import os
import pathlib
import pickle
import re
import subprocess
import sys
import symtable
import textwrap
import tokenize
import types
import unittest.mock

import numpy as np
import pytest

import beyond.blocks
import beyond.certificates
import beyond.kernels
import beyond.rounding
import beyond.search
import beyond.stream
import own_data.copying
import figures as F
import online as L
import pacgp_ref as R
import predictive as J
from tests.oracles import same_bytes
from tests.pages import blocks, equation_numbers, PAGES, prose, ROOT, table

MODULES = {"R": R, "J": J, "L": L}
BEYOND = {
    "beyond/kernels.py": beyond.kernels, "beyond/blocks.py": beyond.blocks,
    "beyond/search.py": beyond.search, "beyond/rounding.py": beyond.rounding,
    "beyond/certificates.py": beyond.certificates, "beyond/stream.py": beyond.stream}
README = PAGES["README.md"]


# --- copying a function --------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def modules_are_parsed_once():
    """copied() parses a module whenever it is called, which is slow for all functions of three
    modules.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            own_data.copying, "definitions", functools.cache(own_data.copying.definitions))
        yield


def functions(module):
    """Names of the functions that a module defines."""
    return [name for name, f in vars(module).items()
            if isinstance(f, types.FunctionType) and f.__module__ == module.__name__]


def scopes(table):
    """A symbol table and those of all scopes inside it."""
    yield table
    for child in table.get_children():
        yield from scopes(child)


def reads_and_definitions(text):
    """The names that a text looks up outside its functions, and those it defines at its top level.
    """
    top = symtable.symtable(text, "text", "exec")
    read = {
        s.get_name()
        for scope in scopes(top)
        for s in scope.get_symbols()
        if s.is_referenced() and (scope is top or s.is_global())
    }
    return read, {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}


def faults(text, name):
    """What is wrong with a copy of a function: names that it lacks, names that it does not need."""
    read, defined = reads_and_definitions(text)
    missing = (read | {name}) - defined - {*dir(builtins), "__file__"}
    spare = defined - read - with_forward(name)
    return [f"{name}: {what} {sorted(names)}"
            for what, names in (("lacks", missing), ("does not need", spare)) if names]


def with_forward(name):
    """The name and, of a gradient's, its forward function's, which is beside it."""
    return {name, re.sub("_(back|grad)$", "", name)}


@pytest.mark.parametrize("tag", [*MODULES, *BEYOND])
def test_RJL_house_copy_is_complete(tag):
    """The copy of each function has it as it stands, defines or imports all that it looks up, in an
    order that runs, and nothing else; it imports none of the modules.
    """
    module = (MODULES | BEYOND)[tag]
    found = []
    for name in functions(module):
        text = own_data.copying.copied(f"{module.__name__}.{name}")
        found += faults(text, name)
        for one in with_forward(name) & vars(module).keys():
            assert inspect.getsource(getattr(module, one)) in text, name
        assert not re.search(r"import.*\b(pacgp_ref|predictive|online|beyond)\b|from beyond", text)
        exec(text, {"__name__": "copied"})
    assert not found, "\n".join(found)


def test_RJL_house_copy_faults_are_found():
    """Names in a nested function, a default, a decorator, a class and a comprehension count."""
    text = '''
import math
class T(Base):
    x: int = START
def f(x=DEFAULT):
    y = [g(i) for i in range(x)]
    return lambda: math.sin(h(y)) + T.x
@decorator
def spare(): return spare_name
'''
    assert faults(text, "f") == [
        "f: lacks ['Base', 'DEFAULT', 'START', 'decorator', 'g', 'h', 'spare_name']",
        "f: does not need ['spare']"]


RUNS = [  # module, expression: run with the functions it names copied, and with the module's
    ("R", "kl_inv(0.1, [0.3, 2.0])"),
    ("R", "gibbs_risk(y, y + 0.1, y**2 + 0.1, 0.6, 'square')"),
    ("R", "sparse_gp(X, y, Z, ln_theta, -1.0)[1](y, y, 0.5)"),
    ("R", "predict(fit(X, y, 'free-kl-PAC-SGP', 4, max_evals=5), Z)"),
    ("R", "strict(fit(X, y, 'kl-PAC-SGP', 4, max_evals=5), X, y)"),
    ("R", "held_out(fit(X, y, 'VFE', 4, max_evals=5), X, y), binomial_bound(3, 40, 0.05)"),
    ("J", "periodic(X, Z, np.zeros(5))[0]"),
    ("J", "predict(fit(X, y, 'PPGPR-MFD', 4, epochs=2), Z)"),
    ("J", "predict(choose(X, y, X, y, 'OD-SVGP', (0.1, 1.0), M=4, epochs=2), Z)"),
    ("J", "predict(fit(X, y, 'FITC', 4, epochs=5), Z)"),
    ("L", "process_kl(update(prior(Z, ln_theta), X, y, -1.0), prior(Z, ln_theta))"),
    (
        "L",
        "online_objective(dict(Z=Z, ln_theta=ln_theta, ln_noise=-1.0), prior(Z, ln_theta), X, "
        "y)[1](1.0)",
    ),
    ("L", "certificates(step(begin(X[:10], y[:10]), X[10:], y[10:]))"),
    ("L", "[(s.p, s.state, s.predict(X)) for s in stream(X, y, 'O-PACGP', Z, pretrain=3, batch=2)]"),
]


def called(tag, text):
    """The functions of a module, or of beyond/, that an expression names."""
    there = {name for module in (MODULES[tag], *BEYOND.values()) for name in functions(module)}
    return sorted(
        {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)} & there)


def reached(tag):
    """name -> value of what a module and beyond/ have, its own first, as --copy finds it."""
    return {
        name: value
        for module in (*BEYOND.values(), MODULES[tag])
        for name, value in vars(module).items()
    }


@pytest.mark.filterwarnings("ignore:.*stopped after")
@pytest.mark.parametrize(
    "tag, text", RUNS, ids=["-".join([tag, *called(tag, text)]) for tag, text in RUNS])
def test_RJL_house_copy_runs(tag, text):
    """Functions run from the copied text alone, on read-only arrays, give the module's numbers to
    the last bit.
    """
    rng = np.random.default_rng(0)
    copy = {"__name__": "copied"}
    data = dict(
        X=rng.standard_normal((20, 2)), Z=rng.standard_normal((4, 2)),
        ln_theta=np.array([0.3, -0.2, 0.1]))
    data["y"] = np.sin(data["X"][:, 0]) + 0.1 * rng.standard_normal(20)
    for a in data.values():
        a.setflags(write=False)
    own = functions(MODULES[tag])
    names = [f"{MODULES[tag].__name__}." * (name in own) + name for name in called(tag, text)]
    exec(own_data.copying.copied(*names), copy)
    assert same_bytes(*(eval(text, {"np": np, **space, **data}) for space in (copy, reached(tag))))


# --- the equations -------------------------------------------------------------------------------

LAST_EQUATION = {"R": 34, "J": 34, "L": 24}


def comments(text):
    """The comments of a source, in order."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


def tagged_equations(text, tag="R"):
    """Numbers n with the literal tag `R (n)` in a comment as `# R (3), R (4): its formula or name`.
    """
    heads = [comment.split(": ")[0] for comment in comments(text)
             if comment.startswith(f"# {tag} (") and ": " in comment]
    return {int(n) for head in heads for n in re.findall(rf"\b{tag} \((\d+)\)", head)}


def cited_equations(text, tag="R"):
    """Numbers n cited as `R (n)`, lists and ranges included."""
    lists = re.findall(rf"\b{tag} (\(\d+\)(?:(?:,|;| and|-|, and)\s*\(\d+\))*)", text)
    return set().union(*map(equation_numbers, lists))


def without_own_code(doc):
    """Numbers that head a clause of a module docstring's list of equations without code; those of
    `R (n)` do not.
    """
    listed = re.search(r"Equations without code of their own: (.*)", doc, re.S)[1]
    return equation_numbers(
        " ".join(re.findall(r"(?:^|(?<!Eq)[;,.]\s)(\(\d+\)(?:(?:-| and\s)\(\d+\))*)", listed)))


def test_RJL_house_equations_faults_are_found():
    """Check the checker: a tag needs its paper before each number, and a formula or a name."""
    text = '''
def f():
    """Right; R (3), (4) and (6)-(8); see (9) and J (10)."""
    a = 1     # R (12), R (13): a
    b = 2     # R (14), (15): b
    c = 3     # R (16)
    return "# R (11): no comment"     # (17) of R (18): neither
'''
    assert tagged_equations(text) == {12, 13, 14}
    assert tagged_equations(text, "J") == set()
    assert cited_equations(text) == {3, 4, 6, 7, 8, 11, 12, 13, 14, 15, 16, 18}
    listed = (
        "Equations without code of their own: (1) is (3) at 0, (2) too; (5) and\n(7)-(9) are "
        "R (18)-(20); it is (21).")
    assert without_own_code(listed) == {1, 2, 5, 7, 8, 9}


@pytest.mark.parametrize("tag", MODULES)
def test_RJL_house_equations_are_tagged(tag):
    """A search for `R (n)` finds the statement that computes Eq. (n), for each equation of a paper,
    or its module's docstring says why there is none; the old form `R (n)` is nowhere.
    """
    module = MODULES[tag]
    source = pathlib.Path(module.__file__).read_text()
    without_code = without_own_code(module.__doc__)
    every = {*range(1, LAST_EQUATION[tag] + 1)}
    assert tagged_equations(source, tag) == every - without_code
    assert not re.search(r"\b[RJL] Eq\.", source)


def test_RJL_house_tags_in_prose_are_found():
    """A tag that a page or a module's docstring quotes, as `# R (8)`, is in a comment of a module.
    """
    found = [comment for module in MODULES.values()
             for comment in comments(pathlib.Path(module.__file__).read_text())]
    prose_of = {**PAGES, **{module.__name__: module.__doc__ for module in MODULES.values()}}
    for page, text in prose_of.items():
        for quoted in re.findall(r"`(# [RJL] \(\d+\)[^`]*)`", text):
            assert any(comment.startswith(quoted) for comment in found), (page, quoted)


def map_rows(tag):
    """The rows of the last table of docs/reading-R.md, -J.md or -L.md, lists of five cells."""
    return table(
        f"reading-{tag}.md", f"| Eq. | what | in `{MODULES[tag].__name__}.py` | gradient | tests |")


BROKEN = """
import inspect, sys, types, pytest
import figures, online, pacgp_ref, predictive
import beyond.certificates, beyond.rounding, beyond.stream, figures_of.studies
import own_data.certify, own_data.follow, own_data.score

def broken(*args, **kwargs):
    raise RuntimeError("called while tests are collected")

rooms = [sys.modules[name] for name in sys.modules if name.startswith(("beyond.", "own_data."))]
for module in (online, pacgp_ref, predictive, *rooms):
    for f in map(inspect.unwrap, vars(module).values()):
        ours = getattr(f, "__module__", "") == module.__name__
        function = isinstance(f, types.FunctionType) and ours and f not in (pacgp_ref.doubled, pacgp_ref.in_doubles)
        if function and not f.__closure__:
            f.__code__ = broken.__code__
sys.exit(pytest.main(sys.argv[1:]))
"""


@functools.cache
def collection():
    """What pytest says when it collects all tests but those of this file, while every function of
    the modules raises.
    """
    command = [
        sys.executable, "-c", BROKEN, "--collect-only", "-q", "-o", "addopts=", "-p",
        "no:cacheprovider"]
    return subprocess.run(
        [*command, "--ignore", __file__], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "PYTEST_ADDOPTS": ""})


def test_RJL_house_collection_runs_nothing():
    """Cases are made inside the tests: a function that is broken fails its own tests, and all
    others are collected.
    """
    assert collection().returncode == 0, collection().stdout[-3000:]


@functools.cache
def collected():
    """The names of these tests, with their cases, in lower case."""
    return [
        line.split("::", 1)[1].lower() for line in collection().stdout.splitlines() if "::" in line]


def selects(expression, tests=None):
    """Whether `pytest -k expression`, words joined by and, or, would run any of tests (all)."""
    tests = collected() if tests is None else tests
    parts = [
        [word.strip().lower() for word in part.split(" and ")] for part in expression.split(" or ")]
    return any(all(word in test for word in words) for words in parts for test in tests)


@pytest.mark.parametrize("tag", MODULES)
def test_RJL_house_equations_are_cited(tag):
    """The map has every equation once. Each is cited in a function, class or constant of its row,
    or heads a clause of the module's list of the rest; none does both.
    """
    module = MODULES[tag]
    source = pathlib.Path(module.__file__).read_text()
    without_code = without_own_code(module.__doc__)
    numbers = []
    for row in map_rows(tag):
        numbers += equation_numbers(row[0])
        cited = set()
        for name in re.findall(r"`(\w+)[`(]", row[2]):
            value = getattr(module, name, None)
            text = source.split(f"\n{name} = ")[-1].split("\n\n\n")[0]
            if isinstance(value, (types.FunctionType, type)):
                text = textwrap.dedent(inspect.getsource(value))
            cited |= cited_equations(text, tag)
        assert equation_numbers(row[0]) - without_code <= cited, row
    assert sorted(numbers) == [*range(1, LAST_EQUATION[tag] + 1)]


@pytest.mark.parametrize(
    "tag, row", [(tag, row) for tag in MODULES for row in map_rows(tag)], ids=lambda v: v[0] or "-")
def test_RJL_house_map_cells(tag, row):
    """Every cell resolves: what stands in backticks is a name of the module (or its file), or words
    that select a test.
    """
    _, what, code, gradient, tests = row
    homes = [MODULES[tag]] + [R] * ("pacgp_ref.py" in code)
    homes += [module for name, module in BEYOND.items() if name in code]

    def names(cell):
        return [name.split("(")[0] for name in re.findall(r"`([^`]+)`", cell)]

    assert what
    assert code
    assert names(tests)
    assert tests == ", ".join(f"`{name}`" for name in names(tests))
    for name in names(code) + names(gradient):
        a_file = name.endswith(".py") and (ROOT / name).exists()
        assert a_file or any(hasattr(home, name) for home in homes), name
    for name in names(gradient):
        assert name.endswith(("_back", "_grad", "_objective", "_pdf"))
    words = re.sub(r"`[^`]+`,? ?", "", gradient).strip()
    assert words.strip(", ") in (
        "", "this is the gradient", "in", "returned with the value", "the second result"), words
    for name in names(tests):
        assert selects(f"{tag}_eq and {name}" if name.startswith("eq") else name), name


def tags(test):
    """{("R", 24), ("R", 31)} of "test_grad[r_eq24_eq31-01]"."""
    return {
        (tag.upper(), int(number))
        for tag, numbers in re.findall(r"(?<![a-z])([rjl])((?:_eq\d\d)+)", test)
        for number in numbers.split("_eq")[1:]
    }


NO_ORACLE = ("misprint", "floor", "errors")


def pointer_faults(tag, row, tests):
    """What is wrong with the pointers eqNN of a row of a map: one of an equation of another row;
    one that selects a test of another equation, or none that computes it in another way.
    """
    found = []
    for number in map(int, re.findall(r"`eq(\d\d)`", row[4])):
        expression = f"{tag}_eq and eq{number:02d}"
        chosen = [test for test in tests if selects(expression, [test])]
        if number not in equation_numbers(row[0]):
            found.append(f"{expression}: not of this row")
        found += [f"{expression}: {test}" for test in chosen if (tag, number) not in tags(test)]
        oracles = [test for test in chosen if not any(word in test for word in NO_ORACLE)]
        if not oracles and number not in without_own_code(MODULES[tag].__doc__):
            found.append(f"{expression}: no oracle")
    return found


@pytest.mark.parametrize("tag", MODULES)
def test_RJL_house_map_selects_its_equations(tag):
    """Each pointer eqNN selects tests of this equation of this paper alone; where the equation has
    code of its own, one at least is neither of a misprint nor of an edge case.
    """
    found = [fault for row in map_rows(tag) for fault in pointer_faults(tag, row, collected())]
    assert found == []


def test_RJL_house_map_pointer_faults_are_found():
    """The checker itself: another paper's equation, another row's, no oracle."""
    right = "test_r_eq09_eq23_value"
    of_another = "test_r_eq24_l_eq23_value"
    for row, tests, fault in (
        ("(22), (23)", [right, "test_r_eq24_value"], []),
        ("(22), (23)", [right, of_another], [f"R_eq and eq23: {of_another}"]),
        ("(23)", ["test_r_eq23_misprint"], ["R_eq and eq23: no oracle"]),
        ("(22)", [right], ["R_eq and eq23: not of this row"])):
        assert pointer_faults("R", [row, "", "", "", "`eq23`"], tests) == fault


# --- README and docs/ ----------------------------------------------------------------------------

NUMBER = re.compile(r"-?\d+\.\d+")


def assert_same_text(got, want, tol):
    """The same words, and numbers with a decimal point to tol, or tol of them above 1; the
    optimiser's count apart.
    """
    got, want = (re.sub(r"\d+ evaluations", "", " ".join(text.split())) for text in (got, want))
    assert NUMBER.sub("#", got) == NUMBER.sub("#", want)
    assert np.allclose(
        [float(v) for v in NUMBER.findall(got)], [float(v) for v in NUMBER.findall(want)], rtol=tol,
        atol=tol)


def runnable(page):
    """(code, output) of the Python examples of a page that have their output below them."""
    return re.findall(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", PAGES[page], re.S)


@pytest.mark.parametrize(
    "page, i, tol",
    [
        ("reading-R.md", 0, 1e-6),
        ("reading-J.md", 0, 2e-6), ("reading-L.md", 0, 2e-4)],      # own-data.md: below
)
def test_RJL_house_snippet_golden(page, i, tol, capsys):
    """The Python example runs as printed and prints the block below it.

    Trainings of J are sensitive to rounding.
    """
    code, shown = runnable(page)[i]
    exec(compile(code, page, "exec"), {})
    assert_same_text(capsys.readouterr().out, shown, tol)


@pytest.mark.parametrize("i", [0, 1])
def test_RJL_house_readme_example(i, capsys):
    """The examples of README print the numbers beside their prints, to all digits shown."""
    code = [block for block in blocks("README.md", "python") if block.startswith("import")][i]
    exec(compile(code, "README.md", "exec"), {})
    comments_beside = " ".join(re.findall(r"(?m)^print.*# (.*)", code))
    shown, printed = ([float(v) for v in NUMBER.findall(text)]
                      for text in (comments_beside, capsys.readouterr().out))
    assert len(shown) >= 3
    assert np.allclose(printed, shown, rtol=0, atol=1e-6)


def test_RJL_house_version():
    """One version: that of the modules, the first of CHANGELOG.md, and that of CITATION.cff;
    --version prints it.
    """
    changes = (ROOT / "CHANGELOG.md").read_text()
    citation = (ROOT / "CITATION.cff").read_text()
    found = (
        re.findall(r"(?m)^## (\S+)", changes)[0],
        re.findall(r"(?m)^version: \"?([\d.]+)", citation)[0])
    assert found == (R.__version__, R.__version__)
    said = subprocess.run(
        [sys.executable, "-m", "own_data", "--version"], cwd=ROOT, capture_output=True, text=True)
    assert (said.returncode, said.stdout) == (0, R.__version__ + "\n")


def test_R_house_scale_engines(tmp_path, monkeypatch, capsys):
    """The page's script, with an engine that gets copies of all: map's certificate, to the last
    bit.
    """
    rng = np.random.default_rng(0)
    stub = unittest.mock.MagicMock()
    X = rng.standard_normal((2000, 3))
    y = np.sin(X[:, 0]) + 0.3 * rng.standard_normal(2000)
    for name, a in (("X", X), ("y", y)):
        np.save(tmp_path / name, a)

    def away(f, blocks):
        return [
            pickle.loads(pickle.dumps(f))(block) for block in pickle.loads(pickle.dumps(blocks))]

    stub.Client().map, stub.Client().gather = (
        lambda f, blocks, pure: away(f, blocks), lambda parts: parts)
    for name in ("dask", "dask.distributed"):
        monkeypatch.setitem(sys.modules, name, stub)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(R, "BLOCK_BYTES", 1)
    exec(blocks("scale.md", "python")[0], {"__name__": "__main__"})
    bound = float(capsys.readouterr().out.split()[-1])
    fit = beyond.search.multistart_fit
    assert bound == fit(X, y, "kl-PAC-SGP", M=100, max_evals=20, start={}).bound
    assert bound < 0.5


def test_RJL_house_every_block_is_checked():
    """The fenced blocks of all pages are those that the tests above run or compare."""
    count = {page: (len(blocks(page, "python")), len(blocks(page, "text"))) for page in PAGES}
    checked = {"README.md": (3, 1), "own-data.md": (2, 7), "scale.md": (1, 0), "trust.md": (1, 0)}
    others = {
        page: n for page, n in count.items() if n != (0, 0) and not page.startswith("reading-")
    }  # those: test_reading.py
    assert others == checked
    assert all(text.count("```") == 2 * sum(count[page]) for page, text in PAGES.items())


def test_RJL_house_misprints_have_evidence():
    """Misprints are numbered in the order of the papers; each has evidence: tests of that paper, a
    figure, a quotation or the paper's own numbers. README counts them.
    """
    rows = table("misprints.md", "| no. | where | kind | printed |")
    assert [int(row[0]) for row in rows] == [*range(1, len(rows) + 1)]
    papers = "".join(where[0] for _, where, *_ in rows)
    assert re.fullmatch("R+J+L+", papers)
    assert len(rows) >= 44
    assert f"[{len(rows)} misprints, omissions and remarks]" in README
    for number, where, kind, printed, right, numbers, tests in rows:
        assert kind in ("wrong", "omission", "loose", "remark"), number
        assert printed
        assert right
        words = re.sub(r"`-k [^`]+`(, )?", "", tests)
        assert all(name in F.FIGURES for name in words.split(", ") if name), (number, tests)
        assert numbers or tests, number
        assert tests or '"' in numbers or kind == "remark", number
        for expression in re.findall(r'`-k "?([^`"]+)"?`', tests):
            equations = {(where[0], int(n)) for n in re.findall(r"eq(\d\d)", expression)}
            for test in collected():
                if selects(expression, [test]):
                    assert equations <= tags(test), (number, test)


def test_RJL_house_commands_in_pages():
    """The two commands that CI runs are in the README; figures and tests named in commands exist.
    """
    assert len(re.findall(r"^ *python3 -m venv .venv && ", README, re.M)) == 2
    for page, text in PAGES.items():
        for names in re.findall(r"python\s+figures\.py ([\w ]+)", text):
            assert F.select(names.split()), (page, names)
        for expression in re.findall(r"`[^`]*-k (\"[^`\"]+\"|\w+)[^`]*`", text):
            assert selects(expression.strip('"')), (page, expression)


def sections(page):
    """The anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.*)", prose(page))
    return [re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings]


def test_RJL_house_links():
    """Links lead to files and to sections; README links each page; docs/figures.md has a row for
    each figure; README has at most 120 lines.
    """
    for page in PAGES:
        folder = ROOT if page == "README.md" else ROOT / "docs"
        for target, section in re.findall(r"\]\(([\w-]*(?:\.md)?)#([^)]+)\)", prose(page)):
            assert section in sections(target or page), (page, target, section)
        for target in re.findall(r"\]\(([^)#]+)\)", prose(page)):
            assert target.startswith("http") or (folder / target).exists(), (page, target)
    assert {*re.findall(r"\(docs/([\w-]+\.md)\)", README)} == {*PAGES} - {"README.md"}
    first = " ".join(row[0] for row in table("figures.md", "| figure or table |"))
    assert set(re.findall(r"[\[`](\w+)[\]`]", first)) == set(F.FIGURES)
    assert README.count("\n") <= 120


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
def test_grad_form(module):
    """One convention of gradients: a leaf has f_grad(same arguments), or returns value and
    derivatives; a block of rows has a function _back of its own; else f returns value, back."""
    for node in ast.parse(pathlib.Path(module.__file__).read_text()).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        arguments = [argument.arg for argument in node.args.args]
        assert "cache" not in arguments, node.name
        if node.name.endswith("_grad"):
            value = inspect.signature(getattr(module, node.name.removesuffix("_grad")))
            assert list(value.parameters) == arguments, node.name
        if node.name.endswith("_back"):
            assert arguments[0] == "rows", node.name
        inner = [child.name for child in node.body if isinstance(child, ast.FunctionDef)]
        if "back" in inner:
            last = node.body[-1]
            assert isinstance(last, ast.Return), node.name
            assert isinstance(last.value, ast.Tuple), node.name
            assert [ast.unparse(part) for part in last.value.elts[1:]] == ["back"], node.name
