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

from flafka.agent.cli.address import NoAnswer, address_in
from flafka.agent.cli.configured import Chosen, configuration_options, counted, show
from flafka.agent.cli.output import json_option, show_json
from flafka.agent.cli.running import running_agents
from flafka.agent.topology import AgentSpec

RELOAD_SECONDS = 120.0
"""Longest wait for an agent to take over its new configuration."""
UNMONITORED_RELOAD_SECONDS = 15.0
"""Longest wait for an agent whose monitoring did not answer before: the new configuration may begin it."""


@click.command()
@configuration_options
@json_option
def reload(chosen: Chosen, as_json: bool) -> None:
    """Have the running agent go over to its configuration as it is now.

    The configuration is checked first: with errors, nothing is asked of the agent. What has not changed keeps
    running. Exit code: 0 when the agent runs it, 2 when the configuration has errors, else 1.
    """
    spec, diagnostics = chosen.load()
    show(diagnostics, sys.stderr)
    if spec is None:
        click.echo(f"{counted(diagnostics)}; nothing was changed", err=True)
        sys.exit(2)
    running = running_agents(chosen, spec.name)
    if not running:
        raise click.ClickException(f"no agent {spec.name} of {chosen.file} runs as this user on this host")
    answered = _reloads(spec, running) is not None
    for pid in running:
        if not _catches(pid, signal.SIGHUP):  # it would end by it
            raise click.ClickException(
                f"process {pid} cannot reload: it starts just now, or is of an earlier version; restart it then"
            )
    began = time.time()
    for pid in running:
        os.kill(pid, signal.SIGHUP)
        if not as_json:
            click.echo(f"agent {spec.name}, process {pid}, reads its configuration")
    about = {"agent": spec.name, "processes": running}
    unanswered = 0.0 if address_in(spec.options) is None else UNMONITORED_RELOAD_SECONDS
    waiting = RELOAD_SECONDS if answered else unanswered
    deadline = time.monotonic() + waiting
    while time.monotonic() < deadline:
        now = _reloads(spec, running)
        if now is not None and now["at"] >= began:
            if as_json:
                show_json({**about, "ok": now["ok"], "told": now["told"]})
            else:
                click.echo(f"changed: {now['told']}" if now["ok"] else now["told"], err=not now["ok"])
            sys.exit(0 if now["ok"] else 1)
        answered |= now is not None
        time.sleep(0.1)
    if not answered:
        told = "its monitoring does not answer here: its log says what has changed"
        click.echo(json.dumps({**about, "ok": None, "told": told}, indent=2) if as_json else told)
        return
    raise click.ClickException(f"not done after {waiting:.0f} s: its log says what it waits for")


def _catches(pid: int, number: signal.Signals) -> bool:
    """Return True if the process has a handler for that signal; False if it has ended."""
    try:
        found = re.search(r"^SigCgt:\s*([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return False
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


def _reloads(spec: AgentSpec, running: Sequence[int]) -> dict[str, Any] | None:
    """Return the latest reload of one of the processes `running` and its result; None if none of them answers."""
    address = address_in(spec.options)
    if address is None:
        return None
    try:
        state = address.ask("/api/state")
    except NoAnswer:
        return None
    reloads: dict[str, Any] | None = state.get("reloads")
    return reloads if state.get("pid") in running else None  # another agent may have that port
