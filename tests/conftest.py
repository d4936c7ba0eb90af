"""One BLAS thread, unless the environment says otherwise: the tests' matrices are small, and
threads wait for each other. The asserts of the helpers here count under python -O, too. Copies
read the modules once.
"""

import functools
import os

import pytest

pytest.register_assert_rewrite("tests")         # all modules of this folder
os.environ["MPLBACKEND"] = "Agg"                # whatever a notebook has left
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

from own_data import copying                    # noqa: E402  (after the environment)

copying.definitions = functools.cache(copying.definitions)
