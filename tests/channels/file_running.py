"""File channels in directories of a test, and a reader of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from flafka.channels.file import FileChannel, FileChannelConfig
from flafka.plugins import Assignment, Batch, Event, PolledBatch, Reader

OPTIONS = {"maxFileSize": str(1 << 20), "minimumRequiredSpace": str(1 << 20)}


class Owner:
    """Owner that delivers its events when its partition is revoked."""

    def __init__(self) -> None:
        self.assignments: dict[int, Assignment] = {}
        self.reader: Reader | None = None
        self.got: list[PolledBatch] = []
        self.answer: Mapping[int, int] = {}
        """End of a sink's commit log by partition."""

    def assigned(self, committed: Sequence[Assignment]) -> Sequence[Assignment]:
        self.assignments.update({assignment.partition: assignment for assignment in committed})
        return [
            assignment.with_offset(self.answer.get(assignment.partition, assignment.next_offset))
            for assignment in committed
        ]

    def revoked(self, partitions: set[int]) -> None:
        self.commit()
        for partition in partitions:
            del self.assignments[partition]

    def lost(self, partitions: set[int]) -> None:
        raise AssertionError("a file channel takes nothing away from a reader that could commit it")

    def commit(self) -> None:
        assert self.reader is not None
        ends = {polled.assignment.partition: polled.offsets.end for polled in self.got}
        self.reader.commit([self.assignments[partition].with_offset(end) for partition, end in ends.items()])
        self.got.clear()

    def take_all(self) -> list[bytes]:
        assert self.reader is not None
        bodies: list[bytes] = []
        while (polled := self.reader.take(0)) is not None:
            self.got.append(polled)
            bodies += polled.batch.bodies.to_pylist()
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
    files = channel(directory, **options)
    files.open()
    return files


def consumer(of: FileChannel, member: str = "k") -> Owner:
    owner = Owner()
    owner.reader = of.reader(owner, group=None, member=member)
    return owner


def events(*numbers: int, size: int = 0) -> Batch:
    return Batch.of([Event(b"%d" % n + b" " * size, {"n": str(n)}) for n in numbers])


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("?/flafka-*.log"), key=lambda path: path.name)
