"""File channel on a disk with power failures: acknowledged events remain, once, in order, with their ids.

`SPILLABLEMEMORY` only promises the events that the system has written by itself meanwhile.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from flafka.agent.flumechannel.importing import import_events
from flafka.channels.file import FileChannel
from flafka.channels.file.lock import DirectoryLock
from flafka.channels.spillable import SpillableMemoryChannel
from flafka.plugins import Assignment, Batch, Event
from tests.agent.test_flume_channel import copy_recorded, plain
from tests.channels.file_running import Owner, channel
from tests.fixtures.examples import some
from tests.fixtures.power import Disk, Note, Tree, is_needed, losses, survives

SEGMENT_BYTES = 6000
STEPS = 25
LIVES = 3
SEEDS = 2
LOOKED_AT = 0.15
"""Share of the moments at which a loss of power is tried."""
SITES = {
    "Log.sync": 0,
    "replace_file < FileChannel._read_or_create_id": 0,
    "replace_file < write_checkpoint": 10,
    "sync_directory < FileChannel._open_log": 13,
    "sync_directory < Log._begin_segment": 0,
    "sync_directory < make_directory < FileChannel._open_log": 0,
    "sync_directory < replace_file < write_checkpoint": 0,
}
"""Callers of a sync, each with the first seed that finds a loss without that sync. Most other seeds find none."""
NOT_ALONE = (
    "Log._truncate_torn_end",
    "_save_torn_bytes",
    "sync_directory < _save_torn_bytes",
    "sync_directory < replace_file < FileChannel._read_or_create_id",
)
"""Syncs without which no event is lost: they keep files for an operator, or avoid a redelivery."""


class Known:
    """Knowledge of sources and sinks about a channel, over all its lives."""

    def __init__(self) -> None:
        self.offered: list[tuple[bytes, ...]] = []
        """Every put, in order."""
        self.stored: set[bytes] = set()
        """Events of returned puts."""
        self.written: set[bytes] = set()
        """Stored events that the system has written by itself."""
        self.begun: set[bytes] = set()
        """Events of commits that have begun."""
        self.committed: set[bytes] = set()
        """Events of returned commits, or of the sink's own commit log."""
        self.record: dict[str, int] = {}
        """End of the sink's own commit log, by `TopicPartition.topic_id`."""
        self.ids: dict[str, bytes] = {}
        """Event by each id that a sink was given."""

    def follow(self, step: str, value: Any) -> None:
        """Add one step."""
        match step:
            case "put":
                self.offered.append(value)
            case "stored":
                self.stored |= {*value}
            case "written":
                self.written |= self.stored
            case "taken":
                for id, body in value.items():
                    assert self.ids.setdefault(id, body) == body, f"{id} was given to two events"
            case "begun":
                self.begun |= {*value}
            case "recorded":
                ends, bodies = value
                self.record = self.record | ends
                self.begun |= {*bodies}
                self.committed |= {*bodies}
            case "committed":
                self.committed |= {*value}

    def after(self, notes: Collection[Any]) -> Known:
        """Return a copy with the notes of these steps."""
        known = Known()
        known.offered, known.record = [*self.offered], self.record
        known.stored, known.written = {*self.stored}, {*self.written}
        known.begun, known.committed = {*self.begun}, {*self.committed}
        known.ids = {**self.ids}
        for note in notes:
            if isinstance(note, Note):
                known.follow(*note.what)
        return known


class Sink(Owner):
    """Sink that sometimes has its own commit log, as `hdfs` has."""

    def __init__(self, files: FileChannel, known: Known) -> None:
        super().__init__()
        self.known = known
        self.reader = files.reader(self, group=None, member="k")

    def assigned(self, committed: Sequence[Assignment]) -> Sequence[Assignment]:
        self.assignments.update({assignment.partition: assignment for assignment in committed})
        ends = self.known.record
        return [
            assignment.with_offset(max(ends.get(assignment.topic_partition.topic_id, 0), assignment.next_offset or 0))
            for assignment in committed
        ]

    def taken(self) -> dict[str, bytes]:
        """Return the ids of taken and uncommitted events, and the bodies."""
        batches = [polled.batch for polled in self.got]
        return {str(id): event.body for batch in batches for id, event in zip(batch.ids(), batch, strict=True)}


@contextmanager
def running(directory: Path, kind: type[FileChannel] = FileChannel) -> Iterator[FileChannel]:
    """Open the channel until its process dies: it closes nothing."""
    files = kind(channel(directory).config, "files")
    files.config = files.config.model_copy(update={"max_file_size": SEGMENT_BYTES})
    with mock.patch.object(DirectoryLock, "_holders", {}):
        files.open()
        yield files


def live(
    directory: Path,
    disk: Disk,
    known: Known,
    chances: random.Random,
    kind: type[FileChannel],
    recorded: float = 0.5,
) -> None:
    """Put, take, commit, and be killed now and then, while the disk records it.

    The sink has its own commit log for that share of its commits.
    """

    def record_note(step: str, value: Any) -> None:
        known.follow(step, value)
        disk.record_note((step, value))

    remaining = STEPS
    while remaining:
        with disk.killing(chances.randrange(60)), running(directory, kind) as files:
            sink = Sink(files, known)
            while remaining:
                remaining -= 1
                match chances.choice(["put", "put", "take", "commit", "wait"][: 4 if kind.synced else 5]):
                    case "put":
                        first = sum(map(len, known.offered))
                        bodies = tuple(b"%d " % n for n in range(first, first + chances.randrange(1, 4)))
                        record_note("put", bodies)
                        size = chances.choice([0, 2000])
                        files.put(Batch.of([Event(body, {"filler": "x" * size}) for body in bodies]))
                        record_note("stored", bodies)
                    case "take":
                        sink.take_all()
                        record_note("taken", sink.taken())
                    case "commit" if sink.got:
                        bodies = tuple(sink.taken().values())
                        record_note("begun", bodies)
                        if chances.random() < recorded:
                            ends = {
                                polled.assignment.topic_partition.topic_id: polled.offsets.end for polled in sink.got
                            }
                            record_note("recorded", (ends, bodies))
                        sink.commit()
                        record_note("committed", bodies)
                    case "wait":
                        disk.write_back()
                        record_note("written", ())


def check(directory: Path, known: Known, kind: type[FileChannel]) -> None:
    """Start the channel, and assert that it has all known events, and takes more."""
    with running(directory, kind) as files:
        sink = Sink(files, known)
        bodies = sink.take_all()
        known.follow("taken", sink.taken())
        assert len(bodies) == len({*bodies}), "some are there twice"
        places = {body: number for number, put in enumerate(known.offered) for body in put}
        assert bodies == sorted(bodies, key=int), "they are not in order"
        for number in {places[body] for body in bodies}:
            expected = {*known.offered[number]} - known.committed
            assert {*bodies} >= expected, "a put is there in part"
        sure = known.stored if kind.synced else known.written
        assert {*bodies} >= sure - known.begun, "what was stored is lost"
        assert not {*bodies} & known.committed, "what was committed comes again"
        ids = {body: id for id, body in known.ids.items()}
        assert len(ids) == len(known.ids), "an event has two ids"
        if sink.got:
            sink.commit()
        files.put(Batch.of([Event(b"more")]))
        assert sink.take_all() == [b"more"], "what is put next is lost"
        known.follow("taken", sink.taken())


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with mock.patch.multiple(os, fsync=lambda _: None, fdatasync=lambda _: None):  # the recorder's own syncs stay
        yield


def campaign(directory: Path, seed: int, ignored: str = "", kind: type[FileChannel] = FileChannel) -> int:
    """Run lives that each end by a loss of power; return the number of tried disk states."""
    chances = random.Random(seed)
    states = 0
    tree, known = Tree(), Known()
    for life in range(LIVES):
        home = directory / str(life)
        tree.write(home)
        disk = Disk(home, ignored)
        with disk:
            live(home, disk, known.after([]), chances, kind)
        assert disk.sites.keys() <= {*SITES, *NOT_ALONE}
        before = known
        for count, (remains, steps) in enumerate(losses(disk, chances, LOOKED_AT), 1):
            if chances.random() < 1 / count:
                tree, known = remains, before.after(steps)  # the next life begins with one of them
                if not kind.synced:
                    known.stored = {*known.written}  # unwritten events may be lost for good
            path = directory / f"{life}-{count}"
            remains.write(path)
            check(path, before.after(steps), kind)
            shutil.rmtree(path)
            states += 1
    return states


@pytest.mark.usefixtures("lengthy")
def test_acknowledged_events_survive_a_loss_of_power(memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    seeds = some(range(SEEDS), 2)
    states = survives(campaign, memory, seeds)
    assert sum(states) > 50 * len(seeds)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_loss_of_power_takes_from_spillable_memory_only_unwritten_events(memory: Path) -> None:
    assert campaign(memory, 0, kind=SpillableMemoryChannel) > 50


def set_back(directory: Path, seed: int) -> None:
    """Run lives of which the last begins with the disk of an earlier one; sinks keep their events."""
    chances = random.Random(seed)
    known, copies = Known(), list[tuple[Tree, set[bytes]]]()
    tree = Tree()
    for life in range(LIVES):
        if life == LIVES - 1:
            tree, stored = chances.choice(copies)
            known.stored = {*stored}  # the rest is lost with the disk, except delivered events
        home = directory / str(life)
        tree.write(home)
        with (disk := Disk(home)):
            live(home, disk, known, chances, FileChannel, recorded=1)
        tree = Tree.read(home, itertools.count(1))
        copies.append((tree, {*known.stored}))
    check(home, known, FileChannel)


def test_a_disk_that_is_set_back_loses_no_later_event_and_gives_no_id_twice(memory: Path) -> None:
    survives(set_back, memory, some(range(4), 4))


def test_a_run_without_an_id_of_its_own_would_lose_events_on_a_disk_that_is_set_back(memory: Path) -> None:
    fixed = mock.Mock(hex="0123456789ab" * 2)
    with mock.patch("flafka.channels.file.channel.uuid.uuid4", return_value=fixed), pytest.raises(AssertionError):
        survives(set_back, memory, range(30))


@pytest.mark.usefixtures("lengthy")
@pytest.mark.parametrize("site", SITES)
def test_each_sync_is_needed(memory: Path, site: str) -> None:
    is_needed(campaign, memory, site, range(SITES[site], SITES[site] + 30))


def imported(directory: Path) -> None:
    """Import Flume's files in a process of its own."""
    with mock.patch.object(DirectoryLock, "_holders", {}):
        import_events(channel(directory))


@pytest.mark.usefixtures("lengthy")
def test_an_import_from_flume_survives_a_loss_of_power(memory: Path) -> None:
    for seed in range(3):
        print(f"seed {seed}")
        chances = random.Random(seed)
        live_in = memory / str(seed) / "live"
        bodies = copy_recorded(live_in, "checkpoint")
        with Disk(live_in) as disk:
            for _ in range(2):
                with disk.killing(chances.randrange(100)):
                    imported(live_in)
                    disk.record_note(("open", ()))
            imported(live_in)
        for count, (tree, _) in enumerate(losses(disk, chances, 0.5)):
            path = live_in.parent / str(count)
            tree.write(path)
            imported(path)
            with running(path) as files:
                assert sorted(map(plain, Sink(files, Known()).take_all())) == sorted(bodies)
