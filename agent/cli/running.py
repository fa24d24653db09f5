"""The agents that run on this machine already, as their command lines tell."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import click

from flafka.agent.cli.configured import Chosen
from flafka.plugins import PortOccupied


def running_agents(chosen: Chosen, name: str) -> list[int]:
    """The pids of processes `agent start` with these files and that agent: this user's, or as root anyone's."""
    files = [file.resolve() for file in (chosen.file, *chosen.more)]
    return [pid for pid, there, agent in _started() if there == files and agent in (None, name)]


def held_by(pid: int, taken: PortOccupied) -> bool:
    """Return True if that process listens on the port."""
    from flafka.agent.services.process import listeners, open_files

    return bool(listeners(udp=taken.udp).get(taken.port, set()) & open_files(pid))


def _started() -> Iterator[tuple[int, list[Path], str | None]]:
    """Pid, configuration files and `--name` of each process `agent start`."""
    from flafka.agent.cli.start import start

    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="surrogateescape").split("\0")[:-1]
            if not _is_start(words):
                continue
            directory = (process / "cwd").readlink()
        except OSError:  # it has ended, or is another user's
            continue
        arguments = words[words.index("start") + 1 :]
        try:
            given = start.make_context("start", arguments, resilient_parsing=True).params
        except click.ClickException:
            continue
        files = given["conf_file"] or ((given["conf"],) if given["conf"] else ())
        yield int(process.name), [(directory / file).resolve() for file in files], given["name"]


def _is_start(words: list[str]) -> bool:
    """Return True for the words of `agent start` or `python -m flafka start`."""
    before = words[: words.index("start")] if "start" in words else []
    return any(Path(word).name == "agent" for word in before) or ("-m", "flafka") in itertools.pairwise(before)
