"""What the source `spooldir` does otherwise than Flume's."""

from __future__ import annotations

from flafka.plugins import CompatibilityNote

SPOOLDIR = (
    CompatibilityNote(
        flume="a file that has changed since it was put there, whose name with the suffix is taken, or that "
        "cannot be decoded stops the source until Flume is restarted",
        here="the file is left where it is, with what was not read of it; the others are read. It is counted "
        "(`FileSkippedCount`) and degrades health until it is renamed or removed, also across restarts. "
        "To have it read from its start, rename it",
    ),
    CompatibilityNote(
        flume="after a restart an older file than the one that was being read makes Flume begin that one again",
        here="what was begun is ended first",
    ),
    CompatibilityNote(
        flume="of files with the same time and name, in several directories, that comes first which the system lists "
        "last",
        here="they come in the order of their paths",
        option="recursiveDirectorySearch",
    ),
    CompatibilityNote(
        flume="an unreadable file stops all that come after it",
        here="it waits, the others are read",
    ),
    CompatibilityNote(
        flume="a damaged or empty Avro file is tried again for ever, and no other is read",
        here="it is read as far as possible and left where it is",
    ),
    CompatibilityNote(
        flume="with `deserializer.schemaType = LITERAL` the schema in the header is written anew, without blanks",
        here="as the file has it",
        option="deserializer.schemaType",
    ),
    CompatibilityNote(
        flume="a kill within a block repeats the block from its start",
        here="a batch holds whole blocks, so that nothing but the last batch is repeated",
        option="deserializer",
    ),
    CompatibilityNote(
        flume="`deserializer.maxLineLength` divides characters beyond U+FFFF, both halves become `?`",
        here="such a character stays whole, in the next event",
        option="deserializer.maxLineLength",
    ),
    CompatibilityNote(
        flume="bytes at the end of a file that begin a character and do not finish it are dropped, whatever "
        "`decodeErrorPolicy` says; some bytes that are no UTF-8 end a file early with `REPLACE` and "
        "`IGNORE`",
        here="`decodeErrorPolicy` decides",
    ),
    CompatibilityNote(
        flume="in UTF-16 and the charsets of East Asia, what is malformed may take a character behind it with it, or "
        "end a line",
        here="what is malformed is replaced, left out or refused, and nothing else",
        option="inputCharset",
    ),
    CompatibilityNote(
        flume="in UTF-16 and UTF-32 the order of bytes is guessed anew after a restart within a file",
        here="it is what the start of the file says",
    ),
    CompatibilityNote(
        flume="compressed files are read as text",
        here="files compressed with gzip, bzip2, xz or zstd are unpacked, but for `BLOB`",
    ),
    CompatibilityNote(
        flume="a missing directory is an error at the start",
        here="waited for, and shown in the agent's health",
    ),
    CompatibilityNote(
        flume="`tracker_dir` ignores a file whose name has a mark already, in silence",
        here="the same, and where it is younger than its mark that is in the log and in the health",
        option="trackingPolicy",
    ),
)
