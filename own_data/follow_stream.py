"""`python online.py my.csv`: learns from a stream row by row and prints its certificates."""
import contextlib
import math
import os
import warnings
from typing import NamedTuple
from zlib import crc32

import numpy as np

import online
from pacgp_ref import Note, check_kind
from online import Posterior
from beyond.certificates import LAMS
from beyond.kernels import KERNELS
from beyond.stream import (CERTIFIED_LOSSES, DISCARD, EPS_UNITS, LEARN, Certificates, Learner,
                           Ledger, Moments, Settings, begin, certificates, check_settings,
                           discarded, forecast, one_of_six, step)
from own_data.command_line import (REAL, STREAMED, WHOLE, answer_and_conditions, as_given,
                                   bound_text, check_counts, check_files, check_square,
                                   check_unit, confidence_percent, deviations, emit,
                                   exit_status, finish, interval, kernel_option, kernel_said,
                                   many_deviations, new_rows, parser, progress, rounded_up)
from own_data.saving import contents, kernel_name, read_archive, write_archive, writing
from own_data.tables import (chosen_columns, few, incomplete, lines_of, many, read_rows,
                             what_was_read)


def demo_lines():
    """The lines of the table the command line uses without one.

    300 rows of a wave in time order, noise 0.4 (authors' code).
    """
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-1, 1, 300))
    yield "x,y"
    for a, b in zip(x, np.sin(4 * x) + 0.4 * rng.standard_normal(300)):
        yield f"{a},{b}"


# --- what is handed on from row to row, and its file ---------------------------------------------

class Session(NamedTuple):
    """What the command line hands on from row to row, and --state keeps."""
    learner: Learner           # None before the first rows are complete
    waiting: list              # rows (d+2,), their number first, the target last, that wait to be
                               # learnt from
    about: dict                # the choices; `seen`, `skipped`, `digest`: number of all rows read,
                               # of the incomplete ones, a digest; `refused`: numbers of those that
                               # `step` does not take; `names` and `header`: of all columns; `used`:
                               # inputs and target; `lines`: of --out, the last batch's;
                               # `marks`: of doubled


KINDS = (Session, Learner, Settings, Posterior, Moments, Ledger)      # of a saved Session


def save(path, learner, waiting=(), about=None, known=None):
    """Writes a Session, or a Learner alone, to a file for `load`.

    known and ValueError: as write_archive.
    """
    check_kind("learner", learner, (Learner, type(None)), "begin or step")
    session = Session(learner, np.array(waiting), about or {})
    write_archive(path, session, "online", KINDS, known)


def load(path):
    """The Session that save wrote, the same to the last bit; ValueError for another file, or a
    damaged one."""
    session = read_archive(path, "online", KINDS)
    check_kind(f"what {path} holds", session, Session, "save")
    check_kind(f"the learner of {path}", session.learner, (Learner, type(None)), "begin or step")
    if not (isinstance(session.about, dict) and isinstance(session.waiting, (list, np.ndarray))):
        raise ValueError(f"{path} is no saved state, or damaged")
    return session._replace(waiting=list(session.waiting))


def evaluated_rows(session):
    """Number of evaluated rows."""
    return int(session.learner.ledger.rows) if session.learner else 0


def input_names(about):
    """Names of the input columns; none where the row number is the input."""
    return [] if about["used"][0] == "the row number" else about["used"][:-1]


KEPT = dict(
    seen=int, skipped=int, refused=list, digest=int, names=(list, type(None)), header=bool,
    used=(list, type(None)), lines=list, marks=list)


def check_usable(path, session, kinds):
    """ValueError unless the Session's `about` has `kinds`, {name: type}, and its learner
    predicts."""
    about, learner, waiting = session.about, session.learner, session.waiting
    lacks = [name for name, kind in kinds.items()
             if not (name in about and isinstance(about[name], kind))]
    try:
        if learner is not None:
            forecast(learner, np.zeros((1, learner.input_scale.shape[1])))
        if evaluated_rows(session):
            certificates(learner)
        np.array(waiting, float)
    except Exception:                                # wrong kinds and shapes raise errors of many
        lacks.append("a learner that predicts")
    if lacks:
        raise ValueError(f"{path} is no saved state: it lacks {', '.join(lacks)}")


def resumed(path, choices):
    """The Session saved at path, or a new one. ValueError where the file has other choices."""
    new = dict(choices, seen=0, skipped=0, refused=[], digest=0, names=None, header=False,
               used=None, lines=[], marks=[])
    if not (path and os.path.exists(path)):
        return Session(None, [], new)
    session = load(path)
    earlier = dict(refused=[], kernel="SE", marks=[])        # of a version that kept none
    session = session._replace(about=session.about | earlier | session.about)
    check_usable(path, session, dict.fromkeys(choices, object) | KEPT)
    for name, value in choices.items():
        was = session.about[name]
        if was != value:
            raise ValueError(f"{path} was made with {name} = {was}, not {value}: a certificate is "
                             "for one choice, made before the stream")
    return session


# --- rows ----------------------------------------------------------------------------------------

# Input columns of a stream: with so many a row takes about 1 s.
MOST_INPUTS = 10_000


def stream_rows(lines, args, about):
    """A line that says what is read, settings with the columns, and a generator of rows (d+2,).

    A row has its number first, the target last. lines: of the table. A file's `seen` first rows are
    left out. ValueError where a file does not begin with the rows whose digest is given, and where
    the columns are not those of the settings: their names, or without a header their number.
    """
    piped = args.table == "-"
    source = {None: "the demo", "-": "standard input"}.get(args.table, args.table)
    about = dict(about)
    known = about["names"]
    seen = about["seen"]

    def choose(names):
        about["names"] = names
        if known and names != known:
            bare = ", without a header" * (not about["header"])
            raise ValueError(f"{source} has the columns {few(names)}; {args.state} was made with "
                             f"{few(known)}{bare}")
        chosen = chosen_columns(names, args, 1)
        if len(chosen) - 1 > MOST_INPUTS and not args.clock:
            raise ValueError(f"{source} has {len(chosen) - 1} input columns, of which a stream "
                             f"takes {MOST_INPUTS} at most: --inputs chooses some")
        return chosen[-1:] if args.clock else chosen
    table = read_rows(lines, source, choose, args.decimal, known)
    columns = next(table, None)
    if columns is None:
        raise ValueError(f"{source} has no rows of numbers")
    clock = len(columns.names) == 1
    used = ["the row number"] * clock + columns.names
    about.update(header=columns.header or about["header"], used=used)

    def numbered():
        for n, row in enumerate(table, seen * piped + 1):
            yield np.concatenate([[n], [n - 1.0] * clock, row])
    rows = numbered()
    if not piped:
        digest = 0
        for _ in range(seen):
            digest = crc32(next(rows, b"no row"), digest)
        if digest != about["digest"]:
            raise ValueError(f"{source} does not begin with the {seen} rows that {args.state} has "
                             "seen: give the whole table, or new rows on standard input")
    return what_was_read(used, columns.header, columns.ignored), about, rows


def whole_lines(lines):
    """The lines but a last one that has no end: it may be half written. A warning says so."""
    for line in lines:
        if line.endswith(("\n", "\r")):
            yield line
        elif line.strip():
            warnings.warn("the last line has no end: it may be half written, and is left for the "
                          "next run (standard input must bring it again)", Note, stacklevel=2)


def with_row(session, row):
    """The Session with one more row that waits; an incomplete one is counted and skipped."""
    was = session.about
    missing = bool(np.isnan(row).any())
    about = dict(was, seen=was["seen"] + 1, skipped=was["skipped"] + missing,
                    digest=crc32(row, was["digest"]))
    waiting = session.waiting + [row] * (not missing)
    return Session(session.learner, waiting, about)


class RowsRefused(ValueError):
    """Says which rows `step` does not take; session: the one without them, which counts them."""

    def __init__(self, text, session):
        super().__init__(text)
        self.session = session


def without_refused(learner, waiting, about):
    """RowsRefused where `step` does not take one of the waiting rows alone."""
    refused = {}
    for row in waiting:
        try:
            step(learner, row[None, 1:-1], row[-1:])
        except ValueError as err:
            refused[int(row[0])] = str(err)
    if refused:
        first, why = next(iter(refused.items()))
        taken = [row for row in waiting if row[0] not in refused]
        about = dict(about, refused=about["refused"] + [*refused])
        raise RowsRefused(f"row {first}: {why}; it is left out and counted",
                          Session(learner, taken, about))


def learn_waiting(session, settings, first, batch, lines_of_step=lambda *_: ()):
    """The Session after the rows that wait: the first `first` begin, each whole batch is a step.

    lines_of_step: of the Learners before and after a step and the rows of its batch, the lines of
    --out. RowsRefused where `step` does not take a row.
    """
    learner, waiting, about = session
    lines = []
    if len({len(row) for row in waiting}) > 1:
        raise ValueError(f"a row has {len(waiting[-1])} columns, those before it "
                         f"{len(waiting[0])}: is it another table?")
    while len(waiting) >= (size := first if learner is None else batch):
        rows = np.array(waiting[:size])
        waiting = waiting[size:]
        X, y = rows[:, 1:-1], rows[:, -1]
        if learner is None:
            function, start, _ = KERNELS[about["kernel"]]
            ln_theta = start(X.shape[1], True)           # l^2 = d: from l = 1 wide tables stick
            learner = begin(X, y, settings, ln_theta, kernel=function)
        else:
            before = learner
            try:
                learner = step(before, X, y)
            except ValueError:
                without_refused(before, [*rows, *waiting], about)
                raise
            lines += lines_of_step(before, learner, rows)
            about = dict(about, marks=doubled(about["marks"], learner.ledger))
    if lines:
        about = dict(about, lines=lines)
    return Session(learner, waiting, about)


# --- what is printed -----------------------------------------------------------------------------

# Of the Certificates, in words, in their order.
TITLES = ("sampled", "mean", "interval", "training", "persistence", "average")
HEADINGS = ("After so many evaluated rows: RMSE [target's unit], bounds on the risk, mean losses, "
            "KL [nats a row]\n\n"
            + f"{'':20}" + "".join(f"  |{name:^16}" for name in TITLES[:4]).rstrip()
            + f"\n{'rows':>8}{'RMSE':>12}" + f"  |{'bound':>8}{'loss':>8}" * 4 + f"{'KL':>10}")


def running_line(learner):
    """The line of numbers under HEADINGS; RMSE [y] is that of the forecasts so far."""
    ledger = learner.ledger
    error = math.sqrt(ledger.squares / ledger.rows)
    first = certificates(learner)[:4]
    cells = "".join(f"  |{bound_text(one.bound):>8}{one.loss:8.4f}" for one in first)
    return f"{ledger.rows:8.0f}{error:12.4g}{cells}{first[3].KL:10.4f}"


def eps_text(learner):
    """The tolerance eps in words, its unit with it."""
    settings = learner.settings
    if settings.unit == "first":
        return f"{rounded_up(settings.eps * learner.eps_unit)} ({deviations(settings.eps)} of the warm-up rows)"
    return as_given(settings.eps)


def doubled(marks, ledger):
    """marks, [[evaluated rows, their summed loss of the mean], ...], with one more where the rows
    are twice the last one's, the first at 100."""
    if ledger.rows < (2 * marks[-1][0] if marks else 100):
        return marks
    return [*marks, [ledger.rows, ledger.mean]]


def drift_said(marks, ledger):
    """A sentence where the mean's loss grew after the last mark of at most half of the rows; or "".

    It grew by 3 standard errors, as of independent losses in [0, 1]. A GP that learns should not
    get worse.
    """
    halves = [mark for mark in marks if 2 * mark[0] <= ledger.rows]
    if not halves:
        return ""
    rows, loss = halves[-1]
    counts = np.array([rows, ledger.rows - rows])
    before, after = losses = np.array([loss, ledger.mean - loss]) / counts
    variances = np.maximum(losses * (1 - losses), 0) / counts
    if after <= before + 3 * math.sqrt(np.sum(variances)):
        return ""
    return (f"The mean loss grew from {before:.2g} in the first {rows:.0f} evaluated rows to "
            f"{after:.2g} after them: if the target drifts, --memory 0.98, fixed before a stream, "
            "forgets what is old.")


def at_most(one):
    """What a Certificate says of its risk."""
    return "at most " + (bound_text(one.bound) if one.bound < 0.9999 else
                         "1 (nothing is certified)")


def left_out(skipped, refused):
    """What is said of rows that do not count, "" if there are none; refused: their numbers."""
    said = [incomplete(skipped)] * (skipped > 0)
    if refused:
        rows = many(len(refused), "row")
        said.append(f"{rows} refused for size (number {few([*map(str, refused)])})")
    return ", ".join(said)


def summary(learner, name, first, skipped=0, batch=1, refused=(), marks=()):
    """The certificates: the answer, a table, the conditions as a list.

    Tolerance and bounds are rounded up, the confidence down. skipped: incomplete rows; batch: rows
    that are learnt from at once; refused: numbers of rows that `step` does not take; marks: of
    doubled.
    """
    six = certificates(learner)
    settings = learner.settings
    kernel = kernel_said(learner.posterior.kernel)
    sure = confidence_percent(settings.delta)
    rows = many(six.mean.m, "evaluated row")
    answer = (f"The GP's mean had a {settings.loss} loss of {six.mean.loss:.4f} on average over "
              f"{rows} of {name}, eps = {eps_text(learner)}.")
    if settings.loss == "01":
        answer = (f"The GP's mean missed {name} by more than {eps_text(learner)} in "
                  f"{100 * six.mean.loss:.0f} % of {rows}.")
    without = left_out(skipped, refused)
    whose = "its risk" + ", of complete rows," * bool(without)
    answer += (f" With {sure} % confidence {whose} was {at_most(six.mean)} (persistence forecast: "
               f"{at_most(six.last)}).")
    naive = min(six.last, six.average, key=lambda one: one.bound)
    if naive.bound <= min(six.mean.bound, 0.9999):
        which = "persistence forecast" if naive is six.last else "average of the values so far"
        answer += f" The {which} has a bound no worse than that of the GP's mean: prefer it."
    drift = drift_said(marks, learner.ledger) * (settings.forgetting == 1)
    answer = f"{answer} {drift}".strip()
    came = "row" if batch == 1 else f"batch of {batch} rows"
    table = [f"  {'':<16}" + "".join(f"{title:>12}" for title in TITLES)]
    cells = {
        "mean loss": [f"{one.loss * (one.loss > 1e-9):.4f}" for one in six],
        "KL, nats a row": [f"{one.KL:.4f}" for one in six],
        "bound": [bound_text(one.bound) for one in six],
        "lambda": [f"{one.lam:.3g}" for one in six],
    }
    table += [f"  {title:<16}" + "".join(f"{cell:>12}" for cell in row)
              for title, row in cells.items()]
    return answer_and_conditions(answer, table, [
        many_deviations(settings.eps) * (settings.unit != "y"),
        f"The bounds hold at every row simultaneously, with {sure} % confidence for all six "
        "together (a union bound).",
        "Risk is the expected loss of a row, given the rows before it. It is averaged over the "
        f"{rows}, whose order and dependence may be any. It says nothing about "
        "inputs the stream has not come to.",
        f"Warm-up: the first {many(first)}. They set scale and start, and are not evaluated.",
        f"sampled: a function sampled from the GP just before its {came} came; mean: that GP's "
        "mean; interval: whether y lies outside its 95 % interval.",
        f"training: the GP just after its {came} was learnt, or before it where learning "
        "costs more KL than it gains; persistence: the last value; average: the mean of all values "
        "so far.",
        "lambda: the value of --lam that counts most in the mixture of all.",
        f"It is about complete rows: {without}." * bool(without),
        f"The oldest inducing points are pruned (--discard {settings.discard})."
        * (discarded(settings, learner.moved) == "oldest"),
        f"K{kernel[1:]}." * bool(kernel)])


def is_due(before, after, every):
    """Whether the number of evaluated rows passes a multiple of `every` from `before` to `after`.

    None: one of 10, 20, 50, 100, ...
    """
    if every:
        return after // every > before // every
    return any(before < a * 10**b <= after for a in (1, 2, 5) for b in range(1, 12))


def running_facts(session):
    """What --json says of a Session with evaluated rows: running numbers and certificates."""
    ledger = session.learner.ledger
    six = certificates(session.learner)._asdict()
    return dict(
        rows=int(ledger.rows), seen=session.about["seen"], skipped=session.about["skipped"],
        refused=session.about.get("refused", []),
        kernel=kernel_name(session.learner.posterior.kernel),
        rmse=math.sqrt(ledger.squares / ledger.rows),
        certificates={name: one._asdict() for name, one in six.items()})


def draw_history(ax, history):
    """Certificates over time, on an Axes; history: facts."""
    colours = {"draw": "#0072B2", "mean": "#D55E00", "interval": "#009E73", "last": "0.5"}
    titles = dict(zip(Certificates._fields, TITLES))
    rows = [now["rows"] for now in history]
    for name, colour in colours.items():
        ones = [now["certificates"][name] for now in history]
        ax.plot(rows, [one["bound"] for one in ones], color=colour, label=titles[name])
        ax.plot(rows, [one["loss"] for one in ones], "--", color=colour, lw=0.8)
    ax.set(xlabel="evaluated rows", ylabel="bound (dashed: mean loss)", xscale="log", ylim=(0, 1))
    ax.legend()


def none_counts(session, args):
    """What is said where no row is left to evaluate."""
    skipped = session.about["skipped"]
    complete = session.about["seen"] - skipped
    without = f", {incomplete(skipped)}" * (skipped > 0)
    return (f"{args.table or 'the demo'}: {many(complete, 'complete row')}{without}: the first "
            f"{args.first} set the scale, none is left to evaluate")


def print_end(session, args, new, history=(), kept=False):
    """Prints how many rows wait, and the summary if any; then saves, draws, predicts.

    As the options say. kept: whether --state has the Session.
    """
    about = session.about
    waiting = len(session.waiting)
    if waiting and kept:
        until = "until warm-up or batch is complete"
        emit(args, f"\nKept in {args.state} {until}: {many(waiting)}.")
    elif waiting and evaluated_rows(session):
        emit(args, f"\nNot learnt from: {many(waiting)}.")
    skipped = [f"--{name}" for name in ("save", "plot") if getattr(args, name) is not None]
    if skipped and not evaluated_rows(session):
        warnings.warn(f"{' and '.join(skipped)} wrote nothing: no row is evaluated yet", Note,
                      stacklevel=2)
    if evaluated_rows(session):
        choices = [about[name] for name in ("first", "skipped", "batch")]
        text = summary(session.learner, about["used"][-1], *choices, about.get("refused", []),
                       about.get("marks", []))
        emit(args, "\n" + text)
        now = running_facts(session)
        finish(args, session, new, lambda path, session: save(path, *session), limits,
               dict(now, text=text), [lambda ax: draw_history(ax, [*history, now])])


# --- the lines of --out --------------------------------------------------------------------------

def rows_out(path, done, lines):
    """The open file of --out; what it says of rows up to the number `done` is kept.

    lines: of the last batch up to `done`, in case an earlier run was killed before it wrote them;
    None: the stream has had no --out yet. ValueError where the file cannot be written, or has
    other lines.
    """
    with writing(path):
        file = open(path, "r+" if done and os.path.exists(path) else "w+")
        try:
            kept = own_lines(path, file.readlines(), done, lines)
        except ValueError:
            file.close()
            raise
        file.seek(0)
        file.writelines([STREAMED, *kept])      # the same text: killed here, nothing is lost
        file.truncate()
        return file


def own_lines(path, text, done, lines):
    """Of the lines `text` of the file of --out, those of rows up to `done`, the last batch's
    `lines` among them.

    ValueError where one is no row's, or of another stream.
    """
    head, *old = text or [""]
    if head not in ("", STREAMED):
        raise ValueError(f"--out {path}: not written by --out before")
    if lines is None and old:
        raise ValueError(f"--out {path} has rows of another stream: choose another file")
    of = {}
    for n, line in enumerate(old, 2):
        number, *rest = line.split(",")
        if not line.endswith("\n"):
            continue                                 # killed while it was written
        if not (number.isdecimal() and rest):
            raise ValueError(f"--out {path}, line {n} has no row: remove it, or choose another "
                             "file")
        if int(number) <= done:
            of[int(number)] = line
    for line in (lines or []) * (head == STREAMED):
        number = int(line.split(",")[0])
        if of.setdefault(number, line) != line:
            raise ValueError(f"--out {path} has row {number} of another stream: choose another "
                             "file")
    return of.values()


@contextlib.contextmanager
def closing(path, file):
    """The open file inside; closed at the end. ValueError where its last lines cannot be
    written."""
    try:
        yield file
    finally:
        with writing(path):
            file.close()


def out_lines(before, after, rows):
    """A line of --out for each row of a batch.

    y's forecast before it came, its loss (the batch's mean), the bound for draws.
    """
    mean, _, var = forecast(before, rows[:, 1:-1])
    loss = (after.ledger.before - before.ledger.before) / len(rows)
    bound = one_of_six(after.settings, after.ledger, after.ledger.before).bound
    for row, *predicted in zip(rows, *interval(mean, var)):
        numbers = (repr(float(v)) for v in (*predicted, row[-1], loss, bound))
        yield ",".join([f"{row[0]:.0f}", *numbers]) + "\n"


def limits(session, X_new):
    """mean, sd, lower, upper (n,) [y] of y at X_new (n, d).

    Of a clock without columns X_new is (n, 0), for the next n rows.
    """
    if not input_names(session.about):
        X_new = session.about["seen"] + np.arange(len(X_new), dtype=float)[:, None]
    mean, _, var = forecast(session.learner, X_new)
    return interval(mean, var)


# --- the program ---------------------------------------------------------------------------------

def command_line():
    """The parser of main; Settings has the defaults of its choices."""
    ap = parser(online.__file__, "where 95 %% of the targets lie",
                description="A Gaussian process that learns from a stream, with a certificate at "
                            "every row (Liu et al. 2022, made to hold).")
    ap.add_argument("--eps", type=REAL,
                    help="tolerance in units of --unit; default: 0.6 in --unit first or running")
    ap.add_argument("--unit", choices=EPS_UNITS,
                    help="unit of eps: the standard deviation of the warm-up rows, that of all "
                         "rows before (an outlier softens it), or the target's own unit (first)")
    ap.add_argument("--loss", choices=CERTIFIED_LOSSES, help="default: 01")
    ap.add_argument("--delta", type=REAL,
                    help="probability that the certificate ever fails (0.05)")
    ap.add_argument("--lam", type=REAL, nargs="+", dest="lams", metavar="LAM",
                    help="lambdas that the bound averages over; several loosen it a little "
                         f"({LAMS[0]:g}, {LAMS[1]:g}, .., {len(LAMS)} of them)")
    ap.add_argument("--inducing", type=WHOLE, dest="M", metavar="M",
                    help="inducing inputs at most (50)")
    ap.add_argument("--discard", choices=DISCARD,
                    help="inducing inputs that are pruned: the most redundant, those worth least, "
                         "the oldest; or (auto) the oldest while an input has moved one way only, "
                         "as a row number or a date does, else the most redundant (auto)")
    kernel_option(ap)
    ap.add_argument("--learn", choices=LEARN,
                    help="what moves kernel and noise between steps (window: the exact evidence "
                         "of the last 50 rows)")
    ap.add_argument("--memory", type=REAL, dest="forgetting",
                    help="forgetting factor, kept of what is known from batch to batch: below 1 "
                         "where the target drifts (1)")
    ap.add_argument("--clock", action="store_true",
                    help="the row number is the only input (so it is for a single column)")
    ap.add_argument("--first", type=WHOLE, default=10,
                    help="warm-up rows: they set scale and start, and are not evaluated (10)")
    ap.add_argument("--batch", type=WHOLE, default=1,
                    help="rows that are learnt from at once (1)")
    ap.add_argument("--every", type=WHOLE,
                    help="rows between two printed lines; default: at 10, 20, 50, 100, ...")
    ap.add_argument("--state", metavar="FILE",
                    help="save everything here after each batch; go on from here if it is there "
                         "(a table is then skipped up to where it was read, standard input is "
                         "not)")
    ap.set_defaults(**dict(Settings()._asdict(), eps=None, discard=None))      # declared
    return ap


def declared(args):
    """The Settings of the command line, and all choices a saved state must share, a dict.

    ValueError that names the option.
    """
    check_unit(args)
    given = {name: getattr(args, name) for name in Settings._fields}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        settings = check_settings(Settings(**dict(discard="auto") | given))
    except ValueError as err:
        name, rest = str(err).split(" ", 1)
        option_name = {"M": "inducing", "lams": "lam", "forgetting": "memory"}.get(name, name)
        raise ValueError(f"--{option_name} {rest}") from None
    check_counts(args, "first", "batch", "every")
    check_square(settings.eps, settings.loss, 1e-150)
    of_table = {name: getattr(args, name)
                for name in ("discard", "kernel", "target", "inputs", "drop", "clock", "first",
                             "batch")}
    return settings, dict(settings._asdict(), lams=list(settings.lams), **of_table)


def begun_reading(lines, args, session):
    """The Session with what the table is, rows to come, their number or None, rows to predict for.

    Says what was read.
    """
    said, about, rows = stream_rows(lines, args, session.about)
    new = new_rows(args, input_names(about))
    total = None
    if args.table and os.path.isfile(args.table):
        total = sum(1 for _ in lines_of(args.table)) - about["header"]
    if args.table is None:
        said = f"No table given: this is a demo on 300 generated rows.\n\n{said}"
    if about["seen"]:
        said = f"Going on after row {about['seen']}.\n{said}"
    if args.batch == 1 and total and total > 20_000:
        said += "; --batch 50 is faster"
    emit(args, said)
    return session._replace(about=about), rows, total, new


def follow(lines, args):
    """Learns from the rows of the lines and prints certificates.

    Whatever ends it, saves the state and prints the summary.
    """
    settings, choices = declared(args)
    headings = f"\n{HEADINGS}\n"
    history = []
    known = [contents(args.state)] if args.state else []
    session, rows, total, new = begun_reading(lines, args, resumed(args.state, choices))

    def keep():
        if args.state:
            save(args.state, *session, known=known)
    keep()      # a place that cannot be written is noticed at once
    written = session.about["lines"]
    done = session.about["seen"]
    if session.waiting:
        done = int(session.waiting[0][0]) - 1      # rows that wait get lines yet
    rows_file = contextlib.nullcontext()
    if args.out and args.predict is None:
        had_none = evaluated_rows(session) > 0 and not written
        rows_file = closing(args.out, rows_out(args.out, done, None if had_none else written))
    with rows_file as out:
        lines_of_step = out_lines if out else lambda *_: ()

        def settle():
            """The state first: it has each row with a line in --out, and the lines that come."""
            nonlocal written
            keep()
            if out and written is not session.about["lines"]:
                written = session.about["lines"]
                with writing(args.out):
                    out.writelines(written)
                    out.flush()
        try:
            with progress(total, session.about["seen"]) as show:
                for row in rows:
                    if args.missing == "refuse" and np.isnan(row).any():
                        raise ValueError(f"row {row[0]:.0f} has an empty cell, NA, NaN or null: "
                                         "--missing drop skips it")
                    before = session
                    session = with_row(before, row)      # interrupted now, the row waits
                    try:
                        session = learn_waiting(session, settings, args.first, args.batch,
                                                lines_of_step)
                    except RowsRefused as err:
                        session = err.session
                        raise
                    except ValueError:
                        session = before
                        raise
                    show(session.about["seen"], "row")
                    if session.learner is not before.learner:
                        settle()
                    rows_drawn = history[-1]["rows"] if history else 0
                    if args.plot and evaluated_rows(session) > 1.02 * rows_drawn:
                        history.append(running_facts(session))
                    if is_due(evaluated_rows(before), evaluated_rows(session), args.every):
                        show(None, "")
                        line = headings + running_line(session.learner)
                        emit(args, line, args.json and running_facts(session))
                        headings = ""
                if not args.state:      # nothing keeps the rows that are left
                    left = len(session.waiting) or 1
                    try:
                        session = learn_waiting(session, settings, args.first, left, lines_of_step)
                    except RowsRefused as err:
                        session = err.session
                        raise
        finally:
            kept = False
            try:
                settle()
                kept = bool(args.state)
            finally:
                print_end(session, args, new, history, kept)
    if not evaluated_rows(session) and (new is not None or not args.state):
        raise ValueError(none_counts(session, args))
    return 0


def learn_from_table(argv):
    """The work of main. With --state the rows go on in another run: only whole lines are read."""
    ap = command_line()
    args = ap.parse_args(argv)
    check_files(ap, args, out_alone=True)
    if args.model is not None:
        session = load(args.model)
        if not (session.learner and session.learner.ledger.rows and "used" in session.about):
            raise ValueError(f"{args.model} has no evaluated rows, or no names of columns: it must "
                             "come from the command line, after more than --first rows")
        shown = dict(seen=int, skipped=int, used=list, first=int, batch=int)
        check_usable(args.model, session, shown)
        print_end(session, args, new_rows(args, input_names(session.about)))
        return 0
    lines = demo_lines() if args.table is None else lines_of(args.table)
    with contextlib.closing(lines):
        if args.state and args.table:
            return follow(whole_lines(lines), args)
        return follow(lines, args)


def main(argv=None):
    """`python online.py [table] [options]`: learns from rows as they come, prints certificates.

    Returns the exit status.
    """
    return exit_status(lambda: learn_from_table(argv))
