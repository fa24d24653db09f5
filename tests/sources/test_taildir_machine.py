"""Source `taildir` under all changes of a log, in any order: each line is numbered.

Two machines: one whose files stay open, one that closes each file as soon as it was read.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from flafka.sources.taildir import TaildirSource
from tests.fixtures.examples import examples
from tests.sources.descriptors import open_files
from tests.sources.taildir_running import kill, process, start

PACKERS: list[tuple[Callable[[bytes], bytes], str]] = [
    (gzip.compress, "gz"),
    (bz2.compress, "bz2"),
    (lzma.compress, "xz"),
    (lambda data: pa.compress(data, "zstd", asbytes=True), "zst"),
]
HEAD = b"#" * 1200
"""Some files begin with the same line, longer than the head that identifies a file."""


@dataclass
class Log:
    """File as its writers know it."""

    path: Path
    known: bool = False
    """True if the source has read and saved some of it: only then can it follow the file everywhere."""
    read: bool = True
    """True if all written lines are stored."""
    partial: bool = False
    matches: bool = True
    writer: int = field(default=-1)

    def write(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)
        self.read = False


class Machine(RuleBasedStateMachine):
    options: ClassVar[dict[str, str]] = {"batchSize": "3", "idleTimeout": "3600000"}
    closes = False

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        (self.directory / "logs").mkdir()
        self.logs: dict[str, Log] = {}
        """Files by name, those that still have one."""
        self.written: Counter[bytes] = Counter()
        self.seen: Counter[bytes] = Counter()
        self.unstored: Counter[bytes] = Counter()
        self.number = 0
        self.rotations = 0
        self.source: TaildirSource | None = None
        self.held = False
        """True if the source alone holds an unread file: stopped now, any reader would lose it."""
        self.begin()

    # --- the source

    def begin(self) -> None:
        self.source = start(self.directory, r"[ab](\.\d+)?(\.gz)?", **self.options)

    @rule()
    def read(self) -> None:
        if self.source is None:
            self.begin()
        assert self.source is not None
        self.seen.update(body for body, _ in process(self.source))
        self.held = False
        for log in self.logs.values():
            log.read = True
            log.known = log.known or log.path.stat().st_size > 0

    @precondition(lambda self: self.source is not None and not self.held)
    @rule(batches=st.integers(0, 3), stored=st.booleans())
    def stop_in_the_middle(self, batches: int, stored: bool) -> None:
        """SIGKILL: some batches are stored, and another had been yielded, or was stored but not acknowledged."""
        source, self.source = self.source, None
        assert source is not None
        with contextlib.closing(source.poll()) as polled:
            for batch in polled:
                lines = batch.bodies.to_pylist()
                if not batches:
                    if stored:
                        self.seen.update(lines)
                        self.unstored.update(lines)
                    break
                batches -= 1
                self.seen.update(lines)
                source.stored(batch)
            kill(source)

    @precondition(lambda self: self.source is not None and not self.held)
    @rule()
    def stop(self) -> None:
        assert self.source is not None
        self.source.close()
        self.source = None

    @precondition(lambda self: self.source is None)
    @rule()
    def resume(self) -> None:
        self.begin()

    # --- the writers

    def line(self, width: int) -> bytes:
        self.number += 1
        # Numbered at its end as well: the last read bytes identify a file, beside its head.
        body = b"%06d%s%06d" % (self.number, b"." * width, self.number)
        self.written[body] += 1
        return body

    def log(self, name: str) -> Log:
        if name not in self.logs:
            self.logs[name] = Log(self.directory / "logs" / name)
            self.logs[name].path.touch()
        return self.logs[name]

    @rule(
        name=st.sampled_from("ab"), widths=st.lists(st.integers(0, 200), min_size=1, max_size=8), head=st.booleans()
    )
    def append(self, name: str, widths: list[int], head: bool) -> None:
        log = self.log(name)
        if head and not log.path.stat().st_size:
            self.number += 1
            body = HEAD + b"%06d" % self.number
            self.written[body] += 1
            log.write(body + b"\n")
        log.write(b"".join((b"" if log.partial and not i else self.line(w)) + b"\n" for i, w in enumerate(widths)))
        log.partial = False

    @rule(name=st.sampled_from("ab"), width=st.integers(0, 200))
    def append_without_newline(self, name: str, width: int) -> None:
        log = self.log(name)
        if not log.partial:
            log.write(self.line(width))
            log.partial = True

    @precondition(lambda self: self.logs)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        log = self.logs[data.draw(st.sampled_from(sorted(self.logs)))]
        if log.partial:
            log.write(b"\n")
            log.partial = False

    def movable(self, log: Log) -> bool:
        # Once closed, a file without a newline at its end counts as complete as soon as it is renamed.
        return log.known and not (self.closes and log.partial)

    @precondition(lambda self: self.logs)
    @rule(data=st.data(), matching=st.booleans(), create=st.booleans())
    def rotate(self, data: st.DataObject, matching: bool, create: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.logs)))
        log = self.logs[name]
        if not self.movable(log):
            return
        self.rotations += 1
        base = name.partition(".")[0]
        fresh = f"{base}.{self.rotations}" if matching else f"{base}.{self.rotations}.old"
        log.path = log.path.rename(log.path.with_name(fresh))
        self.logs[fresh] = self.logs.pop(name)
        log.matches = matching
        if create:
            self.log(base)

    @precondition(lambda self: self.logs)
    @rule(data=st.data(), create=st.booleans())
    def delete(self, data: st.DataObject, create: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.logs)))
        log = self.logs[name]
        holds = self.source is not None and log.known and not self.closes
        if log.partial or not (log.read or holds):
            return
        self.held = self.held or not log.read
        log.path.unlink()
        del self.logs[name]
        if create:
            self.log(name.partition(".")[0])

    @precondition(lambda self: self.logs)
    @rule(data=st.data(), width=st.integers(0, 200), copies=st.integers(0, 6))
    def copytruncate(self, data: st.DataObject, width: int, copies: int) -> None:
        log = self.logs[data.draw(st.sampled_from(sorted(self.logs)))]
        if not log.read or log.partial or not log.matches:
            return
        shutil.copy(log.path, log.path.with_name("copy"))
        os.truncate(log.path, 0)
        log.known = False
        if copies:
            log.write(b"".join(self.line(width) + b"\n" for _ in range(copies)))

    @precondition(lambda self: any(log.known and not log.partial for log in self.logs.values()))
    @rule(data=st.data(), packed=st.booleans())
    def replace_by_copy(self, data: st.DataObject, packed: bool) -> None:
        """Replace a file by its copy like `compress` of logrotate, or a rotation onto another disk; read or not."""
        names = sorted(name for name, log in self.logs.items() if log.known and not log.partial)
        name = data.draw(st.sampled_from(names))
        log = self.logs.pop(name)
        self.rotations += 1
        content = log.path.read_bytes()
        base = name.partition(".")[0]
        if packed:
            pack, suffix = data.draw(st.sampled_from(PACKERS))
            log.path.with_name(f"{base}.{self.rotations}.{suffix}").write_bytes(pack(content))
            log.path.unlink()
        else:
            fresh = f"{base}.{self.rotations}.old"
            log.path.unlink()
            log.path.with_name(fresh).write_bytes(content)

    # --- invariants

    @invariant()
    def nothing_comes_twice_that_was_acknowledged(self) -> None:
        assert self.seen <= self.written + self.unstored

    def teardown(self) -> None:
        try:
            for log in self.logs.values():
                if log.partial:
                    log.write(b"\n")
            self.read()
            missing = self.written - self.seen
            assert not missing, f"lost: {missing}"
            self.nothing_comes_twice_that_was_acknowledged()
        finally:
            if self.source is not None:
                self.source.close()
            shutil.rmtree(self.directory)
        assert open_files(self.directory) == []


class ClosingMachine(Machine):
    """Machine whose files are closed once they are read, without events of the kernel."""

    options: ClassVar[dict[str, str]] = {"batchSize": "3", "idleTimeout": "0", "inotify": "false"}
    closes = True


SETTINGS = settings(
    max_examples=examples(20),
    stateful_step_count=25,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)

TestOpen = Machine.TestCase
TestOpen.settings = SETTINGS
TestClosing = ClosingMachine.TestCase
TestClosing.settings = SETTINGS


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", [Machine, ClosingMachine])
def test_ten_thousand_sequences(machine: type[Machine]) -> None:
    run_state_machine_as_test(machine, settings=settings(SETTINGS, max_examples=10_000, database=None))
