"""Apache Flume 1.11, from its own jars, and our agent on one topic in one consumer group, in turns."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from confluent_kafka.admin import AdminClient, NewTopic

from flafka.agent.jvm.jars import ensure
from flafka.agent.jvm.java import find_java
from flafka.agent.services import ServiceError
from flafka.agent.services.cluster import java_command
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent, until
from tests.fixtures.ports import free_port
from tests.system.running import in_topic, send, unique

LOGGING = """
<Configuration status="ERROR">
  <Appenders><Console name="out"><PatternLayout pattern="%d %p %c{1}: %m%n"/></Console></Appenders>
  <Loggers><Root level="INFO"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""
CONFIGURATION = """
a1.sources = syslog
a1.channels = shared
a1.sinks = files
a1.sources.syslog.type = syslogtcp
a1.sources.syslog.host = 127.0.0.1
a1.sources.syslog.port = {port}
a1.sources.syslog.channels = shared
a1.channels.shared.type = org.apache.flume.channel.kafka.KafkaChannel
a1.channels.shared.kafka.bootstrap.servers = {servers}
a1.channels.shared.kafka.topic = {topic}
a1.channels.shared.kafka.consumer.group.id = {topic}
a1.channels.shared.kafka.consumer.auto.offset.reset = earliest
a1.sinks.files.type = file_roll
a1.sinks.files.channel = shared
a1.sinks.files.sink.directory = {directory}
"""
"""One file that both read."""


class RunningFlume:
    """Flume's agent as a process, a context manager that ends it.

    `jars` are locks whose jars follow Flume's own on its class path; `options` are for its JVM, `environment` adds to
    the present one. Its output is in `flume.log` in `directory`.
    """

    def __init__(
        self,
        directory: Path,
        configuration: Path,
        *,
        name: str = "a1",
        jars: Sequence[str] = (),
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        heap_mb: int = 256,
    ) -> None:
        (directory / "log4j2.xml").write_text(LOGGING)
        self._directory, self._log = directory, directory / "flume.log"
        options = [f"-Dlog4j2.configurationFile={directory}/log4j2.xml", f"-Djava.io.tmpdir={directory}", *options]
        path = [Path(ensure(lock), "*") for lock in ("flume", *jars)]
        command = java_command(
            find_java(), path, "org.apache.flume.node.Application", heap_mb=heap_mb, options=options
        )
        self._command = [*command, "--name", name, "--conf-file", str(configuration), "--no-reload-conf"]
        self._environment = {**os.environ, **(environment or {})}
        self.process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        with self._log.open("ab") as output:
            self.process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdout=output,
                stderr=output,
                cwd=self._directory,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):  # child processes of its sources may outlive it
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @property
    def log(self) -> str:
        """Return the whole output, of earlier configurations too."""
        return self._log.read_text(errors="replace")


@contextlib.contextmanager
def flume(directory: Path, configuration: Path) -> Iterator[None]:
    """Run Flume's agent `a1` until the end of the block; then stop it as an operator does."""
    with RunningFlume(directory, configuration) as running:
        try:
            yield
            running.process.send_signal(signal.SIGTERM)
            running.process.wait(60)
        except (AssertionError, ServiceError, subprocess.TimeoutExpired) as e:
            raise AssertionError(f"{e}; Flume's log ends:\n{running.log[-4000:]}") from None


def listening(port: int) -> bool:
    with contextlib.suppress(OSError):
        send(port, b"")
        return True
    return False


def delivered(directory: Path) -> Counter[bytes]:
    return Counter(line for file in directory.iterdir() for line in file.read_bytes().splitlines())


def messages(prefix: str) -> list[bytes]:
    return [b"%s %d gr\xc3\xbc\xc3\x9fe" % (prefix.encode(), number) for number in range(300)]


def frames(bodies: list[bytes]) -> bytes:
    return b"".join(b"<13>1 2026-01-02T03:04:05Z web-%d %s\n" % (n % 5, body) for n, body in enumerate(bodies))


def test_a_group_moves_from_flume_to_us_and_back(tmp_path: Path, kafka_cluster: KafkaCluster) -> None:
    """Flume and our agent take turns in one group: each event is delivered once, by one of the two."""
    topic = unique("flume")
    port = free_port()
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 3, 3)])[topic].result(30)
    homes = {side: tmp_path / side for side in ("theirs", "ours")}
    out = {side: tmp_path / f"{side}-out" for side in homes}
    files = {}
    for side, home in homes.items():
        home.mkdir()
        out[side].mkdir()
        files[side] = home / "flume.conf"
        text = CONFIGURATION.format(
            port=port, servers=kafka_cluster.bootstrap_servers, topic=topic, directory=out[side]
        )
        files[side].write_text(text + "a1.monitoring.port = 0\n" * (side == "ours"))
    expected = Counter[bytes]()

    def delivered_by_both() -> Counter[bytes]:
        return delivered(out["theirs"]) + delivered(out["ours"])

    with flume(homes["theirs"], files["theirs"]):
        until(lambda: listening(port), "Flume to listen")
        send(port, frames(messages("first")))
        until(lambda: delivered(out["theirs"]).total() == 300, "Flume to deliver")
    expected.update(messages("first"))
    assert delivered_by_both() == expected

    with RunningAgent(homes["ours"], files["ours"]) as agent:
        send(agent.port("syslog"), frames(messages("second")))
        agent.until(lambda: agent.count("SINK.files", "EventDrainSuccessCount") >= 300, "ours to go on")
        assert agent.stop() == 0
    expected.update(messages("second"))
    assert delivered_by_both() == expected, "ours did not go on where Flume stopped"

    # Without a sink the events that our agent takes in stay in the topic, for Flume.
    files["ours"].write_text(files["ours"].read_text().replace("a1.sinks = files", "a1.sinks ="))
    with RunningAgent(homes["ours"], files["ours"]) as agent:
        send(agent.port("syslog"), frames(messages("third")))
        agent.until(lambda: agent.count("SOURCE.syslog", "EventAcceptedCount") == 300, "the channel to hold it")
        assert agent.stop() == 0
    with flume(homes["theirs"], files["theirs"]):
        until(lambda: delivered_by_both().total() >= 900, "Flume to go on", seconds=100)
        until(lambda: listening(port), "Flume to listen")
        send(port, frames(messages("fourth")))
        until(lambda: delivered_by_both().total() >= 1200, "Flume to deliver its own")
    expected.update(messages("third") + messages("fourth"))
    assert delivered_by_both() == expected, "Flume did not go on where ours stopped"

    events = in_topic(kafka_cluster, topic)
    assert Counter(event.body for event in events) == expected
    for event in events:
        assert {"Facility": "1", "Severity": "5"}.items() <= event.headers.items()
        assert event.headers["host"].startswith("web-")
