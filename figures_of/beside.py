"""Makes the reading pages out/R.html, J.html and L.html: text and formulas, beside them the code.

R, J and L are the papers, and the keys of MODULES. Each page is made from a file in Markdown, R's
from docs/reading-R.md. There each heading, and each paragraph that begins with bold words, begins a
row of the page. Beside a row's text are the functions that its code blocks quote, and those tagged,
as by # R (8), with an equation that the text prints. Functions are shown whole, but without
docstrings. Formulas are set by matplotlib's mathtext as SVG; a page holds the outline of each glyph
once. The pages need no network and no script.
"""
import ast
import functools
import html
import os
import pathlib
import re
from urllib.parse import quote

from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import text_to_path

from figures_of.shared import ROOT

MODULES = {"R": "pacgp_ref", "J": "predictive", "L": "online"}
FONT = FontProperties(size=100, math_fontfamily="cm")       # lengths are in hundredths of an em
HEAD = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<style>
:root {color-scheme: light dark}
body {font: 16px/1.55 Charter, Georgia, serif; max-width: 1440px; margin: auto; padding: 0 2em 5em}
section {display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1.2fr); gap: 0 2em}
section > :only-child {grid-column: 1 / 3; columns: 2; column-gap: 2em}
h1, h2, table, img, p:nth-child(-n+2):last-child {column-span: all}
li, .display {break-inside: avoid} p {orphans: 3; widows: 3}
p:first-child {margin-top: .6em}
section:first-of-type > div {columns: 1; width: min(100%, 55em); margin: auto}
aside {position: sticky; align-self: start; margin: .6em 0; min-width: 0;
  top: min(1em, 100vh - var(--lines) * 1.6 * 11.5px - 3em)}
pre {font: 11.5px/1.6 ui-monospace, Menlo, Consolas, monospace; margin: 0; padding: .7em 1em;
  background: light-dark(#f3f4f7, #1d2027)}
pre:first-child {border-radius: 6px 6px 0 0} pre:last-child {border-radius: 0 0 6px 6px}
pre:only-child {border-radius: 6px}
pre span {display: flow-root; white-space: pre-wrap; overflow-wrap: anywhere;
  padding-left: calc((var(--in, 0) + 4) * 1ch); text-indent: calc((var(--in, 0) + 4) * -1ch)}
code {font: .8em ui-monospace, Menlo, Consolas, monospace}
svg {fill: currentColor; overflow: visible; font-size: 1.1em; max-width: 100%}
.one {white-space: nowrap}
.display {display: grid; grid-template-columns: minmax(0, 1fr) auto; align-items: center}
.display > span {text-align: center; word-spacing: .7em; padding: .4em 0; overflow: auto hidden}
.display span span {display: inline-block}
.display svg {margin: .2em 0}
.display b {font-weight: normal; opacity: .6; padding-left: .5em}
h1 {line-height: 1.2} h2 {border-top: 1px solid #8884; padding-top: 1em; margin: 1em 0 0}
table {border-collapse: collapse; font-size: .9em; margin: .6em 0}
td {border-top: 1px solid #8884; padding: .4em .8em; vertical-align: top}
td:first-child:not(:only-child) {white-space: nowrap}
tr:first-child {font-weight: bold}
:target {background: #fb06; scroll-margin-top: 6em}
img {display: block; max-width: 100%; margin: auto}
a:any-link {color: light-dark(#1759b3, #7fb2f5); text-decoration: none}
i {font-style: normal} .k {color: light-dark(#9a2393, #d79be0)}
.s {color: light-dark(#3b7a2a, #98c379)} .n {color: light-dark(#955b00, #d6a56a)}
.c, .t {color: light-dark(#66717f, #8b96a5)} .t {float: right; text-indent: 0; padding-left: 1em}
section:has(aside) tr {display: flex; flex-wrap: wrap; gap: 0 1.2em; border-top: 1px solid #8884}
section:has(aside) td {border: 0; padding: .1em 0}
@media (max-width: 800px) {
  body {padding: 0 1em} section {display: block} section > :only-child {columns: 1}
  aside {position: static} td {border: 0; padding: .1em 0}
  img {max-width: none} p:has(img) {overflow-x: auto}
  tr {display: flex; flex-wrap: wrap; gap: 0 1.2em; border-top: 1px solid #8884}}
</style>
<nav><a href="R.html">R</a> <a href="J.html">J</a> <a href="L.html">L</a></nav>
"""
# tables for `rewritten`: a pattern; after two spaces or more, what replaces it
CUTS = "=", "+", "-", r"\le", r"\lesssim", r"\to", r"\approx", r"\sim"
GROUP = r"\{(?:[^{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})*\}"        # braces in braces
MATHTEXT = r"""
(\\(?:math\w+|[dt]?frac|sqrt)(?![a-z{]))\s*(\\[a-z]+|[^\s\\])       \1{\2}
(\\[dt]?fracGROUP)\s*(\\[a-z]+|[^{\s\\])                            \1{\2}
\\begin\{bmatrix\}                                                  \\left[\\substack{
\\end\{bmatrix\}                                                    }\\right]
\\cr                                                                \\\\
&                                                                   \\quad{}
\\[bB]ig(?=[(\[]|\\lbrace)                                          \\left
\\[bB]ig(?=[)\]]|\\rbrace)                                          \\right
\\[bB]ig|\\textstyle
\\[lr]vert                                                          |
\\Vert                                                              \\|
\\(le|ge)(?![a-z])                                                  \\\1q{}
\\top                                                               ⊤
=:                                                                  \\eqcolon{}
\\\s\}                                                              \\,}
_(\\pm|-)                                                           _{\1}
(?<!\\ln)(?<=[\w)}\]])(?=\\(?:ln|exp|min|max|det|sum|int)\b)        \\,
(\\(?:sum|prod|int)(?:[_^](?:GROUP|\w))*)(?![_^a-z]|\\,)            \1\\,
\\mathbb(\{.\})(?!\})                                               \\mathrm{\\mathbb\1}
\\tfrac                                                             \\frac
(?<!_)[DL](?=\^)|(?<![_\\a-z])[Sa-z](?=\^⊤)                        \g<0>{}
""".replace("GROUP", GROUP)
MARKDOWN = r"""
(\0\d+\0[^\s<|\0]+)                 <span class="one">\1</span>
&lt;(img .*?)&gt;                     <\1>
\*\*([^*]+)\*\*                     <b>\1</b>
^(?=<b>)                            <p>
\(reading-(.)\.md                   (\1.html
\[([^]]+)\]\((.+?)\)                <a href="\2">\1</a>
(?m)^# (.*)                         <title>\1</title><h1>\1</h1>
(?m)((?:^\|.*\n?)+)                 <table>\n\1</table>\n
(?m)^\|[-|]+\|\n
(?m)^\| \((\d+)                     | (<a id="eq\1">\1</a>
(?m)^(\| \(<a.*?>\), \()(\d+)       \1<a id="eq\2">\2</a>
(?m)^\|                             <tr><td>
(?m) \|$
 *\|                                <td>
(?m)((?:^(?:- | {2}).+\n?)+)        <ul>\n\1</ul>\n
(?m)^-                              <li>
\n\n                                \n<p>
"""
CODE = r"""(?x) (?<=\S)\ +(?P<t>\#.*) | (?P<c>\#.*) | (?P<s>f?".*?") | (?P<n>\b\d[\d.]*) | \b(?P<k>
    and|as|class|def|else|False|for|from|if|import|in|is|lambda|None|not|or|return|True|while|with|
    yield)\b"""
BLOCK = r"(?m)^```\w+\n(?:# ([\w.]+)\n)?((?s:.*?))^```\n"
OUTLINES = {}                                               # name of a glyph -> its path


def rewritten(text, table):
    """Returns the text after a table's replacements, made one after another.

    table: a text; on each line a regular expression, two or more spaces, what replaces its matches.
    """
    for line in table.splitlines():
        pattern, _, new = line.partition("  ")
        text = re.sub(pattern, new.strip(), text)
    return text


# --- formulas ------------------------------------------------------------------------------------

def outline(vertices, codes):
    """Returns a closed path in SVG's syntax.

    vertices, codes: its points and their kinds, as in matplotlib.path.Path.
    """
    return "".join("_MLQC"[code] + " ".join(f"{value:.0f}" for value in points)
                   for points, code in Path(vertices, codes).iter_segments(simplify=False)
                   if code != Path.CLOSEPOLY)


@functools.cache
def svg(tex):
    """Returns a TeX formula, a text without dollars, as SVG that stands on the text's baseline.

    The SVG refers to the outlines of its glyphs by name. The outlines are added to OUTLINES.
    """
    tex = f"${rewritten(tex, MATHTEXT * 2)}$"               # twice: \frac in \frac
    width, height, depth = text_to_path.get_text_width_height_descent(tex, FONT, True)
    places, glyphs, bars = text_to_path.get_glyphs_mathtext(FONT, tex)
    OUTLINES.update({name: outline(*shape) for name, shape in glyphs.items()})
    shapes = [f'<use href="#{name}" transform="translate({x:.0f} {y:.0f}) scale({size:.2f})"/>'
              for name, x, y, size in places]
    shapes += [f'<path d="{outline(*bar)}"/>' for bar in bars]
    style = (f"width: {width / 100}em; min-width: {width / 140:.1f}em; "       # else a line scrolls
             f"vertical-align: {-depth / 100}em")
    return (f'<svg viewBox="0 {depth - height} {width} {height}" style="{style}">'
            f'<g transform="scale(1 -1)">{"".join(shapes)}</g></svg>')


def pieces(tex):
    """Cuts a TeX formula where a line may end: returns a list of texts.

    A line may end before a relation, such as =, or a plus or minus, outside all brackets.
    """
    found, depth, last = [""], 0, ""
    for token in re.findall(r"\\[a-zA-Z]+|\\?.", tex):
        if depth == 0 and token in CUTS and last not in ("", "_", "^", *CUTS):
            found.append("{}")                              # a sign after it has its spaces
        depth += token in ("(", "[", "{", r"\lbrace", r"\begin")
        depth -= token in (")", "]", "}", r"\rbrace", r"\end")
        found[-1] += token
        last = token.strip() or last
    return found


def formula(tex, display):
    """Returns a TeX formula as HTML, with its TeX for screen readers.

    tex: a text without dollars; display: whether it stands on its own line.
    """
    flat = tex.replace("\n", " ")
    small = flat.replace(r"\sum", "∑")                      # small, limits beside it
    lines = [pieces(small) if len(tex) > 80 else [small]]
    if display:
        large = re.sub(rf"({GROUP})|\\frac", lambda m: m[1] or r"\dfrac", flat)
        lines = map(pieces, re.split(r"\\q?quad", large))
    text = " ".join(f'<span>{"".join(map(svg, line))}</span>' for line in lines)
    return f'<span role="img" aria-label="{html.escape(tex)}">{text}</span>'


# --- text and code -------------------------------------------------------------------------------

def heading(m):
    """Returns an HTML heading with the anchor that GitHub gives it.

    m: a regex match, whose m[1] is its text.
    """
    name = re.sub(r"[^\w -]", "", m[1].lower()).replace(" ", "-")
    return f'<h2 id="{name}">{m[1]}</h2>'


def words(text):
    """Converts Markdown text, with formulas, to HTML: returns a text."""
    kept = []

    def keep(m):
        """Keeps m, a regex match of code or formula, as HTML; returns a placeholder for it."""
        code, dollars, tex, numbers = m.groups()
        display = dollars == "$$"
        done = f"<code>{html.escape(code)}</code>" if code else formula(tex, display)
        if display:
            numbers = re.sub(r"\d+", r'<a id="eq\g<0>">\g<0></a>', f"({numbers})" * bool(numbers))
            done = f'<span class="display">{done}<b>{numbers}</b></span>'
        kept.append(done)
        return f"\0{len(kept) - 1}\0"
    text = re.sub(r"`([^`]+)`|(\$\$?)([^$]+?)(?:\\tag\{(.*?)\})?\$+", keep, text)
    text = re.sub("(?m)^## (.*)", heading, html.escape(text, quote=False))
    return re.sub("\0(\\d+)\0", lambda m: kept[int(m[1])], rewritten(text, MARKDOWN))


def functions(letter):
    """Returns what a paper's module defines: {"module.name": (lines, numbers)}.

    These are its functions, classes and constants. letter: "R", "J" or "L".

        lines     list of texts: file and line number, then the source without docstring
        numbers   list of texts: the n of each tag `# R (n)` in the source
    """
    room = MODULES[letter]
    text = (ROOT / f"{room}.py").read_text()
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Assign)):
            name = getattr(node, "name", None) or ast.unparse(node.targets[0])
            lines = text.splitlines()[node.lineno - 1:node.end_lineno]
            first = getattr(node, "body", [node])[0]
            if isinstance(first, ast.Expr):
                del lines[first.lineno - node.lineno:first.end_lineno - node.lineno + 1]
            tags = re.findall(rf"# {letter} \(.*?: ", "\n".join(lines))
            found[f"{room}.{name}"] = ([f"# {room}.py, line {node.lineno}", *lines],
                                       re.findall(r"\((\d+)\)", str(tags)))
    return found


def chosen(row, own, quoted):
    """Yields the names of the functions to show beside a row.

        row      its Markdown
        own      the paper's functions, from `functions`
        quoted   set of the names that any row of the page quotes or an earlier row has shown
    First come the functions tagged with an equation of this row. Those in `quoted` are left out,
    unless this row quotes them or the equation would have no function left. Then come the functions
    that this row quotes. After each function f comes its gradient f_grad, if there is one and
    `quoted` does not have it.
    """
    here = [name for name, _ in re.findall(BLOCK, row) if name]
    names = []
    for n in re.findall(r"\d+", str(re.findall(r"(?m)\\tag\{.*?\}|^\| \(\d[^|]*", row))):
        of_n = [name for name, (_, numbers) in own.items() if n in numbers]
        names += [name for name in of_n if name in here or name not in quoted] or of_n
    for name in dict.fromkeys(names + here):
        yield name
        if f"{name}_grad" in own.keys() - quoted:
            yield f"{name}_grad"


def listing(lines):
    """Converts lines of code, a list of texts, to HTML: returns a text.

    The code is coloured, its tags are linked to their equations, and long lines are wrapped.
    """
    spans = []
    for line in lines:
        indent = len(line) - len(line.lstrip())
        text = re.sub(CODE, lambda m: f'<i class="{m.lastgroup}">{m[m.lastgroup]}</i>',
                      html.escape(line, quote=False))
        text = re.sub(r"\b([RJL]) \((\d+)\)", r'<a href="\1.html#eq\2">\g<0></a>', text)
        spans.append(f'<span style="--in: {indent}">{text}\n</span>')
    return f"<pre>{''.join(spans)}</pre>"


def page_of(letter, docs):
    """Returns a paper's reading page, as HTML.

    letter: "R", "J" or "L"; docs: the relative path from the page to docs/.
    """
    text = (ROOT / "docs" / f"reading-{letter}.md").read_text()
    text = re.sub("(?s)<details>.*?</details>\n", "", text)
    text = re.sub(r"(\]\(|src=\")(?!#|https:|reading-)", rf"\1{docs}/", text)
    own = functions(letter)
    quoted = {name for name, _ in re.findall(BLOCK, text)}
    page = HEAD
    for row in re.split(r"(?<=\n\n)(?=## |\*\*)", text):
        code = [block.splitlines() for name, block in re.findall(BLOCK, row) if not name]
        for name in chosen(row, own, quoted):
            code.append(own[name][0])
            quoted.add(name)
        row = re.sub(BLOCK, "", row).strip() + "\n"
        page += f"<section><div>\n\n{words(row)}</div>"
        if code:
            lines = sum(map(len, code))
            page += f'<aside style="--lines: {lines}">{"".join(map(listing, code))}</aside>'
        page += "</section>\n"
    for name in {*re.findall(' id="eq.*?"', page)}:         # the first one stays
        before, after = page.split(name, 1)
        page = before + name + after.replace(name, "")
    used = dict.fromkeys(re.findall('<use href="#(.*?)"', page))
    outlines = "".join(f'<path id="{name}" d="{OUTLINES[name]}"/>' for name in used)
    return page + f'<svg width="0" height="0"><defs>{outlines}</defs></svg>\n'


def side_by_side(out):
    """Writes the reading pages R.html, J.html and L.html in the folder out, a pathlib.Path."""
    out.mkdir(parents=True, exist_ok=True)
    docs = quote(pathlib.Path(os.path.relpath(ROOT / "docs", out)).as_posix())
    for letter in MODULES:
        (out / f"{letter}.html").write_text(page_of(letter, docs))
