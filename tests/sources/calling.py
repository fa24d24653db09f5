"""Running source with clients, and a client of it."""

import contextlib
import socket
import threading
import zlib

from hypothesis import strategies as st

from flafka.plugins import Batch, Event
from flafka.plugins.wire.avrorpc import (
    AvroFrameDecoder,
    encode_array,
    encode_frame,
    encode_request_head,
    read_response,
)
from flafka.plugins.wire.flumeevent import encode
from flafka.sources.avro import AvroSource

HELLO = Event(b"hello", {"k": "v"})
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=100)
EVENTS = st.lists(
    st.builds(Event, st.binary(max_size=200), st.dictionaries(TEXTS, TEXTS, max_size=4)), min_size=1, max_size=30
)


def encoded(batch):
    return encode(batch).to_pylist()


class AtWork:
    """Open source, and a thread that takes its batches."""

    def __init__(self, source):
        self.source = source
        self.thread = threading.Thread(target=self._run)

    def __enter__(self):
        self.source.open()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.source.stopping.set()
        self.thread.join(60)
        self.source.close()
        assert not self.thread.is_alive()


class Running(AtWork):
    """Running source: `stored` is called at once, or when the test calls it."""

    kind = AvroSource

    def __init__(self, store=True, **properties):
        config, problems = self.kind.config_class.parse({"bind": "127.0.0.1", "port": "0"} | properties)
        assert not problems
        super().__init__(self.kind(config))
        self.store = store
        self.batches = []

    def _run(self):
        for batch in self.source.batches():
            self.batches.append(batch)
            if self.store:
                self.source.stored(batch)

    @property
    def events(self):
        return [event for batch in list(self.batches) for event in batch]

    def count(self, name):
        return self.source.metrics.get(name)


class Client:
    """Client like flume-ng-sdk."""

    def __init__(self, running, deflate=False, tls=None):
        self.socket = socket.create_connection(("127.0.0.1", running.source.port), 20)
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.serial = 0
        self.frames = AvroFrameDecoder(1 << 20)
        self.deflate = zlib.compressobj() if deflate else None
        self.inflate = zlib.decompressobj() if deflate else None
        self.arrived = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, *buffers):
        self.serial += 1
        data = encode_frame(self.serial, buffers)
        if self.deflate:
            data = self.deflate.compress(data) + self.deflate.flush(zlib.Z_SYNC_FLUSH)
        self.socket.sendall(data)

    def receive(self):
        while not self.arrived:
            data = self.socket.recv(65536)
            assert data, "closed"
            self.arrived += self.frames.feed(self.inflate.decompress(data) if self.inflate else data)
        return self.arrived.pop(0)

    def request(self, *events):
        self.send(
            encode_request_head(first=self.serial == 0, message="appendBatch"),
            encode_array(encoded(Batch.of(events))),
        )

    def append(self, *events):
        self.request(*events)
        serial, content = self.receive()
        assert serial == self.serial
        return read_response(content, first=serial == 1)

    def closed(self):
        with contextlib.suppress(ConnectionResetError):
            while self.socket.recv(65536):
                pass
        return True
