"""Differences between the channel `kafka` and Flume's."""

from __future__ import annotations

from flafka.plugins import CompatibilityNote

KAFKA = (
    CompatibilityNote(
        flume="brokers older than Apache Kafka 2.8 are used",
        here="they are refused, as they have no topic ids: upgrade them, or take a channel of type file",
    ),
    CompatibilityNote(
        flume="a topic with `cleanup.policy=compact` is used, and brokers drop events that nobody has read",
        here="it is refused",
    ),
    CompatibilityNote(
        flume="a record that is no AvroFlumeEvent stops the channel for ever",
        here="it goes to the dead letters, with its bytes and the reason",
    ),
    CompatibilityNote(
        flume="bytes behind an event are dropped, so another kind of Avro is read as empty events; a header that is "
        "not UTF-8 is read with U+FFFD in it",
        here="such a record goes to the dead letters",
    ),
    CompatibilityNote(
        flume="an event for a partition that does not exist fails its whole batch, again and again",
        here="it alone goes to the dead letters",
    ),
    CompatibilityNote(
        flume="a compacted topic is used, and loses events",
        here="it is refused: set cleanup.policy=delete",
    ),
    CompatibilityNote(
        flume="an event larger than the topic takes fails its whole batch, again and again",
        here="it alone goes to the dead letters, in parts",
    ),
    CompatibilityNote(
        flume="`kafka.producer.acks`, `enable.idempotence`, `retries = 0` and "
        "`max.in.flight.requests.per.connection` hold as they are written",
        here="all in-sync replicas have an event before it counts as stored, and repeated requests store it once, "
        "whatever they say",
    ),
    CompatibilityNote(
        flume="puts fail while brokers are away",
        here="sources wait; with `overflow = c2`, a channel `file`, they go on",
    ),
    CompatibilityNote(
        flume="a new group begins where `auto.offset.reset` says",
        here="it begins with the first event",
        option="kafka.consumer.auto.offset.reset",
    ),
)
