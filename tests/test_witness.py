"""GPyTorch, the library of J's authors, as a witness: the same objectives and gradients.

tests/witness_gpytorch.py has made tests/gpytorch.json, and says what GPyTorch does not have.
"""

import functools
import json

import pytest
from tests.oracles import each, HERE, relative_error
from tests.problems import J_objective, J_problem

import pacgp_ref as R
import predictive as J

METHODS = [*(m for m in J.METHODS if m not in ("VFITC", "gamma-robust", "OD-SVGP")), "VFE"]


def problems():
    """{name: (method, p, X, y, N, beta_reg)}: two points for each method."""
    found = {}
    for method in METHODS:
        for i, at in enumerate(({}, dict(N=12, M=3, ln_theta=[0.5, -0.3, 0.9], ln_noise=-4.0))):
            X, y, p = J_problem(method.replace("VFE", "FITC"), **at)
            if method == "PPGPR-MFD":               # there Z and Z_mean have one length
                p |= {name: p[name][:len(p["Z"])] for name in ("m", "Z_mean")}
            beta_reg = 0.05 if "PPGPR" in method else 1.0
            found[f"{method} {i}"] = method, p, X, y, 3 * len(y), beta_reg
    return found


def ours(method, p, X, y, N, beta_reg):
    """{"value": ..., parameter: gradient} as the module has them, per data point."""
    if method == "VFE":
        value, back = R.sparse_nll(X, y, **p, kind="VFE", kernel=J.matern52)
        return dict({name: d / len(y) for name, d in back(1.0).items()}, value=value / len(y))
    value, back = J_objective(method, p, X, y, N, beta_reg)
    return dict(back(1.0), value=value)


@pytest.mark.filterwarnings("ignore::UserWarning")
@each("source", ["stored", pytest.param("live", marks=pytest.mark.slow)])
def test_RJ_gpytorch_value_grad(source, monkeypatch):
    """The value and the gradient w.r.t. every parameter, all without jitter."""
    if source == "live":
        pytest.importorskip("gpytorch", reason="GPyTorch, no requirement, is not installed")
        from tests.witness_gpytorch import witnesses
        stored = witnesses()
    else:
        stored = json.loads((HERE / "tests" / "gpytorch.json").read_text())
    for module in (R, J):
        monkeypatch.setattr(
            module, "inverse_cholesky", functools.partial(R.inverse_cholesky, jitter=0.0))
    errors = {}
    for name, problem in problems().items():
        theirs, got = stored.pop(name), ours(*problem)
        assert {*theirs} == {"value", *problem[1]}, name
        errors |= {f"{name}, {key}": relative_error(got[key], want) for key, want in theirs.items()}
    worst = max(errors, key=errors.get)
    print(f"largest relative error {errors[worst]:.1e}, of {worst}")
    assert not stored and errors[worst] < 1e-10
