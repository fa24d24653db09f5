"""HTTP sink."""

from __future__ import annotations

import contextlib
import http.client
import re
import ssl
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import pydantic

from flafka.plugins import (
    Batch,
    CompatibilityNote,
    EventId,
    FlafkaError,
    Rejected,
    Retry,
    Sink,
    cross_field_validator,
    option,
)
from flafka.plugins.net.tls import TlsClientConfig, connection_error_reason

_STATUS = re.compile(r"[1-5](?:\d\d|[Xx]{2})")
_PAUSES = "the sink pauses only before a retry"
_COUNTED = "delivered events are counted"


class HttpSinkConfig(TlsClientConfig):
    """Options of the HTTP sink."""

    options_without_effect = MappingProxyType(
        {
            "defaultBackoff": _PAUSES,
            "backoff.": _PAUSES,
            "defaultIncrementMetrics": _COUNTED,
            "incrementMetrics.": _COUNTED,
        }
    )
    check_hostname: bool = option(
        True,
        name="check-hostname",
        description="Require that the server's certificate is for the name or address in `endpoint`.",
    )
    endpoint: str = option(name="endpoint", description="URL to which the events are posted: http:// or https://.")
    content_type: str = option(
        "text/plain", name="contentTypeHeader", description="The header `Content-Type` of each request."
    )
    accept: str = option("text/plain", name="acceptHeader", description="The header `Accept` of each request.")
    connect_timeout: int = option(
        5000, name="connectTimeout", unit="ms", gt=0, description="Maximum time to connect."
    )
    request_timeout: int = option(
        5000, name="requestTimeout", unit="ms", gt=0, description="Maximum time to wait for an answer."
    )
    default_rollback: bool = option(
        True,
        name="defaultRollback",
        description="Retry an event if the answer's status is not 2XX and has no `rollback.<status>`. If false, such "
        "an event becomes a dead letter.",
    )
    rollback: dict[str, str] = option(
        {},
        name="rollback.",
        description="`rollback.<status>` is the same for one status, such as 503, or for a class of them, such as "
        "4XX. `rollback.200 = true` retries events that the server has accepted.",
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _infer_tls(cls, values: dict[str, Any]) -> dict[str, Any]:
        secure = str(values.get("endpoint", "")).lower().startswith("https://")
        return {**values, "ssl": "true"} if secure and "ssl" not in values else values

    @pydantic.field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, value: str) -> str:
        try:
            url = urlsplit(value)
            valid = url.scheme in ("http", "https") and bool(url.hostname) and (url.port or url.port is None)
        except ValueError:  # of the port
            valid = False
        if not valid or re.search(r"[^!-~]", value):
            raise ValueError(f"must be a URL such as http://host:8080/events, not {value!r}")
        return value

    @cross_field_validator("endpoint", "tls")
    def _check_scheme(self) -> None:
        if self.tls != (urlsplit(self.endpoint).scheme == "https"):
            raise ValueError("must begin with https:// if ssl = true, and with http:// otherwise")

    @pydantic.field_validator("rollback")
    @classmethod
    def _check_statuses(cls, value: dict[str, str]) -> dict[str, str]:
        for status, text in value.items():
            if not _STATUS.fullmatch(status):
                raise ValueError(f"{status}: must name a status, such as rollback.503 or rollback.4XX")
            if text.lower() not in ("true", "false"):
                raise ValueError(f"{status}: must be true or false, not {text!r}")
        return {status.upper(): text.lower() for status, text in value.items()}

    def is_retried(self, status: int) -> bool:
        """Return True if an event whose answer has this status is retried.

        `rollback.503` wins over `rollback.5XX`, and both win over defaultRollback, which never retries 2XX.
        """
        for name in (str(status), f"{status // 100}XX"):
            if name in self.rollback:
                return self.rollback[name] == "true"
        return self.default_rollback and status // 100 != 2


class HttpSink(Sink[HttpSinkConfig]):
    """Posts the body of each event to a web server, in a request of its own, at least once.

    An event is delivered when the server has answered with a status 2XX. After a failure within a batch, events with
    an answer are not posted again, unless the agent was restarted.
    """

    type_name = "http"
    aliases = ("org.apache.flume.sink.http.HttpSink",)
    batch_size = 100
    compatibility_notes = (
        CompatibilityNote(
            flume="`defaultRollback` is true for the status 200 as well: without `rollback.200 = false` the first "
            "event is posted forever",
            here="it is for statuses other than 2XX",
        ),
        CompatibilityNote(
            flume="an event with an answer that is not rolled back is lost, with any status",
            here="with a status other than 2XX it goes to the dead letters",
        ),
        CompatibilityNote(
            flume="the sink pauses for a second or more after each answer, without `backoff.200 = false`",
            here="it pauses only before a retry; `backoff.` and `incrementMetrics.` have no effect",
        ),
        CompatibilityNote(
            flume="an event without a body is dropped; a redirect is followed, with GET and without the body",
            here="an empty body is posted; a redirect is treated like all other answers, by its status",
        ),
    )

    def __init__(self, config: HttpSinkConfig, name: str = "") -> None:
        super().__init__(config, name)
        url = urlsplit(config.endpoint)
        assert url.hostname is not None
        self._host, self._port = url.hostname, url.port or (443 if config.tls else 80)
        self._server = f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
        self._path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        self._headers = {"Content-Type": config.content_type, "Accept": config.accept}
        self._context: ssl.SSLContext | None = None
        self._connection: http.client.HTTPConnection | None = None
        self._events: list[tuple[EventId, bytes]] = []
        self._outcomes: dict[EventId, str] = {}
        """Reason of the rejection, or an empty text, for events that were posted since the last successful flush."""

    def open(self) -> None:
        """Read the truststore. The first flush connects. Raises Retry if the truststore cannot be used."""
        self._context = self.config.context()

    def write(self, batch: Batch) -> None:
        """Keep the events, with their ids, for the next flush."""
        self._events += zip(batch.ids(), batch.bodies.to_pylist(), strict=True)

    def flush(self) -> None:
        """Post the events that have no answer yet, and return when the server has answered all.

        Raises Retry at the first event to be retried. Raises Rejected at the end, for events that the server never
        accepts.
        """
        for id, body in self._events:
            if id not in self._outcomes:
                self._outcomes[id] = self._post(body)
        rejected = {id: self._outcomes[id] for id, _ in self._events if self._outcomes[id]}
        self._events.clear()
        self._outcomes.clear()
        if rejected:
            raise Rejected(rejected)

    def reset(self) -> None:
        """Drop events that are not flushed. Answers are kept, so that redelivered events are not posted again."""
        self._events.clear()

    def close(self) -> None:
        """Drop events and answers, and close the connection."""
        self.reset()
        self._outcomes.clear()
        if self._connection is not None:
            self._disconnect()
            self.metrics.add("ConnectionClosedCount")

    def check_connectivity(self) -> Iterator[str]:
        """Yield the error if the truststore cannot be used, or no connection to the server is possible."""
        try:
            self.open()
            self._connect()
        except FlafkaError as e:
            yield str(e)
        except OSError as e:
            yield self._error_text(e)
        finally:
            self.close()

    def _post(self, body: bytes) -> str:
        """Post a body. Return an empty text if the server has accepted it, else the reason why it never does.

        Raises Retry if the event is to be posted again.
        """
        try:
            status = self._request(body)
        except (OSError, http.client.HTTPException) as e:
            self._disconnect()
            self.metrics.add("ConnectionFailedCount")
            raise Retry(self._error_text(e)) from e
        if self.config.is_retried(status):
            raise Retry(f"{self._server} answers {status} {http.client.responses.get(status, '')}".rstrip())
        if status // 100 == 2:
            return ""
        return f"{self._server} answers {status}, for which rollback is false"

    def _request(self, body: bytes) -> int:
        """Post a body and return the status of the answer; once more if the server has closed an idle connection.

        Raises OSError and http.client.HTTPException.
        """
        if self._connection is not None:
            with contextlib.suppress(http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                return self._exchange(self._connection, body)
            self._disconnect()  # servers close idle connections
        return self._exchange(self._connect(), body)

    def _exchange(self, connection: http.client.HTTPConnection, body: bytes) -> int:
        """Post a body on this connection and return the status of the answer. Raises as `_request`."""
        connection.request("POST", self._path, body, self._headers)
        answer = connection.getresponse()
        answer.read()
        if answer.will_close:
            self._disconnect()
        return answer.status

    def _connect(self) -> http.client.HTTPConnection:
        """Return a new connection to the server. Raises OSError, also after connectTimeout."""
        config = self.config
        timeout = config.connect_timeout / 1000
        self._connection = (
            http.client.HTTPConnection(self._host, self._port, timeout=timeout)
            if self._context is None
            else http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._context)
        )
        self._connection.connect()
        self._connection.sock.settimeout(config.request_timeout / 1000)
        self.metrics.add("ConnectionCreatedCount")
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _error_text(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            why = "no answer in time"
        elif isinstance(error, OSError) and not isinstance(error, http.client.HTTPException):
            why = connection_error_reason(error)
        else:
            why = "its answer is not HTTP"
        return f"{self._server}: {why}"
