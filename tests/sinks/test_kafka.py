"""Kafka sink: the events that it accepts, and transactions without any."""

import gc
import threading
import time
import weakref
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from flafka.agent.services.running import until
from flafka.plugins import Batch, Conflict, Event, NotCommitted, OffsetRange, Origin, Receipt, Rejected, Retry
from flafka.sinks.kafka import KafkaSink, KafkaSinkConfig
from flafka.sinks.kafka.at_least_once import AtLeastOnceKafkaSink
from flafka.sinks.kafka.commitlog import KafkaCommitLog
from flafka.sinks.kafka.producers import RecordProducer, TransactionalProducer
from flafka.sinks.kafka.topics import BATCH_BYTES, TopicCache
from tests.fixtures.partitions import assignment

ASSIGNMENT = assignment("", "channel", "", "g", 0, 0)
NOW = int(time.time() * 1000)
HOUR = 3_600_000


class Admin:
    """Admin client with topics: their partitions, or the error for them, and their settings."""

    def __init__(self, **topics):
        self.topics, self.requested = topics, []

    def list_topics(self, name, timeout):
        self.requested.append(name)
        partitions, _ = self.topics.get(name, (KafkaError.UNKNOWN_TOPIC_OR_PART, {}))
        exists = isinstance(partitions, range)
        error = None if exists else KafkaError(partitions)
        return SimpleNamespace(topics={name: SimpleNamespace(partitions=partitions if exists else (), error=error)})

    def describe_topics(self, topics, **_):
        answers = {name: Future() for name in topics.topic_names}
        for answer in answers.values():
            answer.set_result(SimpleNamespace(authorized_operations=None))
        return answers

    def describe_configs(self, resources):
        (resource,) = resources
        answer = Future()
        settings = self.topics[resource.name][1]
        if settings is None:
            answer.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
        else:
            answer.set_result({name: SimpleNamespace(value=value) for name, value in settings.items()})
        return {resource: answer}


class Gathered(RecordProducer):
    """Producer that keeps its records."""

    def __init__(self):
        self.events, self.records, self.single_record_batches = 0, [], False
        self.acknowledged, self.refused = [], []

    def produce(self, topic, **record):
        self.records.append((topic, record["value"]))

    def close(self):
        pass


def sink(admin, **properties):
    config, problems = KafkaSinkConfig.parse(
        {"kafka.bootstrap.servers": "h:1", "kafka.topic": "out", "topicHeader": "to"} | properties
    )
    assert not problems
    kafka_sink = KafkaSink(config)
    kafka_sink._topics = TopicCache(config, admin)
    kafka_sink._producers[0] = Gathered()
    return kafka_sink


def batch(*events):
    without_origin = Batch.of(events)
    return Batch(without_origin.records, Origin.of_record("channel", 0, 7, NOW, len(events)))


def write_events(kafka_sink, *events):
    """Return the topics and bodies that were produced, and the reasons of the others."""
    rejected = {}
    try:
        kafka_sink.write(batch(*events))
    except Rejected as e:
        rejected = {id.index: reason for id, reason in e.reasons.items()}
    return kafka_sink._producers[0].records, rejected


def test_a_record_for_which_brokers_would_refuse_its_whole_batch_is_rejected_alone():
    settings = {
        "max.message.bytes": "10000",
        "message.timestamp.type": "CreateTime",
        "message.timestamp.before.max.ms": str(2 * HOUR),
        "message.timestamp.after.max.ms": str(HOUR),
    }
    compacted = {"max.message.bytes": "1000000", "cleanup.policy": "delete,compact"}
    admin = Admin(out=(range(3), settings), latest=(range(1), compacted), arrival=(range(1), None))
    ahead, behind = str(NOW + 2 * HOUR), str(NOW - 3 * HOUR)
    records, rejected = write_events(
        sink(admin, **{"timestampHeader": "t", "header.h": "H", "partitionIdHeader": "p"}),
        Event(b"right", {"t": str(NOW), "p": "2"}),
        Event(b"ahead", {"t": ahead}),
        Event(b"behind", {"t": behind}),
        Event(b"no time", {"t": "yesterday"}),
        Event(b"long key", {"key": "k" * 9000}),
        Event(b"long header", {"h": "h" * 9000}),
        Event(b"b" * 9000),
        Event(b"partition", {"p": "3"}),
        Event(b"no key", {"to": "latest"}),
        Event(b"key", {"to": "latest", "key": "k"}),
        Event(b"any time", {"to": "arrival", "t": ahead}),
    )
    assert records == [("out", b"right"), ("out", b"no time"), ("latest", b"key"), ("arrival", b"any time")]
    assert list(rejected) == [1, 2, 4, 5, 6, 7, 8]
    assert "after now" in rejected[1]
    assert "before now" in rejected[2]
    for row in (4, 5, 6):
        assert "larger than a record of topic out may be (10,000; max.message.bytes)" in rejected[row]
    assert rejected[7] == "topic out has partitions 0 to 2, not 3"
    assert "compacted" in rejected[8]


def test_a_missing_topic_is_looked_up_once_a_batch():
    admin = Admin(out=(range(1), {}))
    kafka_sink = sink(admin)
    events = [Event(b"%d" % n, {"to": ("gone", "out", "no topic")[n % 3]}) for n in range(300)]
    records, rejected = write_events(kafka_sink, *events)
    assert len(records) == 100
    assert len(rejected) == 200
    assert sorted(admin.requested) == ["gone", "out"]
    admin.topics["gone"] = (range(1), {})
    assert write_events(kafka_sink, Event(b"x", {"to": "gone"}))[1] == {}


@pytest.mark.parametrize("error", [KafkaError.LEADER_NOT_AVAILABLE, KafkaError.REQUEST_TIMED_OUT])
def test_a_topic_in_creation_rejects_nothing(error):
    with pytest.raises(Retry, match="topic new: "):
        write_events(sink(Admin(new=(error, {}))), Event(b"x", {"to": "new"}))


def test_a_mistake_in_the_configuration_rejects_nothing():
    kafka_sink = sink(Admin(out=(range(3), {})), defaultPartitionId="3")
    with pytest.raises(Retry, match="defaultPartitionId = 3, and topic out has partitions 0 to 2"):
        write_events(kafka_sink, Event(b"x"))


def test_a_topic_of_the_brokers_is_refused_in_the_configuration():
    config, problems = KafkaSinkConfig.parse({"kafka.bootstrap.servers": "h:1", "kafka.topic": "__consumer_offsets"})
    assert config is None
    assert "an internal topic of the brokers" in str(problems)


def test_a_commit_log_that_cannot_be_produced_is_retried():
    class Refusing(TransactionalProducer):
        """Writer whose client takes no record."""

        def __init__(self):
            self.in_transaction, self.name = True, "t"

        def produce(self, topic, **_):
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG))

        def close(self):
            pass

    kafka_sink = sink(Admin())
    kafka_sink._producers[0] = Refusing()
    log = kafka_sink._commit_logs["channel"] = KafkaCommitLog({}, "channel", kafka_sink.log)
    log._partitions = 1
    with pytest.raises(Retry, match=r"topic channel\.positions cannot be written to: "):
        kafka_sink.stage(ASSIGNMENT, OffsetRange(0, 1))


def test_the_client_sends_no_more_at_once_than_a_topic_takes(brokers):
    kafka_sink = sink(Admin(out=(range(1), {"max.message.bytes": "20000"})), **{"kafka.bootstrap.servers": brokers})
    writer = RecordProducer(kafka_sink._properties())
    assert kafka_sink._properties()["batch.size"] == BATCH_BYTES
    write_events(kafka_sink, Event(b"x"))
    assert kafka_sink._properties()["batch.size"] == 20_000
    writer._on_delivery(None, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), SimpleNamespace(topic=lambda: "out"))
    with pytest.raises(Retry):
        writer.flush()
    assert not writer.abort(), "it would send as much again"
    assert writer.abort()
    writer.close()


def test_each_failure_names_its_own_topic(brokers):
    """Names are not mixed up after an abort, with the same producer."""
    writer = RecordProducer({"bootstrap.servers": brokers, "log_level": 0})
    try:
        for topic in ("out", "other"):
            for failed in (topic, "later"):
                error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
                writer._on_delivery(None, error, SimpleNamespace(topic=lambda name=failed: name))
            with pytest.raises(Retry, match=f"lacks the right Write on topic {topic} "):
                writer.flush()
            assert writer.abort()
    finally:
        writer.close()


def test_an_expired_writer_is_released_with_its_client():
    idle = {"bootstrap.servers": "none", "test.mock.num.brokers": 1, "linger.ms": 20_000, "log_level": 0}
    references = []
    for _ in range(5):
        writer = TransactionalProducer(idle, ASSIGNMENT)
        for _ in range(2000):
            writer.produce("out", value=b"x")
        writer._timed_out = True
        assert not writer.abort(), "it may never send again"
        writer.close()
        references.append(weakref.ref(writer))
        del writer
    until(lambda: gc.collect() >= 0 and not any(reference() for reference in references))


def test_a_client_that_stalls_amid_a_transaction_is_given_up(monkeypatch):
    """librdkafka's own timeout has no effect while it waits for a coordinator of before an outage."""
    monkeypatch.setattr("flafka.sinks.kafka.producers.OFFSETS_CALL_SECONDS", 0.1)
    monkeypatch.setattr("flafka.sinks.kafka.producers.REPORT_SECONDS", 0.1)
    released = threading.Event()
    writer = TransactionalProducer({"bootstrap.servers": "none", "test.mock.num.brokers": 1}, ASSIGNMENT)
    writer._producer, writer.in_transaction = (
        SimpleNamespace(
            send_offsets_to_transaction=lambda *_: released.wait(), purge=lambda: None, flush=lambda _: 0
        ),
        True,
    )
    try:
        with pytest.raises(NotCommitted, match="a new client tries again"):
            writer.commit(Receipt(ASSIGNMENT, OffsetRange(0, 1), 1, None), None)
        assert not writer.abort()
    finally:
        released.set()
        writer.close()


def test_an_empty_transaction_of_rejected_events_is_no_obstacle(brokers):
    kafka_sink = sink(
        Admin(out=(range(1), {"max.message.bytes": "1000000"})),
        **{"kafka.bootstrap.servers": brokers, "kafka.producer.max.request.size": "2000"},
    )
    producer = Producer({"bootstrap.servers": brokers, "log_level": 0})
    producer.produce("channel", b"makes it")
    producer.produce("channel.positions", b"null", key=b"makes it")
    assert not producer.flush(180)
    kafka_sink._cluster_id = "this one"
    committed = assignment("this one", "channel", "", "g", 0, 0, next_offset=7)
    try:
        owned = kafka_sink.resume(committed)
        assert (owned.next_offset, owned.generation.commit_log) == (7, "kafka:channel.positions")
        with pytest.raises(Rejected):
            kafka_sink.write(batch(Event(b"b" * 3000)))
        kafka_sink.reset()
        assert kafka_sink.metrics.get("RollbackCount") == 1
        with pytest.raises(Rejected):
            kafka_sink.write(batch(Event(b"b" * 3000)))
        receipt = kafka_sink.stage(owned, OffsetRange(7, 8))
        assert receipt.events == 0
        kafka_sink.commit(receipt)
        kafka_sink.write(batch(Event(b"small")))
        kafka_sink.commit(kafka_sink.stage(owned, OffsetRange(8, 9)))
        assert kafka_sink._producers[0].events == 0
        assert kafka_sink._open_commit_log("channel").read(owned) == (0, 9)
        # These brokers keep no offsets of transactions: as if they were lost.
        resumed = kafka_sink.resume(owned.with_offset(7))
        assert (resumed.generation, resumed.next_offset) == (owned.generation, 9)
    finally:
        kafka_sink.close()


def test_the_plain_form_writes_event_ids_and_continues_after_a_reset(brokers):
    producer = Producer({"bootstrap.servers": brokers, "log_level": 0})
    producer.produce("plain", b"makes the topic")
    assert producer.flush(60) == 0
    config, _ = KafkaSinkConfig.parse({"kafka.bootstrap.servers": brokers, "kafka.topic": "plain"})
    plain = AtLeastOnceKafkaSink(config)
    plain._topics = TopicCache(config, Admin(plain=(range(4), {})))
    try:
        plain.write(batch(Event(b"one"), Event(b"two", {"key": "k"})))
        plain.flush()
        plain.reset()
        plain.write(batch(Event(b"three")))
        plain.flush()
        plain.flush()
    finally:
        plain.close()
    settings = {"bootstrap.servers": brokers, "group.id": "plain", "auto.offset.reset": "earliest", "log_level": 0}
    consumer, headers = Consumer(settings), {}
    consumer.subscribe(["plain"])
    while len(headers) < 4:
        message = consumer.poll(60)
        assert message is not None, headers
        if not message.error():
            headers[message.value()] = dict(message.headers() or ())
    consumer.close()
    assert headers == {
        b"makes the topic": {},
        b"one": {"flafka.id": b"channel-0-7-0"},
        b"two": {"flafka.id": b"channel-0-7-1"},
        b"three": {"flafka.id": b"channel-0-7-0"},
    }


@pytest.mark.parametrize(("cluster", "topic_id", "is_own"), [("c", "i", True), ("d", "i", False), ("c", "j", False)])
def test_the_plain_form_writes_no_event_back_into_its_channel(cluster, topic_id, is_own):
    class Described(Admin):
        def describe_topics(self, topics, **_):
            answers = super().describe_topics(topics)
            for answer in answers.values():
                answer.result().topic_id = "i"
            return answers

    plain = AtLeastOnceKafkaSink(sink(Admin()).config)
    plain._topics = TopicCache(plain.config, Described(out=(range(1), {}), channel=(range(1), {})))
    plain._producer, plain._cluster_id = Gathered(), "c"
    prefix = assignment(cluster, "channel", topic_id, "g", 0, 0).id_prefix
    events = Batch.of([Event(b"back", {"to": "channel"}), Event(b"out")])
    try:
        plain.write(Batch(events.records, Origin.of_record("channel", 0, 7, NOW, 2, prefix)))
    except Rejected as e:
        (reason,) = e.reasons.values()
        assert "topic channel is that of the sink's own channel" in reason
    assert [body for _, body in plain._producer.records] == ([b"out"] if is_own else [b"back", b"out"])


def test_a_fenced_producer_of_the_plain_form_is_replaced():
    class Fenced(Gathered):
        def flush(self):
            raise Conflict("fenced")

    plain = AtLeastOnceKafkaSink(sink(Admin()).config)
    plain._producer = Fenced()
    with pytest.raises(Retry, match="fenced"):
        plain.flush()
    assert plain._producer is None


def test_the_plain_form_needs_no_right_to_transactions(monkeypatch):
    refused = KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    class Refused:
        """Producer without permission."""

        def __init__(self, *_):
            raise Retry("Kafka does not accept transactions now") from KafkaException(KafkaError(refused))

    plain = AtLeastOnceKafkaSink(sink(Admin()).config)
    monkeypatch.setattr("flafka.sinks.kafka.at_least_once.TransactionalProducer", Refused)
    monkeypatch.setattr(plain, "_find_cluster", lambda: "c")
    plain.recover(assignment("c", "t", "i", "g", 0, 0))
    refused = KafkaError.REQUEST_TIMED_OUT
    with pytest.raises(Retry):
        plain.recover(assignment("c", "t", "i", "g", 0, 0))
