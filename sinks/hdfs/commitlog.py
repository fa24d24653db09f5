"""Commit log of the HDFS sink: manifests of commits, where each starts at the offset at which the one before ends."""

from __future__ import annotations

import contextlib
import logging
import posixpath
import time
import uuid
from collections import deque

import msgspec

from flafka.plugins import Assignment, Conflict, FlafkaError, LastRecord, OffsetRange, Retry
from flafka.plugins.partitions import UNKNOWN_RECORD
from flafka.sinks.hdfs.filesystem import FileSystem, Refused
from flafka.sinks.hdfs.layout import epochs_directory, stage_directory, upload_directory
from flafka.sinks.hdfs.trial import try_rename

VERSION = 3
"""Version of the manifests that are written and read."""
BEGIN = "begin"
"""Name of the first manifest of a commit log: an empty one, or the fence of a log that never began."""
MANIFEST_RETENTION_MS = 24 * 3600 * 1000
"""Age at which a manifest is deleted, unless it is the newest."""
MANIFESTS_DELETED_PER_COMMIT = 20
"""Limit for one commit, as an owner that resumes after days finds thousands of old manifests."""
UPLOAD_CLEANUP_SECONDS = 600.0
"""Interval at which uploads of stages that were never committed are deleted."""
KNOWN_DIRECTORIES = 10_000
"""Number of directories whose existence is remembered."""


class File(msgspec.Struct, frozen=True):
    """One file of a commit."""

    temporary: str
    """Path to which it was uploaded."""
    final: str
    """Path at which readers find it."""
    length: int
    """Length in bytes."""


class Manifest(msgspec.Struct, frozen=True):
    """One commit: records `start` up to, not including, `end` are in its files, or were dropped on purpose."""

    id: str
    """Unique id of the stage, by which an owner recognizes its own commit."""
    topic: str
    partition: int
    start: int
    end: int
    events: int
    files: tuple[File, ...]
    version: int = 1
    last: LastRecord = LastRecord()
    """Last record of the range: `Receipt.last_record`."""
    successor: Successor | None = None
    """Next log. Only a fence has one, and nothing can be committed behind a fence."""
    mark: str = ""
    """Directory that is created once all files have their final names; empty if there are no files."""

    @property
    def name(self) -> str:
        """File name of this manifest, unique in its log: `begin` if it begins the log, else the start offset in 20
        digits."""
        return BEGIN if self.begins_log else f"{self.start:020d}"

    @property
    def offsets(self) -> OffsetRange:
        """Offsets of the manifest's records. Raises ValueError for a fence that takes back the commit before it."""
        return OffsetRange(self.start, self.end)

    @property
    def begins_log(self) -> bool:
        """True for the manifest that begins a log: it covers no records, and is no fence."""
        return self.start == self.end and self.successor is None


class Successor(msgspec.Struct, frozen=True):
    """Next log, as the fence of the log before names it."""

    state: str
    """Directory `.flafka` in which the next log is."""
    epoch: int
    """Epoch of the next log."""


class HdfsCommitLog:
    """Commit log of one partition for one group and epoch.

    `<state>/chain/<cluster>/<topic id>/<group>/<epoch>/<partition>/<start offset>` are the manifests; the start of
    each is the end of the one before. A commit is the rename of a manifest to its start offset, which HDFS lets
    succeed once: of two owners at the same offset one wins, and the other gets Conflict. The files of a manifest
    are renamed to their final names only afterwards, by the winner or, after a crash, by the next `recover`.

    A log begins with an empty manifest, named `begin`, at the offset where its epoch begins. It ends with a fence,
    which is committed in the same way: an owner that sleeps while the group is reset cannot commit when it wakes.
    The fence of a log that never began is named `begin`, so that the log cannot begin any more.
    """

    def __init__(self, hdfs: FileSystem, state: str, assignment: Assignment, log: logging.Logger) -> None:
        self._hdfs, self.state, self.assignment, self._log = hdfs, state, assignment, log
        epoch, partition = assignment.generation.epoch, assignment.partition
        self.directory = posixpath.join(epochs_directory(state, assignment), str(epoch), str(partition))
        self.last: Manifest | None = None
        """Newest manifest, as far as known."""
        self.next_offset: int | None = None
        """Lowest offset at which the next commit may start; None: any."""
        self.successor: Successor | None = None
        """Next log, as the fence of this one names it; None without a fence."""
        self._recovered = False  # whether `last` and all its files are known to have their final names
        self._published = ""  # id of the manifest whose files were all seen under their final names
        self._renamed: set[str] = set()  # final names of files that this object has renamed
        self._vanished: list[str] = []  # files of `last` that were removed before they were renamed
        self._own = ""  # id of the newest manifest that this object has committed
        self._redelivered = ""  # id of the manifest whose records are redelivered, as its files have vanished
        self._obsolete: deque[tuple[int, int]] = deque()  # older manifests: start, time on the NameNode's clock
        self._known_directories: set[str] = set()
        self._cleaned_up = float("-inf")  # time of the last deletion of uploads, on the monotonic clock

    def recover(self, *, redelivered_from: int | None = None) -> None:
        """Read the end of the log, and finish the renames of the newest commit if a crash has interrupted them.

        Sets `last` and `successor`. Raises Retry, and FlafkaError for a damaged manifest. HDFS may refuse to rename a
        file: this raises Refused, unless a reset redelivers all records of the commit. `redelivered_from` is the
        offset at which such a redelivery begins, and None without a reset. With a redelivery, a warning is logged,
        and the file stays where it is.
        """
        self._recovered, self._vanished = False, []
        listed = self._hdfs.list(self.directory)
        manifests = sorted((int(s.name), s.changed) for s in listed if s.name.isdecimal())
        self.last, self.successor, self._obsolete = None, None, deque(manifests[:-1])
        if manifests:
            start, clock = manifests[-1]
            self.last = self._read_manifest(f"{start:020d}")
            self.successor = self.last.successor
            if self.last.id != self._published:
                self._finish_commit(self.last, redelivered_from)
            self._delete_obsolete(clock)
        elif BEGIN in {s.name for s in listed}:
            first = self._read_manifest(BEGIN)
            self.last, self.successor = (first, None) if first.successor is None else (None, first.successor)
        self._recovered = True

    def reconcile(self, committed: int | None) -> int | None:
        """Return the offset to resume at, from the log as last recovered and the group's committed offset.

        The greater one counts: records between the two were delivered by another sink of the group, or skipped. If
        files of the newest commit have vanished, and the channel still has their records, this is the start of that
        commit. None if `committed` is None and the log has no end after 0. The result is also stored in
        `next_offset`, and a difference between log and group is logged.
        """
        if self.last is not None and self.has_vanished_files(committed):
            text = "%s: records %d to %d are delivered again: %s was removed from .flafka/tmp before it was renamed"
            text += (
                f"; {published} other files of this commit exist, and their events are duplicated"
                if (published := len(self.last.files) - len(self._vanished))
                else ""
            )
            partition, last = self.assignment.topic_partition, self.last
            self._log.warning(text, partition, last.start, last.end - 1, self._vanished[0])
            self._redelivered, committed = self.last.id, self.last.start
        elif self.last is not None and self.last.end:
            self._log_divergence(committed, self.last.end)
            committed = max(committed or 0, self.last.end)
        self.next_offset = committed
        return committed

    def has_vanished_files(self, committed: int | None) -> bool:
        """Return True if files of the newest commit were removed before they were renamed, and can be redelivered.

        The channel still has their records if its offset `committed` is before the end of that commit.
        """
        return self.last is not None and bool(self._vanished) and (committed is None or committed < self.last.end)

    @property
    def is_fenced(self) -> bool:
        """True if the log, as last recovered, ends with a fence, so that nothing can be committed to it any more."""
        return self.successor is not None

    @property
    def needs_new_epoch(self) -> bool:
        """True if records of the newest commit are redelivered, which only a log of another epoch can commit."""
        return self.last is not None and self._redelivered == self.last.id

    def _log_divergence(self, committed: int | None, end: int) -> None:
        """Log how the group's committed offset differs from `end`, the end of the commit log.

        A later committed offset is a warning. So is an earlier one if the group has never named a commit log. Nothing
        is logged if the two are equal, or if `committed` is None.
        """
        partition, group = self.assignment.topic_partition, self.assignment.group
        if committed in (None, end):
            return
        if committed > end:
            text = "%s: records %d to %d count as delivered by another sink: the committed offset of group %s is "
            text += "after them"
            self._log.warning(text, partition, end, committed - 1, group)
        elif not self.assignment.generation.commit_log:
            text = (
                "%s: the committed offset of group %s is %d, and the commit log on HDFS ends at %d, where the sink "
            )
            text += "resumes. To deliver again: agent group reset %s --topic %s:%d --to %d"
            topic, number = partition.topic, partition.partition
            self._log.warning(text, partition, group, committed, end, group, topic, number, committed)
        else:
            text = "%s resumes at %d, where the commit log on HDFS ends (committed offset of the group: %d)"
            self._log.info(text, partition, end, committed)

    def begin(self, start: Assignment) -> int | None:
        """Begin the log if it has neither a manifest nor a fence, and return the offset to resume at.

        The first manifest is at `start.next_offset`, or at 0 if that is None. If another owner begins the log first,
        the manifest of that owner counts. The result is that of `reconcile`. Requires a call of `recover` before it.
        Raises Retry, and FlafkaError for a damaged manifest.
        """
        if self.last is None and not self.is_fenced:
            first = msgspec.structs.replace(self._empty_manifest(start.next_offset or 0), last=start.last_record)
            with contextlib.suppress(Conflict):  # another owner was faster
                self._commit_empty(first, BEGIN)
            self.recover()
        return self.reconcile(start.next_offset)

    def _commit_empty(self, manifest: Manifest, name: str) -> None:
        """Commit a manifest without files under that name, and delete its upload. Raises Conflict if the name is
        taken."""
        staged = stage_directory(self.state, self.assignment, manifest.start, manifest.id)
        self._compare_and_swap(manifest, name, staged)
        with contextlib.suppress(Retry):
            self._hdfs.delete(staged)

    def fence(self, successor: HdfsCommitLog, *, redelivered_from: int | None = None) -> int | None:
        """End this log with a fence that names `successor`, unless another fence ends it; return its end offset.

        Return None if the log never began. Nothing can be committed here afterwards. The fence may name another log
        than `successor`, if another owner was faster. `redelivered_from` is an argument of `recover`. Raises as
        `recover` does: Retry or FlafkaError.
        """
        fence = self._empty_manifest(0, successor.as_successor())
        while True:
            self.recover(redelivered_from=redelivered_from)
            if self.is_fenced:
                return self.last.end if self.last is not None else None
            with contextlib.suppress(Conflict):
                if self.last is None:
                    self._commit_empty(fence, BEGIN)
                else:
                    start = self.last.end
                    end = self.last.start if self.needs_new_epoch else start
                    last = UNKNOWN_RECORD if self.needs_new_epoch else self.last.last
                    manifest = msgspec.structs.replace(fence, start=start, end=end, last=last)
                    self._commit_empty(manifest, manifest.name)

    def _empty_manifest(self, offset: int, successor: Successor | None = None) -> Manifest:
        """Return a manifest at `offset` without records and files; a fence if `successor` is given."""
        return Manifest(
            uuid.uuid4().hex,
            self.assignment.topic,
            self.assignment.partition,
            offset,
            offset,
            0,
            (),
            VERSION,
            successor=successor,
        )

    def as_successor(self) -> Successor:
        """Return the directory and epoch of this log, for the fence of the log before it."""
        return Successor(self.state, self.assignment.generation.epoch)

    def commit(self, manifest: Manifest) -> None:
        """Append a manifest and rename its files to their final names. Idempotent: may be repeated after Retry.

        Raises Conflict if another owner has committed past `manifest.start`. Also raises Conflict if the log is
        fenced, has not begun or was deleted, or if a file has vanished before its rename. If a log could begin with
        any manifest, one could be committed behind the fence of a log that never began. Raises Refused, before the
        commit, if a final directory cannot be used, and Retry for any other failure.
        """
        staged = stage_directory(self.state, self.assignment, manifest.start, manifest.id)
        if self.last is None or not self._recovered or (self.next_offset or 0) > manifest.start:
            self.recover()
            self.reconcile(self.next_offset)
            if self.needs_new_epoch:
                raise self._conflict(manifest, "files that were committed are gone")
            if self.last is not None and self.last.id == manifest.id:
                return  # an earlier call has committed it, and its answer was lost
            if self.last is None and not self.is_fenced:
                raise self._conflict(manifest, self._missing_log())
        elif (before := self._hdfs.status(self._manifest_path(self.last.name))) is not None:
            if not self.last.begins_log:
                self._obsolete.append((self.last.start, before.changed))
        else:
            # An operator emptied the directory. Or this owner slept for so long that even old manifests are gone.
            raise self._conflict(manifest, self._missing_log())
        if self.is_fenced or (self.next_offset or 0) > manifest.start:
            own = self.last is not None and self.last.id == self._own
            why = "an earlier try of this commit has succeeded; resuming where it ends" if own else ""
            raise self._conflict(manifest, why)
        assert self.last is not None
        if self.last.end < manifest.start:
            # Records between them are not in the channel (a transaction's marks), or not for this sink. A manifest
            # covers them too, as two owners could commit if there were a gap between manifests.
            manifest = msgspec.structs.replace(manifest, start=self.last.end)
        self._check_targets(manifest, staged)
        self._hdfs.each(lambda file: self._hdfs.adopt(file.temporary, posixpath.dirname(file.final)), manifest.files)
        self._recovered = False
        self._compare_and_swap(manifest, manifest.name, staged)
        marked = posixpath.dirname(self.last.mark)
        self.last, self._own = manifest, manifest.id
        self._finish_commit(manifest)
        if self._vanished:
            raise self._conflict(manifest, "files that were committed are gone")
        self.next_offset, self._recovered = manifest.end, True
        without_mark = "" if manifest.mark else staged
        for directory in filter(None, (without_mark, marked)):
            with contextlib.suppress(Retry):
                self._hdfs.delete(directory)
        if self._obsolete:
            self._delete_obsolete(self._obsolete[-1][1])

    def _check_targets(self, manifest: Manifest, staged: str) -> None:
        """Create the directories of the files, and try a rename from `staged` into each new one.

        A quota, or an encryption zone that begins at such a directory, refuses renames for good. After the commit,
        the refusal would block all later commits. Raises Refused if HDFS refuses a rename, NoDirectory for an
        impossible directory, and Retry for any other failure.
        """
        directories = {posixpath.dirname(file.final) for file in manifest.files}
        new = sorted(directories - self._known_directories)
        self._create_directories({self.directory, *directories})
        try:
            self._hdfs.each(lambda directory: try_rename(self._hdfs, directory, staged), new)
        except BaseException as e:
            self._known_directories.difference_update(new)
            if isinstance(e, Refused):
                # The text of HDFS comes last, as it may end with a command.
                raise Refused(f"nothing was committed: {e}", e.kind) from e
            raise

    def check_writable(self) -> None:
        """Raise Retry unless a file can be renamed into the directory of this group's logs, which is created if
        missing."""
        parent = epochs_directory(self.state, self.assignment)
        staged = stage_directory(self.state, self.assignment, 0, uuid.uuid4().hex)
        self._create_directories({parent})
        try:
            try_rename(self._hdfs, parent, staged)
        finally:
            with contextlib.suppress(Retry):
                self._hdfs.delete(staged)

    def _create_directories(self, directories: set[str]) -> None:
        """Create the directories that are not among the known ones, and remember them. Raises Retry."""
        if len(self._known_directories) > KNOWN_DIRECTORIES:
            self._known_directories.clear()
        self._hdfs.each(self._hdfs.mkdirs, sorted(directories - self._known_directories))
        self._known_directories |= directories

    def _compare_and_swap(self, manifest: Manifest, name: str, staged: str) -> None:
        """Upload a manifest below `staged`, and commit it by a rename to `name` that does not overwrite.

        Raises Conflict if another manifest has that name, or if the directory of the log was removed. A manifest of
        equal content is this one: the answer to an earlier rename was lost.
        """
        content, target = msgspec.json.encode(manifest), self._manifest_path(name)
        self._create_directories({self.directory})
        source = self._hdfs.upload(f"{staged}/manifest-{uuid.uuid4().hex}", content)
        if self._hdfs.rename(source, target):
            return
        present = self._hdfs.read(target)
        if present == content:
            return  # the answer to the rename was lost
        self._known_directories.clear()  # someone may have deleted directories, with the uploads
        raise self._conflict(manifest, "" if present is not None else self._missing_log())

    def _finish_commit(self, manifest: Manifest, redelivered_from: int | None = None) -> None:
        """Rename the files of a committed manifest to their final names.

        If HDFS refuses a rename, this raises Refused, with the command that redelivers the records. It logs a warning
        instead if `redelivered_from` is at or before the manifest's start, as all the records are redelivered anyway.
        """
        try:
            self._publish_files(manifest)
        except Refused as e:
            partition, end = self.assignment.topic_partition, manifest.end - 1
            if redelivered_from is None or redelivered_from > manifest.start:
                command = reset_command(self.assignment, manifest.start)
                text = f"records {manifest.start} to {end} of {partition} are committed, and their renames wait"
                raise Refused(f"{text}{command and f' (to deliver them again instead: {command})'}: {e}") from e
            text = "%s: files of records %d to %d, committed before the reset, stay in %s: %s"
            uploads = upload_directory(self.state, self.assignment)
            self._log.warning(text, partition, manifest.start, end, uploads, e)

    def _publish_files(self, manifest: Manifest) -> None:
        """Rename the files of a commit, and create its mark. Raises Retry if a file cannot be renamed.

        Files that exist under neither of their names are logged if the mark shows that they were renamed, and removed
        by someone since. Without the mark, their final names are stored in `_vanished`.
        """
        missing = [name for name in self._hdfs.each(self._publish_file, manifest.files) if name]
        done = not manifest.mark or not missing or self._hdfs.status(manifest.mark) is not None
        self._vanished = [] if done else missing
        for name in missing if done else ():
            self._log.warning("%s was delivered, and moved or deleted by someone since", name)
        if done:
            if manifest.mark and not missing:
                self._hdfs.mkdirs(manifest.mark)
            self._published = manifest.id
            self._renamed.clear()

    def _publish_file(self, file: File) -> str:
        """Rename a file to its final name. Idempotent. Return that name if the file has vanished, else an empty text.

        A file has vanished if it exists under neither name, and this object has not renamed it. Raises Retry if a
        foreign file has the final name, if the log itself was deleted, or if HDFS does not rename.
        """
        if self._hdfs.rename(file.temporary, file.final):
            self._renamed.add(file.final)
            return ""
        final = self._hdfs.status(file.final)
        if self._hdfs.status(file.temporary) is None:
            if (
                final is None
                and self.last is not None
                and self._hdfs.status(self._manifest_path(self.last.name)) is None
            ):
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

    def _delete_obsolete(self, clock: int) -> None:
        """Delete old manifests and abandoned uploads, best-effort; `clock` is the NameNode's, in milliseconds.

        One call deletes at most `MANIFESTS_DELETED_PER_COMMIT` manifests, each older than `MANIFEST_RETENTION_MS`.
        Uploads of stages before the end of the log are deleted once in `UPLOAD_CLEANUP_SECONDS`.
        """
        assert self.last is not None
        with contextlib.suppress(Retry):
            for _ in range(min(len(self._obsolete), MANIFESTS_DELETED_PER_COMMIT)):
                start, changed = self._obsolete[0]
                if changed >= clock - MANIFEST_RETENTION_MS:
                    break
                self._hdfs.delete(self._manifest_path(f"{start:020d}"))
                self._obsolete.popleft()
            if time.monotonic() - self._cleaned_up > UPLOAD_CLEANUP_SECONDS:
                uploads = upload_directory(self.state, self.assignment)
                for stage in self._hdfs.list(uploads):
                    number, path = stage.name.partition("-")[0], posixpath.join(uploads, stage.name)
                    marked = path == posixpath.dirname(self.last.mark)
                    if number.isdecimal() and int(number) < self.last.end and not marked:
                        self._hdfs.delete(path)
                self._cleaned_up = time.monotonic()

    def _read_manifest(self, name: str) -> Manifest:
        """Return the manifest of that file name. Raises Retry or FlafkaError, as `decode_manifest`."""
        path = self._manifest_path(name)
        return decode_manifest(path, self._hdfs.read(path), self.assignment)

    def _missing_log(self) -> str:
        return (
            f"someone has moved or deleted the commit log {self.directory}, or files in it; "
            "resuming by what is left of it, and by the group's committed offset"
        )

    def _conflict(self, manifest: Manifest, why: str = "") -> Conflict:
        """Return the Conflict to raise for a manifest, and have the next `commit` call `recover` first.

        `why` is the end of its text. If empty, the reason is the fence, or else another owner's commit.
        """
        self._recovered = False
        if not why and self.is_fenced:
            why = (
                f"the commit log {self.directory} is fenced, as by agent group reset or by a sink with another "
                "hdfs.path; resuming in the next log"
            )
        why = why or f"another owner has committed past offset {manifest.start}; resuming where it ended"
        return Conflict(f"{manifest.topic}-{manifest.partition}: {why}")

    def _manifest_path(self, name: str) -> str:
        return posixpath.join(self.directory, name)


def decode_manifest(path: str, content: bytes | None, assignment: Assignment) -> Manifest:
    """Return the manifest of a file of a group's commit log; `path` is for the error, `assignment` for its remedy.

    Raises Retry if the content is None, as the file is gone, and FlafkaError if it is damaged or of another version.
    """
    if content is None:
        raise Retry(f"{path} has disappeared")
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise FlafkaError(f"{path} is no manifest of this sink, which cannot resume without it: {e}") from e
    if manifest.version != VERSION:
        raise FlafkaError(
            f"{path} is a manifest of version {manifest.version}, and this sink reads version {VERSION}: "
            "deliver what the channel holds with the agent that wrote it (agent start --drain), remove the directory "
            f"{posixpath.dirname(path)}, and run agent group reset {assignment.group}"
        )
    return manifest


def reset_command(assignment: Assignment, offset: int) -> str:
    """Return the command that redelivers records from `offset` on; empty for a channel without groups."""
    if assignment.topic_partition.cluster in ("file", "memory"):
        return ""
    return f"agent group reset {assignment.group} --topic {assignment.topic}:{assignment.partition} --to {offset}"


def find_newest_log(
    hdfs: FileSystem, state: str, assignment: Assignment, log: logging.Logger
) -> tuple[HdfsCommitLog, list[HdfsCommitLog]]:
    """Return the newest commit log of a partition, and the fenced ones before it, oldest first.

    All of them are recovered; the newest log may not have begun yet. The search begins in the directory `state`, at
    the latest epoch that has begun. Fences are followed, to later epochs and to other directories. Raises Retry, and
    FlafkaError for a damaged manifest.
    """
    fenced: list[HdfsCommitLog] = []
    while True:
        latest = assignment.replace(epoch=find_latest_epoch(hdfs, state, assignment))
        commit_log = HdfsCommitLog(hdfs, state, latest, log)
        commit_log.recover()
        if commit_log.successor is None:
            return commit_log, fenced
        fenced.append(commit_log)
        state, assignment = commit_log.successor.state, assignment.replace(epoch=commit_log.successor.epoch)


def find_latest_epoch(hdfs: FileSystem, state: str, assignment: Assignment) -> int:
    """Return the latest epoch in which a log of that partition has begun, at least the epoch of the assignment.

    An empty directory does not count: its owner was killed before the log began, or is about to begin it. That owner
    fences the logs of earlier epochs. Raises Retry.
    """
    for epoch in list_epochs(hdfs, state, assignment):
        if epoch <= assignment.generation.epoch:
            break
        if hdfs.list(posixpath.join(epochs_directory(state, assignment), str(epoch), str(assignment.partition))):
            return epoch
    return assignment.generation.epoch


def list_epochs(hdfs: FileSystem, state: str, assignment: Assignment) -> list[int]:
    """Return the epochs in which the group has logs of any partition of the topic, the latest first. Raises Retry."""
    return sorted(
        (int(s.name) for s in hdfs.list(epochs_directory(state, assignment)) if s.name.isdecimal()), reverse=True
    )
