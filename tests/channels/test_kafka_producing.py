"""Producing half of the Kafka channel by itself; tests/system has the channel with real brokers."""

import logging
import threading
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from flafka.agent.services.running import until
from flafka.channels.kafka import KafkaChannel, KafkaChannelConfig
from flafka.channels.kafka.producer import ChannelProducer, Limits
from flafka.channels.kafka.records import encode_batch
from flafka.plugins import Batch, Event, Metrics, Rejected, Retry, Unreachable, threads
from flafka.plugins.kafka import clients
from flafka.plugins.kafka.properties import client_properties
from tests.fixtures.ports import free_port


def producing_to(brokers, *, writable=lambda: False, **properties):
    config, problems = KafkaChannelConfig.parse({"kafka.bootstrap.servers": brokers} | properties)
    assert not problems
    channel = SimpleNamespace(
        name="c1", config=config, log=logging.getLogger(), metrics=Metrics(), stopping=threading.Event()
    )
    client = {"bootstrap.servers": brokers, "log_level": 0, **client_properties(config.producer)}
    limits = Limits(1 << 20)
    asking = {"is_writable": writable, "request_limits": lambda: limits, "topic_exists": lambda: True}
    return ChannelProducer(channel, client, partitions=4, limits=limits, **asking)


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ({}, (0, 10)),
        ({"linger.ms": "7"}, ("7", None)),
        ({"linger.ms": "0x7"}, ("0x7", None)),
        ({"queue.buffering.max.ms": "7"}, (5, None)),
    ],
)
def test_a_put_waits_for_no_other_unless_linger_is_set(monkeypatch, written, wanted):
    configurations = []
    monkeypatch.setattr(
        clients, "Producer", lambda properties: configurations.append(properties) or Producer(properties)
    )
    producing_to("127.0.0.1:1", **{f"kafka.producer.{name}": value for name, value in written.items()}).close()
    assert (configurations[0]["linger.ms"], configurations[0].get("sticky.partitioning.linger.ms")) == wanted


@pytest.mark.parametrize(("written", "wanted"), [("", 20_000), ("4000000", 20_000), ("0x1000", 0x1000)])
def test_no_request_exceeds_the_limit_of_the_topic(monkeypatch, written, wanted):
    """Brokers would refuse it as a whole, with all of its records."""
    configurations = []
    monkeypatch.setattr(
        clients, "Producer", lambda properties: configurations.append(properties) or Producer(properties)
    )
    properties = {"kafka.producer.batch.size": written} if written else {}
    producer = producing_to("127.0.0.1:1", **properties)
    try:
        producer._limits = Limits(20_000)
        producer._new_producer({"batch.num.messages": 1})
    finally:
        producer.close()
    assert [configuration["batch.size"] for configuration in configurations] == [
        min(int(written or "1048576", 0), 1 << 20),
        wanted,
    ]


@pytest.mark.parametrize(
    ("written", "wanted"),
    [({}, None), ({"compression.type": "ZSTD"}, "zstd"), ({"compression.codec": "none"}, "none")],
)
def test_batches_are_compressed_as_configured_for_records(brokers, monkeypatch, written, wanted):
    chosen = []
    monkeypatch.setattr(
        "flafka.channels.kafka.producer.encode_batch",
        lambda batch, compression: chosen.append(compression) or encode_batch(batch, compression),
    )
    producer = producing_to(brokers, **{f"kafka.producer.{name}": value for name, value in written.items()})
    try:
        producer.put(Batch.of([Event(b"x")]), lambda: None)
    finally:
        producer.close()
    assert chosen == [wanted]


def test_puts_that_fail_together_make_one_new_producer(monkeypatch):
    monkeypatch.setattr("flafka.channels.kafka.producer.RETIRED_SECONDS", 0.2)
    producers = []
    monkeypatch.setattr(
        clients, "Producer", lambda properties: producers.append(Producer(properties)) or producers[-1]
    )
    producer = producing_to("127.0.0.1:1")
    failures = []

    def put():
        try:
            producer.put(Batch.of([Event(b"x")]), lambda: None)
        except Retry as e:
            failures.append(str(e))

    threads = [threading.Thread(target=put) for _ in range(5)]
    for thread in threads:
        thread.start()
    until(lambda: len(producers[0]) == 5)
    producers[0].purge()
    for thread in threads:
        thread.join()
    producer.close()
    assert len(failures) == 5
    assert len(producers) == 2


@pytest.mark.parametrize("deaf", [False, True])
@pytest.mark.parametrize("format", ["arrow", "flume"])
@pytest.mark.parametrize("room", [1000, 1])
def test_a_stalled_client_is_replaced(brokers, monkeypatch, caplog, deaf, format, room):
    """After some outages a client of librdkafka never sends."""
    monkeypatch.setattr("flafka.plugins.kafka.producer.FIRST_STALL_SECONDS", 0.5)
    monkeypatch.setattr("flafka.plugins.kafka.producer.STALL_CHECK_SECONDS", 0.5)
    monkeypatch.setattr("flafka.channels.kafka.producer.PURGE_SECONDS", 1.0)
    monkeypatch.setattr("flafka.channels.kafka.producer.RETIRED_SECONDS", 3.0)
    producers, checks = [], []

    class Stuck(Producer):
        def purge(self):
            if not deaf:
                super().purge()

    def make(properties):
        producers.append(Producer(properties) if producers else Stuck({**properties, **away}))
        return producers[-1]

    away = {"bootstrap.servers": "127.0.0.1:1", "queue.buffering.max.messages": room}
    events = Batch.of([Event(b"x"), Event(b"y", {"a": "b"})])
    monkeypatch.setattr(clients, "Producer", make)
    topic = f"stuck-{format}-{room}-{deaf}"
    producer = producing_to(
        brokers,
        writable=lambda: checks.append(len(producers)) or (len(checks) > 1 and len(producers) == 1),
        **{"kafka.topic": topic, "format": format, "batchEvents": "1"},
    )
    try:
        with pytest.raises(Retry, match="its client was replaced while 2 events waited"):
            producer.put(events, lambda: None)
        assert "has been replaced" in producer.metrics.last_error
        producer.put(events, lambda: None)
        assert not producer.metrics.last_error
    finally:
        producer.close()
        until(lambda: not any(thread.name.endswith("-retired") for thread in threading.enumerate()))
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "stuck", "log_level": 0})
    ends = [consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)[1] for partition in range(4)]
    consumer.close()
    assert sum(ends) == 2, "none of what one client had goes by the other"
    assert checks[:3] == [1, 1, 1], "as long as brokers could not take it, it waits, and for a while after that"
    assert len(producers) == 2
    assert caplog.text.count("Kafka's client has stalled") == 1


@pytest.mark.parametrize("lacks", ["thread", "client"])
def test_a_client_is_replaced_once_the_system_has_threads(monkeypatch, lacks):
    monkeypatch.setattr("flafka.plugins.kafka.producer.FIRST_STALL_SECONDS", 0.3)
    monkeypatch.setattr("flafka.plugins.kafka.producer.STALL_CHECK_SECONDS", 0.3)
    monkeypatch.setattr("flafka.channels.kafka.producer.PURGE_SECONDS", 1.0)
    monkeypatch.setattr(threads.start_thread, "__defaults__", (0.2,))
    producers, start = [], threading.Thread.start

    def make(properties):
        if producers and lacks == "client":
            error = KafkaError(KafkaError._CRIT_SYS_RESOURCE, "Failed to create thread: Resource unavailable")
            raise KafkaException(error)
        producers.append(Producer(properties))
        return producers[-1]

    def begin(thread):
        if thread.name.endswith("-retired"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(clients, "Producer", make)
    monkeypatch.setattr(threading.Thread, "start", begin)
    producer = producing_to("127.0.0.1:1", writable=lambda: True)
    try:
        text = "its client was replaced while 1 events waited" if lacks == "thread" else "Failed to create thread"
        with pytest.raises(Retry, match=f"channel c1: {text}"):
            producer.put(Batch.of([Event(b"x")]), lambda: None)
        if lacks == "thread":
            assert producers[0].flush(1) == 0, "what it has is put again: it must not send that too"
    finally:
        producer.close()


def test_an_unsent_put_is_not_acknowledged(monkeypatch):
    """Every event is rejected while brokers are unavailable."""
    monkeypatch.setattr("flafka.channels.kafka.producer.STALL_SECONDS", 0.1)
    monkeypatch.setattr("flafka.plugins.kafka.producer.FIRST_STALL_SECONDS", 0.0)
    producer = producing_to("127.0.0.1:1", format="flume", partitionIdHeader="p")
    monkeypatch.setattr(producer._partitions, "_refresh_count", lambda: None)
    moved = []
    monkeypatch.setattr(producer._stall_detector, "record_progress", lambda: moved.append(None))
    waiting = threading.Thread(target=lambda: put_in_vain(producer))
    waiting.start()
    try:
        until(lambda: producer.metrics.last_error)
        producer.stopping.set()
        waiting.join()
        with pytest.raises(Rejected):
            producer.put(Batch.of([Event(b"x", {"p": "9"})]), lambda: None)
        assert "no acknowledgement from Kafka" in producer.metrics.last_error
        assert not moved
    finally:
        producer.close()


def put_in_vain(producer):
    with pytest.raises(Retry):
        producer.put(Batch.of([Event(b"x")]), lambda: None)


def test_added_partitions_are_used(brokers):
    producer = producing_to(brokers, format="flume", partitionIdHeader="p")
    producer._partitions.count = 2  # as at its start
    try:
        with pytest.raises(Rejected) as rejected:
            producer.put(Batch.of([Event(b"x", {"p": str(number)}) for number in (0, 3, 4)]), lambda: None)
    finally:
        producer.close()
    assert [(id.index, reason) for id, reason in rejected.value.reasons.items()] == [
        (2, "header 'p' is '4', and topic flafka has partitions 0 to 3")
    ]


def test_a_missing_default_partition_is_reported_at_the_start():
    with pytest.raises(Retry, match="defaultPartitionId = 4, and topic flafka has partitions 0 to 3"):
        producing_to("127.0.0.1:1", format="flume", defaultPartitionId="4")


def test_brokers_that_refuse_a_client_do_not_count_as_unavailable(brokers, monkeypatch):
    """Brokers without SASL are reported like a wrong password."""
    monkeypatch.setattr("flafka.channels.kafka.channel.REQUEST_SECONDS", 2.0)
    secured = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "p",
    }
    options = {
        "kafka.bootstrap.servers": brokers,
        **{f"kafka.producer.{name}": value for name, value in secured.items()},
    }
    config, problems = KafkaChannel.config_class.parse(options)
    assert config is not None, problems
    channel = KafkaChannel(config, "c1")
    with pytest.raises(Retry, match="SASL authentication") as refused:
        channel.open()
    assert not isinstance(refused.value, Unreachable)
    limits = Limits(1 << 20)
    client = {**config.client("c1"), **secured}
    producer = ChannelProducer(channel, client, 1, limits, lambda: False, lambda: limits, lambda: True)
    try:
        until(lambda: "SASL authentication" in producer.refusal)
    finally:
        producer.close()


def test_brokers_without_an_answer_count_as_unavailable(monkeypatch):
    monkeypatch.setattr("flafka.channels.kafka.channel.REQUEST_SECONDS", 0.5)
    config, _ = KafkaChannel.config_class.parse({"kafka.bootstrap.servers": f"127.0.0.1:{free_port()}"})
    with pytest.raises(Unreachable, match="no Kafka broker answers"):
        KafkaChannel(config, "c1").open()
