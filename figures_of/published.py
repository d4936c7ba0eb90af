"""Ours beside the numbers that the papers print."""
import csv
import itertools
import math
import pathlib

import numpy as np

from figures_of.shared import col

# the numbers in the papers' tables
PUBLISHED = pathlib.Path(__file__).resolve().parent.parent / "docs" / "published.csv"


def published(table, *keys):
    """{keys: {quantity: 'value +- error'}} of a table of the papers.

    keys: columns of docs/published.csv.
    """
    found = {}
    with PUBLISHED.open(newline="") as lines:
        for row in csv.DictReader(lines):
            if row["table"] == table:
                text = " +- ".join(filter(None, (row["value"], row["error"])))
                found.setdefault(tuple(row[k] for k in keys), {})[row["quantity"]] = text
    return found


def printed(table, *keys):
    """The numbers of a table of the papers as rows."""
    return [dict(zip(keys, key)) | numbers for key, numbers in published(table, *keys).items()]


def committed(name):
    """The rows of a table in pictures/, as texts; empty cells are left out."""
    lines = (PUBLISHED.parents[1] / "pictures" / f"{name}.md").read_text().splitlines()
    head, _, *cells = [[text.strip() for text in line[1:-1].split("|")] for line in lines
                       if line.startswith("|")]
    return [{k: text for k, text in zip(head, row) if text} for row in cells]


def beside(rows, paper, *keys):
    """The rows, below each the paper's of the same keys; below data that imitate a set stand the
    numbers of that set."""
    out = []
    for row in rows:
        named = {k: row[k] for k in keys}
        imitated = {k: value.removesuffix("_like") for k, value in named.items()}
        theirs = paper.get(tuple(imitated.values()), {})
        out.append(named | {"": "ours"} | row)
        if theirs:
            about = {k: value for k, value in imitated.items() if value != named[k]}
            numbers = {q: text for q, text in theirs.items() if q in row}
            out.append(about | {"": "the paper"} | numbers)
    return out


def agreement(table, within=0.5):
    """How many numbers of a table of `beside` agree, of how many; the median difference in
    published standard errors; the names of the rows with numbers that do not agree.

    They agree if they differ by at most `within` of the paper's standard errors and half its last
    digit; a single split of ours has sqrt(10) times the error of the paper's ten.
    """
    off, others = [], {}
    agree = 0
    for ours, theirs in zip(table, table[1:]):
        if theirs[""] == "ours":
            continue
        for q in theirs.keys() - {""}:
            value, own, printed, error = (
                col([row], q, part)[0] for row in (ours, theirs) for part in (0, 1))
            splits = math.sqrt(10) if math.isnan(own) else 1.0
            same = abs(value - printed) <= within * splits * error + 5e-4
            agree += int(same)
            if not same:
                others[" ".join(map(str, itertools.islice(ours.values(), [*ours].index(""))))] = q
            off.append(abs(value - printed) / max(error, 5e-4))
    return agree, len(off), np.median(off), [*others]


def in_words(agree, total, median, others):
    """A sentence on what `agreement` finds."""
    return (f"{agree} of {total} numbers agree with the published ones within half of their "
            "standard errors and half the last digit; the median difference is "
            f"{median:.2f} of the published standard error."
            + f" The others: {', '.join(others)}." * bool(others))
