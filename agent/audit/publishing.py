"""Publication of audit reports: counts and checksums by minute of the events put into a channel and delivered."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

import msgspec
from confluent_kafka import KafkaError

from flafka.agent.audit.sums import PUT, Minutes, Report, Sum, add, tally
from flafka.agent.auxiliarytopics import AUDIT, explain_write_error, new_auxiliary_producer
from flafka.agent.options import AgentOptions
from flafka.plugins import Batch, Channel, KafkaStream, PolledBatch, Receipt, Retry
from flafka.plugins.kafka.clients import stream_client
from flafka.plugins.kafka.errors import FATAL_EXCEPTIONS, is_fatal
from flafka.plugins.kafka.renewal import ClientRenewal
from flafka.plugins.kafka.topic import KafkaBackedChannel

log = logging.getLogger(__name__)

OPTION = "audit.topic"
PUBLISH_SECONDS = 30.0
"""Longest wait of a put or commit for the acknowledgement of its reports, which the client sends later otherwise."""
AUDIT_INTERVAL_SECONDS = 10.0
"""Interval at which an idle channel reports that time has passed."""
RETENTION_DAYS = 7
REFUSED_REPORTS, REFUSED_REPORTS_SECONDS = 10_000, 5.0
"""Maximum number of refused reports that are kept, and interval between two attempts to publish them."""
CLIENT = {"message.timeout.ms": 0, "linger.ms": 1}
"""Properties of the producer, which retries without a timeout while its agent lives."""
HEADERS = [("flafka.format", b"raw/1")]
"""Record headers by which a Kafka channel can read the topic."""


class Audit:
    """Audit reports of one channel, on a topic of the channel's brokers. Thread-safe.

    Events are put before their report, and reported as delivered before their commit. A kill therefore causes a
    surplus in the audit, and never hides a loss. Puts and commits wait for the audit for at most `PUBLISH_SECONDS`.
    """

    def __init__(self, stream: KafkaStream, topic: str, replication: int) -> None:
        """`topic` is on the brokers of `stream`; `replication` is its replication factor if it is created."""
        self.stream, self.topic, self.replication = stream, topic, replication
        self._lock = threading.Lock()
        self._producer: Any = None
        self._failure = ""
        """Reason why the latest reports were not published; empty if they were."""
        self._refused: deque[tuple[str, bytes]] = deque(maxlen=REFUSED_REPORTS)
        """Keys and values of reports that brokers have refused for lack of a right, to be published later."""
        self._next_attempt = 0.0
        self._renewal = ClientRenewal(stream.client, lambda: stream_client(stream), log)
        self._former: list[Any] = []
        """Producers with former certificates that have not sent all reports."""

    def open(self) -> None:
        """Create the topic if it is missing, and the producer. Idempotent. Raises Retry."""
        with self._lock:
            if self._producer is None:
                self._producer = self._new_producer()
            elif (renewed := self._renewal.renew(lambda _: self._new_producer())) is not None:
                self._former = [producer for producer in (*self._former, self._producer) if len(producer)]
                self._producer = renewed

    def _new_producer(self) -> Any:
        """Return a producer, and create the topic if it is missing. Raises Retry."""
        try:
            return new_auxiliary_producer(
                AUDIT, self.stream, self.topic, self.replication, days=RETENTION_DAYS, **CLIENT
            )
        except Retry as e:
            raise type(e)(f"{OPTION} {self.topic} cannot be written to: {e}") from e

    def put(self, batch: Batch) -> None:
        """Report the sums of events that the channel has stored; nothing for an empty batch.

        Blocks for at most `PUBLISH_SECONDS`; a failure is logged, and nothing is raised.
        """
        if len(batch):
            self._publish([Report(self.stream.topic, PUT, tally(batch))])

    def taken(self, staged: Iterable[tuple[Receipt, Minutes]], by: str) -> None:
        """Publish a report for each receipt, before its commit: the records, and the sums of their events by minute.

        The sums include filtered events and dead letters. `by` is the ID of the reader, which `withdraw` needs.
        Blocks for at most `PUBLISH_SECONDS`; a failure is logged, and nothing is raised.
        """
        self._publish(_report(receipt, minutes, by) for receipt, minutes in staged)

    def withdraw(self, receipt: Receipt, by: str) -> None:
        """Withdraw the report of the reader `by` on these records, whose commit certainly failed.

        Blocks for at most `PUBLISH_SECONDS`; a failure is logged, and nothing is raised.
        """
        self._publish([_report(receipt, {}, by, withdrawn=True)])

    def report_alive(self) -> None:
        """Publish an empty report, so that the latest minute counts as complete even without new events.

        Raises nothing.
        """
        self._publish([Report(self.stream.topic, "", {})])

    def _publish(self, reports: Iterable[Report]) -> None:
        """Publish the reports, and block until they are durable, for at most `PUBLISH_SECONDS`.

        After that time the producer retries on its own. Reports that brokers refuse for lack of a right are published
        with a later call, once they accept them. A failure is only logged: raised, it would repeat the put or commit.
        """
        records = [(report.topic, msgspec.json.encode(report)) for report in reports]
        with self._lock:
            if self._refused:
                self._refused.extend(records)
                if time.monotonic() < self._next_attempt:
                    return
                records = [self._refused.popleft() for _ in range(len(self._refused))]
        answers: list[Any] = []
        count, lost = 0, None
        producer: Any = None

        def on_delivery(record: tuple[str, bytes], error: Any, _: Any) -> None:
            if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                self._refused.append(record)
            answers.append(error)

        try:
            self.open()  # replaces a broken producer
            producer = self._producer
            for record in records:
                key, data = record
                report_delivery = partial(on_delivery, record)
                producer.produce(self.topic, data, key, headers=HEADERS, on_delivery=report_delivery)
                count += 1
            deadline = time.monotonic() + PUBLISH_SECONDS
            while len(answers) < count and time.monotonic() < deadline:
                producer.poll(0.01)  # short, as a poll of another thread may get the acknowledgement
        except (BufferError, Retry, *FATAL_EXCEPTIONS) as e:  # raised, it would have events put or delivered again
            lost = e
            if not isinstance(e, BufferError | SystemError):
                self._refused.extend(records[count:])
            if is_fatal(e):
                with self._lock:
                    self._producer = None if self._producer is producer else self._producer
        if (lost := lost or next(filter(None, answers), None)) is not None:
            why = explain_write_error(lost, self.stream, self.topic)
            if why != self._failure:  # each put would log it
                lost_text = "are lost, the audit will show discrepancies"
                text = "wait until they are accepted" if self._refused else lost_text
                log.warning("reports to %s %s %s: %s", OPTION, self.topic, text, why)
            self._failure, self._next_attempt = why, time.monotonic() + REFUSED_REPORTS_SECONDS
        elif len(answers) < count:
            log.warning("reports to %s %s are waiting for its brokers", OPTION, self.topic)
        elif self._failure:
            log.info("reports to %s %s are published again", OPTION, self.topic)
            self._failure = ""

    def close(self) -> None:
        """Wait up to 5 s until all reports are published, and log the number of those that are not."""
        if self._producer is None:
            return
        unpublished = len(self._refused)
        for producer in (*self._former, self._producer):
            with contextlib.suppress(*FATAL_EXCEPTIONS):
                unpublished += producer.flush(5)
        if unpublished:
            text = "%d reports to %s %s could not be published, the audit will show discrepancies"
            log.warning(text, unpublished, OPTION, self.topic)


def _report(receipt: Receipt, minutes: Minutes, by: str, *, withdrawn: bool = False) -> Report:
    """Return the report on the records of a receipt; withdrawn, it cancels the earlier one of the reader `by`."""
    assignment, offsets = receipt.assignment, receipt.offsets
    topic, epoch = assignment.topic_partition, assignment.generation.epoch
    chain = f"{topic.topic_id}/{epoch}/{topic.partition}"
    return Report(topic.topic, assignment.group, dict(minutes), chain, offsets.start, offsets.end, by, withdrawn)


class Tallies:
    """Sums by minute of the events that a sink has taken and not committed. Not thread-safe."""

    def __init__(self) -> None:
        self._minutes: defaultdict[int, dict[int, Sum]] = defaultdict(dict)

    def taken(self, polled: PolledBatch) -> None:
        """Add the sums of a batch to the sums of its partition, without events that `agent dlq replay` redelivers."""
        add(self._minutes[polled.assignment.partition], tally(polled.without_replayed()))

    def dropped(self, partitions: Collection[int]) -> None:
        """Drop the sums of these partitions."""
        for partition in partitions:
            self._minutes.pop(partition, None)

    def of(self, partition: int) -> dict[int, Sum]:
        """Return the sums by minute of this partition's events that were taken and not dropped."""
        return dict(self._minutes[partition])


def audit_of(channel: Channel, options: AgentOptions) -> Audit | None:
    """Return the audit of a channel, not open yet.

    None without the option `audit.topic`, for channels outside Kafka, and for a channel whose topic is the audit
    topic.
    """
    topic = options.audit_topic
    if topic is None or not isinstance(channel, KafkaBackedChannel) or channel.kafka.stream(None).topic == topic:
        return None
    return Audit(channel.kafka.stream(None), topic, channel.replication)
