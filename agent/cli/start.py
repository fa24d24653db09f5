"""`agent start`."""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import threading
from dataclasses import replace

import click

from agent.cli.configured import Chosen, configuration_options, load_or_exit
from agent.own_cluster import with_own_cluster
from agent.runner.agent import Agent
from agent.runner.drain import Stuck
from agent.topology import AgentSpec

log = logging.getLogger("agent")

LOOK_SECONDS = 0.5
"""A drain asks the brokers so often."""
_MOST_FILES = 1 << 20
"""Linux' own most for a process; containers may name more, which old programs started by `exec` would all close."""


@click.command()
@configuration_options
@click.option("--drain", is_flag=True, help="Start no sources, deliver what the durable channels hold, and stop.")
@click.option("--log-level", default="INFO", show_default=True, type=click.Choice(["DEBUG", "INFO", "WARNING"]))
def start(chosen: Chosen, drain: bool, log_level: str) -> None:
    """Run an agent until SIGTERM or Ctrl-C; then it drains, commits and ends. A second signal ends it at once."""
    log_to_stderr(log_level)
    spec = with_own_cluster(load_or_exit(chosen))
    if drain:  # nothing that is worth waiting for comes any more
        spec = replace(spec, sources=(), options=spec.options.model_copy(update={"spark_trigger_interval": 1}))
    sys.exit(run(spec, drain=drain))


def run(spec: AgentSpec, *, drain: bool) -> int:
    """Run until a signal, or until the channels are drained or cannot be; 0 when nothing was left undone, else 1."""
    _allow_open_files()
    agent = Agent(spec)
    stop = threading.Event()

    def on_signal(number: int, _: object) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    if drain:
        agent.drain()
    agent.start()
    parts = (spec.sources, spec.channels, spec.sinks)
    names = (", ".join(component.name for component in part) or "none" for part in parts)
    log.info("%s runs: sources %s; channels %s; sinks %s", spec.name, *names)
    stuck = False
    # Not for ever: a signal that comes while the process is stopped may be given to any of its threads when it goes
    # on, and Python runs the handler only once this one wakes.
    while not stop.wait(LOOK_SECONDS):
        agent.look()
        try:
            if drain and agent.drained():
                break
        except Stuck as e:
            log.error("%s", e)
            stuck = True
            break
    return 0 if agent.stop() and not stuck else 1


def _allow_open_files() -> None:
    """Have as many open as this process is allowed to ask for: each connection of a source is one."""
    limit, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if allowed == resource.RLIM_INFINITY else min(allowed, _MOST_FILES)
    if limit != resource.RLIM_INFINITY and limit < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, allowed))


def log_to_stderr(level: str) -> None:
    """Colours and short times on a terminal; one plain line a message elsewhere."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.logging import RichHandler

        handler: logging.Handler = RichHandler(console=Console(stderr=True), show_path=False)
        logging.basicConfig(level=level, format="%(name)s: %(message)s", handlers=[handler])
    else:
        logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("kafka", "urllib3", "uvicorn", "pyhdfs"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
