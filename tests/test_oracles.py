"""The comparisons and oracles themselves: they refuse what is wrong, and know tables' numbers."""

import math
from decimal import Decimal

import numpy as np
import pytest

import pacgp_ref as R
from tests import mutants
from tests.oracles import (
    assert_close, central_difference, EPS, exact_kl, exact_kl_inv, exact_norm_cdf, expectation,
    GENERIC, INF, NAN)


def test_harness_relative_error_rejects():
    """Refused: 1.01, -1, 0 times the right gradient, NaN, other shapes, useless references."""
    right = np.array([1.0, -2.0, 1e-9])
    assert_close(right * (1 + 1e-12), right, 1e-11)
    for wrong in (1.01 * right, -right, 0 * right, right * NAN, right[:2], right[:, None]):
        with pytest.raises(AssertionError):
            assert_close(wrong, right, 1e-3)
    for reference in (0 * right, np.array([1.0, NAN, 1.0]), np.array([INF, 1.0, 1.0])):
        with pytest.raises(AssertionError):
            assert_close(reference, reference, 1.0)


def test_harness_central_difference_rejects():
    """Differences have 12 digits, and tell 1.01, -1 and 0 times a gradient from the gradient."""
    x = np.array([[0.3, -1.0], [2.0, 0.7]])
    by_differences = central_difference(lambda x: np.sum(np.sin(x) * x), x)
    assert_close(by_differences, np.cos(x) * x + np.sin(x), 3e-13)
    _, d_mean, _ = R.expected_01_loss(**GENERIC, eps=EPS)

    def total(mean):
        loss, _, _ = R.expected_01_loss(GENERIC["y"], mean, GENERIC["var"], EPS)
        return loss.sum()

    want = central_difference(total, GENERIC["mean"])
    assert_close(d_mean, want, 2e-11)
    for factor in (1.01, -1.0, 0.0):
        with pytest.raises(AssertionError):
            assert_close(factor * d_mean, want, 1e-3)


def test_harness_oracles_known_values():
    """The oracles against numbers from tables and exact results."""
    assert_close(float(exact_norm_cdf(-1)), 0.15865525393145705141, 1e-16)
    assert_close(float(exact_norm_cdf(-10)), 7.6198530241605260660e-24, 1e-15)
    assert exact_norm_cdf(0) == Decimal("0.5")
    assert abs(exact_norm_cdf(2) + exact_norm_cdf(-2) - 1) < Decimal("1e-50")
    assert_close(float(exact_kl("0.5", "0.25")), math.log(4 / 3) / 2, 1e-15)
    assert abs(exact_kl_inv(0, 2) - (1 - Decimal(-2).exp())) < Decimal("1e-50")
    assert_close(expectation(lambda v: v**4, 0.5, 4.0), 0.5**4 + 6 * 0.25 * 4 + 3 * 16, 2e-15)


@pytest.mark.slow
def test_harness_changes_are_noticed():
    """Of six changes of one place a third at least is noticed by the tests of their module.

    Each change of the source draws others: where seven of ten are noticed, one or none of six has a
    probability of 0.011.
    """
    found = mutants.noticed(6, seed=0)
    assert sum(bool(by) for _, by in found) >= 2


def test_harness_changes_change_one_place():
    """Each change alters the source in its place alone, and what it makes compiles."""
    source = "def f(a, b):\n    return -a + 2 * b if a < b else 0.5\n"
    changes = [("-a", "+a"), ("+ 2", "- 2"), ("2", "3"), ("*", "/"), ("<", ">="), ("0.5", "0.551")]
    found = [mutants.with_line(source, *place) for place in mutants.places(source)]
    assert found == [source.replace(before, after) for before, after in changes]
    assert all(map(mutants.compiles, found))
    assert not mutants.compiles("def f(/args): pass")
