"""One BLAS thread, unless the environment says otherwise: the tests' matrices are small, and
threads wait for each other. The asserts of the helpers here count under python -O, too.
"""

import os
import signal

import pytest

pytest.register_assert_rewrite("tests")         # all modules of this folder
os.environ["MPLBACKEND"] = "Agg"                # whatever a notebook has left
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")


@pytest.fixture
def path(tmp_path):
    """A table of 60 rows."""
    from tests.programs import table        # NumPy, which reads the environment

    (tmp_path / "t.csv").write_text(table(60))
    return tmp_path / "t.csv"


@pytest.fixture
def ctrl_c():
    """Ctrl-C is Python's own during the test, however the tests were started."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
