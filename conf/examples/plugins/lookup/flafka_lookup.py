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
"""What a key stands for: values by column."""

LOOK_SECONDS = 1.0
"""The file is looked at so often at most."""


class LookupConfig(Config):
    """Options of the interceptor `lookup`."""

    header: str = option(name="header", description="Header to look up.")
    file: str = option(
        name="file",
        file=True,
        description="CSV file with a line of names on top. The first column is looked up, the others become headers. "
        "It is read again when it changes.",
    )
    keys: Literal["texts", "networks"] = option(
        "texts",
        name="keys",
        description="What the first column holds. `texts`: values of the header. `networks`: such as 10.1.0.0/16 or "
        "an address; of several networks that an address is in the smallest one counts.",
    )


class LookupInterceptor(Interceptor[LookupConfig]):
    """Sets headers from a table; no event is lost. Not pure, as the table may change: for sources only.

    What is not in the table, or empty there, leaves the headers of an event as they are. While the file is missing or
    cannot be read, the table that was read before is used.
    """

    type_name = "lookup"
    declared_metrics = (Metric("UnknownKeyCount", "counter", "events", "Events whose value is not in the table."),)
    pure = False

    def open(self) -> None:
        """Read the table."""
        for trouble in self.check_connectivity():
            raise Retry(trouble)
        self._stamp, self._table = self._look(), self._read()
        self._next_look = time.monotonic() + LOOK_SECONDS

    def check_connectivity(self) -> Iterator[str]:
        """What is wrong with the file."""
        try:
            self._read()
        except (OSError, ValueError) as e:
            yield f"the table cannot be read: {e}"

    def intercept(self, batch: Batch) -> Batch:
        """Set the headers; counts the events whose value is not in the table as `UnknownKeyCount`.

        It works on columns. That of a header is dictionary-encoded: `dictionary` has each different value once, and
        `indices` says which one each event has, with null where it has none. So the table is asked once for each
        different value, and `take` spreads the answers over the events without a loop in Python.
        """
        self._refresh()
        column = batch.header(self.config.header)
        found = [self._table.find(value) for value in column.dictionary.to_pylist()]
        for name in self._table.columns:
            values = pa.array([row.get(name) or None if row else None for row in found], pa.string())
            batch = _with_known(batch, name, values.take(column.indices))
        unknown = pa.array([row is None for row in found], pa.bool_()).take(column.indices)
        self.metrics.add("UnknownKeyCount", unknown.true_count)
        return batch

    def _refresh(self) -> None:
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_SECONDS
        try:
            if (stamp := self._look()) != self._stamp:
                self._table, self._stamp = self._read(), stamp
                self.log.info("%s was read again", self.config.file)
        except (OSError, ValueError) as e:
            self.warn_rate_limited("file", "the table that was read before is used: %s", e)

    def _look(self) -> tuple[int, int, int]:
        """What changes with the file."""
        found = Path(self.config.file).stat()
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _read(self) -> Table:
        """The table. ValueError or OSError say what is wrong with it."""
        with Path(self.config.file).open(newline="", encoding="utf-8") as file:
            lines = csv.DictReader(file, strict=True)
            key, *columns = lines.fieldnames or [""]
            if not columns:
                raise ValueError(f"{self.config.file} has no two columns with names")
            rows = {line[key]: line for line in lines}
        return Networks(columns, rows) if self.config.keys == "networks" else Table(columns, rows)


def _with_known(batch: Batch, name: str, values: pa.Array) -> Batch:
    """With the values as that header; where one is null, the event keeps what it has."""
    if values.null_count:
        values = pc.coalesce(values, batch.header(name).dictionary_decode())
    return batch.with_header(name, values)


class Table:
    """Rows by their keys."""

    def __init__(self, columns: Collection[str], rows: Mapping[str, Row]) -> None:
        self.columns, self._rows = columns, rows

    def find(self, value: str) -> Row | None:
        """The row of that key."""
        return self._rows.get(value)


class Networks(Table):
    """Rows by networks. ValueError names what is none."""

    def __init__(self, columns: Collection[str], rows: Mapping[str, Row]) -> None:
        super().__init__(columns, rows)
        networks = [(ipaddress.ip_network(key), row) for key, row in rows.items()]
        self._networks = {
            (network.version, network.prefixlen, int(network.network_address)): row for network, row in networks
        }
        self._lengths = sorted({(network.version, network.prefixlen) for network, _ in networks}, reverse=True)

    def find(self, value: str) -> Row | None:
        """The row of the smallest network that the address is in."""
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
    """What this module brings."""
    return [LookupInterceptor]
