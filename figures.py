"""Every figure and table of the papers, made again from the modules beside this file.

    python figures.py                       all of them on generated data: a minute on two cores
    python figures.py R_fig1 R_table        some of them; a name may be the beginning of several
    python figures.py --data DIR            on the papers' data sets (FILES below)
    python figures.py --full                at the papers' sizes: hours
    python figures.py J_table3 R_table2 R_fig3 R_table3 --full --data DIR
                                            days, in cells that are kept in docs/cells.jsonl: made
                                            of those at once, then again when all are there
    python figures.py hero million          studies that no paper has: figures_of/studies.py
    python figures.py --list                all names

A figure makes NAME.png and NAME.txt in --out: the picture, and the numbers behind it with the
settings they were made at. A table makes NAME.txt and NAME.md, which is the same as Markdown. A
call without names also makes R.html, J.html and L.html: the reading pages, the code beside them.

This file is the command. The figures stand by paper in figures_of/R.py, J.py and L.py, those of no
paper in figures_of/studies.py. A figure is one function `NAME(run, **settings) -> (picture, rows,
notes)` with @figure above it, which holds its caption and its settings; rows are dicts, from which
curves and text are made; the first note is the title. What several figures share is an @experiment,
asked for by run.once. Names are of R = Reeb et al. 2018, J = Jankowiak et al. 2020 and L = Liu et
al. 2022, by their number in the paper; generated data that imitate a data set end in _like.
"""
import argparse
import multiprocessing
import os
import pathlib
import sys
import textwrap
import time
import zlib
from functools import partial

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))    # python -P does not
os.environ["MPLBACKEND"] = "Agg"            # only files are written, whatever a notebook has left
if __name__ == "__main__":
    # threads over blocks of rows gain more than BLAS's; never both
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imsave

import figures_of.R                         # noqa: F401 (each registers its figures)
import figures_of.J                         # noqa: F401
import figures_of.L                         # noqa: F401
import figures_of.studies                   # noqa: F401
from beyond.blocks import threads
from figures_of.beside import side_by_side
from figures_of.cells import CELLS, fill, key_of, missing_in_words, name_of, read
from figures_of.shared import FIGURES, cell

SIZES = ("quick", "default", "full")
FILES = {               # file in --data -> its shape, to notice a truncated one
    "snelson.csv": (200, 2), "boston.csv": (506, 14), "pol.csv.gz": (15000, 27),
    "kin40k.csv.gz": (40000, 9), "sarcos_test.csv.gz": (4449, 28), "bike.csv.gz": (17379, 18),
    "motorcycle.csv": (133, 2), "fx2007.csv": (251, 13),
    "elevators.csv.gz": (16599, 19), "protein.csv.gz": (45730, 10)}
PAPERS = ("R_fig", "R_table", "J_fig", "J_table", "L_fig", "L_table")
STYLE = {
    "figure.dpi": 120, "font.size": 9, "axes.titlesize": "medium", "legend.fontsize": "small",
    "lines.linewidth": 1.4, "axes.grid": True, "axes.axisbelow": True,
    "grid.alpha": 0.3, "legend.framealpha": 0.85}


class Run:
    """What all figures get: size and seed, the tables of --data, experiments, a progress line.

    rng: a generator of the figure's or experiment's own, so that none depends on which others are
    made. cells: the file where calls with `needs` are kept, which are then taken from there alone;
    missing: those that were asked for and are not there.
    """

    def __init__(self, size="default", seed=0, folder=None, files=(), cells=None):
        self.size, self.seed = size, seed
        self.cells = cells and read(cells)
        self.missing = {}
        self.real = folder is not None
        self.over = threads()
        self.rng = None
        self.memo, self.used = {}, {}
        self.start = self.last = time.monotonic()
        self.tables = {name: complete(pathlib.Path(folder, name)) for name in files if folder}

    def seeded(self, *name):
        """A generator that depends on the seed and a name."""
        return np.random.default_rng([self.seed, zlib.crc32(repr(name).encode())])

    def settings_of(self, f):
        """The settings of a function at this size: see figures_of.shared.experiment."""
        settings = dict(f.settings)
        size = SIZES.index(self.size)
        for key, value in settings.items():
            if isinstance(value, tuple):
                of_data = self.real and 0 < size < len(value) - 2
                settings[key] = value[size + 2 * of_data]
        return settings

    def do(self, f, name, *args):
        """f's value, by a generator named `name`; {function: settings} of f and what it asked."""
        settings = self.settings_of(f)
        outer = self.rng, self.used
        self.rng = self.seeded(*name)
        self.used = {f: settings}
        value, used = f(self, *args, **settings), self.used
        self.rng, self.used = outer
        return value, used

    def once(self, f, *args):
        """f(run, *args, **settings), made the first time it is asked for; None: a missing cell."""
        if f.needs and self.cells is not None:
            return self.kept(f, args)
        name = (f.__name__, self.size, *args)
        if name not in self.memo:
            self.memo[name] = self.do(f, name, *args)
        value, used = self.memo[name]
        self.used.update(used)
        return value

    def kept(self, f, args):
        """The value of a cell in the file; None if it is missing."""
        settings = self.settings_of(f)
        self.used[f] = settings
        name = name_of(f, args, self.seed, settings)
        key = key_of(name)
        if key not in self.cells:
            self.missing[key] = name, f, args
        return self.cells.get(key)

    def progress(self, text):
        """A callback(n, objective) of a training; it prints the text, n and the objective."""
        return lambda n, objective: self.tick(f"{text} {n}, objective {objective:.5g}")

    def tick(self, text):
        """Prints a line of progress, but not more often than every 5 s, at full size 60 s."""
        if time.monotonic() - self.last > (60 if self.size == "full" else 5):
            self.last = time.monotonic()
            print(f"    {self.last - self.start:5.0f} s  {text}", flush=True)


def complete(path):
    """The numbers of a data file. ValueError unless all are there."""
    try:
        table = np.loadtxt(path, delimiter=",", ndmin=2)
    except (OSError, EOFError, ValueError) as err:
        raise ValueError(f"cannot read {path}, see docs/real-data.md: {err}") from err
    if table.shape != FILES[path.name] or not np.isfinite(table).all():
        raise ValueError(f"{path} must have shape {FILES[path.name]} and no gaps: is it complete?")
    return table


def files_of(f, size):
    """What a figure reads with --data."""
    return f.files + f.at_full * (size == "full")


def caption_of(f, run):
    """A figure's caption, with what it adds for --data."""
    return f.caption + f.of_data * run.real


def settings_of(f, run, used):
    """Lines on the run and on each function that has settings."""
    about = f"size {run.size}, seed {run.seed}"
    files = files_of(f, run.size)
    if f.drawn:
        about += ", " + (", ".join(files) if run.real and files else "generated data")
    lines = [about]
    for one, settings in used.items():
        if settings:
            values = [f"{key} = {value}" for key, value in settings.items()]
            lines.append(f"{one.__name__}: " + ", ".join(values))
    return lines


def table_of(rows, markdown):
    """Rows as an aligned table."""
    header = list(dict.fromkeys(key for row in rows for key in row))
    lines = [header]
    for row in rows:
        lines.append([cell(row.get(key, "")) for key in header])
    start, bar, end = "", "  ", ""
    if markdown:
        start, bar, end = "| ", " | ", " |"
        lines = [[text.replace("|", "\\|") for text in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines)]
    lines.insert(1, ["-" * max(width, 3 * markdown) for width in widths])
    padded = [bar.join(map(str.ljust, line, widths)) for line in lines]
    return "\n".join((start + line + end).rstrip() for line in padded)


def text_of(f, run, used, rows, notes, markdown):
    """Title, caption, settings, captions of experiments, a table, notes; perhaps as Markdown."""
    _, *experiments = (f"{one.__name__}: {one.caption}" for one in used)
    parts = [f"{f.head}. {notes[0]}", caption_of(f, run), *settings_of(f, run, used), *experiments,
             table_of(rows, markdown), *notes[1:]]
    return "\n\n".join(parts) + "\n"


def pixels(picture):
    """A picture as an array (height, width, 4)."""
    canvas = FigureCanvasAgg(picture)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def strip(width, text, letters, size, **style):
    """A strip of text as an array; letters: how many go on an inch."""
    lines = textwrap.wrap(text, int(letters * width))
    picture = Figure((width, 0.1 + size / 55 * len(lines)))
    picture.text(0.01, 0.5, "\n".join(lines), va="center", fontsize=size, **style)
    return pixels(picture)


def make(name, run, out):
    """Makes one figure or table in out, a picture with its title above and its settings below.

    Returns its rows.
    """
    f = FIGURES[name]
    run.missing = {}
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        (picture, rows, notes), used = run.do(f, (name,))
        if run.missing:
            notes.append(missing_in_words(run.missing.values()))
        if picture:
            width = picture.get_size_inches()[0]
            about = f"{caption_of(f, run)} {'; '.join(settings_of(f, run, used))}"
            whole = np.vstack([strip(width, f"{f.head}. {notes[0]}", 12, 9.5, weight="bold"),
                               pixels(picture), strip(width, about, 19.5, 6.5, color="0.35")])
            imsave(out / f"{name}.png", whole, metadata={"Software": None})
    for suffix in ("txt", "md") if "_table" in name else ("txt",):
        text = text_of(f, run, used, rows, notes, markdown=suffix == "md")
        (out / f"{name}.{suffix}").write_text(text)
    return rows


def select(wanted):
    """Names in the order of the files, for full names or beginnings; for none the papers'."""
    chosen = set()
    for one in wanted or PAPERS:
        found = [one] if one in FIGURES else [name for name in FIGURES if name.startswith(one)]
        if not found:
            raise ValueError(f"no figure is called {one!r}, or begins so: --list has all names")
        chosen.update(found)
    return [name for name in FIGURES if name in chosen]


def make_all(names, args, again=False):
    """Makes figures one after another, with the options of the command line.

    Those that lack cells are made again when these have been run.
    """
    files = {file for name in names for file in files_of(FIGURES[name], args.size)}
    new_run = partial(Run, args.size, args.seed, args.data, files)
    run = new_run(cells=args.cells)
    args.out.mkdir(parents=True, exist_ok=True)
    missing, incomplete = {}, []
    for name in names:
        start = time.monotonic()
        make(name, run, args.out)
        missing |= run.missing
        incomplete += [name] * bool(run.missing)
        print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
    if missing and not again:
        fill(args.cells, missing.values(), new_run)
        make_all(incomplete, args, again=True)


def main(argv=None):
    """Makes what the command line names; the exit status."""
    ap = argparse.ArgumentParser(description="Makes the papers' figures and tables again.")
    ap.add_argument("names", nargs="*",
                    help="a figure, or the beginning of several; default: those of the papers")
    ap.add_argument("--list", action="store_true", help="list the figures and stop")
    ap.add_argument("--out", type=pathlib.Path, default="out", help="folder for the files (out)")
    ap.add_argument("--data", metavar="DIR", help="folder with the papers' data sets")
    ap.add_argument("--seed", type=int, default=0, help="of all random numbers (0)")
    for size, text in (("quick", "tiny: to see that all works"), ("full", "the papers': hours")):
        ap.add_argument(f"--{size}", dest="size", action="store_const", const=size,
                        default="default", help=text)
    args = ap.parse_args(argv)
    try:
        names = select(args.names or args.list * list(FIGURES))
        args.cells = CELLS if args.size == "full" and args.data else None
        if args.list:
            print(*(f"{name:<12} {FIGURES[name].caption}" for name in names), sep="\n")
            return 0
        if not args.names:
            side_by_side(args.out)
        of_J = [name for name in names if name.startswith("J_")]
        others = [name for name in names if name not in of_J]
        if of_J and others and args.data is None:       # as long as each other; no rows in common
            with multiprocessing.Pool(2) as pool:
                pool.map(partial(make_all, args=args), (of_J, others))
        else:
            make_all(names, args)
    except (ValueError, OSError) as err:
        print(f"error: {err}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
