"""HBase through its Thrift server: connections that are made anew when they break, and every failure in words."""

from __future__ import annotations

import contextlib
import logging
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from flafka.plugins import Metrics, Retry, require
from flafka.sinks.bulk import RequestRefused

R = TypeVar("R")

FOREVER = (1 << 31) - 1
"""The time to live of a column family that keeps its cells (HConstants.FOREVER)."""

Cells = dict[bytes, bytes]
"""Values by `family:qualifier`."""

TROUBLES = {
    "TableNotFoundException": "there is no such table",
    "NoSuchColumnFamilyException": "the table has no such column family",
    "TableNotEnabledException": "the table is disabled",
    "AccessDeniedException": "access is denied",
}
"""Answers about the table rather than a row, by a name in them. Someone can mend these: nothing is rejected."""
PASSING = {
    "NotServingRegionException": "no region server serves these rows at present, or the table is disabled",
    "RegionTooBusyException": "the region is too busy: its memory is full, or it is being flushed",
    "CallQueueTooBigException": "the region servers have too many calls in their queues",
}
"""Answers that pass, by a name in them."""
_FAILED = re.compile(
    r"Failed \d+ actions?: (?P<cause>.*?)(?:: \d+ times?)?(?:, servers with issues: (?P<servers>.*))?$"
)
"""Message of Java's RetriesExhaustedWithDetailsException: of the cause, the simple class name or only the message."""


class TableMissing(Retry):
    """HBase answered that there is no table of that name."""


class HBase:
    """The Thrift servers of one HBase, safe for threads. Raises Retry with a sentence for whatever may pass.

    A call that raises may or may not have been executed.
    """

    def __init__(
        self, hosts: Sequence[tuple[str, int]], *, transport: str, protocol: str, timeout: int, metrics: Metrics
    ) -> None:
        """`timeout` is the longest wait for an answer, in ms."""
        self._happybase = require("happybase", "hbase")
        self._thrift = require("Hbase_thrift", "hbase")  # happybase makes it from the interface's description
        self._broken = (require("thriftpy2.thrift", "hbase").TException, OSError, EOFError)
        logging.getLogger("happybase").setLevel(logging.ERROR)
        self._metrics = metrics
        self._hosts, self._timeout = list(hosts), timeout
        self._dialect = {"transport": transport, "protocol": protocol}
        self._idle: deque[Any] = deque()

    def close(self) -> None:
        """Close its connections."""
        while self._idle:
            self._close(self._idle.pop())

    def families(self, table: str) -> set[str] | None:
        """The table's column families; None where there is no such table."""
        try:
            found = self._ask("look at", table, lambda connection: connection.table(table).families())
        except TableMissing:
            return None
        return {name.decode() for name in found}

    def create(self, table: str, family: str) -> None:
        """Create the table, unless another one was faster."""
        try:
            self._call(lambda connection: connection.create_table(table, {family: {"max_versions": 1}}))
        except _Answer as answer:
            if answer.kind != "AlreadyExists" and "TableExistsException" not in answer.line:
                raise answer.retry(f"create table {table!r}", table) from answer

    def put(self, table: str, timestamp: int, rows: Sequence[tuple[bytes, Cells]], *, wal: bool) -> None:
        """Write these rows with one timestamp, in ms.

        Raises RequestRefused where one of them can never be written, and TableMissing where there is no such table.
        """

        mutation, of_row = self._thrift.Mutation, self._thrift.BatchMutation
        changes: dict[bytes, list[Any]] = {}
        for key, cells in rows:
            changes.setdefault(key, []).extend([mutation(False, name, value, wal) for name, value in cells.items()])
        batch = [of_row(key, made) for key, made in changes.items()]

        def write(connection: Any) -> None:  # happybase's own batch takes twice the time to make
            connection.client.mutateRowsTs(connection.table(table).name, batch, timestamp, {})

        try:
            self._call(write)
        except _Answer as answer:
            if answer.final:
                raise RequestRefused(answer.line) from answer
            raise answer.retry(f"write to table {table!r}", table) from answer

    def time_to_live(self, table: str, family: str) -> int:
        """Seconds after which HBase hides cells of that column family; 0 for never."""
        found = self._ask("look at", table, lambda connection: connection.table(table).families())
        seconds = int(found.get(family.encode(), {}).get("time_to_live") or 0)
        return seconds if 0 < seconds < FOREVER else 0

    def times(self, table: str, keys: Sequence[bytes]) -> dict[bytes, dict[bytes, int]]:
        """Timestamps in ms of the cells that HBase returns for these rows, by row key and column."""
        found = self._ask("read", table, lambda one: one.table(table).rows(keys, include_timestamp=True))
        return {key: {column: time for column, (_, time) in cells.items()} for key, cells in found}

    def row(self, table: str, key: bytes) -> Cells:
        """The row's cells; none where there is no such row."""
        return self._ask("read", table, lambda connection: dict(connection.table(table).row(key)))

    def _ask(self, doing: str, table: str, work: Callable[[Any], R]) -> R:
        try:
            return self._call(work)
        except _Answer as answer:
            raise answer.retry(f"{doing} table {table!r}", table) from answer

    def _call(self, work: Callable[[Any], R]) -> R:
        """`work` on a connection of its own. One that was idle may have died meanwhile: then a new one is tried."""
        while True:
            reused = bool(self._idle)
            try:
                connection = self._idle.pop()
            except IndexError:
                reused, connection = False, self._connect()
            try:
                result = work(connection)
            except (self._thrift.IOError, self._thrift.IllegalArgument, self._thrift.AlreadyExists) as e:
                self._idle.append(connection)
                raise _Answer(e) from e
            except self._broken as e:
                self._close(connection)
                if reused and not isinstance(e, TimeoutError):
                    continue
                raise Retry(
                    f"HBase's Thrift server {_at(connection)} closed the connection: {_words(e)}{self._hint(e)}"
                ) from e
            except BaseException:
                self._close(connection)
                raise
            self._idle.append(connection)
            return result

    def _connect(self) -> Any:
        reasons = []
        for host, port in self._hosts:
            try:
                connection = self._happybase.Connection(host, port, timeout=self._timeout, **self._dialect)
                self._metrics.add("ConnectionCreatedCount")
                return connection
            except self._broken as e:
                self._metrics.add("ConnectionFailedCount")
                reasons.append(f"{host}:{port}: {_words(e)}")
        raise Retry(
            f"HBase is away: no Thrift server answers at {'; '.join(reasons)}; `hbase thrift start` starts one"
        )

    def _hint(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError):
            return ""
        return f" (does it speak {self._dialect['transport']} and {self._dialect['protocol']}?)"

    def _close(self, connection: Any) -> None:
        self._metrics.add("ConnectionClosedCount")
        with contextlib.suppress(*self._broken):
            connection.close()


class _Answer(Exception):
    """The Thrift server answered that the call failed, and why."""

    def __init__(self, error: Any) -> None:
        message = getattr(error, "message", b"") or b""
        text = message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)
        self.kind = type(error).__name__
        self.line = text.partition("\n")[0][:500]
        """Java's message without its stack."""
        self.final = self.kind == "IllegalArgument" or (
            "DoNotRetryIOException" in self.line and not any(name in self.line for name in TROUBLES)
        )
        super().__init__(self.line)

    def retry(self, doing: str, table: str) -> Retry:
        """Return the Retry for a caller that was `doing` something with a table; TableMissing where it is none."""
        cause = self._cause(table)
        kind = TableMissing if cause == TROUBLES["TableNotFoundException"] else Retry
        return kind(f"HBase cannot {doing}: {cause}")

    def _cause(self, table: str) -> str:
        known = (sentence for name, sentence in (TROUBLES | PASSING).items() if name in self.line)
        failed = _FAILED.search(self.line)
        if (sentence := next(known, None)) is not None or failed is None:
            return sentence or self.line.rpartition("Exception: ")[2] or self.kind
        cause, servers = failed["cause"], failed["servers"]
        if cause == table:  # the message of a TableNotFoundException is the name of the table
            return TROUBLES["TableNotFoundException"]
        where = "" if servers in (None, "", "null") else f" at {servers}"
        if cause in ("", "null"):
            cause = "a call failed for a reason that it does not tell"
        return f"{cause}{where}; the log of its Thrift server tells more"


def _at(connection: Any) -> str:
    return f"{connection.host}:{connection.port}"


def _words(error: BaseException) -> str:
    text = getattr(error, "message", None) or getattr(error, "strerror", None) or str(error)
    return text if isinstance(text, str) and text else type(error).__name__
