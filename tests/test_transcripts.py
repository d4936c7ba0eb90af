"""What the three programs print, and what Python's calls refuse: the commands of transcripts.txt,
with their whole output; the calls of refused.txt, with the ValueError of each.

Words and whole numbers must be the same, others within one unit of their last digit or a millionth.
`[2]` after a command is its status: it then learns from no table, and leaves all files as they are.
A file that a command writes is there for those below it.

    python tests/test_transcripts.py        writes both files anew: read the difference
"""

import contextlib
import inspect
import math
import os
import pathlib
import re
import shlex
import sys
import tempfile
import warnings

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))    # for `python tests/...`

import online as L
import pacgp_ref as R
import predictive as J
from beyond import certificates, rounding, search, stream
from own_data import follow_stream, saving
from own_data.scale import Scale, scale_of, scaled, standardise
from tests.programs import mixed, printed, PROGRAM, table

FILE = pathlib.Path(__file__).with_name("transcripts.txt")
REFUSED = pathlib.Path(__file__).with_name("refused.txt")
ROOMS = dict(
    np=np, R=R, J=J, L=L, certificates=certificates, rounding=rounding, search=search,
    stream=stream, follow_stream=follow_stream, saving=saving, Scale=Scale, scale_of=scale_of,
    scaled=scaled, standardise=standardise)
MODULES = {"pacgp_ref": R, "predictive": J, "online": L}
COMMAND = re.compile(
    r"(?:printf '(?P<text>.*)' (?:> (?P<file>\S+)|\| ))?"
    r"(?:python (?P<program>\w+)\.py ?(?P<typed>.*?))?(?: \[(?P<status>\d+)\])?")
NUMBER = r"(?<![\w.])-?\d+\.?\d*(?:e[-+]\d+)?(?!\w)"


def tables():
    """{name: text} of the tables that the commands name."""
    rng = np.random.default_rng(0)
    walk = zip(rng.standard_normal(120).tolist(), rng.standard_normal(120).cumsum().tolist())
    wide = rng.standard_normal((300, 60))
    x = rng.uniform(-3, 3, 400).round(3)
    turned = [f"{a},{a * (-1) ** (i > 200):.3f}\n" for i, a in enumerate(x)]
    return {
        "t.csv": table(60),
        "walk.csv": "\n".join(f"{x!r},{y!r}" for x, y in walk),
        "repeated.csv": table(60, row=table(60).splitlines()[1:6] * 3),
        "short.csv": table(24),
        "clock.csv": re.sub("(?m)^.*,", "", table(60)),
        "gaps.csv": table(60, row=["1,,3", "1,2,NA"]),
        "large.csv": table(60, row=["1,1,1e200"]),
        "flat.csv": "x,y\n" + "1,5\n2,5\n3,5\n" * 20,
        "huge.csv": "\n".join(["x,y", *(f"{i},{math.sin(i) * 1e160}" for i in range(60))]),
        "tiny.csv": "\n".join(["x,y", *(f"{i},{math.sin(i) * 1e-160}" for i in range(60))]),
        "mixed.csv": mixed()[0],
        "turned.csv": "".join(turned),
        "half.csv": "".join(turned[:200]),
        "broad.csv": ",".join(["1.5"] * 10_002),
        "wide.csv": "\n".join(",".join(map(repr, row)) for row in wide.tolist())}


@contextlib.contextmanager
def in_folder(folder):
    """The tables are in this folder, which is the current one."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        for name, text in tables().items():
            pathlib.Path(name).write_text(text)
        yield
    finally:
        os.chdir(before)


def files():
    """{name: bytes} of the current folder."""
    return {path.name: path.read_bytes() for path in pathlib.Path().iterdir()}


def refuse(*_, **__):
    raise AssertionError("a refused command has learnt from a table")


def output(command):
    """What a command prints, standard output first."""
    part = COMMAND.fullmatch(command)
    text = (part["text"] or "").encode().decode("unicode_escape")
    if part["file"]:
        pathlib.Path(part["file"]).write_text(text)
        return ""
    module = MODULES[part["program"]]
    status = int(part["status"] or 0)
    before = files() if status else None
    with pytest.MonkeyPatch.context() as patch:
        if status:
            patch.setattr(PROGRAM[module], "trained", refuse, raising=False)
        out, err = printed(module, *shlex.split(part["typed"]), quick=[], check=status, stdin=text)
    assert status == 0 or files() == before
    return out + re.sub(r" \(choose from [^)]*\)", "", err)      # Pythons quote the choices or not


def blocks(path=FILE, prompt=r"\$"):
    """[(command, its output)] of a file."""
    parts = re.split(rf"(?m)^{prompt} (.*)\n", path.read_text())[1:]
    return list(zip(parts[::2], parts[1::2]))


def names():
    """What the calls of refused.txt name: modules, a table, numbers, what has learnt from it."""
    X = np.random.default_rng(0).standard_normal((20, 2))
    y = np.sin(X[:, 0])
    Z = X[:4]
    theta = np.zeros(3)
    NAN = float("nan")
    INF = float("inf")
    fit_R = R.fit(X, y, max_evals=2)
    fit_J = J.fit(X, y, "SVGP", 3, epochs=1)
    scale = Scale(np.zeros(2), np.ones(2), 0.0, 1.0, 9)
    model = saving.Model(fit_R, scale, ["a", "b"], "y")
    model_J = saving.Model(fit_J, scale, ["a", "b"], "y")
    learner = stream.step(stream.begin(X, y, pretrain=1), X, y)
    session = follow_stream.Session(learner, [], dict(seen=20, used=["a", "b", "y"]))
    state = L.prior(Z, theta)

    def put(a, value):
        """A copy of the array a with another second value or row."""
        a = np.array(a)
        a[1] = value
        return a
    return ROOMS | locals()


def refusal(call, known):
    """The ValueError of a call, in words."""
    with pytest.raises(ValueError) as error:
        eval(call, known)
    return f"{error.value}\n"


def assert_same_text(got, want):
    """The words and whole numbers are equal; others within one unit of the last digit, or a
    millionth.
    """
    assert re.sub(NUMBER, "#", got) == re.sub(NUMBER, "#", want)
    for one, other in zip(re.findall(NUMBER, got), re.findall(NUMBER, want)):
        mantissa, _, power = other.partition("e")
        unit = 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2]))
        whole = other.lstrip("-").isdecimal()
        allowed = 0 if whole else max(1.01 * unit, 1e-6 * abs(float(other)))
        assert abs(float(one) - float(other)) <= allowed, f"{one}, not {other}, in\n{got}"


@pytest.mark.filterwarnings("ignore")
def test_transcripts(tmp_path):
    with in_folder(tmp_path):
        for command, text in blocks():
            assert_same_text(f"$ {command}\n{output(command)}", f"$ {command}\n{text}")


@pytest.mark.parametrize("name", MODULES)
def test_each_option_refuses(name):
    """Of each option a bad value is among the commands: the error names the option."""
    refused = [text for command, text in blocks()
               if f"{name}.py" in command and command.endswith("[2]")]
    for action in PROGRAM[MODULES[name]].command_line()._actions:
        for option in {*action.option_strings} - {"-h", "--help", "--copy", "--version"}:
            assert any(re.search(rf"error: .*{option}\b", text) for text in refused), option


@pytest.mark.filterwarnings("ignore")
def test_refused():
    known = names()
    for call, text in blocks(REFUSED, ">>>"):
        assert_same_text(f">>> {call}\n{refusal(call, known)}", f">>> {call}\n{text}")


ENTRIES = """
R.fit R.predict rounding.strict certificates.prior_from_part certificates.held_out
J.fit J.choose J.predict J.predict_y
L.prior L.update L.predict L.process_kl L.stream
stream.begin stream.Settings stream.step stream.forecast stream.certificates"""


@pytest.mark.parametrize("name", ENTRIES.split())
def test_each_argument_refuses(name):
    """Of each argument but functions a bad value is among the calls: the ValueError begins with it.
    """
    refused = {text.split()[0] for call, text in blocks(REFUSED, ">>>") if f"{name}(" in call}
    arguments = {
        name for name, p in inspect.signature(eval(name, dict(ROOMS))).parameters.items()
        if p.kind is not p.VAR_KEYWORD}
    assert arguments - refused <= {"callback", "over", "search"}


def test_assert_same_text():
    """A word, a sign, a whole number and two units are noticed; one unit is not."""
    assert_same_text("B 0.1235 at 1e-09 of 9", "B 0.1234 at 2e-09 of 9")
    for other in ("B 0.1236 at 1e-09 of 9", "C 0.1234 at 1e-09 of 9", "B -0.1234 at 1e-09 of 9",
                  "B 0.1234 at 1e-09 of 8", "B 0.1234 at 1e-09"):
        with pytest.raises(AssertionError):
            assert_same_text(other, "B 0.1234 at 1e-09 of 9")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, in_folder(folder):
        FILE.write_text("".join(f"$ {command}\n{output(command)}" for command, _ in blocks()))
    warnings.simplefilter("ignore")
    known = names()
    REFUSED.write_text("".join(
        f">>> {call}\n{refusal(call, known)}" for call, _ in blocks(REFUSED, ">>>")))
