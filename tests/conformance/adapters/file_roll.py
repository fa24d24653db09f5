"""`file_roll`: names and content of the files that the file_roll sink writes."""

import re
import tempfile
import time
from pathlib import Path
from typing import Any

from flafka.plugins import Batch, Event
from flafka.sinks.file_roll import FileRollConfig, FileRollSink


def op_file_roll(input: dict[str, Any]) -> Any:
    """Return the files after all events are written and flushed."""
    with tempfile.TemporaryDirectory() as directory:
        config, problems = FileRollConfig.parse({"sink.directory": directory, **input["config"]})
        if config is None:
            return {"error": "ValueError", "message": str(problems)}
        sink = FileRollSink(config)
        now = time.time()
        sink.clock = lambda: now
        sink.open()
        sink.write(Batch.of(Event(e["body"].encode(), e["headers"]) for e in input["events"]))
        sink.flush()
        sink.close()
        files = sorted(Path(directory).iterdir())
        return {"files": [{"name_shape": _shape(f.name, now), "content": f.read_text()} for f in files]}


def _shape(name: str, now: float) -> str:
    second = time.strftime("%Y%m%d%H%M%S", time.localtime(now))
    return re.sub(second, "{yyyyMMddHHmmss}", re.sub(str(int(now * 1000)), "{startMillis}", name))


def normalise(op: str, value: Any) -> Any:
    """Return the value without the answer of Flume's `process()`, which the agent lacks. Messages are omitted."""
    if "error" in value:
        return {"error": True}
    return {"files": value["files"]}
