"""CP-SAT ends when the process is told to."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

#: Says when it has begun; would take an hour.
PROGRAM = """
import signal, sys
import numpy as np
from ds_dip.balancing import Loads, balance
from ds_dip.balancing import exact
signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
signal.signal(signal.SIGINT, signal.default_int_handler)
own = Loads(np.random.default_rng(0).gamma(2.0, 1.0, (400, 3)), 40)
found = balance(own)
try:
    print("begun", flush=True)
    exact.prove(own, found, 3600.0)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_proof(number: signal.Signals) -> None:
    pytest.importorskip("ortools")
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            process.send_signal(number)
            assert process.wait(timeout=60) == 128 + number
        finally:
            process.kill()


def test_a_failure_of_the_solver_is_raised() -> None:
    from ds_dip.proving import solved

    cp_model = pytest.importorskip("ortools.sat.python.cp_model")
    with pytest.raises(Exception, match="."):
        solved(cp_model.CpSolver(), None)
