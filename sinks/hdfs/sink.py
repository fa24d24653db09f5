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
    Batch,
    CommittingSink,
    Conflict,
    EventId,
    FlafkaError,
    LastRecord,
    PartitionClaim,
    Receipt,
    Rejected,
    Resumed,
    Retry,
)
from flafka.plugins.channel import next_epoch
from flafka.plugins.errors import CommitLogElsewhere
from flafka.plugins.shared.disk import writable
from flafka.sinks import serializers
from flafka.sinks.bucketpath import BucketPath
from flafka.sinks.hdfs.chain import Chain, epochs, latest, newest, repeat
from flafka.sinks.hdfs.config import HIDDEN, ROUND_UNITS, HdfsConfig
from flafka.sinks.hdfs.differences import HDFS
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
from flafka.sinks.serializers.differences import SERIALIZERS

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

    differences = (*HDFS, *SERIALIZERS)

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
        self._chains: dict[PartitionClaim, Chain] = {}

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

    def probe(self) -> Iterator[str]:
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
            self.complain("hidden", "Spark, Hive and MapReduce pass over names that begin with _ or .: %s", bucket)

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

    def trace(self, claim: PartitionClaim, id: EventId, batch: Batch | None) -> list[dict[str, Any]]:
        """Return the files that have its record; formats keep no ids, so that the line is unknown.

        Where the last commit is below another root, as before a change of hdfs.path, they are looked up there, too.
        """
        bucket = None
        if batch is not None and not self.config.use_local_time_stamp:
            try:
                bucket = possible(self._paths.resolve_batch(batch).paths[0], self.root, LONGEST_NAME)
            except ValueError as e:
                return [{"missing": f"it has no file: {e}"}]
        kind, _, before = claim.record.partition(":")
        states = dict.fromkeys((self.state, before) if kind == self._kind else (self.state,))
        with closing(self._connect()) as hdfs:
            return find_in(hdfs, states, claim, id, bucket)

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

    def holds(self) -> str:
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

    def stage(self, claim: PartitionClaim, start: int, end: int) -> Receipt:
        """Upload the partition's files to a hidden directory."""
        assert self._staging is not None
        assert self._hdfs is not None
        hdfs, part = self._hdfs, self._staging.partitions.get(claim.partition)
        files = list(part.files.values()) if part else []
        id = uuid.uuid4().hex
        directory = stage_directory(self.state, claim, start, id)
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
            path = final_path(file.bucket, claim, start, end, f"{kind}{self._suffix}")
            staged.append(File(name, path, file.length))
        events = sum(file.events for file in files)
        self.reset(claim.partition)
        self.metrics.add("ConnectionCreatedCount", len(staged))
        manifest = Manifest(id, claim.topic, claim.partition, start, end, events, tuple(staged), VERSION)
        if files:
            manifest = msgspec.structs.replace(manifest, mark=posixpath.join(directory, "done"))
        return Receipt(claim, start, end, events, manifest)

    @property
    def record(self) -> str:
        """The directory of the chains."""
        return f"{self._kind}:{self.state}"

    @property
    def _kind(self) -> str:
        return "file" if self.config.location.scheme == "file" else "hdfs"

    def resume(self, claim: PartitionClaim, committed: int | None) -> Resumed:
        """Finish the last commit, and go on where the commit log ends.

        The log has a later epoch than the group's offset if the group was deleted, or if others committed for it. An
        owner that was asleep commits no more afterwards. Raises Retry for a log in another place: only
        `move_commit_log` brings that here.
        """
        assert self._hdfs is not None
        chain, _, committed, last = self._find(claim, committed)
        if chain.state != self.state:
            raise CommitLogElsewhere(
                f"{_place(claim)}: the commit log of group {claim.group} is below {chain.state}, and not below "
                f"{self.state}, as hdfs.path asks for. Stop all agents of the group, and the next one that starts "
                f"moves it (or: agent group move {claim.group}), or have all of them write below the same path"
            )
        if chain.lacks_files(committed):
            chain, last, committed = self._successor(self.state, chain, committed)
        position = chain.begin(committed, last)
        # Whoever opens a later epoch seals this one, or is seen here: one of the two comes first.
        if chain.sealed or latest(self._hdfs, self.state, chain.claim) != chain.claim.epoch:
            raise Retry(f"{_place(claim)}: group {claim.group} is being reset: asking again")
        self._seal_earlier(chain, chain, position)
        claim = chain.claim._replace(record=self.record)
        self._chains[claim] = chain
        return self._resumed(chain, position)

    def finds_commit_log(self, claim: PartitionClaim, committed: int | None) -> bool:
        """Return True if the newest log of that partition is below hdfs.path."""
        return self._find(claim, committed)[0].state == self.state

    def move_commit_log(self, claim: PartitionClaim, committed: int | None) -> Resumed | None:
        """Have a commit log of another place go on here, in a new epoch; None if it is here already.

        The old log gets a fence, which names this place, once it is proven that files can be renamed to their names
        here. A move that was interrupted is finished by the next call.
        """
        chain, passed, committed, last = self._find(claim, committed)
        if chain.state == self.state:
            if not self.is_elsewhere(claim) and all(log.state == self.state for log in passed):
                return None
        else:
            old = chain
            chain, last, committed = self._successor(self.state, old, committed)
            text = "%s: the commit log was below %s and goes on below %s, at %s"
            self.log.info(text, _place(claim), old.state, self.state, committed)
        return self._resumed(chain, chain.begin(committed, last))

    def _find(
        self, claim: PartitionClaim, committed: int | None
    ) -> tuple[Chain, list[Chain], int | None, LastRecord]:
        """Return the newest log of that partition, the fenced ones before it, and the offset to resume at.

        The last part is the record before that offset, as far as it is known.
        """
        assert self._hdfs is not None
        kind, _, state = claim.record.partition(":")
        state = state if kind == self._kind else self.state
        try:
            chain, passed = newest(self._hdfs, state, claim, self.log)
        except Refused as e:
            if f"{self.state}/" in str(e):
                raise
            again = repeat(claim, committed or 0)
            text = f"{e}. The commit log of the group is there, as hdfs.path was another one: let it be read"
            raise Refused(f"{text}{again and f', or begin anew: {again}'}") from e
        if claim.record and chain.claim.epoch != claim.epoch and chain.last is not None:
            committed = None  # it belongs to another epoch, and says nothing about this one
        begun = [one.last for one in passed if one.last is not None]  # others were sealed before they began
        if begun:
            committed = max(committed or 0, begun[-1].end)
        for before in passed:
            self._seal_earlier(before, chain, committed)
        return chain, passed, committed, _last_before(committed, passed)

    def _successor(self, state: str, old: Chain, committed: int | None) -> tuple[Chain, LastRecord, int | None]:
        """Fence that log. Return the one that takes its place, the record before its first offset, and that offset.

        Raises Retry if another owner is faster.
        """
        assert self._hdfs is not None
        chain = Chain(self._hdfs, state, old.claim._replace(epoch=next_epoch(old.claim.epoch)), self.log)
        committed = old.go_on(committed)
        chain.prove()  # a seal that names a place where nothing can be written would end the delivery for good
        # It is sealed before the new one begins, which would be the latest one there though another was faster.
        if (end := old.seal(chain)) is not None:
            committed = max(committed or 0, end)
        if old.successor != chain.as_successor():
            text = f"{_place(old.claim)}: another sink of group {old.claim.group} takes it over: asking again"
            raise Retry(text)
        self._seal_earlier(old, chain, committed)
        return chain, _last_before(committed, [old]), committed

    def _resumed(self, chain: Chain, position: int | None) -> Resumed:
        known = chain.last is not None and chain.last.end == position
        last = chain.last.last if chain.last is not None and known else LastRecord()
        return Resumed(chain.claim._replace(record=self.record), position, last)

    def _seal_earlier(self, than: Chain, successor: Chain, position: int | None) -> None:
        """Fence the logs of earlier epochs in the same place. The next one begins at `position`."""
        assert self._hdfs is not None
        for epoch in sorted({0, *epochs(self._hdfs, than.state, than.claim)}):
            if epoch < than.claim.epoch:
                earlier = Chain(self._hdfs, than.state, than.claim._replace(epoch=epoch), self.log)
                earlier.seal(successor, again=position or 0)

    def commit(self, receipt: Receipt) -> None:
        """Make the staged files visible, by one rename that only one owner can win.

        Raises Conflict for an assignment that `resume` has not returned: see `Chain.commit`.
        """
        assert self._hdfs is not None
        chain = self._chains.get(receipt.claim)
        if chain is None:
            raise Conflict(f"{_place(receipt.claim)}: this sink has not resumed the commit log of this epoch")
        manifest: Manifest = msgspec.structs.replace(receipt.staged, last=receipt.last)
        try:
            chain.commit(manifest)
        except Retry as e:
            if isinstance(e, NoDirectory):  # its events are rejected when they are written again
                self._impossible.add(e.path)
            self.metrics.add("ConnectionFailedCount")
            raise
        self.metrics.add("ConnectionClosedCount", len(manifest.files))


def _place(claim: PartitionClaim) -> str:
    return f"{claim.topic}-{claim.partition}"


def _last_before(offset: int | None, logs: Sequence[Chain]) -> LastRecord:
    """Return the last record of the newest of these logs that ends at that offset; unknown if none does."""
    ends = [log.last for log in reversed(logs) if log.last is not None]
    return next((end.last for end in ends if end.end == offset), LastRecord())
