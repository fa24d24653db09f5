"""Base class of clusters of servers: their directory, ports, start, stop, kill and restart."""

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
from flafka.agent.services.logs import AgentLogPorts
from flafka.agent.services.process import ServerProcess, await_ready, listeners
from flafka.agent.services.running import free_ports
from flafka.agent.state import base_directory

HOST = "127.0.0.1"
LAST_INSTANCE, INSTANCE_STEP = 9, 100
"""Largest value of FLAFKA_INSTANCE, and distance between the ports of two instances."""


class Cluster(ABC):
    """Servers on the loopback interface, with all their files in one directory.

    The directory has `conf/`, `data/`, `logs/`, `run/` and `cluster.json`, which stores the ports. A later object, in
    any process, finds the same servers. Data survives `stop`, `kill` and reboots. As a context manager, the cluster
    starts on entry and stops on exit.
    """

    service: ClassVar[str]
    """Name of the service and of its locked jars."""
    grace: ClassVar[float] = 20.0
    """Seconds between SIGTERM and SIGKILL."""

    def __init__(self, directory: Path | str, *, fixed_ports: bool = True) -> None:
        """`directory` need not exist. With `fixed_ports`, prefer the documented ports at the first start."""
        self.directory = Path(directory).expanduser().absolute()
        self._fixed_ports = fixed_ports
        self.port_offset = INSTANCE_STEP * instance_number()
        """Distance of the preferred ports from the documented ones."""
        self.log_ports: AgentLogPorts | None = None
        """Agent to which servers log, besides or instead of their file, from their next start."""
        self.host = HOST

    @classmethod
    def default(cls) -> Self:
        """Return the user's cluster in `$XDG_DATA_HOME/flafka/<service>`, by default below ~/.local/share."""
        return cls(data_directory() / cls.service)

    # --- defined by each kind of cluster

    @property
    @abstractmethod
    def address(self) -> str:
        """Address for clients. Raises `ServiceError` before the first start."""

    @abstractmethod
    def default_ports(self) -> Mapping[str, int]:
        """Return name → port of every port of the servers, for FLAFKA_INSTANCE=0."""

    def preferred_ports(self) -> Mapping[str, int]:
        """Return `default_ports`, each plus `port_offset`, by default 100 times FLAFKA_INSTANCE."""
        return {name: port + self.port_offset for name, port in self.default_ports().items()}

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of the servers on this host in the order of their start."""

    @abstractmethod
    def prepare(self, java: Java, lib: Path) -> None:
        """Write the configuration, and format the storage before the first start. `lib` has the jars."""

    @abstractmethod
    def command(self, name: str, java: Java, lib: Path) -> list[str]:
        """Return the command line of the server `name`. `lib` has the jars."""

    @abstractmethod
    def unready_reason(self) -> str | None:
        """Return the reason why some server is not ready, in words; None if all are ready."""

    # --- overridden by some kinds of cluster

    def variables(self) -> Mapping[str, str]:
        """Return environment variables with the cluster's addresses. Raises ServiceError before the first start."""
        return {f"FLAFKA_{self.service.upper()}": self.address}

    def library(self) -> Path:
        """Return the directory with the servers' programs, downloaded if missing: their jars. Raises ServiceError."""
        return ensure(self.service)

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables of the servers; by default the ones of this process."""
        return os.environ

    def start_blocker(self, name: str) -> str | None:
        """Return the condition that a server's start waits for, in words; None if it can start now."""
        return None

    def describe_listener(self, port: int) -> str:
        """Return a description of a foreign program that listens on a port of this cluster."""
        return "another program"

    def port_change_hint(self) -> str:
        """Return the advice for a change of this cluster's ports, in words."""
        return f'remove "ports" from {self.directory / "cluster.json"}, to choose other ports'

    # --- common to all clusters

    def start(self, timeout: float = 120) -> Self:
        """Start the servers that do not run, block until all are ready, and return this cluster.

        Raises ServiceError if they are not ready after `timeout` seconds, or if one ends. If another program has one
        of the ports, the servers started by this call are stopped.
        """
        lib, java = self.library(), find_java()
        with self._exclusive():
            self._assign_ports()
            self._check_ports()
            self.prepare(java, lib)
            servers = [self.server(name) for name in self.names()]
            started = [server for server in servers if server.pid is None]
            try:
                for number, server in enumerate(servers):
                    await_ready(partial(self.start_blocker, server.name), servers[:number], timeout)
                    server.start(self.command(server.name, java, lib), self.environment())
                await_ready(self._checked_unready_reason, servers, timeout)
            except ServiceError as failure:
                # A server whose port is taken may have ended before the port was checked.
                port_error = failure if isinstance(failure, PortInUse) else self._port_error()
                if not port_error:
                    raise
                for server in started:
                    server.signal(signal.SIGTERM)
                for server in started:
                    server.stop(self.grace)
                raise port_error from None
        return self

    def _checked_unready_reason(self) -> str | None:
        """Return `unready_reason`. Raises PortInUse if another program may have answered in place of a server."""
        reason = self.unready_reason()
        self._check_ports()
        return reason

    def foreign_listeners(self) -> dict[str, int]:
        """Return name → port of the ports on which another program than this cluster's servers listens."""
        sockets = listeners()
        # A listener on another address does not conflict.
        busy = {name: port for name, port in self.ports.items() if port in sockets and not _is_free(port, self.host)}
        if not busy:
            return {}
        sockets = listeners()  # again: a server of this cluster may have begun to listen since
        try:
            own = set[str]().union(*(self.server(name).sockets() for name in self.names()))
        except PermissionError:
            return {}  # another user's cluster, in FLAFKA_CLUSTER_DIR
        return {name: port for name, port in busy.items() if port in sockets and not sockets[port] & own}

    def _check_ports(self) -> None:
        """Raise PortInUse if another program listens on a port of this cluster."""
        if error := self._port_error():
            raise error

    def _port_error(self) -> PortInUse | None:
        """Return the error for the first port on which another program listens; None if there is none."""
        for name, port in self.foreign_listeners().items():
            return PortInUse(
                f"port {port}, which this cluster uses for {name}, is taken by {self.describe_listener(port)}\n"
                f"  stop that program, or {self.port_change_hint()}"
            )
        return None

    def reserve(self) -> Self:
        """Choose the ports without starting a server, so that addresses are known. Raises `ServiceError`."""
        with self._exclusive():
            self._assign_ports()
        return self

    def stop(self) -> None:
        """Stop every server, and block until none runs. A server is killed after `grace` seconds."""
        with self._exclusive():
            servers = [self.server(name) for name in self.names()]
            for server in servers:
                server.signal(signal.SIGTERM)
            for server in reversed(servers):
                server.stop(self.grace)

    def restart(self, name: str, timeout: float = 120) -> None:
        """Stop one server, start all servers that do not run, and block until all are ready. Raises ServiceError."""
        self.server(name).stop(self.grace)
        self.start(timeout)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to one server; after SIGKILL and SIGTERM, wait up to `grace` seconds for its end."""
        self.server(name).signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.server(name).wait(self.grace)

    def is_running(self) -> bool:
        """Return True if the processes of all servers run."""
        return all(self.server(name).pid for name in self.names())

    def server(self, name: str) -> ServerProcess:
        """Return the process of one server, which need not run."""
        return ServerProcess(name, self.directory)

    @property
    def ports(self) -> dict[str, int]:
        """Ports by name. Raises `ServiceError` before the first start."""
        try:
            return dict(self.state()["ports"])
        except KeyError:
            raise ServiceError(f"no cluster in {self.directory}: it was never started") from None

    def state(self) -> dict[str, Any]:
        """Return the content of `cluster.json`; empty before the first start."""
        try:
            return dict(json.loads((self.directory / "cluster.json").read_text()))
        except (FileNotFoundError, NotADirectoryError):
            return {}

    def save_state(self, **values: object) -> None:
        """Add values to `cluster.json`, atomically."""
        draft = self.directory / "cluster.json.new"
        draft.write_text(json.dumps({**self.state(), **values}, indent=2) + "\n")
        draft.replace(self.directory / "cluster.json")

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()  # some servers may run
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Hold the lock of the cluster for the block: only one program at a time may start or stop it.

        Blocks until the lock is free. Raises ServiceError if the directory cannot be written.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = (self.directory / "lock").open("w")
        except OSError as error:
            raise ServiceError(f"cannot keep a cluster in {self.directory}: {error.strerror}") from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _assign_ports(self) -> None:
        """Choose and store ports for names without a port.

        Raises ServiceError if servers run whose ports are lost.
        """
        known = self.state().get("ports", {})
        if not known and (running := [name for name in self.names() if self.server(name).pid]):
            raise ServiceError(
                f"{', '.join(running)} of {self.directory} run, but their ports are no longer in cluster.json: "
                "stop them first"
            )
        missing = {name: port for name, port in self.preferred_ports().items() if name not in known}
        if missing:
            free = self._fixed_ports and all(_is_free(port, self.host) for port in missing.values())
            self.save_state(
                ports={**known, **(missing if free else dict(zip(missing, free_ports(len(missing)), strict=True)))}
            )


class PortInUse(ServiceError):
    """Error: another program listens on a port of a cluster."""


def data_directory() -> Path:
    """Return the directory of the user's clusters: `$XDG_DATA_HOME/flafka`, by default ~/.local/share/flafka.

    With FLAFKA_INSTANCE=2, its name is `flafka-2`.
    """
    home = base_directory("XDG_DATA_HOME", ".local/share")
    return home / (f"flafka-{number}" if (number := instance_number()) else "flafka")


def instance_number() -> int:
    """Return FLAFKA_INSTANCE, by default 0, which changes directories and ports. Raises `ServiceError`."""
    text = os.environ.get("FLAFKA_INSTANCE") or "0"
    if not (text.isdecimal() and int(text) <= LAST_INSTANCE):
        raise ServiceError(f"FLAFKA_INSTANCE must be a number from 0 to {LAST_INSTANCE}, not {text!r}")
    return int(text)


def java_command(
    java: Java, classpath: Sequence[Path], main: str, *, heap_mb: int, options: Sequence[str]
) -> list[str]:
    """Return the command line of a JVM without the program's arguments.

    `classpath` has directories of jars or of resources. Below 512 MB of heap, the JVM is tuned for little memory and
    a quick start, otherwise for throughput.
    """
    small = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k"]
    return [
        str(java.path),
        f"-Xmx{heap_mb}m",
        *(small if heap_mb < 512 else ["-XX:+UseG1GC"]),
        "-XX:+ExitOnOutOfMemoryError",  # a dead server is restarted; one without memory would be unnoticed
        "-XX:+ErrorFileToStdout",  # a crash report goes to the output, not into the current directory
        "-Djava.net.preferIPv4Stack=true",
        "-Djava.awt.headless=true",
        *options,
        "-cp",
        ":".join(str(folder) for folder in classpath),
        main,
    ]


def site_xml(properties: Mapping[str, str]) -> str:
    """Return properties in Hadoop's configuration format."""
    lines = (
        f"  <property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in properties.items()
    )
    return f"<configuration>\n{''.join(lines)}</configuration>\n"


def _is_free(port: int, host: str = HOST) -> bool:
    """Return True if a server could listen on the port of this address now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def is_listening(port: int, host: str = HOST) -> bool:
    """Return True if a program accepts connections on the port within a second."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False
