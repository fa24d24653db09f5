"""What all tests of the runners share."""

import pytest

from flafka.agent.runner.local.channels import ChannelRunner
from flafka.agent.runner.local.sinks import SinkRunner
from flafka.agent.topology import ComponentSpec, Place, SinkSpec
from flafka.channels.memory import MemoryChannel, MemoryConfig
from flafka.plugins import Config
from tests.runner.pipelines import Letters


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again after hundredths of seconds: how waits grow is the matter of `test_retries.py`."""
    monkeypatch.setattr("flafka.agent.runner.retries.FIRST_WAIT_SECONDS", 0.02)


@pytest.fixture
def pipeline():
    """Starts a sink on a memory channel; stops it afterwards."""
    started = []

    def start(cls, channel=None, audit=None, interceptors=()):
        channel = channel or MemoryChannel(MemoryConfig(), "m")
        runner = ChannelRunner("a.channels.m", "m", channel, audit)
        runner.ready.set()
        letters = Letters()
        place = Place("test.conf", 1)
        made = tuple(ComponentSpec(one.type_name, "i", one, Config(), {}, place) for one in interceptors)
        spec = SinkSpec("k", "a.sinks.k", cls, Config(), {}, place, channel="m", interceptors=made)
        sink = SinkRunner([spec], runner, letters, "host.a.k")
        sink.thread.start()
        started.append(sink)
        return sink, channel, letters

    yield start
    for sink in started:
        sink.stopping.set()
        sink.thread.join(60)
        assert not sink.thread.is_alive()
