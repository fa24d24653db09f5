"""Records of the Kafka channel on three real brokers: their formats, sizes and partitions."""

import os
import threading
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from flafka.agent.services.running import until
from flafka.channels.kafka import records
from flafka.plugins import Batch, Event, Rejected, Retry
from tests.system.kafka_running import RebalanceListener, alter, contents, events, open_channel, take
from tests.system.running import in_topic


def test_a_record_in_no_known_format_comes_back_with_its_bytes(channel, kafka_cluster):
    producer = Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    producer.produce(channel.config.topic, b"plain text", partition=0)
    producer.produce(channel.config.topic, b"\xff\xff\xff", partition=0, headers=[("flafka.format", b"arrow/1")])
    producer.flush()
    channel.put(events(1))
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    batches, deadline = [], time.monotonic() + 60
    while sum(len(t.undecodable) for t in batches) < 2 or not any(len(t.batch) for t in batches):
        assert time.monotonic() < deadline
        if (polled := reader.take(0.2)) is not None:
            batches.append(polled)
    undecodable = [u for t in batches for u in t.undecodable]
    assert [u.record.value for u in undecodable] == [b"plain text", b"\xff\xff\xff"]
    assert "format" in undecodable[0].reason
    assert [event.body for t in batches for event in t.batch] == [b"1 \xff"]
    reader.close()


def test_an_event_too_large_for_any_record_is_rejected_and_the_rest_stored(channel):
    # Random bytes, since the limit applies to compressed records.
    batch = Batch.of([Event(b"small"), Event(os.urandom(9 << 20)), Event(b"also small")])
    with pytest.raises(Rejected) as rejected:
        channel.put(batch)
    assert [id.index for id in rejected.value.reasons] == [1]
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    assert sorted(event.body for t in take(reader, 2) for event in t.batch) == [b"also small", b"small"]
    reader.close()


# --- formats


def test_formats_change_on_a_live_topic(kafka_cluster, topic):
    channels = [open_channel(kafka_cluster, topic, format=form) for form in ("arrow", "flume", "raw")]
    numbers = iter(range(900))
    for size in (1, 99, 200):
        for channel in channels:
            channel.put(events(*(next(numbers) for _ in range(size))))
    for channel in channels:
        reader = channel.reader(RebalanceListener(), group=f"{topic}-{channel.config.format}", member="h.a.k")
        batches = take(reader, 900)
        reader.close()
        assert not any(polled.undecodable for polled in batches)
        received = [event for polled in batches for event in polled.batch]
        assert sorted(int(event.headers["n"]) for event in received) == list(range(900))
        assert all(
            event == Event(b"%s \xff" % event.headers["n"].encode(), {"n": event.headers["n"]}) for event in received
        )
        ids = [id for polled in batches for id in polled.batch.ids()]
        assert len(set(ids)) == 900
        for polled in batches:
            assert [id.offset for id in polled.batch.ids()] == sorted(id.offset for id in polled.batch.ids())
    for channel in channels:
        channel.close()


@pytest.mark.parametrize("form", ["flume", "raw"])
def test_one_event_a_record_is_taken_again_with_the_same_ids(kafka_cluster, topic, form):
    channel = open_channel(kafka_cluster, topic, format=form)
    channel.put(events(*range(3000)))
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    first = take(reader, 3000)
    assert {(polled.batch.id(0).offset, polled.batch.id(len(polled.batch) - 1).offset + 1) for polled in first} == {
        (polled.offsets.start, polled.offsets.end) for polled in first
    }
    reader.rewind([polled.assignment.with_offset(0) for polled in first])
    second = take(reader, 3000)
    assert contents(second) == contents(first)
    assert len(contents(first)) == len({entry[:4] for entry in contents(first)}) == 3000
    reader.close()
    channel.close()


@pytest.mark.parametrize("form", ["flume", "raw"])
def test_events_choose_their_partition_by_header_key_or_default(kafka_cluster, topic, form):
    """A key selects the partition of a Java producer, so that writers of both kinds keep its order."""
    from kafka.partitioner.default import murmur2

    channel = open_channel(kafka_cluster, topic, format=form, partitionIdHeader="p")
    keys = ["a", "ключ", "0123456789"]
    chosen = [Event(b"by header %d" % p, {"p": str(p), "key": "a"}) for p in range(3)]
    keyed = [Event(f"by key {key}".encode(), {"key": key}) for key in keys]
    wrong = [Event(b"wrong", {"p": text}) for text in ("3", "-1", "one", "")]
    with pytest.raises(Rejected) as rejected:
        channel.put(Batch.of([*chosen, *keyed, *wrong]))
    assert sorted(id.index for id in rejected.value.reasons) == [6, 7, 8, 9]
    assert f"header 'p' is 'one', and topic {topic} has partitions 0 to 2" in rejected.value.reasons.values()
    channel.close()
    channel = open_channel(kafka_cluster, topic, format=form, defaultPartitionId="1")
    channel.put(Batch.of([Event(b"by default"), Event(b"by default", {"key": "a"})]))
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    received = {(event.body, polled.assignment.partition) for polled in take(reader, 8) for event in polled.batch}
    reader.close()
    channel.close()
    assert received == {
        *((event.body, p) for p, event in enumerate(chosen)),
        *((event.body, (murmur2(key.encode()) & 0x7FFFFFFF) % 3) for key, event in zip(keys, keyed, strict=True)),
        (b"by default", 1),
    }


@pytest.mark.parametrize("form", ["flume", "raw", "arrow"])
def test_a_full_producer_queue_delays_a_put_and_loses_nothing(kafka_cluster, topic, form):
    channel = open_channel(
        kafka_cluster,
        topic,
        format=form,
        batchEvents="1",
        **{"kafka.producer.queue.buffering.max.messages": "100"},
    )
    channel.put(events(*range(1500)))
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    assert sorted(int(body.split()[0]) for *_, body in contents(take(reader, 1500))) == list(range(1500))
    reader.close()
    channel.close()


@pytest.mark.parametrize("form", ["flume", "raw", "arrow"])
def test_a_topic_with_a_lower_limit_rejects_smaller_events(kafka_cluster, topic, form):
    """A topic with Kafka's default takes records of 1 MB: a larger event must not block the others for ever."""
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    settings = {"max.message.bytes": "1048588", "min.insync.replicas": "2"}
    admin.create_topics([NewTopic(topic, 3, 3, config=settings)])[topic].result(30)
    channel = open_channel(kafka_cluster, topic, format=form)
    bodies = [b"small", os.urandom(1 << 20), b"also small", os.urandom(1_000_000)]
    with pytest.raises(Rejected) as rejected:
        channel.put(Batch.of([Event(body, {"n": "1"}) for body in bodies]))
    assert {id.index: "larger than a record" in text for id, text in rejected.value.reasons.items()} == {1: True}
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    received = {event.body for polled in take(reader, 3) for event in polled.batch}
    assert received == {bodies[0], *bodies[2:]}
    reader.close()
    channel.close()


def bodies_in(kafka_cluster, topic):
    return sorted(event.body for event in in_topic(kafka_cluster, topic))


@pytest.mark.parametrize("form", ["flume", "raw", "arrow"])
def test_a_limit_that_changes_while_the_channel_is_open_holds_at_once(kafka_cluster, topic, form, monkeypatch):
    """Brokers refuse small events together with a large one: each of the small ones is stored once."""
    monkeypatch.setattr("flafka.channels.kafka.producer.LIMITS_SECONDS", 0.0)
    channel = open_channel(kafka_cluster, topic, format=form)
    long_header = {"n": "n" * 3000 if form == "raw" else "n"}
    small = [Event(b"small %02d" % n, {"n": "1"} if n % 2 else {"n": "1", "key": str(n)}) for n in range(17)]
    fitting, large = Event(b"f" + os.urandom(15_000), {}), Event(b"l" + os.urandom(30_000), long_header)
    try:
        channel.put(Batch.of([large]))
        alter(kafka_cluster, topic, max_message_bytes="20480")
        for position in (9, 0):
            with pytest.raises(Rejected) as rejected:
                channel.put(Batch.of([*small[:position], large, *small[position:], fitting]))
            assert {id.index: "larger than a record" in reason for id, reason in rejected.value.reasons.items()} == {
                position: True
            }
        alter(kafka_cluster, topic, max_message_bytes="65536")
        channel.put(Batch.of([*small, large]))
    finally:
        channel.close()
    stored = [event.body for event in small] * 3 + [large.body, fitting.body] * 2
    assert bodies_in(kafka_cluster, topic) == sorted(stored)


def test_a_put_into_a_topic_that_is_compacted_meanwhile_waits(kafka_cluster, topic, monkeypatch):
    """Brokers refuse only the events without a key. None becomes a dead letter, and none is stored twice."""
    monkeypatch.setattr("flafka.channels.kafka.producer.LIMITS_SECONDS", 0.0)
    monkeypatch.setattr("flafka.channels.kafka.producer.REFUSED_RETRY_SECONDS", 0.1)
    channel = open_channel(kafka_cluster, topic, format="flume", partitionIdHeader="p")
    keyed, bare = Event(b"key", {"p": "0", "key": "k"}), Event(b"no key", {"p": "1"})
    message = f"topic {topic} is compacted"
    thread = threading.Thread(target=channel.put, args=(Batch.of([keyed, bare] * 10),))
    try:
        channel.put(Batch.of([keyed, bare]))
        alter(kafka_cluster, topic, cleanup_policy="compact")
        with pytest.raises(Retry, match=message):
            channel.put(Batch.of([bare]))
        thread.start()
        until(lambda: message in channel.metrics.last_error, "the reason to be reported", 20)
        alter(kafka_cluster, topic, cleanup_policy="delete")
        thread.join(20)
        assert not channel.metrics.last_error
    finally:
        channel.close()
    assert bodies_in(kafka_cluster, topic) == [b"key"] * 11 + [b"no key"] * 11


def test_an_incompressible_batch_is_divided_until_the_topic_takes_it(
    kafka_cluster, topic, monkeypatch: pytest.MonkeyPatch
):
    sizes = []

    def encode(batch: Batch, compression: str | None) -> tuple[bytes, bytes]:
        format, value = records.encode_batch(batch, compression)
        sizes.append(len(value))
        return format, value

    monkeypatch.setattr("flafka.channels.kafka.producer.encode_batch", encode)
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 3, 3, config={"max.message.bytes": "300000"})])[topic].result(30)
    channel = open_channel(kafka_cluster, topic)
    bodies = [b"%02d" % n + os.urandom(60_000) for n in range(20)]
    batch = Batch.of([Event(body, {"n": str(n)}) for n, body in enumerate(bodies)])
    channel.put(batch)
    assert max(sizes) > 300_000
    sizes.clear()
    channel.put(batch)
    assert max(sizes) < 300_000, "a batch known to be too large is encoded again"
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    assert sorted(event.body for polled in take(reader, 40) for event in polled.batch) == sorted(2 * bodies)
    reader.close()
    channel.close()


def test_any_topic_is_read_as_bodies(kafka_cluster, topic):
    channel = open_channel(kafka_cluster, topic, format="raw", parseAsFlumeEvent="false")
    producer = Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    producer.produce(topic, b"plain text \xff", key="k", headers=[("trace", b"1")])
    producer.produce(topic, b"\0\0")
    assert producer.flush(30) == 0
    channel.put(Batch.of([Event(b"ours", {"h": "x"})]))
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    received = {event.body: event.headers for polled in take(reader, 3) for event in polled.batch}
    assert received == {b"plain text \xff": {"key": "k", "trace": "1"}, b"\0\0": {}, b"ours": {"h": "x"}}
    reader.close()
    channel.close()
