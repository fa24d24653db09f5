"""Fixtures of tests with servers, or with clients of an agent process."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def real(servers: None) -> None:
    """Request servers for every test in this folder."""
