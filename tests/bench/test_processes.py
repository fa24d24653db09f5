"""CPU time of process trees."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bench.frame.processes import TICKS_PER_SECOND, cpu_seconds

BUSY = "import subprocess, sys; sum(range(10**6)); subprocess.run([sys.executable, '-c', 'sum(range(10**6))'])"


def test_the_cpu_time_of_an_ended_process_is_that_which_the_kernel_reports_to_its_parent() -> None:
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # not reaped yet
    seconds = cpu_seconds(process.pid)
    usage = os.wait4(process.pid, 0)[2]
    process.returncode = 0
    assert seconds == pytest.approx(usage.ru_utime + usage.ru_stime, abs=2 / TICKS_PER_SECOND)
    assert cpu_seconds(process.pid) == 0


def test_the_cpu_time_of_a_running_process_is_finer_than_ticks() -> None:
    ticks = cpu_seconds(os.getpid()) * TICKS_PER_SECOND
    assert ticks != round(ticks)
