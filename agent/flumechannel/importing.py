"""Import of the events that Flume's file channel has not delivered: each of them once, also after kills."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from flafka.agent.flumechannel import files
from flafka.plugins import Batch, Channel, ConnectivityWarning, Event, FlafkaError, FlumeDirectories, Retry
from flafka.plugins.shared.disk import sync_directory

BATCH_EVENTS, BATCH_BYTES = 10_000, 16 << 20
"""Largest number and size, in bytes, of events that are stored together."""


@dataclass
class Imported:
    """Result of an import."""

    events: int = 0
    """Number of events that were stored. What a killed import had stored completely does not count."""
    lost: int = 0
    """Number of events that could not be read."""
    damages: list[str] = field(default_factory=list)
    """One sentence for each place that could not be read."""
    moved_to: str = ""
    """Name of the directory, in each of Flume's own, that has Flume's files now; empty if there were none."""


def import_events(channel: Channel) -> Imported:
    """Move what Flume has not delivered into this channel, which no agent uses, and Flume's files out of the way.

    Idempotent: a call after a kill resumes. Raises Retry if Flume or an agent uses the files, or a disk has no room.
    Raises FlafkaError if the files are encrypted or older than Flume 1.3, or the channel is no file channel, and
    OSError.
    """
    where = channel.flume_directories()
    if where is None:
        raise FlafkaError(f"channel {channel.name} is of another type than Flume's file channel")
    done = Imported()

    def batches() -> Iterator[Batch]:
        files.check(files.logs(where.data))
        left = files.FlumeChannel(where.checkpoint, where.backup, where.data)
        for batch in _batches(left.events()):
            yield batch
            done.events += len(batch)
        done.damages, done.lost = left.damages, left.lost

    def finished(first: int) -> None:
        done.moved_to = f"flume-{first}"
        _move(where, done.moved_to)

    files.check(found := files.logs(where.data))
    channel.load(batches if found else None, finished)
    return done


def foreseen(channel: Channel, command: str) -> Iterator[str]:
    """Yield what Flume has left for a channel, for `agent migrate`; `command` is the one that imports it."""
    where = channel.flume_directories()
    try:
        if where is None or not (logs := files.logs(where.data)):
            return
        files.check(logs)
        events = len(files.FlumeChannel(where.checkpoint, where.backup, where.data))
    except Retry:
        yield ConnectivityWarning(
            f"dataDirs belongs to a Flume that runs: stop it, and run `{command}`, before the agent starts"
        )
    except FlafkaError as e:
        yield str(e)
    except OSError as e:
        yield ConnectivityWarning(f"whether dataDirs holds events of Flume is not known: {e.filename}: {e.strerror}")
    else:
        yield ConnectivityWarning(
            f"dataDirs holds {events:,} events that Flume has not delivered: run `{command}` before the agent "
            "starts, which delivers them before any other"
        )


def _move(where: FlumeDirectories, name: str) -> None:
    for directory in dict.fromkeys([*where.data, where.checkpoint, *filter(None, [where.backup])]):
        found, to = files.files(directory), directory / name
        if found:
            to.mkdir(exist_ok=True)
        for path in found:
            path.rename(to / path.name)
        # Without files, too: a killed import may have moved them, and a loss of power moves them back.
        if to.exists():
            sync_directory(to)
            sync_directory(directory)


def _batches(events: Iterator[Event]) -> Iterator[Batch]:
    gathered: list[Event] = []
    size = 0
    for event in events:
        gathered.append(event)
        size += len(event.body)
        if len(gathered) == BATCH_EVENTS or size >= BATCH_BYTES:
            yield Batch.of(gathered)
            gathered, size = [], 0
    if gathered:
        yield Batch.of(gathered)
