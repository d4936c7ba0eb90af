"""The deep models of J Fig. 5: a GP on a network's outputs, and a network with dropout.

J = Jankowiak et al. 2020, App. C.3. There deep kernel learning, with J's objectives, is compared
with MC dropout (Gal & Ghahramani 2016), by how far the z-scores of their predictions are from
normal ones. `J.` is predictive.py. Arguments of several functions: X (N, d) and y (N,) are the
training data; p is a dict of all parameters; rng is a NumPy generator.
"""
import math

import numpy as np

import pacgp_ref as R
import predictive as J
from pacgp_ref import in_doubles

TAUS = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0)                # J App. C.3


def start_weights(rng, sizes):
    """A network's initial W0, b0, W1, .. as a dict: normal weights of variance 2/fan-in, offsets 0.

    sizes: widths of the layers, inputs first; W0 is (sizes[0], sizes[1]).
    """
    p = {}
    for i, shape in enumerate(zip(sizes, sizes[1:])):
        p[f"W{i}"] = rng.standard_normal(shape) * math.sqrt(2 / shape[0])
        p[f"b{i}"] = np.zeros(shape[1])
    return p


@in_doubles
def network(p, X, drop=0.0, rng=None):
    """Returns a network's outputs A (N, out), and back; p: its weights W0, b0, W1, ...

        A_i = H_i W_i + b_i,   H_0 = X,   H_i = gate_i A_{i-1},   gate_i = 1[A_{i-1} > 0]

    The product with a gate is elementwise. If drop > 0, there is dropout: in each row the gate of a
    hidden unit becomes 0 with probability drop, by draws from rng. If the gate does not become 0,
    it is divided by 1 - drop.

    back(d_A), the VJP, returns a dict of the gradients w.r.t. the weights and "X" (N, d):
        d_W_i = H_i^T d_A_i,   d_b_i = sum over rows of d_A_i,   d_A_{i-1} = gate_i (d_A_i W_i^T)
    """
    layers = []
    A = X
    for i in range(sum(name[0] == "W" for name in p)):
        kept = (rng.random(A.shape) >= drop) / (1 - drop) if drop else 1.0
        gate = (A > 0) * kept if i else 1.0
        H = A * gate
        layers.append((i, H, gate))
        A = H @ p[f"W{i}"] + p[f"b{i}"]

    def back(d_A):
        grads = {}
        for i, H, gate in reversed(layers):
            grads[f"W{i}"] = H.T @ d_A
            grads[f"b{i}"] = d_A.sum(0)
            d_A = gate * (d_A @ p[f"W{i}"].T)
        return grads | {"X": d_A}
    return A, back


@in_doubles
def deep_objective(p, X, y, N, method, beta_reg):
    """Returns the training objective of a GP on a network's outputs, and the dict of its gradients.

    p holds the parameters of the GP and of `network`. X, y are a batch of the N rows. method and
    beta_reg are as in `deep_gp`. The GP's gradient w.r.t. its inputs, which are the network's
    outputs, goes into the network's back.
    """
    H, network_back = network(p, X)
    value, back = J.objective(p, H, y, N, method, beta_reg)
    grads = back(1.0)
    return value, grads | network_back(grads["X"])


def train(rng, p, at_rows, N, plan, callback):
    """Returns the parameters p after training by mini-batches of Adam; J App. C.3.

    p: the initial parameters. Adam's rate falls tenfold at each milestone.
        at_rows    a function of p and row numbers that returns the objective and a dict of
                   gradients
        N          number of training rows
        plan       dict with "epochs" (how many), "batch" (rows per step), and perhaps "lr", the
                   first rate of Adam, else 0.01, and "milestones", shares of the epochs, else a
                   half and three quarters
        callback   called after each epoch with its number and its objective
    """
    epochs = plan["epochs"]
    milestones = plan.get("milestones", J.MILESTONES)
    rates = [J.step_size(plan.get("lr", 0.01), epoch, epochs, milestones)
             for epoch in range(epochs)]
    p, *_ = J.train(J.algorithm1(p, at_rows, N, plan["batch"], rates, {}, rng), callback=callback)
    return p


def deep_gp(rng, X, y, method, beta_reg, plan, callback):
    """Trains a GP on a network's outputs. Returns a function X_new -> mean, variance (n,) of y.

        method     "SVGP" or "PPGPR-MFD"
        beta_reg   weight of the KL divergence, as in J.objective
        plan       dict of "hidden" (widths of the layers), "M" (how many inducing inputs), and
                   "epochs" and "batch" as in `train`
        callback   as in `train`
    Inducing inputs start at the network's outputs for random rows.
    """
    net = start_weights(rng, (X.shape[1], *plan["hidden"]))
    M = plan["M"]
    H = rng.permutation(network(net, X)[0])
    p = J.initial_parameters(H, method, M, Z=H[:M]) | net
    if "Z_mean" in p:
        p["Z_mean"] = H[-M:]

    def at_rows(p, rows):
        return deep_objective(p, X[rows], y[rows], len(y), method, beta_reg)
    p = train(rng, p, at_rows, len(y), plan, callback)

    def predict(X_new):
        (mean, ktilde, svar, _), _ = J.marginals_and_reg(p, network(p, X_new)[0])
        return mean, ktilde + svar + math.exp(p["ln_noise"])
    return predict


def dropout_net(rng, X, y, X_val, y_val, drop, plan, callback):
    """Trains a network with MC dropout. Returns a function X_new -> mean, variance (n,) of y.

    Training minimises the mean squared error. Mean and variance are over 50 passes, each with
    hidden units dropped at random; the variance also includes tau, the noise variance. Of the
    values in TAUS, tau is the one with the lowest NLL on the rows X_val (n, d), y_val (n,).
    drop: the probability that a hidden unit is left out; plan, callback: as in `deep_gp`, without
    "M".
    """
    def at_rows(p, rows):
        out, back = network(p, X[rows], drop, rng)
        error = out - y[rows, None]
        return np.mean(error**2), back(2 * error / len(rows))
    p = start_weights(rng, (X.shape[1], *plan["hidden"], 1))
    p = train(rng, p, at_rows, len(y), plan, callback)

    def passes(X_new):
        out = np.stack([network(p, X_new, drop, rng)[0][:, 0] for _ in range(50)])
        return out.mean(0), out.var(0)
    mean, var = passes(X_val)
    tau = min(TAUS, key=lambda t: J.nll(y_val, mean, var + t))
    return lambda X_new: np.add(passes(X_new), [[0.0], [tau]])


@in_doubles
def kolmogorov(z):
    """The largest distance between the empirical CDF of z (n,) and the standard normal CDF.

    z: z-scores, in any order. Both sides of each step of the empirical CDF count.
    """
    Phi = R.norm_cdf(np.sort(z))
    steps = np.arange(len(z) + 1) / len(z)
    return np.max([steps[1:] - Phi, Phi - steps[:-1]])
