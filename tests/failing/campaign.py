"""Points at which one operation of an agent fails, and what becomes of the events that are sent then.

The agent has sources whose clients learn what is stored (`http`, `netcat`, `avro`, `taildir`), a channel `file` for
each of two sinks, and the sinks `file_roll` and `hdfs` on a local directory. After each point, 10 events are sent as
their clients send them: again, until they are acknowledged. Each event is in both stores in the end; while one is
not, `/healthz` names a component.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import re
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from agent.services.running import RunningAgent
from plugins import Event
from plugins.shared.avrorpc import Status
from tests.failing.operations import KINDS, Page
from tests.sources.calling import Client as AvroClient

PATIENCE_SECONDS = 40.0
"""Longest time until all events of a point are stored: the longest wait between two attempts is 30 s."""
CALLS = {"start": {"open": 350, "write": 50, "fork": 24, "map": 8}, "load": {"open": 60, "write": 50, "fork": 3, "map": 3}}
"""Calls of each kind among which the failing one is drawn: about as many as are made until 10 events are stored."""
_EVENT = re.compile(rb"event \d+-\d+")

CONFIGURATION = """
a1.sources = web lines tail rpc
a1.channels = c1 c2
a1.sinks = k1 k2
a1.sources.web.type = http
a1.sources.web.bind = 127.0.0.1
a1.sources.web.port = 0
a1.sources.lines.type = netcat
a1.sources.lines.bind = 127.0.0.1
a1.sources.lines.port = 0
a1.sources.tail.type = taildir
a1.sources.tail.filegroups = g
a1.sources.tail.filegroups.g = {directory}/logs/.*log
a1.sources.tail.positionFile = {directory}/positions.json
a1.sources.rpc.type = avro
a1.sources.rpc.bind = 127.0.0.1
a1.sources.rpc.port = 0
a1.sources.web.channels = c1 c2
a1.sources.lines.channels = c1 c2
a1.sources.tail.channels = c1 c2
a1.sources.rpc.channels = c1 c2
a1.sources.web.interceptors = i1 i2
a1.sources.web.interceptors.i1.type = timestamp
a1.sources.web.interceptors.i2.type = host
a1.channels.c1.type = file
a1.channels.c1.checkpointDir = {directory}/c1/checkpoint
a1.channels.c1.dataDirs = {directory}/c1/data
a1.channels.c1.minimumRequiredSpace = 1048576
a1.channels.c2.type = file
a1.channels.c2.checkpointDir = {directory}/c2/checkpoint
a1.channels.c2.dataDirs = {directory}/c2/data
a1.channels.c2.minimumRequiredSpace = 1048576
a1.sinks.k1.type = file_roll
a1.sinks.k1.channel = c1
a1.sinks.k1.sink.directory = {directory}/rolled
a1.sinks.k1.sink.rollInterval = 20
a1.sinks.k2.type = hdfs
a1.sinks.k2.channel = c2
a1.sinks.k2.hdfs.path = file://{directory}/hdfs
a1.sinks.k2.hdfs.fileType = DataStream
a1.sinks.k2.hdfs.rollInterval = 1
a1.sinks.k2.hdfs.rollSize = 0
a1.sinks.k2.hdfs.rollCount = 10
"""


@dataclass
class Point:
    """One failure and what came of it."""

    number: int
    kind: str
    nth: int
    moment: str
    """`start` or `load`."""
    call: str = ""
    """The call that has failed; empty where so many were not made."""
    named: dict[str, str] = field(default_factory=dict)
    """Components that `/healthz` named until all events were stored."""
    seconds: float = 0.0
    calls: dict[str, int] = field(default_factory=dict)
    wrong: str = ""
    """Broken guarantee; empty where there is none."""

    def __str__(self) -> str:
        found = self.wrong or (f"named {self.named}" if self.named else "all stored")
        return f"{self.number} {self.moment} {self.kind} {self.nth} [{self.call}] {self.seconds:.1f} s: {found}"


class Stores:
    """What both sinks have written."""

    def __init__(self, directory: Path) -> None:
        self._roots = {"k1": directory / "rolled", "k2": directory / "hdfs"}
        self.counts: dict[str, Counter[bytes]] = {name: Counter() for name in self._roots}
        self._offsets: dict[Path, int] = {}

    def look(self) -> None:
        """Read what has come."""
        for name, root in self._roots.items():
            for file in [path for path in root.iterdir() if path.is_file()]:
                with file.open("rb") as opened:
                    opened.seek(self._offsets.get(file, 0))
                    new = opened.read()
                whole = new[: new.rfind(b"\n") + 1]
                self._offsets[file] = self._offsets.get(file, 0) + len(whole)
                self.counts[name].update(_EVENT.findall(whole))

    def missing(self, events: list[bytes]) -> dict[str, list[bytes]]:
        """Return what of these events each sink has not written, of those sinks that lack any."""
        self.look()
        lacking = {name: [one for one in events if one not in counts] for name, counts in self.counts.items()}
        return {name: ones for name, ones in lacking.items() if ones}

    def repeated(self) -> int:
        """Return how many events were written more than once."""
        return sum(count - 1 for counts in self.counts.values() for count in counts.values())


class Client:
    """Sends events until they are acknowledged."""

    def __init__(self, agent: RunningAgent, log: Path) -> None:
        self._agent, self._log = agent, log

    def begin(self, events: list[bytes]) -> list[tuple[Callable[[list[bytes]], bool], list[bytes]]]:
        """Append the first three to the log file; return the others with what sends them."""
        with self._log.open("ab") as log:
            log.write(b"".join(event + b"\n" for event in events[:3]))
        return [(self._http, events[3:6]), (self._netcat, events[6:8]), (self._avro, events[8:])]

    def _port(self, source: str) -> int:
        found = re.findall(rf"\.{source}: listening on \S+ port (\d+)", self._agent.log)
        return int(found[-1]) if found else 0

    def _http(self, events: list[bytes]) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port("web"), timeout=5)
        try:
            body = json.dumps([{"headers": {}, "body": event.decode()} for event in events])
            connection.request("POST", "/", body)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _netcat(self, events: list[bytes]) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port("lines")), timeout=5) as connection:
                connection.sendall(b"".join(event + b"\n" for event in events))
                answered = b""
                while answered.count(b"OK\n") < len(events):
                    more = connection.recv(100)
                    if not more:
                        return False
                    answered += more
                return True
        except OSError:
            return False

    def _avro(self, events: list[bytes]) -> bool:
        running = SimpleNamespace(source=SimpleNamespace(port=self._port("rpc")))
        try:
            with AvroClient(running) as client:
                return bool(client.append(*map(Event, events)) == Status.OK)
        except (OSError, AssertionError):
            return False


class Campaign:
    """Points drawn by a seed, at the starts of agents and under load."""

    def __init__(self, directory: Path, library: Path, seed: int) -> None:
        self._directory, self._draw = directory, random.Random(seed)
        for name in ("logs", "rolled", "hdfs"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        self._page = Page(directory / "page", library)
        self._stores = Stores(directory)
        self._sent: list[bytes] = []
        self.points: list[Point] = []
        self.unclean: list[str] = []
        """Ends of the logs of agents whose stop left something undone."""

    def run(self, starts: int, loads: int, per_agent: int) -> None:
        """Try so many points at the start and under load, at most `per_agent` under load with one process."""
        while starts > 0 or loads > 0:
            share = -(-loads // max(1, starts))
            loads -= self._run_agent(starts > 0, min(per_agent, share))
            starts -= 1

    def _run_agent(self, start: bool, loads: int) -> int:
        """Return how many points under load were tried: fewer after a broken guarantee."""
        tried = 0
        agent = RunningAgent(
            self._directory, CONFIGURATION.format(directory=self._directory), environment=self._page.environment
        )
        self._page.reset(str(agent.file))
        point = self._point("start") if start else None
        if point is not None:
            self._page.arm(point.kind, point.nth)
        with agent:
            if point is not None:
                self._observe(point, agent)
            for _ in range(loads):
                if agent.process.poll() is not None or self.points and self.points[-1].wrong:
                    break
                point = self._point("load")
                self._page.arm(point.kind, point.nth)
                self._observe(point, agent)
                tried += 1
            self._page.disarm()
            if agent.process.poll() is None:
                agent.process.terminate()
                if agent.ended(60) != 0:
                    self.unclean.append(agent.log[-500:])
        return max(tried, 1)

    def _point(self, moment: str) -> Point:
        kind = self._draw.choice(KINDS)
        point = Point(len(self.points), kind, self._draw.randint(1, CALLS[moment][kind]), moment)
        self.points.append(point)
        return point

    def _observe(self, point: Point, agent: RunningAgent) -> None:
        began = time.monotonic()
        events = [b"event %d-%d" % (point.number, number) for number in range(10)]
        self._sent += events
        unsent = Client(agent, self._directory / "logs" / "a.log").begin(events)
        answered = 0
        while unsent or self._stores.missing(events):
            if agent.process.poll() is not None:
                point.wrong = f"the agent ended with {agent.process.poll()}"
                break
            if time.monotonic() > began + PATIENCE_SECONDS:
                lacking = self._stores.missing(events)
                point.wrong = f"unsent: {[ones for _, ones in unsent]}; missing: {lacking}; named {point.named}"
                break
            unsent = [(send, ones) for send, ones in unsent if not send(ones)]
            if self._stores.missing(events):
                status, body = agent.get("/healthz")
                if status:
                    answered += 1
                    with contextlib.suppress(ValueError):
                        point.named |= json.loads(body)["failing"]
                time.sleep(0.02)
        point.call, point.seconds, point.calls = self._page.fired, time.monotonic() - began, self._page.calls()
        self._page.disarm()

    def lost(self) -> dict[str, list[bytes]]:
        """Return events of all points that a sink has not written."""
        return self._stores.missing(self._sent)

    def wrong(self) -> list[str]:
        """Return the points with a broken guarantee."""
        return [str(point) for point in self.points if point.wrong]

    def figures(self) -> str:
        """Describe the campaign in one line."""
        fired = Counter(f"{point.moment} {point.kind}" for point in self.points if point.call)
        named = sum(bool(point.named) for point in self.points)
        return (
            f"{len(self.points)} points, {sum(fired.values())} of which failed a call ({dict(sorted(fired.items()))}); "
            f"{named} named by /healthz, {len(self.wrong())} broken guarantees, {len(self.unclean)} unclean stops, "
            f"{len(self._sent)} events sent, {self._stores.repeated()} written twice"
        )
