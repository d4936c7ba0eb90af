"""Arithmetic in float64, whatever is given: every public function of the three modules and of
beyond/ with narrow, unsigned and short arrays, in another memory order, lists, objects; with what
holds no real numbers; and where exp underflows.
"""

import functools
import inspect
import re
import warnings
from functools import partial

import numpy as np
from numpy.random import default_rng

import online as L
import pacgp_ref as R
import predictive as J
from beyond import blocks, certificates, kernels, rounding, search, stream
from figures_of import baselines, networks
from tests.oracles import each, numbers

ROOMS = dict(
    R=R, J=J, L=L, baselines=baselines, blocks=blocks, kernels=kernels, rounding=rounding,
    stream=stream, networks=networks, certificates=certificates, search=search)

# One call of each function, of arrays named below. A way back is called, too.
CALLS = """
R.x_minus_log1p(m, m1)
R.binary_kl(q, q)
R.kl_inv_gap(q, y)
R.kl_inv(q, y)
R.kl_inv_grad(q, y)
R.bayes_risk_bound(y)
R.norm_cdf(y)
R.norm_pdf(y)
R.loss_01(y, mean, eps)
R.loss_clipped_square(y, mean, 50 * eps)
R.loss_exp(y, mean, 50 * eps)
R.loss_band(y, mean, low, high)
R.loss_relative(y, mean, eps)
R.expected_band_loss(mean, var, low, high)
R.expected_01_loss(y, mean, var, eps)
R.expected_relative_band_loss(y, mean, var, eps)
R.expected_clipped_square_loss(y, mean, var, eps)
R.expected_exp_loss(y, mean, var, eps)
R.expected_relative_loss(y, mean, var, eps)
R.expected_losses(y, mean, var, eps, "exp")
R.gibbs_risk(y, mean, var, eps, "square")
R.pac_objective(q, eps)
list(R.differences(X, Z, pair))
R.ln_se_kernel(X, Z, theta)
R.se_kernel(X, Z, theta)
R.se_kernel(X, Z, theta, True)
R.signal_variance(theta)
R.cholesky(K, "K")
R.solve_triangle(V, G, G)
R.tri_inv(G)
R.check_jitter(K, G, eps)
R.weighted_gram(V, y)
R.row_dots(V, V)
R.noisy_factors(K, m, noise)
R.full_gp(X, y, theta, noise)
R.gaussian_nll(K, m, noise)
R.full_gp_nll(X, y, theta, noise)
R.full_predict(X, y, Z, theta, noise)
R.round_to_grid(theta)
R.lifted_noise(theta, noise, 9)
R.inverse_cholesky(Z, theta)
R.features(X, Z, theta, G)
R.data_sums(V, var, y, eps, 1.0)
R.gaussian_posterior(K, m)
R.marginals(V, var, m, K)
R.kl_to_prior(m, K, eps)
R.sparse_gp(X, y, Z, theta, noise)
R.sparse_free(X, Z, theta, m, G)
R.sparse_nll(X, y, Z, theta, noise)
R.sparse_nll(X, y, Z, theta, noise, "FITC")
R.sparse_posterior(X, y, Z, theta, noise)
R.sparse_predict(stored, X)
R.lbfgs(bowl, m, max_evals=5)
R.adam_step(m, m1)
R.minimum(lambda p: (p["m"] @ p["m"], dict(m=2 * p["m"])), dict(m=m), {}, max_evals=5)
R.adam(lambda p: (p["m"] @ p["m"], dict(m=2 * p["m"])), dict(m=m), [0.01] * 5, {})
R.kmeans(X, 3, rng())
R.repeated_rows(X, y)
R.pack(dict(a=X, b=y))
R.unpack(y, dict(a=X[:4], b=m))
R.start_of_family(X, y, "free", 3, theta, None, rng())
R.free_form(X, y, theta, noise, Z)
R.with_start(dict(Z=0.0 * Z), dict(Z=Z))
R.family_gp(p_exact, X, y, "full")
R.family_gp(p_given, X, y, "sparse")
R.family_gp(dict(ln_theta=theta, Z=Z, m=m, L_S=G), X, y, "free")
R.stored_posterior(p_exact, X, y, "full")
R.stored_posterior(p_given, X, y, "sparse")
R.stored_posterior(dict(ln_theta=theta, Z=Z, m=m, L_S=G), X, y, "free")
R.training_objective(p_exact, X, y, "full-GP", eps)
R.training_objective(p_exact, X, y, "kl-PAC-GP", eps)
R.training_objective(p_given, X, y, "VFE", eps)
R.training_objective(p_given, X, y, "kl-PAC-SGP", eps, "exp")
R.fit(X, y, "kl-PAC-SGP", 3, max_evals=3)
R.fit(X, y, "full-GP", max_evals=3, loss="square")
R.fit(X, y, "free-kl-PAC-SGP", 3, max_evals=3, batch=5)
R.predict(fit_R, X)
R.warn_unscaled(X, y, "it")
J.of_distance(X, Z, theta)
J.matern32(X, Z, theta)
J.matern52(X, Z, theta)
J.centre(X, pair)
J.periodic(X, Z, theta_periodic)
J.likely_periods(X, y, theta_periodic, noise, rng())
J.whitened_features(X, Z, theta)
J.shared_mean(p_chol, X, V, J.matern52)
J.separate_mean(p_mfd, X, V, J.matern52)
J.orthogonal_mean(p_od, X, V, J.matern52)
J.marginals_and_reg(p_chol, X)
J.marginals_and_reg(p_mfd, X)
J.marginals_and_reg(p_od, X)
J.data_fit(y, mean, var, low, eps, 0.3, 0.6)
J.gamma_fit(y, mean, var, low, eps, 1.5)
J.batch_objective(p_mfd, X, y, 20, eps)
J.objective(p_od, X, y, 20, "OD-SVGP", 1.0)
J.objective(p_chol, X, y, 20, "gamma-robust", 1.0)
J.predict(J.predictor_at(p_od), X)
J.predict_y(J.predictor_given_data(p_given, X, y), X)
J.residual(y, mean)
J.nll(y, mean, var)
J.held_out_nll(fit_J, X, y)
J.rmse(y, mean)
J.crps(y, mean, var)
J.noise_fraction(var, eps)
J.initial_parameters(X, "PPGPR-MFD", 3)
J.fit(X, y, "PPGPR-MFD", 3, epochs=2)
J.fit(X, y, "FITC", 3, epochs=3)
J.choose(X, y, X[:5], y[:5], "SVGP", M=3, epochs=1)
L.waves(X, Z, wave)
L.spectral_mixture(X, Z, theta_mixture)
L.same_kernel(old, old)
L.prior(Z, theta)
L.conjugate_update(old, X, y, eps, Z, theta)
L.update(old, X, y, noise, Z, theta)
L.predict(old, X)
L.marginals_and_kl(p_given, old, X, y)
L.marginals_and_kl(dict(p_given, m=m, L_S=G), old, X, y)
L.process_kl(L.update(old, X, y, noise, Z[::-1]), old)
L.joint_sums(L.update(old, X, y, noise, Z[:3]), old)
L.free_energy(p_given, old, X, y)
L.online_objective(p_given, old, X, y, loss="square")
L.descend(lambda p: L.free_energy(dict(p, Z=Z), old, X, y), p_exact, None, 2)
L.posterior_at(dict(p_given, m=m, L_S=G), old, X, y)
[at.predict(X) for at in L.stream(X, y, "O-PACGP", Z, theta, noise, 5, 2)]
[at for _, at in L.certified_stream(X, y, Z, theta, noise, 1.0, batch=5)]
baselines.interpolation_weights(y, grid)
baselines.grid_add(sums, y, mean)
baselines.grid_nll(p_exact_1, sums)
baselines.grid_predict(p_exact_1, sums, X[:, :1])
[at.predict(X[:, :1]) for at in baselines.stream(X[:, :1], y, "WISKI", X[:6, :1], n0=5, pretrain=2)]
[at.predict(X) for at in baselines.stream(X, y, "OVC", Z, theta, noise, 10, 2)]
[at.predict(X) for at in baselines.stream(X, y, "exact", Z, theta, noise, 10, 2)]
blocks.mapped_again(X)
[rows.features() for rows in blocks.in_blocks(X, y, (Z, theta, G, R.se_kernel))]
blocks.block_features(X, Z, theta, G, R.se_kernel)
blocks.at_rows(rows(), m, K)
blocks.over_rows(rows(), y, mean)
blocks.gaussian_d_V(rows(), y, mean, m, K)
blocks.block_sums(rows(), eps, 1.0)
blocks.block_free_back(rows(), y, mean, m, K)
blocks.block_predict(rows(), m, G)
blocks.gp_in_blocks(X, y, Z, theta, noise)
blocks.free_in_blocks(X, Z, theta, m, G)
blocks.nll_in_blocks(X, y, Z, theta, noise)
blocks.posterior_in_blocks(X, y, Z, theta, noise)
blocks.predict_in_blocks(stored, X)
rounding.enclosed_gaussian(K, m, noise, 1e-3, 1e-12)
rounding.enclosed_full(X, y, theta, noise)
rounding.enclosed_full_given(X[:6], y[:6], X[6:], y[6:], theta, noise, 1.0)
rounding.enclosed_sparse(X, Z, theta, m, G)
rounding.enclosed_sparse_given(X[:6], y[:6], X[6:], y[6:], Z, theta, noise, 1.0, 1.0)
rounding.enclosed_at(stored, X)
rounding.enclosed_marginals(V, G, eps, m, G, 3)
rounding.farthest_mean(y, enclosed)
rounding.losses_of_mean(y, enclosed, eps, "square")
rounding.losses_of_mean(y, enclosed, eps, "band")
rounding.risk_from_above(y, enclosed, eps, "relative", 1e-12)
rounding.strict(fit_R, X, y)
kernels.se_ulps(X, Z, theta)
kernels.matern_ulps(X, Z, theta)
kernels.periodic_ulps(X, Z, theta_periodic)
kernels.mixture_ulps(X, Z, theta_mixture)
kernels.exact_kernel(R.se_kernel, X, Z, theta)
stream.running_moments(stream.Moments(), y)
stream.pivot_rows(X, 3, theta)
stream.extended(old, X, 2)
stream.rescale(old, 2.0, 0.5)
stream.column_middle(X)
stream.column_scale(X, pair)
stream.enclosed_kl(L.update(old, X, y, noise), old)
stream.enclosed_posterior(old, X)
stream.charged_update(old, X, y, noise, eps, "square", 3)
stream.directions(X)
stream.median_of_three(X)
stream.ordinary(y)
stream.expected(y, y, y[:5])
stream.first_scale(X)
stream.remaining_inputs(old, 2, "least")
stream.begin(X, y, pretrain=1)
stream.step(learner, X, y)
stream.forecast(learner, X)
stream.certificates(learner)
networks.network(net, X)
networks.deep_objective(net | p_chol, X, y, 20, "SVGP", 1.0)
networks.deep_gp(rng(), X, y, "SVGP", 1.0, plan, print_nothing)(X)
networks.dropout_net(rng(), X, y, X, y, 0.5, plan, print_nothing)(X)
networks.kolmogorov(y)
certificates.held_out(fit_R, X, y, groups=q)
certificates.prior_from_part(X, y, "VFE", 3, ard=False, kernel=R.se_kernel, max_evals=3)
search.multistart_fit(X, y, "VFE", 3, max_evals=3)
search.paper_fit(X, y, ard=False, max_evals=3)
search.trained_part(X, y, ard=False, kernel=R.se_kernel, max_evals=3)
""".strip().splitlines()
# No array is among their arguments, or one that a function above has made, and calls them with.
NOT_CALLED = {
    "R": "is_real real_array as_float doubled in_doubles ln_confidence complexity "
         "pac_bayes_bound pac_bayes_bound_grad "
         "pinsker_bound pinsker_bound_grad mean_loss hoeffding_term row_blocks ln_grid_size "
         "cubic_minimum wolfe_search on_vectors evaluated start_in_box se_start start_of is_number",
    "J": "softplus_start periodic_start mean_of step_size algorithm1 train likelihood",
    "L": "sparse_stream schedule_of bound_terms online_bound best_lam",
    "baselines": "grid_stream growing_stream exact_stream",
    "blocks": "add_up numbered total block_sums_back sums_in_blocks blocks threads",
    "rounding": "enclosed_stored block_enclosed KL_from_above from_above",
    "kernels": "of_columns names_theta names_periodic names_mixture kernel_row check_digits",
    "stream": "middle_and_unit sum_above learnt discarded awake_units",
    "networks": "start_weights train",
}


def test_every_function_is_called():
    """A public function is called above, or said not to be. (Of certificates and search entry
    points alone: their other functions have checked arguments.)"""
    called = {name for call in CALLS for name in re.findall(r"\b([A-Za-z]+\.\w+)\(", call)}
    for tag, spared in NOT_CALLED.items():
        for name, f in inspect.getmembers(ROOMS[tag], inspect.isfunction):
            if f.__module__ == ROOMS[tag].__name__ and not name.startswith(("check_", "_")):
                assert (f"{tag}.{name}" in called) != (name in spared.split()), f"{tag}.{name}"


# --- the arrays -----------------------------------------------------------------------------------

def whole_numbers(top, ln_l2):
    """Arrays of whole numbers from 0 to top, as float64; squares of them overflow 8 bits."""
    rng = default_rng(0)

    def whole(*shape, high=top):
        return rng.integers(0, high + 1, shape).astype(float)
    X = whole(12, 2)
    X[:4] = [[0, 0], [0, top], [top, 0], [top, top]]
    G = np.tril(whole(4, 4, high=1), -1) + np.eye(4)
    few = min(top, 5)
    a = dict(
        X=X, y=whole(12), Z=X[:4].copy(), theta=np.array([ln_l2, ln_l2, 1.0]), noise=np.array(1.0),
        mean=whole(12), var=1 + whole(12, high=min(few, top - 1)), low=whole(12), eps=np.array(1.0),
        q=whole(12, high=1), m=whole(4, high=few), m1=1 + whole(4, high=few - 1), G=G, K=np.eye(4),
        V=whole(12, 4, high=few), pair=np.array([1.0, 0.0]),
        wave=np.array([0.0, 1.0, 1.0, 0.0, 1.0]),
        theta_periodic=np.array([ln_l2, 1.0, 1.0, 1.0, 0.0]),
        theta_mixture=np.array([[0.0, 1.0, ln_l2, 1.0, 0.0], [1.0, 1.0, 0.0, ln_l2, 1.0]]),
        grid=np.arange(7.0) if top > 6 else np.array([0.0, 1.0]),
        W0=whole(2, 3, high=few), b0=whole(3, high=few), W1=whole(3, 2, high=few),
        b1=whole(2, high=1))
    a["high"] = np.maximum(a["low"], whole(12))
    return a


def bowl(x):
    """A function to be minimised, and its gradient."""
    return np.sum((x - 0.5) ** 2), 2 * (x - 0.5)


def names_of(given, form):
    """What the calls look up: these arrays in another form, and what is made of them; models,
    posteriors and blocks are made of float64."""
    a = {name: form(value) for name, value in given.items()}
    X, y, Z, theta, noise = (given[name] for name in ("X", "y", "Z", "theta", "noise"))
    both = dict(ln_theta=a["theta"], ln_noise=a["noise"])
    p = dict(both, Z=a["Z"], m=a["m"])
    old = L.update(L.prior(Z, theta), X, y, noise)
    return ROOMS | a | dict(
        np=np, rng=partial(default_rng, 0), bowl=bowl, old=old, p_exact=both,
        p_exact_1=dict(ln_theta=form(theta[1:]), ln_noise=a["noise"]), p_given=dict(both, Z=a["Z"]),
        p_chol=dict(p, L_S=a["G"]), p_mfd=dict(p, L_S=a["m1"], Z_mean=a["Z"]),
        p_od=dict(p, L_S=a["G"], Z_mean=form(X[4:8]), a=a["m1"]),
        net={name: a[name] for name in ("W0", "b0", "W1", "b1")},
        sums=baselines.GridSums(np.arange(7.0), np.zeros((7, 7)), np.zeros(7), 0.0, 0),
        stored=R.StoredPosterior(Z, given["G"], theta, given["m"], given["G"]),
        rows=lambda: blocks.Rows(slice(0, 12), X, y, (Z, theta, given["G"], R.se_kernel)),
        enclosed=rounding.Enclosed(None, given["mean"], given["var"], 0.0, 0.1, 0.1, 0.0),
        fit_R=R.fit(X, y, "VFE", 3, eps=1.0, max_evals=3), fit_J=J.fit(X, y, "SVGP", 3, epochs=1),
        learner=stream.step(stream.begin(X, y, stream.Settings(unit="y"), pretrain=1), X, y),
        plan=dict(hidden=(3,), M=3, epochs=1, batch=6), print_nothing=lambda *_: None)


def outcome(call, names):
    """The numbers that a call gives, those of its way back included, in a list; or its error.

    Adjoints are ones, in float16, of as many outputs as it takes.
    """
    try:
        result = eval(call, dict(names))
        if type(result) is tuple and callable(result[-1]):
            outputs = result[0] if isinstance(result[0], tuple) else result[:-1]
            wanted = [p for p in inspect.signature(result[-1]).parameters.values()
                      if p.default is p.empty]
            ones = [np.ones(np.shape(out), np.float16) for out in outputs[:len(wanted)]]
            result = *result[:-1], result[-1](*ones)
    except (ValueError, FloatingPointError) as error:
        return str(error)
    return numbers(result)


FORMS = {"Fortran order": partial(np.asarray, order="F"), "read-only": lambda a: np.frombuffer(
    a.tobytes()).reshape(a.shape)}
FORMS |= {of.__name__: lambda a, of=of: a.astype(of) for of in (
    np.uint8, np.int8, np.float16, np.bool_)}


class Aligned(np.ndarray):
    """As a pandas Series: two are not added by position."""
    def __array_ufunc__(self, f, method, *args, **named):
        args = [np.asarray(a)[::-1] if isinstance(a, Aligned) else a for a in args]
        return getattr(f, method)(*args, **named)


ARRAYS = [np.array, *FORMS.values()]
# No plain arrays: calls that cut or multiply an argument themselves are left out.
OTHERS = {
    "list": lambda a: a.astype(np.uint8).tolist(),
    "list of uint8": lambda a: [*a.astype(np.uint8)] if a.ndim else np.uint8(a),
    "objects": lambda a: a.astype(np.uint8).astype(object),
    "Series": lambda a: a.view(Aligned) if a.ndim else a,
    "longdouble": lambda a: a.astype(np.longdouble),
    "matrix": lambda a: np.matrix(a) if a.ndim == 2 else a,
    "unmasked": np.ma.array}
# Each call is right or a ValueError.
REFUSED = {
    "column": lambda a: a[:, None] if a.shape == (12,) else a,
    "masked": lambda a: np.ma.array(a, mask=a == a),
    "list of masked": lambda a: [np.ma.array(v, mask=True) for v in a] if a.ndim else a,
    "complex": lambda a: a + 1j,
    "text": lambda a: a.astype(str).astype(object),
    "list of texts": lambda a: a.astype(str).tolist() if a.ndim else a,
    "bytes": lambda a: a.astype(bytes).astype(object),
    "timedelta": lambda a: a.astype("m8[s]"),
    "objects of timedelta": lambda a: np.array([*a.astype("m8[s]")], object) if a.ndim else a,
    "too large": lambda a: [10**400] * len(a) if a.ndim == 1 else a}
CUTS = r"networks|baselines|mapped|gaussian_d_V|[XyZ]\[|\* Z"
WHOLE = [call for call in CALLS if not re.search(CUTS, call)]


@functools.cache
def outcomes(form, top, ln_l2, under="ignore"):
    """call -> its outcome with arrays in a form."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        names = names_of(whole_numbers(top, ln_l2), form)
        with np.errstate(under=under):
            return {call: outcome(call, names) for call in (CALLS if form in ARRAYS else WHOLE)}


def differing(got, want, calls=CALLS):
    """The calls whose outcomes differ, with both, to what BLAS rounds differently."""
    wrong = []
    for call in calls:
        a, b = got[call], want[call]
        if isinstance(a, str) or isinstance(b, str):
            alike = isinstance(a, str) and isinstance(b, str) and a == b
        else:
            size = np.max(np.abs(b[np.isfinite(b)]), initial=0.0)
            alike = a.shape == b.shape and np.allclose(a, b, 1e-7, 1e-9 * size, equal_nan=True)
        if not alike:
            wrong.append((call, a, b))
    return wrong


@each("name", FORMS)
def test_arithmetic_in_float64(name):
    """Each call gives what it gives for float64 of the same values."""
    size = (1, 1.0) if "bool" in name else (100, 8.0)
    assert differing(outcomes(FORMS[name], *size), outcomes(np.array, *size)) == []


@each("name", OTHERS)
def test_arithmetic_of_others(name):
    """So does each for lists, objects, subclasses."""
    got = outcomes(OTHERS[name], 100, 8.0)
    assert differing(got, outcomes(np.array, 100, 8.0), WHOLE) == []


@each("name", REFUSED)
def test_arithmetic_refused(name):
    """No wrong number, and no other error, for what holds no real numbers, or would broadcast."""
    wrong = differing(outcomes(REFUSED[name], 100, 8.0), outcomes(np.array, 100, 8.0), WHOLE)
    assert [call for call, got, _ in wrong if not isinstance(got, str)] == []
    assert len(wrong) > 30


@each("ln_l2", [8.0, -8.0])
def test_arithmetic_underflow(ln_l2):
    """Where numbers underflow to 0 nothing is raised, though the caller has it raised."""
    got = outcomes(np.array, 100, ln_l2, "raise")
    assert differing(got, outcomes(np.array, 100, ln_l2)) == []


@each("size", [(100, 8.0), (1, 1.0), (100, -8.0)])
def test_arithmetic_calls_compute(size):
    """Nearly all calls give numbers, not errors, so that there is something to compare."""
    errors = {call: out for call, out in outcomes(np.array, *size).items() if isinstance(out, str)}
    print(errors)
    assert len(errors) <= 3
