"""Source `netcatudp`, and `stress`, whose events have one size."""

import socket
import threading
from random import Random

from flafka.plugins import Batch
from flafka.sources.netcatudp import MAX_BATCH_EVENTS, NetcatUdpConfig, NetcatUdpSource
from flafka.sources.stress import StressConfig, StressSource


def test_no_datagram_makes_it_raise_or_buffer_more_than_a_batch() -> None:
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
    bodies = [event.body for batch in batches for event in batch]
    assert bodies == [line for data in datagrams for line in data.removesuffix(b"\n").split(b"\n")]
    assert max(map(len, batches)) < MAX_BATCH_EVENTS + largest + 1


def test_stress_without_an_end_is_stopped() -> None:
    config, _ = StressConfig.parse({"maxEventsPerSecond": "1"})
    assert config is not None
    source = StressSource(config)
    thread = threading.Thread(target=lambda: [*source.batches()])
    thread.start()
    source.stopping.set()
    thread.join(60)
    assert not thread.is_alive()
