"""HTTP client of a running agent's monitoring server."""

from __future__ import annotations

import functools
import http.client
import json
import ssl
from dataclasses import asdict, dataclass, replace
from typing import Any, cast
from urllib.parse import urlsplit

import click

from flafka.agent.cli.configuration import ChosenConfiguration, load_or_exit
from flafka.agent.monitoring.problems import AgentProblem
from flafka.agent.options import AgentOptions
from flafka.plugins import FlafkaError
from flafka.plugins.net.tls import connection_error_reason

MONITORING_RESPONSE_SECONDS = 5.0
"""Timeout of each request, unless a client has another."""
_EXPIRED = 10
"""OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED (x509_vfy.h)."""
_MISMATCHES = (62, 64)
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""


class AgentUnreachable(click.ClickException):
    """No agent answers at an address, or the agent refuses the request."""


class CertificateRefused(AgentUnreachable):
    """A server answers with a certificate that this client does not trust."""


@dataclass(frozen=True)
class MonitoringClient:
    """Client of the monitoring server at an address. Each request has a connection of its own."""

    host: str
    port: int
    token: str = ""
    tls: ssl.SSLContext | None = None
    timeout_seconds: float = MONITORING_RESPONSE_SECONDS

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls else ''}://{host}:{self.port}"

    def get(self, path: str) -> dict[str, Any]:
        """Return the JSON object at a path such as `/api/state`, without any proxy.

        Raises AgentUnreachable if there is no answer within the timeout, no permission, or no such page. Raises
        CertificateRefused if the certificate is not trusted.
        """
        timeout = self.timeout_seconds
        connection: http.client.HTTPConnection = (
            http.client.HTTPConnection(self.host, self.port, timeout=timeout)
            if self.tls is None
            else http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=self.tls)
        )
        headers = {"authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            body = response.read()
        except ssl.SSLCertVerificationError as e:
            raise CertificateRefused(
                f"the certificate of {self} is refused: {e.verify_message.rstrip('.')}; {self._hint(e.verify_code)}"
            ) from e
        except ssl.SSLError as e:
            raise AgentUnreachable(f"no TLS with {self}: {connection_error_reason(e)}") from e
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

    def _hint(self, verify_code: int) -> str:
        """Return the way out after OpenSSL has refused the certificate with this code."""
        assert self.tls is not None
        if verify_code == _EXPIRED:
            return "replace it in the agent's keystore, and run agent reload"
        if verify_code in _MISMATCHES:
            return f"name the agent by a name in the certificate: https://HOST:{self.port}, with --cacert FILE"
        if self.tls.check_hostname:
            return "name its authority with --cacert FILE"
        return (
            "if the agent's keystore was replaced, run agent reload; if its certificate is another one, name the "
            "authority with --cacert FILE"
        )


def _other_access(port: int) -> str:
    """Return the options of a command that needs no keystore of the agent."""
    return f"--url https://HOST:{port} --cacert FILE"


def client_of(
    chosen: ChosenConfiguration | None, url: str | None, token: str | None, authority: str | None = None
) -> MonitoringClient:
    """Return the client for a URL, or for the agent of a configuration. Exactly one of both must be given.

    `token` overrides the token of the configuration, and `authority` names a file with the certificates to trust.
    Raises UsageError, also for an `authority` without TLS. Raises ClickException for an agent with any free port, and
    for certificates that cannot be read.
    """
    if (chosen is None) == (url is None):
        raise click.UsageError("which agent? Name its configuration with -c FILE, or its address with --url")
    if url is not None:
        try:
            client = client_of_url(url, token or "", authority)
        except ValueError as e:
            raise click.UsageError(f"--url {e}") from None
    else:
        assert chosen is not None
        own_client = client_of_options(load_or_exit(chosen).options, authority)
        if own_client is None:
            raise click.ClickException(
                "monitoring.port is 0, so the agent takes any free port: name the one in its log with --url"
            )
        client = replace(own_client, token=token or own_client.token)
    if authority is not None and client.tls is None:
        raise click.UsageError(f"--cacert has no effect: {client} is without TLS")
    return client


def client_of_options(options: AgentOptions, authority: str | None = None) -> MonitoringClient | None:
    """Return the client for an agent with these options on this host; None if the agent takes any free port.

    With TLS, the client trusts the certificate in the agent's keystore, whatever its name, or the certificates in
    the file `authority`. Raises ClickException if the keystore or that file cannot be read.
    """
    if not options.monitoring_port:
        return None
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(options.monitoring_host, options.monitoring_host)  # noqa: S104  # compared only
    tls = None
    if options.tls is not None:
        tls = _context_trusting(authority) if authority is not None else _context_of_own_certificate(options)
    return MonitoringClient(host, options.monitoring_port, options.token, tls)


def _context_of_own_certificate(options: AgentOptions) -> ssl.SSLContext:
    """Return a context that trusts the certificate in the agent's keystore alone. Raises ClickException."""
    assert options.tls is not None
    try:
        certificate = options.tls.certificate()
    except FlafkaError as e:
        raise click.ClickException(
            f"monitoring.keystore: {e}; run the command as the agent's user, or name the authority of its "
            f"certificate: agent top {_other_access(options.monitoring_port)}"
        ) from e
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the owner of this very certificate is the agent, by whatever name
    context.load_verify_locations(cadata=certificate)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


@functools.cache
def _context_trusting(authority: str | None) -> ssl.SSLContext:
    """Return a context that trusts the certificates of a PEM file, or else the authorities of this host.

    Raises ClickException if the file cannot be used.
    """
    try:
        return ssl.create_default_context(cafile=authority)
    except OSError as e:
        reason = "it holds no certificate in PEM" if isinstance(e, ssl.SSLError) else e.strerror
        raise click.ClickException(f"--cacert {authority}: {reason}") from e


def client_of_url(address: str, token: str, authority: str | None) -> MonitoringClient:
    """Return the client for `[http[s]://]host[:port]`, by default without TLS and with port 14141.

    Raises ValueError if the address is none, and ClickException if `authority` cannot be read.
    """
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError
        port = parts.port or 14141
    except ValueError:
        raise ValueError(f"{address} is no address such as http://127.0.0.1:14141") from None
    tls = _context_trusting(authority) if parts.scheme == "https" else None
    return MonitoringClient(parts.hostname, port, token, tls)


def problems_of(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the problems of a state as `/api/state` gives it, the gravest first, with the keys of `AgentProblem`.

    Agents of release 0.3.0 give only reasons by component, in the maps `failing` and `degraded`. Their problems have
    a title, a severity and a component, and no other values.
    """
    if "problems" in state:
        return cast("list[dict[str, Any]]", state["problems"])
    return [
        asdict(AgentProblem("", severity, key, key, f"{key}: {reason}"))
        for severity in ("failing", "degraded")
        for key, reason in state[severity].items()
    ]
