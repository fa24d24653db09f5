"""Models of Solr, below pysolr, and of HBase, below happybase: what they keep, and how they refuse."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar

import happybase as real_happybase
import Hbase_thrift as thrift
from thriftpy2.thrift import TApplicationException
from thriftpy2.transport import TTransportException

from tests.simulator.exchange import exchange
from tests.simulator.http import Answer, answered
from tests.simulator.world import World, world

R = TypeVar("R")

# --- Solr

LONGEST_TERM_BYTES = 32_766
"""Bytes of a field of Solr's that is not divided into words."""
_DATE = re.compile(r"-?\d{4,}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_MISSING = b"<html><body><h2>HTTP ERROR 405 HTTP method POST is not supported by this URL</h2></body></html>"


class Solr:
    """Model of Solr, with collections whose field names end with their type.

    Calls for faults are named `solr.update` and `solr.schema`. A request is executed document by document: those
    before a refused one, or before a break, are kept.
    """

    def __init__(self, world: World, *collections: str) -> None:
        self.world = world
        self.collections: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in collections}
        """Documents by id; those that searches do not find yet, too."""
        self.versions: dict[tuple[str, str], int] = {}
        """Number of writes of a document, by collection and id."""
        self.away = False
        """Set to have nobody listen."""
        world.models["solr"] = self

    def request(self, method: str, url: str, params: dict[str, Any], options: dict[str, Any]) -> Answer:
        """Answer a request of a session of `requests`."""
        collection, _, path = url.partition("/solr/")[2].partition("/")
        if path.startswith("schema"):
            return answered("solr.schema", url, options, lambda: self._schema(collection), away=self.away)
        assert path.startswith("update/"), url
        documents = json.loads(options["data"])
        half = documents[: len(documents) // 2]

        def refuse(number: int) -> Answer:
            if number % 2:
                self._update(collection, half)
            return _solr_error(503, "Server is shutting down or failed to initialize")

        return answered(
            "solr.update",
            url,
            options,
            lambda: self._update(collection, documents),
            refuse=refuse,
            cut=lambda: self._update(collection, half),
            away=self.away,
        )

    def _update(self, collection: str, documents: Sequence[dict[str, str]]) -> Answer:
        held = self.collections.get(collection)
        if held is None:
            return Answer(405, _MISSING)
        for document in documents:
            if (id := document.get("id")) is None:
                return _solr_error(400, "Document is missing mandatory uniqueKey field: id")
            try:
                held[id] = {
                    name: value if name == "id" else _value(id, name, value) for name, value in document.items()
                }
            except ValueError as e:
                return _solr_error(400, str(e))
            self.versions[collection, id] = self.versions.get((collection, id), 0) + 1
        return Answer(200, {"responseHeader": {"status": 0, "QTime": 1}})

    def _schema(self, collection: str) -> Answer:
        if collection not in self.collections:
            return Answer(404, _MISSING)
        dynamic = [{"name": f"*{ending}"} for ending in _TYPES]
        return Answer(200, {"schema": {"uniqueKey": "id", "fields": [{"name": "id"}], "dynamicFields": dynamic}})


def _text(value: str) -> str:
    return value


def _word(value: str) -> str:
    if len(value.encode()) > LONGEST_TERM_BYTES:
        raise ValueError("immense")
    return value


def _date(value: str) -> str:
    if not _DATE.fullmatch(value):
        raise ValueError(f"Invalid Date String:'{value}'")
    return value


def _number(value: str) -> int:
    if not re.fullmatch(r"[+-]?\d+", value):
        raise ValueError(f'For input string: "{value}"')
    return int(value)


_TYPES: dict[str, Callable[[str], Any]] = {"_s": _word, "_t": _text, "_i": _number, "_l": _number, "_dt": _date}


def _value(id: str, name: str, value: str) -> Any:
    kind = _TYPES.get(name[name.rfind("_") :])
    if kind is None:
        raise ValueError(f"ERROR: [doc={id}] unknown field '{name}'")
    try:
        return kind(value)
    except ValueError as e:
        if kind is _word:
            raise ValueError(
                f"Exception writing document id {id} to the index; possible analysis error: Document contains at "
                f'least one immense term in field="{name}"'
            ) from None
        raise ValueError(f"ERROR: [doc={id}] Error adding field '{name}'='{value}' msg={e}") from None


def _solr_error(status: int, message: str) -> Answer:
    return Answer(status, {"responseHeader": {"status": status}, "error": {"msg": message, "code": status}})


# --- HBase

LONGEST_KEY = 32_767
LARGEST_CELL_BYTES = 10 << 20
"""Bytes, with its key and column."""


class Table:
    """One of HBase's."""

    def __init__(self, families: dict[bytes, int]) -> None:
        self.families = families
        """Number of versions of a cell, by column family."""
        self.cells: dict[bytes, dict[bytes, dict[int, bytes]]] = {}
        """Values by row, column and time, every one that was written."""
        self.writes: dict[bytes, int] = {}
        """Number of writes by row."""
        self.enabled = True

    def rows(self) -> dict[bytes, dict[bytes, bytes]]:
        """The newest version of each cell."""
        return {
            row: {column: times[max(times)] for column, times in sorted(columns.items())}
            for row, columns in sorted(self.cells.items())
        }

    def versions(self, row: bytes, column: bytes) -> list[tuple[bytes, int]]:
        """Versions of a cell, the newest first, as many as its family keeps."""
        times = self.cells.get(row, {}).get(column, {})
        kept = sorted(times, reverse=True)[: self.families[column.partition(b":")[0]]]
        return [(times[time], time) for time in kept]


class HBase:
    """HBase behind one Thrift server.

    Calls for faults are named `hbase.` with `put`, `families`, `create`, and `read` for all else.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.tables: dict[bytes, Table] = {}
        self.away = False
        """Set to have nobody listen."""
        self.starts = 0
        """Connections of an earlier start are dead."""
        world.models["hbase"] = self

    def restart(self) -> None:
        """The Thrift server ends and is there again: connections die."""
        self.world.log("HBase's Thrift server starts again")
        self.starts += 1

    def create(self, table: str, family: str, versions: int = 1) -> Table:
        """Somebody makes a table."""
        made = self.tables[table.encode()] = Table({family.encode(): versions})
        return made


class Connection(real_happybase.Connection):
    """happybase's, to the model."""

    def _refresh_thrift_client(self) -> None:
        self.transport = _Transport(self.host, self.port)
        self.client = _Client(self.transport, self.timeout)


class _Transport:
    def __init__(self, host: str, port: int) -> None:
        self.address, self.start, self.alive = (host, port), -1, False

    def is_open(self) -> bool:
        return self.alive

    def open(self) -> None:
        hbase = world().models["hbase"]
        if hbase.away:
            text = f"Could not connect to {self.address}"
            raise TTransportException(type=TTransportException.NOT_OPEN, message=text)
        self.alive, self.start = True, hbase.starts

    def close(self) -> None:
        self.alive = False


class _Client:
    """The calls of Thrift's interface that happybase makes for us."""

    def __init__(self, transport: _Transport, timeout: int | None) -> None:
        self._transport, self._timeout = transport, (timeout or 60_000) / 1000
        self._scans: dict[int, list[Any]] = {}
        self._numbers = itertools.count()

    def _call(self, what: str, execute: Callable[[], R], refuse: Callable[[int], R] | None = None) -> R:
        hbase, transport = world().models["hbase"], self._transport

        def lost(reset: bool) -> Exception:
            transport.alive = False
            return ConnectionResetError(104, "Connection reset by peer") if reset else TimeoutError("timed out")

        dead = hbase.away or not transport.alive or transport.start != hbase.starts
        return exchange(what, execute, lost, timeout=self._timeout, refuse=refuse or _busy, away=dead)

    def getColumnDescriptors(self, name: bytes) -> dict[bytes, Any]:
        def execute() -> dict[bytes, Any]:
            families = _table(name).families
            return {f + b":": thrift.ColumnDescriptor(f + b":", maxVersions=n) for f, n in families.items()}

        return self._call("hbase.families", execute)

    def createTable(self, name: bytes, families: Sequence[Any]) -> None:
        def execute() -> None:
            tables = world().models["hbase"].tables
            if name in tables:
                raise thrift.AlreadyExists(b"table name already in use")
            tables[name] = Table({family.name.rstrip(":").encode(): family.maxVersions or 3 for family in families})

        self._call("hbase.create", execute)

    def disableTable(self, name: bytes) -> None:
        def execute() -> None:
            _table(name).enabled = False

        self._call("hbase.read", execute)

    def isTableEnabled(self, name: bytes) -> bool:
        return self._call("hbase.read", lambda: _table(name).enabled)

    def deleteTable(self, name: bytes) -> None:
        self._call("hbase.read", lambda: world().models["hbase"].tables.pop(name))

    def mutateRowsTs(self, name: bytes, rows: Sequence[Any], timestamp: int, attributes: object) -> None:
        def apply_partly(number: int) -> NoReturn:
            if number % 2:  # of two regions, one has taken its rows
                _mutate(name, rows[: len(rows) // 2], timestamp)
            _busy(number)

        self._call("hbase.put", lambda: _mutate(name, rows, timestamp), apply_partly)

    def getVer(self, name: bytes, row: bytes, column: bytes, most: int, attributes: object) -> list[Any]:
        def execute() -> list[Any]:
            return [thrift.TCell(value, time) for value, time in _table(name).versions(row, column)[:most]]

        return self._call("hbase.read", execute)

    def getRowsWithColumns(
        self, name: bytes, rows: Sequence[bytes], columns: object, attributes: object
    ) -> list[Any]:
        def execute() -> list[Any]:
            table = _table(name)
            return [
                thrift.TRowResult(row, {c: thrift.TCell(*table.versions(row, c)[0]) for c in sorted(held)}, None)
                for row in sorted(rows)
                if (held := table.cells.get(row))
            ]

        return self._call("hbase.read", execute)

    def scannerOpenWithScan(self, name: bytes, scan: object, attributes: object) -> int:
        def execute() -> int:
            number = next(self._numbers)
            table = _table(name)
            self._scans[number] = [
                thrift.TRowResult(row, {c: thrift.TCell(*table.versions(row, c)[0]) for c in sorted(columns)}, None)
                for row, columns in sorted(table.cells.items())
            ]
            return number

        return self._call("hbase.read", execute)

    def scannerGetList(self, number: int, most: int) -> list[Any]:
        rows, self._scans[number] = self._scans[number][:most], self._scans[number][most:]
        return rows

    def scannerClose(self, number: int) -> None:
        del self._scans[number]


def _table(name: bytes) -> Table:
    table: Table | None = world().models["hbase"].tables.get(name)
    if table is None:
        raise _io_error(f"org.apache.hadoop.hbase.TableNotFoundException: {name.decode()}")
    return table


def _mutate(name: bytes, rows: Sequence[Any], timestamp: int) -> None:
    """A row that makes no `Put` keeps all from being written; one that a region refuses, only itself."""
    for row in rows:
        if not 0 < len(row.row) <= LONGEST_KEY or any(b":" not in m.column for m in row.mutations):
            raise TApplicationException(
                TApplicationException.INTERNAL_ERROR, b"Internal error processing mutateRowsTs"
            )
        if any(len(row.row) + len(m.column) + len(m.value) + 20 > LARGEST_CELL_BYTES for m in row.mutations):
            raise thrift.IllegalArgument(b"java.lang.IllegalArgumentException: KeyValue size too large\n\tat org")
    table: Table | None = world().models["hbase"].tables.get(name)
    failed = "org.apache.hadoop.hbase.client.RetriesExhaustedWithDetailsException: Failed {} actions: {}"
    if table is None:
        raise _io_error(failed.format(len(rows), f"{name.decode()}: {len(rows)} times, servers with issues: null"))
    if not table.enabled:
        raise _io_error(failed.format(len(rows), f"NotServingRegionException: {len(rows)} times"))
    refused = []
    for row in rows:
        unknown = [m.column for m in row.mutations if m.column.partition(b":")[0] not in table.families]
        if unknown:
            refused += unknown
            continue
        cells = table.cells.setdefault(row.row, {})
        table.writes[row.row] = table.writes.get(row.row, 0) + 1
        for mutation in row.mutations:
            cells.setdefault(mutation.column, {})[timestamp] = mutation.value
    if refused:
        family = refused[0].partition(b":")[0].decode()
        kind = "org.apache.hadoop.hbase.regionserver.NoSuchColumnFamilyException"
        text = f"{kind}: Column family {family} does not exist in region {name.decode()}"
        raise _io_error(failed.format(len(refused), text))


def _busy(_: int) -> NoReturn:
    raise _io_error("org.apache.hadoop.hbase.RegionTooBusyException: Over memstore limit")


def _io_error(text: str) -> Exception:
    error: Exception = thrift.IOError(f"{text}\n\tat org.apache.hadoop.hbase".encode())
    return error


happybase = SimpleNamespace(Connection=Connection)
"""In place of the module."""
