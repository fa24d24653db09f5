"""Lines over UDP, and events of one size."""

import socket
import threading
from random import Random

import pytest

from flafka.plugins import Batch, Event
from flafka.sources.netcatudp import MAX_EVENTS, NetcatUdpConfig, NetcatUdpSource
from flafka.sources.stress import StressConfig, StressSource


def test_each_line_of_a_datagram_is_an_event_with_its_senders_address() -> None:
    config, _ = NetcatUdpConfig.parse({"bind": "127.0.0.1", "port": "0"})
    assert config is not None
    source = NetcatUdpSource(config)
    source.open()
    got: list[Event] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for data in (b"one\n", b"two", b"three\n\nfour\n", b"", b"\xff" * 60_000):
            sender.sendto(data, ("127.0.0.1", source.port))
        port = sender.getsockname()[1]
        source.stopping.set()  # what has arrived by then is taken
        for batch in source.batches():
            got += batch
    source.close()
    assert [event.body for event in got] == [b"one", b"two", b"three", b"", b"four", b"", b"\xff" * 60_000]
    assert {event.headers["REMOTE_ADDRESS"] for event in got} == {f"/127.0.0.1:{port}"}


def test_nothing_that_comes_makes_it_raise_or_hold_more_than_a_batch() -> None:
    config, _ = NetcatUdpConfig.parse({"bind": "127.0.0.1", "port": "0"})
    assert config is not None
    source = NetcatUdpSource(config)
    source.open()
    random = Random(1)
    largest = 65_507
    datagrams = [b"\n" * largest, b"\0" * largest, b"\r\n" * 100, b"\xed\xa0\x80\n\xff", random.randbytes(largest)]
    source.stopping.set()
    batches: list[Batch] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for data in datagrams:  # the kernel holds two of the largest
            sender.sendto(data, ("127.0.0.1", source.port))
            batches += source.batches()
    source.close()
    got = [event.body for batch in batches for event in batch]
    assert got == [line for data in datagrams for line in data.removesuffix(b"\n").split(b"\n")]
    assert max(map(len, batches)) < MAX_EVENTS + largest + 1


@pytest.mark.parametrize(
    ("options", "events"),
    [
        ({"maxTotalEvents": "7", "batchSize": "3"}, 7),
        ({"maxTotalEvents": "7", "maxSuccessfulEvents": "5", "batchSize": "100"}, 5),
        ({"maxTotalEvents": "0"}, 0),
        ({"maxTotalEvents": "20", "maxEventsPerSecond": "1000"}, 20),
    ],
)
def test_stress_makes_so_many_events_of_that_size(options: dict[str, str], events: int) -> None:
    config, problems = StressConfig.parse({**options, "size": "9"})
    assert config is not None, problems
    made = [event.body for batch in StressSource(config).batches() for event in batch]
    assert made == [b"\x7f" * 9] * events


def test_stress_without_an_end_is_stopped() -> None:
    config, _ = StressConfig.parse({"maxEventsPerSecond": "1"})
    assert config is not None
    source = StressSource(config)
    thread = threading.Thread(target=lambda: [*source.batches()])
    thread.start()
    source.stopping.set()
    thread.join(60)
    assert not thread.is_alive()
