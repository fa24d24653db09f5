"""Options of the HBase sink."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Literal

import pydantic

from plugins import Config, option
from plugins.shared.regex import Regex
from sinks.templates import Template

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


class HBaseConfig(Config):
    """Options of the HBase sink."""

    ignored = MappingProxyType(
        {
            "znodeParent": "HBase is reached through its Thrift server",
            "maxConsecutiveFails": "HBase is tried for as long as it takes",
            "coalesceIncrements": "nothing is incremented, since a redelivery would be counted twice",
            "serializer.incrementRow": "nothing is incremented, since a redelivery would be counted twice",
        }
    )
    table: str = option(name="table", min_length=1, description="Name of the table: `table` or `namespace:table`")
    column_family: str = option(
        name="columnFamily", min_length=1, pattern="^[^:/]+$", description="Column family that gets the cells"
    )
    zookeeper_quorum: str | None = option(
        None, name="zookeeperQuorum", description="Not used: HBase is reached through its Thrift server"
    )
    hbase_zookeeper: str | None = option(
        None, name="hbase.zookeeper", description="Not used: HBase is reached through its Thrift server"
    )
    async_: dict[str, str] = option({}, name="async.", description="Not used: they are settings of a Java library")
    thrift: str | None = option(
        None,
        name="thrift",
        validate_default=True,
        description="Addresses of HBase's Thrift servers (of version 1, usually port 9090), host:port, separated "
        "by commas",
    )
    thrift_transport: Literal["buffered", "framed"] = option(
        "buffered",
        name="thriftTransport",
        description="Must be `framed` where the server has hbase.regionserver.thrift.framed = true",
    )
    thrift_protocol: Literal["binary", "compact"] = option(
        "binary",
        name="thriftProtocol",
        description="Must be `compact` where the server has hbase.regionserver.thrift.compact = true",
    )
    connections: int = option(
        4, name="connections", ge=1, le=64, description="Number of connections, which write at the same time"
    )
    timeout: int = option(60_000, name="timeout", unit="ms", ge=100, description="Longest time to wait for an answer")
    create_table: bool = option(
        False,
        name="createTable",
        description="Whether the table is created, with columnFamily, where it does not exist",
    )
    row_key: str | None = option(
        None,
        name="rowKey",
        description="Key of an event's row: text with `%{header}`, `%[id]` (the event's id) and `%[timestamp]`. "
        "Events with the same key share a row. Default: serializer.rowPrefix and `%[id]`",
    )
    batch_size: int = option(
        1000,
        name="batchSize",
        unit="events",
        gt=0,
        description="Number of events after which they are written; Flume's default is 100",
    )
    enable_wal: bool = option(
        True,
        name="enableWal",
        description="Whether HBase's write-ahead log is used; false is faster, but what a server has not written "
        "to disk is lost with it",
    )
    serializer: str = option(
        "simple",
        name="serializer",
        description="`simple`: the body in one column; `regex`: each group of a pattern in a column of its own. "
        "Flume's class names of the two work too",
    )
    payload_column: str = option(
        "pCol", name="serializer.payloadColumn", min_length=1, description="With `simple`: column that gets the body"
    )
    row_prefix: str = option("", name="serializer.rowPrefix", description="Start of the default row key")
    suffix: str = option(
        "uuid",
        name="serializer.suffix",
        description="`timestamp` and `nano` put the time of arrival, in ms, between prefix and id of the default row "
        "key; `uuid` and `random` do nothing, since a key by chance would write a redelivery twice",
    )
    increment_column: str | None = option(
        None,
        name="serializer.incrementColumn",
        description="Ignored with a warning: nothing is incremented, since a redelivery would be counted twice",
    )
    allow_backtracking: bool = option(
        False,
        name="serializer.allowBacktracking",
        description="With `regex`: use Python's regular expressions, which know look-around, but may take very "
        "long for some texts",
    )
    regex: str = option(
        "(.*)",
        name="serializer.regex",
        description="regex: pattern for the whole body, in Java's spelling; `.` matches newlines too. Events that do "
        "not match are rejected",
    )
    regex_ignore_case: bool = option(
        False, name="serializer.regexIgnoreCase", description="With `regex`: ignore the case of letters"
    )
    col_names: str = option(
        "payload",
        name="serializer.colNames",
        description="With `regex`: name of the column for each group, separated by commas; ROW_KEY stands for the "
        "key of the row",
    )
    row_key_index: int = option(
        -1,
        name="serializer.rowKeyIndex",
        description="With `regex`: position of ROW_KEY in colNames, from 0; -1: there is none",
    )
    deposit_headers: bool = option(
        False,
        name="serializer.depositHeaders",
        description="Whether each header is written as well, into the column of its name",
    )
    charset: str = option("UTF-8", name="serializer.charset", description="Only `UTF-8` is possible")
    kerberos_principal: str | None = option(
        None, name="kerberosPrincipal", description="Refused: Kerberos is not supported yet"
    )
    kerberos_keytab: str | None = option(
        None, name="kerberosKeytab", description="Refused: Kerberos is not supported yet"
    )

    @property
    def hosts(self) -> list[tuple[str, int]]:
        """The Thrift servers."""
        found = (host.strip().rpartition(":") for host in (self.thrift or "").split(","))
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

    @pydantic.field_validator("thrift")
    @classmethod
    def _check_thrift(cls, value: str | None, info: pydantic.ValidationInfo) -> str:
        if value is None:
            given = info.data
            quorum = given.get("zookeeper_quorum") or given.get("hbase_zookeeper") or ""
            quorum = quorum or given.get("async_", {}).get("hbase.zookeeper.quorum", "")
            host = re.split("[,:/]", quorum)[0].strip() or "host"
            raise ValueError(
                "is needed, as HBase is reached through its Thrift server and not through ZooKeeper: start one with "
                f"`hbase thrift start`, and add thrift = {host}:9090"
            )
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
            raise ValueError(f"{value!r} cannot run here; built are: simple, regex, and Flume's own two")
        return _SERIALIZERS[value.lower()]

    @pydantic.field_validator("charset")
    @classmethod
    def _check_charset(cls, value: str) -> str:
        if value.upper() not in ("UTF-8", "UTF8"):
            raise ValueError(f"only UTF-8 is built, not {value}")
        return value

    @pydantic.field_validator("kerberos_principal", "kerberos_keytab")
    @classmethod
    def _refuse_kerberos(cls, value: str | None) -> str | None:
        if value is not None:
            raise ValueError("is not built yet: remove it, and let the Thrift server log in to HBase")
        return value

    @pydantic.model_validator(mode="after")
    def _check_groups(self) -> HBaseConfig:
        if self.serializer != "regex":
            return self
        groups, columns, index = len(self.pattern().groups), self.columns, self.row_key_index
        if groups != len(columns):
            raise ValueError(f"serializer.regex has {groups} groups and serializer.colNames {len(columns)} names")
        if index >= len(columns) or (index >= 0 and columns[index].upper() != ROW_KEY):
            raise ValueError(f"serializer.rowKeyIndex = {index}: that one of serializer.colNames must be {ROW_KEY}")
        return self
