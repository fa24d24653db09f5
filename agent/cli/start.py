"""`agent start`."""

from __future__ import annotations

import gc
import logging
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import click

from flafka.agent.cli.configured import Chosen, configuration_options, load_or_exit
from flafka.agent.cli.own_cluster import with_own_cluster
from flafka.agent.cli.reloading import Reloader
from flafka.agent.logs import FORM, LEVEL, log_to_stderr
from flafka.agent.runner.agent import Agent
from flafka.agent.runner.drain import Stuck
from flafka.agent.stacks import tell
from flafka.agent.systemd import Systemd
from flafka.agent.topology import AgentSpec
from flafka.agent.withoutpandas import do_without_pandas

log = logging.getLogger("agent")

DRAIN_CHECK_SECONDS = 0.5
SAME_SECONDS = 1.0
"""Within this time a second signal is the same request: GNU timeout signals a process and its group."""
TELL_SECONDS = 2.0
"""Longest wait for the log at the end; its reader may take nothing any more."""
_MOST_FILES = 1 << 20
"""Linux' own most for a process; containers may name more, which old programs started by `exec` would all close."""


@click.command()
@configuration_options
@click.option("--drain", is_flag=True, help="Start no sources, deliver what the durable channels hold, and stop.")
@click.option(
    "--log-level",
    "level",
    default="INFO",
    show_default=True,
    envvar=LEVEL,
    type=click.Choice(["DEBUG", "INFO", "WARNING"]),
    help="Least severe messages that are logged.",
)
@click.option(
    "--log-format",
    "form",
    default="text",
    show_default=True,
    envvar=FORM,
    type=click.Choice(["text", "json"]),
    help="Log one line of text, or one JSON object, for each message.",
)
@click.option(
    "--reload-conf/--no-reload-conf",
    default=None,
    help="Look every 30 seconds for changes of the configuration. By default only with -f, as flume-ng does.",
)
def start(chosen: Chosen, drain: bool, level: str, form: str, reload_conf: bool | None) -> None:
    """Run an agent until SIGTERM or Ctrl-C; then it drains, commits and ends.

    SIGHUP, or `agent reload`, has it read its configuration again: what has not changed keeps running. With
    errors in it, nothing changes. SIGQUIT, or Ctrl-\\, writes what each thread is doing to standard error, as a JVM
    does.

    A second signal ends it at once, unless it comes within a second of the first: that is the same request.
    """
    log_to_stderr(level, form)
    do_without_pandas()
    spec = with_own_cluster(load_or_exit(chosen, warnings=True))
    if drain:  # nothing that is worth waiting for comes any more
        spec = replace(spec, sources=(), options=spec.options.model_copy(update={"spark_trigger_interval": 1}))
    looks = chosen.as_flume if reload_conf is None else reload_conf
    sys.exit(run(spec, drain=drain, reloader=None if drain else Reloader(chosen, looks=looks)))


def run(spec: AgentSpec, *, drain: bool, reloader: Reloader | None = None) -> int:
    """Run until a signal, or until the channels are drained or cannot be; 0 when nothing was left undone, else 1."""
    _allow_open_files()
    agent = Agent(spec)
    # Under nohup it is to outlive its terminal.
    terminal = _has_terminal() and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
    with _signals() as signals:
        if drain:
            agent.drain()
        agent.ended.install()
        agent.start()
        gc.freeze()  # what was imported stays: to look through it for garbage would hold everything up for 20 ms
        parts = (spec.sources, spec.channels, spec.sinks)
        names = (", ".join(component.name for component in part) or "none" for part in parts)
        log.info("%s runs: sources %s; channels %s; sinks %s", spec.name, *names)
        stuck, systemd = False, Systemd()
        while (asked := _next(signals, DRAIN_CHECK_SECONDS)) in (0, signal.SIGHUP):
            if asked and terminal and not _has_terminal():  # it was closed: that is no request to read anything
                break
            if reloader is not None:
                reloader.look(agent, asked=bool(asked))
            agent.look()
            systemd.look(agent.registry.waiting(), agent.registry.state())
            try:
                if drain and agent.drained():
                    break
            except Stuck as e:
                log.error("%s", e)
                stuck = True
                break
        systemd.stopping()
        threading.Thread(target=_end_at_once, args=(agent, signals, bool(asked)), daemon=True).start()
        code = 0 if agent.stop() and not stuck else 1
        agent.ended.uninstall()
        if agent.hangs():  # Python would wait for the threads of sinks until their stores answer
            _end(code, logging.shutdown)
        return code


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """Yield a socket with a byte for each SIGTERM, SIGINT, SIGHUP and SIGQUIT that any thread gets.

    SIGQUIT is answered by then.

    Python's handlers run on the main thread alone, which may be waiting for others, and may hold any lock.
    """
    came, written = socket.socketpair()
    with came, written:
        written.setblocking(False)
        before = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
        numbers = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
        answers = {**dict.fromkeys(numbers, _ignored), signal.SIGQUIT: tell}
        handlers = {number: signal.signal(number, answer) for number, answer in answers.items()}
        try:
            yield came
        finally:
            signal.set_wakeup_fd(before)
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _ignored(number: int, frame: object) -> None:
    """Without a handler no byte is written."""


def _next(signals: socket.socket, seconds: float | None = None) -> int:
    """The next signal's number; 0 where none comes in that time, or no more. SIGQUIT asks for nothing here."""
    while True:
        ready, _, _ = select.select([signals], [], [], seconds)
        number = next(iter(signals.recv(1)), 0) if ready else 0
        if number != signal.SIGQUIT:
            return number


def _has_terminal() -> bool:
    """Return True if a terminal controls this process."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _next_end(signals: socket.socket) -> int:
    while (number := _next(signals)) == signal.SIGHUP:
        pass
    return number


def _end_at_once(agent: Agent, signals: socket.socket, asked: bool) -> None:
    """With the next signal where one has asked for the stop, with the second where a drain is over."""
    try:
        if not asked and not _next_end(signals):
            return
        first = time.monotonic()
        while (number := _next_end(signals)) and time.monotonic() < first + SAME_SECONDS:
            pass
    except (OSError, ValueError):  # closed, as the agent has stopped
        return
    if not number:
        return
    text = "%s came again, the agent ends at once. Left undone: %s"
    _end(128 + number, partial(log.warning, text, signal.Signals(number).name, agent.left_undone()))


def _end(code: int, say: Callable[[], None]) -> None:
    """End the process at once, though not before the log has taken what there is to say, or takes too long."""
    saying = threading.Thread(target=say, daemon=True)
    saying.start()
    saying.join(TELL_SECONDS)
    os._exit(code)


def _allow_open_files() -> None:
    """Have as many open as this process is allowed to ask for: each connection of a source is one."""
    limit, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if allowed == resource.RLIM_INFINITY else min(allowed, _MOST_FILES)
    if limit != resource.RLIM_INFINITY and limit < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, allowed))
