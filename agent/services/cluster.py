"""What the clusters of servers have in common: a directory, remembered ports, start, stop, kill, restart."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self
from xml.sax.saxutils import escape

from flafka.agent.jvm.jars import ensure
from flafka.agent.jvm.java import Java, find_java
from flafka.agent.services import ServiceError
from flafka.agent.services.logs import LogPorts
from flafka.agent.services.process import ServerProcess, await_ready, listeners
from flafka.agent.services.running import free_ports

HOST = "127.0.0.1"
LAST_INSTANCE, INSTANCE_STEP = 9, 100
"""So many sets of clusters may have ports of their own, each of them so many above those of the set before it."""


class Cluster(ABC):
    """Servers on the loopback interface with all their files under one directory.

    `conf/`, `data/`, `logs/`, `run/` and `cluster.json`, which remembers the ports: an object made later, in any
    process, finds the same servers. Data survives `stop`, `kill` and reboots. Used as a context manager, the cluster
    is started on entry and stopped on exit.
    """

    service: ClassVar[str]  # names the lock of jars
    grace: ClassVar[float] = 20.0  # seconds between SIGTERM and SIGKILL

    def __init__(self, directory: Path | str, *, fixed_ports: bool = True) -> None:
        """`fixed_ports`: prefer the documented ports when the cluster is started for the first time."""
        self.directory = Path(directory).expanduser().absolute()
        self._fixed_ports = fixed_ports
        self.logs_to: LogPorts | None = None
        """An agent that servers started from now on log to, beside or instead of their file."""
        self.host = HOST

    @classmethod
    def default(cls) -> Self:
        """The user's own: `$XDG_DATA_HOME/flafka/<service>`, else below ~/.local/share."""
        return cls(data_directory() / cls.service)

    # What a kind of cluster defines

    @property
    @abstractmethod
    def address(self) -> str:
        """What clients are told. Raises `ServiceError` before the first start."""

    @abstractmethod
    def default_ports(self) -> Mapping[str, int]:
        """Every port the servers listen on, by name, in the first set of clusters."""

    def usual_ports(self) -> Mapping[str, int]:
        """`default_ports`, moved by FLAFKA_INSTANCE."""
        return {name: port + INSTANCE_STEP * instance() for name, port in self.default_ports().items()}

    @abstractmethod
    def names(self) -> list[str]:
        """The servers, in the order they are started."""

    @abstractmethod
    def prepare(self, java: Java, lib: Path) -> None:
        """Write the configuration and, the first time, format the storage."""

    @abstractmethod
    def command(self, name: str, java: Java, lib: Path) -> list[str]:
        """The command line of one server."""

    @abstractmethod
    def waiting_for(self) -> str | None:
        """None when every server serves, else what is missing, in words."""

    # What a kind of cluster may define

    def variables(self) -> Mapping[str, str]:
        """What shells and configurations call its addresses. Raises `ServiceError` before the first start."""
        return {f"FLAFKA_{self.service.upper()}": self.address}

    def environment(self) -> Mapping[str, str]:
        """The servers' environment variables; else those of this process."""
        return os.environ

    def missing_for(self, name: str) -> str | None:
        """None once that server may be started, else what it would miss, in words."""
        return None

    def stranger(self, port: int) -> str:
        """What listens on that port of this cluster's and is none of its servers, in words."""
        return "another program"

    def other_ports(self) -> str:
        """How this cluster is given other ports, in words."""
        return f'remove "ports" from {self.directory / "cluster.json"}, and others are chosen'

    # What every cluster does

    def start(self, timeout: float = 120) -> Self:
        """Start the servers that do not run, and wait until all of them serve.

        Raises `ServiceError`; where another program has one of the ports, nothing that this call started is left.
        """
        lib, java = ensure(self.service), find_java()
        with self._exclusive():
            self._assign_ports()
            self._refuse_strangers()
            self.prepare(java, lib)
            servers = [self.server(name) for name in self.names()]
            started = [server for server in servers if server.pid is None]
            try:
                for number, server in enumerate(servers):
                    await_ready(partial(self.missing_for, server.name), servers[:number], timeout)
                    server.start(self.command(server.name, java, lib), self.environment())
                await_ready(self._missing, servers, timeout)
            except ServiceError as failure:
                # Where its port is taken, a server may have ended before that was seen.
                taken = failure if isinstance(failure, PortInUse) else self._taken()
                if not taken:
                    raise
                for server in started:
                    server.signal(signal.SIGTERM)
                for server in started:
                    server.stop(self.grace)
                raise taken from None
        return self

    def _missing(self) -> str | None:
        """`waiting_for`, which may have heard another program: so the ports are looked at afterwards."""
        missing = self.waiting_for()
        self._refuse_strangers()
        return missing

    def strangers(self) -> dict[str, int]:
        """The ports, by name, on which something listens that is none of this cluster's servers."""
        found = listeners()
        # Those that listen on another address do no harm.
        busy = {name: port for name, port in self.ports.items() if port in found and not _free(port, self.host)}
        if not busy:
            return {}
        found = listeners()  # again: it may be a server of ours, that has only just begun to listen
        try:
            ours = set[str]().union(*(self.server(name).sockets() for name in self.names()))
        except PermissionError:
            return {}  # another user's cluster, which is named by FLAFKA_CLUSTER_DIR
        return {name: port for name, port in busy.items() if port in found and not found[port] & ours}

    def _refuse_strangers(self) -> None:
        if taken := self._taken():
            raise taken

    def _taken(self) -> PortInUse | None:
        for name, port in self.strangers().items():
            return PortInUse(
                f"port {port}, which this cluster uses for {name}, is taken by {self.stranger(port)}\n"
                f"  end that, or {self.other_ports()}"
            )
        return None

    def reserve(self) -> Self:
        """Choose the ports, without starting anything: from now on addresses are known. Raises `ServiceError`."""
        with self._exclusive():
            self._assign_ports()
        return self

    def stop(self) -> None:
        """Stop every server; on return none runs."""
        with self._exclusive():
            servers = [self.server(name) for name in self.names()]
            for server in servers:
                server.signal(signal.SIGTERM)
            for server in reversed(servers):
                server.stop(self.grace)

    def restart(self, name: str, timeout: float = 120) -> None:
        """Stop one server, then start it and whatever else does not run."""
        self.server(name).stop(self.grace)
        self.start(timeout)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send one server a signal; after SIGKILL and SIGTERM, wait until it is gone."""
        self.server(name).signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.server(name).wait(self.grace)

    def running(self) -> bool:
        """Whether every server's process lives."""
        return all(self.server(name).pid for name in self.names())

    def server(self, name: str) -> ServerProcess:
        """The process of one server: pid, memory, log file."""
        return ServerProcess(name, self.directory)

    @property
    def ports(self) -> dict[str, int]:
        """Ports by name. Raises `ServiceError` before the first start."""
        try:
            return dict(self.state()["ports"])
        except KeyError:
            raise ServiceError(f"no cluster in {self.directory}: it was never started") from None

    def state(self) -> dict[str, Any]:
        """What `cluster.json` remembers; empty before the first start."""
        try:
            return dict(json.loads((self.directory / "cluster.json").read_text()))
        except (FileNotFoundError, NotADirectoryError):
            return {}

    def remember(self, **values: object) -> None:
        """Add to what `cluster.json` remembers, atomically."""
        draft = self.directory / "cluster.json.new"
        draft.write_text(json.dumps({**self.state(), **values}, indent=2) + "\n")
        draft.replace(self.directory / "cluster.json")

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()  # of three brokers two may be up
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Two programs that start or stop the same cluster take turns."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = (self.directory / "lock").open("w")
        except OSError as error:
            raise ServiceError(f"cannot keep a cluster in {self.directory}: {error.strerror}") from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _assign_ports(self) -> None:
        """Choose ports for names that have none yet."""
        known = self.state().get("ports", {})
        if not known and (running := [name for name in self.names() if self.server(name).pid]):
            raise ServiceError(
                f"{', '.join(running)} of {self.directory} run, but nothing there tells their ports any more: "
                "stop them first"
            )
        missing = {name: port for name, port in self.usual_ports().items() if name not in known}
        if missing:
            free = self._fixed_ports and all(_free(port, self.host) for port in missing.values())
            self.remember(
                ports={**known, **(missing if free else dict(zip(missing, free_ports(len(missing)), strict=True)))}
            )


class PortInUse(ServiceError):
    """Another program listens on a port of a cluster's."""


def data_directory() -> Path:
    """Where the user's own clusters are: `$XDG_DATA_HOME/flafka`, else ~/.local/share/flafka; with FLAFKA_INSTANCE=2
    `flafka-2` there."""
    home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return home / (f"flafka-{number}" if (number := instance()) else "flafka")


def instance() -> int:
    """The number of this set of clusters, FLAFKA_INSTANCE, 0 by default: it moves their directories and ports."""
    text = os.environ.get("FLAFKA_INSTANCE") or "0"
    if not (text.isdecimal() and int(text) <= LAST_INSTANCE):
        raise ServiceError(f"FLAFKA_INSTANCE must be a number from 0 to {LAST_INSTANCE}, not {text!r}")
    return int(text)


def java_command(
    java: Java, classpath: Sequence[Path], main: str, *, heap_mb: int, options: Sequence[str]
) -> list[str]:
    """A JVM's command line, without the program's own arguments; `classpath` holds folders of jars or of resources.

    Below 512 MB of heap the JVM is tuned for little memory and a quick start, from there on for throughput.
    """
    small = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k"]
    return [
        str(java.path),
        f"-Xmx{heap_mb}m",
        *(small if heap_mb < 512 else ["-XX:+UseG1GC"]),
        "-XX:+ExitOnOutOfMemoryError",  # a dead server is restarted, a crippled one is not noticed
        "-XX:+ErrorFileToStdout",  # a crash report joins the output, rather than lie in someone's current folder
        "-Djava.net.preferIPv4Stack=true",
        "-Djava.awt.headless=true",
        *options,
        "-cp",
        ":".join(str(folder) for folder in classpath),
        main,
    ]


def site_xml(properties: Mapping[str, str]) -> str:
    """Hadoop's configuration format."""
    lines = (
        f"  <property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in properties.items()
    )
    return f"<configuration>\n{''.join(lines)}</configuration>\n"


def _free(port: int, host: str = HOST) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def listening(port: int, host: str = HOST) -> bool:
    """Whether something accepts connections on that port."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False
