"""Which files have a record of the channel: by the commit record, and by the files' names."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

from flafka.plugins import Assignment, EventId, OffsetRange
from flafka.sinks.hdfs.filesystem import FileSystem
from flafka.sinks.hdfs.layout import assignment_hash, epochs_directory, safe_name, stem
from flafka.sinks.hdfs.manifest import BEGIN, manifest_in

Told = dict[str, Any]


def find_in(
    hdfs: FileSystem, states: Iterable[str], assignment: Assignment, id: EventId, bucket: str | None
) -> list[Told]:
    """Return the files with a record by the first commit log that names some, else the reason why there are none.

    `states` are the directories of commit logs; `bucket` is as for `Tracer.find`.
    """
    reasons: list[list[Told]] = []
    for state in states:
        found = Tracer(hdfs, state, assignment, id).find(bucket)
        if any("path" in told for told in found):
            return found
        reasons.append(found)
    return next((found for found in reasons if any("first" in told for told in found)), reasons[0])


class Tracer:
    """Looks for the files that have one record."""

    def __init__(self, hdfs: FileSystem, state: str, assignment: Assignment, id: EventId) -> None:
        self._hdfs, self._state, self._assignment, self._id = hdfs, state, assignment, id
        self._names: dict[str, Assignment] = {}
        """The assignments of the topic's chains, by what their files have in their names."""

    def find(self, bucket: str | None) -> list[Told]:
        """Every place, of replays and earlier epochs too; `bucket` is how the paths of the event's files begin, None
        where that is not known."""
        found = list(self._committed(bucket))
        known = {told.get("path") for told in found}
        if bucket is not None:
            found += [told for told in self._named(bucket) if told["path"] not in known]
        if not any("path" in told for told in found):
            found += self._nowhere(bucket) if not found else []
        return found

    def _committed(self, bucket: str | None) -> Iterator[Told]:
        """As the chains of manifests have it, which reach back a day and to the latest commit."""
        at = self._assignment.topic_partition
        topic = posixpath.join(self._state, "chain", safe_name(at.cluster), safe_name(at.topic_id))
        for group in self._hdfs.list(topic):
            for epoch in self._hdfs.list(posixpath.join(topic, group.name)):
                if not epoch.name.isdecimal():
                    continue
                assignment = self._assignment.of(group=_text(group.name), epoch=int(epoch.name))
                self._names[assignment_hash(assignment)[:8]] = assignment
                yield from self._in_chain(posixpath.join(topic, group.name, epoch.name), assignment, bucket)

    def _in_chain(self, directory: str, assignment: Assignment, bucket: str | None) -> Iterator[Told]:
        directory, offset = posixpath.join(directory, str(self._id.partition)), self._id.offset
        starts = [int(one.name) for one in self._hdfs.list(directory) if one.name.isdecimal()]
        start = max((one for one in starts if one <= offset), default=None)
        path = posixpath.join(directory, f"{start or 0:020d}")
        if start is None or (content := self._hdfs.read(path)) is None:
            return
        manifest = manifest_in(path, content, assignment)
        if manifest.successor is not None or not manifest.start <= offset < manifest.end:
            return
        files = [file.final for file in manifest.files]
        ours = [file for file in files if bucket is not None and _of(file, bucket)]
        about = _about(manifest.offsets, assignment)
        if not files:
            yield {"missing": "its record was committed without a file: nothing in it was for this sink", **about}
        for file in ours or files:
            if self._hdfs.status(file) is None:
                yield {"missing": f"{file} was delivered, and was moved or deleted since", **about}
            else:
                yield {"path": file, **about}

    def _named(self, bucket: str) -> Iterator[Told]:
        """By the names in the directory: there they are for as long as the files are."""
        directory, partition = posixpath.dirname(bucket), self._id.partition
        common = re.escape(stem(self._assignment.topic, partition))
        ours = re.compile(rf"{common}-(\d{{10,}})-(\d{{10,}})-([0-9a-f]{{8}})")
        for one in self._hdfs.list(directory):
            path = posixpath.join(directory, one.name)
            if one.is_file and _of(path, bucket) and (match := ours.search(one.name)):
                first, last = int(match[1]), int(match[2])
                if first <= self._id.offset <= last:
                    yield {"path": path, **_about(OffsetRange(first, last + 1), self._names.get(match[3]))}

    def _first(self) -> int | None:
        """Return the first record of the group's oldest commit log here; None where there is none."""
        directory, starts = epochs_directory(self._state, self._assignment), []
        for epoch in self._hdfs.list(directory):
            log = posixpath.join(directory, epoch.name, str(self._id.partition))
            for name in {one.name for one in self._hdfs.list(log)}:
                if name.isdecimal():
                    starts.append(int(name))
                elif name == BEGIN and (content := self._hdfs.read(path := posixpath.join(log, name))) is not None:
                    manifest = manifest_in(path, content, self._assignment)
                    starts += [manifest.start] if manifest.successor is None else []
        return min(starts, default=None)

    def _nowhere(self, bucket: str | None) -> list[Told]:
        offset = self._id.offset
        if bucket is not None:
            nowhere, first = f"no file of {posixpath.dirname(bucket)} has record {offset}", self._first()
            if first is not None and first <= offset:
                return [{"missing": nowhere}]
            log = "there is no commit log" if first is None else f"the commit log begins with record {first}"
            why = f"{nowhere}, and {log} below {self._state}: it is below a former hdfs.path, or was skipped"
            return [{"unknown": why}]
        name = f"{stem(self._assignment.topic, self._id.partition)}-<first>-<last>"
        return [
            {
                "unknown": "the commit record reaches back a day, and the event's path is not known here: it is in a "
                f"file whose name has {name} with {offset} between the two"
            }
        ]


def _about(offsets: OffsetRange, assignment: Assignment | None) -> Told:
    told: Told = {"first": offsets.start, "last": offsets.end - 1}
    if assignment is not None:
        replay = bool(assignment.replay)
        told |= {"group": assignment.group, "epoch": assignment.generation.epoch, "replay": replay}
    return told


def _of(path: str, bucket: str) -> bool:
    begin = bucket if bucket.endswith("/") else f"{bucket}."
    return path.startswith(begin) and posixpath.dirname(path) == posixpath.dirname(bucket)


def _text(name: str) -> str:
    """What `safe_name` was given, where that was not too long."""
    return unquote(name.replace("=", "%")).removeprefix("%")
