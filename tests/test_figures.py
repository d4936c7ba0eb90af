"""figures.py: every figure at quick size, --resume and interruption, what is refused.

The networks of J Fig. 5, beyond/networks.py.
"""

import gzip
import os
import re
import subprocess
import sys
import time
from decimal import Decimal
from signal import SIGINT, SIGTERM

import autograd
import numpy as np
import pytest
from test_ref import trace
from tests.oracles import assert_close, central_difference, HERE

import beyond.studies
import figures as F
import figures_of.J
import figures_of.L
import figures_of.R
import predictive as J
from beyond import networks
from figures_of import imitations, published, shared

FEW = ["R_fig4", "R_fig5", "L_fig3"]  # formulas, experiments
DEAR = [  # a second or more each, even at quick size; in the last line those drawn as another is
    "R_fig7", "R_certificates", "R_coverage", "R_kernels", "L_certificate", "L_coverage",
    "L_errors", "L_bounds", "scaling", "certificates", "stream", "hero", "million",
    "R_fig6", "J_fig6", "J_fig8", "J_fig9", "L_fig5"]
ROOMS = (figures_of.R, figures_of.J, figures_of.L, beyond.studies)
posix = pytest.mark.skipif(os.name != "posix", reason="signals and rights as POSIX has them")


@pytest.fixture(scope="module")
def quick():
    return F.Run("quick")


def files(out):
    """name -> bytes of the files in a folder."""
    return {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in DEAR else ()) for name in F.FIGURES])
def test_RJL_house_figure_runs(name, quick, tmp_path):
    """The text lists message, settings and every number, all finite or absent; pictures are PNG."""
    rows = F.make(name, quick, tmp_path)
    found = files(tmp_path)
    text = (tmp_path / f"{name}.txt").read_text()
    usual = [".md" if "table" in name else ".png"]
    kinds = {"stream": [".gif"], "J_settings": [], "R_kernels": []}.get(name, usual)
    assert found.keys() == {f"{name}{kind}" for kind in (".txt", *kinds)}
    pictures = [content for file, content in found.items() if file.endswith(".png")]
    assert all(content[:8] == b"\x89PNG\r\n\x1a\n" for content in pictures)
    assert F.FIGURES[name].message in text
    assert_claim(name, text)
    assert "size quick, seed 0" in text
    assert all(
        f"{key} = {value[0] if isinstance(value, tuple) else value}" in text
        for key, value in F.FIGURES[name].settings.items()
    )
    numbers = [v for row in rows for v in row.values() if isinstance(v, float)]
    assert rows
    assert all(shared.cell(v) in text for v in numbers)
    assert not np.isinf(numbers).any()


def test_RJL_house_figures_list(capsys):
    """Without names all of the papers are made; by name or its beginning some are, studies too."""
    assert F.select([]) == F.papers()
    assert len(F.papers()) == 31
    assert F.select(["scal", "million"]) == ["scaling", "million"]
    assert F.main(["--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert [name for name in listed if name in F.papers()] == F.papers()
    assert listed[:3] == ["R_fig1", "R_fig2", "R_fig3"]
    assert sorted(listed) == sorted(F.FIGURES)


def test_RJL_house_figures_explained():
    """The sections of docs/figures.md belong to figures or experiments, and are found by name; each
    picture of ours is in its section, and each figure has its seconds.
    """
    page = F.PAGE.read_text()
    named = [name for names in re.findall(r"^### (.+)$", page, re.M) for name in names.split(", ")]
    assert len(named) == len(set(named)) >= len(F.FIGURES)
    assert set(F.FIGURES) <= set(named)
    for name in named:
        found = [getattr(room, name) for room in ROOMS if hasattr(room, name)]
        assert name in F.FIGURES or hasattr(found[0], "settings"), name
        (text,) = F.explained(name)
        assert not text.startswith(("<img", "#"))
    for path in (F.HERE / "pictures").glob("*.png"):
        assert path.stem == "stream" or f'src="../pictures/{path.name}" width="700"' in page
    seconds = F.expected_seconds()
    assert set(seconds) == set(F.FIGURES)


def test_RJL_house_pictures_say_the_same():
    """The texts in pictures/ have the message and the paragraph of today; titles are their
    findings.
    """
    for name, f in F.FIGURES.items():
        text = (F.HERE / "pictures" / f"{name}.txt").read_text()
        finding, message = text.split("\n\n")[:2]
        assert finding.startswith(f"{f.head}. "), name
        assert message == f.message, name
        assert all(paragraph in text for paragraph in F.explained(name)), name
        assert_claim(name, text)
    for name in ("R_fig1", "R_fig3", "R_fig7", "R_table1", "R_table2", "L_table2", "L_bounds"):
        assert_claim(name, (F.HERE / "pictures" / f"{name}_real.txt").read_text())


def columns(text):
    """The rows of a text's table, dicts; cells are apart by two spaces."""
    lines = text.splitlines()
    rule = next(i for i, line in enumerate(lines) if re.fullmatch("-+(  +-+)*", line))
    ends = [match.span() for match in re.finditer("-+", lines[rule])]
    starts = [start for start, _ in ends]
    cut = lambda line: [line[a:b].strip() for a, b in zip(starts, [*starts[1:], None])]
    body = lines[rule + 1 :]
    body = body[: body.index("")] if "" in body else body
    return [dict(zip(cut(lines[rule - 1]), cut(line))) for line in body]


def value(row, name, part=0):
    """The number, or its error, in a cell of a text's table."""
    return float(row[name].split(" +- ")[part])


def own(rows, **equal):
    """The rows with these entries, without those of the papers."""
    return [row for row in rows if equal.items() <= row.items() and row.get("", "ours") == "ours"]


def at(rows, name, **equal):
    """The numbers in a column of these rows."""
    return np.array(
        [value(row, name) for row in own(rows, **equal) if row.get(name, "-") not in ("", "-")])


def cases(rows, *key):
    """The rows by their entries in some columns."""
    found = {}
    for row in own(rows):
        found.setdefault(tuple(row[k] for k in key), []).append(row)
    return found.values()


def lowest(parts, name, method):
    """In how many cases a method has the lowest mean."""
    return sum(min(rows, key=lambda row: value(row, name))["method"] == method for rows in parts)


def ends(numbers):
    return [min(numbers), max(numbers)]


def claim_below_svgp(score):
    """MFD's score against SVGP's: on how many data sets, how surely, least and largest gap."""
    def claim(rows, text):
        found = [row[f"{score} - SVGP's"].split(" +- ") for row in own(rows, method="PPGPR-MFD")]
        less, error = np.array(found, float).T
        return [np.sum(less < 0), len(less), np.sum(less < -2 * error), *ends(-less)]
    return claim


def claim_lowest(score):
    """On how many data sets each method has the lowest score."""
    def claim(rows, text):
        rows = [row for row in rows if row["method"] != "exact"]
        sets = cases(rows, "data")
        counts = {row["method"]: lowest(sets, score, row["method"]) for row in rows}
        return [*(n for m, n in counts.items() if n or m == "PPGPR-MFD"), len(sets)]
    return claim


def claim_ranks_of_rmse(rows, text):
    ranks = published.published("J_table1", "method")
    paper = [float(ranks[m,]["RMSE"]) for m in ("PPGPR-MFD", "MAP")]
    return [*claim_lowest("RMSE")(rows, text), 1, *paper]


def claim_order(rows, text):
    """On how many data sets RMSE grows from delta to MF to Chol, here and in the paper."""
    methods = [f"PPGPR-{m}" for m in ("delta", "MF", "Chol")]
    paper = published.published("J_table3", "data", "method")
    theirs = [[float(paper[data, m]["RMSE"].split()[0]) for m in methods]
              for data in dict.fromkeys(data for data, _ in paper)]
    said = []
    for cases in (np.transpose([at(rows, "RMSE", method=m) for m in methods]), theirs):
        said += [sum(a < b < c for a, b, c in cases), len(cases)]
    return said


def claim_noise(rows, text):
    return [at(rows, "noise fraction", method=m).mean() for m in ("SVGP", "PPGPR-MFD")]


def claim_closest(rows, text):
    sets = cases(rows, "data")
    names = ("PPGPR+DKL", "MC dropout", "SVGP+DKL")
    first, *others = [lowest(sets, "distance from Phi", m) for m in names]
    return [first, len(sets), *others]


def claim_extrapolated(rows, text):
    def near(kernel, **equal):
        return np.sum(at(rows, "RMSE", kernel=kernel, **equal) < 0.1)

    first, best = dict(start=rows[0]["start"]), {"lower objective": "yes"}
    return [0.1, near("periodic", **first), 3, near("Matern52", **first),
            near("periodic", **best), near("Matern52", **best)]


def claim_ranks(rows, text):
    theirs = {rows[i - 1]["method"]: row for i, row in enumerate(rows) if row[""] == "the paper"}
    own = {row["method"]: value(row, "RMSE") for row in rows if row[""] == "ours"}
    paper = {m: value(row, "RMSE") for m, row in theirs.items()}
    return [ranks[m] for m in (min(own, key=own.get), min(paper, key=paper.get))
            for ranks in (own, paper)]


def claim_ratio(more, less, column, key="method"):
    """How many times the values of one method are those of another."""
    def claim(rows, text):
        return ends(at(rows, column, **{key: more}) / at(rows, column, **{key: less}))
    return claim


def claim_goals(rows, text):
    goals = [at(rows, "eps/sigma_n"), np.ceil(1000 * at(rows, "B of a draw")) / 1000]
    return [*np.ravel(goals), *at(rows, "KL/N"), 0.097, 0.109, 0.031]


def claim_full_gps(rows, text):
    goals = cases(rows, "eps")
    above = at(rows, "B", method="sqrt-PAC-GP") - at(rows, "B", method="kl-PAC-GP")
    return [lowest(goals, "B", "kl-PAC-GP"), len(goals), *ends(above),
            lowest(goals, "MSE", "full-GP")]


def claim_sparse(rows, text):
    sets = cases(rows, "data", "M")
    return [len(sets), *(lowest(sets, name, "kl-PAC-SGP") for name in ("B", "KL/N", "MSE"))]


def claim_grids(rows, text):
    fine = [row for row in rows if row["r"] != "0"]
    moved = [abs(at(fine, f"R_S {part} - that of (2, 2)")).max() for part in ("train", "test")]
    B = at(fine, "B")
    assert ("B only grows" in text) == np.all(np.diff(B) > 0)
    return [max(moved), B[0], B[-1], *ends(at(rows, "B", r="0"))]


def claim_rates(order):
    """Mean errors of the four and of the naive one, and the paper's of the four."""
    def claim(rows, text):
        paper = published.published("L_table2", "data", "method")
        theirs = [float(paper[order, row["method"]]["t = 30, test"]) for row in rows[:-1]]
        return [at(rows, "runs")[0], *at(rows, "test MSE, all runs"), *theirs]
    return claim


def claim_waves(rows, text):
    off = lambda part, **equal: at(rows, f"RMSE to f, {part}", **equal).mean()
    said = [off(part, order=order) for order in ("shuffled", "time")
            for part in ("seen", "to come")]
    return [len(rows) / 2, 0, *said, off("to come", order="time", data="cos")]


def claim_least_errors(rows, text):
    t = max(int(name.split()[2].rstrip(",")) for name in rows[0] if name.startswith("t ="))
    said = []
    for order in ("time", "shuffled"):
        own = {row["method"]: value(row, f"t = {t}, test") for row in rows
               if row.get("order") == order}
        four = [own[m] for m in ("O-SGPR", "O-SVGP", "WISKI", "O-PACGP")]
        said += [min(four), own["nearest row seen"]]
    return [t, *said]


def claim_certificates(rows, text):
    part = [row for row in rows if row["delta"] == "0.05"]
    return [*ends(at(part, "paper") / at(part, "held-out 1/2")),
            *ends(at(part, "mean, paper") / at(part, "mean, held-out"))]


def claim_coverage(rows, text):
    allowed = float(re.search(r"delta = ([\d.]+)", text)[1])
    failed = at(rows, "median over R", constant="no term at all")
    return [at(rows, "B below the true risk").sum(), at(rows, "data sets").sum(), *failed, allowed]


def claim_settings(rows, text):
    rows = [row for row in rows if row["setting"] != "the paper"]
    scores = [at(part, "validation NLL") for part in cases(rows, "data", "method")]
    return [sum(part[0] == min(part) for part in scores), len(scores)]


def claim_failures(rows, text):
    coin = [at(rows, "exact", what=f"coin, {name}")[0] for name in ("full", "no confidence")]
    (gp,) = (row for row in rows if row["what"] == "GP, full")
    (cut,) = at(rows, "violated", what="GP, no confidence")
    return [0.01, *coin, *(value(gp, name) for name in ("delta", "violated", "streams")), cut]


def claim_errors(rows, text):
    return [value(row, "RMSE - exact", part) for name in ("certified GP", "O-SVGP", "last value")
            for row in own(rows, predictor=name) for part in (0, 1)]


def claim_bounds(rows, text):
    m = max(at(rows, "m", stream="sin", order="time"))
    at_eps = dict(stream="sin", m=f"{m:.0f}", eps="0.8")
    return [m, 0.8, *(at(rows, "one-step bound", order=order, **at_eps)[0]
                      for order in ("time", "shuffled"))]


def claim_sizes(rows, text):
    N = at(rows, "N", certificate="paper")
    best = [min(part, key=lambda row: value(row, "draw, bound")) for part in cases(rows, "N")]
    return [sum(row["certificate"] == "held-out" for row in best), len(N), *ends(N)]


def claim_hero(rows, text):
    bound, true = re.search(r"Panel 1: B = (\d\.\d+),.* fresh rows (\d\.\d+)", text).groups()
    return [np.ceil(1000 * float(bound)) / 10, 100 * float(true)]


last = lambda rows, *names: [value(rows[-1], name) for name in names]
CLAIMS = {  # figure -> a function of its table and text: the numbers in its title, in order
    "R_fig1": claim_goals,
    "R_fig2": claim_full_gps,
    "R_fig3": claim_sparse,
    "R_fig4": lambda rows, text: [
        0, 1, 0.1, value(rows[1], "q = 0"), 0.1, value(rows[1], "q = 0.1")],
    "R_fig5": lambda rows, text: [0, 1, *last(rows, "l(1)", "E l(1)")],
    "R_fig6": lambda rows, text: [
        number for row in rows for number in
        (value(row, "from full GP"), row["eps/sigma_n"]) if number != "-"],
    "R_fig7": lambda rows, text: at(rows, "best sigma_n^2"),
    "R_fig8": claim_grids,
    "R_table1": claim_ratio("full-GP", "kl-PAC-GP", "B"),
    "R_table2": claim_ratio("VFE", "kl-PAC-SGP", "B"),
    "R_table3": lambda rows, text: claim_ratio("VFE", "kl-PAC-SGP", "B")(rows, text)[:1],
    "J_fig1": lambda rows, text: at(rows, "noise fraction"),
    **{f"J_fig{n}": claim_below_svgp(score) for n, score in ((2, "NLL"), (9, "CRPS"))},
    "J_fig3": claim_ranks_of_rmse,
    "J_fig6": claim_lowest("NLL"),
    "J_fig7": claim_order,
    **dict.fromkeys(("J_fig4", "J_fig8"), claim_noise),
    "J_fig5": claim_closest,
    "J_fig10": claim_extrapolated,
    **dict.fromkeys(("J_table1", "J_table2"), claim_ranks),
    "J_table3": claim_below_svgp("NLL"),
    "L_fig1": lambda rows, text: [
        *last(rows, "m"), value(rows[-25], "bound, K^2/2"), 0.5,
        *last(rows, "bound, K^2/2", "confidence", "loss")],
    "L_fig2": lambda rows, text: last(rows, "mean of P_t+1 moves by", "t"),
    "L_fig3": claim_waves,
    "L_fig4": claim_rates("time"),
    "L_fig5": claim_rates("shuffled"),
    "L_table1": lambda rows, text: [
        sum(row["certificate"].startswith("yes") for row in rows), len(rows)],
    "L_table2": claim_least_errors,
    "R_certificates": claim_certificates,
    "R_kernels": lambda rows, text: [
        len(re.findall(r"a gain\.$", text, re.M)), len(re.findall(" less SE ", text))],
    "R_coverage": claim_coverage,
    "J_settings": claim_settings,
    "L_certificate": lambda rows, text: [
        *last(rows, "m", "loss", "mixture", "best", "1"), 1, min(at(rows, "1/m"))],
    "L_coverage": claim_failures,
    "L_dependent": lambda rows, text: [
        3.1, *(value(rows[0], name) for name in ("violated", "streams", "delta"))],
    "L_errors": claim_errors,
    "L_bounds": claim_bounds,
    "certificates": claim_sizes,
    "scaling": lambda rows, text: [
        *ends(at(rows, "hand/bare")), *ends(at(rows, "autograd/hand"))],
    "million": lambda rows, text: [
        *last(rows, "N", "seconds", "evaluations"), np.ceil(1e4 * at(rows, "B")[-1]) / 1e4,
        *last(rows, "R_S test")],
    "hero": claim_hero,
    "stream": lambda rows, text: last(rows, "m", "certificate", "loss", "true risk"),
}


def assert_claim(name, text):
    """The numbers in the title are those that the table gives, to the digits that are said."""
    finding = text.split("\n\n")[0].removeprefix(f"{F.FIGURES[name].head}. ")
    said = re.findall(r"(?<![\w./^-])-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?![\w/^])", finding)
    want = [float(number) for number in CLAIMS[name](columns(text), text)]
    assert len(said) == len(want), (name, said, want)
    for number, right in zip(said, want):
        number = Decimal(number.replace(",", ""))
        step = 10.0 ** number.as_tuple().exponent
        near = 0.5 * step + 1.5e-3 * abs(right)  # cells have four digits
        assert abs(float(number) - right) <= near, (name, number, right)


def test_RJL_house_claims_are_checked():
    """Every figure has a claim; a number that is changed in a title is noticed."""
    assert CLAIMS.keys() == F.FIGURES.keys()
    text = (F.HERE / "pictures" / "R_fig3.txt").read_text()
    assert_claim("R_fig3", text)
    for wrong in (text.replace("Of 4 cases", "Of 5 cases"), text.replace("Of 4 cases", "Of cases")):
        with pytest.raises(AssertionError):
            assert_claim("R_fig3", wrong)


def test_J_settings_claims_of_real_data():
    """What docs/real-data.md says of the settings holds in the file that it links."""
    page = " ".join((F.HERE / "docs" / "real-data.md").read_text().split())
    text = (F.HERE / "pictures" / "J_settings_real.txt").read_text()
    agree = re.findall(r"^- (\w+), .*?: (\d+) of 12 numbers within", text, re.M)
    most = {name: max(int(n) for data, n in agree if data == name) for name, _ in agree}
    assert most == {"pol": 4, "kin40k": 0}
    assert "at most 4 of 12 agree on pol, and none on kin40k" in page
    rows = [row for row in columns(text) if row["jitter"] != "the paper"]
    first = {(part[0]["data"], part[0]["method"]) for part in cases(rows, "data", "method")
             if value(part[0], "validation NLL") == min(at(part, "validation NLL"))}
    assert first == {("pol", "SVGP"), ("pol", "PPGPR-Chol"), ("kin40k", "SVGP"),
                     ("kin40k", "VFITC"), ("kin40k", "PPGPR-Chol")}     # ours come first
    assert "for SVGP and Chol, and on kin40k for VFITC" in page


def test_RJL_house_published():
    """The papers' tables have 922 numbers, each once; value and error come back as numbers."""
    rows = published.PUBLISHED.read_text().splitlines()[1:]
    keys = {
        "".join(line.split('"')[:2]) if '"' in line else line.rsplit(",", 2)[0] for line in rows}
    assert len(rows) == len(keys) == 503
    assert sum(1 + (line[-1] != ",") for line in rows) == 922
    table = published.published("R_table1", "setting", "method")
    entry = table["0.6", "kl-PAC-GP"]
    assert (shared.col([entry], "B"), shared.col([entry], "B", 1)) == (0.333, 0.004)
    assert len(entry) == 7


def test_RJL_house_beside_verdicts():
    """Agreement is a gap of at most two standard errors and half a digit.

    A single split has sqrt(10) times the error.
    """
    paper = {("a",): {"B": "0.500 +- 0.010"}}
    always = dict(judge=lambda row: True)
    for value, verdict in ((0.5204, "yes"), (0.5206, "NO")):
        rows, _ = published.beside([{"k": "a", "B": (value, 0.01)}], paper, "k", **always)
        assert [row.get("") for row in rows] == ["ours", "the paper", "2 s.e."]
        assert rows[-1]["B"] == verdict
    rows, _ = published.beside([{"k": "a", "B": (0.56, np.nan)}], paper, "k", **always)
    assert rows[-1]["B"] == "yes"


def test_RJL_house_experiments_kept(tmp_path, monkeypatch):
    """--resume takes an experiment from disk, unless sources or seed changed, or it is damaged."""
    calls = []

    @shared.experiment(N=(3, 4, 5))
    def drawn(run, name, N):
        """Numbers."""
        calls.append(name)
        return run.rng.standard_normal(N)

    def made(**more):
        return F.Run("quick", cache=tmp_path, resume=True, **more).once(drawn, "sin")

    first = made()
    assert np.array_equal(made(), first)
    assert len(calls) == 1
    assert not np.array_equal(made(seed=1), first)
    monkeypatch.setattr(F, "HERE", tmp_path)
    assert np.array_equal(made(), first)
    assert len(calls) == 3
    for path in tmp_path.iterdir():
        path.write_bytes(b"half")
    made()
    assert len(calls) == 4


def stopped(names, out, ready, signal, *options):
    """Status and errors of figures.py, stopped when it has said `ready`."""
    command = [sys.executable, *options, "-u", "figures.py", *names, "--quick", "--out", str(out)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=HERE) as run:
        while ready not in run.stdout.readline():
            assert run.poll() is None
        run.send_signal(signal)
        said, _ = run.communicate(timeout=600)
    return run.returncode, said


@posix
@pytest.mark.parametrize(
    "signal, ready",
    [(SIGINT, "R_fig5: "), pytest.param(SIGTERM, "R_fig4: ", marks=pytest.mark.slow)])
def test_RJL_house_figures_interrupted(signal, ready, quick, tmp_path):
    """Stopped while a figure is made: status 130, one sentence; --resume ends with all files, those
    of a run that makes each alone.
    """
    status, said = stopped(FEW, tmp_path, ready, signal)
    assert status == 130
    assert said.count("interrupted: ") == 1
    assert said.count("Traceback") == said.count("Exception ignored")  # lost, and told by Python
    assert F.main([*FEW, "--quick", "--resume", "--out", str(tmp_path)]) == 0
    alone = tmp_path / "alone"
    alone.mkdir()
    for name in FEW:
        F.make(name, quick, alone)
    assert files(alone) == files(tmp_path)


@posix
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_RJL_house_figures_interrupt_lost(tmp_path, monkeypatch, capfd):
    """An interrupt that Python loses, as in the callback of a weak reference, ends the run, too."""

    class Late:
        def __del__(self):
            os.kill(os.getpid(), SIGINT)
            time.sleep(0.01)

    made = []
    monkeypatch.setattr(F, "make", lambda name, *_: made.append(name) or Late() and None)
    assert F.main(["R_fig1", "R_fig2", "--quick", "--out", str(tmp_path)]) == 130
    assert made == ["R_fig1"]
    assert "interrupted" in capfd.readouterr().err


@posix
@pytest.mark.parametrize("module", ["argparse", "matplotlib.figure"])
def test_RJL_house_figures_interrupted_imports(module, tmp_path):
    """Ctrl-C while modules are imported: status 130 and no traceback."""
    status, said = stopped([], tmp_path, f" {module}\n", SIGINT, "-X", "importtime")
    assert status == 130
    assert "Traceback" not in said


def test_RJL_house_figures_full_disk(tmp_path, monkeypatch, capsys):
    """A file that cannot be written: status 2, one line."""

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(F.pathlib.Path, "write_text", full)
    assert F.main(["R_fig4", "--quick", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "error: [Errno 28] No space left on device\n"


REFUSED = {  # what is wrong -> arguments, message
    "name": (["nonsense"], "no figure is called 'nonsense', or begins so; there are"),
    "near": (["J_tabel1"], "did you mean J_table1,"),
    "case": (["r_fig7"], "did you mean R_fig7,"),
    "real": (["R_fig3_real"], "did you mean R_fig3,"),
    "folder": (["--data", "nowhere"], "cannot read nowhere"),
    "seed": (["--seed", "-1"], "--seed"),
    "out": (["R_fig4", "--out", os.devnull + "/x"], "Not a directory"),
    "locked": (["R_fig4", "--out", "locked"], "Permission denied"),
}
DAMAGED = {  # what is wrong with motorcycle.csv -> its bytes, message
    "missing": (None, "docs/real-data.md says where it comes from"),
    "short": (b"1,2\n3,4\n", "is it complete?"),
    "truncated": (gzip.compress(bytes(range(48, 58)) * 9)[:20], "cannot read data"),
    "NaN": (b"1,nan\n" * 133, "has no complete row"),
}


@pytest.mark.parametrize("what", [*REFUSED, *DAMAGED])
def test_RJL_house_figures_refused(what, capsys, tmp_path, monkeypatch):
    """A short error, which names the file, and status 2, before anything is computed or made."""
    if what == "locked" and (os.name != "posix" or os.geteuid() == 0):
        pytest.skip("root may write anywhere")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "locked").mkdir(mode=0o500)
    (tmp_path / "data").mkdir()
    if what in DAMAGED:
        content, message = DAMAGED[what]
        argv = ["J_fig1", "--data", "data"]
        if content is not None:
            (tmp_path / "data" / "motorcycle.csv").write_bytes(content)
    else:
        argv, message = REFUSED[what]
    assert F.main(argv) == 2
    err = capsys.readouterr().err
    assert message in err
    assert ("motorcycle.csv" in err) == (what in DAMAGED)
    if what == "name":
        assert max(map(len, err.splitlines())) <= 100
    else:
        assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


# --- J Fig. 5: a network in front of the GP, or dropout inside it ---------------------------------


def small_network():
    """Parameters of a network 3-5-4-2, offsets not zero, inputs (6, 3).

    No unit is near its kink, where differences fail.
    """
    rng = np.random.default_rng(15)
    p = networks.start_weights(rng, (3, 5, 4, 2))
    p = {k: v + 0.1 * rng.standard_normal(v.shape) for k, v in p.items()}
    return p, rng.standard_normal((6, 3))


@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_J_fig5_network_grad(drop):
    """All parameters and X against autograd of the shipped code and central differences."""
    p, X = small_network()
    d_A = np.random.default_rng(1).standard_normal((6, 2))
    args = p | {"X": X}

    def value(module, p):
        weights = {k: v for k, v in p.items() if k != "X"}
        A, _ = module.network(weights, p["X"], drop, np.random.default_rng(2))  # same units
        return (d_A * A).sum()

    got = networks.network(p, X, drop, np.random.default_rng(2))[1](d_A)
    traced = trace(networks)
    auto = autograd.grad(lambda p: value(traced, p))(args)
    assert got.keys() == args.keys()
    for k in args:
        assert_close(got[k], auto[k], 1e-13)

        def moved(v):
            return value(networks, args | {k: v})

        assert_close(got[k], central_difference(moved, args[k], 2e-4), 1e-8)


def test_J_fig5_network_value():
    """One row and one unit at a time, the last layer linear; dropout: a share, and the mean."""
    p, X = small_network()
    for x, got in zip(X, networks.network(p, X)[0]):
        for i in range(3):
            columns = zip(p[f"W{i}"].T, p[f"b{i}"])
            x = [sum(h * w for h, w in zip(x, column)) + b for column, b in columns]
            if i < 2:
                x = [max(v, 0.0) for v in x]
        assert_close(got, x, 1e-13)
    p = {"W0": np.eye(4), "b0": np.zeros(4), "W1": np.ones((4, 1)), "b1": np.zeros(1)}
    X = np.tile([1.0, 2.0, 3.0, 4.0], (20_000, 1))
    out, back = networks.network(p, X, 0.25, np.random.default_rng(0))
    dropped = back(np.ones((20_000, 1)))["X"] == 0
    assert abs(np.mean(dropped) - 0.25) < 0.01  # 5.5 standard errors
    assert abs(out.mean() - 10) < 0.12  # 5 standard errors: sqrt(30 / 3 / 20000)


def test_J_fig5_deep_gp_grad():
    """Network and GP together, every parameter, against central differences."""
    net, X = small_network()
    rng = np.random.default_rng(3)
    p = J.initial_parameters(networks.network(net, X)[0], "PPGPR-MFD", 3, rng=rng) | net
    p = {k: v + 0.1 * rng.standard_normal(np.shape(v)) for k, v in p.items()}
    y = rng.standard_normal(6)

    def value(q):
        return J.objective(q, networks.network(q, X)[0], y, 20, "PPGPR-MFD", 0.3)[0]

    got = networks.deep_gradient(p, X, y, 20, "PPGPR-MFD", 0.3)
    for k in p:
        want = central_difference(lambda v: value(p | {k: v}), p[k], 2e-4)
        assert_close(got[k], want, 1e-7)


def test_J_table1_average_ranks_value():
    """Places 1, 2, .. are dealt out in order, 1 to the lowest, and shared by ties."""
    ranks = figures_of.J.average_ranks(np.array([[0.1, 0.1, 9.0], [2, 1, 3]]))
    assert np.array_equal(ranks, [1.75, 1.25, 3.0])
    scores = np.random.default_rng(0).integers(0, 3, (40, 6))
    ranks = [[1 + np.mean(np.flatnonzero(np.sort(row) == v)) for v in row] for row in scores]
    assert_close(figures_of.J.average_ranks(scores), np.mean(ranks, 0), 1e-14)


def test_J_fig5_kolmogorov_value():
    """Scores counted, ties included; the largest distance found on a fine grid, and at one point.
    """
    found = networks.z_score_cdf(np.array([1.0, -1.0, 1.0, 1.5]), [2, -1, 1, 0.999, -1.001])
    assert np.array_equal(found, [1.0, 0.25, 0.75, 0.25, 0.0])
    z = np.random.default_rng(0).standard_normal(40) * 1.3 + 0.2
    grid = np.sort(np.concatenate([np.linspace(-6, 6, 100_001), z, z - 1e-9]))
    largest = np.max(np.abs(networks.z_score_cdf(z, grid) - J.norm_cdf(grid)))
    assert abs(networks.kolmogorov(z) - largest) < 1e-8
    assert networks.kolmogorov(np.zeros(1)) == 0.5


def test_J_fig5_deep_gp_learns():
    """On a city both beat the mean by far, and state a variance of the right size."""
    plan = dict(hidden=[16, 4], M=10, batch=100, epochs=40)
    X, y = imitations.taxi_like(np.random.default_rng(0), 800, "city A")
    X = shared.standard(X)
    y = shared.standard(y)
    rng = np.random.default_rng(0)
    tau, net = networks.dropout_net(rng, X[:400], y[:400], X[400:600], y[400:600], 0.1, plan, print)
    for predict in (net, networks.deep_gp(rng, X[:400], y[:400], "PPGPR-MFD", 0.2, plan, print)):
        mean, var = predict(X[600:])
        assert J.rmse(y[600:], mean) < 0.7
        assert 0.2 < np.mean((y[600:] - mean) ** 2 / var) < 5
    assert tau in networks.TAUS
