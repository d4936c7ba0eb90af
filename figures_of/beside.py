"""sparse_gp in two columns, formulas and code: out/sparse_gp.html. A browser fetches MathJax."""
import html
import inspect
import pathlib
import re

import pacgp_ref as R

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "reading-R.md"
HEAD = """<!doctype html><meta charset="utf-8"><title>sparse_gp</title>
<style>td {vertical-align: top; border-top: 1px solid #ddd; padding: 0 1em}</style>
<script>MathJax = {tex: {inlineMath: [["$", "$"]]}}</script>
<script async src="https://cdn.jsdelivr.net/npm/mathjax@3/es5/tex-chtml.js"></script>
<p>The six steps of R's sparse GP in the order of its gradient, as docs/reading-R.md derives them.
The formulas need a network.
<table>
"""


def side_by_side(out):
    """Writes a row per step of docs/reading-R.md: its formulas and derivatives; its function."""
    text = PAGE.read_text()
    steps = text.split("| step | function |")[1].split("\n\n")[0].splitlines()[2:]
    page = HEAD
    for line in reversed(steps):
        _, step, name, computes, equation, _ = (cell.strip() for cell in line.split("|"))
        derived = text.split(f"**Step {step}.** ")[1].split("\n\n")[0]
        derived = re.sub("`(.*?)`", r"<code>\1</code>", html.escape(derived))
        code = inspect.getsource(getattr(R, name.strip("`"))).split('"""')[2]
        page += (f"<tr><td width=40%><h4>{step}. {name.strip('`')} {equation}</h4>{computes}"
                 f"<p>{derived}<td><pre>{html.escape(code)}</pre>\n")
    (out / "sparse_gp.html").write_text(page)
