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
settings they were made at. A table makes NAME.txt and NAME.md, which is the same as Markdown.

This file is the command. The figures stand by paper in figures_of/R.py, J.py and L.py, those of no
paper in beyond/studies.py. A figure is one function `NAME(run, **settings) -> (picture, rows,
notes)` with @figure above it. Its docstring is its message; how it is made stands in
docs/figures.md, and from there in its text. Its settings are declared as (quick, default, full), or
as one value for all sizes; rows are dicts, from which curves and text are made; notes are sentences
that are computed. What takes long is an @experiment, asked for by run.once: computed once, and kept
on disk for --resume. Names are of R = Reeb et al. 2018, J = Jankowiak et al. 2020 and L = Liu et
al. 2022, by their number in the paper; generated data that imitate a data set end in _like.
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
import difflib
import hashlib
import pathlib
import pickle
import re
import sys
import textwrap
import time
import zlib

import matplotlib
import matplotlib.image
import numpy as np
import numpy.random             # now: its import swallows a KeyboardInterrupt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import beyond.studies                                # noqa: F401 (each registers its figures)
import figures_of.J                                  # noqa: F401
import figures_of.L                                  # noqa: F401
import figures_of.R                                  # noqa: F401
import own_data.command_line
import own_data.tables
from figures_of.shared import FIGURES, cell

SIZES = ("quick", "default", "full")
HERE = pathlib.Path(__file__).resolve().parent
ROOMS = (".", "figures_of", "beyond", "own_data")    # whose Python files decide what is made
PAGE = HERE / "docs" / "figures.md"             # how each figure is made, see explained()
FILES = {               # file in --data -> its shape, to notice a truncated one
    "snelson.csv": (200, 2), "boston.csv": (506, 14), "pol.csv.gz": (15000, 27),
    "kin40k.csv.gz": (40000, 9), "sarcos_test.csv.gz": (4449, 28), "bike.csv.gz": (17379, 18),
    "motorcycle.csv": (133, 2), "fx2007.csv": (251, 13)}
STYLE = {
    "figure.dpi": 120, "font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9,
    "legend.fontsize": 8, "lines.linewidth": 1.4, "axes.grid": True, "axes.axisbelow": True,
    "grid.alpha": 0.3, "legend.framealpha": 0.85}


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
    if not path.exists():
        raise ValueError(f"cannot read {path}: docs/real-data.md says where it comes from")
    table = own_data.tables.read_table(path)
    shape = FILES[path.name]
    if table.dropped or table.values.shape != shape:
        raise ValueError(f"{path} must have shape {shape} and no gaps: is it complete?")
    return table.values


def explained(name):
    """The paragraphs of docs/figures.md on how a figure or an experiment is made, if any."""
    section = r"^### ([^\n]+)\n\n(?:<img[^\n]+\n\n)*(.+?)\n(?:\n|\Z)"
    found = re.findall(section, PAGE.read_text(), re.M | re.S)
    return [paragraph for names, paragraph in found if name in names.split(", ")]


def expected_seconds():
    """{name: seconds} of the default size, from the table of docs/figures.md."""
    rows = re.findall(r"^\| \[(\w+)\].*? \| ([\d.]+) \|", PAGE.read_text(), re.M)
    return {name: float(seconds) for name, seconds in rows}


def settings_of(f, run, used):
    """Lines on the run and on each function that has settings."""
    about = f"size {run.size}, seed {run.seed}"
    if f.drawn:
        real = run.real and f.files
        about += ", the papers' data sets" if real else ", generated data"
    lines = [about]
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
    """Finding, message, settings, how experiments are made, a table, notes; perhaps as Markdown."""
    about = []
    for name, (message, _) in used.items():
        about += [message, *explained(name)]
    settings = ["- " * markdown + line for line in settings_of(f, run, used)]
    parts = [f"{f.head}. {notes[0]}", about[0], "\n".join(settings), *about[1:]]
    parts += [table_of(rows, markdown), *("\n".join(f"- {note}" for note in notes[1:]),)]
    return "\n\n".join(filter(None, parts)) + "\n"


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


def save_png(path, picture, f, run, used, finding):
    """A picture with the finding above it, the message and the settings below."""
    width = picture.get_size_inches()[0]
    above = strip(width, f"{f.head}. {finding}", 12, 9.5, weight="bold")
    text = f"{f.__doc__} {'; '.join(settings_of(f, run, used))}"
    below = strip(width, text, 19.5, 6.5, color="0.35")
    whole = np.vstack([above, pixels(picture), below])
    matplotlib.image.imsave(path, whole, metadata={"Software": None})


def save_gif(path, pictures):
    """An animation, 0.4 s a frame and 5 s of the last one, once."""
    from PIL import Image                           # comes with matplotlib
    images = [Image.fromarray(pixels(picture)) for picture in pictures]
    palette = dict(palette=Image.Palette.ADAPTIVE, colors=64)
    first, *more = [image.convert("P", **palette) for image in images]
    duration = [400] * len(more) + [5000]
    first.save(path, save_all=True, append_images=more, duration=duration)


def make(name, run, out):
    """Makes one figure or table in out. Returns its rows."""
    f = FIGURES[name]
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        (picture, rows, notes), used = run.do(f, (name,))
        if isinstance(picture, list):               # the frames of an animation
            save_gif(out / f"{name}.gif", picture)
        elif picture:
            save_png(out / f"{name}.png", picture, f, run, used, notes[0])
    if "_table" in name:
        text = text_of(f, run, used, rows, notes, markdown=True)
        (out / f"{name}.md").write_text(text)
    (out / f"{name}.txt").write_text(text_of(f, run, used, rows, notes))
    return rows


def in_order():
    """All names: the papers' figures, then their tables, R, J, L; then the studies."""
    def place(name):
        found = re.fullmatch(r"([RJL])_(fig|table)(\d+)", name)
        return ("RJL".index(found[1]), found[2], int(found[3])) if found else (3,)
    return sorted(FIGURES, key=place)


def papers():
    """Names of the figures and tables of the papers, in order."""
    return [name for name in in_order() if re.match(r"[RJL]_(fig|table)", name)]


def named(wanted):
    """Names that are `wanted`, or begin so: of the papers' or, where there is none, of studies."""
    if wanted in FIGURES:
        return [wanted]
    for names in (papers(), in_order()):
        hits = [name for name in names if name.startswith(wanted)]
        if hits:
            return hits
    lower = {name.lower(): name for name in FIGURES}
    near = difflib.get_close_matches(wanted.lower().removesuffix("_real"), lower, 3)
    if near:
        meant = ", ".join(lower[name] for name in near)
        raise ValueError(f"no figure is called {wanted!r}, or begins so; did you mean {meant}?")
    names = textwrap.indent(textwrap.fill(", ".join(in_order()), 90), "  ")
    raise ValueError(f"no figure is called {wanted!r}, or begins so; there are\n{names}")


def select(wanted):
    """Names in order, for full names or their beginnings; for none the papers'."""
    chosen = [name for one in wanted for name in named(one)] if wanted else papers()
    return [name for name in in_order() if name in chosen]


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
    """Makes figures one after the other, until SIGINT or SIGTERM: KeyboardInterrupt."""
    heard = []

    def interrupt(*_):
        heard.append(True)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    for name in names:
        start = time.monotonic()
        make(name, run, out)
        print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
        if heard:                       # and lost: in the callback of a weak reference, say
            raise KeyboardInterrupt


def print_list(names):
    """A line a figure: name, expected seconds, what it shows."""
    seconds = expected_seconds()
    try:
        for name in names:
            mark = "" if name in papers() else " [beyond the papers]"
            print(f"{name:<14} {seconds.get(name, 0):5.0f} s  {FIGURES[name].__doc__}{mark}")
        sys.stdout.flush()
    except BrokenPipeError:                         # nobody reads on, as after `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(argv=None):
    """Makes what the command line names.

    Returns the exit status: 0, 2 for wrong arguments or data or a file that cannot be written, 130
    when interrupted.
    """
    args = arguments(argv)
    try:
        if args.list:
            print_list(select(args.names or FIGURES))
            return 0
        names, run = prepare(args)
        make_all(names, run, args.out)
    except (ValueError, OSError) as err:
        print(f"error: {err}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\ninterrupted: what is finished is in {args.out}; --resume takes its experiments "
              "from there", file=sys.stderr)
        return 130
    print(f"{len(names)} figures and tables, with their numbers (.txt), are in "
          f"{args.out.resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
