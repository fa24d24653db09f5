"""Spooled file that is being read."""

# Paths are strings: Path objects would be slow for thousands of files.
# ruff: noqa: PTH118, PTH119

from __future__ import annotations

import logging
import os
from pathlib import Path

import pyarrow as pa

from flafka.sources.spooldir.config import SpooldirConfig
from flafka.sources.spooldir.content import FileContent, SkipFile
from flafka.sources.spooldir.deserializers import FileEvents, make_deserializer
from flafka.sources.spooldir.tracker import FileOffset


def path_text(path: str) -> str:
    """Return the path as valid text; bytes of a name that are not UTF-8 become U+FFFD."""
    return os.fsencode(path).decode("utf-8", "replace")


class SpooledFile:
    """Spooled file that is being read, with its headers and its offset."""

    def __init__(self, config: SpooldirConfig, path: str, offset: int) -> None:
        """Open the file at an offset of its uncompressed content.

        Raises OSError where it cannot be opened, SkipFile where it cannot be read at all.
        """
        self.path = path
        self.offset = offset
        """File offset of the first unread byte."""
        self.event_count = 0
        """Number of events read since the file was opened."""
        self.headers: dict[str, str] = {}
        if config.file_header:
            self.headers[config.file_header_key] = path_text(os.path.join(Path.cwd(), path))
        if config.basename_header:
            self.headers[config.basename_header_key] = path_text(os.path.basename(path))
        self.skip_reason = ""
        """Reason why the file is not read any further; empty where there is none."""
        self.content = FileContent(path, decompress=config.deserializer != "BLOB")
        self.state = self.content.state
        try:
            self._events = make_deserializer(config, self.content, offset)
        except BaseException:
            self.content.close()
            raise

    def read(self, room: int, space: int) -> FileEvents | None:
        """Return about `room` events of about `space` bytes; None at the end, or once `skip_reason` is set.

        A file without any event gives one empty event. Raises OSError where the file cannot be read.
        """
        try:
            piece = self._events.read(room, space)
        except SkipFile as e:
            self.skip_reason = str(e)
            return None
        if piece is None:
            if self.offset or self.event_count:
                return None
            # As in Flume, a file without any event is one empty event.
            piece = FileEvents(pa.array([b""], pa.binary()), 0)
        self.event_count += len(piece.bodies)
        self.offset = piece.offset
        return piece

    @property
    def is_at_end(self) -> bool:
        """True if the last byte was read. False for a compressed file, whose end only another read finds."""
        return not self.content.is_compressed and self.offset >= self.state.size

    @property
    def bytes_read(self) -> int:
        """Number of bytes read; for a compressed file about the compressed ones, as blocks are read ahead."""
        return self.content.compressed_offset if self.content.is_compressed else self.offset

    @property
    def file_offset(self) -> FileOffset:
        """Path, offset and state of the file, to be stored in the tracker."""
        return FileOffset(self.path, self.offset, self.state)

    def close(self) -> None:
        """Close the file; its offset and state stay available."""
        self.content.close()


def open_spooled(
    config: SpooldirConfig, path: str, file_offset: FileOffset | None, log: logging.Logger
) -> SpooledFile:
    """Open a file at its stored offset, or at its start where there is none.

    Raises OSError where the file cannot be opened, SkipFile if it has changed since the offset was stored. Another
    file of the same name is logged and read from its start.
    """
    if file_offset is None or not file_offset.offset:
        return SpooledFile(config, path, 0)
    file = SpooledFile(config, path, file_offset.offset)
    stored_state = file_offset.state
    if stored_state is None:
        if file.content.is_compressed or file_offset.offset <= file.state.size:
            return file  # Flume stores no state to compare
    elif stored_state.has_same_content(file.state):
        return file
    file.close()
    if stored_state is not None and stored_state.is_same_file(file.state):
        raise SkipFile("has changed since it was put there")
    log.warning(
        "%s is another file than the one that was read up to byte %d: it is read from its start",
        path,
        file_offset.offset,
    )
    return SpooledFile(config, path, 0)
