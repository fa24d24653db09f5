"""The HDFS sink."""

from __future__ import annotations

import posixpath
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import msgspec
import numpy as np
import pyarrow as pa

from flafka.plugins import (
    Assignment,
    Batch,
    CommittingSink,
    Conflict,
    EventId,
    FlafkaError,
    Generation,
    LastRecord,
    OffsetRange,
    Receipt,
    Rejected,
    Retry,
    TopicPartition,
    next_epoch,
)
from flafka.plugins.errors import CommitLogMoved
from flafka.plugins.partitions import UNKNOWN_RECORD
from flafka.plugins.storage import is_writable
from flafka.sinks import serializers
from flafka.sinks.bucketpath import BucketPath
from flafka.sinks.hdfs.commitlog import (
    VERSION,
    File,
    HdfsCommitLog,
    Manifest,
    find_latest_epoch,
    find_newest_log,
    list_epochs,
    reset_command,
)
from flafka.sinks.hdfs.compatibility import HDFS
from flafka.sinks.hdfs.config import HIDDEN, ROUND_UNITS, HdfsConfig
from flafka.sinks.hdfs.filesystem import FileSystem, NoDirectory, Refused
from flafka.sinks.hdfs.formats import format_of
from flafka.sinks.hdfs.layout import MAX_NAME_BYTES, checked_bucket, final_path, longest_prefix, stage_directory
from flafka.sinks.hdfs.localdisk import LocalDisk
from flafka.sinks.hdfs.staging import OpenFile, OpenFiles, Staging
from flafka.sinks.hdfs.tracing import trace_record
from flafka.sinks.hdfs.trial import try_directory
from flafka.sinks.hdfs.webhdfs import WebHdfs
from flafka.sinks.serializers.avro import schema_name
from flafka.sinks.serializers.base import byte_lengths
from flafka.sinks.serializers.compatibility import SERIALIZERS

MAX_FILE_AGE_SECONDS = 86_400
"""Age at which a file is closed, whatever the options are. Until then the channel has to keep its events, and the
retention of a topic is limited."""


class HdfsSink(CommittingSink[HdfsConfig]):
    """Writes files on HDFS exactly once. Each event is in one file of its path, and files appear complete.

    Files are written on the local disk and uploaded to a hidden directory. They are renamed to their final names once
    they are in the commit log, in `.flafka/chain` below the fixed part of hdfs.path. All files of a partition are
    closed together, so that a commit covers a contiguous range of records. So files may be smaller than rollSize and
    rollCount, or larger by one batch.

    Names are `<prefix>.<topic>-<partition>-<first offset>-<last offset>-<hash><suffix>`. The hash is that of cluster,
    topic, group and epoch. Files of `agent replay` have `-replay` behind the hash. The suffix is hdfs.fileSuffix, or
    else the extension of the format. Files of Avro bodies have a hash of their schema as well. Events whose headers
    give no valid path, or no schema, are rejected.
    """

    type_name = "hdfs"
    libraries: ClassVar = {"pyhdfs": "hdfs", "requests": "hdfs"}
    aliases = ("org.apache.flume.sink.hdfs.HDFSEventSink",)

    @classmethod
    def libraries_for(cls, config: HdfsConfig) -> Mapping[str, str]:
        """Return the libraries that a sink with these options imports: none for a directory on the local disk."""
        return {} if config.location.scheme == "file" else cls.libraries

    compatibility_notes = (*HDFS, *SERIALIZERS)

    def __init__(self, config: HdfsConfig, name: str = "") -> None:
        super().__init__(config, name)
        path = config.location.path
        fixed = BucketPath(path).fixed_prefix
        self.root = "/" + (fixed.rpartition("/")[0] if fixed != path else path).strip("/")
        """Fixed part of the path, which is the same for all events."""
        self.state = posixpath.join(self.root, ".flafka")
        self.clock = time.monotonic
        self._paths = config.bucket_path()
        self._format = format_of(config, self._fetch)
        self._suffix = config.file_suffix or self._format.suffix
        self._hdfs: FileSystem | None = None
        self._staging: Staging | None = None
        self._full: set[int] = set()  # partitions with a file that has reached rollSize or rollCount
        self._refused_directories: set[str] = set()  # paths of events at which a commit could create no directory
        self._commit_logs: dict[tuple[TopicPartition, Generation], HdfsCommitLog] = {}

    # --- lifecycle

    def open(self) -> None:
        """Connect to HDFS, read the status of the path's fixed part, and create a staging directory.

        Raises Retry if HDFS does not answer or the staging directory cannot be used. Logs a warning for an unknown
        hdfs.roundUnit.
        """
        if self.config.round and self.config.round_unit not in ROUND_UNITS:
            self.log.warning(
                "hdfs.roundUnit %r is none of second, minute and hour: times are not rounded", self.config.round_unit
            )
        self._hdfs = self._connect()
        self._hdfs.status(self.root)
        self._staging = Staging(Path(self.config.staging_dir or tempfile.gettempdir()), self._format, self.clock)

    def close(self) -> None:
        """Drop uncommitted files from the staging directory; the next owner removes uploads from HDFS. Idempotent."""
        self._commit_logs.clear()
        self._full.clear()
        if self._staging is not None:
            self._staging.close()
            self._staging = None
        if self._hdfs is not None:
            self._hdfs.close()
            self._hdfs = None

    def check_connectivity(self) -> Iterator[str]:
        """Yield the reasons why files cannot be written and renamed below the path's fixed part, or not be staged.

        The trial is made in the nearest directory that exists, as specified by `try_directory`. It changes no rights.
        """
        staging = Path(self.config.staging_dir or tempfile.gettempdir()).absolute()
        if not is_writable(staging):
            yield f"cannot write into the staging directory {staging}"
        try:
            with closing(self._connect(is_trial=True)) as hdfs:
                path = self.root
                while (status := hdfs.status(path)) is None and path != "/":
                    path = posixpath.dirname(path)
                if status is not None and status.is_file:
                    yield f"{path} is a file, so that {self.root} cannot be a directory"
                else:
                    hdfs.check_writable(path)
                    yield from try_directory(hdfs, path, self.state)
        except FlafkaError as e:
            yield str(e)

    def _connect(self, *, is_trial: bool = False) -> FileSystem:
        """Return a new client of the configured file system: local disk for `file:`, else WebHDFS. Raises Retry.

        With `is_trial`, it does not change the rights of an existing directory `.flafka`.
        """
        config, location = self.config, self.config.location
        if location.scheme == "file":
            return LocalDisk(config.threads, is_trial=is_trial)
        return WebHdfs(
            location.hosts,
            scheme=location.scheme,
            user=config.proxy_user,
            timeout=config.call_timeout / 1000 or None,
            threads=config.threads,
            stopping=self.stopping,
            file_settings=config.file_settings,
            login=config.login,
            is_secure=config.is_secure(),
            tls=config.tls,
            member=self.member,
            is_trial=is_trial,
        )

    def _fetch(self, url: str) -> bytes:
        """Return the content at the URL of an Avro schema. Raises Retry if it cannot be fetched.

        A URL of HDFS is read from the HDFS of this sink, whatever server the URL names.
        """
        if not url.startswith(("hdfs://", "webhdfs://", "swebhdfs://")):
            return serializers.fetch_schema(url)
        assert self._hdfs is not None
        if (content := self._hdfs.read(urlsplit(url).path)) is None:
            raise Retry(f"cannot fetch the schema {url}: it does not exist")
        return content

    # --- writing

    def uses_headers(self) -> dict[str, frozenset[str]]:
        """Return, by option, the names of the headers that the escapes of this option need."""
        return self.config.uses_headers()

    def write(self, batch: Batch) -> None:
        """Append the events to files of the staging directory, one for each path and kind.

        Raises Retry if the staging disk is full or fails. Raises Rejected, after the other events were written, for
        events without a valid path or schema, or whose directory cannot exist.
        """
        assert self._staging is not None
        assert batch.origin is not None
        partition = batch.origin.partition
        targets, codes = self._targets(batch)
        longest = longest_prefix(batch.origin.topic, partition, self._suffix)
        order = np.argsort(codes, kind="stable")
        if len(targets) > 1:
            batch = Batch(batch.records.take(pa.array(order)), batch.origin.select(order))
        records = self._format.records(batch)
        sizes = np.concatenate((np.zeros(1, np.int64), np.cumsum(byte_lengths(batch.bodies))))
        rejected: dict[EventId, str] = {}
        begin, stops = 0, np.cumsum(np.bincount(codes, minlength=len(targets))).tolist()
        for (path, kind), stop in zip(targets, stops, strict=True):
            if stop == begin:
                continue
            try:
                bucket = checked_bucket(path, self.root, longest)
                if isinstance(kind, ValueError):
                    raise kind
                self._warn_of_hidden(bucket)
                if self._refused_directories:
                    self._check_directory(posixpath.dirname(bucket))
            except ValueError as e:
                rejected.update((batch.id(row), str(e)) for row in range(begin, stop))
            else:
                size = int(sizes[stop] - sizes[begin])
                part = records.part(begin, stop)
                file = self._staging.append(partition, bucket, kind, part, stop - begin, size)
                self._note_size(partition, file)
            begin = stop
        if rejected:
            raise Rejected(rejected)

    def _warn_of_hidden(self, bucket: str) -> None:
        """Log, at a limited rate, that readers ignore files at this path if headers put a hidden name into it."""
        names = bucket[len(self.root) :].split("/")
        if any(name[0:1] in HIDDEN and "=" not in name for name in names) and self.config.uses_headers():
            self.warn_rate_limited(
                "hidden", "Spark, Hive and MapReduce ignore names that begin with _ or .: %s", bucket
            )

    def _check_directory(self, path: str) -> None:
        """Create a directory at which a commit has failed; do nothing for any other directory.

        Raises ValueError, with a sentence about the event, if it cannot be created at all, and Retry for other
        failures.
        """
        if path not in self._refused_directories:
            return
        assert self._hdfs is not None
        self._hdfs.mkdirs(self.root)  # if this fails, events must not be rejected for it
        try:
            self._hdfs.mkdirs(path)
        except NoDirectory as e:
            raise ValueError(f"its file has no directory: {e}") from e
        self._refused_directories.discard(path)

    def destinations(self, batch: Batch) -> list[dict[str, str]]:
        """Return a mapping for each event: `path` is the directory of its file, or `rejected` the reason why it has
        no path."""
        paths, codes = self._paths.resolve_batch(batch)
        destinations = [
            {"rejected": str(path)} if isinstance(path, ValueError) else {"path": posixpath.dirname(path)}
            for path in paths
        ]
        return [destinations[code] for code in codes.tolist()]

    def trace(self, assignment: Assignment, id: EventId, batch: Batch | None) -> list[dict[str, Any]]:
        """Return the files that have the event's record. Formats keep no ids, so that the line is unknown.

        If the last commit is below another root, as before a change of hdfs.path, that root is searched, too. The
        event's path narrows the search; it is unknown without `batch` and with hdfs.useLocalTimeStamp. The only
        result is `missing` if the event has no valid path. Raises Retry.
        """
        bucket = None
        if batch is not None and not self.config.use_local_time_stamp:
            try:
                bucket = checked_bucket(self._paths.resolve_batch(batch).paths[0], self.root, MAX_NAME_BYTES)
            except ValueError as e:
                return [{"missing": f"it has no file: {e}"}]
        kind, _, before = assignment.generation.commit_log.partition(":")
        states = dict.fromkeys((self.state, before) if kind == self._kind else (self.state,))
        with closing(self._connect()) as hdfs:
            return trace_record(hdfs, states, assignment, id, bucket)

    def _targets(self, batch: Batch) -> tuple[list[tuple[str | ValueError, str | ValueError]], Any]:
        """Return path and kind of each file that the batch may need, and for each event the index of its file.

        An error in place of a path or kind is the reason to reject the events of that file.
        """
        paths, codes = self._paths.resolve_batch(batch)
        if (by_kind := self._format.kinds(batch)) is None:
            return [(path, "") for path in paths], codes
        kinds, kind_codes = by_kind
        codes = np.asarray(codes, np.int64) * len(kinds) + kind_codes
        return [(path, kind) for path in paths for kind in kinds], codes

    def _note_size(self, partition: int, file: OpenFile) -> None:
        """Note that the partition is due, if this file has reached rollSize or rollCount."""
        size, count = self.config.roll_size, self.config.roll_count
        if (size and file.size >= size) or (count and file.events >= count):
            self._full.add(partition)

    def due_partitions(self) -> set[int]:
        """Return the partitions whose files have to be closed.

        All are due while the staging disk is nearly full, or writers buffer too much. Else a partition is due that
        has a file of rollSize or rollCount, or of an age or idle time as configured. Beyond maxOpenFiles, the
        partition with the most open files is due as well.
        """
        assert self._staging is not None
        partitions, now = self._staging.partitions, self.clock()
        if partitions and self._staging.is_low():
            return set(partitions)
        due = {number for number, part in partitions.items() if number in self._full or self._is_old(part, now)}
        if sum(len(part.files) for part in partitions.values()) > self.config.max_open_files:
            due.add(max(partitions, key=lambda number: len(partitions[number].files)))
        return due

    def _is_old(self, part: OpenFiles, now: float) -> bool:
        """Return True if the partition's files are as old as rollInterval, or one was not written for idleTimeout.

        The limit of the age is a day at most. Both options are in seconds; 0 is no limit.
        """
        interval, idle = self.config.roll_interval or MAX_FILE_AGE_SECONDS, self.config.idle_timeout
        if now - part.since >= min(interval, MAX_FILE_AGE_SECONDS):
            return True
        return bool(idle) and any(now - file.last_write >= idle for file in part.files.values())

    def commit_condition(self) -> str:
        """Return the text "until a file is closed", with the seconds of rollInterval, or idleTimeout, if set."""
        seconds = self.config.roll_interval or self.config.idle_timeout
        return f"until a file is closed{f', after up to {seconds} s' if seconds else ''}"

    def reset(self, partition: int | None = None) -> None:
        """Drop the files in the staging directory of this partition, or of all partitions if None."""
        assert self._staging is not None
        for number in list(self._staging.partitions) if partition is None else [partition]:
            self._staging.drop(number)
            self._full.discard(number)

    # --- delivering

    def stage(self, assignment: Assignment, offsets: OffsetRange) -> Receipt:
        """Upload the partition's files to a hidden directory, drop the local ones, and return the receipt.

        `Receipt.staged` is the manifest to commit; it has no files if no event was written. Raises Retry if a disk or
        HDFS fails, or HDFS does not have all the bytes.
        """
        assert self._staging is not None
        assert self._hdfs is not None
        hdfs, part = self._hdfs, self._staging.partitions.get(assignment.partition)
        files = list(part.files.values()) if part else []
        id = uuid.uuid4().hex
        directory = stage_directory(self.state, assignment, offsets.start, id)
        for file in files:
            self._staging.close_file(file)
        uploads = [(posixpath.join(directory, str(number)), file.path) for number, file in enumerate(files)]
        names = hdfs.each(lambda upload: hdfs.upload(*upload), uploads)
        lengths = {status.name: status.length for status in hdfs.list(directory)} if files else {}
        staged = []
        for file, name in zip(files, names, strict=True):
            if (length := lengths.get(posixpath.basename(name))) != file.length:
                raise Retry(f"HDFS has {length} of the {file.length} bytes sent for {file.bucket}")
            kind = f"-{schema_name(file.kind)}" if file.kind else ""
            path = final_path(file.bucket, assignment, offsets, f"{kind}{self._suffix}")
            staged.append(File(name, path, file.length))
        events = sum(file.events for file in files)
        self.reset(assignment.partition)
        self.metrics.add("ConnectionCreatedCount", len(staged))
        topic, partition = assignment.topic, assignment.partition
        manifest = Manifest(id, topic, partition, offsets.start, offsets.end, events, tuple(staged), VERSION)
        if files:
            manifest = msgspec.structs.replace(manifest, mark=posixpath.join(directory, "done"))
        return Receipt(assignment, offsets, events, manifest)

    @property
    def commit_log(self) -> str:
        """Directory of the commit logs behind the kind of its file system, as `hdfs:/events/.flafka` or `file:…`."""
        return f"{self._kind}:{self.state}"

    @property
    def _kind(self) -> str:
        return "file" if self.config.location.scheme == "file" else "hdfs"

    def resume(self, committed: Assignment) -> Assignment:
        """Finish the last commit, fence earlier epochs, and return the assignment at the end of the commit log.

        The log has a later epoch than the group's offset if the group was deleted, or if another sink of the group
        has committed. If committed files have vanished, a log of a new epoch begins at their first record. Raises
        CommitLogMoved for a log in another directory, from which only `move_commit_log` moves it. Raises Retry if
        HDFS fails, or while another owner begins a later epoch.
        """
        assert self._hdfs is not None
        commit_log, _, start = self._find_log(committed)
        partition, group = committed.topic_partition, committed.group
        if commit_log.state != self.state:
            raise CommitLogMoved(
                f"{partition}: the commit log of group {group} is below {commit_log.state}, and hdfs.path is below "
                f"{self.state}. Stop all agents of the group, and the next one that starts moves it (or: agent group "
                f"move {group}), or have all of them write below the same path"
            )
        if commit_log.has_vanished_files(start.next_offset):
            commit_log, start = self._replace_log(self.state, commit_log, start.next_offset)
        next_offset = commit_log.begin(start)
        # An owner that begins a later epoch either fences this log, or its log is found here.
        epoch = commit_log.assignment.generation.epoch
        if commit_log.is_fenced or find_latest_epoch(self._hdfs, self.state, commit_log.assignment) != epoch:
            raise Retry(f"{partition}: group {group} is being reset: resuming again")
        self._fence_earlier(commit_log, commit_log, next_offset)
        resumed = self._resumed(commit_log, next_offset)
        self._commit_logs[resumed.topic_partition, resumed.generation] = commit_log
        return resumed

    def has_commit_log(self, committed: Assignment) -> bool:
        """Return True if the newest log of that partition, begun or not, is below hdfs.path. Raises Retry."""
        return self._find_log(committed)[0].state == self.state

    def move_commit_log(self, committed: Assignment) -> Assignment | None:
        """Continue a commit log of another directory in this one, and return the assignment in its new epoch.

        Return None if the log, and all fenced logs before it, are here already. The old log gets a fence, which names
        the new log, once a rename here has succeeded. A move that was interrupted is finished by the next call.
        Raises Retry if HDFS fails or another owner is faster.
        """
        commit_log, fenced, start = self._find_log(committed)
        if commit_log.state == self.state:
            if not self.commit_log_moved(committed) and all(log.state == self.state for log in fenced):
                return None
        else:
            old = commit_log
            commit_log, start = self._replace_log(self.state, old, start.next_offset)
            text = "%s: the commit log is moved from below %s to below %s, at offset %s"
            self.log.info(text, committed.topic_partition, old.state, self.state, start.next_offset)
        return self._resumed(commit_log, commit_log.begin(start))

    def _find_log(self, committed: Assignment) -> tuple[HdfsCommitLog, list[HdfsCommitLog], Assignment]:
        """Return the newest log of a partition, the fenced logs before it, and the assignment where it begins.

        The search begins in the directory that the group's offset names. The assignment has the greater of the
        group's offset and the end of the fenced logs. A group's offset of another epoch does not count; without any
        offset, it has None. Also fences logs of earlier epochs in the directories of the fenced logs. Raises Retry.
        """
        assert self._hdfs is not None
        generation, next_offset = committed.generation, committed.next_offset
        kind, _, state = generation.commit_log.partition(":")
        state = state if kind == self._kind else self.state
        try:
            commit_log, fenced = find_newest_log(self._hdfs, state, committed, self.log)
        except Refused as e:
            if f"{self.state}/" in str(e):
                raise
            command = reset_command(committed, next_offset or 0)
            text = "the commit log of the group is there, as hdfs.path was another one: allow reading it"
            raise Refused(f"{text}{command and f', or begin a new one: {command}'}: {e}") from e
        epoch = commit_log.assignment.generation.epoch
        if generation.commit_log and epoch != generation.epoch and commit_log.last is not None:
            next_offset = None  # the group's offset is one of another epoch
        begun = [log.last for log in fenced if log.last is not None]  # other logs were fenced before they began
        if begun:
            next_offset = max(next_offset or 0, begun[-1].end)
        for before in fenced:
            self._fence_earlier(before, commit_log, next_offset)
        return commit_log, fenced, commit_log.assignment.with_offset(next_offset, _last_before(next_offset, fenced))

    def _replace_log(
        self, state: str, old: HdfsCommitLog, next_offset: int | None
    ) -> tuple[HdfsCommitLog, Assignment]:
        """Fence the log `old`; return the log of the next epoch, in `state`, and the assignment where it begins.

        It begins at the greater of `next_offset`, None if unknown, and the end of `old`. If files of the last commit
        have vanished, and `next_offset` is before its end, it begins at the first record of that commit. The caller
        has to begin the returned log. Earlier logs in the directory of `old` are fenced as well.

        A trial rename in `state` comes first; if it fails, nothing is fenced. Raises Retry if HDFS fails, or if
        another owner has fenced `old` for another log. Raises FlafkaError for a damaged manifest.
        """
        assert self._hdfs is not None
        epoch = next_epoch(old.assignment.generation.epoch)
        commit_log = HdfsCommitLog(self._hdfs, state, old.assignment.replace(epoch=epoch), self.log)
        next_offset = old.reconcile(next_offset)
        commit_log.check_writable()  # a fence cannot be taken back: nothing could be delivered any more
        # The fence comes first: a log that begins before it would be the latest one though another owner was faster.
        if (end := old.fence(commit_log)) is not None:
            next_offset = max(next_offset or 0, end)
        if old.successor != commit_log.as_successor():
            partition, group = old.assignment.topic_partition, old.assignment.group
            raise Retry(f"{partition}: another sink of group {group} takes over its commit log: resuming again")
        self._fence_earlier(old, commit_log, next_offset)
        return commit_log, commit_log.assignment.with_offset(next_offset, _last_before(next_offset, [old]))

    def _resumed(self, commit_log: HdfsCommitLog, next_offset: int | None) -> Assignment:
        """Return the assignment of a log of this sink, with its generation, that offset, and the last record before
        it if known."""
        owned = commit_log.assignment.replace(commit_log=self.commit_log)
        return owned.with_offset(next_offset, _last_before(next_offset, [commit_log]))

    def _fence_earlier(self, commit_log: HdfsCommitLog, successor: HdfsCommitLog, next_offset: int | None) -> None:
        """Fence the logs of epochs before `commit_log` in its directory. The next one begins at `next_offset`.

        The fences name `successor`. Records from `next_offset` on, 0 if None, are redelivered. Raises Retry.
        """
        assert self._hdfs is not None
        state, assignment = commit_log.state, commit_log.assignment
        for epoch in sorted({0, *list_epochs(self._hdfs, state, assignment)}):
            if epoch < assignment.generation.epoch:
                earlier = HdfsCommitLog(self._hdfs, state, assignment.replace(epoch=epoch), self.log)
                earlier.fence(successor, redelivered_from=next_offset or 0)

    def commit(self, receipt: Receipt) -> None:
        """Make the staged files visible. Idempotent: may be repeated after Retry.

        Raises Conflict if another owner was faster, or if `resume` has not returned this assignment. Raises Retry if
        HDFS fails. If no directory can exist at a path, `write` then rejects the events of that path.
        """
        assert self._hdfs is not None
        partition = receipt.assignment.topic_partition
        commit_log = self._commit_logs.get((partition, receipt.assignment.generation))
        if commit_log is None:
            raise Conflict(f"{partition}: this sink has not resumed the commit log of this epoch")
        manifest: Manifest = msgspec.structs.replace(receipt.staged, last=receipt.last_record)
        try:
            commit_log.commit(manifest)
        except Retry as e:
            if isinstance(e, NoDirectory):  # `write` rejects its events when they are redelivered
                self._refused_directories.add(e.path)
            self.metrics.add("ConnectionFailedCount")
            raise
        self.metrics.add("ConnectionClosedCount", len(manifest.files))


def _last_before(offset: int | None, logs: Sequence[HdfsCommitLog]) -> LastRecord:
    """Return the last record before an offset: of the last of these logs that ends there; unknown if none does."""
    ends = [log.last for log in reversed(logs) if log.last is not None]
    return next((end.last for end in ends if end.end == offset), UNKNOWN_RECORD)
