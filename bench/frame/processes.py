"""CPU time and memory of process trees, and programs that run during a benchmark."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from flafka.agent.services.running import until

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process and its descendants, including ended ones, in seconds."""
    return sum(sum(map(int, fields[11:15])) for fields in _process_tree(pid)) / TICKS_PER_SECOND


def resident_bytes(pid: int) -> int:
    """Return the resident sets of a process and its descendants, in bytes. Shared pages count more than once."""
    return sum(int(fields[21]) for fields in _process_tree(pid)) * PAGE_BYTES


def _process_tree(root: int) -> list[list[str]]:
    """Return `/proc/PID/stat` of a process and its descendants, from the field `state` on."""
    fields_by_pid: dict[int, list[str]] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields_by_pid[int(directory.name)] = (directory / "stat").read_text().rpartition(")")[2].split()
    pids = {root}
    while more := {pid for pid, fields in fields_by_pid.items() if int(fields[1]) in pids} - pids:
        pids |= more
    return [fields_by_pid[pid] for pid in pids if pid in fields_by_pid]


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
