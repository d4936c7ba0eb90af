"""The kernels with which a GP can be certified: function, rounding error, parameter names.

To add a kernel, write one function and one row of KERNELS: fits, streams, programs and saved models
then take it. The function must have k(x, x) = exp(ln_theta[-1]) for every x. Its attribute `start`
is a function that returns the ln_theta where training starts (see start_of of pacgp_ref.py).

Here the entries of a kernel matrix are computed from differences x1 - x2 (by_differences=True).
Their rounding error is given in ulp of k(x, x), that is, in units of u k(x, x) with u = 2^-53. Each
function *_ulps derives a bound on this error, to first order in u. It assumes relative errors of
1 u for + - * / and square roots, and of 2 u for exp, cos and sin. The argument of exp is rounded
too, which adds |ln sigma_s^2| to the bound.
"""
from typing import Callable, NamedTuple

import numpy as np

from pacgp_ref import JITTER, ULP, in_doubles, se_kernel
from predictive import centre, matern32, matern52, periodic
from online import spectral_mixture, waves


class Kernel(NamedTuple):
    """A kernel with which a GP can be certified, a row of KERNELS.

    `names` returns one name for each entry of ln_theta. The ln_theta of a mixture has a row for
    each component: there the names are those of one row.
    """
    function: Callable         # as se_kernel
    ulps: Callable             # (X1, X2, ln_theta) -> largest error of an entry, in ulp of k(x, x)
    names: Callable            # (d, ard) -> names of exp(ln_theta), of a mixture those of a row:
                               # "lengthscale l_1" (squared), "period p_1", .., "signal" last


@in_doubles
def se_ulps(X1, X2, ln_theta):
    """Bound on the rounding error of the SE kernel in ulp: d + 8 + |ln sigma_s^2|, ard or not.

    (x1 - x2)/l has a relative error of 4 u: 1 for the difference, 2 for exp(-ln l^2/2), 1 for the
    product. So its square has one of 9 u, and t = r^2/2, half the sum of d squares, one of
    (d + 8) u. Since t exp(-t) <= 0.37, this moves K = exp(ln sigma_s^2 - t) by at most 0.37 (d + 8)
    ulp. The rounding of ln sigma_s^2 - t moves K by at most max(1, |ln sigma_s^2|) ulp, that of exp
    by 2 ulp.

    X1 (N1, d), X2 (N2, d), ln_theta: as in se_kernel; the same in the other functions *_ulps.
    """
    return X1.shape[1] + 8 + abs(ln_theta[-1])


@in_doubles
def matern_ulps(X1, X2, ln_theta):
    """Bound on the rounding error of Matern kernels K = sigma_s^2 p(v) exp(-v), v = a r, in ulp:

        d + 10 + |ln sigma_s^2|
    p is a polynomial; a is 3^(1/2) for Matern 3/2 and 5^(1/2) for Matern 5/2. As in se_ulps, r^2/2
    has a relative error of (d + 8) u. So v^2 has one of (d + 9) u, and v half of that, plus the
    rounding of the root. Each of these errors moves K by at most, in ulp:

                                                         Matern 3/2      Matern 5/2
        error of v^2: (d + 9)/2 times                    0.541           0.604
        rounding of the root v:                          0.541           0.941
        rounding of ln sigma_s^2 - v: |ln sigma_s^2| +   0.840           1.176
        exp, products and sums:                          4               5
    In the first row, 0.541 and 0.604 are max |v K'(v)|/sigma_s^2. The four rows add up to at most
    0.28 d + 7.9 for Matern 3/2 and 0.31 d + 9.9 for Matern 5/2, plus |ln sigma_s^2|.

    Arguments as in se_ulps.
    """
    return X1.shape[1] + 10 + abs(ln_theta[-1])


@in_doubles
def periodic_ulps(X1, X2, ln_theta):
    """Bound on the rounding error of the periodic kernel, in ulp:

        2 d + 8 + |ln sigma_s^2| + 0.61 |h/l|,   h_k = 6 (|a1_k| + |a2_k|) + 6
    where |h/l| is the norm of all h_k/l_k. The kernel is SE in the 2 d inputs U = (cos a, sin a),
    with angles a = 2 pi (x - c)/p and c by `centre` of predictive.py. |a1_k| and |a2_k| are the
    largest |a_k| of X1 and of X2. The first three terms are the bound of se_ulps for 2 d inputs.
    The last one is for the error of U. An angle errs by 6 u |a|: 1 for x - c, 1 for pi, 2 for
    exp(-ln p), 2 for two products. A point of a circle moves by that and, for cos and sin, by
    2 2^(1/2) u. So |U1 - U2| moves by at most h_k u on circle k, r by |h/l| u, and exp(-r^2/2) by
    0.61 |h/l| u, since r exp(-r^2/2) <= exp(-1/2) <= 0.61.

    Arguments as in se_ulps.
    """
    d = X1.shape[1]
    ln_period = ln_theta[d:2 * d]
    c = centre(X2, ln_period)
    farthest = sum(np.max(np.abs(X - c), 0, initial=0.0) for X in (X1, X2))
    h = 6 * (2 * np.pi * farthest * np.exp(-ln_period)) + 6
    of_phases = 0.61 * np.linalg.norm(h * np.exp(-ln_theta[:d] / 2))
    return 2 * d + 8 + abs(ln_theta[-1]) + of_phases


@in_doubles
def mixture_ulps(X1, X2, ln_theta):
    """Bound on the rounding error of a spectral mixture of Q components, in ulp.

    Each component, with weight w and frequencies mu, gives a sum of three terms. The bound is the
    largest of these Q sums.
        d + 8 + |ln w|               the Gaussian factor, see se_ulps
        + sum_k (6 max|a_k| + 2)     cos a_k: a = 2 pi mu (x1 - x2) errs by 6 u |a|, cos by 2 u
        + d + Q                      the product of the factors, and the sum of the components

    Arguments as in se_ulps.
    """
    Q = len(ln_theta)
    d = X1.shape[1]
    angles = [np.max(np.abs(waves(X1, X2, row)), (0, 1), initial=0.0) for row in ln_theta]
    of_row = np.abs(ln_theta[:, -1]) + 6 * np.sum(angles, 1)
    return 4 * d + Q + 8 + np.max(of_row)


def of_columns(name, d):
    """Returns the list name_1 .. name_d, for a parameter with one value per input.

    name: a text, such as "lengthscale l".
    """
    return [f"{name}_{k + 1}" for k in range(d)]


def names_theta(d, ard=False):
    """Returns the parameter names of an SE or Matern kernel of d inputs, a list.

    There is one lengthscale or, if ard, d of them.
    """
    return [*of_columns("lengthscale l", d if ard else 1), "signal"]


def names_periodic(d, ard=True):
    """Returns the parameter names of the periodic kernel of d inputs, a list.

    ard is ignored: there are always d lengthscales.
    """
    return [*of_columns("lengthscale l", d), *of_columns("period p", d), "signal"]


def names_mixture(d, ard=True):
    """Returns the parameter names of one component of a spectral mixture of d inputs, a list.

    A component is a row of ln_theta. ard is ignored: there are always d lengthscales.
    """
    return [*of_columns("frequency mu", d), *of_columns("lengthscale l", d), "signal"]


KERNELS = {            # name -> Kernel
    "SE": Kernel(se_kernel, se_ulps, names_theta),
    "Matern32": Kernel(matern32, matern_ulps, names_theta),
    "Matern52": Kernel(matern52, matern_ulps, names_theta),
    "periodic": Kernel(periodic, periodic_ulps, names_periodic),
    "mixture": Kernel(spectral_mixture, mixture_ulps, names_mixture),
}


def kernel_row(kernel):
    """Returns the row of KERNELS, a Kernel, for a kernel function; ValueError if it has none."""
    for row in KERNELS.values():
        if kernel is row.function:
            return row
    name = getattr(kernel, "__name__", kernel)
    raise ValueError(f"the rounding of {name} is not enclosed: no strict certificate")


@in_doubles
def exact_kernel(kernel, X1, X2, ln_theta):
    """Returns K (N1, N2) and a bound on the rounding error of its entries, in ulp of k(x, x).

    kernel: a function in KERNELS; X1, X2, ln_theta: its arguments. K is computed from input
    differences, with by_differences=True.
    """
    K, _ = kernel(X1, X2, ln_theta, by_differences=True)
    return K, kernel_row(kernel).ulps(X1, X2, ln_theta)


def check_digits(M, ulps):
    """ValueError if rounding may change K_MM (M, M) by as much as the jitter added to it.

        M      number of inducing inputs
        ulps   bound on the rounding error of an entry of K_MM, in ulp of k(x, x)
    """
    if 4 * M * ULP * ulps > JITTER:
        raise ValueError("periods or waves are too short, or the inputs too wide, for the kernel "
                         "to keep its digits")
