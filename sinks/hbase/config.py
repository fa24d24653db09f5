"""Options of the HBase sink."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import MappingProxyType
from typing import Literal

import pydantic

from flafka.plugins import Problem, cross_field_validator, option
from flafka.plugins.java.classes import is_java_class, java_class_error
from flafka.plugins.java.regex import MATCH_TIMEOUT_SECONDS, Regex
from flafka.sinks.bulk import BulkConfig
from flafka.sinks.hdfs.hadoop import HadoopConfiguration
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
"""Serializers by their names in lower case."""
ROW_KEY = "ROW_KEY"
"""Flume's column name that stands for the row key."""
THRIFT_PORT = 9090
"""Default port of HBase's Thrift server."""
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
        description="HBase's Thrift servers (version 1, usually port 9090) as host:port, separated by commas. If "
        "unset, port 9090 of ZooKeeper's hosts. These are taken from zookeeperQuorum, or else from hbase-site.xml in "
        "FLUME_CONF_DIR or HBASE_CONF_DIR, or are HBase's default localhost.",
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
        4, name="connections", ge=1, le=64, description="Number of connections, which write in parallel."
    )
    timeout: int = option(
        60_000, name="timeout", unit="ms", ge=100, description="Maximum time to wait for an answer."
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
        description="Use HBase's write-ahead log. Without it writing is faster, but if a region server dies, events "
        "that are not yet on its disk are lost.",
    )
    serializer: str = option(
        "simple",
        name="serializer",
        description="`simple`: the body in one column. `regex`: each group of a regular expression in its own "
        "column. Flume's class names of the two are accepted, too.",
    )
    payload_column: str = option(
        "pCol", name="serializer.payloadColumn", min_length=1, description="With `simple`: column that gets the body."
    )
    row_prefix: str = option("", name="serializer.rowPrefix", description="Prefix of the row key if rowKey is unset.")
    suffix: str = option(
        "uuid",
        name="serializer.suffix",
        description="With `timestamp` or `nano`, the row key has the time of arrival in ms between prefix and id if "
        "rowKey is unset. `uuid` and `random` have no effect, as a redelivery with a random key would duplicate "
        "the row.",
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
        description="With `regex`: engine of the expression. If unset, RE2, or for look-around and back-references a "
        "backtracking engine. `false`: always RE2, which refuses these. `true`: always the backtracking engine, "
        f"which rejects an event after {MATCH_TIMEOUT_SECONDS:.0f} s.",
    )
    regex: str = option(
        "(.*)",
        name="serializer.regex",
        description="With `regex`: regular expression for the whole body, in Java's syntax; `.` matches newlines, "
        "too. Events that do not match are rejected.",
    )
    regex_ignore_case: bool = option(
        False, name="serializer.regexIgnoreCase", description="With `regex`: ignore upper and lower case."
    )
    col_names: str = option(
        "payload",
        name="serializer.colNames",
        description="With `regex`: name of the column for each group, separated by commas. ROW_KEY stands for the "
        "row key.",
    )
    row_key_index: int = option(
        -1,
        name="serializer.rowKeyIndex",
        description="With `regex`: index of ROW_KEY in colNames, from 0. -1: there is none.",
    )
    deposit_headers: bool = option(
        False,
        name="serializer.depositHeaders",
        description="Write each header to the column of its name, too, unless that is a column of the body.",
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
    """Thrift servers by the configuration of this machine; Spark executors may have another hbase-site.xml."""

    @property
    def hosts(self) -> list[tuple[str, int]]:
        """Host and port of the Thrift servers."""
        addresses = (host.strip().rpartition(":") for host in self._hosts.split(","))
        return [(host, int(port)) for host, _, port in addresses]

    @property
    def columns(self) -> list[str]:
        """Names in serializer.colNames, one for each group, without trailing empty ones, as in Java."""
        return re.sub(",+$", "", self.col_names).split(",")

    def key_template(self) -> Template:
        """Return the template of row keys: rowKey, or else rowPrefix, the time if the suffix is one, and the id."""
        if self.row_key is not None:
            return Template(self.row_key)
        time = "%[timestamp]-" if self.suffix in ("timestamp", "nano") else ""
        return Template(f"{self.row_prefix}{time}%[id]")

    def pattern(self) -> Regex:
        """Return serializer.regex compiled, to match whole bodies."""
        flags = "(?si)" if self.regex_ignore_case else "(?s)"
        return Regex(rf"{flags}\A(?:{self.regex})\z", backtracking=self.allow_backtracking)

    @cross_field_validator("thrift", "zookeeper_quorum", "hbase_zookeeper", "async_")
    def _find_servers(self) -> None:
        if self.thrift is not None:
            self._hosts = self.thrift
            return
        quorum = self.zookeeper_quorum or self.hbase_zookeeper or self.async_.get("hbase.zookeeper.quorum")
        quorum = quorum or HadoopConfiguration(("hbase-site.xml",), ("FLUME_CONF_DIR", "HBASE_CONF_DIR")).get(
            "hbase.zookeeper.quorum", "localhost"
        )
        hosts = dict.fromkeys(re.split("[:/]", part.strip())[0] for part in quorum.split(","))
        self._hosts = ",".join(f"{host}:{THRIFT_PORT}" for host in hosts if host)

    def warnings(self) -> Iterator[Problem]:
        """Yield warnings of a missing option `thrift`, and of options without effect."""
        yield from super().warnings()
        if self.thrift is None:
            message = (
                f"HBase is reached through its Thrift server, by default at {self._hosts}; start one there with "
                "`hbase thrift start`, or name it with thrift = host:9090"
            )
            if self.zookeeper_quorum is not None:
                message = f"does not name the region servers here: {message}"
                yield Problem("zookeeperQuorum", message, replacement={"thrift": self._hosts})
            else:
                yield Problem("thrift", f"is not set: {message}")
        if self.serializer == "regex":
            yield from self.pattern().notes("serializer.regex")
        if self.kerberos_principal is not None:
            message = "has no effect: the Thrift server itself logs in to HBase"
            yield Problem("kerberosPrincipal", message)
        if self.increment_column is not None:
            message = (
                "has no effect: nothing is incremented, since a redelivery would be counted twice; count the rows "
                "instead"
            )
            yield Problem("serializer.incrementColumn", message, replacement={})

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
                raise ValueError(java_class_error("serializer of HBase", value))
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
