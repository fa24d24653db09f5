"""Options of the HBase sink; what it does with them is tests/system/test_hbase_sink.py."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from plugins import Batch, Event, Origin, Rejected
from plugins.shared import regex
from sinks.hbase import HBaseConfig, HBaseSink
from sinks.hbase.thrift import Cells

NEEDED = {"table": "t", "columnFamily": "f", "thrift": "h:9090"}


def problems(properties: dict[str, str]) -> list[str]:
    return [f"{problem.option}: {problem.message}" for problem in HBaseConfig.parse(properties)[1]]


@pytest.mark.parametrize(
    ("quorum", "host"),
    [
        ({"zookeeperQuorum": "zk1:2181,zk2:2181"}, "zk1"),
        ({"hbase.zookeeper": "zk3"}, "zk3"),
        ({"async.hbase.zookeeper.quorum": "zk4"}, "zk4"),
        ({}, "localhost"),
    ],
)
def test_a_thrift_server_is_looked_for_on_the_hosts_of_zookeeper(
    quorum: dict[str, str], host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("FLUME_CONF_DIR", "HBASE_CONF_DIR"):
        monkeypatch.delenv(variable, raising=False)
    config, found = HBaseConfig.parse({"table": "t", "columnFamily": "f", **quorum})
    assert config is not None, found
    assert config.hosts[0] == (host, 9090)
    (caution,) = config.cautions()
    assert caution.option == ("zookeeperQuorum" if "zookeeperQuorum" in quorum else "thrift")
    assert caution.instead == ({"thrift": f"{config._hosts}"} if "zookeeperQuorum" in quorum else None)
    assert f"looked for at {host}:9090" in caution.message
    assert "`hbase thrift start`" in caution.message
    named, _ = HBaseConfig.parse({**NEEDED, **quorum})
    assert named is not None
    assert (named.hosts, [*named.cautions()]) == ([("h", 9090)], [])


def test_hbases_own_configuration_names_zookeeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLUME_CONF_DIR", raising=False)
    monkeypatch.setenv("HBASE_CONF_DIR", str(tmp_path))
    quorum = "<property><name>hbase.zookeeper.quorum</name><value>one,two:2182</value></property>"
    (tmp_path / "hbase-site.xml").write_text(f"<configuration>{quorum}</configuration>")
    config, _ = HBaseConfig.parse({"table": "t", "columnFamily": "f"})
    assert config is not None
    assert pickle.loads(pickle.dumps(config)).hosts == [("one", 9090), ("two", 9090)]


def test_kerberos_is_the_thrift_servers_own_affair() -> None:
    config, _ = HBaseConfig.parse({**NEEDED, "kerberosPrincipal": "flume/h@R", "kerberosKeytab": "/k"})
    assert config is not None
    assert [caution.option for caution in config.cautions()] == ["kerberosPrincipal"]


def test_flumes_files_are_read() -> None:
    flume = {
        "znodeParent": "/hbase",
        "batchSize": "100",
        "coalesceIncrements": "true",
        "enableWal": "false",
        "timeout": "60000",
        "maxConsecutiveFails": "10",
        "serializer.incrementColumn": "iCol",
        "serializer.incrementRow": "incRow",
    }
    for serializer in (
        "org.apache.flume.sink.hbase.SimpleHbaseEventSerializer",
        "org.apache.flume.sink.hbase.SimpleAsyncHbaseEventSerializer",
        "org.apache.flume.sink.hbase2.RegexHBase2EventSerializer",
        "org.apache.flume.sink.hbase.RegexHbaseEventSerializer",
    ):
        assert problems({**NEEDED, **flume, "serializer": serializer}) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"thrift": "h"}, "thrift: must be host:port"),
        ({"thrift": "h:1,h"}, "thrift: must be host:port"),
        ({"columnFamily": "a:b"}, "columnFamily: must match"),
        ({"rowKey": "%[uuid]"}, "rowKey: %[uuid] is none of %[id]"),
        ({"serializer": "com.acme.Mine"}, "serializer: the serializer of HBase com.acme.Mine is a Java class"),
        ({"serializer": "mine"}, "serializer: there is no serializer 'mine'; built are: simple, regex"),
        ({"serializer.charset": "latin-1"}, "serializer.charset: only UTF-8"),
        (
            {"serializer": "regex", "serializer.colNames": "a,b"},
            "serializer.regex: has 1 groups, and serializer.colNames has 2",
        ),
        (
            {"serializer": "regex", "serializer.rowKeyIndex": "0"},
            "serializer.rowKeyIndex: must be the position of ROW_KEY",
        ),
        (
            {"serializer": "regex", "serializer.rowKeyIndex": "1"},
            "serializer.rowKeyIndex: must be the position of ROW_KEY",
        ),
        ({"serializer": "regex", "serializer.regex": "(a"}, "serializer.regex: the regular expression"),
        (
            {"serializer": "regex", "serializer.regex": "(a)(?=b)", "serializer.allowBacktracking": "false"},
            "serializer.regex: the regular expression",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_words(wrong: dict[str, str], message: str) -> None:
    (problem,) = problems({**NEEDED, **wrong})
    assert problem.startswith(message), problem


def test_an_event_that_makes_no_cell_is_rejected() -> None:
    keyed = {"serializer.regex": "(k.)(?:=(.*))?", "serializer.colNames": "ROW_KEY,v", "serializer.rowKeyIndex": "0"}
    config, _ = HBaseConfig.parse({**NEEDED, "serializer": "regex", **keyed})
    assert config is not None
    events = Batch.of([Event(b"k1=v"), Event(b"k2"), Event(b"k3=")])
    sink = HBaseSink(config)
    with pytest.raises(Rejected) as rejected:
        sink.write(Batch(events.records, Origin.of_record("t", 0, 7, 5, 3)))
    assert [(id.index, reason) for id, reason in rejected.value.reasons.items()] == [
        (1, "no group of serializer.regex matches but the key: its row has no cell")
    ]
    assert [row.key for row in sink._rows[5]] == [b"k1", b"k3"]


def test_an_event_that_its_pattern_is_not_done_with_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(regex._BOUNDED, "timeout", 0.05)
    properties = {"serializer.regex": "((?:a|aa)+(?!a)|k)", "serializer.colNames": "v"}
    config, _ = HBaseConfig.parse({**NEEDED, "serializer": "regex", **properties})
    assert config is not None
    assert [(one.option, one.note) for one in config.cautions()][-1] == ("serializer.regex", True)
    sink = HBaseSink(config)
    events = Batch.of([Event(b"k"), Event(b"a" * 60 + b"!"), Event(b"aa")])
    with pytest.raises(Rejected) as rejected:
        sink.write(Batch(events.records, Origin.of_record("t", 0, 7, 5, 3)))
    assert {id.index: reason for id, reason in rejected.value.reasons.items()} == {1: regex.TooSlow.reason}
    assert [row.id.index for row in sink._rows[5]] == [0, 2]


class Table:
    """Keeps the calls; each waits until `at_once` of them are under way."""

    def __init__(self, at_once: int) -> None:
        self.calls: list[list[bytes]] = []
        self._together = threading.Barrier(at_once)

    def families(self, table: str) -> set[str]:
        return {"f"}

    def put(self, table: str, timestamp: int, rows: Sequence[tuple[bytes, Cells]], *, wal: bool) -> None:
        self.calls.append([key for key, _ in rows])
        self._together.wait(60)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("row_key", "at_once"), [("%[id]", 4), ("%{k}", 1)])
def test_rows_of_one_record_go_over_all_connections_but_those_of_one_key_stay_in_order(
    row_key: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, found = HBaseConfig.parse({**NEEDED, "rowKey": row_key})
    assert config is not None, found
    table = Table(at_once)
    monkeypatch.setattr(HBaseSink, "_connect", lambda sink: table)
    sink = HBaseSink(config)
    sink.open()
    events = Batch.of([Event(b"%d" % n, {"k": f"{min(n, 998)}"}) for n in range(1000)])
    sink.write(Batch(events.records, Origin.of_record("t", 0, 7, 5, 1000)))
    sink.flush()
    sink.close()
    assert [len(keys) for keys in table.calls] == [1000 // at_once] * at_once
    assert len({key for keys in table.calls for key in keys}) == (1000 if at_once > 1 else 999)
    assert at_once > 1 or table.calls[0] == [b"%d" % min(n, 998) for n in range(1000)]


def test_it_travels_to_an_executor() -> None:
    config, _ = HBaseConfig.parse({**NEEDED, "serializer": "regex", "serializer.regex": "(?<a>.*)"})
    assert config is not None
    sent: HBaseConfig = pickle.loads(pickle.dumps(config))
    assert sent == config
    HBaseSink(sent).close()
