"""What runs here is a server, or a client of an agent that runs as a process."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def real(servers: None) -> None:
    """Asks for servers, for every test in this folder."""
