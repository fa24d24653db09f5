"""CPU time and memory of process trees, and programs that run during a benchmark."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from flafka.agent.services.running import until

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
CPUCLOCK_SCHED = 2
"""Kind of a clock, in its ID beside the PID: CPU time of a process (`clock_getcpuclockid`, linux/posix-timers.h)."""


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process and its descendants, including ended ones, in seconds.

    The time of running processes has nanoseconds: an event takes less than one of the 10 ms of `/proc/PID/stat`.
    """
    return sum(
        _clock_seconds(pid, fields) + sum(map(int, fields[13:15])) / TICKS_PER_SECOND
        for pid, fields in _process_tree(pid).items()
    )


def _clock_seconds(pid: int, fields: Sequence[str]) -> float:
    """Return the CPU time of a process without its children, by its fields of `/proc/PID/stat` if it has ended."""
    try:
        return time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED)
    except OSError:
        return sum(map(int, fields[11:13])) / TICKS_PER_SECOND


def resident_bytes(pid: int) -> int:
    """Return the resident sets of a process and its descendants, in bytes. Shared pages count more than once."""
    return sum(int(fields[21]) for fields in _process_tree(pid).values()) * PAGE_BYTES


def _process_tree(root: int) -> dict[int, list[str]]:
    """Return PID → `/proc/PID/stat` from the field `state` on, of a process and its descendants."""
    fields_by_pid: dict[int, list[str]] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields_by_pid[int(directory.name)] = (directory / "stat").read_text().rpartition(")")[2].split()
    pids = {root}
    while more := {pid for pid, fields in fields_by_pid.items() if int(fields[1]) in pids} - pids:
        pids |= more
    return {pid: fields_by_pid[pid] for pid in pids if pid in fields_by_pid}


@contextlib.contextmanager
def run_program(
    command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the end of the block, with its output appended to `log`; yield its process.

    At the end, stop it by SIGTERM, after 60 s or an error by SIGKILL. Raises AssertionError if it has ended before.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            list(map(str, command)), env={**os.environ, **(environment or {})}, stdout=output, stderr=output
        )
    try:
        yield process
        assert process.poll() is None, f"{command[0]} ended: {log.read_text()[-2000:]}"
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        process.kill()
        process.wait()


def wait_for_listener(port: int) -> None:
    """Block until a process listens on this TCP port of this machine by IPv4."""
    table = Path("/proc/net/tcp")
    until(lambda: any(f":{port:04X} 00000000:0000 0A" in line for line in table.read_text().splitlines()), str(port))
