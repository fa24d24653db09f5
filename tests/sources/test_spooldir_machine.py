"""Source `spooldir` under kills at any system call and changes of a directory, in any order.

Each line is numbered: none is lost, lines of a file keep their order, and a kill repeats one batch at most.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from flafka.sources.spooldir import SpooldirSource
from flafka.sources.spooldir import directory as directory_module
from flafka.sources.spooldir import tracker as tracker_module
from tests.fixtures.examples import examples
from tests.sources.descriptors import open_files
from tests.sources.spooldir_running import start
from tests.sources.test_spooldir_reuse import later


class Killed(BaseException):
    """Death by SIGKILL."""


class Calls:
    """Functions that change the disk: the process may end before or after the next one."""

    PLACES = (
        (directory_module.os, "rename"),
        (directory_module.os, "unlink"),
        (tracker_module, "replace_file"),
        (tracker_module.os, "pwrite"),
    )

    def __init__(self) -> None:
        self.left: int | None = None
        """Number of calls before the kill; two a function, before it and after it."""
        self.patch = pytest.MonkeyPatch()
        for module, name in self.PLACES:
            self.patch.setattr(module, name, self.counted(getattr(module, name), opens=name == "replace_file"))

    def counted(self, real: Callable[..., Any], *, opens: bool) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.count()
            answer = real(*arguments, **options)
            try:
                self.count()
            except Killed:
                if opens:
                    os.close(answer)  # as the end of a process does
                raise
            return answer

        return call

    def count(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise Killed


class Machine(RuleBasedStateMachine):
    options: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp())
        self.spool = self.home / "spool"
        self.spool.mkdir()
        self.calls = Calls()
        self.source: SpooldirSource | None = None
        self.written: dict[str, list[bytes]] = {}
        """Lines by file."""
        self.excused: set[bytes] = set()
        """Lines of files that somebody changed or removed before they were read."""
        self.seen: list[bytes] = []
        self.repeated: Counter[bytes] = Counter()
        self.number = 0
        self.files = 0
        self.clock = 1_700_000_000

    def begin(self) -> SpooldirSource:
        if self.source is None:
            self.source = start(self.spool, batchSize="3", **self.options)
        return self.source

    def run(self, batches: int | None, *, stored: bool) -> None:
        """Read this many batches, or all; the last one reaches the channel, or is `stored`."""
        source = self.begin()
        lines: list[bytes] = []
        try:
            for batch in source.poll():
                lines = batch.bodies.to_pylist()
                if batches == 0 and not stored:
                    self.repeated.update(lines)
                    self.seen += lines
                    break
                self.seen += lines
                source.stored(batch)
                lines = []
                if batches is not None:
                    batches -= 1
                    if batches < 0:
                        break
        except Killed:
            self.repeated.update(lines)
            self.stop()

    # --- the source

    @rule()
    def read(self) -> None:
        self.run(None, stored=True)

    @rule(batches=st.integers(0, 4), stored=st.booleans())
    def stop_in_the_middle(self, batches: int, stored: bool) -> None:
        self.run(batches, stored=stored)
        self.stop()

    @rule(calls=st.integers(0, 12))
    def kill_at_a_call(self, calls: int) -> None:
        self.calls.left = calls
        self.run(None, stored=True)
        self.calls.left = None

    @precondition(lambda self: self.source is not None)
    @rule()
    def stop(self) -> None:
        assert self.source is not None
        self.source.close()
        self.source = None

    # --- the directory

    @rule(count=st.integers(0, 11), unfinished=st.booleans(), packed=st.booleans(), older=st.booleans())
    def put(self, count: int, unfinished: bool, packed: bool, older: bool) -> None:
        self.files += 1
        lines = []
        for _ in range(count):
            self.number += 1
            lines.append(b"%06d" % self.number)
        data = b"".join(line + b"\n" for line in lines)
        data = data[:-1] if unfinished else data
        path = self.spool / f"f{self.files}"
        hidden = path.with_name(".written")
        hidden.write_bytes(gzip.compress(data) if packed else data)
        self.clock += -1000 if older else 1
        os.utime(hidden, (self.clock, self.clock))
        hidden.rename(path)
        self.written[path.name] = lines

    def present(self) -> list[Path]:
        return sorted(path for path in self.spool.glob("f*") if path.name in self.written)

    @precondition(lambda self: self.present())
    @rule(data=st.data(), action=st.sampled_from(["remove", "grow", "take the name", "replace", "copy"]))
    def interfere(self, data: st.DataObject, action: str) -> None:
        path = data.draw(st.sampled_from(self.present()))
        # Its inode may be given to another file; their creation times distinguish the two.
        later()
        if action == "remove":
            self.excused.update(self.written.pop(path.name))
            path.unlink()
        elif action == "grow":
            self.excused.update(self.written[path.name])
            with path.open("ab") as file:
                file.write(b"#")
        elif action == "take the name":
            path.with_name(path.name + ".COMPLETED").touch()
        elif action == "copy":  # as from another disk: another file, with the same content and the same time
            shutil.copy2(path, path.with_name(".copy"))
            path.with_name(".copy").rename(path)
            # The unread lines of the one before are read again.
            self.repeated.update(self.written[path.name])
        else:
            self.excused.update(self.written[path.name])
            self.number += 1
            line = b"%06d" % self.number
            path.with_name(".written").write_bytes(line)
            path.with_name(".written").rename(path)
            self.written[path.name] = [line]
            if (self.spool / ".flumespool" / f"{path.name}.COMPLETED").exists():
                self.excused.add(line)  # a file of that name counts as read

    def teardown(self) -> None:
        try:
            self.calls.left = None
            self.run(None, stored=True)
            self.stop()
            self.run(None, stored=True)
            self.stop()
            assert open_files(self.home) == []
            self.check()
        finally:
            self.calls.patch.undo()
            if self.source is not None:
                self.source.close()
            shutil.rmtree(self.home)

    def check(self) -> None:
        counts = Counter(line for line in self.seen if line.isdigit())
        for name, lines in self.written.items():
            firsts = [line for line in dict.fromkeys(self.seen) if line in set(lines)]
            assert firsts == sorted(firsts), f"{name} out of order"
            missing = [line for line in lines if not counts[line] and line not in self.excused]
            assert not missing, f"{name} lost {missing}"
        for line, times in counts.items():
            assert times <= 1 + self.repeated[line] or line in self.excused, f"{line!r} came {times} times"


class Deleting(Machine):
    options: ClassVar[dict[str, str]] = {"deletePolicy": "immediate"}


class Marking(Machine):
    options: ClassVar[dict[str, str]] = {"trackingPolicy": "tracker_dir"}


@pytest.mark.parametrize("machine", [Machine, Deleting, Marking])
def test_nothing_is_lost(machine: type[Machine]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples(60),
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
        ),
    )
