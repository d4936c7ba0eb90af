"""What beyond/search.py finds and chooses."""
import math

import numpy as np
import pytest

import pacgp_ref as R
from beyond import certificates, kernels, search
from tests.problems import fit, sine

pytestmark = pytest.mark.filterwarnings("ignore::pacgp_ref.FitWarning")


def standard(X, y):
    """X, y of mean 0 and deviation 1."""
    return (X - np.mean(X, 0)) / np.std(X, 0), (y - np.mean(y)) / np.std(y)


def wave(N, d, periods=0.0, seed=0, noise=0.3):
    """One of d columns counts, in a wave."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (N, d))
    y = np.sin(periods * math.pi / 3 * X[:, 0]) + noise * rng.standard_normal(N)
    return standard(X, y)


@pytest.mark.parametrize("method", ["kl-PAC-GP", "full-GP", "kl-PAC-SGP", "VFE"])
def test_search_finds_waves(method):
    """Where the paper's start ends at a constant in one table of three or more, none does here."""
    constant = []
    for seed in range(3):
        X, y = wave(200, 1, 12, seed)
        guess = np.mean(np.abs(y) > 0.6)
        assert fit(X, y, method, 40).R_S < 0.6 * guess
        constant.append(fit(X, y, method, 40, start={}, grid=search.WIDE).R_S > 0.9 * guess)
    assert any(constant)


def test_part_finds_wave_in_one_of_eight_columns():
    """In four of six tables of 120 rows at least, and wherever the paper's start finds it.

    A search of ARD from half-way to one lengthscale's optimum found it in two.
    """
    found = []
    for seed in range(19, 25):
        X, y = wave(240, 8, 9 / math.pi, seed, 0.2)
        rows = certificates.draw_part(X, y, 0.5)
        X, y = standard(X[rows], y[rows])
        gp, _ = search.trained_part(X, y)
        plain = R.fit(X, y, "full-GP", ard=True)
        found.append(gp.optimum.f < 100)      # a constant: 170
        assert found[-1] or plain.optimum.f > 100
    assert np.sum(found) >= 4


def test_start_is_followed():
    """Of one search; else what is minimised is no higher than from the paper's start."""
    X, y = sine()
    for method in ("kl-PAC-GP", "full-GP"):
        at = fit(X, y, method).optimum
        assert fit(X, y, method, start={}).optimum.f >= at.f - 1e-3
        assert fit(X, y, method, start=at.x, max_evals=1).optimum.f == pytest.approx(at.f)


def test_paper_fit_pays_for_two():
    """The lower B of both parametrisations, ln 2 in the penalty; nothing where one is asked for or
    there is one column.
    """
    X, y = wave(200, 6, 3)
    each = [search.paper_fit(X, y, ard=ard, n_eps=3) for ard in (False, True)]
    both = search.paper_fit(X, y, n_eps=3)
    assert [len(gp.ln_theta) for gp in (*each, both)] == [2, 7, 7]
    for gp, more in zip((*each, both), (0, 0, math.log(2))):
        size = len(gp.ln_theta) * math.log(1201)
        assert gp.penalty == pytest.approx(math.log(3) + size + more, rel=1e-13)
    assert 0 <= both.bound - min(gp.bound for gp in each) < math.log(2) / 200
    one = search.paper_fit(X[:, :1], y)
    assert one.penalty == pytest.approx(2 * math.log(1201), rel=1e-13)


@pytest.mark.parametrize("seed", range(3))
def test_bound_has_two_starts(seed):
    """B is not above that of a search from the paper's start, nor from the likelihood's optimum."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((30, 4))
    y = X[:, 0] + 0.4 * np.abs(X[:, 1]) + 0.6 * rng.standard_normal(30)
    start = fit(X, y, "full-GP").optimum.x
    found = fit(X, y).bound
    assert found <= min(R.fit(X, y).bound, R.fit(X, y, start=start).bound) + 1e-3


def test_paper_fit_of_free_form():
    """It starts from the Q that the likelihood's optimum gives on all rows."""
    X, y = wave(150, 1, 8)
    gp = search.paper_fit(X, y, "free-kl-PAC-SGP", 25, max_evals=30)
    assert gp.bound < 0.8 * R.fit(X, y, "free-kl-PAC-SGP", 25, max_evals=30).bound


def stretched(X1, X2, ln_theta, exact=False):
    """SE with a parameter of its own, a: of lengthscales l a^(1/2)."""
    at = np.append(ln_theta[:-2] + ln_theta[-2], ln_theta[-1])
    K, se_back = R.se_kernel(X1, X2, at, exact)

    def back(d_K, **wanted):
        d_at, *others = se_back(d_K, **wanted)
        return np.concatenate([d_at[:-1], [np.sum(d_at[:-1])], d_at[-1:]]), *others
    return K, back


@pytest.mark.parametrize("ard", [False, True, None])
def test_kernel_with_own_parameter(ard, monkeypatch):
    """It ends where SE does; of two columns and one lengthscale ln_theta has three entries."""
    row = kernels.KERNELS["SE"]._replace(
        function=stretched, start=lambda d, ard: np.insert(R.se_start(d, ard), -1, 0.0))
    monkeypatch.setitem(kernels.KERNELS, "stretched", row)
    X, y = wave(80, 2, 3)
    for train in (lambda kernel: search.trained_part(X, y, ard=ard, kernel=kernel)[0],
                  lambda kernel: search.paper_fit(X, y, ard=ard, kernel=kernel, grid=(6.0, 1))):
        mine, se = train(stretched), train(R.se_kernel)
        assert len(mine.ln_theta) == len(se.ln_theta) + 1
        assert mine.optimum.f == pytest.approx(se.optimum.f, rel=0.02)


def test_part_chooses_kernel():
    """The best of the kernels where it gains more than STRONG nats; SE where waves are smooth, and
    for a bound.
    """
    X, smooth = wave(60, 2, 1, noise=0.1)
    rough = 2.0 * (X[:, 0] > 0.3) + 0.1 * X[:, 1]
    fits = [search.trained_part(X, rough, kernel=kernel)[0]
            for kernel in (R.se_kernel, *search.ROUGHER)]
    f = [gp.optimum.f for gp in fits]
    assert f[0] - search.STRONG > min(f)
    chosen, _ = search.trained_part(X, rough)
    assert chosen.kernel is fits[np.argmin(f)].kernel
    assert search.trained_part(X, smooth)[0].kernel is R.se_kernel
    assert search.trained_part(X, rough, "kl-PAC-GP", max_evals=9)[0].kernel is R.se_kernel


def test_many_rows_begin_with_a_part(monkeypatch):
    """FEW or a tenth choose kernel and parametrisation; the certificate is of all rows."""
    sizes = []
    found = search.likelihood_fits

    def recorded(X, *args, **settings):
        sizes.append(len(X))
        return found(X, *args, **settings)
    monkeypatch.setattr(search, "likelihood_fits", recorded)
    monkeypatch.setattr(search, "FEW", 100)
    X, y = wave(2000, 3, 3)
    gp = search.paper_fit(X, y, "kl-PAC-SGP", 20, seed=1, max_evals=60)
    assert sizes == [100]
    assert (gp.N, len(gp.ln_theta)) == (2000, 4)
    assert gp.penalty == pytest.approx(4 * math.log(1201) + math.log(2), rel=1e-13)
    assert search.paper_fit(X, y, "kl-PAC-SGP", 20, last_evals=3).optimum.n_evals <= 3


def spikes(seed, N=60):
    """Waves, and three targets far off them: errors, or another hump."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(-1.7, 1.7, N))
    y = np.sin(2 * x) + 0.1 * rng.standard_normal(N)
    errors = y.copy()
    errors[[10, 30, 45]] += [9.0, -12.0, 15.0]
    return x[:, None], errors, y + 8 * np.exp(-((x - 1.2) / 0.1) ** 2)


def test_part_cuts_far_targets():
    """Targets are cut where that lowers the error of the mean by all other rows, as brute force has
    it; not where there is a hump.
    """
    X, errors, hump = spikes(0)
    gp, targets = search.trained_part(X, errors)
    assert np.sum(targets != errors) == 3

    left_out = []
    for i in range(len(X)):
        others = np.arange(len(X)) != i
        mean, _ = R.full_predict(X[others], targets[others], X[[i]], gp.ln_theta, gp.ln_noise)
        left_out.append((mean[0] - errors[i]) ** 2)
    error = search.merit(gp, targets, errors)
    assert error == pytest.approx(np.mean(left_out), rel=1e-9)
    whole = fit(X, errors, "full-GP", start=gp.optimum.x, grid=search.WIDE)
    assert error < search.merit(whole, errors, errors)
    assert np.any(search.cut(hump) != hump)
    assert np.array_equal(search.trained_part(X, hump)[1], hump)


def test_prior_of_cut_targets():
    """The prior, and Q, are given by cut targets; the risk is that of the targets themselves: with
    eps = 5 a spike of 9 or more is a miss, and the same spike cut is none.
    """
    X, errors, _ = spikes(1, 80)
    first = certificates.draw_part(X, errors, 0.5)
    rest = np.setdiff1d(np.arange(80), first)
    spiked = np.abs(errors) > 8
    assert np.any(spiked[first]) and np.any(spiked[rest])
    _, targets = search.trained_part(X[first], errors[first], eps=5.0)
    assert np.max(np.abs(targets)) < 5
    certified = certificates.prior_from_part(X, errors, eps=5.0)
    mean, var = R.predict(certified, X[rest])
    risk = R.gibbs_risk(errors[rest], mean, var, 5.0)
    assert risk <= certified.fit.R_S <= risk + 1e-6
    assert risk > np.mean(spiked[rest]) / 2 > 0
