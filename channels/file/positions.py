"""The checkpoint of a file channel: committed offsets of its sinks, and the segments that it needs.

One small file in checkpointDir has it, and is replaced as a whole.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shlex
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flafka.plugins import Assignment, FlafkaError, Generation, TopicPartition
from flafka.plugins.partitions import next_epoch
from flafka.plugins.shared.disk import replace

NAME = "flafka.positions"
VERSION = 1
"""Version of the checkpoint. A checkpoint without a number is of version 1; a later one has a field `version`."""
RUNS = 100
"""Runs that are remembered after their segments were deleted, for `agent trace`."""


@dataclass
class Checkpoint:
    """Content of the file."""

    positions: dict[int, Assignment] = field(default_factory=dict)
    """Committed offsets by partition."""
    files: dict[str, int | None] = field(default_factory=dict)
    """By path: segments that were needed when this was written. After a clean stop, with their undelivered events."""
    next: int = 0
    """Number of the next entry after a clean stop; 0 while the channel is open, or was killed."""
    accepted: dict[str, int | None] = field(default_factory=dict)
    """By path: missing segments whose loss an operator has accepted by `agent group reset`."""
    runs: list[str] = field(default_factory=list)
    """Ids of the latest runs, the oldest first."""
    renamed: dict[str, str] = field(default_factory=dict)
    """By run: the id that its events have instead, since another copy of the process has used the first one."""
    epoch: int = 0
    """Epoch of partitions that have no committed offset: the latest `agent group reset`."""
    inode: int = 0
    """Inode of the file `flafka.channel` in the first data directory. A copy of the directory has another one."""
    written: bool = False
    """True if a file was read."""

    def topic_id(self, channel: str, run: str) -> str:
        """Return `TopicPartition.topic_id` of a run's events, given the id of the channel."""
        return f"{channel}.{self.renamed.get(run, run)}"

    def missing(self, present: Collection[str]) -> dict[str, int | None]:
        """Return the `files` that have undelivered events and whose names are not present."""
        return {path: events for path, events in self.files.items() if events != 0 and Path(path).name not in present}


def elsewhere(missing: Mapping[str, int | None]) -> str:
    """Return an error about missing segments that exist outside of dataDirs; empty if none does."""
    present = [path for path in missing if os.path.exists(path)]  # noqa: PTH110 - Path.exists raises PermissionError
    if not present:
        return ""
    paths, exist = present[0], "exists"
    if len(present) > 1:
        paths, exist = f"{paths} and {len(present) - 1} more", "exist"
    directories = ",".join(sorted({str(Path(path).parent) for path in present}))
    return (
        f"{paths} {exist}, but not in dataDirs, with events that were stored and not delivered: name {directories} "
        "in dataDirs too (for agent group: --data-dirs), or move the files into dataDirs"
    )


def refusal(missing: Mapping[str, int | None], name: str, checkpoints: Path, directories: Sequence[Path]) -> str:
    """Return why the channel of that name cannot be opened without these segments, and the ways out."""
    if present := elsewhere(missing):
        return present
    here = {directory.absolute() for directory in directories}
    several = len(missing) > 1
    known = [events for events in missing.values() if events is not None]
    held = f"{sum(known):,} events" if len(known) == len(missing) else "events"
    shown = [path if Path(path).parent in here else Path(path).name for path in missing]
    paths = ", ".join(shown[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    be, it = ("are", "them") if several else ("is", "it")
    return (
        f"{paths} {be} missing, with {held} that were stored and not delivered: bring {it} back, as by mounting the "
        f"disk of dataDirs; to accept the loss: {command(name, checkpoints, directories)}"
    )


def command(name: str, checkpoints: Path, directories: Sequence[Path]) -> str:
    """Return the command that resolves a refusal of that channel."""
    data_dirs = ",".join(str(directory.absolute()) for directory in directories)
    return (
        f"agent group reset {shlex.quote(name)} --checkpoint-dir {shlex.quote(str(checkpoints.absolute()))} "
        f"--data-dirs {shlex.quote(data_dirs)}"
    )


def read(path: Path, log: logging.Logger) -> Checkpoint:
    """Return the checkpoint; an empty one if there is no file, or a damaged one, which is logged.

    Raises OSError, and FlafkaError for a checkpoint of another version.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Checkpoint()
    found = _unsealed(content)
    if found is None:
        log.error("%s is damaged: all that the files of events still hold is delivered again", path)
        return Checkpoint()
    if (version := found.pop("version", VERSION)) != VERSION:
        raise of_version(path, "checkpoint", version)
    return Checkpoint(_positions(found.pop("positions")), **found, written=True)


def of_version(path: Path, what: str, version: object) -> FlafkaError:
    """Return the error for a file of another version, with the way out."""
    return FlafkaError(
        f"{path} is a {what} of version {version}, and this channel reads version {VERSION}: deliver what the "
        "channel holds with the agent that wrote it (agent start --drain), then remove its checkpointDir and dataDirs"
    )


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Return when the checkpoint is on the disk. Raises OSError."""
    content = {
        one.name: getattr(checkpoint, one.name) for one in dataclasses.fields(checkpoint) if one.name != "written"
    }
    content["positions"] = [_line(one) for one in checkpoint.positions.values()]
    text = json.dumps(content).encode()
    os.close(replace(path, b"%08x %s\n" % (zlib.crc32(text), text)))


def reset(path: Path, found: Checkpoint, missing: Mapping[str, int | None], *, earliest: bool) -> None:
    """Write the checkpoint with a new epoch for every partition, and without the missing segments. Raises OSError.

    A partition leaves the commit log that its sink kept: the sink begins a new one where its configuration says. With
    `earliest`, all that the files hold is delivered again.
    """
    found.accepted |= missing
    found.files = {noted: events for noted, events in found.files.items() if noted not in missing}
    found.epoch = next_epoch(max([found.epoch, *(one.generation.epoch for one in found.positions.values())]))
    found.positions = {
        partition: one.of(epoch=found.epoch, commit_log="").at(0 if earliest else one.next_offset)
        for partition, one in found.positions.items()
    }
    write(path, found)


def _line(committed: Assignment) -> dict[str, Any]:
    at, generation = committed.topic_partition, committed.generation
    return {
        "cluster_id": at.cluster,
        "topic": at.topic,
        "topic_id": at.topic_id,
        "group": committed.group,
        "epoch": generation.epoch,
        "partition": at.partition,
        "ids": generation.id_scheme,
        "record": generation.commit_log,
        "position": committed.next_offset,
    }


def _positions(lines: list[dict[str, Any]]) -> dict[int, Assignment]:
    return {
        line["partition"]: Assignment(
            TopicPartition(line["cluster_id"], line["topic"], line["topic_id"], line["partition"]),
            line["group"],
            Generation(line["epoch"], line["ids"], line["record"]),
            line["position"],
        )
        for line in lines
    }


def _unsealed(content: bytes) -> Any:
    """Return the decoded content; None if the checksum does not fit."""
    checksum, _, text = content.rstrip(b"\n").partition(b" ")
    return json.loads(text) if checksum == b"%08x" % zlib.crc32(text) else None
