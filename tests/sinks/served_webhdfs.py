"""A WebHDFS server in this process over the simulator's tree, for agents that run as processes of their own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.simulator.webhdfs import Tree, error

PREFIX = "/webhdfs/v1"


class ServedWebHdfs:
    """Directories and files behind one address, which is both the NameNode's and the DataNode's."""

    def __init__(self) -> None:
        self.tree = Tree(lambda: int(time.time() * 1000))
        self.address = ""
        """`host:port`, as `hdfs.webhdfs` has it."""
        self.calls: list[tuple[str, str, dict[str, str]]] = []
        """Operation, path and options of each call, without the redirections to a DataNode."""
        self.refuse: Callable[[str, str, dict[str, str]], str] = lambda op, path, options: ""
        """Return a sentence with which the NameNode refuses a call for good, such as one of a quota, or None."""
        self.silent = threading.Event()
        """Set to answer no call, and to keep connections open."""
        self.ended = threading.Event()
        self.waiting: list[str] = []
        """Calls that are not answered."""
        self._lock = threading.Lock()

    def visible(self) -> dict[str, bytes]:
        """Return the files that readers see."""
        with self._lock:
            return {path: data for path, data in self.tree.files.items() if "/.flafka/" not in path}

    def lines(self) -> list[str]:
        """Return the lines of all files that readers see, sorted."""
        return sorted(line for data in self.visible().values() for line in data.decode().splitlines())

    def remove(self, path: str) -> bool:
        """Delete a file, or a directory with its contents."""
        with self._lock:
            return self.tree.remove(path)

    def answer(self, op: str, path: str, options: dict[str, str], data: bytes) -> tuple[int, Any]:
        """Execute one call, and return HTTP status and body."""
        with self._lock:
            self.calls.append((op, path, options))
            if reason := self.refuse(op, path, options):
                return error(403, "IOException", reason)
            return self.tree.execute(op, path, options, data)


@contextmanager
def served_webhdfs() -> Iterator[ServedWebHdfs]:
    """Serve an empty tree on a free port of the loopback address."""
    hdfs = ServedWebHdfs()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if hdfs.silent.is_set():
                hdfs.waiting.append(self.path)
                hdfs.ended.wait(600)
                self.close_connection = True
                return
            url = urlsplit(self.path)
            path = unquote(url.path.removeprefix(PREFIX)) or "/"
            options = {name: values[0] for name, values in parse_qs(url.query).items()}
            op = options["op"]
            if op in ("CREATE", "OPEN") and "datanode" not in options and (op == "CREATE" or path in hdfs.tree.files):
                self.reply(307, b"", f"http://{hdfs.address}{self.path}&datanode=1")
                return
            status, body = hdfs.answer(op, path, options, self.content())
            self.reply(status, body if isinstance(body, bytes) else json.dumps(body).encode() if body else b"")

        do_PUT = do_POST = do_DELETE = do_GET

        def content(self) -> bytes:
            if self.headers.get("transfer-encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("content-length", 0)))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def reply(self, status: int, body: bytes, location: str = "") -> None:
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # an agent is killed within a call
    hdfs.address = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hdfs
    finally:
        hdfs.ended.set()
        server.shutdown()
        server.server_close()
