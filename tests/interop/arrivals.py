"""A real file, run by real Flume: the same lines behind its own, the same input, and what has arrived compared."""

from __future__ import annotations

import getpass
import json
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from agent.services import ServiceError
from agent.services.running import PATIENCE_SECONDS, free_port, page, until
from agent.topology import AgentSpec, ComponentSpec
from tests.conformance import real_files
from tests.conformance.arrival import ID, Agent, Run
from tests.interop.test_flume import RunningFlume

EVENTS = 60
"""Of each kind: no more than Flume's channels hold by default, as several of its sources lose what finds no room."""
RUNS_IN_FLUME = {
    "source": {"avro", "exec", "netcat", "spooldir", "syslogudp", "taildir"},
    "channel": {"file", "kafka", "memory"},
    "sink": {"avro", "file_roll", "hdfs", "logger", "null"},
}
"""What is among the jars of Flume 1.11 that tests have, and needs no server that it cannot speak to."""


class FlumeAgent(RunningFlume):
    """As a `RunningAgent` is watched from outside."""

    def __init__(self, run: FlumeRun, file: Path) -> None:
        self._run, self._monitoring = run, free_port()
        options = ["-Dflume.monitoring.type=http", f"-Dflume.monitoring.port={self._monitoring}"]
        options += [f"-D{name}={value}" for name, value in real_files.system(run.id).items()]
        variables = {name: value for name, value in run.variables.items() if value is not None}
        super().__init__(run.home, file, name=run.spec.name, jars=["hdfs"], options=options, environment=variables)

    def metrics(self) -> dict[str, dict[str, str]]:
        """Flume's JSON; empty while it does not answer."""
        found: dict[str, dict[str, str]] = json.loads(page("127.0.0.1", self._monitoring, "/metrics")[1] or b"{}")
        return found

    def count(self, component: str, counter: str) -> int:
        """One counter; 0 where it is not there."""
        return int(float(self.metrics().get(component, {}).get(counter, 0)))

    def port(self, source: str) -> int:
        """The port that this source listens on, once it does."""
        spec = next(one for one in self._run.spec.sources if one.name == source)
        number = int(self._run.settings[f"{spec.path}.port"])
        if "udp" in spec.cls.type_name:
            self.until(lambda: self.count(f"SOURCE.{source}", "StartTime"), f"source {source} to start")
        else:
            self.until(lambda: _listens(number), f"source {source} to listen")
        return number

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait until the condition holds; ServiceError with the end of the log where Flume ends before."""

        def met_or_ended() -> bool:
            return bool(condition()) or self.process.poll() is not None

        try:
            until(met_or_ended, what)
        except ServiceError as e:
            raise ServiceError(f"{e}; Flume's log ends:\n{self.log[-4000:]}") from None
        if self.process.poll() is not None:
            raise ServiceError(f"Flume ended before {what}; its log ends:\n{self.log[-4000:]}")

    def stop(self) -> int:
        """As an operator does; 0, as its own code is that of the signal."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE_SECONDS)
        return 0


class FlumeRun(Run):
    """The same, with real Flume."""

    def started(self, file: Path) -> AbstractContextManager[Agent]:
        """Flume with that file, until the end of the block."""
        return FlumeAgent(self, file)

    def unused_port(self) -> int:
        """Flume does not tell which port it has chosen."""
        return free_port()

    def hdfs_path(self, path: str) -> str:
        """With the address, as Flume gets no configuration of Hadoop."""
        root = "" if path.startswith("/") else f"/user/{getpass.getuser()}/"
        return f"{self.servers.hdfs.rpc}{root}{path}"

    def taken(self, sink: ComponentSpec, counters: Mapping[str, str], agent: Agent) -> int:
        """Flume's logger counts nothing."""
        if sink.cls.type_name == "logger":
            return len({id for id in ID.findall(agent.log.encode()) if self.ours(id)})
        return int(float(counters.get("EventDrainSuccessCount", 0)))


def runs_in_flume(spec: AgentSpec) -> bool:
    """Whether real Flume can run that agent here."""
    kinds = {"source": spec.sources, "channel": spec.channels, "sink": spec.sinks}
    return all(part.cls.type_name in RUNS_IN_FLUME[kind] for kind, parts in kinds.items() for part in parts)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True
