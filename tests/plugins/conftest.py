"""Fixtures of the tests of the conformance kit."""

import pytest


@pytest.fixture
def impatient(short_waits: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeouts of the kit for broken components."""
    monkeypatch.setattr("flafka.plugins.conformance.sources.STOP_SECONDS", 0.5)
    monkeypatch.setattr("flafka.plugins.conformance.sources.ARRIVAL_SECONDS", 0.5)
    monkeypatch.setattr("flafka.plugins.conformance.channels.ARRIVAL_SECONDS", 0.5)
