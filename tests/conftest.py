"""One BLAS thread, unless the environment says otherwise: the tests' matrices are small, and threads wait for each other.

Of a test marked some(n) every n-th case runs by default; the others are slow. `pytest test_ref.py` alone runs them all.
"""
import collections
import os

import pytest

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")


@pytest.hookimpl(tryfirst=True)                             # before -m "not slow" chooses
def pytest_collection_modifyitems(items):
    seen = collections.Counter()
    for item in items:
        if mark := item.get_closest_marker("some"):
            if seen[item.function] % mark.args[0]:
                item.add_marker("slow")
            seen[item.function] += 1
