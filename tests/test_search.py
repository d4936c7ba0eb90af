"""What beyond/search.py chooses, and what held-out groups certify."""
import math

import numpy as np
import pytest

import pacgp_ref as R
from beyond import certificates, search
from own_data import certify_table, scale
from tests.problems import fit, sine

quiet = pytest.mark.filterwarnings("ignore::pacgp_ref.Note")


def waves(periods, N=200, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.7, 1.7, (N, 1))
    return x, 1.4 * np.sin(periods * math.pi / 1.7 * x[:, 0]) + 0.3 * rng.standard_normal(N)


def columns(N, d=6, seed=0):
    """One of d columns counts, in a wave."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, d))
    return X, np.sin(2.5 * X[:, 0]) + 0.2 * rng.standard_normal(N)


@quiet
@pytest.mark.parametrize("method", ["kl-PAC-GP", "full-GP", "kl-PAC-SGP", "VFE"])
def test_search_finds_waves(method):
    """Where the search from the first start alone ends at a constant in one table of three or more,
    none of them does from two.
    """
    constant = []
    for seed in range(3):
        X, y = waves(12, seed=seed)
        guess = np.mean(np.abs(y - np.mean(y)) > 0.6)
        assert fit(X, y, method, 40).risk < guess / 2
        constant.append(fit(X, y, method, 40, start={}, grid=search.WIDE).risk > 0.9 * guess)
    assert any(constant)


@quiet
def test_search_never_above_one_start():
    """A start or a batch that is given is followed as it is; else what is minimised is no higher
    than from that start.
    """
    X, y = sine()
    for method in ("kl-PAC-GP", "full-GP"):
        at = fit(X, y, method).optimum
        assert fit(X, y, method, start={}).optimum.f >= at.f - 1e-4
        assert fit(X, y, method, start=at.x, max_evals=1).optimum.f == pytest.approx(at.f)


@quiet
@pytest.mark.parametrize("N", [200, 24])
def test_paper_fit_pays_for_two(N):
    """The lower B of both parametrisations, ln 2 in the penalty; nothing where one is asked for,
    there is one column, or N and d say that ARD's grid is too dear; and the wide box for a
    part alone, if it has ten rows a column.
    """
    X, y = columns(N)
    each = [search.paper_fit(X, y, ard=ard, n_eps=3) for ard in (False, True)]
    both = search.paper_fit(X, y, n_eps=3)
    T = len(both.ln_theta)
    assert T == (7 if N == 200 else 2)
    for gp, more in [*((gp, 0.0) for gp in each), (both, math.log(2) * (N == 200))]:
        size = len(gp.ln_theta) * math.log(1201)
        assert gp.penalty == pytest.approx(math.log(3) + size + more, rel=1e-13)
    assert [len(gp.ln_theta) for gp in each] == [2, 7]
    chosen = min(each, key=lambda gp: gp.bound)
    assert len(chosen.ln_theta) == T
    assert 0 <= both.bound - chosen.bound < math.log(2) / N
    one = search.paper_fit(X[:, :1], y)
    assert one.penalty == pytest.approx(2 * math.log(1201), rel=1e-13)
    part = search.part_fit(X, y)
    assert len(part.ln_theta) == (7 if N == 200 else 2)
    assert (np.max(part.ln_theta[1:-1], initial=0) > 6) == (N == 200)


@quiet
def test_schwarz_value():
    """-ln p(y) and ln(N)/2 for each parameter that is not at the end of the box; B itself."""
    X, y = columns(60)
    gp = search.multistart_fit(X, y, "full-GP", ard=True, grid=(2.5, 500))
    free = np.sum(np.abs(gp.optimum.x["ln_theta"]) < 2.5)
    assert 2 <= free < 7
    assert search.schwarz(gp) == pytest.approx(gp.optimum.f + free * math.log(60) / 2, rel=1e-12)
    bound = search.multistart_fit(X, y)
    assert search.schwarz(bound) == bound.optimum.f


@quiet
def test_large_tables_choose_on_a_tenth(monkeypatch):
    """Above SMALL rows, by the rows that the seed draws; the certificate is of all rows."""
    monkeypatch.setattr(search, "SMALL", 400)
    X, y = columns(2000)
    gp = search.paper_fit(X, y, "kl-PAC-SGP", 20, seed=1, max_evals=60)
    assert len(gp.ln_theta) == 7
    assert gp.N == 2000
    assert gp.penalty == pytest.approx(7 * math.log(1201) + math.log(2), rel=1e-13)


@quiet
def test_prior_never_much_worse_than_held_out():
    """Where interpolation is best for the first part, with next to no noise, the largest temper
    leaves Q at P, KL = 0, and B is the held-out bound but for the confidence term.
    """
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 60))
    y = X[:, 0] + 0.1 * rng.standard_normal(120)
    prior = certificates.prior_from_part(X, y, ard=False, delta=0.05)
    first = certificates.part_one(120, 0.5)
    rest = np.setdiff1d(np.arange(120), first)
    part = search.part_fit(X[first], y[first], ard=False)
    held = certificates.held_out(part, X[rest], y[rest], 0.05)
    paid = (math.log(2 * math.sqrt(60) / 0.05) + 1e-3) / 60
    assert prior.fit.bound <= R.kl_inv(held.risk, paid) + 1e-3


def grouped(G, seed, n=5):
    """Rows of G groups that share inputs and an offset; the labels."""
    rng = np.random.default_rng(seed)
    X = np.repeat(rng.uniform(-2, 2, (G, 2)), n, 0)
    y = np.sin(X[:, 0]) + np.repeat(rng.standard_normal(G), n) + 0.1 * rng.standard_normal(G * n)
    return X, y, np.repeat(rng.permutation(G), n)


@quiet
def test_held_out_groups_value_and_coverage():
    """A group counts as one, with its mean loss: bounds of the rows' means over groups. At delta =
    .1 they fail in at most 20 of 100 draws of 20 groups, and those by rows in more.
    """
    fails = {True: 0, False: 0}
    X, y, labels = grouped(20, 0, 20)
    gp = R.fit(X, y, "full-GP", max_evals=20)
    X_new, y_new, _ = grouped(5000, 1, 1)
    mean, _ = R.predict(gp, X_new)
    true = np.mean(np.abs(mean - y_new) > gp.eps)
    for seed in range(2, 102):
        X, y, labels = grouped(20, seed, 20)
        for by_group in fails:
            held = certificates.held_out(gp, X, y, 0.1, groups=labels if by_group else None)
            fails[by_group] += held.mean_bound < true
    assert fails[True] <= 20 < fails[False]
    held = certificates.held_out(gp, X, y, 0.1, groups=labels)
    mean, _ = R.predict(gp, X)
    losses = np.mean((np.abs(mean - y) > gp.eps).reshape(20, 20), 1)
    assert (held.N, held.grouped) == (20, True)
    assert held.mean_risk == pytest.approx(np.mean(losses), rel=1e-12)
    assert held.mean_bound == pytest.approx(
        R.kl_inv(np.mean(losses), math.log(10) / 20), rel=1e-12)


def test_group_option(tmp_path, capsys):
    """A group stays in one part; the headline counts rows that share their inputs with others."""
    X, y, labels = grouped(20, 3)
    table = np.column_stack([labels, X, y])[np.random.default_rng(0).permutation(100)]
    np.savetxt(tmp_path / "t.csv", table, delimiter=",", header="id,a,b,y", comments="")
    run = [str(tmp_path / "t.csv"), "--certificate", "held-out", "--evals", "5"]
    assert certify_table.main([*run, "--drop", "id"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "50 rows that certify have the inputs of another row" in out
    assert certify_table.main([*run, "--group", "id"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "20 groups by id" in out
    assert "the 10 groups of rows held out (50 other rows trained it)" in out
    assert "have the inputs" not in out
    assert certify_table.main([run[0], "--group", "id"]) == 2
    assert "--group is for --certificate held-out, without --scale" in capsys.readouterr().err
    first = certificates.part_one(100, 0.5, 0, labels)
    rest = np.setdiff1d(np.arange(100), first)
    assert not set(labels[first]) & set(labels[rest])
    assert scale.shared_inputs(np.array([[1.0], [2.0], [1.0], [3.0]]), np.array([0, 1, 3])) == 1
