"""What the tests of the conformance kit share."""

import pytest


@pytest.fixture
def impatient(brisk: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kit gives up early, where a test has it find something broken."""
    monkeypatch.setattr("flafka.plugins.conformance.sources.STOP_SECONDS", 0.5)
    monkeypatch.setattr("flafka.plugins.conformance.sources.ARRIVAL_SECONDS", 0.5)
    monkeypatch.setattr("flafka.plugins.conformance.channels.ARRIVAL_SECONDS", 0.5)
