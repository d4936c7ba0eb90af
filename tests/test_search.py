"""What beyond/search.py chooses, and what held-out groups certify."""
import math

import numpy as np
import pytest

import pacgp_ref as R
from beyond import certificates, search
from tests.problems import fit, sine

quiet = pytest.mark.filterwarnings("ignore::pacgp_ref.FitWarning")


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
        assert fit(X, y, method, 40).R_S < guess / 2
        constant.append(fit(X, y, method, 40, start={}, grid=search.WIDE).R_S > 0.9 * guess)
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
    assert len(part.ln_theta) == 7
    assert (np.max(part.ln_theta[1:-1], initial=0) > 6) == (N == 200)


@quiet
def test_schwarz_value():
    """-ln p(y) and ln(N)/2 for each parameter that is not at the end of the box."""
    X, y = columns(60)
    gp = search.multistart_fit(X, y, "full-GP", ard=True, grid=(2.5, 500))
    free = np.sum(np.abs(gp.optimum.x["ln_theta"]) < 2.5)
    assert 2 <= free < 7
    assert search.schwarz(gp) == pytest.approx(gp.optimum.f + free * math.log(60) / 2, rel=1e-12)


@quiet
def test_paper_fit_never_vacuous_alone():
    """Where the likelihood's start leaves B above 1/2, it is not above that of the paper's search,
    which ends lower on this table.
    """
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 4))
    y = X[:, 0] + 0.4 * np.abs(X[:, 1]) + 0.6 * rng.standard_normal(30)
    paper = R.fit(X, y)
    assert 0.5 < paper.bound < search.multistart_fit(X, y).bound - 0.01
    assert search.paper_fit(X, y).bound <= paper.bound + 1e-6


@quiet
def test_paper_fit_of_free_form():
    """It starts from the Q that the likelihood's optimum gives on all rows."""
    X, y = waves(8, N=150)
    gp = search.paper_fit(X, y, "free-kl-PAC-SGP", 25, max_evals=30)
    assert gp.method == "free-kl-PAC-SGP"
    assert gp.bound < 0.8 * R.fit(X, y, "free-kl-PAC-SGP", 25, max_evals=30).bound


def step(N, rough, seed=0):
    """A jump and a slope in two columns, or waves in place of the jump."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.7, 1.7, (N, 2))
    jump = 2.0 * (X[:, 0] > 0.3) if rough else np.sin(2 * X[:, 0])
    return X, jump + 0.5 * X[:, 1] + 0.1 * rng.standard_normal(N)


@quiet
def test_part_chooses_kernel():
    """The best of the kernels where it gains more than STRONG nats; SE where waves are smooth, and
    for a bound; each where it is asked for.
    """
    X, y = step(60, rough=True)
    chosen = search.part_fit(X, y)
    fits = [search.part_fit(X, y, kernel=kernel) for kernel in (R.se_kernel, *search.ROUGHER)]
    assert [gp.kernel for gp in fits] == [R.se_kernel, *search.ROUGHER]
    f = [gp.optimum.f for gp in fits]
    assert f[0] - f[1] > search.STRONG and f[1] > f[2]
    assert chosen.kernel is search.ROUGHER[1]
    assert chosen.optimum.f == pytest.approx(f[2], abs=0.1)
    assert search.part_fit(*step(60, rough=False)).kernel is R.se_kernel
    assert search.part_fit(X, y, "kl-PAC-GP", max_evals=9).kernel is R.se_kernel
    assert search.paper_fit(X, y, max_evals=9).kernel is R.se_kernel


@quiet
def test_many_rows_choose_kernel(monkeypatch):
    """A tenth of more than SMALL rows says which kernel."""
    monkeypatch.setattr(search, "SMALL", 400)
    sizes = []

    def rougher(se, X, *args, **settings):
        sizes.append(len(X))
        return se._replace(kernel=search.ROUGHER[1])
    monkeypatch.setattr(search, "rougher_fit", rougher)
    X, y = columns(2000)
    gp = search.part_fit(X, y, "VFE", 20, seed=1, max_evals=60)
    assert sizes == [200]
    assert gp.kernel is search.ROUGHER[1]
    assert gp.N == 2000


def spikes(seed, N=60):
    """Waves, and three targets far off them: errors, or another hump."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(-1.7, 1.7, N))
    y = np.sin(2 * x) + 0.1 * rng.standard_normal(N)
    errors = y.copy()
    errors[[10, 30, 45]] += [9.0, -12.0, 15.0]
    return x[:, None], errors, y + 8 * np.exp(-((x - 1.2) / 0.1) ** 2)


@quiet
def test_part_cuts_far_targets():
    """Targets are cut where that lowers the error of the mean by all other rows, as brute force has
    it; not where there is a hump. The error on new rows falls, and the message says it.
    """
    X, errors, hump = spikes(0)
    gp, targets = search.trained_part(X, errors)
    middle = np.median(errors)
    far = search.FAR * 1.4826 * np.median(np.abs(errors - middle))
    assert np.array_equal(targets, np.clip(errors, middle - far, middle + far))
    assert np.sum(targets != errors) == 3
    assert gp.optimum.message.endswith(", 3 far targets cut")

    left_out = []
    for i in range(len(X)):
        others = np.arange(len(X)) != i
        mean, _ = R.full_predict(X[others], targets[others], X[[i]], gp.ln_theta, gp.ln_noise)
        left_out.append((mean[0] - errors[i]) ** 2)
    error = search.leave_one_out_error(gp, targets, errors)
    assert error == pytest.approx(np.mean(left_out), rel=1e-9)
    whole = search.part_fit(X, errors, start=gp.optimum.x)
    assert error < search.leave_one_out_error(whole, errors, errors)
    grid = np.linspace(-1.6, 1.6, 99)[:, None]
    truth = np.sin(2 * grid[:, 0])
    off = [np.mean((R.predict(one, grid)[0] - truth) ** 2) for one in (gp, whole)]
    assert off[0] < off[1] / 2

    assert np.any(search.cut(hump) != hump)
    gp, targets = search.trained_part(X, hump)
    assert np.array_equal(targets, hump)
    assert "cut" not in gp.optimum.message
    few = np.r_[np.zeros(40), 5.0]
    assert np.array_equal(search.cut(few), few)


@quiet
def test_prior_of_cut_targets():
    """The prior, and Q, are given by cut targets; the risk is that of the targets themselves."""
    X, errors, _ = spikes(1, 80)
    certified = certificates.prior_from_part(X, errors, eps=0.5)
    assert "far targets cut" in certified.fit.optimum.message
    first = certificates.draw_part(X, errors, 0.5)
    rest = np.setdiff1d(np.arange(80), first)
    mean, var = R.predict(certified, X[rest])
    risk = R.gibbs_risk(errors[rest], mean, var, 0.5)
    assert risk <= certified.fit.R_S <= risk + 1e-6
    assert risk > np.mean(np.abs(errors[rest]) > 5) / 2 > 0


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
    first = certificates.draw_part(X, y, 0.5)
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
def test_held_out_groups_coverage():
    """At delta = 0.1 the bounds over groups fail in at most 20 of 100 draws of 20 groups; those by
    rows, in more.
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


@quiet
def test_held_out_groups_value():
    """A group of 1 to 20 rows counts once, by its own mean loss, for Q and for the mean."""
    X, y, _ = grouped(20, 0, 20)
    gp = R.fit(X, y, "full-GP", max_evals=20)
    X, y, labels = grouped(20, 3, 20)
    keep = np.flatnonzero(np.arange(400) % 20 <= np.arange(400) // 20)
    X, y, labels = X[keep], y[keep], labels[keep]
    held = certificates.held_out(gp, X, y, 0.1, groups=labels)
    mean, var = R.predict(gp, X)
    missed = np.abs(mean - y) > gp.eps
    parts = [labels == label for label in np.unique(labels)]
    by_group = np.mean([np.mean(missed[rows]) for rows in parts])
    assert abs(by_group - np.mean(missed)) > 0.005
    of_Q = np.mean([R.gibbs_risk(y[rows], mean[rows], var[rows], gp.eps) for rows in parts])
    assert (held.N, held.grouped) == (20, True)
    assert held.mean_risk == pytest.approx(by_group, rel=1e-12)
    assert held.mean_bound == pytest.approx(R.kl_inv(by_group, math.log(10) / 20), rel=1e-12)
    assert held.risk == pytest.approx(of_Q, rel=1e-9)
    assert held.bound == pytest.approx(R.kl_inv(of_Q, math.log(10) / 20), rel=1e-9)
