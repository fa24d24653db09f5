"""The Kafka sink alone, on the model of Kafka: what each of its steps has done by the time it returns."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation

from flafka.plugins import (
    Assignment,
    Batch,
    Channel,
    Conflict,
    Event,
    FlafkaError,
    LastRecord,
    OffsetRange,
    Origin,
    Rejected,
    Retry,
)
from tests.fixtures.partitions import assignment
from tests.simulator.kafka import Brokers
from tests.simulator.plans import CHANNEL, GROUP, OUT, SINKS, TOPIC
from tests.simulator.processes import Process
from tests.simulator.program import configured, installed
from tests.simulator.running import run_in
from tests.simulator.world import World, simulation, world

HEADERS = {"to": "0"}


def on_brokers(body: Callable[[Brokers], None]) -> None:
    """Run that, in a process of its own, where there are the channel's topic, of one partition, and the sink's."""
    with installed(), simulation(World(1)) as world:
        brokers = world.models["kafka"] = Brokers(world)
        for topic in (TOPIC, OUT):
            brokers.create_topic(topic, 1)
        run_in(world, Process(world, "p"), lambda: body(brokers))


def opened():  # type: ignore[no-untyped-def]  # its module is imported in a simulation alone
    """The sink of the stories."""
    sink = configured(CHANNEL + SINKS["kafka"]).sinks[0].make()
    sink.open()
    return sink


def committed(
    brokers: Brokers, cluster: str, next_offset: int | None = 0, partition: int = 0, topic: str = TOPIC
) -> Assignment:
    topic_id = str(brokers.topics[topic].id)
    return assignment(cluster, topic, topic_id, GROUP, 0, partition, next_offset=next_offset)


def event(offset: int, partition: int = 0) -> Batch:
    batch = Batch.of([Event(b"event", HEADERS)])
    return Batch(batch.records, Origin.of_record(TOPIC, partition, offset, 0, 1))


def test_records_for_another_cluster_are_stored_when_their_stage_returns() -> None:
    def body(brokers: Brokers) -> None:
        sink = opened()
        owned = sink.resume(committed(brokers, "another"))
        sink.write(event(0))
        sink.stage(owned, OffsetRange(0, 1))
        assert [entry.value for entry in brokers.records(OUT, 0)] == [b"event"]

    on_brokers(body)


def test_a_transaction_moves_the_group_with_its_records() -> None:
    def body(brokers: Brokers) -> None:
        sink = opened()
        owned = sink.resume(committed(brokers, sink._cluster_id))
        sink.write(event(0))
        sink.commit(replace(sink.stage(owned, OffsetRange(0, 1)), last_record=LastRecord(1000, leader_epoch=3)))
        offset = brokers.committed(GROUP, TOPIC, 0)
        assert offset is not None
        assert (offset.offset, offset.leader_epoch) == (1, 3)
        assert offset.metadata is not None
        assert "time=" not in offset.metadata, "the leader epoch says more"

    on_brokers(body)


def test_a_record_is_not_taken_for_the_newest_while_what_is_behind_it_is_hidden_by_a_transaction() -> None:
    def body(brokers: Brokers) -> None:
        sink, other = opened(), opened()
        owned = sink.resume(committed(brokers, sink._cluster_id))
        brokers.add_partitions(TOPIC, 2)  # the record of those that are added is in partitions that it has already
        theirs = other.resume(committed(brokers, sink._cluster_id, partition=1))
        sink.write(event(0))
        sink.commit(sink.stage(owned, OffsetRange(0, 1)))
        other.write(event(0, 1))
        waiting = other.stage(theirs, OffsetRange(0, 1))
        sink.write(event(1))
        sink.commit(sink.stage(owned, OffsetRange(1, 2)))
        sink.close()
        brokers.expire_offsets(GROUP)
        successor = opened()
        with pytest.raises(Retry, match="a transaction may be open in it"):
            successor.resume(owned.with_offset(None))
        other.commit(waiting)
        assert successor.resume(owned.with_offset(None)).next_offset == 2

    on_brokers(body)


def test_a_commit_log_of_version_1_is_read_and_another_is_refused_with_the_way_out() -> None:
    def body(brokers: Brokers) -> None:
        entries, key = brokers.create_topic(f"{TOPIC}.positions", 1), f"{GROUP}/{brokers.topics[TOPIC].id}/0".encode()
        entries.partitions[0].append(0, key, b"[0, 7, 0]", None)
        sink = opened()
        start = committed(brokers, sink._cluster_id, None)
        assert sink.resume(start).next_offset == 7
        entries.partitions[0].append(0, key, b'{"version": 2}', None)
        with pytest.raises(FlafkaError) as refused:
            opened().resume(start)
        assert str(refused.value) == (
            f"topic {TOPIC}.positions has an entry of version 2 for group {GROUP}, and this sink reads version 1: "
            "deliver what the channel holds with the agent that wrote it (agent start --drain), then delete that "
            "topic"
        )

    on_brokers(body)


def test_a_new_owner_ends_the_transaction_of_the_one_before() -> None:
    def body(brokers: Brokers) -> None:
        asleep, successor = opened(), opened()
        owned = asleep.resume(committed(brokers, asleep._cluster_id))
        asleep.write(event(0))
        waiting = asleep.stage(owned, OffsetRange(0, 1))
        assert successor.resume(committed(brokers, successor._cluster_id)).next_offset == 0  # and waits for nobody
        with pytest.raises(Conflict):
            asleep.commit(waiting)

    on_brokers(body)


def test_where_there_may_be_no_record_the_group_says_where_the_last_transaction_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def body(brokers: Brokers) -> None:
        sink, successor = opened(), opened()
        monkeypatch.setattr("flafka.sinks.kafka.commitlog.KafkaCommitLog.open", lambda self: False)
        owned = sink.resume(committed(brokers, sink._cluster_id))
        sink.write(event(0))
        sink.commit(sink.stage(owned, OffsetRange(0, 1)))
        # The successor got its partition, and the offset that goes with it, before that.
        assert successor.resume(committed(brokers, successor._cluster_id)).next_offset == 1

    on_brokers(body)


def test_a_position_of_an_earlier_epoch_than_the_records_own_is_none() -> None:
    def body(brokers: Brokers) -> None:
        sink, successor = opened(), opened()
        owned = sink.resume(committed(brokers, sink._cluster_id).replace(epoch=5))
        sink.write(event(0))
        sink.commit(sink.stage(owned, OffsetRange(0, 1)))
        brokers.expire_offsets(GROUP)
        before = committed(brokers, successor._cluster_id, 7).replace(epoch=4, commit_log=owned.generation.commit_log)
        assert successor.resume(before).next_offset == 1

    on_brokers(body)


def batch_of(bodies: list[bytes], offset: int = 0) -> Batch:
    events = Batch.of([Event(body, {"to": str(number % 3)}) for number, body in enumerate(bodies)])
    return Batch(events.records, Origin.of_record(TOPIC, 0, offset, 0, len(bodies)))


LARGE, SMALL = b"l" * 30_000, [b"small %d" % number for number in range(12)]


def delivered_as_by_the_runner(sink: Any, owned: Assignment, batch: Batch, start: int, seconds: float) -> set[int]:
    """Try to deliver one record's events a few times, `seconds` between writing and staging; return the rejected."""
    rejected = set[int]()
    for _ in range(6):
        try:
            sink.write(batch)
        except Rejected as e:
            rejected |= {id.index for id in e.reasons}
        world().sleep(seconds)
        try:
            sink.commit(sink.stage(owned, OffsetRange(start, start + 1)))
            break
        except Conflict:
            sink.reset(0)
            owned = sink.resume(owned.with_offset(start))
        except Retry:
            sink.reset()
    return rejected


@pytest.mark.parametrize("seconds", [0.0, 1.0])
@pytest.mark.parametrize("cluster", ["another", ""])
def test_a_limit_that_is_lowered_costs_the_large_event_alone(cluster: str, seconds: float) -> None:
    """No event is written again that a topic has acknowledged outside of a transaction.

    Brokers may refuse the event in the `seconds` between its writing and the end of the transaction.
    """

    def body(brokers: Brokers) -> None:
        brokers.add_partitions(OUT, 3)
        sink = opened()
        owned = sink.resume(committed(brokers, cluster or sink._cluster_id))
        sink.write(batch_of([b"before"]))
        sink.commit(sink.stage(owned, OffsetRange(0, 1)))
        brokers.topics[OUT].configs["max.message.bytes"] = "20000"
        batch = batch_of([*SMALL[:6], LARGE, *SMALL[6:]], 1)
        rejected = delivered_as_by_the_runner(sink, owned, batch, 1, seconds)
        stored = [entry.value for number in range(3) for entry in brokers.records(OUT, number)]
        assert sorted(stored) == sorted([b"before", *SMALL])
        assert rejected == {6}

    on_brokers(body)


def test_an_event_that_a_limit_forbids_is_rejected_though_the_sink_may_not_ask_for_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def not_allowed(*_: Any) -> None:
        raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))

    def body(brokers: Brokers) -> None:
        brokers.add_partitions(OUT, 3)
        brokers.topics[OUT].configs["max.message.bytes"] = "20000"
        monkeypatch.setattr("tests.simulator.kafka.AdminClient.describe_configs", not_allowed)
        sink = opened()
        owned = sink.resume(committed(brokers, sink._cluster_id))
        rejected = delivered_as_by_the_runner(sink, owned, batch_of([b"small", LARGE, b"little"]), 0, 1.0)
        stored = [entry.value for number in range(3) for entry in brokers.records(OUT, number)]
        assert sorted(stored) == [b"little", b"small"]
        assert rejected == {1}

    on_brokers(body)


def test_an_event_for_a_topic_that_takes_none_of_the_sink_is_rejected_alone() -> None:
    """Brokers would refuse the transaction as a whole, and not say for which of its topics."""

    def body(brokers: Brokers) -> None:
        brokers.create_topic("__consumer_offsets", 1)
        brokers.create_topic("denied", 1).rights = [AclOperation.DESCRIBE]
        sink = opened()
        owned = sink.resume(committed(brokers, sink._cluster_id))
        targets = [{"topic": "__consumer_offsets", "key": "k"}, {"topic": "denied"}, {"topic": ""}, {}]
        events = Batch.of([Event(b"%d" % number, headers | HEADERS) for number, headers in enumerate(targets)])
        with pytest.raises(Rejected) as rejected:
            sink.write(Batch(events.records, Origin.of_record(TOPIC, 0, 0, 0, 4)))
        sink.commit(sink.stage(owned, OffsetRange(0, 1)))
        assert [entry.value for entry in brokers.records(OUT, 0)] == [b"3"]
        assert [*rejected.value.reasons.values()] == [
            "topic __consumer_offsets is internal to the brokers, and accepts no events",
            "this client (User:ANONYMOUS) lacks the right Write on topic denied (Broker: Topic authorization failed)"
            ": kafka-acls --bootstrap-server sim:9092 --add --allow-principal User:ANONYMOUS --operation Write "
            "--topic denied",
            "the header 'topic' is empty, and must name a topic",
        ]

    on_brokers(body)


@pytest.mark.parametrize("cluster", ["", "another"])
def test_an_event_that_would_come_back_into_the_channel_is_rejected_alone(cluster: str) -> None:
    """A topic of the same name on another cluster is not the channel."""

    def body(brokers: Brokers) -> None:
        sink = opened()
        owned = sink.resume(committed(brokers, cluster or sink._cluster_id))
        events = Batch.of([Event(b"back", HEADERS | {"topic": TOPIC}), Event(b"out", HEADERS)])
        rejected: dict[Any, str] = {}
        try:
            sink.write(Batch(events.records, Origin.of_record(TOPIC, 0, 0, 0, 2)))
        except Rejected as e:
            rejected = dict(e.reasons)
        sink.commit(sink.stage(owned, OffsetRange(0, 1)))
        assert [entry.value for entry in brokers.records(OUT, 0)] == [b"out"]
        assert [entry.value for entry in brokers.records(TOPIC, 0)] == ([b"back"] if cluster else [])
        why = f"topic {TOPIC} is that of the sink's own channel, which would get the event again in an endless loop"
        assert [*rejected.values()] == ([] if cluster else [why])

    on_brokers(body)


def test_a_sink_whose_own_topic_is_its_channel_s_delivers_nothing() -> None:
    """`check` cannot know it where the addresses of the sink and of the channel differ."""

    def body(brokers: Brokers) -> None:
        sink = opened()
        with pytest.raises(FlafkaError, match=f"kafka.topic = {OUT} is the topic of the sink's own channel"):
            sink.resume(committed(brokers, sink._cluster_id, topic=OUT))
        sink.resume(committed(brokers, "another", topic=OUT))

    on_brokers(body)


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_a_refused_transaction_is_tried_again_with_its_reason(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(brokers: Brokers) -> None:
        brokers.topics[OUT].rights = [AclOperation.DESCRIBE]
        monkeypatch.setattr("flafka.sinks.kafka.topics.has_write_access", lambda admin, name: True)
        sink = opened()
        owned = sink.resume(committed(brokers, sink._cluster_id))
        sink.write(event(0))
        world().sleep(seconds)
        with pytest.raises(Retry, match="Failed to add partition"):
            sink.stage(owned, OffsetRange(0, 1))
        sink.reset()
        brokers.topics[OUT].rights = None
        sink.write(event(0))
        sink.commit(sink.stage(owned, OffsetRange(0, 1)))
        assert [entry.value for entry in brokers.records(OUT, 0)] == [b"event"]

    on_brokers(body)


def test_a_sink_without_the_right_to_write_its_own_topic_rejects_nothing() -> None:
    def body(brokers: Brokers) -> None:
        brokers.topics[OUT].rights = [AclOperation.DESCRIBE]
        sink = opened()
        sink.resume(committed(brokers, sink._cluster_id))
        with pytest.raises(Retry, match=f"lacks the right Write on topic {OUT} "):
            sink.write(event(0))

    on_brokers(body)


def test_a_group_that_no_transaction_takes_is_named_before_any_event_is_written() -> None:
    """`check` cannot know it where the addresses of the sink and of the channel differ."""

    def body(brokers: Brokers) -> None:
        sink = opened()
        with pytest.raises(FlafkaError, match="consumer group 'für' has 'ü', and the Kafka client takes printable"):
            sink.resume(committed(brokers, sink._cluster_id).replace(group="für"))

    on_brokers(body)


def test_a_put_whose_limit_is_lowered_stores_the_others_once() -> None:
    def body(brokers: Brokers) -> None:
        brokers.add_partitions(TOPIC, 3)
        channel = configured(CHANNEL + "a.channels.c.format = flume\n" + SINKS["kafka"]).channels[0].make()
        channel.open()
        brokers.topics[TOPIC].configs["max.message.bytes"] = "20000"
        with pytest.raises(Rejected) as rejected:
            channel.put(Batch.of([Event(value, HEADERS) for value in [*SMALL[:6], LARGE, *SMALL[6:]]]))
        stored = [entry.value or b"" for number in range(3) for entry in brokers.records(TOPIC, number)]
        assert sorted(value[value.index(b"small") :] for value in stored) == sorted(SMALL)
        assert [id.index for id in rejected.value.reasons] == [6]
        channel.close()

    on_brokers(body)


def records_of_a_put(brokers: Brokers, channel: Channel, bodies: list[bytes]) -> int:
    """Put them, and count the records that the topic has more."""
    before = brokers.end_offset(TOPIC, 0)
    with suppress(Rejected):
        channel.put(Batch.of([Event(body, HEADERS) for body in bodies]))
    return brokers.end_offset(TOPIC, 0) - before


def test_records_are_as_large_as_before_once_a_limit_that_was_lowered_for_a_moment_is_forgotten() -> None:
    bodies = [Random(number).randbytes(3000) for number in range(12)]

    def body(brokers: Brokers) -> None:
        channel = configured(CHANNEL + SINKS["kafka"]).channels[0].make()
        channel.open()
        limit = brokers.topics[TOPIC].configs["max.message.bytes"]
        assert records_of_a_put(brokers, channel, bodies) == 1
        brokers.topics[TOPIC].configs["max.message.bytes"] = "20000"
        assert records_of_a_put(brokers, channel, bodies) > 1
        brokers.topics[TOPIC].configs["max.message.bytes"] = limit
        brokers.world.sleep(70)
        assert records_of_a_put(brokers, channel, bodies) == 1
        channel.close()

    on_brokers(body)


def test_an_event_that_brokers_refuse_for_what_it_is_does_not_make_later_records_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refusal(sent: Any, configs: Any) -> int | None:
        return int(KafkaError.INVALID_RECORD) if b"refused" in sent.value else None

    def body(brokers: Brokers) -> None:
        plain = "a.channels.c.kafka.producer.compression.type = none\n"
        channel = configured(CHANNEL + plain + SINKS["kafka"]).channels[0].make()
        channel.open()
        with pytest.raises(Rejected) as rejected:
            # Arrow fills up a buffer of 64 bytes with what lies behind a slice.
            channel.put(
                Batch.of([Event(value, HEADERS) for value in [*SMALL[:5], b"-" * 64 + b"refused", *SMALL[5:]]])
            )
        assert [id.index for id in rejected.value.reasons] == [5]
        assert brokers.end_offset(TOPIC, 0) < 9
        assert records_of_a_put(brokers, channel, SMALL) == 1
        channel.close()

    monkeypatch.setattr("tests.simulator.kafka.records.RecordProducer._refusal", staticmethod(refusal))
    on_brokers(body)
