"""Apache Flume 1.11, from its own jars, and our agent on one spooling directory, in turns."""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from pathlib import Path

import fastavro
import pytest

from flafka.agent.services.running import RunningAgent, until
from tests.interop.test_flume import delivered, flume

CONFIGURATION = """
a1.sources = files
a1.channels = memory
a1.sinks = out
a1.sources.files.type = spooldir
a1.sources.files.channels = memory
a1.sources.files.spoolDir = {spool}
a1.sources.files.trackingPolicy = {policy}
a1.sources.files.batchSize = 10
a1.sources.files.recursiveDirectorySearch = true
a1.channels.memory.type = memory
a1.channels.memory.capacity = {capacity}
a1.channels.memory.transactionCapacity = 100
a1.channels.memory.keep-alive = 1
a1.sinks.out.type = file_roll
a1.sinks.out.channel = memory
a1.sinks.out.sink.directory = {out}
a1.sinks.out.sink.rollInterval = 0
"""


def put(spool: Path, name: str, lines: list[bytes], age: float) -> Counter[bytes]:
    """Put a complete file there, as a program does."""
    path = spool / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(".written").write_bytes(b"".join(line + b"\n" for line in lines))
    os.utime(path.with_name(".written"), (1_700_000_000 - age, 1_700_000_000 - age))
    path.with_name(".written").rename(path)
    return Counter(lines)


def offset(spool: Path) -> int:
    """Return the offset in the tracker file; 0 if absent."""
    try:
        data = (spool / ".flumespool" / ".flumespool-main.meta").read_bytes()
        return [0, *(int(record["offset"]) for record in fastavro.reader(io.BytesIO(data)))][-1]
    except (FileNotFoundError, ValueError, EOFError):
        return 0


@pytest.mark.drawn(1)
@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("policy", ["rename", "tracker_dir"])
def test_a_team_moves_to_us_and_back_and_to_us_again(tmp_path: Path, policy: str) -> None:
    """Each continues at the other's offset within a file, and skips the files that the other has read."""
    spool, out, home = tmp_path / "spool", tmp_path / "out", tmp_path / "home"
    for directory in (spool, out, home):
        directory.mkdir()
    full = home / "full.conf"
    drained = home / "drained.conf"
    # Without a sink the channel fills, so that either reader stops within a file.
    text = CONFIGURATION.format(spool=spool, policy=policy, out=out, capacity=10_000)
    drained.write_text(text)
    full.write_text(
        CONFIGURATION.format(spool=spool, policy=policy, out=out, capacity=100).replace(
            "a1.sinks = out", "a1.sinks ="
        )
    )
    ours, ours_full = home / "ours.conf", home / "ours-full.conf"
    ours.write_text(drained.read_text() + "a1.monitoring.port = 0\n")
    ours_full.write_text(full.read_text() + "a1.monitoring.port = 0\n")

    def lines(name: str, count: int) -> list[bytes]:
        return [f"{name} {number} grüße".encode() for number in range(count)]

    expected = put(spool, "a", lines("a", 300), age=900)
    size = (spool / "a").stat().st_size
    with flume(home, full):
        until(lambda: offset(spool) >= size // 4, "Flume's channel to fill")
    lost_in_memory = offset(spool)
    assert 0 < lost_in_memory < size
    expected = Counter(line for line in expected if line not in lines("a", 100))
    with RunningAgent(home, ours) as agent:
        agent.until(lambda: delivered(out).total() >= expected.total(), "ours to go on")
        expected += put(spool, "sub/b", lines("b", 50), age=800)
        agent.until(lambda: delivered(out).total() >= expected.total(), "ours to read a sub-directory")
        assert agent.stop() == 0
    assert delivered(out) == expected, "ours did not go on where Flume stopped"

    expected += put(spool, "c", lines("c", 20), age=700)
    with flume(home, drained):
        until(lambda: delivered(out).total() >= expected.total(), "Flume to go on where ours stopped", seconds=100)
        marks = spool if policy == "rename" else spool / ".flumespool"
        until(lambda: (marks / "c.COMPLETED").exists(), "Flume to mark the file")
    assert delivered(out) == expected, "Flume does not know what ours has read"
    expected += put(spool, "d", lines("d", 20), age=600)
    with RunningAgent(home, ours) as agent:
        agent.until(lambda: delivered(out).total() >= expected.total(), "ours to go on again")
        assert agent.stop() == 0
    assert delivered(out) == expected


SCHEMA = {
    "type": "record",
    "name": "Line",
    "namespace": "test",
    "doc": "a line",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "text", "type": ["null", "string"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
        {"name": "parts", "type": {"type": "array", "items": "double"}},
        {"name": "more", "type": {"type": "map", "values": "Line"}},
    ],
}
AVRO = """
a1.sources = hash literal
a1.channels = memory
a1.sinks = out
a1.sources.hash.type = spooldir
a1.sources.hash.channels = memory
a1.sources.hash.spoolDir = {home}/hash
a1.sources.hash.deserializer = AVRO
a1.sources.hash.basenameHeader = true
a1.sources.literal.type = spooldir
a1.sources.literal.channels = memory
a1.sources.literal.spoolDir = {home}/literal
a1.sources.literal.deserializer = org.apache.flume.serialization.AvroEventDeserializer$Builder
a1.sources.literal.deserializer.schemaType = LITERAL
a1.channels.memory.type = memory
a1.channels.memory.capacity = 10000
a1.sinks.out.type = file_roll
a1.sinks.out.channel = memory
a1.sinks.out.sink.directory = {home}/out
a1.sinks.out.sink.rollInterval = 0
a1.sinks.out.sink.serializer = AVRO_EVENT
a1.sinks.out.sink.serializer.syncIntervalBytes = 32
"""


@pytest.mark.usefixtures("servers")
def test_records_of_avro_are_the_same_events(tmp_path: Path) -> None:
    def record(number: int, nested: dict[str, object]) -> dict[str, object]:
        text = f"grüße {number}" if number % 3 else None
        parts = [number / 3] * (number % 4)
        return {
            "number": number,
            "text": text,
            "kind": "AB"[number % 2],
            "hash": b"hash",
            "parts": parts,
            "more": nested,
        }

    file = io.BytesIO()
    records = [record(number, {"in": record(-number, {})} if number % 5 else {}) for number in range(200)]
    fastavro.writer(file, SCHEMA, records, codec="deflate", sync_interval=500)

    def events(home: Path) -> list[tuple[bytes, dict[str, str]]]:
        pairs = []
        for part in (home / "out").iterdir():
            for row in fastavro.reader(io.BytesIO(part.read_bytes())) if part.stat().st_size else ():
                headers = dict(row["headers"])
                literal = headers.pop("flume.avro.schema.literal", None)
                pairs.append((row["body"], headers | ({"literal": json.loads(literal)} if literal else {})))
        return sorted(pairs, key=repr)

    homes = {side: tmp_path / side for side in ("theirs", "ours")}
    for home in homes.values():
        for name in ("hash", "literal", "out"):
            (home / name).mkdir(parents=True)
        for name in ("hash", "literal"):
            (home / name / "file").write_bytes(file.getvalue())
        (home / "flume.conf").write_text(AVRO.format(home=home))

    def read(home: Path) -> bool:
        return all((home / name / "file.COMPLETED").exists() for name in ("hash", "literal"))

    with flume(homes["theirs"], homes["theirs"] / "flume.conf"):
        until(lambda: read(homes["theirs"]), "Flume to read", seconds=100)
        until(lambda: len(events(homes["theirs"])) >= 399, "Flume to deliver", seconds=100)
    configuration = (homes["ours"] / "flume.conf").read_text() + "a1.monitoring.port = 0\n"
    with RunningAgent(homes["ours"], configuration) as agent:
        agent.until(lambda: read(homes["ours"]), "ours to read")
        assert agent.stop() == 0
    theirs, ours = events(homes["theirs"]), events(homes["ours"])
    assert len(ours) == 400
    assert ours == theirs
