"""The sink's commit log on HDFS: a chain of manifests, each the right to a range of offsets."""

from __future__ import annotations

import contextlib
import logging
import posixpath
import time
import uuid
from collections import deque

import msgspec

from flafka.plugins import Assignment, Conflict, Retry
from flafka.plugins.partitions import UNKNOWN_RECORD
from flafka.sinks.hdfs.filesystem import FileSystem, Refused
from flafka.sinks.hdfs.layout import epochs_directory, stage_directory, temporary
from flafka.sinks.hdfs.manifest import BEGIN, VERSION, File, Manifest, Successor, manifest_in

KEEP_MS = 24 * 3600 * 1000
"""Manifests stay so long after their time."""
PASSED_AT_ONCE = 20
"""Number of old manifests deleted in one commit: an owner that was away for days finds thousands."""
SWEEP_SECONDS = 600.0
KNOWN_DIRECTORIES = 10_000


class Chain:
    """The commit log of one partition for one group and epoch.

    `<state>/chain/<cluster>/<topic id>/<group>/<epoch>/<partition>/<start offset>` are the manifests; the start of
    each is the end of the one before. A commit is the rename of a manifest to its start offset, which HDFS lets
    succeed once: of two owners at the same offset one wins, and the other gets Conflict. The files of a manifest
    are renamed to their final names only afterwards, by the winner or, after a crash, by who calls `settle` next.

    A chain begins with an empty manifest, named `begin`, at the offset where its epoch begins. It ends with a fence,
    which is committed in the same way: an owner that sleeps while the group is reset cannot commit when it wakes.
    The fence of a chain that never began is named `begin`, so that the chain cannot begin any more.
    """

    def __init__(self, hdfs: FileSystem, state: str, assignment: Assignment, log: logging.Logger) -> None:
        self._hdfs, self.state, self.assignment, self._log = hdfs, state, assignment, log
        epoch, partition = assignment.generation.epoch, assignment.partition
        self.directory = posixpath.join(epochs_directory(state, assignment), str(epoch), str(partition))
        self.last: Manifest | None = None
        """The newest manifest, as far as known."""
        self.next_offset: int | None = None
        """Offset at which the next commit has to start; None: any."""
        self.successor: Successor | None = None
        """The log that has taken the place of this one, as its fence names it."""
        self._settled = False  # whether `last` is known to be in place with all its files
        self._published = ""  # the manifest of which all files were seen there
        self._renamed: set[str] = set()  # final names of files that this object has renamed
        self._vanished: list[str] = []  # files of `last` that were removed before they were renamed
        self._own = ""  # id of the newest manifest that this object has committed
        self._again = ""  # id of the manifest whose records are delivered again, as such files are gone
        self._passed: deque[tuple[int, int]] = deque()  # manifests before it: start, time on the NameNode's clock
        self._made: set[str] = set()
        self._swept = float("-inf")

    def settle(self, committed: int | None) -> int | None:
        """Finish what a crash left of the newest commit, and answer where to go on.

        That is where the newest manifest ends; `committed`, the group's offset, where there is no manifest, or
        where it is further on: what lies between went out through another sink of the group, or was skipped.
        """
        self.look()
        return self.go_on(committed)

    def look(self, *, again: int | None = None) -> None:
        """Read its end, and finish what a crash left of the newest commit.

        Records from offset `again` on are delivered again, after a reset: of these, files that HDFS refuses to rename
        stay where they are.
        """
        self._settled, self._vanished = False, []
        listed = self._hdfs.list(self.directory)
        found = sorted((int(s.name), s.changed) for s in listed if s.name.isdecimal())
        self.last, self.successor, self._passed = None, None, deque(found[:-1])
        if found:
            start, clock = found[-1]
            self.last = self._read(f"{start:020d}")
            self.successor = self.last.successor
            if self.last.id != self._published:
                self._finish(self.last, again)
            self._tidy(clock)
        elif BEGIN in {s.name for s in listed}:
            first = self._read(BEGIN)
            self.last, self.successor = (first, None) if first.successor is None else (None, first.successor)
        self._settled = True

    def go_on(self, committed: int | None) -> int | None:
        """Return the offset to go on at, after `look`."""
        if self.last is not None and self.lacks_files(committed):
            text = "%s: records %d to %d are delivered again: %s was removed from .flafka/tmp before it was renamed"
            text += (
                f"; {more} other files of this commit are there, and their events twice"
                if (more := len(self.last.files) - len(self._vanished))
                else ""
            )
            where, last = self.assignment.topic_partition, self.last
            self._log.warning(text, where, last.start, last.end - 1, self._vanished[0])
            self._again, committed = self.last.id, self.last.start
        elif self.last is not None and self.last.end:
            self._say(committed, self.last.end)
            committed = max(committed or 0, self.last.end)
        self.next_offset = committed
        return committed

    def lacks_files(self, committed: int | None) -> bool:
        """Return True if files of the newest commit are gone that were never renamed.

        The channel still has their records then, as its offset `committed` is before the end of that commit.
        """
        return self.last is not None and bool(self._vanished) and (committed is None or committed < self.last.end)

    @property
    def sealed(self) -> bool:
        """Return True if the log has a fence: nothing can be committed any more."""
        return self.successor is not None

    @property
    def repeats(self) -> bool:
        """Return True if records of the newest commit are delivered again, which needs another epoch."""
        return self.last is not None and self._again == self.last.id

    def _say(self, committed: int | None, end: int) -> None:
        """Log how the group's committed offset differs from the end of the commit log."""
        where, group = self.assignment.topic_partition, self.assignment.group
        if committed in (None, end):
            return
        if committed > end:
            text = "%s: records %d to %d count as delivered by another sink: the position of group %s is after them"
            self._log.warning(text, where, end, committed - 1, group)
        elif not self.assignment.generation.commit_log:
            text = "%s: group %s stands at %d, and the record on HDFS at %d, which counts. To deliver again: "
            text += "agent group reset %s --topic %s:%d --to %d"
            self._log.warning(text, where, group, committed, end, group, where.topic, where.partition, committed)
        else:
            self._log.info("%s goes on at %d by the record on HDFS (the group is at %d)", where, end, committed)

    def begin(self, start: Assignment) -> int | None:
        """Return the offset to go on at; a log without a manifest begins there (None: with the first record)."""
        if self.last is None and not self.sealed:
            first = msgspec.structs.replace(self._empty(start.next_offset or 0), last=start.last_record)
            with contextlib.suppress(Conflict):  # another owner was faster
                self._put(first, BEGIN)
            self.look()
        return self.go_on(start.next_offset)

    def _put(self, manifest: Manifest, name: str) -> None:
        """Commit a manifest without files, under that name."""
        staged = stage_directory(self.state, self.assignment, manifest.start, manifest.id)
        self._swap(manifest, name, staged)
        with contextlib.suppress(Retry):
            self._hdfs.delete(staged)

    def seal(self, successor: Chain, *, again: int | None = None) -> int | None:
        """Let nothing be committed any more, and return the end of the log; None if it never began.

        `again` is as for `look`.
        """
        fence = self._empty(0, successor.as_successor())
        while True:
            self.look(again=again)
            if self.sealed:
                return self.last.end if self.last is not None else None
            with contextlib.suppress(Conflict):
                if self.last is None:
                    self._put(fence, BEGIN)
                else:
                    start = self.last.end
                    end = self.last.start if self.repeats else start
                    last = UNKNOWN_RECORD if self.repeats else self.last.last
                    manifest = msgspec.structs.replace(fence, start=start, end=end, last=last)
                    self._put(manifest, manifest.name)

    def _empty(self, at: int, successor: Successor | None = None) -> Manifest:
        return Manifest(
            uuid.uuid4().hex,
            self.assignment.topic,
            self.assignment.partition,
            at,
            at,
            0,
            (),
            VERSION,
            successor=successor,
        )

    def as_successor(self) -> Successor:
        """Return the place and epoch of this log, as its predecessor names them."""
        return Successor(self.state, self.assignment.generation.epoch)

    def commit(self, manifest: Manifest) -> None:
        """Make it the next of the chain and its files visible. Idempotent: may be repeated after Retry.

        Raises Conflict if another owner was faster, or if the log has not begun. If a log could begin with any
        manifest, one could be committed behind the fence of a log that never began.
        """
        staged = stage_directory(self.state, self.assignment, manifest.start, manifest.id)
        if self.last is None or not self._settled or (self.next_offset or 0) > manifest.start:
            self.settle(self.next_offset)
            if self.repeats:
                raise self._conflict(manifest, "files that were committed are gone")
            if self.last is not None and self.last.id == manifest.id:
                return  # an earlier call did it, and lost the answer
            if self.last is None and not self.sealed:
                raise self._conflict(manifest, self._gone())
        elif (before := self._hdfs.status(self._path(self.last.name))) is not None:
            if not self.last.begins:
                self._passed.append((self.last.start, before.changed))
        else:
            # An operator emptied the directory. Or this owner slept for so long that even old manifests are gone.
            raise self._conflict(manifest, self._gone())
        if self.sealed or (self.next_offset or 0) > manifest.start:
            own = self.last is not None and self.last.id == self._own
            why = "an earlier try of this commit has succeeded; going on where it ends" if own else ""
            raise self._conflict(manifest, why)
        assert self.last is not None
        if self.last.end < manifest.start:
            # Records between them are not in the channel (a transaction's marks), or not for this sink. A manifest
            # covers them too, as a hole in the chain would let two owners commit.
            manifest = msgspec.structs.replace(manifest, start=self.last.end)
        self._try_targets(manifest, staged)
        self._hdfs.each(lambda file: self._hdfs.adopt(file.temporary, posixpath.dirname(file.final)), manifest.files)
        self._settled = False
        self._swap(manifest, manifest.name, staged)
        marked = posixpath.dirname(self.last.mark)
        self.last, self._own = manifest, manifest.id
        self._finish(manifest)
        if self._vanished:
            raise self._conflict(manifest, "files that were committed are gone")
        self.next_offset, self._settled = manifest.end, True
        over = "" if manifest.mark else staged
        for directory in filter(None, (over, marked)):
            with contextlib.suppress(Retry):
                self._hdfs.delete(directory)
        if self._passed:
            self._tidy(self._passed[-1][1])

    def _try_targets(self, manifest: Manifest, staged: str) -> None:
        """Make the directories of the files and try a rename into each new one. Raise Retry where one is refused.

        After the commit it would be too late: a quota, or an encryption zone that begins there, refuses renames for
        good, and the commit would stand in the way of all that follows.
        """
        directories = {posixpath.dirname(file.final) for file in manifest.files}
        new = sorted(directories - self._made)
        self._make({self.directory, *directories})
        try:
            self._hdfs.each(lambda directory: self._try_rename(directory, staged), new)
        except BaseException:
            self._made.difference_update(new)
            raise

    def prove(self) -> None:
        """Raise Retry unless a manifest can be committed here."""
        parent = epochs_directory(self.state, self.assignment)
        staged = stage_directory(self.state, self.assignment, 0, uuid.uuid4().hex)
        self._make({parent})
        try:
            self._try_rename(parent, staged)
        finally:
            with contextlib.suppress(Retry):
                self._hdfs.delete(staged)

    def _try_rename(self, directory: str, staged: str) -> None:
        """Rename an empty file from `staged` to a hidden name in this directory, and delete it."""
        name = f".flafka-{uuid.uuid4().hex}"
        source, target = self._hdfs.upload(posixpath.join(staged, name), b""), posixpath.join(directory, name)
        try:
            if not self._hdfs.rename(source, target) and self._hdfs.status(target) is None:
                raise Retry(f"HDFS does not rename {source} to {target}")
        except Refused as e:
            why = str(e).partition(f"{name}: ")[2] or str(e)
            text = f"no file can be renamed into {directory}: {why}; allow that, or change hdfs.path"
            raise Refused(f"{text}. Nothing was committed", e.kind) from e
        finally:
            with contextlib.suppress(Retry):
                self._hdfs.delete(target)

    def _make(self, directories: set[str]) -> None:
        if len(self._made) > KNOWN_DIRECTORIES:
            self._made.clear()
        self._hdfs.each(self._hdfs.mkdirs, sorted(directories - self._made))
        self._made |= directories

    def _swap(self, manifest: Manifest, name: str, staged: str) -> None:
        """The commit point: compare-and-swap by a rename that does not overwrite."""
        content, target = msgspec.json.encode(manifest), self._path(name)
        self._make({self.directory})
        source = self._hdfs.upload(f"{staged}/manifest-{uuid.uuid4().hex}", content)
        if self._hdfs.rename(source, target):
            return
        present = self._hdfs.read(target)
        if present == content:
            return  # the answer to the rename was lost
        self._made.clear()  # the directory may have been moved or deleted, with what was uploaded
        raise self._conflict(manifest, "" if present is not None else self._gone())

    def _finish(self, manifest: Manifest, again: int | None = None) -> None:
        try:
            self._publish(manifest)
        except Refused as e:
            place, end = self.assignment.topic_partition, manifest.end - 1
            if again is None or again > manifest.start:
                command = repeat(self.assignment, manifest.start)
                text = f"{e}. Records {manifest.start} to {end} of {place} are committed and wait for that"
                raise Refused(f"{text}{command and f'; to deliver them again instead: {command}'}") from e
            text = "%s: files of records %d to %d, committed before the reset, stay in %s: %s"
            self._log.warning(text, place, manifest.start, end, temporary(self.state, self.assignment), e)

    def _publish(self, manifest: Manifest) -> None:
        """Rename the files of a commit, and mark that this was done: who finds none of them has to know it."""
        missing = [name for name in self._hdfs.each(self._move, manifest.files) if name]
        done = not manifest.mark or not missing or self._hdfs.status(manifest.mark) is not None
        self._vanished = [] if done else missing
        for name in missing if done else ():
            self._log.warning("%s was delivered, and moved or deleted by someone since", name)
        if done:
            if manifest.mark and not missing:
                self._hdfs.mkdirs(manifest.mark)
            self._published = manifest.id
            self._renamed.clear()

    def _move(self, file: File) -> str:
        """Rename a file to its final name; done already is fine. Return that name where the file is in no place."""
        if self._hdfs.rename(file.temporary, file.final):
            self._renamed.add(file.final)
            return ""
        final = self._hdfs.status(file.final)
        if self._hdfs.status(file.temporary) is None:
            if final is None and self.last is not None and self._hdfs.status(self._path(self.last.name)) is None:
                raise Retry(f"{self.directory} has just been moved or deleted, with what was to be delivered")
            if final is None and file.final not in self._renamed:
                return file.final
            if final is None or final.length != file.length:
                self._log.warning("%s was delivered, and moved or changed by someone since", file.final)
            return ""
        if final is not None:
            raise Retry(f"{file.final} exists already, and a file of that name is to be delivered: move it elsewhere")
        self._hdfs.mkdirs(posixpath.dirname(file.final))
        if not self._hdfs.rename(file.temporary, file.final):
            raise Retry(f"HDFS does not rename {file.temporary} to {file.final}")
        self._renamed.add(file.final)
        return ""

    def _tidy(self, clock: int) -> None:
        """Delete what nobody can need any more; `clock` is the NameNode's. What fails is left to the next time."""
        assert self.last is not None
        with contextlib.suppress(Retry):
            for _ in range(min(len(self._passed), PASSED_AT_ONCE)):
                start, changed = self._passed[0]
                if changed >= clock - KEEP_MS:
                    break
                self._hdfs.delete(self._path(f"{start:020d}"))
                self._passed.popleft()
            if time.monotonic() - self._swept > SWEEP_SECONDS:
                uploads = temporary(self.state, self.assignment)
                for found in self._hdfs.list(uploads):
                    number, path = found.name.partition("-")[0], posixpath.join(uploads, found.name)
                    marked = path == posixpath.dirname(self.last.mark)
                    if number.isdecimal() and int(number) < self.last.end and not marked:
                        self._hdfs.delete(path)
                self._swept = time.monotonic()

    def _read(self, name: str) -> Manifest:
        path = self._path(name)
        return manifest_in(path, self._hdfs.read(path), self.assignment)

    def _gone(self) -> str:
        return (
            f"someone has moved or deleted the commit log {self.directory}, or files in it; "
            "going on by what is left, and by the group's committed offset"
        )

    def _conflict(self, manifest: Manifest, why: str = "") -> Conflict:
        self._settled = False
        if not why and self.sealed:
            why = (
                f"the commit log {self.directory} was ended, as by agent group reset or by a sink with another "
                "hdfs.path; asking for the one that took its place"
            )
        why = why or f"another owner has committed past offset {manifest.start}; going on where it left off"
        return Conflict(f"{manifest.topic}-{manifest.partition}: {why}")

    def _path(self, name: str) -> str:
        return posixpath.join(self.directory, name)


def repeat(assignment: Assignment, offset: int) -> str:
    """Return the command that has records delivered again from `offset` on; empty for a channel without groups."""
    if assignment.topic_partition.cluster in ("file", "memory"):
        return ""
    return f"agent group reset {assignment.group} --topic {assignment.topic}:{assignment.partition} --to {offset}"


def newest(hdfs: FileSystem, state: str, assignment: Assignment, log: logging.Logger) -> tuple[Chain, list[Chain]]:
    """Return the commit log of that partition, after `look`, and the fenced ones before it.

    It has this epoch or a later one, and lies there or where it was moved to. It has not begun where there is none.
    """
    moved: list[Chain] = []
    while True:
        chain = Chain(hdfs, state, assignment.of(epoch=latest(hdfs, state, assignment)), log)
        chain.look()
        if chain.successor is None:
            return chain, moved
        moved.append(chain)
        state, assignment = chain.successor.state, assignment.of(epoch=chain.successor.epoch)


def latest(hdfs: FileSystem, state: str, assignment: Assignment) -> int:
    """Return the latest epoch in which the log of that partition has begun, at least the given one.

    An empty directory is left by an owner that was killed before it began, or belongs to one that begins now. That
    one will fence the logs of earlier epochs.
    """
    for epoch in epochs(hdfs, state, assignment):
        if epoch <= assignment.generation.epoch:
            break
        if hdfs.list(posixpath.join(epochs_directory(state, assignment), str(epoch), str(assignment.partition))):
            return epoch
    return assignment.generation.epoch


def epochs(hdfs: FileSystem, state: str, assignment: Assignment) -> list[int]:
    """Return the epochs in which the group has logs of any partition, the latest first."""
    return sorted(
        (int(s.name) for s in hdfs.list(epochs_directory(state, assignment)) if s.name.isdecimal()), reverse=True
    )
