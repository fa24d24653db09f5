"""Sources `taildir` over a directory of real files, and their remains."""

from __future__ import annotations

import json
import time
from pathlib import Path

from flafka.sources.taildir import TaildirConfig, TaildirSource

REPOSITORY = Path(__file__).parents[2]
LOGHUB = REPOSITORY.parent / "shared" / "data" / "loghub"

Lines = list[tuple[bytes, dict[str, str]]]


def make(directory: Path, pattern: str = "log.*", **options: str) -> TaildirSource:
    """Return a source over the files of `directory/logs` that makes a full scan at each poll."""
    (directory / "logs").mkdir(exist_ok=True)
    properties = {
        "filegroups": "g",
        "filegroups.g": f"{directory}/logs/{pattern}",
        "positionFile": f"{directory}/positions/taildir.json",
        "backoffSleepIncrement": "1",
        "maxBackoffSleep": "1",
        "writePosInterval": "0",
        **options,
    }
    config, problems = TaildirConfig.parse(properties)
    assert config is not None, problems
    return TaildirSource(config)


def start(directory: Path, pattern: str = "log.*", **options: str) -> TaildirSource:
    source = make(directory, pattern, **options)
    source.open()
    return source


def process(source: TaildirSource) -> Lines:
    """Read everything now, as stored."""
    lines: Lines = []
    quiet = 0
    while quiet < 3:
        quiet += 1
        for batch in source.poll():
            lines += [(event.body, event.headers) for event in batch]
            source.stored(batch)
            quiet = 0
        if source._postponed:
            quiet = 0  # a new file waits for events about its predecessors
        time.sleep(0.0015)  # past the time of the next full scan
    return lines


def bodies(source: TaildirSource) -> list[bytes]:
    return [body for body, _ in process(source)]


def positions(directory: Path) -> dict[str, int]:
    entries = json.loads((directory / "positions" / "taildir.json").read_text())
    return {Path(entry["file"]).name: entry["pos"] for entry in entries}


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def kill(source: TaildirSource) -> None:
    """End the source like SIGKILL: it saves nothing more, and the system closes all open files."""
    source._positions.save = lambda *_, **__: None
    journal = source._positions.path.with_name("taildir.json.journal")
    source.close()
    append(journal, b'{"is":"file","id":1,"inode":')  # an unfinished save
