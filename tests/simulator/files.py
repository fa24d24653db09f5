"""Stories of the source `taildir`: a scripted world writes, rotates and removes files beneath the real code.

The files are real ones in memory; the kernel's inotify, the process that opens files and the channel's brokers are
modelled. Between any two calls of the system the agent may be paused or killed.
"""

from __future__ import annotations

import fcntl
import gzip
import itertools
import logging
import math
import os
import random
import re
import shutil
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from greenlet import GreenletExit

from tests.simulator.kafka import Brokers
from tests.simulator.outcomes import Failure
from tests.simulator.plans import Plan, Step
from tests.simulator.program import AgentProcess, configured, logged, seeded
from tests.simulator.steps import carry_out
from tests.simulator.world import START_OF_TIME, Chances, Process, Signal, World, simulation, world

ROOM = Path("/dev/shm/flafka-simulated")
TOPIC = "t"
CONFIGURATION = """
a.sources = s
a.channels = c
a.sources.s.type = taildir
a.sources.s.filegroups = g
a.sources.s.filegroups.g = {logs}/{pattern}
a.sources.s.positionFile = {home}/positions.json
a.sources.s.batchSize = 5
a.sources.s.idleTimeout = {idle}
a.sources.s.writePosInterval = 3000
a.sources.s.channels = c
a.channels.c.type = kafka
a.channels.c.kafka.bootstrap.servers = sim:9092
a.channels.c.kafka.topic = t
a.channels.c.kafka.consumer.group.id = g
a.channels.c.partitions = 1
a.channels.c.replication = 1
"""
MODULES = (
    "plugins.shared.disk",
    *(f"sources.taildir.{name}" for name in ("copies", "files", "groups", "positions", "source", "tail", "watch")),
)
CALLS = ("open", "pread", "pwrite", "write", "ftruncate", "fdatasync", "fsync")
MOST_QUEUED = 60
CREATE, FROM, TO, DELETE, OVERFLOW = 0x100, 0x40, 0x80, 0x200, 0x4000


class System:
    """In place of `os` in the source's modules: each call may be the last one, and files are a process's own."""

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CALLS and name not in ("close", "dup", "fstat"):
            return real

        def call(*arguments: Any, **options: Any) -> Any:
            process = world().process
            if name == "fstat" and not process.alive:
                raise GreenletExit
            if name == "close":
                if arguments[0] in files_of(process):
                    files_of(process).remove(arguments[0])
                    os.close(arguments[0])
                return None
            fault = world().call(f"os.{name}") if name in CALLS else None
            if name == "pwrite" and world().random.random() < 0.3:  # it may write less than was asked
                arguments = (arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2 + 1], arguments[2])
            answer = real(*arguments, **options)
            if name in ("open", "dup"):
                files_of(process).add(answer)
            world().answered(fault)
            return answer

        return call


def files_of(process: Process) -> set[int]:
    """What that process has open; the kernel closes it when it is gone."""
    if not hasattr(process, "files"):
        process.files = set()  # type: ignore[attr-defined]

        def close() -> None:
            for fd in files_of(process):
                os.close(fd)
            files_of(process).clear()

        process.ended.append(close)
    found: set[int] = process.files  # type: ignore[attr-defined]
    return found


class Disk:
    """What the world does to files, and what the kernel says of it."""

    def __init__(self, here: World, logs: Path) -> None:
        self.world, self.logs = here, logs
        self.closed_soon = False
        self.instances: list[NamesModel] = []
        self.writes: list[WritesModel] = []
        self.cookies = itertools.count(1)

    def stamp(self, *paths: Path) -> None:
        """Times that a replay has, too."""
        when = int((START_OF_TIME + self.world.now) * 1e9)
        for path in (self.logs, *paths):
            os.utime(path, ns=(when, when))

    def say(self, mask: int, path: Path, cookie: int = 0) -> None:
        for instance in self.instances:
            instance.queue(mask, cookie, os.fsencode(path.name))

    def create(self, path: Path) -> None:
        path.touch()
        self.stamp(path)
        self.say(CREATE, path)

    def append(self, path: Path, data: bytes) -> None:
        if not path.exists():
            self.create(path)
        with path.open("ab") as file:
            file.write(data)
        self.stamp(path)
        for instance in self.writes:
            instance.wrote(str(path))

    def rename(self, path: Path, to: Path) -> Path:
        path.rename(to)
        self.stamp()
        cookie = next(self.cookies)
        self.say(FROM, path, cookie)
        self.say(TO, to, cookie)
        return to

    def unlink(self, path: Path) -> None:
        path.unlink()
        self.stamp()
        self.say(DELETE, path)

    def copy(self, path: Path, to: Path, *, pack: bool) -> None:
        self.create(to)
        to.write_bytes(gzip.compress(path.read_bytes(), mtime=0) if pack else path.read_bytes())
        self.stamp(to)


class NamesModel:
    """`Names`: the kernel's queue, and the process that reads it, which runs the real code of it."""

    def __init__(
        self, *, tell: Callable[[Any], None], overflow: Callable[[], None], ended: Callable[[str], None]
    ) -> None:
        self._tell, self._overflow, self._ended = tell, overflow, ended
        here = world()
        self.world, self.agent = here, here.process
        self.disk: Disk = here.models["disk"]
        self.events: deque[tuple[int, int, bytes]] = deque()
        self.news, self.inbox = Signal(here), Signal(here)
        self.mail: deque[list[Any]] = deque()
        self.patterns: list[str] | None = None
        self.opener: Any = None
        self.process: Process | None = None
        self.closed = False
        self.since = math.inf
        self.disk.instances.append(self)
        self.agent.ended.append(self._close)
        self._start()
        self.agent.spawn(self._receive, "taildir-names")

    def add(self, directory: str, patterns: Any) -> bool:
        new = self.patterns is None
        if new:
            self.since = self.world.now
            self.patterns = list(patterns)
            self.opener.watch(1, {directory: patterns})
            self.directory = directory
        return new

    def wait(self) -> None:
        """It has started."""

    def close(self) -> None:
        self._close()

    def _close(self) -> None:
        if not self.closed:
            self.closed = True
            self.disk.instances.remove(self)
            self._drop()
            self.inbox.fire()
            self.news.fire()

    def _drop(self) -> None:
        for _, fd in (*self.opener.waiting, *itertools.chain.from_iterable(self.mail)):
            if fd is not None:
                os.close(fd)
        self.opener.waiting.clear()
        self.mail.clear()

    def queue(self, mask: int, cookie: int, name: bytes) -> None:
        if self.patterns is None:
            return
        if len(self.events) < MOST_QUEUED:
            self.events.append((mask, cookie, name))
        elif self.events[-1][0] != OVERFLOW:
            self.events.append((OVERFLOW, 0, b""))
        self.news.fire()

    def _start(self) -> None:
        from sources.taildir.opener import Opener

        self.opener = Opener()
        if self.patterns is not None:
            self.opener.watch(1, {self.directory: self.patterns})
        self.process = Process(self.world, f"{self.agent.name}-opener")
        self.process.spawn(self._open, "main")

    def _open(self) -> None:
        from sources.taildir.opener import Event

        me = self.process
        while not self.closed:
            if not self.events:
                self.news.wait(10)
                continue
            self.world.sleep(self.world.random.choice([0.0005, 0.002, 0.01]))
            for _ in range(min(len(self.events), self.world.random.randint(1, 8))):
                mask, cookie, name = self.events.popleft()
                self.opener.handle(Event(1, mask, cookie, name))
            if self.world.random.random() < 0.5:
                self.world.sleep(0.001)
            if self.closed or self.process is not me:
                return
            self.mail.append([*self.opener.waiting])
            self.opener.waiting.clear()
            self.inbox.fire()

    def _receive(self) -> None:
        from sources.taildir.names import Named

        while not self.closed:
            if not self.mail:
                self.inbox.wait(10)
                continue
            for (kind, path, cookie, device, inode, _), fd in self.mail.popleft():
                if fd is not None:
                    files_of(self.agent).add(fd)
                if kind == "overflow":
                    self._overflow()
                else:
                    self._tell(Named(kind, path, cookie, (device, inode) if inode else None, fd))

    def kill(self) -> None:
        """It dies, with what it holds; the agent starts it again."""
        if self.closed or self.process is None:
            return
        self.process.kill()
        for _, fd in self.opener.waiting:
            if fd is not None:
                os.close(fd)
        self.opener.waiting.clear()

        def again() -> None:
            if not self.closed:
                self._start()
                self._ended("killed")

        self.world.later(0.1, lambda: self.agent.alive and self.agent.spawn(again, "restart"))


class WritesModel:
    """`_Writes`: says of writes, but not of each, unless files are closed soon.

    That a closed file was written to, nothing else tells once it is gone.
    """

    def __init__(self, tell: Callable[[str], None], overflow: Callable[[], None]) -> None:
        self.tell, self.watching = tell, False
        self.agent, self.disk = world().process, world().models["disk"]
        self.disk.writes.append(self)
        self.agent.ended.append(self.close)

    def add(self, directory: str) -> None:
        self.watching = True

    def clear(self) -> None:
        self.watching = False

    def close(self) -> None:
        if self in self.disk.writes:
            self.disk.writes.remove(self)

    def wrote(self, path: str) -> None:
        if self.watching and (self.disk.closed_soon or world().random.random() < 0.8):
            self.agent.spawn(lambda: self.tell(path), "writes")


@dataclass(eq=False)
class Log:
    """One file's life, as its writer knows it."""

    inode: int
    lines: list[bytes] = field(default_factory=list)
    born: float = 0.0
    keeper: AgentProcess | None = None
    """The agent that ran when it was deleted, or renamed out of the pattern: from then on it alone knew of it."""
    out: bool = False
    """Whether that has happened."""
    excused: bool = False
    """Whether no such agent ran, or it ended before it had read all."""
    known: bool = False
    """Whether it had read something of it by then: enough to know the file, or a copy of it, again."""
    there: bool = True
    """Whether a file has its bytes still, compressed or not."""


class FileRun:
    """One plan carried out."""

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

    def go(self) -> None:
        """Raises Failure, or what else went wrong."""
        seeded(self.plan.seed)
        level = logging.INFO if self.world.verbose else logging.WARNING
        with room() as home, patched(), simulation(self.world), logged(level):
            self.home = home
            self.directory = home / "logs"
            self.directory.mkdir()
            self.log = self.directory / "app.log"
            self.brokers = self.world.models["kafka"] = Brokers(self.world)
            self.disk = self.world.models["disk"] = Disk(self.world, self.directory)
            pattern = "app[.]log" if self.plan.seed % 2 else "app[.]log([.][0-9]+)?"
            self.matching = re.compile(pattern)
            self.disk.closed_soon = not self.plan.seed % 3
            idle = 5_000 if self.disk.closed_soon else 3_600_000
            self.spec = configured(CONFIGURATION.format(logs=self.directory, home=home, pattern=pattern, idle=idle))
            self.world.run(self._main)

    def _main(self) -> None:
        carry_out(self)
        self._end()
        self._check()

    # --- the agent

    @property
    def running(self) -> bool:
        return self.agent is not None and self.agent.running

    def do_start(self) -> None:
        if not self.running:
            agent = self.agent = AgentProcess(self.world, "h1", self.spec, feeding=False)
            self.agents.append(agent)
            agent.process.ended.append(lambda: self._ended(agent))

    def do_kill(self) -> None:
        if self.agent is not None:
            self.agent.process.kill()

    def do_stop(self) -> None:
        if self.running and self.agent is not None:
            self.agent.stop()
            while self.running:
                self.world.sleep(0.5)
            self._ended(self.agent)

    def _ended(self, agent: AgentProcess) -> None:
        """What only it knew of, nobody knows any more."""
        seen = set(self._arrived())
        for log in self.all:
            if not log.out:
                log.known = log.known or bool(seen & set(log.lines))
            elif log.keeper is agent and not seen >= set(log.lines):
                log.excused, log.known = True, bool(seen & set(log.lines))

    def _out(self, log: Log) -> None:
        if not log.out:
            log.out, log.keeper = True, self.agent if self._knows(log) else None
            log.excused = log.keeper is None

    def _knows(self, log: Log) -> bool:
        """Whether an agent runs that can know of it: one that has looked since, or had begun to watch before."""
        if not self.running or self.agent is None or self.agent.agent is None or not self.disk.instances:
            return False
        source = self.agent.agent.sources[0].source
        return hasattr(source, "_unwritable") or log.born > self.disk.instances[0].since

    def do_pause(self, seconds: float) -> None:
        if self.running and self.agent is not None:
            self.agent.process.pause(seconds)

    def do_kill_opener(self) -> None:
        for instance in [*self.disk.instances]:
            instance.kill()

    def do_damage(self, how: str, where: float) -> None:
        """To the journal, while nobody runs; a backup's or a disk's doing."""
        journal = self.home / "positions.json.journal"
        if self.running or not journal.exists() or not journal.stat().st_size:
            return
        self.harmed += 1
        lines = journal.read_bytes().splitlines(keepends=True)
        if len(lines) < 2:
            return  # without its first line it is refused with a sentence
        place = min(1 + int(where * (len(lines) - 1)), len(lines) - 1)
        line = bytearray(lines[place])
        if how == "flip":
            digit = line.find(b'"pos":') + 6
            line[max(digit, 0)] ^= 1
            lines[place] = bytes(line)
        elif how == "torn":
            lines[-1] = lines[-1][: int(where * len(lines[-1]))]
        elif how == "short":
            del lines[place:]
        else:
            lines.clear()
        journal.write_bytes(b"".join(lines))

    # --- the writers

    def _log(self, path: Path) -> Log:
        if path not in self.logs:
            self.disk.create(path)
            self.logs[path] = Log(path.stat().st_ino, born=self.world.now)
            self.all.append(self.logs[path])
        return self.logs[path]

    def do_write(self, count: int) -> None:
        log = self._log(self.log)
        for _ in range(count):
            self.number += 1
            log.lines.append(b"%06d%s%06d" % (self.number, b"." * (self.number % 50), self.number))
        self.disk.append(self.log, b"".join(line + b"\n" for line in log.lines[-count:]))

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
        self.world.told(f"{path.name} is gone")
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

    def do_churn(self, count: int, life: float) -> None:
        """A handler that rotates fast, with one backup."""
        for _ in range(count):
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

    # --- the end

    def _end(self) -> None:
        self.world.told("--- nothing goes wrong any more")
        self.world.quiet = True
        self.world.sleep(90)
        self.do_start()
        before, since = -1, self.world.now
        while self.world.now < since + 20:
            self.world.sleep(5)
            if (now := len(self.brokers.records(TOPIC, 0)) if self.brokers.count(TOPIC) else 0) != before:
                before, since = now, self.world.now
        assert self.agent is not None
        self.agent.stop()
        deadline = self.world.now + 300
        while self.agent.running:
            if self.world.now > deadline:
                raise Failure("the agent does not stop")
            self.world.sleep(2)

    def _arrived(self) -> list[bytes]:
        from channels.kafka.records import format_of
        from plugins import Batch, Record

        found: list[bytes] = []
        for entry in self.brokers.records(TOPIC, 0) if self.brokers.count(TOPIC) else ():
            assert format_of(Record(entry.offset, 0, entry.key, entry.value, entry.headers or ())) is not None
            found += Batch.from_ipc(entry.value).bodies.to_pylist()
        return found

    def _check(self) -> None:
        arrived = self._arrived()
        seen = set(arrived)
        if strange := seen - {line for log in self.all for line in log.lines}:
            raise Failure(f"never written: {sorted(strange)[:3]}")
        lost, silent = 0, []
        for log in self.all:
            order = list(dict.fromkeys(line for line in arrived if line in set(log.lines)))
            if order != sorted(order):
                raise Failure(f"lines of one file came in another order: {[line[:6] for line in order]}")
            missing = [line[:6] for line in log.lines if line not in seen]
            if not missing:
                continue
            lost += 1
            if not log.out:
                raise Failure(f"{missing[0]!r} and {len(missing) - 1} others are lost, and their file is there")
            if not log.excused:
                silent.append(missing)
            elif log.there and log.known and not self.harmed:
                raise Failure(f"{missing[0]!r} and {len(missing) - 1} others are lost, and known bytes precede them")
        missed = self._metric("FileMissedCount")
        dropped = self._metric("WatchOverflowCount") + self._metric("WatchRestartCount")
        told = missed + sum("was not found again" in line for line in self.world.story)
        if len(silent) > told and not dropped:
            raise Failure(f"{len(silent)} files are lost, of which {told} were told of: {silent[:3]}")
        if missed > lost and not dropped:
            raise Failure(f"{missed} files were told of as missed, and {lost} are")
        twice = [line for line, count in Counter(arrived).items() if count > 1]
        if twice and not self.harmed and not self.world.faults and not self._interrupted():
            raise Failure(f"{len(twice)} lines came twice, without a reason")

    def _interrupted(self) -> bool:
        return any(step.what in ("kill", "pause", "kill-opener") for step in self.plan.steps)

    def _metric(self, name: str) -> int:
        runs = [agent.agent for agent in self.agents if agent.agent is not None]
        return sum(int(run.sources[0].source.metrics.get(name)) for run in runs)


@contextmanager
def room() -> Iterator[Path]:
    """An empty directory, of one name wherever no other simulation has it: names decide the order of sets."""
    for number in itertools.count():
        home = ROOM.with_name(f"{ROOM.name}-{number}")
        home.mkdir(exist_ok=True)
        lock = os.open(home, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        try:
            shutil.rmtree(home / "run", ignore_errors=True)
            (home / "run").mkdir()
            yield home / "run"
        finally:
            shutil.rmtree(home / "run", ignore_errors=True)
            os.close(lock)
        return


@contextmanager
def patched() -> Iterator[None]:
    """The source's modules on the models."""
    from sources.taildir import tail

    changed: list[tuple[Any, str, Any]] = []

    def change(place: Any, name: str, value: Any) -> None:
        changed.append((place, name, getattr(place, name)))
        setattr(place, name, value)

    system = System()
    for name in MODULES:
        module = sys.modules[name]
        if "os" in vars(module):
            change(module, "os", system)
    watch = sys.modules["sources.taildir.watch"]
    change(watch, "Names", NamesModel)
    change(watch, "_Writes", WritesModel)
    change(tail, "_ids", itertools.count(1))
    change(tail.Tail, "__hash__", lambda self: self.id)
    try:
        yield
    finally:
        for place, name, value in reversed(changed):
            setattr(place, name, value)


class FilePlan(Plan):
    """What a run of the source `taildir` does."""

    def run(self, *, verbose: bool = False) -> Any:
        """Not yet begun."""
        return FileRun(self, verbose=verbose)


def plan_of(seed: int) -> FilePlan:
    """The one of that seed."""
    chance = random.Random(seed)
    steps = [Step(0, "write", (3,)), Step(0, "start"), Step(2, "write", (4,))]
    kinds = {
        "write": 8,
        "rotate": 5,
        "compress": 3,
        "delete": 2,
        "remove": 1,
        "churn": 3,
        "flood": 1,
        "kill": 2,
        "stop": 1,
        "start": 4,
        "pause": 1,
        "kill-opener": 1,
        "damage": 2,
    }
    for _ in range(chance.randint(4, 16)):
        what = chance.choices(list(kinds), list(kinds.values()))[0]
        after = chance.choice([0.0, 0.002, 0.05, 0.5, 3.0, 12.0])
        arguments: tuple[Any, ...] = {
            "write": (chance.randint(1, 12),),
            "rotate": (chance.random() < 0.6,),
            "churn": (chance.randint(2, 12), chance.choice([0.01, 0.03, 0.1])),
            "pause": (chance.choice([0.5, 20.0]),),
            "damage": (chance.choice(["flip", "torn", "short", "empty"]), chance.random()),
        }.get(what, ())
        steps.append(Step(after, what, arguments))
    return FilePlan(seed, "taildir", steps, share=chance.choice([0.0, 0.001, 0.005]))
