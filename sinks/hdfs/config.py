"""Options of the HDFS sink."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Iterator
from types import MappingProxyType
from typing import NamedTuple

import pydantic

from plugins import Config, Problem, option
from plugins.options import suggestion
from sinks import serializers
from sinks.bucketpath import BucketPath, known_zone
from sinks.hdfs import codecs
from sinks.hdfs.hadoop import Hadoop

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
        description="Directory, with escapes: `hdfs://…` or `/…`, for which Hadoop's configuration or hdfs.webhdfs "
        "names the servers, or `webhdfs://namenode:9870/…` (`swebhdfs` over TLS)",
    )
    webhdfs: str | None = option(
        None,
        name="hdfs.webhdfs",
        validate_default=True,
        description="`host:port` of the NameNode's HTTP server, with `https://` before it for TLS; of several, with "
        "commas between them. Else as Hadoop's core-site.xml and hdfs-site.xml say",
    )
    file_type: str = option(
        "SequenceFile",
        name="hdfs.fileType",
        description="`SequenceFile`, Flume's default: times and bodies in Hadoop's format; `DataStream`: what the "
        "serializer writes and nothing else; `CompressedStream`: that, compressed by hdfs.codeC",
    )
    write_format: str = option(
        "Writable",
        name="hdfs.writeFormat",
        description="Bodies in a SequenceFile: `Writable` (BytesWritable) or `Text`",
    )
    serializer: str = option(
        "TEXT", name="serializer", description=serializers.DESCRIPTION + "; `PARQUET`: columns headers and body"
    )
    append_newline: bool = option(
        True, name="serializer.appendNewline", description="Write a newline behind each body"
    )
    compression_codec: str | None = option(
        None,
        name="serializer.compressionCodec",
        validate_default=True,
        description="Compression within Avro (null, deflate, snappy, bzip2, xz, zstandard; else null) or Parquet "
        "(null, snappy, gzip, zstandard, lz4, brotli; else snappy)",
    )
    sync_interval: int = option(
        2_048_000,
        name="serializer.syncIntervalBytes",
        unit="bytes",
        ge=32,
        le=1 << 30,
        description="Size of Avro's blocks",
    )
    schema_url: str | None = option(
        None,
        name="serializer.schemaURL",
        file=True,
        description="`AVRO_BODY`: the schema of events without one in their headers: `hdfs://…`, `http://…` or a "
        "local file",
    )
    trusted_schema_urls: list[str] = option(
        [],
        name="serializer.trustedSchemaURLs",
        description="`AVRO_BODY`: beginnings of the addresses in headers `flume.avro.schema.url` that may be fetched",
    )
    codec: str | None = option(
        None,
        name="hdfs.codeC",
        validate_default=True,
        description="Compression of a SequenceFile or CompressedStream: gzip, bzip2, snappy, lz4, deflate, default, "
        "zstandard, or the name of Hadoop's class",
    )
    file_prefix: str = option("FlumeData", name="hdfs.filePrefix", description="Start of file names, with escapes")
    file_suffix: str = option(
        "", name="hdfs.fileSuffix", description="End of file names, such as `.log`; else that of format and codec"
    )
    roll_interval: int = option(
        30,
        name="hdfs.rollInterval",
        unit="s",
        ge=0,
        description="Age at which files are closed; 0: no matter how old",
    )
    roll_size: int = option(
        1024,
        name="hdfs.rollSize",
        unit="bytes",
        ge=0,
        description="Size of its events' bodies at which a file is closed; 0: any size",
    )
    roll_count: int = option(
        10,
        name="hdfs.rollCount",
        unit="events",
        ge=0,
        description="Events at which files are closed; 0: of any number",
    )
    idle_timeout: int = option(
        0, name="hdfs.idleTimeout", unit="s", ge=0, description="Close files after so long without an event; 0: never"
    )
    max_open_files: int = option(
        5000, name="hdfs.maxOpenFiles", unit="files", gt=0, description="Files under way, past which some are closed"
    )
    round: bool = option(False, name="hdfs.round", description="Round the time in escapes down")
    round_unit: str = option("second", name="hdfs.roundUnit", description="`second`, `minute` or `hour`")
    round_value: int = option(1, name="hdfs.roundValue", description="Round down to a multiple of so many units")
    time_zone: str | None = option(
        None, name="hdfs.timeZone", description="Zone of the time in escapes, as `Europe/Paris`; else the machine's"
    )
    use_local_time_stamp: bool = option(
        False, name="hdfs.useLocalTimeStamp", description="Use the time of delivery, not the header `timestamp`"
    )
    proxy_user: str | None = option(
        None, name="hdfs.proxyUser", description="Owner of the files; else HADOOP_USER_NAME, else this process's user"
    )
    call_timeout: int = option(
        30_000, name="hdfs.callTimeout", unit="ms", ge=100, description="Longest silence of a server within a call"
    )
    threads: int = option(
        10, name="hdfs.threadsPoolSize", ge=1, le=100, description="Files uploaded and renamed side by side"
    )
    staging_dir: str | None = option(
        None,
        name="hdfs.stagingDir",
        description="Local directory for files under way; else the one for temporary files",
    )
    kerberos_principal: str | None = option(None, name="hdfs.kerberosPrincipal", description="Not built yet")
    kerberos_keytab: str | None = option(None, name="hdfs.kerberosKeytab", description="Not built yet")
    batch_size: int = option(
        100,
        name="hdfs.batchSize",
        unit="events",
        gt=0,
        description="Not used: a batch is as large as what the channel hands out",
    )

    @property
    def location(self) -> Location:
        """The path and the servers, taken apart."""
        scheme, authority, path = _url(self.path)
        hosts = [host.strip() for host in self.webhdfs.split(",")] if self.webhdfs else [authority]
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

    def cautions(self) -> Iterator[Problem]:
        """What is given and means nothing here."""
        names = {option.field: option.name for option in self.options()}
        if self.file_type != "SequenceFile":
            yield from serializers.cautions(self, self.model_fields_set, names)
            if "write_format" in self.model_fields_set:
                yield Problem("hdfs.writeFormat", f"means nothing to {self.file_type} (ignored, as in Flume)")
        elif given := {"serializer", *serializers.APPLIES} & self.model_fields_set:
            for field in sorted(given):
                yield Problem(
                    names[field],
                    "means nothing to hdfs.fileType SequenceFile, Flume's default (ignored, as in Flume); to use the "
                    "serializer, write hdfs.fileType = DataStream",
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

    @pydantic.field_validator("webhdfs")
    @classmethod
    def _check_webhdfs(cls, value: str | None, info: pydantic.ValidationInfo) -> str | None:
        if value is None and (path := info.data.get("path")) is not None:
            scheme, authority, _ = _url(path)
            if scheme in (None, "hdfs"):
                if (value := Hadoop().webhdfs(authority)) is None:
                    raise ValueError(_what_to_add(authority))
            elif ":" not in authority:
                value = Hadoop().nameservice(authority)
        if value is not None and not all(_HOST.fullmatch(host.strip()) for host in value.split(",")):
            raise ValueError(f"must be host:port, or several with commas between them, not {value!r}")
        return value

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

    @pydantic.field_validator("serializer")
    @classmethod
    def _check_serializer(cls, value: str, info: pydantic.ValidationInfo) -> str:
        name = serializers.canonical(value)
        if name == "PARQUET" and info.data.get("file_type") == "CompressedStream":
            raise ValueError(
                "Parquet compresses its columns itself: write hdfs.fileType = DataStream, remove hdfs.codeC, and "
                "name the compression with serializer.compressionCodec"
            )
        return name

    @pydantic.field_validator("compression_codec")
    @classmethod
    def _check_compression_codec(cls, value: str | None, info: pydantic.ValidationInfo) -> str | None:
        return serializers.check_codec(info.data.get("serializer"), value)

    @pydantic.field_validator("codec")
    @classmethod
    def _check_codec(cls, value: str | None, info: pydantic.ValidationInfo) -> str | None:
        name, file_type = None if value is None else codecs.canonical(value), info.data.get("file_type")
        if file_type == "DataStream" and name is not None:
            raise ValueError(
                "is not for DataStream, which is never compressed: remove it, or write hdfs.fileType = "
                "CompressedStream"
            )
        if file_type == "CompressedStream" and name in (None, "none"):
            raise ValueError(
                f"is needed for CompressedStream: add hdfs.codeC = gzip (or {', '.join(list(codecs.CODECS)[1:])}), "
                "or write hdfs.fileType = DataStream"
            )
        return name

    @pydantic.field_validator("file_prefix", "file_suffix")
    @classmethod
    def _check_name(cls, value: str) -> str:
        _check_names(value)
        return value

    @pydantic.field_validator("round_unit")
    @classmethod
    def _lower(cls, value: str) -> str:
        return value.lower()

    @pydantic.field_validator("round_value")
    @classmethod
    def _check_rounding(cls, value: int, info: pydantic.ValidationInfo) -> int:
        longest = ROUND_UNITS.get(info.data.get("round_unit", ""), value)
        if info.data.get("round") and not 0 < value <= longest:
            raise ValueError(f"must be 1 to {longest} {info.data['round_unit']}s, not {value}")
        return value

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
        f"is needed, as HDFS is reached over HTTP: add hdfs.webhdfs = {hosts}; or name the directory of Hadoop's "
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
        raise ValueError(f"the name {min(reserved)!r} is not free on HDFS")
