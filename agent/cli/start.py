"""`agent start`: run of an agent until a signal."""

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

from flafka.agent.cli.configuration import ChosenConfiguration, configuration_options, load_or_exit
from flafka.agent.cli.default_brokers import with_default_brokers
from flafka.agent.cli.reloader import Reloader
from flafka.agent.logs import FORMAT_VARIABLE, LEVEL_VARIABLE, log_to_stderr
from flafka.agent.pandasimport import block_pandas_import
from flafka.agent.runner.agent import Agent
from flafka.agent.runner.drain import DrainStalled
from flafka.agent.systemd import Systemd
from flafka.agent.threaddump import write_thread_dump
from flafka.agent.topology import AgentSpec

log = logging.getLogger("agent")

DRAIN_CHECK_SECONDS = 0.5
"""Interval of the checks for the end of a drain, and for the end of a start of which systemd is notified."""
HOUSEKEEPING_SECONDS = 2.0
"""Interval of the periodic work of the main thread. A signal is handled at once."""
DUPLICATE_SIGNAL_SECONDS = 1.0
"""Time in which a second signal counts as the same request: GNU timeout signals both a process and its group."""
LOG_FLUSH_SECONDS = 2.0
"""Timeout for the last log lines: their reader may hang."""
_MAX_OPEN_FILES = 1 << 20
"""Default maximum of Linux. Containers may allow more, but old child processes close each possible descriptor."""


@click.command()
@configuration_options
@click.option("--drain", is_flag=True, help="Start no sources, deliver the events of durable channels, and stop.")
@click.option(
    "--log-level",
    "level",
    default="INFO",
    show_default=True,
    envvar=LEVEL_VARIABLE,
    type=click.Choice(["DEBUG", "INFO", "WARNING"]),
    help="Minimum level of log messages.",
)
@click.option(
    "--log-format",
    "form",
    default="text",
    show_default=True,
    envvar=FORMAT_VARIABLE,
    type=click.Choice(["text", "json"]),
    help="Log a line of text or a JSON object for each message.",
)
@click.option(
    "--reload-conf/--no-reload-conf",
    default=None,
    help="Poll the configuration every 30 s and reload changes. By default only with -f, as flume-ng does.",
)
def start(chosen: ChosenConfiguration, drain: bool, level: str, form: str, reload_conf: bool | None) -> None:
    """Run an agent until SIGTERM or Ctrl-C; then drain, commit and exit.

    SIGHUP, or `agent reload`, makes the agent apply its changed configuration: unchanged components keep running, and
    a configuration with errors changes nothing. SIGQUIT, or Ctrl-\\, writes a thread dump to standard error, as for a
    JVM.

    A second signal ends the agent at once, unless it follows within a second of the first.
    """
    log_to_stderr(level, form)
    block_pandas_import()
    spec = with_default_brokers(load_or_exit(chosen, warnings=True))
    if drain:  # a longer trigger interval would only delay the end of the drain
        spec = replace(spec, sources=(), options=spec.options.model_copy(update={"spark_trigger_interval": 1}))
    watch_files = chosen.as_flume if reload_conf is None else reload_conf
    sys.exit(run(spec, drain=drain, reloader=None if drain else Reloader(chosen, watch_files=watch_files)))


def run(spec: AgentSpec, *, drain: bool, reloader: Reloader | None = None) -> int:
    """Run an agent until a signal, or with `drain` until its channels are drained; return the exit code.

    The exit code is 0 if all in-flight batches were delivered, and 1 otherwise or if a drain stalls. With threads
    that hang, the process exits here. `reloader` None ignores SIGHUP. Call it on the main thread.
    """
    _allow_open_files()
    agent = Agent(spec)
    # nohup ignores SIGHUP: the agent then outlives its terminal.
    ends_with_terminal = _has_terminal() and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
    with _signals() as signals:
        if drain:
            agent.drain()
        agent.thread_failures.install()
        agent.start()
        gc.freeze()  # imported objects stay alive: collecting them would stop all threads for 20 ms
        parts = (spec.sources, spec.channels, spec.sinks)
        names = (", ".join(component.name for component in part) or "none" for part in parts)
        log.info("%s runs: sources %s; channels %s; sinks %s", spec.name, *names)
        is_stalled, systemd = False, Systemd()

        def next_signal() -> int:
            is_urgent = drain or systemd.awaits_start
            return _next_signal(signals, DRAIN_CHECK_SECONDS if is_urgent else HOUSEKEEPING_SECONDS)

        while (number := next_signal()) in (0, signal.SIGHUP):
            if number and ends_with_terminal and not _has_terminal():  # the terminal was closed
                break
            if reloader is not None:
                reloader.poll(agent, requested=bool(number))
            agent.tick()
            if systemd.is_active:
                systemd.update(agent.registry.waiting(), agent.registry.state())
            try:
                if drain and agent.is_drained():
                    break
            except DrainStalled as e:
                log.error("%s", e)
                is_stalled = True
                break
        systemd.stopping()
        threading.Thread(target=_exit_on_signal, args=(agent, signals, bool(number)), daemon=True).start()
        code = 0 if agent.stop() and not is_stalled else 1
        agent.thread_failures.uninstall()
        if agent.has_hanging_threads():  # Python would wait for the threads of sinks until their stores answer
            _exit(code, logging.shutdown)
        return code


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """Yield a socket with a byte for each SIGTERM, SIGINT, SIGHUP and SIGQUIT of this process.

    A handler has written the thread dump for SIGQUIT. Other signals are not handled in Python handlers, which run on
    the main thread only: it may wait for other threads or hold a lock.
    """
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        previous_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        numbers = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
        handlers = {**dict.fromkeys(numbers, _ignore), signal.SIGQUIT: write_thread_dump}
        previous_handlers = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(previous_fd)
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)


def _ignore(number: int, frame: object) -> None:
    """Do nothing; without a handler, Python writes no byte to the wakeup descriptor."""


def _next_signal(signals: socket.socket, seconds: float | None = None) -> int:
    """Return the number of the next signal except SIGQUIT.

    0 after a timeout of `seconds`, None being without limit, or on a closed socket.
    """
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


def _next_stop_signal(signals: socket.socket) -> int:
    """Block until a signal except SIGHUP and SIGQUIT, and return its number; 0 on a closed socket."""
    while (number := _next_signal(signals)) == signal.SIGHUP:
        pass
    return number


def _exit_on_signal(agent: Agent, signals: socket.socket, was_signalled: bool) -> None:
    """Block until the second stop signal, and exit with 128 and its number; return once the socket is closed.

    With `was_signalled`, the first signal has started the stop. Signals within a second of the first one are ignored.
    """
    try:
        if not was_signalled and not _next_stop_signal(signals):
            return
        first = time.monotonic()
        while (number := _next_stop_signal(signals)) and time.monotonic() < first + DUPLICATE_SIGNAL_SECONDS:
            pass
    except (OSError, ValueError):  # the socket is closed: the agent has stopped
        return
    if not number:
        return
    text = "second %s: the agent ends at once. Not finished: %s"
    _exit(128 + number, partial(log.warning, text, signal.Signals(number).name, agent.describe_unfinished()))


def _exit(code: int, write_log: Callable[[], None]) -> None:
    """Exit at once with `code`, without waiting for threads. `write_log` gets up to `LOG_FLUSH_SECONDS` before."""
    thread = threading.Thread(target=write_log, daemon=True)
    thread.start()
    thread.join(LOG_FLUSH_SECONDS)
    os._exit(code)


def _allow_open_files() -> None:
    """Raise the soft limit of open files to the hard limit, at most 2²⁰: each connection of a source needs one."""
    limit, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    maximum = _MAX_OPEN_FILES if allowed == resource.RLIM_INFINITY else min(allowed, _MAX_OPEN_FILES)
    if limit != resource.RLIM_INFINITY and limit < maximum:
        resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, allowed))
