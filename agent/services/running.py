"""Programs watched from outside, as a user would: wait for what they do, free ports, an agent as a process."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import re
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
from flafka.agent.web import page

PATIENCE_SECONDS = 400.0
"""What is waited for comes within a minute, but for a busy machine."""
FIRST_PORT, FEWEST_PORTS = 20_000, 2_000
"""Free ports are looked for from here on, where so many are below those of outgoing connections."""
_OUTGOING_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
SHORTEST_PAUSE, LONGEST_PAUSE = 0.002, 0.05
"""Seconds between two looks at a condition, which grow: what comes soon is seen soon, what is late costs little."""


def until(condition: Callable[[], Any], what: str = "a condition", seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until the condition holds. Raises ServiceError if it does not within so many seconds."""
    deadline, pause = time.monotonic() + seconds, SHORTEST_PAUSE
    while not condition():
        if time.monotonic() > deadline:
            raise ServiceError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def free_ports(count: int) -> list[int]:
    """Different TCP ports on which nobody listened a moment ago.

    A JVM takes seconds until it listens. So these ports lie below those that the kernel gives to outgoing
    connections, where it tells which those are, and all processes of a user are given them in turn. Raises
    ServiceError where too few are free.
    """
    try:
        end = int(_OUTGOING_PORTS.read_text().split()[0])
    except OSError:
        end = 0
    if end < FIRST_PORT + FEWEST_PORTS:
        return _any_ports(count)
    cache_directory().mkdir(parents=True, exist_ok=True)
    with (cache_directory() / "last-port").open("a+") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        turn.seek(0)
        last = int(turn.read() or random.randrange(FIRST_PORT, end))
        free: list[int] = []
        for step in range(1, end - FIRST_PORT + 1):
            port = FIRST_PORT + (last + step - FIRST_PORT) % (end - FIRST_PORT)
            with contextlib.suppress(OSError), socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
                free.append(port)
            if len(free) >= count:
                turn.truncate(0)
                turn.write(str(port))
                return free[:count]
    raise ServiceError(f"of the TCP ports {FIRST_PORT} to {end - 1}, fewer than {count} are free")


def _any_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


class RunningAgent:
    """One agent process. `with` it, so that it never outlives what started it.

    `configuration` is a file, or the text of one; a text without a monitoring port takes a free one. Ports of its
    sources may be 0 as well; `port` tells which they got. Its log is `agent.log` in `directory`, and appended to.
    `environment` adds to the present one; None takes a variable away.
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
            self.file.write_text(_monitored(configuration))
        self._command = [*command, *(arguments or ("-c", str(self.file)))]
        variables = {**os.environ, "XDG_STATE_HOME": str(directory / "state"), **(environment or {})}
        self._environment = {name: value for name, value in variables.items() if value is not None}
        self._read = self._log.stat().st_size if self._log.exists() else 0
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

    # --- looking

    @property
    def log(self) -> str:
        """What this process has said so far."""
        with self._log.open("rb") as file:
            file.seek(self._read)
            return file.read().decode(errors="replace")

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a page of its HTTP server; `(0, b"")` while there is none."""
        if self._address is None:
            found = re.search(r"metrics on http://([\d.]+):(\d+)/", self.log)
            if found is None:
                return 0, b""
            self._address = found[1], int(found[2])
        return page(*self._address, path)

    def metrics(self) -> dict[str, dict[str, str]]:
        """Flume's JSON; empty while it does not answer."""
        return cast("dict[str, dict[str, str]]", json.loads(self.get("/metrics")[1] or b"{}"))

    def count(self, component: str, counter: str) -> int:
        """One counter, such as `count("SOURCE.s1", "EventAcceptedCount")`; 0 where it is not there."""
        return int(float(self.metrics().get(component, {}).get(counter, 0)))

    def failing(self) -> dict[str, str]:
        """What `/healthz` says: failing components and why. Empty only if it answers and all is well."""
        status, body = self.get("/healthz")
        if not body:
            return {"agent": "does not answer"}
        failing: dict[str, str] = json.loads(body)["failing"]
        assert status == (503 if failing else 200)
        return failing

    def degraded(self) -> dict[str, str]:
        """What `/healthz` says: components that work and do less than they should, and why."""
        degraded: dict[str, str] = json.loads(self.get("/healthz")[1])["degraded"]
        return degraded

    def port(self, source: str) -> int:
        """The port that this source listens on, once it does; the last where they are several."""
        listening = re.compile(rf"\.{source}: listening on \S+ port (\d+)")
        self.until(lambda: listening.search(self.log), f"source {source} to listen")
        return int(listening.findall(self.log)[-1])

    def stacks(self, seconds: float = 5.0) -> str:
        """What each thread is doing, as SIGQUIT makes it tell; what it has told where that takes longer."""
        before = len(self.log)
        self.process.send_signal(signal.SIGQUIT)
        with contextlib.suppress(ServiceError):
            until(lambda: re.search(r"^\d+ threads$", self.log[before:], re.MULTILINE), "all threads", seconds)
        return self.log[before:]

    # --- waiting and stopping

    def until(self, condition: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS) -> None:
        """As `until`, with the end of the log in the error; ends at once where the agent ends before."""
        met = False  # asked once: what was so may have passed

        def met_or_ended() -> bool:
            nonlocal met
            ended = self.process.poll() is not None  # asked first: what ends may meet the condition by that
            met = bool(condition())
            return met or ended

        try:
            until(met_or_ended, what, seconds)
        except ServiceError as e:
            raise self._error(str(e)) from None
        if not met:
            raise self._error(f"the agent ended with {self.process.poll()} before {what}")

    def healthy(self) -> None:
        """Wait until nothing fails."""
        self.until(lambda: not self.failing(), "the agent to be healthy")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, wait for the end, return the exit code."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self, seconds: float = PATIENCE_SECONDS) -> int:
        """The exit code, once it has ended."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise self._error("the agent did not end") from None

    def _error(self, text: str) -> ServiceError:
        log, said, stacks = self.log[-4000:], "", ""
        if self.process.poll() is None:
            if failing := self.failing():
                said = f"; /healthz says {failing}"
            stacks = f"\nwhat its threads are doing:\n{self.stacks()}"
        return ServiceError(f"{text}{said}; its log, {self._log}, ends:\n{log}{stacks}")


def _monitored(configuration: str) -> str:
    """With a free port for its metrics, unless it has one."""
    agent = re.search(r"^\s*([\w-]+)\.", configuration, re.MULTILINE)
    if agent is None or f"{agent[1]}.monitoring.port" in configuration:
        return configuration
    return f"{configuration}\n{agent[1]}.monitoring.port = 0\n"
