"""`taildir`: the source, step by step, on real files."""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from flafka.plugins import FlafkaError
from flafka.sources.taildir import TaildirConfig, TaildirSource


class Run:
    """Source and files of one case. `start` raises ValueError for an invalid configuration."""

    def __init__(self, config: dict[str, str], directory: Path) -> None:
        self._config = {name: value.replace("{dir}", str(directory)) for name, value in config.items()}
        self._directory = directory
        self._home = tempfile.TemporaryDirectory()
        self._positions = Path(self._home.name) / "positions.json"
        self._source: TaildirSource | None = None

    def start(self) -> None:
        """Start the source; each call polls every file, as Flume does."""
        properties = {"positionFile": str(self._positions), **self._config}
        config, problems = TaildirConfig.parse(properties)
        if config is None:
            raise ValueError(str(problems))
        backoff = {"backoff_sleep_increment": 1, "max_backoff_sleep": 1}
        self._source = TaildirSource(config.model_copy(update=backoff))
        try:
            self._source.open()
        except FlafkaError as e:
            raise ValueError(str(e)) from e

    def process(self) -> dict[str, Any]:
        """Poll once."""
        assert self._source is not None
        time.sleep(0.002)  # past the time of the next poll
        events: list[dict[str, Any]] = []
        batches = self._source.poll()
        while True:
            try:
                batch = next(batches)
            except StopIteration as stop:
                return {"status": "READY" if stop.value else "BACKOFF", "events": events}
            self._source.stored(batch)
            events += [{"headers": self._named(e.headers), "body": e.body.decode()} for e in batch]

    def stop(self) -> dict[str, Any]:
        """Stop; return the contents of the position file."""
        self.close()
        entries = []
        for entry in json.loads(self._positions.read_text() or "[]"):
            path = Path(entry["file"])
            matches = path.exists() and path.stat().st_ino == entry["inode"]
            entries.append({"file": path.name, "pos": entry["pos"], "keys": list(entry), "inode_matches": matches})
        return {"position_file": entries}

    def close(self) -> None:
        """Close everything."""
        if self._source is not None:
            self._source.close()
            self._source = None

    def files(self, step: str, name: str, *arguments: Any) -> None:
        """Run a step of a writer or a rotation."""
        path = self._directory / name
        if step == "write":
            path.write_text(arguments[0], newline="")
        elif step == "append":
            with path.open("a", newline="") as file:
                file.write(arguments[0])
        elif step == "truncate":
            os.truncate(path, arguments[0] if arguments else 0)
        elif step == "rename":
            path.rename(self._directory / arguments[0])
        elif step == "delete":
            path.unlink()
        else:
            raise NotImplementedError(step)

    def _named(self, headers: dict[str, str]) -> dict[str, str]:
        return {name: value.replace(str(self._directory), "{dir}") for name, value in headers.items()}


def op_taildir(input: dict[str, Any]) -> Any:
    """Return the results of all steps that have one."""
    with tempfile.TemporaryDirectory() as directory:
        run = Run(input["config"], Path(directory))
        results: list[dict[str, Any]] = []
        try:
            for step, *arguments in input["steps"]:
                if step == "start":
                    run.start()
                elif step == "process":
                    results.append(run.process())
                elif step == "stop":
                    results.append(run.stop())
                elif step == "sleep":
                    time.sleep(arguments[0] / 1000)
                else:
                    run.files(step, *arguments)
        except ValueError as e:
            return {"error": type(e).__name__, "message": str(e)}
        finally:
            run.close()
        return {"results": results}


def normalise(op: str, value: Any) -> Any:
    """Return the value without the order of events: Flume takes files changed at the same time in any order.

    Messages of errors are omitted as well. tests/sources shows that ours come in order of change.
    """
    if "error" in value:
        return {"error": True}
    for result in value["results"]:
        result.get("events", []).sort(key=json.dumps)
        result.get("position_file", []).sort(key=lambda entry: entry["file"])
    return value
