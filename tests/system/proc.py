"""Processes of this host from /proc: by environment, by parent, by command."""

from contextlib import suppress
from pathlib import Path


def marked(variable: str, value: str) -> list[int]:
    """Return the ids of all processes with that variable in their environment."""
    mark = f"{variable}={value}".encode()
    pids = []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (directory / "environ").read_bytes().split(b"\0"):
                pids.append(int(directory.name))
    return pids


def family_of(pid: int) -> set[int]:
    """Return that process and all its descendants."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    family = {pid}
    while children := {child for child, parent in parents.items() if parent in family} - family:
        family |= children
    return family


def command_of(pid: int) -> str:
    """Return the command line; empty for a process that has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""
