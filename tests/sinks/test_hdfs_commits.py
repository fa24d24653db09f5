"""HDFS sink: its commit log under every lost reply and crash."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flafka.plugins import (
    Conflict,
    FlafkaError,
    LastRecord,
    OffsetRange,
    Receipt,
    Retry,
)
from flafka.sinks.hdfs import HdfsSink
from flafka.sinks.hdfs.commitlog import MANIFEST_RETENTION_MS
from tests.fixtures.examples import examples, some
from tests.sinks.fake_webhdfs import Crash, FakeWebHdfs
from tests.sinks.hdfs_running import (
    ASSIGNMENT,
    OWN,
    delivered,
    manifests,
    open_sink,
    records,
    write_and_commit,
)

# --- the commit log


def deliver(fake: FakeWebHdfs, directory: Path, cuts: list[int], repeat: bool) -> None:
    """Deliver like the runner, with a new sink after each crash; `repeat`: commit receipts again after failures."""
    sink: HdfsSink | None = None
    position: int | None = None
    receipt: Receipt | None = None
    for _ in range(10):
        try:
            if sink is None:
                receipt, position, sink = None, None, open_sink(directory, **{"hdfs.path": "/logs/%{host}"})
            if position is None:
                position = sink.resume(ASSIGNMENT).next_offset or 0
            while position < cuts[-1]:
                end = next(cut for cut in cuts if cut > position)
                if receipt is None:
                    sink.write(records(position, end, host="h{}"))
                    receipt = sink.stage(OWN, OffsetRange(position, end))
                sink.commit(receipt)
                position, receipt = end, None
            sink.close()
            return
        except Crash:
            sink = None
        except Retry:
            if sink is not None:
                sink.reset()
            receipt = receipt if repeat else None
        except Conflict:
            assert sink is not None
            sink.reset()
            receipt, position = None, sink.resume(ASSIGNMENT.with_offset(position)).next_offset
        promised = {n for m in manifests(fake) for n in range(m.start, m.end)}
        assert set(delivered(fake)) <= promised, "something of an uncommitted range can be seen"
    raise AssertionError("did not come to an end")


CUTS = [4, 7]


def calls_of_a_delivery(directory: Path) -> list[str]:
    with FakeWebHdfs.installed() as fake:
        deliver(fake, directory, CUTS, repeat=False)
        return fake.calls


@pytest.mark.parametrize(
    ("error", "count", "when", "repeat"),
    [
        (requests.ConnectionError, 1, "before", False),
        (requests.ConnectionError, 1, "after", False),
        (requests.ConnectionError, 2, "before", False),
        (requests.ConnectionError, 2, "after", False),
        (requests.ConnectionError, 2, "after", True),
        (requests.ConnectionError, 6, "before", True),
        (Crash, 1, "after", False),
    ],
)
def test_every_call_may_fail(tmp_path: Path, error: type[BaseException], count: int, when: str, repeat: bool) -> None:
    calls = calls_of_a_delivery(tmp_path)
    assert len(calls) >= 30
    for index in some(range(1, len(calls))):
        with FakeWebHdfs.installed() as fake:
            fake.lose(index, count, when, error)
            deliver(fake, tmp_path, CUTS, repeat)
            fake.heal()
            deliver(fake, tmp_path, [*CUTS, 8], repeat)  # and the next owner finds everything in order
        assert delivered(fake) == Counter(range(8)), f"call {index}, {calls[index]}"
        chain = manifests(fake)
        assert [m.end for m in chain[:-1]] == [m.start for m in chain[1:]]
        assert not [path for path in fake.files if "/tmp/" in path], "left behind"


OWNERS = 3
ACTION = st.tuples(
    st.integers(0, OWNERS - 1),
    st.sampled_from(["take over", "stage", "commit", "crash"]),
    st.integers(1, 4),
    st.one_of(st.none(), st.tuples(st.integers(0, 25), st.integers(1, 3), st.sampled_from(["before", "after"]))),
)


class RebalanceListener:
    """Agent that believes, rightly or not, that it owns the partition."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sink: HdfsSink | None = None
        self.position: int | None = None
        self.receipts: list[Receipt] = []

    def crash(self) -> None:
        if self.sink is not None:
            self.sink.close()
        self.__init__(self.directory)

    def act(self, action: str, records_: int) -> None:
        if action == "crash":
            self.crash()
            return
        try:
            if self.sink is None:
                self.sink = open_sink(self.directory, **{"hdfs.path": "/logs/%{host}"})
            if action == "take over" or self.position is None:
                self.sink.reset()
                self.receipts, self.position = [], None
                self.position = self.sink.resume(ASSIGNMENT).next_offset or 0
            elif action == "stage":
                end = self.position + records_
                self.sink.write(records(self.position, end, host="h{}"))
                self.receipts.append(self.sink.stage(OWN, OffsetRange(self.position, end)))
                self.position = end
            elif self.receipts:
                self.sink.commit(self.receipts[0])
                self.receipts.pop(0)
        except Conflict:
            self.position = None
        except Retry:
            if action != "commit":  # a commit is either repeated, or taken over by another owner
                self.position = None


@given(st.lists(ACTION, max_size=40))
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_concurrent_owners_deliver_each_record_once(tmp_path: Path, actions: list[Any]) -> None:
    with FakeWebHdfs.installed() as fake:
        owners = [RebalanceListener(tmp_path) for _ in range(OWNERS)]
        for number, action, count, fault in actions:
            if fault is not None:
                fake.lose(len(fake.calls) + fault[0], fault[1], fault[2], requests.ConnectionError)
            owners[number].act(action, count)
            fake.heal()
            promised = {n for m in manifests(fake) for n in range(m.start, m.end)}
            assert set(delivered(fake)) <= promised
        last = RebalanceListener(tmp_path)
        last.act("take over", 0)
        assert delivered(fake) == Counter(range(last.position or 0))
        for owner in (*owners, last):
            owner.crash()


def test_the_group_may_be_ahead_of_the_commit_log(sinks: Any, fake: FakeWebHdfs) -> None:
    first, second = sinks(), sinks()
    first.resume(ASSIGNMENT.with_offset(0))
    write_and_commit(first, 0, 5)
    assert second.resume(ASSIGNMENT.with_offset(3)).next_offset == 5  # the commit log is authoritative
    assert (
        second.resume(ASSIGNMENT.with_offset(9)).next_offset == 9
    )  # but events of another sink of the group are not redelivered
    write_and_commit(second, 9, 12)
    assert [(m.start, m.end, len(m.files)) for m in manifests(fake)] == [(0, 5, 1), (5, 12, 1)]
    first.write(records(5, 9))
    with pytest.raises(Conflict):
        first.commit(first.stage(OWN, OffsetRange(5, 9)))
    assert first.resume(ASSIGNMENT.with_offset(5)).next_offset == 12
    assert delivered(fake) == Counter([*range(5), *range(9, 12)])


def test_a_lost_reply_to_the_commit_is_recognised(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks()
    sink.resume(OWN.with_offset(0))
    renames = fake.calls.count("RENAME")
    sink.write(records(0, 5))
    receipt = sink.stage(OWN, OffsetRange(0, 5))
    lost = iter([False, True])  # the first one tries the target

    def lose(number: int, op: str) -> None:
        if op == "RENAME" and next(lost, False):
            raise requests.ConnectionError

    fake.after = lose
    sink.commit(receipt)
    assert fake.calls.count("RENAME") == renames + 4  # the attempt, the lost one, its repetition, and the file's
    assert delivered(fake) == Counter(range(5))


def test_a_start_within_a_committed_range_is_a_conflict(sinks: Any, fake: FakeWebHdfs) -> None:
    first = sinks()
    write_and_commit(first, 0, 5)
    for sink in (first, sinks()):
        sink.resume(OWN.with_offset(3))
        sink.write(records(3, 7))
        with pytest.raises(Conflict):
            sink.commit(sink.stage(OWN, OffsetRange(3, 7)))
    assert delivered(fake) == Counter(range(5))


def test_a_removed_directory_is_recreated(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks(**{"hdfs.path": "/logs/%{host}"})
    write_and_commit(sink, 0, 5, host="a")
    sink._hdfs.delete("/logs/a")
    write_and_commit(sink, 5, 7, host="a")
    assert delivered(fake) == Counter([5, 6])
    sink._hdfs.delete("/logs")  # and all manifests with it
    sink.write(records(7, 9))
    receipt = sink.stage(OWN, OffsetRange(7, 9))
    with pytest.raises(Conflict, match=r"someone has moved or deleted the commit log /logs/\.flafka/chain"):
        sink.commit(receipt)
    assert sink.resume(ASSIGNMENT.with_offset(7)).next_offset == 7
    write_and_commit(sink, 7, 9)
    assert delivered(fake) == Counter([7, 8])


def test_a_commit_does_not_begin_a_log(sinks: Any, fake: FakeWebHdfs) -> None:
    """After the fence of a log that never began, no reader would look for a commit."""
    sink = sinks()
    sink.write(records(0, 2))
    receipt = sink.stage(OWN, OffsetRange(0, 2))
    with pytest.raises(Conflict, match="has not resumed the commit log"):
        sink.commit(receipt)
    sink.resume(OWN.with_offset(0))

    def fail(number: int, op: str) -> None:
        if op == "RENAME" and any("/manifest-" in path for path in fake.files):
            raise requests.ConnectionError

    fake.before = fail
    with pytest.raises(Retry, match="HDFS is away"):
        sink.commit(receipt)
    fake.heal()
    sink._hdfs.delete("/logs/.flafka/chain")
    with pytest.raises(Conflict, match=r"someone has moved or deleted the commit log /logs/\.flafka/chain"):
        sink.commit(receipt)
    assert not manifests(fake)


@pytest.mark.parametrize("renames", [0, 1])
def test_a_directory_that_is_moved_away_within_a_commit_takes_nothing_with_it(
    sinks: Any, fake: FakeWebHdfs, renames: int
) -> None:
    sink = sinks(**{"hdfs.path": "/logs/%{host}"})
    sink.resume(ASSIGNMENT)
    write_and_commit(sink, 0, 5, host="a")
    sink.write(records(5, 7))
    receipt = sink.stage(OWN, OffsetRange(5, 7))
    count = 0

    def move(number: int, op: str) -> None:
        nonlocal count
        if op == "RENAME":
            if count == renames:
                fake.tree.rename("/logs", "/moved")
            count += 1

    fake.before = move
    with pytest.raises((Conflict, Retry)):
        sink.commit(receipt)
    fake.heal()
    assert sink.resume(ASSIGNMENT.with_offset(5)).next_offset == 5
    write_and_commit(sink, 5, 7)
    assert delivered(fake) == Counter(range(7))


def test_files_left_by_a_failed_commit_appear_with_the_next(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks()
    sink.resume(OWN.with_offset(0))
    sink.write(records(0, 5))
    first = sink.stage(OWN, OffsetRange(0, 5))
    sink.write(records(5, 7))
    second = sink.stage(OWN, OffsetRange(5, 7))

    def fail(number: int, op: str) -> None:
        if op == "RENAME" and manifests(fake):
            raise requests.ConnectionError

    fake.before = fail
    with pytest.raises(Retry, match="HDFS is away"):
        sink.commit(first)
    fake.heal()
    sink.commit(second)
    assert delivered(fake) == Counter(range(7))


def test_offsets_without_records_are_skipped(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks()
    sink.resume(ASSIGNMENT.with_offset(0))
    for start in (0, 6, 12):  # each followed by a transaction marker
        write_and_commit(sink, start, start + 5)
    assert [(m.start, m.end) for m in manifests(fake)] == [(0, 5), (5, 11), (11, 17)]
    assert len(fake.visible()) == 3
    assert sinks().resume(ASSIGNMENT).next_offset == 17


def test_old_manifests_are_deleted_and_a_suspended_owner_conflicts(sinks: Any, fake: FakeWebHdfs) -> None:
    sleeper, other = sinks(), sinks()
    sleeper.resume(ASSIGNMENT.with_offset(0))
    write_and_commit(sleeper, 0, 2)
    other.resume(ASSIGNMENT)
    for start in range(2, 12, 2):
        write_and_commit(other, start, start + 2)
        fake.now += MANIFEST_RETENTION_MS // 2
    assert [m.start for m in manifests(fake)] == [6, 8, 10]
    sleeper.write(records(2, 4))  # the name of its next manifest is free again
    with pytest.raises(Conflict):
        sleeper.commit(sleeper.stage(OWN, OffsetRange(2, 4)))
    assert sleeper.resume(ASSIGNMENT.with_offset(2)).next_offset == 12
    assert delivered(fake) == Counter(range(12))
    fake.now += 10 * MANIFEST_RETENTION_MS
    assert sinks().resume(ASSIGNMENT).next_offset == 12, "the newest stays"


def test_uploads_of_other_owners_at_the_end_of_the_chain_stay(sinks: Any, fake: FakeWebHdfs) -> None:
    first, second = sinks(), sinks()
    first.resume(ASSIGNMENT.with_offset(0))
    write_and_commit(first, 0, 2)
    first.write(records(2, 4))
    receipt = first.stage(OWN, OffsetRange(2, 4))
    assert second.resume(ASSIGNMENT).next_offset == 2
    first.commit(receipt)
    assert delivered(fake) == Counter(range(4))


def test_a_file_moved_after_delivery_is_not_redelivered(sinks: Any, fake: FakeWebHdfs, caplog: Any) -> None:
    write_and_commit(sinks(), 0, 2)
    [path] = fake.visible()
    del fake.files[path]
    assert sinks().resume(ASSIGNMENT).next_offset == 2
    assert f"{path} was delivered" in caplog.text


def test_a_file_in_the_way_is_named(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks()
    sink.resume(OWN.with_offset(0))
    sink.write(records(0, 2))
    receipt = sink.stage(OWN, OffsetRange(0, 2))
    final = receipt.staged.files[0].final
    fake.files[final] = b"not ours"
    with pytest.raises(Retry, match="exists already"):
        sink.commit(receipt)
    del fake.files[final]
    sink.commit(receipt)
    assert delivered(fake) == Counter(range(2))


def test_a_short_upload_is_detected(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks()
    sink.write(records(0, 2))

    def cut(number: int, op: str) -> None:
        if op == "CREATE data":
            [path] = fake.files
            fake.files[path] = fake.files[path][:-1]

    fake.after = cut
    with pytest.raises(Retry, match="HDFS has 3 of the 4 bytes sent for /logs/FlumeData"):
        sink.stage(OWN, OffsetRange(0, 2))
    fake.heal()
    assert not manifests(fake)


@pytest.mark.parametrize("content", [b"", b"{", b'{"id": 1}'])
def test_an_unreadable_commit_log_stops_the_sink_with_an_error(sinks: Any, fake: FakeWebHdfs, content: bytes) -> None:
    write_and_commit(sinks(), 0, 2)
    path = min(path for path in fake.files if "/chain/" in path)
    fake.files[path] = content
    with pytest.raises(FlafkaError, match=re.escape(path)):
        sinks().resume(ASSIGNMENT)


def test_nothing_is_committed_after_a_fence_in_a_cleaned_log(sinks: Any, fake: FakeWebHdfs) -> None:
    """An owner is suspended for days; of later commits only the fence is left."""
    sleeper = sinks()
    sleeper.resume(OWN.with_offset(0))
    sleeper.write(records(0, 2))
    receipt = sleeper.stage(OWN, OffsetRange(0, 2))

    def fail(number: int, op: str) -> None:
        if op == "RENAME" and any("/manifest-" in path for path in fake.files):
            raise requests.ConnectionError

    fake.before = fail
    with pytest.raises(Retry, match="HDFS is away"):
        sleeper.commit(receipt)
    fake.heal()
    fake.files[f"{LOG}/0/3/{2:020d}"] = FENCE.replace(b'"end":2', b'"end":0')  # the files of this commit were removed
    with pytest.raises(Conflict, match="is fenced, as by agent group reset"):
        sleeper.commit(receipt)
    assert not manifests(fake)


# --- versions of manifests

LOG = "/logs/.flafka/chain/cluster/tOp1c-id/flume"
SECOND = (
    b'{"id":"two","topic":"app.logs","partition":3,"start":0,"end":2,"events":2,"files":[{"temporary":'
    b'"/logs/.flafka/tmp/x/0","final":"/logs/FlumeData.app.logs-3-0000000000-0000000001-7d2b4a11","length":4}],'
    b'"version":3,"last":[1790000000000,4],"successor":null,"mark":"/logs/.flafka/tmp/x/done"}'
)
"""A commit of two records."""
FENCE = (
    b'{"id":"end","topic":"app.logs","partition":3,"start":2,"end":2,"events":0,"files":[],"version":3,'
    b'"last":[-1,-1],"successor":{"state":"/logs/.flafka","epoch":7},"mark":""}'
)


def test_a_log_of_another_process_can_be_read(sinks: Any, fake: FakeWebHdfs) -> None:
    fake.files[f"{LOG}/0/3/begin"] = SECOND.replace(b'"end":2', b'"end":0').replace(
        b'"files":[{', b'"files":[],"x":[{'
    )
    fake.files[f"{LOG}/0/3/{0:020d}"] = SECOND
    fake.files["/logs/.flafka/tmp/x/0"] = b"0\n1\n"
    resumed = sinks().resume(ASSIGNMENT.with_offset(0))
    assert (resumed.generation, resumed.next_offset) == (OWN.generation, 2)
    assert resumed.last_record == LastRecord(1_790_000_000_000, 4)
    assert delivered(fake) == Counter(range(2)), "what a crash left of the commit is finished"


@pytest.mark.parametrize("version", [0, 2, 4])
def test_a_log_of_another_version_is_refused_with_advice(sinks: Any, fake: FakeWebHdfs, version: int) -> None:
    fake.files[f"{LOG}/0/3/{0:020d}"] = SECOND.replace(b'"version":3', b'"version":%d' % version)
    with pytest.raises(FlafkaError) as refused:
        sinks().resume(ASSIGNMENT.with_offset(0))
    assert str(refused.value) == (
        f"{LOG}/0/3/{0:020d} is a manifest of version {version}, and this sink reads version 3: deliver what "
        f"the channel holds with the agent that wrote it (agent start --drain), remove the directory {LOG}/0/3, and "
        "run agent group reset flume"
    )
    assert not fake.visible()
