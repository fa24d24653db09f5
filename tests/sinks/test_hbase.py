"""Options of the HBase sink; what it does with them is tests/system/test_hbase_sink.py."""

from __future__ import annotations

import pickle

import pytest

from plugins import Batch, Event, Origin, Rejected
from sinks.hbase import HBaseConfig, HBaseSink

NEEDED = {"table": "t", "columnFamily": "f", "thrift": "h:9090"}


def problems(properties: dict[str, str]) -> list[str]:
    return [f"{problem.option}: {problem.message}" for problem in HBaseConfig.parse(properties)[1]]


@pytest.mark.parametrize(
    ("quorum", "host"),
    [
        ({"zookeeperQuorum": "zk1:2181,zk2:2181"}, "zk1"),
        ({"hbase.zookeeper": "zk3"}, "zk3"),
        ({"async.hbase.zookeeper.quorum": "zk4"}, "zk4"),
        ({}, "host"),
    ],
)
def test_an_address_of_zookeeper_is_answered_with_the_line_to_add(quorum: dict[str, str], host: str) -> None:
    (problem,) = problems({"table": "t", "columnFamily": "f", **quorum})
    assert problem.startswith(
        "thrift: is required, as HBase is reached through its Thrift server and not through Zoo"
    )
    assert problem.endswith(f"add thrift = {host}:9090")
    assert problems({**NEEDED, **quorum}) == []


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
        ({"serializer": "com.acme.Mine"}, "serializer: 'com.acme.Mine' cannot run here"),
        ({"serializer.charset": "latin-1"}, "serializer.charset: only UTF-8"),
        ({"kerberosPrincipal": "flume/h@R"}, "kerberosPrincipal: is not built yet"),
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
        ({"serializer": "regex", "serializer.regex": "(a)(?=b)"}, "serializer.regex: the regular expression"),
    ],
)
def test_what_cannot_be_is_refused_in_words(wrong: dict[str, str], message: str) -> None:
    (problem,) = problems({**NEEDED, **wrong})
    assert problem.startswith(message), problem


def test_an_event_that_makes_no_cell_is_rejected() -> None:
    regex = {"serializer.regex": "(k.)(?:=(.*))?", "serializer.colNames": "ROW_KEY,v", "serializer.rowKeyIndex": "0"}
    config, _ = HBaseConfig.parse({**NEEDED, "serializer": "regex", **regex})
    assert config is not None
    events = Batch.of([Event(b"k1=v"), Event(b"k2"), Event(b"k3=")])
    sink = HBaseSink(config)
    with pytest.raises(Rejected) as rejected:
        sink.write(Batch(events.records, Origin.of_record("t", 0, 7, 5, 3)))
    assert [(id.index, reason) for id, reason in rejected.value.reasons.items()] == [
        (1, "no group of serializer.regex matches but the key: its row has no cell")
    ]
    assert [row.key for row in sink._rows[5]] == [b"k1", b"k3"]


def test_it_travels_to_an_executor() -> None:
    config, _ = HBaseConfig.parse({**NEEDED, "serializer": "regex", "serializer.regex": "(?<a>.*)"})
    assert config is not None
    sent: HBaseConfig = pickle.loads(pickle.dumps(config))
    assert sent == config
    HBaseSink(sent).close()
