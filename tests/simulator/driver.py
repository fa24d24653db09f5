"""The Spark driver's process, as the agent starts it: its pipes, its signals, its exit codes, and its session.

The driver's own code runs, from its `main` on. Modelled are the process and what it reaches through `sys`, `os`
and `signal`; its session is `tests.simulator.spark.Spark`.
"""

from __future__ import annotations

import itertools
import json
import pickle
import signal as real_signal
import sys as real_sys
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from tests.simulator.processes import Process, Signal
from tests.simulator.spark import Spark, Topics
from tests.simulator.world import world

START_SECONDS = 3.0
"""Until a session is there."""


class Pipe:
    """One end writes, the other one reads until it is closed."""

    def __init__(self) -> None:
        self.written: deque[bytes] = deque()
        self.closed = False
        self._changed = Signal(world())

    def write(self, data: bytes) -> None:
        """Add some."""
        if self.closed:
            raise BrokenPipeError
        self.written.append(data)
        self._changed.fire()

    def flush(self) -> None:
        """There is nothing that waits."""

    def read(self) -> bytes:
        """Return the bytes of one write; empty at the end."""
        while not self.written and not self.closed:
            self._changed.wait()
        return self.written.popleft() if self.written else b""

    def close(self) -> None:
        """Close the pipe: its reader gets the end of the file."""
        self.closed = True
        self._changed.fire()

    def __iter__(self) -> Iterator[bytes]:
        while data := self.read():
            yield data


class Popen:
    """`subprocess.Popen`, of a driver."""

    def __init__(self, command: list[str], *, stdin: int, stdout: int, env: dict[str, str]) -> None:
        from flafka.agent.runner.spark import driver

        assert command[1:] == ["-m", driver.__name__]
        here = world()
        agent = here.process
        number = next(here.models.setdefault("drivers", itertools.count(1)))
        self.process = Process(here, f"driver-{number}")
        self.stdin, self.stdout = Pipe(), Pipe()
        self.handlers: dict[int, Any] = {}
        self.returncode: int | None = None
        self.session: Spark | None = None
        self._over = Signal(here)
        of_process()[self.process] = self
        agent.ended.append(self.stdin.close)
        self.process.ended.append(self._ended)
        here.log(f"{agent.name} starts {self.process.name}")
        self.process.spawn(lambda: self._run(driver.main), "main")

    def _run(self, main: Callable[[], None]) -> None:
        code: Any = 1
        try:
            main()
            code = 0
        except SystemExit as e:
            code = e.code
        except Exception as e:
            world().crashed(world().current, e)  # the driver reports its failures: one that escapes is a bug
        finally:
            if self.process.alive and not world().over:
                self.exit(code)

    def exit(self, code: int) -> None:
        """End; a thread of its own never comes back."""
        self.returncode = code
        self.process.kill()

    def _ended(self) -> None:
        if self.returncode is None:
            self.returncode = -real_signal.SIGKILL
        self.stdout.close()
        self._over.fire()

    def poll(self) -> int | None:
        """Double of the method in `subprocess`."""
        return self.returncode

    def wait(self) -> int:
        """Double of the method in `subprocess`."""
        while self.returncode is None:
            self._over.wait()
        return self.returncode

    def kill(self) -> None:
        """Double of the method in `subprocess`."""
        self.process.kill()

    def terminate(self) -> None:
        """Double of the method in `subprocess`: runs the handler of SIGTERM in the driver."""
        number = real_signal.SIGTERM
        if self.process.alive and number in self.handlers:
            self.process.spawn(lambda: self.handlers[number](number, None), "signal")
        elif self.process.alive:
            self.returncode = -number
            self.process.kill()


def of_process() -> dict[Process, Popen]:
    """Drivers by process."""
    drivers: dict[Process, Popen] = world().models.setdefault("driver processes", {})
    return drivers


def _own() -> Popen:
    return of_process()[world().process]


class _Standard:
    """`sys`, as the driver's `main` uses it."""

    stderr = real_sys.stderr

    @property
    def stdin(self) -> Any:
        return SimpleNamespace(buffer=_own().stdin)

    @staticmethod
    def exit(code: int) -> None:
        raise SystemExit(code)


class _Gateway:
    """The session's JVM: it lives as long as its driver."""

    def why_ended(self, seconds: float = 0) -> str | None:
        return None

    def why_stopped(self) -> str:
        return "the SparkContext was stopped from outside"


def _start_session(
    name: str, options: Any, log_file: Any, modules: Any, on_yarn: None, *, keeps_checkpoints: bool
) -> tuple[Spark, _Gateway]:
    here = world()
    here.sleep(START_SECONDS)
    own = _own()
    master = options.spark_master
    most = 1 if master.startswith("local") else 4
    own.session = Spark(here, Topics(here.models["kafka"]), driver=own.process, max_failures=most, master=master)
    return own.session, _Gateway()


def _tell(text: str, **_: Any) -> None:
    """`print`, of what the driver reports."""
    assert json.loads(text)
    _own().stdout.write(text.encode())


def replacements() -> list[tuple[Any, str, Any]]:
    """Places, names and what is there in a simulation."""
    from flafka.agent.runner.spark import driver, progress, supervisor

    vars(progress).setdefault("print", print)  # so that it can be put back
    return [
        (supervisor, "subprocess", SimpleNamespace(Popen=Popen, PIPE=-1)),
        (driver, "sys", _Standard()),
        (driver, "os", SimpleNamespace(read=lambda *_: _own().stdin.read(), _exit=lambda code: _own().exit(code))),
        (
            driver,
            "signal",
            SimpleNamespace(
                SIGTERM=real_signal.SIGTERM,
                SIGINT=real_signal.SIGINT,
                SIG_IGN=real_signal.SIG_IGN,
                signal=lambda number, handler: _own().handlers.update({number: handler}),
            ),
        ),
        (driver, "pickle", SimpleNamespace(load=lambda file: pickle.loads(file.read()))),
        (driver, "start_session", _start_session),
        (driver, "stop_session", lambda spark, gateway: spark.stop()),
        (driver, "kill_gateway", lambda: None),
        (progress, "print", _tell),
    ]
