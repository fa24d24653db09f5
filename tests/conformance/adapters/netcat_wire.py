"""`netcat_wire`: answers of the netcat source, and whether the connection stays open."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

from flafka.sources.netcat import NetcatConfig, NetcatSource

QUIET_SECONDS = 0.5
"""Seconds without new bytes after which an answer is complete."""


def op_netcat_wire(input: dict[str, Any]) -> Any:
    """Return the answer to the sent bytes."""
    options = {name.replace("_", "-"): str(value).lower() for name, value in input.items() if name != "send"}
    config, problems = NetcatConfig.parse({"bind": "127.0.0.1", "port": "0", **options})
    assert config is not None, problems
    source = NetcatSource(config)
    source.open()
    runner = threading.Thread(target=lambda: [None for _ in source.batches()], daemon=True)
    runner.start()
    try:
        with socket.create_connection(("127.0.0.1", source.port)) as sender:
            sender.settimeout(QUIET_SECONDS)
            sender.sendall(input["send"].encode())
            reply, connection = b"", "open"
            with contextlib.suppress(TimeoutError):
                while data := sender.recv(65536):
                    reply += data
                connection = "closed"
            return {"reply": reply.decode(), "connection": connection}
    finally:
        source.stopping.set()
        runner.join()
        source.close()
