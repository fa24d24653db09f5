"""The file_roll sink."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from datetime import datetime
from io import FileIO
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pydantic

from flafka.plugins import Batch, Config, EventId, Problem, Rejected, Retry, Sink, cross_field_validator, option
from flafka.plugins.shared.disk import make_directory, sync_directory, writable
from flafka.sinks import serializers
from flafka.sinks.serializers import options as declared
from flafka.sinks.serializers.compatibility import SERIALIZERS

MOST_NAME_BYTES = 100
"""Bytes of the beginning and of the extension of a file's name, each."""


class FileRollConfig(Config):
    """Options of the file_roll sink."""

    directory: str = option(
        name="sink.directory",
        path="flume",
        description="Local directory of the files. It is created if it does not exist.",
    )
    roll_interval: int = option(
        30,
        name="sink.rollInterval",
        unit="s",
        ge=0,
        description="Age at which a file is closed and the next one begins. 0 never closes one.",
    )
    path_manager: str = option(
        "DEFAULT",
        name="sink.pathManager",
        description="Names of the files. `DEFAULT`: the time when the sink started, and a number. `ROLLTIME`: the "
        "time when the file was begun, and a number.",
    )
    prefix: str = option("", name="sink.pathManager.prefix", description="Beginning of each file's name.")
    extension: str = option(
        "", name="sink.pathManager.extension", description="Extension of each file's name, without the dot."
    )
    serializer: str = declared.serializer("sink.")
    append_newline: bool = declared.append_newline("sink.")
    compression_codec: str | None = declared.compression_codec("sink.")
    sync_interval: int = declared.sync_interval("sink.")
    schema_url: str | None = declared.schema_url("sink.")
    trusted_schema_urls: list[str] = declared.trusted_schema_urls("sink.")
    batch_size: int = option(
        100,
        name="sink.batchSize",
        unit="events",
        gt=0,
        description="Number of events after which the file is flushed to the disk.",
    )

    @pydantic.field_validator("serializer")
    @classmethod
    def _check_serializer(cls, value: str) -> str:
        name = serializers.canonical(value)
        if name == "PARQUET":
            raise ValueError(
                "must not be PARQUET, as a Parquet file cannot be appended to: write AVRO_EVENT, or use an hdfs sink"
            )
        return name

    _canonical_codec = pydantic.field_validator("compression_codec")(serializers.canonical_codec)

    @cross_field_validator("compression_codec", "serializer")
    def _check_codec(self) -> None:
        serializers.check_codec(self)

    @pydantic.field_validator("prefix", "extension")
    @classmethod
    def _is_part_of_a_name(cls, value: str) -> str:
        if "/" in value or "\0" in value:
            raise ValueError("must not contain '/': it is part of a file's name; name a directory in sink.directory")
        if len(value.encode()) > MOST_NAME_BYTES:
            raise ValueError(f"must have at most {MOST_NAME_BYTES} bytes: file systems take no longer names")
        return value

    @pydantic.field_validator("path_manager")
    @classmethod
    def _check_path_manager(cls, value: str) -> str:
        name = value.removeprefix("org.apache.flume.formatter.output.").removesuffix("PathManager$Builder").upper()
        if name not in ("DEFAULT", "ROLLTIME"):
            raise ValueError(f"must be DEFAULT or ROLLTIME, not {value!r}")
        return name

    def warnings(self) -> Iterator[Problem]:
        """Yield warnings of options that have no effect with the serializer."""
        names = {option.field: option.name for option in self.options()}
        return serializers.warnings(self, self.model_fields_set, names)


class FileRollSink(Sink[FileRollConfig]):
    """Appends events to local files at least once: they are on the disk before their channel forgets them.

    What an agent that is killed has begun to write stays in the last file, and is written again to the next.
    """

    type_name = "file_roll"
    aliases = ("org.apache.flume.sink.RollingFileSink",)
    compatibility_notes = SERIALIZERS
    remote: ClassVar[bool] = False

    def __init__(self, config: FileRollConfig, name: str = "") -> None:
        super().__init__(config, name)
        self.batch_size = config.batch_size
        self.clock = time.time
        self._directory = Path(config.directory).absolute()
        self._serializer = serializers.make(config)
        self._writer = self._serializer.writer("")
        self._kind = ""
        self._series = ""
        self._number = 0
        self._file: FileIO | None = None
        self._opened = 0.0
        self._flushed = 0  # bytes of the file that are durable

    def open(self) -> None:
        """Make the directory; files are begun when there are events."""
        self._series, self._number = str(int(self.clock() * 1000)), 0
        with self._in_words():
            make_directory(self._directory)

    def write(self, batch: Batch) -> None:
        """Append these events to the file, or to a new one where it is old enough or of another kind."""
        interval = self.config.roll_interval
        if self._file is not None and interval and self.clock() - self._opened >= interval:
            self._finish()
        if (found := self._serializer.kinds(batch)) is None:
            self._append(batch, "")
            return
        kinds, which = found
        rejected: dict[EventId, str] = {}
        for number, kind in enumerate(kinds):
            some = batch.where(pa.array(which == number))
            if isinstance(kind, ValueError):
                rejected.update(dict.fromkeys(some.ids(), str(kind)))
            else:
                self._append(some, kind)
        if rejected:
            raise Rejected(rejected)

    def _append(self, batch: Batch, kind: str) -> None:
        if self._file is not None and self._kind != kind:
            self._finish()
        if self._file is None:
            self._kind, self._writer = kind, self._serializer.writer(kind)
            with self._in_words():
                if not self._directory.exists():  # somebody has removed it
                    make_directory(self._directory)
                self._begin()
            self._head()
        self._put(self._writer.add(self._serializer.records(batch)))

    def _head(self) -> None:
        """Write the beginning of the file, which no reset takes away."""
        assert self._file is not None
        try:
            self._put(self._writer.header)
            self._flushed = self._file.tell()
        except Retry:
            self._leave()
            raise

    def _put(self, data: serializers.Buffer) -> None:
        assert self._file is not None
        with self._in_words():
            while data:
                data = data[self._file.write(data) :]

    def flush(self) -> None:
        """Return when everything written is on the disk."""
        if self._file is not None:
            self._put(self._writer.flush())
            with self._in_words():
                os.fsync(self._file.fileno())
                if not os.fstat(self._file.fileno()).st_nlink:
                    self._leave()
                    raise Retry(f"a file in {self._directory} was removed while it was written: another one is begun")
                self._flushed = self._file.tell()

    def reset(self) -> None:
        """Cut off what was written since the last flush."""
        if self._file is not None:
            self._writer.forget()
            try:
                self._file.seek(self._flushed)
                self._file.truncate()
            except OSError:  # what it holds is written again, to a new file
                self._leave()

    def close(self) -> None:
        """Close the file, without what is not flushed."""
        self.reset()
        self._leave()

    def _finish(self) -> None:
        self.flush()
        self._leave()

    def check_connectivity(self) -> Iterator[str]:
        """Yield what keeps files from being created in the directory."""
        if not writable(self._directory):
            yield f"cannot write into {self._directory}"

    def _begin(self) -> None:
        """Begin a new file, under a name that no other has."""
        config = self.config
        while self._file is None:
            if config.path_manager == "ROLLTIME":
                now = datetime.fromtimestamp(self.clock()).strftime("%Y%m%d%H%M%S")
                self._series, self._number = now, self._number if now == self._series else 0
            self._number += 1
            end = f".{config.extension}" if config.extension else ""
            with contextlib.suppress(FileExistsError):
                path = self._directory / f"{config.prefix}{self._series}-{self._number}{end}"
                self._file = path.open("xb", buffering=0)
        self._opened, self._flushed = self.clock(), 0
        sync_directory(self._directory)  # or the name may not survive a power cut

    def _leave(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @contextlib.contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            full = "the disk is full" if e.errno in (errno.ENOSPC, errno.EDQUOT) else e.strerror
            raise Retry(f"cannot write into {self._directory}: {full}") from e
