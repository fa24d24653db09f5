"""Steps that concern the topic and the consumer group: a method `do_NAME` for each kind."""

from __future__ import annotations

from urllib.parse import quote

import confluent_kafka

from flafka.plugins.kafka.offsets import OffsetMetadata
from tests.simulator.kafka.topics import TOPIC_DEFAULTS
from tests.simulator.outcomes import Failure
from tests.simulator.plans import GROUP, OUT, TOPIC
from tests.simulator.program import command, in_process
from tests.simulator.replays import Replays

GOOD = {"place": "x", "to": "0", "row": "r", "number": "1"}
"""Headers of an event that can be delivered."""
REJECTED = {"place": "a:b", "to": "77", "number": "large"}
"""Headers that name no directory on HDFS, no partition of the topic, no number for Solr and no key of a row."""
BAD, LARGE = b" bad", b" " + b"l" * 30_000
"""Ends of the bodies of events that no sink takes, or no topic with `LOWERED_BYTES`."""
LOWERED_BYTES = 20_000
"""Value of `max.message.bytes` while it is lowered."""


class KafkaSteps(Replays):
    """Runs with the steps that concern the topic and the consumer group."""

    def do_topic(self, partitions: int) -> None:
        self.brokers.create_topic(TOPIC, partitions)

    def do_inherit(self, metadata: str, offset: int) -> None:
        """The group has positions from before the first agent starts."""
        if TOPIC not in self.brokers.topics:
            self.brokers.create_topic(TOPIC, 2)
        self.inherited = True
        self.was_reset_before = OffsetMetadata.parse(metadata).generation.epoch > 0
        self._produce(4 * self.brokers.count(TOPIC))
        self._read_log()
        for partition in range(self.brokers.count(TOPIC)):
            position = min(offset, self.brokers.end_offset(TOPIC, partition))
            text = metadata.replace("TOPIC", quote(self._topic_id(), safe=""))
            self.brokers.commit_as_foreigner(GROUP, TOPIC, partition, position, text)
            self._delivered_by_others(partition, position)

    def do_partitions(self, total: int) -> None:
        if self.brokers.count(TOPIC):
            self.brokers.add_partitions(TOPIC, max(total, self.brokers.count(TOPIC)))

    def _put(self, *ends: bytes) -> None:
        """Have an agent put one batch, of events whose bodies end so."""
        from flafka.plugins import Event

        batch = []
        for end in ends:
            self.number += 1
            body = b"event %d%s" % (self.number, end)
            self.bodies[body] = end != BAD
            batch.append(Event(body, REJECTED if end == BAD else GOOD))
        self.feed.waiting.append(batch)
        self.feed.changed.fire()

    def do_limit(self, topic: str, delay: float, seconds: float) -> None:
        """Lower the size of the largest record that the channel's or the sink's topic takes, between two batches."""
        limited = OUT if topic == "sink" and self.sink == "kafka" else TOPIC
        self._put(b"", LARGE, b"")
        self.world.sleep(delay)
        self._limited(limited, LOWERED_BYTES)
        self._put(b"", LARGE, b"")
        self.world.later(seconds, lambda: self._limited(limited, int(TOPIC_DEFAULTS["max.message.bytes"])))

    def _limited(self, topic: str, size: int) -> None:
        if topic in self.brokers.topics:
            self.world.log(f"topic {topic} takes records of {size} bytes from now on")
            self.brokers.topics[topic].configs["max.message.bytes"] = str(size)

    def do_truncate(self, partition: int, lost: int) -> None:
        """A replica that lacks the last records becomes leader."""
        if partition >= self.brokers.count(TOPIC):
            return
        self._read_log()
        start = max(0, self.brokers.end_offset(TOPIC, partition) - lost)
        committed = self.brokers.committed(GROUP, TOPIC, partition)
        if committed is not None and committed.leader_epoch < 0 and OffsetMetadata.parse(committed.metadata).time < 0:
            # The offset of another program, or of a reset, that no agent has taken over: the loss cannot be noticed.
            self._mark_removed(self.skipped, partition, start, committed.offset)
        self.brokers.truncate(TOPIC, partition, start)
        self._lost(partition, start)

    def do_backup(self) -> None:
        """The operator keeps a copy of the brokers' disks."""
        if self.brokers.count(TOPIC) and self.sink != "kafka":  # which has its events on these brokers, too
            self.backup = self._topic_id(), self.brokers.snapshot(TOPIC)

    def do_set_back(self, cold: bool) -> None:
        """The brokers' disks are lost: while no agent runs they are replaced by the copy.

        Brokers that were stopped for the copy began a leader epoch then, which they begin once more.
        """
        self._ended(*self.agents)
        if self.backup is None or self.backup[0] != self._topic_id():
            return
        self._read_log()
        for partition, end in enumerate(self.backup[1][0]):
            self._lost(partition, end)
        self.brokers.restore(TOPIC, self.backup[1], same_epochs=cold)
        self.epochs.clear()  # the copy may be older than a reset

    def do_put_elsewhere(self, records: int) -> None:
        """Agents on other hosts put so many events."""
        self._produce(records)

    def do_expect_stopped(self, partition: int) -> None:
        """The group waits for a person, whatever has come into the topic since."""
        committed = self.brokers.committed(GROUP, TOPIC, partition)
        if committed is None or not OffsetMetadata.parse(committed.metadata).lost:
            raise Failure(f"nobody has decided, and partition {partition} goes on: {committed}")

    def _lost(self, partition: int, start: int) -> None:
        """Brokers lose what a partition holds from there on."""
        topic = self._topic_id()
        self.unclean |= {
            (topic, number, offset, body)
            for body, places in self.logs[topic].items()
            for number, offset in places
            if number == partition and offset >= start
        }

    def _mark_removed(self, which: set[tuple[str, int, int]], partition: int, start: int, end: int) -> None:
        topic = self._topic_id()
        which |= {(topic, partition, offset) for offset in range(start, end)}

    def do_reset(self, to: str) -> None:
        committed = {p: self.brokers.committed(GROUP, TOPIC, p) for p in range(self.brokers.count(TOPIC))}
        positions = {  # as `agent group describe` shows them
            p: entry.offset
            for p, entry in committed.items()
            if entry is not None
            and entry.offset >= 0
            and OffsetMetadata.parse(entry.metadata).topic_id in ("", self._topic_id())
        }
        if not positions:
            return
        self._read_log()
        where = {p: {"earliest": 0, "same": offset, "middle": offset // 2}[to] for p, offset in positions.items()}
        for partition, position in where.items():
            try:
                arguments = ("--topic", f"{TOPIC}:{partition}", "--to", str(position), "--yes")
                in_process(
                    self.world,
                    "operator",
                    lambda a=arguments: command("group", "reset", GROUP, *a, "--bootstrap-server", "sim:9092"),
                )
            except RuntimeError as e:
                self.world.log(str(e.__cause__ or e).splitlines()[0])
                return
            self.resets.append((self._topic_id(), {partition: position}))
        self.epochs = {self._topic_id(): self._epochs()}

    def do_delete_group(self) -> None:
        if self.moved:
            return
        try:
            self.brokers.delete_group(GROUP)
            self.lost_metadata = True
            self.epochs.clear()  # nobody knows of a reset any more
        except Exception as e:
            self.world.log(f"the group stays: {e}")

    def do_foreign(self, partition: int, ahead: int) -> None:
        """Commit an offset for the group from another program, such as Flume."""
        if partition >= self.brokers.count(TOPIC) or self.moved:
            return
        self.lost_metadata = True
        committed, end = self.brokers.committed(GROUP, TOPIC, partition), self.brokers.end_offset(TOPIC, partition)
        position = max(
            0, min(end, (committed.offset if committed is not None and committed.offset >= 0 else 0) + ahead)
        )
        self._read_log()
        try:
            self.brokers.commit_as_foreigner(GROUP, TOPIC, partition, position)
        except Exception as e:
            self.world.log(f"another program may not commit: {e}")
            return
        self.epochs.clear()  # its commit says nothing of a reset
        self._delivered_by_others(partition, position)

    def _delivered_by_others(self, partition: int, position: int) -> None:
        log = self.logs[self._topic_id()]
        self.foreign |= {
            body for body, places in log.items() if any(p == partition and o < position for p, o in places)
        }

    def do_recreate(self, events: int) -> None:
        """Delete and recreate the topic, and have another agent produce into it."""
        if not self.brokers.count(TOPIC):
            return
        self._read_log(hidden=True)  # what was acknowledged goes with it, read or not
        partitions = self.brokers.count(TOPIC)
        self.brokers.delete_topic(TOPIC)
        self.world.sleep(1.0)
        if TOPIC in self.brokers.topics:  # an agent that was just starting has made it
            return
        self.brokers.create_topic(TOPIC, partitions)
        self._produce(events)

    def _produce(self, events: int) -> None:
        """Agents elsewhere write so many records into the topic."""
        from flafka.channels.kafka.records import ARROW, FORMAT, encode
        from flafka.plugins import Batch, Event

        if self.brokers.away_until > self.world.now:
            return
        values = []
        for _ in range(events):
            self.number += 1
            body = b"event %d" % self.number
            self.bodies[body] = True
            values.append((self.number % self.brokers.count(TOPIC), encode(Batch.of([Event(body, GOOD)]))))

        def produce() -> None:
            producer = confluent_kafka.Producer({"bootstrap.servers": "sim:9092"})
            for partition, value in values:
                producer.produce(TOPIC, value, None, partition, headers=[(FORMAT, ARROW)])
            producer.flush(10)

        if values:
            in_process(self.world, "another agent", produce)
