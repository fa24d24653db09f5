"""HDFS sink: its commit log when a group is reset and when the path moves."""

from __future__ import annotations

import contextlib
import itertools
import posixpath
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import requests

from flafka.plugins import Assignment, Conflict, OffsetRange, Retry
from flafka.sinks.hdfs import HdfsSink
from tests.fixtures.examples import some
from tests.sinks.fake_webhdfs import Crash, FakeWebHdfs, error
from tests.sinks.hdfs_running import (
    ASSIGNMENT,
    OWN,
    delivered,
    manifests,
    open_sink,
    records,
    whole_record,
    write_and_commit,
)

# --- epochs and moves

LATER = 1_790_000_000_000


def test_a_chain_begins_at_the_committed_offset(sinks: Any, fake: FakeWebHdfs) -> None:
    assert sinks().resume(ASSIGNMENT.with_offset(40)).next_offset == 40
    [(path, begin)] = whole_record(fake).items()
    assert (posixpath.basename(path), begin.start, begin.end, begin.files) == ("begin", 40, 40, ())
    assert sinks().resume(ASSIGNMENT).next_offset == 40, "the group was deleted before anything was committed"
    sink = sinks()
    sink.resume(ASSIGNMENT)
    write_and_commit(sink, 40, 43)
    assert sinks().resume(ASSIGNMENT).next_offset == 43


@pytest.mark.parametrize("before", ["committed", "begun", "nothing"])
def test_an_owner_suspended_during_a_group_reset_commits_no_more(sinks: Any, fake: FakeWebHdfs, before: str) -> None:
    sleeper, awake = sinks(), sinks()
    if before != "nothing":
        sleeper.resume(ASSIGNMENT.with_offset(0))
    if before == "committed":
        write_and_commit(sleeper, 0, 3)
    sleeper.write(records(3, 5))
    receipt = sleeper.stage(OWN, OffsetRange(3, 5))
    resumed = awake.resume(OWN.replace(epoch=LATER).with_offset(1))
    assert (resumed.generation, resumed.next_offset) == (OWN.replace(epoch=LATER).generation, 1)
    with pytest.raises(Conflict):
        sleeper.commit(receipt)
    awake.write(records(1, 4))
    awake.commit(awake.stage(resumed, OffsetRange(1, 4)))
    overtaken = sleeper.resume(OWN.with_offset(3))
    assert (overtaken.generation, overtaken.next_offset) == (resumed.generation, 4)
    assert delivered(fake) == Counter(range(3) if before == "committed" else ()) + Counter(range(1, 4))


def open_two_epochs(directory: Path, index: int) -> tuple[FakeWebHdfs, int, bool]:
    """Have an owner open an epoch; at its call of that number another one opens a later epoch and commits in it.

    Return their HDFS, the number of calls of the first one, and True if it was refused.
    """
    with FakeWebHdfs.installed() as fake:
        sleeper, awake = open_sink(directory), open_sink(directory)
        sleeper.resume(ASSIGNMENT.with_offset(0))
        write_and_commit(sleeper, 0, 3)
        calls_before = len(fake.calls)

        def overtake(number: int, _: str) -> None:
            if number == calls_before + index:
                fake.heal()
                resumed = awake.resume(OWN.replace(epoch=LATER + 1).with_offset(1))
                awake.write(records(1, 3))
                awake.commit(awake.stage(resumed, OffsetRange(1, 3)))

        fake.before = overtake
        refused = False
        try:
            resumed = sleeper.resume(OWN.replace(epoch=LATER).with_offset(1))
            calls = len(fake.calls) - calls_before
            if resumed.generation.epoch == LATER:
                if index >= calls:
                    overtake(calls_before + index, "")
                sleeper.write(records(1, 3))
                receipt = sleeper.stage(resumed, OffsetRange(1, 3))
                with pytest.raises(Conflict):
                    sleeper.commit(receipt)
            else:
                assert resumed.next_offset == 3
        except Retry:
            refused, calls = True, 0
        finally:
            sleeper.close()
            awake.close()
        return fake, calls, refused


@pytest.mark.usefixtures("lengthy")
def test_of_two_owners_that_open_epochs_at_once_only_the_later_commits(tmp_path: Path) -> None:
    _, calls, _ = open_two_epochs(tmp_path, 1 << 30)
    outcomes = [open_two_epochs(tmp_path, index) for index in range(calls)]
    for index, (fake, *_) in enumerate(outcomes):
        assert delivered(fake) == Counter({0: 1, 1: 2, 2: 2}), f"call {index}"
    assert any(refused for *_, refused in outcomes)


def test_a_deleted_group_resumes_by_the_commit_log_of_its_latest_epoch(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks()
    sink.resume(ASSIGNMENT.with_offset(0))
    write_and_commit(sink, 0, 3)
    resumed = sink.resume(OWN.replace(epoch=LATER).with_offset(1))
    sink.write(records(1, 2))
    sink.commit(sink.stage(resumed, OffsetRange(1, 2)))
    resumed = sinks().resume(ASSIGNMENT)
    assert (resumed.generation.epoch, resumed.next_offset) == (LATER, 2)


def started(sink: HdfsSink, committed: Assignment) -> Assignment:
    """Take over as an agent does at its start: move the commit log here if it is elsewhere, and resume."""
    return sink.resume(sink.move_commit_log(committed) or committed)


def test_the_commit_log_moves_with_the_path(sinks: Any, fake: FakeWebHdfs) -> None:
    old = sinks()
    old.resume(ASSIGNMENT.with_offset(0))
    write_and_commit(old, 0, 3)
    old.write(records(3, 5))
    receipt = old.stage(OWN, OffsetRange(3, 5))
    new = sinks(**{"hdfs.path": "/other"})
    resumed = started(new, OWN.with_offset(2))
    assert (resumed.generation.commit_log, resumed.next_offset) == ("hdfs:/other/.flafka", 3)
    assert resumed.generation.epoch > ASSIGNMENT.generation.epoch
    with pytest.raises(Conflict):
        old.commit(receipt)
    new.write(records(3, 6))
    new.commit(new.stage(resumed, OffsetRange(3, 6)))
    # A crash before the group's commit: the next owner follows the old commit log.
    next_assignment = started(sinks(**{"hdfs.path": "/other"}), OWN.with_offset(3))
    assert (next_assignment.generation, next_assignment.next_offset) == (resumed.generation, 6)
    returned = started(sinks(), resumed.with_offset(6))
    assert (returned.generation.commit_log, returned.next_offset) == (OWN.generation.commit_log, 6)
    assert returned.generation.epoch > resumed.generation.epoch
    assert delivered(fake) == Counter(range(6))


def move(directory: Path) -> Assignment:
    """Take over the commit log of `/logs` below another path, and commit two records more; retry until it works."""
    for _ in range(10):
        sink: HdfsSink | None = None
        try:
            sink = open_sink(directory, **{"hdfs.path": "/other"})
            resumed = started(sink, OWN.with_offset(2))
            assert resumed.next_offset in (3, 5)
            if resumed.next_offset == 5:
                return resumed
            sink.write(records(3, 5))
            sink.commit(sink.stage(resumed, OffsetRange(3, 5)))
        except (Crash, Retry):
            pass
        finally:
            if sink is not None:
                sink.close()
    raise AssertionError("did not come to an end")


@pytest.mark.parametrize(("error", "count", "step"), [(Crash, 1, 2), (requests.ConnectionError, 6, 7)])
def test_calls_of_a_move_may_fail(tmp_path: Path, error: type[BaseException], count: int, step: int) -> None:
    def moved(index: int) -> tuple[FakeWebHdfs, int]:
        with FakeWebHdfs.installed() as fake:
            sink = open_sink(tmp_path)
            sink.resume(ASSIGNMENT.with_offset(0))
            write_and_commit(sink, 0, 3)
            sleeping = sink.stage(OWN, OffsetRange(3, 4))
            before = len(fake.calls)
            fake.lose(before + index, count, "after", error)
            try:
                resumed = move(tmp_path)
                fake.heal()
                calls = len(fake.calls) - before
                assert resumed.generation.commit_log == "hdfs:/other/.flafka"
                with pytest.raises(Conflict):
                    sink.commit(sleeping)
                next_owner = open_sink(tmp_path, **{"hdfs.path": "/other"})
                assert next_owner.resume(resumed.with_offset(3)).next_offset == 5
                next_owner.close()
            finally:
                sink.close()
            return fake, calls

    _, calls = moved(1 << 30)
    assert calls > 20
    for index in some(range(0, calls, step)):
        fake, _ = moved(index)
        assert delivered(fake) == Counter(range(5)), f"call {index}"


@pytest.mark.usefixtures("lengthy")
def test_the_groups_offset_has_the_location_of_a_log_whose_move_was_killed(tmp_path: Path) -> None:
    def moved(index: int) -> int:
        with FakeWebHdfs.installed() as fake:
            fake.lose(index, 1, "after", Crash)
            for _ in range(3):
                sink = None
                try:
                    sink = open_sink(tmp_path, **{"hdfs.path": "/other"})
                    assert started(sink, OWN.with_offset(5)).next_offset == 5, f"call {index}"
                    break
                except Crash:
                    continue
                finally:
                    if sink is not None:
                        sink.close()
            fake.heal()
            return len(fake.calls)

    for index in range(moved(1 << 30)):
        moved(index)


@pytest.mark.usefixtures("lengthy")
def test_a_log_is_found_after_two_killed_moves(tmp_path: Path, seed: int) -> None:
    def moved(first: int, second: int) -> int:
        with FakeWebHdfs.installed() as fake:
            old = open_sink(tmp_path)
            old.resume(ASSIGNMENT.with_offset(0))
            write_and_commit(old, 0, 3)
            old.close()
            position, calls = None, 0
            for root, call in (("/other", first), ("/third", second), ("/other", 1 << 30)):
                sink = open_sink(tmp_path, **{"hdfs.path": root})
                calls_before = len(fake.calls)
                fake.lose(calls_before + call, 1, "after", Crash)
                with contextlib.suppress(Crash):
                    position = started(sink, OWN.with_offset(0)).next_offset
                calls = len(fake.calls) - calls_before
                sink.close()
                fake.heal()
            assert position == 3, f"calls {first} and {second}"
            return calls

    calls = range(moved(1 << 30, 1 << 30))
    for first, second in random.Random(seed).sample([*itertools.product(calls, range(40))], 30):
        moved(first, second)


def move_twice(directory: Path, index: int) -> tuple[FakeWebHdfs, int, bool]:
    """Have an owner move the log; at its call of that number another one moves it to the same path, and commits.

    Return their HDFS, the number of calls of the first one, and True if it has to retry.
    """
    with FakeWebHdfs.installed() as fake:
        old = open_sink(directory)
        old.resume(ASSIGNMENT.with_offset(0))
        write_and_commit(old, 0, 3)
        sleeper, awake = (open_sink(directory, **{"hdfs.path": "/other"}) for _ in range(2))
        calls_before, group = len(fake.calls), [OWN]

        def overtake(number: int, _: str) -> None:
            if number == calls_before + index:
                fake.heal()
                resumed = started(awake, OWN.with_offset(3))
                awake.write(records(3, 5))
                awake.commit(awake.stage(resumed, OffsetRange(3, 5)))
                group.append(resumed)

        fake.before = overtake
        refused = False
        try:
            started(sleeper, OWN.with_offset(3))
        except Retry:
            refused = True
        calls = len(fake.calls) - calls_before
        if index >= calls:
            overtake(calls_before + index, "")
        # As the group's offset names it, or named it before.
        for committed in (group[-1].with_offset(5), group[0].with_offset(3)):
            assert started(sleeper, committed).next_offset == 5, f"call {index}"
        for sink in (old, sleeper, awake):
            sink.close()
        return fake, calls, refused


@pytest.mark.usefixtures("lengthy")
def test_of_two_owners_that_move_the_log_at_once_neither_goes_back(tmp_path: Path) -> None:
    _, calls, _ = move_twice(tmp_path, 1 << 30)
    outcomes = [move_twice(tmp_path, index) for index in range(calls)]
    assert any(refused for *_, refused in outcomes)
    assert all(delivered(fake) == Counter(range(5)) for fake, *_ in outcomes)


# --- commits that HDFS does not let finish


@contextlib.contextmanager
def refusing_renames(fake: FakeWebHdfs, where: str = "/h0/FlumeData") -> Iterator[None]:
    """Have a quota refuse renames to names with this text: by default those after the commit."""
    execute = fake.tree._rename

    def rename(path: str, options: dict[str, Any], data: bytes) -> tuple[int, Any]:
        if where in options["destination"]:
            return error(403, "NSQuotaExceededException", "The NameSpace quota of directory /logs/h0 is exceeded")[:2]
        return execute(path, options, data)

    with mock.patch.object(fake.tree, "_rename", rename):
        yield


def test_a_reset_frees_a_commit_that_cannot_be_finished(sinks: Any, fake: FakeWebHdfs, caplog: Any) -> None:
    path = {"hdfs.path": "/logs/%{host}"}
    sink = sinks(**path)
    sink.resume(ASSIGNMENT.with_offset(0))
    with refusing_renames(fake):
        with pytest.raises(
            Retry, match=r"\(to deliver .*: agent group reset flume --topic app.logs:3 .* 0\): HDFS cannot .* quota "
        ):
            write_and_commit(sink, 0, 3, host="h0")
        with pytest.raises(Retry, match="agent group reset"):
            sinks(**path).resume(OWN.with_offset(0))
        with pytest.raises(Retry, match="agent group reset"):
            sinks(**{"hdfs.path": "/other"}).resume(OWN.with_offset(0))
        with pytest.raises(Retry, match=r"--to 0\): "):
            sinks(**path).resume(OWN.replace(epoch=LATER - 1).with_offset(2))  # that would omit record 0
        resumed = sinks(**path).resume(OWN.replace(epoch=LATER).with_offset(0))
        assert (resumed.generation.epoch, resumed.next_offset) == (LATER, 0)
        assert "records 0 to 2, committed before the reset, stay in /logs/.flafka/tmp/" in caplog.text
    successor = sinks(**path)
    successor.resume(resumed.with_offset(0))
    successor.write(records(0, 3, host="h0"))
    successor.commit(successor.stage(resumed, OffsetRange(0, 3)))
    assert delivered(fake) == Counter(range(3))


def test_a_reset_does_not_abandon_files_while_hdfs_is_unavailable(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks()
    sink.resume(ASSIGNMENT.with_offset(0))
    sink.write(records(0, 3))
    receipt = sink.stage(OWN, OffsetRange(0, 3))

    def away(number: int, op: str) -> None:
        if op == "RENAME" and manifests(fake):
            raise requests.ConnectionError

    fake.before = away
    for attempt in (lambda: sink.commit(receipt), lambda: sinks().resume(OWN.replace(epoch=LATER).with_offset(3))):
        with pytest.raises(Retry, match="HDFS is away"):
            attempt()
    fake.heal()
    sinks().resume(OWN.replace(epoch=LATER).with_offset(3))
    assert delivered(fake) == Counter(range(3))


def test_removed_files_that_were_never_renamed_are_redelivered(sinks: Any, fake: FakeWebHdfs, caplog: Any) -> None:
    """Somebody empties `.flafka/tmp` while a quota refuses the renames; the channel still has the records."""
    path = {"hdfs.path": "/logs/%{host}"}
    sink = sinks(**path)
    sink.resume(ASSIGNMENT.with_offset(0))
    sink.write(records(0, 3, host="h0"))
    receipt = sink.stage(OWN, OffsetRange(0, 3))
    with refusing_renames(fake), pytest.raises(Retry, match="quota"):
        sink.commit(receipt)
    fake.tree.remove("/logs/.flafka/tmp")
    with pytest.raises(Conflict, match="files that were committed are gone"):
        sink.commit(receipt)
    rewound = sinks(**path).resume(OWN.with_offset(0))
    assert rewound.next_offset == 0
    assert "records 0 to 2 are delivered again: /logs/h0/FlumeData" in caplog.text
    successor = sinks(**path)
    assert successor.resume(rewound.with_offset(0)).next_offset == 0
    successor.write(records(0, 3, host="h0"))
    successor.commit(successor.stage(rewound, OffsetRange(0, 3)))
    assert delivered(fake) == Counter(range(3))
    fake.tree.remove("/logs/h0")
    resumed = sinks(**path).resume(rewound.with_offset(None))
    assert resumed.next_offset == 3, "these were there, and somebody has moved them"


def test_files_removed_between_a_commit_and_their_renames_are_redelivered(sinks: Any, fake: FakeWebHdfs) -> None:
    """The owner still runs: it must not commit the channel's offset past them."""
    sink = sinks()
    sink.resume(ASSIGNMENT.with_offset(0))
    sink.write(records(0, 3))
    receipt = sink.stage(OWN, OffsetRange(0, 3))

    def empty(number: int, op: str) -> None:
        if op == "RENAME" and manifests(fake):
            fake.tree.remove("/logs/.flafka/tmp")

    fake.before = empty
    with pytest.raises(Conflict, match="files that were committed are gone"):
        sink.commit(receipt)
    fake.heal()
    resumed = sink.resume(ASSIGNMENT.with_offset(0))
    assert resumed.next_offset == 0
    sink.write(records(0, 3))
    sink.commit(sink.stage(resumed, OffsetRange(0, 3)))
    assert delivered(fake) == Counter(range(3))


def test_a_directory_that_refuses_renames_is_detected_before_the_commit(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks(**{"hdfs.path": "/logs/%{host}"})
    sink.resume(ASSIGNMENT.with_offset(0))
    with refusing_renames(fake, "/h0/"), pytest.raises(Retry, match="quota"):
        write_and_commit(sink, 0, 3, host="h0")
    assert not manifests(fake)
    sink.reset()
    write_and_commit(sink, 0, 3, host="h1")
    assert delivered(fake) == Counter(range(3))


def test_a_new_path_is_tested_before_the_old_log_names_it(sinks: Any, fake: FakeWebHdfs) -> None:
    old = sinks()
    old.resume(ASSIGNMENT.with_offset(0))
    write_and_commit(old, 0, 3)
    with refusing_renames(fake, "/other/"), pytest.raises(Retry, match="quota"):
        started(sinks(**{"hdfs.path": "/other"}), OWN.with_offset(3))
    successor = sinks()
    resumed = successor.resume(OWN.with_offset(3))
    assert (resumed.generation, resumed.next_offset) == (OWN.generation, 3)
