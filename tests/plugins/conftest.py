"""What the tests of the conformance kit share."""

import pytest


@pytest.fixture
def impatient(brisk: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kit gives up early, where a test has it find something broken."""
    monkeypatch.setattr("plugins.conformance.sources.STOP_SECONDS", 0.5)
    monkeypatch.setattr("plugins.conformance.sources.PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr("plugins.conformance.channels.PATIENCE_SECONDS", 0.5)
