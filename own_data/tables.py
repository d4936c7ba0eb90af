"""Tables of numbers as text files: read as they are, columns chosen, gaps counted."""
import codecs
import contextlib
import csv
import gzip
import io
import itertools
import math
import re
import reprlib
import shlex
import sys
import zlib
from functools import partial
from typing import NamedTuple

import numpy as np

from own_data.models import code_of, few, many

MISSING = {"", "na", "n/a", "#n/a", "nan", "none", "null", "<na>"}     # cells, in lower case
PIPE = "standard input"
COMMENT = ("#", "%")           # what begins a line that is no row, except
EXCEL_ERROR = re.compile(r"#(n/a|[^\W\d][\w/]*[!?])", re.IGNORECASE)
END = "<end>"
MARKED = r"[-+]?\d+([.,' ]\d{3})*([.,]\d+)?"      # a number with other marks
DATE = r"\d{1,4}([-/.])\d{1,2}\1\d"        # how one begins
THOUSANDS = r"[-+]?\d{1,3}([.,' ]\d{3})+"
SWAP = str.maketrans(",.", "._")       # of decimal commas: 1.234 is no number then

csv.field_size_limit(2**31 - 1)


class Table(NamedTuple):
    """Complete rows of the columns that are used: inputs, then the target."""
    names: list                # of these columns
    values: np.ndarray         # (N, columns)
    dropped: int               # rows with a missing cell
    notes: list                # sentences on what was read as more than numbers
    categories: list           # numbers of the columns that hold codes, by models.code_of


# --- lines and cells -----------------------------------------------------------------------------

def as_latin_1(err):
    """The bytes that are no UTF-8 as Latin-1."""
    return err.object[err.start:err.end].decode("latin-1"), err.end


codecs.register_error("latin-1", as_latin_1)


def lines_of(path):
    """The lines of a text file as they come, plain or gzip; - is standard input.

    In UTF-8 or Latin-1. ValueError where it is no text.
    """
    if path == "-" and sys.stdin is None:
        raise ValueError("standard input is closed")
    opened = contextlib.nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb")
    with opened as raw:
        if raw.peek(2)[:2] == b"\x1f\x8b":
            raw = gzip.GzipFile(fileobj=raw)
        try:
            for line in io.TextIOWrapper(raw, "utf-8-sig", "latin-1"):
                if "\0" in line:
                    raise ValueError(f"{path} is no text in UTF-8: save the table as CSV")
                yield line
        except (EOFError, zlib.error, gzip.BadGzipFile) as err:
            raise ValueError(f"{path}: {err}") from None


def without_comments(lines, skip, comments):
    """The lines, empty in place of those skipped and of comments, which go to a list.

    Tabs alone are a row of empty cells, but above the table.
    """
    begun = False
    for n, line in enumerate(lines, 1):
        text = line.strip()
        if n <= skip:
            text = ""
        elif not begun and re.fullmatch("sep=.?", text, re.IGNORECASE):     # Excel's first line
            text = ""
        elif text.startswith(COMMENT) and not EXCEL_ERROR.match(text):
            comments.append(text[1:])
            text = ""
        elif begun:
            text = line.strip(" \n")
        begun = begun or bool(text)
        yield line if text else "\n"


def csv_rows(lines, mark, quoting=csv.QUOTE_MINIMAL):
    """A reader of lists of cells; where blanks are between them, tabs are blanks."""
    if mark == " ":
        lines = (line.replace("\t", " ").strip() for line in lines)
    return csv.reader(lines, delimiter=mark, skipinitialspace=True, quoting=quoting)


def cells_of(lines, mark, source):
    """(line number, cells) of the rows; a quoted cell may extend over lines, but not over rows:
    over lines that, without quotes, have as many cells as it and its neighbours.
    """
    before = 0
    taken = []
    reader = csv_rows(kept(itertools.chain(lines, [END]), taken), mark)
    for cells in reader:
        cells = [cell.strip() for cell in cells]
        if cells == [END]:
            return
        if cells and END in cells[-1]:
            raise ValueError(f"{source}: a quote opens after line {before} and does not close")
        if len(taken) > 1:
            alone = csv_rows(filter(str.strip, taken), mark, csv.QUOTE_NONE)
            if {len(row) for row in alone} == {len(cells)}:
                raise ValueError(f"{source}: a quote opens in line {before + 1} and closes in line "
                                 f"{reader.line_num}, with whole rows between them")
        taken.clear()
        before = reader.line_num
        if len(cells) > 1 or any(cells):
            yield before, cells


def kept(lines, taken):
    """The lines, which also go to a list."""
    for line in lines:
        taken.append(line)
        yield line


def number_reader(decimal=".", na="", name=""):
    """A function of a cell: its value, NaN where it is missing; None of another text.

    na: cells that are missing, too, separated by commas, NAME=CELL of the column of that name
    alone; of a number, all that are equal to it.
    """
    marks = [mark.removeprefix(f"{name}=") for mark in listed(na)]
    values = {as_number(mark) for mark in marks}

    def number(cell):
        if cell.lower() in MISSING or cell in marks:
            return math.nan
        text = cell.translate(SWAP) if decimal == "," else cell
        try:
            value = float(text.replace("_", "no"))
        except ValueError:
            return None
        if math.isinf(value):
            return None
        return math.nan if value in values else value
    return number


def as_number(cell):
    """The value of a cell with either decimal mark, NaN where it is missing; None of a text."""
    value = number_reader(".")(cell)
    return number_reader(",")(cell) if value is None else value


def listed(text):
    """The parts of an option, separated by commas or line ends; one that has such is quoted."""
    rows = csv.reader(io.StringIO(text or "", newline=""))
    return [*itertools.chain.from_iterable(rows)]


# --- what the first lines say --------------------------------------------------------------------

def separator(lines, decimal):
    """The mark between cells: by it the first two rows are equally long, and the last most numbers.

    Blanks may be tabs, and several. A decimal comma separates only where cells are quoted.
    """
    marks = ";\t|, "
    if decimal == ",":
        marks = ";\t| " + "," * ('"' in lines[-1])

    def merit(mark):
        first, *_, last = [*csv_rows(lines * 2, mark)]
        alike = len(last) > 1 and abs(len(last) - len(first)) < 2
        return alike, sum(as_number(cell) is not None for cell in last), len(last) > 1
    return max(marks, key=merit)


def is_header(first, second):
    """Whether the cells of the first row are names: texts.

    Whole numbers may be among them, such as years, if a text is above a number, or if they are
    years that rise evenly, and those below do not.
    """
    texts = [as_number(cell) is None for cell in first]
    numbers = [cell for cell, text in zip(first, texts) if cell and not text]
    above = [text and as_number(cell) is not None for text, cell in zip(texts, second)]
    years = all(cell.isdecimal() for cell in numbers) and len({*numbers}) == len(numbers)
    return any(texts) and (not numbers or years and any(above)
                           or even_years(numbers) and not even_years(filter(as_number, second)))


def even_years(cells):
    """Whether the cells are several years that rise by one step."""
    years = [int(cell) for cell in cells if re.fullmatch("[12][0-9]{3}", cell)]
    steps = {*np.diff(years)}
    return years and len(steps) == 1 and min(steps) > 0


def open_table(lines, source, decimal=".", skip=0, known=()):
    """names, unused, notes, rows of a table: rows are (line number, cells), from an iterator.

    Unused are the numbers of columns without a name that begin empty, or, as the first one of an
    index does, with 0 or 1. known: the names in an earlier part of a stream, "" where unused.
    """
    comments, notes = [], []
    lines, ahead = itertools.tee(without_comments(lines, skip, comments))
    ahead = filter(str.strip, ahead)
    begun = [*itertools.islice(ahead, 1)]
    if not begun:
        raise ValueError(f"{source} has no rows")
    waits = not (known or source == PIPE) or not is_row(begun, decimal, known)
    begun += itertools.islice(ahead, int(waits))
    mark = separator(begun, decimal)
    rows = cells_of(lines, mark, source)
    begin = [*itertools.islice(rows, 1 + waits)]
    names, row = begin[0][1], begin[-1][1]
    above = [cells for cells in csv_rows(comments, mark) if len({*cells}) == len(row)]
    if is_header(names, row):
        names = fitted(names, row)
        del begin[0]
    elif above and is_header(above[-1], row):
        names = [name.strip() for name in above[-1]]
    elif waits and numbers_columns(names, row):
        notes.append(f"the first line, {few(names)}, numbers the columns")
        del begin[0]
    else:
        names = known if len(known) == len(row) else [""] * len(row)
    first = begin[0][1] if begin else []
    unused = [i for i, (name, cell) in enumerate(zip(names, first))
              if not (name or cell) or not name and i == 0 and any(names) and cell in "01"]
    for i in unused:
        why = "counts the rows" if first[i] else "is empty"
        notes.append(f"column {i} has no name and {why}: not used")
    if len(known) == len(names):
        unused = [i for i, name in enumerate(known) if not name]
    names = [name if name and names.index(name) == i else f"column {i}"
             for i, name in enumerate(names)]
    before = len(comments)

    def all_rows():
        yield from itertools.chain(begin, rows)
        if len(comments) > before:
            notes.append(f"{many(len(comments) - before, 'comment line')} (# or %) left out")
    return names, unused, notes, all_rows()


def is_row(lines, decimal, known):
    """Whether the first line of a table is a row, which the line below it need not tell.

    It has numbers alone: as many as the names known, and other ones; without those not 1, 2, 3.
    """
    cells = next(csv_rows(lines, separator(lines, decimal)))
    cells = [cell.strip() for cell in cells]
    if any(as_number(cell) is None for cell in cells):
        return False
    return len(cells) == len(known) and cells != known if known else not counts(cells)


def fitted(names, row):
    """The names, one for each cell of the row where they are one fewer or one more.

    R names no column of row names; a separator may end either line. Else the names as they are.
    """
    more = len(row) - len(names)
    if more == -1 and not names[-1]:
        return names[:-1]
    if more == 1 and len(names) > 1 and as_number(row[-1]) is not None:
        return ["", *names] if row[-1] else [*names, ""]
    return names


def numbers_columns(first, second):
    """Whether the first row is 0, 1, 2 or 1, 2, 3, ...; two whole numbers above two are a row."""
    d = len([*filter(None, first)])
    return counts(first) and (d > 2 or d == 2 and not all(map(str.isdecimal, second)))


def counts(cells):
    """Whether the cells that are not empty are 0, 1, 2 or 1, 2, 3, ..."""
    cells = [*filter(None, cells)]
    d = len(cells)
    return cells in ([*map(str, range(d))], [*map(str, range(1, d + 1))])


# --- rows of numbers -----------------------------------------------------------------------------

def read_rows(lines, source, choose, categories=lambda names: [], decimal=".", na="", skip=0,
              known=(), target=True):
    """Yields names of the columns used, those of all, notes, and which of those used are
    categories; then each row as numbers (columns,), NaN for a gap.

    choose: of the names of all columns and the numbers of those without a use -> numbers of those
    used. categories: of the names -> numbers of these. decimal, na, skip: the options. known: the
    names of all that an earlier part of a stream had. target: whether the last column used is one.
    ValueError that names source, line, column and cell, and all columns with such cells below.
    """
    names, unused, notes, rows = open_table(lines, source, decimal, skip, known)
    used = choose(names, unused)
    known = ["" if i in unused else name for i, name in enumerate(names)]
    codes = {*categories(names)}
    if target and used[-1] in codes:
        raise ValueError(f"{names[used[-1]]} is the target, a number: --target chooses another")
    yield [names[i] for i in used], known, notes, [k for k, i in enumerate(used) if i in codes]
    readers = [number_reader(decimal, na, name) for name in names]

    def value(cells, i):
        found = readers[i](cells[i])
        return code_of(cells[i]) if found is None and i in codes else found
    for count, (n, cells) in enumerate(rows):
        if len(cells) != len(names):
            raise ValueError(f"{source}, line {n}: {len(cells)} cells, not {len(names)} (--skip N "
                             "leaves out N lines above a table, # begins one that is no row)")
        row = [value(cells, i) for i in used]
        if None in row:
            rest = [] if source == PIPE else [one for _, one in rows if len(one) == len(names)]
            bad = {i: [one[i] for one in [cells, *rest] if value(one, i) is None] for i in used}
            alone = count + len(rest) > 3 and sum(map(len, bad.values())) == row.count(None)
            said = few([f"{names[i]}: {reprlib.repr(cells[i])}"
                        for i, found in zip(used, row) if found is None])
            if alone:
                remedy = "only in this line: if it is no row, begin it with #"
            else:
                other = number_reader("." if decimal == "," else ",", na)
                reads = all(other(one[i]) is not None for one in [cells, *rest] for i in used
                            if not any(re.match(DATE, cell) for cell in bad[i]))
                remedy = refusal(names, {i: found for i, found in bad.items() if found},
                                 used, target, reads and decimal)
            raise ValueError(f"{source}, line {n}, {said}: no finite number ({remedy})")
        yield np.array(row)


def refusal(names, bad, used, target, swap):
    """The remedy for cells that are no numbers, in words.

    bad: number of a column -> its cells that are none; used: the columns, the last of them the
    target if target is true; swap: the decimal mark by which all but dates are numbers under the
    other one, or False.
    """
    target = used[-1] if target else None
    dates = [i for i in bad if re.match(DATE, bad[i][0])]
    marks = [i for i in bad if all(re.fullmatch(r"\W+", cell) for cell in bad[i])]
    marked = [i for i in bad if all(re.fullmatch(MARKED, cell) for cell in bad[i])]
    thousands = [i for i in marked if all(re.fullmatch(THOUSANDS, cell) for cell in bad[i])]
    texts = [i for i in bad if i not in (*dates, *marks, *marked)]
    said = []
    if target in texts:
        said.append(f"{names[target]} is the target, which --target chooses")
    if marked and thousands == marked:
        said.append(f"separators of thousands in {few([names[i] for i in marked])}: remove them")
    elif marked and swap:
        said.append(f"--decimal {'.' if swap == ',' else ','}")
    elif marked:
        said.append("decimal commas or separators of thousands in "
                    f"{few([names[i] for i in marked])}: remove them")
    if marks:
        cells = {cell for i in marks for cell in bad[i]}
        said.append(f"--na={','.join(sorted(cells))} makes cells missing")
    inputs = [i for i in texts if i != target]
    if inputs:
        said.append(f"--categories {typed(names, inputs)} makes indicators of texts")
    drop = [*texts, *dates, *marks]
    if drop and len({*used} - {*drop}) > (target is not None):
        said.append(f"--drop {typed(names, sorted(drop))} leaves columns out, --na names cells "
                    "that mean missing")
    if dates:
        name = names[dates[0]]
        said.append(f"dates: of a series follow --drop {typed(names, dates)}, or in pandas "
                    f"df[{name!r}] = pd.to_datetime(df[{name!r}]).dt.dayofyear")
    return "; ".join(said)


def typed(names, numbers):
    """Columns with these numbers as an option takes them."""
    return ",".join(names[i] if names[i].isidentifier() else str(i) for i in numbers)


def read_table(lines, source, choose, keep_gaps=False, **reading):
    """The Table of the lines: rows with a gap are left out and counted, or kept with their NaN.

    reading: decimal, na, skip and target of read_rows.
    """
    (names, _, notes, categories), *rows = read_rows(lines, source, choose, **reading)
    values = np.array(rows).reshape(len(rows), len(names))
    complete = ~np.isnan(values).any(1)
    if not keep_gaps:
        numbers = np.delete(np.arange(len(names)), categories)
        notes = notes + [*likely_codes([names[i] for i in numbers], values[:, numbers])]
        by_column = np.isnan(values).sum(0)
        most = [i for i in np.argsort(-by_column, kind="stable")[:5] if by_column[i]]
        gaps = f"most gaps: {few([f'{names[i]} {by_column[i]}' for i in most])}"
        if not len(rows):
            raise ValueError(f"{source} has no rows below its header")
        if complete.sum() < 4 and not complete.all():
            raise ValueError(f"{source} has {many(complete.sum() or 'no', 'complete row')} of "
                             f"{len(rows)}; {gaps} (--drop leaves columns out)")
        if np.mean(complete) < 0.8:
            notes.append(gaps)
    return Table(names, values if keep_gaps else values[complete], int(np.sum(~complete)), notes,
                 categories)


def likely_codes(names, values):
    """A sentence for each column of values (N, columns) where an extreme value that repeats is far
    outside the others, as a code for missing is; among whole numbers, a negative one or of nines.

    Far: farther than their range, or, if it is written in nines, a tenth of that and any gap.
    """
    for name, column in zip(names, values.T):
        known = column[~np.isnan(column)]
        whole = np.all(known % 1 == 0)
        for code in (known.min(initial=0), known.max(initial=0)):
            others = known[known != code]
            times = len(known) - len(others)
            nines = {*f"{abs(code):.12g}"} <= {*"9."}
            room = np.ptp(others) if len(others) else 0.0
            if nines and room:
                room = max(room / 10, np.diff(np.sort(others)).max())
            if whole and code > 0 and not nines:
                continue                                 # a count, or a rank
            if times > 1 and 0 < room < np.abs(others - code).min():
                option = shlex.quote(f"--na={name}={code:.12g}")
                yield (f"{name} is {code:.12g} in {times} of {len(column)} rows, far outside the "
                       f"others: if that means missing, {option}")


# --- columns -------------------------------------------------------------------------------------

def column(names, which, option):
    """The number of a column, named or numbered from 0; ValueError names the option."""
    if which in names:
        return names.index(which)
    if which.isdecimal() and int(which) < len(names):
        return int(which)
    raise ValueError(f"--{option} {which!r} is no column; the columns are {few(names)}")


def columns(names, option, text):
    """The numbers of several columns; ValueError as column."""
    return [column(names, which, option) for which in listed(text)]


def chosen(names, unused=(), target=None, inputs=None, drop=None, group=None, least=2):
    """Numbers of the columns used: of the group if any, of the inputs, of the target.

    By default the target is the last column, and all others but the unused are inputs. ValueError
    unless there are `least` columns, and where the target is an input.
    """
    numbers = partial(columns, names)
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
