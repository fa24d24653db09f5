"""The Kafka channel on three real brokers."""

import contextlib
import os
import time
import uuid

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from channels.kafka import KafkaChannel, KafkaChannelConfig, producing, records
from plugins import Batch, Conflict, Event, FlafkaError, Rejected, Retry
from plugins.shared.offsets import OffsetMetadata


class RebalanceListener:
    """Follows its reader's partitions; starts where the group stands."""

    def __init__(self):
        self.claims = {}

    def assigned(self, committed):
        self.claims.update({claim.partition: (claim, position) for claim, position in committed.items()})
        return committed

    def ends(self, taken):
        """The offset after the last of each partition."""
        return {
            self.claims[p][0]: max(t.end for t in taken if t.partition == p) for p in {t.partition for t in taken}
        }

    def revoked(self, partitions):
        for partition in partitions:
            self.claims.pop(partition, None)

    lost = revoked


def open_channel(kafka_cluster, topic, **properties) -> KafkaChannel:
    config, problems = KafkaChannelConfig.parse(
        {
            "kafka.bootstrap.servers": kafka_cluster.bootstrap_servers,
            "kafka.topic": topic,
            "kafka.consumer.group.id": topic,
            "partitions": "3",
            **properties,
        }
    )
    assert not problems
    opened = KafkaChannel(config, "c")
    opened.open()
    return opened


@pytest.fixture
def topic():
    """A topic, and group, of its own."""
    return f"test-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def channel(kafka_cluster, topic):
    """An open channel on a topic and a group of its own."""
    opened = open_channel(kafka_cluster, topic)
    yield opened
    opened.close()


def events(*numbers: int) -> Batch:
    return Batch.of([Event(b"%d \xff" % n, {"n": str(n)}) for n in numbers])


def take(reader, count: int, seconds: float = 60) -> list:
    """So many events' takes, or fail."""
    deadline, taken = time.monotonic() + seconds, []
    while sum(len(t.batch) for t in taken) < count:
        assert time.monotonic() < deadline, f"only {sum(len(t.batch) for t in taken)} of {count} events came"
        if (one := reader.take(0.2)) is not None:
            taken.append(one)
    return taken


def contents(taken) -> list[tuple]:
    return sorted((*id, event.body) for t in taken for id, event in zip(t.batch.ids(), t.batch, strict=True))


def test_what_is_put_is_taken_once_and_again_after_an_uncommitted_close(channel):
    for start in range(0, 1000, 100):
        channel.put(events(*range(start, start + 100)))
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    first = take(reader, 1000)
    assert sorted(int(body.split()[0]) for *_, body in contents(first)) == list(range(1000))
    reader.close()
    owner = RebalanceListener()
    reader = channel.reader(owner, group=None, member="h.a.k")
    again = take(reader, 1000)
    assert contents(again) == contents(first)
    reader.commit(owner.ends(again))
    reader.close()
    channel.put(events(1000))
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    assert [body for *_, body in contents(take(reader, 1))] == [b"1000 \xff"]
    reader.close()


def test_what_is_left_is_not_known_while_partitions_are_being_assigned(channel):
    class Curious(RebalanceListener):
        def assigned(self, claims):
            self.lag = reader.lag()
            return super().assigned(claims)

    channel.put(events(1, 2, 3))
    owner = Curious()
    reader = channel.reader(owner, group=None, member="h.a.k")
    take(reader, 3)
    assert owner.lag is None, "a drain would end here, with everything still to be delivered"
    assert reader.lag() == 0
    reader.close()


def test_rewind_offers_the_same_ids_and_nothing_past_them_first(channel):
    for n in range(300):
        channel.put(events(n))
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    first = take(reader, 300)
    starts = {t.partition: min(o.start for o in first if o.partition == t.partition) for t in first}
    reader.rewind(starts)
    seen = set()
    again = []
    while sum(len(t.batch) for t in again) < 300:
        taken = reader.take(1)
        if taken is None:
            continue
        if taken.partition not in seen:
            assert taken.start == starts[taken.partition], "events were passed over"
            seen.add(taken.partition)
        again.append(taken)
    assert contents(again) == contents(first)
    reader.close()


def test_a_second_member_takes_partitions_over_and_each_event_comes_to_one_of_them(channel):
    owners = [RebalanceListener(), RebalanceListener()]
    one = channel.reader(owners[0], group=None, member="h.a.one")
    channel.put(events(0))
    first = take(one, 1)
    one.commit(owners[0].ends(first))
    two = channel.reader(owners[1], group=None, member="h.a.two")
    deadline = time.monotonic() + 60
    while not (owners[0].claims and owners[1].claims and len(owners[0].claims) + len(owners[1].claims) == 3):
        assert time.monotonic() < deadline, "the partitions were never shared"
        assert one.take(0.1) is None
        assert two.take(0.1) is None
    for n in range(1, 301):
        channel.put(events(n))
    got = []
    while sum(len(t.batch) for t in got) < 300:
        assert time.monotonic() < deadline
        got += [t for reader in (one, two) if (t := reader.take(0.1)) is not None]
    numbers = sorted(int(body.split()[0]) for *_, body in contents(got))
    assert numbers == list(range(1, 301))
    one.close()
    two.close()


def test_groups_do_not_share(channel):
    channel.put(events(1, 2, 3))
    readers = [channel.reader(RebalanceListener(), group=group, member=f"h.a.{group}") for group in ("g1-x", "g2-x")]
    for reader in readers:
        assert len(contents(take(reader, 3))) == 3
        reader.close()


def test_positions_carry_the_epoch_of_a_deliberate_reset(channel):
    channel.put(events(1, 2, 3))
    positions = channel.positions(None)
    assert set(positions.values()) == {None}
    channel.record({claim._replace(epoch=3): 0 for claim in positions})
    assert {(claim.epoch, position) for claim, position in channel.positions(None).items()} == {(3, 0)}
    owner = RebalanceListener()
    reader = channel.reader(owner, group=None, member="h.a.k")
    taken = take(reader, 3)
    assert {claim.epoch for claim, _ in owner.claims.values()} == {3}
    reader.commit(owner.ends(taken))
    reader.close()
    assert {claim.epoch for claim in channel.positions(None)} == {3}
    with pytest.raises(Conflict, match="was reset"):  # it was begun before
        channel.record(dict.fromkeys(positions, 1))
    assert {claim.epoch for claim in channel.positions(None)} == {3}


def test_positions_told_from_outside_never_go_back_within_an_epoch(channel):
    claims = [claim._replace(epoch=10**12) for claim in channel.positions(None)]
    for position in (2, 1):
        channel.record(dict.fromkeys(claims, position))
        assert set(channel.positions(None).values()) == {2}
    channel.record({claim._replace(epoch=10**12 + 1): 1 for claim in claims})
    assert set(channel.positions(None).values()) == {1}


def test_positions_of_a_topic_that_was_made_again_are_not_told_where_its_group_says_nothing_any_more(channel):
    claims = [claim._replace(topic_id="of-the-topic-before") for claim in channel.positions(None)]
    with pytest.raises(Retry, match="was deleted and created again"):
        channel.record(dict.fromkeys(claims, 1))
    assert set(channel.positions(None).values()) == {None}


def test_a_position_is_restored_where_an_owner_of_an_earlier_epoch_has_committed_and_nobody_else(
    channel, topic, kafka_cluster, caplog
):
    claims = [claim._replace(epoch=10**12) for claim in channel.positions(None)]
    channel.restore(dict.fromkeys(claims, 3))
    assert set(channel.positions(None).values()) == {None}
    with_group = {"bootstrap.servers": kafka_cluster.bootstrap_servers, "group.id": topic}
    consumer = Consumer(with_group)
    for said, position in ((OffsetMetadata.of(claims[0]._replace(epoch=3)).text(), 3), ("of another program", 1)):
        for claim in claims:
            consumer.commit(offsets=[TopicPartition(topic, claim.partition, 1, said)], asynchronous=False)
        channel.restore(dict.fromkeys(claims, 3))
        assert set(channel.positions(None).values()) == {position}
    consumer.close()
    assert caplog.text.count("had undone it for") == len(claims)
    channel.record(dict.fromkeys(claims, 2))
    with pytest.raises(Conflict, match="was reset"):
        channel.restore({claim._replace(epoch=3): 1 for claim in claims})


def test_records_that_retention_took_stop_the_reader_with_the_way_out(channel, kafka_cluster):
    from confluent_kafka import TopicPartition

    for n in range(30):
        channel.put(events(n))
    claims = list(channel.positions(None))
    channel.record(dict.fromkeys(claims, 0))
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    topic = channel.config.topic
    for future in admin.delete_records([TopicPartition(topic, claim.partition, 1) for claim in claims]).values():
        future.result(60)
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    with pytest.raises(FlafkaError, match=f"agent group reset {topic} --topic {topic}"):
        take(reader, 1)
    reader.close()


def test_a_record_in_no_known_format_comes_back_with_its_bytes(channel, kafka_cluster):
    producer = Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    producer.produce(channel.config.topic, b"plain text", partition=0)
    producer.produce(channel.config.topic, b"\xff\xff\xff", partition=0, headers=[("flafka.format", b"arrow/1")])
    producer.flush()
    channel.put(events(1))
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    taken, deadline = [], time.monotonic() + 60
    while sum(len(t.undecodable) for t in taken) < 2 or not any(len(t.batch) for t in taken):
        assert time.monotonic() < deadline
        if (one := reader.take(0.2)) is not None:
            taken.append(one)
    found = [u for t in taken for u in t.undecodable]
    assert [u.record.value for u in found] == [b"plain text", b"\xff\xff\xff"]
    assert "format" in found[0].reason
    assert [event.body for t in taken for event in t.batch] == [b"1 \xff"]
    reader.close()


def test_an_event_too_large_for_any_record_is_rejected_and_the_rest_stored(channel):
    # Random bytes, since the limit holds for what goes over the wire.
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
        taken = take(reader, 900)
        reader.close()
        assert not any(one.undecodable for one in taken)
        got = [event for one in taken for event in one.batch]
        assert sorted(int(event.headers["n"]) for event in got) == list(range(900))
        assert all(
            event == Event(b"%s \xff" % event.headers["n"].encode(), {"n": event.headers["n"]}) for event in got
        )
        ids = [id for one in taken for id in one.batch.ids()]
        assert len(set(ids)) == 900
        for one in taken:
            assert [id.offset for id in one.batch.ids()] == sorted(id.offset for id in one.batch.ids())
    for channel in channels:
        channel.close()


@pytest.mark.parametrize("form", ["flume", "raw"])
def test_one_event_a_record_is_taken_again_with_the_same_ids(kafka_cluster, topic, form):
    channel = open_channel(kafka_cluster, topic, format=form)
    channel.put(events(*range(3000)))
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    first = take(reader, 3000)
    assert {(one.batch.id(0).offset, one.batch.id(len(one.batch) - 1).offset + 1) for one in first} == {
        (one.start, one.end) for one in first
    }
    reader.rewind({one.partition: 0 for one in first})
    again = take(reader, 3000)
    assert contents(again) == contents(first)
    assert len(contents(first)) == len({entry[:4] for entry in contents(first)}) == 3000
    reader.close()
    channel.close()


@pytest.mark.parametrize("form", ["flume", "raw"])
def test_events_choose_their_partition_by_header_key_or_default(kafka_cluster, topic, form):
    """A key goes where a Java producer puts it, so that writers of both kinds keep its order."""
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
    got = {(event.body, one.partition) for one in take(reader, 8) for event in one.batch}
    reader.close()
    channel.close()
    assert got == {
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
def test_a_topic_that_takes_less_rejects_earlier(kafka_cluster, topic, form):
    """A topic made with Kafka's default takes records of 1 MB: a larger event must not stop the others for ever."""
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    settings = {"max.message.bytes": "1048588", "min.insync.replicas": "2"}
    admin.create_topics([NewTopic(topic, 3, 3, config=settings)])[topic].result(30)
    channel = open_channel(kafka_cluster, topic, format=form)
    bodies = [b"small", os.urandom(1 << 20), b"also small", os.urandom(1_000_000)]
    with pytest.raises(Rejected) as rejected:
        channel.put(Batch.of([Event(body, {"n": "1"}) for body in bodies]))
    assert {id.index: "larger than a record" in text for id, text in rejected.value.reasons.items()} == {1: True}
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    got = {event.body for one in take(reader, 3) for event in one.batch}
    assert got == {bodies[0], *bodies[2:]}
    reader.close()
    channel.close()


def test_what_does_not_compress_is_divided_until_the_topic_takes_it(
    kafka_cluster, topic, monkeypatch: pytest.MonkeyPatch
):
    sizes = []

    def encode(batch: Batch, compression: str | None) -> bytes:
        sizes.append(len(value := records.encode(batch, compression)))
        return value

    monkeypatch.setattr(producing, "encode", encode)
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 3, 3, config={"max.message.bytes": "300000"})])[topic].result(30)
    channel = open_channel(kafka_cluster, topic)
    bodies = [b"%02d" % n + os.urandom(60_000) for n in range(20)]
    batch = Batch.of([Event(body, {"n": str(n)}) for n, body in enumerate(bodies)])
    channel.put(batch)
    assert max(sizes) > 300_000
    sizes.clear()
    channel.put(batch)
    assert max(sizes) < 300_000, "what is known not to fit is made again"
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    assert sorted(event.body for one in take(reader, 40) for event in one.batch) == sorted(2 * bodies)
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
    got = {event.body: event.headers for one in take(reader, 3) for event in one.batch}
    assert got == {b"plain text \xff": {"key": "k", "trace": "1"}, b"\0\0": {}, b"ours": {"h": "x"}}
    reader.close()
    channel.close()


# --- brokers


def test_a_put_returns_only_when_two_replicas_have_it(channel, kafka_cluster):
    """With one broker of three gone events are still taken; what was acknowledged is there when it is back."""
    try:
        kafka_cluster.kill("broker-2")
        for n in range(20):
            channel.put(events(n))
    finally:
        kafka_cluster.start()
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    numbers = sorted(int(body.split()[0]) for *_, body in contents(take(reader, 20, seconds=60)))
    assert numbers == list(range(20))
    reader.close()


def test_a_topic_that_it_creates_has_the_brokers_time(kafka_cluster, channel, topic):
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    settings = admin.describe_configs([resource])[resource].result(60)
    assert settings["message.timestamp.type"].value == "LogAppendTime"


def test_a_topic_that_refuses_the_time_of_this_host_is_told_with_the_way_out(kafka_cluster, topic):
    config = {"message.timestamp.type": "CreateTime", "message.timestamp.before.max.ms": "0"}  # no record is so new
    new = NewTopic(topic, num_partitions=3, replication_factor=3, config=config)
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    admin.create_topics([new])[topic].result(60)
    batch = Batch.of([Event(b"%d" % n) for n in range(5000)])
    with contextlib.closing(open_channel(kafka_cluster, topic)) as opened:

        def put() -> None:
            for _ in range(1000):  # what is stored within the millisecond of its time is not refused
                opened.put(batch)

        with pytest.raises(Retry, match=r"set message\.timestamp\.type=LogAppendTime on the topic"):
            put()
