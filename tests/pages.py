"""README.md and the pages of docs/, their blocks and tables."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = {
    path.name: path.read_text()
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}


def blocks(page, kind):
    """The texts of the fenced blocks of a kind on a page."""
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGES[page], re.M | re.S)


def prose(page):
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", PAGES[page], flags=re.M | re.S)


def table(page, head):
    """The cells of the rows of the Markdown table of a page that begins with `head`, its two head
    lines apart.
    """
    rows = PAGES[page].split(head)[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def equation_numbers(text):
    """{3, 4, 15, 16, 17} of "(3), (4*) and (15)-(17)"."""
    numbers = {int(n) for n in re.findall(r"\((\d+)\*?\)", text)}
    for first, last in re.findall(r"\((\d+)\)-\((\d+)\)", text):
        numbers |= {*range(int(first), int(last) + 1)}
    return numbers
