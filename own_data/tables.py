"""Reads tables of numbers from text files: chooses columns, counts missing cells.

Arguments of several functions:

    lines     an iterable of the lines of a table
    source    what messages call the table, such as its path; PIPE for a stream on standard input
    cells     list of the texts of a row or column
    names     list of the names of all columns, which are counted from 0
    decimal   decimal mark of the numbers, "." or ","
    known     the names of the columns as read in an earlier part of the stream, "" for those that
              are not used; empty if there was no such part
"""
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
from collections import defaultdict
from datetime import datetime
from functools import partial
from typing import NamedTuple

import numpy as np

from own_data.models import code_of, columns, few, many

MISSING = {"", "na", "n/a", "#n/a", "nan", "none", "null", "<na>"}     # cells, in lower case
PIPE = "standard input"
CLOCK = "the row number"       # the input of a stream of one column
COMMENT = ("#", "%")           # what begins a line that is no row, except
EXCEL_ERROR = re.compile(r"#(n/a|[^\W\d][\w/]*[!?])", re.IGNORECASE)
END = "<end>"
SWAP = str.maketrans(",.", "._")       # of decimal commas: 1.234 is no number then
UNITS = {                      # decimal mark -> unit, number with separators of thousands, unit
    mark: re.compile(rf"[-+]?([^\w\s.,+(-]\s?|[^\W\d]+\.? |)"
                     rf"([-+]?(?:[1-9]\d{{0,2}}(?:[{other}' ]\d{{3}})+|\d+)(?:[{mark}]\d+)?)"
                     r"((?![.,]\d)[^-\d'_].*|)") for mark, other in (".,", ",.")}
CLOCKS = ["%H:%M", "%H:%M:%S"]
DAYS = ("%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%m/%d/%y", "%d.%m.%y",
        "%d/%m/%y", "%Y-%m", "%d-%b-%y", "%b %d %Y", "%b %Y", "%b-%y")
DATES = [day + clock for day in DAYS for clock in (
    "", " %H:%M", " %H:%M:%S", "T%H:%M:%S", "T%H:%M:%SZ")]
DOES = dict(symbol="na", word="na", text="categories", id="drop", date="drop", unit="mended")
FEW = 9                        # different texts that may mean missing, or lines that may be no rows
LOOK = 1000                    # rows that tell an index

csv.field_size_limit(2**31 - 1)


class Refused(ValueError):
    """Raised for a table that cannot be read as it is, with remedies to propose.

        said       the message
        remedies   a list of lists of remedies; from each list, the first that helps is proposed

    A remedy is a dict. Its keys are options of the command line; a value is the option's new value,
    or a list of values to be added to it. Three keys are no options:
        verb     "follow": the table is to be read as a stream, by this verb
        apart    [(source, line number)]: lines to be made comments
        mended   [(name of a column, code)]: the code, in pandas, makes numbers of the column
    """

    def __init__(self, said, remedies):
        super().__init__(said)
        self.remedies = remedies


class Table(NamedTuple):
    """A table as read: its complete rows, with notes on the reading.

    The columns of `values` are, in this order: that of --group (if given), the inputs, the target.
    """
    names: list                # of these columns
    values: np.ndarray         # (N, columns)
    dropped: int               # rows with a missing cell
    notes: list                # sentences on cells that were not read as plain numbers
    categories: list           # indices of the columns that hold codes, by models.code_of


# --- lines and cells -----------------------------------------------------------------------------

def as_latin_1(err):
    """A decoder's error handler: bytes that are not UTF-8 are read as Latin-1.

    err: a UnicodeDecodeError. Returns the text of these bytes, and where to go on.
    """
    return err.object[err.start:err.end].decode("latin-1"), err.end


codecs.register_error("latin-1", as_latin_1)


def lines_of(path):
    """Yields the lines of the text file at path, plain or gzip, as they come.

    The path "-" is standard input. Text is read as UTF-8, and bytes that are not UTF-8 as Latin-1.
    ValueError if the file is not text.
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
    """Yields the lines; comments, the first `skip` lines and Excel's line "sep=" become empty.

    They are not removed, so that all lines keep their numbers. A comment begins with # or %, but an
    error of Excel such as #N/A is none. The text of a comment, without its # or %, is appended
    to the list `comments`. A line of white space becomes empty, too, except that a line of tabs
    below the first row is a row of empty cells.
    """
    begun = ""
    for n, line in enumerate(lines, 1):
        text = line.strip()
        excel = not begun and re.fullmatch("sep=.?", text, re.IGNORECASE)       # its first line
        if n <= skip or excel:
            text = ""
        elif text.startswith(COMMENT) and not EXCEL_ERROR.match(text):
            comments.append(text[1:])
            text = ""
        elif begun:
            text = line.strip(" \n")
        begun = begun or text
        yield line if text else "\n"


def csv_rows(lines, mark, quoting=csv.QUOTE_MINIMAL):
    """Returns a csv.reader of the lines.

    mark: what separates cells; if it is a blank, tabs count as blanks. quoting: of csv.reader.
    """
    if mark == " ":
        lines = (line.replace("\t", " ").strip() for line in lines)
    return csv.reader(lines, delimiter=mark, skipinitialspace=True, quoting=quoting)


def cells_of(lines, mark, source):
    """Yields (line number, cells) of each row that is not empty; mark: what separates cells.

    A quoted cell may extend over several lines; the line number is that of the last. ValueError,
    which names the source, if a quote does not close or has swallowed rows: then each of the
    lines, read without quotes, has as many cells as the row.
    """
    lines, again = itertools.tee(itertools.chain(lines, [END]))
    reader = csv_rows(lines, mark)
    before = 0
    for cells in reader:
        cells = [cell.strip() for cell in cells]
        if cells == [END]:
            return
        if cells and END in cells[-1]:
            raise ValueError(f"{source}: a quote opens after line {before} and does not close")
        taken = [*itertools.islice(again, reader.line_num - before)]
        if len(taken) > 1:
            alone = csv_rows(filter(str.strip, taken), mark, csv.QUOTE_NONE)
            if {len(row) for row in alone} == {len(cells)}:
                raise ValueError(f"{source}: a quote opens in line {before + 1} and closes in line "
                                 f"{reader.line_num}, with whole rows between them")
        before = reader.line_num
        if len(cells) > 1 or any(cells):
            yield before, cells


def number(cell, decimal="."):
    """Returns a cell's value: NaN if it is missing, None if it is no number.

    cell: its text; decimal: decimal mark.
    """
    if cell.lower() in MISSING:
        return math.nan
    text = cell.translate(SWAP) if decimal == "," else cell
    try:
        value = float(text.replace("_", "no"))
    except ValueError:
        return None
    return None if math.isinf(value) else value


def as_number(cell):
    """Returns the value of a cell, decimal mark "." or ",": NaN if missing, None if no number."""
    value = number(cell)
    return number(cell, ",") if value is None else value


# --- what the first lines say --------------------------------------------------------------------

def separator(lines, decimal):
    """Guesses what separates cells, from the first one or two lines of a table; returns the mark.

    lines: a list of these one or two lines. Marks are preferred that give both lines equally many
    cells, give or take one. Among these marks, the one is returned that gives most numbers in the
    last line. The mark " " stands for any blanks and tabs. A comma that is also the decimal mark is
    tried only if the last line has quotes.
    """
    marks = [mark for mark in ";\t|, " if mark != decimal or '"' in lines[-1]]

    def merit(mark):
        first, *_, last = [*csv_rows(lines * 2, mark)]
        alike = len(last) > 1 and abs(len(last) - len(first)) < 2
        return alike, sum(as_number(cell) is not None for cell in last if cell), len(last) > 1
    return max(marks, key=merit)


def is_header(first, second):
    """Whether the first row is a header, i.e. consists of the names of columns.

    first, second: the cells of this row and of the row after it. At least one cell of the first
    must be a text. The others are texts or empty or, in two cases, numbers:
        these numbers are whole and different, and some text stands above a number
        the years among them, 1000 to 2999, rise in equal steps, and the years in `second` do not
    """
    texts = [as_number(cell) is None for cell in first]
    numbers = [cell for cell, text in zip(first, texts) if cell and not text]
    above = [text and as_number(cell) is not None for text, cell in zip(texts, second)]
    years = all(cell.isdecimal() for cell in numbers) and len({*numbers}) == len(numbers)
    return any(texts) and (not numbers or years and any(above)
                           or even_years(numbers) and not even_years(filter(as_number, second)))


def even_years(cells):
    """Whether the cells that are years, 1000 to 2999, are several and rise in equal steps."""
    years = [int(cell) for cell in cells if re.fullmatch("[12][0-9]{3}", cell)]
    steps = {*np.diff(years)}
    return len(steps) == 1 and bool(min(steps) > 0)


def open_table(lines, source, decimal, skip, known, wanted):
    """Reads the beginning of a table; returns names, unused, notes, rows.

        names    of all columns; "column i" where a name is empty or came before
        unused   indices of nameless columns that are empty, and of a nameless first column that
                 is an index. If `known` is given: of the columns named "" there
        notes    sentences on what was left out; one on comments may be added after the last row
        rows     iterator of (line number, cells)

    skip: how many lines to leave out first. wanted: names, or None; a first row with all of them is
    the header. If the source is PIPE, whose rows arrive later, only the first two lines are read at
    once, or one if `known` is given.
    """
    live = source == PIPE
    ahead = 1 if known and live else 2
    comments, notes = [], []
    lines, copy = itertools.tee(without_comments(lines, skip, comments))
    begun = [*itertools.islice(filter(str.strip, copy), ahead)]
    mark = separator(begun or [""], decimal)
    rows = cells_of(lines, mark, source)
    begin = [*itertools.islice(rows, ahead)]
    if not begin:
        raise ValueError(f"{source} has no rows")
    names, row = begin[0][1], begin[-1][1]
    above = [cells for cells in csv_rows(comments, mark) if len({*cells}) == len(row)]
    if known:
        ours = [name for name in known if not re.fullmatch(r"(column \d+)?", name)]
        again = ours and [*dict.fromkeys(name for name in names if name in ours)] == ours
        names = known
        del begin[:bool(again)]
    elif is_header(names, row) or wanted and {*wanted} <= {*names}:
        names = fitted(names, row)
        del begin[0]
    elif above and is_header(above[-1], row):
        names = [name.strip() for name in above[-1]]
    elif not wanted and numbers_columns(names, row):
        notes.append(f"the first line, {few(names)}, numbers the columns")
        del begin[0]
    else:
        names = [""] * len(row)
    before = len(comments)
    begin += itertools.islice(rows, 0 if live else LOOK)
    nameless = [i for i, name in enumerate(names) if not name]
    unused = nameless if known else []
    for i in [] if known else nameless:
        column = [cells[i] for _, cells in begin if len(cells) == len(names)]
        index = i == 0 and any(names) and is_index(column)
        if column and (index or not any(column)):
            unused.append(i)
            why = "is an index" if any(column) else "is empty"
            notes.append(f"column {i} has no name and {why}: not used")
    names = [name if name and names.index(name) == i else f"column {i}"
             for i, name in enumerate(names)]

    def all_rows():
        yield from itertools.chain(begin, rows)
        if len(comments) > before:
            notes.append(f"{many(len(comments) - before, 'comment line')} (# or %) left out")
    return names, unused, notes, all_rows()


def is_index(cells):
    """Whether a column's cells are an index: whole numbers or texts, of which most differ.

    A single cell is an index only if it is 0 or 1.
    """
    alone = len(cells) == 1 and cells[0] not in "01"
    whole = all((as_number(cell) or 0) % 1 == 0 for cell in cells)
    return whole and not alone and 2 * len({*cells}) > len(cells)


def fitted(names, row):
    """Returns the names, one more or one fewer if the row below them needs it.

    names, row: cells of the header and of that row.
        one cell more    an empty name is added. It is added last if the row's last cell is empty:
                         then a separator ends the row. It is added first if that cell is a number:
                         then the row begins with its own name, as R writes tables.
        one cell fewer   the last name is removed if it is empty: then a separator ends the header
    """
    more = len(row) - len(names)
    if more == -1 and not names[-1]:
        return names[:-1]
    if more == 1 and len(names) > 1 and as_number(row[-1]) is not None:
        return ["", *names] if row[-1] else [*names, ""]
    return names


def numbers_columns(first, second):
    """Whether the first row numbers the columns: 0, 1, 2, ... or 1, 2, 3, ...; cells may be empty.

    first, second: cells of the first two rows. A single number is taken for data. So are two
    numbers if all cells of the second row are whole numbers.
    """
    cells = [*filter(None, first)]
    numbers = [*map(str, range(len(cells) + 1))]
    most = 1 + all(map(str.isdecimal, second))           # as many may be a row
    return cells in (numbers[:-1], numbers[1:]) and len(cells) > most


# --- rows of numbers -----------------------------------------------------------------------------

def read_rows(lines, source, choose, categories, decimal, na, skip, mended, known=(), wanted=None,
              first=0):
    """Yields a head, then each row as an array of numbers (columns,), NaN where a cell is missing.

    The head is a tuple of four:
        names of the columns used
        names of all columns, "" for those in `unused` of open_table
        notes, a list of sentences on what was left out
        positions of the categories among the columns used

    The arguments not described at the top of this file:
        choose       function: names of all columns, indices of the unused -> indices of those used
        categories   function: names of all columns -> indices of the categories
        na           list of more cells that mean missing; a number stands for all equal to it, and
                     NAME=CELL is for the column NAME alone. None: no more
        skip         how many lines to leave out first
        wanted       names; a first row with all of them is the header, and there is no target.
                     None: the last column used is the target
        mended       [(name of a column, code)], from a remedy of Refused, whose code would make
                     numbers of the column. It is not run: cells of these columns that are no
                     numbers are read as 0, to see whether the rest of the table can be read
        first        number of the first row; without a column of inputs the number of a row is
                     its input

    Raises Refused at the first row with a wrong number of cells or a cell that is no number. Its
    remedies are for this row and all later ones, or for this row alone if the source is PIPE.
    ValueError if the target is a category.
    """
    names, unused, notes, rows = open_table(lines, source, decimal, skip, known, wanted)
    used = choose(names, unused)
    known = ["" if i in unused else name for i, name in enumerate(names)]
    codes = {*categories(names)}
    target = wanted is None
    if target and used[-1] in codes:
        raise ValueError(f"{names[used[-1]]} is the target, a number: --target chooses another")
    clock = len(used) == target
    yield ([CLOCK] * clock + [names[i] for i in used], known, notes,
           [k for k, i in enumerate(used) if i in codes])
    marks = [[mark.removeprefix(f"{name}=") for mark in na or []] for name in names]
    gone = [{*texts, *map(as_number, texts)} - {None} for texts in marks]

    def value(cells, i):
        found = number(cells[i], decimal)
        if cells[i] in gone[i] or found in gone[i]:
            return math.nan
        if found is None and names[i] in dict(mended):
            return 0.0
        return code_of(cells[i]) if found is None and i in codes else found
    for count, (n, cells) in enumerate(rows):
        row = [value(cells, i) for i in used] if len(cells) == len(names) else [None]
        if None not in row:
            yield np.array([first + count] * clock + row, float)
            continue
        below = [(n, cells), *(rows if source != PIPE else [])]
        whole = [(line, one) for line, one in below if len(one) == len(names)]
        if len(cells) != len(names):
            apart = [(source, line) for line, one in below if len(one) != len(names)]
            some = len(apart) <= min(FEW, count + len(whole))
            raise Refused(f"{source}, line {n}: {len(cells)} cells, not {len(names)}", [
                [dict(apart=apart)] if some else [dict(skip=line - 1) for _, line in
                                                  apart[:FEW * (not count)]]])
        bad = {i: {line: one[i] for line, one in whole if value(one, i) is None} for i in used}
        said = [f"{names[i]}: {reprlib.repr(cells[i])}" for i in used if n in bad[i]]
        there = {i: count + sum(value(one, i) == value(one, i) for _, one in whole) for i in used}
        raise Refused(f"{source}, line {n}, {few(said)}: no finite number", remedies(
            source, names, bad, target and used[-1], decimal, there))


def remedies(source, names, bad, target, decimal, there):
    """Returns changes of options that might make a table readable where cells are no numbers.

    They have the form of Refused.remedies: a list of lists of dicts.

        bad      dict: index of a column used -> {line number: cell}, its cells that are no numbers
        target   index of the target's column, or False if there is none
        there    dict: index of a column -> how many of its cells are not missing
    """
    most = max(there.values())
    good = [i for i in bad if not bad[i] and 2 * there[i] > most]
    nameless = [i for i, name in enumerate(names) if name == f"column {i}"]
    kinds = {}
    for i in filter(bad.get, bad):
        column = f"df.columns[{i}]" if i in nameless else repr(names[i])
        kinds[i] = kind_of([*bad[i].values()], decimal, there[i], f"df[{column}]")
    usual = DOES if decimal == "." else DOES | dict(unit="drop")     # pandas would write points

    def way(**other):
        remedy = defaultdict(list, target="")
        for i, (kind, line, _) in kinds.items():
            moves = kind in ("text", "id", "date") and 2 * len(bad[i]) > there[i]
            does = (usual | other if i != target or moves else usual)[kind]
            parts = dict(na=sorted({*bad[i].values()}), mended=[(names[i], line)])
            remedy[does] += parts.get(does, typed(names, [i]))
            if i == target and does in ("categories", "drop"):
                remedy["target"] = "".join(typed(names, good[-1:] if moves else [i]))
        return remedy
    found = [[way(), way(id="categories")], [way(word="categories")],
             [way(word="drop", text="drop", unit="drop")]]
    if "date" in {kind for kind, *_ in kinds.values()}:
        found += [[way() | dict(verb="follow")], [way(date="mended")]]
    lines = sorted({line for i in kinds for line in bad[i]})
    if len(lines) <= FEW and 3 * len(lines) ** 2 < most:
        found = [[dict(apart=[(source, n) for n in lines])], *found[:bool(good)]]
    if len(nameless) < len(names) < 2 * len(nameless):   # a title
        found = [[dict(skip=lines[0] - 1), *itertools.chain(*found)]]
    marks = {mark for kind, _, mark in kinds.values() if kind == "unit"}
    swap = [dict(decimal=mark) for mark in marks if marks == {mark} - {decimal, ""}]
    return [swap + group for group in found]


def kind_of(cells, decimal, there, column):
    """Classifies the cells of a column that are not numbers; returns kind, line, mark.

        kind   a key of DOES: "date", "symbol" (punctuation alone), "unit" (numbers with a unit),
               "word" (few different texts, in less than half of the column), "id" (most differ)
               or "text" (others)
        line   code in pandas that makes numbers of dates or units, "" for others
        mark   the decimal mark with which all of these cells are numbers, "" if there is none
    cells: list of these cells. there: how many cells of the column, with these, are not missing.
    column: the column in pandas.
    """
    for form in DATES + CLOCKS:
        with contextlib.suppress(ValueError):
            for cell in cells:
                datetime.strptime(cell, form)
            part = "hour" if form in CLOCKS else "day_of_year"
            return "date", f"{column} = pd.to_datetime({column}, format={form!r}).dt.{part}", ""
    if re.fullmatch(r"\W+", "".join(cells)):
        return "symbol", "", ""
    for mark in sorted(UNITS, key=decimal.__ne__):
        parts = [UNITS[mark].fullmatch(cell) for cell in cells]
        if all(parts) and len({one.group(1, 3) for one in parts}) == 1:
            numbers = "".join(one[2] for one in parts)
            separators = [one for one in ".,' " if one != mark and one in numbers]
            apart = [one for one in (parts[0][1], parts[0][3], *separators) if one]
            code = "".join(f".str.replace({one!r}, '')" for one in apart)
            code += ".str.replace(',', '.')" * (mark == ",")
            line = f"{column} = pd.to_numeric({column}.str.strip(){code})"
            return "unit", line, "" if apart else mark
    different = {*cells}
    numbered = re.search(r"\d", "".join(cells))
    if not numbered and len(different) <= FEW and 2 * len(cells) < there:
        return "word", "", ""
    return "id" if len(different) > max(20, there / 2) else "text", "", ""


def typed(names, numbers):
    """Returns columns as typed in an option: by name if that is an identifier, else by number.

    numbers: the indices of these columns. Returns a list of texts.
    """
    return [names[i] if names[i].isidentifier() or str(i) in names else str(i) for i in numbers]


def read_table(lines, source, choose, **reading):
    """Reads lines into a Table; counts rows with a missing cell and omits them.

    choose, reading: arguments of read_rows. ValueError if there is no row; Refused if missing cells
    leave fewer than four rows.
    """
    (names, known, notes, categories), *rows = read_rows(lines, source, choose, **reading)
    if not rows:
        raise ValueError(f"{source} has no rows below its header")
    values = np.array(rows)
    complete = ~np.isnan(values).any(1)
    numbers = np.delete(np.arange(len(names)), categories)
    notes = notes + [*likely_codes([names[i] for i in numbers], values[:, numbers])]
    by_column = np.isnan(values).sum(0)
    most = [i for i in np.argsort(-by_column, kind="stable")[:5] if by_column[i]]
    gaps = f"most gaps: {few([f'{names[i]} {by_column[i]}' for i in most])}"
    if complete.sum() < 4 and not complete.all():
        worst = [known.index(names[i]) for i in most if 2 * by_column[i] > by_column.max()]
        raise Refused(f"{source} has {many(complete.sum() or 'no', 'complete row')} of "
                      f"{len(rows)}; {gaps}", [[dict(drop=typed(known, worst))]])
    if np.mean(complete) < 0.8:
        notes.append(gaps)
    return Table(names, values[complete], int(np.sum(~complete)), notes, categories)


def likely_codes(names, values):
    """Yields a sentence for each number in a column of `values` that seems to mean missing.

    values: (N, columns), NaN where missing; names: of the columns. The number is the smallest or
    largest value of its column, occurs at least twice, and is far from all others. In a column of
    whole numbers it must also be at most 0 or consist of nines (999).

    Far means: by more than the range of the others. For a number of nines it means: by more than a
    tenth of that range and more than any gap between neighbours among the others.
    """
    for name, column in zip(names, values.T):
        known = column[~np.isnan(column)]
        whole = np.all(known % 1 == 0)
        for code in (known.min(initial=0), known.max(initial=0)):
            others = np.sort(known[known != code])
            times = len(known) - len(others)
            nines = {*f"{abs(code):.12g}"} <= {*"9."}
            count = whole and code > 0 and not nines     # or a rank
            if count or times < 2 or len(others) < 2:
                continue
            room = np.ptp(others)
            if nines:
                room = max(room / 10, np.diff(others).max())
            if 0 < room < np.abs(others - code).min():
                option = shlex.quote(f"--na={name}={code:.12g}")
                yield (f"{name} is {code:.12g} in {times} of {len(column)} rows, far outside the "
                       f"others: if that means missing, {option}")


# --- columns -------------------------------------------------------------------------------------

def chosen(names, unused, target, inputs, drop, group, least):
    """Returns the indices of the columns used: the group, if any, then the inputs, then the target.

        unused          indices of columns that are no inputs by default
        target, group   as the options: a column's name or number, or None
        inputs, drop    as the options: a list of names or numbers, or None
        least           how many columns must be left

    Left are those neither unused, nor dropped, nor the group. By default the target is the last of
    these, and the inputs are all others of these. Refused if fewer than `least` are left.
    ValueError if the target is also an input, dropped, or the group.
    """
    numbers = partial(columns, names)
    group = numbers("--group", group and [group])
    apart = numbers("--drop", drop) + group
    left = [i for i in range(len(names)) if i not in apart and i not in unused]
    if len(left) < least:
        raise Refused(f"the table needs inputs and a target; its columns are {few(names)}",
                      [[dict(skip=n) for n in range(1, FEW)], [dict(verb="follow")]])
    target = (numbers("--target", target and [target]) or left)[-1]
    inputs = numbers("--inputs", inputs) or [i for i in left if i != target]
    if target in (*inputs, *apart):
        raise ValueError(f"{names[target]} is the target, and no input: --target chooses another")
    return [*group, *inputs, target]
