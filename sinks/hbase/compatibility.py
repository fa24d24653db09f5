"""What the sink `hbase` does otherwise than Flume's."""

from __future__ import annotations

from flafka.plugins import CompatibilityNote

HBASE = (
    CompatibilityNote(
        flume="row keys are random or come from the clock: what is delivered again would be stored twice",
        here="the key ends in the event's id, and cells have the time of arrival: a redelivery writes the same cells",
        seen=True,
    ),
    CompatibilityNote(
        flume="`batchSize` is 100",
        here="1000; and what comes while nothing is under way is written at once",
    ),
    CompatibilityNote(
        flume="`serializer.rowPrefix` is `default`",
        here="empty; `rowKey` makes keys of headers",
    ),
    CompatibilityNote(
        flume="the serializer `simple` counts in the cell of `incrementColumn`, redeliveries too, unless emptied",
        here="nothing is counted",
    ),
    CompatibilityNote(
        flume="a body that does not match `serializer.regex` is dropped in silence",
        here="it goes to the dead letters",
    ),
    CompatibilityNote(
        flume="a group without a match stops the sink for ever",
        here="the row lacks that column",
    ),
    CompatibilityNote(
        flume="a row that HBase refuses stops the sink for ever",
        here="it goes to the dead letters, the rest of its batch is delivered; where most rows are refused "
        "the sink pauses (`errors.tolerance`)",
    ),
)
