"""What all tests of the runners share."""

import pytest


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again after hundredths of seconds: how waits grow is the matter of `test_retries.py`."""
    monkeypatch.setattr("agent.runner.retries.FIRST_SECONDS", 0.02)
