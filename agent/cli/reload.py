"""`agent reload`."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from flafka.agent.cli.configuration import (
    ChosenConfiguration,
    configuration_options,
    count_by_severity,
    print_diagnostics,
)
from flafka.agent.cli.monitoring_client import (
    AgentUnreachable,
    CertificateRefused,
    MonitoringClient,
    client_of_options,
)
from flafka.agent.cli.output import json_option, show_json
from flafka.agent.cli.processes import find_running_agents
from flafka.agent.runner.changes import file_state
from flafka.agent.topology import AgentSpec

RELOAD_SECONDS = 120.0
"""Timeout of a reload."""
UNMONITORED_RELOAD_SECONDS = 15.0
"""Timeout for an agent whose monitoring did not answer: the new configuration may enable it."""


@click.command()
@configuration_options
@json_option
def reload(chosen: ChosenConfiguration, as_json: bool) -> None:
    """Make a running agent apply its changed configuration.

    The configuration is checked first; with errors, the agent is not asked to reload. Unchanged components keep
    running. Exit code: 0 if the agent runs the configuration, 2 if it has errors, else 1.
    """
    spec, diagnostics = chosen.load()
    print_diagnostics(diagnostics, sys.stderr)
    if spec is None:
        click.echo(f"{count_by_severity(diagnostics)}; nothing was changed", err=True)
        sys.exit(2)
    running = find_running_agents(chosen, spec.name)
    if not running:
        raise click.ClickException(f"no agent {spec.name} of {chosen.file} runs as this user on this host")
    monitoring = _Monitoring(spec, running)
    monitoring.latest_reload()
    for pid in running:
        if not _has_handler(pid, signal.SIGHUP):  # without a handler, the signal would end it
            raise click.ClickException(
                f"process {pid} cannot reload: it is starting, or is of an earlier version; try again, or restart it"
            )
    began = time.time()
    for pid in running:
        os.kill(pid, signal.SIGHUP)
        if not as_json:
            click.echo(f"agent {spec.name}, process {pid}, reads its configuration")
    about = {"agent": spec.name, "processes": running}
    unanswered = UNMONITORED_RELOAD_SECONDS if spec.options.monitoring_port else 0.0
    start = time.monotonic()
    while time.monotonic() - start < (RELOAD_SECONDS if monitoring.answered else unanswered):
        latest = monitoring.latest_reload()
        if latest is not None and latest["at"] >= began:
            if as_json:
                show_json({**about, "ok": latest["ok"], "told": latest["told"]})
            else:
                click.echo(f"changed: {latest['told']}" if latest["ok"] else latest["told"], err=not latest["ok"])
            sys.exit(0 if latest["ok"] else 1)
        time.sleep(0.1)
    if not monitoring.answered:
        result = "the agent's monitoring does not answer on this host: see the agent's log for the changes"
        if monitoring.error:
            result = f"the result of the reload is unknown: {monitoring.error}; see the agent's log for the changes"
        click.echo(json.dumps({**about, "ok": None, "told": result}, indent=2) if as_json else result)
        sys.exit(1 if monitoring.error else 0)
    raise click.ClickException(f"the reload is not complete after {RELOAD_SECONDS:.0f} s: see the agent's log")


def _has_handler(pid: int, number: signal.Signals) -> bool:
    """Return True if the process has a handler for that signal; False also if it has ended."""
    try:
        mask = re.search(r"^SigCgt:\s*([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return False
    return mask is not None and bool(int(mask[1], 16) >> (number - 1) & 1)


class _Monitoring:
    """Monitoring of an agent's processes, before, during and after a reload."""

    def __init__(self, spec: AgentSpec, running: Sequence[int]) -> None:
        self._options, self._running = spec.options, running
        self._client: MonitoringClient | None = None
        self._keystore_state: tuple[int, int, int] | None = None
        self.answered = False
        """True once a process has answered, if only with another certificate than that in its keystore."""
        self.error = ""
        """Reason why the keystore cannot be used; empty if it can."""

    def latest_reload(self) -> dict[str, Any] | None:
        """Return the latest reload of one of the processes, with its result.

        None if the monitoring does not answer, or belongs to another process, or if the keystore cannot be used.
        """
        self._update_client()
        if self._client is None:
            return None
        try:
            state = self._client.get("/api/state")
        except CertificateRefused:  # the agent uses a replaced keystore only at the end of its reload
            self.answered = True
            return None
        except AgentUnreachable:
            return None
        reloads: dict[str, Any] | None = state.get("reloads")
        if state.get("pid") not in self._running:  # another agent may have that port
            return None
        self.answered |= reloads is not None
        return reloads

    def _update_client(self) -> None:
        """Make the client anew if the keystore has changed, as decrypting it takes a while."""
        keystore = self._options.keystore
        state = file_state(keystore) if keystore is not None else None
        if (self._client or self.error) and state == self._keystore_state:
            return
        self._client, self._keystore_state, self.error = None, state, ""
        try:
            self._client = client_of_options(self._options)
        except click.ClickException as e:
            self.error = e.message
