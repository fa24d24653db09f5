"""Clients of the Kafka model when calls fail, processes sleep or are killed, and time passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, TopicPartition

from tests.simulator.contract.sides import Member, Model, refused, simulated
from tests.simulator.faults import Fault, Kind
from tests.simulator.kafka import Consumer
from tests.simulator.kafka.brokers import Brokers
from tests.simulator.processes import Process
from tests.simulator.world import World


def run(test: Callable[[Model], Any], *faults: tuple[str, int, Kind, float], seed: int = 7) -> World:
    """With these faults of the calls of the test's process, and no others."""
    world = World(seed, given=[Fault("test", *fault) for fault in faults])
    simulated(test, world)
    return world


def cluster(k: Model) -> Brokers:
    cluster: Brokers = k.world.models["kafka"]
    return cluster


def process_of(k: Model, name: str, work: Callable[[], Any]) -> Process:
    """A process of its own that does that."""
    process = Process(k.world, name)
    process.spawn(work, name)
    return process


def reading(k: Model, group: str, topic: str, members: dict[str, Member], name: str, **config: Any) -> Process:
    """A process that reads in the group for ever; its member comes to `members`."""

    def work() -> None:
        members[name] = member = k.member(group, topic, group_instance_id=name, **config)
        while True:
            member.poll(0.1)

    return process_of(k, name, work)


# --- calls that fail


@pytest.mark.parametrize(
    ("kind", "at_once", "afterwards"),
    [(Kind.LOST, None, None), (Kind.UNANSWERED, 5, 5), (Kind.LATE, None, 5), (Kind.DOUBLED, 5, 5)],
)
def test_commits(kind: Kind, at_once: int | None, afterwards: int | None) -> None:
    def test(k: Model) -> None:
        topic, group = k.topic(), k.name("group")
        onlooker = k.consumer(group)
        commit = lambda: onlooker.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)  # noqa: E731
        if kind is Kind.DOUBLED:
            commit()
        else:
            assert refused(commit).code() == KafkaError._TIMED_OUT
        committed = cluster(k).committed(group, topic, 0)
        assert (committed and committed.offset) == at_once
        k.sleep(20)
        committed = cluster(k).committed(group, topic, 0)
        assert (committed and committed.offset) == afterwards

    world = run(test, ("kafka.commit", 1, kind, 15.0))
    assert [fault.kind for fault in world.faults] == [kind]


def test_a_late_commit_of_a_member_that_lost_its_session_is_refused() -> None:
    def test(k: Model) -> None:
        topic, group = k.topic(), k.name("group")
        member = k.member(group, topic, session_timeout_ms=6000)
        member.until(lambda: member.owned)
        assert refused(lambda: member.commit(5)).code() == KafkaError._TIMED_OUT
        member.close()
        k.sleep(20)
        assert k.committed(group, topic) == (OFFSET_INVALID, None)

    run(test, ("kafka.commit", 1, Kind.LATE, 15.0))


def test_committed_positions_that_are_not_answered() -> None:
    def test(k: Model) -> None:
        onlooker = k.consumer(k.name("group"))
        began = k.now()
        error = refused(lambda: onlooker.committed([TopicPartition("t", 0)], timeout=2))
        assert error.code() == KafkaError._TIMED_OUT
        assert 2 <= k.now() - began < 2.1

    run(test, ("kafka.committed", 1, Kind.LOST, 0.0))


@pytest.mark.parametrize("kind", [Kind.LOST, Kind.UNANSWERED, Kind.LATE])
def test_what_is_produced_is_stored_once_whatever_becomes_of_the_request(kind: Kind) -> None:
    def test(k: Model) -> None:
        topic, reports = k.topic(), []
        producer = k.producer(message_timeout_ms=0)
        for value in (b"a", b"b"):
            producer.produce(
                topic, value, partition=0, on_delivery=lambda error, m: reports.append((error, m.offset()))
            )
        assert producer.flush(10) == 2
        assert reports == []
        assert len(cluster(k).records(topic, 0)) == (2 if kind is Kind.UNANSWERED else 0)
        assert producer.flush(30) == 0
        assert reports == [(None, 0), (None, 1)]
        assert [entry.value for entry in cluster(k).records(topic, 0)] == [b"a", b"b"]

    run(test, ("kafka.produce", 1, kind, 15.0))


@pytest.mark.parametrize("kind", [Kind.LOST, Kind.UNANSWERED, Kind.LATE])
def test_a_commit_of_a_transaction_that_is_not_answered_is_asked_for_again(kind: Kind) -> None:
    def test(k: Model) -> None:
        topic = k.topic()
        producer = k.transactional(k.name("id"))
        producer.begin_transaction()
        producer.produce(topic, b"a", partition=0)
        error = refused(lambda: producer.commit_transaction(5))
        assert (error.code(), error.retriable(), error.fatal()) == (KafkaError._TIMED_OUT, True, False)
        assert refused(lambda: producer.abort_transaction(5)).code() == KafkaError._CONFLICT
        assert k.values(topic) == ([(0, "a")] if kind is Kind.UNANSWERED else [])
        producer.commit_transaction(5)
        assert k.values(topic) == [(0, "a")]
        k.sleep(20)
        producer.begin_transaction()
        producer.produce(topic, b"b", partition=0)
        producer.commit_transaction(5)
        assert k.values(topic) == [(0, "a"), (2, "b")]

    run(test, ("kafka.commit_transaction", 1, kind, 12.0))


def test_a_commit_that_comes_after_a_new_producer_does_nothing() -> None:
    def test(k: Model) -> None:
        topic, group, id = k.topic(), k.name("group"), k.name("id")
        old = k.transactional(id)
        old.begin_transaction()
        old.produce(topic, b"a", partition=0)
        old.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], k.consumer(group).consumer_group_metadata(), 5)
        assert refused(lambda: old.commit_transaction(5)).code() == KafkaError._TIMED_OUT
        k.transactional(id)
        k.sleep(20)
        assert k.values(topic) == []
        assert k.committed(group, topic) == (OFFSET_INVALID, None)

    run(test, ("kafka.commit_transaction", 1, Kind.LATE, 15.0))


# --- processes that sleep, or are killed


def test_a_killed_members_partitions_move_when_its_session_ends() -> None:
    def test(k: Model) -> None:
        topic, group, members = k.topic(2), k.name("group"), {}
        process = reading(k, group, topic, members, "one")
        k.until(lambda: members and members["one"].owned == [0, 1])
        process.kill()
        killed = k.now()
        reading(k, group, topic, members, "other")
        k.until(lambda: "other" in members and members["other"].owned == [0, 1])
        assert 5 < k.now() - killed < 12
        assert members["one"].callbacks == [("assign", [0, 1])]

    run(test)


def test_a_member_that_slept_past_its_session_loses_its_partitions_and_commits_nothing() -> None:
    def test(k: Model) -> None:
        topic, group, members = k.topic(2), k.name("group"), {}
        codes: list[int] = []

        def work() -> None:
            members["one"] = member = k.member(group, topic, group_instance_id="one")
            member.until(lambda: member.owned == [0, 1])
            k.sleep(5)  # through which the process sleeps on
            codes.append(refused(lambda: member.commit(7)).code())
            while True:
                member.poll(0.1)

        process = process_of(k, "one", work)
        k.until(lambda: members and members["one"].owned == [0, 1])
        process.pause(60)
        reading(k, group, topic, members, "other")
        k.until(lambda: "other" in members and members["other"].owned == [0, 1])
        k.until(lambda: len(members["one"].callbacks) >= 3, 120)
        assert codes == [KafkaError.UNKNOWN_MEMBER_ID]
        assert [what for what, _ in members["one"].callbacks] == ["assign", "lost", "assign"]
        assert k.committed(group, topic) == (OFFSET_INVALID, None)

    run(test)


def test_a_killed_producers_transaction_is_aborted_when_it_is_too_old() -> None:
    def test(k: Model) -> None:
        topic = k.topic()

        def work() -> None:
            producer = k.transactional("id", transaction_timeout_ms=30_000)
            producer.begin_transaction()
            producer.produce(topic, b"a", partition=0)
            producer.flush(5)
            k.sleep(1000)

        process = process_of(k, "one", work)
        k.until(lambda: cluster(k).end_offset(topic, 0))
        process.kill()
        k.put(topic, "behind it")
        assert cluster(k).end_offset(topic, 0, read_committed=True) == 0
        k.sleep(45)
        assert [entry.value for entry in cluster(k).records(topic, 0)] == [b"behind it"]

    run(test)


def test_what_a_killed_process_had_queued_is_never_sent() -> None:
    def test(k: Model) -> None:
        topic = k.topic()
        process = process_of(k, "one", lambda: k.producer().produce(topic, b"a", partition=0))
        k.sleep(0.001)
        process.kill()
        k.sleep(10)
        assert cluster(k).records(topic, 0) == []

    run(test)


# --- what stories do


def test_the_operations_of_stories() -> None:
    def test(k: Model) -> None:
        brokers = cluster(k)
        brokers.create_topic("t", 2)
        for value in (b"a", b"b", b"c"):
            brokers.put("t", 0, value, key=b"same")
        brokers.commit_as_foreigner("g", "t", 0, 2, "theirs\0")
        assert k.committed("g", "t") == (2, "theirs")
        brokers.advance_low_watermark("t", 0, 1)
        assert [entry.offset for entry in brokers.records("t", 0)] == [1, 2]
        brokers.compact("t", 0)
        assert k.values("t") == [(2, "c")]
        assert brokers.end_offset("t", 0) == 3
        brokers.add_partitions("t", 3)
        assert brokers.count("t") == 3
        brokers.expire_offsets("g")
        assert k.committed("g", "t") == (OFFSET_INVALID, None)
        brokers.commit_as_foreigner("g", "t", 0, 2)
        brokers.delete_group("g")
        assert k.committed("g", "t") == (OFFSET_INVALID, None)
        brokers.commit_as_foreigner("g", "t", 0, 2)
        first = brokers.topics["t"].id
        brokers.delete_topic("t")
        brokers.create_topic("t")
        k.sleep(1)
        assert brokers.committed("g", "t", 0) is None
        assert str(brokers.topics["t"].id) != str(first)

    run(test)


def test_the_same_seed_gives_the_same_run() -> None:
    def story(seed: int) -> tuple[list[Any], int]:
        seen: list[Any] = []

        def test(k: Model) -> None:
            topic, group, members = k.topic(3), "group", {}
            processes = [reading(k, group, topic, members, name) for name in ("one", "two", "three")]
            for number in range(10):
                k.put(topic, str(number), partition=number % 3)
                k.sleep(1)
            processes[seed % 3].kill()
            k.sleep(20)
            seen.extend((name, round(k.now(), 6), m.callbacks, m.records) for name, m in sorted(members.items()))

        world = run(test, seed=seed)
        return seen, world.steps

    assert story(3) == story(3)
    assert story(3) != story(4)


def test_an_idle_consumer_takes_few_steps() -> None:
    def test(k: Model) -> None:
        topic = k.topic()
        consumer: Consumer = k.consumer("group", group_instance_id="one")
        consumer.subscribe([topic])
        k.until(lambda: consumer.poll(0.02) is None and consumer.assignment())
        before = k.world.steps
        end = k.now() + 100
        while k.now() < end:
            consumer.poll(0.02)
        assert k.world.steps - before < 200

    run(test)
