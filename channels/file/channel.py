"""File channel: events are on a disk of this host before a source gets its acknowledgement."""

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

from flafka.channels.file.bulkload import BulkLoad, import_error, load_markers
from flafka.channels.file.checkpoint import (
    FILE_NAME,
    MAX_RUNS,
    Checkpoint,
    misplaced_error,
    missing_error,
    read_checkpoint,
    reset_checkpoint,
    write_checkpoint,
)
from flafka.channels.file.compatibility import FILE, FILES
from flafka.channels.file.config import FileChannelConfig
from flafka.channels.file.lock import DirectoryLock
from flafka.channels.file.log import Log, Segment, segment_files
from flafka.channels.file.lookup import find_event
from flafka.channels.file.reader import FileReader
from flafka.channels.file.undelivered import UndeliveredEntries
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
from flafka.plugins.storage import (
    free_bytes,
    is_writable,
    make_directory,
    nearest_existing,
    replace_file,
    sync_directory,
)

ID_FILE = "flafka.channel"
"""File with the id of the channel, in each data directory."""
MAX_PARTITIONS_PER_RUN = 256
"""Maximum number of partitions of a run, which uses one for each sink."""
MAX_ENTRY_BYTES = 64 << 20
"""Maximum size of an entry. A larger batch is split."""

METRICS = (
    Metric(
        "CheckpointWriteErrorCount", "counter", "attempts", "Failed attempts to save the committed offsets of sinks."
    ),
    Metric("EventPutErrorCount", "counter", "events", "Events that the disk did not store."),
    Metric("Open", "gauge", "", "1 while the channel is open, and 0 otherwise."),
    Metric("Unhealthy", "gauge", "", "1 while the disk does not store events, and 0 otherwise."),
)
LOST = Metric("EventLostCount", "counter", "events", "Events in damaged or lost data files.", "known")
UNUSED = tuple(
    Metric(name, "counter", unit, "Always 0: a name that dashboards for Flume expect.")
    for name, unit in (("CheckpointBackupWriteErrorCount", ""), ("Closed", ""), ("EventTakeErrorCount", "events"))
)


class FileChannel(Channel[FileChannelConfig]):
    """Stores events in files on this host. No kill and no power failure loses an acknowledged event.

    The channel is as durable as the disk; a channel `kafka` has replicas on several hosts. Its sinks compete for the
    events: puts are distributed over the working sinks in turn. A single sink gets all events in order. A full
    channel, or a full disk, blocks its sources instead of failing them. Events that `hdfs` has taken for an
    open file do not count for `capacity`. If they fill the disk, the sink commits at once.

    The directories may be copied, restored from a backup, or reset to a snapshot: no event gets the id of another
    one. If a file with undelivered events is missing, the channel does not open: restore the file, or accept the
    loss by `agent group reset`.

    The channel does not open while files of Flume are in its directories: `agent migrate --import-channel` moves the
    events that Flume has not delivered into the channel.
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
        """Id of the channel, the same in all data directories and in copies of them."""
        self._directories = config.directories
        self._changed = threading.Condition()
        self._log = Log([], 0)
        self._locks: list[DirectoryLock] = []
        self._committing = threading.Lock()
        self._checkpoint = Checkpoint()
        """Latest checkpoint; its committed offsets may be outdated."""
        self._committed: dict[int, Assignment] = {}
        """Committed offsets by partition."""
        self._runs: dict[int, str] = {}
        """Earlier run that wrote the entries of a partition, by partition."""
        self._run_ends: dict[str, int] = {}
        """Number after the last entry of an earlier run, by run."""
        self._first_partition = 0
        """First partition of this run."""
        self._loss_messages: list[str] = []
        self._undelivered = UndeliveredEntries()
        """Undelivered entries, including those that are not on the disk yet. Guarded by `_changed`."""
        self._is_short_of_space = False
        """True if a source waits for space on a disk."""
        self._puts = 0
        self._is_open = False
        self._readers: list[FileReader] = []

    # --- life

    def open(self) -> None:
        """Lock the directories, read their files, and begin a new run.

        Raises Retry if a directory is in use or cannot be used. Raises FlafkaError if a file is missing or of another
        version, or if there are files of Flume.
        """
        self._open_log(None)

    def load(self, batches: Callable[[], Iterator[Batch]] | None, finished: Callable[[int], None]) -> bool:
        """Store batches while no agent uses the channel; see `Channel.load`.

        If `batches` is None, only a load that was killed is finished. Returns False if there was none.
        """
        if batches is None and not load_markers(self._directories):
            return False
        try:
            self._open_log(BulkLoad(self._directories, batches or (lambda: iter(())), finished))
        finally:
            self.close()
        return True

    def _open_log(self, load: BulkLoad | None) -> None:
        """Open the channel, and run `load` before the first put; None for an open without a load.

        Raises as `open`.
        """
        config = self.config
        self._loss_messages.clear()
        self.metrics.degradation = self._degraded
        try:
            for directory in self.exclusive_resources():
                make_directory(directory)
                self._locks.append(DirectoryLock(directory, self.name))
            self.id = self._read_or_create_id()
            checkpoint = read_checkpoint(self._checkpoint_path, self.log)
            if missing := self._missing_segments(checkpoint):
                raise FlafkaError(self._missing_error(missing))
            if load is not None:
                load.resume()
            elif error := import_error(self._directories, self.name):
                raise FlafkaError(error)
            self._log = Log(self._directories, config.max_file_size, uuid.uuid4().hex[:12], synced=self.synced)
            for message in self._log.open():
                self.log.warning("%s", message)
            for directory in self.exclusive_resources():
                sync_directory(directory)  # a killed agent may have renamed files without this sync
            self._recover(checkpoint)
            if empty := {path.name for path in self._log.empty}:
                checkpoint.files = {
                    path: events for path, events in checkpoint.files.items() if Path(path).name not in empty
                }
                # Before the deletion: after a kill, the files must not count as missing.
                write_checkpoint(self._checkpoint_path, checkpoint)
                self._log.remove_empty()
            # New entries must not reuse the numbers of a lost file, which may be restored later.
            loaded = load.first if load is not None else None
            committed = [assignment.next_offset or 0 for assignment in self._committed.values()]
            self._log.begin_run(max([checkpoint.next, loaded or 0, *committed]))
            if load is not None:
                load.run(self._log, self._append)
            self._write_checkpoint(self._committed, oldest := self._undelivered.oldest(self._log.stored, {}))
            self._log.delete_before(oldest)
        except OSError as e:
            raise Retry(f"{e.filename or config.data_dirs}: {e.strerror}") from e
        self._is_open = True
        self.metrics.set("ChannelCapacity", config.capacity)
        self.metrics.set("Open", 1)
        self._set_gauges()

    @property
    def _checkpoint_path(self) -> Path:
        return self.config.checkpoints / FILE_NAME

    def _existing_directories(self) -> list[Path]:
        """Return the data directories that exist."""
        return [directory for directory in self._directories if directory.is_dir()]

    def _missing_segments(self, checkpoint: Checkpoint) -> dict[str, int | None]:
        """Return the segments with undelivered events that are in the checkpoint and not in the directories.

        The values are numbers of undelivered events, None if unknown. Raises OSError.
        """
        return checkpoint.missing({path.name for _, _, path in segment_files(self._existing_directories())})

    def _recover(self, checkpoint: Checkpoint) -> None:
        """Find committed offsets, undelivered entries and free partitions, and report losses.

        Raises FlafkaError if a file was restored after its partition was used again.
        """
        self._checkpoint, self._undelivered = checkpoint, UndeliveredEntries()
        self._committed, self._runs, self._run_ends = {}, {}, {}
        undelivered: Counter[str] = Counter()
        gaps: Counter[Segment] = Counter()
        segments_of: dict[str, list[Segment]] = {}
        for segment in self._log.segments:
            segments_of.setdefault(segment.run, []).append(segment)
        for segment, entry in self._log.entries():
            run, partition = segment.run, entry.partition
            if self._runs.setdefault(partition, run) != run:
                raise FlafkaError(
                    f"{segment.path} was restored after the channel had reused partition {partition}: move it out of "
                    "dataDirs, and into a new channel to deliver its events"
                )
            if self._has_committed_offset(checkpoint, partition):
                self._committed[partition] = checkpoint.positions[partition]
            expected = max(self._run_ends.get(run, segments_of[run][0].first), self._delivered_end(run))
            if entry.number > expected:
                gaps += _count_by_segment(range(expected, entry.number), segments_of[run])
            self._run_ends[run] = entry.number + 1
            if entry.number >= (self.committed(partition).next_offset or 0):
                self._undelivered.add(partition, entry.number, entry.events)
                undelivered[segment.path.name] += entry.events
        used = self._runs.keys()
        candidates = (0, *(partition + 1 for partition in sorted(used)))
        self._first_partition = next(
            first for first in candidates if used.isdisjoint(range(first, first + MAX_PARTITIONS_PER_RUN))
        )
        self._report_losses(checkpoint, undelivered, gaps)

    def _has_committed_offset(self, checkpoint: Checkpoint, partition: int) -> bool:
        """Return True if the checkpoint has a committed offset for the run of this partition's entries."""
        committed = checkpoint.positions.get(partition)
        topic_id = checkpoint.topic_id(self.id, self._runs.get(partition, ""))
        return committed is not None and committed.topic_partition.topic_id == topic_id

    def _delivered_end(self, run: str) -> int:
        """Return the smallest committed offset among the partitions of an earlier run; 0 if there is none."""
        of_run = (committed for partition, committed in self._committed.items() if self._runs[partition] == run)
        return min((committed.next_offset or 0 for committed in of_run), default=0)

    def _report_losses(
        self, checkpoint: Checkpoint, undelivered: Mapping[str, int], gaps: Mapping[Segment, int]
    ) -> None:
        """Report stored events that the disk has lost, and warn if the directory was copied or restored.

        `undelivered` counts the events found, by file name; `gaps` counts the missing entries, by segment.
        """
        known = {Path(path).name: events for path, events in checkpoint.files.items() if events is not None}
        for path, events in checkpoint.files.items():
            if events is not None and (lost := events - undelivered[Path(path).name]) > 0:
                self._report_loss(
                    path, lost, f"{path} was damaged or truncated since the stop: {lost} events in it are lost"
                )
        for segment, entries in gaps.items():
            if entries and segment.path.name not in known:
                message = f"{segment.path} lacks {entries} puts: their events, at least as many, are lost"
                self._report_loss(str(segment.path), entries, message)
        for path, events in checkpoint.accepted.items():
            count = f"{events} events" if events is not None else "an unknown number of events"
            self._report_loss(path, events or 0, f"{path} is lost with {count}, as accepted by an operator")
        inode = (self._directories[0] / ID_FILE).stat().st_ino
        if checkpoint.inode not in (0, inode) and self._undelivered.events:
            self.log.warning(
                "%s was copied or restored: of its %d events, those that the original has delivered since are "
                "redelivered, except by a sink with its own commit log, such as hdfs",
                self._directories[0],
                self._undelivered.events,
            )
        checkpoint.inode = inode

    def _report_loss(self, path: str, events: int, message: str) -> None:
        """Count lost events, report them in the log and in the health, and keep the file for an operator."""
        self.metrics.add("EventLostCount", events)
        self.log.error("%s", message)
        self._loss_messages.append(message)
        for segment in self._log.segments:
            if segment.path.name == Path(path).name:
                segment.damaged = True  # so that an operator can inspect it

    def _write_checkpoint(self, committed: Mapping[int, Assignment], oldest: int, *, clean: bool = False) -> None:
        """Write the checkpoint: committed offsets by partition, and paths of the segments from entry `oldest` on.

        `oldest` is the number of the first undelivered entry. With `clean`, at a clean stop, each path has the number
        of its undelivered events, by which the next open finds losses. Raises OSError.
        """
        checkpoint = self._checkpoint
        if segments := self._log.needed_segments(oldest):
            checkpoint.files = {str(segment.path.absolute()): None for segment in segments}
        checkpoint.next = 0
        if clean:
            events = self._count_undelivered(segments)
            checkpoint.files = {path: events[path] for path in checkpoint.files}
            checkpoint.next = self._log.stored
        runs = {*self._runs.values(), self._log.run}
        checkpoint.renamed = {run: other for run, other in checkpoint.renamed.items() if run in runs}
        checkpoint.runs = [*(run for run in checkpoint.runs if run != self._log.run), self._log.run][-MAX_RUNS:]
        checkpoint.accepted = {}
        checkpoint.positions = dict(committed)
        write_checkpoint(self._checkpoint_path, checkpoint)

    def _count_undelivered(self, segments: Sequence[Segment]) -> Counter[str]:
        """Return the number of undelivered events by path, where `segments` are in the order of their entries."""
        firsts = [segment.first for segment in segments]
        counts: Counter[str] = Counter()
        with self._changed:
            for number, events in self._undelivered.entries():
                counts[str(segments[bisect_right(firsts, number) - 1].path.absolute())] += events
        return counts

    def close(self) -> None:
        """Write the checkpoint of a clean stop if the channel is open, and release the directories."""
        self.metrics.set("Open", 0)
        try:
            self._log.close(clean=self._is_open and self._end_run())
        finally:
            self._is_open = False
            while self._locks:
                self._locks.pop().release()

    def _end_run(self) -> bool:
        """Sync all entries and write the checkpoint of a clean stop.

        Return False, with a warning, if the disk fails.
        """
        with self._committing:
            try:
                self._log.end_run()
                with self._changed:
                    oldest = self._undelivered.oldest(self._log.stored, {})
                self._write_checkpoint(self._committed, oldest, clean=True)
            except OSError as e:
                self.log.warning("%s cannot be written: %s", e.filename or self._checkpoint_path, e.strerror)
                return False
            return True

    def exclusive_resources(self) -> Mapping[Path, str]:
        """Return the option that names each directory of the channel, by directory."""
        return {self.config.checkpoints: "checkpointDir"} | dict.fromkeys(self._directories, "dataDirs")

    def check_connectivity(self) -> Iterator[str]:
        """Yield problems of the directories: permissions, locks, free space, missing files, files of Flume.

        Files are not checked while an agent has the channel open.
        """
        for directory in self.exclusive_resources():
            if not is_writable(directory):
                yield f"cannot write into {directory}"
                continue
            if holder := DirectoryLock.holder(directory):
                yield f"{directory} is in use by {holder}: only one agent at a time can use it"
            if (free := free_bytes(nearest_existing(directory))) < self.config.minimum_required_space:
                yield (
                    f"{directory} has {free >> 20} MiB free, less than minimumRequiredSpace, "
                    f"{self.config.minimum_required_space >> 20} MiB"
                )
        # An agent that has the channel open creates and deletes files.
        if not any(map(DirectoryLock.holder, self.exclusive_resources())):
            yield from map(str, self._opening_errors())

    def _opening_errors(self) -> Iterator[FlafkaError]:
        """Yield the errors for which the channel cannot open until an operator resolves them.

        These are missing segments, differing ids, files of Flume, and files of another version. Raises OSError.
        """
        try:
            if missing := self._missing_segments(read_checkpoint(self._checkpoint_path, self.log)):
                yield FlafkaError(self._missing_error(missing))
            self._read_ids()
            if error := import_error(self._directories, self.name):
                yield FlafkaError(error)
        except FlafkaError as e:
            yield e

    def _missing_error(self, missing: Mapping[str, int | None]) -> str:
        """Return the error about these missing segments, with the remedies."""
        return missing_error(missing, self.name, self.config.checkpoints, self._directories)

    def reset(self, agreed: Callable[[list[tuple[str, str]]], None], *, earliest: bool) -> None:
        """Accept the loss of missing files, and abandon the commit logs; see `reset_checkpoint`.

        The channel must not be open. `agreed` gets the changes as pairs of a subject and a clause, and raises to
        prevent them. Raises Retry if an agent uses the channel. Raises FlafkaError if there is no checkpoint, or if a
        missing file is outside of dataDirs. Raises OSError.
        """
        lock = DirectoryLock(self.config.checkpoints, self.name)
        try:
            checkpoint = read_checkpoint(self._checkpoint_path, self.log)
            if not checkpoint.exists:
                raise FlafkaError(f"{self._checkpoint_path} does not exist, or is damaged: there is nothing to reset")
            missing = self._missing_segments(checkpoint)
            if error := misplaced_error(missing):
                raise FlafkaError(error)
            changes = [
                (path, f"counts as lost, with {'its' if events is None else events} undelivered events")
                for path, events in missing.items()
            ]
            for partition, committed in sorted(checkpoint.positions.items()):
                start = "the first entry in the files" if earliest else f"entry {committed.next_offset}"
                changes.append((f"partition {partition}", f"continues at {start}, with a new commit log of its sink"))
            agreed(changes)
            reset_checkpoint(self._checkpoint_path, checkpoint, missing, earliest=earliest)
        finally:
            lock.release()

    def describe(self) -> Iterator[tuple[str, int | None, int | None, int | None, int | None, int | None, str]]:
        """Yield a row for each partition: prefix of event ids, number, offset, end, undelivered entries, epoch, "".

        `end` is the number after the last entry, and the epoch 0 is None. Errors of the whole channel come first:
        rows without a partition, with the error as last value. The channel may be open. Raises OSError, and
        FlafkaError for a file of another version.
        """
        checkpoint = read_checkpoint(self._checkpoint_path, self.log)
        if not any(map(DirectoryLock.holder, self.exclusive_resources())):
            for problem in self._opening_errors():
                yield "", None, None, None, None, None, str(problem)
        entries: dict[tuple[str, int], list[int]] = {}
        log = Log(self._existing_directories(), 0)
        log.segments = [Segment(path, first, run) for first, run, path in segment_files(log.directories)]
        for segment, entry in log.entries():
            entries.setdefault((segment.run, entry.partition), []).append(entry.number)
        id = next(iter(self._read_ids().values()), "")
        for (run, partition), numbers in sorted(entries.items(), key=lambda item: item[1]):
            initial = self._initial_assignment(checkpoint.topic_id(id, run), checkpoint.epoch, partition)
            committed = _committed_or_initial(initial, checkpoint.positions)
            offset = committed.next_offset or 0
            undelivered = sum(number >= offset for number in numbers)
            epoch = committed.generation.epoch or None
            yield committed.id_prefix, partition, offset, numbers[-1] + 1, undelivered, epoch, ""

    def flume_directories(self) -> FlumeDirectories:
        """Return the directories of Flume's file channel with the same options."""
        return FlumeDirectories(self.config.checkpoints, self.config.backup, tuple(self._directories))

    def _append(self, batch: Batch) -> None:
        """Store a batch of a load as one entry. Raises Retry if a disk lacks space, and OSError."""
        if error := self._space_error():
            raise Retry(error)
        written = self._log.append(self._first_partition, int(time.time() * 1000), len(batch), batch.to_ipc())
        self._undelivered.add(self._first_partition, written.number, len(batch))

    def _read_ids(self) -> dict[Path, str]:
        """Return the id in each data directory that has one. Raises FlafkaError if they differ, and OSError."""
        ids = {
            directory: file.read_text() for directory in self._directories if (file := directory / ID_FILE).exists()
        }
        if len(set(ids.values())) > 1:
            raise FlafkaError(
                f"dataDirs has files of several channels: {', '.join(map(str, ids))}: keep the directories of one "
                "channel, and configure another channel for each of the others"
            )
        return ids

    def _read_or_create_id(self) -> str:
        """Return the id of the channel, and write it to directories without one. Raises as `_read_ids`."""
        ids = self._read_ids()
        id = next(iter(ids.values()), uuid.uuid4().hex)
        for directory in self._directories:
            if directory not in ids:
                os.close(replace_file(directory / ID_FILE, id.encode()))
        return id

    # --- sources

    def put(self, batch: Batch) -> None:
        """Put events, and return when they are on the disk. Raises as `put_in_order`."""
        self.put_in_order(batch, lambda: None)

    def put_in_order(self, batch: Batch, enqueued: Callable[[], None]) -> None:
        """Put events, and return when they are on the disk. Call `enqueued` once the last entry is written.

        A large batch becomes several entries; after a failure, the first ones may be stored. Blocks while there is no
        space. Raises Retry if the agent stops meanwhile, and Unwritable if the disk fails. Concurrent puts share one
        sync.
        """
        config = self.config
        self.metrics.add("EventPutAttemptCount", len(batch))
        parts = [p for p in batch.split(min(config.transaction_capacity, config.capacity), MAX_ENTRY_BYTES) if len(p)]
        for number, part in enumerate(parts, 1):
            self._put(part, enqueued if number == len(parts) else lambda: None)

    def _put(self, part: Batch, enqueued: Callable[[], None]) -> None:
        """Put one entry; an empty channel accepts it whatever its size. Calls and raises as `put_in_order`."""
        payload = part.to_ipc()
        try:
            with self._changed:
                while not self._has_room(len(part)):
                    if self.stopping.is_set():
                        raise Retry(f"channel {self.name} is full, and the agent is stopping")
                    self._changed.wait(0.1)
                self._puts += 1
                partition = self._first_partition + self._puts % max(1, len(self._readers))
                written = self._log.append(partition, int(time.time() * 1000), len(part), payload)
                # Before the sync, after which a reader may deliver the entry.
                entry = self._undelivered.add(partition, written.number, len(part))
            enqueued()
            try:
                self._log.sync(written)
            except OSError:
                with self._changed:
                    self._undelivered.remove(partition, entry)
                raise
        except OSError as e:
            self.metrics.add("EventPutErrorCount", len(part))
            self.metrics.set("Unhealthy", 1)
            raise Unwritable(f"{e.filename or self.config.data_dirs} cannot be written: {e.strerror}") from e
        self._set_gauges()
        self.metrics.set("Unhealthy", 0)
        self.metrics.add("EventPutSuccessCount", len(part))

    def _has_room(self, events: int) -> bool:
        """Return True if the untaken events leave room for `events` more, and all disks have space."""
        untaken = self._undelivered.untaken
        if untaken and untaken + events > self.config.capacity:
            return False
        if error := self._space_error():
            self.warn_rate_limited("room", "%s: sources wait", error)
            self.metrics.set_error(error)
        elif self._is_short_of_space:
            self.metrics.set_error("")
        self._is_short_of_space = bool(error)
        return not error

    def _space_error(self) -> str:
        """Return the error about a directory with less free space than minimumRequiredSpace, else an empty text.

        Raises OSError.
        """
        for directory in self._directories:
            if free_bytes(directory) < self.config.minimum_required_space:
                return f"{directory} has less free space than minimumRequiredSpace, and no event can be stored"
        return ""

    def _degraded(self) -> str:
        """Return the reason for a loss of function, as `Metrics.degradation`.

        It is a lack of disk space, and the last three losses; empty if there are none.
        """
        error = ""
        with contextlib.suppress(OSError):  # a missing disk fails the puts, which report it
            error = self._space_error() if self._is_open and not self.metrics.last_error else ""
        return "; ".join(filter(None, (error, *self._loss_messages[-3:])))

    def needs_commit(self) -> bool:
        """Return True if sources wait for space on a disk, and a reader has taken events that are not committed."""
        return self._is_short_of_space and bool(self._undelivered.taken)

    def count_taken(self, reader: FileReader, partition: int, end: int, events: int) -> None:
        """Add events that a reader has taken to the count, and set its cursor of the partition to entry `end`."""
        with self._changed:
            reader.cursors[partition] = end
            self._undelivered.taken += events
            self._set_gauges()
            self._changed.notify_all()

    def recount_taken(self) -> None:
        """Count the taken events again after a reader has moved its cursor, or left."""
        with self._changed:
            self._undelivered.recount_taken(self._cursors())
            self._set_gauges()
            self._changed.notify_all()

    def _cursors(self) -> dict[int, int]:
        """Return, by partition, the number of the next entry that its reader takes."""
        return {partition: number for reader in self._readers for partition, number in dict(reader.cursors).items()}

    def _set_gauges(self) -> None:
        self.metrics.set("ChannelSize", self._undelivered.events)
        self.metrics.set("ChannelFillPercentage", 100 * self._undelivered.untaken / self.config.capacity)

    # --- sinks

    def reader(self, owner: RebalanceListener, *, group: str | None, member: str) -> Reader:
        """Return a new reader. All readers of the channel compete for its events; `group` has no effect."""
        reader = FileReader(self, self._log, owner, member)
        with self._changed:
            self._readers = sorted([*self._readers, reader], key=lambda reader: reader.member)
        return reader

    def find_event(self, id: EventId, groups: Collection[str | None]) -> EventLocation | None:
        """Return the location of an event; None if no run of the channel has this id prefix.

        Needs no open channel, and changes nothing. Raises Retry.
        """
        config = self.config
        try:
            id_files = (directory / ID_FILE for directory in self._directories)
            channel_id = next((file.read_text() for file in id_files if file.exists()), "")
            checkpoint = read_checkpoint(self._checkpoint_path, self.log)
            present_runs = {run for _, run, _ in segment_files(self._existing_directories())}
            for run in {*present_runs, *checkpoint.runs}:
                initial = self._initial_assignment(
                    checkpoint.topic_id(channel_id, run), checkpoint.epoch, id.partition
                )
                if initial.id_prefix == id.topic:
                    if run not in present_runs:  # all files of that run were delivered, and deleted
                        initial = initial.with_offset(id.offset + 1)
                    committed = _committed_or_initial(initial, checkpoint.positions)
                    return find_event(self._directories, run, id, committed, groups)
            return None
        except OSError as e:
            raise Retry(f"{e.filename or config.data_dirs}: {e.strerror}") from e

    def _initial_assignment(self, topic_id: str, epoch: int, partition: int) -> Assignment:
        """Return the assignment of a partition without a committed offset: it begins at entry 0."""
        topic_partition = TopicPartition("file", self.name, topic_id, partition)
        return Assignment(topic_partition, self.name, Generation(epoch), 0)

    def partitions(self, reader: FileReader) -> set[int]:
        """Return the partitions of this reader, and reserve each of them that is free.

        A partition is free if no other reader has reserved it. Partition n belongs to reader n modulo the number of
        readers, in the order of their names.
        """
        with self._changed:
            readers = self._readers
            run_partitions = range(self._first_partition, self._first_partition + len(readers))
            known = {*run_partitions, *self._undelivered.partitions(), *self._committed}
            own = {partition for partition in known if readers[partition % len(readers)] is reader}
            reader.reserved |= own.difference(*(other.reserved for other in readers if other is not reader))
            return own

    def leave(self, reader: FileReader) -> None:
        """Remove a reader, which must not take any more; its partitions go to the remaining readers."""
        with self._changed:
            self._readers = [other for other in self._readers if other is not reader]
            self.recount_taken()

    def committed(self, partition: int) -> Assignment:
        """Return the committed offset of a partition, as an assignment; it is 0 if the partition has none."""
        initial = self._initial_assignment(self.topic_id(partition), self._checkpoint.epoch, partition)
        return self._committed.get(partition, initial)

    def topic_id(self, partition: int) -> str:
        """Return `TopicPartition.topic_id` of a partition, which includes the run of its entries."""
        return self._checkpoint.topic_id(self.id, self._runs.get(partition, self._log.run))

    def is_of_this_run(self, partition: int) -> bool:
        """Return True if no earlier run has entries of this partition.

        Then no other process can have put or taken entries of it, unless this process was cloned.
        """
        return partition not in self._runs

    def rename_run(self) -> None:
        """Give the events of this run new ids, as another copy of this process has delivered under the present ids.

        Two processes have the same run if a virtual machine is cloned, or reset to a snapshot, with its memory.
        Raises Retry if the checkpoint cannot be written.
        """
        with self._committing:
            self._checkpoint.renamed[self._log.run] = uuid.uuid4().hex[:12]
            for partition, committed in self._committed.items():
                if self.is_of_this_run(partition):
                    initial = self._initial_assignment(self.topic_id(partition), self._checkpoint.epoch, partition)
                    self._committed[partition] = initial.with_offset(committed.next_offset)
            message = (
                "another copy of this process has delivered events under the ids of this channel, as after "
                f"cloning or resetting a running virtual machine: {self._undelivered.events} events get new ids, and "
                "some may be delivered twice"
            )
            self.log.error("%s", message)
            self._loss_messages.append(message)
            self.metrics.degradation = lambda: "; ".join(self._loss_messages[-3:])
            self._commit(self._committed, {})

    def commit(self, delivered: Collection[Assignment]) -> None:
        """Commit offsets, and delete the files without undelivered events.

        A file that cannot be deleted is left to the next commit. Raises Retry if the checkpoint cannot be written.
        """
        ends = {assignment.partition: assignment.next_offset or 0 for assignment in delivered}
        with self._committing:
            for assignment in delivered:
                end = ends[assignment.partition]
                run_end = self._run_ends.get(self._runs.get(assignment.partition, ""), end)
                if end > run_end and not self.is_of_this_run(assignment.partition):
                    self.warn_rate_limited(
                        f"set back {assignment.topic_partition.topic_id}",
                        "a sink has delivered entries of %s up to %d, but the files end at %d: their disk was reset "
                        "to a snapshot, or has lost entries; undelivered events among these are lost",
                        *(assignment.id_prefix, end, run_end),
                    )
            new = {
                assignment.partition: assignment.with_offset(ends[assignment.partition]) for assignment in delivered
            }
            self._commit({**self._committed, **new}, ends)

    def _commit(self, committed: dict[int, Assignment], ends: Mapping[int, int]) -> None:
        """Write `committed` as the checkpoint, and remove the entries before `ends`, by partition. Raises Retry."""
        with self._changed:
            oldest = self._undelivered.oldest(self._log.stored, ends)
        try:
            self._write_checkpoint(committed, oldest)
        except OSError as e:
            self.metrics.add("CheckpointWriteErrorCount")
            raise Retry(f"{e.filename or self._checkpoint_path} cannot be written: {e.strerror}") from e
        self._committed = committed
        with self._changed:
            cursors = self._cursors()
            for partition, end in ends.items():
                events = self._undelivered.remove_delivered(partition, end, cursors)
                self.metrics.add("EventTakeSuccessCount", events)
            self._set_gauges()
            self._changed.notify_all()
        try:
            self._log.delete_before(oldest)
        except OSError as e:  # the next commit retries
            self.warn_rate_limited("drop", "%s cannot be deleted: %s", e.filename, e.strerror)

    def count_lost(self, path: Path, first: int, end: int) -> None:
        """Remove the entries from `first` to `end`, exclusive, which a reader could not read.

        If they had events, these are reported as lost, with the path of the segment.
        """
        with self._changed:
            events = self._undelivered.remove_lost(first, end, self._cursors())
            self._set_gauges()
        if events:
            self._report_loss(str(path), events, f"{path} is damaged: {events} stored events are lost")


def _committed_or_initial(initial: Assignment, committed: Mapping[int, Assignment]) -> Assignment:
    """Return the committed offset of the partition; `initial` if it has none, or the offset of another run."""
    assignment = committed.get(initial.partition, initial)
    return assignment if assignment.topic_partition.topic_id == initial.topic_partition.topic_id else initial


def _count_by_segment(missing: range, segments: Sequence[Segment]) -> Counter[Segment]:
    """Return, by segment, the count of the missing entry numbers that it should have.

    A segment should have the numbers from its first one up to the first one of the next segment, exclusive.
    """
    counts: Counter[Segment] = Counter()
    ends = [*(segment.first for segment in segments[1:]), missing.stop]
    for segment, end in zip(segments, ends, strict=True):
        counts[segment] = len(range(max(missing.start, segment.first), min(missing.stop, end)))
    return +counts
