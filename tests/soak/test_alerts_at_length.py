"""Alert of a blocked source, which takes a real minute: `./dev soak`."""

from __future__ import annotations

from pathlib import Path

import pytest

from flafka.agent.config import load
from flafka.agent.runner.agent import Agent
from flafka.agent.services.running import until
from flafka.plugins import Components
from tests.agent.alerting import firing
from tests.agent.test_alerts import scraped

CONFIGURATION = """
a1.sources = waiting
a1.channels = full
a1.monitoring.port = 0
a1.sources.waiting.type = seq
a1.sources.waiting.totalEvents = 100
a1.sources.waiting.channels = full
a1.channels.full.type = memory
a1.channels.full.capacity = 10
a1.channels.full.transactionCapacity = 10
"""


@pytest.mark.soak
def test_a_source_that_waits_for_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flafka.agent.runner.agent.DRAIN_SECONDS", 1.0)
    file = tmp_path / "agent.conf"
    file.write_text(CONFIGURATION)
    spec, diagnostics = load(file, components=Components())
    assert spec is not None, diagnostics
    agent = Agent(spec)
    before = scraped(agent.registry)
    (source,) = agent.sources
    agent.start()
    try:
        until(lambda: source._in_flight, "the source to wait")
        assert "FlafkaNotAcknowledged" not in firing(before, scraped(agent.registry))
        until(lambda: firing(before, scraped(agent.registry)).get("FlafkaNotAcknowledged"), "the alert")
        waited = source.metrics.snapshot()["UnacknowledgedSeconds"]
        assert 60 < waited < 600
        assert firing(before, scraped(agent.registry))["FlafkaNotAcknowledged"] == {"waiting"}
    finally:
        source.give_up.set()
        agent.stop()
