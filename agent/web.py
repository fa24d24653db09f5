"""HTTP GET without a proxy, for pages of servers on this network."""

from __future__ import annotations

import http.client
from collections.abc import Mapping


def fetch_page(
    host: str, port: int, path: str, headers: Mapping[str, str] | None = None, *, seconds: float = 5
) -> tuple[int, bytes]:
    """Return status code and body of a page; `(0, b"")` if there is no answer within `seconds`."""
    connection = http.client.HTTPConnection(host, port, timeout=seconds)
    try:
        connection.request("GET", path, headers=dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()
