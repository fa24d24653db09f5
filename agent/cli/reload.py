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
from flafka.agent.cli.monitoring_client import AgentUnreachable, client_of_options
from flafka.agent.cli.output import json_option, show_json
from flafka.agent.cli.processes import find_running_agents
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
    answered = _latest_reload(spec, running) is not None
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
    unanswered = 0.0 if client_of_options(spec.options) is None else UNMONITORED_RELOAD_SECONDS
    timeout = RELOAD_SECONDS if answered else unanswered
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        latest = _latest_reload(spec, running)
        if latest is not None and latest["at"] >= began:
            if as_json:
                show_json({**about, "ok": latest["ok"], "told": latest["told"]})
            else:
                click.echo(f"changed: {latest['told']}" if latest["ok"] else latest["told"], err=not latest["ok"])
            sys.exit(0 if latest["ok"] else 1)
        answered |= latest is not None
        time.sleep(0.1)
    if not answered:
        result = "the agent's monitoring does not answer on this host: see the agent's log for the changes"
        click.echo(json.dumps({**about, "ok": None, "told": result}, indent=2) if as_json else result)
        return
    raise click.ClickException(f"the reload is not complete after {timeout:.0f} s: see the agent's log")


def _has_handler(pid: int, number: signal.Signals) -> bool:
    """Return True if the process has a handler for that signal; False also if it has ended."""
    try:
        mask = re.search(r"^SigCgt:\s*([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return False
    return mask is not None and bool(int(mask[1], 16) >> (number - 1) & 1)


def _latest_reload(spec: AgentSpec, running: Sequence[int]) -> dict[str, Any] | None:
    """Return the latest reload of one of the processes `running`, with its result.

    None if the agent's monitoring does not answer, or belongs to another process.
    """
    client = client_of_options(spec.options)
    if client is None:
        return None
    try:
        state = client.get("/api/state")
    except AgentUnreachable:
        return None
    reloads: dict[str, Any] | None = state.get("reloads")
    return reloads if state.get("pid") in running else None  # another agent may have that port
