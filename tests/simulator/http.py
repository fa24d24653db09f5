"""Double of `requests` in a simulation: models of servers answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import requests as real

from tests.simulator.exchange import exchange
from tests.simulator.world import world

DEFAULT_TIMEOUT_SECONDS = 60.0
"""Seconds, of a request that has no timeout of its own: such a one would wait for ever."""


class Answer:
    """Part of `requests.Response` that pyhdfs and pysolr use."""

    __slots__ = ("_content", "_json", "headers", "status_code")

    def __init__(self, status: int, body: Any = None, location: str | None = None) -> None:
        """`body` is bytes, or what the JSON says."""
        self.status_code = status
        self.headers = {"location": location} if location is not None else {}
        self._content, self._json = (body, None) if isinstance(body, bytes) else (None, body)

    @property
    def content(self) -> bytes:
        """The body."""
        if self._content is None:
            self._content = json.dumps(self._json).encode() if self._json is not None else b""
        return self._content

    @property
    def text(self) -> str:
        """The body as text."""
        return self.content.decode()

    @property
    def raw(self) -> Answer:
        """Something that can be read."""
        return self

    def read(self) -> bytes:
        """The whole body."""
        return self.content

    def json(self) -> Any:
        """Return the decoded JSON."""
        return self._json if self._json is not None else json.loads(self.content)


class Session:
    """`requests.Session`. Which model answers depends on the address: `/webhdfs/` is HDFS's, `/solr/` Solr's."""

    def __init__(self) -> None:
        self.trust_env, self.verify = True, True
        self.params: dict[str, str] = {}

    def mount(self, prefix: str, adapter: Any) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def request(self, method: str, url: str, **options: Any) -> Answer:
        """One request, on a connection of its own."""
        try:
            world().process.check_descriptors()
        except OSError as e:
            raise real.ConnectionError(
                f"Failed to establish a new connection: {e}", request=SimpleNamespace(url=url)
            ) from e
        model = world().models["hdfs" if "/webhdfs/" in url else "solr"]
        answer: Answer = model.request(method, url, self.params | (options.pop("params", None) or {}), options)
        return answer

    def get(self, url: str, **options: Any) -> Answer:
        """Double of the method in `requests`."""
        return self.request("get", url, **options)

    def put(self, url: str, data: Any = None, **options: Any) -> Answer:
        """Double of the method in `requests`."""
        return self.request("put", url, data=data, **options)

    def post(self, url: str, data: Any = None, **options: Any) -> Answer:
        """Double of the method in `requests`."""
        return self.request("post", url, data=data, **options)


def answered(
    what: str,
    url: str,
    options: dict[str, Any],
    execute: Callable[[], Answer],
    **named: Any,
) -> Answer:
    """`exchange`, with what `requests` raises."""
    timeout = options.get("timeout") or DEFAULT_TIMEOUT_SECONDS
    timeout = timeout[1] if isinstance(timeout, tuple) else timeout

    def lost(reset: bool) -> Exception:
        request = SimpleNamespace(url=url)
        if reset:
            return real.ConnectionError("('Connection aborted.', ConnectionResetError())", request=request)
        return real.ReadTimeout(f"Read timed out. (read timeout={timeout})", request=request)

    return exchange(what, execute, lost, timeout=timeout, **named)


requests = SimpleNamespace(
    Session=Session,
    adapters=real.adapters,
    exceptions=real.exceptions,
    packages=real.packages,
    RequestException=real.RequestException,
    ConnectionError=real.ConnectionError,
    Timeout=real.Timeout,
    ReadTimeout=real.ReadTimeout,
)
"""In place of the module."""
