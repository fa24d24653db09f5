"""What becomes of the bytes of a file: lines, records of Avro, or the whole file."""

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
from flafka.plugins.shared.charsets import text_codec
from flafka.sources import columns
from flafka.sources.spooldir.config import SpooldirConfig
from flafka.sources.spooldir.content import Content, Skip

HASH_HEADER, LITERAL_HEADER = "flume.avro.schema.hash", "flume.avro.schema.literal"
LEAST_LINE_BYTES = 4 << 20
"""So much of a line is read at least before it is divided without its end being known."""
MOST_LINE_BYTES = 64 << 20
"""So much at most."""
_MARKS = {
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
}
_SYNC = 16
Ends = npt.NDArray[np.int64]
"""Where something ends in a buffer."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive events of one file."""

    bodies: pa.Array
    offset: int
    """Where the file goes on behind them."""
    headers: Mapping[str, str] = field(default_factory=dict)


class Deserializer(Protocol):
    """Makes events of one file, from an offset on."""

    def read(self, room: int, space: int) -> Piece | None:
        """The next events, about so many and of so many bytes at most, but one at least; None at the end.

        Raises Skip where the file cannot be read any further, once all before that place was answered; OSError.
        """


def deserializer(config: SpooldirConfig, content: Content, offset: int) -> Deserializer:
    """What the configuration asks for, from that offset of the file on."""
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
        longest=config.line_length,
    )


class _TextLines:
    """Lines, as Flume cuts them: at line feeds alone, and after `longest` characters of UTF-16.

    A line of exactly that length is followed by an empty one. A character of two units stays whole.
    """

    def __init__(
        self, content: Content, offset: int, *, charset: str, policy: str, output: str, longest: int
    ) -> None:
        self._content = content
        self._charset, mark = _ordered(charset, content)
        self._errors = {"FAIL": "strict", "REPLACE": REPLACE, "IGNORE": IGNORE}[policy]
        self._output = output
        self._longest = longest
        self._newline = "\n".encode(self._charset)
        self._unit = len(self._newline)
        self._most = min(max(LEAST_LINE_BYTES, 4 * longest), MOST_LINE_BYTES)
        self._offset = content.seek(offset or mark)
        self._data = b""
        """What was read of the file and holds the next lines."""
        self._start = 0
        """Where in it they begin."""
        self._feeds = np.empty(0, np.int64)
        """Where in it the line feeds are."""
        self._taken = 0
        """So many of them were passed."""
        self._end = False
        self._skip: Skip | None = None

    def read(self, room: int, space: int) -> Piece | None:
        while True:
            raw, ends = self._take(room, space)
            if not raw:
                if self._skip is not None:
                    raise self._skip
                return None
            piece = self._piece(raw, ends)
            if len(piece.bodies):
                return piece

    def _piece(self, raw: bytes, ends: Ends) -> Piece:
        try:
            bodies = self._bodies(raw, ends)
        except UnicodeDecodeError as e:
            lines = int(np.searchsorted(ends, e.start - self._unit, side="right"))
            good = raw[: int(ends[lines - 1]) + self._unit if lines else 0]
            at = self._offset + e.start
            self._skip = Skip(f"cannot be decoded as {self._charset}: {e.reason} at byte {at}")
            self._data, self._start, self._feeds, self._taken, self._end = b"", 0, self._feeds[:0], 0, True
            if not good:
                raise self._skip from None
            raw, bodies = good, self._bodies(good, ends[:lines])
        else:
            self._start += len(raw)
            self._taken += len(ends)
        self._offset += len(raw)
        return Piece(bodies, self._offset)

    def _take(self, room: int, space: int) -> tuple[bytes, Ends]:
        """The bytes of the next lines, or of a part of one that is too long, and where their line feeds are."""
        while self._taken == len(self._feeds):
            left = len(self._data) - self._start
            if self._end:
                return self._unfinished(), self._feeds[:0]
            if left >= self._most:
                return self._data[self._start : self._boundary()], self._feeds[:0]
            self._fill(max(space, 3 * left))
        within = int(np.searchsorted(self._feeds, self._start + space, side="right"))
        stop = min(max(within, self._taken + 1), self._taken + room)
        ends = self._feeds[self._taken : stop]
        return self._data[self._start : int(ends[-1]) + self._unit], ends - self._start

    def _unfinished(self) -> bytes:
        """The last line, where no line feed ends it; nothing if it may be the beginning of a longer one."""
        rest = self._data[self._start :]
        if rest and self._skip is None:
            try:
                self._content.check()
            except Skip as e:
                self._skip = e
        return b"" if self._skip is not None else rest

    def _fill(self, size: int) -> None:
        """Read so much more of the file."""
        try:
            data = self._content.read(size)
        except Skip as e:
            self._skip, data = e, b""
        self._end = not data
        self._data = self._data[self._start :] + data
        self._start = self._taken = 0
        if self._unit == 1:
            self._feeds = np.flatnonzero(np.frombuffer(self._data, np.uint8) == self._newline[0])
        else:
            units = np.frombuffer(self._data, f"u{self._unit}", len(self._data) // self._unit)
            self._feeds = np.flatnonzero(units == int.from_bytes(self._newline, sys.byteorder)) * self._unit

    def _boundary(self) -> int:
        """Where a line may be divided whose end is not known: not within a character."""
        decoder = codecs.getincrementaldecoder(self._charset)("replace")
        decoder.decode(self._data[self._start :])
        return len(self._data) - len(decoder.getstate()[0])

    def _bodies(self, raw: bytes, ends: Ends) -> pa.Array:
        """The lines of it. Raises UnicodeDecodeError."""
        plain = self._charset == self._output == "utf-8"
        if plain and raw.isascii():
            text = None
        else:
            text = raw.decode(self._charset, self._errors)
            if not text:
                return pa.array([], pa.binary())  # nothing of it is left by IGNORE
        if self._output == "utf-8":
            if text is not None and not (plain and self._errors == "strict"):
                raw = text.encode()
                ends = np.flatnonzero(np.frombuffer(raw, np.uint8) == 0x0A)
            if not raw.endswith(b"\n"):
                ends = np.append(ends, len(raw))
            lengths = np.diff(ends, prepend=-1) - 1
            # As many bytes may be fewer characters, which the slow way finds out.
            if int(lengths.max()) < self._longest:
                return columns.binary(raw.replace(b"\n", b""), ends - np.arange(len(ends)))
        lines = (raw.decode("ascii") if text is None else text).split("\n")
        ended = not lines[-1]
        if ended:
            lines.pop()
        pieces: list[str] = []
        for number, line in enumerate(lines, 1):
            pieces += divided(line, self._longest, ended=ended or number < len(lines))
        return pa.array([piece.encode(self._output, "replace") for piece in pieces], pa.binary())


def divided(line: str, longest: int, *, ended: bool) -> list[str]:
    """The events of one line; `ended` tells whether a line feed follows it."""
    if len(line) * 2 < longest:
        return [line]
    if line.isascii() or max(line) <= "\uffff":
        pieces = [line[at : at + longest] for at in range(0, len(line), longest)]
        full = len(line) % longest == 0
    else:
        units = line.encode("utf-16-le", "surrogatepass")
        pieces, at, full = [], 0, False
        while at < len(units):
            end = at + 2 * longest
            if end < len(units) and 0xDC <= units[end + 1] <= 0xDF:  # the second half of a pair
                end = end - 2 if longest > 1 else end + 2
            pieces.append(units[at:end].decode("utf-16-le", "surrogatepass"))
            full, at = end - at >= 2 * longest and end <= len(units), end
    # Flume stops at the limit, before it has seen the line feed, which it then takes for a line of its own.
    return [*pieces, ""] if ended and (full or not pieces) else pieces


def _ordered(charset: str, content: Content) -> tuple[str, int]:
    """Return the character set with its order of bytes, and the length of the mark that tells it.

    The mark is at the start of the file. Without one the order is that of Java.
    """
    if charset not in _MARKS:
        return charset, 0
    content.seek(0)
    little, big = _MARKS[charset]
    mark = content.read(len(big))
    return f"{charset}-{'le' if mark == little else 'be'}", len(mark) if mark in (little, big) else 0


def _malformed(error: UnicodeError) -> int:
    """Where what Java takes for one malformed sequence ends."""
    assert isinstance(error, UnicodeDecodeError)
    data, start = error.object, error.start
    if error.encoding == "utf-8" and data[start] == 0xED and len(data) >= start + 3:
        second, third = data[start + 1], data[start + 2]
        if 0xA0 <= second <= 0xBF and 0x80 <= third <= 0xBF:
            return start + 3  # half of a pair
    return error.end


REPLACE, IGNORE = "flafka.spooldir.replace", "flafka.spooldir.ignore"
codecs.register_error(REPLACE, lambda error: ("\ufffd", _malformed(error)))
codecs.register_error(IGNORE, lambda error: ("", _malformed(error)))


class _Blobs:
    """The whole file as one event, or as several of `longest` bytes."""

    def __init__(self, content: Content, offset: int, longest: int) -> None:
        self._content = content
        self._offset = content.seek(offset)
        self._longest = longest

    def read(self, room: int, space: int) -> Piece | None:
        data = self._content.read(self._longest)
        if not data:
            return None
        self._offset += len(data)
        return Piece(pa.array([data], pa.binary()), self._offset)


class _AvroRecords:
    """The records of an Avro file, each in Avro's binary form; a block at a time.

    The offset is where the mark before a block begins, as in Flume: only whole blocks count as read.
    """

    def __init__(self, content: Content, offset: int, *, literal: bool) -> None:
        self._content, self._offset, self._literal = content, offset, literal
        self._fastavro = require("fastavro", "avro")
        self._blocks: Any = None
        self._headers: Mapping[str, str] = {}

    def read(self, room: int, space: int) -> Piece | None:
        try:
            if self._blocks is None:
                self._begin()
            block = next(self._blocks, None)
            if block is None:
                self._content.read(1)  # it may have changed
                return None
            data, ends, bodies = block.bytes_, [], []
            for _ in range(block.num_records):
                self._read_one(data, self._schema, None)
                ends.append(data.tell())
        except (OSError, Skip):
            raise
        except Exception as e:
            # A library's words for bytes that anyone may have written, of whatever class.
            raise Skip(f"is no whole Avro file: {e or type(e).__name__}") from e
        whole, start = data.getvalue(), 0
        for end in ends:
            bodies.append(whole[start:end])
            start = end
        self._offset = max(0, self._content.tell() - _SYNC)
        return Piece(pa.array(bodies, pa.binary()), self._offset, self._headers)

    def _begin(self) -> None:
        fastavro = self._fastavro
        self._content.seek(0)
        blocks = fastavro.block_reader(self._content)
        self._schema = fastavro.parse_schema(blocks.writer_schema)
        self._read_one = fastavro.schemaless_reader
        if self._literal:
            self._headers = {LITERAL_HEADER: blocks.metadata["avro.schema"]}
        else:
            canonical = fastavro.schema.to_parsing_canonical_form(self._schema)
            self._headers = {HASH_HEADER: fastavro.schema.fingerprint(canonical, "CRC-64-AVRO")}
        if self._offset:
            self._content.seek(self._content.tell() - _SYNC)
            self._seek_mark(self._content.read(_SYNC))
        self._blocks = blocks

    def _seek_mark(self, mark: bytes) -> None:
        """Go behind the first mark at or after the offset."""
        at = self._content.seek(self._offset)
        data = b""
        while (found := data.find(mark)) < 0:
            at += max(0, len(data) - _SYNC)
            data = data[-_SYNC:]
            piece = self._content.read(1 << 20)
            if not piece:
                break
            data += piece
        if found >= 0:
            self._content.seek(at + found + _SYNC)
