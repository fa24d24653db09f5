"""Web page of a master of a standalone Spark cluster."""

from __future__ import annotations

import json
import re
from typing import Any

from flafka.agent.web import page


def ask_master(host: str, port: int) -> dict[str, Any] | None:
    """Return the JSON of a standalone master's web page; None without an answer."""
    try:
        status: dict[str, Any] = json.loads(page(host, port, "/json/")[1])
    except ValueError:
        return None
    return status


def master_version(host: str, port: int) -> str | None:
    """Return the version of Spark that a master's web page shows; None without one."""
    text = page(host, port, "/")[1].decode(errors="replace")
    found = re.search(r'class="version[^"]*">\s*(\d+\.\d+\.[^<\s]+)', text)
    return found[1] if found else None
