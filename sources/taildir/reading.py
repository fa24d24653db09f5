"""Reader of the next events of a tracked file."""

from __future__ import annotations

import codecs
import logging
import os

import msgspec

from flafka.plugins import Metrics
from flafka.sources.compression import MAGIC_NUMBERS
from flafka.sources.file_errors import FileErrors
from flafka.sources.taildir.config import TaildirConfig
from flafka.sources.taildir.events import Events
from flafka.sources.taildir.table import FileTable
from flafka.sources.taildir.tail import MAX_LINE_BYTES, ChangedError, FileLocation, Tail

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
BATCH_BYTES = 512 << 10
"""Size from which a batch is full, in bytes; `batchSize` limits its events."""
MAX_READ_BYTES = 16 * BATCH_BYTES
"""Maximum number of bytes read from one file at a time; more than the longest line."""
assert MAX_READ_BYTES > MAX_LINE_BYTES + 1


class PendingRead(msgspec.Struct, frozen=True, gc=False):
    """Unread data of a tracked file."""

    tail: Tail
    until: int
    """File offset up to which to read, exclusive."""
    has_more: bool
    """True if the file has data from `until` on."""
    is_complete: bool
    """True if the last lines make an event, even where continuation lines could follow."""
    is_final: bool
    """True if an unfinished last line counts as a line."""
    modified_ns: int
    """Modification time of the file, in nanoseconds since the epoch."""


class EventReader:
    """Reader of tracked files from their offsets, with the sets of files to read again."""

    def __init__(
        self, config: TaildirConfig, table: FileTable, file_errors: FileErrors, metrics: Metrics, log: logging.Logger
    ) -> None:
        self._config, self._table = config, table
        self._file_errors, self._metrics, self._log = file_errors, metrics, log
        self._multiline = config.multiline()
        self.unfinished: set[Tail] = set()
        """Files with more data to read."""
        self.buffering: set[Tail] = set()
        """Files whose last event waits for continuation lines."""
        self._utf16: set[str] = set()
        """Paths of UTF-16 files for which a warning was logged."""

    def read(self, pending: PendingRead, max_events: int, max_bytes: int) -> Events | None:
        """Return at most `max_events` events, of about `max_bytes` bytes.

        None where no event is complete, or where the file is unreadable, which is reported. A truncated or replaced
        file is read from its start; buffered lines of its former content come first.
        """
        tail = pending.tail
        try:
            self._table.open(tail)
            events = self._read_events(pending, max_events, max_bytes)
        except ChangedError:
            return self._restart(pending, max_events, max_bytes)
        except OSError as e:
            self.report_unreadable(tail, e)
            return None
        self._file_errors.clear(tail.path)
        return events

    def _read_events(self, pending: PendingRead, max_events: int, max_bytes: int) -> Events | None:
        """Return the next events of an open file; None where no event is complete, or the file is compressed.

        Lines of an incomplete event stay in `tail.buffered`. Raises ChangedError where the file was truncated or
        replaced, OSError where it cannot be read.
        """
        tail, limit, events = pending.tail, max_bytes, None
        while events is None:
            data = tail.read_unfinished(pending.until) if pending.is_final else tail.read(limit, pending.until)
            if not tail.has_known_content:
                # Commit the fingerprint of a new file before its first lines are delivered. Without it, a file
                # renamed while the agent is down would not be identified, and its undelivered lines would be lost.
                tail.checkpoint = tail.checkpoint_at(tail.offset)
                self._table.unsaved.add(tail)
            tail.buffered = b""
            tail.has_only_nuls = False
            if data.startswith(b"\0") and self._skip_nuls(tail, is_final=pending.is_final):
                continue
            if not data or tail.has_only_nuls or self._is_compressed(tail, data):
                break
            self._warn_of_utf16(tail, data)
            is_cut = not pending.is_final and not data.endswith(b"\n")
            if is_cut:
                self._metrics.add("LineSplitCount")
            unread_bytes = pending.until - tail.offset
            # An event longer than one read would never end: split it.
            is_complete = is_cut or (
                limit >= unread_bytes and (pending.is_complete or unread_bytes >= MAX_READ_BYTES)
            )
            events = self._events(tail, data, max_events, is_complete=is_complete)
            tail.buffered = data[events.size :] if events else data
            if limit >= unread_bytes:
                break
            limit *= 4  # the event is longer than `limit`
        (self.buffering.add if tail.buffered else self.buffering.discard)(tail)
        return events

    def _events(
        self, tail: Tail, data: bytes, max_events: int, *, is_complete: bool, is_lost: bool = False
    ) -> Events | None:
        """Return the events of data that was just read, by the options of the source; None if none is complete."""
        return Events.of(
            tail,
            data,
            max_events,
            keep_cr=self._config.keep_carriage_return,
            multiline=self._multiline,
            is_complete=is_complete,
            is_lost=is_lost,
            byte_offsets=self._config.byte_offset_header,
        )

    def _skip_nuls(self, tail: Tail, *, is_final: bool) -> bool:
        """Skip NULs at the beginning of a file; return True if the offset has moved past them.

        A writer without O_APPEND leaves them after a truncation. Where the file has NULs only, the writer may still
        put text at its beginning: they are skipped only if `is_final`.
        """
        assert tail.fd is not None
        text_offset = tail.text_offset()
        if text_offset is None and is_final:
            text_offset = os.fstat(tail.fd).st_size
        tail.has_only_nuls = text_offset is None
        if text_offset is None or text_offset <= tail.offset:
            return False
        self._metrics.add("NulByteCount", text_offset - tail.offset)
        if not tail.has_skipped_nuls:
            tail.has_skipped_nuls = True
            self._log.warning(
                "%s begins with %d NUL bytes, which are skipped: a writer that does not append (O_APPEND) had it open"
                " when it was truncated",
                tail.path,
                text_offset,
            )
        tail.advance(tail.checkpoint_at(text_offset))
        self._table.unsaved.add(tail)
        return True

    def _is_compressed(self, tail: Tail, data: bytes) -> bool:
        """Return True if the file, of which nothing was read yet, begins as a compressed one; log that once."""
        if tail.offset or not data.startswith(MAGIC_NUMBERS):
            return False
        if not tail.is_compressed:
            tail.is_compressed = True
            self._log.info("%s is compressed: it is not read", tail.path)
        return True

    def _warn_of_utf16(self, tail: Tail, data: bytes) -> None:
        """Log a warning, once per path, if the file begins with a byte order mark of UTF-16."""
        if tail.offset == 0 and data.startswith(_UTF16) and tail.path not in self._utf16:
            self._utf16.add(tail.path)
            self._log.warning(
                "%s is written in UTF-16: its lines are read as bytes, with a NUL beside each ASCII character. "
                "Convert it with iconv -f UTF-16 -t UTF-8, or use a source spooldir with inputCharset = UTF-16",
                tail.path,
            )

    def _restart(self, pending: PendingRead, max_events: int, max_bytes: int) -> Events | None:
        """Read a truncated or replaced file from its start; return buffered lines of its former content first.

        None where no event is complete. A closed file that no group matches is forgotten instead.
        """
        tail = pending.tail
        if tail.fd is None and tail.location is not FileLocation.MATCHED:
            self._table.forget(tail)  # another file, which no group matches, reused its inode
            return None
        # No file has the buffered last event any more: emit it now.
        events = tail.buffered and self._events(
            tail, tail.buffered, len(tail.buffered), is_complete=True, is_lost=True
        )
        self._table.restart(tail)
        if events:
            self.poll_again(tail)
            return events
        return self.read(msgspec.structs.replace(pending, is_complete=False, is_final=False), max_events, max_bytes)

    def poll_again(self, tail: Tail) -> None:
        """Check the file again at the next poll, without waiting."""
        tail.checked_state = None
        self.unfinished.add(tail)

    def report_unreadable(self, tail: Tail, error: OSError) -> None:
        """Report an unreadable file, and close it if a name leads to it; the next poll or scan tries it again.

        FileNotFoundError is ignored, as the next full scan locates the file.
        """
        tail.checked_state = None
        if isinstance(error, FileNotFoundError):
            return  # renamed or deleted just now: the next full scan finds it
        self._file_errors.report(
            tail.path, f"{tail.path} cannot be read, it is tried again: {error.strerror or error}"
        )
        if tail.has_name:
            self._table.close(tail)
