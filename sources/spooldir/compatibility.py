"""Differences between the source `spooldir` and Flume's."""

from __future__ import annotations

from flafka.plugins import CompatibilityNote

SPOOLDIR = (
    CompatibilityNote(
        flume="a file that has changed since it was put there, whose name with the suffix exists already, or that "
        "cannot be decoded stops the source until Flume is restarted",
        here="the file is skipped from there on; the other files are read. It is counted (`FileSkippedCount`) and "
        "degrades health until it is renamed or removed, also across restarts. Renaming it makes the source read it "
        "from its start",
    ),
    CompatibilityNote(
        flume="after a restart within a file, an older file makes Flume read the first one from its start again",
        here="the file that was read in part is finished first",
    ),
    CompatibilityNote(
        flume="of files with the same time and name, in several directories, that comes first which the system lists "
        "last",
        here="they are read in the order of their paths",
        option="recursiveDirectorySearch",
    ),
    CompatibilityNote(
        flume="an unreadable file blocks all files after it",
        here="it is tried again, and the other files are read",
    ),
    CompatibilityNote(
        flume="a damaged or empty Avro file is tried again for ever, and no other is read",
        here="it is read as far as possible, then skipped",
    ),
    CompatibilityNote(
        flume="with `deserializer.schemaType = LITERAL` the schema in the header is written anew, without blanks",
        here="as the file has it",
        option="deserializer.schemaType",
    ),
    CompatibilityNote(
        flume="a kill within a block repeats the block from its start",
        here="a batch has whole blocks, so that only the last batch is repeated",
        option="deserializer",
    ),
    CompatibilityNote(
        flume="`deserializer.maxLineLength` divides characters beyond U+FFFF, both halves become `?`",
        here="such a character is not split: it is in the next event",
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
        here="only malformed bytes are replaced, dropped or refused",
        option="inputCharset",
    ),
    CompatibilityNote(
        flume="in UTF-16 and UTF-32 the byte order is detected again after a restart within a file",
        here="the byte order mark at the start of the file determines it",
    ),
    CompatibilityNote(
        flume="compressed files are read as text",
        here="files compressed with gzip, bzip2, xz or zstd are uncompressed, except with `BLOB`",
    ),
    CompatibilityNote(
        flume="a missing directory is an error at the start",
        here="the source waits for it, and the agent's health shows that",
    ),
    CompatibilityNote(
        flume="`tracker_dir` silently ignores a file whose name has a mark already",
        here="the same, but a file that is younger than its mark is logged and shown in the agent's health",
        option="trackingPolicy",
    ),
)
