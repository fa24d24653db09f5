"""Options of the HBase sink."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import MappingProxyType
from typing import Literal

import pydantic

from flafka.plugins import Problem, cross_field_validator, option
from flafka.plugins.shared.javaclass import cannot_run, is_java_class
from flafka.plugins.shared.regex import LONGEST, Regex
from flafka.sinks.bulk import BulkConfig
from flafka.sinks.hdfs.hadoop import Hadoop
from flafka.sinks.templates import Template

_SERIALIZERS = {
    "simple": "simple",
    "regex": "regex",
    "org.apache.flume.sink.hbase.simplehbaseeventserializer": "simple",
    "org.apache.flume.sink.hbase.simpleasynchbaseeventserializer": "simple",
    "org.apache.flume.sink.hbase2.simplehbase2eventserializer": "simple",
    "org.apache.flume.sink.hbase.regexhbaseeventserializer": "regex",
    "org.apache.flume.sink.hbase2.regexhbase2eventserializer": "regex",
}
"""What is meant, by the name in lower case."""
ROW_KEY = "ROW_KEY"
"""Flume's name for the column that is no column but the row's key."""


THRIFT_PORT = 9090
"""Where HBase's Thrift server listens by default."""
_THRIFT = "HBase is reached through its Thrift server"


class HBaseConfig(BulkConfig):
    """Options of the HBase sink."""

    options_without_effect = MappingProxyType(
        {
            "znodeParent": _THRIFT,
            "maxConsecutiveFails": "failures are retried without a limit",
            "coalesceIncrements": "nothing is incremented, since a redelivery would be counted twice",
            "serializer.incrementRow": "nothing is incremented, since a redelivery would be counted twice",
        }
    )
    table: str = option(name="table", min_length=1, description="Name of the table: `table` or `namespace:table`.")
    column_family: str = option(
        name="columnFamily", min_length=1, pattern="^[^:/]+$", description="Column family that gets the cells."
    )
    zookeeper_quorum: str | None = option(None, name="zookeeperQuorum", without_effect=True, description=_THRIFT)
    hbase_zookeeper: str | None = option(None, name="hbase.zookeeper", without_effect=True, description=_THRIFT)
    async_: dict[str, str] = option(
        {},
        name="async.",
        without_effect=True,
        description="they are settings of a Java library, which is not used here",
    )
    thrift: str | None = option(
        None,
        name="thrift",
        description="HBase's Thrift servers (version 1, usually port 9090) as host:port, separated by commas. "
        "If unset, they are looked for at port 9090 of ZooKeeper's hosts, which zookeeperQuorum, hbase-site.xml in "
        "FLUME_CONF_DIR or HBASE_CONF_DIR, or else HBase's default localhost names.",
    )
    thrift_transport: Literal["buffered", "framed"] = option(
        "buffered",
        name="thriftTransport",
        description="Set it to `framed` if the server has hbase.regionserver.thrift.framed = true.",
    )
    thrift_protocol: Literal["binary", "compact"] = option(
        "binary",
        name="thriftProtocol",
        description="Set it to `compact` if the server has hbase.regionserver.thrift.compact = true.",
    )
    connections: int = option(
        4, name="connections", ge=1, le=64, description="Number of connections. They write at the same time."
    )
    timeout: int = option(
        60_000, name="timeout", unit="ms", ge=100, description="Maximum time that an answer may take."
    )
    create_table: bool = option(
        False,
        name="createTable",
        description="Create the table, with columnFamily, if it does not exist, at the start or later.",
    )
    row_key: str | None = option(
        None,
        name="rowKey",
        description="Key of an event's row. It may contain `%{header}`, `%[id]` (the event's id) and `%[timestamp]`. "
        "Events with the same key share a row. If unset, serializer.rowPrefix and `%[id]`.",
    )
    enable_wal: bool = option(
        True,
        name="enableWal",
        description="Use HBase's write-ahead log. Without it writing is faster, but when a region server dies, "
        "events that were not yet on its disk are lost.",
    )
    serializer: str = option(
        "simple",
        name="serializer",
        description="`simple`: the body in one column. `regex`: each group of a regular expression in a column of "
        "its own. Flume's class names of the two are accepted, too.",
    )
    payload_column: str = option(
        "pCol", name="serializer.payloadColumn", min_length=1, description="With `simple`: column that gets the body."
    )
    row_prefix: str = option(
        "", name="serializer.rowPrefix", description="Beginning of the row key if rowKey is unset."
    )
    suffix: str = option(
        "uuid",
        name="serializer.suffix",
        description="With `timestamp` or `nano`, the row key has the time of arrival in ms between prefix and id if "
        "rowKey is unset. `uuid` and `random` have no effect, as a random key would write an event twice when it is "
        "delivered again.",
    )
    increment_column: str | None = option(
        None,
        name="serializer.incrementColumn",
        without_effect=True,
        description="nothing is incremented, since a redelivery would be counted twice",
    )
    allow_backtracking: bool | None = option(
        None,
        name="serializer.allowBacktracking",
        description="With `regex`: which engine runs it. If unset, RE2, or where it has look-around or "
        "back-references, one that backtracks. `false`: always RE2, which refuses these. `true`: always the other. "
        f"An event that takes that one longer than {LONGEST:.0f} s is rejected.",
    )
    regex: str = option(
        "(.*)",
        name="serializer.regex",
        description="With `regex`: regular expression for the whole body: RE2, in Java's syntax; `.` matches "
        "newlines as well. Events that do not match are rejected.",
    )
    regex_ignore_case: bool = option(
        False, name="serializer.regexIgnoreCase", description="With `regex`: ignore upper and lower case."
    )
    col_names: str = option(
        "payload",
        name="serializer.colNames",
        description="With `regex`: name of the column for each group, separated by commas. ROW_KEY stands for the "
        "row's key.",
    )
    row_key_index: int = option(
        -1,
        name="serializer.rowKeyIndex",
        description="With `regex`: position of ROW_KEY in colNames, counted from 0. -1 means that there is none.",
    )
    deposit_headers: bool = option(
        False,
        name="serializer.depositHeaders",
        description="Write each header into the column of its name as well, unless the body fills that column.",
    )
    charset: str = option(
        "UTF-8", name="serializer.charset", description="Character set of the bodies. Only `UTF-8` is possible."
    )
    kerberos_principal: str | None = option(
        None, name="kerberosPrincipal", without_effect=True, description="the Thrift server itself logs in to HBase"
    )
    kerberos_keytab: str | None = option(
        None, name="kerberosKeytab", without_effect=True, description="the Thrift server itself logs in to HBase"
    )

    _hosts: str = pydantic.PrivateAttr("")
    """As they are found on this machine: executors of Spark on others may have another hbase-site.xml."""

    @property
    def hosts(self) -> list[tuple[str, int]]:
        """The Thrift servers."""
        found = (host.strip().rpartition(":") for host in self._hosts.split(","))
        return [(host, int(port)) for host, _, port in found]

    @property
    def columns(self) -> list[str]:
        """A column for each group of the pattern; trailing empty ones fall away, as in Java."""
        return re.sub(",+$", "", self.col_names).split(",")

    def key_template(self) -> Template:
        """What makes the rows' keys."""
        if self.row_key is not None:
            return Template(self.row_key)
        time = "%[timestamp]-" if self.suffix in ("timestamp", "nano") else ""
        return Template(f"{self.row_prefix}{time}%[id]")

    def pattern(self) -> Regex:
        """The pattern, for whole bodies."""
        flags = "(?si)" if self.regex_ignore_case else "(?s)"
        return Regex(rf"{flags}\A(?:{self.regex})\z", backtracking=self.allow_backtracking)

    @cross_field_validator("thrift", "zookeeper_quorum", "hbase_zookeeper", "async_")
    def _is_reached(self) -> None:
        if self.thrift is not None:
            self._hosts = self.thrift
            return
        quorum = self.zookeeper_quorum or self.hbase_zookeeper or self.async_.get("hbase.zookeeper.quorum")
        quorum = quorum or Hadoop(("hbase-site.xml",), ("FLUME_CONF_DIR", "HBASE_CONF_DIR")).get(
            "hbase.zookeeper.quorum", "localhost"
        )
        hosts = dict.fromkeys(re.split("[:/]", part.strip())[0] for part in quorum.split(","))
        self._hosts = ",".join(f"{host}:{THRIFT_PORT}" for host in hosts if host)

    def warnings(self) -> Iterator[Problem]:
        """What is not given, and what has no effect."""
        yield from super().warnings()
        if self.thrift is None:
            message = (
                f"HBase is reached through its Thrift server, which is looked for at {self._hosts}; start one there "
                "with `hbase thrift start`, or name it with thrift = host:9090"
            )
            if self.zookeeper_quorum is not None:
                message = f"does not lead to the region servers here: {message}"
                yield Problem("zookeeperQuorum", message, instead={"thrift": self._hosts})
            else:
                yield Problem("thrift", f"is not given: {message}")
        if self.serializer == "regex":
            yield from self.pattern().note("serializer.regex")
        if self.kerberos_principal is not None:
            message = "has no effect: the Thrift server itself logs in to HBase"
            yield Problem("kerberosPrincipal", message, instead={})
        if self.increment_column is not None:
            message = (
                "has no effect: nothing is incremented, since a redelivery would be counted twice; count the rows "
                "instead"
            )
            yield Problem("serializer.incrementColumn", message, instead={})

    @pydantic.field_validator("thrift")
    @classmethod
    def _check_thrift(cls, value: str) -> str:
        for host in value.split(","):
            if not re.fullmatch(r"[^\s/:]+:[0-9]{1,5}", host.strip()):
                raise ValueError(f"must be host:port, or several with commas between them, not {value!r}")
        return value

    @pydantic.field_validator("row_key", "row_prefix")
    @classmethod
    def _check_row_key(cls, value: str | None) -> str | None:
        if value is not None:
            Template(value)
        return value

    @pydantic.field_validator("serializer")
    @classmethod
    def _check_serializer(cls, value: str) -> str:
        if value.lower() not in _SERIALIZERS:
            if is_java_class(value):
                raise ValueError(cannot_run("serializer of HBase", value))
            raise ValueError(f"there is no serializer {value!r}; built are: simple, regex, and Flume's own two")
        return _SERIALIZERS[value.lower()]

    @pydantic.field_validator("charset")
    @classmethod
    def _check_charset(cls, value: str) -> str:
        if value.upper() not in ("UTF-8", "UTF8"):
            raise ValueError(f"only UTF-8 is built, not {value}")
        return value

    @cross_field_validator("regex", "serializer", "col_names", "regex_ignore_case", "allow_backtracking")
    def _check_groups(self) -> None:
        if self.serializer == "regex" and (groups := len(self.pattern().groups)) != len(self.columns):
            raise ValueError(f"has {groups} groups, and serializer.colNames has {len(self.columns)} names")

    @cross_field_validator("row_key_index", "serializer", "col_names")
    def _check_row_key_index(self) -> None:
        index = self.row_key_index
        named = "".join(self.columns[index : index + 1]).upper()
        if self.serializer == "regex" and index >= 0 and named != ROW_KEY:
            raise ValueError(f"must be the position of {ROW_KEY} in serializer.colNames, not {index}")
