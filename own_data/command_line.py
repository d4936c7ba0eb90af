"""What the three programs share: options, progress, interruption, output, and --copy."""
import contextlib
import os
import sys
import warnings
from decimal import ROUND_DOWN, ROUND_UP, Context, Decimal
from functools import partial

import numpy as np

from pacgp_ref import Note, __version__, check_count, check_kind
from beyond.blocks import threads  # noqa: F401 (for the three programs)
from beyond.kernels import KERNELS
from own_data.saving import Model, contents, fit_of, is_model, kernel_name, writing
from own_data.tables import few, many, named_columns, read_table

UNSCALED = ".* has mean .* and deviation"
FILES = ("predict", "model", "out", "save", "state", "plot")     # options whose value is a path
MARKS = "os^vDP*X<>p"
PREDICTED = "mean,sd,lower,upper\n"                          # first line of --out with --predict
STREAMED = "row,mean,sd,lower,upper,y,loss,bound\n"           # and of a stream's rows


def shown(text, stream):
    """The text with ? for what a terminal obeys, control characters but line ends, or reorders by.

    What the stream cannot encode becomes an escape.
    """
    import unicodedata
    harmless = lambda c: c == "\n" or c.isprintable() or unicodedata.category(c) == "Zs"
    text = "".join(c if harmless(c) else "?" for c in text)
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def option(kind):
    """float or int as the type of an option, without the underscores of Python."""
    def of(text):
        if "_" in text:
            raise ValueError
        return kind(text)
    of.__name__ = kind.__name__                            # argparse says "invalid float value"
    return of


REAL = option(float)
WHOLE = option(int)


def kernel_option(ap, default="SE", unless=""):
    """Adds --kernel to a parser: the kernels whose search has a start.

    unless: what chooses another kernel where none is given, in words.
    """
    names = [name for name, row in KERNELS.items() if row.start]
    ap.add_argument("--kernel", choices=names, default=default,
                    help="fixed before seeing the data: the best of several is not certified "
                         f"(SE{unless})")


def kernel_said(kernel):
    """The kernel by its name, in words; "" for SE."""
    name = kernel_name(kernel)
    return f"kernel: {name}" * (name != "SE")


def check_counts(args, *names):
    """ValueError where one of these options is given and is no whole number of at least 1."""
    for name in names:
        value = getattr(args, name)
        if value is not None:
            check_count(f"--{name}", value)


def check_square(eps, loss, least=0.0):
    """ValueError where the square of a tolerance, by which two losses divide, leaves the range of
    numbers."""
    if loss in ("square", "exp") and not least <= eps <= 1e150:
        room = f"at least {least:g}" if eps < least else "at most 1e150"
        raise ValueError(f"--eps must be {room} with --loss {loss}, got {eps:g}")


def check_unit(args):
    """ValueError for --unit y without --eps, whose default counts deviations."""
    if args.unit == "y" and args.eps is None:
        raise ValueError("--unit y needs --eps, the tolerance in the target's own unit")


def listed(text):
    """The names of an option, separated by commas; one with a comma is quoted."""
    import csv
    return next(csv.reader([text])) or [""]


def at_most_rows(M, y):
    """M inducing inputs, or as many as rows y, with a warning where they are fewer."""
    if M > len(y):
        said = f"{len(y)} inducing inputs in place of {M}: there are no more rows"
        warnings.warn(said, Note, stacklevel=2)
    return min(M, len(y))


def parser(path, ends, **about):
    """An argparse parser whose errors are a ValueError of one line, and whose --copy prints
    functions of the module at path.

    ends: what lower and upper of a prediction are, in words.
    """
    import argparse

    class Copy(argparse.Action):
        def __call__(self, parser, namespace, names, option=None):
            from own_data.copying import copied
            print(copied(path, *names), end="")
            parser.exit()

    class Parser(argparse.ArgumentParser):
        def error(self, message):
            # an option of several values takes a table, too
            _, value, *_ = f"{message}''".split("'", 2)
            hint = " (write the table before the options)" * os.path.exists(value)
            raise ValueError(message + hint)
    ap = Parser(allow_abbrev=False, usage="%(prog)s [table] [options]", **about)
    ap.add_argument("table", nargs="?",
                    help="text table, .gz allowed, - is standard input; header optional; "
                         "without: a demo")
    ap.add_argument("--target",
                    help="name or number (from 0) of the target column; default: the last")
    ap.add_argument("--inputs", type=listed, metavar="A,B",
                    help="names or numbers of the input columns; default: all others")
    ap.add_argument("--drop", type=listed, metavar="A,B",
                    help="columns that are not used; they may hold anything")
    ap.add_argument("--decimal", choices=[".", ","], default=".",
                    help="decimal mark of the numbers (.)")
    ap.add_argument("--missing", choices=["drop", "refuse"], default="drop",
                    help="rows with an empty cell, NA, NaN or null")
    ap.add_argument("--predict", metavar="NEW",
                    help="a table with the same input columns: predictions, a line a row, as CSV; "
                         f"lower and upper: {ends}")
    ap.add_argument("--out", metavar="FILE",
                    help="where --predict writes (standard output); of a stream without "
                         "--predict: a line for each of its rows")
    ap.add_argument("--save", metavar="MODEL", help="keep what was trained in a file")
    ap.add_argument("--model", help="in place of a table: such a file")
    ap.add_argument("--plot", metavar="PNG", help="draw the result (needs matplotlib)")
    ap.add_argument("--json", action="store_true", help="print JSON in place of text")
    ap.add_argument("--version", action="version", version=__version__)
    ap.add_argument("--copy", action=Copy, nargs="*", metavar="NAME",
                    help="print functions with everything they need, ready to paste; "
                         "without a name: their names")
    return ap


@contextlib.contextmanager
def progress(steps, done=0):
    """say(step, text) inside: one line on stderr, if that is a terminal, with the seconds left
    where `steps` is known.

    It is gone at the end, and where step is None. done: steps of an earlier run.
    """
    import time
    start = last = time.monotonic()
    before = done
    terminal = sys.stderr is not None and sys.stderr.isatty()
    put = partial(print, end="", file=sys.stderr, flush=True)
    clear = f"\r{'':78}\r"

    def say(step, text):
        nonlocal start, last, before, done
        now = time.monotonic()
        if terminal and step is None:
            put(clear)
        elif terminal and now - last > 0.2:
            if step <= before:                       # a search that begins again
                start = last
                done = 0
            before = step
            last = now
            left = ""
            if steps:
                seconds = max(steps - step, 0) * (now - start) / (step - done)
                left = f" of {steps}, {seconds:.0f} s left"
            put(f"\r{f'{text} {step}{left}'[:78]:<78}")
    try:
        yield say
    finally:
        if terminal:
            put(clear)


def until_interrupted(work):
    """work(stop), where stop() says whether Ctrl-C was pressed since; pressed a second time, it
    interrupts as ever.

    Where Ctrl-C is not Python's own (nohup, a thread), nothing is changed.
    """
    import signal
    import threading
    pressed = []

    def note(*_):
        if pressed:
            raise KeyboardInterrupt
        pressed.append(True)
        said = "\nnote: stopping; what has been found follows (Ctrl-C again: at once)"
        print(said, file=sys.stderr)
    main_thread = threading.current_thread() is threading.main_thread()
    ours = main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, note)
    try:
        return work(lambda: bool(pressed))
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def complain(text):
    """One line on stderr, if there is one that takes it."""
    with contextlib.suppress(OSError):
        if sys.stderr is not None:
            print(shown(" ".join(text.split()), sys.stderr), file=sys.stderr, flush=True)


def exit_status(work):
    """What work() returns; 2 after one line for an error, 130 after Ctrl-C, 0 where the reader of
    a pipe has left.

    An output that cannot be written, on a full disk or closed, is an error. While work runs, a Note
    is a line on stderr, and no other warning is shown.
    """
    def note(message, category, *_, **__):
        if issubclass(category, Note):
            complain(f"note: {message}")
    try:
        if sys.stdout is None:
            raise ValueError("cannot write standard output: it is closed")
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.showwarning = note
            status = work()
        sys.stdout.flush()
        return status
    except OSError as err:
        gone = isinstance(err, BrokenPipeError)
        if not gone:
            complain(f"error: cannot write standard output: {err.strerror}")
        # so that Python is quiet when it flushes at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0 if gone else 2
    except MemoryError:
        complain("error: not enough memory: give fewer rows or columns")
        return 2
    except (ValueError, ArithmeticError) as err:
        complain(f"error: {err}")
        return 2
    except KeyboardInterrupt:
        return 130


def emit(args, text, facts=None):
    """Prints text, on stderr where predictions have standard output; with --json the facts in its
    place, as one line."""
    import json
    if args.json:
        no_nan = json.loads(json.dumps(facts), parse_constant=lambda name: None)    # is no JSON
        text = no_nan and json.dumps(no_nan)
    beside = args.predict is not None and args.out is None and not args.json
    stream = sys.stderr if beside else sys.stdout
    if text is not None and stream is not None:
        print(text if args.json else shown(text, stream), file=stream, flush=True)


def check_files(ap, args, out_alone=False):
    """ValueError for options about files that cannot be met, before anything is read, computed or
    written.

    ap: the parser of args. out_alone: --out has a meaning without --predict.
    """
    import importlib.util
    import itertools
    alone = ("model", "predict", "out", "json", "decimal")
    given = lambda action: getattr(args, action.dest, action.default) != action.default
    others = [(action.option_strings or ["a table"])[0] for action in ap._actions
              if action.dest not in alone and given(action)]
    if args.model is not None and others:
        raise ValueError("--model goes with --predict, --out, --decimal and --json, "
                         f"not with {', '.join(others)}")
    if args.out is not None and args.predict is None and not (out_alone and args.model is None):
        raise ValueError("--out needs --predict")
    named = {"table": args.table} | {f"--{name}": getattr(args, name, None) for name in FILES}
    paths = [(name, path) for name, path in named.items() if path is not None]
    for (one, a), (other, b) in itertools.combinations(paths, 2):
        if one_file(a, b):
            raise ValueError(f"{one} {a!r} and {other} {b!r} are one file")
    for name in ("--out", "--save", "--plot", "--state"):
        path = named[name]
        if path is not None:
            replaced = name in ("--save", "--state")     # written beside the old one: no device
            there = os.path.exists(path)
            folder = os.path.join(os.path.dirname(os.path.realpath(path)), "")
            place = folder if replaced or not there else path
            is_file = os.path.isfile(path) if replaced else not os.path.isdir(path)
            if not path or there and not is_file or not os.access(place, os.W_OK):
                raise ValueError(f"{name} {path!r}: no file can be written there")
            if not may_be_replaced(name, path, args):
                raise ValueError(f"{name} {path!r} is there, and not from this option, or of "
                                 "another stream: choose another name, or remove it")
    if args.plot is not None:
        if importlib.util.find_spec("matplotlib") is None:
            raise ValueError("--plot needs matplotlib: python -m pip install matplotlib")
        from matplotlib.backend_bases import FigureCanvasBase
        suffix = os.path.splitext(args.plot)[1][1:]
        if suffix and suffix.lower() not in FigureCanvasBase.filetypes:
            raise ValueError(f"--plot {args.plot!r}: no picture ends in .{suffix}: "
                             "write .png, .pdf or .svg")


def new_rows(args, inputs):
    """The Table of --predict, with the columns named `inputs`; None without that option."""
    if args.predict == "-" == args.table:
        raise ValueError("--predict and the table cannot both be standard input")
    choose = lambda names: named_columns(names, inputs, args.predict)
    if args.predict is not None:
        return read_table(args.predict, choose, args.decimal, "keep")


def predict_table(args, new, limits, certified):
    """What limits(X) gives for the rows of the Table `new`, (mean, sd, lower, upper), NaN where
    incomplete: a dict of lists.

    certified: what is said of them. Written as CSV, to the last digit, to --out, or to standard
    output unless --json prints it.
    """
    complete = ~np.isnan(new.values).any(1)
    names = ("mean", "sd", "lower", "upper")
    values = np.full((4, len(complete)), np.nan)
    values[:, complete] = limits(new.values[complete])
    said = f"{many(len(complete), 'prediction')}: {certified}"
    said += f"; not used: {few(new.ignored)}" * bool(new.ignored)
    said += f"; {new.dropped} are nan, for incomplete rows" * bool(new.dropped)
    emit(args, said)
    rows = values.T.tolist()
    text = PREDICTED + "".join(",".join(map(str, row)) + "\n" for row in rows)
    if args.out is not None:
        with writing(args.out), open(args.out, "w") as file:
            file.write(text)
    elif not args.json:
        print(text, end="")
    return dict(zip(names, values.tolist()))


def interval(mean, var):
    """mean, sd, and the limits of the interval that holds 95 % of N(mean, var) (n,)."""
    sd = np.sqrt(var)
    return mean, sd, mean - 1.96 * sd, mean + 1.96 * sd


def use_model(args, model, limits):
    """The work of a command line with --model: says its certificate, predicts.

    limits: see finish.
    """
    check_kind("the model", model, Model, "the command line")
    new = new_rows(args, model.inputs)
    fit = fit_of(model)
    facts = fit._asdict() | model.fit._asdict() | {"kernel": kernel_name(fit.kernel)}
    known = [f"{name} {value}" for name, value in facts.items()
             if isinstance(value, (str, int, float))]        # of one saved from Python
    emit(args, f"{model.about.get('text', '; '.join(known))}\n")
    finish(args, model, new, None, limits, dict(about=model.about), [])
    return 0


def finish(args, model, new, keep, limits, facts, draws):
    """Saves by keep(path, model), predicts the Table `new`, prints JSON and draws, as the options
    say.

    limits(model, X): mean, sd, lower, upper at X (n, d). draws: functions of a matplotlib Axes,
    drawn side by side.
    """
    if args.save is not None:
        keep(args.save, model)
    if new is not None:
        certified = what_is_certified(model)
        predictions = predict_table(args, new, partial(limits, model), certified)
        facts = dict(facts, predictions=predictions)
    emit(args, None, dict(version=__version__, **facts))
    if args.plot is not None:                        # last: where it fails, all else is there
        from matplotlib.figure import Figure
        figure = Figure(figsize=(4.8 * len(draws), 3.8), layout="constrained")
        axes = figure.subplots(1, len(draws), squeeze=False)[0]
        for draw, ax in zip(draws, axes):
            draw(ax)
        with writing(args.plot):
            figure.savefig(args.plot, dpi=150)


def one_file(a, b):
    """Whether two paths lead to one file, which need not be there yet; -: the file that is
    standard input, if it is one."""
    import stat
    if "-" in (a, b):
        other = a if b == "-" else b
        with contextlib.suppress(OSError):
            given = os.fstat(0)
            return stat.S_ISREG(given.st_mode) and os.path.samestat(given, os.stat(other))
        return False
    both = os.path.exists(a) and os.path.exists(b)
    return os.path.samefile(a, b) if both else os.path.realpath(a) == os.path.realpath(b)


def may_be_replaced(name, path, args):
    """Whether an option writes to a path where no file is, or one that the option wrote.

    Lines of a stream stay, unless its --state goes on with them: rows_out. A picture is known by
    the name of matplotlib in it.
    """
    if name == "--plot" and not os.path.splitext(path)[1]:
        path += ".png"                               # as savefig does
    if name == "--state" or not os.path.isfile(path) or not os.path.getsize(path):
        return True
    if name == "--save":
        return is_model(path)
    if name == "--plot":
        return b"atplotlib" in contents(path)
    with writing(path), open(path, errors="replace") as file:
        head = file.readline(100)
        if args.predict is not None:
            return head == PREDICTED
        state = getattr(args, "state", None)
        goes_on = bool(state) and os.path.exists(state)
        return head == STREAMED and (goes_on or not file.read(1))


def what_is_certified(model):
    """What the certificate of a Model, or of what online saves, says of its predictions, in
    words."""
    if not isinstance(model, Model):
        return "not certified: the certificate is about the rows that came, not about these"
    about = model.about
    bound = about.get("mean_bound", 1)
    if bound >= 1 or about.get("loss", "exp") == "exp":      # by "exp" a miss costs less than 1
        return "nothing is certified of mean, sd, lower and upper"
    of = "of complete rows " * bool(about.get("dropped"))
    return (f"{of}the true value lies outside lower and upper with probability at most "
            f"{bound_text(bound)}; mean and sd are not certified, and sd leaves the noise out")


def draw_predicted(ax, predicted, y, name):
    """Actual targets y (n,) against the means (n,) of each of `predicted`, {label: means}, on an
    Axes."""
    for (label, mean), mark in zip(predicted.items(), MARKS):
        ax.plot(mean, y, mark, ms=3, alpha=0.5, label=label)
    ax.axline((y[0], y[0]), slope=1, color="0.4", lw=1)
    name = name.replace("$", r"\$")                  # no formula
    ax.set(xlabel=f"predicted {name}", ylabel=f"actual {name}")
    ax.legend()


def confidence_percent(delta):
    """100 (1 - delta) per cent as text, rounded down."""
    down = Context(prec=15, rounding=ROUND_DOWN)
    per_cent = down.subtract(100, 100 * Decimal(repr(float(delta))))
    return f"{down.normalize(per_cent):f}"


def rounded_up(value, digits=4):
    """The positive `value` to so many significant digits, never below it, as text."""
    up = Context(prec=digits, rounding=ROUND_UP)
    return f"{float(up.plus(Decimal(value))):.{digits}g}"


def as_given(value):
    """The number as it was given, to its last digit: a tolerance is never said to be smaller."""
    return repr(float(value)).removesuffix(".0")


def deviations(eps):
    """eps in words, in standard deviations."""
    return f"{as_given(eps)} standard deviation" + "s" * (eps != 1)


def many_deviations(eps):
    """A remark on a tolerance of more than 5 deviations, which is seldom meant; else nothing."""
    unit = f"eps is {eps:.4g} standard deviations: --unit y reads it in the target's own unit."
    return unit * (eps > 5)


def answer_and_conditions(answer, table, conditions):
    """A text in three parts: the answer, the lines of a table, sentences as a list."""
    import textwrap
    fill = textwrap.TextWrapper(100, break_on_hyphens=False)
    lines = [fill.fill(answer), "", *table, ""]
    fill.initial_indent = "- "
    fill.subsequent_indent = "  "
    lines += [fill.fill(sentence) for sentence in conditions if sentence]
    return "\n".join(lines)


def bound_text(bound):
    """A bound to four decimals, never below it, at most 1."""
    up = Decimal(min(bound, 1)).quantize(Decimal("1e-4"), ROUND_UP)
    return f"{up:.4f}"
