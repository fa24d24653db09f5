"""Options of the HDFS sink."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Iterator
from types import MappingProxyType
from typing import NamedTuple

import pydantic

from plugins import Config, Problem, agreement, option
from plugins.options import suggestion
from sinks import serializers
from sinks.bucketpath import BucketPath, known_zone
from sinks.hdfs import codecs
from sinks.hdfs.hadoop import Hadoop
from sinks.serializers import options as declared

RESERVED = frozenset({".", "..", ".flafka", ".snapshot", ".reserved"})
"""Names that HDFS, or this sink, keeps for itself."""

FILE_TYPES = ("SequenceFile", "DataStream", "CompressedStream")
ROUND_UNITS = {"second": 60, "minute": 60, "hour": 24}
_URL = re.compile(r"(?:([a-z0-9]+)://([^/]*))?(/.*)")
_HOST = re.compile(r"(https://)?[^\s/]+")
_SCHEMES = {None: "http", "hdfs": "http", "webhdfs": "http", "swebhdfs": "https"}


class Location(NamedTuple):
    """Where files go."""

    scheme: str
    """`http` or `https`."""
    hosts: list[str]
    """`host:port` of each NameNode's HTTP server."""
    path: str
    """The directory on HDFS, with escapes."""


class HdfsConfig(Config):
    """Options of the HDFS sink."""

    ignored = MappingProxyType(
        {
            "hdfs.inUsePrefix": "a file appears only when it is whole",
            "hdfs.inUseSuffix": "a file appears only when it is whole",
            "hdfs.emptyInUseSuffix": "a file appears only when it is whole",
            "hdfs.closeTries": "a commit is tried until it is made",
            "hdfs.retryInterval": "a commit is tried until it is made",
            "hdfs.rollTimerPoolSize": "there are no timers",
            "hdfs.minBlockReplicas": "HDFS replicates as it is configured",
        }
    )
    path: str = option(
        name="hdfs.path",
        description="Directory of the files; it may contain escape sequences. With `hdfs://…` or `/…`, Hadoop's "
        "configuration or hdfs.webhdfs names the servers; `webhdfs://namenode:9870/…` (`swebhdfs` for TLS) does so "
        "itself.",
    )
    webhdfs: str | None = option(
        None,
        name="hdfs.webhdfs",
        description="HTTP servers of the NameNodes as `host:port`, separated by commas; `https://` before one means "
        "TLS. If unset, they are taken from Hadoop's core-site.xml and hdfs-site.xml.",
    )
    file_type: str = option(
        "SequenceFile",
        name="hdfs.fileType",
        description="`SequenceFile`, Flume's default: times and bodies in Hadoop's format. `DataStream`: only what "
        "the serializer writes. `CompressedStream`: the same, compressed with hdfs.codeC.",
    )
    write_format: str = option(
        "Writable",
        name="hdfs.writeFormat",
        description="Type of the bodies in a SequenceFile: `Writable` (BytesWritable) or `Text`.",
    )
    serializer: str = declared.serializer(more=" `PARQUET`: the columns headers and body.")
    append_newline: bool = declared.append_newline()
    compression_codec: str | None = declared.compression_codec(
        more=" Within Parquet: snappy (if unset), null, gzip, zstandard, lz4 or brotli."
    )
    sync_interval: int = declared.sync_interval()
    schema_url: str | None = declared.schema_url(places="`hdfs://…`, `http://…` or a local file")
    trusted_schema_urls: list[str] = declared.trusted_schema_urls()
    codec: str | None = option(
        None,
        name="hdfs.codeC",
        description="Compression of a SequenceFile or CompressedStream: gzip, bzip2, snappy, lz4, deflate, default, "
        "zstandard, or the name of Hadoop's class.",
    )
    file_prefix: str = option(
        "FlumeData",
        name="hdfs.filePrefix",
        description="Beginning of the files' names; it may contain escape sequences.",
    )
    file_suffix: str = option(
        "",
        name="hdfs.fileSuffix",
        description="End of the files' names, such as `.log`. If unset, it follows from the format and the codec.",
    )
    roll_interval: int = option(
        30, name="hdfs.rollInterval", unit="s", ge=0, description="Age at which a file is closed. 0 sets no limit."
    )
    roll_size: int = option(
        1024,
        name="hdfs.rollSize",
        unit="bytes",
        ge=0,
        description="Size of its events' bodies at which a file is closed. 0 sets no limit.",
    )
    roll_count: int = option(
        10,
        name="hdfs.rollCount",
        unit="events",
        ge=0,
        description="Number of events at which a file is closed. 0 sets no limit.",
    )
    idle_timeout: int = option(
        0,
        name="hdfs.idleTimeout",
        unit="s",
        ge=0,
        description="Time without an event after which a file is closed. 0 never closes one for this reason.",
    )
    max_open_files: int = option(
        5000,
        name="hdfs.maxOpenFiles",
        unit="files",
        gt=0,
        description="Maximum number of unfinished files. Beyond it, some are closed.",
    )
    round: bool = option(False, name="hdfs.round", description="Round down the time in escape sequences.")
    round_unit: str = option(
        "second", name="hdfs.roundUnit", description="Unit of hdfs.roundValue: `second`, `minute` or `hour`."
    )
    round_value: int = option(
        1, name="hdfs.roundValue", description="Number of units to a multiple of which times are rounded down."
    )
    time_zone: str | None = option(
        None,
        name="hdfs.timeZone",
        description="Time zone of the time in escape sequences, such as `Europe/Paris`. If unset, that of this "
        "machine.",
    )
    use_local_time_stamp: bool = option(
        False,
        name="hdfs.useLocalTimeStamp",
        description="Use the time of delivery in escape sequences instead of the header `timestamp`.",
    )
    proxy_user: str | None = option(
        None,
        name="hdfs.proxyUser",
        description="Owner of the files. If unset, the environment variable HADOOP_USER_NAME, or else the user of "
        "this process.",
    )
    call_timeout: int = option(
        30_000,
        name="hdfs.callTimeout",
        unit="ms",
        ge=100,
        description="Maximum time that a server may be silent during a call.",
    )
    threads: int = option(
        10,
        name="hdfs.threadsPoolSize",
        ge=1,
        le=100,
        description="Number of files that are uploaded or renamed at the same time.",
    )
    staging_dir: str | None = option(
        None,
        name="hdfs.stagingDir",
        description="Local directory for unfinished files. If unset, the system's directory for temporary files.",
    )
    kerberos_principal: str | None = option(
        None, name="hdfs.kerberosPrincipal", description="Refused: Kerberos is not supported yet."
    )
    kerberos_keytab: str | None = option(
        None, name="hdfs.kerberosKeytab", description="Refused: Kerberos is not supported yet."
    )
    batch_size: int = option(
        100,
        name="hdfs.batchSize",
        unit="events",
        gt=0,
        ignored=True,
        description="batches are as large as the channel hands them out",
    )

    _servers: str | None = pydantic.PrivateAttr(None)
    """hdfs.webhdfs, or else what Hadoop's configuration says on this machine: executors on others may have none."""

    @property
    def location(self) -> Location:
        """The path and the servers, taken apart."""
        scheme, authority, path = _url(self.path)
        hosts = [host.strip() for host in self._servers.split(",")] if self._servers else [authority]
        if any(host.startswith("https://") for host in hosts):
            scheme = "swebhdfs"
        hosts = [host.removeprefix("https://") for host in hosts]
        hosts = [host if re.search(r":[0-9]+$", host) else f"{host}:{_port(scheme)}" for host in hosts]
        return Location(_SCHEMES[scheme], hosts, re.sub("/+", "/", path))

    def bucket_path(self) -> BucketPath:
        """The path of a file up to the unique part of its name."""
        return BucketPath(
            f"{self.location.path}/{self.file_prefix}",
            time_zone=self.time_zone,
            rounding=(self.round_unit, self.round_value) if self.round else None,
            local_time=self.use_local_time_stamp,
            one_name=True,
        )

    def uses_headers(self) -> dict[str, frozenset[str]]:
        """By option: the headers that its escapes need."""
        texts = {"hdfs.path": self.path, "hdfs.filePrefix": self.file_prefix}
        local = self.use_local_time_stamp
        return {name: BucketPath(text, local_time=local).headers for name, text in texts.items()}

    def cautions(self) -> Iterator[Problem]:
        """What is given and has no effect here."""
        if "%" in self.file_suffix:
            yield Problem(
                "hdfs.fileSuffix", "has no escapes and is used as it is written; hdfs.filePrefix has escapes"
            )
        names = {option.field: option.name for option in self.options()}
        if self.file_type != "SequenceFile":
            yield from serializers.cautions(self, self.model_fields_set, names)
            if "write_format" in self.model_fields_set:
                yield Problem("hdfs.writeFormat", f"has no effect with {self.file_type}, as in Flume")
        elif given := {"serializer", *serializers.APPLIES} & self.model_fields_set:
            for field in sorted(given):
                yield Problem(
                    names[field],
                    "has no effect with hdfs.fileType SequenceFile, Flume's default; to use the serializer, write "
                    "hdfs.fileType = DataStream",
                )

    @pydantic.field_validator("path")
    @classmethod
    def _check_path(cls, value: str) -> str:
        scheme, authority, path = _url(value)
        if scheme not in _SCHEMES:
            raise ValueError(f"{scheme}:// is not built; write hdfs://, webhdfs:// or a path that begins with /")
        if scheme in ("webhdfs", "swebhdfs") and not authority:
            raise ValueError(f"name the NameNode's HTTP server: {scheme}://namenode:{_port(scheme)}{path}")
        _check_names(path)
        return value

    @agreement("webhdfs", "path")
    def _find_servers(self) -> None:
        value = self.webhdfs
        if value is None:
            scheme, authority, _ = _url(self.path)
            if scheme in (None, "hdfs"):
                if (value := Hadoop().webhdfs(authority)) is None:
                    raise ValueError(_what_to_add(authority))
            elif ":" not in authority:
                value = Hadoop().nameservice(authority)
        if value is not None and not all(_HOST.fullmatch(host.strip()) for host in value.split(",")):
            raise ValueError(f"must be host:port, or several with commas between them, not {value!r}")
        self._servers = value

    @pydantic.field_validator("file_type")
    @classmethod
    def _check_file_type(cls, value: str) -> str:
        for known in FILE_TYPES:
            if value.lower() == known.lower():
                return known
        hint = ": write hdfs.fileType = DataStream and serializer = " + value.upper()
        raise ValueError(
            f"must be one of {', '.join(FILE_TYPES)}, not {value!r}"
            + (hint if value.upper() in ("PARQUET", "AVRO_EVENT", "JSON", "TEXT") else "")
        )

    @pydantic.field_validator("write_format")
    @classmethod
    def _check_write_format(cls, value: str) -> str:
        name = value.removeprefix("org.apache.flume.sink.hdfs.").removesuffix("$Builder").lower()
        for known in ("Writable", "Text"):
            if name in (known.lower(), f"hdfs{known}serializer".lower()):
                return known
        raise ValueError(f"must be Writable or Text, not {value!r}")

    _canonical_serializer = pydantic.field_validator("serializer")(serializers.canonical)
    _canonical_compression = pydantic.field_validator("compression_codec")(serializers.canonical_codec)

    @pydantic.field_validator("codec")
    @classmethod
    def _canonical_codec(cls, value: str | None) -> str | None:
        return value and codecs.canonical(value)

    @agreement("serializer", "file_type")
    def _check_parquet(self) -> None:
        if self.serializer == "PARQUET" and self.file_type == "CompressedStream":
            raise ValueError(
                "must not be PARQUET with CompressedStream, as Parquet compresses its columns itself: write "
                "hdfs.fileType = DataStream, remove hdfs.codeC, and name the compression with "
                "serializer.compressionCodec"
            )

    @agreement("compression_codec", "serializer")
    def _check_compression(self) -> None:
        serializers.check_codec(self)

    @agreement("codec", "file_type")
    def _check_codec(self) -> None:
        if self.file_type == "DataStream" and self.codec is not None:
            raise ValueError(
                "must not be set for DataStream, which is never compressed: remove it, or write hdfs.fileType = "
                "CompressedStream"
            )
        if self.file_type == "CompressedStream" and self.codec in (None, "none"):
            raise ValueError(
                f"is required for CompressedStream: add hdfs.codeC = gzip (or {', '.join(list(codecs.CODECS)[1:])}), "
                "or write hdfs.fileType = DataStream"
            )

    @pydantic.field_validator("file_prefix")
    @classmethod
    def _check_prefix(cls, value: str) -> str:
        _check_names(value)
        return value

    @pydantic.field_validator("file_suffix")
    @classmethod
    def _check_suffix(cls, value: str) -> str:
        _check_names(value.replace("%", "%%"))  # it has no escapes
        return value

    @pydantic.field_validator("round_unit")
    @classmethod
    def _lower(cls, value: str) -> str:
        return value.lower()

    @agreement("round_value", "round_unit", "round")
    def _check_rounding(self) -> None:
        longest = ROUND_UNITS.get(self.round_unit, self.round_value)
        if self.round and not 0 < self.round_value <= longest:
            raise ValueError(f"must be 1 to {longest} {self.round_unit}s, not {self.round_value}")

    @pydantic.field_validator("time_zone")
    @classmethod
    def _check_time_zone(cls, value: str | None) -> str | None:
        if value is not None and known_zone(value) is None:
            near = suggestion(value, sorted(zoneinfo.available_timezones()))
            raise ValueError(f"there is no time zone {value!r}{near}")
        return value

    @pydantic.field_validator("kerberos_principal", "kerberos_keytab")
    @classmethod
    def _refuse_kerberos(cls, value: str | None) -> str | None:
        if value is not None:
            raise ValueError("is not built yet: remove it; hdfs.proxyUser names the user")
        return value


def _url(value: str) -> tuple[str | None, str, str]:
    found = _URL.fullmatch(value)
    if found is None:
        raise ValueError(f"must begin with / or hdfs://, not be {value!r}")
    return found[1], found[2] or "", found[3]


def _what_to_add(authority: str) -> str:
    host, _, port = authority.partition(":")
    hosts = f"{host}:9870" if port else "namenode:9870"
    if host and not port:
        hosts = f"{host}:9870, or of all NameNodes where {host} is a nameservice: namenode1:9870,namenode2:9870"
    return (
        f"is required, as HDFS is reached over HTTP: add hdfs.webhdfs = {hosts}; or name the directory of Hadoop's "
        "core-site.xml and hdfs-site.xml with HADOOP_CONF_DIR or, as for flume-ng, -c"
    )


def _port(scheme: str | None) -> int:
    return 9871 if _SCHEMES[scheme] == "https" else 9870


def _check_names(text: str) -> None:
    """ValueError for what can never be a path on HDFS, whatever the escapes become."""
    BucketPath(text)
    sample = BucketPath(re.sub(r"%\[\w+\]", "host", text), local_time=True, now=lambda: 0).resolve({})
    if ":" in sample:
        raise ValueError("HDFS allows no ':' in names (the escape %c holds some)")
    if reserved := RESERVED.intersection(sample.split("/")):
        raise ValueError(f"the name {min(reserved)!r} is reserved on HDFS")
