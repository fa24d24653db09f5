"""File channels in directories of a test, and one that reads them."""

from collections.abc import Mapping
from pathlib import Path

from flafka.channels.file import FileChannel, FileChannelConfig
from flafka.plugins import Batch, Event, PartitionClaim, Reader, Taken

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
