"""Ours beside the numbers that the papers print."""
import csv
import math
import pathlib

import numpy as np

from figures_of.shared import LOOKS, WORDS, below, col, dot, key, panels

# the numbers in the papers' tables
PUBLISHED = pathlib.Path(__file__).resolve().parent.parent / "docs" / "published.csv"


def published(run, table, *keys):
    """{keys: {quantity: 'value +- error'}} of a table of the papers, with --data.

    keys: columns of docs/published.csv.
    """
    found = {}
    if run.real:
        with PUBLISHED.open(newline="") as lines:
            for row in csv.DictReader(lines):
                if row["table"] == table:
                    text = " +- ".join(filter(None, (row["value"], row["error"])))
                    found.setdefault(tuple(row[k] for k in keys), {})[row["quantity"]] = text
    return found


def beside(rows, paper, *keys, judge=lambda row: False):
    """The rows, below each the paper's and, where judge(row), whether they agree; a count of these.

    They agree if their difference is at most two of the paper's standard errors and half its last
    digit; a single split of ours has sqrt(10) times the error of the paper's ten.
    """
    out, agree, ratios = [], [], []
    for row in rows:
        named = {k: row[k] for k in keys}
        theirs = paper.get(tuple(named.values()), {})
        theirs = {q: text for q, text in theirs.items() if q in row}
        out.append(named | ({"": "ours"} if paper else {}) | row)
        if theirs:
            out.append({"": "the paper"} | theirs)
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


def dot_table(run, rows, names, *keys):
    """Ours (filled) above the paper's (hollow), a panel for each of names.

    None without --data: the text is the table.
    """
    if not run.real:
        return None
    ours = [i for i, row in enumerate(rows) if row[""] == "ours"]
    size = 1.7 * len(names) + 1.6, 1.0 + 0.24 * len(ours)
    picture, axes = panels(1, len(names), *size, sharey=True)
    for ax, name in zip(axes[0], names):
        for at, i in enumerate(ours):
            known = [rows[i][k] for k in reversed(keys) if rows[i][k] in LOOKS]
            style = [*known, "exact"][0]
            if name in rows[i]:
                dot(ax, rows[i], name, -at, style, ms=5)
            for row in rows[i + 1:i + 2]:
                if name in row and row[""] == "the paper":
                    dot(ax, row, name, -at - 0.38, style, ms=5, mfc="white")
        scale = "log" if "sigma" in name or "t =" in name else "linear"
        ax.set(title=WORDS.get(name, name), xscale=scale)
        ax.tick_params(axis="x", which="minor", labelbottom=False)
    labels = [" ".join(str(rows[i][k]) for k in keys if rows[i][k] != "-") for i in ours]
    axes[0, 0].set_yticks(-np.arange(len(ours)), labels)
    ours_and_theirs(picture)
    return picture
