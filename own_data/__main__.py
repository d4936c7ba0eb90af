"""`python -m own_data`: see command_line.py."""
import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")      # before NumPy: own threads use cores better

from own_data.command_line import main

sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))
for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(errors="backslashreplace")
sys.exit(main())
