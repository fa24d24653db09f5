"""Source `http`, driven over real sockets."""

import base64
import contextlib
import gzip
import http.client
import json
import socket
import ssl
import threading
import time
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flafka.plugins import Event, Retry
from flafka.sources.http import HttpSource, HttpSourceConfig, handlers, server
from flafka.sources.http.handlers import HandlerError
from flafka.sources.http.handlers import json as read_json
from tests.plugins.certificates import certificate
from tests.sources.calling import AtWork


class Running(AtWork):
    """Running source: `stored` is called at once, when the test calls it, or when a channel has the batch."""

    def __init__(self, store=True, channel=None, **properties):
        config, problems = HttpSourceConfig.parse({"bind": "127.0.0.1", "port": "0"} | properties)
        assert not problems
        super().__init__(HttpSource(config))
        self.store, self.channel, self.events = store, channel, []

    def _run(self):
        for batch in self.source.batches():
            self.events += batch
            try:
                if self.channel is not None:
                    self.channel.put(batch)
            except Retry:
                continue
            if self.store:
                self.source.stored(batch)

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.source.port), timeout=20)

    def post(self, body, headers=(), path="/", method="POST"):
        connection = http.client.HTTPConnection("127.0.0.1", self.source.port, timeout=20)
        try:
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


def test_it_answers_when_the_events_are_stored():
    with Running(store=False, requestTimeout="300") as running:
        while not running.events:  # a slow machine may abandon a request before it is taken
            assert running.post(b'[{"headers": {"a": "b"}, "body": "x"}]')[0] == 503
        assert running.events[0] == Event(b"x", {"a": "b"})
        running.store = True
        running.source._yielded.clear()
        assert running.post(b'[{"body": "y"}]') == (200, "")


def test_only_requests_with_credentials_are_admitted(caplog):
    basic = "Basic " + base64.b64encode("grüße:s3cret:word".encode()).decode()
    options = {"username": "grüße", "password": "s3cret:word", "token": "T0ken"}
    with Running(**options) as running:
        connection = http.client.HTTPConnection("127.0.0.1", running.source.port, timeout=20)
        connection.request("POST", "/", b'[{"body": "x"}]')
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (401, b"credentials are required")
        assert answer.headers.get_all("WWW-Authenticate") == ['Basic realm="flafka"', 'Bearer realm="flafka"']
        connection.close()
        for wrong in (
            "",
            "Basic",
            "Bearer T0ke",
            "Bearer T0kenn",
            basic[:-1],
            "Digest T0ken",
            "T0ken",
            "Bearer \xff",
        ):
            assert running.post(b'[{"body": "x"}]', {"Authorization": wrong})[0] == 401
        assert not running.events
        for right in (basic, "Bearer T0ken", "bearer  T0ken", basic.replace("Basic", "basic")):
            assert running.post(b'[{"body": "x"}]', {"Authorization": right}) == (200, "")
        assert len(running.events) == 4
        assert running.source.metrics.snapshot()["EventReadFail"] == 9
    assert "a request of 127.0.0.1 has no credentials, and is answered 401" in caplog.text
    assert "s3cret" not in caplog.text + repr(running.source.config)
    assert "T0ken" not in caplog.text + repr(running.source.config)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"username": "u"}, "must be set together with password"),
        ({"password": "p"}, "must be set together with password"),
        ({"username": "u:v", "password": "p"}, "must not be empty, and has no colon"),
        ({"username": "u", "password": ""}, "needs a password that is not empty"),
        ({"token": ""}, "must be one or more printable ASCII characters"),
        ({"token": "two words"}, "must be one or more printable ASCII characters"),
    ],
)
def test_credentials_that_no_request_could_have_are_errors(options, says):
    _, problems = HttpSourceConfig.parse({"bind": "127.0.0.1", "port": "0"} | options)
    assert [problem.message.startswith(says) for problem in problems] == [True], problems


@pytest.mark.parametrize(("bind", "warnings"), [("127.0.0.1", 0), ("0.0.0.0", 1)])
def test_credentials_in_clear_text_are_a_warning(bind, warnings):
    config, _ = HttpSourceConfig.parse({"bind": bind, "port": "0", "token": "T"})
    assert [problem.option for problem in config.warnings()] == ["token"] * warnings


def test_gzip_is_unpacked():
    events = [{"body": f"event {number}"} for number in range(1000)]
    packed = gzip.compress(json.dumps(events[:500]).encode()[:-1] + b",")
    packed += gzip.compress(json.dumps(events[500:]).encode()[1:])
    encoded = {"Content-Encoding": "gzip"}
    with Running(maxRequestBytes="100000") as running:
        assert running.post(packed, encoded) == (200, "")
        assert [event.body.decode() for event in running.events] == [event["body"] for event in events]
        assert running.post(packed)[1].startswith("the body is gzip: send the header")
        for body, headers, status in (
            (packed[:-9], encoded, 400),
            (b"[]", encoded, 400),
            (gzip.compress(b" " * 100_001), encoded, 413),
            (b"[]", {"Content-Encoding": "br"}, 415),
            (b"[]", {"Content-Encoding": "gzip, gzip"}, 415),
            (b"[]", {"Content-Encoding": "identity"}, 200),
        ):
            assert running.post(body, headers)[0] == status, (body[:20], headers)
        assert len(running.events) == 1000
    with Running(handler="log4j") as running:
        assert running.post(gzip.compress(b'\xef\xbb\xbf{"message":"m"}'), encoded) == (200, "")
        assert running.events == [Event(b"m")]
    with Running(handler="blob") as running:
        assert running.post(packed, encoded) == (200, "")
        assert running.events == [Event(packed)]


def test_a_blob_with_too_many_parameters_is_refused():
    with Running(handler="blob") as running:
        assert running.post(b"body", path="/?" + "&".join(["p=x"] * 1_001)) == (
            400,
            "the URL may have at most 1,000 parameters",
        )
        assert running.post(b"body", path="/?" + "&".join(["p=x"] * 1_000)) == (200, "")
        assert running.events == [Event(b"body", {"p": "x"})]


@pytest.mark.parametrize("member", [b"", bytes(range(256)) * 4], ids=["empty", "1024"])
def test_members_of_gzip_take_linear_time(monkeypatch, member):
    """Bytes that are passed to zlib, and copied out of it, stand for the time."""
    handed, real = [], zlib.decompressobj

    class Counting:
        def __init__(self, bits):
            self._decoder = real(bits)

        def decompress(self, data, most):
            handed.append(len(data))
            return self._decoder.decompress(data, most)

        def __getattr__(self, name):
            return getattr(self._decoder, name)

    monkeypatch.setattr(handlers.zlib, "decompressobj", Counting)
    totals = []
    for count in 1000, 4000:
        packed = gzip.compress(member) * count
        assert handlers.decompress(packed, [(b"content-encoding", b"gzip")], 10_000_000) == member * count
        totals.append(sum(handed))
        handed.clear()
    assert totals[1] < 5 * totals[0]


def test_a_handler_in_java_is_refused():
    _, problems = HttpSourceConfig.parse({"port": "0", "handler": "com.example.MyHandler"})
    assert "interceptor" in problems[0].message


def test_concurrent_large_requests_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(server, "BUDGET_BYTES", 2_000_000)
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
    with Running(maxRequestBytes="1000000") as running:
        clients = [running.connect() for _ in range(3)]
        for client in clients[:2]:
            client.sendall(head + b" " * 900_000)
        while running.source._server.partial_bytes < 1_800_000:
            time.sleep(0.01)
        with contextlib.suppress(OSError):  # the server closes before all of it is read
            clients[2].sendall(head + b" " * 900_000)
        while not running.source.metrics.snapshot().get("ChannelFail"):
            time.sleep(0.01)
        for client in clients[:2]:
            client.sendall(b" " * 99_998 + b"[]")
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
        with contextlib.suppress(ConnectionError):
            assert clients[2].recv(1000).startswith(b"HTTP/1.1 503")
        for client in clients:
            client.close()
        assert running.post(b"[]")[0] == 200
        assert running.source._server.partial_bytes == 0


@pytest.mark.parametrize("sent", [b"", b"POST / HT", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n12"])
def test_a_client_that_stops_amid_a_request_is_not_waited_for(sent):
    with Running(idleTimeout="1") as running, running.connect() as client:
        client.sendall(sent)
        while client.recv(1000):
            pass


def test_tls(tmp_path):
    folder = certificate(tmp_path)
    with Running(ssl="true", keystore=str(folder / "server.pem")) as running:
        context = ssl.create_default_context(cafile=str(folder / "server.crt"))
        client = http.client.HTTPSConnection("localhost", running.source.port, timeout=20, context=context)
        client.request("POST", "/", b'[{"body": "secret"}]')
        assert client.getresponse().status == 200
        client.close()
    assert running.events == [Event(b"secret")]


def test_only_clients_with_a_trusted_certificate_are_admitted(tmp_path):
    folders = {whose: tmp_path / whose for whose in ("server", "client", "stranger")}
    for whose, folder in folders.items():
        folder.mkdir()
        certificate(folder, whose=whose)
    server, trusted = folders["server"], str(folders["client"] / "server.crt")
    with Running(ssl="true", keystore=str(server / "server.pem"), truststore=trusted) as running:
        for whose, status in (("client", 200), ("stranger", 0), ("", 0)):
            context = ssl.create_default_context(cafile=str(server / "server.crt"))
            if whose:
                context.load_cert_chain(folders[whose] / "server.pem")
            client = http.client.HTTPSConnection("localhost", running.source.port, timeout=20, context=context)
            answered = 0
            with contextlib.suppress(OSError, http.client.HTTPException):
                client.request("POST", "/", json.dumps([{"body": whose}]))
                answered = client.getresponse().status
            client.close()
            assert answered == status, whose
    assert running.events == [Event(b"client")]


def test_many_requests_over_kept_connections_arrive_once():
    def send(client):
        connection = http.client.HTTPConnection("127.0.0.1", running.source.port, timeout=20)
        for number in range(100):
            connection.request("POST", "/", json.dumps([{"headers": {}, "body": f"{client}-{number}"}]))
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200
        connection.close()

    with Running() as running:
        threads = [threading.Thread(target=send, args=(client,)) for client in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(event.body for event in running.events) == sorted(
        b"%d-%d" % (client, number) for client in range(8) for number in range(100)
    )


CHARSETS = ["utf-8", "utf-16", "utf-32"]
text = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(st.tuples(st.dictionaries(text, text, max_size=4), text)), st.sampled_from(CHARSETS))
def test_json_in_any_charset(events, charset):
    content = json.dumps([{"headers": headers, "body": body} for headers, body in events])
    parsed = read_json(content.encode(charset), charset)
    bom = {"utf-16": b"\xfe\xff"}.get(charset, b"")
    java = charset if charset == "utf-8" else charset + "-be"
    assert parsed == [Event((bom if body else b"") + body.encode(java), headers) for headers, body in events]


@given(st.binary() | st.text(alphabet="[]{}\"'\\:,;=/*# \nuabnull01").map(str.encode))
def test_every_request_is_answered(content):
    with contextlib.suppress(HandlerError):
        for event in read_json(content, None):
            assert isinstance(event.body, bytes)


def test_deeply_nested_json_is_answered():
    with pytest.raises(HandlerError, match="nested too deep") as refused:
        read_json(b'[{"x": ' + b"[" * 5000 + b"]" * 5000 + b"}]", None)
    assert refused.value.status == 400


def test_a_source_that_stops_answers_503_to_every_request_that_has_begun(caplog):
    """Among them are one with incomplete content, and one on a connection that is open already."""
    with Running(store=False) as running:
        unfinished, waiting, idle = (running.connect() for _ in range(3))
        post = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 15\r\n\r\n"
        unfinished.sendall(post + b"[{")
        waiting.sendall(post + b'[{"body": "y"}]')
        idle.sendall(post.replace(b"15", b"2") + b"[]")
        assert idle.recv(1000).startswith(b"HTTP/1.1 200")
        while not running.events:
            time.sleep(0.005)
    for client in (unfinished, waiting):
        assert client.recv(1000).startswith(b"HTTP/1.1 503")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    for client in (unfinished, waiting, idle):
        client.close()
