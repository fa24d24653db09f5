"""`hdfs_sink`: the files of the hdfs sink after steps: put, process, sleep, list, stop."""

import base64
import itertools
import re
import tempfile
import time
from typing import Any

import pytest

from flafka.plugins import Batch, Event, OffsetRange, Origin, Rejected
from flafka.sinks.hdfs import HdfsConfig, HdfsSink
from tests.fixtures.partitions import assignment
from tests.sinks.fake_webhdfs import NAMENODE, FakeWebHdfs

ASSIGNMENT = assignment("cluster", "topic", "id", "group", 0, 0)
_OURS = re.compile(r"topic-0-\d{10}-\d{10}-[0-9a-f]{8}")
"""Part of our file names in place of Flume's counter."""


def op_hdfs(input: dict[str, Any]) -> Any:
    """Return the result of each step; a sink that cannot be configured is an error."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as staging:
        fake = FakeWebHdfs()
        fake.install(patch)
        options = {name: value.replace("{dir}", "/dir") for name, value in input["config"].items()}
        config, problems = HdfsConfig.parse({"hdfs.webhdfs": NAMENODE, "hdfs.stagingDir": staging, **options})
        if config is None:
            return {"error": "ValueError", "message": str(problems)}
        with_content = input.get("content", False)
        steps = Steps(config, fake)
        try:
            results = [steps.take(*step) for step in input["steps"]]
        finally:
            steps.sink.close()
        return {"results": [_shaped(result, with_content) for result in results if result is not None]}


class Steps:
    """Sink with the calls of a runner."""

    def __init__(self, config: HdfsConfig, fake: FakeWebHdfs) -> None:
        self.fake, self.sink, self.later = fake, HdfsSink(config), 0.0
        self.sink.clock = lambda: time.monotonic() + self.later
        self.sink.open()
        self.owned = self.sink.resume(ASSIGNMENT.with_offset(0))
        self.waiting: list[Event] = []
        self.start = self.end = 0

    def take(self, step: str, argument: Any = None) -> Any:
        """Run one step; return None for one without a result."""
        match step:
            case "put":
                self.waiting += [Event(_body(event), event.get("headers", {})) for event in argument]
            case "process":
                return {"process": self.process()}
            case "sleep":
                self.later += argument / 1000
                self.deliver(self.sink.due_partitions())
            case "stop":
                self.deliver({ASSIGNMENT.partition})
            case "list":
                return {"files": sorted(self.fake.visible().items())}
        return None

    def process(self) -> str:
        """Deliver the waiting events."""
        events, self.waiting = self.waiting, []
        if not events:
            return "BACKOFF"
        offset, self.end = self.end, self.end + 1
        origin = Origin.of_record(ASSIGNMENT.topic, ASSIGNMENT.partition, offset, 0, len(events))
        try:
            self.sink.write(Batch.of(events, origin))
        except Rejected as e:
            return f"Rejected: {next(iter(e.reasons.values()))}"
        self.deliver(self.sink.due_partitions())
        return "READY"

    def deliver(self, due: set[int]) -> None:
        """Stage and commit."""
        if due and self.end > self.start:
            self.sink.commit(self.sink.stage(self.owned, OffsetRange(self.start, self.end)))
            self.start = self.end


def _body(event: dict[str, Any]) -> bytes:
    return base64.b64decode(event["body_b64"]) if "body_b64" in event else event["body"].encode()


def _shaped(result: dict[str, Any], with_content: bool) -> dict[str, Any]:
    if "files" not in result:
        return result
    files = []
    for path, data in result["files"]:
        shape = _OURS.sub("{millis}", path.removeprefix("/dir/"))
        content = {"content": data.decode()} if with_content else {"head_hex": data[:4].hex()}
        files.append({"name_shape": shape, "size": len(data), **content})
    return {"files": files}


def normalise(op: str, value: Any) -> Any:
    """Return the value without open files, which Flume shows, empty, and we do not; files of one name sorted by
    content."""
    if "error" in value:
        return {"error": True}
    results = []
    for result in value["results"]:
        if "files" in result:
            files = [file for file in result["files"] if file["size"]]
            key = itertools.chain.from_iterable
            result = {"files": sorted(files, key=lambda file: [*map(str, key(sorted(file.items())))])}
        results.append(result)
    return {"results": results}
