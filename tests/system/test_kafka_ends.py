"""Kafka source and Kafka sink on three real brokers."""

import json
import os
import signal
from collections import Counter
from threading import Timer

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent, until
from flafka.plugins import (
    Assignment,
    Batch,
    Conflict,
    Event,
    EventId,
    OffsetRange,
    Origin,
    OutcomeUnknown,
    Rejected,
    Retry,
    conformance,
)
from flafka.plugins.wire import flumeevent
from flafka.sinks.kafka import KafkaSink
from flafka.sinks.kafka.at_least_once import AtLeastOnceKafkaSink
from flafka.sinks.kafka.config import KafkaSinkConfig
from flafka.sinks.kafka.topics import TopicCache
from flafka.sources.kafka import KafkaSource
from tests.fixtures.kit import exercises
from tests.fixtures.partitions import assignment
from tests.system.kafka_running import alter
from tests.system.running import kafka_channel, unique


def create(kafka: KafkaCluster, topic: str, partitions: int = 3, **config: str) -> str:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    new_topic = NewTopic(topic, num_partitions=partitions, replication_factor=3, config=config)
    admin.create_topics([new_topic])[topic].result(20)
    for server in kafka.bootstrap_servers.split(","):  # each broker gets the metadata in its own time
        broker = AdminClient({"bootstrap.servers": server})
        until(lambda b=broker: topic in b.list_topics(timeout=20).topics, f"{topic} to be known")
    return topic


def produce(kafka: KafkaCluster, topic: str, bodies: list[bytes], **record: object) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "acks": "all"})
    for body in bodies:
        producer.produce(topic, body, **record)
    assert producer.flush(30) == 0


def consumed(kafka: KafkaCluster, *topics: str) -> list[object]:
    """Return every committed record."""
    options = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": unique("reader"),
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    }
    consumer, messages, ended = Consumer(options), [], set()
    try:
        consumer.subscribe(list(topics))
        metadata = consumer.list_topics(timeout=20).topics
        wanted = {(topic, partition) for topic in topics for partition in metadata[topic].partitions}
        while ended < wanted:
            message = consumer.poll(30)
            assert message is not None, "a topic does not come to its end"
            if message.error():
                ended.add((message.topic(), message.partition()))
            else:
                messages.append(message)
    finally:
        consumer.close()
    return messages


def bodies(kafka: KafkaCluster, topic: str) -> list[bytes]:
    return [message.value() for message in consumed(kafka, topic)]


@exercises("source kafka")
def test_conformance_of_the_source(kafka_cluster: KafkaCluster) -> None:
    topic = create(kafka_cluster, unique("source"), 1)
    properties = {
        "kafka.bootstrap.servers": kafka_cluster.bootstrap_servers,
        "kafka.topics": topic,
        "kafka.consumer.group.id": topic,
    }
    conformance.check_source(
        KafkaSource,
        properties,
        lambda _, values: produce(kafka_cluster, topic, list(values)),
        failing=properties | {"kafka.bootstrap.servers": "127.0.0.1:1"},
    )


def test_the_source_reads_a_recreated_topic_from_its_first_record(kafka_cluster: KafkaCluster) -> None:
    topic = create(kafka_cluster, unique("again"), 1)
    produce(kafka_cluster, topic, [b"old"] * 5)
    config, problems = KafkaSource.config_class.parse(
        {
            "kafka.bootstrap.servers": kafka_cluster.bootstrap_servers,
            "kafka.topics": topic,
            "kafka.consumer.group.id": topic,
            "kafka.consumer.auto.offset.reset": "earliest",
        }
    )
    assert not problems
    source = KafkaSource(config)
    new, read = {b"new %d" % number for number in range(60)}, list[bytes]()
    source.open()
    watchdog = Timer(180, source.stopping.set)
    watchdog.start()
    try:
        for batch in source.batches():
            read += batch.bodies.to_pylist()
            source.stored(batch)
            if read == [b"old"] * 5:
                admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
                admin.delete_topics([topic])[topic].result(20)
                until(lambda: topic not in admin.list_topics(timeout=20).topics, f"{topic} to be gone")
                create(kafka_cluster, topic, 1)
                produce(kafka_cluster, topic, sorted(new))
            elif new <= set(read):
                break
    finally:
        watchdog.cancel()
        source.close()
    assert new <= set(read)


@exercises("sink kafka")
def test_conformance_of_the_sink(kafka_cluster: KafkaCluster) -> None:
    channel, topic = create(kafka_cluster, unique("channel"), 1), create(kafka_cluster, unique("out"), 2)
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    cluster_id = admin.list_topics(timeout=20).cluster_id
    properties = {"kafka.bootstrap.servers": kafka_cluster.bootstrap_servers, "kafka.topic": topic}
    conformance.check_sink(
        KafkaSink,
        properties,
        lambda: bodies(kafka_cluster, topic),
        failing=properties | {"kafka.bootstrap.servers": "127.0.0.1:1"},
        assignment=assignment(cluster_id, channel, "id", unique("group"), 0, 0),
    )


def new_partition(kafka: KafkaCluster) -> tuple[Assignment, KafkaSinkConfig]:
    """Return the only partition of a new channel, and the configuration of a sink into another new topic."""
    channel, topic = create(kafka, unique("channel"), 1), create(kafka, unique("out"), 1)
    cluster_id = AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=20).cluster_id
    config, problems = KafkaSink.config_class.parse(
        {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic}
    )
    assert config is not None, problems
    return assignment(cluster_id, channel, "id", unique("group"), 0, 0), config


def test_on_spark_the_sink_ends_the_transaction_of_a_killed_agent(kafka_cluster: KafkaCluster) -> None:
    """Readers of the topic would wait for a minute otherwise."""
    committed, config = new_partition(kafka_cluster)
    channel, topic = committed.topic, config.topic
    killed = KafkaSink(config, "k1")
    killed.open()
    owned = killed.resume(committed)
    assert owned.next_offset is None
    killed.write(Batch(Batch.of([Event(b"not committed")]).records, Origin.of_record(channel, 0, 0, 0, 1)))
    receipt = killed.stage(owned, OffsetRange(0, 1))
    produce(kafka_cluster, topic, [b"behind it"])
    assert bodies(kafka_cluster, topic) == []
    AtLeastOnceKafkaSink(config, "k1").recover(owned)
    assert bodies(kafka_cluster, topic) == [b"behind it"]
    with pytest.raises(Conflict):
        killed.commit(receipt)
    killed.close()


def test_a_sink_that_knows_of_another_owner_drops_events_and_reports_the_conflict(
    kafka_cluster: KafkaCluster,
) -> None:
    """Events that came after its client had learnt of the other owner raised Retry before."""
    committed, config = new_partition(kafka_cluster)
    channel = committed.topic
    former, present = KafkaSink(config, "k1"), KafkaSink(config, "k1")
    former.open()
    owned = former.resume(committed)
    batch = Batch(Batch.of([Event(b"late")]).records, Origin.of_record(channel, 0, 0, 0, 1))
    former.write(batch)
    present.open()
    present.resume(committed)
    former.write(batch)
    producer = former._producers[0]._producer

    def is_fenced() -> bool:
        try:
            producer.begin_transaction()  # fails in each transaction, and asks no broker
        except KafkaException as e:
            return e.args[0].fatal()
        return False

    until(is_fenced, "the client to be fenced")
    former.write(batch)
    with pytest.raises(OutcomeUnknown):
        former.stage(owned, OffsetRange(0, 1))
    former.close()
    present.close()


@pytest.mark.parametrize(("transactions", "known"), [(True, True), (False, False)])
def test_a_limit_that_is_lowered_while_the_sink_is_open(
    kafka_cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch, transactions: bool, known: bool
) -> None:
    """Brokers refuse small events together with a large one, which alone becomes a dead letter.

    A user without the right to describe the topic's settings does not know its limit.
    """
    channel, topic = create(kafka_cluster, unique("channel"), 1), create(kafka_cluster, unique("out"))
    servers = kafka_cluster.bootstrap_servers
    config, problems = KafkaSink.config_class.parse({"kafka.bootstrap.servers": servers, "kafka.topic": topic})
    assert config is not None, problems
    if not known:
        read = TopicCache._read_settings
        unlimited = {"max_record_bytes": 1 << 20}
        monkeypatch.setattr(TopicCache, "_read_settings", lambda *named: read(*named)._replace(**unlimited))
    large = b"l" + os.urandom(30_000)
    small = [b"small %02d" % number for number in range(20)]
    sink = KafkaSink(config, "k1")
    sink.open()
    committed = assignment(sink._cluster_id if transactions else "", channel, "id", unique("group"), 0, 0)
    rejected: dict[EventId, str] = {}
    owned = [committed]

    def deliver(start: int, *events: bytes) -> None:
        """Deliver as the runner does: everything again after a failure."""
        batch = Batch(
            Batch.of([Event(body) for body in events]).records, Origin.of_record(channel, 0, start, 0, len(events))
        )
        for _ in range(10):
            try:
                try:
                    sink.write(batch)
                except Rejected as e:
                    rejected.update(e.reasons)
                sink.commit(sink.stage(owned[0], OffsetRange(start, start + 1)))
                return
            except Conflict:
                sink.reset(0)
                owned[0] = sink.resume(owned[0].with_offset(start))
            except Retry:
                sink.reset()
        pytest.fail("the events cannot be delivered")

    try:
        owned[0] = sink.resume(committed)
        deliver(0, large)
        alter(kafka_cluster, topic, max_message_bytes="20480")
        deliver(1, *small[:10], large, *small[10:])
        deliver(2, *small)
    finally:
        sink.close()
    assert [(id.offset, id.index) for id in rejected] == [(1, 10)]
    assert Counter(bodies(kafka_cluster, topic)) == Counter([large, *small, *small])


KILLS = 2
CHAIN = """
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = kafka
a1.sources.s1.channels = c1
a1.sources.s1.kafka.bootstrap.servers = {servers}
a1.sources.s1.kafka.topics = {source}
a1.sources.s1.kafka.consumer.group.id = {source}
a1.sources.s1.kafka.consumer.session.timeout.ms = 6000
a1.sources.s1.kafka.consumer.heartbeat.interval.ms = 1000
a1.sources.s1.setTopicHeader = false
a1.sinks.k1.type = kafka
a1.sinks.k1.channel = c1
a1.sinks.k1.kafka.bootstrap.servers = {servers}
a1.sinks.k1.kafka.topic = {out}
"""


def test_nothing_is_lost_and_from_the_channel_on_nothing_is_delivered_twice(
    kafka_cluster: KafkaCluster, tmp_path, seed: int
) -> None:
    import random

    chance = random.Random(seed)
    names = {name: create(kafka_cluster, unique(name)) for name in ("source", "out")}
    text = CHAIN.format(servers=kafka_cluster.bootstrap_servers, **names)
    # Each batch of the source exceeds the limit of a record, and is divided.
    topic = create(kafka_cluster, unique("chain"), **{"max.message.bytes": "16384"})
    text += kafka_channel(kafka_cluster.bootstrap_servers, topic)
    sent: list[bytes] = []
    for kill in range(KILLS):
        produced = [b"%d-%d-" % (kill, number) + chance.randbytes(60).hex().encode() for number in range(3000)]
        with RunningAgent(tmp_path, text) as agent:
            agent.until(lambda: agent.get("/healthz")[0], "the agent to answer")
            produce(kafka_cluster, names["source"], produced)
            sent += produced
            least = chance.randrange(1, 2500)
            agent.until(lambda n=least: agent.count("SINK.k1", "EventDrainSuccessCount") >= n, "some deliveries")
            agent.stop(signal.SIGKILL)
    with RunningAgent(tmp_path, text) as agent:
        agent.until(lambda: set(bodies(kafka_cluster, names["out"])) >= set(sent), "all events")
        agent.until(lambda: agent.metrics().get("SINK.k1", {}).get("Lag") == "0", "the channel to be empty")
        assert agent.stop() == 0
    from tests.system.running import in_topic

    stored = Counter(event.body for event in in_topic(kafka_cluster, topic))
    assert len(consumed(kafka_cluster, topic)) > 40
    assert Counter(bodies(kafka_cluster, names["out"])) == stored
    assert stored.keys() == set(sent)


def test_headers_keys_partitions_and_times_go_through(kafka_cluster: KafkaCluster, tmp_path) -> None:
    source, other = create(kafka_cluster, unique("source")), create(kafka_cluster, unique("other"))
    text = f"""
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.channels.c1.type = memory
a1.sources.s1.type = org.apache.flume.source.kafka.KafkaSource
a1.sources.s1.channels = c1
a1.sources.s1.kafka.bootstrap.servers = {kafka_cluster.bootstrap_servers}
a1.sources.s1.kafka.topics.regex = {source[:-3]}.*
a1.sources.s1.kafka.consumer.group.id = {source}
a1.sources.s1.kafka.consumer.auto.offset.reset = earliest
a1.sources.s1.topicHeader = from
a1.sources.s1.timestampHeader = arrived
a1.sources.s1.header.host = x-host
a1.sources.s1.header.topic = x-topic
a1.sources.s1.header.p = x-p
a1.sinks.k1.type = org.apache.flume.sink.kafka.KafkaSink
a1.sinks.k1.channel = c1
a1.sinks.k1.kafka.bootstrap.servers = {kafka_cluster.bootstrap_servers}
a1.sinks.k1.kafka.topic = {other}
a1.sinks.k1.partitionIdHeader = p
a1.sinks.k1.timestampHeader = arrived
a1.sinks.k1.header.from = x-from
a1.sinks.k1.header.offset = x-offset
a1.sinks.k1.header.host = host
"""
    bad = {"none-there": b"no topic", other: b"no partition"}
    produce(
        kafka_cluster, source, [b"a", b""], key=b"k1", headers={"x-host": b"web", "x-p": b"2"}, timestamp=12345000
    )
    produce(kafka_cluster, source, [bad[other]], headers={"x-p": b"7"})
    produce(kafka_cluster, source, [bad["none-there"]], headers={"x-topic": b"none-there"})
    with RunningAgent(tmp_path, text) as agent:
        agent.until(lambda: agent.count("SINK.k1", "EventRejectedCount") == 2, "the rejections")
        agent.until(lambda: agent.count("SINK.k1", "EventDrainSuccessCount") == 2, "the deliveries")
        assert agent.stop() == 0
    messages = sorted(consumed(kafka_cluster, other), key=lambda message: message.value())
    assert [m.value() for m in messages] == [b"", b"a"]
    for message in messages:
        assert message.key() == b"k1"
        assert message.partition() == 2
        assert message.timestamp()[1] == 12345000
        headers = dict(message.headers())
        assert headers["x-from"] == source.encode()
        assert headers["host"] == b"web"
        assert headers["x-offset"].isdigit()
    (letters,) = tmp_path.glob("state/**/*.deadletters.jsonl")
    reasons = [json.loads(line)["reason"] for line in letters.read_text().splitlines()]
    assert sorted("there is no topic none-there" in reason for reason in reasons) == [False, True]


def test_a_second_member_takes_over_and_nothing_is_lost(kafka_cluster: KafkaCluster) -> None:
    topic = create(kafka_cluster, unique("shared"), 4)
    properties = {
        "kafka.bootstrap.servers": kafka_cluster.bootstrap_servers,
        "kafka.topics": topic,
        "kafka.consumer.group.id": topic,
    }
    import threading

    received: list[bytes] = []

    def member(name: str) -> tuple[KafkaSource, threading.Thread]:
        config, problems = KafkaSource.config_class.parse(properties)
        assert not problems
        source = KafkaSource(config, name)
        source.open()

        def run() -> None:
            for batch in source.batches():
                received.extend(batch.bodies.to_pylist())
                source.stored(batch)
            source.close()

        thread = threading.Thread(target=run)
        thread.start()
        return source, thread

    first = member("s1")
    sent = [b"%d" % number for number in range(500)]
    produce(kafka_cluster, topic, sent[:250])
    until(lambda: len(received) >= 250, "the first half")
    second = member("s2")
    until(lambda: second[0]._consumer._generations, "partitions of the second member", 60)
    produce(kafka_cluster, topic, sent[250:])
    until(lambda: len(set(received)) == 500, "all events", 60)
    for source, thread in (first, second):
        source.stopping.set()
        thread.join(30)
        assert not thread.is_alive()
    assert Counter(received) == Counter(sent)  # handed over while idle: no repetition


@pytest.mark.parametrize("format", ["flume", "plain"])
def test_flume_events_come_back_whole(kafka_cluster: KafkaCluster, format: str) -> None:
    topic = create(kafka_cluster, unique("flume"), 1)
    events = [Event(b"body \xff %d" % n, {"n": str(n), "offset": "mine"}) for n in range(100)]
    produce(kafka_cluster, topic, [*flumeevent.encode(Batch.of(events)).to_pylist(), b"damaged"])
    config, problems = KafkaSource.config_class.parse(
        {
            "kafka.bootstrap.servers": kafka_cluster.bootstrap_servers,
            "kafka.topics": topic,
            "kafka.consumer.group.id": topic,
            "useFlumeEventFormat": str(format == "flume").lower(),
        }
    )
    assert not problems
    source = KafkaSource(config)
    source.open()
    received: list[Event] = []
    try:
        for batch in source.batches():
            received += batch
            if len(received) == 101:
                break
    finally:
        source.close()
    if format == "flume":
        assert [(e.body, e.headers["n"], e.headers["offset"]) for e in received[:100]] == [
            (e.body, e.headers["n"], "mine") for e in events
        ]
        assert received[100].headers["kafka.status"] == "Invalid"
    else:
        assert received[100].headers["offset"] == "100"
    assert received[100].body == b"damaged"
    assert {event.headers["topic"] for event in received} == {topic}
