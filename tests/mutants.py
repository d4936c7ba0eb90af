"""Do the tests notice a change of one place? Changes are drawn at random by a seed.

    python tests/mutants.py                        12 changes, tests of their module
    python tests/mutants.py --seed 7 --number 60   others, and more
    python tests/mutants.py --tests "tests -k eq08"   under these words for pytest

An operator, a comparison, a sign or a number is changed in a copy of the project. A change that no
test notices may change no result: read it.
"""

import argparse
import ast
import contextlib
import io
import pathlib
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import tokenize

ROOT = pathlib.Path(__file__).resolve().parents[1]
TESTS = {  # files -> the tests that know them
    "pacgp_ref.py": "test_ref.py tests/test_equations_R.py -k R_",
    "predictive.py": "test_ref.py tests/test_equations_J.py -k J_",
    "online.py": "test_ref.py tests/test_equations_L.py -k L_",
    "beyond/*.py": "tests/test_streams.py tests/test_exact.py tests/test_certificates.py",
    "own_data/*.py": "tests/test_said.py tests/test_own_data.py"}
SWAPS = dict(pair.split() for pair in (
    "+ -", "- +", "* /", "/ *", "< >=", ">= <", "> <=", "<= >", "== !=", "!= ==", "+= -=", "-= +="))


def changed(token):
    """The text that takes the place of a token, or None."""
    if token.type != tokenize.NUMBER:
        return "" if token.string == "not" else SWAPS.get(token.string)
    number = ast.literal_eval(token.string)
    return repr(number + 1 if isinstance(number, int) else 1.1 * number + 1e-3)


def places(source):
    """[(row, this line after)] of all changes of a module."""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        after = changed(token)
        if after is not None:
            row, start = token.start
            _, end = token.end
            found.append((row, token.line[:start] + after + token.line[end:]))
    return found


def with_line(source, row, line):
    """The source with another line in this row."""
    lines = source.splitlines(keepends=True)
    return "".join([*lines[:row - 1], line, *lines[row:]])


def compiles(source):
    with contextlib.suppress(SyntaxError):          # a star of arguments is no product
        return compile(source, "changed", "exec")


def drawn(number, seed):
    """[(path, tests, row, line)]: as many of each row of TESTS, at random."""
    rng = random.Random(seed)
    found = []
    for i in range(number):
        pattern, tests = list(TESTS.items())[i % len(TESTS)]
        sites = [(path, tests, *place) for path in sorted(ROOT.glob(pattern))
                 for place in places(path.read_text())]
        rng.shuffle(sites)
        found.append(next(site for site in sites
                          if compiles(with_line(site[0].read_text(), *site[2:]))))
    return found


def first_failure(tests, folder):
    """The test that fails first; "" if none does."""
    command = [sys.executable, "-B", "-m", "pytest", "-xq", "--tb=no", "-p", "no:cacheprovider"]
    command += tests
    try:
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return "no end within 300 s"
    failed = [row for row in run.stdout.splitlines() if row.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0] if failed else "an error" * (run.returncode != 0)


def noticed(number=12, seed=0, tests=None):
    """[(what was changed, the test that failed first, or "")], one at a time."""
    out = []
    with tempfile.TemporaryDirectory() as folder:
        project = pathlib.Path(folder) / "project"
        shutil.copytree(ROOT, project, ignore=shutil.ignore_patterns(".*", "__pycache__", "out"))
        for path, own, row, line in drawn(number, seed):
            name = path.relative_to(ROOT)
            (project / name).write_text(with_line(path.read_text(), row, line))
            by = first_failure(shlex.split(tests or own), project)
            shutil.copy(path, project / name)
            out.append((f"{name}:{row} {line.strip()}", by))
            print(*out[-1], sep="\n    ", flush=True)
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Do the tests notice a change of one place?")
    parser.add_argument("--number", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", help="words for pytest instead of those of TESTS")
    found = noticed(**vars(parser.parse_args()))
    print(f"{sum(bool(by) for _, by in found)} of {len(found)} noticed")
