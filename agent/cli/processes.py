"""Running agents of this host, found by their command lines in /proc."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import click

from flafka.agent.cli.configuration import ChosenConfiguration
from flafka.plugins import PortOccupied


def find_running_agents(chosen: ChosenConfiguration, name: str) -> list[int]:
    """Return the pids of `agent start` with these configuration files, for this agent or without a name.

    Only processes of this user are found, and as root of all users.
    """
    files = [file.resolve() for file in (chosen.file, *chosen.more)]
    return [pid for pid, its_files, agent in _started_agents() if its_files == files and agent in (None, name)]


def is_listening(pid: int, occupied: PortOccupied) -> bool:
    """Return True if this process listens on the port. False also if the process is not readable."""
    from flafka.agent.services.process import listeners, open_files

    return bool(listeners(udp=occupied.udp).get(occupied.port, set()) & open_files(pid))


def _started_agents() -> Iterator[tuple[int, list[Path], str | None]]:
    """Yield pid, configuration files and `--name` of each process `agent start`."""
    from flafka.agent.cli.start import start

    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="surrogateescape").split("\0")[:-1]
            if not _is_start(words):
                continue
            directory = (process / "cwd").readlink()
        except OSError:  # the process has ended or belongs to another user
            continue
        arguments = words[words.index("start") + 1 :]
        try:
            options = start.make_context("start", arguments, resilient_parsing=True).params
        except click.ClickException:
            continue
        files = options["conf_file"] or ((options["conf"],) if options["conf"] else ())
        yield int(process.name), [(directory / file).resolve() for file in files], options["name"]


def _is_start(words: list[str]) -> bool:
    """Return True for the words of `agent start` or `python -m flafka start`."""
    before = words[: words.index("start")] if "start" in words else []
    return any(Path(word).name == "agent" for word in before) or ("-m", "flafka") in itertools.pairwise(before)
