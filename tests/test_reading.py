"""The reading pages docs/reading-R.md, -J.md, -L.md: their blocks of code stand in the modules."""

import inspect
import pathlib
import re
import types

import pytest

import beyond.certificates
import beyond.search
import beyond.stream
import online
import pacgp_ref
import predictive

DOCS = pathlib.Path(__file__).resolve().parents[1] / "docs"
PAGES = {"R": pacgp_ref, "J": predictive, "L": online}
ROOMS = (pacgp_ref, predictive, online, beyond.certificates, beyond.search,
         beyond.stream)


def page(tag):
    """The text of a reading page, or of README."""
    path = DOCS.parent / "README.md" if tag == "README" else DOCS / f"reading-{tag}.md"
    return path.read_text()


def blocks(text):
    """(name, lines) of each block of code: its first line is a comment that names the function."""
    found = []
    for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        head, *lines = block.splitlines()
        if head.startswith("import "):  # an example that runs: tests/test_house.py
            continue
        assert head.startswith("# "), f"a block begins with {head!r}, not with the function's name"
        found.append((head.removeprefix("# ").strip(), lines))
    return found


def source_lines(name):
    """The stripped lines of code of `module.function`, or of a constant of a module."""
    module_name, _, function = name.rpartition(".")
    module = next(room for room in ROOMS if room.__name__ == module_name)
    value = getattr(module, function)
    if isinstance(value, (types.FunctionType, type)):
        text = inspect.getsource(value)
    else:
        text = inspect.getsource(module)
        text = text[re.search(rf"^{function} = ", text, re.M).start() :].split("\n\n\n")[0]
    return [line.strip() for line in text.splitlines()]


def missing_line(lines, source):
    """The first line that does not follow in the source: next to the one before, or after `...`."""
    at = None
    for line in (line.strip() for line in lines):
        if line == "...":
            at = None if at is None else -at
            continue
        start = 0 if at is None else abs(at)
        anywhere = at is None or at < 0
        places = (
            range(start, len(source)) if anywhere else range(start, min(start + 1, len(source))))
        place = next((i for i in places if source[i] == line), None)
        if place is None:
            return line
        at = place + 1
    return None


@pytest.mark.parametrize("tag", [*PAGES, "README"])
def test_RJL_reading_blocks(tag):
    """The lines of each block stand in its function, consecutive and in this order."""
    for name, lines in blocks(page(tag)):
        line = missing_line(lines, source_lines(name))
        assert line is None, f"{name} has no such line, or not there: {line}"


@pytest.mark.parametrize("tag", PAGES)
def test_RJL_reading_names(tag):
    """Every name in backticks that could be a function's, f or module.f, exists, or stands in a
    block of the page.
    """
    known = {name for room in ROOMS for name in vars(room)} | {room.__name__ for room in ROOMS}
    known |= {word for _, lines in blocks(page(tag)) for word in re.findall(r"\w+", str(lines))}
    text = re.sub(r"^```.*?^```", "", page(tag), flags=re.M | re.S)
    prose = re.sub(r"^\|.*\n", "", text, flags=re.M)  # cells of tables: tests/test_house.py
    for name in re.findall(r"`([a-z]+\w*_\w+|[a-z_.]+\.[a-z_]\w*)(?:\(\))?`", prose):
        if name.endswith((".py", ".md")):
            continue
        assert name.split(".")[-1] in known, f"docs/reading-{tag}.md names {name}, which is nowhere"


def test_L_beyond_theorem_lines():
    """docs/beyond.md: each hypothesis of the theorem quotes whole lines of its functions."""
    theorem = (DOCS / "beyond.md").read_text().split("## The theorem of the stream")[1]
    items = re.split(r"^\d\. ", theorem.split("\n\n![")[0], flags=re.M)[1:]
    assert len(items) == 7
    for item in items:
        (name, quoted), = re.findall(r"`(\w+)`:\s+((?:`[^`]+`(?:,\s+)?)+)\.", item)
        for line in re.findall(r"`([^`]+)`", quoted):
            assert line in source_lines(f"beyond.stream.{name}"), line


def test_RJL_reading_faults_are_found():
    """The checker itself: another line, another order, a gap without `...` are found."""
    source = ["a = 1", "b = 2", "c = 3"]
    assert missing_line(["a = 1", "b = 2"], source) is None
    assert missing_line(["a = 1", "...", "c = 3"], source) is None
    assert missing_line(["a = 1", "c = 3"], source) == "c = 3"
    assert missing_line(["b = 2", "a = 1"], source) == "a = 1"
    assert missing_line(["b = 3"], source) == "b = 3"
