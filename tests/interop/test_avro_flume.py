"""Our avro sink → a real Flume's avro source → its avro sink → our avro source, with deflate, and with TLS."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flafka.agent.services.running import free_ports, until
from flafka.plugins import Batch, Event, Retry
from flafka.sinks.avro import AvroSink
from flafka.sinks.rpc import RpcSink
from tests.fixtures.ports import free_port
from tests.interop.jvm import java_keystore
from tests.interop.test_flume import RunningFlume, flume
from tests.sources.calling import Running

EVENTS = [Event(b"event %d \xff" % n, {"number": str(n), "grüße": "世界"} if n % 3 else {}) for n in range(2000)]


def sent(port: int, kind: type[RpcSink[Any]] = AvroSink, **properties: str) -> RpcSink[Any]:
    """Return a sink that has delivered all events there, as soon as Flume listened."""
    config, problems = kind.config_class.parse({"hostname": "127.0.0.1", "port": str(port)} | properties)
    assert config is not None, problems
    sink = kind(config)
    sink.open()
    failures: list[str] = []

    def flushed() -> bool:
        sink.write(Batch.of(EVENTS))
        try:
            sink.flush()
        except Retry as e:
            failures.append(str(e))
            sink.reset()
            return False
        return True

    try:
        until(flushed, "Flume to take all events", 30)
    except AssertionError as e:
        raise AssertionError(f"{e}: {failures[-1]}") from None
    return sink


def test_a_round_trip_through_flume(tmp_path: Path) -> None:
    keystore = java_keystore(tmp_path / "server.jks")
    server = {"ssl": "true", "keystore": str(keystore), "keystore-password": "changeit"}
    client = {"ssl": "true", "truststore": str(keystore), "truststore-password": "changeit"}
    deflate = {"compression-type": "deflate"}
    small_port, secret_port = free_ports(2)
    file = tmp_path / "flume.conf"
    with Running(**deflate) as small, Running(**server) as secret:
        file.write_text(
            hop("1", small_port, deflate, small.source.port, deflate)
            + hop("2", secret_port, server, secret.source.port, client)
            + "a1.sources = r1 r2\na1.channels = c1 c2\na1.sinks = k1 k2\n"
        )
        with flume(tmp_path, file):
            sent(small_port, **deflate).close()
            sent(secret_port, **client).close()
            for running in (small, secret):
                until(lambda running=running: len(running.events) >= len(EVENTS), "all events back from Flume")
        for running in (small, secret):
            # A full channel makes Flume answer FAILED, and events that it took from the flush are delivered twice.
            assert {key(event) for event in running.events} == {key(event) for event in EVENTS}
            repeated = Counter(map(key, running.events))
            assert max(repeated.values()) == 1, "sent again without need"


def test_a_flume_that_does_not_answer(tmp_path: Path) -> None:
    """The sink has a timeout and retries; events that Flume took before are delivered twice."""
    timeouts = {"connect-timeout": "1000", "request-timeout": "1000", "reset-connection-interval": "1"}
    port, file = free_port(), tmp_path / "flume.conf"
    with Running() as running:
        text = hop("1", port, {}, running.source.port, timeouts)
        file.write_text(text + "a1.sources = r1\na1.channels = c1\na1.sinks = k1\n")
        with RunningFlume(tmp_path, file) as flume, contextlib.closing(sent(port, **timeouts)) as sink:
            flume.process.send_signal(signal.SIGSTOP)
            os.waitpid(flume.process.pid, os.WUNTRACED)  # all its threads are stopped
            for _ in range(2):  # on the open connection, and on a new one
                sink.write(Batch.of([Event(b"more")]))
                with pytest.raises(Retry, match="no answer in time"):
                    sink.flush()
                sink.reset()
            flume.process.send_signal(signal.SIGCONT)
            sink.write(Batch.of([Event(b"more"), Event(b"last")]))
            until(lambda: flushed(sink), "Flume to answer again")
            until(lambda: Event(b"last") in running.events, "Flume to go on")
    counts = Counter(map(key, running.events))
    assert counts.keys() == {key(event) for event in [*EVENTS, Event(b"more"), Event(b"last")]}
    assert counts[key(Event(b"more"))] <= 3


def flushed(sink: RpcSink[Any]) -> bool:
    with contextlib.suppress(Retry):
        sink.flush()
        return True
    return False


def hop(
    number: str, port: int, source: dict[str, str], next_port: int, sink: dict[str, Any], kind: str = "avro"
) -> str:
    """Return lines for one way through Flume."""
    lines = [
        f"a1.channels.c{number}.type = memory",
        f"a1.channels.c{number}.capacity = 10000",
        f"a1.channels.c{number}.transactionCapacity = 1000",
        f"a1.sources.r{number}.type = {kind}",
        f"a1.sources.r{number}.channels = c{number}",
        f"a1.sources.r{number}.bind = 127.0.0.1",
        f"a1.sources.r{number}.port = {port}",
        f"a1.sinks.k{number}.type = {kind}",
        f"a1.sinks.k{number}.channel = c{number}",
        f"a1.sinks.k{number}.hostname = 127.0.0.1",
        f"a1.sinks.k{number}.port = {next_port}",
        *(f"a1.sources.r{number}.{name} = {value}" for name, value in source.items()),
        *(f"a1.sinks.k{number}.{name} = {value}" for name, value in sink.items()),
    ]
    return "\n".join(lines) + "\n"


def key(event: Event) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    return event.body, tuple(sorted(event.headers.items()))
