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
from flafka.plugins.shared.disk import writable
from flafka.sinks import serializers
from flafka.sinks.bucketpath import BucketPath
from flafka.sinks.hdfs.chain import Chain, epochs, latest, newest, repeat
from flafka.sinks.hdfs.compatibility import HDFS
from flafka.sinks.hdfs.config import HIDDEN, ROUND_UNITS, HdfsConfig
from flafka.sinks.hdfs.filesystem import FileSystem, NoDirectory, Refused
from flafka.sinks.hdfs.formats import format_of
from flafka.sinks.hdfs.layout import LONGEST_NAME, final_path, longest_prefix, possible, stage_directory
from flafka.sinks.hdfs.localdisk import LocalDisk
from flafka.sinks.hdfs.manifest import VERSION, File, Manifest
from flafka.sinks.hdfs.staging import Partition, Staged, Staging
from flafka.sinks.hdfs.tracing import find_in
from flafka.sinks.hdfs.webhdfs import WebHdfs
from flafka.sinks.serializers.avro import schema_name
from flafka.sinks.serializers.base import lengths
from flafka.sinks.serializers.compatibility import SERIALIZERS

LONGEST_SECONDS = 86_400
"""A file is closed at this age whatever the options say: its events must be in the channel until then, and a topic
keeps them for a time only."""


class HdfsSink(CommittingSink[HdfsConfig]):
    """Writes files on HDFS exactly once. Each event is in one file of its path, once, and files appear whole.

    Files are written on the local disk and uploaded to a hidden directory. They are renamed to their place once the
    commit log has them, which lies in `.flafka/chain` below the fixed part of hdfs.path. Every file of a partition is
    closed when one of them has to be, so that a commit covers an unbroken run of records. So files may be smaller
    than rollSize and rollCount ask, or larger by what arrived at once.

    Names are `<prefix>.<topic>-<partition>-<first offset>-<last offset>-<hash><suffix>`; the hash stands for cluster,
    topic, group and epoch, and has `-replay` behind it where `agent replay` wrote the file. The suffix is
    hdfs.fileSuffix, else what the format is called. Files of Avro bodies have a hash of their schema as well. Events
    whose headers make no path, or no schema, are rejected.
    """

    type_name = "hdfs"
    libraries: ClassVar = {"pyhdfs": "hdfs", "requests": "hdfs"}
    aliases = ("org.apache.flume.sink.hdfs.HDFSEventSink",)

    @classmethod
    def libraries_for(cls, config: HdfsConfig) -> Mapping[str, str]:
        """Return the libraries that a sink with these options imports: none for a directory of this host."""
        return {} if config.location.scheme == "file" else cls.libraries

    compatibility_notes = (*HDFS, *SERIALIZERS)

    def __init__(self, config: HdfsConfig, name: str = "") -> None:
        super().__init__(config, name)
        path = config.location.path
        fixed = BucketPath(path).static
        self.root = "/" + (fixed.rpartition("/")[0] if fixed != path else path).strip("/")
        """The part of the path that no event changes."""
        self.state = posixpath.join(self.root, ".flafka")
        self.clock = time.monotonic
        self._paths = config.bucket_path()
        self._format = format_of(config, self._fetch)
        self._suffix = config.file_suffix or self._format.suffix
        self._hdfs: FileSystem | None = None
        self._staging: Staging | None = None
        self._full: set[int] = set()  # partitions with a file of rollSize or rollCount
        self._impossible: set[str] = set()  # paths of events at which a commit could make no directory
        self._chains: dict[tuple[TopicPartition, Generation], Chain] = {}

    # --- life

    def open(self) -> None:
        """Reach the NameNode and make a staging directory."""
        if self.config.round and self.config.round_unit not in ROUND_UNITS:
            self.log.warning(
                "hdfs.roundUnit %r is none of second, minute and hour: times are not rounded", self.config.round_unit
            )
        self._hdfs = self._connect()
        self._hdfs.status(self.root)
        self._staging = Staging(Path(self.config.staging_dir or tempfile.gettempdir()), self._format, self.clock)

    def close(self) -> None:
        """Drop what is not committed, here; on HDFS the next owner removes it."""
        self._chains.clear()
        self._full.clear()
        if self._staging is not None:
            self._staging.close()
            self._staging = None
        if self._hdfs is not None:
            self._hdfs.close()
            self._hdfs = None

    def check_connectivity(self) -> Iterator[str]:
        """Yield what keeps the path from being created on HDFS, or files from being staged."""
        staging = Path(self.config.staging_dir or tempfile.gettempdir()).absolute()
        if not writable(staging):
            yield f"cannot write into the staging directory {staging}"
        try:
            with closing(self._connect()) as hdfs:
                path = self.root
                while (found := hdfs.status(path)) is None and path != "/":
                    path = posixpath.dirname(path)
                if found is not None and found.is_file:
                    yield f"{path} is a file, so that {self.root} cannot be a directory"
                else:
                    hdfs.may_write(path)
        except FlafkaError as e:
            yield str(e)

    def _connect(self) -> FileSystem:
        config, location = self.config, self.config.location
        if location.scheme == "file":
            return LocalDisk(config.threads)
        return WebHdfs(
            location.hosts,
            scheme=location.scheme,
            user=config.proxy_user,
            timeout=config.call_timeout / 1000 or None,
            threads=config.threads,
            stopping=self.stopping,
            creation=config.creation,
        )

    def _fetch(self, url: str) -> bytes:
        """Return the content at an address, one on HDFS among them."""
        if not url.startswith(("hdfs://", "webhdfs://", "swebhdfs://")):
            return serializers.fetch(url)
        assert self._hdfs is not None
        if (content := self._hdfs.read(urlsplit(url).path)) is None:
            raise Retry(f"cannot fetch the schema {url}: it is not there")
        return content

    # --- writing

    def uses_headers(self) -> dict[str, frozenset[str]]:
        """By option: the headers that its escapes need."""
        return self.config.uses_headers()

    def write(self, batch: Batch) -> None:
        """Stage these events; those whose headers make no path are rejected."""
        assert self._staging is not None
        assert batch.origin is not None
        partition = batch.origin.partition
        places, codes = self._places(batch)
        longest = longest_prefix(batch.origin.topic, partition, self._suffix)
        order = np.argsort(codes, kind="stable")
        if len(places) > 1:
            batch = Batch(batch.records.take(pa.array(order)), batch.origin.select(order))
        records = self._format.records(batch)
        sizes = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths(batch.bodies))))
        rejected: dict[EventId, str] = {}
        begin, stops = 0, np.cumsum(np.bincount(codes, minlength=len(places))).tolist()
        for (path, kind), stop in zip(places, stops, strict=True):
            if stop == begin:
                continue
            try:
                bucket = possible(path, self.root, longest)
                if isinstance(kind, ValueError):
                    raise kind
                self._warn_of_hidden(bucket)
                if self._impossible:
                    self._check_directory(posixpath.dirname(bucket))
            except ValueError as e:
                rejected.update((batch.id(row), str(e)) for row in range(begin, stop))
            else:
                size = int(sizes[stop] - sizes[begin])
                part = records.part(begin, stop)
                self._note(partition, self._staging.append(partition, bucket, kind, part, stop - begin, size))
            begin = stop
        if rejected:
            raise Rejected(rejected)

    def _warn_of_hidden(self, bucket: str) -> None:
        """Log, now and then, that readers pass over what this path names."""
        names = bucket[len(self.root) :].split("/")
        if any(name[0:1] in HIDDEN and "=" not in name for name in names) and self.config.uses_headers():
            self.warn_rate_limited(
                "hidden", "Spark, Hive and MapReduce pass over names that begin with _ or .: %s", bucket
            )

    def _check_directory(self, path: str) -> None:
        """Raise ValueError, a sentence about the event, where a file is in the place of its directory."""
        if path not in self._impossible:
            return
        assert self._hdfs is not None
        self._hdfs.mkdirs(self.root)  # were that impossible, it would be no fault of the events
        try:
            self._hdfs.mkdirs(path)
        except NoDirectory as e:
            raise ValueError(f"its file has no directory: {e}") from e
        self._impossible.discard(path)

    def destinations(self, batch: Batch) -> list[dict[str, str]]:
        """The directory of each event's file."""
        paths, codes = self._paths.resolve_batch(batch)
        told = [
            {"rejected": str(path)} if isinstance(path, ValueError) else {"path": posixpath.dirname(path)}
            for path in paths
        ]
        return [told[code] for code in codes.tolist()]

    def trace(self, assignment: Assignment, id: EventId, batch: Batch | None) -> list[dict[str, Any]]:
        """Return the files that have its record; formats keep no ids, so that the line is unknown.

        Where the last commit is below another root, as before a change of hdfs.path, they are looked up there, too.
        """
        bucket = None
        if batch is not None and not self.config.use_local_time_stamp:
            try:
                bucket = possible(self._paths.resolve_batch(batch).paths[0], self.root, LONGEST_NAME)
            except ValueError as e:
                return [{"missing": f"it has no file: {e}"}]
        kind, _, before = assignment.generation.commit_log.partition(":")
        states = dict.fromkeys((self.state, before) if kind == self._kind else (self.state,))
        with closing(self._connect()) as hdfs:
            return find_in(hdfs, states, assignment, id, bucket)

    def _places(self, batch: Batch) -> tuple[list[tuple[str | ValueError, str | ValueError]], Any]:
        """The files, by path and kind, that the events belong to, and which each belongs to."""
        paths, codes = self._paths.resolve_batch(batch)
        if (found := self._format.kinds(batch)) is None:
            return [(path, "") for path in paths], codes
        kinds, which = found
        return [(path, kind) for path in paths for kind in kinds], np.asarray(codes, np.int64) * len(kinds) + which

    def _note(self, partition: int, file: Staged) -> None:
        size, count = self.config.roll_size, self.config.roll_count
        if (size and file.size >= size) or (count and file.events >= count):
            self._full.add(partition)

    def due(self) -> set[int]:
        """Partitions with a file that has to be closed, or all while the staging disk is nearly full."""
        assert self._staging is not None
        partitions, now = self._staging.partitions, self.clock()
        if partitions and self._staging.is_low():
            return set(partitions)
        due = {number for number, part in partitions.items() if number in self._full or self._is_old(part, now)}
        if sum(len(part.files) for part in partitions.values()) > self.config.max_open_files:
            due.add(max(partitions, key=lambda number: len(partitions[number].files)))
        return due

    def _is_old(self, part: Partition, now: float) -> bool:
        interval, idle = self.config.roll_interval or LONGEST_SECONDS, self.config.idle_timeout
        if now - part.since >= min(interval, LONGEST_SECONDS):
            return True
        return bool(idle) and any(now - file.touched >= idle for file in part.files.values())

    def commit_condition(self) -> str:
        """Return how long events are left to the channel: until a file is closed."""
        seconds = self.config.roll_interval or self.config.idle_timeout
        return f"until a file is closed{f', after up to {seconds} s' if seconds else ''}"

    def reset(self, partition: int | None = None) -> None:
        """Drop what is staged here of this partition, or of all."""
        assert self._staging is not None
        for number in list(self._staging.partitions) if partition is None else [partition]:
            self._staging.drop(number)
            self._full.discard(number)

    # --- delivering

    def stage(self, assignment: Assignment, offsets: OffsetRange) -> Receipt:
        """Upload the partition's files to a hidden directory."""
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
        lengths = {found.name: found.length for found in hdfs.list(directory)} if files else {}
        staged = []
        for file, name in zip(files, names, strict=True):
            if (length := lengths.get(posixpath.basename(name))) != file.length:
                raise Retry(f"HDFS holds {length} of the {file.length} bytes sent for {file.bucket}")
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
        """The directory of the chains."""
        return f"{self._kind}:{self.state}"

    @property
    def _kind(self) -> str:
        return "file" if self.config.location.scheme == "file" else "hdfs"

    def resume(self, committed: Assignment) -> Assignment:
        """Finish the last commit, and go on where the commit log ends.

        The log has a later epoch than the group's offset if the group was deleted, or if others committed for it. An
        owner that was asleep commits no more afterwards. Raises Retry for a log in another place: only
        `move_commit_log` brings that here.
        """
        assert self._hdfs is not None
        chain, _, start = self._find(committed)
        place, group = committed.topic_partition, committed.group
        if chain.state != self.state:
            raise CommitLogMoved(
                f"{place}: the commit log of group {group} is below {chain.state}, and not below {self.state}, as "
                "hdfs.path asks for. Stop all agents of the group, and the next one that starts moves it (or: agent "
                f"group move {group}), or have all of them write below the same path"
            )
        if chain.lacks_files(start.next_offset):
            chain, start = self._successor(self.state, chain, start.next_offset)
        next_offset = chain.begin(start)
        # Whoever opens a later epoch seals this one, or is seen here: one of the two comes first.
        if chain.sealed or latest(self._hdfs, self.state, chain.assignment) != chain.assignment.generation.epoch:
            raise Retry(f"{place}: group {group} is being reset: asking again")
        self._seal_earlier(chain, chain, next_offset)
        resumed = self._resumed(chain, next_offset)
        self._chains[resumed.topic_partition, resumed.generation] = chain
        return resumed

    def has_commit_log(self, committed: Assignment) -> bool:
        """Return True if the newest log of that partition is below hdfs.path."""
        return self._find(committed)[0].state == self.state

    def move_commit_log(self, committed: Assignment) -> Assignment | None:
        """Have a commit log of another place go on here, in a new epoch; None if it is here already.

        The old log gets a fence, which names this place, once it is proven that files can be renamed to their names
        here. A move that was interrupted is finished by the next call.
        """
        chain, passed, start = self._find(committed)
        if chain.state == self.state:
            if not self.commit_log_moved(committed) and all(log.state == self.state for log in passed):
                return None
        else:
            old = chain
            chain, start = self._successor(self.state, old, start.next_offset)
            text = "%s: the commit log was below %s and goes on below %s, at %s"
            self.log.info(text, committed.topic_partition, old.state, self.state, start.next_offset)
        return self._resumed(chain, chain.begin(start))

    def _find(self, committed: Assignment) -> tuple[Chain, list[Chain], Assignment]:
        """Return the newest log of that partition, the fenced ones before it, and where to go on after those."""
        assert self._hdfs is not None
        generation, next_offset = committed.generation, committed.next_offset
        kind, _, state = generation.commit_log.partition(":")
        state = state if kind == self._kind else self.state
        try:
            chain, passed = newest(self._hdfs, state, committed, self.log)
        except Refused as e:
            if f"{self.state}/" in str(e):
                raise
            again = repeat(committed, next_offset or 0)
            text = f"{e}. The commit log of the group is there, as hdfs.path was another one: let it be read"
            raise Refused(f"{text}{again and f', or begin anew: {again}'}") from e
        epoch = chain.assignment.generation.epoch
        if generation.commit_log and epoch != generation.epoch and chain.last is not None:
            next_offset = None  # it belongs to another epoch, and says nothing about this one
        begun = [one.last for one in passed if one.last is not None]  # others were sealed before they began
        if begun:
            next_offset = max(next_offset or 0, begun[-1].end)
        for before in passed:
            self._seal_earlier(before, chain, next_offset)
        return chain, passed, chain.assignment.at(next_offset, _last_before(next_offset, passed))

    def _successor(self, state: str, old: Chain, next_offset: int | None) -> tuple[Chain, Assignment]:
        """Fence that log. Return the one that takes its place, and where that begins.

        Raises Retry if another owner is faster.
        """
        assert self._hdfs is not None
        epoch = next_epoch(old.assignment.generation.epoch)
        chain = Chain(self._hdfs, state, old.assignment.of(epoch=epoch), self.log)
        next_offset = old.go_on(next_offset)
        chain.prove()  # a seal that names a place where nothing can be written would end the delivery for good
        # It is sealed before the new one begins, which would be the latest one there though another was faster.
        if (end := old.seal(chain)) is not None:
            next_offset = max(next_offset or 0, end)
        if old.successor != chain.as_successor():
            place, group = old.assignment.topic_partition, old.assignment.group
            raise Retry(f"{place}: another sink of group {group} takes it over: asking again")
        self._seal_earlier(old, chain, next_offset)
        return chain, chain.assignment.at(next_offset, _last_before(next_offset, [old]))

    def _resumed(self, chain: Chain, next_offset: int | None) -> Assignment:
        owned = chain.assignment.of(commit_log=self.commit_log)
        return owned.at(next_offset, _last_before(next_offset, [chain]))

    def _seal_earlier(self, than: Chain, successor: Chain, next_offset: int | None) -> None:
        """Fence the logs of earlier epochs in the same place. The next one begins at `next_offset`."""
        assert self._hdfs is not None
        for epoch in sorted({0, *epochs(self._hdfs, than.state, than.assignment)}):
            if epoch < than.assignment.generation.epoch:
                earlier = Chain(self._hdfs, than.state, than.assignment.of(epoch=epoch), self.log)
                earlier.seal(successor, again=next_offset or 0)

    def commit(self, receipt: Receipt) -> None:
        """Make the staged files visible, by one rename that only one owner can win.

        Raises Conflict for an assignment that `resume` has not returned: see `Chain.commit`.
        """
        assert self._hdfs is not None
        place = receipt.assignment.topic_partition
        chain = self._chains.get((place, receipt.assignment.generation))
        if chain is None:
            raise Conflict(f"{place}: this sink has not resumed the commit log of this epoch")
        manifest: Manifest = msgspec.structs.replace(receipt.staged, last=receipt.last_record)
        try:
            chain.commit(manifest)
        except Retry as e:
            if isinstance(e, NoDirectory):  # its events are rejected when they are written again
                self._impossible.add(e.path)
            self.metrics.add("ConnectionFailedCount")
            raise
        self.metrics.add("ConnectionClosedCount", len(manifest.files))


def _last_before(offset: int | None, logs: Sequence[Chain]) -> LastRecord:
    """Return the last record of the newest of these logs that ends at that offset; unknown if none does."""
    ends = [log.last for log in reversed(logs) if log.last is not None]
    return next((end.last for end in ends if end.end == offset), UNKNOWN_RECORD)
