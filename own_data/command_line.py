"""The program: trains a model on a table, prints its certificate or scores, and predicts.

`args` are the options, parsed: a Namespace with an attribute per option, None for one that is not
given. `model` is a CertifiedGP, a PredictiveGP or a StreamGP. `names` are those of a table's
columns.
"""
import argparse
import contextlib
import csv
import io
import itertools
import json
import os
import shlex
import sys
import textwrap
import warnings
import zlib
from dataclasses import fields
from functools import partial

import numpy as np

from pacgp_ref import __version__, check_count
from beyond.blocks import threads
from own_data.certify import CertifiedGP
from own_data.copying import copied
from own_data.follow import StreamGP
from own_data.models import columns, few, listed, many, write_file
from own_data.score import PredictiveGP
from own_data.tables import CLOCK, PIPE, Refused, chosen, lines_of, read_rows, read_table

KINDS = {                      # verb -> model, and what it is for
    "certify": (CertifiedGP, "a GP that states at most how often it misses by more than eps "
                             "(Reeb et al. 2018)"),
    "score": (PredictiveGP, "predictive densities, compared on held-out rows (Jankowiak et al. "
                            "2020)"),
    "follow": (StreamGP, "a GP of a stream, certified at every row (Liu et al. 2022)")}
SHARED = {                     # option of all verbs but copy -> keywords of add_argument
    "target": dict(help="name or number (from 0) of the target's column; default: the last"),
    "inputs": dict(help="A,B: names or numbers of the input columns; default: all others",
                   type=listed),
    "drop": dict(help="A,B: columns that are not used; they may hold anything", type=listed),
    "decimal": dict(help="decimal mark of the numbers (.)", choices=[".", ","]),
    "na": dict(help="A,B: cells that are missing, beside empty ones, NA, N/A, NaN, None, null; "
                    "COLUMN=A: in that column alone", type=listed),
    "skip": dict(help="lines above the table, comments apart (0)", type=int),
    "predict": dict(help="a table with the same input columns: predictions of its rows, as CSV"),
    "out": dict(help="where --predict writes (-, standard output); of a stream: a line for each "
                     "row"),
    "save": dict(help="keep what was learnt; a stream goes on from a file that is there"),
    "model": dict(help="in place of a table: such a file"),
    "plot": dict(help="draw the result (needs matplotlib)")}
WRITTEN = ("out", "save", "plot")
BESIDE_MODEL = ("verb", "model", "predict", "out", "json")
STREAMED = "row,mean,sd,lower,upper,y,loss,bound\n"


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises ValueError instead of exiting on an error."""

    def error(self, message):
        dashed = " (one that begins with - is written --option=-1)" * ("expected one" in message)
        raise ValueError(message + dashed)


def number(text):
    """Returns a text given to --eps as a float, or unchanged if it is no number.

    The last text of --eps may be the table's path, which argparse took for one more eps.
    """
    try:
        return float(text)
    except ValueError:
        return text


def parser():
    """Returns the parser of the command line; its subcommands are the verbs.

    The verbs are the keys of KINDS, and copy. A verb of KINDS takes a table; its options are the
    parameters of its model and those in SHARED. copy takes the names of functions to print. An
    option that is not given is None, as is one that the verb does not have but functions here read.
    Three entries are no options: kept, of lines_for; apart and mended, of Refused.
    """
    ap = Parser(prog="python -m own_data", description="GPs with certificates or scores, for a "
                                                       "table of your own")
    ap.add_argument("--version", action="version", version=__version__)
    verbs = ap.add_subparsers(dest="verb", required=True)
    for verb, (kind, about) in KINDS.items():
        words = verbs.add_parser(verb, help=about, description=about)
        words.set_defaults(eps=None, group=None, kept=None, apart=(), mended=())
        add = words.add_argument
        add("table", help="text table, .gz allowed, - is standard input", nargs="?")
        for one in fields(kind):
            rule = one.metadata
            how = dict(type=one.type)
            if "nargs" in rule:
                how = dict(type=listed if one.type is str else number, nargs=rule["nargs"])
            if "choices" in rule:
                how["choices"] = rule["choices"]()
            if one.type is bool:
                how = dict(action="store_true", default=None)
            add(f"--{one.name}", help=rule["help"], **how)
        for option, keywords in SHARED.items():
            add(f"--{option}", **keywords)
        if kind is CertifiedGP:
            add("--group", help="column of numbers, equal in rows that belong together: a group "
                                "stays in one part and counts as one row")
        add("--json", action="store_true", default=None, help="print JSON in place of text")
    about = "print functions with all that they need"
    verbs.add_parser("copy", help=about, description=about).add_argument("names", nargs="+")
    return ap


def show(step, value):
    """Prints a line of progress, if stderr is a terminal.

    step: number of steps so far; value: the objective.
    """
    if sys.stderr.isatty():
        print(f"\r{step} steps, objective {value:.5g}{'':20}\r", end="", file=sys.stderr)


# --- files ---------------------------------------------------------------------------------------

def check_options(args):
    """Returns the options that are given, a dict of name -> value.

    ValueError for one that is empty, as from an unset variable, or has no effect. Changes args in
    two ways. A table's path that argparse took for the last eps becomes args.table. With --predict,
    an args.out of "-" becomes None, which also means standard output.
    """
    if args.table is None and isinstance(args.eps, list) and isinstance(args.eps[-1], str):
        args.table = args.eps.pop()
    given = {name: value for name, value in vars(args).items() if value not in (None, ())}
    for name, value in given.items():
        if value in ("", []):
            raise ValueError(f"{name} is an empty text")
    streams = args.verb == "follow"
    known = [*BESIDE_MODEL, *["decimal", "na", "skip"] * (args.predict is not None)]
    idle = [name for name in given if name not in known + ["plot"] * streams]
    if args.model and idle:
        raise ValueError(f"--model takes the place of a table, and goes without {few(idle)}")
    if args.out and not (args.predict or streams and not args.model):
        raise ValueError("--out needs --predict")
    if args.out == "-" and args.predict:
        args.out = None
    if "-" in (args.save, args.plot):
        raise ValueError("--save and --plot need a file: - is none")
    return given


def check_files(args):
    """Checks, before anything is computed, the files that the options name.

    OSError if a file of --out, --save or --plot cannot be written. ValueError if such a file is
    also that of another option, if two options read standard input, or if --save names something
    that exists and is no file.
    """
    paths = {name: getattr(args, name) for name in (*WRITTEN, "table", "predict", "model")}
    if args.out == "-":
        paths["out"] = None
    paths = {name: path for name, path in paths.items() if path}
    for name in filter(paths.get, WRITTEN):
        write_file(paths[name])
    for (one, a), (other, b) in itertools.combinations(paths.items(), 2):
        if identity(a) == identity(b) and (one in WRITTEN or a == b == "-"):
            raise ValueError(f"{one} and {other} are one file, {b}")
    if args.save and os.path.exists(args.save) and not os.path.isfile(args.save):
        raise ValueError(f"--save {args.save}: it is no file, and would be replaced by one")


def identity(path):
    """Returns a value that is equal for two paths of one file.

    The path "-" stands for the file on standard input.
    """
    try:
        found = os.stat(0 if path == "-" else path)
        return found.st_dev, found.st_ino
    except OSError:
        return os.path.realpath(path)


def new_figure(path):
    """Returns a function (model, data) that draws a model to the file at path.

    data: list of the arguments of model.draw after the axes: X and y, or none for a StreamGP.
    ValueError if path's suffix is no picture format.
    """
    os.environ["MPLBACKEND"] = "agg"
    from matplotlib import rcParams
    from matplotlib.figure import Figure
    rcParams["text.usetex"] = False                      # LaTeX may not be there
    figure = Figure(layout="constrained")
    save = partial(figure.savefig, format=os.path.splitext(path)[1][1:] or "png", dpi=150)
    label = figure.text(0, 0, "label")
    save(io.BytesIO())
    label.remove()

    def write(model, data):
        model.draw(figure.subplots(), *data)
        picture = io.BytesIO()
        save(picture)
        write_file(path, picture.getvalue())
    return write


def new_rows(model, args):
    """Reads the table of --predict; returns its inputs X (n, d), NaN where a cell is missing.

    Its columns are found by the names of the model's inputs. If the only input is the row number,
    it goes on from the rows that a stream has seen. ValueError if a column is not there.
    """
    *names, _ = model.names_
    ours = [name for name in names if name != CLOCK]
    texts = [names[i] for i in model.category_columns()]

    def choose(there, unused):
        missing = [name for name in ours if name not in there]
        if missing:
            raise ValueError(f"{args.predict} has no column {few(missing)}; it has {few(there)}")
        return [there.index(name) for name in ours]
    how = reading(args) | dict(choose=choose, wanted=ours, first=getattr(model, "seen_", 0),
                               categories=lambda there: map(there.index, texts))
    _, *rows = read_rows(*lines_for(args, args.predict), **how)
    return np.reshape(rows, (len(rows), len(names)))


def predictions(model, X):
    """Returns predictions at X (n, d): a dict of lists mean, sd, lower, upper.

    They are those of model.limits: mean, standard deviation and the ends of an interval. All four
    are NaN for a row of X with NaN. model: a trained one.
    """
    complete = ~np.isnan(X).any(1)
    values = np.full((4, len(X)), np.nan)
    if complete.any():
        values[:, complete] = model.limits(X[complete])
    return dict(zip(("mean", "sd", "lower", "upper"), values.tolist()))


def csv_line(values):
    """Returns a list of numbers or names as a line of CSV."""
    return ",".join(map(str, values)) + "\n"


def write_predictions(found, path):
    """Writes predictions as CSV to the file at path, or to standard output if path is None.

    found: a dict, name of a column -> list of its numbers.
    """
    text = "".join(map(csv_line, [found, *zip(*found.values())]))
    if path:
        write_file(path, text.encode())
    else:
        sys.stdout.write(text)


# --- learning ------------------------------------------------------------------------------------

def demo():
    """Returns the lines of the demo table: 300 rows, a noisy wave.

    Its numbers are rounded to digits on which all processors agree.
    """
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, 300)
    y = np.sin(x) * np.exp(-x / 10) + 0.2 * rng.standard_normal(300)
    return ["x,y", *(f"{a:.4f},{b:.4f}" for a, b in zip(x, y))]


def lines_for(args, path):
    """Returns the lines of a file, or of the demo if path is None, and the name of their source.

    The path "-" is standard input. The lines from there are kept in args, to be read again. Those
    of a stream are not kept, and their source is PIPE. args.apart, if a remedy has set it, lists
    lines that are no rows, as (source, line number): they get a # in front, as comments have.
    """
    if path is None:
        return demo(), "the demo"
    source, lines = path, lines_of(path)
    if path == "-" and args.verb == "follow" and not args.model:
        source = PIPE
    elif path == "-":
        source = "the standard input"
        args.kept = lines = args.kept or [*lines]
    return ("#" * ((source, n) in args.apart) + line for n, line in enumerate(lines, 1)), source


def reading(args):
    """Returns the options that say how to read a table, as a dict of arguments of read_rows."""
    choose = partial(chosen, target=args.target, inputs=args.inputs, drop=args.drop,
                     group=args.group, least=1 + (args.verb != "follow"))
    categories = partial(columns, option="--categories", asked=args.categories)
    return dict(choose=choose, categories=categories, decimal=args.decimal or ".", na=args.na,
                skip=check_count("skip", args.skip or 0, 0), mended=args.mended)


def read_all(model, args):
    """Reads the table and that of --predict; returns table, groups, X_new.

        table    a Table without the column of --group, or None if there is args.model
        groups   (N,): the column of --group, or None without this option
        X_new    (n, d): the inputs in the table of --predict, or None without this option
    The model is given the names and categories of the table.
    """
    table = groups = X_new = None
    if not args.model:
        table = read_table(*lines_for(args, args.table), **reading(args))
        if args.group:
            groups = table.values[:, 0]
            table = table._replace(names=table.names[1:], values=table.values[:, 1:],
                                   categories=[i - 1 for i in table.categories if i])
        model.names_, model.categories = table.names, table.categories or None
    if args.predict:
        X_new = new_rows(model, args)
    return table, groups, X_new


def learn_table(model, args):
    """Trains the model on the table, after reading that of --predict.

    Returns X (N, d) and y (N,) of the table, and X (n, d) of the table of --predict, None without
    this option. ValueError if the target does not vary.
    """
    table, groups, X_new = read_all(model, args)
    X, y = table.values[:, :-1], table.values[:, -1]
    more = dict(groups=groups, over=threads()) if args.verb == "certify" else {}
    if len(y) > 1 and np.ptp(y) == 0:
        last = ", the last column" * (args.target is None)
        raise ValueError(f"the target does not vary: it is {table.names[-1]}{last}, --target "
                         "chooses")
    model.fit(X, y, show=show, **more)
    model.names_, model.dropped_, model.notes_ = table.names, table.dropped, table.notes
    return X, y, X_new


def follow_rows(model, args):
    """Lets a StreamGP learn the rows of a table as they come.

    After each batch, writes a line per row to --out, unless --out is for the predictions of
    --predict. After each row, saves the model to --save. The model may be one saved before: then
    rows of a file that it has seen are skipped, but those of standard input are all new.
    """
    lines, source = lines_for(args, args.table)
    new = args.table == "-"
    seen = getattr(model, "seen_", 0)
    rows = read_rows(lines, source, **reading(args), known=getattr(model, "columns_", ()),
                     first=seen * new)
    names, known, notes, texts = next(rows)
    if not hasattr(model, "names_"):
        model.categories = texts or None
        model.begin(np.zeros((1, len(names) - 1)), np.zeros(1))
        model.names_, model.columns_, model.notes_ = names, known, notes
    elif (names, texts) != (model.names_, model.categories or []):
        raise ValueError(f"{source} has other columns than {args.save}: {few(names)}")
    digest = model.digest_ * new
    for row in itertools.islice(rows, seen * (not new)):
        digest = zlib.crc32(row.tobytes(), digest)
    if digest != model.digest_:
        raise ValueError(f"{source} does not begin with the {many(seen)} that {args.save} has "
                         "seen: give the whole table, or new rows on standard input")
    learnt = int(model.waiting_[0][0]) - 1 if model.waiting_ else seen
    with opened_lines(None if args.predict else args.out, learnt) as out:
        for row in rows:
            try:
                model.take(row)
            except ValueError as err:
                raise ValueError(f"{source}, row {model.seen_}: {err}") from None
            if out and model.forecasts_:                 # of a batch
                out.write("".join(map(csv_line, model.forecasts_)))
                out.flush()
            if args.save:
                model.save(args.save)


def opened_lines(path, learnt):
    """Opens the file of --out to append a stream's lines; returns it as a context manager.

    Lines of rows that were not yet learnt are first removed from it: they will be written again.

        path     of the file; "-" is standard output. None: nothing is opened, `with` gives None
        learnt   number of the last row that the model has learnt
    """
    if path is None:
        return contextlib.nullcontext()
    if path == "-":
        print(end=STREAMED, flush=True)
        return contextlib.nullcontext(sys.stdout)
    if os.path.exists(path) and not os.path.isfile(path):
        file = open(path, "w")                           # of a pipe, once
        print(end=STREAMED, flush=True, file=file)
        return file
    size = 0
    if learnt and os.path.exists(path):
        with open(path, "r+b") as file:
            for line in file:
                row = line.split(b",")[0]
                if not line.endswith(b"\n") or row.isdigit() and int(row) > learnt:
                    break
                size += len(line)
            file.truncate(size)
    if not size:
        write_file(path, STREAMED.encode())
    return open(path, "a")


# --- remedies ------------------------------------------------------------------------------------

def changed(args, remedy):
    """Returns a copy of args with a remedy applied.

    remedy: a dict, option -> its new value, or a list to be appended to its old value.
    """
    new = argparse.Namespace(**vars(args))
    for name, value in remedy.items():
        if isinstance(value, list):
            value = [*(getattr(new, name) or ()), *value]
        if value:
            setattr(new, name, value)
    return new


def remedied(model, args, first, deep=4):
    """Yields copies of args with a remedy that lets the tables be read.

        first   a list of remedies, dicts option -> new value, to try in this order
        deep    how many further remedies may be added to a remedy of `first`

    Refused, of own_data/tables.py, is raised for a table that cannot be read, and has lists of
    remedies. If it is raised again with a remedy, that remedy is kept, and those of the first list
    of the new Refused are tried on top of it, and so on. A remedy that changes the verb, such as
    certify, must help by itself.
    """
    for remedy in first:
        new = changed(args, remedy)
        try:
            read_all(model, new)
            yield new
        except Refused as err:
            if deep and "verb" not in remedy:
                yield from remedied(model, new, err.remedies[0], deep - 1)
        except ValueError:
            pass


def advice(model, args, refused):
    """Returns a text that proposes how to read the tables, empty if no remedy helps.

    refused: the Refused that reading them raised. Of each list of remedies in refused.remedies,
    the text has the first with which a trial reading succeeds. A stream on standard input cannot be
    read again, so its text is empty.
    """
    piped = args.verb == "follow" and args.table == "-"
    found = [next(remedied(model, args, first), None) for first in refused.remedies * (not piped)]
    said = dict.fromkeys(options_text(args, new) for new in found if new)
    return f" (to read it: {'; or: '.join(said)})" * bool(said)


def options_text(old, new):
    """Returns in words what a user has to do for a remedy.

    old, new: args without and with the remedy. The words may be: the verb follow and options to
    type; lines that must begin with #; code in pandas that makes numbers of a column.
    """
    typed = ["of a series follow"] * (new.verb != old.verb)
    for name in ("skip", "decimal", "na", "target", "categories", "drop"):
        value = getattr(new, name)
        if value == getattr(old, name):
            continue
        if isinstance(value, list):
            text = io.StringIO()
            csv.writer(text, lineterminator="").writerow(value)
            value = text.getvalue()
        typed.append(shlex.quote(f"--na={value}") if name == "na"
                     else f"--{name} {shlex.quote(str(value))}")
    lines = [str(n) for _, n in new.apart]
    codes = [line for _, line in new.mended]
    said = [" ".join(typed), lines and f"begin line {few(lines)} with #, as no row",
            codes and f"in pandas {'; '.join(codes)}"]
    return " and ".join(filter(None, said))


# --- the program ---------------------------------------------------------------------------------

def emit(model, args, found):
    """Prints how many rows and which columns were read, and the model's text.

    With --json: one object of all facts instead. All goes to stderr if standard output gets CSV.
    found: the predictions, or None. The object includes them, unless --out writes them to a file.
    """
    *inputs, target = model.names_
    rows = model.rows_ + model.dropped_
    if args.json:
        facts = dict(version=__version__, rows=rows, dropped=model.dropped_, inputs=inputs,
                     target=target, notes=model.notes_) | model.facts_
        if found and not args.out:
            facts["predictions"] = found
        no_nan = json.loads(json.dumps(facts), parse_constant=lambda name: None)    # no JSON has it
        said = json.dumps(no_nan)
    else:
        demo = "a demo: " * (args.table is args.model is None)
        read = f"{demo}{many(rows)}; inputs {few(inputs)}; target {target}"
        read += f"; {many(model.dropped_, 'incomplete row')} left out" * (model.dropped_ > 0)
        read = textwrap.fill("; ".join([read, *model.notes_]), 100)
        said = printable(f"{read}\n\n{model.text()}")
    beside = args.out == "-" or found and not (args.out or args.json)
    print(said, flush=True, file=sys.stderr if beside else sys.stdout)


def printable(text):
    """Returns the text with control characters escaped; names in a file may contain them."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def work(args):
    """Does what the options ask for: reads, learns, writes files, prints.

    ValueError for options or tables that cannot be used; it names the remedies that help.
    """
    given = check_options(args)
    check_files(args)
    kind, _ = KINDS[args.verb]
    known = kind().get_params()
    model = kind(**{name: value for name, value in given.items() if name in known})
    model.checked()
    draw = new_figure(args.plot) if args.plot else None
    if args.model:
        model = kind.load(args.model)
    try:
        learn_and_tell(model, args, draw)
    except Refused as err:
        raise ValueError(f"{err}{advice(model, args, err)}") from None


def learn_and_tell(model, args, draw):
    """Trains the model, unless it was loaded from args.model; writes files, prints.

    draw: the function from new_figure, or None for no picture.
    """
    streams = args.verb == "follow"
    data, X_new = (), None
    if streams and not args.model:
        if args.save and os.path.exists(args.save):
            asked = model.get_params()
            model = model.load(args.save)
            known = model.get_params()
            if known != asked | dict(categories=model.categories):
                raise ValueError(f"{args.save} was made with {known}: a certificate is for one "
                                 "choice, made before the stream")
        try:
            follow_rows(model, args)
        except (ValueError, KeyboardInterrupt):
            if model.evaluated():                        # what was learnt before it is told
                emit(model, args, None)
            raise
    elif not args.model:
        *data, X_new = learn_table(model, args)
    model.facts_                           # ValueError for a stream of which no row is evaluated
    if args.save and not streams:
        model.save(args.save)
    found = None
    if args.predict:
        if X_new is None:
            X_new = new_rows(model, args)
        found = predictions(model, X_new)
        if args.out or not args.json:
            write_predictions(found, args.out)
    if draw:
        draw(model, data)
    emit(model, args, found)


def main(argv=None):
    """Runs the program; returns its exit status.

    argv: list of the words of the command line; default: those typed. The status is 0, or 2 after a
    line on the error, or 130 after Ctrl-C.
    """
    warnings.simplefilter("ignore")
    typed = sys.argv[1:] if argv is None else argv
    if "--copy" in typed:                                # as in version 1
        typed = ["copy", *typed[typed.index("--copy") + 1:]]
    try:
        args = parser().parse_args(typed)
        with np.errstate(all="ignore"):
            print(copied(*args.names), end="") if args.verb == "copy" else work(args)
        sys.stdout.flush()
        return 0
    except BrokenPipeError:                              # the reader of a pipe has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("interrupted: nothing more is learnt or certified", file=sys.stderr)
        return 130
    except (ValueError, ArithmeticError, OSError, MemoryError, ImportError, RuntimeError) as err:
        said = " ".join(str(err).split()) or type(err).__name__
        print(f"error: {printable(said)}", file=sys.stderr)
        return 2
