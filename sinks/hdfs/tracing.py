"""Lookup of the files that have a record of the channel, in commit logs and by the files' names."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

from flafka.plugins import Assignment, EventId, OffsetRange
from flafka.sinks.hdfs.commitlog import BEGIN, decode_manifest
from flafka.sinks.hdfs.filesystem import FileSystem
from flafka.sinks.hdfs.layout import assignment_hash, epochs_directory, partition_stem, safe_name

TraceResult = dict[str, Any]
"""One location, as `Sink.trace` returns it."""


def trace_record(
    hdfs: FileSystem, states: Iterable[str], assignment: Assignment, id: EventId, bucket: str | None
) -> list[TraceResult]:
    """Return the files that have a record, or else one or more results with the reason why there are none.

    `states` are the directories `.flafka` with commit logs, and the first that leads to a file determines the result.
    Without a file, it is the first whose commit log covers the record, else the first. `bucket` is the prefix of the
    paths of the event's files, None if it is not known. Raises Retry.
    """
    reasons: list[list[TraceResult]] = []
    for state in states:
        results = RecordTracer(hdfs, state, assignment, id).find(bucket)
        if any("path" in result for result in results):
            return results
        reasons.append(results)
    return next((results for results in reasons if any("first" in result for result in results)), reasons[0])


class RecordTracer:
    """Lookup of the files below one root that have one record."""

    def __init__(self, hdfs: FileSystem, state: str, assignment: Assignment, id: EventId) -> None:
        self._hdfs, self._state, self._assignment, self._id = hdfs, state, assignment, id
        self._assignments: dict[str, Assignment] = {}
        """Assignments of the topic's commit logs, by the hash in the names of their files."""

    def find(self, bucket: str | None) -> list[TraceResult]:
        """Return all files with the record, of replays and earlier epochs too, or the reason why there are none.

        `bucket` is an argument of `trace_record`. Raises Retry.
        """
        results = list(self._committed(bucket))
        known = {result.get("path") for result in results}
        if bucket is not None:
            results += [result for result in self._named(bucket) if result["path"] not in known]
        return results or self._not_found(bucket)

    def _committed(self, bucket: str | None) -> Iterator[TraceResult]:
        """Yield results by the commit logs of all groups, whose manifests reach back a day."""
        partition = self._assignment.topic_partition
        topic = posixpath.join(self._state, "chain", safe_name(partition.cluster), safe_name(partition.topic_id))
        for group in self._hdfs.list(topic):
            for epoch in self._hdfs.list(posixpath.join(topic, group.name)):
                if not epoch.name.isdecimal():
                    continue
                assignment = self._assignment.replace(group=_unescaped(group.name), epoch=int(epoch.name))
                self._assignments[assignment_hash(assignment)[:8]] = assignment
                yield from self._in_log(posixpath.join(topic, group.name, epoch.name), assignment, bucket)

    def _in_log(self, directory: str, assignment: Assignment, bucket: str | None) -> Iterator[TraceResult]:
        """Yield the files of the manifest in this log that covers the record; nothing if none does.

        `directory` is that of an epoch. Only files of `bucket` are yielded, or all if it is None or has no file
        there. A file that no longer exists is a result `missing`.
        """
        directory, offset = posixpath.join(directory, str(self._id.partition)), self._id.offset
        starts = [int(entry.name) for entry in self._hdfs.list(directory) if entry.name.isdecimal()]
        start = max((start for start in starts if start <= offset), default=None)
        path = posixpath.join(directory, f"{start or 0:020d}")
        if start is None or (content := self._hdfs.read(path)) is None:
            return
        manifest = decode_manifest(path, content, assignment)
        if manifest.successor is not None or not manifest.start <= offset < manifest.end:
            return
        files = [file.final for file in manifest.files]
        matching = [file for file in files if bucket is not None and _is_in_bucket(file, bucket)]
        about = _about(manifest.offsets, assignment)
        if not files:
            yield {"missing": "its record was committed without a file: no event in it was for this sink", **about}
        for file in matching or files:
            if self._hdfs.status(file) is None:
                yield {"missing": f"{file} was delivered, and was moved or deleted since", **about}
            else:
                yield {"path": file, **about}

    def _named(self, bucket: str) -> Iterator[TraceResult]:
        """Yield files of the bucket whose names have a range with the record. Names outlive the manifests."""
        directory, partition = posixpath.dirname(bucket), self._id.partition
        stem = re.escape(partition_stem(self._assignment.topic, partition))
        delivered_name = re.compile(rf"{stem}-(\d{{10,}})-(\d{{10,}})-([0-9a-f]{{8}})")
        for entry in self._hdfs.list(directory):
            path = posixpath.join(directory, entry.name)
            if entry.is_file and _is_in_bucket(path, bucket) and (match := delivered_name.search(entry.name)):
                first, last = int(match[1]), int(match[2])
                if first <= self._id.offset <= last:
                    yield {"path": path, **_about(OffsetRange(first, last + 1), self._assignments.get(match[3]))}

    def _first_offset(self) -> int | None:
        """Return the first offset in the group's commit logs of this partition, of any epoch; None if there is no
        log."""
        directory, starts = epochs_directory(self._state, self._assignment), []
        for epoch in self._hdfs.list(directory):
            log = posixpath.join(directory, epoch.name, str(self._id.partition))
            for name in {entry.name for entry in self._hdfs.list(log)}:
                if name.isdecimal():
                    starts.append(int(name))
                elif name == BEGIN and (content := self._hdfs.read(path := posixpath.join(log, name))) is not None:
                    manifest = decode_manifest(path, content, self._assignment)
                    starts += [manifest.start] if manifest.successor is None else []
        return min(starts, default=None)

    def _not_found(self, bucket: str | None) -> list[TraceResult]:
        """Return the reason why no file was found, as the only result.

        It is `missing` if the bucket is known and the commit logs begin at or before the record, else `unknown`.
        """
        offset = self._id.offset
        if bucket is not None:
            reason, first = f"no file of {posixpath.dirname(bucket)} has record {offset}", self._first_offset()
            if first is not None and first <= offset:
                return [{"missing": reason}]
            log = "there is no commit log" if first is None else f"the commit log begins with record {first}"
            why = f"{reason}, and {log} below {self._state}: it is below a former hdfs.path, or was skipped"
            return [{"unknown": why}]
        name = f"{partition_stem(self._assignment.topic, self._id.partition)}-<first>-<last>"
        return [
            {
                "unknown": "the commit log reaches back a day, and the event's path is not known here: it is in a "
                f"file whose name has {name} with {offset} between the two"
            }
        ]


def _about(offsets: OffsetRange, assignment: Assignment | None) -> TraceResult:
    """Return the part of a result about a file's range, whose `last` is inclusive, and its group, if known."""
    result: TraceResult = {"first": offsets.start, "last": offsets.end - 1}
    if assignment is not None:
        replay = bool(assignment.replay)
        result |= {"group": assignment.group, "epoch": assignment.generation.epoch, "replay": replay}
    return result


def _is_in_bucket(path: str, bucket: str) -> bool:
    """Return True if a file has the directory of a bucket, and a name that begins with the bucket's prefix."""
    prefix = bucket if bucket.endswith("/") else f"{bucket}."
    return path.startswith(prefix) and posixpath.dirname(path) == posixpath.dirname(bucket)


def _unescaped(name: str) -> str:
    """Return the text whose `safe_name` this is. A name that was shortened gives another text."""
    return unquote(name.replace("=", "%")).removeprefix("%")
