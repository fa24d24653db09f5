"""What version 0.1 left behind, gone on with: its state of real servers (`tests/data/v0_1`) in the models."""

from __future__ import annotations

import base64
import json
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Uuid

from channels.kafka.records import ARROW, FORMAT, decode, encode
from plugins import Batch, Event, EventId, PartitionClaim, Record
from plugins.shared.offsets import OffsetMetadata
from tests.simulator.faults import Chances
from tests.simulator.kafka import Brokers
from tests.simulator.program import AgentProcess, command, configured, in_process, installed, logged, seeded
from tests.simulator.stores import HBase, Solr
from tests.simulator.webhdfs import Hdfs
from tests.simulator.world import World, simulation

STATE = json.loads((Path(__file__).parents[1] / "data" / "v0_1" / "state.json").read_text())
TOPIC, LETTERS, OUT = "t", "t.deadletters", "out"
BODIES = Counter(body.encode() for body in STATE["ids"].values())
GOOD = Counter({body: count for body, count in BODIES.items() if not body.endswith(b"bad")})
CHANNEL = f"""
a1.channels = c1
a1.sinks = {{sink}}
a1.channels.c1.type = kafka
a1.channels.c1.kafka.bootstrap.servers = sim:9092
a1.channels.c1.kafka.topic = {TOPIC}
a1.channels.c1.partitions = 1
a1.sinks.{{sink}}.channel = c1
a1.sinks.{{sink}}.group = {{sink}}
a1.sinks.{{sink}}.errors.tolerance = all
"""
HDFS = """
a1.sinks.{sink}.type = hdfs
a1.sinks.{sink}.hdfs.path = /{sink}/%{{place}}
a1.sinks.{sink}.hdfs.webhdfs = nn:9870
a1.sinks.{sink}.hdfs.fileType = DataStream
"""
SINKS = {
    "hdfs": HDFS,
    "again": HDFS,
    "spark": HDFS,
    "kafka": f"""
a1.sinks.kafka.type = kafka
a1.sinks.kafka.kafka.bootstrap.servers = sim:9092
a1.sinks.kafka.kafka.topic = {OUT}
a1.sinks.kafka.partitionIdHeader = to
""",
    "solr": """
a1.sinks.solr.type = solr
a1.sinks.solr.url = http://solr:8983/solr/old
a1.sinks.solr.bodyField = body_s
a1.sinks.solr.field.number_i = %{{number}}
""",
    "hbase": """
a1.sinks.hbase.type = hbase2
a1.sinks.hbase.thrift = hbase:9090
a1.sinks.hbase.table = events
a1.sinks.hbase.columnFamily = event
""",
}


class Left:
    """Models in the state that version 0.1 left, and agents of this one upon it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.brokers = world.models["kafka"] = Brokers(world, cluster_id=STATE["cluster"])
        self.hdfs = Hdfs(world)
        self.solr = Solr(world, "old")
        self.table = HBase(world).create("events", "event")
        self.number = 100
        for name, records in STATE["records"].items():
            topic = self.brokers.create_topic(name)
            if name == TOPIC:
                topic.id = identifier(STATE["topic"])
            for record in records:
                while topic.partitions[0].high < record["offset"]:  # the end of a transaction
                    topic.partitions[0].append(0, None, None, None, control=True)
                headers = [(key, decoded(value)) for key, value in record["headers"]]
                topic.partitions[0].append(record["time"], decoded(record["key"]), decoded(record["value"]), headers)
        for group, at in STATE["offsets"].items():
            self.brokers.commit_as_foreigner(group, TOPIC, 0, at["offset"], at["metadata"])
        for path, content in STATE["hdfs"].items():
            self.hdfs.put(path, content.encode())
        documents = self.solr.collections["old"]
        documents.update({id: {"id": id, "body_s": STATE["ids"][id]} for id in STATE["solr"]})
        for id in STATE["hbase"]:
            self.table.cells[id.encode()] = {b"event:pCol": {1: STATE["ids"][id].encode()}}

    def put(self) -> bytes:
        """One more event, in the channel."""
        self.number += 1
        body = b"event %d" % self.number
        headers = {"place": "x", "to": "0", "number": "1"}
        value = encode(Batch.of([Event(body, headers)]))
        topic = self.brokers.topics[TOPIC]
        topic.partitions[0].append(int(self.world.wall() * 1000), None, value, [(FORMAT, ARROW)])
        return body

    def spec(self, sink: str) -> Any:
        return configured((CHANNEL + SINKS[sink]).format(sink=sink))

    def go_on(self, sink: str) -> None:
        """An agent of this version delivers all there is, and ends."""
        agent = AgentProcess(self.world, "host", self.spec(sink), feeding=False, drain=True)
        deadline = self.world.now + 600
        while agent.running:
            assert self.world.now < deadline, f"{sink} does not come to the end"
            self.world.sleep(1)
        assert agent.code == 0

    def delivered(self, sink: str) -> Counter[bytes]:
        if sink == "kafka":
            return Counter(entry.value for entry in self.brokers.records(OUT, 0))
        if sink == "solr":
            return Counter(str(document["body_s"]).encode() for document in self.solr.collections["old"].values())
        if sink == "hbase":
            return Counter(cells[b"event:pCol"] for cells in self.table.rows().values())
        return Counter(
            line
            for path, data in self.hdfs.files(f"/{sink}").items()
            if "/.flafka/" not in path
            for line in data.splitlines()
        )

    def letters(self, sink: str) -> Counter[tuple[bytes, bool]]:
        """Bodies, and whether they were replayed."""
        from agent.runner.deadletters.letters import dead_letters_of
        from agent.runner.deadletters.stored import read

        def look() -> Counter[tuple[bytes, bool]]:
            spec = self.spec(sink)
            letters = dead_letters_of(spec.name, spec.channels[0], spec.channels[0].make(), spec.options)
            found = [kept for kept in read(letters) if kept.component == f"a1.sinks.{sink}"]
            assert len({kept.letter for kept in found}) == len(found)
            return Counter((kept.event.body, kept.replayed) for kept in found)

        found: Counter[tuple[bytes, bool]] = in_process(self.world, "operator", look)
        return found

    def said(self, group: str) -> OffsetMetadata:
        at = self.brokers.committed(group, TOPIC, 0)
        assert at is not None
        return OffsetMetadata.parse(at.metadata)

    def operator(self, *arguments: str) -> None:
        """Run `agent …`."""
        in_process(self.world, "operator", lambda: command(*arguments))


def identifier(text: str) -> Uuid:
    """The topic id of that text."""
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_")
    return Uuid(*(int.from_bytes(part, signed=True) for part in (data[:8], data[8:])))


def decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def upon(story: Callable[[Left], None]) -> None:
    """Tell it; nothing goes wrong by chance."""
    seeded(1)
    world = World(1, chances=Chances(0.0))
    with installed(), simulation(world), logged(logging.WARNING):
        world.run(lambda: story(Left(world)))


def expected(sink: str) -> Counter[bytes]:
    """What came of the sink: `again` was reset once, and HBase takes everything."""
    return {"again": GOOD + GOOD, "hbase": BODIES}.get(sink, GOOD)


@pytest.mark.parametrize("sink", SINKS)
def test_a_sink_goes_on_where_it_was(sink: str) -> None:
    def story(left: Left) -> None:
        assert left.delivered(sink) == expected(sink), "the fixture"
        letters = left.letters(sink)
        new = Counter([left.put(), left.put()])
        left.go_on(sink)
        assert left.delivered(sink) == expected(sink) + new
        new[left.put()] += 1
        left.go_on(sink)
        assert left.delivered(sink) == expected(sink) + new
        if sink != "solr":  # two of its letters were replayed by version 0.1, and wait in the topic
            assert left.letters(sink) == letters
        said = left.said(sink)
        before = OffsetMetadata.parse(STATE["offsets"][sink]["metadata"])
        topic = "" if before.epoch else STATE["topic"]  # version 0.1 might come back, which would not understand more
        assert (said.epoch, said.ids, said.topic_id) == (before.epoch, 1, topic)

    upon(story)


@pytest.mark.parametrize("sink", ["hdfs", "again", "spark"])
def test_what_a_crash_left_of_a_commit_is_finished_once(sink: str) -> None:
    """The manifest is there, its files are not, and the group was not told."""

    def story(left: Left) -> None:
        chain = sorted(path for path in left.hdfs.files(f"/{sink}/.flafka/chain"))
        manifest = json.loads(left.hdfs.files("/")[chain[-1]])
        assert manifest["files"], "the fixture"
        for file in manifest["files"]:
            left.hdfs.put(file["temporary"], left.hdfs.files("/")[file["final"]])
            assert left.hdfs.remove(file["final"])
        metadata = STATE["offsets"][sink]["metadata"]
        left.brokers.commit_as_foreigner(sink, TOPIC, 0, manifest["start"], metadata)
        new = Counter([left.put()])
        left.go_on(sink)
        assert left.delivered(sink) == expected(sink) + new

    upon(story)


@pytest.mark.parametrize("sink", SINKS)
def test_a_reset_delivers_again_once_and_under_the_new_ids(sink: str) -> None:
    def story(left: Left) -> None:
        new = Counter([left.put()])
        left.operator("group", "reset", sink, "--to", "earliest", "--yes", "--bootstrap-server", "sim:9092")
        left.go_on(sink)
        again = (BODIES if sink == "hbase" else GOOD) + new
        assert left.delivered(sink) == expected(sink) + again
        assert left.said(sink).ids == 2
        left.go_on(sink)
        assert left.delivered(sink) == expected(sink) + again

    upon(story)


def test_a_reset_for_new_ids_is_refused_where_version_0_1_would_not_understand_it() -> None:
    def story(left: Left) -> None:
        reset = ("group", "reset", "hbase", "--to", "earliest", "--yes", "--bootstrap-server", "sim:9092")
        with pytest.raises(RuntimeError, match="leave that out, or let agents of this version alone read it"):
            left.operator(*reset, "--new-ids")
        left.operator(*reset)

    upon(story)


@pytest.mark.parametrize("sink", ["hdfs", "kafka"])
def test_a_group_that_is_deleted_after_the_upgrade_delivers_nothing_again(sink: str) -> None:
    def story(left: Left) -> None:
        new = Counter([left.put()])
        left.go_on(sink)
        left.world.sleep(60)  # its member's session
        left.brokers.delete_group(sink)
        left.go_on(sink)
        assert left.delivered(sink) == expected(sink) + new

    upon(story)


def test_letters_are_replayed_once_and_those_replayed_before_are_not() -> None:
    def story(left: Left) -> None:
        before = left.letters("solr")
        replayed = {body for body, done in before if done}
        waiting = {body for body, done in before if not done}
        assert replayed, "the fixture"
        assert waiting, "the fixture"
        config = left.spec("solr")

        def replay() -> None:
            from agent.runner.deadletters.replay import replay, replayer_of
            from agent.runner.deadletters.stored import read

            replayer = replayer_of(config, config.channels[0])
            chosen = {kept.letter for kept in read(replayer.letters) if kept.component == "a1.sinks.solr"}
            replay(replayer, chosen, again=False)

        end = left.brokers.end_offset(TOPIC, 0)
        in_process(left.world, "replay", replay)
        fresh = [entry for entry in left.brokers.records(TOPIC, 0) if entry.offset >= end]
        claim = PartitionClaim(STATE["cluster"], TOPIC, STATE["topic"], "solr", 0, 0)
        records = [Record(e.offset, e.timestamp, e.key, e.value, e.headers) for e in fresh]
        taken = decode(iter(records), claim, parse_as_flume_event=True)
        assert taken is not None
        assert set(taken.batch.bodies.to_pylist()) == waiting
        assert {str(id) for id in taken.batch.ids()} <= STATE["ids"].keys()

    upon(story)


def test_events_of_each_form_have_the_ids_that_they_had() -> None:
    claim = PartitionClaim(STATE["cluster"], TOPIC, STATE["topic"], "hdfs", 0, 0)
    records = [
        Record(
            r["offset"], r["time"], decoded(r["key"]), decoded(r["value"]), [(n, decoded(v)) for n, v in r["headers"]]
        )
        for r in STATE["records"][TOPIC]
    ]
    taken = decode(iter(records), claim, parse_as_flume_event=True)
    assert taken is not None
    bodies = taken.batch.bodies.to_pylist()
    assert {str(id): body.decode() for id, body in zip(taken.batch.ids(), bodies, strict=True)} == STATE["ids"]
    stores = [set(STATE["solr"]), set(STATE["hbase"])]
    assert all(store <= STATE["ids"].keys() for store in stores)
    assert all(EventId.parse(id).topic == TOPIC for id in STATE["ids"])


def test_what_version_0_1_replayed_is_offered_to_its_group_alone_under_its_ids() -> None:
    records = [
        Record(
            r["offset"], r["time"], decoded(r["key"]), decoded(r["value"]), [(n, decoded(v)) for n, v in r["headers"]]
        )
        for r in STATE["records"][TOPIC]
    ]
    last = max(EventId.parse(id).offset for id in STATE["ids"])
    replays = [record for record in records if record.offset > last]
    assert len(replays) == 2, "the fixture"
    for group, found in (("solr", 2), ("hdfs", 0)):
        claim = PartitionClaim(STATE["cluster"], TOPIC, STATE["topic"], group, 0, 0)
        taken = decode(iter(replays), claim, parse_as_flume_event=True)
        assert taken is not None
        assert len(taken.batch) == found
        assert {str(id) for id in taken.batch.ids()} <= STATE["ids"].keys()
        assert len(taken.replays) == found
