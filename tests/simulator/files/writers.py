"""The writers of the simulation's logs: they write, rotate, remove and compress files, as logging handlers and
logrotate do, and know which agent alone knew of a file that is gone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from tests.simulator.faults import Chances
from tests.simulator.files.disk import Disk, is_open
from tests.simulator.files.inotify import MOST_QUEUED
from tests.simulator.kafka import Brokers
from tests.simulator.plans import Plan
from tests.simulator.program import AgentProcess
from tests.simulator.world import World

TOPIC = "t"


@dataclass(eq=False)
class Log:
    """One file's life, as its writer knows it."""

    inode: int
    lines: list[bytes] = field(default_factory=list)
    born: float = 0.0
    keeper: AgentProcess | None = None
    """The agent that ran when it was deleted, or renamed out of the pattern: from then on it alone knew of it."""
    out: bool = False
    """True once the file was deleted, or renamed out of the pattern."""
    excused: bool = False
    """True if no agent knew the file then, or if it ended before it had read all lines."""
    known: bool = False
    """True if the agent had read enough by then to recognise the file, or a copy of it."""
    there: bool = True
    """True if some file still has the bytes, compressed or not."""


class Writers:
    """Runs with the steps that concern files."""

    brokers: Brokers
    disk: Disk
    home: Path
    directory: Path
    log: Path
    """The one that is written to."""
    matching: re.Pattern[str]

    def __init__(self, plan: Plan, *, verbose: bool = False) -> None:
        self.plan = plan
        self.world = World(
            plan.seed, chances=Chances(plan.share, processes=("h1",)), given=plan.faults, verbose=verbose
        )
        self.agent: AgentProcess | None = None
        self.agents: list[AgentProcess] = []
        self.logs: dict[Path, Log] = {}
        """Files that are there, by path."""
        self.all: list[Log] = []
        self.number = self.rotations = self.harmed = 0
        self.emptied = False
        """True once any file was truncated."""

    @property
    def running(self) -> bool:
        return self.agent is not None and self.agent.running

    def _arrived(self) -> list[bytes]:
        """The lines that are in the channel."""
        from flafka.channels.kafka.records import decode_batch, format_of
        from flafka.plugins import Record

        lines: list[bytes] = []
        for entry in self.brokers.records(TOPIC, 0) if self.brokers.count(TOPIC) else ():
            format = format_of(Record(entry.offset, 0, entry.key, entry.value, entry.headers or ()))
            assert format is not None
            lines += [event.body for event in decode_batch(format, entry.value)]
        return lines

    def _out(self, log: Log) -> None:
        if not log.out:
            log.out, log.keeper = True, self.agent if self._knows(log) else None
            log.excused = log.keeper is None

    def _knows(self, log: Log) -> bool:
        """Return True if a running agent can know the file: it scanned since, or watched before."""
        if not self.running or self.agent is None or self.agent.agent is None or not self.disk.instances:
            return False
        source = self.agent.agent.sources[0].source
        return hasattr(source, "_yielded") or log.born > self.disk.instances[0].since

    def _log(self, path: Path) -> Log:
        if path not in self.logs:
            self.disk.create(path)
            self.logs[path] = Log(path.stat().st_ino, born=self.world.now)
            self.all.append(self.logs[path])
        return self.logs[path]

    def do_write(self, lines: int) -> None:
        log = self._log(self.log)
        for _ in range(lines):
            self.number += 1
            log.lines.append(b"%06d%s%06d" % (self.number, b"." * (self.number % 50), self.number))
        self.disk.append(self.log, b"".join(line + b"\n" for line in log.lines[-lines:]))

    def do_rotate(self, matching: bool) -> None:
        if self.log in self.logs:
            self.rotations += 1
            to = self.directory / (f"app.log.{self.rotations}" if matching else f"app.log.{self.rotations}.old")
            log = self.logs[to] = self.logs.pop(self.log)
            self.disk.rename(self.log, to)
            if not self.matching.fullmatch(to.name):
                self._out(log)

    def _rotated(self) -> list[Path]:
        """The oldest first."""
        return [path for path in self.logs if path != self.log]

    def _end_of(self, path: Path, *, copied: bool) -> None:
        log = self.logs.pop(path)
        log.there = copied
        self._out(log)
        self.world.log(f"{path.name} is gone")
        self.disk.unlink(path)

    def do_delete(self) -> None:
        paths = self._rotated()
        if paths:
            self._end_of(paths[0], copied=False)

    def do_remove(self) -> None:
        if self.log in self.logs:
            self._end_of(self.log, copied=False)

    def do_compress(self) -> None:
        for path in self._rotated():
            to = path.with_name(path.name + ".gz")
            self.disk.copy(path, to, pack=True)
            self._end_of(path, copied=True)

    def do_copytruncate(self) -> None:
        """Copy the log and truncate it: unread lines of an open file are lost, else the copy has them."""
        if self.log not in self.logs or self.harmed:
            return  # without the journal its present lines cannot be distinguished from its earlier ones
        self.emptied = True
        self.rotations += 1
        log = self.logs.pop(self.log)
        self.disk.copy(self.log, self.directory / f"app.log.{self.rotations}.old", pack=False)
        log.out = log.excused = True
        log.known = bool(set(self._arrived()) & set(log.lines))
        log.there = not (self.running and self.agent is not None and is_open(self.agent.process, log.inode))
        self.disk.truncate(self.log)
        self.logs[self.log] = Log(log.inode, born=log.born)
        self.all.append(self.logs[self.log])

    def do_churn(self, times: int, life: float) -> None:
        """A handler that rotates fast, with one backup."""
        for _ in range(times):
            self.do_write(3)
            self.world.sleep(life)
            self.do_rotate(True)
            for path in self._rotated()[:-1]:
                self._end_of(path, copied=False)

    def do_flood(self) -> None:
        """More names than the kernel's queue holds."""
        other = self.directory / "other"
        for _ in range(MOST_QUEUED // 2 + 10):
            self.disk.create(other)
            self.disk.unlink(other)
