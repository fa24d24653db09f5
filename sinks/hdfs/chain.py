"""The sink's commit record on HDFS: a chain of manifests, each the right to a range of offsets."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import posixpath
import time
import uuid
from collections import deque
from urllib.parse import quote

import msgspec

from plugins import Claim, Conflict, FlafkaError, Retry
from sinks.hdfs.webhdfs import WebHdfs

VERSION = 1
KEEP_MS = 24 * 3600 * 1000
"""Manifests stay so long after their time."""
PASSED_AT_ONCE = 20
"""So many old ones are deleted in one commit: an owner that was away for days finds thousands."""
SWEEP_SECONDS = 600.0
KNOWN_DIRECTORIES = 10_000


class File(msgspec.Struct, frozen=True):
    """One file of a commit: where it was uploaded, where readers find it, its length in bytes."""

    temporary: str
    final: str
    length: int


class Manifest(msgspec.Struct, frozen=True):
    """One commit: records `start` up to, not including, `end` are in these files, or were dropped on purpose."""

    id: str
    """Different for each stage, so that an owner knows its own."""
    topic: str
    partition: int
    start: int
    end: int
    events: int
    files: tuple[File, ...]
    version: int = VERSION


class Chain:
    """The commit record of one claim.

    `<state>/chain/<cluster>/<topic id>/<group>/<epoch>/<partition>/<start offset>` are the manifests; the start of
    each is the end of the one before. A commit is the rename of a manifest to its start offset, which HDFS lets
    succeed once: of two owners at the same offset one wins, and the other gets Conflict. The files of a manifest
    are renamed to their final names only afterwards, by the winner or, after a crash, by who calls `settle` next.
    """

    def __init__(self, hdfs: WebHdfs, state: str, claim: Claim, log: logging.Logger) -> None:
        self._hdfs, self._state, self._claim, self._log = hdfs, state, claim, log
        cluster, _, topic, group, epoch, partition = claim
        keys = (safe_name(cluster), safe_name(topic), safe_name(group), str(epoch), str(partition))
        self.directory = posixpath.join(state, "chain", *keys)
        self.last: Manifest | None = None
        """The newest manifest, as far as known."""
        self.position: int | None = None
        """Where the next commit has to start; None: anywhere."""
        self._settled = False  # whether `last` is known to be in place with all its files
        self._passed: deque[tuple[int, int]] = deque()  # manifests before it: start, time on the NameNode's clock
        self._made: set[str] = set()
        self._swept = float("-inf")

    def settle(self, committed: int | None) -> int | None:
        """Finish what a crash left of the newest commit, and answer where to go on.

        That is where the newest manifest ends; `committed`, the group's position, where there is no manifest, or
        where it is further on: what lies between went out through another sink of the group, or was skipped.
        """
        self._settled = False
        found = sorted((int(s.name), s.changed) for s in self._hdfs.list(self.directory) if s.name.isdecimal())
        self.last, self._passed = None, deque(found[:-1])
        if found:
            start, clock = found[-1]
            self.last = self._read(start)
            self._publish(self.last)
            committed = max(committed or 0, self.last.end)
            self._tidy(clock)
        self.position, self._settled = committed, True
        return committed

    def commit(self, manifest: Manifest) -> None:
        """Make it the next of the chain and its files visible, or raise Conflict. May be repeated after Retry."""
        staged = stage_directory(self._state, self._claim, manifest.start, manifest.id)
        if self.last is None or not self._settled or (self.position or 0) > manifest.start:
            self.settle(self.position)
            if self.last is not None and self.last.id == manifest.id:
                return  # an earlier call did it, and lost the answer
        elif (before := self._hdfs.status(self._path(self.last.start))) is not None:
            self._passed.append((self.last.start, before.changed))
        else:
            # This owner slept for so long that even old manifests are gone, and with them what barred its way.
            raise self._conflict(manifest)
        if (self.position or 0) > manifest.start:
            raise self._conflict(manifest)
        if self.last is not None and self.last.end < manifest.start:
            # Records between them are not in the channel (a transaction's marks), or not for this sink. A manifest
            # covers them too, as a hole in the chain would let two owners commit.
            manifest = msgspec.structs.replace(manifest, start=self.last.end)
        self._make({self.directory, *(posixpath.dirname(file.final) for file in manifest.files)})
        self._settled = False
        self._swap(manifest, staged)
        self.last, self.position = manifest, manifest.end
        self._publish(manifest)
        self._settled = True
        with contextlib.suppress(Retry):
            self._hdfs.delete(staged)
        if self._passed:
            self._tidy(self._passed[-1][1])

    def _make(self, directories: set[str]) -> None:
        if len(self._made) > KNOWN_DIRECTORIES:
            self._made.clear()
        self._hdfs.each(self._hdfs.mkdirs, sorted(directories - self._made))
        self._made |= directories

    def _swap(self, manifest: Manifest, staged: str) -> None:
        """The commit point: compare-and-swap by a rename that does not overwrite."""
        content, target = msgspec.json.encode(manifest), self._path(manifest.start)
        for _ in range(2):
            source = self._hdfs.upload(f"{staged}/manifest-{uuid.uuid4().hex}", content)
            if self._hdfs.rename(source, target):
                return
            present = self._hdfs.read(target)
            if present == content:
                return  # the answer to the first rename was lost
            if present is not None or self._hdfs.status(self.directory) is not None:
                raise self._conflict(manifest)
            self._hdfs.mkdirs(self.directory)
        raise Retry(f"HDFS does not keep the directory {self.directory}")

    def _publish(self, manifest: Manifest) -> None:
        self._hdfs.each(self._move, manifest.files)

    def _move(self, file: File) -> None:
        """Rename a file to its final name; done already is fine."""
        if self._hdfs.rename(file.temporary, file.final):
            return
        final = self._hdfs.status(file.final)
        if self._hdfs.status(file.temporary) is None:
            if final is None or final.length != file.length:
                self._log.warning("%s was delivered, and moved or changed by someone since", file.final)
            return
        if final is not None:
            raise Retry(f"{file.final} is in the way of a file of the same name: move it elsewhere")
        self._hdfs.mkdirs(posixpath.dirname(file.final))
        if not self._hdfs.rename(file.temporary, file.final):
            raise Retry(f"HDFS does not rename {file.temporary} to {file.final}")

    def _tidy(self, clock: int) -> None:
        """Delete what nobody can need any more; `clock` is the NameNode's. What fails is left to the next time."""
        assert self.last is not None
        with contextlib.suppress(Retry):
            for _ in range(min(len(self._passed), PASSED_AT_ONCE)):
                start, changed = self._passed[0]
                if changed >= clock - KEEP_MS:
                    break
                self._hdfs.delete(self._path(start))
                self._passed.popleft()
            if time.monotonic() - self._swept > SWEEP_SECONDS:
                uploads = temporary(self._state, self._claim)
                for found in self._hdfs.list(uploads):
                    number = found.name.partition("-")[0]
                    if number.isdecimal() and int(number) < self.last.end:
                        self._hdfs.delete(posixpath.join(uploads, found.name))
                self._swept = time.monotonic()

    def _read(self, start: int) -> Manifest:
        path = self._path(start)
        content = self._hdfs.read(path)
        if content is None:
            raise Retry(f"{path} has just gone")
        try:
            manifest = msgspec.json.decode(content, type=Manifest)
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            raise FlafkaError(f"{path} is no manifest of this sink, which cannot go on without it: {e}") from e
        if manifest.version > VERSION:
            raise FlafkaError(f"{path} was written by a newer version of this sink: upgrade this agent too")
        return manifest

    def _conflict(self, manifest: Manifest) -> Conflict:
        self._settled = False
        return Conflict(
            f"{manifest.topic}-{manifest.partition}: another owner has committed past offset {manifest.start}; "
            "going on where it left off"
        )

    def _path(self, start: int) -> str:
        return posixpath.join(self.directory, f"{start:020d}")


def claim_hash(claim: Claim) -> str:
    """Tells apart the claims of two groups, epochs, clusters, or topics of the same name."""
    parts = (claim.cluster_id, claim.topic_id, claim.group, str(claim.epoch))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def temporary(state: str, claim: Claim) -> str:
    """The directory of everything that this claim has uploaded and not committed."""
    return posixpath.join(state, "tmp", f"{claim_hash(claim)[:16]}-{claim.partition}")


def stage_directory(state: str, claim: Claim, start: int, id: str) -> str:
    """The directory of what one stage has uploaded; its name tells the start, and so when it may go."""
    return posixpath.join(temporary(state, claim), f"{start:020d}-{id}")


def safe_name(text: str) -> str:
    """A file name for this text and no other: escaped by `=`, as some WebHDFS servers decode `%` twice."""
    name = quote(text, safe="").replace("%", "=")
    if len(name) > 200:
        name = f"{name[:100]}={hashlib.sha256(text.encode()).hexdigest()}"
    return f"={name}" if not name or name.startswith(".") else name
