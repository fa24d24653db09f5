"""`spooldir`: the source on a directory of files, until it has read all of them."""

import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from flafka.plugins import FlafkaError
from flafka.sources.spooldir import SpooldirConfig, SpooldirSource

TIMEOUT_SECONDS = 5.0
QUIET_SECONDS = 0.2
"""Seconds after the last change in which no other is expected; a scan for new files takes place every millisecond."""


def op_spooldir(input: dict[str, Any]) -> Any:
    """Return the events, and the contents of the directory afterwards."""
    with tempfile.TemporaryDirectory() as directory:
        for number, (name, text) in enumerate(input["files"].items()):
            path = Path(directory, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8", newline="")
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        properties = {name: value.replace("{dir}", directory) for name, value in input["config"].items()}
        properties = {"spoolDir": directory, **properties, "pollDelay": "1"}
        config, problems = SpooldirConfig.parse(properties)
        if config is None:
            return {"error": "configuration", "message": str(problems)}
        try:
            events = read_all(SpooldirSource(config))
        except FlafkaError as e:
            return {"error": type(e).__name__, "message": str(e)}
        for event in events:
            event["headers"] = {k: v.replace(directory, "{dir}") for k, v in event["headers"].items()}
        files = sorted(str(path.relative_to(directory)) for path in Path(directory).rglob("*") if path.is_file())
        return {"events": events, "files_after": files}


def read_all(source: SpooldirSource) -> list[dict[str, Any]]:
    """Return all events, taken as the runner takes them, until nothing changes any more."""
    events: list[dict[str, Any]] = []

    def run() -> None:
        for batch in source.batches():
            events.extend({"headers": e.headers, "body": e.body.decode(errors="surrogateescape")} for e in batch)
            source.stored(batch)

    source.open()
    try:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        started = changed = time.monotonic()
        before = -1
        while time.monotonic() - changed < QUIET_SECONDS and time.monotonic() - started < TIMEOUT_SECONDS:
            time.sleep(0.005)
            if len(events) != before:
                before, changed = len(events), time.monotonic()
        source.stopping.set()
        thread.join()
    finally:
        source.close()
    return events


def normalise(op: str, value: Any) -> Any:
    """Return the value without the messages of errors."""
    return {"error": True} if "error" in value else value
