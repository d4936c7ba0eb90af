"""Reads the numbers that the papers print, and sets ours beside them.

A table here is a list of rows; a row is a dict: column -> entry. Entries are numbers, pairs (mean,
standard error), or texts such as "0.333 +- 0.004".
"""
import csv
import itertools
import math

import numpy as np

from figures_of.shared import ROOT, col

PUBLISHED = ROOT / "docs" / "published.csv"     # the numbers in the papers' tables


def published(table, *keys):
    """The numbers that a table of the papers prints: {key: {quantity: "value +- error"}}.

    table: the table's name, such as "R_table1"; keys: the names of those columns of
    docs/published.csv that identify a row of the table, such as "setting" and "method". The key in
    the result is the tuple of a row's entries in these columns, such as ("0.2", "kl-PAC-GP").
    Where no error is printed, the text is the value alone.
    """
    found = {}
    with PUBLISHED.open(newline="") as lines:
        for row in csv.DictReader(lines):
            if row["table"] == table:
                text = " +- ".join(filter(None, (row["value"], row["error"])))
                found.setdefault(tuple(row[k] for k in keys), {})[row["quantity"]] = text
    return found


def printed(table, *keys):
    """Returns the numbers that a table of the papers prints, as a list of rows.

    table: the table's name; keys: names of columns, as in `published`. A row has an entry for each
    of `keys` and for each quantity printed, such as "B".
    """
    return [dict(zip(keys, key)) | numbers for key, numbers in published(table, *keys).items()]


def committed(name):
    """Returns the rows of the table in pictures/NAME.md; name: NAME, such as "R_table1_real".

    Their entries are texts; empty entries are left out.
    """
    lines = (ROOT / "pictures" / f"{name}.md").read_text().splitlines()
    head, _, *cells = [[text.strip() for text in line[1:-1].split("|")] for line in lines
                       if line.startswith("|")]
    return [{k: text for k, text in zip(head, row) if text} for row in cells]


def beside(rows, paper, *keys):
    """Returns our rows, each followed by the paper's row with the same keys, if there is one.

        rows    our rows, a list of dicts
        paper   a result of `published`: a dict from a tuple of entries to the paper's numbers
        keys    the names of the columns of our rows whose entries make up this tuple, in its order
    A column "" is added, which says "ours" or "the paper". Generated data, such as "kin40k_like",
    are set beside the paper's row of "kin40k".
    """
    out = []
    for row in rows:
        named = {k: row[k] for k in keys}
        imitated = {k: value.removesuffix("_like") for k, value in named.items()}
        theirs = paper.get(tuple(imitated.values()))
        out.append(named | {"": "ours"} | row)
        if theirs:
            about = {k: value for k, value in imitated.items() if value != named[k]}
            numbers = {q: text for q, text in theirs.items() if q in row}
            out.append(about | {"": "the paper"} | numbers)
    return out


def agreement(table, within=0.5):
    """Compares our numbers with the paper's in a table that `beside` made.

    Two numbers agree if they differ by at most `within` times the published standard error, plus
    0.0005, which is half a unit of the last printed digit. The published errors are for means of
    ten splits. Where our number is of a single split, the error is multiplied by sqrt(10).

    Returns five results: how many numbers agree; how many there are; how many would agree on
    average if our splits were the paper's ten, or our single split one of them; the median of the
    difference divided by the published standard error; and a list of the rows with a number that
    does not agree, each given by its keys as one text.

    The difference of one of ten splits from their mean has a standard deviation of 3 standard
    errors of that mean, and is taken as normal. A printed error of 0.000 is taken as 0.00025.
    """
    agree, off, expected, others = 0, [], 0.0, {}
    for ours, theirs in zip(table, table[1:]):
        if theirs[""] != "the paper":
            continue
        for q in theirs.keys() - {""}:
            value, own, printed, error = (
                col([row], q, part)[0] for row in (ours, theirs) for part in (0, 1))
            single = math.isnan(own)
            most = within * error * (math.sqrt(10) if single else 1.0) + 5e-4
            expected += math.erf(most / 3 / max(error, 2.5e-4) / math.sqrt(2)) if single else 1.0
            gap = abs(value - printed)
            off.append(gap / max(error, 5e-4))
            if gap <= most:
                agree += 1
            else:
                others[" ".join(map(str, itertools.islice(ours.values(), [*ours].index(""))))] = q
    return agree, len(off), expected, np.median(off), [*others]


def in_words(agree, total, expected, median, others):
    """Returns sentences that state the five results of `agreement`, which are its arguments.

    They say "within half of their standard errors": the default of `within`.
    """
    return (f"{agree} of {total} numbers agree with the published ones within half of their "
            "standard errors and half the last digit; the median difference is "
            f"{median:.2f} of the published standard error."
            + f" If our split were one of the paper's ten, {expected:.0f} would agree on average."
            * (expected < total)
            + f" The others: {', '.join(others)}." * bool(others))
