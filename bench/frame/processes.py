"""What processes take: time of the processor and memory, descendants included, and programs that run meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from flafka.agent.services.running import until

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """User and system time so far, of what has ended below it too."""
    return sum(sum(map(int, fields[11:15])) for fields in _family(pid)) / TICK


def resident(pid: int) -> int:
    """Bytes of memory that they take now; what they share counts more than once."""
    return sum(int(fields[21]) for fields in _family(pid)) * PAGE


def _family(root: int) -> list[list[str]]:
    """`/proc/PID/stat` of a process and its descendants, from the field `state` on."""
    everybody: dict[int, list[str]] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            everybody[int(directory.name)] = (directory / "stat").read_text().rpartition(")")[2].split()
    family = {root}
    while more := {pid for pid, fields in everybody.items() if int(fields[1]) in family} - family:
        family |= more
    return [everybody[pid] for pid in family if pid in everybody]


@contextlib.contextmanager
def program(
    command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A program until the end of the block, with what it says in a file; then it is told to end."""
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


def listening(port: int) -> None:
    """Wait until somebody listens on this port of this machine."""
    table = Path("/proc/net/tcp")
    until(lambda: any(f":{port:04X} 00000000:0000 0A" in line for line in table.read_text().splitlines()), str(port))
