"""Compatibility notes of the Elasticsearch sink."""

from __future__ import annotations

from flafka.plugins import CompatibilityNote

ELASTICSEARCH = (
    CompatibilityNote(
        flume="ids are random, so that a redelivery duplicates documents",
        here="a document's id is the event's id: a redelivery replaces it",
    ),
    CompatibilityNote(
        flume="Java's transport protocol, port 9300; `client = rest` sends HTTP to port 80 by default",
        here="HTTP for both, on port 9200 instead of 9300 or no port, with a warning of `check` for 9300. "
        "`https://` or `ssl = true`, `truststore`, `username` and `password` are new",
    ),
    CompatibilityNote(
        flume="an event without the header `timestamp` goes to the index of the day on which it is sent",
        here="it goes to the index of the day of arrival in the channel, which is the same in a redelivery",
    ),
    CompatibilityNote(
        flume="a body that begins with JSON is stored up to the end of that JSON; comments and names without "
        "quotes are JSON too; a body that begins with `---` is read as YAML, and can stop the sink "
        "forever",
        here="a body that is JSON as a whole, by the standard, is stored as JSON, any other as text",
    ),
    CompatibilityNote(
        flume=r"bytes that are not UTF-8 become `\ufffd`",
        here=r"they become `\xff`",
    ),
    CompatibilityNote(
        flume="a document that the servers refuse stops the sink forever, or is lost silently with `client = rest`",
        here="it goes to the dead letters, and the rest of its batch is delivered; if most documents are refused, "
        "the sink pauses (`errors.tolerance`)",
    ),
    CompatibilityNote(
        flume="an index that is missing, closed, read-only or cannot be created stops the sink, or loses the events",
        here="events are sent again until the index accepts them; none is rejected",
    ),
)
