"""`agent reload`."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.request
from typing import Any

import click

from agent.cli.configured import Chosen, configuration_options, counted, show
from agent.cli.running import running_agents
from agent.topology import AgentSpec

WAIT_SECONDS = 120.0


@click.command()
@configuration_options
def reload(chosen: Chosen) -> None:
    """Have the running agent go over to its configuration as it is now.

    The configuration is checked first: with errors, nothing is asked of the agent. What has not changed goes on
    undisturbed. Exit code: 0 when the agent runs it, 2 when the configuration has errors, else 1.
    """
    spec, diagnostics = chosen.load()
    show(diagnostics, sys.stderr)
    if spec is None:
        click.echo(f"{counted(diagnostics)}; nothing was changed", err=True)
        sys.exit(2)
    running = running_agents(chosen, spec.name)
    if not running:
        raise click.ClickException(f"no agent {spec.name} of {chosen.file} runs as this user on this host")
    before = _reloads(spec)
    for pid in running:
        os.kill(pid, signal.SIGHUP)
        click.echo(f"agent {spec.name}, process {pid}, reads its configuration")
    if before is None:
        click.echo("its monitoring does not answer here: its log says what has changed")
        return
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        now = _reloads(spec)
        if now is not None and now["number"] > before["number"]:
            click.echo(f"changed: {now['told']}" if now["ok"] else now["told"], err=not now["ok"])
            sys.exit(0 if now["ok"] else 1)
        time.sleep(0.1)
    raise click.ClickException(f"not done after {WAIT_SECONDS:.0f} s: its log says what it waits for")


def _reloads(spec: AgentSpec) -> dict[str, Any] | None:
    """How often it has read its configuration, and what came of the latest; None where it does not answer."""
    options = spec.options
    request = urllib.request.Request(f"http://{options.monitoring_host}:{options.monitoring_port}/api/state")
    if options.monitoring_token is not None:
        request.add_header("authorization", f"Bearer {options.monitoring_token.get_secret_value()}")
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310  # the address begins with http
            found: dict[str, Any] = json.load(answer)["reloads"]
    except (OSError, ValueError, KeyError):
        return None
    return found
