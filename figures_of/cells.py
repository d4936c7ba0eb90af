"""Cells: calls that take an hour, each kept as a line of a text file as soon as it is finished.

A cell is a call of an experiment of figures_of/, given as a tuple (name, experiment, arguments).
The experiment is a function f(run, *args, **settings), where run is a figures.Run. A line of the
file is a JSON object. It begins with the name of the cell: the experiment, its arguments, the seed
and the settings. Then follow the value that the call returned, the seconds that it took, NumPy's
version and the commit of the code.

When the program is stopped, only the cells under way are lost. When it is started again, it runs
the cells that the file lacks. Each cell has a process and a random generator of its own, so that
its value does not depend on which cells run before or beside it.
"""
import collections
import inspect
import json
import multiprocessing
import signal
import subprocess
import time
from functools import partial

import numpy as np

from figures_of.shared import ROOT

CELLS = ROOT / "docs" / "cells.jsonl"
ABOUT = ("value", "seconds", "numpy", "commit")     # what follows the name in a line


def name_of(f, args, seed, settings):
    """Returns the name of a cell, a dict: experiment (f's name), arguments, seed and settings.

        f          the experiment, a function
        args       its arguments after run, a tuple
        settings   dict of its settings
    """
    _, *arguments = inspect.signature(f).bind_partial(None, *args).arguments.items()
    return {"cell": f.__name__, **dict(arguments), "seed": seed, **settings}


def key_of(name):
    """Returns a cell's name, a dict, as a text that does not depend on the order of its entries."""
    return json.dumps(name, sort_keys=True)


def read(path):
    """Returns {key_of(name): value} of the cells in the file at path; empty if there is no file.

    path: a pathlib.Path.
    """
    found = {}
    for text in path.read_text().splitlines() if path.exists() else ():
        line = json.loads(text)
        found[key_of({k: v for k, v in line.items() if k not in ABOUT})] = line["value"]
    return found


def commit():
    """The hash of the current commit as text, empty without git or outside a checkout."""
    try:
        git = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"],
                             capture_output=True, text=True)
    except OSError:
        return ""
    return git.stdout.strip()


def finish(new_run, cell):
    """Runs one cell. Returns its entry for the file; None, after a message, if its training fails.

        new_run   a function without arguments that returns a figures.Run
        cell      (name, experiment, arguments)
    The entry is a dict. It has the entries of the name, then the value that the experiment
    returned, the seconds it took, NumPy's version, and the commit of the code.
    """
    name, f, args = cell
    label = ", ".join(map(str, args))
    print(f"{label}: starts; {f.needs}", flush=True)
    run = new_run()
    run.over = map                          # two cells at a time: a core for each
    start = time.monotonic()
    try:
        value, _ = run.do(f, args, *args)
    except ValueError as err:
        print(f"{label}: {err}", flush=True)
        return None
    seconds = round(time.monotonic() - start)
    print(f"{label}: {seconds} s", flush=True)
    return name | dict(value=value, seconds=seconds, numpy=np.__version__, commit=commit())


def fill(path, cells, new_run):
    """Runs cells, two at a time, and appends each to the file at path when it is finished.

        path      a pathlib.Path
        cells     list of the cells that the file lacks: (name, experiment, arguments). They start
                  in order of name["split"], the number of the split of the data
        new_run   a function without arguments that returns a figures.Run
    """
    cells = sorted(cells, key=lambda cell: cell[0]["split"])
    print(f"{len(cells)} cells to run, two at a time; a finished one is kept in {path}", flush=True)
    ignored = signal.SIGINT, signal.SIG_IGN         # Ctrl-C is for the one that waits
    with multiprocessing.Pool(2, signal.signal, ignored, maxtasksperchild=1) as pool:
        for line in pool.imap_unordered(partial(finish, new_run), cells):
            if line:
                with path.open("a") as file:
                    file.write(json.dumps(line) + "\n")


def missing_in_words(cells):
    """Returns a sentence with the number of cells not yet run: of all, and of each kind.

    cells: those not yet run, a list of (name, experiment, arguments). Cells are of one kind if the
    texts among their arguments are equal, such as "kin40k" and "SVGP".
    """
    counts = collections.Counter(
        " ".join(one for one in args if isinstance(one, str)) for _, _, args in cells)
    each = ", ".join(f"{label} ({count})" for label, count in counts.items())
    return f"Not run yet, and left out above, are {len(cells)} cells: {each}."
