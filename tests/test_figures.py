"""figures.py: every figure at quick size; what is refused; what the figures share; the networks of
J Fig. 5. What the numbers mean: test_experiments.py.
"""

import ast
import functools
import gzip
import html
import os
import re
import subprocess
import sys
import types
import zlib
from unittest.mock import Mock
from urllib.parse import unquote

import numpy as np
from numpy.random import default_rng
import pytest
from tests.oracles import assert_close, central_difference, each, HERE
from tests.test_pages import LAST, PAGES

import figures as F
import figures_of.J
import figures_of.R
import pacgp_ref as R
import predictive as J
from figures_of import beside, cells, imitations, networks, published, shared, studies
from own_data import command_line

SLOW = [  # a second or more each, even at quick size, or drawn as another is
    "R_fig6", "R_fig7", "J_fig6", "J_fig8", "J_fig9", "L_fig5", "certificates", "J_appD", "million"]
DRAWN = ["R_fig4", *SLOW]                # `python figures.py` draws the others, which are laid out


@pytest.fixture(scope="module")
def quick():
    return F.Run("quick")


def laid_out(picture):
    """A picture that fits a page; nothing in place of its pixels."""
    assert picture.get_size_inches()[0] <= 8.3
    return np.zeros((9, 9, 4))


@each(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in F.FIGURES])
def test_RJL_house_figure_runs(name, quick, tmp_path, monkeypatch):
    """The text has caption, settings and every number, all finite or absent; pictures are PNG."""
    if name not in DRAWN:
        monkeypatch.setattr(F, "pixels", laid_out)
    rows = F.make(name, quick, tmp_path)
    text = (tmp_path / f"{name}.txt").read_text()
    other = tmp_path / f"{name}.{'md' if '_table' in name else 'png'}"
    assert {*tmp_path.iterdir()} == {other, tmp_path / f"{name}.txt"}
    assert other.suffix == ".md" or other.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    f = F.FIGURES[name]
    assert f.caption in text and "size quick, seed 0" in text
    assert "boston_split: N = 150" in text or name not in ("R_fig2", "R_table1")
    for key, value in f.settings.items():
        assert f"{key} = {value[0] if isinstance(value, tuple) else value}" in text
    numbers = [v for row in rows for v in row.values() if isinstance(v, float)]
    assert rows and not np.isinf(numbers).any()
    for v in numbers:
        assert shared.cell(v) in text


def test_RJL_house_figures_list(capsys):
    """Without names all 31 of the papers are made; by name or its beginning some are. The page
    lists the data files with their shapes.
    """
    assert {*F.FIGURES} - {*F.select([])} == {
        "J_appD", "hero", "million", "certificates", "L_dependent", "authors_table"}
    assert F.select(["mill", "J_fig1"]) == ["J_fig1", "million"]
    assert {(name, *map(str, shape)) for name, shape in F.FILES.items()} == {
        *re.findall(r"`([\w.]+)` \| (\d+) x (\d+)", PAGES["real-data.md"])}
    assert F.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*F.FIGURES]


def test_RJL_house_pictures_say_the_same():
    """The texts in pictures/ have the captions of today, which claim no bars of one split; runs
    are those made; each is in docs/figures.md.
    """
    page = (HERE / "docs" / "figures.md").read_text()
    for path in (HERE / "pictures").glob("*.txt"):
        text = path.read_text()
        head, caption = text.split("\n\n")[:2]
        f = F.FIGURES[path.stem.removesuffix("_real")]
        want = F.caption_of(f, F.Run(folder="" if "_real" in path.stem else None))
        assert head.startswith(f"{f.head}. ") and caption == want, path.stem
        assert f"pictures/{path.stem}." in page, path.stem
        assert "bars:" not in caption or "splits = 1" not in text, path.stem
        for made in re.findall(r"(?m)^O-PACGP +\d+ +(\d+) ", text):
            assert f"runs = {made}," in text, path.stem


def test_RJL_house_settings_by_size():
    """(quick, default, full, default with --data, full with --data); the last may be left out."""
    ask = shared.experiment("", a=(0, 1, 2, 3, 4), b=(0, 1, 2, 3), c=(0, 1, 2))(
        lambda run, **settings: [*settings.values()])
    for folder, want in ((None, [[0, 0, 0], [1, 1, 1], [2, 2, 2]]),
                         (".", [[0, 0, 0], [3, 3, 1], [4, 2, 2]])):
        assert [F.Run(size, folder=folder).once(ask) for size in F.SIZES] == want


def test_RJL_house_cells_run(tmp_path, monkeypatch, capsys):
    """Cells give the table that a run at once gives; one that was stopped goes on, to the same
    bits; another seed or setting is another cell; a training that fails is left out.
    """
    monkeypatch.setitem(F.FIGURES["R_table3"].settings, "splits", 1)
    path = tmp_path / "cells.jsonl"
    args = types.SimpleNamespace(size="quick", seed=0, data=None, out=tmp_path, cells=path)

    def run():
        F.make_all(["R_table3"], args)
        said = re.search(r"(\d+) cells to run", capsys.readouterr().out)
        return path.read_text().splitlines(keepends=True), int(said[1]) if said else 0

    lines, count = run()
    text = (tmp_path / "R_table3.txt").read_text()
    F.make("R_table3", F.Run("quick"), tmp_path)
    assert text == (tmp_path / "R_table3.txt").read_text() and len(lines) == count == 5
    values = cells.read(path)
    path.write_text("".join(lines[:3]))
    again, count = run()
    assert again[:3] == lines[:3] and count == 2 and cells.read(path) == values
    assert run() == (again, 0)
    for seed, max_evals, missing in ((0, 15, 0), (1, 15, 5), (0, 16, 5)):
        monkeypatch.setitem(figures_of.R.sparse_run.settings, "max_evals", max_evals)
        other = F.Run("quick", seed, cells=path)
        other.do(F.FIGURES["R_table3"], ())
        assert len(other.missing) == missing
    name, f, (data, M, _, *more) = [*other.missing.values()][0]
    cells.fill(path, [(name, f, (data, M, "nonsense", *more))], functools.partial(F.Run, "quick"))
    assert path.read_text().splitlines(keepends=True) == again


def test_RJL_house_cells_table(tmp_path):
    """At full size with data, of the cells that are there: the mean over splits, what it is minus
    SVGP's on the same splits, beta_reg of the least validation NLL, for each way of training; how
    many numbers are near the paper's; no figure needs any cell.
    """
    run = F.Run("full", cells=tmp_path / "none")
    run.real = True                     # cells stand for the tables
    for name, f in F.FIGURES.items():
        if "pol.csv.gz" in f.files and name != "J_table3":
            run.do(f, (name,))
    run.missing.clear()
    F.make("J_table3", run, tmp_path)
    text = (tmp_path / "J_table3.txt").read_text()
    assert f"are {len(run.missing)} cells: pol MAP (20), " in text
    table = {("SVGP", 0, 1.0): 3.0, ("SVGP", 1, 1.0): 5.0, ("PPGPR-MFD", 0, 0.01): 7.0,
             ("PPGPR-MFD", 0, 0.05): 4.0, ("PPGPR-MFD", 0, 0.2): 2.0, ("PPGPR-MFD", 0, 1.0): 1.0,
             ("PPGPR-MF", 0, 0.05): 6.0, ("PPGPR-MF", 0, 1.0): 8.0}
    cuts = dict(example_run=0, score_run=1, values_run=2, library_run=3)
    for key, (name, *_) in run.missing.items():
        cell = name["method"], name["split"], name["beta_reg"]
        if name["data"] == "protein" and cell in table:
            # the validation NLL is least at 0.2
            score = table[cell] - cuts[name["cell"]]
            run.cells[key] = dict(test=[score] * 4, validation=[abs(name["beta_reg"] - 0.3)] * 4)
    rows = [row for row in F.make("J_table3", run, tmp_path) if row[""] == "ours"]
    assert [(row["data"], row["method"], row["beta_reg"], row["training"], row["NLL"][0])
            for row in rows] == [("protein", *row) for row in (
        ("SVGP", "fixed", "example", 4.0), ("PPGPR-MF", "fixed", "example", 6.0),
        ("PPGPR-MFD", "fixed", "example", 2.0), ("PPGPR-MF", "validation", "example", 6.0),
        ("PPGPR-MFD", "validation", "example", 0.0), ("PPGPR-MFD", "fixed", "whitened", 4.0),
        ("PPGPR-MFD", "validation", "whitened", 2.0), ("PPGPR-MFD", "fixed", "float32", 1.0),
        ("PPGPR-MFD", "validation", "float32", -1.0), ("SVGP", "fixed", "fit", 3.0),
        ("PPGPR-MF", "fixed", "fit", 5.0), ("PPGPR-MFD", "fixed", "fit", 3.0),
        ("PPGPR-MF", "validation", "fit", 5.0), ("PPGPR-MFD", "validation", "fit", 1.0))]
    # on split 0 of two values_run is 1 below example_run's SVGP, on split 1 it is missing
    assert np.allclose([rows[i]["RMSE - SVGP's"][0] for i in (2, 5)], [-1.0, 1.0])
    text = (tmp_path / "J_table3.txt").read_text()
    assert 'training "fit": 0 of 9 within 5 % or 0.05 nats, 0 of 9 within 10 % or 0.12' in text
    same = dict(data="protein", method="SVGP")          # the paper: 0.902, 0.594, 0.326
    found = [same | dict(zip(figures_of.J.SCORES, scores)) for scores in (
        (0.902, 0.594, 0.326), (0.951, 0.623, 0.309), (0.953, 0.565, 0.310))]
    assert [figures_of.J.near_paper(found[:n], 0.05, 0.05)[:6] for n in (1, 2, 3)] == [
        "3 of 3", "2 of 3", "2 of 3"]


def test_RJL_house_published():
    """Value and error come back as numbers; two numbers agree that are at most half a standard
    error and half a digit apart, of a single split sqrt(10) times that. A failed run has a large
    error and does not agree. Of single splits as many are expected to agree as of simulated ones.
    """
    entry = published.published("R_table1", "setting", "method")["0.6", "kl-PAC-GP"]
    assert [shared.col([entry], "B", part)[0] for part in (0, 1)] == [0.333, 0.004]
    for printed, value, error, agree in (
            ("0.500 +- 0.010", 0.5054, 0.01, 1), ("0.500 +- 0.010", 0.5056, 0.01, 0),
            ("0.500 +- 0.010", 0.5162, np.nan, 1), ("0.500 +- 0.010", 0.5164, np.nan, 0),
            ("1334.991 +- 1334.032", 0.327, 0.017, 0)):
        table = published.beside([{"k": "a", "B": (value, error)}], {("a",): {"B": printed}}, "k")
        assert published.agreement(table)[:2] == (agree, 1)
        assert published.agreement(table)[4] == ["a"] * (1 - agree)
    splits = default_rng(0).normal(0, 0.01 * 10**0.5, (100_000, 10))    # error of the mean: 0.01
    near = np.abs(splits[:, 0] - splits.mean(1)) <= 0.005 * 10**0.5 + 5e-4
    for own, share in ((np.nan, np.mean(near)), (0.01, 1.0)):
        found = published.agreement([{"": "ours", "B": (0.5, own)},
                                     {"": "the paper", "B": "0.500 +- 0.010"}])
        assert np.isclose(found[2], share, atol=0.005)
        assert ("one of the paper's ten" in published.in_words(*found)) == np.isnan(own)


def test_RJL_house_averages_value():
    """Mean and standard error; a count; a bound rounded up; a fifth of the rows to test on."""
    assert shared.average([{"B": 1.0, "n": 3}, {"B": 3.0, "n": 7}]) == {"B": (2.0, 1.0), "n": 5}
    assert shared.at_most(0.1231) == "0.124"
    assert shared.bars(np.array([np.nan])) is None
    assert [*map(len, shared.train_test(11, 0))] == [8, 3]


@each("content, said", [
    (None, "docs/real-data.md"), (b"1,2\n3,4\n", "is it complete?"),
    (gzip.compress(bytes(range(48, 58)) * 9, mtime=0)[:20], "cannot read"),
    (b"1,nan\n" * 133, "is it complete?")])
def test_RJL_house_figures_refused(content, said, capsys, tmp_path):
    """A line that names the file, and status 2, before anything is made; so for a wrong name."""
    path = tmp_path / "motorcycle.csv"
    if content is not None:
        path.write_bytes(content)
    for argv, words in ((["J_fig1", "--data", str(tmp_path)], [said, str(path)]),
                        (["nonsense"], ["--list"])):
        assert F.main([*argv, "--out", str(tmp_path / "out")]) == 2
        err = capsys.readouterr().err
        assert [word for word in words if word not in err] == []
        assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_RJL_house_figures_start(tmp_path):
    """From any folder, without docstrings, in safe-path mode, whatever MPLBACKEND says."""
    flags = ["-OO", "-W", "error", "-W", "ignore::DeprecationWarning"]      # matplotlib's own
    flags += ["-P"] * (sys.version_info >= (3, 11))
    run = subprocess.run(
        [sys.executable, *flags, HERE / "figures.py", "R_fig5", "--quick"], cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "nonsense"}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "out" / "R_fig5.png").exists()


def test_R_table1_measures_value(monkeypatch):
    """Of f ~ N(0, 1) at y = 0 and 2: the 0-1 risk, whatever the loss of training."""
    monkeypatch.setattr(R, "predict", lambda fit, X: (np.zeros(2), np.ones(2)))
    fit = types.SimpleNamespace(
        bound=0.5, pinsker=0.6, R_S=0.4, eps=1.0, loss="exp", KL=6.0, N=3, ln_noise=np.log(4),
        optimum=types.SimpleNamespace(n_evals=9))
    got = figures_of.R.measure(fit, None, np.array([0.0, 2.0]))
    low, middle, high = R.norm_cdf(np.array([-1.0, 1.0, 3.0]))
    risk = 1 - (middle - low + high - middle) / 2
    assert_close([*got.values()], [0.5, 0.6, 0.4, risk, 2.0, 2.0, 4.0, 9], 1e-14)


# --- J Fig. 5: a network in front of the GP, or dropout inside it ---------------------------------


def small_network():
    """Parameters of a network 3-5-4-2, offsets not zero, inputs (6, 3).

    No unit is near its kink, where differences fail.
    """
    rng = default_rng(15)
    p = networks.start_weights(rng, (3, 5, 4, 2))
    p = {k: v + 0.1 * rng.standard_normal(v.shape) for k, v in p.items()}
    return p, rng.standard_normal((6, 3))


def assert_gradient(got, value, p):
    for name in p:
        want = central_difference(lambda v: value(p | {name: v}), p[name], 2e-4)
        assert_close(got[name], want, 1e-7, name)


def test_J_fig5_network_grad():
    """With dropout of the same units: all parameters and X, against central differences."""
    p, X = small_network()
    d_A = default_rng(1).standard_normal((6, 2))

    def run(p):
        return networks.network(p, p["X"], 0.3, default_rng(2))

    args = p | {"X": X}
    assert_gradient(run(args)[1](d_A), lambda p: np.sum(d_A * run(p)[0]), args)


def test_J_fig5_deep_gp_grad():
    """Network and GP together, every parameter, against central differences."""
    net, X = small_network()
    rng = default_rng(3)
    p = J.initial_parameters(networks.network(net, X)[0], "PPGPR-MFD", 3, rng=rng) | net
    p = {k: v + 0.1 * rng.standard_normal(np.shape(v)) for k, v in p.items()}
    y = rng.standard_normal(6)
    assert_gradient(
        networks.deep_objective(p, X, y, 20, "PPGPR-MFD", 0.3)[1],
        lambda q: J.objective(q, networks.network(q, X)[0], y, 20, "PPGPR-MFD", 0.3)[0], p)


def test_J_fig5_network_value():
    """ReLU between the layers alone; dropout: a share, and the mean."""
    p, X = small_network()
    H = X
    for i in range(3):
        H = (np.maximum(H, 0) if i else H) @ p[f"W{i}"] + p[f"b{i}"]
    assert_close(networks.network(p, X)[0], H, 1e-13)
    W = networks.start_weights(default_rng(0), (2, 90_000))["W0"]
    assert abs(W.std() - 1) < 0.01                      # variance 2/fan-in; 6 standard errors
    p = {"W0": np.eye(4), "b0": np.zeros(4), "W1": np.ones((4, 1)), "b1": np.zeros(1)}
    X = np.tile([1.0, 2.0, 3.0, 4.0], (20_000, 1))
    out, back = networks.network(p, X, 0.25, default_rng(0))
    dropped = back(np.ones((20_000, 1)))["X"] == 0
    assert abs(np.mean(dropped) - 0.25) < 0.01  # 5.5 standard errors
    assert abs(out.mean() - 10) < 0.12  # 5 standard errors: sqrt(30 / 3 / 20000)


def test_J_fig5_predictions_value(monkeypatch):
    """Of the parameters that training returns: those of J's GP at the network's output; the
    network's, and the tau of least NLL, for the noise of the validation rows.
    """
    parameters = {}
    monkeypatch.setattr(networks, "train", lambda rng, p, *_: parameters.update(p) or p)
    rng = default_rng(5)
    X = rng.standard_normal((400, 2))
    y = np.sin(X[:, 0])
    plan = dict(hidden=(4,), M=3)
    found = networks.deep_gp(rng, X, y, "PPGPR-MFD", 0.3, plan, print)(X)
    gp = {name: v for name, v in parameters.items() if name[0] not in "Wb"}
    assert_close(found, J.predict_y(J.predictor_at(gp), networks.network(parameters, X)[0]), 1e-12)

    net = networks.start_weights(default_rng(6), (2, 4, 1))
    mean = networks.network(net, X)[0][:, 0]
    noisy = mean + 0.5 * rng.standard_normal(400)
    predict = networks.dropout_net(default_rng(6), X, y, X, noisy, 0.0, plan, print)
    assert_close(predict(X), [mean, np.full(400, 0.25)], 1e-14)


def test_J_fig5_kolmogorov_value():
    """The largest distance, on either side of a step."""
    for z, want in (([0.0], 0.5), ([2.0, 1.0], R.norm_cdf(1.0)), ([-1.0, -2.0], R.norm_cdf(1.0))):
        assert_close(networks.kolmogorov(np.array(z)), want, 1e-15)


def test_standard_value():
    """Mean 0 and deviation 1; a constant is 0."""
    table = default_rng(0).standard_normal((50, 3)) * [3.0, 1.0, 0.0] + 2.0
    z = shared.standard(table)
    assert np.allclose([z.mean(0), z.std(0)], [[0, 0, 0], [1, 1, 0]], atol=1e-14)


def test_imitations_value(monkeypatch):
    """What normal numbers of 1 in place of 0 add to y, or to ln y of trips: a deviation that grows
    from low to high along a column. R's draws have ln l in [-1, 1] and signal variance 1.
    """
    for make, *args, column, low, high in (
            (imitations.sine, 0, 0.4, 0.4), (imitations.snelson_like, True, 0, 0.02, 0.52),
            (imitations.taxi_like, "city A", 6, 0.09, 0.25)):
        found = []
        for noise in (1.0, 0.0):
            drawn = [noise, 1.0] if args else [noise]           # from the end
            rng = Mock(wraps=default_rng(0))
            rng.standard_normal = lambda shape: np.full(shape, drawn.pop())
            x, y = make(rng, 2000, *args)
            found.append(np.log(y) if column else y)
        sd = np.subtract(*found)[x[:, column].argsort()]
        assert_close(sd[[0, -1]], [low, high], 1e-2)
        assert np.ptp(x) > 1.99
    kernel = Mock(wraps=R.se_kernel)
    monkeypatch.setattr(R, "se_kernel", kernel)
    for seed in range(30):
        imitations.sample_ard(default_rng(seed), 2, 1)
    *ln_l2, ln_signal = np.transpose([call.args[2] for call in kernel.call_args_list])
    assert 3.9 < np.ptp(ln_l2) < 4 and not any(ln_signal)


def test_J_table1_average_ranks_value():
    """Places 1, 2, .. are dealt out in order, 1 to the lowest, and shared by ties."""
    ranks = figures_of.J.average_ranks(np.array([[0.1, 0.1, 9.0], [2, 1, 3]]))
    assert np.array_equal(ranks, [1.75, 1.25, 3.0])


def test_hero_table_is_the_demo():
    """What `certify` certifies without a table."""
    X, y = studies.wave(default_rng(0), 300)
    demo = np.loadtxt(command_line.demo(), delimiter=",", skiprows=1)
    assert np.array_equal(demo, np.column_stack([X, y]))


def plain(text):
    """HTML as text, without blanks."""
    return html.unescape(re.sub(r"<.*?>|\s", "", text))


@each("one_of", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_RJL_side_by_side(one_of, tmp_path, monkeypatch):
    """Every formula is there with its TeX to be read aloud, and is set (by default every eighth).
    Each equation has one place, in a row with a statement that has its tag, and its VJP; all these
    statements are there. Functions are whole. Links lead somewhere, ids are unique, nothing is
    fetched. Beside text is code, never a picture alone; long formulas can break, and
    all are as large as text and on its baseline. A formula may go over two lines of the source.
    """
    assert beside.formula("a\n+b", False).replace("\n", " ") == beside.formula("a +b", False)

    def some(tex, svg=beside.svg):
        return "<svg><g><use>" if zlib.crc32(tex.encode()) % one_of else svg(tex)
    (tmp_path / "a bä").symlink_to(beside.ROOT)
    monkeypatch.setattr(beside, "ROOT", tmp_path / "a bä")
    monkeypatch.setattr(beside, "svg", some)
    beside.side_by_side(tmp_path)
    pages = {tag: (tmp_path / f"{tag}.html").read_text() for tag in LAST}
    statements = {}
    for tag, vjps in (("R", (6, 8, 10, 11, 22, 23, 33, 34)), ("J", (4, 7, 8, 17, 23, 24, 25)),
                      ("L", (7, 8, 12, 13))):
        page = pages[tag]
        prose = re.sub(r"(?ms)^```.*?^```|`[^`]+`", "", PAGES[f"reading-{tag}.md"])
        shapes = re.findall(r'role="img" aria-label="([^"]*)"><span><svg[^>]*><g[^>]*><use', page)
        formulas = re.findall(r"\$+([^$]+?)(?:\\tag\{[^}]*\})?\$+", prose)
        assert [*map(html.unescape, shapes)] == formulas

        ids = re.findall(r' id="(.*?)"', page)
        assert len(ids) == len({*ids}) and {*ids} >= {*re.findall(r'<use href="#(.*?)"', page)}
        for other, name in re.findall(r'<a href="(?:([RJL])\.html)?#(.*?)"', page):
            assert f' id="{name}"' in pages[other or tag], name
        for path in re.findall(r'(?:src|href)="([^":#]*/[^":#]*)', page):
            assert (tmp_path / unquote(path)).exists(), path
        assert not re.search(r'\$|<script|<link|url\(|src="\w+:|<aside[^>]*>(?!<pre>)', page)
        sizes = re.findall(r'"0 (\S+) (\S+) (\S+)" style="width: (\S+)em.*?align: (\S+)em', page)
        y, width, height, em, up = np.transpose(sizes).astype(float)
        assert_close([100 * em, -100 * up], [width, y + height], 1e-12)
        assert max(em) < 30

        source = (HERE / f"{beside.MODULES[tag]}.py").read_text()
        module = ast.parse(source)
        for node in module.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                node.body = node.body[ast.get_docstring(node) is not None:]
                node.decorator_list = []
        blocks = [html.unescape(re.sub("<.*?>", "", code))
                  for code in re.findall(r"(?s)<pre>(<[^>]*><[^>]*># \w+\.py.*?)</pre>", page)]
        assert {*map(ast.unparse, module.body)} >= {ast.unparse(ast.parse(code)) for code in blocks}

        rows = {int(n): plain("".join(re.findall("(?s)<pre>.*?</pre>", row)))
                for row in page.split("<section>") for n in re.findall(r' id="eq(\d+)"', row)}
        assert {*rows} == {*range(1, LAST[tag] + 1)}
        assert [n for n in vjps if "defback(" not in rows[n]] == []
        for line in source.splitlines():
            head = re.search(rf"# {tag} \(.*?: ", line)
            if head and "`" not in line:
                line = plain(html.escape(line))
                assert line in "".join(rows.values()), line
                for n in re.findall(r"\((\d+)\)", head[0]):
                    statements.setdefault((tag, int(n)), []).append(line in rows[int(n)])
    assert [n for n, found in statements.items() if not any(found)] == []
