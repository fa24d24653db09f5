"""Server with answers that a real Elasticsearch seldom gives."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

INFO = {"version": {"number": "2.19.6", "distribution": "opensearch"}}
Answer = Callable[[list[dict[str, Any]]], tuple[int, Any]]


class Server:
    """Server that answers with the result of `answer`, which gets the documents; accepted ones are in `stored`, by
    id."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.stored: dict[str, Any] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.sizes: list[int] = []
        self.answer: Answer = lambda documents: (200, {"items": [{"index": {"status": 201}} for _ in documents]})
        self.info: tuple[int, Any] = (200, INFO)
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.reply(*server.info)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                lines = [json.loads(line) for line in body.splitlines()]
                documents = [
                    {**action["index"], **document} for action, document in zip(lines[::2], lines[1::2], strict=True)
                ]
                server.sizes.append(len(body))
                status, answer = server.answer(documents)
                if status == 200 and isinstance(answer, dict):
                    for document, item in zip(documents, answer.get("items", ()), strict=False):
                        if item["index"]["status"] < 300:
                            server.stored[document["_id"]] = document
                self.reply(status, answer)

            def reply(self, status: int, answer: Any) -> None:
                server.requests.append((self.command, self.path, dict(self.headers)))
                text = answer if isinstance(answer, str) else json.dumps(answer)
                self.send_response(status)
                self.send_header("content-type", "text/html" if isinstance(answer, str) else "application/json")
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        if context is not None:
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        self.address = f"127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=lambda: self.http.serve_forever(poll_interval=0.01))
        self.thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


def item(status: int, kind: str = "x", reason: str = "because", **fields: Any) -> dict[str, Any]:
    """Return the answer for one document."""
    error = {"error": {"type": kind, "reason": reason, **fields}}
    return {"index": {"status": status, **(error if status >= 300 else {})}}
