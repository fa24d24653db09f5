"""The file channel: its events are on a disk of this host before a source is told that they are stored."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from channels.file import looking, positions
from channels.file.config import FileChannelConfig
from channels.file.differences import FILE, FILES
from channels.file.lock import Lock
from channels.file.log import Log
from channels.file.reader import FileReader
from channels.file.takeover import TakeOver
from channels.file.waiting import Waiting
from plugins import (
    Batch,
    Caution,
    Channel,
    Difference,
    EventId,
    FlafkaError,
    PartitionClaim,
    Reader,
    RebalanceListener,
    Retry,
    Whereabouts,
)
from plugins.shared.disk import existing, make_directory, replace, room, sync_directory, writable

ID = "flafka.channel"
"""The file with a channel's id, in each directory of events."""
NUMBERS = "flafka.numbers"
"""In checkpointDir, of a channel whose puts do not wait for the disk: up to where entries may have numbers."""
PIECE_BYTES = 64 << 20
"""A larger batch is put in pieces."""


class FileChannel(Channel[FileChannelConfig]):
    """Holds events in files on this host: no kill and no loss of power loses what a source was told is stored.

    It is as durable as the disk; a channel `kafka` has copies on several hosts. The sinks on it compete for its
    events, each put going to one of them, in turns, as long as they work; where one alone is left it gets all of
    them, and a sink alone gets them in order. A full channel, and a full disk, block its sources instead of failing
    them. What a sink has taken and not committed, such as `hdfs` for a large file, takes none of `capacity`; when it
    fills the disk, it is committed at once.

    What a Flume that has ended left in the same directories is delivered first: each event that was put and not
    taken, once. Its files are moved into directories `flume-…` there, and may be deleted.
    """

    type_name = "file"
    aliases = ("org.apache.flume.channel.file.FileChannel",)
    differences: ClassVar[Sequence[Difference]] = (*FILES, *FILE)
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
        self._locks: list[Lock] = []
        self._committing = threading.Lock()
        self._claims: positions.Positions = {}
        self._waiting = Waiting()
        """What is stored, or on its way to the disk, and not delivered; changed under `_changed` alone."""
        self._short = False
        """Whether a disk has no room for what a source puts."""
        self._turn = 0
        self._readers: list[FileReader] = []

    # --- life

    def open(self) -> None:
        """Lock the directories and look what they hold. Raises Retry."""
        config = self.config
        try:
            for directory in self.exclusive():
                make_directory(directory)
                self._locks.append(Lock(directory, self.name))
            self.id = self._identify()
            take_over = self._take_over()
            take_over.resume()
            numbers = None if self.synced else config.checkpoints / NUMBERS
            self._log = Log(self._directories, config.max_file_size, numbers=numbers)
            for torn in self._log.open():
                self.log.warning("%s", torn)
            self._claims = positions.read(config.checkpoints / positions.NAME, self.id, config.data_dirs, self.log)
            for directory in self.exclusive():
                sync_directory(directory)  # an agent that was killed may have named files and not come to this
            # What was delivered had numbers, which nothing else may get: also where a loss of power took it away.
            self._log.skip_to(max([take_over.first or 0, *(position for _, position in self._claims.values())]))
            if take_over.run(self._log, self._append):
                self._tell(take_over)
        except OSError as e:
            raise Retry(f"{e.filename or config.data_dirs}: {e.strerror}") from e
        self._waiting = Waiting()
        for entry in self._log.entries():
            if entry.number >= self.committed(entry.partition)[1]:
                self._waiting.add(entry.partition, entry.number, entry.events)
        self.metrics.set("ChannelCapacity", config.capacity)
        self.metrics.set("Open", 1)
        self._show()

    def close(self) -> None:
        """Release the files."""
        self.metrics.set("Open", 0)
        try:
            self._log.close()
        finally:
            while self._locks:
                self._locks.pop().release()

    def exclusive(self) -> Mapping[Path, str]:
        """Its directories."""
        return {self.config.checkpoints: "checkpointDir"} | dict.fromkeys(self._directories, "dataDirs")

    def probe(self) -> Iterator[str]:
        """Whether the directories can be made and written, are nobody else's, and have room."""
        for directory in self.exclusive():
            if not writable(directory):
                yield f"cannot write into {directory}"
                continue
            if holder := Lock.held(directory):
                yield Caution(f"{directory} is used by {holder}; one agent can use it at a time")
            if (left := room(existing(directory))) < self.config.minimum_required_space:
                yield (
                    f"{directory} has {left >> 20} MiB left, less than minimumRequiredSpace, "
                    f"{self.config.minimum_required_space >> 20} MiB"
                )
        yield from self._take_over().foreseen()

    def left_by_flume(self) -> Iterator[str]:
        """How many events Flume's channel holds, and what becomes of them."""
        return self._take_over().left()

    def _take_over(self) -> TakeOver:
        return TakeOver(self._directories, self.config.checkpoints, self.config.backup)

    def _append(self, batch: Batch) -> None:
        """Store events that Flume left. Raises Retry, and OSError."""
        if self.stopping.is_set():
            raise Retry("the agent is stopping: what Flume left is taken over at the next start")
        for directory in self._directories:
            if room(directory) < self.config.minimum_required_space:
                raise Retry(
                    f"{directory} has less room than minimumRequiredSpace: what Flume left is taken over later"
                )
        self._log.append(0, int(time.time() * 1000), len(batch), batch.to_ipc())

    def _tell(self, done: TakeOver) -> None:
        self.log.warning(
            "took over %d events that Flume's file channel held; its files are in directories %s of checkpointDir "
            "and dataDirs now: delete them when nobody goes back to Flume",
            done.events,
            done.name,
        )
        for damage in done.damages:
            self.log.error("%s", damage)
        if done.lost:
            self.log.error("%d events that Flume's file channel held are lost", done.lost)
            self.metrics.add("EventLostCount", done.lost)
            self.metrics.degraded = f"{done.lost} events that Flume's file channel held could not be read".__str__

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
        self.put_in_turn(batch, lambda: None)

    def put_in_turn(self, batch: Batch, placed: Callable[[], None]) -> None:
        """The same; its place is in the file, which puts that come together write to the disk together."""
        config = self.config
        self.metrics.add("EventPutAttemptCount", len(batch))
        pieces = [p for p in batch.split(min(config.transaction_capacity, config.capacity), PIECE_BYTES) if len(p)]
        for number, piece in enumerate(pieces, 1):
            self._put(piece, placed if number == len(pieces) else lambda: None)

    def _put(self, piece: Batch, placed: Callable[[], None]) -> None:
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
                # Before it is stored, and can be delivered.
                entry = self._waiting.add(partition, written.number, len(piece))
            placed()
            try:
                self._log.sync(written)
            except OSError:
                with self._changed:
                    self._waiting.remove(partition, entry)
                raise
        except OSError as e:
            self.metrics.add("EventPutErrorCount", len(piece))
            self.metrics.set("Unhealthy", 1)
            raise Retry(f"{e.filename or self.config.data_dirs} cannot be written: {e.strerror}") from e
        self._show()
        self.metrics.set("Unhealthy", 0)
        self.metrics.add("EventPutSuccessCount", len(piece))

    def _has_room(self, events: int) -> bool:
        untaken = self._waiting.untaken
        if untaken and untaken + events > self.config.capacity:
            return False
        self._short = False
        for directory in self._directories:
            if room(directory) < self.config.minimum_required_space:
                self.complain("room", "%s has less room than minimumRequiredSpace: sources wait", directory)
                self._short = True
                return False
        return True

    def pressed(self) -> bool:
        """Whether sources wait for room that what is taken has."""
        return self._short and bool(self._waiting.taken)

    def taken(self, reader: FileReader, partition: int, end: int, events: int) -> None:
        """So many more are taken by a reader, up to there."""
        with self._changed:
            reader.positions[partition] = end
            self._waiting.taken += events
            self._show()
            self._changed.notify_all()

    def moved(self) -> None:
        """A reader goes on elsewhere, or no more: what is taken is counted anew."""
        with self._changed:
            self._waiting.recount(self._next_ones())
            self._show()
            self._changed.notify_all()

    def _next_ones(self) -> dict[int, int]:
        """By partition: the entry that its reader takes next."""
        return {partition: number for one in self._readers for partition, number in dict(one.positions).items()}

    def _show(self) -> None:
        self.metrics.set("ChannelSize", self._waiting.events)
        self.metrics.set("ChannelFillPercentage", 100 * self._waiting.untaken / self.config.capacity)

    # --- sinks

    def reader(self, owner: RebalanceListener, *, group: str | None, member: str) -> Reader:
        """A consumer; all compete."""
        reader = FileReader(self, self._log, owner, member)
        with self._changed:
            self._readers = sorted([*self._readers, reader], key=lambda one: one.member)
        return reader

    def find(self, id: EventId, groups: Collection[str | None]) -> Whereabouts | None:
        """The entry, where its file is still there."""
        config = self.config
        try:
            own = next((found.read_text() for one in self._directories if (found := one / ID).exists()), "")
            claims = positions.read(config.checkpoints / positions.NAME, own, config.data_dirs, self.log)
            fresh = PartitionClaim("file", self.name, own, self.name, 0, id.partition, ids=2)
            claim, position = claims.get(id.partition, (fresh, 0))
            return looking.find(self._directories, id, claim, position, groups) if claim.stem == id.topic else None
        except OSError as e:
            raise Retry(f"{e.filename or config.data_dirs}: {e.strerror}") from e

    def partitions(self, reader: FileReader) -> set[int]:
        """Those that are to be this reader's. The ones that nobody has are its own from now on."""
        with self._changed:
            readers = self._readers
            known = {*range(len(readers)), *self._waiting.partitions(), *self._claims}
            own = {partition for partition in known if readers[partition % len(readers)] is reader}
            reader.held |= own.difference(*(one.held for one in readers if one is not reader))
            return own

    def leave(self, reader: FileReader) -> None:
        """It takes nothing any more."""
        with self._changed:
            self._readers = [one for one in self._readers if one is not reader]
            self.moved()

    def committed(self, partition: int) -> tuple[PartitionClaim, int]:
        """How far it is delivered, and the claim with which that was committed."""
        fresh = PartitionClaim("file", self.name, self.id, self.name, 0, partition, ids=2)
        return self._claims.get(partition, (fresh, 0))

    def commit(self, ends: Mapping[PartitionClaim, int]) -> None:
        """Keep how far these are delivered, and delete the files that are over. Raises Retry."""
        with self._committing:
            claims = {**self._claims, **{claim.partition: (claim, end) for claim, end in ends.items()}}
            path = self.config.checkpoints / positions.NAME
            try:
                self._log.skip_to(max(ends.values(), default=0))  # a sink may have what the disk has lost
                positions.write(path, claims)
            except OSError as e:
                self.metrics.add("CheckpointWriteErrorCount")
                raise Retry(f"{e.filename or path} cannot be written: {e.strerror}") from e
            self._claims = claims
            with self._changed:
                next_ones = self._next_ones()
                for claim, end in ends.items():
                    over = self._waiting.delivered(claim.partition, end, next_ones)
                    self.metrics.add("EventTakeSuccessCount", over)
                self._show()
                self._changed.notify_all()
                oldest = self._waiting.oldest(self._log.stored)
            self._log.drop(oldest)

    def lost(self, path: Path, first: int, end: int) -> None:
        """These entries are damaged."""
        with self._changed:
            events = self._waiting.lost(first, end, self._next_ones())
            self.metrics.add("EventLostCount", events)
            self._show()
        if events:
            self.log.error("%s is damaged: %d events that were stored in it are lost", path, events)
            self.metrics.degraded = f"{path} was damaged: events were lost".__str__
