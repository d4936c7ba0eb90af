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

import pytest

import own_data.copying
from tests.programs import table

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


@pytest.mark.parametrize("paper", PAPERS)
def test_RJL_rooms_programs(paper, tmp_path):
    """A program runs from any folder; without own_data/ it says so in one line, with status 2."""
    (tmp_path / "t.csv").write_text(table(40))
    quick = {"pacgp_ref": ["--evals", "3"], "predictive": ["--epochs", "1"], "online": []}[paper]
    out, err, status = run(ROOT / f"{paper}.py", "t.csv", *quick, cwd=tmp_path)
    assert status == 0 and "inputs a, b; target y" in out, err
    for name in PAPERS:
        shutil.copy(ROOT / f"{name}.py", tmp_path)
    out, err, status = run(f"{paper}.py", "t.csv", cwd=tmp_path)
    assert (out, status, err.count("\n")) == ("", 2, 1)
    assert "own_data/" in err


def test_RJL_rooms_copy(tmp_path):
    """--copy finds names of beyond/ from each module; one that is needed from two files is
    refused. What beyond/ defines, it defines once."""
    for paper, name in (
        ("online", "certificate"), ("online", "step"), ("pacgp_ref", "strict"),
        ("pacgp_ref", "held_out")):
        assert f"\ndef {name}(" in own_data.copying.copied(ROOT / f"{paper}.py", name)
    shutil.copy(ROOT / "pacgp_ref.py", tmp_path)
    (tmp_path / "beyond").mkdir()
    (tmp_path / "beyond" / "rounding.py").write_text(
        "def twin():\n    return kl_inv()\n\n\ndef kl_inv():\n    return 1\n")
    with pytest.raises(ValueError, match="kl_inv: needed from two files under one name"):
        own_data.copying.copied(tmp_path / "pacgp_ref.py", "twin", "kl_inv")
    rooms = [room for room in own_data.copying.COPIED if room.startswith("beyond")]
    known = [own_data.copying.definitions(ROOT / f"{room}.py")[0] for room in rooms]
    assert sum(map(len, known)) == len({name for own in known for name in own}) > 20
