"""The file channel: what was stored comes out, in order and with its ids, whatever dies in between."""

import contextlib
import logging
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from channels.file import FileChannel, FileChannelConfig
from plugins import Batch, Event, FlafkaError, PartitionClaim, Reader, Retry, Taken
from tests.fixtures.processes import Forked

OPTIONS = {"maxFileSize": str(1 << 20), "minimumRequiredSpace": str(1 << 20)}


class Owner:
    """Delivers what it takes when it has to give it up."""

    def __init__(self) -> None:
        self.claims: dict[int, PartitionClaim] = {}
        self.reader: Reader | None = None
        self.got: list[Taken] = []
        self.answer: Mapping[int, int] = {}
        """Where a sink's own record says that partitions begin."""

    def assigned(self, committed: Mapping[PartitionClaim, int | None]) -> Mapping[PartitionClaim, int | None]:
        self.claims.update({claim.partition: claim for claim in committed})
        return {claim: self.answer.get(claim.partition, position) for claim, position in committed.items()}

    def revoked(self, partitions: set[int]) -> None:
        self.commit()
        for partition in partitions:
            del self.claims[partition]

    def lost(self, partitions: set[int]) -> None:
        raise AssertionError("a file channel takes nothing away from a reader that could commit it")

    def commit(self) -> None:
        assert self.reader is not None
        ends = {taken.partition: taken.end for taken in self.got}
        self.reader.commit({self.claims[partition]: end for partition, end in ends.items()})
        self.got.clear()

    def take_all(self) -> list[bytes]:
        assert self.reader is not None
        bodies: list[bytes] = []
        while (taken := self.reader.take(0)) is not None:
            self.got.append(taken)
            bodies += taken.batch.bodies.to_pylist()
        return bodies


def channel(directory: Path, **options: str) -> FileChannel:
    config, problems = FileChannelConfig.parse(
        {
            "checkpointDir": str(directory / "c"),
            "dataDirs": f"{directory / 'a'}, {directory / 'b'}",
            **OPTIONS,
            **options,
        }
    )
    assert not problems
    assert config is not None
    return FileChannel(config, "files")


def opened(directory: Path, **options: str) -> FileChannel:
    made = channel(directory, **options)
    made.open()
    return made


def consumer(of: FileChannel, member: str = "k") -> Owner:
    owner = Owner()
    owner.reader = of.reader(owner, group=None, member=member)
    return owner


def events(*numbers: int, size: int = 0) -> Batch:
    return Batch.of([Event(b"%d" % n + b" " * size, {"n": str(n)}) for n in numbers])


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("?/flafka-*.log"), key=lambda path: path.name)


def test_what_is_put_is_taken_in_order_and_again_after_a_rewind(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.put(events(1, 2))
    files.put(events(3))
    owner = consumer(files)
    assert owner.reader is not None
    taken = owner.reader.take(0)
    assert taken is not None, "small puts are handed out together"
    assert [event.headers["n"] for event in taken.batch] == ["1", "2", "3"]
    assert len({*taken.batch.ids()}) == 3
    owner.reader.rewind({0: taken.start})
    again = owner.reader.take(0)
    assert again is not None
    assert again.batch.ids() == taken.batch.ids()
    assert owner.reader.lag() == 0
    files.close()


def test_what_was_not_committed_comes_again_after_a_restart_with_the_same_ids(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.put(events(1))
    owner = consumer(files)
    assert owner.take_all() == [b"1"]
    owner.commit()
    files.put(events(2, 3))
    owner.take_all()
    ids = owner.got[0].batch.ids()
    files.close()

    files = opened(tmp_path)
    assert files.metrics.get("ChannelSize") == 2
    owner = consumer(files)
    assert owner.take_all() == [b"2", b"3"]
    assert owner.got[0].batch.ids() == ids
    owner.commit()
    assert files.metrics.get("ChannelSize") == 0
    files.close()


def test_files_that_are_delivered_are_deleted(tmp_path: Path) -> None:
    files = opened(tmp_path)
    for n in range(40):
        files.put(events(n, size=100_000))
    assert len(segments(tmp_path)) > 3
    assert {path.parent.name for path in segments(tmp_path)} == {"a", "b"}
    owner = consumer(files)
    assert [int(body) for body in owner.take_all()] == [*range(40)]
    owner.commit()
    assert len(segments(tmp_path)) == 1
    files.close()


def test_a_reader_that_is_about_to_begin_has_its_partition_alone(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.put(events(1))
    asked, go_on = threading.Event(), threading.Event()

    class Slow(Owner):
        """Looks at its record for a while before it begins."""

        def assigned(self, committed: Mapping[PartitionClaim, int | None]) -> Mapping[PartitionClaim, int | None]:
            asked.set()
            assert go_on.wait(60)
            return super().assigned(committed)

    slow = Slow()
    slow.reader = files.reader(slow, group=None, member="z")
    taken: list[bytes] = []
    taking = threading.Thread(target=lambda: taken.extend(slow.take_all()))
    taking.start()
    assert asked.wait(60)
    quick = consumer(files, "a")
    assert not quick.take_all(), "it is the other one's still"
    go_on.set()
    taking.join()
    assert taken == [b"1"]
    assert slow.take_all() == []
    assert quick.take_all() == [], "the other one has committed it as it gave the partition up"
    files.put(events(2, 3))
    files.put(events(4))
    assert sorted(quick.take_all() + slow.take_all()) == [b"2", b"3", b"4"]
    files.close()


def test_a_full_channel_blocks_until_a_sink_takes_its_events(tmp_path: Path) -> None:
    files = opened(tmp_path, capacity="2", transactionCapacity="1")
    files.put(events(1, 2))
    done = threading.Event()
    thread = threading.Thread(target=lambda: (files.put(events(3)), done.set()))
    thread.start()
    assert not done.wait(0.2)
    owner = consumer(files)
    owner.take_all()
    assert done.wait(60), "what is taken takes no room, though it is not committed: a sink may wait for much more"
    thread.join()
    owner.take_all()
    files.stopping.set()
    files.put(events(4, 5))
    with pytest.raises(Retry, match="no room"):
        files.put(events(6))
    assert owner.reader is not None
    owner.reader.rewind({0: owner.got[0].start})
    owner.got.clear()
    assert len(owner.take_all()) == 5
    files.put(events(6, 7))
    files.close()


def test_where_a_disk_is_full_what_is_taken_is_to_be_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = opened(tmp_path)
    files.stopping.set()
    files.put(events(1))
    owner = consumer(files)
    assert owner.reader is not None
    with monkeypatch.context() as patched:
        patched.setattr("channels.file.room", lambda _: 0)
        with pytest.raises(Retry, match="no room"):
            files.put(events(2))
        assert not owner.reader.pressed(), "nothing is taken"
        owner.take_all()
        assert owner.reader.pressed()
        owner.commit()
        assert not owner.reader.pressed()
    files.put(events(2))
    owner.take_all()
    assert not owner.reader.pressed()
    files.close()


def test_small_bounds_are_the_smallest(tmp_path: Path) -> None:
    files = opened(tmp_path, minimumRequiredSpace="1", maxFileSize="146435")
    assert (files.config.minimum_required_space, files.config.max_file_size) == (1 << 20, 1 << 20)
    files.close()


def test_a_full_disk_blocks_too_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = opened(tmp_path, minimumRequiredSpace=str(1 << 60))
    files.stopping.set()
    with pytest.raises(Retry, match="no room"):
        files.put(events(1))
    assert "less room than minimumRequiredSpace" in caplog.text
    assert any("MiB left, less than minimumRequiredSpace" in problem for problem in files.probe())
    files.close()


def test_a_write_or_a_sync_that_fails_stores_nothing_and_the_next_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = opened(tmp_path)
    files.put(events(1))
    for name, real in (("pwritev", os.pwritev), ("fdatasync", os.fdatasync)):
        with monkeypatch.context() as patched:

            def fails(descriptor: int, *rest: object, real: object = real) -> int:
                if rest:  # half of it is on the disk
                    os.pwrite(descriptor, b"FLE1", rest[-1])
                raise OSError(28, "No space left on device")

            patched.setattr(os, name, fails)
            with pytest.raises(Retry, match="No space left"):
                files.put(events(2))
        assert files.metrics.get("ChannelSize") == 1
    files.put(events(3))
    files.close()
    files = opened(tmp_path)
    assert consumer(files).take_all() == [b"1", b"3"]
    files.close()


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_torn_last_put_is_cut_off_and_said(tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture) -> None:
    files = opened(tmp_path)
    files.put(events(1))
    files.put(events(2))
    files.close()
    with segments(tmp_path)[-1].open("r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - cut)
    files = opened(tmp_path)
    assert "cut off" in caplog.text
    files.put(events(3))
    assert consumer(files).take_all() == [b"1", b"3"]
    files.close()


@pytest.mark.parametrize("which", [0, -1])
def test_damage_is_passed_over_and_counted(tmp_path: Path, which: int, caplog: pytest.LogCaptureFixture) -> None:
    files = opened(tmp_path)
    for n in range(30):
        files.put(events(n, size=100_000))
    files.close()
    path = segments(tmp_path)[which]
    content = bytearray(path.read_bytes())
    content[150_000] ^= 1  # of the second entry
    path.write_bytes(content)
    files = opened(tmp_path)
    owner = consumer(files)
    got = [int(body) for body in owner.take_all()]
    assert len(got) == 29
    assert got == sorted(set(got))
    assert files.metrics.get("EventLostCount") == 1
    assert "1 events that were stored in it are lost" in caplog.text
    assert "damaged" in files.metrics.degraded()
    owner.commit()
    assert files.metrics.get("ChannelSize") == 0
    files.close()


def test_after_damaged_positions_everything_comes_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = opened(tmp_path)
    files.put(events(1))
    owner = consumer(files)
    owner.take_all()
    owner.commit()
    files.close()
    positions = tmp_path / "c" / "flafka.positions"
    positions.write_bytes(positions.read_bytes().replace(b'"position": 1', b'"position": 7'))
    files = opened(tmp_path)
    assert "is damaged" in caplog.text
    assert consumer(files).take_all() == [b"1"]
    files.close()


def test_a_channel_begun_anew_gives_other_ids_and_ignores_positions_of_the_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ids = []
    for _ in range(2):
        files = opened(tmp_path)
        files.put(events(1))
        owner = consumer(files)
        assert owner.take_all() == [b"1"]
        ids += owner.got[0].batch.ids()
        owner.commit()
        files.close()
        for directory in ("a", "b"):
            for path in (tmp_path / directory).iterdir():
                path.unlink()
    assert ids[0] != ids[1]
    assert "about other files" in caplog.text


def test_numbers_of_what_was_delivered_are_not_given_again(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.put(events(1))
    files.put(events(2))
    owner = consumer(files)
    owner.take_all()
    ids = {*owner.got[0].batch.ids()}
    owner.commit()
    files.close()
    with segments(tmp_path)[-1].open("r+b") as file:
        file.truncate(0)  # the disk lost what it had said is stored
    files = opened(tmp_path)
    files.put(events(3))
    owner = consumer(files)
    assert owner.take_all() == [b"3"]
    assert not ids & {*owner.got[0].batch.ids()}
    files.close()


def test_readers_share_the_events_and_one_that_leaves_gives_them_to_the_others(tmp_path: Path) -> None:
    files = opened(tmp_path)
    first, second = consumer(files, "k1"), consumer(files, "k2")
    assert first.take_all() == second.take_all() == []
    for n in range(10):
        files.put(events(n))
    got, others = first.take_all(), second.take_all()
    assert len(got) == len(others) == 5
    second.commit()
    assert first.reader is not None
    first.reader.close()  # without a commit: the other one gets them
    assert sorted(second.take_all()) == sorted(got)
    third = consumer(files, "k0")
    assert third.take_all() == []  # what the second has taken it delivers first
    second.take_all()
    third.take_all()
    files.put(events(10))
    files.put(events(11))
    assert len(second.take_all()) == len(third.take_all()) == 1
    files.close()
    files = opened(tmp_path)
    alone = consumer(files, "k2")
    assert sorted(alone.take_all()) == [b"10", b"11"], "a restart with one sink delivers what two had"
    files.close()


def test_a_sinks_own_record_moves_the_position_and_is_kept_with_it(tmp_path: Path) -> None:
    files = opened(tmp_path)
    for n in range(3):
        files.put(events(n))
    owner = consumer(files)
    owner.answer = {0: 2}
    assert owner.take_all() == [b"2"]
    assert files.metrics.get("ChannelSize") == 1
    claim = owner.claims[0]._replace(epoch=5, record="hdfs:/x/.flafka")
    assert owner.reader is not None
    owner.reader.commit({claim: 3})
    files.close()
    files = opened(tmp_path)
    owner = consumer(files)
    owner.take_all()
    assert owner.claims[0] == claim
    files.close()


def test_a_sinks_own_record_is_ahead_of_what_the_disk_has_kept(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.put(events(0))
    owner = consumer(files)
    owner.answer = {0: 3}
    assert owner.take_all() == []
    files.put(events(3))
    assert owner.take_all() == [b"3"]
    assert owner.got[0].start == 3
    files.close()


def probed(directory: Path) -> tuple[list[str], str]:
    """What another process is told of the channel in that directory: by a check, and at its start."""
    made = channel(directory)
    cautions = [*made.probe()]
    with pytest.raises(Retry) as raised:
        made.open()
    return cautions, str(raised.value)


def test_directories_are_one_channels_alone(tmp_path: Path, forked: Forked) -> None:
    files = opened(tmp_path)
    with pytest.raises(Retry, match="used by channel files"):
        channel(tmp_path).open()
    cautions, refusal = forked.call(probed, tmp_path)
    told = f"{cautions}\n{refusal}"
    assert told.count(f"used by another process ({os.getpid()})") == 4, told
    assert [*files.probe()] == []
    files.close()
    assert [*channel(tmp_path).probe()] == []


def test_directories_of_several_channels_are_refused(tmp_path: Path) -> None:
    opened(tmp_path).close()
    (tmp_path / "b" / "flafka.channel").write_text("another")
    with pytest.raises(FlafkaError, match="files of several channels"):
        channel(tmp_path).open()


def test_a_capacity_of_nothing_is_the_default_as_in_flume() -> None:
    config, problems = FileChannelConfig.parse({"capacity": "0", "transactionCapacity": "-1"})
    assert config is not None, problems
    assert (config.capacity, config.transaction_capacity) == (1_000_000, 10_000)


def test_what_flume_has_left_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "log-3").write_bytes(b"")
    assert any("Flume's file channel" in caution for caution in channel(tmp_path).probe())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encryption.activeKey": "k"}, "events are not encrypted here"),
        ({"capacity": "5", "transactionCapacity": "10"}, "must be at most capacity, 5"),
        ({"dataDirs": " , "}, "names no directory"),
    ],
)
def test_options_that_cannot_be(options: dict[str, str], message: str) -> None:
    _, problems = FileChannelConfig.parse(options)
    assert message in problems[0].message


def put_and_take(directory: Path, round: int, acknowledged: Connection, delivered: Connection) -> None:
    """Until it is killed."""
    files = opened(directory)

    def put(writer: int) -> None:
        for n in range(10**9):
            files.put(Batch.of([Event(b"%d %d" % (writer, n))]))
            os.write(acknowledged.fileno(), b"%d %d\n" % (writer, n))

    for writer in range(4):
        threading.Thread(target=put, args=(round * 4 + writer,)).start()
    owner = consumer(files)
    while True:
        for taken in iter(lambda: owner.reader.take(0.01), None):
            owner.got.append(taken)
            for body, id in zip(taken.batch.bodies.to_pylist(), taken.batch.ids(), strict=True):
                os.write(delivered.fileno(), b"%s %s\n" % (body, str(id).encode()))
            owner.commit()


def test_nothing_that_was_acknowledged_is_lost_by_kills(tmp_path: Path, forked: Forked) -> None:
    acknowledged: set[str] = set()
    delivered: dict[str, str] = {}
    for round in range(4):
        pipes = [Pipe(duplex=False) for _ in range(2)]
        process = forked.start(put_and_take, tmp_path, round, *(there for _, there in pipes))
        for _, there in pipes:
            there.close()
        with contextlib.ExitStack() as stack:
            answers, takes = (stack.enter_context(os.fdopen(os.dup(here.fileno()), "rb")) for here, _ in pipes)
            taken_lines: list[bytes] = []
            reader = threading.Thread(target=lambda pipe=takes, to=taken_lines: to.extend(pipe))
            reader.start()
            lines = [answers.readline() for _ in range(400)]
            process.kill()
            lines += answers.readlines()
            process.join()
            reader.join()
        for here, _ in pipes:
            here.close()
        acknowledged |= {line.decode().strip() for line in lines if line.endswith(b"\n")}
        for line in taken_lines:
            writer, n, id = line.decode().split()
            assert delivered.setdefault(id, f"{writer} {n}") == f"{writer} {n}", "an id is given to two events"
    files = opened(tmp_path)
    owner = consumer(files)
    rest = {body.decode() for body in owner.take_all()}
    for taken in owner.got:
        for id, event in zip(taken.batch.ids(), taken.batch, strict=True):
            assert delivered.setdefault(str(id), event.body.decode()) == event.body.decode()
    files.close()
    assert acknowledged <= {*delivered.values(), *rest}
    assert len(acknowledged) >= 1600
    assert max(Counter(delivered.values()).values()) == 1, "no event is stored twice"


class Model(RuleBasedStateMachine):
    """Puts, takes, commits, rewinds and crashes in any order, beside a plain list of what should be there."""

    @initialize()
    def begin(self) -> None:
        logging.disable(logging.CRITICAL)
        self.disk = mock.patch.multiple(os, fsync=lambda _: None, fdatasync=lambda _: None)  # power stays
        self.disk.start()
        self.place = tempfile.TemporaryDirectory()
        self.directory = Path(self.place.name)
        self.files = opened(self.directory)
        self.owner = consumer(self.files)
        self.waiting: list[bytes] = []
        self.taken = 0
        self.number = 0

    @rule(count=st.integers(1, 3), size=st.sampled_from([0, 0, 300_000]))
    def put(self, count: int, size: int) -> None:
        batch = events(*range(self.number, self.number + count), size=size)
        self.number += count
        self.files.put(batch)
        self.waiting += batch.bodies.to_pylist()

    @rule()
    def take(self) -> None:
        got = self.owner.take_all()
        assert got == self.waiting[self.taken :]
        self.taken = len(self.waiting)

    @precondition(lambda self: self.owner.got)
    @rule()
    def commit(self) -> None:
        self.owner.commit()
        self.waiting = self.waiting[self.taken :]
        self.taken = 0

    @precondition(lambda self: self.owner.got)
    @rule()
    def rewind(self) -> None:
        assert self.owner.reader is not None
        self.owner.reader.rewind({0: self.owner.got[0].start})
        self.owner.got.clear()
        self.taken = 0

    @rule(torn=st.binary(max_size=100))
    def crash(self, torn: bytes) -> None:
        self.files.close()
        with segments(self.directory)[-1].open("ab") as file:
            file.write(torn)
        self.files = opened(self.directory)
        self.owner = consumer(self.files)
        self.taken = 0

    @invariant()
    def size(self) -> None:
        if hasattr(self, "files"):
            assert self.files.metrics.get("ChannelSize") == len(self.waiting)
            share = (len(self.waiting) - self.taken) / self.files.config.capacity
            assert self.files.metrics.get("ChannelFillPercentage") == pytest.approx(100 * share)

    def teardown(self) -> None:
        logging.disable(logging.NOTSET)
        self.disk.stop()
        if hasattr(self, "files"):
            self.files.close()
            self.place.cleanup()


TestModel = Model.TestCase


def test_an_event_is_found_by_its_id_until_it_is_delivered(tmp_path: Path) -> None:
    writer, owner = opened(tmp_path), Owner()
    owner.reader = writer.reader(owner, group=None, member="k")
    owner.take_all()
    writer.put(Batch.of([Event(b"a"), Event(b"b", {"host": "h"})]))
    assert owner.take_all() == [b"a", b"b"]
    id = owner.got[0].batch.id(1)
    onlooker = channel(tmp_path)  # another process's, while the channel is open
    found = onlooker.find(id, {None})
    assert found is not None
    assert found.taken is not None
    assert (found.missing, found.taken.batch.ids()[1], [*found.taken.batch][1].body) == ("", id, b"b")
    assert found.positions[None][1] == 0
    outside = onlooker.find(id._replace(index=7), {None})
    assert outside is not None
    assert outside.missing == "entry 0 holds 2 events, numbered from 0"
    assert onlooker.find(id._replace(topic="another"), {None}) is None

    owner.commit()
    writer._log.begin()  # so that the segment can go
    writer.put(Batch.of([Event(b"c")]))
    owner.take_all()
    owner.commit()
    gone = onlooker.find(id, {None})
    assert gone is not None
    assert (gone.taken, gone.missing) == (None, "it was delivered, and its file was deleted")
    writer.close()
