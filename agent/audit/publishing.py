"""Publishes what goes into a channel and what is taken out of it, for the audit: counts and checksums by minute."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any

import msgspec
from confluent_kafka import KafkaException

from flafka.agent.audit.sums import PUT, Minutes, Report, Sum, add, tally
from flafka.agent.options import AgentOptions
from flafka.agent.sidetopics import producer_to
from flafka.plugins import Batch, Channel, KafkaStream, PolledBatch, Receipt, Retry
from flafka.plugins.kafka.errors import BROKEN, failure, is_broken
from flafka.plugins.kafka.topic import KafkaBackedChannel

log = logging.getLogger(__name__)

OPTION = "audit.topic"
PUBLISH_SECONDS = 30.0
"""Longest wait for brokers to acknowledge reports, which are sent later where they do not."""
AUDIT_INTERVAL_SECONDS = 10.0
"""Interval at which an idle channel reports that time has passed."""
DAYS = 7
CLIENT = {"message.timeout.ms": 0, "linger.ms": 1}
"""Whatever it takes, a report is published while its agent lives."""
HEADERS = [("flafka.format", b"raw/1")]
"""Record headers with which a Kafka channel can read the topic."""


class Audit:
    """The audit reports of one channel, on a topic of its brokers.

    Events are put before their report is published, and reported before they are committed: what a kill leaves out is
    too many of the others, never a loss that is not seen. No event waits for the audit for longer than half a minute.
    """

    def __init__(self, stream: KafkaStream, topic: str, replication: int) -> None:
        self.stream, self.topic, self.replication = stream, topic, replication
        self._lock = threading.Lock()
        self._producer: Any = None

    def open(self) -> None:
        """Create the topic where it is missing. Raises Retry."""
        with self._lock:
            if self._producer is None:
                try:
                    self._producer = producer_to(self.stream, self.topic, self.replication, days=DAYS, **CLIENT)
                except KafkaException as e:
                    text = f"{OPTION} {self.topic} cannot be written to: {e.args[0].str()}"
                    raise failure(e, text) from e

    def put(self, batch: Batch) -> None:
        """Report that the channel has stored these events."""
        if len(batch):
            self._publish([Report(self.stream.topic, PUT, tally(batch))])

    def taken(self, staged: Iterable[tuple[Receipt, Minutes]], by: str) -> None:
        """Report records that are delivered, filtered out or kept as dead letters, before they are committed.

        `by` is the reader that took them.
        """
        self._publish(_report(receipt, minutes, by) for receipt, minutes in staged)

    def withdraw(self, receipt: Receipt, by: str) -> None:
        """Take back the report of that reader on these records: their commit did not come about."""
        self._publish([_report(receipt, {}, by, withdrawn=True)])

    def alive(self) -> None:
        """Report that time has passed: a minute may count as complete now, though nothing came since."""
        self._publish([Report(self.stream.topic, "", {})])

    def _publish(self, reports: Iterable[Report]) -> None:
        """Return when they are durable; where that takes too long they are sent once the brokers answer again."""
        answers: list[Any] = []
        count, lost = 0, None
        producer: Any = None
        try:
            self.open()  # anew, where the producer was broken
            producer = self._producer
            for report in reports:
                data = msgspec.json.encode(report)
                producer.produce(
                    self.topic,
                    data,
                    report.topic,
                    headers=HEADERS,
                    on_delivery=lambda error, _: answers.append(error),
                )
                count += 1
            deadline = time.monotonic() + PUBLISH_SECONDS
            while len(answers) < count and time.monotonic() < deadline:
                producer.poll(0.01)  # not longer: another thread's poll may hear the answer
        except (BufferError, Retry, *BROKEN) as e:  # raised, it would have events put or written once more
            lost = e
            if is_broken(e):
                with self._lock:
                    self._producer = None if self._producer is producer else self._producer
        if (lost := lost or next(filter(None, answers), None)) is not None:
            log.warning("a report to %s %s is lost, and it will show differences: %s", OPTION, self.topic, lost)
        elif len(answers) < count:
            log.warning("reports to %s %s are waiting for its brokers", OPTION, self.topic)

    def close(self) -> None:
        """Give up what could not be published."""
        if self._producer is None:
            return
        left = 0
        with contextlib.suppress(*BROKEN):
            left = self._producer.flush(5)
        if left:
            log.warning(
                "%d reports to %s %s could not be published: it will show differences", left, OPTION, self.topic
            )


def _report(receipt: Receipt, minutes: Minutes, by: str, *, withdrawn: bool = False) -> Report:
    assignment, offsets = receipt.assignment, receipt.offsets
    topic, epoch = assignment.topic_partition, assignment.generation.epoch
    chain = f"{topic.topic_id}/{epoch}/{topic.partition}"
    return Report(topic.topic, assignment.group, dict(minutes), chain, offsets.start, offsets.end, by, withdrawn)


class Tallies:
    """Sums by minute of the events that a delivery has taken and not committed."""

    def __init__(self) -> None:
        self._minutes: defaultdict[int, dict[int, Sum]] = defaultdict(dict)

    def taken(self, polled: PolledBatch) -> None:
        """Add them, but for those that are replayed."""
        add(self._minutes[polled.assignment.partition], tally(polled.fresh()))

    def dropped(self, partitions: Collection[int]) -> None:
        """Forget what was taken of these partitions."""
        for partition in partitions:
            self._minutes.pop(partition, None)

    def of(self, partition: int) -> dict[int, Sum]:
        """Return the sums of the events taken of this partition."""
        return dict(self._minutes[partition])


def audit_of(channel: Channel, options: AgentOptions) -> Audit | None:
    """The audit of a channel; None where none is wanted, where it is not in Kafka, and for the audit's own topic."""
    topic = options.audit_topic
    if topic is None or not isinstance(channel, KafkaBackedChannel) or channel.kafka.stream(None).topic == topic:
        return None
    return Audit(channel.kafka.stream(None), topic, channel.replication)
