"""`avro_rpc`: bytes on the wire between our avro sink and our avro source."""

import contextlib
import socket
import threading
import zlib
from collections.abc import Iterator
from typing import Any

from flafka.plugins import Batch, Event
from flafka.plugins.wire.avrorpc import PROTOCOL_HASH
from flafka.sinks.avro import AvroSink, AvroSinkConfig
from tests.sources.calling import Running

HEADERS = {"k": "v"}


def op_avro_rpc(input: Any) -> Any:
    """Return the protocol's hash, or both directions of a connection: its first or second request, or all of it."""
    if not isinstance(input, dict):
        return {"md5": PROTOCOL_HASH.hex()}
    ((kind, events),) = input.items()
    batch = Batch.of(_event(event) for event in events)
    compression = "deflate" if kind == "batch" else "none"
    with Running(**{"compression-type": compression}) as running, _recording(running.source.port) as (port, wire):
        text = {"hostname": "127.0.0.1", "port": str(port), "compression-type": compression}
        config, problems = AvroSinkConfig.parse(text)
        assert config is not None, problems
        sink = AvroSink(config)
        sink.open()
        if kind.startswith("second"):
            sink.write(Batch.of([Event(b"first")]))
            sink.flush()
            for direction in wire:
                direction.clear()
        sink.write(batch)
        sink.flush()
        sink.close()
        assert running.events[-len(batch) :] == list(batch)
    names = ("client_wire_hex", "server_wire_hex") if kind == "batch" else ("client_hex", "server_hex")
    return {name: direction.hex() for name, direction in zip(names, wire, strict=True)}


def normalise(op: str, value: dict[str, Any]) -> Any:
    """Return the value without messages. Deflated streams differ by the compressor: their inflated contents count."""
    plain = {}
    for name, text in value.items():
        if name.endswith("_wire_hex"):
            plain[name] = zlib.decompressobj().decompress(bytes.fromhex(text)).hex()
        elif name.endswith("_hex") or name == "md5":
            plain[name] = text
    return plain


def _event(event: Any) -> Event:
    """Return the event; one that is written as its body alone has the header of all recorded events."""
    return (
        Event(event["body"].encode(), event["headers"]) if isinstance(event, dict) else Event(event.encode(), HEADERS)
    )


@contextlib.contextmanager
def _recording(port: int) -> Iterator[tuple[int, tuple[bytearray, bytearray]]]:
    """Yield a port that forwards to another, and the bytes of each direction."""
    wire = (bytearray(), bytearray())
    threads: list[threading.Thread] = []

    def copy(source: socket.socket, target: socket.socket, record: bytearray) -> None:
        while data := source.recv(65536):
            record += data
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        client, _ = listener.accept()
        with client, socket.create_connection(("127.0.0.1", port)) as server:
            back = threading.Thread(target=copy, args=(server, client, wire[1]))
            back.start()
            copy(client, server, wire[0])
            back.join()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads.append(threading.Thread(target=serve))
        threads[0].start()
        yield listener.getsockname()[1], wire
        threads[0].join()
