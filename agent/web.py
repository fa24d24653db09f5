"""Pages of servers on this network, read by HTTP."""

from __future__ import annotations

import http.client


def page(host: str, port: int, path: str, seconds: float = 5) -> tuple[int, bytes]:
    """Return status and body of a page, without any proxy; `(0, b"")` without an answer in `seconds`."""
    connection = http.client.HTTPConnection(host, port, timeout=seconds)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()
