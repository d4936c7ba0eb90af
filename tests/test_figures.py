"""figures.py: every figure at quick size, its title computed again, what is refused; J Fig. 5."""

import gzip
import os
import re
import subprocess
import sys

import autograd
import numpy as np
import pytest
from test_ref import trace
from tests.oracles import assert_close, central_difference, HERE

import figures as F
import figures_of.J
import predictive as J
from figures_of import beside, networks, published, shared

SLOW = [  # a second or more each, even at quick size, or drawn as another is
    "R_fig6", "R_fig7", "J_fig6", "J_fig8", "J_fig9", "L_fig5", "certificates", "J_appD", "million"]


@pytest.fixture(scope="module")
def quick():
    return F.Run("quick")


def numbers(rows, name, **equal):
    """A column of our rows, those of the papers apart."""
    return shared.col(shared.where(rows, **equal), name)


CLAIMS = {  # name -> the numbers in the title, from the rows
    "R_fig1": lambda rows: [rows[numbers(rows, "KL/N").argmin()]["eps/sigma_n"],
                            *numbers(rows, "KL/N")],
    "R_fig6": lambda rows: [0.5, 2, *numbers(rows, "from FITC")[:2],
                            *numbers(rows, "from full GP")[:2]],
    "R_fig7": lambda rows: np.insert(
        numbers(rows, "best sigma_n^2"), 1, [rows[0]["starts within 0.1 %"], 6]),
    "J_fig7": lambda rows: [np.sum(np.all(np.diff(
        [numbers(rows, "RMSE", method=f"PPGPR-{m}", **{"": "ours"})
         for m in ("delta", "MF", "Chol")], axis=0) > 0, axis=0)), 3, 7, 12],
    "L_fig3": lambda rows: [numbers(rows, "RMSE, to come", order=order).mean()
                            for order in ("shuffled", "time")],
}


def assert_title(title, want):
    """The numbers in the title are these, to the digits that are said."""
    said = re.findall(r"(?<![\w./^-])\d+(?:\.\d+)?(?:e-?\d+)?(?![\w/^])", title)
    assert len(said) == len(want), (said, want)
    for number, right in zip(said, want):
        step = 0.1 * right if "e" in number else 10.0 ** -len(number.partition(".")[2])
        assert abs(float(number) - right) <= 0.51 * step


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in F.FIGURES])
def test_RJL_house_figure_runs(name, quick, tmp_path):
    """The text has caption, settings and every number, all finite or absent; pictures are PNG; the
    title is that of the rows.
    """
    rows = F.make(name, quick, tmp_path)
    text = (tmp_path / f"{name}.txt").read_text()
    other = tmp_path / f"{name}.{'md' if '_table' in name else 'png'}"
    assert {*tmp_path.iterdir()} == {other, tmp_path / f"{name}.txt"}
    assert other.suffix == ".md" or other.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    f = F.FIGURES[name]
    assert f.caption in text and "size quick, seed 0" in text
    for key, value in f.settings.items():
        assert f"{key} = {value[0] if isinstance(value, tuple) else value}" in text
    numbers = [v for row in rows for v in row.values() if isinstance(v, float)]
    assert rows and not np.isinf(numbers).any()
    for v in numbers:
        assert shared.cell(v) in text
    if other.suffix == ".png":
        assert int.from_bytes(other.read_bytes()[16:20], "big") <= 1000
    if name in CLAIMS:
        assert_title(text.split("\n\n")[0].removeprefix(f.head), CLAIMS[name](rows))


def test_RJL_house_figures_list(capsys):
    """Without names all 31 of the papers are made; by name or its beginning some are."""
    papers = F.select([])
    assert len(papers) == 31 and {*F.FIGURES} - {*papers} == {
        "J_appD", "hero", "million", "certificates", "L_dependent"}
    assert F.select(["mill", "R_fig1"]) == ["R_fig1", "million"]
    assert F.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*F.FIGURES]


def test_RJL_house_pictures_say_the_same():
    """The texts in pictures/ have the captions of today, titles of 15 words at most; each is in
    docs/figures.md.
    """
    page = (HERE / "docs" / "figures.md").read_text()
    texts = {path.stem: path.read_text() for path in (HERE / "pictures").glob("*.txt")}
    for stem, text in texts.items():
        head, caption = text.split("\n\n")[:2]
        f = F.FIGURES[stem.removesuffix("_real")]
        assert head.startswith(f"{f.head}. ") and caption == f.caption, stem
        assert len(head.removeprefix(f.head).split()) <= 16, stem       # and the full stop
        assert f"pictures/{stem}." in page, stem


def test_RJL_house_settings_by_size():
    """(quick, default, full, default with --data, full with --data); the last may be left out."""
    ask = shared.experiment("", a=(0, 1, 2, 3, 4), b=(0, 1, 2, 3), c=(0, 1, 2))(
        lambda run, **settings: [*settings.values()])
    for folder, want in ((None, [[0, 0, 0], [1, 1, 1], [2, 2, 2]]),
                         (".", [[0, 0, 0], [3, 3, 1], [4, 2, 2]])):
        assert [F.Run(size, folder=folder).once(ask) for size in F.SIZES] == want


def test_RJL_house_published():
    """The papers' tables have 1444 numbers, each once; value and error come back as numbers."""
    rows = published.PUBLISHED.read_text().splitlines()[1:]
    assert len(rows) == len({re.sub(r",[^,]*,[^,]*$", "", row) for row in rows}) == 767
    assert sum(1 + (line[-1] != ",") for line in rows) == 1444
    entry = published.published("R_table1", "setting", "method")["0.6", "kl-PAC-GP"]
    assert (shared.col([entry], "B"), shared.col([entry], "B", 1)) == (0.333, 0.004)


@pytest.mark.parametrize("value, error, agree", [(0.5204, 0.01, 1), (0.5206, 0.01, 0),
                                                 (0.5635, np.nan, 1), (0.5640, np.nan, 0)])
def test_RJL_house_agreement(value, error, agree):
    """At most two standard errors and half a digit apart; of a single split sqrt(10) times that."""
    table = published.beside([{"k": "a", "B": (value, error)}], {("a",): {"B": "0.500 +- 0.010"}},
                             "k")
    assert published.agreement(table)[:2] == (agree, 1)


@pytest.mark.parametrize("content, said", [
    (None, "docs/real-data.md"), (b"1,2\n3,4\n", "is it complete?"),
    (gzip.compress(bytes(range(48, 58)) * 9)[:20], "cannot read"),
    (b"1,nan\n" * 133, "is it complete?")])
def test_RJL_house_figures_refused(content, said, capsys, tmp_path):
    """A line that names the file, and status 2, before anything is made; so for a wrong name."""
    path = tmp_path / "motorcycle.csv"
    if content is not None:
        path.write_bytes(content)
    for argv, words in ((["J_fig1", "--data", str(tmp_path)], (said, str(path))),
                        (["nonsense"], ("nonsense", "--list"))):
        assert F.main([*argv, "--out", str(tmp_path / "out")]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        for word in words:
            assert word in err
    assert not (tmp_path / "out").exists()


def test_RJL_house_figures_start(tmp_path):
    """From any folder, without docstrings, in safe-path mode, whatever MPLBACKEND says."""
    flags = ["-OO", "-W", "error"] + ["-P"] * (sys.version_info >= (3, 11))
    run = subprocess.run(
        [sys.executable, *flags, HERE / "figures.py", "R_fig4", "--quick"], cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "nonsense"}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "out" / "R_fig4.png").exists()


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


def test_J_fig5_kolmogorov_value():
    """The largest distance, found on a fine grid, and of one score."""
    z = np.random.default_rng(0).standard_normal(40) * 1.3 + 0.2
    grid = np.sort(np.concatenate([np.linspace(-6, 6, 100_001), z, z - 1e-9]))
    shares = np.mean(z[:, None] <= grid, axis=0)
    largest = np.max(np.abs(shares - J.norm_cdf(grid)))
    assert abs(networks.kolmogorov(z) - largest) < 1e-8
    assert networks.kolmogorov(np.zeros(1)) == 0.5


def test_R_sparse_gp_side_by_side(tmp_path):
    """A row per step, with value and VJP of its function, and every equation of the GP."""
    beside.side_by_side(tmp_path)
    page = (tmp_path / "sparse_gp.html").read_text()
    assert page.count("<tr>") == page.count("    def back(") == 6
    assert {*re.findall(r"# R \((\d+)\)", page)} == {"10", "11", "22", "23"}
