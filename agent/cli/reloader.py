"""Reload of a running agent's configuration."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from flafka.agent.cli.configuration import ChosenConfiguration
from flafka.agent.cli.default_brokers import with_default_brokers
from flafka.agent.runner.agent import Agent
from flafka.plugins import FlafkaError

log = logging.getLogger("agent.reload")

POLL_SECONDS = 30.0
"""Interval of polling the files for changes, as in Flume."""


class Reloader:
    """Reloads an agent's configuration on request, or when its files have changed."""

    def __init__(self, chosen: ChosenConfiguration, *, watch_files: bool) -> None:
        """`chosen` is the configuration to load. With `watch_files`, a change of its files starts a reload, too."""
        self._chosen, self._watch_files = chosen, watch_files
        self._is_requested = False
        self._thread: threading.Thread | None = None
        self._versions = self._file_versions()
        self._next_poll = time.monotonic() + POLL_SECONDS

    def poll(self, agent: Agent, *, requested: bool) -> None:
        """Start a reload on a thread if one is due and none runs. Does not block. Call it about once a second.

        It is due after a call with `requested`, and, when files are watched, after a change of these within 30 s.
        """
        self._is_requested |= requested
        if self._watch_files and time.monotonic() >= self._next_poll:
            self._next_poll = time.monotonic() + POLL_SECONDS
            self._is_requested |= self._file_versions() != self._versions
        if self._is_requested and (self._thread is None or not self._thread.is_alive()):
            self._is_requested = False
            self._versions = self._file_versions()
            self._thread = threading.Thread(target=self._reload, args=(agent,), name="reload", daemon=True)
            self._thread.start()

    def _reload(self, agent: Agent) -> None:
        """Load the configuration and apply it to the agent.

        The outcome goes to the log and the page; never raises.
        """
        try:
            spec, diagnostics = self._chosen.load()
            errors = [diagnostic for diagnostic in diagnostics if diagnostic.severity == "error"]
            for diagnostic in diagnostics:
                log.log(logging.ERROR if diagnostic in errors else logging.WARNING, "%s", diagnostic)
            if spec is None or errors:
                raise FlafkaError("the configuration has errors: nothing was changed")
            if spec.name != agent.spec.name:
                raise FlafkaError(
                    f"the configuration has agent {spec.name}, not {agent.spec.name}: nothing was changed"
                )
            changes = agent.reload(with_default_brokers(spec))
        except FlafkaError as e:
            log.error("%s", e)
            agent.view.record_reload(ok=False, message=str(e))
        except Exception as e:
            log.exception("the reload failed and may be incomplete: run agent reload again")
            agent.view.record_reload(ok=False, message=f"{type(e).__name__}: {e}")
        else:
            log.info("changed: %s", changes)
            agent.view.record_reload(ok=True, message=changes)

    def _file_versions(self) -> list[tuple[int, int] | None]:
        return [_file_version(file) for file in (self._chosen.file, *self._chosen.more)]


def _file_version(file: Path) -> tuple[int, int] | None:
    """Return modification time in nanoseconds and size in bytes; None if the file cannot be read.

    This is so while an editor replaces it.
    """
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
