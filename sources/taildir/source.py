"""The source `taildir`: the loop that looks, reads, yields and saves."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

from plugins import Batch, Retry, Source
from sources.taildir.config import TaildirConfig
from sources.taildir.files import Files
from sources.taildir.groups import Groups
from sources.taildir.lines import Lines, batch_of
from sources.taildir.positions import PositionFile
from sources.taildir.tail import MAX_LINE, ChangedError, Tail
from sources.taildir.troubles import Troubles
from sources.taildir.watch import Watch

_BATCH_BYTES = 512 << 10
"""A batch is full at so many bytes, or at `batchSize` lines."""
_LEAST_BYTES = _BATCH_BYTES // 8
"""With less space than that left in a batch, the next file's lines wait for the next."""
_GATHER = 0.002
"""Seconds between a hint and the look."""
_TURN_BYTES = 16 * _BATCH_BYTES
"""So much of one file is read before the next has its turn; more than the longest line."""
assert _TURN_BYTES > MAX_LINE + 1


class TaildirSource(Source[TaildirConfig]):
    """Follows growing files through rotation, at least once: a kill repeats at most the one batch not yet stored.

    A line is read once a newline ends it, or once its file was renamed or deleted and has been idle. What
    `copytruncate` throws away between its copy and its truncation cannot be read by anyone, and a copy whose name
    matches is a file of its own.
    """

    type_name = "taildir"
    aliases = ("TAILDIR", "org.apache.flume.source.taildir.TaildirSource")

    def __init__(self, config: TaildirConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._held = ExitStack()

    def open(self) -> None:
        """Read the positions and find the files. Raises Retry while the position file cannot be used."""
        config = self.config
        self._troubles = Troubles(self.log, self.metrics)
        self._positions = PositionFile(config.position_path)
        self._held.callback(self._positions.close)
        self._files = Files(
            Groups(config.groups(), self._troubles, cache=config.cache_pattern_matching),
            self._positions.open(),
            self._troubles,
            self.log,
            file_header=config.file_header_key if config.file_header else None,
            idle=config.idle_timeout / 1000,
        )
        self._held.callback(self._files.close_all)
        self._watch = Watch(self.log)
        self._held.callback(self._watch.close)
        self._yielded: list[Lines] = []
        self._behind: set[Tail] = set()
        self._pause = 0.0
        self._next_look = 0.0
        self._found = False
        self._files.scan(skip_to_end=config.skip_to_end)
        try:
            # Before anything is read: what skipToEnd skips now must not be skipped anew after a crash.
            self._positions.save(self._files)
        except OSError as e:
            raise Retry(self._positions.unwritable(e)) from e
        self._news = self._unsaved = False
        self._unwritable = ""
        self._saved_at = time.monotonic()
        self._held.callback(lambda: self._news and self._save())

    def close(self) -> None:
        """Save what is known, and let go of every file."""
        self._held.close()

    def probe(self) -> Iterator[str]:
        """What is wrong with the position file, and directories and files that cannot be read."""
        yield from PositionFile(self.config.position_path).problems()
        for group in self.config.groups():
            try:
                paths = sorted(p for p in Path(group.directory).iterdir() if group.pattern.fullmatch(p.name))
            except OSError as e:
                yield f"directory {group.directory} cannot be read: {e.strerror}"
                continue
            for path in paths:
                if path.is_file() and not os.access(path, os.R_OK, effective_ids=True):
                    yield f"{path} cannot be read: Permission denied"

    def batches(self) -> Iterator[Batch]:
        """Look, and wait for a reason to look again, until stopping."""
        while not self.stopping.is_set():
            yield from self.look()
            if not self._behind:
                self._wait()

    def stored(self, batch: Batch) -> None:
        """Save how far the files of that batch are stored, before the next batch is offered."""
        if not self._yielded:
            return
        for lines in self._yielded:
            lines.tail.advance(lines.mark)
        self._yielded = []
        self._unsaved = True
        self._save()

    # --- looking

    def look(self) -> Generator[Batch, None, bool]:
        """One pass over all files that may have grown. Whether `maxBatchCount` kept it from the end of one."""
        cut_short = False
        pieces: list[Lines] = []
        room, space = self.config.batch_size, _BATCH_BYTES
        for tail, size, final in self._due():
            until = min(size, tail.position + _TURN_BYTES)
            batches = 0
            while not self.stopping.is_set():
                if batches == self.config.max_batch_count:
                    self._go_on_with(tail)
                    cut_short = True
                    break
                lines = self._read(tail, until, room, space, final=final)
                if lines is None:
                    break
                pieces.append(lines)
                more = tail.position + space < until
                room -= len(lines.ends)
                space -= len(lines.text)
                if not more and room and space > _LEAST_BYTES:
                    break  # no whole line is left in this file, and the next one's fit in as well
                yield from self._offer(pieces)
                pieces, room, space = [], self.config.batch_size, _BATCH_BYTES
                batches += 1
            if until < size:
                self._go_on_with(tail)
        if pieces and not self.stopping.is_set():
            yield from self._offer(pieces)
        return cut_short

    def _due(self) -> list[tuple[Tail, int, bool]]:
        """Files to read, in the order of their last change; their size; whether an unfinished line counts as well."""
        now = time.monotonic()
        hints = self._watch.take()
        if hints.overflow or now >= self._next_look:
            tails = self._look_everywhere(now)
        else:
            grown, changed = self._files.hinted(hints)
            self._news = self._news or bool(changed)
            tails = grown | changed | self._behind
        self._behind = set()
        due = []
        for tail in tails:
            try:
                status = tail.status()
            except OSError as e:
                self._unreadable(tail, e)
                continue
            if status is None:
                continue  # the next look everywhere finds what became of it
            state = (status.st_size, status.st_mtime_ns)
            final = state == tail.seen and tail.rotated and self._files.idle(tail, now)
            if state != tail.seen:
                tail.changed_at = now
            elif not final or status.st_size <= tail.position:
                continue
            tail.seen = state
            due.append((status.st_mtime_ns, tail.path, tail, status.st_size, final))
        due.sort(key=lambda entry: entry[:2])
        self._found = self._found or bool(due)
        return [entry[2:] for entry in due]

    def _look_everywhere(self, now: float) -> set[Tail]:
        least = self.config.backoff_sleep_increment / 1000
        self._pause = least if self._found else min(self._pause + least, self.config.max_backoff_sleep / 1000)
        self._found = False
        self._next_look = now + self._pause
        for directory in self._files.directories:
            self._watch.add(directory)
        changed = self._files.scan()
        self._news = self._files.rest(now) or bool(changed) or self._news
        if self._news and now - self._saved_at >= self.config.write_position_interval / 1000:
            self._save()
        tails = set(self._files.followed)
        self.metrics.set("FollowedFileCount", len(tails))
        return tails

    def _read(self, tail: Tail, until: int, room: int, space: int, *, final: bool) -> Lines | None:
        """At most `room` lines, about `space` bytes. None where no line is whole, or the file cannot be read."""
        try:
            self._files.open(tail)
            data = tail.rest(until) if final else tail.read(space, until)
            if not tail.provable:
                # The proof of a new file must be on disk before its first lines go: should they not be stored, and
                # the file be renamed while we are down, nothing else would find it.
                tail.mark = tail.mark_at(tail.position)
                self._news, self._unsaved = tail.provable or self._news, bool(data) or self._unsaved
            if not data:
                return None
            lines = Lines.of(tail, data, room, keep_cr=self.config.keep_carriage_return)
        except ChangedError:
            self._news = True
            if not tail.matched:
                self._files.forget(tail)
                return None
            self.log.info("%s was emptied, or is another file by now: it is read from its start", tail.path)
            self.metrics.add("FileRestartCount")
            self._files.restart(tail)
            return self._read(tail, until, room, space, final=False)
        except OSError as e:
            self._unreadable(tail, e)
            return None
        self._troubles.over(tail.path)
        if not final and not data.endswith(b"\n"):
            self.metrics.add("LineSplitCount")
        return lines

    def _go_on_with(self, tail: Tail) -> None:
        """The next look is at that file again, without waiting."""
        tail.seen = None
        self._behind.add(tail)

    def _unreadable(self, tail: Tail, error: OSError) -> None:
        tail.seen = None
        if isinstance(error, FileNotFoundError):
            return  # renamed or deleted this moment: the next look everywhere finds it
        self._troubles.report(tail.path, f"{tail.path} cannot be read, it is tried again: {error.strerror or error}")
        if tail.named:
            self._files.close(tail)

    def _wait(self) -> None:
        while not self.stopping.is_set() and (left := self._next_look - time.monotonic()) > 0:
            if self._watch.wait(min(left, 0.1)):
                # Lines that come one by one shall not become batches of one each.
                self.stopping.wait(_GATHER)
                return

    # --- yielding and saving

    def _offer(self, pieces: list[Lines]) -> Iterator[Batch]:
        while self._unsaved and not self._save():
            if self.stopping.wait(1):
                return
        batch = batch_of(pieces, byte_offsets=self.config.byte_offset_header)
        self._yielded = pieces
        yield batch
        self.stored(batch)  # resumed means stored; nothing is left to do where we were told before

    def _save(self) -> bool:
        """Write the positions; False where that fails, which stops the reading until it works."""
        try:
            self._positions.save(self._files)
        except OSError as e:
            self._news = True
            text = self._positions.unwritable(e)
            if self.metrics.last_error != text:
                self.metrics.error(text)
                self.log.error("%s", text)
            self._unwritable = text
            return False
        if self._unwritable:
            self.log.info("positions can be written again")
            if self.metrics.last_error == self._unwritable:
                self.metrics.error("")
            self._unwritable = ""
        self._news = self._unsaved = False
        self._saved_at = time.monotonic()
        return True
