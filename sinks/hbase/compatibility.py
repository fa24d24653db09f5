"""Compatibility notes of the HBase sink."""

from __future__ import annotations

from flafka.plugins import CompatibilityNote

HBASE = (
    CompatibilityNote(
        flume="row keys are random or come from the clock, so that a redelivery duplicates rows",
        here="the key ends in the event's id, and cells have the time of arrival: a redelivery writes the same cells",
        is_common=True,
    ),
    CompatibilityNote(
        flume="`batchSize` is 100",
        here="1000; events that arrive while no request is pending are written at once",
    ),
    CompatibilityNote(
        flume="`serializer.rowPrefix` is `default`",
        here="empty; `rowKey` may contain headers",
    ),
    CompatibilityNote(
        flume="the serializer `simple` counts events, redeliveries too, in the cell of `incrementColumn`, unless "
        "that is empty",
        here="events are not counted",
    ),
    CompatibilityNote(
        flume="a body that does not match `serializer.regex` is dropped silently",
        here="it goes to the dead letters",
    ),
    CompatibilityNote(
        flume="a group without a match stops the sink forever",
        here="the row lacks that column",
    ),
    CompatibilityNote(
        flume="a row that HBase refuses stops the sink forever",
        here="it goes to the dead letters, and the rest of its batch is delivered; if most rows are refused, "
        "the sink pauses (`errors.tolerance`)",
    ),
)
