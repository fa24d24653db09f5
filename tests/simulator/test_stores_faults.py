"""Models of Solr and HBase with failing calls."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pysolr
import pytest

from flafka.plugins import Metrics, Retry
from flafka.sinks.hbase import thrift
from flafka.sinks.solr import sink as solr_sink
from flafka.sinks.solr.config import SolrConfig
from tests.simulator import http, stores
from tests.simulator.faults import Fault, Kind
from tests.simulator.processes import Process
from tests.simulator.running import replaced, run_in
from tests.simulator.world import World, simulation

TWO = [{"id": "a", "body_t": "1"}, {"id": "b", "body_t": "2"}]
ROWS = [(b"a", {b"f:x": b"1"}), (b"b", {b"f:x": b"2"})]


def solr(body: Callable[[Any, World], Any], *faults: Fault) -> stores.Solr:
    """Run this with an open sink, in a process named "p"; what Solr is like afterwards."""
    logging.getLogger("pysolr").setLevel(logging.CRITICAL)
    config, _ = SolrConfig.parse({"url": "http://solr:8983/solr/c"})
    assert config is not None
    with simulation(World(1, given=list(faults))) as world:
        model = stores.Solr(world, "c")
        with replaced(solr_sink, pysolr, imported={"requests": http.requests}):
            sink = solr_sink.SolrSink(config)

            def main() -> None:
                sink.open()
                body(sink, world)

            run_in(world, Process(world, "p"), main)
    return model


def hbase(body: Callable[[thrift.HBase, World], Any], *faults: Fault) -> stores.Table:
    """Run a body with a sink and a table `t` of HBase, and return the model."""
    with simulation(World(1, given=list(faults))) as world:
        table = stores.HBase(world).create("t", "f")
        with replaced(thrift, imported={"happybase": stores.happybase}):
            client = thrift.HBase(
                [("h", 1)], transport="buffered", protocol="binary", timeout=10_000, metrics=Metrics()
            )
            run_in(world, Process(world, "p"), lambda: body(client, world))
    return table


@pytest.mark.parametrize(
    ("kind", "number", "left", "seconds"),
    [
        (Kind.LOST, 2, {"a"}, 0),
        (Kind.LOST, 3, {"a"}, 30),
        (Kind.UNANSWERED, 3, {"a", "b"}, 30),
        (Kind.LATE, 2, set(), 30),
        (Kind.REFUSED, 2, set(), 0),
        (Kind.REFUSED, 3, {"a"}, 0),
        (Kind.KILLED, 3, {"a"}, None),
        (Kind.KILLED_AFTER, 3, {"a", "b"}, None),
    ],
)
def test_an_update_that_fails_may_be_done_all_the_same(
    kind: Kind, number: int, left: set[str], seconds: float | None
) -> None:
    after: list[float] = []

    def body(sink: Any, world: World) -> None:
        for _ in range(number - 2):
            sink._add([])
        with pytest.raises(Retry):
            sink._add(TWO)
        after.append(world.now)

    model = solr(body, Fault("p", "solr.update", number, kind, 20.0))
    assert model.collections["c"].keys() == left
    assert [second // 10 * 10 for second in after] == ([] if seconds is None else [seconds])


def test_an_update_is_done_twice_and_late() -> None:
    model = solr(lambda sink, _: sink._add(TWO), Fault("p", "solr.update", 2, Kind.DOUBLED, 1.0))
    assert model.versions == {("c", "a"): 2, ("c", "b"): 2}

    def body(sink: Any, world: World) -> None:
        with pytest.raises(Retry, match="Solr is away"):
            sink._add(TWO)
        sink._add([{"id": "a", "body_t": "newer"}])
        world.sleep(30)

    model = solr(body, Fault("p", "solr.update", 2, Kind.LATE, 20.0))
    assert model.collections["c"]["a"]["body_t"] == "1"


@pytest.mark.parametrize(
    ("kind", "left", "seconds"),
    [
        (Kind.LOST, set(), 10),
        (Kind.UNANSWERED, {b"a", b"b"}, 10),
        (Kind.LATE, set(), 10),
        (Kind.REFUSED, {b"a"}, 0),
        (Kind.KILLED, set(), None),
        (Kind.KILLED_AFTER, {b"a", b"b"}, None),
    ],
)
def test_rows_that_fail_may_be_written_all_the_same(kind: Kind, left: set[bytes], seconds: float | None) -> None:
    after: list[float] = []

    def body(client: thrift.HBase, world: World) -> None:
        with pytest.raises(Retry):
            client.put("t", 5, ROWS, wal=True)
        after.append(world.now // 10 * 10)

    table = hbase(body, Fault("p", "hbase.put", 1, kind, 20.0))
    assert table.cells.keys() == left
    assert after == ([] if seconds is None else [seconds])


def test_connections_die_with_the_server_and_are_made_anew() -> None:
    def body(client: thrift.HBase, world: World) -> None:
        model = world.models["hbase"]
        client.put("t", 5, ROWS, wal=True)
        model.restart()
        client.put("t", 5, ROWS, wal=True)
        model.away = True
        for _ in range(2):
            with pytest.raises(Retry, match="HBase is away"):
                client.put("t", 5, ROWS, wal=True)
        model.away = False
        client.put("t", 5, ROWS, wal=True)

    table = hbase(body)
    assert table.writes == {b"a": 3, b"b": 3}
    assert table.rows() == dict(ROWS)
    assert table.versions(b"a", b"f:x") == [(b"1", 5)]


def test_a_connection_that_is_reset_is_made_anew_and_the_rows_are_sent_again() -> None:
    def body(client: thrift.HBase, world: World) -> None:
        client.put("t", 5, ROWS[:1], wal=True)
        client.put("t", 5, ROWS[1:], wal=True)

    assert hbase(body, Fault("p", "hbase.put", 2, Kind.UNANSWERED, 0.0)).writes == {b"a": 1, b"b": 2}


def test_solr_away() -> None:
    def body(sink: Any, world: World) -> None:
        world.models["solr"].away = True
        with pytest.raises(Retry, match="Solr is away"):
            sink._add(TWO)
        world.models["solr"].away = False
        sink._add(TWO)

    assert solr(body).versions == {("c", "a"): 1, ("c", "b"): 1}
