"""The rooms: three papers at the top, what no paper has beside them; arrows point down only.

5  figures        4  figures_of/        4  own_data/        3  beyond/
2  predictive, online        1  pacgp_ref
"""

import ast
import graphlib
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAPERS = ("pacgp_ref", "predictive", "online")
LEVELS = {"pacgp_ref": 1, "predictive": 2, "online": 2, "figures": 5}
FOLDERS = {"figures_of": 4, "own_data": 4, "beyond": 3}
FILES = [
    *(ROOT / f"{name}.py" for name in (*PAPERS, "figures")),
    *(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/*.py"))]
ROOMS = {
    str(path.relative_to(ROOT).with_suffix("")).replace("/", "."): path for path in sorted(FILES)}


def level(room):
    """How high a room stands: it may import from lower ones, and from its own level where that
    makes no circle.
    """
    return LEVELS.get(room) or FOLDERS[room.split(".")[0]]


def taken(room):
    """The rooms that a room imports at its top."""
    names = set()
    for node in ast.parse(ROOMS[room].read_text()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names & set(ROOMS)


def run(*words, cwd):
    """What a command prints, its errors, its status."""
    found = subprocess.run(
        [sys.executable, *map(str, words)], cwd=cwd, capture_output=True, text=True)
    return found.stdout, found.stderr, found.returncode


def test_RJL_rooms_arrows_point_down():
    """No room imports from a higher one, nor in a circle, so each can be the first that a process
    imports; pacgp_ref from none; figures from no program of own_data/, and no program from figures.
    """
    graphlib.TopologicalSorter({room: taken(room) for room in ROOMS}).prepare()
    assert taken("pacgp_ref") == set()
    for room in ROOMS:
        folders = {other.split(".")[0] for other in (room, *taken(room))}
        assert not ("own_data" in folders and folders & {"figures", "figures_of"}), room
    for room in ROOMS:
        higher = {other for other in taken(room) if level(other) > level(room)}
        assert not higher, f"{room} imports {higher}"


def test_R_rooms_pacgp_ref_alone(tmp_path):
    """In an empty folder pacgp_ref.py trains, certifies and predicts: with NumPy and nothing else
    of ours.
    """
    shutil.copy(ROOT / "pacgp_ref.py", tmp_path)
    text = """
import numpy as np
from pacgp_ref import fit, predict
X = np.linspace(-3, 3, 60)[:, None]
gp = fit(X, np.sin(X[:, 0]), max_evals=20)
print(gp.bound < 1, *(a.shape for a in predict(gp, X[:3])))
"""
    assert run("-c", text, cwd=tmp_path)[0] == "True (3,) (3,)\n"
