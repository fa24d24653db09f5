"""Warnings about sources and a dashboard that any host may reach, without TLS and without authentication."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from flafka.agent.config.diagnostics import Diagnostic, Severity
from flafka.agent.topology import AgentSpec, ConfigLocation, SourceSpec
from flafka.agent.web import is_loopback
from flafka.plugins.net.tls import TlsServerConfig

_ADDRESS_OPTIONS = ("bind", "host")
_TLS_SECRETS = ("keystore-password", "truststore-password")
"""Secrets of a source that restrict no client."""


def open_listeners(spec: AgentSpec) -> list[Diagnostic]:
    """Return a diagnostic for each listener on all addresses that has neither TLS nor authentication.

    It is a warning in any mode, as such a listener may be intended: a firewall may restrict its clients. It is a note
    for a source that can have neither TLS nor authentication.
    """
    of_sources = (diagnostic for source in spec.sources for diagnostic in _open_source(source))
    return [*_open_dashboard(spec), *of_sources]


def _open_source(spec: SourceSpec) -> Iterator[Diagnostic]:
    """Yield a diagnostic if any host may send events to the source unencrypted."""
    options = {option.name: option for option in type(spec.config).options()}
    values = {name: getattr(spec.config, option.field) for name, option in options.items()}
    address = next((name for name in _ADDRESS_OPTIONS if name in options and _is_any(values[name])), None)
    if address is None or not options.keys() & {"port", "ports"}:
        return
    secrets = [name for name, option in options.items() if option.is_secret and name not in _TLS_SECRETS]
    if values.get("ssl") or values.get("ipFilter") or any(values[name] for name in secrets):
        return
    message = f"{address} = {values[address]} lets any host send events"
    severity: Severity = "note"
    way = "name one address, or let a firewall choose the senders"
    if isinstance(spec.config, TlsServerConfig):
        severity, message = "warning", f"{message} in clear text"
        known = "a truststore or token" if "token" in options else "a truststore"
        way = f"set ssl = true and a keystore, with {known} to accept known clients only, or name one address"
    yield Diagnostic(severity, spec.place, spec.path, f"{message}: {way}")


def _open_dashboard(spec: AgentSpec) -> Iterator[Diagnostic]:
    """Yield a warning if any host may read the metrics in clear text, or if the page with its token lacks TLS."""
    options = spec.options
    host = options.monitoring_host
    if options.monitoring_ssl or is_loopback(host) or (options.monitoring_ssl is False and options.token):
        return
    if not (options.token or _is_any(host)):
        return
    if options.token:
        message = f"monitoring.host = {host} keeps the dashboard from everyone, as it would be in clear text"
        way = "set monitoring.ssl = true and monitoring.keystore, or false behind a proxy that encrypts"
    else:
        message = f"monitoring.host = {host} shows metrics and errors to any host in clear text"
        way = "set monitoring.ssl = true and monitoring.keystore, or name one address"
    place = spec.option_locations.get("monitoring.host", ConfigLocation(spec.file, 0))
    yield Diagnostic("warning", place, spec.name, f"{message}: {way}")


def _is_any(address: object) -> bool:
    """Return True for an address that stands for all addresses of this host: 0.0.0.0, ::, or an empty text."""
    if not isinstance(address, str):
        return False
    try:
        return not address or ipaddress.ip_address(address.strip("[]")).is_unspecified
    except ValueError:
        return False
