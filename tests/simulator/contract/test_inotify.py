"""The model of inotify, and of the process that opens files by it, does what the kernel does for `taildir`."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flafka.sources.taildir.watcher import NameEvent, NameWatcher
from tests.simulator.files.disk import Disk
from tests.simulator.files.inotify import MOST_QUEUED, NamesModel
from tests.simulator.world import World

PATTERNS = ["app[.]log", r"\d+"]


class Kernel:
    """Files in directories, and the events that inotify reports of them."""

    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())

    def __init__(self, home: Path) -> None:
        self.home, self.told = home, list[NameEvent | str]()
        (home / "logs").mkdir()
        (home / "elsewhere").mkdir()
        self.names = self._watching(self.told.append, lambda: self.told.append("overflow"))
        self.names.add(str(home / "logs"), PATTERNS)
        self.names.wait_ready()

    def _watching(self, tell: Callable[[NameEvent], None], overflow: Callable[[], None]) -> Any:
        return NameWatcher(on_event=tell, on_overflow=overflow, on_end=self.told.append, on_sync=lambda _: None)

    def create(self, path: Path) -> None:
        path.touch()

    def append(self, path: Path, data: bytes) -> None:
        with path.open("ab") as file:
            file.write(data)

    def rename(self, path: Path, to: Path) -> Path:
        return path.rename(to)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def mkdir(self, path: Path) -> None:
        path.mkdir()

    def rmdir(self, path: Path) -> None:
        path.rmdir()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Within it, the process that opens files sleeps."""
        pid = self.names._process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
                self.sleep()
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def sleep(self) -> None:
        time.sleep(0.02)

    def until(self, *expected: Any) -> list[NameEvent | str]:
        """Return the events up to that one, and assert that no other follows."""
        end = self.home / "logs" / "1000000"
        self.create(end)  # a name that comes last
        deadline = time.monotonic() + 60
        while not any(isinstance(one, NameEvent) and one.path == str(end) for one in self.told):
            assert time.monotonic() < deadline, self.told[-5:]
            self.sleep()
        found = [one for one in self.told if isinstance(one, str) or one.path != str(end)]
        told = [one if isinstance(one, str) else (one.kind, Path(one.path).name) for one in found]
        if told != [*expected]:  # they may be very many
            raise AssertionError(f"{len(told)} and not {len(expected)}: {told[:9]} … {told[-9:]}")
        return found


class Model(Kernel):
    """Model of the kernel within a simulation."""

    most = MOST_QUEUED

    def __init__(self, home: Path, world: World) -> None:
        self.world = world
        self.disk = world.models["disk"] = Disk(world, home)
        super().__init__(home)
        for name in ("create", "append", "rename", "unlink", "mkdir", "rmdir"):
            setattr(self, name, getattr(self.disk, name))

    def _watching(self, tell: Callable[[NameEvent], None], overflow: Callable[[], None]) -> Any:
        return NamesModel(on_event=tell, on_overflow=overflow, on_end=self.told.append, on_sync=lambda _: None)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self.names.process.pause(5)
        yield

    def sleep(self) -> None:
        self.world.sleep(0.02)


@pytest.fixture
def kernel(world: World | None, tmp_path: Path) -> Iterator[Callable[[], Kernel]]:
    """To be called in the test, which runs where the model's threads do."""
    made: list[Kernel] = []

    def make() -> Kernel:
        made.append(Kernel(tmp_path) if world is None else Model(tmp_path, world))
        return made[-1]

    yield make
    for one in made if world is None else ():
        one.names.close()
    for named in (named for one in made for named in one.told):
        if isinstance(named, NameEvent) and named.fd is not None:
            os.close(named.fd)


def key(path: Path) -> tuple[int, int]:
    return path.stat().st_dev, path.stat().st_ino


def test_a_created_file_is_reported_with_its_descriptor(kernel: Any) -> None:
    at = kernel()
    log = at.home / "logs" / "app.log"
    with at.held():
        at.create(log)
        at.append(log, b"one\n")
    (created,) = at.until(("created", "app.log"))
    assert created.key == key(log)
    assert os.pread(created.fd, 100, 0) == b"one\n"
    at.append(log, b"two\n")
    assert os.pread(created.fd, 100, 0) == b"one\ntwo\n"


def test_a_file_of_another_name_is_reported_once_it_is_renamed_to_match(kernel: Any) -> None:
    at = kernel()
    log = at.home / "logs" / "app.log"
    at.create(log.with_name("other"))
    at.rename(log.with_name("other"), log)
    left, arrived = at.until(("moved_from", "other"), ("moved_to", "app.log"))
    assert left.cookie == arrived.cookie > 0
    assert (left.key, arrived.key) == (None, key(log))


def test_moves_within_out_and_in(kernel: Any) -> None:
    at = kernel()
    log, elsewhere = at.home / "logs" / "app.log", at.home / "elsewhere" / "any"
    at.create(log)
    at.rename(log, log.with_name("app.log.1"))
    at.rename(log.with_name("app.log.1"), elsewhere)
    at.rename(elsewhere, log.with_name("anything"))
    found = at.until(
        ("created", "app.log"), ("moved_from", "app.log"), ("moved_to", "app.log.1"), ("moved_from", "app.log.1"),
        ("moved_to", "anything"),
    )  # fmt: skip
    assert found[1].cookie == found[2].cookie
    assert len({one.cookie for one in found[1:]}) == 3
    assert found[-1].key == key(log.with_name("anything"))


def test_a_file_that_takes_the_place_of_another_one(kernel: Any) -> None:
    """A replaced file causes no event of its own."""
    at = kernel()
    log = at.home / "logs" / "app.log"
    at.create(log)
    at.create(log.with_name("new"))
    at.rename(log.with_name("new"), log)
    *_, arrived = at.until(("created", "app.log"), ("moved_from", "new"), ("moved_to", "app.log"))
    assert arrived.key == key(log)


def test_a_file_that_was_gone_before_it_could_be_opened(kernel: Any) -> None:
    at = kernel()
    log = at.home / "logs" / "app.log"
    with at.held():
        at.create(log)
        at.unlink(log)
        at.create(log.with_name("7"))
        at.rename(log.with_name("7"), log.with_name("8"))
    found = at.until(
        ("created", "app.log"), ("deleted", "app.log"), ("created", "7"), ("moved_from", "7"), ("moved_to", "8")
    )  # fmt: skip
    assert [(one.key, one.fd is not None) for one in found] == [(None, False)] * 4 + [(key(log.with_name("8")), True)]


def test_another_file_may_have_the_name_when_it_is_opened(kernel: Any) -> None:
    at = kernel()
    log = at.home / "logs" / "app.log"
    with at.held():
        at.create(log)
        at.rename(log, log.with_name("8"))
        at.create(log)
    first, _, _, second = at.until(
        ("created", "app.log"), ("moved_from", "app.log"), ("moved_to", "8"), ("created", "app.log")
    )
    assert first.key == second.key == key(log)


def test_directories_are_not_reported(kernel: Any) -> None:
    at = kernel()
    inner = at.home / "logs" / "1"
    at.mkdir(inner)
    at.create(inner / "2")
    at.rename(inner, inner.with_name("3"))
    at.unlink(at.home / "logs" / "3" / "2")
    at.rmdir(at.home / "logs" / "3")
    at.until()


def test_a_watch_goes_along_with_a_directory_that_is_moved(kernel: Any) -> None:
    """Files of a renamed directory are not found under the old path, which is watched anew."""
    at = kernel()
    logs, away = at.home / "logs", at.home / "away"
    at.rename(logs, away)
    at.create(away / "1")
    at.mkdir(logs)
    at.create(logs / "2")
    while not at.told:  # the process has handled what the kernel has said of the old one
        at.sleep()
    assert at.names.add(str(logs), PATTERNS)
    assert not at.names.add(str(logs), PATTERNS)
    at.create(logs / "3")
    first, _ = at.until(("created", "1"), ("created", "3"))
    assert (first.path, first.key) == (str(logs / "1"), None)


def test_a_directory_that_is_deleted_is_watched_anew_once_it_is_there_again(kernel: Any) -> None:
    at = kernel()
    logs = at.home / "logs"
    at.create(logs / "1")
    at.unlink(logs / "1")
    at.rmdir(logs)
    with pytest.raises(FileNotFoundError):
        at.names.add(str(logs), PATTERNS)
    at.mkdir(logs)
    at.create(logs / "2")
    while len(at.told) < 2:  # who watches anew has news of the old one dropped
        at.sleep()
    assert at.names.add(str(logs), PATTERNS)
    at.create(logs / "3")
    at.until(("created", "1"), ("deleted", "1"), ("created", "3"))


def test_a_file_is_no_directory(kernel: Any) -> None:
    at = kernel()
    at.create(at.home / "file")
    with pytest.raises(NotADirectoryError):
        at.names.add(str(at.home / "file"), PATTERNS)


def test_a_queue_that_overflows_says_so_once_behind_what_it_holds_and_goes_on(kernel: Any) -> None:
    at = kernel()
    log = at.home / "logs" / "app.log"
    with at.held():
        for _ in range(at.most):
            at.create(log)
            at.unlink(log)
    held = [("created", "app.log"), ("deleted", "app.log")] * (at.most // 2)
    while "overflow" not in at.told:
        at.sleep()
    at.create(log)
    at.until(*held, "overflow", ("created", "app.log"))
