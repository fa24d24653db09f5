"""What the sink `elasticsearch` does otherwise than Flume's."""

from __future__ import annotations

from flafka.plugins import CompatibilityNote

ELASTICSEARCH = (
    CompatibilityNote(
        flume="ids are random: what is delivered again is there twice",
        here="a document's id is the event's id: a redelivery replaces it",
    ),
    CompatibilityNote(
        flume="Java's transport protocol, port 9300; `client = rest` sends HTTP to port 80 unless another is written",
        here="HTTP for both, port 9200, where 9300 or no port is written, with a warning of `check` for 9300. "
        "`https://` or `ssl = true`, `truststore`, `username` and `password` are new",
    ),
    CompatibilityNote(
        flume="an event without the header `timestamp` goes to the index of the day on which it is sent",
        here="of the day on which the channel took it: the same when it is sent again",
    ),
    CompatibilityNote(
        flume="a body that begins with JSON is stored up to the end of that JSON; comments and names without "
        "quotes are JSON too; a body that begins with `---` is read as YAML, and can stop the sink for "
        "ever",
        here="a body is JSON as a whole, by JSON's standard, or else it is text",
    ),
    CompatibilityNote(
        flume=r"bytes that are not UTF-8 become `\ufffd`",
        here=r"`\xff`",
    ),
    CompatibilityNote(
        flume="a document that the servers refuse stops the sink for ever, or, with `client = rest`, is lost "
        "in silence",
        here="it goes to the dead letters, the rest of its batch is delivered; where most documents are "
        "refused the sink pauses (`errors.tolerance`)",
    ),
    CompatibilityNote(
        flume="an index that is missing, closed, read-only or cannot be made stops the sink, or loses the events",
        here="they are sent again until it takes them; nothing is rejected",
    ),
)
