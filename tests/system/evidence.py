"""Numbered lines, and their state in the files, in the channel and on HDFS."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from flafka.agent.audit.reconciliation import HdfsReader, lines, reconcile
from flafka.plugins import PolledBatch

_WITHIN_A_LINE = bytes.maketrans(b"\r\n", b"rn")


def line(seed: int, number: int) -> bytes:
    """Return line `number`: 9 to 20,000 bytes, always the same; a fifth of the lines are not UTF-8."""
    digest = hashlib.blake2b(b"%d %d" % (seed, number), digest_size=32).digest()
    length = 20_000 if number % 997 == 0 else digest[0]
    text = digest.translate(_WITHIN_A_LINE) if number % 5 == 0 else digest.hex().encode()
    return b"%08d %s" % (number, (text * (length // len(text) + 1))[:length])


class Snapshot(HdfsReader):
    """Copy of all files below a directory, which can be audited repeatedly and tampered with."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files

    @classmethod
    def of(cls, hdfs: HdfsReader, root: str) -> "Snapshot":
        return cls({path: hdfs.read(path) for path in hdfs.walk(root)})

    def walk(self, root: str) -> Iterator[str]:
        return (path for path in sorted(self.files) if path.startswith(f"{root}/"))

    def read(self, path: str) -> bytes:
        return self.files[path]


@dataclass(frozen=True)
class Evidence:
    """Channel, files and positions at the end of a campaign, and the number of lines written."""

    seed: int
    written: int
    records: dict[int, list[PolledBatch]]
    """Events of the channel by partition."""
    hdfs: Snapshot
    root: str

    def with_files(self, changes: dict[str, bytes | None]) -> "Evidence":
        """Return this evidence with some files changed or removed."""
        files = {path: data for path, data in {**self.hdfs.files, **changes}.items() if data is not None}
        return replace(self, hdfs=Snapshot(files))

    @property
    def bodies(self) -> list[bytes]:
        """Return every event of the channel."""
        return [body for polled in self.records.values() for poll in polled for body in poll.batch.bodies.to_pylist()]

    def differences(self) -> list[str]:
        """Return a sentence for each broken promise."""
        books = reconcile(self.records, self.hdfs, self.root)
        problems = list(books.differences)
        if books.channel_events != books.delivered_events:
            problems.append(
                f"the channel holds {books.channel_events} events, {books.delivered_events} were delivered"
            )
        # The audit trusts the commit log about the contents of files. This check reads only the lines.
        channel = Counter(self.bodies)
        delivered = Counter(row for path in self.hdfs.visible(self.root) for row in lines(self.hdfs.read(path)))
        problems += [f"in the channel and not on HDFS: {body[:40]!r}" for body in channel - delivered]
        problems += [f"on HDFS and not in the channel: {body[:40]!r}" for body in delivered - channel]
        numbers = {int(body[:8]) for body in channel if body[:8].isdigit()}
        problems += [f"line {number} was never stored" for number in range(self.written) if number not in numbers]
        problems += [
            f"in the channel, but not as written: {body[:40]!r}" for body in channel if not self._wrote(body)
        ]
        problems += [f"left behind: {path}" for path in self.hdfs.walk(f"{self.root}/.flafka/tmp")]
        return problems

    def _wrote(self, body: bytes) -> bool:
        number = int(body[:8]) if body[:8].isdigit() else self.written
        return number < self.written and body == line(self.seed, number)

    def repeated(self) -> tuple[int, int]:
        """Return the number of repeated events in the channel, and of batches that a later one repeats in part."""
        batches = [poll.batch for polled in self.records.values() for poll in polled]
        batches.sort(key=lambda batch: int(batch.origin.timestamps[0]) if batch.origin else 0)
        last: dict[bytes, int] = {}
        repeated: set[int] = set()
        events = 0
        for index, batch in enumerate(batches):
            for body in batch.bodies.to_pylist():
                if body in last:
                    repeated.add(last[body])
                    events += 1
                last[body] = index
        return events, len(repeated)
