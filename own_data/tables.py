"""Tables of numbers as text files: read as they are, columns chosen, gaps counted."""
import codecs
import contextlib
import csv
import gzip
import io
import itertools
import math
import reprlib
import sys
import zlib
from typing import NamedTuple

import numpy as np

from own_data.models import few

MISSING = {"", "na", "n/a", "#n/a", "nan", "none", "null", "<na>"}     # cells, in lower case
COMMENT = ("#", "%")           # what begins a line that is no row
END = "<end>"
SWAP = str.maketrans(",.", "._")       # of decimal commas: 1.234 is no number then

csv.field_size_limit(2**31 - 1)


class Table(NamedTuple):
    """Complete rows of the columns that are used: inputs, then the target."""
    names: list                # of these columns
    values: np.ndarray         # (N, columns)
    dropped: int               # rows with a missing cell
    notes: list                # sentences on what was read as more than numbers


# --- lines and cells -----------------------------------------------------------------------------

def as_latin_1(err):
    """The bytes that are no UTF-8 as Latin-1."""
    return err.object[err.start:err.end].decode("latin-1"), err.end


codecs.register_error("latin-1", as_latin_1)


def lines_of(path):
    """The lines of a text file as they come, - is standard input.

    Plain or gzip; UTF-8, UTF-16 with its mark, or Latin-1. ValueError where it is no text.
    """
    if path == "-" and sys.stdin is None:
        raise ValueError("standard input is closed")
    opened = contextlib.nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb")
    with opened as raw:
        if raw.peek(2)[:2] == b"\x1f\x8b":
            raw = gzip.GzipFile(fileobj=raw)
        try:
            wide = raw.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
            for line in io.TextIOWrapper(raw, "utf-16" if wide else "utf-8-sig", "latin-1"):
                if "\0" in line:
                    raise ValueError(f"{path} is no text: save the table as CSV")
                yield line
        except (EOFError, zlib.error) as err:
            raise ValueError(f"{path}: {err}") from None


def rows_alone(lines, skip, comments):
    """(number from 1, line) of those that are neither skipped nor empty.

    Comments go to a list, as long as there are not two rows: later ones are told by their cells.
    """
    rows = 0
    for n, line in enumerate(lines, 1):
        text = line.strip()
        if n > skip and text and rows < 2 and is_comment(text):
            comments.append(text[1:])
        elif n > skip and text:
            rows += 1
            yield n, line


def is_comment(text):
    """Whether a line begins as a comment does, and not as Excel's missing cell."""
    return text.startswith(COMMENT) and not text.lower().startswith("#n/a")


def csv_rows(lines, mark):
    """Lists of cells; where blanks are between them, tabs are blanks."""
    if mark == " ":
        lines = (line.replace("\t", " ").strip() for line in lines)
    return csv.reader(lines, delimiter=mark, skipinitialspace=True)


def cells_of(numbered, mark, source):
    """(line number, cells) of rows from (number, line), which a quoted cell may extend over."""
    at = before = 0

    def fed():
        nonlocal at
        for at, line in numbered:
            yield line
        yield END
    for cells in csv_rows(fed(), mark):
        cells = [cell.strip() for cell in cells]
        if cells == [END]:
            return
        if END in cells[-1]:
            raise ValueError(f"{source}: a quote opens after line {before} and does not close")
        yield at, cells
        before = at


def number_reader(decimal=".", na=""):
    """A function of a cell: its value, NaN where it is missing; None of another text.

    na: cells that are missing, too, separated by commas; of a number, all that are equal to it.
    """
    marks = listed(na)
    values = {as_number(mark) for mark in marks}

    def number(cell):
        if cell.lower() in MISSING or cell in marks:
            return math.nan
        text = cell.translate(SWAP) if decimal == "," else cell
        try:
            value = float(text)
        except ValueError:
            return None
        if "_" in text or math.isinf(value):
            return None
        return math.nan if value in values else value
    return number


def as_number(cell):
    """The value of a cell with either decimal mark, NaN where it is missing; None of a text."""
    value = number_reader(".")(cell)
    return number_reader(",")(cell) if value is None else value


def listed(text):
    """The parts of an option, separated by commas; one with a comma is quoted."""
    return next(csv.reader([text or ""]), [])


# --- what the first lines say --------------------------------------------------------------------

def separator(lines, decimal):
    """The mark between cells: by it the first two rows are equally long, and the last most numbers.

    Blanks may be tabs, and several.
    """
    def merit(mark):
        rows = [*csv_rows(lines, mark)]
        first, last = rows[0], rows[-1]
        alike = len(last) > 1 and abs(len(last) - len(first)) < 2
        return alike, sum(as_number(cell) is not None for cell in last), len(last) > 1
    return max((mark for mark in ";\t, " if mark != decimal), key=merit)


def is_header(first, second):
    """Whether the cells of the first row are names: texts, or the numbers of the columns.

    Two whole numbers above two are a row. Whole numbers may be among names, such as years, if a
    text is above a number.
    """
    values = [as_number(cell) for cell in first]
    numbers = [value for value in values if value is not None and value == value]
    texts = [i for i, value in enumerate(values) if value is None]
    d = len(numbers)
    if not texts:
        sure = d > 2 or d == 2 and not all(cell.isdecimal() for cell in second)
        return sure and numbers in ([*range(d)], [*range(1, d + 1)])
    whole = [cell for cell, value in zip(first, values) if value in numbers]
    above = [i for i in texts if i < len(second) and as_number(second[i]) is not None]
    years = all(cell.isdecimal() for cell in whole) and len({*whole}) == len(whole)
    return not numbers or bool(years and above)


def without_twins(names):
    """The names, those that are empty or there before made their own, as pandas does."""
    found = []
    for i, name in enumerate(names):
        name = name or f"column {i}"
        times = sum(other == names[i] for other in names[:i])
        found.append(f"{name}.{times}" if name in found else name)
    return found


def header_above(comments, row, mark):
    """Names from the last of the comments above the first row, if it has as many; else none."""
    for cells in csv_rows(comments[-1:], mark):
        cells = [cell.strip() for cell in cells]
        if len(cells) == len(row) and is_header(cells, row):
            return cells
    return [""] * len(row)


def fitted(names, row):
    """The names, one for each cell of the row where they are one fewer or one more.

    R names no column of row names; a separator may end either line. Else the names as they are.
    """
    more = len(row) - len(names)
    numbers = [cell for cell in row if cell and as_number(cell) is not None]
    if more == -1 and not names[-1]:
        return names[:-1]
    if more == 1 and len(names) > 1 and numbers:
        return ["", *names] if row[-1] else [*names, ""]
    return names


def open_table(lines, source, decimal=".", skip=0, known=()):
    """names, unused, notes, rows of a table: rows are (line number, cells), from an iterator.

    Unused are the numbers of columns that have no name and begin empty, or, as an index does, are
    the first and begin with a whole number. known: the names where there is no header.
    """
    comments = []
    numbered = rows_alone(lines, skip, comments)
    top = [*itertools.islice(numbered, 1)]
    above = [*comments]
    top += itertools.islice(numbered, 1)
    if not top:
        raise ValueError(f"{source} has no rows")
    mark = separator([line for _, line in top], decimal)
    rows = cells_of(itertools.chain(top, numbered), mark, source)
    begin = [*itertools.islice(rows, 2)]
    names, row = begin[0][1], begin[-1][1]
    notes = []
    if is_header(names, row):
        if as_number(names[-1]) is not None:
            notes.append(f"the first line, {few(names)}, numbers the columns")
        names = fitted(names, row)
        del begin[0]
    else:
        names = known if len(known) == len(row) else header_above(above, row, mark)
    names = [name * (name != f"column {i}" and not name.startswith("Unnamed: "))      # of pandas
             for i, name in enumerate(names)]
    unused = []
    for i, name in enumerate(names):
        cells = [cells[i] for _, cells in begin if i < len(cells)]
        index = i == 0 and any(names) and cells and cells[0].isdecimal()
        if not name and cells and (index or not any(cells)):
            unused.append(i)
            notes.append(f"column {i} has no name and {'is an index' if index else 'is empty'}: "
                         "not used")
    return without_twins(names), unused, notes, itertools.chain(begin, rows)


# --- rows of numbers -----------------------------------------------------------------------------

def read_rows(lines, source, choose, decimal=".", na="", skip=0, known=()):
    """Yields names of the columns used, names of all, and notes; then row by row (columns,) numbers,
    NaN for a gap.

    choose: of the names of all columns and the numbers of those without a use -> numbers of those
    used. decimal, na, skip: the options; known: of open_table. ValueError that names source, line,
    column and cell.
    """
    names, unused, notes, rows = open_table(lines, source, decimal, skip, known)
    used = choose(names, unused)
    yield [names[i] for i in used], names, notes
    number = number_reader(decimal, na)
    for n, cells in rows:
        if len(cells) != len(names) and is_comment(cells[0]):
            continue
        if len(cells) != len(names):
            raise ValueError(f"{source}, line {n}: {len(cells)} cells, not {len(names)} (--skip N "
                             "leaves out N lines above a table)")
        row = [number(cells[i]) for i in used]
        if None in row:
            bad = [i for i, value in zip(used, row) if value is None]
            last = names[used[-1]] if used[-1] in bad else None
            said = refusal({i: cells[i] for i in bad}, names, last)
            raise ValueError(f"{source}, line {n}, {said}")
        yield np.array(row)


def refusal(cells, names, target):
    """Which cells {column: cell} are no numbers, and the remedy, in words.

    target: the name of the target if its cell is one of them.
    """
    said = few([f"{names[i]}: {reprlib.repr(cell)}" for i, cell in cells.items()])
    columns = ",".join(names[i] if names[i].isidentifier() else str(i) for i in cells)
    remedy = f"--drop {columns} leaves columns out, --na names cells that mean missing"
    if target:
        remedy = f"{target} is the target, which --target chooses; {remedy}"
    if all(as_number(cell) is not None for cell in cells.values()):
        remedy = "a decimal comma? --decimal , ; separators of thousands? remove them"
    return f"{said}: no finite number ({remedy})"


def read_table(lines, source, choose, keep_gaps=False, **reading):
    """The Table of the lines: rows with a gap are left out and counted, or kept with their NaN.

    reading: decimal, na and skip of read_rows.
    """
    (names, _, notes), *rows = read_rows(lines, source, choose, **reading)
    values = np.array(rows).reshape(len(rows), len(names))
    complete = ~np.isnan(values).any(1)
    if not keep_gaps:
        notes = notes + [*likely_codes(names, values)]
        if not complete.any():
            empty = [name for name, v in zip(names, values.T) if np.isnan(v).all()]
            raise ValueError(f"{source} has no complete row of {len(rows)}; "
                             f"empty in all: {few(empty)} (--drop leaves columns out)")
    return Table(names, values if keep_gaps else values[complete], int(np.sum(~complete)), notes)


def likely_codes(names, values):
    """A sentence for each column of values (N, columns) where an extreme value that repeats is far
    outside the others, as a code for missing is.

    Far: farther than their range, or, if it is written in nines, a tenth of that.
    """
    for name, column in zip(names, values.T):
        known = column[~np.isnan(column)]
        for code in (known.min(initial=0), known.max(initial=0)):
            others = known[known != code]
            times = len(known) - len(others)
            nines = {*f"{abs(code):.12g}"} <= {*"9."}
            room = np.ptp(others) / (10 if nines else 1) if len(others) else 0.0
            if times > 1 and 0 < room < np.abs(others - code).min():
                yield (f"{name} is {code:.12g} in {times} of {len(column)} rows, far outside the "
                       f"others: if that means missing, --na={code:.12g}")


# --- columns -------------------------------------------------------------------------------------

def column(names, which, option):
    """The number of a column, named or numbered from 0; ValueError names the option."""
    if which in names:
        return names.index(which)
    if which.isdecimal() and int(which) < len(names):
        return int(which)
    raise ValueError(f"--{option} {which!r} is no column; the columns are {few(names)}")


def chosen(names, unused=(), target=None, inputs=None, drop=None, group=None, least=2):
    """Numbers of the columns used: of the group if any, of the inputs, of the target.

    By default the target is the last column, and all others but the unused are inputs. ValueError
    unless there are `least` columns, and where the target is an input.
    """
    def numbers(option, text):
        return [column(names, which, option) for which in listed(text)]
    group = numbers("group", group)
    apart = numbers("drop", drop) + group
    left = [i for i in range(len(names)) if i not in apart and i not in unused]
    if len(left) < least:
        raise ValueError(f"the table needs inputs and a target; its columns are {few(names)} "
                         "(--skip N leaves out N lines above a table)")
    target = (numbers("target", target) or left)[-1]
    inputs = numbers("inputs", inputs) or [i for i in left if i != target]
    if target in (*inputs, *apart):
        raise ValueError(f"{names[target]} is the target, and no input: --target chooses another")
    return [*group, *inputs, target]
