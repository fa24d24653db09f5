"""Import of the undelivered events of Flume's file channel: each exactly once, even after kills."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from flafka.agent.flumechannel import files
from flafka.plugins import Batch, Channel, ConnectivityWarning, Event, FlafkaError, FlumeDirectories, Retry
from flafka.plugins.storage import sync_directory

BATCH_EVENTS, BATCH_BYTES = 10_000, 16 << 20
"""Maximum number of events, and size in bytes, of a batch."""


@dataclass
class Imported:
    """Result of an import."""

    events: int = 0
    """Number of imported events. Events that an earlier, killed import completed are not counted."""
    lost: int = 0
    """Number of events that could not be read."""
    damages: list[str] = field(default_factory=list)
    """Messages about data that could not be read."""
    moved_to: str = ""
    """Name of the subdirectory of each Flume directory to which its files were moved; empty if there were none."""


def import_events(channel: Channel) -> Imported:
    """Move the undelivered events of Flume into a file channel, and Flume's files into a subdirectory.

    No agent may use the channel. Idempotent: a call after a kill resumes the import, and no event is duplicated.
    Without files of Flume, the result is empty.

    Raises Retry if Flume or an agent uses the files, or a disk is full. Raises FlafkaError if the files are encrypted
    or older than Flume 1.3, or if the channel is not a file channel. Raises OSError.
    """
    directories = channel.flume_directories()
    if directories is None:
        raise FlafkaError(f"channel {channel.name} is not a file channel, the only type with an import from Flume")
    result = Imported()

    def batches() -> Iterator[Batch]:
        files.check_log_files(files.log_files(directories.data))
        flume = files.FlumeChannel(directories.checkpoint, directories.backup, directories.data)
        for batch in _batches(flume.events()):
            yield batch
            result.events += len(batch)
        result.damages, result.lost = flume.damages, flume.lost

    def move_files(first: int) -> None:
        result.moved_to = f"flume-{first}"
        _move(directories, result.moved_to)

    files.check_log_files(log_files := files.log_files(directories.data))
    channel.load(batches if log_files else None, move_files)
    return result


def describe_undelivered(channel: Channel, command: str) -> Iterator[str]:
    """Yield at most one message for `agent migrate`: a channel has undelivered or unreadable files of Flume.

    `command` imports the events. A ConnectivityWarning is a warning, any other text an error.
    """
    directories = channel.flume_directories()
    try:
        if directories is None or not (log_files := files.log_files(directories.data)):
            return
        files.check_log_files(log_files)
        events = len(files.FlumeChannel(directories.checkpoint, directories.backup, directories.data))
    except Retry:
        yield ConnectivityWarning(
            f"dataDirs is in use by a running Flume: stop it, and run `{command}`, before the agent starts"
        )
    except FlafkaError as e:
        yield str(e)
    except OSError as e:
        yield ConnectivityWarning(f"dataDirs cannot be checked for events of Flume: {e.filename}: {e.strerror}")
    else:
        yield ConnectivityWarning(
            f"dataDirs has {events:,} events that Flume has not delivered: run `{command}` before the agent starts, "
            "which then delivers them first"
        )


def _move(directories: FlumeDirectories, name: str) -> None:
    """Move Flume's files into the subdirectory `name` of each directory, durably."""
    for directory in dict.fromkeys([*directories.data, directories.checkpoint, *filter(None, [directories.backup])]):
        paths, target = files.channel_files(directory), directory / name
        if paths:
            target.mkdir(exist_ok=True)
        for path in paths:
            path.rename(target / path.name)
        # Even without files: a killed import may have moved them, which a power failure would undo.
        if target.exists():
            sync_directory(target)
            sync_directory(directory)


def _batches(events: Iterator[Event]) -> Iterator[Batch]:
    """Yield the events in order, in batches of up to `BATCH_EVENTS` or about `BATCH_BYTES`."""
    pending: list[Event] = []
    size = 0
    for event in events:
        pending.append(event)
        size += len(event.body)
        if len(pending) == BATCH_EVENTS or size >= BATCH_BYTES:
            yield Batch.of(pending)
            pending, size = [], 0
    if pending:
        yield Batch.of(pending)
