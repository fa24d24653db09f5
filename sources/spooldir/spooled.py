"""A file that is being read."""

# Paths are text here, as in all that looks at thousands of files.
# ruff: noqa: PTH118, PTH119

from __future__ import annotations

import logging
import os
from pathlib import Path

import pyarrow as pa

from flafka.sources.spooldir.config import SpooldirConfig
from flafka.sources.spooldir.content import Content, Skip
from flafka.sources.spooldir.deserializers import Piece, deserializer
from flafka.sources.spooldir.tracker import FileOffset


def readable(path: str) -> str:
    """The path as text: names on disk need not be UTF-8."""
    return os.fsencode(path).decode("utf-8", "replace")


class Spooled:
    """A file that is being read."""

    def __init__(self, config: SpooldirConfig, path: str, offset: int) -> None:
        """Open it. Raises OSError, and Skip where it cannot be read at all."""
        self.path = path
        self.offset = offset
        """Where what was not read yet begins."""
        self.events = 0
        """So many were read of it since it was opened."""
        self.headers: dict[str, str] = {}
        if config.file_header:
            self.headers[config.file_header_key] = readable(os.path.join(Path.cwd(), path))
        if config.basename_header:
            self.headers[config.basename_header_key] = readable(os.path.basename(path))
        self.reason = ""
        """Why it is not read any further."""
        self.content = Content(path, unpack=config.deserializer != "BLOB")
        self.state = self.content.state
        try:
            self._events = deserializer(config, self.content, offset)
        except BaseException:
            self.content.close()
            raise

    def read(self, room: int, space: int) -> Piece | None:
        """The next events; None at the end, or where reading cannot go on, with a `reason`. Raises OSError."""
        try:
            piece = self._events.read(room, space)
        except Skip as e:
            self.reason = str(e)
            return None
        if piece is None:
            if self.offset or self.events:
                return None
            # As in Flume, a file without any event is one empty event.
            piece = Piece(pa.array([b""], pa.binary()), 0)
        self.events += len(piece.bodies)
        self.offset = piece.offset
        return piece

    @property
    def ended(self) -> bool:
        """Whether its last byte was read; False as well where only another read can tell."""
        return not self.content.packed and self.offset >= self.state.size

    @property
    def taken(self) -> int:
        """How many bytes of it that is; of a compressed file about, as it is unpacked by blocks."""
        return self.content.unpacked_of if self.content.packed else self.offset

    @property
    def position(self) -> FileOffset:
        """How far it was read."""
        return FileOffset(self.path, self.offset, self.state)

    def close(self) -> None:
        """Let go of it; what is known of it stays."""
        self.content.close()


def resumed(config: SpooldirConfig, path: str, position: FileOffset | None, log: logging.Logger) -> Spooled:
    """That file, where it was left. Raises OSError, and Skip where it has changed since."""
    if position is None or not position.offset:
        return Spooled(config, path, 0)
    file = Spooled(config, path, position.offset)
    before = position.state
    if before is None:
        if file.content.packed or position.offset <= file.state.size:
            return file  # Flume's word has to do
    elif before.same_content(file.state):
        return file
    file.close()
    if before is not None and before.same_file(file.state):
        raise Skip("has changed since it was put there")
    log.warning(
        "%s is another file than the one that was read up to byte %d: it is read from its start",
        path,
        position.offset,
    )
    return Spooled(config, path, 0)
