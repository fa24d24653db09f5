"""HTTP sink: its requests, the meaning of answers, and retries."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flafka.plugins import Batch, Event, Origin, Rejected, Retry
from flafka.sinks.http import HttpSink, HttpSinkConfig
from tests.fixtures.ports import free_port
from tests.plugins.certificates import certificate


class Server:
    """Server that answers each request with the result of `answer` for its body; a context manager."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.answer: Callable[[bytes], int] = lambda _: 200
        self.bodies: list[bytes] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.connections = 0
        self.keeps = True
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                server.connections += 1

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status = server.answer(body)
                if status // 100 == 2:
                    server.bodies.append(body)
                server.requests.append((self.path, dict(self.headers)))
                if status:
                    self.send_response(status)
                    self.send_header("Content-Length", "2")
                    self.end_headers()
                    self.wfile.write(b"ok")
                self.close_connection = not server.keeps or not status

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self.url = f"http{'s' if context else ''}://127.0.0.1:{self.port}/events"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def open_sink(endpoint: str, **options: str) -> HttpSink:
    config, problems = HttpSinkConfig.parse({"endpoint": endpoint, **options})
    assert config is not None, problems
    sink = HttpSink(config)
    sink.open()
    return sink


def batch(*bodies: bytes) -> Batch:
    return Batch.of([Event(body) for body in bodies], Origin.of_record("t", 0, 7, 0, len(bodies)))


def test_a_file_of_flumes_runs_as_it_is() -> None:
    config, problems = HttpSinkConfig.parse(
        {
            "endpoint": "http://localhost:8080/someuri?a=b",
            "connectTimeout": "2000",
            "requestTimeout": "2000",
            "acceptHeader": "application/json",
            "contentTypeHeader": "application/json",
            "defaultBackoff": "true",
            "defaultRollback": "true",
            "defaultIncrementMetrics": "false",
            "backoff.4XX": "false",
            "rollback.4XX": "false",
            "incrementMetrics.4XX": "true",
            "backoff.200": "false",
            "rollback.200": "false",
            "incrementMetrics.200": "true",
        }
    )
    assert (config is not None, problems) == (True, [])
    assert config is not None
    assert [config.is_retried(status) for status in (200, 204, 302, 404, 500)] == [False, False, True, False, True]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"endpoint": "localhost:8080"}, "endpoint: must be a URL such as http://host:8080/events"),
        ({"endpoint": "http://h:x/"}, "endpoint: must be a URL"),
        ({"endpoint": "http://h/a b"}, "endpoint: must be a URL"),
        ({"ssl": "true"}, "endpoint: must begin with https:// if ssl = true"),
        ({"rollback.6XX": "true"}, "rollback.6XX: must name a status"),
        ({"rollback.200": "no"}, "rollback.200: must be true or false, not 'no'"),
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, str], message: str) -> None:
    _, (problem,) = HttpSinkConfig.parse({"endpoint": "http://h", **wrong})
    assert f"{problem.option}: {problem.message}".startswith(message)


def test_bodies_are_posted_on_one_connection() -> None:
    with Server() as server:
        sink = open_sink(server.url + "?of=us", contentTypeHeader="application/json")
        sink.write(batch(b'{"a":1}', b"", b"\xff\x00"))
        assert server.requests == []
        sink.flush()
        sink.close()
    assert server.bodies == [b'{"a":1}', b"", b"\xff\x00"]
    assert server.connections == 1
    path, headers = server.requests[0]
    assert (path, headers["Content-Type"], headers["Accept"]) == ("/events?of=us", "application/json", "text/plain")


@pytest.mark.parametrize("keeps", [True, False])
def test_a_connection_that_the_server_has_closed_is_replaced(keeps: bool) -> None:
    with Server() as server:
        server.keeps = keeps
        sink = open_sink(server.url)
        for body in (b"one", b"two"):
            sink.write(batch(body))
            sink.flush()
            if keeps:  # it closes after its answer silently, as after an idle time
                assert sink._connection is not None
                sink._connection.sock.shutdown(2)
        sink.close()
    assert (server.bodies, server.connections) == ([b"one", b"two"], 2)


def test_answered_requests_are_not_repeated() -> None:
    with Server() as server:
        sink = open_sink(server.url)
        events = batch(b"one", b"two", b"three")
        server.answer = lambda body: 503 if body == b"two" else 200
        sink.write(events)
        with pytest.raises(Retry, match=rf"^http://127.0.0.1:{server.port} answers 503 Service Unavailable$"):
            sink.flush()
        sink.reset()
        server.answer = lambda _: 201
        sink.write(events)
        sink.flush()
        sink.write(events)  # delivered by another run of the channel
        sink.flush()
        sink.close()
    assert server.bodies == [b"one", b"two", b"three"] * 2


def test_statuses_without_retry_are_rejected() -> None:
    with Server() as server:
        server.answer = lambda body: 400 if body == b"bad" else 200
        sink = open_sink(server.url, **{"rollback.4xx": "FALSE"})
        events = batch(b"one", b"bad", b"two")
        sink.write(events)
        with pytest.raises(Rejected) as rejected:
            sink.flush()
        assert [*rejected.value.reasons] == [events.id(1)]
        assert "answers 400" in str(rejected.value)
        sink.close()
    assert server.bodies == [b"one", b"two"]


def test_a_success_is_repeated_only_if_so_configured() -> None:
    with Server() as server:
        sink = open_sink(server.url, **{"rollback.200": "true"})
        sink.write(batch(b"one"))
        with pytest.raises(Retry, match="answers 200 OK"):
            sink.flush()
        sink.close()


def test_an_unavailable_server() -> None:
    port = free_port()
    sink = open_sink(f"http://user:secret@127.0.0.1:{port}/x")
    assert [*sink.check_connectivity()] == [f"http://127.0.0.1:{port}: Connection refused"]
    sink.write(batch(b"one"))
    with pytest.raises(Retry, match=rf"^http://127.0.0.1:{port}: Connection refused$"):
        sink.flush()
    sink.close()
    with Server() as server:
        assert not [*open_sink(server.url).check_connectivity()]


def test_a_server_without_an_answer() -> None:
    with Server() as server:
        sink = open_sink(server.url)
        server.answer = lambda _: 0  # it closes
        sink.write(batch(b"one"))
        with pytest.raises(Retry, match=f"^http://127.0.0.1:{server.port}: "):
            sink.flush()
        sink.close()
        hold = threading.Event()
        server.answer = lambda _: 200 if hold.wait(60) else 500
        sink = open_sink(server.url, requestTimeout="50")
        sink.write(batch(b"one"))
        try:
            with pytest.raises(Retry, match="no answer in time"):
                sink.flush()
        finally:
            hold.set()
        sink.close()


def test_a_server_without_http(monkeypatch: pytest.MonkeyPatch) -> None:
    def garbage(*_: object) -> int:
        raise http.client.BadStatusLine("SSH-2.0")

    with Server() as server:
        sink = open_sink(server.url)
        monkeypatch.setattr(sink, "_exchange", garbage)
        sink.write(batch(b"one"))
        with pytest.raises(Retry, match="its answer is not HTTP"):
            sink.flush()
        sink.close()


def test_tls(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate(tmp_path)
    context.load_cert_chain(tmp_path / "server.pem")
    with Server(context) as server:
        sink = open_sink(server.url, truststore=str(tmp_path / "server.crt"))
        sink.write(batch(b"one"))
        sink.flush()
        sink.close()
        assert server.bodies == [b"one"]
        stranger = open_sink(server.url)
        stranger.write(batch(b"two"))
        with pytest.raises(Retry, match="its certificate is refused"):
            stranger.flush()
        stranger.close()
