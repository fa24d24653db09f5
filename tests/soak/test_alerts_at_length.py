"""Alert of a blocked source, which takes a real minute: `./dev soak`."""

from __future__ import annotations

from pathlib import Path

import pytest

from flafka.agent.config import load
from flafka.agent.runner.agent import Agent
from flafka.agent.services.running import until
from flafka.plugins import Components
from tests.fixtures.ports import free_port
from tests.system.prometheus import prometheus

CONFIGURATION = """
a1.sources = waiting
a1.channels = full
a1.monitoring.port = {port}
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
    port = free_port()
    file.write_text(CONFIGURATION.format(port=port))
    spec, diagnostics = load(file, components=Components())
    assert spec is not None, diagnostics
    agent = Agent(spec)
    (source,) = agent.sources
    agent.start()
    try:
        with prometheus(tmp_path / "prometheus", f"127.0.0.1:{port}") as monitoring:
            until(lambda: source._in_flight, "the source to wait")
            until(lambda: monitoring.query("flafka_unacknowledged_seconds"), "the figure")
            assert "FlafkaNotAcknowledged" not in monitoring.alerts()
            until(lambda: monitoring.alerts().get("FlafkaNotAcknowledged") == {"waiting"}, "the alert")
            waited = source.metrics.snapshot()["UnacknowledgedSeconds"]
            assert 60 < waited < 600
    finally:
        source.give_up.set()
        agent.stop()
