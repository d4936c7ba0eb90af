"""The comparisons and oracles themselves: they refuse what is wrong, and know tables' numbers."""

import math
from decimal import Decimal

import numpy as np
import pytest
from tests import oracles
from tests.oracles import (
    assert_close, assert_just_above, central_difference, exact_kl, exact_kl_inv, exact_norm_cdf,
    expectation)


def test_harness_comparisons_reject():
    """Refused: 1.01, -1, 0 times the right gradient, NaN, other shapes, useless references; what is
    rounded down, or up too far. Differences tell a gradient from its multiples.
    """
    right = np.array([1.0, -2.0, 1e-9])
    assert_close(right * (1 + 1e-12), right, 1e-11)
    wrong = [(a, right) for a in (
        1.01 * right, -right, 0 * right, right * math.nan, right[:2], right[:, None])]
    useless = [(a, a) for a in (0 * right, right + [0, 0, math.nan], right + [0, 0, math.inf])]
    for got, want in wrong + useless:
        with pytest.raises(AssertionError):
            assert_close(got, want, 5e-3)
    assert_just_above([1 + 1e-12], [1.0])
    for got in (1 - 1e-9, 1 + 1e-9, math.nan):
        with pytest.raises(AssertionError):
            assert_just_above([got], [1.0])
    x = np.array([[0.3, -1.0], [2.0, 0.7]])
    by_differences = central_difference(lambda x: np.sum(np.sin(x) * x), x)
    assert_close(by_differences, np.cos(x) * x + np.sin(x), 3e-13)


def test_harness_asserts_are_rewritten():
    """Those of the helpers count under python -O, too."""
    assert "@pytest_ar" in vars(oracles)


def test_harness_oracles_known_values():
    """The oracles against numbers from tables and exact results."""
    assert_close(float(exact_norm_cdf(-1)), 0.15865525393145705141, 1e-16)
    assert_close(float(exact_norm_cdf(-10)), 7.6198530241605260660e-24, 1e-15)
    assert exact_norm_cdf(0) == Decimal("0.5")
    assert abs(exact_norm_cdf(2) + exact_norm_cdf(-2) - 1) < Decimal("1e-50")
    assert_close(float(exact_kl("0.5", "0.25")), math.log(4 / 3) / 2, 1e-15)
    assert abs(exact_kl_inv(0, 2) - (1 - Decimal(-2).exp())) < Decimal("1e-50")
    assert_close(expectation(lambda v: v**4, 0.5, 4.0), 0.5**4 + 6 * 0.25 * 4 + 3 * 16, 2e-15)
