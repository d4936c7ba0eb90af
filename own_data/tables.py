"""Tables of numbers: read from a file or a pipe, their columns chosen, their rows counted."""
import contextlib
import math
import sys
from collections import Counter
from typing import NamedTuple

import numpy as np

# cells, in lower case, that make a row incomplete; all else must be a finite number
MISSING = ("", "na", "nan", "null")
# of a cell such as 6.551,42 or 1 998
THOUSANDS = r"[-+]?\d{1,3}([.,'\u2019\s]\d{3})+([.,]\d+)?"


def lines_of(path):
    """The lines of a text table, one by one as they come: of a file, a pipe or, for -, standard
    input, opened once.

    Plain or gzip, in UTF-8; a byte that is none becomes an escape such as \\xe9. ValueError where
    it is missing, truncated or no text.
    """
    import gzip
    import zlib
    source = "standard input" if path == "-" else path
    if path == "-" and sys.stdin is None:
        raise ValueError("cannot read standard input: it is closed")
    try:
        opened = contextlib.nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb")
        with opened as raw:
            file = gzip.GzipFile(fileobj=raw) if raw.peek(1)[:1] == b"\x1f" else raw
            for line in file:
                if b"\0" in line:
                    raise ValueError(f"cannot read {source}: UTF-16, or no text: save it as UTF-8")
                for part in line.splitlines(True):               # of a file of old Macs
                    yield part.decode("utf-8-sig", "backslashreplace")
    except (OSError, EOFError, zlib.error) as err:
        raise ValueError(f"cannot read {source}: {err}") from None


def is_number(cell):
    """Whether float() takes the cell, without the underscores of Python; "inf" counts as a number,
    "nan" as missing."""
    try:
        return not math.isnan(float(cell)) and "_" not in cell
    except ValueError:
        return False


def number(cell, swap={}):
    """The cell's value: NaN where it is one of MISSING, infinite where it is no finite number.

    swap: of str.translate, where the decimal mark is a comma.
    """
    if cell.lower() in MISSING:
        return math.nan
    text = cell.translate(swap) if swap else cell
    return float(text) if is_number(text) else math.inf


class Table(NamedTuple):
    """A table of numbers, as it was read."""
    names: list                # of the columns that are used: inputs first, the target last
    values: np.ndarray         # (N, columns)
    header: bool               # whether the names are the first line's
    dropped: int = 0           # rows with a missing cell
    ignored: list = []         # names of columns that are not used
    groups: np.ndarray = None  # (N,) labels of --group, or None


def read_rows(lines, source, choose=None, decimal=".", known=None, drop=True):
    """Yields a Table without values, then row by row the numbers (columns,) as the lines come.

    Cells are separated by semicolons, tabs or commas, and may then be quoted, or else by blanks; a
    first line without any number is a header. Missing cells are NaN. An empty line is no row, but
    where there is one column alone it is a missing cell, which counts as soon as a row follows.
    choose: takes the names of all columns, and returns the numbers of those that are used, in
    order; None: all. The cells of others may be anything on their line. decimal: "," makes a point
    in a number an error. known: the names where there is no header. drop: whether --drop may leave
    out any column but the last.
    ValueError that names source and line where a row has another length, a quoted cell does not
    end on its line, or cells are neither missing nor finite numbers: all such cells of that line.
    """
    import csv
    import re
    import reprlib
    names = None
    mark = None
    empty = 0
    marks = ";\t" if decimal == "," else ";\t,"
    swap = str.maketrans(",.", ".,") if decimal == "," else {}

    def like_number(cell):
        either = is_number(cell.translate(swap)) or is_number(cell.replace(",", ".", 1))
        return either or re.fullmatch(THOUSANDS, cell)
    for n, line in enumerate(lines, 1):
        if not line.strip() and not (names and mark and mark in line):
            empty += 1
            continue
        if names is None:
            top = n
            bare = re.sub('"[^"]*"', "quoted", line)
            alone = ";" if len(bare.split()) == 1 else None
            mark = next((m for m in marks if m in bare), alone)
        try:
            cells = next(csv.reader([line], delimiter=mark, strict=True)) if mark else line.split()
        except csv.Error as err:
            hint = "(a quoted cell ends on its line)"
            raise ValueError(f"{source}, line {n}: {err} {hint}") from None
        cells = [c.strip() for c in cells]
        if names is None:
            named = [c for c in cells if c.lower() not in MISSING]
            header = bool(named) and not any(map(like_number, named))
            names = [f"column {i}" for i in range(len(cells))]
            if header:
                names = cells
            elif known and len(known) == len(cells):
                names = known
            used = choose(names) if choose else range(len(names))
            ignored = sorted({*range(len(names))} - {*used})
            of = lambda numbers: [names[i] for i in numbers]
            yield Table(of(used), None, header, 0, of(ignored))
            if header:
                empty = 0
                continue
        if len(names) == 1:
            yield from [np.full(len(used), np.nan)] * empty
        empty = 0
        if len(cells) != len(names):
            said = f"{len(cells)} cells where the first line has {len(names)}"
            raise ValueError(f"{source}, line {n}: {said}")
        row = np.array([number(cells[i], swap) for i in used])
        if np.isinf(row).any():
            bad = {i: cells[i] for i, v in zip(used, row) if math.isinf(v)}
            good = {i: cells[i] for i in used if i not in bad}
            hints = ["a header has no number among its names"] * (n == top)
            hints += remedies(bad, good, names, mark, decimal, used[-1] if drop else None)
            said = few([f"{names[i]}: {reprlib.repr(cell)}" for i, cell in bad.items()])
            said += " is not a finite number" if len(bad) == 1 else " are not finite numbers"
            said += f" ({'; '.join(hints)})" * bool(hints)
            raise ValueError(f"{source}, line {n}, {said}")
        yield row


def read_table(path, choose=None, decimal=".", missing="drop"):
    """The Table at path, read and refused as by lines_of and read_rows.

    missing: incomplete rows are left out ("drop"), an error ("refuse"), or stay with their NaN
    ("keep"); they are counted.
    """
    source = "standard input" if path == "-" else path
    with contextlib.closing(lines_of(path)) as lines:
        rows = list(read_rows(lines, source, choose, decimal, drop=missing != "keep"))
    if len(rows) < 2:
        raise ValueError(f"{source} has no rows of numbers")
    values = np.array(rows[1:])
    complete = ~np.isnan(values).any(1)
    table = rows[0]._replace(values=values, dropped=int(np.sum(~complete)))
    if missing == "keep":
        return table
    if not complete.any():
        empty = [name for name, column in zip(table.names, values.T) if np.isnan(column).all()]
        culprit = f"; in every row: {few(empty)} (--drop leaves a column out)" if empty else ""
        raise ValueError(f"{source} has no complete row: of {len(values)}, each has an empty cell, "
                         f"NA, NaN or null{culprit}")
    if table.dropped and missing == "refuse":
        raise ValueError(f"{source}: row {np.argmin(complete) + 1} has an empty cell, NA, NaN or "
                         f"null (incomplete rows: {table.dropped}): --missing drop leaves them out")
    return table._replace(values=values[complete])


def column_number(names, which, option):
    """The number of the column `which`: a name, or a number from 0. ValueError names the option."""
    times = names.count(which)
    if times > 1:
        raise ValueError(f"{option} {which!r} is the name of {times} columns: give its number")
    if times == 1:
        return names.index(which)
    if not (which.isdecimal() and int(which) < len(names)):
        raise ValueError(f"{option} {which!r} is no column; the columns are {few(names)}")
    return int(which)


def by_group(args):
    """Whether --group, which one program has, is given."""
    return getattr(args, "group", None) is not None


def chosen_columns(names, args, least=2):
    """Numbers of the columns that --inputs, --drop and --target ask for: inputs, default all
    others, then the target; before them the column of --group, if it is given.

    least: columns that must be left.
    """
    of = lambda option, listed: [column_number(names, which, option) for which in listed or []]
    inputs = of("--inputs", args.inputs)
    group = of("--group", [args.group] if by_group(args) else None)
    drop = of("--drop", args.drop) + group
    left = sorted({*range(len(names))} - {*drop})
    if len(left) < least:
        needs = "the table needs at least two columns, inputs and a target"
        raise ValueError(f"{needs}; it has {few(names)}")
    target = left[-1] if args.target is None else column_number(names, args.target, "--target")
    for option, listed in (("--inputs", inputs), ("--drop", drop)):
        if target in listed:
            raise ValueError(f"{option} names {names[target]!r}, which is the target: "
                             "choose another by --target")
    both = [names[i] for i in inputs if i in drop]
    if both:
        raise ValueError(f"--inputs and --drop both name {', '.join(both)}")
    used = [i for i in inputs or left if i != target] + [target]
    name, times = Counter(names[i] for i in used).most_common(1)[0]
    if times > 1:
        raise ValueError(f"two of the columns have the name {name or '(none)'}: "
                         "--inputs chooses columns by number, too")
    return group + used


def named_columns(names, wanted, source):
    """Numbers of the columns with the names `wanted`. ValueError where one is missing or there
    twice."""
    at = dict(zip(names, range(len(names))))
    counts = Counter(names)
    missing = [name for name in wanted if counts[name] != 1]
    if missing:
        raise ValueError(f"{source} must have each input once, by name: {few(missing)}; "
                         f"it has {few(names)}")
    return [at[name] for name in wanted]


def incomplete(dropped):
    """What is said of rows that were left out, "" if there are none."""
    rows = many(dropped, "incomplete row")
    return f"{rows} left out (a cell is empty, NA, NaN or null)" * (dropped > 0)


def many(n, thing="row"):
    """The number of things in words: 1 row, 2 rows."""
    return f"{n} {thing}{'s' * (n != 1)}"


def few(names):
    """Names of columns, separated by commas; of more than ten the first ten, and their number."""
    more = f" and {len(names) - 10} more ({len(names)})" if len(names) > 10 else ""
    return ", ".join(name or "(no name)" for name in names[:10]) + more


def remedies(bad, good, names, mark, decimal, target):
    """What helps, in words, where cells of a row, {number of column: text}, are no finite numbers.

    good: its other cells. mark: what separates the cells. target: the number of the column that
    --drop cannot leave out; None: it can leave out none.
    """
    import re
    other, word, own = (",", "comma", "point") if decimal == "." else (".", "point", "comma")
    is_turned = lambda cell: other in cell and is_number(cell.replace(",", ".", 1))
    turned = [i for i, cell in bad.items() if is_turned(cell)]
    suspect = {**good, **bad} if turned else bad
    large = [i for i, cell in suspect.items() if re.fullmatch(THOUSANDS, cell)]
    texts = [i for i in bad if i not in turned and i not in large]
    if large:
        yield "thousands separators? remove them"
    if turned:
        mixed = mark == other or any(decimal in cell for cell in good.values())
        yield f"a decimal {word}? " + (f"write a {own}" if mixed else f"use --decimal {other}")
    if target in texts:
        yield f"{names[target]} is the target, which --target chooses"
    drop = [i for i in texts if i != target and target is not None]
    if drop:
        columns = [names[i] if names[i].isidentifier() else str(i) for i in drop]
        which = ",".join(columns) if len(drop) <= 10 else "A,B"
        yield ("correct the cell; or encode a column of texts as docs/own-data.md says, or leave "
               f"it out: --drop {which}")


def what_was_read(names, header, ignored=()):
    """One line: inputs, target, header or none, columns that are not used."""
    said = f"inputs {few(names[:-1])}; target {few(names[-1:])}; "
    said += f"header: {'yes' if header else 'none'}"
    return said + f"; not used: {few(ignored)}" * bool(ignored)


def table_of(args, demo):
    """The Table that the options name, or the demo's, the line that says what was read, and the
    same as a dict."""
    choose = lambda names: chosen_columns(names, args)
    if args.table is None:
        used = choose(demo.names)
        names = [demo.names[i] for i in used]
        table = demo._replace(names=names, values=demo.values[:, used])
    else:
        table = read_table(args.table, choose, args.decimal, args.missing)
    grouped = ""
    if by_group(args):
        (by, *names), values = table.names, table.values
        table = table._replace(names=names, values=values[:, 1:], groups=values[:, 0])
        grouped = f"; {len(np.unique(table.groups))} groups by {by}"
    N = len(table.values)
    demo_said = f"No table given: this is a demo on {N} generated rows.\n\n"
    said = demo_said * (args.table is None) + f"{many(N)}; "
    said += what_was_read(table.names, table.header, table.ignored) + grouped
    said += f"; {incomplete(table.dropped)}" * (table.dropped > 0)
    *inputs, target = table.names
    read = dict(rows=N, inputs=inputs, target=target, header=table.header, dropped=table.dropped,
                not_used=table.ignored)
    return table, said, read
