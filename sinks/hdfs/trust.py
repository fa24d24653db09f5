"""TLS of the HDFS sink: certificates of servers that it accepts."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import SecretStr

from flafka.plugins import Retry
from flafka.plugins.net.tls import connection_error_reason, truststore_context

CA_VARIABLE = "REQUESTS_CA_BUNDLE"
"""Environment variable with a file of authorities, which counts if hdfs.truststore is not set."""
_ANOTHER_NAME = (62, 64)
"""OpenSSL's codes of a certificate for another host name (X509_V_ERR_HOSTNAME_MISMATCH) or address."""
_CLOSED = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""Errors of a connection that the server, or the network, has ended: the server may just be away."""
_LATE_ALERTS = ("TLSV13_ALERT_CERTIFICATE_REQUIRED",)
"""Refusals of a handshake that a client of TLS 1.3 sees only when it reads."""


class TlsSettings(NamedTuple):
    """Settings of TLS, for HDFS over HTTPS."""

    truststore: str | None = None
    """File with the authorities to trust; None for that of `CA_VARIABLE`, or else of the package certifi."""
    password: SecretStr | None = None
    check_hostname: bool = True
    origin: str = ""
    """Property and file that name the truststore; empty for the option hdfs.truststore."""


DEFAULT_TLS = TlsSettings()


class TlsFailure(Retry):
    """Failure of a TLS handshake, such as a certificate that is not trusted; not a connection that broke."""


class _HandshakeFailure(ssl.SSLError):
    """Failure of a handshake; its cause is Python's error."""


class Trust:
    """Trusted certificates of one sink. The truststore is read again once it has changed. Any thread may call."""

    def __init__(self, settings: TlsSettings, member: str = "") -> None:
        """`member` is the path of the sink, for its log. The first connection reads the truststore."""
        self._settings, self._log = settings, logging.getLogger(member or __name__)
        self._context: ssl.SSLContext | None = None
        self._version: tuple[int, ...] | None = ()
        self._lock = Lock()

    def apply_to(self, adapter: Any) -> None:
        """Have all connections of an adapter of requests use these settings."""
        manager = getattr(adapter, "poolmanager", None)
        if manager is None:
            return
        pool = manager.pool_classes_by_scheme["https"]

        def connect(connection: Any) -> None:
            if (context := self._current()) is not None:
                connection.ssl_context = context
                connection.ca_certs = connection.ca_cert_dir = None  # requests adds the authorities of certifi
            if not self._settings.check_hostname:
                connection.assert_hostname = False
            try:
                pool.ConnectionCls.connect(connection)
            except ssl.SSLError as e:
                if isinstance(e, _CLOSED):
                    raise
                raise _HandshakeFailure(*e.args) from e

        connection_class = type("TlsConnection", (pool.ConnectionCls,), {"connect": connect})
        trusting = type(pool.__name__, (pool,), {"ConnectionCls": connection_class})
        manager.pool_classes_by_scheme = {**manager.pool_classes_by_scheme, "https": trusting}

    def _current(self) -> ssl.SSLContext | None:
        """Return the context for a new connection; None without a truststore.

        Raises Retry if the truststore cannot be used. If it could be used before, a warning is logged instead, and
        the certificates read before are used.
        """
        path, password = self._settings.truststore, self._settings.password
        if path is None:
            return None
        with self._lock:
            version = _version_of(path)
            if version != self._version:
                try:
                    self._context = truststore_context(path, password.get_secret_value() if password else None)
                except (OSError, ValueError) as e:
                    origin = self._settings.origin and f", {self._settings.origin}"
                    failure = f"cannot use the truststore {path}{origin}: {getattr(e, 'strerror', None) or e}"
                    if self._context is None:
                        raise Retry(failure) from e
                    self._log.warning("%s; its earlier content is used", failure)
                self._version = version
            return self._context

    def checked(self, request: Callable[..., Any], failure: type[Exception]) -> Callable[..., Any]:
        """Return `request` that raises TlsFailure if a handshake fails. `failure` is the base of requests' errors."""

        def send(method: str, url: str, **options: Any) -> Any:
            try:
                return request(method, url, **options)
            except failure as e:
                if (error := _handshake_error(e)) is None:
                    raise
                parts = urlsplit(str(getattr(getattr(e, "request", None), "url", None) or url))
                raise TlsFailure(self._refusal(parts.netloc, error)) from None

        return send

    def _refusal(self, server: str, error: ssl.SSLError) -> str:
        """Return the sentence for a failure of TLS with a server, with the way out."""
        text = f"no TLS connection to {server} of HDFS: {connection_error_reason(error)}"
        if not isinstance(error, ssl.SSLCertVerificationError):
            return text
        if error.verify_code in _ANOTHER_NAME:
            return (
                f"{text}; name the server as its certificate does, or set hdfs.checkHostname = false. "
                "hdfs.truststore does not help"
            )
        file = self._settings.truststore
        hint = f"{file} does not have it" if file else "it is not set"
        if self._settings.origin:
            hint = f"{file}, {self._settings.origin}, does not have it"
        return f"{text}; hdfs.truststore must be a file with the certificate's authority, and {hint}"


def _version_of(path: str) -> tuple[int, ...] | None:
    """Return a value that changes when the file is replaced or written; None if it does not exist."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _handshake_error(error: Any) -> ssl.SSLError | None:
    """Return Python's error of the failed handshake that has caused an error of requests; None for another cause."""
    for _ in range(10):
        if isinstance(error, _HandshakeFailure):
            return error.__cause__ if isinstance(error.__cause__, ssl.SSLError) else error
        if isinstance(error, ssl.SSLError) and error.reason in _LATE_ALERTS:
            return error
        args = [arg for arg in getattr(error, "args", ()) if isinstance(arg, BaseException)]
        error = getattr(error, "reason", None) or next(iter(args), None) or error.__cause__ or error.__context__
        if not isinstance(error, BaseException):
            return None
    return None
