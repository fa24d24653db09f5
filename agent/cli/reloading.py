"""A running agent goes over to its configuration as it is now."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from flafka.agent.cli.configured import Chosen
from flafka.agent.cli.own_cluster import with_own_cluster
from flafka.agent.runner.agent import Agent
from flafka.plugins import FlafkaError

log = logging.getLogger("agent.reload")

EVERY_SECONDS = 30.0
"""Files are looked at so often, as in Flume."""


class Reloader:
    """Reads the configuration that an agent was started with again, when asked or when it has changed."""

    def __init__(self, chosen: Chosen, *, looks: bool) -> None:
        """`looks`: whether a change of its files is enough."""
        self._chosen, self._looks = chosen, looks
        self._wanted = False
        self._thread: threading.Thread | None = None
        self._seen = self._times()
        self._due = time.monotonic() + EVERY_SECONDS

    def look(self, agent: Agent, *, asked: bool) -> None:
        """To be called every second or so; returns at once, and reads on a thread of its own."""
        self._wanted |= asked
        if self._looks and time.monotonic() >= self._due:
            self._due = time.monotonic() + EVERY_SECONDS
            self._wanted |= self._times() != self._seen
        if self._wanted and (self._thread is None or not self._thread.is_alive()):
            self._wanted = False
            self._seen = self._times()
            self._thread = threading.Thread(target=self._reload, args=(agent,), name="reload", daemon=True)
            self._thread.start()

    def _reload(self, agent: Agent) -> None:
        try:
            spec, found = self._chosen.load()
            for one in found:
                log.log(logging.ERROR if one.severity == "error" else logging.WARNING, "%s", one)
            if spec is None or any(one.severity == "error" for one in found):
                raise FlafkaError("the configuration has errors: nothing was changed")
            if spec.name != agent.spec.name:
                raise FlafkaError(f"it has agent {spec.name} and not {agent.spec.name}: nothing was changed")
            told = agent.reload(with_own_cluster(spec))
        except FlafkaError as e:
            log.error("%s", e)
            agent.view.reloaded(ok=False, told=str(e))
        except Exception as e:
            log.exception("the configuration is changed in part at most: run agent reload again")
            agent.view.reloaded(ok=False, told=f"{type(e).__name__}: {e}")
        else:
            log.info("changed: %s", told)
            agent.view.reloaded(ok=True, told=told)

    def _times(self) -> list[tuple[int, int] | None]:
        return [_time(file) for file in (self._chosen.file, *self._chosen.more)]


def _time(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:  # an editor is about to put it there
        return None
    return status.st_mtime_ns, status.st_size
