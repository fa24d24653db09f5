"""Tools to run agents as processes: waiting for a condition, free ports, a running agent."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from flafka.agent.jvm.jars import cache_directory
from flafka.agent.services import ServiceError
from flafka.agent.web import fetch_page

WAIT_TIMEOUT_SECONDS = 400.0
"""Default timeout. Conditions hold within a minute, except on a busy host."""
FIRST_PORT, MIN_PORTS = 20_000, 2_000
"""First port to return, and least number of ports from there to the range of outgoing connections."""
_OUTGOING_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.002, 0.05
"""Interval between two checks of a condition. It doubles from the former to the latter."""


def until(condition: Callable[[], Any], what: str = "a condition", seconds: float = WAIT_TIMEOUT_SECONDS) -> None:
    """Block until the condition is true. Raises ServiceError, with the text `what`, after `seconds`."""
    deadline, pause = time.monotonic() + seconds, MIN_PAUSE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise ServiceError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(pause)
        pause = min(2 * pause, MAX_PAUSE_SECONDS)


def free_ports(count: int) -> list[int]:
    """Return `count` distinct TCP ports of the loopback address without a listener.

    A JVM takes seconds until it listens. To avoid conflicts meanwhile, the ports are below the range of outgoing
    connections, if known. Processes of one user get different ports in turn. Raises ServiceError if too few are free.
    """
    try:
        end = int(_OUTGOING_PORTS.read_text().split()[0])
    except OSError:
        end = 0
    if end < FIRST_PORT + MIN_PORTS:
        return _any_ports(count)
    cache_directory().mkdir(parents=True, exist_ok=True)
    with (cache_directory() / "last-port").open("a+") as last_port:
        fcntl.flock(last_port, fcntl.LOCK_EX)
        last_port.seek(0)
        last = int(last_port.read() or random.randrange(FIRST_PORT, end))
        free: list[int] = []
        for step in range(1, end - FIRST_PORT + 1):
            port = FIRST_PORT + (last + step - FIRST_PORT) % (end - FIRST_PORT)
            with contextlib.suppress(OSError), socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
                free.append(port)
            if len(free) >= count:
                last_port.truncate(0)
                last_port.write(str(port))
                return free[:count]
    raise ServiceError(f"of the TCP ports {FIRST_PORT} to {end - 1}, fewer than {count} are free")


def _any_ports(count: int) -> list[int]:
    """Return distinct ports that the system chooses."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


class RunningAgent:
    """One agent process, as a context manager that ends it.

    `configuration` is a file, or the text of one; a text without a monitoring port gets a free one. Ports of sources
    may be 0; `port` returns the chosen port. The log is appended to `agent.log` in `directory`. `environment` extends
    that of this process; None removes a variable.
    """

    def __init__(
        self,
        directory: Path,
        configuration: str | Path,
        *arguments: str,
        environment: Mapping[str, str | None] | None = None,
        command: Sequence[str] = (sys.executable, "-m", "flafka", "start"),
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.file = configuration if isinstance(configuration, Path) else directory / "agent.conf"
        self._log = directory / "agent.log"
        if isinstance(configuration, str):
            self.file.write_text(_with_monitoring(configuration))
        self._command = [*command, *(arguments or ("-c", str(self.file)))]
        variables = {**os.environ, "XDG_STATE_HOME": str(directory / "state"), **(environment or {})}
        self._environment = {name: value for name, value in variables.items() if value is not None}
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        self._address: tuple[str, int] | None = None
        self.process: subprocess.Popen[bytes]

    def __enter__(self) -> RunningAgent:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, env=self._environment, stdout=log, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    # --- queries

    @property
    def log(self) -> str:
        """Log of this process so far, without the log of earlier processes in the same file."""
        with self._log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body of a page of the agent's HTTP server; `(0, b"")` if it does not answer."""
        if self._address is None:
            match = re.search(r"metrics on http://([\d.]+):(\d+)/", self.log)
            if match is None:
                return 0, b""
            self._address = match[1], int(match[2])
        return fetch_page(*self._address, path)

    def metrics(self) -> dict[str, dict[str, str]]:
        """Return component → counter → value as text, as in Flume's JSON; empty if the agent does not answer."""
        return cast("dict[str, dict[str, str]]", json.loads(self.get("/metrics")[1] or b"{}"))

    def count(self, component: str, counter: str) -> int:
        """Return a counter, such as `count("SOURCE.s1", "EventAcceptedCount")`; 0 if it is missing."""
        return int(float(self.metrics().get(component, {}).get(counter, 0)))

    def failing(self) -> dict[str, str]:
        """Return component → reason of failing components, by `/healthz`.

        An agent that does not answer counts as failing.
        """
        status, body = self.get("/healthz")
        if not body:
            return {"agent": "does not answer"}
        failing: dict[str, str] = json.loads(body)["failing"]
        assert status == (503 if failing else 200)
        return failing

    def degraded(self) -> dict[str, str]:
        """Return component → reason of degraded components, by `/healthz`. Raises ValueError without an answer."""
        degraded: dict[str, str] = json.loads(self.get("/healthz")[1])["degraded"]
        return degraded

    def port(self, source: str) -> int:
        """Block until the source listens, by the log, and return its port; the last one of several.

        Raises ServiceError.
        """
        listening = re.compile(rf"\.{source}: listening on \S+ port (\d+)")
        self.until(lambda: listening.search(self.log), f"source {source} to listen")
        return int(listening.findall(self.log)[-1])

    def stacks(self, seconds: float = 5.0) -> str:
        """Return the stack of each thread, which SIGQUIT logs; perhaps incomplete after `seconds`.

        Return the native stacks, by `gdb` where it is installed, if the process does not respond to the signal.
        """
        before = len(self.log)
        self.process.send_signal(signal.SIGQUIT)
        with contextlib.suppress(ServiceError):
            until(lambda: re.search(r"^\d+ threads$", self.log[before:], re.MULTILINE), "all threads", seconds)
        return self.log[before:] or self._native_stacks()

    def _native_stacks(self) -> str:
        """Return the state of the process, as stopped or sleeping, and the stacks of its C functions."""
        status = Path(f"/proc/{self.process.pid}/status")
        state = next((line for line in status.read_text().splitlines() if line.startswith("State:")), "")
        if (gdb := shutil.which("gdb")) is None:
            return f"no response to SIGQUIT; {state}\n"
        command = [gdb, "-p", str(self.process.pid), "-batch", "-ex", "thread apply all bt"]
        with contextlib.suppress(subprocess.TimeoutExpired):
            ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            return f"no response to SIGQUIT; {state}\n{ended.stdout}"
        return f"no response to SIGQUIT or gdb; {state}\n"

    # --- waiting and stopping

    def until(self, condition: Callable[[], Any], what: str, seconds: float = WAIT_TIMEOUT_SECONDS) -> None:
        """Block until the condition is true.

        Raises ServiceError, with the end of the log, after `seconds`, or if the agent ends before.
        """
        holds = False  # evaluated once: the condition may hold only for a moment

        def holds_or_ended() -> bool:
            nonlocal holds
            ended = self.process.poll() is not None  # before the condition, which may hold because of the end
            holds = bool(condition())
            return holds or ended

        try:
            until(holds_or_ended, what, seconds)
        except ServiceError as e:
            raise self._error(str(e)) from None
        if not holds:
            raise self._error(f"the agent ended with {self.process.poll()} before {what}")

    def wait_until_healthy(self) -> None:
        """Block until every channel and source has been open, and no component fails. Raises ServiceError.

        `/healthz` alone answers 200 already before sources listen.
        """
        self.until(lambda: self.get("/readyz")[0] == 200 and not self.failing(), "the agent to be healthy")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, block until the process has ended, and return its exit code. Raises ServiceError."""
        self.process.send_signal(number)
        return self.wait_for_exit()

    def wait_for_exit(self, seconds: float = WAIT_TIMEOUT_SECONDS) -> int:
        """Block until the process has ended, and return its exit code. Raises ServiceError after `seconds`."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise self._error("the agent did not end") from None

    def _error(self, text: str) -> ServiceError:
        """Return the error with this text, the failing components, the end of the log, and all stacks."""
        log, health, stacks = self.log[-4000:], "", ""
        if self.process.poll() is None:
            if failing := self.failing():
                health = f"; /healthz says {failing}"
            stacks = f"\nits threads:\n{self.stacks()}"
        return ServiceError(f"{text}{health}; its log, {self._log}, ends:\n{log}{stacks}")


def _with_monitoring(configuration: str) -> str:
    """Return the configuration with a free port for metrics, unless it has one."""
    agent = re.search(r"^\s*([\w-]+)\.", configuration, re.MULTILINE)
    if agent is None or f"{agent[1]}.monitoring.port" in configuration:
        return configuration
    return f"{configuration}\n{agent[1]}.monitoring.port = 0\n"
