"""An agent that runs as a process is a server as well."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def real(servers: None) -> None:
    """Asks for servers, for every test in this folder."""
