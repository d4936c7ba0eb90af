"""The rules of the house: arrows point down, a name has one meaning, every equation is tagged,
docstrings name the arguments, gradients have one form, a copied function is complete.
"""

import ast
import builtins
import graphlib
import importlib
import io
import re
import symtable
import sys
import tokenize

import numpy as np
import pytest
from tests.oracles import each, HERE, refuses, same_bytes
from tests.test_pages import equation_numbers, LAST, PAGES

import online as L
import pacgp_ref as R
from beyond.certificates import held_out
from beyond.kernels import KERNELS
from beyond.rounding import strict
from own_data.copying import copied, GUARDS, MAKERS

LEVELS = {"pacgp_ref": 1, "predictive": 2, "online": 2, "beyond": 3, "figures_of": 4, "own_data": 4,
          "figures": 5}
SOURCES = {str(path.relative_to(HERE).with_suffix("")).replace("/", "."): path.read_text()
           for name in LEVELS for path in (*HERE.glob(f"{name}.py"), *HERE.glob(f"{name}/*.py"))}
TREES = {room: ast.parse(source).body for room, source in SOURCES.items()}
pytestmark = pytest.mark.filterwarnings("ignore:.*stopped after")
PAPERS = {"R": "pacgp_ref", "J": "predictive", "L": "online"}
BELOW = [room for room in SOURCES if LEVELS[room.split(".")[0]] <= 3]


def functions(room):
    """The functions at the top of a module, as trees."""
    return [node for node in TREES[room] if isinstance(node, ast.FunctionDef)]


def source(room, node):
    """The lines of a function, without those that decorate it."""
    return "\n".join(SOURCES[room].splitlines()[node.lineno - 1:node.end_lineno])


def test_RJL_house_arrows_point_down():
    """No room imports from a higher one, nor in a circle, nor from the tests, in functions either;
    pacgp_ref can be imported with NumPy and the standard library alone; figures and programs do not
    know each other.
    """
    taken = {room: set() for room in SOURCES}
    for room, tree in TREES.items():
        for node in ast.walk(ast.Module(tree, [])):
            if isinstance(node, ast.Import):
                taken[room] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                taken[room] |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
    homes = {name.split(".")[0] for name in taken["pacgp_ref"]}
    assert homes <= {"numpy", *sys.stdlib_module_names}
    for room, names in taken.items():
        assert not {name.split(".")[0] for name in names} & {"tests", "test_ref"}, room
        taken[room] = names & {*SOURCES}
        for names in (name.split(".")[0] for name in taken[room]):
            folder = room.split(".")[0]
            assert LEVELS[names] < LEVELS[folder] or names == folder, f"{room} imports {names}"
    graphlib.TopologicalSorter(taken).prepare()


def test_RJL_house_one_name():
    """What two files below the programs define under one name is what each model has; of versions
    there is one.
    """
    homes = [node.name for room in BELOW for node in functions(room)]
    assert {name for name in homes if homes.count(name) > 1} <= {"fit", "predict"}
    for file, mark in (("CHANGELOG.md", "## "), ("CITATION.cff", "version: ")):
        version = re.search(rf"(?m)^{mark}(.*)", (HERE / file).read_text())[1]
        assert version == R.__version__, file


# --- the equations -------------------------------------------------------------------------------

def tagged(text, tag):
    """{n: the first line with the literal `# R (n)`, in a comment `# R (3)  # R (4): what it is`}.
    """
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and ": " in token.string:
            for n in re.findall(rf"# {tag} \((\d+)\)", token.string.split(": ")[0]):
                found.setdefault(int(n), token.start[0])
    return found


@each("tag, room", PAPERS.items())
def test_RJL_house_equations_are_tagged(tag, room):
    """The first hit of a search for `# R (n)` is the statement that computes Eq. (n), for each
    equation of a paper, or its module's docstring says why there is none. A function with a tag
    names its arguments in its docstring, unless README, the module or another function does; all
    public ones have one.
    """
    about = ast.get_docstring(ast.parse(SOURCES[room]))
    listed = about.split("Equations without code of their own: ")[1]
    without = " ".join(re.findall(      # what heads a clause: "(5) and (7)-(9) are R (18)"
        r"(?:^|(?<!Eq)[;,.]\s)(\(\d+\)(?:(?:-| and\s)\(\d+\))*)", listed))
    every = {*range(1, LAST[tag] + 1)}
    found = tagged(SOURCES[room], tag)
    assert {*found} == every - equation_numbers(without)
    for n, place in found.items():
        before = SOURCES[room].splitlines()[:place - 1]
        assert f"# {tag} ({n})" not in "\n".join(before), n
    shared = PAGES["README.md"] + about + R.__doc__
    for node in functions(room):
        doc = ast.get_docstring(node) or ""
        assert doc or node.name.startswith("_"), node.name
        if f"# {tag} (" in source(room, node) and " as " not in doc:
            for argument in node.args.args:
                assert re.search(rf"\b{argument.arg}\b", doc + shared), (node.name, argument.arg)


@each("room", PAPERS.values())
def test_grad_form(room):
    """A leaf has f_grad of the same arguments; a block of rows has a function _back of its own;
    where a function has `back` inside, it returns value, back; of all parameters a dict.
    """
    arguments = {node.name: [argument.arg for argument in node.args.args]
                 for node in functions(room)}
    for node in functions(room):
        name = node.name
        if name.endswith("_grad"):
            assert arguments[name] == arguments[name.removesuffix("_grad")], name
        if name.endswith("_back"):
            assert arguments[name][0] == "rows", name
        if "back" in (getattr(child, "name", "") for child in node.body):
            assert re.fullmatch(r"return \(.*, back\)", ast.unparse(node.body[-1])), name
            back = next(child for child in node.body if getattr(child, "name", "") == "back")
            given = ast.unparse(back.body[-1])
            model = "ln_theta" in arguments[name] and {"ln_noise", "L_S"} & {*arguments[name]}
            model = model or "p" in arguments[name]
            assert not given.startswith("return (" if model else "return dict("), name


# --- copying a function --------------------------------------------------------------------------

def scopes(table):
    """A symbol table and those of all scopes inside it."""
    yield table
    for child in table.get_children():
        yield from scopes(child)


GUARDED = "as_float|real_array|check_shapes|kernel is |far|near1"      # what copies leave out


@each("room", BELOW)
def test_RJL_house_copy_is_complete(room):
    """The copy of each function defines or imports all that it looks up, in an order that runs, and
    nothing else; it imports none of the modules.
    """
    for node in functions(room):
        text = copied(f"{room}.{node.name}")
        top = symtable.symtable(text, "text", "exec")
        read = {symbol.get_name() for scope in scopes(top) for symbol in scope.get_symbols()
                if symbol.is_referenced() and (scope is top or symbol.is_global())}
        defined = {symbol.get_name() for symbol in top.get_symbols()
                   if symbol.is_assigned() or symbol.is_imported()}
        asked = {node.name, re.sub("_(back|grad)$", "", node.name), MAKERS.get(node.name)}
        assert (read | {node.name}) - defined <= {*dir(builtins)}, node.name
        assert defined - read <= asked, node.name
        own = [line for line in source(room, node).splitlines()
               if not re.search(GUARDED, line) or node.name in GUARDS]
        assert {*own} <= {*text.splitlines()}, node.name
        assert node.name in GUARDS or not defined & {*GUARDS}, node.name
        assert not re.search(rf"(import|from) .*\b({'|'.join(LEVELS)})\b", text), node.name
        exec(text, {"__name__": "copied"})


DATA = """
rng = np.random.default_rng(0)
X, Z, ln_theta = rng.standard_normal((20, 2)), rng.standard_normal((4, 2)), np.zeros(3)
y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(20)
"""


@each("room, names, text", [
    ("pacgp_ref", "sparse_gp", "sparse_gp(X, y, Z, ln_theta, -1.0)[1](y, y, 0.5)"),
    ("pacgp_ref", "predict fit", "predict(fit(X, y, 'free-kl-PAC-SGP', 4, max_evals=5), Z)"),
    ("predictive", "predict fit", "predict(fit(X, y, 'PPGPR-MFD', 4, epochs=2), Z)"),
    ("online", "update predict", "predict(update(prior(Z, ln_theta), X, y, -1.0), Z)"),
    ("online", "conjugate_update",
     "conjugate_update(prior(Z, ln_theta), X, y, 0.5, Z + 0.1, ln_theta)"),
    ("pacgp_ref", "full_gp", "full_gp(X, y, ln_theta, -1.0)[1](y, y, 0.5)"),
    ("predictive", "matern52", "matern52(X, Z, ln_theta)[1](np.outer(y, y[:4]))"),
    ("beyond.certificates", "certify_predictions",
     "certify_predictions(y, X[:, 0], 0.5, coverage=0.5)"),
    ("beyond.stream", "certificates step begin",
     "certificates(step(begin(X[:10], y[:10]), X[10:], y[10:]))")])
def test_RJL_house_copy_runs(room, names, text):
    """Functions run from the copied text alone give the module's numbers to the last bit."""
    alone = copied(*(f"{room}.{name}" for name in names.split()))
    results = []
    for space in ({"__name__": "copied"}, vars(importlib.import_module(room)).copy()):
        exec(alone * (len(space) == 1) + DATA, space)
        results.append(eval(text, space))
    assert same_bytes(*results)


def test_RJL_house_copy_is_short():
    """Lines of three copies; their head says how to call them, and of a long one how long it is
    and what is shorter. Where the one algorithm for distances loses its digits, the copy says so.
    """
    for name, most in (("full_gp", 200), ("sparse_gp", 310), ("matern52", 90)):
        text = copied(name)
        assert text.count("\n") <= most and f"# Call: {name}(X" in text, name
    long = copied("held_out")
    lines, = re.findall(r"# (\d+) lines; shorter is binomial_bound\(misses, n, delta\)", long)
    assert 0 < long.count("\n") - int(lines) < 30
    data = {"__name__": "copied"}
    exec(text + DATA, data)
    with refuses("too far apart"):
        eval("matern52(1e6 * X, X, ln_theta)", data)
    assert "too far apart" not in copied("online.update")      # it has both


def test_RJL_house_copy_takes_the_modules_records():
    """Records are known by their fields, kernels by their names: what a module returns goes into a
    copy; another kernel does not.
    """
    data = {"__name__": "copied", "np": np}
    exec(DATA, data)
    X, y, Z, ln_theta = (data[name] for name in ("X", "y", "Z", "ln_theta"))
    results = {L.predict: L.update(L.prior(Z, ln_theta), X, y, -1.0),
               R.predict: R.fit(X, y, "VFE", 4, max_evals=60)}
    for predict, found in results.items():
        exec(copied(f"{predict.__module__}.predict"), data)
        assert same_bytes(data["predict"](found, Z), predict(found, Z))
        with refuses("must be a .*Posterior"):
            data["predict"](y, Z)
    exec(copied("held_out", "strict"), data)
    for row in KERNELS.values():
        start = getattr(row.function, "start", lambda d, ard: np.zeros((2, 2 * d + 1)))
        gp = R.fit(X, y, "VFE", 4, kernel=row.function, ard=True, start_theta=start, max_evals=2)
        for found in (gp, strict(gp, X, y)):
            assert data["held_out"](found, X, y) == held_out(found, X, y)
            assert same_bytes(data["strict"](found, X, y), strict(found, X, y))

    def unknown(*args, **named):
        return row.function(*args, **named)
    own = gp._replace(posterior=gp.posterior._replace(kernel=unknown))
    with refuses("not enclosed"):
        data["held_out"](own, X, y)
