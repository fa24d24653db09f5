"""Reader of the next events of a tracked file."""

from __future__ import annotations

import codecs
import logging
import os
from typing import NamedTuple

from flafka.plugins import Metrics
from flafka.sources.compressed import COMPRESSED
from flafka.sources.taildir.config import TaildirConfig
from flafka.sources.taildir.events import Events
from flafka.sources.taildir.table import FileTable
from flafka.sources.taildir.tail import MAX_LINE, ChangedError, FileLocation, Tail
from flafka.sources.troubles import Troubles

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
BATCH_BYTES = 512 << 10
"""Size from which a batch is full, in bytes; `batchSize` limits its events."""
TURN_BYTES = 16 * BATCH_BYTES
"""Maximum number of bytes read from one file before the next file; more than the longest line."""
assert TURN_BYTES > MAX_LINE + 1


class Due(NamedTuple):
    """File with data to read."""

    tail: Tail
    until: int
    """File offset up to which to read, exclusive."""
    more: bool
    """True if the file has data from `until` on."""
    complete: bool
    """True if the last lines make an event, even where continuation lines could follow."""
    final: bool
    """True if an unfinished last line counts as a line."""
    modified: int
    """Modification time of the file, in nanoseconds since the epoch."""


class EventReader:
    """Reader of tracked files from their offsets; it knows which files to check again."""

    def __init__(
        self, config: TaildirConfig, table: FileTable, troubles: Troubles, metrics: Metrics, log: logging.Logger
    ) -> None:
        self._config, self._table = config, table
        self._troubles, self._metrics, self._log = troubles, metrics, log
        self._multiline = config.multiline()
        self.behind: set[Tail] = set()
        """Files with more data to read."""
        self.holding: set[Tail] = set()
        """Files whose last event waits for continuation lines."""
        self._utf16: set[str] = set()
        """Paths of UTF-16 files for which a warning was logged."""

    def read(self, due: Due, room: int, space: int) -> Events | None:
        """Return at most `room` events, of about `space` bytes.

        None where no event is complete, or the file is unreadable, which is logged as a rate-limited warning.
        """
        tail = due.tail
        try:
            self._table.open(tail)
            events = self._complete(due, room, space)
        except ChangedError:
            return self._restart(due, room, space)
        except OSError as e:
            self.unreadable(tail, e)
            return None
        self._troubles.over(tail.path)
        return events

    def _complete(self, due: Due, room: int, space: int) -> Events | None:
        """Read as `read` does. Raises ChangedError and OSError."""
        tail, limit, events = due.tail, space, None
        while events is None:
            data = tail.read_unfinished(due.until) if due.final else tail.read(limit, due.until)
            if not tail.provable:
                # Commit the fingerprint of a new file before its first lines are delivered. Without it, a file
                # renamed while the agent is down would not be identified, and its undelivered lines would be lost.
                tail.proof = tail.mark_at(tail.offset)
                self._table.unsaved.add(tail)
            tail.held = b""
            tail.blank = False
            if data.startswith(b"\0") and self._skip_nuls(tail, final=due.final):
                continue
            if not data or tail.blank or self._compressed(tail, data):
                break
            self._warn_of_utf16(tail, data)
            cut = not due.final and not data.endswith(b"\n")
            if cut:
                self._metrics.add("LineSplitCount")
            left = due.until - tail.offset
            # An event longer than a turn would never end: split it.
            complete = cut or (limit >= left and (due.complete or left >= TURN_BYTES))
            events = self._events(tail, data, room, complete=complete)
            tail.held = data[events.size :] if events else data
            if limit >= left:
                break
            limit *= 4  # the event is longer than `limit`
        (self.holding.add if tail.held else self.holding.discard)(tail)
        return events

    def _events(self, tail: Tail, data: bytes, room: int, *, complete: bool, lost: bool = False) -> Events | None:
        return Events.of(
            tail,
            data,
            room,
            keep_cr=self._config.keep_carriage_return,
            multiline=self._multiline,
            complete=complete,
            lost=lost,
            byte_offsets=self._config.byte_offset_header,
        )

    def _skip_nuls(self, tail: Tail, *, final: bool) -> bool:
        """Skip NULs at the beginning of a file; return True if there were any.

        A writer without O_APPEND leaves them after a truncation. Where the file has NULs only, the writer may still
        put text at its beginning: they are skipped only if `final`.
        """
        assert tail.fd is not None
        text = os.fstat(tail.fd).st_size if (found := tail.text_offset()) is None and final else found
        tail.blank = text is None
        if text is None or text <= tail.offset:
            return False
        self._metrics.add("NulByteCount", text - tail.offset)
        if not tail.holed:
            tail.holed = True
            self._log.warning(
                "%s begins with %d NUL bytes, which are skipped: a writer that does not append (O_APPEND) had it open"
                " when it was truncated",
                tail.path,
                text,
            )
        tail.advance(tail.mark_at(text))
        self._table.unsaved.add(tail)
        return True

    def _compressed(self, tail: Tail, data: bytes) -> bool:
        """Return True if the file is compressed, which is logged once."""
        if tail.offset or not data.startswith(COMPRESSED):
            return False
        if not tail.compressed:
            tail.compressed = True
            self._log.info("%s is compressed: it is not read", tail.path)
        return True

    def _warn_of_utf16(self, tail: Tail, data: bytes) -> None:
        """Log a warning, once per path, if the file begins with a byte order mark of UTF-16."""
        if tail.offset == 0 and data.startswith(_UTF16) and tail.path not in self._utf16:
            self._utf16.add(tail.path)
            self._log.warning(
                "%s is written in UTF-16: its lines are taken as bytes, a NUL beside each letter. Convert it with "
                "iconv -f UTF-16 -t UTF-8, or read it by a source spooldir with inputCharset = UTF-16",
                tail.path,
            )

    def _restart(self, due: Due, room: int, space: int) -> Events | None:
        """Read a truncated or replaced file from its start; emit buffered lines of its former content first."""
        tail = due.tail
        if tail.fd is None and tail.location is not FileLocation.MATCHED:
            self._table.forget(tail)  # another file, which no group matches, reused its inode
            return None
        # The buffered last event is in no file any more: emit it now.
        held = tail.held and self._events(tail, tail.held, len(tail.held), complete=True, lost=True)
        self._table.restart(tail)
        if held:
            self.poll_again(tail)
            return held
        return self.read(due._replace(complete=False, final=False), room, space)

    def poll_again(self, tail: Tail) -> None:
        """Check the file again at the next poll, without waiting."""
        tail.seen = None
        self.behind.add(tail)

    def unreadable(self, tail: Tail, error: OSError) -> None:
        """Log a rate-limited warning about an unreadable file, which is tried again."""
        tail.seen = None
        if isinstance(error, FileNotFoundError):
            return  # renamed or deleted just now: the next full scan finds it
        self._troubles.report(tail.path, f"{tail.path} cannot be read, it is tried again: {error.strerror or error}")
        if tail.has_name:
            self._table.close(tail)
