"""Options of the HDFS sink."""

from __future__ import annotations

import os
import re
import zoneinfo
from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

import pydantic
from pydantic import SecretStr

from flafka.plugins import Config, Problem, cross_field_validator, option
from flafka.plugins.problems import missing_library, suggest
from flafka.sinks import serializers
from flafka.sinks.bucketpath import BucketPath, find_zone
from flafka.sinks.hdfs import codecs
from flafka.sinks.hdfs.delegation import Login
from flafka.sinks.hdfs.hadoop import HadoopConfiguration
from flafka.sinks.hdfs.location import Location, checked_names, checked_path, locate
from flafka.sinks.hdfs.trust import CA_VARIABLE, TlsSettings
from flafka.sinks.serializers import options as declared

FILE_TYPES = ("SequenceFile", "DataStream", "CompressedStream")
FORMATS = ("Writable", "Text")
HIDDEN = ("_", ".")
"""First characters of names that Spark, Hive and MapReduce ignore."""
MAX_SUFFIX_BYTES = 64
"""Limit that leaves room for the topic, with up to 100 bytes, and the prefix."""
SSL_CLIENT = "ssl-client.xml"
TRUSTSTORE_LOCATION = "ssl.client.truststore.location"
ROUND_UNITS = {"second": 60, "minute": 60, "hour": 24}
"""Units of hdfs.roundUnit, and the greatest hdfs.roundValue of each."""


class HdfsConfig(Config):
    """Options of the HDFS sink."""

    options_without_effect = MappingProxyType(
        {
            "hdfs.inUsePrefix": "a file appears only when it is complete",
            "hdfs.inUseSuffix": "a file appears only when it is complete",
            "hdfs.emptyInUseSuffix": "a file appears only when it is complete",
            "hdfs.closeTries": "a commit is retried until it succeeds",
            "hdfs.retryInterval": "a commit is retried until it succeeds",
            "hdfs.rollTimerPoolSize": "there are no timers",
            "hdfs.minBlockReplicas": "HDFS replicates as configured there",
        }
    )
    path: str = option(
        name="hdfs.path",
        description="Directory of the files; it may contain escape sequences. With `hdfs://namenode:8020/…`, `/…` or "
        "a path below the user's home directory `/user/<name>`, the NameNode's HTTP server is taken from "
        "hdfs.webhdfs or Hadoop's configuration. If neither has one, Hadoop's default ports 9870 and 50070 are "
        "tried, on the host of the path or else on this one. `webhdfs://namenode:9870/…` (`swebhdfs` for TLS) is the "
        "HTTP server itself. `file:///…` is a directory of this host, on a file system with hard links.",
    )
    webhdfs: str | None = option(
        None,
        name="hdfs.webhdfs",
        description="HTTP servers of the NameNodes as `host:port`, separated by commas; `https://` before one means "
        "TLS. If unset, they are taken from hdfs.path and Hadoop's core-site.xml and hdfs-site.xml.",
    )
    file_type: str = option(
        "SequenceFile",
        name="hdfs.fileType",
        description="`SequenceFile`, Flume's default: times and bodies in Hadoop's format. `DataStream`: the output "
        "of the serializer. `CompressedStream`: the same, compressed with hdfs.codeC.",
    )
    write_format: str = option(
        "Writable",
        name="hdfs.writeFormat",
        description="Type of the bodies in a SequenceFile: `Writable` (BytesWritable) or `Text`.",
    )
    serializer: str = declared.serializer(more=" `PARQUET`: the columns headers and body, and `serializer.columns.`.")
    columns: dict[str, str] = option(
        {},
        name="serializer.columns.",
        description="With `PARQUET`: `serializer.columns.<header>` makes a column of that header, of the type "
        "string, boolean, int, bigint, float, double, date (2026-01-31) or timestamp (2026-01-31T12:00:00Z, or "
        "milliseconds since the epoch). If the header is no such value, the column is null; `headers` has the text.",
    )
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
        description="Prefix of the files' names; it may contain escape sequences.",
    )
    file_suffix: str = option(
        "",
        name="hdfs.fileSuffix",
        description="Suffix of the files' names, such as `.log`. If unset, it depends on the format and the codec.",
    )
    roll_interval: int = option(
        30, name="hdfs.rollInterval", unit="s", description="Age at which a file is closed. 0 or less sets no limit."
    )
    roll_size: int = option(
        1024,
        name="hdfs.rollSize",
        unit="bytes",
        description="Total size of the events' bodies at which a file is closed. 0 or less sets no limit.",
    )
    roll_count: int = option(
        10,
        name="hdfs.rollCount",
        unit="events",
        description="Number of events at which a file is closed. 0 or less sets no limit.",
    )
    idle_timeout: int = option(
        0,
        name="hdfs.idleTimeout",
        unit="s",
        description="Time without an event after which a file is closed. 0 or less never closes one for this reason.",
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
        1, name="hdfs.roundValue", description="Round times down to a multiple of this many hdfs.roundUnit."
    )
    time_zone: str | None = option(
        None,
        name="hdfs.timeZone",
        description="Time zone of the time in escape sequences, such as `Europe/Paris`. If unset, the time zone of "
        "this machine.",
    )
    use_local_time_stamp: bool = option(
        False,
        name="hdfs.useLocalTimeStamp",
        description="Use the time of delivery in escape sequences instead of the header `timestamp`.",
    )
    proxy_user: str | None = option(
        None,
        name="hdfs.proxyUser",
        description="Owner of the files. With Kerberos, the user that the principal impersonates, if unset the "
        "principal itself. Without Kerberos, if unset, the environment variable HADOOP_USER_NAME, or else the user "
        "of this process.",
    )
    call_timeout: int = option(
        30_000,
        name="hdfs.callTimeout",
        unit="ms",
        description="Maximum time that a server may be silent during a call. 0 or less sets no limit.",
    )
    threads: int = option(
        10,
        name="hdfs.threadsPoolSize",
        ge=1,
        description="Number of files that are uploaded or renamed at the same time.",
    )
    staging_dir: str | None = option(
        None,
        name="hdfs.stagingDir",
        path="own",
        description="Local directory for unfinished files. If unset, the system's directory for temporary files.",
    )
    kerberos_principal: str | None = option(
        None,
        name="hdfs.kerberosPrincipal",
        description="Kerberos principal, such as `flume/_HOST@EXAMPLE.COM`, where `_HOST` is the name of this host. "
        "If unset, and HDFS requires Kerberos, the token file of HADOOP_TOKEN_FILE_LOCATION is used, or else the "
        "user's ticket cache (KRB5CCNAME). Not used if core-site.xml exists and requires no Kerberos, unless the "
        "NameNode does.",
    )
    kerberos_keytab: str | None = option(
        None,
        name="hdfs.kerberosKeytab",
        path="flume",
        description="Keytab with the key of hdfs.kerberosPrincipal. It is read again for each new delegation token.",
    )
    truststore: str | None = option(
        None,
        name="hdfs.truststore",
        must_exist=True,
        path="flume",
        description="File with the certificate authorities to trust with `https` and `swebhdfs`: a Java keystore "
        "(JKS, PKCS12) or PEM. It is read again when it changes. If unset, the environment variable "
        "REQUESTS_CA_BUNDLE, else ssl.client.truststore.location of Hadoop's ssl-client.xml, else the authorities of "
        "the Python package certifi.",
    )
    truststore_password: SecretStr | None = option(
        None,
        name="hdfs.truststorePassword",
        description="Password of hdfs.truststore, or of the truststore that ssl-client.xml names. If unset, "
        "ssl.client.truststore.password for the latter.",
    )
    check_hostname: bool = option(
        True,
        name="hdfs.checkHostname",
        description="Require that certificates of NameNodes and DataNodes are for the host names in their addresses.",
    )
    batch_size: int = option(
        100,
        name="hdfs.batchSize",
        unit="events",
        gt=0,
        without_effect=True,
        description="batches are as large as the channel returns them",
    )

    _location: Location = pydantic.PrivateAttr()
    """Path and servers by the configuration of this machine; Spark executors may have others."""
    _is_assumed: bool = pydantic.PrivateAttr(False)
    """True if no option or file names a NameNode."""
    _file_settings: dict[str, str] = pydantic.PrivateAttr()
    _tls: TlsSettings = pydantic.PrivateAttr()

    @property
    def location(self) -> Location:
        """Path and servers of hdfs.path."""
        return self._location

    @property
    def file_settings(self) -> dict[str, str]:
        """Umask, replication and block size of new files: `HadoopConfiguration.file_settings`."""
        return self._file_settings

    @property
    def login(self) -> Login:
        """Kerberos login, for an HDFS that requires Kerberos."""
        return Login(self.kerberos_principal, self.kerberos_keytab, self.proxy_user)

    @property
    def tls(self) -> TlsSettings:
        """Settings of TLS, for the scheme `https`."""
        return self._tls

    def _tls_settings(self) -> TlsSettings:
        """Return the settings of TLS, with the truststore of ssl-client.xml if there is no other.

        Raises ValueError if that file cannot be read, or is not XML.
        """
        settings = TlsSettings(self.truststore, self.truststore_password, self.check_hostname)
        if self.truststore or self._location.scheme != "https" or os.environ.get(CA_VARIABLE):
            return settings
        hadoop = HadoopConfiguration((SSL_CLIENT,))
        if not (file := hadoop.get(TRUSTSTORE_LOCATION)):
            return settings
        password = self.truststore_password or SecretStr(hadoop.get("ssl.client.truststore.password"))
        return settings._replace(
            truststore=file, password=password, origin=f"of {TRUSTSTORE_LOCATION} in {hadoop.files[0]}"
        )

    def is_secure(self) -> bool:
        """Return True if a principal is configured, and core-site.xml does not rule Kerberos out."""
        hadoop = HadoopConfiguration()
        has_core = any(file.name == "core-site.xml" for file in hadoop.files)
        requires_none = has_core and hadoop.get("hadoop.security.authentication", "simple").lower() == "simple"
        return self.kerberos_principal is not None and not requires_none and self.location.scheme != "file"

    def bucket_path(self) -> BucketPath:
        """Return the pattern of a file's path up to the unique part of its name: hdfs.path and hdfs.filePrefix."""
        return BucketPath(
            f"{self.location.path}/{self.file_prefix}",
            time_zone=self.time_zone,
            rounding=(self.round_unit, self.round_value) if self.round else None,
            local_time=self.use_local_time_stamp,
            as_path=True,
        )

    def uses_headers(self) -> dict[str, frozenset[str]]:
        """Return, by option, the names of the headers that its escapes, or its column, need."""
        patterns = {"hdfs.path": self.path, "hdfs.filePrefix": self.file_prefix}
        local = self.use_local_time_stamp
        columns = {f"serializer.columns.{header}": frozenset({header}) for header in self.columns}
        return {name: BucketPath(text, local_time=local).headers for name, text in patterns.items()} | columns

    def warnings(self) -> Iterator[Problem]:
        """Yield warnings of options that have no effect, or hide files from readers."""
        if self._is_assumed:
            yield Problem(
                "hdfs.path",
                "names no host, and neither does Hadoop's configuration: HDFS on this host is assumed (Flume would "
                "write to the local disk); to name another, write hdfs://namenode:8020/… or set HADOOP_CONF_DIR",
            )
        if self.time_zone is not None and find_zone(self.time_zone) is None:
            hint = suggest(self.time_zone, sorted(zoneinfo.available_timezones()))
            message = (
                f"{self.time_zone!r} is no time zone, so that UTC is used{hint}; if unset, the zone of this machine"
            )
            yield Problem("hdfs.timeZone", message, is_flume_behavior=True)
        if self.kerberos_principal and not self.is_secure() and self.location.scheme != "file":
            yield Problem(
                "hdfs.kerberosPrincipal",
                "has no effect, as core-site.xml requires no Kerberos (Flume would log in all the same); "
                "hdfs.proxyUser names the owner of files",
            )
        if self.is_secure() and (fault := self.login.keytab_fault()) is not None:
            yield Problem("hdfs.kerberosKeytab", f"cannot be used now: {fault}")
        yield from self._warn_of_tls()
        if self.proxy_user and self.location.scheme == "file":
            yield Problem(
                "hdfs.proxyUser",
                "has no effect with file:, as the user of this process owns files",
                is_flume_behavior=False,
            )
        yield from self._warn_unlimited()
        yield from self._warn_of_names()
        if "%" in self.file_suffix:
            yield Problem(
                "hdfs.fileSuffix",
                "has no escape sequences and is used as it is; hdfs.filePrefix may have some",
                is_flume_behavior=True,
            )
        names = {option.field: option.name for option in self.options()}
        if self.file_type != "SequenceFile":
            yield from serializers.option_warnings(self, self.model_fields_set, names)
            if "write_format" in self.model_fields_set:
                yield Problem("hdfs.writeFormat", f"has no effect with {self.file_type}, as in Flume", is_note=True)
        elif given := {"serializer", *serializers.SERIALIZERS_BY_OPTION} & self.model_fields_set:
            for field in sorted(given):
                yield Problem(
                    names[field],
                    "has no effect with hdfs.fileType SequenceFile, Flume's default; to use the serializer, write "
                    "hdfs.fileType = DataStream",
                    is_flume_behavior=True,
                )

    def _warn_of_tls(self) -> Iterator[Problem]:
        """Yield a warning for options of TLS without TLS, and an error if the truststore's library is missing."""
        if self.location.scheme == "https":
            if self.tls.truststore:
                for problem in missing_library("hdfs.truststore", "cryptography", "tls"):
                    if origin := self.tls.origin:
                        message = f"uses TLS with the truststore {origin}, which {problem.message}"
                        problem = replace(problem, option="hdfs.path", message=message)
                    yield problem
        elif self.truststore is not None:
            message = "has no effect without TLS: write swebhdfs:// in hdfs.path, or https:// in hdfs.webhdfs"
            yield Problem("hdfs.truststore", message)

    def _warn_unlimited(self) -> Iterator[Problem]:
        """Yield a warning if a file may stay open, and so hidden, for a day."""
        if self.roll_interval or self.idle_timeout:
            return
        limits = [name for name, limit in (("rollSize", self.roll_size), ("rollCount", self.roll_count)) if limit]
        only = f"only hdfs.{' and hdfs.'.join(limits)} close files" if limits else "nothing closes files"
        yield Problem(
            "hdfs.rollInterval",
            f"is 0, so that {only}: with few events no file appears for up to a day (in Flume, a .tmp file), and the "
            "channel has to keep the events that long; add hdfs.rollInterval = 3600, or hdfs.idleTimeout",
        )

    def _warn_of_names(self) -> Iterator[Problem]:
        """Yield warnings of names by which Spark, Hive and Hadoop ignore files, or read them as compressed or not."""
        ignored = "begins with {!r}: Spark, Hive and MapReduce ignore such {}"
        if self.file_prefix[0:1] in HIDDEN:
            message = ignored.format(self.file_prefix[0], "files")
            yield Problem("hdfs.filePrefix", message, is_flume_behavior=True)
        fixed = BucketPath(self.location.path).fixed_prefix
        for name in self.location.path[fixed.rfind("/") + 1 :].split("/") if fixed != self.location.path else ():
            if name[0:1] in HIDDEN and "=" not in name:
                yield Problem(
                    "hdfs.path", f"{name!r} {ignored.format(name[0], 'directories')}", is_flume_behavior=True
                )
        if self.file_type == "SequenceFile" or not self.file_suffix:
            return
        codec = codecs.CODECS.get(self.codec or "none")
        ending = codec.extension if codec is not None else ""
        by_suffix = next(
            (codec for codec in codecs.CODECS.values() if self.file_suffix.endswith(codec.extension)), None
        )
        if ending and not self.file_suffix.endswith(ending):
            message = (
                f"does not end in {ending}, by which readers recognize files compressed with {self.codec}: write "
            )
            yield Problem(
                "hdfs.fileSuffix", f"{message}hdfs.fileSuffix = {self.file_suffix}{ending}", is_flume_behavior=True
            )
        elif by_suffix is not None and not ending:
            message = f"ends in {by_suffix.extension}, by which readers expect compressed files, and these are not"
            yield Problem("hdfs.fileSuffix", message, is_flume_behavior=True)

    _check_path = pydantic.field_validator("path")(checked_path)
    _check_prefix = pydantic.field_validator("file_prefix")(checked_names)
    _check_columns = pydantic.field_validator("columns")(serializers.checked_columns)
    _canonical_codec = pydantic.field_validator("codec")(codecs.canonical_codec)
    _canonical_serializer = pydantic.field_validator("serializer")(serializers.canonical_serializer)
    _canonical_compression = pydantic.field_validator("compression_codec")(serializers.canonical_codec)

    @pydantic.field_validator("roll_interval", "roll_size", "roll_count", "idle_timeout", "call_timeout")
    @classmethod
    def _no_limit(cls, value: int) -> int:
        return max(0, value)

    @cross_field_validator("webhdfs", "path", "proxy_user", "kerberos_principal")
    def _find_servers(self) -> None:
        owner = self.proxy_user or self.login.short_name()
        self._location, self._is_assumed = locate(self.path, self.webhdfs, owner)
        self._file_settings = {} if self._location.scheme == "file" else HadoopConfiguration().file_settings()

    @cross_field_validator("path", "webhdfs", "proxy_user", "kerberos_principal", "truststore", "truststore_password")
    def _find_truststore(self) -> None:
        if hasattr(self, "_location"):  # else its servers have an error
            self._tls = self._tls_settings()

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
    def _canonical_write_format(cls, value: str) -> str:
        name = value.removeprefix("org.apache.flume.sink.hdfs.").removesuffix("$Builder").lower()
        known = {name: format for format in FORMATS for name in (format.lower(), f"hdfs{format}serializer".lower())}
        return known.get(name, value)

    @cross_field_validator("write_format", "file_type")
    def _check_write_format(self) -> None:
        if self.file_type == "SequenceFile" and self.write_format not in FORMATS:
            raise ValueError(f"must be Writable or Text, not {self.write_format!r}")

    @cross_field_validator("serializer", "file_type")
    def _check_parquet(self) -> None:
        if self.serializer == "PARQUET" and self.file_type == "CompressedStream":
            raise ValueError(
                "must not be PARQUET with CompressedStream, as Parquet compresses its columns itself: write "
                "hdfs.fileType = DataStream, remove hdfs.codeC, and name the compression with "
                "serializer.compressionCodec"
            )

    @cross_field_validator("columns", "serializer", "file_type")
    def _check_typed(self) -> None:
        if self.columns and (self.serializer != "PARQUET" or self.file_type == "SequenceFile"):
            header = next(iter(self.columns))
            raise ValueError(f"{header}: is for Parquet: write hdfs.fileType = DataStream and serializer = PARQUET")

    @cross_field_validator("compression_codec", "serializer")
    def _check_compression(self) -> None:
        serializers.check_codec(self)

    @cross_field_validator("codec", "file_type")
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

    @pydantic.field_validator("file_suffix")
    @classmethod
    def _check_suffix(cls, value: str) -> str:
        checked_names(value.replace("%", "%%"))  # the suffix has no escapes
        if "/" in value:
            raise ValueError("must be the end of a name, without a slash; directories belong in hdfs.path")
        if len(value.encode()) > MAX_SUFFIX_BYTES:
            raise ValueError(f"must have at most {MAX_SUFFIX_BYTES} bytes, as a name has at most 255")
        return value

    @pydantic.field_validator("round_unit")
    @classmethod
    def _lower(cls, value: str) -> str:
        return value.lower()

    @cross_field_validator("round_value", "round_unit", "round")
    def _check_rounding(self) -> None:
        longest = ROUND_UNITS.get(self.round_unit, self.round_value)
        if self.round and not 0 < self.round_value <= longest:
            raise ValueError(f"must be 1 to {longest} {self.round_unit}s, not {self.round_value}")

    @cross_field_validator("kerberos_principal", "kerberos_keytab")
    def _check_login(self) -> None:
        """Raise ValueError if only one of principal and keytab is set, or the principal has no realm."""
        principal, keytab = self.kerberos_principal, self.kerberos_keytab
        if (principal is None) != (keytab is None):
            missing = "hdfs.kerberosKeytab" if keytab is None else "hdfs.kerberosPrincipal"
            raise ValueError(f"needs {missing} as well; with neither, the user's ticket cache is used")
        if principal is not None and not re.fullmatch(r"[^@/\s]+(/[^@/\s]+)?@[^@/\s]+", principal):
            raise ValueError(f"must be like flume@EXAMPLE.COM or flume/_HOST@EXAMPLE.COM, not {principal!r}")
