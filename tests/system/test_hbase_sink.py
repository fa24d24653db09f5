"""HBase sink on a real HBase: cells and their times, refused cells, and unavailable servers."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

import happybase
import pytest

from flafka.agent.jvm.jars import ensure
from flafka.agent.jvm.java import find_java
from flafka.agent.services.cluster import HOST, is_listening
from flafka.agent.services.hbase import THRIFT, HBaseCluster
from flafka.agent.services.process import await_ready
from flafka.agent.services.running import until
from flafka.plugins import Batch, Event, Origin, Retry, conformance
from flafka.sinks.hbase import HBaseConfig, HBaseSink
from tests.fixtures.kit import exercises
from tests.fixtures.ports import free_port
from tests.system.delivering import TIME_MS, batch, deliver
from tests.system.running import unique


class Table:
    """Table for one test, and sinks that write to it."""

    def __init__(self, cluster: HBaseCluster) -> None:
        self.cluster = cluster
        self.name = unique("t")
        self.sinks: list[HBaseSink] = []

    def create(self) -> None:
        with self.connected() as connection:
            connection.create_table(self.name, {"f": {"max_versions": 10}})

    def properties(self, **options: str) -> dict[str, str]:
        return {"table": self.name, "columnFamily": "f", "thrift": self.cluster.address, **options}

    def sink(self, **options: str) -> HBaseSink:
        config, problems = HBaseConfig.parse(self.properties(**options))
        assert config is not None, problems
        sink = HBaseSink(config)
        self.sinks.append(sink)
        sink.open()
        return sink

    @contextlib.contextmanager
    def connected(self) -> Iterator[Any]:
        host, _, port = self.cluster.address.partition(":")
        with contextlib.closing(happybase.Connection(host, int(port), timeout=60_000)) as connection:
            yield connection

    def rows(self) -> dict[bytes, dict[bytes, bytes]]:
        with self.connected() as connection:
            return dict(connection.table(self.name).scan())

    def versions(self, key: bytes, column: bytes) -> list[tuple[bytes, int]]:
        with self.connected() as connection:
            cells: list[tuple[bytes, int]] = connection.table(self.name).cells(
                key, column, versions=10, include_timestamp=True
            )
            return cells


@pytest.fixture
def table(hbase_cluster: HBaseCluster) -> Iterator[Table]:
    table = Table(hbase_cluster)
    yield table
    for sink in table.sinks:
        sink.close()


def events(bodies: list[bytes], *, offset: int = 0, headers: dict[str, str] | None = None) -> Batch:
    return batch(*(Event(body, headers or {}) for body in bodies), offset=offset)


def record(bodies: list[bytes], offset: int = 0) -> Batch:
    """Return one record with all events."""
    return Batch.of([Event(body) for body in bodies], Origin.of_record("app", 0, offset, TIME_MS, len(bodies)))


@exercises("sink hbase")
def test_conformance(table: Table) -> None:
    conformance.check_sink(
        HBaseSink,
        table.properties(createTable="true"),
        delivered=lambda: [cells[b"f:pCol"] for cells in table.rows().values()],
        failing=table.properties(thrift="127.0.0.1:1"),
    )


def test_a_redelivery_writes_the_same_cells(table: Table) -> None:
    table.create()
    for _ in range(2):
        assert deliver(table.sink(), events([b"a", b"\xff\0"]), record([b"c"] * 2500, 9)) == {}
    rows = table.rows()
    assert rows.keys() == {b"app-0-0-0", b"app-0-1-0", *(b"app-0-9-%d" % n for n in range(2500))}
    assert rows[b"app-0-1-0"] == {b"f:pCol": b"\xff\0"}
    assert table.versions(b"app-0-1-0", b"f:pCol") == [(b"\xff\0", TIME_MS + 1)]
    assert table.versions(b"app-0-9-7", b"f:pCol") == [(b"c", TIME_MS)]


def test_row_keys_and_columns(table: Table) -> None:
    sink = table.sink(createTable="true", rowKey="%{host}/%[timestamp]", **{"serializer.depositHeaders": "true"})
    rejected = deliver(sink, events([b"a"], headers={"host": "é"}), events([b"b"], offset=1))
    assert rejected == {"app-0-1-0": "it has no header 'host', which '%{host}/%[timestamp]' needs"}
    assert table.rows() == {f"é/{TIME_MS}".encode(): {b"f:pCol": b"a", b"f:host": "é".encode()}}
    # Flume's options: a prefix, and the time at the place that its keys give it.
    flume = {"serializer.rowPrefix": "p-", "serializer.suffix": "timestamp", "serializer.payloadColumn": "body"}
    assert deliver(table.sink(**flume), events([b"c"], offset=2)) == {}
    assert table.rows()[f"p-{TIME_MS + 2}-app-0-2-0".encode()] == {b"f:body": b"c"}


def test_events_of_one_key_leave_the_latest(table: Table) -> None:
    table.create()
    sink = table.sink(rowKey="%{host}")
    assert deliver(sink, events([b"%d" % n for n in range(50)], headers={"host": "h"})) == {}
    assert table.rows() == {b"h": {b"f:pCol": b"49"}}


def test_the_regex_serializer(table: Table) -> None:
    sink = table.sink(
        createTable="true",
        serializer="org.apache.flume.sink.hbase2.RegexHBase2EventSerializer",
        **{
            "serializer.regex": r"(\w+) ([A-Z]+)?(.*)",
            "serializer.regexIgnoreCase": "true",
            "serializer.colNames": "ROW_KEY,level,message",
            "serializer.rowKeyIndex": "0",
        },
    )
    rejected = deliver(sink, events([b"k1 info: all\nwell", b"no-match", b"k2 42"]))
    assert rejected == {"app-0-1-0": "its body does not match serializer.regex"}
    assert table.rows() == {
        b"k1": {b"f:level": b"info", b"f:message": b": all\nwell"},
        b"k2": {b"f:message": b"42"},
    }


def test_only_what_hbase_refuses_is_rejected(table: Table) -> None:
    sink = table.sink(createTable="true")
    large = b"x" * (11 << 20)  # HBase accepts cells up to 10 MiB
    bodies = [large if n in (3, 700) else b"%d" % n for n in range(1000)]
    rejected = deliver(sink, record(bodies))
    assert rejected.keys() == {"app-0-0-3", "app-0-0-700"}
    assert all("KeyValue size too large" in reason for reason in rejected.values())
    assert {cells[b"f:pCol"] for cells in table.rows().values()} == set(bodies) - {large}
    key = table.sink(rowKey="%[body]")
    rejected = deliver(key, events([b"", b"k" * 32_767, b"k" * 32_768]))
    assert list(rejected) == ["app-0-0-0", "app-0-2-0"]
    assert len(table.rows()) == 999


def test_a_missing_family_or_table_delays_all_events_until_it_is_created(table: Table) -> None:
    with pytest.raises(Retry, match=r"HBase has no table .*: add createTable = true"):
        table.sink()
    (sentence,) = table.sinks[0].check_connectivity()
    assert sentence.endswith(f"or run in its shell: create '{table.name}', 'f'")
    table.create()
    with pytest.raises(Retry, match=r"has no column family 'g', only f: .* alter"):
        table.sink(columnFamily="g")
    (sentence,) = table.sinks[-1].check_connectivity()
    assert "no column family 'g'" in sentence
    sink = table.sink()
    assert list(sink.check_connectivity()) == []
    with table.connected() as connection:
        connection.delete_table(table.name, disable=True)
        connection.create_table(table.name, {"g": {}})
    sink.write(events([b"a"]))
    with pytest.raises(Retry, match=r"HBase cannot write .*: the table has no such column family"):
        sink.flush()
    disabled, gone_since = (
        r"HBase cannot write .*: .*or the table is disabled",
        r"HBase has no table .*: add createTable",
    )
    for deleted, words in ((False, disabled), (True, gone_since)):
        sink.reset()
        with table.connected() as connection:
            connection.delete_table(table.name) if deleted else connection.disable_table(table.name)
        sink.write(events([b"a"]))
        with pytest.raises(Retry, match=words):
            sink.flush()
    sink.reset()
    table.create()
    assert deliver(sink, events([b"a"])) == {}
    assert table.rows() == {b"app-0-0-0": {b"f:pCol": b"a"}}


def test_a_table_that_is_dropped_while_the_sink_runs_is_recreated(table: Table) -> None:
    sink = table.sink(createTable="true")
    assert deliver(sink, events([b"a"])) == {}
    with table.connected() as connection:
        connection.delete_table(table.name, disable=True)
    assert deliver(sink, events([b"b"], offset=1)) == {}
    assert table.rows() == {b"app-0-1-0": {b"f:pCol": b"b"}}


def test_a_stopped_thrift_server_fails_only_during_its_outage(table: Table) -> None:
    sink = table.sink(createTable="true", connections="2")
    assert deliver(sink, events([b"a", b"b"])) == {}
    cluster = table.cluster
    try:
        cluster.restart(THRIFT)  # its connections broke while they were idle
        assert deliver(sink, events([b"c"], offset=2)) == {}
        cluster.kill(THRIFT)
        until(lambda: not is_listening(cluster.ports[THRIFT]), "its port to be closed")
        sink.write(events([b"d"], offset=3))
        with pytest.raises(Retry, match=r"HBase is away: no Thrift server answers at 127\.0\.0\.1"):
            sink.flush()
        sink.reset()
        assert [sentence.partition(":")[0] for sentence in sink.check_connectivity()] == ["HBase is away"]
    finally:
        cluster.start()
    assert deliver(sink, events([b"d"], offset=3)) == {}
    assert len(table.rows()) == 4
    assert sink.metrics.get("ConnectionCreatedCount") >= 3
    assert sink.metrics.get("ConnectionFailedCount") >= 2


def test_a_hanging_server_costs_one_timeout_not_one_a_call(table: Table) -> None:
    """Events of many times are many calls; the first failure ends them all."""
    table.create()
    sink = table.sink(connections="2", timeout="1000")
    batch = events([b"%d" % n for n in range(100)])
    assert batch.origin is not None
    assert len(set(batch.origin.timestamps)) == 100
    thrift = table.cluster.server(THRIFT)
    try:
        thrift.signal(signal.SIGSTOP)
        with pytest.raises(Retry, match="closed the connection: timed out"):
            sink.write(batch)
    finally:
        thrift.signal(signal.SIGCONT)
    assert sink.metrics.get("ConnectionClosedCount") + sink.metrics.get("ConnectionFailedCount") < 50
    sink.reset()
    assert deliver(sink, batch) == {}
    assert len(table.rows()) == 100


def test_framed_and_compact(table: Table) -> None:
    """A second Thrift server of the same HBase has the other protocol."""
    cluster = table.cluster
    port = free_port()
    server = cluster.server("compact")
    command = cluster.command(THRIFT, find_java(), ensure("hbase"))
    server.start([*command, "--framed", "--compact", "--port", str(port), "--bind", HOST])
    try:
        await_ready(lambda: None if is_listening(port) else "it does not listen", [server], 60)
        sink = table.sink(
            thrift=f"127.0.0.1:1, {HOST}:{port}",
            createTable="true",
            thriftTransport="framed",
            thriftProtocol="compact",
        )
        assert deliver(sink, events([b"a"])) == {}
        with pytest.raises(Retry, match="does it speak buffered and binary"):
            table.sink(thrift=f"{HOST}:{port}", timeout="2000")
    finally:
        server.stop(20)
    assert len(table.rows()) == 1
