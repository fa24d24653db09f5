"""Options of the HTTP source."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from types import MappingProxyType
from typing import Literal

import pydantic
from pydantic import SecretStr

from flafka.plugins import Problem, cross_field_validator, option, with_default
from flafka.plugins.java.classes import is_java_class, java_class_error
from flafka.sources.log4j.config import EncodingConfig
from flafka.sources.serving import ServingConfig

HANDLER_ALIASES = {
    "org.apache.flume.source.http.jsonhandler": "json",
    "org.apache.flume.sink.solr.morphline.blobhandler": "blob",
    "jsonhandler": "json",
    "blobhandler": "blob",
}
"""Handlers by their names in Flume, in lower case."""

_JETTY_SETTINGS = "they are settings of Jetty, which is not used here"


class HttpSourceConfig(ServingConfig, EncodingConfig):
    """Options of the HTTP source."""

    deprecated_aliases = MappingProxyType(
        {"ssl": "enableSSL", "keystore-password": "keystorePassword", "exclude-protocols": "excludeProtocols"}
    )
    bind: str = with_default(ServingConfig, "bind", "0.0.0.0")  # noqa: S104  # Flume's default
    handler: Literal["json", "ndjson", "log4j", "blob"] = option(
        "json",
        name="handler",
        description="Format of a request. `json`: an array of {headers, body}, as for Flume's JSONHandler. `ndjson`: "
        "each line is an event in JSON. `log4j`: JSON of log4j 2 and logback, read as by the source `log4j`. `blob`: "
        "the whole request is one event, and the parameters of its URL are its headers.",
    )
    max_blob_length: int = option(
        100_000_000,
        name="handler.maxBlobLength",
        unit="bytes",
        ge=1,
        description="Maximum size of a request with the handler `blob`. A larger one is answered with 413.",
    )
    max_request_bytes: int = option(
        32 * 1024 * 1024,
        name="maxRequestBytes",
        unit="bytes",
        ge=1,
        description="Maximum size of a request with the other handlers. A larger one is answered with 413.",
    )
    request_timeout: int = option(
        15_000,
        name="requestTimeout",
        unit="ms",
        ge=1,
        description="A request whose events are not stored within this time is answered with 503; the client must "
        "send it again.",
    )
    idle_timeout: int = option(
        30,
        name="idleTimeout",
        unit="s",
        ge=1,
        description="A connection that is idle, or has an unfinished request, for this long is closed.",
    )
    username: str | None = option(
        None,
        name="username",
        description="Requests must have this user and `password`, by HTTP Basic, or `token`; others get 401, health "
        "checks of load balancers as well. If all three are unset, any client may send events.",
    )
    password: SecretStr | None = option(None, name="password", description="Password of `username`.")
    token: SecretStr | None = option(
        None, name="token", description="Bearer token that admits a request, also beside `username` and `password`."
    )
    thread_pool: dict[str, str] = option(
        {}, name="QueuedThreadPool.", without_effect=True, description=_JETTY_SETTINGS
    )
    http_configuration: dict[str, str] = option(
        {}, name="HttpConfiguration.", without_effect=True, description=_JETTY_SETTINGS
    )
    ssl_factory: dict[str, str] = option(
        {}, name="SslContextFactory.", without_effect=True, description=_JETTY_SETTINGS
    )
    connector: dict[str, str] = option({}, name="ServerConnector.", without_effect=True, description=_JETTY_SETTINGS)

    @cross_field_validator("username", "password")
    def _check_password(self) -> None:
        """Raise ValueError if only one of user and password is set, one is empty, or the user has a colon."""
        if (self.username is None) != (self.password is None):
            raise ValueError("must be set together with password")
        if self.username is not None and (not self.username or ":" in self.username):
            raise ValueError("must not be empty, and has no colon, which ends the user in HTTP Basic")
        if self.password is not None and not self.password.get_secret_value():
            raise ValueError("needs a password that is not empty")

    @cross_field_validator("token")
    def _check_token(self) -> None:
        """Raise ValueError for a token that no header can have (RFC 6750)."""
        if self.token is not None and not re.fullmatch("[!-~]+", self.token.get_secret_value()):
            raise ValueError("must be one or more printable ASCII characters, without blanks")

    def credentials(self) -> list[bytes]:
        """Return the values of the header `Authorization` that admit a request; empty if any request is admitted."""
        values = []
        if self.username is not None and self.password is not None:
            pair = f"{self.username}:{self.password.get_secret_value()}".encode()
            values.append(b"Basic " + base64.b64encode(pair))
        if self.token is not None:
            values.append(b"Bearer " + self.token.get_secret_value().encode())
        return values

    @property
    def max_content_bytes(self) -> int:
        """Maximum size of a request, in bytes, for the configured handler."""
        return self.max_blob_length if self.handler == "blob" else self.max_request_bytes

    def warnings(self) -> Iterator[Problem]:
        """Yield warnings about TLS, and a note or a warning for each setting of Jetty, which has no effect.

        A setting that restricts access gives a warning.
        """
        yield from super().warnings()
        if self.credentials() and not self.tls and not self.bind.startswith(("127.", "::1", "localhost")):
            option_name = "username" if self.username is not None else "token"
            message = "and all events cross the network in clear text: add ssl = true and a keystore"
            yield Problem(option_name, message)
        for prefix in (prefix for prefix in self.options() if prefix.without_effect):
            for name in getattr(self, prefix.field):
                restricts_access = prefix.field == "ssl_factory"
                message = "has no effect: it is a setting of Jetty, which is not used here"
                if restricts_access:
                    message += "; include-protocols, exclude-protocols and truststore restrict access"
                replacement: dict[str, str] | None = {} if restricts_access else None
                yield Problem(prefix.name + name, message, is_note=not restricts_access, replacement=replacement)

    @pydantic.field_validator("handler", mode="before")
    @classmethod
    def _known_handler(cls, value: object) -> object:
        name = HANDLER_ALIASES.get(str(value).lower(), value)
        if name not in ("json", "ndjson", "log4j", "blob"):
            if is_java_class(str(name)):
                raise ValueError(java_class_error("handler", str(name)))
            raise ValueError(f"{value!r} is none of json, ndjson, log4j and blob")
        return name
