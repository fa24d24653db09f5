"""Checkpoint of a file channel: committed offsets of its sinks, and its segments with undelivered events.

The checkpoint is one small file in checkpointDir, which is replaced atomically.
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
from flafka.plugins.storage import replace_file

FILE_NAME = "flafka.positions"
VERSION = 1
"""Format version. A checkpoint without a field `version` is of version 1."""
MAX_RUNS = 100
"""Number of latest runs in a checkpoint. Past runs serve `agent trace` after the deletion of their segments."""


@dataclass
class Checkpoint:
    """Content of a checkpoint. Except for `exists`, the file format has the same field names."""

    positions: dict[int, Assignment] = field(default_factory=dict)
    """Committed offsets by partition."""
    files: dict[str, int | None] = field(default_factory=dict)
    """Segments with undelivered events, by path; after a clean stop, with the number of these events."""
    next: int = 0
    """Number of the next entry after a clean stop; 0 while the channel is open, or was killed."""
    accepted: dict[str, int | None] = field(default_factory=dict)
    """Missing segments whose loss an operator has accepted by `agent group reset`, by path, with their events."""
    runs: list[str] = field(default_factory=list)
    """Ids of the latest runs, oldest first."""
    renamed: dict[str, str] = field(default_factory=dict)
    """New id of a run whose first id another copy of the process has used, by first id."""
    epoch: int = 0
    """Fencing epoch of partitions without a committed offset, as of the latest `agent group reset`."""
    inode: int = 0
    """Inode of the file `flafka.channel` in the first data directory. A copy of the directory has another inode."""
    exists: bool = False
    """True if the checkpoint was read from a file."""

    def topic_id(self, channel: str, run: str) -> str:
        """Return `TopicPartition.topic_id` of the events of a run, given the id of the channel."""
        return f"{channel}.{self.renamed.get(run, run)}"

    def missing(self, present: Collection[str]) -> dict[str, int | None]:
        """Return the `files` with undelivered events, or an unknown number, whose names are not in `present`."""
        return {path: events for path, events in self.files.items() if events != 0 and Path(path).name not in present}


def misplaced_error(missing: Mapping[str, int | None]) -> str:
    """Return the error about missing segments that still exist outside of dataDirs; empty if there are none.

    `missing` are absolute paths with the number of their undelivered events.
    """
    present = [path for path in missing if os.path.exists(path)]  # noqa: PTH110 - Path.exists raises PermissionError
    if not present:
        return ""
    paths, verb = present[0], "exists"
    if len(present) > 1:
        paths, verb = f"{paths} and {len(present) - 1} more", "exist"
    directories = ",".join(sorted({str(Path(path).parent) for path in present}))
    return (
        f"{paths} {verb} outside of dataDirs, with undelivered events: add {directories} to dataDirs (with agent "
        "group: to --data-dirs), or move the files into dataDirs"
    )


def missing_error(
    missing: Mapping[str, int | None], name: str, checkpoints: Path, directories: Sequence[Path]
) -> str:
    """Return the error about missing segments of the channel `name`, with the remedies.

    If some of them exist elsewhere, it is that of `misplaced_error`.
    """
    if error := misplaced_error(missing):
        return error
    configured = {directory.absolute() for directory in directories}
    is_plural = len(missing) > 1
    known = [events for events in missing.values() if events is not None]
    events = f"{sum(known):,} undelivered events" if len(known) == len(missing) else "undelivered events"
    shown = [path if Path(path).parent in configured else Path(path).name for path in missing]
    paths = ", ".join(shown[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    verb, pronoun = ("are", "them") if is_plural else ("is", "it")
    return (
        f"{paths} {verb} missing, with {events}: restore {pronoun}, for example by mounting the disk of dataDirs; to "
        f"accept the loss: {reset_command(name, checkpoints, directories)}"
    )


def reset_command(name: str, checkpoints: Path, directories: Sequence[Path]) -> str:
    """Return the command that accepts the loss of missing segments of the channel `name`."""
    data_dirs = ",".join(str(directory.absolute()) for directory in directories)
    return (
        f"agent group reset {shlex.quote(name)} --checkpoint-dir {shlex.quote(str(checkpoints.absolute()))} "
        f"--data-dirs {shlex.quote(data_dirs)}"
    )


def read_checkpoint(path: Path, log: logging.Logger) -> Checkpoint:
    """Return the checkpoint; an empty one if the file does not exist, or is damaged, which is logged.

    Raises OSError, and FlafkaError for a checkpoint of another version.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Checkpoint()
    fields = _decode(content)
    if fields is None:
        log.error("%s is damaged: all events in the data files are redelivered", path)
        return Checkpoint()
    if (version := fields.pop("version", VERSION)) != VERSION:
        raise version_error(path, "checkpoint", version)
    return Checkpoint(_decode_positions(fields.pop("positions")), **fields, exists=True)


def version_error(path: Path, kind: str, version: object) -> FlafkaError:
    """Return the error about a file of another format version. `kind` is `checkpoint` or `segment`."""
    return FlafkaError(
        f"{path} is a {kind} of version {version}, but this channel reads version {VERSION}: deliver the events of "
        "the channel with the agent that wrote it (agent start --drain), then remove its checkpointDir and dataDirs"
    )


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint, and return when it is durable. Raises OSError."""
    content = {
        field.name: getattr(checkpoint, field.name)
        for field in dataclasses.fields(checkpoint)
        if field.name != "exists"
    }
    content["positions"] = [_encode_position(committed) for committed in checkpoint.positions.values()]
    text = json.dumps(content).encode()
    os.close(replace_file(path, b"%08x %s\n" % (zlib.crc32(text), text)))


def reset_checkpoint(
    path: Path, checkpoint: Checkpoint, missing: Mapping[str, int | None], *, earliest: bool
) -> None:
    """Write the checkpoint with a new fencing epoch for every partition, and without the missing segments.

    `missing` are accepted as lost. The commit logs of the sinks are abandoned: each sink begins a new one at its
    configured location. With `earliest`, all events in the files are redelivered; otherwise committed offsets stay.
    Raises OSError.
    """
    checkpoint.accepted |= missing
    checkpoint.files = {file: events for file, events in checkpoint.files.items() if file not in missing}
    epochs = [committed.generation.epoch for committed in checkpoint.positions.values()]
    checkpoint.epoch = next_epoch(max([checkpoint.epoch, *epochs]))
    checkpoint.positions = {
        partition: committed.replace(epoch=checkpoint.epoch, commit_log="").with_offset(
            0 if earliest else committed.next_offset
        )
        for partition, committed in checkpoint.positions.items()
    }
    write_checkpoint(path, checkpoint)


def _encode_position(committed: Assignment) -> dict[str, Any]:
    """Return a committed offset as JSON of the checkpoint."""
    topic_partition, generation = committed.topic_partition, committed.generation
    return {
        "cluster_id": topic_partition.cluster,
        "topic": topic_partition.topic,
        "topic_id": topic_partition.topic_id,
        "group": committed.group,
        "epoch": generation.epoch,
        "partition": topic_partition.partition,
        "ids": generation.id_scheme,
        "record": generation.commit_log,
        "position": committed.next_offset,
    }


def _decode_positions(lines: list[dict[str, Any]]) -> dict[int, Assignment]:
    """Return committed offsets by partition, from JSON of the checkpoint."""
    return {
        line["partition"]: Assignment(
            TopicPartition(line["cluster_id"], line["topic"], line["topic_id"], line["partition"]),
            line["group"],
            Generation(line["epoch"], line["ids"], line["record"]),
            line["position"],
        )
        for line in lines
    }


def _decode(content: bytes) -> Any:
    """Return the decoded content; None if the checksum is wrong."""
    checksum, _, text = content.rstrip(b"\n").partition(b" ")
    return json.loads(text) if checksum == b"%08x" % zlib.crc32(text) else None
