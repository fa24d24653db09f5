"""WebHDFS in memory, below `requests`, for failures that a real one seldom has, such as one lost reply."""

from __future__ import annotations

import contextlib
import copy
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import requests

from tests.simulator.webhdfs import WRITES, Tree
from tests.simulator.webhdfs import error as refusal

NAMENODE, STANDBY, DATANODE = "namenode:9870", "standby:9870", "datanode:9864"


class Crash(BaseException):
    """Death of the process within a call."""


class FakeWebHdfs:
    """Names and contents of files, by HDFS's rules as the simulator has them."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000
        self.tree = Tree(lambda: self.now)
        self.files = self.tree.files
        self.calls: list[str] = []
        self.before: Callable[[int, str], None] = lambda index, op: None
        """Called with each call's number and operation before it is executed; may raise."""
        self.after: Callable[[int, str], None] = lambda index, op: None
        """Called like `before`, after the call is executed and before its answer."""
        self.refuse: Callable[[str, str], tuple[int, Any, str] | None] = lambda host, op: None
        """Answer in place of a server, or None: status, body, redirection."""
        self._lock = threading.Lock()
        self.standby_follows()

    def standby_follows(self) -> None:
        """Let the standby follow. It answers reads from its state, as with Hadoop's dfs.ha.allow.stale.reads, sends
        uploads on to a DataNode, and refuses all else."""
        self._seen = Tree(self.tree.clock)
        self._seen.files, self._seen.directories = copy.copy(self.files), copy.copy(self.tree.directories)

    @classmethod
    @contextlib.contextmanager
    def installed(cls) -> Iterator[Self]:
        """Install one for the block."""
        with pytest.MonkeyPatch.context() as patch:
            fake = cls()
            fake.install(patch)
            yield fake

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Answer all of requests' calls."""
        monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", lambda adapter, request, **_: self.send(request))

    def lose(self, index: int, count: int, when: str, error: type[BaseException]) -> None:
        """Have `count` calls from that number on fail, before or after they are executed."""

        def fail(number: int, op: str) -> None:
            if index <= number < index + count:
                raise error(f"call {number}, {op}, lost {when} it was executed")

        self.before, self.after = (fail, lambda *_: None) if when == "before" else (lambda *_: None, fail)

    def heal(self) -> None:
        """Stop the failures."""
        self.before = self.after = lambda *_: None

    def visible(self) -> dict[str, bytes]:
        """Return the files that readers see."""
        return {path: content for path, content in self.files.items() if "/.flafka/" not in path}

    def send(self, request: Any) -> requests.Response:
        """Execute one HTTP request."""
        url = urlsplit(request.url)
        path = unquote(url.path.removeprefix("/webhdfs/v1")) or "/"
        options = {name: values[0] for name, values in parse_qs(url.query).items()}
        op = f"{options['op']} {'data' if url.netloc == DATANODE else ''}".strip()
        with self._lock:
            number = len(self.calls)
            self.calls.append(op)
        self.before(number, op)
        with self._lock:
            self.now += 1
            answer = self.refuse(url.netloc, op) or self._execute(op, path, options, request)
            status, body, location = answer
        self.after(number, op)
        response = requests.Response()
        response.status_code, response.request, response.url = status, request, request.url
        response._content = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
        response.raw = _Raw(response._content)
        if location:
            response.headers["location"] = location
        return response

    def _execute(self, op: str, path: str, options: dict[str, str], request: Any) -> tuple[int, Any, str]:
        tree = self.tree
        if url_host(request) == STANDBY:
            tree = self._seen
            if op in WRITES - {"CREATE"}:
                return error(
                    403, "StandbyException", f"Operation category WRITE is not supported in state standby: {op}"
                )
        if op == "CREATE" or (op == "OPEN" and path in tree.files):
            return 307, None, request.url.replace(url_host(request), DATANODE)
        body = request.body or b""
        content = body.read() if hasattr(body, "read") else body
        return *tree.execute(op.removesuffix(" data"), path, options, bytes(content)), ""


class _Raw:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def read(self) -> bytes:
        return self.content


def url_host(request: Any) -> str:
    """Return the server of a request."""
    return str(urlsplit(request.url).netloc)


def error(status: int, kind: str, message: str) -> tuple[int, Any, str]:
    """Return a refusal in Hadoop's words."""
    return *refusal(status, kind, message), ""
