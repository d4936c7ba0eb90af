"""Do the tests notice a change of one place? Changes are drawn at random by a seed.

    python tests/mutants.py                        12 changes, tests of their module
    python tests/mutants.py --seed 7 --number 60   others, and more
    python tests/mutants.py --tests "tests -k eq08"   under these words for pytest

An operator, a comparison, a sign or a number is changed in a copy of the project. A change that no
test notices may change no result: read it.
"""

import argparse
import ast
import copy
import pathlib
import random
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
TESTS = {  # files -> the tests that know them
    "pacgp_ref.py": "test_ref.py tests/test_equations_R.py -k R_",
    "predictive.py": "test_ref.py tests/test_equations_J.py -k J_",
    "online.py": "test_ref.py tests/test_equations_L.py -k L_",
    "beyond/*.py": "tests/test_streams.py tests/test_exact.py tests/test_certificates.py",
    "own_data/*.py": "tests/test_transcripts.py tests/test_said.py tests/test_tables.py"}
SWAPS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Lt: ast.GtE,
    ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}


def changed(node):
    """The node with one place changed, or None."""
    new = copy.copy(node)
    if isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        new.op = SWAPS[type(node.op)]()
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        new.ops = [SWAPS[type(node.ops[0])](), *node.ops[1:]]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
        new = node.operand
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        new.value = node.value + 1 if type(node.value) is int else 1.1 * node.value + 1e-3
    else:
        return None
    return new


def places(source):
    """[(line, text before, text after, the whole source after)] of all changes of a module."""
    tree = ast.parse(source)
    lines = source.encode().splitlines(keepends=True)
    skipped = {id(inner) for node in ast.walk(tree) if isinstance(node, (ast.Raise, ast.JoinedStr))
               for inner in ast.walk(node)}
    found = []
    for node in ast.walk(tree):
        new = None if id(node) in skipped else changed(node)
        if new is not None:
            start = sum(map(len, lines[:node.lineno - 1])) + node.col_offset
            end = sum(map(len, lines[:node.end_lineno - 1])) + node.end_col_offset
            text = source.encode()
            after = f"({ast.unparse(new)})"
            whole = text[:start] + after.encode() + text[end:]
            found.append((node.lineno, text[start:end].decode(), after, whole.decode()))
    return found


def drawn(number, seed):
    """[(path, tests, place)]: as many of each row of TESTS, at random."""
    rng = random.Random(seed)
    found = []
    for i in range(number):
        pattern, tests = list(TESTS.items())[i % len(TESTS)]
        sites = [(path, tests, place) for path in sorted(ROOT.glob(pattern))
                 if path.stem not in ("studies", "costs", "networks", "__init__")
                 for place in places(path.read_text())]
        found.append(rng.choice(sites))
    return found


def first_failure(command, folder):
    """The test that fails first; "" if none does."""
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
        for path, own, (line, before, after, source) in drawn(number, seed):
            name = path.relative_to(ROOT)
            (project / name).write_text(source)
            command = [sys.executable, "-B", "-m", "pytest", "-xq", "--tb=no", "-p",
                       "no:cacheprovider", *shlex.split(tests or own)]
            by = first_failure(command, project)
            shutil.copy(path, project / name)
            out.append((f"{name}:{line} {before} -> {after}", by))
            print(*out[-1], sep="\n    ", flush=True)
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--number", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", help="words for pytest instead of those of TESTS")
    found = noticed(**vars(parser.parse_args()))
    print(f"{sum(bool(by) for _, by in found)} of {len(found)} noticed")
