"""Generated data; names that end in _like imitate a data set of the papers.

rng is a NumPy generator, N the number of rows; units are arbitrary unless they are named.
"""

import numpy as np

import pacgp_ref as R

from figures_of.shared import standard


def bump(x, centre, width):
    """A smooth bump exp(-((x - centre) / width)^2), elementwise; 1 at the centre."""
    return np.exp(-(((x - centre) / width) ** 2))


def snelson_like(rng, N=200, uneven=False):
    """x (N, 1) on [0, 6], crowded at four places, and y (N,): imitates Snelson's set.

    A wave of lengthscale 0.6 and amplitude 0.9. The noise has standard deviation 0.28; if uneven,
    it grows from 0.02 to 0.52 along x.
    """
    crowd = rng.choice([0.2, 1.0, 2.6, 4.0], N) + 0.12 * rng.standard_normal(N)
    x = np.where(rng.random(N) < 0.66, rng.uniform(0, 6, N), crowd)
    bumps = ((-1.85, 1.45, 0.7), (0.8, 2.75, 0.45), (1.0, 4.35, 0.45), (-0.9, 5.3, 0.5))
    f = sum(height * bump(x, centre, width) for height, centre, width in bumps)
    sd = 0.02 + 0.5 / (1 + np.exp(-3 * (x - 3))) if uneven else 0.28
    return np.abs(x)[:, None], f + sd * rng.standard_normal(N)


def boston_like(rng, N):
    """X (N, 13), y (N,), standardised: imitates Boston housing.

    The inputs depend on four hidden factors; the noise grows with y. Two columns are skewed, one is
    0 or 1 before it is standardised.
    """
    F = rng.standard_normal((N, 4))
    X = F @ rng.standard_normal((4, 13)) + 0.4 * rng.standard_normal((N, 13))
    f1, f2, f3, f4 = F.T
    g = 0.45 * f1 - 0.3 * np.tanh(1.5 * f2) + 0.12 * f3**2 + 0.1 * f1 * f4
    X[:, :2] = np.exp(X[:, :2] / 2)                     # two are skewed
    X[:, 3] = X[:, 3] > 2                               # one is 0 or 1
    return standard(X), standard(np.exp(0.6 * g) * (1 + 0.11 * rng.standard_normal(N)))


def kin40k_like(rng, N, noise=0.15):
    """X (N, 8), y (N,), standardised: `robot_arm` with noise, which imitates kin40k.

    noise: its standard deviation, in standard deviations of the hand's distance.
    """
    turn, distance = robot_arm(rng, N)
    return standard(turn), standard(standard(distance) + noise * rng.standard_normal(N))


def robot_arm(rng, N):
    """Angles (N, 8) of a plane robot arm's joints, and distances (N,) of its hand from a point.

    An angle is that between a link and the one before it. It is uniform on [-1, 1], in units of
    0.7 rad. The point is fixed. The unit of distances is the length of the arm.
    """
    turn = rng.uniform(-1, 1, (N, 8))
    angle = np.cumsum(0.7 * turn, axis=1)
    hand = np.stack([np.cos(angle).sum(1), np.sin(angle).sum(1)], 1) / 8
    return turn, np.hypot(*(hand - [0.6, 0.3]).T)


def sample_ard(rng, N, n_test):
    """Returns X (N, 3), y (N,), X_test (n_test, 3), y_test (n_test,): a draw from a GP; R App. F.

    The inputs are uniform on [-3, 3]^3, and the targets have no noise. The kernel is SE-ARD with
    ln l_i ~ U(-1, 1) and sigma_s^2 = 1. Given y, each test value is drawn on its own, not jointly
    with the others. This suffices for a test risk, which is a mean over points.
    """
    ln_theta = np.append(2 * rng.uniform(-1, 1, 3), 0.0)
    X = rng.uniform(-3, 3, (N, 3))
    X_test = rng.uniform(-3, 3, (n_test, 3))
    L = R.cholesky(R.se_kernel(X, X, ln_theta)[0] + 1e-8 * np.eye(N), "K_NN")
    white = rng.standard_normal(N)
    posterior = R.StoredPosterior(X, R.tri_inv(L), ln_theta, white, np.zeros((0, N)))
    mean, var = R.sparse_predict(posterior, X_test)
    return X, L @ white, X_test, mean + np.sqrt(var) * rng.standard_normal(n_test)


def uneven_noise(rng, N):
    """X (N, 2), y (N,), standardised: a wave whose noise grows along the first input.

    Before y is standardised, the standard deviation of the noise grows from 0.02 to 0.32.
    """
    X = rng.uniform(-2, 2, (N, 2))
    sd = 0.02 + 0.3 / (1 + np.exp(-4 * X[:, 0]))
    f = np.sin(2 * X[:, 0]) * np.cos(X[:, 1])
    return standard(X), standard(f + sd * rng.standard_normal(N))


CITIES = {              # extent [km], slower by the rush, jams
    "city A": (15.0, 0.35, 0.2), "city B": (8.0, 0.6, 0.35), "city C": (25.0, 0.2, 0.5)}


def taxi_like(rng, N, city):
    """X (N, 9) and durations y (N,) [min] of trips in a made-up city, a key of CITIES.

    Trips are slow in the centre and in rush hours. Durations have lognormal noise, whose spread
    grows in rush hours. The columns of X are:
        1, 2   the start, east and north of the centre [km]
        3, 4   the way from start to end, east and north [km]
        5      the distance along streets [km]
        6      the distance of the way's midpoint from the centre, in units of the city's extent
        7      how near the time is to a rush hour, from 0 to 1 (at the peak)
        8, 9   cosine and sine of the time of day
    """
    extent, rush, jam = CITIES[city]
    start, way = rng.standard_normal((2, N, 2)) * extent / 2
    hour = rng.uniform(0, 24, N)
    peak = bump(hour, 8.5, 1.5) + bump(hour, 17.5, 2)
    far = np.hypot(*(start + way / 2).T) / extent
    blocks = np.abs(way).sum(1)
    mean = 2 + 4 * blocks * (1 + 2 * rush * peak + np.exp(-4 * far**2)) / 3
    spread = 0.05 + jam * (0.2 + 0.8 * peak)
    y = mean * np.exp(spread * rng.standard_normal(N))
    clock = np.pi * hour / 12
    return np.column_stack([start, way, blocks, far, peak, np.cos(clock), np.sin(clock)]), y


def rate_like(rng, N):
    """N daily exchange rates, (N,): imitates CAD per USD in 2007.

    Their ln is a random walk from ln 1.17, with steps of 0.5 % a day (the real ones: 0.56 %).
    """
    return 1.17 * np.exp(np.cumsum(0.005 * rng.standard_normal(N)))


SD = 0.4                # the deviation of the noise of L's code


def sine(rng, n):
    """X (n, 1) uniform on [-1, 1], and y (n,) = sin(4x) + 0.4 e with e standard normal."""
    x = rng.uniform(-1, 1, n)
    return x[:, None], np.sin(4 * x) + SD * rng.standard_normal(n)
