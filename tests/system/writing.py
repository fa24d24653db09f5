"""Application that writes numbered lines into log files, and rotates them."""

import random
import threading
import time
from pathlib import Path

from tests.system.evidence import line

TRICKLE = 20
"""Lines a second while no lines are requested, so that some are always in flight."""


class Writer(threading.Thread):
    """Application that writes lines into two log files, which are rotated by renaming now and then."""

    def __init__(self, directory: Path, seed: int, rate: int) -> None:
        super().__init__(name="writer", daemon=True)
        directory.mkdir()
        self.paths = [directory / "a.log", directory / "b.log"]
        self.files = [path.open("ab", buffering=0) for path in self.paths]
        self.rotations = 0
        self.written = 0
        self.wanted = 0
        """Number of lines to write at full rate; a trickle follows."""
        self.last: int | None = None
        """Number of the first line that is not written; None: no end yet."""
        self._seed, self._rate, self._chance = seed, rate, random.Random(seed)

    def finish(self, lines: int) -> None:
        """Write up to that many lines and end."""
        self.last = self.wanted = max(lines, self.written)

    def run(self) -> None:
        owed = 0.0
        while self.last is None or self.written < self.last:
            time.sleep(0.02)
            owed += 0.02 * (self._rate if self.written < self.wanted else TRICKLE)
            upto = self.written + int(owed)
            owed -= int(owed)
            self._write(upto if self.last is None else min(upto, self.last))
        for file in self.files:
            file.close()

    def _write(self, upto: int) -> None:
        chosen = self._chance.randrange(2)
        text = b"".join(line(self._seed, number) + b"\n" for number in range(self.written, upto))
        file = self.files[chosen]
        rotate = self._chance.random() < (upto - self.written) / 2000
        if rotate:
            self.rotations += 1
            # and writes into the renamed file for a moment
            self.paths[chosen].rename(f"{self.paths[chosen]}.{self.rotations}")
        cut = self._chance.randrange(len(text) + 1)
        for part in (text[:cut], text[cut:]):
            while part:
                part = part[file.write(part) :]
        self.written = upto
        if rotate:
            file.close()
            self.files[chosen] = self.paths[chosen].open("ab", buffering=0)
