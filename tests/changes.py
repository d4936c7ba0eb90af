"""Do the tests notice a change of one place? changes.csv lists 300, drawn at random.

    python tests/changes.py                           all that were noticed
    python tests/changes.py 1-20 37                   these numbers
    python tests/changes.py 37 --tests "-k R_eq27"    under these tests alone, words for pytest

A row has a function and one of its statements before and after (of a compound one the head). It is
looked for in functions of this name, then everywhere; if it was rewritten, its largest part with
the change that was not. What is not found exactly once is gone: edit its row. The changes are made
in a copy. First runs the test that noticed it before, then all, slow ones last, until one fails.
"""

import argparse
import ast
import csv
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def head(node):
    """The node; of a compound statement the head, its body ... as in the list."""
    parts = dict(ast.iter_fields(node))
    if not isinstance(node, ast.stmt) or "body" not in parts:
        return node
    parts |= {name: [] for name in ("orelse", "decorator_list") if name in parts}
    return type(node)(**parts | {"body": [ast.Expr(ast.Constant(...))]})


def trail(before, after):
    """The nodes from the statement to the smallest that holds the change; that one of `after`."""
    nodes = [before]
    while not isinstance(before, ast.JoinedStr):  # its parts have no positions before Python 3.12
        pairs = zip(ast.iter_child_nodes(before), ast.iter_child_nodes(after))
        pairs = [(x, y) for x, y in pairs if ast.dump(x) != ast.dump(y)]
        if len(pairs) != 1 or isinstance(pairs[0][0], (ast.operator, ast.cmpop, ast.unaryop)):
            break
        before, after = pairs[0]
        nodes.append(before)
    return nodes, after


def find(row, trees):
    """(path, node, its new text) of the only place, or None; trees is {path: tree}."""
    nodes, new = trail(*(ast.parse(row[side]).body[0] for side in ("before", "after")))
    text = f"({ast.unparse(new)})" if isinstance(new, ast.expr) else ast.unparse(new)
    everywhere = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
    name = row["function"].split(".")[-1] or None  # a module has no name
    named = [
        (path, inner)
        for path, node in everywhere
        if getattr(node, "name", None) == name
        for inner in ast.walk(node)
    ]
    for places, parts in ((named, nodes), (everywhere, nodes[:1])):
        for part in (part for part in parts if not isinstance(part, ast.Constant)):
            same = [
                (path, head(node))
                for path, node in dict.fromkeys(places)
                if type(node) is type(part) and ast.dump(head(node)) == ast.dump(part)
            ]
            if len(same) == 1:
                at = list(ast.walk(part)).index(nodes[-1])
                return same[0][0], list(ast.walk(same[0][1]))[at], text


def changed(source, node, text):
    """The source with this text in the place of the node."""
    lines = source.encode().split(b"\n")
    before = lines[: node.lineno - 1] + [lines[node.lineno - 1][: node.col_offset]]
    after = [lines[node.end_lineno - 1][node.end_col_offset :]] + lines[node.end_lineno :]
    return b"\n".join(before).decode() + text + b"\n".join(after).decode()


def failing(folder, words):
    """The test that fails first; "" if none does."""
    command = [sys.executable, "-B", "-m", "pytest", "-xq", "--tb=no", "-p", "no:cacheprovider"]
    run = subprocess.run([*command, *words], cwd=folder, capture_output=True, text=True)
    named = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", run.stdout, re.M)
    return named[1] if named and run.returncode in (1, 2) else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("numbers", nargs="*", help="such as 1-20 37")
    parser.add_argument("--tests", help="words for pytest instead of all tests")
    args = parser.parse_args()
    ends = [list(map(int, word.split("-"))) for word in args.numbers]
    rows = list(csv.DictReader(open(ROOT / "tests" / "changes.csv", newline="")))
    rows = [
        row
        for row in rows
        if any(end[0] <= int(row["number"]) <= end[-1] for end in ends)
        or not ends
        and row["noticed"] == "yes"
    ]
    paths = {*ROOT.glob("*.py"), *ROOT.glob("beyond/*.py"), *ROOT.glob("own_data/*.py")}
    paths -= {ROOT / "test_ref.py", ROOT / "figures.py"}
    sources = {path.relative_to(ROOT): path.read_text() for path in sorted(paths)}
    trees = {path: ast.parse(source) for path, source in sources.items()}
    os.environ.setdefault("PACGP_DATA", str(ROOT.parent / "shared" / "data"))
    count = {"noticed": 0, "NOT NOTICED": 0, "gone": 0}
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "out"))
        for row in rows:
            place = find(row, trees)
            by = ""
            said = "gone"
            if place:
                path, *change = place
                (copy / path).write_text(changed(sources[path], *change))
                runs = ([row["by"]] if row["by"] else []), ["-m", "not slow"], ["-m", "slow"]
                for words in (shlex.split(args.tests),) if args.tests else filter(None, runs):
                    by = by or failing(copy, words)
                (copy / path).write_text(sources[path])
                said = "noticed" if by else "NOT NOTICED"
            count[said] += 1
            print(row["number"], row["function"], said, by, flush=True)
    print(", ".join(f"{n} {said}" for said, n in count.items()))


if __name__ == "__main__":
    main()
