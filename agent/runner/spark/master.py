"""Web page of the master of a standalone Spark cluster."""

from __future__ import annotations

import json
import re
from typing import Any

from flafka.agent.web import fetch_page


def fetch_master_status(host: str, port: int) -> dict[str, Any] | None:
    """Return the JSON of a master's web page; None if no JSON comes."""
    try:
        status: dict[str, Any] = json.loads(fetch_page(host, port, "/json/")[1])
    except ValueError:
        return None
    return status


def fetch_master_version(host: str, port: int) -> str | None:
    """Return the version of Spark that a master's web page shows; None if no such page comes."""
    text = fetch_page(host, port, "/")[1].decode(errors="replace")
    match = re.search(r'class="version[^"]*">\s*(\d+\.\d+\.[^<\s]+)', text)
    return match[1] if match else None
