"""The example that runs of a reading page: its names, what it prints and what the page shows."""

import contextlib
import io
import pathlib
import re

DOCS = pathlib.Path(__file__).resolve().parents[1] / "docs"
DECIMAL = r"-?\d+\.\d+"


def run_example(path):
    """(names, printed, shown) of the first block of a page that begins with `import`.

    names: what the block has defined; shown: the block of text below it.
    """
    example = re.search(r"```python\n(import .*?)```\n\n```text\n(.*?)```", path.read_text(), re.S)
    code, shown = example.groups()
    names = {}
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, path.name, "exec"), names)
    return names, out.getvalue(), shown


def assert_shown(printed, shown):
    """The same words, and decimal numbers to one unit of the last digit that is shown."""
    assert re.sub(DECIMAL, "#", printed) == re.sub(DECIMAL, "#", shown)
    for got, want in zip(re.findall(DECIMAL, printed), re.findall(DECIMAL, shown)):
        unit = 10.0 ** -len(want.split(".")[1])
        assert abs(float(got) - float(want)) < 1.5 * unit, (got, want)
