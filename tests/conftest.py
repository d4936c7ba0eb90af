"""One BLAS thread, unless the environment says otherwise: the tests' matrices are small, and
threads wait for each other.
"""

import os

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
