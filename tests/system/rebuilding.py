"""Agent with every kind of Kafka client on a secured broker, and the numbered records that pass through it."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AclOperation, ResourceType

from flafka.agent.audit.reconciliation import read_topic
from flafka.agent.services.running import RunningAgent
from flafka.plugins.kafka.admin import read_up_to, watermarks
from flafka.plugins.kafka.clients import CONSUMER
from tests.fixtures.secured import Right, SecuredKafka
from tests.system.running import KAFKA

TOPIC, GROUP, TRANSACTIONS = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
SESSION_SECONDS = 6
"""Session timeout of consumers, the shortest that brokers allow."""
REJECTED_EVERY = 7
"""Each record whose number is a multiple of this is rejected by the sink, and becomes a dead letter."""


def agent_text(name: str, client: Callable[[str, tuple[str, ...]], str]) -> str:
    """Return the configuration: source `kafka` → channel `kafka` → sink `kafka`, with dead letters and an audit.

    All topics begin with `name`, which is also the group of the channel. `client` returns the lines with the brokers
    and the login of a component, for its producers, its consumers, or both.
    """
    lines = f"""
sources = s1
channels = c1
sinks = k1
audit.topic = {name}.audit
sources.s1.type = kafka
sources.s1.channels = c1
sources.s1.kafka.topics = {name}.in
sources.s1.kafka.consumer.group.id = {name}.in
sources.s1.kafka.consumer.auto.offset.reset = earliest
sources.s1.setTopicHeader = false
sources.s1.header.topic = topic
channels.c1.type = kafka
channels.c1.partitions = 1
channels.c1.replication = 1
channels.c1.kafka.topic = {name}
channels.c1.kafka.consumer.group.id = {name}
sinks.k1.type = kafka
sinks.k1.channel = c1
sinks.k1.kafka.topic = {name}.out
sinks.k1.flushInterval = 200
"""
    text = "\n".join(f"a1.{line}" for line in lines.split("\n") if line) + "\n"
    for component, kinds in (
        ("sources.s1", ("consumer",)),
        ("channels.c1", ("producer", "consumer")),
        ("sinks.k1", ("producer",)),
    ):
        text += client(f"a1.{component}", kinds)
    for component in ("sources.s1", "channels.c1"):
        text += f"a1.{component}.kafka.consumer.session.timeout.ms = {SESSION_SECONDS * 1000}\n"
    return text


def run_after_kill(directory: Path, text: str, records: NumberedRecords) -> str:
    """Run a killed agent again until all records have arrived, and return its log.

    The source may have put some records twice. The sink delivers each event of the channel once.
    """
    with RunningAgent(directory, text) as agent:
        records.stop()
        agent.until(records.all_arrived, "all records after the kill", 120)
        assert agent.stop() == 0
    assert records.arrived() == records.in_channel()
    assert records.arrived().keys() == {*range(records.sent)}
    assert "Traceback" not in agent.log
    return agent.log


def all_rights(name: str) -> list[Right]:
    """Return all rights of that agent."""
    written = [
        (TOPIC, topic, operation)
        for topic in (name, f"{name}.deadletters", f"{name}.positions", f"{name}.audit")
        for operation in (READ, WRITE, DESCRIBE, AclOperation.CREATE, AclOperation.DESCRIBE_CONFIGS)
    ]
    return [
        *written,
        (TOPIC, f"{name}.out", WRITE),
        (TOPIC, f"{name}.out", DESCRIBE),
        (TOPIC, f"{name}.in", READ),
        (GROUP, name, READ),
        (GROUP, f"{name}.in", READ),
        (TRANSACTIONS, "flafka", WRITE),
        (TRANSACTIONS, "flafka", DESCRIBE),
    ]


class NumberedRecords:
    """Thread that writes numbered records into a topic until its context ends, and reads where they arrived."""

    def __init__(self, kafka: SecuredKafka, name: str, seconds: float = 0.05) -> None:
        self._servers, self._name, self._seconds = kafka.servers["plain"], name, seconds
        self._stopping, self._paused, self._rests = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.sent = 0
        """Number of records written so far: their numbers are 0, 1, …"""

    def __enter__(self) -> NumberedRecords:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def pause(self) -> None:
        """Write no records until `resume`; return once the present ones are stored."""
        self._rests.clear()
        self._paused.set()
        assert self._rests.wait(120)

    def resume(self) -> None:
        """Write records again."""
        self._paused.clear()

    def stop(self) -> None:
        """Write no more records, and return once all are stored."""
        self._stopping.set()
        self._thread.join()

    def _write(self) -> None:
        producer = Producer({"bootstrap.servers": self._servers, "log_level": 0, "enable.idempotence": True})
        for number in itertools.count():
            rejected = number % REJECTED_EVERY == 0
            headers = [("topic", b"no topic!")] if rejected else []
            producer.produce(f"{self._name}.in", b"%d" % number, headers=headers)
            self.sent = number + 1
            producer.poll(0)
            while not self._stopping.wait(self._seconds) and self._paused.is_set():
                assert producer.flush(120) == 0
                self._rests.set()
            if self._stopping.is_set():
                break
        assert producer.flush(120) == 0

    def doubled(self) -> dict[str, list[int]]:
        """Return the numbers that are more than once in the channel, and where the sink delivers."""
        found = {"channel": self.in_channel(), "sink": self.arrived()}
        return {place: [number for number, count in numbers.items() if count > 1] for place, numbers in found.items()}

    def all_arrived(self, count: int | None = None) -> bool:
        """Return True if the first `count` records have arrived, by default all that were written so far."""
        count = self.sent if count is None else count
        return self.arrived().keys() >= {*range(count)}

    def arrived(self) -> Counter[int]:
        """Return how often each number is in the sink's topic, or in the topic of dead letters if it is rejected."""
        delivered, letters = self._numbers(f"{self._name}.out"), self._numbers(f"{self._name}.deadletters")
        assert not any(number % REJECTED_EVERY == 0 for number in delivered)
        assert all(number % REJECTED_EVERY == 0 for number in letters)
        return delivered + letters

    def latest(self) -> int:
        """Return the end of the sink's topic, which grows with each transaction."""
        return self._end(f"{self._name}.out")

    def _consumer(self) -> Consumer:
        return Consumer({**CONSUMER, "bootstrap.servers": self._servers, "group.id": "arrived", "log_level": 0})

    def in_channel(self) -> Counter[int]:
        """Return how often each number is in the channel's topic."""
        records = read_topic(self._servers, self._name, KAFKA)
        return Counter(int(event.body) for polls in records.values() for poll in polls for event in poll.batch)

    def _end(self, topic: str) -> int:
        with closing(self._consumer()) as consumer:
            return watermarks(consumer, TopicPartition(topic, 0), 10)[1]

    def _numbers(self, topic: str) -> Counter[int]:
        with closing(self._consumer()) as consumer:
            start = TopicPartition(topic, 0, OFFSET_BEGINNING)
            if topic not in consumer.list_topics(timeout=10).topics:
                return Counter()  # it was created just now
            end = watermarks(consumer, start, 10)[1]
            letters: dict[str, int] = {}
            numbers: list[int] = []
            for message in read_up_to(consumer, start, end, 20):
                headers = dict(message.headers() or ())
                if (letter := headers.get("flafka.letter")) is not None:
                    letters[letter.decode()] = int(message.value() or b"")  # dead letters of one name count once
                else:
                    numbers.append(int(message.value() or b""))
            return Counter([*numbers, *letters.values()])
