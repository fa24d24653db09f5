"""Run of a real file: its agent starts with the file, its sources are sent events, and its sinks' outputs are
checked.

Only values of the machine that a file was written for are replaced: addresses, paths and topics. The replacing lines
follow the file's own, as the last one counts, as in Flume. Everything else is unchanged.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from flafka.agent.services import ServiceError
from flafka.agent.services.hbase import HBaseCluster
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent, until
from flafka.agent.topology import AgentSpec, ComponentSpec, SourceSpec
from tests.conformance import real_files
from tests.conformance.arrival_parts import CHANNELS, SINKS, SOURCES
from tests.fixtures.opensearch import OpenSearchCluster

EVENTS = 1100
"""Events of each kind of line: more than most channels hold."""
WHOLE = {"file_roll", "hdfs", "kafka"}
"""Sinks that write a line unchanged: `logger` shows its beginning, others write it as JSON."""
LINES: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
"""By file and channels: the sent lines, where not every line goes to every channel of its source."""

ID = re.compile(rb"[0-9a-f]{8}-[a-z]\d{4}")


class Servers(Protocol):
    """Real servers that all files share."""

    @property
    def kafka(self) -> KafkaCluster: ...
    @property
    def hdfs(self) -> HdfsCluster: ...
    @property
    def hbase(self) -> HBaseCluster: ...
    @property
    def opensearch(self) -> OpenSearchCluster: ...
    @property
    def collector(self) -> Collector: ...


class Agent(Protocol):
    """Agent that runs a file: ours, or Flume's."""

    @property
    def log(self) -> str: ...
    def metrics(self) -> dict[str, dict[str, str]]: ...
    def count(self, component: str, counter: str) -> int: ...
    def port(self, source: str) -> int: ...
    def until(self, condition: Callable[[], Any], what: str) -> None: ...
    def stop(self) -> int: ...


@dataclass(frozen=True)
class Collector:
    """Agent at the other end of Avro sinks."""

    plain: int
    deflate: int
    """Ports: without compression, and with it."""
    directory: Path

    @classmethod
    @contextlib.contextmanager
    def started(cls, home: Path) -> Iterator[Collector]:
        """Run it until the end of the block."""
        directory = home / "arrived"
        directory.mkdir(parents=True)
        text = f"""
            c.sources = plain deflate
            c.channels = m
            c.sinks = files
            c.sources.plain.type = avro
            c.sources.plain.bind = 127.0.0.1
            c.sources.plain.port = 0
            c.sources.plain.channels = m
            c.sources.deflate.type = avro
            c.sources.deflate.bind = 127.0.0.1
            c.sources.deflate.port = 0
            c.sources.deflate.compression-type = deflate
            c.sources.deflate.channels = m
            c.channels.m.type = memory
            c.sinks.files.type = file_roll
            c.sinks.files.channel = m
            c.sinks.files.sink.directory = {directory}
        """
        with RunningAgent(home, text) as agent:
            yield cls(agent.port("plain"), agent.port("deflate"), directory)


@dataclass
class Run:
    """One agent of one file on this machine: the events for its sources, and the outputs where they are to arrive."""

    id: str
    text: str
    """Configuration file."""
    spec: AgentSpec
    home: Path
    """Directory for all paths of the file."""
    servers: Servers
    lines: Sequence[bytes] = ()
    """Texts of the events in turns, where the file allows any; else they have a few words."""
    settings: dict[str, str] = field(default_factory=dict)
    """Replacements of the file's values by full key."""
    expected: dict[str, set[bytes]] = field(default_factory=dict)
    """By channel: the ids of the events that its sinks are to have between them."""
    before: list[Callable[[], None]] = field(default_factory=list)
    """Functions that send before the agent starts."""
    after: list[Callable[[Agent], None]] = field(default_factory=list)
    """Functions that send after the agent has started."""
    readers: dict[str, Callable[[], bytes]] = field(default_factory=dict)
    """By sink: its whole output, after the agent has ended."""
    names: dict[str, Callable[[], list[str]]] = field(default_factory=dict)
    """By sink that writes files of many names: the names of its files."""
    environment: dict[str, str | None] = field(default_factory=dict)
    mark: str = ""
    """Distinguishes the runs of one file."""
    events: int = EVENTS
    """Number of lines of each kind."""
    log: str = ""
    sent: dict[bytes, bytes] = field(default_factory=dict)
    """Complete line by id."""

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True)
        for number, source in enumerate(self.spec.sources):
            SOURCES[source.cls.type_name](self, source, self._lines(source, number))
        for channel in self.spec.channels:
            if local := CHANNELS.get(channel.cls.type_name):
                local(self, channel)
        for sink in self.spec.sinks:
            self.readers[sink.name] = SINKS[sink.cls.type_name](self, sink)

    def _lines(self, source: SourceSpec, number: int) -> list[bytes]:
        kinds = LINES.get(self.id, {" ".join(source.channels): "{id} an event"})
        lines = []
        for channels, line in kinds.items():
            kind = chr(ord("a") + 8 * number + list(kinds).index(channels))
            ids = [f"{self.key}-{kind}{event:04}" for event in range(self.events)]
            texts = [line.format(id=id).encode() for id in ids]
            if self.lines and self.id not in LINES:
                texts = [b"%b %b" % (id.encode(), self.lines[n % len(self.lines)]) for n, id in enumerate(ids)]
            self.sent.update(zip((id.encode() for id in ids), texts, strict=True))
            lines += texts
            for channel in channels.split():
                self.expected.setdefault(channel, set()).update(id.encode() for id in ids)
        return lines

    def put(self, part: ComponentSpec, key: str, value: object) -> None:
        """Replace an option of a component."""
        self.settings[f"{part.path}.{key}"] = str(value)

    def path(self, part: ComponentSpec, key: str, default: str = "") -> Path:
        """Replace a path by one below `home`; return that."""
        local = Path(f"{self.home}/{part.properties.get(key, default)}")
        self.put(part, key, local)
        return local

    def execute(self) -> None:
        """Start the agent, send, wait until its sinks have taken all events, and stop it."""
        for send in self.before:
            send()
        lines = [self.text, *(f"{key} = {value}" for key, value in self.settings.items()), ""]
        file = self.home / "agent.conf"
        file.write_text("\n".join(lines), "utf-8")
        with self.started(file) as agent:
            for send_to in self.after:
                send_to(agent)
            agent.until(lambda: not self.waits_for(agent), f"the events of {self.id}")
            code = agent.stop()
            self.log = agent.log
            assert code == 0, self.log

    def started(self, file: Path) -> AbstractContextManager[Agent]:
        """Run the agent of that file until the end of the block."""
        with file.open("a", encoding="utf-8") as stream:
            stream.write(f"{self.spec.name}.monitoring.port = 0\n")
        system_properties = [f"-D{name}={value}" for name, value in real_files.system(self.id).items()]
        return RunningAgent(
            self.home, file, "-c", str(file), "-n", self.spec.name, *system_properties, environment=self.variables
        )

    @property
    def variables(self) -> dict[str, str | None]:
        """Return the additional environment variables of the agent."""
        return {**real_files.environment(self.id), **self.environment}

    @property
    def place(self) -> str:
        """Name of its directory in HDFS, and prefix of its topics and tables."""
        return f"{self.id}{self.mark}"

    @property
    def key(self) -> str:
        """Prefix of the ids of its events."""
        return hashlib.blake2s(self.place.encode(), digest_size=4).hexdigest()

    def unused_port(self) -> int:
        """Return a port for a source to listen on; 0 if the agent chooses one."""
        return 0

    def hdfs_path(self, path: str) -> str:
        """Return the file's value for that path of HDFS, which is absolute or below its user's directory."""
        self.environment["HADOOP_CONF_DIR"] = str(self.servers.hdfs.directory / "conf" / "namenode")
        return path

    def waits_for(self, agent: Agent) -> dict[str, int]:
        """Return the number of untaken events of each channel, some of which may stay until the agent ends."""
        waits, metrics = {}, agent.metrics()
        for channel, ids in self.expected.items():
            sinks = [sink for sink in self.spec.sinks if sink.channel == channel]
            count = sum(self.taken(sink, metrics.get(f"SINK.{sink.name}", {}), agent) for sink in sinks)
            if sinks and count < len(ids):
                waits[channel] = len(ids) - count
        return waits

    def taken(self, sink: ComponentSpec, counters: Mapping[str, str], agent: Agent) -> int:
        """Return the number of events that the sink has taken."""
        del sink, agent
        return int(float(counters.get("EventDrainAttemptCount", 0)))

    def differences(self) -> list[str]:
        """Return messages about missing and repeated events, at most a minute after the agent's end."""
        with contextlib.suppress(ServiceError):  # an agent at the other end may write a little later
            until(lambda: not self._differences(), seconds=60)
        return self._differences()

    def _differences(self) -> list[str]:
        differences = []
        for channel in self.spec.channels:
            sinks = [sink.name for sink in self.spec.sinks if sink.channel == channel.name]
            if not sinks:
                continue
            arrived = Counter(id for sink in sinks for id in ID.findall(self.readers[sink]()) if self.ours(id))
            expected = Counter(self.expected.get(channel.name, set()))
            differences += [f"{channel.name}: {id.decode()} is missing" for id in expected - arrived]
            differences += [f"{channel.name}: {id.decode()} came unexpected" for id in arrived - expected]
        return differences

    def altered(self) -> list[str]:
        """Return lines that arrived altered, of sinks that write them unchanged."""
        differences = []
        for sink in self.spec.sinks:
            if sink.cls.type_name in WHOLE:
                output = self.readers[sink.name]()
                arrived = [id for id in ID.findall(output) if self.ours(id)]
                differences += [
                    f"{sink.name}: {id.decode()} is altered" for id in arrived if self.sent.get(id, id) not in output
                ]
        return differences

    def ours(self, id: bytes) -> bool:
        """Return True if the id belongs to this run."""
        return id.startswith(self.key.encode())
