"""The model of HBase does what HBase does, as the sink sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flafka.plugins import Metrics, Retry
from flafka.sinks.bulk import RequestRefused
from flafka.sinks.hbase import thrift
from flafka.sinks.hbase.thrift import Cells, HBase
from tests.simulator import stores
from tests.simulator.running import replaced
from tests.simulator.world import World
from tests.system.running import unique

pytestmark = pytest.mark.xdist_group("stores")  # the real ones ask for it when they run


@pytest.fixture
def hbase(world: World | None, request: pytest.FixtureRequest) -> Iterator[HBase]:
    if world is not None:
        stores.HBase(world)
        with replaced(thrift, imported={"happybase": stores.happybase}):
            yield _connected("hbase", 9090)
        return
    host, _, port = request.getfixturevalue("hbase_cluster").address.partition(":")
    connected = _connected(host, int(port))
    yield connected
    connected.close()


def _connected(host: str, port: int) -> HBase:
    return HBase([(host, port)], transport="buffered", protocol="binary", timeout=60_000, metrics=Metrics())


@pytest.fixture
def table() -> str:
    """The name of one that is not there."""
    return unique("t")


def put(hbase: HBase, table: str, timestamp: int, *rows: tuple[bytes, Cells]) -> None:
    hbase.put(table, timestamp, rows, wal=True)


def rows(hbase: HBase, table: str) -> dict[bytes, dict[bytes, bytes]]:
    def scan(connection: Any) -> dict[bytes, dict[bytes, bytes]]:
        return {key: dict(cells) for key, cells in connection.table(table).scan()}

    return hbase._call(scan)


def versions(hbase: HBase, table: str, row: bytes, column: bytes) -> list[tuple[bytes, int]]:
    return hbase._call(lambda c: list(c.table(table).cells(row, column, versions=10, include_timestamp=True)))


def test_a_table_is_made_once(hbase: HBase, table: str) -> None:
    assert hbase.families(table) is None
    hbase.create(table, "f")
    hbase.create(table, "g")  # another was faster
    assert hbase.families(table) == {"f"}


def test_cells_are_overwritten_by_row_column_and_time(hbase: HBase, table: str) -> None:
    hbase._call(lambda connection: connection.create_table(table, {"f": {"max_versions": 2}}))
    put(hbase, table, 5, (b"b", {b"f:x": b"1", b"f:y": b"1"}), (b"a", {b"f:x": b"\xff\0"}))
    put(hbase, table, 5, (b"b", {b"f:x": b"2"}))
    assert rows(hbase, table) == {b"a": {b"f:x": b"\xff\0"}, b"b": {b"f:x": b"2", b"f:y": b"1"}}
    assert list(rows(hbase, table)) == [b"a", b"b"]
    assert versions(hbase, table, b"b", b"f:x") == [(b"2", 5)]
    put(hbase, table, 3, (b"b", {b"f:x": b"older"}))
    assert rows(hbase, table)[b"b"][b"f:x"] == b"2"
    put(hbase, table, 9, (b"b", {b"f:x": b"newer"}))
    assert versions(hbase, table, b"b", b"f:x") == [(b"newer", 9), (b"2", 5)]


def test_of_one_row_twice_in_a_call_the_last_counts(hbase: HBase, table: str) -> None:
    hbase.create(table, "f")
    put(hbase, table, 5, (b"a", {b"f:x": b"1"}), (b"a", {b"f:x": b"2", b"f:y": b"3"}))
    assert rows(hbase, table) == {b"a": {b"f:x": b"2", b"f:y": b"3"}}


def test_a_cell_that_is_too_large_keeps_all_from_being_written(hbase: HBase, table: str) -> None:
    hbase.create(table, "f")
    large = b"x" * (11 << 20)
    with pytest.raises(RequestRefused, match="KeyValue size too large"):
        put(hbase, table, 5, (b"a", {b"f:x": b"1"}), (b"b", {b"f:x": large}), (b"c", {b"f:x": b"1"}))
    assert rows(hbase, table) == {}


@pytest.mark.parametrize("key", [b"", b"k" * 32_768], ids=["empty", "long"])
def test_a_key_that_is_none_keeps_all_from_being_written(hbase: HBase, table: str, key: bytes) -> None:
    hbase.create(table, "f")
    with pytest.raises(Retry, match="closed the connection: TApplicationException"):
        put(hbase, table, 5, (b"a", {b"f:x": b"1"}), (key, {b"f:x": b"1"}))
    assert rows(hbase, table) == {}
    put(hbase, table, 5, (b"k" * 32_767, {b"f:x": b"1"}))
    assert len(rows(hbase, table)) == 1


def test_a_family_that_is_missing_keeps_only_its_row_from_being_written(hbase: HBase, table: str) -> None:
    hbase.create(table, "f")
    with pytest.raises(Retry, match="the table has no such column family"):
        put(hbase, table, 5, (b"a", {b"f:x": b"1"}), (b"b", {b"g:x": b"1"}), (b"c", {b"f:x": b"1"}))
    assert rows(hbase, table).keys() == {b"a", b"c"}


def test_a_table_that_is_missing_or_disabled(hbase: HBase, table: str) -> None:
    with pytest.raises(Retry, match=f"cannot write to table '{table}'"):
        put(hbase, table, 5, (b"a", {b"f:x": b"1"}))
    hbase.create(table, "f")
    hbase._call(lambda connection: connection.disable_table(table))
    with pytest.raises(Retry, match=f"cannot write to table '{table}'"):
        put(hbase, table, 5, (b"a", {b"f:x": b"1"}))
