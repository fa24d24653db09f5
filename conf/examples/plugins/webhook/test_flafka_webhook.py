"""The sink `webhook` on a web server that keeps what is posted."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from flafka import Batch, Event, Origin, Rejected, Retry
from flafka.plugins import conformance
from flafka_webhook import WebhookSink


class Server(ThreadingHTTPServer):
    """Keeps what is posted; answers with `status`."""

    status = 200
    extra: tuple[str, str] | None = None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.posted: list[Any] = []
        self.url = f"http://127.0.0.1:{self.server_port}/services/secret"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.server.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.do_HEAD()

    def do_HEAD(self) -> None:
        self.send_response(self.server.status)
        if self.server.extra:
            self.send_header(*self.server.extra)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_it_keeps_the_promises_of_a_sink(server: Server) -> None:
    bodies = {event.body.decode(errors="replace"): event.body for event in conformance.sample_events()}

    def delivered() -> Iterator[bytes]:
        for post in server.posted:
            _, shown, _ = post["text"].split("```")
            yield from (bodies[line] for line in shown.split("\n"))

    conformance.check_sink(WebhookSink, {"url": server.url, "shown": "100000"}, delivered)


EVENTS = [
    Event(b"disk full", {"host": "web1", "level": "ERROR"}),
    Event(b"still full", {"host": "web1", "level": "ERROR"}),
    Event(b"on fire", {"host": "web2"}),
]


def deliver(server: Server, **options: str) -> Batch:
    sink = conformance.make(WebhookSink, {"url": server.url, "groupBy": "host level", **options})
    sink.open()
    batch = Batch.of(EVENTS, Origin.of_record("t", 0, 7, 0, len(EVENTS)))
    sink.write(batch)
    try:
        sink.flush()
    finally:
        sink.close()
    return batch


def test_a_group_is_one_message(server: Server) -> None:
    deliver(server, shown="1", alert="Trouble")
    assert [post["text"] for post in server.posted] == [
        "*Trouble* (2) host=web1 level=ERROR\n```disk full```",
        "*Trouble* (1) host=web2 level=\n```on fire```",
    ]


def test_a_group_is_one_alert(server: Server) -> None:
    deliver(server, format="alertmanager")
    (first,), (second,) = server.posted
    assert first["labels"] == {"alertname": "Events", "host": "web1", "level": "ERROR"}
    assert first["annotations"] == {"count": "2", "description": "disk full\nstill full"}
    assert second["labels"] == {"alertname": "Events", "host": "web2"}


def test_what_is_refused_for_good_is_rejected_and_the_rest_is_posted(server: Server) -> None:
    server.status = 400
    with pytest.raises(Rejected, match="the server answers 400") as rejected:
        deliver(server)
    assert [id.index for id in rejected.value.reasons] == [0, 1, 2]
    assert len(server.posted) == 2


def test_a_busy_server_is_asked_again_when_it_says(server: Server) -> None:
    server.status, server.extra = 429, ("Retry-After", "7")
    with pytest.raises(Retry, match="the server answers 429") as retry:
        deliver(server)
    assert retry.value.after == 7


def test_the_address_is_in_no_text(server: Server) -> None:
    with pytest.raises(Retry) as retry:
        deliver(server, url="http://127.0.0.1:1/services/secret")
    assert "secret" not in str(retry.value)
    assert [*conformance.make(WebhookSink, {"url": "http://127.0.0.1:1/secret"}).check_connectivity()] == [
        "the server cannot be reached: ConnectionError"
    ]
