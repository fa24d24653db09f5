"""HTTP on this network: GET without a proxy, and loopback addresses."""

from __future__ import annotations

import http.client
import ipaddress
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


def is_loopback(host: str) -> bool:
    """Return True for `localhost` and for a loopback address, with or without brackets. Names are not resolved."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
