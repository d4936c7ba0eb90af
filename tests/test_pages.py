"""README.md and docs/: snippets run and print what is printed, quoted lines are the modules',
equations are cited, links, pictures and commands lead somewhere.

That what is computed is what the papers print: test_equations_R.py, _J.py, _L.py.
"""

import contextlib
import functools
import inspect
import io
import itertools
import pathlib
import re
import sys
import types

import numpy as np
from numpy.random import default_rng
from tests.dense import dense_K_MM
from tests.oracles import each, HERE as ROOT, same_bytes

import figures as F
import online as L
import pacgp_ref as R
import predictive as J
from figures_of import published

TEXTS = {str(path.relative_to(ROOT)): path.read_text()
         for kind in ("README.md", "docs/*.md", "*.py", "[a-z]*/*.py") for path in ROOT.glob(kind)}
PAGES = {path.removeprefix("docs/"): text for path, text in TEXTS.items() if path.endswith(".md")}
SOURCES = "\n".join(text for path, text in TEXTS.items() if path.endswith(".py"))
NAMES = {*re.findall(r"def (test_\w+)", SOURCES), *re.findall(r'"([RJL]_\w+)"', SOURCES)}
LAST = {"R": 34, "J": 34, "L": 24}                        # tag -> number of equations


def first_cells(page, head):
    """The first cells of the rows of the table of a page that begins with `head`."""
    rows = PAGES[page].split(head)[1].split("\n\n")[0].splitlines()[2:]
    return [row.split("|")[1].strip() for row in rows]


def equation_numbers(text):
    """{3, 4, 15, 16, 17} of "(3), (4*) and (15)-(17)"."""
    numbers = {int(n) for n in re.findall(r"\((\d+)\*?\)", text)}
    for first, last in re.findall(r"\((\d+)\)-\((\d+)\)", text):
        numbers |= {*range(int(first), int(last) + 1)}
    return numbers


# --- snippets ------------------------------------------------------------------------------------

EXAMPLE = r"(?s)```python\n(import (?:(?!```).)*)```(?:\n\n```text\n(.*?)```)?"


@functools.cache
def run(page, i=0):
    """The names that example i of a page leaves behind, what it prints, and what is printed: below
    it, or in README beside its prints.
    """
    code, shown = re.findall(EXAMPLE, PAGES[page])[i]
    names = {}
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, names)
    return names, out.getvalue(), shown or " ".join(re.findall(r"(?m)^print.*# (.*)", code))


@each("page, i, tol", [
    ("README.md", 0, 1e-6), ("README.md", 1, 1e-6), ("reading-R.md", 0, 1e-6),
    ("reading-R.md", 1, 1e-6),
    ("reading-J.md", 0, 2e-6), ("reading-L.md", 0, 2e-4)])   # trainings are sensitive to rounding
def test_RJL_pages_snippet_prints_what_is_shown(page, i, tol):
    """The same words, and numbers with a point to tol; the optimiser's count apart."""
    texts = [re.sub(r"\d+ evaluations", "", text) for text in run(page, i)[1:]]
    got, want = (re.sub(r"-?\d+\.\d+", "#", text).split() for text in texts)
    assert got == want
    numbers = [np.array(re.findall(r"-?\d+\.\d+", text), float) for text in texts]
    assert np.allclose(*numbers, rtol=tol, atol=tol)


def test_J_alg1_page_is_fit():
    """The page's epoch is fit's, to the last bit."""
    names, *_ = run("reading-J.md")
    gp = J.fit(names["X"], names["y"], "PPGPR-Chol", M=8, batch=20, epochs=1)
    assert same_bytes(gp.params, R.unpack(names["x"], names["p"]))


def test_L_eq10_page_is_certified_stream():
    """Posterior and bound of the page's three batches are certified_stream's, to the last bit."""
    names, *_ = run("reading-L.md")
    given = [names[name] for name in ("X", "y", "Z", "ln_theta", "ln_noise", "lam", "eps")]
    *_, last = L.certified_stream(*given, batch=50)
    assert same_bytes(last, (names["Q"], names["ours"]))


def test_R_page_scale_engines(tmp_path, monkeypatch, capsys):
    """docs/scale.md's script runs with an engine. That engines, which get copies of all, change no
    bit: test_R_fit_over_same_bits.
    """
    client = types.SimpleNamespace(map=lambda f, blocks, pure: map(f, blocks), gather=list)
    engine = types.SimpleNamespace(Client=lambda **options: client)
    monkeypatch.setitem(sys.modules, "dask.distributed", engine)
    monkeypatch.setattr(R, "BLOCK_BYTES", 1)
    monkeypatch.chdir(tmp_path)
    X = default_rng(0).standard_normal((800, 3))
    np.save("X", X)
    np.save("y", np.sin(X[:, 0]) + 0.3 * np.sin(99 * X[:, 1]))
    (code, _), = re.findall(EXAMPLE, PAGES["scale.md"])
    exec(code, {"__name__": "__main__"})
    assert float(capsys.readouterr().out.split()[-1]) < 0.5


def test_J_appE_reading_whitening():
    """The page's table of the lengthscale that MAP takes at its best m', by a grid: whitened, and
    by (3) as printed, which has ln|K_MM|/2 more.
    """
    grid = np.arange(-60, 160, 5) / 100
    Z = np.linspace(-2, 2, 8)[:, None]
    shown = re.findall(r"\(3\*?\) \| (-?[\d.]+) \| (\S+) \| (\S+) \|", PAGES["reading-J.md"])
    for N, *printed in zip((60, 600, 6000), *shown):
        rng = default_rng(1)
        X = rng.uniform(-2, 2, (N, 1))
        y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 0] * rng.standard_normal(N)
        values = []
        for theta in np.column_stack([grid, 0 * grid]):
            (V, _), _ = J.whitened_features(X, Z, theta)
            m = np.linalg.solve(np.eye(8) + V.T @ V / 0.1, V.T @ y / 0.1)
            p = dict(ln_theta=theta, ln_noise=np.log(0.1), Z=Z, m=m)
            whitened = N * J.objective(p, X, y, N, "MAP", 1.0)[0]
            _, ln_det = np.linalg.slogdet(dense_K_MM(Z, theta, "Matern52"))
            values.append((whitened, whitened + ln_det / 2))
        best = grid[np.argmin(values, 0)]
        print(N, best)
        assert [*map(float, printed)] == best.tolist()


def test_J_appC_page_settings():
    """Every `name=value` is the default of fit; sets and constants are the module's."""
    section = PAGES["reading-J.md"].split("## The settings of App. C")[1].split("## ")[0]
    for values in (J.GAMMAS, *J.BETAS.values()):
        assert "{" + ", ".join(f"{value:g}" for value in values) + "}" in section
    assert (J.START, J.START_STD, R.JITTER) == (np.log(2), 0.01, 1e-8)
    for name, value in re.findall(r"`(\w+)=([^`]+)`", section):
        assert value == repr(inspect.signature(J.fit).parameters[name].default), name


# --- code that is quoted -------------------------------------------------------------------------

@each("page", ["README.md", *(f"reading-{tag}.md" for tag in LAST)])
def test_RJL_pages_quote_the_modules(page):
    """The first line of a block names a function; the others follow each other there, except at
    `...`.
    """
    for name, code in re.findall(r"(?ms)^```python\n# ([\w.]+)\n(.*?)^```", PAGES[page]):
        room, _, name = name.rpartition(".")
        text = (ROOT / f"{room.replace('.', '/')}.py").read_text()
        rest = re.split(rf"(?m)^(?=(?:def |class )?{name}\b)", text, maxsplit=1)[1]
        rest = re.sub(r"(?m)^ +", "", rest.split("\n\n\n")[0] + "\n")
        for part in re.split(r"(?m)^\.\.\.\n", re.sub(r"(?m)^ +", "", code)):
            assert part in rest, f"{name} has no such lines, or not there:\n{part}"
            rest = rest.partition(part)[2]


# --- equations, links, commands ------------------------------------------------------------------

@each("tag", LAST)
def test_RJL_pages_cite_every_equation(tag):
    """Each is in the map, and a display or a cell has it beside the print; where the module has
    code of its own, `-k` finds tests.
    """
    page = PAGES[f"reading-{tag}.md"]
    every = {*range(1, LAST[tag] + 1)}
    assert equation_numbers(str(first_cells(f"reading-{tag}.md", "| Eq. | in `"))) == every
    tags = re.sub(r"\d+\*?", r"(\g<0>)", str(re.findall(r"\\tag\{([^}]*)\}", page)))
    rows = re.findall(r"(?m)^\|.*", page.split("| Eq. | in `")[0])
    assert every <= equation_numbers(tags + str(rows))
    tested = re.findall(rf"{tag}((?:_eq\d\d)+)", " ".join(NAMES))
    _, without = {"R": R, "J": J, "L": L}[tag].__doc__.split("without code of their own: ")
    for n in every - equation_numbers(without):
        assert f"_eq{n:02d}" in str(tested), n


def anchors(path):
    """What the headings of a page are called in a link."""
    heads = re.findall(r"(?m)^#+ (.*)", re.sub(r"(?ms)^```.*?^```", "", TEXTS[path]))
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@each("path", TEXTS)
def test_RJL_lead_somewhere(path):
    """In pages and sources: links, their sections, files, functions said to be in a file, figures,
    tests, misprints and equations exist; commands select tests. README links every page.
    """
    text = TEXTS[path]
    home, name = (ROOT / path).parent, path.removeprefix("docs/")
    links = []
    if name in PAGES:
        links = re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", re.sub(r"(?ms)^```.*?^```", "", text))
        assert name == "README.md" or f"({path})" in TEXTS["README.md"]
        for word in re.findall(r"`(\w*_\w+)`", text):
            assert "NAME" in word or word in SOURCES or word in F.FIGURES, word
    files = (r"(?<![\w/:.-])((?:\w+/)?[\w-]+\.(?:py|md)\b(?!:)|(?:docs|pictures)/[\w.-]+\w)"
             r"#?([\w-]*)")
    anywhere = [home, ROOT, ROOT / "docs", ROOT / "tests", ROOT / "figures_of"]
    found = [(anywhere, *hit) for hit in re.findall(files, text)]
    for folders, target, anchor in found + [([home], *link) for link in links]:
        if "NAME" not in target and not target.startswith(("http", "_")):
            places = [folder / target if target else ROOT / path for folder in folders]
            place = next((place for place in places if place.exists()), None)
            assert place, target
            assert not anchor or anchor in anchors(str(place.resolve().relative_to(ROOT))), anchor
    for f, file in re.findall(r"`(\w+)` (?:in|of) `?((?:\w+/)?\w+\.py)", text):
        assert "NAME" in f or re.search(rf"(?m)^(def |class )?{f}\b", TEXTS[file]), (f, file)
    for names in re.findall(r"python\s+figures\.py((?: [RJLahm]\w+)+)", text):
        assert F.select(names.split())
    for figure in re.findall(r"\b[RJL]_(?:fig|table|app)(?:\d+|[A-Z])", text):
        assert figure in F.FIGURES or figure in " ".join(NAMES), figure
    known = NAMES | {pathlib.Path(file).stem for file in TEXTS}
    for test in re.findall(r"\btest_\w+", text):
        assert any(one.startswith(test) for one in known), test
    for words in re.findall(r'-k[ ]"?((?<=")[^"`]+|\w+)', text):
        for part in words.split(" or "):
            parts = part.lower().split(" and ")
            assert any(all(word in test.lower() for word in parts) for test in NAMES), part
    last = len(first_cells("misprints.md", "| no. | where | printed |"))
    for number in re.findall(r"[Mm]isprints?(?:\]\([^)]*\))? (\d+)", text):
        assert int(number) <= last
    for tag, number in re.findall(r"\b([RJL]) (?:Eq\. )?\((\d+)\)", text):
        assert int(number) <= LAST[tag], (tag, number)


def test_RJL_pages_references():
    """Author and year of what pages and sources cite stand in one line of docs/references.md."""
    lines = PAGES["references.md"].splitlines()
    names = r"([A-Z][a-z]+)(?: et al\.)?,? \(?((?:19|20)\d\d)\b"
    cited = re.findall(names, "\n".join(TEXTS.values()))
    for name, year in {*cited} - {("February", "2020")}:
        assert any(name in line and year in line for line in lines), (name, year)


def test_RJL_pages_sizes():
    """README's table says how many lines a module is long, to the hundred."""
    sizes = re.findall(r"`(\w+\.py)`, ([\d,]+) lines", PAGES["README.md"])
    assert len(sizes) == 3
    for name, said in sizes:
        lines = len((ROOT / name).read_text().splitlines())
        assert abs(lines - int(said.replace(",", ""))) <= 100, (name, lines)


def test_RJL_pages_misprints():
    """README counts them; what is called wrong has a test, or the paper contradicts itself."""
    count = len(first_cells("misprints.md", "| no. | where | printed |"))
    assert f"[{count} misprints, omissions and remarks]" in PAGES["README.md"]
    assert f"## All {count}\n" in PAGES["misprints.md"]
    listed = re.search(r"contradicts\s+itself\s+\(([\d,\s]*)\)", PAGES["misprints.md"])[1]
    rows = re.findall(r"(?m)^\| (\d+) \| ([^|]*) \|.*\|([^|]*)\|$", PAGES["misprints.md"])
    wrong = [(number, tests) for number, where, tests in rows
             if not where.endswith((": omission", ": loose", ": remark"))]
    assert [number for number, tests in wrong if "-k" not in tests] == re.findall(r"\d+", listed)


def committed_numbers(name):
    """(labels, numbers) of each row of the table of pictures/NAME.txt; its lines outside the table.

    Labels are the texts of the row, or of the rows above where it has none.
    """
    lines = (ROOT / "pictures" / f"{name}.txt").read_text().splitlines()
    rule = next(i for i, line in enumerate(lines) if line.startswith("---"))
    ends = lines.index("", rule) if "" in lines[rule:] else len(lines)
    columns = [part.span() for part in re.finditer("-+", lines[rule])]
    rows, above = [], []
    for line in lines[rule + 1:ends]:
        cells = [line[start:end].strip() for start, end in columns]
        if line[0] != " ":
            above = [text for text in cells
                     if re.match("[A-Za-z]", text) and text not in ("ours", "fixed")]
        rows.append((above, re.findall(r"-?\d+\.\d+(?:e-\d+)?", line)))
    return rows, "\n".join(lines[:rule - 1] + lines[ends:])


def test_RJL_pages_numbers_are_committed():
    """docs/real-data.md: each number with a point is in a row of a file that the section names by a
    link or a command (the paragraph, if it has links), or of J's Table 3 as published, whose labels
    are in the paragraph; `0.1` is a setting. The counts of agreeing numbers, and median
    differences, are those of the rule, and so are the counts expected of one split.
    """
    tables = [published.committed(f"R_table{i}_real") for i in (1, 2)]
    start, end = (next(i for i, row in enumerate(tables[1]) if row.get("data") == name)
                  for name in ("sarcos", "kin40k"))
    tables[1] = tables[1][:start] + tables[1][end:]         # pol and kin40k
    tables.append([*itertools.takewhile(lambda row: row[""] != "our way",
                                        published.committed("authors_table_real"))])
    rules = [published.agreement(table, within) for table in tables for within in (0.5, 2)]
    theirs = [((row["data"], row["method"]), re.findall(r"-?\d+\.\d+", str(row)))
              for row in published.printed("J_table3", "data", "method")], ""
    checked = 0
    _, *sections = re.split(r"(?m)^## ", PAGES["real-data.md"])
    for section in sections:
        names = {*re.findall(r"pictures/(\w+)\.", section)}
        for command in re.findall(r"python figures\.py ([\w ]+) --", section):
            names |= {f"{figure}_real" for figure in F.select(command.split())}
        names = [name for name in names if (ROOT / "pictures" / f"{name}.txt").exists()]
        files = {name: committed_numbers(name) for name in names}
        head = section.splitlines()[0]
        for block in re.split(r"\n\n|\n(?=- |\|)", section):
            said = re.sub(r"`[^`]*`|\$[^$]*\$|\([^)]*\.md[^)]*\)", "", block)
            context = f"{head}\n{block}".lower()
            linked = {*re.findall(r"pictures/(\w+)\.", block)} & {*files} or files
            for text in re.findall(r"(?<![\w.])-?\d+\.\d+(?![\w.])", said):
                unit = 0.5 * 10.0 ** -len(text.partition(".")[2]) + 1e-9
                near = [median for *_, median, _ in rules]
                near += [number for rows, outside in (theirs, *map(files.get, linked))
                         for labels, numbers in rows
                         for number in numbers + re.findall(r"\d+\.\d+", outside)
                         if all(label.lower() in context for label in labels)]
                assert any(abs(float(text) - float(number)) <= unit for number in near), text
                checked += 1
    assert checked > 10
    claims = PAGES["README.md"] + PAGES["real-data.md"]
    for near, of in re.findall(r"(\d+) of the (\d+) scores", claims):
        assert f" {near} of {of} within " in (ROOT / "pictures/J_table3_real.txt").read_text()
    for count in re.findall(r"(\d+) of the (\d+) numbers", claims):
        assert tuple(map(int, count)) in [rule[:2] for rule in rules], count
    due = [(round(half[2]), round(two[2])) for half, two in zip(rules[::2], rules[1::2])]
    expected = re.findall(r"own\s+ten\s+splits,\s+(\d+)\s+and\s+(\d+)", PAGES["real-data.md"])
    assert [tuple(map(int, pair)) for pair in expected] == due[1:]
