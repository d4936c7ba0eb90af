"""Every figure and table of the papers, made again from the modules beside this file.

    python figures.py                        all of them on generated data: under two minutes
    python figures.py R_fig1 R_table         some of them; a name may be the beginning of several
    python figures.py --data DIR             on the papers' data sets (FILES below), the published
                                             numbers next to ours
    python figures.py --full [--data DIR]    at the papers' sizes: hours; with --resume it goes on
                                             where it was interrupted
    python figures.py hero scaling           studies that no paper has: beyond/studies.py
    python figures.py --list                 all names

A figure makes NAME.png and NAME.txt in --out: the picture, and the numbers behind it with the
settings they were made at. A table makes NAME.txt and NAME.md, which is the same as Markdown, and
with --data a picture of ours next to the paper's.

A figure is one function `NAME(run, **settings) -> (picture, rows, notes)` with @figure above it.
Its docstring is its message; how it is made stands in docs/figures.md, and from there in its text.
Its settings are declared as (quick, default, full), or as one value for all sizes; rows are dicts,
from which curves and text are made; notes are sentences that are computed. What takes long is an
@experiment, asked for by run.once: computed once, and kept on disk for --resume. Names are of
R = Reeb et al. 2018, J = Jankowiak et al. 2020 and L = Liu et al. 2022, by their number in the
paper; generated data that imitate a data set end in _like.
"""
import os
import signal

# Only files are written, whatever backend a notebook has left.
os.environ["MPLBACKEND"] = "Agg"
if __name__ == "__main__":
    # threads over blocks of rows gain more than BLAS's; never both
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))      # until main takes over

import argparse
import contextlib
import csv
import hashlib
import itertools
import math
import multiprocessing
import pathlib
import pickle
import re
import sys
import textwrap
import time
import warnings
import zlib

import matplotlib
import matplotlib.image
import numpy as np
import numpy.random             # now: its import swallows a KeyboardInterrupt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import beyond.certificates
import beyond.search
import beyond.stream
import own_data.command_line
import own_data.tables
import online as L
import pacgp_ref as R
import predictive as J
from beyond import networks

SIZES = ("quick", "default", "full")
HERE = pathlib.Path(__file__).resolve().parent
ROOMS = (".", "beyond", "own_data")             # the folders whose Python files decide what is made
PUBLISHED = HERE / "docs" / "published.csv"     # the numbers in the papers' tables, see published()
PAGE = HERE / "docs" / "figures.md"             # how each figure is made, see explained()
FILES = {               # file in --data -> its shape, to notice a truncated one
    "snelson.csv": (200, 2), "boston.csv": (506, 14), "pol.csv.gz": (15000, 27),
    "kin40k.csv.gz": (40000, 9), "sarcos_test.csv.gz": (4449, 28), "bike.csv.gz": (17379, 18),
    "motorcycle.csv": (133, 2), "fx2007.csv": (251, 13)}
STYLE = {
    "figure.dpi": 120, "font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9,
    "legend.fontsize": 8, "lines.linewidth": 1.4, "axes.grid": True, "axes.axisbelow": True,
    "grid.alpha": 0.3, "legend.framealpha": 0.85}
BLACK, ORANGE, SKY, GREEN, BLUE, RED, PURPLE = (        # Okabe & Ito: colour-blind eyes tell them
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7")
INDIGO, OLIVE, BROWN, GREY = "#332288", "#999933", "#7F4F24", "0.45"
LOOKS = {               # what a line or a mark stands for, in every figure: colour, marker, line
    "kl-PAC-GP": (BLUE, "o", "-"),
    "sqrt-PAC-GP": (SKY, "s", "--"),
    "full-GP": (RED, "^", "-."),
    "kl-PAC-SGP": (BLUE, "o", "-"),
    "sqrt-PAC-SGP": (SKY, "s", "--"),
    "VFE": (GREEN, "^", "-."),
    "FITC": (ORANGE, "D", ":"),
    "MAP": (BLACK, "s", "-"),
    "SVGP": (RED, "^", "--"),
    "gamma-robust": (PURPLE, "v", "-."),
    "OD-SVGP": (ORANGE, "D", ":"),
    "VFITC": (GREEN, "P", "-."),
    "PPGPR-delta": (SKY, "<", ":"),
    "PPGPR-MF": (OLIVE, "h", "--"),
    "PPGPR-Chol": (INDIGO, "X", "--"),
    "PPGPR-MFD": (BLUE, "o", "-"),
    "exact": (GREY, "*", "-"),
    "SVGP+DKL": (RED, "", "--"),
    "PPGPR+DKL": (BLUE, "", "-"),
    "MC dropout": (GREEN, "", "-."),
    "B": (BLUE, "o", "-"),
    "R_S train": (SKY, "s", "--"),
    "R_S test": (GREEN, "^", "-."),
    "KL/N": (RED, "D", ":"),
    "ln|Theta|/N": (ORANGE, "v", "-"),
    "loss": (GREY, "", "-."),
    "true risk": (BLACK, "", ":"),
    "bound, tuned": (GREEN, "", "--"),
    "certificate": (BLUE, "", "-"),
    "bound, mixture": (BLUE, "", "-"),
    "mixture": (BLUE, "v", "-"),
    "1": (ORANGE, "^", "-."),
    "best": (GREEN, "o", "--"),
    "paper": (BLUE, "o", "-"),
    "prior": (GREEN, "D", "-"),
    "held-out": (ORANGE, "s", "-"),
    "any-time": (PURPLE, "v", "--"),
    "test risk": (BLACK, "_", ":"),
    "full": (BLUE, "o", "-"),
    "printed": (GREEN, "D", "-."),
    "no lam m K^2/8": (ORANGE, "^", "--"),
    "no confidence": (RED, "s", ":"),
    "certified GP": (BLUE, "o", "-"),
    "O-PACGP": (SKY, "s", "--"),
    "O-SGPR": (GREEN, "^", "-"),
    "O-SVGP": (ORANGE, "D", "-"),
    "OVC": (PURPLE, "v", "--"),
    "WISKI": (RED, "P", "-."),
    "window": (BROWN, "X", ":"),
    "mean so far": (BLACK, "<", ":"),
    "true function": (BLACK, "h", "-"),
    "by hand": (BLUE, "o", "-"),
    "bare": (BLACK, "_", ":"),
    "autograd": (RED, "^", "--"),
    "by hand, in blocks": (SKY, "s", "-.")}
WORDS = {               # what a name is called in a picture, where that is not the name itself
    "B": "upper bound $B$", "B_Pin": "Pinsker bound $B_{Pin}$",
    "R_S train": "Gibbs risk, training", "R_S test": "Gibbs risk, test",
    "MSE": "test MSE [sd$^2$]", "KL/N": "KL$(Q\\|P)/N$ [nats]",
    "sigma_n^2": "$\\sigma_n^2$ [sd$^2$]", "ln|Theta|/N": "$\\ln|\\Theta|/N$ [nats]",
    "NLL": "NLL [nats]", "RMSE": "RMSE [sd of $y$]", "CRPS": "CRPS [sd of $y$]",
    "noise fraction": "noise / variance", "kin40k_like": "robot arm (like kin40k)",
    "boston_like": "housing (like Boston)", "uneven_noise": "a wave, uneven noise",
    "sarcos": "sarcos (test part only)", "rates": "generated rates", "sin": "sin(4x) + noise",
    "cos": "cos(4x) + noise", "periodic": "periodic kernel: $f$",
    "Matern52": "Matern-5/2 kernel: $f$", "shuffled": "shuffled", "time": "in time order",
    "drift": "a function that drifts",
    "loss": "observed loss", "certificate": "certificate, 95 %, at all times",
    "bound, tuned": "(11) with $K^2/8$ for $K^2/2$, $\\lambda$ tuned to $m,\\delta$",
    "bound, mixture": "$\\lambda$ mixed (not in the paper)",
    "mixture": "$\\lambda$ mixed (not in the paper)",
    "1": "$\\lambda=1$ (authors), $K^2/2$",
    "best": "best $\\lambda$ for the last $m$",
    "full": "all terms, $K^2/8$", "printed": "as printed, $K^2/2$",
    "no lam m K^2/8": "without $\\lambda mK^2/8$",
    "no confidence": "without $\\ln(1/\\delta)/\\lambda$",
    "paper": "the paper's: all rows train and certify", "prior": "prior from half of the rows",
    "held-out": "half of the rows held out", "any-time": "a stream, at all times",
    "bare": "its matrix products alone", "autograd": "autograd, same code",
    "by hand, in blocks": "by hand, matrices computed twice"}
FIGURES = {}


# --- the machinery --------------------------------------------------------------------------------

def experiment(real={}, **settings):
    """Declares a function's settings: tuples (quick, default, full), or one value for all sizes.

    real: those that --data changes.
    """
    def declare(f):
        f.__doc__ = " ".join(f.__doc__.split())
        f.settings = settings
        f.real = real
        f.message = f"{f.__name__}: {f.__doc__}"
        return f
    return declare


def figure(*files, **settings):
    """An experiment that returns (picture, rows, notes), registered under its name.

    files: what it reads with --data. A table may have None for a picture.
    """
    def register(f):
        FIGURES[f.__name__] = experiment(**settings)(f)
        f.files = files
        number = re.fullmatch(r"([RJL])_(fig|table)(\d+)", f.__name__)
        title = "Not in the papers"
        if number:
            kind = {"fig": "Fig.", "table": "Table"}[number[2]]
            title = f"{number[1]} {kind} {number[3]}"
        f.message = f"{title}. {f.__doc__}"
        return f
    return register


def digest(*parts):
    """A name for what repr says of the parts."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


class Run:
    """What all figures get: size and seed, the tables of --data, experiments, a progress line.

    rng: a generator of the figure's or experiment's own, so that none depends on which others are
    made. cache: the folder that keeps what experiments return; it is read with resume, as long as
    all Python files here, the data, size, seed and arguments are the same.
    """

    def __init__(self, size="default", seed=0, folder=None, files=(), cache=None, resume=False):
        self.size, self.seed = size, seed
        self.cache, self.resume = cache, resume
        self.real = folder is not None
        self.over = own_data.command_line.threads()
        self.rng = None
        self.memo, self.used, self.tables = {}, {}, {}
        self.start = self.last = time.monotonic()
        sources = [path for room in ROOMS for path in sorted(HERE.glob(f"{room}/*.py"))]
        if self.real:
            data = {name: pathlib.Path(folder, name) for name in FILES}
            sources += [path for path in data.values() if path.exists()]
            for name in files:
                self.tables[name] = complete(data[name])
        contents = [path.read_bytes() for path in sources]
        self.made_by = digest(size, seed, self.real, np.__version__, contents)

    def seeded(self, *name):
        """A generator that depends on the seed and a name."""
        return np.random.default_rng([self.seed, zlib.crc32(repr(name).encode())])

    def do(self, f, name, *args):
        """f's value, by a generator named `name`; {function: settings} of f and what it asked."""
        settings = f.settings | (f.real if self.real else {})
        for key, value in settings.items():
            if isinstance(value, tuple):
                settings[key] = value[SIZES.index(self.size)]
        outer = self.rng, self.used
        self.rng = self.seeded(*name)
        self.used = {f.__name__: (f.message, settings)}
        value = f(self, *args, **settings)
        used = self.used
        self.rng, self.used = outer
        return value, used

    def kept(self, f, name, *args):
        """What do returns, from a file of the cache if there is one."""
        path = self.cache and self.cache / digest(self.made_by, name)
        if path and self.resume:
            with contextlib.suppress(Exception):    # no file, or a damaged one: it is made again
                return pickle.loads(path.read_bytes())
        found = self.do(f, name, *args)
        if path:
            path.write_bytes(pickle.dumps(found))
        return found

    def once(self, f, *args):
        """f(run, *args, **settings), made the first time it is asked for."""
        name = (f.__name__, self.size, *args)
        if name not in self.memo:
            self.memo[name] = self.kept(f, name, *args)
        value, used = self.memo[name]
        self.used.update(used)
        return value

    def tick(self, text):
        """Prints a line of progress, but not more often than every 5 s."""
        if time.monotonic() - self.last > 5:
            self.last = time.monotonic()
            print(f"    {self.last - self.start:5.0f} s  {text}", flush=True)


def complete(path):
    """The numbers of a data file. ValueError unless all are there."""
    table = own_data.tables.read_table(path)
    shape = FILES[path.name]
    if table.dropped or table.values.shape != shape:
        raise ValueError(f"{path} must have shape {shape} and no gaps: is it complete?")
    return table.values


def cell(value):
    """A number, a number with its error, or a text, as in a table; NaN and None are '-'."""
    if isinstance(value, tuple):
        mean, error = value
        form = ".4f" if 1e-3 <= abs(mean) < 1e3 or mean == 0 else ".1e"
        texts = [format(v, form) for v in (mean, error) if not math.isnan(v)]
        return "-" if math.isnan(mean) else " +- ".join(texts)
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.4g}"
    return "-" if value is None else str(value)


def explained(name, message):
    """A message, and the paragraph of docs/figures.md on how it is made, if there is one."""
    found = re.findall(r"^\*\*(.+?)\*\*\n(.+?)\n(?:\n|\Z)", PAGE.read_text(), re.M | re.S)
    about = [paragraph for names, paragraph in found if name in names.split(", ")]
    return "\n\n".join([message, *about])


def settings_of(f, run, used):
    """Lines on the run and on each function that has settings."""
    source = "the papers' data sets" if run.real and f.files else "generated data"
    lines = [f"size {run.size}, seed {run.seed}, {source}"]
    for name, (_, settings) in used.items():
        if settings:
            values = [f"{key} = {value}" for key, value in settings.items()]
            lines.append(f"{name}: " + ", ".join(values))
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
    table = []
    for line in lines:
        padded = [text.ljust(width) for text, width in zip(line, widths)]
        table.append((start + bar.join(padded) + end).rstrip())
    return "\n".join(table)


def text_of(f, run, used, rows, notes, markdown=False):
    """The message, settings, how experiments are made, a table, notes; markdown: as Markdown."""
    message, *about = [explained(name, message) for name, (message, _) in used.items()]
    settings = ["- " * markdown + line for line in settings_of(f, run, used)]
    parts = [message, "\n".join(settings), *about, table_of(rows, markdown)]
    if notes:
        parts.append("\n".join(f"- {note}" for note in notes))
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


def save_png(path, picture, f, run, used):
    """A picture with the message above it and the settings below."""
    width = picture.get_size_inches()[0]
    above = strip(width, f.message, 12, 9.5, weight="bold")
    below = strip(width, "; ".join(settings_of(f, run, used)), 19.5, 6.5, color="0.35")
    whole = np.vstack([above, pixels(picture), below])
    matplotlib.image.imsave(path, whole, metadata={"Software": None})


def save_gif(path, pictures):
    """An animation, ten frames a second and two seconds of the last one."""
    from PIL import Image                           # comes with matplotlib
    images = [Image.fromarray(pixels(picture)) for picture in pictures]
    palette = dict(palette=Image.Palette.ADAPTIVE, colors=64)
    first, *more = [image.convert("P", **palette) for image in images]
    duration = [100] * len(more) + [2000]
    first.save(path, save_all=True, append_images=more, duration=duration, loop=0)


def make(name, run, out):
    """Makes one figure or table in out. Returns its rows."""
    f = FIGURES[name]
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        (picture, rows, notes), used = run.do(f, (name,))
        if isinstance(picture, list):               # the frames of an animation
            save_gif(out / f"{name}.gif", picture)
            picture = picture[-1]
        if picture is not None:
            save_png(out / f"{name}.png", picture, f, run, used)
    if "_table" in name:
        text = text_of(f, run, used, rows, notes, markdown=True)
        (out / f"{name}.md").write_text(text)
    (out / f"{name}.txt").write_text(text_of(f, run, used, rows, notes))
    return rows


def papers():
    """Names of the figures and tables of the papers, in order."""
    return [name for name in FIGURES if re.match(r"[RJL]_(fig|table)", name)]


def named(wanted):
    """Names that are `wanted`, or begin so: of the papers' or, where there is none, of studies."""
    hits = [name for name in papers() if name.startswith(wanted)]
    if not hits:
        import beyond.studies                       # noqa: F401 (registers them)
        hits = [name for name in FIGURES if name.startswith(wanted)]
    if not hits:
        names = textwrap.indent(textwrap.fill(", ".join(FIGURES), 90), "  ")
        raise ValueError(f"no figure is called {wanted!r}, or begins so; there are\n{names}")
    return [wanted] if wanted in hits else hits


def select(wanted):
    """Names in order, for full names or their beginnings; for none the papers'."""
    chosen = [name for one in wanted for name in named(one)] if wanted else papers()
    return [name for name in FIGURES if name in chosen]


def prepare(args):
    """Names and Run; ValueError or OSError if something is wrong, before anything is computed."""
    if args.seed < 0:
        raise ValueError(f"--seed must not be negative, got {args.seed}")
    names = select(args.names)
    files = dict.fromkeys(file for name in names for file in FIGURES[name].files)
    cache = args.out / ".cache"
    run = Run(args.size, args.seed, args.data, files, cache, args.resume)
    cache.mkdir(parents=True, exist_ok=True)
    return names, run


def arguments(argv):
    """The command line."""
    ap = argparse.ArgumentParser(description="Makes the papers' figures and tables again: "
                                 "pictures, and their numbers as text.")
    add = ap.add_argument
    add("names", nargs="*", metavar="NAME",
        help="a figure, or the beginning of several; default: those of the papers")
    add("--list", action="store_true", help="list the figures and stop")
    add("--out", type=pathlib.Path, default="out", help="folder for the files (out)")
    add("--data", metavar="DIR",
        help="folder with the papers' data sets; without: generated ones like them")
    add("--seed", type=int, default=0, help="of all random numbers (0)")
    add("--resume", action="store_true", help="take finished experiments from OUT/.cache")
    sizes = ap.add_mutually_exclusive_group()
    for size, text in (("quick", "tiny: to see that all works"), ("full", "the papers': hours")):
        sizes.add_argument(f"--{size}", dest="size", action="store_const", const=size, help=text)
    ap.set_defaults(size="default")
    return ap.parse_args(argv)


def make_all(names, run, out):
    """Makes figures one after the other. SystemExit with status 2 if a file cannot be written."""
    try:
        for name in names:
            start = time.monotonic()
            make(name, run, out)
            print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
    except OSError as err:
        print(f"error: {err}", file=sys.stderr)
        sys.exit(2)


def side_by_side(shares, *args):
    """Makes each share of the names in a process of its own, the first in this one. Returns the
    status.

    Ctrl-C reaches all of them: this one alone heeds it, or SIGTERM, and ends the others.
    """
    others, heard = [], []

    def interrupt(*_):
        heard.append(True)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for share in shares[1:]:
        other = multiprocessing.Process(target=make_all, args=(share, *args), daemon=True)
        other.start()
        others.append(other)
    try:
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGTERM, interrupt)
        for name in shares[0]:
            make_all([name], *args)
            if heard:                   # and lost: in the callback of a weak reference, say
                raise KeyboardInterrupt
        for other in others:
            other.join()
    finally:
        for other in others:
            other.terminate()
    return max((abs(other.exitcode) for other in others), default=0)    # -9: the system's


def main(argv=None):
    """Makes what the command line names.

    Returns the exit status: 0, 2 for wrong arguments or data, 130 when interrupted, or that of a
    process that failed.
    """
    args = arguments(argv)
    try:
        if args.list:
            import beyond.studies                   # noqa: F401 (registers them)
            for name in select(args.names or FIGURES):
                mark = "" if name in papers() else " [beyond the papers]"
                print(f"{name:<15} {FIGURES[name].__doc__}{mark}")
            return 0
        names, run = prepare(args)
    except (ValueError, OSError) as err:
        print(f"error: {err}", file=sys.stderr)
        return 2
    shares = [names]
    if not args.names and (os.cpu_count() or 1) > 1:    # no experiment serves two papers
        shares = [[name for name in names if name.startswith(paper)] for paper in "RJL"]
        run.over = map                                  # a process for each, and no threads
    try:
        status = side_by_side(shares, run, args.out)
    except KeyboardInterrupt:
        print(f"\ninterrupted: what is finished is in {args.out}; --resume takes its experiments "
              "from there", file=sys.stderr)
        return 130
    if status:
        print("error: not all figures were made, see above", file=sys.stderr)
    else:
        print(f"{len(names)} figures and tables, with their numbers (.txt), are in "
              f"{args.out.resolve()}")
    return status


# --- what the figures share -----------------------------------------------------------------------

def panels(rows, columns, width, height, **options):
    """A Figure that belongs to no window, and its axes (rows, columns)."""
    picture = Figure((width, height), layout="constrained")
    return picture, picture.subplots(rows, columns, squeeze=False, **options)


def look(name, **more):
    """Keywords of a line or mark: LOOKS and WORDS."""
    colour, marker, line = LOOKS[name]
    return dict(color=colour, marker=marker, ls=line, ms=4, label=WORDS.get(name, name)) | more


def col(rows, name, part=0):
    """A column of rows as an array: numbers (part 0) or their standard errors (1).

    Its entries are numbers, pairs of numbers, or texts like '0.333 +- 0.004'.
    """
    found = []
    for row in rows:
        entry = row[name]
        parts = entry.split(" +- ") if isinstance(entry, str) else np.atleast_1d(entry)
        found.append(parts[part] if len(parts) > part else math.nan)
    return np.array(found, dtype=float)


def curve(ax, rows, x, y, name=None, **more):
    """A line of column y over column x in the look of `name`, or of y; with error bars if any."""
    errors = col(rows, y, 1)
    errors = None if np.isnan(errors).all() else np.nan_to_num(errors)
    ax.errorbar(col(rows, x), col(rows, y), errors, capsize=2, **look(name or y, **more))


def dot(ax, row, quantity, height, name, **more):
    """A mark with its error bar, at a height."""
    style = look(name, **dict(ls="none", ms=6, capsize=2) | more)
    error = np.nan_to_num(col([row], quantity, 1))
    ax.errorbar(col([row], quantity), height, xerr=error, **style)


def where(rows, **equal):
    """The rows with these entries."""
    return [row for row in rows if equal.items() <= row.items()]


def below(picture, ax, columns, *handles):
    """The legend of ax, if one is given, and handles, below the picture.

    Panels that share y have labels at its edges alone.
    """
    if ax:
        handles = [*ax.get_legend_handles_labels()[0], *handles]
    labels = [handle.get_label() for handle in handles]
    picture.legend(handles, labels, loc="outside lower center", ncols=columns)
    for panel in picture.axes:
        if len(panel.get_shared_y_axes().get_siblings(panel)) > 1:
            panel.label_outer()


def key(label, **style):
    """A line for a legend."""
    return matplotlib.lines.Line2D([], [], label=label, **style)


def band(ax, x, low, high, colour, alpha, label=None):
    """What lies between two curves, shaded."""
    ax.fill_between(np.ravel(x), low, high, color=colour, alpha=alpha, lw=0, label=label)


def draw_gp(ax, grid, mean, var, colour, label, filled=True):
    """Mean and mean +- 2 sigma, as a band or, beside another GP's band, as dotted lines."""
    low, high = mean - 2 * np.sqrt(var), mean + 2 * np.sqrt(var)
    spread = f"$\\pm$ 2 sd: {label}"
    style = dict(lw=1.4) if filled else dict(lw=1.2, ls="--")
    ax.plot(grid, mean, color=colour, label=f"mean: {label}", **style)
    if filled:
        band(ax, grid, low, high, colour, 0.22, spread)
    else:
        edges = np.stack([low, high], 1)
        ax.plot(grid, edges, color=colour, ls=":", lw=1.2, label=[spread, None])


def draw_inducing(ax, Z, label, marker="|", height=0.04, **style):
    """Marks of inducing inputs at a height, a share of the panel's."""
    style = dict(color=BLACK, ms=7, label=label, transform=ax.get_xaxis_transform()) | style
    ax.plot(Z, np.full(len(Z), height), marker, **style)


def mean_se(values):
    """[(mean, standard error)] of the columns; NaN errors for a single row."""
    values = np.asarray(values, dtype=float)
    se = np.full(values.shape[1], math.nan)
    if len(values) > 1:
        se = values.std(0, ddof=1) / math.sqrt(len(values))
    return list(zip(values.mean(0), se))


def average(found):
    """{name: (mean, standard error)} of dicts of numbers; of whole numbers the rounded mean."""
    means = dict(zip(found[0], mean_se([list(one.values()) for one in found])))
    for name, first in found[0].items():
        if isinstance(first, int):
            means[name] = round(means[name][0])
    return means


def gaps(found, reference):
    """{name: (mean_se of values, of differences from `reference`)} of {name: (runs, ..)}."""
    zero = found[reference]
    return {name: (mean_se(values), mean_se(np.subtract(values, zero)))
            for name, values in found.items()}


def lowest(cases, quantity, method):
    """In how many cases, lists of rows, `method` has the lowest mean of a quantity."""
    return sum(min(rows, key=lambda row: row[quantity])["method"] == method for rows in cases)


def standard(table):
    """Columns with mean 0 and deviation 1 over all rows, test rows included, as in R.

    Constant columns become 0.
    """
    return (table - table.mean(0)) / np.where(table.std(0) > 0, table.std(0), 1.0)


def split(n, i, share=0.2):
    """Rows to train on and rows to test on, number i: those of the authors' code (data/README)."""
    order = np.random.RandomState(i).permutation(n)
    k = math.ceil(share * n)
    return order[k:], order[:k]


def data_set(run, name, generate, *key):
    """X, y, standardised on all rows: of the file that begins with name, or of generate(rng).

    key: rng's name. "bike, 15 inputs" is without casual and registered. Of sarcos the first torque
    is the target.
    """
    if not run.real:
        return generate(run.seeded(*key))
    stem = name.split(",")[0]
    table = next(table for file, table in run.tables.items() if file.startswith(stem))
    if name == "sarcos":
        table = table[:, :22]
    if name == "bike, 15 inputs":
        table = table[:, [*range(15), 17]]
    table = standard(table)
    return table[:, :-1], table[:, -1]


def train(run, label, X, y, method, *args, **options):
    """The Fit of multistart_fit, or of prior_from_part for a share, with a progress line.

    Without their warnings: tables have the evaluations instead.
    """
    say = lambda n, f: run.tick(f"{label}, {method}: evaluation {n}, objective {f:.5g}")
    fit = beyond.search.multistart_fit
    if "share" in options:
        fit = beyond.certificates.prior_from_part
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = fit(X, y, method, *args, **options, callback=say, over=run.over)
    return getattr(found, "fit", found)


# --- beside the published numbers -----------------------------------------------------------------

def published(run, table, *keys):
    """{keys: {quantity: 'value +- error'}} of a table of the papers, with --data.

    keys: columns of docs/published.csv.
    """
    found = {}
    if run.real:
        with PUBLISHED.open(newline="") as lines:
            for row in csv.DictReader(lines):
                if row["table"] == table:
                    text = " +- ".join(filter(None, (row["value"], row["error"])))
                    found.setdefault(tuple(row[k] for k in keys), {})[row["quantity"]] = text
    return found


def beside(rows, paper, *keys, judge=lambda row: False):
    """The rows, below each the paper's and, where judge(row), whether they agree; a count of these.

    They agree if their difference is at most two of the paper's standard errors and half its last
    digit; a single split of ours has sqrt(10) times the error of the paper's ten.
    """
    out, agree, ratios = [], [], []
    for row in rows:
        named = {k: row[k] for k in keys}
        theirs = paper.get(tuple(named.values()), {})
        theirs = {q: text for q, text in theirs.items() if q in row}
        out.append(named | ({"": "ours"} if paper else {}) | row)
        if theirs:
            out.append({"": "the paper"} | theirs)
        if theirs and judge(row):
            verdicts = {"": "2 s.e."}
            for q in theirs:
                gap = abs(col([row], q)[0] - col([theirs], q)[0])
                error = col([theirs], q, 1)[0]
                single = math.isnan(col([row], q, 1)[0])
                near = gap <= 2 * (error * (math.sqrt(10) if single else 1)) + 5e-4
                verdicts[q] = "yes" if near else "NO"
                agree.append(near)
                ratios.append(gap / max(error, 5e-4))
            out.append(verdicts)
    if not agree:
        return out, []
    return out, [f"{sum(agree)} of {len(agree)} numbers agree with the published ones within two "
                 "of their standard errors and half the last digit; the median difference is "
                 f"{np.median(ratios):.2f} of the published standard error."]


def ours_and_theirs(picture):
    """The legend of pictures that show both."""
    style = dict(color="0.3", marker="o", ls="none")
    below(picture, None, 2, key("ours", **style), key("the paper's", mfc="white", **style))


def dot_table(run, rows, names, *keys):
    """Ours (filled) above the paper's (hollow), a panel for each of names.

    None without --data: the text is the table.
    """
    if not run.real:
        return None
    ours = [i for i, row in enumerate(rows) if row[""] == "ours"]
    size = 1.7 * len(names) + 1.6, 1.0 + 0.24 * len(ours)
    picture, axes = panels(1, len(names), *size, sharey=True)
    for ax, name in zip(axes[0], names):
        for at, i in enumerate(ours):
            known = [rows[i][k] for k in reversed(keys) if rows[i][k] in LOOKS]
            style = [*known, "exact"][0]
            if name in rows[i]:
                dot(ax, rows[i], name, -at, style, ms=5)
            for row in rows[i + 1:i + 2]:
                if name in row and row[""] == "the paper":
                    dot(ax, row, name, -at - 0.38, style, ms=5, mfc="white")
        scale = "log" if "sigma" in name or "t =" in name else "linear"
        ax.set(title=WORDS.get(name, name), xscale=scale)
        ax.tick_params(axis="x", which="minor", labelbottom=False)
    labels = [" ".join(str(rows[i][k]) for k in keys if rows[i][k] != "-") for i in ours]
    axes[0, 0].set_yticks(-np.arange(len(ours)), labels)
    ours_and_theirs(picture)
    return picture


# --- data that imitate the papers' ----------------------------------------------------------------

def bump(x, centre, width):
    """exp(-((x - centre) / width)^2)"""
    return np.exp(-(((x - centre) / width) ** 2))


def snelson_like(rng, N=200, uneven=False):
    """x (N, 1) on [0, 6], crowded around four places, y (N,): imitates Snelson's set.

    A wave of lengthscale 0.6 and amplitude 0.9. The noise has deviation 0.28, or, uneven, one that
    grows from 0.02 to 0.52 along x.
    """
    crowd = rng.choice([0.2, 1.0, 2.6, 4.0], N) + 0.12 * rng.standard_normal(N)
    x = np.where(rng.random(N) < 0.66, rng.uniform(0, 6, N), crowd)
    bumps = ((-1.85, 1.45, 0.7), (0.8, 2.75, 0.45), (1.0, 4.35, 0.45), (-0.9, 5.3, 0.5))
    f = sum(height * bump(x, centre, width) for height, centre, width in bumps)
    sd = 0.02 + 0.5 / (1 + np.exp(-3 * (x - 3))) if uneven else 0.28
    return np.abs(x)[:, None], f + sd * rng.standard_normal(N)


def boston_like(rng, N=506, d=13):
    """X (N, d), y (N,), standardised: imitates Boston housing.

    Four factors stand behind the inputs; the noise grows with y.
    """
    F = rng.standard_normal((N, 4))
    X = F @ rng.standard_normal((4, d)) + 0.4 * rng.standard_normal((N, d))
    f1, f2, f3, f4 = F.T
    g = 0.45 * f1 - 0.3 * np.tanh(1.5 * f2) + 0.12 * f3**2 + 0.1 * f1 * f4
    X[:, :2] = np.exp(X[:, :2] / 2)                     # two are skewed
    X[:, 3] = X[:, 3] > 2                               # one is 0 or 1
    return standard(X), standard(np.exp(0.6 * g) * (1 + 0.11 * rng.standard_normal(N)))


def kin40k_like(rng, N=40000, noise=0.15):
    """X (N, 8), y (N,), standardised: imitates kin40k: robot_arm, with noise.

    noise: as a share of the distance's deviation.
    """
    turn, distance = robot_arm(rng, N)
    return standard(turn), standard(standard(distance) + noise * rng.standard_normal(N))


def robot_arm(rng, N):
    """turn (N, 8), uniform on [-1, 1], and the distance (N,) of a plane arm's hand from a point.

    Distances count lengths of the arm. Each of the 8 links turns against the one before it by up
    to 0.7 rad.
    """
    turn = rng.uniform(-1, 1, (N, 8))
    angle = np.cumsum(0.7 * turn, axis=1)
    hand = np.stack([np.cos(angle).sum(1), np.sin(angle).sum(1)], 1) / 8
    return turn, np.hypot(*(hand - [0.6, 0.3]).T)


def sample_ard(rng, N, n_test):
    """X, y, X_test, y_test: a draw from a GP on [-3, 3]^3, without noise; R App. F.

    SE-ARD with ln l_i ~ U(-1, 1), sigma_s^2 = 1. Test values are drawn one by one given y: the test
    risk is a mean over single points and needs no more.
    """
    ln_theta = np.append(2 * rng.uniform(-1, 1, 3), 0.0)
    X = rng.uniform(-3, 3, (N, 3))
    X_test = rng.uniform(-3, 3, (n_test, 3))
    L = R.cholesky(R.se_kernel(X, X, ln_theta)[0] + 1e-8 * np.eye(N), "K_NN")
    white = rng.standard_normal(N)
    mean, var = R.sparse_predict(X_test, X, R.tri_inv(L), ln_theta, white)
    return X, L @ white, X_test, mean + np.sqrt(var) * rng.standard_normal(n_test)


def uneven_noise(rng, N):
    """X (N, 2), y (N,), standardised: a wave.

    The deviation of the noise grows from 0.02 to 0.32 along the first input.
    """
    X = rng.uniform(-2, 2, (N, 2))
    sd = 0.02 + 0.3 / (1 + np.exp(-4 * X[:, 0]))
    f = np.sin(2 * X[:, 0]) * np.cos(X[:, 1])
    return standard(X), standard(f + sd * rng.standard_normal(N))


def motorcycle_like(rng, N=133):
    """x (N, 1) [ms], y (N,) [g]: imitates a helmet's acceleration after an impact.

    The noise has deviation 1.5 g, then 24 g, then 12 g.
    """
    even = rng.uniform(2, 58, N - N // 2)
    early = np.clip(20 + 6 * rng.standard_normal(N // 2), 2, 58)
    x = np.sort(np.append(even, early))
    f = -125 * bump(x, 20.5, 4.6) + 55 * bump(x, 31.5, 4.5)
    sd = 1.5 + 22.5 / (1 + np.exp((15 - x) / 0.8)) - 12 / (1 + np.exp((41 - x) / 1.5))
    return x[:, None], f + sd * rng.standard_normal(N)


CITIES = {              # extent [km], rush, jams
    "city A": (15.0, 0.35, 0.2), "city B": (8.0, 0.6, 0.35), "city C": (25.0, 0.2, 0.5)}


def taxi_like(rng, N, city):
    """X (N, 24), y (N,) [min]: trips in a made-up city.

    A river stands east of its centre; the centre and rush hours are slow. Columns: where from,
    where to, way (east, north; km each), distance, blocks, direction (2), distances from the
    centre (2), bridge, time of day (4), weekday (7). The noise is lognormal, its spread grows with
    jams; a bridge may be blocked.
    """
    extent, rush, jam = CITIES[city]
    start, end = rng.standard_normal((2, N, 2)) * [extent / 2, 0.3 * extent]
    way = end - start
    hour = rng.uniform(0, 24, N)
    day = rng.integers(0, 7, N)
    bridge = (start[:, 0] > extent / 5) ^ (end[:, 0] > extent / 5)
    peak = (day < 5) * (bump(hour, 8.5, 1.5) + bump(hour, 17.5, 2))
    centre = np.exp(-np.sum(((start + end) / extent) ** 2, 1))
    blocks = np.abs(way).sum(1)
    slower = 1 + 2 * rush * peak + 1.2 * centre
    mean = 2 + 60 * blocks * slower / 45 + 5 * bridge * (1 + 2 * peak)
    spread = 0.05 + jam * (0.2 + 0.8 * peak) * (0.3 + 0.7 * centre)
    y = mean * np.exp(spread * rng.standard_normal(N)) + bridge * peak * rng.exponential(8, N)
    turn = np.arctan2(*way.T)
    clock = np.pi * hour / 12
    return np.column_stack([
        start, end, way, np.hypot(*way.T), blocks, np.cos(turn), np.sin(turn),
        np.hypot(*start.T), np.hypot(*end.T), bridge, np.cos(clock), np.sin(clock),
        np.cos(2 * clock), np.sin(2 * clock), np.eye(7)[day]]), y


def rate_like(rng, N=39):
    """N daily rates: imitates CAD per USD in 2007.

    A random walk in ln from 1.17 on, 0.5 % a day (the real one: 0.56 %).
    """
    return 1.17 * np.exp(np.cumsum(0.005 * rng.standard_normal(N)))


SD = 0.4                # the deviation of the noise of L's code
RHO = 0.7               # how much of it a walk's next row keeps


def sine_stream(rng, n, order):
    """X (n, 1), y (n,) of y = sin(4x) + 0.4 e, and chance(i).

    chance(i): the law of row i given rows 0 .. i-1, as nodes (k,), weights (k,), means and
    deviations of y there (k,).
    shuffled: x uniform on [-1, 1]. time: the same sorted, so that x_i is the least of those left,
    uniform above x_{i-1}. walk: x one step left or right on 21 points, 0 and 20 turned back, and
    e_i = 0.7 e_{i-1} + fresh noise.
    """
    x = rng.uniform(-1, 1, n)
    e = SD * rng.standard_normal(n)
    fresh = SD * math.sqrt(1 - RHO**2)
    u, w = np.polynomial.legendre.leggauss(24)
    u, w = (u + 1) / 2, w / 2                           # on [0, 1]
    if order == "time":
        x = np.sort(x)
    if order == "walk":
        at = np.empty(n, dtype=int)
        at[0] = 10
        for i in range(1, n):
            at[i] = abs(at[i - 1] + (1 if x[i] > 0 else -1))
            at[i] = min(at[i], 40 - at[i])
            e[i] = RHO * e[i - 1] + math.sqrt(1 - RHO**2) * e[i]
        x = at / 10 - 1

    def chance(i):
        if order == "walk":
            sides = np.abs(at[i - 1] + np.array([-1, 1]))
            nodes = np.minimum(sides, 40 - sides) / 10 - 1
            means = np.sin(4 * nodes) + RHO * e[i - 1]
            return nodes, np.array([0.5, 0.5]), means, np.full(2, fresh)
        low, left = (x[i - 1], n - i) if order == "time" else (-1.0, 1)
        nodes = low + (1 - low) * (1 - u ** (1 / left))
        return nodes, w, np.sin(4 * nodes), np.full(24, SD)
    return x[:, None], np.sin(4 * x) + e, chance


# --- R: Reeb et al. 2018 --------------------------------------------------------------------------

QUANTITIES = ("B", "B_Pin", "R_S train", "R_S test", "MSE", "KL/N", "sigma_n^2")
SHOWN = ("B", "R_S train", "R_S test", "MSE", "KL/N")


def measure(fit, X, y):
    """QUANTITIES of a fit, tested on X, y, and its evaluations.

    The test risk is the 0-1 risk whatever it was trained with.
    """
    mean, var = R.predict(fit, X)
    return {"B": fit.bound, "B_Pin": fit.pinsker, "R_S train": fit.risk,
            "R_S test": R.gibbs_risk(y, mean, var, fit.eps), "MSE": np.mean((mean - y) ** 2),
            "KL/N": fit.KL / fit.N, "sigma_n^2": math.exp(fit.ln_noise),
            "evaluations": fit.optimum.n_evals}


@experiment()
def line_data(run):
    """x (N, 1), y (N,) of the one-dimensional set, in its own units, and the full GP that sets the
    scale of eps."""
    if run.real:
        x, y = np.split(run.tables["snelson.csv"], 2, axis=1)
        y = y[:, 0]
    else:
        x, y = snelson_like(run.rng)
    return x, y, train(run, "1-D", x, y, "full-GP")


@experiment(starts=(2, 8, 20), max_evals=(40, 400, 2000), M=15)
def best_start(run, method, times, starts, max_evals, M):
    """The best of several k-means starts of the inducing inputs, its start, and KL/N of every one;
    eps = times sigma_n."""
    x, y, gp = run.once(line_data)
    eps = times * math.exp(gp.ln_noise / 2)
    Zs = [R.kmeans(x, M, run.rng) for _ in range(starts)]
    fits = [train(run, "1-D", x, y, method, Z=Z, eps=eps, max_evals=max_evals) for Z in Zs]
    best = min(range(starts), key=lambda i: fits[i].optimum.f)
    return fits[best], Zs[best], [fit.KL / fit.N for fit in fits]


def line_panel(ax, run, method, times=1.0):
    """A panel of figures 1 and 6: data, the full GP (red lines), a sparse one (blue), goal,
    inducing inputs. Returns its row."""
    x, y, gp = run.once(line_data)
    fit, Z0, spread = run.once(best_start, method, times)
    pac = "PAC" in method
    noise, sparse_noise = math.exp(gp.ln_noise), math.exp(fit.ln_noise)
    grid = np.linspace(x.min() - 0.9, x.max() + 0.9, 300)[:, None]
    mean, var = R.predict(gp, grid)
    draw_gp(ax, grid, mean, var + noise, RED, "full GP, with noise", filled=False)
    mean, var = R.predict(fit, grid)
    if pac:
        draw_gp(ax, grid, mean, var, BLUE, "sparse GP (PAC: no noise)")
        goal = np.stack([mean - fit.eps, mean + fit.eps], 1)
        ax.plot(grid, goal, color=GREEN, ls="--", label=["mean $\\pm\\varepsilon$", None])
        method_text = f"{method}, $\\varepsilon={times:g}\\,\\sigma_n={fit.eps:.2f}$"
    else:
        draw_gp(ax, grid, mean, var + sparse_noise, BLUE, "sparse GP")
        method_text = method
    ax.plot(x, y, "k.", ms=3, label="data")
    draw_inducing(ax, Z0, "inducing inputs before training", "x", 0.957, ms=5)
    draw_inducing(ax, fit.Z, "and after", "x", 0.043, ms=5, color=BLUE)
    ax.set(ylim=(-3.7, 3.2), xlim=(grid[0, 0], grid[-1, 0]), xlabel="input $x$",
           ylabel="target $y$", title=method_text)
    certified = {"eps/sigma_n": times, "eps": fit.eps, "B of a draw": fit.bound,
                 "B of the mean": R.bayes_risk_bound(fit.bound), "R_S": fit.risk}
    outside = np.abs(fit.Z - grid.mean()) > np.ptp(grid) / 2
    return {"method": method, **(certified if pac else dict.fromkeys(certified)),
            "KL/N": fit.KL / fit.N, "KL/N of all starts": f"{min(spread):.3f}..{max(spread):.3f}",
            "l": math.exp(fit.ln_theta[0] / 2), "sigma_n of fit": math.exp(fit.ln_noise / 2),
            "sigma_n of full GP": math.exp(gp.ln_noise / 2), "evaluations": fit.optimum.n_evals,
            "Z outside": int(np.sum(outside))}


def line_figure(run, panels_of, width):
    """Picture and rows of figures 1 and 6, a panel for each (method, eps/sigma_n)."""
    picture, axes = panels(1, len(panels_of), width, 4.3, sharey=True)
    rows = [line_panel(ax, run, *one) for ax, one in zip(axes[0], panels_of)]
    below(picture, axes[0, 0], 4)
    return picture, rows


@figure("snelson.csv", times=[0.5, 2.0, 5.0])
def R_fig1(run, times):
    """A large accuracy goal eps gives a smooth GP, and each larger goal a smaller bound:
    kl-PAC-SGP beside the full GP."""
    picture, rows = line_figure(run, [("kl-PAC-SGP", t) for t in times], 11)
    for ax, row in zip(picture.axes, rows):
        draw, mean = (math.ceil(1000 * row[f"B of {of}"]) / 1000 for of in ("a draw", "the mean"))
        text = (f"KL/N = {row['KL/N']:.3f}; a draw misses with\n"
                f"probability at most {draw:.3f}, the mean at most {mean:.3f}")
        ax.text(0.98, 0.09, text, transform=ax.transAxes, ha="right", fontsize=7)
    notes = []
    if run.real:
        for row, value in zip(rows, (0.097, 0.109, 0.031)):
            row["KL/N, the paper's"] = value
        notes = ["The paper's sigma_n = 0.28 is that of y in its own units, whatever the scale of "
                 "x (y of deviation 1: 0.335); its KL/N = 0.031 needs y not centred (0.029 if "
                 "centred)."]
    return picture, rows, notes


@figure("snelson.csv", runs=[("kl-PAC-SGP", 0.5), ("kl-PAC-SGP", 2.0), ("FITC", 1.0), ("VFE", 1.0)])
def R_fig6(run, runs):
    """kl-PAC-SGP fits the mean to the goal eps; FITC and VFE fit a density, with the noise in
    it."""
    return *line_figure(run, runs, 13), []


FULL = ("kl-PAC-GP", "sqrt-PAC-GP", "full-GP")
BOSTON = dict(splits=(2, 4, 10), real=dict(splits=(2, 10, 10)))


@experiment(N=(150, 506, 506), all_eps=[0.2, 0.4, 0.6, 0.8, 1.0], ftol=1e-6, real=dict(N="all"))
def boston_split(run, i, N, all_eps, ftol):
    """{(eps, method): measures} of a split. The full GP is trained once and certified for each
    eps."""
    X, y = data_set(run, "boston", lambda rng: boston_like(rng, N), "boston_study", run.size)
    a, b = split(len(y), i)
    found = {}
    gp = train(run, f"split {i + 1}", X[a], y[a], "full-GP", ftol=ftol)
    for eps in all_eps:
        label = f"split {i + 1}, eps {eps}"
        for method in FULL:
            trained = dict(start=gp.optimum.x, max_evals=1) if method == "full-GP" else {}
            fit = train(run, label, X[a], y[a], method, eps=eps, ftol=ftol, **trained)
            if trained:
                fit = fit._replace(optimum=gp.optimum)
            found[f"{eps:.1f}", method] = measure(fit, X[b], y[b])
    return found


def boston_rows(run, splits):
    """A row for each eps and method, over the splits; the same beside the paper's; a note on how
    many agree."""
    found = [run.once(boston_split, i) for i in range(splits)]
    rows = []
    for eps, method in found[0]:
        each = average([one[eps, method] for one in found])
        rows.append({"eps": eps, "method": method} | each)
    paper = published(run, "R_table1", "setting", "method")
    return rows, *beside(rows, paper, "eps", "method", judge=lambda row: True)


@figure("boston.csv", **BOSTON)
def R_fig2(run, splits):
    """kl-PAC-GP has the lowest bound at every accuracy goal eps: it trades the full GP's MSE for a
    smaller KL divergence."""
    rows, table, notes = boston_rows(run, splits)
    goals = sorted({row["eps"] for row in rows})
    at = np.arange(len(goals))
    picture, axes = panels(1, len(SHOWN), 12, 3.1)
    for ax, name in zip(axes[0], SHOWN):
        for j, (method, hatch) in enumerate(zip(FULL, ["", "//", ".."])):
            part = where(rows, method=method)
            ax.bar(at + 0.27 * (j - 1), col(part, name), 0.25, yerr=col(part, name, 1),
                   label=method, color=LOOKS[method][0], hatch=hatch, ec="white", lw=0,
                   capsize=2, error_kw=dict(ecolor="0.25", lw=1))
        label = "accuracy goal $\\varepsilon$ [sd of $y$]"
        ax.set(title=WORDS[name], xlabel=label, ylim=(0, None))
        ax.set_xticks(at, goals)
    below(picture, axes[0, 0], 3)
    least = lowest([where(rows, eps=eps) for eps in goals], "B", "kl-PAC-GP")
    gaps = [np.subtract(col(where(rows, eps=eps, method="sqrt-PAC-GP"), "B"),
                        col(where(rows, eps=eps, method="kl-PAC-GP"), "B"))[0] for eps in goals]
    said = (f"kl-PAC-GP has the lowest mean bound at {least} of {len(goals)} goals; sqrt-PAC-GP's "
            f"is {min(gaps):.4f} to {max(gaps):.4f} above it.")
    return picture, table, [*notes, said]


@figure("boston.csv", **BOSTON)
def R_table1(run, splits):
    """All measures of the full GPs for each accuracy goal eps."""
    _, rows, notes = boston_rows(run, splits)
    if run.real:
        notes.append("The paper's sigma_n^2 = 1335 for sqrt-PAC-GP at eps = 0.2 includes one run "
                     "of ten that ended in a local optimum (its footnote). It starts at l = 1, we "
                     "at l^2 = d.")
    return dot_table(run, rows, QUANTITIES, "eps", "method"), rows, notes


SPARSE = ("kl-PAC-SGP", "sqrt-PAC-SGP", "VFE", "FITC")
SPARSE_FILES = ("pol.csv.gz", "sarcos_test.csv.gz", "kin40k.csv.gz")
ARD = {                 # what R Fig. 3 and Table 3 use
    "pol": "ARD", "sarcos": "-", "kin40k": "ARD", "kin40k_like": "ARD"}
SPARSE_STUDY = dict(
    Ms=([5, 10], [10, 20, 40, 80], [100, 200, 300, 400, 500]), splits=(2, 3, 1),
    real=dict(Ms=([10, 20], [25, 50, 100], [100, 200, 300, 400, 500]), splits=(1, 2, 1)))


@experiment(N=(400, 1500, 40000), eps=0.6, max_evals=(15, 80, 200), ftol=1e-7,
            real=dict(N="all", max_evals=(8, 100, 200)))
def sparse_run(run, name, M, method, ard, loss, i, N, eps, max_evals, ftol):
    """measures, optimum of one method on split i of a data set: R Sec. 4(c). The test risk is the
    0-1 risk."""
    X, y = data_set(run, name, lambda rng: kin40k_like(rng, N), "sparse_table", run.size, name)
    a, b = split(len(y), i)
    options = dict(start={}, max_evals=max_evals, ftol=ftol, seed=i)
    trained = None
    if loss != "01" and "PAC" not in method:            # trained without a loss: certified again
        trained = run.once(sparse_run, name, M, method, ard, "01", i)[1]
        options = dict(start=trained.x, max_evals=1)
    grid = R.GRID if name == "sarcos" else (12.0, 1200)
    fit = train(run, f"{name}, M = {M}, split {i + 1}", X[a], y[a], method, M, eps=eps, loss=loss,
                ard=ard == "ARD", grid=grid, **options)
    fit = fit._replace(optimum=trained or fit.optimum)
    return measure(fit, X[b], y[b]), fit.optimum


def sparse_rows(run, splits, Ms, ards, loss="01", methods=SPARSE):
    """A row for each data set, M, choice of ARD and method; notes on what cannot be compared."""
    sets = ("pol", "sarcos", "kin40k") if run.real else ("kin40k_like",)
    rows = []
    for name, M, ard in [(name, M, ard) for name in sets for M in Ms for ard in ards(name)]:
        for method in methods:
            each = [run.once(sparse_run, name, M, method, ard, loss, i)[0] for i in range(splits)]
            rows.append({"data": name, "M": str(M), "method": method, "ARD": ard} | average(each))
    notes = [
        "sarcos: its training part (44,484 rows) is not at hand; this is the test part alone, "
        "N = 3559: not comparable.",
        "FITC's sigma_n^2 is printed as 0.000: below 0.0005.",
        f"The paper has M = 100..500 and 10 splits; here M goes to {Ms[-1]}, {splits} splits."]
    return rows, notes if run.real else []


@figure(*SPARSE_FILES, **SPARSE_STUDY)
def R_fig3(run, Ms, splits):
    """kl-PAC-SGP has the lowest bound at every number M of inducing inputs."""
    methods = ("kl-PAC-SGP", "VFE", "FITC")
    rows, notes = sparse_rows(run, splits, Ms, lambda name: (ARD[name],), methods=methods)
    sets = list(dict.fromkeys(row["data"] for row in rows))
    picture, axes = panels(len(sets), len(SHOWN), 12, 0.8 + 2.3 * len(sets), sharex=True)
    for name, line in zip(sets, axes):
        for ax, quantity in zip(line, SHOWN):
            for method in methods:
                curve(ax, where(rows, data=name, method=method), "M", quantity, method)
            ax.set(ylim=(0, None), xticks=Ms[::len(Ms) // 3 or 1])
        line[0].set_ylabel(WORDS.get(name, name))
    for first, last, quantity in zip(axes[0], axes[-1], SHOWN):
        first.set_title(WORDS[quantity])
        last.set_xlabel("inducing inputs $M$")
    below(picture, axes[0, 0], 3)
    cases = [where(rows, data=name, M=str(M)) for name in sets for M in Ms]
    least = lowest(cases, "B", "kl-PAC-SGP")
    said = f"kl-PAC-SGP has the lowest mean bound in {least} of {len(cases)} cases."
    return picture, rows, [*notes, said]


def sparse_result(run, table, rows, notes):
    """What tables 2 and 3 return: only M = 500 and a whole data set can be held against the
    published numbers."""
    keys = ("data", "method", "ARD")
    paper = published(run, table, "data", "method", "setting")
    rows = [{k: v for k, v in row.items() if k != "M"} for row in rows]
    judge = lambda row: run.size == "full" and row["data"] != "sarcos"
    rows, found = beside(rows, paper, *keys, judge=judge)
    return dot_table(run, rows, QUANTITIES, *keys), rows, found + notes


@figure(*SPARSE_FILES, **SPARSE_STUDY)
def R_table2(run, Ms, splits):
    """All measures of the sparse GPs at the largest M, with one lengthscale and with one a column
    (ARD)."""
    rows, notes = sparse_rows(run, splits, Ms[-1:], lambda name: ("-", "ARD"))
    return sparse_result(run, "R_table2", rows, notes)


@figure(*SPARSE_FILES, **SPARSE_STUDY)
def R_table3(run, Ms, splits):
    """All measures of the sparse GPs at the largest M, trained with the exponential loss."""
    rows, notes = sparse_rows(run, splits, Ms[-1:], lambda name: (ARD[name],), "exp")
    return sparse_result(run, "R_table3", rows, notes)


@figure(all_eps=[0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0])
def R_fig4(run, all_eps):
    """The inverse binary KL divergence: the largest p with kl(q, p) <= eps. At q = 0 it is
    1 - exp(-eps)."""
    picture, ((ax,),) = panels(1, 1, 5.6, 4)
    grid = np.linspace(0, 1, 401)
    colours = (BLACK, BLUE, SKY, GREEN, ORANGE, RED, PURPLE)
    rows = []
    for eps, colour, line in zip(all_eps, colours, ("-", "--", "-.", ":", "-", "--", "-.")):
        ax.plot(grid, R.kl_inv(grid, eps), color=colour, ls=line, label=f"$\\varepsilon={eps:g}$")
        values = {f"q = {q:g}": float(R.kl_inv(q, eps)) for q in (0.0, 0.01, 0.1, 0.5, 0.9, 1.0)}
        rows.append({"eps": eps} | values | {"1 - exp(-eps)": 1 - math.exp(-eps)})
    ax.set(xlabel="$q$", ylabel="$kl^{-1}(q,\\varepsilon)$", xlim=(0, 1), ylim=(0, 1.02))
    handles, labels = ax.get_legend_handles_labels()
    picture.legend(handles[::-1], labels[::-1], loc="outside right center", title="nats")
    return picture, rows, [
        "The column q = 0 equals the last: the closed form in the paper's caption."]


@figure(eps=1.0, var=0.25)
def R_fig5(run, eps, var):
    """Bounded losses of a regression, and what is expected of them under a Gaussian prediction
    (Eq. 26-28, corrected)."""
    losses = (("01", "$\\ell_1$ (0-1), Eq. (18)", R.loss_01, BLUE, "-"),
              ("square", "$\\ell_2$, Eq. (19)", R.loss_clipped_square, RED, "--"),
              ("exp", "$\\ell_{exp}$, Eq. (20)", R.loss_exp, ORANGE, "-."))
    picture, ((left, right),) = panels(1, 2, 8.6, 3.5, sharey=True)
    grid = np.linspace(-2.5, 2.5, 1001)
    show = np.array([0.0, 0.5, 1.0, 1.5, 2.0])
    rows = []
    for name, label, loss, colour, line in losses:
        expected = lambda d: R.LOSSES[name](0.0, d, np.full(len(d), var), eps)[0]
        left.plot(grid, loss(0.0, grid, eps), color=colour, ls=line, label=label)
        right.plot(grid, expected(grid), color=colour, ls=line)
        values = {f"l({d:g})": value for d, value in zip(show, loss(0.0, show, eps))}
        values |= {f"E l({d:g})": value for d, value in zip(show, expected(show))}
        rows.append({"loss": name} | values)
    left.set(xlabel="deviation $\\hat y-y$ [units of $\\varepsilon$]", ylabel="loss", title="loss",
             ylim=(-0.03, 1.05))
    right.set(xlabel="deviation of the mean $\\hat m-y$ [units of $\\varepsilon$]",
              title="expected loss of a prediction of variance $\\varepsilon^2/4$")
    below(picture, left, 3)
    return picture, rows, []


@experiment(starts=(6, 16, 100), max_evals=(60, 1500, 4000), ftol=1e-8, M=8,
            real=dict(starts=(6, 100, 100), max_evals=(60, 2000, 4000)))
def restarts(run, method, starts, max_evals, ftol, M):
    """A row for each random start of sigma_n^2 and Z; every second point in the file's order; R
    App. E."""
    if run.real:
        x, y, _ = run.once(line_data)
    else:
        x, y = snelson_like(run.seeded("uneven line"), uneven=True)
    x, y = x[::2], y[::2]
    rows = []
    for i in range(starts):
        ln_noise = run.rng.uniform(math.log(1e-5), math.log(10))
        Z = x[run.rng.permutation(len(x))[:M]]
        fit = train(run, f"start {i + 1}", x, y, method, M=M, ftol=ftol, max_evals=max_evals,
                    start=dict(ln_theta=[0.0, 0.0], ln_noise=ln_noise, Z=Z))
        evals = fit.optimum.n_evals
        rows.append({"start": math.exp(ln_noise), "learned": math.exp(fit.ln_noise),
                     "objective": fit.optimum.f, "evaluations": evals,
                     "at the cap": int(evals >= max_evals)})
    return rows


def draw_optima(ax, learned, value):
    """A mark for each optimum, with the number of starts that end in it.

    Two ends are one optimum where sigma_n^2 agrees to a tenth and the objective to a thousandth.
    """
    left = np.ones(len(value), bool)
    for i in np.argsort(value):
        if not left[i]:
            continue
        same = np.abs(np.log(learned / learned[i])) < 0.1
        same &= left & (np.abs(value - value[i]) < 1e-3 * abs(value[i]))
        left &= ~same
        ax.plot(learned[i], value[i], "o", color=BLUE, ms=4 + 2 * math.sqrt(same.sum()))
        if same.sum() > 1:
            ax.annotate(f"{same.sum()}", (learned[i], value[i]), xytext=(9, -3),
                        textcoords="offset points", fontsize=9)


@figure("snelson.csv")
def R_fig7(run):
    """Local optima from many starts: the objective, and the noise variance that is learned. A
    number says how many starts end in one optimum."""
    picture, axes = panels(1, 2, 9.5, 3.8)
    edge = math.exp(-R.LN_BOX)
    rows = []
    for ax, method, name, paper in zip(axes[0], ("FITC", "kl-PAC-SGP"),
                                       ("$-\\ln p$ [nats]", "bound $B$"), (1e-6, 2.1e-2)):
        found = run.once(restarts, method)
        learned, value = (col(found, k) for k in ("learned", "objective"))
        best = value.argmin()
        near = int(np.sum(value < value[best] + 1e-3 * abs(value[best])))
        draw_optima(ax, learned, value)
        ax.plot(learned[best], value[best], "*", mfc="none", ms=19, mec=RED, mew=1.6,
                label=f"best: {learned[best]:.2g}")
        if run.real:
            ax.axvline(paper, color="0.3", ls=":", label=f"the paper's: {paper:.2g}")
        ax.axvline(edge, color="0.6", lw=1, label=f"least allowed: {edge:.2g}")
        ax.set(xscale="log", xlim=(5e-8, 20), ylabel=f"objective: {name}",
               xlabel="learned noise variance $\\sigma_n^2$ [square of y's unit]",
               title=f"{method}, {len(found)} starts")
        ax.margins(y=0.12)
        ax.legend(loc="best", title="$\\sigma_n^2$")
        rows.append({"method": method, "best sigma_n^2": learned[best],
                     "the paper's": paper if run.real else None, "best objective": value[best],
                     "starts within 0.1 %": near, "least sigma_n^2": learned.min(),
                     "median": np.median(learned), "largest": learned.max(),
                     "median evaluations": np.median(col(found, "evaluations")),
                     "runs at the cap": sum(row["at the cap"] for row in found)})
    ratio = rows[1]["best sigma_n^2"] / rows[0]["best sigma_n^2"]
    return picture, rows, [f"The best sigma_n^2 of kl-PAC-SGP is {ratio:.3g} times FITC's."]


@experiment(N=(60, 300, 2000), n_test=(200, 2000, 10_000), boxes=[1, 2, 4, 8],
            decimals=[0, 1, 2, 4])
def grid_run(run, i, N, n_test, boxes, decimals):
    """{(L, r): measures} of a data set: trained in each box L once, the optimum then rounded to r
    decimals, G = 2 L 10^r."""
    X, y, X_test, y_test = sample_ard(run.rng, N, n_test)

    def fit(box, r, **more):
        return train(run, f"data set {i + 1}, L = {box}", X, y, "kl-PAC-GP", ard=True, ftol=1e-6,
                     grid=(2.0 * box, 2 * box * 10**r), **more)
    widest = fit(max(boxes), 2).optimum.x
    found = {}
    for box in boxes:
        best = fit(box, 2, start=widest).optimum.x
        for r in decimals:
            f = fit(box, r, start=best, max_evals=1)
            grid = {"ln|Theta|": f.penalty, "ln|Theta|/N": f.penalty / N}
            found[box, r] = measure(f, X_test, y_test) | grid
    return found


@figure(data_sets=(2, 8, 68))
def R_fig8(run, data_sets):
    """A finer or wider grid for theta costs ln|Theta|/N and gains little once it has a decimal."""
    found = [run.once(grid_run, i) for i in range(data_sets)]
    names = ("B", "R_S train", "R_S test", "KL/N", "ln|Theta|/N")
    rows = []
    for box, r in sorted(found[0], key=lambda cell: found[0][cell]["ln|Theta|"]):
        each = average([one[box, r] for one in found])
        off = average([{f"{n} - that of (2, 2)": one[box, r][n] - one[2, 2][n] for n in names}
                       for one in found])
        rows.append({"L": box, "r": r, "ln|Theta|": each["ln|Theta|"][0]}
                    | {n: each[n] for n in names} | off)
    picture, ((left, right),) = panels(1, 2, 10, 4.2, sharex=True)
    for name in names:
        left.plot(col(rows, "ln|Theta|"), col(rows, name), **look(name))
        curve(right, rows, "ln|Theta|", f"{name} - that of (2, 2)", name)
    coarse = max(row["ln|Theta|"] for row in where(rows, r=0)) + 0.5
    for ax in (left, right):
        label = "whole numbers only ($r=0$)"
        ax.axvspan(ax.get_xlim()[0], coarse, color="0.9", zorder=0, label=label)
        ax.set(xlabel="$\\ln|\\Theta|$ [nats]", xlim=ax.get_xlim())
    left.set(ylabel="mean over data sets", ylim=(0, None))
    right.set_ylabel("difference from $L=2$, $r=2$, same data set")
    below(picture, left, 6)
    return picture, rows, []


# --- J: Jankowiak et al. 2020 ---------------------------------------------------------------------

SCORES = ("NLL", "RMSE", "CRPS", "noise fraction")
COMPARED = (            # J Table 1, Fig. 2-4; PPGPR there is MFD
    "MAP", "gamma-robust", "SVGP", "OD-SVGP", "VFITC", "PPGPR-MFD")
VARIANTS = (            # J Table 2
    "MAP", "SVGP", "PPGPR-delta", "PPGPR-MF", "PPGPR-Chol", "PPGPR-MFD")
ALL_TEN = ("MAP", "SVGP", "gamma-robust", "OD-SVGP", "VFITC", "PPGPR-delta", "PPGPR-MF",
           "PPGPR-Chol", "PPGPR-MFD", "exact")
J_FILES = ("pol.csv.gz", "bike.csv.gz", "kin40k.csv.gz")
J_SETS = ("pol", "bike", "kin40k")
J_SPLITS = dict(splits=(2, 3, 10), real=dict(splits=(1, 1, 10)))
GENERATED = {
    "uneven_noise": uneven_noise, "boston_like": boston_like,
    "kin40k_like": lambda rng, N: kin40k_like(rng, N, 0.05)}


@experiment(N=(100, 1000, 10_000), M=(5, 40, 1000), batch=(75, 100, 1000), epochs=(3, 30, 400),
            lr=(0.05, 0.1, 0.01), exact_rows=(50, 400, 4000), validate=(False, False, True),
            real=dict(N="all", M=(10, 100, 1000), batch=(2000, 1000, 1000), epochs=(1, 60, 400),
                      lr=(0.03, 0.03, 0.01), exact_rows=(100, 1000, 4000)))
def score_run(run, name, method, i, N, exact_rows, validate, **settings):
    """SCORES on the test rows of split i, the same for all methods; J App. C.1."""
    generate = lambda rng: GENERATED[name](rng, N)
    X, y = data_set(run, name, generate, "score_table", run.size, name)
    order = run.seeded(name, i).permutation(len(y))
    a, b, c = np.split(order, [len(y) * 15 // 20, len(y) * 18 // 20])
    label = f"{name}, split {i + 1}, {method}"
    settings["callback"] = lambda n, f: run.tick(f"{label}: epoch {n}, objective {f:.5g}")
    settings["seed"] = i
    if method == "exact":
        a = a[:exact_rows]
        settings["epochs"] *= 2
    if validate:
        fit = J.choose(X[a], y[a], X[c], y[c], method, **settings)
    else:
        beta_reg = 0.05 if "PPGPR" in method else 1.0
        fit = J.fit(X[a], y[a], method, beta_reg=beta_reg, **settings)
    _, var_f = J.predict(fit, X[b])
    mean, var = J.predict_y(fit, X[b])
    noise = J.noise_fraction(var_f, np.exp(fit.params["ln_noise"]))
    return [J.nll(y[b], mean, var), J.rmse(y[b], mean), J.crps(y[b], mean, var), noise]


def score_rows(run, splits, methods, scores, names=None):
    """A row for each data set and method: the scores, and what they are minus SVGP's on the same
    splits."""
    rows = []
    for name in names or (J_SETS if run.real else GENERATED):
        runs = {m: [run.once(score_run, name, m, i) for i in range(splits)]
                for m in (*methods, "SVGP")}
        found = gaps(runs, "SVGP")
        for m in methods:
            each, gap = (dict(zip(SCORES, part)) for part in found[m])
            row = {"data": name, "method": m} | {s: each[s] for s in scores}
            row |= {f"{s} - SVGP's": gap[s] for s in scores if s != "noise fraction"}
            rows.append(row)
    return rows


def score_notes(rows, score, paper):
    """What the rows say about the paper's statements on one score, counted from them."""
    sets = list(dict.fromkeys(row["data"] for row in rows))
    methods = dict.fromkeys(row["method"] for row in rows)
    at = {m: col(where(rows, method=m), score) for m in methods}
    if score == "noise fraction":
        means = ", ".join(f"{m} {v.mean():.2f}" for m, v in at.items())
        return [f"Mean over the data sets: {means}. The paper: noise dominates the baselines' "
                "variance, function uncertainty that of VFITC and PPGPR; it prints no numbers."]
    mfd = at["PPGPR-MFD"]
    sparse = [m for m in at if m != "exact"]
    best = [min(sparse, key=lambda m: at[m][k]) for k in range(len(sets))]
    best = ", ".join(f"{m} ({WORDS.get(name, name)})" for m, name in zip(best, sets))
    wins = {m: f"{np.sum(mfd < at[m])} of {len(sets)} data sets" for m in ("SVGP", "OD-SVGP")}
    said = {"NLL": " (the paper, twelve sets: about 0.35)",
            "RMSE": " (the paper: MFD has the best average rank, 2.12)"}
    notes = [f"Lowest {score}, exact GP apart: {best}.",
             f"{score} of PPGPR-MFD is below SVGP's on {wins['SVGP']}, below OD-SVGP's on "
             f"{wins['OD-SVGP']}; OD-SVGP's minus PPGPR-MFD's: {np.mean(at['OD-SVGP'] - mfd):.2f} "
             f"on average{said.get(score, '')}."]
    if "PPGPR-Chol" in at:
        steps = np.diff([at[m] for m in ("PPGPR-delta", "PPGPR-MF", "PPGPR-Chol")], axis=0)
        notes.append(f"{score} falls in {np.sum(steps < 0)} of the {steps.size} steps delta -> MF "
                     "-> Chol (the paper: NLL tends to fall, RMSE to rise); Chol's is above MFD's "
                     f"on {np.sum(at['PPGPR-Chol'] > mfd)} of {len(sets)}.")
    pairs = []
    for k, name in enumerate(sets):
        theirs = {m: col([paper[name, m]], score)[0] for m in sparse if (name, m) in paper}
        for m, n in itertools.combinations(theirs, 2):
            if theirs[m] != theirs[n]:
                pairs.append((at[m][k] - at[n][k]) * (theirs[m] - theirs[n]) > 0)
    if pairs:
        notes.append(f"{score}: {sum(pairs)} of {len(pairs)} pairs of methods, exact GP apart, "
                     "stand in the paper's order.")
    return notes


def share_panel(ax, rows):
    """The methods below one another on one data set: shares of noise."""
    for k, row in enumerate(rows):
        dot(ax, row, "noise fraction", -k, row["method"])
    name = rows[0]["data"]
    ax.set(title=WORDS.get(name, name), xlabel=WORDS["noise fraction"], xlim=(-0.03, 1.03))


def score_panel(ax, rows, paper, score):
    """The same of a score: differences from SVGP on the same splits, the paper's hollow."""
    name = rows[0]["data"]
    svgp = where(rows, method="SVGP")[0][score][0]
    for k, row in enumerate(rows):
        dot(ax, row, f"{score} - SVGP's", -k, row["method"])
        theirs = paper.get((name, row["method"]), {})
        if score in theirs:
            gap = col([theirs], score)[0] - col([paper[name, "SVGP"]], score)[0]
            dot(ax, {"": gap}, "", -k - 0.35, row["method"], mfc="white")
    ax.set(title=f"{WORDS.get(name, name)}: SVGP's is {svgp:.3f}",
           xlabel=f"{WORDS[score]}, minus SVGP's")


def score_figure(run, splits, score, methods):
    """Figures 2-4 and 6-9: one score, a panel per data set."""
    rows = score_rows(run, splits, methods, (score,))
    paper = published(run, "J_table3", "data", "method")
    sets = list(dict.fromkeys(row["data"] for row in rows))
    picture, axes = panels(1, len(sets), 10.3, 1.3 + 0.24 * len(methods), sharey=True)
    share = score == "noise fraction"
    for ax, name in zip(axes[0], sets):
        part = where(rows, data=name)
        if share:
            share_panel(ax, part)
        else:
            score_panel(ax, part, paper, score)
        ax.axvline(0, color="0.4", lw=1)
        ax.set_ylim(-len(part) + 0.3, 0.5)
        ax.locator_params(axis="x", nbins=5)            # labels that do not touch
    axes[0, 0].set_yticks(-np.arange(len(methods)), methods)
    if paper and not share:
        ours_and_theirs(picture)
    return picture, beside(rows, paper, "data", "method")[0], score_notes(rows, score, paper)


@figure(*J_FILES, **J_SPLITS)
def J_fig2(run, splits):
    """PPGPR states far better densities than SVGP: test NLL of all methods, minus SVGP's."""
    return score_figure(run, splits, "NLL", (*COMPARED, "exact"))


@figure(*J_FILES, **J_SPLITS)
def J_fig3(run, splits):
    """Test RMSE of the methods, minus SVGP's on the same splits."""
    return score_figure(run, splits, "RMSE", (*COMPARED, "exact"))


@figure(*J_FILES, **J_SPLITS)
def J_fig4(run, splits):
    """Share of the predictive variance that is noise, of each method."""
    return score_figure(run, splits, "noise fraction", (*COMPARED, "exact"))


@figure(*J_FILES, **J_SPLITS)
def J_fig6(run, splits):
    """Test NLL of all methods and variants, minus SVGP's on the same splits."""
    return score_figure(run, splits, "NLL", ALL_TEN)


@figure(*J_FILES, **J_SPLITS)
def J_fig7(run, splits):
    """Test RMSE of all methods and variants, minus SVGP's on the same splits."""
    return score_figure(run, splits, "RMSE", ALL_TEN)


@figure(*J_FILES, **J_SPLITS)
def J_fig8(run, splits):
    """Share of the predictive variance that is noise, of all methods and variants."""
    return score_figure(run, splits, "noise fraction", ALL_TEN)


@figure(*J_FILES, **J_SPLITS)
def J_fig9(run, splits):
    """Test CRPS of all methods and variants, minus SVGP's on the same splits."""
    return score_figure(run, splits, "CRPS", ALL_TEN)


def average_ranks(scores):
    """Mean rank (methods,) over the rows of scores (cases, methods), 1 the lowest; ties share."""
    below = (scores[:, None, :] < scores[:, :, None]).sum(2)
    equal = (scores[:, None, :] == scores[:, :, None]).sum(2)
    return (below + (equal + 1) / 2).mean(0)


def rank_table(run, splits, table, methods):
    """Tables 1 and 2: average ranks over data sets and splits, 1 is best."""
    cases = [(name, i) for name in (J_SETS if run.real else GENERATED) for i in range(splits)]
    found = np.array([[run.once(score_run, name, m, i) for m in methods] for name, i in cases])
    ranks = np.transpose([average_ranks(found[:, :, k]) for k in range(3)])
    rows = [{"method": m} | dict(zip(SCORES, rank)) for m, rank in zip(methods, ranks)]
    rows, _ = beside(rows, published(run, table, "method"), "method")
    return dot_table(run, rows, SCORES[:3], "method"), rows, [
        f"Ranks over {len(found)} cases, data sets times splits; the paper's over twelve data sets "
        "and ten splits."]


@figure(*J_FILES, **J_SPLITS)
def J_table1(run, splits):
    """Average ranks of MAP, gamma-robust, SVGP, OD-SVGP, VFITC, PPGPR-MFD; 1 is best."""
    return rank_table(run, splits, "J_table1", COMPARED)


@figure(*J_FILES, **J_SPLITS)
def J_table2(run, splits):
    """Average ranks of MAP, SVGP, PPGPR-delta, PPGPR-MF, PPGPR-Chol, PPGPR-MFD; 1 is best."""
    return rank_table(run, splits, "J_table2", VARIANTS)


@figure(*J_FILES, **J_SPLITS)
def J_table3(run, splits):
    """All scores of all methods, and what they are minus SVGP's on the same splits."""
    rows = score_rows(run, splits, ALL_TEN, SCORES)
    paper = published(run, "J_table3", "data", "method")
    notes = [note for score in SCORES for note in score_notes(rows, score, paper)]
    if run.real:
        methods = ("SVGP", "PPGPR-MFD", "exact")
        rows += score_rows(run, splits, methods, SCORES, ["bike, 15 inputs"])
    rows, _ = beside(rows, paper, "data", "method")
    return dot_table(run, rows, SCORES[:3], "data", "method"), rows, notes


def draw_two_bands(ax, grid, mean, s_f, s):
    """The mean, and two deviations of f and of y around it."""
    band(ax, grid, mean - s, mean + s, SKY, 0.4, "$\\pm 2$ sd of $y$: noise on top")
    band(ax, grid, mean - s_f, mean + s_f, BLUE, 0.65, "$\\pm 2$ sd of $f$")
    ax.plot(grid, mean, color=BLACK, label="mean")


def motorcycle_panel(ax, run, x, y, method, M, epochs):
    """A panel of figure 1: data, mean, bands of f and of y. Returns its row."""
    unit = y.std()
    grid = np.linspace(x.min() - 2, x.max() + 2, 300)[:, None]
    say = lambda epoch, value: run.tick(f"{method}: epoch {epoch}, objective {value:.5g}")
    fit = J.fit(standard(x), standard(y), method, M, beta_reg=1.0, epochs=epochs, seed=run.seed,
                callback=say)
    _, var_f = J.predict(fit, (grid - x.mean()) / x.std())
    mean, var = J.predict_y(fit, (grid - x.mean()) / x.std())
    mean_x, var_x = J.predict_y(fit, standard(x))
    sigma2 = math.exp(fit.params["ln_noise"])
    sigma_k = math.exp(fit.params["ln_theta"][-1] / 2) * unit
    sigma_obs = math.sqrt(sigma2) * unit
    noise = J.noise_fraction(var_x - sigma2, sigma2)
    nll = J.nll(standard(y), mean_x, var_x)
    bands = 2 * unit * np.sqrt(var_f), 2 * unit * np.sqrt(var)
    draw_two_bands(ax, grid, y.mean() + unit * mean, *bands)
    ax.plot(x, y, ".", color=ORANGE, ms=5, mec=BLACK, mew=0.4, label="data")
    Z = x.mean() + x.std() * fit.params["Z"]
    draw_inducing(ax, Z, "inducing inputs", height=0.03)
    ax.set(xlabel="time [ms]", ylabel="acceleration [g]", xlim=grid[[0, -1], 0])
    ax.set_title(f"{method}: $\\sigma_k={sigma_k:.0f}$ g, $\\sigma_{{obs}}={sigma_obs:.1f}$ g, "
                 f"noise {noise:.0%} of the variance, NLL {nll:.2f}")
    ax.margins(y=0.1)
    return {"method": method, "sigma_k [g]": sigma_k, "sigma_obs [g]": sigma_obs,
            "noise fraction": noise,
            "largest/smallest sd": math.sqrt(var_x.max() / var_x.min()),
            "NLL": nll, "RMSE [g]": J.rmse(standard(y), mean_x) * unit}


@figure("motorcycle.csv", M=20, epochs=(30, 1500, 10_000))
def J_fig1(run, M, epochs):
    """PPGPR follows noise that varies with its function uncertainty; SVGP can only call all of it
    noise."""
    if run.real:
        x, y = np.split(run.tables["motorcycle.csv"], 2, axis=1)
    else:
        x, y = motorcycle_like(run.rng)
    picture, axes = panels(2, 1, 7.2, 6.6, sharex=True, sharey=True)
    rows = [motorcycle_panel(ax, run, x, np.ravel(y), method, M, epochs)
            for ax, method in zip(axes[:, 0], ("SVGP", "PPGPR-Chol"))]
    below(picture, axes[0, 0], 5)
    k, share, ratio = (col(rows, name) for name in ("sigma_k [g]", "noise fraction",
                                                    "largest/smallest sd"))
    shows = "shows" if share[0] > 0.5 > share[1] and ratio[1] > 2 * ratio[0] else "does NOT show"
    smaller = "smaller" if k[0] < k[1] else "NOT smaller"
    return picture, rows, [
        f"The paper's point {shows}: most of SVGP's variance is noise (> 50 %), PPGPR's is not, "
        "and varies more (> x 2).",
        f"SVGP's sigma_k is {smaller} than PPGPR's; the paper: smaller."]


@experiment(N=(300, 3000, 20_000), n_test=(300, 2000, 20_000),
            hidden=([16, 4], [64, 32, 8], [256, 256, 128, 128, 64]), M=(10, 32, 1024),
            batch=(100, 100, 1000), epochs=(3, 20, 200),
            betas=([0.2], [0.05, 0.5], [0.05, 0.2, 0.5, 1.0]),
            drops=([0.1], [0.05, 0.15], [0.05, 0.1, 0.15, 0.2, 0.25]))
def city_run(run, city, N, n_test, betas, drops, **plan):
    """{method: (choice, z of the test rows, NLL, RMSE)} on one city; choices by NLL on N/4
    validation rows."""
    ends = [N, N + N // 4]
    X, y = taxi_like(run.rng, ends[1] + n_test, city)
    X, X_val, X_test = np.split((X - X[:N].mean(0)) / X[:N].std(0), ends)
    y, y_val, y_test = np.split((y - y[:N].mean(0)) / y[:N].std(0), ends)
    say = lambda text: run.tick(f"{city}: {text}")
    deep = lambda *which: networks.deep_gp(run.rng, X, y, *which, plan, say)
    found = {"SVGP+DKL": [("beta_reg 1", deep("SVGP", 1.0))],
             "PPGPR+DKL": [(f"beta_reg {b:g}", deep("PPGPR-MFD", b)) for b in betas],
             "MC dropout": []}
    for drop in drops:
        tau, predict = networks.dropout_net(run.rng, X, y, X_val, y_val, drop, plan, say)
        found["MC dropout"].append((f"p {drop:g}, tau {tau:g}", predict))
    out = {}
    for name, choices in found.items():
        choice, predict = min(choices, key=lambda c: J.nll(y_val, *c[1](X_val)))
        mean, var = predict(X_test)
        z = (y_test - mean) / np.sqrt(var)
        out[name] = choice, z, J.nll(y_test, mean, var), J.rmse(y_test, mean)
    return out


@figure()
def J_fig5(run):
    """PPGPR with a network in front is calibrated better than SVGP with one, no worse than MC
    dropout: CDF of z-scores."""
    grid = np.linspace(-4, 4, 401)
    picture, axes = panels(1, 3, 11, 3.9, sharey=True)
    rows = []
    for ax, city in zip(axes[0], CITIES):
        for name, (choice, scores, nll, rmse) in run.once(city_run, city).items():
            D = networks.kolmogorov(scores)
            rows.append({"data": city, "method": name, "chosen": choice, "NLL": nll, "RMSE": rmse,
                         "distance from Phi": D})
            style = look(name, label=f"{name}: {D:.3f}")
            ax.plot(grid, networks.z_score_cdf(scores, grid), **style)
        ax.plot(grid, R.norm_cdf(grid), color=BLACK, lw=1, label="ideal: normal CDF")
        ax.set(title=city, xlabel="$z=(y-\\mu_f)/\\sigma$", xlim=(-4, 4), ylim=(0, 1))
        ax.legend(loc="lower right", title="largest distance from ideal", prop={"size": 7},
                  title_fontsize=7)
    axes[0, 0].set_ylabel("share of test rows below $z$")
    D = {m: col(where(rows, method=m), "distance from Phi") for m in ("SVGP+DKL", "PPGPR+DKL",
                                                                      "MC dropout")}
    closer = lambda a, b: f"{a} than {b} in {np.sum(D[a] < D[b])}"
    return picture, rows, [
        f"Closer to ideal, of 3 cities: {closer('PPGPR+DKL', 'SVGP+DKL')}, "
        f"{closer('PPGPR+DKL', 'MC dropout')}, {closer('MC dropout', 'SVGP+DKL')}. The paper: "
        "PPGPR+DKL best overall, MC dropout better than SVGP+DKL or like it."]


DRAWS = {               # kernel -> theta of the draw, where the data end, M, rate
    "periodic": ((1.0, 0.2, 1.0), 0.5, 25, 0.01), "Matern52": ((0.1**2, 1.0), 1.0, 40, 0.02)}


def draw_fit(run, kernel, method, start, x, y, grid, epochs):
    """A row of a fit whose period, or lengthscale, starts at start, and mean, var of y on the grid.

    J.fit starts both at J.START: x is scaled instead, and with it what a step of Adam means for Z.
    """
    *_, M, rate = DRAWS[kernel]
    unit = start / J.START
    say = lambda epoch, value: run.tick(f"{kernel}, {method}: epoch {epoch}")
    fit = J.fit(x / unit, y, method, M, kernel, epochs=epochs, lr=rate, seed=run.seed, callback=say)
    mean, var = J.predict_y(fit, grid / unit)
    l2, *period, s2 = np.exp(fit.params["ln_theta"])
    l = math.sqrt(l2)
    row = {"kernel": kernel, "method": method, "start": start,
           "period": period[0] * unit if period else None, "l": l if period else l * unit,
           "sigma_k": math.sqrt(s2), "sigma_obs": math.exp(fit.params["ln_noise"] / 2),
           "objective": fit.history[-1]}
    return row, mean, var


@figure(noise=0.05, epochs=(10, 1000, 10_000), starts=[round(J.START, 3), 0.35, 0.12])
def J_fig10(run, noise, epochs, starts):
    """What exact GP, SVGP and PPGPR find of a function drawn from their prior, from the best of
    three starts: with a periodic kernel and with a Matern kernel."""
    grid = np.linspace(0, 1, 201)[:, None]
    picture, axes = panels(2, 3, 11, 5.6, sharex=True, sharey="row")
    rows = []
    found_by = {}
    for line, (kernel, (theta, end, *_)) in zip(axes, DRAWS.items()):
        K, _ = J.KERNELS[kernel](grid, grid, np.log(theta))
        f = R.cholesky(K + 1e-9 * np.eye(len(K)), "K") @ run.rng.standard_normal(len(K))
        x = grid[::2][grid[::2, 0] <= end]
        y = f[:2 * len(x):2] + noise * run.rng.standard_normal(len(x))
        asked = grid[:, 0] > end % 1                    # RMSE beyond end; everywhere if end is 1
        found_by[kernel] = []
        for ax, method in zip(line, ("exact", "SVGP", "PPGPR-Chol")):
            fits = [draw_fit(run, kernel, method, start, x, y, grid, epochs) for start in starts]
            for row, mean, _ in fits:
                row["RMSE"] = J.rmse(f[asked], mean[asked])
                rows.append(row)
            row, mean, var = min(fits, key=lambda fit: fit[0]["objective"])
            if row["RMSE"] < 0.2:
                found_by[kernel].append(method)
            draw_gp(ax, grid, mean, var, BLUE, "$y$")
            ax.plot(grid, f, color=BLACK, ls="--", lw=1, label="the function drawn")
            ax.plot(x, y, ".", color=RED, ms=3, label="training data")
            ax.axvspan(end, 1, color="0.93", zorder=0, label="no training data")
            found = f"$l={row['l']:.3f}$ (of 0.1)"
            if row["period"]:
                found = f"period {row['period']:.3f} (of 0.2)"
            ax.set(xlim=(0, 1), title=f"{method}: {found}, from {row['start']:g}", xlabel="$x$",
                   ylabel=WORDS[kernel])
    below(picture, axes[0, 0], 5)
    notes = []
    for start in starts:
        near = {kernel: sum(row["RMSE"] < 0.2 for row in where(rows, kernel=kernel, start=start))
                for kernel in DRAWS}
        notes.append(f"RMSE below 0.2 from {start:g}: periodic {near['periodic']} of 3, Matern "
                     f"{near['Matern52']} of 3.")
    for kernel, methods in found_by.items():
        notes.append(f"RMSE below 0.2 from the start of the lowest objective, {kernel}: "
                     f"{', '.join(methods) or 'none'}.")
    return picture, rows, [*notes, "The paper: all three extrapolate. The period is a hard search: "
                           "which optimum is found depends on the draw, and on rounding."]


# --- L: Liu et al. 2022 ---------------------------------------------------------------------------

RANGE = np.array([[0.0], [3**-0.5]])  # mean, deviation of x on [-1, 1], known before the stream
PRETRAINED = 10                       # rows that come before a stream: they set scale and start


def scaled(learner, X, y, eps=None):
    """X, y and eps, by default the goal's, in the units of a Learner's Posterior.

    eps counts deviations of the first rows.
    """
    middle, unit = beyond.stream.middle_and_unit(learner.target)
    eps = learner.settings.eps if eps is None else np.array(eps)
    X_s = (X - learner.input_scale[0]) / learner.input_scale[1]
    return X_s, (y - middle) / unit, eps * learner.units.low / unit


def true_risk(learner, state, laws):
    """Sum over rows of the expected 0-1 loss of a Posterior; by the laws of its rows (sine_stream).

    y is normal at a node, so that f - y is: the noise adds to the variance, and Phi gives the
    expectation.
    """
    nodes, weights, means, sd = (np.concatenate(part) for part in zip(*laws))
    X, means, eps = scaled(learner, nodes[:, None], means)
    mean, var = L.predict(state, X)
    _, unit = beyond.stream.middle_and_unit(learner.target)
    losses, _, _ = R.expected_01_loss(means, mean, var + (sd / unit) ** 2, eps)
    return weights @ losses


def rounds(X, y, first=PRETRAINED, batch=1, **start):
    """Of each batch after the first rows: its rows, the certified Learner before it, Q_i, the
    Learner after it, the posterior.

    Two States: P_i after the batch under its own kernel, and Q_i, which beyond.stream.step books:
    the same or P_i. start: of beyond.stream.begin.
    """
    learner = beyond.stream.begin(X[:first], y[:first], **start)
    for i in range(first, len(y), batch):
        rows = slice(i, i + batch)
        before = learner
        settings = learner.settings
        X_s, y_s, eps = scaled(before, X[rows], y[rows])
        posterior, Q, _ = beyond.stream.charged_update(
            before.posterior, X_s, y_s, before.ln_noise, eps, settings.loss, settings.M,
            before.ledger)
        learner = beyond.stream.step(before, X[rows], y[rows])
        yield rows, before, Q, learner, posterior


def follow(rng, n, order, say=lambda i: None, **options):
    """Sums after each step, (6, steps): rows, loss and true risk before learning, loss and true
    risk after, KL."""
    X, y, chance = sine_stream(rng, n, order)
    sums = []
    total = np.zeros(2)
    for rows, before, Q, after, _ in rounds(X, y, input_scale=RANGE, **options):
        laws = [chance(j) for j in range(n)[rows]]
        total += [true_risk(before, state, laws) for state in (before.posterior, Q)]
        ledger = after.ledger
        sums.append([ledger.rows, ledger.before, total[0], ledger.after, total[1], ledger.KL])
        say(rows.start)
    return np.transpose(sums)


@experiment(m=(120, 1000, 1000))
def certified_run(run, order, m):
    """Sums along a stream of the certified GP (begin, step), row by row, with the default
    Settings: see follow."""
    say = lambda i: run.tick(f"certified GP, {order}: row {i}")
    return follow(run.rng, PRETRAINED + m, order, say=say)


@figure(ms=([10, 40, 120], [29, 200, 1000], [29, 200, 1000]))
def L_fig1(run, ms):
    """The certificate of the mean one-step risk against the confidence: the paper's drawing, with
    numbers of the certified GP and a sharper constant."""
    sums = run.once(certified_run, "shuffled")
    rows = []
    picture, axes = panels(1, len(ms), 10.5, 3.9, sharey=True)
    for ax, m in zip(axes[0], ms):
        loss, risk = sums[1:3, m - 1]
        part = []
        for delta in np.geomspace(0.5, 0.001, 25):
            lam = L.best_lam(m, 0.0, delta)
            tuned = L.online_bound(loss, 0.0, m, lam, delta) / m
            mixture = beyond.certificates.certificate(loss, 0.0, m, delta=delta).bound
            part.append({"m": m, "confidence": 1 - delta, "lam tuned": lam,
                         "bound, tuned": min(tuned, 1.0), "bound, mixture": mixture,
                         "loss": loss / m, "true risk": risk / m, "delta": delta})
        for name in ("bound, tuned", "bound, mixture", "loss", "true risk"):
            curve(ax, part, "delta", name)
        ax.set(xscale="log", xlim=(0.5, 0.001), ylim=(0, 1.02), title=f"$m={m}$ shuffled rows",
               xlabel="confidence $1-\\delta$", ylabel="0-1 loss per row")
        ax.set_xticks([0.5, 0.1, 0.01, 0.001], ["0.5", "0.9", "0.99", "0.999"])
        ax.minorticks_off()
        rows += part
    below(picture, axes[0, 0], 4)
    best = np.minimum(col(rows, "bound, tuned"), col(rows, "bound, mixture"))
    failed = np.sum(best < col(rows, "true risk"))
    return picture, rows, [
        f"A bound is below the true risk at {failed} of {len(rows)} points."]


ROUND = (               # the boxes of one round: head, text, colour
    ("prior $P_t$", "from the rows\nbefore $t$ alone", SKY),
    ("row $z_t$ arrives", "the loss of $P_t$\ncounts in (11)", ORANGE),
    ("update", "loss and KL of $Q_t$\ncount in (10)", BLUE),
    ("certificate", "holds at\nevery $t$", GREEN),
    ("kernel moves", "by past rows,\nat no cost", PURPLE),
)


def draw_loop(ax):
    """The boxes and arrows of one round."""
    arrow = dict(arrowstyle="-|>", color="0.25", lw=1.6, shrinkA=0, shrinkB=0)
    at = np.linspace(0.085, 0.915, 5)
    for x, (head, text, colour) in zip(at, ROUND):
        shape = dict(boxstyle="round,pad=0.004,rounding_size=0.012", mutation_aspect=4, fc=colour,
                     alpha=0.18, ec="none")
        ax.add_patch(matplotlib.patches.FancyBboxPatch((x - 0.08, 0.4), 0.16, 0.56, **shape))
        ax.text(x, 0.87, head, ha="center", va="center", fontsize=10, weight="bold")
        ax.text(x, 0.6, text, ha="center", va="center", fontsize=10)
    for a, b in zip(at, at[1:]):
        ax.annotate("", (b - 0.086, 0.68), (a + 0.086, 0.68), arrowprops=arrow)
    ax.plot([at[-1], at[-1], at[0]], [0.37, 0.2, 0.2], color="0.25", lw=1.6,
            solid_capstyle="butt")
    ax.annotate("", (at[0], 0.37), (at[0], 0.2), arrowprops=arrow)
    ax.text(0.5, 0.16, "$P_{t+1}$: $Q_t$ carried over to the new kernel, in the new units",
            ha="center", va="top", fontsize=9)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    ax.axis("off")


def draw_round(ax, X, y, i, before, Q):
    """A panel of figure 2: prior and posterior of round i, the rows before and the row itself.

    Returns Q's mean on a grid.
    """
    grid = np.linspace(-1, 1, 161)[:, None]
    middle, unit = beyond.stream.middle_and_unit(before.target)
    mean, var = L.predict(Q, scaled(before, grid, 0.0)[0])
    mean = middle + unit * mean
    prior_mean, prior_var, _ = beyond.stream.forecast(before, grid)
    draw_gp(ax, grid, prior_mean, prior_var, RED, "$f$ by the prior $P_t$", filled=False)
    draw_gp(ax, grid, mean, unit**2 * var, BLUE, "$f$ by the posterior $Q_t$")
    ax.plot(X[:i], y[:i], ".", color="0.35", ms=4, label="rows before")
    ax.plot(X[i], y[i], "*", color=ORANGE, ms=13, mec=BLACK, mew=0.6, label="row $z_t$")
    Z = Q.Z * before.input_scale[1] + before.input_scale[0]
    draw_inducing(ax, Z, "inducing inputs of $Q_t$")
    ax.set(xlim=(-1, 1), ylim=(-3, 3), xlabel="input $x$", ylabel="target $y$",
           xticks=(-0.5, 0, 0.5))
    ax.label_outer()
    return grid, mean


def round_row(i, X, y, before, Q, after, moves):
    """A row of L_fig2's table: what round i counted, what is certified, what moved."""
    added = beyond.stream.Ledger(*np.subtract(after.ledger, before.ledger))
    six = beyond.stream.certificates(after)
    return {
        "t": i - PRETRAINED + 1, "x_t": X[i, 0], "y_t": y[i], "loss before": added.before,
        "counted": added.after, "KL counted": added.KL, "KL": L.process_kl(Q, before.posterior),
        "mean loss": six.draw.loss, "bound (11)": six.draw.bound,
        "bound (10)": six.training.bound, "M": len(Q.Z), "mean of P_t+1 moves by": moves,
        "l^2": math.exp(before.posterior.ln_theta[0]),
        "l^2 next": math.exp(after.posterior.ln_theta[0]),
        "noise": math.exp(before.ln_noise), "noise next": math.exp(after.ln_noise)}


@figure(n=(24, 36, 36))
def L_fig2(run, n):
    """The loop of the certified GP, and three of its rounds: predict, take the row, learn, then
    move the kernel."""
    X, y, _ = sine_stream(run.rng, n, "time")
    rows = []
    picture = Figure((11, 6.2), layout="constrained")
    shown = range(n - 12, n - 9)
    axes = picture.subplot_mosaic([["loop"] * 3, list(shown)], height_ratios=(1.15, 2))
    draw_loop(axes["loop"])
    for at, before, _, after, Q in rounds(X[:n - 9], y[:n - 9], input_scale=RANGE):
        i = at.start
        if i not in shown:
            continue
        grid, mean = draw_round(axes[i], X, y, i, before, Q)
        next_mean, *_ = beyond.stream.forecast(after, grid)
        row = round_row(i, X, y, before, Q, after, np.abs(next_mean - mean).max())
        rows.append(row)
        one_step, training = (own_data.command_line.bound_text(row[f"bound ({eq})"])
                              for eq in (11, 10))
        kept = "" if row["KL counted"] else " (so $P_t$ counts)"
        axes[i].set_title(
            f"$t={row['t']}$: loss {row['loss before']:.2f}, KL {row['KL']:.2f}{kept}\n"
            f"bounds (11) {one_step}, (10) {training}", fontsize=10)
    below(picture, axes[shown[0]], 4)
    moved = col(rows, "mean of P_t+1 moves by").max()
    return picture, rows, [f"From Q_t to P_t+1 the mean moves by at most {moved:.2g}."]


L_METHODS = ("O-SGPR", "O-SVGP", "WISKI", "O-PACGP")
L_EXTRA = ("O-PACGP, (16) as printed", "O-SGPR, new rows twice", "O-PACGP, certified",
           "exact GP, retrained", "mean so far", "nearest row seen", "0, mean of all rows")
VARIANTS_OF = {         # what L.stream calls a method, and its options
    "O-PACGP, (16) as printed": ("O-PACGP", dict(loss="exp-printed")),
    "O-SGPR, new rows twice": ("O-SGPR", dict(batch=2)),
    "exact GP, retrained": ("exact", dict(batch=10)),
}
SIN_COS = {"sin": np.sin, "cos": np.cos}
GRID = np.linspace(-1.25, 1.25, 251)[:, None]
RATE_STUDY = dict(
    N=(39, 39, 251), times=([10, 20, 30], [10, 20, 30], [10, 20, 30, 100, 200]),
    real=dict(N=39, times=[10, 20, 30]))


def constant_predictor(values):
    """The mean and variance of these values, wherever."""
    return lambda X_new: np.full((2, len(X_new)), [[values.mean()], [values.var()]])


def nearest_predictor(x, y):
    """The target of the nearest row seen, in time order the last value; no variance."""
    def predict(X_new):
        nearest = y[np.argmin(np.abs(X_new - x), axis=1)]
        return nearest, np.full(len(X_new), np.nan)
    return predict


def certified_predictor(learner):
    """mean, var of f in the target's own units."""
    return lambda X_new: beyond.stream.forecast(learner, X_new)[:2]


def predictors_at(times, X, y, method, Q=0, begin={}, **options):
    """Functions X_new -> mean, variance by what a method has learnt from so many rows; what was
    learnt last.

    Settings of L Sec. 5.1; Q: components of the kernel, 0 for SE; begin, options: of
    beyond.stream.begin, if certified, and of L.stream.
    """
    if "certified" in method:
        some = slice(times[-1] + 1)
        learners = {rows.start: before for rows, before, *_ in rounds(X[some], y[some], **begin)}
        return [certified_predictor(learners[t]) for t in times], learners[times[-1]]
    if method == "nearest row seen":
        return [nearest_predictor(X[:t, 0], y[:t]) for t in times], None
    if method == "mean so far":
        return [constant_predictor(y[:t]) for t in times], None
    if method == "last value":
        return [constant_predictor(y[t - 1:t]) for t in times], None
    if method == "0, mean of all rows":
        return [constant_predictor(y) for t in times], None
    if method == "O-SGPR, new rows twice":
        at = np.arange(len(y))
        twice = np.repeat(at, np.where(at < PRETRAINED, 1, 2))
        times, X, y = [2 * t - PRETRAINED for t in times], X[twice], y[twice]
    method, more = VARIANTS_OF.get(method, (method, {}))
    Z = np.linspace(-1, 1, 12)[:, None]
    ln_theta = None
    if Q:
        ln_theta = np.log([[0.25 * 2**q, 1.0, 1 / Q] for q in range(Q)])
    stages = range(PRETRAINED, times[-1] + 1, more.get("batch", 1))
    kernel = L.spectral_mixture if Q else R.se_kernel
    snapshots = L.stream(X, y, method, Z, ln_theta, kernel=kernel, **options, **more)
    found = dict(zip(stages, snapshots))
    return [found[t].predict for t in times], found[times[-1]]


def drawn(snapshot):
    """What a panel needs of a Snapshot: mean and variance of f on GRID, and Z; none for what is no
    Snapshot."""
    if hasattr(snapshot, "p") and "Z" in snapshot.p:
        return (*snapshot.predict(GRID), snapshot.p["Z"][:, 0])


def wave_row(name, order, Q, i, t, snapshot, x, y, f):
    """A row of L_fig3's table: errors after t rows x (N, 1), y (N,) of the function f (N,)."""
    mean, var = snapshot.predict(x)
    squares = (y - mean) ** 2
    off = mean - f
    inside = np.abs(off) <= 2 * np.sqrt(var)
    parts = {"seen": slice(t), "to come": slice(t, None)}
    row = {"data": name, "order": order, "kernel": f"mixture of {Q}" if Q else "SE", "noise": i,
           "train MSE": squares[:t].mean(), "test MSE": squares[t:].mean(),
           "mean sd of f, rows to come": np.sqrt(var[t:]).mean(),
           "Z beyond the picture": int(np.sum(np.abs(snapshot.p["Z"]) > 1.25))}
    for part, rows in parts.items():
        row[f"RMSE to f, {part}"] = math.sqrt(np.mean(off[rows] ** 2))
    for part, rows in parts.items():
        row[f"f in band, {part}"] = np.mean(inside[rows])
    return row


@experiment(t=(20, 60, 60), pretrain=(10, 60, 400))
def wave_run(run, name, i, t, pretrain):
    """[row, x, y, drawn] for both orders and kernels, noise number i; settings of L Sec. 5.1."""
    x = np.linspace(-1, 1, 100)[:, None]
    f = SIN_COS[name](4 * x[:, 0])
    shuffle = run.rng.permutation(len(x))
    y = f + SD * run.rng.standard_normal(len(x))
    found = []
    for order, at in (("time", np.arange(len(x))), ("shuffled", shuffle)):
        for Q in (0, 2):
            run.tick(f"{name}, {order} order, Q = {Q}, noise {i + 1}")
            _, snapshot = predictors_at([t], x[at], y[at], "O-PACGP", Q, pretrain=pretrain)
            row = wave_row(name, order, Q, i, t, snapshot, x[at], y[at], f[at])
            found.append([row, x[at], y[at], drawn(snapshot)])
    return found


def stream_panel(ax, state, x, y, t):
    """A panel of figures 3-5: predictions, their inducing inputs, the first t rows and those to
    come."""
    mean, var, Z = state
    draw_gp(ax, GRID, mean, var, BLUE, "$f$, without noise")
    ax.plot(x[:t], y[:t], "o", color=BLACK, ms=3, label="rows seen")
    ax.plot(x[t:], y[t:], "o", color=BLACK, mfc="white", ms=4, mew=0.8, label="rows to come")
    draw_inducing(ax, Z, "inducing inputs", "x", color=RED, ms=5)
    ax.set_xlim(-1.25, 1.25)


@figure(draws=(1, 2, 20), t=(20, 60, 60))
def L_fig3(run, draws, t):
    """O-PACGP as published on a noisy wave: at rows seen and at rows to come, in time order and
    shuffled."""
    rows = []
    picture, axes = panels(2, 2, 9, 6, sharex=True, sharey=True)
    at = np.linspace(-1, 1, 201)
    for line, (name, function) in zip(axes, SIN_COS.items()):
        found = [part for i in range(draws) for part in run.once(wave_run, name, i)]
        for row, x, y, state in found:
            rows.append(row)
            if row["kernel"] == "SE" or row["noise"]:
                continue
            order = row["order"]
            ax = line[int(order == "shuffled")]
            stream_panel(ax, state, x, y, t)
            ax.plot(at, function(4 * at), color=ORANGE, ls="--", label="true function")
            seen, to_come = (row[f"RMSE to f, {part}"] for part in ("seen", "to come"))
            ax.set_title(f"{WORDS[name]}, {WORDS[order]}: RMSE to the function {seen:.2f} seen, "
                         f"{to_come:.2f} to come", fontsize=8)
    for ax in axes.flat:
        ax.set(xlabel="input $x$", ylabel="target $y$", ylim=(-2.6, 2.6))
    below(picture, axes[0, 0], 6)
    seen, to_come = (col(rows, f"f in band, {part}").mean() for part in ("seen", "to come"))
    notes = ["The true function is inside the band, which should hold 95 %, at "
             f"{seen:.0%} of the rows seen and {to_come:.0%} of those to come."]
    for order in ("time", "shuffled"):
        part = where(rows, order=order)
        seen, to_come = (col(part, f"RMSE to f, {name}") for name in ("seen", "to come"))
        notes.append(f"{WORDS[order]}: RMSE to the function {min(seen):.2f} to {max(seen):.2f} at "
                     f"rows seen, {min(to_come):.2f} to {max(to_come):.2f} at rows to come.")
    return picture, rows, notes


def rate_rows(run, order, i, N):
    """X (N, 1) on [-1, 1], y (N,), standardised on all N rows (divisor n - 1), as they arrive.

    Walk or shuffle number i.
    """
    if run.real:
        rate = run.tables["fx2007.csv"][:N, 3]
    else:
        rate = rate_like(run.seeded("rate_like", i), N)
    rows = np.arange(N)
    if order == "shuffled":
        rows = run.seeded("shuffle", i).permutation(N)
    y = (rate - rate.mean()) / rate.std(ddof=1)
    return np.linspace(-1, 1, N)[rows, None], y[rows]


RATE_REAL = RATE_STUDY["real"] | dict(pretrain=(10, 400, 400))


@experiment(pretrain=(10, 60, 400), **RATE_STUDY | dict(real=RATE_REAL))
def rate_run(run, order, method, Q, i, pretrain, N, times):
    """Run number i: (times, 3) training MSE, test MSE, exp loss (eps = 0.1) on the test rows;
    drawn; risk bound and loss."""
    X, y = rate_rows(run, order, i, N)
    run.tick(f"{order} order, {method}, run {i + 1}")
    if method == "O-SVGP":
        pretrain = min(2 * pretrain, 400)
    errors = []
    predictors, last = predictors_at(times, X, y, method, Q, pretrain=pretrain)
    for t, predict in zip(times, predictors):
        mean, var = predict(X)
        squares = (y - mean) ** 2
        seen = math.nan if method == "nearest row seen" else squares[:t].mean()
        loss = math.nan
        if not np.isnan(var).any():
            losses, _, _ = R.expected_exp_loss(y[t:], mean[t:], var[t:], 0.1)
            loss = np.mean(losses)
        errors.append([seen, squares[t:].mean(), loss])
    certified = None
    if isinstance(last, beyond.stream.Learner):
        certified = beyond.stream.certificates(last).draw[:2]
    return np.array(errors), drawn(last), certified


def rate_figure(order):
    """Figures 4 and 5: a panel per method, the series after the last of times."""
    def made(run, N, times):
        x, y = rate_rows(run, order, 0, N)
        t = times[-1]
        rows = []
        picture, axes = panels(1, 4, 13, 3.6, sharey=True)
        ylim = (y.min() + y.max()) / 2 + np.ptp(y) * np.array([-1, 1])
        for ax, method in zip(axes[0], L_METHODS):
            for Q in (0, 2):
                errors, state, _ = run.once(rate_run, order, method, Q, 0)
                mean, _, Z = state
                seen, to_come, _ = errors[-1]
                rows.append({"method": method, "kernel": f"mixture of {Q}" if Q else "SE",
                             "train MSE": seen, "test MSE": to_come, "least Z": Z.min(),
                             "largest Z": Z.max(), "range of the mean": np.ptp(mean)})
            stream_panel(ax, state, x, y, t)
            ax.set(title=f"{method}: MSE {seen:.2f} seen, {to_come:.2f} to come",
                   xlabel="time, scaled to $[-1,1]$", ylim=ylim)
        axes[0, 0].set_ylabel("rate [sd]")
        below(picture, axes[0, 0], 5)
        best = min(rows, key=lambda row: row["test MSE"])
        plain = np.mean((y[t:] - y[:t].mean()) ** 2)
        notes = [f"Least test MSE here: {best['method']}, {best['kernel']} "
                 f"({best['test MSE']:.3g}); the mean of the rows seen has {plain:.3g}. One run: "
                 "see L_table2 for the spread."]
        flat = [f"{row['method']} ({row['kernel']})" for row in rows
                if row["range of the mean"] < 0.1]
        if flat:
            notes.append("Nothing learnt but noise (the mean moves by less than 0.1 sd): "
                         f"{', '.join(flat)}.")
        return picture, rows, notes
    return made


for name, order, message in (
        ("L_fig4", "time", "Four online GPs on a daily rate in time order: "
                           "the rows to come lie beyond those seen."),
        ("L_fig5", "shuffled", "Four online GPs on the shuffled daily rate: "
                               "the rows to come lie among those seen.")):
    made = rate_figure(order)
    made.__name__, made.__doc__ = name, message
    figure("fx2007.csv", **RATE_STUDY)(made)


OBJECTIVES = (          # method, what it minimises, where, equations, certificate, operations a row
    ("O-SGPR",
     "KL(q_new || p_hat), q_new the best: E ln 1/p(y_new | f) + KL(q_new || q_old)",
     (L.free_energy, L.absorb), "(5)-(8)", "none", "M^3"),
    ("O-SVGP",
     "the same, q_new = N(m, L_S L_S^T) searched by gradients",
     (L.free_energy, L.marginals_and_kl), "(5)-(8)", "none", "M^3"),
    ("WISKI",
     "ln 1/p(y | X, theta) of all rows so far, f interpolated on a grid of M points",
     (L.grid_nll, L.grid_add), "(4)", "none", "M^3"),
    ("O-PACGP",
     "sum E loss(Q_i+1) + KL(Q_i+1 || P_i)/lam + lam n K^2/2 + ln(1/delta)/lam",
     (L.online_objective, L.kl_to_old), "(12)-(16), (18)-(20)",
     "none that holds: the kernel moves inside the step; the constant is 1/2 a row", "M^3"),
    ("O-PACGP, certified",
     "(4) of the last 50 rows, (8) or (12), once loss and KL are counted under the kernel of P_i",
     (beyond.stream.step, beyond.stream.certificates), "(9)-(13), (17)",
     "yes: of the risk on the rows that came, given their past", "M^3"),
    ("OVC",
     "nothing after pretraining: each row becomes an inducing input",
     (L.extended, L.update), "(6), (7)", "none", "(M + t)^3"),
    ("exact",
     "ln 1/p(y | X, theta) of all rows so far",
     (L.exact_nll, L.exact_predict), "(3), (4)", "none", "t^3 for each evaluation"),
)


def held(thing, d=1):
    """How many numbers a state, a dict, a tuple of such or a range of rows (d inputs and a target
    each) is made of."""
    if isinstance(thing, slice):
        return (thing.stop - thing.start) * (d + 1)
    if isinstance(thing, dict):
        thing = tuple(thing.values())
    if isinstance(thing, tuple):
        return sum(held(part, d) for part in thing)
    return 0 if callable(thing) else np.size(thing)


@figure(M=12)
def L_table1(run, M):
    """What each online GP minimises, where that is in online.py, and what comes with it."""
    y = rate_like(run.rng)
    X = np.linspace(-1, 1, len(y))[:, None]
    y = (y - y.mean()) / y.std(ddof=1)
    Z = np.linspace(-1, 1, M)[:, None]
    learners = rounds(X, y, settings=beyond.stream.Settings(M=M), pretrain=1)
    (_, first, *_), *_, (_, _, _, last, _) = learners
    ends = {"O-PACGP, certified": (first, last)}
    for method in (*L_METHODS, "OVC", "exact"):
        first, *_, last = L.stream(X, y, method, Z, pretrain=1)
        ends[method] = first.held, last.held
    rows = []
    for method, what, functions, equations, certificate, cost in OBJECTIVES:
        numbers = " / ".join(str(held(end)) for end in ends[method])
        rows.append({"method": method, "minimised at each batch": what,
                     "in online.py": ", ".join(f.__name__ for f in functions),
                     "L Eq.": equations, "certificate": certificate,
                     "numbers held after 10 / 39 rows": numbers,
                     "operations a row, t rows seen": cost})
    return None, rows, []


TABLE_REAL = RATE_STUDY["real"] | dict(runs=(2, 50, 50), Qs=([], [2], [1, 2, 4]))


@figure("fx2007.csv", runs=(1, 10, 50), Qs=([], [], [1, 2, 4]),
        **RATE_STUDY | dict(real=TABLE_REAL))
def L_table2(run, runs, Qs, N, times):
    """Training and test MSE of the four methods and of others as rows arrive, in both orders; +-
    the deviation of a run."""
    rows = []
    paper = published(run, "L_table2", "data", "method")
    found = {}
    methods = [(method, Q) for Q in [0, *Qs] for method in L_METHODS]
    methods += [(method, 0) for method in L_EXTRA]
    names = [f"t = {t}, {part}" for t in times for part in ("train", "test")]
    for order in ("time", "shuffled"):
        n = 1 if run.real and order == "time" else runs
        for method, Q in methods:
            each = [run.once(rate_run, order, method, Q, i) for i in range(n)]
            found[order, method, Q] = each
            values = np.array([errors[:, :2].ravel() for errors, *_ in each])
            spread = np.full(values.shape[1], math.nan)
            if n > 1:
                spread = values.std(0, ddof=1)
            head = {"order": order, "method": f"{method}, mixture of {Q}" if Q else method}
            ours = dict(zip(names, zip(values.mean(0), spread)))
            rows.append(head | {"": "ours"} | ours)
            theirs = paper.get((order, method))
            if theirs is None:
                continue
            rows.append({"": "the paper"} | {name: theirs[name] for name in names
                                             if name in theirs})
            if n > 1:
                ends = np.quantile(values, [0.05, 0.95], axis=0)
                inside = {name: "yes" if low <= float(theirs[name]) <= high else "NO"
                          for name, low, high in zip(names, *ends)}
                rows.append({"": "90 %"} | inside)
    picture = dot_table(run, rows, names, "order", "method")
    return picture, rows, rate_notes(found, rows, times)


PAIRS = (               # of methods on the same rows, and what tells them apart
    ("O-PACGP", "O-SGPR", "the objective of the single steps, (12) or (8)"),
    ("O-PACGP, (16) as printed", "O-PACGP", "(16) with sigma for sigma^2"),
    ("O-SGPR, new rows twice", "O-SGPR",
     "each new row handed over twice: a stand-in for the authors' step"),
)


def rate_notes(found, rows, times):
    """Pairs of methods on the same rows, and what the exp loss and the certificate come to."""
    notes = []
    orders = ("time", "shuffled")

    def values(order, method, j):
        return np.array([errors[-1, j] for errors, *_ in found[order, method, 0]])
    for first, second, what in PAIRS:
        said = []
        for order in orders:
            gap = values(order, first, 1) - values(order, second, 1)
            said.append(f"{cell(mean_se(gap[:, None])[0])} ({order})")
        notes.append(f"{first} minus {second} ({what}): test MSE at t = {times[-1]} "
                     f"{' and '.join(said)}.")
    time, shuffled = (values(order, "O-PACGP", 2).mean() for order in orders)
    notes.append(f"The exp loss of O-PACGP for a row to come is {time:.2f} (time) and "
                 f"{shuffled:.2f} (shuffled), of at most 1; with lam = 1 the constant of (12) adds "
                 "1/2 a row.")
    time, shuffled = (np.mean([pair for *_, pair in found[order, "O-PACGP, certified", 0]], 0)
                      for order in orders)
    notes.append("O-PACGP, certified: its certificate of the one-step risk is "
                 f"{time[0]:.2f} (time) and {shuffled[0]:.2f} (shuffled), its mean loss "
                 f"{time[1]:.2f} and {shuffled[1]:.2f}.")
    verdicts = [verdict for row in rows if row.get("") == "90 %"
                for name, verdict in row.items() if name]
    if verdicts:
        notes.append(f"{verdicts.count('yes')} of {len(verdicts)} of the paper's errors lie in "
                     "the central 90 % of our shuffles.")
    return notes


if __name__ == "__main__":
    from figures import main      # by name: the studies register there, not in __main__
    sys.exit(main())
