"""HTTP client of a running agent's monitoring server."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.parse import urlsplit

import click

from flafka.agent.cli.configuration import ChosenConfiguration, load_or_exit
from flafka.agent.options import AgentOptions

MONITORING_RESPONSE_SECONDS = 5.0
"""Timeout of each request."""


class AgentUnreachable(click.ClickException):
    """No agent answers at an address, or the agent refuses the request."""


@dataclass(frozen=True)
class MonitoringClient:
    """Client of the monitoring server at an address. Each request has a connection of its own."""

    host: str
    port: int
    token: str = ""
    tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' * self.tls}://{host}:{self.port}"

    def get(self, path: str) -> dict[str, Any]:
        """Return the JSON object at a path such as `/api/state`, without any proxy.

        Raises AgentUnreachable if there is no answer within 5 s, no permission, or no such page.
        """
        connection_class = http.client.HTTPSConnection if self.tls else http.client.HTTPConnection
        connection = connection_class(self.host, self.port, timeout=MONITORING_RESPONSE_SECONDS)
        headers = {"authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as e:
            reason = getattr(e, "strerror", None) or str(e) or type(e).__name__
            raise AgentUnreachable(f"no agent answers at {self} ({reason}): is it started?") from e
        finally:
            connection.close()
        if response.status == 403:
            raise AgentUnreachable(f"the agent at {self} refuses: {body.decode(errors='replace').strip()}")
        try:
            if response.status != 200:
                raise ValueError(response.reason)
            return cast("dict[str, Any]", json.loads(body))
        except ValueError as e:
            raise AgentUnreachable(
                f"the server at {self} is no agent, or one of an earlier version: {path} gives {response.status}"
            ) from e


def client_of(chosen: ChosenConfiguration | None, url: str | None, token: str | None) -> MonitoringClient:
    """Return the client for a URL, or for the agent of a configuration. Exactly one of both must be given.

    `token` overrides the token of the configuration. Raises UsageError, and ClickException for an agent with any free
    port.
    """
    if (chosen is None) == (url is None):
        raise click.UsageError("which agent? Name its configuration with -c FILE, or its address with --url")
    if url is not None:
        return _client_of_url(url if "://" in url else f"http://{url}", token or "")
    assert chosen is not None
    client = client_of_options(load_or_exit(chosen).options)
    if client is None:
        raise click.ClickException(
            "monitoring.port is 0, so the agent takes any free port: name the one in its log with --url"
        )
    return replace(client, token=token or client.token)


def client_of_options(options: AgentOptions) -> MonitoringClient | None:
    """Return the client for an agent with these options on this host; None if the agent takes any free port."""
    if not options.monitoring_port:
        return None
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(options.monitoring_host, options.monitoring_host)  # noqa: S104  # compared only
    return MonitoringClient(host, options.monitoring_port, options.token)


def _client_of_url(url: str, token: str) -> MonitoringClient:
    """Return the client for `http[s]://host[:port]`, by default with port 14141. Raises UsageError."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError
        return MonitoringClient(parts.hostname, parts.port or 14141, token, parts.scheme == "https")
    except ValueError:
        raise click.UsageError(f"--url {url} is no address such as http://127.0.0.1:14141") from None
