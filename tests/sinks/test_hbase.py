"""Options of the HBase sink; tests/system/test_hbase_sink.py has its deliveries."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from flafka.agent.services.running import until
from flafka.plugins import Batch, Event, Origin, Retry
from flafka.plugins.java import regex
from flafka.sinks.hbase import HBaseConfig, HBaseSink
from flafka.sinks.hbase.thrift import Cells, TableMissing, _Answer

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
def test_the_default_thrift_server_is_on_the_hosts_of_zookeeper(
    quorum: dict[str, str], host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("FLUME_CONF_DIR", "HBASE_CONF_DIR"):
        monkeypatch.delenv(variable, raising=False)
    config, problems = HBaseConfig.parse({"table": "t", "columnFamily": "f", **quorum})
    assert config is not None, problems
    assert config.hosts[0] == (host, 9090)
    (caution,) = config.warnings()
    assert caution.option == ("zookeeperQuorum" if "zookeeperQuorum" in quorum else "thrift")
    assert caution.replacement == ({"thrift": f"{config._hosts}"} if "zookeeperQuorum" in quorum else None)
    assert f"by default at {host}:9090" in caution.message
    assert "`hbase thrift start`" in caution.message
    named, _ = HBaseConfig.parse({**NEEDED, **quorum})
    assert named is not None
    assert (named.hosts, [*named.warnings()]) == ([("h", 9090)], [])


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
    assert [caution.option for caution in config.warnings()] == ["kerberosPrincipal"]


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
def test_invalid_options_are_refused(wrong: dict[str, str], message: str) -> None:
    (problem,) = problems({**NEEDED, **wrong})
    assert problem.startswith(message), problem


def test_an_event_whose_pattern_times_out_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(regex._BOUNDED, "timeout", 0.05)
    properties = {"serializer.regex": "((?:a|aa)+(?!a)|k)", "serializer.colNames": "v"}
    config, _ = HBaseConfig.parse({**NEEDED, "serializer": "regex", **properties})
    assert config is not None
    assert [(problem.option, problem.is_note) for problem in config.warnings()][-1] == ("serializer.regex", True)
    sink = HBaseSink(config)
    events = Batch.of([Event(b"k"), Event(b"a" * 60 + b"!"), Event(b"aa")])
    rejected = sink._make_items(Batch(events.records, Origin.of_record("t", 0, 7, 5, 3)))
    assert {id.index: reason for id, reason in rejected.items()} == {1: regex.RegexTimeout.reason}
    assert [row.id.index for row in sink._items] == [0, 2]


class Table:
    """Table that keeps the calls; each waits until `at_once` of them are in flight."""

    def __init__(self, at_once: int) -> None:
        self.calls: list[list[bytes]] = []
        self._together = threading.Barrier(at_once)

    def families(self, table: str) -> set[str] | None:
        return {"f"}

    def put(self, table: str, timestamp: int, rows: Sequence[tuple[bytes, Cells]], *, wal: bool) -> None:
        self.calls.append([key for key, _ in rows])
        self._together.wait(60)

    def close(self) -> None:
        pass


def opened(table: Table, monkeypatch: pytest.MonkeyPatch, **properties: str) -> HBaseSink:
    config, problems = HBaseConfig.parse({**NEEDED, **properties})
    assert config is not None, problems
    monkeypatch.setattr(HBaseSink, "_connect", lambda sink: table)
    sink = HBaseSink(config)
    sink.open()
    return sink


def batch_of(offset: int, keys: Sequence[str]) -> Batch:
    events = Batch.of([Event(b"%d" % n, {"k": key}) for n, key in enumerate(keys)])
    return Batch(events.records, Origin.of_record("t", 0, offset, 5, len(keys)))


def test_rows_are_written_over_all_connections_before_the_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(4)
    sink = opened(table, monkeypatch)
    sink.write(batch_of(7, [""] * 1000))
    until(lambda: len(table.calls) == 4, "four calls at once")
    sink.flush()
    sink.close()
    assert [len(keys) for keys in table.calls] == [250] * 4
    assert len({key for keys in table.calls for key in keys}) == 1000


def test_rows_are_sent_at_once_while_idle_and_else_together(monkeypatch: pytest.MonkeyPatch) -> None:
    table, answer = Table(1), threading.Event()

    def put(table_: str, timestamp: int, rows: Sequence[tuple[bytes, Cells]], *, wal: bool) -> None:
        table.calls.append([key for key, _ in rows])
        assert answer.wait(60)

    monkeypatch.setattr(table, "put", put)
    sink = opened(table, monkeypatch)
    sink.write(batch_of(7, [""] * 10))
    until(lambda: len(table.calls) == 1, "a call before the flush")
    sink.write(batch_of(8, [""] * 20))
    sink.write(batch_of(9, [""] * 30))
    answer.set()
    sink.flush()
    sink.close()
    assert [len(keys) for keys in table.calls] == [10, 50]


def test_rows_of_one_key_and_timestamp_are_written_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(1)
    under_way, together = threading.Lock(), threading.Event()

    def put(table_: str, timestamp: int, rows: Sequence[tuple[bytes, Cells]], *, wal: bool) -> None:
        if not under_way.acquire(blocking=False):
            together.set()
            return
        together.wait(0.02)  # time for a concurrent call
        written.extend(cells[b"f:pCol"] for key, cells in rows if key == b"same")
        under_way.release()

    written: list[bytes] = []
    monkeypatch.setattr(table, "put", put)
    sink = opened(table, monkeypatch, rowKey="%{k}")
    for offset in (7, 8):  # of one millisecond
        sink.write(batch_of(offset, ["same" if n % 100 == 99 else f"{offset}-{n}" for n in range(1000)]))
    sink.flush()
    sink.close()
    assert not together.is_set(), "two calls with one key at once"
    assert written == [b"%d" % n for n in range(99, 1000, 100)] * 2


def test_after_a_failure_no_call_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(1)
    failed, ended = threading.Event(), []

    def put(table_: str, timestamp: int, rows: Sequence[tuple[bytes, Cells]], *, wal: bool) -> None:
        if failed.is_set():
            time.sleep(0.05)  # while the failure is reported
            ended.append(len(rows))
            return
        failed.set()
        raise Retry("away")

    monkeypatch.setattr(table, "put", put)
    sink = opened(table, monkeypatch, connections="2", batchSize="10")
    sink.write(batch_of(7, [""] * 1000))
    with pytest.raises(Retry, match="away"):
        sink.flush()
    sink.reset()
    calls = len(ended)
    sink.flush()
    sink.close()
    assert len(ended) == calls
    assert calls < 4, "what had not begun never does"


class Dropped(Table):
    """Table that is dropped at the first call; `created` counts how often it was created since."""

    def __init__(self) -> None:
        super().__init__(1)
        self.there, self.created = True, 0

    def families(self, table: str) -> set[str] | None:
        return {"f"} if self.there else None

    def create(self, table: str, family: str) -> None:
        self.there, self.created = True, self.created + 1

    def put(self, table: str, timestamp: int, rows: Sequence[tuple[bytes, Cells]], *, wal: bool) -> None:
        if not self.there:
            raise TableMissing("HBase cannot write to table 't': there is no such table")
        super().put(table, timestamp, rows, wal=wal)


def test_a_table_that_is_dropped_while_the_sink_runs_is_recreated(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Dropped()
    sink = opened(table, monkeypatch, createTable="true")
    table.there = False
    sink.write(batch_of(7, ["", ""]))
    sink.flush()
    sink.close()
    assert (table.created, [len(keys) for keys in table.calls]) == (1, [2])


def test_a_table_that_is_dropped_while_the_sink_runs_is_named_with_advice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = Dropped()
    sink = opened(table, monkeypatch)
    table.there = False
    sink.write(batch_of(7, [""]))
    with pytest.raises(Retry, match="has no table 't': add createTable = true, or run in its shell: create 't', 'f'"):
        sink.flush()
    sink.reset()
    table.there = True
    sink.write(batch_of(7, [""]))
    sink.flush()
    sink.close()
    assert (table.created, [len(keys) for keys in table.calls]) == (0, [1])


def test_it_travels_to_an_executor() -> None:
    config, _ = HBaseConfig.parse({**NEEDED, "serializer": "regex", "serializer.regex": "(?<a>.*)"})
    assert config is not None
    sent: HBaseConfig = pickle.loads(pickle.dumps(config))
    assert sent == config
    HBaseSink(sent).close()


FAILED = "org.apache.hadoop.hbase.client.RetriesExhaustedWithDetailsException: Failed 2 actions: "


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{FAILED}t1: 2 times, servers with issues: null", "there is no such table"),
        (
            f"{FAILED}NotServingRegionException: 2 times, servers with issues: null",
            "no region server serves these rows at present, or the table is disabled",
        ),
        (
            f"{FAILED}SocketTimeoutException: 2 times, servers with issues: rs1,16020,17",
            "SocketTimeoutException at rs1,16020,17; see the log of its Thrift server",
        ),
        (
            f"{FAILED}null: 1 time, servers with issues: null",
            "a call failed without a reason; see the log of its Thrift server",
        ),
        ("java.io.IOException: the disk is full", "the disk is full"),
        ("org.apache.hadoop.hbase.TableNotFoundException: t1", "there is no such table"),
    ],
)
def test_an_answer_is_reported_with_its_cause(line: str, words: str) -> None:
    error = SimpleNamespace(message=f"{line}\n\tat org.apache.Some.java".encode())
    retry = _Answer(error).retry("write to table 't1'", "t1")
    assert str(retry) == f"HBase cannot write to table 't1': {words}"
    assert isinstance(retry, TableMissing) == (words == "there is no such table")
