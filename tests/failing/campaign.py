"""Points at which one operation of an agent fails, and the events that are sent then.

The agent has the sources `http`, `netcat`, `avro` and `taildir`, whose clients get acknowledgements. A channel `file`
stands before each of two sinks: `file_roll`, and `hdfs` on a local directory. After each point, 10 events are sent as
their clients send them, with retries until they are acknowledged. Each event is in both stores in the end; while one
is not, `/healthz` names a component.
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

from flafka.agent.services import ServiceError
from flafka.agent.services.running import RunningAgent
from flafka.plugins import Event
from flafka.plugins.wire.avrorpc import AvroStatus
from tests.failing.operations import KINDS, Page
from tests.sources.calling import Client as AvroClient

TIMEOUT_SECONDS = 60.0
"""Longest time until all events of a point are stored: the longest wait between two attempts is 30 s."""
SILENT_SECONDS = 20.0
"""Longest time for which events may be missing while `/healthz` names no component."""
CALLS = {
    "start": {"open": 350, "write": 45, "fork": 20, "map": 8},
    "load": {"open": 60, "write": 50, "fork": 1, "map": 2},
}
"""Calls of each kind among which the failing one is drawn: about as many as are made until 10 events are stored."""
WEIGHTS = {"start": (1, 1, 1, 1), "load": (4, 4, 1, 1)}
"""Weight of each kind in the draw: under load an agent starts few threads and maps little memory."""
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
    """Call that has failed; empty if fewer calls were made."""
    named: dict[str, str] = field(default_factory=dict)
    """Components that `/healthz` named until all events were stored."""
    seconds: float = 0.0
    fault: str = ""
    """Broken guarantee; empty where there is none."""

    @property
    def events(self) -> list[bytes]:
        """Bodies of the events that are sent after the failure."""
        return [b"event %d-%d" % (self.number, number) for number in range(10)]

    def __str__(self) -> str:
        outcome = self.fault or (f"named {self.named}" if self.named else "all stored")
        return f"{self.number} {self.moment} {self.kind} {self.nth} [{self.call}] {self.seconds:.1f} s: {outcome}"


class Stores:
    """Events that both sinks have written."""

    def __init__(self, directory: Path) -> None:
        self._roots = {"k1": directory / "rolled", "k2": directory / "hdfs"}
        self.counts: dict[str, Counter[bytes]] = {name: Counter() for name in self._roots}
        self._offsets: dict[Path, int] = {}

    def read_new(self) -> None:
        """Read the new files, without hidden ones, which sinks create for themselves and delete."""
        for name, root in self._roots.items():
            for file in [path for path in root.iterdir() if path.is_file() and not path.name.startswith(".")]:
                with file.open("rb") as opened:
                    opened.seek(self._offsets.get(file, 0))
                    new = opened.read()
                complete = new[: new.rfind(b"\n") + 1]
                self._offsets[file] = self._offsets.get(file, 0) + len(complete)
                self.counts[name].update(_EVENT.findall(complete))

    def missing(self, events: list[bytes]) -> dict[str, list[bytes]]:
        """Return the missing events of each sink, of those sinks that lack any."""
        self.read_new()
        lacking = {name: [event for event in events if event not in counts] for name, counts in self.counts.items()}
        return {name: absent for name, absent in lacking.items() if absent}

    def repeated(self) -> int:
        """Return how many events were written more than once."""
        return sum(count - 1 for counts in self.counts.values() for count in counts.values())


class Client:
    """Client that sends events until they are acknowledged."""

    def __init__(self, agent: RunningAgent) -> None:
        self._agent = agent

    def requests(self, events: list[bytes]) -> list[tuple[Callable[[list[bytes]], bool], list[bytes]]]:
        """Return functions that send, with the events of each; a function returns True once they are acknowledged."""
        return [(self._http, events[:3]), (self._netcat, events[3:5]), (self._avro, events[5:])]

    def _port(self, source: str) -> int:
        ports = re.findall(rf"\.{source}: listening on \S+ port (\d+)", self._agent.log)
        return int(ports[-1]) if ports else 0

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
                return bool(client.append(*map(Event, events)) == AvroStatus.OK)
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
        self.refusals: list[str] = []
        """Last lines of the logs of agents that did not start, and were started again."""
        self.unclean: list[str] = []
        """Ends of the logs of agents whose stop was incomplete."""

    def run(self, starts: int, loads: int, per_agent: int) -> None:
        """Try points until so many calls have failed at the start and under load, `per_agent` with one process.

        A point whose number is higher than that of the calls made counts for nothing.
        """
        for _ in range(3 * (starts + loads)):
            left_starts, left_loads = starts - self.failed("start"), loads - self.failed("load")
            if left_starts <= 0 and left_loads <= 0:
                break
            share = -(-left_loads // max(1, left_starts))
            self._run_agent(left_starts > 0, max(0, min(per_agent, share)))

    def failed(self, moment: str) -> int:
        """Return the number of calls that have failed at a moment: `start` or `load`."""
        return sum(bool(point.call) for point in self.points if point.moment == moment)

    def _run_agent(self, start: bool, loads: int) -> None:
        point = self._point("start") if start else None
        with contextlib.ExitStack() as stack:
            agent = stack.enter_context(self._agent(point))
            if point is not None:
                self._observe(point, agent)
                if self._is_refusal(agent):
                    self.refusals.append(agent.log.splitlines()[-1])
                    point.fault = ""
                    agent = stack.enter_context(self._agent(None))  # as systemd restarts it
                    self._await(point, agent)
            broken = point is not None and bool(point.fault)
            if not broken:
                agent.until(lambda: " runs: " in agent.log, "the agent to run")
            while loads > 0 and not broken:
                loads -= 1
                point = self._point("load")
                self._page.arm(point.kind, point.nth)
                self._observe(point, agent)
                broken = bool(point.fault)
            self._page.disarm()
            if agent.process.poll() is None:
                if not broken:
                    agent.wait_until_healthy()
                agent.process.terminate()
                if agent.wait_for_exit(60) != 0:
                    self.unclean.append(agent.log[-500:])

    def _agent(self, point: Point | None) -> RunningAgent:
        text = CONFIGURATION.format(directory=self._directory)
        agent = RunningAgent(self._directory, text, environment=self._page.environment)
        self._page.reset(str(agent.file))
        if point is not None:
            self._page.arm(point.kind, point.nth)
        return agent

    @staticmethod
    def _is_refusal(agent: RunningAgent) -> bool:
        """Return True where a start has ended with a sentence and an exit code, before it took any event."""
        return agent.process.poll() in (1, 2) and " runs: " not in agent.log and "Traceback" not in agent.log

    def _point(self, moment: str) -> Point:
        (kind,) = self._draw.choices(KINDS, WEIGHTS[moment])
        point = Point(len(self.points), kind, self._draw.randint(1, CALLS[moment][kind]), moment)
        self.points.append(point)
        return point

    def _observe(self, point: Point, agent: RunningAgent) -> None:
        """Send the events of a point, and wait until both stores have them."""
        self._sent += point.events
        with (self._directory / "logs" / "a.log").open("ab") as log:
            log.write(b"".join(event + b"\n" for event in point.events[:3]))
        self._await(point, agent)
        point.call = self._page.fired
        self._page.disarm()

    def _await(self, point: Point, agent: RunningAgent) -> None:
        with contextlib.suppress(ServiceError):  # it has ended
            agent.until(lambda: " runs: " in agent.log, "the agent to run")
        began = time.monotonic()
        client = Client(agent)
        unsent = client.requests(point.events[3:])
        while unsent or self._stores.missing(point.events):
            waited = time.monotonic() - began
            if agent.process.poll() is not None:
                point.fault = f"the agent ended with {agent.process.poll()}"
                break
            if waited > TIMEOUT_SECONDS or (waited > SILENT_SECONDS and not point.named):
                unacknowledged = [event for _, events in unsent for event in events]
                point.fault = f"not acknowledged: {unacknowledged}; not stored: {self._stores.missing(point.events)}"
                break
            unsent = [(send, events) for send, events in unsent if not send(events)]
            if self._stores.missing(point.events):
                with contextlib.suppress(ValueError):
                    point.named |= json.loads(agent.get("/healthz")[1])["failing"]
                time.sleep(0.02)
        point.seconds += time.monotonic() - began

    def lost(self) -> dict[str, list[bytes]]:
        """Return the events of all points that a sink has not written, by sink."""
        return self._stores.missing(self._sent)

    def broken_points(self) -> list[str]:
        """Return the points with a broken guarantee."""
        return [str(point) for point in self.points if point.fault]

    def figures(self) -> str:
        """Describe the campaign in one line."""
        fired = Counter(f"{point.moment} {point.kind}" for point in self.points if point.call)
        named = sum(bool(point.named) for point in self.points)
        return (
            f"{sum(fired.values())} calls failed at {len(self.points)} points ({dict(sorted(fired.items()))}); "
            f"{named} named by /healthz, {len(self.refusals)} starts refused, "
            f"{len(self.broken_points())} broken guarantees, "
            f"{len(self.unclean)} unclean stops, "
            f"{len(self._sent)} events sent, {self._stores.repeated()} written twice"
        )
