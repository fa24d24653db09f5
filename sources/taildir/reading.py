"""Reads the next events of one file that `taildir` follows."""

from __future__ import annotations

import codecs
import logging
import os
from typing import NamedTuple

from plugins import Metrics
from sources.compressed import COMPRESSED
from sources.taildir.config import TaildirConfig
from sources.taildir.events import Events
from sources.taildir.files import Files
from sources.taildir.tail import MAX_LINE, ChangedError, Tail
from sources.troubles import Troubles

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
BATCH_BYTES = 512 << 10
"""A batch is full at so many bytes, or at `batchSize` lines."""
TURN_BYTES = 16 * BATCH_BYTES
"""So much of one file is read before the next has its turn; more than the longest line."""
assert TURN_BYTES > MAX_LINE + 1


class Due(NamedTuple):
    """A file to read."""

    tail: Tail
    until: int
    """Offset up to which to read."""
    more: bool
    """Whether it has more than that."""
    complete: bool
    """Whether its last lines make an event, even if it might go on."""
    final: bool
    """Whether an unfinished last line counts as well."""
    modified: int
    """Modification time of the file, in nanoseconds since the epoch."""


class EventReader:
    """Reads files from their positions on, and knows which of them are to be looked at again."""

    def __init__(
        self, config: TaildirConfig, files: Files, troubles: Troubles, metrics: Metrics, log: logging.Logger
    ) -> None:
        self._config, self._files, self._troubles, self._metrics, self._log = config, files, troubles, metrics, log
        self._multiline = config.multiline()
        self.behind: set[Tail] = set()
        """Files that have more to read."""
        self.holding: set[Tail] = set()
        """Files whose last event may go on."""
        self._utf16: set[str] = set()
        """Paths of files in UTF-16, of which a warning was logged."""

    def read(self, due: Due, room: int, space: int) -> Events | None:
        """At most `room` events, about `space` bytes. None where none is complete, or the file cannot be read."""
        tail = due.tail
        try:
            self._files.open(tail)
            events = self._complete(due, room, space)
        except ChangedError:
            return self._start_again(due, room, space)
        except OSError as e:
            self.unreadable(tail, e)
            return None
        self._troubles.over(tail.path)
        return events

    def _complete(self, due: Due, room: int, space: int) -> Events | None:
        """As `read`, without its errors."""
        tail, limit, events = due.tail, space, None
        while events is None:
            data = tail.rest(due.until) if due.final else tail.read(limit, due.until)
            if not tail.provable:
                # The proof of a new file must be on disk before its first lines go: should they not be stored, and
                # the file be renamed while we are down, nothing else would find it.
                tail.mark = tail.mark_at(tail.position)
                self._files.unsaved.add(tail)
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
            left = due.until - tail.position
            # Where a whole turn has no end of an event, waiting for one would be for ever.
            complete = cut or (limit >= left and (due.complete or left >= TURN_BYTES))
            events = self._events(tail, data, room, complete=complete)
            tail.held = data[events.size :] if events else data
            if limit >= left:
                break
            limit *= 4  # an event is longer than that
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
        """Skip NULs before all text, which a writer leaves that did not notice a truncation; whether there are any.

        Where there is no text yet, it may still come before them, unless this is `final`.
        """
        assert tail.fd is not None
        text = os.fstat(tail.fd).st_size if (found := tail.first_text()) is None and final else found
        tail.blank = text is None
        if text is None or text <= tail.position:
            return False
        self._metrics.add("NulByteCount", text - tail.position)
        if not tail.holed:
            tail.holed = True
            self._log.warning(
                "%s begins with %d NUL bytes, which are skipped: a writer that does not append (O_APPEND) had it open"
                " when it was truncated",
                tail.path,
                text,
            )
        tail.advance(tail.mark_at(text))
        self._files.unsaved.add(tail)
        return True

    def _compressed(self, tail: Tail, data: bytes) -> bool:
        """Whether it is a file that a rotation has compressed."""
        if tail.position or not data.startswith(COMPRESSED):
            return False
        if not tail.compressed:
            tail.compressed = True
            self._log.info("%s is compressed: it is not read", tail.path)
        return True

    def _warn_of_utf16(self, tail: Tail, data: bytes) -> None:
        """Log a warning, one a path, where a file begins with the byte order mark of UTF-16."""
        if tail.position == 0 and data.startswith(_UTF16) and tail.path not in self._utf16:
            self._utf16.add(tail.path)
            self._log.warning(
                "%s is written in UTF-16: its lines are taken as bytes, a NUL beside each letter. Convert it with "
                "iconv -f UTF-16 -t UTF-8, or read it by a source spooldir with inputCharset = UTF-16",
                tail.path,
            )

    def _start_again(self, due: Due, room: int, space: int) -> Events | None:
        """It was emptied, or is another file by now: read it from its start."""
        tail = due.tail
        if tail.fd is None and not tail.matched:
            self._files.forget(tail)  # another file took its inode, which is nobody's business here
            return None
        # The last event, which might have gone on, is in no file any more.
        held = tail.held and self._events(tail, tail.held, len(tail.held), complete=True, lost=True)
        self._files.restart(tail)
        if held:
            self.go_on_with(tail)
            return held
        return self.read(due._replace(complete=False, final=False), room, space)

    def go_on_with(self, tail: Tail) -> None:
        """The next look is at that file again, without waiting."""
        tail.seen = None
        self.behind.add(tail)

    def unreadable(self, tail: Tail, error: OSError) -> None:
        """Say so, once; it is tried again."""
        tail.seen = None
        if isinstance(error, FileNotFoundError):
            return  # renamed or deleted this moment: the next look everywhere finds it
        self._troubles.report(tail.path, f"{tail.path} cannot be read, it is tried again: {error.strerror or error}")
        if tail.named:
            self._files.close(tail)
