"""GPyTorch's values and gradients of the objectives that it has: prints tests/gpytorch.json.

    pip install torch gpytorch
    PYTHONPATH=. python tests/witness_gpytorch.py > tests/gpytorch.json

In double precision, without any jitter. It has no VFITC, whose optimum over q(u) is FITC: that is
its inducing point kernel with the correction of the diagonal. Two objectives of its are others:
gamma-robust (docs/misprints.md, 18), and OD-SVGP, in whose mean the weights a have the covariance
of q, here that of the prior given u.
"""

import json
import math

import gpytorch as G
import numpy as np
import torch
from gpytorch import variational as V

from tests.test_witness import problems

torch.set_default_dtype(torch.float64)
LN = G.constraints.Positive(transform=torch.exp, inv_transform=torch.log)
FIT_TO_DATA = ("exact", "FITC", "VFE")
NAMES = {               # of its parameters -> of ours, ln_theta in two parts
    "raw_lengthscale": "ln_l", "raw_outputscale": "ln_k", "raw_noise": "ln_noise",
    "inducing_points": "Z", "variational_mean": "m", "_variational_stddev": "L_S",
    "chol_variational_covar": "L_S"}


class Approximate(G.models.ApproximateGP):
    def __init__(self, p, kernel):
        q = V.DeltaVariationalDistribution
        if "L_S" in p:
            q = (V.MeanFieldVariationalDistribution, V.CholeskyVariationalDistribution)[
                p["L_S"].ndim - 1]
        strategy = V.BatchDecoupledVariationalStrategy if "Z_mean" in p else V.VariationalStrategy
        super().__init__(strategy(self, torch.tensor(p["Z"]), q(len(p["m"])), jitter_val=0.0))
        self.variational_strategy.variational_params_initialized.fill_(1)
        self.kernel = kernel

    def forward(self, x):
        return G.distributions.MultivariateNormal(x.new_zeros(x.shape[:-1]), self.kernel(x))


class Exact(G.models.ExactGP):
    def __init__(self, X, y, noise, kernel):
        super().__init__(X, y, noise)
        self.kernel = kernel

    forward = Approximate.forward


def witness(method, p, X, y, N, beta_reg):
    """{"value": ..., parameter: gradient} of what is minimised, per data point."""
    X, y = torch.tensor(X), torch.tensor(y)
    noise = G.likelihoods.GaussianLikelihood(noise_constraint=LN)
    matern = G.kernels.MaternKernel(2.5, ard_num_dims=2, lengthscale_constraint=LN)
    kernel = G.kernels.ScaleKernel(matern, outputscale_constraint=LN)
    if method in FIT_TO_DATA:
        if "Z" in p:
            kernel = G.kernels.InducingPointKernel(kernel, torch.tensor(p["Z"]), noise)
        model = Exact(X, y, noise, kernel)
        mll = G.ExactMarginalLogLikelihood(noise, model)
    else:
        model = Approximate(p, kernel)
        kind = G.mlls.PredictiveLogLikelihood if "PPGPR" in method else G.mlls.VariationalELBO
        mll = kind(noise, model, num_data=N, beta=beta_reg)
    at = p | dict(ln_l=p["ln_theta"][:-1] / 2, ln_k=p["ln_theta"][-1])
    if "Z_mean" in p:
        at["Z"] = np.stack([p["Z_mean"], p["Z"]])
    held = {NAMES[name.split(".")[-1]]: one for name, one in mll.named_parameters()}
    for name, one in held.items():
        one.data = torch.tensor(at[name]).reshape(one.shape)
    if method == "FITC":
        kernel.eval()                               # the diagonal is corrected outside training
    with G.settings.fast_computations(False, False, False):
        value = -mll(model.forward(X) if method in FIT_TO_DATA else model(X), y)
        value.backward()
    if "m" in p and ("L_S" not in p or "Z_mean" in p):
        value = value - beta_reg / N * len(p["m"]) * math.log(2 * math.pi) / 2  # of N(m | 0, I)
    found = {name: one.grad.numpy() for name, one in held.items()}
    found["ln_theta"] = np.append(found.pop("ln_l") / 2, found.pop("ln_k"))
    found["ln_noise"] = found["ln_noise"][0]
    if "Z_mean" in p:
        found["Z_mean"], found["Z"] = found["Z"]
    return dict({name: one.tolist() for name, one in found.items()}, value=value.item())


def witnesses():
    """{name: witness} of all problems."""
    return {name: witness(*one) for name, one in problems().items()}


if __name__ == "__main__":
    lines = []
    for name, found in witnesses().items():
        short = json.loads(json.dumps(found), parse_float=lambda x: float(f"{float(x):.12g}"))
        lines.append(f'"{name}": {json.dumps(short)}')
    print("{" + ",\n".join(lines) + "}")
