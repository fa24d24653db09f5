"""Real configuration file run by real Flume: the same replaced lines, the same input, and the outputs compared."""

from __future__ import annotations

import getpass
import json
import os
import signal
import socket
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from flafka.agent.services import ServiceError
from flafka.agent.services.running import WAIT_TIMEOUT_SECONDS, until
from flafka.agent.topology import AgentSpec, ComponentSpec
from flafka.agent.web import fetch_page
from tests.conformance import real_files
from tests.conformance.arrival import ID, Agent, Run
from tests.conformance.outputs import compared
from tests.fixtures.ports import free_port
from tests.interop.test_flume import RunningFlume
from tests.system.arrivals import Real, Shared, agents

EVENTS = 60
"""Events of each kind: no more than Flume's channels hold by default, as several of its sources lose the excess."""
RUNS_IN_FLUME = {
    "source": {"avro", "exec", "kafka", "netcat", "spooldir", "syslogudp", "taildir"},
    "channel": {"file", "kafka", "memory"},
    "sink": {"avro", "file_roll", "hdfs", "kafka", "logger", "null"},
}
"""Types that the tests' jars of Flume 1.11 contain, and that need no server which Flume 1.11 cannot reach."""
FLUME_ENDS = {"real-0ded2e1169": "it writes the name of a class in other letters, upper and lower case, than it has"}
"""Files with a mistake that this project accepts, and the reason why Flume ends."""


class FlumeAgent(RunningFlume):
    """Flume's agent with the interface of `RunningAgent`."""

    def __init__(self, run: FlumeRun, file: Path) -> None:
        self._run, self._monitoring = run, free_port()
        options = ["-Dflume.monitoring.type=http", f"-Dflume.monitoring.port={self._monitoring}"]
        options += [f"-D{name}={value}" for name, value in real_files.system(run.id).items()]
        variables = {name: value for name, value in run.variables.items() if value is not None}
        super().__init__(run.home, file, name=run.spec.name, jars=["hdfs"], options=options, environment=variables)

    def metrics(self) -> dict[str, dict[str, str]]:
        """Return Flume's JSON; empty while it does not answer."""
        body = fetch_page("127.0.0.1", self._monitoring, "/metrics")[1]
        counters: dict[str, dict[str, str]] = json.loads(body or b"{}")
        return counters

    def count(self, component: str, counter: str) -> int:
        """Return one counter; 0 if it is absent."""
        return int(float(self.metrics().get(component, {}).get(counter, 0)))

    def port(self, source: str) -> int:
        """Return the port of this source, once it listens."""
        spec = next(component for component in self._run.spec.sources if component.name == source)
        number = int(self._run.settings[f"{spec.path}.port"])
        if "udp" in spec.cls.type_name:
            self.until(lambda: self.count(f"SOURCE.{source}", "StartTime"), f"source {source} to start")
        else:
            self.until(lambda: _listens(number), f"source {source} to listen")
        return number

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait until the condition holds; ServiceError with the end of the log if Flume ends before."""

        def met_or_ended() -> bool:
            return bool(condition()) or self.process.poll() is not None

        try:
            until(met_or_ended, what)
        except ServiceError as e:
            raise ServiceError(f"{e}; Flume's log ends:\n{self.log[-4000:]}") from None
        if self.process.poll() is not None:
            raise ServiceError(f"Flume ended before {what}; its log ends:\n{self.log[-4000:]}")

    def stop(self) -> int:
        """Stop Flume as an operator does; return 0, as its exit code is that of the signal.

        Child processes of its sources get the signal as well: Flume ends only a `shell`, and waits for the shell's
        children.
        """
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait(WAIT_TIMEOUT_SECONDS)
        return 0


class FlumeRun(Run):
    """Run of one agent of one file by real Flume."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for sink in self.spec.sinks:
            if sink.cls.type_name == "hdfs":  # on a busy machine it stops retrying, and leaves events in `.tmp` files
                self.put(sink, "hdfs.callTimeout", 0)
        for part in (*self.spec.sources, *self.spec.channels):
            if "zookeeperConnect" in part.properties:  # Flume searches there for offsets of a Kafka before 0.9
                self.put(part, "migrateZookeeperOffsets", "false")

    def started(self, file: Path) -> AbstractContextManager[Agent]:
        """Run Flume with that file until the end of the block."""
        return FlumeAgent(self, file)

    def unused_port(self) -> int:
        """Return a free port, as Flume does not report a port that it chose."""
        return free_port()

    def hdfs_path(self, path: str) -> str:
        """Return the path with its address, as Flume gets no configuration of Hadoop."""
        root = "" if path.startswith("/") else f"/user/{getpass.getuser()}/"
        return f"{self.servers.hdfs.rpc}{root}{path}"

    def taken(self, sink: ComponentSpec, counters: Mapping[str, str], agent: Agent) -> int:
        """Return the number of events that the sink took; Flume's logger has no counters."""
        if sink.cls.type_name == "logger":
            return len({id for id in ID.findall(agent.log.encode()) if self.ours(id)})
        return int(float(counters.get("EventDrainSuccessCount", 0)))


def in_both() -> list[Real]:
    """Return each agent of each file that real Flume can run here as well."""
    return [real for real in agents() if real.id not in FLUME_ENDS and _runs_in_flume(real.spec)]


def _runs_in_flume(spec: AgentSpec) -> bool:
    kinds = {"source": spec.sources, "channel": spec.channels, "sink": spec.sinks}
    return all(part.cls.type_name in RUNS_IN_FLUME[kind] for kind, parts in kinds.items() for part in parts)


def differences_of_both(
    real_agents: Iterable[Real], home: Path, shared: Shared, *, at_once: int
) -> dict[str, list[str]]:
    """Run each by both, a few at a time. Return by file and agent the differences, or why one failed."""
    pairs = {}
    for real in real_agents:
        name = f"{real.id}-{real.spec.name}"
        ours = Run(*real, home / name, shared, events=EVENTS)
        for sink in real.spec.sinks:
            if "maxBytesToLog" in sink.properties:  # without effect in Flume 1.11
                ours.put(sink, "maxBytesToLog", 16)
        theirs = FlumeRun(*real, home / f"{name}-flume", shared, events=EVENTS, mark="-flume")
        pairs[name] = ours, theirs
    with ThreadPoolExecutor(at_once) as pool:
        return dict(zip(pairs, pool.map(lambda pair: _difference(*pair), pairs.values()), strict=True))


def _difference(ours: Run, theirs: Run) -> list[str]:
    differences = []
    for label, run in (("ours", ours), ("Flume", theirs)):
        try:
            run.execute()
            differences += [f"{label}: {difference}" for difference in run.differences()]
        except (AssertionError, ServiceError) as e:
            differences.append(f"{label}: {str(e)[-1500:]}")
    return differences or compared(ours, theirs, ("ours", "Flume"))


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True
