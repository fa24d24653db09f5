"""Fixtures of the tests of the runners."""

import pytest

from flafka.agent.runner.local.channels import ChannelRunner
from flafka.agent.runner.local.sinks import SinkRunner
from flafka.agent.topology import ComponentSpec, ConfigLocation, SinkSpec
from flafka.channels.memory import MemoryChannel, MemoryConfig
from flafka.plugins import Config
from tests.runner.pipelines import MemoryDeadLetters


@pytest.fixture(autouse=True)
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry after hundredths of seconds: `test_retries.py` covers the growth of waits."""
    monkeypatch.setattr("flafka.agent.runner.retries.FIRST_WAIT_SECONDS", 0.02)


@pytest.fixture
def pipeline():
    """Function that starts a sink on a memory channel; the sink is stopped afterwards."""
    started = []

    def start(cls, channel=None, audit=None, interceptors=()):
        channel = channel or MemoryChannel(MemoryConfig(), "m")
        runner = ChannelRunner("a.channels.m", "m", channel, audit)
        runner.ready.set()
        letters = MemoryDeadLetters()
        location = ConfigLocation("test.conf", 1)
        made = tuple(
            ComponentSpec(interceptor.type_name, "i", interceptor, Config(), {}, location)
            for interceptor in interceptors
        )
        spec = SinkSpec("k", "a.sinks.k", cls, Config(), {}, location, channel="m", interceptors=made)
        sink = SinkRunner([spec], runner, letters, "host.a.k")
        sink.thread.start()
        started.append(sink)
        return sink, channel, letters

    yield start
    for sink in started:
        sink.stopping.set()
        sink.thread.join(60)
        assert not sink.thread.is_alive()
