"""Asking a running agent over HTTP, as its page does."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.parse import urlsplit

import click

from flafka.agent.cli.configured import Chosen, load_or_exit
from flafka.agent.options import AgentOptions

MONITORING_RESPONSE_SECONDS = 5.0


class NoAnswer(click.ClickException):
    """Nobody answers there as an agent would; the text is a sentence."""


@dataclass(frozen=True)
class Address:
    """Address of an agent's HTTP server."""

    host: str
    port: int
    token: str = ""
    tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' * self.tls}://{host}:{self.port}"

    def ask(self, path: str) -> dict[str, Any]:
        """The JSON of a page such as `/api/state`, without any proxy. Raises NoAnswer."""
        kind = http.client.HTTPSConnection if self.tls else http.client.HTTPConnection
        connection = kind(self.host, self.port, timeout=MONITORING_RESPONSE_SECONDS)
        headers = {"authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as e:
            why = getattr(e, "strerror", None) or str(e) or type(e).__name__
            raise NoAnswer(f"no agent answers at {self} ({why}): is it started?") from e
        finally:
            connection.close()
        if answer.status == 403:
            raise NoAnswer(f"the agent at {self} refuses: {body.decode(errors='replace').strip()}")
        try:
            if answer.status != 200:
                raise ValueError(answer.reason)
            return cast("dict[str, Any]", json.loads(body))
        except ValueError as e:
            raise NoAnswer(
                f"what answers at {self} is no agent, or an older one: {path} gives {answer.status}"
            ) from e


def address_of(chosen: Chosen | None, url: str | None, token: str | None) -> Address:
    """Return the address in a URL, or the one at which the agent of a configuration serves its metrics."""
    if (chosen is None) == (url is None):
        raise click.UsageError("which agent? Name its configuration with -c FILE, or its address with --url")
    if url is not None:
        return _of_url(url if "://" in url else f"http://{url}", token or "")
    assert chosen is not None
    found = address_in(load_or_exit(chosen).options)
    if found is None:
        raise click.ClickException(
            "monitoring.port is 0, so that the agent takes any free port: its log tells which, for --url"
        )
    return replace(found, token=token or found.token)


def address_in(options: AgentOptions) -> Address | None:
    """Return the address of an agent with these options on this host; None if it takes any free port."""
    if not options.monitoring_port:
        return None
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(options.monitoring_host, options.monitoring_host)  # noqa: S104  # compared only
    return Address(host, options.monitoring_port, options.token)


def _of_url(url: str, token: str) -> Address:
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError
        return Address(parts.hostname, parts.port or 14141, token, parts.scheme == "https")
    except ValueError:
        raise click.UsageError(f"--url {url} is no address such as http://127.0.0.1:14141") from None
