"""File_roll sink."""

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
from flafka.plugins.storage import is_writable, make_directory, sync_directory
from flafka.sinks import serializers
from flafka.sinks.serializers import options as declared
from flafka.sinks.serializers.compatibility import SERIALIZERS

MAX_NAME_PART_BYTES = 100
"""Limit of the prefix, and of the extension, of a file's name."""


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
        description="Age at which a file is closed and the next one begins. 0 sets no limit.",
    )
    path_manager: str = option(
        "DEFAULT",
        name="sink.pathManager",
        description="Names of the files. `DEFAULT`: the time of the sink's start, and a number. `ROLLTIME`: the time "
        "of the file's creation, and a number.",
    )
    prefix: str = option("", name="sink.pathManager.prefix", description="Prefix of each file's name.")
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
        name = serializers.canonical_serializer(value)
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
    def _check_name_part(cls, value: str) -> str:
        if "/" in value or "\0" in value:
            raise ValueError(
                "must not contain '/', as it is a part of a file's name; name a directory in sink.directory"
            )
        if len(value.encode()) > MAX_NAME_PART_BYTES:
            raise ValueError(
                f"must have at most {MAX_NAME_PART_BYTES} bytes, as file systems limit the length of names"
            )
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
        return serializers.option_warnings(self, self.model_fields_set, names)


class FileRollSink(Sink[FileRollConfig]):
    """Appends events to local files at least once: they are on the disk before the channel is committed.

    After a kill of the agent, uncommitted events stay in the last file, and are written to the next one, too.
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
        self._serializer = serializers.make_serializer(config)
        self._writer = self._serializer.writer("")
        self._kind = ""
        self._series = ""
        self._number = 0
        self._file: FileIO | None = None
        self._opened = 0.0
        self._flushed = 0  # number of bytes of the file that are durable

    def open(self) -> None:
        """Create the directory durably. The first event creates a file. Raises Retry if that fails."""
        self._series, self._number = str(int(self.clock() * 1000)), 0
        with self._converted_errors():
            make_directory(self._directory)

    def write(self, batch: Batch) -> None:
        """Append the events to the file, or to a new one if it is older than rollInterval or of another kind.

        Raises Retry, and Rejected for events that fit no file, once all others are written.
        """
        interval = self.config.roll_interval
        if self._file is not None and interval and self.clock() - self._opened >= interval:
            self._finish_file()
        if (by_kind := self._serializer.kinds(batch)) is None:
            self._append(batch, "")
            return
        kinds, kind_codes = by_kind
        rejected: dict[EventId, str] = {}
        for number, kind in enumerate(kinds):
            part = batch.where(pa.array(kind_codes == number))
            if isinstance(kind, ValueError):
                rejected.update(dict.fromkeys(part.ids(), str(kind)))
            else:
                self._append(part, kind)
        if rejected:
            raise Rejected(rejected)

    def _append(self, batch: Batch, kind: str) -> None:
        """Append the events to a file of this kind, which is created if there is none. Raises Retry."""
        if self._file is not None and self._kind != kind:
            self._finish_file()
        if self._file is None:
            self._kind, self._writer = kind, self._serializer.writer(kind)
            with self._converted_errors():
                if not self._directory.exists():  # someone has removed it
                    make_directory(self._directory)
                self._create_file()
            self._write_header()
        self._write(self._writer.add(self._serializer.records(batch)))

    def _write_header(self) -> None:
        """Write the header of a new file, which `reset` does not remove.

        Raises Retry if that fails; then the file is closed.
        """
        assert self._file is not None
        try:
            self._write(self._writer.header)
            self._flushed = self._file.tell()
        except Retry:
            self._close_file()
            raise

    def _write(self, data: serializers.Buffer) -> None:
        assert self._file is not None
        with self._converted_errors():
            while data:
                data = data[self._file.write(data) :]

    def flush(self) -> None:
        """Return when all events written are on the disk.

        Raises Retry if the disk fails, or if someone has removed the file while it was written.
        """
        if self._file is not None:
            self._write(self._writer.flush())
            with self._converted_errors():
                os.fsync(self._file.fileno())
                if not os.fstat(self._file.fileno()).st_nlink:
                    self._close_file()
                    raise Retry(
                        f"a file in {self._directory} was removed while it was written: its events go to another file"
                    )
                self._flushed = self._file.tell()

    def reset(self) -> None:
        """Drop the events since the last flush: truncate the file to its end, or close it if that fails."""
        if self._file is not None:
            self._writer.discard()
            try:
                self._file.seek(self._flushed)
                self._file.truncate()
            except OSError:  # redelivered events go to a new file
                self._close_file()

    def close(self) -> None:
        """Drop the events since the last flush, and close the file."""
        self.reset()
        self._close_file()

    def _finish_file(self) -> None:
        """Flush and close the file. Raises Retry."""
        self.flush()
        self._close_file()

    def check_connectivity(self) -> Iterator[str]:
        """Yield an error if files cannot be created in the directory."""
        if not is_writable(self._directory):
            yield f"cannot write into {self._directory}"

    def _create_file(self) -> None:
        """Create a file with the next free name. Raises OSError."""
        config = self.config
        while self._file is None:
            if config.path_manager == "ROLLTIME":
                now = datetime.fromtimestamp(self.clock()).strftime("%Y%m%d%H%M%S")
                self._series, self._number = now, self._number if now == self._series else 0
            self._number += 1
            suffix = f".{config.extension}" if config.extension else ""
            with contextlib.suppress(FileExistsError):
                path = self._directory / f"{config.prefix}{self._series}-{self._number}{suffix}"
                self._file = path.open("xb", buffering=0)
        self._opened, self._flushed = self.clock(), 0
        sync_directory(self._directory)  # without it the name may be lost in a power failure

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @contextlib.contextmanager
    def _converted_errors(self) -> Iterator[None]:
        """Raise Retry, with the directory, instead of OSError."""
        try:
            yield
        except OSError as e:
            full = "the disk is full" if e.errno in (errno.ENOSPC, errno.EDQUOT) else e.strerror
            raise Retry(f"cannot write into {self._directory}: {full}") from e
