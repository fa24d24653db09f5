"""Deserializers: convert the content of a file to events, by lines, Avro records, or the whole file."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flafka.plugins import require
from flafka.plugins.java.charsets import text_codec
from flafka.sources import columns
from flafka.sources.spooldir.config import SpooldirConfig
from flafka.sources.spooldir.content import FileContent, SkipFile

HASH_HEADER, LITERAL_HEADER = "flume.avro.schema.hash", "flume.avro.schema.literal"
MIN_LINE_READ_BYTES = 4 << 20
"""Minimum number of bytes read of a line before it is split without a known end."""
MAX_LINE_READ_BYTES = 64 << 20
"""Maximum number of bytes read of a line before it is split."""
_BYTE_ORDER_MARKS = {
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
}
_SYNC_BYTES = 16
Ends = npt.NDArray[np.int64]
"""Offsets in a buffer."""


@dataclass(frozen=True, slots=True)
class FileEvents:
    """Consecutive events of one file."""

    bodies: pa.Array
    offset: int
    """File offset behind the events."""
    headers: Mapping[str, str] = field(default_factory=dict)


class Deserializer(Protocol):
    """Converter of the content of one file, from an offset on, to events."""

    def read(self, max_events: int, max_bytes: int) -> FileEvents | None:
        """Return about `max_events` events of about `max_bytes` bytes, but at least one event; None at the end.

        Raises OSError where the file cannot be read now. Raises SkipFile where it cannot be read any further; all
        events before that were returned.
        """


def make_deserializer(config: SpooldirConfig, content: FileContent, offset: int) -> Deserializer:
    """Return the configured deserializer, which begins at that offset of the uncompressed content.

    Raises OSError where the file cannot be read, SkipFile where its content is invalid.
    """
    match config.deserializer:
        case "AVRO":
            return _AvroRecords(content, offset, literal=config.schema_type == "LITERAL")
        case "BLOB":
            return _Blobs(content, offset, config.max_blob_length)
    return _TextLines(
        content,
        offset,
        charset=text_codec(config.input_charset),
        policy=config.decode_error_policy,
        output=text_codec(config.output_charset),
        max_length=config.line_length,
    )


class _TextLines:
    """Lines, split as in Flume: at line feeds only, and after `max_length` UTF-16 code units.

    A line of exactly that length is followed by an empty one. Unlike in Flume, surrogate pairs are not split.
    """

    def __init__(
        self, content: FileContent, offset: int, *, charset: str, policy: str, output: str, max_length: int
    ) -> None:
        self._content = content
        self._charset, mark = _detect_byte_order(charset, content)
        self._errors = {"FAIL": "strict", "REPLACE": REPLACE, "IGNORE": IGNORE}[policy]
        self._output = output
        self._max_length = max_length
        self._newline = "\n".encode(self._charset)
        self._unit = len(self._newline)
        self._max_line_bytes = min(max(MIN_LINE_READ_BYTES, 4 * max_length), MAX_LINE_READ_BYTES)
        self._offset = content.seek(offset or mark)
        self._data = b""
        """Buffer with the next lines."""
        self._start = 0
        """Index in the buffer where the next line begins."""
        self._newlines = np.empty(0, np.int64)
        """Indexes of the line feeds in the buffer."""
        self._line_count = 0
        """Number of line feeds before the next line."""
        self._end = False
        self._skip_error: SkipFile | None = None

    def read(self, max_events: int, max_bytes: int) -> FileEvents | None:
        """Return about `max_events` lines of about `max_bytes` bytes, at least one; None at the end.

        Raises SkipFile where the file has changed or the next line cannot be decoded, OSError on a read error.
        """
        while True:
            raw, ends = self._take(max_events, max_bytes)
            if not raw:
                if self._skip_error is not None:
                    raise self._skip_error
                return None
            events = self._convert(raw, ends)
            if len(events.bodies):
                return events

    def _convert(self, raw: bytes, ends: Ends) -> FileEvents:
        """Return the events of whole lines, and move behind these lines.

        Where a line cannot be decoded, the lines before it are returned, and nothing further is read. Raises SkipFile
        if there are none.
        """
        try:
            bodies = self._bodies(raw, ends)
        except UnicodeDecodeError as e:
            line_count = int(np.searchsorted(ends, e.start - self._unit, side="right"))
            valid = raw[: int(ends[line_count - 1]) + self._unit if line_count else 0]
            error_offset = self._offset + e.start
            self._skip_error = SkipFile(f"cannot be decoded as {self._charset}: {e.reason} at byte {error_offset}")
            self._data, self._start, self._newlines, self._line_count, self._end = b"", 0, self._newlines[:0], 0, True
            if not valid:
                raise self._skip_error from None
            raw, bodies = valid, self._bodies(valid, ends[:line_count])
        else:
            self._start += len(raw)
            self._line_count += len(ends)
        self._offset += len(raw)
        return FileEvents(bodies, self._offset)

    def _take(self, max_events: int, max_bytes: int) -> tuple[bytes, Ends]:
        """Return the bytes of the next lines, and the indexes of their line feeds in these bytes.

        Without indexes: a part of a too long line, or the last line, which no line feed ends. Both are empty at the
        end.
        """
        while self._line_count == len(self._newlines):
            buffered_bytes = len(self._data) - self._start
            if self._end:
                return self._unfinished(), self._newlines[:0]
            if buffered_bytes >= self._max_line_bytes:
                return self._data[self._start : self._split_offset()], self._newlines[:0]
            self._fill(max(max_bytes, 3 * buffered_bytes))
        fitting = int(np.searchsorted(self._newlines, self._start + max_bytes, side="right"))
        stop = min(max(fitting, self._line_count + 1), self._line_count + max_events)
        ends = self._newlines[self._line_count : stop]
        return self._data[self._start : int(ends[-1]) + self._unit], ends - self._start

    def _unfinished(self) -> bytes:
        """Return the last line, which no line feed ends; empty where the file has changed: the line may continue."""
        line = self._data[self._start :]
        if line and self._skip_error is None:
            try:
                self._content.check_unchanged()
            except SkipFile as e:
                self._skip_error = e
        return b"" if self._skip_error is not None else line

    def _fill(self, size: int) -> None:
        """Read up to `size` more bytes into the buffer, drop the lines before, and find the line feeds.

        At the end of the file, or where it cannot be read any further, `_end` is set.
        """
        try:
            data = self._content.read(size)
        except SkipFile as e:
            self._skip_error, data = e, b""
        self._end = not data
        self._data = self._data[self._start :] + data
        self._start = self._line_count = 0
        if self._unit == 1:
            self._newlines = np.flatnonzero(np.frombuffer(self._data, np.uint8) == self._newline[0])
        else:
            units = np.frombuffer(self._data, f"u{self._unit}", len(self._data) // self._unit)
            self._newlines = np.flatnonzero(units == int.from_bytes(self._newline, sys.byteorder)) * self._unit

    def _split_offset(self) -> int:
        """Return an index at which a line without a known end can be split: not within a character."""
        decoder = codecs.getincrementaldecoder(self._charset)("replace")
        decoder.decode(self._data[self._start :])
        return len(self._data) - len(decoder.getstate()[0])

    def _bodies(self, raw: bytes, ends: Ends) -> pa.Array:
        """Return the bodies of the lines in `raw`, in the output character set; long lines are split.

        Raises UnicodeDecodeError with `decodeErrorPolicy = FAIL`.
        """
        is_utf8 = self._charset == self._output == "utf-8"
        if is_utf8 and raw.isascii():
            text = None
        else:
            text = raw.decode(self._charset, self._errors)
            if not text:
                return pa.array([], pa.binary())  # IGNORE dropped all of it
        if self._output == "utf-8":
            if text is not None and not (is_utf8 and self._errors == "strict"):
                raw = text.encode()
                ends = np.flatnonzero(np.frombuffer(raw, np.uint8) == 0x0A)
            if not raw.endswith(b"\n"):
                ends = np.append(ends, len(raw))
            lengths = np.diff(ends, prepend=-1) - 1
            # Lines of fewer bytes than the maximum have fewer characters, too; the slow path counts characters.
            if int(lengths.max()) < self._max_length:
                return columns.binary_array(raw.replace(b"\n", b""), ends - np.arange(len(ends)))
        lines = (raw.decode("ascii") if text is None else text).split("\n")
        ends_line = not lines[-1]
        if ends_line:
            lines.pop()
        pieces: list[str] = []
        for number, line in enumerate(lines, 1):
            pieces += split_line(line, self._max_length, ends_line=ends_line or number < len(lines))
        return pa.array([piece.encode(self._output, "replace") for piece in pieces], pa.binary())


def split_line(line: str, max_length: int, *, ends_line: bool) -> list[str]:
    """Return the bodies of one line, split after every `max_length` UTF-16 units.

    `ends_line`: a line feed follows the line. An empty body follows a last part of full length then.
    """
    if len(line) * 2 < max_length:
        return [line]
    if line.isascii() or max(line) <= "\uffff":
        pieces = [line[start : start + max_length] for start in range(0, len(line), max_length)]
        is_full = len(line) % max_length == 0
    else:
        units = line.encode("utf-16-le", "surrogatepass")
        pieces, start, is_full = [], 0, False
        while start < len(units):
            end = start + 2 * max_length
            if end < len(units) and 0xDC <= units[end + 1] <= 0xDF:  # the second half of a surrogate pair
                end = end - 2 if max_length > 1 else end + 2
            pieces.append(units[start:end].decode("utf-16-le", "surrogatepass"))
            is_full, start = end - start >= 2 * max_length and end <= len(units), end
    # Flume stops at the limit before it reads the line feed, which then counts as an empty line.
    return [*pieces, ""] if ends_line and (is_full or not pieces) else pieces


def _detect_byte_order(charset: str, content: FileContent) -> tuple[str, int]:
    """Return the character set with its byte order, and the length of the byte order mark at the start of the file.

    Without a mark the byte order is big-endian, as in Java.
    """
    if charset not in _BYTE_ORDER_MARKS:
        return charset, 0
    content.seek(0)
    little, big = _BYTE_ORDER_MARKS[charset]
    mark = content.read(len(big))
    return f"{charset}-{'le' if mark == little else 'be'}", len(mark) if mark in (little, big) else 0


def _malformed_end(error: UnicodeError) -> int:
    """Return the end of the malformed byte sequence, as Java delimits it."""
    assert isinstance(error, UnicodeDecodeError)
    data, start = error.object, error.start
    if error.encoding == "utf-8" and data[start] == 0xED and len(data) >= start + 3:
        second, third = data[start + 1], data[start + 2]
        if 0xA0 <= second <= 0xBF and 0x80 <= third <= 0xBF:
            return start + 3  # half of a surrogate pair
    return error.end


REPLACE, IGNORE = "flafka.spooldir.replace", "flafka.spooldir.ignore"
codecs.register_error(REPLACE, lambda error: ("\ufffd", _malformed_end(error)))
codecs.register_error(IGNORE, lambda error: ("", _malformed_end(error)))


class _Blobs:
    """Whole file as one event, or as several events of up to `max_length` bytes."""

    def __init__(self, content: FileContent, offset: int, max_length: int) -> None:
        self._content = content
        self._offset = content.seek(offset)
        self._max_length = max_length

    def read(self, max_events: int, max_bytes: int) -> FileEvents | None:
        """Return one event of up to `max_length` bytes, whatever the limits; None at the end."""
        data = self._content.read(self._max_length)
        if not data:
            return None
        self._offset += len(data)
        return FileEvents(pa.array([data], pa.binary()), self._offset)


class _AvroRecords:
    """Records of an Avro file, each in Avro's binary encoding; one block at a time.

    The offset is that of the sync marker before a block, as in Flume: only whole blocks count as read.
    """

    def __init__(self, content: FileContent, offset: int, *, literal: bool) -> None:
        self._content, self._offset, self._literal = content, offset, literal
        self._fastavro = require("fastavro", "avro")
        self._blocks: Any = None
        self._headers: Mapping[str, str] = {}

    def read(self, max_events: int, max_bytes: int) -> FileEvents | None:
        """Return the records of the next block, whatever the limits; None at the end.

        Raises SkipFile where the file is damaged or has changed, OSError where it cannot be read.
        """
        try:
            if self._blocks is None:
                self._begin()
            block = next(self._blocks, None)
            if block is None:
                self._content.read(1)  # raises SkipFile if the file has changed
                return None
            data, ends, bodies = block.bytes_, [], []
            for _ in range(block.num_records):
                self._read_record(data, self._schema, None)
                ends.append(data.tell())
        except (OSError, SkipFile):
            raise
        except Exception as e:
            # fastavro raises errors of many classes for damaged content.
            raise SkipFile(f"is not a complete Avro file: {e or type(e).__name__}") from e
        block_bytes, start = data.getvalue(), 0
        for end in ends:
            bodies.append(block_bytes[start:end])
            start = end
        self._offset = max(0, self._content.tell() - _SYNC_BYTES)
        return FileEvents(pa.array(bodies, pa.binary()), self._offset, self._headers)

    def _begin(self) -> None:
        """Read the header of the file, set the schema header, and seek to the first block after the offset."""
        fastavro = self._fastavro
        self._content.seek(0)
        blocks = fastavro.block_reader(self._content)
        self._schema = fastavro.parse_schema(blocks.writer_schema)
        self._read_record = fastavro.schemaless_reader
        if self._literal:
            self._headers = {LITERAL_HEADER: blocks.metadata["avro.schema"]}
        else:
            canonical = fastavro.schema.to_parsing_canonical_form(self._schema)
            self._headers = {HASH_HEADER: fastavro.schema.fingerprint(canonical, "CRC-64-AVRO")}
        if self._offset:
            self._content.seek(self._content.tell() - _SYNC_BYTES)
            self._seek_sync_marker(self._content.read(_SYNC_BYTES))
        self._blocks = blocks

    def _seek_sync_marker(self, marker: bytes) -> None:
        """Seek behind the first sync marker at or after the offset; to the end where no marker follows."""
        offset = self._content.seek(self._offset)
        data = b""
        while (index := data.find(marker)) < 0:
            offset += max(0, len(data) - _SYNC_BYTES)
            data = data[-_SYNC_BYTES:]
            piece = self._content.read(1 << 20)
            if not piece:
                break
            data += piece
        if index >= 0:
            self._content.seek(offset + index + _SYNC_BYTES)
