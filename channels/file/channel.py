"""The file channel: events are on a disk of this host before a source gets its acknowledgement."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from flafka.channels.file import loading, looking, positions
from flafka.channels.file.compatibility import FILE, FILES
from flafka.channels.file.config import FileChannelConfig
from flafka.channels.file.loading import BulkLoad
from flafka.channels.file.lock import Lock
from flafka.channels.file.log import Log, Segment, files
from flafka.channels.file.positions import Checkpoint
from flafka.channels.file.reader import FileReader
from flafka.channels.file.waiting import Waiting
from flafka.plugins import (
    Assignment,
    Batch,
    Channel,
    CompatibilityNote,
    EventId,
    EventLocation,
    FlafkaError,
    FlumeDirectories,
    Generation,
    Metric,
    Reader,
    RebalanceListener,
    Retry,
    TopicPartition,
    Unwritable,
)
from flafka.plugins.shared.disk import existing, make_directory, replace, room, sync_directory, writable

ID = "flafka.channel"
"""The file with a channel's id, in each directory of events."""
PARTITIONS = 256
"""Partitions that a run may use: one for each sink."""
PIECE_BYTES = 64 << 20
"""A larger batch is put in pieces."""

METRICS = (
    Metric("CheckpointWriteErrorCount", "counter", "attempts", "Failed attempts to save how far sinks have read."),
    Metric("EventPutErrorCount", "counter", "events", "Events that the disk did not store."),
    Metric("Open", "gauge", "", "1 until the channel is closed, and 0 then."),
    Metric("Unhealthy", "gauge", "", "1 while the disk does not store events, and 0 otherwise."),
)
LOST = Metric("EventLostCount", "counter", "events", "Events in damaged or lost data files.", "known")
UNUSED = tuple(
    Metric(name, "counter", unit, "Always 0: a name that dashboards for Flume expect.")
    for name, unit in (("CheckpointBackupWriteErrorCount", ""), ("Closed", ""), ("EventTakeErrorCount", "events"))
)


class FileChannel(Channel[FileChannelConfig]):
    """Holds events in files on this host. No kill and no loss of power loses an acknowledged event.

    It is as durable as the disk; a channel `kafka` has copies on several hosts. The sinks on it compete for its
    events: each put goes to one of them, in turns, as long as they work. A sink alone gets all events in order. A
    full channel, and a full disk, block its sources instead of failing them. What a sink has taken and not committed,
    such as `hdfs` for a large file, takes none of `capacity`. When that fills the disk, the sink commits at once.

    Its directories may be copied, restored from a backup, or set back with their disk: no event gets the id of
    another one. Without a file that it needs, the channel does not open until the file is back, or
    `agent group reset` has accepted the loss.

    It does not open while Flume's files are in its directories: `agent migrate --import-channel` moves the events
    that Flume has not delivered into the channel.
    """

    type_name = "file"
    aliases = ("org.apache.flume.channel.file.FileChannel",)
    compatibility_notes: ClassVar[Sequence[CompatibilityNote]] = (*FILES, *FILE)
    declared_metrics: ClassVar[tuple[Metric, ...]] = (*METRICS, LOST, *UNUSED)
    durable = True
    synced: ClassVar[bool] = True
    """True if a put waits for the disk."""

    def __init__(self, config: FileChannelConfig, name: str = "") -> None:
        super().__init__(config, name)
        self.id = ""
        """Id of the files, the same in all data directories; a copy has it, too."""
        self._directories = config.directories
        self._changed = threading.Condition()
        self._log = Log([], 0)
        self._locks: list[Lock] = []
        self._committing = threading.Lock()
        self._noted = Checkpoint()
        """Checkpoint as it was last written, without its offsets."""
        self._committed: dict[int, Assignment] = {}
        """Committed offsets by partition."""
        self._runs: dict[int, str] = {}
        """By partition: the run of its entries, where that is an earlier one."""
        self._ends: dict[str, int] = {}
        """By earlier run: the number after its last entry."""
        self._base = 0
        """First partition of this run."""
        self._losses: list[str] = []
        self._waiting = Waiting()
        """Undelivered entries, with those that are not on the disk yet; changed under `_changed` alone."""
        self._short = False
        """True if a disk has no room for what a source puts."""
        self._turn = 0
        self._open = False
        self._readers: list[FileReader] = []

    # --- life

    def open(self) -> None:
        """Lock the directories and read what they hold.

        Raises Retry, and FlafkaError where a file is missing, or Flume's files are there.
        """
        self._open_log(None)

    def load(self, batches: Callable[[], Iterator[Batch]] | None, finished: Callable[[int], None]) -> bool:
        """Store batches while no agent uses the channel; see `Channel.load`."""
        if batches is None and not loading.begun(self._directories):
            return False
        try:
            self._open_log(BulkLoad(self._directories, batches or (lambda: iter(())), finished))
        finally:
            self.close()
        return True

    def _open_log(self, load: BulkLoad | None) -> None:
        config = self.config
        self._losses.clear()
        self.metrics.degraded = self._degraded
        try:
            for directory in self.exclusive_resources():
                make_directory(directory)
                self._locks.append(Lock(directory, self.name))
            self.id = self._identify()
            noted = positions.read(self._checkpoint, self.log)
            if missing := self._missing(noted):
                raise FlafkaError(self._refusal(missing))
            if load is not None:
                load.resume()
            elif why := loading.refusal(self._directories, self.name):
                raise FlafkaError(why)
            self._log = Log(self._directories, config.max_file_size, uuid.uuid4().hex[:12], synced=self.synced)
            for torn in self._log.open():
                self.log.warning("%s", torn)
            for directory in self.exclusive_resources():
                sync_directory(directory)  # an agent that was killed may have named files and not come to this
            self._resume(noted)
            if empty := {path.name for path in self._log.empty}:
                noted.files = {path: events for path, events in noted.files.items() if Path(path).name not in empty}
                positions.write(self._checkpoint, noted)  # else a start after a kill would miss them
                self._log.remove_empty()
            # A file that is lost, and comes back later, must not have numbers that new entries have.
            loaded = load.first if load is not None else None
            known = [noted.next, loaded or 0, *(one.next_offset or 0 for one in self._committed.values())]
            self._log.begin_run(max(known))
            if load is not None:
                load.run(self._log, self._append)
            self._save(self._committed, oldest := self._waiting.oldest(self._log.stored, {}))
            self._log.drop(oldest)
        except OSError as e:
            raise Retry(f"{e.filename or config.data_dirs}: {e.strerror}") from e
        self._open = True
        self.metrics.set("ChannelCapacity", config.capacity)
        self.metrics.set("Open", 1)
        self._show()

    @property
    def _checkpoint(self) -> Path:
        return self.config.checkpoints / positions.NAME

    def _missing(self, noted: Checkpoint) -> dict[str, int | None]:
        """Return the files that the checkpoint needs and the directories lack. Raises OSError."""
        there = [directory for directory in self._directories if directory.is_dir()]
        return noted.missing({path.name for _, _, path in files(there)})

    def _resume(self, noted: Checkpoint) -> None:
        """Find the undelivered entries, and report what is lost of them."""
        self._noted, self._waiting = noted, Waiting()
        self._committed, self._runs, self._ends = {}, {}, {}
        undelivered: Counter[str] = Counter()
        gaps: Counter[Segment] = Counter()
        of_runs: dict[str, list[Segment]] = {}
        for segment in self._log.segments:
            of_runs.setdefault(segment.run, []).append(segment)
        for segment, entry in self._log.entries():
            run, partition = segment.run, entry.partition
            if self._runs.setdefault(partition, run) != run:
                raise FlafkaError(
                    f"{segment.path} came back after new events have taken its place: move it out of dataDirs, and "
                    "into a channel of its own to have its events delivered"
                )
            if self._belongs(noted, partition):
                self._committed[partition] = noted.positions[partition]
            begin = max(self._ends.get(run, of_runs[run][0].first), self._delivered(run))
            if entry.number > begin:
                gaps += _of_segments(range(begin, entry.number), of_runs[run])
            self._ends[run] = entry.number + 1
            if entry.number >= (self.committed(partition).next_offset or 0):
                self._waiting.add(partition, entry.number, entry.events)
                undelivered[segment.path.name] += entry.events
        used = self._runs.keys()
        bases = (0, *(one + 1 for one in sorted(used)))
        self._base = next(base for base in bases if used.isdisjoint(range(base, base + PARTITIONS)))
        self._report(noted, undelivered, gaps)

    def _belongs(self, noted: Checkpoint, partition: int) -> bool:
        """Return True if the checkpoint has an offset of the run that this partition's entries are of."""
        found = noted.positions.get(partition)
        topic_id = noted.topic_id(self.id, self._runs.get(partition, ""))
        return found is not None and found.topic_partition.topic_id == topic_id

    def _delivered(self, run: str) -> int:
        """Return the number up to which all entries of an earlier run are delivered, as far as known."""
        of_run = (one for partition, one in self._committed.items() if self._runs[partition] == run)
        return min((one.next_offset or 0 for one in of_run), default=0)

    def _report(self, noted: Checkpoint, undelivered: Mapping[str, int], gaps: Mapping[Segment, int]) -> None:
        """Report events that the disk has lost since they were stored."""
        known = {Path(path).name: events for path, events in noted.files.items() if events is not None}
        for path, events in noted.files.items():
            if events is not None and (lost := events - undelivered[Path(path).name]) > 0:
                self._lose(path, lost, f"{path} was damaged or cut since the stop: {lost} events in it are lost")
        for segment, entries in gaps.items():
            if entries and segment.path.name not in known:
                text = f"{segment.path} lacks {entries} puts: their events, at least as many, are lost"
                self._lose(str(segment.path), entries, text)
        for path, events in noted.accepted.items():
            held = f"{events} events" if events is not None else "an unknown number of events"
            self._lose(path, events or 0, f"{path} is lost, as an operator has accepted, with {held}")
        inode = (self._directories[0] / ID).stat().st_ino
        if noted.inode not in (0, inode) and self._waiting.events:
            self.log.warning(
                "%s was copied or restored: of the %d events that it holds, those that the original has delivered "
                "since are delivered again, but for a sink that keeps a commit log of its own, such as hdfs",
                self._directories[0],
                self._waiting.events,
            )
        noted.inode = inode

    def _lose(self, path: str, events: int, sentence: str) -> None:
        """Count lost events, and say so in the log and in the health."""
        self.metrics.add("EventLostCount", events)
        self.log.error("%s", sentence)
        self._losses.append(sentence)
        for segment in self._log.segments:
            if segment.path.name == Path(path).name:
                segment.damaged = True  # for who wants to look at it

    def _save(self, committed: Mapping[int, Assignment], oldest: int, *, clean: bool = False) -> None:
        """Write the checkpoint; `oldest` is the number of the first undelivered entry. Raises OSError."""
        noted = self._noted
        if segments := self._log.needed(oldest):
            noted.files = {str(segment.path.absolute()): None for segment in segments}
        noted.next = 0
        if clean:
            events = self._undelivered(segments)
            noted.files = {path: events[path] for path in noted.files}
            noted.next = self._log.stored
        runs = {*self._runs.values(), self._log.run}
        noted.renamed = {run: other for run, other in noted.renamed.items() if run in runs}
        noted.runs = [*(run for run in noted.runs if run != self._log.run), self._log.run][-positions.RUNS :]
        noted.accepted = {}
        noted.positions = dict(committed)
        positions.write(self._checkpoint, noted)

    def _undelivered(self, segments: Sequence[Segment]) -> Counter[str]:
        """Return the number of undelivered events by path of the segment."""
        firsts = [segment.first for segment in segments]
        found: Counter[str] = Counter()
        with self._changed:
            for number, events in self._waiting.entries():
                found[str(segments[bisect_right(firsts, number) - 1].path.absolute())] += events
        return found

    def close(self) -> None:
        """Note the end of the files, and release them."""
        self.metrics.set("Open", 0)
        try:
            self._log.close(clean=self._open and self._end())
        finally:
            self._open = False
            while self._locks:
                self._locks.pop().release()

    def _end(self) -> bool:
        """Write the checkpoint of a clean stop; return False if the disk does not take it."""
        with self._committing:
            try:
                self._log.end_run()
                with self._changed:
                    oldest = self._waiting.oldest(self._log.stored, {})
                self._save(self._committed, oldest, clean=True)
            except OSError as e:
                self.log.warning("%s cannot be written: %s", e.filename or self._checkpoint, e.strerror)
                return False
            return True

    def exclusive_resources(self) -> Mapping[Path, str]:
        """Return its directories."""
        return {self.config.checkpoints: "checkpointDir"} | dict.fromkeys(self._directories, "dataDirs")

    def check_connectivity(self) -> Iterator[str]:
        """Yield problems of the directories: rights, another user of them, room, missing files."""
        for directory in self.exclusive_resources():
            if not writable(directory):
                yield f"cannot write into {directory}"
                continue
            if holder := Lock.held(directory):
                yield f"{directory} is used by {holder}; one agent can use it at a time"
            if (left := room(existing(directory))) < self.config.minimum_required_space:
                yield (
                    f"{directory} has {left >> 20} MiB left, less than minimumRequiredSpace, "
                    f"{self.config.minimum_required_space >> 20} MiB"
                )
        if not any(map(Lock.held, self.exclusive_resources())):  # else files come and go
            yield from map(str, self._refusals())

    def _refusals(self) -> Iterator[FlafkaError]:
        """Yield what needs a person before the channel can be opened."""
        try:
            if missing := self._missing(positions.read(self._checkpoint, self.log)):
                yield FlafkaError(self._refusal(missing))
            self._identities()
            if why := loading.refusal(self._directories, self.name):
                yield FlafkaError(why)
        except FlafkaError as e:
            yield e

    def _refusal(self, missing: Mapping[str, int | None]) -> str:
        return positions.refusal(missing, self.name, self.config.checkpoints, self._directories)

    def reset(self, agreed: Callable[[list[tuple[str, str]]], None], *, earliest: bool) -> None:
        """Resolve what the channel, which is not open, waits for a person to resolve; see `positions.reset`.

        Calls `agreed` with the changes, which raises to prevent them. Raises Retry if an agent uses the channel,
        FlafkaError if there is no checkpoint, or a missing file exists outside of dataDirs, and OSError.
        """
        lock = Lock(self.config.checkpoints, self.name)
        try:
            noted = positions.read(self._checkpoint, self.log)
            if not noted.written:
                raise FlafkaError(f"{self._checkpoint} does not exist, or is damaged: there is nothing to reset")
            missing = self._missing(noted)
            if present := positions.elsewhere(missing):
                raise FlafkaError(present)
            changes = [
                (path, f"counts as lost, with {'its' if events is None else events} undelivered events")
                for path, events in missing.items()
            ]
            for partition, committed in sorted(noted.positions.items()):
                at = "the first entry that is left" if earliest else f"entry {committed.next_offset}"
                changes.append((f"partition {partition}", f"continues at {at}, with a new commit log of its sink"))
            agreed(changes)
            positions.reset(self._checkpoint, noted, missing, earliest=earliest)
        finally:
            lock.release()

    def describe(self) -> Iterator[tuple[str, int | None, int | None, int | None, int | None, int | None, str]]:
        """Yield for each partition: name of its events, number, offset, end, undelivered entries, epoch, "".

        A problem of the channel as a whole comes first, in the last place of a row without a partition. The channel
        may be open.
        """
        noted = positions.read(self._checkpoint, self.log)
        if not any(map(Lock.held, self.exclusive_resources())):
            for problem in self._refusals():
                yield "", None, None, None, None, None, str(problem)
        found: dict[tuple[str, int], list[int]] = {}
        reading = Log([one for one in self._directories if one.is_dir()], 0)
        reading.segments = [Segment(path, first, run) for first, run, path in files(reading.directories)]
        for segment, entry in reading.entries():
            found.setdefault((segment.run, entry.partition), []).append(entry.number)
        own = next(iter(self._identities().values()), "")
        for (run, partition), numbers in sorted(found.items(), key=lambda one: one[1]):
            fresh = self._begin(noted.topic_id(own, run), noted.epoch, partition)
            committed = _of_topic(fresh, noted.positions)
            offset = committed.next_offset or 0
            left = sum(number >= offset for number in numbers)
            epoch = committed.generation.epoch or None
            yield committed.id_prefix, partition, offset, numbers[-1] + 1, left, epoch, ""

    def flume_directories(self) -> FlumeDirectories:
        """Return the directories in which Flume's file channel with these options has its files."""
        return FlumeDirectories(self.config.checkpoints, self.config.backup, tuple(self._directories))

    def _append(self, batch: Batch) -> None:
        """Store a batch of a load. Raises Retry, and OSError."""
        if short := self._short_of_room():
            raise Retry(short)
        written = self._log.append(self._base, int(time.time() * 1000), len(batch), batch.to_ipc())
        self._waiting.add(self._base, written.number, len(batch))

    def _identities(self) -> dict[Path, str]:
        """Return the ids in the data directories. Raises FlafkaError where they differ, and OSError."""
        found = {one: path.read_text() for one in self._directories if (path := one / ID).exists()}
        if len(set(found.values())) > 1:
            raise FlafkaError(
                f"dataDirs holds files of several channels: {', '.join(map(str, found))}; leave those of one channel "
                "there, and give the others a channel of their own"
            )
        return found

    def _identify(self) -> str:
        """Return the id of the files; where a directory has none, write it there. Raises as `_identities`."""
        found = self._identities()
        id = next(iter(found.values()), uuid.uuid4().hex)
        for directory in self._directories:
            if directory not in found:
                os.close(replace(directory / ID, id.encode()))
        return id

    # --- sources

    def put(self, batch: Batch) -> None:
        """Return when these events are on the disk; waits while there is no room."""
        self.put_in_order(batch, lambda: None)

    def put_in_order(self, batch: Batch, enqueued: Callable[[], None]) -> None:
        """Put, and call `enqueued` once the entry is in the file; puts at the same time share one sync."""
        config = self.config
        self.metrics.add("EventPutAttemptCount", len(batch))
        pieces = [p for p in batch.split(min(config.transaction_capacity, config.capacity), PIECE_BYTES) if len(p)]
        for number, piece in enumerate(pieces, 1):
            self._put(piece, enqueued if number == len(pieces) else lambda: None)

    def _put(self, piece: Batch, enqueued: Callable[[], None]) -> None:
        payload = piece.to_ipc()
        try:
            with self._changed:
                while not self._has_room(len(piece)):
                    if self.stopping.is_set():
                        raise Retry(f"channel {self.name} has no room and the agent is stopping")
                    self._changed.wait(0.1)
                self._turn += 1
                partition = self._base + self._turn % max(1, len(self._readers))
                written = self._log.append(partition, int(time.time() * 1000), len(piece), payload)
                # Before it is stored, and can be delivered.
                entry = self._waiting.add(partition, written.number, len(piece))
            enqueued()
            try:
                self._log.sync(written)
            except OSError:
                with self._changed:
                    self._waiting.remove(partition, entry)
                raise
        except OSError as e:
            self.metrics.add("EventPutErrorCount", len(piece))
            self.metrics.set("Unhealthy", 1)
            raise Unwritable(f"{e.filename or self.config.data_dirs} cannot be written: {e.strerror}") from e
        self._show()
        self.metrics.set("Unhealthy", 0)
        self.metrics.add("EventPutSuccessCount", len(piece))

    def _has_room(self, events: int) -> bool:
        untaken = self._waiting.untaken
        if untaken and untaken + events > self.config.capacity:
            return False
        if short := self._short_of_room():
            self.warn_rate_limited("room", "%s: sources wait", short)
            self.metrics.error(short)
        elif self._short:
            self.metrics.error("")
        self._short = bool(short)
        return not short

    def _short_of_room(self) -> str:
        """Return which directory has no room for events, in words; empty if all have."""
        for directory in self._directories:
            if room(directory) < self.config.minimum_required_space:
                return f"{directory} has less room than minimumRequiredSpace, and nothing can be stored"
        return ""

    def _degraded(self) -> str:
        """Return why the channel does less than it should, as `Metrics.degraded`; also before the first put."""
        short = ""
        with contextlib.suppress(OSError):  # a disk that is gone fails the puts
            short = self._short_of_room() if self._open and not self.metrics.last_error else ""
        return "; ".join(filter(None, (short, *self._losses[-3:])))

    def needs_commit(self) -> bool:
        """Return True if sources wait for room that taken events occupy."""
        return self._short and bool(self._waiting.taken)

    def taken(self, reader: FileReader, partition: int, end: int, events: int) -> None:
        """Count events that a reader has taken, up to the number `end`, exclusive."""
        with self._changed:
            reader.positions[partition] = end
            self._waiting.taken += events
            self._show()
            self._changed.notify_all()

    def moved(self) -> None:
        """Count the taken events again, after a reader moved its cursor or left."""
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

    def find(self, id: EventId, groups: Collection[str | None]) -> EventLocation | None:
        """Return the entry, where its file is still there."""
        config = self.config
        try:
            own = next((found.read_text() for one in self._directories if (found := one / ID).exists()), "")
            noted = positions.read(self._checkpoint, self.log)
            there = {run for _, run, _ in files([one for one in self._directories if one.is_dir()])}
            for run in {*there, *noted.runs}:
                fresh = self._begin(noted.topic_id(own, run), noted.epoch, id.partition)
                if fresh.id_prefix == id.topic:
                    if run not in there:
                        fresh = fresh.at(id.offset + 1)  # the files of that run were delivered
                    return looking.find(self._directories, run, id, _of_topic(fresh, noted.positions), groups)
            return None
        except OSError as e:
            raise Retry(f"{e.filename or config.data_dirs}: {e.strerror}") from e

    def _begin(self, topic_id: str, epoch: int, partition: int) -> Assignment:
        """Return the assignment of a partition that has no committed offset."""
        at = TopicPartition("file", self.name, topic_id, partition)
        return Assignment(at, self.name, Generation(epoch), 0)

    def partitions(self, reader: FileReader) -> set[int]:
        """Return the partitions that are to be this reader's, and assign it those that no reader has."""
        with self._changed:
            readers = self._readers
            own_run = range(self._base, self._base + len(readers))
            known = {*own_run, *self._waiting.partitions(), *self._committed}
            own = {partition for partition in known if readers[partition % len(readers)] is reader}
            reader.held |= own.difference(*(one.held for one in readers if one is not reader))
            return own

    def leave(self, reader: FileReader) -> None:
        """Remove a reader: it takes nothing any more."""
        with self._changed:
            self._readers = [one for one in self._readers if one is not reader]
            self.moved()

    def committed(self, partition: int) -> Assignment:
        """Return the committed offset of a partition; 0 if it has none."""
        fresh = self._begin(self.topic_id(partition), self._noted.epoch, partition)
        return self._committed.get(partition, fresh)

    def topic_id(self, partition: int) -> str:
        """Return `TopicPartition.topic_id` of a partition: it names the run of its entries."""
        return self._noted.topic_id(self.id, self._runs.get(partition, self._log.run))

    def is_of_this_run(self, partition: int) -> bool:
        """Return True if no other process can have put or taken entries of this partition."""
        return partition not in self._runs

    def rename_run(self) -> None:
        """Give the events of this run new ids, as another copy of this process has delivered under the present ones.

        A virtual machine that is cloned, or set back, with its memory has two processes of one run. Raises Retry.
        """
        with self._committing:
            self._noted.renamed[self._log.run] = uuid.uuid4().hex[:12]
            for partition, committed in self._committed.items():
                if self.is_of_this_run(partition):
                    fresh = self._begin(self.topic_id(partition), self._noted.epoch, partition)
                    self._committed[partition] = fresh.at(committed.next_offset)
            sentence = (
                "another copy of this process has delivered events under the ids of this channel, as when a virtual "
                f"machine is cloned or set back while it runs: {self._waiting.events} events get new ids, and some "
                "may be delivered twice"
            )
            self.log.error("%s", sentence)
            self._losses.append(sentence)
            self.metrics.degraded = lambda: "; ".join(self._losses[-3:])
            self._commit(self._committed, {})

    def commit(self, delivered: Collection[Assignment]) -> None:
        """Keep how far these are delivered, and delete the files that are over. Raises Retry."""
        ends = {one.partition: one.next_offset or 0 for one in delivered}
        with self._committing:
            for one in delivered:
                end = ends[one.partition]
                known = self._ends.get(self._runs.get(one.partition, ""), end)
                if end > known and not self.is_of_this_run(one.partition):
                    self.warn_rate_limited(
                        f"set back {one.topic_partition.topic_id}",
                        "a sink has delivered entries of %s up to %d, and the files end at %d: their disk was set "
                        "back, or has lost the rest; what was stored there and not delivered is gone",
                        *(one.id_prefix, end, known),
                    )
            fresh = {one.partition: one.at(ends[one.partition]) for one in delivered}
            self._commit({**self._committed, **fresh}, ends)

    def _commit(self, committed: dict[int, Assignment], ends: Mapping[int, int]) -> None:
        with self._changed:
            oldest = self._waiting.oldest(self._log.stored, ends)
        try:
            self._save(committed, oldest)
        except OSError as e:
            self.metrics.add("CheckpointWriteErrorCount")
            raise Retry(f"{e.filename or self._checkpoint} cannot be written: {e.strerror}") from e
        self._committed = committed
        with self._changed:
            next_ones = self._next_ones()
            for partition, end in ends.items():
                over = self._waiting.delivered(partition, end, next_ones)
                self.metrics.add("EventTakeSuccessCount", over)
            self._show()
            self._changed.notify_all()
        try:
            self._log.drop(oldest)
        except OSError as e:  # the next commit tries it again
            self.warn_rate_limited("drop", "%s cannot be deleted: %s", e.filename, e.strerror)

    def lost(self, path: Path, first: int, end: int) -> None:
        """Count the entries from `first` to `end`, exclusive, as lost."""
        with self._changed:
            events = self._waiting.lost(first, end, self._next_ones())
            self._show()
        if events:
            self._lose(str(path), events, f"{path} is damaged: {events} events that were stored in it are lost")


def _of_topic(fresh: Assignment, committed: Mapping[int, Assignment]) -> Assignment:
    """Return the committed offset of that partition; `fresh` if there is none, or only one of another topic."""
    found = committed.get(fresh.partition, fresh)
    return found if found.topic_partition.topic_id == fresh.topic_partition.topic_id else fresh


def _of_segments(missing: range, segments: Sequence[Segment]) -> Counter[Segment]:
    """Return how many of the missing numbers each segment had: those from its first one to the next segment's."""
    found: Counter[Segment] = Counter()
    for segment, following in zip(segments, [*(one.first for one in segments[1:]), missing.stop], strict=True):
        found[segment] = len(range(max(missing.start, segment.first), min(missing.stop, following)))
    return +found
