"""RPC sources of a real agent on a real Kafka channel: an acknowledged event is stored, whatever is killed."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from flafka.plugins import Batch, Event, Retry
from flafka.sinks.avro import AvroSink, AvroSinkConfig
from flafka.sinks.thrift import ThriftSink, ThriftSinkConfig
from tests.fixtures.ports import free_port
from tests.system.running import in_topic, kafka_channel, unique

CLIENTS = 4
KILLS = 2


class Sender(threading.Thread):
    """Application that sends continuously and keeps the acknowledged events."""

    def __init__(self, name: str, port: int, kind: str) -> None:
        super().__init__(name=name, daemon=True)
        options = {"hostname": "127.0.0.1", "port": str(port), "batch-size": "20"}
        self.sink: AvroSink | ThriftSink
        if kind == "avro":
            avro, problems = AvroSinkConfig.parse(options)
            assert avro is not None, problems
            self.sink = AvroSink(avro)
        else:
            thrift, problems = ThriftSinkConfig.parse(options)
            assert thrift is not None, problems
            self.sink = ThriftSink(thrift)
        self.acknowledged: list[bytes] = []
        self.failures = 0
        self.enough = threading.Event()

    def run(self) -> None:
        number = 0
        self.sink.open()
        while not self.enough.is_set():
            bodies = [b"%s-%d" % (self.name.encode(), number + i) for i in range(100)]
            number += len(bodies)
            try:
                self.sink.write(Batch.of(Event(body, {"sender": self.name}) for body in bodies))
                self.sink.flush()
                self.acknowledged += bodies
            except Retry:
                self.failures += 1
                self.sink.reset()
                self.enough.wait(0.05)
        self.sink.close()


@pytest.mark.drawn(1)
@pytest.mark.parametrize("kind", ["avro", "thrift"])
def test_acknowledged_events_survive_a_kill(tmp_path: Path, kafka_cluster: KafkaCluster, kind: str) -> None:
    topic, port = unique(kind), free_port()
    configuration = f"""
a1.sources = s1
a1.channels = c1
a1.sources.s1.type = {kind}
a1.sources.s1.bind = 127.0.0.1
a1.sources.s1.port = {port}
a1.sources.s1.channels = c1
a1.sinks = k1
a1.sinks.k1.type = null
a1.sinks.k1.channel = c1
{kafka_channel(kafka_cluster.bootstrap_servers, topic)}
"""
    senders = [Sender(f"sender{n}", port, kind) for n in range(CLIENTS)]

    def acknowledged() -> int:
        return sum(len(sender.acknowledged) for sender in senders)

    for sender in senders:
        sender.start()
    for _ in range(KILLS):
        with RunningAgent(tmp_path, configuration) as agent:
            before = acknowledged()
            agent.until(lambda before=before: acknowledged() > before + 2000, "events to be acknowledged")
            agent.stop(signal.SIGKILL)
    with RunningAgent(tmp_path, configuration) as agent:
        before = acknowledged()
        agent.until(lambda: acknowledged() > before + 2000, "events to be acknowledged again")
        for sender in senders:
            sender.enough.set()
        for sender in senders:
            sender.join(30)
        assert agent.stop() == 0
    assert all(sender.failures for sender in senders), "a sender did not notice the kills"
    stored = {event.body for event in in_topic(kafka_cluster, topic)}
    missing = {body for sender in senders for body in sender.acknowledged} - stored
    assert not missing, f"{len(missing)} acknowledged events are not stored, such as {sorted(missing)[:3]}"
