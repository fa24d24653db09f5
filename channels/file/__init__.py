"""The file channel: its events are on a disk of this host before a source is told that they are stored."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
import time
import uuid
import zlib
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from channels.bounded import BoundedConfig
from channels.file.log import Entry, Log
from plugins import (
    Batch,
    Caution,
    Channel,
    EventId,
    FlafkaError,
    Origin,
    PartitionClaim,
    Reader,
    RebalanceListener,
    Record,
    Retry,
    Taken,
    Undecodable,
    agreement,
    option,
)
from plugins.options import with_default
from plugins.shared.disk import existing, replace, sync_directory, writable

SYNCED = "each put is on the disk before it returns; puts at the same time share one sync"
CHECKPOINTS = "there is nothing to be written at intervals: a restart reads the log's headers"
LOCK, ID, POSITIONS = "in_use.lock", "flafka.channel", "flafka.positions"
MERGE_EVENTS, MERGE_BYTES = 10_000, 16 << 20
"""Small puts are handed out together, up to so many events or bytes."""
PIECE_BYTES = 64 << 20
"""A larger batch is put in pieces."""


class FileChannelConfig(BoundedConfig):
    """Options of the file channel."""

    ignored = MappingProxyType(
        {
            "keep-alive": "a put waits until there is room",
            "checkpointInterval": CHECKPOINTS,
            "checkpointOnClose": CHECKPOINTS,
            "maxCheckpointFileSize": CHECKPOINTS,
            "useDualCheckpoints": "positions are replaced as a whole, and never half written",
            "backupCheckpointDir": "positions are replaced as a whole, and never half written",
            "compressBackupCheckpoint": "positions are replaced as a whole, and never half written",
            "fsyncPerTransaction": SYNCED,
            "fsyncInterval": SYNCED,
            "use-log-replay-v1": CHECKPOINTS,
            "use-fast-replay": CHECKPOINTS,
        }
    )
    checkpoint_dir: str = option(
        "~/.flume/file-channel/checkpoint",
        name="checkpointDir",
        description="Directory for how far the sinks are. One channel alone can use it.",
    )
    data_dirs: str = option(
        "~/.flume/file-channel/data",
        name="dataDirs",
        description="Directories for the events, separated by commas; on several disks they are written in turns.",
    )
    capacity: int = with_default(BoundedConfig, "capacity", 1_000_000)
    max_file_size: int = option(
        128 << 20,
        name="maxFileSize",
        unit="bytes",
        ge=1 << 20,
        description="A file of events is closed at this size, and deleted once all of it is delivered.",
    )
    minimum_required_space: int = option(
        500 << 20,
        name="minimumRequiredSpace",
        unit="bytes",
        ge=1 << 20,
        description="Sources wait while a disk of dataDirs has less room than this.",
    )
    encryption: dict[str, str] = option(
        {},
        name="encryption.",
        description="Not supported: with any of these options the agent does not start. Encrypt the disk instead.",
    )

    @agreement("encryption")
    def _not_encrypted(self) -> None:
        if self.encryption:
            raise ValueError("events are not encrypted here; encrypt the disk instead, or remove these options")

    @agreement("data_dirs")
    def _somewhere(self) -> None:
        if not self.directories:
            raise ValueError("names no directory")

    @property
    def directories(self) -> list[Path]:
        """Those of the events."""
        return [Path(one.strip()).expanduser() for one in self.data_dirs.split(",") if one.strip()]

    @property
    def checkpoints(self) -> Path:
        """That of the positions."""
        return Path(self.checkpoint_dir.strip()).expanduser()


class FileChannel(Channel[FileChannelConfig]):
    """Holds events in files on this host: no kill and no loss of power loses what a source was told is stored.

    It is as durable as the disk; a channel `kafka` has copies on several hosts. The sinks on it compete for its
    events, each put going to one of them, in turns, as long as they work; where one alone is left it gets all of
    them, and a sink alone gets them in order. A full channel, and a full disk, block its sources instead of failing
    them.

    The format is not Flume's: what a Flume left in the same directories stays there untouched, and is not delivered.
    """

    type_name = "file"
    aliases = ("org.apache.flume.channel.file.FileChannel",)
    counters: ClassVar[tuple[str, ...]] = (
        "CheckpointBackupWriteErrorCount",
        "CheckpointWriteErrorCount",
        "Closed",
        "EventPutErrorCount",
        "EventTakeErrorCount",
        "Open",
        "Unhealthy",
    )
    durable = True
    synced: ClassVar[bool] = True
    """Whether a put waits for the disk."""

    def __init__(self, config: FileChannelConfig, name: str = "") -> None:
        super().__init__(config, name)
        self.id = ""
        """Of the files: events of a channel that was begun anew have other ids."""
        self._directories = config.directories
        self._changed = threading.Condition()
        self._log = Log([], 0)
        self._locks: list[_Lock] = []
        self._committing = threading.Lock()
        self._claims: dict[int, tuple[PartitionClaim, int]] = {}
        """By partition: how far it is delivered, and the claim with which that was committed."""
        self._waiting: dict[int, deque[tuple[int, int]]] = {}
        """By partition: number and events of each entry that is stored, and not delivered."""
        self._events = 0
        """How many they are, those of puts under way included."""
        self._turn = 0
        self._readers: list[_FileReader] = []

    # --- life

    def open(self) -> None:
        """Lock the directories and look what they hold. Raises Retry."""
        config = self.config
        try:
            for directory in self.exclusive():
                made = [one for one in (directory, *directory.parents) if not one.exists()]
                directory.mkdir(parents=True, exist_ok=True)
                for one in made:
                    sync_directory(one.parent)
                self._locks.append(_Lock(directory, self.name))
            self.id = self._identify()
            self._log = Log(self._directories, config.max_file_size, synced=self.synced)
            for torn in self._log.open():
                self.log.warning("%s", torn)
            self._claims = self._read_positions()
            # What was delivered had numbers, which nothing else may get: also where a loss of power took it away.
            self._log.skip_to(max((position for _, position in self._claims.values()), default=0))
        except OSError as e:
            raise Retry(f"{e.filename or config.data_dirs}: {e.strerror}") from e
        for caution in self._flumes():
            self.log.warning("%s", caution)
        self._events = 0
        self._waiting.clear()
        for entry in self._log.entries():
            if entry.number >= self.committed(entry.partition)[1]:
                self._waiting.setdefault(entry.partition, deque()).append((entry.number, entry.events))
                self._events += entry.events
        self.metrics.set("ChannelCapacity", config.capacity)
        self.metrics.set("Open", 1)
        self._show()

    def close(self) -> None:
        """Release the files."""
        self.metrics.set("Open", 0)
        self._log.close()
        while self._locks:
            self._locks.pop().release()

    def exclusive(self) -> Collection[Path]:
        """Its directories."""
        return dict.fromkeys((self.config.checkpoints, *self._directories))

    def probe(self) -> Iterator[str]:
        """Whether the directories can be made and written, are nobody else's, and have room."""
        for directory in self.exclusive():
            if not writable(directory):
                yield f"cannot write into {directory}"
                continue
            if holder := _Lock.held(directory):
                yield Caution(f"{directory} is used by {holder}; one agent can use it at a time")
            if (room := _room(existing(directory))) < self.config.minimum_required_space:
                yield (
                    f"{directory} has {room >> 20} MiB left, less than minimumRequiredSpace, "
                    f"{self.config.minimum_required_space >> 20} MiB"
                )
        yield from map(Caution, self._flumes())

    def _flumes(self) -> Iterator[str]:
        for directory in self._directories:
            if any(path.name[4:].isdigit() for path in directory.glob("log-*")):
                yield f"{directory} holds files of Flume's file channel; their events are not delivered from here"

    def _identify(self) -> str:
        """The id of the files, the same in all directories; a new one where there is none."""
        directories = self._directories
        found = {directory: path.read_text() for directory in directories if (path := directory / ID).exists()}
        if len(set(found.values())) > 1:
            raise FlafkaError(f"dataDirs holds files of several channels: {', '.join(map(str, found))}")
        id = next(iter(found.values()), uuid.uuid4().hex)
        for directory in directories:
            if directory not in found:
                os.close(replace(directory / ID, id.encode()))
        return id

    # --- sources

    def put(self, batch: Batch) -> None:
        """Return when these events are on the disk; waits while there is no room."""
        config = self.config
        self.metrics.add("EventPutAttemptCount", len(batch))
        for piece in batch.split(min(config.transaction_capacity, config.capacity), PIECE_BYTES):
            if len(piece):
                self._put(piece)

    def _put(self, piece: Batch) -> None:
        payload = piece.to_ipc()
        try:
            with self._changed:
                while not self._has_room(len(piece)):
                    if self.stopping.is_set():
                        raise Retry(f"channel {self.name} has no room and the agent is stopping")
                    self._changed.wait(0.1)
                self._turn += 1
                partition = self._turn % max(1, len(self._readers))
                written = self._log.append(partition, int(time.time() * 1000), len(piece), payload)
                waiting = self._waiting.setdefault(partition, deque())
                entry = (written.number, len(piece))
                waiting.append(entry)  # before it is stored, and can be delivered
                self._events += len(piece)
            try:
                self._log.sync(written)
            except OSError:
                with self._changed:
                    self._events -= len(piece)
                    self._waiting[partition] = deque(one for one in self._waiting[partition] if one is not entry)
                raise
        except OSError as e:
            self.metrics.add("EventPutErrorCount", len(piece))
            self.metrics.set("Unhealthy", 1)
            raise Retry(f"{e.filename or self.config.data_dirs} cannot be written: {e.strerror}") from e
        self._show()
        self.metrics.set("Unhealthy", 0)
        self.metrics.add("EventPutSuccessCount", len(piece))

    def _has_room(self, events: int) -> bool:
        if self._events and self._events + events > self.config.capacity:
            return False
        for directory in self._directories:
            if _room(directory) < self.config.minimum_required_space:
                self.complain("room", "%s has less room than minimumRequiredSpace: sources wait", directory)
                return False
        return True

    def _show(self) -> None:
        self.metrics.set("ChannelSize", self._events)
        self.metrics.set("ChannelFillPercentage", 100 * self._events / self.config.capacity)

    # --- sinks

    def reader(self, owner: RebalanceListener, *, group: str | None, member: str) -> Reader:
        """A consumer; all compete."""
        reader = _FileReader(self, self._log, owner, member)
        with self._changed:
            self._readers = sorted([*self._readers, reader], key=lambda one: one.member)
        return reader

    def partitions(self, reader: _FileReader) -> tuple[set[int], set[int]]:
        """Those that are this reader's, and those of them that another one has not given up yet."""
        with self._changed:
            readers = self._readers
            known = {*range(len(readers)), *self._waiting, *self._claims}
            own = {partition for partition in known if readers[partition % len(readers)] is reader}
            return own, {p for one in readers if one is not reader for p in one.positions} & own

    def leave(self, reader: _FileReader) -> None:
        """It takes nothing any more."""
        with self._changed:
            self._readers = [one for one in self._readers if one is not reader]

    def committed(self, partition: int) -> tuple[PartitionClaim, int]:
        """How far it is delivered, and the claim with which that was committed."""
        fresh = PartitionClaim("file", self.name, self.id, self.name, 0, partition, ids=2)
        return self._claims.get(partition, (fresh, 0))

    def commit(self, positions: Mapping[PartitionClaim, int]) -> None:
        """Keep how far these are delivered, and delete the files that are over. Raises Retry."""
        with self._committing:
            claims = {**self._claims, **{claim.partition: (claim, end) for claim, end in positions.items()}}
            path = self.config.checkpoints / POSITIONS
            try:
                lines = [{**claim._asdict(), "position": end} for claim, end in claims.values()]
                os.close(replace(path, _sealed(lines)))
            except OSError as e:
                self.metrics.add("CheckpointWriteErrorCount")
                raise Retry(f"{path} cannot be written: {e.strerror}") from e
            self._claims = claims
            with self._changed:
                for claim, end in positions.items():
                    self._over(self._waiting.get(claim.partition, deque()), end, "EventTakeSuccessCount")
                self._show()
                self._changed.notify_all()
                oldest = self._oldest()
            self._log.drop(oldest)

    def lost(self, path: Path, first: int, end: int) -> None:
        """These entries are damaged."""
        before = self.metrics.get("EventLostCount")
        with self._changed:
            for partition, waiting in self._waiting.items():
                kept = deque(one for one in waiting if not first <= one[0] < end)
                gone = deque(one for one in waiting if first <= one[0] < end)
                self._over(gone, end, "EventLostCount")
                self._waiting[partition] = kept
            self._show()
        events = self.metrics.get("EventLostCount") - before
        if events:
            self.log.error("%s is damaged: %d events that were stored in it are lost", path, events)
            self.metrics.degraded = f"{path} was damaged: events were lost".__str__

    def _over(self, waiting: deque[tuple[int, int]], end: int, counter: str) -> None:
        events = 0
        while waiting and waiting[0][0] < end:
            events += waiting.popleft()[1]
        self._events -= events
        self.metrics.add(counter, events)

    def _oldest(self) -> int:
        """The number of the oldest entry that is not delivered."""
        firsts = [waiting[0][0] for waiting in self._waiting.values() if waiting]
        return min(firsts, default=self._log.stored)

    # --- positions

    def _read_positions(self) -> dict[int, tuple[PartitionClaim, int]]:
        path = self.config.checkpoints / POSITIONS
        if not path.exists():
            return {}
        lines = _unsealed(path.read_bytes())
        if lines is None:
            self.log.error("%s is damaged: all that the files of events still hold is delivered again", path)
            return {}
        found = {}
        for line in lines:
            position = line.pop("position")
            claim = PartitionClaim(**line)
            if claim.topic_id == self.id:
                found[claim.partition] = (claim, position)
        if lines and not found:
            self.log.warning("%s is about other files than those in %s: ignored", path, self.config.data_dirs)
        return found


class _FileReader(Reader):
    def __init__(self, channel: FileChannel, log: Log, owner: RebalanceListener, member: str) -> None:
        self.member = member
        self.positions: dict[int, int] = {}
        """By partition of its own: the entry to be taken next."""
        self._channel, self._log, self._owner = channel, log, owner
        self._claims: dict[int, PartitionClaim] = {}
        self._place = log.place(0)
        self._pushed: tuple[Entry, memoryview] | None = None
        """Read already, and to be taken next."""

    def take(self, timeout: float) -> Taken | None:
        self._rebalance()
        gathered: list[tuple[Entry, memoryview]] = []
        events = size = 0
        while events < MERGE_EVENTS and size < MERGE_BYTES and (found := self._next()) is not None:
            entry = found[0]
            if gathered and entry.partition != gathered[0][0].partition:
                self._pushed = found
                break
            gathered.append(found)
            events, size = events + entry.events, size + entry.size
        if not gathered:
            self._log.wait(self._place, timeout)
            return None
        self._channel.metrics.add("EventTakeAttemptCount", events)
        return self._decoded(gathered)

    def _next(self) -> tuple[Entry, memoryview] | None:
        """The next entry of its partitions that it has not taken."""
        if (pushed := self._pushed) is not None:
            self._pushed = None
            return pushed
        while self.positions:
            expected, path = self._place.number, self._place.segment.path
            found = self._log.read(self._place)
            read = self._place.number if found is None else found[0].number
            if read > expected:
                self._channel.lost(path, expected, read)
            if found is None or found[0].number >= self.positions.get(found[0].partition, sys.maxsize):
                return found
        return None

    def _decoded(self, gathered: list[tuple[Entry, memoryview]]) -> Taken:
        partition, start, end = gathered[0][0].partition, gathered[0][0].number, gathered[-1][0].number + 1
        claim = self._claims[partition]
        parts: list[Batch] = []
        undecodable: list[Undecodable] = []
        for entry, payload in gathered:
            try:
                batch = Batch.from_ipc(payload)
            except ValueError as e:
                record = Record(entry.number, entry.arrival, None, bytes(payload), [])
                undecodable.append(Undecodable(EventId(claim.stem, partition, entry.number, 0), record, str(e)))
                continue
            origin = Origin.of_record(claim.topic, partition, entry.number, entry.arrival, len(batch), claim.stem)
            parts.append(Batch(batch.records, origin))
        self.positions[partition] = end
        if not parts:
            parts.append(Batch.of([], Origin.of_records(claim.topic, partition, [], [], claim.stem)))
        return Taken(partition, start, end, Batch.concat(parts), tuple(undecodable))

    def _rebalance(self) -> None:
        """Take the partitions that are this reader's now, and give up the others."""
        own, others = self._channel.partitions(self)
        if gone := self.positions.keys() - own:
            self._owner.revoked(set(gone))
            for partition in gone:
                del self.positions[partition], self._claims[partition]
        if new := own - self.positions.keys() - others:
            committed = dict(map(self._channel.committed, new))
            answer = self._owner.assigned({claim: position or None for claim, position in committed.items()})
            starts = {claim: position or 0 for claim, position in answer.items()}
            self._channel.commit(starts)
            self._claims.update({claim.partition: claim for claim in starts})
            self.rewind({claim.partition: position for claim, position in starts.items()})

    def commit(self, positions: Mapping[PartitionClaim, int]) -> None:
        own = {claim: end for claim, end in positions.items() if claim.partition in self.positions}
        self._claims.update({claim.partition: claim for claim in own})
        self._channel.commit(own)

    def rewind(self, positions: Mapping[int, int]) -> None:
        self.positions.update(positions)
        self._pushed = None
        self._place = self._log.place(min(self.positions.values(), default=0))

    def lag(self) -> int | None:
        return self._log.stored - self._place.number

    def close(self) -> None:
        self._channel.leave(self)
        self.positions.clear()


class _Lock:
    """A directory that is one channel's. Flume's own lock file, so that a Flume keeps out, too."""

    _held: ClassVar[dict[Path, str]] = {}
    """Of this process, by whom: the system's locks do not keep a process from itself."""

    def __init__(self, directory: Path, name: str) -> None:
        """Raises Retry where it is another's, and OSError."""
        self._directory = directory.resolve()
        if (other := self._held.get(self._directory)) is not None:
            raise Retry(
                f"{directory} is used by channel {other} already: give each a checkpointDir and dataDirs of its own"
            )
        self._file = (directory / LOCK).open("a+")
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            self._file.close()
            raise Retry(f"{directory} is used by another process{_named(directory)}") from e
        self._held[self._directory] = name
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def release(self) -> None:
        """It may be another's."""
        del self._held[self._directory]
        self._file.close()

    @classmethod
    def held(cls, directory: Path) -> str:
        """Whose it is at present, in words; empty where it is nobody's."""
        if directory.resolve() in cls._held or not (directory / LOCK).exists():
            return ""
        with (directory / LOCK).open("a") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return f"another process{_named(directory)}"
        return ""


def _named(directory: Path) -> str:
    pid = (directory / LOCK).read_text().strip()
    return f" ({pid})" if pid.isdigit() else ""


def _room(directory: Path) -> int:
    """Bytes that may still be written there."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def _sealed(lines: list[dict[str, Any]]) -> bytes:
    text = json.dumps(lines).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _unsealed(content: bytes) -> list[dict[str, Any]] | None:
    """None where it is not what was written."""
    checksum, _, text = content.rstrip(b"\n").partition(b" ")
    return json.loads(text) if checksum == b"%08x" % zlib.crc32(text) else None
