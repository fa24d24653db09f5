"""Options of the HTTP source."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Literal

import pydantic

from plugins import Problem, option
from sources.serving import ServingConfig

HANDLERS = {
    "org.apache.flume.source.http.jsonhandler": "json",
    "org.apache.flume.sink.solr.morphline.blobhandler": "blob",
    "jsonhandler": "json",
    "blobhandler": "blob",
}
"""Flume's names, in lower case, of those there are here."""


class HttpConfig(ServingConfig):
    """Options of the HTTP source."""

    older = MappingProxyType(
        {"ssl": "enableSSL", "keystore-password": "keystorePassword", "exclude-protocols": "excludeProtocols"}
    )
    bind: str = option("0.0.0.0", name="bind", description="Address or name to listen on.")  # noqa: S104  # Flume's
    handler: Literal["json", "ndjson", "blob"] = option(
        "json",
        name="handler",
        description="json: as JSONHandler, an array of {headers, body}. ndjson: every line is an event, in JSON. "
        "blob: a request is an event, the parameters of its address are the headers.",
    )
    max_blob_length: int = option(
        100_000_000, name="handler.maxBlobLength", unit="bytes", ge=1, description="Largest request with blob."
    )
    max_request_bytes: int = option(
        32 * 1024 * 1024,
        name="maxRequestBytes",
        unit="bytes",
        ge=1,
        description="Largest request otherwise; a larger one is answered 413.",
    )
    request_timeout: int = option(
        15_000,
        name="requestTimeout",
        unit="ms",
        ge=1,
        description="A request that is not stored after so long is answered 503, and is to be sent again.",
    )
    idle_timeout: int = option(
        30,
        name="idleTimeout",
        unit="s",
        ge=1,
        description="A connection that is silent for so long, or does not end its request, is closed.",
    )
    enable_ssl: bool | None = option(None, name="enableSSL", description="The older name of ssl.")
    old_password: pydantic.SecretStr | None = option(
        None, name="keystorePassword", description="The older name of keystore-password."
    )
    old_exclude: str | None = option(None, name="excludeProtocols", description="Older name of exclude-protocols.")
    thread_pool: dict[str, str] = option({}, name="QueuedThreadPool.", description="Accepted: Jetty's, not used.")
    http_configuration: dict[str, str] = option({}, name="HttpConfiguration.", description="Accepted, as before.")
    ssl_factory: dict[str, str] = option({}, name="SslContextFactory.", description="Accepted, as before.")
    connector: dict[str, str] = option({}, name="ServerConnector.", description="Accepted, as before.")

    @property
    def largest(self) -> int:
        """Bytes of the largest request."""
        return self.max_blob_length if self.handler == "blob" else self.max_request_bytes

    def cautions(self) -> Iterator[Problem]:
        """Jetty's settings."""
        jetty = {"QueuedThreadPool": self.thread_pool, "HttpConfiguration": self.http_configuration}
        jetty |= {"SslContextFactory": self.ssl_factory, "ServerConnector": self.connector}
        for prefix, settings in jetty.items():
            for name in settings:
                yield Problem(f"{prefix}.{name}", "is a setting of Jetty, which is not used here")

    @pydantic.field_validator("handler", mode="before")
    @classmethod
    def _known_handler(cls, value: object) -> object:
        name = HANDLERS.get(str(value).lower(), value)
        if name not in ("json", "ndjson", "blob"):
            raise ValueError(
                f"{value!r} is none of json, ndjson and blob: handlers in Java cannot be run here; an interceptor "
                "can take apart what ndjson or blob brings in"
            )
        return name
