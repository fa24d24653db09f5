"""The interceptor `lookup`: headers from a table, such as the site of an address."""

from __future__ import annotations

import csv
import ipaddress
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Literal

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]

from flafka import Batch, Component, Config, Interceptor, Metric, Retry, hookimpl, option

Row = Mapping[str, str]
"""Values of a row by column."""

CHECK_SECONDS = 1.0
"""Shortest time between two checks of the file for changes."""


class LookupConfig(Config):
    """Options of the interceptor `lookup`."""

    header: str = option(name="header", description="Header to look up.")
    file: str = option(
        name="file",
        must_exist=True,
        description="CSV file with a line of column names. The first column has the keys, the others become headers. "
        "The file is reloaded when it changes.",
    )
    keys: Literal["texts", "networks"] = option(
        "texts",
        name="keys",
        description="Type of the keys. `texts`: values of the header. `networks`: networks such as 10.1.0.0/16, or "
        "addresses; the smallest network that contains the address of the header is used.",
    )


class LookupInterceptor(Interceptor[LookupConfig]):
    """Sets headers from a table; no event is lost. Not pure, as the table may change: for sources only.

    A missing key or an empty value leaves the header of an event unchanged. While the file is missing or cannot be
    read, the latest table is used.
    """

    type_name = "lookup"
    declared_metrics = (Metric("UnknownKeyCount", "counter", "events", "Events whose value is not in the table."),)
    pure = False

    def open(self) -> None:
        """Load the table. Raises Retry if it cannot be read."""
        for error in self.check_connectivity():
            raise Retry(error)
        self._version, self._table = self._file_version(), self._read()
        self._next_check = time.monotonic() + CHECK_SECONDS

    def check_connectivity(self) -> Iterator[str]:
        """Yield the error if the table cannot be read."""
        try:
            self._read()
        except (OSError, ValueError) as e:
            yield f"the table cannot be read: {e}"

    def intercept(self, batch: Batch) -> Batch:
        """Set the headers, and count the events whose value is not in the table as `UnknownKeyCount`.

        The column of a header is dictionary-encoded: `dictionary` has each different value once, and `indices` has
        the index of each event's value, null without a value. So each different value is looked up once, and `take`
        maps the results to the events without a loop in Python.
        """
        self._refresh()
        column = batch.header(self.config.header)
        rows = [self._table.find(value) for value in column.dictionary.to_pylist()]
        for name in self._table.columns:
            values = pa.array([row.get(name) or None if row else None for row in rows], pa.string())
            batch = _with_values(batch, name, values.take(column.indices))
        unknown = pa.array([row is None for row in rows], pa.bool_()).take(column.indices)
        self.metrics.add("UnknownKeyCount", unknown.true_count)
        return batch

    def _refresh(self) -> None:
        if time.monotonic() < self._next_check:
            return
        self._next_check = time.monotonic() + CHECK_SECONDS
        try:
            if (version := self._file_version()) != self._version:
                self._table, self._version = self._read(), version
                self.log.info("%s was reloaded", self.config.file)
        except (OSError, ValueError) as e:
            self.warn_rate_limited("file", "the latest table is used: %s", e)

    def _file_version(self) -> tuple[int, int, int]:
        """Return values that change with the file."""
        status = Path(self.config.file).stat()
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _read(self) -> Table:
        """Return the table. Raises ValueError or OSError if it cannot be read."""
        with Path(self.config.file).open(newline="", encoding="utf-8") as file:
            lines = csv.DictReader(file, strict=True)
            key, *columns = lines.fieldnames or [""]
            if not columns:
                raise ValueError(f"{self.config.file} has no two columns with names")
            rows = {line[key]: line for line in lines}
        return Networks(columns, rows) if self.config.keys == "networks" else Table(columns, rows)


def _with_values(batch: Batch, name: str, values: pa.Array) -> Batch:
    """Return the batch with a header set to these values; null leaves the header of an event unchanged."""
    if values.null_count:
        values = pc.coalesce(values, batch.header(name).dictionary_decode())
    return batch.with_header(name, values)


class Table:
    """Rows by key."""

    def __init__(self, columns: Collection[str], rows: Mapping[str, Row]) -> None:
        self.columns, self._rows = columns, rows

    def find(self, value: str) -> Row | None:
        """Return the row of a key; None if there is none."""
        return self._rows.get(value)


class Networks(Table):
    """Rows by network. The constructor raises ValueError for an invalid network."""

    def __init__(self, columns: Collection[str], rows: Mapping[str, Row]) -> None:
        super().__init__(columns, rows)
        networks = [(ipaddress.ip_network(key), row) for key, row in rows.items()]
        self._networks = {
            (network.version, network.prefixlen, int(network.network_address)): row for network, row in networks
        }
        self._lengths = sorted({(network.version, network.prefixlen) for network, _ in networks}, reverse=True)

    def find(self, value: str) -> Row | None:
        """Return the row of the smallest network that contains an address; None if there is none."""
        try:
            address = ipaddress.ip_address(value)
        except ValueError:
            return None
        for version, length in self._lengths:
            start = int(address) >> (address.max_prefixlen - length) << (address.max_prefixlen - length)
            if version == address.version and (row := self._networks.get((version, length, start))) is not None:
                return row
        return None


@hookimpl
def components() -> list[type[Component]]:
    """Return the components of this module."""
    return [LookupInterceptor]
