"""Options of the HTTP source."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Literal

import pydantic

from flafka.plugins import Problem, option, with_default
from flafka.plugins.shared.javaclass import cannot_run, is_java_class
from flafka.sources.log4j.config import EncodingConfig
from flafka.sources.serving import ServingConfig

HANDLERS = {
    "org.apache.flume.source.http.jsonhandler": "json",
    "org.apache.flume.sink.solr.morphline.blobhandler": "blob",
    "jsonhandler": "json",
    "blobhandler": "blob",
}
"""Flume's names, in lower case, of those there are here."""


_JETTY = "they are settings of Jetty, which is not used here"


class HttpSourceConfig(ServingConfig, EncodingConfig):
    """Options of the HTTP source."""

    deprecated_aliases = MappingProxyType(
        {"ssl": "enableSSL", "keystore-password": "keystorePassword", "exclude-protocols": "excludeProtocols"}
    )
    bind: str = with_default(ServingConfig, "bind", "0.0.0.0")  # noqa: S104  # Flume's default
    handler: Literal["json", "ndjson", "log4j", "blob"] = option(
        "json",
        name="handler",
        description="How a request becomes events. `json`: an array of {headers, body}, as Flume's JSONHandler "
        "reads it. `ndjson`: each line is an event in JSON. `log4j`: what log4j 2 and logback write as JSON, read "
        "as by the source `log4j`. `blob`: the whole request is one event, "
        "and the parameters of its URL are the headers.",
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
        description="A request whose events are not stored within this time is answered with 503, and the client "
        "has to send it again.",
    )
    idle_timeout: int = option(
        30,
        name="idleTimeout",
        unit="s",
        ge=1,
        description="A connection that is silent, or leaves a request unfinished, for this long is closed.",
    )
    thread_pool: dict[str, str] = option({}, name="QueuedThreadPool.", without_effect=True, description=_JETTY)
    http_configuration: dict[str, str] = option(
        {}, name="HttpConfiguration.", without_effect=True, description=_JETTY
    )
    ssl_factory: dict[str, str] = option({}, name="SslContextFactory.", without_effect=True, description=_JETTY)
    connector: dict[str, str] = option({}, name="ServerConnector.", without_effect=True, description=_JETTY)

    @property
    def largest(self) -> int:
        """Bytes of the largest request."""
        return self.max_blob_length if self.handler == "blob" else self.max_request_bytes

    def warnings(self) -> Iterator[Problem]:
        """Jetty's settings, and what `ssl` needs."""
        yield from super().warnings()
        for jettys in (one for one in self.options() if one.without_effect):
            for name in getattr(self, jettys.field):
                protects = jettys.field == "ssl_factory"
                message = "has no effect: it is a setting of Jetty, which is not used here"
                if protects:
                    message += "; include-protocols, exclude-protocols and truststore limit who is admitted"
                instead: dict[str, str] | None = {} if protects else None
                yield Problem(jettys.name + name, message, note=not protects, instead=instead)

    @pydantic.field_validator("handler", mode="before")
    @classmethod
    def _known_handler(cls, value: object) -> object:
        name = HANDLERS.get(str(value).lower(), value)
        if name not in ("json", "ndjson", "log4j", "blob"):
            if is_java_class(str(name)):
                raise ValueError(cannot_run("handler", str(name)))
            raise ValueError(f"{value!r} is none of json, ndjson, log4j and blob")
        return name
