"""Event loop of request-response sources, which the source's thread, a second one and answering ones run in turn."""

import contextlib
import queue
import socket
import threading

import pytest

from flafka.agent.services.running import until
from flafka.plugins import Batch, Components, Event, Retry
from flafka.plugins.wire.avrorpc import AvroStatus, encode_array, encode_frame, encode_request_head
from flafka.plugins.wire.flumeevent import encode
from flafka.sources.serving import Acceptor
from tests.sources import calling
from tests.sources.calling import HELLO, AtWork, Client

COMPONENTS = Components()
TIMEOUTS = {"avro": "request-timeout", "http": "requestTimeout"}
each_kind = pytest.mark.parametrize("kind", TIMEOUTS)


class Away(AtWork):
    """Running source whose thread is away with each batch until `back` is set."""

    def __init__(self, kind, **properties):
        source = COMPONENTS.get("source", kind)
        config, problems = source.config_class.parse({"bind": "127.0.0.1", "port": "0"} | properties)
        assert not problems
        super().__init__(source(config))
        self.kind, self.batches, self.back = kind, queue.SimpleQueue(), threading.Event()

    def _run(self):
        for batch in self.source.batches():
            self.batches.put(batch)
            self.back.wait()

    def __exit__(self, *error):
        self.source.stopping.set()
        self.back.set()
        super().__exit__(*error)

    def send(self, connection):
        if self.kind == "avro":
            events = encode_array(encode(Batch.of([HELLO])).to_pylist())
            data = encode_frame(1, [encode_request_head(first=True, message="appendBatch"), events])
        else:
            body = b'[{"headers": {"k": "v"}, "body": "hello"}]'
            data = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        connection.sendall(data)

    def is_stored(self, connection):
        """Return True if the next answer is that the events are stored, False if they are not."""
        answer = connection.recv(65536)
        if self.kind == "avro":
            return answer[-2:] == b"\0\0"
        return answer.startswith(b"HTTP/1.1 200")

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.source.port), 20)


@pytest.fixture
def no_checks(monkeypatch):
    """Make checks so rare that nothing in a test can be waiting for one."""
    monkeypatch.setattr("flafka.sources.serving.STOP_CHECK_SECONDS", 300)


@each_kind
def test_a_thread_that_answers_needs_no_other_thread(no_checks, kind):
    with Away(kind) as running, running.connect() as connection:
        running.send(connection)
        batch = running.batches.get(timeout=20)
        running.source.stored(batch)
        assert running.is_stored(connection)
        assert not running.back.is_set()


@each_kind
def test_clients_are_served_while_the_source_is_away(kind):
    with Away(kind, **{TIMEOUTS[kind]: "300"}) as running, running.connect() as first:
        running.send(first)
        batch = running.batches.get(timeout=20)
        assert not running.is_stored(first)
        with running.connect() as second:
            running.send(second)
            assert not running.is_stored(second)
        running.source.stored(batch)  # too late: the answer is sent
        running.back.set()

        def is_stored_again():  # a slow machine may abandon a request before it is taken
            with running.connect() as connection:
                running.send(connection)
                with contextlib.suppress(queue.Empty):
                    running.source.stored(running.batches.get(timeout=1))
                return running.is_stored(connection)

        until(is_stored_again)


class StoredElsewhere(calling.Running):
    """Running source whose batches another thread stores, in their order."""

    def __init__(self, **properties):
        super().__init__(**properties)
        self.waiting = queue.SimpleQueue()

    def _run(self):
        storing = threading.Thread(target=self._store)
        storing.start()
        for batch in self.source.batches():
            self.batches.append(batch)
            self.waiting.put(batch)
        self.waiting.put(None)
        storing.join()

    def _store(self):
        while (batch := self.waiting.get()) is not None:
            self.source.stored(batch)


def test_no_answer_is_forgotten_between_two_turns(no_checks):
    clients, appends = 5, 100
    answers = queue.SimpleQueue()

    def send(number):
        with contextlib.suppress(OSError), Client(running) as client:
            for index in range(appends):
                answers.put(client.append(Event(b"%d %d" % (number, index))))

    with StoredElsewhere() as running:
        threads = [threading.Thread(target=send, args=[number]) for number in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        running.source.stopping.set()
        running.source.wake()
    assert [answers.get_nowait() for _ in range(clients * appends)] == [AvroStatus.OK] * (clients * appends)
    assert sorted(event.body for event in running.events) == sorted(
        b"%d %d" % (number, index) for number in range(clients) for index in range(appends)
    )


class LockWithLateCall:
    """Lock at whose first release another thread still finds it taken, and leaves a call."""

    def __init__(self, lock, call):
        self._lock, self._call = lock, call
        self.acquire = lock.acquire

    def release(self):
        call, self._call = self._call, None
        if call is not None:
            thread = threading.Thread(target=call)
            thread.start()
            thread.join()
        self._lock.release()


def test_a_call_at_the_very_end_of_a_turn_is_made(no_checks):
    called = threading.Event()
    with Away("avro") as running, running.connect() as connection:
        server = running.source._server
        server._turn = LockWithLateCall(server._turn, lambda: server._call(called.set))
        running.send(connection)
        running.batches.get(timeout=20)
        assert called.wait(20)


def test_an_answer_that_waits_for_a_turn_at_a_stop_is_sent(no_checks):
    with Away("http") as running, running.connect() as connection:
        running.send(connection)
        running.batches.get(timeout=20)
        server = running.source._server
        # As `stored` leaves the call to a thread whose turn then ends.
        server._calls.append((server._send_stored, (list(server._unanswered),)))
        running.source.stopping.set()
        running.back.set()
        running.thread.join()
        running.source.close()
        assert running.is_stored(connection)


class OneByOne(Away):
    """Running source whose thread is away after each request, until `go` is released."""

    def __init__(self, kind, **properties):
        super().__init__(kind, **properties)
        self.go = threading.Semaphore(0)

    def _run(self):
        for batch in self.source.batches():
            self.batches.put(batch)
            self.go.acquire()


def test_a_backlog_delays_no_other_client(monkeypatch):
    monkeypatch.setattr("flafka.sources.serving.MAX_BATCH_BYTES", 1)
    with OneByOne("avro") as running, contextlib.ExitStack() as stack:
        for _ in range(20):
            running.send(stack.enter_context(running.connect()))
        running.batches.get(timeout=20)
        until(lambda: len(running.source._server._requests) == 19, "the backlog")
        monkeypatch.setattr("flafka.sources.serving.STOP_CHECK_SECONDS", 300)  # nobody stands in
        other = stack.enter_context(running.connect())
        other.sendall(encode_frame(1, [encode_request_head(first=True, message="unknown")]))
        for _ in range(10):
            running.go.release()
            running.batches.get(timeout=20)
        assert other.recv(1024, socket.MSG_DONTWAIT)
        running.go.release(20)


def test_a_large_request_arrives_while_small_ones_wait(no_checks, monkeypatch):
    monkeypatch.setattr("flafka.sources.serving.REQUEST_FILL_SECONDS", 300)
    with Away("avro") as running, running.connect() as large, running.connect() as small:
        server = running.source._server
        events = encode_array(encode(Batch.of([HELLO])).to_pylist())
        data = encode_frame(1, [encode_request_head(first=True, message="appendBatch"), events])
        large.sendall(data[:-1])
        until(lambda: server.partial_bytes > 0, "a part of the large request")
        running.send(small)
        until(lambda: len(server._requests) == 1, "the small request")
        large.sendall(data[-1:])
        assert len(running.batches.get(timeout=20)) == 2


def test_a_client_that_stops_in_the_midst_of_a_request_delays_nobody(no_checks, monkeypatch):
    with Away("avro") as running, running.connect() as large, running.connect() as small:
        server = running.source._server
        large.sendall(b"\0\0\0\1")
        until(lambda: server.partial_bytes > 0, "a part of a request")
        server._piece_received -= 600
        monkeypatch.setattr("flafka.sources.serving.REQUEST_FILL_SECONDS", 300)
        running.send(small)
        assert len(running.batches.get(timeout=20)) == 1


def test_a_server_that_fails_is_reported(monkeypatch):
    def fails(_):
        raise OSError("no more epoll")

    monkeypatch.setattr(Acceptor, "open", fails)
    running = calling.Running()
    running.source.open()
    with pytest.raises(Retry, match="no more epoll"):
        next(running.source.batches())
    running.source.close()
