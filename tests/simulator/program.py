"""The project's own programs within a simulation: agents, `agent group reset`, `agent dlq replay`."""

from __future__ import annotations

import contextlib
import gc
import getpass
import importlib
import logging
import os
import pkgutil
import random
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import confluent_kafka
import confluent_kafka.admin
import happybase
import kafka
import requests

from flafka.plugins import Batch
from flafka.plugins.kafka.offsets import OffsetMetadata
from tests.simulator import driver, http, threads
from tests.simulator import kafka as model
from tests.simulator.processes import Process
from tests.simulator.stores import happybase as model_of_happybase
from tests.simulator.world import World, world

PACKAGES = ("flafka",)
COARSE = {
    "flafka.agent.runner.local.sinks": {"TAKE_SECONDS": 0.5},
    "flafka.agent.runner.spark.driver": {"WATCHDOG_SECONDS": 5.0},
    "flafka.channels.kafka.consumer": {"BUSY_POLL_SECONDS": 0.25},
    "flafka.sources.taildir.source": {"STOPPING_SECONDS": 2.0},
}
"""Polling intervals of threads, longer than in production, so that idle minutes cost little."""

CACHED = 1000
"""Answers of pure functions that are kept."""


def _known(pure: Callable[[Any], Any]) -> Callable[[Any], Any]:
    known = lru_cache(CACHED)(pure)
    return lambda data: known(data) if isinstance(data, str | bytes) else pure(data)


@cache
def _modules() -> list[ModuleType]:
    """Return all modules of the project, imported; a search takes as long as a schedule."""
    for package in PACKAGES:
        parent = importlib.import_module(package)
        for info in pkgutil.walk_packages(parent.__path__, f"{package}."):
            if not info.name.endswith("__main__"):
                importlib.import_module(info.name)
    import pyhdfs  # noqa: F401  # which waits between its tries: simulated, too; the project imports it late

    return [module for name, module in sys.modules.items() if name.partition(".")[0] in (*PACKAGES, "pyhdfs")]


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Within it, every module of the project finds simulated clocks, threads and servers."""
    changed: list[tuple[Any, str, Any]] = []

    def change(owner: Any, name: str, value: Any) -> None:
        changed.append((owner, name, getattr(owner, name, None)))
        setattr(owner, name, value)

    clients = {
        confluent_kafka: {"Consumer": model.Consumer, "Producer": model.Producer},
        confluent_kafka.admin: {"AdminClient": model.AdminClient},
        kafka: {"KafkaAdminClient": model.KafkaAdminClient},
        requests: {"Session": http.Session},
        happybase: {"Connection": model_of_happybase.Connection},
    }
    doubles = dict(threads.REPLACED)
    modules = _modules()
    for owner, names in clients.items():
        for name, double in names.items():
            doubles[id(getattr(owner, name))] = double
    for module in modules:
        for name, value in list(vars(module).items()):
            if id(value) in doubles and not name.startswith("__"):
                change(module, name, doubles[id(value)])
    for owner, names in clients.items():
        for name, double in names.items():
            change(owner, name, double)
    for name, constants in COARSE.items():
        for constant, value in constants.items():
            change(sys.modules[name], constant, value)
    # Collections of garbage would cost a tenth of the time, most of it for what the imports have made.
    gc.freeze()
    gc.disable()
    running = sys.modules["flafka.agent.runner.agent"]
    change(running, "MetricsServer", _NoServer)
    history = sys.modules["flafka.agent.monitoring.history"].History
    for monitoring in (running.KafkaMonitor, history, running.TapServer):
        change(monitoring, "start", lambda *_: None)  # they look at what others do, and would take most of the time
        change(monitoring, "stop", lambda self: None)
    # Simulated brokers have no sockets: nothing is wrong with the connections to them.
    change(sys.modules["flafka.plugins.kafka.errors"], "trouble", lambda *_: None)
    change(running, "socket", SimpleNamespace(gethostname=lambda: world().process.name))
    for owner, name, double in driver.replacements():
        change(owner, name, double)
    asked_again = (Batch, "from_ipc"), (OffsetMetadata, "parse"), (sys.modules["pyhdfs"], "url_quote")
    for owner, name in asked_again:
        change(owner, name, _known(getattr(owner, name)))
    change(sys.modules["flafka.sinks.hdfs.staging"], "os", _System())
    change(getpass, "getuser", cache(getpass.getuser))
    layout = sys.modules["flafka.sinks.hdfs.layout"]
    change(layout, "safe_name", _known(layout.safe_name))
    change(logging.Logger, "setLevel", _set_level)
    change(uuid, "uuid4", lambda: uuid.UUID(int=world().random.getrandbits(128), version=4))
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
        for owner, name, value in reversed(changed):
            setattr(owner, name, value)


_real_set_level = logging.Logger.setLevel


def _set_level(logger: logging.Logger, level: int | str) -> None:
    """Set the level, but not for loggers that have it: the real one visits all."""
    if logger.level != level:
        _real_set_level(logger, level)


class _System:
    """In place of `os` where files are staged: no file is opened by a process without a file descriptor."""

    def __getattr__(self, name: str) -> Any:
        if name == "open":
            world().process.check_descriptors()
        return getattr(os, name)


class _NoServer:
    """Metrics are read from the agent itself."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass


@cache
def _components() -> Any:
    """Return all installed components; a search takes as long as a schedule."""
    from flafka.plugins import Components

    return Components()


@cache
def configured(text: str) -> Any:
    """The agent of a configuration."""
    from flafka.agent.config import load

    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "agent.conf")
        file.write_text(text)
        spec, diagnostics = load(file, components=_components())
    assert spec is not None, "\n".join(map(str, diagnostics))
    return spec


@cache
def _feed(most: int) -> Any:
    """Source that puts the events of a story, up to so many batches at a time."""
    from flafka.plugins import Batch, Config, Source

    class Feed(Source[Config]):
        """Yields the batches of `world().models["feed"]`, and enters what is stored."""

        type_name: ClassVar[str] = "feed"
        in_flight = most

        def batches(self) -> Iterator[Any]:
            feed = world().models["feed"]
            while not self.stopping.is_set():
                if feed.waiting:
                    events = feed.waiting.popleft()
                    feed.sending[world().process].update(event.body for event in events)
                    batch = Batch.of(events)
                    # A source delivers rows on its own thread, and so one at a time.
                    yield batch if most == 1 else Batch(batch.records)
                else:
                    feed.changed.idle(5, 60)

        def stored(self, batch: Any) -> None:
            feed, bodies = world().models["feed"], batch.bodies.to_pylist()
            feed.stored += bodies
            feed.sending[world().process].subtract(bodies)

    return Feed


class AgentProcess:
    """An agent on a host of its own."""

    def __init__(self, world: World, host: str, spec: Any, *, feeding: bool, drain: bool = False) -> None:
        from flafka.agent.topology import ConfigLocation, Route, SelectorSpec, SourceSpec
        from flafka.plugins import Config

        self.world, self.host, self.drain = world, host, drain
        if feeding:
            config, _ = Config.parse({})
            names = tuple(channel.name for channel in spec.channels[:1])
            location, selector = ConfigLocation("", 0), SelectorSpec(default=Route(required=names))
            feed = _feed(world.models["feed"].in_flight)
            source = SourceSpec("s1", f"{spec.name}.sources.s1", feed, config, {}, location, names, selector)
            spec = replace(spec, sources=(source,))
        self.spec = spec
        self.process = Process(world, host)
        self.agent: Any = None
        self.code: int | None = None
        """Exit code; None while the agent runs, and after a kill."""
        self.complaint = ""
        """Error with which a drain ended."""
        self._stop = threads.Event()
        self.main = self.process.spawn(self._run, "main")

    def _run(self) -> None:
        from flafka.agent.runner.agent import Agent
        from flafka.agent.runner.drain import DrainStalled

        stuck = False
        self.agent = Agent(self.spec)
        if self.drain:
            self.agent.drain()
        self.agent.start()
        while not self._stop.wait(2.0 if self.drain else None):
            try:
                if self.agent.is_drained():
                    break
            except DrainStalled as e:
                self.complaint = str(e)
                self.world.log(f"{self.host} says: {e}")
                stuck = True
                break
        self.code = 0 if self.agent.stop() and not stuck else 1

    @property
    def running(self) -> bool:
        """True while the process is alive."""
        return self.process.alive and not self.main.done

    @property
    def stop_requested(self) -> bool:
        """True once the agent was asked to stop."""
        return bool(self._stop.is_set())

    def stop(self) -> None:
        """Ask the agent to stop, as SIGTERM does."""
        self._stop.set()


def in_process(world: World, name: str, work: Callable[[], Any]) -> Any:
    """Run a call in a process of its own and return its result; None if it was killed."""
    process = Process(world, name)
    outcome: list[Any] = []

    def body() -> None:
        try:
            outcome.append((work(), None))
        except Exception as e:  # is raised below
            outcome.append((None, e))

    thread = process.spawn(body, "main")
    process.ended.append(thread.finished.fire)
    if not thread.done and process.alive:
        thread.finished.wait()
    if not outcome:
        return None
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


def command(*arguments: str) -> str:
    """Run `agent …` in the present process; what it prints. Raises what it ends with."""
    from click.testing import CliRunner

    from flafka.agent.cli import main

    outcome = CliRunner().invoke(main, list(arguments))
    if outcome.exit_code:
        raise RuntimeError(f"agent {' '.join(arguments)}: {outcome.output}") from outcome.exception
    return outcome.output


class Told(logging.Handler):
    """Add the log of all programs to the story."""

    def emit(self, record: logging.LogRecord) -> None:
        here = world()
        here.log(f"{here.process.name} says: {record.getMessage()}")


@contextlib.contextmanager
def logged(level: int) -> Iterator[None]:
    """Have it in the story."""
    root, handler = logging.getLogger(), Told(level)
    before, handlers = root.level, root.handlers
    root.handlers = [handler]
    if before != level:
        root.setLevel(level)
    try:
        yield
    finally:
        root.handlers = handlers
        if before != level:
            root.setLevel(before)


def seeded(seed: int) -> None:
    """Seed the random numbers of the project's code."""
    random.seed(seed)
