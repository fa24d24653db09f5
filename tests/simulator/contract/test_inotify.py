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
        self.home, self.reported = home, list[NameEvent | str]()
        (home / "logs").mkdir()
        (home / "elsewhere").mkdir()
        self.names = self._watching(self.reported.append, lambda: self.reported.append("overflow"))
        self.names.add(str(home / "logs"), PATTERNS)
        self.names.wait_ready()

    def _watching(self, tell: Callable[[NameEvent], None], overflow: Callable[[], None]) -> Any:
        return NameWatcher(on_event=tell, on_overflow=overflow, on_end=self.reported.append, on_sync=lambda _: None)

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
        while not any(isinstance(event, NameEvent) and event.path == str(end) for event in self.reported):
            assert time.monotonic() < deadline, self.reported[-5:]
            self.sleep()
        events = [event for event in self.reported if isinstance(event, str) or event.path != str(end)]
        named = [event if isinstance(event, str) else (event.kind, Path(event.path).name) for event in events]
        if named != [*expected]:  # they may be very many
            raise AssertionError(f"{len(named)} and not {len(expected)}: {named[:9]} … {named[-9:]}")
        return events


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
        return NamesModel(on_event=tell, on_overflow=overflow, on_end=self.reported.append, on_sync=lambda _: None)

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
    for instance in made if world is None else ():
        instance.names.close()
    for named in (named for instance in made for named in instance.reported):
        if isinstance(named, NameEvent) and named.fd is not None:
            os.close(named.fd)


def key(path: Path) -> tuple[int, int]:
    return path.stat().st_dev, path.stat().st_ino


def test_a_created_file_is_reported_with_its_descriptor(kernel: Any) -> None:
    system = kernel()
    log = system.home / "logs" / "app.log"
    with system.held():
        system.create(log)
        system.append(log, b"one\n")
    (created,) = system.until(("created", "app.log"))
    assert created.key == key(log)
    assert os.pread(created.fd, 100, 0) == b"one\n"
    system.append(log, b"two\n")
    assert os.pread(created.fd, 100, 0) == b"one\ntwo\n"


def test_a_file_of_another_name_is_reported_once_it_is_renamed_to_match(kernel: Any) -> None:
    system = kernel()
    log = system.home / "logs" / "app.log"
    system.create(log.with_name("other"))
    system.rename(log.with_name("other"), log)
    departed, arrived = system.until(("moved_from", "other"), ("moved_to", "app.log"))
    assert departed.cookie == arrived.cookie > 0
    assert (departed.key, arrived.key) == (None, key(log))


def test_moves_within_out_and_in(kernel: Any) -> None:
    system = kernel()
    log, unwatched = system.home / "logs" / "app.log", system.home / "elsewhere" / "any"
    system.create(log)
    system.rename(log, log.with_name("app.log.1"))
    system.rename(log.with_name("app.log.1"), unwatched)
    system.rename(unwatched, log.with_name("anything"))
    events = system.until(
        ("created", "app.log"), ("moved_from", "app.log"), ("moved_to", "app.log.1"), ("moved_from", "app.log.1"),
        ("moved_to", "anything"),
    )  # fmt: skip
    assert events[1].cookie == events[2].cookie
    assert len({event.cookie for event in events[1:]}) == 3
    assert events[-1].key == key(log.with_name("anything"))


def test_a_file_that_takes_the_place_of_another_one(kernel: Any) -> None:
    """A replaced file causes no event of its own."""
    system = kernel()
    log = system.home / "logs" / "app.log"
    system.create(log)
    system.create(log.with_name("new"))
    system.rename(log.with_name("new"), log)
    *_, arrived = system.until(("created", "app.log"), ("moved_from", "new"), ("moved_to", "app.log"))
    assert arrived.key == key(log)


def test_a_file_that_was_gone_before_it_could_be_opened(kernel: Any) -> None:
    system = kernel()
    log = system.home / "logs" / "app.log"
    with system.held():
        system.create(log)
        system.unlink(log)
        system.create(log.with_name("7"))
        system.rename(log.with_name("7"), log.with_name("8"))
    events = system.until(
        ("created", "app.log"), ("deleted", "app.log"), ("created", "7"), ("moved_from", "7"), ("moved_to", "8")
    )  # fmt: skip
    assert [(event.key, event.fd is not None) for event in events] == [(None, False)] * 4 + [
        (key(log.with_name("8")), True)
    ]


def test_another_file_may_have_the_name_when_it_is_opened(kernel: Any) -> None:
    system = kernel()
    log = system.home / "logs" / "app.log"
    with system.held():
        system.create(log)
        system.rename(log, log.with_name("8"))
        system.create(log)
    first, _, _, second = system.until(
        ("created", "app.log"), ("moved_from", "app.log"), ("moved_to", "8"), ("created", "app.log")
    )
    assert first.key == second.key == key(log)


def test_directories_are_not_reported(kernel: Any) -> None:
    system = kernel()
    inner = system.home / "logs" / "1"
    system.mkdir(inner)
    system.create(inner / "2")
    system.rename(inner, inner.with_name("3"))
    system.unlink(system.home / "logs" / "3" / "2")
    system.rmdir(system.home / "logs" / "3")
    system.until()


def test_a_watch_goes_along_with_a_directory_that_is_moved(kernel: Any) -> None:
    """Files of a renamed directory are not found under the old path, which is watched anew."""
    system = kernel()
    logs, away = system.home / "logs", system.home / "away"
    system.rename(logs, away)
    system.create(away / "1")
    system.mkdir(logs)
    system.create(logs / "2")
    while not system.reported:  # the process has handled what the kernel has said of the old one
        system.sleep()
    assert system.names.add(str(logs), PATTERNS)
    assert not system.names.add(str(logs), PATTERNS)
    system.create(logs / "3")
    first, _ = system.until(("created", "1"), ("created", "3"))
    assert (first.path, first.key) == (str(logs / "1"), None)


def test_a_directory_that_is_deleted_is_watched_anew_once_it_is_there_again(kernel: Any) -> None:
    system = kernel()
    logs = system.home / "logs"
    system.create(logs / "1")
    system.unlink(logs / "1")
    system.rmdir(logs)
    with pytest.raises(FileNotFoundError):
        system.names.add(str(logs), PATTERNS)
    system.mkdir(logs)
    system.create(logs / "2")
    while len(system.reported) < 2:  # who watches anew has news of the old one dropped
        system.sleep()
    assert system.names.add(str(logs), PATTERNS)
    system.create(logs / "3")
    system.until(("created", "1"), ("deleted", "1"), ("created", "3"))


def test_a_file_is_no_directory(kernel: Any) -> None:
    system = kernel()
    system.create(system.home / "file")
    with pytest.raises(NotADirectoryError):
        system.names.add(str(system.home / "file"), PATTERNS)


def test_a_queue_that_overflows_says_so_once_behind_what_it_holds_and_goes_on(kernel: Any) -> None:
    system = kernel()
    log = system.home / "logs" / "app.log"
    with system.held():
        for _ in range(system.most):
            system.create(log)
            system.unlink(log)
    held = [("created", "app.log"), ("deleted", "app.log")] * (system.most // 2)
    while "overflow" not in system.reported:
        system.sleep()
    system.create(log)
    system.until(*held, "overflow", ("created", "app.log"))
