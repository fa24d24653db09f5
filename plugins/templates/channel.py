"""A channel in Python that replaces the Java class com.example.Mine.

Save it as my_channel.py, beside a pyproject.toml with the lines below, and run `pip install .`.
Then a configuration may use either of its names; `agent check` reports an error if the plugin is not found.

    [project]
    name = "my-channel"
    version = "1.0"
    [project.entry-points.flafka]
    my_channel = "my_channel"
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flafka import (
    Assignment,
    Batch,
    Channel,
    Component,
    Config,
    Generation,
    OffsetRange,
    Origin,
    PolledBatch,
    Reader,
    RebalanceListener,
    Retry,
    TopicPartition,
    hookimpl,
    option,
)

TABLES = """
PRAGMA locking_mode = EXCLUSIVE;
CREATE TABLE IF NOT EXISTS entries (
    offset INTEGER PRIMARY KEY AUTOINCREMENT, arrival INTEGER, events INTEGER, batch BLOB
);
CREATE TABLE IF NOT EXISTS committed (partition TEXT, offset INTEGER);
"""
"""Tables of the file; an entry is one put. AUTOINCREMENT never reuses an offset. The lock excludes a second agent."""


class MyChannelConfig(Config):
    """Options of the Java class, by the same names."""

    path: str = option(name="path", description="SQLite file that stores the events.")
    capacity: int = option(
        100_000, name="capacity", unit="events", gt=0, description="Number of events at which sources wait."
    )


class MyChannel(Channel[MyChannelConfig]):
    """Stores events in a SQLite file until they are delivered. No stored event is lost when the process ends.

    The channel has one partition: one of several sinks reads, and another takes over when that sink stops or fails.
    """

    type_name = "my_channel"
    aliases = ("com.example.Mine",)
    durable = True

    def __init__(self, config: MyChannelConfig, name: str = "") -> None:
        super().__init__(config, name)
        self.changed = threading.Condition()
        """Lock of the attributes; notified when the number of events changes, and when the partition is free."""
        self.assignee: Reader | None = None
        self.held = 0
        """Number of uncommitted events, including those already taken."""
        self._file: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open the file. Raises Retry for a transient failure."""
        for error in self.check_connectivity():
            raise Retry(error)
        # The random topic id distinguishes event ids from the ids of a deleted file.
        first = Assignment(TopicPartition("my_channel", self.name, uuid.uuid4().hex, 0), self.name, Generation())
        with self.changed:
            self._file = sqlite3.connect(self.config.path, timeout=0, check_same_thread=False)
            with self.transaction() as file:
                file.executescript(TABLES)
                file.execute(
                    "INSERT INTO committed SELECT ?, 1 WHERE NOT EXISTS (SELECT * FROM committed)",
                    [as_text(first)],
                )
                (held,) = file.execute("SELECT coalesce(sum(events), 0) FROM entries").fetchone()
            self.count(held - self.held)

    def close(self) -> None:
        """Close the file."""
        with self.changed:
            if self._file is not None:
                self._file.close()
                self._file = None

    def check_connectivity(self) -> Iterator[str]:
        """Yield each reason why `open` would fail, for `agent check --connect`."""
        if not Path(self.config.path).absolute().parent.is_dir():
            yield f"there is no directory for {self.config.path}"

    def exclusive_resources(self) -> Mapping[Path, str]:
        """Return the file, which no other component may use."""
        return {Path(self.config.path).absolute(): "path"}

    def put(self, batch: Batch) -> None:
        """Return once the batch is on the disk; wait while the channel is full."""
        self.metrics.add("EventPutAttemptCount", len(batch))
        with self.changed:
            while self.held >= self.config.capacity:
                if self.stopping.is_set():
                    raise Retry(f"channel {self.name} is full and the agent is stopping")
                self.changed.wait(0.1)
            entry = int(time.time() * 1000), len(batch), batch.to_ipc()
            with self.transaction() as file:
                file.execute("INSERT INTO entries (arrival, events, batch) VALUES (?, ?, ?)", entry)
            self.count(len(batch))
        self.metrics.add("EventPutSuccessCount", len(batch))

    def reader(self, owner: RebalanceListener, *, group: str | None, member: str) -> Reader:
        """Return a consumer. `group` is None in every channel outside Kafka."""
        return MyChannelReader(self, owner)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction, and commit or roll it back. Errors of SQLite become Retry, as a disk may be full."""
        with self.changed:
            if self._file is None:
                raise Retry(f"channel {self.name} is not open")
            try:
                with self._file as file:
                    yield file
            except sqlite3.Error as e:
                raise Retry(f"{self.config.path}: {e}") from e

    def count(self, events: int) -> None:
        """Change the number of events. The caller has the lock."""
        self.held += events
        self.metrics.set("ChannelSize", self.held)
        self.changed.notify_all()


class MyChannelReader(Reader):
    """Consumer of the partition while the partition is assigned to it."""

    def __init__(self, channel: MyChannel, owner: RebalanceListener) -> None:
        self._channel, self._owner = channel, owner
        self._assignment: Assignment | None = None
        self._next = 0

    def take(self, timeout: float) -> PolledBatch | None:
        """Return the next put, or None after `timeout` seconds without any."""
        with self._channel.changed:
            if self._channel.changed.wait_for(lambda: self._channel.assignee in (None, self), timeout):
                self._channel.assignee = self
            else:
                return None
        assignment = self._assignment or self._begin()
        with self._channel.changed:
            entry = self._channel.changed.wait_for(self._read, timeout)
        if entry is None:
            return None
        offset, arrival, events, data = entry
        self._next = offset + 1
        self._channel.metrics.add("EventTakeAttemptCount", events)
        origin = Origin.of_record(assignment.topic, 0, offset, arrival, events, assignment.id_prefix)
        batch = Batch.from_ipc(data).with_origin(origin)
        return PolledBatch(assignment, OffsetRange(offset, self._next), batch)

    def _begin(self) -> Assignment:
        """Start at the offset that the sink returns, and commit it: the sink may have a commit log."""
        with self._channel.transaction() as file:
            text, offset = file.execute("SELECT partition, offset FROM committed").fetchone()
        (start,) = self._owner.assigned([from_text(text, offset)])
        self.rewind([start])
        self.commit([start])
        return start

    def _read(self) -> tuple[int, int, int, bytes] | None:
        with self._channel.transaction() as file:
            rows = file.execute("SELECT * FROM entries WHERE offset >= ? ORDER BY offset LIMIT 1", [self._next])
            entry: tuple[int, int, int, bytes] | None = rows.fetchone()
            return entry

    def commit(self, delivered: Collection[Assignment]) -> None:
        """Delete delivered events before the next offset."""
        for assignment in delivered:
            end = assignment.next_offset or 0
            with self._channel.changed:
                with self._channel.transaction() as file:
                    count = "SELECT coalesce(sum(events), 0) FROM entries WHERE offset < ?"
                    (events,) = file.execute(count, [end]).fetchone()
                    file.execute("DELETE FROM entries WHERE offset < ?", [end])
                    file.execute("UPDATE committed SET partition = ?, offset = ?", [as_text(assignment), end])
                self._channel.count(-events)
            self._channel.metrics.add("EventTakeSuccessCount", events)

    def rewind(self, starts: Collection[Assignment]) -> None:
        """Redeliver from the next offset on."""
        for start in starts:
            self._assignment, self._next = start, start.next_offset or 0

    def needs_commit(self) -> bool:
        """Return True if sources wait for space. Otherwise a sink that fills a large file would wait for ever."""
        return self._channel.held >= self._channel.config.capacity

    def close(self) -> None:
        """Release the partition for another reader, without a commit."""
        with self._channel.changed:
            if self._channel.assignee is self:
                self._channel.assignee = None
                self._channel.changed.notify_all()


def as_text(assignment: Assignment) -> str:
    """Return an assignment, without its next offset, as text."""
    return json.dumps([assignment.topic_partition, assignment.group, assignment.generation])


def from_text(text: str, next_offset: int) -> Assignment:
    """Return the assignment in a text of `as_text`."""
    topic_partition, group, generation = json.loads(text)
    return Assignment(TopicPartition(*topic_partition), group, Generation(*generation), next_offset)


@hookimpl
def components() -> list[type[Component]]:
    """Return the components of this module."""
    return [MyChannel]
