"""A WebHDFS in memory, below `requests`: for what a real one cannot be made to do, such as losing a single reply."""

from __future__ import annotations

import json
import posixpath
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import requests

NAMENODE, DATANODE = "namenode:9870", "datanode:9864"


class Crash(BaseException):
    """The process died within a call."""


class FakeWebHdfs:
    """Names and contents of files, by HDFS's rules as a real NameNode 3.4.3 shows them."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.changed: dict[str, int] = {}
        self.directories = {"/"}
        self.now = 1_700_000_000_000
        self.calls: list[str] = []
        self.before: Callable[[int, str], None] = lambda index, op: None
        """Called with each call's number and operation before it is executed; may raise."""
        self.after: Callable[[int, str], None] = lambda index, op: None
        """The same, when it was executed and not answered yet."""
        self.refuse: Callable[[str, str], tuple[int, Any, str] | None] = lambda host, op: None
        """May answer in place of that server: status, body, redirection."""
        self._lock = threading.Lock()

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
        """No more failures."""
        self.before = self.after = lambda *_: None

    def visible(self) -> dict[str, bytes]:
        """The files that readers see."""
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
        if op in ("CREATE", "OPEN"):
            if op == "OPEN" and path not in self.files:
                return error(404, "FileNotFoundException", f"File does not exist: {path}")
            return 307, None, request.url.replace(url_host(request), DATANODE)
        if op == "CREATE data":
            content = request.body.read() if hasattr(request.body, "read") else request.body or b""
            if path in self.files or path in self.directories:
                return error(403, "FileAlreadyExistsException", path)
            self._mkdirs(posixpath.dirname(path))
            self.files[path], self.changed[path] = bytes(content), self.now
            return 201, None, ""
        if op == "OPEN data":
            return 200, self.files[path], ""
        if op == "MKDIRS":
            self._mkdirs(path)
            return 200, {"boolean": True}, ""
        if op == "RENAME":
            return 200, {"boolean": self._rename(path, options["destination"])}, ""
        if op == "DELETE":
            gone = [p for p in (*self.files, *self.directories) if p == path or p.startswith(path + "/")]
            for name in gone:
                self.files.pop(name, None)
                self.directories.discard(name)
            return 200, {"boolean": bool(gone)}, ""
        if op == "CHECKACCESS":
            return 200, None, ""
        if op == "GETFILESTATUS":
            if path not in self.files and path not in self.directories:
                return error(404, "FileNotFoundException", f"File does not exist: {path}")
            return 200, {"FileStatus": self._status(path, "")}, ""
        assert op == "LISTSTATUS"
        if path not in self.directories:
            return error(404, "FileNotFoundException", f"File {path} does not exist.")
        inside = sorted(p for p in (*self.files, *self.directories) if posixpath.dirname(p) == path and p != "/")
        found = [self._status(p, posixpath.basename(p)) for p in inside]
        return 200, {"FileStatuses": {"FileStatus": found}}, ""

    def _mkdirs(self, path: str) -> None:
        while path not in self.directories:
            self.directories.add(path)
            path = posixpath.dirname(path)

    def _rename(self, source: str, target: str) -> bool:
        if target in self.directories:
            target = posixpath.join(target, posixpath.basename(source))
        if source not in self.files or target in self.files or posixpath.dirname(target) not in self.directories:
            return False
        self.files[target], self.changed[target] = self.files.pop(source), self.changed.pop(source)
        return True

    def _status(self, path: str, suffix: str) -> dict[str, Any]:
        is_file = path in self.files
        return {
            "pathSuffix": suffix,
            "type": "FILE" if is_file else "DIRECTORY",
            "length": len(self.files.get(path, b"")),
            "modificationTime": self.changed.get(path, 0),
        }


class _Raw:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def read(self) -> bytes:
        return self.content


def url_host(request: Any) -> str:
    """The server that a request goes to."""
    return str(urlsplit(request.url).netloc)


def error(status: int, kind: str, message: str) -> tuple[int, Any, str]:
    """A refusal as Hadoop words it."""
    return status, {"RemoteException": {"exception": kind, "message": message, "javaClassName": kind}}, ""
