"""Ours beside the numbers that the papers print."""
import csv
import math
import pathlib

import numpy as np

from figures_of.shared import below, col, key

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


def beside(rows, paper, *keys, judge=lambda row: False):
    """The rows, below each the paper's and, where judge(row), whether they agree; a count of these.

    Below data that imitate a set stand the numbers of that set.
    They agree if their difference is at most two of the paper's standard errors and half its last
    digit; a single split of ours has sqrt(10) times the error of the paper's ten.
    """
    out, agree, ratios = [], [], []
    for row in rows:
        named = {k: row[k] for k in keys}
        imitated = {k: value.removesuffix("_like") for k, value in named.items()}
        theirs = paper.get(tuple(imitated.values()), {})
        theirs = {q: text for q, text in theirs.items() if q in row}
        out.append(named | {"": "ours"} | row)
        if theirs:
            about = {k: value for k, value in imitated.items() if value != named[k]}
            out.append(about | {"": "the paper"} | theirs)
        if theirs and judge(row):
            verdicts = {"": "2 s.e."}
            for q in theirs:
                gap = abs(col([row], q)[0] - col([theirs], q)[0])
                error = col([theirs], q, 1)[0]
                single = math.isnan(col([row], q, 1)[0])
                near = gap <= 2 * (error * (math.sqrt(10) if single else 1)) + 5e-4
                verdicts[q] = "yes" if near else "NO"
                agree.append(near)
                ratios.append(gap / max(error, 5e-4))
            out.append(verdicts)
    if not agree:
        return out, []
    return out, [f"{sum(agree)} of {len(agree)} numbers agree with the published ones within two "
                 "of their standard errors and half the last digit; the median difference is "
                 f"{np.median(ratios):.2f} of the published standard error."]


def ours_and_theirs(picture):
    """The legend of pictures that show both."""
    style = dict(color="0.3", marker="o", ls="none")
    below(picture, None, 2, key("ours", **style), key("the paper's", mfc="white", **style))
