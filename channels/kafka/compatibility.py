"""Differences between the channel `kafka` and Flume's."""

from __future__ import annotations

from flafka.plugins import CompatibilityNote

KAFKA = (
    CompatibilityNote(
        flume="brokers older than Apache Kafka 2.8 are used",
        here="they are refused, as they have no topic ids: upgrade them, or use a channel of type file",
    ),
    CompatibilityNote(
        flume="a topic with `cleanup.policy=compact` is used, and brokers drop undelivered events",
        here="it is refused",
    ),
    CompatibilityNote(
        flume="a record that is no AvroFlumeEvent stops the channel for ever",
        here="the record becomes a dead letter, with its bytes and the reason",
    ),
    CompatibilityNote(
        flume="bytes behind an event are dropped, so another kind of Avro is read as empty events; a header that is "
        "not UTF-8 is read with U+FFFD in it",
        here="such a record becomes a dead letter",
    ),
    CompatibilityNote(
        flume="an event for a partition that does not exist fails its whole batch, again and again",
        here="it alone becomes a dead letter",
    ),
    CompatibilityNote(
        flume="a compacted topic is used, and loses events",
        here="it is refused: set cleanup.policy=delete",
    ),
    CompatibilityNote(
        flume="an event larger than the topic takes fails its whole batch, again and again",
        here="it alone becomes a dead letter, in parts",
    ),
    CompatibilityNote(
        flume="`kafka.producer.acks`, `enable.idempotence`, `retries = 0` and "
        "`max.in.flight.requests.per.connection` hold as they are written",
        here="all in-sync replicas have an event before it counts as stored, and repeated requests store it once, "
        "whatever they say",
    ),
    CompatibilityNote(
        flume="puts fail while brokers are away",
        here="sources wait; with `overflow = c2`, a channel `file`, they continue",
    ),
    CompatibilityNote(
        flume="a new group begins where `auto.offset.reset` says",
        here="it begins with the first event",
        option="kafka.consumer.auto.offset.reset",
    ),
)
