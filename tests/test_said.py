"""What a certificate says in words: bounds and tolerances rounded up, the confidence down."""
from decimal import Decimal

import numpy as np
import pytest

from own_data import models


@pytest.mark.parametrize(
    "value", [0.25, 0.99995, 1.0, *np.random.default_rng(0).uniform(0, 1, 100).tolist()])
def test_words_rounded(value):
    """Never too good: bounds and tolerances up, the confidence down."""
    exact = Decimal(value)
    assert exact <= Decimal(models.bound_text(value)) <= min(exact + Decimal("1e-4"), 1)
    assert exact <= Decimal(models.rounded_up(value)) <= exact * Decimal("1.001")
    assert Decimal(models.confidence_percent(value)) <= 100 * (1 - Decimal(repr(value)))


def test_words_confidence():
    """Nines are kept, the rest is rounded down."""
    found = [models.confidence_percent(delta) for delta in (0.01, 0.05, 0.1, 1e-15)]
    assert found == ["99", "95", "90", "99.9999999999"]
